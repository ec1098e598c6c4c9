"""torch: tensors both ways, kernels as operators (`op`), launches on torch's own queue. On the CPU nothing is
copied in either direction.

`python -m eas.torch` prints what this torch offers. torch is imported when something of it is first needed.
"""

from .._eas import Tensor, _to_torch, from_dlpack

__all__ = ["from_torch", "op", "probe", "tier", "to_torch"]


def _torch():
    try:
        import torch
    except ImportError as e:
        raise RuntimeError("torch is not installed: pip install torch") from e
    return torch


def __getattr__(name):
    if name == "op":
        _torch()
        from ._op import op

        globals()["op"] = op
        return op
    if name in ("probe", "tier", "_launch"):
        from . import _tiers

        return getattr(_tiers, name)
    raise AttributeError(f"module 'eas.torch' has no attribute {name!r}")


def from_torch(t, *, device=None, copy=None):
    """An eas.Tensor over a torch tensor's memory; a copy if `copy` is True or `device` another than where it
    is. torch's work on it is waited for (on mps, unless EAS_TORCH_MPS_SYNC=0)."""
    torch = _torch()
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"from_torch takes a torch.Tensor, got {type(t).__name__}")
    if t.device.type == "mps":
        from ._tiers import import_mps

        return import_mps(t, device, copy)
    return from_dlpack(t.detach(), device=device, copy=copy)


def to_torch(t, device=None):
    """A torch tensor over an eas.Tensor's memory; a copy if `device` is another than the tensor's, or if
    torch cannot reach the tensor's memory (read-only, on "ref" or "opencl")."""
    if not isinstance(t, Tensor):
        raise TypeError(f"to_torch takes an eas.Tensor, got {type(t).__name__}")
    torch = _torch()
    want = None if device is None else torch.device(device)
    if t.device == "mps" and (want is None or want.type == "mps") and torch.backends.mps.is_available():
        return torch.from_dlpack(t)
    if t.device != "cpu":
        t = t.to("cpu")
    elif t.readonly:
        t = t.copy()
    out = _to_torch(t)
    if out is None:  # a torch without DLPack's table of C functions
        out = torch.from_dlpack(t)
    return out if want is None or want.type == "cpu" else out.to(want)
