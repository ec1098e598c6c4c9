"""What things cost as they grow, for the pictures: a launch by its arguments, compiling by layers, recording
by operations; and where kernels stand under the machine's roof."""

import json
import os
import statistics
import time

import numpy as np

from .bandwidth import aligned
from .tools import child, empty_caches, has, level, machine, results

ARGUMENTS = (1, 2, 4, 8, 12, 16, 20)
LAYERS = (1, 2, 4, 8, 16, 32, 64)
RECORDED = (10, 100, 1000, 10_000, 100_000)


def median_of(f, rounds=15, number=1):
    f()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(number):
            f()
        times.append((time.perf_counter() - start) / number)
    return statistics.median(times)


def launches():
    """Seconds of a cached launch with so many arrays of 4 elements."""
    import eas

    out = {}
    for n in ARGUMENTS:
        names = [f"a{i}" for i in range(n)]
        source = f"def many({', '.join(names)}):\n    i = mk.arange(0, 4)\n    mk.store({names[-1]}, i, {' + '.join(f'mk.load({a}, i)' for a in names)})\n"
        scope = {"mk": eas.mk}
        folder = os.path.join(os.path.dirname(results("x")), "kernels")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"many{n}.py")
        with open(path, "w") as f:
            f.write(source)
        exec(compile(source, path, "exec"), scope)
        kernel, arrays = eas.kernel(scope["many"]), [np.ones(4, np.float32) for _ in names]
        out[n] = median_of(lambda: kernel(*arrays, _grid=(1,)), 15, 2000)  # noqa: B023
    return out


NETWORK = """
import time, numpy as np
{imports}
n = {layers}
{body}
start = time.perf_counter()
run()
print(time.perf_counter() - start)
"""
EAGER = """
ws = [eager.constant(np.full((64, 64), 0.01, np.float32)).realize() for _ in range(n)]
x = eager.constant(np.ones((8, 64), np.float32)).realize()
def f(x, *ws):
    for w in ws:
        x = eager.tanh(x @ w)
    return x
g = eager.compile(f)
run = lambda: g(x, *ws).numpy()
"""
JAX = """
ws = [jnp.full((64, 64), 0.01, jnp.float32) for _ in range(n)]
x = jnp.ones((8, 64), jnp.float32)
def f(x, *ws):
    for w in ws:
        x = jnp.tanh(x @ w)
    return x
g = jax.jit(f)
run = lambda: np.asarray(g(x, *ws))
"""


def compiling():
    """{peer: {layers: seconds from definition to result}}, empty caches."""
    out = {"eas": {}, "jax": {}}
    for n in LAYERS:
        for peer, imports, body in (("eas", "import eager", EAGER), ("jax", "import jax, jax.numpy as jnp", JAX)):
            if peer == "jax" and not has("jax"):
                continue
            env, _ = empty_caches()
            out[peer][n] = child(NETWORK.format(imports=imports, layers=n, body=body), env)
    return out


def recording():
    """Seconds an operation, when so many are recorded and then evaluated."""
    import eager

    x, out = eager.Tensor.full((8,), 0.5).realize(), {}
    for n in RECORDED:

        def chain(n=n):
            y = x
            for _ in range(n):
                y = y * x
            return y

        out[n] = median_of(chain, 5 if n > 1000 else 15, max(1, 1000 // n)) / n
    return out


def points():
    """[(name, floating-point operations a byte of memory, operations a second)] of kernels that the roof
    applies to, with all threads."""
    import eager

    rng = np.random.default_rng(0)
    big = eager.constant(aligned(1 << 24)).realize()
    rows = eager.constant(rng.standard_normal((4096, 1024), np.float32)).realize()
    cases = [
        ("x + y", lambda x: x + x, (big,), 1 << 24, 8 << 24),
        ("softmax 4096×1024", lambda x: eager.softmax(x), (rows,), 5 << 22, 8 << 22),
        ("layer norm 4096×1024", lambda x: eager.layer_norm(x), (rows,), 8 << 22, 8 << 22),
        ("sum of 4096×1024", lambda x: eager.reduce_sum(x), (rows,), 1 << 22, 4 << 22),
    ]
    for n in (256, 512, 1024, 2048):
        a = eager.constant(rng.standard_normal((n, n), np.float32)).realize()
        cases.append((f"{n}³ product", lambda x: x @ x, (a,), 2 * n**3, 12 * n * n))
    q = eager.constant(rng.standard_normal((8, 1024, 64), np.float32)).realize()
    attention = lambda q: eager.softmax(q @ eager.swap_axes(q) * 0.125) @ q  # noqa: E731
    cases.append(("attention 8×1024×64", attention, (q,), 4 * 8 * 1024 * 1024 * 64, 4 * 8 * 1024 * 64 * 4))
    out = []
    for name, f, args, flops, moved in cases:
        g = eager.compile(f)
        out.append((name, flops / moved, flops / median_of(lambda: g(*args), 9)))  # noqa: B023
    return out


def roof():
    """(operations a second in registers, bytes a second of the triad); None without a compiler."""
    from .limits import Limits

    limits = Limits()
    if not limits.lib:
        return None
    return [1 / limits.least(kind, 1, median_of(limits.probe(kind), 9)) for kind in ("peak FMA", "bandwidth")]


def rows(table):
    data = {"machine": machine(), "level": level(), "load": os.getloadavg()[0], "launches": launches(), "recording": recording(), "compiling": compiling(), "points": points(), "roof": roof()}
    with open(results("costs"), "w") as f:
        json.dump(data, f, indent=1)
    table.add("cached launch, 20 arrays", data["launches"][20], {"1 array": data["launches"][1]}, 6)
    table.add("recording an operation, of 100 000", data["recording"][100_000], {"of 100": data["recording"][100]}, 2)
