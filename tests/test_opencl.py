"""What is OpenCL's own: finding a device, building programs, what goes wrong there."""

import os
import tempfile
import unittest

import numpy as np
import support
from test_streams import add, pair

import eas
from eas import mk

HERE = "opencl" in support.DEVICES


@eas.kernel
def product(a, b, c, AT):
    mk.tid(0, 32)
    acc = mk.mma(a, AT, 8, b, 0, 8, mk.mma_zero())
    mk.mma_store(c, 0, 8, acc)


def child(code, check=True, **env):
    head = "import numpy as np, eas, os\nfrom eas import mk\nfrom test_streams import add, pair\na, b, c = pair()\n"
    return support.python(head + code, env={"EAS_BACKEND": "opencl", **env}, timeout=60, check=check)


class Missing(unittest.TestCase):
    def reason(self, **env):
        code = """
assert not eas.runtime.Runtime("opencl").is_available()
for f in (lambda: add(a, b, c, 1000, BLOCK=128), lambda: eas.zeros(3, device="opencl"), lambda: eas.Stream("opencl"),
          lambda: eas.runtime.get_runtime("opencl")):
    try:
        f()
    except RuntimeError as e:
        print(e)
    else:
        raise AssertionError("no error")
add(eas.tensor(a), eas.tensor(b), eas.tensor(c, device="ref").to("cpu"), 1000, BLOCK=128) if os.environ.pop("EAS_BACKEND") else None
"""
        return child(code, **env).stdout

    def test_no_loader(self):
        self.assertEqual(self.reason(EAS_OPENCL_LIBRARY="/nowhere/libOpenCL.so").count("no OpenCL loader"), 4)

    @unittest.skipUnless(HERE, "no OpenCL device")
    def test_no_such_device(self):
        self.assertEqual(self.reason(EAS_OPENCL_DEVICE="abacus").count("EAS_OPENCL_DEVICE=abacus: none of the"), 4)


@unittest.skipUnless(HERE, "no OpenCL device")
class Programs(unittest.TestCase):
    def test_a_program_that_does_not_build_names_the_line(self):
        code = """
try:
    add(a, b, c, 1000, BLOCK=128)
except RuntimeError as e:
    print(e)
assert (c == 0).all()
"""
        out = child(code, EAS_OPENCL_OPTIONS="-Dget_global_id=)", EAS_CACHE_DIR="off").stdout
        self.assertRegex(out, r"test_streams\.py:\d+: kernel add: the OpenCL compiler refused it: [^$]*expected expression")

    def test_programs_are_kept_on_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "add(a, b, c, 1000, BLOCK=128); assert (c == a + b).all(); print(eas.stats()['compiles'], eas.stats()['disk_hits'])"
            self.assertEqual(child(code, EAS_CACHE_DIR=folder).stdout.split(), ["1", "0"])
            self.assertEqual(child(code, EAS_CACHE_DIR=folder).stdout.split(), ["0", "1"])
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), "r+b") as f:
                    f.seek(200)
                    f.write(b"spoilt")
            self.assertEqual(child(code, EAS_CACHE_DIR=folder).stdout.split(), ["1", "0"])

    def test_a_grid_that_is_too_large(self):
        a, b, c = pair(device="opencl")
        with self.assertRaisesRegex(ValueError, "OpenCL counts in 32 bits"):
            add(a, b, c, 1000, BLOCK=128, _grid=1 << 33)

    def test_wide_launches(self):
        """An index that needs 64 bits is computed in 64 bits."""

        @eas.kernel
        def far(out, FROM, BLOCK: eas.constexpr):
            i = mk.arange(0, BLOCK)
            mk.store(out, i, (FROM + i) // 3)

        out = np.zeros(8, np.int64)
        for start in (5, 1 << 40):
            with support.backend("opencl"):
                far(out, start, BLOCK=8, _grid=1)
            np.testing.assert_array_equal(out, (start + np.arange(8)) // 3)

    def test_texts_for_cpus_and_for_gpus(self):
        """A CPU gets vectors as wide as its own and one item per group; every other text must mean the same.
        """
        for lanes in ("", "0", "4", "8", "16"):
            with self.subTest(lanes=lanes):
                r = support.python("import opencl_texts\nopencl_texts.main()", env={"EAS_OPENCL_LANES": lanes}, timeout=300)
                self.assertRegex(r.stdout, r"^\d+ the same$")


class Matrices(unittest.TestCase):
    def test_unproved_ones_are_interpreted(self):
        for device in support.DEVICES:
            with self.subTest(device=device):
                a = eas.tensor(np.arange(64, dtype=np.float32), device=device)
                b = eas.tensor(np.eye(8, dtype=np.float32).ravel(), device=device)
                c = eas.zeros(64, device=device)
                product(a, b, c, 0, _grid=1)
                np.testing.assert_array_equal(c.numpy(), np.arange(64))
                with self.assertRaisesRegex(IndexError, r"test_opencl\.py:\d+.*out of bounds"):
                    product(a, b, c, 8, _grid=1)
                c.copy_from(np.zeros(64, np.float32))
                product(a, b, c, 0, _grid=1, _debug=True)  # checked, so interpreted
                np.testing.assert_array_equal(c.numpy(), np.arange(64))
