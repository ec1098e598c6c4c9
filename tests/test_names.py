"""Plain names and values over the bodies of traced loops and branches: what would silently be wrong raises,
with line and fix."""

import linecache
import unittest

import numpy as np
from support import each

import eas
from eas import mk


def run(body, *args, **options):
    eas.kernel(**options)(body)(np.arange(16, dtype=np.float32), np.zeros(16, np.float32), 16, *args, 16, _grid=1)


def w_sum(x, out, N, B: eas.constexpr):
    acc = mk.zeros(B)
    for k in mk.range(N):
        acc = acc + mk.load(x, k)  # WRONG
    mk.store(out, mk.arange(0, B), acc)


def w_augmented(x, out, N, B: eas.constexpr):
    acc = 0.0
    for k in mk.range(N):
        acc += mk.load(x, k)  # WRONG
    mk.store(out, 0, acc)


def w_python_number(x, out, N, B: eas.constexpr):
    n = 0
    for k in mk.range(N):
        mk.store(out, k, n)
        n += 1  # WRONG


def w_variable(x, out, N, B: eas.constexpr):
    acc = mk.var(0.0)
    for k in mk.range(N):
        acc = acc + mk.load(x, k)  # WRONG
    mk.store(out, 0, acc)


def w_while(x, out, N, B: eas.constexpr):
    v, n = mk.program_id(0), mk.var(0)
    with mk.while_(lambda: n < N):
        v = v * 2  # WRONG
        n += 1
    mk.store(out, 0, v)


def w_condition(x, out, N, B: eas.constexpr):
    n = mk.program_id(0)
    with mk.while_(lambda: n < N):
        n = mk.to_i64(mk.load(x, 3))  # WRONG


def w_for_while(x, out, N, B: eas.constexpr):
    n = mk.program_id(0)
    for _ in mk.while_(lambda: n < N):  # noqa: B023
        n = n + 1  # WRONG


def w_nested(x, out, N, B: eas.constexpr):
    best = mk.load(x, 0)
    for i in mk.range(N):
        for j in mk.range(i):
            best = mk.maximum(best, mk.load(x, i - j))  # WRONG
    mk.store(out, 0, best)


def w_nothing_before(x, out, N, B: eas.constexpr):
    best = None
    for i in mk.range(N):
        v = mk.load(x, i)
        best = v if best is None else mk.maximum(best, v)  # WRONG
    mk.store(out, 0, best)


def w_other_kinds(x, out, N, B: eas.constexpr):
    rows = ()
    for k in mk.range(N):
        rows = (*rows, mk.load(x, k))  # WRONG
    mk.store(out, 0, len(rows))


def w_text(x, out, N, B: eas.constexpr):
    how = "first"
    for k in mk.range(N):
        mk.store(out, k, 1.0 if how == "first" else 2.0)
        how = "later"  # WRONG


def w_value_then_number(x, out, N, B: eas.constexpr):
    v = mk.load(x, 0)
    for k in mk.range(N):
        mk.store(out, k, v)
        v = 0.0  # WRONG


REASSIGNED = [
    w_other_kinds,
    w_text,
    w_value_then_number,
    w_sum,
    w_augmented,
    w_python_number,
    w_variable,
    w_while,
    w_condition,
    w_for_while,
    w_nested,
    w_nothing_before,
]


def u_after_loop(x, out, N, B: eas.constexpr):
    for k in mk.range(N):
        last = mk.load(x, k)
    mk.store(out, 0, last)  # WRONG


def u_index_after_loop(x, out, N, B: eas.constexpr):
    for k in mk.range(N):
        mk.store(out, k, 1.0)
    mk.store(out, k, 2.0)  # WRONG


def u_after_if(x, out, N, B: eas.constexpr):
    v = mk.load(x, 0)
    with mk.if_(N > 3):
        v = v + 1
    mk.store(out, 0, v)  # WRONG


def u_then_in_else(x, out, N, B: eas.constexpr):
    with mk.if_(N > 3):
        v = mk.load(x, 0)
    with mk.else_():
        mk.store(out, 0, v + 1)  # WRONG


def u_after_while(x, out, N, B: eas.constexpr):
    n = mk.var(0)
    with mk.while_(lambda: n < N):
        n += 1
        v = n * 2
    v + 1  # WRONG  # noqa: B018


