"""Running sums of a long array, in three launches: sums within blocks, running sums of the blocks' totals,
and their addition.

What one block needs of those before it goes through memory between launches; examples/lookback_scan.py does
it in one launch. The middle step is the same problem, smaller by BLOCK: it calls itself until one block is
enough."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def scan_blocks(x, out, totals, N, BLOCK: eas.constexpr):
    p = mk.program_id(0)
    i = p * BLOCK + mk.arange(0, BLOCK)
    s = mk.cumsum(mk.load(x, i, i < N), axis=0)
    mk.store(out, i, s, i < N)
    mk.store(totals, p, mk.sum(mk.where(mk.arange(0, BLOCK) == BLOCK - 1, s, 0)))  # the last element: all others count as 0


@eas.kernel
def add_before(out, totals, N, BLOCK: eas.constexpr):
    p = mk.program_id(0)
    i = p * BLOCK + mk.arange(0, BLOCK)
    before = mk.load(totals, p - 1, p > 0)
    mk.store(out, i, mk.load(out, i, i < N) + before, i < N)


def prefix_sum(x, out, block=1024):
    n = len(x)
    totals = np.zeros(-(-n // block), x.dtype)
    scan_blocks(x, out, totals, n, BLOCK=block)
    if len(totals) > 1:
        before = np.empty_like(totals)
        prefix_sum(totals, before, block)
        add_before(out, before, n, BLOCK=block)


def main(n=None):
    n = n or size(3_000_000, 5000)
    block = size(1024, 64)
    x = np.random.default_rng(0).integers(0, 100, n).astype(np.int64)
    out = np.empty_like(x)
    took = ms(lambda: prefix_sum(x, out, block), 3)
    np.testing.assert_array_equal(out, np.cumsum(x))
    others = peers(x, torch=lambda torch, a: torch.cumsum(a, 0), jax=lambda jnp, a: jnp.cumsum(a))
    print(f"prefix sum of {n}: {took:.2f} ms, NumPy {ms(lambda: np.cumsum(x)):.2f} ms{others}; the last is {out[-1]}")


if __name__ == "__main__":
    main()
