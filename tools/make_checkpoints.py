#!/usr/bin/env python3
"""Write the small random checkpoints on which the engine is compared with Hugging Face transformers.

Each entry of SPECS is one checkpoint that turns some switches of the architecture; together they turn all of them.
A checkpoint is a function of its entry alone (numbers come from a counter-based hash), so only the oracle's answers
are kept in the repository: the checkpoints are made again wherever they are needed. The token ids that are fed in come
from the same hash.

An entry has
  name      the directory
  covers    what it is there for, in words
  base      "v3" (default) or "v2": the configuration it starts from
  config    what differs from that base; the value REMOVE takes a key away
  store     a dtype for everything, or a function name -> dtype ("FP8" for block-scaled E4M3)
  layout    set of: "fused" (3-D expert tensors), "v5" (keys as transformers 5 saves them), "sharded", "scatter" (scales
            away from their weights), "inv_freq" (left-over buffers), "mtp" (one draft layer)
  adjust    a function (name, float64 array) -> array that shapes particular tensors
  length    how many token ids are fed
  stepwise  the oracle is fed one id after another (where that makes a difference)
  wrong     configurations that must NOT give the same logits: proof that the switch is seen (used by the oracle only).
            Some keys are no configuration but mistakes: "inner eps" (that of the q_a and kv_a norms), "mask" (what the
            scores of groups not chosen become), "at once" (a stepwise input fed as one)
"""

import argparse
import math
import os

from checkpoint import (OutputDirectory, Tensor, bf16_decode, encode, fp8_dequantise, fp8_quantise,
                        gaussian, hash_u64, np, stage, tensor_seed, uniform, write_json, write_safetensors)

SEED = 3
REMOVE = object()

V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "float32",
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 112, "moe_intermediate_size": 24,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 16, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 1024, "rope_theta": 10000.0,
    "rope_scaling": None, "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0, "bos_token_id": 0, "eos_token_id": 1, "use_cache": True,
}

V2 = dict(V3, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", scoring_func="softmax",
          topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0, n_group=1, topk_group=1)
del V2["num_nextn_predict_layers"]


def yarn(**changes):
    """rope_scaling in the spelling of the published checkpoints, original length 64."""
    scaling = {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
               "mscale": 1.0, "mscale_all_dim": 1.0}
    for key, value in changes.items():
        if value is REMOVE:
            del scaling[key]
        else:
            scaling[key] = value
    return scaling


def spread(first, last, count):
    """`count` numbers from first to last in equal ratios, short enough to be exact in every reader."""
    return [round(first * (last / first) ** (i / (count - 1)), 4) for i in range(count)]


