"""shard_map: a function of parts, run on every device. pmap: one element of the first axis on every device.
"""

import functools

from eas._eas import tensor_ops, vmap_call, vmap_level

from ..core.pytree import tree_flatten, tree_unflatten
from ..core.tensor import Tensor
from ..ops.communication import named_axis
from ..ops.creation import constant
from ..sharding.spec import DeviceMesh, DimSpec, PartitionSpec, ShardingSpec

__all__ = ["pmap", "shard_map"]


def _is_spec(s):
    return s is None or isinstance(s, PartitionSpec | ShardingSpec)


def _entries(spec, rank, mesh, what):
    """The axes of each dim."""
    if spec is None:
        return [[] for _ in range(rank)]
    if isinstance(spec, ShardingSpec):
        if spec.mesh != mesh:
            raise ValueError(f"shard_map: a spec of {what} is of {spec.mesh!r}, not of {mesh!r}")
        dims = [list(d.axes) for d in spec.dim_specs]
        if len(dims) != rank:
            raise ValueError(f"shard_map: a spec of {len(dims)} dims for {what} of {rank}")
    else:
        if len(spec) > rank:
            raise ValueError(f"shard_map: {spec!r} has {len(spec)} entries, and {what} has {rank} dims")
        dims = [list(d.axes) for d in spec.to_spec(mesh, rank).dim_specs]
    return dims


def _prefix(specs, tree, what):
    """A spec for each leaf: specs is one, or a tree whose leaves stand for all below them."""
    leaves, treedef = tree_flatten(tree)
    if _is_spec(specs):
        return leaves, treedef, [specs] * len(leaves)
    if isinstance(specs, list | tuple) and isinstance(tree, list | tuple):
        if len(specs) != len(tree):
            raise ValueError(f"shard_map: {len(specs)} {what} for {len(tree)} values")
        out = [s for sub, t in zip(specs, tree) for s in _prefix(sub, t, what)[2]]
    elif isinstance(specs, dict) and isinstance(tree, dict):
        missing = [k for k in tree if k not in specs]
        if missing:
            raise ValueError(f"shard_map: {what} has nothing for {missing[0]!r}")
        out = [s for k in sorted(tree) for s in _prefix(specs[k], tree[k], what)[2]]
    else:
        raise TypeError(f"shard_map: {what} are PartitionSpecs, in a tree like the values; got {type(specs).__name__} for {type(tree).__name__}")
    return leaves, treedef, out


def _exposed(x, dims, mesh, k):
    """x laid out in this way, with a new dim in front for each axis that cuts it: ({axis: place among them},
    tensor)."""
    x = x if isinstance(x, Tensor) else constant(x)
    x = x.shard(mesh, [DimSpec(d) for d in dims])
    shape, new, at = [int(n) for n in x.shape], [], {}
    for size, axes in zip(shape, dims):
        parts = [mesh.get_axis_size(a) for a in axes]
        for a in axes:
            at[a] = len(new)
            new.append(mesh.get_axis_size(a))
        for p in parts:
            size //= p
        new.append(size)
    x = x.reshape(new)
    front = [at[a] for a in mesh.axis_names if a in at]
    x = tensor_ops["moveaxis"](x, tuple(front), tuple(range(len(front)))) if front else x
    return [a for a in mesh.axis_names if a in at], x


def _put_back(x, names, dims, mesh):
    """The inverse of _exposed: x has a dim for each of these axes in front."""
    rank = len(x.shape) - len(names)
    order, shape = [], []
    for d in range(rank):
        order += [names.index(a) for a in dims[d]] + [len(names) + d]
    x = x.permute(order)
    sizes = [int(n) for n in x.shape]
    for d in range(rank):
        n = 1
        for _ in dims[d]:
            n *= sizes.pop(0)
        shape.append(n * sizes.pop(0))
    return x.reshape(shape).shard(mesh, [DimSpec(d) for d in dims])


def _lane_size(t, level):
    at = t.batch_dims - 1 - level
    return int(t.physical_shape[at]) if at >= 0 else 1


def _result(t, dims, mesh, levels, check, path):
    t = t if isinstance(t, Tensor) else constant(t)
    used = {a for d in dims for a in d}
    for name, level in levels.items():
        if name not in used and check and _lane_size(t, level) != 1:
            raise ValueError(
                f"shard_map: out_specs do not cut result{path} along '{name}', but it may differ between the devices along it; name the axis in out_specs, reduce over it (psum, pmean), "
                "or pass check_rep=False to take what the first device has"
            )
    return t


