"""Lazy tensors: recording, evaluating, indexing, interchange, what is kept of a graph."""

import asyncio
import contextvars
import copy
import gc
import io
import os
import pickle
import tempfile
import threading
import unittest
from contextlib import redirect_stdout

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import DEVICES, backend, python

import eager
import eas
from eager import GRAPH, DType, Shape, SymbolicDim, Tensor, TensorImpl


class Lazy(unittest.TestCase):
    def test_records_and_evaluates(self):
        x = Tensor.ones((3, 4))
        y = x + x
        z = y.sum()
        self.assertFalse(x.real or y.real or z.real)
        self.assertEqual(z.item(), 24.0)
        self.assertTrue(z.real)
        self.assertEqual(y.numpy().sum(), 24.0)

    def test_every_way_to_evaluate(self):
        def fresh():
            return Tensor.ones((1,)) + 1

        async def wait(t):
            return await t

        ways = {
            "realize": lambda t: t.realize(), "_sync_realize": lambda t: t._sync_realize(), "realize_all": eager.realize_all, "numpy": lambda t: t.numpy(), "to_numpy": lambda t: t.to_numpy(),
            "item": lambda t: t.item(), "bool": bool, "int": int, "float": float, "repr": repr, "await": lambda t: asyncio.run(wait(t)), "dlpack": np.from_dlpack, "asarray": np.asarray, "memoryview": memoryview,
            "tolist": lambda t: t.tolist(),
        }  # fmt: skip
        for name, f in ways.items():
            t = fresh()
            self.assertFalse(t.real, name)
            f(t)
            self.assertTrue(t.real, name)
        self.assertIs(asyncio.run(wait(t)), t)
        self.assertIs(t.realize(), t)

    def test_one_program_for_all(self):
        x = Tensor.constant(np.arange(8.0)).realize()
        a, b = x + 1, x * 2
        before = eager.stats()["programs"] + eager.stats()["program_hits"]
        eager.realize_all({"a": a}, [b, 3])
        self.assertEqual(eager.stats()["programs"] + eager.stats()["program_hits"], before + 1)
        self.assertTrue(a.real and b.real)

    def test_structure_is_found_again(self):
        def f(n):
            return (Tensor.constant(np.full(5, n)) * 2 + 1).sum().item()

        f(1.0)
        before = eager.stats()["programs"]
        self.assertEqual(f(3.0), 35.0)
        self.assertEqual(eager.stats()["programs"], before)

    def test_inputs_stay_usable(self):
        x = Tensor.arange(4)
        y = x * 2
        y.numpy()
        self.assertEqual((x + y).tolist(), [0, 3, 6, 9])

    def test_long_chains(self):
        x = Tensor.zeros((4,))
        y = x
        for _ in range(20000):
            y = y + 1
        self.assertEqual(y.numpy()[0], 20000)
        del y
        self.assertLess(eager.stats()["live_nodes"], 100000)

    def test_errors_name_shapes(self):
        with self.assertRaisesRegex(ValueError, r"\(3, 4\).*\(2,\)"):
            Tensor.ones((3, 4)) + Tensor.ones((2,))

    def test_run_time_errors_name_the_line(self):
        x = Tensor.constant([1.0, 2.0])
        y = x[Tensor.constant([5])]  # this line
        with self.assertRaisesRegex(IndexError, r"test_eager.py:\d+"):
            y.numpy()

    def test_strict(self):
        with eager.config.strict():
            self.assertTrue((Tensor.ones((2,)) + 1).real)
        self.assertFalse((Tensor.ones((2,)) + 1).real)
        r = python("import eager; print((eager.ones((2,)) + 1).real)", env={"EAGER_STRICT": "1"})
        self.assertEqual(r.stdout.strip(), "True")

    def test_threads(self):
        def work(i, out):
            x = Tensor.constant(np.full(100, i, np.float32))
            for _ in range(50):
                x = (x + 1).realize()
            out[i] = x.numpy()[0]

        out = {}
        threads = [threading.Thread(target=work, args=(i, out)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(out, {i: i + 50 for i in range(6)})

    def test_every_device(self):
        for device in DEVICES:
            with self.subTest(device), backend(device):
                x = Tensor.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
                self.assertEqual(x.device, device)
                np.testing.assert_allclose(eager.softmax(x @ x.T + 1).numpy().sum(1), [1, 1], rtol=1e-6)


class Making(unittest.TestCase):
    def test_constant_copies(self):
        a = np.zeros(3, np.float32)
        t = Tensor.constant(a)
        a[:] = 1
        self.assertEqual(t.tolist(), [0, 0, 0])

    def test_dtypes(self):
        for value, want in [
            (1.5, "float32"),
            ([1.0, 2.0], "float32"),
            (3, "int64"),
            (True, "bool"),
            ([1, 2], "int64"),
            (np.float64(2), "float64"),
            (np.ones(2), "float64"),
            (np.int8(3), "int8"),
        ]:
            self.assertEqual(Tensor.constant(value).dtype, want, value)
        self.assertEqual(Tensor.constant([1, 2], dtype=DType.float32).dtype, DType.float32)
        self.assertEqual(Tensor.ones((2,)).dtype, np.float32)
        self.assertNotEqual(Tensor.ones((2,)).dtype, np.float64)
        self.assertEqual(Tensor.constant([1j]).dtype, "complex64")
        self.assertEqual(Tensor(np.array([1j])).dtype, "complex128")
        with self.assertRaises((TypeError, ValueError)):
            Tensor.constant(["a"])

    def test_factories(self):
        self.assertEqual(Tensor.arange(3).tolist(), [0, 1, 2])
        self.assertEqual(Tensor.arange(2, 5).tolist(), [2, 3, 4])
        self.assertEqual(Tensor.full((2,), 7.0).tolist(), [7, 7])
        self.assertTrue(Tensor.zeros((2,), traced=True).is_traced)

    def test_sharing(self):
        a = np.arange(4, dtype=np.float32)
        for t in (Tensor.from_dlpack(a), Tensor(storage=eas.tensor(a)), Tensor(storage=a)):
            a[0] = 9
            self.assertEqual(t[0].item(), 9)
            self.assertEqual(t.numpy().__array_interface__["data"][0], a.__array_interface__["data"][0])
            a[0] = 0

    def test_storage(self):
        t = Tensor.ones((2,)) + 1
        self.assertIsNone(t.storage)
        self.assertIsNotNone(t._value)
        t.realize()
        self.assertIsInstance(t.storage, eas.Tensor)
        self.assertIsNone(t._value)
        self.assertEqual(t.storage.data_ptr(), eas.tensor(t).data_ptr())

    def test_pickle_and_copies(self):
        x = Tensor.arange(4).reshape(2, 2)
        for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):
            self.assertEqual((y.tolist(), y.dtype), ([[0, 1], [2, 3]], x.dtype))
            y[0] = 9
            self.assertEqual(x.tolist(), [[0, 1], [2, 3]])

    def test_views_are_read_only(self):
        a = (Tensor.ones((2,)) + 1).numpy()
        with self.assertRaises(ValueError):
            a[0] = 3

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not here")
        t = Tensor.from_dlpack(torch.arange(4.0))
        self.assertEqual((t + 1).tolist(), [1, 2, 3, 4])
        self.assertEqual(torch.from_dlpack(t + 1).tolist(), [1, 2, 3, 4])

    def test_of_tensors(self):
        self.assertEqual(Tensor.constant(eas.ones(2)).tolist(), [1, 1])
        self.assertEqual(
            (eas.ones(2) + Tensor.ones((2,))).tolist() if hasattr(eas.Tensor, "__add__") else (Tensor.ones((2,)) + eas.ones(2)).tolist(), [2, 2]
        )


class Shapes(unittest.TestCase):
    def test_shape(self):
        s = Tensor.ones((2, 3)).shape
        self.assertEqual(repr(s), "[Dim(2), Dim(3)]")
        self.assertEqual(s, (2, 3))
        self.assertEqual(s, [2, 3])
        self.assertNotEqual(s, [2, 4])
        self.assertEqual([int(d) for d in s], [2, 3])
        self.assertIsInstance(s[0], eager.Dim)
        self.assertEqual(np.zeros(s).shape, (2, 3))
        self.assertEqual(Shape([2, "batch"]), (2, "batch"))

    def test_symbols(self):
        b = eager.Dim("batch")
        self.assertEqual(repr(Shape((2, "batch"))), "[Dim(2), Dim('batch')]")
        self.assertEqual((b + 1) * 2, 2 * b + 2)
        self.assertEqual(b - b, 0)
        self.assertEqual((b * 6) // 3, 2 * b)
        self.assertEqual((b * 4 + 2).value({"batch": 5}), 22)
        self.assertEqual(hash(b + 1), hash(1 + b))
        self.assertNotEqual(b, SymbolicDim("other"))
        self.assertIsInstance(b, eager.Dim)
        with self.assertRaises(TypeError):
            int(b)
        with self.assertRaises(TypeError):
            bool(b == 3) or int(b + 1)

    def test_symbolic_tensors(self):
        x = Tensor.ones(("batch", 4))
        y = (x @ Tensor.ones((4, 3))).reshape(-1)
        self.assertEqual(repr(y.shape), "[Dim('3*batch')]")
        self.assertIn("batch", repr(x))
        with self.assertRaises(ValueError):
            x + Tensor.ones(("other", 4))

    def test_attributes(self):
        x = Tensor.ones((2, 3), "int16")
        self.assertEqual((x.ndim, x.size, x.itemsize, x.nbytes, len(x), x.batch_dims, x.device), (2, 6, 2, 12, 2, 0, "cpu"))
        self.assertEqual((x.local_shape, x.global_shape, x.physical_global_shape), ((2, 3),) * 3)
        with self.assertRaises(TypeError):
            len(Tensor.ones(()))
        self.assertEqual([r.tolist() for r in Tensor.arange(4).reshape(2, 2)], [[0, 1], [2, 3]])


class Numbers(unittest.TestCase):
    def test_operators(self):
        x = Tensor.constant([1.0, 2.0, 4.0])
        a = x.numpy()
        for got, want in [
            (x + 1, a + 1), (1 + x, 1 + a), (x - 1, a - 1), (1 - x, 1 - a), (x * 2, a * 2), (2 / x, 2 / a), (x / 2, a / 2), (x // 2, a // 2), (7 // x, 7 // a), (x % 3, a % 3), (7 % x, 7 % a), (x**2, a**2), (2**x, 2**a),
            (-x, -a), (+x, a), (abs(-x), a), (x < 2, a < 2), (x <= 2, a <= 2), (x > 2, a > 2), (x >= 2, a >= 2), (x == 2, a == 2), (x != 2, a != 2), (2 < x, a > 2), (a + x, a + a), (a * x, a * a), (np.float32(2) * x, 2 * a),
            (divmod(x, 3)[1], a % 3), (x @ x, a @ a),
        ]:  # fmt: skip
            self.assertIsInstance(got, Tensor)
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
        i = Tensor.constant(np.array([1, 6, 3]))
        for got, want in [
            (i & 2, [0, 2, 2]),
            (i | 1, [1, 7, 3]),
            (i ^ 1, [0, 7, 2]),
            (~i, [-2, -7, -4]),
            (i << 1, [2, 12, 6]),
            (i >> 1, [0, 3, 1]),
            (1 << i, [2, 64, 8]),
        ]:
            self.assertEqual(got.tolist(), want)
        b = Tensor.constant([True, False])
        self.assertEqual(((b & ~b).tolist(), (b | ~b).tolist(), (b ^ b).tolist()), ([False] * 2, [True] * 2, [False] * 2))

    def test_what_is_no_operand(self):
        x = Tensor.ones((2,))
        with self.assertRaises(TypeError):
            x + "a"
        with self.assertRaises(TypeError):
            x + object()
        self.assertFalse(x == None)  # noqa: E711
        self.assertTrue(x != None)  # noqa: E711
        with self.assertRaises(OverflowError):
            x + 2**70

    def test_one_element(self):
        self.assertTrue(bool(Tensor.ones((1, 1)) > 0))
        self.assertEqual(int(Tensor.full((), 3)), 3)
        self.assertEqual([1, 2, 3][Tensor.full((), 1)], 2)
        with self.assertRaisesRegex(ValueError, "ambiguous"):
            bool(Tensor.ones((2,)))
        with self.assertRaises(TypeError):
            [1, 2][Tensor.full((), 1.0)]
        self.assertEqual(Tensor.arange(6).reshape(2, 3).item(1, 2), 5)

    def test_sugar(self):
        x = Tensor.constant([1.25, -2.5])
        self.assertEqual(f"{x[0]:.1f}", "1.2")
        self.assertIn("Tensor(", f"{x}")
        self.assertEqual((round(x).tolist(), round(x, 1).dtype), ([1, -2], "float32"))
        self.assertTrue(-2.5 in x)
        self.assertFalse(3 in x)
        self.assertEqual(
            (x.int().dtype, x.double().dtype, x.half().dtype, x.numel(), x.dim(), x.cpu() is x), ("int32", "float64", "float16", 2, 1, True)
        )
        t = Tensor.ones((2,), traced=True)
        self.assertFalse(t.detach().is_traced)

    def test_hash_is_identity(self):
        x = Tensor.ones((2,))
        self.assertEqual({x: 1}[x], 1)

    def test_inplace_rebinds(self):
        x = y = Tensor.ones((2,))
        x += 1
        self.assertEqual((x.tolist(), y.tolist()), ([2, 2], [1, 1]))


def keys(shape):
    """A strategy of NumPy keys for an array of this shape."""
    basic = hnp.basic_indices(shape, allow_newaxis=True)
    ints = hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(min_dims=0, max_dims=2, max_side=3)) if shape and 0 not in shape else basic
    return st.one_of(basic, ints)


class Indexing(unittest.TestCase):
    a = np.arange(60, dtype=np.float32).reshape(3, 4, 5)

    def both(self):
        return self.a, Tensor.constant(self.a)

    KEYS = [
        np.s_[1], np.s_[-1], np.s_[1, 2], np.s_[1, 2, 3], np.s_[:], np.s_[1:], np.s_[::-1], np.s_[::2, 1:3], np.s_[..., 0], np.s_[None], np.s_[:, None, 1], np.s_[1, ..., None], np.s_[5:], np.s_[-100:100:2], np.s_[2:0:-1],
        np.s_[[0, 2]], np.s_[[[0, 1], [1, 2]]], np.s_[:, [0, -1]], np.s_[[0, 1], [1, 2]], np.s_[[0, 1], :, [1, 2]], np.s_[0, :, [1, 2]], np.s_[:, [[0], [1]], [2, 3]], np.s_[[0, 1], None, [1, 2]], np.s_[..., [1, 1]],
        np.s_[1:, [0, 1], ::2], np.s_[np.array([True, False, True])], np.s_[:, np.array([True, False, True, True])], np.s_[True], np.s_[False], np.s_[[]], np.s_[()], np.s_[1, [2], None, 3],
        a > 7,
    ]  # fmt: skip

    def test_get(self):
        a, t = self.both()
        for k in self.KEYS:
            with self.subTest(str(k)):
                want = a[k]
                self.assertEqual(tuple(t[k].shape), want.shape)
                np.testing.assert_array_equal(t[k].numpy(), want)

    def test_get_by_tensors(self):
        a, t = self.both()
        i, m = np.array([2, 0]), a[0] > 7
        np.testing.assert_array_equal(t[Tensor.constant(i)].numpy(), a[i])
        np.testing.assert_array_equal(t[:, Tensor.constant(i), 1].numpy(), a[:, i, 1])
        np.testing.assert_array_equal(t[0][Tensor.constant(m)].numpy(), a[0][m])
        np.testing.assert_array_equal(t[Tensor.full((), 1)].numpy(), a[1])

    def test_set(self):
        for k in self.KEYS:
            with self.subTest(str(k)):
                a, t = self.a.copy(), Tensor.constant(self.a)
                a[k] = 7
                t[k] = 7
                np.testing.assert_array_equal(t.numpy(), a)

    def test_set_arrays(self):
        rng = np.random.default_rng(1)
        for k in self.KEYS:
            a, t = self.a.copy(), Tensor.constant(self.a)
            v = rng.normal(size=a[k].shape).astype(np.float32)
            unique = np.zeros(a.shape, np.int64)
            np.add.at(unique, k, 1)
            if unique.max(initial=0) > 1:
                continue
            with self.subTest(str(k)):
                a[k] = v
                t[k] = Tensor.constant(v)
                np.testing.assert_array_equal(t.numpy(), a)

    def test_at(self):
        for k in self.KEYS:
            for name, f in (("set", None), ("add", np.add), ("mul", np.multiply), ("min", np.minimum), ("max", np.maximum)):
                a, t = self.a.copy(), Tensor.constant(self.a)
                if f is None:
                    a[k] = 3.0
                else:
                    f.at(a, k, np.float32(3.0))
                with self.subTest(f"{name} {k}"):
                    np.testing.assert_array_equal(getattr(t.at[k], name)(3.0).numpy(), a)
                    np.testing.assert_array_equal(t.numpy(), self.a)

    def test_assignment_rebinds_the_handle(self):
        x = Tensor.zeros((3,))
        y, z = x, x + 0
        x[1] = 5
        self.assertIs(y, x)
        self.assertEqual((y.tolist(), z.tolist()), ([0, 5, 0], [0, 0, 0]))
        copy = x.copy()
        copy[0] = 1
        self.assertEqual(x.tolist(), [0, 5, 0])

    def test_mistakes(self):
        t = Tensor.ones((3, 4))
        for k in (3, -4, np.s_[0, 4], np.s_[0, 0, 0], 1.5, "a", np.s_[..., ...], np.array([True, False])):
            with self.subTest(str(k)), self.assertRaises(IndexError):
                t[k]
        with self.assertRaises(ValueError):
            t[::0]
        with self.assertRaises(ValueError):
            t[0] = np.ones(3)
        with self.assertRaises(TypeError):
            del t[0]

    def test_kwargs_tell_assignments(self):
        x = Tensor.zeros((3,), traced=True)
        y = x.at[0].set(1.0)
        self.assertIs(y._impl.output_refs.op_kwargs["use_buffer_ops"], False)
        x[0] = 1.0
        self.assertIs(x._impl.output_refs.op_kwargs["use_buffer_ops"], True)

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_random_keys(self, draw):
        shape = draw.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
        a = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
        k = draw.draw(keys(shape))
        np.testing.assert_array_equal(Tensor.constant(a)[k].numpy(), a[k])


class Properties(unittest.TestCase):
    @settings(max_examples=100, deadline=None)
    @given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=4, min_side=0))
    def test_broadcasting(self, shapes):
        a, b, c = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in shapes.input_shapes)
        np.testing.assert_allclose((Tensor.constant(a) * Tensor.constant(b) + Tensor.constant(c)).numpy(), a * b + c, rtol=1e-5, atol=1e-6)

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_reshape_and_permute(self, draw):
        shape = draw.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
        a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        order = draw.draw(st.permutations(range(len(shape))))
        flat = draw.draw(st.sampled_from([(-1,), (a.size, 1), (1, -1), shape[::-1]]))
        np.testing.assert_array_equal((Tensor.constant(a).permute(order).reshape(flat) * 2).numpy(), a.transpose(order).reshape(flat) * 2)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_reductions(self, draw):
        shape = draw.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
        a = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        axes = tuple(draw.draw(st.sets(st.integers(0, len(shape) - 1))))
        np.testing.assert_allclose((Tensor.constant(a) * 2).sum(axis=axes).numpy(), (a * 2).sum(axes), rtol=1e-4, atol=1e-5)


