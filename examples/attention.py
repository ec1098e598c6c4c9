"""Causal attention without the S x S matrix: softmax(q @ k.T / sqrt(D), masked above the diagonal) @ v.

A program takes ROWS queries of one head and walks the keys in tiles of COLS. For each query it keeps the
largest score so far, the sum of the exponentials against it, and the weighted sum of values; when a tile
raises the maximum, both sums are scaled down before the tile is added. Tiles below the diagonal need no mask,
tiles beyond it are never visited. A tile of scores has a row for each key and a column for each query: the
keys are a left factor as they lie in memory, the queries are transposed once, and what is kept per query is a
row that whole vectors of queries share. The scores are kept in powers of two, since exp2 is the cheaper
function: log2(e) goes into the scale."""

import math

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def attention(q, k, v, out, S, scale, ROWS: eas.constexpr, COLS: eas.constexpr, D: eas.constexpr):
    first, head = mk.program_id(0) * ROWS, mk.program_id(1) * (S * D)
    rows, d = first + mk.arange(0, ROWS), mk.arange(0, D)
    there = head + rows[:, None] * D + d[None, :]
    queries = mk.trans(mk.load(q, there) * scale)
    top = mk.var(mk.full(ROWS, -float("inf")))
    total = mk.var(mk.zeros(ROWS))
    acc = mk.var(mk.zeros((ROWS, D)))

    def tile(start, masked):
        cols = start + mk.arange(0, COLS)
        at = head + cols[:, None] * D + d[None, :]
        s = mk.dot(mk.load(k, at), queries)
        if masked:
            s = mk.where(cols[:, None] <= rows[None, :], s, -float("inf"))
        higher = mk.maximum(top, mk.max(s, axis=0))
        p = mk.exp2(s - higher[None, :])
        sums, fade = mk.sum(p, axis=0), mk.exp2(top - higher)  # the sums while p is in registers
        total.set(total * fade + sums)
        acc.set(mk.dot(mk.trans(p), mk.load(v, at), acc * fade[:, None]))
        top.set(higher)

    below = first // COLS * COLS
    for start in mk.range(0, below, COLS):
        tile(start, False)
    for start in mk.range(below, first + ROWS, COLS):
        tile(start, True)
    mk.store(out, there, acc * (1.0 / total.value)[:, None])


def run(q, k, v, out, rows=64, cols=64):
    heads, s, d = q.shape
    attention(q, k, v, out, s, math.log2(math.e) / math.sqrt(d), ROWS=rows, COLS=cols, D=d, _grid=(s // rows, heads))


def reference(q, k, v):
    s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
    s = np.where(np.tri(q.shape[1], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(2, keepdims=True))
    return e @ v / e.sum(2, keepdims=True)


def main(heads=None, s=None, d=64):
    heads, s = heads or size(8, 2), s or size(1024, 64)
    tile = size(64, 32)
    q, k, v = np.random.default_rng(0).standard_normal((3, heads, s, d), dtype=np.float32)
    out = np.empty_like(q)
    took = ms(lambda: run(q, k, v, out, tile, tile))
    np.testing.assert_allclose(out, reference(*(a.astype(np.float64) for a in (q, k, v))), rtol=2e-4, atol=2e-5)
    others = peers(
        q,
        k,
        v,
        torch=lambda torch, *a: torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in a), is_causal=True),
        jax=lambda jnp, *a: __import__("jax").nn.dot_product_attention(*(x.transpose(1, 0, 2)[None] for x in a), is_causal=True),
    )
    print(f"attention of {heads} heads, {s} x {d}: {took:.2f} ms{others}; as the plain formula says")


if __name__ == "__main__":
    main()
