"""The table of operations (src/graph/op.def), sorted into families."""

from eas._eas import tensor_ops

INTERNAL = {n for n, o in tensor_ops.items() if o.family is None}


def family(name):
    """The module that an operation belongs to."""
    return "_physical" if name.endswith(("_physical", "batch_dims")) else tensor_ops[name].family


def ops_of(module):
    """{name: operation} of a module."""
    return {n: o for n, o in tensor_ops.items() if n not in INTERNAL and family(n) == module}
