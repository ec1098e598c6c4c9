"""Random numbers: eager.random. Each function takes a key (an int, eager.key(n), or a tensor of keys, one for
each of the leading axes); the same key gives the same numbers. Without one every call gives others (see
eager.seed). Numbers are drawn in float32, those of float64 distributions too unless it is said otherwise."""

import builtins
import math

import numpy as np

import eager as _e
from eas._eas import EagerTensor, constant, tensor_ops
from eas._eas import random_key as _next_key

from ._numpy import _axis, _floats, _known, _t
from .ops.creation import fold_in, gaussian, key, normal, randint, random_bits, seed, split_key, uniform

__all__ = [
    "PRNGKey", "bernoulli", "beta", "binomial", "categorical", "cauchy", "chisquare", "choice", "dirichlet", "dropout", "exponential", "fold_in", "gamma", "gaussian", "geometric", "gumbel",
    "key", "laplace", "loggamma", "logistic", "lognormal", "multinomial", "multivariate_normal", "normal", "pareto", "permutation", "poisson", "rademacher", "randint", "random_bits",
    "rayleigh", "seed", "shuffle", "split", "split_key", "student_t", "triangular", "truncated_normal", "uniform", "weibull",
]  # fmt: skip

_ops = tensor_ops
PRNGKey, split = key, split_key


def _key(k):
    return _next_key() if k is None else k


def _keys(k, n):
    """n keys from one; of a tensor of keys n such tensors."""
    k = _key(k)
    return [fold_in(k, 0x5EED0000 + i) for i in range(n)]


def _shape(fn, shape, *params):
    """The shape of the result: as given, or the shape to which the parameters broadcast."""
    own = [tuple(p.shape) for p in params if isinstance(p, EagerTensor)]
    if shape is None:
        return _e.linalg._broadcast(own) if own else ()
    return (shape,) if not isinstance(shape, (tuple, list)) else tuple(shape)


def _param(x):
    """A parameter as it is given: numbers stay numbers."""
    return x if isinstance(x, (int, float)) else _floats(x)


def _dtype(dtype, *params):
    if dtype is not None:
        return dtype
    return "float64" if builtins.any(isinstance(p, EagerTensor) and p.dtype == "float64" for p in params) else "float32"


def _finish(x, dtype, device=None):
    x = _ops["cast"](x, dtype=dtype) if x.dtype != dtype else x
    return x if device is None else x.to(device)


_TINY = 2.0**-25


def _open(key, shape, dtype="float32"):
    """Uniform in (0, 1): neither end."""
    u = uniform(shape, key=key, dtype="float32")
    return _ops["cast"](_ops["maximum"](u, _TINY), dtype=dtype)


def _open_fine(key, shape):
    """Uniform in (0, 1) with bits far below 2^-24 near 0, for tails: 48 random bits."""
    a, b = _keys(key, 2)
    hi, lo = uniform(shape, key=a), uniform(shape, key=b)
    return _ops["maximum"](hi + lo * 2.0**-24, 2.0**-48)


def bernoulli(p=0.5, shape=None, *, key=None, dtype="bool", device=None):
    """True with probability p."""
    p = _param(p)
    x = uniform(_shape("bernoulli", shape, p), key=_key(key)) < p
    return _finish(x, dtype, device)


def rademacher(shape=(), *, key=None, dtype="float32", device=None):
    """-1 or 1, both as likely."""
    return _finish(_ops["where"](bernoulli(0.5, _shape("rademacher", shape), key=key), 1.0, -1.0), dtype, device)


def exponential(shape=(), scale=1.0, *, key=None, dtype=None, device=None):
    """Density exp(-x / scale) / scale above 0."""
    scale = _param(scale)
    return _finish(-_ops["log"](_open_fine(_key(key), _shape("exponential", shape, scale))) * scale, _dtype(dtype, scale), device)


def gumbel(shape=(), loc=0.0, scale=1.0, *, key=None, dtype=None, device=None):
    """Gumbel's distribution: -log(-log(u))."""
    loc, scale = _param(loc), _param(scale)
    e = -_ops["log"](_open_fine(_key(key), _shape("gumbel", shape, loc, scale)))
    return _finish(loc - scale * _ops["log"](_ops["maximum"](e, 1e-30)), _dtype(dtype, loc, scale), device)


