"""Where operations run and how: settings that belong to a context (a thread, an asyncio task)."""

from contextlib import contextmanager
from contextvars import ContextVar

from eas._eas import DType, set_strict, vmap_level

__all__ = ["default_device", "default_dtype", "defaults", "strict", "vmap_level"]

_defaults = ContextVar("eager_defaults", default=(None, "float32"))  # device, dtype of floats


@contextmanager
def strict(on=True):
    """Within it every operation runs at once, as EAGER_STRICT=1 does for the whole process: a traceback then
    ends where the error is made."""
    before = set_strict(on)
    try:
        yield
    finally:
        set_strict(before)


def current_defaults():
    """(device or None, dtype): what creation functions use if these are not given."""
    return _defaults.get()


@contextmanager
def defaults(dtype=None, device=None):
    """Within it, tensors are made with that float dtype and on that device unless an argument says otherwise.
    For this thread or task only."""
    old_device, old_dtype = _defaults.get()
    if dtype is not None and DType(dtype).kind != "f":
        raise TypeError(f"eager.defaults: the default is for floats, and {dtype!r} is none")
    token = _defaults.set((old_device if device is None else device, old_dtype if dtype is None else dtype))
    try:
        yield
    finally:
        _defaults.reset(token)


def default_dtype(dtype):
    """defaults(dtype=dtype)."""
    return defaults(dtype=dtype)


def default_device(device):
    """defaults(device=device)."""
    return defaults(device=device)
