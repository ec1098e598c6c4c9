"""What the statements of a rewritten kernel call while it runs: see `_rewrite`, which writes the calls.

Each construct first asks whether its condition is known. If it is, Python's own meaning holds and nothing is recorded. If it is traced, there
are three ways:

- one condition for the program or the thread: an `if` or a loop of the IR. Both branches run, one after the other; names that they assign are joined
  behind it. A loop's body runs once; the names that it assigns are carried round. If a body changes the dtype or the shape of such a name, all that
  it recorded is forgotten and it runs again with the promoted type.
- a condition per lane of a block: both branches run, memory accesses and variables under a mask (the trace's own, which mk.load and mk.store heed),
  and names are joined by mk.where. A loop goes on while any lane does.
- under `_interpret=True`, a condition that differs between threads: the same with the data at hand.
"""

import builtins
import functools
import sys
import threading
import types
import weakref

import numpy as np

from . import _eas, _guards, mk
from ._eas import Kernel, Value, Var

_truth, _type, _as = _eas.flow_truth, _eas.flow_type, _eas.flow_as
_mask, _lanes = _eas.flow_mask, _eas.flow_lanes
_NUMBERS = (bool, int, float, np.generic)
_DTYPES = {str(d): d for d in (mk.bool_, mk.i8, mk.i16, mk.i32, mk.i64, mk.u8, mk.u16, mk.u32, mk.u64, mk.f16, mk.bf16, mk.f32, mk.f64)}


def _where():
    """"file:line: " of the user's code that runs now, and the line."""
    f = sys._getframe(1)
    here = __file__
    while f is not None and f.f_code.co_filename == here:
        f = f.f_back
    return (f"{f.f_code.co_filename}:{f.f_lineno}: ", f.f_lineno) if f else ("", 0)


# ---- names without a value ----


class Undefined:
    """What a name holds that has no value here. Whatever is done with it raises and says why."""

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
    """What a function returns, by whatever path."""
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
    """The dtype of both, of one kind; None: there is none."""
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
    """(dtype, shape) for two types (dtype, is weak, shape) that a name has by turns; a str says why there is none."""
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
    """How the objects that a name holds by turns are joined: a leaf, a tuple of trees, or an object that stays as it is."""

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
    """Of each leaf of what a name holds; None where it is none."""
    if isinstance(x, tuple):
        return tuple(_leaf_types(e) for e in x)
    return _type(x) if _is_leaf(x) else None


def _snapshot(x):
    """Variables as the values that they have now."""
    if isinstance(x, tuple):
        parts = [_snapshot(e) for e in x]
        return x if all(p is e for p, e in zip(parts, x)) else type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x.value if type(x) is Var else x


def _as_tuple(x, n):
    return x if isinstance(x, tuple) else (None,) * n


def _pair(name, line, a, b, was, types, pairs):
    """The tree of what a name holds behind a branch: a at the end of the first, b of the second. was: what a held then, types its leaves'."""
    said = "the result" if name == "_eas_rv" else f"'{name}'"
    if a is b or _same_number(a, b):
        return _Tree(keep=a)
    if type(a) is Undefined or type(b) is Undefined:
        if type(a) is Undefined and type(b) is Undefined:
            return _Tree(keep=a)
        one = a if type(a) is Undefined else b
        if name == "_eas_rv":  # what a function returns: flags tell whether it has
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
    """Something of the type of what a name holds, where nothing is: a tree of zeros; None: it cannot be."""
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


# ---- if ----


class _Known:
    """A condition that Python knows."""

    __slots__ = ("other", "then")

    def __init__(self, then):
        self.then, self.other = then, not then

    @staticmethod
    def half(values):
        return values

    end = half


_THEN, _OTHER = _Known(True), _Known(False)


def _condition(c):
    return c if c.dtype == mk.bool_ else c != 0


class _Branch:
    then = other = True

    def __init__(self, cond, names, before):
        self.cond, self.names, self.before = cond, names, before
        self.line = _where()[1]
        self.begin()

    def half(self, values):
        self.first = values
        self.was = [_snapshot(v) for v in values]
        self.types = [_leaf_types(v) for v in values]
        self.middle()
        return self.before

    def end(self, values):
        pairs = []
        trees = [_pair(n, self.line, a, b, w, t, pairs) for n, a, b, w, t in zip(self.names, self.first, values, self.was, self.types)]
        joined = self.join(pairs)
        return tuple(t.build(joined) for t in trees)


