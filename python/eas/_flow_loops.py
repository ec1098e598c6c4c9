"""`while` and `for` of a rewritten kernel (`_flow`): the names that a body assigns are carried round, and
typed by trying."""

import builtins
import functools

from . import _eas, mk
from ._eas import Value, Var
from ._flow_branch import _condition
from ._flow_values import (
    _NUMBERS,
    Undefined,
    _and,
    _as,
    _is_leaf,
    _join,
    _kind_of,
    _lanes,
    _leaf_types,
    _mask,
    _same_number,
    _seed,
    _snapshot,
    _Tree,
    _truth,
    _type,
    _where,
)

# ---- loops ----


class _Carried:
    """The names that a traced loop carries: their trees, their initial values, and whether the body agrees
    with the types of these."""

    def __init__(self, names, live, stops):
        self.names, self.live, self.stops = names, live, stops
        self.forced = set(stops)  # carried in any case
        self.seeds = {}  # name's index -> the types of a result that exists after a turn
        self.types = {}  # (name's index, path) -> (dtype, shape) that the body needs
        self.line = _where()[1]
        self.lanes = None

    def start(self, before):
        """The initial values of the loop: a list of leaves."""
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
        """The leaves after a turn, or None if the loop must begin again. carried: the values with which this
        turn began.
        """
        again, out = False, []
        for i, (tree, new) in enumerate(zip(self.trees, values)):
            if tree.at is None and tree.parts is None:
                again |= self.stays(i, self.before[i], new)
            else:
                again |= self.follow(i, (), tree, new, carried, out)
        return None if again else tuple(out)

    def stays(self, i, was, new):
        """For a name that is not carried: must it be carried?"""
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
        """The values of the names after the loop."""
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
    """Shared by `for` and `while`: the state of a loop of the IR whose condition is tested in each round."""

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
        """The flags that end the loop, with their values at the beginning of the turn."""
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
        if lanes is None:  # where the body runs, the flags are known to be false
            values = tuple(False if i in self.names.stops else v for i, v in enumerate(values))
        return values

    def close(self, values, extra=()):
        """After the body: the names after the loop, or None if it must begin again."""
        self.names.last = values
        nexts = self.names.next(values, self.carried)
        _mask(self.outer)
        if nexts is None:
            _eas.flow_rewind(self.mark)
            return None
        final = _eas.flow_endwhile((*extra, *nexts))
        return self.names.result(final[len(extra) :])


class While(_Turns):
    """A `while` statement. It is Python's own as long as its condition, and whether it is left early, are
    known."""

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
        if stopped:  # a condition that reads memory is not evaluated once the loop was left
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
        """The flags for the body, called when it is known that the body runs; a traced loop carries them."""
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
    """A `for` over an object that Python iterates."""

    __slots__ = ("it", "stops")

    def __init__(self, it, stops):
        self.it, self.stops = it, stops

    @staticmethod
    def enter(values):
        return values

    done = enter

    def leave(self, values):
        """Is the loop left here?"""
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
        """A loop that may be left early counts its rounds in a carried value."""
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
    """A `for` over range(...) under _interpret, where threads may count differently."""

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
        # a mk.range that was made before the statement, or whose loop is left early
        bounds = _eas.flow_bounds(it)
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


