"""Apple GPUs."""

from . import Runtime

__all__ = ["MetalRuntime"]


class MetalRuntime(Runtime):
    """Launches on the Metal device, where there is one."""

    def __init__(self):
        super().__init__("mps")
