"""Operations of `eager` that other benchmarks do not have, with two threads, against the best of NumPy, torch
and JAX.

Everything of a case runs in turns. Peers' results must agree with ours; one whose result does not is named
and left out. The cases run in a process of their own, bound to two CPUs; `python -m bench.ops NAME ...` runs
those whose name begins so."""

import os
import sys
from dataclasses import dataclass, field

import numpy as np

from .limits import THREADS
from .throughput import eager_run, jax_run, normal, torch_run
from .tools import SETTLE, Table, has, interleaved, run_part

ROUNDS = int(os.environ.get("EAS_BENCH_ROUNDS", "15"))
NUMBER = 4  # calls a turn


@dataclass
class Case:
    what: str
    ours: object
    rtol: float = 1e-4
    atol: float = 1e-5
    peers: dict = field(default_factory=dict)


def case(what, arrays, eager, numpy=None, torch=None, jax=None, rtol=1e-4, atol=1e-5):
    """eager(e, *tensors), numpy(*arrays), torch(t, *tensors) and jax(jax, *arrays) say the same."""
    c = Case(what, eager_run(eager, *arrays), rtol, atol)
    if numpy:
        c.peers["numpy"] = lambda: numpy(*arrays)
    if torch and has("torch"):
        c.peers["torch"] = torch_run(lambda t, out, *a: torch(t, *a), *arrays)
    if jax and has("jax"):
        c.peers["jax"] = jax_run(jax, *arrays)
    return c


# ---- products with few rows or columns ----


def product(m, k, n, turned=False):
    """(m, k) @ (k, n), where m or n of 0 is a vector; turned: the matrix on the right lies by columns, as the
    weights of torch's layers do."""
    x = normal(*([m] if m else []), k)
    y = normal(*([n] if n else []), k, seed=1) if turned else normal(k, *([n] if n else []), seed=1)
    name = f"{m or 1} × {k} @ {k} × {n}" if n else f"{m} × {k} @ vector"
    if turned:
        return case(
            name + ", weights by columns",
            (x, y),
            lambda e, a, b: a @ b.T,
            lambda a, b: a @ b.T,
            lambda t, a, b: a @ b.T,
            lambda jax, a, b: a @ b.T,
            1e-3,
            k * 2e-6,
        )
    same = lambda _, a, b: a @ b  # noqa: E731
    return case(name, (x, y), same, lambda a, b: a @ b, same, same, 1e-3, k * 2e-6)


# ---- convolutions ----


