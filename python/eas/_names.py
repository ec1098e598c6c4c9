"""Finds, in a function's bytecode, effects of the bodies of traced loops and branches that would silently be
lost.

A loop's body is traced once: a name that it reads and then assigns anew would begin every iteration with what
it held before the loop. A branch is traced whether it is taken or not: a number that it gives to a name is
there in any case, and a return in it ends the trace."""

import dis
import functools
import re


def _accesses(code, start, stop, name):
    """("LOAD" or "STORE", line) of each access to a local name between two places of the bytecode."""
    line = code.co_firstlineno
    for i in dis.get_instructions(code):
        line = (i.positions.lineno if i.positions else None) or line
        if start < i.offset < stop and re.search("FAST|DEREF|CLOSURE", i.opname):
            names = i.argval if isinstance(i.argval, tuple) else (i.argval,)
            for kind, n in zip(re.findall("LOAD|STORE|DELETE", i.opname), names):
                if n == name:
                    yield kind, line


@functools.lru_cache(maxsize=4096)
def _place(code, at):
    """The instruction at an offset: (its name, its place in the source)."""
    return next(((i.opname, i.positions) for i in dis.get_instructions(code) if i.offset == at), None)


@functools.lru_cache(maxsize=4096)
def origin(code, *offsets):
    """(code, offsets) in the user's own function that correspond to places in a rewritten one: rewriting adds
    reads and assignments of its own."""
    from ._rewrite import original

    own = original(code)
    if own is code:
        return (code, *offsets)
    found = []
    for at in offsets:
        here = _place(code, at)
        same = [i.offset for i in dis.get_instructions(own) if (i.opname, i.positions) == here]
        if not same:
            return (code, *offsets)
        found.append(same[0])
    return (own, *found)


def reassigned(code, start, stop, name, cond):
    """The line that assigns `name` in the body between `start` and `stop`, if the body (or the loop's
    condition) reads the name before that; 0 if the name is new in each iteration."""
    if _place(code, start) is not None and _place(code, start)[0] == "FOR_ITER":
        code, start = origin(code, start)
    else:
        code, start, stop = origin(code, start, stop)
    at = [i for i in dis.get_instructions(code) if i.offset <= start][-1]
    if at.opname == "FOR_ITER":
        stop = at.argval
    seen = list(_accesses(code, start, stop, name))
    in_cond = name in getattr(getattr(cond, "__code__", None), "co_freevars", ())
    if seen and seen[0][0] != "LOAD" and not in_cond:
        return 0
    return next((line for kind, line in seen if kind == "STORE"), at.positions.lineno)


_STEPS = {"NOP", "CACHE", "PRECALL", "POP_TOP", "POP_EXCEPT", "NOT_TAKEN", "EXTENDED_ARG", "POP_ITER", "END_FOR"}  # between two statements


def _next_statement(ins, at):
    """The offset at which the code continues from index `at`, or None if it returns None. Jumps are
    followed."""
    index = {i.offset: n for n, i in enumerate(ins)}
    for _ in ins:
        i = ins[at]
        if i.opname == "RETURN_CONST" and i.argval is None:
            return None
        if i.opname == "LOAD_CONST" and i.argval is None and ins[at + 1].opname == "RETURN_VALUE":
            return None
        if i.opname in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT"):
            at = index[i.argval]
        elif i.opname in _STEPS:
            at += 1
        else:
            return i.offset
    return ins[at].offset


def _known(find):
    """find, with the result 0 if the bytecode has a form that it does not know: then nothing is reported."""

    @functools.lru_cache(maxsize=4096)
    def found(*args):
        try:
            return find(*args)
        except (IndexError, KeyError, StopIteration, ValueError):
            return 0

    return found


def _index(ins, offset):
    return max(n for n, i in enumerate(ins) if i.offset <= offset)


@functools.lru_cache(maxsize=1024)
def _after_with(code, start):
    """The place where the code continues after the `with` that was entered at `start`, found as the target of
    an exception that the `with` swallows."""
    ins = list(dis.get_instructions(code))
    body = ins[_index(ins, start) + 1].offset
    for e in dis.Bytecode(code).exception_entries:
        if e.start <= body < e.end or e.start == body:
            at = _index(ins, e.target)
            names = [i.opname for i in ins[at : at + 3]]
            if "WITH_EXCEPT_START" in names:
                jump = next(n for n in range(at, len(ins)) if "JUMP" in ins[n].opname and "TRUE" in ins[n].opname)
                to = _index(ins, ins[jump].argval)
                return _next_statement(ins, to), ins[to].offset
    return None


@_known
def left_early(code, start, now, _name):
    """Was the `with` that was entered at `start` and is left at `now` left by return, break or continue? Its
    line, or 0."""
    after = _after_with(code, start)
    if after is None:
        return 0  # not a `with` statement, or bytecode of a form that is not known
    ins = list(dis.get_instructions(code))
    at = _index(ins, now)
    return 0 if _next_statement(ins, at + 1) == after[0] else ins[at].positions.lineno or code.co_firstlineno


