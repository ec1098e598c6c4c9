"""compile: what finds its program again, what does not, dims that vary."""

import asyncio
import dataclasses
import gc
import io
import threading
import unittest
import weakref
from contextlib import redirect_stdout

import numpy as np
from support import DEVICES, backend

import eager
from eager import CompiledFunction, Tensor, compile, vmap

SCALE = 2.0
WEIGHTS = {"w": Tensor.full((3,), 2.0), "layers": [Tensor.ones((3,))]}
BIAS = Tensor.ones((3,))


def helper(x):
    return x * SCALE


class Model:
    def __init__(self):
        self.w, self.depth = Tensor.ones((3,)), 1

    @compile
    def forward(self, x):
        for _ in range(self.depth):
            x = x * self.w
        return x

    def plain(self, x):
        return x + self.w


@dataclasses.dataclass
class Params:
    w: Tensor
    b: Tensor


class Keys(unittest.TestCase):
    def counts(self, f):
        return (f.stats.hits, f.stats.misses)

    def test_hits_and_misses(self):
        f = compile(lambda x, y: x @ y + 1)
        self.assertIsInstance(f, CompiledFunction)
        x, y = Tensor.ones((2, 3)), Tensor.ones((3, 4))
        self.assertEqual(f(x, y).tolist(), [[4] * 4] * 2)
        self.assertEqual(self.counts(f), (0, 1))
        self.assertEqual(f(x * 2, y).tolist(), [[7] * 4] * 2)
        self.assertEqual(self.counts(f), (1, 1))
        f(Tensor.ones((5, 3)), y)  # another shape
        f(x, y.cast("float64"))  # another dtype
        self.assertEqual(self.counts(f), (1, 3))

    def test_values_of_other_arguments(self):
        f = compile(lambda x, n, flag=False, name="a": x * n if flag else x + n)
        x = Tensor.ones((2,))
        self.assertEqual(f(x, 3).tolist(), [4, 4])
        self.assertEqual(f(x, 3, flag=True).tolist(), [3, 3])
        self.assertEqual(f(x, 4).tolist(), [5, 5])
        self.assertEqual(f(x, 3).tolist(), [4, 4])
        self.assertEqual(self.counts(f), (1, 3))
        f(x, 3.0)  # 3 == 3.0, but the dtype of what comes out may differ
        self.assertEqual(self.counts(f), (1, 4))

    def test_pytrees(self):
        @compile
        def f(d, p):
            return {"y": d["x"] * p.w + p.b, "n": 3, "again": d["x"], "list": [d["x"] + 1, None]}

        x = Tensor.arange(3)
        p = Params(Tensor.full((3,), 2.0), Tensor.ones((3,)))
        r = f({"x": x}, p)
        self.assertEqual((r["y"].tolist(), r["n"], r["list"][0].tolist(), r["list"][1]), ([1, 3, 5], 3, [1, 2, 3], None))
        self.assertIs(r["again"], x)
        f({"x": x}, p)
        self.assertEqual(self.counts(f), (1, 1))

    def test_arrays_are_arguments(self):
        f = compile(lambda x: x * 2)
        a = np.arange(3, dtype=np.float32)
        self.assertEqual(f(a).tolist(), [0, 2, 4])
        a[0] = 5
        self.assertEqual(f(a).tolist(), [10, 2, 4])
        self.assertEqual(self.counts(f), (1, 1))

    def test_results_that_are_constants(self):
        f = compile(lambda x: (Tensor.ones((2,)), 7, x))
        a, b, c = f(Tensor.zeros((1,)))
        self.assertEqual((a.tolist(), b, c.tolist()), ([1, 1], 7, [0]))
        self.assertEqual(compile(lambda: Tensor.ones((2,)) * 3)().tolist(), [3, 3])

    def test_least_recently_used_goes(self):
        f = compile(lambda x: x + 1, max_cache_size=2)
        a, b, c = (Tensor.ones((n,)) for n in (1, 2, 3))
        for x in (a, b, a, c, a, b):
            f(x)
        self.assertEqual(self.counts(f), (2, 4))
        self.assertEqual(f.stats.programs, 2)
        f.clear_cache()
        self.assertEqual(f.stats.programs, 0)

    def test_options_are_checked(self):
        for kw in ({"max_cache_size": 0}, {"bucket": "pow3"}, {"bucket": "pow2"}, {"max_compiles": -1}):
            with self.assertRaises(ValueError):
                compile(lambda x: x, **kw)
        for bad in (lambda: compile(3), lambda: compile(lambda x: x, dynamic_dims=[0])):
            with self.assertRaises(TypeError):
                bad()
        with self.assertRaises(ValueError):
            compile(lambda x: x + 1, dynamic_dims={0: {3: "n"}})(Tensor.ones((2,)))

    def test_looks_like_the_function(self):
        @compile
        def named(x):
            "what it does"
            return x

        self.assertEqual((named.__name__, named.__doc__), ("named", "what it does"))
        self.assertTrue(callable(named.__wrapped__))

    def test_exceptions_pass(self):
        @compile
        def f(x):
            raise KeyError("mine")

        for _ in range(2):
            with self.assertRaisesRegex(KeyError, "mine"):
                f(Tensor.ones((2,)))
        self.assertEqual(self.counts(f), (0, 0))
        self.assertEqual((Tensor.ones((2,)) + 1).tolist(), [2, 2])

    def test_every_device(self):
        for device in DEVICES:
            with self.subTest(device), backend(device):
                f = compile(lambda x: eager.softmax(x * 2).sum())
                for _ in range(2):
                    self.assertAlmostEqual(f(Tensor.constant(np.arange(4, dtype=np.float32))).item(), 1, 5)


