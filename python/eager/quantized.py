"""Quantized matrices: small integers with scales, dequantised inside the product (src/graph/op_quant.c)."""

import numpy as np

from eas._eas import dequantize as _dequantize
from eas._eas import quantize as _quantize
from eas._eas import quantized_matmul as _quantized_matmul

from .core import Tensor, register_pytree_node

KINDS = ("int8", "int4", "int4_zp", "nf4")


class QuantizedTensor:
    """A matrix (..., in, out) of 8- or 4-bit codes, with a scale for each column and group of rows. x @ q is
    eager.quantized_matmul(x, q).

    A pytree: its leaves are data, scales and, for int4_zp, offsets."""

    __array_priority__ = 100
    __slots__ = ("data", "group", "kind", "offsets", "rows", "scales")

    def __init__(self, kind, shape, group, data, scales, offsets=None):
        if kind not in KINDS:
            raise ValueError(f"there is no kind {kind!r} of quantized tensors; use one of {', '.join(KINDS)}")
        self.kind, self.rows, self.group = kind, int(shape[-2]), int(group)
        self.data, self.scales, self.offsets = data, scales, offsets

    @property
    def shape(self):
        """The shape of the matrix that it stands for."""
        s = self.data.shape
        return (*s[:-2], self.rows, s[-1])

    @property
    def ndim(self):
        return len(self.data.shape)

    @property
    def dtype(self):
        return self.scales.dtype

    @property
    def device(self):
        return self.data.device

    @property
    def nbytes(self):
        """The bytes of codes, scales and offsets."""
        return sum(int(np.prod([int(d) for d in t.shape])) * t.dtype.itemsize for t in (self.data, self.scales, self.offsets) if t is not None)

    def dequantize(self, dtype="float32"):
        """The matrix as a plain tensor."""
        return _dequantize(self.kind, self.rows, self.group, self.data, self.scales, self.offsets, dtype)

    def to(self, device):
        return QuantizedTensor(self.kind, self.shape, self.group, *(None if t is None else t.to(device) for t in (self.data, self.scales, self.offsets)))

    def __rmatmul__(self, x):
        return quantized_matmul(x, self)

    def __repr__(self):
        return f"QuantizedTensor({self.kind}, shape={tuple(self.shape)}, group={self.group})"


def _flatten(q):
    return (q.data, q.scales, q.offsets), (q.kind, q.rows, q.group)


def _unflatten(aux, children):
    kind, rows, group = aux
    return QuantizedTensor(kind, (rows, 0), group, *children)


register_pytree_node(QuantizedTensor, _flatten, _unflatten)


def quantize(w, kind="int8"):
    """A matrix (..., in, out) of floats as a QuantizedTensor. Kinds: "int8" has a scale for each column;
    "int4" groups of 32 rows, symmetric; "int4_zp" the same with a zero point; "nf4" groups of 64 rows and
    QLoRA's sixteen quantiles."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"eager.quantize: there is no kind {kind!r}; use one of {', '.join(KINDS)}")
    rows, group, data, scales, offsets = _quantize(w if isinstance(w, Tensor) else Tensor.constant(w), kind)
    return QuantizedTensor(kind, (rows, 0), group, data, scales, offsets)


def dequantize(q, dtype="float32"):
    """The matrix that q stands for, as a plain tensor."""
    return q.dequantize(dtype)


def quantized_matmul(x, q):
    """x (..., in) times a QuantizedTensor (in, out), in x's dtype. Products with one row read the compressed
    matrix once, and dequantise in registers. Differentiable in x."""
    if not isinstance(q, QuantizedTensor):
        raise TypeError(f"eager.quantized_matmul: q is a {type(q).__name__}; make a QuantizedTensor of it with eager.quantize")
    return _quantized_matmul(x, q.kind, q.rows, q.group, q.data, q.scales, q.offsets)


# ---- GGUF ----


def _from_gguf(w, name):
    """The matrix `name` of the file as a QuantizedTensor (in, out), or None where its format or shape has
    none."""
    stored, shape = w.stored(name), w.shape(name)
    if len(shape) != 2 or stored not in ("Q4_0", "Q8_0", "Q4_K"):
        return None
    n, k = shape
    size = {"Q4_0": 18, "Q8_0": 34, "Q4_K": 144}[stored]
    blocks = np.frombuffer(w.raw(name), np.uint8).reshape(n, -1, size)

    def half(at):
        return np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16)[..., 0].astype(np.float32)

    def columns(a):  # (n, blocks, rows of a block) as (rows, n)
        return Tensor.constant(np.ascontiguousarray(a.reshape(n, -1).T))

    if stored == "Q4_0":
        return QuantizedTensor("int4", (k, n), 32, columns(blocks[:, :, 2:]), columns(half(0)))
    if stored == "Q8_0":
        return QuantizedTensor("int8", (k, n), 32, columns(blocks[:, :, 2:].view(np.int8)), columns(half(0)))
    low, high = _scales_k(blocks[:, :, 4:16])
    q = blocks[:, :, 16:].reshape(n, -1, 4, 1, 32)
    codes = np.concatenate([q & 15, q >> 4], axis=3).reshape(n, -1, 2, 16)  # a group of 32 in halves of 16
    data = codes[:, :, 0] | codes[:, :, 1] << 4
    return QuantizedTensor("int4_zp", (k, n), 32, columns(data), columns(half(0)[..., None] * low), columns(-half(2)[..., None] * high))


def _scales_k(s):
    """Eight scales and offsets of six bits out of twelve bytes, as float32."""
    low = np.concatenate([s[..., :4] & 63, (s[..., 8:] & 15) | (s[..., :4] >> 6) << 4], axis=-1)
    high = np.concatenate([s[..., 4:8] & 63, s[..., 8:] >> 4 | (s[..., 4:8] >> 6) << 4], axis=-1)
    return low.astype(np.float32), high.astype(np.float32)
