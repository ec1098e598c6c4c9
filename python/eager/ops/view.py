"""Shapes, order, choice and joining of elements."""

from ._table import ops_of

globals().update(ops_of("view"))
__all__ = list(ops_of("view"))
