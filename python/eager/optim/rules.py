"""The algorithms. For each: `<name>_init(params)`, `<name>_update(params, grads, state, *, lr, ...)` over
trees, `<name>_step(param, grad, ...)` for one tensor. All are pure.

lr is a number, a tensor, or a schedule: a function of the number of the step. Tensors of trees are updated
together: one program, whose element-wise parts run as few launches.
"""

import math

from eas._eas import tensor_ops as _ops

from .._autograd import no_grad
from .trees import Tree, as_step, realize_trees, state_dtype, step_zero, zeros_like

__all__ = [
    f"{name}_{part}" for name in ("sgd", "adam", "adamw", "lion", "rmsprop", "adagrad", "adafactor", "lamb", "muon") for part in ("init", "step", "update")
]  # fmt: skip


def rate(lr, step):
    """The value of a schedule at this step; schedules count steps from 0."""
    return lr(step - 1) if callable(lr) else lr


def _wide(p, g):
    """(parameter, gradient) in the dtype in which the update is computed."""
    dtype = state_dtype(p)
    return p.astype(dtype), g.astype(dtype)


def _correction(beta, step):
    """1 - beta^step, exact where beta is near 1."""
    return -_ops["expm1"](step.astype("float32") * math.log(beta)) if 0 < beta < 1 else 1.0


def _check(name, **values):
    for what, v in values.items():
        if isinstance(v, (int, float)) and (v < 0 or v != v):
            raise ValueError(f"{name}: {what} must not be negative, got {v}")


def _betas(name, *betas):
    for b in betas:
        if not 0 <= b < 1:
            raise ValueError(f"{name}: a beta is in [0, 1), got {b}")


class _Update:
    """The frame of every update: checks the trees, counts the step, calls one() for each trained leaf, and
    evaluates the result unless told otherwise."""

    def __init__(self, name, params, grads, state, slots):
        self.tree = Tree(name, params)
        self.grads = self.tree.match("gradients", grads)
        missing = [s for s in (*slots, "step") if s not in state] if isinstance(state, dict) else slots
        if not isinstance(state, dict) or missing:
            raise ValueError(f"{name}: the state is what {name.replace('_update', '_init')} gave, a dict with {', '.join((*slots, 'step'))}")
        self.slots = slots
        self.state = [self.tree.match(f'state "{s}"', state[s], shapes=False) for s in slots]
        for s, leaves in zip(slots, self.state):
            for p, x, trained in zip(self.tree.leaves, leaves, self.tree.trained):
                if trained and s in ("m", "v", "momentum_buffers", "square_avg", "sum") and tuple(x.shape) not in ((), tuple(p.shape)):
                    raise ValueError(
                        f'{name}: the state "{s}" has {tuple(x.shape)} where a parameter is {tuple(p.shape)}: it belongs to another tree'
                    )
        self.step = as_step(state["step"]) + 1

    def run(self, one, realize):
        new, kept = [], [[] for _ in self.slots]
        with no_grad():
            for i, (p, g, trained) in enumerate(zip(self.tree.leaves, self.grads, self.tree.trained)):
                old = [s[i] for s in self.state]
                made = one(p, g, *old) if trained else (p, *old)
                new.append(made[0])
                for into, x in zip(kept, made[1:]):
                    into.append(x)
        params = self.tree.build(new)
        state = {s: self.tree.build(k) for s, k in zip(self.slots, kept)}
        state["step"] = self.step
        if realize or realize is None:
            realize_trees(params, state)
        return params, state


def _init(name, params, slots):
    with no_grad():
        tree = Tree(name, params)
        state = {slot: tree.zeros(make) for slot, make in slots.items()}
        state["step"] = step_zero()
    return state


# ---- SGD ----
def sgd_init(params):
    """{"momentum_buffers", "step"}."""
    return _init("sgd_init", params, {"momentum_buffers": None})


