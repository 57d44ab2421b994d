#!/usr/bin/env python3
"""
run_all.py [--documents N] [--slice I/N] [--sessions N] [--max-tokens N] [--records FILE]

The whole path: every document of a made set (make_set.py --documents, none of them in set.jsonl) with each of the schemas, through
`dsv3_try_extract_json` on the server that libpq's environment names. Each answer must satisfy its schema by the jsonschema package of
PyPI, formats included. 500 documents are 10,000 answers.

Answers are appended to the records file as they come, and a run that finds its records goes on where they end: it can be stopped at any
time. --slice 3/20 asks only for the third of twenty parts of the calls, spread evenly over documents and schemas.

Prints counts and tokens per second of this run. Exit status: 0; 1 when an answer was invalid or missing or a call failed; 2 when the
run could not go on.
"""
import argparse
import json
import subprocess
import sys
import threading
import time

import jsonschema

import labels
import make_set
import run

STATEMENT = """SELECT row_to_json(t) FROM (SELECT ok, value::text AS value, sqlstate, error, finish_reason, prompt_tokens, output_tokens
FROM dsv3_try_extract_json({text}, {definition}::jsonb, max_tokens => {limit}, options => '{{"temperature": 0}}')) AS t;\n"""


class Session:
    """A session of psql that is kept."""

    def __init__(self):
        self.psql = subprocess.Popen(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True)
        self.psql.stdin.write("SET standard_conforming_strings = on; SET client_encoding = 'UTF8';\n")

    def ask(self, sql):
        try:
            self.psql.stdin.write(sql)
            self.psql.stdin.flush()
            line = self.psql.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise run.Stop(self.psql.stderr.read().strip() or "psql ended")
        return json.loads(line)

    def close(self):
        self.psql.stdin.close()
        self.psql.wait()


class Work:
    """Calls for several sessions at once; the first failure that is not one answer's stops all."""

    def __init__(self, calls, schemas, limit, records):
        self.calls, self.schemas, self.limit, self.records = calls, schemas, limit, records
        self.lock = threading.Lock()
        self.next = 0
        self.tokens = 0
        self.stopped = None

    def take(self):
        with self.lock:
            if self.stopped or self.next == len(self.calls):
                return None
            self.next += 1
            if sys.stderr.isatty():
                print(f"\r{self.next} of {len(self.calls)}", end="", file=sys.stderr, flush=True)
            return self.calls[self.next - 1]

    def run(self):
        try:
            session = Session()
            while (call := self.take()) is not None:
                document, text, schema = call
                row = session.ask(STATEMENT.format(text=run.literal(text), limit=self.limit,
                                                   definition=run.literal(json.dumps(self.schemas[schema], ensure_ascii=False))))
                with self.lock:
                    self.tokens += row["output_tokens"] or 0
                    self.records.add({"mode": schema, "id": document, **row})
            session.close()
        except Exception as failure:  # of any kind: the other sessions must stop too
            self.stopped = self.stopped or failure


def judge(records, calls, schemas):
    """Counts over the chosen calls, and the first few wrong ones."""
    checkers = {name: jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
                for name, schema in schemas.items()}
    count = {"asked": len(calls), "valid": 0, "invalid": 0, "failed": 0, "missing": 0, "cut short": 0}
    wrong = []
    for document, _, schema in calls:
        record = records.get((schema, document))
        if record is None:
            count["missing"] += 1
            continue
        if not record["ok"]:
            count["failed"] += 1
            wrong.append(f"document {document}, {schema}: {record['sqlstate']} {record['error']}")
            continue
        problem = next(checkers[schema].iter_errors(json.loads(record["value"])), None)
        count["invalid" if problem else "valid"] += 1
        count["cut short"] += record["finish_reason"] == "length"
        if problem:
            wrong.append(f"document {document}, {schema}: {problem.message[:200]}")
    return count, wrong


def part(text):
    index, _, of = text.partition("/")
    if not (index.isdigit() and of.isdigit() and 1 <= int(index) <= int(of)):
        raise argparse.ArgumentTypeError("I/N, from 1/N to N/N")
    return int(index), int(of)


def main():
    parser = argparse.ArgumentParser(description="every made document with every schema, on the server that libpq's environment names")
    parser.add_argument("--documents", type=int, default=500, metavar="N")
    parser.add_argument("--slice", type=part, default=(1, 1), metavar="I/N")
    parser.add_argument("--sessions", type=int, default=32, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=400, metavar="N")
    parser.add_argument("--records", default="extraction-all.jsonl", metavar="FILE")
    options = parser.parse_args()

    schemas = labels.load_schemas()
    documents = [one for one in make_set.documents(options.documents, schemas, labels.load_items()) if "document" in one]
    calls = [(one["document"], one["text"], schema) for one in documents for schema in sorted(schemas)]
    # The number of schemas and that of parts may have factors in common: neighbours go round once more for each document.
    index, of = options.slice
    calls = [call for at, call in enumerate(calls) if (at + call[0]) % of == index - 1]
    try:
        model = run.query("SELECT json_build_object('model', digest) FROM dsv3_health()")
        records = run.Records(options.records, {"documents": options.documents, **model, "max_tokens": options.max_tokens})
    except run.Stop as stop:
        print(f"run_all.py: {stop}", file=sys.stderr)
        return 2
    missing = [call for call in calls if (call[2], call[0]) not in records.done]
    work = Work(missing, schemas, options.max_tokens, records)
    start = time.monotonic()
    threads = [threading.Thread(target=work.run, daemon=True) for _ in range(min(options.sessions, len(missing)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        work.stopped = run.Stop("stopped; the same command goes on")
        for thread in threads:
            thread.join(60)
    seconds = time.monotonic() - start

    count, wrong = judge(records.done, calls, schemas)
    print(", ".join(f"{name} {number}" for name, number in count.items()))
    if missing:
        print(f"this run: {work.next} calls in {seconds:.0f} s, {work.tokens} output tokens, {work.tokens / seconds:.1f} tokens/s, "
              f"{options.sessions} sessions")
    for line in wrong[:20]:
        print(line)
    if work.stopped:
        print(f"run_all.py: {work.stopped}", file=sys.stderr)
        return 2
    return int(count["valid"] != count["asked"])


if __name__ == "__main__":
    sys.exit(main())
