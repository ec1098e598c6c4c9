"""vjp: reverse mode. linearize and jvp are in jvp.py."""

from eas._eas import diff_results

from ._diff import Traced, aux_results

__all__ = ["vjp"]


def vjp(fn, *primals, has_aux=False):
    """(out, pull) or, with has_aux, (out, pull, aux): pull(cotangent), of the structure of out, gives a tuple with the gradient of each primal.

    pull may be called several times, and under vmap. What it needs is kept as long as pull is.
    """
    traced = Traced("vjp", fn, primals, tuple(range(len(primals))), has_aux=has_aux)

    def pull(*cotangent):
        if len(cotangent) != 1:
            raise TypeError(f"vjp: pull takes one cotangent, of the structure of the result; {len(cotangent)} are given")
        grads = traced.gradients(traced.pull(traced.cotangents(cotangent[0])))
        return traced.variables.trees(diff_results(grads))

    out = traced.results()
    return (out, pull, aux_results(traced.aux)) if has_aux else (out, pull)
