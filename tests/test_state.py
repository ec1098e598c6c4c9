"""Python state that the body of a traced loop or branch changes: recorded once, so it raises, with the line
and what to write."""

import collections
import types
import unittest

import numpy as np

import eas
from eas import mk

TOTAL = 0
TABLE = {"n": 0}


class Counter:
    total = 0

    def __init__(self):
        self.n = 0

    def bump(self):
        self.n += 1


def run(k, n=4):
    out = np.zeros(8, "f4")
    k(out, n, _grid=1)
    return out


class Lost(unittest.TestCase):
    def lost(self, body, setup=lambda: None, what="", line=None):
        """In a counted loop, a while loop, a branch and an else."""

        @eas.kernel
        def counted(out, n):
            s = setup()
            for i in mk.range(n):
                body(s, i)
            mk.store(out, 0, 1.0)

        @eas.kernel
        def whiled(out, n):
            s, i = setup(), mk.var(0)
            with mk.while_(lambda: i < n):
                body(s, i.value)
                i += 1
            mk.store(out, 0, 1.0)

        @eas.kernel
        def branch(out, n):
            s = setup()
            with mk.if_(n > 2):
                body(s, n)
            mk.store(out, 0, 1.0)

        @eas.kernel
        def other(out, n):
            s = setup()
            with mk.if_(n > 2):
                mk.store(out, 1, 1.0)
            with mk.else_():
                body(s, n)
            mk.store(out, 0, 1.0)

        for k, where in ((counted, "mk.range"), (whiled, "mk.while_"), (branch, "mk.if_"), (other, "mk.else_")):
            with self.subTest(where), self.assertRaisesRegex(RuntimeError, rf"test_state.py:\d+: '.*{what}.*{where} \(line \d+\).*mk.var"):
                run(k)

    def test_dict(self):
        def body(d, i):
            d["n"] += 1

        self.lost(body, lambda: {"n": 0}, r"\['n'\]' is 0 and becomes 1")

    def test_list_append(self):
        self.lost(lambda s, i: s.append(1), list, r"len\(s\)' is 0 and becomes 1")

    def test_list_element(self):
        self.lost(lambda s, i: s.__setitem__(0, s[0] + 1), lambda: [5], r"s\[0\]' is 5 and becomes 6")

    def test_attribute(self):
        self.lost(lambda s, i: s.bump(), Counter, "s.n' is 0")
        self.lost(lambda s, i: setattr(s, "n", s.n + 1), lambda: types.SimpleNamespace(n=0), "s.n' is 0")

    def test_nested(self):
        self.lost(lambda s, i: s[0]["a"].append(1), lambda: [{"a": []}], "len")
        self.lost(lambda s, i: s[0].append(1), lambda: ([],), "len")

    def test_sets_deques_arrays(self):
        self.lost(lambda s, i: s.add(1), set)
        self.lost(lambda s, i: s.append(1), collections.deque)
        self.lost(lambda s, i: s.__setitem__(0, 3.0), lambda: np.zeros(2))

    def test_globals_and_classes(self):
        def body(s, i):
            global TOTAL
            TOTAL += 1

        self.lost(body, what="TOTAL")
        self.lost(lambda s, i: TABLE.update(n=TABLE["n"] + 1), what="TABLE")
        self.lost(lambda s, i: setattr(Counter, "total", Counter.total + 1), what="total")

    def test_closure(self):
        state = Counter()

        def bump():
            state.n += 1

        self.lost(lambda s, i: bump(), what="state.n|bump.*n")

    def test_traced_element_in_a_loop(self):
        @eas.kernel
        def k(out, n):
            acc = [mk.load(out, 0)]
            for _ in mk.range(n):
                acc[0] = acc[0] + 1.0
            mk.store(out, 0, acc[0])

        with self.assertRaisesRegex(RuntimeError, r"test_state.py:\d+: 'acc\[0\]'.*mk.var"):
            run(k)

    def test_line(self):
        @eas.kernel
        def k(out, n):
            d = {"n": 0}
            for _ in mk.range(n):
                mk.store(out, 1, 2.0)
                d["n"] += 1
            mk.store(out, 0, d["n"])

        line = k.fn.__code__.co_firstlineno + 5
        with self.assertRaisesRegex(RuntimeError, rf"test_state.py:{line}: "):
            run(k)


class Kept(unittest.TestCase):
    def test_lists_of_variables(self):
        @eas.kernel
        def k(out, n):
            acc = [mk.var(0.0) for _ in range(3)]
            obj = types.SimpleNamespace(v=mk.var(1.0))
            for i in mk.range(n):
                for j in range(3):
                    acc[j] += j
                obj.v *= 2.0
            with mk.if_(n > 2):
                acc[1] += 100.0
                obj.v.set(obj.v + 0.5)
            for j in range(3):
                mk.store(out, j, acc[j])
            mk.store(out, 3, obj.v)

        np.testing.assert_array_equal(run(k)[:4], [0, 104, 8, 16.5])

    def test_scratch(self):
        """A list that the body itself makes, or fills where nothing was."""

        @eas.kernel
        def k(out, n):
            kept = [None] * 2
            for i in mk.range(n):
                own = []
                own.append(i * 2)
                own.append(i * 3)
                kept[0] = own[0] + own[1]
                mk.store(out, i, kept[0])

        np.testing.assert_array_equal(run(k)[:4], [0, 5, 10, 15])

    def test_python_loops_and_state_outside(self):
        log = []

        @eas.kernel
        def k(out, n):
            log.append("traced")
            d = {"n": 0}
            for j in range(4):
                d["n"] += j
            for i in mk.range(n):
                mk.store(out, i, d["n"])
            d["n"] = 7
            mk.store(out, 7, d["n"])

        out = run(k)
        self.assertEqual((out[0], out[7], log), (6, 7, ["traced"]))

    def test_interpreted_it_is_plain_python(self):
        @eas.kernel
        def k(out, n):
            d = {"n": 0}
            for _ in mk.range(n):
                d["n"] += 1
            mk.store(out, 0, d["n"])

        out = np.zeros(1, "f4")
        k(out, 5, _grid=1, _interpret=True)
        self.assertEqual(out[0], 5)


