"""Sharded programs: training and inference on meshes against the same without one and against JAX,
partitioning against XLA's, bytes against the textbook, predictions against measured times.

Sides run in processes of their own (bench/shard_worker.py) that wait for their turn, so rounds alternate on
one machine; the number is the median of the rounds. Collectives by themselves: bench/collectives.py."""

import contextlib
import io
import os
import shutil
import statistics
import subprocess
import sys

from .tools import ROOT, environment, has

LAYERS = 64


def mpirun(n):
    text = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    return ["mpirun", *(["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in text else []), "-n", str(n)]


class Side:
    def __init__(self, side, what, ranks=1, **env):
        command = [*(mpirun(ranks) if ranks > 1 else []), sys.executable, "-m", "bench.shard_worker", side, what]
        self.p = subprocess.Popen(command, cwd=ROOT, env=environment(OPENBLAS_NUM_THREADS="1", EAS_DIST_TIMEOUT="300", **env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.first = self.line()

    def line(self):
        text = self.p.stdout.readline()
        return float(text) if text.strip() else None

    def turn(self):
        self.p.stdin.write("go\n")
        self.p.stdin.flush()
        return self.line()

    def close(self):
        self.p.stdin.close()
        self.p.wait(60)


def turns(sides, rounds=9):
    """{name: median seconds of a step}, and whether all began with the same number."""
    times = {name: [] for name in sides}
    for _ in range(rounds):
        for name, s in sides.items():
            t = s.turn() if s.first is not None else None
            if t:
                times[name].append(t)
    firsts = [s.first for s in sides.values() if s.first is not None]
    for s in sides.values():
        s.close()
    right = bool(firsts) and max(firsts) - min(firsts) <= 1e-3 * max(map(abs, firsts))
    return {name: statistics.median(t) if t else None for name, t in times.items()}, right


def training(table):
    sides = {}
    if shutil.which("mpirun"):
        sides["ours"] = Side("ours", "mlp", 2, EAS_NUM_THREADS="1", SHARD_DEVICES="2")
    sides["1 rank, 2 threads"] = Side("one", "mlp", EAS_NUM_THREADS="2")
    if has("jax"):
        sides["JAX, 2 host devices"] = Side("jax", "mlp", SHARD_DEVICES="2", XLA_FLAGS="--xla_force_host_platform_device_count=2")
    took, right = turns(sides)
    if "ours" not in took:
        print("    (data parallel: no mpirun here)")
        return
    what = "MLP 784-1024-1024-10, batch 512, a training step, data parallel, 2 ranks × 1 thread over MPI"
    table.add(what, took["ours"], {"1 rank, 2 threads": took["1 rank, 2 threads"]}, 1.15, right=right)
    if took.get("JAX, 2 host devices"):
        table.add(what, took["ours"], {"JAX, 2 host devices": took["JAX, 2 host devices"]}, 1.0, right=right)


def block(table):
    sides = {"ours": Side("ours", "block", SHARD_DEVICES="4")}
    if has("jax"):
        sides["JAX, 4 host devices"] = Side("jax", "block", SHARD_DEVICES="4", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    took, right = turns(sides)
    ours = took.pop("ours")
    table.add("transformer block of width 512, 4 × 128 tokens, tensor parallel on a mesh of 4 in one process", ours, took, 0.7, right=right)


def graph_of_layers():
    """The gradient of a transformer with its parameters cut along 2 x 4 devices, recorded."""
    import eager
    from eager import DeviceMesh, P, abstract
    from examples.parallel import tensor

    mesh = DeviceMesh("grid", (2, 4), ("data", "model"))
    d, h, b, t = 256, 1024, 8, 64
    shapes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, h), "down": (h, d)}
    params = [{k: abstract(s, "f32", tensor.SPECS[k], mesh) for k, s in shapes.items()} for _ in range(LAYERS)]
    x = abstract((b, t, d), "f32", P("data"), mesh)

    def loss(params, x):
        for p in params:
            x = tensor.block(p, x, 8)
        return (x * x).mean()

    return eager.tree_leaves(eager.value_and_grad(loss, realize=False)(params, x))


def partition_ours():
    import time

    import eager

    results = graph_of_layers()
    times = []
    for _ in range(5):
        t = time.perf_counter()
        told = eager.explain_sharding(results)
        times.append(time.perf_counter() - t)
    assert len(told) > LAYERS
    return statistics.median(times)


def partition_jax():
    """Seconds that XLA spends in the passes that propagate shardings and partition, as its log has them;
    tracing, lowering and code generation are not in it."""
    env = environment(XLA_FLAGS="--xla_force_host_platform_device_count=8", TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="hlo_pass_pipeline=1", JAX_PLATFORMS="cpu")
    r = subprocess.run([sys.executable, "-c", "from bench import shard; shard.compile_in_jax()"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    if r.returncode:
        print(r.stderr[-800:], file=sys.stderr)
        return None
    return seconds_in_passes(r.stderr)


def compile_in_jax():
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    d, h, b, t, heads = 256, 1024, 8, 64, 8
    specs = {"q": ((d, d), P(None, "model")), "k": ((d, d), P(None, "model")), "v": ((d, d), P(None, "model")), "o": ((d, d), P("model", None)), "up": ((d, h), P(None, "model")), "down": ((h, d), P("model", None))}
    struct = lambda s, p: jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(mesh, p))  # noqa: E731
    params = [{k: struct(*v) for k, v in specs.items()} for _ in range(LAYERS)]

    def layer(p, x):
        q, k, v = ((x @ p[n]).reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3) for n in "qkv")
        a = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (d // heads) ** 0.5) @ v
        x = x + a.transpose(0, 2, 1, 3).reshape(b, t, d) @ p["o"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    def loss(params, x):
        for p in params:
            x = layer(p, x)
        return (x * x).mean()

    begin = time.perf_counter()
    lowered = jax.jit(jax.value_and_grad(loss)).lower(params, struct((b, t, d), P("data")))
    middle = time.perf_counter()
    lowered.compile()
    print("lowering", middle - begin, "compiling", time.perf_counter() - middle)


def seconds_in_passes(log):
    """The log has a line for each pass that is done: "HLO pass: NAME time: ... (N us)"."""
    import re

    times = [int(us) for name, us in re.findall(r"HLO pass: ([\w-]+) time: .*?\((\d+) us\)", log) if re.search("shard|spmd|partition", name)]
    return sum(times) * 1e-6 if times else None


def partitioning(table):
    from .tools import child

    ours = child("from bench import shard; print(shard.partition_ours())", env=environment())
    peers = {}
    if has("jax"):
        peers["XLA's sharding and partitioning passes"] = partition_jax()
    table.add(f"partitioning the gradient of a {LAYERS}-layer transformer on a 2 × 4 mesh (recorded graph to the graph of one device)", ours, peers, 0.2)


def bytes_of_examples(table):
    import importlib

    for name in ("data", "fsdp", "tensor", "sequence", "expert", "gpipe", "one_f_one_b", "two_d"):
        with contextlib.redirect_stdout(io.StringIO()):
            rows = importlib.import_module(f"examples.parallel.{name}").main()
        for row in rows if isinstance(rows, list) else [rows]:
            same = row["sent"] == row["told"]
            table.add(f"bytes of {row['name']} on 4 devices", float(row["sent"]), {"textbook": float(row["textbook"])}, 1.0, unit="bytes", right=same)


def predictions(table):
    for n, command in ((1, []), (2, []), (4, []), (2, mpirun(2)), (4, mpirun(4))) if shutil.which("mpirun") else ((1, []), (2, []), (4, [])):
        env = environment(EAS_NUM_THREADS="1" if n > 1 else "2")
        r = subprocess.run([*command, sys.executable, os.path.join(ROOT, "bench", "simulate.py"), *([] if command else [str(n)])], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
        for line in r.stdout.splitlines():
            parts = line.split()
            if "predicted" not in parts:
                continue
            predicted, measured = float(parts[parts.index("predicted") + 1]) * 1e-3, float(parts[parts.index("measured") + 1]) * 1e-3
            error = abs(predicted / measured - 1)
            where = "ranks" if command else "threads" if n > 1 else "device"
            table.add(f"predicted time of a training step, {' '.join(parts[:2])}, {n} {where}", predicted, {"measured": measured}, None, note=f"error {error:.0%}, {'within' if error <= 0.25 else 'not within'} 25 %")


AUTO = """
import statistics, sys, time
import numpy as np
import eager
from eager import DeviceMesh, P, Tensor
from eager import distributed as dist
from examples.parallel import data, normal

n = dist.size()
mesh = DeviceMesh("auto", (n,), ("x",))
dim, hidden, batch = 512, 2048, 512
shapes = {"w1": (dim, hidden), "b1": (hidden,), "w2": (hidden, dim)}
params = {k: normal(*s, seed=i, scale=s[0] ** -0.5) for i, (k, s) in enumerate(shapes.items())}
x, y = normal(batch, dim, seed=8), normal(batch, dim, seed=9)
chosen = eager.compile(data.step, auto_shard=mesh)
plain = eager.compile(data.step)
def args(rows):
    put = (lambda v, s: Tensor.constant(v)) if rows is None else (lambda v, s: Tensor.constant(v).shard(mesh, s).realize())
    return {k: put(v, P()) for k, v in params.items()}, put(x, rows), put(y, rows)
sides = {"chosen": (chosen, args(None)), "data": (plain, args(P("x"))), "whole": (plain, args(None))}
plan = chosen.plan(*sides["chosen"][1])
specs = iter(plan.specs)
sides["chosen"] = chosen, eager.tree_map(lambda t: t.shard(mesh, next(specs).dim_specs).realize(), sides["chosen"][1])
times = {k: [] for k in sides}
for _ in range(8):
    for k, (f, a) in sides.items():
        dist.barrier()
        for i in range(4):
            t = time.perf_counter()
            eager.realize_all(f(*a))
            if i:
                times[k].append(time.perf_counter() - t)
if dist.rank() == 0:
    print("measured", *(statistics.median(times[k]) for k in ("chosen", "data", "whole")), plan.time, flush=True)
"""


def chosen_layouts(table):
    """compile(auto_shard=mesh) over MPI: a function without annotations against whole tensors and data
    parallel."""
    for n in (2, 4) if shutil.which("mpirun") else ():
        r = subprocess.run([*mpirun(n), sys.executable, "-c", AUTO], cwd=ROOT, env=environment(EAS_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"), capture_output=True, text=True, timeout=600)
        line = next((t for t in r.stdout.splitlines() if t.startswith("measured")), None)
        if line is None:
            print(r.stderr[-600:], file=sys.stderr)
        chosen, data, whole, predicted = map(float, line.split()[1:]) if line else (None,) * 4
        table.add(f"MLP 512-2048-512, batch 512, a training step, layouts chosen, {n} ranks over MPI", chosen, {"data parallel": data, "whole tensors": whole}, 1.05, note=f"predicted {predicted:.3g} s" if predicted else "")


def rows(table):
    sys.path.insert(0, ROOT)
    for part in (training, block, partitioning, bytes_of_examples, predictions, chosen_layouts):
        part(table)
