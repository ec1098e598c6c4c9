"""Methods of Tensor that are sugar: constructors, shards, names of other libraries."""

from eas._eas import EagerTensor as Tensor
from eas._eas import shard_node
from eas._eas import tensor_ops as _ops

from . import _array_api, _autograd
from .ops import convolution, creation, multi_output, pooling, unary, view
from .sharding import spmd
from .sharding.spec import DimSpec, PartitionSpec, ShardingSpec, create_replicated_spec
from .sharding.spmd import addressable_shards, compute_local_shape


def _shard(self, mesh, specs, replicated_axes=None, pad=False):
    """The tensor laid out over a mesh: a PartitionSpec, or an entry for each dim (None, an axis, several, a
    DimSpec). Values stay what they are.

    Sizes must divide, unless pad: then the last parts are padded, and the padding never counts."""
    rank = len(self.shape)
    if isinstance(specs, PartitionSpec):
        specs = list(specs.to_spec(mesh, rank).dim_specs)
    specs = list(specs)
    if len(specs) != rank:
        raise ValueError(f"shard: {len(specs)} specs for a tensor of {rank} dims")
    old = self.sharding
    if old is not None and old.mesh != mesh:
        self = _gather(self).realize()
        old = None
    lanes = [DimSpec(d.axes, is_open=True, priority=d.priority) for d in old.dim_specs[: self.batch_dims]] if old is not None else []
    lanes += [DimSpec((), is_open=True) for _ in range(self.batch_dims - len(lanes))]
    used = {a for d in map(DimSpec.from_raw, specs) for a in d.axes} | set(replicated_axes or ())
    lanes = [DimSpec([a for a in d.axes if a not in used], is_open=True, priority=d.priority) for d in lanes]
    out = shard_node(self, ShardingSpec(mesh, [*lanes, *specs], replicated_axes or ()), bool(pad))
    if any(d.is_open for d in lanes):
        dims = [DimSpec(d.axes, priority=d.priority) for d in lanes]
        out.sharding = ShardingSpec(mesh, [*dims, *specs], replicated_axes or ())
    return out


def _gather(self, *args, **kwargs):
    """gather(): the tensor without its layout. gather(indices, axis=0): elements of an axis by their numbers.
    """
    if args or kwargs:
        return _ops["gather"](self, *args, **kwargs)
    spec = self.sharding
    if spec is None:
        return self
    out = shard_node(self, create_replicated_spec(spec.mesh, len(spec.dim_specs)), False)
    out.sharding = None
    return out


def _local_shape(self):
    """The shape of the part that a device stores; of an unsharded tensor its shape."""
    spec = self.sharding
    if spec is None:
        return self.shape
    return compute_local_shape(self.shape, ShardingSpec(spec.mesh, [DimSpec(d.axes) for d in spec.dim_specs[self.batch_dims :]]))


def _local_parts(self):
    """[(device, array), ...]: the parts of the tensor that the devices of this process store, padding
    included; None: the tensor is not cut into parts."""
    return addressable_shards(self)


def _is_sharded(self):
    """Is any dim cut?"""
    return self.sharding is not None and not self.sharding.is_fully_replicated()


