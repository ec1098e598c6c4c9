"""eager.random: moments and tails of each distribution, against SciPy's or NumPy's formulas; keys;
transforms. And functions of networks against torch's."""

import importlib
import math
import unittest

import numpy as np

import eager
from eager import random as rnd

N = 40000
KEY = 12345


def moments(test, x, mean, var, what):
    """Within 5 standard errors."""
    x = np.asarray(x, np.float64)
    test.assertLess(abs(x.mean() - mean), 5 * math.sqrt(var / x.size) + 1e-6, what)
    spread = math.sqrt(max(((x - x.mean()) ** 4).mean() - x.var() ** 2, 0) / x.size)
    test.assertLess(abs(x.var() - var), 6 * spread + 1e-3 * var, what)


def needs(test, name):
    """The module, or the test is left out."""
    try:
        return importlib.import_module(name)
    except ImportError:
        test.skipTest(f"needs {name}")


class Moments(unittest.TestCase):
    def test_continuous(self):
        e = 0.5772156649015329
        for name, x, mean, var in [
            ("exponential", rnd.exponential((N,), 2.0, key=KEY), 2, 4), ("gumbel", rnd.gumbel((N,), key=KEY), e, math.pi**2 / 6), ("laplace", rnd.laplace((N,), 1.0, 2.0, key=KEY), 1, 8), ("logistic", rnd.logistic((N,), key=KEY), 0, math.pi**2 / 3),
            ("lognormal", rnd.lognormal((N,), 0.0, 0.5, key=KEY), math.exp(0.125), (math.exp(0.25) - 1) * math.exp(0.25)), ("gamma 0.3", rnd.gamma((N,), 0.3, key=KEY), 0.3, 0.3), ("gamma 1", rnd.gamma((N,), 1.0, 3.0, key=KEY), 3, 9), ("gamma 5", rnd.gamma((N,), 5.0, key=KEY), 5, 5),
            ("gamma 200", rnd.gamma((N,), 200.0, key=KEY), 200, 200), ("beta", rnd.beta((N,), 2.0, 3.0, key=KEY), 0.4, 0.04), ("beta small", rnd.beta((N,), 0.5, 0.5, key=KEY), 0.5, 0.125), ("chisquare", rnd.chisquare((N,), 4.0, key=KEY), 4, 8), ("rayleigh", rnd.rayleigh((N,), key=KEY), math.sqrt(math.pi / 2), 2 - math.pi / 2),
            ("weibull", rnd.weibull((N,), 2.0, key=KEY), math.gamma(1.5), math.gamma(2) - math.gamma(1.5) ** 2), ("pareto", rnd.pareto((N,), 8.0, key=KEY), 8 / 7, 8 / (49 * 6)), ("student_t", rnd.student_t((N,), 12.0, key=KEY), 0, 1.2), ("triangular", rnd.triangular((N,), 0.0, 1.0, 3.0, key=KEY), 4 / 3, 7 / 18),
            ("truncated_normal", rnd.truncated_normal(-1.0, 1.0, (N,), key=KEY), 0, 0.29112509), ("rademacher", rnd.rademacher((N,), key=KEY), 0, 1), ("dirichlet", rnd.dirichlet(np.array([1.0, 2.0, 3.0]), (N,), key=KEY)[:, 1], 1 / 3, 2 * 4 / (36 * 7)),
        ]:  # fmt: skip
            with self.subTest(name):
                moments(self, x.numpy(), mean, var, name)

    def test_discrete(self):
        for name, x, mean, var in [
            ("bernoulli", rnd.bernoulli(0.3, (N,), key=KEY).astype("float32"), 0.3, 0.21), ("poisson 0.5", rnd.poisson((N,), 0.5, key=KEY), 0.5, 0.5), ("poisson 4", rnd.poisson((N,), 4.0, key=KEY), 4, 4), ("poisson 30", rnd.poisson((N,), 30.0, key=KEY), 30, 30), ("poisson 1000", rnd.poisson((N,), 1000.0, key=KEY), 1000, 1000),
            ("geometric", rnd.geometric((N,), 0.25, key=KEY), 4, 12), ("binomial", rnd.binomial((N,), 10, 0.3, key=KEY), 3, 2.1),
        ]:  # fmt: skip
            with self.subTest(name):
                moments(self, x.numpy(), mean, var, name)
        self.assertEqual(int(rnd.poisson((100,), 0.0, key=KEY).sum()), 0)

    def test_tails(self):
        x = rnd.exponential((N,), key=KEY).numpy()
        for t in (1, 3, 6):
            p = math.exp(-t)
            self.assertLess(abs((x > t).mean() - p), 5 * math.sqrt(p / N))
        c = rnd.cauchy((N,), key=KEY).numpy()
        for t in (1, 10, 100):
            p = 1 - 2 * math.atan(t) / math.pi
            self.assertLess(abs((np.abs(c) > t).mean() - p), 5 * math.sqrt(p / N))
        self.assertLess(abs(np.median(c)), 0.03)
        t = rnd.truncated_normal(2.0, 3.0, (N,), key=KEY).numpy()
        self.assertTrue((t >= 2).all() and (t <= 3).all())
        self.assertGreater((t < 2.5).mean(), 0.6)
        self.assertTrue((rnd.gamma((N,), 0.01, key=KEY).numpy() >= 0).all())
        self.assertTrue(np.isfinite(rnd.loggamma((N,), 0.001, key=KEY).numpy()).all())
        k = rnd.poisson((N,), 3.0, key=KEY).numpy()
        for n in range(8):
            p = math.exp(-3) * 3**n / math.factorial(n)
            self.assertLess(abs((k == n).mean() - p), 5 * math.sqrt(p / N))

    def test_categorical(self):
        p = np.array([0.1, 0.2, 0.7], np.float32)
        x = rnd.categorical(np.log(p), shape=(N,), key=KEY).numpy()
        np.testing.assert_allclose(np.bincount(x, minlength=3) / N, p, atol=0.015)
        self.assertEqual(rnd.categorical(np.zeros((4, 5)), key=KEY).shape, (4,))
        self.assertEqual(rnd.categorical(np.zeros((4, 5)), axis=0, key=KEY).shape, (5,))
        self.assertEqual(int(rnd.multinomial(50, p, key=KEY).sum()), 50)
        with self.assertRaisesRegex(ValueError, "does not end"):
            rnd.categorical(np.zeros((4, 5)), shape=(3,), key=KEY)

    def test_choice(self):
        x = rnd.choice(10, (N,), key=KEY).numpy()
        np.testing.assert_allclose(np.bincount(x, minlength=10) / N, 0.1, atol=0.01)
        x = rnd.choice(10, (10,), replace=False, key=KEY).numpy()
        self.assertEqual(sorted(x), list(range(10)))
        p = np.array([0.5, 0.25, 0.25])
        x = rnd.choice(np.array([5, 6, 7]), (N,), p=p, key=KEY).numpy()
        np.testing.assert_allclose([(x == v).mean() for v in (5, 6, 7)], p, atol=0.015)
        self.assertEqual(len(set(rnd.choice(5, (3,), replace=False, p=np.full(5, 0.2), key=KEY).tolist())), 3)
        self.assertEqual(rnd.choice(np.zeros((4, 3)), (2, 2), axis=1, key=KEY).shape, (4, 2, 2))
        with self.assertRaisesRegex(ValueError, "without replacement"):
            rnd.choice(3, (4,), replace=False)

    def test_permutation(self):
        x = rnd.permutation(100, key=KEY).numpy()
        self.assertEqual(sorted(x), list(range(100)))
        self.assertFalse((x == np.arange(100)).all())
        a = np.arange(12).reshape(4, 3)
        self.assertEqual(sorted(rnd.permutation(a, key=KEY).numpy()[:, 0]), [0, 3, 6, 9])
        q = rnd.shuffle(a, axis=1, independent=True, key=KEY).numpy()
        self.assertTrue((np.sort(q, 1) == a).all())

    def test_multivariate_normal(self):
        cov = np.array([[2.0, 0.6], [0.6, 1.0]], np.float32)
        for method in ("cholesky", "eigh", "svd"):
            x = rnd.multivariate_normal(np.array([1.0, -1.0], np.float32), cov, (N,), method=method, key=KEY).numpy()
            np.testing.assert_allclose(np.cov(x.T), cov, atol=0.06)
            np.testing.assert_allclose(x.mean(0), [1, -1], atol=0.04)

    def test_dropout(self):
        x = rnd.dropout(eager.ones((N,)), 0.25, key=KEY).numpy()
        self.assertLess(abs((x == 0).mean() - 0.25), 0.015)
        np.testing.assert_allclose(x[x != 0], 1 / 0.75, rtol=1e-6)
        self.assertTrue((rnd.dropout(eager.ones((4,)), 0.5, training=False).numpy() == 1).all())

    def test_keys(self):
        for f in (
            lambda k: rnd.gamma((5,), 2.0, key=k),
            lambda k: rnd.poisson((5,), 20.0, key=k),
            lambda k: rnd.permutation(20, key=k),
            lambda k: rnd.truncated_normal(-1.0, 1.0, (5,), key=k),
        ):
            np.testing.assert_array_equal(f(eager.key(1)).numpy(), f(eager.key(1)).numpy())
            self.assertFalse((f(eager.key(1)).numpy() == f(eager.key(2)).numpy()).all())
            self.assertFalse((f(None).numpy() == f(None).numpy()).all())
            keys = eager.split_key(eager.key(3), 4)
            rows = eager.vmap(f)(keys).numpy()
            self.assertEqual(rows.shape[0], 4)
            self.assertFalse((rows[0] == rows[1]).all())
        g = eager.grad(lambda s: eager.sum(rnd.laplace((10,), 0.0, s, key=1)))(eager.asarray(2.0)).item()
        self.assertAlmostEqual(g, float(rnd.laplace((10,), key=1).sum()), places=3)


