"""The quick start: element-wise addition."""

import numpy as np
import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def add_kernel(a, b, c, N, BLOCK: eas.constexpr):
    pid = mk.program_id(0)
    offs = pid * BLOCK + mk.arange(0, BLOCK)
    mask = offs < N
    mk.store(c, offs, mk.load(a, offs, mask) + mk.load(b, offs, mask), mask)


n = 1024 + 7
a = np.random.randn(n).astype(np.float32)
b = np.random.randn(n).astype(np.float32)
c = np.zeros_like(a)

add_kernel(a, b, c, n, BLOCK=256)
print(c)
print("c == a + b:", bool((c == a + b).all()))
assert (c == a + b).all()
print(add_kernel.to_msl(a, b, c, n, BLOCK=256))

if __name__ == "__main__":
    n = size(1 << 22, 1 << 12)
    a, b, c = (np.ones(n, np.float32) for _ in range(3))
    others = peers(a, b, torch=lambda torch, x, y: x + y, jax=lambda jnp, x, y: x + y)
    print(f"add of {n}: {ms(lambda: add_kernel(a, b, c, n, BLOCK=1024)):.2f} ms{others}")
