"""Settings."""

from eas._eas import is_tracing, set_strict

from .core.context import strict

__all__ = ["TRACING", "get_strict", "set_strict", "strict"]  # noqa: F822


def get_strict():
    """Does every operation run at once? EAGER_STRICT=1 turns it on from the start."""
    now = set_strict(False)
    set_strict(now)
    return now


def __getattr__(name):
    """TRACING: is a function being traced now?"""
    if name == "TRACING":
        return is_tracing()
    raise AttributeError(f"module 'eager.config' has no attribute '{name}'")
