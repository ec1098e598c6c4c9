"""Names and places that users of the original rely on: each is imported and touched."""

import contextlib
import importlib
import io
import unittest

import numpy as np

import eager
import eas
from eager import Tensor
from eas import mk

MODULES = {
    "eager.core.tensor": "Tensor TensorImpl",
    "eager.core.tensor_impl": "TensorImpl get_topological_order get_operations_topological get_all_impls_topological print_computation_graph print_trace_graph",
    "eager.core.graph_utils": "get_topological_order get_operations_topological get_all_impls_topological print_computation_graph print_trace_graph",
    "eager.core.tracing": "OutputRefs traced untraced",
    "eager.core.context": "defaults default_device default_dtype",
    "eager.core.pytree": "tree_flatten tree_unflatten tree_map tree_leaves tensor_leaves tree_structure traced untraced register_pytree_node",
    "eager.core.compute_graph": "GRAPH",
    "eager.ops.operation": "Operation UnaryOperation BinaryOperation ReduceOperation CreationOperation",
    "eager.ops.binary": "add sub mul div floordiv mod pow maximum minimum atan2 matmul",
    "eager.ops.unary": "sin cos exp log relu sigmoid silu gelu softmax logsoftmax cast neg",
    "eager.ops.comparison": "equal not_equal less less_equal greater greater_equal",
    "eager.ops.creation": "zeros ones full arange constant eye uniform gaussian normal hann_window",
    "eager.ops.reduction": "reduce_sum reduce_max reduce_min sum max min mean argmax argmin cumsum prod any all",
    "eager.ops.view": "reshape flatten swap_axes moveaxis permute unsqueeze squeeze broadcast_to pad concatenate stack gather scatter where flip roll tile repeat",
    "eager.ops.multi_output": "split chunk unbind minmax",
    "eager.ops._physical": "moveaxis squeeze unsqueeze reshape broadcast_to reduce_sum reduce_max reduce_min mean prod any all slice_tensor incr_batch_dims decr_batch_dims "
    "move_axis_to_batch_dims move_axis_from_batch_dims broadcast_batch_dims moveaxis_physical reduce_sum_physical",
    "eager.ops.control_flow": "where cond while_loop scan",
    "eager.ops.convolution": "conv2d conv2d_transpose",
    "eager.ops.pooling": "avg_pool2d max_pool2d",
    "eager.transforms.vmap": "vmap",
    "eager.transforms.compile": "compile CompiledFunction",
    "eager.transforms.utils": "std_basis trace visualize",
    "eager.sharding.spec": "DeviceMesh DimSpec ShardingSpec PartitionSpec P create_replicated_spec",
    "eager.sharding.propagation": "OpShardingRule propagate_sharding compile_with_sharding",
    "eager.config": "TRACING strict",
    "eager.testing": "assert_allclose",
    "eager.driver": "Tensor CPU Accelerator",
    "eager": "UnaryOperation BinaryOperation ReduceOperation CreationOperation Operation defaults default_device default_dtype is_tensor tree_structure with_batch_dims rebind take to_device "
    "transfer_to cpu gpu accelerator as_interleaved_complex view_as_real_interleaved normal call_custom_kernel compile_with_sharding",
}  # fmt: skip
FACTORIES = {
    "zeros": lambda m: m.zeros((2, 2)), "ones": lambda m: m.ones((2, 2)), "full": lambda m: m.full((2,), 3.0), "arange": lambda m: m.arange(3), "constant": lambda m: m.constant([1.0]),
    "uniform": lambda m: m.uniform((2,)), "gaussian": lambda m: m.gaussian((2,)),
}  # fmt: skip


class Walk(unittest.TestCase):
    def test_every_name(self):
        for module, names in MODULES.items():
            m = importlib.import_module(module)
            for name in names.split():
                self.assertTrue(hasattr(m, name), f"{module}.{name}")

    def test_creation_leaves_its_operation(self):
        for where in (Tensor, eager):
            for name, make in FACTORIES.items():
                t = make(where)
                self.assertEqual(t._impl.op.name, name)
                t.numpy()
                self.assertEqual(t._impl.op.name, name, "after reading")


