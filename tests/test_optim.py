"""Optimisers against torch and optax over many steps; schedules, clipping, accumulation, averages, loss
scaling; errors that leave everything as it was."""

import importlib.util
import math
import os
import unittest

import numpy as np

import eager
from eager import Tensor, nn, optim

torch = optax = None
if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(1)
if importlib.util.find_spec("optax") and importlib.util.find_spec("jax"):
    import jax
    import optax

SHAPES = ((4, 6), (6,), (3, 2, 5), ())
STEPS = 100


def start():
    r = np.random.default_rng(0)
    return [r.standard_normal(s).astype(np.float32) for s in SHAPES]


def gradients(k):
    r = np.random.default_rng(1000 + k)
    return [r.standard_normal(s).astype(np.float32) for s in SHAPES]


def close(a, b, tol=1e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tol, atol=tol)


def ours(update, init, steps=STEPS, **kw):
    """All steps in one compiled function, whose state goes around."""
    params = [Tensor.constant(p) for p in start()]
    state = init(params)
    step = eager.compile(lambda p, g, s: update(p, g, s, **kw))
    for k in range(steps):
        params, state = step(params, [Tensor.constant(g) for g in gradients(k)], state)
    return [p.numpy() for p in params]


@unittest.skipUnless(torch, "torch is not installed")
class AgainstTorch(unittest.TestCase):
    def check(self, cls, theirs, tol=1e-5, torch_kw=None, **kw):
        name = cls.__name__.lower()
        ts = [torch.from_numpy(p).requires_grad_() for p in start()]
        opt = theirs(ts, **(kw if torch_kw is None else torch_kw))
        for k in range(STEPS):
            for t, g in zip(ts, gradients(k)):
                t.grad = torch.from_numpy(np.asarray(g))
            opt.step()
        # as a class
        ps = [Tensor.constant(p).requires_grad_() for p in start()]
        mine = cls(ps, **kw)
        for k in range(STEPS):
            for p, g in zip(ps, gradients(k)):
                p.grad = Tensor.constant(g)
            mine.step()
        for p, t in zip(ps, ts):
            self.assertTrue(p.requires_grad)
            close(p.detach().numpy(), t.detach().numpy(), tol)
        # and as a function
        if "betas" in kw:
            kw["beta1"], kw["beta2"] = kw.pop("betas")
        got = ours(getattr(optim, f"{name}_update"), getattr(optim, f"{name}_init"), **kw)
        for p, t in zip(got, ts):
            close(p, t.detach().numpy(), tol)

    def test_sgd(self):
        self.check(optim.SGD, torch.optim.SGD, lr=0.01)
        self.check(optim.SGD, torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.1)
        self.check(optim.SGD, torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True)
        self.check(optim.SGD, torch.optim.SGD, lr=0.01, momentum=0.9, dampening=0.3)

    def test_adam(self):
        self.check(optim.Adam, torch.optim.Adam, lr=0.01, weight_decay=0.1)
        self.check(optim.AdamW, torch.optim.AdamW, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)

    def test_rmsprop(self):
        self.check(optim.RMSprop, torch.optim.RMSprop, lr=0.01)
        self.check(optim.RMSprop, torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True, weight_decay=0.01, tol=1e-4)

    def test_adagrad(self):
        self.check(optim.Adagrad, torch.optim.Adagrad, lr=0.1, lr_decay=0.01, weight_decay=0.01)

    def test_adafactor(self):
        self.check(optim.Adafactor, torch.optim.Adafactor, lr=0.05, weight_decay=0.01, tol=1e-4)

    def test_muon(self):
        """Torch iterates in bf16, so the direction is only near; ours is checked against the same in f64."""
        p, g = np.random.default_rng(0).standard_normal((2, 8, 12))
        t = torch.from_numpy(p.T.astype(np.float32).copy()).requires_grad_()
        opt = torch.optim.Muon([t], lr=0.1, weight_decay=0.1)
        t.grad = torch.from_numpy(g.T.astype(np.float32).copy())
        opt.step()
        new, m = optim.muon_step(Tensor.constant(p.astype("f")), Tensor.constant(g.astype("f")), Tensor.zeros((8, 12)), lr=0.1, weight_decay=0.1)
        np.testing.assert_allclose(new.numpy(), t.detach().numpy().T, atol=5e-3)
        m = 0.05 * g
        x = 0.05 * g + 0.95 * m
        x /= np.linalg.norm(x)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        np.testing.assert_allclose(new.numpy(), p * (1 - 0.01) - 0.1 * math.sqrt(12 / 8) * x, atol=1e-4)
        params = {"w": Tensor.constant(p.astype("f")), "b": Tensor.zeros((12,))}
        grads = {"w": Tensor.constant(g.astype("f")), "b": Tensor.ones((12,))}
        both, state = optim.muon_update(params, grads, optim.muon_init(params), lr=0.1, weight_decay=0.1)
        close(both["w"].numpy(), new.numpy(), 1e-6)
        close(both["b"].numpy(), -0.1 * np.ones(12), 1e-4)  # Adam's first step


