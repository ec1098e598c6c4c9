"""Complex tensors: a real and an imaginary part, each a tensor. Kernels and devices never see complex
numbers.

A gradient of a real function is d/dre + i d/dim, the direction of steepest ascent (torch's convention; JAX's
is its conjugate)."""

import builtins
import math

import numpy as np

import eager as _e
from eas._eas import DType, EagerTensor, constant, tensor_ops

from . import _complex_math
from ._wrapped import Wrapped, WrappedDType, bind, items, register
from .core.pytree import register_pytree_node

__all__ = ["ComplexTensor", "angle", "complex", "complex128", "complex64", "conj", "conjugate", "imag", "real", "view_as_complex", "view_as_real"]

_ops = tensor_ops
_py_complex = builtins.complex


class ComplexDType(WrappedDType):
    """complex64 or complex128. Equal to NumPy's, torch's and their names."""

    __slots__ = ("_part", "name", "numpy_name")
    kind = "c"

    def __init__(self, name, part):
        self.name = self.numpy_name = name
        self._part = part

    value = property(lambda self: self.name)
    real = property(lambda self: self._part, doc="the dtype of the parts")
    itemsize = size = property(lambda self: 2 * self._part.itemsize)
    numpy = dtype = property(lambda self: np.dtype(self.name))

    def __eq__(self, other):
        return other is self or _dtype_or_none(other) is self

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"eager.{self.name}"

    def __str__(self):
        return self.name

    def __reduce__(self):
        return _dtype_or_none, (self.name,)


complex64, complex128 = ComplexDType("complex64", DType.float32), ComplexDType("complex128", DType.float64)


def _dtype_or_none(d):
    """complex64 or complex128 if d names one of them."""
    if d is complex64 or d is complex128:
        return d
    if d is builtins.complex:
        return complex128
    if isinstance(d, (EagerTensor, Wrapped, DType)) or d is None:
        return None
    text = d if isinstance(d, str) else str(d) if type(d).__name__ == "dtype" and "torch" in type(d).__module__ else None
    if text is not None:
        return {"complex64": complex64, "complex128": complex128, "c8": complex64, "c16": complex128}.get(text.removeprefix("torch."))
    if isinstance(d, (np.dtype, type)):
        try:
            return {"complex64": complex64, "complex128": complex128}.get(np.dtype(d).name)
        except TypeError:
            return None
    return None


def dtype_of(part):
    """The complex dtype whose parts have this dtype."""
    return complex128 if part in ("float64",) else complex64


def _is_complex(x):
    return isinstance(x, (ComplexTensor, _py_complex, np.complexfloating)) or (isinstance(x, np.ndarray) and x.dtype.kind == "c")


def _parts(x, like=None):
    """(real, imaginary) of anything; a number's stay numbers."""
    if isinstance(x, ComplexTensor):
        return x._re, x._im
    if isinstance(x, np.ndarray) and x.dtype.kind == "c":
        return constant(np.asarray(x.real, order="C")), constant(np.asarray(x.imag, order="C"))
    if isinstance(x, np.complexfloating):
        part = np.float32 if x.dtype == np.complex64 else np.float64
        return constant(part(x.real)), constant(part(x.imag))
    if isinstance(x, _py_complex):
        return x.real, x.imag
    return x, 0.0