class _IfBranch(_Branch):
    """An `if` of the IR."""

    def begin(self):
        _eas.flow_if(_condition(self.cond))

    def middle(self):
        _eas.flow_else()

    def join(self, pairs):
        return _eas.flow_endif(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


class _State:
    """What containers and attributes hold that the user's function reaches: a body in which only some lanes take part may not change it."""

    def __init__(self):
        f = sys._getframe(1)
        while f is not None and f.f_code.co_filename == __file__:
            f = f.f_back
        names = {n: v for n, v in f.f_locals.items() if not n.startswith("_eas")} if f else {}
        self.rows = _guards.state(f.f_code, f.f_globals, names) if f else None

    def check(self, line, what):
        lost = self.rows and _guards.lost(self.rows, False, sys.maxsize)
        if lost:
            name, was, now = lost
            raise RuntimeError(
                f"{_where()[0]}'{name}' is {was} and becomes {now} in the body of {what} (line {line}), in which only some lanes take part: lists, dicts and attributes "
                "have one value for all of them. Use a plain name, which is joined by itself, or mk.where"
            )


class _LaneBranch(_Branch):
    """Lanes of a block take different ways: both branches run under masks."""

    def begin(self):
        self.state = _State()
        self.cond = _condition(self.cond)
        self.outer = _lanes()
        _mask(self.cond if self.outer is None else self.outer & self.cond)

    def middle(self):
        self.state.check(self.line, "if")
        _mask(None)
        _mask(~self.cond if self.outer is None else self.outer & ~self.cond)

    def join(self, pairs):
        self.state.check(self.line, "else")
        _mask(self.outer)
        return [mk.where(self.cond, a, b) for a, b in pairs]


class _LiveBranch(_LaneBranch):
    """Threads take different ways, under _interpret."""

    def begin(self):
        self.state = _State()
        self.cond = _condition(self.cond)
        _eas.flow_live_if(self.cond)

    def middle(self):
        self.state.check(self.line, "if")
        _eas.flow_live_end()
        _eas.flow_live_else(self.cond)

    def join(self, pairs):
        self.state.check(self.line, "else")
        _eas.flow_live_end()
        return [mk.where(self.cond, a, b) for a, b in pairs]


def if_(cond, names, before):
    known = _truth(cond)
    if known is not None:
        return _THEN if known else _OTHER
    if cond.ndim:
        return _LaneBranch(cond, names, before)
    return (_LiveBranch if _eas.flow_live() else _IfBranch)(cond, names, before)


def none_of(*flags):
    """Is none of the flags set? They are bools, known or traced."""
    c = True
    for f in flags:
        known = _truth(f)
        if known:
            return False
        if known is None:
            c = ~f if c is True else c & ~f
    return c


# ---- loops ----


class _Carried:
    """The names that a traced loop carries: their trees, what they begin with, and whether the body agrees with that."""

    def __init__(self, names, live, stops):
        self.names, self.live, self.stops = names, live, stops
        self.forced = set(stops)  # carried whatever they are
        self.seeds = {}  # name's index -> the types of a result that is there after a turn
        self.types = {}  # (name's index, path) -> (dtype, shape) that the body asked for
        self.line = _where()[1]
        self.lanes = None

    def start(self, before):
        """What the loop begins with: a list of leaves."""
        self.before = before = tuple(_seed(self.seeds[i]) if i in self.seeds else b for i, b in enumerate(before))
        self.leaves, self.have, self.trees = [], [], []
        for i, b in enumerate(before):
            self.trees.append(self.plan(i, (), b))
        return tuple(self.leaves)

    def plan(self, i, path, b):
        if isinstance(b, tuple):
            parts = [self.plan(i, (*path, k), e) for k, e in enumerate(b)]
            return _Tree(parts=parts, make=type(b)) if any(p.at is not None or p.parts is not None for p in parts) else _Tree(keep=b)
        number = isinstance(b, _NUMBERS) and not isinstance(b, (Value, Var))
        if type(b) is Var and i not in self.forced or not _is_leaf(b) or (number and i not in self.forced and not self.live[i]):
            return _Tree(keep=b)
        to = self.types.get((i, path))
        dt, weak, shape = _type(b)
        if to is None:
            to = (mk.f32 if weak and dt.kind == "f" else dt, shape)
        self.leaves.append(_as(_snapshot(b), *to) if (dt, shape) != to or type(b) is not Value else b)
        self.have.append((i, path, *to))
        return _Tree(at=len(self.leaves) - 1)

    def names_of(self, carried):
        return tuple(t.build(carried) for t in self.trees)

    def next(self, values, carried):
        """The leaves after a turn, or None if the loop must begin again. carried: what this turn began with."""
        again, out = False, []
        for i, (tree, new) in enumerate(zip(self.trees, values)):
            if tree.at is None and tree.parts is None:
                again |= self.stays(i, self.before[i], new)
            else:
                again |= self.follow(i, (), tree, new, carried, out)
        return None if again else tuple(out)

    def stays(self, i, was, new):
        """A name that is not carried: must it be?"""
        if type(was) is Undefined and self.names[i] == "_eas_rv" and type(new) is not Undefined and _seed(_leaf_types(new)) is not None:
            self.seeds[i] = _leaf_types(new)
            self.forced.add(i)
            return True
        if was is new or _same_number(was, new) or type(was) is Undefined or (isinstance(was, tuple) and was == new):
            return False
        if (_is_leaf(was) and _is_leaf(new)) or (isinstance(was, tuple) and isinstance(new, tuple)):
            self.forced.add(i)
            return True
        if self.live[i]:
            self.fail(i, f"{_kind_of(was)} before the loop and {_kind_of(new)} after a turn: a loop of the kernel carries numbers and blocks only")
        return False

    def follow(self, i, path, tree, new, carried, out):
        if tree.parts is not None:
            if not isinstance(new, tuple) or len(new) != len(tree.parts):
                self.fail(i, f"a tuple of {len(tree.parts)} before the loop and {_kind_of(new)} after a turn")
            again = False
            for k, (p, e) in enumerate(zip(tree.parts, new)):
                if p.at is None and p.parts is None:
                    again |= self.stays(i, p.keep, e)
                else:
                    again |= self.follow(i, (*path, k), p, e, carried, out)
            return again
        if type(new) is Undefined:
            new._fail()
        if not _is_leaf(new):
            self.fail(i, f"a number or block before the loop and {_kind_of(new)} after a turn")
        _, _, dt, shape = self.have[tree.at]
        if self.lanes is not None and new is not carried[tree.at]:
            new = mk.where(self.lanes, new, carried[tree.at]) if self.merges(new, dt) else new
        t = _type(_snapshot(new))
        weak_before = self.is_weak(i, path)
        to = _join((dt, weak_before and not t[1], shape), t)
        if isinstance(to, str):
            self.fail(i, f"{dt}{list(shape) or ''} before the loop and {t[0]}{list(t[2]) or ''} after a turn; {to}. Begin with the type that it gets, "
                         f"as in {self.names[i]} = mk.cast(init, mk.{t[0]})")  # fmt: skip
        if to != (dt, shape):
            self.types[i, path] = to
            return True
        out.append(_as(_snapshot(new), dt, shape))
        return False

    @staticmethod
    def merges(new, dt):
        t = _type(new)
        return t[1] or t[0].kind == dt.kind

    def is_weak(self, i, path):
        b = self.before[i]
        for k in path:
            b = b[k]
        return _type(b)[1] if _is_leaf(b) and not isinstance(b, bool) else False

    def fail(self, i, why):
        raise TypeError(f"{_where()[0]}'{self.names[i]}' changes in the loop of line {self.line}: it is {why}")

    def result(self, final):
        """The names behind the loop."""
        out = []
        for i, (tree, name) in enumerate(zip(self.trees, self.names)):
            if tree.at is not None or tree.parts is not None:
                out.append(tree.build(final))
                continue
            was, new = self.before[i], self.last[i]
            if was is new or _same_number(was, new):
                out.append(was)
            elif type(was) is Undefined:
                out.append(Undefined(f"'{name}' is assigned in the body of the loop of line {self.line} only, which may run no times: assign it before the loop"))
            else:
                out.append(Undefined(f"'{name}' is {_kind_of(was)} before the loop of line {self.line} and {_kind_of(new)} in it: a loop of the kernel carries numbers "
                                     "and blocks only", TypeError))  # fmt: skip
        return tuple(out)


def _any(c):
    return c if not c.ndim else mk.any(c)


class _Turns:
    """What `for` and `while` share: the state of a loop of the IR whose condition is asked for each time round."""

    def open(self, before, extra=()):
        """Begins the loop; the extra leaves come first."""
        self.mark = _eas.flow_mark()
        leaves = self.names.start(before)
        n = len(extra)
        carried = _eas.flow_while((*extra, *leaves))
        self.extra, self.carried = carried[:n], carried[n:]
        self.outer = _lanes()
        return self.names.names_of(self.carried)

    def flags(self, values):
        """The flags that end the loop, as they were when the turn began."""
        return [values[i] for i in self.names.stops]

    def go(self, cond, values):
        """The loop's condition; sets the mask of lanes that go on. Gives the names for the body."""
        stopped = self.flags(values)
        for f in stopped:
            cond = ~f if cond is True else cond & ~f
        lanes = cond if _truth(cond) is None and cond.ndim else None
        if lanes is not None:
            lanes = lanes if self.outer is None else self.outer & lanes
            _mask(None)
            _eas.flow_do(mk.any(lanes))
            _mask(lanes)
        else:
            if self.outer is not None and self.outer.ndim:  # a loop of some lanes ends when they are done
                pass
            _eas.flow_do(cond)
        self.names.lanes = cond if lanes is not None else None
        if lanes is None:  # known where the body runs
            values = tuple(False if i in self.names.stops else v for i, v in enumerate(values))
        return values

    def close(self, values, extra=()):
        """After the body: the names behind the loop, or None if it must begin again."""
        self.names.last = values
        nexts = self.names.next(values, self.carried)
        _mask(self.outer)
        if nexts is None:
            _eas.flow_rewind(self.mark)
            return None
        final = _eas.flow_endwhile((*extra, *nexts))
        return self.names.result(final[len(extra) :])


class While(_Turns):
    """A `while` statement. It is Python's as long as its condition, and whether it is left, are known."""

    def __init__(self, names, live, stops):
        self.all = names, live, stops
        self.again, self.state = True, "known"

    def enter(self, values):
        if self.state == "known":
            self.before = values
            self.probing = not _eas.flow_live() and _eas.flow_lanes is not None
            if self.probing:
                self.mark = _eas.flow_mark()
                _eas.flow_probe()
            return values
        if self.state == "live":
            self.turn = values
            return values
        if self.state == "new":
            self.names = _Carried(*self.all)
            self.state = "traced"
        values = self.open(self.before)
        self.values = values
        stopped = self.flags(values)
        if stopped:  # a condition that reads memory is not asked for once the loop was left
            _mask(_and(self.outer, functools.reduce(lambda a, b: a & b, [~f for f in stopped])))
        return values

    def keep(self):
        if self.probing:
            _eas.flow_keep()
            self.probing = False

    def test(self, cond):
        """Does the body run now?"""
        if self.state == "known":
            known = _truth(cond)
            if known is None:
                return self.turn_traced(cond)
            if not known:
                self.again = False
            if not known or not self.all[2]:
                self.keep()
            return known
        if self.state == "live":
            return self.test_live(cond)
        if self.names.stops:
            _mask(self.outer)
        if _truth(cond) is None:
            cond = _condition(cond)
        elif not _truth(cond):
            cond = mk.cast(False, mk.bool_)
        else:
            cond = True if self.names.stops else mk.cast(True, mk.bool_)
        self.values = self.go(cond, self.values)
        return True

    def inside(self, flags):
        """The flags for the body, once it is known that it runs."""
        return tuple(self.values[i] for i in self.all[2]) if self.state == "traced" else flags

    def turn_traced(self, cond):
        if _eas.flow_live():
            self.state = "live"
            self.names = _Carried(*self.all)
            self.lanes = bool(cond.ndim)
            self.outer = _lanes()
            if not self.lanes:
                _eas.flow_live_while()
            self.turn = self.before
            return self.test_live(cond)
        _eas.flow_rewind(self.mark)
        self.state = "new"
        return False

    def test_live(self, cond):
        cond = none_and(cond, [self.turn[i] for i in self.all[2]])
        if self.lanes or (_truth(cond) is None and cond.ndim):
            lanes = cond if self.outer is None else self.outer & cond
            _mask(None)
            self.again = bool(_truth(mk.any(lanes) if lanes.ndim else lanes))
            _mask(lanes if self.again else self.outer)
            self.active = lanes
        else:
            self.again = _eas.flow_live_test(cond)
        return self.again

    def leave(self, values):
        if self.state == "known":
            return self.leave_known(values)
        if self.state == "live":
            return self.leave_live(values)
        out = self.close(values)
        if out is None:
            return self.before
        self.again = False
        return out

    def leave_known(self, values):
        known = [_truth(values[i]) for i in self.all[2]]
        if None in known:  # left by some lanes or threads: a loop of the kernel
            if _eas.flow_live():
                self.state, self.names, self.outer = "live", _Carried(*self.all), _lanes()
                flag = next(values[i] for i, k in zip(self.all[2], known) if k is None)
                self.lanes = bool(flag.ndim)
                if not self.lanes:
                    _eas.flow_live_while()
                return values
            _eas.flow_rewind(self.mark)
            self.state = "new"
            return self.before
        self.keep()
        self.again = True not in known
        return values

    def leave_live(self, values):
        out = []
        for name, old, new in zip(self.all[0], self.turn, values):
            if old is new or not _is_leaf(new) or not _is_leaf(old):
                out.append(new)
            elif self.lanes:
                out.append(mk.where(self.active, new, old))
            else:
                to = _join(_type(old), _type(new))
                if isinstance(to, str):
                    raise TypeError(f"{_where()[0]}'{name}' changes in the loop: {to}")
                out.append(_eas.flow_live_merge(_as(_snapshot(old), *to), _as(_snapshot(new), *to)))
        if self.lanes:
            _mask(self.outer)
        return tuple(out)


def none_and(cond, flags):
    for f in flags:
        known = _truth(f)
        if known:
            return mk.cast(False, mk.bool_)
        if known is None:
            cond = cond & ~f
    return mk.cast(bool(cond), mk.bool_) if not isinstance(cond, (Value, Var)) else _condition(cond)


class _KnownFor:
    """A `for` over something that Python iterates."""

    __slots__ = ("it", "stops")

    def __init__(self, it, stops):
        self.it, self.stops = it, stops

    @staticmethod
    def enter(values):
        return values

    done = enter

    def leave(self, values):
        """Is it left here?"""
        return any(values[i] is True or (values[i] is not False and _truth(values[i]) is True) for i in self.stops)


class _For(_Turns):
    """A `for` over range(...) with bounds that are traced."""

    def __init__(self, bounds, names, live, stops, before):
        self.bounds, self.before, self.it = bounds, before, self
        self.names = _Carried(names, live, stops)
        self.state = "begin"

    def __iter__(self):
        return self

    def __next__(self):
        if self.state == "over":
            raise StopIteration
        if self.state == "body":
            raise RuntimeError(f"{_where()[0]}the body of a traced loop is left by continue inside `with` or `try`: use a condition")
        self.state = "body"
        if self.names.stops:
            return self.begin_counted()
        self.mark = _eas.flow_mark()
        leaves = self.names.start(self.before)
        item, *self.carried = _eas.flow_range(*self.bounds, leaves)
        self.outer = _lanes()
        self.values = self.names.names_of(self.carried)
        return item

    def begin_counted(self):
        """A loop that may be left early counts by itself."""
        lo, hi, step = self.bounds
        values = self.open(self.before, (_as(lo, mk.i64, ()),))
        k = self.extra[0]
        up = k < hi
        if isinstance(step, (Value, Var)):
            up = ((step > 0) & up) | ((step < 0) & (k > hi))
        elif step < 0:
            up = k > hi
        self.values = self.go(up, values)
        return k

    def enter(self, _values):
        return self.values

    def leave(self, values):
        if self.names.stops:
            out = self.close(values, (_as(self.extra[0] + self.bounds[2], mk.i64, ()),))
        else:
            self.names.last = values
            nexts = self.names.next(values, self.carried)
            out = None
            if nexts is None:
                _eas.flow_rewind(self.mark)
            else:
                out = self.names.result(_eas.flow_endrange(nexts))
        self.state = "begin" if out is None else "over"
        self.final = out
        return False

    def done(self, _values):
        return self.final


class _LiveFor:
    """The same under _interpret, where threads count differently."""

    def __init__(self, bounds, names, live, stops, before):
        self.bounds, self.it = bounds, self
        self.loop = While(names, live, stops)
        self.loop.before = self.values = before
        self.k = _as(bounds[0], mk.i64, ())
        self.first = True

    def __iter__(self):
        return self

    def __next__(self):
        lo, hi, step = self.bounds
        if not self.first:
            self.k = self.k + step
        up = self.k < hi
        if isinstance(step, (Value, Var)):
            up = ((step > 0) & up) | ((step < 0) & (self.k > hi))
        elif step < 0:
            up = self.k > hi
        if self.first:
            self.first = False
            more = self.loop.turn_traced(up)
        else:
            self.loop.turn = self.values
            more = self.loop.test_live(up)
        if not more:
            raise StopIteration
        return self.k

    def enter(self, values):
        self.loop.turn = values
        return values

    def leave(self, values):
        self.values = self.loop.leave_live(values)
        return False

    def done(self, _values):
        return self.values


class _Range:
    """range(...) with a bound that is traced."""

    __slots__ = ("bounds",)

    def __init__(self, bounds):
        self.bounds = bounds

    def __iter__(self):
        raise TypeError(f"{_where()[0]}range() with a traced bound is for a `for` statement itself")


def range_(fn, *args):
    """range(*args), for a `for` statement."""
    if fn is not builtins.range or not 1 <= len(args) <= 3 or not any(isinstance(a, (Value, Var)) for a in args):
        return fn(*args)
    lo, hi, step = (0, args[0], 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    if not isinstance(step, (Value, Var)) and step == 0:
        raise ValueError(f"{_where()[0]}range() arg 3 must not be zero")
    return _Range(tuple(_snapshot(a) for a in (lo, hi, step)))


def for_(it, names, live, stops, before):
    if type(it) is not _Range:
        bounds = _eas.flow_bounds(it)  # a mk.range that was made before the statement, or that is left early
        if bounds is None or _eas.flow_live():
            return _KnownFor(it, stops)
        it = _Range(bounds)
    bounds = it.bounds
    for b in bounds:
        if isinstance(b, Value) and b.ndim:
            raise TypeError(f"{_where()[0]}a bound of range() is a block: the lanes of a block go round together. Write `while k < n:`, or make the bound one integer")
    if not _eas.flow_live():
        return _For(bounds, names, live, stops, before)
    if all(not isinstance(b, Value) or _truth(b == b) is not None and _uniform(b) is not None for b in bounds):
        return _KnownFor(builtins.range(*(_uniform(b) if isinstance(b, Value) else b for b in bounds)), stops)
    return _LiveFor(bounds, names, live, stops, before)


def _uniform(v):
    try:
        return int(v)
    except ValueError:
        return None


# ---- expressions ----


class _Local(threading.local):
    def __init__(self):
        self.open = []  # (what opened it, the mask before)


_local = _Local()


def _and(mask, cond):
    return cond if mask is None else mask & cond


def _push(owner, cond):
    before = _lanes()
    _local.open.append((owner, before))
    _mask(_and(before, cond))


def _pop(owner):
    """Ends the mask that owner opened, if it did."""
    while _local.open:
        top, before = _local.open[-1]
        if top is not owner:
            if not any(o is owner for o, _ in _local.open):
                return False
            _local.open.pop()  # of a trace that failed
            continue
        _local.open.pop()
        _mask(before)
        return True
    return False


def more_and(x):
    """Is the second operand of `x and y` evaluated?"""
    known = _truth(x)
    if known is None:
        _push(x, _condition(_snapshot(x)))
        return True
    return known


def more_or(x):
    known = _truth(x)
    if known is None:
        _push(x, ~_condition(_snapshot(x)))
        return True
    return not known


def _operand(y, word):
    if not _is_leaf(y):
        if type(y) is Undefined:
            y._fail()
        raise TypeError(f"{_where()[0]}`x {word} y` with a traced x: y must be a value or a number, and is {_kind_of(y)}")
    return y


def _is_bool(x):
    return isinstance(x, bool) or (isinstance(x, (Value, Var)) and x.dtype == mk.bool_)


def and_(x, y):
    if not _pop(x):
        return y
    _operand(y, "and")
    return x & y if _is_bool(x) and _is_bool(y) else mk.where(_condition(_snapshot(x)), y, x)


def or_(x, y):
    if not _pop(x):
        return y
    _operand(y, "or")
    return x | y if _is_bool(x) and _is_bool(y) else mk.where(_condition(_snapshot(x)), x, y)


def not_(x):
    known = _truth(x)
    if known is not None:
        return not known
    return ~x if x.dtype == mk.bool_ else x == 0


class _Choice:
    """A traced condition of `x if c else y`."""

    __slots__ = ("cond",)

    def __init__(self, cond):
        self.cond = _condition(_snapshot(cond))


def cond(c):
    known = _truth(c)
    return known if known is not None else _Choice(c)


def then(c):
    if type(c) is _Choice:
        _push(c, c.cond)
        return True
    return c


def other(c):
    if type(c) is _Choice:
        _pop(c)
        _push(c, ~c.cond)
        return True
    return not c


def choose(c, x, y):
    if type(c) is not _Choice:
        return x if c else y
    _pop(c)
    return _choose(c.cond, x, y)


def _choose(c, x, y):
    if x is y or _same_number(x, y):
        return x
    if isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y):
        return tuple(_choose(c, a, b) for a, b in zip(x, y))
    for v in (x, y):
        if type(v) is Undefined:
            v._fail()
        if not _is_leaf(v):
            raise TypeError(f"{_where()[0]}`x if c else y` with a traced c chooses between values and numbers; got {_kind_of(x)} and {_kind_of(y)}")
    return mk.where(c, x, y)


def assert_(c, message):
    known = _truth(c)
    if known is None:
        mk.assert_(_condition(_snapshot(c)), "" if message is None else str(message()))
    elif not known:
        raise AssertionError(*(() if message is None else (message(),)))


def raising():
    """In front of a `raise` that a traced condition may decide about."""
    if _eas.flow_open() and not _eas.flow_live():
        raise RuntimeError(f"{_where()[0]}`raise` under a condition that is traced: whether it holds is not known before the kernel runs, and kernels raise nothing "
                           "but what mk.assert_(cond, message) says")  # fmt: skip


def refuse(what):
    """In front of a statement that would be done whatever a traced condition is."""
    if _eas.flow_open() and not _eas.flow_live():
        raise RuntimeError(f"{_where()[0]}{what} under a condition that is traced: it would be done whatever the condition is, once. Keep the value in a name of "
                           "the function and hand it on behind the branch")  # fmt: skip


# ---- calls: helpers are rewritten, too ----

_made = weakref.WeakKeyDictionary()  # function -> what is called in its place


def call(f):
    """What to call for f."""
    t = type(f)
    if t is types.FunctionType:
        made = _made.get(f)
        if made is None or made[0] is not f.__code__:
            from . import _rewrite

            _made[f] = made = (f.__code__, _rewrite.helper(f))
        return made[1] or f
    if t is types.MethodType:
        g = call(f.__func__) if isinstance(f.__func__, types.FunctionType) else f.__func__
        return f if g is f.__func__ else types.MethodType(g, f.__self__)
    if t is types.BuiltinFunctionType or t is type or t is Kernel:
        return f
    if t is functools.partial:
        g = call(f.func)
        return f if g is f.func else functools.partial(g, *f.args, **f.keywords)
    own = getattr(t, "__call__", None)  # noqa: B004
    if type(own) is types.FunctionType:
        return types.MethodType(call(own), f)
    return f
