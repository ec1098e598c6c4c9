"""Shapes: joining, splitting, turning, and inserting or deleting along an axis."""

import builtins
import math

import numpy as np

import eager as _e
from eas._eas import EagerTensor, constant, tensor_ops

from .._wrapped import Wrapped
from .parts import _as, _axis, _key, _known, _rank, _t, ravel

__all__ = [
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "column_stack", "delete",
    "dsplit", "dstack", "expand", "fliplr", "flipud", "hsplit", "hstack", "insert", "movedim", "narrow",
    "ndim", "resize", "rollaxis", "rot90", "row_stack", "shape", "size", "trim_zeros", "vsplit", "vstack",
]  # fmt: skip

_ops = tensor_ops


def shape(a):
    return tuple(a.shape) if hasattr(a, "shape") else np.shape(a)


def ndim(a):
    return len(a.shape) if hasattr(a, "shape") else np.ndim(a)


def size(a, axis=None):
    """How many elements there are, or how many along an axis."""
    s = shape(a)
    return s[axis] if axis is not None else math.prod(s)


def expand(x, *sizes):
    """x broadcast to the sizes; -1 keeps a size. New axes go in front."""
    x = _t(x)
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    new = len(sizes) - _rank(x)
    if new < 0:
        raise ValueError(f"eager.expand: {len(sizes)} sizes for a tensor of {_rank(x)} dims")
    if -1 in tuple(sizes)[:new]:
        raise ValueError("eager.expand: -1 keeps the size of an axis, and a new one has none")
    return _ops["broadcast_to"](x, tuple(x.shape[i - new] if isinstance(n, int) and n == -1 else n for i, n in enumerate(sizes)))


def atleast_1d(*arys):
    return _atleast(arys, lambda x: x if _rank(x) else _ops["reshape"](x, (1,)))


def atleast_2d(*arys):
    return _atleast(arys, lambda x: x if _rank(x) > 1 else _ops["reshape"](x, (1, -1)) if x.size else _ops["reshape"](x, (1, 0)))


def atleast_3d(*arys):
    def one(x):
        if _rank(x) > 2:
            return x
        s = tuple(x.shape)
        return _ops["reshape"](x, (1, 1, 1) if not s else (1, s[0], 1) if len(s) == 1 else (*s, 1))

    return _atleast(arys, one)


def _atleast(arys, f):
    out = tuple(f(_t(a)) for a in arys)
    return out[0] if len(out) == 1 else out


def _sequence(fn, tup):
    if isinstance(tup, (EagerTensor, Wrapped)):
        return list(_e.unbind(tup, 0))
    tup = list(tup)
    if not tup:
        raise ValueError(f"eager.{fn}: at least one tensor is wanted")
    return tup


def vstack(tup, *, dtype=None):
    """Rows below each other; tensors of one dim are rows."""
    return _as(_e.concatenate([atleast_2d(x) for x in _sequence("vstack", tup)], axis=0), dtype)


row_stack = vstack


def hstack(tup, *, dtype=None):
    """Side by side: along the second axis, or the first of tensors of one dim."""
    xs = [atleast_1d(x) for x in _sequence("hstack", tup)]
    return _as(_e.concatenate(xs, axis=0 if _rank(xs[0]) == 1 else 1), dtype)


def dstack(tup):
    """One behind another: along the third axis."""
    return _e.concatenate([atleast_3d(x) for x in _sequence("dstack", tup)], axis=2)


def column_stack(tup):
    """Tensors of one dim as columns of a matrix, those of two side by side."""
    xs = [_t(x) for x in _sequence("column_stack", tup)]
    return _e.concatenate([_ops["unsqueeze"](atleast_1d(x), 1) if _rank(x) < 2 else x for x in xs], axis=1)


