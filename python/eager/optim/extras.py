"""Around an optimiser: clipping, accumulation of gradients, averages of weights, loss scaling. Pure
functions, and classes for torch's way."""

import contextlib
import math

from eas._eas import EagerTensor, eager_full, realize_all, tree_flatten, tree_map, tree_unflatten
from eas._eas import tensor_ops as _ops

from .._autograd import no_grad
from ..core.tensor import rebind
from .trees import Tree, is_symbolic, outermost, step_zero

__all__ = [
    "EMA", "GradScaler", "accumulation_init", "accumulation_step", "clip_grad_norm", "clip_grad_norm_", "clip_grad_value", "clip_grad_value_", "ema_init", "ema_update",
    "global_norm", "loss_scale_init", "loss_scale_update", "select_tree", "unscale",
]  # fmt: skip


# ---- clipping ----
def _floats(tree):
    leaves, treedef = tree_flatten(tree)
    return leaves, treedef, [i for i, x in enumerate(leaves) if isinstance(x, EagerTensor) and x.dtype.kind == "f"]


def _sum_of_squares(ts):
    total = None
    for t in ts:
        t = t.astype("float32") if t.dtype.itemsize == 2 else t
        part = (t * t).sum()
        total = part if total is None else total + part.astype(total.dtype)
    return total


def _norm_of(ts, norm_type):
    if not ts:
        return eager_full((), 0.0, "float32")
    if norm_type == 2:
        return _ops["sqrt"](_sum_of_squares(ts))
    if norm_type == math.inf:
        most = None
        for t in ts:
            part = _ops["abs"](t).max().astype("float32")
            most = part if most is None else _ops["maximum"](most, part)
        return most
    if not norm_type > 0:
        raise ValueError(f"clip_grad_norm: norm_type is above 0, got {norm_type}")
    total = None
    for t in ts:
        part = (_ops["abs"](t) ** norm_type).sum()
        total = part if total is None else total + part
    return total ** (1.0 / norm_type)


def global_norm(tree, norm_type=2.0):
    """The norm of all floats of a tree, as one vector."""
    leaves, _, at = _floats(tree)
    return _norm_of([leaves[i] for i in at], norm_type)


def clip_grad_norm(grads, max_norm, norm_type=2.0):
    """(gradients, their norm before): scaled down so that their norm, as one vector, is not above max_norm.
    """
    leaves, treedef, at = _floats(grads)
    norm = _norm_of([leaves[i] for i in at], norm_type)
    scale = _ops["minimum"](max_norm / (norm + 1e-6), 1.0)
    for i in at:
        leaves[i] = (leaves[i] * scale).astype(leaves[i].dtype)
    return tree_unflatten(treedef, leaves), norm


def clip_grad_value(grads, clip_value):
    """Gradients with no element above clip_value or below -clip_value."""
    if not clip_value >= 0:
        raise ValueError(f"clip_grad_value: clip_value must not be negative, got {clip_value}")
    leaves, treedef, at = _floats(grads)
    for i in at:
        leaves[i] = _ops["clip"](leaves[i], -clip_value, clip_value)
    return tree_unflatten(treedef, leaves)


def _with_grads(params):
    if hasattr(params, "parameters"):
        params = params.parameters()
    params = [params] if isinstance(params, EagerTensor) else list(params)
    return [p for p in params if p.grad is not None]


def clip_grad_norm_(params, max_norm, norm_type=2.0):
    """clip_grad_norm of the .grad of parameters (or of a module), in place. Gives the norm before."""
    ps = _with_grads(params)
    with no_grad():
        new, norm = clip_grad_norm([p.grad for p in ps], max_norm, norm_type)
    for p, g in zip(ps, new):
        p.grad = g
    return norm


def clip_grad_value_(params, clip_value):
    """clip_grad_value of the .grad of parameters (or of a module), in place."""
    ps = _with_grads(params)
    with no_grad():
        new = clip_grad_value([p.grad for p in ps], clip_value)
    for p, g in zip(ps, new):
        p.grad = g


# ---- accumulation ----
def select_tree(condition, yes, no):
    """The leaves of one tree or of the other, by a tensor of truth."""
    return tree_map(lambda a, b: _ops["where"](condition, a, b), yes, no)


def accumulation_init(params):
    """State of accumulation_step: {"grads", "count"}."""
    return {"grads": Tree("accumulation_init", params).zeros(), "count": step_zero()}


def accumulation_step(state, grads, every):
    """(state, mean of the gradients so far, is it time to update): True at every `every`-th call, when the
    state begins anew. Updates that are not due are dropped by select_tree."""
    if every < 1:
        raise ValueError(f"accumulation_step: every must be at least 1, got {every}")
    with no_grad():
        tree = Tree("accumulation_step", state["grads"])
        new = tree.match("gradients", grads, shapes=False)
        count = state["count"] + 1
        total = [a + g.astype(a.dtype) if tuple(a.shape) == tuple(g.shape) else a for a, g in zip(tree.leaves, new)]
        due = count >= every
        mean = [t / every if tuple(t.shape) == tuple(g.shape) else g for t, g in zip(total, new)]
        kept = [_ops["where"](due, 0.0, t) for t in total]
    return {"grads": tree.build(kept), "count": _ops["where"](due, 0, count)}, tree.build(mean), due


