"""while_loop, scan and cond: the same values as Python's own loops, on every device, traced or not, in lanes,
nested, with sizes that vary; what they refuse."""

import os
import signal
import threading
import time
import unittest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICES, backend, same

import eager
from eager import Tensor

f32 = np.float32


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def collatz_node(n):
    def body(s):
        n, k = s
        return eager.where(n % 2 == 0, n // 2, 3 * n + 1), k + 1

    return eager.while_loop(lambda s: s[0] != 1, body, (n, 0))[1]


def newton(x):
    """Square roots of all elements at once, until none moves by much."""

    def body(s):
        y = (s["y"] + x / s["y"]) * 0.5
        return {"y": y, "d": abs(y - s["y"]).max(), "n": s["n"] + 1}

    return eager.while_loop(lambda s: (s["d"] > 1e-6) & (s["n"] < 50), body, {"y": x, "d": 1.0, "n": 0})["y"]


class WhileLoop(unittest.TestCase):
    def test_values(self):
        for n in (1, 2, 6, 7, 27, 97):
            self.assertEqual(collatz_node(Tensor.constant(n)).item(), collatz(n))

    def test_every_device_gives_the_same_bits(self):
        x = np.linspace(0.5, 90, 37).astype(f32)
        results = {}
        for d in DEVICES:
            with backend(d):
                results[d] = newton(Tensor.constant(x)).numpy()
                self.assertEqual(collatz_node(Tensor.constant(27)).item(), 111, d)
        np.testing.assert_allclose(results["cpu"], np.sqrt(x), rtol=1e-6)
        for d in DEVICES:
            same(self, results["cpu"], results[d], d)

    def test_compiled_with_nothing_read(self):
        f = eager.compile(newton, fullgraph=True)
        x = np.linspace(1, 9, 12).astype(f32)
        same(self, f(Tensor.constant(x)).numpy(), newton(Tensor.constant(x)).numpy(), "compiled and not")
        g = eager.compile(collatz_node, fullgraph=True)
        self.assertEqual([g(Tensor.constant(n)).item() for n in (6, 7, 27)], [8, 16, 111])
        self.assertEqual(g.stats.misses, 1)

    def test_no_trip(self):
        x = Tensor.constant(np.arange(4, dtype=f32)).realize()
        y = eager.while_loop(lambda s: s.sum() > 1e9, lambda s: s * 2, x)
        self.assertEqual(y.tolist(), [0, 1, 2, 3])
        self.assertFalse(np.shares_memory(x.numpy(), y.numpy()), "a result has memory of its own")
        self.assertEqual(eager.while_loop(lambda s: False, lambda s: s * 2, 3).item(), 3)
        f = eager.compile(lambda v: eager.while_loop(lambda s: s < 0, lambda s: s + 1, v), fullgraph=True)
        self.assertEqual(f(Tensor.constant(5)).item(), 5)

    def test_many_trips_without_python(self):
        calls = []

        def body(s):
            calls.append(1)
            return s[0] + 1, s[1] * f32(0.999) + f32(0.5)

        n, x = eager.while_loop(lambda s: s[0] < 100_000, body, (0, Tensor.ones((3,))))
        want = f32(1)
        for _ in range(100_000):
            want = want * f32(0.999) + f32(0.5)
        self.assertEqual((n.item(), x.tolist()), (100_000, [float(want)] * 3))
        self.assertLessEqual(len(calls), 2)

    def test_swapped_repeated_and_kept_values(self):
        a, b, c, d, n = eager.while_loop(
            lambda s: s[4] < 5,
            lambda s: (s[1], s[0] + s[1], s[2], s[1], s[4] + 1),
            (Tensor.constant(0), Tensor.constant(1), Tensor.arange(3), Tensor.constant(7), 0),
        )
        self.assertEqual((a.item(), b.item(), c.tolist(), d.item()), (5, 8, [0, 1, 2], 5))
        x, y, _ = eager.while_loop(lambda s: s[2] < 3, lambda s: (s[0] * 2, s[0] * 2, s[2] + 1), (Tensor.ones((2,)), Tensor.zeros((2,)), 0))
        z = x + 1
        self.assertEqual((x.tolist(), y.tolist(), z.tolist()), ([8, 8], [8, 8], [9, 9]))

    def test_captured_tensors_are_inputs(self):
        step = Tensor.constant(2.0)
        pending = Tensor.constant(3.0) * 1
        f = eager.compile(lambda v: eager.while_loop(lambda s: s < 20, lambda s: s + step * pending, v), fullgraph=True)
        self.assertEqual(f(Tensor.constant(0.0)).item(), 24)
        step = Tensor.constant(5.0)
        self.assertEqual(f(Tensor.constant(0.0)).item(), 30)
        self.assertEqual(eager.while_loop(lambda s: s < 20, lambda s: s + step * pending, 0.0).item(), 30)

    def test_numbers_are_no_new_program(self):
        def run(limit, by):
            return eager.while_loop(lambda s: s < limit, lambda s: s + by, Tensor.constant(0.0)).item()

        run(33.0, 7.0)
        before = eager.stats()["programs"]
        for limit, by in ((50.0, 7.5), (77.0, 11.0), (123.0, 30.5)):
            want = 0.0
            while want < limit:
                want += by
            self.assertEqual(run(limit, by), want)
        self.assertEqual(eager.stats()["programs"], before)

    def test_many_numbers(self):
        def body(s):
            for k in range(40):
                s = s + (k + 0.25)
            return s

        self.assertEqual(eager.while_loop(lambda s: s < 1000, body, 0.0).item(), 1580)
        self.assertEqual(eager.while_loop(lambda s: s < 1600, body, 0.0).item(), 2370)

    def test_nested(self):
        def outer(s):
            i, total = s
            inner = eager.while_loop(lambda t: t[0] < i, lambda t: (t[0] + 1, t[1] + t[0] * i), (0, 0))
            return i + 1, total + inner[1]

        want = sum(k * i for i in range(7) for k in range(i))
        for f in (
            lambda: eager.while_loop(lambda s: s[0] < 7, outer, (0, 0)),
            eager.compile(lambda: eager.while_loop(lambda s: s[0] < 7, outer, (0, 0))),
        ):
            self.assertEqual(f()[1].item(), want)
        g = eager.compile(lambda n: eager.while_loop(lambda s: s[0] < n, outer, (0, 0))[1], fullgraph=True)
        for d in DEVICES:
            with backend(d):
                self.assertEqual(g(Tensor.constant(7)).item(), want, d)

    def test_lanes_end_at_different_trips(self):
        ns = [1, 27, 6, 97, 2]
        r = eager.vmap(collatz_node)(Tensor.constant(np.array(ns)))
        self.assertEqual(r.tolist(), [collatz(n) for n in ns])
        f = eager.compile(eager.vmap(collatz_node), fullgraph=True)
        self.assertEqual(f(Tensor.constant(np.array(ns))).tolist(), [collatz(n) for n in ns])
        for d in DEVICES:
            with backend(d):
                self.assertEqual(eager.vmap(collatz_node)(Tensor.constant(np.array(ns))).tolist(), [collatz(n) for n in ns], d)

    def test_lanes_of_what_is_captured(self):
        def f(limit, x):
            return eager.while_loop(lambda s: s["n"] < limit, lambda s: {"n": s["n"] + 1, "x": s["x"] + x}, {"n": 0, "x": Tensor.zeros((2,))})["x"]

        limits, xs = np.array([0, 3, 1]), np.arange(6, dtype=f32).reshape(3, 2)
        np.testing.assert_array_equal(eager.vmap(f)(Tensor.constant(limits), Tensor.constant(xs)).numpy(), xs * limits[:, None])
        np.testing.assert_array_equal(
            eager.vmap(f, in_axes=(0, None))(Tensor.constant(limits), Tensor.constant(xs[1])).numpy(), xs[1] * limits[:, None]
        )
        np.testing.assert_array_equal(eager.vmap(f, in_axes=(None, 0))(Tensor.constant(2), Tensor.constant(xs)).numpy(), xs * 2)
        both = eager.vmap(lambda lim: eager.vmap(lambda x: f(lim, x))(Tensor.constant(xs)))(Tensor.constant(limits))
        np.testing.assert_array_equal(both.numpy(), xs[None] * limits[:, None, None])

    def test_dynamic_dims(self):
        f = eager.compile(newton, fullgraph=True, dynamic_dims={0: {0: "n"}})
        for n in (5, 1, 2, 300):
            x = np.linspace(1, 9, n).astype(f32)
            same(self, f(Tensor.constant(x)).numpy(), newton(Tensor.constant(x)).numpy(), f"{n}")
        self.assertEqual(f.stats.misses, 1)

    def test_python_runs_what_reads_data(self):
        seen = []

        def body(s):
            seen.append(s.item())
            return s * 2

        self.assertEqual(eager.while_loop(lambda s: s < 10, body, 1.0).item(), 16)
        self.assertEqual(seen, [1, 2, 4, 8])
        f = eager.compile(lambda v: eager.while_loop(lambda s: s < 10, body, v))
        self.assertEqual(f(Tensor.constant(1.0)).item(), 16)
        with self.assertRaisesRegex(RuntimeError, "test_loops.py.*reads data"):
            eager.compile(lambda v: eager.while_loop(lambda s: s < 10, body, v), fullgraph=True)(Tensor.constant(1.0))

    def test_dtypes_of_python_numbers_settle(self):
        r = eager.while_loop(lambda s: s["x"] < 3, lambda s: {"x": s["x"] + 0.5, "n": s["n"] + Tensor.constant(np.int64(1))}, {"x": 0, "n": 0})
        self.assertEqual((r["x"].item(), str(r["x"].dtype), r["n"].item(), str(r["n"].dtype)), (3.0, "f32", 6, "i64"))

    def test_what_is_refused(self):
        x = Tensor.zeros((3,))
        cases = [
            (TypeError, r"\['w'\].*f32\(3\)", lambda: eager.while_loop(lambda s: s["w"].sum() < 1, lambda s: {"w": eager.concatenate([s["w"], s["w"]])}, {"w": x})),
            (TypeError, r"\[1\].*i32", lambda: eager.while_loop(lambda s: s[0] < 1, lambda s: (s[0], s[1] * 0.5), (1.0, Tensor.constant(np.int32(3))))),
            (TypeError, "is given where", lambda: eager.while_loop(lambda s: s[0] < 1, lambda s: s[0], (1.0, 2.0))),
            (ValueError, "one truth value", lambda: eager.while_loop(lambda s: s < 1, lambda s: s + 1, x)),
        ]  # fmt: skip
        for error, words, f in cases:
            with self.assertRaisesRegex(error, words):
                f()
        keys = []
        eager.while_loop(lambda s: s < 3, lambda s: keys.append(eager.uniform().item()) or s + 1, 0)
        self.assertEqual(len(set(keys)), 3, "random numbers without a key differ from trip to trip")

    def test_index_out_of_range_names_the_line(self):
        x = Tensor.arange(5)
        r = eager.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, s[1] + eager.gather(x, s[0], axis=0)), (0, 0.0))
        with self.assertRaisesRegex(IndexError, "test_loops.py"):
            r[1].item()

    def test_strict(self):
        with eager.config.strict():
            self.assertEqual(collatz_node(Tensor.constant(27)).item(), 111)

    def test_threads(self):
        results = {}

        def run(n):
            results[n] = collatz_node(Tensor.constant(n)).item()

        threads = [threading.Thread(target=run, args=(n,)) for n in (27, 97, 6, 7, 871)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(results, {n: collatz(n) for n in results})

    def test_interrupted(self):
        def later():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

        t = threading.Thread(target=later)
        t.start()
        with self.assertRaises(KeyboardInterrupt):
            eager.while_loop(lambda s: s < 10_000_000, lambda s: s + 1, 0).item()
        t.join()
        self.assertEqual(collatz_node(Tensor.constant(27)).item(), 111)

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 12), st.integers(0, 3), st.integers(1, 5), st.booleans())
    def test_random_states(self, trips, extra, size, compiled):
        def f(x):
            def body(s):
                return {"i": s["i"] + 1, "xs": [v * 0.5 + s["i"] for v in s["xs"][-1:] + s["xs"][:-1]]}

            return eager.while_loop(lambda s: s["i"] < trips, body, {"i": 0, "xs": [x + k for k in range(extra + 1)]})["xs"]

        x = np.arange(size, dtype=f32)
        want = [x + f32(k) for k in range(extra + 1)]
        for i in range(trips):
            want = [v * f32(0.5) + f32(i) for v in want[-1:] + want[:-1]]
        got = (eager.compile(f) if compiled else f)(Tensor.constant(x))
        for a, b in zip(want, got):
            np.testing.assert_array_equal(a, b.numpy())


