"""Compilers and drivers that fail, through libraries in front of the real ones; and what many queued launches
and streams under load leave behind.

EAS_SOAK=1 (make soak) runs as many launches as the numbers of the project name."""

import ctypes.util
import glob
import os
import subprocess
import tempfile
import threading
import unittest

import numpy as np
import support
from test_streams import add, step

import eas

SOAK = bool(os.environ.get("EAS_SOAK"))
HOME = os.path.dirname(os.path.dirname(eas.__file__))
LLVM = [p for folder in (".*.libs", "eas", "eas/*") for p in glob.glob(os.path.join(HOME, folder, "libeas-llvm.so"))]
HEAD = "import numpy as np, eas\nfrom test_streams import add, pair\na, b, c = pair()\n"

# The first kernel that is compiled is refused.
BAD_COMPILER = """
#include <dlfcn.h>
#include <string.h>
#include <eas.h>
typedef int compile(const void *ir, const void *opt, void *image, char **text, char **error);
__attribute__((visibility("default"))) int eas_llvm_compile(const void *ir, const void *opt, void *image, char **text, char **error)
{
    static int calls;
    if (!calls++) {
        *error = strdup("the compiler had a bad day");
        return EAS_ERR_RUNTIME;
    }
    return ((compile *)dlsym(RTLD_NEXT, "eas_llvm_compile"))(ir, opt, image, text, error);
}
"""

# What drivers say of a launch that ran into their time limit: its event ends with CL_OUT_OF_RESOURCES. The
# first launch is such a one.
BAD_DRIVER = """
#include <dlfcn.h>
#include <stddef.h>
typedef int enqueue(void *, void *, unsigned, const size_t *, const size_t *, const size_t *, unsigned, void *const *, void **);
typedef int info(void *event, unsigned what, size_t size, void *value, size_t *real);
static void *bad;
static int launches;
__attribute__((visibility("default"))) int clEnqueueNDRangeKernel(void *q, void *k, unsigned n, const size_t *first, const size_t *global,
                                                                  const size_t *local, unsigned waits, void *const *list, void **event)
{
    int e = ((enqueue *)dlsym(RTLD_NEXT, "clEnqueueNDRangeKernel"))(q, k, n, first, global, local, waits, list, event);
    if (!e && !launches++)
        bad = *event;
    return e;
}
__attribute__((visibility("default"))) int clGetEventInfo(void *event, unsigned what, size_t size, void *value, size_t *real)
{
    int e = ((info *)dlsym(RTLD_NEXT, "clGetEventInfo"))(event, what, size, value, real);
    if (!e && what == 0x11D3 && *(int *)value == 0 && event == bad) {
        bad = NULL;
        *(int *)value = -5;
    }
    return e;
}
"""


# The next buffers, as many as fail_buffers was told, are refused; and the first program does not build.
POOR_DRIVER = """
#include <dlfcn.h>
#include <stddef.h>
typedef void *create(void *, unsigned long long, size_t, void *, int *);
typedef int build(void *, unsigned, void *const *, const char *, void *, void *);
static int left, builds;
__attribute__((visibility("default"))) void fail_buffers(int n) { left = n; }
__attribute__((visibility("default"))) void *clCreateBuffer(void *c, unsigned long long flags, size_t n, void *host, int *error)
{
    if (left > 0) {
        left--;
        *error = -4;
        return NULL;
    }
    return ((create *)dlsym(RTLD_NEXT, "clCreateBuffer"))(c, flags, n, host, error);
}
__attribute__((visibility("default"))) int clBuildProgram(void *p, unsigned n, void *const *devices, const char *options, void *f, void *ctx)
{
    int e = ((build *)dlsym(RTLD_NEXT, "clBuildProgram"))(p, n, devices, options, f, ctx);
    return e || builds++ ? e : -11;
}
"""

QUIET_DRIVER = POOR_DRIVER.replace("e || builds++ ? e : -11", "e")

