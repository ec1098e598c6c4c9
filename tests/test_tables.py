"""Choices among constants by the bits of an index, which processors look up in registers
(src/gen/llvm/table.c)."""

import unittest

import numpy as np
import support

import eas
from eas import mk

VALUES = [0.5 * i * i - 3.25 * i + 0.125 for i in range(16)]


def tree(q, values, bits):
    level = list(values)
    for bit in range(bits):
        on = (q & (1 << bit)) != 0
        level = [mk.where(on, level[2 * i + 1], level[2 * i]) for i in range(len(level) // 2)]
    return level[0]


@eas.kernel
def floats(q, out, N, BITS: eas.constexpr, BLOCK: eas.constexpr):
    at = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    i = mk.load(q, at, at < N, 0)
    values = VALUES[: 1 << BITS]
    mk.store(out, at, tree(i, values, BITS), at < N)


class Tables(unittest.TestCase):
    def test_every_number_of_bits(self):
        n = 1000
        q = np.random.default_rng(0).integers(-(2**31), 2**31, n).astype(np.int32)  # bits above those that count
        for bits in (1, 2, 3, 4):
            out = np.zeros(n, np.float32)
            support.each(self, floats, q, out, n, BITS=bits, BLOCK=256)
            floats(q, out, n, BITS=bits, BLOCK=256)
            np.testing.assert_array_equal(out, np.array(VALUES, np.float32)[q & ((1 << bits) - 1)])


if __name__ == "__main__":
    unittest.main()
