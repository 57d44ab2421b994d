#!/usr/bin/env python3
"""
score.py

How an answer is held against a label, and how the answers of a run add up.

Fields are the scalars of the label, at any depth; null is a value like any other, and an empty array is one field. The elements of
an array are matched in order so that as many fields as possible are right; elements that the label lacks count as wrong fields, so
that inventing costs as much as forgetting. Strings are equal when they are so after Unicode normalisation (NFC) and with runs of
white space as one blank; numbers by value; a boolean is never a number. Fields of an answer that is no JSON are all wrong.
Properties which the schema does not know make the answer invalid and change no field.
"""
import json
import re

import labels

COUNTS = ("fields", "right", "null_expected", "null_right", "value_expected", "value_right", "value_lost", "elements_expected", "elements_given")


def same(expected, got):
    if isinstance(expected, bool) or isinstance(got, bool) or expected is None or got is None:
        return expected is got
    if isinstance(expected, str) or isinstance(got, str):
        return isinstance(expected, str) and isinstance(got, str) and labels.fold(expected) == labels.fold(got)
    if isinstance(expected, (int, float)) and isinstance(got, (int, float)):
        return labels.as_decimal(expected) == labels.as_decimal(got)
    return False


def nothing():
    return dict.fromkeys(COUNTS, 0)


def add(into, other):
    for name in COUNTS:
        into[name] += other[name]
    return into


MISSING = object()


def compare(expected, got=MISSING):
    """Counts of the fields of a value: COUNTS by name."""
    counts = nothing()
    if isinstance(expected, dict):
        for name, child in expected.items():
            add(counts, compare(child, got.get(name, MISSING) if isinstance(got, dict) else MISSING))
        return counts
    if isinstance(expected, list):
        return compare_arrays(expected, got)
    counts["fields"] = 1
    counts["right"] = int(got is not MISSING and same(expected, got))
    if expected is None:
        if isinstance(got, dict):
            # An object where there should be none: each of its values is one invented field.
            counts["fields"] = max(1, sum(value is not None for _, value in labels.leaves(got)))
        counts["null_expected"], counts["null_right"] = 1, counts["right"]
    else:
        counts["value_expected"], counts["value_right"], counts["value_lost"] = 1, counts["right"], int(got is None or got is MISSING)
    return counts


def compare_arrays(expected, got):
    if not isinstance(got, list):
        got = []
        given = False
    else:
        given = True
    if not expected and not got:
        return dict(nothing(), fields=1, right=int(given))
    # best[i][j]: counts for the first i elements of the label and j of the answer. More right fields first, then fewer fields.
    best = [[nothing()]]
    for j, extra in enumerate(got, 1):
        best[0].append(add(surplus(extra), best[0][j - 1]))
    for i, wanted in enumerate(expected, 1):
        best.append([add(compare(wanted), best[i - 1][0])])
        for j, have in enumerate(got, 1):
            choices = (add(compare(wanted, have), best[i - 1][j - 1]), add(compare(wanted), best[i - 1][j]), add(surplus(have), best[i][j - 1]))
            best[i].append(max(choices, key=lambda counts: (counts["right"], -counts["fields"])))
    return best[-1][-1]


def surplus(value):
    """An element that should not be there."""
    return dict(nothing(), fields=max(1, sum(leaf is not None for _, leaf in labels.leaves(value))))


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def lenient_json(text):
    """
    The JSON value in a model's free answer, or MISSING: the whole text, the inside of the first code fence, or the value
    that starts at the first brace.
    """
    decoder = json.JSONDecoder(parse_constant=refuse_constant)
    candidates = [text.strip()]
    fence = re.search(r"```[a-zA-Z]*\s*\n?(.*?)```", text, re.S)
    if fence:
        candidates.append(fence.group(1).strip())
    for candidate in candidates:
        try:
            return decoder.decode(candidate)
        except (ValueError, RecursionError):
            pass
    brace = text.find("{")
    if brace >= 0:
        try:
            return decoder.raw_decode(text[brace:])[0]
        except (ValueError, RecursionError):
            pass
    return MISSING


def elements(value):
    """Elements of all arrays of a value, at any depth."""
    if isinstance(value, dict):
        return sum(elements(child) for child in value.values())
    return len(value) + sum(elements(child) for child in value) if isinstance(value, list) else 0


def judge(item, schema, got):
    """What one answer is worth. `got` is the value, or MISSING when there is none."""
    counts = compare(item["expected"], got)
    counts["elements_expected"], counts["elements_given"] = elements(item["expected"]), elements(got)
    return dict(counts, parsed=got is not MISSING, valid=got is not MISSING and not labels.violations(got, schema),
                exact=counts["right"] == counts["fields"])


def share(part, whole):
    return None if whole == 0 else part / whole


def summary(records):
    """Rates over judged answers of one mode: records are dictionaries of judge() with "output_tokens" and "seconds"."""
    total = nothing()
    for record in records:
        add(total, record)
    count = len(records)
    return {
        "documents": count,
        "fields": total["fields"],
        "field_accuracy": share(total["right"], total["fields"]),
        "exact_documents": share(sum(record["exact"] and record["valid"] for record in records), count),
        "not_json": share(sum(not record["parsed"] for record in records), count),
        "invalid": share(sum(not record["valid"] for record in records), count),
        "null_kept": share(total["null_right"], total["null_expected"]),
        "value_right": share(total["value_right"], total["value_expected"]),
        "value_lost": share(total["value_lost"], total["value_expected"]),
        "elements": share(total["elements_given"], total["elements_expected"]),
        "failed_calls": sum(bool(record.get("error")) for record in records),
        "output_tokens": sum(record.get("output_tokens") or 0 for record in records),
        "seconds": sum(record.get("seconds") or 0 for record in records),
    }
