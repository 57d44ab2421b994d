#!/usr/bin/env python3
"""Goldens of the random checkpoints: the logits of Hugging Face transformers, F32, eager, on the CPU.

Writes, under test/fixtures/oracle/,
  index.json     versions; per checkpoint the seed of its ids, the positions compared, the digest of its files, how far
                 the router was from another choice, and the oracle's own rounding noise (against the same model with
                 float64 activations)
  NAME.npy       float32 [positions compared, vocabulary]
  NAME.top.npy   float32 [all positions, 2]: the best id and its lead over the second
  NAME.drafts.npy         float32 [positions - 1, vocabulary]: of a checkpoint with a draft layer, what the layer says from
                          position 1 on; with NAME.drafts-before.npy for hidden states taken before the final norm

Where transformers cannot read a checkpoint as the engine does (FP8, a draft layer, model_type kimi_k2) it is given
what the checkpoint means: the same numbers in F32 under the published names.

A router that is a rounding error away from another choice makes two right engines differ, so ids are drawn again until
every choice is clear. Exact ties are the exception: torch leaves their order open, the rule here is the lowest index,
and for the checkpoint with ties torch.topk is replaced by a stable sort.

Each entry's `wrong` configurations are run too and must give other logits: a switch nobody can see is no test.
"""

import argparse
import contextlib
import json
import os
import tempfile

from oracle_common import FIXTURES, load_model, versions, write_compact_json

import numpy as np
import torch
import transformers

import make_checkpoints
from checkpoint import directory_digest, stage, write_json, write_safetensors
from make_checkpoints import SPECS, base_config, oracle_tensors, token_ids, write_checkpoint

GOLDENS = os.path.join(FIXTURES, "oracle")
CLEAR = 2e-5          # how clear every router choice must be; the long checkpoint has too many to ask that much
CLEAR_LONG = 2e-6
COMPARED = 40
VISIBLE = 1e-6        # the error a wrong configuration must cause
NOISE_LIMIT = 1e-11   # the oracle's own error must stay well below the bar of 1e-10


MISTAKES = ("inner eps", "mask", "at once")


def positions_compared(length):
    """All of a short input; of a longer one both ends and an even choice between."""
    if length <= COMPARED:
        return list(range(length))
    return sorted(set(range(8)) | set(range(length - 8, length)) |
                  set(round(8 + i * (length - 17) / (COMPARED - 17)) for i in range(COMPARED - 16)))


def adapted(spec):
    """Must the checkpoint be rewritten for transformers?"""
    config = base_config(spec)
    return "quantization_config" in config or config["model_type"] == "kimi_k2" or "mtp" in spec.get("layout", ())


def write_for_oracle(spec, place, changes=None):
    """The meaning of the checkpoint as a plain F32 one; `changes` to its configuration make a wrong one."""
    config = dict(base_config(spec), torch_dtype="float32")
    config.pop("quantization_config", None)
    if config["model_type"] == "kimi_k2":
        config["model_type"] = "deepseek_v3"
    if "num_nextn_predict_layers" in config:
        config["num_nextn_predict_layers"] = 0
    config.update({key: value for key, value in (changes or {}).items() if key not in MISTAKES})
    tensors = oracle_tensors(spec)
    if not config["attention_bias"]:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("_proj.bias")
                   and not name.endswith("_mqa.bias")}
    os.makedirs(place, exist_ok=True)
    write_safetensors(os.path.join(place, "model.safetensors"), tensors, {"format": "pt"})
    write_json(os.path.join(place, "config.json"), config)


def stable_topk(values, k, dim=-1, largest=True, sorted=True):
    best = torch.sort(values, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((best.values.narrow(dim, 0, k), best.indices.narrow(dim, 0, k)))


@contextlib.contextmanager
def replaced(holder, name, value):
    old = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, old)


