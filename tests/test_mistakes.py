"""Golden test of mistakes: each raises the right exception, says where and what, leaves outputs alone, and
the next launch works.

`where` is the text of the line that must be named: for mistakes in a kernel's body by the message
("file:line: ..."), for mistakes in a call by the innermost frame of the traceback, which must be the user's.
"""

import linecache
import os
import traceback
import unittest

import numpy as np
from support import DEVICES, backend

import eas
from eas import mk
from eas.ir import parse

HERE = os.path.abspath(__file__)


@eas.kernel
def good(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) + 1, i < N)


@eas.kernel
def two_d(out, H, BLOCK: eas.constexpr):
    mk.store(out, mk.program_id(1) + mk.arange(0, BLOCK), 1.0)


@eas.kernel
def no_n(x, out, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i))


def body(f):
    """A kernel whose body has the mistake, launched as the others are."""
    k = eas.kernel(rewrite=f.__name__ not in NOT_REWRITTEN)(f)
    return lambda x, out: k(x, out, 16, 16)


NOT_REWRITTEN = {"m_symbolic_if", "m_and", "m_range", "m_open_loop"}  # mistakes only where Python's statements are not the kernel's


def m_symbolic_if(x, out, N, B: eas.constexpr):
    if mk.arange(0, B) < N:  # WRONG
        mk.store(out, 0, 1.0)


def m_and(x, out, N, B: eas.constexpr):
    i = mk.arange(0, B)
    mk.store(out, i, 1.0, i < N and i > 2)  # WRONG


def m_range(x, out, N, B: eas.constexpr):
    for _ in range(N):  # WRONG
        pass


def m_index(x, out, N, B: eas.constexpr):
    mk.store(out, mk.arange(0, B), x[0, 0])  # WRONG


def m_assign(x, out, N, B: eas.constexpr):
    out[0.5] = 1.0  # WRONG


def m_buffer_math(x, out, N, B: eas.constexpr):
    mk.store(out, mk.arange(0, B), x + 1.0)  # WRONG


def m_store_scalar(x, out, N, B: eas.constexpr):
    mk.store(N, mk.arange(0, B), 1.0)  # WRONG


def m_load_number(x, out, N, B: eas.constexpr):
    mk.load(3, mk.arange(0, B))  # WRONG


