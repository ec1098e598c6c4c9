"""Instructions of one cached launch (4 arguments), counted by callgrind inside the extension's vectorcall;
and of lazy tensors that lie on no mesh, in a process without meshes and in one with them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from .tools import environment

CODE = """
import sys, numpy as np, eas
from eas import mk
@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)
x = np.ones(4, np.float32)
if sys.argv[2] == 'tensor':
    x = eas.tensor(x)
if sys.argv[2] == 'profiled':
    with eas.profile():
        add(x, x, x, 4, BLOCK=4)
for _ in range(int(sys.argv[1])):
    add(x, x, x, 4, BLOCK=4)
"""


def count(launches, kind):
    """Instructions between entry to and return from kernel_call, over all launches; the first (a trace) among
    them."""
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "out")
        cmd = [
            "valgrind",
            "--tool=callgrind",
            "--toggle-collect=kernel_call",
            f"--callgrind-out-file={out}",
            sys.executable,
            "-c",
            CODE,
            str(launches),
            kind,
        ]
        r = subprocess.run(cmd, env=environment(EAS_NUM_THREADS="1", PYTHONHASHSEED="0"), capture_output=True, text=True)
        m = re.search(r"Collected : (\d+)", r.stderr)
        if r.returncode or not m:
            raise RuntimeError(r.stderr[-300:])
        return int(m.group(1))


def measure(kind="numpy"):
    """Instructions per launch, kernel included, the interpreter's loop not; None without valgrind."""
    if not shutil.which("valgrind"):
        return None
    count(1, kind)  # fills the disk cache
    return (count(10100, kind) - count(100, kind)) / 10000


LAZY = """
import sys, gc
import numpy as np, eager
from eager import Tensor
gc.disable()
x, y = Tensor.constant(np.ones(4, np.float32)), Tensor.constant(np.ones(4, np.float32))
if sys.argv[2] == "meshes":
    mesh = eager.DeviceMesh("m", (2,), ("x",))
    (x.shard(mesh, eager.P("x")) + 1).realize()
f = eager.compile(lambda a, b: a * 2 + b)
for _ in range(200):
    f(x, y)
for _ in range(int(sys.argv[1])):
    if sys.argv[3] == "record":
        x + y
    else:
        f(x, y)
"""


def lazy(what, meshes):
    """Instructions of recording an addition, or of a call of a compiled function, the interpreter's included:
    what a loop of them takes more than a shorter one."""
    counts = []
    for n in (1, 1000, 6000):  # the first one fills the disk cache
        cmd = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c", LAZY, str(n), "meshes" if meshes else "none", what]
        r = subprocess.run(cmd, env=environment(EAS_NUM_THREADS="1", PYTHONHASHSEED="0"), capture_output=True, text=True)
        m = re.search(r"Collected : (\d+)", r.stderr)
        if r.returncode or not m:
            raise RuntimeError(r.stderr[-300:])
        counts.append(int(m.group(1)))
    return (counts[2] - counts[1]) / 5000


def lazy_rows(table):
    for what, text in (("record", "instructions of recording an addition"), ("call", "instructions of a call of a compiled function")):
        table.add(f"{text}, where something else lies on a mesh", lazy(what, True), {"where nothing does": lazy(what, False)}, 1.1, "instructions")


def rows(table):
    counts = {}
    for kind in ("numpy", "tensor"):
        counts[kind] = n = measure(kind)
        if n is None:
            print("    (no valgrind: instructions not counted)")
            return
        table.add(f"instructions of a cached launch, {kind} arguments", n, {}, None, "instructions", note="recorded")
    after = measure("profiled")
    table.add("the same once a profile was open and closed", after, {"without one": counts["numpy"]}, 1.0, "instructions")
    lazy_rows(table)


if __name__ == "__main__":
    for kind in ("numpy", "tensor", "profiled"):
        print(kind, measure(kind))
    for what in ("record", "call"):
        print(what, lazy(what, False), "with meshes", lazy(what, True))
