"""dtypes that are only stored: float8_e4m3fn, float8_e5m2, int4, uint4. A tensor of one is a tensor of bytes
that can be reshaped, indexed, joined and cast; arithmetic wants a cast first.

int4 and uint4 take a byte each."""

import math

import numpy as np

import eager as _e
from eas._eas import EagerTensor, constant, tensor_ops

from ._wrapped import Wrapped, WrappedDType, bind, items, register
from .core.pytree import register_pytree_node

__all__ = ["StoredTensor", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]

_ops = tensor_ops


class StoredDType(WrappedDType):
    """A dtype that tensors are stored in and not computed with."""

    __slots__ = ("_bits", "kind", "name", "numpy_name")

    def __init__(self, name, bits, kind):
        self.name = self.numpy_name = name
        self._bits, self.kind = bits, kind

    value = property(lambda self: self.name)
    itemsize = size = 1

    @property
    def numpy(self):
        """The dtype of ml_dtypes."""
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.name))

    dtype = numpy

    def __eq__(self, other):
        return other is self or dtype_or_none(other) is self

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"eager.{self.name}"

    def __str__(self):
        return self.name

    def __reduce__(self):
        return dtype_or_none, (self.name,)


float8_e4m3fn, float8_e5m2 = StoredDType("float8_e4m3fn", (4, 3), "f"), StoredDType("float8_e5m2", (5, 2), "f")
int4, uint4 = StoredDType("int4", 4, "i"), StoredDType("uint4", 4, "u")
_ALL = {d.name: d for d in (float8_e4m3fn, float8_e5m2, int4, uint4)}
_ALL["float8_e4m3"] = float8_e4m3fn


def dtype_or_none(d):
    """The dtype if d names one of these."""
    if isinstance(d, StoredDType):
        return d
    if isinstance(d, str) or type(d).__module__.startswith("torch"):
        return _ALL.get(str(d).removeprefix("torch."))
    if isinstance(d, (np.dtype, type)):
        return _ALL.get(getattr(d, "name", None) or getattr(d, "__name__", ""))
    return None


class StoredTensor(Wrapped):
    """A tensor of a dtype that is only stored; `bits` are its bytes."""

    __slots__ = ("__weakref__", "_bits", "dtype")

    def __init__(self, bits, dtype):
        self._bits, self.dtype = bits, dtype

    def _leaves(self):
        return (self._bits,)

    def _again(self, leaves):
        return StoredTensor(*leaves, self.dtype)

    bits = property(lambda self: self._bits, doc="the bytes, uint8 (int4: int8)")
    shape = property(lambda self: self._bits.shape)
    device = property(lambda self: self._bits.device)
    ndim = rank = property(lambda self: self._bits.ndim)
    size = property(lambda self: self._bits.size)
    nbytes = property(lambda self: self._bits.nbytes)
    itemsize = 1
    batch_dims = property(lambda self: self._bits.batch_dims)
    T = property(lambda self: StoredTensor(self._bits.T, self.dtype))
    mT = property(lambda self: StoredTensor(self._bits.mT, self.dtype))

    def astype(self, dtype, copy=True, device=None):
        """In another dtype."""
        return _cast(self, dtype)

    def to(self, *args, **kwargs):
        dtype, device = kwargs.get("dtype"), kwargs.get("device")
        for a in args:
            if isinstance(a, str) and not _e._array_api.is_dtype_name(a):
                device = a
            else:
                dtype = a
        x = self if device is None else StoredTensor(self._bits.to(device), self.dtype)
        return x if dtype is None else _cast(x, dtype)

    def numpy(self):
        """The elements as an array of ml_dtypes' dtype."""
        if self.dtype.kind == "f":
            return self._bits.numpy().view(self.dtype.numpy)
        return self._bits.numpy().astype(self.dtype.numpy)

    to_numpy = numpy

    def __array__(self, dtype=None, copy=None):
        return self.numpy() if dtype is None else np.asarray(self.astype("float32").numpy()).astype(dtype)

    def item(self, *index):
        return self.astype("float32" if self.dtype.kind == "f" else "int32").item(*index)

    def tolist(self):
        return self.astype("float32" if self.dtype.kind == "f" else "int32").tolist()

    def realize(self):
        self._bits.realize()
        return self

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __bool__(self):
        return bool(self.item())

    def __len__(self):
        return len(self._bits)

    def __getitem__(self, key):
        return StoredTensor(self._bits[key], self.dtype)

    def __setitem__(self, key, value):
        self._bits[key] = _cast(value, self.dtype)._bits

    at = property(lambda self: _At(self), doc="x.at[key].set(v) and .get()")

    def __repr__(self):
        wide = self.astype("float32" if self.dtype.kind == "f" else "int32")
        text = "<recorded>" if not _e._debug.readable(self._bits) else np.array2string(wide.numpy(), separator=", ", prefix="Tensor(")
        return f"Tensor({text}, shape={self.shape}, dtype={self.dtype.name})"

    def __reduce__(self):
        return _restored, (self._bits.numpy(), self.dtype.name)

    def __getattr__(self, name):
        f = tensor_ops.get(name) or (getattr(_e, name, None) if hasattr(EagerTensor, name) else None)
        if f is None or name.startswith("__"):
            raise AttributeError(f"a tensor of {object.__getattribute__(self, 'dtype')} has no attribute {name!r}")
        return lambda *args, **kwargs: f(self, *args, **kwargs)