def sgd_step(param, grad, momentum_buffer=None, *, lr, weight_decay=0.0, momentum=0.0, nesterov=False, dampening=0.0):
    """(new parameter, new momentum buffer) of one tensor."""
    p, g = _wide(param, grad)
    if weight_decay:
        g = g + p * weight_decay
    if momentum:
        buffer = g if momentum_buffer is None else momentum_buffer * momentum + g * (1.0 - dampening)
        d = g + buffer * momentum if nesterov else buffer
    else:
        buffer, d = momentum_buffer, g
    return (p - d * lr).astype(param.dtype), buffer


def sgd_update(params, grads, state=None, *, lr, momentum=0.0, weight_decay=0.0, nesterov=False, dampening=0.0, realize=None):
    """(new parameters, new state): p - lr * d, where d is the gradient (and weight_decay * p), or a running
    sum of them that decays by momentum."""
    _check("sgd_update", momentum=momentum, weight_decay=weight_decay, lr=lr)
    if nesterov and (not momentum or dampening):
        raise ValueError("sgd_update: nesterov needs a momentum above 0 and no dampening")
    u = _Update("sgd_update", params, grads, sgd_init(params) if state is None else state, ("momentum_buffers",))
    r = rate(lr, u.step)

    def one(p, g, b):
        new, buffer = sgd_step(p, g, b, lr=r, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov, dampening=dampening)
        if dampening and momentum:  # the first buffer is the gradient itself, without dampening
            pp, gg = _wide(p, g)
            gg = gg + pp * weight_decay if weight_decay else gg
            buffer = _ops["where"](u.step == 1, gg, buffer)
            new = (pp - buffer * r).astype(p.dtype)
        return new, buffer

    return u.run(one, realize)


# ---- Adam ----
def adamw_init(params):
    """{"m", "v", "step"}."""
    return _init("adamw_init", params, {"m": None, "v": None})


def _moments(g, m, v, beta1, beta2):
    return m * beta1 + g * (1.0 - beta1), v * beta2 + g * g * (1.0 - beta2)


def _adam_direction(m, v, step, beta1, beta2, eps, bias_correction):
    if not bias_correction:
        return m / (_ops["sqrt"](v) + eps)
    c1, c2 = _correction(beta1, step), _correction(beta2, step)
    c1, c2 = (c if isinstance(c, float) else c.astype(m.dtype) for c in (c1, c2))
    root = c2**0.5 if isinstance(c2, float) else _ops["sqrt"](c2)
    return (m / c1) / (_ops["sqrt"](v) / root + eps)


def adamw_step(param, grad, m, v, step, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, bias_correction=True):
    """(new parameter, new m, new v) of one tensor; step is the number of this step, from 1."""
    p, g = _wide(param, grad)
    m, v = _moments(g, m, v, beta1, beta2)
    d = _adam_direction(m, v, as_step(step), beta1, beta2, eps, bias_correction)
    if weight_decay:
        p = p * (1.0 - lr * weight_decay)
    return (p - d * lr).astype(param.dtype), m, v


def adamw_update(params, grads, state, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, bias_correction=True, realize=None):
    """(new parameters, new state): Adam with weight decay that is apart from the gradient. realize: whether
    the result is evaluated at once (None: unless this is inside a transform)."""
    _check("adamw_update", lr=lr, eps=eps, weight_decay=weight_decay)
    _betas("adamw_update", beta1, beta2)
    u = _Update("adamw_update", params, grads, state, ("m", "v"))
    r = rate(lr, u.step)

    def one(p, g, m, v):
        return adamw_step(p, g, m, v, u.step, lr=r, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, bias_correction=bias_correction)

    return u.run(one, realize)


def adam_init(params):
    """{"m", "v", "step"}."""
    return _init("adam_init", params, {"m": None, "v": None})


def adam_step(param, grad, m, v, step, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, bias_correction=True):
    """(new parameter, new m, new v) of one tensor; weight decay is added to the gradient."""
    if weight_decay:
        grad = grad + param * weight_decay
    return adamw_step(param, grad, m, v, step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, bias_correction=bias_correction)