def m_shapes(x, out, N, B: eas.constexpr):
    mk.store(out, mk.arange(0, B), mk.arange(0, B // 2) * 1.0)  # WRONG


def m_shapes_add(x, out, N, B: eas.constexpr):
    mk.arange(0, 8) + mk.arange(0, 16)  # WRONG


def m_float_offset(x, out, N, B: eas.constexpr):
    mk.load(x, mk.arange(0, B) * 0.5)  # WRONG


def m_mask_type(x, out, N, B: eas.constexpr):
    mk.load(x, mk.arange(0, B), mk.arange(0, B))  # WRONG


def m_no_common_dtype(x, out, N, B: eas.constexpr):
    mk.cast(1, mk.u64) + mk.cast(-1, mk.i64)  # WRONG


def m_shift_float(x, out, N, B: eas.constexpr):
    mk.load(x, mk.arange(0, B)) << 1  # WRONG


def m_axis(x, out, N, B: eas.constexpr):
    mk.program_id(3)  # WRONG


def m_axis_type(x, out, N, B: eas.constexpr):
    mk.program_id("x")  # WRONG


def m_arange_runtime(x, out, N, B: eas.constexpr):
    mk.arange(0, N)  # WRONG


def m_arange_empty(x, out, N, B: eas.constexpr):
    mk.arange(0, 0)  # WRONG


def m_unknown_dtype(x, out, N, B: eas.constexpr):
    mk.cast(N, "f33")  # WRONG


def m_unknown_argument(x, out, N, B: eas.constexpr):
    mk.load(x, 0, maks=True)  # WRONG


def m_missing_argument(x, out, N, B: eas.constexpr):
    mk.store(out, 0)  # WRONG


def m_both_modes(x, out, N, B: eas.constexpr):
    mk.store(out, mk.tid(0, B), 1.0)
    mk.store(out, mk.arange(0, B), 1.0)  # WRONG


def m_big_literal(x, out, N, B: eas.constexpr):
    mk.arange(0, B) + 2**64  # WRONG


def m_own_error(x, out, N, B: eas.constexpr):
    raise KeyError("mine")  # WRONG


def m_iterate(x, out, N, B: eas.constexpr):
    list(mk.arange(0, B))  # WRONG


def m_contains(x, out, N, B: eas.constexpr):
    3 in mk.arange(0, B)  # WRONG  # noqa: B015


def m_recursion(x, out, N, B: eas.constexpr):
    good(x, out, N, B)  # WRONG


def m_lane(x, out, N, B: eas.constexpr):
    mk.arange(0, B)["a"]  # WRONG


def m_open_loop(x, out, N, B: eas.constexpr):
    for _ in mk.range(N):
        break


def m_returns(x, out, N, B: eas.constexpr):
    return mk.arange(0, B)


def m_threadgroup_memory(x, out, N, B: eas.constexpr):
    t = mk.tid(0, B)
    s = mk.alloc_tg(1 << 20)
    mk.store(s, t, 1.0)
    mk.barrier()
    mk.store(out, t, mk.load(s, t))


# (name, exception, words that the message must have, where the line is: "body", "call" or None, the mistake)
BODY = [
    (m_symbolic_if, TypeError, ["mk.where", "constexpr"]),
    (m_and, TypeError, ["&"]),
    (m_range, TypeError, ["constexpr", "mk.range"]),
    (m_index, IndexError, ["'x'", "1 dims", "2 indices"]),
    (m_assign, TypeError, ["index", "0.5"]),
    (m_buffer_math, TypeError, ["'x'", "mk.load"]),
    (m_store_scalar, TypeError, ["mk.store", "'N'", "buffer"]),
    (m_load_number, TypeError, ["mk.load", "buffer", "3"]),
    (m_shapes, ValueError, ["shapes", "16", "8"]),
    (m_shapes_add, ValueError, ["shapes", "16", "8"]),
    (m_float_offset, TypeError, ["integer", "f32"]),
    (m_mask_type, TypeError, ["mask", "bool"]),
    (m_no_common_dtype, TypeError, ["u64", "i64", "cast"]),
    (m_shift_float, TypeError, ["f32"]),
    (m_axis, ValueError, ["axis", "3"]),
    (m_axis_type, TypeError, ["axis", "int"]),
    (m_arange_runtime, TypeError, ["size", "constexpr"]),
    (m_arange_empty, ValueError, ["0"]),
    (m_unknown_dtype, TypeError, ["f33", "mk.f32"]),
    (m_unknown_argument, TypeError, ["mk.load", "maks"]),
    (m_missing_argument, TypeError, ["mk.store", "value"]),
    (m_big_literal, OverflowError, ["64 bits"]),
    (m_iterate, TypeError, ["block"]),
    (m_contains, TypeError, ["=="]),
    (m_recursion, RuntimeError, ["good", "m_recursion"]),
    (m_lane, TypeError, ["index", "'a'"]),
]
A = np.arange(16, dtype=np.float32)
READ_ONLY = A.copy()
READ_ONLY.flags.writeable = False
MISALIGNED = np.zeros(65, np.uint8)[1:].view(np.float32)
CALLS = [
    ("stride", ValueError, ["'x'", "contiguous", "strides (8,)"], lambda x, out: good(np.zeros(32, np.float32)[::2], out, 16, 16)),
    ("transposed", ValueError, ["'x'", "contiguous"], lambda x, out: good(np.zeros((4, 4), np.float32).T, out, 16, 16)),
    ("read-only output", ValueError, ["out", "read-only"], lambda x, out: good(x, READ_ONLY, 16, 16)),
    ("read-only bytes", ValueError, ["out", "read-only"], lambda x, out: good(x, memoryview(bytes(64)).cast("f"), 16, 16)),
    ("byte order", ValueError, ["'x'", "byte order"], lambda x, out: good(x.astype(">f4"), out, 16, 16)),
    ("misaligned", ValueError, ["'x'", "aligned"], lambda x, out: good(MISALIGNED, out, 16, 16)),
    ("complex", TypeError, ["'x'", "complex"], lambda x, out: good(x.astype(complex), out, 16, 16)),
    ("object", TypeError, ["'x'", "object"], lambda x, out: good(x.astype(object), out, 16, 16)),
    ("a string", TypeError, ["'N'", "str"], lambda x, out: good(x, out, "16", 16)),
    ("a list", TypeError, ["'x'", "list"], lambda x, out: good([1.0], out, 16, 16)),
    ("None", TypeError, ["'out'", "NoneType"], lambda x, out: good(x, None, 16, 16)),
    ("scalar for array", TypeError, ["'x'", "buffer"], lambda x, out: good(1.0, out, 16, 16)),
    ("array for meta", TypeError, ["'BLOCK'", "ndarray"], lambda x, out: good(x, out, 16, x)),
    ("missing argument", TypeError, ["'N'"], lambda x, out: good(x, out, BLOCK=16)),
    ("missing meta", TypeError, ["'BLOCK'"], lambda x, out: good(x, out, 16)),
    ("too many", TypeError, ["4", "5"], lambda x, out: good(x, out, 16, 16, 16)),
    ("twice", TypeError, ["'N'"], lambda x, out: good(x, out, 16, 16, N=3)),
    ("unknown option", TypeError, ["_gird", "_grid"], lambda x, out: good(x, out, 16, 16, _gird=1)),
    ("N missing", ValueError, ["N"], lambda x, out: no_n(x, out, 16)),
    ("H, W missing", ValueError, ["W"], lambda x, out: two_d(out, 3, 16)),
    ("tptg", ValueError, ["_tptg", "(1, 1, 1)"], lambda x, out: good(x, out, 16, 16, _tptg=(16, 1, 1))),
    ("negative grid", ValueError, ["_grid", "-1"], lambda x, out: good(x, out, 16, 16, _grid=(-1,))),
    ("sync", TypeError, ["_sync", "bool"], lambda x, out: good(x, out, 16, 16, _sync=1)),
    ("nthreads", ValueError, ["_nthreads"], lambda x, out: good(x, out, 16, 16, _nthreads=-1)),
    ("huge int", OverflowError, ["'N'", "64 bits"], lambda x, out: good(x, out, 2**64, 16)),
    ("devices", ValueError, ["'out'", "ref", "cpu"], lambda x, out: good(eas.tensor(x), eas.tensor(out).to("ref"), 16, 16)),
    ("mk outside", RuntimeError, ["mk.arange", "@eas.kernel"], lambda x, out: mk.arange(0, 4)),
    ("a block that is too large", ValueError, [], lambda x, out: good(x, out, 16, 1 << 30)),
]


class Mistakes(unittest.TestCase):
    def catch(self, error, call, x, out):
        """assertRaises would drop the traceback."""
        try:
            call(x, out)
        except error as e:
            return e
        self.fail(f"no {error.__name__}")

    def check(self, error, words, call, line=None):
        for device in DEVICES:
            x, out = A.copy(), np.full(16, 7, np.float32)
            with backend(device):
                caught = self.catch(error, call, x, out)
                text = str(caught)
                for word in words:
                    self.assertIn(word, text)
                np.testing.assert_array_equal(out, 7, "the output was touched")
                if line is not None:
                    self.assertIn(f"{HERE}:{line}: ", text)
                frames = traceback.extract_tb(caught.__traceback__)
                self.assertEqual(os.path.abspath(frames[-1].filename), HERE, "the innermost frame is not the user's")
                good(x, out, 16, 16)
                np.testing.assert_array_equal(out, x + 1)

    def test_in_a_body(self):
        for f, error, words in BODY:
            first = f.__code__.co_firstlineno
            line = next(n for n in range(first, first + 9) if "# WRONG" in linecache.getline(HERE, n))
            with self.subTest(f.__name__):
                self.check(error, words, body(f), line)

    def test_own_exceptions_pass_through(self):
        self.check(KeyError, ["mine"], body(m_own_error))

    def test_in_a_whole_body(self):
        self.check(RuntimeError, ["mk.range", "line"], body(m_open_loop))
        self.check(TypeError, ["m_returns", "mk.store"], body(m_returns))
        self.check(TypeError, ["test_mistakes.py", "arange", "tid"], body(m_both_modes))

    def test_threadgroup_memory(self):
        k = eas.kernel(m_threadgroup_memory)
        x, out = A.copy(), np.full(16, 7, np.float32)
        try:
            k(x, out, 16, 16)
        except (ValueError, RuntimeError) as e:
            self.assertIn("threadgroup", str(e))
            np.testing.assert_array_equal(out, 7)

    def test_in_a_call(self):
        for name, error, words, call in CALLS:
            with self.subTest(name):
                self.check(error, words, call)

    def test_enough_of_them(self):
        self.assertGreaterEqual(len(BODY) + len(CALLS), 25)

    def test_malformed_ir(self):
        text = str(good.compile(A, A, 16, 16).ir)
        for bad in ("", "kernel", "kernel f(", text.replace("load", "laod"), text.replace("f32", "f33"), text[: len(text) // 2], text + "}", "\0"):
            with self.subTest(bad[:20]), self.assertRaises(ValueError):
                parse(bad)
        with self.assertRaises(TypeError):
            parse(3)
        parse(text)

    def test_decorating(self):
        for bad in (3, print, lambda *a: None, lambda **k: None):
            with self.assertRaises(TypeError):
                eas.kernel(bad)
        with self.assertRaises(ValueError):

            @eas.kernel
            def k(a, _grid):
                pass

        def gen(a):
            yield 1

        with self.assertRaises(TypeError):
            eas.kernel(gen)

    def test_values_outside_their_trace(self):
        kept = []

        @eas.kernel
        def k(out, B: eas.constexpr):
            kept.append(mk.arange(0, B))
            mk.store(out, kept[0], 1.0)

        out = np.zeros(4, np.float32)
        k(out, 4, _grid=1)
        for use in (lambda v: v + 1, lambda v: v.shape, lambda v: v[:, None], lambda v: -v, lambda v: v < 3):
            with self.assertRaises(RuntimeError):
                use(kept[0])
        self.assertIn("finished", repr(kept[0]))

        @eas.kernel
        def other(out, B: eas.constexpr):
            mk.store(out, kept[0], 1.0)

        with self.assertRaises(RuntimeError):
            other(out, 4, _grid=1)

    def test_out_of_bounds_on_ref(self):
        @eas.kernel
        def wild(x, out, B: eas.constexpr):
            mk.store(out, mk.arange(0, B), mk.load(x, mk.arange(0, B) + 10))

        out = np.zeros(16, np.float32)
        with backend("ref"), self.assertRaises(IndexError) as e:
            wild(A, out, 16, _grid=1)
        for word in ("wild", "x", "16", os.path.basename(HERE)):
            self.assertIn(word, str(e.exception))


if __name__ == "__main__":
    unittest.main()
