"""The blocks of the guides run, in order."""

import contextlib
import io
import linecache
import os
import re
import tempfile
import unittest

from support import ROOT


class Docs(unittest.TestCase):
    def run_page(self, name, least):
        with open(os.path.join(ROOT, "docs", name)) as f:
            blocks = re.findall(r"```python\n(.*?)```", f.read(), re.S)
        self.assertGreaterEqual(len(blocks), least)
        names = {"__name__": "docs"}
        for block in blocks:
            with self.subTest(block.splitlines()[0]):
                file = f"docs/{name}, {block.splitlines()[0]}"
                linecache.cache[file] = len(block), None, block.splitlines(True), file  # kernels are rewritten from their source
                exec(compile(block, file, "exec"), names)

    def test_readme(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.run_page("../README.md", 2)
        self.assertIn("kernel void", out.getvalue())
        english, chinese = (open(os.path.join(ROOT, name), encoding="utf-8").read() for name in ("README.md", "README.zh.md"))
        blocks = [re.findall(r"```python\n.*?```", text, re.S) for text in (english, chinese)]
        self.assertEqual(*blocks)
        links = [re.findall(r"\]\((docs/[^)]*)\)", text) for text in (english, chinese)]
        self.assertEqual(*links)

    def test_guide(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.run_page("guide.md", 10)
        with open(os.path.join(ROOT, "docs", "guide.md"), encoding="utf-8") as f:
            shown = re.findall(r"```python\n[^`]*```\n\n```\n(.*?)```", f.read(), re.S)
        self.assertEqual(len(shown), 3)
        for text in shown:  # what the page shows below a block is what the block prints, but for the name of the file
            self.assertIn(re.sub(r"^guide\.py", "", text), out.getvalue())

    def test_semantics(self):
        self.run_page("semantics.md", 12)

    def test_eager(self):
        self.run_page("eager.md", 6)

    def test_kernels(self):
        self.run_page("kernels.md", 2)

    def test_derivatives(self):
        self.run_page("derivatives.md", 5)

    def test_distributed(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            self.run_page("distributed.md", 2)

    def test_models(self):
        self.run_page("nn.md", 7)


if __name__ == "__main__":
    unittest.main()
