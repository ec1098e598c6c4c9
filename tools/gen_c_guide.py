"""Writes the programs of examples/c into docs/c.md and docs/guide.md, and the table of host functions into
docs/c.md; with --check only says whether they are current.

usage: gen_c_guide.py [--check]
"""

import pathlib
import re
import sys

import doc_table

ROOT = pathlib.Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    bad = 0
    for name, page in (("add", "c"), ("gradient", "c"), ("batch", "c"), ("square", "guide")):
        text = (ROOT / f"examples/c/{name}.c").read_text(encoding="utf-8")
        begin, end = f"<!-- {name}.c: begin (tools/gen_c_guide.py) -->", f"<!-- {name}.c: end -->"
        bad |= doc_table.write(ROOT / f"docs/{page}.md", begin, end, f"```c\n{text}```", "gen_c_guide.py")
    rows = re.findall(r'^NATIVE\((\w+), "(.*?): (.*)"\)$', (ROOT / "src/native/native.def").read_text(encoding="utf-8"), re.M)
    table = "\n".join(["| name | numbers | inputs → results |", "|---|---|---|"] + [f"| `{n}` | `{numbers}` | {what.replace('->', '→')} |" for n, numbers, what in rows])
    bad |= doc_table.write(ROOT / "docs/c.md", "<!-- host functions: begin (tools/gen_c_guide.py) -->", "<!-- host functions: end -->", table, "gen_c_guide.py")
    sys.exit(bad)