def adam_update(params, grads, state, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, bias_correction=True, realize=None):
    """(new parameters, new state)."""
    _check("adam_update", lr=lr, eps=eps, weight_decay=weight_decay)
    _betas("adam_update", beta1, beta2)
    u = _Update("adam_update", params, grads, state, ("m", "v"))
    r = rate(lr, u.step)

    def one(p, g, m, v):
        return adam_step(p, g, m, v, u.step, lr=r, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, bias_correction=bias_correction)

    return u.run(one, realize)


# ---- Lion ----
def lion_init(params):
    """{"m", "step"}."""
    return _init("lion_init", params, {"m": None})


def lion_step(param, grad, m, *, lr, beta1=0.9, beta2=0.99, weight_decay=0.0):
    """(new parameter, new m) of one tensor: the sign of an average of gradients."""
    p, g = _wide(param, grad)
    d = _ops["sign"](m * beta1 + g * (1.0 - beta1))
    if weight_decay:
        d = d + p * weight_decay
    return (p - d * lr).astype(param.dtype), m * beta2 + g * (1.0 - beta2)


def lion_update(params, grads, state, *, lr, beta1=0.9, beta2=0.99, weight_decay=0.0, realize=None):
    """(new parameters, new state)."""
    _check("lion_update", lr=lr, weight_decay=weight_decay)
    _betas("lion_update", beta1, beta2)
    u = _Update("lion_update", params, grads, state, ("m",))
    r = rate(lr, u.step)
    return u.run(lambda p, g, m: lion_step(p, g, m, lr=r, beta1=beta1, beta2=beta2, weight_decay=weight_decay), realize)


# ---- RMSprop ----
def rmsprop_init(params):
    """{"square_avg", "grad_avg", "momentum_buffers", "step"}."""
    return _init("rmsprop_init", params, {"square_avg": None, "grad_avg": None, "momentum_buffers": None})


def rmsprop_step(
    param, grad, square_avg, grad_avg=None, momentum_buffer=None, *, lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False
):
    """(new parameter, square average, gradient average, momentum buffer) of one tensor."""
    p, g = _wide(param, grad)
    if weight_decay:
        g = g + p * weight_decay
    square_avg = square_avg * alpha + g * g * (1.0 - alpha)
    var = square_avg
    if centered:
        grad_avg = grad_avg * alpha + g * (1.0 - alpha)
        var = _ops["maximum"](square_avg - grad_avg * grad_avg, 0.0)
    d = g / (_ops["sqrt"](var) + eps)
    if momentum:
        momentum_buffer = momentum_buffer * momentum + d
        d = momentum_buffer
    return (p - d * lr).astype(param.dtype), square_avg, grad_avg, momentum_buffer


def rmsprop_update(params, grads, state, *, lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False, realize=None):
    """(new parameters, new state)."""
    _check("rmsprop_update", lr=lr, eps=eps, weight_decay=weight_decay, momentum=momentum)
    u = _Update("rmsprop_update", params, grads, state, ("square_avg", "grad_avg", "momentum_buffers"))
    r = rate(lr, u.step)

    def one(p, g, s, a, b):
        return rmsprop_step(p, g, s, a, b, lr=r, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered)

    return u.run(one, realize)


# ---- Adagrad ----
def adagrad_init(params, initial_accumulator_value=0.0):
    """{"sum", "step"}."""
    return _init("adagrad_init", params, {"sum": lambda p: zeros_like(p) + initial_accumulator_value})


def adagrad_step(param, grad, sum, step, *, lr, lr_decay=0.0, eps=1e-10, weight_decay=0.0):
    """(new parameter, new sum of squares) of one tensor."""
    p, g = _wide(param, grad)
    if weight_decay:
        g = g + p * weight_decay
    sum = sum + g * g
    if lr_decay:
        lr = lr / ((as_step(step) - 1).astype(p.dtype) * lr_decay + 1.0)
    return (p - g / (_ops["sqrt"](sum) + eps) * lr).astype(param.dtype), sum


