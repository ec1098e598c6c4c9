"""Initialisers: functions of a shape that give a tensor. Weights are (in, out) and filters (..., in, out), so
fans are the last two sizes times the window."""

import math

import numpy as np

from eas._eas import random_key
from eas._eas import tensor_ops as _ops

from ...ops import creation as _creation

__all__ = [
    "calculate_fan", "calculate_gain", "constant_init", "eye_init", "he_normal", "he_uniform", "kaiming_normal", "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal_init",
    "ones_init", "orthogonal", "truncated_normal", "uniform_init", "variance_scaling", "xavier_normal", "xavier_uniform", "zeros_init",
]  # fmt: skip


def _shape(name, shape):
    shape = (shape,) if isinstance(shape, int) else tuple(int(d) for d in shape)
    if any(d < 0 for d in shape):
        raise ValueError(f"{name}: sizes must not be negative, got {shape}")
    return shape


def calculate_fan(shape):
    """(fan in, fan out) of a weight (in, out) or a filter (..., in, out)."""
    shape = _shape("calculate_fan", shape)
    if len(shape) < 1:
        raise ValueError("a tensor of rank 0 has no fan in and fan out")
    if len(shape) == 1:
        return shape[0], shape[0]
    window = math.prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


def calculate_gain(nonlinearity, param=None):
    """By how much an activation shrinks the standard deviation: what initialisers make up for."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    gains = {
        "linear": 1.0,
        "conv": 1.0,
        "sigmoid": 1.0,
        "tanh": 5.0 / 3,
        "relu": math.sqrt(2.0),
        "selu": 0.75,
        "gelu": math.sqrt(2.0),
        "silu": math.sqrt(2.0),
    }
    if nonlinearity not in gains:
        raise ValueError(f"calculate_gain: one of {', '.join([*gains, 'leaky_relu'])} is wanted, got {nonlinearity!r}")
    return gains[nonlinearity]


def normal_init(shape, mean=0.0, std=1.0, *, dtype=None, device=None, key=None):
    """Normal numbers."""
    return _creation.gaussian(_shape("normal_init", shape), mean, std, key=key, dtype=dtype, device=device)


def uniform_init(shape, low=0.0, high=1.0, *, dtype=None, device=None, key=None):
    """Evenly distributed in [low, high)."""
    return _creation.uniform(_shape("uniform_init", shape), low, high, key=key, dtype=dtype, device=device)


def zeros_init(shape, *, dtype=None, device=None, key=None):
    """All 0."""
    return _creation.zeros(_shape("zeros_init", shape), dtype=dtype, device=device)


def ones_init(shape, *, dtype=None, device=None, key=None):
    """All 1."""
    return _creation.ones(_shape("ones_init", shape), dtype=dtype, device=device)


def constant_init(shape, value, *, dtype=None, device=None, key=None):
    """All the same."""
    return _creation.full(_shape("constant_init", shape), float(value), dtype=dtype, device=device)


def eye_init(shape, *, dtype=None, device=None, key=None):
    """The identity of a matrix."""
    shape = _shape("eye_init", shape)
    if len(shape) != 2:
        raise ValueError(f"eye_init: a matrix is wanted, got the shape {shape}")
    return _creation.eye(*shape, dtype=dtype, device=device)


def truncated_normal(shape, mean=0.0, std=1.0, low=-2.0, high=2.0, *, dtype=None, device=None, key=None):
    """Normal numbers of which none is below mean + low * std or above mean + high * std: the inverse of the
    distribution function of uniform ones."""
    if not low < high:
        raise ValueError(f"truncated_normal: low must be below high, got {low} and {high}")
    a, b = math.erf(low / math.sqrt(2)), math.erf(high / math.sqrt(2))
    u = _creation.uniform(_shape("truncated_normal", shape), a, b, key=key, dtype="float32")
    x = _ops["clip"](_erfinv(u) * math.sqrt(2.0), low, high) * std + mean
    return _creation._finish(x.astype("float32" if dtype is None else dtype), device)


def _erfinv(x):
    """Giles's polynomials in log(1 - x^2), one for the middle and one for the tails: relative error below
    4e-7 in f32."""
    w = -_ops["log1p"](-(x * x))
    middle, tail = w - 2.5, _ops["sqrt"](_ops["maximum"](w, 5.0)) - 3.0
    p = _polynomial(
        middle,
        (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    )
    q = _polynomial(
        tail, (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)
    )
    return _ops["where"](w < 5.0, p, q) * x


def _polynomial(x, coefficients):
    y = coefficients[0]
    for c in coefficients[1:]:
        y = y * x + c
    return y


def variance_scaling(shape, scale=1.0, mode="fan_in", distribution="normal", *, dtype=None, device=None, key=None):
    """Variance scale / n, where n is the fan in, the fan out or their mean; distribution: "normal", "uniform"
    or "truncated_normal"."""
    fan_in, fan_out = calculate_fan(shape)
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    if mode not in fans:
        raise ValueError(f'variance_scaling: mode is "fan_in", "fan_out" or "fan_avg", got {mode!r}')
    std = math.sqrt(scale / max(fans[mode], 1))
    if distribution == "normal":
        return normal_init(shape, 0.0, std, dtype=dtype, device=device, key=key)
    if distribution == "uniform":
        return uniform_init(shape, -std * math.sqrt(3.0), std * math.sqrt(3.0), dtype=dtype, device=device, key=key)
    if distribution == "truncated_normal":
        return truncated_normal(shape, 0.0, std / 0.87962566103423978, dtype=dtype, device=device, key=key)
    raise ValueError(f'variance_scaling: distribution is "normal", "uniform" or "truncated_normal", got {distribution!r}')


def xavier_normal(shape, *, gain=1.0, dtype=None, device=None, key=None):
    """Normal, variance 2 / (fan in + fan out)."""
    return variance_scaling(shape, gain * gain, "fan_avg", "normal", dtype=dtype, device=device, key=key)


def xavier_uniform(shape, *, gain=1.0, dtype=None, device=None, key=None):
    """Uniform, variance 2 / (fan in + fan out)."""
    return variance_scaling(shape, gain * gain, "fan_avg", "uniform", dtype=dtype, device=device, key=key)


def he_normal(shape, *, dtype=None, device=None, key=None):
    """Normal, variance 2 / fan in: for relu."""
    return variance_scaling(shape, 2.0, "fan_in", "normal", dtype=dtype, device=device, key=key)


def he_uniform(shape, *, dtype=None, device=None, key=None):
    """Uniform, variance 2 / fan in: for relu."""
    return variance_scaling(shape, 2.0, "fan_in", "uniform", dtype=dtype, device=device, key=key)


kaiming_normal, kaiming_uniform = he_normal, he_uniform


def lecun_normal(shape, *, dtype=None, device=None, key=None):
    """Normal, variance 1 / fan in."""
    return variance_scaling(shape, 1.0, "fan_in", "normal", dtype=dtype, device=device, key=key)


def lecun_uniform(shape, *, dtype=None, device=None, key=None):
    """Uniform, variance 1 / fan in."""
    return variance_scaling(shape, 1.0, "fan_in", "uniform", dtype=dtype, device=device, key=key)


def orthogonal(shape, *, gain=1.0, dtype=None, device=None, key=None):
    """Rows or columns that are orthogonal: the Q of a normal matrix (the leading axes count as rows), times
    gain."""
    shape = _shape("orthogonal", shape)
    if len(shape) < 2:
        raise ValueError(f"orthogonal: a matrix or more is wanted, got the shape {shape}")
    rows, cols = math.prod(shape[:-1]), shape[-1]
    if 0 in (rows, cols):
        return zeros_init(shape, dtype=dtype, device=device)
    a = _creation.gaussian((max(rows, cols), min(rows, cols)), key=random_key() if key is None else key).numpy().astype(np.float64)
    q, r = np.linalg.qr(a)
    q *= np.sign(np.diag(r))
    q = q if rows >= cols else q.T
    return _creation.constant((gain * q.reshape(shape)).astype(np.float32), dtype=dtype, device=device)
