#!/usr/bin/env python3
"""
read_ahead.py [--rows N] [--turn N] [--only NAME...]

What reading rows ahead brings, and what it costs, on a running server (psql's own \\timing). Run by `make bench-batch` (or
test/with_server.sh -m MODEL bench/read_ahead.py).

extract   dsv3_extract_json over N rows with dsv3.batching off and on, each asked in turns of a few rows so that both meet the same
          machine; bar: 4 times as fast. Answers must be the same.
limit     calls that LIMIT 5 over 1,000 rows makes; bar: 10, also where the node does not know of the limit.
overhead  what the node adds to a row whose call needs no request, its argument being NULL; bar: 20 microseconds.

Exit status 1 when a bar is missed or answers differ.
"""
import argparse
import re
import statistics
import subprocess
import sys

SCHEMA = ('{"type": "object", "properties": {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "minimum": 0, '
          '"maximum": 130}, "city": {"type": "string", "maxLength": 24}}, "required": ["name", "age", "city"]}')
NAMES = "Anna Bela Clara David Emil Frida Georg Hanna Ivo Jana Karl Lena Max Nora Otto Paula".split()
CITIES = "Graz Linz Bern Basel Ulm Kiel Jena Bonn Prag Riga Turin Nizza Lyon Gent Delft Cork".split()

failures = []


def psql(*statements):
    """The output of the last statement, and its milliseconds."""
    text = "\n".join(statements[:-1]) + "\n\\timing on\n" + statements[-1] + "\n"
    done = subprocess.run(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    out, time = re.match(r"(.*)Time: ([0-9.]+) ms", done.stdout, re.S).groups()
    return out, float(time)


def bar(met, text):
    print(("ok    " if met else "MISSED") + " " + text)
    if not met:
        failures.append(text)


def fill(rows):
    values = ",".join(f"({i}, '{NAMES[i % 16]} {i}, {20 + i % 60}, lives in {CITIES[i // 16 % 16]} and likes tea.')" for i in range(rows))
    psql("DROP TABLE IF EXISTS people;", "CREATE TABLE people (id int PRIMARY KEY, body text);", f"INSERT INTO people VALUES {values};",
         "ANALYZE people;")


def extract(rows, turn):
    query = f"SELECT id, dsv3_extract_json(body, '{SCHEMA}', max_tokens => 64) FROM people WHERE id BETWEEN %d AND %d ORDER BY id;"
    sums, answers = {"off": 0.0, "on": 0.0}, {"off": "", "on": ""}

    psql(query % (0, 1))
    for start in range(0, rows, turn):
        for mode in ("off", "on"):
            out, ms = psql(f"SET dsv3.batching = {mode};", query % (start, min(start + turn, rows) - 1))
            sums[mode] += ms
            answers[mode] += out
    ratio = sums["off"] / sums["on"]
    print(f"       extract: {rows} rows, one by one {sums['off'] / rows:.1f} ms a row, read ahead {sums['on'] / rows:.1f} ms a row")
    bar(answers["off"] == answers["on"], "extract: the same answers")
    bar(ratio >= 4, f"extract: {ratio:.2f} times as fast (at least 4)")


def limit():
    calls = "SELECT requests FROM dsv3_stat_engine;"
    table = "SELECT dsv3_generate(body, max_tokens => 4) AS a FROM people"
    loop = (f"DO $$ DECLARE r record; n int := 0; BEGIN FOR r IN {table} LOOP n := n + 1; EXIT WHEN n = 5; END LOOP; END $$;")

    for name, query in (("LIMIT 5", f"{table} LIMIT 5;"), ("a loop left after 5 rows", loop)):
        before = int(psql(calls)[0])
        psql(query)
        made = int(psql(calls)[0]) - before
        bar(made <= 10, f"limit: {made} calls for {name} (at most 10)")


def overhead(rows):
    query = f"SELECT count(a) FROM (SELECT dsv3_generate(CASE WHEN i < 0 THEN 'x' END) AS a FROM generate_series(1, {rows}) AS i OFFSET 0) AS q;"
    added = []

    for _ in range(7):
        times = {mode: psql(f"SET dsv3.batching = {mode};", query)[1] for mode in ("off", "on")}
        added.append((times["on"] - times["off"]) * 1000 / rows)
    us = statistics.median(added)
    bar(us <= 20, f"overhead: {us:.2f} microseconds a row (at most 20)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--turn", type=int, default=250, help="rows of one query of extract")
    parser.add_argument("--only", nargs="*", default=["extract", "limit", "overhead"])
    options = parser.parse_args()

    fill(max(options.rows, 1000))
    if "overhead" in options.only:
        overhead(200000)
    if "limit" in options.only:
        limit()
    if "extract" in options.only:
        extract(options.rows, options.turn)
    sys.exit(1 if failures else 0)


main()