def laplace(shape=(), loc=0.0, scale=1.0, *, key=None, dtype=None, device=None):
    """Density exp(-|x - loc| / scale) / (2 scale)."""
    loc, scale = _param(loc), _param(scale)
    a, b = _keys(key, 2)
    shape = _shape("laplace", shape, loc, scale)
    e = exponential(shape, key=a)
    return _finish(loc + scale * _ops["where"](bernoulli(0.5, shape, key=b), e, -e), _dtype(dtype, loc, scale), device)


def logistic(shape=(), loc=0.0, scale=1.0, *, key=None, dtype=None, device=None):
    """The distribution whose cumulative one is sigmoid((x - loc) / scale)."""
    loc, scale = _param(loc), _param(scale)
    u = _open(_key(key), _shape("logistic", shape, loc, scale))
    return _finish(loc + scale * (_ops["log"](u) - _ops["log1p"](-u)), _dtype(dtype, loc, scale), device)


def cauchy(shape=(), loc=0.0, scale=1.0, *, key=None, dtype=None, device=None):
    """Density 1 / (pi scale (1 + ((x - loc) / scale)^2))."""
    loc, scale = _param(loc), _param(scale)
    u = _open(_key(key), _shape("cauchy", shape, loc, scale))
    return _finish(loc + scale * _ops["tan"]((u - 0.5) * math.pi), _dtype(dtype, loc, scale), device)


def lognormal(shape=(), mean=0.0, sigma=1.0, *, key=None, dtype=None, device=None):
    """exp of a normal number."""
    mean, sigma = _param(mean), _param(sigma)
    return _finish(_ops["exp"](mean + sigma * gaussian(_shape("lognormal", shape, mean, sigma), key=_key(key))), _dtype(dtype, mean, sigma), device)


def rayleigh(shape=(), scale=1.0, *, key=None, dtype=None, device=None):
    """The length of a vector of two normal numbers."""
    scale = _param(scale)
    return _finish(_ops["sqrt"](2 * exponential(_shape("rayleigh", shape, scale), key=key)) * scale, _dtype(dtype, scale), device)


def weibull(shape, concentration, scale=1.0, *, key=None, dtype=None, device=None):
    """exponential to the power of 1 / concentration, times scale."""
    concentration, scale = _param(concentration), _param(scale)
    e = exponential(_shape("weibull", shape, concentration, scale), key=key)
    return _finish(scale * _ops["pow"](e, 1 / concentration), _dtype(dtype, concentration, scale), device)


def pareto(shape, b, *, key=None, dtype=None, device=None):
    """Density b / x^(b + 1) above 1."""
    b = _param(b)
    return _finish(_ops["exp"](exponential(_shape("pareto", shape, b), key=key) / b), _dtype(dtype, b), device)


def triangular(shape, left, mode, right, *, key=None, dtype=None, device=None):
    """A density that rises from left to mode and falls to right."""
    left, mode, right = _param(left), _param(mode), _param(right)
    u = uniform(_shape("triangular", shape, left, mode, right), key=_key(key))
    cut = (mode - left) / (right - left)
    low = left + _ops["sqrt"](u * ((right - left) * (mode - left)))
    high = right - _ops["sqrt"]((1 - u) * ((right - left) * (right - mode)))
    return _finish(_ops["where"](u < cut, low, high), _dtype(dtype, left, mode, right), device)


def _erfinv(x):
    """The inverse of erf: a rational approximation and two steps of Newton's method, in float64."""
    x = _ops["cast"](x, dtype="float64")
    w = -_ops["log"](_ops["maximum"]((1 - x) * (1 + x), 1e-300))
    t = 2 / (math.pi * 0.147) - w / 2
    y = _e.copysign(_ops["sqrt"](_ops["maximum"](_ops["sqrt"](t * t + w / 0.147) - t, 0.0)), x)
    for _ in range(3):
        y = y - (_ops["erf"](y) - x) / (2 / math.sqrt(math.pi) * _ops["exp"](-_ops["minimum"](y * y, 600.0)))
    return y


def truncated_normal(lower, upper, shape=None, *, key=None, dtype=None, device=None):
    """Normal numbers between lower and upper."""
    lower, upper = _param(lower), _param(upper)
    shape = _shape("truncated_normal", shape, lower, upper)
    wide = lambda v: _ops["cast"](v, dtype="float64") if isinstance(v, EagerTensor) else constant(float(v), dtype="float64")  # noqa: E731
    lo, hi = wide(lower), wide(upper)
    a, b = _ops["erf"](lo / math.sqrt(2)), _ops["erf"](hi / math.sqrt(2))
    u = _ops["cast"](_open_fine(_key(key), shape), dtype="float64")
    x = math.sqrt(2) * _erfinv(a + (b - a) * u)
    x = _ops["maximum"](_ops["minimum"](x, hi), lo)
    return _finish(x, _dtype(dtype, lower, upper), device)


