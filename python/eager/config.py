"""Settings."""

from eas._eas import set_strict

from .core.context import strict

__all__ = ["get_strict", "set_strict", "strict"]


def get_strict():
    """Does every operation run at once? EAGER_STRICT=1 asks for that from the start."""
    now = set_strict(False)
    set_strict(now)
    return now
