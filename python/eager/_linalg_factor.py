"""Triangular systems, LU, Cholesky and QR, with their derivatives: parts of eager.linalg."""

import builtins
import math

import numpy as np

import eager as _e
from eas._eas import constant

from ._complex import ComplexTensor
from ._linalg_native import (
    _H,
    LUResult,
    QRResult,
    SlogdetResult,
    _back,
    _broadcast,
    _eye_like,
    _is_complex,
    _joint,
    _matrix,
    _native,
    _ops,
    _same_dtype,
    _tril,
    _triu,
)
from ._numpy import _floats, _known
from .transforms.custom import call_with_rules


# ---- triangular systems ----
def solve_triangular(a, b, trans=0, lower=False, unit_diagonal=False):
    """x with op(a) x = b for a triangular a, of which the other triangle is not read. trans: 0 (a), 1 or "T",
    2 or "C" (conjugate transpose). b: matrices, or one vector."""
    trans = {"N": 0, "T": 1, "C": 2}.get(trans, trans)
    if trans not in (0, 1, 2):
        raise ValueError(f"eager.linalg.solve_triangular: trans must be 0, 1, 2, 'N', 'T' or 'C', got {trans!r}")
    a, dtype = _matrix("solve_triangular", a, square=True)
    b = _floats(b)
    vector = len(b.shape) == 1
    b = _ops["unsqueeze"](b, -1) if vector else b
    if b.dtype in ("float16", "bfloat16"):
        b = _ops["cast"](b, dtype="float32")
    if b.shape[-2] != a.shape[-1]:
        raise ValueError(f"eager.linalg.solve_triangular: shapes {tuple(a.shape)} and {tuple(b.shape)} do not go together")
    a, b = _joint(a, b)
    x = _solve_triangular(a, b, bool(lower), trans, bool(unit_diagonal))
    return _back(_e.squeeze(x, axis=-1) if vector else x, dtype)


triangular_solve = solve_triangular


def _turned(trans, m):
    """op(m) of the BLAS: m, its transpose (trans 1) or its conjugate transpose (2)."""
    return m if trans == 0 else m.mT if trans == 1 else _H(m)


def _solve_triangular(a, b, lower, trans, unit):
    n, k = a.shape[-1], b.shape[-1]

    def run(a, b):
        return _native("solve_triangular", [a, b], [((n, k), "same")], lambda t, batch: (t, batch, n, k, int(lower), trans, int(unit)))[0]

    def keep(m):
        m = _tril(m, -1 if unit else 0) if lower else _triu(m, 1 if unit else 0)
        return m

    def jvp(primals, tangents):
        a, b = primals
        da, db = tangents
        right = db
        if da is not None:
            right = (
                db - _e.matmul(_turned(trans, keep(da)), _solve_triangular(a, b, lower, trans, unit))
                if db is not None
                else -_e.matmul(_turned(trans, keep(da)), _solve_triangular(a, b, lower, trans, unit))
            )
        return _solve_triangular(a, right, lower, trans, unit)

    def vjp(primals, ct):
        a, b = primals
        if trans == 0:
            w = _solve_triangular(a, ct, lower, 2, unit)
        elif trans == 1:
            w = _e.conj(_solve_triangular(a, _e.conj(ct), lower, 0, unit))
        else:
            w = _solve_triangular(a, ct, lower, 0, unit)
        x = _solve_triangular(a, b, lower, trans, unit)
        g = _e.matmul(w, _H(x))
        g = g if trans == 0 else g.mT if trans == 1 else _H(g)
        return keep(-g), w

    return call_with_rules("solve_triangular", run, (a, b), vjp, jvp)


# ---- LU ----
def _lu(a):
    """(LU, permutation, sign): a[permutation] = L U, both in one matrix."""
    m, n = a.shape[-2:]

    def run(a):
        lu_, perm, sign = _native("lu", [a], [((m, n), "same"), ((m,), "int64"), ((), "int64")], lambda t, batch: (t, batch, m, n))
        return lu_, perm, sign

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        lu_, perm, sign = _lu(a)
        k = builtins.min(_known("lu", m), _known("lu", n))
        rows = _permuted(da, perm)
        low, up = _lower_part(lu_, m, k), _upper_part(lu_, n, k)
        x = _solve_triangular(low, rows, True, 0, True)
        x = _solve_triangular(up, x.mT, False, 1, False).mT  # from the right
        return _e.matmul(low, _tril(x, -1)) + _e.matmul(_triu(x), up), _e.zeros_like(perm), _e.zeros_like(sign)

    return call_with_rules("lu", run, (a,), None, jvp)


