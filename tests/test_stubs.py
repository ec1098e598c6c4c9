"""The stubs name what there is."""

import ast
import contextlib
import importlib.util
import os
import re
import sys
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

    def test_the_table_of_instructions(self):
        """What insn.def says that mk offers is there, and every function that applies one instruction has a
        row."""
        path = os.path.join(ROOT, "tools", "gen_ir_table.py")
        with contextlib.ExitStack() as stack:
            sys.path.insert(0, os.path.dirname(path))
            stack.callback(sys.path.remove, os.path.dirname(path))
            spec = importlib.util.spec_from_file_location("gen_ir_table", path)
            tool = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(tool)
        source = tool.TABLE.read_text(encoding="utf-8")
        spelled = {}
        for kind, *rest in tool.rows(source):
            if kind == "row":
                self.assertEqual(len(rest[0]), 12, rest[0])
                if m := re.match(r'"(?:.* in )?mk\.(\w+)\(', rest[0][8]):
                    spelled[m[1]] = rest[0][1]
        self.assertEqual({n for n in spelled if not callable(getattr(mk, n, None))}, set())
        stubbed = set(names("mk.pyi"))
        self.assertEqual({n for n in spelled if n not in stubbed}, set())
        hosts = set(re.findall(r"\) HOST\((\w+),", source))
        self.assertIn("sigmoid", hosts)
        self.assertEqual({n for n in hosts if spelled.get(n) != n}, set(), "functions that the row spells otherwise")

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