# In a process whose launches go to `device`. no_memory(n): its next n allocations fail; of the host's, all
# that need more than 8 MB.
TOOLS = """
import ctypes, os, resource, signal, sys, threading, time, weakref
from test_streams import spin, step
device = os.environ["EAS_BACKEND"]
def used():
    return int(open("/proc/self/statm").read().split()[0]) * 4096
def no_memory(n):
    if device == "mps":
        ctypes.CDLL(os.environ["EAS_METAL_LIBRARY"]).eas_standin_fault(b"memory:0x%d" % n)
    elif device == "opencl":
        ctypes.CDLL(os.environ["EAS_OPENCL_LIBRARY"]).fail_buffers(n)
    else:
        limit = used() + (8 << 20) if n else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
def turns(seconds, x, grid):
    # of spin, so that a launch takes about that long
    spin(x, 10, BLOCK=64, _grid=grid)
    n = 100
    while True:
        start = time.perf_counter()
        spin(x, n, BLOCK=64, _grid=grid)
        took = time.perf_counter() - start
        if took > 0.02:
            return int(n * seconds / took) + 1
        n *= 4
def works():
    c[:] = 0
    add(a, b, c, 1000, BLOCK=128)
    assert (c == a + b).all()
"""


def in_front_of(library, source, folder):
    """A library that has all of another one's functions, some of them replaced."""
    path = os.path.join(folder, "front.so")
    at, name = os.path.split(library)
    with open(path[:-3] + ".c", "w") as f:
        f.write("#define _GNU_SOURCE\n" + source)
    where = [f"-L{at}", f"-Wl,-rpath,{at}"] if at else []
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{support.ROOT}/include", path[:-3] + ".c", "-o", path, "-Wl,--no-as-needed", *where, f"-l:{name}", "-ldl"],
        check=True,
    )
    return path


class Failures(unittest.TestCase):
    def run_with(self, code, library, source, variable, **env):
        with tempfile.TemporaryDirectory() as folder:
            env = {variable: in_front_of(library, source, folder), "EAS_CACHE_DIR": "off", **env}
            return support.python(HEAD + code, env=env, timeout=60).stdout

    @unittest.skipUnless(LLVM, "no LLVM here")
    def test_a_kernel_that_does_not_compile_for_the_cpu(self):
        code = """
for sync in (True, False):
    try:
        add(a, b, c, 1000, BLOCK=128, _sync=sync)
    except RuntimeError as e:
        assert sync and (c == 0).all()
        print(e)
eas.synchronize()
assert (c == a + b).all()
"""
        out = self.run_with(code, LLVM[0], BAD_COMPILER, "EAS_LLVM_LIBRARY")
        self.assertEqual(out.strip(), "kernel add: the compiler had a bad day")

    @unittest.skipUnless("opencl" in support.DEVICES and ctypes.util.find_library("OpenCL"), "no OpenCL device")
    def test_a_launch_that_takes_too_long_for_the_driver(self):
        code = """
import sys
x, y, z = (eas.tensor(v, device="opencl") for v in (a, b, c))
try:
    add(x, y, z, 1000, BLOCK=128, _sync=sys.argv[1] == "1")
    eas.synchronize()
except RuntimeError as e:
    print(e)
eas.synchronize()  # it was told once
add(x, y, z, 1000, BLOCK=128)
assert (z.numpy() == a + b).all()
add(a, b, c, 1000, BLOCK=128)
assert (c == a + b).all()
"""
        for sync in "01":
            code_now = code.replace("sys.argv[1]", repr(sync))
            out = self.run_with(code_now, ctypes.util.find_library("OpenCL"), BAD_DRIVER, "EAS_OPENCL_LIBRARY", EAS_BACKEND="opencl")
            self.assertRegex(out.strip(), r"^OpenCL: a command failed: out of resources \(error -5\)$")


