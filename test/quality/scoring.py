#!/usr/bin/env python3
"""
scoring.py

Tests of bench/extraction without a model: marks, the check of a label against its schema and its text, the scoring of answers, the
records of a run, and the committed set itself. unittest cases, printed as TAP (run by `make check-extraction`).
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "bench", "extraction"))
sys.dont_write_bytecode = True

import labels  # noqa: E402
import make_set  # noqa: E402
import run  # noqa: E402
import score  # noqa: E402

TEXT = {"type": ["string", "null"]}
PERSON = {"type": "object", "properties": {"name": TEXT, "born": {"type": ["string", "null"], "format": "date"}, "age": {"type": ["integer", "null"]},
                                           "member": {"type": ["boolean", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
                                           "home": {"type": ["object", "null"], "properties": {"city": TEXT}, "required": ["city"]}},
          "required": ["name", "born", "age", "member", "tags", "home"], "additionalProperties": False}
EMPTY = {"name": None, "born": None, "age": None, "member": None, "tags": [], "home": None}


def item(marked):
    text, expected, how = labels.parse_marks(marked, PERSON)
    return {"id": "x", "domain": "d", "schema": "person", "text": text, "expected": expected, "how": how}


class Marks(unittest.TestCase):
    def test_text_and_label(self):
        one = item("{name=Ann}, {born=1990-05-02~2 May 1990}, {tags.0=tall} and {tags.1=kind}, {home.city=Rome}, {member=true~joined us}")
        self.assertEqual(one["text"], "Ann, 2 May 1990, tall and kind, Rome, joined us")
        self.assertEqual(one["expected"], {"name": "Ann", "born": "1990-05-02", "age": None, "member": True, "tags": ["tall", "kind"], "home": {"city": "Rome"}})
        self.assertEqual(one["how"], {"born": "2 May 1990", "member": "joined us"})
        self.assertEqual(list(one["expected"]), PERSON["required"])

    def test_two_values_of_one_phrase(self):
        self.assertEqual(item("{age=7;member=true~seven}")["how"], {"age": "seven", "member": "seven"})

    def test_mistakes(self):
        for marked in ("{nome=Ann}", "{name=Ann} {name=Bob}", "{tags.1=x}", "{member=yes~yes}", "{name=Ann", "{home=Rome}"):
            with self.assertRaises((ValueError, KeyError), msg=marked):
                item(marked)


class Grounding(unittest.TestCase):
    def problems(self, text, how=None, **values):
        return labels.grounding_problems({"text": text, "expected": {**EMPTY, **values}, "how": how or {}}, PERSON)

    def test_values_of_the_text(self):
        self.assertEqual(self.problems("Ann  Lee is 1,200 years old", name="Ann Lee", age=1200), [])
        self.assertEqual(self.problems("born 2 May 1990", {"born": "2 May 1990"}, born="1990-05-02"), [])

    def test_values_that_are_not_there(self):
        self.assertEqual(len(self.problems("Ann Lee", name="Ann Li")), 1)
        self.assertEqual(len(self.problems("aged 12", age=2)), 1)
        self.assertEqual(len(self.problems("born 2 May 1990", {"born": "2 May 1990"}, born="1990-05-03")), 1)
        self.assertEqual(len(self.problems("born in May", {"born": "2 May"}, born="1990-05-02")), 1)
        self.assertEqual(len(self.problems("she joined", member=True)), 1)
        self.assertEqual(len(self.problems("Ann", {"age": "Ann"})), 1)
        self.assertEqual(len(self.problems("Ann", {"years": "Ann"})), 1)

    def test_readings_of_numbers(self):
        for text, value in (("1.249,50", "1249.5"), ("1,249.50", "1249.5"), ("1 150 kr", "1150"), ("-18.6", "-18.6"), ("three", "3"), ("64'800", "64800")):
            self.assertIn(labels.as_decimal(value), labels.numbers_in(text), text)
        self.assertNotIn(labels.as_decimal("20018.4"), labels.numbers_in("200 18.4"))


class Schemas(unittest.TestCase):
    def words(self, value, schema=PERSON):
        return [keyword for _, keyword in labels.violations(value, schema)]

    def test_each_keyword(self):
        self.assertEqual(self.words(EMPTY), [])
        self.assertEqual(self.words({**EMPTY, "age": True}), ["type"])
        self.assertEqual(self.words({**EMPTY, "age": 1.5}), ["type"])
        self.assertEqual(self.words({**EMPTY, "age": 2.0}), [])
        self.assertEqual(self.words({**EMPTY, "age": float("inf")}), ["type"])
        self.assertEqual(self.words({**EMPTY, "more": 1}), ["additionalProperties more"])
        self.assertEqual(self.words({name: None for name in ("name", "born", "age", "member", "home")}), ["required tags"])
        self.assertEqual(self.words({**EMPTY, "born": "2026-02-30"}), ["format"])
        self.assertEqual(self.words({**EMPTY, "tags": ["a", 1]}), ["type"])
        for schema, good, bad, keyword in (({"enum": [1, None]}, None, True, "enum"), ({"maxLength": 2}, "äö", "abc", "maxLength"), ({"minLength": 1}, "a", "", "minLength"),
                                           ({"pattern": "^a"}, "ab", "ba", "pattern"), ({"minimum": 1}, 1, 0, "minimum"), ({"maximum": 1}, 1, 2, "maximum"),
                                           ({"minItems": 1}, [1], [], "minItems"), ({"maxItems": 1}, [1], [1, 2], "maxItems"), ({"format": "email"}, "a@b", "ab", "format")):
            self.assertEqual((self.words(good, schema), self.words(bad, schema)), ([], [keyword]))

    def test_unknown_keyword(self):
        with self.assertRaises(ValueError):
            labels.violations(1, {"not": {}})


class Scoring(unittest.TestCase):
    def counts(self, expected, got):
        made = score.compare(expected, got)
        return made["right"], made["fields"]

    def test_scalars(self):
        self.assertEqual(self.counts({"a": 1, "b": "x  y", "c": None}, {"a": 1.0, "b": "x y", "c": None}), (3, 3))
        self.assertEqual(self.counts({"a": 1, "b": "x", "c": None, "d": True}, {"a": True, "b": "X", "c": "?", "d": 1}), (0, 4))
        self.assertEqual(self.counts({"a": "é"}, {"a": "e\u0301"}), (1, 1))
        self.assertEqual(self.counts({"a": None}, {}), (0, 1))
        self.assertEqual(self.counts({"a": 1, "b": 2}, score.MISSING), (0, 2))
        self.assertEqual(self.counts({"a": 1}, [1]), (0, 1))

    def test_arrays(self):
        self.assertEqual(self.counts([], []), (1, 1))
        self.assertEqual(self.counts([], None), (0, 1))
        self.assertEqual(self.counts([], ["x", "y"]), (0, 2))
        self.assertEqual(self.counts(["a"], ["b"]), (0, 1))
        self.assertEqual(self.counts(["a", "b", "c"], ["b", "c"]), (2, 3))
        self.assertEqual(self.counts(["a", "b"], ["x", "a", "b"]), (2, 3))
        self.assertEqual(self.counts(["a", "b"], ["b", "a"]), (1, 3))
        self.assertEqual(self.counts([{"n": "a", "q": 1}, {"n": "b", "q": 2}], [{"n": "b", "q": 3}]), (1, 4))

    def test_objects_where_none_should_be(self):
        self.assertEqual(self.counts({"home": None}, {"home": {"city": "Rome", "zip": "1"}}), (0, 2))
        self.assertEqual(self.counts({"home": {"city": "Rome", "zip": None}}, {"home": None}), (0, 2))

    def test_nulls(self):
        made = score.compare({"a": None, "b": None, "c": 1, "d": 2}, {"a": None, "b": 7, "c": None, "d": 3})
        self.assertEqual((made["null_expected"], made["null_right"], made["value_expected"], made["value_lost"]), (2, 1, 2, 1))
        self.assertEqual(made["value_right"], 0)
        self.assertEqual(score.compare({"a": 1}, {})["value_lost"], 1)
        self.assertEqual(score.compare({"a": 1, "b": None}, {"a": 1, "b": None})["value_right"], 1)

    def test_elements(self):
        self.assertEqual(score.elements({"a": [1, 2], "b": {"c": [{"d": ["x"]}]}, "e": "f"}), 4)
        judged = score.judge({"expected": {**EMPTY, "tags": ["tall", "kind"]}}, PERSON, {**EMPTY, "tags": ["tall", "kind", "kind"]})
        self.assertEqual(score.summary([judged])["elements"], 1.5)
        self.assertEqual(score.elements(score.MISSING), 0)

    def test_lenient_json(self):
        for text in ('{"a": 1}', ' \n{"a": 1}\n', 'Here:\n```json\n{"a": 1}\n```\nDone {', 'Sure! {"a": 1} is it'):
            self.assertEqual(score.lenient_json(text), {"a": 1}, text)
        for text in ("", "no", '{"a": ', '{"a": NaN}', "{" * 100000):
            self.assertIs(score.lenient_json(text), score.MISSING, text[:20])

    def test_summary(self):
        one = {"expected": {**EMPTY, "name": "Ann"}}
        right = score.judge(one, PERSON, {**EMPTY, "name": "Ann"})
        wrong = score.judge(one, PERSON, {**EMPTY, "name": "Bob", "extra": 1})
        lost = score.judge(one, PERSON, score.MISSING)
        self.assertFalse(wrong["exact"] or lost["exact"])
        self.assertEqual((right["exact"], right["valid"], wrong["valid"], wrong["parsed"], lost["parsed"]), (True, True, False, True, False))
        made = score.summary([{**right, "seconds": 1, "output_tokens": 5}, wrong, {**lost, "error": "timeout"}])
        self.assertEqual((made["documents"], made["fields"], made["failed_calls"], made["output_tokens"]), (3, 18, 1, 5))
        self.assertAlmostEqual(made["field_accuracy"], 11 / 18)
        self.assertAlmostEqual(made["exact_documents"], 1 / 3)
        self.assertAlmostEqual(made["invalid"], 2 / 3)
        self.assertAlmostEqual(made["not_json"], 1 / 3)
        self.assertIsNone(score.summary([])["field_accuracy"])

    def test_exact_needs_a_valid_answer(self):
        judged = score.judge({"expected": EMPTY}, PERSON, {**EMPTY, "extra": 1})
        self.assertEqual((judged["right"], judged["fields"]), (6, 6))
        self.assertEqual(score.summary([judged])["exact_documents"], 0)


class Runs(unittest.TestCase):
    def test_statements(self):
        schema = {"properties": {"a": {}}, "required": ["a"]}
        self.assertIn("'it''s'", run.statement("constrained", "it's", schema, 9))
        self.assertNotIn("evidence", run.statement("constrained", "t", schema, 9))
        self.assertEqual(run.evidence_first(schema)["required"], ["evidence", "a"])
        self.assertEqual(schema["required"], ["a"])
        self.assertIn("dsv3_try_generate(c.prompt, 't'", run.statement("free", "t", schema, 9))
        self.assertIn('"whitespace": "natural"', run.statement("constrained", "t", schema, 9))
        self.assertIn('"whitespace": "compact"', run.statement("compact", "t", schema, 9))

    def test_parts(self):
        items = [{"id": f"{schema}-{number}", "schema": schema} for schema in "ab" for number in range(5)]
        tuning, held_out, both = (run.chosen(items, part, None) for part in (*run.PARTS, None))
        self.assertEqual((len(tuning), len(held_out)), (6, 4))
        self.assertEqual(sorted(item["id"] for item in tuning + held_out), sorted(item["id"] for item in both))
        self.assertEqual([item["schema"] for item in run.chosen(items, "tuning", 4)], ["a", "b", "a", "b"])
        self.assertEqual(run.chosen(items[::-1], None, 3), both[:3])

    def test_values(self):
        self.assertEqual(run.value_of({"mode": "evidence", "answer": {"evidence": "q", "a": 1}}), {"a": 1})
        self.assertEqual(run.value_of({"mode": "free", "answer": '{"a": 1}'}), {"a": 1})
        self.assertIs(run.value_of({"mode": "constrained", "answer": {"a": 1}, "error": "x"}), score.MISSING)
        self.assertIs(run.value_of({"mode": "constrained", "error": None}), score.MISSING)

    def test_going_on(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "records")
            records = run.Records(path, {"set": "s"})
            records.add({"mode": "free", "id": "1"})
            records.file.write('{"mode": "free", "id"')
            records.file.close()
            again = run.Records(path, {"set": "s"})
            self.assertEqual(list(again.done), [("free", "1")])
            again.add({"mode": "free", "id": "2"})
            again.file.close()
            last = run.Records(path, {"set": "s"})
            last.file.close()
            self.assertEqual(list(last.done), [("free", "1"), ("free", "2")])
            with self.assertRaises(run.Stop):
                run.Records(path, {"set": "t"})

    def test_table(self):
        one = {"id": "1", "domain": "d", "schema": "person", "expected": EMPTY}
        made = run.results({("free", "1"): {"mode": "free", "answer": json.dumps(EMPTY), "seconds": 2, "output_tokens": 3}}, [one], {"person": PERSON}, run.MODES)
        self.assertEqual(list(made), ["free"])
        self.assertEqual(made["free"]["domains"]["d"]["field_accuracy"], 1)
        self.assertIn("100.0 %", run.table(made))


# Stands for psql: knows a model's digest and answers every call alike; counts the calls.
PSQL = """#!/bin/sh
read -r first; read -r second; read -r sql
[ -z "$REFUSE" ] || { echo "cannot" >&2; exit "$REFUSE"; }
echo "$sql" >>"$CALLS"
case "$sql$FAIL" in
*dsv3_try*no) echo '{"ok": false, "value": null, "error": "no", "finish_reason": null, "prompt_tokens": null, "output_tokens": null}' ;;
*dsv3_health*) printf '{"model": "0123", "prompt": "%s"}\n' "$PROMPT" ;;
*dsv3_try_generate*) echo '{"ok": true, "value": "none", "error": null, "finish_reason": "stop", "prompt_tokens": 9, "output_tokens": 1}' ;;
*) echo '{"ok": true, "value": {}, "error": null, "finish_reason": "stop", "prompt_tokens": 9, "output_tokens": 2}' ;;
esac
"""


class WholeRuns(unittest.TestCase):
    def run_with(self, folder, *arguments, **environment):
        calls = os.path.join(folder, "calls")
        open(calls, "w").close()
        done = subprocess.run([sys.executable, os.path.join(TOP, "bench", "extraction", "run.py"), "--records", os.path.join(folder, "records"),
                               "--json", os.path.join(folder, "json"), *arguments], capture_output=True, text=True,
                              env={**os.environ, "PATH": folder + ":" + os.environ["PATH"], "CALLS": calls, "REFUSE": "", "FAIL": "", "PROMPT": "p", **environment})
        with open(calls, encoding="utf-8") as f:
            return done, len(f.readlines())

    def test_run_resume_and_refuse(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "psql"), "w", encoding="utf-8") as f:
                f.write(PSQL)
            os.chmod(f.name, 0o755)
            done, calls = self.run_with(folder, "--limit", "3")
            self.assertEqual((done.returncode, calls), (1, 1 + 12), done.stderr)
            with open(os.path.join(folder, "json"), encoding="utf-8") as f:
                modes = json.load(f)["modes"]
            self.assertEqual({mode: (one["documents"], one["not_json"], one["invalid"], one["output_tokens"]) for mode, one in modes.items()},
                             {"constrained": (3, 0, 1, 6), "free": (3, 1, 1, 3), "evidence": (3, 0, 1, 6),
                              "compact": (3, 0, 1, 6)})
            self.assertEqual(self.run_with(folder, "--limit", "4")[1], 1 + 4)
            self.assertEqual(self.run_with(folder, "--limit", "4", "--modes", "free")[0].returncode, 0)
            done, calls = self.run_with(folder, "--max-tokens", "5")
            self.assertEqual((done.returncode, calls), (2, 1))
            self.assertIn("another max_tokens", done.stderr)
            self.assertIn("another prompt", self.run_with(folder, PROMPT="other")[0].stderr)
            for status in ("2", "3"):
                done, calls = self.run_with(folder, REFUSE=status)
                self.assertEqual((done.returncode, calls, done.stderr), (2, 0, "run.py: cannot\n"))

    def test_failed_calls_are_made_again(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "psql"), "w", encoding="utf-8") as f:
                f.write(PSQL)
            os.chmod(f.name, 0o755)
            for fail, status, failed, calls_made in (("no", 1, 2, 3), ("", 1, 0, 3), ("", 1, 0, 1)):
                done, calls = self.run_with(folder, "--limit", "1", "--modes", "constrained,evidence", FAIL=fail)
                self.assertEqual((done.returncode, calls), (status, calls_made), done.stderr)
                with open(os.path.join(folder, "json"), encoding="utf-8") as f:
                    self.assertEqual(sum(one["failed_calls"] for one in json.load(f)["modes"].values()), failed)


class Set(unittest.TestCase):
    def setUp(self):
        self.schemas = labels.load_schemas()
        self.items = labels.load_items()

    def test_items(self):
        for one in self.items:
            self.assertEqual(labels.item_problems(one, self.schemas), [], one["id"])

    def test_made_again(self):
        self.assertEqual(make_set.make(self.schemas), self.items)

    def test_breadth(self):
        self.assertGreaterEqual(len(self.items), 320)
        self.assertGreaterEqual(sum(one["source"] == "written" for one in self.items), 100)
        self.assertGreaterEqual(sum(one["language"] != "en" for one in self.items), len(self.items) // 10)
        self.assertEqual(len({one["id"] for one in self.items}), len(self.items))
        self.assertEqual(len({one["text"] for one in self.items}), len(self.items))
        self.assertEqual(len(self.schemas), 20)
        self.assertEqual({one["schema"] for one in self.items}, set(self.schemas))
        self.assertGreaterEqual(len({one["domain"] for one in self.items}), 8)

    def test_schemas_keep_their_order_in_jsonb(self):
        for name, schema in self.schemas.items():
            self.assertEqual(list(schema["properties"]), schema["required"], name)

    def test_perfect_answers(self):
        judged = [score.judge(one, self.schemas[one["schema"]], one["expected"]) for one in self.items]
        made = score.summary(judged)
        self.assertEqual((made["field_accuracy"], made["exact_documents"], made["invalid"], made["null_kept"], made["value_lost"]), (1, 1, 0, 1, 0))

    def test_another_validator_agrees(self):
        try:
            import jsonschema
        except ImportError:
            print("# the Python package jsonschema is not installed; its opinion is skipped", file=sys.__stdout__)
            return
        for name, schema in self.schemas.items():
            jsonschema.Draft202012Validator.check_schema(schema)
            validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
            for one in self.items:
                if one["schema"] == name:
                    self.assertTrue(validator.is_valid(one["expected"]), one["id"])

    def test_decoder_can_write_each_label(self):
        engine = os.environ.get("DSV3_BIN", os.path.join(TOP, "build", "engine", "dsv3"))
        self.assertTrue(os.path.exists(engine), "make engine")
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("schema", "documents")]
            for name, schema in self.schemas.items():
                expected = [one["expected"] for one in self.items if one["schema"] == name]
                for asked, values in ((schema, expected), (run.evidence_first(schema), [{"evidence": "a quote", **value} for value in expected])):
                    for path, text in zip(paths, (json.dumps(asked), "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))):
                        with open(path, "w", encoding="utf-8") as f:
                            f.write(text)
                    done = subprocess.run([engine, "schema", "accepts", "-", *paths], capture_output=True, text=True)
                    self.assertEqual(done.stdout.split("\n"), ["accepted"] * len(values) + [""], name + done.stderr)

    def test_documents(self):
        made = list(make_set.documents(500, self.schemas, self.items))
        self.assertEqual((sum("definition" in one for one in made), len({one["text"] for one in made if "document" in one})), (20, 500))
        self.assertFalse({one.get("text") for one in made} & {one["text"] for one in self.items})


class Tap(unittest.TestResult):
    """Prints each test as it ends."""

    def say(self, ok, test):
        print(f"{'ok' if ok else 'not ok'} {self.testsRun} - {test.id().split('.', 1)[1]}", file=sys.__stdout__, flush=True)

    def addSuccess(self, test):
        self.say(True, test)

    def fail(self, test, error):
        self.say(False, test)
        print("# " + self._exc_info_to_string(error, test).strip().replace("\n", "\n# "), file=sys.stderr)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.fail(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self.fail(test, err)


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    print(f"1..{suite.countTestCases()}", flush=True)
    result = Tap()
    with contextlib.redirect_stdout(io.StringIO()):
        suite.run(result)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
