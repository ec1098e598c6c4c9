"""Derivatives of attention: tile by tile, without a matrix of the size of the scores; and the kernels of a
transformer block."""

import io
import re
import unittest
from contextlib import redirect_stdout

import numpy as np
from support import DEVICES

import eager
from eager import Tensor


def shown(tree):
    text = io.StringIO()
    with redirect_stdout(text):
        eager.trace(tree)
    return text.getvalue()


def attention(q, k, v, causal=False, bias=None):
    s = (q @ k.swap_axes(-1, -2)) * 0.3
    s = s if bias is None else s + bias
    if causal:
        rows, cols = Tensor.arange(q.shape[-2]).reshape((q.shape[-2], 1)), Tensor.arange(k.shape[-2])
        s = eager.where(rows >= cols, s, -float("inf"))
    return eager.softmax(s, -1) @ v


def by_hand(q, k, v, ct, causal, bias):
    """Gradients of q, k and v in f64."""
    q, k, v, ct = (np.asarray(x, np.float64) for x in (q, k, v, ct))
    s = q @ np.swapaxes(k, -1, -2) * 0.3 + (0 if bias is None else bias)
    if causal:
        s = np.where(np.arange(s.shape[-2])[:, None] >= np.arange(s.shape[-1]), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = ct @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * 0.3
    return ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ ct


class Backward(unittest.TestCase):
    def data(self, batch, n, m, d, w, dtype):
        r = np.random.default_rng(n * m + d)
        return [r.standard_normal(s).astype(dtype) for s in (batch + (n, d), batch + (m, d), batch + (m, w), batch + (n, w))]

    def check(self, batch, n, m, d, w, dtype, causal=False, bias=False, device=None):
        arrays = self.data(batch, n, m, d, w, dtype)
        b = np.random.default_rng(1).standard_normal((n, m)).astype(dtype) if bias else None
        q, k, v, ct = (Tensor.constant(x, device=device) if device else Tensor(x) for x in arrays)
        extra = None if b is None else Tensor.constant(b, device=device) if device else Tensor(b)
        f = lambda q, k, v: (attention(q, k, v, causal, extra) * ct).sum()
        value, grads = eager.value_and_grad(f, argnums=(0, 1, 2), realize=False)(q, k, v)
        text = shown((value, grads))
        for got, want in zip(grads, by_hand(*arrays, causal, b)):
            np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=(2e-5 if dtype == "float32" else 1e-12) * np.abs(want).max())
        return text

    def test_every_shape(self):
        for case in (((), 100, 77, 16, 16), ((2, 3), 64, 64, 32, 24), ((3,), 130, 65, 8, 40), ((2,), 5, 7, 4, 4), ((), 33, 200, 256, 1)):
            for dtype in ("float32", "float64"):
                for causal, bias in ((False, False), (True, False), (False, True)):
                    with self.subTest(case=case, dtype=dtype, causal=causal, bias=bias):
                        if not (causal and case[2] > case[1]):  # columns without any row have no derivative by hand
                            text = self.check(*case, dtype, causal, bias)
                            if case[-1] > 1:  # a product with one column is a sum
                                self.assertEqual(text.count("attention backward"), 2)

    def test_on_every_device(self):
        for device in DEVICES:
            with self.subTest(device=device):
                self.check((2,), 40, 24, 8, 8, "float32", causal=True, device=device)

    def test_nothing_of_the_size_of_the_scores(self):
        text = self.check((), 512, 512, 16, 16, "float32")
        self.assertLess(int(re.search(r"(\d+) bytes at most", text)[1]), 512 * 512)
        self.assertNotRegex(text, r"\(512, 512\)  → memory")
        self.assertEqual(int(re.search(r"(\d+) kernels", text)[1]), 5)

    def test_one_gradient_alone(self):
        q, k, v, ct = self.data((2,), 40, 48, 8, 8, "float64")
        want = by_hand(q, k, v, ct, False, None)
        for i in range(3):
            f = lambda *a: (attention(*a) * Tensor(ct)).sum()
            np.testing.assert_allclose(eager.grad(f, argnums=i)(Tensor(q), Tensor(k), Tensor(v)).numpy(), want[i], atol=1e-12)

    def test_results_in_any_order(self):
        """The backward kernels read maxima and sums of rows that the forward kernel stores: it runs first,
        whatever is asked for first and whatever follows the product."""
        q, k, v, ct = self.data((2,), 40, 48, 8, 8, "float64")
        want = by_hand(q, k, v, ct, False, None)
        for follows in (lambda o: o.sum(), lambda o: o, lambda o: eager.tanh(o) + 1):
            for first in (True, False):
                with self.subTest(first=first):
                    Q, K, V = (Tensor(x) for x in (q, k, v))
                    out, pull = eager.vjp(lambda v: attention(Q, K, v) * Tensor(ct), V)  # noqa: B023
                    (g,) = pull(Tensor(np.ones_like(ct)))
                    both = [g, follows(out)]
                    eager.realize_all(*(both if first else both[::-1]))
                    np.testing.assert_allclose(g.numpy(), want[2], atol=1e-12)

    def test_what_somebody_else_looks_at_is_there(self):
        """Weights that are a result as well, or used otherwise: the matrix has memory then."""
        q, k, v, ct = (Tensor(x) for x in self.data((), 20, 24, 8, 8, "float64"))

        def f(q, k, v):
            p = eager.softmax((q @ k.swap_axes(-1, -2)) * 0.3, -1)
            return (p @ v * ct).sum() + (p * p).sum(), p

        (_, p), g = eager.value_and_grad(f, has_aux=True)(q, k, v)
        h = 1e-6
        e = np.zeros((20, 8))
        e[3, 2] = h
        up, down = (float(f(q + Tensor(s * e), k, v)[0].item()) for s in (1, -1))
        self.assertAlmostEqual(g.numpy()[3, 2], (up - down) / (2 * h), places=6)
        np.testing.assert_allclose(p.numpy().sum(-1), 1)

    def test_symbolic_sizes_vmap_and_second_derivatives(self):
        f = lambda q, k, v: (attention(q, k, v) ** 2).sum()
        g = eager.compile(lambda q, k, v: eager.grad(f)(q, k, v), dynamic_dims={0: {0: "n"}, 1: {0: "m"}, 2: {0: "m"}})
        for n, m in ((5, 9), (70, 33), (1, 2)):
            q, k, v, _ = (Tensor(x) for x in self.data((), n, m, 8, 8, "float64"))
            o = attention(q, k, v).numpy()
            want = by_hand(q.numpy(), k.numpy(), v.numpy(), 2 * o, False, None)[0]
            np.testing.assert_allclose(g(q, k, v).numpy(), want, atol=1e-10)
        q, k, v, _ = (Tensor(x) for x in self.data((3,), 6, 7, 4, 4, "float64"))
        each = eager.vmap(eager.grad(f))(q, k, v).numpy()
        for i in range(3):
            np.testing.assert_allclose(each[i], eager.grad(f)(q[i], k[i], v[i]).numpy(), atol=1e-12)
        t = Tensor(np.random.default_rng(5).standard_normal((6, 4)))
        _, hv = eager.jvp(lambda q: eager.grad(f)(q, k[0], v[0]), (q[0],), (t,))
        up, down = (eager.grad(f)(q[0] + t * s, k[0], v[0]).numpy() for s in (1e-5, -1e-5))
        np.testing.assert_allclose(hv.numpy(), (up - down) / 2e-5, atol=1e-5)