class Aliases(unittest.TestCase):
    """`old = v` would be another name of the variable: writing to it then raises, and `v.value` is its value
    at that point."""

    def refused(self, body, message="two names of one mk.var"):
        @eas.kernel
        def k(out, n):
            body(out, n)

        for options in ({}, {"_interpret": True}):
            with self.assertRaisesRegex(RuntimeError, rf"test_state.py:\d+: .*{message}.*old = a.value"):
                k(np.zeros(4, "f4"), 3, _grid=1, **options)

    def test_copies(self):
        def plain(out, n):
            a = mk.var(1.0)
            old = a
            a += 1.0
            mk.store(out, 0, old)

        def by_set(out, n):
            a = mk.var(1.0)
            old, _ = a, 1
            a.set(3.0)
            mk.store(out, 0, old)

        def in_a_loop(out, n):
            a = mk.var(0.0)
            for _ in mk.range(n):
                old = a
                a += 1.0
                mk.store(out, 0, old)

        def of_a_closure(out, n):
            a = mk.var(0.0)
            old = a

            def both():
                return a + old

            a += 1.0
            mk.store(out, 0, both())

        for body in (plain, by_set, in_a_loop, of_a_closure):
            with self.subTest(body.__name__):
                self.refused(body)

    def test_swap_in_a_loop(self):
        @eas.kernel
        def k(out, n):
            a, b = mk.var(0.0), mk.var(1.0)
            for _ in mk.range(n):
                a, b = b, a
            mk.store(out, 0, a)

        with self.assertRaisesRegex(RuntimeError, "'a' is assigned anew in the body"):
            run(k)

    def test_values_and_references(self):
        @eas.kernel
        def k(out, n):
            a, b = mk.var(0.0), mk.var(1.0)
            for _ in mk.range(n):
                old = a.value
                a.set(b)
                b.set(old + b)
            v = [mk.var(float(j)) for j in range(3)]
            first = v[0]
            for one in v:
                one += 1.0
            first += 10.0
            mk.store(out, 0, a)
            mk.store(out, 1, v[0])
            mk.store(out, 2, v[2])

        np.testing.assert_array_equal(run(k, 10)[:3], [55, 11, 3])



class Held:
    pass


def _spelled(a, p, b):
    with mk.if_(a > 0):
        b[0] = a


def _plain(a, p, b):
    if a > 0:
        b[0] = a


def _made_inside(a, p, b):
    if a > 0:
        b[0] = a * 2


def _both_ways(a, p, b):
    if a > 0:
        b[0] = a * 2
    else:
        b[0] = a


def _loop(a, p, b):
    for _ in range(p):
        b[0] = a


def _while(a, p, b):
    i = 0
    while i < p:
        b[0] = b[0] * 2
        i += 1


class TracedValuesInContainers(unittest.TestCase):
    """A container that gets a traced value in a branch or loop would hold it whichever way that goes, made
    inside or before."""

    def test_programs(self):
        for body in (_spelled, _plain, _made_inside, _both_ways, _loop, _while):

            @eas.kernel
            def k(x, out):
                p = mk.program_id(0)
                a = mk.load(x, p)
                b = [a * 3]
                body(a, p, b)
                mk.store(out, p, b[0])

            with self.subTest(body=body.__name__), self.assertRaisesRegex(RuntimeError, r"'b\[0\]' is .* and becomes"):
                k(np.ones(4, np.float32), np.zeros(4, np.float32), _grid=4)

    def test_lanes(self):
        for body in (_plain, _made_inside, _both_ways):

            @eas.kernel
            def k(x, out):
                i = mk.arange(0, 4)
                a = mk.load(x, i)
                b = [a * 3]
                body(a, i, b)
                mk.store(out, i, b[0])

            for options in ({}, {"_interpret": True}):
                with self.subTest(body=body.__name__, **options), self.assertRaisesRegex(RuntimeError, r"'b\[0\]' is .*only some lanes take part"):
                    k(np.ones(4, np.float32), np.zeros(4, np.float32), _grid=1, **options)

    def test_attributes(self):
        @eas.kernel
        def k(x, out):
            p = mk.program_id(0)
            held = Held()
            held.v = mk.load(x, p)
            if held.v > 0:
                held.v = held.v * 2
            mk.store(out, p, held.v)

        with self.assertRaisesRegex(RuntimeError, "'held.v' is"):
            k(np.ones(4, np.float32), np.zeros(4, np.float32), _grid=4)

    def test_what_is_used_in_the_branch_alone(self):
        @eas.kernel
        def k(x, out):
            p = mk.program_id(0)
            a, b = mk.load(x, p), [None]
            if a > 0:
                b[0] = a * 2
                mk.store(out, p, b[0])

        out = np.zeros(4, np.float32)
        k(np.array([1, -1, 2, -2], np.float32), out, _grid=4)
        self.assertEqual(out.tolist(), [2, 0, 4, 0])


if __name__ == "__main__":
    unittest.main()
