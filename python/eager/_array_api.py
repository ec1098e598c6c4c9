"""Functions of the Python array API standard (2024.12) whose names or arguments differ from those of our
operations. Functions whose result's shape depends on the data (unique, nonzero) evaluate."""

import builtins
from typing import NamedTuple

import numpy as np

from eas._eas import DType, EagerTensor, constant, realize_all, tensor_ops
from eas._eas import devices as _devices

from ._wrapped import Wrapped
from .ops.creation import _diagonal, asarray

_ops = tensor_ops
_sum = _ops["reduce_sum"]._called("sum")
_prod, _mean, _var, _std, _cumsum, _cumprod = (_ops[n] for n in ("prod", "mean", "var", "std", "cumsum", "cumprod"))

e, pi, inf, nan, newaxis = np.e, np.pi, np.inf, np.nan, None

ALIASES = {
    "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh", "atan": "atan", "atanh": "atanh", "divide": "div", "floor_divide": "floordiv", "isfinite": "is_finite",
    "isinf": "is_inf", "isnan": "is_nan", "multiply": "mul", "negative": "neg", "remainder": "mod", "subtract": "sub", "max": "reduce_max", "min": "reduce_min",
    "concat": "concatenate", "true_divide": "div", "power": "pow", "absolute": "abs", "swapaxes": "swap_axes",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "log_softmax": "logsoftmax",
}  # fmt: skip


NAMED = {name: _ops[op] if name == op else _ops[op]._called(name) for name, op in ALIASES.items() if op in _ops}


def _tensor(x):
    return x if isinstance(x, (EagerTensor, Wrapped)) else constant(x)


def _dtype(d):
    """Our dtype from anything that names one, those of complex and of stored tensors included."""
    from . import _complex, _storage

    return _complex._dtype_or_none(d) or _storage.dtype_or_none(d) or DType(d)


def is_dtype_name(text):
    """Does the text name a dtype?"""
    try:
        return _dtype(text) is not None
    except TypeError:
        return False


def astype(x, dtype, /, *, copy=True, device=None):
    """x in another dtype."""
    return asarray(_tensor(x), dtype=dtype, device=device)


def _in_dtype(op, x, dtype, *args):
    """The operation on x cast to the dtype, so that it is computed in that dtype and gives it."""
    cast = _ops["cast"]
    return op(x, *args) if dtype is None else cast(op(cast(x, dtype=dtype), *args), dtype=dtype)


def sum(x, axis=None, keepdims=False, dtype=None):
    """Sum. dtype: that of the result, in which the sum is also computed."""
    return _in_dtype(_sum, x, dtype, axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    """Product. dtype: that of the result, in which the product is also computed."""
    return _in_dtype(_prod, x, dtype, axis, keepdims)


def mean(x, axis=None, keepdims=False, dtype=None):
    """Arithmetic mean. dtype: that of the result, in which the mean is also computed."""
    return _in_dtype(_mean, x, dtype, axis, keepdims)


def var(x, axis=None, keepdims=False, correction=0.0, dtype=None):
    """Variance: squares of the distances from the mean, over the count less correction. dtype: that of the
    result, in which the variance is also computed."""
    return _in_dtype(_var, x, dtype, axis, keepdims, correction)


def std(x, axis=None, keepdims=False, correction=0.0, dtype=None):
    """Standard deviation: the square root of var. dtype: that of the result, in which it is also computed."""
    return _in_dtype(_std, x, dtype, axis, keepdims, correction)


def cumsum(x, axis=None, reverse=False, dtype=None):
    """Running sums; None: flattened. dtype: that of the result, in which they are also computed."""
    return _in_dtype(_cumsum, x, dtype, axis, reverse)


def cumprod(x, axis=None, reverse=False, dtype=None):
    """Running products; None: flattened. dtype: that of the result, in which they are also computed."""
    return _in_dtype(_cumprod, x, dtype, axis, reverse)


def cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False):
    """Running sums."""
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False):
    """Running products."""
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial)


def _cumulative(op, x, axis, dtype, include_initial):
    x = _tensor(x)
    if axis is None:
        if len(x.shape) != 1:
            raise ValueError(f"eager.{op}: an axis is needed for a tensor of {len(x.shape)} dims")
        axis = 0
    return _in_dtype(_ops[op], x, dtype, axis, include_initial)


def sort(x, axis=-1, descending=False, stable=True):
    """The elements in order, NaN last; equal elements keep their order."""
    return _ops["sort"](x, axis=axis, descending=descending)


