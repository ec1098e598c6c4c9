"""Operations. Those of the library's table are sorted into modules by what they do, when a module is
loaded."""

from . import _physical, binary, comparison, control_flow, convolution, creation, multi_output, operation, pooling, reduction, unary, view
from .operation import BinaryOperation, CreationOperation, Operation, ReduceOperation, UnaryOperation

__all__ = [
    "BinaryOperation", "CreationOperation", "Operation", "ReduceOperation", "UnaryOperation", "_physical", "binary", "comparison", "control_flow", "convolution", "creation",
    "multi_output", "operation", "pooling", "reduction", "unary", "view",
]  # fmt: skip
