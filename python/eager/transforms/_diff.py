"""Shared by the transforms that take derivatives: replacing tensors of trees by variables, and making trees
of derivatives."""

import contextlib
import contextvars

from eas._eas import (
    DType,
    EagerTensor,
    constant,
    diff_depth,
    diff_jvp,
    diff_results,
    diff_run,
    diff_variables,
    diff_vjp,
    eager_full,
    shard_node,
    tree_flatten,
    tree_unflatten,
    vmap_level,
)

from ..sharding.spec import DimSpec, ShardingSpec

_FLOATS = (DType.float32, DType.float64, DType.float16, DType.bfloat16)


def tensor(x):
    return x if isinstance(x, EagerTensor) else constant(x)


def is_float(t):
    return t.dtype in _FLOATS


def kind(t):
    return f"{t.dtype}({', '.join(str(d) for d in t.shape)})"


def zeros_like(t):
    return eager_full(tuple(t.shape), 0.0 if is_float(t) else 0, t.dtype)


def ones_like(t):
    return eager_full(tuple(t.shape), 1.0, t.dtype)


def where_is(name, index, path):
    """The name of a leaf of an argument, as the user would write it."""
    return f"{name}: argument {index}{path and ' at ' + path}"


def untrained(treedef):
    """Leaves that are constants: buffers and frozen parameters of modules, which say so in their structure.
    """
    out = set()
    for aux, first, count in treedef.customs():
        trained = getattr(aux, "trained", None)
        if trained is not None:
            out.update(range(first + trained, first + count))
    return out


class Variables:
    """The float tensors of some arguments, replaced by variables."""

    def __init__(self, name, args, argnums, allow_int=False):
        self.name = name
        self.argnums = argnums
        self.args = list(args)
        self.originals, self.vars, self.defs, self.places = [], [], [], []
        for k in argnums:
            leaves, treedef = tree_flatten(args[k])
            leaves = [tensor(x) for x in leaves]
            mine, constants = [], untrained(treedef)
            for i, x in enumerate(leaves):
                if i in constants:
                    mine.append(None)
                elif is_float(x):
                    mine.append(len(self.originals))
                    self.originals.append(x)
                elif allow_int:
                    mine.append(None)
                else:
                    raise TypeError(
                        f"{where_is(name, k, treedef.path(i))} is {kind(x)}; derivatives are taken with respect to floats: cast it, or leave it out of argnums"
                    )
            self.defs.append((treedef, leaves, mine))
        self.vars = diff_variables(self.originals)
        for v, x in zip(self.vars, self.originals):
            if x.sharding is not None:
                v.sharding = x.sharding
        for k, (treedef, leaves, mine) in zip(argnums, self.defs):
            self.args[k] = tree_unflatten(treedef, [x if m is None else self.vars[m] for x, m in zip(leaves, mine)])

    def where(self, variable):
        """The name of the argument's leaf that the variable replaces, as the user would write it."""
        for k, (treedef, _, mine) in zip(self.argnums, self.defs):
            if variable in mine:
                return where_is(self.name, k, treedef.path(mine.index(variable)))

    def trees(self, values):
        """One tree for each argument; values as the variables. A gradient lies as its variable does."""
        values = [lie_alike(v, x) for v, x in zip(values, self.originals)]
        return tuple(
            tree_unflatten(treedef, [zeros_like(x) if m is None else values[m] for x, m in zip(leaves, mine)]) for treedef, leaves, mine in self.defs
        )

    def leaves(self, trees, what):
        """The reverse: tangents, from a tree for each argument."""
        out = [None] * len(self.originals)
        for k, (treedef, leaves, mine), tree in zip(self.argnums, self.defs, trees):
            given, found = tree_flatten(tree)
            if found != treedef:
                raise TypeError(f"{self.name}: the {what} of argument {k} is {found}, and the argument is {treedef}")
            for i, (x, m, t) in enumerate(zip(leaves, mine, given)):
                if m is not None:
                    out[m] = fitted(t, x, f"{where_is(self.name, k, treedef.path(i))}: its {what}")
        return out


