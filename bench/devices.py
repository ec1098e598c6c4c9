"""Devices: queueing, replay, the pool, streams, and OpenCL beside the cpu. Every ratio is of one run."""

import os
import subprocess
import tempfile

import numpy as np

import eas
from eas import mk
from examples.layernorm import layernorm
from examples.matmul import run_blocks
from examples.matmul_tiled import matmul
from examples.softmax import softmax

from .tools import ROOT, has, interleaved


@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


@eas.kernel
def turns(x, T):
    """One program, so one thread; each step waits for the one before. Two CPUs are often two hyperthreads of
    one core: what fills its arithmetic units has nothing to gain from the second, a chain of dependent
    operations has all of it."""
    v = mk.var(mk.load(x, 0))
    for _ in mk.range(0, T):
        v.set(v * 3.75 * (1.0 - v))
    mk.store(x, 0, v)


def queueing(table):
    x, y, z = (np.ones(4, np.float32) for _ in range(3))
    with eas.capture() as g:
        for _ in range(100):
            add(x, y, z, 4, BLOCK=4)

    def queued(n=100):  # fewer than may be in flight: what is measured is the giving
        for _ in range(n):
            add(x, y, z, 4, BLOCK=4, _sync=False)

    def replayed():
        g.replay()

    def drain():
        eas.synchronize()

    times = interleaved({"queue": queued, "drain": drain, "replay": replayed}, rounds=101)
    table.add("a launch, queued (`_sync=False`)", times["queue"] / 100, {"goal": 0.4e-6}, 1)
    table.add("a launch of 100 in a replay", times["replay"] / 100, {"goal": 0.15e-6}, 1, right=(z == 2).all())


def library():
    """The libeas that this process uses."""
    with open("/proc/self/maps") as f:
        return next(line.split()[-1] for line in f if "/libeas.so" in line)


def pool(table):
    path = library()
    with tempfile.TemporaryDirectory() as folder:
        exe = os.path.join(folder, "pool")
        flags = ["-O2", f"-I{ROOT}/include", path, f"-Wl,-rpath,{os.path.dirname(path)}", "-o", exe]
        subprocess.run(["cc", os.path.join(ROOT, "bench", "pool.c"), *flags], check=True)
        each = float(subprocess.run([exe], check=True, capture_output=True, text=True).stdout)
    table.add("pool: allocation and release of 1 MB", each, {"goal": 0.1e-6}, 1)


def fresh(table):
    n = 1 << 24
    a, b = (np.random.default_rng(i).standard_normal(n, dtype=np.float32) for i in range(2))
    out = eas.empty(n)
    last = [None]

    def existing():
        add(a, b, out, n, BLOCK=1024)

    def new():
        last[0] = None  # the result before goes first, as in a loop
        c = eas.empty(n)
        add(a, b, c, n, BLOCK=1024)
        last[0] = c

    candidates = {"existing output": existing, "eas": new}
    if has("torch"):
        import torch

        ta, tb = torch.from_numpy(a), torch.from_numpy(b)
        candidates["torch"] = lambda: ta + tb
    if has("jax"):
        import jax

        ja, jb = jax.numpy.asarray(a), jax.numpy.asarray(b)
        f = jax.jit(lambda x, y: x + y)
        candidates["jax"] = lambda: f(ja, jb).block_until_ready()
    times = interleaved(candidates, rounds=11)
    table.add("c = a + b, 2^24 f32, a fresh result each time", times.pop("eas"), times, 1.05, right=(last[0].numpy() == a + b).all())


def streams(table):
    one, two = eas.Stream("cpu"), eas.Stream("cpu")
    x, y = np.full(1, 0.3, np.float32), np.full(1, 0.3, np.float32)

    def run(first, second):
        for _ in range(20):
            turns(x, 400000, _grid=1, _sync=False, _stream=first)
            turns(y, 400000, _grid=1, _sync=False, _stream=second)
        first.synchronize()
        second.synchronize()

    times = interleaved({"one": lambda: run(one, one), "two": lambda: run(one, two)}, rounds=7)
    table.add(
        "one-thread chains of dependent steps on two streams, speed against one",
        times["one"] / times["two"],
        {"one stream": 1.0},
        1.8,
        unit="x",
        better="more",
        right=x[0] == y[0],
    )


def opencl(table):
    if all(name != "opencl" or why for name, _, why in eas.devices()):
        print("    (no OpenCL device, left out)")
        return
    rng = np.random.default_rng(0)

    def on(device):
        def t(shape):
            return eas.tensor(rng.standard_normal(shape, dtype=np.float32), device=device)

        x, out, a, b, c = t((4096, 1024)), t((4096, 1024)), t((1024, 1024)), t((1024, 1024)), t((1024, 1024))
        w, bias, mean, rstd = t(1024), t(1024), t(4096), t(4096)
        return {
            "softmax 4096 x 1024": lambda: softmax(x, out, 1024, COLS=1024, _grid=4096),
            "layer norm 4096 x 1024": lambda: layernorm(x, w, bias, out, mean, rstd, 1024, 1e-5, COLS=1024, _grid=4096),
            "matmul 1024, blocks": lambda: run_blocks(a, b, c),
            "matmul 1024, by hand in threadgroup memory": lambda: matmul(a, b, c),
        }

    cpu, cl = on("cpu"), on("opencl")
    for name in cpu:
        times = interleaved({"cpu": cpu[name], "opencl": cl[name]}, rounds=7)
        table.add(f"OpenCL: {name}", times["opencl"], {"our cpu device": times["cpu"]}, 1.5)


def rows(table):
    for row in (queueing, pool, fresh, streams, opencl):
        row(table)
