"""Kernels, tuners, compiled functions, structures and specs pickle and copy; kernels are methods and
constexpr arguments."""

import copy
import gc
import pickle
import unittest
import weakref

import numpy as np
from support import ROOT, each, python

import eager
import eas
from eager.core import pytree
from eager.sharding import DeviceMesh, DimSpec, P, ShardingSpec
from eas import mk


@eas.kernel
def scale(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) * 2.0, i < N)


@eas.autotune(configs=[eas.Config({"BLOCK": 64})], key=["N"])
@eas.kernel
def tuned(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) * 2.0, i < N)


def plain(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) * 3.0, i < N)


by_hand = eas.kernel(fp_contract=False)(plain)


@eager.compile
def doubled(x):
    return x * 2


def tripled(x):
    return x * 3


compiled_by_hand = eager.compile(tripled, fullgraph=True)


class Layer:
    kind = 1.0

    def __init__(self, factor):
        self.factor = factor

    @eas.kernel
    def run(self, x, out, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, mk.load(x, i, i < N) * self.factor + self.kind, i < N)

    @classmethod
    @eas.kernel
    def of_class(cls, x, out, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, mk.load(x, i, i < N) + cls.kind, i < N)

    @staticmethod
    @eas.kernel
    def alone(x, out, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, mk.load(x, i, i < N) + 5.0, i < N)

    @eas.autotune(configs=[eas.Config({"BLOCK": 64})], key=["N"])
    @eas.kernel
    def tuned(self, x, out, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, mk.load(x, i, i < N) * self.factor, i < N)

    shared = scale  # not a method: its first parameter is no self


class Slotted:
    __slots__ = ("factor",)
    run = Layer.__dict__["run"]
    kind = 2.0

    def __init__(self, factor):
        self.factor = factor


def result(k, **meta):
    x, out = np.ones(100, "f4"), np.zeros(100, "f4")
    k(x, out, 100, **meta)
    return float(out[0])


class Pickles(unittest.TestCase):
    def test_kernels(self):
        for k in (scale, tuned, tuned.kernel):
            self.assertIs(pickle.loads(pickle.dumps(k)), k)
            self.assertIs(copy.deepcopy(k), k)
            self.assertIs(copy.copy(k), k)
        again = pickle.loads(pickle.dumps(by_hand))
        self.assertEqual((again.fn, again._options), (plain, {"fp_contract": False, "fast_math": False, "rewrite": True}))
        self.assertEqual(result(again, BLOCK=64), 3.0)
        self.assertIs(copy.deepcopy([scale, {"k": scale}])[1]["k"], scale)

    def test_in_another_process(self):
        code = f"import sys; sys.path.insert(0, {ROOT + '/tests'!r}); import pickle, test_pickle as t; k = pickle.loads(bytes.fromhex(sys.argv[1])); print(t.result(k, BLOCK=64))"
        for k, want in ((scale, "2.0"), (by_hand, "3.0"), (Layer(4.0).run, "5.0")):
            name = pickle.dumps(k).replace(b"__main__", b"test_pickle").hex()
            self.assertEqual(python(code, name).stdout.strip(), want)

    def test_local_kernels_say_why_not(self):
        @eas.kernel
        def local(out):
            pass

        with self.assertRaisesRegex((pickle.PicklingError, AttributeError), "local"):
            pickle.dumps(local)

    def test_compiled_functions(self):
        self.assertIs(pickle.loads(pickle.dumps(doubled)), doubled)
        self.assertIs(copy.deepcopy(doubled), doubled)
        again = pickle.loads(pickle.dumps(compiled_by_hand))
        np.testing.assert_array_equal(again(eager.ones((3,))).numpy(), [3, 3, 3])
        self.assertTrue(again._options["fullgraph"])

    def test_structures(self):
        for tree in ({"a": 1, "b": (2, [3, None])}, 5, None, (), [{"x": (1, 2)}, (3,)], {}):
            d = pytree.tree_structure(tree)
            for other in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d), copy.copy(d)):
                self.assertEqual(other, d)
                self.assertEqual(hash(other), hash(d))
                self.assertEqual(repr(other), repr(d))

    def test_specs(self):
        mesh = DeviceMesh("m", (2, 2), ("x", "y"))
        for spec in (mesh, DimSpec(["x"], True, 1), ShardingSpec(mesh, [["x"], None], partial_sum_axes=["y"]), P("x", None, ("y",)), P()):
            for other in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec), copy.copy(spec)):
                self.assertEqual((other, repr(other), type(other)), (spec, repr(spec), type(spec)))


