"""What a kernel read from around it while it was traced: globals, closure cells, attributes, elements of containers, helpers.

The values that it found there are in the compiled code, so a launch compares them with what is there now (guard.c) and traces again if one has
changed. Found by walking from the kernel's function: the globals and cells that its code names, the functions it finds there, and of objects,
classes and modules the attributes that any of this code names. What belongs to libraries is taken not to change."""

import functools
import operator
import sys
import types

# How a guard is compared: the numbers are guard.c's.
CELL, DICT, TABLE, OBJECT, TYPE, LIST, FUNCTION, ARRAY, ATTRIBUTE, EQUAL = range(10)
MISSING = type("missing", (), {"__repr__": lambda self: "nothing"})()

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), range, slice, types.BuiltinFunctionType, types.WrapperDescriptorType)
_LIBRARIES = {"eas", "eager", "numpy", "torch", "jax", "jaxlib", "ml_dtypes", "mlx", "builtins"}
_NOT_CALLED = {"__init__", "__new__", "__repr__", "__str__", "__init_subclass__", "__class_getitem__", "__del__", "__reduce__", "__set_name__"}


def _is_library(name):
    top = (name or "").partition(".")[0]
    return top in _LIBRARIES or (top in sys.stdlib_module_names and top != "__main__")


@functools.lru_cache(maxsize=1024)
def _code_names(code):
    """(globals that it reads, names that may be attributes), with the functions defined in it."""
    from opcode import opmap

    load, extend = opmap["LOAD_GLOBAL"], opmap["EXTENDED_ARG"]
    read, high, attributes = set(), 0, set(code.co_names)
    for at in range(0, len(code.co_code), 2):
        op, arg = code.co_code[at], code.co_code[at + 1] | high
        if op == load:
            read.add(code.co_names[arg >> 1])
        high = arg << 8 if op == extend else 0
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            inner = _code_names(c)
            read |= inner[0]
            attributes |= inner[1]
        elif isinstance(c, str) and c.isidentifier():
            attributes.add(c)  # getattr(x, "name")
    return frozenset(read), frozenset(attributes)


