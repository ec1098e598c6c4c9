"""Elementary functions of complex numbers, as functions of two tensors, the real and the imaginary part, that
give two.

Values and branch cuts are those of C99's Annex G, which the array API follows. Formulas hold for finite
numbers; what they give where a part is infinite or NaN is replaced afterwards, by constants that depend on no
tensor, so that derivatives at finite numbers are those of the formula. Where the standard leaves a sign open
it is +."""

import math

import eager as _e
from eas._eas import tensor_ops as _ops

_where, _atan2, _log, _sqrt, _exp, _abs = (_ops[n] for n in ("where", "atan2", "log", "sqrt", "exp", "abs"))
INF, NAN = math.inf, math.nan


def _pick(condition, value, otherwise):
    """where(condition, value, otherwise); a number as value gets the dtype of the other branch."""
    return _where(condition, _ops["cast"](value, dtype=otherwise.dtype) if isinstance(value, float) else value, otherwise)


def _sign(value, of):
    """The number with the signs of the tensor's elements."""
    return _e.copysign(_ops["cast"](value, dtype=of.dtype), of)


def _infinite(a, b):
    return _e.isinf(a) | _e.isinf(b)


def _rotated(f):
    """-i f(iz) of a function f."""

    def g(a, b):
        re, im = f(-b, a)
        return im, -re

    return g


def exp(a, b):
    size, plain = _exp(a), _e.isfinite(b)
    y = _where(plain, b, 0.0)
    re, im = size * _ops["cos"](y), _where(b == 0, b, size * _ops["sin"](y))
    low, high = a == -INF, a == INF
    re = _where(plain, re, _pick(low, 0.0, _pick(high, INF, _pick(high | ~high, NAN, a))))
    return re, _where(plain, im, _pick(low, 0.0, _pick(low | ~low, NAN, a)))


def expm1(a, b):
    half, odd = _ops["sin"](b / 2), ~_e.isfinite(b)
    re = _ops["expm1"](a) * _ops["cos"](b) - 2 * half * half
    re = _pick((re == 0) & (a == 0), 0.0, re)
    im = _where(b == 0, b, _exp(a) * _ops["sin"](b))
    re = _pick(odd & (a == -INF), -1.0, _pick(odd & (a == INF), INF, re))
    return re, _pick(odd & (a == -INF), 0.0, im)


def log(a, b):
    return _log(_ops["hypot"](a, b)), _atan2(b, a)


def log1p(a, b):
    small = _abs(a) + _abs(b) < 0.5
    x, y = _where(small, a, 0.0), _where(small, b, 0.0)
    near = _ops["log1p"](x * (2 + x) + y * y) / 2
    return _where(small, near, _log(_ops["hypot"](a + 1, b))), _atan2(b, a + 1)


def log_of_base(base):
    def f(a, b):
        re, im = log(a, b)
        return re / math.log(base), im / math.log(base)

    return f


def _root(a, b):
    """The square root of finite numbers."""
    size = _ops["hypot"](a, b)
    zero, right = (a == 0) & (b == 0), a >= 0
    t = _sqrt(_where(zero, 1.0, _abs(a) / 2 + size / 2))  # halves: the sum does not overflow
    other = _abs(b) / (2 * t)
    re, im = _where(right, t, other), _e.copysign(_where(right, other, t), b)
    return _where(zero, 0.0, re), _where(zero, b, im)


def sqrt(a, b):
    re, im = _root(a, b)
    up, lost = _e.isinf(b), _e.isnan(b)
    low, high = (a == -INF) & ~up, (a == INF) & ~up
    re = _pick(up | high, INF, _pick(low & lost, NAN, _pick(low, 0.0, re)))
    im = _where(up, b, _pick(low & lost, INF, _where(low, _sign(INF, b), im)))
    return re, _pick(high & lost, NAN, _where(high & ~lost, _sign(0.0, b), im))


def sinh(a, b):
    re, im = _ops["sinh"](a) * _ops["cos"](b), _ops["cosh"](a) * _ops["sin"](b)
    return _where(~_e.isfinite(b) & ((a == 0) | _e.isinf(a)), a, re), _where((b == 0) & ~_e.isfinite(a), b, im)


def cosh(a, b):
    re, im = _ops["cosh"](a) * _ops["cos"](b), _ops["sinh"](a) * _ops["sin"](b)
    flat = ((b == 0) & ~_e.isfinite(a)) | ((a == 0) & ~_e.isfinite(b))
    return _pick(_e.isinf(a) & ~_e.isfinite(b), INF, re), _where(flat, _sign(0.0, _sign(1.0, a) * _sign(1.0, b)), im)


