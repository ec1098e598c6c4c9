"""Devices of one process that fail: all of them end with one error, soon, and the mesh can be used again.
(Ranks of a job: tests/test_mpi.py. Calls that differ, early returns and silence between threads:
tests/c/test_comm.c.)"""

import os
import subprocess
import sys
import time
import unittest

import numpy as np

import eager
from eager import DeviceMesh, P, Tensor

mesh = DeviceMesh("four", (4,), ("x",))


def put(a, spec):
    return Tensor.constant(a).shard(mesh, spec)


def run(text, **env):
    begin = time.monotonic()
    e = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_", "EAS_DIST"))}
    p = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100, env={**e, **env}, cwd="/")
    return p.returncode, p.stdout + p.stderr, time.monotonic() - begin


MEMORY = """
import resource
import numpy as np
import eager
from eager import DeviceMesh, P, Tensor
mesh = DeviceMesh("four", (4,), ("x",))
x = Tensor.constant(np.ones((64, 64), np.float32)).shard(mesh, P("x", None))
(x @ x.T).sum().numpy()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
try:
    y = eager.broadcast_to(x.reshape((64, 1, 64)), (64, 1 << 17, 64)) + 1.0   # 512 MB on each device
    (y * 2).realize()
except MemoryError as e:
    print("MemoryError", e)
else:
    raise SystemExit("no error")
assert float((x * 2).sum().numpy()) == 8192
print("fine")
"""

INTERRUPT = """
import os, signal, threading, time
import numpy as np
import eager
from eager import DeviceMesh, P, Tensor
mesh = DeviceMesh("four", (4,), ("x",))
x = Tensor.constant(np.ones((8, 8), np.float32)).shard(mesh, P("x", None))
f = eager.compile(lambda x: eager.while_loop(lambda c: c.sum() > 0, lambda c: (c @ c.T) / c.sum() * 8 + 1, x))
threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    f(x).numpy()
except KeyboardInterrupt:
    print("interrupted")
assert float((x * 2).sum().numpy()) == 128
print("fine")
"""


class Failures(unittest.TestCase):
    def test_an_index_out_of_range_names_the_line(self):
        """Of one device only; also where a collective comes first."""
        table, other = put(np.ones((8, 3), np.float32), P("x", None)), put(np.ones((8, 8), np.float32), P(None, "x"))
        bad = put(np.array([0, 1, 2, 3, 4, 5, 6, 9]), P("x"))
        for f in (lambda: eager.gather(table, bad, axis=0), lambda: eager.gather(other @ table, bad, axis=0), lambda: table.at[bad].add(1.0)):
            begin = time.monotonic()
            with self.assertRaisesRegex(IndexError, r"test_shard_failures\.py:\d+: an index is out of range"):
                f().numpy()
            self.assertLess(time.monotonic() - begin, 20)
            np.testing.assert_array_equal((table * 2).numpy(), np.full((8, 3), 2, np.float32))

    def test_out_of_memory(self):
        code, text, seconds = run(MEMORY, EAS_NUM_THREADS="2", EAS_DIST_TIMEOUT="20")
        self.assertEqual((code, text.count("fine")), (0, 1), text)
        self.assertIn("MemoryError", text)
        self.assertLess(seconds, 60)

    def test_interrupted(self):
        code, text, seconds = run(INTERRUPT)
        self.assertEqual((code, text.count("fine"), text.count("interrupted")), (0, 1, 1), text)
        self.assertLess(seconds, 60)

    def test_ranks_are_told_apart(self):
        """What is asked of a mesh that cannot be is refused before anything runs."""
        with self.assertRaisesRegex(ValueError, "devices are wanted"):
            DeviceMesh("m", (4,), ("x",), devices=[0, 1])


if __name__ == "__main__":
    unittest.main()