class RouterWatch:
    """Collects, from all routers and tokens, how clear the least clear choice was: the distance between what was taken and
    what was left, over groups and over experts, in float64."""

    def __init__(self, model, config):
        self.config = config
        self.least = np.inf
        self.handles = [module.register_forward_hook(self.look) for module in model.modules()
                        if type(module).__name__.endswith("TopkRouter")]

    def look(self, module, inputs, output):
        config = self.config
        logits = output[0].detach().double().numpy()
        k = config["num_experts_per_tok"]
        if config["scoring_func"] == "sigmoid":
            choice = 1 / (1 + np.exp(-logits)) + module.e_score_correction_bias.double().numpy()
            grouped, best = (config["n_group"] or 1) > 1, 2
        else:
            choice = np.exp(logits - logits.max(-1, keepdims=True))
            choice /= choice.sum(-1, keepdims=True)
            grouped, best = config["topk_method"] == "group_limited_greedy", 1
        clear = np.full(len(logits), np.inf)
        if grouped:
            groups, kept = config["n_group"], config["topk_group"]
            parts = choice.reshape(len(choice), groups, -1)
            scores = np.sort(parts, axis=-1)[..., -best:].sum(-1)
            order = np.sort(scores, axis=-1)[:, ::-1]
            if kept < groups:
                clear = np.minimum(clear, order[:, kept - 1] - order[:, kept])
            mask = scores >= order[:, kept - 1:kept]
            choice = np.where(mask[..., None], parts, -np.inf).reshape(choice.shape)
        order = np.sort(choice, axis=-1)[:, ::-1]
        if k < order.shape[1]:
            clear = np.minimum(clear, order[:, k - 1] - order[:, k])
        self.least = min(self.least, float(clear.min()))

    def stop(self):
        for handle in self.handles:
            handle.remove()


def run(model, ids, stepwise=False):
    with torch.inference_mode():
        if stepwise:
            cache = transformers.DynamicCache(config=model.config)
            rows = [model(torch.tensor([[id]]), cache=cache, use_cache=True).logits[0, 0] for id in ids]
            return torch.stack(rows).to(torch.float64).numpy()
        return model(torch.tensor([ids]), use_cache=False).logits[0].to(torch.float64).numpy()


def run_wide(model, ids, stepwise=False):
    """The same model with float64 activations. Angles stay in F32, as they are part of the definition."""
    wide = model.double()
    with replaced(torch, "float32", torch.float64):
        return run(wide, ids, stepwise)


def draft_layer(spec, work, model):
    """The draft layer of transformers with the checkpoint's weights. Its decoder layer is loaded as the last one of a model that
    is one layer longer, so that transformers itself finds names and fuses experts."""
    from transformers.modeling_layers import MtpModel
    config = base_config(spec)
    layer = config["num_hidden_layers"]
    tensors = oracle_tensors(spec, draft=True)
    prefix = "model.layers.%d." % layer
    own = {name[len(prefix):]: torch.from_numpy(np.array(tensors.pop(name).raw)) for name in list(tensors)
           if name.startswith(prefix) and name[len(prefix):].split(".")[0] in
           ("enorm", "hnorm", "eh_proj", "embed_tokens", "shared_head")}
    place = os.path.join(work, spec["name"] + ".longer")
    os.makedirs(place, exist_ok=True)
    write_safetensors(os.path.join(place, "model.safetensors"), tensors, {"format": "pt"})
    write_json(os.path.join(place, "config.json"), dict(config, torch_dtype="float32", num_nextn_predict_layers=0,
                                                        num_hidden_layers=layer + 1))
    longer = load_model(place)[0]
    model.config.num_mtp_layers = 1
    drafts = MtpModel(model, 1).eval()
    with torch.no_grad():
        block = drafts.layers[0]
        block.mtp_block.load_state_dict(longer.model.layers[layer].state_dict())
        block.enorm.weight.copy_(own["enorm.weight"])
        block.hnorm.weight.copy_(own["hnorm.weight"])
        block.eh_proj.weight.copy_(own["eh_proj.weight"])
        block.post_norm.weight.copy_(own["shared_head.norm.weight"])
    drafts.embed_tokens = torch.nn.Embedding.from_pretrained(own["embed_tokens.weight"])
    drafts.shared_head = torch.nn.Linear(1, 1, bias=False)
    drafts.shared_head.weight = torch.nn.Parameter(own["shared_head.head.weight"], requires_grad=False)
    return drafts


