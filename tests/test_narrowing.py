"""One rule: a Python number that does not fit the dtype it meets raises, in kernels and in tensors; casts are
explicit."""

import unittest

import numpy as np
from support import each

import eager
import eas
from eas import mk

MISFITS = [("u1", 300), ("u1", -1), ("i1", 128), ("i2", 40000), ("u2", -5), ("i4", 2**31), ("u4", 2**32), ("u8", -1)]
OPERATORS = {
    "add": lambda x, n: x + n,
    "radd": lambda x, n: n + x,
    "sub": lambda x, n: x - n,
    "mul": lambda x, n: x * n,
    "floordiv": lambda x, n: x // n,
    "mod": lambda x, n: x % n,
    "and": lambda x, n: x & n,
    "or": lambda x, n: x | n,
    "xor": lambda x, n: x ^ n,
    "lt": lambda x, n: x < n,
    "ge": lambda x, n: x >= n,
    "eq": lambda x, n: x == n,
    "ne": lambda x, n: n != x,
}


def kernel(f):
    @eas.kernel
    def k(x, out):
        i = mk.arange(0, 4)
        f(mk.load(x, i), out, i)

    return k


class Kernels(unittest.TestCase):
    def refused(self, f, dt, number):
        x = np.zeros(4, dt)
        for options in ({}, {"_interpret": True}):
            with self.assertRaisesRegex(ValueError, rf"test_narrowing.py:\d+: .*the number {number}.* does not fit"):
                kernel(f)(x, x.copy(), _grid=1, **options)

    def test_operators(self):
        for name, f in OPERATORS.items():
            for dt, n in MISFITS:
                with self.subTest(name, dt=dt):
                    self.refused(lambda v, out, i, f=f, n=n: f(v, n), dt, n)

    def test_functions(self):
        for dt, n in MISFITS:
            with self.subTest(dt):
                self.refused(lambda v, out, i, n=n: mk.full(4, n, v.dtype), dt, n)
                self.refused(lambda v, out, i, n=n: mk.store(out, i, n), dt, n)
                self.refused(lambda v, out, i, n=n: mk.load(out, i, i < 2, n), dt, n)
                self.refused(lambda v, out, i, n=n: mk.where(i < 2, v, n), dt, n)
                self.refused(lambda v, out, i, n=n: mk.maximum(v, n), dt, n)
                self.refused(lambda v, out, i, n=n: mk.clamp(v, n, n), dt, n)
                self.refused(lambda v, out, i, n=n: mk.var(n, v.dtype), dt, n)
                self.refused(lambda v, out, i, n=n: mk.var(v).set(n), dt, n)

    def test_variables_in_loops(self):
        def body(v, out, i):
            a = mk.var(1, mk.u8)
            for _ in mk.range(3):
                a.set(300)

        self.refused(body, "u1", 300)

    def test_floats(self):
        self.refused(lambda v, out, i: v + 1e6, "f2", "1e")
        self.refused(lambda v, out, i: v * 100000, "f2", "100000")
        self.refused(lambda v, out, i: mk.store(out, i, 1e300), "f4", "1e")
        self.refused(lambda v, out, i: mk.full(4, 1.5, mk.i32), "i4", "1.5")

        @eas.kernel
        def fine(x, out):
            i = mk.arange(0, 4)
            mk.store(out, i, mk.where(i < 2, mk.load(x, i) + 65504.0, float("inf")) + mk.full(4, 3.0, mk.i8))

        np.testing.assert_array_equal(each(self, fine, np.zeros(4, "f2"), np.zeros(4, "f2"), _grid=1)[1][2:], [np.inf] * 2)

    def test_casts_are_explicit(self):
        @eas.kernel
        def k(x, out):
            i = mk.arange(0, 4)
            mk.store(out, i, mk.load(x, i) + mk.cast(300, mk.u8))

        self.assertEqual(each(self, k, np.array([1, 2, 3, 250], "u1"), np.zeros(4, "u1"), _grid=1)[1].tolist(), [45, 46, 47, 38])

    def test_numbers_at_the_ends_fit(self):
        for dt in ("u1", "i1", "u2", "i2", "u4", "i4", "i8"):
            info = np.iinfo(dt)

            @eas.kernel
            def k(x, out, LO: eas.constexpr, HI: eas.constexpr):
                i = mk.arange(0, 4)
                v = mk.load(x, i)
                mk.store(out, i, mk.where(i < 2, mk.where(v > LO, LO, v), mk.maximum(v, HI)))

            got = each(self, k, np.ones(4, dt), np.zeros(4, dt), LO=int(info.min), HI=int(info.max), _grid=1)[1]
            self.assertEqual(got.tolist(), [info.min] * 2 + [info.max] * 2)

    def test_variables_keep_their_dtype(self):
        @eas.kernel
        def k(out):
            a = mk.var(0, mk.f64)
            a.set(0.1)
            for _ in mk.range(1):
                a += mk.cast(0.2, mk.f64)
            mk.store(out, 0, a)

        out = np.zeros(1)
        k(out, _grid=1)
        self.assertEqual(out[0], 0.1 + 0.2)


