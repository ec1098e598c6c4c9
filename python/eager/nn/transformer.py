"""Blocks of transformers, pre-norm: x + f(norm(x))."""

import copy

from . import functional as F
from .attention import MultiHeadAttention
from .containers import ModuleList
from .layers import Dropout, LayerNorm, Linear
from .module import Module

__all__ = ["TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]


def _activation(name):
    if callable(name):
        return name
    f = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}.get(name)
    if f is None:
        raise ValueError(f'activation is "relu", "gelu", "silu" or a function, got {name!r}')
    return f


class _Layer(Module):
    def __init__(self, d_model, num_heads, dim_feedforward, dropout, activation, layer_norm_eps, bias, norm_first, options):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads, dropout, bias, **options)
        self.linear1, self.linear2 = Linear(d_model, dim_feedforward, bias), Linear(dim_feedforward, d_model, bias)
        self.norm1, self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias), LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout = Dropout(dropout)
        self.activation, self.norm_first = _activation(activation), norm_first

    def _residual(self, x, norm, f):
        return x + f(norm(x)) if self.norm_first else norm(x + f(x))

    def _feed_forward(self, x):
        return self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def _self_attention(self, x, mask, is_causal, cache):
        """(result of a residual block, new cache)."""
        kept = [cache]

        def attend(y):
            y = self.self_attn(y, y, y, mask, is_causal, cache)
            if cache is not None:
                y, kept[0] = y
            return self.dropout(y)

        return self._residual(x, self.norm1, attend), kept[0]


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each x + f(norm(x)) (norm_first=False: norm(x + f(x))).
    Further options go to MultiHeadAttention."""

    def __init__(
        self, d_model, num_heads, dim_feedforward=2048, dropout=0.1, activation="relu", layer_norm_eps=1e-5, bias=True, norm_first=True, **options
    ):
        super().__init__(d_model, num_heads, dim_feedforward, dropout, activation, layer_norm_eps, bias, norm_first, options)

    def forward(self, src, src_mask=None, is_causal=False, cache=None):
        """src (N, S, d_model). With a cache of this layer's self_attn: (result, new cache)."""
        x, cache = self._self_attention(src, src_mask, is_causal, cache)
        x = self._residual(x, self.norm2, self._feed_forward)
        return x if cache is None else (x, cache)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory, and a feed-forward network."""

    def __init__(
        self, d_model, num_heads, dim_feedforward=2048, dropout=0.1, activation="relu", layer_norm_eps=1e-5, bias=True, norm_first=True, **options
    ):
        super().__init__(d_model, num_heads, dim_feedforward, dropout, activation, layer_norm_eps, bias, norm_first, options)
        cross = {k: v for k, v in options.items() if k != "rotary"}
        self.multihead_attn = MultiHeadAttention(d_model, num_heads, dropout, bias, **cross)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias)

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, is_causal=False, cache=None):
        """tgt (N, T, d_model), memory (N, S, d_model). With a cache of this layer's self_attn: (result, new
        cache)."""
        x, cache = self._self_attention(tgt, tgt_mask, is_causal, cache)
        x = self._residual(x, self.norm2, lambda y: self.dropout(self.multihead_attn(y, memory, memory, memory_mask)))
        x = self._residual(x, self.norm3, self._feed_forward)
        return x if cache is None else (x, cache)


class _Stack(Module):
    def __init__(self, layer, num_layers, norm=None):
        super().__init__()
        if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
            raise ValueError(f"{type(self).__name__}: num_layers is an int above 0, got {num_layers!r}")
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.norm = norm

    def _finish(self, x):
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """num_layers copies of a layer, and a norm after them."""

    def forward(self, src, mask=None, is_causal=False, caches=None):
        """With a list of caches, one for each layer: (result, new caches)."""
        x, new = src, []
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, is_causal, None if caches is None else caches[i])
            if caches is not None:
                x, c = x
                new.append(c)
        return self._finish(x) if caches is None else (self._finish(x), new)


class TransformerDecoder(_Stack):
    """num_layers copies of a layer, and a norm after them."""

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, is_causal=False, caches=None):
        """With a list of caches, one for each layer: (result, new caches)."""
        x, new = tgt, []
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, tgt_mask, memory_mask, is_causal, None if caches is None else caches[i])
            if caches is not None:
                x, c = x
                new.append(c)
        return self._finish(x) if caches is None else (self._finish(x), new)