@unittest.skipUnless(optax, "optax is not installed")
class AgainstOptax(unittest.TestCase):
    def check(self, theirs, name, tol=1e-5, **kw):
        params = start()
        state = theirs.init(params)
        step = jax.jit(theirs.update)
        for k in range(STEPS):
            updates, state = step(gradients(k), state, params)
            params = optax.apply_updates(params, updates)
        for a, b in zip(ours(getattr(optim, f"{name}_update"), getattr(optim, f"{name}_init"), **kw), params):
            close(a, b, tol)

    def test_all(self):
        self.check(optax.sgd(0.01, momentum=0.9, nesterov=True), "sgd", lr=0.01, momentum=0.9, nesterov=True)
        self.check(optax.adam(0.01), "adam", lr=0.01)
        self.check(optax.adamw(0.01, weight_decay=0.1), "adamw", lr=0.01, weight_decay=0.1)
        self.check(optax.lion(0.01, weight_decay=0.1), "lion", lr=0.01, weight_decay=0.1)
        self.check(optax.lamb(0.01, weight_decay=0.1), "lamb", lr=0.01, weight_decay=0.1, tol=2e-5)

    def test_schedule_in_a_compiled_step(self):
        mine = optim.cosine_schedule(0.02, 80, warmup_steps=10, final=0.001)
        theirs = optax.warmup_cosine_decay_schedule(0.0, 0.02, 10, 80, 0.001)
        for k in (0, 3, 10, 11, 50, 80, 99):
            self.assertAlmostEqual(mine(k), float(theirs(k)), places=7)
        self.check(optax.adam(theirs), "adam", lr=mine)


