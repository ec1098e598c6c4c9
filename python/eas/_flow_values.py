"""Values that branches and loops of a rewritten kernel join (`_flow`): names without a value, leaves, trees
of leaves and their types."""

import sys

import numpy as np

from . import _eas, mk
from ._eas import Value, Var

_truth, _type, _as = _eas.flow_truth, _eas.flow_type, _eas.flow_as
_mask, _lanes = _eas.flow_mask, _eas.flow_lanes
_NUMBERS = (bool, int, float, np.generic)
_DTYPES = {str(d): d for d in (mk.bool_, mk.i8, mk.i16, mk.i32, mk.i64, mk.u8, mk.u16, mk.u32, mk.u64, mk.f16, mk.bf16, mk.f32, mk.f64)}


_HERE = __file__[: -len("_values.py")]  # all files of _flow begin so


def _where():
    """"file:line: " of the user's code that runs now, and the line."""
    f = sys._getframe(1)
    while f is not None and f.f_code.co_filename.startswith(_HERE):
        f = f.f_back
    return (f"{f.f_code.co_filename}:{f.f_lineno}: ", f.f_lineno) if f else ("", 0)


# ---- names without a value ----


class Undefined:
    """The content of a name that has no value here. Every use of it raises and says why."""

    __slots__ = ("kind", "why")

    def __init__(self, why, kind=UnboundLocalError):
        self.why = why
        self.kind = kind

    def _fail(self, *args, **kw):
        raise self.kind(_where()[0] + self.why)

    def __repr__(self):
        return f"<no value: {self.why}>"

    __hash__ = object.__hash__


for _name in """add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv ifloordiv mod rmod imod pow rpow ipow and rand iand or
    ror ior xor rxor ixor lshift rlshift ilshift rshift rrshift irshift matmul rmatmul imatmul neg pos abs invert lt le gt ge eq ne bool index int float
    iter len contains getitem setitem call getattr enter exit divmod rdivmod round""".split():
    setattr(Undefined, f"__{_name}__", Undefined._fail)
_eas.flow_undefined(Undefined)


def undefined(name):
    return Undefined(f"'{name}' is read here before anything is assigned to it")


def result(value):
    """The value that a function returns, by whichever path."""
    if type(value) is Undefined:
        value._fail()
    return value


# ---- leaves: what can be joined ----


def _is_leaf(x):
    t = type(x)
    return t is Value or t is Var or isinstance(x, _NUMBERS)


def _same_number(a, b):
    return type(a) is type(b) and not isinstance(a, (Value, Var)) and isinstance(a, _NUMBERS) and (a == b or a != a and b != b) and str(a) == str(b)


def _bits(d):
    return int(str(d).lstrip("iubf")) if str(d) != "bool" else 1


def _promote(a, b):
    """The dtype that holds both, if they are of one kind; None: there is none."""
    if a == b:
        return a
    if a.kind == b.kind:
        if _bits(a) == _bits(b):
            return mk.f32  # f16 and bf16
        return a if _bits(a) > _bits(b) else b
    if {a.kind, b.kind} == {"i", "u"}:
        s, u = (a, b) if a.kind == "i" else (b, a)
        if _bits(s) > _bits(u):
            return s
        return None if _bits(u) == 64 else _DTYPES[f"i{2 * _bits(u)}"]
    return None


def _join(a, b):
    """(dtype, shape) for two types (dtype, is weak, shape) that a name has in turn; a str says why there is
    none."""
    (da, wa, sa), (db, wb, sb) = a, b
    if wa and wb:
        dt = da if da == db else mk.f32 if "f" in (da.kind, db.kind) else mk.i64
    elif wa or wb:
        strong, weak = (db, da) if wa else (da, db)
        dt = mk.f32 if weak.kind == "f" and strong.kind != "f" else mk.i64 if strong.kind == "b" else strong
    else:
        dt = _promote(da, db)
        if dt is None:
            return f"{da} and {db} have no dtype in common that holds both without a cast"
    try:
        return dt, np.broadcast_shapes(sa, sb)
    except ValueError:
        return f"the block shapes {sa} and {sb} do not go together"


