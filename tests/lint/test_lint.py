"""Each rule fires on a violation planted in memory, and not on what looks like one."""
import unittest

import products
import rules
import tree

SYMBOL = "0000000000000000 %s %s\t0000000000000004 %s"
HEADER = "#ifndef TD_BASE_X_H\n#define TD_BASE_X_H\n%s#endif\n"


def fired(files):
    """{path: text} -> sorted "path:line rule"."""
    found = rules.check_sources(sorted(files), lambda path: files[path])
    return sorted("%s:%s %s" % (f.path, f.line, f.rule) for f in found)


def one(text, path="coordinator/x.c"):
    return [f.split(" ", 1)[1] for f in fired({path: text})]


class Source(unittest.TestCase):
    def test_clean(self):
        self.assertEqual(one('#include "lib/base/err.h"\n// rand() in a comment\n'
                             'static int f(void) {\n    return g("sprintf(x)");\n}\n'), [])

    def test_layers(self):
        for path, name, bad in (("lib/base/x.c", "lib/io/loop.h", True),
                                ("lib/rl/x.c", "lib/journal/state.h", True),
                                ("workers/engine/x.c", "lib/io/loop.h", True),
                                ("controllers/train/x.c", "controllers/rollout/y.h", True),
                                ("coordinator/x.c", "controllers/train/y.h", True),
                                ("lib/io/x.c", "tests/unit/cmocka_all.h", True),
                                ("cli/x.c", "coordinator/y.h", True),
                                ("cli/run.c", "coordinator/y.h", False),
                                ("coordinator/x.c", "lib/io/loop.h", False),
                                ("tests/unit/io/x.c", "lib/io/log_int.h", False)):
            self.assertEqual(one('#include "%s"\n' % name, path), ["layers"] if bad else [], name)
        self.assertEqual(one("", "misc/x.c"), ["layers"])

    def test_includes(self):
        self.assertEqual(one('#include "x.h"\n'), ["includes", "layers"])
        self.assertEqual(one('#include "lib/io/log_int.h"\n'), ["includes"])

    def test_cycles(self):
        a = HEADER % '#include "lib/base/y.h"\n'
        b = a.replace("X_H", "Y_H").replace("y.h", "x.h")
        self.assertEqual(fired({"lib/base/x.h": a, "lib/base/y.h": b}), ["lib/base/y.h:3 cycles"])

    def test_sizes(self):
        body = "    x();\n" * 68
        self.assertEqual(one("int f(void) {\n%s}\n" % body), [])
        self.assertEqual(one("int f(void) {\n    x();\n%s}\n" % body), ["function length"])
        rows = "int f(void) {\n    int rows[] = {\n%s    };\n}\n" % ("        1,\n" * 90)
        self.assertEqual(one(rows, "tests/x.c"), [])
        self.assertEqual(one(rows), ["function length"])
        self.assertEqual(one("int x;\n" * 801), ["file length"])
        self.assertEqual(one("// %s\n" % ("x" * 98)), ["columns"])
        self.assertEqual(one("// %s\n" % ("é" * 97)), [])

    def test_parameters(self):
        six = "int a, int (*b)(int, int), int c, int d, int e, int f"
        self.assertEqual(one("int f(%s);\nint f(%s) {\n}\n" % (six, six)), [])
        self.assertEqual(one("int f(%s, int g);\n" % six), ["parameters"])
        self.assertEqual(one("int f(%s, int g) TD_MUST_CHECK;\n" % six), ["parameters"])
        self.assertEqual(one("static int f(%s,\n   int g) {\n}\n" % six), ["parameters"])

    def test_nesting(self):
        def nested(n):
            return "void f(void) {\n%s%s}\n" % ("if (x) {\n" * n, "}\n" * n)
        self.assertEqual(one(nested(4)), [])
        self.assertEqual(one(nested(5)), ["nesting"])
        self.assertEqual(one("void f(void) {\nint x[] = {{{{{1}}}}};\n}\n"), [])

    def test_calls(self):
        for call in rules.BANNED.split():
            self.assertEqual(one("int x = %s(a);\n" % call), ["banned call"], call)
        for call in rules.MEMORY.split():
            self.assertEqual(one("int x = %s(a);\n" % call), ["memory"], call)
            self.assertEqual(one("int x = %s(a);\n" % call, "lib/base/x.c"), [])
        for call in rules.PRINTING.split():
            self.assertEqual(one("int x = %s(a);\n" % call), ["printing"], call)
            self.assertEqual(one("int x = %s(a);\n" % call, "cli/x.c"), [])
        self.assertEqual(one("int x = fork();\n"), ["banned call"])
        self.assertEqual(one("int x = op->free(a), y = td_strdup(b), z = snprintf(c);\n"), [])

    def test_libraries(self):
        self.assertEqual(one("#include <event2/event.h>\n"), ["libraries"])
        self.assertEqual(one("#include <event2/event.h>\n", "lib/io/x.c"), [])
        self.assertIn("libraries", one(HEADER % "#include <event2/event.h>\n", "lib/io/x.h"))
        for name in ("event_add(x)", "rd_kafka_poll(x)", "grpc_init()", "redisAsyncConnect(x)"):
            self.assertEqual(one("int x = %s;\n" % name), ["libraries"], name)

    def test_guard(self):
        self.assertEqual(one(HEADER % "", "lib/base/x.h"), [])
        self.assertEqual(one("int x;\n", "lib/base/x.h"), ["header guard"])
        self.assertEqual(one(HEADER % "", "lib/base/y.h"), ["header guard"])
        self.assertEqual(one((HEADER % "").replace("define TD", "define TX"), "lib/base/x.h"),
                         ["header guard"])
        self.assertEqual(fired({"lib/base/x.h": HEADER % "", "lib/rl/x.h": HEADER % ""}),
                         ["lib/rl/x.h:1 header guard"])

    def test_text(self):
        self.assertEqual(one("// TO" "DO later\n"), ["unfinished"])
        self.assertEqual(one("see /ho" "me/somebody/x\n", "docs/x.md"), ["machine path"])
        self.assertEqual(one("root/x and a/ho" "me/b are fine\n", "docs/x.md"), [])
        self.assertEqual(one("pip --index" "-url x\n", "docs/x.md"), ["host"])
        self.assertEqual(one("https" "://mirror:8080/x\n", "docs/x.md"), ["host"])
        self.assertEqual(one("https://github.com/x http://localhost:8080/ http://127.0.0.1:1\n",
                             "docs/x.md"), [])

    def test_names(self):
        self.assertEqual(one("", "coordinator/job_utils.c"), ["names"])
        self.assertEqual(one("", "coordinator/contextual.c"), [])
        files = {"coordinator/%d.c" % i: "" for i in range(4)}
        self.assertEqual(fired(files), ["coordinator:1 readme"])
        files["coordinator/README.md"] = "# coordinator\n"
        self.assertEqual(fired(files), [])


