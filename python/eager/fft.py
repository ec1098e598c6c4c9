"""Fourier transforms: eager.fft, with the names and conventions of numpy.fft. Any length, along any axis,
batched; float32 and complex64, or float64 and complex128.

The transform is a C function that runs on the host as one step of a program (src/native/fft.c). It is linear,
so its derivative, in both modes and of any order, is a transform."""

import math

import numpy as np

import eager as _e
from eas._eas import native_call, tensor_ops

from ._complex import ComplexTensor, as_complex
from ._numpy import _axis, _t
from .transforms.custom import call_with_rules

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_ops = tensor_ops
_COMPLEX, _REAL, _HALF = 0, 1, 2


def _floats(x):
    x = _t(x)
    part = x._re.dtype if isinstance(x, ComplexTensor) else x.dtype
    if part.kind != "f":
        return _ops["cast"](x, dtype="float32")
    return _ops["cast"](x, dtype="float32") if part.itemsize < 4 else x


def _scale(fn, norm, inverse):
    """The number by which the C function is told to scale: 0 not at all, 1 by 1/n, 2 by 1/sqrt(n)."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"eager.fft.{fn}: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    if norm == "ortho":
        return 2
    return int(inverse) if norm in (None, "backward") else int(not inverse)


def _lanes(parts):
    """The parts with the same batch dims, which become plain axes in front; and how many there are."""
    depth = max(p.batch_dims for p in parts)
    if not depth:
        return list(parts), 0
    sizes = [1] * depth
    for p in parts:
        for i, n in enumerate(tuple(p.physical_shape)[: p.batch_dims]):
            if n != 1:
                sizes[depth - p.batch_dims + i] = n
    return [_ops["alias"](_ops["broadcast_batch_dims"](p, sizes), 0) for p in parts], depth


def _transform(parts, n, axis, kind, inverse, scale):
    """parts: (real, imaginary), or (real,) for kind _REAL; the result has the same form. axis: from the end.
    n: the length of the transform."""
    half = n // 2 + 1

    def run(*parts):
        rows, depth = _lanes(parts)
        shape = tuple(rows[0].shape)
        lead, rest = shape[: len(shape) + axis], shape[len(shape) + axis + 1 :]
        out = ((*lead, half if kind == _REAL else n, *rest), rows[0].dtype)
        numbers = (int(rows[0].dtype == "float64"), math.prod(lead), n, math.prod(rest), kind, int(inverse), scale)
        made = native_call("fft", tuple(rows), (out,) * (1 if kind == _HALF else 2), numbers)
        return tuple(_ops["alias"](m, depth) for m in made) if depth else tuple(made)

    def jvp(primals, tangents):
        return _transform(tangents, n, axis, kind, inverse, scale)

    def vjp(primals, cts):
        if kind == _COMPLEX:
            return _transform(cts, n, axis, _COMPLEX, not inverse, scale)
        rank = len(cts[0].shape)
        if kind == _REAL:  # the elements of the spectrum that rfft leaves out have no cotangent
            wide = [(0, n - half if i == rank + axis else 0) for i in range(rank)]
            return _transform(tuple(_e.pad(c, wide) for c in cts), n, axis, _COMPLEX, not inverse, scale)[:1]
        re, im = _transform(cts, n, axis, _REAL, not inverse, scale)
        ends = np.full((2, half), 2.0, np.float32)
        ends[:, 0] = 1, 0
        if n % 2 == 0:
            ends[:, -1] = 1, 0
        weights = [_e.reshape(_e.astype(_t(w), re.dtype), (half, *(1,) * (-axis - 1))) for w in ends]
        return re * weights[0], im * weights[1]

    return call_with_rules("fft", run, tuple(parts), vjp, jvp)


def _length(fn, x, n, axis):
    n = x.shape[axis] if n is None else n
    if not isinstance(n, (int, np.integer)):
        try:
            n = int(n)
        except (TypeError, ValueError):
            raise ValueError(f"eager.fft.{fn}: the length {n} is a symbol; give n") from None
    if n < 1:
        raise ValueError(f"eager.fft.{fn}: a length of at least 1 is wanted, got {n}")
    return int(n)


def _fitted(x, n, axis):
    """x cut or padded with zeros to n elements along the axis."""
    have = x.shape[axis]
    if have == n:
        return x
    rank = len(x.shape)
    if isinstance(have, int) and have > n:
        return x[tuple(slice(n) if i == axis else slice(None) for i in range(rank))]
    return _e.pad(x, [(0, n - have if i == axis else 0) for i in range(rank)])


def _c2c(fn, x, n, axis, norm, inverse):
    z = as_complex(_floats(x))
    axis = _axis(f"fft.{fn}", axis, len(z.shape))
    n = _length(fn, z, n, axis)
    z = _fitted(z, n, axis)
    return ComplexTensor(*_transform((z._re, z._im), n, axis - len(z.shape), _COMPLEX, inverse, _scale(fn, norm, inverse)))


def fft(a, n=None, axis=-1, norm="backward"):
    """The discrete Fourier transform along an axis. n: cut or padded with zeros to that length. norm:
    "backward" (no factor), "ortho", "forward" (1/n)."""
    return _c2c("fft", a, n, axis, norm, False)


def ifft(a, n=None, axis=-1, norm="backward"):
    """The inverse of fft."""
    return _c2c("ifft", a, n, axis, norm, True)


def _real(fn, a):
    x = _floats(a)
    if isinstance(x, ComplexTensor):
        raise TypeError(f"eager.fft.{fn}: a real tensor is wanted; take fft, or eager.real(x)")
    return x


def _r2c(fn, a, n, axis, norm, inverse):
    x = _real(fn, a)
    axis = _axis(f"fft.{fn}", axis, len(x.shape))
    n = _length(fn, x, n, axis)
    return ComplexTensor(*_transform((_fitted(x, n, axis),), n, axis - len(x.shape), _REAL, False, _scale(fn, norm, inverse)))


def rfft(a, n=None, axis=-1, norm="backward"):
    """The first n // 2 + 1 elements of the transform of a real tensor; the others are their conjugates."""
    return _r2c("rfft", a, n, axis, norm, False)


