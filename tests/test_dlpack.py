"""DLPack: capsules of both kinds made by hand, the table of C functions, and the matrix of dtypes and layouts
against the libraries that speak it."""

import contextlib
import ctypes
import gc
import importlib
import itertools
import unittest

import numpy as np
from support import BF16, DEVICES

import eager
import eas
from eas import mk


@eas.kernel
def copy(x):
    mk.store(x, mk.arange(0, 2), 1.0)


# ---- producers made by hand ----


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("t", DLTensor), ("ctx", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("ctx", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("t", DLTensor),
    ]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_get = ctypes.pythonapi.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
CODES = {"b": 6, "i": 0, "u": 1, "f": 2}


class Producer:
    """A library that gives an array away as DLPack says, and counts how often it is asked to delete."""

    def __init__(self, array, versioned, *, strides=True, offset=0, flags=0, device=1, major=1, dtype=None, ndim=None):
        self.array, self.deleted, self.versioned = array, 0, versioned
        shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        steps = (ctypes.c_int64 * max(array.ndim, 1))(*(s // array.itemsize for s in array.strides)) if strides is True else strides
        self.kept = shape, steps
        code, bits = dtype or (4 if array.dtype == BF16 else CODES[array.dtype.kind], array.itemsize * 8)
        t = DLTensor(array.ctypes.data - offset, device, 0, array.ndim if ndim is None else ndim, code, bits, 1, shape, None, offset)
        if steps is not None:
            t.strides = steps
        self.deleter = DELETER(self._delete)
        self.m = Versioned(major, 0, None, self.deleter, flags, t) if versioned else Managed(t, None, self.deleter)

    def _delete(self, _):
        self.deleted += 1

    def capsule(self):
        return _new(ctypes.addressof(self.m), NAMES[self.versioned], None)

    def __dlpack__(self, *, max_version=None, **kw):
        return self.capsule()

    def __dlpack_device__(self):
        return 1, 0


class ByHand(unittest.TestCase):
    def check(self, producer, want):
        t = eas.from_dlpack(producer)
        np.testing.assert_array_equal(t.numpy(), want)
        self.assertEqual(producer.deleted, 0)
        view = t.numpy()
        del t
        gc.collect()
        self.assertEqual(producer.deleted, 0, "an array still looks at it")
        del view
        gc.collect()
        self.assertEqual(producer.deleted, 1)

    def test_layouts(self):
        a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for v in (False, True):
            self.check(Producer(a, v), a)
            self.check(Producer(a, v, strides=None), a)
            self.check(Producer(a, v, offset=8), a)
            self.check(Producer(a[:, ::2], v), a[:, ::2])
            self.check(Producer(a[::-1], v), a[::-1])
            self.check(Producer(a.T, v), a.T)
            self.check(Producer(np.array(3.5), v), 3.5)
            self.check(Producer(np.zeros((2, 0, 3)), v), np.zeros((2, 0, 3)))
            odd = Producer(np.arange(3.0).reshape(3, 1), v, strides=(ctypes.c_int64 * 2)(1, 777))
            self.assertTrue(eas.from_dlpack(odd).is_contiguous)

    def test_read_only(self):
        t = eas.from_dlpack(Producer(np.zeros(3), True, flags=1))
        self.assertTrue(t.readonly)
        with self.assertRaises(ValueError):
            t[0] = 1
        with self.assertRaises(BufferError):
            t.__dlpack__()
        self.assertTrue(eas.from_dlpack(t.__dlpack__(max_version=(1, 0))).readonly)

    def test_what_cannot_be_taken_is_deleted_once(self):
        a = np.zeros(4, np.float32)
        bad = [
            ({"dtype": (5, 64)}, TypeError, "element type"),
            ({"dtype": (2, 8)}, TypeError, "element type"),
            ({"device": 2}, RuntimeError, "device type 2"),
            ({"ndim": 65}, ValueError, "65 dims"),
            ({"ndim": -1}, ValueError, "-1 dims"),
        ]
        for (kw, error, message), v in itertools.product(bad, (False, True)):
            p = Producer(a, v, **kw)
            with self.assertRaisesRegex(error, message):
                eas.from_dlpack(p)
            gc.collect()
            self.assertEqual(p.deleted, 1, kw)

    def test_layouts_that_no_memory_has(self):
        """Refused before anything is read, and deleted once."""
        a = np.zeros((4, 4), np.float32)
        huge = 1 << 62

        def shape(*sizes):
            return lambda t, kept: kept.append((ctypes.c_int64 * len(sizes))(*sizes)) or setattr(t, "shape", kept[-1])

        def strides(*steps):
            return lambda t, kept: kept.append((ctypes.c_int64 * len(steps))(*steps)) or setattr(t, "strides", kept[-1])

        def field(name, value):
            return lambda t, kept: setattr(t, name, value)

        bad = [
            (field("shape", None), "no shape"),
            (shape(-1, 4), "negative"),
            (shape(-2, -8), "negative"),
            (shape(huge, 4), "too large"),
            (shape(1 << 31, 1 << 32), "too large"),
            (shape(1 << 56, 4), "leads out of any memory|too large"),
            (strides(huge, 1), "stride"),
            (strides(-huge, 1), "stride"),
            (strides(1 << 59, 1), "stride"),
            (strides(1 << 60, 1 << 60), "stride"),
            (strides(-(1 << 54), 1), "stride"),
            (field("byte_offset", (1 << 64) - 4), "offset"),
            (field("byte_offset", 1 << 63), "offset"),
        ]
        for (change, message), v in itertools.product(bad, (False, True)):
            p = Producer(a, v)
            kept = []
            change(p.m.t, kept)
            with self.assertRaisesRegex(ValueError, message):
                eas.from_dlpack(p)
            gc.collect()
            self.assertEqual(p.deleted, 1)
            with self.assertRaisesRegex(ValueError, message):
                eager.asarray(p)
        fine = Producer(np.zeros((0, 3)), True, strides=(ctypes.c_int64 * 2)(huge, huge))
        self.assertEqual(eas.from_dlpack(fine).shape, (0, 3))
        one = Producer(np.zeros((1, 3)), True, strides=(ctypes.c_int64 * 2)(huge, 1))
        self.assertEqual(eas.from_dlpack(one).shape, (1, 3))

    def test_array_interfaces_that_no_memory_has(self):
        a = np.zeros(8, np.float32)
        for kw in ({"shape": (3,), "strides": (1 << 62,)}, {"shape": (2, 2), "strides": (1 << 61, 1 << 61)}, {"shape": (3,), "strides": (-(1 << 50),)}):
            o = type("Liar", (), {"__array_interface__": {"typestr": "<f4", "data": (a.ctypes.data, False), "version": 3, **kw}})()
            for f in eas.tensor, eager.asarray, eager.Tensor:
                with self.assertRaisesRegex(ValueError, "leads out of any memory"):
                    f(o)
            with self.assertRaisesRegex(ValueError, "leads out of any memory"):
                eas.zeros(kw["shape"])[...] = o
            with self.assertRaises((ValueError, TypeError)):
                copy(np.asarray(o), _grid=1)

    def test_an_unknown_version_stays_the_producers(self):
        p = Producer(np.zeros(4), True, major=2)
        c = p.capsule()
        with self.assertRaisesRegex(BufferError, "DLPack 2.x"):
            eas.from_dlpack(c)
        self.assertEqual(p.deleted, 0)
        self.assertTrue(_get(c, NAMES[True]), "the capsule is as it was")

    def test_a_capsule_is_for_one_use(self):
        for v in (False, True):
            p = Producer(np.zeros(4), v)
            c = p.capsule()
            t = eas.from_dlpack(c)
            with self.assertRaisesRegex(ValueError, "used once"):
                eas.from_dlpack(c)
            del c, t
            gc.collect()
            self.assertEqual(p.deleted, 1)

    def test_a_producer_that_fails(self):
        class Fails(Producer):
            def __dlpack__(self, **kw):
                raise MemoryError("none left")

        with self.assertRaisesRegex(MemoryError, "none left"):
            eas.from_dlpack(Fails(np.zeros(3), True))

    def test_misaligned(self):
        raw = np.zeros(17, np.uint8)
        a = np.frombuffer(raw.data, np.float32, 4, 1) if raw.ctypes.data % 4 == 0 else np.frombuffer(raw.data, np.float32, 4)
        t = eas.from_dlpack(Producer(a, True))
        np.testing.assert_array_equal(t.numpy(), a)


class Export(unittest.TestCase):
    def test_consumers_that_never_use_or_free_late(self):
        a = np.arange(4, dtype=np.float32)
        t = eas.tensor(a)
        import sys

        before = sys.getrefcount(t)
        for versioned in (False, True):
            c = t.__dlpack__(max_version=(1, 0) if versioned else None)
            self.assertEqual(sys.getrefcount(t), before + 1)
            m = (Versioned if versioned else Managed).from_address(_get(c, NAMES[versioned]))
            self.assertEqual((m.t.ndim, m.t.shape[0], m.t.strides[0], m.t.bits), (1, 4, 1, 32))
            del c
            self.assertEqual(sys.getrefcount(t), before)

    def test_copy(self):
        for device in DEVICES:
            t = eas.tensor(np.arange(4, dtype=np.float32), device=device)
            with contextlib.suppress(BufferError):
                c = t.__dlpack__(max_version=(1, 0), copy=True)
                m = Versioned.from_address(_get(c, NAMES[True]))
                self.assertEqual(m.flags, 2)
                same = eas.from_dlpack(c)
                t[0] = 9.0
                self.assertEqual(same.tolist(), [0, 1, 2, 3])
        self.assertNotEqual(eas.from_dlpack(np.zeros(2), copy=True).data_ptr(), 0)
        a = np.zeros(2)
        self.assertNotEqual(eas.from_dlpack(a, copy=True).data_ptr(), a.ctypes.data)
        self.assertEqual(eas.from_dlpack(a, copy=False).data_ptr(), a.ctypes.data)
        with self.assertRaisesRegex(BufferError, "copy=False"):
            eas.from_dlpack(a, device="ref", copy=False)
        with self.assertRaises(TypeError):
            eas.from_dlpack(a, copy=1)

    def test_to_another_device(self):
        for device in set(DEVICES) - {"cpu", "ref"}:
            t = eas.tensor(np.arange(4, dtype=np.float32), device=device)
            here = eas.from_dlpack(t.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
            self.assertEqual((here.device, here.tolist()), ("cpu", [0, 1, 2, 3]))
            with self.assertRaisesRegex(BufferError, "copy=False"):
                t.__dlpack__(dl_device=(1, 0), copy=False)
            np.testing.assert_array_equal(np.from_dlpack(t, device="cpu"), [0, 1, 2, 3])
            t.__dlpack__(stream=-1)
            with self.assertRaises(BufferError):
                t.__dlpack__(stream=7)

    def test_handles_come_back(self):
        """A Metal or OpenCL tensor, part of a buffer, through a capsule: the same memory."""
        for device in set(DEVICES) - {"cpu", "ref"}:
            t = eas.tensor(np.arange(12, dtype=np.float32), device=device)
            code = {"mps": 8, "opencl": 4}[device]
            self.assertEqual(t.__dlpack_device__()[0], code)
            for versioned, part in itertools.product((False, True), (slice(0, 12), slice(3, 7), slice(1, 12, 3))):
                c = t[part].__dlpack__(max_version=(1, 0) if versioned else None)
                m = (Versioned if versioned else Managed).from_address(_get(c, NAMES[versioned]))
                self.assertEqual(m.t.byte_offset % 4, 0)
                u = eas.from_dlpack(c)
                self.assertEqual((u.device, u.tolist()), (device, list(range(12))[part]))
                u[0] = -1.0
                self.assertEqual(t.tolist()[part.start or 0], -1)
                t[part] = np.arange(12, dtype=np.float32)[part]

    def test_strides_that_are_no_elements(self):
        a = np.zeros(4, [("x", "<f4"), ("y", "<i2")])["x"]
        with self.assertRaisesRegex(BufferError, "no whole number"):
            eas.tensor(a).__dlpack__()


# ---- the table ----

API = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("prev", ctypes.c_void_p),
    ("allocate", ctypes.c_void_p),
    ("managed_from", ctypes.c_void_p),
    ("managed_to", ctypes.c_void_p),
    ("view", ctypes.c_void_p),
    ("stream", ctypes.c_void_p),
]


class Table(ctypes.Structure):
    _fields_ = API


class Functions(unittest.TestCase):
    def setUp(self):
        self.table = Table.from_address(_get(eas.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))

    def test_version(self):
        self.assertEqual((self.table.major, self.table.prev), (1, None))

    def test_there_and_back(self):
        from_object = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))(self.table.managed_from)
        to_object = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))(self.table.managed_to)
        t = eas.tensor(np.arange(6, dtype=np.int16).reshape(2, 3).T)
        m, out = ctypes.c_void_p(), ctypes.py_object()
        self.assertEqual(from_object(t, ctypes.byref(m)), 0)
        self.assertEqual(to_object(m, ctypes.byref(out)), 0)
        self.assertEqual((out.value.shape, out.value.strides, out.value.data_ptr()), (t.shape, t.strides, t.data_ptr()))
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(out.value))

    def test_a_refused_one_is_deleted(self):
        to_object = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))(self.table.managed_to)
        for kw in ({"dtype": (5, 64)}, {"major": 2}):
            p = Producer(np.zeros(4), True, **kw)
            with self.assertRaises((TypeError, BufferError)):
                to_object(ctypes.addressof(p.m), ctypes.byref(ctypes.py_object()))
            gc.collect()
            self.assertEqual(p.deleted, 1, kw)

    def test_views(self):
        view = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(self.table.view)
        t, d = eas.tensor(np.arange(6, dtype=np.float64).reshape(2, 3)[:, 1:]), DLTensor()
        self.assertEqual(view(t, ctypes.byref(d)), 0)
        self.assertEqual((d.ndim, d.shape[:2], d.strides[:2], d.data, d.code, d.bits), (2, [2, 2], [3, 1], t.data_ptr(), 2, 64))
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        with self.assertRaises(BufferError):
            view(eas.tensor(frozen), ctypes.byref(d))

    def test_allocation(self):
        fail_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
        allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, fail_type)(
            self.table.allocate
        )
        shape, said = (ctypes.c_int64 * 2)(3, 4), []
        fail = fail_type(lambda ctx, kind, message: said.append((kind, message)))
        m = ctypes.c_void_p()
        self.assertEqual(allocate(ctypes.byref(DLTensor(None, 1, 0, 2, 2, 32, 1, shape, None, 0)), ctypes.byref(m), None, fail), 0)
        made = Versioned.from_address(m.value)
        self.assertEqual((made.t.ndim, made.t.shape[:2], said), (2, [3, 4], []))
        made.deleter(m)
        self.assertEqual(allocate(ctypes.byref(DLTensor(None, 1, 0, 2, 5, 64, 1, shape, None, 0)), ctypes.byref(m), None, fail), -1)
        self.assertEqual(said[0][0], b"BufferError")

    def test_streams(self):
        stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(self.table.stream)
        out = ctypes.c_void_p(1)
        self.assertEqual((stream(1, 0, ctypes.byref(out)), out.value), (0, None))


