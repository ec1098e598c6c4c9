"""Fine-tuning with few parameters: LoRA (weights that stay plus a product of two small matrices), and QLoRA
(the weights that stay in 4 bits).

A weight is (in, out); an adapter is {"A": (in, rank), "B": (rank, out)} and stands for A @ B * alpha / rank.
B starts at 0, so a model with fresh adapters is what it was.
"""

import math

import numpy as np

from eas._eas import EagerTensor, constant, tree_flatten, tree_unflatten
from eas._eas import tensor_ops as _ops

from ..data import load_state, save_state
from ..ops.creation import gaussian, zeros
from . import functional as F
from .functional.common import shape_text, tensor
from .layers import Linear
from .module import Module, Parameter

__all__ = [
    "LoRALinear", "QLoRALinear", "add_lora", "dequantize_nf4", "init_lora_adapter", "load_finetune_checkpoint", "load_lora_state_dict", "lora_delta", "lora_linear", "lora_parameters",
    "lora_state_dict", "merge_lora", "merge_lora_weight", "qlora_linear", "quantize_nf4", "save_finetune_checkpoint", "tree_lora_delta", "unmerge_lora", "unmerge_lora_weight",
]  # fmt: skip

# The 16 values of NF4 (Dettmers et al. 2023): quantiles of the normal distribution, in [-1, 1], with an exact
# 0.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534,
    0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


# ---- adapters ----
def _matrix(name, weight):
    weight = tensor(weight)
    if len(weight.shape) != 2:
        raise ValueError(f"{name}: the weight is a matrix (in, out), got {shape_text(weight)}")
    return weight


def init_lora_adapter(weight, rank, init_std=0.01, dtype=None, *, key=None):
    """{"A": (in, rank), normal with deviation init_std, "B": (rank, out), zeros} for a weight (in, out)."""
    weight = _matrix("init_lora_adapter", weight)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"init_lora_adapter: rank is an int above 0, got {rank!r}")
    rows, cols = (int(d) for d in weight.shape)
    if rank > min(rows, cols):
        raise ValueError(f"init_lora_adapter: rank {rank} is above that of a weight {shape_text(weight)}")
    if init_std < 0:
        raise ValueError(f"init_lora_adapter: init_std must not be negative, got {init_std}")
    if dtype is None:
        dtype = weight.dtype if weight.dtype.kind == "f" else "float32"
    return {"A": gaussian((rows, rank), 0.0, init_std, dtype=dtype, key=key).realize(), "B": zeros((rank, cols), dtype=dtype).realize()}


def _adapter(name, adapter):
    if not isinstance(adapter, dict) or "A" not in adapter or "B" not in adapter:
        raise ValueError(f'{name}: an adapter is a dict with "A" and "B"')
    a, b = tensor(adapter["A"]), tensor(adapter["B"])
    if len(a.shape) != 2 or len(b.shape) != 2 or int(a.shape[1]) != int(b.shape[0]):
        raise ValueError(f"{name}: A is (in, rank) and B (rank, out), got {shape_text(a)} and {shape_text(b)}")
    return a, b, int(a.shape[1])


def _fits(name, weight, a, b):
    if int(weight.shape[0]) != int(a.shape[0]) or int(weight.shape[1]) != int(b.shape[1]):
        raise ValueError(f"{name}: the weight is {shape_text(weight)}, and the adapter for one of ({a.shape[0]}, {b.shape[1]})")


def lora_delta(adapter, alpha=1.0):
    """A @ B * alpha / rank, which the adapter adds to the weight."""
    a, b, rank = _adapter("lora_delta", adapter)
    return (a @ b) * (alpha / rank)


def lora_linear(x, frozen_weight, adapter, alpha=1.0, bias=None):
    """x @ weight + x @ A @ B * alpha / rank (+ bias). The weight is a constant for derivatives."""
    weight = _matrix("lora_linear", frozen_weight)
    a, b, rank = _adapter("lora_linear", adapter)
    _fits("lora_linear", weight, a, b)
    y = F.linear(x, _ops["stop_gradient"](weight), bias)
    return y + F.linear(F.linear(x, a), b) * (alpha / rank)


def merge_lora_weight(weight, adapter, alpha=1.0):
    """The weight with the adapter in it."""
    weight = _matrix("merge_lora_weight", weight)
    a, b, _ = _adapter("merge_lora_weight", adapter)
    _fits("merge_lora_weight", weight, a, b)
    return weight + lora_delta(adapter, alpha).astype(weight.dtype)


