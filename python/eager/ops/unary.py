"""Element by element, of one tensor."""

from ._table import ops_of

globals().update(ops_of("unary"))
__all__ = list(ops_of("unary"))