class ComplexTensor(Wrapped):
    """A lazy tensor of complex numbers: `re` and `im` are tensors of its real and imaginary parts."""

    __slots__ = ("__weakref__", "_im", "_re")

    def __init__(self, re, im):
        self._re, self._im = re, im

    def _leaves(self):
        return self._re, self._im

    def _again(self, leaves):
        return ComplexTensor(*leaves)

    shape = property(lambda self: self._re.shape)
    dtype = property(lambda self: dtype_of(self._re.dtype))
    device = property(lambda self: self._re.device)
    ndim = rank = property(lambda self: self._re.ndim)
    size = property(lambda self: self._re.size)
    batch_dims = property(lambda self: self._re.batch_dims)
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)
    real = property(lambda self: self._re, doc="the real part")
    imag = property(lambda self: self._im, doc="the imaginary part")
    T = property(lambda self: ComplexTensor(self._re.T, self._im.T))
    mT = property(lambda self: ComplexTensor(self._re.mT, self._im.mT))
    H = mH = property(lambda self: ComplexTensor(self._re.mT, -self._im.mT))
    at = property(lambda self: _At(self))

    # ---- data ----
    def numpy(self):
        """The elements as an array, a copy."""
        _e.realize_all(self._re, self._im)
        out = np.empty(tuple(int(d) for d in self._re.physical_shape), self.dtype.numpy)
        out.real, out.imag = self._re.numpy(), self._im.numpy()
        return out

    to_numpy = numpy

    def __array__(self, dtype=None, copy=None):
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def item(self, *index):
        return (self[index] if index else self).numpy().item()

    def tolist(self):
        return self.numpy().tolist()

    def realize(self):
        _e.realize_all(self._re, self._im)
        return self

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy is False:
            raise BufferError("a complex tensor is two tensors here, its parts: DLPack takes it by a copy only")
        return self.numpy().__dlpack__(max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self):
        return (1, 0)

    def __array_namespace__(self, *, api_version=None):
        return self._re.__array_namespace__(api_version=api_version)

    def __repr__(self):
        re = self._re
        if re.batch_dims or not all(isinstance(d, int) for d in re.shape) or not _e._debug.readable(re):
            return f"ComplexTensor(<recorded>, shape={re.shape}, dtype={self.dtype.name})"
        return f"Tensor({np.array2string(self.numpy(), separator=', ', prefix='Tensor(')}, shape={re.shape}, dtype={self.dtype.name})"

    def __format__(self, spec):
        return format(self.item(), spec) if spec and self.size == 1 else format(repr(self), spec)

    def __complex__(self):
        return _py_complex(self.item())

    def __bool__(self):
        return bool(self.item())

    def __float__(self):
        raise TypeError("float() of a complex tensor drops its imaginary part: take eager.real(x), or complex(x)")

    __int__ = __float__

    def __len__(self):
        return len(self._re)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__

    def __reduce__(self):
        return constant, (self.numpy(), None, self.device)

    # ---- forms ----
    def astype(self, dtype, copy=True, device=None):
        return self.to(dtype=dtype, device=device)

    def to(self, *args, **kwargs):
        dtype, device = kwargs.get("dtype"), kwargs.get("device")
        for a in args:
            if isinstance(a, str) and _dtype_or_none(a) is None and not _e._array_api.is_dtype_name(a):
                device = a
            else:
                dtype = a
        x = self if device is None else ComplexTensor(self._re.to(device), self._im.to(device))
        return x if dtype is None else _cast(x, dtype)

    def conj(self):
        return conj(self)

    conjugate = conj

    def requires_grad_(self, on=True):
        """requires_grad_ of both parts."""
        self._re.requires_grad_(on)
        self._im.requires_grad_(on)
        return self

    requires_grad = property(lambda self: self._re.requires_grad, lambda self, on: self.requires_grad_(on))

    @property
    def grad(self):
        """d/dre + i d/dim after backward(), or None."""
        re, im = self._re.grad, self._im.grad
        if re is None and im is None:
            return None
        return ComplexTensor(_e.zeros_like(self._re) if re is None else re, _e.zeros_like(self._im) if im is None else im)

    @grad.setter
    def grad(self, value):
        self._re.grad, self._im.grad = (None, None) if value is None else (value._re, value._im)

    def local_parts(self):
        """[(device, array), ...] as for real tensors; None: the tensor is not cut into parts."""
        re, im = self._re.local_parts(), self._im.local_parts()
        return re and [(k, a + 1j * b) for (k, a), (_, b) in zip(re, im)]

    def trace(self):
        self._re.trace()
        self._im.trace()
        return self

    def __getitem__(self, key):
        return ComplexTensor(self._re[key], self._im[key])

    def __setitem__(self, key, value):
        re, im = _parts(value)
        self._re[key] = re
        self._im[key] = im

    def __getattr__(self, name):
        f = tensor_ops.get(name) or (getattr(_e, name, None) if hasattr(EagerTensor, name) else None)
        if f is None or name.startswith("__"):
            raise AttributeError(f"a complex tensor has no attribute {name!r}")
        return lambda *args, **kwargs: f(self, *args, **kwargs)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return _e._protocol.array_ufunc(self, ufunc, method, *inputs, **kwargs)

    def __array_function__(self, func, types, args, kwargs):
        return _e._protocol.array_function(self, func, types, args, kwargs)