_MARSAGLIA = 24  # rejections in a row have a probability below 0.05^24


def loggamma(shape, alpha, *, key=None, dtype=None, device=None):
    """The logarithm of a gamma number: it does not underflow for small alpha."""
    alpha = _param(alpha)
    shape = _shape("gamma", shape, alpha)
    a = _e.broadcast_to(_ops["cast"](_t(alpha), dtype="float32"), shape)
    k1, k2 = _keys(key, 2)
    small = a < 1
    shifted = _ops["where"](small, a + 1, a)
    g = _marsaglia_tsang(shifted, k1)
    boost = -exponential(shape, key=k2) / _ops["where"](small, a, 1.0)
    return _finish(_ops["log"](g) + _ops["where"](small, boost, 0.0), _dtype(dtype, alpha), device)


def _marsaglia_tsang(a, key):
    """Gamma numbers for alpha >= 1: cubes of shifted normal numbers, with rejection."""
    d = a - 1 / 3
    c = 1 / (3 * _ops["sqrt"](d))
    shape = tuple(a.shape)

    def more(state):
        i, done, _ = state
        return ~_e.all(done) & (i < _MARSAGLIA)

    def step(state):
        i, done, out = state
        k = fold_in(key, i)
        x = gaussian(shape, key=fold_in(k, 1))
        u = _open(fold_in(k, 2), shape)
        v = 1 + c * x
        cube = v * v * v
        good = (v > 0) & (_ops["log"](u) < 0.5 * x * x + d - d * cube + d * _ops["log"](_ops["where"](v > 0, cube, 1.0)))
        return i + 1, done | good, _ops["where"](good & ~done, d * cube, out)

    first = (constant(0), _ops["cast"](a * 0, dtype="bool"), d * 1.0)
    return _e.while_loop(more, step, first)[2]


def gamma(shape, alpha, scale=1.0, *, key=None, dtype=None, device=None):
    """Density x^(alpha - 1) exp(-x / scale) / (Gamma(alpha) scale^alpha) above 0."""
    alpha, scale = _param(alpha), _param(scale)
    shape = _shape("gamma", shape, alpha, scale)
    return _finish(_ops["exp"](loggamma(shape, alpha, key=key)) * scale, _dtype(dtype, alpha, scale), device)


def chisquare(shape, df, *, key=None, dtype=None, device=None):
    """The sum of df squares of normal numbers."""
    df = _param(df)
    return _finish(2 * gamma(_shape("chisquare", shape, df), df / 2, key=key), _dtype(dtype, df), device)


def student_t(shape, df, *, key=None, dtype=None, device=None):
    """Student's distribution with df degrees of freedom."""
    df = _param(df)
    a, b = _keys(key, 2)
    shape = _shape("student_t", shape, df)
    return _finish(gaussian(shape, key=a) * _ops["sqrt"](df / chisquare(shape, df, key=b)), _dtype(dtype, df), device)


def beta(shape, a, b, *, key=None, dtype=None, device=None):
    """Density proportional to x^(a - 1) (1 - x)^(b - 1) in [0, 1]."""
    a, b = _param(a), _param(b)
    shape = _shape("beta", shape, a, b)
    k1, k2 = _keys(key, 2)
    x, y = loggamma(shape, a, key=k1), loggamma(shape, b, key=k2)
    return _finish(_ops["sigmoid"](x - y), _dtype(dtype, a, b), device)


def dirichlet(alpha, shape=(), *, key=None, dtype=None, device=None):
    """Vectors of numbers above 0 with sum 1; alpha's last axis is the vector, shape goes in front."""
    alpha = _floats(alpha)
    shape = (*_shape("dirichlet", shape), *tuple(alpha.shape))
    return _finish(_ops["softmax"](loggamma(shape, alpha, key=key), axis=-1), _dtype(dtype, alpha), device)


