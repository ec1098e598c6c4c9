"""What a kernel reads from around it while it is traced: changing it afterwards has it traced again, and
eas.explain says why."""

import collections
import contextvars
import dataclasses
import functools
import gc
import types
import unittest
import weakref

import numpy as np

import eas
from eas import mk

SCALE = 2.0
TABLE = {"a": 1.0, "unused": 3}
VALUES = [1.0, 2.0]
COUNTER = 0


def helper(x):
    return x * SCALE


def nested_helper(x):
    return helper(x) + 1


class Settings:
    factor = 3.0

    def __init__(self):
        self.n = 2
        self.log = 0
        self.inner = types.SimpleNamespace(k=1.0)

    def apply(self, x):
        return x * self.factor

    def __call__(self, x):
        return x + self.n


class Slots:
    __slots__ = ("n",)

    def __init__(self, n):
        self.n = n


@dataclasses.dataclass
class Data:
    a: float = 1.0
    items: tuple = (1, 2)


def make(f):
    @eas.kernel
    def k(out):
        i = mk.arange(0, 4)
        mk.store(out, i, mk.full(4, 1.0, mk.f32) * f(i))

    return k


def run(k):
    out = np.zeros(4, "f4")
    k(out, _grid=1)
    assert (out == out[0]).all()
    return float(out[0])


@eas.kernel
def by_global(out):
    mk.store(out, mk.arange(0, 4), mk.full(4, SCALE, mk.f32))


@eas.kernel
def by_helper(out):
    mk.store(out, mk.arange(0, 4), nested_helper(mk.full(4, 1.0, mk.f32)))


@eas.kernel
def by_container(out):
    mk.store(out, mk.arange(0, 4), mk.full(4, TABLE["a"] + sum(VALUES), mk.f32))


@eas.kernel
def captures_nothing(out):
    mk.store(out, mk.arange(0, 4), mk.full(4, 1.0, mk.f32))


