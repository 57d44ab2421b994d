#!/usr/bin/env python3
"""Compare the engine on the demo model with the original Llama in transformers; prints TAP. Needs numpy only.

  - `dsv3 logits` on two recorded conversations: error at most 5e-10 of the golden (ten times the F32 Llama's own), the same
    best id at every position, the same normalisation of the whole vocabulary;
  - `dsv3 generate --json` on the recorded prompts: the same text, up to the first id the original itself was unsure of.

Without build/demo-model everything is skipped, except with CI=true.

  demo.py [--dsv3 PATH] [--model DIR] [--prompts N]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from checkpoint import hash_u64, np, tensor_seed   # noqa: E402

GOLDENS = os.path.join(ROOT, "test", "fixtures", "demo")
BAR = 5e-10


def command_output(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if result.returncode != 0:
        raise ValueError("%s %s ended with %d: %s" % (command[0], command[1], result.returncode,
                                                      result.stderr.decode("utf-8", "replace").strip()[-400:]))
    return result.stdout.decode("utf-8")


def check_logits(arguments, number, conversation, golden, work):
    out = os.path.join(work, "logits.npy")
    command_output([arguments.dsv3, "logits", arguments.model, "--ids", ",".join(map(str, conversation["ids"])), "--out", out])
    logits = np.load(out).astype(np.float64)
    positions = conversation["positions"]
    draw = hash_u64(tensor_seed(conversation["columns_seed"], "columns"), 1024) % np.uint64(logits.shape[1])
    columns = sorted(set(int(x) for x in draw))
    golden = golden.reshape(len(positions), len(columns) + 1).astype(np.float64)
    rows = logits[positions]
    error = ((rows[:, columns] - golden[:, :-1]) ** 2).sum(-1) / (golden[:, :-1] ** 2).sum(-1)
    top = rows.max(-1)
    sums = np.log(np.exp(rows - top[:, None]).sum(-1)) + top
    moved = int((logits.argmax(-1) != np.array(conversation["best"])).sum())
    line = "logits of conversation %d: NMSE %.1e, %d best ids moved, normalisation off by %.1e" % (
        number, error.max(), moved, np.abs(sums - golden[:, -1]).max())
    if not error.max() <= BAR or moved or not np.abs(sums - golden[:, -1]).max() < 1e-3:
        raise ValueError(line)
    return line


def check_answer(arguments, case, max_tokens):
    answer = json.loads(command_output([arguments.dsv3, "generate", arguments.model, "--prompt", case["prompt"],
                                        "--max-tokens", str(max_tokens), "--json"]))
    text, wanted = answer["text"], case["text"]
    if case["certain"] < len(case["ids"]):
        wanted = wanted[:len(wanted) * case["certain"] // len(case["ids"]) // 2]
        text = text[:len(wanted)]
    if text != wanted:
        raise ValueError("generated %r, the original %r" % (text, wanted))
    return "generate %r" % case["prompt"][:40]


def main():
    parser = argparse.ArgumentParser(description="Compare the engine on the demo model with the original.")
    parser.add_argument("--dsv3", default=os.environ.get("DSV3_BIN", os.path.join(ROOT, "build", "engine", "dsv3")))
    parser.add_argument("--model", default=os.path.join(ROOT, "build", "demo-model"))
    parser.add_argument("--prompts", type=int, help="only the first N prompts")
    arguments = parser.parse_args()
    if not os.path.isfile(os.path.join(arguments.model, "config.json")) and os.environ.get("CI") != "true":
        print("1..0 # SKIP %s is not there: make demo-model" % arguments.model)
        return 0
    with open(os.path.join(GOLDENS, "greedy.json"), encoding="utf-8") as source:
        greedy = json.load(source)
    with open(os.path.join(GOLDENS, "logits.json"), encoding="utf-8") as source:
        conversations = json.load(source)["conversations"]
    array = np.load(os.path.join(GOLDENS, "logits.npy"))
    cases = greedy["cases"][:arguments.prompts]
    tests = []
    begin = 0
    with tempfile.TemporaryDirectory(prefix="dsv3-demo-") as work:
        for number, conversation in enumerate(conversations, 1):
            size = len(conversation["positions"]) * (conversation["columns"] + 1)
            golden = array[begin:begin + size]
            begin += size
            tests.append(lambda number=number, conversation=conversation, golden=golden: check_logits(
                arguments, number, conversation, golden, work))
        tests += [lambda case=case: check_answer(arguments, case, greedy["max_tokens"]) for case in cases]
        print("1..%d" % len(tests))
        failed = 0
        for number, test in enumerate(tests, 1):
            try:
                print("ok %d - %s" % (number, test().replace("#", "")), flush=True)
            except (ValueError, KeyError, OSError) as problem:
                failed += 1
                print("not ok %d\n# %s" % (number, str(problem).replace("\n", "\n# ")), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
