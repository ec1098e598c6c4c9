"""Dropout by counter-based random numbers: each element is zeroed with probability p, the others are scaled
by 1 / (1 - p).

mk.rand(seed, offset) depends on its two arguments alone: no state, no mask in memory. The backward pass draws
the same numbers again from the seed, and any grid, block size or device gives the same mask."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def dropout(x, out, p, seed, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    keep = mk.rand(seed, i) >= p
    mk.store(out, i, mk.where(keep, mk.load(x, i, i < N) / (1.0 - p), 0.0), i < N)


def jax_dropout(p, seed):
    def f(jnp, x):
        import jax

        keep = jax.random.uniform(jax.random.key(seed), x.shape) >= p
        return jnp.where(keep, x / (1 - p), 0)

    return f


def main(n=None, p=0.25, seed=42):
    n = n or size(1 << 22, 1 << 14)
    x = np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    out, again, other, grad = (np.empty_like(x) for _ in range(4))
    took = ms(lambda: dropout(x, out, p, seed, n, BLOCK=1024))
    dropout(x, again, p, seed, n, BLOCK=256)
    dropout(x, other, p, seed + 1, n, BLOCK=1024)
    dropout(np.ones_like(x), grad, p, seed, n, BLOCK=1024)  # the backward pass of a gradient of ones

    kept = out != 0
    np.testing.assert_array_equal(out, again)
    np.testing.assert_allclose(out[kept], x[kept] / np.float32(1 - p), rtol=1e-6)
    np.testing.assert_array_equal(grad != 0, kept)
    deviation = abs(kept.mean() - (1 - p)) / np.sqrt(p * (1 - p) / n)
    assert deviation < 5, f"{kept.mean()} of the elements are kept"
    assert ((other != 0) != kept).any(), "another seed draws the same mask"
    there = ms(lambda: x * (np.random.default_rng(seed).random(n, dtype=np.float32) >= p) / (1 - p))
    others = peers(x, torch=lambda torch, a: torch.nn.functional.dropout(a, p), jax=jax_dropout(p, seed))
    print(f"dropout of {n}: {took:.2f} ms, NumPy {there:.2f} ms{others}; kept {kept.mean():.4f} of the elements for p = {p}")


if __name__ == "__main__":
    main()
