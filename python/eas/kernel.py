"""`@eas.kernel`: the module is also the decorator. Launches look `get_runtime` up in this module at call
time, so assigning another function to `eas.kernel.get_runtime` substitutes the runtime."""

import functools

from . import _eas
from ._callable import make_callable
from ._eas import CompiledKernel, Kernel, constexpr
from .runtime import get_runtime

__all__ = ["CompiledKernel", "Kernel", "RuntimeArgs", "constexpr", "fn", "get_runtime", "kernel"]


class RuntimeArgs(dict):
    """The run-time arguments of a launch by name; an int finds them by position."""

    def __missing__(self, key):
        if isinstance(key, int):
            return list(self.values())[key]
        raise KeyError(key)


def kernel(fn=None, *, fp_contract=True, fast_math=False, rewrite=True):
    """Makes a function a kernel: `@eas.kernel` or `@eas.kernel(fp_contract=False)`.

    Parameters annotated `eas.constexpr` are meta parameters, the others run-time arguments.
    `fp_contract=False` keeps a * b + c as two roundings; `fast_math=True` lets elementary functions be the
    device's own. With `rewrite=False` Python's `if`, `while` and `for` act while the kernel is traced, and
    only mk.if_, mk.while_ and mk.range are the kernel's own.
    """

    def decorate(fn):
        return Kernel(fn, fp_contract=fp_contract, fast_math=fast_math, rewrite=rewrite)

    return decorate if fn is None else decorate(fn)


def fn(f):
    """Marks a helper of kernels: it uses `mk`, and its body becomes part of the kernel that calls it. Plain
    functions inline just as well; a marked one says what it is for, and raises when it is called outside a
    kernel."""

    @functools.wraps(f)
    def helper(*args, **kw):
        _eas.require_trace(f.__qualname__)
        return f(*args, **kw)

    helper._eas_helper = f
    return helper


_eas._set_kernel_globals(globals())
make_callable(__name__, kernel)
