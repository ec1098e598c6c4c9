"""Lanes of blocks that change places, functions of bits, functions made of instructions, products of rank 3
and of bytes: against NumPy."""

import unittest

import numpy as np
from support import backend, each, same
from test_arrays import both

import eas
from eas import mk

RNG = np.random.default_rng(5)


def quick(test, kernel, *args, **kw):
    """On the cpu and the reference, which are compiled quickly, and under _interpret."""
    results = []
    for how in ("cpu", "ref", "interpreted"):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        with backend("cpu" if how == "interpreted" else how):
            kernel(*copies, _interpret=how == "interpreted", **kw)
        results.append([a for a in copies if isinstance(a, np.ndarray)])
    for a, b, c in zip(*results):
        same(test, a, b, "cpu and ref")
        np.testing.assert_allclose(c, a, rtol=1e-5, atol=1e-6)  # products and sums are contracted where kernels are compiled
    return results[0]


def apply(test, f, x, shape=None, dtype=None, check=quick):
    """f of the block x, on every device."""
    shape = x.shape if shape is None else shape
    size = int(np.prod(shape))

    @eas.kernel
    def k(a, out, S: eas.constexpr, N: eas.constexpr, M: eas.constexpr):
        v = mk.reshape(mk.load(a, mk.arange(0, N)), S)
        mk.store(out, mk.arange(0, M), mk.reshape(f(v), (M,)))

    out = check(test, k, x.ravel().copy(), np.zeros(size, x.dtype if dtype is None else dtype), x.shape, x.size, size, _grid=1)[1]
    return out.reshape(shape)