def _kind_of(x):
    if type(x) is Undefined:
        return "nothing"
    if isinstance(x, (Value, Var)):
        return f"a value of {x.dtype}"
    return "None" if x is None else f"a {type(x).__name__}"


class _Tree:
    """How the objects that a name holds in turn are joined: a leaf, a tuple of trees, or an object that stays
    as it is."""

    __slots__ = ("at", "keep", "make", "parts")

    def __init__(self, at=None, keep=None, parts=None, make=None):
        self.at, self.keep, self.parts, self.make = at, keep, parts, make

    def build(self, values):
        if self.at is not None:
            return values[self.at]
        if self.parts is None:
            return self.keep
        parts = [p.build(values) for p in self.parts]
        return self.make(*parts) if hasattr(self.make, "_fields") else self.make(parts)


def _leaf_types(x):
    """The types of the leaves of a name's value; None for an object that is no leaf."""
    if isinstance(x, tuple):
        return tuple(_leaf_types(e) for e in x)
    return _type(x) if _is_leaf(x) else None


def _snapshot(x):
    """A copy in which variables are replaced by their present values."""
    if isinstance(x, tuple):
        parts = [_snapshot(e) for e in x]
        return x if all(p is e for p, e in zip(parts, x)) else type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x.value if type(x) is Var else x


def _as_tuple(x, n):
    return x if isinstance(x, tuple) else (None,) * n


def _pair(name, line, a, b, was, types, pairs):
    """The tree of a name's value after a branch: a at the end of the first side, b of the second. was: the
    value that a stood for at that time, types: the types of its leaves."""
    said = "the result" if name == "_eas_rv" else f"'{name}'"
    if a is b or _same_number(a, b):
        return _Tree(keep=a)
    if type(a) is Undefined or type(b) is Undefined:
        if type(a) is Undefined and type(b) is Undefined:
            return _Tree(keep=a)
        one = a if type(a) is Undefined else b
        if name == "_eas_rv":  # the result of a function: flags tell whether it has one
            return _seeded(line, a, b, was, types, pairs)
        why = one.why if "before anything" not in one.why else (
            f"'{name}' is assigned in one branch of the `if` of line {line} only, and may have no value here: assign it before the `if`, or in both branches"
        )
        return _Tree(keep=Undefined(why))
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) and type(a) is type(b):
        n = len(a)
        return _Tree(make=type(a), parts=[_pair(name, line, *e, pairs) for e in zip(a, b, _as_tuple(was, n), _as_tuple(types, n))])
    if _is_leaf(a) and _is_leaf(b):
        to = _join(types, _type(b))
        if isinstance(to, str):
            return _Tree(keep=Undefined(f"{said} depends on the branch that the `if` of line {line} takes, and {to}: cast one of them with mk.cast", TypeError))
        pairs.append((was, b))
        return _Tree(at=len(pairs) - 1)
    return _Tree(keep=Undefined(f"{said} is {_kind_of(a)} or {_kind_of(b)}, by the branch that the `if` of line {line} takes: a kernel chooses between numbers "
                                "and blocks only", TypeError))  # fmt: skip


def _seed(x):
    """A stand-in of the given types for a value that does not exist on this path: a tree of zeros; None: the
    types allow none."""
    if isinstance(x, tuple):
        if x and isinstance(x[0], type(mk.f32)):  # a type
            return mk.cast(0, x[0]) if not x[2] else mk.zeros(x[2], x[0])
        parts = [_seed(e) for e in x]
        return None if any(p is None for p in parts) else tuple(parts)
    return None


def _seeded(line, a, b, was, types, pairs):
    """The tree of a result that only one branch has."""
    have = types if type(b) is Undefined else _leaf_types(b)
    zero = _seed(have)
    if zero is None:
        return _Tree(keep=b if type(a) is Undefined else a)
    if type(b) is Undefined:
        return _pair("_eas_rv", line, a, zero, was, types, pairs)
    return _pair("_eas_rv", line, zero, b, zero, _leaf_types(zero), pairs)


def _and(mask, cond):
    return cond if mask is None else mask & cond
