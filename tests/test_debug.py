"""mk.print, mk.assert_ and debug launches: the same text on every device."""

import io
import os
import re
import unittest
from contextlib import redirect_stdout
from unittest import mock

import numpy as np
from support import ROOT, python

import eas
from eas import mk


def devices():
    for name in ("cpu", "ref", "opencl", "mps"):
        try:
            eas.empty((1,), device=name)
        except RuntimeError:
            continue
        yield name


DEVICES = tuple(devices())


def output(kernel, *args, device="cpu", **kw):
    """What a launch prints; arrays go to the device."""
    out = io.StringIO()
    with redirect_stdout(out):
        kernel(*(eas.tensor(a, device=device) if isinstance(a, np.ndarray) else a for a in args), **kw)
    return out.getvalue()


@eas.kernel
def blocks(x, N, BLOCK: eas.constexpr):
    pid = mk.program_id(0)
    offs = pid * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, offs, offs < N)
    mk.print("pid", pid, "v", v)
    mk.print("last", when=pid == 2)
    mk.print("odd", v, when=(offs % 2 == 1) & (offs < N))


@eas.kernel
def threads(x, N, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    v = mk.load(x, t)
    mk.print("v", v)
    for i in mk.range(0, N):
        with mk.if_(t > 5):
            mk.print("i", i, "t", t, when=t != 6)


@eas.kernel
def asserts(x, N, BLOCK: eas.constexpr):
    offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, offs, offs < N)
    mk.assert_(v < 7, "v must be below 7", mask=offs < N)


