"""Predicted against measured time: training steps on 1, 2 and 4 devices, that are threads of this process, or
as many ranks as there are: mpirun -n 2 python bench/simulate.py.

The numbers of the machine are measured first, with all devices at work, as eager.simulate does by itself
once; the error is of the predicted time relative to the measured one."""

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


def best(f, *args, runs=60):
    f = eager.compile(f)
    f(*args)
    times = []
    for _ in range(runs):
        t = time.perf_counter()
        f(*args)
        times.append(time.perf_counter() - t)
    return min(times)


def compare(n, dim=512, hidden=1024, batch=512):
    mesh = DeviceMesh(f"s{n}", (n,), ("x",))
    machine = eager.measure_machine(mesh, again=True)
    r = np.random.default_rng(0)
    array = lambda *s: Tensor.constant((r.standard_normal(s) * 0.05).astype(np.float32))  # noqa: E731
    rows = []
    for name, (params, cut) in PLANS.items():
        p = {"a": array(dim, hidden).shard(mesh, params["a"]).realize(), "b": array(hidden, dim).shard(mesh, params["b"]).realize()}
        x, y = (array(batch, dim).shard(mesh, cut).realize() for _ in range(2))
        predicted = eager.simulate(step, mesh, p, x, y, machine=machine).time
        measured = best(step, p, x, y)
        rows.append((name, n, predicted, measured, predicted / measured - 1))
    return rows


def main():
    counts = [dist.size()] if dist.size() > 1 else [int(a) for a in sys.argv[1:]] or [1, 2, 4]
    for n in counts:
        for name, _, predicted, measured, error in compare(n):
            if dist.rank() == 0:
                print(f"{name:16} {n} devices   predicted {predicted * 1e3:8.2f} ms   measured {measured * 1e3:8.2f} ms   error {error * 100:+6.1f} %")


if __name__ == "__main__":
    main()
