"""Modules that are also functions: `eas.kernel`, `eas.tensor` and `eas.autotune` are both, by their
documented names."""

import sys
from types import ModuleType


def make_callable(name, function):
    """From now on the module called `name` can be called, and then calls `function`."""
    namespace = {"__call__": staticmethod(function), "__doc__": function.__doc__, "__wrapped__": function}
    sys.modules[name].__class__ = type("CallableModule", (ModuleType,), namespace)
