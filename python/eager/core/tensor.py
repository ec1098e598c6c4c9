"""eager.Tensor. The class itself is C; here it gets the methods that are sugar."""

from eas._eas import EagerTensor as Tensor
from eas._eas import realize_all

__all__ = ["Tensor", "realize_all"]
