"""Kernels as a user writes them first, with one thread, against serial Numba loops of the same algorithm.

None of them is laid out for the CPU: a guard around the body of a thread, atomics on places that data name,
rows of different lengths, integers of 8 bits widened one by one. A result is checked before it is timed. What
is timed is CPU time in turns, least of the rounds, for a machine that others use; `python -m
bench.kernels_by_hand NAME ...` runs the cases whose name begins so."""

import os
import sys
import time
from dataclasses import dataclass

import numpy as np

import eas
from eas import mk

from .tools import Table, has, interleaved, run_part

ROUNDS = int(os.environ.get("EAS_BENCH_ROUNDS", "15"))
BLOCK = 256


@dataclass
class Case:
    """`ours` and the peers write `out` anew and give it; `goal` is the ratio to the best peer that is wanted.
    """

    what: str
    ours: object
    peers: dict
    goal: float = 1.0
    rtol: float = 1e-5
    atol: float = 1e-6


def into(out, f):
    """f() adds to `out`, or writes it."""

    def run():
        out.fill(0)
        f()
        return out

    return run


def numba(name, *arrays):
    """The loop of peer_numba.py of that name, on the last of the arrays."""
    if not has("numba"):
        return {}
    from . import peer_numba

    f = getattr(peer_numba, name)
    return {"numba": into(arrays[-1], lambda: f(*arrays))}


def draw(seed=0):
    return np.random.default_rng(seed)


# ---- a guard around the body ----