class State(unittest.TestCase):
    def test_impl(self):
        x = Tensor.ones((2, 3))
        impl = x._impl
        self.assertIs(impl, x._impl)
        self.assertIsInstance(impl, TensorImpl)
        self.assertEqual((impl.physical_shape, impl.logical_shape, impl.cached_shape), ((2, 3),) * 3)
        self.assertEqual((impl.cached_dtype, impl.is_realized, impl._storages, len(impl._values)), ("float32", False, [], 1))
        x.realize()
        self.assertEqual((impl.is_realized, len(impl._storages), impl._values), (True, 1, []))

    def test_made_by_hand(self):
        impl = TensorImpl(batch_dims=2)
        self.assertEqual((impl.batch_dims, impl.traced, impl.sharding, impl.parents), (2, False, None, []))
        impl.batch_dims, impl.traced, impl.sharding = 1, True, "s"
        self.assertEqual((impl.batch_dims, impl.traced, impl.sharding), (1, True, "s"))

    def test_results_know_their_operation(self):
        x = Tensor.ones((2,))
        y = x + x
        self.assertEqual((y._impl.op.name, y._impl.op_name, y._impl.output_refs.num_outputs), ("add", "add", 1))
        self.assertEqual((y._impl.parents, y._impl.output_refs.op_args, y._impl.is_leaf), ([], (), True))
        self.assertEqual(Tensor.constant([1.0])._impl.op.name, "constant")
        self.assertIsNone(Tensor.from_dlpack(np.ones(2))._impl.op)

    def test_traced_results_keep_parents(self):
        x = Tensor.ones((2,), traced=True)
        z = Tensor.ones((2,))
        y = x + z
        self.assertTrue(y.is_traced)
        self.assertEqual(y._impl.parents, [x._impl, z._impl])
        self.assertEqual(y._impl.output_refs.op_args, (x._impl, z._impl))
        y.realize()
        self.assertEqual(y._impl.parents, [x._impl, z._impl])
        self.assertEqual(x.reduce_sum(axis=0)._impl.output_refs.op_kwargs, {"axis": 0})

    def test_outputs_are_held_weakly(self):
        a, b = eager.split(Tensor.arange(4), 2)
        refs = a._impl.output_refs
        self.assertIs(refs, b._impl.output_refs)
        self.assertEqual([o is not None for o in refs.get_alive_outputs()], [True, True])
        del b
        gc.collect()
        self.assertEqual([o is not None for o in refs.get_alive_outputs()], [True, False])
        self.assertIs(refs.get_alive_outputs()[0], a._impl)
        self.assertEqual((a._impl.output_index, refs.num_outputs), (0, 2))

    def test_graph_utilities(self):
        x = Tensor.ones((2,), traced=True)
        y = x * 2
        a, b = eager.split(y, 2)
        z = a + b
        names = [i.op_name for i in eager.get_topological_order(z._impl)]
        self.assertLess(names.index("mul"), names.index("split"))
        self.assertEqual(names[-1], "add")
        ops = eager.get_operations_topological([z._impl])
        self.assertEqual([o[1][0].op_name for o in ops], ["add", "split", "mul", "ones"])
        self.assertEqual(len(ops[1][1]), 2)
        self.assertEqual(eager.get_all_impls_topological([z._impl])[-1], z._impl)
        out = io.StringIO()
        with redirect_stdout(out):
            eager.print_trace_graph([z._impl], show_siblings=True)
            eager.print_computation_graph((Tensor.ones((2,)) + 1)._impl)
        self.assertIn("split", out.getvalue())
        self.assertIn("add", out.getvalue())

    def test_deep_traced_graphs(self):
        x = Tensor.ones((2,), traced=True)
        y = x
        for _ in range(3000):
            y = y + 1
        self.assertEqual(len(eager.get_topological_order(y._impl)), 3001)
        del x, y

    def test_graph(self):
        self.assertIs(eager.core.compute_graph.GRAPH, GRAPH)
        GRAPH._reset(GRAPH.context, 5)
        self.assertEqual(GRAPH.epoch, 5)
        seen = []
        contextvars.Context().run(lambda: seen.append(GRAPH.epoch))
        self.assertEqual(seen, [0])
        GRAPH._reset(GRAPH.context, 0)
        with self.assertRaises(TypeError):
            GRAPH._reset(None, 0)

    def test_sharding_rides_along(self):
        mesh = eager.DeviceMesh("m", (2,), ("x",))
        t = Tensor.ones((4, 2)).shard(mesh, eager.P("x"))
        self.assertTrue(t.is_sharded)
        self.assertEqual((t + 1).sharding, t.sharding)
        self.assertEqual((t + 1).tolist(), [[2, 2]] * 4)
        self.assertFalse(t.gather().is_sharded)
        with self.assertRaises(ValueError):
            eager.ShardingSpec(mesh, [["x"], ["x"]])
        self.assertTrue(eager.create_replicated_spec(mesh, 2).is_fully_replicated())

    def test_memory_is_given_back(self):
        gc.collect()
        before = eager.stats()["live_nodes"]
        for _ in range(10):
            x = Tensor.ones((4,), traced=True)
            y = (x * 2).sum()
            y._impl  # noqa: B018
            y.realize()
        del x, y
        gc.collect()
        Tensor.ones((1,))
        self.assertLess(eager.stats()["live_nodes"], before + 50)


