"""Integers behave as Python's, exact within 64 bits; // and % round as Python's do; loaded values wrap as
their dtype says."""

import itertools
import unittest

import numpy as np
from support import DEVICES, ROOT, backend, each, python

import eas
from eas import mk

SMALL = [-9, -8, -7, -3, -2, -1, 1, 2, 3, 7, 8, 9, 100, -100]


@eas.kernel
def block(x, y, q, r, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    a, b = mk.load(x, i, m), mk.load(y, i, m, 1)
    mk.store(q, i, a // b, m)
    mk.store(r, i, a % b, m)


@eas.kernel
def scalar(q, r, a, b, B: eas.constexpr):
    i = mk.arange(0, 1)
    mk.store(q, i, a // b)
    mk.store(r, i, a % b)


@eas.kernel
def meta(q, r, X: eas.constexpr, Y: eas.constexpr):
    i = mk.arange(0, 1)
    mk.store(q, i, X // Y)
    mk.store(r, i, X % Y)


@eas.kernel
def mixed(x, q, r, Y: eas.constexpr, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    a = mk.load(x, i)
    mk.store(q, i, a // Y)
    mk.store(r, i, a % Y)


@eas.kernel
def by_one(x, y, q, r, BLOCK: eas.constexpr):
    """The divisor is one number for all lanes, and not known when the kernel is compiled."""
    i = mk.arange(0, BLOCK)
    a, b = mk.load(x, i), mk.load(y, 0)
    mk.store(q, i, a // b)
    mk.store(r, i, a % b)


@eas.kernel
def by_lane(x, q, r, BLOCK: eas.constexpr):
    """The divisors are known when the kernel is compiled, and no two are the same."""
    i = mk.arange(0, BLOCK)
    a = mk.load(x, i)
    b = mk.cast(i + 1, a.dtype)
    mk.store(q, i, a // b)
    mk.store(r, i, a % b)


BY_ONE = """
import sys
sys.path.insert(0, "tests")
import test_integers
test_integers.FloorDivision("test_by_one_number").debug()
"""


def wrapped(values, dt):
    bits = np.iinfo(dt).bits
    return np.array([v % (1 << bits) for v in values], f"u{bits // 8}").astype(dt)


@eas.kernel
def ceiling(x, y, o, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(o, i, mk.cdiv(mk.load(x, i, m), mk.load(y, i, m, 1)), m)


class CeilingDivision(unittest.TestCase):
    """mk.cdiv rounds up for every dtype and at both ends of it."""

    def test_every_dtype(self):
        for dt in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
            info = np.iinfo(dt)
            values = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, 0, 1, 2, 3, 7, 8, 9]
            values += [-1, -2, -3, -7] if info.min < 0 else []
            pairs = [(a, b) for a, b in itertools.product(values, values) if b]
            x, y = (np.array(v, dt) for v in zip(*pairs))
            got = each(self, ceiling, x, y, np.zeros_like(x), len(x), BLOCK=64)[2]
            for (a, b), g in zip(pairs, got.tolist()):
                want = -(-a // b)
                if info.min <= want <= info.max:  # the least integer by -1 wraps, as // does
                    self.assertEqual(g, want, (dt, a, b))
            ceiling(x, y, o := np.zeros_like(x), len(x), BLOCK=64, _interpret=True)
            np.testing.assert_array_equal(o, got)

    def test_by_zero(self):
        x = np.array([0, 1, 255, 7], "u1")
        self.assertEqual(each(self, ceiling, x, 0 * x, 0 * x + 9, 4, BLOCK=4)[2].tolist(), [0, 0, 0, 0])

    def test_numbers_and_floats(self):
        seen = []

        @eas.kernel
        def k(x, o, n):
            seen.append((mk.cdiv(7, 2), mk.cdiv(np.uint8(7), np.uint8(2)), mk.cdiv(-7, 2), mk.cdiv(2**70 + 1, 2**70)))
            i = mk.arange(0, 4)
            v = mk.load(x, i)
            mk.store(o, i, mk.cdiv(mk.cdiv(v, 2) + mk.cdiv(300, mk.cast(v, mk.i32)), 1) + mk.cdiv(n, mk.cast(3, mk.u32)))

        out = each(self, k, np.array([1.5, 4, 7, -3], "f4"), np.zeros(4, "f4"), 7, _grid=1)[1]
        self.assertEqual(seen[0], (4, 4, -3, 2))
        self.assertEqual(out.tolist(), [1 + 300 + 3, 2 + 75 + 3, 4 + 43 + 3, -1 - 100 + 3])


class FloorDivision(unittest.TestCase):
    def test_by_one_number(self):
        """The largest dividends, and multiples of the divisor with their neighbours, are where a reciprocal
        would go wrong."""
        rng = np.random.default_rng(0)
        for dt in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
            lo, hi, bits = int(np.iinfo(dt).min), int(np.iinfo(dt).max), np.iinfo(dt).bits
            random = [int(v) for v in rng.integers(lo, hi, 6, dt)]
            for d in (0, 1, 2, 3, 7, 10, hi, hi - 1, hi // 2 + 1, (1 << bits // 2) - 1, *random, *((lo, lo + 1, -1, -2, -7) if lo else ())):
                near = [k * d + j for k in (-50, -3, -2, -1, 1, 2, 5, 100, hi // d if d else 0, lo // d if d else 0) for j in (-1, 0, 1)]
                ends = [lo, lo + 1, hi, hi - 1, 0, 1]
                x = wrapped(near + ends + [int(v) for v in rng.integers(lo, hi, 128 - len(near) - len(ends), dt)], dt)
                _, _, q, r = each(self, by_one, x, np.array([d], dt), x * 0, x * 0, 128, _grid=1)
                for got, want in ((q, [int(a) // d if d else 0 for a in x]), (r, [int(a) % d if d else 0 for a in x])):
                    np.testing.assert_array_equal(got, wrapped(want, dt), f"{np.dtype(dt).name} by {d}")

    def test_by_one_number_in_narrower_vectors(self):
        for isa in ("avx2", "sse2"):
            python(BY_ONE, env={"EAS_ISA": isa}, cwd=ROOT)

    def test_by_the_number_of_the_lane(self):
        for dt in (np.int8, np.uint16, np.int32, np.int64):
            for n in (4, 8, 16):
                x = np.arange(100, 100 + n).astype(dt)
                _, q, r = each(self, by_lane, x, x * 0, x * 0, n, _grid=1)
                np.testing.assert_array_equal(q, x // np.arange(1, n + 1))
                np.testing.assert_array_equal(r, x % np.arange(1, n + 1))

    def test_blocks(self):
        pairs = list(itertools.product(SMALL, SMALL))
        for dt in (np.int8, np.int16, np.int32, np.int64):
            x, y = (np.array(c, dt) for c in zip(*pairs))
            q, r = np.zeros_like(x), np.zeros_like(x)
            _, _, q, r = each(self, block, x, y, q, r, len(x), BLOCK=32)
            self.assertEqual(q.tolist(), [np.array(a // b).astype(dt) for a, b in pairs])
            self.assertEqual(r.tolist(), [a % b for a, b in pairs])

    def test_scalars_and_meta(self):
        q, r = np.zeros(1, np.int64), np.zeros(1, np.int64)
        for a, b in itertools.product(SMALL, SMALL):
            for device in DEVICES:
                with backend(device):
                    scalar(q, r, a, b, 1, _grid=1)
                    self.assertEqual((q[0], r[0]), (a // b, a % b), (a, b))
            meta(q, r, a, b, _grid=1)
            self.assertEqual((q[0], r[0]), (a // b, a % b), (a, b))

    def test_blocks_by_literals(self):
        x = np.array(SMALL + [2**62, -(2**62), 2**63 - 1, -(2**63)], np.int64)
        x = np.resize(x, 32)
        for y in (*SMALL, 16, 64, 10**9, 2**40, -(2**40)):
            q, r = np.zeros_like(x), np.zeros_like(x)
            _, q, r = each(self, mixed, x, q, r, y, 32, _grid=1)
            wrap = [int(a) // y for a in x]
            wrap = [w - 2**64 if w >= 2**63 else w for w in wrap]
            self.assertEqual(q.tolist(), wrap)
            self.assertEqual(r.tolist(), [int(a) % y for a in x])

    def test_floats(self):
        values = [-7.5, -3.0, -0.5, 0.5, 2.0, 3.25, 7.5, -0.0, 0.0]
        pairs = [(a, b) for a in values for b in values if b]
        for dt in (np.float32, np.float64):
            x, y = (np.array(c, dt) for c in zip(*pairs))
            q, r = np.zeros_like(x), np.zeros_like(x)
            _, _, q, r = each(self, block, x, y, q, r, len(x), BLOCK=16)
            np.testing.assert_array_equal(q, [a // b for a, b in pairs])
            np.testing.assert_array_equal(r, [a % b for a, b in pairs])

    def test_by_zero_and_overflow_are_defined(self):
        x = np.array([5, -5, 0, -(2**63), 7], np.int64)
        y = np.array([0, 0, 0, -1, -1], np.int64)
        _, _, q, r = each(self, block, x, y, x * 0, x * 0, 5, BLOCK=8)
        self.assertEqual(q.tolist(), [0, 0, 0, -(2**63), -7])
        self.assertEqual(r.tolist(), [0, 0, 0, 0, 0])


class SixtyFourBits(unittest.TestCase):
    def test_products_of_scalars(self):
        @eas.kernel
        def k(out, a, b, B: eas.constexpr):
            mk.store(out, mk.arange(0, 1), a * b + mk.program_id(0))

        for a, b in ((2**31, 2), (2**31 - 1, 2**31 - 1), (-(2**40), 2**20), (3037000499, 3037000499), (2**62, 1), (-(2**63), 1)):
            (out,) = each(self, k, np.zeros(1, np.int64), a, b, 1, _grid=1)
            self.assertEqual(out[0], a * b)

    def test_same_kernel_small_and_big(self):
        @eas.kernel
        def k(out, N, S, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, i * S, i < N)

        for s in (1, 3, 2**31, 2**33 + 1, -(2**40), 5):
            (out,) = each(self, k, np.zeros(40, np.int64), 40, s, BLOCK=16)
            self.assertEqual(out.tolist(), [i * s for i in range(40)])

    def test_comparison_with_big_bounds(self):
        @eas.kernel
        def k(out, a, b, B: eas.constexpr):
            mk.store(out, mk.arange(0, 1), mk.where(a < b, 1, 0))

        for a, b in ((2**31, 2**31 + 1), (2**32, 1), (-1, 2**32), (2**63 - 1, -(2**63))):
            (out,) = each(self, k, np.zeros(1, np.int32), a, b, 1, _grid=1)
            self.assertEqual(out[0], int(a < b))

    def test_offsets_beyond_32_bits(self):
        """A sparse array of more than 2^31 elements; only a few pages are touched."""
        n = (1 << 31) + 4096
        try:
            x = np.zeros(n, np.uint8)
        except MemoryError:
            self.skipTest("no memory")

        @eas.kernel
        def k(x, out, base, BLOCK: eas.constexpr):
            i = mk.arange(0, BLOCK)
            mk.store(x, base + i, mk.load(x, base + i) + 3)
            mk.store(out, i, mk.load(x, base + i))

        for base in (0, (1 << 31) - 8, (1 << 31) + 64, n - 16):
            before = x[base : base + 16].copy()
            k(x, np.zeros(16, np.uint8), base, 16, _grid=1)
            np.testing.assert_array_equal(x[base : base + 16], before + 3)

    def test_big_strides_times_program_id(self):
        n = (1 << 31) + 4096
        x = np.zeros(n, np.uint8)

        @eas.kernel
        def k(x, stride, BLOCK: eas.constexpr):
            mk.store(x, mk.program_id(0) * stride + mk.arange(0, BLOCK), mk.program_id(0) + 1)

        k(x, 1 << 30, 4, _grid=3)
        self.assertEqual([int(x[i << 30]) for i in range(3)], [1, 2, 3])

    def test_loaded_values_wrap(self):
        @eas.kernel
        def k(x, out, B: eas.constexpr):
            i = mk.arange(0, B)
            mk.store(out, i, mk.load(x, i) * 2 + 1)

        for dt in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
            info = np.iinfo(dt)
            x = np.array([info.min, info.max, 0, 1, info.max // 2, info.max // 2 + 1, 5, 100], dt)
            _, out = each(self, k, x, np.zeros(8, dt), 8, _grid=1)
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(out, x * dt(2) + dt(1))

    def test_explicit_casts_wrap(self):
        @eas.kernel
        def k(out, v, B: eas.constexpr):
            i = mk.arange(0, 4)
            mk.store(out, i, mk.cast(mk.cast(v, mk.i32) + 1, mk.i64))

        (out,) = each(self, k, np.zeros(4, np.int64), 2**31 - 1, 1, _grid=1)
        self.assertEqual(out[0], -(2**31))

    def test_less_than_nothing_becomes_much_without_a_sign(self):
        @eas.kernel
        def k(out, v, FROM: eas.constexpr, TO: eas.constexpr, B: eas.constexpr):
            i = mk.arange(0, B)
            bound = mk.cast(mk.broadcast_to(mk.cast(v, FROM), (B,)), TO)
            mk.store(out, i, 1, mk.cast(i, TO) < bound)

        for v in (-3, 0, 3):
            for signed, unsigned in ((mk.i8, mk.u16), (mk.i8, mk.u32), (mk.i16, mk.u32), (mk.i32, mk.u64), (mk.i64, mk.u64), (mk.i32, mk.u8)):
                (out,) = each(self, k, np.zeros(20, np.int32), v, FROM=signed, TO=unsigned, B=20, _grid=1)
                np.testing.assert_array_equal(out, np.arange(20) < (v if v >= 0 else 20))

    def test_shifts_and_bits(self):
        @eas.kernel
        def k(x, out, S: eas.constexpr, B: eas.constexpr):
            i = mk.arange(0, B)
            v = mk.load(x, i)
            mk.store(out, i, ((v << S) ^ (v >> S)) & ~(v | 5))

        for dt in (np.int32, np.int64, np.uint32):
            x = np.array([1, 2, 3, 255, 2**30, 7, 9, 100], dt)
            for s in (0, 1, 7):
                _, out = each(self, k, x, np.zeros(8, dt), s, 8, _grid=1)
                np.testing.assert_array_equal(out, ((x << dt(s)) ^ (x >> dt(s))) & ~(x | dt(5)))


if __name__ == "__main__":
    unittest.main()