def _permuted(x, perm):
    return (
        _e.take_along_axis(x, _ops["unsqueeze"](perm, -1), axis=-2)
        if not _is_complex(x)
        else ComplexTensor(_permuted(x._re, perm), _permuted(x._im, perm))
    )


def _padded(x, rows, cols):
    lead = [(0, 0)] * (len(x.shape) - 2)
    return _e.pad(x, [*lead, (0, rows - x.shape[-2]), (0, cols - x.shape[-1])])


def _lower_part(lu_, m, k):
    """L (m m), with ones beyond its k columns."""
    low = _padded(_tril(lu_[..., :, :k], -1), m, m)
    return low + _eye_like(lu_, m)


def _upper_part(lu_, n, k):
    """U (n n), with ones on the diagonal beyond its k rows."""
    up = _padded(_triu(lu_[..., :k, :]), n, n)
    if k == n:
        return up
    ones = constant(np.diag((np.arange(n) >= k).astype(np.float32)))
    return up + _ops["cast"](ones, dtype=up._re.dtype if _is_complex(up) else up.dtype)


def lu(a, permute_l=False, p_indices=False):
    """a = P L U with partial pivoting: (P, L, U); permute_l: (P L, U); p_indices: P as row numbers, a[P] = L
    U... of L's rows, as SciPy's."""
    a, dtype = _matrix("lu", a)
    m, n = (_known("lu", d) for d in a.shape[-2:])
    k = builtins.min(m, n)
    lu_, perm, _ = _lu(a)
    low = _tril(lu_[..., :, :k], -1) + _e.eye(m, k, dtype=lu_._re.dtype if _is_complex(lu_) else lu_.dtype)
    up = _triu(lu_[..., :k, :])
    low, up = _back(low, dtype), _back(up, dtype)
    inverse = _e.argsort(perm, axis=-1)
    if p_indices:
        return LUResult(inverse, low, up)
    if permute_l:
        return _permuted(low, inverse), up
    return LUResult(
        _ops["cast"](_ops["unsqueeze"](perm, -2) == _ops["unsqueeze"](_e.arange(m), -1), dtype=low._re.dtype if _is_complex(low) else low.dtype),
        low,
        up,
    )


def lu_factor(a):
    """(LU, row numbers): a[row numbers] = L U, both in one matrix; for lu_solve."""
    a, _ = _matrix("lu_factor", a)
    lu_, perm, _ = _lu(a)
    return lu_, perm


def lu_solve(lu_and_piv, b, trans=0):
    """x with op(a) x = b, from lu_factor(a)."""
    lu_, perm = lu_and_piv
    b = _floats(b)
    vector = len(b.shape) == 1
    b = _ops["unsqueeze"](b, -1) if vector else b
    lu_, b = _joint(lu_, b)
    perm = _e.broadcast_to(perm, (*tuple(lu_.shape)[:-2], lu_.shape[-1]))
    x = _lu_apply(lu_, perm, b, trans)
    return _e.squeeze(x, axis=-1) if vector else x


def _lu_apply(lu_, perm, b, trans):
    if trans == 0:
        return _solve_triangular(lu_, _solve_triangular(lu_, _permuted(b, perm), True, 0, True), False, 0, False)
    x = _solve_triangular(lu_, _solve_triangular(lu_, b, False, trans, False), True, trans, True)
    return _permuted(x, _e.argsort(perm, axis=-1))


