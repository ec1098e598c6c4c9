"""NumPy's functions and ufuncs on tensors (__array_function__, __array_ufunc__): np.sum(t),
np.linalg.solve(a, b), np.add(t, x) record operations and give tensors.

What has no counterpart here is computed by NumPy on the tensors' data, and gives what NumPy gives."""

import numpy as np

import eager as _e
from eas._eas import EagerTensor

from ._wrapped import Wrapped, is_tensor

_UFUNC_NAMES = {
    "conjugate": "conj", "arccosh": "acosh", "arcsinh": "asinh", "arctanh": "atanh", "bitwise_not": "bitwise_invert", "invert": "bitwise_invert", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
}  # fmt: skip
_REDUCE = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any"}
_ACCUMULATE = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin"}


def _array(x):
    if is_tensor(x):
        return x.numpy()
    if isinstance(x, (list, tuple)):
        return type(x)(*(_array(i) for i in x)) if hasattr(x, "_fields") else type(x)(_array(i) for i in x)
    if isinstance(x, dict):
        return {k: _array(v) for k, v in x.items()}
    return x


def array_ufunc(self, ufunc, method, *inputs, **kwargs):
    out = kwargs.pop("out", None)
    if out is not None and any(isinstance(o, (EagerTensor, Wrapped)) for o in out):
        return NotImplemented
    if out is not None:
        return getattr(ufunc, method)(*_array(inputs), out=out, **kwargs)
    for name in ("where", "casting", "order", "subok", "signature"):
        if name in kwargs and not (name == "where" and kwargs[name] is not True):
            kwargs.pop(name)
    dtype = kwargs.pop("dtype", None)
    f = getattr(_e, _UFUNC_NAMES.get(ufunc.__name__, ufunc.__name__), None)
    result = None
    if method == "__call__" and f is not None and not kwargs:
        result = f(*inputs)
    elif method == "reduce" and ufunc.__name__ in _REDUCE and set(kwargs) <= {"axis", "keepdims"}:
        result = getattr(_e, _REDUCE[ufunc.__name__])(
            inputs[0], kwargs.get("axis", inputs[1] if len(inputs) > 1 else 0), bool(kwargs.get("keepdims", False))
        )
    elif method == "accumulate" and ufunc.__name__ in _ACCUMULATE and set(kwargs) <= {"axis"}:
        result = getattr(_e, _ACCUMULATE[ufunc.__name__])(inputs[0], kwargs.get("axis", inputs[1] if len(inputs) > 1 else 0))
    elif method == "outer" and f is not None and not kwargs:
        a, b = _e.asarray(inputs[0]), _e.asarray(inputs[1])
        result = f(_e.reshape(a, (*a.shape, *(1,) * len(b.shape))), b)
    if result is None:
        return getattr(ufunc, method)(*_array(inputs), **({"dtype": dtype} if dtype is not None else {}), **_array(kwargs))
    return result if dtype is None else _e.astype(result, dtype)


# ---- functions whose arguments are not as ours ----
def _transpose(a, axes=None):
    a = _e.asarray(a)
    return _e.permute(a, tuple(reversed(range(len(a.shape)))) if axes is None else tuple(axes))


def _argmax(a, axis=None, keepdims=False):
    return _e.argmax(a, axis, keepdims)


def _argmin(a, axis=None, keepdims=False):
    return _e.argmin(a, axis, keepdims)


def _sum(a, axis=None, dtype=None, keepdims=False):
    return _e.sum(a, axis, keepdims, dtype)


def _prod(a, axis=None, dtype=None, keepdims=False):
    return _e.prod(a, axis, keepdims, dtype)


def _mean(a, axis=None, dtype=None, keepdims=False):
    return _e.mean(a, axis, keepdims, dtype)


def _var(a, axis=None, dtype=None, ddof=0, keepdims=False, correction=None):
    return _e.var(a, axis, keepdims, ddof if correction is None else correction, dtype)


def _std(a, axis=None, dtype=None, ddof=0, keepdims=False, correction=None):
    return _e.std(a, axis, keepdims, ddof if correction is None else correction, dtype)


def _cumsum(a, axis=None, dtype=None):
    return _e.cumsum(a, axis, dtype=dtype)


