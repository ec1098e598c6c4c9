"""Dtypes of what is made and computed: ranges, sums in a dtype, names, promotion."""

import operator
import unittest

import numpy as np

import eager
from eager import Tensor

MAKERS = {"Tensor.arange": Tensor.arange, "eager.arange": eager.arange, "ops": eager.ops.creation.arange}


class TestArange(unittest.TestCase):
    def test_integers_give_integers(self):
        for name, arange in MAKERS.items():
            for args in ((12,), (2, 9), (9, 2, -3), (np.int32(5),), (-4, np.uint8(3), 2), (True,), (0,), (5, 2)):
                got, want = arange(*args), np.array(range(*map(int, args)), np.int64)
                self.assertEqual(got.dtype, "int64", (name, args))
                np.testing.assert_array_equal(got.numpy(), want)

    def test_floats_give_float32(self):
        for args in ((5.0,), (0, 1, 0.25), (1.5, 4), (np.float64(3),)):
            self.assertEqual(eager.arange(*args).dtype, "float32")
            np.testing.assert_allclose(eager.arange(*args).numpy(), np.arange(*args, dtype=np.float32))

    def test_dtype_wins(self):
        self.assertEqual(eager.arange(5, dtype="float16").dtype, "float16")
        self.assertEqual(eager.arange(5.0, dtype="int32").tolist(), [0, 1, 2, 3, 4])

    def test_it_indexes(self):
        x = Tensor.constant([5.0, 6.0, 7.0])
        self.assertEqual(x[eager.arange(2)].tolist(), [5, 6])
        self.assertEqual(eager.gather(x, eager.arange(2, -1, -1)).tolist(), [7, 6, 5])

    def test_large_numbers_are_exact(self):
        for first in (2**24, 2**53):
            self.assertEqual(eager.arange(first, first + 5).tolist(), list(range(first, first + 5)))
        self.assertEqual(len(eager.arange(2**62, 2**62 + 3).tolist()), 3)

    def test_the_seeds_example(self):
        z = (Tensor.ones((3, 4)) + Tensor.arange(12).reshape((3, 4))).sum()
        self.assertEqual((z.item(), z.dtype), (78.0, "float32"))

    def test_symbolic_stop(self):
        self.assertEqual(str(eager.arange(2, "n").shape[0]), "n - 2")
        f = eager.compile(lambda x: eager.arange(1, x.shape[0], 2), dynamic_dims={0: {0: "n"}}, fullgraph=True)
        for n in (1, 2, 7, 8):
            self.assertEqual(f(Tensor.zeros((n,))).tolist(), list(range(1, n, 2)))

    def test_refused(self):
        for args, words in (((0, 5, 0), "step"), ((0.0, np.inf), "finite"), (("n", 5), "stop")):
            with self.assertRaisesRegex(ValueError, words):
                eager.arange(*args)

    def test_float64_is_not_rounded(self):
        for args in ((0, 1, 0.1), (0.1, 3, 0.7), (-1e9, -1e9 + 2, 0.3)):
            np.testing.assert_allclose(eager.arange(*args, dtype="float64").numpy(), np.arange(*args), rtol=4e-16)
        for args in ((0.1, 1.3, 7), (1 / 3, 2 / 3, 11)):
            np.testing.assert_allclose(eager.linspace(*args, dtype="float64").numpy(), np.linspace(*args), rtol=4e-16)
        self.assertEqual(eager.full((1,), 0.1, dtype="float64").item(), 0.1)
        self.assertEqual(eager.cast(0.1, "float64").item(), 0.1)
        u = eager.uniform((100,), 0.1, 0.1 + 1e-12, key=1, dtype="float64").numpy()
        self.assertTrue(((u >= 0.1) & (u <= 0.1 + 1e-12)).all())
        self.assertEqual(eager.gaussian((), 0.1, 0.0, key=1, dtype="float64").item(), 0.1)


