#!/usr/bin/env python3
"""
docs.py

What the pages say, held against what is there (TAP output; run by `make check-docs` with a server on the small random model):
- links between pages lead somewhere, to the heading too;
- SQL examples whose fence reads "```sql test" run without error, a page's blocks in order in one session, rolled back at its end; a
  fence "```output" behind one holds what psql -At prints of it;
- each function `dsv3_...(` and each setting `dsv3....` that a page names exists, and each setting that exists is named by
  docs/settings.md;
- each make target that a page names exists.
"""
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
results = []


def report(name, problems):
    results.append(not problems)
    print(f"{'not ok' if problems else 'ok'} {len(results)} - {name}")
    for problem in problems:
        print("# " + problem.replace("\n", "\n# "), file=sys.stderr)
    sys.stdout.flush()


def psql(text, *options):
    return subprocess.run(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", *options, "-f", "-"], input=text, capture_output=True, text=True,
                          cwd=TOP)


def pages():
    names = [name for name in os.listdir(TOP) if name.endswith(".md")]
    names += ["docs/" + name for name in os.listdir(os.path.join(TOP, "docs")) if name.endswith(".md")]
    for name in sorted(names):
        with open(os.path.join(TOP, name), encoding="utf-8") as page:
            yield name, page.read()


def fences(text):
    """(line, info string, body) of each fenced block."""
    for match in re.finditer(r"^(`{3,})([^\n`]*)\n(.*?)^\1\s*$", text, re.M | re.S):
        yield text.count("\n", 0, match.start()) + 1, match.group(2).strip(), match.group(3)


def prose(text):
    return re.sub(r"^(`{3,})([^\n`]*)\n(.*?)^\1\s*$", "", text, flags=re.M | re.S)


def anchors(text):
    for heading in re.findall(r"^#+ +(.*)$", prose(text), re.M):
        yield re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(name, text, contents):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        if not os.path.exists(os.path.join(TOP, full)):
            yield f"{target}: no such file"
        elif anchor and full in contents and anchor not in anchors(contents[full]):
            yield f"{target}: no such heading"


def failing_examples(text):
    found = list(fences(text))
    blocks = [(line, body) for line, info, body in found if info.split() == ["sql", "test"]]
    if not blocks:
        return
    script = "BEGIN;\n" + "".join(f"\\echo block at line {line}\n{body}\n" for line, body in blocks) + "ROLLBACK;\n"
    done = psql(script)
    parts = re.split(r"^block at line (\d+)\n", done.stdout, flags=re.M)
    said = dict(zip(map(int, parts[1::2]), parts[2::2]))
    if done.returncode != 0:
        yield f"{f'block at line {max(said)}' if said else 'before the first block'}: {done.stderr.strip()}"
        return
    for (line, _, _), (_, info, shown) in zip(found, found[1:]):
        if info == "output" and said.get(line, "").strip() != shown.strip():
            yield f"block at line {line} prints\n{said.get(line, '').strip()}"


def main():
    contents = dict(pages())
    functions = set(psql("SELECT proname FROM pg_proc WHERE proname LIKE 'dsv3%' UNION SELECT relname FROM pg_class").stdout.split())
    settings = set(psql("SELECT name FROM pg_settings WHERE name LIKE 'dsv3.%'").stdout.split())
    makefiles = "".join(open(os.path.join(TOP, name), encoding="utf-8").read()
                        for name in subprocess.run("ls Makefile */*.mk */*/*.mk", shell=True, capture_output=True, text=True,
                                                   cwd=TOP).stdout.split())
    targets = {word for rule in re.findall(r"^([a-z][\w -]*?):(?!=)", makefiles, re.M) for word in rule.split()}
    targets |= {word for phony in re.findall(r"^\.PHONY:(.*)$", makefiles, re.M) for word in phony.split()}

    report("the server has the extension", [] if functions and settings else ["no server with dsv3: run make check-docs"])
    for name, text in contents.items():
        report(f"{name}: links", list(broken_links(name, text, contents)))
        called = set(re.findall(r"\b(dsv3_\w+)\(", text))
        report(f"{name}: functions exist", [f"{f}()" for f in sorted(called - functions)])
        named = set(re.findall(r"\b(dsv3\.[a-z]\w+)\b(?!\.)", text)) - {"dsv3.so", "dsv3.control", "dsv3.conf", "dsv3.c"}
        report(f"{name}: settings exist", sorted(named - settings))
        made = set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", text, re.M))
        report(f"{name}: make targets exist", sorted(made - targets - {"install", "installcheck", "uninstall", "clean"}))
        report(f"{name}: examples run", list(failing_examples(text)))
    report("docs/settings.md names every setting",
           sorted(s for s in settings if f"`{s}`" not in contents.get("docs/settings.md", "")))
    print(f"1..{len(results)}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
