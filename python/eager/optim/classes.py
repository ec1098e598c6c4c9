"""Optimisers torch's way: they hold parameters and state, and step() updates the parameters in place."""

from collections import OrderedDict

from eas._eas import EagerTensor, constant, realize_all, tree_flatten

from .._autograd import no_grad, take_kept
from ..core.tensor import rebind
from ..transforms.compile import compile
from . import rules
from .trees import is_symbolic, outermost, step_zero

__all__ = ["Adafactor", "Adagrad", "Adam", "AdamW", "LAMB", "Lion", "LRScheduler", "Muon", "Optimizer", "RMSprop", "SGD"]


def _tensors(params):
    """(tensors, tree or None): of a module, a tensor, an iterable of tensors, or any tree of them."""
    if hasattr(params, "parameters"):
        return list(params.parameters()), None
    if isinstance(params, EagerTensor):
        return [params], None
    if not isinstance(params, (dict, list, tuple)):
        params = list(params)
    leaves, treedef = tree_flatten(params)
    for i, t in enumerate(leaves):
        if not isinstance(t, EagerTensor):
            raise TypeError(f"an optimiser takes tensors; at {treedef.path(i)} there is {type(t).__name__}")
    return leaves, treedef


class Optimizer:
    """Base of the optimisers. params: a module, tensors, a tree of tensors, or a list of groups, dicts with
    "params" and options of their own. lr: a number, or a schedule (a function of the step)."""

    _holds_tensors_ = True
    _policy = {"auto_realize_updated_params": True, "auto_realize_updated_state": True}
    _slots = ()
    _init = _update = None

    def __init__(self, params, **options):
        self._check(options)
        groups = (
            params
            if isinstance(params, (list, tuple)) and params and all(isinstance(g, dict) and "params" in g for g in params)
            else [{"params": params}]
        )
        self.param_groups, self.defaults, self._programs = [], dict(options), {}
        self._tree = None
        for g in groups:
            self.add_param_group(g)
        if not any(g["params"] for g in self.param_groups):
            raise ValueError(f"{type(self).__name__}: there are no parameters to optimise")
        if len(self.param_groups) == 1:
            self._tree = self.param_groups[0].pop("_tree")

    def _check(self, options):
        lr = options.get("lr")
        if not callable(lr) and not isinstance(lr, EagerTensor) and (isinstance(lr, bool) or not isinstance(lr, (int, float)) or not lr >= 0):
            raise ValueError(f"{type(self).__name__}: lr is a number that is not negative, or a schedule, got {lr!r}")
        betas = options.get("betas", (0.9, 0.9))
        if not isinstance(betas, (tuple, list)) or len(betas) != 2 or any(not 0 <= b < 1 for b in betas):
            raise ValueError(f"{type(self).__name__}: betas are two numbers in [0, 1), got {betas!r}")
        for what in ("momentum", "weight_decay", "eps", "alpha"):
            if isinstance(options.get(what), (int, float)) and options[what] < 0:
                raise ValueError(f"{type(self).__name__}: {what} must not be negative, got {options[what]}")

    def add_param_group(self, group):
        """More parameters, with options of their own."""
        unknown = set(group) - {"params"} - set(self.defaults)
        if unknown:
            raise ValueError(f"{type(self).__name__}: a group has options {', '.join(sorted(self.defaults))}, and not {', '.join(sorted(unknown))}")
        tensors, tree = _tensors(group["params"])
        mine = {id(t) for g in self.param_groups for t in g["params"]}
        for t in tensors:
            if id(t) in mine:
                raise ValueError(f"{type(self).__name__}: a parameter of shape {tuple(t.shape)} is there twice")
            mine.add(id(t))
            if t.dtype.kind != "f":
                raise TypeError(f"{type(self).__name__}: parameters are floats, got {t.dtype} of shape {tuple(t.shape)}")
        options = {**self.defaults, **{k: v for k, v in group.items() if k != "params"}}
        self._check(options)
        state = type(self)._init(tensors)
        made = {"params": tensors, **options, "state": {s: list(state[s]) for s in self._slots}, "steps": [step_zero()] * len(tensors), "_tree": tree}
        if self._tree is not None or self.param_groups:
            made.pop("_tree")
            self._tree = None
        self.param_groups.append(made)

    def parameters(self):
        """All parameters."""
        return [t for g in self.param_groups for t in g["params"]]

    @property
    def lr(self):
        """The first group's rate. Setting it sets all."""
        return self.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value):
        for g in self.param_groups:
            g["lr"] = value

    @property
    def step_count(self):
        """How many steps the first parameter has had."""
        return int(self.param_groups[0]["steps"][0].item())

    @classmethod
    def set_execution_policy(cls, *, auto_realize_updated_params=None, auto_realize_updated_state=None):
        """Whether step() evaluates the new parameters, and the new state. None: as it is."""
        given = {"auto_realize_updated_params": auto_realize_updated_params, "auto_realize_updated_state": auto_realize_updated_state}
        for name, value in given.items():
            if value is not None:
                if not isinstance(value, bool):
                    raise TypeError(f"set_execution_policy: {name} is True, False or None, got {value!r}")
                Optimizer._policy[name] = value

    @classmethod
    def get_execution_policy(cls):
        """The policy, as a dict."""
        return dict(Optimizer._policy)

    def zero_grad(self, set_to_none=True):
        """Forgets the gradients."""
        for t in self.parameters():
            t.grad = None if set_to_none or t.grad is None else t.grad * 0

    def _given(self, grads):
        leaves, treedef = tree_flatten(grads)
        if hasattr(grads, "parameters"):  # a module of gradients
            leaves = list(grads.parameters())
            treedef = None
        mine = self.parameters()
        same = len(leaves) == len(mine) and (treedef is None or self._tree is None or treedef == self._tree)
        if not same:
            raise ValueError(f"{type(self).__name__}: there are {len(mine)} parameters, and the gradients are another tree: {len(leaves)} leaves")
        for i, (g, p) in enumerate(zip(leaves, mine)):
            if not isinstance(g, EagerTensor) or tuple(g.shape) != tuple(p.shape):
                what = tuple(g.shape) if hasattr(g, "shape") else type(g).__name__
                raise ValueError(f"{type(self).__name__}: gradient {i} is {what}, and the parameter is {tuple(p.shape)}")
        return leaves

    def step(self, grads=None):
        """Updates the parameters in place: by their .grad, or by these gradients (a list, or a tree as the
        parameters). Gives the parameters."""
        every = [p.grad if p.requires_grad or p.grad is not None else None for p in self.parameters()] if grads is None else self._given(grads)
        if grads is None and all(g is None for g in every):
            raise RuntimeError(f"{type(self).__name__}.step: no parameter has a gradient; call loss.backward() before, or give step(grads)")
        new, at = [], 0
        for group in self.param_groups:
            n = len(group["params"])
            new += self._step_group(group, every[at : at + n])
            at += n
        for p, value, required in new:
            _put(p, value, required)
        self._realize()
        return self.parameters()

    def _step_group(self, group, grads):
        """Updates together the parameters that have had the same number of steps."""
        parts = {}
        for i, g in enumerate(grads):
            if g is not None:
                parts.setdefault(id(group["steps"][i]), []).append(i)
        options, out, required = self._options(group), [], [p.requires_grad for p in group["params"]]
        for part in parts.values():
            params = [group["params"][i] for i in part]
            state = {s: [group["state"][s][i] for i in part] for s in self._slots}
            state["step"] = group["steps"][part[0]]
            made, state = self._run(options, params, [grads[i] for i in part], state)
            out.append((part, made, state))
        pairs = []
        for part, made, state in out:
            for k, i in enumerate(part):
                pairs.append((group["params"][i], made[k], required[i]))
                group["steps"][i] = state["step"]
                for s in self._slots:
                    group["state"][s][i] = state[s][k]
        return pairs

    def _run(self, options, params, grads, state):
        """Runs the update as a program of its own that writes over parameters and state. Inside a larger
        program, or if nothing is to be evaluated, the update is only recorded."""
        every = [*params, *grads, *(t for s in self._slots for t in state[s]), state["step"]]
        if not all(self._policy.values()) or not outermost() or any(map(is_symbolic, every)):
            with no_grad():
                return type(self)._update([p.detach() for p in params], grads, state, realize=False, **options)
        late = [g for g in grads if not g.real] + take_kept()
        if late:
            realize_all(*late)
        lr, rest = options["lr"], {k: v for k, v in options.items() if k != "lr"}
        given = (
            ()
            if callable(lr)
            else (lr if isinstance(lr, EagerTensor) else constant(float(lr), "float64" if all(p.dtype.itemsize == 8 for p in params) else "float32"),)
        )
        with no_grad():
            return self._program(lr if callable(lr) else None, rest)(params, grads, {s: state[s] for s in self._slots}, state["step"], *given)

    def _program(self, schedule, options):
        key = (schedule, tuple(sorted(options.items(), key=lambda kv: kv[0])))
        if key not in self._programs:
            update = type(self)._update

            # other parameters may share the step, so its memory is not donated
            def run(params, grads, slots, step, lr=schedule):
                return update(params, grads, {**slots, "step": step}, lr=lr, realize=False, **options)

            self._programs[key] = compile(run, donate=(0, 2))
        return self._programs[key]

    def _options(self, group):
        options = {k: v for k, v in group.items() if k not in ("params", "state", "steps", "betas", "_tree")}
        if "betas" in group:
            options["beta1"], options["beta2"] = group["betas"]
        return options

    def _state_tensors(self):
        return [t for g in self.param_groups for t in (*[x for s in self._slots for x in g["state"][s]], *g["steps"])]

    def _realize(self):
        ts = (self.parameters() if self._policy["auto_realize_updated_params"] else []) + (
            self._state_tensors() if self._policy["auto_realize_updated_state"] else []
        )
        if ts and outermost() and not any(map(is_symbolic, ts)):
            realize_all(*ts, *take_kept())

    # ---- state ----
    def state_dict(self):
        """Options and state of all groups, by number: tensors, numbers and lists of them. A schedule is left
        out."""
        groups = []
        for g in self.param_groups:
            options = {k: v for k, v in g.items() if k not in ("params", "state", "steps", "_tree") and not callable(v)}
            state = {s: [t.detach() for t in g["state"][s]] for s in self._slots}
            groups.append({"options": options, "state": state, "steps": [t.detach() for t in g["steps"]]})
        return OrderedDict(name=type(self).__name__, groups=groups)

    def load_state_dict(self, state_dict):
        """The state that state_dict gave. Checked as a whole first: where it does not fit nothing is changed.
        """
        groups = state_dict.get("groups") if hasattr(state_dict, "get") else None
        if groups is None or state_dict.get("name") != type(self).__name__:
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: a state of {type(self).__name__} is wanted, got one of {getattr(state_dict, 'get', lambda _: type(state_dict).__name__)('name')}"
            )
        if len(groups) != len(self.param_groups):
            raise ValueError(f"{type(self).__name__}.load_state_dict: there are {len(self.param_groups)} groups, and the state has {len(groups)}")
        for k, (g, new) in enumerate(zip(self.param_groups, groups)):
            for s in self._slots:
                have = new["state"].get(s)
                if have is None or len(have) != len(g["params"]):
                    raise ValueError(
                        f'{type(self).__name__}.load_state_dict: group {k} has {len(g["params"])} parameters, and "{s}" has {0 if have is None else len(have)}'
                    )
                for i, (old, t) in enumerate(zip(g["state"][s], have)):
                    if tuple(old.shape) != tuple(t.shape):
                        raise ValueError(
                            f'{type(self).__name__}.load_state_dict: "{s}" of parameter {i} of group {k} is {tuple(t.shape)}, {tuple(old.shape)} is wanted'
                        )
        for g, new in zip(self.param_groups, groups):
            g.update({k: v for k, v in new["options"].items() if k in g})
            for s in self._slots:
                g["state"][s] = list(new["state"][s])
            g["steps"] = _shared(new["steps"])

    def __repr__(self):
        g = self.param_groups[0]
        options = ", ".join(f"{k}={v!r}" for k, v in g.items() if k not in ("params", "state", "steps", "_tree"))
        return f"{type(self).__name__}({len(self.parameters())} parameters, {options})"