class State(unittest.TestCase):
    def test_type(self):
        t = Tensor.ones(("b1", 64))
        for kind in (t._impl.type, t._value.type):
            self.assertEqual((repr(kind.shape), kind.dtype, kind.device), ("[Dim('b1'), Dim(64)]", "float32", "cpu"))

    def test_cached(self):
        for t in (Tensor.ones((2, 3)), Tensor.ones((2, 3)).realize(), Tensor.ones((2, 3)) + 1):
            i = t._impl
            self.assertEqual((i.cached_shape, i.cached_dtype, i.cached_device), ((2, 3), "float32", "cpu"))

    def test_storage_is_one_object(self):
        t = Tensor.ones((2,)).realize()
        self.assertIs(t.storage, t._impl._storages[0])
        self.assertIs(t.storage, t.storage)
        self.assertEqual(t.storage.to_numpy().tolist(), [1, 1])
        self.assertEqual(eas.tensor([1.0, 2.0]).to_numpy().tolist(), [1, 2])

    def test_graph_utilities_take_all(self):
        from eager.core import graph_utils

        y = Tensor.ones((2,)).trace() * 2 + 1
        for name in MODULES["eager.core.graph_utils"].split():
            shown = set()
            for roots in (y, y._impl, [y], [y._impl], (y,)):
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    got = getattr(graph_utils, name)(roots)
                shown.add((out.getvalue(), repr(got)))
            self.assertEqual(len(shown), 1, f"{name} answers differently for one and the same graph")

    def test_traced_in_place(self):
        from eager.core.pytree import traced, untraced

        tree = {"w": Tensor.ones((2,)), "n": 3}
        self.assertIs(traced(tree), tree)
        self.assertTrue(tree["w"].is_traced)
        self.assertIs(untraced(tree), tree)
        self.assertFalse(tree["w"].is_traced)
        tree["w"].is_traced = True
        self.assertTrue(tree["w"].requires_grad)
        self.assertFalse(tree["w"].detach().is_traced)
        self.assertTrue(tree["w"].is_traced)

    def test_op_kwargs(self):
        for traced in (False, True):
            x = Tensor.zeros((3,))
            x.is_traced = traced
            y = x.at[0].set(1.0)
            x[0] = 1.0
            self.assertEqual((x.op_kwargs["use_buffer_ops"], y.op_kwargs["use_buffer_ops"]), (True, False))
        x = Tensor.ones((2, 2)).trace()
        self.assertEqual(eager.reduce_sum(x, axis=1).op_kwargs, {"axis": 1})
        self.assertEqual(Tensor.ones((2,)).op_kwargs, {})

    def test_tracing(self):
        seen = []
        eager.compile(lambda x: (seen.append(eager.config.TRACING), x)[1])(Tensor.ones((2,)))
        self.assertFalse(eager.config.TRACING)


