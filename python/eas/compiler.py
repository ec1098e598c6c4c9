"""From a kernel and arguments to a CompiledKernel. Tracing and compiling are in C; this module gives them
their documented place."""

from ._eas import CompiledKernel, Kernel

__all__ = ["CompiledKernel", "Kernel", "compile_kernel"]


def compile_kernel(kernel, *args, **kw):
    """The CompiledKernel that `kernel(*args, **kw)` would launch."""
    return kernel.compile(*args, **kw)
