"""Shapes, order, choice and joining of elements."""

from eas._eas import tensor_ops as _ops

from ._table import ops_of

globals().update(ops_of("view"))
matrix_trace = _ops["trace"]._called("matrix_trace")
_swapped = _ops["swap_axes"]._called("transpose")
__all__ = [*ops_of("view"), "as_interleaved_complex", "matrix_trace", "pad", "transpose", "view_as_real_interleaved"]


def transpose(x, axis1=-2, axis2=-1):
    """Two axes change places, the last two by default; transpose(x, order): axes in that order."""
    return _ops["permute"](x, axis1) if isinstance(axis1, (tuple, list)) else _swapped(x, axis1, axis2)


def pad(x, paddings, mode="constant", value=None):
    """Elements before and after, per axis, as numpy.pad: paddings is a list of (before, after), or of all
    those numbers; value is for mode "constant"."""
    paddings = [paddings] * (2 * len(x.shape)) if isinstance(paddings, int) else list(paddings)
    flat = [n for p in paddings for n in (p if isinstance(p, (tuple, list)) else (p,))]
    value = value.item() if hasattr(value, "item") and type(value).__module__ == "numpy" and not value.shape else value  # must fit, as any number
    return _ops["pad"](x, value, flat, mode)


def as_interleaved_complex(x):
    """(..., 2n) with real and imaginary parts in turn, as (..., n, 2)."""
    shape = tuple(x.shape)
    if not shape or (isinstance(shape[-1], int) and shape[-1] % 2):
        raise ValueError(f"eager.as_interleaved_complex: the last dim holds pairs, so its size is even; the shape is {shape}")
    return _ops["reshape"](x, (*shape[:-1], shape[-1] // 2, 2))


def view_as_real_interleaved(x):
    """(..., n, 2) as (..., 2n): real and imaginary parts in turn. The inverse of as_interleaved_complex."""
    shape = tuple(x.shape)
    if len(shape) < 2 or shape[-1] != 2:
        raise ValueError(f"eager.view_as_real_interleaved: the last dim holds real and imaginary part, so its size is 2; the shape is {shape}")
    return _ops["reshape"](x, (*shape[:-2], shape[-2] * 2))
