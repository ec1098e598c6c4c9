"""Buffers as arrays, structs and functions as arguments, constexpr of any hashable value."""

import dataclasses
import unittest
from typing import NamedTuple

import numpy as np
from support import DEVICES, backend, each

import eas
from eas import mk


def both(test, kernel, *args, **kw):
    """On every device, and under _interpret: the same arrays."""
    out = each(test, kernel, *args, **kw)
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    kernel(*copies, _interpret=True, **kw)
    for a, b in zip(out, [a for a in copies if isinstance(a, np.ndarray)]):
        np.testing.assert_array_equal(a, b, "interpreted")
    return out


A = np.arange(24, dtype=np.float32).reshape(4, 6)


@eas.kernel
def row_sums(x, out):
    i = mk.program_id(0)
    s = 0.0
    for j in range(x.shape[1]):
        s += x[i, j]
    out[i] = s


@eas.kernel
def double(x, out, B: eas.constexpr):
    i = mk.program_id(0)
    j = mk.arange(0, B)
    m = j < x.shape[1]
    out[i, j, m] = x[i, j, m] * 2


class Layouts(unittest.TestCase):
    def views(self):
        big = np.arange(4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)
        yield "contiguous", A
        yield "transposed", A.T
        yield "reversed", A[::-1, ::-1]
        yield "stepped", A[::2, 1::3]
        yield "negative steps", A[::-2, ::-3]
        yield "broadcast", np.broadcast_to(A[0], (3, 6))
        yield "column", big[:, :, 1]
        yield "one row", A[1:2]
        yield "fortran", np.asfortranarray(A)

    def test_reading(self):
        for name, x in self.views():
            for device in (*DEVICES, "interpreted"):
                with self.subTest(view=name, device=device):
                    out = np.zeros(x.shape[0], np.float32)
                    if device == "interpreted":
                        row_sums(x, out, _grid=x.shape[0], _interpret=True)
                    else:
                        with backend(device):
                            row_sums(x, out, _grid=x.shape[0])
                    np.testing.assert_array_equal(out, x.sum(1))

    def test_writing(self):
        for device in DEVICES:
            with self.subTest(device=device), backend(device):
                base = np.zeros((9, 14), np.float32)
                out = base[1::2, ::-2][:, :6]
                double(A, out, 8, _grid=4)
                np.testing.assert_array_equal(out, A * 2)
                self.assertEqual(np.count_nonzero(base), np.count_nonzero(A))

    def test_attributes(self):
        @eas.kernel
        def k(x, out):
            out[0] = x.size
            out[1] = x.ndim
            out[2] = x.shape[0] * 100 + x.shape[1]
            out[3] = x.strides[0] * 100 + x.strides[1]
            out[4] = x.T.shape[0]
            out[5] = 1 if x.dtype == mk.f32 else 2

        for x in (A, A.T, A[::2, ::-1]):
            _, out = both(self, k, x.copy(), np.zeros(6, np.int64), _grid=1)
            out = np.zeros(6, np.int64)
            k(x, out, _grid=1)
            s = [v // 4 for v in x.strides]
            self.assertEqual(out.tolist(), [x.size, 2, x.shape[0] * 100 + x.shape[1], s[0] * 100 + s[1], x.shape[1], 1])

    def test_one_kernel_for_all_sizes(self):
        k = eas.kernel(row_sums.fn)
        for n in (3, 5, 7):
            k(np.ones((2, n), np.float32), np.zeros(2, np.float32), _grid=2)
        self.assertEqual(len(k.compiled), 1)
        self.assertEqual(k.compiled[0].params, ("x", "out"))

    def test_rows_slices_and_in_place(self):
        def total(row, n):
            s = 0.0
            for j in range(n):
                s += row[j]
            return s

        @eas.kernel
        def k(x, out):
            i = mk.program_id(0)
            row = x[i]
            out[i] = total(row, row.shape[0])
            out[i] += total(x[i, 1:3], 2)
            out[i] *= 2
            out[i] -= x[i][-1]
            out[i] += mk.load(row, 0)

        for x in (A, A[:, ::2]):
            out = np.zeros(4, np.float32)
            if x is A:
                _, out = both(self, k, x, out, _grid=4)
                np.testing.assert_array_equal(out, (x.sum(1) + x[:, 1:3].sum(1)) * 2 - x[:, -1] + x[:, 0])

    def test_atomics_and_tuples(self):
        @eas.kernel
        def k(x, out):
            i, j = mk.program_id(0), mk.program_id(1)
            mk.atomic_add(out, (j, 0), mk.load(x, (i, j)))
            mk.store(out, (j, 1), 1)

        x = np.arange(24, dtype=np.int32).reshape(4, 6)
        _, out = both(self, k, x, np.zeros((6, 2), np.int32), _grid=(4, 6))
        np.testing.assert_array_equal(out[:, 0], x.sum(0))

    def test_zero_dims_and_empty(self):
        @eas.kernel
        def k(x, out):
            out[0] = x[()] + x.ndim

        out = np.zeros(1, np.float32)
        k(np.array(3, np.float32), out, _grid=1)
        self.assertEqual(out[0], 3)
        row_sums(np.zeros((2, 0), np.float32), out2 := np.ones(2, np.float32), _grid=2)
        self.assertEqual(out2.tolist(), [0, 0])

    def test_threadgroup_and_local_arrays(self):
        @eas.kernel
        def k(x, out, T: eas.constexpr):
            i = mk.tid(0, T)
            shared = mk.alloc_tg(T)
            mine = mk.local(3, mk.i32)
            for j in range(mine.shape[0]):
                mine[j] = i * 10 + j
            shared[i] = x[i]
            mk.barrier()
            s = 0
            for j in range(3):
                s += mine[j]
            out[i] = shared[T - 1 - i] + s

        x = np.arange(8, dtype=np.float32)
        _, out = both(self, k, x, np.zeros(8, np.float32), 8, _grid=1)
        np.testing.assert_array_equal(out, x[::-1] + np.arange(8) * 30 + 3)

    def test_local_of_a_program(self):
        @eas.kernel
        def k(out, N):
            p = mk.program_id(0)
            a = mk.local(8, mk.i64)
            a[0], a[1] = 0, 1
            for j in range(2, N):
                a[j] = a[j - 1] + a[j - 2]
            out[p] = a[N - 1] + p

        (out,) = both(self, k, np.zeros(3, np.int64), 8, _grid=3)
        self.assertEqual(out.tolist(), [13, 14, 15])

    def test_groups_of_dims(self):
        @eas.kernel
        def k(out, Y: eas.constexpr, X: eas.constexpr):
            y, x = mk.tid((Y, X))
            out[y, x] = y * 10 + x

        (out,) = both(self, k, np.zeros((3, 4), np.int32), 3, 4, _grid=1)
        np.testing.assert_array_equal(out, np.arange(3)[:, None] * 10 + np.arange(4))
        self.assertEqual(k.compile(out, 3, 4).block_size, 12)


class Bounds(unittest.TestCase):
    def test_interpreted(self):
        @eas.kernel
        def k(x, out, j):
            out[mk.program_id(0)] = x[mk.program_id(0), j]

        with self.assertRaisesRegex(IndexError, "axis 1 of size"):
            k(A, np.zeros(4, np.float32), 6, _grid=4, _interpret=True)

    def test_checked(self):
        @eas.kernel
        def k(x, out, j):
            out[mk.program_id(0)] = x[mk.program_id(0), j]

        self.assertIn("out of bounds", str(eas.check(k, A, np.zeros(4, np.float32), 6, _grid=4)))
        self.assertNotIn("out of bounds", str(eas.check(k, A, np.zeros(4, np.float32), 5, _grid=4)))

    def test_messages(self):
        def many(x, out):
            out[0] = x[0, 0, 0]

        def few(x, out):
            out[0] = 1.0
            x[0] = 1.0

        def flat(x, out):
            out[0] = mk.load(x, 3)

        def condition(x, out):
            out[0] = x[mk.program_id(0) > 0, 0]

        out = np.zeros(4, np.float32)
        for f, x, error, word in ((many, A, IndexError, "2 dims"), (few, A, TypeError, "every axis"), (flat, A.T, ValueError, "contiguous"), (condition, A, TypeError, "mask")):
            with self.subTest(f=f.__name__), self.assertRaisesRegex(error, word):
                eas.kernel(f)(x, out, _grid=1)


class Point(NamedTuple):
    x: object
    n: int
    f: object


@dataclasses.dataclass
class Job:
    out: object
    p: Point
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    name: str = "a"


def relu(v):
    if v > 0:
        return v
    return 0.0


class Structs(unittest.TestCase):
    def test_nested(self):
        @eas.kernel
        def k(job, pair, act):
            i = mk.program_id(0)
            if i < job.p.n:
                job.out[i] = act(job.p.x[i]) * job.scale + pair[1] + job.p.f(1.0)

        x = np.float32([1, -2, 3, -4])
        for device in DEVICES:
            for options in ({}, {"_interpret": True}):
                with self.subTest(device=device, **options), backend(device):
                    out = np.zeros(4, np.float32)
                    k(Job(out, Point(x, 4, relu), 2.0), (1, 0.5), relu, _grid=4, **options)
                    np.testing.assert_array_equal(out, np.maximum(x, 0) * 2 + 1.5)
                    k(Job(out, Point(x, 3, lambda v: v * 3), 2.0), (1, 0.5), lambda v: -v, _grid=4, **options)
                    np.testing.assert_array_equal(out[:3], -x[:3] * 2 + 3.5)

    def test_functions_are_guarded(self):
        by = 2

        def scaled(v):
            return v * by

        @eas.kernel
        def k(x, out, f):
            i = mk.program_id(0)
            mk.store(out, i, f(mk.load(x, i)))

        x, out = np.float32([1, 2]), np.zeros(2, np.float32)
        k(x, out, scaled, _grid=2)
        self.assertEqual(out.tolist(), [2, 4])
        by = 5
        k(x, out, scaled, _grid=2)
        self.assertEqual(out.tolist(), [5, 10])

    def test_numbers_of_structs_are_run_time(self):
        @eas.kernel
        def k(p, out):
            mk.store(out, 0, p[0] + p[1])

        out = np.zeros(1, np.float32)
        for a in range(4):
            k((a, 0.5), out, _grid=1)
            self.assertEqual(out[0], a + 0.5)
        self.assertEqual(len(k.compiled), 1)

    def test_hashable_constexpr(self):
        @eas.kernel
        def k(x, out, cfg: eas.constexpr, names: eas.constexpr = frozenset()):
            i = mk.arange(0, 4)
            v = x[i] * cfg.scale
            if "neg" in names:
                v = -v
            out[i] = v

        x, out = np.float32([1, 2, 3, 4]), np.zeros(4, np.float32)
        k(x, out, Config(3.0), _grid=1)
        np.testing.assert_array_equal(out, x * 3)
        k(x, out, Config(4.0), frozenset({"neg"}), _grid=1)
        np.testing.assert_array_equal(out, x * -4)
        with self.assertRaisesRegex(TypeError, "hashable"):
            k(x, out, [1], _grid=1)

    def test_runtimes_and_autotune(self):
        @eas.autotune(configs=[eas.Config(meta={"B": 4}), eas.Config(meta={"B": 8})], key=["n"], warmup=0, repeat=1)
        @eas.kernel
        def k(x, out, n, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.arange(0, B)
            out[i, i < n] = x[i, i < n] + 1

        out = np.zeros(8, np.float32)
        k(np.arange(8, dtype=np.float32), out, 8, _nthreads=8)
        np.testing.assert_array_equal(out, np.arange(8) + 1)


class Derivatives(unittest.TestCase):
    def test_reverse(self):
        @eas.kernel
        def k(x, p, out):
            i = mk.program_id(0)
            s = 0.0
            for j in range(x.shape[1]):
                if x[i, j] > 0:
                    s += x[i, j] * x[i, j] * p.scale
            out[i] = s

        x, d_x = A - 10, np.zeros_like(A)
        eas.grad_kernel(k, wrt=["x"], of=["out"])(x, Config(3.0), np.zeros(4, np.float32), np.ones(4, np.float32), d_x, _grid=4)
        np.testing.assert_array_equal(d_x, np.where(x > 0, 6 * x, 0))


class Arange(unittest.TestCase):
    def test_named(self):
        @eas.kernel
        def k(out):
            mk.store(out, mk.arange(0, 4), mk.arange(2, size=4) * 10 + mk.arange(3, stop=7))

        (out,) = both(self, k, np.zeros(4, np.int64), _grid=1)
        self.assertEqual(out.tolist(), [(2 + i) * 10 + 3 + i for i in range(4)])

    def test_asks(self):
        def f(out):
            mk.store(out, mk.arange(2, 4), 1)

        with self.assertRaisesRegex(TypeError, "size=4.*stop=4"):
            eas.kernel(f)(np.zeros(8, np.int64), _grid=1)


@eas.kernel
def decode_flat(x, out, N, B: eas.constexpr):
    i = mk.program_id(0) * B + mk.arange(0, B)
    mk.store(out, i, mk.load(x, i, mask=i < N, other=-1.0))


@eas.kernel
def decode_rows(x, scale, out, B: eas.constexpr):
    i, j = mk.program_id(0), mk.arange(0, B)
    inside = j < x.shape[1]
    out[i, j, inside] = x[i, j, inside] * scale


class Float8(unittest.TestCase):
    """Every byte of both formats, as ml_dtypes reads it."""

    def check(self, name, arrays, want):
        for device in DEVICES:
            for x in arrays:
                with self.subTest(name, device=device, type=type(x)), backend(device):
                    out = np.empty(260, np.float32)
                    decode_flat(x, out, 256, B=130, _grid=2)
                    np.testing.assert_array_equal(out[:256], want)
                    self.assertTrue((out[256:] == -1).all())

    def test_every_byte(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("needs ml_dtypes")
        import eager

        for name in ("float8_e4m3fn", "float8_e5m2"):
            x = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
            arrays = [x, eager.asarray(x)]
            try:
                import torch

                arrays.append(torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)))
            except ImportError:
                pass
            want = x.astype(np.float32)
            self.check(name, arrays, want)
            table = x.reshape(16, 16)[2:, ::3]
            out = np.zeros(table.shape, np.float32)
            decode_rows(table, 2.0, out, B=8, _grid=14)
            np.testing.assert_array_equal(out, table.astype(np.float32) * 2)
            with self.assertRaisesRegex(TypeError, f"{name} is only read by kernels"):
                decode_rows(np.ones((2, 2), np.float32), 1.0, table, B=2, _grid=2)

if __name__ == "__main__":
    unittest.main()