class OnEveryDevice(unittest.TestCase):
    """Each in a process of its own, with a time limit: nothing hangs."""

    def go(self, code, device, **env):
        with tempfile.TemporaryDirectory() as folder:
            env = {"EAS_BACKEND": device, "EAS_CACHE_DIR": folder, **env}
            if device == "opencl":
                env["EAS_OPENCL_LIBRARY"] = in_front_of(ctypes.util.find_library("OpenCL"), env.pop("DRIVER", QUIET_DRIVER), folder)
            return support.python(HEAD + TOOLS + code + '\nprint("fine")', env=env, timeout=100).stdout.split("\n")[-2]

    def every(self, code, but=(), **env):
        for device in support.DEVICES:
            if device not in but:
                with self.subTest(device=device):
                    self.assertEqual(self.go(code, device, **env), "fine")

    def test_what_is_kept_is_given_back_before_memory_runs_out(self):
        self.every("""
t = eas.zeros(8 << 20, device=device)
del t
works()
assert eas.memory_stats(device)["cached_bytes"] >= 32 << 20
no_memory(1)
t = eas.empty(6 << 20, device=device)
s = eas.memory_stats(device)
no_memory(0)
assert s["cached_bytes"] < 1 << 20 and s["live_bytes"] >= 24 << 20, s
del t
eas.empty_cache(device)
no_memory(2)
try:
    eas.empty(16 << 20, device=device)
    raise AssertionError("there was room")
except MemoryError as e:
    assert device in str(e), e
no_memory(0)
works()
""")

    def test_no_memory_for_the_arrays_of_a_queued_launch(self):
        self.every(
            """
works()
eas.empty_cache(device)
c[:] = 7
no_memory(50)
try:
    add(a, b, c, 1000, BLOCK=128, _sync=False)
    raise AssertionError("there was room")
except MemoryError as e:
    assert device in str(e), e
no_memory(0)
eas.synchronize()
assert (c == 7).all()
works()
""",
            but=("cpu", "ref"),  # they take the arrays as they are
        )

    def test_a_captured_kernel_that_does_not_compile(self):
        code = """
def captured():
    with eas.capture() as g:
        add(a, b, c, 1000, BLOCK=128)
        step(c, c, 2.0, 1000, BLOCK=128)
    return g
try:
    captured()
    raise AssertionError("it compiled")
except RuntimeError as e:
    assert "kernel" in str(e), e
assert (c == 0).all()
works()
c[:] = 0
captured().replay()
assert np.allclose(c, (a + b) * 2 + 1, atol=1e-5)
"""
        with tempfile.TemporaryDirectory() as folder:
            if LLVM:
                self.assertEqual(self.go(code, "cpu", EAS_LLVM_LIBRARY=in_front_of(LLVM[0], BAD_COMPILER, folder), EAS_CACHE_DIR="off"), "fine")
        self.every(code, but=("cpu", "ref"), EAS_METAL_FAULT="compile", DRIVER=POOR_DRIVER, EAS_CACHE_DIR="off")

    def test_fork_with_work_pending(self):
        self.every("""
works()
x = eas.tensor(np.zeros(64, np.float32), device=device)
n = turns(0.1, x, 1)
for _ in range(4):
    spin(x, n, BLOCK=64, _grid=1, _sync=False)
step(x, x, 0.0, 64, BLOCK=64, _sync=False)
pid = os.fork()
if not pid:
    signal.alarm(30)
    try:
        if device in ("mps", "opencl"):
            for f in (works, eas.synchronize, lambda: eas.zeros(3, device=device), lambda: eas.Stream(device)):
                try:
                    f()
                    assert f is eas.synchronize, f
                except RuntimeError as e:
                    assert "fork" in str(e), e
        os.environ["EAS_BACKEND"] = "cpu"
        works()
        add(a, b, c, 1000, BLOCK=128, _sync=False)
        eas.synchronize("cpu")
        os._exit(0)
    except BaseException as e:
        print(repr(e), flush=True)
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
eas.synchronize()
assert (x.numpy() == 1).all()
works()
""")

    def test_exit_with_a_replay_pending(self):
        self.every("""
x = eas.tensor(np.zeros(64, np.float32), device=device)
n = turns(0.05, x, 1)
with eas.capture() as g:
    for _ in range(10):
        spin(x, n, BLOCK=64, _grid=1)
g.replay(_sync=False)
g.replay(_sync=False)
""")

    def interrupted(self, what, **env):
        """Ctrl-C while `what` waits for seconds of work."""
        self.every(
            f"""
works()
x = eas.tensor(np.zeros(64 * 64, np.float32), device=device)
n = turns(0.25, x, 64)
with eas.capture() as g:
    for _ in range(20):
        spin(x, n, BLOCK=64, _grid=64)
# not before the main thread is inside the call: it is told by the time that passes there
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.perf_counter()
try:
    {what}
    raise AssertionError("it was not interrupted")
except KeyboardInterrupt:
    took = time.perf_counter() - start
assert took < 4, took
eas.synchronize()
works()
""",
            **env,
        )

    def test_ctrl_c_in_a_long_launch(self):
        self.interrupted("spin(x, 20 * n, BLOCK=64, _grid=64)")

    def test_ctrl_c_in_a_long_replay(self):
        self.interrupted("g.replay()")

    def test_ctrl_c_in_a_synchronise(self):
        self.interrupted("""for _ in range(20):
        spin(x, n, BLOCK=64, _grid=64, _sync=False)
    eas.synchronize()""")

    def test_no_more_are_pending_than_may_be(self):
        self.every(
            """
x = np.zeros(64, np.float32)
n = turns(0.01, x, 1)
all, worst = [], 0
for i in range(30):
    x = np.zeros(64, np.float32)
    all.append(weakref.ref(x))
    spin(x, n, BLOCK=64, _grid=1, _sync=False)
    del x
    worst = max(worst, sum(r() is not None for r in all))
eas.synchronize()
assert worst <= 5, worst  # and the one that waits
""",
            EAS_MAX_IN_FLIGHT="4",
        )

    def test_the_footprint_is_what_lives_and_the_cap(self):
        self.every(
            """
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
works()
base, worst = rss(), 0
for i in range(60):
    t = eas.zeros((1 + i) << 18, device=device)
    worst = max(worst, rss() - base - t.nbytes)
    del t
s = eas.memory_stats(device)
assert s["cached_bytes"] <= s["limit"] == 64 << 20, s
assert worst <= (64 << 20) + (24 << 20), worst
eas.empty_cache(device)
assert rss() - base <= 24 << 20, rss() - base
""",
            EAS_POOL_LIMIT="64M",
        )

    def test_two_threads_replay_one_graph(self):
        self.every("""
x, y = eas.zeros(64, device=device), eas.zeros(64, device=device)
with eas.capture() as g:
    step(x, y, 1.0, 64, BLOCK=64)
    step(y, x, 1.0, 64, BLOCK=64)
stream, bad = eas.Stream(device), []
def work():
    try:
        with stream:
            for _ in range(25):
                g.replay(_sync=False)
            stream.synchronize()
    except BaseException as e:
        bad.append(e)
all = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in all]
[t.join() for t in all]
assert not bad, bad
assert (x.numpy() == 200).all(), x.numpy()
""")

    def test_the_cpu_without_its_compiler_interprets_and_says_so(self):
        code = HEAD + "add(a, b, c, 1000, BLOCK=128)\nassert (c == a + b).all()"
        r = support.python(code, env={"EAS_LLVM_LIBRARY": "/nowhere.so", "EAS_CACHE_DIR": "off", "EAS_BACKEND": "cpu"}, timeout=60)
        self.assertRegex(r.stderr, "kernels run on the interpreter, slowly: /nowhere.so")


