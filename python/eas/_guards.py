"""What a kernel read from around it while it was traced: globals, closure cells, attributes, elements of
containers, helpers.

The values that it found there are in the compiled code, so a launch compares them with the present ones
(guard.c) and traces again if one has changed. They are found by walking from the kernel's function: the
globals and cells that its code names, the functions it finds there, and of objects, classes and modules the
attributes that any of this code names. Objects of libraries are assumed not to change."""

import functools
import operator
import sys
import types

from ._eas import Kernel

# How a guard is compared: the numbers are guard.c's.
CELL, DICT, TABLE, OBJECT, TYPE, LIST, FUNCTION, ARRAY, ATTRIBUTE, EQUAL, SEQUENCE = range(11)
MISSING = type("missing", (), {"__repr__": lambda self: "nothing"})()

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), range, slice, types.BuiltinFunctionType, types.WrapperDescriptorType)
_LIBRARIES = {"eas", "eager", "numpy", "torch", "jax", "jaxlib", "ml_dtypes", "mlx", "builtins"}
_NOT_CALLED = {"__init__", "__new__", "__repr__", "__str__", "__init_subclass__", "__class_getitem__", "__del__", "__reduce__", "__set_name__"}


def _is_library(name):
    top = (name or "").partition(".")[0]
    return top in _LIBRARIES or (top in sys.stdlib_module_names and top != "__main__")


@functools.lru_cache(maxsize=1024)
def _code_names(code):
    """(globals that the code reads, names that may be attributes), functions defined in it included."""
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
    def __init__(self, kernel=None, metas=()):
        self.rows = []  # (how, what, keys, values, label)
        self.dicts = {}  # id(globals) -> (dict, {name: value})
        self.seen = {}  # id -> object, kept alive
        self.names = {m for m in metas if isinstance(m, str)}
        self.holders = {}  # (id, name) -> is it done; objects whose attributes of these names are guarded
        self.waiting = []
        self.kernel = kernel

    def captured(self, metas, owner):
        self.function(self.kernel, "")
        for m in metas:
            self.value(m, "a meta argument")
        self.value(owner, self.kernel.__code__.co_varnames[0] if owner is not None else "")
        self.attributes()
        return self.rows

    def state(self, code, names, values):
        """The content of containers and attributes that the code may change."""
        read, attributes = _code_names(code)
        self.names |= attributes
        for name in sorted(read & names.keys()):
            if not self.is_fixed(names[name]):
                self.dicts.setdefault(id(names), (names, {}))[1][name] = names[name]
                self.value(names[name], name)
        for name, v in values.items():
            self.value(v, name)
        self.attributes()
        return [r for r in self.rows if r[0] not in (FUNCTION, CELL)]

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
        if isinstance(v, Kernel):
            self.value(v.fn, label)
        elif isinstance(v, (staticmethod, classmethod)):
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
            self.rows.append((SEQUENCE, v, None, tuple(v), label))
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
        """Methods that Python calls without their being named in code."""
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
            self.rows.append((TYPE, cls, name, shared, label))
            self.value(shared, label)


def captured(fn, metas, owner):
    """The guards of a kernel that was just traced, or None. owner: the object whose method it is, or None."""
    return tuple(_Walk(fn, metas).captured(metas, owner)) or None


def state(code, names, values):
    """Containers and attributes that a function's body reaches from its globals and locals, as they are now;
    None if there are none."""
    return tuple(_Walk().state(code, names, values)) or None


def now(row):
    """[(the user's name for it, old value, present value)] of a guard that no longer holds."""
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
        return [(label, _Words("one function"), _Words("another"))]
    elif how == ARRAY:
        return [(label, _Words("other elements"), _Words("these"))]
    elif how == ATTRIBUTE and key is None:
        is_ = what.get(MISSING)
    elif how == SEQUENCE:
        is_ = tuple(what)
    elif how == EQUAL:
        is_ = what
    elif how == TYPE:
        is_ = next((vars(c)[key] for c in what.__mro__ if key in vars(c)), MISSING)
    else:
        is_ = getattr(what, key, MISSING)
    return [(label, was, is_)]


def _same(a, b):
    return a is b or (type(a) is type(b) and isinstance(a, (*_PLAIN, tuple)) and operator.eq(a, b) is True)


def reason(row):
    """The change of a guard's value in words."""
    return "; ".join(f"'{name}' was {_short(was)}, is {_short(is_)}" for name, was, is_ in now(row)[:4]) or "what it captured changed"


class _Words(str):
    __repr__ = str.__str__


def _short(v):
    text = f"function {v.__qualname__}" if isinstance(v, types.FunctionType) else repr(v)
    return text if len(text) <= 60 else text[:57] + "..."


# ---- changes that the body of a traced loop or branch made ----


def _same_row(row):
    how, what, _, was, _ = row
    if how == EQUAL:
        return what == was
    if how == ARRAY:
        return what.dtype == was.dtype and what.tobytes() == was.tobytes()
    return all(_same(a, b) for _, a, b in now(row))


def _harmless(was, is_, loop, scope):
    """Is this change harmless: a place that held nothing before gets a traced value of the body? Reading that
    value after the body is an error of its own. A value from before the body could be read without an error,
    and would be wrong whichever way the branch goes."""
    from ._eas import Value

    return type(is_) is Value and was is None and is_._scope >= scope


def lost(rows, loop, scope):
    """(name, old value, present value) of the first change that would be made once instead of in each round,
    or whichever branch is taken; None: there is none."""
    for row in rows:
        if _same_row(row):
            continue
        for what, was, is_ in now(row):
            if not _same(was, is_) and not _harmless(was, is_, loop, scope):
                return what, _short(was), _short(is_)
    return None


def changed_at(code, start, stop, what):
    """The line between two places of the bytecode that changes `what`: one that names it and stores, else one
    that names it; 0 if there is none."""
    import dis
    import re

    from ._names import origin

    code, start, stop = origin(code, start, stop)
    root = re.match(r"(?:len\()?(\w*)", what)[1]
    named, stores, line = [], set(), code.co_firstlineno
    for i in dis.get_instructions(code):
        line = (i.positions.lineno if i.positions else None) or line
        if i.offset == start and i.opname == "FOR_ITER":
            stop = i.argval
        if start < i.offset < stop:
            if i.argval == root or (isinstance(i.argval, tuple) and root in i.argval):
                named.append(line)
            if re.match("(STORE|DELETE)_(SUBSCR|ATTR|GLOBAL|SLICE)|.*CALL", i.opname):
                stores.add(line)
    return next((n for n in named if n in stores), named[0] if named else 0)