def adagrad_update(params, grads, state, *, lr, lr_decay=0.0, eps=1e-10, weight_decay=0.0, realize=None):
    """(new parameters, new state)."""
    _check("adagrad_update", lr=lr, eps=eps, weight_decay=weight_decay, lr_decay=lr_decay)
    u = _Update("adagrad_update", params, grads, state, ("sum",))
    r = rate(lr, u.step)
    return u.run(lambda p, g, s: adagrad_step(p, g, s, u.step, lr=r, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay), realize)


# ---- Adafactor ----
def _factored(p):
    return len(p.shape) > 1


def _zeros(shape, p):
    from ..ops.creation import zeros

    return zeros(shape, dtype=state_dtype(p))


def adafactor_init(params):
    """{"rows", "columns", "v", "step"}: for matrices only the means of squares of rows and of columns are
    kept."""
    rows = lambda p: _zeros((*p.shape[:-1], 1), p) if _factored(p) else _zeros((), p)  # noqa: E731
    columns = lambda p: _zeros((*p.shape[:-2], 1, p.shape[-1]), p) if _factored(p) else _zeros((), p)  # noqa: E731
    return _init("adafactor_init", params, {"rows": rows, "columns": columns, "variance": lambda p: _zeros((), p) if _factored(p) else zeros_like(p)})


def _rms(x):
    return _ops["sqrt"]((x * x).mean())


def adafactor_step(param, grad, rows, columns, variance, step, *, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0):
    """(new parameter, rows, columns, variance) of one tensor. Second moments of a matrix are the product of
    those of its rows and columns; the rate is relative to the size of the parameter."""
    p, g = _wide(param, grad)
    eps1 = (2.0**-52 if p.dtype.itemsize == 8 else 2.0**-23) if eps[0] is None else eps[0]
    at = as_step(step).astype(p.dtype)
    share = at**beta2_decay
    alpha = _ops["maximum"](_rms(p), eps[1]) * _ops["minimum"](lr, _ops["rsqrt"](at))
    if weight_decay:
        p = p * (1.0 - lr * weight_decay)
    square = g * g
    if _factored(param):
        rows = rows + (square.mean(axis=-1, keepdims=True) - rows) * share
        columns = columns + (square.mean(axis=-2, keepdims=True) - columns) * share
        estimate = rows * columns / _ops["maximum"](rows.mean(axis=-2, keepdims=True), eps1)
    else:
        variance = estimate = variance + (square - variance) * share
    update = g * _ops["rsqrt"](_ops["maximum"](estimate, eps1 * eps1))
    return (p - update * (alpha / _ops["maximum"](_rms(update) / d, 1.0))).astype(param.dtype), rows, columns, variance


def adafactor_update(params, grads, state, *, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, realize=None):
    """(new parameters, new state)."""
    _check("adafactor_update", lr=lr, weight_decay=weight_decay)
    u = _Update("adafactor_update", params, grads, state, ("rows", "columns", "variance"))
    r = rate(lr, u.step)
    return u.run(
        lambda p, g, a, b, c: adafactor_step(p, g, a, b, c, u.step, lr=r, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay), realize
    )


# ---- LAMB ----
def lamb_init(params):
    """{"m", "v", "step"}."""
    return _init("lamb_init", params, {"m": None, "v": None})


def _norm(x):
    return _ops["sqrt"]((x * x).sum())


def lamb_step(param, grad, m, v, step, *, lr, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0):
    """(new parameter, new m, new v) of one tensor: Adam's direction, as long as the parameter is."""
    p, g = _wide(param, grad)
    m, v = _moments(g, m, v, beta1, beta2)
    d = _adam_direction(m, v, as_step(step), beta1, beta2, eps, True)
    if weight_decay:
        d = d + p * weight_decay
    a, b = _norm(p), _norm(d)
    ratio = _ops["where"]((a > 0) & (b > 0), a / _ops["where"](b > 0, b, 1.0), 1.0)
    return (p - d * (ratio * lr)).astype(param.dtype), m, v