class Functions(unittest.TestCase):
    def test_vmap_with_the_tree_of_one_argument(self):
        params = {"w": Tensor.ones((3, 2)), "b": Tensor.ones((2,))}
        self.assertEqual(eager.vmap(lambda p: p["w"] + p["b"], in_axes={"w": 0, "b": None})(params).shape, (3, 2))
        self.assertEqual(eager.vmap(lambda p: p[0] + p[1], in_axes=(0, None))((params["w"], params["b"])).shape, (3, 2))

    def test_vmap_over_the_mesh_of_arguments(self):
        mesh = eager.DeviceMesh("m", (2,), ("x",))
        r = eager.vmap(lambda v: v * 2, spmd_axis_name="x")(Tensor.ones((4, 2)).shard(mesh, ["x", None]))
        self.assertEqual([d.axes for d in r.sharding.dim_specs], [["x"], []])
        with self.assertRaisesRegex(ValueError, "mesh"):
            eager.vmap(lambda v: v, spmd_axis_name="x")(Tensor.ones((4, 2)))

    def test_compile_with_sharding(self):
        mesh = eager.DeviceMesh("m", (2,), ("x",))
        x = Tensor.ones((4, 2)).shard(mesh, ["x", None]).trace()
        (y,) = eager.compile_with_sharding([x * 2], mesh)
        self.assertEqual([d.axes for d in y.sharding.dim_specs], [["x"], []])
        with self.assertRaisesRegex(ValueError, "traced"):
            eager.compile_with_sharding([x, Tensor.ones((2,))], mesh)

    def test_defaults(self):
        with eager.defaults(dtype="float64", device="ref"):
            for t in (
                eager.zeros((2,)),
                eager.ones((2,)),
                eager.full((2,), 0.5),
                eager.arange(2.0),
                eager.linspace(0, 1, 3),
                eager.uniform((2,)),
                eager.constant([0.1]),
                eager.eye(2),
            ):
                self.assertEqual((t.dtype, t.realize().device), ("float64", "ref"))
            self.assertEqual(eager.arange(3).dtype, "int64")
            self.assertEqual(eager.zeros((2,), "float16").dtype, "float16")
        with eager.default_dtype("float16"), eager.default_device("cpu"):
            self.assertEqual(eager.ones((2,)).dtype, "float16")
        self.assertEqual(eager.ones((2,)).dtype, "float32")
        with self.assertRaises(TypeError), eager.default_dtype("int32"):
            pass

    def test_small_ones(self):
        x = Tensor.arange(6.0)
        self.assertTrue(eager.is_tensor(x) and not eager.is_tensor(3))
        self.assertEqual(eager.with_batch_dims(x.reshape(2, 3), 1).shape, (3,))
        y = Tensor.zeros((6,))
        before = y + 0
        self.assertIs(eager.rebind(y, x * 2), y)
        self.assertEqual((y.tolist(), before.tolist()), ([0, 2, 4, 6, 8, 10], [0] * 6))
        z = eager.as_interleaved_complex(x)
        self.assertEqual((z.tolist(), eager.view_as_real_interleaved(z).tolist()), ([[0, 1], [2, 3], [4, 5]], x.tolist()))
        for f, shape in ((eager.as_interleaved_complex, (3,)), (eager.view_as_real_interleaved, (2, 3))):
            with self.assertRaises(ValueError):
                f(Tensor.ones(shape))
        self.assertEqual(eager.take(x, Tensor.constant([1, 3])).tolist(), [1, 3])
        self.assertEqual(eager.to_device(x, "ref").device, eager.transfer_to(x, "ref").device)
        self.assertEqual(eager.cpu(), "cpu")
        self.assertIn(eager.accelerator(), eager.driver.devices())
        try:
            self.assertIn(eager.gpu(), eager.driver.devices())
        except RuntimeError as e:
            self.assertIn("no GPU", str(e))

    def test_driver(self):
        a = np.arange(3, dtype=np.float32)
        self.assertEqual(eager.driver.Tensor.from_numpy(a).to_numpy().tolist(), [0, 1, 2])
        self.assertEqual(eager.driver.Tensor.zeros((2,), "int32").to_numpy().dtype, np.int32)
        self.assertEqual(Tensor(storage=eager.driver.Tensor.from_numpy(a)).tolist(), [0, 1, 2])

    def test_average_pools_with_much_padding(self):
        x = Tensor.ones((1, 4, 4, 1))
        got = eager.avg_pool2d(x, (3, 3), stride=1, padding=2)
        self.assertEqual(got.shape, (1, 6, 6, 1))
        self.assertAlmostEqual(got.numpy()[0, 0, 0, 0], 1 / 9, 6)
        with self.assertRaisesRegex(ValueError, "not smaller"):
            eager.avg_pool2d(x, (3, 3), stride=1, padding=3)

    def test_std_basis(self):
        b = eager.transforms.utils.std_basis({"a": Tensor.ones((2,)), "b": Tensor.ones((1, 2))})
        np.testing.assert_array_equal(b["a"].numpy(), np.eye(4)[:, :2])
        np.testing.assert_array_equal(b["b"].numpy(), np.eye(4)[:, 2:].reshape(4, 1, 2))

    def test_call_custom_kernel(self):
        @eas.kernel
        def add(a, b, c, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)

        a = Tensor.arange(100.0)
        for kind in (a, ((100,), "float32"), a._impl.type):
            c = eager.call_custom_kernel(add, a, a * 2, out_types=[kind], N=100, BLOCK=64)
            np.testing.assert_array_equal((c + 1).numpy(), np.arange(100) * 3 + 1)

    def test_users_operations_of_each_kind(self):
        class Twos(eager.CreationOperation):
            name = "twos"

            def maxpr(self, shape):
                return eager.full(shape, 2.0)

        self.assertEqual(Twos()((2,)).tolist(), [2, 2])
        self.assertEqual(Twos()((2,))._impl.op.name, "twos")


if __name__ == "__main__":
    unittest.main()