class Captured(unittest.TestCase):
    def check(self, k, change, before, after, why=None):
        self.assertEqual(run(k), before)
        self.assertEqual(run(k), before)
        traces = len(k._retraced)
        change()
        self.assertEqual(run(k), after)
        self.assertEqual(run(k), after)
        self.assertEqual(len(k._retraced), traces + 1, k._retraced)
        self.assertEqual(len(k.compiled), 1)
        if why:
            self.assertIn(why, eas.explain(k))

    def set_global(self, name, value):
        self.addCleanup(globals().__setitem__, name, globals()[name])
        globals()[name] = value

    def test_global(self):
        self.check(by_global, lambda: self.set_global("SCALE", 5.0), 2.0, 5.0, "'SCALE' was 2.0, is 5.0")

    def test_global_that_helpers_read(self):
        self.check(by_helper, lambda: self.set_global("SCALE", 4.0), 3.0, 5.0, "'SCALE' was 2.0, is 4.0")

    def test_helper(self):
        run(by_helper)
        before = run(by_helper)
        self.set_global("helper", lambda x: x * 10.0)
        self.assertEqual((before, run(by_helper)), (3.0, 11.0))

    def test_code_and_defaults_of_a_helper(self):
        def h(i, by=2.0):
            return by

        def other(i, by=2.0):
            return by + 1

        k = make(h)
        self.check(k, lambda: setattr(h, "__defaults__", (7.0,)), 2.0, 7.0)
        self.check(k, lambda: setattr(h, "__code__", other.__code__), 7.0, 8.0)

    def test_elements_of_containers(self):
        self.addCleanup(TABLE.__setitem__, "a", TABLE["a"])
        self.addCleanup(VALUES.__setitem__, slice(None), VALUES[:])
        self.check(by_container, lambda: TABLE.__setitem__("a", 2.0), 4.0, 5.0, "TABLE['a']")
        self.check(by_container, lambda: VALUES.append(1.0), 5.0, 6.0, "len(VALUES)")
        self.check(by_container, lambda: VALUES.__setitem__(0, 2.0), 6.0, 7.0, "VALUES[0]")

    def test_closure(self):
        n = 2.0

        def set_n(v):
            nonlocal n
            n = v

        k = make(lambda i: n)
        self.check(k, lambda: set_n(3.0), 2.0, 3.0, "'n' was 2.0, is 3.0")

    def test_attributes(self):
        s = Settings()
        k = make(lambda i: s.n + s.inner.k)
        self.check(k, lambda: setattr(s, "n", 5), 3.0, 6.0, "s.n' was 2, is 5")
        self.check(k, lambda: setattr(s.inner, "k", 2.0), 6.0, 7.0)
        s.log += 1  # which it does not read
        run(k)
        self.assertEqual(len(k._retraced), 2)

    def test_by_a_name_that_is_a_string(self):
        s = Settings()
        k = make(lambda i: getattr(s, "n"))  # noqa: B009
        self.check(k, lambda: setattr(s, "n", 5), 2.0, 5.0)

    def test_attributes_of_classes_and_methods(self):
        s = Settings()
        k = make(lambda i: s.apply(1.0) + s(0.0))
        self.addCleanup(setattr, Settings, "factor", 3.0)
        self.addCleanup(setattr, Settings, "apply", Settings.apply)
        self.check(k, lambda: setattr(Settings, "factor", 4.0), 5.0, 6.0)
        self.check(k, lambda: setattr(s, "factor", 6.0), 6.0, 8.0)
        self.check(k, lambda: setattr(Settings, "apply", lambda self, x: 0.0), 8.0, 2.0)
        self.check(k, lambda: setattr(s, "n", 9), 2.0, 9.0)

    def test_class_as_namespace(self):
        class Config:
            A = 1.0

        self.check(make(lambda i: Config.A), lambda: setattr(Config, "A", 2.0), 1.0, 2.0)

    def test_module(self):
        m = types.ModuleType("some_module")
        m.a = 1.0
        self.check(make(lambda i: m.a), lambda: setattr(m, "a", 2.0), 1.0, 2.0)

    def test_slots_dataclasses_and_others(self):
        s, d = Slots(1), Data()
        self.check(make(lambda i: s.n), lambda: setattr(s, "n", 2), 1.0, 2.0)
        self.check(make(lambda i: d.a + d.items[0]), lambda: setattr(d, "items", (4, 5)), 2.0, 5.0)
        q = collections.deque([1.0])
        self.check(make(lambda i: q[0]), lambda: q.appendleft(2.0), 1.0, 2.0)
        w = {1}
        self.check(make(lambda i: len(w)), lambda: w.add(2), 1.0, 2.0)
        a = np.array([1.0, 2.0])
        self.check(make(lambda i: float(a[1])), lambda: a.__setitem__(1, 3), 2.0, 3.0)
        c = contextvars.ContextVar("c", default=1.0)
        self.check(make(lambda i: c.get()), lambda: c.set(2.0), 1.0, 2.0)
        o = collections.OrderedDict(a=1.0)
        self.check(make(lambda i: o["a"]), lambda: o.update(a=2.0), 1.0, 2.0)
        p = functools.partial(lambda t, i: t[0], [1.0])
        self.check(make(p), lambda: p.args[0].__setitem__(0, 2.0), 1.0, 2.0)

    def test_equal_values_are_no_change(self):
        cell = [1000.5, "text", (1, 2)]
        k = make(lambda i: cell[0] + len(cell[1]) + cell[2][0])
        run(k)
        cell[:] = [float("1000.5"), "".join(["te", "xt"]), tuple([1, 2])]
        run(k)
        self.assertEqual(k._retraced, ())
        cell[0] = np.float64(1000.5)  # another type
        run(k)
        self.assertEqual(len(k._retraced), 1)

    def test_signed_zeros_differ(self):
        n = [0.0]

        @eas.kernel
        def k(out):
            mk.store(out, mk.arange(0, 4), mk.full(4, n[0], mk.f32))

        out = np.zeros(4, "f4")
        k(out, _grid=1)
        n[0] = -0.0
        k(out, _grid=1)
        self.assertTrue(np.signbit(out).all())

    def test_nothing_captured_no_guard(self):
        run(captures_nothing)
        before = globals()["COUNTER"]
        globals()["COUNTER"] = before + 1
        run(captures_nothing)
        self.assertEqual((captures_nothing._retraced, len(captures_nothing.compiled)), ((), 1))

    def test_unrelated_globals(self):
        run(by_global)
        n = len(by_global._retraced)
        for v in range(3):
            self.set_global("COUNTER", v)
            run(by_global)
        self.assertEqual(len(by_global._retraced), n)

    def test_texts_and_compile_see_it(self):
        n = [1.0]
        k = make(lambda i: n[0])
        out = np.zeros(4, "f4")
        first = k.compile(out)
        n[0] = 4.0
        self.assertIn("4.0", k.to_ir(out))
        self.assertIsNot(k.compile(out), first)

    def test_kernels_are_collected(self):
        class Owner:
            pass

        o = Owner()
        o.k = make(lambda i: 1.0 if o.k else 2.0)  # noqa: F821
        run(o.k)
        ref = weakref.ref(o)
        del o
        gc.collect()
        self.assertIsNone(ref())


if __name__ == "__main__":
    unittest.main()
