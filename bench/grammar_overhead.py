#!/usr/bin/env python3
"""
grammar_overhead.py [--rounds N] [--tokens N]

What a grammar costs for each token, through SQL on a running server (make bench-grammar-sql, or test/with_server.sh -m MODEL
bench/grammar_overhead.py). Three requests with the same prompt take turns, psql's own \\timing measures them:

  free     dsv3_try_generate
  any      the same with an expression that allows every text: the masks are as large as can be, and the answer is the same
  schema   dsv3_try_extract_json: short lists of tokens and drafts between the masks of free text

Each round takes another text of the extraction set, and asks first for one token, which is subtracted: what remains is time per token
after the first. The table shows medians, and the median of the ratios to `free` within each round, which is what the bar is about: a
grammar adds at most 3 %. Exit status 1 when the bar is missed or an `any` answer is another than the free one.
"""
import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "extraction"))
import labels  # noqa: E402
from sql_overhead import Server  # noqa: E402

BAR = 3.0
KINDS = ("free", "any", "schema")


def literal(text):
    return "'" + text.replace("'", "''") + "'"


def statement(kind, text, schema, tokens):
    definition = literal(json.dumps(schema)) + "::jsonb"
    if kind == "schema":
        call = f"dsv3_try_extract_json({literal(text)}, {definition}, max_tokens => {tokens}, options => '{{\"temperature\": 0}}')"
    else:
        chosen = '{"regex": "[\\\\s\\\\S]*"}' if kind == "any" else "{}"
        call = (f"dsv3_check_schema({definition}) AS c, LATERAL dsv3_try_generate(c.prompt, {literal(text)}, max_tokens => {tokens}, "
                f"temperature => 0, options => {literal(chosen)})")
    return f"SELECT json_build_array(t.error, t.value, t.output_tokens) FROM {call} AS t"


def ask(server, kind, text, schema, tokens):
    """(milliseconds, answer, tokens)"""
    ms, out = server.ask(statement(kind, text, schema, tokens))
    error, answer, count = json.loads(out)
    if error is not None:
        raise SystemExit(f"{kind}: {error}")
    return ms, answer, count


def main():
    parser = argparse.ArgumentParser(description="what a grammar costs for each token")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()

    server = Server()
    server.ask("SET standard_conforming_strings = on")
    schemas, items = labels.load_schemas(), labels.load_items()
    items = items[::max(1, len(items) // (options.rounds + 1))]
    each = {kind: [] for kind in KINDS}
    counts = {kind: 0 for kind in KINDS}
    differing = 0
    for number, item in enumerate(items[:options.rounds + 1]):
        schema = schemas[item["schema"]]
        first = ask(server, "free", item["text"], schema, 1)[0]
        order = [KINDS[(number + i) % 3] for i in range(3)]
        # A document needs room for its shortest form.
        got = {kind: ask(server, kind, item["text"], schema, options.tokens + (128 if kind == "schema" else 0)) for kind in order}
        # The last token of an answer with a grammar is its end.
        differing += not got["free"][1].startswith(got["any"][1])
        if number == 0 or got["free"][2] < 8:
            continue  # warming up; an answer too short to measure
        for kind, (ms, _, count) in got.items():
            each[kind].append((ms - first) / (count - 1))
            counts[kind] += count

    free = each["free"]
    print(f"{len(free)} rounds, model {os.path.basename(server.ask('SHOW dsv3.model_path')[1])}, "
          f"weights {server.ask('SHOW dsv3.weights')[1]}; milliseconds per token after the first")
    print(f"{'':<10}{'ms':>10}{'added':>11}{'bar':>8}{'tokens':>10}")
    good = differing == 0
    for kind in KINDS:
        added = 100 * (statistics.median(a / b for a, b in zip(each[kind], free)) - 1)
        met = kind == "free" or added <= BAR
        good = good and met
        print(f"{kind:<10}{statistics.median(each[kind]):>10.3f}"
              + (f"{'':>19}" if kind == "free" else f"{added:>9.2f} %{BAR:>6.0f} %")
              + f"{counts[kind]:>10}" + ("" if kind == "free" else "  met" if met else "  MISSED"))
    print("answers under the open grammar equal the free ones" if differing == 0 else f"{differing} answers DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