def block(p, x, heads):
    width = x.shape[-1]
    split = lambda t: t.reshape(x.shape[:-1] + (heads, width // heads)).swap_axes(-2, -3)
    h = eager.layer_norm(x, p["g1"], p["b1"])
    q, k, v = (split(h @ p[w]) for w in ("wq", "wk", "wv"))
    a = attention(q, k, v, causal=True).swap_axes(-2, -3).reshape(x.shape)
    x = x + a @ p["wo"]
    h = eager.layer_norm(x, p["g2"], p["b2"])
    return x + eager.gelu(h @ p["w1"]) @ p["w2"]


def parameters(width, dtype="float32"):
    r = np.random.default_rng(0)
    w = lambda *s: Tensor((r.standard_normal(s) * 0.1).astype(dtype))
    square = {name: w(width, width) for name in ("wq", "wk", "wv", "wo")}
    return square | {"w1": w(width, 4 * width), "w2": w(4 * width, width)} | {n: w(width) for n in ("g1", "b1", "g2", "b2")}


class Block(unittest.TestCase):
    def test_kernels_of_a_transformer_block(self):
        p, x = parameters(64), Tensor(np.random.default_rng(1).standard_normal((2, 32, 64)).astype("float32"))
        loss = lambda p: (block(p, x, 4) ** 2).mean()
        forward = shown(loss(p))
        both = shown(eager.value_and_grad(loss, realize=False)(p))
        count = lambda text: int(re.search(r"(\d+) kernels", text)[1])
        self.assertLessEqual(count(forward), 11)
        self.assertLessEqual(count(both), 41)
        self.assertNotIn("matmul over (2, 64", both)  # gradients of weights are one product over all rows, not a sum over the batch
        self.assertLessEqual(both.count("attention backward"), 3)
        self.assertNotRegex(both, r"\(2, 4, 32, 32\)  → memory")


class Depth(unittest.TestCase):
    """Networks of several blocks. The kernel of dv reads nothing that is made after it, such as the
    transposed values that only dq and dk need."""

    def test_gradients_of_three_blocks_with_rotary_positions(self):
        import jax
        import jax.numpy as jnp

        n, s, d, heads = 2, 64, 64, 2
        r = np.random.default_rng(0)
        shapes = [(d, d)] * 4 + [(d,)] * 4 + [(d, 4 * d), (4 * d, d)]
        blocks = [[(r.standard_normal(t) * (1 if len(t) == 1 else t[0] ** -0.5)).astype(np.float32) for t in shapes] for _ in range(3)]
        x, c = (r.standard_normal((n, s, d)).astype(np.float32) for _ in range(2))

        def loss(m, layer_norm, permute, softmax, blocks, x, c):
            half = d // heads // 2
            angle = m.arange(s).astype("float32")[:, None] * m.exp(m.arange(half).astype("float32") * -0.5)
            cos, sin = m.cos(angle), m.sin(angle)

            def turned(t):
                a, b = t[..., :half], t[..., half:]
                return m.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

            for wq, wk, wv, wo, g1, b1, g2, b2, w1, w2 in blocks:
                h = layer_norm(x, g1, b1)
                q, k, v = (permute((h @ w).reshape((n, s, heads, d // heads)), (0, 2, 1, 3)) for w in (wq, wk, wv))
                weights = softmax(turned(q) @ permute(turned(k), (0, 1, 3, 2)) * 0.25)
                x = x + permute(weights @ v, (0, 2, 1, 3)).reshape((n, s, d)) @ wo
                x = x + m.tanh(layer_norm(x, g2, b2) @ w1) @ w2
            return (x * c).sum()

        def norm(x, g, b):
            y = x - x.mean(-1, keepdims=True)
            return y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-5) * g + b

        want = jax.grad(lambda p: loss(jnp, norm, jnp.transpose, jax.nn.softmax, p, x, c))(blocks)
        ours = eager.grad(lambda p, x, c: loss(eager, eager.layer_norm, eager.permute, eager.softmax, p, x, c))
        args = [[Tensor.constant(a) for a in p] for p in blocks], Tensor.constant(x), Tensor.constant(c)
        for name, f in (("recorded", ours), ("compiled", eager.compile(ours))):
            for i, (mine, theirs) in enumerate(zip(f(*args), want)):
                for k, (a, b) in enumerate(zip(mine, theirs)):
                    with self.subTest(name, block=i, parameter=k):
                        scale = float(abs(np.asarray(b)).max())
                        np.testing.assert_allclose(a.numpy() / scale, np.asarray(b) / scale, rtol=0, atol=2e-4)
