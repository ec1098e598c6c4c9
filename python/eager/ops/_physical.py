"""The same where batch dims (those of vmap) count as axes, and what moves axes between the two. Each under
its plain name too."""

from ._table import ops_of

_all = ops_of("_physical")
_all.update({n[: -len("_physical")]: o._called(n[: -len("_physical")]) for n, o in _all.items() if n.endswith("_physical")})
globals().update(_all)
__all__ = list(_all)
