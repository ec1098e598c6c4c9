"""The kernel object: signatures, binding, caching, launch options, texts."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import unittest
import weakref
from unittest import mock

import numpy as np
from support import backend

import eas
import eas.kernel as kernel_module
from eas import mk


@eas.kernel
def scale(x, out, N, k, BLOCK: eas.constexpr = 16):
    """Scales."""
    offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mask = offs < N
    mk.store(out, offs, mk.load(x, offs, mask) * k, mask)


@eas.kernel
def fill2d(out, H, W, BLOCK: eas.constexpr):
    x = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    y = mk.program_id(1)
    mk.store(out, y * W + x, (y * 1000 + x) * 1.0, x < W)


@eas.kernel
def fill3d(out, D, H, W, BLOCK: eas.constexpr):
    x = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    y, z = mk.program_id(1), mk.program_id(2)
    mk.store(out, (z * H + y) * W + x, (z * 100 + y * 10 + x) * 1.0, x < W)


@eas.kernel
def ids(out, BLOCK: eas.constexpr):
    mk.store(out, mk.program_id(0), mk.num_programs(0) * 1.0)


@eas.kernel
def threads(out, N, T: eas.constexpr):
    i = mk.program_id(0) * T + mk.tid(0, T)
    mk.store(out, i, i * 1.0, i < N)


def arrays(n=40):
    return np.arange(n, dtype=np.float32), np.zeros(n, np.float32)


class Binding(unittest.TestCase):
    def test_like_a_python_call(self):
        x, out = arrays()
        for call in (
            lambda: scale(x, out, 40, 2.0),
            lambda: scale(x, out, 40, 2.0, 8),
            lambda: scale(x=x, out=out, N=40, k=2.0, BLOCK=32),
            lambda: scale(x, k=2.0, out=out, N=40),
            lambda: scale(**{"x": x, "out": out, "N": 40, "k": 2.0}),
            lambda: scale(*(x, out, 40, 2.0), **{"BLOCK": 64}),
        ):
            out[:] = 0
            self.assertIsNone(call())
            np.testing.assert_array_equal(out, x * 2)

    def test_many_call_shapes(self):
        x, out = arrays()
        for i in range(200):
            names = {"x": x, "out": out, "N": 40, "k": float(i)}
            scale(**names)
            self.assertEqual(out[1], i)

    def test_keyword_only_and_defaults(self):
        @eas.kernel
        def k(out, N, v=3.0, /, *, BLOCK: eas.constexpr = 8, w=1.0):
            i = mk.arange(0, BLOCK)
            mk.store(out, i, v + w + i * 0, i < N)

        out = np.zeros(8, np.float32)
        k(out, 8)
        self.assertEqual(out[7], 4)
        k(out, 8, 5.0, w=2.0, _grid=1)
        self.assertEqual(out[7], 7)

    def test_looks_like_its_function(self):
        self.assertEqual((scale.__name__, scale.__doc__, scale.__module__), ("scale", "Scales.", __name__))
        self.assertTrue(callable(scale.__wrapped__))
        self.assertEqual(scale.meta_params, ("BLOCK",))
        self.assertIsInstance(scale, eas.Kernel)

    def test_scalars(self):
        x, out = arrays()
        for k in (2, 2.0, np.float32(2), np.int32(2), np.int64(2), np.float64(2), np.uint8(2)):
            out[:] = 0
            scale(x, out, 40, k)
            np.testing.assert_array_equal(out, x * 2)
        scale(x, out, np.int64(40), True)
        np.testing.assert_array_equal(out, x)

    def test_kinds_of_arrays(self):
        import array

        x, _ = arrays()
        out = array.array("f", [0] * 40)
        scale(memoryview(x), out, 40, 2.0)
        np.testing.assert_array_equal(np.frombuffer(out, np.float32), x * 2)

        class Sub(np.ndarray):
            pass

        out = np.zeros(40, np.float32).view(Sub)
        scale(x.reshape(5, 8), out, 40, 3.0)
        np.testing.assert_array_equal(np.asarray(out), x * 3)

        class Producer:
            def __init__(self, a):
                self.a = a

            def __dlpack__(self, **kw):
                return self.a.__dlpack__(**kw)

            def __dlpack_device__(self):
                return self.a.__dlpack_device__()

        out = np.zeros(40, np.float32)
        scale(Producer(x), Producer(out), 40, 4.0)
        np.testing.assert_array_equal(out, x * 4)

    def test_zero_d_and_empty(self):
        @eas.kernel
        def one(out, B: eas.constexpr):
            mk.store(out, mk.arange(0, 1), 5.0)

        out = np.array(0.0, np.float32)
        one(out, 1, _grid=1)
        self.assertEqual(out, 5)
        empty = np.zeros(0, np.float32)
        scale(empty, empty, 0, 1.0)

    def test_references_do_not_leak(self):
        x, out = arrays()
        scale(x, out, 40, 2.5)
        big = 10**6 + 7
        before = [sys.getrefcount(o) for o in (x, out, big)]
        for _ in range(100):
            scale(x, out, 40, 2.5)
            with self.assertRaises(TypeError):
                scale(x, out, 40, "no")
            with self.assertRaises(ValueError):
                scale(x[::2], out, 40, 1.0)
        self.assertEqual([sys.getrefcount(o) for o in (x, out, big)], before)

    def test_kernels_are_collected(self):
        def make():
            @eas.kernel
            def k(out, B: eas.constexpr):
                mk.store(out, mk.arange(0, B), k_name * 1.0)

            k_name = 3
            k.self = k
            k(np.zeros(4, np.float32), 4, _grid=1)
            return weakref.ref(k)

        ref = make()
        gc.collect()
        self.assertIsNone(ref())


class Caching(unittest.TestCase):
    def test_same_types_same_object(self):
        x, out = arrays()
        ck = scale.compile(x, out, 40, 2.0)
        self.assertIs(ck, scale.compile(x, out, 7, 9.0))
        self.assertIs(ck, scale.compile(x=out, out=x, N=10**12, k=-1.0, BLOCK=16))
        self.assertIs(ck, scale.compile(eas.tensor(x), x.reshape(8, 5), 1, 0.5))
        self.assertIs(ck, scale.compile(x, out, 40, 2.0, BLOCK=np.int64(16)))

    def test_other_types_other_object(self):
        x, out = arrays()
        ck = scale.compile(x, out, 40, 2.0)
        others = [
            scale.compile(x, out, 40, 2),
            scale.compile(x, out, 40, np.float32(2)),
            scale.compile(x, out, np.int32(40), 2.0),
            scale.compile(x.astype(np.float64), out, 40, 2.0),
            scale.compile(x, out, 40, 2.0, BLOCK=32),
        ]
        self.assertEqual(len({id(c) for c in [ck, *others]}), 6)

    def test_meta_by_type_and_value(self):
        @eas.kernel
        def k(out, V: eas.constexpr):
            mk.store(out, mk.arange(0, 1), float(V) if not isinstance(V, (str, tuple)) else 1.0)

        out = np.zeros(1, np.float32)
        values = [1, True, 1.0, 0.0, -0.0, "a", "b", (1, 2), (1, 2.0), ((1,), 2), 2**70, float("inf")]
        cks = [k.compile(out, v) for v in values]
        self.assertEqual(len({id(c) for c in cks}), len(values))
        for v, ck in zip(values, cks):
            self.assertIs(k.compile(out, v), ck)
        self.assertIs(k.compile(out, float("nan")), k.compile(out, float("nan")))

    def test_dtypes_as_meta(self):
        @eas.kernel
        def k(out, D: eas.constexpr):
            mk.store(out, mk.arange(0, 1), mk.cast(mk.cast(300, D), mk.f32))

        out = np.zeros(1, np.float32)
        for dtype, want in ((mk.u8, 44), (np.uint8, 44), (np.dtype("uint8"), 44), (mk.i16, 300), (mk.f32, 300)):
            k(out, dtype, _grid=1)
            self.assertEqual(out[0], want)

    def test_one_object_from_many_threads(self):
        @eas.kernel
        def k(x, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            v = mk.load(x, i, i < N)
            for j in range(50):
                v = v + j
            mk.store(out, i, v, i < N)

        x, out = arrays()
        found, barrier = [], threading.Barrier(8)

        def work():
            barrier.wait()
            found.append(k.compile(x, out, 40, BLOCK=8))

        ts = [threading.Thread(target=work) for _ in range(8)]
        [t.start() for t in ts]
        [t.join() for t in ts]
        self.assertEqual(len(found), 8)
        self.assertEqual(len({id(c) for c in found}), 1)

    def test_closures(self):
        def make(c):
            @eas.kernel
            def k(out, B: eas.constexpr):
                mk.store(out, mk.arange(0, B), c)

            return k

        out = np.zeros(4, np.float32)
        for c in (1.0, 2.0):
            make(c)(out, 4, _grid=1)
            self.assertEqual(out[3], c)


class Compiled(unittest.TestCase):
    def test_spmd(self):
        ck = scale.compile(*arrays(), 40, 2.0)
        self.assertEqual((ck.block_size, ck.launch_mode, ck.writes), (16, "spmd", frozenset({"out"})))
        self.assertIn("store", [i.op for i in ck.ir.insts])
        self.assertIn("kernel scale", str(ck.ir))
        self.assertEqual([a.name for a in ck.ir.args], ["x", "out", "N", "k"])
        self.assertTrue(all(isinstance(i.args, tuple) and isinstance(i.name, str) for i in ck.ir.insts))
        self.assertTrue(all(i.file == __file__ for i in ck.ir.insts if i.line))

    def test_thread(self):
        ck = threads.compile(np.zeros(40, np.float32), 40, 32)
        self.assertEqual((ck.block_size, ck.launch_mode), (32, "thread"))

    def test_threadgroup_arrays_are_not_writes(self):
        @eas.kernel
        def k(a, out, T: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg(T)
            mk.store(s, t, mk.load(a, t))
            mk.barrier()
            mk.store(out, t, mk.load(s, T - 1 - t))

        a, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
        self.assertEqual(k.compile(a, out, 32).writes, frozenset({"out"}))
        k(a, out, 32, _grid=1)
        np.testing.assert_array_equal(out, a[::-1])

    def test_texts(self):
        args = (*arrays(), 40, 2.0)
        self.assertEqual(scale.to_ir(*args), str(scale.compile(*args).ir))
        self.assertIn("#include <metal_stdlib>", scale.to_msl(*args))
        self.assertEqual(scale.to_msl(*args), scale.compile(*args).msl)
        self.assertIn("__kernel", scale.to_opencl(*args))
        try:
            self.assertIn("define", scale.to_llvm(*args))
            self.assertIn("\n", scale.to_asm(*args))
        except RuntimeError as e:
            self.skipTest(str(e))

    def test_text_form_parses_back(self):
        from eas.ir import IRModule, parse

        ck = fill3d.compile(np.zeros(1, np.float32), 1, 1, 1, BLOCK=8)
        again = parse(str(ck.ir))
        self.assertIsInstance(again, IRModule)
        self.assertEqual(str(again), str(ck.ir))
        self.assertEqual(again, ck.ir)
        self.assertEqual([i.op for i in again], [i.op for i in ck.ir])

    def test_unrolls_far(self):
        @eas.kernel
        def k(out, N: eas.constexpr):
            i = mk.arange(0, 4)
            v = mk.load(out, i)
            for j in range(N):
                v = v + (j % 3)
            mk.store(out, i, v)

        out = np.zeros(4, np.float32)
        ck = k.compile(out, 20000)
        self.assertGreater(len(ck.ir), 13000)


class Options(unittest.TestCase):
    def test_grid_forms(self):
        for grid, programs in (
            (3, 3),
            ((3,), 3),
            ([3], 3),
            ((3, 1, 1), 3),
            (np.int64(3), 3),
            (lambda meta, args: (3,), 3),
            (lambda meta, args: 3, 3),
        ):
            out = np.zeros(8, np.float32)
            ids(out, 8, _grid=grid)
            self.assertEqual(list(out), [3.0] * programs + [0.0] * (8 - programs))

    def test_grid_callable_sees_meta_and_arguments(self):
        seen = []
        x, out = arrays()
        scale(x, out, 40, 2.0, BLOCK=8, _grid=lambda meta, args: seen.append((meta, args)) or (1,))
        meta, args = seen[0]
        self.assertEqual(meta, {"BLOCK": 8})
        self.assertIs(args["x"], x)
        self.assertEqual((args["N"], args[2]), (40, 40))
        np.testing.assert_array_equal(out[:8], x[:8] * 2)
        np.testing.assert_array_equal(out[8:], 0)

    def test_zero_grid_is_nothing_to_do(self):
        for grid in (0, (0,), (3, 0), (1, 1, 0)):
            out = np.zeros(4, np.float32)
            ids(out, 8, _grid=grid)
            self.assertFalse(out.any())

    def test_bad_grids(self):
        out = np.zeros(4, np.float32)
        for grid, error in (((-1,), ValueError), (-3, ValueError), ((1, 1, 1, 1), ValueError), ((), ValueError), ("3", TypeError), (1.5, TypeError)):
            with self.subTest(grid), self.assertRaises(error):
                ids(out, 8, _grid=grid)
        self.assertFalse(out.any())

    def test_nthreads(self):
        x, out = arrays()

        @eas.kernel
        def k(x, out, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, mk.load(x, i))

        k(x, out, 8, _nthreads=40)
        np.testing.assert_array_equal(out, x)
        k(x, out, 8, _nthreads=0)
        with self.assertRaises(ValueError):
            k(x, out, 8, _nthreads=-1)
        with self.assertRaises(TypeError):
            k(x, out, 8, _nthreads=1.5)
        with self.assertRaises(ValueError):
            k(x, out, 8)

    def test_tptg(self):
        out = np.zeros(40, np.float32)
        threads(out, 40, 32, _tptg=(32, 1, 1))
        threads(out, 40, 32, _tptg=[32])
        ids(out, 8, _grid=1, _tptg=(1, 1, 1))
        for call in (threads, threads.compile):
            with self.assertRaises(ValueError):
                call(out, 40, 32, _tptg=(16, 1, 1))
        for call in (ids, ids.compile):
            with self.assertRaises(ValueError):
                call(out, 8, _tptg=(8, 1, 1))

    def test_sync_is_a_bool(self):
        out = np.zeros(4, np.float32)
        ids(out, 8, _grid=1, _sync=True)
        ids(out, 8, _grid=1, _sync=False)
        for bad in (1, "yes", None):
            with self.assertRaises(TypeError):
                ids(out, 8, _grid=1, _sync=bad)

    def test_shapes_make_grids(self):
        out = np.zeros((3, 20), np.float32)
        want = np.arange(3)[:, None] * 1000 + np.arange(20)
        for kw in ({}, {"_shape": (3, 20)}, {"_shape": (7, 3, 20)}):
            out[:] = 0
            fill2d(out, 3, 20, BLOCK=8, **kw)
            np.testing.assert_array_equal(out, want)
        cube = np.zeros((2, 3, 20), np.float32)
        want3 = np.arange(2)[:, None, None] * 100 + np.arange(3)[:, None] * 10 + np.arange(20)
        for kw in ({}, {"_shape": cube.shape}):
            cube[:] = 0
            fill3d(cube, 2, 3, 20, BLOCK=8, **kw)
            np.testing.assert_array_equal(cube, want3)

    def test_infer_grid(self):
        from eas.runtime.grid import infer_grid

        ir2 = fill2d.compile(np.zeros(1, np.float32), 3, 20, BLOCK=8).ir
        ir3 = fill3d.compile(np.zeros(1, np.float32), 2, 3, 20, BLOCK=8).ir
        self.assertEqual(infer_grid(ir2, {"H": 3, "W": 20}, 8), (3, 3, 1))
        self.assertEqual(infer_grid(ir2, {}, 8, shape=(9, 5, 17)), (3, 5, 1))
        self.assertEqual(infer_grid(ir3, {"D": 2, "H": 3, "W": 20}, 8), (3, 3, 2))
        self.assertEqual(infer_grid(ir3, {}, 8, shape=(2, 3, 20)), (3, 3, 2))
        self.assertIsNone(infer_grid(scale.compile(*arrays(), 40, 2.0).ir, {"N": 40}, 16))
        with self.assertRaises(ValueError):
            infer_grid(ir2, {"W": 3}, 8)

    def test_fp_contract(self):
        def body(a, b, c, out, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(out, i, mk.load(a, i) * mk.load(b, i) + mk.load(c, i))

        x = np.full(4, 1 + 2**-12, np.float32)
        out, out2 = np.zeros(4, np.float32), np.zeros(4, np.float32)
        on, off = eas.kernel(body), eas.kernel(fp_contract=False)(body)
        on(x, x, -(x * x), out, 4, _grid=1)
        off(x, x, -(x * x), out2, 4, _grid=1)
        self.assertIn("fma", [i.op for i in on.compile(x, x, x, out, 4).ir])
        self.assertNotIn("fma", [i.op for i in off.compile(x, x, x, out, 4).ir])
        self.assertNotEqual(out[0], 0)
        self.assertEqual(out2[0], 0)
        eas.kernel(fast_math=True)(body)(x, x, x, out, 4, _grid=1)


class Modules(unittest.TestCase):
    NAMES = "kernel mk ir compiler analysis codegen.msl tensor dlpack torch autotune runtime runtime.cpu runtime.metal runtime.grid runtime.metal_ext"

    def test_all_import(self):
        for name in self.NAMES.split():
            importlib.import_module("eas." + name)
        for name in "kernel Kernel constexpr Config autotune Tensor tensor empty empty_like from_dlpack to_dlpack from_torch to_torch mk".split():
            self.assertTrue(hasattr(eas, name), name)
            self.assertIn(name, dir(eas))
        with self.assertRaises(AttributeError):
            eas.nothing  # noqa: B018
        with self.assertRaises(AttributeError):
            mk.nothing  # noqa: B018

    def test_kernel_is_module_and_decorator(self):
        self.assertIs(importlib.import_module("eas.kernel"), sys.modules["eas.kernel"])
        self.assertIs(kernel_module, sys.modules["eas.kernel"])
        self.assertTrue(callable(eas.kernel))
        self.assertTrue(callable(eas.tensor) and callable(importlib.import_module("eas.tensor")))
        from eas.kernel import Kernel, kernel

        self.assertIsInstance(kernel(lambda out: None), Kernel)

    def test_runtime_can_be_substituted(self):
        calls = []

        class Recorder:
            def run(self, ck, runtime_args, meta, *, sync=True, nthreads=None, grid=None, tptg=None, shape=None):
                calls.append((ck, runtime_args, meta, sync, nthreads, grid, tptg, shape))

        x, out = arrays()
        with mock.patch("eas.kernel.get_runtime", lambda: Recorder()):
            scale(x, out, 40, 2.0, _sync=False, _nthreads=3)
            scale(x, out, 40, 2.0, BLOCK=8, _grid=(2,), _shape=(3, 4), _tptg=(1, 1, 1))
        self.assertFalse(out.any())
        ck, args, meta, *rest = calls[0]
        self.assertIs(ck, scale.compile(x, out, 1, 1.0))
        self.assertEqual(list(args), ["x", "out", "N", "k"])
        self.assertIs(args["out"], out)
        self.assertEqual((meta, rest), ({"BLOCK": 16}, [False, 3, None, None, None]))
        self.assertEqual(tuple(calls[1][5])[:1], (2,))
        scale(x, out, 40, 2.0)
        np.testing.assert_array_equal(out, x * 2)

    def test_runtimes(self):
        from eas.runtime import get_runtime

        x, out = arrays()
        ck = scale.compile(x, out, 40, 2.0)
        for name in ("auto", "cpu", "ref"):
            rt = get_runtime(name)
            self.assertTrue(rt.is_available())
            out[:] = 0
            rt.run(ck, {"x": x, "out": out, "N": 40, "k": 2.0}, {"BLOCK": 16})
            np.testing.assert_array_equal(out, x * 2)
            rt.run(ck, (x, out, 40, 3.0), {}, sync=True, grid=(1,))
            self.assertEqual((out[1], out[20]), (3, 40))
            rt.synchronize()
            self.assertGreater(rt.benchmark(ck, (x, out, 40, 2.0), {}, repeat=3, warmup=1), 0)
        with self.assertRaises(ValueError):
            get_runtime("vulkan")
        with self.assertRaises(TypeError):
            get_runtime("cpu").run(ck, (x.astype(np.float64), out, 40, 2.0), {})
        with self.assertRaises(TypeError):
            get_runtime("cpu").run(ck, (x, out, 40), {})
        with backend("nonsense"), self.assertRaises(ValueError):
            get_runtime()
        with backend("nonsense"), self.assertRaises(ValueError):
            scale(x, out, 40, 2.0)
        with backend("ref"):
            self.assertEqual(get_runtime().device, "ref")

    def test_metal_says_why_not(self):
        from eas.runtime import get_runtime
        from eas.runtime.metal_ext import load_metal_ext

        try:
            get_runtime("mps")
        except RuntimeError as e:
            self.assertIn("not available", str(e))
            self.assertIsNone(load_metal_ext(require=False))
            with self.assertRaises(RuntimeError):
                load_metal_ext(require=True)
            with self.assertRaises(RuntimeError):
                eas.tensor([1.0], device="mps")


class Autotune(unittest.TestCase):
    def make(self, **kw):
        @eas.autotune(configs=[eas.Config(meta={"BLOCK": b}) for b in (8, 16, 32)], key=["N"], warmup=1, repeat=2, **kw)
        @eas.kernel
        def k(x, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, mk.load(x, i, i < N) * 2, i < N)

        return k

    def test_measures_once_per_key(self):
        k = self.make()
        x, out = arrays()
        k(x, out, 40)
        np.testing.assert_array_equal(out, x * 2)
        k(x, out, 40)
        k(x, out, 30)
        self.assertEqual(len(k.best), 2)

    def test_goes_through_the_runtime(self):
        log = []

        class Fake:
            def benchmark(self, ck, args, meta, *, repeat, warmup=0, nthreads=None, grid=None, tptg=None, shape=None):
                log.append(("benchmark", meta["BLOCK"], repeat, warmup))
                return {8: 3.0, 16: 1.0, 32: 2.0}[meta["BLOCK"]]

            def run(self, ck, args, meta, *, sync=True, nthreads=None, grid=None, tptg=None, shape=None):
                log.append(("run", meta["BLOCK"], args["N"]))

        x, out = arrays()
        for where in ("eas.kernel.get_runtime", "eas.autotune.get_runtime"):
            log.clear()
            k = self.make()
            with mock.patch(where, lambda: Fake()):
                k(x, out, 40)
                k(x, out, 40)
            self.assertEqual(log, [("benchmark", b, 2, 1) for b in (8, 16, 32)] + [("run", 16, 40)] * 2)

    def test_bad_settings(self):
        c = [eas.Config(meta={"B": 1})]
        for kw in (
            {"configs": [], "key": ["N"]},
            {"configs": c, "key": []},
            {"configs": c, "key": ["N"], "warmup": -1},
            {"configs": c, "key": ["N"], "repeat": 0},
        ):
            with self.assertRaises(ValueError):
                eas.autotune(**kw)


if __name__ == "__main__":
    unittest.main()
