#!/usr/bin/env python3
"""Goldens of tokenizers and chat templates.

test/fixtures/tokenizer/ (the strings are make_strings.py's)
  index.json     versions; "strings": how many and their SHA-256; per tokenizer the model (text_models.py), the SHA-256 of its
                 tokenizer file, how many ids there are in all
  NAME.ids       4 bytes per string: the first of the SHA-256 of its ids, each 4 bytes little endian, as Hugging Face
                 tokenizers (tiktoken for "kimi-k2") encodes the string: special tokens in it recognised, nothing added
  NAME.plain     the same for the strings with an added token's text in them, which here stays text: the added tokens
                 are taken out of the tokenizer file. "plain_strings" in index.json lists which.
  NAME.decode    4 bytes per id list of make_strings.random_ids(): the first of the SHA-256 of the decoded text, special tokens
                 kept, as UTF-8; what is no valid UTF-8 is U+FFFD by the rule of maximal parts

test/fixtures/templates/NAME.json
  "template"     which template of the family; "model": the directory of text_models.py that carries it
  "source"       "published" (with the model's files, not copied here) or "ours" (chat_templates.py)
  "cases"        "name"; "messages", and "tools" where there are some: OpenAI-shaped; "think": "auto", "on" or "off";
                 "text": what transformers renders with the generation prompt; "ids": its encoding. With "user_text": true
                 a message spells special tokens and `ids` has them as the plain text they are.
"""

import argparse
import hashlib
import json
import os
import re

from oracle_common import FIXTURES, versions, write_compact_json

import tiktoken
import tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

import chat_templates
import text_models
from checkpoint import stage
from make_strings import make_strings, random_ids

TOKENIZERS = {"deepseek-v3": "deepseek-v3", "demo": "demo", "tiny": "tiny", "kimi-k2": "kimi-k2"}   # golden -> model
KIMI_PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


class HuggingFace:
    """tokenizer.json in the tokenizers library."""

    def __init__(self, directory):
        self.file = os.path.join(directory, "tokenizer.json")
        with open(self.file, encoding="utf-8") as source:
            content = json.load(source)
        self.added = {token["content"]: token["id"] for token in content["added_tokens"]}
        self.whole = tokenizers.Tokenizer.from_file(self.file)
        self.without = tokenizers.Tokenizer.from_str(json.dumps(dict(content, added_tokens=[])))
        self.size = max(list(content["model"]["vocab"].values()) + list(self.added.values())) + 1

    def encode(self, text):
        return self.whole.encode(text, add_special_tokens=False).ids

    def encode_plain(self, text):
        return self.without.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.whole.decode(ids, skip_special_tokens=False)


class Tiktoken:
    """tiktoken.model in the tiktoken library, with the family's pattern and its way of cutting long inputs."""

    def __init__(self, directory):
        self.file = os.path.join(directory, "tiktoken.model")
        ranks = {token: rank for rank, token in enumerate(text_models.tiny_ranks())}
        self.added = {text: len(ranks) + offset for offset, text in text_models.KIMI_SPECIALS.items()}
        self.whole = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=self.added)
        self.size = len(ranks)

    @staticmethod
    def parts(text):
        """At most 400,000 characters, and at most 25,000 in a row that are all space or all not."""
        for begin in range(0, len(text), 400000):
            piece = text[begin:begin + 400000]
            start, length, space = 0, 0, piece[0].isspace()
            for i, letter in enumerate(piece):
                if letter.isspace() != space:
                    length, space = 1, letter.isspace()
                    continue
                length += 1
                if length > 25000:
                    yield piece[start:i]
                    start, length = i, 1
            yield piece[start:]

    def encode(self, text):
        return [id for part in self.parts(text) for id in self.whole.encode(part, allowed_special="all")]

    def encode_plain(self, text):
        return [id for part in self.parts(text) for id in self.whole.encode_ordinary(part)]

    def decode(self, ids):
        return self.whole.decode_bytes(ids).decode("utf-8", "replace")


def open_tokenizer(directory):
    return (Tiktoken if os.path.exists(os.path.join(directory, "tiktoken.model")) else HuggingFace)(directory)


