#!/usr/bin/env python3
"""
lint_includes.py FILE...

Includes point one way: pg to common; cli and engine to model, text and grammar, these to kernels, all to common. A file
outside src/pg never sees a PostgreSQL header, and a file of src/pg starts with postgres.h and never sees the engine's.
"""
import os
import re
import sys

# What a layer may include besides itself.
BELOW = {
    "common": set(),
    "kernels": {"common"},
    "model": {"kernels", "common"},
    "text": {"kernels", "common"},
    "grammar": {"text", "kernels", "common"},  # a grammar is compiled for a tokenizer
    "engine": {"model", "text", "grammar", "kernels", "common"},
    "cli": {"engine", "model", "text", "grammar", "kernels", "common"},  # `dsv3 engine` is a command
    "pg": {"common"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def findings(path):
    parts = path.split("/")
    if parts[0] != "src" or len(parts) < 3:
        return
    layer = parts[1]
    if layer not in BELOW:
        yield 1, f'layer "{layer}" is not in the architecture'
        return
    first = None
    with open(path, encoding="utf-8") as source:
        for number, line in enumerate(source, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, name = match.groups()
            first = first or name
            target = name.split("/")[0] if "/" in name else None
            if quote == "<" and not name.startswith(("postgres", "pg_", "libpq")):
                continue
            if os.path.exists(os.path.join("src", name)) and target in BELOW:
                if target != layer and target not in BELOW[layer]:
                    yield number, f"{layer} includes {name}: that points up or sideways"
            elif os.path.exists(os.path.join(os.path.dirname(path), name)):
                yield number, f'name it from src/: "{layer}/{name}"'
            elif layer != "pg":
                yield number, f"{name} is not ours, and only src/pg sees PostgreSQL's headers"
    # compat.h starts with postgres.h.
    if layer == "pg" and path.endswith(".c") and first not in ("postgres.h", "pg/compat.h"):
        yield 1, "the first include of a server file is postgres.h or pg/compat.h"


def main():
    bad = 0
    for path in sys.argv[1:]:
        for number, text in findings(path):
            print(f"{path}:{number}: {text}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