class Updates(unittest.TestCase):
    def test_names_and_shapes(self):
        params = {"w": Tensor.ones((2, 3)), "b": Tensor.zeros((3,))}
        grads = {"w": Tensor.ones((2, 3)), "b": Tensor.ones((3,))}
        state = optim.adamw_init(params)
        self.assertEqual(sorted(state), ["m", "step", "v"])
        self.assertEqual(int(state["step"]), 0)
        new, state = optim.adamw_update(params, grads, state, lr=0.1)
        self.assertEqual(int(state["step"]), 1)
        self.assertTrue(new["w"].real)  # evaluated
        lazy, _ = optim.adamw_update(params, grads, state, lr=0.1, realize=False)
        self.assertFalse(lazy["w"].real)
        new, state = optim.sgd_update(params, grads, lr=0.1, momentum=0.9)
        self.assertEqual((sorted(state), int(state["step"])), (["momentum_buffers", "step"], 1))
        p, buffer = optim.sgd_step(params["b"], grads["b"], lr=0.1, weight_decay=0.0, momentum=0.9)
        close(p.numpy(), [-0.1] * 3)
        close(buffer.numpy(), [1] * 3)
        p, m, v = optim.adamw_step(
            params["b"], grads["b"], Tensor.zeros((3,)), Tensor.zeros((3,)), 1, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0
        )
        close(p.numpy(), [-0.1] * 3)
        p, m, v = optim.adamw_step(
            params["b"], grads["b"], Tensor.zeros((3,)), Tensor.zeros((3,)), 1, lr=0.1, weight_decay=0.0, bias_correction=False
        )
        close(p.numpy(), [-0.1 * 0.1 / math.sqrt(0.001)] * 3, 1e-4)

    def test_other_trees(self):
        params, grads = {"w": Tensor.ones((2,))}, {"w": Tensor.ones((2,))}
        state = optim.adamw_init(params)
        for p, g, s in (
            (params, {"v": Tensor.ones((2,))}, state),
            (params, {"w": Tensor.ones((3,))}, state),
            ({"a": Tensor.ones((2,))}, {"a": Tensor.ones((2,))}, state),
            (params, grads, {}),
            (params, grads, optim.adamw_init({"w": Tensor.ones((5,))})),
        ):
            with self.assertRaises(ValueError):
                optim.adamw_update(p, g, s, lr=0.1)
        m = nn.Linear(2, 3)
        before = m.weight.numpy().copy()
        opt = optim.AdamW(m.parameters(), lr=0.1)
        for bad in ([Tensor.ones((2, 3))], [Tensor.ones((2, 3)), Tensor.ones((4,))], {"a": Tensor.ones((2, 3))}):
            with self.assertRaises(ValueError):
                opt.step(bad)
        with self.assertRaisesRegex(RuntimeError, "backward"):
            opt.step()
        np.testing.assert_array_equal(m.weight.numpy(), before)
        for make in (
            lambda: optim.SGD([], lr=0.1),
            lambda: optim.AdamW(m, lr=-1.0),
            lambda: optim.AdamW(m, lr=0.1, betas=(1.0, 0.9)),
            lambda: optim.SGD(m, lr=0.1, nesterov=True),
            lambda: optim.AdamW([m.weight, m.weight], lr=0.1),
        ):
            with self.assertRaises(ValueError):
                make()

    def test_grads_of_step(self):
        m = nn.Linear(2, 3)
        g = eager.grad(lambda m: m(Tensor.ones((1, 2))).sum())(m)
        optim.SGD(m, lr=1.0).step(g)
        params = {"w": Tensor.zeros((2,)).requires_grad_()}
        opt = optim.SGD(params, lr=1.0)
        opt.step({"w": Tensor.ones((2,))})
        close(params["w"].detach().numpy(), [-1, -1])

    def test_groups_and_missing_gradients(self):
        a, b, c = (Tensor.zeros((2,)).requires_grad_() for _ in range(3))
        opt = optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b, c]}], lr=0.1)
        a.grad = b.grad = Tensor.ones((2,))
        opt.step()
        self.assertEqual([t.detach().numpy()[0] for t in (a, b, c)], [-1, np.float32(-0.1), 0])
        adam = optim.AdamW([a, c], lr=0.1)  # c has its first step later: its correction begins then
        a.grad = Tensor.ones((2,))
        adam.step()
        c.grad = Tensor.ones((2,)) * 3
        adam.step()
        close(c.detach().numpy(), [-0.1, -0.1], 1e-4)

    def test_state_dict(self):
        def run(steps, opt, ps, first=0):
            for k in range(first, first + steps):
                for p, g in zip(ps, gradients(k)):
                    p.grad = Tensor.constant(g)
                opt.step()

        make = lambda: [Tensor.constant(p).requires_grad_() for p in start()]  # noqa: E731
        ps = make()
        opt = optim.AdamW(ps, lr=0.01)
        run(6, opt, ps)
        qs = make()
        half = optim.AdamW(qs, lr=0.5)
        run(3, opt2 := optim.AdamW(qs, lr=0.01), qs)
        half.load_state_dict(opt2.state_dict())
        run(3, half, qs, 3)
        for p, q in zip(ps, qs):
            np.testing.assert_array_equal(p.numpy(), q.numpy())
        with self.assertRaises(ValueError):
            optim.SGD(qs, lr=0.1).load_state_dict(opt.state_dict())
        with self.assertRaises(ValueError):
            optim.AdamW(qs[:2], lr=0.1).load_state_dict(opt.state_dict())

    def test_policy(self):
        p = Tensor.zeros((2,)).requires_grad_()
        opt = optim.SGD([p], lr=0.1)
        self.assertEqual(opt.get_execution_policy(), {"auto_realize_updated_params": True, "auto_realize_updated_state": True})
        optim.SGD.set_execution_policy(auto_realize_updated_params=False, auto_realize_updated_state=False)
        try:
            opt.step([Tensor.ones((2,))])
            self.assertFalse(p.real)
        finally:
            optim.SGD.set_execution_policy(auto_realize_updated_params=True, auto_realize_updated_state=True)
        opt.step([Tensor.ones((2,))])
        self.assertTrue(p.real)
        close(p.detach().numpy(), [-0.2, -0.2])

    def test_halves_keep_f32_state(self):
        p = {"w": Tensor.ones((4,)).astype("bfloat16")}
        g = {"w": (Tensor.ones((4,)) * 1e-3).astype("bfloat16")}
        new, state = optim.adamw_update(p, g, optim.adamw_init(p), lr=1e-2)
        self.assertEqual((new["w"].dtype, state["m"]["w"].dtype), (eager.DType.bfloat16, eager.DType.float32))

    def test_one_program_and_no_growth(self):
        """The loss and what a step computes are one program; nothing of old steps stays."""
        m = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Linear(8, 1))
        opt, x = optim.AdamW(m, lr=1e-2), Tensor.constant(start()[0][:, :4])
        live = []
        for _ in range(12):
            loss = (m(x) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            self.assertTrue(loss.real)
            self.assertTrue(m[1].running_mean.real)
            live.append(eager.stats()["live_nodes"])
        self.assertLessEqual(live[-1], live[4] + 4)

    def test_launches(self):
        """An update of many tensors of different shapes is at most three launches, and writes over what was
        given away."""
        r = np.random.default_rng(0)
        shapes = [(50 + 3 * i, 8) if i % 2 else (100 + 7 * i,) for i in range(100)]
        arrays = [r.standard_normal(s).astype("f") for s in shapes]
        params, grads = [Tensor.constant(a) for a in arrays], [Tensor.constant(a) for a in arrays]
        step = eager.compile(lambda p, g, s: optim.adamw_update(p, g, s, lr=0.1), donate=(0, 2))
        state = optim.adamw_init(params)
        params, state = step(params, grads, state)
        before = eager.stats()["steps"]
        places = {t.numpy().__array_interface__["data"][0] for t in (*params, *state["m"], *state["v"])}
        params, state = step(params, grads, state)
        if os.environ.get("EAS_BACKEND", "cpu") in ("cpu", "auto"):
            self.assertLessEqual(eager.stats()["steps"] - before, 3)
            now = {t.numpy().__array_interface__["data"][0] for t in (*params, *state["m"], *state["v"])}
            self.assertGreater(len(places & now), 290)  # of 300
        m = v = np.zeros(shapes[0], np.float64)
        want = arrays[0].astype(np.float64)
        for k in (1, 2):
            m, v = 0.9 * m + 0.1 * arrays[0], 0.999 * v + 0.001 * arrays[0] ** 2
            want = want - 0.1 * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
        close(params[0].numpy(), want, 1e-4)

    def test_what_is_handed_back_is_not_given_away(self):
        f = eager.compile(lambda a, b: (a, b * 2), donate=(0, 1))
        a, b = Tensor.ones((8,)).realize(), Tensor.ones((8,)).realize()
        for _ in range(3):
            a, b = f(a, b)
        close(a.numpy(), np.ones(8))
        close(b.numpy(), np.full(8, 8.0))

    def test_loss_goes_down_with_each(self):
        x = Tensor.constant(np.random.default_rng(0).standard_normal((16, 4)).astype("f"))
        for name, lr in (
            ("SGD", 0.1),
            ("Adam", 0.02),
            ("AdamW", 0.02),
            ("Lion", 0.01),
            ("RMSprop", 0.01),
            ("Adagrad", 0.1),
            ("Adafactor", 0.1),
            ("LAMB", 0.05),
            ("Muon", 0.05),
        ):
            eager.seed(1)
            m = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
            opt, losses = getattr(optim, name)(m, lr=lr), []
            for _ in range(15):
                loss = nn.functional.mse_loss(m(x), x[:, :2])
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
            self.assertLess(losses[-1], 0.8 * losses[0], name)


class Schedules(unittest.TestCase):
    def test_tensors_as_numbers(self):
        for s in (
            optim.constant_schedule(0.1),
            optim.cosine_schedule(0.1, 50, 5, 0.01),
            optim.linear_schedule(0.1, 0.0, 40),
            optim.step_schedule(0.1, 10, 0.5),
            optim.one_cycle_schedule(0.1, 50),
            optim.exponential_schedule(0.1, 0.9),
            optim.warmup_linear_schedule(0.1, 50, 5),
        ):
            for k in (0, 1, 4, 5, 9, 10, 20, 39, 49, 60):
                self.assertAlmostEqual(s(k), s(Tensor.constant(k)).item(), places=7, msg=f"{s} at {k}")

    @unittest.skipUnless(torch, "torch is not installed")
    def test_against_torch(self):
        def theirs(make, steps=40):
            opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
            s, out = make(opt), []
            for _ in range(steps):
                out.append(opt.param_groups[0]["lr"])
                opt.step()
                s.step()
            return out

        lrs = torch.optim.lr_scheduler
        for mine, make in (
            (optim.step_schedule(0.1, 7, 0.5), lambda o: lrs.StepLR(o, 7, 0.5)),
            (optim.exponential_schedule(0.1, 0.9), lambda o: lrs.ExponentialLR(o, 0.9)),
            (optim.cosine_schedule(0.1, 40), lambda o: lrs.CosineAnnealingLR(o, 40)),
            (optim.linear_schedule(0.1 * 0.3, 0.1, 10), lambda o: lrs.LinearLR(o, 0.3, 1.0, 10)),
            (optim.one_cycle_schedule(0.1, 40), lambda o: lrs.OneCycleLR(o, 0.1, total_steps=41 - 1, cycle_momentum=False)),
        ):
            steps = 39 if "one_cycle" in repr(mine) else 40
            np.testing.assert_allclose([mine(k) for k in range(steps)], theirs(make, steps), rtol=1e-5, atol=1e-8, err_msg=repr(mine))

    def test_scheduler(self):
        opt = optim.SGD([Tensor.zeros((1,)).requires_grad_()], lr=1.0)
        s = optim.LRScheduler(opt, optim.step_schedule(1.0, 2, 0.1))
        seen = []
        for _ in range(4):
            seen.append(opt.lr)
            opt.step([Tensor.ones((1,))])
            s.step()
        np.testing.assert_allclose(seen, [1, 1, 0.1, 0.1])
        for bad in (lambda: optim.cosine_schedule(0.1, 10, 10), lambda: optim.step_schedule(0.1, 0), lambda: optim.linear_schedule(1, 0, 0)):
            with self.assertRaises(ValueError):
                bad()


class Around(unittest.TestCase):
    @unittest.skipUnless(torch, "torch is not installed")
    def test_clipping(self):
        for norm in (2.0, 1.0, math.inf):
            ts = [torch.zeros(s, requires_grad=True) for s in SHAPES]
            for t, g in zip(ts, gradients(0)):
                t.grad = torch.from_numpy(np.asarray(g).copy())
            want = torch.nn.utils.clip_grad_norm_(ts, 1.5, norm)
            grads, got = optim.clip_grad_norm([Tensor.constant(g) for g in gradients(0)], 1.5, norm)
            self.assertAlmostEqual(got.item(), want.item(), places=4)
            for g, t in zip(grads, ts):
                close(g.numpy(), t.grad.numpy())
        ps = [Tensor.constant(p).requires_grad_() for p in start()]
        for p, g in zip(ps, gradients(0)):
            p.grad = Tensor.constant(g)
        optim.clip_grad_norm_(ps, 0.1)
        self.assertAlmostEqual(optim.global_norm([p.grad for p in ps]).item(), 0.1, places=5)
        optim.clip_grad_value_(ps, 0.01)
        self.assertLessEqual(max(abs(p.grad.numpy()).max() for p in ps), 0.01 + 1e-9)
        small, norm = optim.clip_grad_norm({"a": Tensor.ones((2,))}, 100.0)
        close(small["a"].numpy(), [1, 1])

    def test_accumulation(self):
        params = {"w": Tensor.zeros((2,))}

        @eager.compile
        def step(params, state, acc, g):
            acc, mean, due = optim.accumulation_step(acc, g, 4)
            new, news = optim.adamw_update(params, mean, state, lr=0.1)
            return optim.select_tree(due, new, params), optim.select_tree(due, news, state), acc

        state, acc = optim.adamw_init(params), optim.accumulation_init(params)
        p = params
        for k in range(8):
            p, state, acc = step(p, state, acc, {"w": Tensor.full((2,), float(k))})
        want, ws = params, optim.adamw_init(params)
        for k in (1.5, 5.5):
            want, ws = optim.adamw_update(want, {"w": Tensor.full((2,), k)}, ws, lr=0.1)
        close(p["w"].numpy(), want["w"].numpy(), 1e-6)
        self.assertEqual(int(state["step"]), 2)

    def test_ema(self):
        a = optim.ema_init({"w": Tensor.zeros((2,))})
        for _ in range(3):
            a = optim.ema_update(a, {"w": Tensor.ones((2,))}, 0.5)
        close(a["w"].numpy(), [0.875] * 2)
        m = nn.Linear(2, 2)
        first = m.weight.numpy().copy()
        ema = optim.EMA(m, 0.9)
        optim.SGD(m, lr=1.0).step([Tensor.ones(p.shape) for p in m.parameters()])
        ema.update()
        with ema.average() as averaged:
            close(averaged.weight.detach().numpy(), first - 0.1, 1e-5)
            self.assertTrue(m.weight.requires_grad)
        close(m.weight.detach().numpy(), first - 1, 1e-6)

    def test_loss_scaling(self):
        p = {"w": Tensor.ones((3,))}
        state, scale = optim.adamw_init(p), optim.loss_scale_init(2.0**10)

        @eager.compile
        def step(p, state, scale, x):
            def f(p):
                y = (p["w"].astype("float16") * x).sum().astype("float32")
                return y * scale["scale"]

            grads, finite = optim.unscale(eager.grad(f)(p), scale)
            new, news = optim.adamw_update(p, grads, state, lr=0.1)
            return (
                optim.select_tree(finite, new, p),
                optim.select_tree(finite, news, state),
                optim.loss_scale_update(scale, finite, growth_interval=2),
            )

        x = Tensor.ones((3,)).astype("float16")
        p, state, scale = step(p, state, scale, x * 60000.0)  # overflows times the scale
        close(p["w"].numpy(), [1, 1, 1])
        self.assertEqual((scale["scale"].item(), int(state["step"])), (2.0**9, 0))
        for _ in range(2):
            p, state, scale = step(p, state, scale, x)
        self.assertEqual((scale["scale"].item(), int(state["step"])), (2.0**10, 2))
        w = Tensor.ones((3,)).requires_grad_()
        opt, scaler = optim.SGD([w], lr=0.1), optim.GradScaler(2.0**8)
        for big in (False, True):
            loss = (w.astype("float16") * (x * (60000.0 if big else 1.0))).sum()
            scaler.scale(loss.astype("float32")).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        close(w.detach().numpy(), [0.9] * 3)
        self.assertEqual(scaler.get_scale(), 2.0**7)


if __name__ == "__main__":
    unittest.main()