class ControlFlow(unittest.TestCase):
    def test_cond(self):
        for x in (1.0, -1.0):
            self.assertEqual(eager.cond(Tensor.constant(x) > 0, lambda v: v * 2, lambda v: -v, Tensor.constant(3.0)).item(), 6 if x > 0 else -3)
        r = eager.vmap(lambda v: eager.cond(v > 0, lambda v: v * 2, lambda v: -v, v))(Tensor.constant([1.0, -1.0, 3.0]))
        self.assertEqual(r.tolist(), [2, 1, 6])

    def test_while_loop(self):
        r = eager.while_loop(lambda s: s["x"] < 100, lambda s: {"x": s["x"] * 2, "n": s["n"] + 1}, {"x": 1.0, "n": 0})
        self.assertEqual((r["x"].item(), r["n"].item()), (128, 7))
        r = eager.vmap(lambda v: eager.while_loop(lambda s: s < 100, lambda s: s * 2, v))(Tensor.constant([1.0, 3.0, 200.0]))
        self.assertEqual(r.tolist(), [128, 192, 200])

    def test_scan(self):
        carry, ys = eager.scan(lambda c, x: (c + x, c * 2), Tensor.constant(0.0), Tensor.arange(5))
        self.assertEqual((carry.item(), ys.tolist()), (10, [0, 0, 2, 6, 12]))
        carry, ys = eager.scan(lambda c, x: (c + x, c), Tensor.constant(0.0), Tensor.arange(3), reverse=True)
        self.assertEqual(ys.tolist(), [3, 2, 0])
        with self.assertRaises(ValueError):
            eager.scan(lambda c, x: (c, c), 0, Tensor.arange(3), length=4)


