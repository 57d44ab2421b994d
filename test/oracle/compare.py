#!/usr/bin/env python3
"""Compare the engine's logits with the oracle's goldens; prints TAP. Needs numpy, not the oracle's environment.

The random checkpoints are made again from their seed. For each, `dsv3 logits` runs over the recorded ids and must
  - give finite float32 [positions, vocabulary],
  - differ from the oracle by a normalised mean squared error of at most 1e-10 at every compared position,
  - have the oracle's best id at every position of the input where the oracle's lead exceeds 1e-4.
A checkpoint with a draft layer has goldens for what that says, for both forms of its input; the bar is the same.

With --variant, each checkpoint is compared once for every variant: further arguments of dsv3 logits.

  compare.py [--dsv3 PATH] [--checkpoints DIR] [--nmse BAR] [--variant="--isa ref"]... [NAME ...]
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from checkpoint import directory_digest, np           # noqa: E402
from make_checkpoints import SPECS, base_config, token_ids, write_checkpoint   # noqa: E402

GOLDENS = os.path.join(ROOT, "test", "fixtures", "oracle")
LEAD = 1e-4
DRAFTS = [("drafts", " --drafts"), ("drafts-before", " --drafts --draft-input before-norm")]


def engine_logits(arguments, variant, place, ids, work):
    out = os.path.join(work, "logits.npy")
    if os.path.exists(out):
        os.remove(out)
    command = [arguments.dsv3, "logits", place, "--out", out] + shlex.split(variant)
    if len(ids) > 1000:
        listed = os.path.join(work, "ids.txt")
        with open(listed, "w") as file:
            file.write("\n".join(map(str, ids)) + "\n")
        command += ["--ids-file", listed]
    else:
        command += ["--ids", ",".join(map(str, ids))]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if result.returncode != 0:
        raise ValueError("dsv3 logits ended with %d: %s" % (result.returncode, result.stdout.strip()[-400:]))
    return np.load(out)


def compare(spec, entry, arguments, variant, work):
    """One line about the comparison; ValueError when it fails."""
    name = spec["name"]
    place = os.path.join(arguments.checkpoints, name)
    write_checkpoint(spec, place)
    if directory_digest(place) != entry["digest"]:
        raise ValueError("the checkpoint made here is not the oracle's: its generator changed, or numbers differ on "
                         "this machine; if the change is meant: make oracle")
    ids = token_ids(spec, entry["ids_seed"])
    logits = engine_logits(arguments, variant, place, ids, work)
    wanted = (len(ids), base_config(spec)["vocab_size"])
    if logits.dtype != np.float32 or logits.shape != wanted:
        raise ValueError("logits are %s %s, not float32 %s" % (logits.dtype, logits.shape, wanted))
    if not np.isfinite(logits).all():
        raise ValueError("logits are not finite, first at position %d" % np.argwhere(~np.isfinite(logits))[0][0])
    truth = np.load(os.path.join(GOLDENS, name + ".npy")).astype(np.float64)
    rows = logits[entry["positions"]].astype(np.float64)
    error = ((rows - truth) ** 2).sum(-1) / (truth ** 2).sum(-1)
    worst = int(error.argmax())
    top = np.load(os.path.join(GOLDENS, name + ".top.npy"))
    clear = top[:, 1] > LEAD
    moved = np.flatnonzero(clear & (logits.argmax(-1) != top[:, 0].astype(np.int64)))
    line = "NMSE %.1e at position %d, best id equal at %d of %d" % (error[worst], entry["positions"][worst],
                                                                  clear.sum() - len(moved), clear.sum())
    if not error[worst] <= arguments.nmse:
        raise ValueError("%s; bar %.1e, first over it at position %d" %
                         (line, arguments.nmse, entry["positions"][int(np.argmax(error > arguments.nmse))]))
    if len(moved):
        raise ValueError("%s; first at position %d" % (line, moved[0]))
    for golden, options in DRAFTS if "mtp" in spec.get("layout", ()) else []:
        truth = np.load(os.path.join(GOLDENS, "%s.%s.npy" % (name, golden))).astype(np.float64)
        rows = engine_logits(arguments, variant + options, place, ids, work).astype(np.float64)
        error = ((rows - truth) ** 2).sum(-1) / (truth ** 2).sum(-1)
        worst = int(error.argmax())
        line += ", %s NMSE %.1e" % (golden, error[worst])
        if not error[worst] <= arguments.nmse:
            raise ValueError("%s at position %d; bar %.1e" % (line, worst + 1, arguments.nmse))
    return line


def main():
    parser = argparse.ArgumentParser(description="Compare the engine's logits with the oracle's.")
    parser.add_argument("--dsv3", default=os.environ.get("DSV3_BIN", os.path.join(ROOT, "build", "engine", "dsv3")))
    parser.add_argument("--checkpoints", default=os.path.join(ROOT, "build", "oracle-checkpoints"))
    parser.add_argument("--nmse", type=float, default=1e-10)
    parser.add_argument("--variant", action="append", help="further arguments of dsv3 logits; may be given several times")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    with open(os.path.join(GOLDENS, "index.json"), encoding="utf-8") as source:
        goldens = json.load(source)
    specs = [spec for spec in SPECS if not arguments.names or spec["name"] in arguments.names]
    tests = [(spec, variant) for variant in arguments.variant or [""] for spec in specs]
    print("1..%d" % len(tests))
    if not os.access(arguments.dsv3, os.X_OK):
        print("Bail out! %s is not there: build it with make engine" % arguments.dsv3)
        return 1
    os.makedirs(arguments.checkpoints, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dsv3-compare-") as work:
        for number, (spec, variant) in enumerate(tests, 1):
            title = ("%s %s" % (spec["name"], variant)).rstrip()
            entry = goldens["checkpoints"].get(spec["name"])
            try:
                if entry is None:
                    raise ValueError("there is no golden for it: make oracle")
                print("ok %d - %s: %s" % (number, title, compare(spec, entry, arguments, variant, work)), flush=True)
            except (ValueError, OSError) as problem:
                failed += 1
                print("not ok %d - %s" % (number, title))
                print("# " + str(problem).replace("\n", "\n# "))
                print("# covers: %s" % spec["covers"], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
