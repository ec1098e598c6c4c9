"""Kernels that only add to a buffer: each thread adds to an array of its own, which is added to the buffer at
the end of the launch (src/dev/sums.c). Values are whole numbers, so that sums are exact in any order."""

import signal
import tempfile
import unittest

import numpy as np
from support import BF16, ROOT, backend, compile_log, python, same

import eas
from eas import mk

DTYPES = [np.dtype(t) for t in ("f2", "f4", "f8", "i4", "u4", "i8", "u8")] + ([BF16] if BF16 else [])
SUMS = "; sums of threads"


@eas.kernel
def scatter(at, x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.atomic_add(out, mk.load(at, i, i < N), mk.load(x, i, i < N), i < N)


@eas.kernel
def rows(x, out, ROWS, COLS, BLOCK: eas.constexpr):
    """Every program adds all rows of x to the same row."""
    cols = mk.program_id(0) % 2 + mk.arange(0, BLOCK)
    for r in mk.range(0, ROWS):
        mk.atomic_add(out, cols, mk.load(x, r * COLS + cols, cols < COLS), cols < COLS)


@eas.kernel
def strided(x, out, N, STEP: eas.constexpr, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.atomic_add(out, i * STEP % 1000, mk.load(x, i, i < N), i < N)


@eas.kernel
def threads(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    with mk.if_(i < N):
        mk.atomic_add(out, i % 100, mk.load(x, i))


@eas.kernel
def numbers(out, N, BLOCK: eas.constexpr):
    for i in mk.range(0, N):
        mk.atomic_add(out, i % 3, 1.0)


@eas.kernel
def looked_at(at, x, out, old, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(old, i, mk.atomic_add(out, mk.load(at, i, i < N), mk.load(x, i, i < N), i < N), i < N)


@eas.kernel
def read(at, x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.atomic_add(out, mk.load(at, i, i < N), mk.load(x, i, i < N) + 0 * mk.load(out, 0), i < N)


@eas.kernel
def ordered(at, x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.atomic_add(out, mk.load(at, i, i < N), mk.load(x, i, i < N), i < N, order="release")


@eas.kernel
def many(x, out, N, PLACES: eas.constexpr, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.atomic_add(out, i % PLACES, mk.load(x, i, i < N), i < N)


@eas.kernel
def doubled(x, out, N, ROUNDS, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    for _ in mk.range(0, ROUNDS):
        mk.atomic_add(out, i, mk.load(x, i, i < N), i < N)


def draw(dt, n=20_000, places=1001, most=2):
    rng = np.random.default_rng(n)
    return rng.integers(0, places, n).astype(np.int32), rng.integers(0, most, n).astype(dt), rng.integers(0, 9, places).astype(dt)


def added(out, at, x):
    want = out.astype(np.float64)
    np.add.at(want, at, x.astype(np.float64))
    return want.astype(out.dtype)


class Sums(unittest.TestCase):
    def setUp(self):
        self.enterContext(backend("cpu"))

    def used(self, kernel, *args, yes=True, **meta):
        """A new kernel is launched twice; does it run with sums of threads?"""
        fresh = eas.kernel(kernel.fn)
        with compile_log() as lines:
            fresh(*args, **meta)
        self.assertTrue(lines)
        self.assertEqual(any(SUMS in line for line in lines), yes, lines)

    def everywhere(self, kernel, *args, **meta):
        """On the interpreter and the cpu; gives the outputs, equal bit for bit."""
        results = {}
        for device in ("ref", "cpu"):
            copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
            with backend(device):
                kernel(*copies, **meta)
            results[device] = [a for a in copies if isinstance(a, np.ndarray)]
        for one, other in zip(*results.values()):
            same(self, one, other, "ref and cpu")
        return results["cpu"]

    def test_every_dtype(self):
        for dt in DTYPES:
            for n, places in ((20_000, 1001), (12_345, 7777 if dt.itemsize > 2 else 5000), (9000, 1)):
                at, x, out = draw(dt, n, places, 2 if places > 1 or dt.itemsize > 2 else 1)
                got = self.everywhere(scatter, at, x, out, n, BLOCK=256)[-1]
                np.testing.assert_array_equal(got, added(out, at, x), err_msg=f"{dt} {n} {places}")

    def test_rows(self):
        for dt in DTYPES:
            for cols, block in ((200, 256), (129, 128), (64, 64), (7, 16)):
                x = (np.random.default_rng(cols).random((300, cols)) < 0.15).astype(dt)  # bf16 counts to 256
                got = self.everywhere(rows, x, np.zeros(cols, dt), 300, cols, BLOCK=block, _grid=4)[-1]
                reach = np.minimum(block + np.array([0, 1]), cols)
                want = sum(2 * np.where(np.arange(cols) < r, x.sum(0, dtype=np.float64), 0) * (np.arange(cols) >= k) for k, r in enumerate(reach))
                np.testing.assert_array_equal(got.astype(np.float64), want, err_msg=f"{dt} {cols} {block}")

    def test_strides_threads_and_numbers(self):
        x = np.random.default_rng(0).integers(0, 9, 30_000).astype(np.float32)
        for step in (0, 1, 2, 3, 5, 999):
            self.everywhere(strided, x, np.zeros(1000, np.float32), x.size, STEP=step, BLOCK=128)
        got = self.everywhere(threads, x, np.ones(100, np.float32), x.size, BLOCK=64, _grid=469)[-1]
        np.testing.assert_array_equal(got, x.reshape(300, 100).sum(0) + 1)
        got = self.everywhere(numbers, np.zeros(3, np.float32), 3000, BLOCK=1, _grid=9)[-1]
        np.testing.assert_array_equal(got, 9000)

    def test_when_it_is_done(self):
        at, x, out = draw(np.float32)
        old = np.empty_like(x)
        n = x.size
        self.used(scatter, at, x, out, n, BLOCK=256)
        self.used(strided, x, out, n, STEP=1, BLOCK=128)
        self.used(scatter, at, x.astype(np.int32), out.astype(np.int32), n, BLOCK=256)
        self.used(scatter, at, x, out, 5000, BLOCK=256, yes=False)  # too few
        self.used(scatter, at, x, np.zeros(10 * n, np.float32), n, BLOCK=256, yes=False)  # for so many places
        self.used(looked_at, at, x, out, old, n, BLOCK=256, yes=False)
        self.used(read, at, x, out, n, BLOCK=256, yes=False)
        self.used(ordered, at, x, out, n, BLOCK=256, yes=False)
        self.used(doubled, x[:1000], out, 1000, 20, BLOCK=1024, _grid=1)
        self.used(doubled, out, out, 1000, 20, BLOCK=1024, _grid=1, yes=False)  # overlap

    def test_overlap(self):
        x = np.ones(1000, np.float32)
        for device in ("ref", "cpu"):
            y = x.copy()
            with backend(device):
                doubled(y, y, 1000, 20, BLOCK=1024, _grid=1)
            np.testing.assert_array_equal(y, np.float32(1 << 20))
            y = np.ones(1500, np.float32)
            with backend(device):
                doubled(y[:1000], y[500:], 1000, 20, BLOCK=1024, _grid=1)
            self.assertEqual(y[700], 21)

    def test_signs_infinities_and_bits(self):
        for dt, bits, signalling in (
            (np.float32, np.uint32, 0x7F800001),
            (np.float64, np.uint64, 0x7FF0000000000001),
            (np.float16, np.uint16, 0x7C01),
        ):
            out = np.zeros(1000, dt)
            out[::2] = -0.0
            out.view(bits)[500:] = signalling
            at = (np.arange(9000) % 6).astype(np.int32)
            x = np.array([-0.0, -0.0, 0.0, 1.0, np.inf, -1.0], dt)[at]
            got = self.everywhere(scatter, at, x, out, 9000, BLOCK=256)[-1]
            np.testing.assert_array_equal(np.signbit(got[:3]), (True, False, False))
            np.testing.assert_array_equal(got[3:6], np.array((1500, np.inf, -1500), dt))
            self.assertEqual(got[6:].tobytes(), out[6:].tobytes())  # what nothing is added to keeps its bits

    def test_unaligned_and_empty(self):
        at, x, out = draw(np.float32)
        for first in range(1, 5):
            there = np.concatenate([np.full(first, -7, np.float32), out, np.full(5, -7, np.float32)])
            mine = there[first : first + out.size]
            scatter(at, x, mine, x.size, BLOCK=256)
            np.testing.assert_array_equal(mine, added(out, at, x))
            self.assertTrue((there[:first] == -7).all() and (there[first + out.size :] == -7).all())
        before = out.copy()
        scatter(at, x, out, x.size, BLOCK=256, _grid=0)
        scatter(at, x, out, 0, BLOCK=256)
        np.testing.assert_array_equal(out, before)

    def test_launches_on_many_streams(self):
        at, x, out = draw(np.float32, 60_000)
        total, old = np.zeros(out.size, np.float32), np.empty_like(x)
        streams = [eas.Stream("cpu") for _ in range(4)]
        for _ in range(10):
            for k, s in enumerate(streams):
                if k == 3:
                    looked_at(at, x, total, old, x.size, BLOCK=256, _sync=False, _stream=s)
                else:
                    scatter(at, x, total, x.size, BLOCK=256, _sync=False, _stream=s)
        for s in streams:
            s.synchronize()
        np.testing.assert_array_equal(total, 40 * added(np.zeros_like(out), at, x))

    def test_replays(self):
        at, x, out = draw(np.float32)
        once = added(np.zeros_like(out), at, x)
        out[:] = 0
        with eas.capture() as g:
            scatter(at, x, out, x.size, BLOCK=256)
            scatter(at, x, out, x.size, BLOCK=256)
        for k in range(1, 4):
            g.replay(_sync=k == 2)
            eas.synchronize()
            np.testing.assert_array_equal(out, 2 * k * once)

    def test_checked_and_debugged(self):
        at, x, out = draw(np.float32)
        got = out.copy()
        scatter(at, x, got, x.size, BLOCK=256, _debug=True)
        np.testing.assert_array_equal(got, added(out, at, x))
        at[777] = out.size
        with self.assertRaisesRegex(IndexError, f'index {out.size} of "out", which has {out.size} elements'):
            scatter(at, x, out, x.size, BLOCK=256)

    def test_an_interrupted_launch(self):
        out = np.zeros(3, np.float32)
        old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with self.assertRaises(KeyboardInterrupt):
                numbers(out, 100_000, BLOCK=1, _grid=1_000_000)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        out[:] = 0
        numbers(out, 3000, BLOCK=1, _grid=9)
        np.testing.assert_array_equal(out, 9000)

    def test_no_memory_for_sums(self):
        code = """
import re, resource, sys
import numpy as np, eas
sys.path.insert(0, "tests")
from test_sums import many
n, limited = 2_000_000, sys.argv[1] == "limited"
x, out = np.ones(4 * n, np.float32), np.zeros(n, np.float32)
many(x, out, 1000, PLACES=n, BLOCK=256)
if limited:
    size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) << 10
    resource.setrlimit(resource.RLIMIT_AS, (size + (12 << 20), resource.RLIM_INFINITY))
many(x, out, x.size, PLACES=n, BLOCK=256)
assert (out[1000:] == 4).all() and (out[:1000] == 5).all()
print(eas.stats()["disk_hits"])
"""
        with tempfile.TemporaryDirectory() as d:
            env = {"EAS_CACHE_DIR": d, "EAS_NUM_THREADS": "2", "EAS_LOG": "info", "EAS_BACKEND": "cpu"}
            runs = [python(code, how, env=env, cwd=ROOT) for how in ("not", "limited")]
        self.assertTrue(all(SUMS in r.stderr for r in runs))
        self.assertEqual(runs[1].stdout, "3\n")  # the form without sums, that with them, and that without again

    def test_other_levels(self):
        for isa in ("sse2", "avx2"):
            python(
                "import sys, unittest; sys.path.insert(0, 'tests'); import test_sums\n"
                "t = test_sums.Sums; names = ('test_every_dtype', 'test_rows', 'test_strides_threads_and_numbers', 'test_signs_infinities_and_bits', 'test_unaligned_and_empty')\n"
                "r = unittest.TextTestRunner().run(unittest.TestSuite(t(n) for n in names)); sys.exit(not r.wasSuccessful())",
                env={"EAS_ISA": isa},
                cwd=ROOT,
            )


if __name__ == "__main__":
    unittest.main()
