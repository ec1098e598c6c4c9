"""Products of blocks: rectangles of every shape, on every device."""

import unittest

import numpy as np
import support

import eas
from eas import mk


@eas.kernel
def product(x, y, z, out, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr, START: eas.constexpr, TURNED: eas.constexpr):
    i, j, k = mk.arange(0, M), mk.arange(0, N), mk.arange(0, K)
    a = mk.load(x, i[:, None] * K + k[None, :])
    b = mk.trans(mk.load(y, j[:, None] * K + k[None, :])) if TURNED else mk.load(y, k[:, None] * N + j[None, :])
    if START == "block":
        acc = mk.load(z, i[:, None] * N + j[None, :])
    elif START == "row":
        acc = mk.broadcast_to(mk.load(z, j)[None, :] * 2.0, (M, N))
    else:
        acc = mk.zeros((M, N), dtype=x.dtype)
    mk.store(out, i[:, None] * N + j[None, :], mk.dot(a, b, acc))


class Products(unittest.TestCase):
    def test_rectangles_of_every_shape(self):
        rng = np.random.default_rng(0)
        cases = [  # M, N, K; what the sums begin with; is y transposed?
            (1, 1, 1, "block", False, np.float32),
            (1, 8, 3, "row", True, np.float32),
            (2, 7, 5, "zero", False, np.float32),
            (6, 16, 4, "row", False, np.float32),
            (7, 17, 6, "block", True, np.float32),
            (13, 25, 3, "block", False, np.float64),
        ]
        for m, n, k, start, turned, dtype in cases:
            x, y, z = (rng.standard_normal(size).astype(dtype) for size in ((m, k), (k, n), (m, n)))
            b = np.ascontiguousarray(y.T) if turned else y
            got = support.each(self, product, x, b, z, np.zeros((m, n), dtype), M=m, N=n, K=k, START=start, TURNED=turned, _grid=1)[3]
            want = x @ y + (z if start == "block" else 2 * z[0] if start == "row" else 0)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    def test_arguments_may_have_the_names_of_loops(self):
        @eas.kernel
        def total(i2, k, out, AT):
            j = mk.arange(0, 70)
            mk.store(out, AT, mk.sum(mk.load(i2, j + k), axis=0))

        x = np.arange(100, dtype=np.float32)
        self.assertEqual(support.each(self, total, x, 7, np.zeros(1, np.float32), 0, _grid=1)[1][0], x[7:77].sum())
