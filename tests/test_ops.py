"""Every mk operation, ref against cpu bit for bit and against NumPy, on random and special values."""

import itertools
import unittest

import numpy as np
from support import BF16, each, kernel1, kernel2

import eas
from eas import mk

FLOATS = [np.dtype(d) for d in ("f2", "f4", "f8")] + ([BF16] if BF16 else [])
INTS = [np.dtype(d) for d in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]


def floats(dt, n=200):
    rng = np.random.default_rng(7)
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -1e-40,
        65504.0,
        3e38,
        1e-8,
        2**23 + 0.5,
        4503599627370497.5,
    ]
    with np.errstate(over="ignore"):
        x = np.concatenate([special, rng.standard_normal(n), rng.standard_normal(n) * 10.0 ** rng.integers(-30, 30, n)]).astype(dt)
    return x


def ints(dt, n=200):
    info = np.iinfo(dt)
    rng = np.random.default_rng(7)
    return np.concatenate([np.array([0, 1, info.max, info.min, info.max - 1, 2, 3], dt), rng.integers(info.min, info.max, n, dt, endpoint=True)])


def pairs(values):
    head = list(itertools.product(values[:19], values[:19]))
    x = np.array([a for a, _ in head], values.dtype)
    y = np.array([b for _, b in head], values.dtype)
    return np.concatenate([x, values]), np.concatenate([y, values[::-1]])


def same(test, got, want):
    """Equal bit for bit, but any NaN is a NaN."""
    nan = got != got
    test.assertTrue((nan == (want != want)).all())
    np.testing.assert_array_equal(got[~nan].view(np.uint8), want[~nan].astype(got.dtype).view(np.uint8))


# name: (mk, NumPy); halves are computed in float32 and rounded once
UNARY = {
    "neg": (lambda x: -x, np.negative),
    "abs": (mk.abs, np.abs),
    "floor": (mk.floor, np.floor),
    "ceil": (mk.ceil, np.ceil),
    "trunc": (mk.trunc, np.trunc),
    "round": (mk.round, np.rint),
    "sqrt": (mk.sqrt, np.sqrt),
    "square": (lambda x: x**2, lambda x: x * x),
    "cube": (lambda x: x**3, lambda x: x * (x * x)),
    "root": (lambda x: x**0.5, lambda x: np.where(x == -np.inf, np.inf, np.sqrt(x + 0.0))),  # as pow has it
    "one": (lambda x: x**0, lambda x: x * 0 + 1),
    "pos": (lambda x: +x, lambda x: x),
}
BINARY = {
    "add": (lambda x, y: x + y, np.add),
    "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply),
    "div": (lambda x, y: x / y, np.divide),
    "maximum": (mk.maximum, np.maximum),
    "minimum": (mk.minimum, np.minimum),
    "max": (mk.max, np.maximum),
    "min": (mk.min, np.minimum),
    "where": (lambda x, y: mk.where(x < y, x, y), lambda x, y: np.where(x < y, x, y)),
}
COMPARE = {
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
}


def wide(dt):
    return np.float32 if dt.itemsize == 2 else dt


