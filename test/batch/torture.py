"""Compares the results of torture.sh: what differs between the server alone and the server with dsv3 beyond what must.

torture.py FOLDER KNOWN. FOLDER has base, loaded and torture, each with results/. KNOWN lists tests, one a line with the reason, whose
output under torture was looked at and is right although it differs.
"""

import difflib
import os
import re
import sys


def lines(folder, run, test):
    path = os.path.join(folder, run, "results", test)
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().split("\n")


def strip(text):
    """A result without plans, and with notices at the end, sorted."""
    result, notices = [], []
    i = 0
    while i < len(text):
        line = text[i]
        if re.match(r"^\s*(QUERY PLAN|explain_\w+)\s*$", line):
            while i < len(text) and not re.match(r"^\(\d+ rows?\)$", text[i]):
                i += 1
        elif re.match(r"^(NOTICE|WARNING|INFO): ", line):
            notices.append(line)
        else:
            result.append(line)
        i += 1
    return result + sorted(notices)


def main():
    folder, known = sys.argv[1:]
    with open(known, encoding="utf-8") as file:
        excused = {line.split()[0] for line in file if line.strip() and not line.startswith("#")}
    tests = sorted(os.listdir(os.path.join(folder, "base", "results")))
    bad = 0
    for run in ("loaded", "torture"):
        if not os.path.isdir(os.path.join(folder, run, "results")):
            continue
        for test in (t for t in tests if t.endswith(".out")):
            base, other = lines(folder, "base", test), lines(folder, run, test)
            if run == "torture":
                base, other = strip(base), strip(other)
            difference = list(difflib.unified_diff(base, other, "base/" + test, run + "/" + test, lineterm="", n=4))
            if not difference:
                continue
            if run == "torture" and test[:-4] in excused:
                print(f"{run}: {test} differs as expected")
                continue
            bad += 1
            print("\n".join(difference))
    print(f"{len(tests)} results, {bad} that should not differ")
    sys.exit(bad > 0)


main()
