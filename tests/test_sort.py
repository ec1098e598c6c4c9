"""Rows in order: the host's sort by vectors (src/native/sort.c) against the kernels of another device and
NumPy."""

import unittest

import numpy as np

import eager

SHAPES = ((65,), (128,), (129,), (1000,), (70_000,), (3, 40_000), (64, 256), (2, 3, 100))
DTYPES = (np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64, np.int8, np.uint8)


def numbers(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind != "f":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    x = (rng.standard_normal(shape) * 1000).astype(dtype)
    x.flat[::37] = np.nan
    x.flat[:5] = -np.nan, np.inf, -np.inf, 0.0, -0.0
    return x


def bits(a):
    return a.view(f"u{a.dtype.itemsize}")


class Sort(unittest.TestCase):
    def test_values(self):
        for dtype in DTYPES:
            for shape in SHAPES:
                with self.subTest(dtype=dtype.__name__, shape=shape):
                    x = numbers(shape, dtype)
                    out = eager.sort(eager.constant(x)).numpy()
                    np.testing.assert_array_equal(out, np.sort(x))

    def test_largest_first(self):
        for dtype in DTYPES:
            x = numbers((2, 70_001), dtype)[:, 5:]
            x = np.ascontiguousarray(np.nan_to_num(x, nan=1)) if np.dtype(dtype).kind == "f" else np.ascontiguousarray(x)
            np.testing.assert_array_equal(eager.sort(eager.constant(x), descending=True).numpy(), np.sort(x)[:, ::-1])

    def test_bits_of_the_reference(self):
        """Signs of zeros and what a NaN becomes, too."""
        for dtype in (np.float32, np.float64, np.int64):
            x = numbers((300,), dtype)
            ours = eager.sort(eager.constant(x)).numpy()
            ref = eager.sort(eager.constant(x).to("ref")).to("cpu").numpy()
            np.testing.assert_array_equal(bits(ours), bits(ref))

    def test_lengths_of_networks(self):
        """Up to 16 vectors are sorted in registers; the last vector may be filled in part."""
        for dtype in (np.float32, np.int64):
            for n in (65, 80, 127, 128, 129, 200, 255, 256, 257, 300):
                x = numbers((9, n), dtype, n)
                np.testing.assert_array_equal(eager.sort(eager.constant(x)).numpy(), np.sort(x))

    def test_order(self):
        """Equal numbers keep their order, both zeros are equal, and NaN comes last or, downwards, first."""
        rng = np.random.default_rng(2)
        for dtype in (np.float32, np.int32, np.uint32, np.float64, np.int8):
            for shape in (*SHAPES, (1, 65_537), (300, 300)):
                for x in (numbers(shape, dtype), rng.integers(0, 3, shape).astype(dtype)):
                    if np.dtype(dtype).kind == "f":
                        x.flat[::7] = 0.0
                        x.flat[3::7] = -0.0
                    with self.subTest(dtype=dtype.__name__, shape=shape):
                        t = eager.constant(x)
                        np.testing.assert_array_equal(eager.argsort(t).numpy(), np.argsort(x, stable=True))
                        down = eager.argsort(t, descending=True).numpy()
                        if np.dtype(dtype).kind == "f":
                            key = np.where(np.isnan(x), -np.inf, -x.astype(np.float64))
                            self.assertTrue(np.isnan(np.take_along_axis(x, down, -1)).sum() == np.isnan(x).sum())
                            if not np.isinf(x).any():
                                np.testing.assert_array_equal(down, np.argsort(key, stable=True))
                        else:
                            np.testing.assert_array_equal(down, np.argsort(-x.astype(np.float64), stable=True))

    def test_order_on_the_reference(self):
        for dtype in (np.float32, np.int32, np.uint32):
            x = numbers((3, 500), dtype)
            x[:, 100:200] = x[:, :100]
            for down in (False, True):
                ours = eager.argsort(eager.constant(x), descending=down).numpy()
                ref = eager.argsort(eager.constant(x).to("ref"), descending=down).to("cpu").numpy()
                np.testing.assert_array_equal(ours, ref)

    def test_few_and_ordered_numbers(self):
        n = 50_000
        rng = np.random.default_rng(1)
        for x in (
            rng.integers(0, 3, n),
            np.arange(n),
            np.arange(n)[::-1].copy(),
            np.full(n, 7),
            np.full(n, np.iinfo(np.int64).max),
            np.r_[np.arange(n), np.arange(n)],
        ):
            for dtype in (np.int32, np.int64):
                a = x.astype(dtype)
                np.testing.assert_array_equal(eager.sort(eager.constant(a)).numpy(), np.sort(a))

    def test_a_few_of_long_rows(self):
        """They are looked for in blocks; a sort of all begins with the same elements, at the same indices."""
        for dtype in DTYPES:
            for shape in ((5000,), (70_001,), (2, 3, 90_000), (1 << 18,)):
                x = numbers(shape, dtype)
                t = eager.constant(x)
                for largest in (True, False):
                    order = eager.argsort(t, descending=largest).numpy()
                    for k in (1, 3, 16):
                        with self.subTest(dtype=dtype.__name__, shape=shape, largest=largest, k=k):
                            values, at = eager.topk(t, k, largest=largest)
                            np.testing.assert_array_equal(at.numpy(), order[..., :k])
                            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order[..., :k], -1))

    def test_a_few_of_long_rows_in_transforms(self):
        x, weight = np.random.default_rng(0).standard_normal((2, 3, 90_001)), np.arange(1.0, 6.0)
        order = np.argsort(-x, kind="stable")[..., :5]
        want = np.zeros_like(x)
        np.put_along_axis(want, order, np.broadcast_to(weight, order.shape), -1)
        loss = lambda x: (eager.topk(x, 5)[0] * eager.constant(weight)).sum()  # noqa: E731
        np.testing.assert_array_equal(eager.vmap(lambda x: eager.topk(x, 5)[1])(eager.constant(x)).numpy(), order)
        np.testing.assert_array_equal(eager.grad(loss)(eager.constant(x)).numpy(), want)
        np.testing.assert_array_equal(eager.vmap(eager.grad(loss))(eager.constant(x)).numpy(), want)

    def test_among_other_operations(self):
        x = numbers((4, 1000), np.float32)
        f = eager.compile(lambda v: eager.sort(v * 2) + 1)
        for _ in range(2):
            np.testing.assert_array_equal(f(eager.constant(x)).numpy(), np.sort(x * 2) + 1)


if __name__ == "__main__":
    unittest.main()
