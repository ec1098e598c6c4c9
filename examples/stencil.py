"""Heat spreads over a plate: each point moves towards the mean of its four neighbours; the border stays as it
is.

A program owns a tile of H x W points: two aranges, one along each axis, make 2-D blocks of offsets and masks
by broadcasting, as in NumPy. The grid has two axes, tiles across and tiles down. Neighbours are four more
loads at shifted offsets; points that lie beside the plate are masked off, so they may be anywhere."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def step(u, out, ROWS, COLS, K, TH: eas.constexpr, TW: eas.constexpr):
    r = (mk.program_id(1) * TH + mk.arange(0, TH))[:, None]
    c = (mk.program_id(0) * TW + mk.arange(0, TW))[None, :]
    at = r * COLS + c
    inside = (r < ROWS) & (c < COLS)
    inner = (r > 0) & (r < ROWS - 1) & (c > 0) & (c < COLS - 1)
    here = mk.load(u, at, inside)
    around = mk.load(u, at - COLS, inner) + mk.load(u, at + COLS, inner) + mk.load(u, at - 1, inner) + mk.load(u, at + 1, inner)
    mk.store(out, at, mk.where(inner, here + K * (around - 4 * here), here), inside)


def reference(u, k):
    out = u.copy()
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    out[1:-1, 1:-1] = u[1:-1, 1:-1] + k * (around - 4 * u[1:-1, 1:-1])
    return out


def in_jax(u, k):
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return u.at[1:-1, 1:-1].set(u[1:-1, 1:-1] + k * (around - 4 * u[1:-1, 1:-1]))


def in_torch(u, k):
    out = u.clone()
    out[1:-1, 1:-1] = u[1:-1, 1:-1] + k * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
    return out


def main(rows=None, cols=None):
    rows, cols = rows or size(2000, 30), cols or size(3000, 37)
    u = np.random.default_rng(0).random((rows, cols), dtype=np.float32)
    out, k, th, tw = np.empty_like(u), 0.2, size(8, 4), size(256, 16)
    grid = (-(-cols // tw), -(-rows // th))
    took = ms(lambda: step(u, out, rows, cols, k, TH=th, TW=tw, _grid=grid))
    np.testing.assert_allclose(out, reference(u.astype(np.float64), k), rtol=1e-5, atol=1e-6)
    others = peers(u, torch=lambda torch, a: in_torch(a, k), jax=lambda jnp, a: in_jax(a, k))
    print(f"stencil on {rows} x {cols}: {took:.2f} ms, NumPy {ms(lambda: reference(u, k)):.2f} ms{others}; the hottest point is {out.max():.3f}")


if __name__ == "__main__":
    main()
