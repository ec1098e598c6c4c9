"""torch interchange. On the CPU nothing is copied in either direction."""

from ._eas import Tensor, from_dlpack

__all__ = ["from_torch", "to_torch"]


def _torch():
    try:
        import torch
    except ImportError as e:
        raise RuntimeError("torch is not installed: pip install torch") from e
    return torch


def from_torch(t, *, device=None):
    """An eas.Tensor over a torch tensor's memory; on another device than it is, a copy."""
    if not isinstance(t, _torch().Tensor):
        raise TypeError(f"from_torch takes a torch.Tensor, got {type(t).__name__}")
    if t.device.type == "mps":
        _torch().mps.synchronize()  # its queue is not ours
    return from_dlpack(t.detach(), device=device)


def to_torch(t, device=None):
    """A torch tensor over an eas.Tensor's memory (copied only if `device` is another than the tensor's)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"to_torch takes an eas.Tensor, got {type(t).__name__}")
    torch = _torch()
    if t.device == "ref":
        t = t.to("cpu")
    out = torch.from_dlpack(t)
    return out if device is None or torch.device(device).type == out.device.type else out.to(device)
