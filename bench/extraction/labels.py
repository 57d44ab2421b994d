#!/usr/bin/env python3
"""
labels.py

Labelled documents of the extraction set: how a label is written, which label a schema allows, and whether a label can be known
from the text.

A document is written with marks, and the marks are the label:
    {customer=Lena Brandt}          the text says Lena Brandt, and that is the value of "customer"
    {due=2026-05-02~2 May 2026}     the text says "2 May 2026"; the value is its stated normalisation
    {items.0.size=XL}               path into arrays and nested objects
    {total=40;currency=EUR~40 euros}    two values from one phrase
What no mark names is missing in the text: null, or an empty array. parse_marks() gives the text, the expected value in the order
of the schema, and for each normalised value the words it comes from.

grounding_problems() then holds the label against the text again without knowing the marks: each value must occur in the text, or its
stated words must, and the words must plausibly give the value (the day of a date, the digits of a number, the letters of a string).

violations() checks the keywords that the schemas here use, and raises for any other.
"""
import datetime
import decimal
import json
import os
import re
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = re.compile(r"\{([a-z0-9_.]+=[^{}]*)\}")
ANNOTATIONS = {"$schema", "description", "title"}
KEYWORDS = {"type", "enum", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength", "maxLength",
            "pattern", "format", "minimum", "maximum"}
ZERO_TO_TWELVE = ("zero one two three four five six seven eight nine ten eleven twelve "
                  "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf "
                  "zéro un deux trois quatre cinq six sept huit neuf dix onze douze "
                  "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce").split()
NUMBER_WORDS = {word: index % 13 for index, word in enumerate(ZERO_TO_TWELVE)}
NUMBER_WORDS.update({"a": 1, "an": 1, "one": 1, "eine": 1, "einen": 1, "une": 1, "una": 1, "pair": 2, "both": 2, "couple": 2, "half": 0.5,
                     "dozen": 12, "alone": 1, "once": 1, "twice": 2, "fifteen": 15, "eighteen": 18, "twenty": 20, "thirty": 30, "ninety": 90,
                     "year": 12, "beide": 2, "due": 2, "tre": 3, "dwa": 2, "trzy": 3, "två": 2})


def load_schemas(folder=None):
    """name -> schema, with the properties in the order of the file."""
    folder = folder or os.path.join(HERE, "schemas")
    schemas = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                schemas[name[:-len(".json")]] = json.load(f)
    return schemas


