"""Arguments of kernels as text: `a:f32[1024]=random`, `x=data.npy`, `N=1000`, `s:f32=0.5`; and the kernels
they are for."""

import contextlib
import math
import os
import re
import sys

import numpy as np

import eas
from eas import mk

FILLS = ("zeros", "ones", "arange", "random")
DTYPES = ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64")
_SPEC = re.compile(r"(?P<name>[A-Za-z_]\w*)(:(?P<dtype>\w+))?(\[(?P<shape>[\d,\s]*)\])?(=(?P<value>.*))?\Z", re.DOTALL)


class Refused(Exception):
    """An option of the user's that cannot be used; the text says which, and what is possible."""


class Spec:
    """One `--arg` as it was written, not yet an array or a number."""

    def __init__(self, text):
        m = _SPEC.match(text)
        if not m:
            raise Refused(f"--arg {text!r}: want NAME:DTYPE, NAME:DTYPE[SHAPE]=FILL, NAME=NUMBER or NAME=FILE.npy")
        self.text = text
        self.name, self.dtype, self.value = m["name"], m["dtype"], m["value"]
        self.shape = None if m["shape"] is None else tuple(int(d) for d in m["shape"].replace(" ", "").split(",") if d)
        if self.dtype not in (None, "int", "float", *DTYPES):
            raise Refused(f"--arg {text!r}: unknown dtype {self.dtype!r}; there are int, float (Python's numbers), {', '.join(DTYPES)}")

    def number(self):
        """The value as a Python number, or None if it is none."""
        for read in (lambda v: int(v, 0), float):
            try:
                return read(self.value)
            except (TypeError, ValueError):
                continue
        return {"True": True, "true": True, "False": False, "false": False}.get(self.value)


def parse(texts):
    """{name: Spec} of every --arg."""
    specs = {}
    for text in texts or ():
        spec = Spec(text)
        if spec.name in specs:
            raise Refused(f"--arg {text!r}: {spec.name!r} is given twice")
        specs[spec.name] = spec
    return specs


