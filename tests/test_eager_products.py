"""Products of vectors and matrices, and convolutions: every layout, sizes that nothing divides, on every
device, and the same bits whatever the number of threads."""

import unittest

import numpy as np
from support import DEVICES, python

import eager
from eager import Tensor

SHAPES = [(1, 1024, 1024), (1, 1000, 100), (1, 513, 1100), (1, 1021, 70), (1, 17, 2500), (70, 256, 1), (67, 300, 1), (130, 5000, 1), (2, 300, 70), (3, 700, 130), (4, 256, 65), (1, 700, 1)]

BITS = """
import hashlib
import numpy as np
from eager import Tensor
rng, h = np.random.default_rng(0), hashlib.sha256()
for m, k, n in [(1, 2048, 300), (300, 2048, 1), (1, 700, 1500)]:
    x, y = (Tensor.from_dlpack(rng.standard_normal(s).astype("f4")) for s in ((m, k), (k, n)))
    h.update((x @ y).numpy().tobytes())
    h.update((y.T @ x.T).numpy().tobytes())
print(h.hexdigest())
"""


def tensors(m, k, n, dtype, device="cpu"):
    def on(x):
        return Tensor.constant(np.ascontiguousarray(x), device=device)

    rng = np.random.default_rng(m + k + n)
    x, y = ((rng.standard_normal(s) * 4).astype(dtype) for s in ((m, k), (k, n)))
    yield "as they are", x, y, on(x), on(y)
    yield "left by columns", x, y, on(x.T).T, on(y)
    yield "right by columns", x, y, on(x), on(y.T).T


class Thin(unittest.TestCase):
    def check(self, got, x, y, dtype, what):
        want = x.astype("f8") @ y.astype("f8")
        room = {"f4": 1e-5, "f8": 1e-13, "f2": 3e-3, "i4": 0}[dtype] * np.abs(want).max()
        np.testing.assert_allclose(got.astype("f8"), want, 0, room, what)

    def test_every_layout(self):
        for shape in SHAPES:
            for dtype in ("f4", "f8", "f2", "i4"):
                for how, x, y, a, b in tensors(*shape, dtype):
                    self.check((a @ b).numpy(), x, y, dtype, f"{shape} {dtype} {how}")

    def test_devices_agree(self):
        for shape in SHAPES[:10]:
            results = {}
            for device in DEVICES:
                results[device] = [(a @ b + 1).numpy().tobytes() for *_, a, b in tensors(*shape, "f4", device)]
            first = next(iter(results.values()))
            for device, r in results.items():
                self.assertEqual(r, first, f"{shape} on {device}")

    def test_batches(self):
        rng = np.random.default_rng(0)
        for m, k, n in [(1, 1024, 100), (100, 300, 1)]:
            x, y = rng.standard_normal((3, m, k)).astype("f4"), rng.standard_normal((3, k, n)).astype("f4")
            for a, b in ((x, y), (x, y[0]), (x[0], y)):
                np.testing.assert_allclose((Tensor.from_dlpack(a) @ Tensor.from_dlpack(b)).numpy(), a @ b, 1e-3, 1e-3)

    def test_bits_do_not_depend_on_threads(self):
        said = {python(BITS, env={"EAS_NUM_THREADS": str(n), "EAS_BACKEND": "cpu"}).stdout for n in (1, 2, 5)}
        self.assertEqual(len(said), 1, said)

    def test_rows_of_memory_are_summed_in_one_step(self):
        w, v = Tensor.from_dlpack(np.ones((600, 1024), "f4")), Tensor.from_dlpack(np.ones(1024, "f4"))
        for f in (lambda: v @ w.T, lambda: w @ v):
            f().realize()
            before = eager.stats()["steps"]
            self.assertEqual(f().numpy().tolist(), [1024.0] * 600)
            self.assertEqual(eager.stats()["steps"] - before, 1)


def convolved(x, f, stride, dilation, pad):
    """Tap by tap, in f64."""
    x, f = np.pad(x.astype("f8"), ((0, 0), (pad, pad), (pad, pad), (0, 0))), f.astype("f8")
    n, m = ((x.shape[1 + i] - dilation[i] * (f.shape[i] - 1) - 1) // stride[i] + 1 for i in range(2))
    taps = [
        x[:, i * dilation[0] :: stride[0], j * dilation[1] :: stride[1]][:, :n, :m] @ f[i, j] for i in range(f.shape[0]) for j in range(f.shape[1])
    ]
    return sum(taps)


# image, filter, stride, dilation, padding
CONVOLUTIONS = [
    ((2, 9, 14, 3), (3, 3, 3, 32), (1, 1), (1, 1), 1),
    ((1, 8, 31, 5), (3, 5, 5, 70), (1, 2), (2, 1), 2),  # 29 and 15 pixels: nothing divides them; two strips of channels
    ((2, 7, 40, 4), (1, 3, 4, 9), (2, 1), (1, 1), 0),
    ((3, 6, 6, 17), (1, 1, 17, 2), (1, 1), (1, 1), 0),
    ((1, 9, 9, 3), (3, 3, 3, 4), (1, 1), (1, 2), 0),  # apart across: windows are copied
    ((2, 5, 23, 1), (2, 2, 1, 3), (1, 1), (1, 1), 1),
    ((1, 4, 19, 8), (4, 19, 8, 6), (1, 1), (1, 1), 0),
]


class Convolutions(unittest.TestCase):
    def test_windows_of_every_shape(self):
        rng = np.random.default_rng(0)
        for image, taps, stride, dilation, pad in CONVOLUTIONS:
            x, f = rng.standard_normal(image).astype("f4"), rng.standard_normal(taps).astype("f4")
            bias = rng.standard_normal(taps[-1]).astype("f4")
            want, results = np.maximum(convolved(x, f, stride, dilation, pad) + bias, 0), {}
            for device in DEVICES:
                a, b, c = (Tensor.constant(v, device=device) for v in (x, f, bias))
                results[device] = eager.conv2d(a, b, stride=stride, dilation=dilation, padding=pad, bias=c).relu().numpy()
                np.testing.assert_allclose(results[device], want, 1e-4, 1e-4, f"{image} {taps} on {device}")
            self.assertEqual(len({r.tobytes() for r in results.values()}), 1, f"{image} {taps}")

    def test_of_something_computed(self):
        rng = np.random.default_rng(1)
        x, f = rng.standard_normal((2, 8, 20, 6)).astype("f4"), rng.standard_normal((3, 3, 6, 8)).astype("f4")
        a, b = Tensor.constant(x), Tensor.constant(f)
        h = (a * 2).relu()
        got = eager.conv2d(h, b, padding=1) + eager.conv2d(h, b * 2, padding=1)
        np.testing.assert_allclose(got.numpy(), 3 * convolved(np.maximum(2 * x, 0), f, (1, 1), (1, 1), 1), 1e-4, 1e-3)

    def test_windows_are_not_copied(self):
        x, f = Tensor.constant(np.ones((1, 6, 30, 4), "f4")), Tensor.constant(np.ones((3, 3, 4, 5), "f4"))
        for pad, steps in ((0, 1), (1, 2)):  # a border is a copy
            eager.conv2d(x, f, padding=pad).realize()
            before = eager.stats()["steps"]
            eager.conv2d(x, f, padding=pad).realize()
            self.assertEqual(eager.stats()["steps"] - before, steps)


if __name__ == "__main__":
    unittest.main()
