"""Statistics: quantiles, functions that skip NaN, covariances, histograms; interpolation, differences and
integrals."""

import builtins
import math

import numpy as np

import eager as _e
from eas._eas import EagerTensor, constant, tensor_ops

from .elementwise import iscomplexobj
from .parts import _as, _axis, _floats, _is_float, _key, _known, _rank, _t, ravel
from .shapes import atleast_2d

__all__ = [
    "amax", "amin", "average", "bincount", "corrcoef", "cov", "cumulative_trapezoid", "digitize", "ediff1d",
    "gradient", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "interp", "median",
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin",
    "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "percentile", "ptp",
    "quantile", "trapezoid", "trapz",
]  # fmt: skip

_ops = tensor_ops


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
    """x with the axes to be reduced merged into the last one, and which axes those were."""
    rank = _rank(x)
    if axis is None:
        return ravel(x), tuple(range(rank))
    axes = tuple(sorted(_axis("quantile", a, rank) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))))
    rest = [i for i in range(rank) if i not in axes]
    x = _e.permute(x, (*rest, *axes))
    return _ops["reshape"](x, (*[x.shape[i] for i in range(len(rest))], math.prod(x.shape[i] for i in range(len(rest), rank)))), axes


def _kept(out, x, axes, first):
    """out with axes of size 1 in place of those that were reduced; out has `first` axes in front that x does
    not have."""
    return _ops["unsqueeze"](out, tuple(a + first for a in axes)) if axes else out


def _quantile(fn, a, q, axis, keepdims, method, skip_nan):
    a, q = _floats(a), q if isinstance(q, EagerTensor) else constant(q)
    if method not in _METHODS:
        raise ValueError(f"eager.{fn}: method must be one of {', '.join(_METHODS)}, got {method!r}")
    if q.dtype.kind != "f":
        q = _ops["cast"](q, dtype="float32")
    wide = a.dtype if a.dtype in ("float64",) else _e.float32
    x, axes = _together(_ops["cast"](a, dtype=wide), axis)
    if x.shape[-1] == 0:  # a quantile of no elements is NaN
        x = _e.full((*x.shape[:-1], 1), math.nan, dtype=wide)
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
    """The sum of the elements that are not NaN."""
    return _e.sum(_without_nan(a, 0.0), axis, keepdims, dtype)


def nanprod(a, axis=None, dtype=None, keepdims=False):
    return _e.prod(_without_nan(a, 1.0), axis, keepdims, dtype)


def _count(a, axis, keepdims):
    return _e.sum(~_e.isnan(a), axis, keepdims)


def nanmean(a, axis=None, dtype=None, keepdims=False):
    """The mean of the elements that are not NaN; NaN if there are none."""
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
    """The largest element that is not NaN; NaN if there is none."""
    return _nan_extreme(a, axis, keepdims, "reduce_max", -math.inf)


def nanmin(a, axis=None, keepdims=False):
    return _nan_extreme(a, axis, keepdims, "reduce_min", math.inf)


def nanargmax(a, axis=None, keepdims=False):
    """The index of the largest element that is not NaN (0 if there is none)."""
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
    """How often each number from 0 on is there, or the sum of its weights. Without length (how many numbers
    count) the largest one is looked up, which evaluates x."""
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
    """The edges of the bins: so many of one width over the range (default: of the data), given ones, or by a
    rule of NumPy's by its name (evaluates)."""
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
    """(counts, edges): how many elements lie in each bin [edge, next edge), the last one closed; weights:
    their sums; density: over the total and the width."""
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
    """The number of the bin of each element: bins[i-1] <= x < bins[i] (right: < x <=); bins ascend or
    descend."""
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
    """Linear interpolation at x between the points (xp, fp), xp ascending; beyond them fp's ends, or left and
    right. period: xp wraps around."""
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
    """Central differences along axes, one-sided at the ends (of first or second order); spacings: one number,
    or a number or coordinates for each axis."""
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
