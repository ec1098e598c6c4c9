"""Compilers and drivers that fail, through libraries in front of the real ones; and what many queued launches and streams under load leave behind.

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

# What drivers say of a launch that ran into their time limit: its event ends with CL_OUT_OF_RESOURCES. The first launch is such a one.
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
        """Each stream adds to what the other one left, by turns; a third thread loads the device meanwhile."""
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
