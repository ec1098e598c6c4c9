"""The tests of kernels once more, unchanged, with launches going to each device in turn."""

import functools
import os
import unittest
from unittest import mock

import support
import test_control
import test_hints
import test_kernel
import test_tensor


def forgiving(test, device):
    """A device without f64 must say so, and that is enough."""

    @functools.wraps(test)
    def run(self):
        try:
            test(self)
        except TypeError as e:
            if not support.no_double(device, e):
                raise

    return run


def again(case, device):
    """The same tests with EAS_BACKEND set."""

    def start(cls):
        patch = mock.patch.dict(os.environ, {"EAS_BACKEND": device})
        patch.start()
        cls.addClassCleanup(patch.stop)
        super(made, cls).setUpClass()

    tests = {name: forgiving(getattr(case, name), device) for name in dir(case) if name.startswith("test")}
    made = type(f"{case.__name__}_{device}", (case,), {**tests, "setUpClass": classmethod(start), "__module__": __name__})
    return made


for module in (test_kernel, test_control, test_hints, test_tensor):
    for case in list(vars(module).values()):
        if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
            for device in support.DEVICES:
                if device != "cpu":
                    made = again(case, device)
                    globals()[f"{module.__name__}_{made.__name__}"] = made
del module, case, made
