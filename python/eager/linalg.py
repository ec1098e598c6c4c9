"""Linear algebra: eager.linalg. Factorisations are C functions that run on the host as one step of a program
(src/native); what is made of them is recorded operations.

All take leading batch dims, float32, float64, complex64 and complex128 (halves are computed in float32,
integers become float32), sizes of 0, and work under vmap, compile and both modes of derivatives, of any
order. Nothing raises because of the data: a singular matrix gives inf or nan, and a matrix that is not
positive definite a Cholesky factor of nan, as in JAX. On devices without host memory the data is copied to
the host and back. Matrices from 96 rows on go to a LAPACK if one is found (NumPy's, or the system's;
EAS_LAPACK=none: never)."""

import builtins
import math

import eager as _e

from ._linalg_factor import cho_factor, cho_solve, cholesky, det, inv, lu, lu_factor, lu_solve, qr, slogdet, solve, solve_triangular, triangular_solve
from ._linalg_native import (  # noqa: F401
    EighResult,
    EigResult,
    LinAlgError,
    LstsqResult,
    LUResult,
    QRResult,
    SlogdetResult,
    SVDResult,
    _back,
    _broadcast,
    _eye_like,
    _is_complex,
    _matrix,
    _ops,
    lapack,
)
from ._linalg_spectral import eig, eigh, eigvals, eigvalsh, lstsq, matrix_rank, pinv, svd, svdvals
from ._numpy import _floats, _known, _t

__all__ = [
    "LinAlgError", "cho_factor", "cho_solve", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "expm", "inv", "lapack", "lstsq", "lu", "lu_factor",
    "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "triangular_solve", "vecdot", "vector_norm",
]  # fmt: skip


# ---- norms ----
def _largest(x, axis, keepdims=False):
    """The largest element; 0 if there are none, as the norm of an empty vector is."""
    empty = any(isinstance(n, int) and n == 0 for n in x.shape)
    return (_e.sum if empty else _e.max)(x, axis, keepdims)


def vector_norm(x, *, axis=None, keepdims=False, ord=2):
    """The p-norm of vectors: ord a number, inf, -inf or 0 (how many are not 0). axis None: of all elements.
    """
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
    """The product of several matrices (the first and last may be vectors), in the order that takes the fewest
    operations."""
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
    """The matrix exponential: a Pade approximant of order 13 of a / 2^s, squared s times. A norm above 5.4 *
    2^max_squarings gives nan."""
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