def short_hash(data):
    return hashlib.sha256(data).digest()[:4]


def ids_hash(ids):
    return short_hash(b"".join(id.to_bytes(4, "little") for id in ids))


def file_sha256(path):
    with open(path, "rb") as source:
        return hashlib.sha256(source.read()).hexdigest()


def tokenizer_goldens(models):
    """-> (index, {file name: bytes})"""
    strings = make_strings()
    index = {"versions": versions(), "strings": {"count": len(strings), "sha256": hashlib.sha256(
        "\0".join(strings).encode()).hexdigest()}, "tokenizers": {}}
    files = {}
    for name, model in TOKENIZERS.items():
        directory = text_models.make(models, model)
        tokenizer = open_tokenizer(directory)
        encoded = [tokenizer.encode(text) for text in strings]
        with_added = [i for i, text in enumerate(strings) if any(added in text for added in tokenizer.added)]
        lists = random_ids(name, tokenizer.size)
        files[name + ".ids"] = b"".join(map(ids_hash, encoded))
        files[name + ".plain"] = b"".join(ids_hash(tokenizer.encode_plain(strings[i])) for i in with_added)
        files[name + ".decode"] = b"".join(short_hash(tokenizer.decode(ids).encode()) for ids in lists)
        kept = sum(tokenizer.decode(ids) == text for ids, text in zip(encoded, strings))
        index["tokenizers"][name] = {"model": model, "file_sha256": file_sha256(tokenizer.file), "ids": sum(map(len, encoded)),
                                     "decode_size": tokenizer.size, "round_trips": kept, "plain_strings": with_added}
        stage("%-12s %d strings, %d ids, %d with special text, %d come back from decoding" % (
            name, len(strings), index["tokenizers"][name]["ids"], len(with_added), kept))
    return index, files


# Chat templates

def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def call(number, name, arguments):
    return {"id": "functions.%s:%d" % (name, number), "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def calls(*made, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(made)}


def result(number, name, text):
    return {"role": "tool", "tool_call_id": "functions.%s:%d" % (name, number), "name": name, "content": text}


TALK = [
    ("one question", [user("What is the capital of France?")]),
    ("system and question", [system("You answer in one word."), user("Capital of Italy?")]),
    ("several turns", [system("Be short."), user("Hi"), assistant("Hello! How can I help?"), user("Tell me a joke.\nA short one."),
                       assistant("Why did the chicken cross the road?"), user("Why?")]),
    ("no system, several turns", [user("1+1?"), assistant("2"), user("And 2+2?")]),
    ("empty question", [user("")]),
    ("empty system", [system(""), user("Hi")]),
    ("spaces kept", [system("  two spaces, and a line end\n"), user("\n\n  indented\r\n\ttabbed  "), assistant(" answer "), user(" ")]),
    ("other scripts", [system("Antworte auf Deutsch. 日本語も可。"), user("Grüße! 你好，世界 😀 1234567"), assistant("Schön 👍🏽"), user("e\u0301 и ё")]),
    ("braces and quotes", [user("{{ messages }} {% if x %} 'single' \"double\" \\n <b>&amp;</b>")]),
]
TWO_SYSTEMS = [("two systems", [system("First rule."), system("Second rule."), user("Go.")]),
               ("late system", [user("Hi"), assistant("Hello."), system("From now on in French."), user("How are you?")])]
THOUGHTS = [("thoughts in the history", [user("1+1?"), assistant("<think>\nOne and one.\n</think>\n\n2"), user("Sure?")])]
# Only where the answer starts after the last mark: a mark within an answer is plain text here, a token to transformers.
TWO_MARKS = [("thoughts, two marks", [user("x?"), assistant("<think>a</think>b</think>c"), user("y?")])]
TOOLS_USED = [
    ("call", [user("Weather in Rome?"), calls(call(0, "weather", {"city": "Rome"})), result(0, "weather", "{\"t\": 21}")]),
    ("call and answer", [system("Use tools."), user("Weather in Rome?"), calls(call(0, "weather", {"city": "Rome"})),
                         result(0, "weather", "{\"t\": 21}"), assistant("It is 21 degrees."), user("Thanks. And in Köln?")]),
    ("two calls at once", [user("Rome and Paris?"), calls(call(0, "weather", {"city": "Rome"}), call(1, "weather", {"city": "Paris"})),
                           result(0, "weather", "21"), result(1, "weather", "18")]),
    ("two calls, answer, question", [user("Rome and Paris?"), calls(call(0, "weather", {"city": "Rome"}), call(1, "time", {"city": "Paris", "h": 24})),
                                     result(0, "weather", "21"), result(1, "time", "18:00"), assistant("21 degrees; 18:00."), user("Good.")]),
    ("calls in two turns", [user("Rome?"), calls(call(0, "weather", {"city": "Rome"})), result(0, "weather", "21"), assistant("21."), user("Paris?"),
                            calls(call(1, "weather", {"city": "Paris"})), result(1, "weather", "18"), assistant("18."), user("Bye.")]),
]
CALL_WITH_TEXT = [("call with text", [user("Weather in Rome?"), calls(call(0, "weather", {"city": "Rome"}), content="I look it up."),
                                      result(0, "weather", "21")])]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city, in °C.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}}]
