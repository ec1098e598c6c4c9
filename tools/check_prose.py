"""Fails where prose breaks the house rules: comments, docstrings and pages.

- Lines have at most 110 columns; tables, code and links may be longer.
- A file of ours that is named exists.
- Words that the glossary of docs/design.md replaces do not come back.
- Source files have at most 800 lines; include/eas.h is in chapters instead.

usage: check_prose.py
"""

import ast
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS, LINES = 110, 800
C_LIKE = {".c", ".h", ".inc", ".m"}
NAMED = re.compile(r"(?<![\w.*/<{}-])((?:[\w-]+/)*[\w-]+\.(?:c|h|m|py|def|inc|md|sh))\b(?![(\w])")
SUSPECT = re.compile(r"past the|let pass|wait|asks? |asked|asking|builds itself|nothing else")
ENDING = re.compile(r"\w\.(?:[chm]|py|def|inc|md|sh)\b")  # quick to look for
# names that stand for a file of the reader's, or of somebody else
OTHERS = re.compile(r"(my_\w+|train|FILE|kernels)\.py$")
RIDDLES = re.compile(r"past the caches|is let pass|waits? in the output|\bask(s|ed|ing)? for .{0,20}\b(ahead|lines)\b|builds itself simple|nothing else that counts")


def c_prose(text):
    """(number, line) of lines that are comment alone."""
    inside = False
    for i, line in enumerate(text.splitlines(), 1):
        s = line.strip()
        if inside or s.startswith("/*"):
            yield i, line
        inside = "*/" not in s and (inside or s.startswith("/*"))


def python_prose(text):
    lines = text.splitlines()
    yield from ((i, line) for i, line in enumerate(lines, 1) if line.lstrip().startswith("# "))
    for node in documented(ast.parse(text)):
        doc = node.body[0]
        yield from ((i, lines[i - 1]) for i in range(doc.lineno, doc.end_lineno + 1))


def documented(node):
    """The module, classes and functions that have a docstring."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node, False):
        yield node
    for part in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, part, None) or ():
            if isinstance(child, (ast.stmt, ast.excepthandler)):
                yield from documented(child)


def page_prose(text):
    code = False
    for i, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield i, line


def prose_of(path, text):
    if path.suffix in C_LIKE:
        return c_prose(text)
    return python_prose(text) if path.suffix == ".py" else page_prose(text)


def too_wide(path, line):
    if len(line) <= COLUMNS or "http" in line:
        return False
    return not (path.suffix == ".md" and line.startswith("|"))


def missing(line, known):
    for name in NAMED.findall(line) if ENDING.search(line) else ():
        if pathlib.PurePosixPath(name).name not in known and not OTHERS.search(name):
            yield name


def complaints(path, text, known):
    for i, line in prose_of(path, text):
        if too_wide(path, line):
            yield i, f"{len(line)} columns"
        if m := SUSPECT.search(line) and RIDDLES.search(line):
            yield i, f"say it plainly: {m[0]!r}"
        for name in missing(line, known):
            yield i, f"there is no file {name}"


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    files = [pathlib.PurePosixPath(f) for f in listed if f and (ROOT / f).exists()]
    known = {f.name for f in files}
    bad = 0
    for f in files:
        if f.suffix not in C_LIKE | {".py", ".md"} or f.name == "CHANGELOG.md":
            continue
        text = (ROOT / f).read_text(encoding="utf-8")
        found = list(complaints(f, text, known))
        if f.parts[0] in ("src", "python") and text.count("\n") > LINES:
            found.append((text.count("\n"), f"more than {LINES} lines"))
        for i, why in found:
            print(f"{f}:{i}: {why}")
        bad += len(found)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
