"""Eigenvalues, singular values and what is computed from them, with their derivatives: parts of eager.linalg.
"""

import builtins

import numpy as np

import eager as _e
from eas._eas import EagerTensor

from ._complex import as_complex
from ._linalg_factor import _diag_of, _symmetric, solve
from ._linalg_native import _H, EighResult, EigResult, LstsqResult, SVDResult, _back, _joint, _matrix, _native, _ops
from ._numpy import _floats, _known, _t
from .transforms.custom import call_with_rules


# ---- eigenvalues ----
def eigh(a, UPLO=None):
    """(eigenvalues ascending, eigenvectors as columns) of Hermitian matrices: a is taken as (a + a^H) / 2, or
    (UPLO "L" or "U") as what that triangle says."""
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
    """(eigenvalues, eigenvectors as columns of length 1), complex. The derivative of the eigenvectors keeps
    their length and says nothing of their phase."""
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
    """a = U diag(S) Vh, S descending: (U, S, Vh), or S alone. Derivatives: of full_matrices=False, and of
    square matrices."""
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
    """The Moore-Penrose pseudoinverse; singular values up to rcond (default: max(M, N) eps) times the largest
    count as 0."""
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
    """(x, residuals, rank, singular values): x of least length that makes |a x - b| least. Residuals as
    NumPy: empty unless a has full rank and more rows than columns, which is only known from the data; here
    they are the sums of squares whenever there are more rows than columns."""
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