def argsort(x, axis=-1, descending=False, stable=True):
    """The indices that sort the elements."""
    return _ops["argsort"](x, axis=axis, descending=descending)


def clip(x, min=None, max=None):
    """x with elements below min replaced by min, and elements above max by max."""
    x = _tensor(x)
    dtype = x.dtype
    try:
        if min is not None:
            x = _ops["maximum"](x, min)
        if max is not None:
            x = _ops["minimum"](x, max)
    except (TypeError, ValueError) as e:  # the message names clip, which the user called
        text = str(e)
        for op in ("maximum", "minimum"):
            text = text.replace(f"eager.{op}:", "eager.clip:")
        raise type(e)(text) from None
    return x if x.dtype == dtype or dtype.kind != "f" else _ops["cast"](x, dtype=dtype)


def positive(x, /):
    """x itself."""
    return _tensor(x)


def matmul(x1, x2, /):
    """Matrix product."""
    return _ops["matmul"](x1, x2)


def vecdot(x1, x2, /, *, axis=-1):
    """Sums of products along an axis, x1 conjugated; of integers in their own dtype."""
    x1, x2 = _tensor(x1), _tensor(x2)
    out = _ops["vecdot"](x1, x2, axis=axis)
    dtype = result_type(x1, x2)
    return out if out.dtype == dtype or dtype.kind == "c" else _ops["cast"](out, dtype=dtype)


def outer(x, y):
    """All products of an element of x and one of y, both flattened."""
    return _ops["outer"](x, y)


def tensordot(x1, x2, /, *, axes=2):
    """Sum of products over several axes: how many of the last and first ones, or two lists of axes."""
    x1, x2 = _tensor(x1), _tensor(x2)
    if isinstance(axes, int):
        rank = len(x1.shape)
        if axes < 0 or axes > builtins.min(rank, len(x2.shape)):
            raise ValueError(f"eager.tensordot: axes={axes} for tensors of {rank} and {len(x2.shape)} dims")
        axes = (list(range(rank - axes, rank)), list(range(axes)))
    return _ops["tensordot"](x1, x2, axes_x=axes[0], axes_y=axes[1])


def broadcast_arrays(*xs):
    """The tensors, broadcast to their common shape."""
    xs = [_tensor(x) for x in xs]
    shape = np.broadcast_shapes(*(tuple(int(d) for d in x.shape) for x in xs))
    return [_ops["broadcast_to"](x, shape) for x in xs]


def broadcast_shapes(*shapes):
    """The shape to which these shapes broadcast."""
    return np.broadcast_shapes(*(tuple(int(d) for d in s) for s in shapes))


