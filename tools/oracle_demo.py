#!/usr/bin/env python3
"""Goldens of the demo model: what the original Llama answers in Hugging Face transformers, F32, greedy.

Writes, under test/fixtures/demo/,
  greedy.json   versions; for every prompt of demo_prompts.txt the number of prompt ids, the answer's ids and text, why it
                ended, and `certain`: how many ids from the start have a lead above 1e-3 over the second best. Two right
                engines may part after that, never before.
  logits.json, logits.npy
                two conversations' ids; logits of some positions and some columns of the vocabulary, and for each of those
                positions the logarithm of the sum of all exponentials. They come from the Llama with float64 activations
                (weights and angles as always), because thirty layers of F32 leave an error near the bar; `noise` is the
                F32 Llama's own distance from them

It also loads the demo model itself in transformers and reports how far it is from the Llama; the numbers are kept in
greedy.json under "demo_in_transformers".
"""

import argparse
import json
import os

from oracle_common import FIXTURES, load_model, versions, write_compact_json

import numpy as np
import tokenizers
import torch
import transformers

from checkpoint import hash_u64, stage, tensor_seed
from oracle_logits import nmse, run, run_wide

TOKENS = 64
LEAD = 1e-3
LOGIT_PROMPTS = (11, 59)    # a short and a longer conversation
POSITIONS, COLUMNS = 16, 1024
VERIFY_TOLERANCE = 1e-12


def read_prompts():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo_prompts.txt"), encoding="utf-8") as source:
        return source.read().splitlines()


def prompt_ids(tokenizer, template, prompt):
    """The chat template around one user message, as ids."""
    chat = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    text = chat.apply_chat_template([{"role": "user", "content": prompt}], chat_template=template, tokenize=False,
                                    add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False).ids


def answer(model, ids, eos):
    """-> (answer ids without the end token, reason, leads)"""
    feed = torch.tensor([ids])
    with torch.inference_mode():
        out = model.generate(feed, attention_mask=torch.ones_like(feed), max_new_tokens=TOKENS, do_sample=False,
                             eos_token_id=eos, pad_token_id=eos, return_dict_in_generate=True, output_logits=True)
    made = out.sequences[0].tolist()[len(ids):]
    leads = []
    for row in out.logits:
        best = torch.topk(row[0].double(), 2).values
        leads.append(float(best[0] - best[1]))
    if made and made[-1] == eos:
        return made[:-1], "stop", leads
    return made, "length", leads


def log_sum(rows):
    top = rows.max(-1)
    return np.log(np.exp(rows - top[:, None]).sum(-1)) + top


class RoutingWatch:
    """Which experts the demo model's routers take, and with which weights."""

    def __init__(self, model):
        self.sets, self.weights_one = [], True
        for module in model.modules():
            if type(module).__name__ == "DeepseekV3TopkRouter":
                seen = set()
                self.sets.append(seen)
                module.register_forward_hook(lambda module, inputs, output, seen=seen: self.look(output, seen))

    def look(self, output, seen):
        _, weights, experts = output
        self.weights_one &= bool((weights == 1).all())
        seen.update(map(tuple, experts.sort(-1).values.tolist()))


