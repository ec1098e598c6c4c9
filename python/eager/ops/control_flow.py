"""Choices and loops, as parts of the graph.

A body is traced once, with placeholders for what it is given; then the whole loop is one node, and runs
without Python. A body that reads data, or that derivatives are taken through, runs as Python does instead:
once for each trip. `cond` reads its condition where it can; while a function is traced it becomes a branch,
of which one side runs; in the lanes of vmap both sides run and `where` chooses.
"""

from eas._eas import (
    EagerTensor,
    GraphBreak,
    LoopRandom,
    branch_abort,
    branch_begin,
    branch_end,
    constant,
    like_lanes,
    loop_inputs,
    loop_record,
    loop_trace,
    tensor_ops,
    tree_flatten,
    tree_map,
    tree_unflatten,
    vmap_level,
)  # fmt: skip

from ..sharding.spec import ShardingSpec

__all__ = ["associative_scan", "cond", "fori_loop", "scan", "switch", "where", "while_loop"]

where = tensor_ops["where"]
_cast, _alias, _any, _stack, _concatenate, _moveaxis, _flip = (
    tensor_ops[n] for n in ("cast", "alias", "any", "stack", "concatenate", "moveaxis", "flip")
)


def _tensor(x):
    return x if isinstance(x, EagerTensor) else constant(x)


def _holds(dtype, x):
    name = str(dtype)
    if isinstance(x, bool) or name == "bool":
        return isinstance(x, bool)
    return isinstance(x, int) or (isinstance(x, float) and name.startswith(("f", "bf")))


def _like(x, other):
    """x as a tensor; a Python number takes the dtype of the other if that holds such numbers."""
    if isinstance(x, EagerTensor):
        return x
    return _cast(constant(x), other.dtype) if isinstance(other, EagerTensor) and _holds(other.dtype, x) else constant(x)


def _kind(t):
    return f"{t.dtype}({', '.join(str(d) for d in t.shape)})"


def _symbolic(leaves):
    return any(isinstance(x, EagerTensor) and x._impl._is_symbolic for x in leaves)


def _tree_difference(tree, treedef):
    try:
        tree_map(lambda *_: 0, tree_unflatten(treedef, [0] * treedef.num_leaves), tree)
    except (TypeError, ValueError) as e:
        return f" ({e})"
    return ""


def _leaves_like(tree, treedef, what):
    leaves, found = tree_flatten(tree)
    if found != treedef:
        raise TypeError(f"eager.{what}: {found} is given where {treedef} is wanted{_tree_difference(tree, treedef)}")
    return leaves


# ---- cond ----


def _choose(pred, yes, no, what):
    a, treedef = tree_flatten(yes)
    b = _leaves_like(no, treedef, what)
    return tree_unflatten(treedef, [where(pred, x, y) for x, y in zip(a, b)])


def _meet(x, y, path):
    """Both results as tensors of one dtype, with the same lanes."""
    x = _like(x, y)
    y = _like(y, x)
    if x.dtype != y.dtype:
        from .._array_api import result_type

        dtype = result_type(x, y)
        x, y = _cast(x, dtype), _cast(y, dtype)
    x = like_lanes(x, y)
    y = like_lanes(y, x)
    if tuple(x.shape) != tuple(y.shape):
        raise ValueError(f"eager.cond: result{path and ' ' + path} is {_kind(x)} in one branch and {_kind(y)} in the other")
    return x, y


def _branch(pred, true_fn, false_fn, operands):
    branch_begin()
    try:
        a, treedef = tree_flatten(true_fn(*operands))
        b = _leaves_like(false_fn(*operands), treedef, "cond")
        pairs = [_meet(x, y, treedef.path(i)) for i, (x, y) in enumerate(zip(a, b))]
    except BaseException:
        branch_abort()
        raise
    return tree_unflatten(treedef, branch_end(pred, [x for x, _ in pairs], [y for _, y in pairs]))


def _in_step(taken, other):
    """The result of the branch that was taken, in the dtypes that both branches have in common; an error if
    they disagree."""
    a, treedef = tree_flatten(taken)
    b = _leaves_like(other, treedef, "cond")
    out = []
    for i, (x, y) in enumerate(zip(a, b)):
        tensors = isinstance(x, EagerTensor) or isinstance(y, EagerTensor)
        out.append(_meet(x, y, treedef.path(i))[0] if tensors else x)
    return tree_unflatten(treedef, out)