def _shared(steps):
    """One tensor for equal steps, since parameters that share it are updated together."""
    numbers, made = [int(s.item()) if isinstance(s, EagerTensor) else int(s) for s in steps], {}
    return [made.setdefault(n, s) for n, s in zip(numbers, steps)]


def _put(p, value, required):
    grad = p.grad
    rebind(p, value)
    if required:
        p.requires_grad_()
    p.grad = grad


class SGD(Optimizer):
    """p - lr * d; d is the gradient, or a running sum that decays by momentum."""

    _slots, _init, _update = ("momentum_buffers",), staticmethod(rules.sgd_init), staticmethod(rules.sgd_update)

    def __init__(self, params, *, lr, momentum=0.0, weight_decay=0.0, nesterov=False, dampening=0.0):
        if nesterov and (not momentum or dampening):
            raise ValueError("SGD: nesterov needs a momentum above 0 and no dampening")
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, dampening=dampening)


class Adam(Optimizer):
    """Adam; weight decay is added to the gradient."""

    _slots, _init, _update = ("m", "v"), staticmethod(rules.adam_init), staticmethod(rules.adam_update)

    def __init__(self, params, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class AdamW(Optimizer):
    """Adam with weight decay that is apart from the gradient."""

    _slots, _init, _update = ("m", "v"), staticmethod(rules.adamw_init), staticmethod(rules.adamw_update)

    def __init__(self, params, *, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class Lion(Optimizer):
    """The sign of an average of gradients."""

    _slots, _init, _update = ("m",), staticmethod(rules.lion_init), staticmethod(rules.lion_update)

    def __init__(self, params, *, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay)


class RMSprop(Optimizer):
    """The gradient over a running root mean square of it."""

    _slots, _init, _update = ("square_avg", "grad_avg", "momentum_buffers"), staticmethod(rules.rmsprop_init), staticmethod(rules.rmsprop_update)

    def __init__(self, params, *, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
        super().__init__(params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered)


class Adagrad(Optimizer):
    """The gradient over the root of the sum of its squares so far."""

    _slots, _init, _update = ("sum",), staticmethod(rules.adagrad_init), staticmethod(rules.adagrad_update)

    def __init__(self, params, *, lr=1e-2, lr_decay=0.0, eps=1e-10, weight_decay=0.0):
        super().__init__(params, lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay)


class Adafactor(Optimizer):
    """Adam-like with little memory: of a matrix only the second moments of rows and columns are kept."""

    _slots, _init, _update = ("rows", "columns", "variance"), staticmethod(rules.adafactor_init), staticmethod(rules.adafactor_update)

    def __init__(self, params, *, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0):
        super().__init__(params, lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay)


class LAMB(Optimizer):
    """Adam's direction, as long as the parameter is: for large batches."""

    _slots, _init, _update = ("m", "v"), staticmethod(rules.lamb_init), staticmethod(rules.lamb_update)

    def __init__(self, params, *, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class Muon(Optimizer):
    """Momentum made orthogonal, for matrices; AdamW for everything else."""

    _slots, _init, _update = ("m", "v"), staticmethod(rules.muon_init), staticmethod(rules.muon_update)

    def __init__(
        self,
        params,
        *,
        lr,
        momentum=0.95,
        nesterov=True,
        weight_decay=0.0,
        ns_steps=5,
        adjust_lr="original",
        adamw_lr=None,
        betas=(0.9, 0.95),
        adamw_eps=1e-8,
    ):
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            ns_steps=ns_steps,
            adjust_lr=adjust_lr,
            adamw_lr=adamw_lr,
            betas=betas,
            adamw_eps=adamw_eps,
        )


class LRScheduler:
    """Sets the rate of an optimiser by a schedule: step() after each optimizer.step()."""

    def __init__(self, optimizer, schedule):
        self.optimizer, self.schedule, self.steps = optimizer, schedule, 0
        optimizer.lr = schedule(0)

    def step(self):
        self.steps += 1
        self.optimizer.lr = self.schedule(self.steps)

    def get_last_lr(self):
        return self.optimizer.lr

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]
        self.optimizer.lr = self.schedule(self.steps)
