"""Writes python/eager/__init__.pyi: what is C comes from the table of operations, the rest from the modules'
own signatures.

Run it with an installed eager: python tools/gen_eager_stub.py [--check]
"""

import inspect
import os
import re
import sys

import eager

PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "eager", "__init__.pyi")
KINDS = {
    "int": "int",
    "float": "float",
    "bool": "builtins.bool",
    "axis": "int | None",
    "axes": "Axes",
    "dims": "ShapeLike",
    "ints": "int | Sequence[int]",
    "dtype": "DTypeLike",
}
HEAD = '''"""Made by tools/gen_eager_stub.py from the table of operations; the docs of each are in docs/ops.md."""

# ruff: noqa
import builtins
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

import numpy as np

import eas
from eas import Kernel

from . import config as config, core as core, driver as driver, ops as ops, sharding as sharding, testing as testing, transforms as transforms
from .core.compute_graph import GRAPH as GRAPH, ComputeGraph as ComputeGraph
from .ops.operation import BinaryOperation as BinaryOperation, Operation as Operation, ReduceOperation as ReduceOperation, UnaryOperation as UnaryOperation
from .sharding.propagation import OpShardingRule as OpShardingRule, PropagationStrategy as PropagationStrategy, propagate_sharding as propagate_sharding
from .sharding.spec import DeviceMesh as DeviceMesh, DimSpec as DimSpec, P as P, PartitionSpec as PartitionSpec, ShardingSpec as ShardingSpec, create_replicated_spec as create_replicated_spec

F = TypeVar("F", bound=Callable[..., Any])
Scalar = builtins.bool | int | float | np.generic
TensorLike = Tensor | Scalar | np.ndarray | eas.Tensor | Sequence[Any]
Axes = int | Sequence[int] | None
DTypeLike = DType | str | np.dtype | type
ShapeLike = int | str | SymbolicDim | Sequence[int | str | SymbolicDim]

class DType:
    name: str
    numpy_name: str
    itemsize: int
    kind: str
    numpy: np.dtype
    def __init__(self, dtype: DTypeLike) -> None: ...

class StaticDim(int): ...

class SymbolicDim:
    name: str
    def __init__(self, name: str) -> None: ...
    def value(self, env: dict[str, int]) -> int: ...
    def __add__(self, o: int | SymbolicDim) -> SymbolicDim: ...
    def __radd__(self, o: int | SymbolicDim) -> SymbolicDim: ...
    def __sub__(self, o: int | SymbolicDim) -> SymbolicDim: ...
    def __rsub__(self, o: int | SymbolicDim) -> SymbolicDim: ...
    def __mul__(self, o: int | SymbolicDim) -> SymbolicDim: ...
    def __rmul__(self, o: int | SymbolicDim) -> SymbolicDim: ...
    def __floordiv__(self, o: int | SymbolicDim) -> SymbolicDim: ...
    def __mod__(self, o: int | SymbolicDim) -> SymbolicDim: ...

class Dim:
    def __new__(cls, size: int | str | SymbolicDim) -> StaticDim | SymbolicDim: ...  # type: ignore[misc]

class Shape(tuple[Any, ...]):
    rank: int
    is_static: builtins.bool
    def __new__(cls, dims: ShapeLike = ...) -> Shape: ...

class PyTreeDef:
    num_leaves: int
    num_nodes: int
    def unflatten(self, leaves: Sequence[Any]) -> Any: ...
    def flatten_up_to(self, tree: Any) -> list[Any]: ...
    def path(self, leaf: int) -> str: ...

class OutputRefs:
    op: Any
    op_args: tuple[Any, ...]
    op_kwargs: dict[str, Any]
    tree_def: PyTreeDef | None
    num_outputs: int
    def get_alive_outputs(self) -> list[TensorImpl | None]: ...

class TensorImpl:
    traced: builtins.bool
    batch_dims: int
    sharding: ShardingSpec | None
    op: Any
    op_name: str | None
    output_refs: OutputRefs | None
    output_index: int
    parents: list[TensorImpl]
    is_leaf: builtins.bool
    is_realized: builtins.bool
    physical_shape: Shape
    logical_shape: Shape
    cached_shape: Shape
    cached_dtype: DType
    cached_device: str | None
    def __init__(self, storages: Any = None, values: Any = None, traced: builtins.bool = False, batch_dims: int = 0, sharding: ShardingSpec | None = None) -> None: ...

class GraphBreak(RuntimeError): ...

class CompileStats:
    hits: int
    misses: int
    programs: int

class CompiledFunction(Generic[F]):
    __wrapped__: F
    stats: CompileStats
    __call__: F
    def explain(self) -> list[dict[str, Any]]: ...
    def show(self, form: str = "text") -> str: ...
    def clear_cache(self) -> None: ...

@overload
def compile(fn: F, *, fullgraph: builtins.bool = False, max_cache_size: int = 64, dynamic_dims: dict[int, dict[int, str]] | None = None, donate: int | Sequence[int] | None = None, bucket: str | None = None, max_compiles: int | None = None, mode: str | None = None) -> CompiledFunction[F]: ...
@overload
def compile(fn: None = None, *, fullgraph: builtins.bool = False, max_cache_size: int = 64, dynamic_dims: dict[int, dict[int, str]] | None = None, donate: int | Sequence[int] | None = None, bucket: str | None = None, max_compiles: int | None = None, mode: str | None = None) -> Callable[[F], CompiledFunction[F]]: ...
@overload
def vmap(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_size: int | None = None, spmd_axis_name: str | None = None, mesh: DeviceMesh | None = None) -> Callable[..., Any]: ...
@overload
def vmap(fn: None = None, in_axes: Any = 0, out_axes: Any = 0, axis_size: int | None = None, spmd_axis_name: str | None = None, mesh: DeviceMesh | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def from_kernel(kernel: Kernel, outputs: dict[str, Any], *, grid: Any = None, name: str | None = None, vjp: Callable[..., Any] | None = None, jvp: Callable[..., Any] | None = None, sharding: Callable[..., Any] | None = None) -> Operation: ...
def tree_flatten(tree: Any, is_leaf: Callable[[Any], builtins.bool] | None = None) -> tuple[list[Any], PyTreeDef]: ...
def tree_unflatten(treedef: PyTreeDef, leaves: Sequence[Any]) -> Any: ...
def tree_leaves(tree: Any, is_leaf: Callable[[Any], builtins.bool] | None = None) -> list[Any]: ...
def tree_structure(tree: Any, is_leaf: Callable[[Any], builtins.bool] | None = None) -> PyTreeDef: ...
def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], builtins.bool] | None = None) -> Any: ...
def tensor_leaves(tree: Any) -> list[Tensor]: ...
def register_pytree_node(cls: type, flatten: Callable[[Any], tuple[Any, Any]], unflatten: Callable[[Any, Any], Any]) -> None: ...
def realize_all(*tensors: Any) -> None: ...
def constant(value: Any, dtype: DTypeLike | None = None, device: str | None = None, traced: builtins.bool = False) -> Tensor: ...
def from_dlpack(x: Any, *, device: str | None = None, copy: builtins.bool | None = None) -> Tensor: ...
def stats() -> dict[str, int]: ...

class At:
    def __getitem__(self, key: Any) -> At: ...
    def set(self, v: TensorLike) -> Tensor: ...
    def add(self, v: TensorLike) -> Tensor: ...
    def sub(self, v: TensorLike) -> Tensor: ...
    def subtract(self, v: TensorLike) -> Tensor: ...
    def mul(self, v: TensorLike) -> Tensor: ...
    def multiply(self, v: TensorLike) -> Tensor: ...
    def min(self, v: TensorLike) -> Tensor: ...
    def max(self, v: TensorLike) -> Tensor: ...
    def get(self) -> Tensor: ...

'''
TENSOR = """class Tensor:
    shape: Shape
    local_shape: Shape
    global_shape: Shape
    physical_shape: Shape
    physical_global_shape: Shape
    dtype: DType
    device: str
    batch_dims: int
    ndim: int
    rank: int
    size: int
    itemsize: int
    nbytes: int
    real: builtins.bool
    storage: eas.Tensor | None
    T: Tensor
    mT: Tensor
    at: At
    traced: builtins.bool
    is_traced: builtins.bool
    is_sharded: builtins.bool
    requires_grad: builtins.bool
    sharding: ShardingSpec | None
    grad: Tensor | None
    _impl: TensorImpl
    _value: TensorImpl | None
    def __init__(self, value: Any = ..., *, dtype: DTypeLike | None = None, device: str | None = None, storage: Any = ..., impl: TensorImpl = ..., traced: builtins.bool = False) -> None: ...
    def realize(self) -> Tensor: ...
    def _sync_realize(self) -> None: ...
    def numpy(self) -> np.ndarray: ...
    def to_numpy(self) -> np.ndarray: ...
    def item(self, *index: int) -> Any: ...
    def tolist(self) -> Any: ...
    def to(self, device: Any = None, dtype: DTypeLike | None = None) -> Tensor: ...
    def to_device(self, device: str, *, stream: Any = None) -> Tensor: ...
    def trace(self) -> Tensor: ...  # type: ignore[override]
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __getitem__(self, key: Any) -> Tensor: ...
    def __setitem__(self, key: Any, value: TensorLike) -> None: ...
    def __await__(self) -> Iterator[Tensor]: ...
    def __array__(self, dtype: Any = None, copy: builtins.bool | None = None) -> np.ndarray: ...
    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: builtins.bool | None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType: ...
    def __bool__(self) -> builtins.bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __index__(self) -> int: ...
"""
FIXED = set(
    """Tensor DType StaticDim SymbolicDim Dim Shape PyTreeDef OutputRefs TensorImpl GraphBreak CompiledFunction compile vmap from_kernel tree_flatten tree_unflatten tree_leaves tree_structure tree_map
tensor_leaves register_pytree_node realize_all constant from_dlpack stats GRAPH ComputeGraph BinaryOperation Operation ReduceOperation UnaryOperation DeviceMesh DimSpec P PartitionSpec ShardingSpec
create_replicated_spec OpShardingRule PropagationStrategy propagate_sharding config core driver ops sharding testing transforms""".split()
)


