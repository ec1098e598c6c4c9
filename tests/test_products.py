"""Products of blocks: rectangles of every shape, on every device."""

import platform
import unittest

import numpy as np
import support

import eager
import eas
from eas import mk
from examples import matmul

RNG = np.random.default_rng(11)


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


@eas.kernel
def in_place(x, y, out, STEP, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr, LEFT: eas.constexpr, WRITE: eas.constexpr):
    """Factors that the CPU reads where they lie: x by rows or by columns, y with rows that are STEP apart."""
    i, j, k = mk.arange(0, M), mk.arange(0, N), mk.arange(0, K)
    a = mk.trans(mk.load(x, k[:, None] * M + i[None, :])) if LEFT == "turned" else mk.load(x, i[:, None] * K + k[None, :])
    b = mk.load(y, k[:, None] * STEP + j[None, :])
    if WRITE:  # what was loaded before stays as it was
        mk.store(y, k[:, None] * STEP + j[None, :], mk.zeros((K, N), dtype=y.dtype))
        mk.store(x, mk.arange(0, M * K), mk.zeros(M * K, dtype=x.dtype))
    mk.store(out, i[:, None] * N + j[None, :], mk.dot(a, b))


@eas.kernel
def in_loop(x, y, out, TIMES, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr):
    """Every round reads what the one before has written."""
    i, j, k = mk.arange(0, M), mk.arange(0, N), mk.arange(0, K)
    there = i[:, None] * N + j[None, :]
    for t in mk.range(0, TIMES):
        a, b = mk.load(x, t * (M * K) + i[:, None] * K + k[None, :]), mk.load(y, k[:, None] * N + j[None, :])
        mk.store(out, there, mk.dot(a, b))
        mk.store(y, there, mk.load(out, there))


@eas.kernel
def rows_by_number(x, index, w, out, COLS: eas.constexpr, K: eas.constexpr):
    """Rows whose numbers are data, times a product of one element that begins with such a number: nothing of
    it can be known ahead."""
    k, c = mk.arange(0, K), mk.arange(0, COLS)
    row = mk.load(index, mk.program_id(0))
    one = mk.dot(mk.load(w, k)[None, :], mk.load(w, k)[:, None], mk.cast(row, mk.f32) + mk.zeros((1, 1)))
    mk.store(out, mk.program_id(0) * COLS + c, mk.load(x, row * COLS + c) * mk.reshape(one, ()))


@eas.kernel
def turned_left(x, y, out, again, TIMES, M: eas.constexpr, N: eas.constexpr, K: eas.constexpr, AFTER: eas.constexpr):
    """The left factor is the transpose of a block that was computed, in every round of a loop; before it is
    multiplied, others are made and done with."""
    i, j, k = mk.arange(0, M), mk.arange(0, N), mk.arange(0, K)
    acc = mk.var(mk.zeros((M, N), dtype=out.dtype))
    for t in mk.range(0, TIMES):
        p = mk.load(x, k[:, None] * M + i[None, :]) * 2 + mk.cast(t, x.dtype)
        turned = mk.trans(p)
        q = p * 3 - mk.max(p, axis=0)[None, :]
        r = q + mk.min(q, axis=0)[None, :]
        mk.store(again, k[:, None] * M + i[None, :], r)
        acc.set(mk.dot(turned, mk.load(y, k[:, None] * N + j[None, :]), acc))
        if AFTER:
            mk.store(again, k[:, None] * M + i[None, :], p)
    mk.store(out, i[:, None] * N + j[None, :], acc.value)


