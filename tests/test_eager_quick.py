"""Ways of lowering that exist for speed, against NumPy: concatenation by copies, sorting by networks and
digits, places of true elements, windows tap by tap, reductions in even parts, erf."""

import math
import unittest

import numpy as np

import eager
from eager.testing import to_numpy

RNG = np.random.default_rng(22)


def numbers(shape, dtype):
    x = RNG.standard_normal(shape) * 100
    return (x > 0) if dtype == "bool" else x.astype("int64" if not dtype.startswith("float") else dtype).astype(dtype)


class Concatenate(unittest.TestCase):
    def check(self, xs, axis):
        ts = [eager.constant(x) for x in xs]
        np.testing.assert_array_equal(to_numpy(eager.concatenate(ts, axis)), np.concatenate(xs, axis))
        two = np.array(2, xs[0].dtype)
        np.testing.assert_array_equal(to_numpy(eager.concatenate([t * 2 if i % 2 else t for i, t in enumerate(ts)], axis)), np.concatenate([x * two if i % 2 else x for i, x in enumerate(xs)], axis))

    def test_shapes(self):
        for shapes, axis in [([(3, 4), (5, 4)], 0), ([(64, 100), (64, 30)], 1), ([(5000,), (3000,), (0,), (77,)], 0), ([(2, 3, 5000), (2, 4, 5000), (2, 1, 5000)], 1), ([(7, 40)] * 5, 1)]:
            for dtype in ("float32", "uint8"):
                with self.subTest(shapes=shapes, axis=axis, dtype=dtype):
                    self.check([numbers(s, dtype) for s in shapes], axis)

    def test_where_a_part_begins_is_part_of_the_kernel(self):
        for sizes in ((30, 50, 20, 40, 16, 17), (20, 50, 30, 40, 16, 17)):
            self.check([numbers((n, 3), "float32") for n in sizes], 0)

    def test_many_tensors_are_one_kernel(self):
        xs = [numbers((40, 3), "float32") for _ in range(40)]
        f = eager.compile(lambda *ts: eager.stack(ts))
        np.testing.assert_array_equal(f(*map(eager.constant, xs)).numpy(), np.stack(xs))
        self.assertIn("1 kernel,", str(f.show()))

    def test_more_than_one_kernel_holds(self):
        xs = [numbers((17, 5), "int32") for _ in range(150)]
        for axis in (0, 1):
            self.check(xs, axis)
            np.testing.assert_array_equal(eager.stack([eager.constant(x) for x in xs], axis).numpy(), np.stack(xs, axis))

    def test_of_columns(self):
        xs = [numbers((30, 40), "float32") for _ in range(2)]
        for axis in (0, 1):
            np.testing.assert_array_equal(eager.concatenate([eager.constant(x).T for x in xs], axis).numpy(), np.concatenate([x.T for x in xs], axis))


class Sort(unittest.TestCase):
    def test_rows(self):
        for shape, axis in [((40, 256), -1), ((33, 16), 0), ((3, 20, 33), 1), ((20, 1000), 1), ((17, 8), 1), ((50, 40), 0)]:
            for dtype in ("float32", "int32", "uint8", "float64", "int64", "float16", "bool"):
                x = numbers(shape, dtype)
                if dtype.startswith("float"):
                    x.flat[3], x.flat[5], x.flat[7] = np.nan, np.inf, -np.inf
                with self.subTest(shape=shape, axis=axis, dtype=dtype):
                    np.testing.assert_array_equal(eager.sort(eager.constant(x), axis).numpy(), np.sort(x, axis))
                    if not dtype.startswith("float"):
                        np.testing.assert_array_equal(eager.sort(eager.constant(x), axis, descending=True).numpy(), np.flip(np.sort(x, axis), axis))

    def test_of_what_is_computed_and_of_columns(self):
        x = numbers((40, 64), "float32")
        np.testing.assert_array_equal(eager.sort(eager.constant(x) * 2 + 1, 1).numpy(), np.sort(x * np.float32(2) + np.float32(1), 1))
        np.testing.assert_array_equal(eager.sort(eager.constant(x).T, 0).numpy(), np.sort(x.T, 0))

    def test_long_rows(self):
        for shape in [(300,), (5, 2000), (40000,), (1,), (0,), (3, 0)]:
            for dtype in ("float32", "int64", "int16"):
                for x in (numbers(shape, dtype), np.zeros(shape, dtype)):
                    with self.subTest(shape=shape, dtype=dtype):
                        np.testing.assert_array_equal(eager.sort(eager.constant(x)).numpy(), np.sort(x))
                        np.testing.assert_array_equal(eager.argsort(eager.constant(x)).numpy(), np.argsort(x, kind="stable"))