class Tensors(unittest.TestCase):
    def test_operators(self):
        for name, f in OPERATORS.items():
            for dt, n in MISFITS:
                x = eager.asarray(np.zeros(4, dt))
                with self.subTest(name, dt=dt), self.assertRaisesRegex(ValueError, f"the number {n} does not fit"):
                    f(x, n)

    def test_functions(self):
        for dt, n in MISFITS:
            x = eager.asarray(np.zeros(4, dt))
            name = str(np.dtype(dt))
            for what, f in {
                "full": lambda: eager.full((2,), n, dtype=name),
                "full_like": lambda: eager.full_like(x, n),
                "clip": lambda: eager.clip(x, n, n),
                "where": lambda: eager.where(x > 1, x, n),
                "maximum": lambda: eager.maximum(x, n),
                "set": lambda: x.at[0].set(n),
                "add": lambda: x.at[0].add(n),
                "pad": lambda: eager.pad(x, ((1, 1),), value=n),
            }.items():
                with self.subTest(what, dt=dt), self.assertRaisesRegex(ValueError, f"the number {n} does not fit"):
                    f()

    def test_clip_speaks_of_itself(self):
        with self.assertRaisesRegex(ValueError, "^eager.clip: the number 300 does not fit"):
            eager.clip(eager.asarray(np.zeros(2, "u1")), 0, 300)

    def test_floats(self):
        with self.assertRaisesRegex(ValueError, "does not fit"):
            eager.asarray(np.zeros(2, "f2")) + 1e6
        with self.assertRaisesRegex(ValueError, "does not fit"):
            eager.full((2,), 1.5, dtype="int32")
        self.assertEqual(eager.full((2,), 2.0, dtype="int32").numpy().tolist(), [2, 2])
        self.assertEqual((eager.asarray(np.zeros(1, "f2")) + float("inf")).numpy().tolist(), [np.inf])

    def test_what_fits(self):
        x = eager.asarray(np.array([1, 2, 250], "u1"))
        self.assertEqual((x + 5).numpy().tolist(), [6, 7, 255])
        self.assertEqual((x < 255).numpy().tolist(), [True] * 3)
        self.assertEqual(x.at[0].sub(1).numpy().tolist(), [0, 2, 250])
        self.assertEqual((x.astype("int16") + 300).numpy().tolist(), [301, 302, 550])
        self.assertEqual((x + 0.5).numpy().tolist(), [1.5, 2.5, 250.5])
        self.assertEqual(eager.logical_and(x, 300).numpy().tolist(), [True] * 3)