# ---- the matrix ----

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()
LAYOUTS = {
    "0-d": lambda a: a.reshape(-1)[:1].reshape(()),
    "1-d": lambda a: a.reshape(-1),
    "2-d": lambda a: a,
    "empty": lambda a: a[:0],
    "part": lambda a: a[1:, 1:],
    "steps": lambda a: a[:, ::2],
    "transposed": lambda a: a.T,
    "one long": lambda a: a[:, None, :1],
}


def array(dtype):
    """4 x 6 elements that every dtype has."""
    a = np.arange(24).reshape(4, 6) % 2 if dtype == "bool" else np.arange(24).reshape(4, 6)
    return a.astype(BF16 if dtype == "bfloat16" else dtype)


class Peer:
    """A library's own way to make an array, to take one through DLPack, and to look at one."""

    dtypes = DTYPES
    shares = True  # what it takes is the same memory

    def layouts(self):
        return LAYOUTS


class NumPy(Peer):
    dtypes = [d for d in DTYPES if d != "bfloat16"]  # NumPy's own DLPack has none

    def make(self, a, layout):
        return layout(a)

    def take(self, t):
        return np.from_dlpack(t)

    def look(self, x):
        return x


class Torch(Peer):
    def __init__(self):
        self.torch = importlib.import_module("torch")

    def make(self, a, layout):
        wide = self.torch.from_numpy(a.astype(np.float32) if a.dtype == BF16 else a)
        return layout(wide.to(self.torch.bfloat16) if a.dtype == BF16 else wide)

    def take(self, t):
        return self.torch.from_dlpack(t)

    def look(self, x):
        return x.to(self.torch.float32).numpy() if x.dtype == self.torch.bfloat16 else x.numpy()


