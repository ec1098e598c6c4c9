"""Opens Metal, runs a self-test and says what it found. (There is nothing to build any more: the runtime is
part of libeas.)

usage: build_metal_ext.py
"""

import os
import sys

import numpy as np

import eas
from eas import mk
from eas.runtime.metal_ext import load_metal_ext


@eas.kernel
def axpy(x, y, a, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(y, i, a * mk.load(x, i, m) + mk.load(y, i, m), m)


@eas.kernel
def total(x, out, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    part = mk.alloc_tg(BLOCK)
    mk.store(part, t, mk.load(x, mk.program_id(0) * BLOCK + t))
    mk.barrier()
    half = BLOCK // 2
    while half:
        mk.store(part, t, mk.load(part, t, t < half) + mk.load(part, t + half, t < half), t < half)
        mk.barrier()
        half //= 2
    mk.store(out, mk.program_id(0), mk.load(part, 0), t == 0)


def check(name, good):
    print(f"  {name:<40} {'ok' if good else 'WRONG'}")
    return bool(good)


def self_test(metal):
    """Every part of the runtime once."""
    n = 1000
    x = np.arange(n, dtype=np.float32)
    buf, back = metal.alloc_buffer(x.nbytes, "shared"), np.empty_like(x)
    metal.copy_from_host(buf, x)
    metal.copy_to_host(buf, back)
    good = check("bytes there and back", (back == x).all())

    dx, dy = eas.tensor(x, device="mps"), eas.tensor(x, device="mps")
    axpy(dx, dy, 2.0, n, BLOCK=128)
    good &= check("a kernel of blocks", (dy.numpy() == 3 * x).all())

    out = eas.empty((4,), device="mps")
    total(eas.tensor(np.ones(1024, np.float32), device="mps"), out, BLOCK=256, _grid=4)
    good &= check("threadgroup memory and barriers", (out.numpy() == 256).all())

    again = metal.dlpack_import(metal.dlpack_export(dy))
    good &= check("a buffer handed over and taken back", (again.numpy() == 3 * x).all())

    try:
        axpy(dx, eas.empty((n - 1,), device="mps"), 2.0, n, BLOCK=128)
        good &= check("a bad index is an IndexError", False)
    except IndexError:
        good &= check("a bad index is an IndexError", True)
    axpy(dx, dy, 1.0, n, BLOCK=128)
    return good & check("the next launch works", (dy.numpy() == 4 * x).all())


def main():
    print("Metal needs no extension: eas opens it when it is first used.")
    print(f"library: {os.environ.get('EAS_METAL_LIBRARY') or 'the system'}")
    try:
        metal = load_metal_ext(require=True)
    except RuntimeError as e:
        print(e)
        return 1
    device = next(about for name, about, _ in eas._eas.devices() if name == "mps")
    print(f"device:  {device}")
    return 0 if self_test(metal) else 1


if __name__ == "__main__":
    sys.exit(main())
