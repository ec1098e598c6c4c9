"""Sharded tensors run: layouts that are stored, derivatives, loops, compiled functions, padding, kernels,
collectives, shard_map; what is sent is what was told."""

import gc
import os
import threading
import unittest

import numpy as np

import eager
from eager import DeviceMesh, P, Tensor

M, M8, G = DeviceMesh("m", (4,), ("x",)), DeviceMesh("m8", (8,), ("x",)), DeviceMesh("g", (2, 4), ("a", "b"))
R = np.random.default_rng(3)


def f32(*shape):
    return R.standard_normal(shape).astype(np.float32)


def on(a, mesh, *spec, **kw):
    return Tensor.constant(a).shard(mesh, P(*spec), **kw)


def axes(t):
    return [d.axes for d in t.sharding.dim_specs]


def sent(fn):
    """Bytes that computing what fn gives takes: as told before, and as counted."""
    t = fn()
    told = eager.explain_sharding(t).total_bytes
    before = eager.comm_stats()["bytes"]
    eager.realize_all(t)
    return told, eager.comm_stats()["bytes"] - before


class Stored(unittest.TestCase):
    def test_parts(self):
        a = f32(8, 4)
        t = on(a, M, "x")
        self.assertEqual((tuple(t.local_shape), tuple(t.shape), t.is_sharded), ((2, 4), (8, 4), True))
        for k, part in t.local_parts():
            np.testing.assert_array_equal(part, a[2 * k : 2 * k + 2])
        t = on(a, G, "b", "a")
        for k, part in t.local_parts():
            i, j = divmod(k, 4)
            np.testing.assert_array_equal(part, a[2 * j : 2 * j + 2, 2 * i : 2 * i + 2])
        t = on(a, G, ("b", "a"))
        for k, part in t.local_parts():
            i, j = divmod(k, 4)
            np.testing.assert_array_equal(part, a[2 * j + i][None])
        self.assertIsNone(Tensor.constant(a).local_parts())
        np.testing.assert_array_equal(t.numpy(), a)
        self.assertEqual(t.gather().sharding, None)
        np.testing.assert_array_equal(np.asarray(t.gather()), a)

    def test_what_is_stored_is_what_is_told(self):
        x, w = on(f32(8, 8), M, "x"), on(f32(8, 4), M, "x")
        y = (x @ w).realize()
        self.assertEqual((axes(y), y.sharding.partial_sum_axes), ([["x"], []], set()))
        z = (on(f32(8, 8), M, None, "x") @ w).realize()
        self.assertEqual((axes(z), z.is_sharded), ([[], []], False))

    def test_from_local_and_callback(self):
        t = Tensor.from_local([np.full((2, 3), k, np.int32) for k in range(4)], M, P("x"))
        np.testing.assert_array_equal(t.numpy(), np.repeat(np.arange(4, dtype=np.int32), 2)[:, None] * np.ones((1, 3), np.int32))
        a, asked = f32(8, 6), []
        t = eager.shard_from_callback(lambda s: asked.append(s) or a[s], a.shape, G, P("b", "a"))
        np.testing.assert_array_equal((t * 2).numpy(), a * 2)
        self.assertEqual(len(asked), 8)
        with self.assertRaisesRegex(ValueError, "3 parts for the 4 devices"):
            Tensor.from_local([np.ones(2)] * 3, M, P("x"))
        with self.assertRaisesRegex(ValueError, "device 1"):
            Tensor.from_local([np.ones(2), np.ones(3), np.ones(2), np.ones(2)], M, P("x"))

    def test_shapes_of_parts(self):
        spec = eager.ShardingSpec(G, ["a", ("b",), None])
        self.assertEqual(eager.compute_local_shape((4, 8, 3), spec), (2, 2, 3))
        self.assertEqual((eager.get_num_shards(spec), eager.get_num_shards(spec, 1)), (8, 4))
        self.assertEqual(eager.compute_local_shape((5,), eager.ShardingSpec(M, ["x"])), (2,))

    def test_reshard(self):
        a = f32(8, 8, 8)
        specs = [P(), P("a"), P("b"), P(None, "a", "b"), P(("a", "b")), P(("b", "a")), P("a", None, "b"), P(None, ("b", "a")), P("b", "a")]
        for s in specs:
            t = on(a, G, *s)
            for to in specs:
                r = t.reshard(G, to)
                told, counted = sent(lambda r=r: r)
                np.testing.assert_array_equal(r.numpy(), a, err_msg=f"{s} to {to}")
                self.assertEqual(told, counted)
                self.assertEqual(r.sharding, to.to_spec(G, 3))

    def test_moves(self):
        t = on(f32(8, 8), M, "x").realize()
        one = 8 * 8 * 4
        self.assertEqual(sent(lambda: t.reshard(M, P(None, "x"))), (one * 3 // 4,) * 2)  # all_to_all
        self.assertEqual(sent(lambda: t.reshard(M, P())), (one * 3,) * 2)  # all_gather
        self.assertEqual(sent(lambda: t * 2 + 1), (0, 0))
        self.assertEqual(sent(lambda: t @ on(f32(8, 4), M).realize()), (0, 0))
        p = on(f32(8, 8), M, None, "x").realize()
        w = on(f32(8, 8), M, "x").realize()
        self.assertEqual(sent(lambda: (p @ w).shard(M, P("x"))), (one * 3,) * 2)  # reduce_scatter: (n - 1) / n of the whole from each of n
        self.assertEqual(sent(lambda: p @ w), (2 * one * 3,) * 2)  # all_reduce

    def test_rows_of_tables(self):
        table, index = f32(64, 4), R.integers(-64, 64, (8,))
        t, i = on(table, M, "x").realize(), Tensor.constant(index)
        self.assertEqual(sent(lambda: eager.gather(t, i, axis=0)), (2 * 3 * 8 * 4 * 4,) * 2)  # a sum of the rows, not the table
        np.testing.assert_array_equal(eager.gather(t, i, axis=0).numpy(), table[index])
        few = np.array([0, 61, -1, -62])
        np.testing.assert_array_equal(eager.gather(on(table[:62], M, "x", pad=True), Tensor.constant(few), axis=0).numpy(), table[:62][few])
        with self.assertRaises(IndexError):
            eager.gather(t, Tensor.constant(np.array([64])), axis=0).numpy()
        rows = on(np.abs(index), M, "x").realize()
        u = on(f32(8, 4), M, "x").realize()
        whole = np.zeros((64, 4), np.float32)
        np.add.at(whole, np.abs(index) % 64, u.numpy())
        added = lambda: eager.scatter(Tensor.ones((64, 4)), rows % 64, u, axis=0, mode="add")  # noqa: E731
        np.testing.assert_allclose(added().numpy(), whole + 1, rtol=1e-6)
        self.assertEqual(sent(lambda: added().shard(M, P("x"))), (3 * 64 * 4 * 4,) * 2)  # reduce_scatter

    def test_made_in_parts(self):
        z = Tensor.zeros((8, 8)).shard(M, P("x"))
        self.assertEqual(sent(lambda: z + 1), (0, 0))
        self.assertEqual(float(z.sum().item()), 0)
        e = (eager.arange(64, dtype="float32").reshape((8, 8)) * 2).shard(G, P("b", "a"))
        self.assertEqual(sent(lambda: e), (0, 0))
        np.testing.assert_array_equal(e.numpy(), np.arange(64, dtype=np.float32).reshape(8, 8) * 2)

    def test_refused(self):
        t = Tensor.ones((6, 4))
        for words, fn in [
            ("size 6 cannot be cut into 4 equal parts; pass pad=True", lambda: t.shard(M, ["x", None])),
            ("used twice", lambda: t.shard(M, [None, "x"], replicated_axes={"x"})),
            ("no axis 'q'", lambda: t.shard(M, ["q", None])),
            ("1 specs for a tensor of 2", lambda: t.shard(M, ["x"])),
            ("lies on", lambda: t.shard(G, ["a", None]) + t.shard(M, [None, "x"])),
        ]:
            with self.assertRaisesRegex(ValueError, words):
                fn()

    def test_another_mesh(self):
        a = f32(8, 4)
        t = on(a, M, "x").shard(G, P("b", "a"))
        self.assertEqual(axes(t.realize()), [["b"], ["a"]])
        np.testing.assert_array_equal(t.numpy(), a)

    def test_dtypes_and_shapes(self):
        for dt in ("bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64"):
            a = R.integers(0, 2, (8, 4))
            t = Tensor.constant(a).cast(dt)
            s = t.shard(M, P("x")).reshard(M, P(None, "x")).gather()
            self.assertEqual(s.cast("int64").tolist(), a.tolist())
            if dt != "bool":
                self.assertEqual(t.shard(M, P("x")).sum(0).cast("float64").tolist(), t.sum(0).cast("float64").tolist())
                self.assertEqual(t.shard(M, P("x")).max(0).cast("float64").tolist(), t.max(0).cast("float64").tolist())
        empty = Tensor.zeros((0, 4)).shard(M, P(None, "x"))
        self.assertEqual((empty + 1).numpy().shape, (0, 4))
        self.assertEqual(Tensor.zeros((0, 4)).shard(M, P("x")).sum(0).tolist(), [0.0] * 4)
        self.assertEqual(Tensor.constant(3.0).shard(M, P()).item(), 3.0)
        strided = Tensor.constant(np.asfortranarray(f32(8, 4)))
        np.testing.assert_array_equal(strided.T.shard(M, P("x")).numpy(), strided.numpy().T)

    def test_an_error_of_one_device_is_raised_once(self):
        x, i = on(f32(8, 4), M, None, "x"), Tensor.constant(np.array([1, 99]))
        with self.assertRaises(IndexError):
            eager.gather(x, i, axis=0).numpy()
        np.testing.assert_array_equal((x + 0).numpy(), x.numpy())  # and the mesh still works

    def test_threads(self):
        a = f32(8, 8)
        bad = []

        def work(k):
            t = on(a, M, "x")
            f = eager.compile(lambda v: (v @ v.T).sum(0) + k)
            for _ in range(5):
                if not np.allclose(f(t).numpy(), (a @ a.T).sum(0) + k, atol=1e-4):
                    bad.append(k)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(bad, [])

    def test_fork(self):
        t = on(f32(8, 4), M, "x")
        want = t.sum().item()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if abs((t * 1).sum().item() - want) < 1e-5 else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)


class Transforms(unittest.TestCase):
    def setUp(self):
        self.x, self.w = f32(8, 8), f32(8, 4)

    def mlp(self, w, x):
        return (eager.tanh(x @ w) ** 2).sum()

    def test_grad(self):
        want = eager.grad(self.mlp)(Tensor.constant(self.w), Tensor.constant(self.x)).numpy()
        for xs, ws in [(("x",), ()), ((None, "x"), ("x",)), (("x",), ("x",)), ((), (None, "x")), (("x",), (None, "x"))]:
            g = eager.grad(self.mlp)(on(self.w, M, *ws), on(self.x, M, *xs))
            np.testing.assert_allclose(g.numpy(), want, rtol=2e-5, atol=1e-5, err_msg=f"{xs} {ws}")
            if ws:
                self.assertEqual(g.sharding, P(*ws).to_spec(M, 2), f"{xs} {ws}")  # as the variable lies

    def test_value_and_grad_in_compile(self):
        f = eager.compile(eager.value_and_grad(self.mlp))
        v, g = f(on(self.w, G, "a", "b"), on(self.x, G, ("a", "b")))
        v0, g0 = eager.value_and_grad(self.mlp)(Tensor.constant(self.w), Tensor.constant(self.x))
        np.testing.assert_allclose(v.numpy(), v0.numpy(), rtol=1e-5)
        np.testing.assert_allclose(g.numpy(), g0.numpy(), rtol=2e-5, atol=1e-5)
        f(on(self.w, G, "a", "b"), on(self.x, G, ("a", "b")))
        self.assertEqual(f.stats.hits, 1)
        f(on(self.w, G, "a"), on(self.x, G, ("a", "b")))
        self.assertEqual(f.stats.misses, 2)

    def test_jvp_vjp_jac(self):
        w, x, d = on(self.w, M, "x"), on(self.x, M, None, "x"), on(self.w * 0.5, M, None, "x")
        plain = [Tensor.constant(a) for a in (self.w, self.x, self.w * 0.5)]
        out, t = eager.jvp(lambda w: self.mlp(w, x), (w,), (d,))
        out0, t0 = eager.jvp(lambda w: self.mlp(w, plain[1]), (plain[0],), (plain[2],))
        np.testing.assert_allclose([out.item(), t.item()], [out0.item(), t0.item()], rtol=1e-4)
        for jac in (eager.jacrev, eager.jacfwd):
            got = jac(lambda w: eager.tanh(x @ w).sum(0))(w)
            want = jac(lambda w: eager.tanh(plain[1] @ w).sum(0))(plain[0])
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
        h = eager.hessian(lambda v: (eager.sin(v) * v).sum())(on(self.w[0], M, "x"))
        np.testing.assert_allclose(h.numpy(), eager.hessian(lambda v: (eager.sin(v) * v).sum())(Tensor.constant(self.w[0])).numpy(), rtol=1e-5, atol=1e-6)

    def test_checkpoint(self):
        f = eager.checkpoint(lambda w, x: eager.tanh(x @ w))
        g = eager.grad(lambda w: (f(w, on(self.x, M, "x")) ** 2).sum())(on(self.w, M, None, "x"))
        want = eager.grad(self.mlp)(Tensor.constant(self.w), Tensor.constant(self.x))
        np.testing.assert_allclose(g.numpy(), want.numpy(), rtol=2e-5, atol=1e-5)

    def test_vmap(self):
        x = on(self.x, M, "x")
        f = eager.vmap(lambda v: (v * v).sum())
        np.testing.assert_allclose(f(x).numpy(), (self.x**2).sum(1), rtol=1e-5)
        np.testing.assert_allclose(eager.vmap(lambda v: v.shard(M, P("x")) * 2)(Tensor.constant(self.x)).numpy(), self.x * 2)
        g = eager.vmap(eager.grad(lambda v: (eager.sin(v) * v).sum()), spmd_axis_name="x", mesh=M)(Tensor.constant(self.x))
        np.testing.assert_allclose(g.numpy(), np.cos(self.x) * self.x + np.sin(self.x), rtol=1e-4, atol=1e-5)
        self.assertEqual(axes(g.realize()), [["x"], []])

    def test_loops(self):
        x = on(self.x, M, None, "x")
        def step(c, v):
            return c * 0.5 + v, (c * v).sum()
        for init in (Tensor.zeros((8,)), on(np.ones(8, np.float32), M, "x")):
            c, ys = eager.scan(step, init, x)
            c0, ys0 = eager.scan(step, Tensor.constant(init.numpy()), Tensor.constant(self.x))
            np.testing.assert_allclose(c.numpy(), c0.numpy(), rtol=1e-5)
            np.testing.assert_allclose(ys.numpy(), ys0.numpy(), rtol=1e-4, atol=1e-5)
        g = eager.grad(lambda v: eager.scan(step, Tensor.zeros((8,)), v)[0].sum())(on(self.x, M, "x"))
        g0 = eager.grad(lambda v: eager.scan(step, Tensor.zeros((8,)), v)[0].sum())(Tensor.constant(self.x))
        np.testing.assert_allclose(g.numpy(), g0.numpy(), rtol=1e-5)
        r = eager.while_loop(lambda s: s.sum() < 1000, lambda s: s * 2 + 1, on(np.ones((8, 4), np.float32), M, "x"))
        w = np.ones((8, 4), np.float32)
        while w.sum() < 1000:
            w = w * 2 + 1
        np.testing.assert_array_equal(r.numpy(), w)
        self.assertEqual(axes(r.realize()), [["x"], []])
        for flag in (True, False):
            p = Tensor.constant(np.array(flag))
            r = eager.cond(p, lambda v: (v @ v.T).sum(1), lambda v: v.sum(0) * 3, x)
            np.testing.assert_allclose(r.numpy(), (self.x @ self.x.T).sum(1) if flag else self.x.sum(0) * 3, rtol=1e-4, atol=1e-4)
        # a constraint inside of a loop is the only one
        r = eager.fori_loop(0, 3, lambda i, s: (s @ s).shard(M, P("x")) * 0.1, Tensor.constant(self.x))
        w = self.x
        for _ in range(3):
            w = w @ w * np.float32(0.1)
        np.testing.assert_allclose(r.numpy(), w, rtol=1e-3, atol=1e-3)
        self.assertEqual(axes(r.realize()), [["x"], []])

    def test_donated(self):
        f = eager.compile(lambda v: v * 2 + 1, donate=(0,))
        t = on(self.x, M, "x").realize()
        np.testing.assert_array_equal(f(t).numpy(), self.x * 2 + 1)

    def test_compile_captures_and_constants(self):
        w = on(self.w, M, "x")
        f = eager.compile(lambda x: (x @ w, x.shape[0], x))
        y, n, z = f(on(self.x, M, "x"))
        np.testing.assert_allclose(y.numpy(), self.x @ self.w, rtol=1e-4, atol=1e-5)
        self.assertEqual(n, 8)
        np.testing.assert_array_equal(z.numpy(), self.x)
        only = eager.compile(lambda x: x.shard(M, P("x")) * 2)  # a constraint in the function alone
        r = only(Tensor.constant(self.x))
        self.assertEqual(axes(r), [["x"], []])
        np.testing.assert_array_equal(r.numpy(), self.x * 2)
        lazy = on(self.x, M, "x") + 1
        np.testing.assert_array_equal(only(lazy).numpy(), (self.x + 1) * 2)

    def test_assignment(self):
        t = on(self.x, M, "x")
        t[2:5] = 1.0
        t[np.array([0, 7]), 1] = 5.0
        w = self.x.copy()
        w[2:5] = 1
        w[[0, 7], 1] = 5
        np.testing.assert_array_equal(t.numpy(), w)

    def test_random_numbers_do_not_depend_on_the_layout(self):
        eager.seed(4)
        a = eager.gaussian((8, 8)).numpy()
        for spec in (P("x"), P(None, "x")):
            eager.seed(4)
            b = eager.gaussian((8, 8)).shard(M, spec)
            self.assertEqual(sent(lambda b=b: b), (0, 0))
            np.testing.assert_array_equal(a, b.numpy())

    def test_custom_rules_and_stop_gradient(self):
        @eager.custom_vjp
        def f(x):
            return x * 2

        f.defvjp(lambda x: (x * 2, x), lambda r, ct: (ct * 5,))
        g = eager.grad(lambda v: (f(v) * eager.ops._table.tensor_ops["stop_gradient"](v)).sum())(on(self.x, M, "x"))
        np.testing.assert_allclose(g.numpy(), self.x * 5, rtol=1e-6)


class Padding(unittest.TestCase):
    def test_nothing_of_it_shows(self):
        a = f32(5, 3) - 3.0
        t = on(a, M, "x", pad=True)
        self.assertEqual(tuple(t.local_shape), (2, 3))
        np.testing.assert_array_equal(t.numpy(), a)
        cases = {
            "sum": lambda x: x.sum(0), "all": lambda x: x.sum(), "max": lambda x: x.max(0), "min": lambda x: (x * x).min(), "prod": lambda x: eager.prod(x, axis=0), "mean": lambda x: x.mean(0), "var": lambda x: eager.var(x, axis=0),
            "argmax": lambda x: eager.argmax(x, axis=0), "sort": lambda x: eager.sort(x, axis=0), "cumsum": lambda x: eager.cumsum(x, axis=0), "matmul": lambda x: x.T @ x, "left": lambda x: x @ x.T, "exp": lambda x: eager.exp(-x).sum(0),
            "reshape": lambda x: x.reshape((15,)), "flip": lambda x: eager.flip(x, 0), "slice": lambda x: x[1:4], "concat": lambda x: eager.concatenate([x, x]), "softmax": lambda x: eager.softmax(x, axis=0), "any": lambda x: eager.any(x > 0, axis=0),
            "every": lambda x: eager.all(x < 0, axis=0), "topk": lambda x: eager.topk(x, 2, axis=0)[0], "reciprocal": lambda x: (1 / x).sum(), "log": lambda x: eager.log(-x).sum(0), "where": lambda x: eager.where(x < -3, x, 0.0).sum(0),
            "plus": lambda x: (x + 1).sum(0), "norm": lambda x: eager.layer_norm(x, axis=0), "gather": lambda x: eager.gather(x, Tensor.constant([4, 0]), axis=0), "stack": lambda x: eager.stack([x, x], axis=1).sum(0),
        }  # fmt: skip
        for name, f in cases.items():
            np.testing.assert_allclose(f(t).numpy(), f(Tensor.constant(a)).numpy(), rtol=2e-5, atol=1e-5, err_msg=name)
        g = eager.grad(lambda x: (eager.log(-x) * x).sum())(t)
        np.testing.assert_allclose(g.numpy(), eager.grad(lambda x: (eager.log(-x) * x).sum())(Tensor.constant(a)).numpy(), rtol=1e-5)

    def test_small_and_resharded(self):
        for n in (1, 2, 3, 5, 7, 9):
            a = f32(n, 8)
            t = on(a, M, "x", pad=True)
            np.testing.assert_array_equal(t.numpy(), a)
            np.testing.assert_array_equal(t.reshard(M, P(None, "x")).numpy(), a)
            np.testing.assert_array_equal(on(a, G, ("a", "b"), pad=True).reshard(G, P("b", "a"), pad=True).numpy(), a)
            np.testing.assert_allclose(t.sum(0).numpy(), a.sum(0), rtol=1e-5, atol=1e-6)

    def test_indices(self):
        a, i = f32(6, 4), np.array([5, 0, 3, 1, 2])
        t = on(i, M, "x", pad=True)
        np.testing.assert_array_equal(eager.gather(Tensor.constant(a), t + 0, axis=0).numpy(), a[i])
        np.testing.assert_array_equal(eager.gather(Tensor.constant(a), 5 - t, axis=0).numpy(), a[5 - i])




class SharedMap(unittest.TestCase):
    def test_collectives(self):
        a = f32(8, 4)
        t = on(a, M, "x")
        ring = [(k, (k + 1) % 4) for k in range(4)]
        cases = [
            (lambda x: eager.psum(x, "x"), P("x"), P(), a.reshape(4, 2, 4).sum(0)),
            (lambda x: eager.pmax(x, "x"), P("x"), P(), a.reshape(4, 2, 4).max(0)),
            (lambda x: eager.pmin(x, "x"), P("x"), P(), a.reshape(4, 2, 4).min(0)),
            (lambda x: eager.pmean(x, "x"), P("x"), P(), a.reshape(4, 2, 4).mean(0)),
            (lambda x: eager.all_gather(x, 0, axis_name="x"), P("x"), P(), a),
            (lambda x: eager.all_gather(x, 1, axis_name="x"), P(None, "x"), P(), a),
            (lambda x: eager.all_gather(x, 0, axis_name="x", tiled=False).sum(0), P("x"), P(), a.reshape(4, 2, 4).sum(0)),
            (lambda x: eager.ppermute(x, ring, axis_name="x"), P("x"), P("x"), np.roll(a, 2, 0)),
            (lambda x: eager.ppermute(x, ring[:2], axis_name="x"), P("x"), P("x"), np.concatenate([a[:2] * 0, a[:4], a[:2] * 0])),
            (lambda x: eager.all_to_all(x, 1, 0, axis_name="x"), P("x"), P(None, "x"), a),
            (lambda x: eager.all_to_all(x, 0, 1, axis_name="x"), P(None, "x"), P("x"), a),
            (lambda x: eager.psum_scatter(x, "x", scatter_dimension=1), P("x"), P(None, "x"), a.reshape(4, 2, 4).sum(0)),
            (lambda x: eager.reduce_scatter(x, 1, "max", axis_name="x"), P("x"), P(None, "x"), a.reshape(4, 2, 4).max(0)),
            (lambda x: x + eager.axis_index("x").cast("f32"), P("x"), P("x"), a + np.repeat(np.arange(4), 2)[:, None].astype(np.float32)),
            (lambda x: eager.psum(Tensor.ones(()), "x") * x.sum(), P(), P(), np.float32(4) * a.sum()),
            (lambda x: x.sum().reshape((1,)) * eager.axis_size("x"), P("x"), P("x"), a.reshape(4, 8).sum(1) * 4),
        ]
        for k, (f, i, o, want) in enumerate(cases):
            g = eager.shard_map(f, M, in_specs=i, out_specs=o)
            np.testing.assert_allclose(g(t).numpy(), want, rtol=1e-5, atol=1e-6, err_msg=f"case {k}")
            np.testing.assert_allclose(eager.compile(g)(t).numpy(), want, rtol=1e-5, atol=1e-6, err_msg=f"compiled case {k}")
            np.testing.assert_allclose(eager.vmap(g)(eager.stack([Tensor.constant(a), Tensor.constant(a)])).numpy(), np.stack([want, want]), rtol=1e-5, atol=1e-6, err_msg=f"mapped case {k}")
            if k < 13:
                got = eager.grad(lambda v, g=g, k=k: (g(v) ** 2).sum() if k not in (1, 2, 12) else g(v).sum())(t).numpy()
                self.assertTrue(np.isfinite(got).all())
        got = eager.grad(lambda v: (eager.shard_map(lambda x: eager.ppermute(x, ring, axis_name="x") ** 3, M, P("x"), P("x"))(v)).sum())(t)
        np.testing.assert_allclose(got.numpy(), 3 * a**2, rtol=1e-5)

    def test_two_axes_and_trees(self):
        x, w = f32(8, 8), f32(8, 4)
        f = eager.shard_map(lambda p: {"y": eager.psum(p["x"] @ p["w"], "b"), "n": eager.psum(1.0 * p["x"].sum(), ("a", "b"))}, G,
                            in_specs=({"x": P("a", "b"), "w": P("b")},), out_specs={"y": P("a"), "n": P()})  # fmt: skip
        r = f({"x": Tensor.constant(x), "w": on(w, G, "b")})
        np.testing.assert_allclose(r["y"].numpy(), x @ w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(r["n"].item(), x.sum(), rtol=1e-4)
        self.assertEqual(axes(r["y"].realize()), [["a"], []])

    def test_bytes(self):
        t = on(f32(8, 4), M, "x").realize()
        one = 8 * 4 * 4
        ring = [(k, (k + 1) % 4) for k in range(4)]

        def m(f, out=None):
            return lambda: eager.shard_map(f, M, P("x"), P("x") if out is None else out)(t)

        self.assertEqual(sent(m(lambda x: eager.ppermute(x, ring, axis_name="x"))), (one, one))
        self.assertEqual(sent(m(lambda x: eager.all_to_all(x, 1, 0, axis_name="x"), P(None, "x"))), (one * 3 // 4,) * 2)
        self.assertEqual(sent(m(lambda x: eager.psum(x, "x"), P())), (2 * 3 * one // 4,) * 2)
        self.assertEqual(sent(m(lambda x: eager.all_gather(x, 0, axis_name="x"), P())), (3 * one,) * 2)
        self.assertEqual(sent(m(lambda x: eager.psum_scatter(x, "x", scatter_dimension=1), P(None, "x"))), (3 * one // 4,) * 2)

    def test_captured_and_nested(self):
        a, c = f32(8, 4), on(f32(4, 4), M, "x")
        f = eager.shard_map(lambda x: eager.vmap(lambda v: v @ c)(x), M, P("x"), P("x"))
        np.testing.assert_allclose(f(Tensor.constant(a)).numpy(), a @ c.numpy(), rtol=1e-4, atol=1e-5)

    def test_refused(self):
        t = Tensor.ones((8,))
        for words, fn in [
            ("may differ between the devices", lambda: eager.shard_map(lambda x: x, M, P("x"), P())(t)),
            ("no axis 'y' here", lambda: eager.shard_map(lambda x: eager.psum(x, "y"), M, P("x"), P())(t)),
            ("inside shard_map", lambda: eager.psum(t, "x")),
            ("twice", lambda: eager.shard_map(lambda x: eager.ppermute(x, [(0, 1), (2, 1)], axis_name="x"), M, P("x"), P("x"))(t)),
            ("cannot be cut", lambda: eager.shard_map(lambda x: x, M, P("x"), P("x"))(Tensor.ones((6,)))),
        ]:
            with self.assertRaisesRegex(ValueError, words):
                fn()
        got = eager.shard_map(lambda x: x, M, P("x"), P(), check_rep=False)(Tensor.constant(np.arange(8.0)))
        self.assertEqual(got.tolist(), [0.0, 1.0])

    def test_pmap(self):
        a = f32(4, 6)
        np.testing.assert_allclose(eager.pmap(lambda x: x - eager.pmean(x, "i"), axis_name="i")(Tensor.constant(a)).numpy(), a - a.mean(0), rtol=1e-5, atol=1e-6)
        r = eager.pmap(lambda x, s: x * s, mesh=M, in_axes=(0, None))(Tensor.constant(a), 2.0)
        np.testing.assert_array_equal(r.numpy(), a * 2)

    def test_of_sharded_tensors(self):
        a = f32(8, 8)
        t = on(a, M, "x")
        np.testing.assert_allclose(eager.all_reduce(t).numpy(), a.reshape(4, 2, 8).sum(0), rtol=1e-5)
        np.testing.assert_array_equal(eager.all_reduce(t, "max").numpy(), a.reshape(4, 2, 8).max(0))
        r = eager.reduce_scatter(t, 1)
        np.testing.assert_allclose(r.numpy(), a.reshape(4, 2, 8).sum(0), rtol=1e-5)
        self.assertEqual(axes(r.realize()), [[], ["x"]])
        np.testing.assert_array_equal(eager.all_gather(t, 0).numpy(), a)
        r = eager.all_to_all(t, 1, 0)
        np.testing.assert_array_equal(r.numpy(), a)
        self.assertEqual(axes(r.realize()), [[], ["x"]])
        r = eager.all_to_all(on(f32(16, 2), M, "x"), 0, 1)
        self.assertEqual((tuple(r.shape), axes(r.realize())), ((4, 8), [["x"], []]))
        b = f32(16, 2)
        want = b.reshape(4, 4, 1, 2).transpose(1, 2, 0, 3).reshape(4, 8)
        np.testing.assert_array_equal(eager.all_to_all(on(b, M, "x"), 0, 1).numpy(), want)
        self.assertEqual(eager.axis_index(M, "x").tolist(), [0, 1, 2, 3])
        for f in (eager.all_gather, lambda v: eager.all_reduce(v), lambda v: eager.reduce_scatter(v, 0), lambda v: eager.all_to_all(v, 0, 1), lambda v: eager.ppermute(v, [(0, 1)])):
            self.assertEqual(f(Tensor.constant(a)).tolist(), a.tolist())
        g = eager.grad(lambda v: (eager.all_reduce(v) ** 2).sum())(t)
        np.testing.assert_allclose(g.numpy(), np.tile(2 * a.reshape(4, 2, 8).sum(0), (4, 1)), rtol=1e-4, atol=1e-5)


class Memory(unittest.TestCase):
    def test_nothing_stays(self):
        def run():
            t = on(f32(8, 4), M, "x")
            eager.compile(lambda v: (v @ v.T).sum())(t).item()
            (t + 1).numpy()

        for _ in range(3):
            run()
        gc.collect()
        before = eager.stats().live_nodes if hasattr(eager.stats(), "live_nodes") else None
        for _ in range(5):
            run()
        gc.collect()
        if before is not None:
            self.assertLessEqual(eager.stats().live_nodes, before + 20)


if __name__ == "__main__":
    unittest.main()
