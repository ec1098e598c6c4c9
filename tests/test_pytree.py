"""Pytrees: leaves and structure of nested containers."""

import unittest
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import eager
from eager.core.pytree import (
    broadcast_prefix,
    register_pytree_node,
    tensor_leaves,
    traced,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
    untraced,
)

Point = namedtuple("Point", "x y")


@dataclass
class Layer:
    w: object
    b: object
    act: str = field(default="relu", metadata={"static": True})

    def __post_init__(self):
        if self.w is None:
            raise ValueError("never called by unflatten")


@dataclass(frozen=True)
class Frozen:
    a: int


class Pair:
    def __init__(self, a, b, tag):
        self.a, self.b, self.tag = a, b, tag


register_pytree_node(Pair, lambda p: ((p.a, p.b), p.tag), lambda tag, kids: Pair(*kids, tag))


class Flatten(unittest.TestCase):
    def test_round_trip(self):
        for tree in [
            1, None, [], (), {}, [1, [2, (3, None)]], {"b": 1, "a": {"c": [2]}}, (1,), Point(1, [2, 3]), OrderedDict([("z", 1), ("a", 2)]), [None, None], {"x": None}, Frozen(3),
        ]:  # fmt: skip
            leaves, treedef = tree_flatten(tree)
            back = tree_unflatten(treedef, leaves)
            self.assertEqual(back, tree)
            self.assertIs(type(back), type(tree))
            self.assertEqual(treedef.num_leaves, len(leaves))
            self.assertEqual(tree_structure(back), treedef)

    def test_order(self):
        self.assertEqual(tree_leaves({"b": 1, "a": 2, "c": [3, 4]}), [2, 1, 3, 4])
        self.assertEqual(tree_leaves(OrderedDict([("b", 1), ("a", 2)])), [1, 2])
        self.assertEqual(list(tree_map(lambda x: x, {"b": 1, "a": 2})), ["a", "b"])

    def test_defaultdict(self):
        d = defaultdict(list, {"a": 1})
        back = tree_map(lambda x: x + 1, d)
        self.assertEqual((back["a"], back["new"]), (2, []))

    def test_dataclass(self):
        leaves, treedef = tree_flatten(Layer(1, [2, 3], "tanh"))
        self.assertEqual(leaves, [1, 2, 3])
        back = tree_unflatten(treedef, [None, 5, 6])  # __post_init__ does not run
        self.assertEqual((back.w, back.b, back.act), (None, [5, 6], "tanh"))
        self.assertNotEqual(treedef, tree_structure(Layer(1, [2, 3], "relu")))

    def test_registered(self):
        p = tree_map(lambda x: x * 10, [Pair(1, {"k": 2}, "t")])[0]
        self.assertEqual((p.a, p.b, p.tag), (10, {"k": 20}, "t"))
        with self.assertRaises(ValueError):
            register_pytree_node(Pair, lambda p: ((), None), lambda a, c: None)
        with self.assertRaises(ValueError):
            register_pytree_node(list, lambda p: ((), None), lambda a, c: None)

    def test_is_leaf(self):
        self.assertEqual(tree_leaves([(1, 2), (3, 4)], is_leaf=lambda x: isinstance(x, tuple)), [(1, 2), (3, 4)])
        self.assertEqual(tree_map(lambda x: x, [None], is_leaf=lambda x: x is None), [None])

    def test_equality_and_hash(self):
        a, b = tree_structure({"x": [1, 2]}), tree_structure({"x": [3, 4]})
        self.assertEqual((a, hash(a)), (b, hash(b)))
        for other in ({"y": [1, 2]}, {"x": (1, 2)}, {"x": [1]}, {"x": [1, None]}):
            self.assertNotEqual(a, tree_structure(other))

    def test_repr(self):
        self.assertEqual(repr(tree_structure({"b": [1, (2,), None], "a": Point(1, 2)})), "PyTreeDef({'a': Point(x=*, y=*), 'b': [*, (*,), None]})")

    def test_deep(self):
        tree = 1
        for _ in range(100_000):
            tree = [tree]
        leaves, treedef = tree_flatten(tree)
        self.assertEqual(leaves, [1])
        self.assertEqual(tree_leaves(tree_unflatten(treedef, [2])), [2])
        self.assertEqual(treedef, tree_structure(tree))
        self.assertIsInstance(hash(treedef), int)
        self.assertIsInstance(repr(treedef), str)
        loop = []
        loop.append(loop)
        with self.assertRaisesRegex(ValueError, "contain itself"):
            tree_flatten(loop)

    def test_unsortable_keys(self):
        with self.assertRaisesRegex(TypeError, "order"):
            tree_flatten({1: 0, "a": 0})


class Map(unittest.TestCase):
    def test_rest(self):
        self.assertEqual(tree_map(lambda a, b, c: a + b * c, {"x": 1, "y": [2]}, {"x": 3, "y": [4]}, {"x": 5, "y": [6]}), {"x": 16, "y": [26]})
        self.assertEqual(tree_map(lambda a, b: (a, b), [1, 2], [[3], (4, 5)]), [(1, [3]), (2, (4, 5))])

    def test_mismatch_names_the_path(self):
        for a, b, path in [
            ([1, {"k": [1]}], [1, {"k": (1,)}], r"\[1\]\['k'\]"),
            ({"a": [1, 2]}, {"a": [1]}, r"\['a'\]"),
            ({"a": 1}, {"b": 1}, "keys"),
        ]:
            with self.assertRaisesRegex(ValueError, path):
                tree_map(lambda x, y: x, a, b)

    def test_wrong_number_of_leaves(self):
        with self.assertRaisesRegex(ValueError, "2 leaves, got 3"):
            tree_unflatten(tree_structure([1, 2]), [1, 2, 3])

    def test_exceptions_pass(self):
        with self.assertRaises(ZeroDivisionError):
            tree_map(lambda x: 1 / x, [0])

    def test_prefix(self):
        d = tree_structure(([1, 2], {"a": 3}))
        self.assertEqual(broadcast_prefix((0, None), d), [0, 0, None])
        self.assertEqual(broadcast_prefix(([0, 1], 2), d), [0, 1, 2])
        self.assertEqual(broadcast_prefix(7, d), [7, 7, 7])
        with self.assertRaises(ValueError):
            broadcast_prefix((0, 1, 2), d)


class Tensors(unittest.TestCase):
    def test_tensor_leaves(self):
        x = eager.ones((2,))
        self.assertEqual([t is x for t in tensor_leaves({"a": x, "b": 3, "c": [x, "s"]})], [True, True])

    def test_traced(self):
        x = eager.ones((2,))
        t = traced({"a": x, "n": 1})
        self.assertTrue(t["a"] is x and x.is_traced)  # in place
        self.assertFalse(untraced(t)["a"].is_traced)
        self.assertEqual(t["n"], 1)


if __name__ == "__main__":
    unittest.main()
