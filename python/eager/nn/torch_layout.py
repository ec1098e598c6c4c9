"""State dicts in torch's layout: there a linear or recurrent layer holds (out, in), a convolution (out, in,
*kernel), and attention one matrix for the projections of query, key and value. Other names and shapes agree.
"""

from eas._eas import tensor_ops as _ops

from ..ops.view import concatenate
from .attention import MultiHeadAttention
from .layers import BatchNorm, Linear, _Conv
from .recurrent import _Cell, _Recurrent

__all__ = ["from_torch", "to_torch"]

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_TURNED = (Linear, _Conv, _Recurrent, _Cell)


def _modules(module):
    return [(f"{name}." if name else "", m) for name, m in module.named_modules()]


def _turned(module):
    """Names of the parameters whose first two axes torch has first and in the other order."""
    return {
        prefix + name
        for prefix, m in _modules(module)
        if isinstance(m, _TURNED)
        for name, p in m.named_parameters()
        if "." not in name and name.startswith("weight") and len(p.shape) > 1
    }


def _split(state, prefix):
    """The projections of one attention layer, which torch keeps together or, where widths differ, apart."""
    for kind in ("weight", "bias"):
        whole = state.pop(f"{prefix}in_proj_{kind}", None)
        third = 0 if whole is None else int(whole.shape[0]) // 3
        for i, name in enumerate(_PROJECTIONS if whole is not None else ()):
            state[f"{prefix}{name}.{kind}"] = whole[i * third : (i + 1) * third]
    for name in _PROJECTIONS:
        apart = state.pop(f"{prefix}{name}_weight", None)
        if apart is not None:
            state[f"{prefix}{name}.weight"] = apart


def _join(state, prefix):
    for kind in ("weight", "bias"):
        parts = {name: state.pop(f"{prefix}{name}.{kind}") for name in _PROJECTIONS if f"{prefix}{name}.{kind}" in state}
        if len({tuple(p.shape) for p in parts.values()}) == 1 or kind == "bias" and parts:
            state[f"{prefix}in_proj_{kind}"] = concatenate(list(parts.values()), axis=0)
        else:
            state.update({f"{prefix}{name}_{kind}": p for name, p in parts.items()})


def from_torch(module, state):
    """A state dict of tensors in torch's layout as the module's own."""
    state, turned = dict(state), _turned(module)
    for prefix, m in _modules(module):
        if isinstance(m, MultiHeadAttention):
            _split(state, prefix)
        elif isinstance(m, BatchNorm):
            state.pop(f"{prefix}num_batches_tracked", None)
    return {
        name: _ops["permute"](t, (*range(2, len(t.shape)), 1, 0)) if name in turned and len(t.shape) > 1 else t for name, t in state.items()
    }


def to_torch(module, state):
    """The module's own state dict in torch's layout."""
    turned = _turned(module)
    out = {}
    for name, t in state.items():
        rank = len(t.shape)
        out[name] = _ops["permute"](t, (rank - 1, rank - 2, *range(rank - 2))) if name in turned else t
    for prefix, m in _modules(module):
        if isinstance(m, MultiHeadAttention):
            _join(out, prefix)
    return out