class Networks(unittest.TestCase):
    def test_activations(self):
        torch = needs(self, "torch")
        T = needs(self, "torch.nn.functional")

        x = np.linspace(-8, 8, 41).astype(np.float32)
        t = torch.tensor(x, requires_grad=True)
        for name, mine, theirs in [
            ("softplus", eager.softplus, T.softplus), ("leaky_relu", lambda v: eager.leaky_relu(v, 0.2), lambda v: T.leaky_relu(v, 0.2)), ("elu", eager.elu, T.elu), ("celu", lambda v: eager.celu(v, 2.0), lambda v: T.celu(v, 2.0)), ("selu", eager.selu, T.selu), ("mish", eager.mish, T.mish), ("hardswish", eager.hardswish, T.hardswish),
            ("hardsigmoid", eager.hardsigmoid, T.hardsigmoid), ("relu6", eager.relu6, T.relu6), ("softsign", eager.softsign, T.softsign), ("log_sigmoid", eager.log_sigmoid, T.logsigmoid), ("hardtanh", eager.hardtanh, T.hardtanh), ("hardshrink", eager.hardshrink, T.hardshrink), ("softshrink", eager.softshrink, T.softshrink),
            ("tanhshrink", eager.tanhshrink, T.tanhshrink), ("threshold", lambda v: eager.threshold(v, 1.0, 7.0), lambda v: T.threshold(v, 1.0, 7.0)), ("swish", eager.swish, T.silu), ("softmin", lambda v: eager.softmin(v, 0), lambda v: T.softmin(v, 0)),
        ]:  # fmt: skip
            with self.subTest(name):
                np.testing.assert_allclose(mine(eager.asarray(x)).numpy(), theirs(t).detach().numpy(), rtol=1e-5, atol=1e-6)
                (want,) = torch.autograd.grad(torch.sin(theirs(t)).sum(), t)
                got = eager.grad(lambda v, mine=mine: eager.sum(eager.sin(mine(v))))(eager.asarray(x)).numpy()
                smooth = np.abs(np.abs(x) - 3) > 0.1 if name.startswith("hard") or name == "relu6" else np.ones_like(x, bool)
                np.testing.assert_allclose(
                    got[smooth & (x != 0) & (np.abs(x) != 1) & (x != 6)],
                    want.numpy()[smooth & (x != 0) & (np.abs(x) != 1) & (x != 6)],
                    rtol=1e-4,
                    atol=1e-5,
                )
        a = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
        np.testing.assert_allclose(eager.glu(eager.asarray(a)).numpy(), T.glu(torch.tensor(a)).numpy(), rtol=1e-5)
        np.testing.assert_allclose(eager.swiglu(eager.asarray(a)).numpy(), T.silu(torch.tensor(a[:, :4])).numpy() * a[:, 4:], rtol=1e-5)
        with self.assertRaisesRegex(ValueError, "halves"):
            eager.glu(eager.ones((3, 5)))

    def test_interpolate(self):
        torch = needs(self, "torch")
        T = needs(self, "torch.nn.functional")

        x = np.random.default_rng(1).standard_normal((2, 7, 9, 3)).astype(np.float32)
        t = torch.tensor(x).permute(0, 3, 1, 2)
        for size in [(14, 18), (4, 5), (7, 20), (3, 3)]:
            for mode, kw in [
                ("nearest", {}),
                ("nearest-exact", {}),
                ("area", {}),
                ("bilinear", {}),
                ("bilinear", {"align_corners": True}),
                ("bicubic", {}),
                ("bicubic", {"align_corners": True}),
                ("bilinear", {"antialias": True}),
                ("bicubic", {"antialias": True}),
            ]:
                with self.subTest(mode=mode, size=size, **kw):
                    want = T.interpolate(t, size, mode=mode, **kw).permute(0, 2, 3, 1).numpy()
                    np.testing.assert_allclose(eager.interpolate(eager.asarray(x), size, mode=mode, **kw).numpy(), want, rtol=1e-4, atol=1e-5)
        want = T.interpolate(t, scale_factor=1.5, mode="bilinear").permute(0, 2, 3, 1).numpy()
        np.testing.assert_allclose(eager.interpolate(eager.asarray(x), scale_factor=1.5, mode="bilinear").numpy(), want, rtol=1e-4, atol=1e-5)
        y = np.random.default_rng(1).standard_normal((2, 7, 3)).astype(np.float32)
        want = T.interpolate(torch.tensor(y).permute(0, 2, 1), 11, mode="linear").permute(0, 2, 1).numpy()
        np.testing.assert_allclose(eager.interpolate(eager.asarray(y), 11, mode="linear").numpy(), want, rtol=1e-4, atol=1e-5)

    def test_convolutions(self):
        torch = needs(self, "torch")
        T = needs(self, "torch.nn.functional")

        r = np.random.default_rng(2)
        for n, conv in ((1, eager.conv1d), (3, eager.conv3d), (2, eager.conv_nd)):
            theirs = (T.conv1d, T.conv2d, T.conv3d)[n - 1]
            x = r.standard_normal((2, *(9, 8, 7)[:n], 4)).astype(np.float32)
            for groups in (1, 2):
                f = r.standard_normal((*(3, 2, 3)[:n], 4 // groups, 6)).astype(np.float32)
                for kw in ({}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"padding": "same"}, {"padding": "valid"}):
                    with self.subTest(n=n, groups=groups, **kw):
                        t = torch.tensor(np.moveaxis(x, -1, 1).copy())
                        w = torch.tensor(np.moveaxis(f, (-1, -2), (0, 1)).copy())
                        want = np.moveaxis(theirs(t, w, groups=groups, **kw).numpy(), 1, -1)
                        np.testing.assert_allclose(conv(eager.asarray(x), eager.asarray(f), groups=groups, **kw).numpy(), want, rtol=1e-4, atol=1e-4)
        x, f = r.standard_normal((1, 7, 8, 2)).astype(np.float32), r.standard_normal((3, 4, 2, 5)).astype(np.float32)
        want = np.moveaxis(
            T.conv2d(torch.tensor(np.moveaxis(x, -1, 1).copy()), torch.tensor(np.moveaxis(f, (-1, -2), (0, 1)).copy()), padding="same").numpy(), 1, -1
        )
        np.testing.assert_allclose(eager.conv2d(eager.asarray(x), eager.asarray(f), padding="same").numpy(), want, rtol=1e-4, atol=1e-4)
        self.assertEqual(eager.conv2d(eager.asarray(x), eager.asarray(f), padding="same", stride=(2, 2)).shape, (1, 4, 4, 5))
        with self.assertRaisesRegex(ValueError, "conv1d"):
            eager.conv1d(eager.ones((1, 4, 3)), eager.ones((2, 2, 5)))

    def test_images(self):
        torch = needs(self, "torch")
        T = needs(self, "torch.nn.functional")

        x = np.random.default_rng(3).standard_normal((2, 4, 6, 8)).astype(np.float32)
        t = torch.tensor(x).permute(0, 3, 1, 2)
        np.testing.assert_array_equal(eager.pixel_shuffle(eager.asarray(x), 2).numpy(), T.pixel_shuffle(t, 2).permute(0, 2, 3, 1).numpy())
        np.testing.assert_array_equal(eager.pixel_unshuffle(eager.asarray(x), 2).numpy(), T.pixel_unshuffle(t, 2).permute(0, 2, 3, 1).numpy())
        for kw in ({}, {"padding": 1}, {"stride": 2}, {"dilation": 2}):
            u = eager.unfold(eager.asarray(x), 2, **kw)
            want = T.unfold(t, 2, **kw).numpy().reshape(2, 8, 4, -1).transpose(0, 3, 2, 1).reshape(u.shape)
            np.testing.assert_allclose(u.numpy(), want, rtol=1e-6)
            back = T.fold(T.unfold(t, 2, **kw), (4, 6), 2, **kw).permute(0, 2, 3, 1).numpy()
            np.testing.assert_allclose(eager.fold(u, (4, 6), 2, **kw).numpy(), back, rtol=1e-5)
            np.testing.assert_allclose(
                eager.vmap(lambda v, kw=kw: eager.fold(v, (4, 6), 2, **kw))(eager.stack([u, u * 2]))[1].numpy(), 2 * back, rtol=1e-5
            )

    def test_one_hot(self):
        i = np.array([[0, 2], [1, 0]])
        for axis in (-1, 0, 1, 2, -3):
            np.testing.assert_array_equal(eager.one_hot(i, 3, axis=axis).numpy(), np.moveaxis(np.eye(3)[i], -1, axis))

    def test_attention(self):
        torch = needs(self, "torch")
        T = needs(self, "torch.nn.functional")

        r = np.random.default_rng(4)
        q, k, v = (r.standard_normal((2, 3, n, 8)).astype(np.float32) for n in (5, 6, 6))
        tq, tk, tv = (torch.tensor(a) for a in (q, k, v))
        mask = r.random((5, 6)) > 0.3
        mask[:, 0] = True
        for kw, theirs in [
            ({}, {}),
            ({"attn_mask": eager.asarray(mask)}, {"attn_mask": torch.tensor(mask)}),
            ({"is_causal": True}, {"is_causal": True}),
            ({"scale": 0.3}, {"scale": 0.3}),
            ({"attn_mask": eager.asarray(q[0, 0, :, :6])}, {"attn_mask": torch.tensor(q[0, 0, :, :6])}),
        ]:
            want = T.scaled_dot_product_attention(tq, tk, tv, **theirs).numpy()
            np.testing.assert_allclose(
                eager.scaled_dot_product_attention(eager.asarray(q), eager.asarray(k), eager.asarray(v), **kw).numpy(), want, rtol=1e-4, atol=1e-5
            )


if __name__ == "__main__":
    unittest.main()
