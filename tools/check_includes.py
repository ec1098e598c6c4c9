"""Fails on an #include that goes against the arrows between the folders of src/.

usage: check_includes.py [ROOT]

Each folder sees itself and the folders below it, through their headers; Python's extension and the examples
see nothing but the public header. The one exception is the table of instructions, which is data and names
nothing else of the library.
"""

import pathlib
import re
import sys

# folder: the folders it may include from, besides itself. Each arrow of docs/design.md, with what lies behind
# it.
MAY = {
    "src/base": set(),
    "src/ir": {"src/base"},
    "src/native": {"src/base"},
    "src/gen": {"src/base", "src/ir"},
    "src/gen/plan": {"src/base", "src/ir", "src/gen"},
    "src/gen/llvm": {"src/base", "src/ir", "src/gen", "src/gen/plan"},
    "src/gen/text": {"src/base", "src/ir", "src/gen"},
    "src/dev": {"src/base", "src/ir", "src/gen"},
    "src/kernel": {"src/base", "src/ir", "src/gen", "src/dev"},
    "src/graph": {"src/base", "src/ir"},
    "src/pass": {"src/base", "src/ir", "src/graph"},
    "src/exec": {"src/base", "src/ir", "src/gen", "src/dev", "src/kernel", "src/graph", "src/pass", "src/native"},
    "src/dist": {"src/base", "src/ir", "src/gen", "src/dev", "src/kernel", "src/graph", "src/pass", "src/exec"},
    "src/io": {"src/base"},
    "python/_eas": set(),
    "examples/c": set(),
    "include": set(),
}
# A table that this folder may expand, although it does not see the folder that the table lies in.
TABLES = {("python/_eas", "src/ir/insn.def")}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
# Headers of other projects stay where design.md puts them; the public header has none of them.
ONLY_IN = {"llvm-c/": "src/gen/llvm/", "Python.h": "python/_eas", "numpy/": "python/_eas", "mpi.h": "src/dist", "objc/": "src/dev"}


def folder_of(path, root):
    rel = path.relative_to(root).as_posix()
    return next((f for f in sorted(MAY, key=len, reverse=True) if rel.startswith(f + "/")), None)


def problems(root):
    tops = {f.split("/")[0] for f in MAY}  # what is built and installed lies beside them
    for path in sorted(p for top in tops for p in (root / top).rglob("*") if p.suffix in (".c", ".h", ".inc") and folder_of(p, root)):
        rel, here = path.relative_to(root).as_posix(), folder_of(path, root)
        for quote, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            for prefix, place in ONLY_IN.items():
                if name.startswith(prefix) and not rel.startswith(place):
                    yield f"{rel}: {name} belongs to {place} alone"
            target = (path.parent / name).resolve()
            if quote == "<" or not target.is_file():
                continue
            there = folder_of(target, root.resolve())
            table = (here, target.relative_to(root.resolve()).as_posix()) in TABLES
            if not table and there not in ({here, "include"} | MAY[here]):
                yield f"{rel}: includes {name}, but {here} may not see {there}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(problems(root))
    print("\n".join(found) or "includes follow the arrows")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
