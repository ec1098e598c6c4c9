"""Checkpoints of sharded tensors: a folder with a safetensors file for each device and an index.

    eager.save_sharded("step-100", {"params": params, "step": step})
    state = eager.load_sharded("step-100", like=state)             # laid out as `state` is, on whatever mesh
    state = eager.load_sharded("step-100", mesh=mesh)              # a dict by name, cut along the same axes

Every rank writes the parts that it holds (of equal ones, the first device's alone) and reads only the bytes
of the parts that it will hold; no rank has a whole tensor. Files have names that no checkpoint before had;
the index is written last, to a temporary file that is synced and renamed, and only then are the files of the
checkpoint before removed. So a crash at any moment leaves the old checkpoint or the new one, whole.
"""

import json
import math
import os
import secrets
from contextlib import suppress

import numpy as np

from eas._eas import dist_is_job, local_parts

from . import distributed as dist
from .core import Tensor, tree_flatten, tree_unflatten
from .io import Weights, _join_quantized, _Leaf, _walk, save
from .sharding.spec import DeviceMesh, DimSpec, ShardingSpec, create_replicated_spec
from .sharding.spmd import _spec, get_num_shards, local_slices, shard_from_callback

__all__ = ["load_sharded", "save_sharded"]

INDEX = "index.json"
FORMAT = "eager.sharded"


def _ranks():
    """(rank, size) of the job. In a program of one process no job is opened."""
    return dist.init() if dist_is_job() else (0, 1)


def _shape(x):
    return tuple(int(n) for n in x.shape)


def _read_index(path):
    with open(os.path.join(path, INDEX), encoding="utf-8") as f:
        index = json.load(f)
    if not isinstance(index, dict) or index.get("format") != FORMAT or not isinstance(index.get("tensors"), dict):
        raise ValueError(f"{path}: {INDEX} is no index of a sharded checkpoint")
    if index.get("version") != 1:
        raise ValueError(f"{path}: a sharded checkpoint of version {index.get('version')}; this library reads version 1")
    return index