class TorchTable(Torch):
    """The same through to_torch, which uses torch's table of C functions."""

    def take(self, t):
        return t.to_torch()


class Jax(Peer):
    shares = False  # unaligned memory is copied

    def __init__(self):
        self.jax = importlib.import_module("jax")
        self.jax.config.update("jax_enable_x64", True)

    def make(self, a, layout):
        return self.jax.numpy.asarray(layout(a))  # JAX has no strides: parts are copies of its own

    def take(self, t):
        return self.jax.dlpack.from_dlpack(t)

    def layouts(self):  # it takes what is compact in some order
        return {n: f for n, f in LAYOUTS.items() if n not in ("part", "steps", "one long")}

    def look(self, x):
        return np.asarray(x)


class Mlx(Peer):
    dtypes = [d for d in DTYPES if d != "float64"]  # it makes them float32
    shares = False

    def __init__(self):
        self.mx = importlib.import_module("mlx.core")

    def make(self, a, layout):
        x = self.mx.array(a.astype(np.float32)).astype(self.mx.bfloat16) if a.dtype == BF16 else self.mx.array(a)
        x = layout(x)
        self.mx.eval(x)
        return x

    def take(self, t):
        return self.mx.array(t)

    def look(self, x):
        return np.array(x.astype(self.mx.float32) if x.dtype == self.mx.bfloat16 else x)


