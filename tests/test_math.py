"""The elementary functions: cpu against ref bit for bit, and against NumPy in a wider type by units in the
last place."""

import math
import unittest

import numpy as np
from support import BF16, each, kernel1, kernel2, same

import eas
from eas import mk

LONG = np.longdouble


def wide_erf(x):
    return np.array([math.erf(float(v)) for v in x]).astype(x.dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# name: (NumPy, where to sample: (lo, hi) of uniform values, then of exponents of two)
FUNCTIONS = {
    "exp": (np.exp, (-90, 90), (-30, 6)),
    "exp2": (np.exp2, (-130, 130), (-30, 6)),
    "expm1": (np.expm1, (-20, 88), (-30, 6)),
    "log": (np.log, (0, 10), (-126, 127)),
    "log2": (np.log2, (0, 10), (-126, 127)),
    "log1p": (np.log1p, (-1, 10), (-60, 100)),
    "sqrt": (np.sqrt, (0, 10), (-126, 127)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (0, 10), (-126, 127)),
    "sin": (np.sin, (-100, 100), (-30, 20)),
    "cos": (np.cos, (-100, 100), (-30, 20)),
    "tan": (np.tan, (-100, 100), (-30, 20)),
    "tanh": (np.tanh, (-12, 12), (-30, 6)),
    "sigmoid": (sigmoid, (-40, 40), (-30, 6)),
    "erf": (wide_erf, (-6, 6), (-30, 4)),
}
INF, NAN = np.inf, np.nan
# of +-0, +-inf, NaN, 1, -1, as Annex F of C99 has them
SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0]
ROWS = {
    "exp": [1, 1, INF, 0, NAN, None, None],
    "exp2": [1, 1, INF, 0, NAN, 2, 0.5],
    "expm1": [0.0, -0.0, INF, -1, NAN, None, None],
    "log": [-INF, -INF, INF, NAN, NAN, 0.0, NAN],
    "log2": [-INF, -INF, INF, NAN, NAN, 0.0, NAN],
    "log1p": [0.0, -0.0, INF, NAN, NAN, None, -INF],
    "sqrt": [0.0, -0.0, INF, NAN, NAN, 1, NAN],
    "rsqrt": [INF, -INF, 0, NAN, NAN, 1, NAN],
    "sin": [0.0, -0.0, NAN, NAN, NAN, None, None],
    "cos": [1, 1, NAN, NAN, NAN, None, None],
    "tan": [0.0, -0.0, NAN, NAN, NAN, None, None],
    "tanh": [0.0, -0.0, 1, -1, NAN, None, None],
    "sigmoid": [0.5, 0.5, 1, 0, NAN, None, None],
    "erf": [0.0, -0.0, 1, -1, NAN, None, None],
}


def samples(dt, span, exponents, n=4000):
    rng = np.random.default_rng(3)
    lo, hi = exponents
    if dt == np.float16:
        lo, hi = max(lo, -24), min(hi, 15)
    spread = np.exp2(rng.uniform(lo, hi, n)) * (rng.choice([-1.0, 1.0], n) if span[0] < -1 else 1.0)
    return np.concatenate([rng.uniform(*span, n), spread]).astype(dt)


def ulps(got, want):
    """Largest distance from the exact result, in units in the last place of the result; equal infinities and
    NaNs are right."""
    dt = got.dtype
    eps, tiny = (2.0**-7, 2.0**-126) if BF16 is not None and dt == BF16 else (float(np.finfo(dt).eps), float(np.finfo(dt).tiny))
    top = 3.3895313892515355e38 if BF16 is not None and dt == BF16 else float(np.finfo(dt).max)
    g, w = got.astype(LONG), want.astype(LONG)
    fine = np.isfinite(w) & (np.abs(w) <= top)
    unit = eps * np.exp2(np.floor(np.log2(np.maximum(np.abs(np.where(fine, w, 1)), tiny)))).astype(LONG)
    wrong = ~fine & ~((np.isnan(g) & np.isnan(w)) | (np.isinf(g) & (np.abs(w) > top)))
    return INF if wrong.any() else float(np.max(np.where(fine, np.abs(g - np.where(fine, w, 0)) / unit, 0)))


