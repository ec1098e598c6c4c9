"""Kernels in Python, compiled for the CPU, Metal and OpenCL.

import eas
from eas import mk

@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mask = offs < N
    mk.store(c, offs, mk.load(a, offs, mask) + mk.load(b, offs, mask), mask)

add(a, b, c, n, BLOCK=256)
"""

from . import kernel, mk
from ._eas import (
    CompiledKernel,
    Event,
    Kernel,
    Stream,
    Tensor,
    __version__,
    _set_package,
    capture,
    constexpr,
    current_stream,
    devices,
    empty,
    empty_cache,
    empty_like,
    from_dlpack,
    memory_stats,
    ones,
    stats,
    synchronize,
    zeros,
)
from .kernel import fn

_set_package(__file__[: -len("__init__.py")])

__all__ = [
    "CompiledKernel",
    "Config",
    "Event",
    "Finding",
    "GradKernel",
    "JvpKernel",
    "Kernel",
    "Place",
    "ProfileRow",
    "Report",
    "Stream",
    "Tensor",
    "autotune",
    "capture",
    "check",
    "__version__",
    "constexpr",
    "current_stream",
    "devices",
    "empty",
    "empty_cache",
    "empty_like",
    "explain",
    "fn",
    "from_dlpack",
    "from_torch",
    "grad_kernel",
    "jvp_kernel",
    "kernel",
    "memory_stats",
    "mk",
    "ones",
    "profile",
    "stats",
    "synchronize",
    "tensor",
    "to_dlpack",
    "to_torch",
    "zeros",
]

# Everything else is imported at its first use, so that the import of eas itself takes a few milliseconds
# only.
_MODULES = ("analysis", "autotune", "codegen", "compiler", "dlpack", "ir", "runtime", "tensor", "torch", "tuning")
_NAMES = {
    "Config": "autotune",
    "Finding": "_check",
    "Place": "_check",
    "Report": "_check",
    "ProfileRow": "_profile",
    "check": "_check",
    "explain": "_profile",
    "GradKernel": "_grad",
    "JvpKernel": "_grad",
    "grad_kernel": "_grad",
    "jvp_kernel": "_grad",
    "profile": "_profile",
    "to_dlpack": "dlpack",
    "to_torch": "torch",
    "from_torch": "torch",
}


def __getattr__(name):
    from importlib import import_module

    if name in _MODULES:
        return import_module("." + name, __name__)
    if name in _NAMES:
        value = getattr(import_module("." + _NAMES[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'eas' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_MODULES})
