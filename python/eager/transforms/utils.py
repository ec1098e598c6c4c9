"""Showing the program that is going to run."""

import os
import sys

from eas._eas import EagerTensor, eager_show, tensor_ops, tree_flatten, tree_leaves, tree_unflatten

from .compile import CompiledFunction
from .compile import compile as _compile

__all__ = ["Drawing", "std_basis", "trace", "visualize"]


class Drawing:
    """A graph as SVG: shown by notebooks, written by save()."""

    def __init__(self, svg):
        self.svg = svg

    def _repr_svg_(self):
        return self.svg

    def _repr_html_(self):
        return self.svg

    def save(self, path):
        """Writes the drawing: SVG, or PNG (and PDF) by the end of the name, which needs the package cairosvg.
        """
        path = os.fspath(path)
        end = os.path.splitext(path)[1].lower()
        if end in (".png", ".pdf"):
            try:
                import cairosvg
            except ImportError:
                raise RuntimeError(f"eager.visualize: {end} needs the package cairosvg (pip install cairosvg); .svg needs nothing") from None
            convert = cairosvg.svg2png if end == ".png" else cairosvg.svg2pdf
            convert(bytestring=self.svg.encode(), write_to=path, **({"scale": 2} if end == ".png" else {}))
        elif end in (".svg", ".html"):
            with open(path, "w", encoding="utf-8") as f:
                f.write(self.svg)
        else:
            raise ValueError(f"eager.visualize: {path!r} should end in .svg, .html, .png or .pdf")
        return self

    def __repr__(self):
        return f"<Drawing of {len(self.svg)} characters of SVG>"


def _tensors(x):
    return [t for t in tree_leaves(x) if isinstance(t, EagerTensor)]


def _names(what, depth):
    """Names of tensors for a drawing: keys of the tree that is shown, and the caller's variables."""
    frame, names = sys._getframe(depth), {}
    for scope in (frame.f_globals, frame.f_locals):
        for name, v in scope.items():
            if isinstance(v, EagerTensor) and not name.startswith("_"):
                names[name] = v
            elif isinstance(v, (dict, list, tuple)) and len(v) <= 64 and not name.startswith("_"):
                leaves, treedef = tree_flatten(v)
                names.update({name + treedef.path(i): t for i, t in enumerate(leaves) if isinstance(t, EagerTensor)})
    return names


def _show(what, args, kwargs, form, depth=3):
    if callable(what) and not isinstance(what, EagerTensor):
        compiled = what if isinstance(what, CompiledFunction) else _compile(what)
        compiled(*args, **kwargs)
        return compiled.show(form)
    tensors = _tensors(what)
    if not tensors:
        raise TypeError(f"eager.visualize and eager.trace take tensors, or a function and its arguments; got {type(what).__name__}")
    return eager_show(form, _names(what, depth), *tensors)


def visualize(what, *args, fused=True, path=None, **kwargs):
    """Draws tensors that are not evaluated yet, or a function called with the arguments: kernels with the
    operations in them, or (fused=False) the graph as it was recorded. path, or for tensors the second
    argument: a file to write, .svg or .png.

    eager.visualize(y, "y.svg")
    eager.visualize(model, x, params, path="model.png")
    """
    if path is None and args and isinstance(args[0], (str, os.PathLike)) and not (callable(what) and not isinstance(what, EagerTensor)):
        path, args = args[0], args[1:]
    drawing = Drawing(_show(what, args, kwargs, "svg-after" if fused else "svg-before"))
    return drawing if path is None else drawing.save(path)


def trace(fn, *args, **kwargs):
    """Prints what a function does when it is compiled, or what evaluating tensors will do: kernels, buffers,
    peak memory."""
    print(_show(fn, args, kwargs, "text"))


def std_basis(tree):
    """The standard basis of a tree of tensors: a tree of the same structure whose tensors have one leading
    axis more, as long as there are elements in all of them; along it, each element of the tree is 1 once and
    all others are 0."""
    leaves, treedef = tree_flatten(tree)
    sizes = [int(t.size) for t in leaves]
    total, start, out = sum(sizes), 0, []
    for t, n in zip(leaves, sizes):
        rows = tensor_ops["eye"]((total, n), k=-start, dtype=t.dtype if t.dtype.kind == "f" else "float32")
        out.append(rows.reshape((total, *t.shape)))
        start += n
    return tree_unflatten(treedef, out)
