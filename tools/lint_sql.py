#!/usr/bin/env python3
"""
lint_sql.py SCRIPT...

Rules for the extension's install and upgrade scripts, which run with a superuser's rights:
- the first statement is the \\echo ... \\quit guard against running the file in psql;
- nothing is CREATE OR REPLACE or IF NOT EXISTS: another's object of that name must be an error, not adopted;
- a function states its volatility, its parallel safety and, in C, whether it is strict; its name starts with dsv3_;
- EXECUTE on a function is revoked from PUBLIC, or a comment "public: NAME NAME ..." names it;
- SECURITY DEFINER comes with SET search_path; nothing is LEAKPROOF;
- in a view or an SQL function body every function and table carries its schema, for the caller chooses search_path;
- each function, view and type has a COMMENT.
"""
import re
import sys

# What may stand before a parenthesis without being a function's name.
KEYWORDS = set("""
    and or not in any all some exists values using on as from where select case when then else end cast row array filter over
    within group order by partition with coalesce nullif greatest least extract substring position overlay trim table
    numeric varchar char text returns function in union intersect except limit distinct default check interval lateral
    rows set is between like int integer bigint timestamp time operator""".split())


def statements(text):
    """Split at semicolons outside quotes and comments: (line, text without comments)."""
    out, start, i, n = [], 0, 0, len(text)
    pieces = []
    line_of = lambda position: text.count("\n", 0, position) + 1
    while i < n:
        two = text[i:i + 2]
        if two == "--":
            j = text.find("\n", i)
            j = n if j < 0 else j
            i = j
        elif two == "/*":
            j = text.find("*/", i + 2)
            j = n if j < 0 else j + 2
            i = j
        elif text[i] == "'":
            j = i + 1
            while j < n and not (text[j] == "'" and text[j:j + 2] != "''"):
                j += 2 if text[j:j + 2] == "''" else 1
            pieces.append(text[i:j + 1])
            i = j + 1
        elif text[i] == "$" and (match := re.match(r"\$\w*\$", text[i:])):
            tag = match.group(0)
            j = text.find(tag, i + len(tag))
            j = n if j < 0 else j + len(tag)
            pieces.append(text[i:j])
            i = j
        elif text[i] == ";" and not re.search(r"\bBEGIN\s+ATOMIC\b(?!.*\bEND\s*$)", "".join(pieces), re.I | re.S):
            body = "".join(pieces).strip()
            out.append((line_of(start), body))
            pieces, i = [], i + 1
            start = i
        else:
            if not "".join(pieces).strip() and not text[i].isspace():
                start = i
            pieces.append(text[i])
            i += 1
    rest = "".join(pieces).strip()
    if rest:
        out.append((line_of(start), rest))
    return out


def name_of(text):
    return text.replace("@extschema@.", "").strip().lower()


def body_findings(body):
    """Names without a schema in a query that runs under the caller's search_path."""
    bare = re.sub(r"'(?:[^']|'')*'", "''", body)
    ctes = {name.lower() for name in re.findall(r"\b(\w+)\s+AS\s+(?:MATERIALIZED\s*)?\(", bare, re.I)}
    for match in re.finditer(r"\bOPERATOR\s*\(\s*(?![a-z_]\w*\s*\.|@extschema@)", bare, re.I):
        yield "an operator is named without its schema"
    for match in re.finditer(r"(?<![\w.@])([a-z_]\w*)\s*\(", bare, re.I):
        name = match.group(1).lower()
        if name not in KEYWORDS and name not in ctes and not re.search(r"\bAS\s+\w*$", bare[:match.end(1)], re.I):
            yield f'"{name}" is called without its schema'
    for match in re.finditer(r"\b(?:FROM|JOIN)\s+(?:ONLY\s+)?([a-z_]\w*)\b(?!\s*[.(])", bare, re.I):
        if match.group(1).lower() not in ctes | {"lateral", "select"}:
            yield f'"{match.group(1)}" is read without its schema'


