#!/usr/bin/env python3
"""
audit_cost.py [--rounds N] [--seconds N] [--sessions N] [--tokens N]

What the audit log costs. Sessions of pgbench ask the model without a pause; windows with dsv3.audit = digest (and
dsv3.audit_sync = on) and windows with dsv3.audit = off take turns, so that what else the machine does meets both alike. The
order changes with each round. Run by `make bench-audit`, on a server that syncs its files.

The bar: at most 2 % of the requests per second, as the median of the rounds' ratios. Exit status 1 when it is missed.
"""
import argparse
import os
import re
import statistics
import subprocess
import tempfile


def window(script, level, options):
    """Requests per second, and the milliseconds of one."""
    environment = dict(os.environ, PGOPTIONS=f"-c dsv3.audit={level}")
    out = subprocess.run(["pgbench", "-n", "-c", str(options.sessions), "-j", "2", "-T", str(options.seconds), "-f", script],
                         env=environment, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"^tps = ([\d.]+)", out, re.M).group(1)), float(re.search(r"^latency average = ([\d.]+)", out, re.M).group(1))


def main():
    parser = argparse.ArgumentParser(usage="audit_cost.py [--rounds N] [--seconds N] [--sessions N] [--tokens N]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()

    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write("\\set river random(1, 1000000)\n"
                   f"SELECT dsv3_generate('Tell me about river number ' || :river, max_tokens => {options.tokens});\n")
        file.flush()
        os.chmod(file.name, 0o644)
        window(file.name, "digest", argparse.Namespace(sessions=options.sessions, seconds=5))
        rates = {"off": [], "digest": []}
        times = {"off": [], "digest": []}
        for number in range(options.rounds):
            for level in ("off", "digest") if number % 2 == 0 else ("digest", "off"):
                rate, time = window(file.name, level, options)
                rates[level].append(rate)
                times[level].append(time)
                print(f"round {number + 1}  {level:6}  {rate:9.2f} requests/s  {time:9.1f} ms each", flush=True)
    ratios = [on / off for on, off in zip(rates["digest"], rates["off"])]
    cost = 100 * (1 - statistics.median(ratios))
    print(f"{options.sessions} sessions: off {statistics.median(rates['off']):.2f}, digest {statistics.median(rates['digest']):.2f} requests/s; "
          f"ratios {min(ratios):.3f} to {max(ratios):.3f}; the audit log costs {cost:.1f} % (at most 2)")
    return 0 if cost <= 2 else 1


if __name__ == "__main__":
    raise SystemExit(main())
