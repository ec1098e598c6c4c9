"""DLPack capsules and headers of files with anything in them: taken, refused with an exception, never a
crash. EAS_SOAK=1 tries many more."""

import os
import random
import unittest

import numpy as np
from support import python

SOAK = bool(os.environ.get("EAS_SOAK"))
RUNS = 500000 if SOAK else 4000

CAPSULES = """
import ctypes, random, sys
import numpy as np, eas
from test_dlpack import Producer
array = np.zeros((4, 3, 2), np.float32)
numbers = [0, 1, 2, 3, 4, 7, -1, -2, 24, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 55, 1 << 61, 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 62), -(1 << 40)]
seen = {"taken": 0, "refused": 0}
for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    r = random.Random(seed)
    def number():
        return r.choice(numbers) if r.random() < 0.7 else r.getrandbits(r.choice((2, 5, 33, 63))) * r.choice((1, -1))
    p = Producer(array, r.random() < 0.5, flags=r.choice((0, 1, 2, 3, 1 << 40)))
    t, kept = p.m.t, []
    for _ in range(r.randint(1, 4)):
        what = r.randrange(9)
        if what == 0:
            t.ndim = r.choice((0, 1, 2, 3, 4, 64, 65, -1, 1 << 30, -(1 << 31)))
        elif what == 1:
            t.shape = r.choice((None, ctypes.cast((ctypes.c_int64 * 64)(), ctypes.POINTER(ctypes.c_int64))))
        elif what == 2:
            t.strides = None
        elif what == 3:
            t.byte_offset = number() & ((1 << 64) - 1)
        elif what == 4:
            t.code, t.bits, t.lanes = r.randrange(20), r.choice((0, 1, 8, 16, 32, 64, 128, 255)), r.choice((0, 1, 2, 65535))
        elif what == 5:
            t.device_type, t.device_id = r.choice((0, 1, 2, 3, 7, 10, 12, -1, 1 << 30)), number() & 0x7FFFFFFF
        elif what == 6:
            t.data = r.choice((None, 1, array.ctypes.data, array.ctypes.data + 1, (1 << 64) - 8, 1 << 63))
        else:  # sizes or strides of a valid number of dims
            kept.append((ctypes.c_int64 * 64)(*(number() for _ in range(64))))
            setattr(t, "shape" if what == 7 else "strides", kept[-1])
            if t.ndim > 64 or t.ndim < 0:
                t.ndim = 3
    if t.ndim > 3 and t.ndim <= 64:  # what the capsule claims to have must be readable
        for name in "shape", "strides":
            if getattr(t, name):
                kept.append((ctypes.c_int64 * 64)(*(number() for _ in range(64))))
                setattr(t, name, kept[-1])
    if t.device_type in (4, 8):  # handles of a driver's: it alone could tell
        continue
    try:
        x = eas.from_dlpack(p)
        x.shape, x.strides, x.nbytes, x.is_contiguous, x.T.shape, repr(x.dtype)
        for f in (lambda: x[..., 0], lambda: x[::-1], lambda: x.reshape(-1), lambda: x.__dlpack__(max_version=(1, 0)), lambda: memoryview(x).shape, lambda: x.__array_interface__):
            try:
                f()
            except (ValueError, IndexError, TypeError, BufferError, RuntimeError, AttributeError, OverflowError, MemoryError):
                pass
        del x
        seen["taken"] += 1
    except (ValueError, TypeError, BufferError, RuntimeError, OverflowError, MemoryError):
        seen["refused"] += 1
    assert p.deleted <= 1
print("fine", seen)
"""


class Capsules(unittest.TestCase):
    def test_anything_in_a_capsule(self):
        step = RUNS
        r = python(CAPSULES, "0", str(step), timeout=7200 if SOAK else 120)
        self.assertIn("fine", r.stdout)


class Headers(unittest.TestCase):
    """A file of tensors as others write it: a length, a header of names, dtypes, shapes and offsets, the
    bytes. Whoever reads one makes views of its bytes."""

    DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_}

    def views(self, data, header):
        import eas

        base = eas.tensor(np.frombuffer(data, np.uint8).copy())
        out = {}
        for name, (dtype, shape, (start, end)) in header.items():
            part = base[start:end]
            out[name] = eas.tensor(part.numpy().view(self.DTYPES[dtype])).reshape(*shape)
        return out

    def test_anything_in_a_header(self):
        r = random.Random(7)
        data = bytes(range(256)) * 4
        taken = 0
        for _ in range(RUNS // 4):
            number = lambda: r.choice((0, 1, 4, 8, 16, 255, 1024, -1, -4, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 64))  # noqa: E731
            shape = [number() if r.random() < 0.3 else r.randrange(5) for _ in range(r.randrange(4))]
            header = {"x": (r.choice(list(self.DTYPES)), shape, (number(), number()) if r.random() < 0.5 else (0, 4 * r.randrange(64)))}
            try:
                for t in self.views(data, header).values():
                    self.assertLessEqual(t.nbytes, len(data))
                    t.numpy().sum()
                    taken += 1
            except (ValueError, TypeError, IndexError, OverflowError, MemoryError):
                pass
        self.assertGreater(taken, 0)