def load_items(path=None):
    with open(path or os.path.join(HERE, "set.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def types_of(schema):
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


# ---- marks ----

def convert(path, value, schema):
    types = types_of(schema)
    if "boolean" in types:
        if value not in ("true", "false"):
            raise ValueError(f"{path}: {value!r} is no boolean")
        return value == "true"
    if "integer" in types:
        return int(value)
    if "number" in types:
        number = float(value)
        return int(number) if number == int(number) else number
    if "string" in types:
        return value
    raise ValueError(f"{path}: no scalar")


def build(schema, labels, prefix, used):
    """The value at `prefix`, from what the marks say of it and below it."""
    types = types_of(schema)
    at = ".".join(prefix)
    below = [path for path in labels if path == at or path.startswith(at + ".") or not at]
    if "object" in types:
        if not below and "null" in types:
            return None
        return {name: build(child, labels, prefix + [name], used) for name, child in schema["properties"].items()}
    if "array" in types:
        indexes = sorted({int(path[len(at) + 1:].split(".")[0]) for path in below})
        if indexes != list(range(len(indexes))):
            raise ValueError(f"{at}: elements {indexes}")
        return [build(schema["items"], labels, prefix + [str(index)], used) for index in indexes]
    if at in labels:
        used.add(at)
        return convert(at, labels[at], schema)
    if "null" not in types:
        raise ValueError(f"{at}: no mark, and null is not allowed")
    return None


def parse_marks(marked, schema):
    """(text, expected, {path: words in the text}) of a document with marks."""
    labels, how = {}, {}

    def replace(match):
        left, tilde, span = match.group(1).partition("~")
        for part in left.split(";"):
            path, _, value = part.partition("=")
            if path in labels:
                raise ValueError(f"{path} is marked twice")
            labels[path] = value
            if tilde:
                how[path] = span
        return span if tilde else value

    text = MARK.sub(replace, marked)
    if "{" in text or "}" in text:
        raise ValueError(f"a mark that cannot be read: {text}")
    used = set()
    expected = build(schema, labels, [], used)
    if set(labels) - used:
        raise ValueError(f"the schema has no {sorted(set(labels) - used)}")
    return text, expected, how


# ---- schema ----

def is_type(value, name):
    if name == "null":
        return value is None
    if name == "boolean":
        return isinstance(value, bool)
    if name == "integer":
        return not isinstance(value, bool) and (isinstance(value, int) or isinstance(value, float) and value.is_integer())
    if name == "number":
        return not isinstance(value, bool) and isinstance(value, (int, float))
    return isinstance(value, {"string": str, "array": list, "object": dict}[name])


def is_format(value, name):
    if name == "date":
        try:
            return re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None and bool(datetime.date.fromisoformat(value))
        except ValueError:
            return False
    if name == "email":
        return re.fullmatch(r"[^@\s]+@[^@\s]+", value) is not None
    raise ValueError(f'format "{name}" is not known here')


def violations(value, schema, at=""):
    """What of `value` the schema does not allow, as (path, keyword) pairs."""
    unknown = set(schema) - KEYWORDS - ANNOTATIONS
    if unknown:
        raise ValueError(f"{at or '/'}: keywords {sorted(unknown)} are not known here")
    if "type" in schema and not any(is_type(value, name) for name in types_of(schema)):
        return [(at, "type")]
    found = []
    if "enum" in schema and not any(type(value) is type(one) and value == one for one in schema["enum"]):
        found.append((at, "enum"))
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            found.append((at, "minLength"))
        if len(value) > schema.get("maxLength", len(value)):
            found.append((at, "maxLength"))
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append((at, "pattern"))
        if "format" in schema and not is_format(value, schema["format"]):
            found.append((at, "format"))
    elif is_type(value, "number"):
        if value < schema.get("minimum", value):
            found.append((at, "minimum"))
        if value > schema.get("maximum", value):
            found.append((at, "maximum"))
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            found.append((at, "minItems"))
        if len(value) > schema.get("maxItems", len(value)):
            found.append((at, "maxItems"))
        for index, element in enumerate(value):
            found += violations(element, schema.get("items", {}), f"{at}.{index}" if at else str(index))
    elif isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                found.append((at, f"required {name}"))
        for name, element in value.items():
            if name in schema.get("properties", {}):
                found += violations(element, schema["properties"][name], f"{at}.{name}" if at else name)
            elif schema.get("additionalProperties", True) is False:
                found.append((at, f"additionalProperties {name}"))
    return found


# ---- a label and its text ----

def leaves(value, at=""):
    """(path, scalar) pairs; an empty array or object has none."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from leaves(child, f"{at}.{name}" if at else name)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from leaves(child, f"{at}.{index}" if at else str(index))
    else:
        yield at, value


def schema_at(schema, path):
    for part in path.split("."):
        schema = schema["items"] if "items" in schema and part.isdigit() else schema["properties"][part]
    return schema


def fold(text):
    return " ".join(unicodedata.normalize("NFC", text).split())


def letters(text):
    return "".join(c for c in unicodedata.normalize("NFKD", text).casefold() if c.isalnum())


def numbers_in(text):
    """Each number of a text, under every reading of its points and commas."""
    found = set()
    text = unicodedata.normalize("NFKC", text)
    for match in re.findall(r"[-−]?\d+(?:[.,']\d+)*", text) + re.findall(r"\d{1,3}(?: \d{3})+(?:,\d+)?", text):
        match = match.replace("−", "-")
        sign = -1 if match.startswith("-") else 1
        parts = re.split(r"[^\d]", match.lstrip("-"))
        readings = {"".join(parts), *parts}
        if len(parts) > 1:
            readings.add("".join(parts[:-1]) + "." + parts[-1])
        for reading in readings:
            found |= {decimal.Decimal(reading), sign * decimal.Decimal(reading)}
    for word in re.findall(r"[^\W\d]+", text.lower()):
        if word in NUMBER_WORDS:
            found.add(decimal.Decimal(str(NUMBER_WORDS[word])))
    return found


def as_decimal(value):
    return decimal.Decimal(str(value))


def gives(words, value, schema):
    """Can these words of a text mean this value?"""
    if isinstance(value, bool) or "enum" in schema:
        return bool(words.strip())
    if not isinstance(value, str):
        found = numbers_in(words)
        scales = {1, 60, 7, 30, 12, 1000, 1000000}  # hours in minutes, weeks and months in days, k, million
        return any(number * scale == as_decimal(value) for number in found for scale in scales)
    if re.fullmatch(r"\d{4}-\d\d-\d\d(T[\d:]+)?", value):
        found = {int(number) for number in re.findall(r"\d+", unicodedata.normalize("NFKC", words))}
        parts = [int(value[8:10])] + ([int(value[14:16])] if "T" in value else [])
        return all(part in found or part == 0 for part in parts) or (value[8:10] == "01" and "first" in words)
    if re.fullmatch(r"\d\d:\d\d", value):
        found = {int(number) for number in re.findall(r"\d+", words)}
        hour, minute = int(value[:2]), int(value[3:])
        return ((hour in found or hour % 12 in found or (hour % 12 or 12) in found) and (minute in found or minute == 0)) or \
            letters(words) in ("noon", "midday", "mittags", "midi")
    return letters(words) == letters(value)


def grounding_problems(item, schema):
    """Why the text does not bear out the label: a list of sentences, empty when it does."""
    text, how, found = fold(item["text"]), item["how"], []
    paths = dict(leaves(item["expected"]))
    numbers = None
    for path in how:
        if paths.get(path) is None:
            found.append(f"{path}: words, but no value")
    for path, value in paths.items():
        if value is None:
            continue
        if path in how:
            if fold(how[path]) not in text:
                found.append(f"{path}: the text does not say {how[path]!r}")
            elif not gives(how[path], value, schema_at(schema, path)):
                found.append(f"{path}: {how[path]!r} does not give {value!r}")
        elif isinstance(value, bool):
            found.append(f"{path}: {value} without the words it comes from")
        elif isinstance(value, str):
            if fold(value) not in text:
                found.append(f"{path}: {value!r} is not in the text")
        else:
            numbers = numbers if numbers is not None else numbers_in(text)
            if as_decimal(value) not in numbers:
                found.append(f"{path}: {value} is not in the text")
    return found


def item_problems(item, schemas):
    """All that is wrong with an item of the set."""
    schema = schemas[item["schema"]]
    found = [f"{path or '/'}: {keyword}" for path, keyword in violations(item["expected"], schema)]
    found += grounding_problems(item, schema)
    sentences = len(re.findall(r"[.!?。…](?:\s|$)", item["text"]))
    if not item["text"].strip() or item["text"] != item["text"].strip():
        found.append("the text is empty or has white space around it")
    if sentences > 9 or len(item["text"]) > 1200:
        found.append(f"the text is long: {sentences} sentences, {len(item['text'])} characters")
    return found
