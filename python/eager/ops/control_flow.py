"""Choices and loops. Outside of compile conditions are read, so one branch runs; while a function is traced, or in the lanes of vmap, both branches run and
`where` chooses."""

from eas._eas import EagerTensor, constant, tensor_ops, tree_flatten, tree_map, tree_unflatten, vmap_level

__all__ = ["cond", "scan", "where", "while_loop"]

where = tensor_ops["where"]


def _choose(pred, yes, no, what):
    a, ta = tree_flatten(yes)
    b, tb = tree_flatten(no)
    if ta != tb:
        raise TypeError(f"eager.{what}: both must give the same structure, got {ta} and {tb}")
    return tree_unflatten(ta, [where(pred, x, y) for x, y in zip(a, b)])


def _both(pred):
    return isinstance(pred, EagerTensor) and (pred.batch_dims > 0 or pred._impl._is_symbolic)


def cond(pred, true_fn, false_fn, *operands):
    """true_fn(*operands) if pred holds, else false_fn(*operands)."""
    if _both(pred):
        return _choose(pred, true_fn(*operands), false_fn(*operands), "cond")
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def _any_lane(pred):
    alias = tensor_ops["alias"](pred, 0)
    return bool(tensor_ops["any"](alias))


def while_loop(cond_fn, body_fn, init):
    """state = init; while cond_fn(state): state = body_fn(state). The condition is read each time round, so this is not for the inside of compile."""
    state = tree_map(lambda x: x if isinstance(x, EagerTensor) else constant(x), init)
    while True:
        pred = cond_fn(state)
        lanes = isinstance(pred, EagerTensor) and pred.batch_dims > 0
        if not (_any_lane(pred) if lanes else bool(pred)):
            return state
        new = body_fn(state)
        state = _choose(pred, new, state, "while_loop") if lanes or (vmap_level() and isinstance(pred, EagerTensor)) else new


def _length(xs, length):
    sizes = {int(x.shape[0]) for x in tree_flatten(xs)[0]}
    if length is not None:
        sizes.add(int(length))
    if len(sizes) != 1:
        raise ValueError(f"eager.scan: one length is wanted, got {sorted(sizes) if sizes else 'neither xs nor length'}")
    return sizes.pop()


def scan(f, init, xs=None, length=None, reverse=False):
    """carry, y = f(carry, x) for each element of xs along its first axis; gives the last carry and the ys, stacked."""
    xs = tree_map(lambda x: x if isinstance(x, EagerTensor) else constant(x), xs)
    n = _length(xs, length)
    carry, ys = init, []
    for i in reversed(range(n)) if reverse else range(n):
        carry, y = f(carry, tree_map(lambda x: x[i], xs))  # noqa: B023
        ys.append(y)
    if reverse:
        ys.reverse()
    if not ys:
        return carry, None
    stack = tensor_ops["stack"]
    return carry, tree_map(lambda *leaves: stack(list(leaves), axis=0), ys[0], *ys[1:])
