"""Running sums of a long array in one launch, by decoupled look-back: every element is read and written once.

A group publishes the sum of its tile, then walks back over the tiles before it: it adds their sums until it
meets one whose running sum is known. A flag tells what of a tile is known. It is stored with
`order="release"` after the number it speaks of, and loaded with `order="acquire"` before that is read, so who
sees the flag sees the number. Tiles are handed out in the order in which groups begin to run: a group waits
only for groups that run already, and these publish their sums before they wait themselves."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size

NOTHING, SUM, RUNNING = 0, 1, 2


@eas.kernel
def scan(x, out, ticket, flag, total, running, N, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    shared = mk.alloc_tg(2, mk.i32)
    if t == 0:
        shared[0] = mk.atomic_add(ticket, 0, 1)
    mk.barrier()
    tile = shared[0]
    i = tile * BLOCK + t
    v = mk.load(x, i, i < N)
    upto = mk.tg_prefix_sum(v)
    if t == BLOCK - 1:
        total[tile] = upto
        mk.atomic_store(flag, tile, SUM, order="release")
        before = mk.to_i32(0)
        at = tile - 1
        while at >= 0:
            known = mk.atomic_load(flag, at, order="acquire")
            if known == RUNNING:
                before += running[at]
                at = -1
            elif known == SUM:
                before += total[at]
                at -= 1
        running[tile] = before + upto
        mk.atomic_store(flag, tile, RUNNING, order="release")
        shared[1] = before
    mk.barrier()
    mk.store(out, i, upto + shared[1], i < N)


def prefix_sum(x, out, block=256, device=None):
    tiles = -(-len(x) // block)
    own = [np.zeros(n, np.int32) for n in (1, tiles, tiles, tiles)]
    if device is not None:
        own = [eas.tensor(a, device=device) for a in own]
    scan(x, out, *own, len(x), BLOCK=block, _grid=tiles)


def main(n=None):
    n = n or size(3_000_000, 5000)
    block = size(1024, 64)
    x = np.random.default_rng(0).integers(0, 100, n).astype(np.int32)
    out = np.empty_like(x)
    took = ms(lambda: prefix_sum(x, out, block), 3)
    np.testing.assert_array_equal(out, np.cumsum(x, dtype=np.int32))
    others = peers(x, torch=lambda torch, a: torch.cumsum(a, 0, dtype=torch.int32), jax=lambda jnp, a: jnp.cumsum(a))
    print(f"prefix sum of {n} in one launch: {took:.2f} ms, NumPy {ms(lambda: np.cumsum(x, dtype=np.int32)):.2f} ms{others}; the last is {out[-1]}")


if __name__ == "__main__":
    main()
