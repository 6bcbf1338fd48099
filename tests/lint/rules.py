"""Rules over source text: docs/style.md and the arrows of docs/architecture.md §5."""
import os
import re

from tree import (C_ENDS, TEXT_ENDS, Finding, code_of, functions_of, line_of, table_lines,
                  without_directives)

FILE_LINES, FUNCTION_LINES, PARAMS, NESTING, COLUMNS = 800, 70, 6, 4, 100

# folder: what its files may include, besides the folder itself. The longest prefix counts.
LAYERS = {
    "proto": ["lib/base"],
    "lib/base": [],
    "lib/spec": ["lib/base", "proto"],
    "lib/journal": ["lib/base", "proto"],
    "lib/rl": ["lib/base"],
    "lib/reward": ["lib/base"],
    "lib/text": ["lib/base"],
    "lib/ipc": ["lib/base", "proto"],
    "lib/io": ["lib/base", "proto"],
    "lib/daemon": ["lib/base", "lib/spec", "lib/io"],
    "coordinator": ["lib/base", "lib/spec", "lib/journal", "lib/io", "lib/daemon", "proto"],
    "controllers/common": ["lib", "proto"],
    "controllers/rollout": ["lib", "proto", "controllers/common"],
    "controllers/train": ["lib", "proto", "controllers/common"],
    "workers/backend": ["lib/base"],
    "workers/backend/cpu": ["lib/base", "workers/backend"],
    "workers/backend/ref": ["lib/base", "workers/backend"],
    "workers/backend/cuda": ["lib/base", "workers/backend"],
    "workers/comm": ["lib/base"],
    "workers/model": ["lib/base", "workers/backend"],
    "workers/engine": ["lib/base", "lib/rl", "lib/ipc", "workers/backend", "workers/comm",
                       "workers/model"],
    "workers": ["lib/base", "lib/rl", "lib/ipc", "lib/spec", "proto", "workers/backend",
                "workers/comm", "workers/model", "workers/engine"],
    "cli": ["lib", "proto"],
    "cli/run": ["lib", "proto", "cli", "coordinator", "controllers"],
    "tests": [""],
    "bench": [""],
}
BANNED = "strcpy strcat sprintf vsprintf atoi strtok gets rand sleep usleep system popen alloca"
MEMORY = "malloc calloc realloc free strdup strndup asprintf vasprintf aligned_alloc posix_memalign"
PRINTING = "printf fprintf vprintf vfprintf dprintf puts fputs putchar perror"
PRINTERS = ("cli/", "tests/", "bench/", "lib/base/trace.c", "lib/base/check.c", "lib/base/mem.c",
            "lib/daemon/daemon_main.c", "workers/main.c")  # its usage line
# Included several times on purpose.
UNGUARDED = ("workers/backend/cpu/kernels_",)
LIBRARIES = re.compile(r"\b(event_\w+|evtimer_\w+|evhttp\w*|evutil\w*|bufferevent\w*|grpc_(?!_)\w+|"
                       r"redis[A-Z]\w+|hiredis\w*|rd_kafka\w*)\b")
LIBRARY_FOLDERS = ("lib/io/", "tests/unit/io/")  # tests play the other side
LIBRARY_HEADERS = re.compile(r'#\s*include\s*[<"](event2?/|event\.h|grpc|hiredis|librdkafka)')


def call_pattern(names):
    return re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(names.split()))


BANNED_CALL, MEMORY_CALL, PRINT_CALL = map(call_pattern, (BANNED, MEMORY, PRINTING))
FORK_CALL = call_pattern("fork vfork")
BAD_NAME = re.compile(r"(^|_)(context|info|manager|utils?|helpers?)(_|$)")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(wo" r"rk|ro" r"ot|ho" r"me)/[\w.]")
PRIVATE_HOST = re.compile(r"(--(extra-)?index-url\b|\bregistry\.[a-z]|"
                          r"https?://(?!localhost\b|127\.)"
                          r"(?:[\w-]+(?=[:/\s\"'])|[\w.-]+\.(?:internal|local|lan|corp)\b|"
                          r"\d+\.\d+\.\d+\.\d+))")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def layer_of(path):
    if re.match(r"cli/run\w*\.[ch]$|cli/run/", path):
        return "cli/run"
    folder = os.path.dirname(path)
    while folder and folder not in LAYERS:
        folder = os.path.dirname(folder)
    return folder


def within(path, prefix):
    return prefix == "" or path == prefix or path.startswith(prefix + "/")


def check_layers(path, text):
    layer = layer_of(path)
    if not layer:
        yield Finding(path, 1, "layers", "the folder has no place in LAYERS of "
                      "tests/lint/rules.py: add it there as docs/architecture.md §5 has it")
        return
    for match in INCLUDE.finditer(text):
        name, line = match.group(1), line_of(text, match.start())
        target = layer_of(name) or os.path.dirname(name)
        if target != layer and not any(within(target, p) for p in LAYERS[layer]):
            yield Finding(path, line, "layers", "%s may not include %s (docs/architecture.md §5): "
                          "move the code, or pass in what it needs" % (layer, name))
        if "/" not in name:
            yield Finding(path, line, "includes", '"%s": write the path from the root' % name)
        if name.endswith("_int.h") and os.path.dirname(name) != os.path.dirname(path) \
                and not path.startswith("tests/"):
            yield Finding(path, line, "includes", "%s is internal to its folder" % name)