def run_drafts(model, drafts, ids, before_norm):
    """The draft layer's logits at positions 1 and on."""
    states = {}

    def keep(module, inputs, output):
        states["before"], states["after"] = inputs[0], output

    handle = model.model.norm.register_forward_hook(keep)
    with torch.inference_mode():
        model(torch.tensor([ids]), use_cache=False)
        handle.remove()
        hidden = states["before" if before_norm else "after"][:, :-1]
        out = drafts.forward_layer(0, hidden, torch.arange(1, len(ids))[None], None,
                                   input_ids=torch.tensor([ids[1:]]))
        return drafts._project_to_logits(out)[0].to(torch.float64).numpy()


def draft_goldens(spec, work, model, config, ids):
    """-> the goldens of both input forms, and how clear the router's choices were."""
    drafts = draft_layer(spec, work, model)
    watch = RouterWatch(drafts, config)
    rows = {name: run_drafts(model, drafts, ids, name == "drafts-before") for name in ("drafts", "drafts-before")}
    watch.stop()
    if not nmse(rows["drafts-before"], rows["drafts"]).max() > VISIBLE:
        raise SystemExit("oracle: %s: the input of the draft layer makes no difference" % spec["name"])
    return {name: row.astype(np.float32) for name, row in rows.items()}, watch.least


def run_wrong(place, changes, ids, stepwise):
    """The logits of a wrong configuration, or of a right one with one of the MISTAKES."""
    model = load_model(place)[0]
    stepwise = stepwise and "at once" not in changes
    if "inner eps" in changes:
        for name, module in model.named_modules():
            if name.endswith("_a_layernorm"):
                module.variance_epsilon = changes["inner eps"]
    if "mask" in changes:
        right = torch.Tensor.masked_fill
        with replaced(torch.Tensor, "masked_fill", lambda self, mask, value: right(self, mask, changes["mask"])):
            return run(model, ids, stepwise)
    return run(model, ids, stepwise)


def nmse(values, truth):
    """Normalised mean squared error, per row."""
    return ((values - truth) ** 2).sum(-1) / (truth ** 2).sum(-1)


def golden(spec, work):
    """-> (index entry, rows, top, goldens of drafts by name)"""
    name, length = spec["name"], spec["length"]
    config = base_config(spec)
    ties, stepwise = name == "router-ties", spec.get("stepwise", False)
    place = os.path.join(work, name)
    write_checkpoint(spec, place)
    digest = directory_digest(place)
    source = place
    if adapted(spec):
        source = place + ".meaning"
        write_for_oracle(spec, source)
    model, unexpected = load_model(source)
    if [key for key in unexpected if "inv_freq" not in key]:
        raise SystemExit("oracle: %s: transformers has no use for %s" % (name, unexpected[:5]))
    wanted = CLEAR_LONG if length > 1000 else CLEAR
    with replaced(torch, "topk", stable_topk if ties else torch.topk):
        for seed in range(1, 100):
            ids = token_ids(spec, seed)
            watch = RouterWatch(model, config)
            logits = run(model, ids, stepwise)
            watch.stop()
            drafts, drafts_clear = {}, np.inf
            if "mtp" in spec.get("layout", ()):
                drafts, drafts_clear = draft_goldens(spec, work, model, config, ids)
            if ties or min(watch.least, drafts_clear) >= wanted:
                break
        else:
            raise SystemExit("oracle: %s: no ids with clear router choices" % name)
        noise = float(nmse(logits, run_wide(model, ids, stepwise)).max())
    if not np.isfinite(logits).all() or noise > NOISE_LIMIT:
        raise SystemExit("oracle: %s: the oracle itself is not exact enough (noise %.1e)" % (name, noise))
    seen = []
    for changes in spec.get("wrong", []):
        wrong_place = os.path.join(work, name + ".wrong")
        write_for_oracle(spec, wrong_place, changes)
        wrong = run_wrong(wrong_place, changes, ids, stepwise)
        seen.append(float(nmse(wrong, logits).max()))
        if seen[-1] < VISIBLE:
            raise SystemExit("oracle: %s: %r makes no difference (%.1e)" % (name, changes, seen[-1]))
    order = np.sort(logits, axis=-1)
    top = np.stack([logits.argmax(-1), order[:, -1] - order[:, -2]], axis=1).astype(np.float32)
    positions = positions_compared(length)
    entry = {"ids_seed": seed, "length": length, "positions": positions, "digest": digest,
             "router_clear": float("%.3g" % watch.least) if np.isfinite(watch.least) else None, "noise": float("%.2g" % noise),
             "wrong": [float("%.2g" % error) for error in seen]}
    return entry, logits[positions].astype(np.float32), top, drafts


