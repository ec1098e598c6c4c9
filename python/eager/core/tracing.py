"""The operations behind traced tensors: what each was given and, weakly, its results."""

from eas._eas import OutputRefs, tensor_leaves

__all__ = ["OutputRefs", "traced", "untraced"]


def traced(tree):
    """Marks the tensors of the tree, in place: operations on them are recorded for derivatives. Gives the
    tree."""
    for t in tensor_leaves(tree):
        t.is_traced = True
    return tree


def untraced(tree):
    """Marks the tensors of the tree, in place: operations on them are not recorded for derivatives. Gives the
    tree."""
    for t in tensor_leaves(tree):
        t.is_traced = False
    return tree