def lie_alike(t, x):
    """t laid out as x, if x lies on a mesh and t has its shape."""
    spec = x.sharding
    if not isinstance(t, EagerTensor) or not isinstance(spec, ShardingSpec) or tuple(t.shape) != tuple(x.shape):
        return t
    if spec.is_fully_replicated() or (t.sharding is not None and t.sharding.mesh != spec.mesh):
        return t
    own = [DimSpec((), is_open=True) for _ in range(t.batch_dims)] + [DimSpec(d.axes) for d in spec.dim_specs[x.batch_dims :]]
    out = shard_node(t, ShardingSpec(spec.mesh, own), True)
    out.sharding = ShardingSpec(spec.mesh, [DimSpec(d.axes) for d in own])
    return out


def fitted(t, x, what):
    """t as a tangent of x: checked and brought to its shape and dtype."""
    if t is None:
        return None
    if isinstance(t, (int, float)) and not isinstance(t, bool):
        t = eager_full((), float(t), x.dtype)
    t = tensor(t)
    if tuple(t.shape) != tuple(x.shape) or t.dtype != x.dtype:
        raise ValueError(f"{what} is {kind(t)}, and {kind(x)} is wanted")
    return t


def positions(name, argnums, nargs):
    """argnums as a tuple of indices."""
    many = isinstance(argnums, (tuple, list))
    nums = tuple(argnums) if many else (argnums,)
    out = []
    for k in nums:
        if isinstance(k, bool) or not isinstance(k, int):
            raise TypeError(f"{name}: argnums is an int or a tuple of ints, got {argnums!r}")
        if not -nargs <= k < nargs:
            raise ValueError(f"{name}: argnums says argument {k}, and there {'is' if nargs == 1 else 'are'} {nargs}")
        out.append(k % nargs)
    if len(set(out)) != len(out):
        raise ValueError(f"{name}: argnums names an argument twice: {argnums!r}")
    return tuple(out)


def split_aux(name, result, has_aux):
    if not has_aux:
        return result, None
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError(f"{name}: with has_aux=True the function returns (result, aux), got {type(result).__name__}")
    return result


class Traced:
    """A function that was run on variables: its results, ready to be differentiated both ways."""

    def __init__(self, name, fn, args, argnums, kwargs=None, has_aux=False, allow_int=False):
        self.lanes = vmap_level()
        self.variables = Variables(name, args, argnums, allow_int)
        self.name = name
        call = (lambda *a: fn(*a, **kwargs)) if kwargs else fn
        self.out, self.aux = split_aux(name, diff_run(call, tuple(self.variables.args)), has_aux)
        leaves, self.treedef = tree_flatten(self.out)
        self.outs = [tensor(x) for x in leaves]

    def pull(self, cotangents):
        """Gradients of the variables; None where nothing depends on one."""
        return diff_vjp(self.variables.vars, self.outs, cotangents, self.lanes)

    def push(self, tangents):
        out = diff_jvp(self.variables.vars, tangents, self.outs, self.lanes)
        return [zeros_like(o) if t is None else t for t, o in zip(out, self.outs)]

    def results(self):
        return tree_unflatten(self.treedef, diff_results(self.outs))

    def cotangents(self, tree):
        given, found = tree_flatten(tree)
        if found != self.treedef:
            raise TypeError(f"{self.name}: the cotangent is {found}, and the function gave {self.treedef}")
        out = []
        for i, (c, o) in enumerate(zip(given, self.outs)):
            path = self.treedef.path(i)
            out.append(fitted(c, o, f"{self.name}: the cotangent{path and ' at ' + path}") if is_float(o) else None)
        return out

    def gradients(self, grads, allow_unused=True):
        for i, g in enumerate(grads):
            if g is None and not allow_unused:
                raise ValueError(
                    f"{self.variables.where(i)} ({kind(self.variables.originals[i])}): the result does not depend on it; allow_unused=True gives zeros"
                )
        return [zeros_like(x) if g is None else g for g, x in zip(grads, self.variables.originals)]


def aux_results(aux):
    """The results that are returned beside the differentiated one, without recorded operations."""
    leaves, treedef = tree_flatten(aux)
    at = [i for i, x in enumerate(leaves) if isinstance(x, EagerTensor)]
    for i, x in zip(at, diff_results([leaves[i] for i in at])):
        leaves[i] = x
    return tree_unflatten(treedef, leaves)


_looked_at = contextvars.ContextVar("looked_at", default=False)


@contextlib.contextmanager
def only_recorded():
    """Inside, derivatives are recorded and not evaluated, as inside another transform."""
    token = _looked_at.set(True)
    try:
        yield
    finally:
        _looked_at.reset(token)


def outermost():
    return diff_depth() == 0 and vmap_level() == 0 and not _looked_at.get()
