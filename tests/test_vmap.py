"""vmap: axes of every form, nesting, what is refused."""

import unittest
from collections import namedtuple

import numpy as np

import eager
import eas
from eager import Tensor, vmap
from eas import mk

RNG = np.random.default_rng(3)


def rand(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def loop(f, *arrays, axes=None, out_axis=0):
    """The same by a loop over slices."""
    axes = axes or (0,) * len(arrays)
    n = next(a.shape[x] for a, x in zip(arrays, axes) if x is not None)
    rows = [f(*(Tensor.constant(a if x is None else np.take(a, i, x)) for a, x in zip(arrays, axes))).numpy() for i in range(n)]
    return np.stack(rows, out_axis)


class Axes(unittest.TestCase):
    def same(self, got, want):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)

    def test_as_in_the_guide(self):
        def process(x):
            return x * x + 1

        result = vmap(process)(Tensor.ones((10, 5)))
        self.assertEqual(result.shape, (10, 5))
        self.assertEqual(result.numpy().sum(), 100)

    def test_decorators(self):
        @vmap
        def f(x):
            return x.sum()

        @vmap(in_axes=1)
        def g(x):
            "doc"
            return x.sum()

        x = rand(3, 4)
        self.same(f(Tensor.constant(x)), x.sum(1))
        self.same(g(Tensor.constant(x)), x.sum(0))
        self.assertEqual((g.__name__, g.__doc__), ("g", "doc"))

    def test_shape_hides_the_axis(self):
        seen = []

        def f(x):
            seen.append((x.shape, x.batch_dims, x.ndim, x.physical_global_shape, len(x)))
            return x

        vmap(f)(Tensor.ones((7, 2, 3)))
        self.assertEqual(seen, [((2, 3), 1, 2, (7, 2, 3), 2)])

    def test_in_axes(self):
        x, y = rand(3, 4, 5), rand(4, 3)
        for axis in range(-3, 3):
            self.same(vmap(lambda v: v.sum(axis=0) * 2, in_axes=axis)(Tensor.constant(x)), loop(lambda v: v.sum(axis=0) * 2, x, axes=(axis,)))
        f = lambda a, b: (a * b).sum(axis=0)  # noqa: E731
        self.same(vmap(f, in_axes=(0, None))(Tensor.constant(x), Tensor.constant(x[0])), loop(f, x, x[0], axes=(0, None)))
        self.same(vmap(lambda a, b: a.sum(axis=1) + b, in_axes=(0, 1))(Tensor.constant(x), Tensor.constant(y)), x.sum(2) + y.T)
        self.same(vmap(lambda a, b: a.sum() + b, in_axes=[1, 0])(Tensor.constant(y), Tensor.constant(x[:, 0, 0])), y.sum(0) + x[:, 0, 0])

    def test_out_axes(self):
        x = rand(3, 4, 5)
        for axis in (0, 1, 2, -1, -2):
            self.same(vmap(lambda v: v + 1, out_axes=axis)(Tensor.constant(x)), np.moveaxis(x + 1, 0, axis))
        a, b = vmap(lambda v: (v, v.sum()), out_axes=(1, 0))(Tensor.constant(x))
        self.same(a, np.moveaxis(x, 0, 1))
        self.same(b, x.sum((1, 2)))

    def test_results_that_do_not_depend(self):
        x = Tensor.ones((3, 2))
        self.assertEqual(vmap(lambda v: Tensor.arange(4))(x).shape, (3, 4))
        self.assertEqual(vmap(lambda v: 5.0)(x).tolist(), [5, 5, 5])
        self.assertEqual(vmap(lambda v: Tensor.arange(4), out_axes=None)(x).shape, (4,))
        self.assertEqual(vmap(lambda v: (v, 3), out_axes=(0, None))(x)[1], 3)

    def test_pytrees(self):
        P = namedtuple("P", "w b")
        x, w, b = rand(6, 4), rand(4, 3), rand(6, 3)
        f = lambda p, d: {"y": d["x"] @ p.w + p.b}  # noqa: E731
        got = vmap(f, in_axes=(P(None, 0), 0))(P(Tensor.constant(w), Tensor.constant(b)), {"x": Tensor.constant(x)})
        self.same(got["y"], x @ w + b)
        got = vmap(f, in_axes=(P(None, 0), {"x": 0}), out_axes={"y": 1})(P(Tensor.constant(w), Tensor.constant(b)), {"x": Tensor.constant(x)})
        self.same(got["y"], (x @ w + b).T)

    def test_named_arguments(self):
        self.same(vmap(lambda a, k: a + k)(Tensor.arange(3), k=Tensor.arange(3)), np.arange(3) * 2)

    def test_arrays(self):
        x = rand(3, 4)
        self.same(vmap(lambda v: v.sum())(x), x.sum(1))

    def test_axis_size(self):
        self.assertEqual(vmap(lambda: Tensor.ones((2,)), axis_size=3)().shape, (3, 2))
        self.assertEqual(vmap(lambda v: v, in_axes=None, axis_size=3)(Tensor.ones((2,))).shape, (3, 2))
        self.assertEqual(vmap(lambda v: v, axis_size=2)(Tensor.ones((2,))).shape, (2,))

    def test_no_lanes(self):
        self.assertEqual(vmap(lambda v: v.sum() * 2)(Tensor.zeros((0, 3))).shape, (0,))

    def test_refused(self):
        x, y = Tensor.ones((3, 4)), Tensor.ones((5, 4))
        for bad, text in [
            (lambda: vmap(lambda a, b: a)(x, y), "one size"), (lambda: vmap(lambda a: a, in_axes=2)(x), "axis 2"), (lambda: vmap(lambda a: a, in_axes=-3)(x), "axis -3"), (lambda: vmap(lambda a: a, axis_size=4)(x), "axis_size"),
            (lambda: vmap(lambda a: a, in_axes=None)(x), "axis_size"), (lambda: vmap(lambda a, b: a, in_axes=(0,))(x, y), "in_axes"), (lambda: vmap(lambda a: a, out_axes=None)(x), "out_axes"), (lambda: vmap(lambda a: a, out_axes=2)(x), "out_axes"),
            (lambda: vmap(lambda a, b: a)(x, 3.0), "0 dims"),
        ]:  # fmt: skip
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                bad()
        with self.assertRaises(TypeError):
            vmap(3)
        with self.assertRaises(TypeError):
            vmap(lambda a: "s")(x)
        with self.assertRaises(TypeError):
            vmap(lambda a: a, in_axes="0")(x)
        with self.assertRaisesRegex(RuntimeError, "vmap"):
            vmap(lambda a: a if a.sum() > 0 else -a)(x)
        self.assertEqual(vmap(lambda a: a)(x).batch_dims, 0)  # a failure leaves nothing behind
        self.assertEqual(eager.core.context.vmap_level(), 0)

    def test_error_names_the_argument(self):
        with self.assertRaisesRegex(ValueError, r"args\[1\]\['k'\]"):
            vmap(lambda a, b: a)(Tensor.ones((3,)), {"k": Tensor.ones((4,))})