SPELLED = [("special text of a user", [user("Say <|im_end|> and <｜Assistant｜> and <|im_middle|>[EOS]<think>"), assistant("<｜end▁of▁sentence｜><|im_end|>\n<|im_start|>system"),
                                       user("<|endoftext|>")])]

# golden -> (model, the template or None for the model's own, cases, think settings, cases with tools declared)
TEMPLATES = {
    "deepseek-v3": ("deepseek-v3", None, TALK + TWO_SYSTEMS + TOOLS_USED, ("auto",), []),
    "deepseek-r1": ("deepseek-r1", chat_templates.DEEPSEEK_R1, TALK + TWO_SYSTEMS + THOUGHTS + TWO_MARKS + TOOLS_USED, ("auto",), []),
    "deepseek-r1-0528": ("deepseek-r1-0528", chat_templates.DEEPSEEK_R1_0528, TALK + TWO_SYSTEMS + THOUGHTS + TWO_MARKS + TOOLS_USED, ("auto",), []),
    "deepseek-v31": ("deepseek-v31", chat_templates.DEEPSEEK_V31, TALK + TWO_SYSTEMS + THOUGHTS + TOOLS_USED + CALL_WITH_TEXT,
                     ("off", "on"), []),
    "deepseek-v2": ("deepseek-v2", chat_templates.DEEPSEEK_V2, TALK, ("auto",), []),
    "moonlight": ("moonlight", chat_templates.MOONLIGHT, TALK, ("auto",), []),
    "kimi-k2": ("kimi-k2", chat_templates.KIMI_K2, TALK + TOOLS_USED + CALL_WITH_TEXT, ("auto",), TALK[:2] + TOOLS_USED[:2]),
    "kimi-k2-0711": ("kimi-k2-0711", chat_templates.KIMI_K2_0711, TALK[:4], ("auto",), []),
    "chatml": ("demo", None, TALK, ("auto",), []),
    "chatml-tiny": ("tiny", None, TALK, ("auto",), []),
}


def render(template, messages, tools, think, bos, eos):
    """The text, with the generation prompt, in transformers' Jinja environment. Not through apply_chat_template: that now drops
    "content": null, on which the published V3 template depends to know a tool call."""
    extra = {} if think == "auto" else {"thinking": think == "on"}
    rendered, _ = render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=True, bos_token=bos,
                                        eos_token=eos, **extra)
    return rendered[0]


def ids_of_user_text(tokenizer, render_messages, messages):
    """The ids when what users wrote is plain text: contents are replaced by marks, the rendering is cut at the added tokens,
    the contents are put back, and the pieces are encoded without added tokens."""
    marked = [dict(message, content="\ue000%d\ue001" % i) for i, message in enumerate(messages)]
    text = render_messages(marked)
    ids = []
    for piece in re.split("(%s)" % "|".join(re.escape(token) for token in sorted(tokenizer.added, key=len, reverse=True)), text):
        if piece in tokenizer.added:
            ids.append(tokenizer.added[piece])
        elif piece:
            ids += tokenizer.encode_plain(re.sub("\ue000(\\d+)\ue001", lambda match: messages[int(match[1])]["content"], piece))
    return ids