def block(arrays):
    """A tensor from nested lists of blocks: the innermost lists go along the last axis."""

    def depth(x):
        return 1 + builtins.max((depth(i) for i in x), default=0) if isinstance(x, list) else 0

    def leaves(x):
        return [t for i in x for t in leaves(i)] if isinstance(x, list) else [_t(x)]

    n = depth(arrays)
    rank = builtins.max([n, *(_rank(t) for t in leaves(arrays))])

    def put(x, level):
        if not isinstance(x, list):
            t = _t(x)
            return _ops["reshape"](t, (1,) * (rank - _rank(t)) + tuple(t.shape))
        return _e.concatenate([put(i, level + 1) for i in x], axis=rank - n + level)

    return put(arrays, 0)


def _cuts(fn, n, at):
    if isinstance(at, (int, np.integer)):
        if at < 1:
            raise ValueError(f"eager.{fn}: a number of sections above 0 is wanted, got {at}")
        q, r = builtins.divmod(_known(fn, n), int(at))
        ends = np.cumsum([0] + [q + 1] * r + [q] * (int(at) - r)).tolist()
    else:
        n = _known(fn, n)
        at = [int(i) for i in (at.tolist() if hasattr(at, "tolist") else at)]
        ends = [0] + [builtins.min(builtins.max(i + n if i < 0 else i, 0), n) for i in at] + [n]
    return list(zip(ends[:-1], ends[1:]))


def array_split(ary, indices_or_sections, axis=0):
    """A list of parts: so many, the first ones longer where it does not divide, or cut at indices."""
    ary = _t(ary)
    axis = _axis("array_split", axis, _rank(ary))
    return [ary[_key(_rank(ary), axis, slice(a, builtins.max(a, b)))] for a, b in _cuts("array_split", ary.shape[axis], indices_or_sections)]


def _equal_split(fn, ary, at, axis):
    n = ary.shape[axis]
    if isinstance(at, (int, np.integer)) and _known(fn, n) % at:
        raise ValueError(f"eager.{fn}: {n} elements do not divide into {at} equal parts; array_split takes unequal ones")
    return array_split(ary, at, axis)


def hsplit(ary, indices_or_sections):
    ary = _t(ary)
    return _equal_split("hsplit", ary, indices_or_sections, 0 if _rank(ary) == 1 else 1)


def vsplit(ary, indices_or_sections):
    return _equal_split("vsplit", _t(ary), indices_or_sections, 0)


def dsplit(ary, indices_or_sections):
    return _equal_split("dsplit", _t(ary), indices_or_sections, 2)


def rollaxis(a, axis, start=0):
    """The axis moved back until it lies before the one that is start."""
    a = _t(a)
    n = _rank(a)
    axis, start = _axis("rollaxis", axis, n), start + n if start < 0 else start
    return _e.moveaxis(a, axis, start - (start > axis))


def movedim(x, source, destination):
    return _e.moveaxis(x, source, destination)


def narrow(x, dim, start, length):
    """length elements of an axis, from start."""
    x = _t(x)
    start = start + x.shape[dim] if isinstance(start, int) and start < 0 else start
    return x[_key(_rank(x), _axis("narrow", dim, _rank(x)), slice(start, start + length))]


def rot90(m, k=1, axes=(0, 1)):
    """m turned k times by 90 degrees in the plane of two axes, from the first towards the second."""
    m = _t(m)
    a, b = (_axis("rot90", i, _rank(m)) for i in axes)
    if a == b:
        raise ValueError(f"eager.rot90: two different axes are wanted, got {tuple(axes)}")
    k %= 4
    if k == 0:
        return m
    if k == 2:
        return _e.flip(m, axis=(a, b))
    turned = _e.swap_axes(_e.flip(m, axis=b), a, b)
    return turned if k == 1 else _e.flip(_e.swap_axes(m, a, b), axis=b)


def fliplr(m):
    return _e.flip(_t(m), axis=1)


def flipud(m):
    return _e.flip(_t(m), axis=0)


