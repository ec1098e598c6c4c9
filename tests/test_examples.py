"""Every example runs, checks itself, and says so in one line (the quick start and the older ones print what
they show)."""

import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

from support import DEVICES, ROOT, python

import eas

NAMES = sorted(f[:-3] for f in os.listdir(os.path.join(ROOT, "examples")) if f.endswith(".py") and f[0] != "_" and f != "examples.py")
if not importlib.util.find_spec("torch"):
    NAMES.remove("train_torch")
RUN = "import runpy, sys; name = sys.argv[1]; sys.argv[:] = sys.argv[1:]; runpy.run_module('examples.' + name, run_name='__main__', alter_sys=False)"
TALKATIVE = {"add", "saxpy"}
SLOW_ON_REF = {"matmul_tiled", "saxpy"}  # they have one size
CPU_ONLY = {"minilm"}  # a real network: its few dozen large kernels take a minute to compile by PoCL


class Examples(unittest.TestCase):
    def run_example(self, name, device, *args):
        out = python(RUN, name, *args, env={"EAS_BACKEND": device, "EAS_EXAMPLES_SMALL": "1", "PYTHONWARNINGS": "error"}, cwd=ROOT).stdout
        if name not in TALKATIVE:
            self.assertEqual(out.count("\n"), 1, out)
        return out

    def test_all(self):
        self.assertGreaterEqual(set(NAMES), {"add", "softmax", "layernorm", "mandelbrot", "dropout", "prefix_sum", "histogram", "nbody", "stencil"})
        with tempfile.TemporaryDirectory() as folder:
            for name in NAMES:
                for device in DEVICES:
                    if (device == "ref" and name in SLOW_ON_REF) or (device != "cpu" and name in CPU_ONLY):
                        continue
                    args = [os.path.join(folder, "out.png")] if name == "mandelbrot" else []
                    with self.subTest(example=name, device=device):
                        self.run_example(name, device, *args)

    def test_as_scripts(self):
        """From any folder, by path; add and softmax stand for all: they import the same."""
        env = {"EAS_EXAMPLES_SMALL": "1", "PYTHONPATH": os.path.dirname(os.path.dirname(eas.__file__))}
        for name in ("add", "softmax", "histogram"):
            path = os.path.join(ROOT, "examples", name + ".py")
            r = subprocess.run([sys.executable, path], env={**os.environ, **env}, cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=300)
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            self.assertIn(" ms", r.stdout)

    def test_every_one_is_timed_against_others(self):
        for name in NAMES:
            with open(os.path.join(ROOT, "examples", name + ".py")) as f:
                text = f.read()
            self.assertTrue("peers(" in text or name == "train_torch", name)
            self.assertRegex(text, "assert|testing", name)

    def test_png(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.png")
            self.assertIn(path, self.run_example("mandelbrot", "ref", path))
            with open(path, "rb") as f:
                data = f.read()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        w, h = struct.unpack(">II", data[16:24])
        at = data.index(b"IDAT")
        length = struct.unpack(">I", data[at - 4 : at])[0]
        body = data[at + 4 : at + 4 + length]
        self.assertEqual(struct.unpack(">I", data[at + 4 + length : at + 8 + length])[0], zlib.crc32(b"IDAT" + body))
        self.assertEqual(len(zlib.decompress(body)), h * (1 + 3 * w))


if __name__ == "__main__":
    unittest.main()
