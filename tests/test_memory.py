"""Loads, stores and masks; every dtype; overlapping arguments."""

import unittest

import numpy as np
from support import BF16, DEVICES, backend, each

import eas
from eas import mk

DTYPES = [np.dtype(d) for d in "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split()] + ([BF16] if BF16 else [])


@eas.kernel
def copy(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N), i < N)


class Dtypes(unittest.TestCase):
    def test_copies_every_dtype_bit_for_bit(self):
        rng = np.random.default_rng(0)
        for dt in DTYPES:
            raw = rng.integers(0, 256, 100 * dt.itemsize, dtype=np.uint8)
            x = (raw % 2 if dt.kind == "b" else raw).view(dt)
            for n in (0, 1, 31, 100):
                with self.subTest(dt=dt, n=n):
                    _, out = each(self, copy, x, np.zeros(100, dt), n, BLOCK=32)
                    self.assertEqual(out[:n].tobytes(), x[:n].tobytes())
                    self.assertFalse(out[n:].view(np.uint8).any())

    def test_dtype_names(self):
        names = "bool_ i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64".split()
        self.assertEqual([str(getattr(mk, n)) for n in names], [n.rstrip("_") for n in names])
        self.assertIs(eas.ir.DType("float32"), mk.f32)
        self.assertIs(eas.ir.DType.F32, mk.f32)
        self.assertEqual((mk.f16.size, mk.f16.kind, mk.i64.numpy), (2, "f", np.dtype(np.int64)))
        self.assertEqual(np.zeros(1, mk.f32).dtype, np.float32)

    def test_arithmetic_in_the_dtype(self):
        @eas.kernel
        def k(x, y, out, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(out, i, mk.load(x, i) * mk.load(y, i) + 2)

        for dt in DTYPES[1:]:
            x, y = np.arange(8).astype(dt), np.arange(8)[::-1].astype(dt)
            out = each(self, k, x, y, np.zeros(8, dt), 8, _grid=1)[2]
            np.testing.assert_array_equal(out.astype(float), np.arange(8) * np.arange(8)[::-1] + 2)

    def test_half_stores_round_to_nearest_even(self):
        @eas.kernel
        def k(x, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, mk.load(x, i, i < N), i < N)

        rng = np.random.default_rng(1)
        x = np.concatenate(
            [rng.standard_normal(1000) * 10.0 ** rng.integers(-9, 6, 1000), [np.inf, -np.inf, 65519, 65520, 2**-24, 2**-25, 2**-26, 0.0, -0.0]]
        ).astype(np.float32)
        for dt in [np.dtype(np.float16)] + ([BF16] if BF16 else []):
            _, out = each(self, k, x, np.zeros(len(x), dt), len(x), BLOCK=64)
            with np.errstate(over="ignore"):
                self.assertEqual(out.tobytes(), x.astype(dt).tobytes())

    def test_all_halves_convert(self):
        @eas.kernel
        def k(x, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, mk.to_f32(mk.load(x, i, i < N)), i < N)

        bits = np.arange(65536, dtype=np.uint16)
        for dt in [np.dtype(np.float16)] + ([BF16] if BF16 else []):
            x = bits.view(dt)
            for device in DEVICES:
                out = np.zeros(65536, np.float32)
                with backend(device):
                    k(x, out, 65536, BLOCK=256)
                np.testing.assert_array_equal(out, x.astype(np.float32))


class Masks(unittest.TestCase):
    def test_masked_off_lanes_touch_nothing_however_wild(self):
        @eas.kernel
        def k(x, out, N, BLOCK: eas.constexpr):
            i = mk.arange(0, BLOCK)
            ok = i < N
            wild = mk.where(ok, i, i * (1 << 40) - (1 << 60))
            mk.store(out, i, mk.load(x, wild, ok, -1.0))
            mk.store(out, wild, mk.load(x, wild, ok) * 2, ok)

        x = np.arange(8, dtype=np.float32)
        for n in range(0, 9):
            _, out = each(self, k, x, np.zeros(64, np.float32), n, 64, _grid=1)
            np.testing.assert_array_equal(out[:n], x[:n] * 2)
            np.testing.assert_array_equal(out[n:], -1)

    def test_null_buffers_with_nothing_enabled(self):
        empty, x = np.zeros(0, np.float32), np.ones(8, np.float32)
        for device in DEVICES:
            with backend(device):
                copy(empty, empty, 0, BLOCK=8, _grid=3)
                out = np.zeros_like(x)
                copy(x, out, 8, BLOCK=8)  # the device works on
                self.assertEqual(out.tolist(), x.tolist())

    def test_python_bools(self):
        @eas.kernel
        def k(x, out, M: eas.constexpr, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(out, i, mk.load(x, i, M, 9.0), True)
            mk.store(out, i + B, 5.0, M)

        x = np.arange(4, dtype=np.float32)
        for m in (True, False):
            _, out = each(self, k, x, np.zeros(8, np.float32), m, 4, _grid=1)
            np.testing.assert_array_equal(out, [*(x if m else [9] * 4), *([5] * 4 if m else [0] * 4)])

    def test_other_defaults_to_zero_and_broadcasts(self):
        @eas.kernel
        def k(x, out, N, v, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(out, i, mk.load(x, i, i < N))
            mk.store(out, i + B, mk.load(x, i, i < N, v))
            mk.store(out, i + 2 * B, mk.load(x, i, i < N, i * 1.0))

        x = np.full(8, 3, np.float32)
        _, out = each(self, k, x, np.zeros(24, np.float32), 5, 7.5, 8, _grid=1)
        np.testing.assert_array_equal(out, [3] * 5 + [0] * 3 + [3] * 5 + [7.5] * 3 + [3] * 5 + [5, 6, 7])

    def test_tails_of_every_length(self):
        for n in [*range(0, 70), 127, 128, 129, 1000]:
            x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
            _, out = each(self, copy, x, np.zeros(n + 5, np.float32), n, BLOCK=32)
            np.testing.assert_array_equal(out[:n], x)
            self.assertFalse(out[n:].any())

    def test_gather_and_scatter(self):
        @eas.kernel
        def k(x, idx, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            m = i < N
            j = mk.load(idx, i, m)
            mk.store(out, j, mk.load(x, j, m), m)

        n = 100
        x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        for dt in (np.int32, np.int64, np.uint8):
            idx = np.random.default_rng(1).permutation(n).astype(dt)
            out = each(self, k, x, idx, np.zeros(n, np.float32), n, BLOCK=16)[2]
            np.testing.assert_array_equal(out, x)


class Aliasing(unittest.TestCase):
    def test_output_is_an_input(self):
        @eas.kernel
        def k(x, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, mk.load(x, i, i < N) * 2 + 1, i < N)

        for device in DEVICES:
            x = np.arange(100, dtype=np.float32)
            with backend(device):
                k(x, x, 100, BLOCK=16)
            np.testing.assert_array_equal(x, np.arange(100) * 2 + 1)

    def test_block_order_with_overlap(self):
        """Within a program a whole block is loaded before it is stored, also when the arguments overlap
        shifted."""

        @eas.kernel
        def k(x, out, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(out, i, mk.load(x, i))

        for shift in (1, 3, 8):
            for device in DEVICES:
                a = np.arange(64, dtype=np.float32)
                with backend(device):
                    k(a[: 64 - shift], a[shift:], 64 - shift if (64 - shift) & (63 - shift) == 0 else 32, _grid=1)
                n = 64 - shift if (64 - shift) & (63 - shift) == 0 else 32
                np.testing.assert_array_equal(a[shift : shift + n], np.arange(n))


if __name__ == "__main__":
    unittest.main()
