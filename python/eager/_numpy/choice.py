"""Choosing elements: by masks, by conditions, by index; and indices of many dims as indices of one."""

import numpy as np

import eager as _e
from eas._eas import EagerTensor, SymbolicDim, constant, tensor_ops

from .._wrapped import Wrapped
from .parts import _known, _rank, _t, ravel

__all__ = [
    "argwhere", "choose", "clamp", "compress", "extract", "flatnonzero", "index_select", "masked_fill",
    "masked_select", "piecewise", "ravel_multi_index", "select", "take_along_dim", "unravel_index",
]  # fmt: skip

_ops = tensor_ops


def _number(value):
    """A NumPy number or array of rank 0 as a Python number, which must fit the dtype that it is combined
    with."""
    return value.item() if isinstance(value, (np.integer, np.floating, np.ndarray)) and not np.ndim(value) else value


def masked_fill(x, mask, value):
    """x with value where the mask holds."""
    x = _t(x)
    value = _e.astype(value, x.dtype) if isinstance(value, (EagerTensor, Wrapped)) else _number(value)
    out = _e.where(mask, value, x)
    return out if out.dtype == x.dtype else _e.astype(out, x.dtype)


def masked_select(x, mask):
    """The elements where the mask holds, in C order; evaluates the mask."""
    x, mask = _e.broadcast_arrays(x, mask)
    return x[mask]


def index_select(x, dim, index):
    return _e.gather(x, index, axis=dim)


def clamp(x, min=None, max=None):
    return _e.clip(x, min, max)


def select(condlist, choicelist, default=0):
    """The choice of the first condition that holds, else the default."""
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(f"eager.select: one choice for each condition, got {len(condlist)} conditions and {len(choicelist)} choices")
    out = default
    for c, v in zip(reversed(condlist), reversed(choicelist)):
        out = _e.where(c, v, out)
    return out


def piecewise(x, condlist, funclist, *args, **kw):
    """A function, or a number, for each condition; one more is for where none holds."""
    x = _t(x)
    if not isinstance(condlist, (list, tuple)):
        condlist = [condlist]
    conds = [_t(c) for c in condlist]
    funcs = list(funclist)
    if len(funcs) == len(conds) + 1:
        default = funcs.pop()
    elif len(funcs) == len(conds):
        default = 0
    else:
        raise ValueError(f"eager.piecewise: {len(conds)} conditions go with {len(conds)} or {len(conds) + 1} functions, got {len(funclist)}")

    def value(f):
        return f(x, *args, **kw) if callable(f) else f

    out = value(default)
    for c, f in zip(conds, funcs):
        out = _e.where(c, value(f), out)  # the last one that holds, as NumPy assigns them in turn
    out = _e.astype(out if isinstance(out, (EagerTensor, Wrapped)) else constant(out), x.dtype)
    return _ops["broadcast_to"](out, tuple(x.shape))


def choose(a, choices, mode="raise"):
    """For each place the element of that tensor among several whose number a has there."""
    a, choices = _t(a), _e.stack(_e.broadcast_arrays(*[_t(c) for c in choices]))
    n = _known("choose", choices.shape[0])
    if mode == "wrap":
        a = a % n
    elif mode == "clip":
        a = _e.clip(a, 0, n - 1)
    elif mode == "raise":
        if not bool(_e.all((a >= 0) & (a < n))):
            raise ValueError(f"eager.choose: an index is not in [0, {n}); mode='clip' or 'wrap' takes it")
    else:
        raise ValueError(f"eager.choose: mode must be 'raise', 'wrap' or 'clip', got {mode!r}")
    shape_ = np.broadcast_shapes(tuple(a.shape), tuple(choices.shape[1:]))
    a = _ops["broadcast_to"](a, shape_)
    choices = _ops["broadcast_to"](choices, (n, *shape_))
    return _e.squeeze(_e.take_along_axis(choices, _ops["unsqueeze"](a, 0), axis=0), axis=0)


def compress(condition, a, axis=None):
    """The elements of an axis where the condition holds; None: flattened."""
    a = ravel(a) if axis is None else _t(a)
    return _e.gather(a, flatnonzero(condition), axis=0 if axis is None else axis)


def extract(condition, arr):
    """The elements of the flattened tensor where the condition holds."""
    return _e.gather(ravel(arr), flatnonzero(condition), axis=0)


def flatnonzero(a):
    """The places of the elements that are not zero, in C order; evaluates."""
    return _e.nonzero(ravel(a))[0]


def argwhere(a):
    """The coordinates of the elements that are not zero, a row each; evaluates."""
    a = _t(a)
    return _e.stack(_e.nonzero(a), axis=1) if _rank(a) else _e.zeros((int(bool(a != 0)), 0), dtype="int64")


def unravel_index(indices, shape, order="C"):
    """Coordinates from places in C order (or, order "F", with the first axis fastest)."""
    left, out = _t(indices), []
    dims = (shape,) if isinstance(shape, (int, SymbolicDim)) else tuple(shape)
    for n in reversed(dims) if order == "C" else dims:
        out.append(_ops["mod"](left, n))
        left = _ops["floordiv"](left, n)
    return tuple(reversed(out)) if order == "C" else tuple(out)


def ravel_multi_index(multi_index, dims, mode="raise", order="C"):
    """Places in C order from coordinates."""
    parts = [_t(i) for i in multi_index]
    dims = tuple(dims)
    for k, n in enumerate(dims):
        if mode == "wrap":
            parts[k] = parts[k] % n
        elif mode == "clip":
            parts[k] = _e.clip(parts[k], 0, n - 1)
    out = 0
    for i, n in zip(parts, dims) if order == "C" else zip(reversed(parts), reversed(dims)):
        out = out * n + i
    return out


take_along_dim = tensor_ops["take_along_axis"]._called("take_along_dim")
