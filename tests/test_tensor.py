"""eas.Tensor: making, moving, sharing, DLPack."""

import gc
import sys
import unittest
import weakref

import numpy as np
from support import BF16, DEVICES

import eas
from eas import mk


class Making(unittest.TestCase):
    def test_wraps_arrays_without_a_copy(self):
        a = np.arange(6, dtype=np.float32).reshape(2, 3)
        t = eas.tensor(a)
        self.assertEqual((t.shape, t.strides, t.dtype, t.device, t.nbytes, t.ndim, t.size), ((2, 3), (12, 4), np.float32, "cpu", 24, 2, 6))
        self.assertIsInstance(t.dtype, np.dtype)
        self.assertTrue(np.shares_memory(t.numpy(), a))
        t.numpy()[0, 0] = 9
        self.assertEqual(a[0, 0], 9)
        self.assertTrue(np.shares_memory(np.asarray(t), a))

    def test_arrays_keep_their_dtype_lists_become_float32(self):
        for dt in "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split():
            self.assertEqual(eas.tensor(np.zeros(3, dt)).dtype, np.dtype(dt))
        self.assertEqual(eas.tensor([[1.0, 2.0], [3.0, 4.0]]).dtype, np.float32)
        self.assertEqual(eas.tensor([1, 2]).dtype, np.int64)
        self.assertEqual(eas.tensor(3.5).shape, ())
        self.assertEqual(eas.tensor([1, 2], dtype=np.float16).dtype, np.float16)
        self.assertEqual(eas.tensor(np.zeros(2), dtype=mk.f32).dtype, np.float32)
        self.assertEqual(eas.tensor(np.array([1.5, 2.5]), dtype="i32").numpy().tolist(), [1, 2])

    def test_empty_zeros_ones(self):
        for device in DEVICES:
            self.assertEqual(eas.empty((2, 3), device=device).dtype, np.float32)
            self.assertFalse(eas.zeros(5, device=device).numpy().any())
            for dt in (np.int8, np.float16, np.float32, np.float64, bool, np.uint64):
                np.testing.assert_array_equal(eas.ones((2, 2), device=device, dtype=dt).numpy(), np.ones((2, 2), dt))
            like = eas.empty_like(eas.zeros((4, 5), device=device, dtype=np.int16))
            self.assertEqual((like.shape, like.dtype, like.device), ((4, 5), np.int16, device))
        self.assertEqual(eas.empty_like(np.zeros((2, 0))).shape, (2, 0))
        self.assertEqual(eas.empty([]).shape, ())
        for bad in (-1, (2, -3)):
            with self.assertRaises(ValueError):
                eas.empty(bad)
        with self.assertRaises((ValueError, MemoryError)):
            eas.empty((1 << 40, 1 << 40))
        with self.assertRaises(TypeError):
            eas.empty("ab")

    def test_devices(self):
        a = np.arange(4, dtype=np.float32)
        r = eas.tensor(a, device="ref")
        self.assertEqual(r.device, "ref")
        r2 = r.numpy()
        r2[0] = 9
        self.assertEqual(r.numpy()[0], 0)
        t = r.to("cpu")
        self.assertEqual(t.device, "cpu")
        self.assertIs(t.to("cpu"), t)
        np.testing.assert_array_equal(t.numpy(), a)
        self.assertEqual(eas.tensor(r).device, "ref")
        with self.assertRaises(ValueError):
            eas.tensor(a, device="gpu9000")
        with self.assertRaises(TypeError):
            eas.tensor(a, device=3)
        names = [n for n, *_ in eas.devices()]
        self.assertTrue({"cpu", "ref"} <= set(names))

    def test_views(self):
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        t = eas.tensor(a.T)
        self.assertEqual(t.strides, (4, 16))
        self.assertFalse(t.is_contiguous)
        np.testing.assert_array_equal(t.to("ref").numpy(), a.T)
        np.testing.assert_array_equal(t.numpy(), a.T)

    def test_read_only_stays_so(self):
        a = np.zeros(3, np.float32)
        a.flags.writeable = False
        self.assertFalse(eas.tensor(a).numpy().flags.writeable)

    def test_unsupported(self):
        for bad in (np.zeros(2, complex), np.array(["a"]), np.zeros(2, ">f4"), np.zeros(2, "f4,f4")):
            with self.assertRaises(TypeError):
                eas.tensor(bad)

    def test_array_protocol(self):
        t = eas.tensor([1.0, 2.0])
        self.assertEqual(np.asarray(t, dtype=np.float64).dtype, np.float64)
        c = np.array(t, copy=True)
        c[0] = 5
        self.assertEqual(t.numpy()[0], 1)
        self.assertEqual(len(t), 2)
        self.assertIn("cpu", repr(t))

    def test_lifetime(self):
        a = np.ones(1000, np.float32)
        ref = weakref.ref(a)
        t = eas.tensor(a)
        view = t.numpy()
        del a, t
        gc.collect()
        self.assertEqual(view.sum(), 1000)
        del view
        gc.collect()
        self.assertIsNone(ref())