def _sync_folder(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---- writing ----


def _pieces(x):
    """[(device, start, shape)] of the different parts of a tensor: each belongs to the first device that
    stores it. An unsharded tensor is one piece of device 0."""
    spec, shape = x.sharding, _shape(x)
    if spec is None or spec.is_fully_replicated():
        return [(0, [0] * len(shape), list(shape))]
    found = {}
    for k in range(spec.mesh.size):
        at = local_slices(shape, spec, k)
        key = tuple((s.start, s.stop) for s in at)
        if all(b > a for a, b in key):
            found.setdefault(key, k)
    return [(k, [a for a, _ in key], [b - a for a, b in key]) for key, k in found.items()]


def _part(x, held, device, shape):
    """The data of one piece, without padding."""
    if held is None:
        return x
    t = Tensor.from_dlpack(held[device])
    return t if _shape(t) == tuple(shape) else t[tuple(slice(0, n) for n in shape)]


def _agree(error):
    """Either all ranks go on, or none does: an error of one rank is raised in all."""
    if _ranks()[1] > 1 and not dist.all_reduce(np.array([error is None]), "and")[0] and error is None:
        raise RuntimeError("save_sharded: another rank could not write its files; the checkpoint before is untouched")
    if error is not None:
        raise error


def _axes(spec):
    return None if spec is None else [list(d.axes) for d in spec.dim_specs]


def _describe(tensors, stem, count):
    """The tensors for the index, and the content of each device's file: {device: {key: (name, shape)}}."""
    described, files = {}, {}
    for name, x in tensors.items():
        parts = []
        for k, start, shape in _pieces(x):
            key = name if len(start) == 0 or all(a == 0 for a in start) else f"{name}@{','.join(map(str, start))}"
            parts.append({"file": f"{stem}-{k + 1:05d}-of-{count:05d}.safetensors", "key": key, "start": start, "shape": shape})
            files.setdefault(k, {})[key] = (name, shape)
        described[name] = {"dtype": str(x.dtype), "shape": list(_shape(x)), "axes": _axes(x.sharding), "parts": parts}
    return described, files


def _write_own(path, tensors, files, stem, count):
    rank, size = _ranks()
    held = {name: dict(local_parts(x) or ()) or None for name, x in tensors.items()}
    for k in sorted(files):
        if size == 1 or k == rank:
            parts = {key: _part(tensors[name], held[name], k, shape) for key, (name, shape) in files[k].items()}
            save(os.path.join(path, f"{stem}-{k + 1:05d}-of-{count:05d}.safetensors"), parts)


def _remove_others(path, keep):
    for name in os.listdir(path):
        if name.endswith(".safetensors") and name.startswith("shards-") and name not in keep:
            with suppress(OSError):
                os.unlink(os.path.join(path, name))


def _commit(path, index):
    temporary = os.path.join(path, f".{INDEX}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(index, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        _sync_folder(path)
        os.replace(temporary, os.path.join(path, INDEX))
        _sync_folder(path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _remove_others(path, {p["file"] for t in index["tensors"].values() for p in t["parts"]})


def save_sharded(path, tree, *, metadata=None):
    """Writes the tensors of a dict, tree or module, whole or in parts, to the folder `path`; names of nested
    ones are joined by dots. Under MPI every rank calls it with its side of the same tensors. metadata: what
    json can hold."""
    rank, size = _ranks()
    path, tensors, quantized = os.fspath(path), {}, {}
    _walk(tree, "", tensors, quantized)
    for x in tensors.values():
        x.realize()  # now it is known how each tensor lies on its mesh
    stem = np.frombuffer(secrets.token_bytes(8), np.uint8).copy()
    if size > 1:
        stem = dist.broadcast(stem)
    stem = f"shards-{bytes(stem).hex()}"
    count = max([1, *(x.sharding.mesh.size for x in tensors.values() if x.sharding is not None)])
    described, files = _describe(tensors, stem, count)
    index = {"format": FORMAT, "version": 1, "metadata": metadata, "quantized": quantized, "tensors": described}
    error = None
    try:
        json.dumps(index)
        os.makedirs(path, exist_ok=True)
        _write_own(path, tensors, files, stem, count)
    except Exception as e:
        error = e
    _agree(error)
    try:
        if rank == 0:
            _commit(path, index)
    except Exception as e:
        error = e
    _agree(error)


# ---- reading ----


class _Reader:
    """A tensor of a checkpoint, of which any box can be read."""

    def __init__(self, path, name, about, opened):
        self.path, self.name, self.about, self.opened = path, name, about, opened
        self.shape = tuple(about["shape"])
        if math.prod(self.shape) != sum(math.prod(p["shape"]) for p in about["parts"]):
            raise ValueError(f"{path}: the parts of {name!r} do not make up its shape {self.shape}")

    def _file(self, name):
        if os.path.basename(name) != name:
            raise ValueError(f"{self.path}: the index names a file outside of its folder: {name!r}")
        if name not in self.opened:
            self.opened[name] = Weights(os.path.join(self.path, name))
        return self.opened[name]

    def read(self, at):
        """The elements in these slices, an array."""
        out = None
        size = [s.stop - s.start for s in at]
        for p in self.about["parts"]:
            low = [max(s.start, a) for s, a in zip(at, p["start"], strict=True)]
            high = [min(s.stop, a + n) for s, a, n in zip(at, p["start"], p["shape"], strict=True)]
            if any(h <= lo for lo, h in zip(low, high, strict=True)):
                continue
            inside = tuple(slice(lo - a, h - a) for lo, h, a in zip(low, high, p["start"], strict=True))
            data = self._file(p["file"]).slice(p["key"], inside).numpy()
            if list(data.shape) == size:
                return data
            if out is None:
                out = np.empty(size, data.dtype)
            out[tuple(slice(lo - s.start, h - s.start) for lo, h, s in zip(low, high, at, strict=True))] = data
        return np.empty(size, self._dtype()) if out is None else out

    def _dtype(self):
        p = self.about["parts"]
        return self._file(p[0]["file"])[p[0]["key"]].numpy().dtype if p else np.float32

    def tensor(self, mesh, spec):
        """On a mesh, cut as spec says; spec None: whole."""
        if spec is None or mesh is None:
            return Tensor.constant(self.read(tuple(slice(0, n) for n in self.shape)))
        uneven = any(n % get_num_shards(spec, d) for d, n in enumerate(self.shape))
        return shard_from_callback(self.read, self.shape, mesh, spec, pad=uneven)


def _wanted(name, reader, mesh, specs):
    if mesh is None:
        return None
    rank = len(reader.shape)
    if specs is not None:
        given = specs(name, reader.shape) if callable(specs) else specs.get(name)
        return create_replicated_spec(mesh, rank) if given is None else _spec(mesh, given, rank)
    axes = reader.about.get("axes")
    if axes is None:
        return None
    unknown = sorted({a for d in axes for a in d} - set(mesh.axis_names))
    if unknown:
        raise ValueError(f"load_sharded: {name!r} was cut along {unknown}, which mesh '{mesh.name}' does not have (it has {mesh.axis_names}): say how it is to be cut by specs=")
    return ShardingSpec(mesh, [DimSpec(d) for d in axes])


def _by_names(tree):
    leaves, treedef = tree_flatten(tree)
    names, stand_ins = {}, [_Leaf(x) for x in leaves]
    _walk(tree_unflatten(treedef, stand_ins), "", names, {})
    return names, stand_ins, treedef


def _fill(path, readers, tree):
    if hasattr(tree, "load_state_dict"):
        tree.load_state_dict(_fill(path, readers, dict(tree.state_dict())))
        return tree
    names, stand_ins, treedef = _by_names(tree)
    missing, extra = [n for n in names if n not in readers], [n for n in readers if n not in names]
    wrong = [f"{n} {readers[n].shape} for {_shape(x.value)}" for n, x in names.items() if n in readers and hasattr(x.value, "shape") and readers[n].shape != _shape(x.value)]
    if missing or extra or wrong:
        said = [f"{w}: {', '.join(x)}" for w, x in (("missing", missing), ("not wanted", extra), ("wrong shape", wrong)) if x]
        raise ValueError(f"{path} does not fit the tree; " + "; ".join(said))
    found = {}
    for n, leaf in names.items():
        spec = getattr(leaf.value, "sharding", None)
        found[id(leaf)] = readers[n].tensor(None if spec is None else spec.mesh, spec)
    return tree_unflatten(treedef, [found[id(leaf)] for leaf in stand_ins])


def load_sharded(path, *, like=None, mesh=None, specs=None, names=None):
    """The tensors of a checkpoint that save_sharded wrote, on any mesh: each process reads the bytes of its
    own parts alone.

    like: a tree of the structure that was saved, whose tensors say how each is to lie; it is not changed,
    unless it is a module. Otherwise a dict by name: with mesh, cut along the axes (by name) that it was cut
    along when it was saved, or as specs says, a dict or a function (name, shape) of specs (None: every device
    has it whole); without a mesh whole. names: only these."""
    path = os.fspath(path)
    if like is not None and (mesh is not None or specs is not None or names is not None):
        raise ValueError("load_sharded: like says how tensors lie; leave out mesh, specs and names")
    if specs is not None and mesh is None:
        raise ValueError("load_sharded: specs without a mesh")
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise TypeError(f"load_sharded: a DeviceMesh is wanted, got {type(mesh).__name__}")
    index, opened = _read_index(path), {}
    readers = {name: _Reader(path, name, about, opened) for name, about in index["tensors"].items()}
    if like is not None:
        return _fill(path, readers, like)
    for name in [*(names or ()), *(specs if isinstance(specs, dict) else ())]:
        if name not in readers:
            raise KeyError(f"{path} has no tensor {name!r}; it has {', '.join(map(repr, list(readers)[:5]))}")
    chosen = readers if names is None else {n: readers[n] for n in names}
    return _join_quantized({n: r.tensor(mesh, _wanted(n, r, mesh, specs)) for n, r in chosen.items()}, {} if names else index.get("quantized") or {})
