#!/usr/bin/env python3
"""
make_set.py [--check]
make_set.py --documents N --out FILE

Without an option, writes set.jsonl anew: the hand-written items of written.txt, then those put together from the phrases of phrases.py,
always the same ones. --check compares instead of writing. With --documents, writes FILE for a test of the whole path: one line for
each schema ("schema", "definition") and N lines with documents ("document", "text") that are not in the set.

Standard library only. Every item is checked (labels.py) before it is written.
"""
import argparse
import json
import os
import random
import sys

import labels
import phrases

SEED = 20260417
MADE = 12           # items for each schema
MADE_FOREIGN = 2    # of these, in another language
DOMAINS = {
    "support": ("support_ticket", "support_contact"), "invoices": ("invoice", "invoice_lines"), "orders": ("order", "order_change"),
    "meetings": ("meeting", "action_items"), "operations": ("log_line", "incident"), "jobs": ("job_ad", "job_terms"),
    "reviews": ("review", "purchase_facts"), "travel": ("flight", "hotel"), "contracts": ("contract", "contract_terms"),
    "sensors": ("sensor", "maintenance"),
}
DOMAIN_OF = {schema: domain for domain, names in DOMAINS.items() for schema in names}


def written(path):
    """(schema, language, text with marks) of each block: a line `@ SCHEMA LANGUAGE`, then the text, then an empty line."""
    with open(path, encoding="utf-8") as f:
        blocks = f.read().strip().split("\n\n")
    for block in blocks:
        head, _, text = block.partition("\n")
        at, schema, language = head.split()
        if at != "@":
            raise SystemExit(f"{path}: a block starts with {head!r}")
        yield schema, language, text.strip()


def item(name, schema, language, source, marked, schemas):
    try:
        text, expected, how = labels.parse_marks(marked, schemas[schema])
        made = {"id": name, "domain": DOMAIN_OF[schema], "schema": schema, "language": language, "source": source, "text": text, "expected": expected, "how": how}
        problems = labels.item_problems(made, schemas)
    except ValueError as error:
        problems = [str(error)]
    if problems:
        raise SystemExit(f"{name} ({schema}): {'; '.join(problems)}\n{marked}")
    return made


def make(schemas):
    items, seen, count = [], set(), {}
    for schema, language, marked in written(os.path.join(labels.HERE, "written.txt")):
        count[schema] = count.get(schema, 0) + 1
        items.append(item(f"{schema}-w{count[schema]:02}", schema, language, "written", marked, schemas))
        seen.add(items[-1]["text"])
    for schema in sorted(schemas):
        rng = random.Random(f"{SEED} {schema}")
        index = 0
        while index < MADE:
            language = phrases.FOREIGN.get(schema, "en") if index >= MADE - MADE_FOREIGN else "en"
            marked = phrases.document(schema, rng, language)
            one = item(f"{schema}-m{index + 1:02}", schema, language, "made", marked, schemas)
            if one["text"] not in seen:
                seen.add(one["text"])
                items.append(one)
                index += 1
    return items


def documents(count, schemas, items):
    seen = {one["text"] for one in items}
    names = sorted(schemas)
    rng = random.Random(f"{SEED} documents")
    for name in names:
        yield {"schema": name, "definition": schemas[name]}
    index = 0
    while index < count:
        schema = names[index % len(names)]
        language = phrases.FOREIGN.get(schema, "en") if rng.random() < 0.1 else "en"
        text = labels.parse_marks(phrases.document(schema, rng, language), schemas[schema])[0]
        if text not in seen:
            seen.add(text)
            index += 1
            yield {"document": index, "text": text}


def lines(values):
    return "".join(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n" for value in values)


def main():
    parser = argparse.ArgumentParser(description="make the extraction set, or documents for a test of the whole path")
    parser.add_argument("--check", action="store_true", help="compare set.jsonl with what would be written")
    parser.add_argument("--documents", type=int, metavar="N")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    if (options.documents is None) != (options.out is None) or (options.check and options.out):
        parser.error("--documents and --out belong together, and not with --check")

    schemas = labels.load_schemas()
    items = make(schemas)
    path = os.path.join(labels.HERE, "set.jsonl")
    if options.documents is not None:
        with open(options.out, "w", encoding="utf-8") as f:
            f.write(lines(documents(options.documents, schemas, items)))
        return 0
    if options.check:
        with open(path, encoding="utf-8") as f:
            if f.read() != lines(items):
                print("set.jsonl is not what make_set.py writes", file=sys.stderr)
                return 1
        return 0
    with open(path, "w", encoding="utf-8") as f:
        f.write(lines(items))
    foreign = sum(one["language"] != "en" for one in items)
    print(f"{len(items)} items, {sum(one['source'] == 'written' for one in items)} written by hand, {foreign} not in English, "
          f"{os.path.getsize(path)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
