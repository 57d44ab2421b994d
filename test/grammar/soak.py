#!/usr/bin/env python3
"""
soak.py [--walks N] [--seed S] [--seconds T] [--tokens K] DIRECTORY

Random answers to the MaskBench schemas in DIRECTORY until N (1,000,000) have been written, checked by others (TAP output):

- `dsv3 schema walk` writes them, from all schemas in turn, in the three modes of white space, and fails on a dead end;
- the Python package jsonschema, with its checks of formats, must find each of them valid;
- where a PostgreSQL server is named in the environment (test/with_server.sh), it must take each of them as jsonb.

An answer is brought to its end after K (60) free tokens. The same seed gives the same answers. With --seconds it stops after that time and says how many it was. DSV3 names the executable.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DSV3 = os.environ.get("DSV3_BIN", os.path.join(TOP, "build/engine/dsv3"))
PER_SCHEMA = 4
MODES = ([], ["--compact"], ["--spaced"])

# Where the package differs from the specifications: multipleOf in binary floating point; \s without U+FEFF and with some control
# characters; a dot that matches other line ends than \n.
ODD_SPACE = re.compile("[\ufeff\x85\u2028\u2029]|\\\\r|\\\\u001[c-f]")


class Validators:
    def __init__(self):
        import jsonschema
        warnings.simplefilter("ignore")  # about patterns
        self.jsonschema = jsonschema
        self.made = {}
        self.unreadable = set()

    def of(self, path):
        if path not in self.made:
            with open(path, encoding="utf-8") as f:
                schema = json.load(f)["schema"]
            kind = self.jsonschema.validators.validator_for(schema)
            self.made[path] = kind(schema, format_checker=kind.FORMAT_CHECKER)
        return self.made[path]

    def complaint(self, path, text):
        """What the package has against an answer, or None."""
        if path in self.unreadable:
            return None
        try:
            value = json.loads(text)
            errors = [e for e in self.of(path).iter_errors(value) if e.validator != "multipleOf"]
        except json.JSONDecodeError as error:
            return str(error)
        except Exception as error:  # a schema or pattern the package itself cannot read
            self.unreadable.add(path)
            print(f"# {os.path.basename(path)}: {type(error).__name__}: {str(error)[:100]}")
            return None
        return errors[0].message[:200] if errors and not ODD_SPACE.search(text) else None


def as_jsonb(lines):
    """Let a server read the answers; what it says when it does not want one."""
    copy = "\n".join(line.partition("\t")[2].replace("\\", "\\\\").replace("\t", "\\t") for line in lines)
    command = "CREATE TEMP TABLE answers (value jsonb); COPY answers FROM STDIN;\n" + copy + "\n\\.\nSELECT count(*) FROM answers;\n"
    result = subprocess.run(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1"], input=command, capture_output=True, text=True)
    return None if result.returncode == 0 and result.stdout.strip() == str(len(lines)) else result.stderr + result.stdout


def opinion():
    """The package's opinion, or None where it is not installed."""
    try:
        return Validators()
    except ImportError:
        return None


def soak(directory, walks, seed, seconds=float("inf"), tokens=60, opinion=None, server=False):
    """Write and check; gives the number of answers, of schemas, and what is wrong: broken, invalid, not taken as jsonb."""
    began = time.monotonic()
    written = round_number = 0
    schemas = set()
    broken, invalid, refused = [], [], []
    while written < walks and time.monotonic() - began < seconds:
        round_seed = str(seed * 1000003 + round_number)
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as out:
            result = subprocess.run([DSV3, "schema", "walk", "-n", str(PER_SCHEMA), "--seed", round_seed, "--tokens", str(tokens),
                                     *MODES[round_number % len(MODES)], "--print", "+", directory],
                                    stdout=out, stderr=subprocess.PIPE, text=True)
            out.seek(0)
            lines = [line for line in out.read().split("\n") if line]
        failures = [line for line in lines if line.startswith("FAIL ")]
        lines = [line for line in lines if "\t" in line and not line.startswith("FAIL ")]
        if result.returncode != 0 or failures:
            broken += [f"seed {round_seed}: {line[:300]}" for line in failures or [result.stderr]]
        for line in lines:
            path, _, text = line.partition("\t")
            schemas.add(path)
            complaint = opinion and opinion.complaint(path, text)
            if complaint:
                invalid.append(f"seed {round_seed} {os.path.basename(path)}: {complaint}: {text[:200]}")
        if server:
            complaint = as_jsonb(lines)
            if complaint:
                refused.append(f"seed {round_seed}: {complaint[:500]}")
        written += len(lines)
        round_number += 1
        if round_number % 20 == 0:
            print(f"# {written} answers, {time.monotonic() - began:.0f} s, {len(invalid)} invalid", flush=True)
    return written, len(schemas), broken, invalid, refused


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--walks", type=int, default=1000000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("directory")
    arguments = parser.parse_args()
    server = "PGHOST" in os.environ
    written, schemas, broken, invalid, refused = soak(arguments.directory, arguments.walks, arguments.seed, arguments.seconds,
                                                      arguments.tokens, Validators(), server)
    print(f"# {written} answers to {schemas} schemas, seed {arguments.seed}")
    checks = [("no dead end, and every answer valid for the validator of the engine", broken),
              ("every answer valid for jsonschema", invalid)]
    if server:
        checks.append(("every answer is jsonb", refused))
    for number, (name, wrong) in enumerate(checks, 1):
        print(f"{'not ok' if wrong else 'ok'} {number} - {name} ({written})")
        for line in wrong[:50]:
            print("# " + line)
    print(f"1..{len(checks)}")
    return any(wrong for _, wrong in checks)


if __name__ == "__main__":
    sys.exit(main())
