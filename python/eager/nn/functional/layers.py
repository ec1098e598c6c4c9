"""Linear maps, normalisation, dropout, embedding, convolution and pooling."""

import math

from eas._eas import SymbolicDim, random_key, tensor_ops

from ..._autograd import no_grad
from ...ops import convolution as _convolution
from ...ops import pooling as _pooling
from ..precision import cast_inputs
from .common import check_indices, compute_type, shape_text, tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "dropout", "embedding",
    "group_norm", "instance_norm", "layer_norm", "linear", "max_pool1d", "max_pool2d", "normalize", "one_hot", "pad", "rms_norm", "rotary_embedding", "rotary_tables",
]  # fmt: skip

_ops = tensor_ops


def linear(x, weight, bias=None):
    """x @ weight + bias; the weight is (in, out)."""
    x, weight = tensor(x), tensor(weight)
    if len(weight.shape) != 2:
        raise ValueError(f"linear: the weight is (in, out), got {shape_text(weight)}")
    if len(x.shape) == 0 or _differs(x.shape[-1], weight.shape[0]):
        raise ValueError(f"linear: x is {shape_text(x)} and the weight {shape_text(weight)}; the last size of x must be {weight.shape[0]}")
    x, weight, bias = cast_inputs(x, weight, bias)
    y = x @ weight
    return y if bias is None else y + bias


def _differs(a, b):
    return not isinstance(a, SymbolicDim) and not isinstance(b, SymbolicDim) and int(a) != int(b)


def layer_norm(x, weight=None, bias=None, eps=1e-5, axis=-1):
    """Mean 0 and variance 1 over an axis or several, then times weight plus bias."""
    x = tensor(x)
    return _ops["layer_norm"](x, weight, bias, axis=axis, eps=eps)


def rms_norm(x, weight=None, bias=None, eps=1e-6, axis=-1):
    """Mean square 1 over an axis or several, then times weight plus bias."""
    return _ops["rms_norm"](tensor(x), weight, bias, axis=axis, eps=eps)