class Captured(unittest.TestCase):
    def counts(self, f):
        return (f.stats.hits, f.stats.misses)

    def test_tensors_are_inputs(self):
        w = Tensor.ones((3,))

        @compile
        def f(x):
            return x * w

        x = Tensor.arange(3)
        self.assertEqual(f(x).tolist(), [0, 1, 2])
        w = w * 5
        self.assertEqual(f(x).tolist(), [0, 5, 10])
        w[1] = 7.0
        self.assertEqual(f(x).tolist(), [0, 7, 10])
        self.assertEqual(self.counts(f), (2, 1))
        w = Tensor.ones((3,), "int32")
        self.assertEqual(f(x).tolist(), [0, 1, 2])
        self.assertEqual(self.counts(f), (2, 2))

    def test_globals(self):
        global SCALE, BIAS
        f = compile(lambda x: helper(x) + BIAS)
        x = Tensor.ones((3,))
        try:
            self.assertEqual(f(x).tolist(), [3, 3, 3])
            BIAS = BIAS + 1
            self.assertEqual(f(x).tolist(), [4, 4, 4])
            self.assertEqual(self.counts(f), (1, 1))
            SCALE = 10.0  # a helper's
            self.assertEqual(f(x).tolist(), [12, 12, 12])
            self.assertEqual(self.counts(f), (1, 2))
        finally:
            SCALE, BIAS = 2.0, Tensor.ones((3,))

    def test_containers(self):
        f = compile(lambda x: x * WEIGHTS["w"] + WEIGHTS["layers"][0])
        x = Tensor.ones((3,))
        old = WEIGHTS["w"]
        try:
            self.assertEqual(f(x).tolist(), [3, 3, 3])
            WEIGHTS["w"] = old * 2
            self.assertEqual(f(x).tolist(), [5, 5, 5])
            self.assertEqual(self.counts(f), (1, 1))
        finally:
            WEIGHTS["w"] = old

    def test_numbers_in_closures(self):
        n = 2
        f = compile(lambda x: x + n)
        x = Tensor.zeros((1,))
        self.assertEqual(f(x).item(), 2)
        n = 3
        self.assertEqual(f(x).item(), 3)
        self.assertEqual(self.counts(f), (0, 2))

    def test_what_changes_while_it_is_traced(self):
        n = [0]

        @compile
        def f(x):
            n[0] += 1
            return x + n[0]

        x = Tensor.zeros((1,))
        self.assertEqual([f(x).item() for _ in range(3)], [1, 2, 3])  # never stale

    def test_objects(self):
        m = Model()
        x = Tensor.full((3,), 2.0)
        self.assertEqual(m.forward(x).tolist(), [2, 2, 2])
        m.w = m.w * 3
        self.assertEqual(m.forward(x).tolist(), [6, 6, 6])
        before = Model.forward.stats.misses
        m.depth = 2
        self.assertEqual(m.forward(x).tolist(), [18, 18, 18])
        self.assertEqual(Model.forward.stats.misses, before + 1)
        f = compile(m.plain)
        self.assertEqual(f(x).tolist(), [5, 5, 5])
        m.w = m.w * 2
        self.assertEqual(f(x).tolist(), [8, 8, 8])
        self.assertEqual(self.counts(f), (1, 1))

    def test_arrays(self):
        a = np.ones(3, np.float32)
        f = compile(lambda x: x * a)
        x = Tensor.ones((3,))
        f(x)
        a[:] = 4
        self.assertEqual(f(x).tolist(), [4, 4, 4])

    def test_captured_tensors_may_be_changed(self):
        w = Tensor.zeros((3,))

        @compile
        def f(x):
            w[0] = x[0]
            return w

        for v in (1.0, 2.0):
            self.assertEqual(f(Tensor.full((3,), v)).tolist(), [v, 0, 0])
            self.assertEqual(w.tolist(), [v, 0, 0])

    def test_arguments_may(self):
        @compile
        def f(x):
            x[0] = 9.0
            return x

        x = Tensor.zeros((2,))
        self.assertEqual(f(x).tolist(), [9, 0])
        self.assertEqual(x.tolist(), [9, 0])  # as without compile

    def test_nothing_is_kept_alive(self):
        w = Tensor.ones((3,))
        f = compile(lambda x: x * w)
        f(Tensor.ones((3,)))
        ref = weakref.ref(f)
        del f
        gc.collect()
        self.assertIsNone(ref())


