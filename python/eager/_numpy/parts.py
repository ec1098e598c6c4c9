"""What the files of this folder share: arguments as tensors, axes and sizes that are checked, and ravel."""

import operator

import eager as _e
from eas._eas import EagerTensor, constant, tensor_ops

from .._wrapped import Wrapped

__all__ = ["ravel"]

_ops = tensor_ops


def _t(x):
    """A tensor of x; complex data gives a complex one."""
    return x if isinstance(x, (EagerTensor, Wrapped)) else constant(x)


def _rank(x):
    return len(x.shape)


def _axis(fn, axis, rank):
    a = operator.index(axis)
    if not -rank <= a < rank:
        raise ValueError(f"eager.{fn}: axis {a} of a tensor of {rank} dims")
    return a % rank


def _is_float(x):
    return x.dtype.kind in "fc"


def _floats(x):
    """x, with integers and bools as floats, as NumPy's functions that divide treat them."""
    x = _t(x)
    return x if _is_float(x) else _ops["cast"](x, dtype="float32")


def _as(x, dtype):
    return x if dtype is None else _e.astype(x, dtype)


def _key(rank, axis, item):
    key = [slice(None)] * rank
    key[axis] = item
    return tuple(key)


def _known(fn, n):
    if isinstance(n, int):
        return n
    try:
        return int(n)
    except (TypeError, ValueError):
        raise ValueError(f"eager.{fn}: the size {n} is a symbol here; give the size as a number") from None


def ravel(a, order="C"):
    """All elements in one dim. order "F": the first axis fastest."""
    a = _t(a)
    if order in ("F",):
        a = _ops["permute"](a, tuple(reversed(range(_rank(a)))))
    elif order not in ("C", "K", "A"):
        raise ValueError(f"eager.ravel: order must be 'C', 'F', 'A' or 'K', got {order!r}")
    return _ops["reshape"](a, (-1,)) if a.size != 0 else _ops["reshape"](a, (0,))
