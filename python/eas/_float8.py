"""Arrays of float8 as arguments of kernels. A kernel has their bytes; what is loaded is decoded to float32,
which holds every value."""

import math
import sys

import numpy as np

from . import mk
from ._eas import Value

FORMATS = {"float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2"}


def format_of(o):
    """The format of an array of float8 (NumPy's with a dtype of ml_dtypes, torch's, eager's), or None."""
    dtype = getattr(o, "dtype", None)
    return None if dtype is None else FORMATS.get(getattr(dtype, "name", None) or str(dtype).removeprefix("torch."))


def bytes_of(o):
    """The same memory as uint8."""
    if isinstance(o, np.ndarray):
        return o.view(np.uint8)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(o, getattr(torch, "Tensor", ())):
        return o.view(torch.uint8)
    return o.bits


def decode(b, form):
    """float32 of bytes. Both formats are float16 with bits cut off: e5m2 at the end, e4m3fn with an exponent
    of another bias."""
    w = mk.cast(b, mk.u16)
    if form == "e5m2":
        return mk.cast(mk.bitcast(w << 8, mk.f16), mk.f32)
    size = w & 0x7F
    v = mk.cast(mk.bitcast(((w & 0x80) << 8) | (size << 7), mk.f16), mk.f32) * 256.0
    return mk.where(size == 0x7F, math.nan, v)


class Float8Array:
    """What a kernel has for such an argument: x[i], mk.load(x, i), x.shape, x.strides and x.size as of other
    arrays."""

    __slots__ = ("_bytes", "format")

    def __init__(self, of, form):
        self._bytes, self.format = of, form

    shape = property(lambda self: self._bytes.shape)
    strides = property(lambda self: self._bytes.strides)
    size = property(lambda self: self._bytes.size)
    ndim = property(lambda self: self._bytes.ndim)

    def _load(self, off, mask=None, other=None):
        v = decode(mk.load(self._bytes, off, mask), self.format)
        return v if mask is None or other is None else mk.where(mask, v, other)

    def __getitem__(self, key):
        got = self._bytes[key]
        return decode(got, self.format) if isinstance(got, Value) else Float8Array(got, self.format)

    def __setitem__(self, key, value):
        raise TypeError(f"an array of float8_{self.format} is only read by kernels: store float32 or float16, and cast outside")

    def __len__(self):
        return len(self._bytes)