class Dynamic(unittest.TestCase):
    def test_as_in_the_guide(self):
        @compile(dynamic_dims={0: {0: "batch"}})
        def model(x, W, b):
            return (x @ W + b).relu()

        rng = np.random.default_rng(0)
        W, b = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
        for n in (5, 10, 0, 1, 2, 3, 1000):
            x = rng.normal(size=(n, 4)).astype(np.float32)
            np.testing.assert_allclose(
                model(Tensor.constant(x), Tensor.constant(W), Tensor.constant(b)).numpy(), np.maximum(x @ W + b, 0), rtol=1e-4, atol=1e-5
            )
        self.assertEqual((model.stats.misses, model.stats.hits), (1, 6))

    def test_whatever_was_traced_first(self):
        for first in (0, 1, 2, 1000):
            f = compile(lambda x: (eager.softmax(x, axis=1) * x).sum(axis=0) + x.shape[1], dynamic_dims={0: {0: "n"}})
            for n in (first, 0, 1, 2, 3, 1000):
                a = np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32)
                e = np.exp(a - a.max(1, keepdims=True)) if n else a
                want = (e / e.sum(1, keepdims=True) * a).sum(0) + 5
                np.testing.assert_allclose(f(Tensor.constant(a)).numpy(), want, rtol=1e-3, atol=1e-4)
            self.assertEqual(f.stats.misses, 1)

    def test_operations(self):
        rng = np.random.default_rng(1)
        cases = [
            (lambda x: x.sum(), lambda a: a.sum()), (lambda x: x.mean(axis=0), lambda a: a.mean(0)), (lambda x: x.reshape(-1) * 2, lambda a: a.reshape(-1) * 2), (lambda x: x.T @ x, lambda a: a.T @ a), (lambda x: x[1:], lambda a: a[1:]),
            (lambda x: x[::-1], lambda a: a[::-1]), (lambda x: eager.concatenate([x, x]), lambda a: np.concatenate([a, a])), (lambda x: x.max(axis=0), lambda a: a.max(0)), (lambda x: eager.cumsum(x, axis=0), lambda a: a.cumsum(0)),
            (lambda x: eager.argmax(x, axis=0), lambda a: a.argmax(0)), (lambda x: x + eager.arange(x.shape[0]).unsqueeze(1), lambda a: a + np.arange(len(a), dtype=np.float32)[:, None]), (lambda x: eager.sort(x, axis=0), lambda a: np.sort(a, 0)),
            (lambda x: vmap(lambda v: v.sum())(x), lambda a: a.sum(1)), (lambda x: x.at[0].set(0.0), lambda a: np.concatenate([a[:1] * 0, a[1:]])), (lambda x: x[[0, 0]], lambda a: a[[0, 0]]), (lambda x: eager.pad(x, ((1, 0), (0, 0))), lambda a: np.pad(a, ((1, 0), (0, 0)))),
            (lambda x: eager.layer_norm(x).sum(axis=1), lambda a: ((a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)).sum(1)), (lambda x: x.unsqueeze(0) * x.unsqueeze(1), lambda a: a[None] * a[:, None]),
        ]  # fmt: skip
        for k, (f, ref) in enumerate(cases):
            g = compile(f, dynamic_dims={0: {0: "n"}})
            for n in (4, 1, 7, 130):
                a = rng.normal(size=(n, 3)).astype(np.float32)
                with self.subTest(case=k, n=n):
                    np.testing.assert_allclose(g(Tensor.constant(a)).numpy(), ref(a), rtol=1e-3, atol=1e-3)
            self.assertEqual(g.stats.misses, 1, k)

    def test_several_names(self):
        f = compile(lambda x, y: x @ y, dynamic_dims={0: {0: "m", 1: "k"}, 1: {0: "k", -1: "n"}})
        for m, k, n in [(2, 3, 4), (5, 1, 2), (1, 7, 1), (0, 3, 2)]:
            a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
            np.testing.assert_array_equal(f(Tensor.constant(a), Tensor.constant(b)).numpy(), a @ b)
        self.assertEqual(f.stats.misses, 1)
        with self.assertRaises(ValueError):
            f(Tensor.ones((2, 3)), Tensor.ones((4, 2)))

    def test_shapes_inside(self):
        @compile(dynamic_dims={0: {0: "batch"}})
        def f(x):
            print(x.shape)
            return x.reshape(x.shape[0] * 2, 2)

        out = io.StringIO()
        with redirect_stdout(out):
            self.assertEqual(f(Tensor.ones((3, 4))).shape, (6, 2))
            self.assertEqual(f(Tensor.ones((5, 4))).shape, (10, 2))
        self.assertEqual(out.getvalue(), "[Dim('batch'), Dim(4)]\n")

    def test_buckets_of_every_kind(self):
        """Lanes after the last element are masked wherever a size is reduced, scanned, multiplied or sorted
        along: results are those of the size itself."""
        w = Tensor.constant(np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32))
        functions = {
            "sum": lambda x: x.sum(), "sums": lambda x: (x.sum(axis=0), x.sum(axis=1, keepdims=True)), "mean": lambda x: x.mean(axis=0) + x.mean(axis=1).sum(), "var": lambda x: eager.var(x, axis=0),
            "prod": lambda x: eager.prod(x * 0.1 + 1, axis=0), "max": lambda x: (x.max(axis=0), x.min(axis=1)), "any": lambda x: (eager.any(x > 1, axis=0), eager.all(x > -9, axis=0)),
            "softmax": lambda x: eager.softmax(x, axis=0) + eager.softmax(x, axis=1), "logsumexp": lambda x: eager.logsumexp(x, axis=0), "layer_norm": lambda x: eager.layer_norm(x, axis=0),
            "arg": lambda x: (eager.argmax(x, axis=0), eager.argmin(x, axis=0), eager.argmax(x, axis=1)), "cum": lambda x: (eager.cumsum(x, axis=0), eager.cumprod(x, axis=0), eager.cummax(x, axis=0)),
            "reversed": lambda x: eager.cumsum(x, axis=0, reverse=True), "rows": lambda x: eager.cumsum(x.T, axis=1), "rows back": lambda x: eager.cumsum(x.T, axis=1, reverse=True), "sort": lambda x: eager.sort(x, axis=0),
            "argsort": lambda x: eager.argsort(x.T, axis=1), "matmul": lambda x: x @ w, "contraction": lambda x: x.T @ x, "square": lambda x: x @ x.T, "vector": lambda x: x.T @ x[:, 0],
            "attention": lambda x: eager.softmax(x @ x.T) @ x, "map": lambda x: eager.tanh(x) * x + 1, "views": lambda x: (x.T.reshape((-1,)) * 2, eager.flip(x, 0)), "concatenate": lambda x: eager.concatenate([x, x * 2], axis=0).sum(axis=0),
            "pad": lambda x: eager.pad(x, [(1, 2), (0, 0)]).sum(axis=0), "gather": lambda x: eager.gather(x, eager.argmax(x, axis=0), axis=0), "where": lambda x: eager.where(x > x.mean(axis=0), x, 0.0).sum(axis=0),
            "both": lambda x: (x - x.max(axis=0)).sum(axis=(0, 1)), "half": lambda x: x.cast("f16").sum(axis=0), "ints": lambda x: x.cast("i32").sum(axis=0), "roll": lambda x: eager.roll(x, 1, axis=0), "scan": lambda x: eager.scan(lambda c, v: (c + v, c), Tensor.zeros((6,)), x),
            "loop": lambda x: eager.while_loop(lambda s: s.sum() < 10, lambda s: s + abs(s).max(axis=0) + 1, x),
        }  # fmt: skip
        rng = np.random.default_rng(0)
        data = {n: rng.standard_normal((n, 6)).astype(np.float32) for n in (1, 2, 3, 5, 7, 8, 100, 300)}
        for name, f in functions.items():
            g = compile(f, dynamic_dims={0: {0: "n"}}, bucket="pow2", fullgraph=True)
            for n, a in data.items():
                want, got = (eager.tree_leaves(h(Tensor.constant(a))) for h in (f, g))
                for x, y in zip(want, got):
                    self.assertEqual((x.shape, x.dtype), (y.shape, y.dtype), name)
                    np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=2e-5, atol=2e-5 if name != "half" else 2e-2, err_msg=f"{name}, {n}")
            self.assertEqual(g.stats.misses, 6, name)

    def test_buckets_on_every_device(self):
        a = np.random.default_rng(2).standard_normal((4, 21)).astype(np.float32)
        for d in DEVICES:
            with backend(d):
                f = compile(lambda x: (eager.softmax(x), eager.cumsum(x, axis=1), x.sum(axis=1)), dynamic_dims={0: {1: "n"}}, bucket="pow2")
                for n in (21, 17, 3, 32):
                    x = np.resize(a, (4, n))
                    soft, run, total = f(Tensor.constant(x))
                    e = np.exp(x - x.max(axis=1, keepdims=True))
                    np.testing.assert_allclose(soft.numpy(), e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-6, err_msg=d)
                    np.testing.assert_allclose(run.numpy(), np.cumsum(x, axis=1), rtol=1e-5, atol=1e-5, err_msg=d)
                    np.testing.assert_allclose(total.numpy(), x.sum(axis=1), rtol=1e-5, atol=1e-5, err_msg=d)

    def test_buckets_hold_special_values(self):
        f = compile(lambda x: (x.max(axis=0), x.min(axis=0), eager.argmax(x, axis=0), x.sum(axis=0)), dynamic_dims={0: {0: "n"}}, bucket="pow2")
        for values in ([-np.inf, -np.inf, -np.inf], [np.nan, 1, 2], [1, np.nan, 3, np.nan, 5], [np.inf, 2, np.inf], [-5.0]):
            x = np.array(values, np.float32)
            high, low, where, total = f(Tensor.constant(x))
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal([high.item(), low.item(), where.item(), total.item()], [x.max(), x.min(), x.argmax(), x.sum()])

    def test_buckets(self):
        f = compile(lambda x: (x * 2).sum(), dynamic_dims={0: {0: "n"}}, bucket="pow2")
        for n in (3, 4, 5, 8, 7, 9):
            self.assertEqual(f(Tensor.ones((n,))).item(), 2 * n)
        self.assertEqual((f.stats.misses, f.stats.hits), (3, 3))

    def test_limit(self):
        f = compile(lambda d: d["x"] + 1, max_compiles=2)
        f({"x": Tensor.ones((2, 1))})
        f({"x": Tensor.ones((2, 2))})
        f({"x": Tensor.ones((2, 1))})
        with self.assertRaisesRegex(RuntimeError, r"args\[0\]\['x'\]: dim 1"):
            f({"x": Tensor.ones((2, 3))})


