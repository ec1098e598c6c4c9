"""Activations and other functions of networks that are made of operations of the table."""

import eager as _e
from eas._eas import EagerTensor, constant, tensor_ops

__all__ = [
    "celu", "elu", "fold", "geglu", "glu", "hard_sigmoid", "hard_tanh", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid", "logit", "mish", "pixel_shuffle",
    "pixel_unshuffle", "prelu", "reglu", "relu6", "selu", "softmin", "softplus", "softshrink", "softsign", "squareplus", "swiglu", "swish", "tanhshrink", "threshold", "unfold",
]  # fmt: skip

_ops = tensor_ops


def _floats(x):
    x = x if isinstance(x, EagerTensor) else constant(x)
    return x if x.dtype.kind == "f" else _ops["cast"](x, dtype="float32")


def softplus(x, beta=1.0, threshold=None):
    """log(1 + exp(beta x)) / beta, without overflow. threshold: x itself where beta x is above it."""
    x = _floats(x)
    y = _ops["logaddexp"](x * beta, 0.0) / beta
    return y if threshold is None else _ops["where"](x * beta > threshold, x, y)


def log_sigmoid(x):
    """log(sigmoid(x))."""
    return -softplus(-_floats(x))


def squareplus(x, b=4.0):
    """(x + sqrt(x^2 + b)) / 2."""
    x = _floats(x)
    return (x + _ops["sqrt"](x * x + b)) / 2


def leaky_relu(x, negative_slope=0.01):
    """x, times negative_slope below 0."""
    x = _floats(x)
    return _ops["where"](x >= 0, x, x * negative_slope)


def prelu(x, weight):
    """leaky_relu with a slope that is learned: one, or one for each element of the last axis."""
    x = _floats(x)
    return _ops["where"](x >= 0, x, x * weight)


def _below(x):
    """x where it is below 0, else 0: exp of it does not overflow, nor does its derivative."""
    return _ops["where"](x > 0, 0.0, x)


def elu(x, alpha=1.0):
    """x above 0, alpha (exp(x) - 1) below."""
    x = _floats(x)
    return _ops["where"](x > 0, x, _ops["expm1"](_below(x)) * alpha)


def celu(x, alpha=1.0):
    """x above 0, alpha (exp(x / alpha) - 1) below."""
    x = _floats(x)
    return _ops["where"](x > 0, x, _ops["expm1"](_below(x) / alpha) * alpha)