USED = [u_after_loop, u_index_after_loop, u_after_if, u_then_in_else, u_after_while]


def b_number(x, out, N, B: eas.constexpr):
    c = 1.0
    with mk.if_(N > 3):
        c = 2.0
    mk.store(out, 0, c)  # WRONG


def b_both(x, out, N, B: eas.constexpr):
    with mk.if_(N > 3):
        c = 2.0
    with mk.else_():
        c = 3.0
    mk.store(out, 0, c)  # WRONG


def b_in_else(x, out, N, B: eas.constexpr):
    mode = "a"
    with mk.if_(N > 3):
        mode = "b"
    with mk.else_():
        mk.store(out, 0, 1.0 if mode == "a" else 2.0)  # WRONG


def b_in_a_loop(x, out, N, B: eas.constexpr):
    for k in mk.range(N):
        n = 0
        for _ in range(2):
            with mk.if_(k > 2):
                n += 1
        mk.store(out, k, n)  # WRONG


BRANCH = [b_number, b_both, b_in_else, b_in_a_loop]


def r_return(x, out, N, B: eas.constexpr):
    with mk.if_(N > 3):  # WRONG
        return
    mk.store(out, 0, 1.0)


def r_return_deep(x, out, N, B: eas.constexpr):
    with mk.if_(N > 3):  # WRONG
        mk.store(out, 0, 1.0)
        if B > 3:
            return
        mk.store(out, 0, 2.0)
    mk.store(out, 1, 1.0)


def r_else(x, out, N, B: eas.constexpr):
    with mk.if_(N > 3):
        mk.store(out, 0, 1.0)
    with mk.else_():  # WRONG
        return
    mk.store(out, 1, 1.0)


def r_continue(x, out, N, B: eas.constexpr):
    for k in mk.range(N):
        with mk.if_(k > 3):  # WRONG
            continue
        mk.store(out, k, 1.0)


def r_break(x, out, N, B: eas.constexpr):
    for k in range(B):
        with mk.if_(mk.load(x, k) > 3):  # WRONG
            break
    mk.store(out, 0, 1.0)


def r_while(x, out, N, B: eas.constexpr):
    n = mk.var(0)
    with mk.while_(lambda: n < N):  # WRONG
        n += 1
        return
    mk.store(out, 0, 1.0)


LEFT = [r_return, r_return_deep, r_else, r_continue, r_break, r_while]


def i_enumerate(x, out, N, B: eas.constexpr):
    for n, k in enumerate(mk.range(N)):  # WRONG
        mk.store(out, k, n)


def i_zip(x, out, N, B: eas.constexpr):
    for k, v in zip(mk.range(N), (1.0, 2.0)):  # WRONG
        mk.store(out, k, v)


def i_list(x, out, N, B: eas.constexpr):
    mk.store(out, list(mk.range(N))[0], 1.0)  # WRONG


COUNTED = [i_enumerate, i_zip, i_list]


def t_if(x, out, N, B: eas.constexpr):
    v = mk.var(0)
    if v < N:  # WRONG
        pass


def t_while(x, out, N, B: eas.constexpr):
    v = mk.var(0)
    while v < N:  # WRONG
        v += 1


def t_for(x, out, N, B: eas.constexpr):
    v = mk.var(N)
    for _ in range(v):  # WRONG
        pass


def t_iterate(x, out, N, B: eas.constexpr):
    v = mk.var(mk.arange(0, B))
    for _ in v:  # WRONG
        pass


def t_in(x, out, N, B: eas.constexpr):
    3 in mk.var(N)  # WRONG  # noqa: B015


TRUTH = [(t_if, "mk.if_"), (t_while, "mk.where"), (t_for, "mk.range"), (t_iterate, "block"), (t_in, "==")]


