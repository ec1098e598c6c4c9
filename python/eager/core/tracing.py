"""What an operation was given and, weakly, what it gave."""

from eas._eas import OutputRefs, set_traced

__all__ = ["OutputRefs", "traced", "untraced"]


def traced(tree):
    """The tree with tensors whose operations are kept for derivatives; those of the caller stay as they are."""
    return set_traced(tree, True)


def untraced(tree):
    """The tree with tensors whose operations are not kept."""
    return set_traced(tree, False)
