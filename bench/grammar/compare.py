#!/usr/bin/env python3
"""
compare.py [--limit SECONDS] [--every N] LIBRARY TOKENIZER DIR

Structured output side by side: dsv3, xgrammar and llguidance over the same schemas (MaskBench files in DIR) with the same
vocabulary (TOKENIZER, a tokenizer.json), in one run.

How it is done. Each engine has a process of its own, one thread, and is called from Python in the same way: dsv3 through
LIBRARY (its engine as a shared library), the others through their packages, each by the calls its documentation recommends: a
matcher for each document, a mask into a buffer that is kept, then the token. Schema by schema the three take turns, so
whatever else the machine does meets all of them; times are processor time of the calling thread, read around the one call.
A schema that takes longer than --limit seconds (20) of wall-clock time counts as failed, and the engine starts anew.

What is counted. A schema is fully right when all of its valid documents can be written token by token, each token in its mask
and the end allowed, and none of its invalid ones can. Where several spellings of one value exist an engine may choose: a value counts as
written when the engine writes it compactly as the file has it, or with its keys in dsv3's order. Schemas that an engine refuses
are its own count; they are not right, but they are not wrong acceptances either.

xgrammar imports torch and transformers; where they are not installed, empty modules stand in for them: the mask goes into a
numpy array, which xgrammar takes as well.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import sys
import time
import types

import numpy


# ---- the vocabulary ----

def byte_alphabet():
    """The printable character that stands for each byte in a byte-level tokenizer's file."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {chr(b): b for b in keep}
    extra = 0
    for b in range(256):
        if b not in keep:
            table[chr(256 + extra)] = b
            extra += 1
    return table


class Vocabulary:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.source = f.read()
        data = json.loads(self.source)
        alphabet = byte_alphabet()
        added = {t["id"]: t["content"] for t in data.get("added_tokens", [])}
        self.size = max(max(data["model"]["vocab"].values()), max(added, default=0)) + 1
        self.bytes = [b""] * self.size
        self.special = [False] * self.size
        for text, number in data["model"]["vocab"].items():
            self.bytes[number] = bytes(alphabet[c] for c in text) if all(c in alphabet for c in text) else text.encode()
        for number, text in added.items():
            self.bytes[number] = text.encode()
            self.special[number] = True
        self.end = next(n for n, text in added.items() if "end" in text and "sentence" in text)


# ---- engines: compile(schema) -> handle, start(handle) -> matcher, mask(matcher) -> words, take(matcher, token) ----

