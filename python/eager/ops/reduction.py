"""Over axes: sums, extremes, scans, sorting."""

from eas._eas import tensor_ops as _ops

from ._table import ops_of

globals().update(ops_of("reduction"))
sum, max, min = (_ops["reduce_" + n]._called(n) for n in ("sum", "max", "min"))
__all__ = [*ops_of("reduction"), "max", "min", "sum"]
