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


class Eager(unittest.TestCase):
    """The examples on lazy tensors."""

    def test_philosophy(self):
        from eager import Tensor

        x = Tensor.ones((3, 4))
        y = x + x
        z = y.sum()
        self.assertFalse(z.real)
        self.assertEqual(z.numpy(), 24)

    def test_basic_usage(self):
        import asyncio

        import eager

        async def main():
            x = eager.Tensor.ones((3, 4))
            y = eager.Tensor.arange(12).reshape((3, 4))
            z = x + y  # Still symbolic!
            self.assertFalse(z.real)
            result = await z  # Compiles and executes here
            return result

        np.testing.assert_array_equal(asyncio.run(main()).numpy(), np.arange(12, dtype=np.float32).reshape(3, 4) + 1)

    def test_vmap(self):
        import eager
        from eager import vmap

        def process(x):
            return x * x + 1

        batched = vmap(process)
        result = batched(eager.Tensor.ones((10, 5)))  # Vectorized!
        np.testing.assert_array_equal(result.numpy(), np.full((10, 5), 2, np.float32))

    def test_compile(self):
        import eager
        from eager import compile

        @compile(dynamic_dims={0: {0: "batch"}})
        def model(x, W, b):
            return (x @ W + b).relu()

        x_5, x_10 = eager.Tensor.ones((5, 4)), eager.Tensor.ones((10, 4))
        W, b = eager.Tensor.ones((4, 2)), eager.Tensor.ones((2,))
        # Compiles once, works for any batch size
        y1 = model(x_5, W, b)  # Batch size 5
        y2 = model(x_10, W, b)  # Batch size 10 (cache hit!)
        self.assertEqual((y1.shape, y2.shape), ((5, 2), (10, 2)))
        self.assertEqual((model.stats.misses, model.stats.hits), (1, 1))
        self.assertTrue((y2.numpy() == 5).all())

    def test_modules(self):
        import importlib

        for folder, names in {
            "core": "tensor tensor_impl tracing context pytree compute_graph graph_utils",
            "ops": "operation binary unary creation reduction view multi_output _physical",
            "transforms": "vmap compile",
            "sharding": "spec",
        }.items():
            for name in names.split():
                module = importlib.import_module(f"eager.{folder}.{name}")
                self.assertTrue([n for n in vars(module) if not n.startswith("__")], f"eager.{folder}.{name} is empty")


if __name__ == "__main__":
    unittest.main()
