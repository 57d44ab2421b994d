#!/usr/bin/env python3
"""
lint_tree.py  (file names on standard input, run from the top of the tree)

Rules of the tree as a whole: the version is one; files are not too long and open with a comment; nothing is left to do;
no tracked file names a machine's folders or a package registry's host; text files end in a newline and carry no trailing
blanks; each page of docs/ is linked from the README.
"""
import os
import re
import sys

MAX_LINES = 1200
CODE = (".c", ".h", ".cu", ".cuh", ".py", ".pl", ".pm", ".sh", ".t", ".sql", ".spec", ".mk")
# Written so that this file does not find itself.
LEFT_BEHIND = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|not implem" + r"ented)\b")
MACHINE = re.compile(r"(?<![\w.$}*/-])/(?:work|root|home|Users|mnt)/[\w.-]+/")
HOST = re.compile(r"\b(?:pypi\.org|files\.python" + r"hosted\.org|deb\.debian\.org|security\.debian\.org|registry\.npmjs\.org|"
                  r"proxy\.golang\.org)\b")


def version_findings():
    def one(path, pattern):
        with open(path, encoding="utf-8") as f:
            match = re.search(pattern, f.read(), re.M)
        return match.group(1) if match else None

    control = one("dsv3.control", r"^default_version *= *'([^']+)'")
    header = one("src/common/version.h", r'^#define DSV3_VERSION "([^"]+)"')
    changes = one("CHANGELOG.md", r"^## (\S+)")
    if control != header:
        yield "dsv3.control", 1, f"version {control}, but src/common/version.h says {header}"
    if changes != header:
        yield "CHANGELOG.md", 1, f"newest entry is {changes}, but src/common/version.h says {header}"
    if not os.path.exists(f"sql/dsv3--{control}.sql"):
        yield "dsv3.control", 1, f"there is no sql/dsv3--{control}.sql"


def link_findings(names):
    with open("README.md", encoding="utf-8") as f:
        readme = f.read()
    for name in names:
        if name.startswith("docs/") and name.endswith(".md") and f"({name})" not in readme:
            yield name, 1, "README.md does not link this page"


def opens_with_comment(path, text):
    start = text.lstrip("\ufeff")
    if path.endswith((".c", ".h", ".cu", ".cuh")):
        name = os.path.basename(path)
        return re.match(r"/\*\n \* " + re.escape(name) + r"\n \*\t", start) is not None
    if path.endswith((".sh", ".mk", ".t", ".pl", ".pm")):
        return start.startswith("#")
    if path.endswith(".py"):
        return re.match(r'(#!.*\n)?(#.*\n)*("""|#)', start) is not None
    return True


def file_findings(path):
    with open(path, "rb") as f:
        raw = f.read()
    if b"\0" in raw[:8192] or path.startswith("test/fixtures/"):
        return
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        yield path, 1, "is not UTF-8"
        return
    lines = text.split("\n")
    if path.endswith(CODE):
        if len(lines) - 1 > MAX_LINES:
            yield path, 1, f"{len(lines) - 1} lines: more than {MAX_LINES}; which subjects does it hold?"
        if not opens_with_comment(path, text):
            yield path, 1, "does not open with a comment that says its name and what it is"
    if text and not text.endswith("\n"):
        yield path, len(lines), "does not end in a newline"
    expected = path.startswith("expected/") or path.endswith(".out")
    for number, line in enumerate(lines, 1):
        if not path.startswith("docs/") and LEFT_BEHIND.search(line):
            yield path, number, f"left behind: {line.strip()[:100]}"
        if MACHINE.search(line):
            yield path, number, f"names a machine's folder: {line.strip()[:100]}"
        if HOST.search(line):
            yield path, number, f"names a registry's host: {line.strip()[:100]}"
        if re.match(r"(<<<<<<<|>>>>>>>) ", line):
            yield path, number, "merge marker"
        if not expected and line != line.rstrip():
            yield path, number, "trailing blanks"


def main():
    names = [name for name in sys.stdin.read().split("\n") if name and os.path.isfile(name)]
    found = list(version_findings()) + list(link_findings(names))
    for name in names:
        found += file_findings(name)
    for path, number, text in found:
        print(f"{path}:{number}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
