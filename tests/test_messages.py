"""Mistakes of a first week: what is raised is in the user's words, has the user's line, and names what of mk
to write."""

import math
import unittest

import numpy as np

import eas
from eas import mk


class Messages(unittest.TestCase):
    def says(self, f, pattern, error=TypeError):
        @eas.kernel
        def k(x, out, n):
            f(mk.load(x, mk.arange(0, 4)), x, n)

        with self.assertRaisesRegex(error, rf"test_messages.py:\d+: .*{pattern}"):
            k(np.ones(4, "f4"), np.ones(4, "f4"), 4, _grid=1)

    def test_numpy(self):
        self.says(lambda v, x, n: np.exp(v), r"np\.exp .*mk\.exp")
        self.says(lambda v, x, n: np.maximum(v, 0), r"mk\.maximum")
        self.says(lambda v, x, n: np.sum(v), r"mk\.sum")
        self.says(lambda v, x, n: np.absolute(v), r"mk\.abs")
        self.says(lambda v, x, n: np.exp(mk.var(v)), r"mk\.exp")

    def test_math(self):
        self.says(lambda v, x, n: math.sqrt(v), r"mk\.sqrt")
        self.says(lambda v, x, n: math.exp(n), r"mk\.exp")
        self.says(lambda v, x, n: math.floor(n), r"mk\.floor")
        self.says(lambda v, x, n: round(v), r"mk\.round")

    def test_builtins(self):
        self.says(lambda v, x, n: max(v, 0.0), r"mk\.maximum")
        self.says(lambda v, x, n: min(n, 3), r"mk\.minimum")

    def test_buffers(self):
        self.says(lambda v, x, n: len(x), r"x\.shape\[0\]")
        self.says(lambda v, x, n: x[0, 0], "has 1 dims and gets 2 indices", IndexError)
        self.says(lambda v, x, n: x + 1, r"mk\.load\(x")

    def test_formats(self):
        self.says(lambda v, x, n: f"{v:.2f}", r"mk\.print")
        self.says(lambda v, x, n: f"{mk.var(n):d}", r"mk\.print")

    def test_formats_by_percent(self):
        self.says(lambda v, x, n: "%d" % n, r"mk\.print", ValueError)
        self.says(lambda v, x, n: "%x of %d" % (n, 3), r"mk\.print", ValueError)
        self.says(lambda v, x, n: "%.2f" % v, r"mk\.print", ValueError)
        self.says(lambda v, x, n: "%i" % mk.var(n), r"mk\.print", ValueError)
        self.says(lambda v, x, n: int(n) % 3, r"mk\.cast")

    def test_texts_without_a_format(self):
        seen = []

        @eas.kernel
        def k(x, out, n):
            i = mk.arange(0, 4)
            v = mk.load(x, i)
            seen.extend([f"{v}", str(v), "%s" % v, f"{v!r}"])
            seen.extend([f"{n}", str(mk.var(v)), str(x)])
            mk.store(out, i, v)

        out = np.zeros(4, "f4")
        k(np.ones(4, "f4"), out, 4, _grid=1)
        np.testing.assert_array_equal(out, 1)
        self.assertEqual(len(set(seen[:4])), 1)
        for text, has in zip(seen, ["f32(4,)"] * 4 + ["i64()", "var", "buffer x"]):
            self.assertIn(has, text)

    def test_lanes(self):
        self.says(lambda v, x, n: sum(v), r"mk\.sum\(x\) in place of sum")
        self.says(lambda v, x, n: math.fsum(v), r"mk\.sum")
        self.says(lambda v, x, n: max(v), r"mk\.max\(x\) in place of max")
        self.says(lambda v, x, n: min(mk.var(v)), r"mk\.min\(x\)")
        self.says(lambda v, x, n: any(v > 0), r"mk\.any")
        self.says(lambda v, x, n: list(v), r"Work on the whole block")
        self.says(lambda v, x, n: len(v), r"x\.shape\[0\].*mk\.sum")
        self.says(lambda v, x, n: len(mk.var(v)), r"x\.shape\[0\]")

    def test_grid_in_brackets(self):
        @eas.kernel
        def k(out):
            mk.store(out, 0, 1.0)

        with self.assertRaisesRegex(TypeError, r"test_messages.py:\d+: .*k\(\.\.\., _grid=\(4,\)\)"):
            k[(4,)](np.zeros(1))

    def test_numpy_scalars_still_work(self):
        @eas.kernel
        def k(x, out):
            i = mk.arange(0, 4)
            v = mk.load(x, i)
            w = mk.var(v)
            mk.store(out, i, np.float32(2) * v + np.float32(1) - np.int32(3) / v + np.float32(2) * w + mk.where(np.float32(2) < v, 1.0, 0.0))

        out = np.zeros(4, "f4")
        x = np.arange(1, 5, dtype="f4")
        k(x, out, _grid=1)
        np.testing.assert_allclose(out, 2 * x + 1 - 3 / x + 2 * x + (x > 2), rtol=1e-6)


if __name__ == "__main__":
    unittest.main()
