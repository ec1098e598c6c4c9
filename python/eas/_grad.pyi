from collections.abc import Sequence
from typing import Any, NamedTuple

from . import CompiledKernel, Kernel

class Param(NamedTuple):
    name: str
    role: str
    param: int
    loop: int
    dtype: Any
    elements: int
    consumed: bool
    zeroed: bool

class Derivative:
    primal: CompiledKernel
    compiled: CompiledKernel
    ir: Any
    wrt: tuple[str, ...]
    of: tuple[str, ...]
    params: tuple[Param, ...]
    def grid(self, grid: tuple[int, int, int]) -> tuple[int, int, int]: ...
    def band(self, grid: tuple[int, int, int]) -> int: ...
    def lengths(self, grid: tuple[int, int, int], counts: Sequence[int], scalars: tuple[int, ...]) -> dict[str, int]: ...

class GradKernel:
    kernel: Kernel
    __name__: str
    def derivative(self, *args: Any, **kw: Any) -> Derivative: ...
    def __call__(self, *args: Any, **kw: Any) -> None: ...

class JvpKernel:
    kernel: Kernel
    __name__: str
    def derivative(self, *args: Any, **kw: Any) -> Derivative: ...
    def __call__(self, *args: Any, **kw: Any) -> None: ...

def grad_kernel(
    k: Kernel, wrt: str | Sequence[str] | None = None, of: str | Sequence[str] | None = None, *, accumulate: bool = True, deterministic: bool = False, max_trips: int | None = None
) -> GradKernel: ...
def jvp_kernel(k: Kernel, wrt: str | Sequence[str] | None = None, of: str | Sequence[str] | None = None) -> JvpKernel: ...
