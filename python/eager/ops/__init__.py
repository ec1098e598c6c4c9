"""Operations. Those of the library's table appear by themselves, sorted into modules by what they do."""

from . import _physical, binary, comparison, control_flow, convolution, creation, multi_output, operation, pooling, reduction, unary, view
from .operation import BinaryOperation, Operation, ReduceOperation, UnaryOperation

__all__ = [
    "BinaryOperation", "Operation", "ReduceOperation", "UnaryOperation", "_physical", "binary", "comparison", "control_flow", "convolution", "creation",
    "multi_output", "operation", "pooling", "reduction", "unary", "view",
]  # fmt: skip
