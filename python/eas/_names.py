"""Names that the body of a traced loop assigns. The body is traced once: a name that it reads and then assigns anew would begin every
iteration with what it held before the loop."""

import dis
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


def reassigned(code, start, stop, name, cond):
    """The line that assigns `name` in the body between `start` and `stop`, if the body (or the loop's condition) reads the name
    before that; 0 if the name is new in each iteration."""
    at = [i for i in dis.get_instructions(code) if i.offset <= start][-1]
    if at.opname == "FOR_ITER":
        stop = at.argval
    seen = list(_accesses(code, start, stop, name))
    in_cond = name in getattr(getattr(cond, "__code__", None), "co_freevars", ())
    if seen and seen[0][0] != "LOAD" and not in_cond:
        return 0
    return next((line for kind, line in seen if kind == "STORE"), at.positions.lineno)
