"""The CPU: machine code made on the fly, or the interpreter where there is no compiler."""

from . import Runtime

__all__ = ["CpuRuntime"]


class CpuRuntime(Runtime):
    """Launches on this machine's cores."""

    def __init__(self):
        super().__init__("cpu")
