"""Where operations run and how: settings that belong to a context (a thread, an asyncio task)."""

from contextlib import contextmanager

from eas._eas import set_strict, vmap_level

__all__ = ["strict", "vmap_level"]


@contextmanager
def strict(on=True):
    """Within it every operation runs at once, as EAGER_STRICT=1 does for the whole process: a traceback then ends where the error is made."""
    before = set_strict(on)
    try:
        yield
    finally:
        set_strict(before)
