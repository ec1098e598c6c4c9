"""Writes the tables of operations on tensors into docs/ops.md, out of src/graph/op.def; with --check only
says whether they are current.

usage: gen_ops_table.py [--check]
"""

import ast
import pathlib
import re
import sys

import doc_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE, DOC = ROOT / "src/graph/op.def", ROOT / "docs/ops.md"
BEGIN, END = "<!-- operations: begin (tools/gen_ops_table.py) -->", "<!-- operations: end -->"
FIELDS = 11


def fields(row):
    """The arguments of one OP(...): names up to the last two, which are C strings."""
    parts = [p.strip() for p in row.split(",", FIELDS - 2)]
    signature, doc = ast.literal_eval("[" + parts[-1] + "]")
    if len(parts) != FIELDS - 1:
        raise ValueError(f"not a row of {FIELDS} fields: {row}")
    return parts[1], parts[2].lower(), parts[7] != "ZERO", signature, doc


def argument(item):
    """'x', 'xs*', 'axis:axis=-1' as they are written in a call."""
    name, _, kind = item.partition(":")
    if not kind:
        return "*" + name[:-1] if name.endswith("*") else name[:-1] + "=None" if name.endswith("?") else name
    _, equals, default = kind.partition("=")
    if "|" in kind and equals:
        default = f'"{default}"'
    return f"{name}={default}" if equals else name


def table(text):
    out = []
    for line in text[text.index("/* ---- ") :].splitlines():
        if m := re.match(r"/\* ---- (.*?) ---- \*/", line):
            out += ["", f"## {m[1][0].upper()}{m[1][1:]}", "", "| operation | kind | derivative | meaning |", "|---|---|---|---|"]
        elif m := re.match(r"(?:OP|HIDDEN)\((.*)\)\s*$", line):
            name, kind, derivative, signature, doc = fields(m[1])
            call = f"{name}({', '.join(map(argument, signature.split()))})"
            choices = [f"`{k.partition(':')[0]}`: {k.partition(':')[2].partition('=')[0].replace('|', ', ')}" for k in signature.split() if "|" in k]
            out.append(f"| `{call}` | {kind} | {'yes' if derivative else 'zero'} | {doc}{' ' if choices else ''}{'; '.join(choices)}{'.' if choices else ''} |")
    return "\n".join(out).strip()


if __name__ == "__main__":
    sys.exit(doc_table.write(DOC, BEGIN, END, table(TABLE.read_text(encoding="utf-8")), "gen_ops_table.py"))
