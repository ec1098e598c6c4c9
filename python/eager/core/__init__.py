"""State: tensors, what they are made of, pytrees, the graph."""

from . import compute_graph, context, graph_utils, pytree, tensor, tensor_impl, tracing  # noqa: F401
from .compute_graph import GRAPH, ComputeGraph
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
from .tensor import Tensor, realize_all
from .tensor_impl import TensorImpl
from .tracing import OutputRefs

__all__ = [
    "GRAPH", "ComputeGraph", "Dim", "OutputRefs", "PyTreeDef", "Shape", "StaticDim", "SymbolicDim", "Tensor", "TensorImpl", "get_all_impls_topological", "get_operations_topological",
    "get_topological_order", "print_computation_graph", "print_trace_graph", "realize_all", "register_pytree_node", "tensor_leaves", "traced", "tree_flatten", "tree_leaves", "tree_map",
    "tree_structure", "tree_unflatten", "untraced",
]  # fmt: skip