def op_parameters(op, method):
    out, after = [], False
    for i, word in enumerate(op.signature.split()):
        name, _, kind = word.partition(":")
        kind, _, default = kind.partition("=")
        if method and i == 0:
            out.append("self")
        elif not kind:
            optional, many = name.endswith("?"), name.endswith("*")
            name = name.rstrip("?*")
            out.append(f"{name}: " + ("Sequence[TensorLike]" if many else "TensorLike | None = None" if optional else "TensorLike"))
            after = after or optional
        else:
            typ = KINDS.get(kind, "str")
            value = f" = {default!r}" if default and typ == "str" else f" = {default}" if default else " = ..." if after else ""
            if default == "None" and "None" not in typ and typ != "Axes":
                typ += " | None"
            after = after or bool(value)
            out.append(f"{name}: {typ}{value}")
    return ", ".join(out)


def python_parameters(f, method):
    out, star = [], False
    for i, p in enumerate(inspect.signature(f).parameters.values()):
        if p.kind is p.KEYWORD_ONLY and not star:
            out.append("*")
            star = True
        name = "self" if method and i == 0 else p.name
        if p.kind is p.VAR_POSITIONAL:
            out.append(f"*{name}: Any")
            star = True
        elif p.kind is p.VAR_KEYWORD:
            out.append(f"**{name}: Any")
        elif method and i == 0:
            out.append("self")
        else:
            out.append(
                f"{name}: Any"
                + (
                    ""
                    if p.default is p.empty
                    else f" = {p.default!r}"
                    if isinstance(p.default, (int, float, str, bool, type(None), tuple))
                    else " = ..."
                )
            )
    return ", ".join(out)


