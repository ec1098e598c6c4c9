"""Derivatives of kernels: the derived backward of layer norm, softmax, n-body and attention beside backward
kernels written by hand, and Warp's adjoint of the same kernel."""

import math

import numpy as np

import eas
from eas import mk
from examples import layernorm
from examples.attention import attention
from examples.nbody import SOFT, pull
from examples.softmax import softmax

from .tools import has, interleaved

# ---- written by hand ----


@eas.kernel
def softmax_backward(x, g, dx, N, COLS: eas.constexpr):
    row, cols = mk.program_id(0), mk.arange(0, COLS)
    inside = cols < N
    v = mk.load(x, row * N + cols, inside, -float("inf"))
    e = mk.exp(v - mk.max(v, axis=0))
    p = e / mk.sum(e, axis=0)
    c = mk.load(g, row * N + cols, inside)
    mk.store(dx, row * N + cols, p * (c - mk.sum(p * c, axis=0)), inside)


@eas.kernel
def pull_backward(x, y, z, m, gx, gy, gz, dx, dy, dz, dm, N, BLOCK: eas.constexpr):
    """Forces are opposite, so one pass over all pairs gives body i all that it gets: as the one that is
    pulled and as the one that pulls."""
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    inside = i < N
    xi, yi, zi, mi = (mk.load(a, i, inside) for a in (x, y, z, m))
    gxi, gyi, gzi = (mk.load(a, i, inside) for a in (gx, gy, gz))
    sx, sy, sz, sm = (mk.var(mk.zeros(BLOCK)) for _ in range(4))
    for j in mk.range(0, N):
        ex, ey, ez = mk.load(x, j) - xi, mk.load(y, j) - yi, mk.load(z, j) - zi
        r = mk.rsqrt(ex * ex + ey * ey + ez * ez + SOFT)
        r3 = r * r * r
        mj, gxj, gyj, gzj = mk.load(m, j), mk.load(gx, j), mk.load(gy, j), mk.load(gz, j)
        hx, hy, hz = mj * gxi - mi * gxj, mj * gyi - mi * gyj, mj * gzi - mi * gzj
        along = 3.0 * (hx * ex + hy * ey + hz * ez) * r * r
        sx += r3 * (along * ex - hx)
        sy += r3 * (along * ey - hy)
        sz += r3 * (along * ez - hz)
        sm -= r3 * (gxj * ex + gyj * ey + gzj * ez)
    mk.store(dx, i, sx, inside)
    mk.store(dy, i, sy, inside)
    mk.store(dz, i, sz, inside)
    mk.store(dm, i, sm, inside)


@eas.kernel
def attention_stats(q, k, v, g, out, top, inverse, dots, S, scale, ROWS: eas.constexpr, COLS: eas.constexpr, D: eas.constexpr):
    """The forward pass again, keeping for each query the largest score, one over the sum, and the product of
    output and gradient."""
    first, head = mk.program_id(0) * ROWS, mk.program_id(1) * (S * D)
    rows, d = first + mk.arange(0, ROWS), mk.arange(0, D)
    there = head + rows[:, None] * D + d[None, :]
    queries = mk.trans(mk.load(q, there) * scale)
    high, total, acc = mk.var(mk.full(ROWS, -float("inf"))), mk.var(mk.zeros(ROWS)), mk.var(mk.zeros((ROWS, D)))
    for start in mk.range(0, first + ROWS, COLS):
        cols = start + mk.arange(0, COLS)
        at = head + cols[:, None] * D + d[None, :]
        s = mk.where(cols[:, None] <= rows[None, :], mk.dot(mk.load(k, at), queries), -float("inf"))
        higher = mk.maximum(high, mk.max(s, axis=0))
        p, fade = mk.exp2(s - higher[None, :]), mk.exp2(high - higher)
        total.set(total * fade + mk.sum(p, axis=0))
        acc.set(mk.dot(mk.trans(p), mk.load(v, at), acc * fade[:, None]))
        high.set(higher)
    o = acc * (1.0 / total.value)[:, None]
    place = mk.program_id(1) * S + rows
    mk.store(top, place, high)
    mk.store(inverse, place, 1.0 / total.value)
    mk.store(dots, place, mk.sum(o * mk.load(g, there), axis=1))