class Many(unittest.TestCase):
    def test_queued_launches_keep_memory_flat(self):
        code = """
import sys
from test_streams import step
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
device, n = sys.argv[1], int(sys.argv[2])
x, y = (eas.tensor(np.ones(64, np.float32), device=device) for _ in range(2))
for i in range(n):
    if i == n // 5:
        before = rss()
    step(x, y, 0.5, 64, BLOCK=64, _sync=False)
eas.synchronize()
assert (y.numpy() == 1.5).all()
print((rss() - before) >> 10)
"""
        counts = (
            {"cpu": 1000000, "opencl": 1000000, "mps": 100000, "ref": 100000} if SOAK else {"cpu": 50000, "opencl": 5000, "mps": 2000, "ref": 2000}
        )
        for device in support.DEVICES:
            with self.subTest(device=device):
                out = support.python(HEAD + code, device, str(counts[device]), env={"EAS_MAX_IN_FLIGHT": "64"}, timeout=1800 if SOAK else 120).stdout
                self.assertLess(int(out), 4096, "KB more than after a fifth of the launches")

    def test_two_streams_under_load(self):
        """Each stream adds to what the other one left, by turns; a third thread loads the device meanwhile.
        """
        for device in support.DEVICES:
            rounds = {"cpu": 2000, "opencl": 300, "mps": 60, "ref": 60}[device] * (20 if SOAK else 1)
            one, two = eas.Stream(device), eas.Stream(device)
            x, y = (eas.tensor(np.zeros(64, np.float32), device=device) for _ in range(2))
            p, q, r = (eas.tensor(np.ones(5000, np.float32), device=device) for _ in range(3))
            over = threading.Event()

            def load(device=device, p=p, q=q, r=r, over=over):
                with eas.Stream(device):
                    while not over.is_set():
                        add(p, q, r, 5000, BLOCK=256, _sync=False)

            busy = threading.Thread(target=load)
            busy.start()
            try:
                for _ in range(rounds):
                    step(x, y, 1, 64, BLOCK=64, _sync=False, _stream=one)  # y = x + 1
                    two.wait(one.record())
                    step(y, x, 1, 64, BLOCK=64, _sync=False, _stream=two)
                    one.wait(two.record())
                one.synchronize()
                two.synchronize()
            finally:
                over.set()
                busy.join()
            eas.synchronize()
            self.assertTrue((x.numpy() == 2 * rounds).all() and (y.numpy() == 2 * rounds - 1).all(), device)
