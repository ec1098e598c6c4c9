"""Finding the first NaN, and how tensors print."""

import contextlib

import numpy as np

from eas._eas import debug_nans as _set_debug_nans
from eas._eas import node_symbolic as _symbolic

__all__ = ["debug_nans", "get_printoptions", "printoptions", "set_printoptions"]


def readable(t):
    """Can its data be read here? Not if it stands for an argument of a function that is being traced."""
    return not _symbolic(t)


class debug_nans(contextlib.ContextDecorator):
    """While it is on, every operation runs at once, and the first one whose result has a NaN raises
    FloatingPointError with its name and the line that called it.

    eager.debug_nans()            # on from here on
    eager.debug_nans(False)       # off
    with eager.debug_nans(): ...  # on inside
    """

    def __init__(self, on=True, *, infs=False):
        self._before = _set_debug_nans((2 if infs else 1) if on else 0)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        _set_debug_nans(self._before)
        return False


set_printoptions, get_printoptions, printoptions = np.set_printoptions, np.get_printoptions, np.printoptions