class ArrayAPI(unittest.TestCase):
    NAMES = """arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu zeros zeros_like astype broadcast_arrays broadcast_to can_cast finfo iinfo isdtype
    result_type abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1
    floor floor_divide greater greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply negative
    nextafter not_equal positive pow real reciprocal remainder round sign signbit sin sinh square sqrt subtract tan tanh trunc take take_along_axis matmul matrix_transpose tensordot vecdot concat expand_dims flip
    moveaxis permute_dims repeat reshape roll squeeze stack tile unstack argmax argmin count_nonzero nonzero searchsorted where unique_all unique_counts unique_inverse unique_values argsort sort
    cumulative_prod cumulative_sum max mean min prod std sum var all any diff e inf nan newaxis pi bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 __array_namespace_info__""".split()

    def test_names(self):
        xp = Tensor.ones((2,)).__array_namespace__()
        self.assertIs(xp, eager.array_api)
        self.assertEqual([n for n in self.NAMES if not hasattr(xp, n)], [])
        self.assertEqual(xp.__array_api_version__, "2024.12")
        with self.assertRaises(ValueError):
            Tensor.ones((2,)).__array_namespace__(api_version="1999")

    def test_info(self):
        info = eager.__array_namespace_info__()
        self.assertIn("cpu", info.devices())
        self.assertIn("float32", info.dtypes(kind="real floating"))
        self.assertEqual(info.default_dtypes()["real floating"], "float32")
        self.assertTrue(info.capabilities()["boolean indexing"])

    def test_dtypes(self):
        self.assertTrue(eager.isdtype(eager.int8, "integral"))
        self.assertFalse(eager.isdtype(eager.float32, ("bool", "integral")))
        self.assertEqual(eager.result_type(eager.int32, eager.float32), "float32")
        self.assertEqual(eager.result_type(Tensor.ones((2,), "int8"), 3), "int8")
        self.assertTrue(eager.can_cast(eager.int8, eager.int16))
        self.assertFalse(eager.can_cast(eager.float32, eager.int32))
        self.assertEqual((eager.iinfo("int8").max, eager.finfo("float32").bits, eager.finfo("bfloat16").eps), (127, 32, 2.0**-7))

    def test_functions(self):
        a = np.array([[3, 1, 3], [0, 1, 2]], np.float32)
        t = Tensor.constant(a)
        for got, want in [
            (eager.unique_values(t), np.unique(a)), (eager.unique_counts(t).counts, np.unique(a, return_counts=True)[1]), (eager.unique_inverse(t).inverse_indices, np.unique(a, return_inverse=True)[1].reshape(a.shape)),
            (eager.nonzero(t)[1], np.nonzero(a)[1]), (eager.clip(t, 1, 2), a.clip(1, 2)), (eager.clip(t, max=1), a.clip(None, 1)), (eager.diff(t), np.diff(a)), (eager.diff(t, axis=0), np.diff(a, axis=0)), (eager.meshgrid(t[0], t[1])[0], np.meshgrid(a[0], a[1])[0]),
            (eager.meshgrid(t[0], t[1], indexing="ij")[1], np.meshgrid(a[0], a[1], indexing="ij")[1]), (eager.unstack(t)[1], a[1]), (eager.broadcast_arrays(t, t[0])[1], np.broadcast_to(a[0], a.shape)), (eager.sum(t, dtype="float64"), a.sum()),
            (eager.permute_dims(t, (1, 0)), a.T), (eager.take(t, [1, 0], axis=1), a[:, [1, 0]]), (eager.std(t, correction=1), a.std(ddof=1)), (eager.concat([t, t]), np.concatenate([a, a])), (eager.sort(t, descending=True), -np.sort(-a)),
            (eager.matrix_transpose(t), a.T), (eager.imag(t), a * 0), (eager.remainder(t, 2), a % 2), (eager.astype(t, "int8"), a.astype("int8")),
        ]:  # fmt: skip
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


