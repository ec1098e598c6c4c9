"""The examples of parallelism run, equal the unsharded run and send what the textbook says; pictures,
predictions and chosen layouts."""

import importlib
import io
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest
from contextlib import redirect_stdout
from xml.etree import ElementTree

import numpy as np

import eager
from eager import DeviceMesh, Machine, P, Tensor, abstract

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))
from test_mpi import needs_mpi  # noqa: E402
from test_mpi import run as run_ranks  # noqa: E402

EXAMPLES = ["data", "fsdp", "tensor", "sequence", "expert", "gpipe", "one_f_one_b", "two_d"]
GPU = Machine(10e12, 5e12, 100e12, 10e12, 1e12, 2e-6, 0.0, 0.0, 0.0, False, (5e-6, 50e9))


class Examples(unittest.TestCase):
    def test_in_one_process(self):
        for name in EXAMPLES:
            with self.subTest(name), redirect_stdout(io.StringIO()) as out:
                rows = importlib.import_module(f"examples.parallel.{name}").main()
                for row in rows if isinstance(rows, list) else [rows]:
                    self.assertEqual((row["sent"], row["told"]), (row["textbook"], row["textbook"]))
                self.assertIn("textbook", out.getvalue())

    @needs_mpi
    def test_under_mpi(self):
        """Each as a program; one job runs them one after another."""
        every = "import runpy\n" + "".join(f"runpy.run_path({str(ROOT / 'examples' / 'parallel' / f'{name}.py')!r}, run_name='__main__')\n" for name in EXAMPLES)
        for n in (2, 4):
            code, text, _ = run_ranks(n, f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{every}", EAS_DIST_TIMEOUT=30)
            self.assertEqual(code, 0, text)
            self.assertEqual(text.count(f"{n} devices"), len(EXAMPLES) + 1, text)  # FSDP has two rows
        code, text, _ = run_ranks(4, "", program=[sys.executable, str(ROOT / "examples" / "parallel" / "two_d.py")])
        self.assertEqual((code, text.count("4 devices")), (0, 1), text)

    def test_all_of_them(self):
        folder = ROOT / "examples" / "parallel"
        self.assertEqual(sorted(EXAMPLES), sorted(p.stem for p in folder.glob("*.py") if p.stem not in ("__init__", "examples")))


class Transposes(unittest.TestCase):
    """What gathers forward scatters backward; partial gradients of one value are reduced together."""

    def sent(self, results):
        return [c.name for c in eager.explain_sharding(results)]

    def test_gather_and_scatter(self):
        m = DeviceMesh("m", (4,), ("x",))
        a = np.arange(32, dtype=np.float32).reshape(8, 4)
        w, x = Tensor.constant(a).shard(m, P("x")).realize(), Tensor.constant(a * 0.1).shard(m, P("x")).realize()
        g = eager.grad(lambda w: (x @ eager.all_gather(w, 0).permute((1, 0))).sum(), realize=False)(w)
        self.assertEqual(self.sent(g), ["reduce_scatter"])
        np.testing.assert_allclose(np.asarray(g.gather()), np.tile((a * np.float32(0.1)).sum(0), (8, 1)), rtol=1e-5)

    def test_one_reduction(self):
        m = DeviceMesh("m", (4,), ("x",))
        r = np.random.default_rng(0)
        ws = [r.standard_normal((8, 8)).astype(np.float32) for _ in range(3)]
        x = r.standard_normal((4, 8)).astype(np.float32)

        def f(x, *ws):
            return (x * 2 + sum(eager.tanh(x @ w) for w in ws).mean(axis=-1, keepdims=True)).sum()

        cut = [Tensor.constant(w).shard(m, P(None, "x")).realize() for w in ws]
        g = eager.grad(f, realize=False)(Tensor.constant(x).shard(m, P()), *cut)
        self.assertEqual(self.sent(g).count("all_reduce"), 1)
        np.testing.assert_allclose(np.asarray(g), np.asarray(eager.grad(f)(Tensor.constant(x), *map(Tensor.constant, ws))), rtol=1e-5, atol=1e-5)


class Pictures(unittest.TestCase):
    def test_who_holds_what(self):
        mesh = DeviceMesh("grid", (2, 4), ("a", "b"))
        t = Tensor.constant(np.zeros((8, 6), np.float32)).shard(mesh, P("b", None))
        picture = eager.visualize_sharding(t)
        self.assertEqual(picture.holders, {(k, 0): [k, k + 4] for k in range(4)})
        text = str(picture)
        self.assertIn("0, 4", text)
        self.assertIn("2:4", text)
        root = ElementTree.fromstring(picture.svg)
        self.assertEqual(sum(e.tag.endswith("rect") for e in root.iter()), 1 + 4)
        for k, part in t.local_parts():
            self.assertIn(k, picture.holders[(k % 4, 0)])
            self.assertEqual(tuple(part.shape), (2, 6))

    def test_kinds(self):
        mesh = DeviceMesh("cube", (2, 2, 2), ("a", "b", "c"))
        for spec, shape in ((P(), ()), (P("a"), (4,)), (P(("a", "b")), (8,)), (P("a", "b", "c"), (2, 2, 2)), (P(None, "c", None, "a"), (3, 4, 5, 6)), (P("a"), (5,))):
            picture = eager.visualize_sharding(spec, shape, mesh=mesh)
            self.assertEqual(sorted(d for h in picture.holders.values() for d in h), list(range(8)))
            ElementTree.fromstring(picture.svg)
            self.assertIn("devices", str(picture))
        with tempfile.TemporaryDirectory() as d:
            picture.save(os.path.join(d, "p.svg"))
            ElementTree.parse(os.path.join(d, "p.svg"))

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "lies on no mesh"):
            eager.visualize_sharding(Tensor.constant(np.zeros(3, np.float32)))
        with self.assertRaisesRegex(ValueError, "mesh="):
            eager.visualize_sharding(P("x"))
        with self.assertRaisesRegex(TypeError, "got int"):
            eager.visualize_sharding(3)


