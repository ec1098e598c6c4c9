"""`if` of a rewritten kernel (`_flow`): known, of the program, of each lane, and under `_interpret=True`."""

import sys

from . import _eas, _guards, mk
from ._flow_values import _HERE, _lanes, _leaf_types, _mask, _pair, _snapshot, _truth, _where

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
    """The containers and attributes that the user's function can reach, and their content: a body in which
    only some lanes take part may not change them."""

    def __init__(self):
        f = sys._getframe(1)
        while f is not None and f.f_code.co_filename.startswith(_HERE):
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


