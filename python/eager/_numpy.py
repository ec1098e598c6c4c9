"""NumPy's vocabulary: functions that users of NumPy, JAX and torch type, written in the operations of the table. Names and arguments are NumPy's; results stay lazy, and have
derivatives wherever the operations they are made of do. Functions whose result's size depends on the data (argwhere, unique, delete by a mask, ...) evaluate."""

import builtins
import math
import operator

import numpy as np

import eager as _e
from eas._eas import EagerTensor, SymbolicDim, constant, tensor_ops

from ._wrapped import Wrapped

__all__ = [
    "allclose", "amax", "amin", "append", "apply_along_axis", "apply_over_axes", "argpartition", "argwhere", "around", "array", "array_equal", "array_equiv", "array_split",
    "asanyarray", "ascontiguousarray", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bartlett", "bincount", "bitwise_count", "bitwise_not", "blackman", "block", "choose",
    "column_stack", "compress", "convolve", "copy", "corrcoef", "correlate", "cov", "cross", "deg2rad", "degrees", "delete", "diag", "diag_indices", "diagflat", "digitize", "divmod",
    "dsplit", "dstack", "ediff1d", "expand", "extract", "fabs", "fill_diagonal", "fix", "flatnonzero", "fliplr", "flipud", "float_power", "fmax", "fmin", "fmod", "frexp",
    "fromfunction", "fromiter", "gcd", "geomspace", "gradient", "hamming", "hanning", "heaviside", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "hsplit", "hstack",
    "i0", "identity", "in1d", "indices", "inner", "insert", "interp", "intersect1d", "invert", "isclose", "iscomplex", "iscomplexobj", "isin", "isneginf", "isposinf", "isreal", "isrealobj",
    "isscalar", "issubdtype", "ix_", "kaiser", "kron", "lcm", "ldexp", "left_shift", "lexsort", "logaddexp2", "logspace", "masked_fill", "matvec", "median", "mgrid", "modf", "nan_to_num",
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "ndim",
    "ogrid", "packbits", "partition", "percentile", "piecewise", "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval", "promote_types", "ptp",
    "quantile", "rad2deg", "radians", "ravel", "ravel_multi_index", "resize", "right_shift", "rint", "rollaxis", "roots", "rot90", "row_stack", "select", "setdiff1d", "setxor1d", "shape",
    "sinc", "size", "spacing", "take_along_dim", "trapezoid", "tril_indices", "tril_indices_from", "trim_zeros", "triu_indices", "triu_indices_from", "union1d", "unique",
    "unpackbits", "unravel_index", "unwrap", "vander", "vdot", "vecmat", "vectorize", "vsplit", "vstack", "index_select", "masked_select",     "trapz", "clamp", "narrow", "movedim", "tensor", "cumulative_trapezoid", ]  # fmt: skip

_ops = tensor_ops


def _t(x):
    """A tensor of x; complex data gives a complex one."""
    return x if isinstance(x, (EagerTensor, Wrapped)) else constant(x)


def _rank(x):
    return len(x.shape)


def _axis(fn, axis, rank):
    a = operator.index(axis)
    if not -rank <= a < rank:
        raise ValueError(f"eager.{fn}: axis {a} of a tensor of {rank} dims")
    return a % rank


def _is_float(x):
    return x.dtype.kind in "fc"


def _floats(x):
    """Integers and bools as floats, as NumPy's functions that divide see them."""
    x = _t(x)
    return x if _is_float(x) else _ops["cast"](x, dtype="float32")


def _as(x, dtype):
    return x if dtype is None else _e.astype(x, dtype)


def _key(rank, axis, item):
    key = [slice(None)] * rank
    key[axis] = item
    return tuple(key)


def _known(fn, n):
    if isinstance(n, int):
        return n
    try:
        return int(n)
    except (TypeError, ValueError):
        raise ValueError(f"eager.{fn}: the size {n} is a symbol here; give the size as a number") from None


# ---- making ----
def array(object, dtype=None, *, copy=True, ndmin=0, device=None):
    """A tensor of the data: arrays, nested lists (tensors among them too), numbers. ndmin: at least so many dims, new ones in front."""
    x = object
    if isinstance(x, (list, tuple)) and _has_tensor(x):
        x = _nested(x)
    x = _e.asarray(x, dtype=dtype, device=device, copy=copy or None)
    while _rank(x) < ndmin:
        x = _ops["unsqueeze"](x, 0)
    return x


tensor = array


def _has_tensor(x):
    return isinstance(x, (EagerTensor, Wrapped)) or (isinstance(x, (list, tuple)) and builtins.any(_has_tensor(i) for i in x))


def _nested(x):
    return _e.stack([_nested(i) for i in x]) if isinstance(x, (list, tuple)) else _t(x)


def asanyarray(a, dtype=None):
    """A tensor of the data: itself if it is one."""
    return _e.asarray(a, dtype=dtype)


ascontiguousarray = asanyarray


def copy(a):
    """Another handle of the same data: assignments to elements of one do not show in the other."""
    return _e.asarray(a, copy=True)


def identity(n, dtype=None):
    """The n x n matrix with ones on the diagonal."""
    return _e.eye(n, dtype=dtype)


def logspace(start, stop, num=50, endpoint=True, base=10.0, dtype=None):
    """base to the power of num evenly spaced numbers from start to stop."""
    if isinstance(base, (int, float)):
        base = constant(float(base), dtype="float64" if dtype in ("float64",) else "float32")
    return _as(_ops["pow"](base, _e.linspace(start, stop, num, endpoint=endpoint, dtype=base.dtype)), dtype)


def geomspace(start, stop, num=50, endpoint=True, dtype=None):
    """num numbers from start to stop, each the same multiple of the one before."""
    start, stop = _floats(start), _floats(stop)
    sign = _ops["sign"](start)
    lo, hi = _ops["log"](start * sign), _ops["log"](stop * sign)
    n = _known("geomspace", num)
    steps = builtins.max(n - 1 if endpoint else n, 1)
    t = _e.arange(n, dtype=start.dtype) / steps
    t = t.reshape((n, *(1,) * builtins.max(_rank(lo), _rank(hi))))
    out = _ops["exp"](lo + (hi - lo) * t) * sign
    if n:
        out = out.at[0].set(start + _ops["mul"](stop, 0))
    if endpoint and n > 1:
        out = out.at[-1].set(stop + _ops["mul"](start, 0))
    return _as(out, dtype)


def fromfunction(function, shape, *, dtype="float32", **kwargs):
    """function of the coordinates of each element."""
    return function(*indices(shape, dtype=dtype), **kwargs)


def fromiter(iter, dtype, count=-1):
    """A tensor of one dim with what the iterator gives."""
    return _e.asarray(np.fromiter(iter, dtype=_e.DType(dtype).numpy, count=count))


def indices(dimensions, dtype="int64", sparse=False):
    """The coordinates of a grid: one tensor of len(dimensions) + 1 dims, or (sparse) a tuple of broadcastable ones."""
    dims = tuple(dimensions)
    parts = [_e.arange(n, dtype=dtype).reshape([n if i == k else 1 for i in range(len(dims))]) for k, n in enumerate(dims)]
    if sparse:
        return tuple(parts)
    if not dims:
        return _e.zeros((0,), dtype=dtype)
    return _e.stack([_ops["broadcast_to"](p, dims) for p in parts])


class _Grid:
    def __init__(self, name, dense):
        self._name, self._dense = name, dense

    def __getitem__(self, key):
        several = isinstance(key, tuple)
        parts = []
        for s in key if several else (key,):
            start, step = s.start or 0, 1 if s.step is None else s.step
            parts.append(_e.linspace(start, s.stop, int(abs(step))) if isinstance(step, complex) else _e.arange(start, s.stop, step))
        if not several:
            return parts[0]
        grid = _e.meshgrid(*parts, indexing="ij") if self._dense else ix_(*parts)
        return _e.stack(grid) if self._dense else tuple(grid)

    def __repr__(self):
        return f"eager.{self._name}"