class _Walk:
    def __init__(self, kernel, metas):
        self.rows = []  # (how, what, keys, values, label)
        self.dicts = {}  # id(globals) -> (dict, {name: value})
        self.seen = {}  # id -> object, kept alive
        self.names = {m for m in metas if isinstance(m, str)}
        self.holders = {}  # (id, name) -> done; objects whose named attributes count
        self.waiting = []
        self.kernel = kernel
        self.function(kernel, "")
        self.attributes()

    # ---- functions ----

    def function(self, f, label):
        if id(f) in self.seen or _is_library(f.__module__):
            return
        self.seen[id(f)] = f
        read, names = _code_names(f.__code__)
        self.names |= names
        for name in sorted(read):
            value = f.__globals__.get(name, MISSING)
            if value is not MISSING and not self.is_fixed(value):
                self.dicts.setdefault(id(f.__globals__), (f.__globals__, {}))[1][name] = value
                self.value(value, name)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if not self.is_fixed(value):
                self.rows.append((CELL, cell, None, value, name))
                self.value(value, name)
        if f is not self.kernel:
            self.rows.append((FUNCTION, f, None, (f.__code__, f.__defaults__, f.__kwdefaults__), label or f.__name__))
            for d in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
                self.value(d, label)

    @staticmethod
    def is_fixed(v):
        """Modules, functions and classes of libraries."""
        if isinstance(v, types.ModuleType):
            return _is_library(v.__name__)
        if isinstance(v, (type, types.FunctionType, types.BuiltinFunctionType)):
            return _is_library(v.__module__)
        return False

    # ---- values ----

    def value(self, v, label):
        if isinstance(v, _PLAIN) or id(v) in self.seen:
            return
        if isinstance(v, types.FunctionType):
            self.function(v, label)
            return
        self.seen[id(v)] = v
        if isinstance(v, (staticmethod, classmethod)):
            self.value(v.__func__, label)
        elif isinstance(v, types.MethodType):
            self.value(v.__self__, label)
            self.value(v.__func__, label)
        elif isinstance(v, property):
            for f in (v.fget, v.fset):
                self.value(f, label)
        elif isinstance(v, functools.partial):
            self.each((v.func, *v.args, *v.keywords.values()), label)
        elif isinstance(v, (tuple, frozenset)):
            self.each(v, label)
        elif isinstance(v, list):
            self.rows.append((LIST, v, None, tuple(v), label))
            self.each(v, label)
        elif isinstance(v, dict):
            self.rows.append((TABLE, v, None, dict(v), label))
            self.each(v.values(), label)
        elif isinstance(v, types.MappingProxyType):
            self.rows.append((EQUAL, v, None, dict(v), label))
            self.each(v.values(), label)
        elif isinstance(v, set):
            self.rows.append((EQUAL, v, None, frozenset(v), label))
        elif type(v).__name__ in ("deque", "array", "bytearray"):
            self.rows.append((EQUAL, v, None, v.copy() if hasattr(v, "copy") else v[:], label))
        elif type(v).__name__ == "ContextVar":
            self.rows.append((ATTRIBUTE, v, None, v.get(MISSING), label))
        elif type(v).__module__ == "numpy" and type(v).__name__ == "ndarray":
            self.rows.append((ARRAY, v, None, v.copy(), label))
        elif not self.is_fixed(v) and not _is_library(type(v).__module__) or isinstance(v, (types.SimpleNamespace, types.ModuleType, type)):
            if not self.is_fixed(v):
                self.waiting.append((v, label))

    def each(self, values, label):
        for v in values:
            self.value(v, label)

    # ---- attributes: of every object, those that some code names; more code may be found on the way ----

    def attributes(self):
        known = -1
        while known != (len(self.names), len(self.waiting)):
            known = (len(self.names), len(self.waiting))
            for v, label in list(self.waiting):
                wanted = self.names | self.special(v)
                for name in sorted(wanted):
                    if (id(v), name) not in self.holders:
                        self.holders[id(v), name] = True
                        self.attribute(v, name, f"{label}.{name}")
        for d, found in self.dicts.values():
            self.rows.append((DICT, d, tuple(found), tuple(found.values()), ""))

    @staticmethod
    def special(v):
        """Methods that are called without being named."""
        cls = v if isinstance(v, type) else type(v)
        return {
            n
            for c in cls.__mro__
            if not _is_library(c.__module__)
            for n, f in vars(c).items()
            if n.startswith("__") and n not in _NOT_CALLED and isinstance(f, (types.FunctionType, staticmethod, classmethod))
        }

    def attribute(self, v, name, label):
        if isinstance(v, types.ModuleType):
            if name in v.__dict__ and not self.is_fixed(v.__dict__[name]):
                self.dicts.setdefault(id(v.__dict__), (v.__dict__, {}))[1][name] = v.__dict__[name]
                self.value(v.__dict__[name], label)
            return
        cls = v if isinstance(v, type) else type(v)
        shared = next((vars(c)[name] for c in cls.__mro__ if name in vars(c) and c is not object), MISSING)
        own = getattr(v, "__dict__", None) if cls is not v else None
        if isinstance(shared, (types.MemberDescriptorType, types.GetSetDescriptorType)) and cls is not v:
            value = getattr(v, name, MISSING)
            self.rows.append((ATTRIBUTE, v, name, value, label))
            self.value(value, label)
            return
        if isinstance(own, dict) and (name in own or shared is not MISSING):
            self.rows.append((OBJECT, v, name, own.get(name, MISSING), label))
            self.value(own.get(name, None), label)
        if shared is not MISSING:
            self.rows.append((TYPE, cls, name, getattr(cls, name, MISSING), label))
            self.value(shared, label)


def captured(fn, metas):
    """The guards of a kernel that was just traced, or None."""
    return tuple(_Walk(fn, metas).rows) or None


def now(row):
    """[(what the user calls it, what it was, what it is)] of a guard that no longer holds."""
    how, what, key, was, label = row
    if how == CELL:
        is_ = getattr(what, "cell_contents", MISSING)
    elif how == DICT:
        return [(k, w, what.get(k, MISSING)) for k, w in zip(key, was) if not _same(w, what.get(k, MISSING))]
    elif how == TABLE:
        keys = [*was, *(k for k in what if k not in was)]
        return [(f"{label}[{k!r}]", was.get(k, MISSING), what.get(k, MISSING)) for k in keys if not _same(was.get(k, MISSING), what.get(k, MISSING))]
    elif how == LIST:
        if len(was) != len(what):
            return [(f"len({label})", len(was), len(what))]
        return [(f"{label}[{i}]", a, b) for i, (a, b) in enumerate(zip(was, what)) if not _same(a, b)]
    elif how == OBJECT:
        is_ = vars(what).get(key, MISSING)
    elif how == FUNCTION:
        return [(label, "one function", "another")]
    elif how == ARRAY:
        return [(label, "other elements", "these")]
    elif how == ATTRIBUTE and key is None:
        is_ = what.get(MISSING)
    elif how == EQUAL:
        is_ = what
    else:
        is_ = getattr(what, key, MISSING)
    return [(label, was, is_)]


def _same(a, b):
    return a is b or (type(a) is type(b) and isinstance(a, (*_PLAIN, tuple)) and operator.eq(a, b) is True)


def reason(row):
    """In words."""
    return "; ".join(f"'{name}' was {_short(was)}, is {_short(is_)}" for name, was, is_ in now(row)[:4]) or "what it captured changed"


def _short(v):
    text = f"function {v.__qualname__}" if isinstance(v, types.FunctionType) else v if isinstance(v, str) and v in ("one function", "another") else repr(v)
    return text if len(text) <= 60 else text[:57] + "..."