register_pytree_node(ComplexTensor, lambda z: ((z._re, z._im), None), lambda aux, parts: ComplexTensor(*parts))


class _At:
    def __init__(self, z, key=None):
        self._z, self._key = z, key

    def __getitem__(self, key):
        return _At(self._z, key)

    def _each(self, how, value):
        re, im = _parts(value)
        z, k = self._z, self._key
        return ComplexTensor(getattr(z._re.at[k], how)(re), getattr(z._im.at[k], how)(im))

    def set(self, value):
        return self._each("set", value)

    def add(self, value):
        return self._each("add", value)

    def mul(self, value):
        return self.set(self.get() * value)

    multiply = mul

    def get(self):
        return self._z[self._key]


def _binary(name):
    op = tensor_ops[name]

    def forward(self, other):
        return _dispatch(op, (self, other), {}) if _operand(other) else NotImplemented

    def backward(self, other):
        return _dispatch(op, (other, self), {}) if _operand(other) else NotImplemented

    return forward, backward


def _operand(x):
    return isinstance(x, (EagerTensor, ComplexTensor, int, float, _py_complex, np.ndarray, np.generic, list))


for _name, _op in {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "pow": "pow",
    "matmul": "matmul",
    "floordiv": "floordiv",
    "mod": "mod",
}.items():
    _f, _b = _binary(_op)
    setattr(ComplexTensor, f"__{_name}__", _f)
    setattr(ComplexTensor, f"__r{_name}__", _b)
for _name, _op in {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}.items():
    setattr(ComplexTensor, f"__{_name}__", _binary(_op)[0])
ComplexTensor.__hash__ = object.__hash__
ComplexTensor.__neg__ = lambda self: ComplexTensor(-self._re, -self._im)
ComplexTensor.__pos__ = lambda self: self
ComplexTensor.__abs__ = lambda self: _abs(self)


# ---- making ----
def complex(re, im=0.0):
    """A complex tensor of a real and an imaginary part, which broadcast."""
    re = re if isinstance(re, EagerTensor) else constant(re)
    im = im if isinstance(im, EagerTensor) else constant(im) if not isinstance(im, (int, float)) else im
    dtype = _e.result_type(re, im) if isinstance(im, EagerTensor) else re.dtype
    part = DType.float64 if dtype in ("float64",) or dtype.kind in "iu" and dtype.itemsize == 8 and False else DType.float32
    re = _ops["cast"](re, dtype=part)
    im = _ops["cast"](im, dtype=part) if isinstance(im, EagerTensor) else _ops["mul"](re, 0) + im if im else _e.zeros_like(re)
    if tuple(re.shape) != tuple(im.shape) or re.batch_dims != im.batch_dims:
        re, im = re + _ops["mul"](im, 0), im + _ops["mul"](re, 0)
    return ComplexTensor(re, im)


def view_as_complex(x):
    """(..., 2) with real and imaginary parts as a complex tensor (...)."""
    if not x.shape or x.shape[-1] != 2:
        raise ValueError(f"eager.view_as_complex: the last dim has the real and the imaginary part; the shape is {tuple(x.shape)}")
    return complex(x[..., 0], x[..., 1])


