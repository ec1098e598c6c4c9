"""mk.dot of 8-bit integers: exact in i32, by VNNI where the machine has it, by pmaddwd elsewhere."""

import time
import unittest

import numpy as np
from support import DEVICES

import eas
from eas import mk

BYTES = (np.int8, np.uint8)
SHAPES = ((1, 1, 8), (3, 5, 9), (33, 17, 70), (64, 64, 512), (7, 40, 600))


@eas.kernel
def product(a, b, c, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr):
    i, j, p = mk.arange(0, M)[:, None], mk.arange(0, N)[None, :], mk.arange(0, K)
    mk.store(c, i * N + j, mk.dot(mk.load(a, i * K + p[None, :]), mk.load(b, p[:, None] * N + j)))


@eas.kernel
def in_loop(a, b, c, TILES, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr):
    i, j, p = mk.arange(0, M)[:, None], mk.arange(0, N)[None, :], mk.arange(0, K)
    acc = mk.load(c, i * N + j)
    for q in range(TILES):
        x = mk.load(a, i * (TILES * K) + (q * K + p)[None, :])
        acc = mk.dot(x, mk.load(b, (q * K + p)[:, None] * N + j), acc)
    mk.store(c, i * N + j, acc)


@eas.kernel
def widened(a, b, c, TILES, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr):
    i, j, p = mk.arange(0, M)[:, None], mk.arange(0, N)[None, :], mk.arange(0, K)
    acc = mk.zeros((M, N), mk.f32)
    for q in range(TILES):
        x = mk.load(a, i * (TILES * K) + (q * K + p)[None, :])
        acc = mk.dot(mk.to_f32(x), mk.to_f32(mk.load(b, (q * K + p)[:, None] * N + j)), acc)
    mk.store(c, i * N + j, mk.to_i32(acc))


def some(rng, dt, shape, how):
    lo, hi = np.iinfo(dt).min, np.iinfo(dt).max
    if how == "any":
        return rng.integers(lo, hi + 1, shape).astype(dt)
    return np.full(shape, lo if how == "low" else hi, dt)


def exact(a, b):
    return a.astype(np.int32) @ b.astype(np.int32)


class Bytes(unittest.TestCase):
    def test_every_sign_and_shape(self):
        rng = np.random.default_rng(1)
        for dx in BYTES:
            for dy in BYTES:
                for m, n, k in SHAPES:
                    for how in ("any", "low", "high"):
                        a, b, c = some(rng, dx, (m, k), how), some(rng, dy, (k, n), how), np.zeros((m, n), np.int32)
                        product(a, b, c, M=m, N=n, K=k, _grid=1)
                        np.testing.assert_array_equal(c, exact(a, b), err_msg=f"{dx} {dy} {m} {n} {k} {how}")

    def test_a_sum_is_carried(self):
        rng = np.random.default_rng(2)
        for dx in BYTES:
            for dy in BYTES:
                a, b, c = some(rng, dx, (20, 144), "any"), some(rng, dy, (144, 36), "any"), rng.integers(-1000, 1000, (20, 36)).astype(np.int32)
                want = c + exact(a, b)
                in_loop(a, b, c, 3, M=20, N=36, K=48, _grid=1)
                np.testing.assert_array_equal(c, want)

    def test_everywhere(self):
        rng = np.random.default_rng(3)
        for device in DEVICES:
            for dx, dy in ((np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)):
                a, b = some(rng, dx, (6, 300), "high"), some(rng, dy, (300, 5), "high")
                out = eas.tensor(np.zeros((6, 5), np.int32), device=device)
                product(eas.tensor(a, device=device), eas.tensor(b, device=device), out, M=6, N=5, K=300, _grid=1)
                np.testing.assert_array_equal(out.numpy(), exact(a, b), err_msg=device)

    def test_views_and_numbers_as_factors(self):
        @eas.kernel
        def k(a, b, c, d, v: mk.i8 = 3):
            i, j, p = mk.arange(0, 12)[:, None], mk.arange(0, 10)[None, :], mk.arange(0, 16)
            x, y = mk.load(a, i * 16 + p[None, :]), mk.load(b, j * 16 + p[:, None])
            t = mk.trans(mk.load(b, mk.arange(0, 10)[:, None] * 16 + p[None, :]))
            mk.store(c, i * 10 + j, mk.dot(x, y) + mk.dot(x, t))
            mk.store(d, i * 10 + j, mk.dot(mk.full((12, 16), 3, mk.i8), y) - mk.dot(x, mk.full((16, 10), -128, mk.i8)))

        rng = np.random.default_rng(4)
        a, b = some(rng, np.int8, (12, 16), "any"), some(rng, np.int8, (10, 16), "any")
        c, d = np.zeros((12, 10), np.int32), np.zeros((12, 10), np.int32)
        k(a, b, c, d, _grid=1)
        np.testing.assert_array_equal(c, 2 * exact(a, b.T))
        np.testing.assert_array_equal(d, exact(np.full((12, 16), 3), b.T) + 128 * exact(a, np.ones((16, 10))))

    def test_machine_code(self):
        a, b, c = np.zeros((64, 256), np.int8), np.zeros((256, 64), np.int8), np.zeros((64, 64), np.int32)
        asm = product.compile(a, b, c, M=64, N=64, K=256).asm
        if "%xmm" in asm or "%ymm" in asm or "%zmm" in asm:
            self.assertTrue("vpdpbusd" in asm or "pmaddwd" in asm)
            self.assertNotIn("vfmadd", asm)

    def test_faster_than_a_widened_product(self):
        rng = np.random.default_rng(5)
        a, b, c = some(rng, np.int8, (64, 4096), "any"), some(rng, np.int8, (4096, 64), "any"), np.zeros((64, 64), np.int32)
        asm = in_loop.compile(a, b, c, 16, M=64, N=64, K=256).asm
        if "vpdpbusd" not in asm:
            self.skipTest("no VNNI here")

        def ns(kernel):
            best = float("inf")
            for _ in range(15):
                start = time.perf_counter()
                kernel(a, b, c, 16, M=64, N=64, K=256, _grid=1)
                best = min(best, time.perf_counter() - start)
            return best

        ns(in_loop), ns(widened)
        self.assertLess(2 * min(ns(in_loop) for _ in range(3)), min(ns(widened) for _ in range(3)))


if __name__ == "__main__":
    unittest.main()