class Wrong(unittest.TestCase):
    def check(self, body, error, words, **options):
        with self.assertRaises(error) as caught:
            run(body, **options)
        text = str(caught.exception)
        line = int(text.split(":")[1])
        self.assertIn("# WRONG", linecache.getline(__file__, line), text)
        for word in words:
            self.assertIn(word, text)

    def test_reassigned(self):
        for body in REASSIGNED:
            with self.subTest(body=body.__name__):
                self.check(body, RuntimeError, ["mk.var", ".set("])

    def test_names_the_name(self):
        self.check(w_sum, RuntimeError, ["'acc'", "mk.range", "acc = mk.var(init)"])

    def test_used_after_its_body(self):
        for body in USED:
            with self.subTest(body=body.__name__):
                self.check(body, RuntimeError, ["mk.var", "v.set"])

    def test_numbers_of_a_branch(self):
        for body in BRANCH:
            with self.subTest(body=body.__name__):
                self.check(body, RuntimeError, ["mk.var", "mk.where", "mk.else_" if body is b_both else "mk.if_"])

    def test_bodies_that_are_left(self):
        for body in LEFT:
            with self.subTest(body=body.__name__):
                self.check(body, RuntimeError, ["return", "mk.else_()", "mk.where"])

    def test_one_turn_is_not_counted(self):
        for body in COUNTED:
            with self.subTest(body=body.__name__):
                self.check(body, TypeError, ["`for`", "mk.var(0)"])

    def test_truth(self):
        for body, word in TRUTH:
            with self.subTest(body=body.__name__):
                self.check(body, TypeError, [word], rewrite=False)

    def test_the_next_trace_works(self):
        with self.assertRaises(RuntimeError):
            run(w_sum)
        Right("test_temporaries").test_temporaries()


class Right(unittest.TestCase):
    def test_temporaries(self):
        """The same names in loop after loop, and in Python loops, are new in each iteration."""

        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            acc, top = mk.var(0.0), mk.var(-1.0)
            v = mk.load(x, 0)
            for i in mk.range(N):
                for j in range(2):
                    v = mk.load(x, i) * j
                    acc += v
            for i in mk.range(N):
                v = mk.load(x, i)
                for j in range(3):
                    w = v + j
                top.set(mk.maximum(top, w))
                del w
            for _ in mk.range(2):
                acc **= 2
            mk.store(out, 0, acc)
            mk.store(out, 1, top)

        x = np.arange(4, dtype=np.float32)
        _, out = each(self, k, x, np.zeros(2, np.float32), 4, 1, _grid=1)
        self.assertEqual(out.tolist(), [6.0**4, 5.0])

    def test_branches(self):
        """Temporaries of branches, and a return, break or continue that leaves nothing out or does not leave
        the body."""

        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            acc, j = mk.var(0.0), 7
            for i in mk.range(N):
                with mk.if_(i % 2 == 0):
                    c = 2.0
                    acc += c
                with mk.else_():
                    c = 3.0
                    for j in range(4):
                        if j == 2:
                            break
                        if j == 1:
                            continue
                        acc += c + j
                with mk.if_(i > 1):
                    for j in range(2):
                        acc += j
                    continue  # nothing follows
            for j in range(2):
                with mk.if_(N > 1):
                    acc += [v for v in (1.0, 2.0)][j]
            with mk.if_(N > 0):
                mk.store(out, 0, acc)
                return  # nothing follows

        _, out = each(self, k, np.zeros(1, np.float32), np.zeros(1, np.float32), 4, 1, _grid=1)
        self.assertEqual(out[0], 2 + 3 + 2 + 3 + 1 + 1 + 3)

    def test_comprehensions_over_a_traced_loop(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            [mk.store(out, i, mk.load(x, i)) for i in mk.range(N)]

        x = np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(each(self, k, x, np.zeros_like(x), 4, 1, _grid=1)[1], x)

    def test_helpers_have_their_own_names(self):
        def total(x, n):
            s = mk.var(0.0)
            for k in mk.range(n):
                v = mk.load(x, k)
                s += v
            return s.value

        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            s = total(x, N)
            s = s + total(x, N)
            mk.store(out, 0, s)

        _, out = each(self, k, np.arange(5, dtype=np.float32), np.zeros(1, np.float32), 5, 1, _grid=1)
        self.assertEqual(out[0], 20)

    def test_rebinding_outside_is_free(self):
        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            v = mk.load(x, mk.arange(0, B))
            for _ in range(3):
                v = v + 1
            mk.store(out, mk.arange(0, B), v)

        x = np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(each(self, k, x, np.zeros_like(x), 4, 4, _grid=1)[1], x + 3)


if __name__ == "__main__":
    unittest.main()