def meshgrid(*xs, indexing="xy"):
    """Coordinates of a grid from those of its axes."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"eager.meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    xs = [_tensor(x) for x in xs]
    n = len(xs)
    place = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    shape = [None] * n
    for x, p in zip(xs, place):
        shape[p] = x.size
    return [_ops["broadcast_to"](_ops["reshape"](x, [-1 if i == p else 1 for i in range(n)]), shape) for x, p in zip(xs, place)]


def permute_dims(x, /, axes):
    """x with its axes in another order."""
    return _ops["permute"](x, axes)


def expand_dims(x, /, axis=0):
    """x with a new axis of size 1."""
    x = _tensor(x)
    rank = len(x.shape)
    for a in axis if isinstance(axis, (tuple, list)) else (axis,):
        more = len(axis) if isinstance(axis, (tuple, list)) else 1
        if not -rank - more <= a < rank + more:
            raise np.exceptions.AxisError(f"eager.expand_dims: axis {a} of a result of {rank + more} dims")
    return _ops["unsqueeze"](x, axis)


def reshape(x, /, shape, *more, copy=None):
    """The same elements in another shape; one size may be -1. Tensors never share elements that can change,
    so copy=False is always kept, and copy=True gives another handle."""
    out = _ops["reshape"](_tensor(x), (shape, *more) if more else shape)
    return asarray(out, copy=True) if copy else out


def searchsorted(x1, x2, /, *, side="left", sorter=None):
    """Where x2 would go in sorted x1 (sorter: the indices that sort it) so that it stays sorted."""
    x1, x2 = _tensor(x1), _tensor(x2)
    if sorter is not None:
        x1 = _ops["take_along_axis"](x1, sorter, axis=-1)
    return _ops["searchsorted"](x1, x2, side=side)


def repeat(x, repeats, axis=None):
    """Each element several times: so many, or (a tensor of ints, which is evaluated) as many as it says for
    each; axis None: flattened first."""
    x = _tensor(x)
    if isinstance(repeats, (list, tuple, np.ndarray, EagerTensor)):
        if isinstance(repeats, EagerTensor) and repeats.dtype.kind not in "iu":
            raise TypeError(f"eager.repeat: repeats are integers, got {repeats.dtype.numpy_name}")
        counts = np.asarray(repeats.numpy() if isinstance(repeats, EagerTensor) else repeats)
        if axis is None:
            x, axis = _ops["reshape"](x, (x.size,)), 0
        n = int(x.shape[axis])
        if counts.size == 1:
            return _ops["repeat"](x, int(counts.reshape(())), axis)
        if counts.shape != (n,):
            raise ValueError(f"eager.repeat: {counts.shape} repeats for an axis of size {n}")
        if (counts < 0).any():
            raise ValueError("eager.repeat: repeats are not negative")
        return _ops["gather"](x, constant(np.repeat(np.arange(n), counts)), axis=axis)
    return _ops["repeat"](x, repeats, axis)


def take(x, indices, axis=None):
    """Elements of an axis by their numbers; the dims of the indices replace it. None: of x flattened."""
    x = _tensor(x)
    return _taken(x if axis is not None or len(x.shape) == 1 else _ops["flatten"](x), indices, axis=axis or 0)


_taken = _ops["gather"]._called("take")


def round(x, decimals=0, /):
    """Nearest integer, halves to the even one; or to so many decimals."""
    if decimals:
        from ._numpy import around

        return around(x, decimals)
    return _ops["round"](x)


def unstack(x, /, *, axis=0):
    """The elements along an axis."""
    from .ops.multi_output import unbind

    return unbind(x, axis)


def tril(x, /, k=0):
    """Zero above the k-th diagonal of the last two axes."""
    return _ops["tril"](x, _diagonal(k))


def triu(x, /, k=0):
    """Zero below the k-th diagonal of the last two axes."""
    return _ops["triu"](x, _diagonal(k))


def diff(x, /, *, axis=-1, n=1, prepend=None, append=None):
    """Differences of neighbours along an axis, n times."""
    parts = [p for p in (prepend, x, append) if p is not None]
    x = _ops["concatenate"](parts, axis=axis) if len(parts) > 1 else _tensor(x)
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise ValueError(f"eager.diff: axis {axis} of a tensor of {rank} dims")
    hi, lo = [slice(None)] * rank, [slice(None)] * rank
    hi[axis], lo[axis] = slice(1, None), slice(None, -1)
    for _ in range(n):
        op = "not_equal" if x.dtype == "bool" else "sub"
        x = _ops[op](x[tuple(hi)], x[tuple(lo)])
    return x


# ---- functions whose result has a shape that depends on data ----
class UniqueAll(NamedTuple):
    values: EagerTensor
    indices: EagerTensor
    inverse_indices: EagerTensor
    counts: EagerTensor


class UniqueCounts(NamedTuple):
    values: EagerTensor
    counts: EagerTensor


class UniqueInverse(NamedTuple):
    values: EagerTensor
    inverse_indices: EagerTensor


def _unique(x):
    x = _tensor(x)
    if isinstance(x, Wrapped):
        return tuple(constant(part) for part in np.unique(x.numpy(), True, True, True, equal_nan=False))
    row = _ops["sort"](_ops["reshape"](x, (-1,)))
    size = _ops["count_unique"](row, sorted=True)
    realize_all(row, size)
    size = int(size.item())
    return tuple(_ops["unique"](*((row, size, i, True) if i in (0, 3) else (x, size, i))) for i in range(4))


def unique_all(x, /):
    return UniqueAll(*_unique(x))


def unique_counts(x, /):
    values, _, _, counts = _unique(x)
    return UniqueCounts(values, counts)


def unique_inverse(x, /):
    values, _, inverse, _ = _unique(x)
    return UniqueInverse(values, inverse)


def unique_values(x, /):
    return _unique(x)[0]


def nonzero(x, /):
    """The places of the elements that are not zero: a tensor for each axis."""
    x = _tensor(x)
    if len(x.shape) == 0:
        raise ValueError("eager.nonzero: a tensor with no dims has no places")
    size = int(_ops["count_nonzero"](x).item())
    left, places = _ops["flat_nonzero"](x, size=size), []
    for n in reversed(x.shape[1:]):
        places.append(_ops["mod"](left, int(n)))
        left = _ops["floordiv"](left, int(n))
    return (left, *reversed(places))


# ---- dtypes ----
_NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64")
DTYPES = {n: getattr(DType, n) for n in _NAMES}
_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float16", "bfloat16", "float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]


def isdtype(dtype, kind):
    """Is the dtype of that kind: a dtype, a word of the standard, or a tuple of those?"""
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(f"eager.isdtype: kind must be one of {sorted(_KINDS)}, got {kind!r}")
        return _dtype(dtype).numpy_name in _KINDS[kind]
    return _dtype(dtype) == _dtype(kind)


def result_type(*args):
    """The dtype that an operation on these has."""
    from ._complex import complex64, complex128

    parts, is_complex = [], False
    for a in args:
        if isinstance(a, complex) and not isinstance(a, np.generic):
            is_complex, a = True, 0.0
        elif not isinstance(a, (bool, int, float)) or isinstance(a, np.generic):
            a = a.dtype if hasattr(a, "dtype") and not isinstance(a, (DType, Wrapped)) or isinstance(a, Wrapped) and hasattr(a, "shape") else a
            d = _dtype(a)
            if d.kind == "c":
                is_complex, d = True, d.real
            a = _ops["cast"](0, dtype=d)
        parts.append(a)
    total = parts[0] if parts else 0
    for part in parts[1:]:
        total = _ops["add"](total, part) if not (isinstance(total, (bool, int, float)) and isinstance(part, (bool, int, float))) else total + part
    if not isinstance(total, EagerTensor):
        if is_complex and parts:
            return complex64
        raise ValueError("eager.result_type: a tensor or a dtype is wanted")
    if is_complex:
        return complex128 if total.dtype in ("float64",) else complex64
    return total.dtype


def can_cast(from_, to, /):
    """Does every value of one dtype fit the other, as promotion sees it?"""
    a = _dtype(from_.dtype if isinstance(from_, (EagerTensor, Wrapped)) and hasattr(from_, "shape") else from_)
    return result_type(a, _dtype(to)) == _dtype(to)


class finfo:
    """Limits of a float dtype."""

    def __init__(self, type, /):
        self.dtype = _dtype(type.dtype if hasattr(type, "shape") else type)
        if self.dtype.kind == "c":
            self.dtype = self.dtype.real
        if self.dtype.kind != "f":
            raise TypeError(f"eager.finfo: a float dtype is wanted, got {self.dtype.numpy_name}")
        if self.dtype == "bfloat16":
            self.bits, self.eps, self.max, self.smallest_normal = 16, 2.0**-7, (2 - 2.0**-7) * 2.0**127, 2.0**-126
        else:
            f = np.finfo(self.dtype.numpy)
            self.bits, self.eps, self.max, self.smallest_normal = f.bits, float(f.eps), float(f.max), float(f.smallest_normal)
        self.min = -self.max


class iinfo:
    """Limits of an integer dtype."""

    def __init__(self, type, /):
        self.dtype = DType(type.dtype if isinstance(type, EagerTensor) else type)
        if self.dtype.kind not in "iu":
            raise TypeError(f"eager.iinfo: an integer dtype is wanted, got {self.dtype.numpy_name}")
        i = np.iinfo(self.dtype.numpy)
        self.bits, self.min, self.max = i.bits, int(i.min), int(i.max)


class _Info:
    """The object that __array_namespace_info__ gives."""

    def capabilities(self):
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 32}

    def default_device(self):
        return "cpu"

    def default_dtypes(self, *, device=None):
        from ._complex import complex64

        return {"real floating": DTYPES["float32"], "complex floating": complex64, "integral": DTYPES["int64"], "indexing": DTYPES["int64"]}

    def devices(self):
        return [name for name, _, why in _devices() if why is None]

    def dtypes(self, *, device=None, kind=None):
        from ._complex import complex64, complex128

        known = {**DTYPES, "complex64": complex64, "complex128": complex128}
        return {n: d for n, d in known.items() if n not in ("float16", "bfloat16") and (kind is None or isdtype(d, kind))}


def __array_namespace_info__():
    return _Info()


__all__ = [
    "argsort", "astype", "broadcast_arrays", "broadcast_shapes", "can_cast", "clip", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff", "e", "finfo", "iinfo", "inf",
    "expand_dims", "isdtype", "matmul", "mean", "meshgrid", "nan", "newaxis", "nonzero", "outer", "permute_dims", "pi", "positive", "prod", "repeat", "reshape", "result_type", "round", "searchsorted", "sort", "std", "sum", "take", "tensordot", "tril", "triu", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot",
]  # fmt: skip
