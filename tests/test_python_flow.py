"""Python as it is written in kernels: if, while, for, break, continue, return, and, or, not, chained
comparisons, conditional expressions."""

import importlib.util
import linecache
import os
import re
import tempfile
import traceback
import unittest

import numpy as np
from support import each

import eas
from eas import mk


def both(test, kernel, *args, **kw):
    """On every device, and under _interpret: the same arrays."""
    out = each(test, kernel, *args, **kw)
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    kernel(*copies, _interpret=True, **kw)
    for a, b in zip(out, [a for a in copies if isinstance(a, np.ndarray)]):
        np.testing.assert_array_equal(a, b, "interpreted")
    return out


def text(kernel, *args, **kw):
    """The IR without the kernel's name and its lines."""
    return re.sub(r'kernel "?\w+"?', "kernel", kernel.to_ir(*args, **kw))


X = np.array([3, -1, 4, -1, 5, -9, 2, 6], np.float32)


class Branches(unittest.TestCase):
    def test_if_of_a_program(self):
        @eas.kernel
        def k(x, out, N):
            p = mk.program_id(0)
            v = mk.load(x, p)
            if v > 3:
                y = v * 2
            elif v < 0:
                y = -v
            else:
                y = 0
            mk.store(out, p, y)

        _, out = both(self, k, X, np.zeros(8, np.float32), 8, _grid=8)
        np.testing.assert_array_equal(out, [v * 2 if v > 3 else -v if v < 0 else 0 for v in X])

    def test_if_of_lanes(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            i = mk.arange(0, B)
            v = mk.load(x, i, i < N)
            if v > 3:
                y = v * 2
                mk.store(out, i + N, 1.0, i < N)
            elif v < 0:
                y = -v
            else:
                y = 0
            mk.store(out, i, y, i < N)

        _, out = both(self, k, X, np.zeros(16, np.float32), 8, 16, _grid=1)
        np.testing.assert_array_equal(out[:8], [v * 2 if v > 3 else -v if v < 0 else 0 for v in X])
        np.testing.assert_array_equal(out[8:], X > 3)

    def test_if_of_threads(self):
        @eas.kernel
        def k(x, out, N, T: eas.constexpr):
            i = mk.program_id(0) * T + mk.tid(0, T)
            if i >= N:
                return
            v = mk.load(x, i)
            if v < 0:
                v = -v
            mk.store(out, i, v)

        _, out = both(self, k, X, np.zeros(8, np.float32), 8, 3, _grid=3)
        np.testing.assert_array_equal(out, abs(X))

    def test_known_conditions_stay_pythons(self):
        seen = []

        @eas.kernel
        def k(out, N, BLOCK: eas.constexpr, fast: eas.constexpr = False):
            if BLOCK > 64:
                seen.append("large")
            else:
                seen.append("small")
            v = 1 if fast else 2
            mk.store(out, mk.arange(0, BLOCK), v)

        (out,) = each(self, k, np.zeros(4, np.int32), 4, 4, _grid=1)
        self.assertEqual(seen, ["small"])
        self.assertNotIn("if", k.to_ir(out, 4, 4).split())
        self.assertEqual(out.tolist(), [2] * 4)

    def test_names_of_one_branch(self):
        @eas.kernel
        def k(x, out, N):
            p = mk.program_id(0)
            if mk.load(x, p) > 0:
                t = mk.load(x, p) + 1
                mk.store(out, p, t)
            else:
                t2 = 7.0
                mk.store(out, p, t2)

        _, out = both(self, k, X, np.zeros(8, np.float32), 8, _grid=8)
        np.testing.assert_array_equal(out, np.where(X > 0, X + 1, 7))

    def test_del(self):
        @eas.kernel
        def k(x, out, N):
            for i in range(N):
                for j in range(2):
                    w = x[i] + j
                if i > 1:
                    out[i] = w
                del w

        _, out = both(self, k, np.arange(4, dtype=np.float32), np.zeros(4, np.float32), 4, _grid=1)
        self.assertEqual(out.tolist(), [0, 0, 3, 4])

        @eas.kernel
        def bad(x, out, N):
            w = x[0]
            del w
            if N > 0:
                out[0] = w  # noqa: F821

        with self.assertRaisesRegex(UnboundLocalError, "'w'"):
            bad(np.zeros(1), np.zeros(1), 1, _grid=1)

    def test_tuples_and_swaps(self):
        @eas.kernel
        def k(x, out, N):
            p = mk.program_id(0)
            a, b = mk.load(x, p), 1.0
            pair = (a, b)
            if a < b:
                a, b = b, a
                pair = (b, 2.0)
            mk.store(out, p, a)
            mk.store(out, p + N, b)
            mk.store(out, p + 2 * N, pair[0] * 10 + pair[1])

        _, out = both(self, k, X, np.zeros(24, np.float32), 8, _grid=8)
        np.testing.assert_array_equal(out[:8], np.maximum(X, 1))
        np.testing.assert_array_equal(out[8:16], np.minimum(X, 1))
        np.testing.assert_array_equal(out[16:], np.where(X < 1, X * 10 + 2, X * 10 + 1))

    def test_vars_and_spelled_forms_inside(self):
        @eas.kernel
        def k(x, out, N):
            p = mk.program_id(0)
            v = mk.var(0.0)
            for j in mk.range(N):
                if mk.load(x, j) > p:
                    v += mk.load(x, j)
                else:
                    v -= 1
            mk.store(out, p, v)

        _, out = both(self, k, X, np.zeros(8, np.float32), 8, _grid=8)
        np.testing.assert_array_equal(out, [sum(v if v > p else -1 for v in X) for p in range(8)])


class Loops(unittest.TestCase):
    def test_for(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            acc = mk.zeros(B)
            best = 0
            last = 0.0
            for r in range(N):
                v = mk.load(x, r)
                acc = acc + v * mk.arange(0, B)
                acc += 1
                if v > last:
                    best, last = r, v
            mk.store(out, mk.arange(0, B), acc)
            mk.store(out, B, best)

        _, out = both(self, k, X, np.zeros(5, np.float32), 8, 4, _grid=1)
        np.testing.assert_array_equal(out, [*(X.sum() * np.arange(4) + 8), 7])

    def test_range_forms(self):
        @eas.kernel
        def k(out, lo, hi, step):
            n = s = 0
            for j in range(lo, hi, step):
                n += 1
                s += j
            mk.store(out, 0, n)
            mk.store(out, 1, s)

        for args in ((0, 5, 1), (3, 20, 4), (5, 5, 1), (7, 3, 1), (10, 0, -3), (0, 1, 100)):
            (out,) = both(self, k, np.zeros(2, np.int64), *args, _grid=1)
            self.assertEqual(out.tolist(), [len(range(*args)), sum(range(*args))], args)

    def test_while(self):
        @eas.kernel
        def collatz(out, N):
            p = mk.program_id(0)
            v, n = p + 1, 0
            while v != 1:
                if v % 2 == 0:
                    v //= 2
                else:
                    v = 3 * v + 1
                n += 1
            mk.store(out, p, n)

        (out,) = both(self, collatz, np.zeros(30, np.int64), 30, _grid=30)
        self.assertEqual(out.tolist(), [collatz_steps(v + 1) for v in range(30)])

    def test_while_of_lanes(self):
        @eas.kernel
        def collatz(out, N, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.arange(0, B)
            v, n = i + 1, 0
            while v != 1:
                if v % 2 == 0:
                    v //= 2
                else:
                    v = 3 * v + 1
                n += 1
            mk.store(out, i, n, i < N)

        (out,) = both(self, collatz, np.zeros(30, np.int64), 30, 8, _grid=4)
        self.assertEqual(out.tolist(), [collatz_steps(v + 1) for v in range(30)])

    def test_while_of_threads(self):
        @eas.kernel
        def collatz(out, N, T: eas.constexpr):
            i = mk.program_id(0) * T + mk.tid(0, T)
            v, n = i + 1, 0
            while v != 1:
                v = v // 2 if v % 2 == 0 else 3 * v + 1
                n += 1
            if i < N:
                mk.store(out, i, n)

        (out,) = both(self, collatz, np.zeros(30, np.int64), 30, 8, _grid=4)
        self.assertEqual(out.tolist(), [collatz_steps(v + 1) for v in range(30)])

    def test_break_continue_else(self):
        @eas.kernel
        def k(x, out, N, limit):
            p = mk.program_id(0)
            s = 0.0
            for j in range(N):
                v = mk.load(x, j)
                if v < 0:
                    continue
                if v > limit:
                    s += 100
                    break
                s += v
            else:
                s += 1000
            mk.store(out, p, s)

        for limit in (2.5, 4.5, 10.0):
            _, out = both(self, k, X, np.zeros(1, np.float32), 8, limit, _grid=1)
            want = 0.0
            for v in X:
                if v < 0:
                    continue
                if v > limit:
                    want += 100
                    break
                want += v
            else:
                want += 1000
            self.assertEqual(out[0], want, limit)

    def test_break_of_lanes_and_threads(self):
        @eas.kernel
        def lanes(x, out, N, B: eas.constexpr):
            i = mk.arange(0, B)
            n = 0
            for j in range(N):
                if mk.load(x, j) > i:
                    break
                n += 1
            mk.store(out, i, n)

        @eas.kernel
        def threads(x, out, N, B: eas.constexpr):
            i = mk.tid(0, B)
            n = 0
            for j in range(N):
                if mk.load(x, j) > i:
                    break
                n += 1
            mk.store(out, i, n)

        x = np.arange(8, dtype=np.float32) * 1.5
        want = [next((j for j, v in enumerate(x) if v > i), 8) for i in range(12)]
        for k in (lanes, threads):
            _, out = both(self, k, x, np.zeros(12, np.int32), 8, 12, _grid=1)
            self.assertEqual(out.tolist(), want)

    def test_while_true(self):
        @eas.kernel
        def k(out, N):
            p = mk.program_id(0)
            a, b = p + 12, 18
            while True:
                if b == 0:
                    break
                a, b = b, a % b
            mk.store(out, p, a)

        (out,) = both(self, k, np.zeros(20, np.int64), 20, _grid=20)
        self.assertEqual(out.tolist(), [int(np.gcd(p + 12, 18)) for p in range(20)])

    def test_nested_loops_and_return(self):
        @eas.kernel
        def k(x, out, M, N):
            for i in range(M):
                for j in range(N):
                    if mk.load(x, i * N + j) < 0:
                        mk.store(out, 0, i)
                        mk.store(out, 1, j)
                        return
            mk.store(out, 0, -1)

        for x, want in ((X, [0, 1]), (abs(X), [-1, 0]), (np.float32([1, 2, 3, 4, 5, 6, -7, 8]), [1, 2])):
            _, out = both(self, k, x, np.zeros(2, np.int64), 2, 4, _grid=1)
            self.assertEqual(out.tolist(), want)

    def test_python_loops_unroll(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            p = mk.program_id(0)
            s = 0.0
            for j in range(B):
                if j == 3:
                    continue
                v = mk.load(x, j)
                if v > p:
                    s += v
                if j == 6:
                    break
            mk.store(out, p, s)

        _, out = both(self, k, X, np.zeros(4, np.float32), 8, 8, _grid=4)
        want = [sum(v for j, v in enumerate(X[:7]) if j != 3 and v > p) for p in range(4)]
        np.testing.assert_array_equal(out, np.float32(want))

    def test_traced_break_of_a_python_loop(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            p = mk.program_id(0)
            s = 0.0
            for j in range(B):
                v = mk.load(x, j)
                if v > p + 2:
                    break
                s += v
            mk.store(out, p, s)

        _, out = both(self, k, X, np.zeros(4, np.float32), 8, 8, _grid=4)
        want = []
        for p in range(4):
            s = 0
            for v in X:
                if v > p + 2:
                    break
                s += v
            want.append(s)
        np.testing.assert_array_equal(out, np.float32(want))

    def test_thousands_of_steps(self):
        @eas.kernel
        def k(out, N, B: eas.constexpr):
            s = mk.program_id(0)
            for j in range(B):
                if j % 2:
                    s = s + j
            mk.store(out, 0, s)

        (out,) = each(self, k, np.zeros(1, np.int64), 1, 3000, _grid=1)
        self.assertEqual(out[0], sum(range(1, 3000, 2)))

    def test_types_are_promoted(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            acc, n, blk = 0, 0, 0.0
            for j in range(N):
                acc = acc + mk.load(x, j)
                n += j
                blk = blk + mk.arange(0, B)
                if mk.load(x, j) > 4:
                    acc = 0
            mk.store(out, mk.arange(0, B), blk + acc + n)

        _, out = both(self, k, X, np.zeros(4, np.float32), 8, 4, _grid=1)
        np.testing.assert_array_equal(out, np.arange(4) * 8 + 28 + 0)


def collatz_steps(v):
    n = 0
    while v != 1:
        v, n = (v // 2 if v % 2 == 0 else 3 * v + 1), n + 1
    return n


class Expressions(unittest.TestCase):
    def test_and_or_not(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            i = mk.arange(0, B)
            ok = i < N and mk.load(x, i) > 0  # reads nothing where i >= N
            far = not ok or mk.load(x, i) > 4
            mk.store(out, i, ok)
            mk.store(out, i + B, far)
            mk.store(out, i + 2 * B, 0 <= mk.load(x, i, i < N) < 5)
            mk.store(out, i + 3 * B, mk.load(x, i) * 2 if i < N else -1)

        _, out = both(self, k, X, np.zeros(64, np.float32), 8, 16, _grid=1)
        x = np.concatenate([X, np.zeros(8, np.float32)])
        i = np.arange(16)
        ok = (i < 8) & (x > 0)
        np.testing.assert_array_equal(out[:16], ok)
        np.testing.assert_array_equal(out[16:32], ~ok | (x > 4))
        np.testing.assert_array_equal(out[32:48], (x >= 0) & (x < 5))
        np.testing.assert_array_equal(out[48:], np.where(i < 8, x * 2, -1))

    def test_python_operands(self):
        @eas.kernel
        def k(out, N, opt: eas.constexpr = None):
            p = mk.program_id(0)
            a = opt is not None and opt > 3
            b = opt or 7
            c = not opt
            if a and p > 0:
                mk.store(out, p, 1)
            if a or p == 2:
                mk.store(out, p, b + c)

        (out,) = both(self, k, np.zeros(4, np.int32), 4, _grid=4)
        self.assertEqual(out.tolist(), [0, 0, 8, 0])
        (out,) = both(self, k, np.zeros(4, np.int32), 4, 5, _grid=4)
        self.assertEqual(out.tolist(), [5, 5, 5, 5])


def helper_abs(v):
    if v < 0:
        return -v
    return v


def helper_find(x, n, v):
    for j in range(n):
        if mk.load(x, j) == v:
            return j, v
    return -1, 0.0


def helper_deep(x, n, v):
    return helper_abs(helper_find(x, n, v)[0])


class Helper:
    def __init__(self, scale):
        self.scale = scale

    def relu(self, v):
        return v * self.scale if v > 0 else 0.0


class Helpers(unittest.TestCase):
    def test_helpers(self):
        h = Helper(3)
        pick = lambda v: 1.0 if v > 3 else 2.0  # noqa: E731

        @eas.fn
        def marked(v, lo=-2.0):
            if v < lo:
                return lo
            return v

        @eas.kernel
        def k(x, out, N, f: eas.constexpr):
            p = mk.program_id(0)
            v = mk.load(x, p)
            mk.store(out, p, helper_abs(v))
            mk.store(out, p + N, helper_find(x, N, v + 1)[0])
            mk.store(out, p + 2 * N, helper_deep(x, N, v + 1))
            mk.store(out, p + 3 * N, h.relu(v))
            mk.store(out, p + 4 * N, pick(v))
            mk.store(out, p + 5 * N, marked(v) + marked(v, lo=0.0))
            mk.store(out, p + 6 * N, f(v))

            def inner(a, b=2):
                while a > b:
                    a = a - b
                return a

            mk.store(out, p + 7 * N, inner(v))

        _, out = both(self, k, X, np.zeros(64, np.float32), 8, helper_abs, _grid=8)
        found = [next((j for j, w in enumerate(X) if w == v + 1), -1) for v in X]
        want = [abs(X), found, np.abs(found), np.where(X > 0, X * 3, 0), np.where(X > 3, 1, 2), np.maximum(X, -2) + np.maximum(X, 0), abs(X)]
        want.append([v - 2 * max(0, int(np.ceil((v - 2) / 2))) if v > 2 else v for v in X])
        np.testing.assert_array_equal(out.reshape(8, 8), np.float32(want))


class SameIR(unittest.TestCase):
    def same(self, a, b, *args, **kw):
        self.assertEqual(text(a, *args, **kw), text(b, *args, **kw))

    def test_if(self):
        @eas.kernel
        def plain(x, out, N):
            p = mk.program_id(0)
            v = mk.load(x, p)
            if v > 3:
                y = v * 2
            else:
                y = v - 1
            mk.store(out, p, y)

        @eas.kernel(rewrite=False)
        def spelled(x, out, N):
            p = mk.program_id(0)
            v = mk.load(x, p)
            y = mk.var(0.0)
            with mk.if_(v > 3):
                y.set(v * 2)
            with mk.else_():
                y.set(v - 1)
            mk.store(out, p, y)

        self.same(plain, spelled, X, X.copy(), 8)

    def test_loop(self):
        @eas.kernel
        def plain(x, out, N, B: eas.constexpr):
            acc = mk.zeros(B)
            n = 0
            for r in range(N):
                acc += mk.load(x, r)
                if r % 2 == 0:
                    n += 1
            mk.store(out, mk.arange(0, B), acc + n)

        @eas.kernel(rewrite=False)
        def spelled(x, out, N, B: eas.constexpr):
            acc = mk.var(mk.zeros(B))
            n = mk.var(0)
            for r in mk.range(N):
                acc += mk.load(x, r)
                with mk.if_(r % 2 == 0):
                    n += 1
            mk.store(out, mk.arange(0, B), acc + n)

        self.same(plain, spelled, X, X.copy(), 8, 4)

    def test_while_and_return(self):
        @eas.kernel
        def plain(out, N):
            p = mk.program_id(0)
            if p >= N:
                return
            v, n = p + 1, 0
            while v < 100:
                v = v * 3
                n += 1
            mk.store(out, p, n)

        @eas.kernel(rewrite=False)
        def spelled(out, N):
            p = mk.program_id(0)
            with mk.if_(p >= N):
                pass
            with mk.else_():
                v, n = mk.var(p + 1), mk.var(0)
                with mk.while_(lambda: v < 100):
                    v.set(v * 3)
                    n += 1
                mk.store(out, p, n)

        self.same(plain, spelled, np.zeros(4, np.int64), 4)

    def test_rewriting_adds_nothing_where_nothing_is_traced(self):
        def f(x, out, N, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.arange(0, B)
            for j in range(3):
                if j != 1:
                    mk.store(out, i, mk.load(x, i, i < N) + j, i < N and True)

        self.same(eas.kernel(f), eas.kernel(rewrite=False)(f2), X, X.copy(), 8, 4)


def f2(x, out, N, B: eas.constexpr):
    i = mk.program_id(0) * B + mk.arange(0, B)
    for j in range(3):
        if j != 1:
            mk.store(out, i, mk.load(x, i, i < N) + j, i < N)


def e_one_branch(x, out, N):
    if mk.program_id(0) > 3:
        y = 1
    mk.store(out, 0, y)  # WRONG


def e_loop_only(x, out, N):
    for j in range(N):
        y = mk.load(x, j)
    mk.store(out, 0, y)  # WRONG


def e_dtypes_of_branches(x, out, N):
    p = mk.program_id(0)
    if p > 3:
        y = mk.load(x, p)
    else:
        y = p
    mk.store(out, 0, y + 1)  # WRONG


def e_dtypes_of_turns(x, out, N):
    y = mk.cast(0, mk.i32)
    for j in range(N):  # WRONG
        y = mk.load(x, j)
    mk.store(out, 0, y)


def e_none(x, out, N):
    best = None
    for j in range(N):  # WRONG
        v = mk.load(x, j)
        best = v if best is None else mk.maximum(best, v)
    mk.store(out, 0, best)


def e_kinds(x, out, N):
    word = "a" if N > 3 else None  # WRONG
    mk.store(out, 0, len(word))


def e_raise(x, out, N):
    if mk.program_id(0) > 3:
        raise ValueError("too many")  # WRONG


COUNT = 0


def e_global(x, out, N):
    global COUNT
    if mk.program_id(0) > 3:
        COUNT = 3  # WRONG


def returns_sometimes(v):
    if v > 0:
        return v


def e_return_kinds(x, out, N):
    mk.store(out, 0, returns_sometimes(mk.program_id(0)) + 1)


def e_whole_blocks(x, out, N):
    i = mk.arange(0, 8)
    if i > 3:
        mk.store(out, i, mk.sum(mk.load(x, i)))  # WRONG


def e_list(x, out, N):
    seen = []
    for j in range(N):
        seen.append(j)  # WRONG
    mk.store(out, 0, len(seen))


def e_range_block(x, out, N):
    for j in range(mk.arange(0, 8)):  # WRONG
        mk.store(out, j, 1.0)


def e_before(x, out, N):
    mk.store(out, 0, late)  # WRONG  # noqa: F821
    for late in range(N):
        pass


WRONG = [
    (e_one_branch, UnboundLocalError, ["'y'", "one branch", "if"]),
    (e_loop_only, UnboundLocalError, ["'y'", "loop", "before"]),
    (e_dtypes_of_branches, TypeError, ["'y'", "f32", "i64", "mk.cast"]),
    (e_dtypes_of_turns, TypeError, ["'y'", "i32", "f32", "mk.cast"]),
    (e_none, TypeError, ["'best'", "None"]),
    (e_kinds, TypeError, ["str", "None"]),
    (e_raise, RuntimeError, ["raise", "mk.assert_"]),
    (e_global, RuntimeError, ["global", "'COUNT'"]),
    (e_return_kinds, TypeError, ["result", "None"]),
    (e_whole_blocks, RuntimeError, ["mk.sum", "lanes"]),
    (e_list, RuntimeError, ["'len(seen)'", "mk.var"]),
    (e_range_block, TypeError, ["range()", "block"]),
    (e_before, UnboundLocalError, ["'late'"]),
]


class Wrong(unittest.TestCase):
    def test_messages_and_lines(self):
        for f, error, words in WRONG:
            with self.subTest(f=f.__name__):
                with self.assertRaises(error) as caught:
                    eas.kernel(f)(X, np.zeros(16, np.float32), 8, _grid=8)
                message = str(caught.exception)
                for w in words:
                    self.assertIn(w, message)
                if f is not e_return_kinds:
                    self.assertIn("# WRONG", linecache.getline(__file__, int(re.search(r":(\d+): ", message)[1])), message)

    def test_tracebacks_show_the_users_lines(self):
        def f(x, out, N):
            if mk.program_id(0) > 3:
                for _ in range(N):
                    1 / 0  # THE LINE  # noqa: B018

        try:
            eas.kernel(f)(X, X.copy(), 8, _grid=1)
        except ZeroDivisionError as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            self.assertEqual((last.name, "# THE LINE" in last.line), ("f", True))

    def test_lines_of_instructions(self):
        def f(x, out, N):
            p = mk.program_id(0)
            if p < N:
                v = mk.load(x, p)
                mk.store(out, p, v)

        first = f.__code__.co_firstlineno
        ck = eas.kernel(f).compile(X, X.copy(), 8)
        lines = {i.op: i.line for i in ck.ir.insts}
        self.assertEqual((lines["if"], lines["load"], lines["store"]), (first + 2, first + 3, first + 4))

    def test_without_source(self):
        names = {"mk": mk, "eas": eas}
        exec("def f(x, out, N, B: eas.constexpr):\n    if B > 3:\n        mk.store(out, 0, 1.0)\n", names)
        out = np.zeros(2, np.float32)
        eas.kernel(names["f"])(X, out, 8, 4, _grid=1)
        self.assertEqual(out.tolist(), [1, 0])
        exec("def g(x, out, N):\n    if N > 3:\n        mk.store(out, 0, 1.0)\n", names)
        with self.assertRaisesRegex(TypeError, "source"):
            eas.kernel(names["g"])(X, out, 8, _grid=1)

    def test_a_file_that_changed(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "kernel_of_a_file.py")
            text = "import eas\nfrom eas import mk\n@eas.kernel\ndef k(out, N):\n    if N > 3:\n        mk.store(out, 0, 1.0)\n"
            with open(path, "w") as f:
                f.write(text)
            spec = importlib.util.spec_from_file_location("kernel_of_a_file", path)
            m = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(m)
            with open(path, "w") as f:
                f.write(text.replace("1.0", "2.0"))
            out = np.zeros(1, np.float32)
            with self.assertRaisesRegex(TypeError, "source"):
                m.k(out, 8, _grid=1)


class NewFiles(unittest.TestCase):
    def test_a_file_that_is_newer_than_the_process(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "kernel_of_a_new_file.py")
            with open(path, "w") as f:
                f.write("import eas\nfrom eas import mk\n@eas.kernel\ndef k(out, N):\n    if N > 3:\n        mk.store(out, 0, 1.0)\n")
            os.utime(path, (4e9, 4e9))
            spec = importlib.util.spec_from_file_location("kernel_of_a_new_file", path)
            m = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(m)
            out = np.zeros(1, np.float32)
            m.k(out, 8, _grid=1)
            self.assertEqual(out[0], 1)


class State(unittest.TestCase):
    def test_captured_values_are_guarded(self):
        limit = 3

        @eas.kernel
        def k(x, out, N):
            p = mk.program_id(0)
            if mk.load(x, p) > limit:
                mk.store(out, p, over(limit))

        def over(v):
            if v > 4:
                return 2
            return 1

        out = np.zeros(8, np.float32)
        k(X, out, 8, _grid=8)
        np.testing.assert_array_equal(out, X > 3)
        limit = 5
        out[:] = 0
        k(X, out, 8, _grid=8)
        np.testing.assert_array_equal(out, (X > 5) * 2)

    def test_methods(self):
        class Scale:
            def __init__(self, by):
                self.by = by

            @eas.kernel
            def run(self, x, out, N):
                p = mk.program_id(0)
                v = self.scaled(mk.load(x, p))
                mk.store(out, p, v)

            def scaled(self, v):
                if v < 0:
                    return v
                return v * self.by

        out = np.zeros(8, np.float32)
        Scale(3).run(X, out, 8, _grid=8)
        np.testing.assert_array_equal(out, np.where(X < 0, X, X * 3))

    def test_derivatives(self):
        @eas.kernel
        def k(x, y, N):
            p = mk.program_id(0)
            v = mk.load(x, p)
            s = 0.0
            for j in range(3):
                if v > 2:
                    s += v * v
                else:
                    s += v * (j + 1)
            t = s
            for _ in range(N):
                t = t * 0.5
            mk.store(y, p, t)

        d_y, d_x = np.ones(8, np.float32), np.zeros(8, np.float32)
        eas.grad_kernel(k, wrt=["x"], of=["y"])(X, np.zeros(8, np.float32), 2, d_y, d_x, _grid=8)
        np.testing.assert_allclose(d_x, np.where(X > 2, 6 * X, 6) * 0.25)

    def test_derivatives_of_lanes_and_breaks(self):
        @eas.kernel
        def k(x, y, N, B: eas.constexpr):
            i = mk.arange(0, B)
            v = mk.load(x, i)
            s = v
            n = 0
            while n < 4:
                s = s * 2 if v > 0 else s + v
                n += 1
                if n > N:
                    break
            mk.store(y, i, s)

        d_y, d_x = np.ones(8, np.float32), np.zeros(8, np.float32)
        eas.grad_kernel(k, wrt=["x"], of=["y"], max_trips=8)(X, np.zeros(8, np.float32), 2, d_y, d_x, B=8, _grid=1)
        np.testing.assert_allclose(d_x, np.where(X > 0, 8, 4))

    def test_cost_of_rewriting(self):
        from eas import _rewrite

        def f(x, out, N):
            p = mk.program_id(0)
            if p < N:
                mk.store(out, p, mk.load(x, p))

        k = eas.kernel(f)
        k(X, X.copy(), 8, _grid=8)
        codes = len(_rewrite._codes)
        for _ in range(10):  # nothing on a cached launch
            k(X, X.copy(), 8, _grid=8)
        self.assertEqual(len(_rewrite._codes), codes)
        self.assertEqual(len(k.compiled), 1)

    def test_only_what_a_traced_value_decides_is_rewritten(self):
        from eas import _rewrite

        def known(x, out, N, MODE: eas.constexpr, B: eas.constexpr):
            i = mk.arange(0, B)
            v, steps, names = mk.load(x, i, i < N), [], {"a": 1}
            if MODE == 1 and not B < 4 or x is None:
                v = v * 2
            for q in range(B // 4):
                if q == 2:
                    continue
                steps.append(q)
                v += q if MODE else -q
            while len(steps) > 1 < B:
                v += steps.pop()
            for n in mk.range(0, 3):
                out[n] = 0.0
            mk.store(out, i, v + sum(k for k in names.values() if k > 0), i < N)

        def traced(x, out, N, MODE: eas.constexpr, B: eas.constexpr):
            i = mk.arange(0, B)
            v = mk.load(x, i, i < N)
            many = [N, MODE]
            if MODE == 1:
                v = v * 2
            best, n = 0, 0
            while n < many[0]:  # the list holds a traced number
                n += 1
                if MODE == 3:
                    break
                best = n
            mk.store(out, i, v + best, i < N)

        def fill(to, v):
            to.append(v)

        @eas.kernel
        def through_a_helper(x, out, N):
            p, held = mk.program_id(0), []
            fill(held, mk.load(x, p))
            if held[0] > 0:
                mk.store(out, p, 1.0)

        out = np.zeros(8, np.float32)
        through_a_helper(X, out, 8, _grid=8)
        np.testing.assert_array_equal(out, X > 0)
        metas = ("MODE", "B")
        self.assertIsNone(_rewrite._rewritten(known, False, metas))
        self.assertIsNotNone(_rewrite._rewritten(known, False, ("B",)))
        made = _rewrite._rewritten(traced, False, metas)
        self.assertIsNotNone(made)
        for mode in (0, 1, 3):
            out = np.zeros(8, np.float32)
            eas.kernel(traced)(X, out, 8, MODE=mode, B=8, _grid=1)
            np.testing.assert_array_equal(out, X * (2 if mode == 1 else 1) + (0 if mode == 3 else 8))
        results = []
        for options in ({}, {"rewrite": False}):
            out = np.zeros(8, np.float32)
            eas.kernel(**options)(known)(X, out, 8, MODE=1, B=8, _grid=1)
            results.append(out.tolist())
        self.assertEqual(*results)


if __name__ == "__main__":
    unittest.main()
