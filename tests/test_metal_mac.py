"""The smoke test for a real Mac: what the stand-in cannot show. Elsewhere there is nothing to run."""

import os
import sys
import unittest

import numpy as np

import eas
from eas import mk


@eas.kernel
def matmul(a, b, c, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr, BLOCK: eas.constexpr):
    mk.tid(0, BLOCK)
    row, col = mk.program_id(1) * 8, mk.program_id(0) * 8
    acc = mk.mma_zero()
    for k in range(0, K, 8):
        acc = mk.mma(a, row * K + k, K, b, k * N + col, N, acc)
    mk.mma_store(c, row * N + col, N, acc)


@eas.kernel
def elementwise(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    v = mk.load(x, i, m)
    mk.store(y, i, mk.exp(v) / (1 + mk.sqrt(mk.abs(v))) + mk.sin(v) * mk.erf(v), m)


@unittest.skipUnless(sys.platform == "darwin" and not os.environ.get("EAS_METAL_LIBRARY"), "only a Mac has Metal itself")
class Mac(unittest.TestCase):
    def run_both(self, kernel, *args, **kw):
        results = []
        for device in ("ref", "mps"):
            moved = [eas.tensor(a, device=device) if isinstance(a, np.ndarray) else a for a in args]
            kernel(*moved, **kw)
            results.append([t.numpy() for t in moved if isinstance(t, eas.Tensor)])
        for want, got in zip(*results):
            self.assertEqual(want.tobytes(), got.tobytes())

    def test_the_device(self):
        name, about, why = next(d for d in eas._eas.devices() if d[0] == "mps")
        self.assertIsNone(why)
        self.assertIn("Apple", about)

    def test_functions_bit_by_bit(self):
        x = np.random.default_rng(0).normal(size=10000).astype(np.float32) * 10
        self.run_both(elementwise, x, np.zeros_like(x), 10000, BLOCK=256)

    def test_matrices(self):
        rng = np.random.default_rng(1)
        for dtype in (np.float32, np.float16):
            a, b = (rng.integers(-8, 8, (64, 64)).astype(dtype) for _ in range(2))
            self.run_both(matmul, a, b, np.zeros((64, 64), np.float32), M=64, N=64, K=64, BLOCK=32, _grid=(8, 8))

    def test_the_tool(self):
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools"))
        import build_metal_ext

        self.assertEqual(build_metal_ext.main(), 0)

    def test_torch_hands_over(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        if not torch.backends.mps.is_available():
            self.skipTest("this torch has no mps")
        t = torch.arange(100, dtype=torch.float32, device="mps")
        x = eas.from_torch(t)
        self.assertEqual(x.device, "mps")
        self.assertEqual(x.numpy().tolist(), list(range(100)))


if __name__ == "__main__":
    unittest.main()
