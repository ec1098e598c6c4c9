"""Writes the reference of `mk`, `eas` and `eager` from the docstrings: usage: python tools/reference.py
FOLDER

Every function of `mk` has an example (tools/mk_examples.py). It is run on the CPU; its result and the Metal
code that it becomes stand beside it.
"""

import inspect
import re
import sys
import textwrap
from pathlib import Path

import numpy as np

import eager
import eas
from eas import mk

sys.path.insert(0, str(Path(__file__).parent))
import mk_examples  # noqa: E402

BLOCK = """
@eas.kernel
def example(x, y, p, q, out):
    i = mk.arange(0, 8)
    a, b, n, m = mk.load(x, i), mk.load(y, i), mk.load(p, i), mk.load(q, i)
{body}
{store}
"""
THREAD = """
@eas.kernel
def example(x, y, p, q, out):
    t = mk.tid(0, 32)
    a, n = mk.load(x, t), mk.load(p, t)
{body}
{store}
"""


def public(module):
    return [n for n in dir(module) if not n.startswith("_") and not inspect.ismodule(getattr(module, n))]


def functions():
    """Names of mk that can be called: not dtypes, not classes of values."""
    return [n for n in public(mk) if callable(getattr(mk, n)) and n not in ("Buffer", "Value", "constexpr")]


def arguments():
    x = np.arange(1, 65, dtype=np.float32)
    return x, x[::-1].copy(), np.arange(1, 65, dtype=np.int32), np.arange(64, 0, -1, dtype=np.int32)


def result_of(kernel, threads):
    """(what `out` holds, in the dtype that the kernel stores; MSL)."""
    args = arguments()
    for dtype in (np.float32, np.int32, np.int64, np.uint32, np.float64, np.float16, np.uint64, np.int16, np.int8, np.uint8, np.uint16, np.bool_):
        out = np.zeros(64, dtype)
        try:
            kernel(*[a.copy() for a in args], out, _grid=1)
            return out[: 32 if threads else 8], kernel.to_msl(*args, out)
        except TypeError:
            continue
    raise SystemExit(f"no dtype of `out` takes what is stored:\n{kernel}")


def make(source, name):
    """A kernel from text; linecache keeps the text for messages."""
    import linecache

    file = f"<example of mk.{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space = {"eas": eas, "mk": mk}
    exec(compile(source, file, "exec"), space)
    return space["example"]


def run_example(name):
    """(lines of the example, what it gives, the Metal code of its body)."""
    threads = name in mk_examples.THREADS
    body = (mk_examples.THREADS if threads else mk_examples.SPMD)[name]
    where = "t" if threads else "i"
    store = f"    mk.store(out, {where}, r)" if re.search(r"^(\s*)r =|, r =", body, re.M) else ""
    source = (THREAD if threads else BLOCK).format(body=textwrap.indent(body, "    "), store=store)
    out, msl = result_of(make(source, name), threads)
    return body, out, msl_body(msl)


def msl_body(msl):
    return textwrap.dedent(msl[msl.index("{") + 1 : msl.rindex("}")]).strip("\n")


def signature(module, name):
    o = getattr(module, name)
    text = getattr(o, "__text_signature__", None)
    if text:
        return f"{name}({re.sub(r'^[(][$]module,? ?', '', text)}" if text.startswith("($module") else f"{name}{text}"
    try:
        return f"{name}{inspect.signature(o)}"
    except (TypeError, ValueError):
        return name


def doc(o):
    return inspect.cleandoc(o.__doc__ or "")


def joined(paragraph):
    """The lines of a paragraph as one; lines with columns, and those that are indented, stay lines."""
    lines = paragraph.splitlines()
    if any(re.search(r"\S {2,}\S", line) or line.startswith((" ", "- ", ">>> ")) for line in lines):
        return "  \n".join(lines)
    return " ".join(lines)


def prose(o):
    """A docstring as Markdown: what stands outside of backticks is plain text."""
    text = "\n\n".join(joined(p) for p in re.split(r"\n{2,}", doc(o)))
    return "".join(s if s.startswith("`") else re.sub(r"([\\\[\]<>*_#])", r"\\\1", s) for s in re.split(r"(`[^`]*`)", text))


def mk_page():
    left, lines = set(functions()), ["# Reference: mk", "", "The language of kernels. `from eas import mk`; the functions record into the kernel that is being traced.", ""]
    lines += ["The examples are the middle of a kernel: `i = mk.arange(0, 8)`; `a` and `b` are loaded from f32 arrays (1, 2, … and 64, 63, …), `n` and `m` from i32 arrays with the same numbers."]
    lines += ["In thread mode `t = mk.tid(0, 32)`. `r` is stored in `out`, which is shown.", ""]
    for heading, names in mk_examples.SECTIONS.items():
        chosen = sorted(left) if heading == "More" else [n for n in names.split() if n in left]
        left -= set(chosen)
        lines += [f"## {heading}", ""] if chosen else []
        for n in chosen:
            body, out, msl = run_example(n)
            lines += [f"### mk.{signature(mk, n)}", "", prose(getattr(mk, n)), "", "```python", body, "```", "", "```text", np.array2string(out, max_line_width=100), "```", ""]
            lines += ['??? note "Metal"', "", textwrap.indent(f"```metal\n{msl}\n```", "    "), ""]
    return "\n".join(lines)


def page(module, title, intro):
    lines = [f"# Reference: {title}", "", intro, ""]
    for n in sorted(public(module), key=str.lower):
        o = getattr(module, n)
        if not callable(o) or not doc(o):
            continue
        lines += [f"### {title}.{signature(module, n)}", "", prose(o), ""]
        if inspect.isclass(o) and o.__module__.startswith(("eas", "eager")):
            methods = [m for m in dir(o) if not m.startswith("_") and doc(getattr(o, m))]
            lines += [f"- `{m}`: {prose(getattr(o, m)).splitlines()[0]}" for m in methods] + [""]
    return "\n".join(lines)


def main(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mk.md").write_text(mk_page())
    (folder / "eas.md").write_text(page(eas, "eas", "Kernels, device tensors, interchange, tools. `import eas`."))
    (folder / "eager.md").write_text(page(eager, "eager", "Lazy tensors. `import eager`. The operations of the table are listed with their derivatives in [ops](../ops.md)."))


if __name__ == "__main__":
    main(sys.argv[1])
