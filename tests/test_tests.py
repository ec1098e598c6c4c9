"""Every test asserts: each test_* function reaches an assertion, by itself or through helpers of its file or
of support.py."""

import ast
import os
import unittest

from support import ROOT

HERE = os.path.join(ROOT, "tests")
CHECKS = ("assert", "fail", "raises", "check_call", "check_output", "warns")


def called(node):
    """Names of what is called, of decorators, and of functions that are handed on."""
    for n in ast.walk(node):
        if isinstance(n, ast.Name):
            yield n.id
        elif isinstance(n, ast.Attribute):
            yield n.attr


def asserts_itself(node):
    for n in ast.walk(node):
        if isinstance(n, (ast.Assert, ast.Raise)):
            return True
        if isinstance(n, ast.Call):
            f = n.func
            name = f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""
            if name.startswith(CHECKS) or any(k.arg == "check" and isinstance(k.value, ast.Constant) and k.value.value is True for k in n.keywords):
                return True
    return False


def definitions(*paths):
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as f:
            for n in ast.walk(ast.parse(f.read())):
                if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    found.setdefault(n.name, []).append(n)
    return found


def reaches_an_assertion(node, known, seen):
    if asserts_itself(node):
        return True
    for name in called(node):
        if name in known and name not in seen:
            seen.add(name)
            if any(reaches_an_assertion(d, known, seen) for d in known[name]):
                return True
    return False


def without_assertion(path):
    known = definitions(path, os.path.join(HERE, "support.py"), os.path.join(HERE, "walk.py"))
    return [name for name, nodes in known.items() if name.startswith("test") for n in nodes if not isinstance(n, ast.ClassDef) and not reaches_an_assertion(n, known, set())]


class Tests(unittest.TestCase):
    def test_every_test_asserts(self):
        files = sorted(f for f in os.listdir(HERE) if f.startswith("test_") and f.endswith(".py"))
        self.assertGreater(len(files), 100)
        for f in files:
            self.assertEqual(without_assertion(os.path.join(HERE, f)), [], f"tests of {f} that assert nothing")


if __name__ == "__main__":
    unittest.main()
