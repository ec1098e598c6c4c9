"""The examples of networks: each runs at a small size and writes its pictures; the digits' weights are those
of JAX and optax, the GPT is torch's."""

import copy
import importlib.util
import os
import tempfile
import unittest

os.environ.setdefault("EAS_EXAMPLES_SMALL", "1")

import numpy as np  # noqa: E402
from support import ROOT  # noqa: E402

import eager  # noqa: E402
from eager import nn, optim  # noqa: E402

F = nn.functional


def have(*names):
    return all(importlib.util.find_spec(n) for n in names)


class Examples(unittest.TestCase):
    def setUp(self):
        import sys

        if ROOT not in sys.path:
            sys.path.insert(0, ROOT)

    def run_one(self, name, *files):
        module = importlib.import_module("examples.models." + name)
        with tempfile.TemporaryDirectory() as folder:
            result = module.main(folder)
            for f in files:
                with open(os.path.join(folder, f), "rb") as g:
                    head = g.read(8)
                self.assertTrue(head.startswith(b"<svg") if f.endswith("svg") else head == b"\x89PNG\r\n\x1a\n", f)
        return result

    @unittest.skipUnless(have("sklearn"), "scikit-learn is not installed")
    def test_digits(self):
        mlp, cnn = self.run_one("digits", "digits.svg")
        self.assertGreater(mlp, 0.7)
        self.assertGreater(cnn, 0.6)  # running statistics follow slowly

    def test_gpt(self):
        model, losses = self.run_one("gpt", "gpt.svg")
        self.assertLess(losses[-1], losses[0])

    @unittest.skipUnless(have("torch"), "torch is not installed")
    def test_gpt_torch(self):
        curves, apart, noise = self.run_one("gpt_torch", "gpt_torch.svg")
        self.assertLess(apart.max(), 1e-3)  # eight steps: rounding alone
        self.assertGreater(noise.max(), 10 * apart.max())

    @unittest.skipUnless(have("sklearn"), "scikit-learn is not installed")
    def test_vae(self):
        losses, samples = self.run_one("vae", "vae.svg", "vae.png")
        self.assertEqual(samples.shape, (64, 8, 8))

    def test_neural_ode(self):
        self.run_one("neural_ode", "neural_ode.svg")

    def test_cartpole(self):
        self.run_one("cartpole", "cartpole.svg")

    def test_lora(self):
        self.run_one("lora", "lora.svg")

    def test_generation(self):
        """Token by token with the cache is what the whole model gives; one step serves every length; the seed
        decides the draws."""
        from examples.models.gpt import GPT, Generator

        eager.seed(0)
        model = GPT(2, 32, 2)
        generate = Generator(model, 48, temperature=0.0)
        out = generate(b"abc", 12)
        tokens = list(b"abc")
        with eager.no_grad():
            for _ in range(12):
                tokens.append(int(model(eager.constant(np.array([tokens]))).argmax(axis=-1)[0, -1]))
        self.assertEqual(out, bytes(tokens[3:]))
        self.assertEqual(generate.step.stats.misses, 2)  # the prompt, and one step for every length
        generate(b"abc", 20)
        self.assertEqual(generate.step.stats.misses, 2)
        with self.assertRaises(ValueError):
            generate(b"abc", 100)
        draw = Generator(model, 48, temperature=1.0, top_k=20)
        self.assertEqual(draw(b"abc", 10, seed=1), draw(b"abc", 10, seed=1))
        self.assertNotEqual(draw(b"abc", 10, seed=1), draw(b"abc", 10, seed=2))

    @unittest.skipUnless(have("torch"), "torch is not installed")
    def test_gpt_is_torchs(self):
        """The same weights and batches: the same losses, step for step. Few steps: Adam's do not depend on
        the size of a gradient, so the rounding of tiny ones grows from step to step."""
        import torch

        torch.set_num_threads(1)
        from examples.models.gpt import GPT, batches, text, train_step
        from examples.models.torch_gpt import torch_gpt

        eager.seed(0)
        model = GPT(2, 32, 2)
        net = torch_gpt(model, 2)
        opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
        state, step, source = optim.adamw_init(model), train_step(3e-3), batches(text(("docs",)), 4, 32)
        for _ in range(8):
            x, y = next(source)
            model, state, mine = step(model, state, x, y)
            loss = torch.nn.functional.cross_entropy(
                net(torch.from_numpy(x.numpy().copy())).flatten(0, 1), torch.from_numpy(y.numpy().copy()).flatten()
            )
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            self.assertAlmostEqual(mine.item(), loss.item(), delta=2e-3)
        self.assertEqual(step.stats.misses, 1)

    @unittest.skipUnless(have("jax", "optax", "sklearn"), "JAX, optax or scikit-learn is not installed")
    def test_digits_are_jaxs(self):
        """An MLP from the same weights on the same batches: after 100 steps of Adam the weights are those of
        JAX and optax."""
        import jax
        import jax.numpy as jnp
        import optax

        from examples.models.digits import load

        (x, y), _ = load()
        x = x.reshape(len(x), 64)
        eager.seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        params = [{"w": jnp.asarray(m.weight.detach().numpy()), "b": jnp.asarray(m.bias.detach().numpy())} for m in (model[0], model[2])]
        rule = optax.adam(1e-3)

        def loss_of(p, x, y):
            h = jnp.tanh(x @ p[0]["w"] + p[0]["b"])
            return optax.softmax_cross_entropy_with_integer_labels(h @ p[1]["w"] + p[1]["b"], y).mean()

        @jax.jit
        def theirs(p, s, x, y):
            loss, g = jax.value_and_grad(loss_of)(p, x, y)
            u, s = rule.update(g, s)
            return optax.apply_updates(p, u), s, loss

        @eager.compile
        def mine(m, s, x, y):
            loss, g = eager.value_and_grad(lambda m: F.cross_entropy(m(x), y))(m)
            m, s = optim.adam_update(m, g, s, lr=1e-3)
            return m, s, loss

        state, other, m = optim.adam_init(model), rule.init(params), copy.deepcopy(model)
        r = np.random.default_rng(0)
        for k in range(100):
            at = r.integers(0, len(x), 64)
            m, state, a = mine(m, state, eager.constant(x[at]), eager.constant(y[at]))
            params, other, b = theirs(params, other, x[at], y[at])
            if k % 20 == 19:
                for layer, p in zip((m[0], m[2]), params):
                    np.testing.assert_allclose(layer.weight.numpy(), p["w"], atol=1e-5)
                    np.testing.assert_allclose(layer.bias.numpy(), p["b"], atol=1e-5)

    @unittest.skipUnless(have("jax", "optax", "sklearn"), "JAX, optax or scikit-learn is not installed")
    def test_the_cnn_is_jaxs(self):
        """The CNN of the example, without dropout, whose draws differ: after 100 steps of Adam its weights
        and its running variances are those of JAX and optax.

        The biases of convolutions are left out: batch norm subtracts them again, so that their gradients are
        rounding errors, of which Adam takes whole steps. In f64: in f32 the two drift apart by 4e-5 in 40
        steps, since a rounding error can change which element of a window is the largest."""
        import jax
        import jax.numpy as jnp
        import optax

        from examples.models.digits import CNN, load

        old = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", True)
        self.addCleanup(jax.config.update, "jax_enable_x64", old)
        (x, y), _ = load()
        x = x.astype(np.float64)
        eager.seed(0)
        model = CNN(8).double()
        model.drop = nn.Dropout(0.0)
        params = {n: jnp.asarray(p.detach().numpy()) for n, p in model.named_parameters()}
        rule = optax.adam(1e-3)

        def block(p, x, k):
            x = jax.lax.conv_general_dilated(x, p[f"conv{k}.weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + p[f"conv{k}.bias"]
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            x = jax.nn.relu((x - mean) / jnp.sqrt(var + 1e-5) * p[f"norm{k}.weight"] + p[f"norm{k}.bias"])
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), var

        def loss_of(p, x, y):
            h, first = block(p, x[..., None], 1)
            h, _ = block(p, h, 2)
            h = h.reshape(len(x), -1) @ p["out.weight"] + p["out.bias"]
            return optax.softmax_cross_entropy_with_integer_labels(h, y).mean(), first

        @jax.jit
        def theirs(p, s, x, y):
            (_, var), g = jax.value_and_grad(loss_of, has_aux=True)(p, x, y)
            u, s = rule.update(g, s)
            return optax.apply_updates(p, u), s, var

        @eager.compile
        def mine(m, s, x, y):
            def f(m):
                return F.cross_entropy(m(x), y), m

            (_, m), g = eager.value_and_grad(f, has_aux=True)(m)
            return optim.adam_update(m, g, s, lr=1e-3)

        state, other, running = optim.adam_init(model), rule.init(params), np.ones(8)
        r = np.random.default_rng(0)
        for k in range(100):
            at = r.integers(0, len(x), 64)
            model, state = mine(model, state, eager.constant(x[at]), eager.constant(y[at]))
            params, other, var = theirs(params, other, x[at], y[at])
            running = 0.9 * running + 0.1 * np.asarray(var) * (64 * 64) / (64 * 64 - 1)
            if k % 20 == 19:
                for n, p in ((n, p) for n, p in model.named_parameters() if n not in ("conv1.bias", "conv2.bias")):
                    np.testing.assert_allclose(p.detach().numpy(), params[n], atol=1e-5, err_msg=f"{n} after {k + 1} steps")
        np.testing.assert_allclose(model.norm1.running_var.numpy(), running, atol=1e-5)


class Sampling(unittest.TestCase):
    def test_filters(self):
        x = np.log(np.array([[0.1, 0.5, 0.05, 0.35], [0.25, 0.25, 0.25, 0.25]], np.float32))
        kept = lambda **kw: np.isfinite(F.filter_logits(x, **kw).numpy()).tolist()  # noqa: E731
        self.assertEqual(kept(top_k=2)[0], [False, True, False, True])
        self.assertEqual(kept(top_p=0.8)[0], [False, True, False, True])
        self.assertEqual(kept(top_p=0.4)[0], [False, True, False, False])
        self.assertEqual(kept(top_p=1.0)[0], [True] * 4)
        self.assertEqual(kept(top_k=1, top_p=0.99)[0], [False, True, False, False])
        for bad in ({"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}):
            with self.assertRaises(ValueError):
                F.filter_logits(x, **bad)

    def test_draws(self):
        p = np.array([0.1, 0.2, 0.3, 0.4])
        logits = eager.constant(np.tile(np.log(p), (20000, 1)).astype("f"))
        counts = np.bincount(F.sample_logits(logits, key=eager.key(0)).numpy(), minlength=4) / 20000
        np.testing.assert_allclose(counts, p, atol=0.015)
        sharp = np.bincount(F.sample_logits(logits, temperature=0.5, key=eager.key(0)).numpy(), minlength=4) / 20000
        np.testing.assert_allclose(sharp, p**2 / (p**2).sum(), atol=0.015)
        self.assertEqual(F.sample_logits(logits, temperature=0.0).numpy().tolist(), [3] * 20000)


if __name__ == "__main__":
    unittest.main()
