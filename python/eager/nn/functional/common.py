"""Shared by the functions of this folder: arguments as tensors, checks of indices, reductions of losses."""

from eas._eas import EagerTensor, constant, tensor_ops

_where = tensor_ops["where"]


def tensor(x):
    return x if isinstance(x, EagerTensor) else constant(x)


def compute_type(x):
    """The dtype in which x is normalised and summed up: f32 for halves."""
    return x.astype("float32") if x.dtype.kind == "f" and x.dtype.itemsize == 2 else x


def shape_text(t):
    return f"({', '.join(str(d) for d in t.shape)})"


def known(t):
    """The data as an array if it was computed already, else None; nothing is computed."""
    impl = t._impl
    return t.numpy() if t.real and not impl._is_symbolic and t.batch_dims == 0 else None


def check_indices(name, what, t, size, also=None):
    """Checks that indices are integers in [0, size), or `also`: raises at once if the data is known, else
    when it is computed. Gives indices of which none counts from the end."""
    if t.dtype.kind not in "iu":
        raise TypeError(f"{name}: the {what} are integers, got {t.dtype}")
    data = known(t)
    if data is not None:
        bad = (data < 0) | (data >= size)
        if also is not None:
            bad &= data != also
        if bad.any():
            value = data[bad].ravel()[0]
            raise IndexError(
                f"{name}: {what} out of range: {value} is not in [0, {size})" + ("" if also is None else f" and not {also}, which is ignored")
            )
        return t
    if t.dtype.kind == "u":
        return t
    return _where(t < 0, size, t) if also is None else _where((t < 0) & (t != also), size, t)


def reduced(name, loss, reduction, count=None):
    if reduction == "mean":
        return loss.mean() if count is None else loss.sum() / count
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f'{name}: reduction is "mean", "sum" or "none", got {reduction!r}')


def fits(name, a, b):
    a, b = tensor(a), tensor(b)
    if tuple(a.shape) != tuple(b.shape):
        raise ValueError(f"{name}: predictions are {shape_text(a)} and targets {shape_text(b)}; their shapes must be equal")
    return a, b
