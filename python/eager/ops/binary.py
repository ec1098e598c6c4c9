"""Element by element, of two tensors; products of matrices."""

from ._table import ops_of

globals().update(ops_of("binary"))
__all__ = list(ops_of("binary"))