def poisson(shape, lam, *, key=None, dtype="int64", device=None):
    """How many events there are if lam are expected. Below 10 by inverting the distribution, above by
    rejection from a transformed one (Hoermann's PTRS)."""
    lam = _param(lam)
    shape = _shape("poisson", shape, lam)
    rate = _e.broadcast_to(_ops["cast"](_t(lam), dtype="float32"), shape)
    k1, k2 = _keys(key, 2)
    few = _ops["where"](rate < 10, rate, 0.0)
    u = _open_fine(k1, shape)

    def below(state):
        i, _, total, _ = state
        return _e.any(total < u) & (i < 100)

    def up(state):
        i, p, total, out = state
        i = i + 1
        p = p * few / _ops["cast"](i, dtype="float32")
        return i, p, total + p, _ops["where"](total < u, out + 1, out)

    start = _ops["exp"](-few)
    small = _e.while_loop(below, up, (constant(0), start, start, rate * 0))[3]
    many = _ops["where"](rate >= 10, rate, 20.0)
    log_rate = _ops["log"](many)
    b = 0.931 + 2.53 * _ops["sqrt"](many)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    limit = 0.9277 - 3.6224 / (b - 2)

    def more(state):
        i, done, _ = state
        return ~_e.all(done) & (i < 64)

    def step(state):
        i, done, out = state
        k = fold_in(k2, i)
        u = uniform(shape, key=fold_in(k, 1)) - 0.5
        v = _open(fold_in(k, 2), shape)
        s = 0.5 - _ops["abs"](u)
        n = _ops["floor"]((2 * a / _ops["maximum"](s, 1e-7) + b) * u + many + 0.43)
        quick = (s >= 0.07) & (v <= limit)
        never = (n < 0) | ((s < 0.013) & (v > s))
        right = n * log_rate - many - _lgamma(_ops["maximum"](n, 0.0) + 1)
        good = quick | (~never & (_ops["log"](v * inverse / (a / _ops["maximum"](s * s, 1e-14) + b)) <= right))
        return i + 1, done | good, _ops["where"](good & ~done, n, out)

    large = _e.while_loop(more, step, (constant(0), rate < 10, many * 1.0))[2]
    return _finish(_ops["where"](rate < 10, small, large), dtype, device)


def _lgamma(x):
    """log Gamma(x) for x >= 1: Stirling's series after shifting x above 8."""
    x = _ops["cast"](x, dtype="float64")
    shift = x * 0
    y = x
    for _ in range(8):
        low = y < 8
        shift = shift + _ops["where"](low, _ops["log"](_ops["where"](low, y, 1.0)), 0.0)
        y = _ops["where"](low, y + 1, y)
    z = 1 / (y * y)
    series = (1 / 12 - z * (1 / 360 - z * (1 / 1260 - z / 1680))) / y
    return _ops["cast"]((y - 0.5) * _ops["log"](y) - y + 0.5 * math.log(2 * math.pi) + series - shift, dtype="float32")


def geometric(shape, p, *, key=None, dtype="int64", device=None):
    """How many tries there are until the first success, itself counted."""
    p = _param(p)
    e = exponential(_shape("geometric", shape, p), key=key)
    return _finish(_ops["floor"](e / -_ops["log1p"](-_t(p))) + 1, dtype, device)


def binomial(shape, n, p, *, key=None, dtype="int64", device=None):
    """How many of n tries succeed: a sum of n truth values (n is an int)."""
    n = _known("binomial", n)
    p = _param(p)
    shape = _shape("binomial", shape, p)
    k = _key(key)

    def trip(i, total):
        return total + _ops["cast"](uniform(shape, key=fold_in(k, i)) < p, dtype="int64")

    return _finish(_e.fori_loop(0, n, trip, _e.zeros(shape, dtype="int64")), dtype, device)


def categorical(logits, axis=-1, shape=None, *, key=None):
    """Indices drawn with probabilities softmax(logits) along an axis. shape: that of the result; it ends with
    logits' shape without the axis."""
    logits = _floats(logits)
    rank = len(logits.shape)
    axis = _axis("random.categorical", axis, rank)
    own = tuple(n for i, n in enumerate(logits.shape) if i != axis)
    shape = own if shape is None else _shape("categorical", shape)
    lead = shape[: len(shape) - len(own)]
    if len(shape) < len(own) or builtins.any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(shape[len(lead) :], own)):
        raise ValueError(f"eager.random.categorical: shape {shape} does not end with {own}, that of the logits without axis {axis}")
    moved = _e.moveaxis(logits, axis, -1)
    full = (*lead, *tuple(moved.shape))
    return _e.argmax(gumbel(full, key=_key(key)) + _ops["cast"](moved, dtype="float32"), axis=-1)


