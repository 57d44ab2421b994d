#!/usr/bin/env python3
"""Write a small random DeepseekV3ForCausalLM checkpoint with its own tokenizer: the model of the tests.

Nothing is downloaded. It has what the real ones have, small: a dense first layer, routed experts in groups with a
bias, shared experts, low-rank queries, YaRN, ChatML turns. The same seed gives the same bytes everywhere.

The text it generates means nothing, but it is made to look like text: output rows of bytes that are no printable
ASCII are short, so answers are mostly words and now and then a piece of a multi-byte character.

With --drafts the model has a draft layer (MTP), and is made so that it is often right and often wrong: the layers change little of
what the embedding of the last token says alone, and the draft layer goes by that embedding and nothing else.
"""

import argparse
import math
import os
import re

from checkpoint import (OutputDirectory, encode, gaussian, np, stage, tensor_seed, uniform, write_json,
                        write_safetensors)
from bytelevel import byte_alphabet, tokenizer_config, tokenizer_json

VOCAB = 512
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = ("{% for message in messages %}"
                 "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
                 "{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

# What the merges are learned from: mail and tickets as an office sees them, with a little of other scripts.
CORPUS = """
Hello, the invoice for order 4711 has not arrived yet. Could you please send it again to the address below?
Dear support team, since the update this morning the printer on the second floor prints only empty pages.
The customer asks for a refund because the package was damaged when it arrived. Please call him back today.
We are happy with the answer and the ticket can be closed. Thank you for the quick help and have a nice day.
I cannot log in to my account: the page says that the password is wrong, but I changed it yesterday.
Our order was delivered to the wrong address, and the second part of it is still missing. When will it come?
Please confirm the appointment on Tuesday at ten o'clock, or tell us another time that is better for you.
The server does not answer since last night. All users in the northern office are waiting for this system.
{"name": "ticket", "status": "open", "priority": "high", "summary": "The report shows the wrong total."}
{"name": "mail", "status": "closed", "priority": "low", "summary": "Question about the contract and its terms."}
Sehr geehrte Damen und Herren, die Rechnung für März ist noch nicht da. Können Sie sie bitte noch einmal schicken?
Grüße aus der Straße am Müllerplatz: der Drucker ist kaputt, und niemand weiß, wer zuständig ist.
Bonjour, la facture n'est pas arrivée; pouvez-vous l'envoyer à l'adresse indiquée, s'il vous plaît? Merci beaucoup.
今天的发票还没有收到，请再发送一次。谢谢您的帮助。今天系统不能登录，请帮助。
Спасибо за ответ, заказ получен. Счёт ещё не пришёл. 👍 😀 Thanks 👍 see you on Monday 😀
1. Open the settings. 2. Choose the language. 3. Save the changes and restart the program.
"""


def learn_merges(count):
    """Plain BPE training: the commonest pair of neighbours, ties to the smallest pair. Spelled in the byte alphabet."""
    alphabet = byte_alphabet()
    words = {}
    for piece in re.findall(r" ?[^\W\d_]+| ?[^\w\s]+|\d|\s+", CORPUS.strip()):
        spelled = tuple(alphabet[byte] for byte in piece.encode())
        words[spelled] = words.get(spelled, 0) + 1
    merges = []
    while len(merges) < count:
        pairs = {}
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        joined = {}
        for word, times in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    out.append(word[i] + word[i + 1])
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            joined[tuple(out)] = joined.get(tuple(out), 0) + times
        words = joined
    return merges


def make_tokenizer():
    alphabet = byte_alphabet()
    vocab = {text: id for id, text in enumerate(SPECIALS)}
    for letter in sorted(alphabet):
        vocab[letter] = len(vocab)
    merges = learn_merges(VOCAB - len(vocab))
    for left, right in merges:
        vocab[left + right] = len(vocab)
    if len(vocab) != VOCAB:
        raise SystemExit("tiny-model: two merges give the same token; change the corpus")
    return vocab, merges


def make_config():
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 96,
        "initializer_range": 0.02,
        "intermediate_size": 192,
        "kv_lora_rank": 48,
        "max_position_embeddings": 4096,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 48,
        "moe_layer_freq": 1,
        "n_group": 4,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": 40,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "original_max_position_embeddings": 1024, "type": "yarn"},
        "rope_theta": 10000.0,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 2,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "v_head_dim": 24,
        "vocab_size": VOCAB,
    }


DRAFTED_GAIN = 0.3     # how much the layers of a model with a draft layer add to the embedding


