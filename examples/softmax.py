"""Softmax of each row of a matrix, in one pass over memory: exp(x - max) / sum(exp(x - max)).

A program takes one row and holds all of it as a block of COLS elements, so the row is read once and written
once; the maximum and the sum are reductions of the block. Elements past the row's end are masked: they read
-inf, whose exponential adds nothing to the sum."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def softmax(x, out, N, COLS: eas.constexpr):
    row, cols = mk.program_id(0), mk.arange(0, COLS)
    inside = cols < N
    v = mk.load(x, row * N + cols, inside, -float("inf"))
    e = mk.exp(v - mk.max(v, axis=0))
    mk.store(out, row * N + cols, e / mk.sum(e, axis=0), inside)


def reference(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def main(rows=None, n=1000):
    rows = rows or size(4096, 16)
    x = np.random.default_rng(0).standard_normal((rows, n), dtype=np.float32) * 4
    out = np.empty_like(x)
    cols = 1 << (n - 1).bit_length()
    took = ms(lambda: softmax(x, out, n, COLS=cols, _grid=rows))
    np.testing.assert_allclose(out, reference(x.astype(np.float64)), rtol=2e-5, atol=1e-7)
    others = peers(x, torch=lambda torch, a: torch.softmax(a, 1), jax=lambda jnp, a: __import__("jax").nn.softmax(a, 1))
    numpy = ms(lambda: reference(x))
    print(f"softmax of {rows} x {n}: {took:.2f} ms, NumPy {numpy:.2f} ms{others}; rows sum to 1 within {abs(out.sum(1) - 1).max():.1e}")


if __name__ == "__main__":
    main()