def resize(a, new_shape):
    """The elements in another shape, from the beginning again where there are too few."""
    a = ravel(a)
    new_shape = (new_shape,) if isinstance(new_shape, int) else tuple(new_shape)
    n, have = math.prod(new_shape), _known("resize", a.shape[0])
    if n == 0 or have == 0:
        return _e.zeros(new_shape, dtype=a.dtype)
    return _ops["reshape"](_e.tile(a, (-(-n // have),))[:n], new_shape)


def append(arr, values, axis=None):
    """values behind arr along an axis; None: both flattened."""
    if axis is None:
        return _e.concatenate([ravel(arr), ravel(values)], axis=0)
    return _e.concatenate([_t(arr), _t(values)], axis=axis)


def insert(arr, obj, values, axis=None):
    """values before the indices obj of an axis (an int, a slice or ints); None: flattened."""
    arr = ravel(arr) if axis is None else _t(arr)
    axis = 0 if axis is None else _axis("insert", axis, _rank(arr))
    n = _known("insert", arr.shape[axis])
    single = isinstance(obj, (int, np.integer))
    at = np.arange(n)[obj] if isinstance(obj, slice) else np.asarray(obj)
    if at.dtype == bool:
        at = np.flatnonzero(at)
    at = np.atleast_1d(at).astype(np.int64)
    if at.size and (at.max() > n or at.min() < -n):
        raise IndexError(f"eager.insert: index {int(at[np.argmax(np.abs(at))])} is out of range for an axis of size {n}")
    at = np.where(at < 0, at + n, at)
    values = _e.astype(_t(values), arr.dtype)
    if single or at.size == 1:
        if single and _rank(values) >= 1 and _rank(arr) > 1:
            values = _e.moveaxis(_ops["reshape"](values, (1,) * (_rank(arr) - _rank(values)) + tuple(values.shape)), 0, axis)
        others = [s for i, s in enumerate(arr.shape) if i != axis]
        v = values
        while _rank(v) < _rank(arr):
            v = _ops["unsqueeze"](v, 0)
        want = list(others)
        want.insert(axis, v.shape[axis])
        v = _ops["broadcast_to"](v, want)
        p = int(at[0])
        return _e.concatenate([arr[_key(_rank(arr), axis, slice(None, p))], v, arr[_key(_rank(arr), axis, slice(p, None))]], axis=axis)
    order = np.argsort(at, kind="stable")
    places = at.copy()
    places[order] += np.arange(len(at))
    want = list(arr.shape)
    want[axis] = len(at)
    values = _ops["broadcast_to"](values, want)
    source = np.empty(n + len(at), np.int64)
    taken = np.zeros(n + len(at), bool)
    taken[places] = True
    source[places] = n + np.arange(len(at))
    source[~taken] = np.arange(n)
    return _e.gather(_e.concatenate([arr, values], axis=axis), constant(source), axis=axis)


def delete(arr, obj, axis=None):
    """arr without the indices obj of an axis (an int, a slice, ints or a mask); None: flattened."""
    arr = ravel(arr) if axis is None else _t(arr)
    axis = 0 if axis is None else _axis("delete", axis, _rank(arr))
    n = _known("delete", arr.shape[axis])
    keep = np.ones(n, bool)
    index = obj if isinstance(obj, slice) else np.asarray(obj)
    if not isinstance(obj, slice) and index.dtype != bool:
        index = index.astype(np.int64)
        if index.size and (index.max() >= n or index.min() < -n):
            raise IndexError(f"eager.delete: index {index.max() if index.max() >= n else index.min()} is out of range for an axis of size {n}")
    keep[index] = False
    return _e.gather(arr, constant(np.flatnonzero(keep)), axis=axis)


def trim_zeros(filt, trim="fb", axis=None):
    """filt without the zeros at the front ("f") and the back ("b") of an axis, of several or (None) of
    all."""
    filt = _t(filt)
    rank = len(filt.shape)
    axes = range(rank) if axis is None else [a % rank for a in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    places = [at.numpy() for at in _e.nonzero(filt)] if rank else []
    key = [slice(None)] * rank
    for a in axes:
        at = places[a]
        lo = int(at.min()) if len(at) and "f" in trim.lower() else 0
        hi = int(at.max()) + 1 if len(at) and "b" in trim.lower() else filt.shape[a]
        key[a] = slice(lo, hi) if len(at) else slice(0, 0)
    return filt[tuple(key)] if rank else filt