def multinomial(n, p, shape=(), *, key=None, dtype="int64"):
    """How often each of the outcomes with probabilities p (the last axis) comes in n tries."""
    p = _floats(p)
    draws = categorical(_ops["log"](p), -1, (n, *_shape("multinomial", shape), *tuple(p.shape)[:-1]), key=key)
    return _finish(_e.sum(_e.one_hot(draws, p.shape[-1], dtype="int64"), axis=0), dtype)


def permutation(x, axis=0, *, independent=False, key=None):
    """The numbers 0 .. x - 1 in a random order, or x with the elements of an axis in one; independent: each
    row in its own."""
    if isinstance(x, (int, np.integer)):
        x = _e.arange(int(x))
    x = _t(x)
    axis = _axis("random.permutation", axis, len(x.shape))
    if independent:
        order = _e.argsort(random_order(tuple(x.shape), key), axis=axis)
        return _e.take_along_axis(x, order, axis=axis)
    return _e.gather(x, _e.argsort(random_order((x.shape[axis],), key), axis=0), axis=axis)


def random_order(shape, key):
    """62 random bits for each element, to sort by: two are equal with a probability below n^2 / 2^63."""
    a, b = _keys(key, 2)
    hi, lo = (_ops["cast"](random_bits(k, shape), dtype="int64") for k in (a, b))
    return (hi << 31) ^ lo


shuffle = permutation


def choice(a, shape=(), replace=True, p=None, axis=0, *, key=None):
    """Elements of an axis of a (or of 0 .. a - 1), drawn with or without replacement, with probabilities p if
    given."""
    if isinstance(a, (int, np.integer)):
        a = _e.arange(int(a))
    a = _t(a)
    axis = _axis("random.choice", axis, len(a.shape))
    n = _known("random.choice", a.shape[axis])
    shape = _shape("choice", shape)
    count = math.prod(shape)
    if n == 0 and count:
        raise ValueError("eager.random.choice: there is nothing to draw from")
    if not replace and count > n:
        raise ValueError(f"eager.random.choice: {count} of {n} elements without replacement")
    if p is None:
        at = randint(shape, 0, n, key=_key(key)) if replace else _e.reshape(_e.argsort(random_order((n,), key))[:count], shape)
    else:
        p = _floats(p)
        if tuple(p.shape) != (n,):
            raise ValueError(f"eager.random.choice: p of shape {tuple(p.shape)} for {n} elements")
        log = _ops["log"](p)
        if replace:
            at = categorical(log, -1, shape, key=key)
        else:
            at = _e.reshape(_e.argsort(-(log + gumbel((n,), key=_key(key))))[:count], shape)
    return _e.gather(a, at, axis=axis)


def multivariate_normal(mean, cov, shape=None, *, method="cholesky", key=None, dtype=None):
    """Vectors with that mean and covariance matrix. method: "cholesky", "eigh" or "svd", which take singular
    matrices."""
    mean, cov = _floats(mean), _floats(cov)
    lead = _e.linalg._broadcast([tuple(mean.shape)[:-1], tuple(cov.shape)[:-2]]) if shape is None else _shape("multivariate_normal", shape)
    if method == "cholesky":
        factor = _e.linalg.cholesky(cov)
    elif method == "eigh":
        w, v = _e.linalg.eigh(cov)
        factor = v * _ops["unsqueeze"](_ops["sqrt"](_ops["maximum"](w, 0.0)), -2)
    elif method == "svd":
        u, s, _ = _e.linalg.svd(cov)
        factor = u * _ops["unsqueeze"](_ops["sqrt"](s), -2)
    else:
        raise ValueError(f"eager.random.multivariate_normal: method must be 'cholesky', 'eigh' or 'svd', got {method!r}")
    z = _ops["cast"](gaussian((*lead, mean.shape[-1]), key=_key(key)), dtype=factor.dtype)
    out = mean + _e.squeeze(_e.matmul(factor, _ops["unsqueeze"](z, -1)), axis=-1)
    return _finish(out, _dtype(dtype, mean, cov))


def dropout(x, p=0.5, *, training=True, key=None):
    """Elements are 0 with probability p, the others divided by 1 - p."""
    x = _t(x)
    if not 0 <= p <= 1:
        raise ValueError(f"eager.random.dropout: p is a probability, got {p}")
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0
    keep = uniform(tuple(x.shape), key=_key(key)) >= p
    return _ops["where"](keep, x / (1 - p), 0.0)