class Products(unittest.TestCase):
    def test_the_transpose_of_a_computed_block_is_a_left_factor(self):
        for dtype, sizes in (("f4", ((33, 5, 40), (2, 2, 2), (1, 8, 5), (5, 8, 1), (130, 2, 130))), ("f8", ((7, 16, 3),)), ("f2", ((16, 16, 16),))):
            for m, n, k in sizes:
                for after in (False, True) if k < 130 else (False,):
                    with self.subTest(dtype=dtype, m=m, n=n, k=k, after=after):
                        x, y = (RNG.integers(-3, 4, s).astype(dtype) for s in ((k, m), (k, n)))
                        out, again = np.zeros((m, n), "f8" if dtype == "f8" else "f4"), np.zeros_like(x)
                        _, _, out, again = support.each(self, turned_left, x, y, out, again, 2, M=m, N=n, K=k, AFTER=after, _grid=1)
                        rounds = [x.astype("f8") * 2 + t for t in range(2)]
                        np.testing.assert_array_equal(out, sum(p.T @ y.astype("f8") for p in rounds))
                        q = rounds[1] * 3 - rounds[1].max(0)
                        np.testing.assert_array_equal(again, rounds[1] if after else q + q.min(0))

    def test_one_element_beside_rows_by_number(self):
        rng = np.random.default_rng(2)
        x, index, w = rng.integers(0, 9, (6, 100)).astype("f4"), rng.integers(0, 6, 5), np.arange(7, dtype="f4")
        _, _, _, out = support.each(self, rows_by_number, x, index, w, np.zeros((5, 100), "f4"), COLS=100, K=7, _grid=5)
        np.testing.assert_array_equal(out, x[index] * (index + (w * w).sum())[:, None].astype("f4"))


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

    def test_factors_read_in_place(self):
        rng = np.random.default_rng(1)
        for m, n, k, left, write, dtype in [
            (8, 48, 37, "rows", False, np.float32),
            (9, 48, 20, "turned", False, np.float32),
            (6, 16, 33, "rows", True, np.float32),
            (14, 32, 8, "turned", True, np.float32),
            (4, 12, 9, "rows", False, np.float64),
            (20, 70, 5, "turned", True, np.float32),
            (70, 64, 40, "rows", False, np.float32),
            (33, 32, 21, "rows", True, np.float64),
        ]:
            x, y = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n + 3)).astype(dtype)
            given = np.ascontiguousarray(x.T) if left == "turned" else x.copy()
            out = support.each(self, in_place, given, y.copy(), np.zeros((m, n), dtype), n + 3, M=m, N=n, K=k, LEFT=left, WRITE=write, _grid=1)
            np.testing.assert_allclose(out[2], x @ y[:, :n], rtol=1e-4, atol=1e-5)

    def test_a_block_of_rows_by_panels(self):
        """The next program's panel and the lines of the result are prefetched, also in the last program,
        which has no next one; b as panels and as it is."""
        rng = np.random.default_rng(3)
        for m, n, k, rows, cols in [(150, 192, 400, 75, 64), (34, 96, 803, 17, 32), (40, 128, 512, 20, 64)]:
            a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
            laid_out = np.ascontiguousarray(b.reshape(k, n // cols, cols).transpose(1, 0, 2))
            grid = (n // cols, m // rows)
            one = support.each(self, matmul.by_panels, a, laid_out, np.zeros((m, n), np.float32), n, K=k, ROWS=rows, COLS=cols, _grid=grid)[2]
            other = support.each(self, matmul.in_place, a, b, np.zeros((m, n), np.float32), N=n, K=k, ROWS=rows, COLS=cols, _grid=grid)[2]
            np.testing.assert_array_equal(one, other)
            np.testing.assert_allclose(one, a @ b, rtol=1e-4, atol=1e-3)

    def test_large_products_of_tensors(self):
        """In one kernel, two or three; K in one go or in steps; with what comes before and after. The bits
        are those of one fma a step, k ascending."""
        rng = np.random.default_rng(4)
        for m, k, n, dtype in [(512, 512, 512, "f4"), (130, 2500, 100, "f4"), (257, 300, 70, "f8"), (49, 700, 1000, "f4")]:
            a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
            bias = rng.standard_normal(n).astype(dtype)
            x, y, z = eager.asarray(a), eager.asarray(b), eager.asarray(bias)
            want = a.astype("f8") @ b.astype("f8")
            for got in (x @ y, x @ eager.asarray(np.ascontiguousarray(b.T)).T, eager.asarray(np.ascontiguousarray(a.T)).T @ y):
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-3)
            np.testing.assert_allclose(eager.maximum(x * 2 @ y + z, 0).numpy(), np.maximum(2 * want + bias, 0), rtol=1e-4, atol=2e-3)

    def test_f64_without_the_instruction_for_fma(self):
        """Also inside a branch."""
        code = """
import numpy as np, eas
from eas import mk
@eas.kernel
def k(x, out, GO, B: eas.constexpr):
    i = mk.arange(0, B)
    v = mk.var(mk.load(x, i))
    with mk.if_(GO > 0):
        v.set(mk.fma(v, v, v))
    mk.store(out, i, v)
x = np.arange(8.0)
try:
    k(x, x, 1, B=8, _grid=1)
    print(x[2])
except RuntimeError as e:
    print(e)
"""
        if platform.machine() in ("x86_64", "AMD64"):
            self.assertIn("6.0", support.python(code, env={"EAS_ISA": "sse2", "EAS_BACKEND": "cpu"}).stdout)
        self.assertIn("6.0", support.python(code, env={"EAS_BACKEND": "cpu"}).stdout)

    def test_rounds_that_read_what_was_written(self):
        rng = np.random.default_rng(2)
        x, y = rng.standard_normal((3, 8, 8)).astype(np.float32), rng.standard_normal((8, 16)).astype(np.float32)
        out = support.each(self, in_loop, x, y.copy(), np.zeros((8, 16), np.float32), 3, M=8, N=16, K=8, _grid=1)
        np.testing.assert_allclose(out[2], x[2] @ (x[1] @ (x[0] @ y)), rtol=1e-3, atol=1e-4)

    def test_arguments_may_have_the_names_of_loops(self):
        @eas.kernel
        def total(i2, k, out, AT):
            j = mk.arange(0, 70)
            mk.store(out, AT, mk.sum(mk.load(i2, j + k), axis=0))

        x = np.arange(100, dtype=np.float32)
        self.assertEqual(support.each(self, total, x, 7, np.zeros(1, np.float32), 0, _grid=1)[1][0], x[7:77].sum())
