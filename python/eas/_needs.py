"""Does a kernel need its source rewritten? A look at bytecode answers that, so that a process whose kernels
have no branches, loops or calls of other functions never imports the machinery (`_rewrite`)."""

import builtins
import opcode
import types

from . import mk
from ._guards import _is_library

# Methods of traced values and of Python's containers, which do not decide anything.
METHODS = frozenset(n for t in (mk.Value, mk.Buffer, list, dict, set, str, tuple) for n in dir(t)) | {"set", "value"}
_WORDS = ("JUMP_IF", "POP_JUMP", "FOR_ITER", "JUMP_BACKWARD", "UNARY_NOT")
_FLOW = frozenset(n for name, n in opcode.opmap.items() if any(w in name for w in _WORDS))


def branches(code):
    return not _FLOW.isdisjoint(code.co_code[::2]) or any(isinstance(c, types.CodeType) and branches(c) for c in code.co_consts)


def plain_module(v):
    return isinstance(v, types.ModuleType) and _is_library(v.__name__)


def calls_others(code, names, cells):
    """May it call a function that is not a library's? names: of globals that are found in it."""
    for n in code.co_names:
        v = names.get(n)
        if isinstance(v, types.ModuleType):
            if not _is_library(v.__name__):
                return True
        elif callable(v) and not _is_library(getattr(v, "__module__", "")):
            return True
    for n in code.co_freevars:
        v = cells.get(n)
        if callable(v) and not _is_library(getattr(v, "__module__", "")):
            return True
    return any(isinstance(c, types.CodeType) and calls_others(c, names, cells) for c in code.co_consts)


def calls_methods(code, names):
    """May the code call a method of an argument: is there an attribute that neither a module nor a traced
    value has?"""
    return any(n not in names and n not in METHODS and not hasattr(mk, n) and not hasattr(builtins, n) for n in code.co_names)


def cells_of(fn):
    out = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            out[name] = cell.cell_contents
        except ValueError:
            continue
    return out


def has_callables(fn):
    """May fn call one of its parameters? Then functions are handed to it."""
    return bool(fn.__code__.co_argcount) and "CALL" in " ".join(opcode.opname[b] for b in set(fn.__code__.co_code[::2]))


def kernel(fn, metas, owner, live=False, known=()):
    """The function to trace in place of a kernel's, or fn itself. metas: its meta arguments, owner: the
    object whose method it is, live: it will run on data, known: names of its meta parameters."""
    code = fn.__code__
    if branches(code) or owner is not None or any(callable(m) for m in metas) or calls_others(code, fn.__globals__, cells_of(fn)) or calls_methods(code, fn.__globals__):
        from ._rewrite import rewritten

        made = rewritten(fn, live, known if owner is None else (*known, *code.co_varnames[:1]))
        if made is not None:
            return made
    if not live:
        return fn
    from ._interpret import body

    return body(fn)
