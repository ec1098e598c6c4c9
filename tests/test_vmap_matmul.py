"""Products in lanes."""

import itertools
import unittest

import numpy as np

from eager import Tensor, vmap

RNG = np.random.default_rng(5)


def rand(*shape):
    return RNG.normal(size=shape).astype(np.float32)


class Products(unittest.TestCase):
    def same(self, got, want):
        self.assertEqual(tuple(got.shape), want.shape)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)

    def test_every_rank_and_axis(self):
        shapes = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((2, 3), (5, 3, 4))]
        for (s, t), (i, j) in itertools.product(shapes, [(0, None), (None, 0), (0, 0), (1, 0), (-1, -1)]):
            a, b = rand(*s), rand(*t)
            x = a if i is None else np.stack([a, 2 * a, a - 1], i)
            y = b if j is None else np.stack([b, b + 1, 3 * b], j)
            rows = [(a if i is None else np.take(x, k, i)) @ (b if j is None else np.take(y, k, j)) for k in range(3)]
            with self.subTest(shapes=(s, t), axes=(i, j)):
                self.same(vmap(lambda p, q: p @ q, in_axes=(i, j))(Tensor.constant(x), Tensor.constant(y)), np.stack(rows))

    def test_layers(self):
        x, w, b = rand(10, 5), rand(5, 8), rand(8)
        layer = lambda v: (v @ Tensor.constant(w) + Tensor.constant(b)).relu()  # noqa: E731
        self.same(vmap(layer)(Tensor.constant(x)), np.maximum(x @ w + b, 0))

    def test_members_of_an_ensemble(self):
        x, w = rand(10, 5), rand(4, 5, 8)
        self.same(vmap(lambda m: Tensor.constant(x) @ m)(Tensor.constant(w)), np.einsum("ni,eio->eno", x, w))
        each = vmap(lambda m: vmap(lambda v: v @ m)(Tensor.constant(x)))
        self.same(each(Tensor.constant(w)), np.einsum("ni,eio->eno", x, w))

    def test_nested(self):
        a, b = rand(2, 3, 4, 5), rand(2, 5, 6)
        self.same(vmap(lambda m, n: vmap(lambda p: p @ n)(m))(Tensor.constant(a), Tensor.constant(b)), a @ b[:, None])

    def test_attention(self):
        q, k, v = rand(2, 6, 4), rand(2, 6, 4), rand(2, 6, 4)
        import eager

        def head(q, k, v):
            return eager.softmax(q @ k.T * 0.5) @ v

        s = q @ k.swapaxes(1, 2) * 0.5
        p = np.exp(s - s.max(-1, keepdims=True))
        self.same(vmap(head)(*map(Tensor.constant, (q, k, v))), p / p.sum(-1, keepdims=True) @ v)


if __name__ == "__main__":
    unittest.main()
