#!/usr/bin/env python3
"""
run.py [--modes constrained,free,evidence,compact] [--part tuning|held-out] [--limit N] [--max-tokens N] [--sessions N] [--records FILE] [--json FILE]

How well a server's model extracts, on the labelled set beside this file. psql connects as libpq's environment says (PGHOST, ...); the
database has the extension. Modes, each with the extension's own prompt and the same limit of tokens:

  constrained  dsv3_extract_json: the schema binds the answer
  free         dsv3_generate with the same prompt, which dsv3_check_schema gives; JSON is looked for in the answer, leniently
  evidence     dsv3_extract_json with one more property before all others: the words of the text that the values rest on; it
               is left out of the scores
  compact      as constrained, but without white space in the answer

Each answer is appended to the records file when it is there, and a run that finds its records goes on where they end: it can be
stopped at any time; calls that failed are made again. Records of another set, model, prompt or limit are refused. The table and the JSON
are about all records of the chosen modes that belong to the chosen items. --limit takes the first N items of a fixed shuffle that gives each
schema its share. --part takes every other item of it: "tuning" is for choosing a prompt, "held-out" for saying how good it is.

Exit status: 0; 1 when answers of a constrained mode were invalid or calls failed; 2 when the run could not go on.
"""
import argparse
import copy
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import labels
import score

MODES = ("constrained", "free", "evidence", "compact")
PARTS = ("tuning", "held-out")
EVIDENCE = {"type": "string", "description": "the words of the text that the values below rest on", "maxLength": 200}


class Stop(Exception):
    """The run cannot go on."""


def literal(text):
    return "'" + text.replace("'", "''") + "'"


def query(sql):
    """
    The value of a statement that returns one JSON value. What concerns one answer only is in that value; any error of the
    statement, be it a missing function or a refused schema, would meet the other items too: Stop.
    """
    done = subprocess.run(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-"], capture_output=True, text=True,
                          input="SET standard_conforming_strings = on;\nSET client_encoding = 'UTF8';\n" + sql + ";\n")
    if done.returncode != 0:
        raise Stop(done.stderr.strip() or f"psql ended with status {done.returncode}")
    return json.loads(done.stdout)


def evidence_first(schema):
    changed = copy.deepcopy(schema)
    changed["properties"] = {"evidence": EVIDENCE, **schema["properties"]}
    changed["required"] = ["evidence", *schema["required"]]
    return changed


def statement(mode, text, schema, max_tokens):
    definition = literal(json.dumps(evidence_first(schema) if mode == "evidence" else schema, ensure_ascii=False)) + "::jsonb"
    if mode == "free":
        call = (f"dsv3_check_schema({definition}) AS c, "
                f"LATERAL dsv3_try_generate(c.prompt, {literal(text)}, max_tokens => {max_tokens}, temperature => 0) AS t")
    else:
        chosen_options = json.dumps({"temperature": 0, "whitespace": "compact" if mode == "compact" else "natural"})
        call = f"dsv3_try_extract_json({literal(text)}, {definition}, max_tokens => {max_tokens}, options => {literal(chosen_options)}) AS t"
    return f"SELECT row_to_json(r) FROM (SELECT t.ok, value, t.error, finish_reason, prompt_tokens, output_tokens FROM {call}) AS r"


def ask(mode, item, schema, max_tokens):
    """One record: what came back, and how long it took."""
    start = time.monotonic()
    row = query(statement(mode, item["text"], schema, max_tokens))
    return {"mode": mode, "id": item["id"], "seconds": round(time.monotonic() - start, 4), "error": row["error"], "answer": row["value"],
            "finish_reason": row["finish_reason"], "prompt_tokens": row["prompt_tokens"], "output_tokens": row["output_tokens"]}


def value_of(record):
    """The extracted value of a record, or MISSING; without the evidence."""
    answer = record.get("answer")
    if record.get("error") or answer is None:
        return score.MISSING
    if record["mode"] == "free":
        return score.lenient_json(answer)
    if record["mode"] == "evidence" and isinstance(answer, dict):
        return {name: value for name, value in answer.items() if name != "evidence"}
    return answer