class DLPack(unittest.TestCase):
    def test_device_codes(self):
        self.assertEqual(eas.zeros(1).__dlpack_device__(), (1, 0))

    def test_numpy_both_ways(self):
        for dt in "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 ?".split():
            for shape in ((), (0,), (3,), (2, 3), (1, 4, 1)):
                a = np.ones(shape, dt)
                t = eas.from_dlpack(a)
                self.assertEqual((t.shape, t.dtype), (a.shape, a.dtype))
                b = np.from_dlpack(t)
                self.assertEqual((b.shape, b.dtype), (a.shape, a.dtype))
                if a.size:
                    self.assertEqual(b.ctypes.data, a.ctypes.data)

    def test_strided(self):
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        for v in (a.T, a[::2], a[:, 1:3], a[::-1]):
            t = eas.from_dlpack(v)
            np.testing.assert_array_equal(t.numpy(), v)
            np.testing.assert_array_equal(np.from_dlpack(t), v)

    def test_capsules_are_for_one_use(self):
        t = eas.tensor([1.0, 2.0])
        cap = eas.to_dlpack(t)
        self.assertEqual(type(cap).__name__, "PyCapsule")
        u = eas.from_dlpack(cap)
        np.testing.assert_array_equal(u.numpy(), [1, 2])
        with self.assertRaises(ValueError):
            eas.from_dlpack(cap)
        eas.to_dlpack(t)  # dropped unused
        with self.assertRaises(TypeError):
            eas.from_dlpack(3)

    def test_no_leaks(self):
        t = eas.tensor(np.zeros(4, np.float32))
        before = sys.getrefcount(t)
        for _ in range(100):
            eas.to_dlpack(t)
            np.from_dlpack(t)
            eas.from_dlpack(eas.to_dlpack(t))
            t.__dlpack__(max_version=(1, 0))
        gc.collect()
        self.assertEqual(sys.getrefcount(t), before)

    def test_read_only(self):
        a = np.zeros(3, np.float32)
        a.flags.writeable = False
        t = eas.tensor(a)
        with self.assertRaises(BufferError):
            t.__dlpack__()
        self.assertFalse(np.from_dlpack(t).flags.writeable)

    def test_arguments(self):
        t = eas.zeros(3)
        for kw in ({"stream": 1}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                t.__dlpack__(**kw)
        t.__dlpack__(dl_device=(1, 0), copy=False, stream=None, max_version=None)

    @unittest.skipUnless(BF16, "no ml_dtypes")
    def test_bfloat16(self):
        a = np.arange(5).astype(BF16)
        t = eas.tensor(a)
        self.assertEqual(t.dtype, BF16)
        self.assertTrue(np.shares_memory(t.numpy(), a))
        back = eas.from_dlpack(t.__dlpack__(max_version=(1, 0)))
        self.assertEqual(back.dtype, BF16)
        self.assertEqual(eas.ones(3, dtype=mk.bf16).numpy().astype(float).tolist(), [1, 1, 1])
        try:
            import torch
        except ImportError:
            return
        self.assertEqual(torch.from_dlpack(t).dtype, torch.bfloat16)
        self.assertEqual(eas.from_torch(torch.ones(3, dtype=torch.bfloat16)).dtype, BF16)

    def test_peers(self):
        for name in ("torch", "jax", "mlx.core"):
            try:
                m = __import__(name, fromlist=["x"])
            except ImportError:
                continue
            with self.subTest(name):
                if name == "torch":
                    x = m.arange(6.0).reshape(2, 3)
                elif name == "jax":
                    x = m.numpy.arange(6.0, dtype="float32").reshape(2, 3)
                else:
                    x = m.arange(6.0).reshape(2, 3)
                    try:
                        x.__dlpack_device__()
                        if x.__dlpack_device__()[0] != 1:
                            continue
                    except Exception:
                        continue
                t = eas.tensor(x)
                np.testing.assert_array_equal(t.numpy(), np.arange(6.0).reshape(2, 3))


if __name__ == "__main__":
    unittest.main()
