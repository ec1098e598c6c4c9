"""Writes the table of instructions into docs/ir.md and the stubs of element-wise functions into
python/eas/mk.pyi, out of src/ir/insn.def; with --check only says whether they are current.

usage: gen_ir_table.py [--check]
"""

import pathlib
import re
import sys

import doc_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE, DOC = ROOT / "src/ir/insn.def", ROOT / "docs/ir.md"
BEGIN, END = "<!-- instructions: begin (tools/gen_ir_table.py) -->", "<!-- instructions: end -->"
STUB = ROOT / "python/eas/mk.pyi"
STUB_BEGIN, STUB_END = "# element-wise instructions: begin (tools/gen_ir_table.py)", "# element-wise instructions: end"
CLASSES = {"IR_B": "bool", "IR_I": "int", "IR_F": "float"}


def split(text):
    """Arguments of the macro: commas outside parentheses and strings."""
    parts, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == '"'
        depth += 0 if quoted else (c == "(") - (c == ")")
        if c == "," and depth == 0 and not quoted:
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
        elif m := re.match(r"INSN\((.*?)\)\s*(?:HOST\(.*\))?\s*(?:/\*\s*(.*?)\s*\*/)?\s*$", line):
            yield "row", split(m[1]), m[2] or ""


def code(text):
    return "`" + text.replace("|", "\\|") + "`" if text not in ("NONE", "") else ""


def table(text):
    out = []
    for kind, *rest in rows(text):
        if kind == "heading":
            out += ["", f"### {rest[0][0].upper()}{rest[0][1:]}", ""]
            out += ["| name | in `mk` | operands | dtypes | signed | unsigned, bool | float | LLVM | notes |", "|---|---|---|---|---|---|---|---|---|"]
            continue
        (_, name, nargs, _, classes, _, _, llvm, mk, si, ui, fl), note = rest
        kinds = ", ".join(word for flag, word in CLASSES.items() if flag in classes)
        cells = [f"`{name}`", code(mk.strip('"')), "varies" if nargs == "V" else nargs, kinds, code(si), code(ui), code(fl), way(llvm), note.replace("|", "\\|")]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out).strip()


def way(llvm):
    """`add`, `fadd` of TWO(Add, FAdd); nothing where it takes more than one instruction."""
    m = re.match(r"(\w+)\((.*)\)", llvm)
    words = [w.strip().lower() for w in m[2].split(",")] if m else []
    return ", ".join(f"`{'cmp ' if m[1] == 'CMP' else ''}{w}`" for w in dict.fromkeys(words))


def stubs(text):
    """Element-wise functions of mk, as the table spells them."""
    out = []
    for kind, *rest in rows(text):
        m = re.match(r'"mk\.(\w+)\((.*)\)"', rest[0][8]) if kind == "row" and rest[0][3] in ("SAME", "CMP", "WHERE") else None
        if m:
            out.append(f"def {m[1]}({', '.join(a.strip() + ': Operand' for a in m[2].split(','))}) -> Any: ...")
    return "\n".join(out)


if __name__ == "__main__":
    source = TABLE.read_text(encoding="utf-8")
    bad = doc_table.write(DOC, BEGIN, END, table(source), "gen_ir_table.py")
    bad |= doc_table.write(STUB, STUB_BEGIN, STUB_END, stubs(source), "gen_ir_table.py")
    sys.exit(bad)
