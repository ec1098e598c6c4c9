"""`python examples/softmax.py` looks for `examples` beside the script and finds this file, which hands it the
package, as `python -m examples.softmax` would have found it by itself."""

import importlib
import os
import sys

if __name__ == "examples":
    sys.path[:] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__))), *sys.path]
    del sys.modules[__name__]
    importlib.import_module("examples")
