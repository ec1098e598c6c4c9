"""Operations: those of the table, and users' own."""

import pickle
import unittest

import numpy as np

import eager
from eager import Operation, Tensor, vmap
from eager.ops.operation import BinaryOperation, UnaryOperation


class Swish(UnaryOperation):
    name = "swish"

    def maxpr(self, x, beta=1.0):
        return x * eager.sigmoid(beta * x)


class MeanAndVariance(Operation):
    @property
    def name(self):
        return "mean_and_variance"

    def maxpr(self, x):
        return {"mean": x.mean(), "var": x.var()}


swish, stats = Swish(), MeanAndVariance()


class Own(unittest.TestCase):
    def test_call(self):
        x = np.linspace(-2, 2, 9, dtype=np.float32)
        y = swish(Tensor.constant(x), beta=2.0)
        self.assertFalse(y.real)
        np.testing.assert_allclose(y.numpy(), x / (1 + np.exp(-2 * x)), rtol=1e-5)

    def test_result_knows_its_operation(self):
        y = swish(Tensor.ones((3,)))
        self.assertIs(y._impl.op, swish)
        self.assertEqual(y._impl.op_name, "swish")
        self.assertIs(y._impl.output_refs.op, swish)
        self.assertEqual(y._impl.parents, [])
        self.assertEqual(y._impl.output_refs.op_args, ())

    def test_traced_result_keeps_arguments(self):
        x = Tensor.ones((3,), traced=True)
        y = swish(x, beta=3.0)
        self.assertTrue(y.is_traced)
        self.assertEqual(y._impl.parents, [x._impl])
        self.assertEqual(y._impl.output_refs.op_args, (x._impl,))
        self.assertEqual(y._impl.output_refs.op_kwargs, {"beta": 3.0})
        y.realize()
        self.assertEqual(y._impl.parents, [x._impl])

    def test_several_results_share_refs(self):
        r = stats(Tensor.arange(5))
        a, b = r["mean"]._impl, r["var"]._impl
        self.assertIs(a.output_refs, b.output_refs)
        self.assertEqual((a.output_refs.num_outputs, a.output_index, b.output_index), (2, 0, 1))
        self.assertEqual((r["mean"].item(), r["var"].item()), (2.0, 2.0))

    def test_in_vmap(self):
        x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
        np.testing.assert_allclose(vmap(lambda v: stats(v)["mean"])(Tensor.constant(x)).numpy(), x.mean(1), rtol=1e-5, atol=1e-6)

    def test_singletons(self):
        self.assertIs(Swish(), swish)
        self.assertIsNot(Swish(), MeanAndVariance())

    def test_what_is_not_overridden(self):
        class Bare(Operation):
            pass

        class Named(BinaryOperation):
            name = "named"

        with self.assertRaises(NotImplementedError):
            Bare().name  # noqa: B018
        with self.assertRaises(NotImplementedError):
            Named()(Tensor.ones((2,)))
        for rule in ("vjp_rule", "jvp_rule"):
            with self.assertRaisesRegex(NotImplementedError, "named"):
                getattr(Named(), rule)(None, None, None)
        with self.assertRaisesRegex(NotImplementedError, "named"):
            Named().sharding_rule()

    def test_results_must_be_tensors(self):
        class Bad(Operation):
            name = "bad"

            def maxpr(self, x):
                return [x, 3]

        with self.assertRaisesRegex(TypeError, r"bad.*\[1\]"):
            Bad()(Tensor.ones((2,)))


class Table(unittest.TestCase):
    def test_objects(self):
        self.assertEqual(eager.add.name, "add")
        self.assertIsInstance(eager.add, Operation)
        self.assertIs((Tensor.ones((2,)) + 1)._impl.op, eager.add)
        self.assertIs(eager.ops.binary.add, eager.add)
        self.assertIs(eager.ops.unary.sin, eager.sin)
        self.assertIs(pickle.loads(pickle.dumps(eager.add)), eager.add)
        self.assertIn("axis", eager.softmax.__doc__)

    def test_arguments(self):
        x = Tensor.ones((2, 3))
        self.assertEqual(x.sum(axis=1).shape, (2,))
        self.assertEqual(eager.mean(x, 1, True).shape, (2, 1))
        for bad in (
            lambda: eager.sin(),
            lambda: eager.sin(x, x),
            lambda: eager.mean(x, axes=1),
            lambda: eager.mean(x, 1, axis=1),
            lambda: eager.sin("a"),
            lambda: eager.mean(x, "a"),
        ):
            with self.assertRaises(TypeError):
                bad()
        with self.assertRaisesRegex(ValueError, "left|right"):
            eager.searchsorted(x[0], 1.0, side="middle")


class Kernels(unittest.TestCase):
    def setUp(self):
        import eas
        from eas import mk

        @eas.kernel
        def axpy(x, y, out, a, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, a * mk.load(x, i, i < N) + mk.load(y, i, i < N), i < N)

        self.kernel = axpy
        self.op = eager.from_kernel(axpy, {"out": lambda x: x})

    def test_in_the_graph(self):
        x, y = Tensor.arange(1000.0), Tensor.ones((1000,))
        z = self.op(x * 2, y, a=3.0, N=1000, BLOCK=128) + 1
        self.assertFalse(z.real)
        np.testing.assert_array_equal(z.numpy(), np.arange(1000, dtype=np.float32) * 6 + 2)

    def test_argument_that_others_use_too(self):
        x = Tensor.arange(100.0)
        y = x + 1
        z, u, v = self.op(y, y, 1.0, 100, 128), y * 2, (y * 3).reshape((10, 10)).sum()
        eager.realize_all(z, u, v)
        np.testing.assert_array_equal(z.numpy(), u.numpy())
        self.assertEqual(v.item(), 15150)

    def test_in_a_loop(self):
        f = eager.compile(lambda x: eager.while_loop(lambda s: s.max() < 100, lambda s: self.op(s, s, 1.0, 3, 16), x), fullgraph=True)
        self.assertEqual(f(Tensor.arange(3.0)).tolist(), [0, 64, 128])

    def test_name(self):
        self.assertEqual(self.op(Tensor.ones((4,)), Tensor.ones((4,)), 1.0, 4, 16)._impl.op_name, "axpy")

    def test_views_are_made_contiguous(self):
        x = Tensor.constant(np.arange(12, dtype=np.float32).reshape(3, 4))
        np.testing.assert_array_equal(self.op(x[1], x.T[:, 0], 1.0, 4, 16).numpy(), [4, 6, 8, 10])

    def test_vmap(self):
        x = Tensor.constant(np.arange(12, dtype=np.float32).reshape(3, 4))
        y = vmap(lambda v: self.op(v, v, 1.0, 4, 16))(x)
        np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())

    def test_kernels_take_tensors(self):
        x, out = Tensor.arange(10.0), Tensor.zeros((10,))
        self.kernel(x, x, out, 1.0, 10, BLOCK=16)
        np.testing.assert_array_equal(out.numpy(), 2 * np.arange(10, dtype=np.float32))

    def test_outputs_are_checked(self):
        with self.assertRaisesRegex(ValueError, "result"):
            eager.from_kernel(self.kernel, {"result": lambda x: x})
        with self.assertRaisesRegex(TypeError, "output"):
            eager.from_kernel(self.kernel, {"out": 3})(Tensor.ones((2,)), Tensor.ones((2,)), 1.0, 2, 16)


if __name__ == "__main__":
    unittest.main()
