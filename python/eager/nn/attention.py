"""Multi-head attention with grouped queries, rotary positions and a cache of keys and values."""

import dataclasses
import math

from eas._eas import tensor_ops as _ops

from ..ops.creation import arange, zeros
from . import functional as F
from .functional.common import tensor
from .layers import Dropout, Linear
from .module import Module

__all__ = ["KVCache", "MultiHeadAttention"]


@dataclasses.dataclass
class KVCache:
    """Keys and values of the tokens so far, (N, heads, capacity, head_dim), and how many there are. A pytree:
    one compiled step takes it whatever the length."""

    keys: object
    values: object
    length: object

    @classmethod
    def empty(cls, batch, heads, capacity, head_dim, dtype="float32"):
        """Room for `capacity` tokens. Keys and values are stored as they are multiplied, so their dtype is
        that of the attention."""
        shape = (batch, heads, capacity, head_dim)
        return cls(zeros(shape, dtype=dtype).realize(), zeros(shape, dtype=dtype).realize(), zeros((), dtype="int64").realize())

    @property
    def capacity(self):
        return int(self.keys.shape[2])

    def append(self, keys, values):
        """A cache with the keys and values (N, heads, S, head_dim) of S more tokens. More than there is room
        for: IndexError, when it is computed."""
        count = keys.shape[2]
        at = self.length + arange(count)
        put = lambda old, new: _ops["scatter"](old, at, new.astype(old.dtype), axis=2)  # noqa: E731
        return KVCache(put(self.keys, keys), put(self.values, values), self.length + count)


class MultiHeadAttention(Module):
    """Attention of (N, S, d_model) tensors, in num_heads heads.

    num_kv_heads: fewer heads of keys and values, each shared by several of the query's. rotary: positions
    turn query and key (base 10000, or the number given). kdim, vdim: sizes of key and value where they are
    not d_model. Parameters: q_proj, k_proj, v_proj, out_proj.
    """

    def __init__(
        self, d_model, num_heads, dropout=0.0, bias=True, *, num_kv_heads=None, rotary=False, kdim=None, vdim=None, head_dim=None, dtype="float32"
    ):
        super().__init__()
        shared = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or (head_dim is None and d_model % num_heads):
            raise ValueError(f"MultiHeadAttention: d_model {d_model} does not divide into {num_heads} heads")
        if shared < 1 or num_heads % shared:
            raise ValueError(f"MultiHeadAttention: {num_heads} heads do not divide among {shared} heads of keys and values")
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, shared
        self.head_dim = d_model // num_heads if head_dim is None else head_dim
        self.rotary_base = None if rotary is False or rotary is None else 10000.0 if rotary is True else float(rotary)
        if self.rotary_base is not None and self.head_dim % 2:
            raise ValueError(f"MultiHeadAttention: rotary positions need heads of an even size, got {self.head_dim}")
        self.q_proj = Linear(d_model, num_heads * self.head_dim, bias, dtype=dtype)
        self.k_proj = Linear(d_model if kdim is None else kdim, shared * self.head_dim, bias, dtype=dtype)
        self.v_proj = Linear(d_model if vdim is None else vdim, shared * self.head_dim, bias, dtype=dtype)
        self.out_proj = Linear(num_heads * self.head_dim, d_model, bias, dtype=dtype)
        self.dropout_p = Dropout(dropout).p

    def make_cache(self, batch, capacity, dtype="float32"):
        """An empty cache for this layer."""
        return KVCache.empty(batch, self.num_kv_heads, capacity, self.head_dim, dtype)

    def _heads(self, x, heads):
        return _ops["swap_axes"](x.reshape((*x.shape[:-1], heads, self.head_dim)), -2, -3)

    def forward(self, query, key=None, value=None, attn_mask=None, is_causal=False, cache=None):
        """Attention of the query (N, S, d_model) to key and value (None: the query itself). attn_mask: True
        where a query may look, or numbers that are added, broadcast to (N, heads, S, keys).

        With a cache, key and value are those of the new tokens only, every query sees the tokens before it
        and itself (attn_mask, if any, is over the whole capacity), and the result is (result, new cache).
        """
        key = query if key is None else key
        value = key if value is None else value
        query, key, value = tensor(query), tensor(key), tensor(value)
        if len(query.shape) < 2:
            raise ValueError(f"MultiHeadAttention: the query is (N, S, {self.d_model}), got {tuple(query.shape)}")
        q = self._heads(self.q_proj(query), self.num_heads)
        k, v = self._heads(self.k_proj(key), self.num_kv_heads), self._heads(self.v_proj(value), self.num_kv_heads)
        first = 0 if cache is None else cache.length
        if self.rotary_base is not None:
            q, k = self._turn(q, first), self._turn(k, first)
        if cache is not None:
            old, cache = cache, cache.append(k, v)
            k, v = cache.keys, cache.values
            seen = arange(old.capacity).reshape((1, old.capacity)) <= (arange(q.shape[-2]) + old.length).reshape((q.shape[-2], 1))
            if attn_mask is None:
                attn_mask = seen
            else:
                attn_mask = tensor(attn_mask)
                attn_mask = seen & attn_mask if attn_mask.dtype.kind == "b" else _ops["where"](seen, attn_mask, -math.inf)
            is_causal = False
        y = F.scaled_dot_product_attention(q, k, v, attn_mask, self.dropout_p, is_causal, self.training)
        y = _ops["swap_axes"](y, -2, -3)
        y = self.out_proj(y.reshape((*y.shape[:-2], self.num_heads * self.head_dim)))
        return y if cache is None else (y, cache)

    def _turn(self, x, first):
        cos, sin = F.rotary_tables(arange(x.shape[-2]) + first, self.head_dim, self.rotary_base)
        return F.rotary_embedding(x, cos, sin)

    def extra_repr(self):
        s = f"d_model={self.d_model}, num_heads={self.num_heads}"
        s += f", num_kv_heads={self.num_kv_heads}" if self.num_kv_heads != self.num_heads else ""
        return (
            s + (f", rotary={self.rotary_base}" if self.rotary_base is not None else "") + (f", dropout={self.dropout_p}" if self.dropout_p else "")
        )
