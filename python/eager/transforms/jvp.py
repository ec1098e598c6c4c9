"""jvp and linearize: forward mode."""

from eas._eas import diff_results, tree_unflatten

from ._diff import Traced, aux_results

__all__ = ["jvp", "linearize"]


def _tangents(traced, tangents, count):
    if not isinstance(tangents, (tuple, list)) or len(tangents) != count:
        raise TypeError(f"{traced.name}: tangents is a tuple with one for each of {count} primals, got {tangents!r}")
    return traced.variables.leaves(tangents, "tangent")


def jvp(fn, primals, tangents, *, has_aux=False):
    """(out, tangent of out) or, with has_aux, (out, tangent, aux), for these tangents of the primals."""
    if not isinstance(primals, (tuple, list)):
        raise TypeError(f"jvp: primals is a tuple of arguments, got {type(primals).__name__}")
    traced = Traced("jvp", fn, primals, tuple(range(len(primals))), has_aux=has_aux)
    tangent = tree_unflatten(traced.treedef, diff_results(traced.push(_tangents(traced, tangents, len(primals)))))
    out = traced.results()
    return (out, tangent, aux_results(traced.aux)) if has_aux else (out, tangent)


def linearize(fn, *primals, has_aux=False):
    """(out, push) or, with has_aux, (out, push, aux): push(*tangents) gives the tangent of out. fn is run
    once, however often push is called."""
    traced = Traced("linearize", fn, primals, tuple(range(len(primals))), has_aux=has_aux)

    def push(*tangents):
        return tree_unflatten(traced.treedef, diff_results(traced.push(_tangents(traced, tangents, len(primals)))))

    out = traced.results()
    return (out, push, aux_results(traced.aux)) if has_aux else (out, push)
