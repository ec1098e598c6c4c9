"""What the functions of eager.linalg share: the types of results, the choice of a LAPACK, and calls of the C
functions of src/native."""

import builtins
import glob
import math
import os
from typing import NamedTuple

import numpy as np

import eager as _e
from eas._eas import EagerTensor, lapack_path, native_call, tensor_ops
from eas._eas import lapack_name as _lapack_name

from ._complex import ComplexTensor, as_complex, complex64, complex128
from ._numpy import _floats

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
    """The form in which C functions read a tensor: complex numbers as pairs."""
    return _e.stack([x._re, x._im], axis=-1) if _is_complex(x) else x


def _native(name, xs, outs, numbers):
    """Calls a C function on tensors with the same batch dims. outs: (core shape, dtype) each, where dtype is
    "real", "same", "complex" or a dtype. numbers(type, batch) gives its integers."""
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


