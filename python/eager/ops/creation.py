"""Tensors from nothing: constants, ranges, random numbers."""

import builtins
import math

import numpy as np

from eas._eas import EagerTensor, SymbolicDim, eager_full, tensor_ops
from eas._eas import constant as _constant
from eas._eas import eager_from_dlpack as _from_dlpack
from eas._eas import random_key as _next_key
from eas._eas import random_seed as _seed

from ..core.context import current_defaults

__all__ = [
    "arange", "asarray", "constant", "empty", "empty_like", "eye", "fold_in", "from_dlpack", "full", "full_like", "gaussian", "hann_window", "key", "linspace", "normal",
    "ones", "ones_like", "randint", "random_bits", "random_normal", "random_uniform", "split_key", "tri", "uniform", "zeros", "zeros_like",
]  # fmt: skip

_ops = tensor_ops


def from_dlpack(x, *, device=None, copy=None):
    """A tensor over the memory of x, without a copy; complex numbers are copied, as their parts lie apart
    here."""
    if "complex" in str(getattr(x, "dtype", "")):
        return constant(np.from_dlpack(x) if not isinstance(x, np.ndarray) else x, device=device)
    return _from_dlpack(x, device=device, copy=copy)


def _float(dtype):
    return current_defaults()[1] if dtype is None else dtype


def _finish(t, device=None, traced=False):
    if device is None:
        device = current_defaults()[0]
    if device is not None:
        t = t.to(device)
    if traced:
        t.trace()
    return t


def _check_shape(name, shape, dtype, more=""):
    """Refuses zeros(2, 3), where the second size would be taken for the dtype."""
    if isinstance(shape, (int, SymbolicDim)) and isinstance(dtype, (int, SymbolicDim)) and not isinstance(dtype, bool):
        raise TypeError(f"eager.{name}: the shape is one argument: write {name}(({shape}, {dtype}){more}) for a tensor of 2 dims")


def full(shape, fill_value=None, dtype=None, device=None, traced=False, *, value=None):
    """All elements the same."""
    value = fill_value if value is None else value
    if value is None:
        raise TypeError("eager.full(shape, value): the value is missing")
    if isinstance(dtype, (int, SymbolicDim)) and not isinstance(dtype, bool):
        raise TypeError(f"eager.full: the shape is one argument: write full(({shape}, {value}), {dtype}) for a tensor of 2 dims")
    if dtype is None and isinstance(value, float):
        dtype = _float(None)
    return _finish(eager_full(shape, value, dtype), device, traced)


def zeros(shape, dtype=None, device=None, traced=False):
    """All elements 0; float32 unless told otherwise."""
    _check_shape("zeros", shape, dtype)
    return _finish(eager_full(shape, 0, _float(dtype), "zeros"), device, traced)


def ones(shape, dtype=None, device=None, traced=False):
    """All elements 1; float32 unless told otherwise."""
    _check_shape("ones", shape, dtype)
    return _finish(eager_full(shape, 1, _float(dtype), "ones"), device, traced)


def empty(shape, dtype=None, device=None):
    """A tensor whose elements do not matter (they are 0)."""
    _check_shape("empty", shape, dtype)
    return zeros(shape, dtype, device)


def _has_floats(value):
    """Does it contain floats of Python's, which have no dtype of their own, in nested lists?"""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, float)


def _dtype_within(value):
    """The dtype of a list of tensors, nested or not; None if it does not begin with one."""
    first = value
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if not isinstance(first, EagerTensor):
        return None
    found, stack = {}, [value]
    while stack:
        x = stack.pop()
        if isinstance(x, (list, tuple)):
            stack.extend(x)
        elif isinstance(x, EagerTensor):
            found.setdefault(x.dtype, x)
        else:
            found.setdefault(type(x), x)
    from .._array_api import result_type

    return result_type(*found.values())


def constant(value, dtype=None, device=None, traced=False):
    """A tensor with a copy of the data: arrays, nested lists, numbers. Python's floats become float32, unless
    `default_dtype` or `dtype` say otherwise."""
    default_device, default = current_defaults()
    if dtype is None and isinstance(value, (list, tuple)):
        dtype = _dtype_within(value)
    if dtype is None and default != "float32" and _has_floats(value):
        dtype = default
    return _constant(value, dtype, default_device if device is None else device, traced)


def _like(x):
    return x if isinstance(x, EagerTensor) else constant(x)


def full_like(x, fill_value=None, dtype=None, device=None, *, value=None):
    """All elements the same, in x's shape and dtype."""
    x = _like(x)
    return full(x.shape, fill_value, dtype or x.dtype, device, value=value)


def zeros_like(x, dtype=None, device=None):
    """0 in x's shape and dtype."""
    return full_like(x, 0, dtype, device)


def ones_like(x, dtype=None, device=None):
    """1 in x's shape and dtype."""
    return full_like(x, 1, dtype, device)


def empty_like(x, dtype=None, device=None):
    """A tensor of x's shape and dtype whose elements do not matter."""
    return zeros_like(x, dtype, device)


def _is_whole(x):
    """Is it an integer, of Python, NumPy, a tensor, or a size?"""
    if isinstance(x, (bool, np.bool_)):
        return True
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    return kind in ("i", "u", "b") if kind is not None else isinstance(x, (int, str, SymbolicDim))


