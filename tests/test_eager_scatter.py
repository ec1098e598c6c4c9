"""Updates at indices: in their order, large and small, along any axis, on every device; a bad index is an
error wherever it points."""

import unittest

import numpy as np
from support import DEVICES

import eager
from eager import Tensor

JOIN = {"set": lambda a, b: b, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
# shape, axis, how many indices; from 65536 elements on the copy is a kernel of its own
CASES = [
    ((8,), 0, 20),
    ((70000,), 0, 3000),
    ((66000, 1), 0, 100),
    ((5000, 16), 0, 900),
    ((300, 300), 1, 200),
    ((500, 150), 0, 700),
    ((7, 100, 130), 1, 50),
    ((2, 3, 12000), 2, 999),
]


def wanted(x, index, updates, axis, mode):
    out, updates = np.moveaxis(x.copy(), axis, 0), np.moveaxis(updates, axis, 0)
    for i, u in zip(index, updates, strict=True):
        out[i] = JOIN[mode](out[i], u)
    return np.moveaxis(out, 0, axis)


class Scatter(unittest.TestCase):
    def inputs(self, shape, axis, count, dtype="f4"):
        rng = np.random.default_rng(len(shape) + count)
        x, u = ((rng.standard_normal(s) * 5).astype(dtype) for s in (shape, (*shape[:axis], count, *shape[axis + 1 :])))
        return x, rng.integers(-shape[axis], shape[axis], count), u

    def test_every_mode_in_the_order_of_indices(self):
        for shape, axis, count in CASES:
            x, i, u = self.inputs(shape, axis, count)
            for mode in JOIN:
                got = eager.scatter(Tensor.constant(x), Tensor.constant(i), Tensor.constant(u), axis=axis, mode=mode)
                np.testing.assert_array_equal(got.numpy(), wanted(x, i, u, axis, mode), f"{shape} {mode}")

    def test_devices_agree(self):
        for shape, axis, count in (CASES[1], CASES[3], CASES[6]):
            x, i, u = self.inputs(shape, axis, count)
            for device in DEVICES:
                a, j, v = (Tensor.constant(t, device=device) for t in (x, i, u))
                got = eager.scatter(a, j, v, axis=axis, mode="add").numpy()
                np.testing.assert_array_equal(got, wanted(x, i, u, axis, "add"), f"{shape} on {device}")

    def test_of_something_computed(self):
        x, i, u = self.inputs((300, 300), 0, 200)
        for a in (Tensor.constant(np.ascontiguousarray(x.T)).T, Tensor.constant(x) * 1.0, Tensor.constant(np.tile(x, (1, 2)))[:, :300]):
            np.testing.assert_array_equal(a.at[Tensor.constant(i)].add(Tensor.constant(u)).numpy(), wanted(x, i, u, 0, "add"))
        zeros = Tensor.zeros((300, 300)).at[Tensor.constant(i)].add(Tensor.constant(u))
        np.testing.assert_array_equal(zeros.numpy(), wanted(np.zeros_like(x), i, u, 0, "add"))

    def test_a_bad_index_is_an_error(self):
        for device in DEVICES:
            for shape in ((70000,), (5, 3)):
                n = shape[0]
                for bad in (n, -n - 1, 1 << 40):
                    i = Tensor.constant(np.array([0, bad, 1]), device=device)
                    with self.subTest(device=device, shape=shape, bad=bad), self.assertRaisesRegex(IndexError, "an index is out of range"):
                        Tensor.constant(np.zeros(shape, "f4"), device=device).at[i].add(1.0).realize()


if __name__ == "__main__":
    unittest.main()