FP8 = {"quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                               "weight_block_size": [128, 128]}}
WIDE = {"hidden_size": 200, "intermediate_size": 264, "moe_intermediate_size": 136, "q_lora_rank": 144,
        "kv_lora_rank": 120, "qk_nope_head_dim": 40, "qk_rope_head_dim": 24, "v_head_dim": 40, "num_attention_heads": 5,
        "num_key_value_heads": 5, "num_hidden_layers": 2, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "torch_dtype": "bfloat16"}


def published_fp8(name):
    """Which tensors the published FP8 checkpoints quantise, and how they store the others."""
    if name.endswith("e_score_correction_bias"):
        return "F32"
    quantised = name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")
    return "FP8" if quantised and "eh_proj" not in name else "BF16"


def bf16_with_f32_bias(name):
    return "F32" if name.endswith("e_score_correction_bias") else "BF16"


def mixed(name):
    if "norm" in name or name.endswith("e_score_correction_bias"):
        return "F32"
    if name.startswith("lm_head") or "o_proj" in name:
        return "F16"
    return "F32" if name.endswith("gate.weight") or ".down_proj" in name else "BF16"


def only_negative_bias(name, values):
    """Every biased score is below zero: a masked group filled with 0.0 instead of -inf would win."""
    return values - 3.0 if name.endswith("e_score_correction_bias") else values


def large_bias(name, values):
    """The bias dwarfs the score: weights taken from biased scores, or recovered by subtraction, are wrong."""
    return values * 40 if name.endswith("e_score_correction_bias") else values


def small_latents(name, values):
    """Mean squares of the low-rank activations near 1e-6, where the inner norms' own 1e-6 decides."""
    if "q_a_proj" in name or "kv_a_proj" in name:
        return values * 1e-3
    return values


def tied_router(name, values):
    """Experts 2..13 have exactly the same score (sigmoid of 0) and bias, so the cut runs through a tie, in groups too."""
    if name.endswith("mlp.gate.weight"):
        values = values.copy()
        values[2:14] = 0.0
    if name.endswith("e_score_correction_bias"):
        values = values.copy()
        values[2:14] = 0.25
    return values


SPECS = [
    dict(name="v3-f32", covers="the base: low-rank queries, groups, YaRN as published, F32",
         config={"rope_scaling": yarn()}, store="F32", length=150,
         wrong=[{"topk_group": 4}, {"rope_scaling": None}, {"routed_scaling_factor": 2.4}]),
    dict(name="v3-bf16", covers="BF16 with an F32 router bias, as published before FP8",
         config={"rope_scaling": yarn(factor=40.0, mscale=0.707, mscale_all_dim=0.707), "torch_dtype": "bfloat16"},
         store=bf16_with_f32_bias, length=100, wrong=[{"rope_scaling": yarn(factor=40.0)}]),
    dict(name="v3-f16", covers="F16 weights", config={"torch_dtype": "float16"}, store="F16", length=40),
    dict(name="v3-mixed", covers="four storage types in one file", config={"torch_dtype": "bfloat16"}, store=mixed,
         length=40),
    dict(name="v3-fp8", covers="FP8 with 128x128 scales, blocks cut at both edges, published tensor choice",
         config={**WIDE, **FP8, "rope_scaling": yarn()}, store=published_fp8, length=80),
    dict(name="v3-fp8-scatter", covers="FP8, power-of-two scales, scales and weights in different shards, q_proj",
         config={**WIDE, "q_lora_rank": None, "first_k_dense_replace": 0,
                 "quantization_config": {**FP8["quantization_config"], "scale_fmt": "ue8m0"}},
         store=published_fp8, layout={"sharded", "scatter"}, length=40),
    dict(name="moonlight", covers="no query rank, plain rope, one group, two shared experts, eps 1e-5, BF16 bias, "
         "left-over inv_freq buffers",
         config={"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "rms_norm_eps": 1e-5,
                 "num_experts_per_tok": 6, "routed_scaling_factor": 2.446, "rope_theta": 50000.0,
                 "rope_scaling": REMOVE, "torch_dtype": "bfloat16"},
         store="BF16", layout={"inv_freq"}, length=40,
         wrong=[{"rope_theta": 10000.0}]),
    dict(name="attention-bias", covers="biases on q_a, kv_a and o, BF16",
         config={"attention_bias": True, "torch_dtype": "bfloat16"}, store=bf16_with_f32_bias, length=40,
         wrong=[{"attention_bias": False}]),
    dict(name="attention-bias-q-proj", covers="biases on kv_a and o but none on q_proj, tied embeddings, F32",
         config={"attention_bias": True, "q_lora_rank": None, "tie_word_embeddings": True}, store="F32", length=40,
         wrong=[{"attention_bias": False}]),
    dict(name="tied", covers="tied embeddings, BF16, kv heads not given",
         config={"tie_word_embeddings": True, "num_key_value_heads": None, "torch_dtype": "bfloat16"},
         store=bf16_with_f32_bias, length=40),
    dict(name="rope-linear", covers="linear scaling",
         config={"rope_scaling": {"type": "linear", "factor": 2.5}}, store="F32", length=60,
         wrong=[{"rope_scaling": None}]),
    dict(name="rope-linear-mscale", covers="linear scaling with mscale_all_dim, which changes the softmax scale there too",
         config={"rope_scaling": {"rope_type": "linear", "factor": 4.0, "mscale_all_dim": 1.5}}, store="F32", length=40,
         wrong=[{"rope_scaling": {"rope_type": "linear", "factor": 4.0}}]),
    dict(name="yarn-mscales-differ", covers="mscale and mscale_all_dim differ: cos and sin are scaled",
         config={"rope_scaling": yarn(mscale=1.3, mscale_all_dim=0.707)}, store="F32", length=150,
         wrong=[{"rope_scaling": yarn(mscale=1.0, mscale_all_dim=0.707)}]),
    dict(name="yarn-no-mscale", covers="no mscale keys: attention factor 0.1 ln s + 1, plain softmax scale",
         config={"rope_scaling": yarn(mscale=REMOVE, mscale_all_dim=REMOVE)}, store="F32", length=150,
         wrong=[{"rope_scaling": yarn()}]),
    dict(name="yarn-half-mscale", covers="only mscale_all_dim given; explicit attention_factor; other betas",
         config={"rope_scaling": yarn(mscale=REMOVE, attention_factor=1.25, beta_fast=8, beta_slow=0.5)}, store="F32",
         length=150, wrong=[{"rope_scaling": yarn(mscale=REMOVE, beta_fast=8, beta_slow=0.5)}]),
    dict(name="yarn-no-truncate", covers="truncate false",
         config={"rope_scaling": yarn(truncate=False)}, store="F32", length=150, wrong=[{"rope_scaling": yarn()}]),
    dict(name="yarn-step", covers="beta_fast = beta_slow and truncate false: the ramp's ends coincide",
         config={"rope_scaling": yarn(truncate=False, beta_fast=1, beta_slow=1)}, store="F32", length=150,
         wrong=[{"rope_scaling": yarn()}]),
    dict(name="longrope-theta-1", covers="longrope with theta 1.0 and the wanted periods as factors, biases (the demo model's form)",
         config={"rope_theta": 1.0, "attention_bias": True, "max_position_embeddings": 512,
                 "rope_scaling": {"rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0,
                                  "original_max_position_embeddings": 512, "short_factor": spread(1.0, 9000.0, 8),
                                  "long_factor": spread(1.0, 9000.0, 8)}},
         store="F32", length=150, wrong=[{"rope_scaling": None}]),
    dict(name="longrope-derived", covers="longrope with neither factor nor attention_factor, within the original length",
         config={"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 256,
                                  "short_factor": spread(1.0, 3.0, 8), "long_factor": spread(1.0, 30.0, 8)}},
         store="F32", length=100, wrong=[{"rope_scaling": None}]),
    dict(name="longrope-past", covers="longrope past the original length: a position's own place decides which factors it takes, "
         "as when tokens come one by one",
         config={"rope_scaling": {"type": "longrope", "factor": 8.0, "original_max_position_embeddings": 48,
                                  "short_factor": spread(1.0, 3.0, 8), "long_factor": spread(1.0, 30.0, 8)}},
         store="F32", length=100, stepwise=True, wrong=[{"rope_scaling": None}, {"at once": True}]),
    dict(name="rope-half-split", covers="rope_interleave false",
         config={"rope_interleave": False, "rope_scaling": yarn()}, store="F32", length=100,
         wrong=[{"rope_interleave": True}]),
    dict(name="weights-not-normalised", covers="norm_topk_prob false", config={"norm_topk_prob": False}, store="F32",
         length=40, wrong=[{"norm_topk_prob": True}]),
    dict(name="no-dense-layer", covers="first_k_dense_replace 0, two shared experts",
         config={"first_k_dense_replace": 0, "n_shared_experts": 2, "num_hidden_layers": 2}, store="F32", length=40),
    dict(name="two-dense-layers", covers="first_k_dense_replace 2, groups of three",
         config={"first_k_dense_replace": 2, "n_routed_experts": 12, "num_experts_per_tok": 5}, store="F32", length=40),
    dict(name="all-dense", covers="no routed layer at all",
         config={"first_k_dense_replace": 2, "num_hidden_layers": 2}, store="F32", length=40),
    dict(name="v5-names", covers="keys and fused expert tensors as transformers 5 saves them, F32",
         config={"rope_scaling": yarn()}, store="F32", layout={"v5", "fused"}, length=100),
    dict(name="v5-fused-bf16", covers="fused BF16 experts with the old key names, tied embeddings",
         config={"tie_word_embeddings": True, "torch_dtype": "bfloat16"}, store=bf16_with_f32_bias, layout={"fused"},
         length=40),
    dict(name="sharded", covers="four files and an index, BF16", config={"torch_dtype": "bfloat16"},
         store=bf16_with_f32_bias, layout={"sharded"}, length=40),
    dict(name="odd-f32", covers="no size a multiple of eight, F32",
         config={"vocab_size": 131, "hidden_size": 77, "intermediate_size": 61, "moe_intermediate_size": 19,
                 "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 23, "kv_lora_rank": 29,
                 "qk_nope_head_dim": 11, "qk_rope_head_dim": 6, "v_head_dim": 13, "n_routed_experts": 10, "n_group": 5,
                 "topk_group": 3, "num_experts_per_tok": 5, "n_shared_experts": 3, "rope_scaling": yarn()},
         store="F32", length=120),
    dict(name="odd-bf16", covers="no size a multiple of eight, BF16, one head",
         config={"vocab_size": 101, "hidden_size": 37, "intermediate_size": 45, "moe_intermediate_size": 9,
                 "num_attention_heads": 1, "num_key_value_heads": 1, "q_lora_rank": 13, "kv_lora_rank": 17,
                 "qk_nope_head_dim": 5, "qk_rope_head_dim": 10, "v_head_dim": 7, "n_routed_experts": 9, "n_group": 3,
                 "topk_group": 2, "num_experts_per_tok": 3, "torch_dtype": "bfloat16"},
         store=bf16_with_f32_bias, length=120),
    dict(name="odd-fp8", covers="FP8 with odd sizes, one-block and two-block matrices",
         config={**WIDE, **FP8, "hidden_size": 141, "intermediate_size": 131, "moe_intermediate_size": 33,
                 "q_lora_rank": 31, "kv_lora_rank": 133, "qk_nope_head_dim": 29, "qk_rope_head_dim": 14, "v_head_dim": 27,
                 "num_attention_heads": 3, "num_key_value_heads": 3},
         store=published_fp8, length=40),
    dict(name="inner-eps", covers="rms_norm_eps 1e-3 while the inner norms keep 1e-6, and small latents show it",
         config={"rms_norm_eps": 1e-3}, store="F32", adjust=small_latents, length=40,
         wrong=[{"rms_norm_eps": 1e-6}, {"inner eps": 1e-3}]),
    dict(name="negative-bias", covers="every biased score negative", config={}, store="F32", adjust=only_negative_bias,
         length=40, wrong=[{"topk_group": 4}, {"mask": 0.0}]),
    dict(name="large-bias", covers="biases of both signs larger than any score", config={}, store="F32",
         adjust=large_bias, length=40),
    dict(name="router-ties", covers="exact ties between experts and between groups: the lowest index wins",
         config={}, store="F32", adjust=tied_router, length=40),
    dict(name="v2-lite", covers="V2: softmax, greedy, no query rank, YaRN 0.707, groups null",
         base="v2", config={"q_lora_rank": None, "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": None,
                            "topk_group": None, "torch_dtype": "bfloat16",
                            "rope_scaling": yarn(factor=40.0, mscale=0.707, mscale_all_dim=0.707)},
         store="BF16", length=100, wrong=[{"rope_scaling": yarn(factor=40.0)}]),
    dict(name="v2-groups", covers="V2: group_limited_greedy, scaling 16, query rank, F32",
         base="v2", config={"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                            "routed_scaling_factor": 16.0, "rope_scaling": yarn()},
         store="F32", length=100, wrong=[{"topk_method": "greedy"}, {"routed_scaling_factor": 1.0}]),
    dict(name="v2-bias-odd", covers="V2 with biases and odd sizes, linear rope, tied embeddings, v5 names, fused",
         base="v2", config={"attention_bias": True, "hidden_size": 69, "num_attention_heads": 3, "num_key_value_heads": 3,
                            "q_lora_rank": 21, "kv_lora_rank": 26, "qk_nope_head_dim": 12, "qk_rope_head_dim": 10,
                            "v_head_dim": 11, "moe_intermediate_size": 13, "tie_word_embeddings": True,
                            "rope_scaling": {"type": "linear", "factor": 3.0}},
         store="F32", layout={"v5", "fused"}, length=40),
    dict(name="mtp", covers="a draft layer, which the model leaves alone", config={"num_nextn_predict_layers": 1,
                                                                                   "torch_dtype": "bfloat16"},
         store=bf16_with_f32_bias, layout={"mtp"}, length=40),
    dict(name="mtp-own", covers="a draft layer with an embedding and an output matrix of its own, no query rank, YaRN, F32",
         config={"num_nextn_predict_layers": 1, "q_lora_rank": None, "rope_scaling": yarn()},
         store="F32", layout={"mtp", "own"}, length=100),
    dict(name="kimi-k2", covers="model_type kimi_k2, FP8, betas 1 and 1, more experts, one group, one dense layer",
         config={**WIDE, **FP8, "model_type": "kimi_k2", "n_routed_experts": 24, "moe_intermediate_size": 40,
                 "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
                 "rope_theta": 50000.0, "rope_scaling": yarn(factor=32.0, beta_fast=1, beta_slow=1)},
         store=published_fp8, length=100),
    dict(name="long", covers="6200 positions, YaRN from an original length of 512",
         config={"vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 2,
                 "num_key_value_heads": 2, "q_lora_rank": 24, "kv_lora_rank": 24, "n_routed_experts": 8, "n_group": 2,
                 "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "num_hidden_layers": 2,
                 "max_position_embeddings": 8192,
                 "rope_scaling": yarn(original_max_position_embeddings=512)},
         store="F32", length=6200),
]


def spec_named(name):
    for spec in SPECS:
        if spec["name"] == name:
            return spec
    raise KeyError(name)


def base_config(spec):
    """The configuration in the spelling of the published files."""
    config = dict(V2 if spec.get("base") == "v2" else V3)
    for key, value in spec["config"].items():
        if value is REMOVE:
            config.pop(key, None)
        else:
            config[key] = value
    return config


def stored_config(spec):
    """The configuration as written to config.json."""
    config = base_config(spec)
    if "v5" in spec.get("layout", ()):
        rope = dict(config.pop("rope_scaling") or {"rope_type": "default"})
        rope.setdefault("rope_type", rope.get("type"))   # a re-saved file keeps both spellings
        rope["rope_theta"] = config.pop("rope_theta")
        config["rope_parameters"] = rope
        config["dtype"] = config.pop("torch_dtype")
        config["transformers_version"] = "5.0.0"
        if spec.get("base") != "v2":
            config["rope_interleave"] = True
    return config


def token_ids(spec, seed):
    """The ids that are fed in: any of the vocabulary."""
    vocab = base_config(spec)["vocab_size"]
    draw = hash_u64(tensor_seed(seed, "ids:" + spec["name"]), spec["length"])
    return [int(x) for x in draw % np.uint64(vocab)]


def wide_tensors(spec):
    """name -> float64 array in the published names: per-expert matrices, no buffers, draft layers last."""
    config = base_config(spec)
    tensors = {}
    adjust = spec.get("adjust", lambda name, values: values)

    def draw(name, shape):
        return gaussian(tensor_seed(SEED, spec["name"] + ":" + name), shape)

    def add(name, values):
        tensors[name] = adjust(name, values)

    def matrix(name, rows, columns):
        add(name + ".weight", draw(name, (rows, columns)) / math.sqrt(columns))

    def norm(name, size):
        add(name + ".weight", 1.0 + 0.2 * draw(name, (size,)))

    def bias(name, size):
        if config["attention_bias"]:
            add(name + ".bias", 0.5 * draw(name + ".bias", (size,)))

    def mlp(name, width):
        matrix(name + ".gate_proj", width, hidden)
        matrix(name + ".up_proj", width, hidden)
        matrix(name + ".down_proj", hidden, width)

    hidden, vocab, heads = config["hidden_size"], config["vocab_size"], config["num_attention_heads"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    latent, rank, experts = config["kv_lora_rank"], config["q_lora_rank"], config["n_routed_experts"]
    layers = config["num_hidden_layers"]
    add("model.embed_tokens.weight", draw("embed", (vocab, hidden)))
    for i in range(layers + ("mtp" in spec.get("layout", ()))):
        layer = "model.layers.%d." % i
        if i == layers:
            norm(layer + "enorm", hidden)
            norm(layer + "hnorm", hidden)
            matrix(layer + "eh_proj", hidden, 2 * hidden)
            own = "own " if "own" in spec["layout"] else ""
            add(layer + "embed_tokens.weight", draw(own + "embed", (vocab, hidden)))
            norm(layer + "shared_head.norm", hidden)
            add(layer + "shared_head.head.weight", draw(own + "head", (vocab, hidden)) * 1.5 / math.sqrt(hidden))
        norm(layer + "input_layernorm", hidden)
        norm(layer + "post_attention_layernorm", hidden)
        attention = layer + "self_attn."
        if rank is None:
            matrix(attention + "q_proj", heads * (nope + rope), hidden)
        else:
            matrix(attention + "q_a_proj", rank, hidden)
            bias(attention + "q_a_proj", rank)
            norm(attention + "q_a_layernorm", rank)
            matrix(attention + "q_b_proj", heads * (nope + rope), rank)
        matrix(attention + "kv_a_proj_with_mqa", latent + rope, hidden)
        bias(attention + "kv_a_proj_with_mqa", latent + rope)
        norm(attention + "kv_a_layernorm", latent)
        matrix(attention + "kv_b_proj", heads * (nope + value), latent)
        matrix(attention + "o_proj", hidden, heads * value)
        bias(attention + "o_proj", hidden)
        if i < config["first_k_dense_replace"]:
            mlp(layer + "mlp", config["intermediate_size"])
            continue
        matrix(layer + "mlp.gate", experts, hidden)
        if spec.get("base") != "v2":
            name = layer + "mlp.gate.e_score_correction_bias"
            add(name, 0.4 * uniform(tensor_seed(SEED, spec["name"] + ":" + name), (experts,)) - 0.2)
        for j in range(experts):
            mlp(layer + "mlp.experts.%d" % j, config["moe_intermediate_size"])
        mlp(layer + "mlp.shared_experts", config["moe_intermediate_size"] * config["n_shared_experts"])
    norm("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", draw("head", (vocab, hidden)) * 1.5 / math.sqrt(hidden))
    return tensors


def stored_tensors(spec):
    """name -> Tensor, exactly what goes into the files."""
    store = spec["store"]
    layout = spec.get("layout", set())
    stored = {}
    for name, values in wide_tensors(spec).items():
        dtype = store if isinstance(store, str) else store(name)
        if dtype == "FP8":
            two = base_config(spec)["quantization_config"].get("scale_fmt") == "ue8m0"
            stored[name], stored[name + "_scale_inv"] = fp8_quantise(values, power_of_two=two)
        else:
            stored[name] = encode(values, dtype)
    if "fused" in layout:
        stored = fuse_experts(stored, base_config(spec))
    if "inv_freq" in layout:
        for i in range(base_config(spec)["num_hidden_layers"]):
            stored["model.layers.%d.self_attn.rotary_emb.inv_freq" % i] = encode(np.full(8, 7.25), "F32")
    return stored


def fuse_experts(stored, config):
    """Per-expert matrices -> mlp.experts.gate_up_proj [E, 2 Fm, H] (gate rows first) and mlp.experts.down_proj."""
    fused = {}
    for name, tensor in stored.items():
        if ".mlp.experts." not in name:
            fused[name] = tensor
            continue
        prefix, rest = name.split(".mlp.experts.")
        if rest != "0.gate_proj.weight":
            continue
        part = lambda j, which: stored["%s.mlp.experts.%d.%s_proj.weight" % (prefix, j, which)].raw
        count = config["n_routed_experts"]
        fused[prefix + ".mlp.experts.gate_up_proj"] = Tensor(tensor.dtype, np.stack(
            [np.concatenate([part(j, "gate"), part(j, "up")]) for j in range(count)]))
        fused[prefix + ".mlp.experts.down_proj"] = Tensor(tensor.dtype, np.stack([part(j, "down") for j in range(count)]))
    return fused


def oracle_tensors(spec, draft=False):
    """What the stored tensors mean, in float32 and in the published names without buffers, and without draft layers unless
    asked for: the oracle's input where transformers cannot or should not read the files as they are."""
    layers = base_config(spec)["num_hidden_layers"]
    stored = stored_tensors(spec)
    meant = {}
    for name, tensor in stored.items():
        if name.endswith("_scale_inv") or name.endswith("inv_freq") or (
                not draft and name.startswith("model.layers.%d." % layers)):
            continue
        if tensor.dtype == "F8_E4M3":
            meant[name] = Tensor("F32", fp8_dequantise(tensor, stored[name + "_scale_inv"]))
        elif tensor.dtype == "BF16":
            meant[name] = Tensor("F32", bf16_decode(tensor.raw))
        else:
            meant[name] = Tensor("F32", tensor.raw.astype(np.float32))
    return meant


def write_checkpoint(spec, place):
    layout = spec.get("layout", set())
    stored = stored_tensors(spec)
    with OutputDirectory(place) as work:
        if "sharded" in layout:
            count = 4
            shards = [{} for _ in range(count)]
            for position, (name, tensor) in enumerate(stored.items()):
                # "scatter": neighbours, and so a weight and its scale, always land in different files.
                shards[position % count if "scatter" in layout else position * count // len(stored)][name] = tensor
            weight_map, total = {}, 0
            for i, shard in enumerate(shards):
                file = "model-%05d-of-%06d.safetensors" % (i + 1, count)
                total += write_safetensors(os.path.join(work, file), shard, {"format": "pt"})
                weight_map.update({name: file for name in shard})
            write_json(os.path.join(work, "model.safetensors.index.json"),
                       {"metadata": {"total_size": total}, "weight_map": weight_map})
        else:
            write_safetensors(os.path.join(work, "model.safetensors"), stored, {"format": "pt"})
        write_json(os.path.join(work, "generation_config.json"), {"bos_token_id": 0, "eos_token_id": 1})
        write_json(os.path.join(work, "config.json"), stored_config(spec))


def main():
    parser = argparse.ArgumentParser(description="Write the random checkpoints of the oracle comparison.")
    parser.add_argument("directory")
    parser.add_argument("names", nargs="*", help="only these; default: all")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    wanted = [spec_named(name) for name in arguments.names] or SPECS
    for spec in wanted:
        write_checkpoint(spec, os.path.join(arguments.directory, spec["name"]))
    stage("%d random checkpoints: %s" % (len(wanted), arguments.directory))


if __name__ == "__main__":
    main()
