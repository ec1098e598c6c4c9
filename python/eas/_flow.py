"""The functions that the statements of a rewritten kernel call while it runs; `_rewrite` writes the calls.

Each construct first tests whether its condition is known. If it is, Python's own meaning holds and nothing is
recorded. If it is traced, there are three ways:

- one condition for the program or the thread: an `if` or a loop of the IR. Both branches run, one after the
  other; names that they assign are joined behind it. A loop's body runs once; the names that it assigns are
  carried round. If a body changes the dtype or the shape of such a name, all that it recorded is forgotten
  and it runs again with the promoted type.
- a condition per lane of a block: both branches run, memory accesses and variables under a mask (the trace's
  own, which mk.load and mk.store heed), and names are joined by mk.where. A loop goes on while any lane does.
- under `_interpret=True`, a condition that differs between threads: as for lanes, but on the data itself.
"""

import functools
import threading
import types
import weakref

from . import _eas, mk
from ._eas import Kernel, Value, Var
from ._flow_branch import _condition, if_, none_of  # noqa: F401
from ._flow_loops import While, for_, none_and, range_  # noqa: F401
from ._flow_values import Undefined, _and, _is_leaf, _kind_of, _lanes, _mask, _same_number, _snapshot, _truth, _where, result, undefined  # noqa: F401

# ---- expressions ----


class _Local(threading.local):
    def __init__(self):
        self.open = []  # (what opened it, the mask before)


_local = _Local()


def _push(owner, cond):
    before = _lanes()
    _local.open.append((owner, before))
    _mask(_and(before, cond))


def _pop(owner):
    """Ends the mask that owner opened, if it is still open."""
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
    """Called in front of a `raise` that a traced condition may decide about."""
    if _eas.flow_open() and not _eas.flow_live():
        raise RuntimeError(f"{_where()[0]}`raise` under a condition that is traced: whether it holds is not known before the kernel runs, and kernels raise nothing "
                           "but what mk.assert_(cond, message) says")  # fmt: skip


def refuse(what):
    """Called in front of a statement that would take effect whatever a traced condition is."""
    if _eas.flow_open() and not _eas.flow_live():
        raise RuntimeError(f"{_where()[0]}{what} under a condition that is traced: it would be done whatever the condition is, once. Keep the value in a name of "
                           "the function and hand it on behind the branch")  # fmt: skip


# ---- calls: helpers are rewritten, too ----

_made = weakref.WeakKeyDictionary()  # function -> the function that is called in its place


def call(f):
    """The function to call in place of f."""
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
