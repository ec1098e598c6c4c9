"""Predicted against measured time: training steps on 1, 2 and 4 devices, that are threads of this process, or
as many ranks as there are: mpirun -n 2 python bench/simulate.py.

The numbers of the machine are measured with all devices at work, as eager.simulate does by itself once, then
the step is timed; this is done several times in turns, and the turn with the median error is printed: the
error of the predicted time relative to the measured one. The time of a step of a job is that of many steps
between two barriers: where ranks share CPUs, single steps of a rank may take no time of the others."""

import sys
import time

import numpy as np

import eager
from eager import DeviceMesh, P, Tensor
from eager import distributed as dist


def step(p, x, y):
    value, g = eager.value_and_grad(lambda p: ((eager.gelu(x @ p["a"]) @ p["b"] - y) ** 2).mean(), realize=False)(p)
    return value, {k: p[k] - 0.1 * g[k] for k in p}


PLANS = {"data parallel": ({"a": P(), "b": P()}, P("x")), "tensor parallel": ({"a": P(None, "x"), "b": P("x", None)}, P())}


def best(f, *args, runs=60, together=10):
    """The least time of a step."""
    f, job = eager.compile(f), dist.size() > 1
    f(*args)
    times = []
    for _ in range(runs // together if job else runs):
        if not job:
            t = time.perf_counter()
            f(*args)
            times.append(time.perf_counter() - t)
            continue
        dist.barrier()
        t = time.perf_counter()
        for _ in range(together):
            f(*args)
        dist.barrier()
        took = np.array([time.perf_counter() - t])  # longest at the rank that left the first barrier first
        times.append(float(dist.all_reduce(took, op="max")[0]) / together)
    return min(times)


def compare(n, dim=512, hidden=1024, batch=512, turns=3):
    mesh = DeviceMesh(f"s{n}", (n,), ("x",))
    r = np.random.default_rng(0)
    array = lambda *s: Tensor.constant((r.standard_normal(s) * 0.05).astype(np.float32))  # noqa: E731
    plans = {}
    for name, (params, cut) in PLANS.items():
        p = {"a": array(dim, hidden).shard(mesh, params["a"]).realize(), "b": array(hidden, dim).shard(mesh, params["b"]).realize()}
        plans[name] = (p, *(array(batch, dim).shard(mesh, cut).realize() for _ in range(2)))
    rows = {name: [] for name in plans}
    for _ in range(turns):
        machine = eager.measure_machine(mesh, again=True)
        for name, args in plans.items():
            predicted, measured = eager.simulate(step, mesh, *args, machine=machine).time, best(step, *args)
            rows[name].append((predicted / measured - 1, predicted, measured))
    middle = {name: sorted(r)[turns // 2] for name, r in rows.items()}
    return [(name, n, predicted, measured, error) for name, (error, predicted, measured) in middle.items()]


def main():
    counts = [dist.size()] if dist.size() > 1 else [int(a) for a in sys.argv[1:]] or [1, 2, 4]
    for n in counts:
        for name, _, predicted, measured, error in compare(n):
            if dist.rank() == 0:
                print(f"{name:16} {n} devices   predicted {predicted * 1e3:8.2f} ms   measured {measured * 1e3:8.2f} ms   error {error * 100:+6.1f} %")


if __name__ == "__main__":
    main()
