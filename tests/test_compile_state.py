"""State under compile: what a compiled function reads is never stale, and what it changes is changed as
without compile."""

import collections
import contextvars
import dataclasses
import datetime
import functools
import os
import random
import time
import types
import unittest
import uuid
import warnings

import numpy as np

import eager
from eager import Tensor

ONE = Tensor.ones((1,))
COUNT = 0
LAST = None
SETTINGS = types.ModuleType("settings")
SETTINGS.scale = 2.0


def scaled_by_module(x):
    return x * SETTINGS.scale


def counts_global(x):
    global COUNT
    COUNT = COUNT + 1
    return x * COUNT


def makes_global(x):
    global MADE
    MADE = x * 2
    return x


class Base:
    offset = 1.0


class Counter(Base):
    calls = 0
    scale = 2.0

    def __init__(self):
        self.n = 0
        self.h = Tensor.zeros((2,))
        self.cache = None

    def count(self, x):
        self.n = self.n + 1
        return x * self.n

    def update(self, x):
        self.h = self.h * 0.5 + x
        return self.h * 2

    def lazy(self, x):
        if self.cache is None:
            self.cache = x * 10
        return self.cache + x

    def first(self, x):
        if not hasattr(self, "made"):
            self.made = x + 1
            return x
        return self.made + x

    def read_class(self, x):
        return x * self.scale + self.offset

    @classmethod
    def counted(cls, x):
        Counter.calls += 1
        return x * Counter.calls


class Slots:
    __slots__ = ("h", "k")

    def __init__(self):
        self.k, self.h = 2.0, Tensor.zeros((1,))

    def step(self, x):
        self.h = self.h + x * self.k
        return self.h


@dataclasses.dataclass
class Pair:
    a: object
    b: object


class Case(unittest.TestCase):
    def same(self, make, calls, state):
        """The same results and the same state as without compile, after each call. make() -> (function, what
        state() looks at)."""
        rows = []
        for wrap in (lambda f: f, eager.compile):
            f, what = make()
            f = wrap(f)
            rows.append([(np.asarray(f(*args).numpy()).tolist(), state(what)) for args in calls])
        self.assertEqual(rows[0], rows[1])
        return f