def main():
    parser = argparse.ArgumentParser(description="Write or verify the demo model's goldens.")
    parser.add_argument("--llama", default="build/cache/smollm2-llama-bf16")
    parser.add_argument("--demo", default="build/demo-model")
    parser.add_argument("--verify", action="store_true", help="derive again and compare, write nothing")
    arguments = parser.parse_args()
    for directory in (arguments.llama, arguments.demo):
        if not os.path.isfile(os.path.join(directory, "config.json")):
            raise SystemExit("oracle: %s is not there: rm -rf build/demo-model && make demo-model" % directory)
    place = os.path.join(FIXTURES, "demo")
    os.makedirs(place, exist_ok=True)
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(arguments.llama, "tokenizer.json"))
    with open(os.path.join(arguments.llama, "tokenizer_config.json"), encoding="utf-8") as source:
        template = json.load(source)["chat_template"]
    model, _ = load_model(arguments.llama)
    eos = model.config.eos_token_id
    cases = []
    for prompt in read_prompts():
        ids = prompt_ids(tokenizer, template, prompt)
        made, reason, leads = answer(model, ids, eos)
        thin = [i for i, lead in enumerate(leads) if lead <= LEAD]
        cases.append({"prompt": prompt, "prompt_ids": len(ids), "ids": made,
                      "text": tokenizer.decode(made, skip_special_tokens=True), "finish": reason,
                      "certain": thin[0] if thin else len(leads), "least_lead": float("%.3g" % min(leads))})
    stage("%d prompts answered, %d ids, %d of the answers certain to the end"
          % (len(cases), sum(len(case["ids"]) for case in cases),
             sum(case["certain"] >= len(case["ids"]) for case in cases)))

    demo, _ = load_model(arguments.demo)
    watch = RoutingWatch(demo)
    worst = {"nmse": 0.0, "max": 0.0, "best_equal": 0, "positions": 0}
    for case in cases[::6]:
        ids = prompt_ids(tokenizer, template, case["prompt"]) + case["ids"]
        one, other = run(model, ids), run(demo, ids)
        worst["nmse"] = max(worst["nmse"], float(nmse(other, one).max()))
        worst["max"] = max(worst["max"], float(np.abs(one - other).max()))
        worst["best_equal"] += int((one.argmax(-1) == other.argmax(-1)).sum())
        worst["positions"] += len(ids)
    report = {"nmse": float("%.2g" % worst["nmse"]), "max_difference": float("%.2g" % worst["max"]),
              "best_equal": worst["best_equal"], "positions": worst["positions"], "weights_all_one": watch.weights_one,
              "expert_sets_per_layer": [len(seen) for seen in watch.sets],
              "frequencies_equal": bool(torch.equal(demo.model.rotary_emb.inv_freq[:32], model.model.rotary_emb.inv_freq))}
    stage("the demo model in transformers against the Llama: %s" % json.dumps(report))
    if report["nmse"] > 1e-10 or not report["weights_all_one"] or not report["frequencies_equal"]:
        raise SystemExit("oracle: the demo model is not the Llama: the converter is wrong")

    conversations = []
    kept = []
    for number in LOGIT_PROMPTS:
        ids = prompt_ids(tokenizer, template, cases[number]["prompt"]) + cases[number]["ids"]
        narrow = run(model, ids)
        rows = run_wide(model, ids)
        model.float()
        positions = sorted(set(round(i * (len(ids) - 1) / (POSITIONS - 1)) for i in range(POSITIONS)))
        columns = sorted(set(int(x) for x in hash_u64(tensor_seed(number, "columns"), COLUMNS) % np.uint64(rows.shape[1])))
        conversations.append({"ids": ids, "positions": positions, "columns_seed": number,
                              "best": rows.argmax(-1).tolist(), "columns": len(columns),
                              "noise": float("%.2g" % nmse(narrow, rows).max())})
        kept.append(np.concatenate([rows[positions][:, columns], log_sum(rows[positions])[:, None]], axis=1))
    logits = np.concatenate([part.ravel() for part in kept]).astype(np.float32)

    greedy_path, logits_path = os.path.join(place, "greedy.json"), os.path.join(place, "logits.json")
    array_path = os.path.join(place, "logits.npy")
    if arguments.verify:
        with open(greedy_path, encoding="utf-8") as source:
            old = json.load(source)
        moved = [case["prompt"] for case, before in zip(cases, old["cases"])
                 if case["prompt"] != before["prompt"] or
                 case["ids"][:min(case["certain"], before["certain"])] !=
                 before["ids"][:min(case["certain"], before["certain"])]]
        before = np.load(array_path).astype(np.float64)
        error = float(((logits - before) ** 2).sum() / (before ** 2).sum()) if before.shape == logits.shape else 1.0
        if moved or len(cases) != len(old["cases"]) or error > VERIFY_TOLERANCE:
            raise SystemExit("oracle: demo goldens differ: answers %r, logits %.1e" % (moved[:3], error))
        stage("demo goldens: equal, logits within %.1e" % error)
        return
    write_compact_json(greedy_path, {"versions": versions(), "max_tokens": TOKENS, "demo_in_transformers": report,
                                     "cases": cases})
    write_compact_json(logits_path, {"versions": versions(), "conversations": conversations})
    np.save(array_path, logits)


if __name__ == "__main__":
    main()
