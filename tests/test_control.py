"""mk.var, mk.range, mk.if_, mk.else_, mk.while_."""

import unittest

import numpy as np
from support import each

import eas
from eas import mk


class Loops(unittest.TestCase):
    def test_range_forms(self):
        @eas.kernel
        def k(out, lo, hi, step, B: eas.constexpr):
            n, s = mk.var(0), mk.var(0)
            for j in mk.range(lo, hi, step):
                n += 1
                s += j
            i = mk.arange(0, B)
            mk.store(out, i, mk.where(i == 0, n.value, s.value))

        for args in ((0, 5, 1), (3, 20, 4), (5, 5, 1), (7, 3, 1), (10, 0, -3), (0, 1, 100)):
            (out,) = each(self, k, np.zeros(2, np.int64), *args, 2, _grid=1)
            self.assertEqual(out.tolist(), [len(range(*args)), sum(range(*args))], args)

    def test_block_accumulators(self):
        @eas.kernel
        def k(x, out, M, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            acc = mk.var(mk.zeros(BLOCK))
            for r in mk.range(M):
                acc += mk.load(x, r * N + i, i < N)
            mk.store(out, i, acc, i < N)

        x = np.arange(70, dtype=np.float32).reshape(7, 10)
        _, out = each(self, k, x, np.zeros(10, np.float32), 7, 10, BLOCK=4)
        np.testing.assert_array_equal(out, x.sum(0))

    def test_nested(self):
        @eas.kernel
        def k(out, A, B, C: eas.constexpr):
            n = mk.var(0)
            for i in mk.range(A):
                for j in mk.range(i, B):
                    with mk.if_((i + j) % 2 == 0):
                        n += i * j
                    with mk.else_():
                        n -= 1
            mk.store(out, mk.arange(0, 1), n.value)

        (out,) = each(self, k, np.zeros(1, np.int64), 5, 7, 1, _grid=1)
        self.assertEqual(out[0], sum(i * j if (i + j) % 2 == 0 else -1 for i in range(5) for j in range(i, 7)))

    def test_while(self):
        @eas.kernel
        def collatz(out, N, BLOCK: eas.constexpr):
            p = mk.program_id(0)
            v, n = mk.var(p + 1), mk.var(0)
            with mk.while_(lambda: v != 1):
                v.set(mk.where(v % 2 == 0, v // 2, 3 * v + 1))
                n += 1
            mk.store(out, p, n.value)

        def steps(v):
            n = 0
            while v != 1:
                v, n = (v // 2 if v % 2 == 0 else 3 * v + 1), n + 1
            return n

        (out,) = each(self, collatz, np.zeros(30, np.int64), 30, 1, _grid=30)
        self.assertEqual(out.tolist(), [steps(v + 1) for v in range(30)])

    def test_for_while(self):
        @eas.kernel
        def k(out, n, B: eas.constexpr):
            v = mk.var(1)
            for _ in mk.while_(lambda: v < n):  # noqa: B023
                v *= 2
            mk.store(out, mk.arange(0, 1), v.value)

        (out,) = each(self, k, np.zeros(1, np.int64), 1000, 1, _grid=1)
        self.assertEqual(out[0], 1024)

    def test_if_without_else(self):
        @eas.kernel
        def k(out, n, B: eas.constexpr):
            v = mk.var(1.0)
            with mk.if_(n > 3):
                v.set(2.0)
                mk.store(out, mk.arange(1, size=1), 5.0)
            mk.store(out, mk.arange(0, 1), v.value)

        for n, want in ((3, [1, 0]), (4, [2, 5])):
            (out,) = each(self, k, np.zeros(2, np.float32), n, 1, _grid=1)
            self.assertEqual(out.tolist(), want)

    def test_mistakes(self):
        def run(f):
            eas.kernel(f)(np.zeros(4, np.float32), 4, _grid=1)

        def else_alone(out, N):
            with mk.else_():
                pass

        def other_dtype(out, N):
            v = mk.var(0)
            for _ in mk.range(N):
                v += mk.load(out, 0)

        def other_shape(out, N):
            v = mk.var(0.0)
            for _ in mk.range(N):
                v += mk.load(out, mk.arange(0, 4))

        def not_callable(out, N):
            with mk.while_(N > 3):
                pass

        def block_condition(out, N):
            with mk.if_(mk.arange(0, 4) < N):
                pass

        for f, error in (
            (else_alone, RuntimeError),
            (other_dtype, TypeError),
            (other_shape, ValueError),
            (not_callable, TypeError),
            (block_condition, TypeError),
        ):
            with self.subTest(f.__name__), self.assertRaisesRegex(error, "test_control.py:"):
                run(f)


class Masks(unittest.TestCase):
    """Conditions that hold for all lanes of most chunks or rounds: code without masks, and with them at the
    ends."""

    def test_guard_around_a_thread(self):
        @eas.kernel
        def k(x, out, N, LO: eas.constexpr, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.tid(0, B)
            with mk.if_((i < N) & (i >= LO)):
                mk.store(out, i, mk.load(x, i) * 2 + 1)
            with mk.else_():
                mk.store(out, i, -1.0)

        for n in (0, 1, 7, 63, 64, 65, 127, 128, 150):
            for lo in (0, 3):
                _, out = each(self, k, np.arange(192, dtype=np.float32), np.zeros(192, np.float32), n, LO=lo, B=64, _grid=3)
                i = np.arange(192)
                np.testing.assert_array_equal(out, np.where((i < n) & (i >= lo), 2 * i + 1, -1), str((n, lo)))

    def test_guard_that_gives_values(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.tid(0, B)
            v = mk.var(5.0)
            for j in mk.range(3):
                with mk.if_(i + j < N):
                    v += mk.load(x, i + j)
            mk.store(out, i, v)

        x = np.arange(100, dtype=np.float32)
        for n in (0, 5, 64, 66, 100):
            _, out = each(self, k, x, np.zeros(128, np.float32), n, B=64, _grid=2)
            at = np.arange(128)[:, None] + np.arange(3)
            np.testing.assert_array_equal(out, 5 + np.where(at < n, x[np.minimum(at, 99)], 0).sum(1), str(n))

    def test_rounds_of_a_row(self):
        @eas.kernel
        def k(a, b, out, K, LO: eas.constexpr, B: eas.constexpr):
            r = mk.program_id(0)
            total = mk.var(mk.zeros((B,), mk.i32))
            for j in mk.range(0, K, B):
                at = j + mk.arange(0, B)
                inside = (at < K) & (at >= LO)
                total += mk.to_i32(mk.load(a, r * K + at, inside, 1)) * mk.to_i32(mk.load(b, at, inside, 2))
            mk.store(out, r, mk.sum(total))

        rng = np.random.default_rng(0)
        for n in (1, 31, 32, 33, 100, 128, 200):
            for block in (32, 128):
                for lo in (0, 3):
                    a, b = rng.integers(-128, 128, (3, n)).astype(np.int8), rng.integers(-128, 128, n).astype(np.int8)
                    _, _, out = each(self, k, a, b, np.zeros(3, np.int32), n, LO=lo, B=block, _grid=3)
                    off = -(-n // block) * block - n + min(lo, n)
                    np.testing.assert_array_equal(out, a[:, lo:].astype(np.int32) @ b[lo:].astype(np.int32) + 2 * off, str((n, block, lo)))

    def test_rows_of_different_lengths(self):
        @eas.kernel
        def k(start, cols, vals, x, out, ROWS, B: eas.constexpr):
            r = mk.program_id(0) * B + mk.tid(0, B)
            with mk.if_(r < ROWS):
                total = mk.var(0.0)
                for j in mk.range(mk.load(start, r), mk.load(start, r + 1)):
                    c = mk.load(cols, j)
                    with mk.if_(c % 3 != 0):
                        total += mk.load(vals, j) * mk.load(x, c)
                mk.store(out, r, total)

        rng = np.random.default_rng(1)
        for rows in (1, 7, 32, 45):
            start = np.zeros(rows + 1, np.int32)
            start[1:] = np.cumsum(rng.integers(0, 9, rows))
            n = max(int(start[-1]), 1)
            cols, vals, x = rng.integers(0, 20, n).astype(np.int32), rng.integers(-9, 9, n).astype(np.float32), rng.integers(-9, 9, 20).astype(np.float32)
            *_, out = each(self, k, start, cols, vals, x, np.full(64, 7, np.float32), rows, B=32, _grid=2)
            terms = np.where(cols % 3 != 0, vals * x[cols], 0)
            np.testing.assert_array_equal(out[:rows], [terms[start[r] : start[r + 1]].sum() for r in range(rows)])
            self.assertTrue((out[rows:] == 7).all())

    def test_gathers_under_masks(self):
        @eas.kernel
        def k(at, x, out, N, OTHER: eas.constexpr, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.arange(0, B)
            j = mk.load(at, i, i < N)
            mk.store(out, i, mk.load(x, j, (i < N) & (j % 5 != 2), OTHER))

        rng = np.random.default_rng(2)
        for dtype in (np.float32, np.float64, np.int8, np.int16, np.int64):
            for other in (0, 7):
                at, x = rng.integers(0, 50, 90).astype(np.int32), rng.integers(0, 100, 50).astype(dtype)
                *_, out = each(self, k, at, x, np.zeros(96, dtype), 90, OTHER=other, B=32, _grid=3)
                np.testing.assert_array_equal(out[:90], np.where(at % 5 != 2, x[at], other))
                np.testing.assert_array_equal(out[90:], other)

    def test_a_row_that_leaves_its_array(self):
        @eas.kernel
        def k(start, x, out, B: eas.constexpr):
            r = mk.tid(0, B)
            total = mk.var(0.0)
            for j in mk.range(mk.load(start, r), mk.load(start, r + 1)):
                total += mk.load(x, j)
            mk.store(out, r, total)

        start = np.array([0, 2, 5, 9, 12], np.int32)
        for device in ("cpu", "ref"):
            with self.assertRaisesRegex(IndexError, "10"):
                arrays = [eas.tensor(a, device=device) for a in (start, np.ones(10, np.float32), np.zeros(4, np.float32))]
                k(*arrays, B=4, _grid=1)


if __name__ == "__main__":
    unittest.main()
