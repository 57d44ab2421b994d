#!/usr/bin/env python3
"""Write src/text/unicode_data.c by asking the oracle.

The general category of every code point, and whether its script is Han, are measured through the `tokenizers` package
(its regular expressions are Oniguruma's), so the table carries the very Unicode version the oracle uses. Needs
`pip install tokenizers`; the result is committed, so building dsv3 needs neither.

Usage: make_unicode_data.py > src/text/unicode_data.c
"""
import sys

import tokenizers
from tokenizers import Regex, pre_tokenizers

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
              "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"]
LIMIT = 0x110000
PER_LINE = 10


def members(expression):
    """Code points that the expression matches."""
    split = pre_tokenizers.Split(Regex(expression), "removed")
    return {c for c in range(LIMIT) if not 0xD800 <= c < 0xE000 and not split.pre_tokenize_str(chr(c))}


def print_array(name, kind, items):
    print(f"const {kind} {name}[] = {{")
    for i in range(0, len(items), PER_LINE):
        print("\t" + " ".join(item + "," for item in items[i:i + PER_LINE]))
    print("};")
    print(f"const int {name}_count = (int) (sizeof({name}) / sizeof({name}[0]));")


def main():
    category = [CATEGORIES.index("Cn")] * LIMIT
    for c in range(0xD800, 0xE000):
        category[c] = CATEGORIES.index("Cs")
    for index, name in enumerate(CATEGORIES):
        if name not in ("Cs", "Cn"):
            for c in members(r"\p{" + name + "}"):
                category[c] = index
    runs = [c for c in range(LIMIT) if c == 0 or category[c] != category[c - 1]]
    han = sorted(members(r"\p{Han}"))
    members_han = set(han)
    starts = [c for c in han if c - 1 not in members_han]
    ends = [c for c in han if c + 1 not in members_han]

    print("/*")
    print(" * unicode_data.c")
    print(" *\t  General categories and the Han script, as tables of runs. Written by test/text/make_unicode_data.py from")
    print(f" *\t  what tokenizers {tokenizers.__version__} matches; do not edit.")
    print(" */")
    print('#include "text/unicode_data.h"')
    print()
    print("/* clang-format off */")
    print("/* first code point of a run << 8 | Dsv3Category, ascending; a run ends where the next begins */")
    print_array("dsv3_unicode_runs", "uint32_t", [f"0x{c << 8 | category[c]:X}" for c in runs])
    print()
    print("/* ranges of script Han: first, last */")
    print_array("dsv3_unicode_han", "uint32_t", [f"0x{a:X}, 0x{b:X}" for a, b in zip(starts, ends)])
    print("/* clang-format on */")


if __name__ == "__main__":
    sys.exit(main())
