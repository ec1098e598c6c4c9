"""A load of a lane that no store needs is not out of bounds: the masks of stores reach the loads that only
feed them."""

import unittest

import numpy as np
from support import DEVICES, backend

import eas
from eas import mk

M, K = 10, 7
A = np.arange(M * K, dtype="f4").reshape(M, K)
X = np.ones(K, "f4")


@eas.kernel
def gemv(a, x, y, M, K, BM: eas.constexpr):
    row = mk.program_id(0) * BM + mk.arange(0, BM)
    base = row * K
    acc = mk.var(mk.zeros(BM))
    for k in mk.range(K):
        acc += mk.load(a, base + k) * mk.load(x, k)
    mk.store(y, row, acc, row < M)


@eas.kernel
def gemv_tiles(a, x, y, M, K, BM: eas.constexpr, BK: eas.constexpr):
    row = mk.program_id(0) * BM + mk.arange(0, BM)
    acc = mk.var(mk.zeros(BM))
    for k0 in mk.range(0, K, BK):
        k = k0 + mk.arange(0, BK)
        tile = mk.load(a, row[:, None] * K + k[None, :], (k < K)[None, :] & (row[:, None] >= 0))
        acc += mk.sum(tile * mk.load(x, k, k < K)[None, :], axis=1)
    mk.store(y, row, acc, row < M)


@eas.kernel
def gemv_dot(a, x, y, M, K, BM: eas.constexpr):
    row = mk.program_id(0) * BM + mk.arange(0, BM)
    mk.store(y, row, mk.dot(a, row * K, 1, x, 0, 1, K), row < M)


@eas.kernel
def gemv_threads(a, x, y, M, K, BM: eas.constexpr):
    row = mk.program_id(0) * BM + mk.tid(0, BM)
    acc = mk.var(0.0)
    for k in mk.range(K):
        acc += mk.load(a, row * K + k) * mk.load(x, k)
    with mk.if_(row < M):
        mk.store(y, row, acc)


@eas.kernel
def plain(x, y, N, B: eas.constexpr):
    i = mk.program_id(0) * B + mk.arange(0, B)
    mk.store(y, i, mk.exp(mk.load(x, i)) * 0.0 + 1.0, i < N)


@eas.kernel
def branches(x, y, N, B: eas.constexpr):
    i = mk.program_id(0) * B + mk.tid(0, B)
    v = mk.load(x, i)
    with mk.if_(i < N):
        with mk.if_(v > 3.0):
            mk.store(y, i, v)
        with mk.else_():
            mk.store(y, i, -v)


@eas.kernel
def two_stores(x, y, z, N, B: eas.constexpr):
    i = mk.program_id(0) * B + mk.arange(0, B)
    v = mk.load(x, i)
    mk.store(y, i, v, i < N)
    mk.store(z, i, v + 1.0, (i < N) & (i > 2))


@eas.kernel
def gather(x, index, y, N, B: eas.constexpr):
    i = mk.program_id(0) * B + mk.arange(0, B)
    at = mk.load(index, i, i < N, -1)
    mk.store(y, i, mk.load(x, at), at >= 0)


@eas.kernel
def needed(x, y, N, B: eas.constexpr):
    """A sum over all lanes needs all of them."""
    i = mk.program_id(0) * B + mk.arange(0, B)
    v = mk.load(x, i)
    mk.store(y, i, v - mk.sum(v), i < N)


@eas.kernel
def shifted(x, y, N, B: eas.constexpr):
    """The mask of the store is not where the load is wrong."""
    i = mk.program_id(0) * B + mk.arange(0, B)
    mk.store(y, i, mk.load(x, i + 5), i < N)


@eas.kernel
def next_round(x, y, N, B: eas.constexpr):
    """What is stored in one round was loaded in the round before: this round's mask says nothing about it."""
    i = mk.arange(0, B)
    v = mk.var(mk.zeros(B))
    for k in mk.range(3):
        mk.store(y, i, v, i < k * 4)
        v.set(mk.load(x, i))