class Rest(unittest.TestCase):
    def test_explain(self):
        f = compile(lambda x, k: x + k)
        f(Tensor.ones((2,)), 1)
        f(Tensor.ones((3,)), 1)
        f(Tensor.ones((3,)), 2)
        log = f.explain()
        self.assertEqual(log[0]["cause"], "first call")
        self.assertIn("args[0]: dim 0 is 3, was 2", log[1]["cause"])
        self.assertIn("args[1]: 2, was 1", log[2]["cause"])
        self.assertTrue(all(row["ms"] > 0 and row["compiled"] for row in log))

    def test_reading_data(self):
        def f(x):
            return x + 1 if x.sum().item() > 0 else x - 1

        g = compile(f)
        for _ in range(2):
            self.assertEqual(g(Tensor.ones((2,))).tolist(), [2, 2])
            self.assertEqual(g(Tensor.full((2,), -1.0)).tolist(), [-2, -2])
        self.assertFalse(g.explain()[0]["compiled"])
        with self.assertRaisesRegex(RuntimeError, r"test_compile_dynamic.py:\d+"):
            compile(f, fullgraph=True)(Tensor.ones((2,)))

    def test_nested(self):
        inner = compile(lambda x: x * 2)
        outer = compile(lambda x: inner(x) + 1)
        self.assertEqual(outer(Tensor.ones((2,))).tolist(), [3, 3])
        self.assertEqual(inner.stats.misses, 0)  # it became part of the outer program

    def test_traced_arguments(self):
        f = compile(lambda x: x * 2)
        x = Tensor.ones((2,), traced=True)
        self.assertIn(x._impl, eager.get_topological_order(f(x)._impl))

    def test_donation(self):
        f = compile(lambda x, y: x * 2 + y, donate=0)
        x, y = Tensor.constant(np.ones(1000, np.float32)), Tensor.ones((1000,)).realize()
        self.assertEqual(f(x, y).numpy()[0], 3)
        with self.assertRaises(RuntimeError):
            x.numpy()
        self.assertEqual(y.numpy()[0], 1)
        x = Tensor.constant(np.ones(1000, np.float32))
        keep = x + 0  # still needs x: then nothing is donated
        f(x, y)
        self.assertEqual((x.numpy()[0], keep.numpy()[0]), (1, 1))

    def test_threads(self):
        f = compile(lambda x: (x * 2 + 1).sum())
        out, errors = {}, []

        def work(i):
            try:
                for n in (1, 2, 3, 4, 5):
                    out[i, n] = f(Tensor.constant(np.full(n, i, np.float32))).item()
            except Exception as e:  # pragma: no cover
                errors.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors, [])
        self.assertEqual(out, {(i, n): n * (2 * i + 1) for i in range(6) for n in (1, 2, 3, 4, 5)})
        self.assertEqual((f.stats.misses, f.stats.hits), (5, 25))

    def test_threads_that_evict_each_other(self):
        f = compile(lambda x, n: x * n, max_cache_size=1)
        errors = []

        def work(i):
            try:
                for k in range(60):
                    n = (i + k) % 5
                    if f(Tensor.ones((n + 1,)), n).tolist() != [n] * (n + 1):
                        errors.append((i, k))
            except Exception as e:  # pragma: no cover
                errors.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors, [])

    def test_many(self):
        f = compile(lambda *xs: [x + 1 for x in xs])
        xs = [Tensor.full((1,), float(i)).realize() for i in range(200)]
        for _ in range(2):
            self.assertEqual([y.item() for y in f(*xs)], [i + 1 for i in range(200)])
        g = compile(lambda *xs: [x * 2 for x in xs], donate=range(100))
        self.assertEqual([y.item() for y in g(*xs)], [2 * i for i in range(200)])

    def test_asyncio(self):
        f = compile(lambda x: x + 1)

        async def one(i):
            return (await f(Tensor.full((2,), float(i)))).tolist()

        async def all_of_them():
            return await asyncio.gather(*(one(i) for i in range(4)))

        self.assertEqual(asyncio.run(all_of_them()), [[i + 1] * 2 for i in range(4)])

    def test_show(self):
        f = compile(lambda x: eager.softmax(x * 2))
        with self.assertRaises(RuntimeError):
            f.show()
        f(Tensor.ones((4, 5)))
        self.assertTrue(f.show())
        self.assertIn("<svg", f.show("svg-after"))
        self.assertIn("<svg", eager.visualize(lambda x: x + 1, Tensor.ones((2,)))._repr_svg_())
        self.assertIn("<svg", eager.visualize(Tensor.ones((2,)) + 1, fused=False).svg)


class Autotune(unittest.TestCase):
    def test_the_result_is_the_same(self):
        a = Tensor.constant(np.random.default_rng(0).standard_normal((70, 90), dtype=np.float32))
        f = eager.compile(lambda x: (x @ x.T).relu().sum(axis=0), mode="autotune")
        want = (a @ a.T).relu().sum(axis=0).numpy()
        for _ in range(3):
            np.testing.assert_allclose(f(a).numpy(), want, rtol=1e-5, atol=1e-4)
        self.assertEqual(f.stats.misses, 1)
        np.testing.assert_allclose(f(a[::-1, ::-1]).numpy(), want[::-1], rtol=1e-5, atol=1e-4)

    def test_other_modes(self):
        with self.assertRaisesRegex(ValueError, "autotune"):
            eager.compile(lambda x: x, mode="fast")


if __name__ == "__main__":
    unittest.main()
