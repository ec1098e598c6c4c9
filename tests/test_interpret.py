"""_interpret=True: the body as plain Python, one program at a time, on values that can be looked at."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import traceback
import unittest
from unittest import mock

import numpy as np
from support import BF16, ROOT, script

import eas
from eas import mk

FILES = "blocks control hints integers memory names ops random threads atomics group seeds".split()
COUNT_TRACES = ["test_static_print", "test_python_numbers_stay_numbers"]  # they watch how often a body runs
RACES = ["test_rows_that_overlap_may_write_the_same", "test_axes_that_meet"]  # eas.check rightly says so, though what is written is the same
SMALL = {"matmul_tiled": "130", "saxpy": "3000"}  # these have one size, and a parameter for it
EXAMPLES = sorted(f[:-3] for f in os.listdir(os.path.join(ROOT, "examples")) if f.endswith(".py") and f[0] != "_" and f != "examples.py")
RUN = """import sys, importlib, walk
for name in sys.argv[1:]:
    name, _, n = name.partition("=")
    m = importlib.import_module("examples." + name)
    if hasattr(m, "main"):
        m.main(int(n)) if n else m.main()
walk.pytest_sessionfinish()
"""


def walked(*command, **env):
    """Runs a command in which every launch is walked; how many there were."""
    with tempfile.TemporaryDirectory() as folder:
        count = os.path.join(folder, "count")
        paths = [os.path.dirname(os.path.dirname(eas.__file__)), os.path.join(ROOT, "tests"), ROOT]
        full = {**os.environ, "EAS_WALK": "interpret,check", "EAS_WALK_COUNT": count, "PYTHONPATH": os.pathsep.join(paths), **env}
        r = subprocess.run([sys.executable, *command], env=full, cwd=folder, capture_output=True, text=True, timeout=600)
        if r.returncode:
            raise AssertionError(r.stdout + r.stderr)
        with open(count) as f:
            return int(f.read())


def walk_tests():
    files = [os.path.join(ROOT, "tests", f"test_{f}.py") for f in FILES]
    return walked("-m", "pytest", "-q", "-p", "walk", "-p", "no:cacheprovider", *(f for f in files if os.path.exists(f)),
                  "-k", " and ".join("not " + t for t in COUNT_TRACES + RACES))  # fmt: skip


def walk_examples():
    return walked("-c", RUN, *(f"{n}={SMALL[n]}" if n in SMALL else n for n in EXAMPLES), EAS_BACKEND="ref")


class Everything(unittest.TestCase):
    """Every kernel that the tests and the examples launch: as plain Python it gives the same, and eas.check
    finds nothing wrong with it."""

    def test_kernels_of_the_tests(self):
        self.assertGreater(walk_tests(), 3000)

    def test_kernels_of_the_examples(self):
        self.assertGreater(walk_examples(), len(EXAMPLES))


class Values(unittest.TestCase):
    def run_kernel(self, fn, *args, **kw):
        k = eas.kernel(fn)
        k(*args, _interpret=True, **kw)

    def test_numbers(self):
        seen = []

        def k(x, n, f, B: eas.constexpr):
            offs = mk.arange(0, B)
            v = mk.load(x, offs)
            seen.append((int(n), float(f), bool(n > 2), n.item(), v.numpy(), np.asarray(v, np.float64), str(v), repr(n), v.shape, range(10)[n]))
            if mk.max(v) > 3:
                seen.append("large")

        self.run_kernel(k, np.arange(5, dtype=np.float32), 3, 0.5, 5, _grid=1)
        first, large = seen
        self.assertEqual(first[:4], (3, 0.5, True, 3))
        np.testing.assert_array_equal(first[4], np.arange(5, dtype=np.float32))
        self.assertEqual(first[4].dtype, np.float32)
        self.assertEqual(first[5].dtype, np.float64)
        self.assertEqual(first[6:], ("<f32 block: [0. 1. 2. 3. 4.]>", "<i64: 3>", (5,), 3))
        self.assertEqual(large, "large")

    def test_blocks_keep_their_shape(self):
        def k(x):
            v = mk.arange(0, 3)[:, None] * 10 + mk.arange(0, 4)[None, :]
            self.assertEqual(v.numpy().tolist(), [[10 * i + j for j in range(4)] for i in range(3)])
            with self.assertRaisesRegex(ValueError, "12 elements"):
                int(v)

        self.run_kernel(k, np.zeros(1), _grid=1)

    def test_threads(self):
        def k(x, T: eas.constexpr):
            p = mk.program_id(0) + 1
            t = mk.tid(0, T)
            self.assertEqual(t.numpy().tolist(), list(range(T)))
            self.assertEqual(int(p), 1)
            with self.assertRaisesRegex(ValueError, "differs between the threads"):
                bool(t > 1)
            with mk.if_(t == 2):
                self.assertEqual(int(t), 2)
            self.assertIn("of each thread", repr(t))

        self.run_kernel(k, np.zeros(1), 5, _grid=1)

    def test_variables_and_buffers(self):
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            tg = mk.alloc_tg(T, mk.i32)
            v = mk.var(t)
            with mk.if_(t > 1):
                v += 10
            mk.store(tg, t, mk.to_i32(v))
            self.assertEqual(tg.numpy().tolist(), [0, 1, 12, 13])
            self.assertEqual(np.asarray(v).tolist(), [0, 1, 12, 13])
            self.assertEqual(x.numpy().tolist(), [7.0, 8.0])
            self.assertIn("7. 8.", repr(x))
            self.assertIn("12", repr(v))

        self.run_kernel(k, np.array([7.0, 8.0]), 4, _grid=1)

    @unittest.skipIf(BF16 is None, "ml_dtypes is not installed")
    def test_bf16(self):
        def k(x):
            v = mk.load(x, mk.arange(0, 2))
            self.assertEqual(np.asarray(v * 3).astype(float).tolist(), [3.0, 6.0])

        self.run_kernel(k, np.array([1, 2], BF16), _grid=1)

    def test_no_data_while_tracing(self):
        def k(x):
            mk.load(x, mk.arange(0, 2)).numpy()

        with self.assertRaisesRegex(TypeError, "_interpret=True"):
            eas.kernel(k)(np.zeros(2), _grid=1)

    def test_values_die_with_the_launch(self):
        kept = []
        self.run_kernel(lambda x: kept.append(mk.load(x, 0)), np.zeros(2), _grid=1)
        with self.assertRaises(RuntimeError):
            kept[0] + 1
        self.assertIn("finished", repr(kept[0]))


class Control(unittest.TestCase):
    def test_no_thread_active(self):
        ran = []

        @eas.kernel
        def k(x, N):
            v = mk.var(1)
            with mk.if_(N > 100):
                ran.append("then")
                mk.store(x, 10_000, 1.0)
                v.set(5)
                for _ in mk.range(0, 3):
                    ran.append("loop")
            with mk.else_():
                v += 1
            mk.store(x, 0, mk.to_f64(v))

        x = np.zeros(4)
        k(x, 4, _grid=1, _interpret=True)
        self.assertEqual(ran, ["then"])
        self.assertEqual(x[0], 2)

    def test_loops_are_python_loops(self):
        seen = []

        @eas.kernel
        def k(x, N):
            total = mk.var(0)
            for i in mk.range(N, 0, -2):
                seen.append(int(i))
                total += i
            with mk.while_(lambda: total < 100):
                seen.append(int(total))
                total *= 3
            mk.store(x, 0, total)

        x = np.zeros(1, np.int64)
        k(x, 5, _grid=1, _interpret=True)
        self.assertEqual(seen, [5, 3, 1, 9, 27, 81])
        self.assertEqual(x[0], 243)

    def test_break_is_refused(self):
        @eas.kernel
        def k(x):
            for _ in mk.range(0, 3):
                break

        with self.assertRaisesRegex(RuntimeError, "left open"):
            k(np.zeros(1), _grid=1, _interpret=True)

    def test_while_in_a_helper(self):
        def helper(v):
            with mk.while_(lambda: v < 3):
                v += 1

        @eas.kernel
        def k(x):
            helper(mk.var(0))

        with self.assertRaisesRegex(RuntimeError, "for _ in mk.while_"):
            k(np.zeros(1), _grid=1, _interpret=True)

    def test_memory_stays_bounded(self):
        @eas.kernel
        def k(x, N, BLOCK: eas.constexpr):
            acc = mk.var(mk.zeros((BLOCK,), mk.f64))
            for i in mk.range(0, N):
                acc += mk.load(x, mk.arange(0, BLOCK)) * mk.exp(mk.to_f64(i))
                if int(i) in (50, N.item() - 1):
                    sizes.append(rss())
            mk.store(x, mk.arange(0, BLOCK), acc * 0)

        def rss():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1])

        if not os.path.exists("/proc/self/statm"):
            return
        sizes = []
        k(np.zeros(4096), 2000, 4096, _grid=1, _interpret=True)
        self.assertLess((sizes[-1] - sizes[0]) * 4096, 8 << 20)


class Launches(unittest.TestCase):
    def test_grid(self):
        seen = []

        @eas.kernel
        def line(x, N, BLOCK: eas.constexpr):
            seen.append(int(mk.program_id(0)))
            mk.arange(0, BLOCK)

        @eas.kernel
        def plane(x, H, W, BLOCK: eas.constexpr):
            p, q = mk.program_id(0), mk.program_id(1)
            mk.arange(0, BLOCK)
            seen.append((int(p), int(q), int(mk.num_programs(0)), int(mk.num_programs(1))))

        x = np.zeros(1)
        line(x, 10, 4, _interpret=True)
        self.assertEqual(seen, [0, 1, 2])
        seen.clear()
        line(x, 0, 4, _interpret=True)
        line(x, 9, 4, _interpret=True, _nthreads=0)
        self.assertEqual(seen, [])
        line(x, 10, 4, _interpret=True, _grid=lambda meta, args: meta["BLOCK"] // 2)
        self.assertEqual(seen, [0, 1])
        seen.clear()
        plane(x, 2, 5, 4, _interpret=True)
        self.assertEqual(seen, [(0, 0, 2, 2), (1, 0, 2, 2), (0, 1, 2, 2), (1, 1, 2, 2)])

    def test_refused(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            mk.store(x, mk.tid(0, T), 1.0)

        x = np.zeros(8)
        with self.assertRaisesRegex(ValueError, "grid is not known"):
            k(x, 8, _interpret=True)
        with self.assertRaisesRegex(ValueError, "_tptg"):
            k(x, 8, _grid=1, _tptg=4, _interpret=True)
        with self.assertRaisesRegex(TypeError, "_interpret must be a bool"):
            k(x, 8, _grid=1, _interpret="yes")
        x.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "read-only"):
            k(x, 8, _grid=1, _interpret=True)

    def test_modes_do_not_mix(self):
        @eas.kernel
        def k(x):
            mk.store(x, mk.arange(0, 8) + mk.tid(0, 8), 1.0)

        with self.assertRaisesRegex(TypeError, "mixes arange"):
            k(np.zeros(16), _grid=1, _interpret=True)

    def test_out_of_bounds_at_the_line(self):
        path = script("from eas import mk\ndef k(x, N):\n    a = mk.program_id(0)\n    mk.store(x, a + 3, 1.0)\n    raise SystemError\n")
        scope = {}
        with open(path) as f:
            exec(compile(f.read(), path, "exec"), scope)
        with self.assertRaisesRegex(IndexError, rf'{path}:4: kernel k: .*index 3 of "x", which has 3 elements in the shape \(3,\) \(program 0'):
            try:
                eas.kernel(scope["k"])(np.zeros(3), 1, _interpret=True)
            except IndexError as e:
                self.assertIn((path, 4), [(f.filename, f.lineno) for f in traceback.extract_tb(e.__traceback__)])
                raise

    def test_environment(self):
        @eas.kernel
        def k(x):
            print(mk.load(x, 0))

        out = io.StringIO()
        with mock.patch.dict(os.environ, {"EAS_INTERPRET": "1"}), contextlib.redirect_stdout(out):
            k(np.array([4.5]), _grid=1)
        self.assertEqual(out.getvalue(), "<f64: 4.5>\n")
        k(np.array([4.5]), _grid=1)

    def test_debugger_stops_on_the_users_line(self):
        @eas.kernel
        def k(x, N):
            v = mk.var(mk.load(x, mk.program_id(0)))
            with mk.while_(lambda: v < 4):
                v += 1
                if v > 3:
                    breakpoint()

        stops = []

        def hook():
            f = sys._getframe(1)
            stops.append((f.f_code.co_filename, f.f_lineno - f.f_code.co_firstlineno, float(f.f_locals["v"])))

        with mock.patch.object(sys, "breakpointhook", hook):
            k(np.array([1.0, 2.5]), 2, _interpret=True)
        self.assertEqual([s[0] for s in stops], [__file__] * 3)
        self.assertEqual([s[2] for s in stops], [4.0, 3.5, 4.5])

    def test_autotune(self):
        @eas.autotune(configs=[eas.Config(meta={"BLOCK": 4})], key=["N"])
        @eas.kernel
        def k(x, N, BLOCK: eas.constexpr):
            offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(x, offs, mk.to_f64(offs), offs < N)

        x = np.zeros(6)
        k(x, 6, _interpret=True)
        np.testing.assert_array_equal(x, np.arange(6))


if __name__ == "__main__":
    unittest.main()