class Lanes(unittest.TestCase):
    def test_sort(self):
        for x in (RNG.standard_normal(16).astype(np.float32), RNG.integers(0, 5, 13).astype(np.int32), np.float32([3, np.nan, -1, np.inf, np.nan, 0]), RNG.random(8) > 0.5):
            np.testing.assert_array_equal(apply(self, mk.sort, x), np.sort(x))
            np.testing.assert_array_equal(apply(self, mk.argsort, x, dtype=np.int64), np.argsort(x, kind="stable"))
        x = RNG.integers(0, 9, (4, 6)).astype(np.float32)
        for axis in (0, 1):
            np.testing.assert_array_equal(apply(self, lambda v, a=axis: mk.sort(v, axis=a), x), np.sort(x, axis))
            np.testing.assert_array_equal(apply(self, lambda v, a=axis: mk.argsort(v, axis=a), x, dtype=np.int64), np.argsort(x, axis, kind="stable"))
        np.testing.assert_array_equal(apply(self, lambda v: mk.sort(v, descending=True), x), -np.sort(-x))

    def test_topk(self):
        x = RNG.permutation(16).astype(np.float32)
        np.testing.assert_array_equal(apply(self, lambda v: mk.topk(v, 3)[0], x, (3,)), np.sort(x)[::-1][:3])
        np.testing.assert_array_equal(apply(self, lambda v: mk.topk(v, 3)[1], x, (3,), np.int64), np.argsort(-x)[:3])
        np.testing.assert_array_equal(apply(self, lambda v: mk.topk(v, 2, largest=False)[0], x, (2,)), [0, 1])

    def test_flip_and_cat(self):
        x = RNG.standard_normal((3, 5)).astype(np.float32)
        np.testing.assert_array_equal(apply(self, mk.flip, x), x[:, ::-1])
        np.testing.assert_array_equal(apply(self, lambda v: mk.flip(v, 0), x), x[::-1])
        np.testing.assert_array_equal(apply(self, lambda v: mk.cat([v, v * 2, v + 1], axis=1), x, (3, 15)), np.concatenate([x, x * 2, x + 1], 1))
        np.testing.assert_array_equal(apply(self, lambda v: mk.cat(v, v), x, (6, 5)), np.concatenate([x, x]))

    def test_gather(self):
        x = RNG.standard_normal(8).astype(np.float32)
        np.testing.assert_array_equal(apply(self, lambda v: mk.gather(v, mk.arange(0, 5) * 2 - 2), x, (5,)), [x[-2], x[0], x[2], x[4], x[6]])
        np.testing.assert_array_equal(apply(self, lambda v: mk.gather(v, mk.arange(6, size=4)), x, (4,)), [x[6], x[7], 0, 0])
        y = RNG.standard_normal((3, 4)).astype(np.float32)
        i = np.array([[2, 0], [1, 1], [3, 0]])
        got = apply(self, lambda v: mk.gather(v, (mk.arange(0, 3)[:, None] + mk.arange(0, 2)[None, :] * 2) % 4, axis=1), y, (3, 2))
        i = (np.arange(3)[:, None] + np.arange(2)[None, :] * 2) % 4
        np.testing.assert_array_equal(got, np.take_along_axis(y, i, 1))

    def test_indices(self):
        x = RNG.standard_normal((4, 6)).astype(np.float32)
        for f in (
            lambda v: v[1],
            lambda v: v[:, -1],
            lambda v: v[1:3, ::2],
            lambda v: v[::-1, 4:1:-1],
            lambda v: v[2, None, 1:4],
            lambda v: v[..., 0, None],
            lambda v: v[3][2:],
        ):
            np.testing.assert_array_equal(apply(self, f, x, f(x).shape), f(x))

        @eas.kernel
        def k(a, out, N, B: eas.constexpr):
            v = mk.load(a, mk.arange(0, B))
            for j in range(N):
                mk.store(out, j, v[(j * 3) % B])
            mk.store(out, N, v[2])

        a = np.arange(8, dtype=np.float32) * 2
        _, out = both(self, k, a, np.zeros(9, np.float32), 8, 8, _grid=1)
        np.testing.assert_array_equal(out, [*(a[(j * 3) % 8] for j in range(8)), 4])

    def test_histogram(self):
        x = RNG.integers(-2, 9, 64).astype(np.int32)
        np.testing.assert_array_equal(apply(self, lambda v: mk.histogram(v, 7), x, (7,)), [(x == b).sum() for b in range(7)])
        np.testing.assert_array_equal(apply(self, lambda v: mk.histogram(v, 7, v > 2), x, (7,)), [((x == b) & (x > 2)).sum() for b in range(7)])

    def test_associative_scan(self):
        x = RNG.integers(1, 5, 12).astype(np.float32)
        np.testing.assert_array_equal(apply(self, lambda v: mk.associative_scan(v, 0, lambda a, b: a + b), x), np.cumsum(x))
        np.testing.assert_array_equal(apply(self, lambda v: mk.associative_scan(v, 0, mk.maximum, reverse=True), x), np.maximum.accumulate(x[::-1])[::-1])

        def compose(p, q):  # (a, b) stands for v -> a v + b
            return p[0] * q[0], p[1] * q[0] + q[1]

        a, b, v = x / 4, x, 0.0
        want = []
        for p, q in zip(a, b):
            v = p * v + q
            want.append(v)
        got = apply(self, lambda v: mk.associative_scan((v / 4, v), 0, compose)[1], x)
        np.testing.assert_allclose(got, want, rtol=1e-6)

    def test_on_every_device(self):
        @eas.kernel
        def k(x, y, out, ints, N, B: eas.constexpr):
            i = mk.arange(0, B)
            v, n = mk.load(x, i), mk.load(y, i)
            put = [mk.sort(v), mk.to_f32(mk.argsort(v)), mk.cat(mk.topk(v, 4)[0], mk.flip(v)[: B - 4]), mk.gather(v, (i * 3) % B)]
            put += [mk.associative_scan(v, 0, lambda a, b: a + b), v[N] + mk.zeros(B), mk.atan2(v, v + 1), mk.cbrt(v) + mk.asinh(v)]
            for r in range(len(put)):
                mk.store(out, r * B + i, put[r])
            put = [mk.histogram(n % B, B), mk.popcount(n), mk.clz(n), mk.ctz(n), mk.umulhi(n * 77777, n * 99999)]
            for r in range(len(put)):
                mk.store(ints, r * B + i, put[r])
            a = mk.reshape(mk.cast(n, mk.i8), (2, B // 2))
            mk.store(ints, len(put) * B + mk.arange(0, 4), mk.reshape(mk.dot(a, a.T), (4,)))

        x = RNG.integers(-8, 9, 16).astype(np.float32)
        y = RNG.integers(0, 100, 16).astype(np.int32)
        out = each(self, k, x, y, np.zeros(128, np.float32), np.zeros(84, np.int32), 3, 16, _grid=1)[2].reshape(8, 16)
        np.testing.assert_array_equal(out[0], np.sort(x))
        np.testing.assert_array_equal(out[4], np.cumsum(x))

    def test_in_loops_and_rows(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            i = mk.arange(0, B)
            for r in range(N):
                v = mk.load(x, r * B + i)
                for _ in range(2):
                    v = mk.sort(v) + mk.flip(mk.sort(v))
                mk.store(out, r * B + i, v)

        x = RNG.standard_normal((3, 8)).astype(np.float32)
        _, out = both(self, k, x, np.zeros_like(x), 3, 8, _grid=1)
        for _ in range(2):
            x = np.sort(x) + np.sort(x)[:, ::-1]
        np.testing.assert_array_equal(out, x)


class Bits(unittest.TestCase):
    def test_counts(self):
        for dt in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
            info = np.iinfo(dt)
            x = np.concatenate([np.array([0, 1, 2, info.max, info.min, info.max // 3], dt), RNG.integers(info.min, info.max, 10, dtype=dt)])
            width = info.bits
            raw = [int(v) & (2**width - 1) for v in x]
            np.testing.assert_array_equal(apply(self, mk.popcount, x, dtype=np.int32), [v.bit_count() for v in raw])
            np.testing.assert_array_equal(apply(self, mk.clz, x, dtype=np.int32), [width - v.bit_length() for v in raw])
            np.testing.assert_array_equal(apply(self, mk.ctz, x, dtype=np.int32), [(v & -v).bit_length() - 1 if v else width for v in raw])
            if dt in (np.uint32, np.uint64, np.int32):
                got = apply(self, lambda v: mk.umulhi(v, mk.flip(v)), x)
                want = [((a * b) >> width) & (2**width - 1) for a, b in zip(raw, raw[::-1])]
                self.assertEqual([int(v) & (2**width - 1) for v in got], want)


class Functions(unittest.TestCase):
    def test_values(self):
        unit, all_, above = np.linspace(-1, 1, 33), np.linspace(-30, 30, 61), np.concatenate([[1], np.geomspace(1.001, 1e6, 30)])
        cases = {"asin": unit, "acos": unit, "atan": all_, "sinh": all_, "cosh": all_, "asinh": all_ * 100, "acosh": above, "atanh": unit * 0.999, "log10": above, "cbrt": all_}
        for name, x in cases.items():
            ref = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh}.get(name) or getattr(np, name)
            for dt, tol in ((np.float32, 2e-6), (np.float64, 1e-14)):
                with self.subTest(name=name, dtype=dt.__name__):
                    v = x.astype(dt)
                    got = apply(self, getattr(mk, name), v)
                    np.testing.assert_allclose(got, ref(v.astype(np.float64)), rtol=tol, atol=tol)

    def test_of_two_and_special(self):
        x = np.float32([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3])
        got = apply(self, lambda v: mk.atan2(v, mk.flip(v)), x)
        np.testing.assert_allclose(got, np.arctan2(x, x[::-1]), rtol=1e-6)
        np.testing.assert_array_equal(np.signbit(apply(self, mk.cbrt, x))[:6], np.signbit(x)[:6])
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(np.isnan(apply(self, mk.acosh, x)), np.isnan(np.arccosh(x)))

    def test_bounds_of_inverse_functions(self):
        """In units in the last place, against a wider type."""
        rng = np.random.default_rng(3)
        unit, wide = rng.uniform(-1, 1, 4000), np.exp(rng.uniform(-80, 80, 4000)) * rng.choice([-1, 1], 4000)
        for dt, wider in ((np.float32, np.float64), (np.float64, np.longdouble)):
            for name, x, bound in (("asin", unit, 1.2), ("acos", unit, 1.2), ("atan", wide, 1.2), ("atan", 2 * unit, 1.2), ("cbrt", wide, 0.51)):
                x = x.astype(dt)
                want = getattr(np, {"cbrt": "cbrt"}.get(name, "arc" + name[1:]))(x.astype(wider))
                got = apply(self, getattr(mk, name), x).astype(wider)
                unit_of = np.spacing(np.abs(want).astype(dt)).astype(wider)
                self.assertLessEqual(float(np.max(np.abs(got - want) / unit_of)), bound, (name, dt))

    def test_halves_and_ints(self):
        x = np.float16([0.1, 0.5, -0.25])
        np.testing.assert_allclose(apply(self, mk.asin, x), np.arcsin(x.astype(np.float32)), rtol=1e-3)
        i = np.int32([1, 10, 1000])
        np.testing.assert_allclose(apply(self, mk.log10, i, dtype=np.float32), [0, 1, 3], atol=1e-6)


class Products(unittest.TestCase):
    def product(self, x, y, dtype, f=lambda a, b: mk.dot(a, b)):
        shape = (x.astype(np.float64) @ y.astype(np.float64)).shape
        nx, ny, n = x.size, y.size, int(np.prod(shape))

        @eas.kernel
        def k(x, y, out, SX: eas.constexpr, SY: eas.constexpr, NX: eas.constexpr, NY: eas.constexpr, N: eas.constexpr):
            a = mk.reshape(mk.load(x, mk.arange(0, NX)), SX)
            b = mk.reshape(mk.load(y, mk.arange(0, NY)), SY)
            mk.store(out, mk.arange(0, N), mk.reshape(f(a, b), (N,)))

        return quick(self, k, x.ravel(), y.ravel(), np.zeros(n, dtype), x.shape, y.shape, nx, ny, n, _grid=1)[2].reshape(shape)

    def test_rank_3(self):
        x, y = RNG.integers(-4, 5, (3, 4, 8)).astype(np.float32), RNG.integers(-4, 5, (3, 8, 4)).astype(np.float32)
        np.testing.assert_array_equal(self.product(x, y, np.float32), x @ y)
        np.testing.assert_array_equal(self.product(x, y[0], np.float32), x @ y[0])

    def test_bytes(self):
        x, y = RNG.integers(-128, 128, (8, 64)).astype(np.int8), RNG.integers(-128, 128, (64, 8)).astype(np.int8)
        want = x.astype(np.int32) @ y.astype(np.int32)
        np.testing.assert_array_equal(self.product(x, y, np.int32), want)
        np.testing.assert_array_equal(self.product(x, y, np.int32, lambda a, b: mk.dot(a, b, mk.full((8, 8), 7, mk.i32))), want + 7)
        u = RNG.integers(0, 256, (4, 1040)).astype(np.uint8)
        np.testing.assert_array_equal(self.product(u, u.T.copy(), np.int32), u.astype(np.int32) @ u.T.astype(np.int32))


if __name__ == "__main__":
    unittest.main()
