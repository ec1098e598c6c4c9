"""compile: a function that is traced once for each kind of arguments and then replayed as a whole."""

import functools
from typing import NamedTuple

from eas._eas import CompiledFunction as _CompiledFunction
from eas._eas import GraphBreak

__all__ = ["CompileStats", "CompiledFunction", "GraphBreak", "compile"]


class CompileStats(NamedTuple):
    """How often a call found its program, how often it did not, and how many programs there are now."""

    hits: int
    misses: int
    programs: int


class CompiledFunction(_CompiledFunction):
    """What compile gives: call it as the function."""

    def __reduce__(self):
        from eas._pickle import by_name

        return by_name(self, lambda: (_compiled, (self.__wrapped__, self._options)))

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    @property
    def stats(self):
        return CompileStats(*self._counts())

    def explain(self):
        """Every miss: its cause (what differs from the call before), how many ms it took, whether it was
        compiled (else the function reads data, and runs as it is)."""
        return self._log()

    def show(self, form="text"):
        """What the program that was used last does: "text", or the graph as "svg-before" and "svg-after"."""
        return self._show(form)


def _compiled(fn, options):
    return compile(fn, **options)


def compile(fn=None, *, fullgraph=False, max_cache_size=64, dynamic_dims=None, donate=None, bucket=None, max_compiles=None, mode=None, auto_shard=None, machine=None):
    """Compiles a function of tensors (and pytrees of them).

    A call is looked up by the structure, shapes and dtypes of its arguments, the values of those that are no
    tensors, and the same for what the function captures; captured tensors are inputs, so new values of them
    are seen. dynamic_dims={argument index: {dim: name}}: those sizes may vary in one program; equal names
    mean equal sizes. donate: numbers of arguments whose memory may become a result's; they are gone after the
    call. bucket="pow2": dynamic dims that round up to one power of two share a program that is made for that
    size, with what is beyond the true size masked. max_compiles: RuntimeError instead of one more.
    mode="autotune": the first call takes the time of several ways to cut the work into blocks and keeps the
    quickest. fullgraph=True: RuntimeError where the body reads data; without it such a function runs as it
    is. auto_shard=mesh: how the arguments lie on that mesh is chosen (eager.auto_shard) at the first call
    with each kind of arguments, by the numbers of machine, or of this one.
    """
    options = {
        "fullgraph": fullgraph,
        "max_cache_size": max_cache_size,
        "dynamic_dims": dynamic_dims,
        "donate": donate,
        "bucket": bucket,
        "max_compiles": max_compiles,
        "mode": mode,
    }
    if fn is None:
        return functools.partial(compile, **options, auto_shard=auto_shard, machine=machine)
    if auto_shard is not None:
        from ..sharding.simulate import AutoSharded

        return AutoSharded(fn, auto_shard, options, machine)
    if machine is not None:
        raise ValueError("compile: machine is for auto_shard")
    compiled = CompiledFunction(fn, **options)
    compiled._options = options
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        if hasattr(fn, name):
            setattr(compiled, name, getattr(fn, name))
    return compiled