def _untaken(fn, operands):
    """The results of the other branch, traced on placeholders and not computed; None if tracing it needs
    data."""
    leaves, treedef = tree_flatten(operands)
    tensors = [x for x in leaves if isinstance(x, EagerTensor)]
    stand_ins = iter(loop_inputs(tensors, False))
    given = tree_unflatten(treedef, [next(stand_ins) if isinstance(x, EagerTensor) else x for x in leaves])
    try:
        return (loop_trace(LoopRandom(), fn, *given),)
    except (GraphBreak, RecursionError):
        return None


def cond(pred, true_fn, false_fn, *operands):
    """true_fn(*operands) if pred holds, else false_fn(*operands). Both give results of one structure, with
    the same shapes. The branch that is not taken is traced to check that, as compile does."""
    if isinstance(pred, EagerTensor) and pred.batch_dims > 0:
        return _choose(pred, true_fn(*operands), false_fn(*operands), "cond")
    if _symbolic([pred]):
        if pred.shape and any(int(d) != 1 for d in pred.shape):
            raise ValueError(f"eager.cond: the condition is one truth value, got {_kind(pred)}")
        pred = _cast(pred.reshape(()), "bool")
        return _branch(pred, true_fn, false_fn, operands)
    fn, other_fn = (true_fn, false_fn) if bool(pred) else (false_fn, true_fn)
    taken, other = fn(*operands), _untaken(other_fn, operands)
    return taken if other is None else _in_step(taken, other[0])


# ---- carried values ----


class _Carried:
    """Values that are carried from trip to trip: dtypes and lanes are settled as bodies are traced; shapes do
    not change."""

    def __init__(self, init, what):
        leaves, self.treedef = tree_flatten(init)
        self.weak = [not isinstance(x, EagerTensor) and isinstance(x, (bool, int, float)) for x in leaves]
        self.init = [_tensor(x) for x in leaves]
        self.what = what

    def next(self, tree):
        leaves = _leaves_like(tree, self.treedef, self.what)
        return [_like(x, t) for x, t in zip(leaves, self.init)]

    def settle(self, leaves, lanes=None):
        """False: a dtype or lanes were widened to fit the results of the body, which must be traced again."""
        settled = True
        for i, (old, new) in enumerate(zip(self.init, leaves)):
            if self.weak[i] and new.dtype != old.dtype:
                old = _cast(old, new.dtype)
            for other in (new, lanes):
                if other is not None:
                    old = like_lanes(old, other)
            settled = settled and old is self.init[i]
            self.init[i] = old
            if old.dtype != new.dtype or tuple(old.shape) != tuple(new.shape):
                path = self.treedef.path(i)
                raise TypeError(f"eager.{self.what}: the body makes {_kind(new)} of carried value{path and ' ' + path}, which is {_kind(old)} before")
        return settled

    def fit(self, leaves):
        """The results of a trip, with the lanes of the carried values."""
        return [like_lanes(n, o) for n, o in zip(leaves, self.init)]


def _lie_alike(tensors, like, dim=None):
    """Lays tensors out as others are; dim: the others have that dim in addition."""
    for t, o in zip(tensors, like):
        s = o.sharding
        if isinstance(s, ShardingSpec):
            dims = [d for k, d in enumerate(s.dim_specs) if dim is None or k != o.batch_dims + dim]
            t.sharding = ShardingSpec(s.mesh, dims, s.replicated_axes, s.partial_sum_axes)


def _stacked_alike(tensors, parts):
    for t, o in zip(tensors, parts):
        s = o.sharding
        if isinstance(s, ShardingSpec):
            dims = [*s.dim_specs[: o.batch_dims], None, *s.dim_specs[o.batch_dims :]]
            t.sharding = ShardingSpec(s.mesh, dims, s.replicated_axes, s.partial_sum_axes)


# ---- while_loop ----


def _while_node(cond_fn, body_fn, init, max_steps):
    carried, random = _Carried(init, "while_loop"), LoopRandom()
    while True:
        random.restart()
        inputs = loop_inputs(carried.init, False)
        _lie_alike(inputs, carried.init)
        state = tree_unflatten(carried.treedef, inputs)
        pred = _tensor(loop_trace(random, cond_fn, state))
        leaves = carried.next(loop_trace(random, body_fn, state))
        if carried.settle(leaves, pred):
            break
    first, counter, following = random.carried()
    results = loop_record(carried.init + first, inputs + counter, carried.fit(leaves) + following, pred, max_steps, [], [], [], False)
    results = results[: len(carried.init)]
    _lie_alike(results, carried.init)
    return tree_unflatten(carried.treedef, results)