def view_as_real(z):
    """A complex tensor (...) as (..., 2): real and imaginary parts."""
    z = as_complex(z)
    return _e.stack([z._re, z._im], axis=-1)


def as_complex(x, dtype=None):
    """A ComplexTensor of anything; real ones get an imaginary part of 0."""
    if not isinstance(x, ComplexTensor):
        if isinstance(x, (list, tuple)):
            x = np.asarray(x)
        re, im = _parts(x)
        if isinstance(x, (_py_complex,)) and not isinstance(x, np.generic):
            re, im = constant(np.float32(re)), constant(np.float32(im))
        elif dtype is not None and isinstance(re, EagerTensor) and isinstance(im, float):
            re = _ops["cast"](re, dtype=dtype.real)  # in one step: int32 to complex128 does not pass float32
        x = complex(re, im)
    return x if dtype is None or x.dtype is dtype else ComplexTensor(_ops["cast"](x._re, dtype=dtype.real), _ops["cast"](x._im, dtype=dtype.real))


def real(x, /):
    """The real part."""
    return x._re if isinstance(x, ComplexTensor) else constant(x) if not isinstance(x, EagerTensor) else x


def imag(x, /):
    """The imaginary part; 0 of real tensors."""
    if isinstance(x, ComplexTensor):
        return x._im
    return _e.zeros_like(x if isinstance(x, EagerTensor) else constant(x))


def conj(x, /):
    """The complex conjugate."""
    if isinstance(x, (EagerTensor,)):
        return x
    x = constant(x) if not isinstance(x, ComplexTensor) else x
    return ComplexTensor(x._re, -x._im) if isinstance(x, ComplexTensor) else x


conjugate = conj


def angle(z, deg=False):
    """The angle of complex numbers, from the real axis."""
    z = z if isinstance(z, (EagerTensor, ComplexTensor)) else constant(z)
    re, im = (z._re, z._im) if isinstance(z, ComplexTensor) else (_e._numpy._floats(z), 0.0)
    out = _ops["atan2"](im if isinstance(im, EagerTensor) else _e.zeros_like(re), re)
    return out * (180 / math.pi) if deg else out


# ---- rules ----
def _align(x, y):
    """Both as pairs in a common dtype. Numbers stay numbers."""
    a, b = _parts(x), _parts(y)
    wide = DType.float64 if builtins.any(getattr(p, "dtype", None) in ("float64",) for p in (*a, *b)) else DType.float32

    def of(p):
        return (
            _ops["cast"](p, dtype=wide)
            if isinstance(p, EagerTensor) and p.dtype != wide
            else constant(p, dtype=wide)
            if isinstance(p, np.generic) or isinstance(p, np.ndarray)
            else p
        )

    return (of(a[0]), of(a[1])), (of(b[0]), of(b[1]))


def _made(re, im):
    if not isinstance(re, EagerTensor):
        re = constant(re) if not isinstance(im, EagerTensor) else _ops["mul"](im, 0) + re
    if not isinstance(im, EagerTensor):
        im = _e.zeros_like(re) + im if im else _e.zeros_like(re)
    if tuple(re.shape) != tuple(im.shape) or re.batch_dims != im.batch_dims:
        re, im = re + _e.zeros_like(im), im + _e.zeros_like(re)
    return ComplexTensor(re, im)


def _zero(x):
    return isinstance(x, float) and x == 0.0


def _add(x, y):
    (a, b), (c, d) = _align(x, y)
    return _made(a + c, b if _zero(d) else d if _zero(b) else b + d)


def _sub(x, y):
    (a, b), (c, d) = _align(x, y)
    return _made(a - c, b if _zero(d) else -d if _zero(b) else b - d)


def _mul(x, y):
    (a, b), (c, d) = _align(x, y)
    if _zero(d):
        return _made(a * c, b * c)
    if _zero(b):
        return _made(a * c, a * d)
    return _made(a * c - b * d, a * d + b * c)