class Choose(unittest.TestCase):
    def test_nonzero(self):
        for shape in [(10,), (5000,), (100, 70), (8192,), (3, 4, 5), (0,)]:
            for part in (0, 0.1, 1):
                x = (RNG.random(shape) < part).astype("float32")
                with self.subTest(shape=shape, part=part):
                    for a, b in zip(eager.nonzero(eager.constant(x)), np.nonzero(x)):
                        np.testing.assert_array_equal(a.numpy(), b)

    def test_fewer_than_asked_for(self):
        x = np.array([[1, 0, 1, 1], [0, 0, 0, 1]], "float32")
        got = eager.vmap(lambda v: eager.flat_nonzero(v, 3))(eager.constant(x))
        np.testing.assert_array_equal(got.numpy(), [[0, 2, 3], [3, 4, 4]])

    def test_mask_of_a_whole_tensor(self):
        x = numbers((30, 40), "float32")
        t = eager.constant(x)
        for mask in (x > 0, x > 1e9, x == x):
            np.testing.assert_array_equal(t[mask].numpy(), x[mask])
            np.testing.assert_array_equal(t[eager.constant(mask)].numpy(), x[mask])
        np.testing.assert_array_equal(eager.grad(lambda v: eager.sum(v[x > 0] ** 2))(t).numpy(), np.where(x > 0, 2 * x, 0))
        with self.assertRaisesRegex(IndexError, "does not fit"):
            t[np.ones((40, 30), bool)]

    def test_places_of_few_and_many(self):
        """Blocks without a true element are passed over; the last block and the last part may be short."""
        rng = np.random.default_rng(3)
        for n in (1, 63, 64, 65, 1000, 4096, 4160, 9001):
            for share in (0, 0.001, 0.02, 0.5, 1):
                x = rng.random(n) < share
                x[-1] |= share > 0
                for t in (eager.constant(x), eager.constant(x).to("ref")):
                    np.testing.assert_array_equal(eager.nonzero(t)[0].to("cpu").numpy(), np.nonzero(x)[0])

    def test_searchsorted(self):
        """Lengths around powers of two, equal elements and NaN, which comes last."""
        rng = np.random.default_rng(5)
        for n in (1, 2, 31, 32, 33, 34, 63, 64, 65, 100, 1023, 1024, 1025, 5000):
            for dtype in ("f4", "f8", "i4", "u1"):
                x = np.sort(rng.integers(0, max(3, n // 2), n).astype(dtype))
                v = np.r_[x[:: max(1, n // 50)], rng.integers(0, n + 3, 40)].astype(dtype)
                if dtype[0] == "f":
                    x[n - n // 5 :], v[::7], v[1], v[2] = np.nan, np.nan, -np.inf, np.inf
                    v[3:6] += 0.5
                for side in ("left", "right"):
                    np.testing.assert_array_equal(eager.searchsorted(eager.constant(x), eager.constant(v), side=side).numpy(), np.searchsorted(x, v, side))

    def test_put_along_rows(self):
        """Rows of the last axis, indices more than once, from the end and shared by the rows; bools."""
        rng = np.random.default_rng(6)
        for shape, k in (((7,), 9), ((5, 6), 4), ((40, 300), 300), ((2, 3, 100), 7), ((3, 5000), 40)):
            x, i = rng.integers(0, 9, shape), rng.integers(-shape[-1], shape[-1], (*shape[:-1], k))
            u = rng.integers(0, 9, i.shape)
            for dtype in ("i4", "f4", "bool"):
                for index, values in ((i, u), (i, u[..., :1]), (i[(slice(1),) * (len(shape) - 1)], u), (i, u[(0,) * (len(shape) - 1)])):
                    a, b = x.astype(dtype), np.broadcast_to(values, i.shape).astype(dtype)
                    where = (*np.ogrid[tuple(slice(n) for n in shape[:-1])], np.broadcast_to(index, i.shape)) if len(shape) > 1 else (i,)
                    where = tuple(w if j == len(shape) - 1 else w[..., None] for j, w in enumerate(where)) if len(shape) > 1 else where
                    want = a.copy()
                    (np.logical_or if dtype == "bool" else np.add).at(want, where, b)
                    for device in ("cpu", "ref"):
                        t = [eager.constant(p).to(device) for p in (a, np.ascontiguousarray(index), values.astype(dtype))]
                        got = eager.put_along_axis(*t, mode="add").to("cpu").numpy()
                        np.testing.assert_array_equal(got, want)
        with self.assertRaises(IndexError):
            eager.put_along_axis(eager.zeros((3, 4)), eager.constant([[1], [4], [0]]), eager.ones((3, 1))).numpy()
        x = eager.constant(rng.standard_normal((4, 5)).astype("f4"))
        i, u = eager.constant(rng.integers(0, 5, (3, 4, 2))), eager.constant(rng.standard_normal((3, 4, 2)).astype("f4"))
        each = eager.vmap(lambda k, w: eager.put_along_axis(x, k, w, mode="add"))(i, u)
        for b in range(3):
            np.testing.assert_array_equal(each[b].numpy(), eager.put_along_axis(x, i[b], u[b], mode="add").numpy())

    def test_unique_of_long_rows(self):
        rng = np.random.default_rng(4)
        for dtype in ("f4", "f8", "i4", "u1", "i1", "bool"):
            for x in (rng.integers(0, 2, 70_000), rng.integers(0, 100, (300, 7)), rng.permutation(5000)):
                x = x.astype(dtype)
                for a, b in zip(eager.unique(eager.constant(x), True, True, True), np.unique(x, True, True, True)):
                    np.testing.assert_array_equal(a.numpy().reshape(-1), b.reshape(-1))
                np.testing.assert_array_equal(eager.unique(eager.constant(x)).numpy(), np.unique(x))

    def test_unique(self):
        x = RNG.integers(0, 50, (70, 80)).astype("float32")
        for a, b in zip(eager.unique(eager.constant(x), True, True, True), np.unique(x, True, True, True)):
            np.testing.assert_array_equal(a.numpy().ravel(), b.ravel())
        np.testing.assert_array_equal(eager.unique(eager.constant(x)).numpy(), np.unique(x))


class Windows(unittest.TestCase):
    def pooled(self, x, size, stride, pad, f, fill):
        x = np.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)], constant_values=fill)
        w = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))[:, ::stride, ::stride]
        return f(w, axis=(-2, -1))

    def test_pooling(self):
        x = RNG.standard_normal((2, 9, 11, 5)).astype("float32")
        for size, stride, pad in [(2, 1, 0), (3, 2, 1), (3, 1, 1), (7, 1, 0)]:
            with self.subTest(size=size, stride=stride, pad=pad):
                t = eager.constant(x)
                np.testing.assert_array_equal(eager.max_pool2d(t, size, stride=stride, padding=pad).numpy(), self.pooled(x, size, stride, pad, np.max, -np.inf))
                np.testing.assert_allclose(eager.avg_pool2d(t, size, stride=stride, padding=pad).numpy(), self.pooled(x, size, stride, pad, np.mean, 0), rtol=1e-5, atol=1e-6)

    def test_depthwise(self):
        x, f = RNG.standard_normal((2, 8, 9, 6)).astype("float32"), RNG.standard_normal((3, 3, 1, 6)).astype("float32")
        bias = RNG.standard_normal(6).astype("float32")
        for stride, pad in [(1, 1), (2, 0)]:
            got = eager.conv2d(eager.constant(x), eager.constant(f), stride=stride, padding=pad, groups=6, bias=eager.constant(bias))
            framed = np.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)])
            w = np.lib.stride_tricks.sliding_window_view(framed, (3, 3), (1, 2))[:, ::stride, ::stride]
            np.testing.assert_allclose(got.numpy(), np.einsum("nhwcij,ijc->nhwc", w, f[:, :, 0]) + bias, rtol=1e-4, atol=1e-5)