def _solve(a, b, lu_, perm, trans):
    """x with op(a) x = b, by a's factors. Derivatives do not pass through the factors: the derivative of x is
    formed with a itself."""

    def run(a, b):
        return _lu_apply(lu_, perm, b, trans)

    def jvp(primals, tangents):
        a, b = primals
        da, db = tangents
        right = db
        if da is not None:
            x = _solve(a, b, lu_, perm, trans)
            right = db - _e.matmul(_turned(trans, da), x) if db is not None else -_e.matmul(_turned(trans, da), x)
        return _solve(a, right, lu_, perm, trans)

    def vjp(primals, ct):
        a, b = primals
        if trans == 1:
            w = _e.conj(_solve(a, _e.conj(ct), lu_, perm, 0))
        else:
            w = _solve(a, ct, lu_, perm, 2 if trans == 0 else 0)
        x = _solve(a, b, lu_, perm, trans)
        g = _e.matmul(w, _H(x))
        return -(g if trans == 0 else g.mT if trans == 1 else _H(g)), w

    return call_with_rules("solve", run, (a, b), vjp, jvp)


def _stopped(x):
    return ComplexTensor(_ops["stop_gradient"](x._re), _ops["stop_gradient"](x._im)) if _is_complex(x) else _ops["stop_gradient"](x)


def solve(a, b):
    """x with a x = b. b: matrices of columns, or (of one dim) one vector. Where a is singular: inf or nan."""
    a, dtype = _matrix("solve", a, square=True)
    b = _floats(b)
    vector = len(b.shape) == 1
    if not b.shape or b.shape[0 if vector else -2] != a.shape[-1]:
        raise ValueError(f"eager.linalg.solve: shapes {tuple(a.shape)} and {tuple(b.shape)} do not go together")
    b = _ops["unsqueeze"](b, -1) if vector else b
    if b.dtype in ("float16", "bfloat16"):
        b = _ops["cast"](b, dtype="float32")
    a, b = _same_dtype(a, b)
    lu_, perm, _ = _lu(_stopped(a))
    lead = _broadcast([tuple(a.shape)[:-2], tuple(b.shape)[:-2]])
    if tuple(a.shape)[:-2] != lead:
        n = a.shape[-1]
        a, lu_, perm = _e.broadcast_to(a, (*lead, n, n)), _e.broadcast_to(lu_, (*lead, n, n)), _e.broadcast_to(perm, (*lead, n))
    if tuple(b.shape)[:-2] != lead:
        b = _e.broadcast_to(b, (*lead, *tuple(b.shape)[-2:]))
    x = _solve(a, b, lu_, perm, 0)
    return _back(_e.squeeze(x, axis=-1) if vector else x, dtype)


def inv(a):
    """The inverse."""
    a, dtype = _matrix("inv", a, square=True)
    n = a.shape[-1]
    return _back(solve(a, _e.broadcast_to(_eye_like(a, n), tuple(a.shape))), dtype)


def _diag_of(x):
    return _e.diagonal(x, 0, -2, -1)


def _det_parts(a):
    lu_, _, sign = _lu(a)
    return _diag_of(lu_), sign


def det(a):
    """The determinant; 1 of an empty matrix."""
    a, dtype = _matrix("det", a, square=True)
    n = _known("det", a.shape[-1])
    if n == 2:
        return _back(a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0], dtype)
    if n == 3:
        m = [[a[..., i, j] for j in range(3)] for i in range(3)]
        out = (
            m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
            - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
            + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
        )
        return _back(out, dtype)
    return _back(_det(a), dtype)


def _det(a):
    def run(a):
        d, sign = _det_parts(a)
        return _e.prod(d, axis=-1) * _ops["cast"](sign, dtype=a._re.dtype if _is_complex(a) else a.dtype)

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        return _det(a) * _e.sum(_diag_of(solve(a, da)), axis=-1)

    return call_with_rules("det", run, (a,), None, jvp)


def slogdet(a):
    """(sign, log |det|): the sign is 0 and the logarithm -inf where the determinant is 0."""
    a, dtype = _matrix("slogdet", a, square=True)

    def run(a):
        d, sign = _det_parts(a)
        size = _e.abs(d)
        zero = _e.any(size == 0, axis=-1)
        unit = _e.prod(_e.sign(d), axis=-1) * _ops["cast"](sign, dtype=size.dtype)
        return unit, _ops["where"](zero, -math.inf, _e.sum(_ops["log"](_ops["where"](size == 0, 1.0, size)), axis=-1))

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        d = _e.sum(_diag_of(solve(a, da)), axis=-1)
        sign, _ = slogdet(a)
        turn = sign * ComplexTensor(_e.zeros_like(d._im), d._im) if _is_complex(d) else _e.zeros_like(sign)
        return turn, _e.real(d)

    sign, log = call_with_rules("slogdet", run, (a,), None, jvp)
    return SlogdetResult(_back(sign, dtype), _back(log, dtype))


