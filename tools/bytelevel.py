"""The byte-level alphabet of GPT-2 style tokenizers, and the files that describe such a tokenizer to its readers.

Every byte is written as one printable character: printable Latin-1 bytes as themselves, the others as U+0100 and up,
in byte order. A vocabulary and its merges are spelled in that alphabet.
"""


def byte_alphabet():
    """256 characters, index = byte."""
    plain = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    alphabet, extra = [], 0
    for byte in range(256):
        if byte in plain:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(0x100 + extra))
            extra += 1
    return alphabet


def tokenizer_json(vocab, merges, added, merge_pairs):
    """The content of tokenizer.json: single digits, then the GPT-2 pattern, then byte-level BPE.

    vocab: token text -> id, added tokens included; merges: list of (left, right); added: list of (id, text), all
    special; merge_pairs: write merges as ["a", "b"] (newer files) instead of "a b" (older ones)."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for id, text in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab,
                  "merges": [[a, b] for a, b in merges] if merge_pairs else ["%s %s" % pair for pair in merges]},
    }


def tokenizer_config(added, bos, eos, pad, unk, chat_template, max_length):
    """The content of tokenizer_config.json."""
    return {
        "add_prefix_space": False,
        "add_bos_token": False,
        "added_tokens_decoder": {str(id): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                                           "single_word": False, "special": True} for id, text in added},
        "bos_token": bos,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "model_max_length": max_length,
        "pad_token": pad,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unk,
    }
