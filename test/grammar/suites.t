#!/usr/bin/env python3
"""
suites.t

Structured output against public test suites, through the command line (TAP output):
- JSON-Schema-Test-Suite, drafts 2020-12, 7 and 4: no invalid instance accepted, at least 97 % of the required tests right;
- a sample of MaskBench: no invalid instance accepted, at least 97 % of the files fully right;
- random answers over the MaskBench schemas (soak.py): no dead end, every answer valid for our validator, and, where the Python
  package jsonschema is there, for that one too;
- budgets from the minimum up: every answer complete and valid;
- masks equal to trying every token.

The data is read from ../shared/data (or DSV3_SHARED/data). Without it everything is skipped, unless CI=true. DSV3 names the
executable; WALKS the number of random answers for each schema.
"""
import os
import re
import subprocess
import sys
import tarfile
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DSV3 = os.environ.get("DSV3_BIN", os.path.join(TOP, "build/engine/dsv3"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import soak  # noqa: E402

DATA = os.path.join(os.environ.get("DSV3_SHARED", os.path.join(TOP, "../shared")), "data")
WALKS = os.environ.get("WALKS", "3")
done = 0
failed = 0


def report(ok, name, detail=""):
    global done, failed
    done += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {done} - {name}")
    for line in detail.splitlines() if not ok else []:
        print("# " + line)
    sys.stdout.flush()


def run(*args):
    return subprocess.run([DSV3, "schema", *args], capture_output=True, text=True, errors="replace")


def totals(output):
    line = re.search(r"^required: .*$", output, re.M).group(0)
    numbers = [float(n) for n in re.findall(r"[0-9.]+", line)]
    # files right, files, percent, tests right, tests, percent, invalid accepted, ...
    return {"files": numbers[2], "tests": numbers[5], "invalid": numbers[6], "line": line}


def suites(root):
    for draft in ("draft2020-12", "draft7", "draft4"):
        out = run("suite", "-v", "-", os.path.join(root, "tests", draft)).stdout
        t = totals(out)
        wrong = "\n".join(line for line in out.splitlines() if line.startswith("  ") and "/optional/" not in line)
        report(t["invalid"] == 0 and t["tests"] >= 97, f"{draft}: {t['line']}", wrong)
    out = run("suite", "-v", "-", os.path.join(root, "maskbench")).stdout
    t = totals(out)
    wrong = "\n".join(line for line in out.splitlines() if line.startswith("  "))
    report(t["invalid"] == 0 and t["files"] >= 97, f"MaskBench: {t['line']}", wrong)


def walks(root):
    result = run("walk", "-n", WALKS, "-x", "+", os.path.join(root, "maskbench"))
    report(result.returncode == 0, "masks equal trying every token; " + result.stderr.strip(), result.stdout[:4000])
    for mode in soak.MODES:
        result = run("walk", "-n", WALKS, "-b", *mode, "-", os.path.join(root, "maskbench"))
        report(result.returncode == 0, " ".join(["budgets from the minimum up", *mode]) + "; " + result.stderr.strip(), result.stdout[:4000])
    directory = os.path.join(root, "maskbench")
    walks, schemas, broken, invalid, _ = soak.soak(directory, int(WALKS) * 1300, 3, opinion=soak.opinion())
    report(not broken, f"{walks} random answers are valid", "\n".join(broken[:20]))
    if soak.opinion() is None:
        print("# the Python package jsonschema is not installed; its opinion is skipped")
    else:
        report(not invalid, f"jsonschema agrees about answers to {schemas} schemas", "\n".join(invalid[:20]))


def main():
    archives = [os.path.join(DATA, name) for name in ("json-schema-test-suite.tar.xz", "maskbench-dev.tar.xz")]
    if not all(os.path.exists(path) for path in archives):
        if os.environ.get("CI") == "true":
            report(False, f"test data in {DATA}")
        else:
            print(f"1..0 # SKIP no test data in {DATA}")
            return 0
    else:
        with tempfile.TemporaryDirectory() as root:
            for path in archives:
                with tarfile.open(path) as archive:
                    archive.extractall(root)
            suites(root)
            walks(root)
    print(f"1..{done}")
    return 1 if failed else 0


sys.exit(main())
