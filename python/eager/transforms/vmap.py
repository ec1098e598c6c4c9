"""vmap: a function of one example, applied to a whole axis of them."""

import functools

from eas._eas import vmap_call

__all__ = ["vmap"]


def vmap(fn=None, in_axes=0, out_axes=0, axis_size=None, spmd_axis_name=None, mesh=None):
    """The function fn mapped over an axis of its arguments, in one pass and not in a loop.

    in_axes: which axis of each argument is mapped: an int for all, None for an argument that every call shares, or a tuple with one entry for
    each argument; an entry may be a pytree prefix of its argument. out_axes: where the axis is in the results. Named arguments are mapped along axis 0.
    axis_size: needed if nothing is mapped. mesh and spmd_axis_name: the axis is spread over that axis of a mesh. Inside, `shape` hides the axis.

    Used as a decorator with arguments or without.
    """
    if fn is None:
        return functools.partial(vmap, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size, spmd_axis_name=spmd_axis_name, mesh=mesh)
    if not callable(fn):
        raise TypeError(f"vmap takes a function, got {type(fn).__name__}")
    if spmd_axis_name is not None and mesh is not None and spmd_axis_name not in mesh.axis_names:
        raise ValueError(f"vmap: mesh '{mesh.name}' has no axis '{spmd_axis_name}'; its axes are {mesh.axis_names}")

    def mapped(*args, **kwargs):
        return vmap_call(fn, in_axes, out_axes, axis_size, args, kwargs)

    functools.update_wrapper(mapped, fn, updated=())
    mapped.__wrapped__ = fn
    return mapped
