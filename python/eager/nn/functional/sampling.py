"""Tokens from logits."""

import math

from eas._eas import random_key
from eas._eas import tensor_ops as _ops

from .common import shape_text, tensor

__all__ = ["filter_logits", "sample_logits"]


def filter_logits(logits, top_k=None, top_p=None):
    """Logits (..., classes) with -inf for those that are not drawn: all but the top_k largest, and all after
    the largest that together have a probability of at least top_p."""
    logits = tensor(logits)
    if len(logits.shape) == 0 or logits.dtype.kind != "f":
        raise ValueError(f"filter_logits: floats with an axis of classes are wanted, got {logits.dtype}{shape_text(logits)}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"filter_logits: top_k is an int above 0, got {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"filter_logits: top_p is in (0, 1], got {top_p!r}")
    classes = int(logits.shape[-1])
    if (top_k is None or top_k >= classes) and (top_p is None or top_p == 1):
        return logits
    ordered = _ops["sort"](logits, axis=-1, descending=True)
    keep = None
    if top_k is not None and top_k < classes:
        keep = logits >= ordered[..., top_k - 1 : top_k]
    if top_p is not None and top_p < 1:
        p = _ops["softmax"](ordered.astype("float32"), axis=-1)
        inside = _ops["cumsum"](p, axis=-1) - p < top_p  # the first one always is
        least = _ops["reduce_min"](_ops["where"](inside, ordered, math.inf), axis=-1, keepdims=True)
        keep = logits >= least if keep is None else keep & (logits >= least)
    return _ops["where"](keep, logits, -math.inf)


def sample_logits(logits, temperature=1.0, top_k=None, top_p=None, key=None):
    """Class numbers (...,) drawn from logits (..., classes) over the temperature; 0: the largest. Without a
    key each call, and each run of a compiled function, draws others."""
    logits = tensor(logits)
    if temperature < 0:
        raise ValueError(f"sample_logits: the temperature must not be negative, got {temperature}")
    if temperature == 0:
        return _ops["argmax"](logits, axis=-1)
    logits = filter_logits(logits.astype("float32") / temperature, top_k, top_p)
    u = _ops["random_uniform"](random_key() if key is None else key, shape=tuple(logits.shape))
    noise = -_ops["log"](-_ops["log"](_ops["maximum"](u, 1e-20)) + 1e-20)  # Gumbel's: the largest sum is a draw from the softmax
    return _ops["argmax"](logits + noise, axis=-1)
