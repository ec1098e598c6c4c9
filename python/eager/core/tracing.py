"""What an operation was given and, weakly, what it gave."""

from eas._eas import OutputRefs, tensor_leaves

__all__ = ["OutputRefs", "traced", "untraced"]


def traced(tree):
    """Marks the tensors of the tree, in place: what is recorded from them is kept for derivatives. Gives the
    tree."""
    for t in tensor_leaves(tree):
        t.is_traced = True
    return tree


def untraced(tree):
    """Marks the tensors of the tree, in place: what is recorded from them is not kept. Gives the tree."""
    for t in tensor_leaves(tree):
        t.is_traced = False
    return tree
