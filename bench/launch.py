"""Cached launch from Python: 3 arrays + 1 scalar, 4 elements, synchronous; and how it grows with arguments.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

import eas
from eas import mk

from .tools import has, interleaved


@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


@eas.kernel
def many(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    s = mk.load(a0, i, m)
    for a in (a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17):
        s = s + mk.load(a, i, m)
    mk.store(a18, i, s, m)


@eas.kernel
def by_index(a, b, c, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < a.shape[0]
    c[i, m] = a[i, m] + b[i, m]


class Arrays(NamedTuple):
    a: object
    b: object
    c: object
    n: int


@dataclasses.dataclass
class Record:
    a: object
    b: object
    c: object
    n: int


@eas.kernel
def of_struct(s, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < s.n
    mk.store(s.c, i, mk.load(s.a, i, m) + mk.load(s.b, i, m), m)


def apart():
    """Launches whose arguments come apart, and one of the same with pointers."""
    x, y, z = (np.ones(4, np.float32) for _ in range(3))
    named, record = Arrays(x, y, z, 4), Record(x, y, z, 4)

    def loop(call):
        def run(n=1000):
            for _ in range(n):
                call()

        run(2)
        return run

    return {
        "pointers": loop(lambda: add(x, y, z, 4, BLOCK=4, _grid=1)),
        "arrays": loop(lambda: by_index(x, y, z, BLOCK=4, _grid=1)),
        "named tuple": loop(lambda: of_struct(named, BLOCK=4, _grid=1)),
        "dataclass": loop(lambda: of_struct(record, BLOCK=4, _grid=1)),
    }


def ours():
    x, y, z = (np.ones(4, np.float32) for _ in range(3))
    tx, ty, tz = map(eas.tensor, (x, y, z))
    xs = [np.ones(4, np.float32) for _ in range(19)]

    def numpy_args(n=1000):
        for _ in range(n):
            add(x, y, z, 4, BLOCK=4)

    def tensor_args(n=1000):
        for _ in range(n):
            add(tx, ty, tz, 4, BLOCK=4)

    def twenty(n=1000):
        a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t = xs
        for _ in range(n):
            many(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, 4, BLOCK=4)

    numpy_args(1), twenty(1)
    assert (z == 2).all() and (xs[18] == 18).all()
    tz.numpy()[:] = 0
    tensor_args(1)
    assert (z == 2).all()
    return {"eas": numpy_args, "eas.Tensor": tensor_args, "eas 20 arguments": twenty}


def numba_loop():
    import numba

    x, y, z = (np.ones(4, np.float32) for _ in range(3))

    @numba.njit
    def f(a, b, c, n):
        for i in range(n):
            c[i] = a[i] + b[i]

    def run(n=1000):
        for _ in range(n):
            f(x, y, z, 4)

    return run


def torch_loop():
    import torch

    x, y, z = (torch.ones(4) for _ in range(3))
    add_ = torch.add

    def run(n=1000):
        for _ in range(n):
            add_(x, y, out=z)

    return run


def jax_loop():
    import jax

    x = jax.numpy.ones(4)
    f = jax.jit(lambda a, b: a + b)

    def run(n=1000):
        for _ in range(n):
            f(x, x).block_until_ready()

    return run


def warp_loop():
    import warp as wp

    wp.config.quiet = True
    wp.init()
    from . import warp_kernels

    x, y, z = (wp.array(np.ones(4, np.float32), device="cpu") for _ in range(3))

    def run(n=1000):
        for _ in range(n):
            wp.launch(warp_kernels.add, dim=4, inputs=[x, y, z, 4], device="cpu")

    return run


def mlx_loop():
    import mlx.core as mx

    x = mx.ones(4)

    def run(n=1000):
        for _ in range(n):
            mx.eval(x + x)

    return run


PEERS = {"numba": numba_loop, "torch": torch_loop, "jax": jax_loop, "warp": warp_loop, "mlx.core": mlx_loop}


def measure():
    """{name: seconds per launch}"""
    loops = ours()
    for name, make in PEERS.items():
        if has(name):
            try:
                loops[name] = make()
                loops[name](1)
            except Exception as e:
                print(f"    ({name}: {e})")
                loops.pop(name, None)
    return {name: t / 1000 for name, t in interleaved(loops, rounds=15).items()}


def rows(table):
    t = measure()
    own = {n: t.pop(n) for n in ("eas", "eas.Tensor", "eas 20 arguments")}
    table.add("cached launch, NumPy arguments", own["eas"], t, 1.0)
    table.add("cached launch, `eas.Tensor` arguments", own["eas.Tensor"], t, 0.7)
    table.add("20 arguments against 4", own["eas 20 arguments"], {"eas, 4": own["eas"]}, 3.0)
    parts = {name: seconds / 1000 for name, seconds in interleaved(apart(), rounds=15).items()}
    pointers = parts.pop("pointers")
    for name, seconds in parts.items():
        table.add(f"cached launch, arguments as {name}", seconds, {"pointers": pointers}, 1.3)
