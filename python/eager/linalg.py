"""Linear algebra: eager.linalg. Factorisations are C functions that run on the host as one step of a program (src/native); what is made of them is recorded operations.

All take leading batch dims, float32, float64, complex64 and complex128 (halves are computed in float32, integers become float32), sizes of 0, and work under vmap, compile and both
modes of derivatives, of any order. Nothing raises because of the data: a singular matrix gives inf or nan, and a matrix that is not positive definite a Cholesky factor of nan, as in
JAX. On devices without host memory the data is copied to the host and back. Matrices from 96 rows on go to a LAPACK if one is found (NumPy's, or the system's; EAS_LAPACK=none: never)."""

import builtins
import glob
import math
import os
from typing import NamedTuple

import numpy as np

import eager as _e
from eas._eas import EagerTensor, constant, lapack_path, native_call, tensor_ops
from eas._eas import lapack_name as _lapack_name

from ._complex import ComplexTensor, as_complex, complex64, complex128
from ._numpy import _floats, _known, _t
from .transforms.custom import call_with_rules

__all__ = [
    "LinAlgError", "cho_factor", "cho_solve", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "expm", "inv", "lapack", "lstsq", "lu", "lu_factor",
    "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "triangular_solve", "vecdot", "vector_norm",
]  # fmt: skip

_ops = tensor_ops
LinAlgError = np.linalg.LinAlgError


class QRResult(NamedTuple):
    Q: EagerTensor
    R: EagerTensor


class SlogdetResult(NamedTuple):
    sign: EagerTensor
    logabsdet: EagerTensor


class EighResult(NamedTuple):
    eigenvalues: EagerTensor
    eigenvectors: EagerTensor


class EigResult(NamedTuple):
    eigenvalues: EagerTensor
    eigenvectors: EagerTensor


class SVDResult(NamedTuple):
    U: EagerTensor
    S: EagerTensor
    Vh: EagerTensor


class LUResult(NamedTuple):
    P: EagerTensor
    L: EagerTensor
    U: EagerTensor


class LstsqResult(NamedTuple):
    x: EagerTensor
    residuals: EagerTensor
    rank: EagerTensor
    s: EagerTensor


def _tell_where_lapack_is():
    folder = os.path.join(os.path.dirname(os.path.dirname(np.__file__)), "numpy.libs")
    found = sorted(glob.glob(os.path.join(folder, "*openblas*"))) or sorted(
        glob.glob(os.path.join(os.path.dirname(np.__file__), ".dylibs", "*openblas*"))
    )
    if found:
        lapack_path(found[0])


_tell_where_lapack_is()


def lapack():
    """The file of the LAPACK that large matrices are given to, or None."""
    return _lapack_name()


# ---- calling ----
def _is_complex(x):
    return isinstance(x, ComplexTensor)


