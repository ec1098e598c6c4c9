"""tools/check_prose.py finds what it is for, in every kind of file."""

import os
import pathlib
import sys
import unittest

from support import ROOT

sys.path.insert(0, os.path.join(ROOT, "tools"))
import check_prose  # noqa: E402


def said(name, text):
    return [why for _, why in check_prose.complaints(pathlib.PurePosixPath(name), text, {"plan.c"})]


class TestProse(unittest.TestCase):
    def test_wide_lines_of_prose_are_found_and_others_are_not(self):
        wide = "word " * 30
        for name, text in {
            "a.c": f"/* {wide}*/",
            "a.py": f"# {wide}",
            "b.py": f'def f():\n    """{wide}"""\n',
            "c.py": f'class C:\n    def f(self):\n        """One.\n\n        {wide}\n        """\n',
            "a.md": wide,
        }.items():
            self.assertIn("columns", " ".join(said(name, text)), name)
        for name, text in {"a.c": f'x = "{wide}";', "a.py": f'x = "{wide}"\n', "a.md": f"```\n{wide}\n```\n| {wide} |", "b.md": f"{wide} https://a.b"}.items():
            self.assertEqual(said(name, text), [], name)

    def test_names_of_files_must_exist(self):
        self.assertEqual(said("a.c", "/* see plan.c and src/exec/plan.c */"), [])
        self.assertEqual(said("a.c", "/* see nowhere.c */"), ["there is no file nowhere.c"])
        self.assertEqual(said("a.md", "`my_program.py` calls x.shape"), [])

    def test_riddles_are_found(self):
        self.assertIn("plainly", " ".join(said("a.c", "/* stored past the caches */")))
        self.assertIn("plainly", " ".join(said("a.py", "# asks for the next lines ahead\n")))
        self.assertEqual(said("a.c", "/* written with non-temporal stores */"), [])


if __name__ == "__main__":
    unittest.main()