class Dsv3:
    class Token(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char_p), ("len", ctypes.c_uint32), ("special", ctypes.c_bool)]

    class Error(ctypes.Structure):
        _fields_ = [("space", ctypes.c_char * 8192)]

    def __init__(self, library, vocabulary):
        self.lib = ctypes.CDLL(library)
        for name in ("dsv3_token_table_create", "dsv3_grammar_compile", "dsv3_matcher_create", "dsv3_grammar_respell"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        for name in ("dsv3_matcher_mask", "dsv3_matcher_accept", "dsv3_matcher_is_complete"):
            getattr(self.lib, name).restype = ctypes.c_bool
        self.err = self.Error()
        self.err_p = ctypes.byref(self.err)
        tokens = (self.Token * vocabulary.size)()
        for i, text in enumerate(vocabulary.bytes):
            tokens[i] = self.Token(text, len(text), vocabulary.special[i])
        self.end = vocabulary.end
        self.table = ctypes.c_void_p(self.lib.dsv3_token_table_create(tokens, vocabulary.size, vocabulary.end, self.err_p))
        assert self.table.value, "the vocabulary is not usable"
        self.words = numpy.zeros((vocabulary.size + 63) // 64, dtype=numpy.uint64)
        self.words_p = self.words.ctypes.data_as(ctypes.c_void_p)
        self.bits = self.words.view(numpy.uint32)
        self.none = ctypes.c_void_p()
        self.budget = ctypes.c_int32(-1)

    def compile(self, schema):
        text = schema.encode()
        started = time.thread_time_ns()
        grammar = self.lib.dsv3_grammar_compile(self.table, 0, text, ctypes.c_size_t(len(text)), None, None, self.err_p)
        return (ctypes.c_void_p(grammar) if grammar else None), time.thread_time_ns() - started

    def respell(self, grammar, text):
        data = text.encode()
        length = ctypes.c_size_t()
        found = self.lib.dsv3_grammar_respell(grammar, data, ctypes.c_size_t(len(data)), ctypes.byref(length))
        if not found:
            return None
        out = ctypes.string_at(found, length.value).decode()
        ctypes.CDLL(None).free(ctypes.c_void_p(found))
        return out

    def start(self, grammar):
        return ctypes.c_void_p(self.lib.dsv3_matcher_create(grammar, self.err_p))

    def mask(self, matcher):
        self.lib.dsv3_matcher_mask(matcher, self.budget, self.words_p, self.none, self.none, self.err_p)

    def take(self, matcher, token):
        return self.lib.dsv3_matcher_accept(matcher, ctypes.c_int32(token), self.err_p)

    def stop(self, matcher):
        self.lib.dsv3_matcher_free(matcher)

    def drop(self, grammar):
        self.lib.dsv3_grammar_free(grammar)


class Absent(type):
    """What stands in for a name of a module that is not installed: it has every attribute, can be called, and is false."""
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __bool__(cls):
        return False


class Nothing(metaclass=Absent):
    def __init__(self, *_args, **_named):
        pass

    def __bool__(self):
        return False


def absent(name):
    module = types.ModuleType(name)
    module.__getattr__ = lambda wanted: getattr(Nothing, wanted)
    return module


class Xgrammar:
    def __init__(self, _library, vocabulary):
        for name in ("torch", "transformers"):
            try:
                __import__(name)
            except ImportError:
                sys.modules[name] = absent(name)
        import xgrammar
        self.x = xgrammar
        texts = [b"" if special else text for text, special in zip(vocabulary.bytes, vocabulary.special)]
        info = xgrammar.TokenizerInfo(texts, xgrammar.VocabType.RAW, stop_token_ids=[vocabulary.end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits2 = numpy.zeros((1, (vocabulary.size + 31) // 32), dtype=numpy.int32)
        self.bits = self.bits2[0].view(numpy.uint32)
        self.end = vocabulary.end

    def compile(self, schema):
        started = time.thread_time_ns()
        try:
            grammar = self.compiler.compile_json_schema(schema, strict_mode=False)
        except Exception:
            grammar = None
        return grammar, time.thread_time_ns() - started

    def start(self, grammar):
        return self.x.GrammarMatcher(grammar)

    def mask(self, matcher):
        if not matcher.fill_next_token_bitmask(self.bits2):
            self.bits2.fill(-1)  # nothing has to be masked

    def take(self, matcher, token):
        return matcher.accept_token(token)

    def stop(self, matcher):
        pass

    def drop(self, grammar):
        pass


class Llguidance:
    def __init__(self, _library, vocabulary):
        import llguidance
        import llguidance.numpy
        self.l = llguidance
        self.fill = llguidance.numpy.fill_next_token_bitmask
        self.tokenizer = llguidance.LLTokenizer(vocabulary.source)
        self.bits2 = llguidance.numpy.allocate_token_bitmask(1, self.tokenizer.vocab_size)
        self.bits = self.bits2[0].view(numpy.uint32)
        self.end = vocabulary.end

    def encode(self, text):
        return self.tokenizer.tokenize_str(text)

    def compile(self, schema):
        started = time.thread_time_ns()
        try:
            grammar = self.l.LLMatcher.grammar_from_json_schema(schema)
            matcher = self.l.LLMatcher(self.tokenizer, grammar)
            if matcher.is_error():
                grammar = None
        except Exception:
            grammar = None
        return grammar, time.thread_time_ns() - started

    def start(self, grammar):
        return self.l.LLMatcher(self.tokenizer, grammar)

    def mask(self, matcher):
        self.fill(matcher, self.bits2, 0)

    def take(self, matcher, token):
        return matcher.consume_token(token)

    def stop(self, matcher):
        pass

    def drop(self, grammar):
        pass


ENGINES = {"dsv3": Dsv3, "xgrammar": Xgrammar, "llguidance": Llguidance}


def write(engine, grammar, tokens, times):
    """Is the document written, each token in its mask and the end allowed?"""
    matcher = engine.start(grammar)
    try:
        for token in [*tokens, engine.end]:
            started = time.thread_time_ns()
            engine.mask(matcher)
            times.append(time.thread_time_ns() - started)
            if not (int(engine.bits[token >> 5]) >> (token & 31)) & 1:
                return False
            if token != engine.end and not engine.take(matcher, token):
                return False
        return True
    finally:
        engine.stop(matcher)


def serve(name, library, tokenizer, pipe):
    """A process of one engine: tasks come in, answers go out."""
    try:
        vocabulary = Vocabulary(tokenizer)
        engine = ENGINES[name](library, vocabulary)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    # Whatever an engine makes once in its life is made before anything is timed.
    grammar, _ = engine.compile('{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}')
    write(engine, grammar, [vocabulary.bytes.index(bytes([b])) for b in b'{"a":"x y","b":1.5}'], [])
    pipe.send(None)
    while True:
        try:
            what, schema, argument = pipe.recv()
        except EOFError:
            return
        if what == "encode":
            pipe.send([engine.encode(text) for text in argument])
            continue
        grammar, compiled = engine.compile(schema)
        if what == "respell":
            pipe.send([engine.respell(grammar, text) if grammar else None for text in argument])
        else:
            times = []
            verdicts = []
            for spellings in argument:
                verdicts.append(grammar is not None and any(write(engine, grammar, tokens, times) for tokens in spellings))
            pipe.send((grammar is not None, compiled, times, verdicts))
        if grammar is not None:
            engine.drop(grammar)


class Worker:
    def __init__(self, name, library, tokenizer):
        self.arguments = (name, library, tokenizer)
        self.begin()

    def begin(self):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(*self.arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.problem = self.pipe.recv()
        except EOFError:
            self.problem = "the process ended"

    def ask(self, task, limit):
        """The answer, or None when it took too long or the process ended."""
        self.pipe.send(task)
        try:
            if self.pipe.poll(limit):
                return self.pipe.recv()
        except EOFError:
            pass
        self.process.kill()
        self.process.join()
        self.begin()
        return None


def quantile(values, q):
    return values[int((len(values) - 1) * q)] if values else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--limit", type=float, default=20)
    parser.add_argument("--every", type=int, default=1, help="take only every Nth schema")
    parser.add_argument("library")
    parser.add_argument("tokenizer")
    parser.add_argument("directory")
    arguments = parser.parse_args()
    multiprocessing.set_start_method("spawn")

    workers = {}
    for name in ENGINES:
        worker = Worker(name, arguments.library, arguments.tokenizer)
        if worker.problem is None:
            workers[name] = worker
        else:
            print(f"{name} is left out: {worker.problem}")
    if "dsv3" not in workers or "llguidance" not in workers:
        print("dsv3 and llguidance (whose tokenizer cuts the documents) are needed")
        return 1
    seen = {name: {"right": 0, "refused": 0, "failed": 0, "wrong": 0, "missed": 0, "compile": [], "mask": []} for name in workers}
    files = sorted(f for f in os.listdir(arguments.directory) if f.endswith(".json"))[::arguments.every]
    invalid = valid = 0
    for file in files:
        with open(os.path.join(arguments.directory, file), encoding="utf-8") as f:
            data = json.load(f)
        schema = json.dumps(data["schema"], ensure_ascii=False)
        tests = data.get("tests", [])
        valid += sum(t["valid"] for t in tests)
        invalid += sum(not t["valid"] for t in tests)
        plain = [json.dumps(t["data"], ensure_ascii=False, separators=(",", ":")) for t in tests]
        ordered = workers["dsv3"].ask(("respell", schema, plain), arguments.limit) or [None] * len(tests)
        spellings = [[a] if b is None or a == b else [a, b] for a, b in zip(plain, ordered)]
        tokens = [workers["llguidance"].ask(("encode", None, s), 60) or [] for s in spellings]
        for name, worker in workers.items():
            count = seen[name]
            answer = worker.ask(("write", schema, tokens), arguments.limit)
            if answer is None:
                count["failed"] += 1
                continue
            compiled, took, times, verdicts = answer
            count["compile"].append(took)
            count["mask"] += times
            if not compiled:
                count["refused"] += 1
                continue
            count["wrong"] += sum(v and not t["valid"] for v, t in zip(verdicts, tests))
            count["missed"] += sum(not v and t["valid"] for v, t in zip(verdicts, tests))
            count["right"] += all(v == t["valid"] for v, t in zip(verdicts, tests))
    print(f"{len(files)} schemas, {valid} valid and {invalid} invalid documents; one thread; processor time")
    print("| engine | fully right | refused | failed or over time | invalid accepted | valid not written "
          "| compile p50, p99, max ms | mask p50, p99, p99.9, max us |")
    print("|---|---|---|---|---|---|---|---|")
    for name, count in seen.items():
        if name == "dsv3":
            version = ""
        else:
            from importlib.metadata import version as version_of
            version = " " + version_of(name)
        compiles, masks = sorted(count["compile"]), sorted(count["mask"])
        print(f"| {name}{version} | {count['right']} ({100 * count['right'] / len(files):.1f} %) | {count['refused']} | {count['failed']} "
              f"| {count['wrong']} | {count['missed']} "
              f"| {quantile(compiles, .5) / 1e6:.2f}, {quantile(compiles, .99) / 1e6:.1f}, {quantile(compiles, 1) / 1e6:.0f} "
              f"| {quantile(masks, .5) / 1e3:.1f}, {quantile(masks, .99) / 1e3:.0f}, {quantile(masks, .999) / 1e3:.0f}, "
              f"{quantile(masks, 1) / 1e3:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