def literal(text):
    """A meta value: a bool, number, tuple, dtype (`f32`) or, if it is nothing else, a string."""
    import ast

    if text in DTYPES:
        return getattr(mk, "bool_" if text == "bool" else text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    if isinstance(value, bool | int | float | str | tuple):
        return value
    raise Refused(f"--meta: {text!r} is a {type(value).__name__}; want a bool, int, float, str, dtype or tuple")


def parse_meta(texts):
    """{name: value} of every --meta."""
    meta = {}
    for text in texts or ():
        name, eq, value = text.partition("=")
        if not eq or not name.isidentifier():
            raise Refused(f"--meta {text!r}: want NAME=VALUE")
        meta[name] = literal(value)
    return meta


# ---- arrays ----


def _bf16(values):
    """A tensor of bfloat16, which NumPy does not have, rounded from float32."""
    import ctypes

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    t = eas.empty(values.shape, dtype=mk.bf16)
    ctypes.memmove(t.data_ptr(), halves.ctypes.data, halves.nbytes)
    return t


def _random(shape, dtype, rng):
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype[0] in "iu":
        info = np.iinfo(_npy(dtype))
        return rng.integers(max(info.min, -100), 100, shape).astype(_npy(dtype))
    return rng.standard_normal(shape)


def _npy(dtype):
    kinds = {"i": "int", "u": "uint", "f": "float"}
    return np.dtype("bool" if dtype == "bool" else kinds[dtype[0]] + dtype[1:])


def array(shape, dtype, fill, rng):
    """A C-contiguous array (for bf16 a tensor): fill is one of FILLS or a number."""
    count = math.prod(shape)
    if fill == "random":
        values = _random(shape, dtype, rng)
    elif fill == "arange":
        values = np.arange(count).reshape(shape)
    else:
        values = np.full(shape, {"zeros": 0, "ones": 1}.get(fill, fill))
    return _bf16(np.asarray(values, np.float32)) if dtype == "bf16" else np.ascontiguousarray(values).astype(_npy(dtype))


def _load(spec):
    if not os.path.exists(spec.value):
        raise Refused(f"--arg {spec.text!r}: {spec.value!r} is no number, none of {', '.join(FILLS)}, and no file")
    try:
        loaded = np.load(spec.value, allow_pickle=False)
    except (ValueError, OSError) as e:
        raise Refused(f"--arg {spec.text!r}: {spec.value} is not a .npy file: {e}") from None
    if not isinstance(loaded, np.ndarray):
        raise Refused(f"--arg {spec.text!r}: {spec.value} holds several arrays; want a .npy file")
    if spec.dtype == "bf16":
        loaded = _bf16(loaded.astype(np.float32))
    elif spec.dtype:
        loaded = loaded.astype(_npy(spec.dtype))
    return loaded if spec.dtype == "bf16" else np.ascontiguousarray(loaded)


def scalar(value, dtype, text):
    """A number as a launch takes it: Python's for int, float, i64 and f64, NumPy's for other dtypes."""
    try:
        if dtype in ("int", "i64"):
            return int(value)
        if dtype in ("float", "f64"):
            return float(value)
        if dtype == "bf16":
            raise Refused(f"{text}: a scalar cannot be bf16; give f32")
        return _npy(dtype).type(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise Refused(f"{text}: {value!r} is no {dtype}: {e}") from None


class Maker:
    """Makes values of specs: length and fill of arrays that do not say, and the seed, come from the options.
    """

    def __init__(self, size, fill, seed):
        if size < 0:
            raise Refused(f"--size {size}: want 0 or more")
        self.size, self.fill = size, fill
        self.rng = np.random.default_rng(seed)

    def value(self, spec):
        """The argument that a spec describes completely, without a parameter's type."""
        number = spec.number()
        if spec.dtype in ("int", "float"):
            if spec.shape is not None:
                raise Refused(f"--arg {spec.text!r}: {spec.dtype} is a number, not an array; want one of {', '.join(DTYPES)}")
            return scalar(1 if spec.value is None else spec.value if number is None else number, spec.dtype, f"--arg {spec.text!r}")
        if number is not None and spec.shape is None:
            return number if spec.dtype is None else scalar(number, spec.dtype, f"--arg {spec.text!r}")
        if spec.value is not None and spec.value not in FILLS and number is None:
            return self._checked(spec, _load(spec))
        if spec.dtype is None:
            raise Refused(f"--arg {spec.text!r}: give the dtype too, as {spec.name}:f32")
        shape = (self.size,) if spec.shape is None else spec.shape
        return array(shape, spec.dtype, self.fill if spec.value is None else spec.value if number is None else number, self.rng)

    @staticmethod
    def _checked(spec, loaded):
        if spec.shape is not None and tuple(loaded.shape) != spec.shape:
            raise Refused(f"--arg {spec.text!r}: {spec.value} has shape {tuple(loaded.shape)}")
        return loaded

    def typed(self, spec, param):
        """The argument for a parameter of IR, whose type is known."""
        dtype, buffer = str(param.dtype), param.kind == "buffer"
        if spec is None:
            spec = Spec(param.name if buffer else f"{param.name}={self.size}")
            if not buffer and param.name != "N":
                raise Refused(f"the scalar {param.name} ({dtype}) has no value: give --arg {param.name}=NUMBER")
        if spec.dtype not in (None, dtype):
            raise Refused(f"--arg {spec.text!r}: the kernel's parameter is {dtype}")
        spec.dtype = dtype
        if not buffer and (spec.number() is None or spec.shape is not None):
            raise Refused(f"--arg {spec.text!r}: {param.name} is a scalar of {dtype}: give a number")
        if buffer and spec.shape is None and spec.number() is not None:
            spec.shape = (self.size,)
        return self.value(spec)


# ---- kernels ----


def load_module(path):
    """The module of a file or a dotted name; whatever it raises is the user's."""
    import importlib
    import importlib.util

    if not path.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as e:
            raise Refused(f"{path!r} is no .py file and no module: {e}") from None
    if not os.path.isfile(path):
        raise Refused(f"{path}: no such file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


def is_kernel(o):
    return isinstance(o, eas.Kernel) or isinstance(getattr(o, "kernel", None), eas.Kernel)


def load_kernel(text):
    """The kernel that FILE.py:NAME (or package.module:NAME) names; NAME may be left out where there is one
    kernel."""
    path, colon, name = text.rpartition(":")
    if not colon:
        path, name = text, ""
    # output of the user's script is not the result of this command
    with contextlib.redirect_stdout(sys.stderr):
        module = load_module(path)
    kernels = [n for n, o in vars(module).items() if is_kernel(o)]
    if not name:
        if len(kernels) != 1:
            raise Refused(f"{path} has {len(kernels)} kernels{': ' + ', '.join(kernels) if kernels else ''}; say which: {path}:NAME")
        name = kernels[0]
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not is_kernel(found):
        what = "nothing of that name" if found is None else f"a {type(found).__name__}"
        raise Refused(f"{path}:{name}: {what}; its kernels are {', '.join(kernels) or 'none'}")
    return found


def bind(kernel, specs, meta, maker):
    """(the kernel itself, its arguments by name) for a call; an autotuned kernel takes the meta values of its
    first config."""
    if not isinstance(kernel, eas.Kernel):
        meta = {**kernel.configs[0].meta, **meta}
        kernel = kernel.kernel
    for given, names, option in ((specs, kernel.runtime_params, "--arg"), (meta, kernel.meta_params, "--meta")):
        for name in given:
            if name not in names:
                raise Refused(f"{option} {name}: {kernel.__name__} has no such parameter; it has {', '.join(names) or 'none'}")
    if "N" in kernel.runtime_params and "N" not in specs and not _has_default(kernel, "N"):
        specs = {**specs, "N": Spec(f"N={maker.size}")}
    for names, given, how in ((kernel.runtime_params, specs, "--arg {0}:f32 or --arg {0}=NUMBER"), (kernel.meta_params, meta, "--meta {0}=VALUE")):
        for name in names:
            if name not in given and not _has_default(kernel, name):
                raise Refused(f"{kernel.__name__}: parameter {name!r} is missing: give {how.format(name)}")
    return kernel, {name: maker.value(spec) for name, spec in specs.items()} | meta


def _has_default(kernel, name):
    from inspect import Parameter, signature

    return signature(kernel.fn).parameters[name].default is not Parameter.empty