class _At:
    def __init__(self, of, key=None):
        self._of, self._key = of, key

    def __getitem__(self, key):
        return _At(self._of, key)

    def set(self, value):
        return StoredTensor(self._of._bits.at[self._key].set(_cast(value, self._of.dtype)._bits), self._of.dtype)

    def get(self):
        return self._of[self._key]


def _restored(bits, name):
    return StoredTensor(constant(bits), _ALL[name])


register_pytree_node(StoredTensor, lambda t: ((t._bits,), t.dtype.name), lambda name, parts: StoredTensor(parts[0], _ALL[name]))


def _arithmetic(self, other=None):
    raise TypeError(f"a tensor of {self.dtype.name} is only stored: cast it to compute with it, x.astype('float32')")


for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "pow",
    "rpow",
    "matmul",
    "rmatmul",
    "floordiv",
    "mod",
    "neg",
    "abs",
    "lt",
    "le",
    "gt",
    "ge",
    "and",
    "or",
    "xor",
):
    setattr(StoredTensor, f"__{_name}__", _arithmetic)


# ---- floats in 8 bits ----
def _values(dtype):
    """The number that each byte stands for."""
    e_bits, m_bits = dtype._bits
    bias = 2 ** (e_bits - 1) - 1
    out = np.empty(256, np.float32)
    for b in range(256):
        sign, e, m = -1.0 if b & 128 else 1.0, b >> m_bits & (2**e_bits - 1), b & (2**m_bits - 1)
        if dtype is float8_e4m3fn and b & 127 == 127:
            out[b] = math.nan
        elif dtype is float8_e5m2 and e == 31:
            out[b] = sign * math.inf if m == 0 else math.nan
        else:
            out[b] = sign * (m / 2**m_bits * 2.0 ** (1 - bias) if e == 0 else (1 + m / 2**m_bits) * 2.0 ** (e - bias))
    return out


_TABLES = {d: _values(d) for d in (float8_e4m3fn, float8_e5m2)}


def _encode(x, dtype):
    """The nearest float of 8 bits, halves to the even one, beyond the largest NaN (e4m3) or infinity (e5m2):
    by the middles between neighbours."""
    x = _ops["cast"](x, dtype="float32") if x.dtype != "float64" else x
    table = _TABLES[dtype][:128]
    finite = table[np.isfinite(table)].astype(np.float64)
    n = len(finite)
    last = finite[-1] + (finite[-1] - finite[-2])  # the next float that there would be above the largest
    middles = (finite + np.append(finite[1:], last)) / 2
    # middle i lies between codes i and i + 1: an even code takes it, so a step to an odd one begins just
    # above
    up = np.array([np.nextafter(m, np.inf) if i % 2 == 0 else m for i, m in enumerate(middles)])
    if x.dtype == "float32":
        up = np.array([np.nextafter(np.float32(m), np.float32(np.inf)) if i % 2 == 0 else np.float32(m) for i, m in enumerate(middles)], np.float32)
    code = _ops["searchsorted"](constant(up.astype(x.dtype.numpy)), _ops["abs"](x), side="right")
    nan_code = 127
    code = _ops["where"](_e.isnan(x), nan_code, code)
    sign = _ops["where"](_ops["signbit"](x), 128, 0)
    return _ops["cast"](_ops["minimum"](code, 127 if dtype is float8_e4m3fn else _ops["where"](_e.isnan(x), 127, n)) + sign, dtype="uint8")