def convolution(images, size, channels, outs, window):
    x, f = normal(images, size, size, channels), normal(window, window, channels, outs, seed=1)
    pad = window // 2

    def torch_case(t):
        a = t.from_numpy(x).permute(0, 3, 1, 2)
        b = t.from_numpy(f).permute(3, 2, 0, 1).contiguous(memory_format=t.channels_last)
        return lambda: t.nn.functional.conv2d(a, b, padding=pad).permute(0, 2, 3, 1)

    c = case(
        f"conv {window} × {window}, {images} × {size} × {size} × {channels} to {outs}",
        (x, f),
        lambda e, a, b: e.conv2d(a, b, padding=pad),
        jax=lambda jax, a, b: jax.lax.conv_general_dilated(a, b, (1, 1), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")),
        rtol=1e-3,
        atol=1e-3,
    )
    if has("torch"):
        import torch

        c.peers["torch"] = torch_case(torch)
    return c


# ---- adding at indices ----


def adding(rows, count, wide):
    x, u = normal(rows, *([wide] if wide else [])), normal(count, *([wide] if wide else []), seed=1)
    i = np.random.default_rng(3).integers(0, rows, count)
    return case(
        f"add {count} {'rows of ' + str(wide) if wide else 'numbers'} at indices of {rows}",
        (x, i, u),
        lambda e, a, j, v: a.at[j].add(v),
        None,
        lambda t, a, j, v: t.index_add(a, 0, j, v),
        lambda jax, a, j, v: a.at[j].add(v),
        1e-4,
        1e-4,
    )


# ---- element by element ----


def function(name, scale):
    x = normal(10**6, scale=scale)
    return case(
        f"{name} of 10^6, |x| about {scale}",
        (x,),
        lambda e, a: getattr(e, name)(a),
        getattr(np, name),
        lambda t, a: getattr(t, name)(a),
        lambda jax, a: getattr(jax.numpy, name)(a),
        1e-5,
        1e-6,
    )


def integers(name, dtype, by):
    big = min(np.iinfo(dtype).max, 1 << 40)
    x = np.random.default_rng(0).integers(-big if np.iinfo(dtype).min else 0, big, 10**6, dtype=dtype)
    f = (lambda a: a // by) if name == "//" else (lambda a: a % by)
    return case(f"x {name} {by}, 10^6 {np.dtype(dtype).name}", (x,), lambda e, a: f(a), f, lambda t, a: f(a), lambda jax, a: f(a), 0, 0)


CASES = {
    "thin_vm_1024": lambda: product(0, 1024, 1024),
    "thin_vm_4096": lambda: product(0, 4096, 4096),
    "thin_vm_wide": lambda: product(0, 1024, 8192),
    "thin_vm_tall": lambda: product(0, 16384, 256),
    "thin_vmt_1024": lambda: product(0, 1024, 1024, True),
    "thin_vmt_4096": lambda: product(0, 4096, 4096, True),
    "thin_mv_1024": lambda: product(1024, 1024, 0),
    "thin_mv_4096": lambda: product(4096, 4096, 0),
    "thin_1": lambda: product(1, 4096, 4096),
    "thin_2": lambda: product(2, 4096, 4096),
    "thin_4": lambda: product(4, 4096, 4096),
    "thin_8": lambda: product(8, 4096, 4096),
    "thin_16": lambda: product(16, 4096, 4096),
    "thin_32": lambda: product(32, 4096, 4096),
    "thin_t2": lambda: product(2, 4096, 4096, True),
    "thin_t4": lambda: product(4, 4096, 4096, True),
    "thin_t8": lambda: product(8, 4096, 4096, True),
    "thin_t16": lambda: product(16, 4096, 4096, True),
    "thin_t32": lambda: product(32, 4096, 4096, True),
    "conv_32": lambda: convolution(8, 56, 32, 32, 3),
    "conv_64": lambda: convolution(4, 56, 64, 64, 3),
    "conv_3": lambda: convolution(4, 112, 3, 32, 3),
    "conv_1x1": lambda: convolution(8, 28, 128, 128, 1),
    "conv_128": lambda: convolution(4, 28, 128, 128, 3),
    "add_rows": lambda: adding(50000, 8192, 384),
    "add_numbers": lambda: adding(10**6, 10**6, 0),
    "add_few": lambda: adding(1000, 10**6, 0),
    "add_narrow": lambda: adding(100000, 100000, 16),
    "sin": lambda: function("sin", 1),
    "sin_100": lambda: function("sin", 100),
    "cos": lambda: function("cos", 1),
    "div_i32": lambda: integers("//", np.int32, 7),
    "mod_i32": lambda: integers("%", np.int32, 7),
    "div_i64": lambda: integers("//", np.int64, 7),
    "div_u8": lambda: integers("//", np.uint8, 7),
}


def agreeing(c):
    """The peers whose result is ours; and whether ours agrees with any."""
    mine, good = np.asarray(c.ours()), {}
    for name, f in c.peers.items():
        try:
            np.testing.assert_allclose(np.asarray(f()), mine, c.rtol, c.atol)
            good[name] = f
        except AssertionError as e:
            print(f"    ({c.what}: {name} gives another result: {' '.join(str(e).split())[:200]})", file=sys.stderr)
    return good


def measure(c, table):
    peers = agreeing(c)
    t = interleaved({"eager": c.ours, **peers}, ROUNDS, NUMBER, SETTLE, shuffle=True)
    table.add(c.what, t.pop("eager"), t, 1.0, right=bool(peers) or not c.peers)


def main(names):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    table = Table()
    for name in CASES:
        if not names or any(name.startswith(n) for n in names):
            measure(CASES[name](), table)


def rows(table):
    run_part("few", THREADS, table)


if __name__ == "__main__":
    main(sys.argv[1:])
