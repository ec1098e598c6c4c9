"""vmap: a function of one example, applied to a whole axis of them."""

import functools

from eas._eas import shard_node, tensor_leaves, vmap_call, vmap_level

from ..ops.communication import named_axis
from ..sharding.spec import DeviceMesh, DimSpec, ShardingSpec

__all__ = ["vmap"]


def _spread_over(mesh, axis):
    """A function that gives a mapped tensor its sharding: the new batch dim, which is the first, is cut along
    the axis.
    """

    def spread(t):
        rank = t.batch_dims + len(t.shape)
        old = t.sharding
        if old is not None and old.mesh != mesh:
            raise ValueError(f"vmap: an argument lies on {old.mesh!r}, and the axis is to be spread over {mesh!r}")
        dims = list(old.dim_specs) if old is not None else [DimSpec() for _ in range(rank)]
        if old is not None and any(axis in d.axes for d in dims[1:]):
            raise ValueError(f"vmap: another dim of an argument is cut along axis '{axis}' already: {old!r}")
        if axis not in dims[0].axes:
            dims[0] = DimSpec([axis, *dims[0].axes], dims[0].is_open, dims[0].priority)
        spec = ShardingSpec(mesh, dims, old.replicated_axes - {axis} if old is not None else ())
        return shard_node(t, spec, False)

    return spread


def _mesh_of(tree, axis):
    """The mesh that sharded arguments lie on."""
    for t in tensor_leaves(tree):
        if t.sharding is not None:
            if axis not in t.sharding.mesh.axis_names:
                raise ValueError(f"vmap: mesh '{t.sharding.mesh.name}' has no axis '{axis}'; its axes are {t.sharding.mesh.axis_names}")
            return t.sharding.mesh
    raise ValueError(f"vmap: spmd_axis_name={axis!r} needs a mesh: give one, or an argument that is sharded")


def vmap(fn=None, in_axes=0, out_axes=0, axis_size=None, spmd_axis_name=None, mesh=None):
    """The function fn mapped over an axis of its arguments, in one pass and not in a loop.

    in_axes: which axis of each argument is mapped: an int for all, None for an argument that every call
    shares, or a tuple with one entry for each argument; an entry may be a pytree prefix of its argument.
    out_axes: where the axis is in the results. Named arguments are mapped along axis 0. axis_size: needed if
    nothing is mapped. mesh and spmd_axis_name: the axis is spread over that axis of a mesh (without one: of
    the mesh that arguments lie on). For a function of one argument in_axes may be that argument's own tree.
    Inside, `shape` hides the axis.

    Used as a decorator with arguments or without.
    """
    if fn is None:
        return functools.partial(vmap, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size, spmd_axis_name=spmd_axis_name, mesh=mesh)
    if not callable(fn):
        raise TypeError(f"vmap takes a function, got {type(fn).__name__}")
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise TypeError(f"vmap: mesh is a DeviceMesh, got {type(mesh).__name__}")
    if mesh is not None and spmd_axis_name is None:
        raise ValueError("vmap: mesh needs spmd_axis_name as well")
    if mesh is not None and spmd_axis_name not in mesh.axis_names:
        raise ValueError(f"vmap: mesh '{mesh.name}' has no axis '{spmd_axis_name}'; its axes are {mesh.axis_names}")

    def mapped(*args, **kwargs):
        if spmd_axis_name is None:
            return vmap_call(fn, in_axes, out_axes, axis_size, None, args, kwargs)
        on = mesh if mesh is not None else _mesh_of((args, kwargs), spmd_axis_name)
        with named_axis(on, spmd_axis_name, vmap_level()):
            return vmap_call(fn, in_axes, out_axes, axis_size, _spread_over(on, spmd_axis_name), args, kwargs)

    functools.update_wrapper(mapped, fn, updated=())
    mapped.__wrapped__ = fn
    return mapped