# ---- Cholesky ----
def _symmetric(a, triangle=None):
    if triangle is None:
        return (a + _H(a)) * 0.5
    if triangle.upper() == "L":
        low = _tril(a, -1)
    elif triangle.upper() == "U":
        low = _H(_triu(a, 1))
    else:
        raise ValueError(f"eager.linalg: UPLO must be 'L' or 'U', got {triangle!r}")
    n = a.shape[-1]
    d = _e.real(a) * _e.eye(n, dtype=_e.real(a).dtype)
    return low + _H(low) + d


def cholesky(a, *, upper=False):
    """L, lower, with a = L L^H (upper: U with a = U^H U). a is taken as (a + a^H) / 2; nan where it is not
    positive definite."""
    a, dtype = _matrix("cholesky", a, square=True)
    low = _back(_cholesky(_symmetric(a)), dtype)
    return _H(low) if upper else low


def _cholesky(a):
    n = a.shape[-1]

    def run(a):
        return _native("cholesky", [a], [((n, n), "same")], lambda t, batch: (t, batch, n))[0]

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        low = _cholesky(a)
        x = _solve_triangular(low, da, True, 0, False)
        x = _H(_solve_triangular(low, _H(x), True, 0, False))
        half = _tril(x) - _diagonal_part(x) * 0.5
        return _e.matmul(low, half)

    return call_with_rules("cholesky", run, (a,), None, jvp)


def _diagonal_part(x):
    n = x.shape[-1]
    return x * _e.eye(n, dtype=x._re.dtype if _is_complex(x) else x.dtype)


def cho_factor(a, lower=False):
    """(factor, lower), for cho_solve."""
    return cholesky(a, upper=not lower), lower


def cho_solve(c_and_lower, b):
    """x with a x = b, from a's Cholesky factor."""
    c, lower = c_and_lower
    if lower:
        return solve_triangular(c, solve_triangular(c, b, 0, True), 2, True)
    return solve_triangular(c, solve_triangular(c, b, 2, False), 0, False)


# ---- QR ----
def qr(a, mode="reduced"):
    """a = Q R: Q with orthonormal columns, R upper triangular. mode: "reduced", "complete" (Q square) or "r"
    (R alone)."""
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"eager.linalg.qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    a, dtype = _matrix("qr", a)
    m, n = a.shape[-2:]
    if mode != "complete" and isinstance(m, int) and isinstance(n, int) and m < n:
        q, r1 = _qr(a[..., :, :m], False)
        r = _e.concatenate([r1, _e.matmul(_H(q), a[..., :, m:])], axis=-1)
    else:
        q, r = _qr(a, mode == "complete")
    q, r = _back(q, dtype), _back(r, dtype)
    return r if mode == "r" else QRResult(q, r)


def _qr(a, complete):
    m, n = (_known("qr", d) for d in a.shape[-2:])
    k = m if complete else builtins.min(m, n)

    def run(a):
        return tuple(_native("qr", [a], [((m, k), "same"), ((k, n), "same")], lambda t, batch: (t, batch, m, n, int(complete))))

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        if m < n or (complete and m != n):
            raise NotImplementedError(
                f"eager.linalg.qr: the derivative of mode 'complete' is there for square matrices only, and this one is {m} x {n}; use 'reduced'"
            )
        q, r = _qr(a, complete)
        x = _solve_triangular(r, da.mT, False, 1, False).mT  # da R^-1
        t = _e.matmul(_H(q), x)
        low = _tril(t, -1)
        turn = low - _H(low)
        if _is_complex(t):
            turn = turn + ComplexTensor(_e.zeros_like(t._re), _diagonal_part(t._im))
        return _e.matmul(q, turn - t) + x, _e.matmul(t - turn, r)

    return call_with_rules("qr", run, (a,), None, jvp)