class TestReductionDtypes(unittest.TestCase):
    def test_dtype_is_that_of_the_result(self):
        a = np.array([[100, 100, 27], [3, -5, 2]], np.int8)
        x = Tensor.constant(a)
        for dt in ("int8", "uint8", "int16", "int32", "uint32", "int64", "float32", "float64"):
            for name in ("sum", "prod"):
                got, want = getattr(eager, name)(x, axis=1, dtype=dt), getattr(np, name)(a, axis=1, dtype=dt)
                self.assertEqual(got.dtype, dt)
                np.testing.assert_array_equal(got.numpy(), want)
                np.testing.assert_array_equal(getattr(x, name)(axis=1, dtype=dt).numpy(), want)
            for name, like in (("cumulative_sum", np.cumsum), ("cumulative_prod", np.cumprod)):
                got, want = getattr(eager, name)(x, axis=1, dtype=dt), like(a, axis=1, dtype=dt)
                self.assertEqual(got.dtype, dt)
                np.testing.assert_array_equal(got.numpy(), want)
            for name in ("cumsum", "cumprod"):
                got, want = getattr(x, name)(axis=1, dtype=dt), getattr(np, name)(a, axis=1, dtype=dt)
                self.assertEqual(got.dtype, dt)
                np.testing.assert_array_equal(got.numpy(), want)

    def test_means_and_variances(self):
        a = np.array([[1, 2, 4], [3, -5, 2]], np.int32)
        x = Tensor.constant(a)
        for dt in ("float32", "float64"):
            for name in ("mean", "var", "std"):
                got = getattr(eager, name)(x, axis=1, dtype=dt)
                self.assertEqual(got.dtype, dt)
                np.testing.assert_allclose(got.numpy(), getattr(np, name)(a, axis=1, dtype=dt), rtol=1e-6)
                self.assertEqual(getattr(x, name)(axis=1, dtype=dt).dtype, dt)


class TestFloorDivision(unittest.TestCase):
    def test_as_numpy_where_numbers_are_special(self):
        for dt in ("f2", "f4", "f8"):
            v = np.array([3, -3, 0, -0.0, np.inf, -np.inf, np.nan, 1e-4, -1e-4, 7.5, -7.5, 1, 6e4], dt)
            a, b = np.meshgrid(v, v)
            with np.errstate(all="ignore"):
                for name in ("floordiv", "mod"):
                    f = getattr(operator, name)
                    got, want = f(Tensor.constant(a), Tensor.constant(b)).numpy(), f(a, b)
                    if name == "floordiv":  # of infinities it is floor(a / b), as the array API has it
                        want = np.where(np.isinf(a) | np.isinf(b), a / b, want)
                    np.testing.assert_array_equal(got, want)
                    known = ~np.isnan(want)
                    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


class TestNames(unittest.TestCase):
    def test_strings_are_numpys(self):
        x = Tensor.constant([1, 2])
        for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"):
            want = np.dtype(name)
            for y in (x.astype(name), x.cast(name), eager.zeros((2,), name), eager.constant([1], dtype=name), eager.full((2,), 1, name), eager.sum(x, dtype=name)):
                self.assertEqual(y.dtype, want, name)


class TestPromotion(unittest.TestCase):
    def test_uint64_with_signed_integers(self):
        u = Tensor.constant(np.array([2**60 + 2**30], np.uint64))
        for dt in (np.int8, np.int16, np.int32, np.int64):
            got = u + Tensor.constant(np.array([1], dt))
            self.assertEqual(got.dtype, "float64")
            self.assertEqual(got.item(), float(2**60 + 2**30 + 1))
        self.assertEqual((u + 1).dtype, "uint64")
        self.assertEqual((u + 1).item(), 2**60 + 2**30 + 1)
        self.assertEqual((u + Tensor.constant(np.array([1], np.uint8))).dtype, "uint64")


class TestNumbersAlone(unittest.TestCase):
    def test_where_of_two_floats_is_float32(self):
        c = eager.constant([True, False])
        self.assertEqual(eager.where(c, 1.0, -1.0).dtype, eager.DType.float32)
        self.assertEqual(eager.where(c, 1, 2).dtype, eager.DType.int64)
        self.assertEqual(eager.where(c, 1.0, eager.zeros((2,), dtype="float64")).dtype, eager.DType.float64)
