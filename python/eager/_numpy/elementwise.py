"""Functions of each element: rounding, remainders, parts of floats, bits; comparisons within a tolerance."""

import math

import numpy as np

import eager as _e
from eas._eas import constant, tensor_ops

from .._wrapped import Wrapped
from .parts import _axis, _floats, _is_float, _key, _known, _rank, _t, ravel

__all__ = [
    "allclose", "around", "array_equal", "array_equiv", "bitwise_count", "bitwise_not", "deg2rad",
    "degrees", "divmod", "fabs", "fix", "float_power", "fmax", "fmin", "fmod", "frexp", "gcd", "heaviside",
    "invert", "isclose", "iscomplex", "iscomplexobj", "isneginf", "isposinf", "isreal", "isrealobj",
    "isscalar", "issubdtype", "lcm", "ldexp", "left_shift", "logaddexp2", "modf", "nan_to_num", "packbits",
    "promote_types", "rad2deg", "radians", "right_shift", "rint", "sinc", "spacing", "unpackbits", "unwrap",
]  # fmt: skip

_ops = tensor_ops


def rad2deg(x):
    return _floats(x) * (180 / math.pi)


def deg2rad(x):
    return _floats(x) * (math.pi / 180)


degrees, radians = rad2deg, deg2rad


def sinc(x):
    """sin(pi x) / (pi x), 1 at 0."""
    x = _floats(x) * math.pi
    near = _ops["abs"](x) < 0.25
    y = _ops["where"](near, x, 0.0) ** 2
    series = 1 - y / 6 * (1 - y / 20 * (1 - y / 42))
    far = _ops["where"](near, 1.0, x)
    return _ops["where"](near, series, _ops["sin"](far) / far)


def heaviside(x1, x2):
    """0 below 0, x2 at 0, 1 above."""
    x1 = _floats(x1)
    return _ops["where"](_e.isnan(x1), x1, _ops["where"](x1 == 0, x2, _ops["cast"](x1 > 0, dtype=x1.dtype)))


def fabs(x):
    return _ops["abs"](_floats(x))


def fix(x):
    """x rounded towards zero."""
    return _e.trunc(x)


def rint(x):
    return _ops["round"](_floats(x))


def around(a, decimals=0):
    """a rounded to so many decimals; halves to the even one."""
    a = _t(a)
    if decimals == 0:
        return _e.round(a)
    if not _is_float(a):
        if decimals > 0:
            return a
        f = 10**-decimals
        down = a // f
        rest = a - down * f
        up = (2 * rest > f) | ((2 * rest == f) & (down % 2 == 1))
        return (down + _ops["cast"](up, dtype=a.dtype)) * f
    f = 10.0 ** abs(decimals)
    return _e.round(a * f) / f if decimals > 0 else _e.round(a / f) * f


def fmax(x1, x2):
    """The larger element; of a number and a NaN the number."""
    return _e.where(_e.isnan(x1), x2, _e.where(_e.isnan(x2), x1, _e.maximum(x1, x2)))


def fmin(x1, x2):
    """The smaller element; of a number and a NaN the number."""
    return _e.where(_e.isnan(x1), x2, _e.where(_e.isnan(x2), x1, _e.minimum(x1, x2)))


def fmod(x1, x2):
    """The remainder with the sign of x1, as C has it."""
    x1, x2 = _t(x1), _t(x2)
    r = _e.abs(x1) % _e.abs(x2)
    return _e.where(x1 < 0, -r, r) if r.dtype.kind != "u" else r


def divmod(x1, x2):
    return _e.floordiv(x1, x2), _e.mod(x1, x2)


def modf(x):
    """Fraction and whole part, both with the sign of x."""
    x = _floats(x)
    whole = _e.trunc(x)
    return _e.copysign(_ops["where"](_e.isinf(x), 0.0, x - whole), x), whole


def frexp(x):
    """Mantissa in [0.5, 1) and exponent: x = mantissa * 2**exponent."""
    x = _floats(x)
    plain = _e.isfinite(x) & (x != 0)
    a = _ops["abs"](_ops["where"](plain, x, 1.0))
    small = a < _tiny(x.dtype)
    a = _ops["where"](small, a * 2.0**60, a)
    e = _ops["floor"](_ops["log2"](a))
    m = _scaled(a, -e)
    e = _ops["where"](m >= 2, e + 1, _ops["where"](m < 1, e - 1, e))
    m = _ops["where"](m >= 2, m / 2, _ops["where"](m < 1, m * 2, m)) / 2
    e = e + 1 - _ops["where"](small, 60.0, 0.0)
    return _ops["where"](plain, _e.copysign(m, x), x), _ops["cast"](_ops["where"](plain, e, 0.0), dtype="int32")


