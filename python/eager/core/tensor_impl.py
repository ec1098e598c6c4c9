"""The state behind tensors."""

from typing import NamedTuple

from eas._eas import TensorImpl

from .graph_utils import (
    get_all_impls_topological,
    get_operations_topological,
    get_topological_order,
    print_computation_graph,
    print_trace_graph,
)

__all__ = [
    "TensorImpl", "TensorType", "get_all_impls_topological", "get_operations_topological", "get_topological_order", "print_computation_graph", "print_trace_graph",
]  # fmt: skip


class TensorType(NamedTuple):
    """The properties of a tensor that are known without computing it: all its dims, element type, device."""

    shape: object
    dtype: object
    device: str
