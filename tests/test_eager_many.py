"""Expressions of more tensors than a kernel has parameters: fusion splits by parameters, on every device by
its own limit."""

import unittest

import numpy as np
from support import DEVICES

import eager
from eager import Tensor


class Many(unittest.TestCase):
    def check(self, device, n):
        xs = [Tensor.constant(np.full((3,), float(i), np.float32), device=device) for i in range(n)]
        want = float(sum(range(n)))
        np.testing.assert_allclose(sum(xs[1:], xs[0]).numpy(), want, rtol=1e-5)
        top = xs[0]
        for x in xs:
            top = eager.maximum(top, x)
        np.testing.assert_array_equal((top - sum(xs[1:], xs[0]) * 0).numpy(), n - 1)
        f = eager.compile(lambda ts: sum(ts[1:], ts[0]).sum(), fullgraph=True)
        np.testing.assert_allclose(f(xs).item(), 3 * want, rtol=1e-5)

    def test_on_every_device(self):
        for device in DEVICES:
            with self.subTest(device=device):
                self.check(device, 40 if device in ("mps", "metal") else 300)

    def test_chains_of_shifted_reads(self):
        """Each link reads the one before at two places: computed where they are used, they would be 2^16
        copies of the code."""
        x = np.random.default_rng(0).random(1 << 16).astype(np.float32)
        y, want = Tensor(x), x
        for k in range(16):
            y = y * 0.5 + eager.roll(y, 1 << k, 0) * 0.5 + eager.sin(y) * 0
            want = want * np.float32(0.5) + np.roll(want, 1 << k) * np.float32(0.5)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-4)
        g = eager.grad(lambda x: eager.cumprod(x, 0).sum())(Tensor(np.full(2000, 0.5, np.float64)))
        np.testing.assert_allclose(g.numpy()[:3], [2, 1, 0.5], rtol=1e-9)

    def test_results_beside_each_other(self):
        xs = [Tensor.constant(np.full((3,), float(i), np.float32)) for i in range(400)]
        ys = [sum(xs[i * 50 + 1 : i * 50 + 50], xs[i * 50]) for i in range(8)]
        eager.realize_all(*ys)
        self.assertEqual([y.numpy()[0] for y in ys], [float(sum(range(i * 50, i * 50 + 50))) for i in range(8)])

    def test_after_a_product_and_before_a_reduction(self):
        xs = [Tensor.constant(np.full((4,), float(i), np.float32)) for i in range(300)]
        y = Tensor.ones((2, 4)) @ Tensor.ones((4, 4))
        for x in xs:
            y = y + x
        want = 4 + sum(range(300))
        np.testing.assert_allclose(y.numpy(), want)
        np.testing.assert_allclose(eager.softmax(y - want).numpy(), 0.25)

    def test_shared_tensors_count_once(self):
        a, b = Tensor.ones((3,)), Tensor.ones((3,)) * 0.5
        eager.realize_all(a, b)
        y = a
        for _ in range(200):
            y = y * b + a
        before = eager.stats()["steps"]
        y.realize()
        self.assertLessEqual(eager.stats()["steps"] - before, 2)


if __name__ == "__main__":
    unittest.main()
