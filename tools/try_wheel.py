"""Tries an installed wheel, from a folder that has no sources: a kernel as machine code, a derivative, every
text.

usage: try_wheel.py
"""

import numpy as np

import eager
import eas
from eas import mk


@eas.kernel
def double(x, out, N, BLOCK: eas.constexpr):
    at = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, at, 2 * mk.load(x, at, at < N, 0), at < N)


def main():
    x, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    double(x, out, 1000, BLOCK=256)
    assert np.array_equal(out, 2 * x)
    assert "ret" in double.to_asm(x, out, 1000, BLOCK=256), "the wheel has no code generator"
    assert "kernel" in double.to_msl(x, out, 1000, BLOCK=256) and "__kernel" in double.to_opencl(x, out, 1000, BLOCK=256)
    gradient = eager.grad(lambda t: (t * t).sum())(eager.Tensor.ones((2, 2)))
    assert gradient.numpy().tolist() == [[2, 2], [2, 2]]
    print(f"eas {eas.__version__} works here")


if __name__ == "__main__":
    main()
