"""Layer norm, forward: each row to mean 0 and variance 1, then scaled by a weight and shifted by a bias.

A program normalises one row. The row may be longer than a block: it is walked in blocks of BLOCK elements, and the sums over the walk are
variables of the kernel (mk.var). The variance is taken around the mean, in a second walk, since E[x^2] - E[x]^2 cancels."""

import numpy as np

import eas
from eas import mk
from examples import ms, size


@eas.fn
def columns(row, start, N, BLOCK):
    """Columns of one block, their offsets in the matrix, and which of them exist."""
    c = start + mk.arange(0, BLOCK)
    return c, row * N + c, c < N


@eas.kernel
def layernorm(x, weight, bias, out, mean, rstd, N, eps, BLOCK: eas.constexpr):
    row = mk.program_id(0)
    total = mk.var(mk.zeros(BLOCK))
    for start in mk.range(0, N, BLOCK):
        c, offs, inside = columns(row, start, N, BLOCK)
        total += mk.load(x, offs, inside)
    mu = mk.sum(total) / N

    squares = mk.var(mk.zeros(BLOCK))
    for start in mk.range(0, N, BLOCK):
        c, offs, inside = columns(row, start, N, BLOCK)
        d = mk.where(inside, mk.load(x, offs, inside) - mu, 0.0)
        squares += d * d
    r = mk.rsqrt(mk.sum(squares) / N + eps)

    for start in mk.range(0, N, BLOCK):
        c, offs, inside = columns(row, start, N, BLOCK)
        y = (mk.load(x, offs, inside) - mu) * r
        mk.store(out, offs, y * mk.load(weight, c, inside) + mk.load(bias, c, inside), inside)
    mk.store(mean, row, mu)  # the backward pass wants both
    mk.store(rstd, row, r)


def reference(x, weight, bias, eps):
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + eps) * weight + bias


def main(rows=None, n=1000, eps=1e-5):
    rows = rows or size(4096, 8)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, n), dtype=np.float32) * 3 + 1
    weight, bias = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    out, mean, rstd = np.empty_like(x), np.empty(rows, np.float32), np.empty(rows, np.float32)
    took = ms(lambda: layernorm(x, weight, bias, out, mean, rstd, n, eps, BLOCK=256, _grid=rows))
    want = reference(x.astype(np.float64), weight, bias, eps)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, x.mean(1, dtype=np.float64), rtol=1e-4, atol=1e-5)
    there = ms(lambda: reference(x, weight, bias, eps))
    print(f"layernorm of {rows} x {n}: {took:.2f} ms, NumPy {there:.2f} ms; largest error {abs(out - want).max():.1e}")


if __name__ == "__main__":
    main()