def _matrix(fn, x, square=False):
    """A tensor of at least two dims in a dtype that is computed with; and the dtype that its results have."""
    x = _floats(x)
    if len(x.shape) < 2:
        raise ValueError(f"eager.linalg.{fn}: matrices are wanted (at least 2 dims), got shape {tuple(x.shape)}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"eager.linalg.{fn}: square matrices are wanted, got shape {tuple(x.shape)}")
    dtype = x.dtype
    return (_ops["cast"](x, dtype="float32"), dtype) if dtype in ("float16", "bfloat16") else (x, dtype)


def _back(x, dtype):
    """A result in the dtype of the argument, which was a half."""
    return _ops["cast"](x, dtype=dtype) if dtype in ("float16", "bfloat16") and x.dtype.kind == "f" else x


_TYPES = {"float32": 0, "float64": 1, "complex64": 2, "complex128": 3}


def _code(x):
    return _TYPES[x.dtype.numpy_name]


def _pairs(x):
    """What a C function reads: complex numbers as pairs."""
    return _e.stack([x._re, x._im], axis=-1) if _is_complex(x) else x


def _native(name, xs, outs, numbers):
    """A C function on tensors with the same batch dims. outs: (core shape, dtype) each, where dtype is "real", "same", "complex" or a dtype. numbers(type, batch)."""
    x = xs[0]
    rows = [_pairs(t) for t in xs]
    depth = builtins.max(r.batch_dims for r in rows)
    if depth:
        lanes = [1] * depth
        for r in rows:
            for i, n in enumerate(tuple(r.physical_shape)[: r.batch_dims]):
                if n != 1:
                    lanes[depth - r.batch_dims + i] = n
        rows = [_ops["alias"](_ops["broadcast_batch_dims"](r, lanes), 0) for r in rows]
    core = 2 + _is_complex(x)
    lead = tuple(rows[0].shape)[: len(rows[0].shape) - core]
    code, part = _code(x), x._re.dtype if _is_complex(x) else x.dtype
    specs, pairs = [], []
    for shape, dtype in outs:
        is_pair = dtype == "complex" or (dtype == "same" and _is_complex(x))
        pairs.append(is_pair)
        specs.append(((*lead, *shape, 2) if is_pair else (*lead, *shape), part if dtype in ("real", "same", "complex") else dtype))
    made = native_call(name, tuple(rows), tuple(specs), tuple(numbers(code, math.prod(lead))))
    made = [_ops["alias"](m, depth) for m in made] if depth else made
    return [ComplexTensor(m[..., 0], m[..., 1]) if is_pair else m for m, is_pair in zip(made, pairs)]


def _H(x):
    return _e.conj(x).mT


def _tril(x, k=0):
    return _e.tril(x, k)


def _triu(x, k=0):
    return _e.triu(x, k)


def _eye_like(x, n):
    return _e.eye(n, dtype=x._re.dtype if _is_complex(x) else x.dtype)


def _same_dtype(a, b):
    if _is_complex(a) or _is_complex(b):
        wide = complex128 if builtins.any(t.dtype in ("float64", "complex128") for t in (a, b)) else complex64
        return as_complex(a, wide), as_complex(b, wide)
    wide = "float64" if "float64" in (a.dtype.numpy_name, b.dtype.numpy_name) else a.dtype if a.dtype == b.dtype else _e.result_type(a, b)
    return _ops["cast"](a, dtype=wide), _ops["cast"](b, dtype=wide)


def _broadcast(shapes):
    """NumPy's rule for batch dims, of symbolic sizes too."""
    rank = builtins.max(len(s) for s in shapes)
    out = []
    for i in range(rank):
        n = 1
        for s in shapes:
            k = i - (rank - len(s))
            if k >= 0 and not (isinstance(s[k], int) and s[k] == 1):
                n = s[k]
        out.append(n)
    return tuple(out)


def _joint(a, b):
    """a and b with one dtype and the same batch dims."""
    a, b = _same_dtype(a, b)
    lead = _broadcast([tuple(a.shape)[:-2], tuple(b.shape)[:-2]])
    widen = lambda t: t if tuple(t.shape)[:-2] == lead else _e.broadcast_to(t, (*lead, *tuple(t.shape)[-2:]))  # noqa: E731
    return widen(a), widen(b)


# ---- triangular systems ----
def solve_triangular(a, b, trans=0, lower=False, unit_diagonal=False):
    """x with op(a) x = b for a triangular a, of which the other triangle is not read. trans: 0 (a), 1 or "T", 2 or "C" (conjugate transpose). b: matrices, or one vector."""
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


def _solve_triangular(a, b, lower, trans, unit):
    n, k = a.shape[-1], b.shape[-1]

    def run(a, b):
        return _native("solve_triangular", [a, b], [((n, k), "same")], lambda t, batch: (t, batch, n, k, int(lower), trans, int(unit)))[0]

    def keep(m):
        m = _tril(m, -1 if unit else 0) if lower else _triu(m, 1 if unit else 0)
        return m

    def op(m):
        return m if trans == 0 else m.mT if trans == 1 else _H(m)

    def jvp(primals, tangents):
        a, b = primals
        da, db = tangents
        right = db
        if da is not None:
            right = (
                db - _e.matmul(op(keep(da)), _solve_triangular(a, b, lower, trans, unit))
                if db is not None
                else -_e.matmul(op(keep(da)), _solve_triangular(a, b, lower, trans, unit))
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
    """a = P L U with partial pivoting: (P, L, U); permute_l: (P L, U); p_indices: P as row numbers, a[P] = L U... of L's rows, as SciPy's."""
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
    """op(a) x = b by a's factors, which derivatives do not pass through: that of x goes by a itself."""

    def run(a, b):
        return _lu_apply(lu_, perm, b, trans)

    def op(m):
        return m if trans == 0 else m.mT if trans == 1 else _H(m)

    def jvp(primals, tangents):
        a, b = primals
        da, db = tangents
        right = db
        if da is not None:
            x = _solve(a, b, lu_, perm, trans)
            right = db - _e.matmul(op(da), x) if db is not None else -_e.matmul(op(da), x)
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
    """L, lower, with a = L L^H (upper: U with a = U^H U). a is taken as (a + a^H) / 2; nan where it is not positive definite."""
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
    """a = Q R: Q with orthonormal columns, R upper triangular. mode: "reduced", "complete" (Q square) or "r" (R alone)."""
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


# ---- eigenvalues ----
def eigh(a, UPLO=None):
    """(eigenvalues ascending, eigenvectors as columns) of Hermitian matrices: a is taken as (a + a^H) / 2, or (UPLO "L" or "U") as what that triangle says."""
    a, dtype = _matrix("eigh", a, square=True)
    w, v = _eigh(_symmetric(a, UPLO))
    return EighResult(_back(w, dtype), _back(v, dtype))


def _eigh(a):
    n = a.shape[-1]

    def run(a):
        return tuple(_native("eigh", [a], [((n,), "real"), ((n, n), "same")], lambda t, batch: (t, batch, n, 1)))

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        w, v = _eigh(a)
        m = _e.matmul(_H(v), _e.matmul(da, v))
        gaps = _ops["unsqueeze"](w, -2) - _ops["unsqueeze"](w, -1)
        eye = _e.eye(n, dtype=w.dtype)
        f = 1 / (gaps + eye) - eye
        return _e.real(_diag_of(m)), _e.matmul(v, m * f)

    return call_with_rules("eigh", run, (a,), None, jvp)


def eigvalsh(a, UPLO=None):
    """Eigenvalues of Hermitian matrices, ascending."""
    a, dtype = _matrix("eigvalsh", a, square=True)
    return _back(_eigvalsh(_symmetric(a, UPLO)), dtype)


def _eigvalsh(a):
    n = a.shape[-1]

    def run(a):
        return _native("eigh", [a], [((n,), "real")], lambda t, batch: (t, batch, n, 0))[0]

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        _, v = _eigh(a)
        return _e.real(_diag_of(_e.matmul(_H(v), _e.matmul(da, v))))

    return call_with_rules("eigvalsh", run, (a,), None, jvp)


def eig(a):
    """(eigenvalues, eigenvectors as columns of length 1), complex. The derivative of the eigenvectors keeps their length and says nothing of their phase."""
    a, _ = _matrix("eig", a, square=True)
    return EigResult(*_eig(a))


def _eig(a):
    n = a.shape[-1]

    def run(a):
        return tuple(_native("eig", [a], [((n,), "complex"), ((n, n), "complex")], lambda t, batch: (t, batch, n, 1)))

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        w, v = _eig(a)
        m = solve(v, _e.matmul(as_complex(da), v))
        gaps = _ops["unsqueeze"](w, -2) - _ops["unsqueeze"](w, -1)
        eye = _e.eye(n, dtype=w._re.dtype)
        f = 1 / (gaps + eye) - eye
        d = _e.matmul(v, m * f)
        return _diag_of(m), d - v * _ops["unsqueeze"](_e.real(_e.sum(_e.conj(v) * d, axis=-2)), -2)

    return call_with_rules("eig", run, (a,), None, jvp)


def eigvals(a):
    """Eigenvalues, complex."""
    a, _ = _matrix("eigvals", a, square=True)
    return _eigvals(a)


def _eigvals(a):
    n = a.shape[-1]

    def run(a):
        return _native("eig", [a], [((n,), "complex")], lambda t, batch: (t, batch, n, 0))[0]

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        _, v = _eig(a)
        return _diag_of(solve(v, _e.matmul(as_complex(da), v)))

    return call_with_rules("eigvals", run, (a,), None, jvp)


# ---- singular values ----
def svd(a, full_matrices=True, compute_uv=True, hermitian=False):
    """a = U diag(S) Vh, S descending: (U, S, Vh), or S alone. Derivatives: of full_matrices=False, and of square matrices."""
    if not compute_uv:
        return svdvals(a)
    a, dtype = _matrix("svd", a)
    u, s, vh = _svd(a, full_matrices)
    return SVDResult(_back(u, dtype), _back(s, dtype), _back(vh, dtype))


def _svd(a, full):
    m, n = (_known("svd", d) for d in a.shape[-2:])
    k = builtins.min(m, n)
    full = full and m != n

    def run(a):
        s, u, vh = _native(
            "svd",
            [a],
            [((k,), "real"), ((m, m if full else k), "same"), ((n if full else k, n), "same")],
            lambda t, batch: (t, batch, m, n, int(full), 1),
        )
        return u, s, vh

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        if full:
            raise NotImplementedError(f"eager.linalg.svd: full_matrices=True of a {m} x {n} matrix has no derivative; use full_matrices=False")
        u, s, vh = _svd(a, False)
        v = _H(vh)
        d = _e.matmul(_H(u), _e.matmul(da, v))
        row, col = _ops["unsqueeze"](s, -2), _ops["unsqueeze"](s, -1)
        eye = _e.eye(k, dtype=s.dtype)
        gaps = (row + col) * (row - col)
        f = 1 / (gaps + eye) - eye
        right, left = d * row, d * col
        none = _ops["cast"](s == 0, dtype=s.dtype)
        inverse = 1 / (s + none) - none
        turn = (d - _H(d)) * (eye * _ops["unsqueeze"](inverse, -1)) * 0.5
        du = _e.matmul(u, (right + _H(right)) * f + turn)
        dv = _e.matmul(v, (left + _H(left)) * f)
        if m > n:
            x = _e.matmul(da, v)
            du = du + (x - _e.matmul(u, _e.matmul(_H(u), x))) / row
        if n > m:
            x = _e.matmul(_H(da), u)
            dv = dv + (x - _e.matmul(v, _e.matmul(_H(v), x))) / row
        return du, _e.real(_diag_of(d)), _H(dv)

    return call_with_rules("svd", run, (a,), None, jvp)


def svdvals(a):
    """Singular values, descending."""
    a, dtype = _matrix("svdvals", a)
    m, n = (_known("svdvals", d) for d in a.shape[-2:])
    k = builtins.min(m, n)

    def run(a):
        return _native("svd", [a], [((k,), "real")], lambda t, batch: (t, batch, m, n, 0, 0))[0]

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        u, _, vh = _svd(a, False)
        return _e.real(_diag_of(_e.matmul(_H(u), _e.matmul(da, _H(vh)))))

    return _back(call_with_rules("svdvals", run, (a,), None, jvp), dtype)


def _cutoff(x, rcond, m, n):
    """Singular values up to rcond times the largest count as 0; None: the larger size times eps."""
    if rcond is None:
        return builtins.max(m, n) * _e.finfo(_e.real(x).dtype).eps
    return rcond


def pinv(a, rcond=None, hermitian=False, *, rtol=None):
    """The Moore-Penrose pseudoinverse; singular values up to rcond (default: max(M, N) eps) times the largest count as 0."""
    a, dtype = _matrix("pinv", a)
    m, n = (_known("pinv", d) for d in a.shape[-2:])
    rcond = rtol if rcond is None else rcond
    return _back(_pinv(a, _cutoff(a, rcond, m, n)), dtype)


def _pinv(a, rcond):
    m, n = a.shape[-2:]

    def run(a):
        u, s, vh = _svd(a, False)
        if s.shape[-1] == 0:
            return _e.zeros((*tuple(a.shape)[:-2], n, m), dtype=a.dtype)
        limit = (
            _e.max(s, axis=-1, keepdims=True) * _ops["unsqueeze"](_t(rcond), -1)
            if not isinstance(rcond, (int, float))
            else _e.max(s, axis=-1, keepdims=True) * rcond
        )
        large = s > limit
        inverse = _ops["where"](large, 1 / _ops["where"](large, s, 1.0), 0.0)
        return _e.matmul(_H(vh) * _ops["unsqueeze"](inverse, -2), _H(u))

    def jvp(primals, tangents):
        (a,), (da,) = primals, tangents
        p = _pinv(a, rcond)
        ph, dh = _H(p), _H(da)
        left = _e.matmul(_e.matmul(p, ph), dh)
        right = _e.matmul(_e.matmul(dh, ph), p)
        return left - _e.matmul(_e.matmul(left, a), p) + right - _e.matmul(p, _e.matmul(a, right)) - _e.matmul(p, _e.matmul(da, p))

    return call_with_rules("pinv", run, (a,), None, jvp)


def matrix_rank(a, tol=None, hermitian=False, *, rtol=None):
    """How many singular values are above tol, or above rtol (default: max(M, N) eps) times the largest."""
    a = _floats(a)
    if len(a.shape) < 2:
        return _ops["cast"](_e.any(a != 0), dtype="int64")
    a, _ = _matrix("matrix_rank", a)
    m, n = (_known("matrix_rank", d) for d in a.shape[-2:])
    s = svdvals(a)
    if builtins.min(m, n) == 0:
        return _e.zeros(tuple(a.shape)[:-2], dtype="int64")
    if tol is not None:
        limit = _ops["unsqueeze"](_t(tol), -1) if isinstance(tol, (EagerTensor, np.ndarray)) else tol
    else:
        r = _cutoff(a, rtol, m, n)
        limit = _e.max(s, axis=-1, keepdims=True) * (_ops["unsqueeze"](_t(r), -1) if isinstance(r, (EagerTensor, np.ndarray)) else r)
    return _e.sum(s > limit, axis=-1, dtype="int64")


def lstsq(a, b, rcond=None):
    """(x, residuals, rank, singular values): x of least length that makes |a x - b| least. Residuals as NumPy: empty unless a has full rank and more rows than columns, which is
    only known from the data; here they are the sums of squares whenever there are more rows than columns."""
    a, dtype = _matrix("lstsq", a)
    b = _floats(b)
    vector = len(b.shape) == 1
    b = _ops["unsqueeze"](b, -1) if vector else b
    a, b = _joint(a, b)
    m, n = (_known("lstsq", d) for d in a.shape[-2:])
    if b.shape[-2] != m:
        raise ValueError(f"eager.linalg.lstsq: shapes {tuple(a.shape)} and {tuple(b.shape)} do not go together")
    cut = _cutoff(a, rcond, m, n)
    cut = builtins.max(cut, 0.0) if isinstance(cut, (int, float)) else cut
    x = _e.matmul(_pinv(a, cut), b)
    s = svdvals(a)
    rank = (
        _e.sum(s > _e.max(s, axis=-1, keepdims=True) * cut, axis=-1, dtype="int64")
        if builtins.min(m, n)
        else _e.zeros(tuple(a.shape)[:-2], dtype="int64")
    )
    if m > n:
        r = _e.matmul(a, x) - b
        residuals = _e.sum(_e.abs(r) ** 2, axis=-2)
    else:
        residuals = _e.zeros((*tuple(a.shape)[:-2], 0), dtype=s.dtype)
    x = _back(x, dtype)
    return LstsqResult(_e.squeeze(x, axis=-1) if vector else x, residuals, rank, s)


# ---- norms ----
def _largest(x, axis, keepdims=False):
    """The largest element; 0 where there is none, as the norm of nothing is."""
    empty = any(isinstance(n, int) and n == 0 for n in x.shape)
    return (_e.sum if empty else _e.max)(x, axis, keepdims)


def vector_norm(x, *, axis=None, keepdims=False, ord=2):
    """The p-norm of vectors: ord a number, inf, -inf or 0 (how many are not 0). axis None: of all elements."""
    x = _floats(x)
    if axis is not None and not isinstance(axis, int):
        axis = tuple(axis)
    size = _e.abs(x)
    if ord == 0:
        return _e.sum(_ops["cast"](size != 0, dtype=size.dtype), axis, keepdims)
    if ord == math.inf:
        return _largest(size, axis, keepdims)
    if ord == -math.inf:
        return _e.min(size, axis, keepdims)
    if ord == 1:
        return _e.sum(size, axis, keepdims)
    if ord == 2:
        total = _e.sum(_e.real(x * _e.conj(x)), axis, keepdims)
        return _ops["sqrt"](total)
    return _ops["pow"](_e.sum(_ops["pow"](size, float(ord)), axis, keepdims), 1.0 / ord)


def matrix_norm(x, *, keepdims=False, ord="fro"):
    """A norm of matrices: "fro", "nuc", 1, -1, 2, -2, inf, -inf."""
    x, dtype = _matrix("matrix_norm", x)
    if ord in ("fro", None):
        out = vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    elif ord in (2, -2, "nuc"):
        s = svdvals(x)
        out = _e.sum(s, axis=-1) if ord == "nuc" else _largest(s, -1) if ord == 2 else _e.min(s, axis=-1)
        out = _ops["unsqueeze"](out, (-2, -1)) if keepdims else out
    elif ord in (1, -1, math.inf, -math.inf):
        columns = abs(ord) == 1
        sums = _e.sum(_e.abs(x), axis=-2 if columns else -1, keepdims=True)
        out = (_largest if ord > 0 else _e.min)(sums, axis=(-2, -1), keepdims=keepdims)
    else:
        raise ValueError(f"eager.linalg.matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    return _back(out, dtype)


def norm(x, ord=None, axis=None, keepdims=False):
    """As numpy.linalg.norm: of vectors (one axis) or matrices (two); without ord and axis of all elements."""
    x = _floats(x)
    if axis is None:
        if ord is None:
            return vector_norm(x, keepdims=keepdims)
        axis = tuple(range(len(x.shape)))
    axis = (axis,) if isinstance(axis, int) else tuple(axis)
    rank = len(x.shape)
    axis = tuple(a % rank for a in axis)
    if len(axis) == 1:
        return vector_norm(x, axis=axis[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axis) != 2:
        raise ValueError(f"eager.linalg.norm: one axis for vectors or two for matrices, got {axis}")
    out = matrix_norm(_e.moveaxis(x, axis, (-2, -1)), ord="fro" if ord is None else ord)
    return _ops["unsqueeze"](out, tuple(sorted(axis))) if keepdims else out


def cond(x, p=None):
    """The condition number: |x| |x^-1| in a norm; None or 2: the largest over the smallest singular value."""
    x, _ = _matrix("cond", x)
    if p in (None, 2, -2):
        s = svdvals(x)
        hi, lo = s[..., 0], s[..., -1]
        return lo / hi if p == -2 else hi / lo
    return matrix_norm(x, ord=p) * matrix_norm(inv(x), ord=p)


# ---- products ----
def matrix_power(a, n):
    """a times itself, n times; negative: of the inverse."""
    a = _t(a)
    if a.dtype.kind == "b" or len(a.shape) < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"eager.linalg.matrix_power: square matrices of numbers are wanted, got shape {tuple(a.shape)}")
    if n < 0:
        a, n = inv(a), -n
    if n == 0:
        eye = _e.eye(a.shape[-1], dtype=a._re.dtype if _is_complex(a) else a.dtype)
        return _e.broadcast_to(eye, tuple(a.shape)) + a * 0 if a.dtype.kind == "c" else _e.broadcast_to(eye, tuple(a.shape))
    out = None
    while n:
        out = (a if out is None else _e.matmul(out, a)) if n & 1 else out
        n >>= 1
        a = _e.matmul(a, a) if n else a
    return out


def multi_dot(arrays):
    """The product of several matrices (the first and last may be vectors), in the order that takes the fewest operations."""
    xs = [_t(a) for a in arrays]
    if len(xs) < 2:
        raise ValueError("eager.linalg.multi_dot: at least two arrays are wanted")
    first, last = len(xs[0].shape) == 1, len(xs[-1].shape) == 1
    xs[0] = _ops["unsqueeze"](xs[0], 0) if first else xs[0]
    xs[-1] = _ops["unsqueeze"](xs[-1], 1) if last else xs[-1]
    dims = [_known("multi_dot", xs[0].shape[0])] + [_known("multi_dot", x.shape[1]) for x in xs]
    n = len(xs)
    cost = [[0] * n for _ in range(n)]
    cut = [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i][j], cut[i][j] = builtins.min((cost[i][k] + cost[k + 1][j] + dims[i] * dims[k + 1] * dims[j + 1], k) for k in range(i, j))

    def product(i, j):
        return xs[i] if i == j else _e.matmul(product(i, cut[i][j]), product(cut[i][j] + 1, j))

    out = product(0, n - 1)
    out = _e.squeeze(out, axis=0) if first else out
    return _e.squeeze(out, axis=-1) if last else out


_PADE = (
    64764752532480000,
    32382376266240000,
    7771770303897600,
    1187353796428800,
    129060195264000,
    10559470521600,
    670442572800,
    33522128640,
    1323241920,
    40840800,
    960960,
    16380,
    182,
    1,
)


def expm(a, *, max_squarings=16):
    """The matrix exponential: a Pade approximant of order 13 of a / 2^s, squared s times. A norm above 5.4 * 2^max_squarings gives nan."""
    a, dtype = _matrix("expm", a, square=True)
    n = a.shape[-1]
    eye = _eye_like(a, n)
    if isinstance(n, int) and n == 0:
        return a
    part = _e.real(a).dtype
    size = _ops["stop_gradient"](matrix_norm(a, ord=1))
    theta = 5.371920351148152 if part == "float64" else 3.925724783138660
    s = _ops["maximum"](_ops["ceil"](_ops["log2"](_ops["maximum"](size, 1e-30) / theta)), 0.0)
    s = _ops["unsqueeze"](s, (-2, -1))
    a = a * _ops["exp2"](-_ops["minimum"](s, float(max_squarings)))
    b = _PADE if part == "float64" else None
    a2 = _e.matmul(a, a)
    a4 = _e.matmul(a2, a2)
    a6 = _e.matmul(a2, a4)
    if b is not None:
        scale = 1.0 / b[0]
        c = [v * scale for v in b]
        u = _e.matmul(a, _e.matmul(a6, a6 * c[13] + a4 * c[11] + a2 * c[9]) + a6 * c[7] + a4 * c[5] + a2 * c[3] + eye * c[1])
        v = _e.matmul(a6, a6 * c[12] + a4 * c[10] + a2 * c[8]) + a6 * c[6] + a4 * c[4] + a2 * c[2] + eye * c[0]
    else:
        c = [v / 17297280.0 for v in (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0)]
        u = _e.matmul(a, a6 * c[7] + a4 * c[5] + a2 * c[3] + eye * c[1])
        v = a6 * c[6] + a4 * c[4] + a2 * c[2] + eye * c[0]
    r = solve(v - u, v + u)
    for i in range(max_squarings):
        r = _e.where(s > i, _e.matmul(r, r), r)
    return _back(_e.where(s > max_squarings, math.nan, r), dtype)


matrix_exp = expm


def tensorsolve(a, b, axes=None):
    """x with tensordot(a, x, x.ndim) = b."""
    a, b = _t(a), _t(b)
    rank = len(a.shape)
    if axes is not None:
        order = [i for i in range(rank) if i not in axes] + list(axes)
        a = _e.permute(a, order)
    rest = tuple(a.shape)[len(b.shape) :]
    n = math.prod(rest)
    return _e.reshape(solve(_e.reshape(a, (-1, n)), _e.reshape(b, (-1,))), rest)


def tensorinv(a, ind=2):
    """The inverse with respect to tensordot(a, ., ind)."""
    a = _t(a)
    lead, rest = tuple(a.shape)[:ind], tuple(a.shape)[ind:]
    return _e.reshape(inv(_e.reshape(a, (math.prod(lead), -1))), (*rest, *lead))


def matmul(x1, x2, /):
    """Matrix product; leading dims broadcast."""
    return _e.matmul(x1, x2)


def matrix_transpose(x, /):
    """The last two axes swapped."""
    return _e.matrix_transpose(x)


def outer(x1, x2, /):
    """All products of an element of x1 and one of x2, of one dim each."""
    x1, x2 = _t(x1), _t(x2)
    if len(x1.shape) != 1 or len(x2.shape) != 1:
        raise ValueError(f"eager.linalg.outer: two tensors of one dim are wanted, got {len(x1.shape)} and {len(x2.shape)} dims")
    return _e.outer(x1, x2)


def tensordot(x1, x2, /, *, axes=2):
    """Sum of products over several axes."""
    return _e.tensordot(x1, x2, axes=axes)


def vecdot(x1, x2, /, *, axis=-1):
    """Sum of products along an axis, x1 conjugated."""
    return _e.vecdot(x1, x2, axis=axis)


def cross(x1, x2, /, *, axis=-1):
    """The cross product of vectors of 3 elements along an axis."""
    x1, x2 = _t(x1), _t(x2)
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(f"eager.linalg.cross: vectors of 3 elements are wanted, got shapes {tuple(x1.shape)} and {tuple(x2.shape)}")
    return _e.cross(x1, x2, axis=axis)


def diagonal(x, /, *, offset=0):
    """The diagonals of matrices."""
    return _e.diagonal(x, offset, -2, -1)


def trace(x, /, *, offset=0, dtype=None):
    """Sums of the diagonals of matrices."""
    return _e.sum(_e.diagonal(_t(x), offset, -2, -1), axis=-1, dtype=dtype)
