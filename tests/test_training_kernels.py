"""What a training step becomes: convolutions whose filters' gradients read windows in place, pooling as
views, products of loops done before them, groups of element-wise kernels that are one, and the order of steps
that keeps memory low. Results against torch."""

import re
import unittest

import numpy as np
import torch
from torch.nn import functional as TF

import eager
from eager import Tensor


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def kernels(f, *args):
    """The text of what a compiled function runs."""
    c = eager.compile(f)
    c(*args)
    return str(c.show())


class Convolutions(unittest.TestCase):
    def check(self, n, h, w, cin, cout, size=3, stride=1, padding=1, dilation=1, groups=1, dtype=np.float32):
        x, f = normal(n, h, w, cin, dtype=dtype), normal(size, size, cin // groups, cout, seed=1, dtype=dtype) / size
        tx, tf = (torch.tensor(a, requires_grad=True) for a in (x, f))
        want = TF.conv2d(tx.permute(0, 3, 1, 2), tf.permute(3, 2, 0, 1), stride=stride, padding=padding, dilation=dilation, groups=groups)
        ct = normal(*want.permute(0, 2, 3, 1).shape, seed=2, dtype=dtype)
        want.backward(torch.tensor(ct).permute(0, 3, 1, 2))
        loss = lambda x, f: (eager.conv2d(x, f, stride=stride, padding=padding, dilation=dilation, groups=groups) * Tensor.constant(ct)).sum()  # noqa: E731
        grads = eager.grad(loss, (0, 1))(Tensor.constant(x), Tensor.constant(f))
        tol = 1e-9 if dtype == np.float64 else 2e-4
        for g, t in zip(grads, (tx, tf)):
            scale = float(t.grad.abs().max())
            np.testing.assert_allclose(g.numpy() / scale, t.grad.numpy() / scale, rtol=0, atol=tol)

    def test_gradients(self):
        cases = [
            dict(n=4, h=8, w=8, cin=3, cout=8),
            dict(n=6, h=9, w=13, cin=5, cout=70),  # two strips of channels that overlap, parts of 6 images
            dict(n=2, h=7, w=97, cin=2, cout=4),  # no block of pixels divides a row
            dict(n=8, h=6, w=128, cin=2, cout=4),  # two blocks of pixels a row
            dict(n=3, h=8, w=8, cin=100, cout=8),  # several bands of a row of taps
            dict(n=5, h=16, w=16, cin=4, cout=6, stride=2),
            dict(n=4, h=12, w=12, cin=4, cout=6, dilation=2, padding=2),
            dict(n=4, h=10, w=10, cin=6, cout=6, groups=2),
            dict(n=4, h=8, w=8, cin=6, cout=6, size=1, padding=0),
            dict(n=1, h=8, w=8, cin=3, cout=4),
            dict(n=4, h=8, w=8, cin=3, cout=8, dtype=np.float64),
        ]
        for case in cases:
            with self.subTest(**case):
                self.check(**case)

    def test_what_follows_a_product_is_in_its_kernel(self):
        """Pooling cannot join the product; the activation before it can, and pooling reads the product's
        memory through a reshape."""
        x, f = normal(4, 8, 8, 5), normal(3, 3, 5, 12, seed=1)
        pooled = lambda x, f: eager.max_pool2d(eager.conv2d(x, f, padding=1).relu(), 2)  # noqa: E731
        text = kernels(pooled, Tensor.constant(x), Tensor.constant(f))
        product = re.search(r"kernel \d+: matmul.*?(?=kernel \d+:)", text, re.S)
        self.assertIn("relu", product.group(0) if product else text)
        want = TF.max_pool2d(TF.conv2d(torch.tensor(x).permute(0, 3, 1, 2), torch.tensor(f).permute(3, 2, 0, 1), padding=1).relu(), 2)
        np.testing.assert_allclose(eager.compile(pooled)(Tensor.constant(x), Tensor.constant(f)).numpy(), want.permute(0, 2, 3, 1).numpy(), rtol=1e-5, atol=1e-5)

    def test_reshapes_of_stored_products(self):
        """Reshaped, turned and reduced along any axes: the product's memory is read with the strides of the
        reshape."""
        a, b = normal(24, 7), normal(7, 30, seed=1)
        for shape in ((2, 12, 30), (4, 6, 5, 6), (24, 2, 3, 5), (3, 8, 30), (720,), (8, 90), (1, 24, 1, 30)):
            for turned in (False, True):
                for axis in range(len(shape)):
                    with self.subTest(shape=shape, turned=turned, axis=axis):
                        order = tuple(reversed(range(len(shape)))) if turned else tuple(range(len(shape)))
                        f = lambda a, b: (a @ b).reshape(shape).permute(order).sum(axis)  # noqa: B023, E731
                        want = (a.astype(np.float64) @ b).reshape(shape).transpose(order).sum(axis)
                        np.testing.assert_allclose(eager.compile(f)(Tensor.constant(a), Tensor.constant(b)).numpy(), want, rtol=1e-4, atol=1e-4)

    def test_windows_are_not_stored(self):
        x, f = Tensor.constant(normal(8, 16, 16, 8)), Tensor.constant(normal(3, 3, 8, 16, seed=1))
        b = Tensor.constant(normal(16, seed=2))
        text = kernels(eager.grad(lambda f, b: (eager.relu(eager.conv2d(x, f, padding=1) + b) ** 2).sum(), (0, 1)), f, b)
        self.assertFalse([line for line in text.splitlines() if "window" in line and "memory" in line], text)
        # the bias and the activation are part of the product's kernel
        product = re.search(r"matmul over \(2048, 16\)\n(.*?)\nkernel", text, re.S).group(1)
        self.assertIn("add", product)
        self.assertIn("relu", product)

    def test_under_vmap(self):
        x, f = normal(3, 2, 8, 8, 2), normal(3, 3, 2, 4, seed=1)
        one = lambda x, f: (eager.conv2d(x, f, padding=1) ** 2).sum()  # noqa: E731
        got = eager.vmap(eager.grad(one, 1), in_axes=(0, None))(Tensor.constant(x), Tensor.constant(f)).numpy()
        want = np.stack([eager.grad(one, 1)(Tensor.constant(a), Tensor.constant(f)).numpy() for a in x])
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4)


