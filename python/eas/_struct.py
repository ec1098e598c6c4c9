"""Arguments of a kernel that are more than one parameter: structs (named tuples, dataclasses, tuples) of
arrays and numbers, functions, and arrays whose sizes the kernel asks for.

A spec, which is hashable, says how an argument comes apart; a kernel has one inner kernel for each
combination of specs (kernel.c), with the parts as parameters. `expand` takes arguments apart at a launch,
`rebuild` puts symbols together where the body is traced:

    ("p",)                                 one parameter
    ("c", value)                           none: a function, None, a str, a dtype
    ("t", kind, type, fields, specs)       the parts of a tuple, named tuple or dataclass
    ("8", format, spec)                    an array of float8, and the spec of its bytes
    ("a", ndim, layout, flags)             an array and its sizes: layout None is C-contiguous, else (which
                                           strides are 1, has it negative ones)
"""

import dataclasses
import functools
import sys
import types

import numpy as np

from . import _eas
from ._eas import DType, Kernel, Tensor
from ._float8 import Float8Array, bytes_of, format_of

SHAPE, INDEX = 1, 2  # how a kernel uses an array: its shape; its elements by indices
_CONSTANTS = (str, bytes, type(None), DType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, Kernel)


def is_struct(o):
    """Is it an argument that only `expand` understands? Arrays with strides are, too."""
    if isinstance(o, (tuple, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)):
        return True
    return dataclasses.is_dataclass(o) and not isinstance(o, type) or format_of(o) is not None


def _is_array(o):
    return isinstance(o, (np.ndarray, Tensor)) or hasattr(o, "__dlpack__") or (not isinstance(o, (bool, int, float, np.generic)) and hasattr(o, "__array_interface__"))


# ---- arrays ----


def _is_torch(o):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(o, getattr(torch, "Tensor", ()))


def _tensor(o):
    if isinstance(o, Tensor):
        return o
    if type(o).__module__.partition(".")[0] == "eager":
        return o.realize().storage
    import eas

    if isinstance(o, np.ndarray):
        return eas.tensor(o)
    if not _is_torch(o):
        return eas.from_dlpack(o)
    if o.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise BufferError("it requires grad")
    return eas.from_torch(o, copy=False)


def _is_contiguous(shape, strides, item):
    want = item
    for n, s in zip(reversed(shape), reversed(strides)):
        if n != 1 and s != want:
            return False
        want *= n
    return True


def _parts(name, o):
    """(what to pass, shape, strides in elements or None if it is C-contiguous, origin), or None if it has no
    memory to share: binding says why."""
    if isinstance(o, np.ndarray):
        if o.flags.c_contiguous:
            return o, o.shape, None, 0
        shape, strides, item = o.shape, o.strides, o.itemsize
    else:
        try:
            if _is_torch(o) and o.is_contiguous():
                return o, tuple(o.shape), None, 0
            o = _tensor(o)
        except (BufferError, RuntimeError, NotImplementedError):
            return None
        shape, strides, item = tuple(o.shape), o.strides, o.dtype.itemsize
        if 0 in shape or _is_contiguous(shape, strides, item):
            return o, shape, None, 0
    if any(s % item for s in strides):
        raise ValueError(f"argument '{name}': strides of {strides} bytes are no multiples of an element's {item}: pass a copy")
    if 0 in shape:
        return np.empty(0, o.dtype), shape, None, 0
    strides = tuple(s // item for s in strides)
    origin = sum((n - 1) * -s for n, s in zip(shape, strides) if s < 0)
    if origin:  # counted from the element with the lowest address
        o = np.asarray(o)[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in strides)]
    return _tensor(o).memory(), shape, strides, origin


def _array(name, o, flags, names, flat):
    parts = _parts(name, o)
    names.append(name)
    flat.append(o if parts is None else parts[0])
    if parts is None:
        return ("p",)
    _, shape, strides, origin = parts
    n = len(shape)
    if strides is None:
        for k in range(n):
            if k or flags & SHAPE:
                names.append(f"{name}_shape{k}")
                flat.append(shape[k])
        return ("a", n, None, flags)
    if flags & SHAPE:
        names += [f"{name}_shape{k}" for k in range(n)]
        flat += shape
    unit = tuple(s == 1 for s in strides)
    for k in range(n):
        if not unit[k]:
            names.append(f"{name}_stride{k}")
            flat.append(strides[k])
    negative = any(s < 0 for s in strides)
    if negative:
        names.append(f"{name}_origin")
        flat.append(origin)
    return ("a", n, (unit, negative), flags)