mgrid, ogrid = _Grid("mgrid", True), _Grid("ogrid", False)


def ix_(*args):
    """Broadcastable index tensors: x[ix_(rows, columns)] is the grid of them."""
    out = []
    for k, a in enumerate(args):
        a = _t(a)
        if _rank(a) != 1:
            raise ValueError(f"eager.ix_: argument {k} has {_rank(a)} dims; each has one")
        if a.dtype == "bool":
            a = flatnonzero(a)
        out.append(_ops["reshape"](a, [-1 if i == k else 1 for i in range(len(args))]))
    return tuple(out)


def diag(v, k=0):
    """The k-th diagonal of a matrix, or the matrix with v on its k-th diagonal."""
    v = _t(v)
    if _rank(v) == 2:
        return _e.diagonal(v, offset=k)
    if _rank(v) != 1:
        raise ValueError(f"eager.diag: a tensor of 1 or 2 dims is wanted, this one has {_rank(v)}")
    n = v.shape[0]
    m = n + abs(k)
    row = _ops["pad"](_ops["unsqueeze"](v, 1), None, [0, 0, 0, m], "constant") if isinstance(v, EagerTensor) else None
    if row is None:
        return _e.complex(diag(_e.real(v), k), diag(_e.imag(v), k))
    out = _ops["reshape"](row, (n * (m + 1),))[: n * m]  # each row one element further right
    out = _ops["reshape"](out, (n, m))
    before = [0, 0] if k >= 0 else [-k, 0]
    out = _ops["pad"](out, None, [before[0], m - n - before[0], k if k > 0 else 0, 0], "constant")
    return out[:, :m]


def diagflat(v, k=0):
    """The matrix with the elements of v on its k-th diagonal."""
    return diag(ravel(v), k)


def _matrix_mask(fn, rows, cols, k, upper):
    n = _known(fn, rows)
    i, j = (np.triu_indices if upper else np.tril_indices)(n, k, None if cols is None else _known(fn, cols))
    return constant(i.astype(np.int64)), constant(j.astype(np.int64))


def tril_indices(n, k=0, m=None):
    """Row and column numbers of the elements on and below the k-th diagonal of an n x m matrix."""
    return _matrix_mask("tril_indices", n, m, k, False)


def triu_indices(n, k=0, m=None):
    """Row and column numbers of the elements on and above the k-th diagonal of an n x m matrix."""
    return _matrix_mask("triu_indices", n, m, k, True)


def tril_indices_from(arr, k=0):
    return tril_indices(arr.shape[-2], k, arr.shape[-1])


def triu_indices_from(arr, k=0):
    return triu_indices(arr.shape[-2], k, arr.shape[-1])


def diag_indices(n, ndim=2):
    """Indices of the main diagonal of an array with ndim dims of size n."""
    i = _e.arange(n)
    return (i,) * ndim