class Nested(unittest.TestCase):
    def same(self, got, want):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)

    def test_twice(self):
        x, y = rand(3, 4), rand(5, 4)
        table = vmap(lambda a: vmap(lambda b: (a * b).sum())(Tensor.constant(y)))(Tensor.constant(x))
        self.same(table, x @ y.T)
        table = vmap(vmap(lambda a, b: (a * b).sum(), in_axes=(None, 0)), in_axes=(0, None))(Tensor.constant(x), Tensor.constant(y))
        self.same(table, x @ y.T)

    def test_three_times_with_axes(self):
        x = rand(2, 3, 4, 5)
        f = vmap(vmap(vmap(lambda v: v.sum() * 2, in_axes=1), in_axes=-1), in_axes=0, out_axes=2)
        want = np.stack([np.stack([x[i][..., k].sum(0) * 2 for k in range(5)]) for i in range(2)], 2)
        self.same(f(Tensor.constant(x)), want)

    def test_inner_does_not_see_outer(self):
        seen = []

        def inner(v):
            seen.append((v.shape, v.batch_dims))
            return v + 1

        def outer(m):
            seen.append((m.shape, m.batch_dims))
            return vmap(inner)(m)

        vmap(outer)(Tensor.ones((2, 3, 4)))
        self.assertEqual(seen, [((3, 4), 1), ((4,), 2)])

    def test_mapped_and_captured(self):
        x, y, c = rand(3, 4), rand(5, 4), rand(4)
        got = vmap(lambda a: vmap(lambda b: a * b + Tensor.constant(c))(Tensor.constant(y)).sum(axis=0))(Tensor.constant(x))
        self.same(got, (x[:, None] * y[None] + c).sum(1))

    def test_inner_maps_something_unbatched(self):
        x, y = rand(3), rand(4, 2)
        got = vmap(lambda a: vmap(lambda b: b.sum() + a)(Tensor.constant(y)))(Tensor.constant(x))
        self.same(got, y.sum(1)[None] + x[:, None])


