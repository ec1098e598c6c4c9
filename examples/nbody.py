"""Gravity between n bodies: every body is pulled by every other.

A program owns BLOCK bodies, one in each lane, and goes over all bodies in a traced loop. What it loads there
is one number for all its lanes: a scalar load, spread over the block by the arithmetic. The sums are
variables (mk.var), since they change from turn to turn; products that feed a sum are fused into it."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size

SOFT = 1e-2  # keeps the pull of very close bodies finite, and that of a body on itself zero


@eas.kernel
def pull(x, y, z, m, ax, ay, az, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    inside = i < N
    xi, yi, zi = mk.load(x, i, inside), mk.load(y, i, inside), mk.load(z, i, inside)
    sx, sy, sz = mk.var(mk.zeros(BLOCK)), mk.var(mk.zeros(BLOCK)), mk.var(mk.zeros(BLOCK))
    for j in mk.range(0, N):
        dx, dy, dz = mk.load(x, j) - xi, mk.load(y, j) - yi, mk.load(z, j) - zi
        r2 = dx * dx + dy * dy + dz * dz + SOFT
        w = mk.load(m, j) / (r2 * mk.sqrt(r2))
        sx += w * dx
        sy += w * dy
        sz += w * dz
    mk.store(ax, i, sx, inside)
    mk.store(ay, i, sy, inside)
    mk.store(az, i, sz, inside)


def reference(at, m, rows):
    """The pull on the first rows, all pairs at once."""
    d = at[:, None, :] - at[:, :rows, None]
    r2 = (d * d).sum(0) + SOFT
    return (m / (r2 * np.sqrt(r2)) * d).sum(-1)


def pairs(xp, at, m):
    """The same for torch and JAX."""
    d = at[:, None, :] - at[:, :, None]
    r2 = (d * d).sum(0) + SOFT
    return (m / (r2 * xp.sqrt(r2)) * d).sum(-1)


def main(n=None):
    n = n or size(4000, 100)
    rng = np.random.default_rng(0)
    at, m = rng.standard_normal((3, n), dtype=np.float32), rng.random(n, dtype=np.float32)
    out = np.empty_like(at)
    took = ms(lambda: pull(*at, m, *out, n, BLOCK=64))
    rows = min(n, 200)
    want = reference(at.astype(np.float64), m.astype(np.float64), rows)
    np.testing.assert_allclose(out[:, :rows], want, rtol=1e-3, atol=1e-3 * abs(want).max())
    others = peers(at, m, torch=pairs, jax=pairs)
    print(f"n-body, {n} bodies: {took:.2f} ms, {20e-6 * n * n / took:.1f} GFLOP/s{others}; the strongest pull is {abs(out).max():.3g}")


if __name__ == "__main__":
    main()
