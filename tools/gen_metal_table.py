"""Writes the table of messages into docs/metal.md, out of src/dev/metal_msg.def; with --check only says
whether it is current.

usage: gen_metal_table.py [--check]
"""

import pathlib
import re
import sys

import doc_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE, DOC = ROOT / "src/dev/metal_msg.def", ROOT / "docs/metal.md"
BEGIN, END = "<!-- messages: begin (tools/gen_metal_table.py) -->", "<!-- messages: end -->"
ROW = re.compile(r'MSG\((?P<result>[^,]+), \w+, \((?P<types>[^)]*)\), "(?P<owner>[^"]+)", "(?P<selector>[^"]+)",\s*"(?P<text>[^"]+)"\)')


def c_types(row):
    """The call as C makes it, receiver and selector left out."""
    rest = ", ".join(row["types"].split(", ")[2:]) or "void"
    return f"`{row['result']} ({rest})`"


def table(text):
    out = []
    for part in re.split(r"(/\* ---- .*? ---- \*/)", text):
        if m := re.match(r"/\* ---- (.*?) ---- \*/", part):
            out += ["", f"### {m[1][0].upper()}{m[1][1:]}", "", "| of | selector | documented as | called in C as |", "|---|---|---|---|"]
        else:
            out += [f"| {r['owner']} | `{r['selector']}` | `{r['text']}` | {c_types(r)} |" for r in ROW.finditer(part)]
    if sum(line.startswith("| ") for line in out) - sum(line.startswith("| of") for line in out) != len(re.findall(r"^MSG\(", text, re.M)):
        raise SystemExit("gen_metal_table.py cannot read every row of metal_msg.def")
    return "\n".join(out).strip()


if __name__ == "__main__":
    sys.exit(doc_table.write(DOC, BEGIN, END, table(TABLE.read_text(encoding="utf-8")), "gen_metal_table.py"))