class Pooling(unittest.TestCase):
    def test_gradients(self):
        for size, stride, padding, h in ((2, 2, 0, 8), (2, 2, 0, 9), (3, 3, 1, 11), (3, 2, 1, 9), (2, 1, 0, 7)):
            with self.subTest(size=size, stride=stride, h=h):
                x = np.random.default_rng(3).integers(-3, 4, (2, h, h, 5)).astype(np.float32)  # with ties
                t = torch.tensor(x, requires_grad=True)
                for name, theirs in (("max_pool2d", TF.max_pool2d), ("avg_pool2d", TF.avg_pool2d)):
                    t.grad = None
                    y = theirs(t.permute(0, 3, 1, 2), size, stride, padding)
                    ct = normal(*y.shape)
                    y.backward(torch.tensor(ct))
                    back = Tensor.constant(np.ascontiguousarray(ct.transpose(0, 2, 3, 1)))
                    mine = getattr(eager, name)
                    g = eager.grad(lambda x: (mine(x, size, stride=stride, padding=padding) * back).sum())(Tensor.constant(x))  # noqa: B023
                    np.testing.assert_allclose(g.numpy(), t.grad.numpy(), rtol=1e-5, atol=1e-5)

    def test_nan_takes_it(self):
        x = np.zeros((1, 4, 4, 1), np.float32)
        x[0, 1, 0, 0] = np.nan
        g = eager.grad(lambda x: eager.max_pool2d(x, 2)[:, 1:].sum())(Tensor.constant(x)).numpy()
        self.assertEqual(g.sum(), 2)
        g = eager.grad(lambda x: eager.max_pool2d(x, 2).sum())(Tensor.constant(x)).numpy()
        self.assertEqual(g[0, 1, 0, 0], 1)