def cell(w):
    def step(h, x):
        h = eager.tanh(x @ w + h)
        return h, {"h": h, "n": (h * h).sum()}

    return step


def cell_numpy(w, h, xs):
    hs = []
    for x in xs:
        h = np.tanh(x @ w + h)
        hs.append(h)
    return h, np.array(hs)


class Scan(unittest.TestCase):
    def test_values_on_every_device(self):
        rng = np.random.default_rng(0)
        w, h, xs = (rng.standard_normal(s).astype(f32) for s in ((4, 4), (3, 4), (20, 3, 4)))
        last, hs = cell_numpy(w, h, xs)
        results = {}
        for d in DEVICES:
            with backend(d):
                carry, ys = eager.scan(cell(Tensor.constant(w)), Tensor.constant(h), Tensor.constant(xs))
                results[d] = ys["h"].numpy()
                np.testing.assert_allclose(carry.numpy(), last, rtol=2e-5, atol=1e-6)
                np.testing.assert_allclose(results[d], hs, rtol=2e-5, atol=1e-6)
                np.testing.assert_allclose(ys["n"].numpy(), (hs * hs).sum((1, 2)), rtol=2e-5)
        for d in DEVICES:
            same(self, results["cpu"], results[d], d)

    def test_same_bits_as_unrolled(self):
        rng = np.random.default_rng(1)
        w, h, xs = (rng.standard_normal(s).astype(f32) for s in ((4, 4), (3, 4), (6, 3, 4)))
        step, carry, hs = cell(Tensor.constant(w)), Tensor.constant(h), []
        for i in range(6):
            carry, y = step(carry, Tensor.constant(xs)[i])
            hs.append(y["h"])
        last, ys = eager.scan(step, Tensor.constant(h), Tensor.constant(xs))
        same(self, carry.numpy(), last.numpy(), "carry")
        same(self, eager.stack(hs, axis=0).numpy(), ys["h"].numpy(), "ys")

    def test_lengths_and_directions(self):
        for n in (0, 1, 2, 5, 300):
            for reverse in (False, True):
                x = np.arange(n, dtype=f32)
                carry, (before, twice) = eager.scan(lambda c, x: (c + x, (c, x * 2)), 0.0, Tensor.constant(x), reverse=reverse)
                sums = np.cumsum(x[::-1])[::-1] - x if reverse else np.cumsum(x) - x
                self.assertEqual(carry.item(), x.sum())
                np.testing.assert_array_equal(before.numpy(), sums)
                np.testing.assert_array_equal(twice.numpy(), x * 2)
        carry, ys = eager.scan(lambda c, _: (c * 2, c), Tensor.constant(1), length=10)
        self.assertEqual((carry.item(), ys.tolist()), (1024, [2**k for k in range(10)]))
        self.assertEqual(eager.scan(lambda c, x: (c + x, None), 0.0, Tensor.arange(4))[1], None)

    def test_what_is_stacked_is_also_carried_or_given(self):
        carry, (a, b, c, d) = eager.scan(lambda c, x: (c + x, (c + x, c + x, x, 1.5)), 0.0, Tensor.arange(5))
        self.assertEqual(
            (carry.item(), a.tolist(), b.tolist(), c.tolist(), d.tolist()), (10, [0, 1, 3, 6, 10], [0, 1, 3, 6, 10], [0, 1, 2, 3, 4], [1.5] * 5)
        )

    def test_dtypes(self):
        for dt in ("bool", "i16", "u16", "i64", "f16", "bf16", "f32"):
            x = Tensor.constant([1, 0, 1, 1, 0, 1, 1]).cast(dt)
            carry, ys = eager.scan(lambda c, x: (eager.maximum(c, x), x), x[1], x)
            self.assertEqual((str(ys.dtype), ys.cast("float32").tolist(), carry.cast("float32").item()), (dt, [1, 0, 1, 1, 0, 1, 1], 1))

    def test_compile_time_does_not_grow(self):
        def kernels(n):
            before = eager.stats()["kernels"]
            f = eager.compile(lambda h, xs: eager.scan(lambda h, x: (eager.sin(h * 1.25 + x) - n, h), h, xs), fullgraph=True)
            carry, ys = f(Tensor.zeros((3,)), Tensor.zeros((n, 3)))
            self.assertEqual(ys.shape, (n, 3))
            return eager.stats()["kernels"] - before

        few = kernels(11)
        self.assertLessEqual(kernels(4000), few)

    def test_symbolic_length(self):
        f = eager.compile(lambda xs: eager.scan(lambda c, x: (c + x, c * x), Tensor.zeros((2,)), xs), fullgraph=True, dynamic_dims={0: {0: "n"}})
        for n in (3, 0, 1, 700):
            x = np.arange(2 * n, dtype=f32).reshape(n, 2)
            carry, ys = f(Tensor.constant(x))
            np.testing.assert_array_equal(carry.numpy(), x.sum(0))
            np.testing.assert_array_equal(ys.numpy(), (np.cumsum(x, 0) - x) * x)
        self.assertEqual(f.stats.misses, 1)

    def test_lanes(self):
        xs = np.arange(24, dtype=f32).reshape(4, 3, 2)
        for axis in (0, 1, 2):
            other = [k for k in range(3) if k != axis]
            moved = xs.transpose(axis, *other)
            f = eager.vmap(lambda x: eager.scan(lambda c, x: (c + x, c), Tensor.zeros(x.shape[1:]), x), in_axes=axis)
            carry, ys = f(Tensor.constant(xs))
            np.testing.assert_array_equal(carry.numpy(), moved.sum(1))
            np.testing.assert_array_equal(ys.numpy(), np.cumsum(moved, 1) - moved)
        carry, ys = eager.vmap(lambda c: eager.scan(lambda c, x: (c * x, c), c, Tensor.constant([1.0, 2.0, 3.0])))(Tensor.constant([1.0, 10.0]))
        self.assertEqual((carry.tolist(), ys.tolist()), ([6, 60], [[1, 1, 2], [10, 10, 20]]))

    def test_scan_of_scan(self):
        def rows(c, row):
            return eager.scan(lambda c, x: (c + x, c), c, row)

        x = np.arange(12, dtype=f32).reshape(3, 4)
        carry, ys = eager.scan(rows, 0.0, Tensor.constant(x))
        flat = x.reshape(-1)
        np.testing.assert_array_equal(ys.numpy().reshape(-1), np.cumsum(flat) - flat)
        self.assertEqual(carry.item(), flat.sum())

    def test_donated(self):
        f = eager.compile(lambda c, xs: eager.scan(lambda c, x: (c + x, x), c, xs)[0], donate=(0,), fullgraph=True)
        self.assertEqual(f(Tensor.zeros((3,)).realize(), Tensor.ones((4, 3))).tolist(), [4, 4, 4])

    def test_reading_bodies_run_in_python(self):
        seen = []

        def f(c, x):
            seen.append(x.item())
            return c + x, c

        carry, ys = eager.scan(f, Tensor.constant(0.0), Tensor.arange(3))
        self.assertEqual((carry.item(), ys.tolist(), seen), (3, [0, 0, 1], [0, 1, 2]))

    def test_what_is_refused(self):
        cases = [
            (ValueError, "one length", lambda: eager.scan(lambda c, x: (c, c), 0, Tensor.arange(3), length=4)),
            (ValueError, "one length", lambda: eager.scan(lambda c, x: (c, c), 0)),
            (ValueError, "first axis", lambda: eager.scan(lambda c, x: (c, c), 0, Tensor.constant(1.0))),
            (ValueError, "negative", lambda: eager.scan(lambda c, x: (c, c), 0, length=-1)),
            (TypeError, r"returns \(carry, y\)", lambda: eager.scan(lambda c, x: c, 0, Tensor.arange(3))),
            (
                TypeError,
                r"f32\(2\).*\['a'\].*f32\(\)",
                lambda: eager.scan(lambda c, x: ({"a": c["a"] + Tensor.ones((2,))}, x), {"a": 0.0}, Tensor.arange(3)),
            ),
        ]
        for error, words, f in cases:
            with self.assertRaisesRegex(error, words):
                f()


    def test_a_state_that_is_read_in_two_shapes_is_not_overwritten_early(self):
        """The product reads the state as a row, the result of the trip as a vector: the memory is free after
        both."""
        rng = np.random.default_rng(0)
        w, x, xs = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(5, 3))
        state, ys = eager.scan(lambda c, e: (((c + e) * e) @ Tensor.constant(w), (c + e) * 2.0), Tensor.constant(x), Tensor.constant(xs))
        want = []
        for e in xs:
            want.append((x + e) * 2.0)
            x = ((x + e) * e) @ w
        np.testing.assert_allclose(ys.numpy(), want)
        np.testing.assert_allclose(state.numpy(), x)