def selu(x):
    """elu, scaled so that mean and variance keep their values."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


def mish(x):
    """x tanh(softplus(x))."""
    x = _floats(x)
    return x * _ops["tanh"](softplus(x))


def relu6(x):
    """x limited to the range from 0 to 6."""
    return _ops["minimum"](_ops["relu"](_floats(x)), 6.0)


def hardsigmoid(x):
    """relu6(x + 3) / 6."""
    return relu6(_floats(x) + 3.0) / 6.0


def hardswish(x):
    """x relu6(x + 3) / 6."""
    x = _floats(x)
    return x * hardsigmoid(x)


def hardtanh(x, min_val=-1.0, max_val=1.0):
    """x limited to the range from min_val to max_val."""
    return _ops["minimum"](_ops["maximum"](_floats(x), min_val), max_val)


hard_sigmoid, hard_tanh = hardsigmoid, hardtanh
swish = tensor_ops["silu"]._called("swish")


def softsign(x):
    """x / (1 + |x|)."""
    x = _floats(x)
    return x / (1 + _ops["abs"](x))


def hardshrink(x, lambd=0.5):
    """0 where |x| is not above lambd."""
    x = _floats(x)
    return _ops["where"](_ops["abs"](x) > lambd, x, 0.0)


def softshrink(x, lambd=0.5):
    """x moved towards 0 by lambd."""
    x = _floats(x)
    return _ops["where"](x > lambd, x - lambd, _ops["where"](x < -lambd, x + lambd, 0.0))


def tanhshrink(x):
    """x - tanh(x)."""
    x = _floats(x)
    return x - _ops["tanh"](x)


def threshold(x, threshold, value):
    """value where x is not above the threshold."""
    x = _floats(x)
    return _ops["where"](x > threshold, x, value)


def softmin(x, axis=-1):
    """softmax(-x)."""
    return _ops["softmax"](-_floats(x), axis=axis)


def logit(x, eps=None):
    """log(x / (1 - x)); eps: x is brought into [eps, 1 - eps] first."""
    x = _floats(x)
    x = x if eps is None else _ops["minimum"](_ops["maximum"](x, eps), 1 - eps)
    return _ops["log"](x) - _ops["log1p"](-x)


def _halves(fn, x, axis):
    x = _floats(x)
    n = x.shape[axis]
    if isinstance(n, int) and n % 2:
        raise ValueError(f"eager.{fn}: axis {axis} is cut into halves, and its size is {n}")
    from .multi_output import split

    return split(x, 2, axis=axis)


def glu(x, axis=-1):
    """The first half of an axis times sigmoid of the second."""
    a, b = _halves("glu", x, axis)
    return a * _ops["sigmoid"](b)


def swiglu(x, axis=-1):
    """silu of the first half of an axis times the second."""
    a, b = _halves("swiglu", x, axis)
    return _ops["silu"](a) * b


def geglu(x, axis=-1):
    """The first half of an axis times gelu of the second."""
    a, b = _halves("geglu", x, axis)
    return a * _ops["gelu"](b)


def reglu(x, axis=-1):
    """The first half of an axis times relu of the second."""
    a, b = _halves("reglu", x, axis)
    return a * _ops["relu"](b)


# ---- images (NHWC) ----
def pixel_shuffle(x, upscale_factor):
    """(N, H, W, C r^2) as (N, H r, W r, C): groups of channels become squares of pixels. Channel c r^2 + i r
    + j goes to pixel (i, j) of channel c."""
    r = int(upscale_factor)
    *lead, h, w, c = tuple(x.shape)
    if isinstance(c, int) and c % (r * r):
        raise ValueError(f"eager.pixel_shuffle: {c} channels are not a multiple of {r * r}")
    n = len(lead)
    x = _ops["reshape"](x, (*lead, h, w, c // (r * r), r, r))
    x = _ops["permute"](x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return _ops["reshape"](x, (*lead, h * r, w * r, c // (r * r)))


def pixel_unshuffle(x, downscale_factor):
    """The inverse of pixel_shuffle."""
    r = int(downscale_factor)
    *lead, h, w, c = tuple(x.shape)
    if (isinstance(h, int) and h % r) or (isinstance(w, int) and w % r):
        raise ValueError(f"eager.pixel_unshuffle: an image of {h} x {w} is not made of squares of {r}")
    n = len(lead)
    x = _ops["reshape"](x, (*lead, h // r, r, w // r, r, c))
    x = _ops["permute"](x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return _ops["reshape"](x, (*lead, h // r, w // r, c * r * r))


def _two(x):
    return (x, x) if isinstance(x, int) else tuple(x)


def unfold(x, kernel_size, dilation=1, padding=0, stride=1):
    """Sliding windows of images (N, H, W, C) as rows: (N, windows, kh kw C)."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = _two(kernel_size), _two(dilation), _two(padding), _two(stride)
    x = _e.pad(x, [(0, 0), (ph, ph), (pw, pw), (0, 0)]) if ph or pw else x
    w = _ops["window"](x, [1, 2], [kh, kw], [sh, sw], [dh, dw])  # (N, oh, ow, C, kh, kw)
    n, oh, ow, c = tuple(w.shape)[:4]
    return _ops["reshape"](_ops["permute"](w, (0, 1, 2, 4, 5, 3)), (n, oh * ow, kh * kw * c))


def fold(x, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """The transpose of unfold: windows (N, windows, kh kw C) are added up where they overlap, giving images
    (N, H, W, C)."""
    (h, w), (kh, kw), (ph, pw) = _two(output_size), _two(kernel_size), _two(padding)
    n, rows, wide = tuple(x.shape)
    c = wide // (kh * kw)
    zero = _e.zeros((n, h, w, c), dtype=x.dtype)

    def windows(image):
        return unfold(image, kernel_size, dilation, padding, stride)

    want = tuple(windows(zero).shape)
    if isinstance(rows, int) and want[1] != rows:
        raise ValueError(f"eager.fold: {rows} windows are given, and an image of {h} x {w} has {want[1]}")
    if x.batch_dims:
        (dh, dw), (sh, sw) = _two(dilation), _two(stride)
        return _fold_by_index(x, n, h, w, c, (kh, kw), (dh, dw), (ph, pw), (sh, sw))
    _, back = _e.vjp(windows, zero)
    return back(x)[0]


def _fold_by_index(x, n, h, w, c, kernel, dilation, padding, stride):
    """fold by adding each element of a window at its place."""
    import numpy as np

    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = kernel, dilation, padding, stride
    oh, ow = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    y = (np.arange(oh) * sh)[:, None, None, None] + (np.arange(kh) * dh)[None, None, :, None]
    z = (np.arange(ow) * sw)[None, :, None, None] + (np.arange(kw) * dw)[None, None, None, :]
    at = (y * (w + 2 * pw) + z).reshape(-1)
    flat = _ops["reshape"](x, (n, oh * ow * kh * kw, c))
    out = _e.scatter(_e.zeros((n, (h + 2 * ph) * (w + 2 * pw), c), dtype=x.dtype), constant(at.astype(np.int64)), flat, axis=1, mode="add")
    out = _ops["reshape"](out, (n, h + 2 * ph, w + 2 * pw, c))
    return out[:, ph : ph + h, pw : pw + w, :]