def make_weights(config, vocab, seed):
    """name -> Tensor; matrices BF16 with deviation 1/sqrt(columns), so that activations stay near 1."""
    tensors = {}

    def add(name, values, dtype="BF16"):
        tensors[name] = encode(values, dtype)

    def matrix(name, rows, columns, gain=1.0):
        add(name, gaussian(tensor_seed(seed, name), (rows, columns)) * (gain / math.sqrt(columns)))

    def norm(name, size):
        add(name, 1.0 + 0.1 * gaussian(tensor_seed(seed, name), (size,)))

    def mlp(name, width):
        matrix(name + ".gate_proj.weight", width, hidden)
        matrix(name + ".up_proj.weight", width, hidden)
        matrix(name + ".down_proj.weight", hidden, width, gain)

    drafts = config["num_nextn_predict_layers"]
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    latent, rank = config["kv_lora_rank"], config["q_lora_rank"]
    name = "model.embed_tokens.weight"
    add(name, gaussian(tensor_seed(seed, name), (VOCAB, hidden)))
    for i in range(config["num_hidden_layers"] + drafts):
        layer = "model.layers.%d." % i
        gain = 1.0
        if drafts:
            gain = DRAFTED_GAIN if i < config["num_hidden_layers"] else 0.0
        norm(layer + "input_layernorm.weight", hidden)
        norm(layer + "post_attention_layernorm.weight", hidden)
        attention = layer + "self_attn."
        matrix(attention + "q_a_proj.weight", rank, hidden)
        norm(attention + "q_a_layernorm.weight", rank)
        matrix(attention + "q_b_proj.weight", heads * (nope + rope), rank)
        matrix(attention + "kv_a_proj_with_mqa.weight", latent + rope, hidden)
        norm(attention + "kv_a_layernorm.weight", latent)
        matrix(attention + "kv_b_proj.weight", heads * (nope + value), latent)
        matrix(attention + "o_proj.weight", hidden, heads * value, gain)
        if i < config["first_k_dense_replace"]:
            mlp(layer + "mlp", config["intermediate_size"])
            continue
        matrix(layer + "mlp.gate.weight", config["n_routed_experts"], hidden)
        name = layer + "mlp.gate.e_score_correction_bias"
        add(name, uniform(tensor_seed(seed, name), (config["n_routed_experts"],)) * 0.2 - 0.1, "F32")
        for j in range(config["n_routed_experts"]):
            mlp(layer + "mlp.experts.%d" % j, config["moe_intermediate_size"])
        mlp(layer + "mlp.shared_experts", config["moe_intermediate_size"] * config["n_shared_experts"])
    norm("model.norm.weight", hidden)
    if drafts:
        add(layer + "enorm.weight", np.ones(hidden))
        add(layer + "hnorm.weight", np.ones(hidden))
        add(layer + "eh_proj.weight", np.concatenate([np.eye(hidden), np.zeros((hidden, hidden))], axis=1))
        tensors[layer + "shared_head.norm.weight"] = tensors["model.norm.weight"]
        tensors[layer + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]

    # An output row's length is how likely its token is: printable text is common, the rest is rare.
    length = np.full((VOCAB, 1), 2.0)
    alphabet = byte_alphabet()
    for byte in range(256):
        if not 0x20 <= byte < 0x7F and byte != 0x0A:
            length[vocab[alphabet[byte]]] = 0.5 if byte >= 0x80 else 0.1
    length[vocab["<|endoftext|>"]] = length[vocab["<|im_start|>"]] = 0.1
    name = "lm_head.weight"
    add(name, gaussian(tensor_seed(seed, name), (VOCAB, hidden)) * length / math.sqrt(hidden))
    if drafts:
        tensors[layer + "shared_head.head.weight"] = tensors[name]
    return tensors


def main():
    parser = argparse.ArgumentParser(description="Write a small random DeepseekV3ForCausalLM checkpoint.")
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--drafts", action="store_true")
    arguments = parser.parse_args()
    config = make_config()
    config["num_nextn_predict_layers"] = int(arguments.drafts)
    vocab, merges = make_tokenizer()
    added = list(enumerate(SPECIALS))
    with OutputDirectory(arguments.directory) as work:
        size = write_safetensors(os.path.join(work, "model.safetensors"), make_weights(config, vocab, arguments.seed),
                                 {"format": "pt"})
        write_json(os.path.join(work, "tokenizer.json"), tokenizer_json(vocab, merges, added, merge_pairs=True))
        write_json(os.path.join(work, "tokenizer_config.json"),
                   tokenizer_config(added, "<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>",
                                    CHAT_TEMPLATE, config["max_position_embeddings"]))
        write_json(os.path.join(work, "generation_config.json"),
                   {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2})
        write_json(os.path.join(work, "config.json"), config)
    stage("tiny model, seed %d, %.2f MB: %s" % (arguments.seed, size / 1e6, arguments.directory))


if __name__ == "__main__":
    main()
