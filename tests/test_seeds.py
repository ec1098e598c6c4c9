"""The seeds' examples, word for word, on every device."""

import unittest

import numpy as np
from support import DEVICES, ROOT, backend, python

import eas
from eas import mk


@eas.kernel
def add_kernel(a, b, c, N, BLOCK: eas.constexpr):
    pid = mk.program_id(0)
    offs = pid * BLOCK + mk.arange(0, BLOCK)
    mask = offs < N
    mk.store(c, offs, mk.load(a, offs, mask) + mk.load(b, offs, mask), mask)


class QuickStart(unittest.TestCase):
    def test_add(self):
        for device in DEVICES:
            with self.subTest(device), backend(device):
                n = 1024 + 7
                a = np.random.randn(n).astype(np.float32)
                b = np.random.randn(n).astype(np.float32)
                c = np.zeros_like(a)

                add_kernel(a, b, c, n, BLOCK=256)
                np.testing.assert_array_equal(c, a + b)
                self.assertIn("kernel", add_kernel.to_msl(a, b, c, n, BLOCK=256))

    def test_device_tensors(self):
        for device in DEVICES:
            with self.subTest(device):
                n = 1 << 12
                x = np.random.randn(n).astype(np.float32)
                a = eas.tensor(x, device=device)
                b = eas.tensor(np.random.randn(n).astype(np.float32), device=device)
                c = eas.empty_like(a)

                add_kernel(a, b, c, n, BLOCK=256)
                out = c.numpy()
                np.testing.assert_array_equal(out, x + b.numpy())
                self.assertEqual(c.device, device)

    def test_example_module_runs(self):
        for device in DEVICES:
            r = python("import runpy; runpy.run_module('examples.add', run_name='__main__')", env={"EAS_BACKEND": device}, cwd=ROOT)
            self.assertIn("c == a + b: True", r.stdout)
            self.assertIn("#include <metal_stdlib>", r.stdout)

    def test_more_examples_run(self):
        r = python("import examples.saxpy, examples.matmul_tiled as m; examples.saxpy.main(1000); m.main(64)", cwd=ROOT)
        self.assertIn("largest error", r.stdout)


class Torch(unittest.TestCase):
    def setUp(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        self.torch = torch

    def test_torch_to_eas_shares_memory(self):
        torch = self.torch
        a = torch.randn(1024, device="cpu", dtype=torch.float32)
        a_e = eas.tensor(a, device="cpu")
        a[3] = 42
        self.assertEqual(a_e.numpy()[3], 42)

    def test_back_to_torch_shares_memory(self):
        x_e = eas.tensor(np.arange(8, dtype=np.float32))
        t = x_e.to_torch("cpu")
        t[0] = 7
        self.assertEqual(x_e.numpy()[0], 7)
        self.assertEqual(eas.to_torch(x_e).data_ptr(), t.data_ptr())

    def test_dlpack(self):
        x = self.torch.randn(1024, device="cpu", dtype=self.torch.float32)
        y = eas.from_dlpack(x)
        z = eas.to_dlpack(y)
        back = self.torch.utils.dlpack.from_dlpack(z)
        self.assertEqual(back.data_ptr(), x.data_ptr())

    def test_kernel_takes_torch_tensors(self):
        a, b = self.torch.randn(100), self.torch.randn(100)
        c = self.torch.zeros(100)
        add_kernel(a, b, c, 100, BLOCK=32)
        self.assertTrue(self.torch.equal(c, a + b))
        h = self.torch.randn(100).bfloat16()
        g = self.torch.zeros(100, dtype=self.torch.bfloat16)
        add_kernel(h, h, g, 100, BLOCK=32)
        self.assertTrue(self.torch.equal(g, h + h))


if __name__ == "__main__":
    unittest.main()
