"""The data that a sharded program sends, and why."""

import collections

from eas._eas import EagerTensor, collectives
from eas._eas import comm_stats as _stats

__all__ = ["Collective", "ShardingExplanation", "comm_stats", "explain_sharding"]

Collective = collections.namedtuple("Collective", "name operation why axes dtype count times bytes place per_trip")
Collective.__doc__ = """One collective: its name, the operation that wanted it and why, the mesh axes, dtype and number of elements that each device gives, trips of loops around it,
the bytes that leave devices (all of them, all trips), the line ("file:line", or None), and whether a loop around it takes an unknown number of trips, of which one is counted."""


class ShardingExplanation:
    """The collectives of a program, in order. print() shows them; .total_bytes is their sum over all devices.
    """

    def __init__(self, mesh, rows, text):
        self.mesh, self.collectives, self._text = mesh, [Collective(*r) for r in rows], text

    @property
    def total_bytes(self):
        return sum(c.bytes for c in self.collectives)

    def __iter__(self):
        return iter(self.collectives)

    def __len__(self):
        return len(self.collectives)

    def __str__(self):
        return self._text

    __repr__ = __str__


def explain_sharding(fn, *args, **kwargs):
    """The collectives that computing tensors takes, or calling a function: explain_sharding(tensor, ...) or
    explain_sharding(f, *args). Nothing runs."""
    from ..core.pytree import tensor_leaves

    if callable(fn) and not isinstance(fn, EagerTensor):
        from ..transforms._diff import only_recorded
        from ..transforms.compile import CompiledFunction

        with only_recorded():
            result = (fn.__wrapped__ if isinstance(fn, CompiledFunction) else fn)(*args, **kwargs)
    else:
        result = (fn, args, kwargs)
    return ShardingExplanation(*collectives(list(tensor_leaves(result))))


def comm_stats():
    """Bytes that devices of this process have sent so far, in all and by kind of collective, and the number
    of calls."""
    return _stats()