# ---- averages of weights ----
def ema_init(params):
    """The average begins as the parameters themselves."""
    return tree_map(lambda p: p.detach(), params)


def ema_update(average, params, decay=0.999, step=None):
    """average * decay + params * (1 - decay). With a step (from 1) the decay is at most (1 + step) / (10 +
    step), so that early weights do not stay."""
    if not 0 <= decay <= 1:
        raise ValueError(f"ema_update: decay is in [0, 1], got {decay}")
    if step is not None:
        t = step.astype("float32") if isinstance(step, EagerTensor) else float(step)
        low = (t + 1.0) / (t + 10.0)
        decay = _ops["minimum"](low, decay) if isinstance(step, EagerTensor) else min(low, decay)
    with no_grad():
        return tree_map(lambda a, p: a + (p - a) * (1.0 - decay) if p.dtype.kind == "f" else p, average, params)


class EMA:
    """An average of a model's parameters and buffers: update() after each step; `with ema.average():` the
    model has the averaged weights inside."""

    _holds_tensors_ = True

    def __init__(self, model, decay=0.999, warmup=False):
        if not 0 <= decay <= 1:
            raise ValueError(f"EMA: decay is in [0, 1], got {decay}")
        self.model, self.decay, self.warmup, self.steps = model, decay, warmup, 0
        self.tensors = [t.detach() for t in self._handles()]

    def _handles(self):
        return [*self.model.parameters(), *self.model.buffers()]

    def update(self):
        """Takes the model's weights of now into the average."""
        self.steps += 1
        now = [t.detach() for t in self._handles()]
        self.tensors = ema_update(self.tensors, now, self.decay, self.steps if self.warmup else None)
        if outermost() and not any(map(is_symbolic, self.tensors)):
            realize_all(*self.tensors)

    def apply_to(self, model):
        """Puts the average into a model of the same structure."""
        for t, value in zip([*model.parameters(), *model.buffers()], self.tensors):
            _set(t, value)

    @contextlib.contextmanager
    def average(self):
        before = [t.detach() for t in self._handles()]
        self.apply_to(self.model)
        try:
            yield self.model
        finally:
            for t, value in zip(self._handles(), before):
                _set(t, value)


def _set(t, value):
    requires = t.requires_grad
    rebind(t, value.detach())
    if requires:
        t.requires_grad_()


# ---- loss scaling ----
def loss_scale_init(scale=2.0**16):
    """State of loss scaling: {"scale", "good_steps"}. The loss is multiplied by state["scale"] before it is
    differentiated."""
    return {"scale": eager_full((), float(scale), "float32"), "good_steps": step_zero()}


def unscale(grads, state):
    """(gradients over the scale, in f32; are all of them finite)."""
    leaves, treedef, at = _floats(grads)
    inverse, finite = 1.0 / state["scale"], None
    with no_grad():
        for i in at:
            leaves[i] = leaves[i].astype("float32" if leaves[i].dtype.itemsize < 8 else "float64") * inverse
            ok = _ops["is_finite"](leaves[i]).all()
            finite = ok if finite is None else finite & ok
    return tree_unflatten(treedef, leaves), finite


def loss_scale_update(state, finite, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
    """The next state: the scale shrinks where gradients were not finite, and grows after growth_interval
    steps where they were."""
    good = _ops["where"](finite, state["good_steps"] + 1, 0)
    grow = good >= growth_interval
    scale = _ops["where"](finite, _ops["where"](grow, state["scale"] * growth_factor, state["scale"]), state["scale"] * backoff_factor)
    return {"scale": _ops["clip"](scale, 2.0**-14, 2.0**24), "good_steps": _ops["where"](grow, 0, good)}


class GradScaler:
    """Loss scaling torch's way: scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        self.state, self.enabled = loss_scale_init(init_scale), enabled
        self.factors = (growth_factor, backoff_factor, growth_interval)
        self._finite, self._unscaled = None, False

    def scale(self, loss):
        """The loss times the scale."""
        return loss * self.state["scale"].astype(loss.dtype) if self.enabled else loss

    def unscale_(self, optimizer):
        """The gradients over the scale, in place; step() does it if this was not called."""
        if not self.enabled or self._unscaled:
            return
        ps = [p for p in optimizer.parameters() if p.grad is not None]
        new, finite = unscale([p.grad for p in ps], self.state)
        for p, g in zip(ps, new):
            p.grad = g
        if ps:
            realize_all(finite, *new)
        self._finite, self._unscaled = bool(finite.item()) if ps else True, True

    def step(self, optimizer):
        """optimizer.step(), unless a gradient is not finite."""
        self.unscale_(optimizer)
        if not self.enabled or self._finite:
            return optimizer.step()

    def update(self):
        """The scale for the next step."""
        if self.enabled and self._finite is not None:
            self.state = loss_scale_update(self.state, eager_full((), self._finite, "bool"), *self.factors)
            realize_all(self.state["scale"], self.state["good_steps"])
        self._finite, self._unscaled = None, False

    def get_scale(self):
        """The scale as a number."""
        return self.state["scale"].item() if self.enabled else 1.0

    def state_dict(self):
        return {k: v.detach() for k, v in self.state.items()}

    def load_state_dict(self, state):
        self.state = {k: state[k] for k in ("scale", "good_steps")}