@eas.kernel
def guarded_kernel(x, y, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    with mk.if_(i < N):
        v = mk.load(x, i)
        mk.store(out, i, v * v + mk.load(y, i) * 0.5)


@eas.kernel
def masked_kernel(x, y, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    v = mk.load(x, i, mask=i < N)
    mk.store(out, i, v * v + mk.load(y, i, mask=i < N) * 0.5, mask=i < N)


def guarded(n=(1 << 16) - 7):
    x, y = draw().random((2, n), np.float32)
    out, masked = np.zeros((2, n), np.float32)

    def run(kernel, out):
        kernel(x, y, out, n, BLOCK=BLOCK, _grid=-(-n // BLOCK))

    peers = {"masked": into(masked, lambda: run(masked_kernel, masked)), **numba("squares", x, y, np.zeros(n, np.float32))}
    return Case(f"x² + y/2 under if i < n, threads, {n} f32", into(out, lambda: run(guarded_kernel, out)), peers, 1.1)


# ---- atomics ----


@eas.kernel
def scatter_kernel(at, x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.atomic_add(out, mk.load(at, i, i < N), mk.load(x, i, i < N), i < N)


def scatter(n=1 << 18, bins=1 << 14):
    at, x = draw().integers(0, bins, n).astype(np.int32), draw(1).random(n, np.float32)
    out = np.zeros(bins, np.float32)
    ours = into(out, lambda: scatter_kernel(at, x, out, n, BLOCK=BLOCK))
    return Case(f"atomic add of {n} f32 to {bins} places", ours, numba("add_at", at, x, np.zeros(bins, np.float32)), atol=1e-3)


@eas.kernel
def histogram_kernel(x, bins, N, BINS: eas.constexpr, ROUNDS: eas.constexpr, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    mine = mk.alloc_tg(BINS, mk.i32)
    for b in range(0, BINS, BLOCK):
        mk.store(mine, b + t, 0)
    mk.barrier()
    for i in mk.range(0, ROUNDS):
        at = (mk.program_id(0) * ROUNDS + i) * BLOCK + t
        mk.atomic_add(mine, mk.load(x, at, at < N), 1, at < N)
    mk.barrier()
    for b in range(0, BINS, BLOCK):
        mk.atomic_add(bins, b + t, mk.load(mine, b + t))


def histogram(dtype, n=1 << 18, bins=256, rounds=64):
    x, out = draw().integers(0, bins, n).astype(dtype), np.zeros(bins, np.int32)
    ours = into(out, lambda: histogram_kernel(x, out, n, BINS=bins, ROUNDS=rounds, BLOCK=BLOCK, _grid=-(-n // (rounds * BLOCK))))
    return Case(f"histogram of {n} {np.dtype(dtype).name} in threadgroup memory", ours, numba("count", x, np.zeros(bins, np.int32)))


@eas.kernel
def weights_kernel(x, w, sums, N, BINS: eas.constexpr, ROUNDS: eas.constexpr, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    mine = mk.alloc_tg(BINS, mk.f32)
    for b in range(0, BINS, BLOCK):
        mk.store(mine, b + t, 0.0)
    mk.barrier()
    for i in mk.range(0, ROUNDS):
        at = (mk.program_id(0) * ROUNDS + i) * BLOCK + t
        with mk.if_(at < N):
            mk.atomic_add(mine, mk.load(x, at), mk.load(w, at))
    mk.barrier()
    for b in range(0, BINS, BLOCK):
        mk.atomic_add(sums, b + t, mk.load(mine, b + t))


def weights(n=1 << 18, bins=256, rounds=64):
    x, w = draw().integers(0, bins, n).astype(np.int32), draw(1).random(n, np.float32)
    out = np.zeros(bins, np.float32)
    ours = into(out, lambda: weights_kernel(x, w, out, n, BINS=bins, ROUNDS=rounds, BLOCK=BLOCK, _grid=-(-n // (rounds * BLOCK))))
    return Case(f"histogram of {n} f32 weights in threadgroup memory", ours, numba("add_at", x, w, np.zeros(bins, np.float32)), rtol=1e-3)


# ---- rows of different lengths ----


@eas.kernel
def csr_threads_kernel(start, cols, vals, x, out, ROWS, BLOCK: eas.constexpr):
    r = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    with mk.if_(r < ROWS):
        total = mk.var(0.0)
        for k in mk.range(mk.load(start, r), mk.load(start, r + 1)):
            total += mk.load(vals, k) * mk.load(x, mk.load(cols, k))
        mk.store(out, r, total)


@eas.kernel
def csr_rows_kernel(start, cols, vals, x, out):
    r = mk.program_id(0)
    total = mk.var(0.0)
    for k in mk.range(mk.load(start, r), mk.load(start, r + 1)):
        total += mk.load(vals, k) * mk.load(x, mk.load(cols, k))
    mk.store(out, r, total)


@eas.kernel
def csr_blocks_kernel(start, cols, vals, x, out, B: eas.constexpr):
    r = mk.program_id(0)
    end = mk.load(start, r + 1)
    total = mk.var(mk.zeros((B,)))
    for k in mk.range(mk.load(start, r), end, B):
        at = k + mk.arange(0, B)
        total += mk.load(vals, at, at < end) * mk.load(x, mk.load(cols, at, at < end), at < end)
    mk.store(out, r, mk.sum(total))


def csr(kind, rows=4096, columns=4096, mean=24):
    r = draw()
    start = np.zeros(rows + 1, np.int32)
    start[1:] = np.cumsum(r.integers(0, 2 * mean + 1, rows))
    cols, vals = r.integers(0, columns, start[-1]).astype(np.int32), r.random(start[-1], np.float32)
    x, out = r.random(columns, np.float32), np.zeros(rows, np.float32)
    runs = {
        "a row per thread": lambda: csr_threads_kernel(start, cols, vals, x, out, rows, BLOCK=BLOCK, _grid=-(-rows // BLOCK)),
        "a row per program": lambda: csr_rows_kernel(start, cols, vals, x, out, _grid=rows),
        "a block of a row": lambda: csr_blocks_kernel(start, cols, vals, x, out, B=16, _grid=rows),
    }
    return Case(f"CSR product, {kind}, {rows} rows of 0 to {2 * mean}", into(out, runs[kind]), numba("csr", start, cols, vals, x, np.zeros(rows, np.float32)), rtol=1e-4)


# ---- gathers ----


@eas.kernel
def gather_kernel(at, x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, mk.load(at, i, i < N), i < N), i < N)


def gather(dtype, n=1 << 16, source=1 << 14):
    at, x = draw().integers(0, source, n).astype(np.int32), draw(1).integers(0, 100, source).astype(dtype)
    out = np.zeros(n, dtype)
    ours = into(out, lambda: gather_kernel(at, x, out, n, BLOCK=BLOCK))
    return Case(f"x[at], {n} {np.dtype(dtype).name} of {source}", ours, numba("take", at, x, np.zeros(n, dtype)))


# ---- products of integers ----


@eas.kernel
def bytes_kernel(a, b, out, N, K, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    with mk.if_(i < N):
        total = mk.var(mk.to_i32(0))
        for k in mk.range(0, K):
            total += mk.to_i32(mk.load(a, i * K + k)) * mk.to_i32(mk.load(b, k))
        mk.store(out, i, total)


@eas.kernel
def bytes_rows_kernel(a, b, out, K):
    i = mk.program_id(0)
    total = mk.var(mk.to_i32(0))
    for k in mk.range(0, K):
        total += mk.to_i32(mk.load(a, i * K + k)) * mk.to_i32(mk.load(b, k))
    mk.store(out, i, total)


@eas.kernel
def bytes_blocks_kernel(a, b, out, K, B: eas.constexpr):
    i = mk.program_id(0)
    total = mk.var(mk.zeros((B,), mk.i32))
    for k in mk.range(0, K, B):
        at = k + mk.arange(0, B)
        total += mk.to_i32(mk.load(a, i * K + at, at < K)) * mk.to_i32(mk.load(b, at, at < K))
    mk.store(out, i, mk.sum(total))


@eas.kernel
def bytes_product_kernel(a, b, out, N, K, BLOCK: eas.constexpr):
    i, j = mk.program_id(1), mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    total = mk.var(mk.to_i32(0))
    for k in mk.range(0, K):
        total += mk.to_i32(mk.load(a, i * K + k)) * mk.to_i32(mk.load(b, k * N + j))
    mk.store(out, i * N + j, total)


def bytes_of(*shape, seed=0):
    return draw(seed).integers(-128, 128, shape).astype(np.int8)


def byte_rows(kind, n=1000, k=512):
    a, b, out = bytes_of(n, k), bytes_of(k, seed=1), np.zeros(n, np.int32)
    runs = {
        "a row per thread": lambda: bytes_kernel(a, b, out, n, k, BLOCK=BLOCK, _grid=-(-n // BLOCK)),
        "a row per program": lambda: bytes_rows_kernel(a, b, out, k, _grid=n),
        "a block of a row": lambda: bytes_blocks_kernel(a, b, out, k, B=128, _grid=n),
    }
    return Case(f"i8 matrix by vector, {kind}, {n} × {k}", into(out, runs[kind]), numba("byte_rows", a, b, np.zeros(n, np.int32)))


def byte_product(m=64, n=256, k=256):
    a, b, out = bytes_of(m, k), bytes_of(k, n, seed=1), np.zeros((m, n), np.int32)
    ours = into(out, lambda: bytes_product_kernel(a, b, out, n, k, BLOCK=BLOCK, _grid=(n // BLOCK, m)))
    return Case(f"i8 product, an element per thread, {m} × {k} × {n}", ours, numba("byte_product", a, b, np.zeros((m, n), np.int32)))


CASES = {
    "guarded": guarded,
    "scatter": scatter,
    "histogram": lambda: histogram(np.int32),
    "histogram_u8": lambda: histogram(np.uint8),
    "weights": weights,
    "csr_threads": lambda: csr("a row per thread"),
    "csr_rows": lambda: csr("a row per program"),
    "csr_blocks": lambda: csr("a block of a row"),
    "gather": lambda: gather(np.float32),
    "gather_f64": lambda: gather(np.float64),
    "gather_u8": lambda: gather(np.uint8),
    "bytes_threads": lambda: byte_rows("a row per thread"),
    "bytes_rows": lambda: byte_rows("a row per program"),
    "bytes_blocks": lambda: byte_rows("a block of a row"),
    "bytes_product": byte_product,
}


def right(c):
    """Does ours agree with every peer? One that does not is named."""
    mine, same = c.ours().copy(), True
    for name, f in c.peers.items():
        try:
            np.testing.assert_allclose(mine, f(), c.rtol, c.atol)
        except AssertionError as e:
            print(f"    ({c.what}: {name} gives another result: {' '.join(str(e).split())[:200]})", file=sys.stderr)
            same = False
    return same


def measure(c, table):
    ok = right(c)
    t = interleaved({"eas": c.ours, **c.peers}, ROUNDS, 4, shuffle=True, of=min, clock=time.process_time)
    table.add(c.what, t.pop("eas"), t, c.goal, right=ok)


def main(names):
    table = Table()
    for name in CASES:
        if not names or any(name.startswith(n) for n in names):
            measure(CASES[name](), table)


def rows(table):
    run_part("kernels_by_hand", 1, table)


if __name__ == "__main__":
    main(sys.argv[1:])
