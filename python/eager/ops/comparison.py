"""Operations that give truth values."""

from ._table import ops_of

globals().update(ops_of("comparison"))
__all__ = list(ops_of("comparison"))
