"""The files of the tree, and C source without comments and strings."""
import os
import re
import subprocess
from collections import namedtuple

Finding = namedtuple("Finding", "path line rule text")
Function = namedtuple("Function", "name line lines params nesting body")

C_ENDS = (".c", ".h", ".cu", ".cuh")
TEXT_ENDS = C_ENDS + (".py", ".sh", ".cmake", ".proto", ".md", ".txt", ".yaml", ".yml", ".in")


def files_of(root):
    """Paths that are tracked, or new and not ignored; without git, all but build output."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                              "--exclude-standard"], check=True, capture_output=True).stdout
        paths = [p for p in out.decode().split("\0") if p]
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, dirs, names in os.walk(root):
            dirs[:] = [d for d in dirs if d not in (".git", "build", ".venv", "tandem-run")]
            paths += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(p for p in set(paths) if os.path.isfile(os.path.join(root, p)))


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        return f.read()


TOKEN = re.compile(r'//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
                   re.DOTALL)


def blank(match):
    """Spaces for a comment, empty quotes for a literal; line breaks stay, so that lines keep."""
    text = match.group(0)
    inner = re.sub(r"[^\n]", " ", text)
    return inner if text[0] == "/" else text[0] + inner[1:-1] + text[0]


def code_of(text):
    return TOKEN.sub(blank, text)


def without_directives(code):
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*",
                  lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.MULTILINE)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


SIGNATURE = re.compile(r"\b([A-Za-z_]\w*)\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\s*"
                       r"(?:__attribute__\s*\(\(.*?\)\)\s*|[A-Z_]+(?:\([^()]*\))?\s*)*$", re.DOTALL)


def count_params(params):
    if params.strip() in ("", "void"):
        return 0
    depth = commas = 0
    for c in params:
        depth += (c in "([{") - (c in ")]}")
        commas += c == "," and depth == 0
    return commas + 1


def nesting_of(body):
    """Deepest nesting of control blocks; braces of initializers do not count."""
    stack, deepest = [], 0
    for match in re.finditer(r"[{}]", body):
        if match.group(0) == "}":
            if stack:
                stack.pop()
            continue
        before = body[:match.start()].rstrip()
        stack.append(before.endswith(")") or re.search(r"\b(else|do)$", before) is not None)
        deepest = max(deepest, sum(stack))
    return deepest


def table_lines(body):
    """Lines of the brace lists that initialize something."""
    total = 0
    for match in re.finditer(r"=\s*\{", body):
        depth, at = 1, match.end()
        while depth and at < len(body):
            depth += (body[at] == "{") - (body[at] == "}")
            at += 1
        total += body.count("\n", match.end(), at)
    return total


def functions_of(code):
    """Functions defined or declared in C source that code_of and without_directives went over."""
    found, depth, begin = [], 0, 0
    open_at = None
    for match in re.finditer(r"[{};]", code):
        c, at = match.group(0), match.start()
        if depth == 0 and c in "{;":
            head = code[begin:at]
            sig = SIGNATURE.search(head.rstrip())
            is_function = sig and "=" not in head and "typedef" not in head
            if c == ";" and is_function:
                line = line_of(code, begin + sig.start(1))
                found.append(Function(sig.group(1), line, 0, count_params(sig.group(2)), 0, ""))
            open_at = (begin, at, sig if is_function else None) if c == "{" else None
        if c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0 and open_at and open_at[2]:
                begin_at, brace, sig = open_at
                first = line_of(code, begin_at + len(code[begin_at:brace])
                                - len(code[begin_at:brace].lstrip()))
                found.append(Function(sig.group(1), first, line_of(code, at) - first + 1,
                                      count_params(sig.group(2)),
                                      nesting_of(code[brace + 1:at]), code[brace:at]))
        if depth == 0:
            begin = at + 1
    return found