class Loops(unittest.TestCase):
    def test_products_are_done_before(self):
        xs, w, h = (Tensor.constant(normal(*s, seed=i)) for i, s in enumerate(((12, 4, 8), (8, 16), (4, 16))))

        def f(xs, w, h):
            return eager.scan(lambda h, x: (eager.tanh(x @ w + h), (x * 2).sum()), h, xs)

        text = kernels(f, xs, w, h)
        self.assertEqual(text.count("matmul over (48, 16)"), 1, text)
        self.assertEqual(text.count("kernel"), text.count("matmul over") + text.count("map over") + text.count("reduce over") + 1, text)
        want, sums = h.numpy(), []
        for x in xs.numpy():
            want = np.tanh(x @ w.numpy() + want)
            sums.append((x * 2).sum())
        for reverse in (False, True):
            (last, got) = eager.scan(lambda h, x: (eager.tanh(x @ w + h), (x * 2).sum()), h, xs, reverse=reverse)
            if not reverse:
                np.testing.assert_allclose(last.numpy(), want, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got.numpy(), sums, rtol=1e-4, atol=1e-4)

    def test_what_a_trip_changes_stays_inside(self):
        xs, w = Tensor.constant(normal(6, 3, 4)), Tensor.constant(normal(4, 4, seed=1))

        def step(m, x):
            return m * 0.5 + 0.1, x @ m  # the matrix is carried

        _, got = eager.scan(step, w, xs)
        m, want = w.numpy(), []
        for x in xs.numpy():
            want.append(x @ m)
            m = m * 0.5 + 0.1
        np.testing.assert_allclose(got.numpy(), np.stack(want), rtol=1e-5, atol=1e-5)

    def test_gradients(self):
        xs, w, u = normal(7, 3, 4), normal(4, 5, seed=1) * 0.5, normal(5, 5, seed=2) * 0.5

        def f(w, u):
            _, hs = eager.scan(lambda h, x: (eager.tanh(x @ w + h @ u),) * 2, Tensor.zeros((3, 5)), Tensor.constant(xs))
            return (hs * hs).sum()

        tw, tu = torch.tensor(w, requires_grad=True), torch.tensor(u, requires_grad=True)
        h, total = torch.zeros(3, 5), 0
        for x in torch.tensor(xs):
            h = torch.tanh(x @ tw + h @ tu)
            total = total + (h * h).sum()
        total.backward()
        for g, t in zip(eager.grad(f, (0, 1))(Tensor.constant(w), Tensor.constant(u)), (tw, tu)):
            np.testing.assert_allclose(g.numpy(), t.grad.numpy(), rtol=2e-4, atol=2e-4)


class Kernels(unittest.TestCase):
    def test_one_kernel_for_what_reads_itself(self):
        x, y = (Tensor.constant(normal(64, 48, seed=i)) for i in range(2))

        def f(x, y):
            a = eager.tanh(x + y)  # three read it
            return a * x, a * y, eager.exp(a) - a

        text = kernels(f, x, y)
        self.assertEqual(text.count("map over"), 1, text)
        a = np.tanh(x.numpy() + y.numpy())
        for got, want in zip(f(x, y), (a * x.numpy(), a * y.numpy(), np.exp(a) - a)):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)

    def test_others_between_them(self):
        """b cannot run before the product it reads, though it reads a at its own index."""
        x, w = Tensor.constant(normal(48, 48)), Tensor.constant(normal(48, 48, seed=1) * 0.1)

        def f(x):
            a = eager.tanh(x * 2)
            p = eager.relu(a @ w)
            b = a * p + x
            return a.sum(), eager.exp(b), b @ w, p - a

        a = np.tanh(x.numpy() * 2)
        p = np.maximum(a @ w.numpy(), 0)
        b = a * p + x.numpy()
        for got, want in zip(eager.compile(f)(x), (a.sum(), np.exp(b), b @ w.numpy(), p - a)):
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-4, atol=2e-4)

    def test_memory_of_a_training_step(self):
        layers, rows, width = 8, 512, 128
        p = [Tensor.constant(normal(width, width, seed=i) / 12) for i in range(layers)]
        x = Tensor.constant(normal(rows, width))

        def loss(p, x):
            for w in p:
                x = eager.relu(x @ w)
            return (x * x).sum()

        text = kernels(eager.grad(loss), p, x)
        peak = int(re.search(r"(\d+) bytes at most", text).group(1))
        activation, weights = rows * width * 4, layers * width * width * 4
        # the activations of all layers, the gradients, and a few more: what comes back, and packed factors
        self.assertLess(peak, (layers + 4) * activation + weights)


