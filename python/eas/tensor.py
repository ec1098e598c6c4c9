"""Device tensors: `eas.tensor(data, device=..., dtype=...)` (the module is also the function) and friends."""

from ._callable import make_callable
from ._eas import Tensor, empty, empty_like, from_dlpack, ones, tensor, zeros

__all__ = ["Tensor", "empty", "empty_like", "from_dlpack", "ones", "tensor", "zeros"]

make_callable(__name__, tensor)