def _array_of(spec, symbols):
    _, n, layout, flags = spec
    buffer = next(symbols)
    if layout is None:
        shape = tuple(next(symbols) if k or flags & SHAPE else None for k in range(n))
        strides = [1] * n
        for k in range(n - 2, -1, -1):
            strides[k] = shape[k + 1] if k == n - 2 else strides[k + 1] * shape[k + 1]
        return _eas._array(buffer, shape, tuple(strides), 0, True)
    unit, negative = layout
    shape = tuple(next(symbols) if flags & SHAPE else None for _ in range(n))
    strides = tuple(1 if unit[k] else next(symbols) for k in range(n))
    return _eas._array(buffer, shape, strides, next(symbols) if negative else 0, False)


# ---- structs ----


def _fields(o):
    if isinstance(o, tuple):
        named = hasattr(o, "_fields")
        return ("named" if named else "tuple"), o._fields if named else tuple(map(str, range(len(o)))), tuple(o)
    fields = tuple(f.name for f in dataclasses.fields(o))
    return "dataclass", fields, tuple(getattr(o, f) for f in fields)


def _apart(name, o, flags, names, flat):
    form = format_of(o)
    if form is not None:
        return ("8", form, _apart(name, bytes_of(o), SHAPE | INDEX, names, flat))
    if flags and _is_array(o):
        return _array(name, o, flags, names, flat)
    if isinstance(o, tuple) or (dataclasses.is_dataclass(o) and not isinstance(o, type)):
        kind, fields, values = _fields(o)
        return ("t", kind, type(o), fields, tuple(_apart(f"{name}_{f}", v, flags if flags == SHAPE | INDEX else 0, names, flat) for f, v in zip(fields, values)))
    if isinstance(o, _CONSTANTS):
        return ("c", o)
    if isinstance(o, np.ndarray) and not o.flags.c_contiguous or isinstance(o, Tensor) and not _is_contiguous(o.shape, o.strides, o.dtype.itemsize):
        return _array(name, o, INDEX, names, flat)
    names.append(name)
    flat.append(o)
    return ("p",)


def _argument(name, o, flags, names, flat):
    # allowed inside structs only: as arguments they are mistakes, which binding reports
    if o is None or isinstance(o, (str, bytes, DType)):
        names.append(name)
        flat.append(o)
        return ("p",)
    return _apart(name, o, flags, names, flat)


def _unique(names):
    seen = set()
    out = []
    for n in names:
        while n in seen:
            n += "_"
        seen.add(n)
        out.append(n)
    return tuple(out)


def expand(names, objs, flags):
    """(key, names of the parts, the parts) of run-time arguments. flags: per argument, how the kernel uses it
    as an array."""
    made, flat = [], []
    key = tuple(_argument(n, o, f, made, flat) for n, o, f in zip(names, objs, flags))
    return key, _unique(made), flat


def _flags(spec):
    if spec[0] == "a":
        return spec[3]
    if spec[0] == "8":
        return _flags(spec[2])
    return max(map(_flags, spec[4]), default=0) & SHAPE * 3 if spec[0] == "t" else 0


def expand_all(names, objs, keys, kernel):
    """expand for a kernel and all its inner kernels."""
    for key in keys:
        flags = [_flags(s) for s in key]
        got, made, flat = expand(names, objs, flags)
        if got != key:
            raise TypeError(f"{kernel}: the arguments have other structures, ranks or layouts than those it was compiled for: compile it for these")
        names, objs = made, flat
    return list(objs)


def _together(spec, symbols):
    kind = spec[0]
    if kind == "p":
        return next(symbols)
    if kind == "c":
        return spec[1]
    if kind == "a":
        return _array_of(spec, symbols)
    if kind == "8":
        return Float8Array(_together(spec[2], symbols), spec[1])
    _, how, cls, fields, specs = spec
    values = [_together(s, symbols) for s in specs]
    if how == "tuple":
        return tuple(values)
    if how == "named":
        return cls(*values)
    made = cls.__new__(cls)
    for f, v in zip(fields, values):
        object.__setattr__(made, f, v)
    return made


def rebuild(key, symbols):
    """The arguments of the body, built from the symbols of the parts."""
    symbols = iter(symbols)
    return tuple(_together(s, symbols) for s in key)


def constants(key):
    """Functions and the like among the arguments: the values that they read are guarded, too."""
    out = []

    def walk(spec):
        if spec[0] == "c":
            out.append(spec[1])
        elif spec[0] == "t":
            for s in spec[4]:
                walk(s)

    for s in key:
        walk(s)
    return tuple(out)
