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
    parts = [tensor_ops[op](x, index=i, **kwargs) for i in range(count)]
    return parts


def _record(op, x, kwargs, results):
    leaves, tree = tree_flatten(results)
    record(tensor_ops[op] if op in tensor_ops else None, leaves, (x,), kwargs, tree)
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
    return _record("reduce_min", x, kwargs, {"min": tensor_ops["reduce_min"](x, **kwargs), "max": tensor_ops["reduce_max"](x, **kwargs)})


def topk(x, k, axis=-1, largest=True):
    """(values, indices) of the k largest, or smallest, along an axis; in order."""
    x = _tensor(x)
    n = _size("topk", x, axis)
    if not 0 <= k <= n:
        raise ValueError(f"eager.topk: k must be between 0 and the axis's size {n}, got {k}")
    order = tensor_ops["argsort"](x, axis=axis, descending=largest)
    rank = len(x.shape)
    key = [slice(None)] * rank
    key[axis] = slice(0, k)
    indices = order[tuple(key)]
    return _record("argsort", x, {"k": k, "axis": axis, "largest": largest}, (tensor_ops["take_along_axis"](x, indices, axis=axis), indices))