@_known
def read_after(code, start, now, name):
    """The line that reads `name` after the `with` that was entered at `start`, unless the name is assigned
    first; else 0."""
    code, start, now = origin(code, start, now)
    after = _after_with(code, start)
    begin = now if after is None else after[1]
    first = next(_accesses(code, begin, len(code.co_code), name), ("STORE", 0))
    return first[1] if first[0] == "LOAD" else 0


@functools.lru_cache(maxsize=1024)
def is_loop(code, at):
    """Does the code at `at` iterate, by `for` or in a comprehension, without mk?"""
    return any(code.co_code[at] == dis.opmap.get(name) for name in ("GET_ITER", "GET_YIELD_FROM_ITER"))


_MOVES = re.compile("LOAD_(FAST|DEREF|CONST|NAME|CLOSURE)|STORE_(FAST|DEREF)|COPY|SWAP|ROT_|DUP_|BUILD_(TUPLE|LIST)|UNPACK_SEQUENCE|CACHE|NOP")


@functools.lru_cache(maxsize=1024)
def copied(code, now, names):
    """(new name, old name) if the code before `now` gives one of these names what another one holds (b = a, a
    = b = ..., b, c = a, 1), else None."""
    code, now = origin(code, now)
    chain = []
    for i in dis.get_instructions(code):
        if i.offset >= now:
            break
        if not _MOVES.match(i.opname):
            chain = []
            continue
        held = i.argval if isinstance(i.argval, tuple) else (i.argval,)
        for kind, name in zip(re.findall("LOAD|STORE", i.opname), held):
            if name in names:
                other = next((n for k, n in chain if n != name and (k == "LOAD" or ("STORE" in k and "COPY" in k))), None)
                if kind == "STORE" and other is not None:
                    return name, other
        if "STORE" in i.opname:
            chain += [("STORE COPY" if ("COPY", None) in chain else "STORE", n) for n in held if n in names]
        elif "LOAD" in i.opname:
            chain += [("LOAD", n) for n in held if n in names]
        elif re.match("COPY|DUP_", i.opname):
            chain.append(("COPY", None))
    return None


_INSTEAD = {"max": "mk.maximum(x, y)", "min": "mk.minimum(x, y)", "sum": "mk.sum(x)", "any": "mk.any(x)", "all": "mk.all(x)", "round": "mk.round(x)", "pow": "mk.pow(x, y)",
            "absolute": "mk.abs(x)", "fabs": "mk.abs(x)", "power": "mk.pow(x, y)", "amax": "mk.max(x)", "amin": "mk.min(x)", "clip": "mk.clamp(x, lo, hi)",
            "int": "mk.cast(x, mk.i32)", "float": "mk.cast(x, mk.f32)", "arctan2": "mk.atan2(y, x)"}  # fmt: skip


def instead(name):
    """The function of mk to write in place of one of Python, math or NumPy, or None."""
    from . import mk

    return _INSTEAD.get(name) or (f"mk.{name}(x)" if hasattr(mk, name) else None)


def called(code, at):
    """(name, function of mk to write instead) of the function that the line at `at` calls, if mk has it under
    another name; else None."""
    here = list(dis.get_instructions(code))
    line = next((i.positions.lineno for i in reversed(here) if i.offset <= at and i.positions and i.positions.lineno), None)
    for i in reversed(here):
        if i.offset <= at and i.positions and i.positions.lineno == line and i.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME"):
            if isinstance(i.argval, str) and (i.argval in _INSTEAD or i.opname in ("LOAD_ATTR", "LOAD_METHOD")) and instead(i.argval):
                return i.argval, instead(i.argval)
    return None


_OF_LANES = {"sum": "mk.sum(x)", "fsum": "mk.sum(x)", "max": "mk.max(x)", "min": "mk.min(x)", "any": "mk.any(x)", "all": "mk.all(x)"}


def of_lanes(code, at):
    """(name, function of mk to write instead) of a function that iterates over its argument: the nearest one
    before `at` on its line."""
    from . import mk

    here = [i for i in dis.get_instructions(code) if i.offset <= at]
    line = next((i.positions.lineno for i in reversed(here) if i.positions and i.positions.lineno), None)
    for i in reversed(here):
        if i.positions and i.positions.lineno == line and (i.opname in ("LOAD_GLOBAL", "LOAD_NAME") or i.argval == "fsum"):
            word = _OF_LANES.get(i.argval)
            if word and hasattr(mk, word[3:].split("(")[0]):
                return i.argval, word
    return None


def is_percent(code, at):
    """Is the instruction at `at` the operator %, or %=?"""
    return any(i.offset == at and (i.opname.endswith("_MODULO") or (i.opname == "BINARY_OP" and i.argrepr in ("%", "%="))) for i in dis.get_instructions(code))