class Reads(Case):
    def check(self, f, change, before, after):
        g = eager.compile(f)
        self.assertEqual(g(ONE).item(), before)
        self.assertEqual(g(ONE).item(), before)
        self.assertEqual(g.stats.misses, 1)
        change()
        self.assertEqual(g(ONE).item(), after)
        self.assertTrue(g.explain()[0]["compiled"], g.explain())

    def test_class_attributes(self):
        class C:
            scale = 2.0

        class D(C):
            pass

        d = D()
        self.check(lambda x: x * C.scale, lambda: setattr(C, "scale", 3.0), 2, 3)
        self.check(lambda x: x * d.scale, lambda: setattr(C, "scale", 4.0), 3, 4)
        self.check(lambda x: x * D.scale, lambda: setattr(D, "scale", 5.0), 4, 5)

    def test_methods_that_are_replaced(self):
        class C:
            def f(self, x):
                return x * 2

        c = C()
        self.check(lambda x: c.f(x), lambda: setattr(C, "f", lambda self, x: x * 7), 2, 7)

    def test_tensors_of_classes(self):
        class C:
            w = Tensor.constant([2.0])

        self.check(lambda x: x * C.w, lambda: setattr(C, "w", Tensor.constant([5.0])), 2, 5)

    def test_attributes_of_modules(self):
        self.check(scaled_by_module, lambda: setattr(SETTINGS, "scale", 3.0), 2, 3)
        SETTINGS.scale = 2.0
        local = SETTINGS
        self.check(lambda x: x * local.scale, lambda: setattr(SETTINGS, "scale", 3.0), 2, 3)
        SETTINGS.scale = 2.0

    def test_slots(self):
        s = Slots()
        self.check(lambda x: x * s.k, lambda: setattr(s, "k", 3.0), 2, 3)

    def test_containers(self):
        st, dq, od, dd, ba, nested = {1, 2}, collections.deque([1.0, 2.0]), collections.OrderedDict(a=2.0), collections.defaultdict(float, a=2.0), bytearray(b"\2"), {"a": [{2.0}]}
        self.check(lambda x: x * len(st), lambda: st.add(7), 2, 3)
        self.check(lambda x: x * dq[-1], lambda: dq.append(7.0), 2, 7)
        self.check(lambda x: x * od["a"], lambda: od.update(a=3.0), 2, 3)
        self.check(lambda x: x * dd["a"], lambda: dd.update(a=3.0), 2, 3)
        self.check(lambda x: x * ba[0], lambda: ba.__setitem__(0, 5), 2, 5)
        self.check(lambda x: x * max(nested["a"][0]), lambda: nested["a"][0].add(9.0), 2, 9)

    def test_tensors_in_a_deque_are_inputs(self):
        dq = collections.deque([Tensor.constant([2.0])])
        f = eager.compile(lambda x: x * dq[0])
        self.assertEqual(f(ONE).item(), 2)
        dq[0] = Tensor.constant([3.0])
        self.assertEqual(f(ONE).item(), 3)
        self.assertEqual(f.stats.misses, 1)

    def test_context_variables(self):
        var = contextvars.ContextVar("var", default=2.0)
        self.check(lambda x: x * var.get(), lambda: var.set(3.0), 2, 3)
        f = eager.compile(lambda x: x * var.get())
        self.assertEqual(contextvars.copy_context().run(lambda: (var.set(9.0), f(ONE).item())[1]), 9)
        self.assertEqual(f(ONE).item(), 3)

    def test_defaults_and_partials(self):
        def f(x, k=[2.0], *, scale={"a": 1.0}):  # noqa: B006
            return x * k[0] * scale["a"]

        self.check(f, lambda: f.__defaults__[0].__setitem__(0, 3.0), 2, 3)
        self.check(f, lambda: f.__kwdefaults__["scale"].__setitem__("a", 10.0), 3, 30)
        options = [2.0]
        self.check(functools.partial(lambda o, x: x * o[0], options), lambda: options.__setitem__(0, 4.0), 2, 4)

    def test_elements_of_arrays(self):
        large, small = np.arange(100000.0, dtype=np.float32), np.arange(4.0, dtype=np.float32)
        self.check(lambda x: x * large[5], lambda: large.__setitem__(5, 30), 5, 30)
        self.check(lambda x: x * float(small[2]), lambda: small.__setitem__(2, 30), 2, 30)
        holder = types.SimpleNamespace(rows=[(large, 1.0)])
        self.check(lambda x: x * holder.rows[0][0][7], lambda: large.__setitem__(7, 31), 7, 31)
        self.assertIs(holder.rows[0][0], large)

    def test_large_arrays_that_python_reads(self):
        large = np.arange(100000.0)
        f = eager.compile(lambda x: x * float(large[3]))
        self.assertEqual(f(ONE).item(), 3)
        large[3] = 8
        self.assertEqual(f(ONE).item(), 8)
        g = eager.compile(lambda x: x * float(np.sin(large).sum()), fullgraph=True)
        with self.assertRaises(eager.GraphBreak):
            g(ONE)

    def test_iterators(self):
        it = iter([1.0, 2.0, 3.0])
        f = eager.compile(lambda x: x * next(it))
        self.assertEqual([f(ONE).item() for _ in range(3)], [1, 2, 3])
        with self.assertRaisesRegex(eager.GraphBreak, "iterator"):
            eager.compile(lambda x: x * next(it), fullgraph=True)(ONE)

    def test_clocks_and_unseeded_generators(self):
        for ask in (
            lambda: np.random.default_rng().random(),
            lambda: np.random.RandomState().rand(),
            lambda: random.Random().random(),
            lambda: random.SystemRandom().random(),
            lambda: time.time() * 1e6 % 1000,
            lambda: time.perf_counter_ns() % 1000,
            lambda: datetime.datetime.now().microsecond,
            lambda: os.urandom(1)[0],
            lambda: uuid.uuid4().int % 1000,
        ):
            f = lambda x, ask=ask: x * float(ask())
            with self.assertRaisesRegex(eager.GraphBreak, r"test_compile_state.py:\d+: the function asks for"):
                eager.compile(f, fullgraph=True)(ONE)
            g = eager.compile(f)  # runs as it is: another number each time
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.assertGreater(len({g(ONE).numpy().tobytes() for _ in range(20)}), 1)
        seeded = eager.compile(lambda x: x * float(np.random.default_rng(3).random() + random.Random(4).random()), fullgraph=True)
        self.assertEqual(seeded(ONE).tolist(), seeded(ONE).tolist())

    def test_random_numbers_of_others(self):
        own, rng = random.Random(3), np.random.default_rng(3)
        for draw in (np.random.rand, random.random, own.random, rng.random):
            f = eager.compile(lambda x, draw=draw: x * float(draw()))
            self.assertEqual(len({f(ONE).item() for _ in range(3)}), 3)
        for f in (lambda x: x * rng.random(), lambda x: x * own.gauss(0, 1), lambda x: x * random.random()):
            f = eager.compile(f)
            self.assertEqual(len({f(ONE).item() for _ in range(3)}), 3)
        np.random.seed(0)
        a = np.random.rand(3)
        np.random.seed(0)
        f = eager.compile(lambda x: x * float(np.random.rand()))
        np.testing.assert_allclose([f(ONE).item() for _ in range(3)], a, rtol=1e-6)
        with self.assertRaisesRegex(eager.GraphBreak, "random"):
            eager.compile(lambda x: x * float(np.random.rand()), fullgraph=True)(ONE)


