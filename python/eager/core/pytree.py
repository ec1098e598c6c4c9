"""Nested containers: dict, list, tuple, namedtuple, dataclass, None, OrderedDict, defaultdict, and classes
that were registered.

Dicts are read in the order of their sorted keys. Fields of a dataclass with metadata={"static": True} are
part of the structure, not leaves.
"""

from eas._eas import (
    PyTreeDef,
    broadcast_prefix,
    register_pytree_node,
    tensor_leaves,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

from .tracing import traced, untraced

__all__ = [
    "PyTreeDef", "broadcast_prefix", "register_pytree_node", "tensor_leaves", "traced", "tree_flatten", "tree_leaves", "tree_map", "tree_structure", "tree_unflatten",
    "untraced",
]  # fmt: skip
