from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from .. import Kernel, Tensor
from ..autotune import Autotuner

def from_torch(t: Any, *, device: str | None = None, copy: bool | None = None) -> Tensor: ...
def to_torch(t: Tensor, device: Any = None) -> Any: ...
def op(
    name: str,
    kernel: Kernel | Autotuner | Callable[..., None],
    *,
    outputs: str | Iterable[str] | Mapping[str, str | Callable[..., Any] | None] | None = None,
    mutates: str | Iterable[str] = (),
    grid: Any = None,
    shape: Any = None,
    nthreads: Any = None,
    types: Mapping[str, type] | None = None,
    contiguous: bool = True,
    backward: Any = None,
    save: Iterable[str] | None = None,
    setup_context: Callable[..., None] | None = None,
    differentiable: str | Iterable[str] | None = None,
    backward_grid: Any = None,
    backward_params: Mapping[str, Any] | None = None,
    vmap: Literal["loop", "batch"] | Callable[..., Any] | None = "loop",
    params: Mapping[str, Any] | None = None,
    **bound: Any,
) -> Any: ...
def tier() -> tuple[Literal["A", "B"], str]: ...
def probe() -> dict[str, Any]: ...
