"""NumPy's vocabulary: functions that users of NumPy, JAX and torch type, written in the operations of the
table. Names and arguments are NumPy's; results stay lazy, and have derivatives wherever the operations they
are made of do. Functions whose result's size depends on the data (argwhere, unique, delete by a mask, ...)
evaluate."""

from . import choice, elementwise, making, order, parts, products, shapes, statistics
from .choice import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .making import *  # noqa: F403
from .order import *  # noqa: F403
from .parts import *  # noqa: F403
from .parts import _axis, _floats, _known, _t  # noqa: F401
from .products import *  # noqa: F403
from .shapes import *  # noqa: F403
from .shapes import _equal_split  # noqa: F401
from .statistics import *  # noqa: F403

__all__ = [
    name
    for part in (parts, making, shapes, choice, elementwise, statistics, products, order)
    for name in part.__all__
]
