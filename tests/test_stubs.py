"""The stubs name what there is."""

import ast
import importlib.util
import os
import unittest

from support import ROOT

import eager
import eas
from eas import _eas, mk


def names(stub):
    with open(os.path.join(ROOT, "python", "eas", stub)) as f:
        tree = ast.parse(f.read())
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


class Stubs(unittest.TestCase):
    def test_mk(self):
        stubbed = set(names("mk.pyi")) - {"DType", "Branch", "While", "Var"}
        self.assertEqual({n for n in stubbed if not hasattr(mk, n)}, set())
        self.assertEqual(set(_eas.mk) - stubbed - {"constexpr"}, set(), "functions without a stub")

    def test_package(self):
        for n in names("__init__.pyi"):
            self.assertTrue(hasattr(eas, n), n)
        for cls in (eas.Tensor, eas.Kernel, eas.CompiledKernel):
            self.assertTrue(cls.__doc__)

    def test_every_function_is_documented(self):
        for name in _eas.mk:
            if callable(getattr(mk, name)):
                self.assertTrue(getattr(mk, name).__doc__, name)

    def test_eager(self):
        path = os.path.join(ROOT, "tools", "gen_eager_stub.py")
        spec = importlib.util.spec_from_file_location("gen_eager_stub", path)
        tool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tool)
        with open(tool.PATH) as f:
            old = f.read()
        ast.parse(old)
        self.assertEqual(old, tool.text(), "python/eager/__init__.pyi is old: run tools/gen_eager_stub.py")

    def test_marker(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(eas.__file__), "py.typed")))
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(eager.__file__), "py.typed")))


if __name__ == "__main__":
    unittest.main()