class Modules(unittest.TestCase):
    def test_paths(self):
        import importlib

        for name in """core.tensor core.tensor_impl core.tracing core.context core.pytree core.compute_graph core.graph_utils ops.operation ops.binary ops.unary ops.comparison ops.creation ops.reduction ops.view
        ops.multi_output ops._physical ops.control_flow ops.convolution ops.pooling transforms.vmap transforms.compile transforms.utils sharding.spec config testing driver""".split():
            importlib.import_module("eager." + name)
        self.assertIs(eager.core.tensor.Tensor, Tensor)
        self.assertIs(eager.ops.reduction.sum.__class__, eager.ops.binary.add.__class__)
        self.assertTrue(all(hasattr(eager, n) for n in eager.__all__))

    def test_driver(self):
        self.assertIn("cpu", eager.driver.devices())
        self.assertEqual(Tensor.constant([1.0], device=eager.driver.CPU()).device, "cpu")
        with self.assertRaises(ValueError):
            Tensor.constant([1.0], device="nowhere")

    def test_fork(self):
        if not hasattr(os, "fork"):
            self.skipTest("no fork here")
        r = python(
            "import os, eager\nx = eager.ones((8,)).realize()\npid = os.fork()\nif pid == 0:\n    os._exit(0 if (x + 1).numpy()[0] == 2 else 1)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), (x + 1).numpy()[0])"
        )
        self.assertEqual(r.stdout.split(), ["0", "2.0"])