@eas.kernel
def thread_asserts(x, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    with mk.if_(t > 2):
        mk.assert_(mk.load(x, t) >= 0, "negative")


class Print(unittest.TestCase):
    def test_blocks(self):
        x = np.arange(10, dtype=np.float32) / 2
        for d in DEVICES:
            self.assertEqual(
                output(blocks, x, 10, BLOCK=4, device=d),
                "program 0: pid 0 v [0.0 0.5 1.0 1.5]\n"
                "program 0, lanes 1, 3: odd [0.5 1.5]\n"
                "program 1: pid 1 v [2.0 2.5 3.0 3.5]\n"
                "program 1, lanes 1, 3: odd [2.5 3.5]\n"
                "program 2: pid 2 v [4.0 4.5 0.0 0.0]\n"
                "program 2: last\n"
                "program 2, lane 1: odd 4.5\n",
                d,
            )

    def test_threads(self):
        x = np.arange(9, dtype=np.int16)
        for d in DEVICES:
            self.assertEqual(
                output(threads, x, 2, BLOCK=9, _grid=(2, 2), device=d).splitlines()[-3:],
                [
                    "program 1, 1, threads 0-8: v [0 1 2 3 4 5 6 7 8]",
                    "program 1, 1, threads 7-8: i [0 0] t [7 8]",
                    "program 1, 1, threads 7-8: i [1 1] t [7 8]",
                ],
                d,
            )

    def test_threads_that_print_different_lines(self):
        """In the order of the source, whichever thread was first."""

        @eas.kernel
        def k(x):
            t = mk.tid(0, 8)
            mk.print("last", t, when=t > 5)
            mk.print("all", mk.program_id(0))
            for i in mk.range(2):
                mk.print("a", i, when=t == 7)
                mk.print("b", i, when=t == 2)
            with mk.if_(t < 3):
                mk.print("few", t)
            with mk.else_():
                mk.print("many", t, when=t < 5)

        want = """
program P, threads 6-7: last [6 7]
program P, threads 0-7: all [P P P P P P P P]
program P, thread 7: a 0
program P, thread 2: b 0
program P, thread 7: a 1
program P, thread 2: b 1
program P, threads 0-2: few [0 1 2]
program P, threads 3-4: many [3 4]
"""[1:]
        for device in DEVICES:
            self.assertEqual(output(k, np.zeros(1, np.float32), device=device, _grid=2), want.replace("P", "0") + want.replace("P", "1"), device)
        self.assertEqual(output(k, np.zeros(1, np.float32), _grid=2, _interpret=True), want.replace("P", "0") + want.replace("P", "1"))

    def test_interpreted(self):
        x = np.arange(10, dtype=np.float32) / 2
        self.assertEqual(output(blocks, x, 10, BLOCK=4, _interpret=True), output(blocks, x, 10, BLOCK=4))
        self.assertEqual(output(threads, x, 2, BLOCK=9, _grid=1, _interpret=True), output(threads, x, 2, BLOCK=9, _grid=1))

    def test_every_dtype_as_numpy_has_it(self):
        @eas.kernel
        def k(x, N, BLOCK: eas.constexpr):
            mk.print(mk.load(x, mk.arange(0, BLOCK)))

        special = [0, -0.0, 1, 0.1, -2.5, 1e-5, 100, 750, 1e16, 3.4e38, 1 / 3, np.inf, -np.inf, np.nan, 512, 6e-8]
        for dt in ("f2", "f4", "f8"):
            with np.errstate(all="ignore"):
                x = np.array(special).astype(dt)
            want = "program 0: [" + " ".join(str(v) for v in x) + "]\n"
            for d in DEVICES if dt == "f4" else ("cpu", "ref"):
                self.assertEqual(output(k, x, 1, BLOCK=16, _grid=1, device=d), want)
        for dt in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"):
            info = None if dt == "?" else np.iinfo(dt)
            x = np.array([True, False] if dt == "?" else [info.min, info.max, 0, 7], dtype=dt)
            want = "program 0: [" + " ".join(str(v) for v in x) + "]\n"
            for d in DEVICES:
                self.assertEqual(output(k, x, 1, BLOCK=x.size, _grid=1, device=d), want)

    def test_shapes(self):
        @eas.kernel
        def k(N):
            r, c = mk.arange(0, 2), mk.arange(0, 3)
            mk.print("2-d", r[:, None] * 10 + c[None, :], "scalar", N, "{}", 1.5, True)
            mk.print("long", mk.arange(0, 2000))

        self.assertEqual(
            output(k, 5, _grid=1),
            "program 0: 2-d [[0 1 2] [10 11 12]] scalar 5 {} 1.5 True\nprogram 0: long [0 1 2 ... 1997 1998 1999]\n",
        )

    def test_conditions(self):
        @eas.kernel
        def k(x, N):
            mk.print("never", when=False)
            mk.print("always", when=True)
            with mk.if_(mk.program_id(0) == 1):
                mk.print("in", mk.load(x, 0))
            mk.print("no lane", mk.arange(0, 4), when=mk.arange(0, 4) > N)

        want = "program 0: always\nprogram 1: always\nprogram 1: in 3\n"
        for d in DEVICES:
            self.assertEqual(output(k, np.array([3], np.int32), 9, _grid=2, device=d), want)

    def test_order_and_limit(self):
        code = (
            "import eas\nfrom eas import mk\n"
            "@eas.kernel\ndef k(N, BLOCK: eas.constexpr):\n"
            "    mk.print('p', mk.program_id(0), when=mk.program_id(0) >= N)\n"
            "k(5, BLOCK=1, _grid=50000)\nk(49999, BLOCK=1, _grid=50000)\nk(50000, BLOCK=1, _grid=50000)\n"
            "@eas.kernel\ndef t(BLOCK: eas.constexpr):\n    t = mk.tid(0, BLOCK)\n    mk.print(t)\n"
            "t(BLOCK=3, _grid=10)\n"
        )
        want = [f"program {i}: p {i}" for i in range(5, 12)] + ["... dropped 49988 records", "program 49999: p 49999"]
        want += [f"program {i}, threads 0-2: [0 1 2]" for i in range(7)] + ["... dropped 3 records"]
        got = python(code, env={"EAS_PRINT_LIMIT": "7", "EAS_NUM_THREADS": "2"}).stdout.splitlines()
        self.assertEqual(got, want)

    def test_a_failed_launch_prints_too(self):
        @eas.kernel
        def k(x, N, BLOCK: eas.constexpr):
            mk.print("here")
            mk.store(x, N + mk.arange(0, BLOCK), 1)

        out = io.StringIO()
        with redirect_stdout(out), self.assertRaises(IndexError):
            k(np.zeros(4, np.int32), 3, BLOCK=4, _grid=1)
        self.assertEqual(out.getvalue(), "program 0: here\n")

    def test_nothing_to_run(self):
        self.assertEqual(output(blocks, np.zeros(0, np.float32), 0, BLOCK=4), "")

    def test_results_do_not_change(self):
        @eas.kernel
        def k(x, y, N, BLOCK: eas.constexpr):
            offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            v = mk.load(x, offs, offs < N) * 3 + 1
            mk.print(v, when=mk.program_id(0) == 0)
            mk.store(y, offs, v, offs < N)

        x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
        with redirect_stdout(io.StringIO()):
            k(x, y, 100, BLOCK=32)
        np.testing.assert_array_equal(y, x * 3 + 1)
        self.assertIn("print", str(k.to_ir(x, y, 100, BLOCK=32)))
        self.assertIn("eas_print_words", k.to_msl(x, y, 100, BLOCK=32))

    def test_capture_refuses_it(self):
        with self.assertRaisesRegex(ValueError, "kernel blocks prints: such a launch cannot be captured"), eas.capture():
            blocks(np.zeros(4, np.float32), 4, BLOCK=4)

    def test_mistakes(self):
        def run(body):
            @eas.kernel
            def k(x, BLOCK: eas.constexpr):
                body(x, mk.arange(0, BLOCK))

            k(np.zeros(8, np.int32), BLOCK=8, _grid=1)

        for body, error, words in (
            (lambda x, t: mk.print(x), TypeError, "print"),
            (lambda x, t: mk.print(t, sep=""), TypeError, "when="),
            (lambda x, t: mk.print(t, when=t), TypeError, "mask must be bool"),
            (lambda x, t: mk.print(t, when=mk.arange(0, 4) < 2), ValueError, "print"),
            (lambda x, t: mk.print(*[t] * 65), ValueError, "at most 64"),
            (lambda x, t: mk.assert_(t), TypeError, "the condition must be bool"),
            (lambda x, t: mk.assert_(t < 1, 5), TypeError, "message must be a str"),
        ):
            with self.assertRaisesRegex(error, words):
                run(body)
        with self.assertRaises(RuntimeError):
            mk.print("outside")


class Assert(unittest.TestCase):
    def failure(self, kernel, *args, device, error=AssertionError, **kw):
        with self.assertRaises(error) as e:
            kernel(*(eas.tensor(a, device=device) if isinstance(a, np.ndarray) else a for a in args), _debug=True, **kw)
        return re.sub(r"^\S*test_debug.py:\d+: ", "LINE ", str(e.exception))

    def test_only_in_debug(self):
        x = np.arange(10, dtype=np.float32)
        for d in DEVICES:
            asserts(eas.tensor(x, device=d), 10, BLOCK=4)
            asserts(eas.tensor(x, device=d), 7, BLOCK=4, _debug=True)  # the lanes that are off do not count
            message = self.failure(asserts, x, 10, BLOCK=4, device=d)
            if d in ("cpu", "ref"):
                self.assertEqual(message, "LINE kernel asserts: assertion failed: v must be below 7 (program 1, 0, 0, lane 3)")
            else:  # which of the failures is reported is the device's affair
                self.assertRegex(message, r"^LINE kernel asserts: assertion failed: v must be below 7 \(program [12], 0, 0, lane \d\)$")
        with self.assertRaisesRegex(AssertionError, "v must be below 7"):
            asserts(x, 10, BLOCK=4, _interpret=True)

    def test_threads(self):
        x = np.ones(40, np.int32)
        x[:3] = -1
        for d in DEVICES:
            thread_asserts(eas.tensor(x, device=d), BLOCK=40, _grid=2, _debug=True)
        x[33] = -1
        for d in DEVICES:
            message = self.failure(thread_asserts, x, BLOCK=40, _grid=1, device=d)
            self.assertEqual(message, "LINE kernel thread_asserts: assertion failed: negative (program 0, 0, 0, thread 33)")

    def test_costs_nothing_when_off(self):
        @eas.kernel
        def plain(x, y, BLOCK: eas.constexpr):
            t = mk.arange(0, BLOCK)
            mk.store(y, t, mk.load(x, t))

        @eas.kernel
        def checked(x, y, BLOCK: eas.constexpr):
            t = mk.arange(0, BLOCK)
            v = mk.load(x, t)
            mk.assert_(mk.sqrt(v) < 3, "large")
            mk.store(y, t, v)

        x = np.zeros(8, np.float32)
        for form in ("to_msl", "to_opencl", "to_llvm"):
            texts = [getattr(k, form)(x, x, BLOCK=8) for k in (plain, checked)]
            self.assertEqual(texts[0].replace("plain", "checked"), texts[1], form)

    def test_bounds_in_debug(self):
        @eas.kernel
        def array(x, N, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            a = mk.alloc_tg(BLOCK, mk.f32)
            mk.store(a, t, mk.load(x, t))
            mk.barrier()
            mk.store(x, t, mk.load(a, t + N, t == 5))

        x = np.zeros(16, np.float32)
        for d in DEVICES:
            array(eas.tensor(x, device=d), 10, BLOCK=16, _grid=1, _debug=True)
            message = self.failure(array, x, 11, BLOCK=16, _grid=1, device=d, error=IndexError)
            words = "index 16 of a threadgroup array, which has 16 elements (program 0, 0, 0, thread 5)"
            self.assertEqual(message, f"LINE kernel array: access out of bounds: {words}")
            message = self.failure(array, x[:8].reshape(2, 4), 0, BLOCK=16, _grid=1, device=d, error=IndexError)
            self.assertRegex(
                message, r'^LINE kernel array: access out of bounds: index \d+ of "x", which has 8 elements in the shape \(2, 4\) \(program 0, 0, 0, thread \d+\)$'
            )
            index, thread = re.search(r"index (\d+) .* thread (\d+)", message).groups()
            self.assertEqual(index, thread, d)

    def test_environment(self):
        code = (
            "import sys; sys.path.insert(0, 'tests')\nimport numpy as np\nfrom test_debug import asserts\n"
            "try:\n    asserts(np.arange(10, dtype=np.float32), 10, BLOCK=4)\n"
            "except AssertionError as e:\n    print('caught', e)\n"
        )
        self.assertIn("v must be below 7", python(code, env={"EAS_DEBUG": "1"}, cwd=ROOT).stdout)
        self.assertEqual(python(code, env={"EAS_DEBUG": "0"}, cwd=ROOT).stdout, "")

    def test_environment_counts_at_once(self):
        @eas.kernel
        def k(x):
            mk.assert_(mk.load(x, 0) < 7, "small")

        x = np.full(1, 9, np.float32)
        for _ in range(2):
            k(x, _grid=1)
            with mock.patch.dict(os.environ, {"EAS_DEBUG": "1"}), self.assertRaisesRegex(AssertionError, "small"):
                k(x, _grid=1)

    def test_messages_of_any_kind(self):
        text = 'quote " back \\ line\nbrace { } ü'

        @eas.kernel
        def k(x, BLOCK: eas.constexpr):
            mk.assert_(mk.load(x, mk.arange(0, BLOCK)) > 0, text)
            mk.print(text)

        x = np.zeros(4, np.float32)
        self.assertIn(text, self.failure(k, x, BLOCK=4, _grid=1, device="cpu"))
        self.assertEqual(output(k, x, BLOCK=4, _grid=1), f"program 0: {text}\n")


if __name__ == "__main__":
    unittest.main()
