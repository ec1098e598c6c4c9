"""grad and value_and_grad."""

import functools

from eas._eas import EagerTensor, diff_results, realize_all, tree_leaves

from ._diff import Traced, aux_results, is_float, kind, ones_like, outermost, positions

__all__ = ["grad", "value_and_grad"]


def _realize(*trees):
    """Evaluates everything at once, unless it is part of a larger program."""
    ts = [t for tree in trees for t in tree_leaves(tree) if isinstance(t, EagerTensor)]
    if ts and outermost() and not any(t._impl._is_symbolic for t in ts):
        realize_all(*ts)


def _scalar(name, traced):
    if len(traced.outs) != 1 or traced.treedef.num_nodes != 1 or tuple(traced.outs[0].shape) != ():
        what = kind(traced.outs[0]) if len(traced.outs) == 1 else str(traced.treedef)
        raise TypeError(f"{name}: the function must give one number, and gives {what}; sum it up, or use vjp or jacrev")
    if not is_float(traced.outs[0]):
        raise TypeError(f"{name}: the function must give a float, and gives {kind(traced.outs[0])}")


def _value_and_grad(name, fn, argnums, has_aux, create_graph, realize, allow_unused, args, kwargs):
    traced = Traced(name, fn, args, positions(name, argnums, len(args)), kwargs, has_aux)
    _scalar(name, traced)
    grads = traced.gradients(traced.pull([ones_like(traced.outs[0])]), allow_unused)
    grads = diff_results(grads)
    if not create_graph:
        grads = [g.detach() for g in grads]
    trees = traced.variables.trees(grads)
    value = traced.results()
    aux = aux_results(traced.aux) if has_aux else None
    del traced
    if realize:
        _realize(trees, value, aux)
    return value, (trees if isinstance(argnums, (tuple, list)) else trees[0]), aux


def value_and_grad(fn=None, argnums=0, has_aux=False, create_graph=True, realize=True, allow_unused=True):
    """A function that gives (fn(*args), gradient); with has_aux, where fn gives (value, aux), ((value, aux),
    gradient). See grad."""
    if fn is None:
        return functools.partial(
            value_and_grad, argnums=argnums, has_aux=has_aux, create_graph=create_graph, realize=realize, allow_unused=allow_unused
        )

    @functools.wraps(fn)
    def both(*args, **kwargs):
        value, grads, aux = _value_and_grad("value_and_grad", fn, argnums, has_aux, create_graph, realize, allow_unused, args, kwargs)
        return ((value, aux) if has_aux else value), grads

    return both


def grad(fn=None, argnums=0, has_aux=False, create_graph=True, realize=True, allow_unused=True):
    """A function that gives the gradient of fn, which gives one number, with respect to arguments argnums (an
    int: its gradient; a tuple: a tuple of them).

    Arguments may be trees of tensors; so are their gradients. has_aux: fn gives (number, aux), and the result
    is (gradient, aux). realize: the gradient is evaluated at once, unless this is inside another transform.
    create_graph=False: the gradient is a constant for derivatives around this one. allow_unused=False: an
    argument that the number does not depend on is an error, and not a gradient of zeros.
    """
    if fn is None:
        return functools.partial(grad, argnums=argnums, has_aux=has_aux, create_graph=create_graph, realize=realize, allow_unused=allow_unused)

    @functools.wraps(fn)
    def gradient(*args, **kwargs):
        _, grads, aux = _value_and_grad("grad", fn, argnums, has_aux, create_graph, realize, allow_unused, args, kwargs)
        return (grads, aux) if has_aux else grads

    return gradient