def unmerge_lora_weight(weight, adapter, alpha=1.0):
    """The weight without the adapter that merge_lora_weight put in it."""
    weight = _matrix("unmerge_lora_weight", weight)
    a, b, _ = _adapter("unmerge_lora_weight", adapter)
    _fits("unmerge_lora_weight", weight, a, b)
    return weight - lora_delta(adapter, alpha).astype(weight.dtype)


def _is_adapter(tree):
    return isinstance(tree, dict) and set(tree) == {"A", "B"}


def tree_lora_delta(adapters, alpha=1.0):
    """lora_delta of each adapter of a tree (dicts, lists, tuples)."""
    if _is_adapter(adapters):
        return lora_delta(adapters, alpha)
    if isinstance(adapters, dict):
        return {k: tree_lora_delta(v, alpha) for k, v in adapters.items()}
    if isinstance(adapters, (list, tuple)):
        return type(adapters)(tree_lora_delta(v, alpha) for v in adapters)
    if adapters is None:
        return None
    raise ValueError(f'tree_lora_delta: a tree of adapters {{"A", "B"}} is wanted, got {type(adapters).__name__}')


# ---- 4 bits ----
def quantize_nf4(weight, block_size=64, *, packed=False):
    """A weight in 4 bits: blocks of block_size elements (in C order, the last one filled up with zeros), each
    with a scale, its largest magnitude; each element is the nearest of 16 values.

    A dict: "indices" (uint8; one for each element, (blocks, block_size); packed=True: two in a byte, the
    first in the low half), "scales" (blocks,) f32, "original_shape", "original_numel", "padded_numel",
    "block_size".
    """
    weight = tensor(weight)
    if weight.dtype.kind != "f":
        raise TypeError(f"quantize_nf4: the weight is of floats, got {weight.dtype}")
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1 or (packed and block_size % 2):
        raise ValueError(f"quantize_nf4: block_size is an int above 0{', and even where packed' if packed else ''}, got {block_size!r}")
    shape = tuple(int(d) for d in weight.shape)
    n = math.prod(shape)
    blocks = -(-n // block_size)
    flat = weight.detach().astype("float32").reshape((n,))
    if blocks * block_size != n:
        flat = _ops["pad_constant"](flat, 0.0, before=(0,), after=(blocks * block_size - n,))
    table = flat.reshape((blocks, block_size))
    scales = _ops["abs"](table).max(axis=1) if n else zeros((0,))
    unit = table / _ops["where"](scales > 0, scales, 1.0).reshape((blocks, 1))
    values = np.array(NF4, np.float64)
    between = constant(((values[1:] + values[:-1]) / 2).astype(np.float32))  # the nearest value: how many midpoints are below
    indices = _ops["searchsorted"](between, unit).astype("uint8")
    if packed:
        pairs = indices.reshape((blocks, block_size // 2, 2))
        indices = pairs[..., 0] | (pairs[..., 1] << 4)
    return {
        "indices": indices.realize(), "scales": scales.realize(), "original_shape": shape, "original_numel": n, "padded_numel": blocks * block_size, "block_size": block_size, "packed": bool(packed),
    }  # fmt: skip


def _quantized(name, q):
    wanted = ("indices", "scales", "original_shape", "original_numel", "padded_numel", "block_size")
    if not isinstance(q, dict) or any(k not in q for k in wanted):
        raise ValueError(f"{name}: what quantize_nf4 gave is wanted, a dict with {', '.join(wanted)}")
    blocks, held = int(q["padded_numel"]) // int(q["block_size"]), 2 if q.get("packed") else 1
    if math.prod(int(d) for d in q["indices"].shape) * held != int(q["padded_numel"]) or math.prod(int(d) for d in q["scales"].shape) != blocks:
        raise ValueError(
            f"{name}: {q['padded_numel']} elements in blocks of {q['block_size']} are said, and indices are {shape_text(q['indices'])}, scales {shape_text(q['scales'])}"
        )
    return blocks


def dequantize_nf4(q, *, dtype="float32"):
    """The weight that quantize_nf4 was given, to 4 bits."""
    blocks = _quantized("dequantize_nf4", q)
    size = int(q["block_size"])
    indices = tensor(q["indices"])
    if q.get("packed"):
        indices = _ops["stack"]([indices & 15, indices >> 4], axis=-1)
    values = _ops["gather"](constant(np.array(NF4, np.float32)), indices.reshape((blocks, size)), axis=0)
    flat = (values * tensor(q["scales"]).reshape((blocks, 1))).reshape((blocks * size,))
    return flat[: int(q["original_numel"])].reshape(tuple(q["original_shape"])).astype(dtype)


def qlora_linear(x, qweight, adapter, *, alpha=1.0, compute_dtype="float32", bias=None):
    """lora_linear with a weight in 4 bits, which is unpacked to compute_dtype in the product."""
    shape = qweight.get("original_shape") if isinstance(qweight, dict) else None
    if shape is None or len(shape) != 2:
        raise ValueError(
            f"qlora_linear: a quantised matrix is wanted, got {'one of shape ' + str(tuple(shape)) if shape is not None else type(qweight).__name__}"
        )
    x = tensor(x)
    weight = dequantize_nf4(qweight, dtype=compute_dtype)
    a, b, rank = _adapter("qlora_linear", adapter)
    _fits("qlora_linear", weight, a, b)
    xc = x.astype(compute_dtype)
    y = F.linear(xc, _ops["stop_gradient"](weight)) + F.linear(F.linear(xc, a.astype(compute_dtype)), b.astype(compute_dtype)) * (alpha / rank)
    y = y.astype(x.dtype if x.dtype.kind == "f" else compute_dtype)
    return y if bias is None else y + bias


# ---- modules ----
class LoRALinear(Module):
    """A Linear whose weight stays, with an adapter that is trained. merge() puts the adapter into the weight,
    unmerge() takes it out."""

    def __init__(self, linear, rank, alpha=None, dropout=0.0, init_std=0.01):
        super().__init__()
        self.in_features, self.out_features, self.rank = linear.in_features, linear.out_features, rank
        self.alpha, self.dropout, self.merged = float(rank if alpha is None else alpha), dropout, False
        self.register_buffer("weight", linear.weight.detach())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        adapter = init_lora_adapter(linear.weight, rank, init_std)
        self.lora_A, self.lora_B = Parameter(adapter["A"]), Parameter(adapter["B"])

    def adapter(self):
        return {"A": self.lora_A, "B": self.lora_B}

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        if self.merged:
            return y
        x = F.dropout(x, self.dropout, self.training) if self.dropout else x
        return y + F.linear(F.linear(x, self.lora_A), self.lora_B) * (self.alpha / self.rank)

    def merge(self):
        """Adds the adapter to the weight: from now on the layer is a plain product."""
        if not self.merged:
            self.weight = merge_lora_weight(self.weight, {k: v.detach() for k, v in self.adapter().items()}, self.alpha).realize()
            self.merged = True
        return self

    def unmerge(self):
        if self.merged:
            self.weight = unmerge_lora_weight(self.weight, {k: v.detach() for k, v in self.adapter().items()}, self.alpha).realize()
            self.merged = False
        return self

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, alpha={self.alpha}" + (", merged" if self.merged else "")


class QLoRALinear(Module):
    """LoRALinear whose weight is kept in 4 bits (NF4, two in a byte)."""

    def __init__(self, linear, rank, alpha=None, block_size=64, compute_dtype="float32", init_std=0.01):
        super().__init__()
        self.in_features, self.out_features, self.rank = linear.in_features, linear.out_features, rank
        self.alpha, self.compute_dtype = float(rank if alpha is None else alpha), compute_dtype
        q = quantize_nf4(linear.weight, block_size, packed=True)
        self.register_buffer("indices", q.pop("indices"))
        self.register_buffer("scales", q.pop("scales"))
        self.layout = tuple(sorted(q.items()))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        adapter = init_lora_adapter(linear.weight, rank, init_std)
        self.lora_A, self.lora_B = Parameter(adapter["A"]), Parameter(adapter["B"])

    def adapter(self):
        return {"A": self.lora_A, "B": self.lora_B}

    def quantized(self):
        return {**dict(self.layout), "indices": self.indices, "scales": self.scales}

    def forward(self, x):
        return qlora_linear(x, self.quantized(), self.adapter(), alpha=self.alpha, compute_dtype=self.compute_dtype, bias=self.bias)

    def merge(self):
        raise ValueError(
            "QLoRALinear: an adapter cannot be put into a weight of 4 bits without loss; merge_lora_weight(dequantize_nf4(layer.quantized()), layer.adapter(), layer.alpha) gives it in floats"
        )

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, alpha={self.alpha}, nf4"


def add_lora(model, rank, alpha=None, targets=None, *, quantize=False, **options):
    """Replaces the Linear layers of a model (targets: a test of their dotted names, or parts of names) by
    LoRALinear, or QLoRALinear with quantize; everything else is frozen. Gives the model."""
    wanted = (
        targets
        if callable(targets)
        else (lambda name: True)
        if targets is None
        else (lambda name: any(t in name for t in ([targets] if isinstance(targets, str) else targets)))
    )
    model.requires_grad_(False)
    count, cls = 0, QLoRALinear if quantize else LoRALinear
    for prefix, parent in list(model.named_modules()):
        for name, child in list(parent.__dict__.items()):
            full = f"{prefix}.{name}" if prefix else name
            if isinstance(child, Linear) and wanted(full):
                object.__setattr__(parent, name, cls(child, rank, alpha, **options))
                count += 1
    if not count:
        raise ValueError(f"add_lora: no Linear layer of {type(model).__name__} has a name that targets={targets!r} wants")
    return model


def _adapters(model):
    return [(n, m) for n, m in model.named_modules() if isinstance(m, (LoRALinear, QLoRALinear))]


def lora_parameters(model):
    """The parameters of the adapters of a model."""
    return [t for _, m in _adapters(model) for t in (m.lora_A, m.lora_B)]


def merge_lora(model):
    """merge() of every LoRALinear. Gives the model."""
    for _, m in _adapters(model):
        m.merge()
    return model


def unmerge_lora(model):
    """unmerge() of every LoRALinear. Gives the model."""
    for _, m in _adapters(model):
        m.unmerge()
    return model


def lora_state_dict(model):
    """The adapters alone, {layer: {"A", "B"}}: what save_finetune_checkpoint saves."""
    return {name: {k: v.detach() for k, v in m.adapter().items()} for name, m in _adapters(model)}


def load_lora_state_dict(model, adapters):
    """Adapters that lora_state_dict gave, into a model with adapters in the same places. Where they do not
    fit nothing is changed."""
    from .module import _assign

    mine = dict(_adapters(model))
    missing, extra = sorted(set(mine) - set(adapters)), sorted(set(adapters) - set(mine))
    wrong = [
        f"{n}.{k}: {tuple(adapters[n][k].shape)} given, {tuple(t.shape)} wanted"
        for n in mine if n in adapters for k, t in mine[n].adapter().items() if tuple(adapters[n][k].shape) != tuple(t.shape)
    ]  # fmt: skip
    problems = [f"{what}: {', '.join(names)}" for what, names in (("missing", missing), ("not known", extra), ("of another shape", wrong)) if names]
    if problems:
        raise ValueError("load_lora_state_dict: nothing was changed; " + "; ".join(problems))
    for name, m in mine.items():
        for k, t in m.adapter().items():
            _assign(t, tensor(adapters[name][k]))


# ---- checkpoints ----
def save_finetune_checkpoint(path, *, lora_params, optimizer_state=None, metadata=None):
    """Writes adapters (any tree of tensors), an optimiser's state and metadata (numbers, texts, lists, dicts)
    to one file."""
    parts = {
        "lora": tree_flatten(lora_params)[0],
        "optimizer": None if optimizer_state is None else tree_flatten(optimizer_state)[0],
        "metadata": metadata,
    }
    save_state(path, {"kind": "finetune", **parts})


def _into(what, leaves, template):
    wanted, treedef = tree_flatten(template)
    if len(leaves) != len(wanted):
        raise ValueError(f"load_finetune_checkpoint: the {what} were saved with {len(leaves)} leaves, and the template has {len(wanted)}")
    for i, (x, t) in enumerate(zip(leaves, wanted)):
        if isinstance(t, EagerTensor) and tuple(getattr(x, "shape", ())) != tuple(t.shape):
            raise ValueError(
                f"load_finetune_checkpoint: the {what}{treedef.path(i)} were saved as {tuple(getattr(x, 'shape', ()))}, and the template has {tuple(t.shape)}"
            )
    return tree_unflatten(treedef, leaves)


def load_finetune_checkpoint(path, *, lora_template, optimizer_template=None):
    """(adapters, optimiser's state or None, metadata) of a file that save_finetune_checkpoint wrote, in the
    structure of the templates."""
    state = load_state(path)
    if not isinstance(state, dict) or state.get("kind") != "finetune":
        raise ValueError(f"load_finetune_checkpoint: {path} is no checkpoint of save_finetune_checkpoint")
    params = _into("adapters", state["lora"], lora_template)
    if optimizer_template is None:
        return params, None, state["metadata"]
    if state["optimizer"] is None:
        raise ValueError(f"load_finetune_checkpoint: {path} was saved without an optimiser's state")
    return params, _into("optimiser's state", state["optimizer"], optimizer_template), state["metadata"]
