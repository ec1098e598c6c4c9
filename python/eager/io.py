"""Tensors in files: safetensors (also in shards), npy and npz, GGUF. The formats are C (src/io); this is
their Python side.

eager.save("model.safetensors", {"w": w, "b": b})
weights = eager.load("model.safetensors")      # a dict; nothing is read before it is used
"""

import errno
import json
import os
from collections.abc import Mapping

import numpy as np

from eas._eas import (
    weights_list,
    weights_metadata,
    weights_open,
    weights_raw,
    weights_save,
    weights_tensor,
    weights_tensors,
)

from ._wrapped import Wrapped
from .core import Tensor, tree_flatten, tree_unflatten

_QUANTIZED = "eager.quantized."  # metadata of safetensors: which tensors belong together
_STORED = "eager.stored."  # metadata of safetensors: dtypes that the format does not have
_AS = {"complex64": "C64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
_DTYPES = {v: k for k, v in _AS.items()} | {f"{order}c{n}": f"complex{n * 8}" for order in "<>" for n in (8, 16)}
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
INDEX = "model.safetensors.index.json"


def _find(path):
    """The file that a path means: for a folder, the model in it."""
    path = os.fspath(path)
    if os.path.isdir(path):
        for name in ("model.safetensors", INDEX):
            if os.path.exists(os.path.join(path, name)):
                return os.path.join(path, name)
        raise FileNotFoundError(errno.ENOENT, f"no model.safetensors and no {INDEX} in this folder", path)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return path


class Weights(Mapping):
    """The tensors of a file, by name. Opening reads the header; w[name] is a tensor over the file,
    w.slice(name, key) a part of one."""

    def __init__(self, path):
        self.path = _find(path)
        self._w = weights_open(self.path)
        self.format, infos = weights_list(self._w)
        self._at = {info[0]: (i, info) for i, info in enumerate(infos)}

    def __repr__(self):
        return f"<Weights of {self.path!r}: {self.format}, {len(self)} tensors>"

    def __len__(self):
        return len(self._at)

    def __iter__(self):
        return iter(self._at)

    def _index(self, name):
        try:
            return self._at[name]
        except KeyError:
            raise KeyError(f"{self.path} has no tensor {name!r}; it has {', '.join(map(repr, list(self._at)[:5]))}, ...") from None

    def __getitem__(self, name):
        return self._tensor(name, None)

    def _tensor(self, name, device):
        i, info = self._index(name)
        if info[3] is None and info[2] in _DTYPES:
            t = self._wrapped(name, i, info)
            return t if device is None else t.to(device)
        return weights_tensor(self._w, i, device)

    def _wrapped(self, name, i, info):
        """A tensor of complex numbers or of float8; its data is read at once."""
        if self.format != "safetensors":
            found = np.load(self.path, allow_pickle=False)
            a = found if self.format == "npy" else found[name]
            return Tensor.constant(a.astype(a.dtype.newbyteorder("=")))
        dtype = _DTYPES[info[2]]
        if dtype.startswith("complex"):
            return Tensor.constant(np.frombuffer(self.raw(name), dtype).reshape(info[1]))
        from ._storage import StoredTensor, dtype_or_none

        return StoredTensor(Tensor.constant(np.frombuffer(self.raw(name), np.uint8).reshape(info[1])), dtype_or_none(dtype))

    @property
    def metadata(self):
        """The metadata of the file: a dict of str (safetensors), or of numbers, strings and lists (GGUF).
        """
        found = weights_metadata(self._w)
        return {k: json.loads(v) for k, v in found.items()} if self.format == "gguf" else found

    def shape(self, name):
        return self._index(name)[1][1]

    def dtype(self, name):
        """The dtype that the tensor has; None: one that tensors cannot have, such as float6."""
        info = self._index(name)[1]
        return info[3] or _DTYPES.get(info[2])

    def stored(self, name):
        """The dtype as the file names it: "F32", "<f4", "Q4_K"."""
        return self._index(name)[1][2]

    def slice(self, name, key):
        """w.slice(name, np.s_[2:5, :, 3]): only these elements are read."""
        i, info = self._index(name)
        if info[3] is None and info[2] in _DTYPES:
            return self[name][key]
        key = key if isinstance(key, tuple) else (key,)
        shape = info[1]
        if Ellipsis in key:
            at = key.index(Ellipsis)
            key = key[:at] + (slice(None),) * (len(shape) - len(key) + 1) + key[at + 1 :]
        if len(key) > len(shape):
            raise IndexError(f"{len(key)} indices for tensor {name!r} of shape {shape}")
        start, size, after = [], [], []
        for k, n in zip(key + (slice(None),) * (len(shape) - len(key)), shape, strict=True):
            if isinstance(k, slice):
                first, stop, step = k.indices(n)
                count = len(range(first, stop, step))
                low = first if step > 0 else first + (count - 1) * step
                start.append(low if count else 0)
                size.append((count - 1) * abs(step) + 1 if count else 0)
                after.append(slice(None) if step == 1 or not count else slice(None, None, step))
            else:
                k = k.__index__()
                if not -n <= k < n:
                    raise IndexError(f"index {k} is out of range for an axis of {n} elements of tensor {name!r}")
                start.append(k % n)
                size.append(1)
                after.append(0)
        part = weights_tensor(self._w, i, None, start, size)
        return part if all(a == slice(None) for a in after) else part[tuple(after)]

    def raw(self, name):
        """A copy of the tensor's bytes in the file."""
        return weights_raw(self._w, self._index(name)[0])

    def tensors(self, device=None):
        """All of them: a dict."""
        if all(info[3] is not None or info[2] not in _DTYPES for _, info in self._at.values()):
            return weights_tensors(self._w, device)
        return {name: self._tensor(name, device) for name in self}


def open_weights(path):
    """The tensors of a file or a folder, to be taken one by one: see Weights."""
    return Weights(path)


# ---- trees as names ----


def _is_quantized(x):
    from .quantized import QuantizedTensor

    return isinstance(x, QuantizedTensor)


def _tensor_of(name, x):
    if isinstance(x, (Tensor, Wrapped, _Leaf)):
        return x
    if hasattr(x, "detach"):  # torch's: a tensor that needs gradients refuses to be exported
        x = x.detach()
    if isinstance(x, (str, bytes)) or x is None:
        raise TypeError(f"{name!r} is {x!r}: files hold tensors, arrays and numbers")
    try:
        return Tensor.constant(x)
    except TypeError as e:
        raise TypeError(f"{name!r} is a {type(x).__name__}: files hold tensors, arrays and numbers") from e


def _walk(tree, prefix, out, meta):
    if hasattr(tree, "state_dict") and callable(tree.state_dict):
        tree = tree.state_dict()
    if _is_quantized(tree):
        if not prefix:
            prefix = "weight"
        meta[_QUANTIZED + prefix] = json.dumps({"kind": tree.kind, "shape": list(tree.shape), "group": tree.group})
        tree = {k: v for k, v in (("data", tree.data), ("scales", tree.scales), ("offsets", tree.offsets)) if v is not None}
    if isinstance(tree, Mapping):
        items = [(str(k), v) for k, v in tree.items()]
    elif hasattr(tree, "_asdict"):
        items = list(tree._asdict().items())
    elif isinstance(tree, (list, tuple)):
        items = [(str(i), v) for i, v in enumerate(tree)]
    elif hasattr(tree, "__dataclass_fields__"):
        items = [(k, getattr(tree, k)) for k in tree.__dataclass_fields__]
    else:
        name = prefix or "arr_0"
        if name in out:
            raise ValueError(f"two tensors would be called {name!r}: one is a key with dots, the other is nested")
        out[name] = _tensor_of(name, tree)
        return
    for k, v in items:
        if v is not None:
            _walk(v, f"{prefix}.{k}" if prefix else k, out, meta)


def save(path, tree, *, metadata=None, compressed=False):
    """Writes the tensors of a dict, tree, module or torch state dict, as path ends: .safetensors, .npz, .npy
    (one tensor). Names of nested ones are joined by dots.

    The file is written under another name, synced and renamed: whoever reads sees the old one or the new one.
    metadata: a dict of str, for safetensors. compressed: entries of .npz are deflated."""
    found, meta = {}, {}
    _walk(tree, "", found, meta)
    meta.update(metadata or {})
    path = os.fspath(path)
    if meta and not path.endswith(".safetensors"):
        raise ValueError(f"{path}: only .safetensors files have metadata, which quantized tensors need too")
    found, stored = _plain_parts(path, found, meta)
    for k, v in meta.items():
        if not isinstance(k, str) or not isinstance(v, str):
            raise TypeError(f"metadata is a dict of str to str, not {k!r}: {v!r}")
    weights_save(path, tuple(found), tuple(found.values()), stored, tuple(t for kv in meta.items() for t in kv), compressed)


def _plain_parts(path, found, meta):
    """(tensors that C writes, what the file calls each or None): complex ones as pairs, float8 and int4 as
    their bytes."""
    out, stored = {}, []
    for name, x in found.items():
        how = _AS.get(x.dtype.numpy_name) if isinstance(x, Wrapped) else None
        if isinstance(x, Wrapped) and how is None:
            if not path.endswith(".safetensors"):
                raise ValueError(f"{path}: {name!r} is {x.dtype.numpy_name}, which only .safetensors files can say")
            meta[_STORED + name] = x.dtype.numpy_name
        stored.append(how)
        out[name] = _bytes_of(x) if isinstance(x, Wrapped) else x
    return out, tuple(stored)


def _bytes_of(x):
    import eager

    return eager.stack([x.real, x.imag], axis=-1) if eager.iscomplexobj(x) else x.bits


def save_safetensors(path, tensors, metadata=None):
    """save() to a safetensors file of any name that ends so."""
    if not os.fspath(path).endswith(".safetensors"):
        raise ValueError(f"{os.fspath(path)}: the name of a safetensors file ends in .safetensors")
    save(path, tensors, metadata=metadata)


# ---- reading ----


def _restored(tensors, metadata):
    """Tensors with the dtype that the file's metadata gives them."""
    from ._storage import StoredTensor, dtype_or_none

    for key, dtype in metadata.items():
        name = key.removeprefix(_STORED)
        if name != key and name in tensors and dtype_or_none(dtype) is not None:
            tensors[name] = StoredTensor(tensors[name], dtype_or_none(dtype))
    return tensors


def _join_quantized(tensors, metadata):
    for key, text in metadata.items():
        if not key.startswith(_QUANTIZED):
            continue
        from .quantized import QuantizedTensor

        name, about = key[len(_QUANTIZED) :], json.loads(text)
        parts = [tensors.pop(f"{name}.{k}", None) for k in ("data", "scales", "offsets")]
        tensors[name] = QuantizedTensor(about["kind"], tuple(about["shape"]), about["group"], *parts)
    return tensors


class _Leaf:
    """A placeholder for a leaf of a tree while its name is found."""

    def __init__(self, value):
        self.value = value


def _sizes(x):
    return tuple(int(d) for d in x.shape)


def _like(tensors, tree):
    if hasattr(tree, "load_state_dict"):
        tree.load_state_dict(tensors)
        return tree
    leaves, treedef = tree_flatten(tree, is_leaf=lambda x: isinstance(x, Wrapped))
    names, stand_ins = {}, [_Leaf(x) for x in leaves]
    _walk(tree_unflatten(treedef, stand_ins), "", names, {})
    tensors = {k: t for name, x in tensors.items() for k, t in _named_parts(name, x)}
    missing, extra = [n for n in names if n not in tensors], [n for n in tensors if n not in names]
    wrong = [
        f"{n} {_sizes(tensors[n])} for {_sizes(leaf.value)}"
        for n, leaf in names.items()
        if n in tensors and hasattr(leaf.value, "shape") and _sizes(tensors[n]) != _sizes(leaf.value)
    ]
    if missing or extra or wrong:
        said = [f"{w}: {', '.join(x)}" for w, x in (("missing", missing), ("not wanted", extra), ("wrong shape", wrong)) if x]
        raise ValueError("the file does not fit the tree; " + "; ".join(said))
    found = {id(leaf): tensors[n] for n, leaf in names.items()}
    return tree_unflatten(treedef, [found[id(leaf)] for leaf in stand_ins])


def _named_parts(name, x):
    if not _is_quantized(x):
        return [(name, x)]
    return [(f"{name}.{k}", v) for k, v in (("data", x.data), ("scales", x.scales), ("offsets", x.offsets)) if v is not None]


def _on(tensors, device):
    return tensors if device is None else {k: v.to(device) for k, v in tensors.items()}


def _load_torch(path):
    try:
        import torch
    except ImportError:
        raise ImportError(f"{path}: PyTorch's own files are pickles, which only torch reads: install torch, or convert the file to safetensors") from None
    return from_torch(torch.load(path, map_location="cpu", weights_only=True))


def from_torch(tree):
    """A torch state dict, or any tree of torch tensors, as eager tensors: over the same memory where they are
    contiguous and on the CPU."""
    if hasattr(tree, "detach"):
        x = tree.detach()
        return Tensor.from_dlpack(x if x.device.type == "cpu" else x.cpu())
    if isinstance(tree, Mapping):
        return {k: from_torch(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(from_torch(v) for v in tree)
    return tree


def load(path, *, like=None, device=None):
    """The tensors of a file: a dict by name; of an .npy file, the tensor. A folder stands for the
    model.safetensors, or its shards, in it.

    device: None is the one that new tensors are on. On the CPU nothing is read before it is used where the
    file has elements as memory has them. like: a tree to be filled, of the structure that was saved. A torch
    state dict is converted."""
    if isinstance(path, Mapping) or hasattr(path, "state_dict"):
        tensors = _on(from_torch(path if isinstance(path, Mapping) else path.state_dict()), device)
    else:
        path = _find(path)
        if path.endswith(_TORCH):
            tensors = _on(_load_torch(path), device)
        else:
            w = Weights(path)
            tensors = w.tensors(device)
            if path.endswith(".npy") and like is None:
                return tensors["arr_0"]
            if path.endswith(".safetensors"):
                tensors = _join_quantized(_restored(tensors, w.metadata), w.metadata)
    return tensors if like is None else _like(tensors, like)


def load_safetensors(path, *, device=None):
    """The tensors of a safetensors file, of shards by their index, or of a folder with either: a dict."""
    w = Weights(path)
    if w.format != "safetensors":
        raise ValueError(f"{w.path} is {w.format}, not safetensors")
    return _join_quantized(_restored(w.tensors(device), w.metadata), w.metadata)


def load_gguf(path, *, quantized=False, device=None):
    """(tensors, metadata) of a GGUF file. Blocks are dequantised to float32; quantized: matrices of Q4_0,
    Q8_0 and Q4_K stay as they are, as QuantizedTensors of shape (in, out), the transposes of what the file
    has."""
    w = Weights(path)
    if w.format != "gguf":
        raise ValueError(f"{w.path} is {w.format}, not GGUF")
    if not quantized:
        return w.tensors(device), w.metadata
    from .quantized import _from_gguf

    tensors = {name: _from_gguf(w, name) or w[name] for name in w}
    return _on(tensors, device), w.metadata
