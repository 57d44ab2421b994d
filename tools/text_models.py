#!/usr/bin/env python3
"""Model directories without weights: what the tokenizer and template tests open. Standard library only.

  deepseek-v3        the published tokenizer and its own template, unpacked from the data beside the repository
  deepseek-r1, deepseek-r1-0528, deepseek-v31, deepseek-v2
                     the same tokenizer with the template of chat_templates.py; in R1 and V3.1 the placeholders 798 and 799
                     are <think> and </think>
  kimi-k2, kimi-k2-0711, moonlight
                     a small tiktoken.model from the tiny model's merges, with the special tokens of the family
  tiny, demo         links to build/tiny-model and build/demo-model, where they are made

  text_models.py DIRECTORY [NAME ...]

Without names, what cannot be made here is named and left out.
"""

import argparse
import base64
import json
import os
import sys
import tarfile

import chat_templates
from bytelevel import byte_alphabet

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
KIMI_SPECIALS = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
                 7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>",
                 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>",
                 15: "<|tool_call_end|>", 17: "<|im_middle|>", 18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>",
                 21: "<|media_pad|>", 22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]"}
# name -> (template or None for the published one, model_type, placeholders renamed)
DEEPSEEK = {
    "deepseek-v3": (None, "deepseek_v3", False),
    "deepseek-r1": (chat_templates.DEEPSEEK_R1, "deepseek_v3", True),
    "deepseek-r1-0528": (chat_templates.DEEPSEEK_R1_0528, "deepseek_v3", True),
    "deepseek-v31": (chat_templates.DEEPSEEK_V31, "deepseek_v3", True),
    "deepseek-v2": (chat_templates.DEEPSEEK_V2, "deepseek_v2", False),
}
KIMI = {"kimi-k2": (chat_templates.KIMI_K2, "kimi_k2"), "kimi-k2-0711": (chat_templates.KIMI_K2_0711, "kimi_k2"),
        "moonlight": (chat_templates.MOONLIGHT, "deepseek_v3")}
NAMES = list(DEEPSEEK) + list(KIMI) + ["tiny", "demo"]


class Missing(Exception):
    """What a model needs is not there; the message says what."""


def shared_tokenizer():
    """The archive with the published DeepSeek-V3 tokenizer."""
    root = os.environ.get("DSV3_SHARED", os.path.join(ROOT, "..", "shared"))
    path = os.path.normpath(os.path.join(root, "data", "deepseek-v3-tokenizer.tar.xz"))
    if not os.path.isfile(path):
        raise Missing("%s is not there (DSV3_SHARED names the folder that has data/)" % path)
    return path


def write(path, text):
    """Whole or not at all: another test may be reading the directory."""
    part = "%s.%d" % (path, os.getpid())
    with open(part, "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(part, path)


def make_deepseek(place, name):
    template, model_type, think = DEEPSEEK[name]
    with tarfile.open(shared_tokenizer()) as archive:
        files = {os.path.basename(member.name): archive.extractfile(member).read().decode()
                 for member in archive.getmembers() if member.isfile()}
    tokenizer = files["tokenizer.json"]
    if think:
        content = json.loads(tokenizer)
        for token in content["added_tokens"]:
            if token["id"] in (128798, 128799):
                token["content"] = "<think>" if token["id"] == 128798 else "</think>"
                token["special"] = False
        tokenizer = json.dumps(content, ensure_ascii=False)
    config = json.loads(files["tokenizer_config.json"])
    if template is not None:
        config["chat_template"] = template
    write(os.path.join(place, "tokenizer.json"), tokenizer)
    write(os.path.join(place, "tokenizer_config.json"), json.dumps(config, ensure_ascii=False, indent=2))
    write(os.path.join(place, "config.json"), json.dumps(
        {"model_type": model_type, "architectures": ["DeepseekV2ForCausalLM" if model_type == "deepseek_v2" else "DeepseekV3ForCausalLM"],
         "vocab_size": 129280, "bos_token_id": 0, "eos_token_id": 1}))


def tiny_ranks():
    """[bytes]: index is the rank; the bytes by value, then the tiny model's merges."""
    path = os.path.join(BUILD, "tiny-model", "tokenizer.json")
    if not os.path.isfile(path):
        raise Missing("build/tiny-model is not there: make tiny-model")
    with open(path, encoding="utf-8") as source:
        merges = json.load(source)["model"]["merges"]
    byte_of = {letter: byte for byte, letter in enumerate(byte_alphabet())}
    return [bytes([byte]) for byte in range(256)] + [bytes(byte_of[c] for c in left + right) for left, right in merges]


def make_kimi(place, name):
    template, model_type = KIMI[name]
    ranks = tiny_ranks()
    write(os.path.join(place, "tiktoken.model"),
          "".join("%s %d\n" % (base64.b64encode(token).decode(), rank) for rank, token in enumerate(ranks)))
    added = {str(len(ranks) + offset): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                                        "special": True} for offset, text in KIMI_SPECIALS.items()}
    write(os.path.join(place, "tokenizer_config.json"), json.dumps(
        {"added_tokens_decoder": added, "additional_special_tokens": list(KIMI_SPECIALS.values()), "bos_token": "[BOS]",
         "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]", "clean_up_tokenization_spaces": False,
         "tokenizer_class": "TikTokenTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
         "chat_template": template}, ensure_ascii=False, indent=2))
    write(os.path.join(place, "config.json"), json.dumps(
        {"model_type": model_type, "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": len(ranks) + 256,
         "bos_token_id": len(ranks), "eos_token_id": len(ranks) + 2}))


def make(directory, name):
    """The path of the model's directory, made if need be; Missing when something it needs is not there."""
    os.makedirs(directory, exist_ok=True)
    place = os.path.join(directory, name)
    if name in ("tiny", "demo"):
        path = os.path.join(BUILD, name + "-model")
        if not os.path.isfile(os.path.join(path, "tokenizer.json")):
            raise Missing("build/%s-model is not there: make %s-model" % (name, name))
        if not os.path.islink(place):
            os.symlink(os.path.relpath(path, os.path.realpath(directory)), place)
        return place
    os.makedirs(place, exist_ok=True)
    (make_deepseek if name in DEEPSEEK else make_kimi)(place, name)
    return place


def main():
    parser = argparse.ArgumentParser(description="Make the model directories of the tokenizer and template tests.")
    parser.add_argument("directory")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    for name in arguments.names or NAMES:
        try:
            make(arguments.directory, name)
        except Missing as problem:
            if arguments.names:
                sys.exit("text-models: %s" % problem)
            print("text-models: %s left out: %s" % (name, problem))


if __name__ == "__main__":
    main()
