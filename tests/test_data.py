"""Batches: order, resuming, ranks, prefetching; the state of a run in a file; adapters and 4-bit weights."""

import os
import tempfile
import threading
import unittest

import numpy as np

import eager
from eager import Tensor, data, nn, optim
from eager.nn import finetune

F = nn.functional


def rows(loader):
    return [b["i"].numpy().tolist() for b in loader]


class Loader(unittest.TestCase):
    def setUp(self):
        self.arrays = {"x": np.random.default_rng(0).standard_normal((23, 3)).astype("f"), "i": np.arange(23)}

    def test_order(self):
        plain = rows(data.DataLoader(self.arrays, 5))
        self.assertEqual(sum(plain, []), list(range(23)))
        self.assertEqual(len(plain[-1]), 3)
        self.assertEqual(len(rows(data.DataLoader(self.arrays, 5, drop_last=True))), 4)
        loader = data.DataLoader(self.arrays, 5, shuffle=True, seed=3)
        first, second = rows(loader), rows(loader)
        self.assertEqual(sorted(sum(first, [])), list(range(23)))
        self.assertNotEqual(first, second)
        for prefetch in (0, 1, 4):
            again = data.DataLoader(self.arrays, 5, shuffle=True, seed=3, prefetch=prefetch)
            self.assertEqual((rows(again), rows(again)), (first, second))
        self.assertNotEqual(rows(data.DataLoader(self.arrays, 5, shuffle=True, seed=4)), first)
        batch = next(iter(loader))
        np.testing.assert_array_equal(batch["x"].numpy(), self.arrays["x"][batch["i"].numpy()])

    def test_resume(self):
        loader = data.DataLoader(self.arrays, 4, shuffle=True, seed=1)
        want = rows(loader) + rows(loader) + rows(loader)
        for stop in (0, 2, 5, 6, 9):
            loader, seen = data.DataLoader(self.arrays, 4, shuffle=True, seed=1), []
            while len(seen) < stop:
                for b in loader:
                    seen.append(b["i"].numpy().tolist())
                    if len(seen) == stop:
                        break
            state = loader.state_dict()
            other = data.DataLoader(self.arrays, 4, shuffle=True)
            other.load_state_dict(state)
            while len(seen) < len(want):
                seen += rows(other)
            self.assertEqual(seen, want, stop)
        with self.assertRaisesRegex(ValueError, "batch_size"):
            data.DataLoader(self.arrays, 5, shuffle=True).load_state_dict(state)

    def test_ranks(self):
        parts = [rows(data.DataLoader(self.arrays, 4, shuffle=True, rank=r, world_size=4)) for r in range(4)]
        self.assertEqual({len(sum(p, [])) for p in parts}, {6})
        self.assertEqual(set(sum(sum(parts, []), [])), set(range(23)))

    def test_transform_and_errors(self):
        loader = data.DataLoader(self.arrays, 5, transform=lambda b: (b["x"] * 2, b["i"]))
        x, i = next(iter(loader))
        np.testing.assert_array_equal(x.numpy(), self.arrays["x"][:5] * 2)

        def fail(b):
            if b["i"][0] >= 10:
                raise RuntimeError("in the thread")
            return b

        loader, n = data.DataLoader(self.arrays, 5, transform=fail), 0
        with self.assertRaisesRegex(RuntimeError, "in the thread"):
            for _ in loader:
                n += 1
        self.assertEqual((n, loader.batch), (2, 2))
        before = threading.active_count()
        for _ in data.DataLoader(self.arrays, 2):
            break
        self.assertEqual(threading.active_count(), before)  # the thread ends with the loop
        for make in (
            lambda: data.DataLoader({}, 2),
            lambda: data.DataLoader([np.ones(3), np.ones(4)], 2),
            lambda: data.DataLoader(self.arrays, 0),
            lambda: data.DataLoader(self.arrays, 2, rank=2, world_size=2),
            lambda: data.DataLoader(np.float32(1), 2),
        ):
            with self.assertRaises(ValueError):
                make()

    def test_permutation(self):
        p = data.permutation(1000, 5, 2)
        self.assertEqual(sorted(p), list(range(1000)))
        np.testing.assert_array_equal(p, data.permutation(1000, 5, 2))
        self.assertFalse((p == data.permutation(1000, 5, 3)).all())


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "state")

    def tearDown(self):
        self.folder.cleanup()

    def test_trees(self):
        state = {
            "t": Tensor.constant(np.array([1.5, np.nan, -0.0, np.inf], "f")),
            "b": Tensor.ones((2,)).astype("bfloat16"),
            "i": [1, 2.5, "x", None, True, (3,)],
            "a": np.arange(3),
            "k": eager.key(7),
            "e": Tensor.zeros((0, 3)),
        }
        data.save_state(self.path, state)
        back = data.load_state(self.path)
        self.assertEqual(back["t"].numpy().tobytes(), state["t"].numpy().tobytes())
        self.assertEqual((back["b"].dtype, back["k"].dtype), (eager.DType.bfloat16, eager.DType.uint64))
        self.assertEqual(back["i"], state["i"])
        self.assertEqual(tuple(back["e"].shape), (0, 3))
        with self.assertRaises(TypeError):
            data.save_state(self.path, {"f": print})
        self.assertEqual(os.listdir(self.folder.name), ["state"])  # no half of a file stays
        with open(self.path, "r+b") as f:
            f.truncate(100)
        with self.assertRaisesRegex(ValueError, "damaged"):
            data.load_state(self.path)

    def test_resume_to_the_same_bits(self):
        """Dropout, shuffled data, Adam's state: a run that was saved and loaded in the middle ends as one
        that was not."""
        r = np.random.default_rng(0)
        x, y = r.standard_normal((20, 4)).astype("f"), r.integers(0, 3, 20)

        def start():
            eager.seed(5)
            m = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
            return m, optim.AdamW(m, lr=0.01), data.DataLoader((x, y), 6, shuffle=True, seed=2)

        def run(m, opt, loader, steps):
            done = 0
            while done < steps:
                for a, b in loader:
                    loss = F.cross_entropy(m(a), b)
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                    done += 1
                    if done == steps:
                        break
            return loss.item()

        m, opt, loader = start()
        run(m, opt, loader, 5)
        data.save_train_state(self.path, model=m, optimizer=opt, loader=loader, note={"at": 5})
        want = run(m, opt, loader, 6)
        other, opt2, loader2 = start()
        eager.seed(99)
        more = data.load_train_state(self.path, model=other, optimizer=opt2, loader=loader2)
        self.assertEqual(more, {"note": {"at": 5}})
        self.assertEqual(run(other, opt2, loader2, 6), want)
        for a, b in zip(m.state_dict().values(), other.state_dict().values()):
            self.assertEqual(a.numpy().tobytes(), b.numpy().tobytes())
        fresh, _, _ = start()
        was = fresh[0].weight.numpy().copy()
        with self.assertRaisesRegex(ValueError, "SGD"):  # the model fits, the optimiser does not: neither is changed
            data.load_train_state(self.path, model=fresh, optimizer=optim.SGD(fresh, lr=0.1))
        np.testing.assert_array_equal(fresh[0].weight.numpy(), was)
        with self.assertRaisesRegex(ValueError, "not known: 1.weight"):
            data.load_train_state(self.path, model=nn.Sequential(nn.Linear(4, 8)))


