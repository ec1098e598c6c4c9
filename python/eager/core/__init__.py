"""State: tensors, their data and history, pytrees, the graph."""

from . import compute_graph, context, graph_utils, pytree, tensor, tensor_impl, tracing  # noqa: F401
from .compute_graph import GRAPH, ComputeGraph
from .context import default_device, default_dtype, defaults
from .graph_utils import get_all_impls_topological, get_operations_topological, get_topological_order, print_computation_graph, print_trace_graph
from .pytree import (
    PyTreeDef,
    register_pytree_node,
    tensor_leaves,
    traced,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
    untraced,
)
from .shape import Dim, Shape, StaticDim, SymbolicDim
from .tensor import Tensor, is_tensor, realize_all, rebind, to_device, transfer_to, with_batch_dims
from .tensor_impl import TensorImpl
from .tracing import OutputRefs

__all__ = [
    "GRAPH", "ComputeGraph", "Dim", "OutputRefs", "PyTreeDef", "Shape", "StaticDim", "SymbolicDim", "Tensor", "TensorImpl", "get_all_impls_topological", "get_operations_topological",
    "default_device", "default_dtype", "defaults", "get_topological_order", "is_tensor", "print_computation_graph", "print_trace_graph", "realize_all", "rebind", "register_pytree_node", "tensor_leaves", "to_device", "traced", "transfer_to", "tree_flatten", "tree_leaves", "tree_map",
    "tree_structure", "tree_unflatten", "untraced", "with_batch_dims",
]  # fmt: skip
