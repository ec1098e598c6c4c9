"""The Metal device as Python sees it, through the stand-in where there is no Metal; what goes wrong, in
processes of its own."""

import os
import unittest

import numpy as np
from support import DEVICES, ROOT, backend, python, same

import eas
from eas import mk
from eas.runtime.metal_ext import load_metal_ext

KERNELS = """
import numpy as np, eas
from eas import mk
@eas.kernel
def twice(x, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(x, i, mk.load(x, i, i < N) * 2, i < N)
@eas.kernel
def slow(x, N, M, BLOCK: eas.constexpr):
    v = mk.var(mk.load(x, 0))
    for k in mk.range(0, M):
        v.set(v * 0.999 + 1.0)
    mk.store(x, mk.program_id(0) * 0, v.value)
x = np.arange(100, dtype=np.float32)
def raises(kind, part, fn):
    try:
        fn()
    except kind as e:
        assert part in str(e), str(e)
    else:
        raise AssertionError(f"no {kind.__name__}")
def works():
    y = x.copy()
    twice(y, 100, BLOCK=64)
    assert (y == 2 * x).all()
"""


@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(c, i, mk.load(a, i, m) + mk.load(b, i, m), m)


@eas.kernel(fast_math=True)
def fast(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(y, i, mk.exp(mk.load(x, i, m)) + mk.sin(mk.load(x, i, m)), m)


@eas.kernel
def planes(out, H, W, D, BLOCK: eas.constexpr):
    x = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    y, z = mk.program_id(1), mk.program_id(2)
    mk.store(out, (z * H + y) * W + x, x + 100 * y + 10000 * z, x < W)


def run(code, **env):
    """In a process with a time limit: nothing hangs."""
    return python(KERNELS + code, env={"EAS_BACKEND": "mps", **env}, timeout=60)


class Metal(unittest.TestCase):
    def test_it_is_a_device_here(self):
        self.assertIn("mps", DEVICES, "Metal, or EAS_METAL_LIBRARY with the stand-in of tests/metal, is needed: make test builds it")

    def test_tensors(self):
        x = np.arange(12, dtype=np.int16).reshape(3, 4)
        t = eas.tensor(x, device="metal")
        self.assertEqual((t.device, t.__dlpack_device__()), ("mps", (8, 0)))
        self.assertEqual(t.numpy().tobytes(), x.tobytes())
        self.assertEqual(t.to("cpu").to("mps").numpy().tobytes(), x.tobytes())
        self.assertEqual(eas.zeros((5,), device="mps").numpy().tolist(), [0] * 5)
        self.assertEqual(eas.empty((0, 3), device="mps").numpy().shape, (0, 3))

    def test_odd_sizes(self):
        for n in (0, 1, 2, 3, 5, 63, 64, 65, 4097):
            for dtype in (np.uint8, np.float16, np.float32):
                x = np.arange(n).astype(dtype)
                c = eas.empty((n,), device="mps", dtype=dtype)
                add(eas.tensor(x, device="mps"), x, c, n, BLOCK=64)
                same(self, c.numpy(), x + x, f"{n} of {np.dtype(dtype)}")

    def test_three_axes(self):
        for shape in ((2, 3, 70), (1, 40, 1), (33, 1, 2)):
            d, h, w = shape
            out = eas.empty(shape, device="mps", dtype=np.int64)
            planes(out, h, w, d, BLOCK=32)
            z, y, x = np.indices(shape)
            self.assertTrue((out.numpy() == x + 100 * y + 10000 * z).all())

    def test_fast_math_is_near(self):
        x = np.linspace(-5, 5, 1000).astype(np.float32)
        y = np.zeros_like(x)
        with backend("mps"):
            fast(x, y, 1000, BLOCK=128)
        np.testing.assert_allclose(y, np.exp(x) + np.sin(x), rtol=1e-4, atol=1e-5)

    def test_no_double(self):
        x = np.zeros(4)
        with self.assertRaisesRegex(TypeError, "no double"), backend("mps"):
            add(x, x, x, 4, BLOCK=4)

    def test_streams(self):
        x = eas.tensor(np.arange(1000, dtype=np.float32), device="mps")
        y, z = eas.empty_like(x), eas.empty_like(x)
        one, two = eas.Stream("mps"), eas.Stream("mps")
        add(x, x, y, 1000, BLOCK=64, _sync=False, _stream=one)
        e = eas.Event()
        e.record(one)
        two.wait(e)
        add(y, y, z, 1000, BLOCK=64, _sync=False, _stream=two)
        two.synchronize()
        self.assertTrue((z.numpy() == 4 * np.arange(1000)).all())

    def test_elapsed(self):
        x = eas.tensor(np.zeros(1 << 16, np.float32), device="mps")
        start, end = eas.Event(), eas.Event()
        s = eas.Stream("mps")
        start.record(s)
        add(x, x, x, 1 << 16, BLOCK=64, _sync=False, _stream=s)
        end.record(s)
        self.assertGreater(start.elapsed(end), 0)

    def test_replay(self):
        x = eas.tensor(np.ones(100, np.float32), device="mps")
        with eas.capture() as g:
            for _ in range(5):
                add(x, x, x, 100, BLOCK=32)
        self.assertEqual(x.numpy()[0], 1)
        g.replay()
        eas.synchronize("mps")
        self.assertTrue((x.numpy() == 32).all())


class Plans(unittest.TestCase):
    """Graphs that are replayed: encoded once, run as they are; on devices of every kind."""

    BEGIN = """
import ctypes, os
lib = ctypes.CDLL(os.environ["EAS_METAL_LIBRARY"])
lib.eas_standin_reports.restype = ctypes.c_char_p
def indirect():
    encoded, executed = ctypes.c_long(), ctypes.c_long()
    lib.eas_standin_indirect(ctypes.byref(encoded), ctypes.byref(executed))
    return encoded.value, executed.value
@eas.kernel
def axpy(x, y, A, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(y, i, mk.load(x, i, m) * A + mk.load(y, i, m), m)
@eas.kernel
def gather(x, at, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, mk.load(at, i, i < N), i < N), i < N)
def on(a):
    return eas.tensor(a, device="mps")
a = np.random.default_rng(1).normal(size=1000).astype(np.float32)
"""
    # Family, and how many of the launches below are then commands: an older GPU must have run a pipeline
    # itself, some have no commands at all.
    FAMILIES = (("1009", 20), ("1007", 18), ("0", 0))

    def go(self, code, **env):
        out = run(self.BEGIN + code + "\nassert not lib.eas_standin_reports(), lib.eas_standin_reports()\nprint('fine')", **env)
        self.assertEqual((out.returncode, out.stdout.strip()), (0, "fine"), out.stderr)

    def test_replay_equals_launches(self):
        for family, planned in self.FAMILIES:
            with self.subTest(family=family):
                self.go(
                    f"""
def work(x, y):
    for k in range(10):
        axpy(x, y, 0.3 + k, 1000, BLOCK=64)
        axpy(y, x, -0.1, 1000, BLOCK=32)
x, y, u, v = on(a), on(a[::-1].copy()), on(a), on(a[::-1].copy())
with eas.capture() as g:
    work(x, y)
before = indirect()
assert before == ({planned}, 0), before
for _ in range(3):
    g.replay()
    work(u, v)
g.replay(_sync=False), g.replay(_sync=False), work(u, v), work(u, v)
assert x.numpy().tobytes() == u.numpy().tobytes() and y.numpy().tobytes() == v.numpy().tobytes()
assert indirect() == ({planned}, 5 * {planned}), indirect()
""",
                    EAS_METAL_FAMILY=family,
                )

    def test_copies_and_checked_launches_lie_between(self):
        for family, _ in self.FAMILIES:
            with self.subTest(family=family):
                self.go(
                    """
at = np.random.default_rng(2).integers(0, 1000, 1000).astype(np.int32)
host = a.copy()
def work(x, y, at):
    axpy(x, y, 2.0, 1000, BLOCK=64)
    axpy(x, y, 3.0, 1000, BLOCK=64)
    x.copy_from(y)
    axpy(y, x, 4.0, 1000, BLOCK=64)
    gather(x, at, y, 1000, BLOCK=64)
    axpy(x, y, 5.0, 1000, BLOCK=64)
    axpy(x, y, 6.0, 1000, BLOCK=64)
    axpy(host, y, 7.0, 1000, BLOCK=64)
x, y, u, v, at = on(a), on(a), on(a), on(a), on(at)
with eas.capture() as g:
    work(x, y, at)
for _ in range(3):
    g.replay()
    work(u, v, at)
assert x.numpy().tobytes() == u.numpy().tobytes() and y.numpy().tobytes() == v.numpy().tobytes()
""",
                    EAS_METAL_FAMILY=family,
                )

    def test_rebinding_encodes_what_changes(self):
        self.go("""
x, y, z = on(a), on(a), on(a)
with eas.capture(source=x, target=y) as g:
    axpy(x, y, 2.0, 1000, BLOCK=64)
    for k in range(10):
        axpy(z, z, 1.0, 1000, BLOCK=64)
assert indirect()[0] == 11
g.replay()
other, target = on(2 * a), on(a)
g.replay(source=other)
assert indirect()[0] == 12, indirect()
g.replay(source=other, target=target)
assert indirect()[0] == 13, indirect()
g.replay(target=target)
assert indirect()[0] == 13, indirect()
assert np.allclose(y.numpy(), 7 * a)
assert np.allclose(target.numpy(), 9 * a)
with eas.capture() as h:
    axpy(x, y, 2.0, 1000, BLOCK=64)
    axpy(z, target, 2.0, 1000, BLOCK=64)
before = indirect()[0]
kept = y.numpy()
h.replay(A=0.5, _sync=False)
h.replay(A=0.25, _sync=False)
eas.synchronize()
assert indirect()[0] == before + 4
assert np.allclose(y.numpy(), kept + 0.75 * a)
""")

    def test_a_rebound_array_of_another_length(self):
        for family, _ in self.FAMILIES:
            with self.subTest(family=family):
                self.go(
                    """
x, y, at = on(a), on(0 * a), on(np.arange(1000, dtype=np.int32))
with eas.capture(x=x) as g:
    axpy(x, y, 1.0, 1000, BLOCK=64)
    axpy(x, y, 1.0, 1000, BLOCK=64)
    gather(x, at, y, 1000, BLOCK=64)
g.replay()
assert (y.numpy() == a).all()
longer = on(np.concatenate([3 * a, a]))
g.replay(x=longer)
assert (y.numpy() == 3 * a).all()
raises(IndexError, "x", lambda: g.replay(x=on(a[:10].copy())))
g.replay(x=longer)
assert (y.numpy() == 3 * a).all()
""",
                    EAS_METAL_FAMILY=family,
                )

    def test_no_room_for_the_commands(self):
        self.go(
            """
s, y = on(a), on(a)
def captured():
    with eas.capture() as g:
        axpy(s, y, 1.0, 1000, BLOCK=64)
    return g
raises(MemoryError, "no memory to encode the 1 launches", captured)
works()
captured().replay()
assert (y.numpy() == 2 * a).all()
""",
            EAS_METAL_FAULT="indirect",
        )

    def test_a_replay_that_fails(self):
        for fault, says in (("command", "gave up"), ("timeout", "too long"), ("pagefault", "not there")):
            with self.subTest(fault=fault):
                self.go(f"""
x, y = on(a), on(a)
with eas.capture() as g:
    axpy(x, y, 1.0, 1000, BLOCK=64)
    axpy(x, y, 1.0, 1000, BLOCK=64)
eas.synchronize()
lib.eas_standin_fault(b"{fault}")
raises(RuntimeError, "{says}", g.replay)
g.replay(_sync=False)
lib.eas_standin_fault(b"{fault}")
g.replay(_sync=False)
raises(RuntimeError, "axpy, axpy", eas.synchronize)
eas.synchronize()
assert (y.numpy() == a + a + a).all()
""")

    def test_nothing_is_kept(self):
        self.go("""
import gc
lib.eas_standin_live.restype = ctypes.c_long
def once():
    x, y = on(a), on(a)
    with eas.capture() as g:
        axpy(x, y, 1.0, 1000, BLOCK=64)
    g.replay(_sync=False)
    g.replay(x=on(2 * a))
    eas.synchronize()
    del g
    gc.collect()
    eas.synchronize()
once()
eas.empty_cache("mps")
before = [lib.eas_standin_live(k) for k in (b"buffer", b"indirect", b"command", b"pipeline")]
for _ in range(5):
    once()
eas.empty_cache("mps")
assert [lib.eas_standin_live(k) for k in (b"buffer", b"indirect", b"command", b"pipeline")] == before, before
assert before[1] == 0
""")


class LowLevel(unittest.TestCase):
    def test_buffers(self):
        metal = load_metal_ext(require=True)
        x = np.arange(1001, dtype=np.uint8)
        for storage in ("private", "shared"):
            b, back = metal.alloc_buffer(1001, storage), np.zeros_like(x)
            metal.copy_from_host(b, x)
            metal.copy_to_host(b, back)
            self.assertEqual(back.tobytes(), x.tobytes())
        with self.assertRaisesRegex(ValueError, "1001 bytes"):
            metal.copy_from_host(b, b"too short")
        with self.assertRaisesRegex(ValueError, "writable"):
            metal.copy_to_host(b, bytes(1001))
        with self.assertRaisesRegex(ValueError, "storage"):
            metal.alloc_buffer(1, "managed")
        with self.assertRaises(TypeError):
            metal.copy_from_host(np.zeros(3), b"abc")

    def test_kernels(self):
        metal = load_metal_ext(require=True)
        x = eas.tensor(np.ones(10, np.float32), device="mps")
        ck = metal.compile(add, x, x, x, 10, BLOCK=16)
        metal.launch(ck, {"a": x, "b": x, "c": x, "N": 10}, {"BLOCK": 16}, sync=False)
        metal.synchronize()
        metal.queue_synchronize()
        self.assertTrue((x.numpy() == 2).all())

    def test_handed_over_without_a_copy(self):
        metal = load_metal_ext(require=True)
        x = eas.tensor(np.ones(10, np.float32), device="mps")
        y = metal.dlpack_import(metal.dlpack_export(x))
        add(x, x, x, 10, BLOCK=16)
        self.assertTrue((y.numpy() == 2).all())
        z = eas.from_dlpack(x)
        del x, y
        self.assertTrue((z.numpy() == 2).all())

    def test_without_metal(self):
        code = """
from eas.runtime.metal_ext import load_metal_ext
assert load_metal_ext(require=False) is None
try:
    load_metal_ext(require=True)
except RuntimeError as e:
    assert "not available" in str(e)
"""
        python(code, env={"EAS_METAL_LIBRARY": "/nowhere.so"})

    def test_the_tool_says_what_it_found(self):
        tool = os.path.join(ROOT, "tools", "build_metal_ext.py")
        r = python(f"import runpy; runpy.run_path({tool!r}, run_name='__main__')", check=False)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertIn("the next launch works", r.stdout)


@unittest.skipUnless(os.environ.get("EAS_METAL_LIBRARY"), "faults are injected into the stand-in, and this is Metal itself")
class Faults(unittest.TestCase):
    def test_no_device(self):
        run("raises(RuntimeError, 'no Metal device', lambda: twice(x, 100, BLOCK=64))", EAS_METAL_FAULT="device:0x1000")
        run("raises(RuntimeError, 'no Metal device', lambda: eas.tensor([1.0], device='mps'))", EAS_METAL_FAULT="device:0x1000")

    def test_no_library(self):
        run("raises(RuntimeError, 'EAS_METAL_LIBRARY cannot be opened', lambda: twice(x, 100, BLOCK=64))", EAS_METAL_LIBRARY="/nowhere.so")

    def test_out_of_memory(self):
        run("raises(MemoryError, 'mps', lambda: eas.empty((1 << 50,), device='mps'))\nworks()\n")
        code = "raises(MemoryError, 'mps', lambda: eas.empty((1 << 20,), device='mps'))\nworks()\n"
        run(code, EAS_METAL_FAULT="memory:0x2")  # what the pool keeps is freed, and it is tried again

    def test_compile_failure(self):
        run("raises(RuntimeError, 'injected compile failure', works)\nworks()", EAS_METAL_FAULT="compile")
        run("raises(RuntimeError, 'no pipeline', works)\nworks()", EAS_METAL_FAULT="pipeline")

    def test_a_failed_command_buffer(self):
        for kind, part in (("command", "injected"), ("timeout", "too long"), ("pagefault", "memory that is not there")):
            run(f"raises(RuntimeError, {part!r}, works)\nworks()", EAS_METAL_FAULT=kind)

    def test_failures_of_queued_launches_come_at_the_synchronise(self):
        code = """
y = eas.tensor(x, device="mps")
twice(y, 100, BLOCK=64, _sync=False)
raises(RuntimeError, "kernel twice", lambda: eas.synchronize("mps"))
eas.synchronize("mps")
works()
"""
        run(code, EAS_METAL_FAULT="command:1")

    def test_a_kernel_that_does_not_end(self):
        code = "raises(RuntimeError, 'too long', lambda: slow(x, 1, 1 << 40, BLOCK=1, _grid=1))\nworks()"
        run(code, EAS_METAL_TIMEOUT="0.5")

    def test_fork(self):
        code = """
import os, signal
works()
y = eas.tensor(x, device="mps")
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        raises(RuntimeError, "fork", works)
        raises(RuntimeError, "fork", lambda: eas.tensor(x, device="mps"))
        os.environ["EAS_BACKEND"] = "cpu"
        works()
        del y
        os._exit(0)
    except BaseException as e:
        print(e)
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
works()
"""
        run(code)

    def test_exit_with_work_pending(self):
        run("y = eas.tensor(x, device='mps')\nfor _ in range(10):\n    slow(y, 1, 20000000, BLOCK=1, _grid=1, _sync=False)\n")

    def test_many_threads(self):
        code = """
import threading
bad = []
def work():
    try:
        for _ in range(20):
            works()
    except BaseException as e:
        bad.append(e)
threads = [threading.Thread(target=work) for _ in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not bad, bad
"""
        run(code)

    def test_interrupt(self):
        code = """
import signal, threading, os, time
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.time()
raises(KeyboardInterrupt, "", lambda: slow(x, 1, 1 << 40, BLOCK=1, _grid=1))
assert time.time() - start < 10
"""
        run(code, EAS_METAL_TIMEOUT="3")

    def test_nothing_is_reported(self):
        """What the other tests do is right in the eyes of Metal's validation."""
        r = run("works()\nimport runpy\nrunpy.run_path('tools/build_metal_ext.py', run_name='other')")
        self.assertNotIn("Metal validation", r.stderr)


if __name__ == "__main__":
    unittest.main()
