#!/usr/bin/env python3
"""Checks the tree: lint.py ROOT [BUILD]. With BUILD also the libraries built there. Prints one
finding a line as FILE:LINE: [rule] what, and ends with 1 when there is one."""
import sys

import products
import rules
import tree


def main(argv):
    root, build = argv[1], argv[2] if len(argv) > 2 else None
    paths = tree.files_of(root)
    findings = list(rules.check_sources(paths, lambda path: tree.read(root, path)))
    findings += products.check_format(root, paths)
    if build:
        findings += products.check_archives(build)
    for f in findings:
        print("%s:%s: [%s] %s" % (f.path, f.line, f.rule, f.text))
    print("lint: %d files, %d findings" % (len(paths), len(findings)))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