def shard_map(fn=None, mesh=None, in_specs=None, out_specs=None, check_rep=True):
    """The function fn of parts, on every device of a mesh.

    in_specs, out_specs: a PartitionSpec (None: whole) for each argument and result, or trees of them. Inside,
    an argument has the shape of one device's part, and collectives (eager.psum, all_gather, ppermute,
    axis_index, ...) speak of the mesh's axes by name. What fn captures is whole on every device, sharded or
    not. check_rep: refuse a result that out_specs do not cut along an axis although devices along it may have
    different ones."""
    if fn is None:
        return functools.partial(shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=check_rep)
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"shard_map: mesh is a DeviceMesh, got {type(mesh).__name__}")

    def mapped(*args):
        leaves, treedef, specs = _prefix(in_specs, args, "in_specs")
        level0 = vmap_level()
        levels = {a: level0 + k for k, a in enumerate(mesh.axis_names)}
        names, tensors = [], []
        for k, (x, s) in enumerate(zip(leaves, specs)):
            rank = len(x.shape) if isinstance(x, Tensor) else len(getattr(x, "shape", ()))
            held, t = _exposed(x, _entries(s, rank, mesh, f"argument {k}"), mesh, k)
            names.append(held)
            tensors.append(t)
        told = {}

        def body(*inner):
            result = fn(*tree_unflatten(treedef, list(inner)))
            outs, tree, wanted = _prefix(out_specs, result, "out_specs")
            dims = []
            for k, (o, s) in enumerate(zip(outs, wanted)):
                rank = len(o.shape) if isinstance(o, Tensor) else 0
                dims.append(_entries(s, rank, mesh, f"result {k}"))
            told["tree"], told["dims"] = tree, dims
            return tuple(_result(o, d, mesh, levels, check_rep, f" {k}" if len(outs) > 1 else "") for k, (o, d) in enumerate(zip(outs, dims)))

        # each axis is a vmap; the first axis is the outermost, so that it becomes the first dim of the result
        def level(k, inner):
            if k == len(mesh.axis_names):
                return body(*inner)
            name = mesh.axis_names[k]
            axes = tuple(0 if name in held else None for held in names)
            with named_axis(mesh, name, level0 + k):
                return vmap_call(lambda *more: level(k + 1, more), axes, 0, mesh.shape[k], None, tuple(inner), {})

        outs = level(0, tensors)
        results = []
        for t, d in zip(outs, told["dims"]):
            used = {a for dim in d for a in dim}
            for k in reversed(range(len(mesh.axis_names))):
                if mesh.axis_names[k] not in used:
                    t = t[(slice(None),) * k + (0,)]
            results.append(_put_back(t, [a for a in mesh.axis_names if a in used], d, mesh))
        return tree_unflatten(told["tree"], results)

    functools.update_wrapper(mapped, fn, updated=())
    return mapped


def pmap(fn=None, axis_name="devices", *, in_axes=0, out_axes=0, mesh=None, axis_size=None):
    """The function fn on every device, each with its element of the first axis (in_axes: of another; None:
    all have the same). The axis is as long as there are devices.

    mesh: of one axis; without one it has as many devices as the axis has elements. Inside, collectives name
    axis_name."""
    if fn is None:
        return functools.partial(pmap, axis_name=axis_name, in_axes=in_axes, out_axes=out_axes, mesh=mesh, axis_size=axis_size)
    from .vmap import vmap

    if mesh is not None and axis_name not in mesh.axis_names:
        axis_name = mesh.axis_names[0]

    def mapped(*args):
        grid = mesh
        if grid is None:
            axes = in_axes if isinstance(in_axes, list | tuple) else [in_axes] * len(args)
            sizes = [int(leaf.shape[a]) for x, a in zip(args, axes) if isinstance(a, int) for leaf in tree_flatten(x)[0]]
            n = axis_size if axis_size is not None else sizes[0] if sizes else None
            if n is None:
                raise ValueError("pmap: nothing is mapped; give axis_size or a mesh")
            grid = DeviceMesh(f"pmap{n}", (n,), (axis_name,))
        return vmap(fn, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size, spmd_axis_name=axis_name, mesh=grid)(*args)

    functools.update_wrapper(mapped, fn, updated=())
    return mapped