class Writes(Case):
    def test_elements_of_arguments(self):
        def f(x):
            x[0] = x[1] + 5.0
            return x * 2

        def make():
            return f, None

        for wrap in (lambda g: g, eager.compile):
            x = Tensor.constant([1.0, 2.0, 3.0])
            alias = x + 0
            g = wrap(f)
            for _ in range(3):
                y = g(x)
            self.assertEqual((y.tolist(), x.tolist(), alias.tolist()), ([14, 4, 6], [7, 2, 3], [1, 2, 3]))
        a = np.zeros(3, np.float32)
        eager.compile(f)(a)
        self.assertEqual(a.tolist(), [5, 0, 0])

    def test_one_tensor_under_two_names(self):
        def f(x, y):
            x[0] = 5.0
            return x + y

        g = eager.compile(f)
        x, y = Tensor.zeros((2,)), Tensor.zeros((2,))
        self.assertEqual(g(x, y).tolist(), [5, 0])
        z = Tensor.zeros((2,))
        self.assertEqual(g(z, z).tolist(), f(*[Tensor.zeros((2,))] * 2).tolist())

    def test_a_number_that_is_counted(self):
        make = lambda: ((lambda c: (c.count, c))(Counter()))  # noqa: E731
        f = self.same(make, [(ONE,)] * 5, lambda c: c.n)
        self.assertEqual(f.stats.misses, 1)
        self.assertIn("Counter.n" if "Counter.n" in f.explain()[0]["reason"] else "'n'", f.explain()[0]["reason"])

    def test_a_tensor_attribute_is_an_output(self):
        make = lambda: ((lambda c: (c.update, c))(Counter()))  # noqa: E731
        f = self.same(make, [(Tensor.constant([1.0, 2.0]),), (Tensor.constant([3.0, 4.0]),)] * 3, lambda c: c.h.tolist())
        self.assertEqual((f.stats.misses, f.stats.hits), (1, 5))
        self.assertTrue(f.explain()[0]["compiled"])

    def test_decorated_methods(self):
        class M(Counter):
            step = eager.compile(Counter.update, fullgraph=True)

        a, b = M(), M()
        for _ in range(3):
            a.step(Tensor.ones((2,)))
        b.step(Tensor.ones((2,)))
        self.assertEqual((a.h.tolist(), b.h.tolist()), ([1.75, 1.75], [1, 1]))

    def test_attributes_that_appear(self):
        for method in (Counter.lazy, Counter.first):
            make = lambda: ((lambda c: (functools.partial(method, c), c))(Counter()))  # noqa: E731, B023
            self.same(make, [(ONE,), (ONE * 2,), (ONE * 3,)], lambda c: sorted(k for k in vars(c) if vars(c)[k] is not None))

    def test_slots(self):
        make = lambda: ((lambda s: (s.step, s))(Slots()))  # noqa: E731
        f = self.same(make, [(ONE,)] * 3, lambda s: s.h.item())
        self.assertEqual(f.stats.misses, 1)

    def test_variables_of_functions(self):
        def make():
            h, n = Tensor.zeros((1,)), 0  # noqa: F841

            def f(x):
                nonlocal h
                h = h + x
                return h

            return f, f

        f = self.same(make, [(ONE,)] * 3, lambda f: f.__closure__[0].cell_contents.item())
        self.assertEqual(f.stats.misses, 1)

        def make_count():
            n = 0

            def f(x):
                nonlocal n
                n += 1
                return x * n

            return f, f

        f = self.same(make_count, [(ONE,)] * 3, lambda f: f.__closure__[0].cell_contents)
        self.assertIn("n", f.explain()[0]["reason"])

    def test_globals(self):
        global COUNT

        def make():
            global COUNT
            COUNT = 0
            return counts_global, None

        self.same(make, [(ONE,)] * 3, lambda _: COUNT)

        def make_new():
            globals().pop("MADE", None)
            return makes_global, None

        self.same(make_new, [(ONE,), (ONE * 2,)], lambda _: MADE.item())  # noqa: F821

    def test_classes(self):
        def make():
            Counter.calls = 0
            return Counter.counted, None

        self.same(make, [(ONE,)] * 3, lambda _: Counter.calls)

    def test_containers_that_are_captured(self):
        def make():
            d = {"n": 0, "h": Tensor.zeros((1,)), "rows": [Tensor.zeros((1,)), 3]}

            def f(x):
                d["h"] = d["h"] + x
                d["rows"][0] = d["h"] * 2
                return d["rows"][0]

            return f, d

        f = self.same(make, [(ONE,)] * 3, lambda d: (d["h"].item(), d["rows"][0].item(), d["rows"][1]))
        self.assertTrue(f.explain()[0]["compiled"])

        def make_growing():
            rows, names, last = [], set(), collections.deque(maxlen=2)

            def f(x):
                rows.append(x * 2)
                names.add(len(names))
                last.append(len(rows))
                return x

            return f, (rows, names, last)

        self.same(make_growing, [(ONE,)] * 4, lambda s: ([t.item() for t in s[0]], sorted(s[1]), list(s[2])))

    def test_containers_that_are_arguments(self):
        def f(p, x):
            p["w"] = p["w"] + x
            p["deep"][0]["v"] = x * 3
            return p["w"]

        def make():
            p = {"w": Tensor.zeros((1,)), "deep": [{"v": Tensor.zeros((1,))}], "k": 3}
            return (lambda x: f(p, x)), p

        for wrap in (lambda g: g, eager.compile):
            p, g = {"w": Tensor.zeros((1,)), "deep": [{"v": Tensor.zeros((1,))}], "k": 3}, wrap(f)
            inner = p["deep"][0]
            got = [(g(p, ONE * i).item(), p["w"].item(), inner["v"].item(), p["k"]) for i in (1, 2, 3)]
            self.assertEqual(got, [(1, 1, 3, 3), (3, 3, 6, 3), (6, 6, 9, 3)])

    def test_lists_that_are_arguments_grow(self):
        def f(rows, x):
            rows.append(x)
            return x

        g, rows = eager.compile(f), []
        for i in range(3):
            g(rows, ONE * i)
        self.assertEqual([t.item() for t in rows], [0, 1, 2])

    def test_dataclasses_that_are_arguments(self):
        def f(p, x):
            p.a = p.a + x
            return p.a * p.b

        for wrap in (lambda g: g, eager.compile):
            p, g = Pair(Tensor.zeros((1,)), Tensor.ones((1,)) * 2), wrap(f)
            self.assertEqual([(g(p, ONE).item(), p.a.item()) for _ in range(3)], [(2, 1), (4, 2), (6, 3)])

    def test_context_variables(self):
        var = contextvars.ContextVar("h", default=Tensor.zeros((1,)))

        def f(x):
            var.set(var.get() + x)
            return x

        g = eager.compile(f)
        for _ in range(3):
            g(ONE)
        self.assertEqual(var.get().item(), 3)

    def test_a_trace_that_breaks_leaves_no_mark(self):
        log = []
        c = Counter()

        def f(x):
            log.append(1)
            c.n += 1
            c.h = c.h + x.sum()
            return x * float(x.sum())

        g = eager.compile(f)
        for _ in range(2):
            g(ONE)
        self.assertEqual((len(log), c.n, c.h.tolist()), (2, 2, [2, 2]))

        def bad(x):
            log.append(1)
            c.h = c.h + x
            raise KeyError("no")

        with self.assertRaises(KeyError):
            eager.compile(bad)(ONE)
        self.assertEqual(c.h.tolist(), [2, 2])

    def test_what_is_read_and_written_by_helpers(self):
        table = {"w": Tensor.ones((1,)), "n": 0}

        def helper(x):
            table["w"] = table["w"] * 2
            return x + table["w"]

        f = eager.compile(lambda x: helper(helper(x)), fullgraph=True)
        self.assertEqual([f(ONE).item(), table["w"].item(), f(ONE).item(), table["w"].item()], [7, 4, 25, 16])

    def test_fullgraph_names_what_changes(self):
        c, seen = Counter(), []
        for f, words in ((c.count, "'n'.*tensor"), (lambda x: seen.append(1) or x, "list"), (counts_global, "global COUNT"), (Counter.counted, "Counter.calls")):
            with self.assertRaisesRegex(eager.GraphBreak, words):
                eager.compile(f, fullgraph=True)(ONE)
        self.assertEqual((c.n, seen), (0, []))


if __name__ == "__main__":
    unittest.main()
