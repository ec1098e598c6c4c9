"""Plans of the CPU's code generator as text: tests/plans has kernels, each with the plan that it must get.
EAS_UPDATE_PLANS=1 writes them anew."""

import os
import pathlib
import unittest

from support import ROOT

import eas
from eas import ir

FOLDER = pathlib.Path(ROOT) / "tests" / "plans"
LINE = "---\n"


class Plans(unittest.TestCase):
    maxDiff = None

    def test_all(self):
        files = sorted(FOLDER.glob("*.txt"))
        self.assertGreaterEqual(len(files), 5)
        for path in files:
            text = path.read_text()
            kernel, _, want = text.partition(LINE)
            got = ir.parse(kernel).emit("plan")
            if os.environ.get("EAS_UPDATE_PLANS"):
                path.write_text(kernel + LINE + got)
                continue
            with self.subTest(plan=path.stem):
                self.assertEqual(got, want)

    def test_of_a_kernel(self):
        @eas.kernel
        def double(x, out, N, BLOCK: eas.constexpr):
            i = eas.mk.program_id(0) * BLOCK + eas.mk.arange(0, BLOCK)
            eas.mk.store(out, i, eas.mk.load(x, i, i < N, 0.0) * 2, i < N)

        import numpy as np

        a = np.zeros(100, np.float32)
        text = double.to_plan(a, a.copy(), 100, BLOCK=64)
        self.assertTrue(text.startswith("plan of double: programs of blocks"), text)
        self.assertIn("chunks of [64]", text)


if __name__ == "__main__":
    unittest.main()
