"""DLPack interchange."""

from ._eas import Tensor, from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(t):
    """A DLPack capsule over the tensor's memory; nothing is copied. (Most consumers take the tensor itself.)
    """
    if not isinstance(t, Tensor):
        raise TypeError(f"to_dlpack takes an eas.Tensor, got {type(t).__name__}")
    return t.__dlpack__()