def line(name, o, method=False):
    if type(o).__name__ == "TensorOp":
        return f"def {name}({op_parameters(o, method)}) -> Tensor: ..."
    if inspect.isclass(o):
        return f"class {name}:\n    def __init__(self, *args: Any) -> None: ...\n    def __getattr__(self, name: str) -> Any: ..."
    if inspect.isfunction(o):
        return f"def {name}({python_parameters(o, method)}) -> Any: ..."
    if inspect.ismodule(o):
        return f"from . import {name} as {name}"
    if isinstance(o, eager.DType):
        return f"{name}: DType"
    return f"{name}: {type(o).__name__ if type(o) in (int, float, str) else 'Any'}"


def operators():
    for name in ("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift").split():
        yield f"    def __{name}__(self, o: TensorLike) -> Tensor: ..."
        yield f"    def __r{name}__(self, o: TensorLike) -> Tensor: ..."
    for name in ("neg", "pos", "abs", "invert"):
        yield f"    def __{name}__(self) -> Tensor: ..."
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        yield f"    def __{name}__(self, o: Any) -> Tensor: ...  # type: ignore[override]"


def methods():
    given = {w.split("(")[0].split(":")[0].strip() for w in TENSOR.replace("    def ", "\n").replace("    ", "\n").split("\n")}
    for name, o in sorted(vars(eager.Tensor).items()):
        if name.startswith("__") or name in given:
            continue
        if isinstance(o, staticmethod):
            params = inspect.signature(o.__func__) if inspect.isfunction(o.__func__) else None
            yield "    @staticmethod\n    " + (
                f"def {name}({python_parameters(o.__func__, False)}) -> Tensor: ..."
                if params
                else f"def {name}(*args: Any, **kwargs: Any) -> Tensor: ..."
            )
        elif type(o).__name__ == "TensorOp" or inspect.isfunction(o):
            yield "    " + line(name, o, True)


def in_class(text):
    """Tensor has methods called int, float and bool: inside the class the types are builtins'."""
    return re.sub(r"(?<!def )(?<![\w.'])(int|float|bool)\b(?![('])", r"builtins.\1", text)


def text():
    out = [HEAD + in_class(TENSOR + "\n".join([*operators(), *methods()])), ""]
    for name in sorted(eager.__all__):
        if name not in FIXED and not (name.startswith("__") and name != "__version__"):
            out.append(line(name, getattr(eager, name)))
    return "\n".join(out) + "\n"


def main():
    new = text()
    if "--check" in sys.argv:
        with open(PATH) as f:
            sys.exit(f.read() != new and "python/eager/__init__.pyi is old: run tools/gen_eager_stub.py")
    with open(PATH, "w") as f:
        f.write(new)


if __name__ == "__main__":
    main()
