from typing import Any

from . import Tensor as Tensor
from . import empty as empty
from . import empty_like as empty_like
from . import from_dlpack as from_dlpack
from . import ones as ones
from . import zeros as zeros

def tensor(data: Any, *, device: str | None = None, dtype: Any = None) -> Tensor: ...
def __call__(data: Any, *, device: str | None = None, dtype: Any = None) -> Tensor: ...
