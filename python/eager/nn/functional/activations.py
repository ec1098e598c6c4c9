"""Activations."""

import math

from eas._eas import tensor_ops as _ops

from .common import tensor

__all__ = [
    "celu", "elu", "gelu", "glu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid", "log_softmax", "logsigmoid", "logsoftmax", "mish", "prelu", "relu", "relu6",
    "selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "swish", "tanh",
]  # fmt: skip

relu, sigmoid, silu, tanh = (_ops[n] for n in ("relu", "sigmoid", "silu", "tanh"))
swish = silu


def softmax(x, axis=-1):
    """exp(x) over its sum along an axis."""
    return _ops["softmax"](x, axis=axis)


def logsoftmax(x, axis=-1):
    """log(softmax(x))."""
    return _ops["logsoftmax"](x, axis=axis)


log_softmax = logsoftmax


def gelu(x, approximate="tanh"):
    """Gaussian error linear unit, in its tanh form; approximate="none": x * Phi(x) with the error function.
    """
    if approximate == "tanh":
        return _ops["gelu"](x)
    if approximate != "none":
        raise ValueError(f'gelu: approximate is "tanh" or "none", got {approximate!r}')
    x = tensor(x)
    return x * (_ops["erf"](x * math.sqrt(0.5)) + 1.0) * 0.5


def leaky_relu(x, negative_slope=0.01):
    """x, and negative_slope * x below 0."""
    x = tensor(x)
    return _ops["where"](x > 0, x, x * negative_slope)


def prelu(x, weight):
    """leaky_relu with slopes that are learnt: one, or one for each channel (the last axis)."""
    x = tensor(x)
    return _ops["where"](x > 0, x, x * weight)


def elu(x, alpha=1.0):
    """x, and alpha * (exp(x) - 1) below 0."""
    x = tensor(x)
    return _ops["where"](x > 0, x, _ops["expm1"](_ops["minimum"](x, 0.0)) * alpha)


def selu(x):
    """elu whose results keep mean 0 and variance 1."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


def celu(x, alpha=1.0):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    x = tensor(x)
    return _ops["where"](x > 0, x, _ops["expm1"](_ops["minimum"](x, 0.0) / alpha) * alpha)


def softplus(x, beta=1.0, threshold=20.0):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    x = tensor(x)
    z = x * beta
    soft = (_ops["relu"](z) + _ops["log1p"](_ops["exp"](-_ops["abs"](z)))) / beta
    return _ops["where"](z > threshold, x, soft)


def log_sigmoid(x):
    """log(sigmoid(x)), exact where it is small."""
    x = tensor(x)
    return _ops["minimum"](x, 0.0) - _ops["log1p"](_ops["exp"](-_ops["abs"](x)))


logsigmoid = log_sigmoid


def mish(x):
    """x * tanh(softplus(x))."""
    x = tensor(x)
    return x * _ops["tanh"](softplus(x))


def softsign(x):
    """x / (1 + |x|)."""
    x = tensor(x)
    return x / (_ops["abs"](x) + 1.0)


def hardtanh(x, min_val=-1.0, max_val=1.0):
    """x, not below min_val and not above max_val."""
    return _ops["clip"](x, min_val, max_val)


def relu6(x):
    """relu, not above 6."""
    return _ops["clip"](x, 0.0, 6.0)


def hardsigmoid(x):
    """relu6(x + 3) / 6."""
    return relu6(tensor(x) + 3.0) / 6.0


def hardswish(x):
    """x * hardsigmoid(x)."""
    x = tensor(x)
    return x * hardsigmoid(x)


def glu(x, axis=-1):
    """The first half along an axis times the sigmoid of the second."""
    from ...ops.multi_output import split

    x = tensor(x)
    n = int(x.shape[axis])
    if n % 2:
        raise ValueError(f"glu: the size along axis {axis} must be even, it is {n}")
    a, b = split(x, num_splits=2, axis=axis)
    return a * _ops["sigmoid"](b)