class Splits(unittest.TestCase):
    """The gradient of a tensor that was split is a sum of padded parts, and runs as a concatenation."""

    def test_concatenation_with_the_bits_of_the_sum(self):
        for n, axis, shape in ((2, 0, (4, 6)), (4, 1, (3, 8)), (3, -1, (2, 5, 9)), (8, 0, (16, 2))):
            for dtype in (np.float32, np.float64, np.float16):
                with self.subTest(n=n, axis=axis, dtype=dtype.__name__):
                    weights = [normal(*np.split(np.zeros(shape), n, axis)[0].shape, seed=i, dtype=dtype) for i in range(n)]
                    weights[0][...] = -0.0
                    loss = lambda x: sum((part * Tensor.constant(w)).sum() for part, w in zip(eager.split(x, n, axis=axis), weights))  # noqa: E731
                    x = Tensor.constant(normal(*shape, seed=9, dtype=dtype))
                    text = kernels(eager.grad(loss), x)
                    self.assertIn("concatenate", text)
                    self.assertNotIn("pad_constant", text)
                    got = eager.compile(eager.grad(loss))(x).numpy()
                    np.testing.assert_array_equal(got, np.concatenate(weights, axis))
                    self.assertFalse(np.signbit(got[got == 0]).any())  # -0.0 + 0.0 is 0.0

    def test_parts_that_leave_a_gap_or_overlap_stay_a_sum(self):
        x = Tensor.constant(normal(8))
        gap = eager.compile(eager.grad(lambda x: (x[0:2] * 2 + x[4:6] * 3).sum()))(x)
        np.testing.assert_array_equal(gap.numpy(), [2, 2, 0, 0, 3, 3, 0, 0])
        overlap = eager.compile(eager.grad(lambda x: (x[0:5] * 2).sum() + (x[3:8] * 3).sum()))(x)
        np.testing.assert_array_equal(overlap.numpy(), [2, 2, 2, 5, 5, 3, 3, 3])


class LoopGradients(unittest.TestCase):
    def test_gradients_of_weights_and_biases_follow_the_loop(self):
        """A trip of a recurrent layer's way back has no kernel for the gradients of its weights and its bias.
        """
        steps, batch, width = 5, 4, 8
        xs, w, b = normal(steps, batch, width), normal(width, width, seed=1) / 3, normal(width, seed=2)

        def loss(w, b, xs):
            _, hs = eager.scan(lambda h, x: (eager.tanh(x + h @ w + b),) * 2, Tensor.zeros((batch, width)), xs)
            return (hs * hs).sum()

        args = [Tensor.constant(a) for a in (w, b, xs)]
        text = kernels(eager.grad(loss, (0, 1, 2)), *args)
        back = text[text.rindex("a trip:") :]
        trip = "\n".join(line for line in back.splitlines() if line.startswith("        "))
        self.assertNotIn("reduce", trip)
        self.assertEqual(trip.count("= matmul"), 1)
        tw, tb, txs = (torch.tensor(a, requires_grad=True) for a in (w, b, xs))
        h, total = torch.zeros(batch, width), 0
        for x in txs:
            h = torch.tanh(x + h @ tw + tb)
            total = total + (h * h).sum()
        total.backward()
        for got, want in zip(eager.compile(eager.grad(loss, (0, 1, 2)))(*args), (tw, tb, txs)):
            np.testing.assert_allclose(got.numpy(), want.grad.numpy(), rtol=2e-4, atol=2e-5)


if __name__ == "__main__":
    unittest.main()
