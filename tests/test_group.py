"""Functions over the threads of a simdgroup and of a group, on ref and cpu."""

import unittest

import numpy as np
from support import each

import eas
from eas import mk


@eas.kernel
def over(x, r, FN: eas.constexpr, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    i = mk.program_id(0) * BLOCK + t
    mk.store(r, i, mk.cast(getattr(mk, FN)(mk.load(x, i)), r.dtype))


@eas.kernel
def shuffled(x, r, D, FN: eas.constexpr, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    mk.store(r, i, getattr(mk, FN)(mk.load(x, i), D))


class Group(unittest.TestCase):
    def over(self, fn, x, block, out=None):
        r = np.zeros(x.size, out or x.dtype)
        return each(self, over, x, r, FN=fn, BLOCK=block, _grid=x.size // block)[1].reshape(-1, block)

    def test_integers(self):
        x = np.random.default_rng(1).integers(-9, 9, 128).astype(np.int32)
        simd = x.reshape(-1, 32)
        for name, f in {
            "sum": np.sum,
            "prod": np.prod,
            "max": np.max,
            "min": np.min,
            "and": np.bitwise_and.reduce,
            "or": np.bitwise_or.reduce,
            "xor": np.bitwise_xor.reduce,
        }.items():
            want = np.repeat(np.asarray(f(simd, axis=1)).astype(np.int32), 32)
            np.testing.assert_array_equal(self.over(f"simd_{name}", x, 64).ravel(), want, err_msg=name)
        np.testing.assert_array_equal(self.over("simd_prefix_sum", x, 64).reshape(-1, 32), np.cumsum(simd, 1))
        np.testing.assert_array_equal(self.over("simd_prefix_exclusive_sum", x, 128).reshape(-1, 32), np.cumsum(simd, 1) - simd)

    def test_groups_of_any_size(self):
        rng = np.random.default_rng(2)
        for block in (1, 2, 7, 32, 100, 256):
            x = rng.integers(-9, 9, 2 * block).astype(np.int64)
            g = x.reshape(2, block)
            for name in ("sum", "prod", "max", "min"):
                want = np.repeat(getattr(np, name)(g, axis=1)[:, None], block, 1)
                np.testing.assert_array_equal(self.over(f"tg_{name}", x, block), want, err_msg=f"{name} {block}")
            np.testing.assert_array_equal(self.over("tg_prefix_sum", x, block), np.cumsum(g, 1))
            np.testing.assert_array_equal(self.over("tg_prefix_exclusive_sum", x, block), np.cumsum(g, 1) - g)

    def test_conditions(self):
        x = np.zeros(96, np.float32)
        x[40] = -0.5
        x[64:] = np.nan
        any_ = self.over("simd_any", x, 32, np.int32)[:, 0]
        np.testing.assert_array_equal(any_, [0, 1, 1])
        np.testing.assert_array_equal(self.over("simd_all", x, 32, np.int32)[:, 0], [0, 0, 1])
        np.testing.assert_array_equal(self.over("tg_any", x, 48, np.int32)[:, 0], [1, 1])
        np.testing.assert_array_equal(self.over("tg_all", x, 48, np.int32)[:, 0], [0, 0])

    def test_floats(self):
        x = np.random.default_rng(3).standard_normal(256).astype(np.float32)
        np.testing.assert_allclose(self.over("simd_sum", x, 64)[:, 0], x.reshape(4, 64)[:, :32].astype(np.float64).sum(1), rtol=1e-5)
        np.testing.assert_allclose(self.over("tg_sum", x, 64)[:, 0], x.reshape(4, 64).astype(np.float64).sum(1), rtol=1e-5)
        x[70] = np.nan
        self.assertTrue(np.isnan(self.over("tg_max", x, 64)[1]).all())
        self.assertFalse(np.isnan(self.over("simd_max", x, 64)[1, :0]).any())
        for dt in (np.float16, np.float64):
            y = np.arange(32).astype(dt)
            self.assertTrue((self.over("simd_sum", y, 32) == 496).all())

    def test_shuffles(self):
        x = np.arange(64, dtype=np.float32)
        lanes, base = np.arange(64) % 32, np.arange(64) // 32 * 32

        def run(fn, d):
            return each(self, shuffled, x, np.zeros_like(x), d, FN=fn, BLOCK=64, _grid=1)[1]

        for d in (0, 1, 5, 31, 32, 40, -1):
            np.testing.assert_array_equal(run("simd_shuffle", d), base + d % 32)
            np.testing.assert_array_equal(run("simd_broadcast", d), base + d % 32)
            np.testing.assert_array_equal(run("simd_shuffle_xor", d), base + (lanes ^ d) % 32)
            for fn, src in (("simd_shuffle_up", lanes - d), ("simd_shuffle_down", lanes + d)):
                np.testing.assert_array_equal(run(fn, d), base + np.where((src >= 0) & (src < 32), src, lanes), err_msg=f"{fn} {d}")

    def test_in_loops(self):
        @eas.kernel
        def k(x, r, N, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            acc = mk.var(mk.load(x, t))
            for _ in mk.range(0, N):
                acc += mk.tg_sum(acc) + mk.simd_shuffle_xor(acc, 1)
            mk.store(r, t, acc)

        x = np.arange(64, dtype=np.int64)
        want = x.copy()
        for _ in range(3):
            want = want + want.sum() + want[np.arange(64) ^ 1]
        got = each(self, k, x, np.zeros_like(x), 3, BLOCK=64, _grid=1)[1]
        np.testing.assert_array_equal(got, want)

    def test_python_numbers(self):
        @eas.kernel
        def k(r, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            mk.store(r, t, mk.simd_sum(0.5) + mk.tg_sum(1))

        r = each(self, k, np.zeros(64, np.float32), BLOCK=64, _grid=1)[0]
        self.assertTrue((r == 80).all())

    def test_mistakes(self):
        def run(body, block=64):
            @eas.kernel
            def k(r, BLOCK: eas.constexpr):
                body(r, BLOCK)

            k(np.zeros(64, np.int64), BLOCK=block, _grid=1)

        def diverges(r, n):
            t = mk.tid(0, n)
            with mk.if_(t < 5):
                mk.store(r, t, mk.simd_sum(t))

        def varying_loop(r, n):
            t = mk.tid(0, n)
            for _ in mk.range(0, t):
                mk.store(r, t, mk.tg_sum(t))

        for body, block, error, words in (
            (lambda r, n: mk.simd_sum(mk.tid(0, n)), 48, ValueError, "a multiple of 32 threads; this one has 48"),
            (lambda r, n: mk.simd_sum(mk.arange(0, n)), 64, TypeError, "over the threads of a group"),
            (lambda r, n: mk.tg_sum(1), 64, ValueError, r"call tid\(0, BLOCK\) first"),
            (lambda r, n: mk.simd_shuffle(mk.tid(0, n), 1.5), 64, TypeError, "the lane must be an integer"),
            (lambda r, n: mk.simd_shuffle_up(mk.tid(0, n)), 64, TypeError, "delta"),
            (lambda r, n: mk.simd_xor(mk.to_f32(mk.tid(0, n))), 64, TypeError, "not defined for f32"),
            (lambda r, n: mk.simd_sum(r), 64, TypeError, "simd_sum"),
            (diverges, 64, TypeError, r"test_group.py:\d+: .*the same for the whole group"),
            (varying_loop, 64, TypeError, "the same for the whole group"),
        ):
            with self.assertRaisesRegex(error, words):
                run(body, block)
        with self.assertRaises(RuntimeError):
            mk.simd_sum(1)


if __name__ == "__main__":
    unittest.main()
