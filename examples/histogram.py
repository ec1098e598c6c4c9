"""How often each of 256 values occurs: atomics, twice.

Threads that add to one counter must take turns, and 256 counters in global memory are shared by the whole
launch. So a group counts into threadgroup memory first, which nobody else waits for: each of its threads
reads every BLOCK-th element of the group's part, neighbours side by side. Only then do 256 sums go out, one
atomic for each, however long the part was."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size

BINS = 256


@eas.kernel
def histogram(x, bins, N, ROUNDS: eas.constexpr, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    mine = mk.alloc_tg(BINS, mk.i32)
    for b in range(0, BINS, BLOCK):  # unrolled while tracing
        mk.store(mine, b + t, 0)
    mk.barrier()
    for i in mk.range(0, ROUNDS):
        at = (mk.program_id(0) * ROUNDS + i) * BLOCK + t
        mk.atomic_add(mine, mk.load(x, at, at < N), 1, at < N)
    mk.barrier()
    for b in range(0, BINS, BLOCK):
        mk.atomic_add(bins, b + t, mk.load(mine, b + t))


def main(n=None):
    n = n or size(1 << 24, 5000) + 7
    x = np.random.default_rng(0).integers(0, BINS, n).astype(np.uint8)
    bins = np.zeros(BINS, np.int32)
    rounds, block = size(1024, 8), 128

    def run():
        bins[:] = 0
        histogram(x, bins, n, ROUNDS=rounds, BLOCK=block, _grid=-(-n // (rounds * block)))

    took = ms(run)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=BINS))
    others = peers(x, torch=lambda torch, a: torch.bincount(a, minlength=BINS), jax=lambda jnp, a: jnp.bincount(a, length=BINS))
    print(
        f"histogram of {n}: {took:.2f} ms, NumPy {ms(lambda: np.bincount(x, minlength=BINS)):.2f} ms{others}; the most frequent value occurs {bins.max()} times"
    )


if __name__ == "__main__":
    main()
