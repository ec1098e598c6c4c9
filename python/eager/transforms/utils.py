"""Looking at what is going to run."""

from eas._eas import EagerTensor, eager_show, tensor_ops, tree_leaves

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


def std_basis(x):
    """The standard basis of tensors like x: along the first axis, for each element of x a tensor that is 1 there and 0 elsewhere."""
    shape = tuple(x.shape)
    n = 1
    for d in shape:
        n = n * d
    return tensor_ops["eye"]((n, n), dtype=x.dtype).reshape((n, *shape))