@eas.kernel
def attention_dq(q, k, v, g, top, inverse, dots, dq, S, scale, ROWS: eas.constexpr, COLS: eas.constexpr, D: eas.constexpr):
    first, head = mk.program_id(0) * ROWS, mk.program_id(1) * (S * D)
    rows, d = first + mk.arange(0, ROWS), mk.arange(0, D)
    there, place = head + rows[:, None] * D + d[None, :], mk.program_id(1) * S + rows
    queries, grads = mk.trans(mk.load(q, there) * scale), mk.trans(mk.load(g, there))
    high, inv, dot = mk.load(top, place), mk.load(inverse, place), mk.load(dots, place)
    acc = mk.var(mk.zeros((ROWS, D)))
    for start in mk.range(0, first + ROWS, COLS):
        cols = start + mk.arange(0, COLS)
        at = head + cols[:, None] * D + d[None, :]
        keys = mk.load(k, at)
        s = mk.where(cols[:, None] <= rows[None, :], mk.dot(keys, queries), -float("inf"))
        p = mk.exp2(s - high[None, :]) * inv[None, :]
        ds = p * (mk.dot(mk.load(v, at), grads) - dot[None, :])
        acc.set(mk.dot(mk.trans(ds), keys, acc))
    mk.store(dq, there, acc * (scale * 0.6931471805599453))


@eas.kernel
def attention_dkv(q, k, v, g, top, inverse, dots, dk, dv, S, scale, ROWS: eas.constexpr, COLS: eas.constexpr, D: eas.constexpr):
    first, head = mk.program_id(0) * COLS, mk.program_id(1) * (S * D)
    cols, d = first + mk.arange(0, COLS), mk.arange(0, D)
    here = head + cols[:, None] * D + d[None, :]
    keys, values = mk.trans(mk.load(k, here)), mk.trans(mk.load(v, here))
    gk, gv = mk.var(mk.zeros((COLS, D))), mk.var(mk.zeros((COLS, D)))
    for start in mk.range(first // ROWS * ROWS, S, ROWS):
        rows = start + mk.arange(0, ROWS)
        at, place = head + rows[:, None] * D + d[None, :], mk.program_id(1) * S + rows
        queries, grads = mk.load(q, at) * scale, mk.load(g, at)
        s = mk.where(cols[None, :] <= rows[:, None], mk.dot(queries, keys), -float("inf"))
        p = mk.exp2(s - mk.load(top, place)[:, None]) * mk.load(inverse, place)[:, None]
        gv.set(mk.dot(mk.trans(p), grads, gv))
        ds = p * (mk.dot(grads, values) - mk.load(dots, place)[:, None])
        gk.set(mk.dot(mk.trans(ds), queries, gk))
    mk.store(dk, here, gk * 0.6931471805599453)
    mk.store(dv, here, gv)


# ---- rows ----


def near(got, want):
    return all(np.allclose(a, b, rtol=2e-3, atol=2e-3 * float(abs(b).max())) for a, b in zip(got, want))


def row(table, name, derived, hand, got, want, goal=1.3):
    times = interleaved({"derived": derived, "hand": hand}, rounds=9, settle=0.05)
    for a in got:
        a[...] = 0
    derived()
    hand()
    table.add(f"derived backward of {name}", times["derived"], {"written by hand": times["hand"]}, goal, right=near(got, want))


def norm(table, rows=4096, n=1000):
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((rows, n), dtype=np.float32) for _ in range(2))
    w, b = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    out, mean, rstd = np.empty_like(x), np.empty(rows, np.float32), np.empty(rows, np.float32)
    layernorm.forward(x, w, b, out, mean, rstd, 1e-5)
    got, want = [np.zeros_like(a) for a in (x, w, b)], [np.empty_like(a) for a in (x, w, b)]
    grad = eas.grad_kernel(layernorm.layernorm, wrt=["x", "weight", "bias"], of=["out"], accumulate=False)
    cols = layernorm.columns(n)
    row(
        table,
        f"layer norm, {rows} x {n}",
        lambda: grad(x, w, b, out, mean, rstd, n, 1e-5, g, *got, COLS=cols, _grid=rows),
        lambda: layernorm.backward(x, w, g, mean, rstd, *want),
        got,
        want,
    )


