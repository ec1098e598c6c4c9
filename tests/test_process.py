"""Threads, fork, Ctrl-C, imports: the host process stays well."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy as np
from support import ROOT, python

import eas
from eas import mk


@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


class Imports(unittest.TestCase):
    def test_nothing_heavy(self):
        code = """if 1:
            import sys, numpy
            before = set(sys.modules)
            import eas
            from eas import mk
            new = set(sys.modules) - before
            print(sorted(new))
            bad = [m for m in new if m.split('.')[0] in ('torch', 'inspect', 'dataclasses', 'typing', 'ctypes', 'ml_dtypes', 'jax')]
            assert not bad, bad
            maps = open('/proc/self/maps').read() if sys.platform == 'linux' else ''
            assert 'libeas-llvm' not in maps and 'libLLVM' not in maps
        """
        r = python(code)
        self.assertIn("eas._eas", r.stdout)

    def test_quick(self):
        code = "import numpy, time; t = time.perf_counter(); import eas; from eas import mk; print(time.perf_counter() - t)"
        best = min(float(python(code).stdout) for _ in range(5))
        self.assertLess(best, 0.1)

    def test_works_without_torch(self):
        code = """if 1:
            import sys
            sys.modules['torch'] = None
            import numpy as np, eas
            t = eas.tensor(np.ones(3, np.float32))
            try:
                t.to_torch()
            except RuntimeError as e:
                print(e)
        """
        self.assertIn("torch is not installed", python(code).stdout)


class Threads(unittest.TestCase):
    def test_launches_from_many_threads(self):
        errors = []

        def work(seed):
            try:
                rng = np.random.default_rng(seed)
                for n in (1, 100, 5000, 200_000):
                    for _ in range(10):
                        a, b = rng.standard_normal((2, n), dtype=np.float32)
                        c = np.zeros(n, np.float32)
                        add(a, b, c, n, BLOCK=64 << seed % 3)
                        np.testing.assert_array_equal(c, a + b)
            except BaseException as e:
                errors.append(e)

        ts = [threading.Thread(target=work, args=(s,)) for s in range(16)]
        [t.start() for t in ts]
        [t.join() for t in ts]
        self.assertEqual(errors, [])

    def test_tracing_is_per_thread(self):
        entered, leave, seen = threading.Event(), threading.Event(), []

        @eas.kernel
        def slow(out, B: eas.constexpr):
            mk.store(out, mk.arange(0, B), 1.0)
            entered.set()
            leave.wait(10)
            mk.store(out, mk.arange(0, B), 2.0)

        out = np.zeros(4, np.float32)
        t = threading.Thread(target=lambda: slow(out, 4, _grid=1))
        t.start()
        entered.wait(10)
        try:
            mk.arange(0, 4)
        except RuntimeError as e:
            seen.append(e)
        a = np.ones(10, np.float32)
        add(a, a, a.copy(), 10, BLOCK=16)
        leave.set()
        t.join()
        self.assertEqual(len(seen), 1)
        self.assertEqual(out[0], 2)

    def test_the_gil_is_released(self):
        n = 1 << 22
        a = np.ones(n, np.float32)
        c = np.zeros_like(a)
        add(a, a, c, n, BLOCK=1024)
        ticks, stop = [0], threading.Event()

        def count():
            while not stop.is_set():
                ticks[0] += 1

        t = threading.Thread(target=count)
        t.start()
        start = time.perf_counter()
        while time.perf_counter() - start < 0.5:
            add(a, a, c, n, BLOCK=1024)
        stop.set()
        t.join()
        self.assertGreater(ticks[0], 1000)


@unittest.skipUnless(hasattr(os, "fork"), "no fork")
class Fork(unittest.TestCase):
    def test_child_works_after_use(self):
        code = """if 1:
            import os, sys, warnings, numpy as np, eas
            warnings.simplefilter('ignore')
            from eas import mk
            @eas.kernel
            def add(a, b, c, N, BLOCK: eas.constexpr):
                i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
                mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)
            n = 1 << 20
            a = np.arange(n, dtype=np.float32)
            c = np.zeros_like(a)
            add(a, a, c, n, BLOCK=256)
            for block in (256, 128):
                pid = os.fork()
                if pid == 0:
                    c[:] = 0
                    add(a, a, c, n, BLOCK=block)
                    os._exit(0 if (c == a + a).all() else 1)
                assert os.waitpid(pid, 0)[1] == 0
            c[:] = 0
            add(a, a, c, n, BLOCK=256)
            assert (c == a + a).all()
            print('ok')
        """
        self.assertIn("ok", python(code, timeout=30).stdout)

    def test_multiprocessing(self):
        code = """if 1:
            import multiprocessing as mp, numpy as np, eas, warnings
            warnings.simplefilter('ignore')
            from eas import mk
            @eas.kernel
            def twice(x, N, BLOCK: eas.constexpr):
                i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
                mk.store(x, i, mk.load(x, i, i < N) * 2, i < N)
            def work(k):
                x = np.full(100000, k, np.float32)
                twice(x, len(x), BLOCK=128)
                return float(x.sum())
            work(1)
            with mp.get_context('fork').Pool(4) as p:
                assert p.map(work, range(8)) == [200000.0 * k for k in range(8)]
            print('ok')
        """
        self.assertIn("ok", python(code, timeout=60).stdout)


class Interrupts(unittest.TestCase):
    CODE = """if 1:
        import os, signal, sys, threading, time, numpy as np, eas
        from eas import mk
        @eas.kernel
        def spin(x, K, BLOCK: eas.constexpr):
            i = mk.arange(0, BLOCK)
            v = mk.var(mk.load(x, i))
            for k in mk.range(K):
                v.set(v.value * 0.999 + 1.0)
            mk.store(x, i + mk.program_id(0) * 0, v.value)
        x = np.ones(64, np.float32)
        spin(x, 1, BLOCK=64, _grid=1)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.perf_counter()
        try:
            spin(x, 100_000 if len(sys.argv) < 2 else int(sys.argv[1]), BLOCK=64, _grid=10_000_000)
            print('not interrupted')
        except KeyboardInterrupt:
            took = time.perf_counter() - start
            spin(x, 1, BLOCK=64, _grid=1)
            print('interrupted after', took, np.isfinite(x).all())
    """

    def test_ctrl_c_stops_a_long_launch(self):
        for device, k in (("cpu", "10000"), ("ref", "10")):
            r = python(self.CODE, k, env={"EAS_BACKEND": device}, timeout=60)
            self.assertIn("interrupted after", r.stdout, device)
            self.assertLess(float(r.stdout.split()[2]), 5)
            self.assertIn("True", r.stdout)


class EndlessLoops(unittest.TestCase):
    """Ctrl-C reaches into one program of a compiled kernel, and the process goes on."""

    CODE = """if 1:
        import os, signal, sys, threading, time, numpy as np, eager, eas
        from eas import mk
        @eas.kernel
        def scalar(x, STEP, BLOCK: eas.constexpr):
            n = mk.var(mk.load(x, 0) + 1)
            for _ in mk.while_(lambda: n != 0):
                n.set(n.value + STEP)
            mk.store(x, mk.program_id(0), n.value)
        @eas.kernel
        def blocks(x, STEP, BLOCK: eas.constexpr):
            n, v = mk.var(1), mk.var(mk.load(x, mk.arange(0, BLOCK)))
            for _ in mk.while_(lambda: n != 0):
                v.set(v.value * 3 + 1)
                n.set(n.value + STEP)
            mk.store(x, mk.arange(0, BLOCK), v.value)
        @eas.kernel
        def threads(x, STEP, BLOCK: eas.constexpr):
            i = mk.tid(0, BLOCK)
            n = mk.var(mk.load(x, i) + 1 + i % 7)
            for _ in mk.while_(lambda: n > 0):
                n.set(n.value + STEP)
            mk.store(x, i, n.value)
        @eas.kernel
        def nested(x, STEP, BLOCK: eas.constexpr):
            n = mk.var(1)
            for _ in mk.while_(lambda: n != 0):
                m = mk.var(10)
                for _ in mk.while_(lambda: m > 0):
                    m.set(m.value - 1)
                for k in mk.range(3):
                    n.set(n.value + k * 0)
                n.set(n.value + STEP)
            mk.store(x, 0, n.value)
        kernel, grid, sync = globals()[sys.argv[1]], int(sys.argv[2]), sys.argv[3] == "sync"
        x = np.zeros(64, np.int64)
        kernel(x, -1, BLOCK=32, _grid=1)  # that one ends
        x[:] = 0
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.perf_counter()
        try:
            kernel(x, 0, BLOCK=32, _grid=grid, _sync=sync)
            eas.synchronize()
            print('not interrupted')
        except KeyboardInterrupt:
            took = time.perf_counter() - start
            if sync:
                x[:] = 0
                kernel(x, -1, BLOCK=32, _grid=1)
                assert (eager.asarray(np.ones(1000, np.float32)) + 1).sum().item() == 2000
            print('interrupted after', took)
    """

    def stops(self, *args, **env):
        r = python(self.CODE, *args, env=env, timeout=60)
        self.assertIn("interrupted after", r.stdout, args)
        self.assertLess(float(r.stdout.split()[2]), 5)

    def test_in_every_kind_of_loop(self):
        for kernel in ("scalar", "blocks", "threads", "nested"):
            for device in ("cpu", "ref"):
                with self.subTest(kernel=kernel, device=device):
                    self.stops(kernel, "1", "sync", EAS_BACKEND=device)

    def test_on_all_threads(self):
        for kernel in ("scalar", "threads"):
            with self.subTest(kernel=kernel):
                self.stops(kernel, "10000", "sync", EAS_BACKEND="cpu", EAS_NUM_THREADS="4")

    def test_in_the_background(self):
        """Waiting for it ends; so does the process, although its loop does not."""
        self.stops("scalar", "1", "queued", EAS_BACKEND="cpu")

    def test_in_a_loop_of_tensors(self):
        code = """if 1:
            import os, signal, threading, time, numpy as np, eager
            f = eager.compile(lambda x: eager.while_loop(lambda s: s < 10, lambda s: s * 0 + 1, x))
            assert f(eager.asarray(np.float32(11))).item() == 11
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            start = time.perf_counter()
            try:
                f(eager.asarray(np.float32(1))).item()
            except KeyboardInterrupt:
                took = time.perf_counter() - start
                assert f(eager.asarray(np.float32(11))).item() == 11
                print('interrupted after', took)
        """
        r = python(code, timeout=60)
        self.assertLess(float(r.stdout.split()[2]), 5)


class UnittestDiscovery(unittest.TestCase):
    def test_documented_command_finds_these_tests(self):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.dirname(eas.__file__)), *sys.path])}
        code = "import unittest; s = unittest.defaultTestLoader.discover('tests', 'test*.py'); print(s.countTestCases())"
        r = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
        self.assertGreater(int(r.stdout.split()[-1]), 50, r.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
