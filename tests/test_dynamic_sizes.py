"""Dynamic dims: slices by a size, questions about sizes, names that are not there."""

import unittest

import numpy as np

import eager
from eager import Tensor

POS = np.arange(64 * 4, dtype=np.float32).reshape(64, 4)


class Sizes(unittest.TestCase):
    def test_positional_embedding(self):
        pos = Tensor.constant(POS)
        f = eager.compile(lambda x: x + pos[: x.shape[0]], dynamic_dims={0: {0: "S"}}, fullgraph=True)
        for n in (3, 10, 64, 1, 0):
            np.testing.assert_array_equal(f(Tensor.ones((n, 4))).numpy(), POS[:n] + 1)
        self.assertEqual(f.stats.misses, 1)
        self.assertEqual(f.explain()[0]["sizes"], ["min(S, 64) == S"])
        with self.assertRaisesRegex(ValueError, "broadcast"):
            f(Tensor.ones((65, 4)))

    def test_embedding_in_the_middle_and_products(self):
        pos, w = Tensor.constant(POS), Tensor.constant(POS.T.copy())
        f = eager.compile(lambda x: eager.softmax((x + pos[None, : x.shape[1]]) @ w[:, : x.shape[1]]), dynamic_dims={0: {0: "B", 1: "S"}}, fullgraph=True)
        for b, n in ((2, 5), (1, 64), (3, 1)):
            z = (1 + POS[None, :n]) @ POS.T[:, :n] * np.ones((b, 1, 1))
            e = np.exp(z - z.max(-1, keepdims=True))
            np.testing.assert_allclose(f(Tensor.ones((b, n, 4))).numpy(), e / e.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
        self.assertEqual(f.stats.misses, 1)

    def test_comparisons_are_guards(self):
        def f(x):
            n = x.shape[0]
            return x * 2 if n > 4 else x * 3 if n == 1 else x * 5

        g = eager.compile(f, dynamic_dims={0: {0: "S"}}, fullgraph=True)
        for n in (3, 10, 2, 100, 1, 4, 5, 0):
            self.assertEqual(g(Tensor.ones((n,))).tolist(), f(np.ones(n, np.float32)).tolist())
        self.assertEqual(g.stats.misses, 3)
        self.assertEqual(g.explain()[0]["sizes"], ["not S > 4", "not S == 1"])
        self.assertIn("sizes", g.explain()[1]["cause"])

    def test_every_comparison(self):
        asks = [lambda n: n < 4, lambda n: n <= 4, lambda n: n >= 4, lambda n: n != 4, lambda n: 4 < n, lambda n: 4 == n, lambda n: n % 2 == 0, lambda n: 2 * n > 9, bool, lambda n: n // 2 > 1]
        for ask in asks:
            g = eager.compile(lambda x, ask=ask: x + (1.0 if ask(x.shape[0]) else 2.0), dynamic_dims={0: {0: "S"}}, fullgraph=True)
            for n in (1, 3, 4, 5, 8):
                self.assertEqual(g(Tensor.zeros((n,))).tolist(), [1.0 if ask(n) else 2.0] * n)
            self.assertLessEqual(g.stats.misses, 2)

    def test_numbers_of_sizes(self):
        g = eager.compile(lambda x: x / float(x.shape[0]) + int(x.shape[0]), dynamic_dims={0: {0: "S"}}, fullgraph=True)
        for n in (2, 4, 2):
            self.assertEqual(g(Tensor.ones((n,))).tolist(), [1 / n + n] * n)
        self.assertEqual(g.stats.misses, 2)

    def test_results_whose_strides_no_input_has(self):
        f = eager.compile(lambda x, y: (x * y).sum(axis=2), dynamic_dims={0: {2: "n", 3: "n"}, 1: {2: "n", 3: "n"}})
        g = eager.compile(lambda x: x.max(axis=(0, 2)), dynamic_dims={0: {1: "n", 3: "n"}})
        for n in (3, 1, 6):
            a, b = (np.random.default_rng(n + k).random((4, 5, n, n), np.float32) for k in range(2))
            np.testing.assert_allclose(f(Tensor(a), Tensor(b)).numpy(), (a * b).sum(2), rtol=1e-5)
            np.testing.assert_array_equal(g(Tensor(a.transpose(1, 2, 0, 3))).numpy(), a.transpose(1, 2, 0, 3).max((0, 2)))

    def test_outside_of_a_trace(self):
        t = Tensor.ones(("batch", 2))
        with self.assertRaisesRegex(TypeError, "no value"):
            t.shape[0] > 4  # noqa: B015
        self.assertFalse(t.shape[0] == 4)
        with self.assertRaisesRegex(ValueError, "batch"):
            t.numpy()

    def test_names_that_are_not_there(self):
        x = Tensor.ones((3,))
        for dims, args in (({3: {0: "S"}}, (x,)), ({"x": {0: "S"}}, (x,)), ({1: {0: "S"}}, (x, 2.0)), ({-1: {0: "S"}}, (x,))):
            with self.assertRaisesRegex(ValueError, "dynamic_dims names argument"):
                eager.compile(lambda *a: a[0] * 2, dynamic_dims=dims)(*args)
        with self.assertRaisesRegex(ValueError, "dynamic_dims names argument"):
            eager.compile(lambda x: x * 2, dynamic_dims={0: {0: "S"}})(x=x)


if __name__ == "__main__":
    unittest.main()
