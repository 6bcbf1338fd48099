"""Rules over what was built: no mutable globals, no planted bugs. And clang-format."""
import os
import re
import subprocess

from tree import C_ENDS, Finding

# (object, symbol): why it may be. Everything else that can be written hangs off a struct.
GLOBALS = {
    ("trace.c", "trace_level"): "log level",
    ("worker.c", "stop_flag"): "stop flag, set by a signal handler",
    ("mem.c", "fail_at"): "failure hook of tests, per thread",
}
SYMBOL = re.compile(r"^[0-9a-f]+ (.{7}) (\S+)\s+[0-9a-f]+ (?:\.hidden |\.internal )?(\S+)$")


def archives_of(build):
    """The products' static libraries: all but those of tests and bench."""
    for folder, dirs, names in os.walk(build):
        if folder == build:
            dirs[:] = [d for d in dirs if d not in ("tests", "bench", "CMakeFiles")]
        yield from (os.path.join(folder, n) for n in sorted(names) if n.endswith(".a"))


def check_symbols(listing, archive):
    """listing: of objdump -t."""
    member = "?"
    for line in listing.split("\n"):
        start = re.match(r"(\S+):\s+file format", line)
        if start:
            member = re.sub(r"\.o(bj)?$", "", start.group(1))
        match = SYMBOL.match(line)
        if not match:
            continue
        flags, section, name = match.groups()
        writable = re.match(r"\.(data|bss|tdata|tbss)(\.|$)|\*COM\*", section) and \
            not section.startswith(".data.rel.ro")
        if writable and "d" not in flags and (member, name) not in GLOBALS:
            yield Finding(archive, member, "mutable global", "%s: hang it off a struct, or make it "
                          "const (allowed ones: GLOBALS in tests/lint/products.py)" % name)
        if name.startswith("td_planted"):
            yield Finding(archive, member, "planted bugs", "a product built with TD_PLANT: only "
                          "libraries of tests/ may be")


def check_archives(build):
    archives = list(archives_of(build))
    if not archives:
        yield Finding(build, 0, "products", "no libraries there: build first")
    for archive in archives:
        out = subprocess.run(["objdump", "-t", archive], check=True, capture_output=True)
        yield from check_symbols(out.stdout.decode(), os.path.relpath(archive, build))


def check_format(root, paths):
    paths = [p for p in paths if p.endswith(C_ENDS)]
    command = ["clang-format", "--dry-run", "-Werror", "-ferror-limit=1"]
    out = subprocess.run(command + paths, cwd=root, capture_output=True)
    for match in re.finditer(r"^([^\s:]+):(\d+):\d+: error", out.stderr.decode(), re.MULTILINE):
        yield Finding(match.group(1), int(match.group(2)), "format", "run clang-format -i on it")