def _div(x, y):
    """Smith's division: the larger part of the divisor is divided out first, so that its square does not
    overflow."""
    (a, b), (c, d) = _align(x, y)
    if _zero(d):
        return _made(a / c, b / c)
    c, d = (
        (c if isinstance(c, EagerTensor) else d * 0 + c),
        (d if isinstance(d, EagerTensor) else c * 0 + d if isinstance(c, EagerTensor) else constant(d)),
    )
    swap = _ops["abs"](c) < _ops["abs"](d)
    big, small = _ops["where"](swap, d, c), _ops["where"](swap, c, d)
    none = (big == 0) & (small == 0)
    r = small / _ops["where"](big == 0, 1.0, big)
    r = _ops["where"](_e.isinf(big) & _e.isinf(small), math.nan, r)
    den = big + small * r
    b = b if isinstance(b, EagerTensor) else b + c * 0
    a = a if isinstance(a, EagerTensor) else a + c * 0
    re = _ops["where"](swap, a * r + b, a + b * r) / den
    im = _ops["where"](swap, b * r - a, b - a * r) / den
    return _made(_ops["where"](none, _ops["stop_gradient"](a) / 0.0, re), _ops["where"](none, _ops["stop_gradient"](b) / 0.0, im))


def _abs(x):
    return _ops["hypot"](x._re, x._im)


def _square(x):
    return _made((x._re - x._im) * (x._re + x._im), 2 * x._re * x._im)


def _elementary(name):
    f = _complex_math.FUNCTIONS[name]
    return lambda x: _made(*f(x._re, x._im))


_exp, _log, _sqrt = (_elementary(n) for n in ("exp", "log", "sqrt"))


def _reciprocal(x):
    return _div(1.0, x)


def _pow(x, y):
    if isinstance(y, (int, np.integer)) and not isinstance(y, bool) and abs(int(y)) <= 64:
        n, base, out = abs(int(y)), as_complex(x), None
        while n:
            out = base if out is None and n & 1 else _mul(out, base) if n & 1 else out
            base, n = _square(base) if n > 1 else base, n >> 1
        out = _made(_e.ones_like(base._re), _e.zeros_like(base._im)) if out is None else out
        return _reciprocal(out) if int(y) < 0 else out
    x, y = (as_complex(v) for v in (x, y))
    wide = complex128 if complex128 in (x.dtype, y.dtype) else complex64
    x, y = as_complex(x, wide), as_complex(y, wide)
    none = (x._re == 0) & (x._im == 0)
    safe = _made(_ops["where"](none, 1.0, x._re), _ops["where"](none, 0.0, x._im))
    out = _exp(_mul(y, _log(safe)))
    zero = (y._re == 0) & (y._im == 0)
    re = _ops["where"](none, _ops["where"](zero, 1.0, _ops["where"](y._re > 0, 0.0, math.nan)), out._re)
    im = _ops["where"](none, _ops["where"](zero | (y._re > 0), 0.0, math.nan), out._im)
    return _made(re, im)


def _product(op):
    def f(x, y, *args, **kwargs):
        (a, b), (c, d) = _align(as_tensor(x), as_tensor(y))
        p = lambda u, v: op(u, v, *args, **kwargs)  # noqa: E731
        if _zero(d):
            return _made(p(a, c), p(b, c))
        if _zero(b):
            return _made(p(a, c), p(a, d))
        return _made(p(a, c) - p(b, d), p(a, d) + p(b, c))

    return f


def as_tensor(x):
    return x if isinstance(x, (EagerTensor, ComplexTensor)) else constant(x)


def _vecdot(x, y, axis=-1):
    return _product(_ops["vecdot"])(conj(as_tensor(x)), y, axis=axis)


def _equal(x, y):
    (a, b), (c, d) = _align(x, y)
    return (a == c) & (b == d)