def _arange_length(start, stop, step):
    whole = _is_whole(start) and _is_whole(stop) and _is_whole(step)
    if isinstance(start, EagerTensor) or isinstance(stop, EagerTensor) or isinstance(step, EagerTensor):
        start, stop, step = (x.item() if isinstance(x, EagerTensor) else x for x in (start, stop, step))
    if builtins.any(isinstance(x, (str, SymbolicDim)) for x in (start, step)):
        raise ValueError(f"eager.arange: only stop may be a symbolic size, got arange({start!r}, {stop!r}, {step!r})")
    if step == 0:
        raise ValueError("eager.arange: step must not be 0")
    if isinstance(stop, (str, SymbolicDim)):
        if not whole or step < 0:
            raise ValueError(f"eager.arange: a symbolic size goes with integers and a step above 0, got arange({start!r}, {stop!r}, {step!r})")
        return ((SymbolicDim(stop) if isinstance(stop, str) else stop) - int(start) + (int(step) - 1)) // int(step)
    if whole:
        return builtins.max(0, -((int(start) - int(stop)) // int(step)))
    length = (stop - start) / step
    if not math.isfinite(length):
        raise ValueError(f"eager.arange({start!r}, {stop!r}, {step!r}) has no finite length")
    return builtins.max(0, math.ceil(length))


def arange(start, stop=None, step=1, dtype=None, device=None, traced=False):
    """start, start + step, ... below stop. Integers give int64, floats float32; dtype says otherwise."""
    if stop is None:
        start, stop = 0, start
    length = _arange_length(start, stop, step)
    if dtype is None:
        dtype = "int64" if _is_whole(start) and _is_whole(stop) and _is_whole(step) else _float(None)
    return _finish(_ops["arange"](start, step, length=length, dtype=dtype), device, traced)


def linspace(start, stop, num, *, dtype=None, device=None, endpoint=True):
    """num evenly spaced numbers from start to stop."""
    return _finish(_ops["linspace"](start, stop, num=num, endpoint=endpoint, dtype=_float(dtype)), device)


def _diagonal(k):
    """The number of a diagonal; those beyond 64 bits are outside of any matrix."""
    return builtins.max(-(2**62), builtins.min(2**62, k)) if isinstance(k, int) else k


def eye(n_rows, n_cols=None, *, k=0, dtype=None, device=None):
    """Ones on the k-th diagonal."""
    return _finish(_ops["eye"]((n_rows, n_rows if n_cols is None else n_cols), k=_diagonal(k), dtype=_float(dtype)), device)


def tri(n_rows, n_cols=None, k=0, *, dtype=None, device=None):
    """Ones on and below the k-th diagonal."""
    return _finish(_ops["tri"]((n_rows, n_rows if n_cols is None else n_cols), k=_diagonal(k), dtype=_float(dtype)), device)


def hann_window(window_length, *, periodic=True, dtype=None, device=None):
    """The Hann window."""
    return _finish(_ops["hann_window"](window_length, periodic=periodic, dtype=_float(dtype)), device)


def asarray(obj, /, *, dtype=None, device=None, copy=None):
    """A tensor of obj: itself if it is one and fits, a copy of other data."""
    if isinstance(obj, EagerTensor):
        if copy and (dtype is None or dtype == obj.dtype):
            return _ops["alias"](obj, obj.batch_dims)
        return obj.to(device=device, dtype=obj.dtype if dtype is None else dtype)
    if copy is False and not hasattr(obj, "__dlpack__"):
        raise ValueError("eager.asarray: this object becomes a tensor only by a copy")
    if copy is False:
        return from_dlpack(obj, device=device)
    return constant(obj, dtype=dtype, device=device)


# ---- random numbers ----
# A key is a number, or a tensor of numbers (one each for the leading axes). The same key gives the same
# numbers.
def seed(n):
    """Where the counter of calls without a key starts. Each call, each trip of a loop, each lane of vmap and
    each run of a compiled function moves it on."""
    _seed(n)


def key(n):
    """A key from an int."""
    return constant(np.uint64(int(n) & 0xFFFFFFFFFFFFFFFF))


def split_key(key, num=2):
    """num keys that have nothing to do with each other, nor with this one."""
    return _ops["split_key"](key, num=num)


def fold_in(key, data):
    """A new key for each of the numbers."""
    return _ops["fold_in"](key, data)


def _shape(shape):
    return (shape,) if isinstance(shape, (int, str, SymbolicDim)) else tuple(shape)


def uniform(shape=(), low=0.0, high=1.0, *, key=None, dtype=None, device=None):
    """Evenly distributed in [low, high). Without a key every call gives other numbers (see eager.seed)."""
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
        raise ValueError(f"eager.uniform: low {low} is above high {high}; a shape of several sizes is a tuple: uniform(({shape}, {low}))")
    return _finish(_ops["uniform"](_next_key() if key is None else key, low, high, shape=_shape(shape), dtype=_float(dtype)), device)


def gaussian(shape=(), mean=0.0, std=1.0, *, key=None, dtype=None, device=None):
    """Normally distributed. Without a key every call gives other numbers (see eager.seed)."""
    return _finish(_ops["gaussian"](_next_key() if key is None else key, mean, std, shape=_shape(shape), dtype=_float(dtype)), device)


normal = gaussian


def randint(shape, low, high, *, key=None, dtype="int64", device=None):
    """Integers in [low, high), all as likely. Without a key every call gives other numbers."""
    return _finish(_ops["randint"](_next_key() if key is None else key, low, high, shape=_shape(shape), dtype=dtype), device)


random_bits, random_uniform, random_normal = (_ops["random_" + n] for n in ("bits", "uniform", "normal"))
