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


class UnittestDiscovery(unittest.TestCase):
    def test_documented_command_finds_these_tests(self):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.dirname(eas.__file__)), *sys.path])}
        code = "import unittest; s = unittest.defaultTestLoader.discover('tests', 'test*.py'); print(s.countTestCases())"
        r = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
        self.assertGreater(int(r.stdout.split()[-1]), 50, r.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