def _c2r(fn, a, n, axis, norm, inverse):
    z = as_complex(_floats(a))
    axis = _axis(f"fft.{fn}", axis, len(z.shape))
    n = _length(fn, z, 2 * (z.shape[axis] - 1) if n is None else n, axis)
    z = _fitted(z, n // 2 + 1, axis)
    return _transform((z._re, z._im), n, axis - len(z.shape), _HALF, True, _scale(fn, norm, inverse))[0]


def irfft(a, n=None, axis=-1, norm="backward"):
    """The inverse of rfft: a real tensor of n elements along the axis (default: 2 (m - 1), which is even)."""
    return _c2r("irfft", a, n, axis, norm, True)


def hfft(a, n=None, axis=-1, norm="backward"):
    """The transform of a signal with Hermitian symmetry, of which the first half is given: real."""
    return _c2r("hfft", _e.conj(_t(a)), n, axis, norm, False)


def ihfft(a, n=None, axis=-1, norm="backward"):
    """The inverse of hfft."""
    return _e.conj(_r2c("ihfft", a, n, axis, norm, True))


def _several(fn, x, s, axes):
    rank = len(x.shape)
    if axes is None:
        axes = tuple(range(rank)) if s is None else tuple(range(rank - len(s), rank))
    axes = tuple(_axis(f"fft.{fn}", a, rank) for a in axes)
    if s is not None and len(s) != len(axes):
        raise ValueError(f"eager.fft.{fn}: {len(s)} lengths for {len(axes)} axes")
    s = [None] * len(axes) if s is None else [None if n is None or n == -1 else n for n in s]
    return s, axes


def fftn(a, s=None, axes=None, norm="backward"):
    """fft along several axes (default: all)."""
    x = as_complex(_floats(a))
    s, axes = _several("fftn", x, s, axes)
    for n, axis in zip(reversed(s), reversed(axes)):
        x = _c2c("fftn", x, n, axis, norm, False)
    return x


def ifftn(a, s=None, axes=None, norm="backward"):
    """The inverse of fftn."""
    x = as_complex(_floats(a))
    s, axes = _several("ifftn", x, s, axes)
    for n, axis in zip(reversed(s), reversed(axes)):
        x = _c2c("ifftn", x, n, axis, norm, True)
    return x


def rfftn(a, s=None, axes=None, norm="backward"):
    """rfft along the last of the axes, fft along the others."""
    x = _real("rfftn", a)
    s, axes = _several("rfftn", x, s, axes)
    if not axes:
        raise ValueError("eager.fft.rfftn: at least one axis is wanted")
    x = _r2c("rfftn", x, s[-1], axes[-1], norm, False)
    for n, axis in zip(reversed(s[:-1]), reversed(axes[:-1])):
        x = _c2c("rfftn", x, n, axis, norm, False)
    return x


def irfftn(a, s=None, axes=None, norm="backward"):
    """The inverse of rfftn; s[-1] says whether the last length was odd."""
    x = as_complex(_floats(a))
    s, axes = _several("irfftn", x, s, axes)
    if not axes:
        raise ValueError("eager.fft.irfftn: at least one axis is wanted")
    for n, axis in zip(s[:-1], axes[:-1]):
        x = _c2c("irfftn", x, n, axis, norm, True)
    return _c2r("irfftn", x, s[-1], axes[-1], norm, True)


def fft2(a, s=None, axes=(-2, -1), norm="backward"):
    """fftn over the last two axes."""
    return fftn(a, s, axes, norm)


def ifft2(a, s=None, axes=(-2, -1), norm="backward"):
    return ifftn(a, s, axes, norm)


def rfft2(a, s=None, axes=(-2, -1), norm="backward"):
    return rfftn(a, s, axes, norm)


def irfft2(a, s=None, axes=(-2, -1), norm="backward"):
    return irfftn(a, s, axes, norm)


def _freq(fn, n, d, dtype, device, numbers):
    if not isinstance(n, (int, np.integer)):
        raise ValueError(f"eager.fft.{fn}: n is an int, got {n!r}")
    if dtype is not None and _e._array_api._dtype(dtype).kind != "f":
        raise ValueError(f"eager.fft.{fn}: a real float dtype is wanted, got {dtype}")
    out = numbers / (n * d)
    return _e.asarray(out.astype(np.float32) if dtype is None else out, dtype=dtype, device=device)


def fftfreq(n, d=1.0, *, dtype=None, device=None):
    """The frequencies of fft's elements, for samples d apart."""
    k = np.arange(n)
    return _freq("fftfreq", n, d, dtype, device, np.where(k < (n + 1) // 2, k, k - n).astype(np.float64))


def rfftfreq(n, d=1.0, *, dtype=None, device=None):
    """The frequencies of rfft's elements."""
    return _freq("rfftfreq", n, d, dtype, device, np.arange(n // 2 + 1).astype(np.float64))


def _shifted(fn, x, axes, sign):
    x = _t(x)
    axes = tuple(range(len(x.shape))) if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
    axes = tuple(_axis(f"fft.{fn}", a, len(x.shape)) for a in axes)
    if not axes:
        return x
    return _e.roll(x, tuple(x.shape[a] // 2 if sign > 0 else -(x.shape[a] // 2) for a in axes), axes)


def fftshift(x, axes=None):
    """The element of frequency 0 in the middle."""
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x, axes=None):
    """The inverse of fftshift."""
    return _shifted("ifftshift", x, axes, -1)
