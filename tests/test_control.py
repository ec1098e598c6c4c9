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


if __name__ == "__main__":
    unittest.main()
