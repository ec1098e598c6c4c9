"""summary: a table of a model's modules, made by recording one call without computing anything."""

import math

from eas._eas import EagerTensor, eager_full, tensor_leaves, tree_map

from ..core.graph_utils import get_operations_topological
from ..core.pytree import traced
from .module import Module

__all__ = ["Summary", "summarize"]

# Operations that move data, or only change how it is laid out: they count no FLOPs.
_FREE = {
    "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "swap_axes", "matrix_transpose", "moveaxis", "broadcast_to", "slice", "slice_steps", "slice_tensor", "flip",
    "concatenate", "stack", "split", "chunk", "unbind", "tile", "repeat", "roll", "pad", "pad_constant", "gather", "take_along_axis", "index", "index_update", "scatter", "slice_set", "slice_update", "cast", "alias",
    "stop_gradient", "constant", "zeros", "ones", "full", "arange", "iota", "leaf", "const", "one_hot", "lift_batch_dims", "broadcast_batch_dims",
}  # fmt: skip
_REDUCE = {"reduce_sum", "mean", "reduce_max", "reduce_min", "prod", "var", "std", "logsumexp", "any", "all", "cumsum"}
_SEVERAL = {"softmax": 5, "logsoftmax": 5, "layer_norm": 8, "rms_norm": 5, "gelu": 8, "silu": 4, "sigmoid": 4, "tanh": 4}


def _count(shape):
    return math.prod(int(d) for d in shape)


def _flops(out, op, args):
    name = op.name
    n = _count(out.physical_shape)
    if name in _FREE:
        return 0
    shapes = [tuple(a.physical_shape) for a in args if hasattr(a, "physical_shape")]
    if name == "matmul":
        return 2 * n * int(shapes[0][-1])
    if name == "conv2d":
        return 2 * n * _count(shapes[1][:-1])
    if name == "conv2d_transpose":
        return 2 * _count(shapes[0]) * _count(shapes[1][:-1])
    if name in ("avg_pool2d", "max_pool2d") or name in _REDUCE:
        return _count(shapes[0])
    return n * _SEVERAL.get(name, 1)


class Row:
    """One module: its name, class, shapes of arguments and results, and parameters and FLOPs, each its own
    and those of the modules below it."""

    def __init__(self, name, module):
        self.name, self.kind, self.depth = name, type(module).__name__, name.count(".") + 1 if name else 0
        seen = {id(t): t for t in module.parameters()}
        self.parameters = sum(_count(t.shape) for t in seen.values())
        self.input = self.output = None
        self.flops = 0


def _shapes(tree):
    ts = [tuple(int(d) for d in t.shape) for t in tensor_leaves(tree)]
    return None if not ts else ts[0] if len(ts) == 1 else ts


class _Recorder:
    def __init__(self, model):
        self.rows, self.claimed, self.open = {id(m): Row(name, m) for name, m in model.named_modules()}, set(), []

    def call(self, m, args, kwargs):
        row = self.rows.get(id(m))
        if row is None:  # the module was made during a call
            return m.forward(*args, **kwargs)
        self.claim([args, kwargs])  # operations between the modules count for the module around them
        self.open.append(row)
        out = m.forward(*args, **kwargs)
        self.claim(out)
        self.open.pop()
        if row.input is None:
            row.input, row.output = _shapes([args, kwargs]), _shapes(out)
        return out

    def claim(self, tree):
        """Counts the operations behind these tensors, as far as they were not counted yet, for every module
        whose call is running."""
        roots = [t._impl for t in tensor_leaves(tree)]
        total = 0
        for op_id, outs in get_operations_topological(roots) if roots else []:
            if op_id in self.claimed:
                continue
            self.claimed.add(op_id)
            alive = [o for o in outs if o is not None]
            if alive and alive[0].op is not None:
                total += _flops(alive[0], alive[0].op, alive[0].parents)
        for row in self.open:
            row.flops += total


def _stand_in(x):
    if isinstance(x, EagerTensor):
        return eager_full(tuple(x.shape), 0, x.dtype)
    if isinstance(x, (tuple, list)) and all(isinstance(d, int) for d in x):
        return eager_full(tuple(x), 0.0, "float32")
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return eager_full(tuple(int(d) for d in x.shape), 0, str(x.dtype).rpartition(".")[2])
    return x


def summarize(model, inputs, kwargs):
    total = _count_unique(model)
    copy = traced(tree_map(lambda t: eager_full(tuple(t.shape), 0, t.dtype), model)).eval()
    recorder = _Recorder(copy)
    if inputs or kwargs:
        args = traced([_stand_in(x) for x in inputs])
        before, Module._hook = Module._hook, recorder.call
        try:
            copy(*args, **{k: _stand_in(v) for k, v in kwargs.items()})
        finally:
            Module._hook = before
    return Summary(list(recorder.rows.values()), total, bool(inputs or kwargs))


def _count_unique(model):
    trained = sum(_count(t.shape) for t in model.parameters() if t.requires_grad)
    every = sum(_count(t.shape) for t in model.parameters())
    return every, trained, sum(_count(t.shape) for t in model.buffers())


def _short(n):
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return str(n)


class Summary:
    """What summary() gives: `rows`, `parameters`, `trainable`, `buffers`, `flops`. Prints as a table."""

    def __init__(self, rows, totals, ran):
        self.rows, self.ran = rows, ran
        self.parameters, self.trainable, self.buffers = totals
        self.flops = rows[0].flops

    def __str__(self):
        head = ["module", "takes", "gives", "parameters", "FLOPs"]
        lines = [head]
        for r in self.rows:
            label = "  " * r.depth + (f"{r.name.rpartition('.')[2]}: {r.kind}" if r.name else r.kind)
            show = lambda s: "" if s is None else str(s)  # noqa: E731
            lines.append([label, show(r.input), show(r.output), f"{r.parameters:,}" if r.parameters else "-", _short(r.flops) if r.flops else "-"])
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        out = []
        for k, line in enumerate(lines):
            cells = [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
            out.append("  ".join(cells).rstrip())
            if k == 0:
                out.append("-" * (sum(widths) + 8))
        out.append("-" * (sum(widths) + 8))
        text = f"{self.parameters:,} parameters, {self.trainable:,} of them trained; {self.buffers:,} numbers in buffers"
        out.append(text + (f"; {_short(self.flops)} FLOPs" if self.ran else ""))
        return "\n".join(out)

    __repr__ = __str__
