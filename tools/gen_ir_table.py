"""Writes the table of instructions into docs/ir.md, out of src/ir/insn.def; with --check only says whether it is current.

usage: gen_ir_table.py [--check]
"""

import pathlib
import re
import sys

import doc_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE, DOC = ROOT / "src/ir/insn.def", ROOT / "docs/ir.md"
BEGIN, END = "<!-- instructions: begin (tools/gen_ir_table.py) -->", "<!-- instructions: end -->"
CLASSES = {"IR_B": "bool", "IR_I": "int", "IR_F": "float"}


def split(text):
    """Arguments of the macro: commas outside parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def rows(text):
    """("heading", text) and ("row", fields, comment), in order."""
    body = text[text.index("/* ---- ") :]
    for line in body.splitlines():
        if m := re.match(r"/\* ---- (.*?) ---- \*/", line):
            yield "heading", m[1]
        elif m := re.match(r"INSN\((.*)\)\s*(?:/\*\s*(.*?)\s*\*/)?\s*$", line):
            yield "row", split(m[1]), m[2] or ""


def code(text):
    return "`" + text.replace("|", "\\|") + "`" if text not in ("NONE", "-") else ""


def table(text):
    out = []
    for kind, *rest in rows(text):
        if kind == "heading":
            out += ["", f"### {rest[0][0].upper()}{rest[0][1:]}", ""]
            out += ["| name | operands | dtypes | signed | unsigned, bool | float | notes |", "|---|---|---|---|---|---|---|"]
            continue
        (_, name, nargs, _, classes, _, si, ui, fl), note = rest
        kinds = ", ".join(word for flag, word in CLASSES.items() if flag in classes)
        cells = [f"`{name}`", "varies" if nargs == "V" else nargs, kinds, code(si), code(ui), code(fl), note.replace("|", "\\|")]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out).strip()


if __name__ == "__main__":
    sys.exit(doc_table.write(DOC, BEGIN, END, table(TABLE.read_text(encoding="utf-8")), "gen_ir_table.py"))