def check_cycles(graph):
    """graph: path -> [(line, included path)]. One finding for each cycle met first."""
    done, stack = set(), []

    def visit(path):
        if path in stack:
            cycle = stack[stack.index(path):] + [path]
            line = next(n for n, p in graph[stack[-1]] if p == path)
            yield Finding(stack[-1], line, "cycles",
                          " -> ".join(cycle) + ": forward-declare instead")
            return
        if path in done or path not in graph:
            return
        stack.append(path)
        for _, target in graph[path]:
            yield from visit(target)
        stack.pop()
        done.add(path)

    for path in sorted(graph):
        yield from visit(path)


def check_sizes(path, text, code):
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield Finding(path, FILE_LINES, "file length", "%d lines, at most %d: split it by purpose"
                      % (lines, FILE_LINES))
    for f in functions_of(without_directives(code)):
        # The rows of a test are data: in tests, lists of initializers do not count.
        lines = f.lines - (table_lines(f.body) if path.startswith("tests/") else 0)
        if lines > FUNCTION_LINES:
            yield Finding(path, f.line, "function length", "%s has %d lines, at most %d: take a "
                          "part with a name out of it" % (f.name, lines, FUNCTION_LINES))
        if f.params > PARAMS:
            yield Finding(path, f.line, "parameters", "%s has %d, at most %d: use a struct"
                          % (f.name, f.params, PARAMS))
        if f.nesting > NESTING:
            yield Finding(path, f.line, "nesting", "%s nests %d deep, at most %d: return early or "
                          "take the inner part out" % (f.name, f.nesting, NESTING))


def check_calls(path, code):
    rules = [(BANNED_CALL, "banned call", "docs/style.md 17 names it; use the bounded form")]
    if not path.startswith("lib/base/"):
        rules.append((MEMORY_CALL, "memory", "only lib/base allocates: td_alloc, td_free and kin"))
    if not path.startswith(PRINTERS):
        rules.append((PRINT_CALL, "printing", "use td_trace, or return an error"))
    if not path.startswith("tests/"):
        rules.append((FORK_CALL, "banned call", "fork only with exec: use td_children_spawn"))
    if not path.startswith(LIBRARY_FOLDERS):
        rules.append((LIBRARIES, "libraries", "only lib/io names this library: use its headers"))
    for pattern, rule, advice in rules:
        for match in pattern.finditer(code):
            yield Finding(path, line_of(code, match.start()), rule,
                          "%s: %s" % (match.group(1), advice))


def check_library_headers(path, text):
    for match in LIBRARY_HEADERS.finditer(text):
        if not (path.startswith(LIBRARY_FOLDERS) and path.endswith(".c")):
            yield Finding(path, line_of(text, match.start()), "libraries",
                          "this header belongs into lib/io/*.c only")


def check_guard(path, code, guards):
    if path.startswith(UNGUARDED):
        return
    match = re.match(r"\s*#ifndef (\w+)\n#define (\w+)\n", code)
    stem = re.sub(r"\W", "_", os.path.basename(path)).upper()
    if not match or match.group(1) != match.group(2) or not code.rstrip().endswith("#endif"):
        yield Finding(path, 1, "header guard", "#ifndef, #define and #endif around all of it")
    elif not (match.group(1).startswith("TD_") and match.group(1).endswith(stem)):
        yield Finding(path, 1, "header guard", "%s: expected TD_..._%s" % (match.group(1), stem))
    elif guards.setdefault(match.group(1), path) != path:
        yield Finding(path, 1, "header guard", "%s is also in %s" % (match.group(1),
                                                                     guards[match.group(1)]))


def check_text(path, text):
    wide = path.endswith(C_ENDS) or re.match(r"tests/lint/.*\.py$", path)
    for number, line in enumerate(text.split("\n"), 1):
        if wide and len(line) > COLUMNS:
            yield Finding(path, number, "columns", "%d, at most %d" % (len(line), COLUMNS))
        for pattern, rule, advice in (
                (UNFINISHED, "unfinished", "finish it, or write it into an issue"),
                (MACHINE_PATH, "machine path", "of one machine: make it relative or an argument"),
                (PRIVATE_HOST, "host", "registry or private host: leave it to the environment")):
            match = pattern.search(line)
            if match:
                yield Finding(path, number, rule, "%s: %s" % (match.group(0), advice))


def check_names(paths):
    sources = {}
    for path in paths:
        stem = os.path.splitext(os.path.basename(path))[0]
        if path.endswith(C_ENDS + (".py", ".proto")):
            sources.setdefault(os.path.dirname(path), []).append(path)
            if BAD_NAME.search(stem):
                yield Finding(path, 1, "names", "says nothing: name the file after what it holds")
    for folder, inside in sorted(sources.items()):
        in_unit = re.match(r"tests/unit/\w+$", folder)  # tests/unit/README.md speaks for them
        has = in_unit or os.path.join(folder, "README.md") in paths
        if len(inside) > 3 and not has:
            yield Finding(folder, 1, "readme", "%d source files: add a README.md of ten lines: "
                          "purpose, what calls in, what it calls, owning thread" % len(inside))


def check_sources(paths, read):
    """All rules of this file. read(path) gives the text."""
    graph, guards = {}, {}
    for path in paths:
        if path.startswith("tests/golden/") and not path.endswith(C_ENDS + (".py",)):
            continue
        if path.endswith(TEXT_ENDS) or "." not in os.path.basename(path):
            text = read(path)
            yield from check_text(path, text)
        if not path.endswith(C_ENDS):
            continue
        code = code_of(text)
        yield from check_layers(path, text)
        yield from check_sizes(path, text, code)
        yield from check_calls(path, code)
        yield from check_library_headers(path, text)
        if path.endswith((".h", ".cuh")):
            yield from check_guard(path, code, guards)
            graph[path] = [(line_of(text, m.start()), m.group(1)) for m in INCLUDE.finditer(text)]
    yield from check_cycles(graph)
    yield from check_names(paths)
