"""The blocks of docs/eager.md run, in order."""

import os
import re
import unittest

from support import ROOT


class Docs(unittest.TestCase):
    def test_eager(self):
        with open(os.path.join(ROOT, "docs", "eager.md")) as f:
            blocks = re.findall(r"```python\n(.*?)```", f.read(), re.S)
        self.assertGreater(len(blocks), 5)
        names = {"__name__": "docs_eager"}
        for block in blocks:
            with self.subTest(block.splitlines()[0]):
                exec(compile(block, "docs/eager.md", "exec"), names)


if __name__ == "__main__":
    unittest.main()