def _not_equal(x, y):
    return _ops["logical_not"](_equal(x, y))


def _cast(x, dtype):
    to = _dtype_or_none(dtype)
    if to is not None:
        return as_complex(as_tensor(x), to)
    if not isinstance(x, ComplexTensor):
        return _ops["cast"](x, dtype=dtype)
    if DType(dtype).kind == "b":
        return (x._re != 0) | (x._im != 0)
    raise TypeError(f"eager.cast: a complex tensor as {DType(dtype).numpy_name} loses its imaginary part: take eager.real(x) first")


def _prod(x, axis=None, keepdims=False):
    """By halves: products of pairs until one is left."""
    rank = len(x.shape)
    axes = range(rank) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = sorted((a % rank for a in axes), reverse=True)
    for a in axes:
        x = ComplexTensor(_e.moveaxis(x._re, a, 0), _e.moveaxis(x._im, a, 0))
        n = int(x.shape[0])
        if n == 0:
            one = _e.ones((1, *x.shape[1:]), dtype=x._re.dtype)
            x, n = ComplexTensor(one, one * 0), 1
        while n > 1:
            half = n // 2
            p = _mul(x[:half], x[half : 2 * half])
            x = p if n % 2 == 0 else ComplexTensor(_e.concatenate([p._re, x._re[-1:]]), _e.concatenate([p._im, x._im[-1:]]))
            n = n - half
        x = ComplexTensor(_e.moveaxis(x._re, 0, a), _e.moveaxis(x._im, 0, a))
        x = x if keepdims else ComplexTensor(_e.squeeze(x._re, axis=a), _e.squeeze(x._im, axis=a))
    return x


def _cumprod(x, axis=None, reverse=False):
    if axis is None:
        x, axis = _by_parts(tensor_ops["flatten"], (x,), {}), 0
    from .ops.control_flow import associative_scan

    def join(p, q):
        z = _mul(ComplexTensor(*p), ComplexTensor(*q))
        return z._re, z._im

    re, im = associative_scan(join, (x._re, x._im), axis=axis, reverse=reverse)
    return ComplexTensor(re, im)


def _cumulative_prod(x, axis=None, include_initial=False):
    axis = 0 if axis is None else axis % x.ndim
    out = _cumprod(x, axis) if x.shape[axis] != 0 else x
    if not include_initial:
        return out
    first = _e.ones(tuple(1 if i == axis else n for i, n in enumerate(x.shape)), dtype=x._re.dtype)
    return _by_parts(tensor_ops["concatenate"], ([_cast_real(first), out],), {"axis": axis})


def _var(x, axis=None, keepdims=False, correction=0.0):
    return tensor_ops["var"](x._re, axis, keepdims, correction) + tensor_ops["var"](x._im, axis, keepdims, correction)


def _nonzero_mask(x):
    return (x._re != 0) | (x._im != 0)


def _through_mask(op):
    return lambda x, *args, **kwargs: op(_nonzero_mask(x), *args, **kwargs)


def _test(name, either):
    op = tensor_ops[name]
    return lambda x: (_ops["logical_or"] if either else _ops["logical_and"])(op(x._re), op(x._im))


def _logic(name):
    op = tensor_ops[name]
    return lambda *xs: op(*(_nonzero_mask(x) if isinstance(x, ComplexTensor) else x for x in xs))


def _isclose_like(x):
    return _made(_ops["round"](x._re), _ops["round"](x._im))


def _linspace(start, stop, num, endpoint=True, dtype=None):
    (a, b), (c, d) = _align(start, stop)
    part = (_dtype_or_none(dtype) or complex64).real
    lin = lambda u, v: _ops["linspace"](u, v, num=num, endpoint=endpoint, dtype=part)  # noqa: E731
    return ComplexTensor(lin(a, c), lin(b, d))


def _arange(start, step, length, dtype=None):
    part = (_dtype_or_none(dtype) or complex64).real
    return complex(_ops["arange"](start, step, length=length, dtype=part))