def _tiny(dtype):
    return _e.finfo(dtype).smallest_normal


def _scaled(x, e):
    """x * 2**e for whole e, in two steps so that no power overflows."""
    half = _ops["floor"](e / 2)
    return x * _exact_exp2(half, x.dtype) * _exact_exp2(e - half, x.dtype)


def _exact_exp2(e, dtype):
    return _ops["round"](_ops["exp2"](_ops["maximum"](e, 0.0))) / _ops["round"](_ops["exp2"](_ops["maximum"](-e, 0.0)))


def ldexp(x1, x2):
    """x1 * 2**x2."""
    x1 = _floats(x1)
    e = _ops["cast"](_t(x2), dtype=x1.dtype)
    limit = 2.0 * _e.finfo(x1.dtype).max.__class__(300 if x1.dtype != "float64" else 2200)
    e = _e.clip(e, -limit, limit)
    quarter = _ops["trunc"](e / 4)
    out = x1
    for part in (quarter, quarter, quarter, e - 3 * quarter):
        out = _scaled(out, part)
    return out


def float_power(x1, x2):
    """x1 to the power of x2 in float64."""
    return _ops["pow"](_ops["cast"](_t(x1), dtype="float64"), _ops["cast"](_t(x2), dtype="float64"))


def logaddexp2(x1, x2):
    """log2(2**x1 + 2**x2)."""
    ln2 = math.log(2)
    return _ops["logaddexp"](_floats(x1) * ln2, _floats(x2) * ln2) / ln2


def spacing(x):
    """The distance to the next float away from zero."""
    x = _floats(x)
    far = _e.copysign(constant(math.inf, dtype=x.dtype), x)
    return _ops["nextafter"](x, far) - x


def gcd(x1, x2):
    """The greatest common divisor of integers."""
    x1, x2 = _e.broadcast_arrays(*_integers("gcd", x1, x2))

    def step(state):
        a, b = state
        return _e.where(b == 0, a, b), _e.where(b == 0, b, a % _e.where(b == 0, 1, b))

    return _e.while_loop(lambda state: _e.any(state[1] != 0), step, (_abs_int(x1), _abs_int(x2)))[0]


def lcm(x1, x2):
    """The least common multiple of integers."""
    x1, x2 = _integers("lcm", x1, x2)
    g = gcd(x1, x2)
    return _abs_int(x1) // _e.where(g == 0, 1, g) * _abs_int(x2)


def _integers(fn, *xs):
    xs = [_t(x) for x in xs]
    dtype = _e.result_type(*xs)
    if dtype.kind not in "iu":
        raise TypeError(f"eager.{fn}: integers are wanted, got {dtype.numpy_name}")
    return [_ops["cast"](x, dtype=dtype) for x in xs]


def _abs_int(x):
    return x if x.dtype.kind == "u" else _e.abs(x)


def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    """NaN as 0 (or nan), infinities as the largest numbers there are (or posinf, neginf)."""
    x = _t(x)
    if isinstance(x, Wrapped):
        return _e.complex(nan_to_num(_e.real(x), copy, nan, posinf, neginf), nan_to_num(_e.imag(x), copy, nan, posinf, neginf))
    if not _is_float(x):
        return x
    info = _e.finfo(x.dtype)
    x = _ops["where"](_e.isnan(x), nan, x)
    x = _ops["where"](x == math.inf, info.max if posinf is None else posinf, x)
    return _ops["where"](x == -math.inf, info.min if neginf is None else neginf, x)


def isclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    """|a - b| <= atol + rtol |b|; equal infinities are close, NaNs only if equal_nan."""
    a, b = _t(a), _t(b)
    if a.dtype.kind not in "fc":
        a = _ops["cast"](a, dtype="float64")
    if b.dtype.kind not in "fc":
        b = _ops["cast"](b, dtype="float64")
    near = (_e.abs(a - b) <= atol + rtol * _e.abs(b)) & _e.isfinite(b)
    out = near | (a == b)
    return out | (_e.isnan(a) & _e.isnan(b)) if equal_nan else out


def allclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Are all elements close? A tensor of one bool."""
    return _e.all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1, a2, equal_nan=False):
    """The same shape and equal elements? A tensor of one bool."""
    a1, a2 = _t(a1), _t(a2)
    if tuple(a1.shape) != tuple(a2.shape):
        return constant(False)
    same = a1 == a2
    return _e.all(same | (_e.isnan(a1) & _e.isnan(a2)) if equal_nan else same)


def array_equiv(a1, a2):
    """Equal after broadcasting? A tensor of one bool."""
    try:
        return _e.all(_e.equal(_t(a1), _t(a2)))
    except ValueError:
        return constant(False)


def isneginf(x):
    return _t(x) == -math.inf


def isposinf(x):
    return _t(x) == math.inf


def isreal(x):
    return _e.imag(_t(x)) == 0


def iscomplex(x):
    return _e.imag(_t(x)) != 0


def iscomplexobj(x):
    return _t(x).dtype.kind == "c"


def isrealobj(x):
    return not iscomplexobj(x)


def isscalar(x):
    return np.isscalar(x)


def issubdtype(arg1, arg2):
    """As numpy.issubdtype."""
    first = arg1.numpy if hasattr(arg1, "numpy") and not callable(arg1.numpy) else arg1
    return np.issubdtype(first, arg2.numpy if hasattr(arg2, "numpy") and not callable(arg2.numpy) else arg2)


def promote_types(type1, type2):
    return _e.result_type(_e._array_api._dtype(type1), _e._array_api._dtype(type2))


invert = bitwise_not = tensor_ops["bitwise_invert"]._called("bitwise_not")
left_shift, right_shift = tensor_ops["bitwise_left_shift"]._called("left_shift"), tensor_ops["bitwise_right_shift"]._called("right_shift")


def bitwise_count(x):
    """How many bits of |x| are set, as uint8."""
    x = _t(x)
    if x.dtype.kind not in "iu":
        raise TypeError(f"eager.bitwise_count: integers are wanted, got {x.dtype.numpy_name}")
    u = "uint" + x.dtype.numpy_name.lstrip("uint")
    x = _ops["cast"](_abs_int(x), dtype=u)
    total = _ops["mul"](x, 0)
    for i in range(x.dtype.itemsize * 8):
        total = total + ((x >> i) & 1)
    return _ops["cast"](total, dtype="uint8")


def packbits(a, axis=None, bitorder="big"):
    """Eight truth values to a uint8."""
    a = _t(a) != 0
    a = ravel(a) if axis is None else a
    axis = 0 if axis is None else _axis("packbits", axis, _rank(a))
    a = _e.moveaxis(a, axis, -1)
    n = _known("packbits", a.shape[-1])
    a = _e.pad(_ops["cast"](a, dtype="uint8"), [(0, 0)] * (_rank(a) - 1) + [(0, -n % 8)])
    bits = _ops["reshape"](a, (*a.shape[:-1], -(-n // 8), 8))
    place = constant(np.arange(7, -1, -1, dtype=np.uint8) if bitorder == "big" else np.arange(8, dtype=np.uint8))
    return _e.moveaxis(_e.sum(bits << place, axis=-1, dtype="uint8"), -1, axis)


def unpackbits(a, axis=None, count=None, bitorder="big"):
    """A uint8 as eight numbers 0 or 1."""
    a = _t(a)
    a = ravel(a) if axis is None else a
    axis = 0 if axis is None else _axis("unpackbits", axis, _rank(a))
    a = _e.moveaxis(a, axis, -1)
    place = constant(np.arange(7, -1, -1, dtype=np.uint8) if bitorder == "big" else np.arange(8, dtype=np.uint8))
    bits = (_ops["unsqueeze"](a, -1) >> place) & 1
    bits = _ops["reshape"](bits, (*a.shape[:-1], a.shape[-1] * 8))
    if count is not None:
        bits = (
            bits[..., :count] if count < 0 or count <= bits.shape[-1] else _e.pad(bits, [(0, 0)] * (_rank(bits) - 1) + [(0, count - bits.shape[-1])])
        )
    return _e.moveaxis(bits, -1, axis)


def unwrap(p, discont=None, axis=-1, *, period=2 * math.pi):
    """p with multiples of the period added so that neighbours differ by at most half a period."""
    p = _floats(p)
    axis = _axis("unwrap", axis, _rank(p))
    d = _e.diff(p, axis=axis)
    discont = period / 2 if discont is None else discont
    m = _ops["mod"](d + period / 2, period) - period / 2
    m = _ops["where"]((m == -period / 2) & (d > 0), period / 2, m)
    fix_ = _ops["where"](_ops["abs"](d) < discont, 0.0, m - d)
    rest = p[_key(_rank(p), axis, slice(1, None))] + _e.cumsum(fix_, axis=axis)
    return _e.concatenate([p[_key(_rank(p), axis, slice(0, 1))], rest], axis=axis)