class Finetune(unittest.TestCase):
    def test_lora(self):
        w, x = Tensor.constant(np.random.default_rng(0).standard_normal((6, 5)).astype("f")), Tensor.ones((2, 6))
        a = finetune.init_lora_adapter(w, 2)
        self.assertEqual((tuple(a["A"].shape), tuple(a["B"].shape)), ((6, 2), (2, 5)))
        self.assertEqual(abs(a["B"].numpy()).sum(), 0)
        np.testing.assert_allclose(finetune.lora_linear(x, w, a, 4.0).numpy(), (x @ w).numpy(), rtol=1e-6)
        a["B"] = Tensor.ones((2, 5))
        delta = a["A"].numpy() @ a["B"].numpy() * 2
        np.testing.assert_allclose(finetune.lora_delta(a, 4.0).numpy(), delta, rtol=1e-5)
        merged = finetune.merge_lora_weight(w, a, 4.0)
        np.testing.assert_allclose(finetune.lora_linear(x, w, a, 4.0).numpy(), (x @ merged).numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(finetune.unmerge_lora_weight(merged, a, 4.0).numpy(), w.numpy(), atol=1e-6)
        tree = finetune.tree_lora_delta({"q": a, "k": [a]}, 4.0)
        np.testing.assert_allclose(tree["k"][0].numpy(), delta, rtol=1e-5)
        g = eager.grad(lambda w, a: finetune.lora_linear(x, w, a, 4.0).sum(), argnums=(0, 1))(w, a)
        self.assertEqual(abs(g[0].numpy()).sum(), 0)  # frozen
        self.assertGreater(abs(g[1]["A"].numpy()).sum(), 0)
        for bad in (
            lambda: finetune.init_lora_adapter(w, 0),
            lambda: finetune.init_lora_adapter(w, 6),
            lambda: finetune.init_lora_adapter(x[0], 1),
            lambda: finetune.lora_linear(x, w.T, a, 1.0),
            lambda: finetune.lora_delta({"A": a["A"], "B": Tensor.ones((3, 5))}),
            lambda: finetune.merge_lora_weight(Tensor.ones((6, 4)), a),
        ):
            with self.assertRaises(ValueError):
                bad()

    def test_nf4(self):
        w = np.random.default_rng(0).standard_normal((30, 7)).astype("f")
        for packed in (False, True):
            q = finetune.quantize_nf4(w, 64, packed=packed)
            self.assertEqual((q["original_shape"], q["original_numel"], q["padded_numel"], q["block_size"]), ((30, 7), 210, 256, 64))
            back = finetune.dequantize_nf4(q, dtype="float32").numpy()
            values, flat = np.array(finetune.NF4), np.pad(w.ravel(), (0, 46)).reshape(4, 64)
            scale = abs(flat).max(1, keepdims=True)
            want = (values[abs((flat / scale)[..., None] - values).argmin(-1)] * scale).ravel()[:210].reshape(30, 7)
            np.testing.assert_allclose(back, want, rtol=1e-6)
        self.assertEqual(q["indices"].dtype, eager.DType.uint8)
        self.assertEqual(abs(finetune.dequantize_nf4(finetune.quantize_nf4(np.zeros((4, 4), "f"))).numpy()).sum(), 0)
        a = finetune.init_lora_adapter(Tensor.constant(w), 3)
        a["B"] = Tensor.ones((3, 7))
        x = Tensor.constant(np.random.default_rng(1).standard_normal((4, 30)).astype("f"))
        y = finetune.qlora_linear(x, q, a, alpha=6.0, compute_dtype="float32")
        np.testing.assert_allclose(y.numpy(), finetune.lora_linear(x, Tensor.constant(back), a, 6.0).numpy(), rtol=1e-4, atol=1e-4)
        self.assertEqual(finetune.qlora_linear(x, q, a, alpha=6.0, compute_dtype="bfloat16").dtype, eager.DType.float32)
        for bad in (
            lambda: finetune.quantize_nf4(w, 0),
            lambda: finetune.dequantize_nf4({"indices": 1}),
            lambda: finetune.qlora_linear(x, finetune.quantize_nf4(w[0]), a),
        ):
            with self.assertRaises(ValueError):
                bad()

    def test_models(self):
        for quantize in (False, True):
            eager.seed(0)
            m = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
            x = Tensor.constant(np.random.default_rng(0).standard_normal((8, 6)).astype("f"))
            before = m(x).numpy()
            finetune.add_lora(m, 2, alpha=4.0, quantize=quantize)
            np.testing.assert_allclose(m(x).numpy(), before, atol=0.5 if quantize else 1e-6)
            self.assertEqual(len([p for p in m.parameters() if p.requires_grad]), 4)
            opt = optim.AdamW(finetune.lora_parameters(m), lr=0.05)
            losses = []
            for _ in range(20):
                loss = F.mse_loss(m(x), Tensor.ones((8, 3)))
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
            self.assertLess(losses[-1], 0.5 * losses[0])
            if quantize:
                with self.assertRaises(ValueError):
                    finetune.merge_lora(m)
                continue
            tuned = m(x).numpy()
            finetune.merge_lora(m)
            np.testing.assert_allclose(m(x).numpy(), tuned, atol=1e-4)
            finetune.unmerge_lora(m)
            np.testing.assert_allclose(m(x).numpy(), tuned, atol=1e-4)
            adapters = finetune.lora_state_dict(m)
            self.assertEqual(sorted(adapters), ["0", "2"])
            with self.assertRaises(ValueError):
                finetune.load_lora_state_dict(m, {"0": adapters["0"]})
            finetune.load_lora_state_dict(m, adapters)
        with self.assertRaises(ValueError):
            finetune.add_lora(nn.Sequential(nn.ReLU()), 2)

    def test_checkpoints(self):
        params = {"q": finetune.init_lora_adapter(Tensor.ones((4, 4)), 2)}
        state = optim.adamw_init(params)
        params, state = optim.adamw_update(params, params, state, lr=0.1)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "adapter")
            finetune.save_finetune_checkpoint(path, lora_params=params, optimizer_state=state, metadata={"step": 1, "name": "x"})
            p, s, meta = finetune.load_finetune_checkpoint(path, lora_template=params, optimizer_template=state)
            self.assertEqual(meta, {"step": 1, "name": "x"})
            self.assertEqual(p["q"]["A"].numpy().tobytes(), params["q"]["A"].numpy().tobytes())
            self.assertEqual(s["v"]["q"]["B"].numpy().tobytes(), state["v"]["q"]["B"].numpy().tobytes())
            self.assertEqual(int(s["step"]), 1)
            for template in ({"q": finetune.init_lora_adapter(Tensor.ones((4, 4)), 3)}, {"k": params["q"], "q": params["q"]}):
                with self.assertRaises(ValueError):
                    finetune.load_finetune_checkpoint(path, lora_template=template)
            finetune.save_finetune_checkpoint(path, lora_params=params)
            self.assertEqual(finetune.load_finetune_checkpoint(path, lora_template=params)[1:], (None, None))
            with self.assertRaises(ValueError):
                finetune.load_finetune_checkpoint(path, lora_template=params, optimizer_template=state)


if __name__ == "__main__":
    unittest.main()