class Demand(unittest.TestCase):
    def on_each(self, k, *args, want, **kw):
        for device in DEVICES:
            copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
            with self.subTest(device), backend(device):
                k(*copies, **kw)
                for got, w in zip(copies[-len(want) - self.scalars : len(copies) - self.scalars], want):
                    np.testing.assert_array_equal(got, w)

    def test_gemv(self):
        self.scalars = 2
        for k, meta in ((gemv, {}), (gemv_tiles, {"BK": 4}), (gemv_dot, {}), (gemv_threads, {})):
            with self.subTest(k.__name__):
                self.on_each(k, A, X, np.zeros(M, "f4"), M, K, want=[A.sum(1)], BM=8, _grid=2, **meta)

    def test_element_by_element(self):
        self.scalars = 1
        x = np.arange(10, dtype="f4")
        self.on_each(plain, x, np.zeros(10, "f4"), 10, want=[np.ones(10)], B=8)
        self.on_each(branches, x, np.zeros(10, "f4"), 10, want=[np.where(x > 3, x, -x)], B=8)
        self.on_each(two_stores, x, np.zeros(10, "f4"), np.zeros(10, "f4"), 10, want=[x, np.where(x > 2, x + 1, 0)], B=8)

    def test_places_by_data(self):
        self.scalars = 1
        index = np.array([3, -1, 0, 2, -1, 1], "i4")
        x = np.arange(4, dtype="f4")
        self.on_each(gather, x, index, np.zeros(6, "f4"), 6, want=[np.where(index >= 0, index, 0)], B=8)

    def test_what_is_needed_is_still_an_error(self):
        x = np.arange(10, dtype="f4")
        for device in DEVICES:
            with backend(device):
                for k, grid in ((needed, 2), (shifted, 2), (next_round, 1)):
                    y = np.zeros(10, "f4")
                    size = 16 if k is next_round else 8
                    with self.subTest(device, k=k.__name__), self.assertRaisesRegex(IndexError, "out of bounds"):
                        k(x, y, 10, B=size, _grid=grid)

    def test_check_agrees(self):
        x = np.arange(10, dtype="f4")
        self.assertTrue(eas.check(plain, x, 0 * x, 10, B=8).ok)
        self.assertTrue(eas.check(gemv, A, X, np.zeros(M, "f4"), M, K, BM=8, _grid=2).ok)
        self.assertFalse(eas.check(needed, x, 0 * x, 10, B=8, _grid=2).ok)

    def test_run_as_plain_python(self):
        x, y = np.arange(10, dtype="f4"), np.zeros(M, "f4")
        gemv(A, X, y, M, K, BM=8, _grid=2, _interpret=True)
        np.testing.assert_allclose(y, A @ X, rtol=1e-6)
        for k in (needed, shifted):
            with self.subTest(k=k.__name__), self.assertRaisesRegex(IndexError, "out of bounds"):
                k(x, np.zeros(10, "f4"), 10, B=8, _grid=2, _interpret=True)
        next_round(x, np.zeros(10, "f4"), 10, B=16, _grid=1, _interpret=True)  # no such lane is ever stored

    def test_what_a_marked_lane_may_do(self):
        @eas.kernel
        def fine(x, out, N, B: eas.constexpr):
            i = mk.arange(0, B)
            v = mk.load(x, i)  # lanes from N on are not there
            inside = i < N
            w = mk.where(inside, v, -1.0)
            s = mk.sum(mk.reshape(w, (2, B // 2)), axis=1)
            both = inside & (v > 2)
            mk.store(out, i, w + mk.sum(s), i < B)
            mk.store(out, i, 100.0, both)

        out = np.zeros(16, "f4")
        fine(np.arange(10, dtype="f4"), out, 10, B=16, _grid=1, _interpret=True)
        want = np.where(np.arange(16) < 10, np.arange(16), -1) + 39.0
        want[3:10] = 100
        np.testing.assert_array_equal(out, want)
        for f in (
            lambda x, out, i, v, n: mk.store(out, i, mk.cumsum(v), i < n + 1),
            lambda x, out, i, v, n: mk.store(out, i, 1.0, v > 2),
            lambda x, out, i, v, n: mk.store(out, 0, mk.sum(v)),
            lambda x, out, i, v, n: mk.store(out, mk.to_i32(v), 1.0),
            lambda x, out, i, v, n: mk.store(out, mk.arange(0, 2), mk.dot(mk.reshape(v, (2, 8)), mk.full((8, 1), 1.0))[:, 0]),
            lambda x, out, i, v, n: mk.atomic_add(out, i, v),
            lambda x, out, i, v, n: mk.store(out, 0, float(mk.sum(v))),
        ):

            @eas.kernel
            def wrong(x, out, N, B: eas.constexpr):
                i = mk.arange(0, B)
                f(x, out, i, mk.load(x, i), N)

            with self.assertRaisesRegex(IndexError, "out of bounds: index 10"):
                wrong(np.arange(10, dtype="f4"), np.zeros(16, "f4"), 10, B=16, _grid=1, _interpret=True)

    def test_debug_launches(self):
        x, y = np.arange(10, dtype="f4"), np.zeros(10, "f4")
        plain(x, y, 10, B=8, _debug=True)
        self.assertEqual(y.sum(), 10)


if __name__ == "__main__":
    unittest.main()