class Quiet(unittest.TestCase):
    def setUp(self):
        ctx = np.errstate(all="ignore")
        ctx.__enter__()
        self.addCleanup(ctx.__exit__, None, None, None)


class Functions(Quiet):
    def accuracy(self, dt, limit, finer):
        for name, (ref, span, exponents) in FUNCTIONS.items():
            with self.subTest(fn=name, dtype=dt):
                x = samples(dt, span, exponents)
                _, out = each(self, kernel1(getattr(mk, name)), x, np.zeros_like(x), len(x), BLOCK=128)
                self.assertLessEqual(ulps(out, ref(x.astype(finer))), limit)

    def test_f32(self):
        self.accuracy(np.dtype(np.float32), 1.0, np.float64)

    def test_f64(self):
        self.accuracy(np.dtype(np.float64), 2.0, LONG)

    def test_halves_round_once(self):
        for dt in [np.dtype(np.float16), *([BF16] if BF16 else [])]:
            self.accuracy(dt, 0.51, np.float64)

    def test_special_values(self):
        for dt in [np.dtype(d) for d in ("f2", "f4", "f8")] + ([BF16] if BF16 else []):
            x = np.array(SPECIAL).astype(dt)
            for name, want in ROWS.items():
                _, out = each(self, kernel1(getattr(mk, name)), x, np.zeros_like(x), len(x), BLOCK=8)
                for v, got, w in zip(SPECIAL, out.astype(float).tolist(), want):
                    if w is not None:
                        same = math.isnan(got) if w != w else got == w and math.copysign(1, got) == math.copysign(1, w)
                        self.assertTrue(same, f"{name}({v}) of {dt} gives {got}, not {w}")

    def test_integers_become_f32(self):
        for dt in ("i1", "i4", "i8", "u2", "u8"):
            x = np.arange(1, 20).astype(dt)
            for name in FUNCTIONS:
                _, got = each(self, kernel1(getattr(mk, name)), x, np.zeros(len(x), np.float64), len(x), BLOCK=32)
                _, want = each(self, kernel1(getattr(mk, name)), x.astype(np.float32), np.zeros(len(x), np.float64), len(x), BLOCK=32)
                np.testing.assert_array_equal(got, want, name)

    def test_python_numbers_stay_python_numbers(self):
        seen = {}

        @eas.kernel
        def k(out, B: eas.constexpr):
            for name in FUNCTIONS:
                seen[name] = getattr(mk, name)(0.25)
            seen["pow"] = mk.pow(2, 10), mk.pow(2.0, 0.5), mk.pow(-8.0, 0.5)
            mk.store(out, mk.arange(0, B), mk.exp(1))

        (out,) = each(self, k, np.zeros(1, np.float32), 1, _grid=1)
        for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "erf"):
            self.assertEqual(seen[name], getattr(math, name, lambda x: 2.0**x)(0.25), name)
        self.assertEqual(seen["rsqrt"], 2.0)
        self.assertIs(type(seen["pow"][0]), int)
        self.assertEqual(seen["pow"][:2], (1024, math.sqrt(2)))
        self.assertTrue(math.isnan(seen["pow"][2]))
        self.assertEqual(out[0], np.float32(math.e))


