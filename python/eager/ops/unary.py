"""Element by element, of one tensor; normalisation."""

from eas._eas import tensor_ops as _ops

from ._table import ops_of

globals().update(ops_of("unary"))
__all__ = [*ops_of("unary"), "layer_norm", "one_hot", "rms_norm"]


def layer_norm(x, weight=None, bias=None, axis=-1, eps=1e-5):
    """Mean 0 and variance 1 over axes, then times weight plus bias."""
    return _ops["layer_norm"](x, weight, bias, axis=axis, eps=eps)


def rms_norm(x, weight=None, bias=None, axis=-1, eps=1e-6):
    """Mean square 1 over axes, then times weight plus bias."""
    return _ops["rms_norm"](x, weight, bias, axis=axis, eps=eps)


def one_hot(x, num_classes, dtype="float32", axis=-1):
    """1 at the class, 0 elsewhere, along a new axis: the last one, or the one of that number in the result.
    """
    out = _ops["one_hot"](x, num_classes=num_classes, dtype=dtype)
    rank = len(out.shape)
    if not -rank <= axis < rank:
        raise ValueError(f"eager.one_hot: axis {axis} of a result of {rank} dims")
    return out if axis in (-1, rank - 1) else _ops["moveaxis"](out, -1, axis)
