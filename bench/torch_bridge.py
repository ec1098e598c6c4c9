"""torch: launches with its tensors, DLPack there and back, operators, a training step; and compiling
autotune's configs in parallel."""

import numpy as np

import eas
from eas import mk

from .launch import add
from .tools import SETTLE, child, empty_caches, has, interleaved


@eas.kernel
def mul(x, y, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) * mk.load(y, i, i < N), i < N)


def launches(table, torch):
    arrays = [np.ones(4, np.float32) for _ in range(3)]
    tensors = [torch.ones(4) for _ in range(3)]

    def loop(a, b, c):
        def run(n=1000):
            for _ in range(n):
                add(a, b, c, 4, BLOCK=4)

        return run

    t = interleaved({"torch": loop(*tensors), "NumPy": loop(*arrays)}, rounds=31)
    table.add("cached launch, torch tensors", t["torch"] / 1000, {"the same with NumPy arrays": t["NumPy"] / 1000}, 1.5)


def dlpack(table, torch):
    tensor, array = torch.ones(4), np.ones(4, np.float32)

    def there_and_back(n=1000):
        for _ in range(n):
            eas.from_dlpack(tensor).to_torch()

    def torch_takes(n=1000):
        for _ in range(n):
            torch.from_dlpack(array)

    t = interleaved({"eas": there_and_back, "torch": torch_takes}, rounds=31)
    table.add("eas.from_dlpack(torch tensor), and to_torch()", t["eas"] / 1000, {"torch.from_dlpack(NumPy array)": t["torch"] / 1000}, 1.0)


@eas.kernel
def axpy(y, x, a: float, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(y, i, i < N) + a * mk.load(x, i, i < N), i < N)


def operator(table, what, op, empty, args):
    def loop(f):
        def run(n=300):
            for _ in range(n):
                f(*args)

        return run

    t = interleaved({"eas": loop(op), "empty": loop(empty)}, rounds=31)
    goal = 1 + 1e-6 / (t["empty"] / 300)
    table.add(f"operator around a kernel, {what}", t["eas"] / 300, {"an empty torch.library.custom_op": t["empty"] / 300}, goal, note="goal: + 1 µs")


def operators(table, torch):
    @torch.library.custom_op("eas_bench::empty", mutates_args=())
    def empty(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("eas_bench::empty_", mutates_args=("y",))
    def empty_(y: torch.Tensor, x: torch.Tensor, a: float) -> None:
        pass

    bound = {"N": lambda x: x.numel(), "BLOCK": 64}
    x, y = torch.ones(4), torch.ones(4)
    operator(table, "functional", eas.torch.op("eas_bench::mul", mul, outputs="out", **bound), empty, (x, y))
    operator(table, "mutating", eas.torch.op("eas_bench::axpy", axpy, mutates="y", **bound), empty_, (y, x, 0.5))


def training(table, torch, hidden=512, batch=128):
    from examples import train_torch as example

    torch.manual_seed(0)
    x, y = torch.randn(batch, hidden), torch.randn(batch, hidden)
    steps = {}
    for name in ("eas", "torch", "torch.compile"):
        theirs, ours = example.networks(hidden)
        net = ours if name == "eas" else theirs
        step = example.trainer(torch.compile(net) if name == "torch.compile" else net, net.parameters())
        steps[name] = lambda step=step: step(x, y)
    t = interleaved(steps, rounds=41, number=5, settle=SETTLE)
    table.add(f"training step, layer norm and MLP, hidden {hidden}, batch {batch}", t.pop("eas"), t, 1.0)


COLD = """
import os, sys, time
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from eas import _eas
from examples.matmul import fused
n = 512
a = np.zeros((n, n), np.float32)
bias = np.zeros(n, np.float32)
def made(bm, bn, bk):
    return fused.compile(a, a, bias, a, n, n, BM=bm, BN=bn, BK=bk), (n // bn, n // bm)
def prepare(k):
    _eas.prepare(k[0], (a, a, bias, a, n, n), k[0].meta, grid=k[1])
prepare(made(16, 16, 16))  # the compiler is opened
kernels = [made(bm, bn, bk) for bm in (32, 64, 128, 256) for bn in (64, 128, 256, 512) for bk in (64, 128)][PART]
start = time.perf_counter()
with ThreadPoolExecutor(THREADS) as pool:
    list(pool.map(prepare, kernels))
print(time.perf_counter() - start)
"""


def cold(part, threads):
    env, _ = empty_caches()
    return child(COLD.replace("PART", part).replace("THREADS", str(threads)), env)


def tuning(table):
    """What compiling can gain from a second CPU is a matter of the machine: two processes with half of the
    configs each are the limit."""
    from concurrent.futures import ThreadPoolExecutor
    from statistics import median

    times = {"parallel": [], "one by one": [], "halves": []}
    for _ in range(5):
        times["parallel"].append(cold(":", 2))
        times["one by one"].append(cold(":", 1))
        with ThreadPoolExecutor(2) as pool:
            times["halves"].append(max(pool.map(lambda part: cold(part, 1), ("::2", "1::2"))))
    t = {n: median(v) for n, v in times.items()}
    table.add(
        "compiling 32 cold configs of autotune on 2 threads",
        t["parallel"],
        {"one by one": t["one by one"]},
        0.6,
        note=f"two processes with 16 each take {t['halves'] / t['one by one']:.2f} of one with all",
    )


def rows(table):
    tuning(table)
    if not has("torch"):
        return
    import torch

    launches(table, torch)
    dlpack(table, torch)
    operators(table, torch)
    training(table, torch)
