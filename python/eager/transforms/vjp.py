"""vjp: reverse mode. linearize and jvp are in jvp.py."""

from eas._eas import diff_pull, diff_pullback, diff_results, tree_leaves

from ._diff import Traced, aux_results, outermost

__all__ = ["vjp"]


def vjp(fn, *primals, has_aux=False):
    """(out, pull) or, with has_aux, (out, pull, aux): pull(cotangent), of the structure of out, gives a tuple
    with the gradient of each primal.

    pull may be called several times, and under vmap. What it needs is kept as long as pull is.
    """
    traced = Traced("vjp", fn, primals, tuple(range(len(primals))), has_aux=has_aux)
    out = traced.results()
    # outside of all transforms, results may be read before pull is called: the tensors that pull needs are
    # then computed together with them
    variables = traced.variables.vars
    kept = diff_pullback(variables, traced.outs, tree_leaves(out), traced.lanes) if outermost() else None

    def pull(*cotangent):
        if len(cotangent) != 1:
            raise TypeError(f"vjp: pull takes one cotangent, of the structure of the result; {len(cotangent)} are given")
        cts = traced.cotangents(cotangent[0])
        grads = traced.gradients(traced.pull(cts) if kept is None else diff_pull(kept, cts, len(variables)))
        return traced.variables.trees(diff_results(grads))

    return (out, pull, aux_results(traced.aux)) if has_aux else (out, pull)
