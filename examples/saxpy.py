"""y = alpha * x + y, in place, on arrays and on tensors."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers


@eas.kernel
def saxpy(x, y, alpha, N, BLOCK: eas.constexpr):
    offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mask = offs < N
    mk.store(y, offs, alpha * mk.load(x, offs, mask) + mk.load(y, offs, mask), mask)


def main(n=1 << 20):
    x = np.random.randn(n).astype(np.float32)
    y = np.random.randn(n).astype(np.float32)
    want = 2.5 * x.astype(np.float64) + y
    saxpy(x, y, 2.5, n, BLOCK=1024)
    print("arrays: largest error", np.abs(y - want).max())

    tx, ty = eas.tensor(x), eas.zeros(n)
    saxpy(tx, ty, 2.5, n, BLOCK=1024)
    print("tensors: largest error", np.abs(ty.numpy() - 2.5 * x.astype(np.float64)).max())
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ty.numpy(), 2.5 * x, rtol=1e-6)
    others = peers(x, y, torch=lambda torch, a, b: b.add_(a, alpha=2.5), jax=lambda jnp, a, b: 2.5 * a + b)
    print(f"saxpy of {n}: {ms(lambda: saxpy(x, y, 2.5, n, BLOCK=1024)):.2f} ms{others}")


if __name__ == "__main__":
    main()
