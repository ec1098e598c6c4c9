"""Shapes, order, choice and joining of elements."""

from eas._eas import tensor_ops as _ops

from ._table import ops_of

globals().update(ops_of("view"))
transpose, matrix_trace = _ops["swap_axes"]._called("transpose"), _ops["trace"]._called("matrix_trace")
__all__ = [*ops_of("view"), "matrix_trace", "pad", "transpose"]


def pad(x, paddings, mode="constant", value=None):
    """Elements before and after, per axis, as numpy.pad: paddings is a list of (before, after), or of all those numbers; value is for mode "constant"."""
    paddings = [paddings] * (2 * len(x.shape)) if isinstance(paddings, int) else list(paddings)
    flat = [n for p in paddings for n in (p if isinstance(p, (tuple, list)) else (p,))]
    return _ops["pad"](x, value, flat, mode)
