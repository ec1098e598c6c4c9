"""The table of operations, sorted by what they do."""

from eas._eas import tensor_ops

INTERNAL = {
    "alias",
    "custom",
    "split",
    "chunk",
    "unbind",
    "index",
    "index_update",
    "slice",
    "slice_set",
    "lift_batch_dims",
    "full",
    "zeros",
    "ones",
    "minmax",
    "topk",
    "layer_norm",
    "rms_norm",
    "one_hot",
    "trace",
    "linspace",
    "eye",
    "tri",
    "arange",
    "hann_window",
    "uniform",
    "gaussian",
    "randint",
    "split_key",
    "fold_in",
    "pad",
    "random_bits",
    "random_uniform",
    "random_normal",
    "iota",
    "unique",
}
COMPARISONS = {
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "is_nan",
    "is_inf",
    "is_finite",
    "signbit",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
}
POOLING = {n for n in tensor_ops if "pool" in n}
CONVOLUTION = {n for n in tensor_ops if n.startswith("conv")}
PHYSICAL = {n for n in tensor_ops if n.endswith("_physical") or n.endswith("batch_dims")}
REDUCTIONS = {
    n
    for n, o in tensor_ops.items()
    if o.kind in ("reduce", "arg", "scan", "sort")
    or n in ("mean", "var", "std", "logsumexp", "count_nonzero", "cumsum", "cumprod", "argmax", "argmin")
} - PHYSICAL


def family(name):
    """The module that an operation belongs to."""
    op = tensor_ops[name]
    if name in PHYSICAL:
        return "_physical"
    if name in COMPARISONS:
        return "comparison"
    if name in POOLING:
        return "pooling"
    if name in CONVOLUTION:
        return "convolution"
    if name in REDUCTIONS:
        return "reduction"
    if op.signature == "x y":
        return "binary"
    if op.signature == "x" and op.kind == "map" or name in ("cast", "softmax", "logsoftmax"):
        return "unary"
    return "view"


def ops_of(module):
    """{name: operation} of a module."""
    return {n: o for n, o in tensor_ops.items() if n not in INTERNAL and family(n) == module}