def script_findings(path, text):
    upgrade = path.count("--") > 1
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("--") and not line.startswith("/*")
             and not line.startswith(" *")]
    guard = r"\\echo Use \"(CREATE|ALTER) EXTENSION dsv3.*\" to load this file\. \\quit$"
    if not lines or not re.match(guard, lines[0]):
        yield 1, 'the first line that is no comment must be: \\echo Use "CREATE EXTENSION dsv3" to load this file. \\quit'
    text = re.sub(r"^\\echo.*$", "", text, flags=re.M)

    public = {name for line in re.findall(r"^-- public:(.*)$", text, re.M) for name in re.findall(r"\w+", line)}
    functions, revoked, commented, others = {}, set(), set(), []
    for line, body in statements(text):
        if re.search(r"\bOR\s+REPLACE\b", body, re.I) and not upgrade:
            yield line, "OR REPLACE would take over an object that is already there"
        if re.search(r"\bIF\s+NOT\s+EXISTS\b", body, re.I):
            yield line, "IF NOT EXISTS would adopt an object that is already there"
        if match := re.match(r"CREATE\s+(?:OR\s+REPLACE\s+)?(FUNCTION|PROCEDURE|AGGREGATE)\s+([\w.@\"]+)\s*\(", body, re.I):
            kind, name = match.group(1).upper(), name_of(match.group(2))
            functions.setdefault(name, line)
            if not name.startswith("dsv3_") and not name.startswith("_dsv3_"):
                yield line, f'"{name}" does not start with dsv3_'
            if kind == "FUNCTION":
                if not re.search(r"\b(VOLATILE|STABLE|IMMUTABLE)\b", body, re.I):
                    yield line, f"{name} does not state its volatility"
                if not re.search(r"\bPARALLEL\s+(SAFE|RESTRICTED|UNSAFE)\b", body, re.I):
                    yield line, f"{name} does not state its parallel safety"
                if not re.search(r"\b(STRICT|CALLED\s+ON\s+NULL\s+INPUT|RETURNS\s+NULL\s+ON\s+NULL\s+INPUT)\b", body, re.I) \
                        and not re.match(r"\s*(\)|OUT\b)", body[match.end():]):
                    yield line, f"{name} does not state what a NULL argument does"
            if re.search(r"\bLEAKPROOF\b", body, re.I):
                yield line, f"{name} is LEAKPROOF"
            if re.search(r"\bSECURITY\s+DEFINER\b", body, re.I) and not re.search(r"\bSET\s+search_path\b", body, re.I):
                yield line, f"{name} is SECURITY DEFINER without SET search_path"
            if re.search(r"\bLANGUAGE\s+'?sql'?\b", body, re.I):
                inner = re.search(r"\$(\w*)\$(.*)\$\1\$", body, re.S) or re.search(r"\bBEGIN\s+ATOMIC(())(.*)END", body, re.I | re.S)
                for text_found in body_findings(inner.group(inner.lastindex)) if inner else ():
                    yield line, f"{name}: {text_found}"
        elif match := re.match(r"CREATE\s+(?:VIEW|TYPE|TABLE|DOMAIN)\s+([\w.@\"]+)", body, re.I):
            others.append((line, name_of(match.group(1))))
            if view := re.match(r"CREATE\s+VIEW\s+[\w.@\"]+.*?\bAS\b(.*)", body, re.I | re.S):
                for text_found in body_findings(view.group(1)):
                    yield line, f"{others[-1][1]}: {text_found}"
        elif re.match(r"REVOKE\b", body, re.I):
            if re.search(r"ALL\s+FUNCTIONS\s+IN\s+SCHEMA", body, re.I):
                yield line, "name the functions one by one: a schema may hold another's"
            revoked |= {name_of(name) for name in re.findall(r"([\w.@]+)\s*\(", body)}
        elif match := re.match(r"COMMENT\s+ON\s+\w+\s+([\w.@\"]+)", body, re.I):
            commented.add(name_of(match.group(1)))
    for name, line in functions.items():
        if name not in revoked and name not in public:
            yield line, f'{name} is neither revoked from PUBLIC nor named in a comment "public: ..."'
        if name not in commented:
            yield line, f"{name} has no COMMENT"
    for line, name in others:
        if name not in commented:
            yield line, f"{name} has no COMMENT"


def main():
    bad = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for line, finding in script_findings(path, text):
            print(f"{path}:{line}: {finding}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