class Numbers(unittest.TestCase):
    def test_reductions_of_all(self):
        for n in (10**6, 2**20 + 1, 70000, 65537):
            x = RNG.integers(0, 255, n).astype("uint8")
            t = eager.constant(x)
            self.assertEqual(int(eager.reduce_max(t).item()), x.max())
            self.assertEqual(int(eager.count_nonzero(t).item()), np.count_nonzero(x))
            self.assertEqual(int(eager.sum(t).item()), int(x.sum(dtype=np.int64)))

    def test_erf_is_within_one_unit(self):
        x = np.concatenate([np.linspace(0.79, 0.83, 20000), np.linspace(0, 5, 20000)]).astype("float32")
        want = np.array([math.erf(v) for v in x.astype("float64")])
        off = np.abs(eager.erf(eager.constant(x)).numpy().astype("float64") - want) / np.spacing(want.astype("float32") + np.float32(1e-38)).astype("float64")
        self.assertLessEqual(off.max(), 1)

    def test_logarithms_of_everything(self):
        special = np.array([0.0, -0.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 1e-45, 1.0, 3e38], "float32")
        for n in (1, 8, 16, 37):
            x = np.resize(special, n)
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(eager.log(eager.constant(x)).numpy(), np.log(x), rtol=2e-7)
                np.testing.assert_allclose(eager.rsqrt(eager.constant(x)).numpy(), 1 / np.sqrt(x.astype("float64")), rtol=2e-7)


if __name__ == "__main__":
    unittest.main()
