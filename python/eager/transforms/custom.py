"""custom_vjp and custom_jvp: functions whose derivatives you write yourself."""

import functools
import inspect

from eas._eas import EagerTensor, diff_custom, tree_flatten, tree_unflatten

from ._diff import fitted, is_float, tensor, zeros_like

__all__ = ["custom_jvp", "custom_vjp"]


def call_with_rules(name, fn, args, make_vjp, make_jvp):
    """fn(*args), whose derivative with respect to the tensors of args is given by the rules.

    make_vjp(args, cotangents) gives a gradient for each argument; make_jvp(args, tangents) a tangent like the
    result. None: no such rule.
    """
    out, out_def = tree_flatten(fn(*args))
    return tree_unflatten(out_def, results_with_rules(name, args, [tensor(x) for x in out], out_def, make_vjp, make_jvp))


def results_with_rules(name, args, out, out_def, make_vjp, make_jvp):
    """call_with_rules for results that were computed already: a list of tensors."""
    leaves, treedef = tree_flatten(args)
    at = [i for i, x in enumerate(leaves) if isinstance(x, EagerTensor)]
    defs = [tree_flatten(a)[1] for a in args]

    def vjp(inputs, cotangents):
        cts = tree_unflatten(out_def, [zeros_like(o) if c is None else c for c, o in zip(cotangents, out)])
        return _gradients(name, make_vjp(_put(treedef, leaves, at, inputs), cts), defs, leaves, at)

    def jvp(inputs, tangents):
        ts = [zeros_like(x) if t is None else t for x, t in zip(inputs, tangents)]
        tangent = make_jvp(_put(treedef, leaves, at, inputs), _put(treedef, [None] * len(leaves), at, ts))
        if len(out) == 1 and isinstance(tangent, (tuple, list)) and len(tangent) == 1 and out_def.num_nodes == 1:
            tangent = tangent[0]
        if isinstance(tangent, tuple) and len(tangent) == len(out):  # None: zero
            tangent = tuple(zeros_like(o) if t is None else t for t, o in zip(tangent, out))
        given, found = tree_flatten(zeros_like(out[0]) if tangent is None else tangent)
        if found != out_def:
            raise TypeError(f"{name}: the jvp rule gives a tangent of {found}, and the function gives {out_def}")
        return [fitted(t, o, f"{name}: tangent {i} of the jvp rule") for i, (t, o) in enumerate(zip(given, out))]

    return diff_custom(out, [leaves[i] for i in at], vjp if make_vjp else None, jvp if make_jvp else None)


def _put(treedef, leaves, at, values):
    full = list(leaves)
    for i, x in zip(at, values):
        full[i] = x
    return tree_unflatten(treedef, full)


def _gradients(name, grads, defs, leaves, at):
    """The result of a vjp rule (a gradient for each argument; None: zero) as a list for the tensors."""
    if isinstance(grads, list):
        grads = tuple(grads)
    if not isinstance(grads, tuple):
        grads = (grads,)
    if len(grads) != len(defs):
        raise TypeError(f"{name}: the vjp rule gives {len(grads)} gradients for {len(defs)} arguments")
    flat = []
    for k, (g, d) in enumerate(zip(grads, defs)):
        if g is None:
            flat.extend([None] * d.num_leaves)
            continue
        mine, found = tree_flatten(g)
        if found != d:
            raise TypeError(f"{name}: the vjp rule gives {found} for argument {k}, which is {d}")
        flat.extend(mine)
    out = []
    for i in at:
        x, g = leaves[i], flat[i]
        out.append(fitted(g, x, f"{name}: gradient {i} of the vjp rule") if g is not None and is_float(x) else None)
    return out


class _Custom:
    def __init__(self, fn, nondiff_argnums=()):
        self.fn = fn
        self.nondiff = tuple(nondiff_argnums)
        functools.update_wrapper(self, fn)

    def __get__(self, obj, owner=None):
        return self if obj is None else functools.partial(self, obj)

    def _arguments(self, args, kwargs):
        """(static, others, put): positional arguments apart; put(others) gives all of them."""
        if kwargs:
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        n = len(args)
        static = sorted(k % n for k in self.nondiff) if n else []
        rest = [k for k in range(n) if k not in static]

        def put(others):
            full = list(args)
            for k, x in zip(rest, others):
                full[k] = x
            return full

        return tuple(args[k] for k in static), tuple(args[k] for k in rest), put


class custom_vjp(_Custom):
    """A function with a reverse derivative of your own:

    @custom_vjp
    def f(x, y): ...

    f.defvjp(forward, backward)

    forward(x, y) gives (result, residuals); backward(residuals, cotangent) gives a tuple with the gradient of
    each argument (None: zero). Arguments nondiff_argnums are handed to forward as they are and to backward in
    front of the residuals.
    """

    _forward = _backward = None

    def defvjp(self, forward, backward):
        self._forward, self._backward = forward, backward
        return backward

    def __call__(self, *args, **kwargs):
        name = getattr(self.fn, "__name__", "custom_vjp")
        if self._forward is None:
            raise AttributeError(f"custom_vjp: {name} has no rule yet; call {name}.defvjp(forward, backward)")
        static, others, put = self._arguments(args, kwargs)

        def make_vjp(inputs, cotangent):
            result = self._forward(*put(inputs))
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise TypeError(f"custom_vjp: forward of {name} gives (result, residuals), got {type(result).__name__}")
            return self._backward(*static, result[1], cotangent)

        return call_with_rules(name, lambda *a: self.fn(*put(a)), others, make_vjp, None)


class custom_jvp(_Custom):
    """A function with a forward derivative of your own:

    @custom_jvp
    def f(x, y): ...

    @f.defjvp
    def f_jvp(primals, tangents): ...      # gives (result, tangent of the result)

    The tangent must be linear in the tangents; reverse mode transposes it. f.defjvps(dx, dy) takes one
    function (tangent, result, *primals) for each argument instead.
    """

    _rule = None

    def defjvp(self, rule):
        self._rule = rule
        return rule

    def defjvps(self, *rules):
        def rule(primals, tangents):
            out = self.fn(*primals)
            total = None
            for r, t in zip(rules, tangents):
                if r is None:
                    continue
                part = r(t, out, *primals)
                total = part if total is None else total + part
            return out, zeros_like(out) if total is None else total

        self._rule = rule

    def __call__(self, *args, **kwargs):
        name = getattr(self.fn, "__name__", "custom_jvp")
        if self._rule is None:
            raise AttributeError(f"custom_jvp: {name} has no rule yet; use {name}.defjvp")
        static, others, put = self._arguments(args, kwargs)

        def make_jvp(inputs, tangents):
            result = self._rule(*static, tuple(inputs), tuple(tangents))
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise TypeError(f"custom_jvp: the rule of {name} gives (result, tangent), got {type(result).__name__}")
            return result[1]

        return call_with_rules(name, lambda *a: self.fn(*put(a)), others, None, make_jvp)
