"""Jobs of several processes, under mpirun: values, bit-identity with threads, and every way in which a rank
can fail."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import eager

ROOT = pathlib.Path(__file__).parent.parent
MPIRUN = shutil.which("mpirun")
BUILT = sorted(pathlib.Path(sys.prefix).glob("lib*/python*/site-packages/.eas.mesonpy.libs/libeas-mpi-*"))
TIMEOUT = 6


def is_open_mpi():
    return MPIRUN and "Open MPI" in subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout


def command(n, *what):
    extra = ["--allow-run-as-root", "--oversubscribe"] if is_open_mpi() else []
    return [MPIRUN, *extra, "-n", str(n), *what]


def run(n, text, *kind, seconds=100, program=None, args=(), **env):
    """Runs a Python text as n ranks: (return code, everything printed, seconds)."""
    e = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_"))}
    e.update({"EAS_DIST_TIMEOUT": str(TIMEOUT), "OPENBLAS_NUM_THREADS": "1", "EAS_NUM_THREADS": "1", **{k: str(v) for k, v in env.items()}})
    begin = time.monotonic()
    what = program or [sys.executable, "-c", text]
    p = subprocess.run(command(n, *what, *kind, *args), capture_output=True, text=True, timeout=seconds, env=e, cwd="/")
    return p.returncode, p.stdout + p.stderr, time.monotonic() - begin


needs_mpi = unittest.skipUnless(MPIRUN and BUILT, "no mpirun, or eas was built without MPI")

VALUES = """
import numpy as np, eager
from eager import distributed as dist
r, n = dist.rank(), dist.size()
assert dist.engine() == "mpi" and dist.is_initialized()
x = np.arange(6, dtype=np.float32).reshape(2, 3) + r
total = sum(np.arange(6, dtype=np.float32).reshape(2, 3) + k for k in range(n))
assert (dist.all_reduce(x) == total).all()
assert (dist.all_reduce(x, "mean") == total / n).all()
assert (dist.all_reduce(x, "max") == x - r + n - 1).all()
assert (dist.all_gather(x)[n - 1] == x - r + n - 1).all() and dist.all_gather(x, axis=1).shape == (2, 3 * n)
y = np.arange(4 * n, dtype=np.int64).reshape(4, n) * (r + 1)
assert (dist.reduce_scatter(y, axis=1)[:, 0] == np.arange(4 * n).reshape(4, n)[:, r] * (n * (n + 1) // 2)).all()
z = dist.all_to_all(y, split_axis=1, concat_axis=0)
assert z.shape == (4 * n, 1) and all((z[4 * k:4 * k + 4, 0] == np.arange(4 * n).reshape(4, n)[:, r] * (k + 1)).all() for k in range(n))
p = dist.ppermute(x, [(k, k + 1) for k in range(n - 1)])
assert (p == (x - 1 if r else 0 * x)).all()
assert (dist.broadcast(x, root=n - 1) == x - r + n - 1).all()
g = dist.gather(x, root=1)
assert (g is None) == (r != 1)
assert (dist.scatter(y, axis=1, root=0) == np.arange(4 * n).reshape(4, n)[:, r:r + 1]).all()
for dt in (np.bool_, np.int8, np.uint16, np.float16, np.float64):
    v = np.ones(5, dt)
    assert dist.all_reduce(v, "max").dtype == dt
assert dist.all_reduce(np.zeros((0, 3))).shape == (0, 3) and dist.all_reduce(np.float64(2)) == 2 * n
assert (dist.all_reduce(np.arange(12).reshape(3, 4).T[::2]) == n * np.arange(12).reshape(3, 4).T[::2]).all()
t = eager.Tensor.constant(np.full((2, 2), r, np.float32))
s = dist.all_reduce(t)
assert isinstance(s, eager.Tensor) and (s.numpy() == n * (n - 1) / 2).all()
b = dist.all_reduce(t.cast("bfloat16"))
assert b.dtype == "bfloat16" and float(b[0, 0].item()) == n * (n - 1) / 2
if n == 4:
    half = (0, 2) if r % 2 == 0 else (3, 1)
    assert (dist.all_gather(np.array([r]), ranks=half)[:, 0] == half).all()
for bad in (lambda: dist.all_reduce(np.ones(3, complex)), lambda: dist.all_reduce(x, "median"), lambda: dist.broadcast(x, root=n),
            lambda: dist.all_reduce(np.ones(3, bool)), lambda: dist.reduce_scatter(np.ones((4 * n + 1,))), lambda: dist.all_reduce(x, ranks=(r + n,))):
    try:
        bad()
    except (TypeError, ValueError):
        pass
    else:
        raise SystemExit("not refused")
dist.barrier()
assert all(t.bytes == t.wire for t in dist.traffic().values()), dist.traffic()
print("fine", r)
"""

FAST = """
import numpy as np, eager
from eager import DeviceMesh, P, Tensor, distributed as dist
r, n = dist.rank(), dist.size()
for dt in (np.float32, np.float64, np.int8, np.uint64, np.float16):
    for count in (1, 7, 300, 70000):
        every = np.random.default_rng(0).integers(1, 4, (n, count)).astype(dt)
        assert (dist.all_reduce(every[r], fast=True) == every.sum(axis=0).astype(dt)).all(), (dt, count)
        assert (dist.all_reduce(every[r], "max", fast=True) == every.max(axis=0)).all()
        blocks = np.random.default_rng(1).integers(1, 4, (n, n * count)).astype(dt)
        assert (dist.reduce_scatter(blocks[r], fast=True) == blocks.sum(axis=0).astype(dt).reshape(n, count)[r]).all()
assert np.isnan(dist.all_reduce(np.array([np.nan if r else 1.0]), "max", fast=True))
assert dist.all_reduce(np.ones((0, 3)), fast=True).shape == (0, 3)
if n == 4:
    half = (0, 2) if r % 2 == 0 else (3, 1)
    assert dist.all_reduce(np.array([r]), ranks=half, fast=True)[0] == sum(half)
assert all(t.bytes == t.wire for t in dist.traffic().values()), dist.traffic()
plain, fast = DeviceMesh("m", (n,), ("x",)), DeviceMesh("m", (n,), ("x",), fast=True)
assert plain != fast and "fast" in repr(fast)
a, b = (np.random.default_rng(2 + k).standard_normal((60, 60)).astype(np.float32) for k in range(2))
results = [(Tensor.constant(a).shard(m, P(None, "x")) @ Tensor.constant(b).shard(m, P("x", None))).numpy() for m in (plain, fast)]
np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)
print("fine", r)
"""

FEWER = """
import numpy as np, eager
from eager import DeviceMesh, P, Tensor, distributed as dist
r, n = dist.rank(), dist.size()
assert n == 4
a, b = (np.random.default_rng(k).standard_normal((8, 6)).astype(np.float32) for k in range(2))
for mesh in (DeviceMesh("first", (2,), ("x",)), DeviceMesh("last", (2,), ("x",), devices=range(2, 4)), DeviceMesh("one", (1,), ("x",), devices=[3])):
    x, y = Tensor.constant(a).shard(mesh, P("x", None)), Tensor.constant(b).shard(mesh, P("x", None))
    inside = mesh.devices[0] <= r <= mesh.devices[-1]
    z = (x * y + 1).realize()
    assert len(z.local_parts()) == inside if mesh.size > 1 else True
    np.testing.assert_allclose((x * y).sum(axis=0).numpy(), (a * b).sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(z.numpy(), a * b + 1)
    step = eager.compile(lambda x, y: (eager.value_and_grad(lambda x: (x * x * y).sum())(x)))
    value, g = step(x, y)
    np.testing.assert_allclose(value.item(), (a * a * b).sum(), rtol=1e-4)
    np.testing.assert_allclose(g.numpy(), 2 * a * b, rtol=1e-5)
    c = eager.shard_from_callback(lambda at: a[at], a.shape, mesh, P("x", None), dtype="f32")
    np.testing.assert_array_equal((c + 1).numpy(), a + 1)
    own = a.reshape(mesh.size, -1, 6)[r - mesh.devices[0]] if inside else None
    np.testing.assert_array_equal(Tensor.from_local(own, mesh, P("x", None), a.shape, dtype="f32").numpy(), a)
p, q = DeviceMesh("first", (2,), ("x",)), DeviceMesh("last", (2,), ("x",), devices=range(2, 4))
np.testing.assert_array_equal((Tensor.constant(a).shard(p, P("x")) * 2).shard(q, P(None, "x")).numpy(), a * 2)
whole = DeviceMesh("whole", (4,), ("x",))
np.testing.assert_array_equal(Tensor.constant(a).shard(p, P("x")).shard(whole, P("x")).numpy(), a)
for bad, says in ((lambda: Tensor.constant(a).shard(DeviceMesh("eight", (8,), ("x",)), P("x", None)).realize(), "start it with mpirun -n 8"),
                  (lambda: Tensor.constant(a).shard(DeviceMesh("mixed", (2,), ("x",), devices=[0, 2]), P("x", None)).realize(), "one after another")):
    try:
        bad()
    except ValueError as e:
        assert says in str(e), e
    else:
        raise SystemExit("not refused")
dist.barrier()
print("fine", r)
"""

FAILS = """
import os, signal, sys, time
import numpy as np
from eager import distributed as dist
kind, r = sys.argv[1], dist.rank()
if kind == "startup": raise SystemExit("unreachable")
x = np.ones(5, np.float32)
dist.all_reduce(x)
if r == 1:
    if kind == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "raise": 1 / 0
    if kind == "memory": np.empty(1 << 60, np.uint8)
    if kind == "leave": sys.exit(0)
    if kind == "sleep": time.sleep(60)
    if kind == "order": dist.barrier()
    if kind == "shape": dist.all_reduce(np.ones(6, np.float32))
    if kind == "dtype": dist.all_reduce(np.ones(5, np.int32))
    if kind == "line": dist.all_reduce(x)
if r == 0:
    if kind == "kill0": os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop0": os.kill(os.getpid(), signal.SIGSTOP)
if kind == "computing":
    if r == 1: os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
dist.all_reduce(x)
if kind == "line": dist.barrier()
"""
STARTUP = "import os, time\nif os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == '1': time.sleep(60)\n" + FAILS

# shapes of as many elements, at the same line
PROGRAM = """
import numpy as np
from eager import DeviceMesh, P, Tensor, distributed as dist
mesh = DeviceMesh("m", (2,), ("x",))
def total(*shape): return Tensor.from_local(np.ones((1, *shape), np.float32), mesh, P("x", None, None)).sum(axis=0).numpy()
total(4, 4)
total(3, 2) if dist.rank() else total(2, 3)
"""

# kind: (ranks, the rank that fails, what all others say)
CASES = {
    "kill": (2, 1, "rank 1 has died"),
    "kill0": (3, 0, "rank 0 has died"),
    "computing": (2, 1, "rank 1 has died"),
    "stop": (4, 1, "rank 1 has not answered"),
    "stop0": (2, 0, "rank 0 has not answered"),
    "raise": (3, 1, "rank 1 failed: ZeroDivisionError: division by zero at <string>:12"),
    "memory": (2, 1, "rank 1 failed: numpy._core._exceptions._ArrayMemoryError"),
    "leave": (2, 1, "rank 1 has left the job without taking part in all_reduce #1"),
    "sleep": (2, 1, "for rank 1, which is alive (EAS_DIST_TIMEOUT"),
    "order": (2, 1, "rank 1 calls barrier #1 over 2 ranks at <string>:16"),
    "shape": (4, 1, "rank 1 calls all_reduce #1 (sum) of f32[6] over 4 ranks at <string>:17"),
    "dtype": (2, 1, "rank 1 calls all_reduce #1 (sum) of i32[5] over 2 ranks at <string>:18"),
    "line": (2, 1, "calls all_reduce #1 (sum) of f32[5] over 2 ranks at <string>:19"),
    "program": (2, 1, "rank 1 calls all_reduce #1 (sum) of f32[3, 2] over 2 ranks at <string>:5"),
    "startup": (2, 1, "these have not started within EAS_DIST_TIMEOUT=6 s: 1"),
}


def fail(kind):
    text = {"startup": STARTUP, "program": PROGRAM}.get(kind, FAILS)
    return run(CASES[kind][0], text, kind, EAS_DIST_DEBUG=int(kind in ("line", "order", "program")))


@needs_mpi
class Values(unittest.TestCase):
    def test_collectives_of_two(self):
        code, text, _ = run(2, VALUES)
        self.assertEqual((code, text.count("fine")), (0, 2), text)

    def test_collectives_without_mailboxes(self):
        """As across machines: every message is MPI's."""
        code, text, _ = run(3, VALUES, EAS_DIST_MAIL=0)
        self.assertEqual((code, text.count("fine")), (0, 3), text)

    def test_collectives_of_four_compared_first(self):
        code, text, _ = run(4, VALUES, EAS_DIST_DEBUG=1)
        self.assertEqual((code, text.count("fine")), (0, 4), text)

    def test_fast(self):
        """In any order: measured and chosen, all by MPI, all by us."""
        for n, env in ((2, {}), (4, {"EAS_DIST_FAST": "mpi"}), (3, {"EAS_DIST_FAST": "own"})):
            code, text, _ = run(n, FAST, **env)
            self.assertEqual((code, text.count("fine")), (0, n), text)

    def test_meshes_of_fewer_devices_than_ranks(self):
        code, text, _ = run(4, FEWER, EAS_DIST_TIMEOUT=30)
        self.assertEqual((code, text.count("fine")), (0, 4), text)

    def test_all_dtypes_from_c(self):
        """The C program checks every op, dtype and size against the reduction that threads use, bit for bit.
        """
        program = ROOT / "build" / "release" / "tests" / "c" / "mpi_comm"
        if not program.exists():
            self.skipTest("the C tests are not built")
        library = next((p for p in BUILT if ("openmpi" in p.name) == bool(is_open_mpi())), None)
        for n, mail in ((3, 1), (6, 1), (3, 0)):
            code, text, _ = run(n, "", program=[str(program)], EAS_MPI_LIBRARY=library, EAS_DIST_MAIL=mail)
            self.assertEqual((code, text.count("all values right")), (0, n), text)

    def test_the_sharded_example_in_c(self):
        """examples/c/sharded.c, with no Python in it."""
        program, module = (ROOT / "build" / "release" / p for p in ("examples/c/example_sharded", "libeas-llvm.so"))
        if not program.exists():
            self.skipTest("the C examples are not built")
        library = next((p for p in BUILT if ("openmpi" in p.name) == bool(is_open_mpi())), None)
        env = {"EAS_LLVM_LIBRARY": module} if module.exists() else {}
        for n in (2, 4):
            code, text, _ = run(n, "", program=[str(program)], EAS_MPI_LIBRARY=library, **env)
            self.assertEqual((code, text.count("every sum is as expected")), (0, 1), text)

    def test_a_rank_that_is_done_first_does_not_tell_the_time(self):
        """measure_machine: a program's time is the slowest rank's, and the same number everywhere."""
        text = """
import time
from eager import distributed as dist
from eager.sharding import machine
slow = machine._Timed(lambda: time.sleep(0.004 * dist.rank()))
for _ in range(3):
    slow.turn()
assert slow.seconds >= 0.004 * (dist.size() - 1), slow.seconds
assert (dist.all_gather(slow.seconds) == slow.seconds).all()
print("timed")
"""
        code, out, _ = run(4, text)
        self.assertEqual((code, out.count("timed")), (0, 4), out)

    def test_no_mpi_is_loaded_without_mpirun(self):
        text = "from eager import distributed as d; assert (d.rank(), d.size(), d.engine()) == (0, 1, 'self'); print(open('/proc/self/maps').read().count('libmpi'))"
        e = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_", "EAS_DIST"))}
        p = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=e, cwd="/")
        self.assertEqual(p.stdout.strip(), "0", p.stderr)


@needs_mpi
class Sharded(unittest.TestCase):
    """The programs of mpi_cases.py on a mesh in one process and on one of ranks."""

    def check(self, n):
        script = str(ROOT / "tests" / "mpi_cases.py")
        with tempfile.TemporaryDirectory() as folder:
            threads, ranks = os.path.join(folder, "threads.npz"), os.path.join(folder, "ranks.npz")
            e = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_", "EAS_DIST"))}
            subprocess.run([sys.executable, script, threads, str(n)], check=True, env={**e, "EAS_NUM_THREADS": "1"}, cwd="/", capture_output=True, timeout=200)
            code, text, _ = run(n, "", program=[sys.executable, script], args=(ranks, str(n)), seconds=200, EAS_DIST_TIMEOUT=30)
            self.assertEqual((code, text.count("done")), (0, n), text)
            with np.load(threads) as a, np.load(ranks) as b:
                self.assertEqual(a.files, b.files)
                self.assertEqual([k for k in a.files if a[k].tobytes() != b[k].tobytes()], [])
                saved = eager.load_sharded(ranks + ".checkpoint")
                for k in "abc":
                    np.testing.assert_array_equal(saved[k].numpy(), a["loaded " + k])
            self.assertEqual(len(os.listdir(ranks + ".checkpoint")), n + 1)

    def test_two_ranks_give_the_bits_of_two_threads(self):
        self.check(2)

    def test_four_ranks_give_the_bits_of_four_threads(self):
        self.check(4)


@needs_mpi
class Failures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            cls.results = dict(zip(CASES, pool.map(fail, CASES), strict=True))

    def check(self, kind):
        n, bad, says = CASES[kind]
        code, text, seconds = self.results[kind]
        self.assertNotEqual(code, 0, text)
        self.assertLess(seconds, TIMEOUT + 25, text)  # starting and ending Python takes its time on a loaded machine
        for r in range(n):
            if r == bad:
                continue
            report = [t for t in text.split("eas: ") if t.startswith(f"[rank {r}] ")]
            self.assertTrue(report and says in report[0], f"rank {r} does not say {says!r}:\n{text}")
            if kind == "startup":
                continue
            self.assertIn("<string>:", report[0])
            for k in range(n):
                self.assertRegex(report[0], rf"\n  rank {k}: .*all_reduce #|\n  rank {k}: .*barrier #", text)


for _kind in CASES:
    setattr(Failures, f"test_{_kind}", lambda self, kind=_kind: self.check(kind))

if __name__ == "__main__":
    unittest.main()