class Operations(unittest.TestCase):
    """Operations in lanes equal a loop over lanes."""

    def test_many(self):
        x, w, i = rand(4, 3, 5), rand(5, 2), RNG.integers(0, 3, (4, 2))
        cases = [
            (lambda v: v.sum(axis=0), x), (lambda v: v.mean(), x), (lambda v: eager.softmax(v, axis=0), x), (lambda v: v.reshape(5, 3), x), (lambda v: v.T, x), (lambda v: v[1:, ::2], x), (lambda v: v[None, 0], x), (lambda v: v @ Tensor.constant(w), x),
            (lambda v: eager.concatenate([v, v], axis=1), x), (lambda v: eager.stack([v, v], axis=1), x), (lambda v: eager.argmax(v, axis=0), x), (lambda v: eager.cumsum(v, axis=1), x), (lambda v: eager.sort(v, axis=0), x), (lambda v: eager.argsort(v, axis=1), x),
            (lambda v: eager.flip(v, 0), x), (lambda v: eager.roll(v, 1, 0), x), (lambda v: eager.tile(v, (2, 1)), x), (lambda v: eager.pad(v, ((1, 0), (0, 2))), x), (lambda v: v.unsqueeze(0), x), (lambda v: eager.broadcast_to(v, (2, 3, 5)), x),
            (lambda v: eager.where(v > 0, v, 0.0), x), (lambda v: v.max(axis=(0, 1)), x), (lambda v: eager.gather(v, Tensor.constant([2, 0]), axis=0), x), (lambda v: v.at[1].set(0.0), x), (lambda v: v.at[[0, 0], [1, 1]].add(1.0), x), (lambda v: eager.tril(v), x),
            (lambda v: v.reshape(-1), x), (lambda v: v.permute(1, 0), x), (lambda v: eager.repeat(v, 2, axis=1), x), (lambda v: v.var(axis=1), x), (lambda v: eager.logsumexp(v, axis=1), x), (lambda v: eager.split(v, 3)[1], x), (lambda v: eager.topk(v, 2)[0], x),
            (lambda v: v[:, [0, 0, 4]], x), (lambda v: eager.diagonal(v), x), (lambda v: eager.outer(v[0], v[1]), x), (lambda v: v + Tensor.arange(5), x), (lambda v: Tensor.arange(3).unsqueeze(1) * v, x), (lambda v: eager.layer_norm(v), x),
        ]  # fmt: skip
        for k, (f, a) in enumerate(cases):
            for axis in (0, 1):
                b = np.moveaxis(a, 0, axis)
                with self.subTest(case=k, axis=axis):
                    np.testing.assert_allclose(vmap(f, in_axes=axis)(Tensor.constant(b)).numpy(), loop(f, b, axes=(axis,)), rtol=1e-4, atol=1e-5)
        pairs = [
            (lambda v, j: eager.gather(v, j, axis=0), x, i), (lambda v, j: v[j], x, i), (lambda v, j: v[j, j], x, i), (lambda v, j: v.at[j].set(1.0), x, i), (lambda v, u: v @ u.T, x, x), (lambda v, u: v * u, x, x), (lambda v, j: eager.scatter(v, j, 0.0), x, i),
            (lambda v, s: v * s, x, rand(4)), (lambda s, v: s + v, rand(4), x), (lambda v, u: eager.concatenate([v, u]), x, x),
        ]  # fmt: skip
        for k, (f, a, b) in enumerate(pairs):
            with self.subTest(pair=k):
                np.testing.assert_allclose(vmap(f)(Tensor.constant(a), Tensor.constant(b)).numpy(), loop(f, a, b), rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(
                    vmap(f, in_axes=(0, None))(Tensor.constant(a), Tensor.constant(b[0])).numpy(),
                    loop(f, a, b[0], axes=(0, None)),
                    rtol=1e-4,
                    atol=1e-5,
                )
                np.testing.assert_allclose(
                    vmap(f, in_axes=(None, 0))(Tensor.constant(a[0]), Tensor.constant(b)).numpy(),
                    loop(f, a[0], b, axes=(None, 0)),
                    rtol=1e-4,
                    atol=1e-5,
                )

    def test_assignment(self):
        def f(v, u):
            v[0] = u
            return v

        x, u = rand(3, 4), rand(3)
        want = x.copy()
        want[:, 0] = u
        np.testing.assert_array_equal(vmap(f)(Tensor.constant(x), Tensor.constant(u)).numpy(), want)

        def g(u):
            v = Tensor.zeros((4,))
            v[1:3] = u
            return v

        want = np.zeros((3, 4), np.float32)
        want[:, 1:3] = u[:, None]
        np.testing.assert_array_equal(vmap(g)(Tensor.constant(u)).numpy(), want)

    def test_with_compile(self):
        x = rand(3, 4)
        f = eager.compile(vmap(lambda v: eager.softmax(v) * 2))
        np.testing.assert_allclose(f(Tensor.constant(x)).numpy().sum(1), [2] * 3, rtol=1e-5)
        g = vmap(eager.compile(lambda v: eager.softmax(v) * 2))
        np.testing.assert_allclose(g(Tensor.constant(x)).numpy(), f(Tensor.constant(x)).numpy(), rtol=1e-6)

    def test_traced(self):
        x = Tensor.ones((3, 4), traced=True)
        y = vmap(lambda v: v * 2)(x)
        self.assertTrue(y.is_traced)
        self.assertIn(x._impl, eager.get_topological_order(y._impl))


@eas.kernel
def _add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


@eas.kernel
def _group_sums(x, out, N, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    i = mk.program_id(0) * BLOCK + t
    mk.store(out, mk.program_id(0), mk.tg_sum(mk.load(x, i, i < N)), t == 0)


@eas.kernel
def _three_axes(x, out, BLOCK: eas.constexpr):
    i = (mk.program_id(2) * 2 + mk.program_id(1)) * 2 + mk.program_id(0) + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i) * 2.0)