def fill_diagonal(a, val, wrap=False, *, inplace=False):
    """a with val on its main diagonal, as a new tensor; inplace=True assigns to a instead."""
    a = _t(a)
    n = builtins.min(_known("fill_diagonal", d) for d in a.shape)
    i = _e.arange(n)
    if wrap and _rank(a) == 2 and a.shape[0] > a.shape[1]:
        rows, cols = int(a.shape[0]), int(a.shape[1])
        flat = np.arange(0, rows * cols, cols + 1)
        where_ = constant(np.stack([flat // cols, flat % cols]).astype(np.int64))
        out = a.at[where_[0], where_[1]].set(val)
    else:
        out = a.at[(i,) * _rank(a)].set(val)
    return _e.rebind(a, out) if inplace else out


def _window(n, f):
    n = _known("window", n)
    if n < 1:
        return _e.zeros((0,))
    if n == 1:
        return _e.ones((1,))
    return f(_e.arange(n, dtype="float64"), n - 1).astype("float32")


def hanning(M):
    """The Hann window of M points, with both ends."""
    return _window(M, lambda k, n: 0.5 - 0.5 * _ops["cos"](k * (2 * math.pi / n)))


def hamming(M):
    """The Hamming window of M points."""
    return _window(M, lambda k, n: 0.54 - 0.46 * _ops["cos"](k * (2 * math.pi / n)))


def blackman(M):
    """The Blackman window of M points."""
    return _window(M, lambda k, n: 0.42 - 0.5 * _ops["cos"](k * (2 * math.pi / n)) + 0.08 * _ops["cos"](k * (4 * math.pi / n)))


def bartlett(M):
    """The triangular window of M points."""
    return _window(M, lambda k, n: 1 - _ops["abs"](k * (2 / n) - 1))


def kaiser(M, beta):
    """The Kaiser window of M points."""
    return _window(
        M, lambda k, n: i0(beta * _ops["sqrt"](_ops["maximum"](1 - (k * (2 / n) - 1) ** 2, 0.0))) / i0(constant(float(beta), dtype="float64"))
    )


_I0_SMALL = (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.360768e-1, 0.45813e-2)


def i0(x):
    """The modified Bessel function of the first kind and order 0, by its power series below 20 and its expansion at infinity above."""
    x = _ops["abs"](_floats(x))
    y = _ops["minimum"](x, 20.0)
    q, term, total = (y / 2) ** 2, 1.0, 1.0
    for k in range(1, 45):
        term = term * q / (k * k)
        total = total + term
    big = _ops["maximum"](x, 20.0)
    t, series = 1.0, 1.0
    for k in range(1, 12):
        t = t * (2 * k - 1) ** 2 / (8 * k * big)
        series = series + t
    return _ops["where"](x < 20.0, total, _ops["exp"](big) / _ops["sqrt"](2 * math.pi * big) * series)


# ---- shapes ----
def shape(a):
    return tuple(a.shape) if hasattr(a, "shape") else np.shape(a)


def ndim(a):
    return len(a.shape) if hasattr(a, "shape") else np.ndim(a)


def size(a, axis=None):
    """How many elements there are, or how many along an axis."""
    s = shape(a)
    return s[axis] if axis is not None else math.prod(s)


def ravel(a, order="C"):
    """All elements in one dim. order "F": the first axis fastest."""
    a = _t(a)
    if order in ("F",):
        a = _ops["permute"](a, tuple(reversed(range(_rank(a)))))
    elif order not in ("C", "K", "A"):
        raise ValueError(f"eager.ravel: order must be 'C', 'F', 'A' or 'K', got {order!r}")
    return _ops["reshape"](a, (-1,)) if a.size != 0 else _ops["reshape"](a, (0,))


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
    """Turned k times by 90 degrees in the plane of two axes, from the first towards the second."""
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


def trim_zeros(filt, trim="fb"):
    """Without the zeros at the front ("f") and the back ("b")."""
    filt = _t(filt)
    at = flatnonzero(filt).numpy()
    if not len(at):
        return filt[:0]
    lo = int(at[0]) if "f" in trim.lower() else 0
    hi = int(at[-1]) + 1 if "b" in trim.lower() else filt.shape[0]
    return filt[lo:hi]


# ---- choice ----
def _number(value):
    """A NumPy number or array of rank 0 as Python's, which must fit what it meets."""
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
    """Of several tensors, for each place the element of that whose number a has there."""
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


# ---- element by element ----
def rad2deg(x):
    return _floats(x) * (180 / math.pi)


def deg2rad(x):
    return _floats(x) * (math.pi / 180)


degrees, radians = rad2deg, deg2rad


def sinc(x):
    """sin(pi x) / (pi x), 1 at 0."""
    x = _floats(x) * math.pi
    near = _ops["abs"](x) < 0.25
    y = _ops["where"](near, x, 0.0) ** 2
    series = 1 - y / 6 * (1 - y / 20 * (1 - y / 42))
    far = _ops["where"](near, 1.0, x)
    return _ops["where"](near, series, _ops["sin"](far) / far)


def heaviside(x1, x2):
    """0 below 0, x2 at 0, 1 above."""
    x1 = _floats(x1)
    return _ops["where"](_e.isnan(x1), x1, _ops["where"](x1 == 0, x2, _ops["cast"](x1 > 0, dtype=x1.dtype)))


def fabs(x):
    return _ops["abs"](_floats(x))


def fix(x):
    """Rounded towards zero."""
    return _e.trunc(x)


def rint(x):
    return _ops["round"](_floats(x))


def around(a, decimals=0):
    """Rounded to so many decimals; halves to the even one."""
    a = _t(a)
    if decimals == 0:
        return _e.round(a)
    if not _is_float(a):
        if decimals > 0:
            return a
        f = 10**-decimals
        down = a // f
        rest = a - down * f
        up = (2 * rest > f) | ((2 * rest == f) & (down % 2 == 1))
        return (down + _ops["cast"](up, dtype=a.dtype)) * f
    f = 10.0 ** abs(decimals)
    return _e.round(a * f) / f if decimals > 0 else _e.round(a / f) * f


def fmax(x1, x2):
    """The larger one; a NaN gives way."""
    return _e.where(_e.isnan(x1), x2, _e.where(_e.isnan(x2), x1, _e.maximum(x1, x2)))


def fmin(x1, x2):
    """The smaller one; a NaN gives way."""
    return _e.where(_e.isnan(x1), x2, _e.where(_e.isnan(x2), x1, _e.minimum(x1, x2)))


def fmod(x1, x2):
    """The remainder with the sign of x1, as C has it."""
    x1, x2 = _t(x1), _t(x2)
    r = _e.abs(x1) % _e.abs(x2)
    return _e.where(x1 < 0, -r, r) if r.dtype.kind != "u" else r


def divmod(x1, x2):
    return _e.floordiv(x1, x2), _e.mod(x1, x2)


def modf(x):
    """Fraction and whole part, both with the sign of x."""
    x = _floats(x)
    whole = _e.trunc(x)
    return _e.copysign(_ops["where"](_e.isinf(x), 0.0, x - whole), x), whole


def frexp(x):
    """Mantissa in [0.5, 1) and exponent: x = mantissa * 2**exponent."""
    x = _floats(x)
    plain = _e.isfinite(x) & (x != 0)
    a = _ops["abs"](_ops["where"](plain, x, 1.0))
    small = a < _tiny(x.dtype)
    a = _ops["where"](small, a * 2.0**60, a)
    e = _ops["floor"](_ops["log2"](a))
    m = _scaled(a, -e)
    e = _ops["where"](m >= 2, e + 1, _ops["where"](m < 1, e - 1, e))
    m = _ops["where"](m >= 2, m / 2, _ops["where"](m < 1, m * 2, m)) / 2
    e = e + 1 - _ops["where"](small, 60.0, 0.0)
    return _ops["where"](plain, _e.copysign(m, x), x), _ops["cast"](_ops["where"](plain, e, 0.0), dtype="int32")


def _tiny(dtype):
    return _e.finfo(dtype).smallest_normal


def _scaled(x, e):
    """x * 2**e for whole e, in two steps so that no power overflows."""
    half = _ops["floor"](e / 2)
    return x * _exact_exp2(half, x.dtype) * _exact_exp2(e - half, x.dtype)


def _exact_exp2(e, dtype):
    return _ops["round"](_ops["exp2"](_ops["maximum"](e, 0.0))) / _ops["round"](_ops["exp2"](_ops["maximum"](-e, 0.0)))


def ldexp(x1, x2):
    """x1 * 2**x2."""
    x1 = _floats(x1)
    e = _ops["cast"](_t(x2), dtype=x1.dtype)
    limit = 2.0 * _e.finfo(x1.dtype).max.__class__(300 if x1.dtype != "float64" else 2200)
    e = _e.clip(e, -limit, limit)
    quarter = _ops["trunc"](e / 4)
    out = x1
    for part in (quarter, quarter, quarter, e - 3 * quarter):
        out = _scaled(out, part)
    return out


def float_power(x1, x2):
    """x1 to the power of x2 in float64."""
    return _ops["pow"](_ops["cast"](_t(x1), dtype="float64"), _ops["cast"](_t(x2), dtype="float64"))


def logaddexp2(x1, x2):
    """log2(2**x1 + 2**x2)."""
    ln2 = math.log(2)
    return _ops["logaddexp"](_floats(x1) * ln2, _floats(x2) * ln2) / ln2


def spacing(x):
    """The distance to the next float away from zero."""
    x = _floats(x)
    far = _e.copysign(constant(math.inf, dtype=x.dtype), x)
    return _ops["nextafter"](x, far) - x


def gcd(x1, x2):
    """The greatest common divisor of integers."""
    x1, x2 = _e.broadcast_arrays(*_integers("gcd", x1, x2))

    def step(state):
        a, b = state
        return _e.where(b == 0, a, b), _e.where(b == 0, b, a % _e.where(b == 0, 1, b))

    return _e.while_loop(lambda state: _e.any(state[1] != 0), step, (_abs_int(x1), _abs_int(x2)))[0]


def lcm(x1, x2):
    """The least common multiple of integers."""
    x1, x2 = _integers("lcm", x1, x2)
    g = gcd(x1, x2)
    return _abs_int(x1) // _e.where(g == 0, 1, g) * _abs_int(x2)


def _integers(fn, *xs):
    xs = [_t(x) for x in xs]
    dtype = _e.result_type(*xs)
    if dtype.kind not in "iu":
        raise TypeError(f"eager.{fn}: integers are wanted, got {dtype.numpy_name}")
    return [_ops["cast"](x, dtype=dtype) for x in xs]


def _abs_int(x):
    return x if x.dtype.kind == "u" else _e.abs(x)


def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    """NaN as 0 (or nan), infinities as the largest numbers there are (or posinf, neginf)."""
    x = _t(x)
    if isinstance(x, Wrapped):
        return _e.complex(nan_to_num(_e.real(x), copy, nan, posinf, neginf), nan_to_num(_e.imag(x), copy, nan, posinf, neginf))
    if not _is_float(x):
        return x
    info = _e.finfo(x.dtype)
    x = _ops["where"](_e.isnan(x), nan, x)
    x = _ops["where"](x == math.inf, info.max if posinf is None else posinf, x)
    return _ops["where"](x == -math.inf, info.min if neginf is None else neginf, x)


def isclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    """|a - b| <= atol + rtol |b|; equal infinities are close, NaNs only if equal_nan."""
    a, b = _t(a), _t(b)
    if a.dtype.kind not in "fc":
        a = _ops["cast"](a, dtype="float64")
    if b.dtype.kind not in "fc":
        b = _ops["cast"](b, dtype="float64")
    near = (_e.abs(a - b) <= atol + rtol * _e.abs(b)) & _e.isfinite(b)
    out = near | (a == b)
    return out | (_e.isnan(a) & _e.isnan(b)) if equal_nan else out


def allclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Are all elements close? A tensor of one bool."""
    return _e.all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1, a2, equal_nan=False):
    """The same shape and equal elements? A tensor of one bool."""
    a1, a2 = _t(a1), _t(a2)
    if tuple(a1.shape) != tuple(a2.shape):
        return constant(False)
    same = a1 == a2
    return _e.all(same | (_e.isnan(a1) & _e.isnan(a2)) if equal_nan else same)


def array_equiv(a1, a2):
    """Equal after broadcasting? A tensor of one bool."""
    try:
        return _e.all(_e.equal(_t(a1), _t(a2)))
    except ValueError:
        return constant(False)


def isneginf(x):
    return _t(x) == -math.inf


def isposinf(x):
    return _t(x) == math.inf


def isreal(x):
    return _e.imag(_t(x)) == 0


def iscomplex(x):
    return _e.imag(_t(x)) != 0


def iscomplexobj(x):
    return _t(x).dtype.kind == "c"


def isrealobj(x):
    return not iscomplexobj(x)


def isscalar(x):
    return np.isscalar(x)


def issubdtype(arg1, arg2):
    """As numpy.issubdtype."""
    first = arg1.numpy if hasattr(arg1, "numpy") and not callable(arg1.numpy) else arg1
    return np.issubdtype(first, arg2.numpy if hasattr(arg2, "numpy") and not callable(arg2.numpy) else arg2)


def promote_types(type1, type2):
    return _e.result_type(_e._array_api._dtype(type1), _e._array_api._dtype(type2))


invert = bitwise_not = tensor_ops["bitwise_invert"]._called("bitwise_not")
left_shift, right_shift = tensor_ops["bitwise_left_shift"]._called("left_shift"), tensor_ops["bitwise_right_shift"]._called("right_shift")


def bitwise_count(x):
    """How many bits of |x| are set, as uint8."""
    x = _t(x)
    if x.dtype.kind not in "iu":
        raise TypeError(f"eager.bitwise_count: integers are wanted, got {x.dtype.numpy_name}")
    u = "uint" + x.dtype.numpy_name.lstrip("uint")
    x = _ops["cast"](_abs_int(x), dtype=u)
    total = _ops["mul"](x, 0)
    for i in range(x.dtype.itemsize * 8):
        total = total + ((x >> i) & 1)
    return _ops["cast"](total, dtype="uint8")


def packbits(a, axis=None, bitorder="big"):
    """Eight truth values to a uint8."""
    a = _t(a) != 0
    a = ravel(a) if axis is None else a
    axis = 0 if axis is None else _axis("packbits", axis, _rank(a))
    a = _e.moveaxis(a, axis, -1)
    n = _known("packbits", a.shape[-1])
    a = _e.pad(_ops["cast"](a, dtype="uint8"), [(0, 0)] * (_rank(a) - 1) + [(0, -n % 8)])
    bits = _ops["reshape"](a, (*a.shape[:-1], -(-n // 8), 8))
    place = constant(np.arange(7, -1, -1, dtype=np.uint8) if bitorder == "big" else np.arange(8, dtype=np.uint8))
    return _e.moveaxis(_e.sum(bits << place, axis=-1, dtype="uint8"), -1, axis)


def unpackbits(a, axis=None, count=None, bitorder="big"):
    """A uint8 as eight numbers 0 or 1."""
    a = _t(a)
    a = ravel(a) if axis is None else a
    axis = 0 if axis is None else _axis("unpackbits", axis, _rank(a))
    a = _e.moveaxis(a, axis, -1)
    place = constant(np.arange(7, -1, -1, dtype=np.uint8) if bitorder == "big" else np.arange(8, dtype=np.uint8))
    bits = (_ops["unsqueeze"](a, -1) >> place) & 1
    bits = _ops["reshape"](bits, (*a.shape[:-1], a.shape[-1] * 8))
    if count is not None:
        bits = (
            bits[..., :count] if count < 0 or count <= bits.shape[-1] else _e.pad(bits, [(0, 0)] * (_rank(bits) - 1) + [(0, count - bits.shape[-1])])
        )
    return _e.moveaxis(bits, -1, axis)


def unwrap(p, discont=None, axis=-1, *, period=2 * math.pi):
    """Differences of neighbours brought within half a period by adding periods."""
    p = _floats(p)
    axis = _axis("unwrap", axis, _rank(p))
    d = _e.diff(p, axis=axis)
    discont = period / 2 if discont is None else discont
    m = _ops["mod"](d + period / 2, period) - period / 2
    m = _ops["where"]((m == -period / 2) & (d > 0), period / 2, m)
    fix_ = _ops["where"](_ops["abs"](d) < discont, 0.0, m - d)
    rest = p[_key(_rank(p), axis, slice(1, None))] + _e.cumsum(fix_, axis=axis)
    return _e.concatenate([p[_key(_rank(p), axis, slice(0, 1))], rest], axis=axis)


# ---- statistics ----
amax = tensor_ops["reduce_max"]._called("amax")
amin = tensor_ops["reduce_min"]._called("amin")


def ptp(a, axis=None, keepdims=False):
    """Largest less smallest element."""
    return amax(a, axis, keepdims) - amin(a, axis, keepdims)


def average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    """The mean, weighted if there are weights (of a's shape, or of the axis)."""
    a = _floats(a)
    if weights is None:
        out = _e.mean(a, axis, keepdims)
        total = _e.sum(_ops["mul"](a, 0) + 1, axis, keepdims)
    else:
        w = _floats(weights)
        if tuple(w.shape) != tuple(a.shape):
            if not isinstance(axis, int) or _rank(w) != 1:
                raise ValueError(
                    f"eager.average: weights of shape {tuple(w.shape)} for a tensor of shape {tuple(a.shape)}; give the axis that they belong to"
                )
            axis = _axis("average", axis, _rank(a))
            w = _ops["reshape"](w, [-1 if i == axis else 1 for i in range(_rank(a))])
            w = _ops["broadcast_to"](w, tuple(a.shape))
        total = _e.sum(w, axis, keepdims)
        out = _e.sum(a * w, axis, keepdims) / total
    return (out, total) if returned else out


_METHODS = {
    "linear": (1.0, 1.0), "hazen": (0.5, 0.5), "weibull": (0.0, 0.0), "median_unbiased": (1 / 3, 1 / 3), "normal_unbiased": (3 / 8, 3 / 8),
    "interpolated_inverted_cdf": (0.0, 1.0), "lower": (1.0, 1.0), "higher": (1.0, 1.0), "midpoint": (1.0, 1.0), "nearest": (1.0, 1.0),
}  # fmt: skip


def _together(x, axis):
    """The axes to be reduced as the last one; which they were."""
    rank = _rank(x)
    if axis is None:
        return ravel(x), tuple(range(rank))
    axes = tuple(sorted(_axis("quantile", a, rank) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))))
    rest = [i for i in range(rank) if i not in axes]
    x = _e.permute(x, (*rest, *axes))
    return _ops["reshape"](x, (*[x.shape[i] for i in range(len(rest))], math.prod(x.shape[i] for i in range(len(rest), rank)))), axes


def _kept(out, x, axes, first):
    """out with axes of size 1 in the place of those that were reduced; `first` axes of its own in front."""
    return _ops["unsqueeze"](out, tuple(a + first for a in axes)) if axes else out


def _quantile(fn, a, q, axis, keepdims, method, skip_nan):
    a, q = _floats(a), q if isinstance(q, EagerTensor) else constant(q)
    if method not in _METHODS:
        raise ValueError(f"eager.{fn}: method must be one of {', '.join(_METHODS)}, got {method!r}")
    if q.dtype.kind != "f":
        q = _ops["cast"](q, dtype="float32")
    wide = a.dtype if a.dtype in ("float64",) else _e.float32
    x, axes = _together(_ops["cast"](a, dtype=wide), axis)
    nan = _e.isnan(x)
    x = _e.sort(x, axis=-1)
    q = _ops["cast"](q, dtype=wide)
    n = _e.sum(~nan, axis=-1, keepdims=True) if skip_nan else None
    flat = _ops["reshape"](q, (-1,)) if _rank(q) else _ops["reshape"](q, (1,))
    size_ = _ops["cast"](n, dtype=wide) if skip_nan else _ops["cast"](_size_of(x), dtype=wide)
    alpha, beta = _METHODS[method]
    at = (size_ - 1) * flat if (alpha, beta) == (1.0, 1.0) else size_ * flat + (alpha + flat * (1 - alpha - beta)) - 1
    at = _ops["maximum"](_ops["minimum"](at, _ops["maximum"](size_ - 1, 0.0)), 0.0)
    if method == "nearest":
        at = _ops["round"](at)
    lo = _ops["floor"](at)
    hi = _ops["ceil"](at)
    if method == "lower":
        hi = lo
    elif method == "higher":
        lo = hi
    w = at - lo if method not in ("midpoint", "lower", "higher") else _ops["where"](hi == lo, 0.0, 0.5) if method == "midpoint" else at * 0
    lead = tuple(x.shape[:-1])

    def pick(i):
        i = _ops["cast"](i, dtype="int64")
        return _e.take_along_axis(x, _ops["broadcast_to"](i, (*lead, flat.shape[0])), axis=-1)

    below, above = pick(lo), pick(hi)
    out = _ops["where"](w == 0, below, below + (above - below) * w)
    bad = _e.all(nan, axis=-1, keepdims=True) if skip_nan else _e.any(nan, axis=-1, keepdims=True)
    out = _ops["where"](bad, math.nan, out)
    out = _ops["cast"](out, dtype=a.dtype)
    out = _e.moveaxis(out, -1, 0)
    out = _ops["reshape"](out, (*tuple(q.shape), *lead))
    return _kept(out, a, axes, _rank(q)) if keepdims else out


def _size_of(x):
    n = x.shape[-1]
    return constant(n) if isinstance(n, int) else _e.sum(_ops["cast"](_e.ones_like(x), dtype="int64"), axis=-1, keepdims=True)


def quantile(a, q, axis=None, *, method="linear", keepdims=False):
    """The q-quantiles of the elements along axes; between two elements by the method."""
    return _quantile("quantile", a, q, axis, keepdims, method, False)


def percentile(a, q, axis=None, *, method="linear", keepdims=False):
    """quantile of q / 100."""
    return _quantile("percentile", a, _floats(q) / 100, axis, keepdims, method, False)


def median(a, axis=None, keepdims=False):
    """The middle element, or the mean of the two in the middle; NaN if there is one."""
    return _quantile("median", a, 0.5, axis, keepdims, "midpoint", False)


def nanquantile(a, q, axis=None, *, method="linear", keepdims=False):
    return _quantile("nanquantile", a, q, axis, keepdims, method, True)


def nanpercentile(a, q, axis=None, *, method="linear", keepdims=False):
    return _quantile("nanpercentile", a, _floats(q) / 100, axis, keepdims, method, True)


def nanmedian(a, axis=None, keepdims=False):
    return _quantile("nanmedian", a, 0.5, axis, keepdims, "midpoint", True)


def _without_nan(a, instead):
    a = _t(a)
    return _e.where(_e.isnan(a), instead, a) if _is_float(a) else a


def nansum(a, axis=None, dtype=None, keepdims=False):
    """Sum of what is not NaN."""
    return _e.sum(_without_nan(a, 0.0), axis, keepdims, dtype)


def nanprod(a, axis=None, dtype=None, keepdims=False):
    return _e.prod(_without_nan(a, 1.0), axis, keepdims, dtype)


def _count(a, axis, keepdims):
    return _e.sum(~_e.isnan(a), axis, keepdims)


def nanmean(a, axis=None, dtype=None, keepdims=False):
    """Mean of what is not NaN; NaN where nothing is left."""
    a = _floats(a if dtype is None else _as(_t(a), dtype))
    return nansum(a, axis, None, keepdims) / _count(a, axis, keepdims)


def nanvar(a, axis=None, dtype=None, ddof=0, keepdims=False):
    a = _floats(a if dtype is None else _as(_t(a), dtype))
    d = _e.where(_e.isnan(a), 0.0, a - nanmean(a, axis, keepdims=True))
    n = _count(a, axis, keepdims) - ddof
    return _e.where(n > 0, _e.sum(_e.abs(d) ** 2, axis, keepdims) / _e.where(n > 0, n, 1), math.nan)


def nanstd(a, axis=None, dtype=None, ddof=0, keepdims=False):
    return _ops["sqrt"](nanvar(a, axis, dtype, ddof, keepdims))


def _nan_extreme(a, axis, keepdims, op, worst):
    a = _t(a)
    if not _is_float(a):
        return _ops[op](a, axis, keepdims)
    out = _ops[op](_ops["where"](_e.isnan(a), worst, a), axis, keepdims)
    return _ops["where"](_e.all(_e.isnan(a), axis, keepdims), math.nan, out)


def nanmax(a, axis=None, keepdims=False):
    """Largest element that is not NaN; NaN where nothing is left."""
    return _nan_extreme(a, axis, keepdims, "reduce_max", -math.inf)


def nanmin(a, axis=None, keepdims=False):
    return _nan_extreme(a, axis, keepdims, "reduce_min", math.inf)


def nanargmax(a, axis=None, keepdims=False):
    """Where the largest element that is not NaN is (0 where all are)."""
    a = _t(a)
    return _e.argmax(_without_nan(a, -math.inf) if _is_float(a) else a, axis, keepdims)


def nanargmin(a, axis=None, keepdims=False):
    a = _t(a)
    return _e.argmin(_without_nan(a, math.inf) if _is_float(a) else a, axis, keepdims)


def nancumsum(a, axis=None, dtype=None):
    return _e.cumsum(_without_nan(a, 0.0), axis, dtype=dtype)


def nancumprod(a, axis=None, dtype=None):
    return _e.cumprod(_without_nan(a, 1.0), axis, dtype=dtype)


def cov(m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None):
    """The covariance matrix of variables, a row each (rowvar=False: a column each)."""
    m = atleast_2d(_floats(m))
    x = m if rowvar or (m.shape[0] == 1) else m.T
    if y is not None:
        y = atleast_2d(_floats(y))
        x = _e.concatenate([x, y if rowvar or y.shape[0] == 1 else y.T], axis=0)
    ddof = (0 if bias else 1) if ddof is None else ddof
    n = x.shape[1]
    w = None
    if fweights is not None:
        w = _ops["cast"](_t(fweights), dtype=x.dtype) if not iscomplexobj(x) else _floats(fweights)
    if aweights is not None:
        w = _floats(aweights) if w is None else w * _floats(aweights)
    total = float(n) if w is None and isinstance(n, int) else n if w is None else _e.sum(w)
    mean = _e.mean(x, 1, True) if w is None else _e.sum(x * w, 1, True) / total
    if w is None:
        norm = total - ddof
    elif ddof == 0:
        norm = total
    elif aweights is None:
        norm = total - ddof
    else:
        norm = total - ddof * _e.sum(w * _floats(aweights)) / total
    d = x - mean
    out = _e.matmul(d if w is None else d * w, _e.conj(d).mT) / norm
    return _e.squeeze(out)


def corrcoef(x, y=None, rowvar=True):
    """The matrix of correlation coefficients of variables, a row each."""
    c = cov(x, y, rowvar)
    if not _rank(c):
        return c / c
    d = _ops["sqrt"](_e.real(_e.diagonal(c)))
    c = c / _ops["unsqueeze"](d, 1) / _ops["unsqueeze"](d, 0)
    return _e.complex(_e.clip(_e.real(c), -1.0, 1.0), _e.clip(_e.imag(c), -1.0, 1.0)) if iscomplexobj(c) else _e.clip(c, -1.0, 1.0)


def bincount(x, weights=None, minlength=0, *, length=None):
    """How often each number from 0 on is there, or the sum of its weights. Without length (how many numbers count) the largest one is looked up, which evaluates x."""
    x = _t(x)
    if x.dtype.kind not in "iub" or _rank(x) != 1:
        raise TypeError(f"eager.bincount: integers of one dim are wanted, got {x.dtype.numpy_name} of shape {tuple(x.shape)}")
    if length is None:
        if x.size and int(_e.min(x)) < 0:
            raise ValueError("eager.bincount: a number is negative")
        length = builtins.max(int(_e.max(x)) + 1 if x.size else 0, minlength)
    w = _e.ones(tuple(x.shape), dtype="int64") if weights is None else _floats(weights)
    zero = _e.zeros((length,), dtype=w.dtype)
    if length == 0:
        return zero
    inside = (x >= 0) & (x < length) if x.dtype.kind != "b" else x == x
    return _e.scatter(
        zero, _ops["cast"](_e.clip(_ops["cast"](x, dtype="int64"), 0, length - 1), dtype="int64"), _e.where(inside, w, 0), axis=0, mode="add"
    )


def histogram_bin_edges(a, bins=10, range=None, weights=None):
    """The edges of the bins: so many of one width over the range (default: of the data), given ones, or by a rule of NumPy's by its name (evaluates)."""
    a = _floats(ravel(a))
    if isinstance(bins, str):
        return _e.asarray(np.histogram_bin_edges(a.numpy(), bins, range).astype(a.dtype.numpy))
    if not isinstance(bins, (int, np.integer)):
        return _t(bins)
    if bins < 1:
        raise ValueError(f"eager.histogram: at least one bin is wanted, got {bins}")
    if range is None:
        lo, hi = (_e.min(a), _e.max(a)) if a.size else (constant(0.0), constant(1.0))
    else:
        lo, hi = (constant(float(v), dtype=a.dtype) for v in range)
        if range[0] > range[1]:
            raise ValueError(f"eager.histogram: the range {tuple(range)} ends before it begins")
    same = lo == hi
    lo, hi = _e.where(same, lo - 0.5, lo), _e.where(same, hi + 0.5, hi)
    return _ops["cast"](_e.linspace(lo, hi, int(bins) + 1, dtype=a.dtype), dtype=a.dtype)


def histogram(a, bins=10, range=None, density=None, weights=None):
    """(counts, edges): how many elements lie in each bin [edge, next edge), the last one closed; weights: their sums; density: over the total and the width."""
    a = _floats(ravel(a))
    edges = histogram_bin_edges(a, bins, range)
    e = _ops["cast"](edges, dtype=_e.result_type(a, edges)) if _is_float(edges) else _ops["cast"](edges, dtype=a.dtype)
    n = _known("histogram", e.shape[0]) - 1
    at = _e.searchsorted(e, _ops["cast"](a, dtype=e.dtype), side="right") - 1
    at = _e.where(_ops["cast"](a, dtype=e.dtype) == e[-1], n - 1, at)
    inside = (at >= 0) & (at < n)
    w = _e.ones(tuple(a.shape), dtype="int64") if weights is None else _t(ravel(weights))
    counts = _e.scatter(_e.zeros((n,), dtype=w.dtype), _e.clip(at, 0, n - 1), _e.where(inside, w, 0), axis=0, mode="add")
    if density:
        counts = counts / _e.diff(e) / _e.sum(counts)
    return counts, edges


def histogramdd(sample, bins=10, range=None, density=None, weights=None):
    """(counts, list of edges) of points, a row each."""
    sample = _floats(sample) if not isinstance(sample, (tuple, list)) else _floats(_e.stack([_t(s) for s in sample], axis=1))
    dims = _known("histogramdd", sample.shape[1])
    bins = [bins] * dims if isinstance(bins, (int, np.integer)) else list(bins)
    edges, flat, inside, sizes = [], 0, True, []
    for d in builtins.range(dims):
        x = sample[:, d]
        e = _ops["cast"](histogram_bin_edges(x, bins[d], None if range is None else range[d]), dtype=x.dtype)
        n = _known("histogramdd", e.shape[0]) - 1
        at = _e.searchsorted(e, x, side="right") - 1
        at = _e.where(x == e[-1], n - 1, at)
        inside = (at >= 0) & (at < n) & inside
        flat = flat * n + _e.clip(at, 0, n - 1)
        edges.append(e)
        sizes.append(n)
    w = _e.ones((sample.shape[0],), dtype="float32") if weights is None else _floats(weights)
    counts = _e.scatter(_e.zeros((math.prod(sizes),), dtype=w.dtype), flat, _e.where(inside, w, 0.0), axis=0, mode="add")
    counts = _ops["reshape"](counts, tuple(sizes))
    if density:
        for d, e in enumerate(edges):
            counts = counts / _ops["reshape"](_e.diff(e), [-1 if i == d else 1 for i in builtins.range(dims)])
        counts = counts / (_e.sum(w * _ops["cast"](inside, dtype=w.dtype)))
    return counts, edges


def histogram2d(x, y, bins=10, range=None, density=None, weights=None):
    """(counts, edges of x, edges of y)."""
    if isinstance(bins, (list, tuple)) and len(bins) not in (1, 2) or isinstance(bins, (np.ndarray, EagerTensor)):
        bins = [bins, bins]
    counts, edges = histogramdd([x, y], bins, range, density, weights)
    return counts, edges[0], edges[1]


def digitize(x, bins, right=False):
    """The number of the bin of each element: bins[i-1] <= x < bins[i] (right: < x <=); bins ascend or descend."""
    bins, x = _t(bins), _t(x)
    if _rank(bins) != 1:
        raise ValueError(f"eager.digitize: bins have one dim, got {_rank(bins)}")
    dtype = _e.result_type(x, bins)
    x, bins = _ops["cast"](x, dtype=dtype), _ops["cast"](bins, dtype=dtype)
    n = _known("digitize", bins.shape[0])
    up = _e.searchsorted(bins, x, side="left" if right else "right")
    if n < 2:
        return up
    down = n - _e.searchsorted(_e.flip(bins), x, side="right" if right else "left")
    return _e.where(bins[0] <= bins[-1], up, down)


def interp(x, xp, fp, left=None, right=None, period=None):
    """Linear interpolation at x between the points (xp, fp), xp ascending; beyond them fp's ends, or left and right. period: xp wraps around."""
    x, xp = _floats(x), _floats(xp)
    fp = _floats(fp)
    if period is not None:
        period = abs(period)
        x, xp = x % period, xp % period
        order = _e.argsort(xp)
        xp, fp = xp[order], fp[order]
        xp = _e.concatenate([xp[-1:] - period, xp, xp[:1] + period], axis=0)
        fp = _e.concatenate([fp[-1:], fp, fp[:1]], axis=0)
        left = right = None
    dtype = _e.result_type(x, xp)
    x, xp = _ops["cast"](x, dtype=dtype), _ops["cast"](xp, dtype=dtype)
    n = _known("interp", xp.shape[0])
    if n == 0:
        raise ValueError("eager.interp: there are no points to interpolate between")
    if n == 1:
        out = x * 0 + fp[0]
    else:
        i = _e.clip(_e.searchsorted(xp, x, side="right"), 1, n - 1)
        x0, x1, f0, f1 = xp[i - 1], xp[i], fp[i - 1], fp[i]
        d = x1 - x0
        t = _ops["where"](d == 0, 0.0, (x - x0) / _ops["where"](d == 0, 1.0, d))
        out = f0 + (f1 - f0) * t
    out = _e.where(x < xp[0], fp[0] if left is None else left, out)
    out = _e.where(x > xp[-1], fp[-1] if right is None else right, out)
    return _e.where(_e.isnan(x), x + 0 * out, out)


def gradient(f, *varargs, axis=None, edge_order=1):
    """Central differences along axes, one-sided at the ends (of first or second order); spacings: one number, or a number or coordinates for each axis."""
    f = _floats(f)
    rank = _rank(f)
    axes = tuple(range(rank)) if axis is None else tuple(_axis("gradient", a, rank) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(varargs) not in (0, 1, len(axes)):
        raise TypeError(f"eager.gradient: {len(varargs)} spacings for {len(axes)} axes")
    steps = list(varargs) if len(varargs) == len(axes) else list(varargs or (1.0,)) * len(axes)
    out = [_gradient1(f, a, s, edge_order) for a, s in zip(axes, steps)]
    return out[0] if len(out) == 1 else tuple(out)


def _gradient1(f, axis, step, edge_order):
    rank, n = _rank(f), _known("gradient", f.shape[axis])
    if n < edge_order + 1:
        raise ValueError(f"eager.gradient: at least {edge_order + 1} elements along axis {axis} are wanted, got {n}")

    def cut(a, b):
        return f[_key(rank, axis, slice(a, b))]

    d = step if isinstance(step, (int, float)) else _floats(step)
    uneven = isinstance(d, EagerTensor) and _rank(d) == 1
    if not uneven:
        inner = (cut(2, None) - cut(None, -2)) / (2 * d)
        if edge_order == 1:
            first, last = (cut(1, 2) - cut(0, 1)) / d, (cut(n - 1, n) - cut(n - 2, n - 1)) / d
        else:
            first = (-1.5 * cut(0, 1) + 2.0 * cut(1, 2) - 0.5 * cut(2, 3)) / d
            last = (0.5 * cut(n - 3, n - 2) - 2.0 * cut(n - 2, n - 1) + 1.5 * cut(n - 1, n)) / d
        return _e.concatenate([first, inner, last], axis=axis)
    h = _ops["reshape"](_e.diff(d), [-1 if i == axis else 1 for i in range(rank)])

    def hcut(a, b):
        return h[_key(rank, axis, slice(a, b))]

    a, b = hcut(None, -1), hcut(1, None)
    inner = (a * a * cut(2, None) + (b * b - a * a) * cut(1, -1) - b * b * cut(None, -2)) / (a * b * (a + b))
    if edge_order == 1:
        first, last = (cut(1, 2) - cut(0, 1)) / hcut(0, 1), (cut(n - 1, n) - cut(n - 2, n - 1)) / hcut(n - 2, n - 1)
    else:
        p, q = hcut(0, 1), hcut(1, 2)
        first = -(2 * p + q) / (p * (p + q)) * cut(0, 1) + (p + q) / (p * q) * cut(1, 2) - p / (q * (p + q)) * cut(2, 3)
        p, q = hcut(n - 3, n - 2), hcut(n - 2, n - 1)
        last = q / (p * (p + q)) * cut(n - 3, n - 2) - (q + p) / (p * q) * cut(n - 2, n - 1) + (2 * q + p) / (q * (p + q)) * cut(n - 1, n)
    return _e.concatenate([first, inner, last], axis=axis)


def trapezoid(y, x=None, dx=1.0, axis=-1):
    """The integral along an axis by the trapezoidal rule."""
    y = _floats(y)
    axis = _axis("trapezoid", axis, _rank(y))
    if x is not None:
        x = _floats(x)
        dx = _e.diff(x, axis=-1 if _rank(x) == 1 else axis)
        if _rank(x) == 1:
            dx = _ops["reshape"](dx, [-1 if i == axis else 1 for i in range(_rank(y))])
    both = y[_key(_rank(y), axis, slice(1, None))] + y[_key(_rank(y), axis, slice(None, -1))]
    return _e.sum(both * dx / 2.0, axis=axis)


trapz = trapezoid


def cumulative_trapezoid(y, x=None, dx=1.0, axis=-1, initial=None):
    """Running integrals along an axis by the trapezoidal rule."""
    y = _floats(y)
    axis = _axis("cumulative_trapezoid", axis, _rank(y))
    if x is not None:
        x = _floats(x)
        dx = _e.diff(x, axis=-1 if _rank(x) == 1 else axis)
        if _rank(x) == 1:
            dx = _ops["reshape"](dx, [-1 if i == axis else 1 for i in range(_rank(y))])
    both = y[_key(_rank(y), axis, slice(1, None))] + y[_key(_rank(y), axis, slice(None, -1))]
    out = _e.cumsum(both * dx / 2.0, axis=axis)
    if initial is None:
        return out
    return _e.concatenate([y[_key(_rank(y), axis, slice(0, 1))] * 0 + initial, out], axis=axis)


def ediff1d(ary, to_end=None, to_begin=None):
    """Differences of neighbours of the flattened tensor, with something before and after."""
    ary = ravel(ary)
    parts = [None if to_begin is None else ravel(to_begin), ary[1:] - ary[:-1], None if to_end is None else ravel(to_end)]
    return _e.astype(_e.concatenate([p for p in parts if p is not None], axis=0), ary.dtype)


# ---- products ----
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """The cross product of vectors of 3 (or 2) elements."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = _t(a), _t(b)
    a = _e.moveaxis(a, _axis("cross", axisa, _rank(a)), -1)
    b = _e.moveaxis(b, _axis("cross", axisb, _rank(b)), -1)
    na, nb = _known("cross", a.shape[-1]), _known("cross", b.shape[-1])
    if na not in (2, 3) or nb not in (2, 3):
        raise ValueError(f"eager.cross: vectors have 2 or 3 elements, got {na} and {nb}")
    a0, a1, b0, b1 = a[..., 0], a[..., 1], b[..., 0], b[..., 1]
    z = a0 * b1 - a1 * b0
    if na == 2 and nb == 2:
        return z
    zero = a0 * 0 + b0 * 0
    a2, b2 = (a[..., 2] if na == 3 else zero), (b[..., 2] if nb == 3 else zero)
    parts = _e.broadcast_arrays(a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, z)
    return _e.moveaxis(_e.stack(parts, axis=-1), -1, axisc)


def kron(a, b):
    """The Kronecker product."""
    a, b = _t(a), _t(b)
    rank = builtins.max(_rank(a), _rank(b))
    a = _ops["reshape"](a, (1,) * (rank - _rank(a)) + tuple(a.shape))
    b = _ops["reshape"](b, (1,) * (rank - _rank(b)) + tuple(b.shape))
    wide = [s for n in a.shape for s in (n, 1)]
    tall = [s for n in b.shape for s in (1, n)]
    out = _ops["reshape"](a, wide) * _ops["reshape"](b, tall)
    return _ops["reshape"](out, tuple(m * n for m, n in zip(a.shape, b.shape)))


def inner(a, b):
    """Sums of products over the last axes."""
    a, b = _t(a), _t(b)
    if not _rank(a) or not _rank(b):
        return a * b
    return _e.tensordot(a, b, axes=([-1], [-1]))


def vdot(a, b):
    """Sum of products of all elements, those of a conjugated."""
    a, b = ravel(a), ravel(b)
    return _e.sum(_e.conj(a) * b) if a.dtype.kind == "c" or b.dtype.kind == "c" else _e.dot(a, b)


def matvec(x1, x2):
    """Matrices times vectors; leading dims broadcast."""
    return _e.squeeze(_e.matmul(x1, _ops["unsqueeze"](_t(x2), -1)), axis=-1)


def vecmat(x1, x2):
    """Vectors (conjugated) times matrices; leading dims broadcast."""
    return _e.squeeze(_e.matmul(_ops["unsqueeze"](_e.conj(_t(x1)), -2), x2), axis=-2)


def _windows(fn, a, v, mode):
    a, v = _t(a), _t(v)
    if _rank(a) != 1 or _rank(v) != 1:
        raise ValueError(f"eager.{fn}: two tensors of one dim are wanted, got {_rank(a)} and {_rank(v)} dims")
    n, m = _known(fn, a.shape[0]), _known(fn, v.shape[0])
    if not n or not m:
        raise ValueError(f"eager.{fn}: a tensor is empty")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"eager.{fn}: mode must be 'full', 'same' or 'valid', got {mode!r}")
    return a, v, n, m


def _slide(a, v, n, m, mode):
    """Sums of a over windows times v; n >= m."""
    dtype = _e.result_type(a, v)
    if dtype.kind == "b":
        a, v = _ops["cast"](a, dtype="int64"), _ops["cast"](v, dtype="int64")
    before = {"full": m - 1, "same": m // 2, "valid": 0}[mode]
    after = {"full": m - 1, "same": (m - 1) // 2, "valid": 0}[mode]
    if isinstance(a, Wrapped) or isinstance(v, Wrapped):
        ar, ai, vr, vi = _e.real(a), _e.imag(a), _e.real(v), _e.imag(v)
        return _e.complex(_slide(ar, vr, n, m, mode) - _slide(ai, vi, n, m, mode), _slide(ar, vi, n, m, mode) + _slide(ai, vr, n, m, mode))
    a = _ops["pad"](a, None, [before, after], "constant")
    w = _ops["window"](a, [0], [m], [1], [1])
    out = _e.matmul(w, v) if dtype.kind == "f" else _e.sum(w * v, axis=-1, dtype=dtype if dtype.kind != "b" else None)
    return _ops["cast"](out, dtype=dtype) if dtype.kind == "b" else out


def convolve(a, v, mode="full"):
    """The discrete convolution of two sequences."""
    a, v, n, m = _windows("convolve", a, v, mode)
    if m > n:
        a, v, n, m = v, a, m, n
    return _slide(a, _e.flip(v), n, m, mode) if mode != "same" else _slide_same(a, _e.flip(v), n, m)


def _slide_same(a, v, n, m):
    full = _slide(a, v, n, m, "full")
    start = (m - 1) // 2
    return full[start : start + n]


def correlate(a, v, mode="valid"):
    """The cross-correlation of two sequences: sums of a[n + k] conj(v[n])."""
    a, v, n, m = _windows("correlate", a, v, mode)
    v = _e.conj(v)
    if n >= m:
        return _slide(a, v, n, m, mode) if mode != "same" else _slide(a, v, n, m, "full")[(m - 1) // 2 : (m - 1) // 2 + n]
    out = _e.flip(_slide(v, a, m, n, "full" if mode == "same" else mode))
    return out if mode != "same" else out[n // 2 : n // 2 + m]


# ---- polynomials: coefficients from the highest power on ----
def polyval(p, x):
    """The polynomial's value at x."""
    p, x = _t(p), _t(x)
    out = x * 0
    for i in range(_known("polyval", p.shape[0])):
        out = out * x + p[i]
    return out


def vander(x, N=None, increasing=False):
    """Powers of x as columns, the highest first."""
    x = _t(x)
    n = _known("vander", x.shape[0]) if N is None else N
    cols, p = [], x * 0 + 1
    for _ in range(n):
        cols.append(p)
        p = p * x
    if not cols:
        return _e.zeros((x.shape[0], 0), dtype=x.dtype)
    return _e.stack(cols if increasing else cols[::-1], axis=-1)


def polyfit(x, y, deg, rcond=None, full=False, w=None, cov=False):
    """Coefficients of the polynomial of that degree nearest to the points in least squares."""
    x, y = _floats(x), _floats(y)
    dtype = _e.result_type(x, y)
    x, y = _e.astype(x, dtype), _e.astype(y, dtype)
    n = _known("polyfit", x.shape[0])
    rcond = n * _e.finfo(dtype).eps if rcond is None else rcond
    a, b = vander(x, deg + 1), y
    if w is not None:
        w = _e.astype(_floats(w), dtype)
        a = a * _ops["unsqueeze"](w, 1)
        b = b * (_ops["unsqueeze"](w, 1) if _rank(y) == 2 else w)
    scale = _ops["sqrt"](_e.sum(_e.abs(a) ** 2, axis=0))
    c, residuals, rank, s = _e.linalg.lstsq(a / scale, b, rcond)
    c = (c.T / scale).T
    if full:
        return c, residuals, rank, s, rcond
    if cov:
        base = _e.linalg.inv(_e.matmul(a.T, a) / (_ops["unsqueeze"](scale, 0) * _ops["unsqueeze"](scale, 1)))
        base = base / (_ops["unsqueeze"](scale, 0) * _ops["unsqueeze"](scale, 1))
        if cov != "unscaled":
            base = base * (residuals / (n - (deg + 1)))
        return c, base
    return c


def _longer(a, b):
    a, b = atleast_1d(a), atleast_1d(b)
    n, m = _known("polyadd", a.shape[0]), _known("polyadd", b.shape[0])
    return _e.pad(a, [(builtins.max(m - n, 0), 0)]), _e.pad(b, [(builtins.max(n - m, 0), 0)])


def polyadd(a1, a2):
    a, b = _longer(a1, a2)
    return a + b


def polysub(a1, a2):
    a, b = _longer(a1, a2)
    return a - b


def polymul(a1, a2):
    return convolve(atleast_1d(a1), atleast_1d(a2))


def polydiv(u, v):
    """(quotient, remainder)."""
    u, v = atleast_1d(_floats(u)), atleast_1d(_floats(v))
    n, m = _known("polydiv", u.shape[0]), _known("polydiv", v.shape[0])
    q = []
    for i in range(n - m + 1):
        d = u[i] / v[0]
        q.append(d)
        u = _e.concatenate([u[:i], u[i : i + m] - d * v, u[i + m :]], axis=0)
    if not q:
        return u[:1] * 0, u
    return _e.stack(q), u[builtins.max(n - m + 1, 0) :] if m > 1 else u[-1:] * 0


def polyder(p, m=1):
    """The m-th derivative's coefficients."""
    p = atleast_1d(p)
    for _ in range(m):
        n = _known("polyder", p.shape[0])
        p = p[:-1] * constant(np.arange(n - 1, 0, -1, dtype=p.dtype.numpy if p.dtype.kind != "c" else np.float32))
    return p


def polyint(p, m=1, k=None):
    """The m-th antiderivative's coefficients; k: its constants."""
    p = atleast_1d(_floats(p))
    k = [0.0] * m if k is None else list(k) if isinstance(k, (list, tuple)) else [k] * m
    for i in range(m):
        n = _known("polyint", p.shape[0])
        p = p / constant(np.arange(n, 0, -1, dtype=p.dtype.numpy if p.dtype.kind != "c" else np.float32))
        p = _e.concatenate([p, atleast_1d(_e.astype(_t(k[i]), p.dtype))], axis=0)
    return p


def poly(seq_of_zeros):
    """Coefficients of the polynomial with these roots, or of a matrix's characteristic polynomial."""
    r = _t(seq_of_zeros)
    if _rank(r) == 2:
        r = _e.linalg.eigvals(r)
    r = _floats(r)
    out = _e.ones((1,), dtype=r.dtype)
    for i in range(_known("poly", r.shape[0])):
        out = _e.concatenate([out, out[:1] * 0], axis=0) - _e.concatenate([out[:1] * 0, out * r[i]], axis=0)
    return out


def roots(p):
    """The polynomial's roots, complex; leading and trailing zeros of p are looked for, which evaluates."""
    p = atleast_1d(_floats(p))
    at = flatnonzero(p).numpy()
    kind = "complex128" if p.dtype in ("float64", "complex128") else "complex64"
    if not len(at):
        return _e.zeros((0,), dtype=kind)
    zeros_ = p.shape[0] - 1 - int(at[-1])
    p = p[int(at[0]) : int(at[-1]) + 1]
    n = p.shape[0] - 1
    if n == 0:
        return _e.zeros((zeros_,), dtype=kind)
    top = _ops["unsqueeze"](-p[1:] / p[0], 0)
    companion = _e.concatenate([top, _e.eye(n, dtype=p.dtype)[:-1]], axis=0) if n > 1 else top
    return _e.concatenate([_e.linalg.eigvals(companion), _e.zeros((zeros_,), dtype=kind)], axis=0)


# ---- order and sets ----
def partition(a, kth, axis=-1):
    """Sorted enough that element kth is where it would be, smaller ones before and larger ones after; here fully sorted."""
    a = ravel(a) if axis is None else _t(a)
    return _e.sort(a, axis=-1 if axis is None else axis)


def argpartition(a, kth, axis=-1):
    """The indices that partition."""
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
    """The different elements, sorted; where each is first, which one each element is, how often each is there. Evaluates. axis: different slices."""
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
    """The elements that are in one of both; evaluates."""
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
    """A function of numbers as one of tensors: arguments broadcast, and pyfunc is traced once under vmap. signature "(n),(n)->()": it takes vectors."""
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