def lamb_update(params, grads, state, *, lr, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, realize=None):
    """(new parameters, new state)."""
    _check("lamb_update", lr=lr, eps=eps, weight_decay=weight_decay)
    _betas("lamb_update", beta1, beta2)
    u = _Update("lamb_update", params, grads, state, ("m", "v"))
    r = rate(lr, u.step)
    return u.run(lambda p, g, m, v: lamb_step(p, g, m, v, u.step, lr=r, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay), realize)


# ---- Muon ----
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def muon_init(params):
    """{"m", "v", "step"}: m is the momentum; v is used where a parameter is no matrix, for AdamW."""
    return _init("muon_init", params, {"m": None, "v": lambda p: _zeros((), p) if len(p.shape) >= 2 else zeros_like(p)})


def orthogonalized(x, steps=5, coefficients=_NEWTON_SCHULZ, eps=1e-7):
    """Near to the U V^T of the singular value decomposition: steps of an odd polynomial that pulls all
    singular values towards 1."""
    a, b, c = coefficients
    tall = int(x.shape[0]) > int(x.shape[1])
    x = _ops["matrix_transpose"](x) if tall else x
    x = x / _ops["maximum"](_norm(x), eps)
    for _ in range(steps):
        gram = x @ _ops["matrix_transpose"](x)
        x = x * a + (gram * b + (gram @ gram) * c) @ x
    return _ops["matrix_transpose"](x) if tall else x


def muon_step(
    param, grad, m, *, lr, momentum=0.95, nesterov=True, weight_decay=0.0, ns_steps=5, ns_coefficients=_NEWTON_SCHULZ, eps=1e-7, adjust_lr="original"
):
    """(new parameter, new momentum) of one matrix (in, out), or of a filter (..., in, out) as one. adjust_lr:
    "original" (sqrt(max(1, out / in))), "match_rms_adamw" or None."""
    if len(param.shape) < 2:
        raise ValueError(f"muon_step: a matrix is wanted, got {tuple(param.shape)}; muon_update takes AdamW for what is none")
    p, g = _wide(param, grad)
    m = m * momentum + g * (1.0 - momentum)
    d = g * (1.0 - momentum) + m * momentum if nesterov else m
    rows, cols = math.prod(int(n) for n in p.shape[:-1]), int(p.shape[-1])
    d = orthogonalized(d.reshape((rows, cols)), ns_steps, ns_coefficients, eps).reshape(p.shape)
    scales = {"original": math.sqrt(max(1.0, cols / rows)), "match_rms_adamw": 0.2 * math.sqrt(max(rows, cols)), None: 1.0}
    if adjust_lr not in scales:
        raise ValueError(f'muon_step: adjust_lr is "original", "match_rms_adamw" or None, got {adjust_lr!r}')
    if weight_decay:
        p = p * (1.0 - lr * weight_decay)
    return (p - d * (lr * scales[adjust_lr])).astype(param.dtype), m


def muon_update(
    params,
    grads,
    state,
    *,
    lr,
    momentum=0.95,
    nesterov=True,
    weight_decay=0.0,
    ns_steps=5,
    ns_coefficients=_NEWTON_SCHULZ,
    eps=1e-7,
    adjust_lr="original",
    adamw_lr=None,
    beta1=0.9,
    beta2=0.95,
    adamw_eps=1e-8,
    realize=None,
):
    """(new parameters, new state): matrices by Muon, everything else by AdamW with adamw_lr (lr unless
    given)."""
    _check("muon_update", lr=lr, weight_decay=weight_decay, momentum=momentum)
    u = _Update("muon_update", params, grads, state, ("m", "v"))
    r = rate(lr, u.step)
    other = r if adamw_lr is None else rate(adamw_lr, u.step)

    def one(p, g, m, v):
        if len(p.shape) < 2:
            return adamw_step(p, g, m, v, u.step, lr=other, beta1=beta1, beta2=beta2, eps=adamw_eps, weight_decay=weight_decay)
        new, m = muon_step(
            p,
            g,
            m,
            lr=r,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
            eps=eps,
            adjust_lr=adjust_lr,
        )
        return new, m, v

    return u.run(one, realize)
