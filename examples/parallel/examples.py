"""As examples/examples.py, for `python examples/parallel/data.py`."""

import importlib
import os
import sys

if __name__ == "examples":
    sys.path[:] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), *sys.path]
    del sys.modules[__name__]
    importlib.import_module("examples")
