"""Attention."""

import math

from eas._eas import tensor_ops as _ops

from ...ops.creation import arange
from ..precision import cast_inputs
from .common import shape_text, tensor
from .layers import dropout

__all__ = ["causal_mask", "scaled_dot_product_attention"]


def causal_mask(queries, keys, offset=0):
    """True where query i may see key j: j <= i + offset."""
    return arange(keys).reshape((1, keys)) <= arange(queries).reshape((queries, 1)) + offset


def _grouped(query, key, value):
    """Several heads of the query to one of key and value: the query's heads as (heads of the key, queries per
    head), with an axis of size 1 in the others."""
    ranks = [len(t.shape) for t in (query, key, value)]
    if min(ranks) < 3 or query.shape[-3] == key.shape[-3]:
        return query, key, value, None
    heads, shared = int(query.shape[-3]), int(key.shape[-3])
    if shared == 1 and heads != 1:
        return query, key, value, None
    if heads % shared or int(value.shape[-3]) != shared:
        raise ValueError(
            f"scaled_dot_product_attention: {heads} heads of the query do not divide among {shared} of the key and {value.shape[-3]} of the value"
        )
    q = query.reshape((*query.shape[:-3], shared, heads // shared, *query.shape[-2:]))
    return q, _ops["unsqueeze"](key, -3), _ops["unsqueeze"](value, -3), heads


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, training=True, scale=None, dropout_key=None):
    """softmax(query @ key^T * scale + mask) @ value, of (..., S, D) tensors.

    attn_mask broadcasts to (..., S, keys): True where a query may look, or numbers that are added. is_causal:
    query i sees keys 0..i. Heads (axis -3) of key and value may be fewer than the query's, which are shared
    among them. scale: 1 / sqrt(D) unless given. dropout_p applies to the weights where training.
    """
    query, key, value = tensor(query), tensor(key), tensor(value)
    if min(len(t.shape) for t in (query, key, value)) < 2:
        raise ValueError(
            f"scaled_dot_product_attention: (..., S, D) tensors are wanted, got {shape_text(query)}, {shape_text(key)}, {shape_text(value)}"
        )
    if int(query.shape[-1]) != int(key.shape[-1]):
        raise ValueError(f"scaled_dot_product_attention: the query is {shape_text(query)} and the key {shape_text(key)}: their last sizes differ")
    query, key, value = cast_inputs(query, key, value)
    scale = 1.0 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    q, k, v, heads = _grouped(query, key, value)
    scores = q @ _ops["matrix_transpose"](k) * scale
    if is_causal:
        scores = _ops["where"](causal_mask(query.shape[-2], key.shape[-2]), scores, -math.inf)
    if attn_mask is not None:
        mask = tensor(attn_mask)
        if heads is not None and len(mask.shape) >= 3:
            shared = int(key.shape[-3])
            split = (1, 1) if int(mask.shape[-3]) == 1 else (shared, heads // shared)
            mask = mask.reshape((*mask.shape[:-3], *split, *mask.shape[-2:]))
        scores = _ops["where"](mask, scores, -math.inf) if mask.dtype.kind == "b" else scores + mask.astype(scores.dtype)
    weights = _ops["softmax"](scores, axis=-1)
    if dropout_p and training:
        weights = dropout(weights, dropout_p, True, dropout_key)
    out = weights @ v
    return out if heads is None else out.reshape((*query.shape[:-1], v.shape[-1]))