def _namespace(self, *, api_version=None):
    """eager.array_api, as the array API standard requires."""
    if api_version is not None and api_version not in ("2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"array API version {api_version} is not known here; 2024.12 is")
    from . import array_api

    return array_api


def _copy(self):
    """Another handle of the same data: assignments to elements of one do not show in the other."""
    return _ops["alias"](self, self.batch_dims)


def _transpose(self, *axes):
    """transpose(): axes in reverse order; transpose(a, b): two change places; transpose(order), or another
    number of axes: that order."""
    if len(axes) == 1 and not isinstance(axes[0], int):
        return _ops["permute"](self, axes[0])
    if not axes:
        return self.T
    return _ops["swap_axes"](self, *axes) if len(axes) == 2 else _ops["permute"](self, axes)


def _view(self, *shape):
    """The same elements in another shape."""
    return _ops["reshape"](self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)


def _astype(self, dtype, copy=True):
    """The tensor in another dtype."""
    return _ops["cast"](self, dtype=dtype)


def _format(self, spec):
    """A tensor of one element is formatted as its number, any other as its text."""
    return format(self.item(), spec) if spec and self.size == 1 else format(repr(self), spec)


def _round(self, ndigits=None):
    """round(x), round(x, ndigits)."""
    return _ops["round"](self) if not ndigits else _ops["round"](self * 10.0**ndigits) / 10.0**ndigits


def _contains(self, value):
    """Is any element equal to the value?"""
    return bool(_ops["any"](self == value))


def _detach(self):
    """The same data, which derivatives do not pass through."""
    return _ops["stop_gradient"](self)


def _caster(name, dtype):
    def f(self):
        return _ops["cast"](self, dtype=dtype)

    f.__name__, f.__doc__ = name, f"As {dtype}."
    return f


def _reduce(self):
    """Pickles and deep copies hold the data."""
    if self.batch_dims:
        raise TypeError("a tensor inside vmap cannot be pickled")
    return creation.constant, (self.numpy(), None, self.device)


def _imag(self):
    import eager

    return eager.imag(self)


def _array_ufunc(self, ufunc, method, *inputs, **kwargs):
    import eager

    return eager._protocol.array_ufunc(self, ufunc, method, *inputs, **kwargs)


def _array_function(self, func, types, args, kwargs):
    import eager

    return eager._protocol.array_function(self, func, types, args, kwargs)


def _numpy_methods():
    """Functions of _numpy and of activations that are methods of arrays in NumPy or torch."""
    return (
        "allclose angle argpartition argwhere atleast_1d atleast_2d atleast_3d bincount bitwise_count bitwise_not clamp compress conj corrcoef cov cross deg2rad diag diagflat elu expand fill_diagonal "
        "fix flatnonzero fliplr flipud fmax fmin fmod frexp gcd glu hardswish heaviside histogram index_select inner isclose isin isneginf isposinf isreal kron lcm ldexp leaky_relu left_shift "
        "log_sigmoid logaddexp2 masked_fill masked_select median mish movedim nan_to_num nanmax nanmean nanmedian nanmin nanprod nanquantile nanstd nansum nanvar narrow partition percentile ptp quantile rad2deg "
        "ravel relu6 resize right_shift rint rot90 selu sinc softplus softsign take_along_dim trapezoid unique unravel_index vander vdot"
    ).split()


def _function(name):
    def method(self, *args, **kwargs):
        import eager

        return getattr(eager, name)(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    return method


def install():
    for name in ("ones", "zeros", "full", "arange", "constant", "from_dlpack", "eye", "uniform", "gaussian", "linspace"):
        setattr(Tensor, name, staticmethod(getattr(creation, name)))
    for name in ("layer_norm", "rms_norm", "one_hot"):
        setattr(Tensor, name, getattr(unary, name))
    Tensor.conv2d, Tensor.conv2d_transpose = convolution.conv2d, convolution.conv2d_transpose
    Tensor.avg_pool2d, Tensor.max_pool2d = pooling.avg_pool2d, pooling.max_pool2d
    Tensor.pad, Tensor.matrix_trace = view.pad, view.matrix_trace
    for name in ("split", "chunk", "unbind", "minmax", "topk"):
        setattr(Tensor, name, getattr(multi_output, name))
    for name in (
        "sum",
        "prod",
        "mean",
        "var",
        "std",
        "cumsum",
        "cumprod",
        "cumulative_sum",
        "cumulative_prod",
        "clip",
        "sort",
        "argsort",
        "nonzero",
        "outer",
        "diff",
    ):
        setattr(Tensor, name, getattr(_array_api, name))
    for name, op in _array_api.NAMED.items():
        if name not in ("concat", "transpose"):
            setattr(Tensor, name, op)
    for name, f in {
        "shard": _shard, "gather": _gather, "reshard": spmd.reshard, "local_parts": _local_parts, "requires_grad_": _autograd.requires_grad_, "backward": _autograd.backward, "__array_namespace__": _namespace, "copy": _copy, "clone": _copy, "transpose": _transpose, "view": _view,
        "astype": _astype, "__reduce__": _reduce, "__format__": _format, "__round__": _round, "__contains__": _contains, "detach": _detach, "__copy__": _copy,
    }.items():  # fmt: skip
        setattr(Tensor, name, f)
    for name, dtype in {
        "float": "float32",
        "half": "float16",
        "double": "float64",
        "bfloat16": "bfloat16",
        "int": "int32",
        "long": "int64",
        "bool": "bool",
    }.items():
        setattr(Tensor, name, _caster(name, dtype))
    for name in _numpy_methods():
        if name not in Tensor.__dict__:
            setattr(Tensor, name, _function(name))
    Tensor.__array_ufunc__, Tensor.__array_function__ = _array_ufunc, _array_function
    Tensor.__complex__ = lambda self: complex(self.item())
    Tensor.imag = property(_imag, doc="the imaginary part of a real tensor: zeros")
    Tensor.H = Tensor.mH = property(lambda self: self.mT, doc="the last two axes swapped, and conjugated")
    Tensor.cpu, Tensor.numel, Tensor.dim = lambda self: self.to("cpu"), lambda self: self.size, lambda self: self.ndim
    Tensor.is_sharded = property(_is_sharded)
    Tensor.local_shape = property(_local_shape)
    Tensor.from_local, Tensor.from_callback = staticmethod(spmd.from_local), staticmethod(spmd.shard_from_callback)
    Tensor.requires_grad = property(
        lambda self: self.is_traced, lambda self, on: _autograd.requires_grad_(self, on), doc="are operations kept for derivatives?"
    )
    for name in ("alias", "custom", "index", "index_update", "slice_set", "iota"):
        if name in Tensor.__dict__:
            delattr(Tensor, name)
