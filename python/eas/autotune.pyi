from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import CompiledKernel, Kernel

class Config:
    meta: dict[str, Any]
    def __init__(self, meta: Mapping[str, Any]) -> None: ...

class Autotuner:
    kernel: Kernel
    configs: list[Config]
    key: list[str]
    best: dict[Any, Config]
    timings: dict[Any, list[float]]
    def __call__(self, *args: Any, **kw: Any) -> None: ...
    def choose(self, *args: Any, **kw: Any) -> Config: ...
    def compile(self, *args: Any, **kw: Any) -> CompiledKernel: ...

def autotune(
    *,
    configs: Iterable[Config],
    key: str | Sequence[str],
    warmup: int = 5,
    repeat: int = 25,
    prune: Callable[[list[Config], dict[str, Any]], Iterable[Config]] | None = None,
    restore: Sequence[str] | None = None,
    deterministic: bool = False,
) -> Callable[[Kernel], Autotuner]: ...
def __call__(
    *,
    configs: Iterable[Config],
    key: str | Sequence[str],
    warmup: int = 5,
    repeat: int = 25,
    prune: Callable[[list[Config], dict[str, Any]], Iterable[Config]] | None = None,
    restore: Sequence[str] | None = None,
    deterministic: bool = False,
) -> Callable[[Kernel], Autotuner]: ...