class Floats(unittest.TestCase):
    def setUp(self):
        ctx = np.errstate(all="ignore")
        ctx.__enter__()
        self.addCleanup(ctx.__exit__, None, None, None)

    def test_unary(self):
        for dt in FLOATS:
            x = floats(dt)
            for name, (f, ref) in UNARY.items():
                with self.subTest(op=name, dtype=dt):
                    _, out = each(self, kernel1(f), x, np.zeros_like(x), len(x), BLOCK=64)
                    if name == "cube" and dt.itemsize == 2:
                        continue  # each product rounds
                    if name == "one":
                        want = np.ones_like(x)
                    else:
                        want = ref(x.astype(wide(dt))).astype(dt)
                    same(self, out, want)

    def test_binary(self):
        for dt in FLOATS:
            x, y = pairs(floats(dt))
            for name, (f, ref) in BINARY.items():
                with self.subTest(op=name, dtype=dt):
                    out = each(self, kernel2(f), x, y, np.zeros_like(x), len(x), BLOCK=64)[2]
                    want = ref(x.astype(wide(dt)), y.astype(wide(dt))).astype(dt)
                    if name in ("max", "min", "maximum", "minimum"):
                        zero = (x == 0) & (y == 0)  # which zero is not said
                        out[zero], want[zero] = 0, 0
                    same(self, out, want)

    def test_compare(self):
        for dt in FLOATS:
            x, y = pairs(floats(dt))
            for name, f in COMPARE.items():
                with self.subTest(op=name, dtype=dt):
                    out = each(self, kernel2(f), x, y, np.zeros(len(x), bool), len(x), BLOCK=64)[2]
                    np.testing.assert_array_equal(out, f(x.astype(wide(dt)), y.astype(wide(dt))))

    def test_tests(self):
        for dt in FLOATS:
            x = floats(dt)
            for f, ref in ((mk.isnan, np.isnan), (mk.isinf, np.isinf)):
                _, out = each(self, kernel1(f), x, np.zeros(len(x), bool), len(x), BLOCK=64)
                np.testing.assert_array_equal(out, ref(x.astype(wide(dt))))

    def test_fma_has_one_rounding(self):
        @eas.kernel
        def k(x, y, z, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            m = i < N
            mk.store(out, i, mk.fma(mk.load(x, i, m), mk.load(y, i, m), mk.load(z, i, m)), m)

        rng = np.random.default_rng(3)
        x, y, z = (rng.standard_normal(500).astype(np.float32) for _ in range(3))
        out = each(self, k, x, y, z, np.zeros_like(x), 500, BLOCK=64)[3]
        exact = (x.astype(np.longdouble) * y + z).astype(np.float32)
        np.testing.assert_array_equal(out, exact)
        each(self, k, *(v.astype(np.float64) for v in (x, y, z)), np.zeros(500), 500, BLOCK=64)

    def test_clamp(self):
        for dt in FLOATS:
            x = floats(dt)
            _, out = each(self, kernel1(lambda x: mk.clamp(x, -1, 1.5)), x, np.zeros_like(x), len(x), BLOCK=64)
            same(self, out, np.minimum(np.maximum(x.astype(wide(dt)), -1), 1.5).astype(dt))

    def test_float_floordiv_and_mod(self):
        for dt in FLOATS:
            x, y = pairs(floats(dt))
            for f in (lambda x, y: x // y, lambda x, y: x % y):
                each(self, kernel2(f), x, y, np.zeros_like(x), len(x), BLOCK=64)

    def test_literals_are_weak(self):
        for dt in FLOATS:
            x = np.array([1, 2, 3, 4], dt)
            _, out = each(self, kernel1(lambda x: 2 * x + 1.5 - x / 4), x, np.zeros_like(x), 4, BLOCK=4)
            want = 2 * x.astype(float) + 1.5 - x.astype(float) / 4
            np.testing.assert_allclose(out.astype(float), want, rtol=1e-2)


class Integers(unittest.TestCase):
    def setUp(self):
        ctx = np.errstate(all="ignore")
        ctx.__enter__()
        self.addCleanup(ctx.__exit__, None, None, None)

    def test_unary(self):
        for dt in INTS:
            x = ints(dt)
            for name in ("neg", "abs", "floor", "ceil", "trunc", "round", "square", "pos"):
                f, ref = UNARY[name]
                with self.subTest(op=name, dtype=dt):
                    _, out = each(self, kernel1(f), x, np.zeros_like(x), len(x), BLOCK=64)
                    np.testing.assert_array_equal(out, x if name in ("floor", "ceil", "trunc", "round") else ref(x))
            _, out = each(self, kernel1(lambda x: ~x), x, np.zeros_like(x), len(x), BLOCK=64)
            np.testing.assert_array_equal(out, ~x)

    def test_binary(self):
        more = {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}
        table = {n: BINARY[n] for n in ("add", "sub", "mul", "maximum", "minimum", "where")} | {n: (f, f) for n, f in more.items()}
        for dt in INTS:
            x, y = pairs(ints(dt))
            for name, (f, ref) in table.items():
                with self.subTest(op=name, dtype=dt):
                    out = each(self, kernel2(f), x, y, np.zeros_like(x), len(x), BLOCK=64)[2]
                    np.testing.assert_array_equal(out, ref(x, y))

    def test_floordiv_and_mod(self):
        for dt in INTS:
            x, y = pairs(ints(dt))
            for f in (lambda x, y: x // y, lambda x, y: x % y):
                with self.subTest(dtype=dt):
                    out = each(self, kernel2(f), x, y, np.zeros_like(x), len(x), BLOCK=64)[2]
                    want = [0 if b == 0 else f(int(a), int(b)) for a, b in zip(x, y)]
                    np.testing.assert_array_equal(out, np.array([w & (2 ** (8 * dt.itemsize) - 1) for w in want], np.uint64).astype(dt))

    def test_shifts(self):
        for dt in INTS:
            bits = 8 * dt.itemsize
            x = np.repeat(ints(dt, 20), 6)
            s = np.tile(np.array([0, 1, bits // 2, bits - 1, bits, bits + 5], dt), len(x) // 6)
            for f in (lambda x, y: x << y, lambda x, y: x >> y):
                out = each(self, kernel2(f), x, s, np.zeros_like(x), len(x), BLOCK=64)[2]
                want = [f(int(a), int(b)) & (2**bits - 1) for a, b in zip(x, s)]
                np.testing.assert_array_equal(out, np.array(want, np.uint64).astype(dt))

    def test_compare(self):
        for dt in INTS:
            x, y = pairs(ints(dt))
            for name, f in COMPARE.items():
                with self.subTest(op=name, dtype=dt):
                    out = each(self, kernel2(f), x, y, np.zeros(len(x), bool), len(x), BLOCK=64)[2]
                    np.testing.assert_array_equal(out, f(x, y))

    def test_true_division_gives_floats(self):
        x, y = np.array([1, 7, -9], np.int32), np.array([2, 2, 4], np.int32)
        out = each(self, kernel2(lambda x, y: x / y), x, y, np.zeros(3, np.float32), 3, BLOCK=4)[2]
        np.testing.assert_array_equal(out, [0.5, 3.5, -2.25])

    def test_bools(self):
        x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
        for f, ref in (
            (mk.and_, np.logical_and),
            (mk.or_, np.logical_or),
            (lambda x, y: x ^ y, np.logical_xor),
            (lambda x, y: mk.not_(x) & y, lambda x, y: ~x & y),
            (lambda x, y: ~x | y, lambda x, y: ~x | y),
            (lambda x, y: x == y, np.equal),
            (lambda x, y: mk.where(x, y, False), np.logical_and),
            (lambda x, y: mk.and_(x, y, True, x), np.logical_and),
        ):
            out = each(self, kernel2(f), x, y, np.zeros(4, bool), 4, BLOCK=4)[2]
            np.testing.assert_array_equal(out, ref(x, y))


class Casts(unittest.TestCase):
    def test_every_pair(self):
        names = {
            np.dtype(d): n for d, n in zip("? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split(), "bool i8 i16 i32 i64 u8 u16 u32 u64 f16 f32 f64".split())
        }
        if BF16:
            names[BF16] = "bf16"
        for src in names:
            x = np.array([0, 1, 0, 1], bool) if src.kind == "b" else floats(src, 50) if src in FLOATS else ints(src, 50)
            for dst, name in names.items():
                with self.subTest(src=src, dst=dst):
                    k = kernel1(lambda x, name=name: mk.cast(x, name))
                    _, out = each(self, k, x, np.zeros(len(x), dst), len(x), BLOCK=32)
                    if src not in FLOATS and dst in INTS:
                        np.testing.assert_array_equal(out, x.astype(dst))
                    if src in FLOATS and dst in INTS:
                        info = np.iinfo(dst)
                        want = [
                            0 if v != v else max(info.min, min(info.max, int(v) if abs(v) != np.inf else (info.max if v > 0 else info.min)))
                            for v in x.astype(float)
                        ]
                        self.assertEqual(out.tolist(), want)

    def test_named_casts_and_bitcast(self):
        x = floats(np.dtype("f4"), 50)
        _, out = each(self, kernel1(mk.to_f16), x, np.zeros(len(x), np.float16), len(x), BLOCK=32)
        with np.errstate(over="ignore"):
            same(self, out, x.astype(np.float16))
        _, out = each(self, kernel1(lambda x: mk.bitcast(x, mk.u32)), x, np.zeros(len(x), np.uint32), len(x), BLOCK=32)
        np.testing.assert_array_equal(out, x.view(np.uint32))
        _, out = each(self, kernel1(lambda x: mk.to_u32(mk.abs(x))), np.float32([1.9, -3.2, np.nan, 1e20]), np.zeros(4, np.uint32), 4, BLOCK=4)
        self.assertEqual(out.tolist(), [1, 3, 0, 2**32 - 1])
        _, out = each(self, kernel1(lambda x: x.to(mk.i32)), np.float32([1.9, -3.2, 0, 7]), np.zeros(4, np.int32), 4, BLOCK=4)
        self.assertEqual(out.tolist(), [1, -3, 0, 7])


class Numbers(unittest.TestCase):
    def test_python_numbers_stay_numbers(self):
        seen = []

        @eas.kernel
        def k(out, B: eas.constexpr):
            seen.extend(
                [mk.max(2, 3), mk.min(2, 3), mk.maximum(2.5, 1), mk.clamp(7, 0, 5), mk.abs(-4), mk.floor(2.5), mk.sqrt(9.0), mk.where(True, 1, 2)]
            )
            seen.extend([mk.and_(True, False), mk.not_(False), mk.cdiv(7, 2), mk.fma(2, 3, 4), mk.isnan(1.0), mk.round(2.5), mk.pow(2, 10)])
            mk.store(out, mk.arange(0, B), 1.0)

        k(np.zeros(4, np.float32), 4, _grid=1)
        self.assertEqual(seen, [3, 2, 2.5, 5, 4, 2.0, 3.0, 1, False, True, 4, 10.0, False, 2.0, 1024])

    def test_numpy_scalars_on_the_left(self):
        x = np.array([1, 2, 3, 4], np.float32)
        _, out = each(self, kernel1(lambda v: np.float32(2) * v + np.int32(1)), x, np.zeros_like(x), 4, BLOCK=4)
        np.testing.assert_array_equal(out, 2 * x + 1)

    def test_reflected_operators(self):
        x = np.array([1, 2, 3, 4], np.int32)
        for f in (
            lambda v: 10 - v,
            lambda v: 10 // v,
            lambda v: 10 % v,
            lambda v: 1 << v,
            lambda v: 256 >> v,
            lambda v: 6 & v,
            lambda v: 8 | v,
            lambda v: 3 ^ v,
            lambda v: 3 * v,
        ):
            _, out = each(self, kernel1(f), x, np.zeros_like(x), 4, BLOCK=4)
            np.testing.assert_array_equal(out, f(x))

    def test_blocks_of_two_dims(self):
        @eas.kernel
        def k(out, M: eas.constexpr, N: eas.constexpr):
            i, j = mk.arange(0, M), mk.arange(0, N)
            v = i[:, None] * 100 + j[None, :]
            mk.static_assert(v.shape == (M, N) and v.ndim == 2)
            mk.store(out, i[:, None] * N + j, v * 1.0)

        (out,) = each(self, k, np.zeros((4, 8), np.float32), 4, 8, _grid=1)
        np.testing.assert_array_equal(out, np.arange(4)[:, None] * 100 + np.arange(8))


if __name__ == "__main__":
    unittest.main()
