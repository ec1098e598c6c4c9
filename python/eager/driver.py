"""Devices by name."""

from eas._eas import devices as _devices

__all__ = ["CPU", "Device", "devices"]


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
