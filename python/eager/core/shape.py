"""Sizes: known ones are ints, others expressions in symbols."""

from eas._eas import Shape, StaticDim, SymbolicDim

__all__ = ["Dim", "Shape", "StaticDim", "SymbolicDim"]


class _DimType(type):
    def __instancecheck__(cls, o):
        return isinstance(o, (StaticDim, SymbolicDim))

    def __call__(cls, size):
        return Shape((size,))[0]


class Dim(metaclass=_DimType):
    """Dim(2) is a known size, an int; Dim('batch') a symbolic one. Both are instances of Dim."""