class Methods(unittest.TestCase):
    def test_bound(self):
        a, b = Layer(2.0), Layer(3.0)
        self.assertEqual([result(a.run, BLOCK=64), result(b.run, BLOCK=64), result(a.run, BLOCK=64)], [3.0, 4.0, 3.0])
        self.assertIs(a.run, a.run)
        self.assertIs(a.run.__self__, a)
        a.factor = 7.0
        self.assertEqual(result(a.run, BLOCK=64), 8.0)
        x = np.ones(100, "f4")
        self.assertEqual(each(self, a.run, x, 0 * x, 100, BLOCK=64)[1][0], 8.0)
        self.assertIn("7.0", a.run.to_ir(x, x, 100, BLOCK=64))
        Layer.run(b, x, out := 0 * x, 100, BLOCK=64)
        self.assertEqual(out[0], 4.0)

    def test_class_static_slots_tuned(self):
        self.assertEqual(result(Layer.of_class, BLOCK=64), 2.0)
        self.assertIs(Layer.of_class, Layer.of_class)
        self.assertEqual(result(Layer(1.0).alone, BLOCK=64), 6.0)
        self.assertEqual(result(Slotted(2.0).run, BLOCK=64), 4.0)
        self.assertEqual(result(Layer(9.0).tuned), 9.0)
        self.assertEqual(result(Layer(9.0).shared, BLOCK=64), 2.0)

    def test_copies_of_objects(self):
        a = Layer(2.0)
        result(a.run, BLOCK=64)
        for b in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
            b.factor = 5.0
            self.assertEqual((result(b.run, BLOCK=64), result(a.run, BLOCK=64)), (6.0, 3.0))
            self.assertIs(b.run.__self__, b)

    def test_objects_are_let_go(self):
        a = Layer(2.0)
        result(a.run, BLOCK=64)
        ref = weakref.ref(a)
        del a
        gc.collect()
        self.assertIsNone(ref())

    def test_unbound_says_so(self):
        x = np.ones(4, "f4")
        with self.assertRaisesRegex(TypeError, "run is a method"):
            Layer.run.to_ir(x, x, 4, BLOCK=4)
        with self.assertRaisesRegex(TypeError, "missing its argument 'self'"):
            Layer.run()


@eas.kernel
def apply(x, out, N, F: eas.constexpr, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    f = F.fn if isinstance(F, eas.Kernel) else F
    mk.store(out, i, f(mk.load(x, i, i < N)), i < N)


@eas.kernel
def body_of_a_kernel(v):
    return v + 10.0


class Arguments(unittest.TestCase):
    def test_functions_and_kernels(self):
        offset = [1.0]

        def shift(v):
            return v + offset[0]

        self.assertEqual(result(apply, F=shift, BLOCK=64), 2.0)
        self.assertEqual(result(apply, F=lambda v: v * 9.0, BLOCK=64), 9.0)
        self.assertEqual(result(apply, F=mk.sqrt, BLOCK=64), 1.0)
        self.assertEqual(result(apply, F=body_of_a_kernel, BLOCK=64), 11.0)
        offset[0] = 3.0
        self.assertEqual(result(apply, F=shift, BLOCK=64), 4.0)


if __name__ == "__main__":
    unittest.main()
