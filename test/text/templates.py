#!/usr/bin/env python3
"""Compare `dsv3 tokenize --chat` with the goldens of test/fixtures/templates; prints TAP. Standard library only.

A golden holds conversations, the text that transformers renders from the template, and its ids. Besides the ids, their decoding
must give the text back. A model that cannot be made here is skipped, except with CI=true.

  templates.py [--dsv3 PATH] [--models DIR] [NAME ...]
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from compare import ROOT, engine, text_models     # noqa: E402

GOLDENS = os.path.join(ROOT, "test", "fixtures", "templates")
THINK = {"on": True, "off": False}


def conversation(case):
    """A case as a line of dsv3 tokenize --chat."""
    line = {"messages": case["messages"]}
    if "tools" in case:
        line["tools"] = case["tools"]
    if case["think"] in THINK:
        line["think"] = THINK[case["think"]]
    return line


def compare(arguments, name):
    """ValueError on the first case that differs; the number of cases."""
    with open(os.path.join(GOLDENS, name + ".json"), encoding="utf-8") as source:
        golden = json.load(source)
    directory = text_models.make(arguments.models, golden["model"])
    cases = golden["cases"]
    made = engine(arguments, directory, ["--chat"], [conversation(case) for case in cases])
    texts = engine(arguments, directory, ["--decode"], made)
    for case, ids, text in zip(cases, made, texts):
        title = "%s (think %s)" % (case["name"], case["think"])
        if text != case["text"]:
            raise ValueError("%s renders\n%r, not\n%r" % (title, text, case["text"]))
        if ids != case["ids"]:
            raise ValueError("%s gives the ids\n%r, not\n%r" % (title, ids, case["ids"]))
    return len(cases)


def main():
    parser = argparse.ArgumentParser(description="Compare dsv3 tokenize --chat with the goldens of chat templates.")
    parser.add_argument("--dsv3", default=os.environ.get("DSV3_BIN", os.path.join(ROOT, "build", "engine", "dsv3")))
    parser.add_argument("--models", default=os.path.join(ROOT, "build", "text-models"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = arguments.names or sorted(file[:-5] for file in os.listdir(GOLDENS) if file.endswith(".json"))
    failed = 0
    for number, name in enumerate(names, 1):
        ok, note = True, ""
        try:
            title = "%s: %d conversations" % (name, compare(arguments, name))
        except text_models.Missing as problem:
            ok = os.environ.get("CI") != "true"
            title, note = "%s%s" % (name, " # SKIP %s" % problem if ok else ""), "" if ok else str(problem)
        except (ValueError, OSError) as problem:
            ok, title, note = False, name, str(problem)
        failed += not ok
        print("%s %d - %s" % ("ok" if ok else "not ok", number, title))
        if note:
            print("# " + note.replace("\n", "\n# "))
        sys.stdout.flush()
    print("1..%d" % len(names))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