class Kernels(unittest.TestCase):
    """Kernels of the user's: lanes are one more axis of programs."""

    def setUp(self):
        self.rng = np.random.default_rng(0)
        self.add = eager.from_kernel(_add, {"c": lambda a: a})

    def array(self, *shape):
        return self.rng.standard_normal(shape, dtype=np.float32)

    def test_shared_and_mapped_arguments(self):
        a, b = self.array(20, 1000), self.array(1000)
        got = vmap(lambda x: self.add(x, Tensor.constant(b), N=1000, BLOCK=256))(Tensor.constant(a))
        np.testing.assert_array_equal(got.numpy(), a + b)

    def test_nested(self):
        x, y = self.array(3, 4, 10), self.array(3, 10)
        f = vmap(vmap(lambda u, v: self.add(u, v, N=10, BLOCK=16), in_axes=(0, None)), in_axes=(0, 0))
        np.testing.assert_array_equal(f(Tensor.constant(x), Tensor.constant(y)).numpy(), x + y[:, None])

    def test_threads_of_a_group(self):
        sums = eager.from_kernel(_group_sums, {"out": lambda x: ((4,), x.dtype)}, grid=4)
        z = self.array(6, 256)
        got = vmap(lambda v: sums(v, N=256, BLOCK=64))(Tensor.constant(z))
        np.testing.assert_allclose(got.numpy(), z.reshape(6, 4, 64).sum(2), rtol=1e-4, atol=1e-5)

    def test_a_kernel_that_leaves_no_axis(self):
        double = eager.from_kernel(_three_axes, {"out": lambda x: x}, grid=(2, 2, 2))
        z = self.array(5, 8)
        np.testing.assert_array_equal(vmap(lambda v: double(v, BLOCK=1))(Tensor.constant(z)).numpy(), z * 2)

    def test_no_lanes_at_all(self):
        got = vmap(lambda x, y: self.add(x, y, N=10, BLOCK=16))(Tensor.zeros((0, 10)), Tensor.zeros((0, 10)))
        self.assertEqual(got.shape, (0, 10))


if __name__ == "__main__":
    unittest.main()