def _affine(x, weight, bias):
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def batch_norm(x, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Each channel (the last axis) with mean 0 and variance 1: those of the batch in training or where there
    are no running ones.

    Gives the result; with running statistics and training=True, (result, new mean, new variance).
    """
    x = tensor(x)
    axes = tuple(range(len(x.shape) - 1))
    wide = compute_type(x)
    if not training and running_mean is not None:
        scale = _ops["rsqrt"](running_var + eps)
        return _affine((wide - running_mean) * scale, weight, bias).astype(x.dtype)
    mean = wide.mean(axis=axes)
    centred = wide - mean
    var = (centred * centred).mean(axis=axes)
    y = _affine(centred * _ops["rsqrt"](var + eps), weight, bias).astype(x.dtype)
    if running_mean is None or not training:
        return y
    n = math.prod(int(x.shape[a]) for a in axes)
    # the operations behind the running statistics are dropped, which stop_gradient would keep alive
    with no_grad():
        unbiased = var * (n / max(n - 1, 1))
        return y, running_mean * (1 - momentum) + mean * momentum, running_var * (1 - momentum) + unbiased * momentum


def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    """Channels (the last axis) in groups, each with mean 0 and variance 1 over all places."""
    x = tensor(x)
    n, c = x.shape[0], int(x.shape[-1])
    if num_groups < 1 or c % num_groups:
        raise ValueError(f"group_norm: {c} channels do not divide into {num_groups} groups")
    inner = tuple(x.shape[1:-1])
    g = compute_type(x).reshape((n, *inner, num_groups, c // num_groups))
    axes = tuple(range(1, len(inner) + 1)) + (len(inner) + 2,)
    d = g - g.mean(axis=axes, keepdims=True)
    y = d * _ops["rsqrt"]((d * d).mean(axis=axes, keepdims=True) + eps)
    return _affine(y.reshape(x.shape), weight, bias).astype(x.dtype)


def instance_norm(x, weight=None, bias=None, eps=1e-5):
    """Each channel (the last axis) of each example with mean 0 and variance 1."""
    return group_norm(x, int(tensor(x).shape[-1]), weight, bias, eps)


def normalize(x, p=2.0, axis=-1, eps=1e-12):
    """x over its p-norm along an axis."""
    x = tensor(x)
    if p == 2:
        norm = _ops["sqrt"]((x * x).sum(axis=axis, keepdims=True))
    else:
        norm = (_ops["abs"](x) ** p).sum(axis=axis, keepdims=True) ** (1.0 / p)
    return x / _ops["maximum"](norm, eps)


def dropout(x, p=0.5, training=True, key=None):
    """Elements are 0 with probability p, the others are divided by 1 - p. Without a key each call, and each
    run of a compiled function, drops others."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ValueError(f"dropout: p is a probability in [0, 1], got {p!r}")
    x = tensor(x)
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0.0
    draw = _ops["random_uniform"](random_key() if key is None else key, shape=tuple(x.shape))
    return _ops["where"](draw >= p, x * (1.0 / (1.0 - p)), 0.0)


def embedding(indices, weight):
    """Rows of the weight (num_embeddings, dim) by their numbers. A number out of range: IndexError, at once
    where the data is known."""
    indices, weight = tensor(indices), tensor(weight)
    if len(weight.shape) != 2:
        raise ValueError(f"embedding: the weight is (num_embeddings, embedding_dim), got {shape_text(weight)}")
    indices = check_indices("embedding", "indices", indices, int(weight.shape[0]))
    return _ops["gather"](weight, indices, axis=0)


def one_hot(x, num_classes=None, dtype="float32"):
    """1 at the class, 0 elsewhere, along a new last axis. Without num_classes: the largest class there is,
    and 1."""
    x = tensor(x)
    if num_classes is None:
        num_classes = int(x.max().item()) + 1
    x = check_indices("one_hot", "classes", x, num_classes)
    return _ops["one_hot"](x, num_classes=num_classes, dtype=dtype)


def pad(x, paddings, mode="constant", value=0.0):
    """Elements before and after, per axis: ((before, after), ...), as numpy.pad does it."""
    from ...ops.view import pad as _pad

    return _pad(tensor(x), paddings, mode, value)


# ---- convolutions: channels last ----
def several(name, what, value, n):
    values = (value,) * n if isinstance(value, int) and not isinstance(value, bool) else tuple(value) if isinstance(value, (tuple, list)) else None
    if values is None or len(values) != n or not all(isinstance(v, int) for v in values):
        raise ValueError(f"{name}: {what} is an int or {n} ints, got {value!r}")
    return values


def paddings_of(name, padding, kernel, stride, dilation):
    """(before, after) for each dim, of a number, one for each dim, pairs, "valid" or "same"."""
    n = len(kernel)
    if padding == "valid":
        return ((0, 0),) * n
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError(f'{name}: padding="same" needs a stride of 1, got {stride}')
        total = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return tuple((t // 2, t - t // 2) for t in total)
    if isinstance(padding, (tuple, list)) and padding and all(isinstance(p, (tuple, list)) for p in padding):
        if len(padding) != n or any(len(p) != 2 for p in padding):
            raise ValueError(f"{name}: padding is {n} pairs (before, after), got {padding!r}")
        return tuple((int(a), int(b)) for a, b in padding)
    if isinstance(padding, str):
        raise ValueError(f'{name}: padding is a number, numbers, pairs, "same" or "valid", got {padding!r}')
    return tuple((p, p) for p in several(name, "padding", padding, n))


def _rank(name, x, n):
    x = tensor(x)
    if len(x.shape) not in (n, n + 1):
        raise ValueError(f"{name}: x has {n + 1} dims, the channels last (or {n}: one example), got {shape_text(x)}")
    return (x, False) if len(x.shape) == n + 1 else (_ops["unsqueeze"](x, 0), True)


def conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolution of x (N, H, W, C) with a weight (H, W, C / groups, C_out)."""
    x, single = _rank("conv2d", x, 3)
    weight = tensor(weight)
    x, weight, bias = cast_inputs(x, weight, bias)
    stride, dilation = several("conv2d", "stride", stride, 2), several("conv2d", "dilation", dilation, 2)
    (top, bottom), (left, right) = paddings_of("conv2d", padding, [int(d) for d in weight.shape[:2]], stride, dilation)
    y = _convolution.conv2d(x, weight, stride=stride, dilation=dilation, padding=(top, bottom, left, right), groups=groups, bias=bias)
    return _ops["squeeze"](y, 0) if single else y


def conv1d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolution of x (N, L, C) with a weight (K, C / groups, C_out)."""
    x, single = _rank("conv1d", x, 2)
    weight = tensor(weight)
    (stride,), (dilation,) = several("conv1d", "stride", stride, 1), several("conv1d", "dilation", dilation, 1)
    (pads,) = paddings_of("conv1d", padding, [int(weight.shape[0])], (stride,), (dilation,))
    y = conv2d(_ops["unsqueeze"](x, 1), _ops["unsqueeze"](weight, 0), bias, (1, stride), ((0, 0), pads), (1, dilation), groups)
    y = _ops["squeeze"](y, 1)
    return _ops["squeeze"](y, 0) if single else y


def conv3d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolution of x (N, D, H, W, C) with a weight (D, H, W, C / groups, C_out): one convolution of planes
    for each slice of the weight, added up."""
    x, single = _rank("conv3d", x, 4)
    weight = tensor(weight)
    kernel = [int(d) for d in weight.shape[:3]]
    stride, dilation = several("conv3d", "stride", stride, 3), several("conv3d", "dilation", dilation, 3)
    pads = paddings_of("conv3d", padding, kernel, stride, dilation)
    if any(pads[0]):
        x = pad(x, ((0, 0), pads[0], (0, 0), (0, 0), (0, 0)))
    n, depth = x.shape[0], int(x.shape[1])
    out = (depth - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    if out < 1:
        raise ValueError(f"conv3d: the weight is {shape_text(weight)} and x with its padding {shape_text(x)}: there is no room for it")
    y = None
    for k in range(kernel[0]):
        first = k * dilation[0]
        planes = x[:, first : first + (out - 1) * stride[0] + 1 : stride[0]]
        planes = planes.reshape((n * out, *x.shape[2:]))
        part = conv2d(planes, weight[k], bias if k == 0 else None, stride[1:], pads[1:], dilation[1:], groups)
        y = part if y is None else y + part
    y = y.reshape((n, out, *y.shape[1:]))
    return _ops["squeeze"](y, 0) if single else y


def conv_transpose2d(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Transposed convolution of x (N, H, W, C_in) with a weight (H, W, C_out / groups, C_in)."""
    x, single = _rank("conv_transpose2d", x, 3)
    weight = tensor(weight)
    x, weight, bias = cast_inputs(x, weight, bias)
    stride, dilation = several("conv_transpose2d", "stride", stride, 2), several("conv_transpose2d", "dilation", dilation, 2)
    (top, bottom), (left, right) = paddings_of("conv_transpose2d", padding, [int(d) for d in weight.shape[:2]], stride, dilation)
    extra = several("conv_transpose2d", "output_padding", output_padding, 2)
    channels = int(x.shape[-1])
    if groups < 1 or channels % groups:
        raise ValueError(f"conv_transpose2d: {channels} channels do not divide into {groups} groups")
    each, parts = channels // groups, []
    for g in range(groups):
        xs = x if groups == 1 else x[..., g * each : (g + 1) * each]
        ws = weight if groups == 1 else weight[..., g * each : (g + 1) * each]
        parts.append(
            _convolution.conv2d_transpose(xs, ws, stride=stride, dilation=dilation, padding=(top, bottom, left, right), output_paddings=extra)
        )
    y = parts[0] if groups == 1 else _ops["concatenate"](parts, axis=-1)
    y = y if bias is None else y + bias
    return _ops["squeeze"](y, 0) if single else y


def conv_transpose1d(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Transposed convolution of x (N, L, C_in) with a weight (K, C_out / groups, C_in)."""
    x, single = _rank("conv_transpose1d", x, 2)
    (stride,), (dilation,) = several("conv_transpose1d", "stride", stride, 1), several("conv_transpose1d", "dilation", dilation, 1)
    (extra,) = several("conv_transpose1d", "output_padding", output_padding, 1)
    weight = tensor(weight)
    (pads,) = paddings_of("conv_transpose1d", padding, [int(weight.shape[0])], (stride,), (dilation,))
    y = conv_transpose2d(_ops["unsqueeze"](x, 1), _ops["unsqueeze"](weight, 0), bias, (1, stride), ((0, 0), pads), (0, extra), groups, (1, dilation))
    y = _ops["squeeze"](y, 1)
    return _ops["squeeze"](y, 0) if single else y


# ---- pooling: channels last ----
def max_pool2d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
    """Largest elements of windows of x (N, H, W, C); without a stride windows do not overlap."""
    x, single = _rank("max_pool2d", x, 3)
    y = _pooling.max_pool2d(x, kernel_size, stride=stride, dilation=dilation, padding=padding, ceil_mode=ceil_mode)
    return _ops["squeeze"](y, 0) if single else y


def avg_pool2d(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """Means of windows of x (N, H, W, C); without a stride windows do not overlap."""
    x, single = _rank("avg_pool2d", x, 3)
    y = _pooling.avg_pool2d(x, kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode, count_boundary=count_include_pad)
    return _ops["squeeze"](y, 0) if single else y


def _of_lines(name, f, x, kernel_size, stride, padding, **kwargs):
    x, single = _rank(name, x, 2)
    (k,), (p,) = several(name, "kernel_size", kernel_size, 1), several(name, "padding", padding, 1)
    s = k if stride is None else several(name, "stride", stride, 1)[0]
    y = _ops["squeeze"](f(_ops["unsqueeze"](x, 1), (1, k), (1, s), (0, p), **kwargs), 1)
    return _ops["squeeze"](y, 0) if single else y


def max_pool1d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
    """Largest elements of windows of x (N, L, C)."""
    (dilation,) = several("max_pool1d", "dilation", dilation, 1)
    return _of_lines("max_pool1d", max_pool2d, x, kernel_size, stride, padding, dilation=(1, dilation), ceil_mode=ceil_mode)


def avg_pool1d(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """Means of windows of x (N, L, C)."""
    return _of_lines("avg_pool1d", avg_pool2d, x, kernel_size, stride, padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad)


def _bins(size, out):
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive(x, axis, out):
    size = int(x.shape[axis])
    if out == size:
        return x
    if out == 1:
        return x.mean(axis=axis, keepdims=True)
    if size % out == 0:
        return _ops["unflatten"](x, axis, (out, size // out)).mean(axis=axis + 1)
    parts = []
    for a, b in _bins(size, out):
        cut = [slice(None)] * axis + [slice(a, b)]
        parts.append(x[tuple(cut)].mean(axis=axis, keepdims=True))
    return _ops["concatenate"](parts, axis=axis)


def adaptive_avg_pool2d(x, output_size):
    """Means over a grid of output_size (an int, or two; None: as it is) windows of x (N, H, W, C) that cover
    it."""
    x, single = _rank("adaptive_avg_pool2d", x, 3)
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * 2
    sizes = tuple(int(x.shape[i + 1]) if s is None else s for i, s in enumerate(sizes))
    if len(sizes) != 2 or any(not isinstance(s, int) or s < 1 for s in sizes):
        raise ValueError(f"adaptive_avg_pool2d: output_size is one or two sizes above 0, got {output_size!r}")
    y = _adaptive(_adaptive(x, 1, sizes[0]), 2, sizes[1])
    return _ops["squeeze"](y, 0) if single else y


def adaptive_avg_pool1d(x, output_size):
    """Means over output_size windows of x (N, L, C) that cover it."""
    x, single = _rank("adaptive_avg_pool1d", x, 2)
    (size,) = several("adaptive_avg_pool1d", "output_size", output_size, 1)
    y = _adaptive(x, 1, size)
    return _ops["squeeze"](y, 0) if single else y


# ---- rotary position embedding ----
def rotary_tables(positions, dim, base=10000.0):
    """(cos, sin), each positions' shape + (dim / 2,), of the angles position * base^(-2i / dim)."""
    if dim % 2:
        raise ValueError(f"rotary_tables: dim must be even, got {dim}")
    positions = tensor(positions).astype("float32")
    steps = _ops["exp"](tensor(range_floats(dim // 2)) * (-2.0 * math.log(base) / dim))
    angles = _ops["unsqueeze"](positions, len(positions.shape)) * steps
    return _ops["cos"](angles), _ops["sin"](angles)


def range_floats(n):
    from ...ops.creation import arange

    return arange(n, dtype="float32")


def rotary_embedding(x, cos, sin):
    """x (..., S, D) with pairs (i, i + D / 2) of its last axis turned by the angles of rotary_tables, (S, D /
    2) or with leading dims that broadcast."""
    x = tensor(x)
    half = int(x.shape[-1]) // 2
    a, b = x[..., :half], x[..., half:]
    return _ops["concatenate"]([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
