"""What users of Triton, NumPy and torch write by habit: methods of variables, operators, names."""

import io
import unittest
from contextlib import redirect_stdout

import numpy as np
from support import BF16, each

import eas
from eas import mk


def at(rows, cols):
    return mk.arange(0, rows)[:, None] * cols + mk.arange(0, cols)[None, :]


class Values(unittest.TestCase):
    def test_a_variable_has_the_methods_of_a_value(self):
        @eas.kernel
        def k(x, out, total, N, B: eas.constexpr):
            i = mk.arange(0, B)
            acc = mk.var(mk.zeros((B,), dtype=mk.float32))
            for _ in mk.range(N):
                acc += mk.load(x, i)
            mk.store(out, i, acc.to(mk.float16))
            mk.store(out, B + i, acc.astype(dtype="float16"))
            mk.store(total, 0, acc.cast(mk.i32).sum())
            mk.store(total, 1, acc.bitcast(mk.u32).max().to(np.int32))

        x = np.arange(7, dtype=np.float32)
        _, out, total = each(self, k, x, np.zeros(14, np.float16), np.zeros(2, np.int32), 3, B=7, _grid=1)
        np.testing.assert_array_equal(out, np.tile(3 * x, 2))
        self.assertEqual(total.tolist(), [63, np.float32(18).view(np.int32)])
        self.assertEqual({n for n in dir(mk.Value) if n[0] != "_"} - {n for n in dir(eas._eas.Var) if n[0] != "_"} - {"name"}, set())

    def test_matrix_product_as_an_operator(self):
        for dt in (np.float32, np.float16, BF16):
            if dt is None:
                continue

            @eas.kernel
            def k(x, y, out):
                a, v = mk.load(x, at(3, 5)), mk.var(mk.load(y, at(5, 4)))
                mk.store(out, at(3, 4), a @ v)

            x, y = np.arange(15).reshape(3, 5).astype(dt), np.arange(20).reshape(5, 4).astype(dt)
            *_, out = each(self, k, x, y, np.zeros((3, 4), np.float32), _grid=1)
            np.testing.assert_array_equal(out, x.astype(np.float32) @ y.astype(np.float32))

        @eas.kernel
        def bad(x):
            mk.load(x, at(3, 5)) @ 3.0  # noqa: B018

        with self.assertRaisesRegex(TypeError, "dot: needs a block"):
            bad(np.zeros(15, np.float32), _grid=1)

    def test_divmod(self):
        @eas.kernel
        def k(x, out, N):
            i = mk.arange(0, 12)
            row, col = divmod(i - 3, 5)
            top, rest = divmod(17, mk.var(N))
            mk.store(out, i, row * 100 + col)
            mk.store(out, 12, top * 10 + rest)

        _, out = each(self, k, np.zeros(1, np.float32), np.zeros(13, np.int64), 5, _grid=1)
        q, r = np.divmod(np.arange(12) - 3, 5)
        self.assertEqual(out.tolist(), [*(q * 100 + r), 32])
        with self.assertRaisesRegex(TypeError, "unsupported operand"):
            eas.kernel(lambda x: divmod(mk.arange(0, 4), "a"))(np.zeros(1), _grid=1)

    def test_filled_like_another(self):
        @eas.kernel
        def k(x, out, flags):
            v = mk.load(x, at(2, 3))
            w = mk.ones((2, 3), mk.i32) + mk.ones_like(v) + mk.zeros_like(v) + mk.full_like(v, 4)
            mk.static_assert(w.dtype is mk.int32 and mk.full_like(v, 1.5, mk.f64).dtype is mk.float64)
            mk.static_assert(mk.expand_dims(v, -1).shape == (2, 3, 1) and mk.expand_dims(v, 0).shape == (1, 2, 3))
            mk.store(out, mk.arange(0, 6), mk.ravel(w.permute(1, 0)))
            f = mk.where(v > 3, float("inf"), mk.where(v > 2, float("nan"), mk.to_f32(v)))
            mk.store(flags, at(2, 3), mk.isfinite(f))
            mk.static_assert(mk.isfinite(3) and not mk.isfinite(float("nan")))

        _, out, flags = each(self, k, np.arange(6, dtype=np.int32), np.zeros(6, np.int32), np.zeros(6, np.bool_), _grid=1)
        self.assertEqual(out.tolist(), [6] * 6)
        self.assertEqual(flags.tolist(), [True] * 3 + [False] * 3)
        with self.assertRaisesRegex(ValueError, "axis 3"):
            eas.kernel(lambda x: mk.expand_dims(mk.arange(0, 4), 3))(np.zeros(1), _grid=1)

    def test_sizes_alone_and_variables_of_a_dtype(self):
        @eas.kernel
        def k(x, out, N):
            v, n = mk.var(1.5, mk.f64), mk.var(init=44, dtype="uint8")
            for _ in mk.range(N):
                v += mk.to_f64(mk.load(x, 0))
                n += mk.cast(1, mk.u8)
            mk.store(out, mk.arange(4), mk.full(4, v + mk.to_f64(n), mk.f64))

        _, out = each(self, k, np.array([1e-9], np.float32), np.zeros(4, np.float64), 3, _grid=1)
        self.assertEqual(out.tolist(), [1.5 + 3 * float(np.float32(1e-9)) + 47] * 4)

        @eas.kernel
        def threads(x):
            mk.store(x, mk.tid(8), 1.0)

        self.assertEqual(each(self, threads, np.zeros(8, np.float32), _grid=1)[0].sum(), 8)
        self.assertEqual(threads.compile(np.zeros(8, np.float32)).block_size, 8)

    def test_joined_shapes_that_do_not_fit(self):
        with self.assertRaisesRegex(ValueError, r"test_idioms.py:\d+: mk.join: the shapes do not fit: 3 and 4 elements along axis -1"):
            eas.kernel(lambda x: mk.join(mk.zeros((2, 3)), mk.zeros(4)))(np.zeros(1), _grid=1)

    def test_other_names(self):
        self.assertIs(mk.bfloat16, mk.bf16)
        self.assertIs(mk.uint8, mk.u8)

        @eas.kernel
        def k(x, old):
            i = mk.arange(0, 4)
            mk.store(old, i, mk.atomic_exchange(x, i, 7))
            mk.store(old, 4 + i, mk.atomic_compare_exchange(x, i, 7, i.to(mk.i32)))
            mk.device_assert(i < 4, "few")

        x, old = each(self, k, np.full(4, 3, np.int32), np.zeros(8, np.int32), _grid=1)
        self.assertEqual((x.tolist(), old.tolist()), ([0, 1, 2, 3], [3] * 4 + [7] * 4))


class Launches(unittest.TestCase):
    def test_a_grid_of_the_meta_values_alone(self):
        @eas.kernel
        def k(x, N, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.arange(0, B)
            mk.store(x, i, 1.0, i < N)

        for grid in (lambda meta: (-(-10 // meta["B"]),), lambda meta, args: -(-args["N"] // meta["B"]), lambda *both: (3, len(both) - 1)):
            x = np.zeros(10, np.float32)
            k(x, 10, B=4, _grid=grid)
            self.assertEqual(x.sum(), 10)

    def test_programs_are_named_alike_by_the_interpreter(self):
        @eas.kernel
        def k(x):
            mk.print("x", mk.load(x, mk.program_id(0)))

        said = []
        for how in ({}, {"_interpret": True}):
            out = io.StringIO()
            with redirect_stdout(out):
                k(np.zeros(2, np.float32), _grid=(2, 2), **how)
            said.append(out.getvalue())
        self.assertEqual(*said)
        self.assertTrue(said[0].startswith("program 0, 0: x 0.0\n"))


if __name__ == "__main__":
    unittest.main()