def _cast(x, dtype):
    to = dtype_or_none(dtype)
    if isinstance(x, StoredTensor):
        if to is x.dtype:
            return x
        if x.dtype.kind == "f":
            plain = _e.gather(constant(_TABLES[x.dtype]), _ops["cast"](x._bits, dtype="int32"), axis=0)
        else:
            plain = x._bits
        return _cast(plain, dtype)
    x = x if isinstance(x, (EagerTensor, Wrapped)) else constant(x)
    if to is None:
        return _e.astype(x, dtype)
    if to.kind == "f":
        return StoredTensor(_encode(_ops["cast"](x, dtype="float32") if x.dtype != "float64" else x, to), to)
    low = _ops["cast"](_ops["trunc"](x) if x.dtype.kind == "f" else x, dtype="int32") & 15
    if to is int4:
        return StoredTensor(_ops["cast"](_ops["where"](low > 7, low - 16, low), dtype="int8"), to)
    return StoredTensor(_ops["cast"](low, dtype="uint8"), to)


_MOVES = {
    "alias", "stop_gradient", "reshape", "reshape_physical", "flatten", "unflatten", "squeeze", "squeeze_physical", "unsqueeze", "unsqueeze_physical", "permute", "swap_axes", "matrix_transpose",
    "moveaxis", "moveaxis_physical", "broadcast_to", "broadcast_to_physical", "slice_steps", "slice", "slice_tensor", "slice_tensor_physical", "flip", "diagonal", "slice_update", "slice_set",
    "incr_batch_dims", "decr_batch_dims", "move_axis_to_batch_dims", "move_axis_from_batch_dims", "lift_batch_dims", "broadcast_batch_dims", "concatenate", "stack", "split", "chunk", "unbind",
    "tile", "repeat", "roll", "gather", "take_along_axis", "index", "where",
}  # fmt: skip


def _bits_of(x, dtype):
    return [_bits_of(v, dtype) for v in x] if isinstance(x, (list, tuple)) else _cast(x, dtype)._bits


def _dispatch(op, args, kwargs):
    if op == "constant":
        return _constant(*args, **kwargs)
    if op == "full":
        shape, value, dtype = args
        return _cast(_e.full(shape, value), dtype)
    if op.name == "cast":
        bound, _ = bind(op, args, kwargs)
        return _cast(bound["x"], bound["dtype"])
    if op.name not in _MOVES:
        raise TypeError(f"eager.{op.name}: a tensor of float8 or int4 is only stored; cast it to compute with it, x.astype('float32')")
    bound, values = bind(op, args, kwargs)
    dtype = next(x.dtype for x in items(args, kwargs) if isinstance(x, StoredTensor))
    return StoredTensor(op(**{k: _bits_of(v, dtype) if k in values else v for k, v in bound.items()}), dtype)


def _constant(value, dtype=None, device=None, traced=False):
    if isinstance(value, StoredTensor):
        return value if dtype is None else _cast(value, dtype)
    own = dtype_or_none(getattr(value, "dtype", None)) if isinstance(value, np.ndarray) else None
    if own is not None:
        bits = np.ascontiguousarray(value).view(np.uint8) if own.kind == "f" else np.asarray(value).astype(np.int8 if own is int4 else np.uint8)
        x = StoredTensor(constant(bits, None, device), own)
        return x if dtype is None else _cast(x, dtype)
    return _cast(constant(value, None, device), dtype)


def _wants(args, kwargs):
    return any(
        isinstance(x, StoredTensor) or dtype_or_none(x) is not None or (isinstance(x, np.ndarray) and dtype_or_none(x.dtype) is not None)
        for x in items(args, kwargs)
    )


register(_wants, _dispatch)
