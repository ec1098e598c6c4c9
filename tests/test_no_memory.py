"""Allocations that fail, one after another, through the whole product: each is a MemoryError or goes
unnoticed, and the next call works.

A library in front of the C library's allocator (fail_alloc.c) makes the n-th allocation fail, alone or with
all that follow. Each n is tried in a child of its own, so that each begins with nothing compiled. EAS_SOAK=1
tries every n."""

import ctypes.util
import os
import subprocess
import sys
import tempfile
import unittest

from support import ROOT, python

SOAK = bool(os.environ.get("EAS_SOAK"))

HEAD = """
import collections, ctypes, os, resource, signal, sys, warnings
import numpy as np, eager, eas
from eas import mk
warnings.simplefilter("ignore")
where = ctypes.CDLL(None)
first, last, count = (ctypes.c_long.in_dll(where, "fail_" + n) for n in ("first", "last", "count"))

@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.exp(mk.load(a, i, i < N)) + mk.load(b, i, i < N), i < N)

a = np.ones(1000, np.float32)
c = np.zeros_like(a)

# Each gives what it computed, and what that should be: NumPy compares them when allocations work again.
def launch():
    c[:] = 0
    add(a, a, c, 1000, BLOCK=128)
    return c, np.e + 1

def evaluate():
    x = eager.asarray(a)
    return (eager.exp(x) + 1).sum().item(), 1000 * (np.e + 1)

def product():
    x = eager.asarray(np.ones((40, 30), np.float32))
    y = eager.asarray(np.ones((30, 20), np.float32))
    return eager.softmax(x @ y, axis=-1).numpy(), 1 / 20

def compiled():
    f = eager.compile(lambda x: (x * 2 + 1).sum())
    return f(eager.asarray(a)).item(), 3000

def capture():
    c[:] = 0
    with eas.capture() as g:
        add(a, a, c, 1000, BLOCK=256)
    g.replay()
    return c, np.e + 1

def queued():
    c[:] = 0
    add(a, a, c, 1000, BLOCK=512, _sync=False)
    eas.synchronize()
    return c, np.e + 1

def text():
    return float("ret" in add.to_asm(a, a, c, 1000, BLOCK=64)), 1

action = globals()[sys.argv[1]]
warm = int(sys.argv[2])

# How Python says it. Where the C library has no memory for a thread's own variables it ends the process
# itself, with 127: no library can help that.
SAID = ("can't allocate lock", "can't allocate read lock", "can't start new thread")

def attempt(n, arm, disarm):
    signal.alarm(60)
    if action is queued:  # its thread is there
        add(a, a, c, 1, BLOCK=16, _sync=False)
        eas.synchronize()
    arm()
    try:
        got, result = 10, action()
    except MemoryError:
        got = 11
    except BaseException as e:
        got, error = 11 if str(e) in SAID else 12, e
    disarm()
    if got == 12:
        print(n, repr(error), file=sys.stderr, flush=True)
    for value, want in ([result] if got == 10 else []) + [action()]:
        if not np.allclose(value, want):
            got = 13
    return got

def tried(n, arm, disarm):
    pid = os.fork()
    if not pid:
        got = 14
        try:
            got = attempt(n, arm, disarm)
        finally:
            os._exit(got)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

if warm:
    action()
"""

SWEEP = """
step, many = int(sys.argv[3]), int(sys.argv[4])
seen, n, bad = collections.Counter(), 0, []
while len(bad) < 6:
    def arm():
        last.value = n + many
        count.value = 0
        first.value = n
    def disarm():
        past = count.value <= n
        first.value = -1
        if past:
            os._exit(20)  # it takes fewer allocations than that
    got = tried(n, arm, disarm)
    if got == 20:
        break
    seen[got] += 1
    if got not in (10, 11, 127):
        bad.append((n, got))
    n += step
print("bad", bad, "of", sum(seen.values()), dict(seen))
"""

LIMITS = """
import re
size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) << 10
bad, seen = [], collections.Counter()
for room in range(0, 64 << 20, int(sys.argv[3]) << 10):
    none = resource.RLIM_INFINITY
    got = tried(room, lambda: resource.setrlimit(resource.RLIMIT_AS, (size + room, none)), lambda: resource.setrlimit(resource.RLIMIT_AS, (none, none)))
    seen[got] += 1
    if got not in (10, 11, 127):
        bad.append((room, got))
print("bad", bad, "of", sum(seen.values()), dict(seen))
"""

ACTIONS = ("launch", "evaluate", "product", "compiled", "capture", "queued", "text")


@unittest.skipUnless(sys.platform == "linux" and ctypes.util.find_library("c"), "the allocator's inner names are glibc's")
class Allocations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.shim = os.path.join(cls.folder.name, "fail_alloc.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", cls.shim, os.path.join(ROOT, "tests", "fail_alloc.c")], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_all(self, code, device, *args, cache="off"):
        env = {"LD_PRELOAD": self.shim, "EAS_CACHE_DIR": cache, "EAS_BACKEND": device, "EAS_NUM_THREADS": "1"}
        r = python(HEAD + code, *(str(a) for a in args), env=env, timeout=7200 if SOAK else 300)
        self.assertIn("bad [] of", r.stdout, r.stderr)

    def sweep(self, device, warm, step, many, cache="off"):
        for action in ACTIONS:
            with self.subTest(action=action, warm=warm, many=many):
                self.run_all(SWEEP, device, action, warm, 1 if SOAK else step, many, cache=cache)

    def test_the_nth_fails_on_the_cpu(self):
        self.sweep("cpu", 0, 601, 1)

    def test_the_nth_fails_where_the_compiler_is_open_already(self):
        self.sweep("cpu", 1, 7, 1)

    def test_all_from_the_nth_on_fail_on_the_cpu(self):
        self.sweep("cpu", 0, 401, 1 << 40)

    def test_the_nth_fails_on_the_interpreter(self):
        self.sweep("ref", 0, 37, 1)

    def test_all_from_the_nth_on_fail_on_the_interpreter(self):
        self.sweep("ref", 0, 37, 1 << 40)

    def test_with_the_cache_on_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            self.sweep("cpu", 0, 37, 1, cache=folder)

    def test_address_space_runs_out(self):
        for action in ACTIONS:
            with self.subTest(action=action):
                self.run_all(LIMITS, "cpu", action, 0, 64 if SOAK else 1789)