class BadIndices(unittest.TestCase):
    """An index that is out of range for its axis raises when it is read, with the line that recorded it,
    wherever the axis lies in memory."""

    def test_every_way_to_index(self):
        a = Tensor.constant(np.arange(16, dtype=np.float32).reshape(4, 4))
        i = Tensor.constant(np.array([0, 9]))
        j = Tensor.constant(np.array([[7], [0], [0], [0]]))
        ways = {
            "numbers": lambda: eager.gather(Tensor.ones((4, 4)) + 1, i, axis=0),
            "rows": lambda: eager.gather(a, i, axis=0),
            "columns": lambda: eager.gather(a, i, axis=1),
            "computed": lambda: eager.gather(a * 2 + 1, i, axis=1),
            "turned": lambda: eager.gather(a.T, i, axis=0),
            "brackets": lambda: a[:, i],
            "add": lambda: a.at[i].add(1.0),
            "set": lambda: a.at[:, i].set(1.0),
            "along": lambda: eager.take_along_axis(a, j, axis=1),
        }
        for name, way in ways.items():
            with self.subTest(name), self.assertRaisesRegex(IndexError, r"test_eager\.py:\d+: an index is out of range"):
                way().numpy()
        self.assertEqual(eager.gather(a, Tensor.constant(np.array([-1, -4])), axis=1).numpy().tolist(), a.numpy()[:, [-1, -4]].tolist())


