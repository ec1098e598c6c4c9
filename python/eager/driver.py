"""Devices by name, and memory on them."""

import eas
from eas._eas import devices as _devices

__all__ = ["CPU", "Accelerator", "Device", "Tensor", "accelerator", "cpu", "devices", "gpu"]


class Device(str):
    """A device's name; whatever takes a device takes it."""

    @property
    def label(self):
        return str(self)

    def __repr__(self):
        return f"Device({str(self)!r})"


def CPU():
    """The host's processors."""
    return Device("cpu")


def devices():
    """The devices that can be used here."""
    return [Device(name) for name, _, why in _devices() if why is None]


def _gpu():
    for name, what, why in _devices():
        if why is None and (name == "mps" or (name == "opencl" and "gpu" in what.lower())):
            return Device(name)
    return None


def gpu():
    """The GPU; RuntimeError where there is none."""
    found = _gpu()
    if found is None:
        raise RuntimeError(f"eager.gpu: there is no GPU here; devices that can be used: {', '.join(devices())}")
    return found


def Accelerator():
    """The best device there is: a GPU, or else the CPU."""
    return _gpu() or CPU()


cpu, accelerator = CPU, Accelerator


class Tensor:
    """Memory on a device: what these give are eas.Tensors."""

    @staticmethod
    def from_numpy(a, device=None):
        """On the CPU the same memory, elsewhere a copy."""
        return eas.tensor(a, device=device)

    @staticmethod
    def zeros(shape, dtype="float32", device=None):
        """All elements 0."""
        return eas.zeros(shape, dtype=dtype, device=device)
