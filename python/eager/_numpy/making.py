"""Tensors out of data, ranges and functions; diagonals, triangles and windows."""

import builtins
import math

import numpy as np

import eager as _e
from eas._eas import EagerTensor, constant, tensor_ops

from .._wrapped import Wrapped
from .choice import flatnonzero
from .parts import _as, _floats, _known, _rank, _t, ravel

__all__ = [
    "array", "asanyarray", "ascontiguousarray", "bartlett", "blackman", "copy", "diag", "diag_indices",
    "diagflat", "fill_diagonal", "fromfunction", "fromiter", "geomspace", "hamming", "hanning", "i0",
    "identity", "indices", "ix_", "kaiser", "logspace", "mgrid", "ogrid", "tensor", "tril_indices",
    "tril_indices_from", "triu_indices", "triu_indices_from",
]  # fmt: skip

_ops = tensor_ops


def array(object, dtype=None, *, copy=True, ndmin=0, device=None):
    """A tensor of the data: arrays, nested lists (tensors among them too), numbers. ndmin: at least so many
    dims, new ones in front."""
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
    """A tensor of one dim with the numbers of an iterator."""
    return _e.asarray(np.fromiter(iter, dtype=_e.DType(dtype).numpy, count=count))


def indices(dimensions, dtype="int64", sparse=False):
    """The coordinates of a grid: one tensor of len(dimensions) + 1 dims, or (sparse) a tuple of broadcastable
    ones."""
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
    """The modified Bessel function of the first kind and order 0, by its power series below 20 and its
    expansion at infinity above."""
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