class LargeProducts(unittest.TestCase):
    """Products that are laid out in panels first: what lies beyond the edges, transposes, other dtypes, what
    comes before and after, leading dims."""

    def check(self, f, *arrays, tol=1e-4):
        got = f(*(eager.Tensor.from_dlpack(a) for a in arrays)).numpy()
        want = f(*(a.astype(np.float64) for a in arrays))
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tol, atol=tol * 4 * arrays[0].shape[-1] ** 0.5)

    def test_sizes_and_layouts(self):
        rng = np.random.default_rng(0)
        for m, k, n in [(256, 128, 96), (333, 77, 113), (49, 5000, 97), (150, 300, 48), (64, 9000, 64)]:
            x, y = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
            across, down = np.ascontiguousarray(x.T), np.ascontiguousarray(y.T)
            with self.subTest(m=m, k=k, n=n):
                self.check(lambda a, b: a @ b, x, y)
                self.check(lambda a, b: a @ b, x.astype(np.float64), y.astype(np.float64), tol=1e-12)
                self.check(lambda a, b: a @ b, x.astype(np.float16), y.astype(np.float16), tol=4e-3)
                self.check(lambda a, b: a.T @ b, across, y)
                self.check(lambda a, b: a @ b.T, x, down)
                self.check(lambda a, b: a.T @ b.T, across, down)
                self.check(lambda a, b: (a * 2 + 1) @ (b - 3) * 0.5 + 1, x, y, tol=4e-4)
                self.check(lambda a, b: a[1:] @ b[:, 1:], x, y)

    def test_leading_dims(self):
        rng = np.random.default_rng(1)
        for left, right in [
            ((3, 200, 100), (3, 100, 150)),
            ((3, 200, 100), (100, 150)),
            ((200, 100), (4, 100, 150)),
            ((2, 1, 200, 100), (1, 3, 100, 150)),
        ]:
            self.check(lambda a, b: a @ b, rng.standard_normal(left, dtype=np.float32), rng.standard_normal(right, dtype=np.float32))

    def test_bits_are_those_of_a_chain(self):
        """One fma a step, k ascending: rows at the edge, which are computed twice, and small products give
        the same."""
        rng = np.random.default_rng(2)
        x, y = rng.standard_normal((201, 257), dtype=np.float32), rng.standard_normal((257, 130), dtype=np.float32)
        a, b = eager.Tensor.from_dlpack(x), eager.Tensor.from_dlpack(y)
        whole = (a @ b).numpy()
        for r in (0, 7, 197):
            np.testing.assert_array_equal((a[r : r + 4] @ b).numpy(), whole[r : r + 4])

    def test_bad_index_in_a_factor(self):
        x, y = np.ones((128, 128), np.float32), np.ones((128, 128), np.float32)
        rows = np.full(128, 500)
        a, b, i = (eager.Tensor.from_dlpack(v) for v in (x, y, rows))
        with self.assertRaises(IndexError):
            (eager.gather(a, i, axis=0) @ b).numpy()