PEERS = {"numpy": NumPy, "torch": Torch, "torch, table": TorchTable, "jax": Jax, "mlx": Mlx}


class Matrix(unittest.TestCase):
    def peer(self, name):
        try:
            return PEERS[name]()
        except ImportError as e:
            self.skipTest(str(e))

    def both_ways(self, name):
        peer = self.peer(name)
        for dtype, (layout, f) in itertools.product(peer.dtypes, peer.layouts().items()):
            if dtype == "bfloat16" and BF16 is None:
                continue
            with self.subTest(peer=name, dtype=dtype, layout=layout):
                a = array(dtype)
                want = np.asarray(f(a))
                x = peer.make(a.copy(), f)
                t = eas.from_dlpack(x)
                self.assertEqual((t.shape, t.dtype), (want.shape, want.dtype))
                np.testing.assert_array_equal(t.numpy().astype(np.float64), want.astype(np.float64))
                mine = eas.tensor(f(a.copy()) if isinstance(f(a), np.ndarray) else np.asarray(f(a)))
                y = peer.take(mine)
                np.testing.assert_array_equal(np.asarray(peer.look(y)).astype(np.float64), want.astype(np.float64))
                if peer.shares and want.size:
                    back = eas.from_dlpack(y)
                    self.assertEqual(back.data_ptr(), mine.data_ptr())
        gc.collect()

    def test_numpy(self):
        self.both_ways("numpy")

    def test_torch(self):
        self.both_ways("torch")

    def test_torch_through_its_table(self):
        self.both_ways("torch, table")

    def test_jax(self):
        self.both_ways("jax")

    def test_mlx(self):
        self.both_ways("mlx")


if __name__ == "__main__":
    unittest.main()
