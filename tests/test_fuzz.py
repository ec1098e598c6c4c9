"""Random kernels of a family, written in Python: as plain Python they give what the compiled kernel gives.
(tests/fuzz has the C side.)"""

import unittest

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eas
from eas import mk

DTYPES = {n: getattr(np, n) for n in "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()}
SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, 1e-45, 1e-310, 65504.0, 3e38, np.inf, -np.inf, np.nan]
BINARY = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "min": mk.minimum,
    "max": mk.maximum,
    "where": lambda x, y: mk.where(x < y, x, y),
}
UNARY = {
    "-": lambda x: -x,
    "abs": mk.abs,
    "exp": lambda x: mk.exp(mk.to_f32(x)),
    "sqrt": lambda x: mk.sqrt(mk.to_f64(x)),
    "sum": lambda x: mk.sum(x, axis=0) + x,
    "cumsum": lambda x: mk.cumsum(x, axis=0),
    "i8": mk.to_i8,
    "f16": mk.to_f16,
    "u64": mk.to_u64,
}
STEPS = st.lists(
    st.one_of(st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 9)), st.tuples(st.sampled_from(sorted(UNARY)))), min_size=1, max_size=6
)


def inputs(seed, dtype, n):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        with np.errstate(all="ignore"):
            x = np.where(rng.random(n) < 0.3, rng.choice(SPECIAL, n), rng.standard_normal(n) * 10).astype(dtype)
    else:
        info = np.iinfo(dtype)
        x = np.where(rng.random(n) < 0.3, rng.choice(np.array([info.min, info.max, 0, 1], dtype), n), rng.integers(0, 100, n).astype(dtype))
    return x


def bits(x):
    b = x.view(np.uint64).copy()
    b[np.isnan(x)] = 0
    return b


def apply(steps, x, y):
    """The steps, each on the last value and one that was there before."""
    values = [x, y]
    for name, *which in steps:
        values.append(BINARY[name](values[-1], values[which[0] % len(values)]) if which else UNARY[name](values[-1]))
    return values[-1]


class Family(unittest.TestCase):
    def both(self, fn, *args, **kw):
        k = eas.kernel(fp_contract=False)(fn)
        out = [np.zeros(64), np.zeros(64)]
        k(*args, out[0], **kw)
        k(*args, out[1], _interpret=True, **kw)
        np.testing.assert_array_equal(bits(out[0]), bits(out[1]))

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(STEPS, st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(DTYPES)), st.integers(1, 33), st.integers(0, 99))
    def test_blocks(self, steps, dx, dy, n, seed):
        if {dx, dy} in ({"int64", "uint64"}, {"int32", "uint64"}, {"int16", "uint64"}, {"int8", "uint64"}) or ("u64",) in steps:
            dy, steps = dx, [s for s in steps if s != ("u64",)] or [("abs",)]  # no dtype holds both

        def k(x, y, N, out, B: eas.constexpr):
            offs = mk.program_id(0) * B + mk.arange(0, B)
            mask = offs < N
            v = apply(steps, mk.load(x, offs, mask, 1), mk.load(y, offs % N, mask, 1))
            mk.store(out, offs, mk.to_f64(v), mask)

        self.both(k, inputs(seed, DTYPES[dx], n), inputs(seed + 1, DTYPES[dy], n), n, B=8)

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(1, 33), st.integers(0, 6), st.integers(-3, 9), st.integers(0, 99))
    def test_threads_and_control(self, threads, turns, limit, seed):
        def k(x, N, out, T: eas.constexpr):
            t = mk.tid(0, T)
            tile = mk.alloc_tg(T)
            acc = mk.var(mk.load(x, t))
            for i in mk.range(0, turns):
                mk.store(tile, t, acc)
                mk.barrier()
                for j in mk.range(0, t % 3):
                    acc += mk.load(tile, (t + i + j) % T)
                with mk.if_(t > limit):
                    acc *= 0.5
                with mk.else_():
                    acc -= mk.to_f32(t)
                mk.barrier()
            n = mk.var(t)
            with mk.while_(lambda: n > mk.maximum(N, 0)):
                n //= 2
                acc += 1.0
            mk.store(out, t, mk.to_f64(acc))

        self.both(k, inputs(seed, np.float32, threads), limit, T=threads, _grid=1)


if __name__ == "__main__":
    unittest.main()
