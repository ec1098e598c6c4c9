"""jacrev, jacfwd, hessian: whole matrices of derivatives, by vmap over a basis."""

import functools

from eas._eas import diff_results, tensor_ops, tree_unflatten

from ._diff import Traced, aux_results, positions
from .vmap import vmap

__all__ = ["hessian", "jacfwd", "jacrev"]

_reshape, _eye = tensor_ops["reshape"], tensor_ops["eye"]


def _basis(x):
    """Along a new first axis, for each element of x a tensor like x that is 1 there and 0 elsewhere; sizes
    may be symbols."""
    n = 1
    for d in x.shape:
        n = n * d
    return _reshape(_eye((n, n), dtype=x.dtype), (n, *tuple(x.shape)))


def _nums(argnums):
    return 0 if argnums is None else argnums


def _pick(argnums, trees):
    return trees if isinstance(argnums, (tuple, list)) else trees[0]


def jacrev(fn, argnums=None, has_aux=False):
    """A function that gives the Jacobian of fn by reverse mode: a tree as the result, of trees as the
    arguments, of tensors of shape result + argument."""

    @functools.wraps(fn)
    def jacobian(*args, **kwargs):
        nums = _nums(argnums)
        traced = Traced("jacrev", fn, args, positions("jacrev", nums, len(args)), kwargs, has_aux)
        rows = []
        for k, out in enumerate(traced.outs):
            shape = tuple(out.shape)

            def pull(ct, k=k):
                cts = [None] * len(traced.outs)
                cts[k] = ct
                return traced.gradients(traced.pull(cts))

            grads = vmap(pull)(_basis(out))
            grads = [_reshape(g, (*shape, *tuple(x.shape))) for g, x in zip(grads, traced.variables.originals)]
            rows.append(_pick(nums, traced.variables.trees(diff_results(grads))))
        result = tree_unflatten(traced.treedef, rows)
        return (result, aux_results(traced.aux)) if has_aux else result

    return jacobian


def jacfwd(fn, argnums=None, has_aux=False):
    """The Jacobian by forward mode, which is the better one if there are fewer arguments than results."""

    @functools.wraps(fn)
    def jacobian(*args, **kwargs):
        nums = _nums(argnums)
        traced = Traced("jacfwd", fn, args, positions("jacfwd", nums, len(args)), kwargs, has_aux)
        columns = []  # per variable: per result
        for k, x in enumerate(traced.variables.originals):
            shape = tuple(x.shape)

            def push(t, k=k):
                ts = [None] * len(traced.variables.vars)
                ts[k] = t
                return traced.push(ts)

            tangents = vmap(push, out_axes=-1)(_basis(x))
            columns.append(diff_results([_reshape(t, (*tuple(o.shape), *shape)) for t, o in zip(tangents, traced.outs)]))
        rows = [_pick(nums, traced.variables.trees([c[i] for c in columns])) for i in range(len(traced.outs))]
        result = tree_unflatten(traced.treedef, rows)
        return (result, aux_results(traced.aux)) if has_aux else result

    return jacobian


def hessian(fn, argnums=None, has_aux=False):
    """The matrix of second derivatives: forward mode over reverse mode."""
    return jacfwd(jacrev(fn, argnums, has_aux), argnums, has_aux)