def soft(table, rows=4096, n=1000):
    x, g = (np.random.default_rng(i).standard_normal((rows, n), dtype=np.float32) for i in range(2))
    got, want = np.zeros_like(x), np.empty_like(x)
    grad = eas.grad_kernel(softmax, wrt="x", of="out", accumulate=False)
    row(
        table,
        f"softmax, {rows} x {n}",
        lambda: grad(x, want, n, g, got, COLS=1024, _grid=rows),
        lambda: softmax_backward(x, g, want, n, COLS=1024, _grid=rows),
        [got],
        [want],
    )


def bodies(table, n=4096):
    a = [np.random.default_rng(i).standard_normal(n, dtype=np.float32) for i in range(7)]
    got, want = [[np.zeros(n, np.float32) for _ in range(4)] for _ in range(2)]
    forces = [np.zeros(n, np.float32) for _ in range(3)]
    grad = eas.grad_kernel(pull)
    row(
        table,
        f"n-body, {n}",
        lambda: grad(*a[:4], *forces, n, *a[4:], *got, BLOCK=256),
        lambda: pull_backward(*a, *want, n, BLOCK=256),
        got,
        want,
    )


def heads(table, h=8, s=1024, d=64, tile=64):
    q, k, v, g = np.random.default_rng(0).standard_normal((4, h, s, d), dtype=np.float32)
    scale, grid = math.log2(math.e) / math.sqrt(d), (s // tile, h)
    got, want = [np.zeros_like(q) for _ in range(3)], [np.zeros_like(q) for _ in range(3)]
    stats, out, meta = [np.empty((h, s), np.float32) for _ in range(3)], np.empty_like(q), dict(ROWS=tile, COLS=tile, D=d, _grid=grid)
    grad = eas.grad_kernel(attention, wrt=["q", "k", "v"], of=["out"])

    def hand():
        attention_stats(q, k, v, g, out, *stats, s, scale, **meta)
        attention_dq(q, k, v, g, *stats, want[0], s, scale, **meta)
        attention_dkv(q, k, v, g, *stats, *want[1:], s, scale, **meta)

    row(table, f"causal attention, {h} x {s} x {d}", lambda: grad(q, k, v, out, s, scale, g, *got, **meta), hand, got, want)


def warp(table, n=2048):
    """Warp runs one thread a body on the CPU."""
    import warp as wp

    from . import warp_kernels

    wp.config.quiet = True
    wp.init()
    a = [np.random.default_rng(i).standard_normal(n, dtype=np.float32) for i in range(7)]
    there = [wp.array(x, dtype=wp.float32, device="cpu", requires_grad=True) for x in a[:4]]
    forces = [wp.zeros(n, dtype=wp.float32, device="cpu", requires_grad=True) for _ in range(3)]
    tape = wp.Tape()
    with tape:
        wp.launch(warp_kernels.pull, dim=n, inputs=[*there, *forces, n], device="cpu")
    cotangents = {f: wp.array(x, dtype=wp.float32, device="cpu") for f, x in zip(forces, a[4:])}
    got, mine = [np.zeros(n, np.float32) for _ in range(4)], [np.zeros(n, np.float32) for _ in range(3)]
    grad = eas.grad_kernel(pull)

    def ours():
        for x in got:
            x[...] = 0
        grad(*a[:4], *mine, n, *a[4:], *got, BLOCK=256)

    def theirs():
        tape.zero()
        tape.backward(grads=cotangents)

    times = interleaved({"ours": ours, "warp": theirs}, rounds=5)
    right = near(got, [x.grad.numpy() for x in there])
    table.add(f"derived backward of n-body, {n}", times["ours"], {"warp's adjoint": times["warp"]}, 0.2, right=right)


def rows(table):
    norm(table)
    soft(table)
    bodies(table)
    heads(table)
    if has("warp"):
        warp(table)
