"""Products of vectors and matrices: every layout, sizes that nothing divides, on every device, and the same bits whatever the number of threads."""

import unittest

import numpy as np
from support import DEVICES, python

import eager
from eager import Tensor

SHAPES = [(1, 1024, 1024), (1, 1000, 100), (1, 513, 1100), (1, 1021, 70), (1, 17, 2500), (70, 256, 1), (67, 300, 1), (130, 5000, 1), (1, 700, 1)]

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
        for shape in SHAPES[:7]:
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


if __name__ == "__main__":
    unittest.main()