def _while_python(cond_fn, body_fn, init, max_steps):
    state = tree_map(_tensor, init)
    trips = 0
    while True:
        pred = cond_fn(state)
        lanes = isinstance(pred, EagerTensor) and pred.batch_dims > 0
        trips += 1
        if (max_steps is not None and trips > max_steps) or not (bool(_any(_alias(pred, 0))) if lanes else bool(pred)):
            return state
        new = body_fn(state)
        state = _choose(pred, new, state, "while_loop") if lanes or (vmap_level() and isinstance(pred, EagerTensor)) else new


def while_loop(cond_fn, body_fn, init, max_steps=None):
    """state = init; while cond_fn(state): state = body_fn(state). The state keeps its structure, dtypes and
    shapes.

    max_steps: it ends after so many trips, whatever the condition says. Reverse derivatives need it, since
    they keep something of each trip; forward ones do not.
    """
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 0):
        raise ValueError(f"eager.while_loop: max_steps is a number of trips, got {max_steps!r}")
    leaves = tree_flatten(init)[0]
    try:
        return _while_node(cond_fn, body_fn, init, max_steps)
    except GraphBreak:
        if _symbolic(leaves):
            raise
    return _while_python(cond_fn, body_fn, init, max_steps)


def fori_loop(lower, upper, body_fn, init):
    """state = init; for i in range(lower, upper): state = body_fn(i, state). With bounds that are Python ints
    it can be differentiated both ways."""
    if isinstance(lower, int) and isinstance(upper, int):

        def step(carry, _):
            i, state = carry
            return (i + 1, body_fn(i, state)), None

        return scan(step, (constant(lower), init), length=max(0, upper - lower))[0][1]
    return while_loop(lambda s: s[0] < upper, lambda s: (s[0] + 1, body_fn(s[0], s[1])), (_tensor(lower), init))[1]


def switch(index, branches, *operands):
    """branches[index](*operands); an index out of range counts as the nearest one in range. Only that branch
    runs, but in lanes of vmap with different indices all do."""
    branches = list(branches)
    if not branches:
        raise ValueError("eager.switch: no branches")
    index = _tensor(index)
    if index.dtype.kind not in "iu" or tuple(index.shape) != ():
        raise TypeError(f"eager.switch: the index is one integer, got {_kind(index)}")

    def choose(low, high):
        if high - low == 1:
            return branches[low](*operands)
        middle = (low + high) // 2
        return cond(index < middle, lambda *_: choose(low, middle), lambda *_: choose(middle, high))

    return choose(0, len(branches))


# ---- scan ----


def _length(leaves, length):
    for i, x in enumerate(leaves):
        if not x.shape:
            raise ValueError(f"eager.scan: xs must have a first axis to go along; leaf {i} is {_kind(x)}")
    sizes = [x.shape[0] for x in leaves] + ([] if length is None else [length])
    if not sizes or any(s != sizes[0] for s in sizes):
        raise ValueError(f"eager.scan: one length is wanted, got {[str(s) for s in sizes] if sizes else 'neither xs nor length'}")
    if length is not None and isinstance(length, int) and length < 0:
        raise ValueError(f"eager.scan: length must not be negative, got {length}")
    return sizes[0]


def _pair(result):
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError(f"eager.scan: f(carry, x) returns (carry, y), got {type(result).__name__}")
    return result


def _scan_node(f, init, leaves, treedef, n, reverse):
    carried, random = _Carried(init, "scan"), LoopRandom()
    while True:
        random.restart()
        inputs, elements = loop_inputs(carried.init, False), loop_inputs(leaves, True)
        _lie_alike(inputs, carried.init)
        _lie_alike(elements, leaves, dim=0)
        carry, y = _pair(loop_trace(random, f, tree_unflatten(carried.treedef, inputs), tree_unflatten(treedef, elements)))
        new = carried.next(carry)
        if carried.settle(new):
            break
    ys, y_treedef = tree_flatten(y)
    ys = [_tensor(t) for t in ys]
    first, counter, following = random.carried()
    results = loop_record(carried.init + first, inputs + counter, carried.fit(new) + following, None, n, leaves, elements, ys, reverse)
    k = len(carried.init)
    del results[k : k + len(first)]
    _lie_alike(results, carried.init)
    _stacked_alike(results[k:], ys)
    return tree_unflatten(carried.treedef, results[:k]), tree_unflatten(y_treedef, results[k:])


def _scan_python(f, init, leaves, treedef, n, reverse):
    carry, ys = init, []
    for i in reversed(range(int(n))) if reverse else range(int(n)):
        carry, y = _pair(f(carry, tree_unflatten(treedef, [x[i] for x in leaves])))
        ys.append(y)
    if reverse:
        ys.reverse()
    if not ys:
        raise ValueError("eager.scan: a body that reads data, or that derivatives are taken through, needs a length of 1 at least")
    return carry, tree_map(lambda *parts: _stack([_tensor(p) for p in parts], axis=0), ys[0], *ys[1:])


