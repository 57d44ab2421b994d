#!/usr/bin/env python3
"""Compare `dsv3 tokenize` with the reference libraries' goldens; prints TAP. Standard library only.

Per tokenizer: the ids of every generated string with special tokens recognised (--special), of the strings that spell
special tokens as plain text (the default), decoding of random ids, decoding of the engine's own ids back to the
string, and the vectors of the data beside the repository. What a tokenizer needs and is not there is skipped, except with
CI=true.

  compare.py [--dsv3 PATH] [--models DIR] [NAME ...]
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

import text_models                                   # noqa: E402
from bytelevel import byte_alphabet                  # noqa: E402
from make_strings import make_strings, random_ids    # noqa: E402

GOLDENS = os.path.join(ROOT, "test", "fixtures", "tokenizer")


def short_hash(data):
    return hashlib.sha256(data).digest()[:4]


def ids_hash(ids):
    return short_hash(b"".join(id.to_bytes(4, "little") for id in ids))


def engine(arguments, directory, options, lines):
    """Run dsv3 tokenize on values, one JSON line each; the values it prints."""
    result = subprocess.run([arguments.dsv3, "tokenize", directory] + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            input="".join(json.dumps(line) + "\n" for line in lines).encode())
    if result.returncode != 0:
        raise ValueError("dsv3 tokenize %s ended with %d: %s" % (" ".join(options), result.returncode,
                                                                result.stderr.decode("utf-8", "replace").strip()[-400:]))
    made = [json.loads(line) for line in result.stdout.decode().split("\n")[:-1]]
    if len(made) != len(lines):
        raise ValueError("%d lines went in, %d came out" % (len(lines), len(made)))
    return made


def against_hashes(name, inputs, outputs, hash_of):
    """ValueError when an output is not the golden's, naming the first and how many."""
    with open(os.path.join(GOLDENS, name), "rb") as source:
        golden = source.read()
    if len(golden) != 4 * len(outputs):
        raise ValueError("%s has %d entries, not %d: make oracle" % (name, len(golden) // 4, len(outputs)))
    wrong = [i for i, output in enumerate(outputs) if golden[4 * i:4 * i + 4] != hash_of(output)]
    if wrong:
        raise ValueError("%d of %d differ from %s; the first: %s gives %s" % (
            len(wrong), len(outputs), name, json.dumps(inputs[wrong[0]])[:300], json.dumps(outputs[wrong[0]])[:300]))


def file_of(directory):
    for name in ("tokenizer.json", "tiktoken.model"):
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            return path
    raise ValueError("no tokenizer in %s" % directory)


def lossless(directory):
    """A test for strings that decoding must give back: all, unless the vocabulary lacks single bytes."""
    path = os.path.join(directory, "tokenizer.json")
    if not os.path.isfile(path):
        return lambda text: True
    with open(path, encoding="utf-8") as source:
        vocab = json.load(source)["model"]["vocab"]
    lost = {byte for byte, letter in enumerate(byte_alphabet()) if letter not in vocab}
    return lambda text: lost.isdisjoint(text.encode())


def tests_of(arguments, name, golden, strings):
    """[(title, function)]; the functions run in order and share what they made."""
    directory = text_models.make(arguments.models, golden["model"])
    made = []

    def encode():
        with open(file_of(directory), "rb") as source:
            if hashlib.sha256(source.read()).hexdigest() != golden["file_sha256"]:
                raise ValueError("the tokenizer is not the one the goldens were made with: make oracle")
        made.extend(engine(arguments, directory, ["--special"], strings))
        against_hashes(name + ".ids", strings, made, ids_hash)

    def plain():
        spelled = [strings[i] for i in golden["plain_strings"]]
        against_hashes(name + ".plain", spelled, engine(arguments, directory, [], spelled), ids_hash)

    def decode():
        lists = random_ids(name, golden["decode_size"])
        against_hashes(name + ".decode", lists, engine(arguments, directory, ["--decode"], lists), lambda text: short_hash(text.encode()))

    def back():
        whole = lossless(directory)
        texts = engine(arguments, directory, ["--decode"], made)
        wrong = [i for i, text in enumerate(texts) if text != strings[i] and whole(strings[i])]
        if wrong or not made:
            raise ValueError("%d strings do not come back, the first: %s" % (
                len(wrong), json.dumps(strings[wrong[0]])[:300] if wrong else "none was encoded"))

    tests = [("%d strings" % len(strings), encode), ("%d strings as plain text" % len(golden["plain_strings"]), plain),
             ("random ids decoded", decode), ("decoding gives the strings back", back)]
    if name == "deepseek-v3":
        tests.append(("published vectors", lambda: vectors(arguments, directory)))
    return tests


def vectors(arguments, directory):
    path = os.path.join(os.path.dirname(text_models.shared_tokenizer()), "tokenizer-vectors.json")
    with open(path, encoding="utf-8") as source:
        entries = json.load(source)["vectors"]
    made = engine(arguments, directory, ["--special"], [entry["text"] for entry in entries])
    for entry, ids in zip(entries, made):
        if ids != entry["ids"]:
            raise ValueError("%r gives %r, not %r" % (entry["text"], ids, entry["ids"]))


def main():
    parser = argparse.ArgumentParser(description="Compare dsv3 tokenize with the reference libraries.")
    parser.add_argument("--dsv3", default=os.environ.get("DSV3_BIN", os.path.join(ROOT, "build", "engine", "dsv3")))
    parser.add_argument("--models", default=os.path.join(ROOT, "build", "text-models"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    with open(os.path.join(GOLDENS, "index.json"), encoding="utf-8") as source:
        index = json.load(source)
    strings = make_strings()
    number, failed = 0, 0

    def report(ok, title, problem=None):
        nonlocal number, failed
        number += 1
        failed += not ok
        print("%s %d - %s" % ("ok" if ok else "not ok", number, title))
        if problem:
            print("# " + str(problem).replace("\n", "\n# "))
        sys.stdout.flush()

    same = hashlib.sha256("\0".join(strings).encode()).hexdigest() == index["strings"]["sha256"]
    report(same, "the %d strings are the oracle's" % len(strings), None if same else "make_strings.py changed: make oracle")
    for name, golden in index["tokenizers"].items():
        if arguments.names and name not in arguments.names:
            continue
        try:
            tests = tests_of(arguments, name, golden, strings)
        except text_models.Missing as problem:
            if os.environ.get("CI") == "true":
                report(False, name, problem)
            else:
                report(True, "%s # SKIP %s" % (name, problem))
            continue
        for title, test in tests:
            try:
                test()
                report(True, "%s: %s" % (name, title))
            except (ValueError, OSError, text_models.Missing) as problem:
                report(False, "%s: %s" % (name, title), problem)
    print("1..%d" % number)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