sin = _rotated(sinh)


def cos(a, b):
    return cosh(-b, a)


def tanh(a, b):
    t, u = _ops["tanh"](a), _ops["tan"](b)
    big = _abs(a) > 20
    tt, uu = _where(big, 0.0, t), _where(big, 0.0, u)
    below = 1 + (tt * uu) ** 2
    narrow = 1 / _ops["cosh"](_where(big, 0.0, a)) ** 2
    y = _where(_e.isfinite(b), b, 0.0)
    re = _where(big, _sign(1.0, a), tt * (1 + uu * uu) / below)
    im = _where(big, 4 * _ops["sin"](y) * _ops["cos"](y) * _exp(-2 * _abs(a)), uu * narrow / below)
    odd, far = ~_e.isfinite(b) & _e.isfinite(a), _e.isinf(a)
    re = _pick(odd & (a != 0), NAN, _where(odd, a, re))
    im = _pick(odd, NAN, _where(far, _pick(_e.isnan(b), 0.0, _sign(0.0, b)), im))
    return re, _where(_e.isnan(a) & (b == 0), b, im)


tan = _rotated(tanh)


def _roots(a, b):
    """sqrt(1 - z) and sqrt(1 + z); the sign of a zero imaginary part tells the side of the branch cut."""
    return _root(1 - a, -b), _root(1 + a, b)


def acos(a, b):
    (p, q), (r, s) = _roots(a, b)
    re, im = 2 * _atan2(p, r), _ops["asinh"](r * q - s * p)
    far = _infinite(a, b)
    re = _pick((a == 0) & _e.isnan(b), math.pi / 2, _where(far, _atan2(_abs(b), a), re))
    return re, _where(far, -_sign(INF, b), im)


def acosh(a, b):
    (p, q), (r, s) = _root(a - 1, b), _root(a + 1, b)
    re, im = _ops["asinh"](p * r + q * s), 2 * _atan2(q, r)
    far = _infinite(a, b)
    return _pick(far, INF, re), _pick((a == 0) & _e.isnan(b), math.pi / 2, _where(far, _atan2(b, a), im))


def _asin(a, b):
    (p, q), (r, s) = _roots(a, b)
    return _atan2(a, p * r - q * s), _ops["asinh"](p * s - q * r)


def asinh(a, b):
    re, im = _rotated(_asin)(a, b)
    far = _infinite(a, b)
    return _where(far, _sign(INF, a), re), _where(_e.isnan(a) & (b == 0), b, _where(far, _atan2(b, _abs(a)), im))


asin = _rotated(asinh)


def atanh(a, b):
    far = (_abs(a) > 1e9) | (_abs(b) > 1e9)
    x, y = _where(far, 0.5, a), _where(far, 0.5, b)
    re = _ops["log1p"](4 * x / ((1 - x) ** 2 + y * y)) / 4
    im = _atan2(2 * y, (1 - x) * (1 + x) - y * y) / 2
    out, lost = _infinite(a, b), _e.isnan(a) | _e.isnan(b)
    size = _where(far & ~out & ~lost, _ops["hypot"](a, b), 1.0)
    re, im = _where(far, a / size / size, re), _where(far, _sign(math.pi / 2, b), im)
    re = _where(out, _sign(0.0, a), _pick(lost & (a != 0), NAN, _where(lost, a, re)))
    return re, _pick(lost & (~out | _e.isnan(b)), NAN, im)


atan = _rotated(atanh)


def sign(a, b):
    size = _ops["hypot"](a, b)
    zero, lost = size == 0, _e.isnan(a) | _e.isnan(b)
    safe = _where(zero, 1.0, size)
    return tuple(_pick(lost, NAN, _pick(zero, 0.0, part / safe)) for part in (a, b))


FUNCTIONS = {
    "exp": exp, "expm1": expm1, "log": log, "log1p": log1p, "log2": log_of_base(2), "log10": log_of_base(10), "sqrt": sqrt, "sin": sin, "cos": cos, "tan": tan, "sinh": sinh, "cosh": cosh,
    "tanh": tanh, "asin": asin, "acos": acos, "atan": atan, "asinh": asinh, "acosh": acosh, "atanh": atanh, "sign": sign,
}  # fmt: skip
