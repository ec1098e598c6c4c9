"""What acts while a kernel is traced: static_assert, static_print, assume, multiple_of, and @eas.fn."""

import contextlib
import io
import linecache
import unittest

import numpy as np
from support import each

import eas
from eas import mk


def trace(body):
    eas.kernel(body)(np.zeros(4, np.float32), 4, 4, _grid=1)


class Hints(unittest.TestCase):
    def test_static_assert(self):
        def k(out, N, B: eas.constexpr):
            mk.static_assert(B == 4)
            mk.static_assert(B % 8 == 0, f"B must be a multiple of 8, got {B}")  # WRONG

        with self.assertRaisesRegex(AssertionError, "multiple of 8, got 4") as caught:
            trace(k)
        self.assertIn("# WRONG", linecache.getline(__file__, int(str(caught.exception).split(":")[1])))

        def unknown(out, N, B: eas.constexpr):
            mk.static_assert(N > 0)

        with self.assertRaisesRegex(TypeError, "constexpr"):
            trace(unknown)

    def test_static_print(self):
        @eas.kernel
        def k(out, N, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.static_print("B is", B, i * 0.5, sep=" | ", end="!\n")
            mk.store(out, i, 1.0)

        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            for _ in range(3):
                k(np.zeros(4, np.float32), 4, 4, _grid=1)
        self.assertRegex(text.getvalue(), r"^B is \| 4 \| <v\d+: f32\(4,\)>!\n$", "once: it is traced once")

    def test_hints_are_identities(self):
        @eas.kernel
        def k(out, N, B: eas.constexpr):
            n = mk.multiple_of(N, 4)
            self.assertIs(n, N)
            self.assertEqual(mk.multiple_of(12, 4), 12)
            self.assertTrue(mk.assume(True))
            mk.assume(N > 0)
            i = mk.arange(0, B)
            mk.store(out, i, mk.multiple_of(i * n, 4))

        (out,) = each(self, k, np.zeros(4, np.float32), 4, 4, _grid=1)
        np.testing.assert_array_equal(out, np.arange(4) * 4)

    def test_hints_check_their_arguments(self):
        for f, error, text in (
            (lambda n: mk.multiple_of(n, 0), ValueError, "at least 1"),
            (lambda n: mk.multiple_of(n, n), TypeError, "constexpr"),
            (lambda n: mk.multiple_of(n * 0.5, 2), TypeError, "integer"),
            (lambda n: mk.multiple_of(7, 2), ValueError, "7 is not a multiple of 2"),
            (lambda n: mk.assume(n), TypeError, "condition"),
            (lambda n: mk.assume(False), ValueError, "false"),
        ):

            def k(out, N, B: eas.constexpr):
                f(N)  # noqa: B023

            with self.assertRaisesRegex(error, text):
                trace(k)

    def test_outside_a_trace(self):
        for f in (lambda: mk.static_print("x"), lambda: mk.assume(True), lambda: mk.multiple_of(4, 2), lambda: mk.sum(3), lambda: mk.rand(0, 0)):
            with self.assertRaisesRegex(RuntimeError, "@eas.kernel"):
                f()


@eas.fn
def twice(x, by: float = 2.0):
    """Doubles."""
    return x * by


class Functions(unittest.TestCase):
    def test_inlines(self):
        @eas.kernel
        def k(out, N, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(out, i, twice(i) + twice(i, by=0.5))

        (out,) = each(self, k, np.zeros(4, np.float32), 4, 4, _grid=1)
        np.testing.assert_array_equal(out, np.arange(4) * 2.5)

    def test_keeps_the_function(self):
        self.assertEqual((twice.__name__, twice.__doc__), ("twice", "Doubles."))
        self.assertEqual(twice.__wrapped__(3), 6)

    def test_outside_a_trace(self):
        with self.assertRaisesRegex(RuntimeError, "test_hints.py:[0-9]+: 'twice'.*@eas.kernel"):
            twice(3)


if __name__ == "__main__":
    unittest.main()