def _eye_like(name):
    return lambda shape, k=0, dtype=None: _cast_real(tensor_ops[name](shape, k=k, dtype=_dtype_or_none(dtype).real))


def _cast_real(x):
    return ComplexTensor(x, _e.zeros_like(x))


def _unique_like(name):
    def f(*args, **kwargs):
        raise TypeError(f"eager.{name}: complex numbers have no order; take eager.abs(x), eager.real(x) or eager.angle(x)")

    return f


def _mean(x, axis=None, keepdims=False):
    return ComplexTensor(_ops["mean"](x._re, axis, keepdims), _ops["mean"](x._im, axis, keepdims))


def _sigmoid(x):
    return _div(1.0, _add(1.0, _exp(ComplexTensor(-x._re, -x._im))))


RULES = {
    **{name: _elementary(name) for name in _complex_math.FUNCTIONS},
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "pow": _pow, "neg": lambda x: -x, "abs": _abs, "square": _square, "reciprocal": _reciprocal, "rsqrt": lambda x: _reciprocal(_sqrt(x)),
    "sigmoid": _sigmoid, "exp2": lambda x: _exp(ComplexTensor(x._re * math.log(2), x._im * math.log(2))), "round": _isclose_like,
    "equal": _equal, "not_equal": _not_equal, "is_nan": _test("is_nan", True), "is_inf": _test("is_inf", True), "is_finite": _test("is_finite", False),
    "matmul": _product(_ops["matmul"]), "outer": _product(_ops["outer"]), "tensordot": _product(_ops["tensordot"]), "dot": _product(_ops["dot"]), "vecdot": _vecdot,
    "cast": _cast, "prod": _prod, "cumprod": _cumprod, "cumulative_prod": _cumulative_prod, "var": _var, "std": lambda *a, **k: _ops["sqrt"](_var(*a, **k)),
    "any": _through_mask(_ops["any"]), "all": _through_mask(_ops["all"]), "count_nonzero": _through_mask(_ops["count_nonzero"]), "flat_nonzero": _through_mask(_ops["flat_nonzero"]),
    "logical_and": _logic("logical_and"), "logical_or": _logic("logical_or"), "logical_xor": _logic("logical_xor"), "logical_not": _logic("logical_not"),
    "linspace": _linspace, "arange": _arange, "eye": _eye_like("eye"), "tri": _eye_like("tri"), "mean": _mean,
}  # fmt: skip
_BY_PARTS = {
    "alias", "stop_gradient", "reshape", "reshape_physical", "flatten", "unflatten", "squeeze", "squeeze_physical", "unsqueeze", "unsqueeze_physical", "permute", "swap_axes", "matrix_transpose",
    "moveaxis", "moveaxis_physical", "broadcast_to", "broadcast_to_physical", "slice_steps", "slice", "slice_tensor", "slice_tensor_physical", "flip", "diagonal", "slice_update", "slice_set",
    "incr_batch_dims", "decr_batch_dims", "move_axis_to_batch_dims", "move_axis_from_batch_dims", "lift_batch_dims", "broadcast_batch_dims", "concatenate", "stack", "split", "chunk", "unbind",
    "tile", "repeat", "roll", "pad", "pad_constant", "gather", "take_along_axis", "index", "scatter", "index_update", "put_along_axis", "tril", "triu", "reduce_sum", "reduce_sum_physical",
    "mean_physical", "cumsum", "cumulative_sum", "diff", "trace", "where", "window", "full", "zeros", "ones",
}  # fmt: skip
_ORDERED = {
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "sort",
    "argsort",
    "reduce_max",
    "reduce_min",
    "maximum",
    "minimum",
    "argmax",
    "argmin",
    "clip",
    "topk",
    "searchsorted",
    "cummax",
    "cummin",
    "minmax",
    "unique",
    "count_unique",
}


