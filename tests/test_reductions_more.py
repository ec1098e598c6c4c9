"""Reductions that are computed in an order of their own: places of extremes in long rows, counts in bytes,
diagonals as every n-th element. Against NumPy."""

import unittest

import numpy as np

import eager

rng = np.random.default_rng(0)


class Extremes(unittest.TestCase):
    def check(self, x, axis=-1):
        for ours, theirs in ((eager.argmax, np.argmax), (eager.argmin, np.argmin)):
            np.testing.assert_array_equal(ours(eager.constant(x), axis).numpy(), theirs(x, axis))

    def test_long_rows(self):
        for n in (1000, 4097, 70000, 100003):
            for dtype in (np.float32, np.float64, np.int32, np.uint8):
                self.check((rng.standard_normal(n) * 50 + 100).astype(dtype))

    def test_the_first_of_equals_and_of_nans(self):
        x = np.zeros(70001, np.float32)
        self.check(x)
        x[[5, 69000, 69001]] = 3, 3, -3
        self.check(x)
        for at in ([70000], [0, 70000], [33333, 33334], [1600, 1599]):
            y = x.copy()
            y[at] = np.nan
            self.check(y)
        self.check(np.full(70001, -np.inf, np.float32))

    def test_rows_and_columns(self):
        x = rng.integers(-5, 5, (7, 9000)).astype(np.float32)
        x[3, 100] = x[4, 8999] = np.nan
        for axis in (0, 1):
            self.check(x, axis)
        self.check(rng.standard_normal((3, 20, 33, 5)).astype(np.float32), 2)


class Counts(unittest.TestCase):
    def test_long_rows(self):
        for n in (65537, 100000, 102400, 99991, 131072):  # one of them a prime
            for p in (0.0, 0.5, 1.0):
                x = rng.random(n) < p
                for y in (x, x.astype(np.uint8) * 200, x.astype(np.float32) * -0.5):
                    self.assertEqual(int(eager.count_nonzero(eager.constant(y)).numpy()), int(x.sum()))
        x = rng.random((3, 102400)) < 0.7
        np.testing.assert_array_equal(eager.count_nonzero(eager.constant(x), 1).numpy(), x.sum(1))
        np.testing.assert_array_equal(eager.count_nonzero(eager.constant(x.T), 0).numpy(), x.sum(1))
        self.assertEqual(int(eager.count_nonzero(eager.constant(x)).numpy()), int(x.sum()))


class Diagonals(unittest.TestCase):
    def test_offsets_and_axes(self):
        x = rng.standard_normal((4, 5, 6, 3)).astype(np.float32)
        for a, b in ((0, 1), (1, 0), (2, 3), (3, 2), (1, 3), (3, 0), (0, 2)):
            for offset in (-7, -3, -1, 0, 1, 2, 5, 9):
                for y in (eager.constant(x), eager.constant(x) * 1):
                    got = eager.diagonal(y, offset, a, b).numpy()
                    np.testing.assert_array_equal(got, np.diagonal(x, offset, a, b), err_msg=f"{a} {b} {offset}")

    def test_gradient(self):
        x = eager.constant(rng.standard_normal((4, 6)).astype(np.float32))
        got = eager.grad(lambda x: (eager.diagonal(x, 1) ** 2).sum())(x).numpy()
        np.testing.assert_allclose(got, np.where(np.eye(4, 6, 1) > 0, 2 * x.numpy(), 0), rtol=1e-6)


if __name__ == "__main__":
    unittest.main()