class Powers(unittest.TestCase):
    def test_negative_powers_of_integers(self):
        x = eager.asarray(np.array([1, 2], "i4"))
        for f in (lambda: x**-1, lambda: eager.pow(x, -2)):
            with self.assertRaisesRegex(ValueError, "negative power"):
                f()
        np.testing.assert_array_equal((x.astype("float32") ** -1).numpy(), [1, 0.5])
        for f in (lambda v: v**-1, lambda v: mk.pow(v, -1)):
            with self.assertRaisesRegex(ValueError, "negative power"):
                kernel(lambda v, out, i, f=f: f(v))(np.ones(4, "i4"), np.ones(4, "i4"), _grid=1)



def numpy_forms(n):
    """The same number as NumPy scalars and as an array of rank 0."""
    return [np.int64(n), np.array(n), *([np.uint64(n)] if n >= 0 else []), *([np.int32(n)] if -(2**31) <= n < 2**31 else [])]


class NumPyNumbers(unittest.TestCase):
    """They promote as in NumPy, and must fit integers that they meet in kernels, and whatever they are
    written to."""

    def test_kernels(self):
        for dt, n in MISFITS:
            for x in numpy_forms(n):
                if np.dtype(dt) == np.asarray(x).dtype:
                    continue
                for f in (
                    lambda v, out, i: v + x,
                    lambda v, out, i: x - v,
                    lambda v, out, i: v < x,
                    lambda v, out, i: mk.where(i < 2, v, x),
                    lambda v, out, i: mk.maximum(v, x),
                    lambda v, out, i: mk.clamp(v, 0, x),
                    lambda v, out, i: mk.full(4, x, v.dtype),
                    lambda v, out, i: mk.store(out, i, x),
                    lambda v, out, i: mk.load(out, i, i < 2, x),
                    lambda v, out, i: mk.var(x, v.dtype),
                ):
                    with self.subTest(dt=dt, x=repr(x)), self.assertRaisesRegex((ValueError, TypeError), rf"the number {n} does not fit|no common dtype"):
                        kernel(f)(np.zeros(4, dt), np.zeros(4, dt), _grid=1)

    def test_kernels_that_may(self):
        @eas.kernel
        def k(x, wide, out):
            i = mk.arange(0, 4)
            v = mk.load(x, i)
            mk.store(out, i, mk.cast(v, mk.i64) + np.int64(300) + np.array(7) - np.uint8(200))
            mk.store(wide, i, v + np.int64(5) + mk.cast(np.int64(300), mk.i64))

        x, wide, out = np.arange(4, dtype=np.uint8), np.zeros(4, np.int64), np.zeros(4, np.int64)
        k(x, wide, out, _grid=1)
        self.assertEqual(out.tolist(), [107, 108, 109, 110])
        self.assertEqual(wide.tolist(), [305, 306, 307, 308])

    def test_tensors(self):
        for dt, n in MISFITS:
            for x in numpy_forms(n):
                if np.dtype(dt) == np.asarray(x).dtype or (dt == "u8" and n < 0 and np.asarray(x).dtype == np.uint64):
                    continue
                t = eager.tensor(np.zeros(4, dt))
                u = eager.tensor(np.zeros(4, dt))
                for f in (
                    lambda: eager.full((2,), x, dtype=np.dtype(dt).name),
                    lambda: eager.full_like(t, x),
                    lambda: u.__setitem__(0, x),
                    lambda: t.at[0].set(x),
                    lambda: t.at[1].add(x),
                    lambda: eager.masked_fill(t, t > 1, x).numpy(),
                    lambda: eager.pad(t, ((1, 1),), value=x).numpy(),
                ):
                    with self.subTest(dt=dt, x=repr(x)), self.assertRaisesRegex(ValueError, rf"the number {n} does not fit"):
                        f()
        t = eager.tensor(np.arange(3, dtype="u1"))
        for x in (np.int64(300), np.array(300)):  # as in NumPy: the result is wide enough
            np.testing.assert_array_equal((t + x).numpy(), np.arange(3, dtype="u1") + x)
            np.testing.assert_array_equal((t < x).numpy(), np.arange(3, dtype="u1") < x)
            np.testing.assert_array_equal(eager.clip(t, 0, x).numpy(), np.arange(3))


if __name__ == "__main__":
    unittest.main()