def _by_parts(op, args, kwargs):
    """Applies the operation to the real and to the imaginary parts: for operations that only move, add or
    copy elements."""
    bound, values = bind(op, args, kwargs)
    if op.name in ("scatter", "index_update", "put_along_axis") and bound.get("mode", "set") not in ("set", "add"):
        raise TypeError(f"eager.{op.name}: mode {bound['mode']!r} of complex numbers is not defined; 'set' and 'add' are")

    def part(i):
        return {k: _part(v, i) if k in values else v for k, v in bound.items()}

    re, im = op(**part(0)), op(**part(1))
    wide = _e.result_type(re, im)
    wide = wide if wide.kind == "f" and wide.itemsize >= 4 else DType.float32
    return ComplexTensor(_ops["cast"](re, dtype=wide), _ops["cast"](im, dtype=wide))


def _part(x, i):
    if x is None:
        return None
    if isinstance(x, (list, tuple)):
        return [_part(v, i) for v in x]
    if _is_complex(x):
        return _parts(x)[i]
    if isinstance(x, EagerTensor):
        return x if i == 0 else _e.zeros_like(x)
    return x if i == 0 else x * 0 if isinstance(x, (int, float)) else np.zeros_like(x)


def _constant(value, dtype=None, device=None, traced=False):
    to = _dtype_or_none(dtype)
    if dtype is not None and to is None:
        raise TypeError(f"eager.constant: complex data as {dtype} loses its imaginary part: take its real part first")
    if isinstance(value, (EagerTensor, ComplexTensor)):
        z = as_complex(value, to)
    else:
        if isinstance(value, (list, tuple)) and builtins.any(isinstance(v, (EagerTensor, Wrapped)) for v in items((value,), {})):
            return _e._numpy.array(value, dtype=dtype, device=device)
        typed = hasattr(value, "dtype")
        a = np.asarray(value)
        if a.dtype.kind != "c" or (not typed and to is None):
            a = a.astype(np.complex64 if to is None else to.numpy)
        a = a if to is None else a.astype(to.numpy)
        if a.dtype.name not in ("complex64", "complex128"):
            raise TypeError(f"a tensor cannot hold elements of {a.dtype}; complex64 and complex128 are there")
        z = ComplexTensor(constant(np.asarray(a.real, order="C"), None, device), constant(np.asarray(a.imag, order="C"), None, device))
    return z.trace() if traced else z


def _full(shape, value, dtype):
    to = _dtype_or_none(dtype)
    if to is None and dtype is not None:
        raise TypeError(f"eager.full: a complex number as {dtype} loses its imaginary part")
    if to is None:
        to = value.dtype if isinstance(value, ComplexTensor) else complex128 if isinstance(value, np.complex128) else complex64
    re, im = _parts(value)
    from .ops.creation import full

    return ComplexTensor(full(shape, re, to.real), full(shape, im, to.real))


def _dispatch(op, args, kwargs):
    if isinstance(op, str):
        return {"constant": _constant, "full": _full}[op](*args, **kwargs)
    name = op.name
    if name in RULES:
        args = [constant(a) if isinstance(a, np.ndarray) or isinstance(a, np.complexfloating) else a for a in args]
        if args and isinstance(args[0], _py_complex) and name not in ("add", "sub", "mul", "div", "pow", "equal", "not_equal", "linspace"):
            args[0] = constant(args[0])
        return RULES[name](*args, **kwargs)
    if name in _BY_PARTS:
        return _by_parts(op, args, kwargs)
    if name in _ORDERED:
        raise TypeError(f"eager.{name}: complex numbers have no order; take eager.abs(x), eager.real(x) or eager.angle(x)")
    raise TypeError(f"eager.{name}: of complex numbers is not defined; eager.real(x) and eager.imag(x) are the parts")


def _wants(args, kwargs):
    return builtins.any(_is_complex(x) or _dtype_or_none(x) is not None for x in items(args, kwargs))


register(_wants, _dispatch)
