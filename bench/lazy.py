"""Lazy tensors: what an operation costs, what a compiled call costs, how soon the first result is there, and
memory."""

import os
import statistics
import sys
import time

import numpy as np

from .tools import child, empty_caches, has, interleaved

OPS = 100


def chain(x):
    """100 operations, one after the other."""
    y = x
    for _ in range(OPS // 2):
        y = y * x
        y = y + x
    return y


def peers_of_chain():
    x = np.full(8, 0.5, np.float32)
    out = {"numpy": lambda: chain(x)}
    if has("torch"):
        import torch

        t = torch.from_numpy(x)
        out["torch"] = lambda: chain(t)
    if has("jax"):
        import jax

        j = jax.numpy.asarray(x)
        out["jax"] = lambda: chain(j).block_until_ready()
    if has("mlx.core"):
        import mlx.core as mx

        m = mx.array(x)
        out["mlx"] = lambda: mx.eval(chain(m))
    return out


def small_ops(table):
    import eager

    x = eager.Tensor.full((8,), 0.5).realize()
    runs = {"eager": lambda: chain(x).realize(), "record": lambda: chain(x), **peers_of_chain()}
    t = interleaved(runs, 15, 20)
    ours, record = t.pop("eager") / OPS, t.pop("record") / OPS
    table.add(
        f"{OPS} operations on 8 elements, then read: each",
        ours,
        {n: v / OPS for n, v in t.items()},
        0.5,
        note=f"recording alone {record * 1e9:.0f} ns (goal 250)",
    )


def calls(table):
    import eager

    x = eager.Tensor.full((8,), 0.5).realize()
    f = eager.compile(lambda a, b: eager.tanh(a) * b + 1.0)
    f(x, x)
    runs, peers = {"eager": lambda: f(x, x)}, {}
    if has("jax"):
        import jax

        j = jax.numpy.full(8, 0.5, "float32")
        g = jax.jit(lambda a, b: jax.numpy.tanh(a) * b + 1.0)
        peers["jax"] = lambda: g(j, j).block_until_ready()
    if has("mlx.core"):
        import mlx.core as mx

        m = mx.array(np.full(8, 0.5, np.float32))
        h = mx.compile(lambda a, b: mx.tanh(a) * b + 1.0)
        peers["mlx"] = lambda: mx.eval(h(m, m))
    if has("torch"):
        import torch

        t = torch.full((8,), 0.5)
        c = torch.compile(lambda a, b: torch.tanh(a) * b + 1.0)
        peers["torch.compile"] = lambda: c(t, t)
    t = interleaved({**runs, **peers}, 15, 200)
    table.add("a compiled function on 8 elements, a call", t.pop("eager"), t, 0.2)


EAGER = "import eager; x = eager.Tensor.full((1024,), 0.5).realize(); f = lambda: (eager.tanh(x) * x + 1.0).numpy()"
JAX = (
    "import jax, numpy; x = jax.numpy.full(1024, 0.5, 'float32'); g = jax.jit(lambda x: jax.numpy.tanh(x) * x + 1.0); f = lambda: numpy.asarray(g(x))"
)


def first(setup, env):
    """Seconds from definition to result, the imports and the input done before."""
    code = f"{setup}\nimport time\ns = time.perf_counter(); f(); print(time.perf_counter() - s)"
    return child(code, env)


def first_results(table):
    cold, warm = {}, {}
    for name, setup in (("eager", EAGER), ("jax", JAX)):
        if name == "jax" and not has("jax"):
            continue
        runs = []
        for _ in range(3):
            env, _ = empty_caches()
            runs.append((first(setup, env), first(setup, env)))
        cold[name], warm[name] = (sorted(r)[len(r) // 2] for r in zip(*runs))
    table.add("tanh(x)·x + 1, empty caches: definition to result", cold.pop("eager"), cold, 0.2)
    table.add("the same in a second process", warm.pop("eager"), warm, 0.1)


PEAK = """
import eager, eas
n = 1 << 26
def f(x):
    for _ in range(5):
        x = x * 1.25
        x = x + 0.5
    return x
g = eager.compile(f, donate=(0,)) if {donate} else eager.compile(f)
g(eager.Tensor.ones((n,)).realize())
x = eager.Tensor.ones((n,)).realize()
eas.empty_cache()
live = lambda: eas.memory_stats("cpu")["live_bytes"]
before = live()
y = g(x)
print((live() - before) / (4 * n))
"""


def memory(table):
    plain, donated = child(PEAK.format(donate=False)), child(PEAK.format(donate=True))
    table.add(
        "10 operations on 2^26 f32: arrays above the inputs", plain, {}, None, unit="arrays", note=f"goal 1; with a donated input {donated} (goal 0)"
    )


HELD = """
import eager, os
x = eager.Tensor.full((8,), 0.5).realize()
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def record(n):
    y = x
    for _ in range(n):
        y = y + x
    return y
record(1000)
before = rss()
y = record({n})
print((rss() - before) / {n})
"""


def long_graph(table, n=100_000):
    import eager

    x = eager.Tensor.full((8,), 0.5).realize()

    def record(k):
        y = x
        start = time.perf_counter()
        for _ in range(k):
            y = y + x
        return (time.perf_counter() - start) / k

    times = [[record(k) for k in (n // 10, n)] for _ in range(5)]
    few, many = (statistics.median(t) for t in zip(*times))
    held = child(HELD.format(n=n)) if os.path.exists("/proc/self/statm") else None
    table.add(
        f"recording {n} operations: each",
        many,
        {},
        None,
        note=f"goal 300 ns; with a tenth of them {few * 1e9:.0f} ns" + (f"; {held:.0f} bytes each (goal 200)" if held else ""),
    )


LAYERS = """
import eager, time, sys
def net(x, ws, bs):
    for w, b in zip(ws, bs):
        h = x @ w + b
        m = h.mean(axis=1, keepdims=True)
        x = eager.gelu((h - m) * eager.rsqrt(((h - m) * (h - m)).mean(axis=1, keepdims=True) + 1e-5)) + x
    return x
n = {n}
x = eager.Tensor.ones((64, 128)).realize()
ws = [eager.Tensor.full((128, 128), 0.01).realize() for _ in range(n)]
bs = [eager.Tensor.full((128,), 0.01).realize() for _ in range(n)]
s = time.perf_counter(); y = net(x, ws, bs).realize(); print(time.perf_counter() - s)
"""


def layers(table):
    times = {}
    for n in (8, 64):
        runs = []
        for _ in range(3):
            env, _ = empty_caches()
            runs.append(child(LAYERS.format(n=n), env))
        times[n] = sorted(runs)[1]
    table.add("64 equal layers against 8: first evaluation", times[64], {"8 layers": times[8]}, 2.0)


def rows(table):
    for part in (small_ops, calls, first_results, memory, long_graph, layers):
        try:
            part(table)
        except Exception as e:
            print(f"    ({part.__name__}: {type(e).__name__}: {e})", file=sys.stderr)
