"""The state behind tensors."""

from eas._eas import TensorImpl

__all__ = ["TensorImpl"]
