"""Operations with several results, which share one OutputRefs."""

from eas._eas import EagerTensor, constant, record, tensor_ops, tree_flatten

__all__ = ["chunk", "minmax", "split", "topk", "unbind"]


def _tensor(x):
    return x if isinstance(x, EagerTensor) else constant(x)


def _size(op, x, axis):
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise ValueError(f"eager.{op}: axis {axis} of a tensor of {rank} dims")
    return x.shape[axis]


def _pieces(op, x, count, kwargs):
    return [tensor_ops[op](x, index=i, **kwargs) for i in range(count)]


def _record(op, x, kwargs, results):
    leaves, tree = tree_flatten(results)
    record(tensor_ops[op], leaves, (x,), kwargs, tree)
    return results


def split(x, num_splits, axis=0):
    """A tuple of num_splits equal parts."""
    x = _tensor(x)
    _size("split", x, axis)
    if num_splits < 1:
        raise ValueError(f"eager.split: num_splits must be at least 1, got {num_splits}")
    kwargs = {"num_splits": num_splits, "axis": axis}
    return _record("split", x, kwargs, tuple(_pieces("split", x, num_splits, kwargs)))


def chunk(x, chunks, axis=0):
    """A list of parts, the first ones longer where it does not divide: as numpy.array_split."""
    x = _tensor(x)
    _size("chunk", x, axis)
    if chunks < 1:
        raise ValueError(f"eager.chunk: chunks must be at least 1, got {chunks}")
    kwargs = {"chunks": chunks, "axis": axis}
    return _record("chunk", x, kwargs, _pieces("chunk", x, chunks, kwargs))


def unbind(x, axis=0):
    """A tuple of the elements along an axis, without the axis."""
    x = _tensor(x)
    n = int(_size("unbind", x, axis))
    return _record("unbind", x, {"axis": axis}, tuple(_pieces("unbind", x, n, {"axis": axis})))


def minmax(x, axis=None, keepdims=False):
    """{"min": ..., "max": ...}."""
    x = _tensor(x)
    kwargs = {"axis": axis, "keepdims": keepdims}
    low, high = _pieces("minmax", x, 2, kwargs)
    return _record("minmax", x, kwargs, {"min": low, "max": high})


def topk(x, k, axis=-1, largest=True):
    """(values, indices) of the k largest, or smallest, along an axis; in order."""
    x = _tensor(x)
    kwargs = {"k": k, "axis": axis, "largest": largest}
    return _record("topk", x, kwargs, tuple(_pieces("topk", x, 2, kwargs)))
