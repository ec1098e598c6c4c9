"""Partial sorting, sets, and functions that apply a function along axes or to each element."""

import numpy as np

import eager as _e
from eas._eas import tensor_ops

from .._wrapped import Wrapped
from .choice import flatnonzero
from .parts import _axis, _is_float, _rank, _t, ravel

__all__ = [
    "apply_along_axis", "apply_over_axes", "argpartition", "in1d", "intersect1d", "isin", "lexsort",
    "partition", "setdiff1d", "setxor1d", "union1d", "unique", "vectorize",
]  # fmt: skip

_ops = tensor_ops

# ---- order and sets ----
def partition(a, kth, axis=-1):
    """a with element kth where it would be if sorted, smaller ones before and larger ones after; here fully
    sorted."""
    a = ravel(a) if axis is None else _t(a)
    return _e.sort(a, axis=-1 if axis is None else axis)


def argpartition(a, kth, axis=-1):
    """The indices that partition a."""
    a = ravel(a) if axis is None else _t(a)
    return _e.argsort(a, axis=-1 if axis is None else axis)


def lexsort(keys, axis=-1):
    """The indices that sort by the last key, then by the one before, ..."""
    keys = [_t(k) for k in (keys if isinstance(keys, (list, tuple)) else _e.unbind(keys, 0))]
    order = _e.argsort(keys[0], axis=axis)
    for k in keys[1:]:
        order = _e.take_along_axis(order, _e.argsort(_e.take_along_axis(k, order, axis=axis), axis=axis), axis=axis)
    return order


def unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True):
    """The different elements, sorted; where each is first, which one each element is, how often each is
    there. Evaluates. axis: different slices."""
    ar = _t(ar)
    if axis is not None or isinstance(ar, Wrapped):
        out = np.unique(ar.numpy(), True, True, True, axis=axis, equal_nan=equal_nan)
        parts = [_e.asarray(o) for o in out]
    else:
        r = _e.unique_all(ar)
        parts = [r.values, r.indices, r.inverse_indices, r.counts]
        if equal_nan and _is_float(ar) and int(_e.sum(_e.isnan(ar))) > 1:
            out = np.unique(ar.numpy(), True, True, True, equal_nan=True)
            parts = [_e.asarray(o) for o in out]
    chosen = [parts[0]] + [p for p, on in zip(parts[1:], (return_index, return_inverse, return_counts)) if on]
    return chosen[0] if len(chosen) == 1 else tuple(chosen)


def isin(element, test_elements, assume_unique=False, invert=False):
    """Is each element among the test elements?"""
    element, test = _t(element), ravel(test_elements)
    dtype = _e.result_type(element, test)
    element, test = _e.astype(element, dtype), _e.astype(test, dtype)
    n = test.shape[0]
    if n == 0:
        out = _e.zeros(tuple(element.shape), dtype="bool")
    elif dtype.kind == "c" or (isinstance(n, int) and n <= 16):
        out = _e.any(_ops["unsqueeze"](element, -1) == test, axis=-1)
    else:
        s = _e.sort(test)
        at = _e.clip(_e.searchsorted(s, element), 0, n - 1)
        out = s[at] == element
    return ~out if invert else out


def in1d(ar1, ar2, assume_unique=False, invert=False):
    return isin(ravel(ar1), ar2, assume_unique, invert)


def union1d(ar1, ar2):
    """The elements of both, each once, sorted; evaluates."""
    return unique(_e.concatenate([ravel(ar1), ravel(ar2)], axis=0))


def intersect1d(ar1, ar2, assume_unique=False, return_indices=False):
    """The elements that are in both, sorted; evaluates."""
    a, ia = unique(ravel(ar1), return_index=True)
    b, ib = unique(ravel(ar2), return_index=True)
    at = flatnonzero(isin(a, b))
    out = a[at]
    return (out, ia[at], ib[_e.searchsorted(b, _e.astype(out, b.dtype))]) if return_indices else out


def setdiff1d(ar1, ar2, assume_unique=False):
    """The elements of the first that are not in the second; evaluates."""
    a = ravel(ar1) if assume_unique else unique(ravel(ar1))
    return a[flatnonzero(isin(a, ar2, invert=True))]


def setxor1d(ar1, ar2, assume_unique=False):
    """The elements that are in exactly one of both, sorted; evaluates."""
    return union1d(setdiff1d(ar1, ar2), setdiff1d(ar2, ar1))


# ---- functions of functions ----
def apply_along_axis(func1d, axis, arr, *args, **kwargs):
    """func1d of each row along an axis, by vmap: func1d is traced once."""
    arr = _t(arr)
    rank = _rank(arr)
    axis = _axis("apply_along_axis", axis, rank)
    f = lambda row: func1d(row, *args, **kwargs)  # noqa: E731
    for _ in range(rank - 1):
        f = _e.vmap(f)
    out = f(_e.moveaxis(arr, axis, -1))
    own = _rank(out) - (rank - 1)
    return _e.moveaxis(out, tuple(range(rank - 1, rank - 1 + own)), tuple(range(axis, axis + own)))


def apply_over_axes(func, a, axes):
    """func(a, axis) for each axis in turn, with dims kept."""
    a = _t(a)
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        r = func(a, axis)
        a = r if _rank(r) == _rank(a) else _ops["unsqueeze"](r, _axis("apply_over_axes", axis, _rank(a)))
    return a


def vectorize(pyfunc, *, excluded=(), signature=None):
    """A function of numbers as one of tensors: arguments broadcast, and pyfunc is traced once under vmap.
    signature "(n),(n)->()": it takes vectors."""
    cores = (
        [len([d for d in part.split(",") if d.strip()]) for part in signature.split("->")[0].replace(" ", "").strip("()").split("),(")]
        if signature
        else None
    )

    def f(*args):
        tensors = [(i, _t(a)) for i, a in enumerate(args) if i not in excluded]
        core = cores or [0] * len(tensors)
        batch = np.broadcast_shapes(*(tuple(int(d) for d in t.shape)[: _rank(t) - c] for (_, t), c in zip(tensors, core)))
        wide = {i: _ops["broadcast_to"](t, (*batch, *tuple(t.shape)[_rank(t) - c :])) for (i, t), c in zip(tensors, core)}
        g = lambda *xs: pyfunc(*[xs[list(wide).index(i)] if i in wide else a for i, a in enumerate(args)])  # noqa: E731
        for _ in batch:
            g = _e.vmap(g)
        return g(*wide.values())

    f.__name__, f.__doc__ = getattr(pyfunc, "__name__", "vectorized"), pyfunc.__doc__
    return f
