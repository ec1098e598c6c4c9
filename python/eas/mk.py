"""The language of kernels: these functions record into the kernel being traced; outside a trace they raise RuntimeError."""

from . import _eas

globals().update(_eas.mk)

# A Python loop over meta values unrolls by itself; the name says that it is meant.
static_range = __builtins__["range"] if isinstance(__builtins__, dict) else __builtins__.range

__all__ = [*_eas.mk, "static_range"]


def __getattr__(name):
    raise AttributeError(f"mk has no function {name!r}")