def check(name, entry, rows, top, drafts, old):
    """Does a golden of before say the same?"""
    known = old["checkpoints"].get(name)
    if known is None:
        return "there is no golden for it"
    for key in ("ids_seed", "length", "positions", "digest"):
        if known[key] != entry[key]:
            return "%s is %r, was %r" % (key, entry[key], known[key])
    error = float(nmse(rows.astype(np.float64), np.load(os.path.join(GOLDENS, name + ".npy")).astype(np.float64)).max())
    old_top = np.load(os.path.join(GOLDENS, name + ".top.npy"))
    moved = int(((old_top[:, 0] != top[:, 0]) & (old_top[:, 1] > 1e-4)).sum())
    if error > NOISE_LIMIT or moved:
        return "error %.1e, %d best ids moved" % (error, moved)
    for kind, row in drafts.items():
        known = np.load(os.path.join(GOLDENS, "%s.%s.npy" % (name, kind))).astype(np.float64)
        error = float(nmse(row.astype(np.float64), known).max())
        if error > NOISE_LIMIT:
            return "%s: error %.1e" % (kind, error)
    return None


def main():
    parser = argparse.ArgumentParser(description="Write or verify the logits of the random checkpoints.")
    parser.add_argument("--verify", action="store_true", help="derive again and compare, write nothing")
    parser.add_argument("names", nargs="*", help="only these; default: all")
    arguments = parser.parse_args()
    index_path = os.path.join(GOLDENS, "index.json")
    old = {"checkpoints": {}}
    if os.path.exists(index_path):
        with open(index_path, encoding="utf-8") as source:
            old = json.load(source)
    specs = [spec for spec in SPECS if not arguments.names or spec["name"] in arguments.names]
    entries = {}
    wrong = 0
    os.makedirs(GOLDENS, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dsv3-oracle-") as work:
        for spec in specs:
            name = spec["name"]
            entry, rows, top, drafts = golden(spec, work)
            line = "%-24s seed %d, router clear by %s, noise %.1e" % (name, entry["ids_seed"], entry["router_clear"],
                                                                  entry["noise"])
            if arguments.verify:
                problem = check(name, entry, rows, top, drafts, old)
                wrong += problem is not None
                stage("%s: %s" % (line, problem or "equal"))
                continue
            entries[name] = entry
            np.save(os.path.join(GOLDENS, name + ".npy"), rows)
            np.save(os.path.join(GOLDENS, name + ".top.npy"), top)
            for kind, row in drafts.items():
                np.save(os.path.join(GOLDENS, "%s.%s.npy" % (name, kind)), row)
            stage(line)
    if arguments.verify:
        raise SystemExit("oracle: %d of %d checkpoints differ from the goldens" % (wrong, len(specs)) if wrong else 0)
    kept = {} if not arguments.names else old["checkpoints"]
    merged = {**kept, **entries}
    write_compact_json(index_path, {"versions": versions(), "checkpoint_seed": make_checkpoints.SEED,
                                    "checkpoints": {spec["name"]: merged[spec["name"]] for spec in SPECS
                                                    if spec["name"] in merged}})
    if not arguments.names:
        names = {spec["name"] for spec in SPECS}
        for file in os.listdir(GOLDENS):
            if file.endswith(".npy") and file.split(".")[0] not in names:
                os.remove(os.path.join(GOLDENS, file))


if __name__ == "__main__":
    main()