def _cumprod(a, axis=None, dtype=None):
    return _e.cumprod(a, axis, dtype=dtype)


def _sort(a, axis=-1, kind=None, stable=None):
    return _e.sort(_e.ravel(a) if axis is None else a, axis=-1 if axis is None else axis)


def _argsort(a, axis=-1, kind=None, stable=None):
    return _e.argsort(_e.ravel(a) if axis is None else a, axis=-1 if axis is None else axis)


def _clip(a, a_min=None, a_max=None, min=None, max=None):
    return _e.clip(a, a_min if min is None else min, a_max if max is None else max)


def _reshape(a, shape=None, order="C", newshape=None, copy=None):
    shape = newshape if shape is None else shape
    if order == "F":
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return _transpose(_e.reshape(_transpose(a), tuple(reversed(shape))))
    return _e.reshape(a, shape)


def _split(ary, indices_or_sections, axis=0):
    ary = _e.asarray(ary)
    return _e._numpy._equal_split("split", ary, indices_or_sections, axis)


def _trace(a, offset=0, axis1=0, axis2=1, dtype=None):
    return _e.sum(_e.diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


def _searchsorted(a, v, side="left", sorter=None):
    return _e.searchsorted(a, v, side=side, sorter=sorter)


def _round(a, decimals=0):
    return _e.around(a, decimals)


def _full_like(a, fill_value, dtype=None, shape=None):
    return _e.full(tuple(a.shape) if shape is None else shape, fill_value, dtype=a.dtype if dtype is None else dtype)


def _filled_like(value):
    return lambda a, dtype=None, shape=None: _full_like(a, value, dtype, shape)


def _diff(a, n=1, axis=-1, prepend=None, append=None):
    return _e.diff(a, n=n, axis=axis, prepend=prepend, append=append)


def _take(a, indices, axis=None, mode="raise"):
    a = _e.ravel(a) if axis is None else _e.asarray(a)
    axis = 0 if axis is None else axis
    if mode == "clip":
        indices = _e.clip(_e.asarray(indices), 0, a.shape[axis] - 1)
    elif mode == "wrap":
        indices = _e.asarray(indices) % a.shape[axis]
    return _e.gather(a, indices, axis=axis)


def _tensordot(a, b, axes=2):
    return _e.tensordot(_e.asarray(a), _e.asarray(b), axes=axes)


def _where(condition, x=None, y=None):
    return _e.nonzero(condition) if x is None else _e.where(condition, x, y)


def _max(a, axis=None, keepdims=False):
    return _e.max(a, axis, keepdims)


def _min(a, axis=None, keepdims=False):
    return _e.min(a, axis, keepdims)


def _concatenate(arrays, axis=0, dtype=None):
    out = _e.concatenate(list(arrays), axis=axis)
    return out if dtype is None else _e.astype(out, dtype)


def _stack(arrays, axis=0, dtype=None):
    out = _e.stack(list(arrays), axis=axis)
    return out if dtype is None else _e.astype(out, dtype)


def _pad(array, pad_width, mode="constant", constant_values=0):
    array = _e.asarray(array)
    rank = len(array.shape)
    if isinstance(pad_width, int):
        pad_width = [(pad_width, pad_width)] * rank
    elif not isinstance(pad_width[0], (tuple, list, np.ndarray)):
        pad_width = [tuple(pad_width) if len(pad_width) == 2 else (pad_width[0],) * 2] * rank
    elif len(pad_width) == 1:
        pad_width = [tuple(pad_width[0])] * rank
    return _e.pad(array, [tuple(int(i) for i in p) for p in pad_width], mode, constant_values if mode == "constant" and constant_values else None)


ADAPTED = {
    "transpose": _transpose, "argmax": _argmax, "argmin": _argmin, "sum": _sum, "prod": _prod, "mean": _mean, "var": _var, "std": _std, "cumsum": _cumsum, "cumprod": _cumprod, "sort": _sort,
    "argsort": _argsort, "clip": _clip, "reshape": _reshape, "split": _split, "trace": _trace, "searchsorted": _searchsorted, "round": _round, "around": _round, "full_like": _full_like,
    "zeros_like": _filled_like(0), "ones_like": _filled_like(1), "empty_like": _filled_like(0), "diff": _diff, "take": _take, "tensordot": _tensordot, "where": _where, "max": _max, "amax": _max,
    "min": _min, "amin": _min, "concatenate": _concatenate, "concat": _concatenate, "stack": _stack, "pad": _pad, "swapaxes": lambda a, axis1, axis2: _e.swap_axes(a, axis1, axis2),
    "expand_dims": lambda a, axis: _e.unsqueeze(a, axis), "permute_dims": _transpose, "copy": lambda a, order="K", subok=False: _e.copy(a), "shape": lambda a: tuple(a.shape),
    "ndim": lambda a: a.ndim, "size": lambda a, axis=None: _e.size(a, axis), "iscomplexobj": lambda x: _e.iscomplexobj(x), "isrealobj": lambda x: _e.isrealobj(x),
    "result_type": lambda *a: _e.result_type(*a), "array_equal": lambda a1, a2, equal_nan=False: bool(_e.array_equal(a1, a2, equal_nan)), "allclose": lambda *a, **k: bool(_e.allclose(*a, **k)),
    "any": lambda a, axis=None, keepdims=False: _e.any(a, axis, keepdims), "all": lambda a, axis=None, keepdims=False: _e.all(a, axis, keepdims),
    "broadcast_to": lambda array, shape, subok=False: _e.broadcast_to(array, shape), "nonzero": lambda a: _e.nonzero(a), "dot": lambda a, b: _e.dot(a, b), "flip": lambda m, axis=None: _e.flip(m, axis),
    "roll": lambda a, shift, axis=None: _e.roll(a, shift, axis), "tile": lambda A, reps: _e.tile(A, (reps,) if isinstance(reps, int) else tuple(reps)), "repeat": lambda a, repeats, axis=None: _e.repeat(a, repeats, axis),
    "squeeze": lambda a, axis=None: _e.squeeze(a, axis), "moveaxis": lambda a, source, destination: _e.moveaxis(a, source, destination), "outer": lambda a, b: _e.outer(_e.ravel(a), _e.ravel(b)),
    "einsum": lambda *a, **k: _e.einsum(*a, **{n: v for n, v in k.items() if n == "optimize"}), "tril": lambda m, k=0: _e.tril(m, k), "triu": lambda m, k=0: _e.triu(m, k),
    "count_nonzero": lambda a, axis=None, keepdims=False: _e.count_nonzero(a, axis, keepdims), "diagonal": lambda a, offset=0, axis1=0, axis2=1: _e.diagonal(a, offset, axis1, axis2),
    "take_along_axis": lambda arr, indices, axis=-1: _e.take_along_axis(_e.ravel(arr) if axis is None else arr, indices, axis=0 if axis is None else axis),
    "broadcast_arrays": lambda *args, subok=False: tuple(_e.broadcast_arrays(*args)), "array_repr": lambda arr, *a, **k: repr(arr), "array_str": lambda a, *r, **k: str(a),
}  # fmt: skip
_BY_NUMPY = {
    "array2string",
    "save",
    "savez",
    "savez_compressed",
    "savetxt",
    "may_share_memory",
    "shares_memory",
    "copyto",
    "put",
    "place",
    "putmask",
    "fill_diagonal",
    "put_along_axis",
    "busday_count",
    "lexsort_",
}


def _counterpart(func):
    name, module = func.__name__, getattr(func, "__module__", "") or ""
    if name in _BY_NUMPY:
        return None
    if "linalg" in module and hasattr(_e.linalg, name):
        return getattr(_e.linalg, name)
    if "fft" in module and hasattr(_e.fft, name):
        return getattr(_e.fft, name)
    if module.startswith("numpy") and "linalg" not in module and "fft" not in module:
        return ADAPTED.get(name) or getattr(_e, name, None)
    return None


def array_function(self, func, types, args, kwargs):
    f = _counterpart(func)
    if kwargs.get("out", None) is None:
        kwargs = {k: v for k, v in kwargs.items() if k != "out" and v is not np._NoValue}
        if f is not None:
            try:
                return f(*args, **kwargs)
            except TypeError as e:
                if "argument" not in str(e):
                    raise
    return func(*_array(args), **_array(kwargs))