def scan(f, init, xs=None, length=None, reverse=False, checkpoint=None):
    """carry, y = f(carry, x) for each element of xs along its first axis; gives the last carry and the ys,
    stacked.

    A reverse derivative keeps what it needs of every trip; checkpoint=k: it keeps the carry of every k-th
    trip, and computes k trips again at a time.
    """
    leaves, treedef = tree_flatten(tree_map(_tensor, xs))
    n = _length(leaves, length)
    if checkpoint is not None:
        return _scan_in_parts(f, init, leaves, treedef, n, reverse, checkpoint)
    given = leaves + tree_flatten(init)[0]
    try:
        return _scan_node(f, init, leaves, treedef, n, reverse)
    except GraphBreak:
        if _symbolic(given):
            raise
    return _scan_python(f, init, leaves, treedef, n, reverse)


def _scan_in_parts(f, init, leaves, treedef, n, reverse, k):
    """Parts of k trips, each computed again in the reverse derivative; trips that do not fill a part are a
    part of their own."""
    from ..transforms.checkpoint import checkpoint

    n = int(n)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"eager.scan: checkpoint is a number of trips above 0, got {k!r}")
    parts = n // k
    whole, at = parts * k, n - parts * k if reverse else 0
    part = checkpoint(lambda carry, xs: scan(f, carry, xs, length=k, reverse=reverse))
    rest = checkpoint(lambda carry, xs: scan(f, carry, xs, length=n - whole, reverse=reverse))
    inner = [x[at : at + whole].reshape((parts, k, *tuple(x.shape)[1:])) for x in leaves]
    outer = [x[:at] if reverse else x[whole:] for x in leaves]
    carry, ys = scan(lambda c, xs: part(c, xs), init, tree_unflatten(treedef, inner), length=parts, reverse=reverse)
    ys = tree_map(lambda y: y.reshape((whole, *tuple(y.shape)[2:])), ys)
    if n == whole:
        return carry, ys
    carry, more = rest(carry, tree_unflatten(treedef, outer))
    return carry, tree_map(lambda a, b: _concatenate([b, a] if reverse else [a, b], axis=0), ys, more)


# ---- associative_scan ----


def _odd_even(fn, elems, n):
    """Neighbouring pairs are combined, their running results found by recursion, and the odd places filled in
    between: work of 2 n, depth of 2 log n."""
    if n < 2:
        return elems
    pairs = fn([e[: n - 1 : 2] for e in elems], [e[1:n:2] for e in elems])
    odd = _odd_even(fn, pairs, n // 2)
    even = fn([e[: (n - 1) // 2] for e in odd], [e[2:n:2] for e in elems]) if n > 2 else []
    out = []
    for k, (e, o) in enumerate(zip(elems, odd)):
        evens = _concatenate([e[:1], even[k]], axis=0) if n > 2 else e[:1]
        if n % 2:
            o = _concatenate([o, o[:1]], axis=0)
        both = _stack([evens, o], axis=1)
        out.append(both.reshape((2 * both.shape[0], *tuple(both.shape)[2:]))[:n])
    return out


def associative_scan(fn, elems, reverse=False, axis=0):
    """Running results of an associative function along an axis, in a number of steps that grows with the
    logarithm of its length: the k-th is elems[0] joined with all up to elems[k]. fn(a, b) takes trees of many
    elements at once and joins them element by element."""
    leaves, treedef = tree_flatten(tree_map(_tensor, elems))
    if not leaves:
        return elems
    moved = [_moveaxis(x, axis, 0) for x in leaves]
    n = int(moved[0].shape[0])
    if any(int(x.shape[0]) != n for x in moved):
        raise ValueError(f"eager.associative_scan: one length is wanted along axis {axis}, got {[str(x.shape[0]) for x in moved]}")
    if reverse:
        moved = [_flip(x, 0) for x in moved]

    def join(a, b):
        out, found = tree_flatten(fn(tree_unflatten(treedef, a), tree_unflatten(treedef, b)))
        if found != treedef:
            raise TypeError(f"eager.associative_scan: fn makes {found} of {treedef}")
        return out

    out = _odd_even(join, moved, n)
    if reverse:
        out = [_flip(x, 0) for x in out]
    return tree_unflatten(treedef, [_moveaxis(x, 0, axis) for x in out])