def mlp_step(p, x, y):
    value, g = eager.value_and_grad(lambda p: ((eager.relu(x @ p["a"]) @ p["b"] - y) ** 2).mean(), realize=False)(p)
    return value, {k: p[k] - 0.1 * g[k] for k in p}


class Measure(unittest.TestCase):
    def test_a_disturbance_at_first_meets_a_few_turns_of_each_program(self):
        from eager.sharding import machine

        begin = time.perf_counter()

        def work():
            time.sleep(0.02 if time.perf_counter() - begin < 0.3 else 0.001)

        programs = [machine._Timed(work) for _ in range(4)]
        machine._time(programs)
        self.assertLess(max(p.seconds for p in programs), 0.01)

    def test_numbers_are_of_a_device_while_all_work(self):
        mesh = DeviceMesh("measured", (2,), ("x",))
        m = eager.measure_machine(mesh, again=True)
        self.assertTrue(all(getattr(m, n) > 0 for n in ("product_f32", "product_f64", "product_f16", "elementwise", "memory_bandwidth", "launch", "call")))
        self.assertEqual(list(m.link), ["x"])
        self.assertEqual(eager.measure_machine(mesh), m)


class Simulate(unittest.TestCase):
    def test_traffic_is_what_is_sent(self):
        mesh = DeviceMesh("dp", (4,), ("data",))
        r = np.random.default_rng(0)
        put = lambda *s, spec=None: Tensor.constant(r.standard_normal(s).astype(np.float32)).shard(mesh, spec or P())  # noqa: E731
        args = {"a": put(16, 32), "b": put(32, 16)}, put(8, 16, spec=P("data")), put(8, 16, spec=P("data"))
        s = eager.simulate(mlp_step, mesh, *args, machine=GPU)
        self.assertEqual(4 * s.traffic, eager.explain_sharding(mlp_step, *args).total_bytes)
        self.assertEqual(s.collectives["all_reduce"][0], 3)
        # products: forward two, backward three of the same size, on a quarter of the batch
        self.assertGreater(s.flops, 2 * 5 * 2 * 16 * 32)
        self.assertLess(s.flops, 2 * 2 * 5 * 2 * 16 * 32)
        self.assertGreaterEqual(s.memory, s.arguments + s.results)
        self.assertAlmostEqual(s.time, s.compute + s.communication, places=12)
        faster = eager.simulate(mlp_step, mesh, *args, machine=GPU, link=(0.0, 1e15))
        self.assertLess(faster.time, s.time)
        hidden = eager.simulate(mlp_step, mesh, *args, machine=Machine(**{**GPU.__dict__, "overlap": True}))
        self.assertLessEqual(hidden.time, s.time)
        self.assertIn("all_reduce", str(s))

    def test_trace(self):
        mesh = DeviceMesh("dp", (64,), ("data",))
        s = eager.simulate(mlp_step, mesh, {"a": abstract((16, 32)), "b": abstract((32, 16))}, abstract((128, 16), "f32", P("data"), mesh), abstract((128, 16), "f32", P("data"), mesh), machine=GPU)
        with tempfile.TemporaryDirectory() as d:
            s.trace(os.path.join(d, "t.json"))
            with open(os.path.join(d, "t.json")) as f:
                events = json.load(f)["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual(len(spans), len(s.events))
        self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in spans) * 1e-6, s.time, places=9)

    def test_loops(self):
        mesh = DeviceMesh("m", (8,), ("x",))
        w, x = abstract((64, 64), "f32", P(None, "x"), mesh), abstract((16, 64))

        def loop(w, x):
            return eager.fori_loop(0, 10, lambda i, x: eager.tanh(x @ w), x)

        def one(w, x):
            return eager.tanh(x @ w).shard(mesh, P())

        many, single = eager.simulate(loop, mesh, w, x, machine=GPU), eager.simulate(one, mesh, w, x, machine=GPU)
        self.assertGreaterEqual(many.traffic, 9 * single.traffic)
        self.assertGreater(many.time, 5 * single.time)

    def test_seven_billion_on_1024_devices(self):
        dim, hidden, heads, layers, length, vocab, batch = 4096, 11008, 32, 32, 2048, 32000, 1024
        mesh = DeviceMesh("pod", (128, 8), ("data", "model"))
        put = lambda *s, spec: abstract(s, "bf16", spec, mesh)  # noqa: E731
        cols, rows = P("data", "model"), P("model", "data")
        block = lambda: {**{k: put(dim, dim, spec=cols) for k in "qkv"}, "o": put(dim, dim, spec=rows), "up": put(dim, hidden, spec=cols), "gate": put(dim, hidden, spec=cols), "down": put(hidden, dim, spec=rows)}  # noqa: E731
        params = {"embed": put(vocab, dim, spec=P(None, "model")), "head": put(dim, vocab, spec=cols), "layers": [block() for _ in range(layers)]}
        count = sum(int(np.prod([int(n) for n in t.shape])) for t in eager.tree_leaves(params))
        self.assertGreater(count, 6.5e9)
        act = P("data")
        spread = lambda w, *spec: w.shard(mesh, P(*spec))  # noqa: E731

        def norm(x):
            return x * eager.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)

        def layer(p, x):
            b, s = batch, length
            h = norm(x)
            q, k, v = ((h @ spread(p[n], None, "model")).reshape((b, s, heads, dim // heads)).permute((0, 2, 1, 3)) for n in "qkv")
            a = eager.softmax(q @ k.permute((0, 1, 3, 2)) * (dim // heads) ** -0.5) @ v
            x = x + (a.permute((0, 2, 1, 3)).reshape((b, s, dim)) @ spread(p["o"], "model", None)).shard(mesh, act)
            h = norm(x)
            return x + ((eager.silu(h @ spread(p["gate"], None, "model")) * (h @ spread(p["up"], None, "model"))) @ spread(p["down"], "model", None)).shard(mesh, act)

        def loss(params, tokens):
            x = eager.take(params["embed"], tokens, axis=0).shard(mesh, act)
            for p in params["layers"]:
                x = eager.checkpoint(layer)(p, x)
            return eager.logsumexp(norm(x) @ spread(params["head"], None, "model"), axis=-1).mean()

        begin = time.monotonic()
        s = eager.simulate(eager.value_and_grad(loss, realize=False), mesh, params, abstract((batch, length), "i32", act, mesh), machine="a100", link={"data": (1e-5, 25e9), "model": (8e-6, 300e9)})
        took = time.monotonic() - begin
        # 6 operations for each parameter and token, 8 with what is computed again; attention comes on top
        useful = 6 * count * batch * length / mesh.size
        self.assertGreater(s.flops, useful)
        self.assertLess(s.flops, 3 * useful)
        self.assertLess(took, 60)
        self.assertGreater(s.traffic, 0)


class Auto(unittest.TestCase):
    def test_never_worse(self):
        mesh = DeviceMesh("grid", (2, 2), ("a", "b"))
        for dim, hidden, batch in ((64, 256, 4096), (2048, 8192, 8), (64, 64, 8)):
            shapes = {"a": (dim, hidden), "b": (hidden, dim)}
            plain = {k: abstract(s) for k, s in shapes.items()}, abstract((batch, dim)), abstract((batch, dim))
            plan = eager.auto_shard(mlp_step, mesh, *plain, machine=GPU)
            hand = {
                "whole": ({k: P() for k in shapes}, P()),
                "data": ({k: P() for k in shapes}, P(("a", "b"))),
                "tensor": ({"a": P(None, ("a", "b")), "b": P(("a", "b"), None)}, P()),
                "both": ({"a": P(None, "b"), "b": P("b", None)}, P("a")),
            }
            for name, (params, rows) in hand.items():
                args = {k: abstract(s, "f32", params[k], mesh) for k, s in shapes.items()}, abstract((batch, dim), "f32", rows, mesh), abstract((batch, dim), "f32", rows, mesh)
                self.assertLessEqual(plan.time, eager.simulate(mlp_step, mesh, *args, machine=GPU).time * (1 + 1e-9), (name, dim, batch))

    def test_examples(self):
        """By the model never worse than the plan of an example, with its annotations and without any."""
        from examples.parallel import data, expert, fsdp, sequence, tensor, two_d

        def laid(shapes, specs, mesh):
            return {k: laid(s, specs[k] if isinstance(specs, dict) else specs, mesh) for k, s in shapes.items()} if isinstance(shapes, dict) else abstract(shapes, "f32", specs, mesh)

        d, b, t = 1024, 8, 64
        block = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        dp, line, rows = DeviceMesh("d", (4,), ("data",)), DeviceMesh("t", (4,), ("model",)), P(None, "model", None)
        grid, ring = DeviceMesh("g", (2, 2), ("data", "model")), DeviceMesh("e", (4,), ("expert",))
        moves = (lambda v: v.shard(ring, P("expert")), lambda v: v.shard(ring, P(None, "expert")))
        experts, mlp = {"gate": (d, 8), "up": (8, d, 2 * d), "down": (8, 2 * d, d)}, {"w1": (d, 4 * d), "b1": (4 * d,), "w2": (4 * d, d)}
        layers = {f"layer{i}": {"w": (d, d), "b": (d,)} for i in range(3)}
        cases = [
            ("data", dp, data.step, data.step, mlp, P(), (4096, d), P("data")),
            ("fsdp", dp, lambda *a: fsdp.step(*a, False), lambda *a: fsdp.step(*a, False), layers, P("data"), (4096, d), P("data")),
            ("tensor", line, lambda *a: tensor.gradients(*a, 8), lambda *a: tensor.gradients(*a, 8), block, tensor.SPECS, (b, t, d), P()),
            ("data x tensor", grid, lambda *a: two_d.step(*a, 8), lambda *a: two_d.step(*a, 8), block, tensor.SPECS, (b, t, d), P("data")),
            ("sequence", line, lambda *a: sequence.gradients(*a, 8, lambda x: x.shard(line, rows)), lambda *a: sequence.gradients(*a, 8), block, tensor.SPECS, (b, t, d), rows),
            ("expert", ring, lambda *a: expert.gradients(*a, 16, *moves), lambda *a: expert.gradients(*a, 16), experts, expert.SPECS, (4, t, d), P("expert")),
        ]
        for name, mesh, fn, bare, shapes, specs, x, cut in cases:
            with self.subTest(name):
                hand = laid(shapes, specs, mesh), laid(x, cut, mesh), laid(x, cut, mesh)
                time_of_hand = eager.simulate(fn, mesh, *hand, machine=GPU).time
                none = laid(shapes, None, None), laid(x, None, None), laid(x, None, None)
                plan = eager.auto_shard(bare, mesh, *none, machine=GPU)
                self.assertLessEqual(plan.time, time_of_hand * (1 + 1e-9))
                self.assertLessEqual(plan.time, plan.replicated)
                if name == "expert":
                    plan = eager.auto_shard(fn, mesh, *hand, machine=GPU)
                    self.assertLessEqual(plan.time, time_of_hand * (1 + 1e-9))
                    self.assertAlmostEqual(plan.given, time_of_hand)

    def test_pipelines(self):
        """Layouts are not schedules, so a pipeline is never chosen; by the model the chosen layouts of the
        same layers are not worse."""
        from examples.parallel import gpipe, one_f_one_b

        mesh = DeviceMesh("pipe", (4,), ("stage",))
        for dim, micro, rows in ((1024, 8, 64), (256, 16, 32), (2048, 32, 8), (512, 8, 512)):
            xs = abstract((micro, rows, dim))
            plan = eager.auto_shard(gpipe.plain, mesh, abstract((4, dim, dim)), xs, xs, machine=GPU)
            for name, f in (("GPipe", gpipe.gpipe), ("1F1B", one_f_one_b.one_f_one_b)):
                with self.subTest(name, dim=dim):
                    stages = abstract((4, dim, dim), "f32", P("stage"), mesh)
                    hand = eager.simulate(lambda *a, f=f: f(mesh, *a), mesh, stages, xs, xs, machine=GPU)
                    self.assertLessEqual(plan.time, hand.time * (1 + 1e-9))

    def test_layouts_inside_are_used(self):
        """A compiled mixture of experts without annotations sends what was predicted, and has the values of
        the whole."""
        from examples.parallel import expert, normal, whole

        ring = DeviceMesh("e", (4,), ("expert",))
        p = {"gate": normal(32, 8, seed=1), "up": normal(8, 32, 64, seed=2, scale=0.2), "down": normal(8, 64, 32, seed=3, scale=0.1)}
        x, y = normal(4, 16, 32, seed=4), normal(4, 16, 32, seed=5)
        slow = Machine(1e9, 1e9, 1e9, 1e9, 1e9, 0.0, 0.0, 0.0, 0.0, False, (1e-9, 1e9))  # so that cutting pays
        f = eager.compile(lambda p, x, y: expert.gradients(p, x, y, 4), auto_shard=ring, machine=slow)
        args = whole(p), Tensor.constant(x), Tensor.constant(y)
        plan = f.plan(*args)
        self.assertLess(plan.time, 0.5 * plan.replicated)
        got, want = eager.tree_leaves(f(*args)), eager.tree_leaves(expert.gradients(*args, 4))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(g.gather() if g.is_sharded else g), np.asarray(w), rtol=1e-4, atol=1e-5)

    def test_memory(self):
        mesh = DeviceMesh("m", (4,), ("x",))
        args = {"a": abstract((1024, 1024)), "b": abstract((1024, 1024))}, abstract((4, 1024)), abstract((4, 1024))
        small = Machine(**{**GPU.__dict__, "memory": 9e6})
        plan = eager.auto_shard(mlp_step, mesh, *args, machine=small)
        cut = [abstract(tuple(int(n) for n in t.shape), "f32", s) for t, s in zip(eager.tree_leaves(args), plan.specs)]
        fits = eager.simulate(mlp_step, mesh, {"a": cut[0], "b": cut[1]}, cut[2], cut[3], machine=small)
        self.assertLessEqual(fits.memory, 9e6)
        self.assertGreater(eager.simulate(mlp_step, mesh, *args, machine=small).memory, 9e6)

    def test_compiled(self):
        mesh = DeviceMesh("m", (4,), ("x",))
        r = np.random.default_rng(0)
        arrays = [r.standard_normal(s).astype(np.float32) * 0.1 for s in ((32, 64), (64, 32), (256, 32), (256, 32))]
        p, x, y = {"a": Tensor.constant(arrays[0]), "b": Tensor.constant(arrays[1])}, Tensor.constant(arrays[2]), Tensor.constant(arrays[3])
        fast = eager.compile(mlp_step, auto_shard=mesh, machine=Machine(**{**GPU.__dict__, "elementwise": 1e9, "product_f32": 1e9, "launch": 0.0}))
        want, q = mlp_step(p, x, y), p
        value, q = fast(q, x, y)
        np.testing.assert_allclose(np.asarray(value), np.asarray(want[0]), rtol=1e-5)
        for k in q:
            np.testing.assert_allclose(np.asarray(q[k].gather()), np.asarray(want[1][k]), rtol=1e-4, atol=1e-6)
        again = fast(q, x, y)[0]
        np.testing.assert_allclose(np.asarray(again), np.asarray(mlp_step(want[1], x, y)[0]), rtol=1e-5)
        self.assertEqual(len(fast.plans), 1)
        plan = fast.plan(p, x, y)
        self.assertLess(plan.time, plan.replicated)
        self.assertTrue(any(d.axes for s in plan.specs for d in s.dim_specs))

    def test_errors(self):
        with self.assertRaisesRegex(TypeError, "DeviceMesh"):
            eager.compile(mlp_step, auto_shard=3)
        with self.assertRaisesRegex(ValueError, "machine is one of"):
            eager.simulate(mlp_step, DeviceMesh("m", (4,), ("x",)), machine="abacus")
        with self.assertRaisesRegex(ValueError, "latency"):
            eager.simulate(lambda x: x, DeviceMesh("m", (4,), ("x",)), abstract((4,)), machine=GPU, link=(1e-6, 0))


if __name__ == "__main__":
    unittest.main()
