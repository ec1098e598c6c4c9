"""Thread mode: groups, threadgroup memory, barriers, simdgroups, dots and matrices."""

import unittest

import numpy as np
from support import each

import eas
from eas import mk


class ThreadMode(unittest.TestCase):
    def test_ids(self):
        @eas.kernel
        def k(out, T: eas.constexpr):
            t = mk.tid(0, T)
            i = mk.program_id(0) * T + t
            mk.store(out, i * 4, t)
            mk.store(out, i * 4 + 1, mk.local_id(0))
            mk.store(out, i * 4 + 2, mk.lane_id())
            mk.store(out, i * 4 + 3, mk.sg_id())

        for n in (1, 32, 96):
            (out,) = each(self, k, np.zeros((2, n, 4), np.int32), n, _grid=2)
            t = np.arange(n)
            for g in out:
                np.testing.assert_array_equal(g, np.stack([t, t, t % 32, t // 32], 1))

    def test_start_of_tid(self):
        @eas.kernel
        def k(out, T: eas.constexpr):
            mk.store(out, mk.tid(0, T), mk.tid(5, T))

        (out,) = each(self, k, np.zeros(8, np.int64), 8, _grid=1)
        np.testing.assert_array_equal(out, np.arange(8) + 5)

    def test_tree_reduction(self):
        @eas.kernel
        def k(x, out, N, T: eas.constexpr):
            t = mk.tid(0, T)
            i = mk.program_id(0) * T + t
            s = mk.alloc_tg(T)
            mk.store(s, t, mk.load(x, i, i < N))
            mk.barrier()
            step = T // 2
            while step:
                mk.store(s, t, mk.load(s, t) + mk.load(s, t + step, t < step), t < step)
                mk.barrier()
                step //= 2
            mk.store(out, mk.program_id(0), mk.load(s, 0), t == 0)

        x = np.random.default_rng(0).integers(-50, 50, 1000).astype(np.float32)
        _, out = each(self, k, x, np.zeros(8, np.float32), 1000, 128)
        np.testing.assert_array_equal(out, np.pad(x, (0, 24)).reshape(8, 128).sum(1))

    def test_threadgroup_dtypes(self):
        @eas.kernel
        def k(x, out, T: eas.constexpr, D: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg_f16(T) if D is None else mk.alloc_tg(T, D)
            mk.store(s, t, mk.load(x, t))
            mk.barrier()
            mk.store(out, t, mk.load(s, (t + 1) % T))

        for dt, d in ((np.float16, None), (np.float32, mk.f32), (np.int32, mk.i32), (np.uint8, mk.u8), (np.float64, mk.f64)):
            x = np.arange(64).astype(dt)
            _, out = each(self, k, x, np.zeros(64, dt), 64, d, _grid=1)
            np.testing.assert_array_equal(out, np.roll(x, -1))

    def test_periodic_masks(self):
        """Masks over t % W and t // W are no prefixes of the group."""

        @eas.kernel
        def k(x, out, N, W: eas.constexpr, T: eas.constexpr):
            t = mk.tid(0, T)
            mk.store(out, t, mk.load(x, t, t % W < N, -1.0))
            mk.store(out, T + t, mk.load(x, t, t // W < N, -1.0))
            mk.store(out, 2 * T + t, mk.load(x, t), mk.and_(t % W < N, t // W < 2))

        t = np.arange(64)
        x = t.astype(np.float32)
        for w, n in ((4, 3), (8, 7), (8, 3), (16, 1), (64, 5), (4, 9)):
            with self.subTest(w=w, n=n):
                _, out = each(self, k, x, np.full((3, 64), 7, np.float32), n, w, 64, _grid=1)
                np.testing.assert_array_equal(out[0], np.where(t % w < n, x, -1))
                np.testing.assert_array_equal(out[1], np.where(t // w < n, x, -1))
                np.testing.assert_array_equal(out[2], np.where((t % w < n) & (t // w < 2), x, 7))

    def test_tid_may_go_unused(self):
        """tid says how many threads a group has, even if its value is not needed or is constant."""

        @eas.kernel
        def k(out, T: eas.constexpr):
            mk.tid(0, T)
            mk.store(out, mk.local_id(0), mk.lane_id())

        ck = k.compile(np.zeros(64, np.int32), 64)
        self.assertEqual((ck.launch_mode, ck.block_size), ("thread", 64))
        (out,) = each(self, k, np.zeros(64, np.int32), 64, _grid=1)
        np.testing.assert_array_equal(out, np.arange(64) % 32)

    def test_matmul_tiled(self):
        import os
        import sys

        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        from examples.matmul_tiled import matmul_tiled

        rng = np.random.default_rng(0)
        for m, n, kk in ((16, 16, 16), (37, 41, 29), (64, 70, 33)):
            a, b = rng.standard_normal((m, kk), dtype=np.float32), rng.standard_normal((kk, n), dtype=np.float32)
            meta = {"BM": 16, "BN": 32, "BK": 8, "RY": 2, "RX": 4}
            out = each(self, matmul_tiled, a, b, np.zeros((m, n), np.float32), m, n, kk, **meta, _grid=(-(-n // 32), -(-m // 16)))[2]
            np.testing.assert_allclose(out, a.astype(float) @ b, atol=1e-4)


class Dots(unittest.TestCase):
    def test_strided_dot(self):
        @eas.kernel
        def meta_k(a, b, c, M, N, K: eas.constexpr, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            r, col = i // N, i % N
            ok = i < M * N
            r, col = mk.where(ok, r, 0), mk.where(ok, col, 0)
            mk.store(c, i, mk.dot(a, r * K, 1, b, col, N, K), ok)

        @eas.kernel
        def run_k(a, b, c, M, N, K, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            r, col = i // N, i % N
            ok = i < M * N
            r, col = mk.where(ok, r, 0), mk.where(ok, col, 0)
            mk.store(c, i, mk.dot(a, r * K, 1, b, col, N, K), ok)

        rng = np.random.default_rng(0)
        m, n, kk = 7, 9, 13
        for dt in (np.float16, np.float32, np.float64):
            a, b = rng.standard_normal((m, kk)).astype(dt), rng.standard_normal((kk, n)).astype(dt)
            want = a.astype(float) @ b.astype(float)
            for k in (meta_k, run_k):
                out = np.zeros((m, n), np.float64 if dt == np.float64 else np.float32)
                c = each(self, k, a, b, out, m, n, kk, BLOCK=16, _grid=4)[2]
                np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5)

    def test_dot_of_nothing(self):
        @eas.kernel
        def k(a, c, K, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(c, i, mk.dot(a, 0, 1, a, 0, 1, K) + i * 0)

        a = np.arange(4, dtype=np.float32)
        for kk in (0, 1, 4):
            _, c = each(self, k, a, np.zeros(4, np.float32), kk, 4, _grid=1)
            self.assertEqual(c[0], (a[:kk] ** 2).sum())

    def test_simdgroup_matrices(self):
        @eas.kernel
        def k(a, b, c, K: eas.constexpr, N: eas.constexpr, T: eas.constexpr):
            mk.tid(0, T)
            acc = mk.mma_zero()
            for k0 in range(0, K, 8):
                acc = mk.mma(a, mk.program_id(1) * 8 * K + k0, K, b, k0 * N + mk.program_id(0) * 8, N, acc)
            mk.mma_store(c, mk.program_id(1) * 8 * N + mk.program_id(0) * 8, N, acc)

        rng = np.random.default_rng(0)
        for dt in (np.float16, np.float32):
            a, b = rng.standard_normal((16, 24)).astype(dt), rng.standard_normal((24, 32)).astype(dt)
            c = each(self, k, a, b, np.zeros((16, 32), np.float32), 24, 32, 32, _grid=(4, 2))[2]
            np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    unittest.main()
