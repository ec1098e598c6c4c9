"""Random numbers that are asked for without a key: every call, trip, lane and run of a compiled function has
its own."""

import unittest

import numpy as np
from test_random import normals, philox

import eager
from eager import Tensor


def numbers(t):
    return [round(float(v), 9) for v in np.asarray(t.numpy()).ravel()]


def words(seed, n, each):
    """The words of n elements (each: 4 or 2 of a counter's), as src/graph/graph.h has them for KIND_RANDOM.
    """
    i = np.arange(n)
    w = np.stack(philox(seed, i // (64 * each) * 64 + i % 64))
    turn = i // 64 % each
    return w[turn, i] if each == 4 else (w[2 * turn, i].astype(np.uint64) << np.uint64(32)) | w[2 * turn + 1, i]


class TestNumbers(unittest.TestCase):
    """An element's number depends on the key and on which element it is; how it is computed does not matter.
    """

    SIZES = (1, 10, 64, 65, 255, 256, 257, 1000, 5000, 70000)

    def test_uniform(self):
        for n in self.SIZES:
            want = (words(7, n, 4) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
            got = eager.uniform((n,), key=eager.key(7))
            np.testing.assert_array_equal(got.numpy(), want)
            wide = eager.uniform((n,), key=eager.key(7), dtype="float64").numpy()
            np.testing.assert_array_equal(wide, (words(7, n, 2) >> np.uint64(11)) * 2.0**-53)

    def test_gaussian(self):
        for n in self.SIZES:
            i = np.arange(n)
            w = np.stack(philox(7, i // 256 * 64 + i % 64))
            turn = i // 64 % 4
            pair = normals((w[turn // 2 * 2, i], w[turn // 2 * 2 + 1, i]))
            got = eager.gaussian((n,), key=eager.key(7)).numpy()
            np.testing.assert_allclose(got, np.where(turn % 2, pair[1], pair[0]), atol=1e-5)

    def test_gaussian_of_doubles(self):
        z = eager.gaussian((1 << 18,), key=eager.key(3), dtype="float64").numpy()
        self.assertEqual(len(set(z.tolist())), z.size)
        for power, moment, within in ((1, 0, 0.01), (2, 1, 0.015), (3, 0, 0.04), (4, 3, 0.1)):
            self.assertLess(abs((z**power).mean() - moment), within)
        halves = z.reshape(-1, 2, 64)  # the two numbers of a counter do not depend on each other
        self.assertLess(abs((halves[:, 0] * halves[:, 1]).mean()), 0.01)
        self.assertLess(abs((halves[:, 0] ** 2 * halves[:, 1] ** 2).mean() - 1), 0.03)

    def test_however_they_are_computed(self):
        shape, key = (13, 600), eager.key(11)
        for draw in (eager.uniform, eager.gaussian):
            for dtype in ("float32", "float64", "float16"):

                def f(k, draw=draw, dtype=dtype):
                    return draw(shape, key=k, dtype=dtype)

                x = f(key).numpy()
                same = {
                    "compiled": eager.compile(f)(key),
                    "of other dims": draw((13 * 600,), key=key, dtype=dtype).reshape(shape),
                    "transposed": eager.compile(lambda k, f=f: f(k).T + 0)(key).T,
                    "with a tensor": eager.compile(lambda k, y, f=f: y + f(k))(key, eager.zeros(shape, dtype=dtype)),
                    "lanes": eager.vmap(lambda k, f=f: f(k))(eager.constant(np.array([11, 12], np.uint64)))[0],
                }
                for how, y in same.items():
                    np.testing.assert_array_equal(y.numpy(), x, err_msg=f"{draw.__name__} {dtype} {how}")
                np.testing.assert_array_equal(eager.compile(lambda k, f=f: f(k)[3:7, 100:500] + 0)(key).numpy(), x[3:7, 100:500])
                rows = eager.compile(lambda k, f=f: f(k) - f(k).max(1, keepdims=True))(key).numpy()
                np.testing.assert_array_equal(rows, x - x.max(1, keepdims=True))


class TestCompile(unittest.TestCase):
    def test_each_run_draws_anew(self):
        f = eager.compile(lambda x: x + eager.uniform((4,)), fullgraph=True)
        a, b = f(Tensor.zeros((4,))).numpy(), f(Tensor.zeros((4,))).numpy()
        self.assertFalse((a == b).any())
        self.assertEqual((f.stats.misses, f.stats.hits), (1, 1))

    def test_the_numbers_are_those_of_the_plain_function(self):
        def f(x):
            return x + eager.uniform((4,)), eager.gaussian((3,)), eager.randint((5,), 0, 100)

        def three(g):
            eager.seed(7)
            return [numbers(t) for _ in range(3) for t in g(Tensor.zeros((4,)))]

        self.assertEqual(three(f), three(eager.compile(f, fullgraph=True)))

    def test_seed_starts_again(self):
        f = eager.compile(lambda: eager.uniform((8,)), fullgraph=True)
        eager.seed(3)
        a = numbers(f())
        b = numbers(f())
        eager.seed(3)
        self.assertEqual(a, numbers(f()))
        self.assertNotEqual(a, b)

    def test_dropout_masks_differ_between_layers_and_calls(self):
        def drop(x):
            return eager.where(eager.uniform(x.shape) < 0.5, x * 2.0, 0.0)

        f = eager.compile(lambda x: (drop(x), drop(x)), fullgraph=True)
        x = Tensor.ones((64,))
        masks = {tuple(numbers(t)) for _ in range(4) for t in f(x)}
        self.assertEqual(len(masks), 8)

    def test_nested_compiled_functions(self):
        inner = eager.compile(lambda: eager.uniform((4,)))
        f = eager.compile(lambda: (inner(), inner(), eager.uniform((4,))), fullgraph=True)
        rows = {tuple(numbers(t)) for _ in range(2) for t in f()}
        self.assertEqual(len(rows), 6)

    def test_all_results_random_and_a_key_that_is_given(self):
        f = eager.compile(lambda k: (eager.uniform((4,), key=k), eager.uniform((4,))), fullgraph=True)
        (a, b), (c, d) = f(eager.key(1)), f(eager.key(1))
        self.assertEqual(numbers(a), numbers(c))
        self.assertNotEqual(numbers(b), numbers(d))

    def test_seed_inside_runs_as_it_is(self):
        def f():
            eager.seed(5)
            return eager.uniform((3,))

        g = eager.compile(f)
        self.assertEqual(numbers(g()), numbers(g()))
        self.assertEqual(numbers(g()), numbers(f()))
        with self.assertRaisesRegex(eager.GraphBreak, "seed"):
            eager.compile(f, fullgraph=True)()

    def test_branches(self):
        f = eager.compile(lambda p: eager.cond(p, lambda: eager.uniform((4,)), lambda: eager.uniform((4,)) + 10.0), fullgraph=True)
        yes, no = Tensor.constant(True), Tensor.constant(False)
        rows = [numbers(f(p)) for p in (yes, yes, no, no)]
        self.assertEqual(len({tuple(r) for r in rows}), 4)
        self.assertTrue(min(rows[2]) >= 10 > max(rows[0]))


class TestVmap(unittest.TestCase):
    def test_each_lane_has_its_own(self):
        y = eager.vmap(lambda x: x + eager.uniform((3,)))(Tensor.zeros((5, 3)))
        self.assertEqual(len(set(numbers(y))), 15)

    def test_nested(self):
        f = eager.vmap(lambda x: eager.vmap(lambda y: y + eager.uniform(()))(x))
        self.assertEqual(len(set(numbers(f(Tensor.zeros((4, 6)))))), 24)

    def test_neighbouring_calls_share_no_lane(self):
        def rows():
            return numbers(eager.vmap(lambda x: x + eager.uniform(()))(Tensor.zeros((50,))))

        eager.seed(0)
        self.assertEqual(len(set(rows() + rows() + rows())), 150)

    def test_nothing_mapped(self):
        y = eager.vmap(lambda: eager.gaussian((2,)), axis_size=7)()
        self.assertEqual(len(set(numbers(y))), 14)

    def test_a_shared_key_is_shared(self):
        y = eager.vmap(lambda x: x + eager.uniform((), key=eager.key(1)))(Tensor.zeros((5,)))
        self.assertEqual(len(set(numbers(y))), 1)

    def test_in_compile_and_around_it(self):
        inside = eager.compile(eager.vmap(lambda x: x + eager.uniform(())), fullgraph=True)
        self.assertEqual(len(set(numbers(inside(Tensor.zeros((9,)))) + numbers(inside(Tensor.zeros((9,)))))), 18)
        around = eager.vmap(eager.compile(lambda x: x + eager.uniform(())))
        self.assertEqual(len(set(numbers(around(Tensor.zeros((9,)))) + numbers(around(Tensor.zeros((9,)))))), 18)
        nothing = eager.compile(lambda: eager.uniform(()))
        for n in (3, 8):
            self.assertEqual(len(set(numbers(eager.vmap(nothing, axis_size=n)()))), n)

    def test_dynamic_sizes(self):
        f = eager.compile(eager.vmap(lambda x: x + eager.uniform(())), fullgraph=True, dynamic_dims={0: {0: "n"}})
        for n in (3, 8):
            self.assertEqual(len(set(numbers(f(Tensor.zeros((n,)))))), n)
        self.assertEqual(f.stats.misses, 1)

    def test_plain_and_compiled_agree(self):
        f = eager.vmap(lambda x: x + eager.uniform((2,)))
        eager.seed(1)
        a = numbers(f(Tensor.zeros((5,))))
        eager.seed(1)
        self.assertEqual(a, numbers(eager.compile(f)(Tensor.zeros((5,)))))


class TestLoops(unittest.TestCase):
    def test_each_trip_of_a_scan(self):
        def f(c, _):
            u = eager.uniform((2,))
            return c + u.sum(), u

        total, ys = eager.scan(f, 0.0, length=6)
        self.assertEqual(len(set(numbers(ys))), 12)
        self.assertAlmostEqual(total.item(), float(ys.numpy().sum()), 4)
        again = eager.scan(f, 0.0, length=6)[1]
        self.assertFalse(set(numbers(ys)) & set(numbers(again)))

    def test_each_trip_of_a_while_loop(self):
        def body(s):
            i, rows = s
            return i + 1, rows.at[i].set(eager.uniform(()))

        first = numbers(eager.while_loop(lambda s: s[0] < 8, body, (0, Tensor.zeros((8,))))[1])
        second = numbers(eager.while_loop(lambda s: s[0] < 8, body, (0, Tensor.zeros((8,))))[1])
        self.assertEqual(len(set(first + second)), 16)

    def test_loops_in_loops_in_compile(self):
        def inner(c, _):
            return c, eager.uniform(())

        f = eager.compile(lambda: eager.scan(lambda c, _: (c, eager.scan(inner, 0.0, length=3)[1]), 0.0, length=4)[1], fullgraph=True)
        self.assertEqual(len(set(numbers(f()) + numbers(f()))), 24)

    def test_a_loop_in_lanes(self):
        f = eager.vmap(lambda x: eager.scan(lambda c, _: (c + 1.0, c + eager.uniform(())), x * 0.0, length=4)[1])
        self.assertEqual(len(set(numbers(f(Tensor.zeros((5,)))))), 20)

    def test_lanes_in_a_loop(self):
        f = eager.scan(lambda c, _: (c, eager.vmap(lambda x: x + eager.uniform(()))(Tensor.zeros((5,)))), 0.0, length=4)[1]
        self.assertEqual(len(set(numbers(f))), 20)

    def test_a_loop_that_draws_nothing_leaves_the_counter(self):
        eager.seed(2)
        a = numbers(eager.uniform((3,)))
        eager.seed(2)
        eager.scan(lambda c, _: (c + 1.0, c), 0.0, length=3)
        self.assertEqual(a, numbers(eager.uniform((3,))))

    def test_conditions_draw_too(self):
        n = eager.while_loop(lambda i: eager.uniform(()) < 0.9, lambda i: i + 1, 0)
        counts = {int(eager.while_loop(lambda i: eager.uniform(()) < 0.9, lambda i: i + 1, 0).item()) for _ in range(20)}
        self.assertGreater(len(counts), 3)
        self.assertGreaterEqual(n.item(), 0)
