"""Products of vectors and matrices, convolutions; polynomials, whose coefficients begin with the highest
power."""

import builtins

import numpy as np

import eager as _e
from eas._eas import constant, tensor_ops

from .._wrapped import Wrapped
from .choice import flatnonzero
from .parts import _axis, _floats, _known, _rank, _t, ravel
from .shapes import atleast_1d

__all__ = [
    "convolve", "correlate", "cross", "inner", "kron", "matvec", "poly", "polyadd", "polyder", "polydiv",
    "polyfit", "polyint", "polymul", "polysub", "polyval", "roots", "vander", "vdot", "vecmat",
]  # fmt: skip

_ops = tensor_ops

# ---- products ----
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """The cross product of vectors of 3 elements."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = _t(a), _t(b)
    a = _e.moveaxis(a, _axis("cross", axisa, _rank(a)), -1)
    b = _e.moveaxis(b, _axis("cross", axisb, _rank(b)), -1)
    na, nb = _known("cross", a.shape[-1]), _known("cross", b.shape[-1])
    if na != 3 or nb != 3:  # NumPy has deprecated vectors of 2, and the array API refuses them
        raise ValueError(f"eager.cross: vectors have 3 elements, got {na} and {nb}; of 2 elements it is a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]")
    (a0, a1, a2), (b0, b1, b2) = ([v[..., i] for i in range(3)] for v in (a, b))
    parts = _e.broadcast_arrays(a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0)
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
    """(quotient, remainder) of a division of polynomials."""
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