class Products(unittest.TestCase):
    def findings(self, line):
        listing = "In archive a.a:\n\ntrace.c.o:     file format elf64-x86-64\n\n" + line + "\n"
        return [f.rule for f in products.check_symbols(listing, "a.a")]

    def test_symbols(self):
        for section, bad in ((".data", True), (".bss", True), (".tbss", True), (".bss.x", True),
                             (".data.rel.ro.local", False), (".rodata", False), (".text", False)):
            line = SYMBOL % ("l     O", section, "counter")
            self.assertEqual(self.findings(line), ["mutable global"] if bad else [], section)
        for flags, section, name, want in (
                ("l     O", ".data", "trace_level", []), ("l    d ", ".data", ".data", []),
                ("       ", "*UND*", "td_planted", ["planted bugs"])):
            self.assertEqual(self.findings(SYMBOL % (flags, section, name)), want)


class Functions(unittest.TestCase):
    def test_found(self):
        code = tree.without_directives(tree.code_of(
            '#define M(a) \\\n    int a() { }\nint before;\n\nstatic const char *\nf(int a) {\n'
            '    if (a) { g(); }\n    return "}";\n}\nint h(void);\n'
            'struct s { int (*p)(int); };\n'))
        self.assertEqual([(f.name, f.line, f.lines, f.params) for f in tree.functions_of(code)],
                         [("f", 5, 5, 1), ("h", 10, 0, 0)])


if __name__ == "__main__":
    unittest.main()
