"""Indexing: an ellipsis for no axis, slices whose start is traced, and what is said of indices out of range.
"""

import itertools
import unittest

import numpy as np

import eager
from eager import Tensor


class EmptyEllipsis(unittest.TestCase):
    a = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    i, j = np.array([0, 1, 1]), np.array([[1], [0]])

    def keys(self, i):
        j = self.j
        three = [
            (slice(None), i, ..., j), (i, ..., j), (0, ..., i, slice(None)), (i, ..., 1), (slice(None), i, ..., 2, slice(1, 3)), (slice(None), i, ..., j, None), (None, i, ..., j, slice(None)),
            (slice(None), slice(None), i, ..., j), (i, j, ..., i, i), (slice(None), np.array([True, False, True]), ..., np.array([0, 1])), (slice(None), i, j, ...), (..., i, j),
        ]  # fmt: skip
        return three

    def test_getting(self):
        for k, key in itertools.product((2, 3, 4), self.keys(self.i)):
            a = self.a[(0,) * (4 - k)]
            try:
                want = a[key]
            except IndexError:
                continue
            got = Tensor.constant(a)[key]
            self.assertEqual(tuple(got.shape), want.shape, (k, key))
            np.testing.assert_array_equal(got.numpy(), want)

    def test_setting(self):
        for k, key in itertools.product((2, 3, 4), self.keys(np.array([1, 0]))):  # no place twice
            a = self.a[(0,) * (4 - k)].copy()
            try:
                shape = a[key].shape
            except IndexError:
                continue
            for v in (np.random.default_rng(0).random(shape).astype(np.float32), np.float32(7), np.arange(shape[-1], dtype=np.float32)):
                t, b = Tensor.constant(a), a.copy()
                t[key], b[key] = v, v
                np.testing.assert_array_equal(t.numpy(), b, err_msg=str((k, key)))


class TracedSlices(unittest.TestCase):
    def setUp(self):
        self.a = np.arange(40, dtype=np.float32).reshape(10, 4)
        self.x = Tensor.constant(self.a)

    def test_lengths_that_are_known(self):
        for f in (
            lambda x, i: x[i : i + 3], lambda x, i: x[i - 1 : i + 2], lambda x, i: x[2 * i : 2 * (i + 1)], lambda x, i: x[i : i + 6 : 2], lambda x, i: x[i : 3 + i, 1],
            lambda x, i: x[i : i + 2, 1:3], lambda x, i: x[..., i : i + 1], lambda x, i: x[None, i : i + 2], lambda x, i: x[i : i + 2, i : i + 1], lambda x, i: x[i : i + 0],
            lambda x, i: x[i : i + 2, [0, 2]],
        ):  # fmt: skip
            g = eager.compile(f, fullgraph=True)
            for i in (1, 2):
                want = f(self.a, i)
                got = g(self.x, Tensor.constant(np.int32(i)))
                self.assertEqual(tuple(got.shape), want.shape)
                np.testing.assert_array_equal(got.numpy(), want)
            self.assertEqual(g.stats.misses, 1)

    def test_assignments(self):
        def f(x, i):
            x[i : i + 3, 1:] = 5.0
            return x.at[i : i + 2].add(1.0)

        g = eager.compile(f, fullgraph=True)
        for i in (0, 4):
            b = self.a.copy()
            b[i : i + 3, 1:] = 5
            b[i : i + 2] += 1
            np.testing.assert_array_equal(g(Tensor.constant(self.a), Tensor.constant(i)).numpy(), b)

    def test_loops_and_lanes(self):
        sums = eager.scan(lambda c, i: (c, self.x[i : i + 2].sum()), 0.0, eager.arange(4))[1]
        np.testing.assert_array_equal(sums.numpy(), [self.a[i : i + 2].sum() for i in range(4)])
        got = eager.vmap(lambda i: self.x[i : i + 2])(eager.arange(5))
        np.testing.assert_array_equal(got.numpy(), [self.a[i : i + 2] for i in range(5)])

    def test_no_room_is_an_error(self):
        g = eager.compile(lambda x, i: x[i : i + 3], fullgraph=True)
        for i in (8, -1, 100):
            with self.assertRaises(IndexError):
                g(self.x, Tensor.constant(i)).numpy()

    def test_lengths_that_are_not_known(self):
        for f in (lambda x, i: x[i:], lambda x, i: x[:i], lambda x, i: x[i : 2 * i]):
            with self.assertRaisesRegex(eager.GraphBreak, r"x\[i:i \+ n\]"):
                eager.compile(f, fullgraph=True)(self.x, Tensor.constant(2))
            np.testing.assert_array_equal(eager.compile(f)(self.x, Tensor.constant(2)).numpy(), f(self.a, 2))


if __name__ == "__main__":
    unittest.main()
