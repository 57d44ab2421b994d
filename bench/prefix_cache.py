#!/usr/bin/env python3
"""
prefix_cache.py [--rows N] [--without N] [--restarts N]

What cached prefixes save: N rows under one instruction of about 600 tokens, asked one after the other for one token each, so that
nearly all of their time is the computation of their prompts. Every few rows one is asked with the option cache_scope "none",
which computes all of its prompt; both kinds are thus measured in the same minutes. Then the engine is killed, and the first
row is asked of the new one, which finds the instruction on disk, and computed in full, several times.
Run by `make bench-prefix` (or test/with_server.sh -m MODEL -c "dsv3.kv_cache_dir = '/a/new/folder'" bench/prefix_cache.py).

Bars: 91.4 % of the rows' prompt tokens come from the cache, their prompts take a fifth of the time, the first answer after a
restart a tenth. Exit status 1 when one is missed or two answers differ.
"""
import argparse
import statistics
import sys
import time

from sql_overhead import Server

THINGS = ["printer", "door", "invoice", "heating", "laptop", "elevator", "parcel", "lamp"]
FAULTS = ["does not work", "is broken again", "was late", "is too loud", "has the wrong colour", "cannot be found"]


def instruction():
    """About 600 tokens of rules."""
    rules = [f"Rule {i}: a message about a {THINGS[i % 8]} that {FAULTS[i % 6]} goes to desk {i % 9 + 1}, unless rule {i + 1} says otherwise."
             for i in range(1, 23)]
    return "Answer with the number of the desk that a message goes to. " + " ".join(rules)


def row(number):
    return f"Message {number}: the {THINGS[number % 8]} on floor {number % 40} {FAULTS[number % 6]}."


class Asker:
    def __init__(self):
        self.connect()

    def connect(self):
        self.server = Server()

    def ask(self, text, scope):
        """(milliseconds, prompt tokens, cached tokens, answer)"""
        ms, line = self.server.ask(
            f"SELECT prompt_tokens, cached_tokens, value FROM dsv3_try_generate($bench${instruction()}$bench$, "
            f"$bench${text}$bench$, max_tokens => 1, seed => 0, options => '{{\"cache_scope\": \"{scope}\"}}')")
        prompt, cached, value = line.split("|", 2)
        return ms, int(prompt), int(cached), value

    def restart_engine(self):
        """Kill it, and wait until the next one is ready."""
        before = self.server.ask("SELECT engine_pid FROM dsv3_health()")[1]
        self.server.ask(f"COPY (SELECT 1) TO PROGRAM 'kill -9 {int(before)}'")
        while self.server.ask(f"SELECT state = 'ready' AND engine_pid <> {before} FROM dsv3_health()")[1] != "t":
            time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(usage="prefix_cache.py [--rows N] [--without N] [--restarts N]")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--without", type=int, default=20, help="rows that are also computed in full")
    parser.add_argument("--restarts", type=int, default=5)
    options = parser.parse_args()
    asker = Asker()
    model = asker.server.ask("SELECT model FROM dsv3_health()")[1]

    found, full, prompt_tokens, cached_tokens, differing = [], [], 0, 0, 0
    every = max(options.rows // max(options.without, 1), 1)
    asker.server.ask("SELECT dsv3_generate('x', max_tokens => 1)")
    for number in range(options.rows):
        ms, prompt, cached, answer = asker.ask(row(number), "role")
        prompt_tokens += prompt
        cached_tokens += cached
        if number > 0:
            found.append(ms)
        if number % every == every // 2:
            ms, _, none, other = asker.ask(row(number), "none")
            full.append(ms)
            differing += none != 0 or other != answer

    # Let the storage thread finish.
    time.sleep(2)
    first, computed, from_disk = [], [], 0
    for number in range(options.restarts):
        asker.restart_engine()
        asker.server.ask("SELECT dsv3_generate('x', max_tokens => 1)")  # the weights are touched
        ms, _, from_disk, answer = asker.ask(row(options.rows + number), "role")
        first.append(ms)
        ms, _, _, other = asker.ask(row(options.rows + number), "none")
        computed.append(ms)
        differing += other != answer

    def line(title, value, bar, unit, met):
        print(f"{title:<58}{value:>9.1f} {unit:<3}{bar:>8} {unit:<3} {'met' if met else 'MISSED'}")
        return met

    share = 100 * cached_tokens / prompt_tokens
    saved = statistics.median(full) / statistics.median(found)
    restart = statistics.median(computed) / statistics.median(first)
    print(f"{options.rows} rows of {prompt_tokens / options.rows:.0f} tokens each, {len(full)} of them also in full, model {model}")
    print(f"median of a row: {statistics.median(found):.1f} ms with the cache, {statistics.median(full):.1f} ms without; first row after a "
          f"restart: {statistics.median(first):.1f} ms with {from_disk} tokens from disk, {statistics.median(computed):.1f} ms without")
    good = line("prompt tokens from the cache", share, 91.4, "%", share >= 91.4)
    good = line("time of a row without the cache over that with it", saved, 5, "x", saved >= 5) and good
    good = line("the same of the first row after a restart", restart, 10, "x", restart >= 10) and good
    print("answers equal with and without" if differing == 0 else f"{differing} answers DIFFER")
    return 0 if good and differing == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
