"""Layers with parameters: linear maps, embeddings, normalisation, convolutions; and those without: dropout,
pooling, activations."""

import math

from eas._eas import tensor_ops as _ops

from ..ops.creation import ones, uniform, zeros
from . import functional as F
from .functional.common import tensor as _tensor
from .functional.layers import several
from .module import Module, Parameter, outermost

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CELU", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "Dropout", "ELU", "Embedding",
    "Flatten", "GELU", "GLU", "GroupNorm", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "InstanceNorm", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MaxPool1d", "MaxPool2d",
    "Mish", "PReLU", "RMSNorm", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "Unflatten",
]  # fmt: skip


def _size(name, what, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {what} is an int above 0, got {value!r}")
    return value


def _fan_uniform(shape, fan_in, dtype):
    """Uniform in +-1/sqrt(fan in), with which torch's layers begin."""
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    return Parameter(uniform(shape, -bound, bound, dtype=dtype).realize())


class Identity(Module):
    """Gives x unchanged."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, x):
        return x


class Linear(Module):
    """x @ weight + bias; the weight is (in_features, out_features)."""

    def __init__(self, in_features, out_features, bias=True, *, dtype="float32"):
        super().__init__()
        self.in_features, self.out_features = _size("Linear", "in_features", in_features), _size("Linear", "out_features", out_features)
        self.weight = _fan_uniform((in_features, out_features), in_features, dtype)
        self.bias = _fan_uniform((out_features,), in_features, dtype) if bias else None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """Rows of a table by their numbers. padding_idx: a row that starts at 0 and gets no gradient."""

    def __init__(self, num_embeddings, embedding_dim, *, padding_idx=None, dtype="float32"):
        super().__init__()
        self.num_embeddings = _size("Embedding", "num_embeddings", num_embeddings)
        self.embedding_dim = _size("Embedding", "embedding_dim", embedding_dim)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx is a number of one of {num_embeddings} rows, got {padding_idx}")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        weight = F.normal_init((num_embeddings, embedding_dim), dtype=dtype)
        if padding_idx is not None:
            weight = weight.at[self.padding_idx].set(0.0)
        self.weight = Parameter(weight.realize())

    def forward(self, indices):
        rows = F.embedding(indices, self.weight)
        if self.padding_idx is None:
            return rows
        hidden = _ops["unsqueeze"](_tensor(indices) == self.padding_idx, -1)
        return _ops["where"](hidden, _ops["stop_gradient"](rows), rows)

    def extra_repr(self):
        return f"{self.num_embeddings}, {self.embedding_dim}" + ("" if self.padding_idx is None else f", padding_idx={self.padding_idx}")


# ---- normalisation ----
class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes (normalized_shape), then times weight plus bias."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, *, dtype="float32"):
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        for d in shape:
            _size("LayerNorm", "a size of normalized_shape", d)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight = Parameter(ones(shape, dtype=dtype)) if elementwise_affine else None
        self.bias = Parameter(zeros(shape, dtype=dtype)) if elementwise_affine and bias else None

    def _check(self, x):
        n = len(self.normalized_shape)
        if len(x.shape) < n or tuple(x.shape)[len(x.shape) - n :] != self.normalized_shape:
            raise ValueError(f"{type(self).__name__}: the last sizes must be {self.normalized_shape}, x is {tuple(x.shape)}")
        return tuple(range(-n, 0))

    def forward(self, x):
        return F.layer_norm(x, self.weight, self.bias, self.eps, self._check(x))

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(LayerNorm):
    """Mean square 1 over the last axes, then times weight."""

    def __init__(self, normalized_shape, eps=1e-6, elementwise_affine=True, *, dtype="float32"):
        super().__init__(normalized_shape, eps, elementwise_affine, False, dtype=dtype)

    def forward(self, x):
        return F.rms_norm(x, self.weight, None, self.eps, self._check(x))


class BatchNorm(Module):
    """Each channel (the last axis) with mean 0 and variance 1, over everything else. In training by the
    statistics of the batch, which running ones follow; in eval by those.

    The running statistics are buffers, assigned in forward: in a pure function give the module back
    (has_aux=True) to keep them.
    """

    _ranks = None

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, *, dtype="float32"):
        super().__init__()
        self.num_features, self.eps, self.momentum = _size(type(self).__name__, "num_features", num_features), eps, momentum
        self.weight = Parameter(ones((num_features,), dtype=dtype)) if affine else None
        self.bias = Parameter(zeros((num_features,), dtype=dtype)) if affine else None
        self.register_buffer("running_mean", zeros((num_features,)) if track_running_stats else None)
        self.register_buffer("running_var", ones((num_features,)) if track_running_stats else None)

    def forward(self, x):
        rank = len(x.shape)
        if rank < 2 or (self._ranks and rank not in self._ranks) or int(x.shape[-1]) != self.num_features:
            ranks = f" and rank {' or '.join(map(str, self._ranks))}" if self._ranks else ""
            raise ValueError(f"{type(self).__name__}: x has {self.num_features} channels in its last axis{ranks}, got {tuple(x.shape)}")
        if self.training and math.prod(int(d) for d in x.shape[:-1]) < 2:
            raise ValueError(f"{type(self).__name__}: in training each channel needs more than one value, x is {tuple(x.shape)}")
        r = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps)
        if isinstance(r, tuple):
            r, mean, var = r
            self.running_mean, self.running_var = mean, var
            if outermost():
                from .._autograd import keep

                keep(mean, var)
        return r

    def extra_repr(self):
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.weight is not None}, track_running_stats={self.running_mean is not None}"


class BatchNorm1d(BatchNorm):
    """BatchNorm of (N, C) or (N, L, C)."""

    _ranks = (2, 3)


class BatchNorm2d(BatchNorm):
    """BatchNorm of (N, H, W, C)."""

    _ranks = (4,)


class BatchNorm3d(BatchNorm):
    """BatchNorm of (N, D, H, W, C)."""

    _ranks = (5,)


class GroupNorm(Module):
    """Channels (the last axis) in groups, each with mean 0 and variance 1 over all places of an example."""

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, *, dtype="float32"):
        super().__init__()
        self.num_groups, self.num_channels, self.eps = (
            _size("GroupNorm", "num_groups", num_groups),
            _size("GroupNorm", "num_channels", num_channels),
            eps,
        )
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups")
        self.weight = Parameter(ones((num_channels,), dtype=dtype)) if affine else None
        self.bias = Parameter(zeros((num_channels,), dtype=dtype)) if affine else None

    def forward(self, x):
        if len(x.shape) < 2 or int(x.shape[-1]) != self.num_channels:
            raise ValueError(f"{type(self).__name__}: x has {self.num_channels} channels in its last axis, got {tuple(x.shape)}")
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.weight is not None}"


class InstanceNorm(GroupNorm):
    """Each channel (the last axis) of each example with mean 0 and variance 1."""

    def __init__(self, num_features, eps=1e-5, affine=False, *, dtype="float32"):
        super().__init__(num_features, num_features, eps, affine, dtype=dtype)


# ---- convolutions, channels last; data_format="NCHW" takes and gives channels first ----
class _Conv(Module):
    _dims = 2
    _transposed = False

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        *,
        data_format="channels_last",
        dtype="float32",
        output_padding=0,
    ):
        super().__init__()
        name, n = type(self).__name__, self._dims
        self.in_channels, self.out_channels = _size(name, "in_channels", in_channels), _size(name, "out_channels", out_channels)
        self.kernel_size, self.stride = several(name, "kernel_size", kernel_size, n), several(name, "stride", stride, n)
        self.dilation, self.groups = several(name, "dilation", dilation, n), _size(name, "groups", groups)
        self.padding = (
            padding
            if isinstance(padding, str) or not isinstance(padding, (int, tuple, list))
            else (several(name, "padding", padding, n) if isinstance(padding, int) else tuple(padding))
        )
        if self._transposed:
            self.output_padding = several(name, "output_padding", output_padding, n)
        for what in ("kernel_size", "stride", "dilation"):
            for v in getattr(self, what):
                _size(name, what, v)
        for what, channels in (("in", in_channels), ("out", out_channels)):
            if channels % groups:
                raise ValueError(f"{name}: {channels} {what}put channels do not divide into {groups} groups")
        first = {
            "NCHW": True,
            "channels_first": True,
            "NCL": True,
            "NCDHW": True,
            "NHWC": False,
            "channels_last": False,
            "NLC": False,
            "NDHWC": False,
        }
        if data_format not in first:
            raise ValueError(f'{name}: data_format is "channels_last" or "channels_first", got {data_format!r}')
        self.channels_first = first[data_format]
        window = math.prod(self.kernel_size)
        if self._transposed:
            shape, fan_in = (*self.kernel_size, out_channels // groups, in_channels), out_channels // groups * window
        else:
            shape, fan_in = (*self.kernel_size, in_channels // groups, out_channels), in_channels // groups * window
        self.weight = _fan_uniform(shape, fan_in, dtype)
        self.bias = _fan_uniform((out_channels,), fan_in, dtype) if bias else None

    def forward(self, x):
        rank, at = len(x.shape), -self._dims - 1 if self.channels_first else -1
        if rank not in (self._dims + 1, self._dims + 2) or int(x.shape[at]) != self.in_channels:
            where = "the first axis after the batch" if self.channels_first else "the last axis"
            raise ValueError(
                f"{type(self).__name__}: x has rank {self._dims + 2} (or {self._dims + 1}) and {self.in_channels} channels in {where}, got {tuple(x.shape)}"
            )
        if not self.channels_first:
            return self._convolve(x)
        y = self._convolve(_ops["moveaxis"](x, (at,), (-1,)))
        return _ops["moveaxis"](y, (-1,), (at,))

    def _convolve(self, x):
        f = (F.conv1d, F.conv2d, F.conv3d)[self._dims - 1]
        return f(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self):
        s = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        s += f", padding={self.padding!r}" if self.padding not in (0, (0,) * self._dims) else ""
        s += f", dilation={self.dilation}" if any(d != 1 for d in self.dilation) else ""
        return s + (f", groups={self.groups}" if self.groups != 1 else "") + ("" if self.bias is not None else ", bias=False")


class Conv1d(_Conv):
    """Convolution of (N, L, C); the weight is (K, in / groups, out)."""

    _dims = 1


class Conv2d(_Conv):
    """Convolution of (N, H, W, C); the weight is (H, W, in / groups, out). padding: a number, one for each
    dim, pairs, "same" or "valid"."""


class Conv3d(_Conv):
    """Convolution of (N, D, H, W, C); the weight is (D, H, W, in / groups, out)."""

    _dims = 3


class ConvTranspose2d(_Conv):
    """Transposed convolution of (N, H, W, C); the weight is (H, W, out / groups, in)."""

    _transposed = True

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        *,
        data_format="channels_last",
        dtype="float32",
    ):
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            data_format=data_format,
            dtype=dtype,
            output_padding=output_padding,
        )

    def _convolve(self, x):
        f = F.conv_transpose1d if self._dims == 1 else F.conv_transpose2d
        return f(x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)


class ConvTranspose1d(ConvTranspose2d):
    """Transposed convolution of (N, L, C); the weight is (K, out / groups, in)."""

    _dims = 1


# ---- pooling ----
class _Pool(Module):
    def extra_repr(self):
        return ", ".join(f"{k}={v}" for k, v in self.__dict__.items() if k not in ("training", "_roles"))


class MaxPool2d(_Pool):
    """Largest elements of windows of (N, H, W, C)."""

    _f = staticmethod(F.max_pool2d)

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
        super().__init__()
        self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode = (
            kernel_size,
            kernel_size if stride is None else stride,
            padding,
            dilation,
            ceil_mode,
        )

    def forward(self, x):
        return self._f(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class MaxPool1d(MaxPool2d):
    """Largest elements of windows of (N, L, C)."""

    _f = staticmethod(F.max_pool1d)


class AvgPool2d(_Pool):
    """Means of windows of (N, H, W, C)."""

    _f = staticmethod(F.avg_pool2d)

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, x):
        return self._f(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class AvgPool1d(AvgPool2d):
    """Means of windows of (N, L, C)."""

    _f = staticmethod(F.avg_pool1d)


class AdaptiveAvgPool2d(_Pool):
    """Means over a grid of windows that covers (N, H, W, C)."""

    _f = staticmethod(F.adaptive_avg_pool2d)

    def __init__(self, output_size):
        super().__init__()
        self.output_size = output_size

    def forward(self, x):
        return self._f(x, self.output_size)


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """Means over windows that cover (N, L, C)."""

    _f = staticmethod(F.adaptive_avg_pool1d)


# ---- dropout, shapes ----
class Dropout(Module):
    """Elements are 0 with probability p in training, the others are divided by 1 - p."""

    def __init__(self, p=0.5):
        super().__init__()
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
            raise ValueError(f"Dropout: p is a probability in [0, 1], got {p!r}")
        self.p = p

    def forward(self, x, key=None):
        return F.dropout(x, self.p, self.training, key)

    def extra_repr(self):
        return f"p={self.p}"


class Flatten(Module):
    """Axes start_dim to end_dim as one."""

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x):
        return _ops["flatten"](x, self.start_dim, self.end_dim)


class Unflatten(Module):
    """One axis as several."""

    def __init__(self, axis, shape):
        super().__init__()
        self.axis, self.shape = axis, tuple(shape)

    def forward(self, x):
        return _ops["unflatten"](x, self.axis, self.shape)


# ---- activations ----
class _Activation(Module):
    _f = None

    def forward(self, x):
        return type(self)._f(x)


def _activation(name, f):
    cls = type(name, (_Activation,), {"_f": staticmethod(f), "__doc__": f.__doc__, "__module__": __name__, "__qualname__": name})
    return cls


ReLU, Sigmoid, Tanh, SiLU, Mish, SELU, ReLU6 = (
    _activation(n, f)
    for n, f in (("ReLU", F.relu), ("Sigmoid", F.sigmoid), ("Tanh", F.tanh), ("SiLU", F.silu), ("Mish", F.mish), ("SELU", F.selu), ("ReLU6", F.relu6))
)
Softsign, Hardsigmoid, Hardswish, LogSigmoid = (
    _activation(n, f)
    for n, f in (("Softsign", F.softsign), ("Hardsigmoid", F.hardsigmoid), ("Hardswish", F.hardswish), ("LogSigmoid", F.log_sigmoid))
)


class GELU(Module):
    """Gaussian error linear unit, in its tanh form; approximate="none": with the error function."""

    def __init__(self, approximate="tanh"):
        super().__init__()
        if approximate not in ("tanh", "none"):
            raise ValueError(f'GELU: approximate is "tanh" or "none", got {approximate!r}')
        self.approximate = approximate

    def forward(self, x):
        return F.gelu(x, self.approximate)


class _Along(Module):
    def __init__(self, axis=-1):
        super().__init__()
        self.axis = axis

    def forward(self, x):
        return type(self)._f(x, self.axis)

    def extra_repr(self):
        return f"axis={self.axis}"


class Softmax(_Along):
    """exp(x) over its sum along an axis."""

    _f = staticmethod(F.softmax)


class LogSoftmax(_Along):
    """log(softmax(x))."""

    _f = staticmethod(F.logsoftmax)


class GLU(_Along):
    """The first half along an axis times the sigmoid of the second."""

    _f = staticmethod(F.glu)


class LeakyReLU(Module):
    """x, and negative_slope * x below 0."""

    def __init__(self, negative_slope=0.01):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x):
        return F.leaky_relu(x, self.negative_slope)


class PReLU(Module):
    """leaky_relu with slopes that are learnt: one, or one for each channel (the last axis)."""

    def __init__(self, num_parameters=1, init=0.25, *, dtype="float32"):
        super().__init__()
        self.weight = Parameter(ones((num_parameters,), dtype=dtype) * init)

    def forward(self, x):
        return F.prelu(x, self.weight)


class ELU(Module):
    """x, and alpha * (exp(x) - 1) below 0."""

    _f = staticmethod(F.elu)

    def __init__(self, alpha=1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        return type(self)._f(x, self.alpha)


class CELU(ELU):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""

    _f = staticmethod(F.celu)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta."""

    def __init__(self, beta=1.0, threshold=20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, x):
        return F.softplus(x, self.beta, self.threshold)


class Hardtanh(Module):
    """x, not below min_val and not above max_val."""

    def __init__(self, min_val=-1.0, max_val=1.0):
        super().__init__()
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x):
        return F.hardtanh(x, self.min_val, self.max_val)