class Records:
    """The file of answers: a line that says what they belong to, then one for each answer. A half-written last line is dropped."""

    def __init__(self, path, about):
        self.done = {}
        whole = 0
        if os.path.exists(path):
            with open(path, "rb") as f:
                lines = f.read().split(b"\n")[:-1]
            for index, line in enumerate(lines):
                record = json.loads(line)
                whole += len(line) + 1
                if index == 0:
                    different = [name for name in about if record.get(name) != about[name]]
                    if different:
                        raise Stop(f"{path} holds answers with another {', '.join(different)}: name another file with --records")
                else:
                    self.done[record["mode"], record["id"]] = record
            os.truncate(path, whole)
        self.file = open(path, "a", encoding="utf-8")
        if whole == 0:
            self.write(about)

    def write(self, value):
        self.file.write(json.dumps(value, ensure_ascii=False) + "\n")
        self.file.flush()

    def add(self, record):
        self.write(record)
        self.done[record["mode"], record["id"]] = record


def chosen(items, part, limit):
    items = sorted(items, key=lambda item: item["id"])
    random.Random("extraction").shuffle(items)
    ranked, met = [], {}
    for item in items:
        rank = met[item["schema"]] = met.get(item["schema"], -1) + 1
        ranked.append((rank, item["schema"], item))
    ranked.sort(key=lambda one: one[:2])
    return [item for rank, _, item in ranked if part is None or PARTS[rank % 2] == part][:limit]


def results(records, items, schemas, modes):
    """Mode -> summary, each with the same by domain."""
    made = {}
    for mode in modes:
        judged = [(item, {**record, **score.judge(item, schemas[item["schema"]], value_of(record))})
                  for item in items for record in [records.get((mode, item["id"]))] if record]
        if judged:
            made[mode] = score.summary([one for _, one in judged])
            made[mode]["domains"] = {domain: score.summary([one for item, one in judged if item["domain"] == domain])
                                     for domain in sorted({item["domain"] for item, _ in judged})}
    return made


def ask_all(calls, schemas, max_tokens, sessions, records):
    """Several at a time, each in a session of its own; the engine computes them together."""
    with ThreadPoolExecutor(sessions) as pool:
        asked = [pool.submit(ask, mode, item, schemas[item["schema"]], max_tokens) for mode, item in calls]
        try:
            for index, answer in enumerate(as_completed(asked), 1):
                records.add(answer.result())
                if sys.stderr.isatty():
                    print(f"\r{index} of {len(calls)}", end="", file=sys.stderr, flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


COLUMNS = (("documents", "documents", "d"), ("field_accuracy", "fields right", "%"), ("exact_documents", "exact", "%"), ("not_json", "no JSON", "%"),
           ("invalid", "invalid", "%"), ("null_kept", "nulls kept", "%"), ("value_right", "values right", "%"), ("value_lost", "values lost", "%"),
           ("elements", "elements", "%"), ("failed_calls", "failed", "d"),
           ("output_tokens", "tokens", "d"), ("seconds", "seconds", "f"))


def cell(value, kind):
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if kind == "%" else f"{value:.1f}" if kind == "f" else str(value)


def table(made):
    rows = [["mode"] + [title for _, title, _ in COLUMNS]]
    rows += [[mode] + [cell(summary[name], kind) for name, _, kind in COLUMNS] for mode, summary in made.items()]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) if not index else text.rjust(width) for index, (text, width) in enumerate(zip(row, widths))) for row in rows)


def main():
    parser = argparse.ArgumentParser(description="extraction quality of the server that libpq's environment names")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=600, metavar="N")
    parser.add_argument("--sessions", type=int, default=8, metavar="N")
    parser.add_argument("--records", default="extraction-records.jsonl", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    modes = options.modes.split(",")
    if not set(modes) <= set(MODES):
        parser.error(f"modes are {', '.join(MODES)}")

    schemas, items = labels.load_schemas(), labels.load_items()
    digest = hashlib.sha256(json.dumps([items, schemas, EVIDENCE]).encode()).hexdigest()
    items = chosen(items, options.part, options.limit)
    try:
        server = query("SELECT json_build_object('model', digest, 'prompt', prompt) FROM dsv3_health(), dsv3_check_schema('true')")
        about = {"set": digest, **server, "max_tokens": options.max_tokens}
        records = Records(options.records, about)
        # Item by item, so that a run that is cut short has compared the modes on the same items.
        missing = [(mode, item) for item in items for mode in modes
                   if records.done.get((mode, item["id"]), {"error": "not asked"})["error"]]
        ask_all(missing, schemas, options.max_tokens, options.sessions, records)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on", file=sys.stderr)
    except Stop as stop:
        print(f"run.py: {stop}", file=sys.stderr)
        return 2

    made = results(records.done, items, schemas, modes)
    print(table(made))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump({"about": about, "modes": made}, f, indent=2)
            f.write("\n")
    return int(any(made[mode]["invalid"] or made[mode]["failed_calls"] for mode in made if mode != "free"))


if __name__ == "__main__":
    sys.exit(main())
