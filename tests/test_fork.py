"""os.fork() while other threads are busy: it returns at once in parent and child, and both go on working."""

import os
import unittest

from support import python

SOAK = bool(os.environ.get("EAS_SOAK"))

HEAD = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
import numpy as np, eager, eas
from eas import mk

@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)

def fine(k):
    x = eager.asarray(np.ones(1000, np.float32))
    assert (x * 3.0 + float(k)).sum().item() == 1000 * (3 + k)
    a = np.ones(3000, np.float32)
    c = np.zeros_like(a)
    add(a, a, c, 3000, BLOCK=256)
    assert (c == 2).all()
"""

BUSY = """
def evaluate(k):
    x = eager.asarray(np.ones(300000, np.float32))
    while True:
        (x * 2.0 + 1.0).sum().item()

def compile(k):
    while True:
        k += 1
        eager.compile(lambda a: (a * float(k) + a).sum())(eager.asarray(np.ones(5, np.float32)))

def show(k):
    while True:
        repr(eager.asarray(np.ones(5, np.float32)) + 1)

def launch(k):
    a = np.ones(200000, np.float32)
    c = np.zeros_like(a)
    while True:
        add(a, a, c, len(a), BLOCK=256)
        add(a, a, c, len(a), BLOCK=256, _sync=False)
        eas.synchronize()

def trace(k):
    a = np.ones(2000, np.float32)
    c = np.zeros_like(a)
    while True:
        k += 1

        @eas.kernel
        def f(a, c, K: eas.constexpr):
            i = mk.arange(0, 64)
            mk.store(c, i, mk.load(a, i) * float(K))

        f(a, c, K=k, _grid=1)

def capture(k):
    a = np.ones(2000, np.float32)
    c = np.zeros_like(a)
    while True:
        k += 1
        with eas.capture() as g:
            add(a, a, c, len(a), BLOCK=128 << k % 3)
        g.replay()

def profile(k):
    a = np.ones(2000, np.float32)
    c = np.zeros_like(a)
    while True:
        with eas.profile():
            add(a, a, c, len(a), BLOCK=256)

def forked(k):
    start = time.perf_counter()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            fine(k)
            os._exit(0)
        except BaseException as e:
            print(repr(e), flush=True)
            os._exit(1)
    took = time.perf_counter() - start
    status = os.waitpid(pid, 0)[1]
    assert status == 0, (k, status)
    return took, time.perf_counter() - start - took

signal.alarm(int(sys.argv[3]))
fine(0)
for k, name in enumerate(sys.argv[2].split(",")):
    threading.Thread(target=globals()[name], args=(1000 * k,), daemon=True).start()
time.sleep(0.2)
all = [forked(k) for k in range(int(sys.argv[1]))]
print("slowest", max(a for a, b in all), max(b for a, b in all), flush=True)
os._exit(0)
"""


@unittest.skipUnless(hasattr(os, "fork"), "no fork")
class Busy(unittest.TestCase):
    def forks(self, kinds, n=150, **env):
        r = python(HEAD + BUSY, str(n * 20 if SOAK else n), kinds, str(3000 if SOAK else 100), env=env, timeout=3000 if SOAK else 120)
        self.assertIn("slowest", r.stdout, r.stderr)
        parent, child = (float(x) for x in r.stdout.split()[-2:])
        self.assertLess(parent, 1)
        self.assertLess(child, 2)  # starts Python's and our threads anew, on a machine that is busy

    def test_while_tensors_are_evaluated(self):
        self.forks("evaluate,evaluate,evaluate")

    def test_while_functions_are_compiled(self):
        self.forks("compile,compile,evaluate")

    def test_while_tensors_are_shown(self):
        self.forks("show,evaluate")

    def test_while_kernels_run(self):
        self.forks("launch,launch")

    def test_while_kernels_are_compiled(self):
        self.forks("trace,trace", EAS_CACHE_DIR="off")

    def test_while_launches_are_captured_and_profiled(self):
        self.forks("capture,profile,launch")

    def test_while_everything_goes_on(self):
        self.forks("evaluate,compile,launch,trace,capture,profile")

    def test_on_the_interpreter(self):
        self.forks("evaluate,launch", 40, EAS_BACKEND="ref")


@unittest.skipUnless(hasattr(os, "fork"), "no fork")
class Nested(unittest.TestCase):
    def test_from_many_threads_at_once(self):
        code = """
signal.alarm(60)
fine(0)
bad = []
def work(k):
    for i in range(20):
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            try:
                fine(k)
                pid = os.fork()  # and a child of a child
                if not pid:
                    fine(k + 1)
                    os._exit(0)
                os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            except BaseException:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            bad.append(k)
        fine(k)
all = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[t.start() for t in all]
[t.join() for t in all]
print("bad", bad)
"""
        self.assertIn("bad []", python(HEAD + code, timeout=70).stdout)

    def test_a_child_that_ends_as_programs_do(self):
        code = """
signal.alarm(60)
x = eager.asarray(np.ones(300000, np.float32))
over = False
def evaluate():
    while not over:
        (x * 2.0 + 1.0).sum().item()
all = [threading.Thread(target=evaluate, daemon=True) for _ in range(2)]
[t.start() for t in all]
for k in range(20):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        fine(k)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
over = True
[t.join() for t in all]
print("fine")
"""
        self.assertIn("fine", python(HEAD + code, timeout=70).stdout)

    def test_from_a_signal_handler_inside_a_launch_and_an_evaluation(self):
        """The parent's result is whole; the child says that it has none, and goes on."""
        code = """
signal.alarm(60)
@eas.kernel
def spin(x, K, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.var(mk.load(x, i))
    for k in mk.range(K):
        v.set(v.value + 1.0)
    mk.store(x, i, v.value)
child = None
def handler(*_):
    global child
    if child is None:
        child = os.fork()
signal.signal(signal.SIGUSR1, handler)
def launch():
    x = np.zeros(64 * 4000, np.float32)
    spin(x, 100000, BLOCK=64, _grid=4000)
    assert (x == 100000).all()
def evaluate():
    x = eager.asarray(np.ones((2500, 2500), np.float32))
    assert np.allclose((x @ x @ x @ x).numpy(), 2500.0**3, rtol=1e-3)
fine(0)
for f in launch, evaluate:
    child = None
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    said = None
    try:
        f()
        while child is None:
            time.sleep(0.01)
    except RuntimeError as e:
        said = str(e)
    if child == 0:
        ok = said is None or "forked" in said
        fine(3)
        os._exit(0 if ok else 1)
    assert said is None, said
    assert os.waitpid(child, 0)[1] == 0, f
print("fine")
"""
        self.assertIn("fine", python(HEAD + code, env={"EAS_NUM_THREADS": "2"}, timeout=70).stdout)


class WithoutFork(unittest.TestCase):
    def test_compiling_and_showing_wait_without_the_gil(self):
        """Whoever evaluates may need the GIL: nobody waits for an evaluation with it held."""
        code = """
signal.alarm(60)
x = eager.asarray(np.ones(2000000, np.float32))
over = False
def evaluate():
    while not over:
        (x * 2.0 + 1.0).sum().item()
all = [threading.Thread(target=evaluate, daemon=True) for _ in range(3)]
[t.start() for t in all]
for k in range(100):
    f = eager.compile(lambda a: (a * float(k) + a).sum())
    assert f(eager.asarray(np.ones(5, np.float32))).item() == 5 * (k + 1)
over = True
[t.join() for t in all]
print("fine")
"""
        self.assertIn("fine", python(HEAD + code, timeout=70).stdout)
