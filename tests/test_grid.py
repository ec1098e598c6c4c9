"""A grid that is inferred from the argument N: right for programs over blocks of N; where it does not cover
what the kernel writes, it raises and names _grid."""

import unittest

import numpy as np
from support import DEVICES, backend

import eas
from eas import mk


@eas.kernel
def softmax(x, out, N, BLOCK: eas.constexpr):
    row = mk.program_id(0)
    i = mk.arange(0, BLOCK)
    v = mk.load(x, row * N + i, i < N, -float("inf"))
    e = mk.exp(v - mk.max(v))
    mk.store(out, row * N + i, e / mk.sum(e), i < N)


@eas.kernel
def row_sums(x, out, N, BLOCK: eas.constexpr):
    row = mk.program_id(0)
    i = mk.arange(0, BLOCK)
    mk.store(out, row, mk.sum(mk.load(x, row * N + i, i < N)))


@eas.kernel
def rows_of_threads(x, out, N, BLOCK: eas.constexpr):
    row, t = mk.program_id(0), mk.tid(0, BLOCK)
    for c in mk.range(t, N, BLOCK):
        mk.store(out, row * N + c, mk.load(x, row * N + c) + 1.0)


@eas.kernel
def rows_without_lanes(x, out, N):
    row = mk.program_id(0)
    for c in mk.range(N):
        mk.store(out, row * N + c, mk.load(x, row * N + c) + 1.0)


@eas.kernel
def whole_rows(x, out, N, COLS: eas.constexpr):
    """N counts rows."""
    i = mk.program_id(0) * COLS + mk.arange(0, COLS)
    mk.store(out, i, mk.load(x, i) + 1.0)


@eas.kernel
def add_one(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) + 1.0, i < N)


@eas.kernel
def unmasked(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i) + 1.0)


@eas.kernel
def block_sums(x, out, N, BLOCK: eas.constexpr):
    p = mk.program_id(0)
    i = p * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, p, mk.sum(mk.load(x, i, i < N)))


@eas.kernel
def element(x, out, N):
    i = mk.program_id(0)
    mk.store(out, i, mk.load(x, i) + 1.0)


@eas.kernel
def strided(x, out, N, BLOCK: eas.constexpr):
    for b in mk.range(mk.program_id(0) * 1, mk.cdiv(N, BLOCK), mk.num_programs(0)):
        i = b * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, mk.load(x, i, i < N) + 1.0, i < N)


@eas.kernel
def threads(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) + 1.0, i < N)


class Grid(unittest.TestCase):
    def refused(self, k, x, out, n, **meta):
        for device in DEVICES:
            with backend(device), self.assertRaisesRegex(ValueError, rf"test_grid.py:\d+: kernel {k.__name__}: .*N = {n}.*_grid=\(rows,\)"):
                k(x, out, n, **meta)
        with self.assertRaisesRegex(ValueError, rf"kernel {k.__name__}: .*_grid"):
            k(x, out, n, **meta, _interpret=True)
        self.assertFalse(out.any())

    def test_printing_kernels(self):
        @eas.kernel
        def talks(x, out, N, BLOCK: eas.constexpr):
            r, i = mk.program_id(0), mk.arange(0, BLOCK)
            mk.print("row", r)
            mk.store(out, r * N + i, mk.load(x, r * N + i, i < N), i < N)

        x = np.ones((8, 48), "f4")
        self.refused(talks, x, np.zeros_like(x), 48, BLOCK=64)

    def test_rows(self):
        x = np.random.default_rng(0).normal(size=(64, 48)).astype("f4")
        self.refused(softmax, x, np.zeros_like(x), 48, BLOCK=64)
        self.refused(row_sums, x, np.zeros(64, "f4"), 48, BLOCK=64)
        self.refused(rows_of_threads, x, np.zeros_like(x), 48, BLOCK=32)
        self.refused(rows_without_lanes, x, np.zeros_like(x), 48)
        self.refused(whole_rows, x, np.zeros_like(x), 64, COLS=48)

    def test_with_a_grid(self):
        x = np.random.default_rng(0).normal(size=(64, 48)).astype("f4")
        softmax(x, out := np.zeros_like(x), 48, BLOCK=64, _grid=64)
        np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)
        with self.assertRaisesRegex(ValueError, "_grid"):
            softmax(x, out, 48, BLOCK=64)
        softmax(x, out := np.zeros_like(x), 48, BLOCK=64, _nthreads=64 * 64)
        np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)
        with self.assertRaisesRegex(ValueError, "_grid"):
            softmax(x, out, 48, BLOCK=64)

    def test_one_row_is_covered(self):
        x = np.ones((1, 48), "f4")
        for _ in range(2):
            softmax(x, out := np.zeros_like(x), 48, BLOCK=64)
            np.testing.assert_allclose(out.sum(), 1, rtol=1e-5)

    def test_captured_and_checked(self):
        x = np.ones((4, 48), "f4")
        with self.assertRaisesRegex(ValueError, "_grid"):
            eas.check(softmax, x, 0 * x, 48, BLOCK=64)
        with self.assertRaisesRegex(ValueError, "_grid"), eas.capture():
            softmax(x, 0 * x, 48, BLOCK=64)

    def test_programs_over_blocks(self):
        x = np.ones(1000, "f4")
        for k, n in ((add_one, 1000), (add_one, 300), (threads, 1000), (threads, 300), (unmasked, 512), (strided, 1000)):
            out = np.zeros(1000, "f4")
            k(x, out, n, BLOCK=64)
            self.assertEqual(out.sum(), 2 * n, k)
        block_sums(x, out := np.zeros(100, "f4"), 1000, BLOCK=64)
        self.assertEqual(out.sum(), 1000)
        element(x, out := np.zeros(1000, "f4"), 10)
        self.assertEqual(out.sum(), 20)
        whole_rows(x, out := np.zeros(1000, "f4"), 1000, COLS=50)  # N counts elements
        self.assertEqual(out.sum(), 2000)


if __name__ == "__main__":
    unittest.main()
