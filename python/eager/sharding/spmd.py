"""Tensors in parts: which device has which part, tensors from parts, parts of tensors."""

import math

import numpy as np

from eas._eas import EagerTensor, from_parts, local_parts, mesh_devices

from .._wrapped import Wrapped
from .spec import DeviceMesh, PartitionSpec, ShardingSpec, create_replicated_spec

__all__ = [
    "compute_local_shape",
    "device_coordinates",
    "from_local",
    "get_num_shards",
    "local_slices",
    "reshard",
    "shard",
    "shard_from_callback",
]


def _spec(mesh, specs, rank, replicated_axes=()):
    if isinstance(specs, ShardingSpec):
        return specs
    if isinstance(specs, PartitionSpec):
        return specs.to_spec(mesh, rank)
    specs = list(specs)
    if len(specs) != rank:
        raise ValueError(f"{len(specs)} specs for a tensor of {rank} dims")
    return ShardingSpec(mesh, specs, replicated_axes or ())


def get_num_shards(spec, dim=None):
    """Into how many different parts a spec cuts a tensor; dim: into how many it cuts that dim."""
    dims = spec.dim_specs if dim is None else [spec.dim_specs[dim]]
    return math.prod(spec.mesh.get_axis_size(a) for d in dims for a in d.axes)


def device_coordinates(mesh, device):
    """The place of device number `device` along each axis: {name: place}."""
    return {a: int(k) for a, k in zip(mesh.axis_names, np.unravel_index(device, mesh.shape))}


def compute_local_shape(global_shape, spec, device_id=0):
    """The shape of the part that a device stores. Of sizes that do not divide (pad=True) every part is as
    large as the largest, padding included."""
    if spec is None:
        return tuple(int(n) for n in global_shape)
    if len(spec.dim_specs) != len(global_shape):
        raise ValueError(f"compute_local_shape: a sharding of {len(spec.dim_specs)} dims for a shape of {len(global_shape)}")
    if not 0 <= device_id < spec.mesh.size:
        raise ValueError(f"compute_local_shape: device {device_id} of a mesh of {spec.mesh.size}")
    return tuple(-(-int(n) // get_num_shards(spec, d)) for d, n in enumerate(global_shape))


def local_slices(global_shape, spec, device_id):
    """The elements of the whole tensor that a device's part has: a tuple of slices, padding not included."""
    at, out = device_coordinates(spec.mesh, device_id), []
    for size, step, d in zip(global_shape, compute_local_shape(global_shape, spec, device_id), spec.dim_specs):
        k = 0
        for a in d.axes:
            k = k * spec.mesh.get_axis_size(a) + at[a]
        out.append(slice(min(k * step, int(size)), min((k + 1) * step, int(size))))
    return tuple(out)


def shard(x, mesh, specs, replicated_axes=None, pad=False):
    """x laid out over a mesh; see Tensor.shard."""
    return _tensor(x).shard(mesh, specs, replicated_axes=replicated_axes, pad=pad)


def reshard(x, mesh, specs=None, replicated_axes=None, pad=False):
    """x laid out otherwise: reshard(x, mesh, specs) or reshard(x, spec). Values stay what they are."""
    if isinstance(mesh, ShardingSpec):
        return _tensor(x).shard(mesh.mesh, mesh.dim_specs, replicated_axes=mesh.replicated_axes, pad=pad)
    if specs is None:
        raise TypeError("reshard: a mesh needs specs as well")
    return _tensor(x).shard(mesh, specs, replicated_axes=replicated_axes, pad=pad)


def _tensor(x):
    from ..ops.creation import constant

    return x if isinstance(x, (EagerTensor, Wrapped)) else constant(x)


def _solid(a, dtype, device):
    from ..ops.creation import constant

    t = a if isinstance(a, EagerTensor) else constant(np.ascontiguousarray(a))
    t = t if dtype is None else t.cast(dtype)
    return (t + 0 if isinstance(a, EagerTensor) and t is a else t).realize() if device is None else t.to(device).realize()


def _elsewhere(name, parts, mesh, specs, shape, pad, dtype):
    """A tensor on a mesh of which this rank has no device, so that it has no parts here."""
    if parts:
        raise ValueError(f"{name}: this rank is not one of mesh {mesh.name!r} and has no part; pass None")
    if shape is None or dtype is None:
        raise ValueError(f"{name}: this rank is not one of mesh {mesh.name!r} and has no part to tell the {'dtype' if shape is not None else 'shape'} by; pass global_shape= and dtype=")
    return from_parts(_spec(mesh, specs, len(shape)), bool(pad), tuple(int(n) for n in shape), [], str(dtype))


def from_local(local, mesh, specs, global_shape=None, *, pad=False, dtype=None, device=None):
    """A tensor from the parts that this process has: under MPI the part of this rank; in one process a list
    with the part of every device, in the order of the mesh.

    global_shape is needed only where parts are padded: else it follows from them."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"from_local: a DeviceMesh is wanted, got {type(mesh).__name__}")
    first, count = mesh_devices(mesh)
    parts = list(local) if isinstance(local, list | tuple) else [] if local is None else [local]
    if not count:
        return _elsewhere("from_local", parts, mesh, specs, global_shape, pad, dtype)
    if len(parts) != count:
        raise ValueError(f"from_local: {len(parts)} parts for the {count} devices of this process")
    rank = np.ndim(parts[0]) if not isinstance(parts[0], EagerTensor) else len(parts[0].shape)
    spec = _spec(mesh, specs, rank)
    shape = tuple(np.shape(parts[0])) if not isinstance(parts[0], EagerTensor) else tuple(int(n) for n in parts[0].shape)
    if global_shape is None:
        global_shape = tuple(n * get_num_shards(spec, d) for d, n in enumerate(shape))
    want = compute_local_shape(global_shape, spec)
    arrays = []
    for k, p in enumerate(parts):
        have = tuple(int(n) for n in p.shape) if isinstance(p, EagerTensor) else np.shape(p)
        if have != want:
            if not pad or any(h > w for h, w in zip(have, want)):
                raise ValueError(f"from_local: the part of device {first + k} is {have}, and {want} is wanted")
            p = np.pad(np.asarray(p), [(0, w - h) for h, w in zip(have, want)])
        arrays.append(_solid(p, dtype, device))
    return from_parts(spec, bool(pad), tuple(int(n) for n in global_shape), arrays)


def shard_from_callback(callback, shape, mesh, specs, *, pad=False, dtype=None, device=None):
    """A tensor whose parts a function gives: callback(slices) gives the elements of these slices of
    the whole, and is called once for each device of this process; no process ever has the whole tensor."""
    spec = _spec(mesh, specs, len(shape))
    first, count = mesh_devices(mesh)
    parts = [np.asarray(callback(local_slices(shape, spec, k))) for k in range(first, first + count)]
    if not count:
        return _elsewhere("shard_from_callback", parts, mesh, spec, shape, pad, dtype)
    return from_local(parts, mesh, spec, shape, pad=pad, dtype=dtype, device=device)


def addressable_shards(x):
    """[(device, array)] of this process: the parts of a sharded tensor that its devices store, padding
    included. None: x is not cut into parts."""
    parts = local_parts(x)
    return parts and [(k, t.numpy()) for k, t in parts]


def replicated(mesh, rank):
    return create_replicated_spec(mesh, rank)
