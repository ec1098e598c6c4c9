"""Kernels whose OpenCL text has many forms, each against ref, bit by bit. test_opencl.py runs this file once
for each width of vectors, and for the text of GPUs."""

import numpy as np

import eas
from eas import mk


@eas.kernel
def rows(x, out, N, COLS: eas.constexpr):
    """Masks that cut a vector, reductions, exp; the next program's row is asked for."""
    row, cols = mk.program_id(0), mk.arange(0, COLS)
    v = mk.load(x, row * N + cols, cols < N, -float("inf"))
    e = mk.exp(v - mk.max(v, axis=0))
    mk.store(out, row * N + cols, e / mk.sum(e, axis=0), cols < N)


@eas.kernel
def mixed(x, i8, b, out, flags, N, BLOCK: eas.constexpr):
    """Dtypes with and without vectors of their own, divisions, bools in arrays, gathers and scatters."""
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    on = i < N
    v = mk.load(x, N - 1 - i, on, 7)
    q = mk.load(i8, i, on)
    y = mk.where(mk.load(b, i, on), v // (q + 3), v % 5) + (i // 3) * (i % 7)
    mk.store(out, (i * 7) % N, y * 2 - mk.cast(q, mk.i32), mk.and_(on, N % 7 != 0))
    mk.store(flags, i, mk.and_(mk.load(b, i, on), mk.sum(v, axis=0) > v), on)


@eas.kernel
def square(x, out, M: eas.constexpr, N: eas.constexpr):
    """Two dims: rows and columns folded, a transpose, a product."""
    at = mk.arange(0, M)[:, None] * N + mk.arange(0, N)[None, :]
    v = mk.load(x, at)
    p = mk.dot(mk.trans(v), v)
    mk.store(out, at, v - mk.max(v, axis=0)[None, :] + mk.sum(v * v, axis=1)[:, None] + mk.sum(p, axis=1)[None, :])


@eas.kernel
def carried(x, out, T, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    a, b = mk.var(mk.load(x, i)), mk.var(mk.load(x, i + BLOCK))
    for k in mk.range(0, T):
        a.set(a * 0.5 + b)
        b.set(b - mk.load(x, i + k))
    mk.store(out, i, a)
    mk.store(out, i + BLOCK, b)


@eas.kernel
def parted(x, out, N, GROUP: eas.constexpr):
    """Threads that part: branches in branches, loops of different lengths, a while loop in a branch."""
    t = mk.program_id(0) * GROUP + mk.tid(0, GROUP)
    s = mk.var(0)
    with mk.if_(t < N):
        v = mk.load(x, t)
        with mk.if_(v % 3 == 0):
            for k in mk.range(v % 5, v % 11, 2):
                s.set(s + k * mk.load(x, k))
        with mk.else_():
            n = mk.var(v)
            with mk.while_(lambda: n > 1):
                n.set(mk.where(n % 2 == 0, n // 2, n * 3 + 1))
                s.set(s + 1)
            with mk.if_(s > 20):
                mk.store(out, N + t, s)
        mk.store(out, t, s)


@eas.kernel
def shared(x, out, N, GROUP: eas.constexpr):
    """Threadgroup memory, barriers in a loop that all threads take, shuffles, sums over groups, an atomic."""
    t = mk.tid(0, GROUP)
    i = mk.program_id(0) * GROUP + t
    tile = mk.alloc_tg(GROUP)
    s = mk.var(0.0)
    for k in mk.range(0, N):
        mk.store(tile, t, mk.load(x, i + k))
        mk.barrier()
        s.set(s + mk.load(tile, (t + k + 1) % GROUP))
        mk.barrier()
    mk.store(out, i, s + mk.simd_sum(s) + mk.tg_max(s) + mk.simd_shuffle(s, (t * 5) % 32))


@eas.kernel
def counted(x, out, GROUP: eas.constexpr):
    t = mk.tid(0, GROUP)
    old = mk.atomic_add(out, mk.load(x, mk.program_id(0) * GROUP + t) % 5, 1)
    mk.atomic_max(out, 7, old)


@eas.kernel
def tiles(a, b, c):
    """Matrices of a simdgroup each."""
    g = mk.tid(0, 64) // 32
    acc = mk.var(mk.mma(a, g * 64, 8, b, 0, 8, mk.mma_zero()))
    for _ in mk.range(0, 3):
        acc.set(mk.mma(b, 0, 8, a, g * 64, 8, acc.value))
    mk.mma_store(c, g * 64, 8, acc.value)


def cases():
    rng = np.random.default_rng(5)

    def f(n, dt=np.float32):
        return rng.standard_normal(n).astype(dt)

    def ints(n, dt=np.int32, hi=100):
        return rng.integers(0, hi, n).astype(dt)

    for n, cols in ((1000, 1024), (64, 64), (37, 48), (5, 16), (130, 192)):
        yield rows, (f(3 * n), np.zeros(3 * n, np.float32), n), {"COLS": cols, "_grid": 3}
    yield rows, (f(200, np.float64), np.zeros(200), 100), {"COLS": 128, "_grid": 2}
    for n, block in ((300, 128), (50, 100), (33, 33)):
        yield mixed, (ints(n), ints(n, np.int8, 50), rng.random(n) < 0.5, np.zeros(n, np.int32), np.zeros(n, bool), n), {"BLOCK": block}
    for m, n in ((16, 16), (8, 64), (20, 18)):
        yield square, (f(m * n), np.zeros(m * n, np.float32)), {"M": m, "N": n, "_grid": 1}
    for block in (64, 40):
        yield carried, (f(3 * block), np.zeros(2 * block, np.float32), 9), {"BLOCK": block, "_grid": 1}
    for group in (1, 7, 64):
        yield parted, (ints(200), np.zeros(400, np.int32), 190), {"GROUP": group, "_grid": -(-200 // group)}
    yield shared, (f(300), np.zeros(192, np.float32), 6), {"GROUP": 64, "_grid": 3}
    yield counted, (ints(96), np.zeros(8, np.int32)), {"GROUP": 48, "_grid": 2}
    yield tiles, (f(128), f(64), np.zeros(128, np.float32)), {"_grid": 1}


def run(kernel, args, kw, device):
    there = [eas.tensor(a, device=device) if isinstance(a, np.ndarray) else a for a in args]
    kernel(*there, **kw)
    return [a.numpy() for a in there if not isinstance(a, (int, float))]


def main():
    n = 0
    for kernel, args, kw in cases():
        for more in ({}, {"_debug": True}):  # proved, and with every access checked
            for want, got in zip(run(kernel, args, {**kw, **more}, "ref"), run(kernel, args, {**kw, **more}, "opencl")):
                same = np.ascontiguousarray(want).view(np.uint8) == np.ascontiguousarray(got).view(np.uint8)
                if not same.all():
                    raise AssertionError(f"{kernel.__name__} {kw} {more}: {want} {got}")
            n += 1
    print(n, "the same")


if __name__ == "__main__":
    main()
