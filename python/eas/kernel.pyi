from collections.abc import Callable
from typing import Any, TypeVar, overload

from . import CompiledKernel as CompiledKernel
from . import Kernel as Kernel
from . import constexpr as constexpr
from .runtime import Runtime

_F = TypeVar("_F", bound=Callable[..., Any])

class RuntimeArgs(dict[Any, Any]): ...

def fn(f: _F) -> _F: ...
def get_runtime(backend: str | None = None) -> Runtime: ...
@overload
def kernel(fn: Callable[..., None]) -> Kernel: ...
@overload
def kernel(*, fp_contract: bool = True, fast_math: bool = False, rewrite: bool = True) -> Callable[[Callable[..., None]], Kernel]: ...

# The module itself can be called as `kernel` is.
@overload
def __call__(fn: Callable[..., None]) -> Kernel: ...
@overload
def __call__(*, fp_contract: bool = True, fast_math: bool = False, rewrite: bool = True) -> Callable[[Callable[..., None]], Kernel]: ...
