"""Looking at what is going to run."""

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
        with open(path, "w") as f:
            f.write(self.svg)

    def __repr__(self):
        return f"<Drawing of {len(self.svg)} characters of SVG>"


def _tensors(x):
    return [t for t in tree_leaves(x) if isinstance(t, EagerTensor)]


def _show(what, args, kwargs, form):
    if callable(what) and not isinstance(what, EagerTensor):
        compiled = what if isinstance(what, CompiledFunction) else _compile(what)
        compiled(*args, **kwargs)
        return compiled.show(form)
    return eager_show(form, *_tensors(what))


def visualize(what, *args, fused=True, **kwargs):
    """Draws tensors that are not evaluated yet, or a function called with the arguments: kernels drawn around the operations, or the graph as it was recorded."""
    return Drawing(_show(what, args, kwargs, "svg-after" if fused else "svg-before"))


def trace(fn, *args, **kwargs):
    """Prints what a function does when it is compiled: kernels, buffers, peak memory."""
    print(_show(fn, args, kwargs, "text"))


def std_basis(tree):
    """The standard basis of a tree of tensors: a tree of the same structure whose tensors have one leading axis more, as long as there are elements in all of them;
    along it, each element of the tree is 1 once and all others are 0."""
    leaves, treedef = tree_flatten(tree)
    sizes = [int(t.size) for t in leaves]
    total, start, out = sum(sizes), 0, []
    for t, n in zip(leaves, sizes):
        rows = tensor_ops["eye"]((total, n), k=-start, dtype=t.dtype if t.dtype.kind == "f" else "float32")
        out.append(rows.reshape((total, *t.shape)))
        start += n
    return tree_unflatten(treedef, out)