class Cond(unittest.TestCase):
    def setUp(self):
        self.x = np.arange(9, dtype=f32).reshape(3, 3)

    def test_one_branch_runs(self):
        for d in DEVICES:
            with backend(d):
                x = Tensor.constant(self.x)
                f = eager.compile(lambda p, v, i: eager.cond(p, lambda: (v @ v).sum(), lambda: eager.gather(v, i, axis=0).max()), fullgraph=True)
                self.assertEqual(f(Tensor.constant(True), x, Tensor.constant(99)).item(), (self.x @ self.x).sum(), "the other would fail")
                self.assertEqual(f(Tensor.constant(False), x, Tensor.constant(1)).item(), 5)
                with self.assertRaises(IndexError):
                    f(Tensor.constant(False), x, Tensor.constant(99)).item()

    def test_little_branches_are_computed_both(self):
        f = eager.compile(lambda v: eager.cond(v.sum() > 3, lambda v: v * 2, lambda v: -v, v), fullgraph=True)
        f(Tensor.constant(self.x))
        self.assertNotIn("branch", f.show())
        self.assertEqual(f(Tensor.zeros((3, 3))).tolist(), [[0] * 3] * 3)
        self.assertEqual(f(Tensor.constant(self.x)).numpy().tolist(), (self.x * 2).tolist())

    def test_in_loops(self):
        def body(s):
            i, m = s
            return i + 1, eager.cond(i % 2 == 0, lambda: m @ m, lambda: m - m.mean())

        want = self.x / 9
        for i in range(5):
            want = want @ want if i % 2 == 0 else want - want.mean()
        f = eager.compile(lambda m: eager.while_loop(lambda s: s[0] < 5, body, (0, m))[1], fullgraph=True)
        np.testing.assert_allclose(f(Tensor.constant(self.x / 9)).numpy(), want, rtol=1e-5, atol=1e-5)
        g = eager.compile(lambda p, v: eager.cond(p, lambda: eager.while_loop(lambda s: s < 100, lambda s: s * 2, v), lambda: v), fullgraph=True)
        self.assertEqual([g(Tensor.constant(p), Tensor.constant(3.0)).item() for p in (True, False)], [192, 3])

    def test_pytrees_and_numbers(self):
        f = eager.compile(lambda p, v: eager.cond(p, lambda v: {"a": v @ v, "n": 1}, lambda v: {"a": v, "n": 2.5}, v), fullgraph=True)
        a, b = f(Tensor.constant(1), Tensor.constant(self.x)), f(Tensor.constant([0.0]), Tensor.constant(self.x))
        self.assertEqual((a["n"].item(), b["n"].item()), (1, 2.5))
        np.testing.assert_array_equal(a["a"].numpy(), self.x @ self.x)
        np.testing.assert_array_equal(b["a"].numpy(), self.x)

    def test_in_lanes(self):
        f = eager.compile(eager.vmap(lambda p, v: eager.cond(p, lambda v: v @ v, lambda v: v, v), in_axes=(None, 0)), fullgraph=True)
        xs = np.stack([self.x, self.x + 1])
        for p in (True, False):
            np.testing.assert_array_equal(f(Tensor.constant(p), Tensor.constant(xs)).numpy(), xs @ xs if p else xs)

    def test_what_is_refused(self):
        x, p = Tensor.constant(self.x), Tensor.constant(True)
        cases = [
            (ValueError, r"\['a'\].*f32\(3, 3\).*f32\(\)", lambda p, x: eager.cond(p, lambda v: {"a": v @ v}, lambda v: {"a": v.sum()}, x)),
            (TypeError, "is given where", lambda p, x: eager.cond(p, lambda v: {"a": v @ v}, lambda v: v, x)),
            (ValueError, "one truth value", lambda p, x: eager.cond(x > 1, lambda v: v, lambda v: -v, x)),
        ]
        for error, words, f in cases:
            g = eager.compile(f, fullgraph=True)
            with self.assertRaisesRegex(error, words):
                g(p, x)
            self.assertEqual(Tensor.ones((2,)).sum().item(), 2, "nothing is left open")


class Elements(unittest.TestCase):
    def test_an_element_is_carried_on_as_it_is(self):
        """The view of an array that a trip reads must not become what the next trip finds in the carry."""
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        for reverse in (False, True):
            for run in (lambda f: f, eager.compile):
                f = run(lambda x: eager.scan(lambda c, e: ((e, c[0]), c[0] + c[1]), (eager.zeros((3,)), eager.zeros((3,))), x, reverse=reverse))
                (last, before), ys = f(eager.constant(x))
                rows = x[::-1] if reverse else x
                padded = np.concatenate([np.zeros((2, 3), np.float32), rows])
                np.testing.assert_array_equal(last.numpy(), rows[-1])
                np.testing.assert_array_equal(before.numpy(), rows[-2])
                want = padded[1:-1] + padded[:-2]
                np.testing.assert_array_equal(ys.numpy(), want[::-1] if reverse else want)


if __name__ == "__main__":
    unittest.main()