class Power(Quiet):
    def test_accuracy(self):
        rng = np.random.default_rng(4)
        for dt, limit, finer in ((np.float32, 2, np.float64), (np.float64, 2, LONG)):
            x, y = np.exp2(rng.uniform(-20, 20, 4000)).astype(dt), rng.uniform(-5, 5, 4000).astype(dt)
            for f in (mk.pow, lambda x, y: x**y):
                *_, out = each(self, kernel2(f), x, y, np.zeros_like(x), len(x), BLOCK=128)
                self.assertLessEqual(ulps(out, x.astype(finer) ** y.astype(finer)), limit)

    def test_special_values(self):
        values = np.array([*SPECIAL, 2.0, -2.0, 0.5, 3.0, -3.0, 1e30, -0.5], np.float32)
        x, y = (a.ravel() for a in np.meshgrid(values, values))
        x, y = x.copy(), y.copy()
        *_, out = each(self, kernel2(mk.pow), x, y, np.zeros_like(x), len(x), BLOCK=64)
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
        nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(out), nan)
        np.testing.assert_array_equal(np.signbit(out[~nan]), np.signbit(want[~nan]))
        np.testing.assert_allclose(out[~nan], want[~nan], rtol=2e-7)

    def test_special_values_of_literal_exponents(self):
        x = np.array([*SPECIAL, 2.0, -2.0, 0.5, 3.0, -3.0, 1e30, -0.5], np.float32)
        for e in (0, 1, 2, 3, 4, -1, -2, -3, 0.5, -0.5, 2.0, -1.0, 1.5, 0.0, math.inf, -math.inf, 5000, -5000, 10**30):
            with self.subTest(e=e):
                _, out = each(self, kernel1(lambda v, e=e: v**e), x, np.zeros_like(x), len(x), BLOCK=64)
                want = np.power(x.astype(np.float64), np.full(x.shape, float(e))).astype(np.float32)
                same(self, np.signbit(out[want == want]), np.signbit(want[want == want]), "signs")
                np.testing.assert_allclose(out, want, rtol=2e-7)

    def test_accuracy_of_literal_exponents(self):
        """Products as little as functions: nothing is lost to many of them, or to an overflow on the way."""
        x = np.exp2(np.random.default_rng(7).uniform(-70, 70, 4000)).astype(np.float32)
        for e in (1, 2, 3, 4, 5, 7, 10, 31, 100, -1, -2, -3, -4, 0.5, -0.5, 2.0):
            with self.subTest(e=e):
                _, out = each(self, kernel1(lambda v, e=e: v**e), x, np.zeros_like(x), len(x), BLOCK=64)
                self.assertLessEqual(ulps(out, x.astype(np.float64) ** e), 2)

    def test_literal_exponents(self):
        x = np.linspace(0.5, 3, 50, dtype=np.float32)
        for e in (0, 1, 2, 3, 7, -1, -2, 0.5, -0.5, 2.0, 2.5, -1.25, 1.0, 5000, np.float32(1.5)):
            with self.subTest(e=e):
                _, out = each(self, kernel1(lambda v, e=e: v**e), x, np.zeros_like(x), len(x), BLOCK=64)
                np.testing.assert_allclose(out, (x.astype(np.float64) ** float(e)).astype(np.float32), rtol=1e-6)

    def test_reflected(self):
        x = np.linspace(-3, 3, 50, dtype=np.float32)
        for base in (2, 2.0, 0.5, 10):
            _, out = each(self, kernel1(lambda v, base=base: base**v), x, np.zeros_like(x), len(x), BLOCK=64)
            np.testing.assert_allclose(out, float(base) ** x.astype(np.float64), rtol=3e-7)

    def test_integer_base(self):
        x = np.arange(1, 9, dtype=np.int32)
        _, out = each(self, kernel1(lambda v: v**3), x, np.zeros_like(x), len(x), BLOCK=8)
        np.testing.assert_array_equal(out, x**3)
        for e in (0.5, 2.0, 1.5, -0.5):
            _, out = each(self, kernel1(lambda v, e=e: v**e), x, np.zeros(len(x), np.float32), len(x), BLOCK=8)
            np.testing.assert_allclose(out, x.astype(np.float64) ** e, rtol=2e-7)

    def test_halves(self):
        x = np.linspace(0.5, 3, 50, dtype=np.float16)
        _, out = each(self, kernel1(lambda v: v**1.7), x, np.zeros_like(x), len(x), BLOCK=64)
        self.assertLessEqual(ulps(out, x.astype(np.float64) ** float(np.float16(1.7))), 0.51)


if __name__ == "__main__":
    unittest.main()