class Attention(unittest.TestCase):
    """softmax(where(condition, scores, -inf)) @ v in tiles: conditions that hold up to some column, and
    others."""

    def check(self, rows, cols, condition, want):
        rng = np.random.default_rng(rows + cols)
        q, k, v = (rng.standard_normal((2, n, 32), dtype=np.float32) for n in (rows, cols, cols))
        scores = np.where(want, q.astype(np.float64) @ k.swapaxes(1, 2) * 32**-0.5, -np.inf)
        e = np.exp(scores - scores.max(2, keepdims=True))
        a, b, c = (Tensor.from_dlpack(x) for x in (q, k, v))
        got = eager.softmax(eager.where(condition, a @ eager.swap_axes(b, 1, 2) * 32**-0.5, -float("inf"))) @ c
        np.testing.assert_allclose(got.numpy(), e @ v / e.sum(2, keepdims=True), rtol=2e-3, atol=1e-4)

    def test_causal(self):
        for rows, cols in [(256, 256), (200, 200), (130, 300), (300, 130), (64, 64)]:
            r, c = np.arange(rows)[:, None], np.arange(cols)[None, :]
            row, col = Tensor.arange(rows).reshape((rows, 1)), Tensor.arange(cols).reshape((1, cols))
            with self.subTest(rows=rows, cols=cols):
                self.check(rows, cols, col <= row, c <= r)
                self.check(rows, cols, row + 3 > col, c < r + 3)
                self.check(rows, cols, col.cast(DType.int64) <= row.cast(DType.int64), c <= r)
                self.check(rows, cols, col >= row * 0 + 5, c >= 5 + 0 * r)

    def test_lengths(self):
        rng = np.random.default_rng(0)
        for shape in [(2, 1, 1), (2, 150, 1), (150, 1)]:
            lengths = rng.integers(1, 301, shape)
            col = Tensor.arange(300).reshape((1, 300)).cast(DType.int64)
            with self.subTest(shape=shape):
                self.check(150, 300, col < Tensor.from_dlpack(lengths), np.arange(300) < lengths)


PROVED = """
import eager, numpy as np
def r(*s):
    return eager.constant(np.random.default_rng(0).random(s, np.float32)).realize()
for m, k, n in ((1000, 777, 333), (1000, 96, 1000), (64, 4200, 64), (1, 300, 500), (500, 300, 1)):
    (r(m, k) @ r(k, n)).realize(), (r(k, m).swap_axes(0, 1) @ r(n, k).swap_axes(0, 1)).realize()
(r(5, 300, 100) @ r(5, 100, 333)).realize()
q = r(2, 133, 64)
mask = eager.tril(eager.ones((133, 133))) > 0
(eager.softmax(eager.where(mask, q @ q.swap_axes(-1, -2), -1e9), axis=-1) @ q).realize()
for n in (133, 256):
    q, i = r(2, n, 64), eager.arange(n)
    (eager.softmax(eager.where(i[None, :] <= i[:, None], q @ q.swap_axes(-1, -2), -float("inf")), axis=-1) @ q).realize()
for x in (r(100, 1000), r(3000, 7), r(7, 3000)):
    for f in (eager.sum, eager.cumsum, eager.softmax, eager.argmax, eager.sort, eager.argsort, eager.flip, eager.var):
        f(x, axis=0).realize(), f(x, axis=1).realize()
    eager.topk(x, 5, axis=1)[0].realize(), eager.roll(x, 3, axis=1).realize(), eager.pad(x, [(1, 2), (3, 4)]).realize()
    (x.swap_axes(0, 1) + 1).realize(), eager.concatenate([x, x], axis=1).realize(), x[::2, ::3].realize()
eager.conv2d(r(2, 31, 33, 5), r(3, 3, 5, 7), padding=1, stride=2).realize()
eager.max_pool2d(r(2, 31, 33, 5), kernel_size=3, stride=2, padding=1).realize()
"""


class Proofs(unittest.TestCase):
    def test_our_own_kernels_are_proved_to_stay_inside(self):
        """Where no index is data, a launch needs no checks; checked code is several times slower."""
        with tempfile.TemporaryDirectory() as folder:
            said = python(PROVED, env={"EAS_LOG": "info", "EAS_CACHE_DIR": folder, "EAS_BACKEND": "cpu"}).stderr
        self.assertGreater(said.count("compiled"), 50)
        self.assertEqual([line for line in said.splitlines() if "checked" in line], [])


if __name__ == "__main__":
    unittest.main()
