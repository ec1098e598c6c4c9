"""The same where batch dims (those of vmap) count as axes, and what moves axes between the two."""

from ._table import ops_of

globals().update(ops_of("_physical"))
__all__ = list(ops_of("_physical"))
