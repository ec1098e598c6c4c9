"""eas.Tensor: making, moving, sharing, DLPack."""

import copy
import gc
import pickle
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


def sample(dtype="float32", shape=(3, 4)):
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(dtype)


DTYPES = [*"? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split(), *([BF16] if BF16 else [])]
KEYS = [
    0,
    -1,
    slice(1, None),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(5, 1),
    ...,
    None,
    (1, 2),
    (slice(None), 1),
    (slice(None), slice(1, 3)),
    (..., 0),
    (0, ...),
    (None, slice(None), None, ..., 1),
    (slice(None, None, -2), slice(3, 0, -1)),
    (),
]


class Views(unittest.TestCase):
    def test_slices_share_memory(self):
        for device in DEVICES:
            a = sample()
            t = eas.tensor(a.copy(), device=device)
            for key in KEYS:
                v = t[key]
                self.assertEqual((v.shape, v.device), (a[key].shape, device), key)
                np.testing.assert_array_equal(np.asarray(v), a[key])
                np.testing.assert_array_equal(v.to("cpu").numpy(), a[key])
                np.testing.assert_array_equal(v.copy().numpy(), a[key])
            t[1][2] = 99.0  # through a view of a view
            self.assertEqual(t.numpy()[1, 2], 99)

    def test_assignment(self):
        for device in DEVICES:
            for key in KEYS:
                a, t = sample(), eas.tensor(sample(), device=device)
                for value in (5.0, a[key] + 1, eas.tensor(np.asarray(a[key] + 2, np.float32))):
                    a[key] = np.asarray(value)
                    t[key] = value
                    np.testing.assert_array_equal(t.numpy(), a, f"{device} {key}")
            with self.assertRaises(ValueError):
                t[0] = np.zeros(3)
            with self.assertRaises(TypeError):
                del t[0]

    def test_wrong_keys(self):
        t = eas.zeros((2, 3))
        for key in (2, -3, (0, 3), (0, 0, 0), (..., 1, ...)):
            with self.assertRaises(IndexError):
                t[key]
        for key in ("a", 1.5, [0, 1], np.zeros(2, bool), True):
            with self.assertRaises(TypeError):
                t[key]

    def test_iteration_and_values(self):
        for device in DEVICES:
            t = eas.tensor(sample(), device=device)
            self.assertEqual([r.tolist() for r in t], sample().tolist())
            self.assertEqual(t[1, 2].item(), 6.0)
            self.assertEqual(t.tolist(), sample().tolist())
            with self.assertRaises(ValueError):
                t.item()
        with self.assertRaises(TypeError):
            len(eas.tensor(1.0))

    def test_reshape_transpose_view(self):
        for device in DEVICES:
            t = eas.tensor(sample(), device=device)
            self.assertEqual(t.reshape(2, 6).tolist(), sample().reshape(2, 6).tolist())
            self.assertEqual((t.reshape(-1).shape, t.reshape((4, -1)).shape, t.reshape([12]).shape), ((12,), (4, 3), (12,)))
            self.assertEqual(t.T.tolist(), sample().T.tolist())
            self.assertEqual(t.T.contiguous().tolist(), sample().T.tolist())
            self.assertIs(t.contiguous(), t)
            for bad in ((5,), (-1, -1), (7, -1), (-2, 6)):
                with self.assertRaises(ValueError):
                    t.reshape(bad)
            with self.assertRaisesRegex(ValueError, "contiguous"):
                t.T.reshape(12)
            self.assertEqual(t.view("u32").tolist(), sample().view("u4").tolist())
            with self.assertRaisesRegex(ValueError, "bytes"):
                t.view("f64")
        self.assertEqual(eas.empty((0, 3)).reshape(3, 0).shape, (3, 0))

    def test_memory(self):
        for device in DEVICES:
            t = eas.tensor(sample(), device=device)
            self.assertEqual(t[:, 1:3].memory().tolist(), sample().reshape(-1)[1:11].tolist())
            with self.assertRaisesRegex(ValueError, "negative stride"):
                t[::-1].memory()
            self.assertEqual(eas.empty((0, 2), device=device).memory().shape, (0,))

    def test_kernels_take_contiguous_views(self):
        @eas.kernel
        def double(x, N, BLOCK: eas.constexpr):
            i = mk.arange(0, BLOCK)
            mk.store(x, i, mk.load(x, i, i < N) * 2, i < N)

        for device in DEVICES:
            t = eas.tensor(sample(), device=device)
            double(t[1], 4, BLOCK=4, _grid=1)
            want = sample()
            want[1] *= 2
            np.testing.assert_array_equal(t.numpy(), want)
            with self.assertRaisesRegex(ValueError, "C-contiguous.*memory"):
                double(t[:, 1], 3, BLOCK=4, _grid=1)

    def test_views_keep_memory_alive(self):
        for device in DEVICES:
            v = eas.tensor(sample(), device=device)[1:][0][2:]
            gc.collect()
            self.assertEqual(v.tolist(), [6, 0])


class Conversions(unittest.TestCase):
    def test_dtypes(self):
        for device in DEVICES:
            t = eas.tensor(sample("i4"), device=device)
            for dt in DTYPES:
                u = t.astype(np.dtype(dt))
                self.assertEqual((u.dtype, u.device), (np.dtype(dt), device))
                np.testing.assert_array_equal(u.numpy(), sample("i4").astype(dt))
                self.assertEqual(t.to(dtype=np.dtype(dt)).dtype, np.dtype(dt))
            self.assertIsNot(t.astype("i32"), t)
            self.assertIs(t.to(dtype="i32"), t)
            self.assertIs(t.to(device), t)
            for other in DEVICES:
                moved = t.to(other, dtype="f32")
                self.assertEqual((moved.device, moved.dtype, moved.tolist()), (other, np.float32, sample().tolist()))
        self.assertEqual(eas.tensor(eas.tensor([1.5], device="ref"), dtype="i8").device, "ref")

    def test_repr_shows_data(self):
        for device in DEVICES:
            text = repr(eas.tensor(sample(), device=device)[1:, ::2])
            for part in ("[4. 6.]", "shape=(2, 2)", "dtype=f32", f"device='{device}'"):
                self.assertIn(part, text)
        self.assertIn("[]", repr(eas.empty((0,))))
        self.assertIn("3.5", repr(eas.tensor(3.5)))
        if BF16:
            self.assertIn("1.5", repr(eas.tensor([1.5], dtype=mk.bf16)))


class Protocols(unittest.TestCase):
    def test_buffer(self):
        for dt in DTYPES:
            a = sample(dt)
            if a.dtype == BF16:
                with self.assertRaisesRegex(BufferError, "bfloat16"):
                    memoryview(eas.tensor(a))
                continue
            m = memoryview(eas.tensor(a))
            self.assertEqual((m.shape, m.strides, m.itemsize, m.readonly), (a.shape, a.strides, a.itemsize, False))
            np.testing.assert_array_equal(np.asarray(m), a)
        t = eas.tensor(sample())
        memoryview(t).cast("B").cast("f")[5] = 77.0
        self.assertEqual(t[1, 1].item(), 77)
        m = memoryview(t[:, ::2])
        self.assertEqual((m.tolist(), m.contiguous), (t[:, ::2].tolist(), False))
        self.assertEqual(bytes(t[1:2]), t[1:2].numpy().tobytes())
        frozen = sample()
        frozen.flags.writeable = False
        self.assertTrue(memoryview(eas.tensor(frozen)).readonly)
        for device in set(DEVICES) - {"cpu"}:
            with self.assertRaisesRegex(BufferError, "cpu"):
                memoryview(eas.tensor(sample(), device=device))

    def test_a_buffer_keeps_memory_alive(self):
        m = memoryview(eas.tensor(sample())[1:])
        gc.collect()
        self.assertEqual(m.tolist(), sample()[1:].tolist())

    def test_array_interface(self):
        for dt in DTYPES:
            t = eas.tensor(sample(dt))
            if t.dtype == BF16:
                self.assertFalse(hasattr(t, "__array_interface__"))
                continue
            d = t[:, ::2].__array_interface__
            self.assertEqual((d["shape"], d["typestr"], d["data"]), ((3, 2), np.dtype(dt).str, (t.data_ptr(), False)))

        for device in set(DEVICES) - {"cpu"}:
            self.assertFalse(hasattr(eas.tensor(sample(), device=device), "__array_interface__"))

    def test_numpy_takes_it(self):
        for device in DEVICES:
            t = eas.tensor(sample(), device=device)
            np.testing.assert_array_equal(np.asarray(t[:, 1:]), sample()[:, 1:])
            self.assertEqual(np.shares_memory(np.asarray(t), np.asarray(t)), device == "cpu")
            np.testing.assert_array_equal(np.add(t, 1), sample() + 1)
            if device != "cpu":
                with self.assertRaises(ValueError):
                    np.asarray(t, copy=False)

    def test_pickle(self):
        for device in DEVICES:
            for dt in DTYPES:
                for shape in ((), (0,), (3, 4)):
                    t = eas.tensor(sample(dt, shape), device=device)
                    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
                        u = pickle.loads(pickle.dumps(t, protocol))
                        self.assertEqual((u.shape, u.dtype, u.device), (t.shape, t.dtype, device))
                        np.testing.assert_array_equal(u.numpy(), t.numpy())
            strided = eas.tensor(sample(), device=device)[:, ::2]
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(strided)).numpy(), sample()[:, ::2])

    def test_pickle_beside_the_pickle(self):
        t, beside = eas.tensor(sample()), []
        data = pickle.dumps(t, 5, buffer_callback=beside.append)
        self.assertEqual(len(beside), 1)
        u = pickle.loads(data, buffers=beside)
        u[0, 0] = 9.0
        self.assertEqual((u[0, 1:].tolist(), t[0, 0].item()), (sample()[0, 1:].tolist(), 0))

    def test_damaged_pickles(self):
        for args in ((b"123", "f32", (1,), "cpu"), (b"", "f33", (0,), "cpu"), (b"", "f32", (-1,), "cpu"), (b"", "f32", (0,), "nowhere")):
            with self.assertRaises((ValueError, RuntimeError)):
                eas._eas._rebuild(*args)

    def test_copies(self):
        for device in DEVICES:
            t = eas.tensor(sample(), device=device)
            for u in (copy.copy(t), copy.deepcopy(t), t.copy(), copy.deepcopy({"t": t})["t"]):
                u[0, 0] = 42.0
                self.assertEqual((u.device, t[0, 0].item()), (device, 0))
            both = copy.deepcopy([t, t])
            self.assertIs(both[0], both[1])

    def test_weak_references(self):
        for device in DEVICES:
            t = eas.tensor(sample(), device=device)
            gone = []
            ref = weakref.ref(t, gone.append)
            self.assertIs(ref(), t)
            del t
            gc.collect()
            self.assertIsNone(ref())
            self.assertEqual(len(gone), 1)

    def test_equality_is_identity(self):
        t = eas.zeros(2)
        self.assertEqual({t: 1}[t], 1)
        self.assertNotEqual(t, eas.zeros(2))


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
