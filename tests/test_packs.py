"""Weights that are laid out for products once (src/dev/packs.c): reused while they stay what they are, never
stale."""

import gc
import os
import tempfile
import threading
import unittest

import numpy as np
import support

import eager
import eas
from eager import Tensor, nn
from eas import mk

CPU = os.environ.get("EAS_BACKEND", "cpu") == "cpu"
# panels are not full with this N, so the right factor is laid out whatever the width of vectors
M, K, N = 64, 256, 392


def hits():
    return eager.stats()["pack_hits"]


def kept():
    return eager.stats()["pack_bytes"]


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@eas.kernel
def put(x, value, N, BLOCK: eas.constexpr):
    at = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(x, at, value, at < N)


@unittest.skipUnless(CPU, "products are packed for the cpu alone")
class Packs(unittest.TestCase):
    def setUp(self):
        eas.empty_cache()
        self.x, self.w = data(M, K), data(K, N, seed=1)
        self.f = eager.compile(lambda x, w: x @ w)

    def check(self, w, want=None, f=None):
        got = (f or self.f)(Tensor.constant(self.x), w).numpy()
        np.testing.assert_allclose(got, self.x @ (w.numpy() if want is None else want), rtol=1e-4, atol=1e-4)
        return got

    def warm(self, w, f=None):
        """Laid out and used again."""
        for _ in range(3):
            got = self.check(w, f=f)
        before = hits()
        again = self.check(w, f=f)
        self.assertGreater(hits(), before)
        np.testing.assert_array_equal(got, again)

    def test_an_argument_is_laid_out_once(self):
        w = Tensor.constant(self.w)
        first = self.check(w)
        self.assertEqual(kept(), 0)  # the first time it may be the last
        second = self.check(w)
        self.assertGreaterEqual(kept(), self.w.nbytes)
        steps = eager.stats()["steps"]
        third = self.check(w)
        self.assertEqual(eager.stats()["steps"] - steps, 1)  # the product alone
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, third)

    def test_captured_lazy_transposed_and_halves(self):
        w = Tensor.constant(self.w)
        captured = eager.compile(lambda x, _: x @ w)
        self.warm(w, captured)
        self.warm(w, lambda x, w: x @ w)
        t = Tensor.constant(np.ascontiguousarray(self.w.T))
        turned = eager.compile(lambda x, t: x @ t.T)
        for _ in range(3):
            got = turned(Tensor.constant(self.x), t).numpy()
        before = hits()
        np.testing.assert_array_equal(turned(Tensor.constant(self.x), t).numpy(), got)
        self.assertGreater(hits(), before)
        np.testing.assert_allclose(got, self.x @ self.w, rtol=1e-4, atol=1e-4)
        half = Tensor.constant(self.w.astype(np.float16))
        mixed = eager.compile(lambda x, h: x @ h.to("f32"))
        for _ in range(3):
            got = mixed(Tensor.constant(self.x), half).numpy()
        before = hits()
        np.testing.assert_array_equal(mixed(Tensor.constant(self.x), half).numpy(), got)
        self.assertGreater(hits(), before)

    def test_programs_share_what_is_laid_out_alike(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        bytes_, before = kept(), hits()
        other = eager.compile(lambda x, w: eager.relu(x @ w))
        other(Tensor.constant(data(2 * M, K)), w).realize()
        self.assertEqual(kept(), bytes_)
        self.assertGreater(hits(), before)

    def test_it_goes_with_the_weight(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        self.assertGreater(kept(), 0)
        del w
        gc.collect()
        self.assertEqual(kept(), 0)

    def test_new_memory_at_the_same_place_is_another_weight(self):
        for i in range(6):
            w = Tensor.constant(data(K, N, seed=i))
            for _ in range(3):
                self.check(w, data(K, N, seed=i))
            del w

    def test_assignment_in_place(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        w[3] = 5.0
        want = self.w.copy()
        want[3] = 5
        for _ in range(4):
            self.check(w, want)
        w += 1.0
        for _ in range(4):
            self.check(w, want + 1)

    def test_donated_memory(self):
        change = eager.compile(lambda w: w * -0.5, donate=(0,))
        w, want = Tensor.constant(self.w), self.w
        for _ in range(4):
            for _ in range(3):
                self.check(w, want)
            w, want = change(w), want * np.float32(-0.5)
        self.check(w, want)

    def test_a_training_step_that_donates_keeps_nothing(self):
        @eager.compile(donate=(0,))
        def step(w, x):
            loss, g = eager.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
            return w - 0.1 * g, loss

        w, x, want = Tensor.constant(self.w), Tensor.constant(self.x), self.w.astype(np.float64)
        for _ in range(5):
            w, _ = step(w, x)
            want = want - 0.1 * 2 * self.x.T.astype(np.float64) @ (self.x @ want) / (M * N)
        np.testing.assert_allclose(w.numpy(), want, rtol=1e-4, atol=1e-4)
        del w
        gc.collect()
        self.assertLessEqual(kept(), 2 * self.x.nbytes)

    def test_a_kernel_of_the_users_writes(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        put(w, 0.25, K * N, BLOCK=256)
        for _ in range(4):
            self.check(w, np.full((K, N), 0.25, np.float32))
        self.assertEqual(kept(), 0)  # from now on others may write
        put(w, 0.75, K * N, BLOCK=256)
        self.check(w, np.full((K, N), 0.75, np.float32))

    def test_memory_of_others_is_never_kept(self):
        a = self.w.copy()
        w = eager.from_dlpack(a)
        for i in range(5):
            a[...] = i
            self.check(w, np.full((K, N), i, np.float32))
        self.assertEqual(kept(), 0)

    def test_memory_that_was_handed_out(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        there = np.from_dlpack(w)
        self.check(w)
        if there.flags.writeable:
            there[...] = 2
            for _ in range(4):
                self.check(w, np.full((K, N), 2, np.float32))
        self.assertEqual(kept(), 0)

    def test_torch_writes(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        w = Tensor.constant(self.w)
        self.warm(w)
        t = torch.from_dlpack(w)
        t.fill_(3.0)
        for _ in range(4):
            self.check(w, np.full((K, N), 3, np.float32))

    def test_arrays_for_reading_cannot_be_made_writable(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        a = w.numpy()
        self.assertFalse(a.flags.writeable)
        with self.assertRaises(ValueError):
            a.flags.writeable = True
        before = hits()
        self.check(w)
        self.assertGreater(hits(), before)  # reading does not cost what is kept

    def test_load_state_dict(self):
        layer = nn.Linear(K, N).eval()
        with eager.no_grad():
            f = eager.compile(lambda m, x: m(x))
            x = Tensor.constant(self.x)
            for i in range(3):
                w, b = data(K, N, seed=10 + i), data(N, seed=20 + i)
                layer.load_state_dict({"weight": w, "bias": b})
                for _ in range(4):
                    np.testing.assert_allclose(f(layer, x).numpy(), self.x @ w + b, rtol=1e-4, atol=1e-4)
                    np.testing.assert_allclose(layer(x).numpy(), self.x @ w + b, rtol=1e-4, atol=1e-4)

    def test_an_optimiser_steps_between_calls(self):
        layer = nn.Linear(K, N)
        opt = eager.optim.SGD(layer.parameters(), lr=0.1)
        x = Tensor.constant(self.x)
        for _ in range(3):
            for _ in range(3):
                with eager.no_grad():
                    got = layer(x).numpy()
                want = self.x @ layer.weight.numpy() + layer.bias.numpy()
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            opt.zero_grad()
            (layer(x) ** 2).mean().backward()
            opt.step()

    def test_loops(self):
        w = Tensor.constant(self.w[:, :K].copy() / 16)

        def body(s):
            i, x = s
            return i + 1, eager.tanh(x @ w)

        _, got = eager.while_loop(lambda s: s[0] < 6, body, (Tensor.constant(0), Tensor.constant(self.x)))
        want = self.x
        for _ in range(6):
            want = np.tanh(want @ (self.w[:, :K] / 16))
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)

        # what is carried changes at every turn, and is the right factor
        v = data(K, K, seed=5) / 16

        def turn(s):
            i, c = s
            return i + 1, eager.tanh(w @ c)

        _, got = eager.while_loop(lambda s: s[0] < 6, turn, (Tensor.constant(0), Tensor.constant(v)))
        want = v
        for _ in range(6):
            want = np.tanh((self.w[:, :K] / 16) @ want)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
        ws = data(4, K, K, seed=6) / 16

        def layer(x, w):
            return eager.tanh(x @ w), x.sum()

        for _ in range(3):
            got, _ = eager.scan(layer, Tensor.constant(self.x), Tensor.constant(ws))
            want = self.x
            for i in range(4):
                want = np.tanh(want @ ws[i])
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)

    def test_files_that_are_mapped(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "w.safetensors")
            eager.save(path, {"w": self.w})
            w = eager.open_weights(path)
            one, again = w["w"], w["w"]
            self.warm(one)
            put(again, 0.5, K * N, BLOCK=256)  # the same pages
            for _ in range(4):
                self.check(one, one.numpy())
                self.check(again, np.full((K, N), 0.5, np.float32))

    def test_saving_and_threads(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        with tempfile.TemporaryDirectory() as d:
            eager.save(os.path.join(d, "w.safetensors"), {"w": w})
        before = hits()
        self.check(w)
        self.assertGreater(hits(), before)
        bad = []

        def work(seed):
            for i in range(20):
                mine = Tensor.constant(data(K, N, seed=seed * 100 + i))
                for _ in range(3):
                    got = self.f(Tensor.constant(self.x), mine).numpy()
                    if not np.allclose(got, self.x @ mine.numpy(), rtol=1e-3, atol=1e-3):
                        bad.append((seed, i))
                if not np.allclose(self.f(Tensor.constant(self.x), w).numpy(), self.x @ self.w, rtol=1e-3, atol=1e-3):
                    bad.append(seed)

        threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(bad, [])

    def test_streams(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        s = eas.Stream()
        with s:
            for _ in range(3):
                self.check(w)
        self.check(w)

    def test_the_limit(self):
        code = """
import numpy as np, eager
x, ws = eager.Tensor.constant(np.ones((64, 256), 'f')), [eager.Tensor.constant(np.full((256, 392), i, 'f')) for i in range(4)]
for _ in range(3):
    for i, w in enumerate(ws):
        assert np.all((x @ w).numpy() == 256 * i)
print(eager.stats()["pack_bytes"], eager.stats()["pack_hits"])
"""
        for limit, most, least_hits in (("1M", 1 << 20, 2), ("0", 0, 0), ("1G", 1 << 30, 4)):
            out = support.python(code, env={"EAS_PACK_LIMIT": limit}, timeout=120).stdout
            bytes_, found = map(int, out.split())
            self.assertLessEqual(bytes_, most)
            self.assertGreaterEqual(found, least_hits)

    def test_emptying(self):
        w = Tensor.constant(self.w)
        self.warm(w)
        eas.empty_cache()
        self.assertEqual(kept(), 0)
        self.warm(w)


if __name__ == "__main__":
    unittest.main()
