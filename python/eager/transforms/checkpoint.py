"""checkpoint: intermediate results of a function are computed again for its derivative, instead of kept."""

import functools

from eas._eas import EagerTensor, diff_checkpoint, tree_flatten, tree_unflatten

from ._diff import tensor

__all__ = ["checkpoint"]


def checkpoint(fn):
    """fn, of which a reverse derivative keeps only the arguments and what fn captures: the rest is computed
    once more on the way back, when it is needed."""

    @functools.wraps(fn)
    def checkpointed(*args, **kwargs):
        inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, EagerTensor)]
        results, treedef = tree_flatten(fn(*args, **kwargs))
        return tree_unflatten(treedef, diff_checkpoint([tensor(r) for r in results], inputs))

    return checkpointed