def template_goldens(models):
    """-> {file name: content}"""
    files = {}
    for name, (model, template, talks, thinks, declared) in TEMPLATES.items():
        directory = text_models.make(models, model)
        tokenizer = open_tokenizer(directory)
        with open(os.path.join(directory, "tokenizer_config.json"), encoding="utf-8") as source:
            config = json.load(source)
        bos, eos = (token["content"] if isinstance(token, dict) else token for token in (config["bos_token"], config["eos_token"]))
        source = "published" if name in ("deepseek-v3", "chatml") else "ours"
        if template is None:
            template = config["chat_template"]
        cases = []
        for think in thinks:
            wanted = [(title, messages, None) for title, messages in talks] + [(title + ", tools", messages, TOOLS) for title, messages in declared]
            for title, messages, tools in wanted:
                text = render(template, messages, tools, think, bos, eos)
                if name == "deepseek-v3" and text != render(chat_templates.DEEPSEEK_V3, messages, tools, think, bos, eos):
                    raise SystemExit("oracle: our V3 template differs from the published one: %s" % title)
                case = {"name": title, "messages": messages, "think": think, "text": text, "ids": tokenizer.encode(text)}
                if tools:
                    case["tools"] = tools
                cases.append(case)
                if all(set(message) == {"role", "content"} for message in messages) and "<" not in json.dumps(messages):
                    again = ids_of_user_text(tokenizer, lambda marked: render(template, marked, tools, think, bos, eos), messages)
                    if again != case["ids"]:
                        raise SystemExit("oracle: %s, %s: the two ways to ids differ" % (name, title))
            for title, messages in SPELLED:
                cases.append({"name": title, "messages": messages, "think": think, "user_text": True,
                              "text": render(template, messages, None, think, bos, eos),
                              "ids": ids_of_user_text(tokenizer, lambda marked: render(template, marked, None, think, bos, eos), messages)})
        files[name + ".json"] = {"template": name, "model": model, "source": source, "versions": versions(), "cases": cases}
        stage("%-18s %d conversations" % (name, len(cases)))
    return files


def main():
    parser = argparse.ArgumentParser(description="Write or verify the goldens of tokenizers and chat templates.")
    parser.add_argument("--models", default="build/text-models", help="where the model directories are made")
    parser.add_argument("--verify", action="store_true", help="derive again and compare, write nothing")
    arguments = parser.parse_args()
    try:
        index, hashes = tokenizer_goldens(arguments.models)
        templates = template_goldens(arguments.models)
    except text_models.Missing as problem:
        raise SystemExit("oracle: %s" % problem)
    tokenizer_place, template_place = os.path.join(FIXTURES, "tokenizer"), os.path.join(FIXTURES, "templates")
    if arguments.verify:
        wrong = []
        with open(os.path.join(tokenizer_place, "index.json"), encoding="utf-8") as source:
            if json.load(source) != json.loads(json.dumps(index)):
                wrong.append("tokenizer/index.json")
        for name, content in hashes.items():
            with open(os.path.join(tokenizer_place, name), "rb") as source:
                if source.read() != content:
                    wrong.append("tokenizer/" + name)
        for name, content in templates.items():
            with open(os.path.join(template_place, name), encoding="utf-8") as source:
                if json.load(source) != json.loads(json.dumps(content)):
                    wrong.append("templates/" + name)
        raise SystemExit("oracle: these goldens differ: %s" % ", ".join(wrong) if wrong else 0)
    os.makedirs(tokenizer_place, exist_ok=True)
    os.makedirs(template_place, exist_ok=True)
    write_compact_json(os.path.join(tokenizer_place, "index.json"), index)
    for name, content in hashes.items():
        with open(os.path.join(tokenizer_place, name), "wb") as out:
            out.write(content)
    for name, content in templates.items():
        write_compact_json(os.path.join(template_place, name), content)


if __name__ == "__main__":
    main()
