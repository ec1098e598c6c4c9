"""Python as it is written, in kernels: the function's syntax tree with calls of `_flow` in the place of what
a traced value decides.

    if a > b:                    _eas1 = flow.if_(a > b, ("x",), (x,))
        x = 1                    if _eas1.then:
    else:             becomes        x = 1
        x = 2                        (x,) = _eas1.half((x,))
                                 if _eas1.other:
                                     x = 2
                                 (x,) = _eas1.end((x,))

If the condition is known, that is Python's own `if`. Loops are the same with the names that their body
assigns. break, continue and return become flags that guard what follows, unless what follows can go into the
other branch. Statements stay in their function and on their lines, so tracebacks, debuggers and eas.explain
show the user's source. What needs no rewriting is left as it is: a function without branches, loops and calls
of other functions costs nothing but a look at its bytecode."""

import ast
import builtins
import types
import weakref

from . import _flow
from ._guards import _is_library
from ._interpret import _Loops
from ._interpret import _names as _names_in
from ._needs import METHODS, branches, calls_others, cells_of, has_callables, plain_module
from ._source import _definition, _is_in_file, _is_older
from ._static import Scan
from ._syntax import (
    _COMPREHENSIONS,
    _JUMPS,
    _at,
    _attr,
    _bools,
    _call,
    _const,
    _copy_place,
    _end,
    _jump,
    _jumps,
    _live_in,
    _load,
    _names,
    _own,
    _reads,
    _set,
    _stored,
    _tuple,
    _unpack,
)

# ---- compiling ----


def _arguments(names):
    return ast.arguments(posonlyargs=[], args=[ast.arg(n, None, lineno=1, col_offset=0) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[])


def _code(node, fn):
    """The code object of a definition, as it would be where fn was defined."""
    code = fn.__code__
    inner = node
    if isinstance(node, ast.Lambda):
        inner = ast.Return(node, lineno=node.lineno, col_offset=0)
    outer = ast.FunctionDef("_outer", _arguments([*code.co_freevars, "_eas_flow"]), [inner], [], lineno=node.lineno, col_offset=0)
    if hasattr(ast, "TypeAlias"):
        outer.type_params = []
    module = compile(ast.Module([outer], []), code.co_filename, "exec", flags=code.co_flags & 0x1FF0000, dont_inherit=True)
    made = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    made = next(c for c in made.co_consts if isinstance(c, types.CodeType) and c.co_name == code.co_name)
    return made.replace(co_qualname=code.co_qualname)


def _strip(node):
    """Removes the parts of a definition that are evaluated where the function is defined."""
    a = node.args
    a.defaults, a.kw_defaults = [], [None] * len(a.kwonlyargs)
    if isinstance(node, ast.FunctionDef):
        node.decorator_list, node.returns = [], None
    for x in (*a.posonlyargs, *a.args, *a.kwonlyargs):
        x.annotation = None
    # which parameters have defaults is known to the function object, not to its code


def _make(code, fn):
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    cells["_eas_flow"] = types.CellType(_flow)
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells[n] for n in code.co_freevars))
    made.__kwdefaults__ = fn.__kwdefaults__
    made.__qualname__ = fn.__qualname__
    made.__module__ = fn.__module__
    return made


_originals = weakref.WeakKeyDictionary()  # rewritten code -> the code of the user's function


def original(code):
    """The code object to which the user's function was compiled."""
    return _originals.get(code, code)


# (id of a code, is it for _interpret, names of meta parameters) -> the code, and the rewritten one, or None
# if it stays as it is. The id is part of the key because codes of different files may be equal.
_codes = {}


def _rewritten(fn, live=False, known=()):
    """The rewritten code of fn, or None. known: names of parameters that hold Python's own values."""
    code = fn.__code__
    have = _codes.get((id(code), live, known))
    if have is not None:
        return have[1]
    made = None
    mangled = any(n.startswith("__") and not n.endswith("__") for n in (*code.co_names, *code.co_varnames)) or any("__" in n[1:] and n[0] == "_" and n[1] != "_" for n in code.co_names)
    if not code.co_flags & 0x2A0 and "__class__" not in code.co_freevars and not mangled:  # generators and coroutines stay
        try:
            node = _definition(fn)
            if node is not None:
                _strip(node)
                if _is_older(code.co_filename) or _is_in_file(code, fn):
                    if live and "while_" in _names_in(code):
                        node = _Loops().visit(node)
                    f = _Function(fn.__globals__, set(code.co_freevars), cells_of(fn))
                    if live or f.scan(node, code, known):
                        made = _code(f.rewrite(node), fn)
        except (OSError, SyntaxError, StopIteration, TypeError, RecursionError):
            made = None
    if len(_codes) > 4096:
        _codes.clear()
    _codes[id(code), live, known] = code, made
    if made is not None:
        _pair_up(made, code)
    return made


def _pair_up(made, code):
    _originals[made] = code
    inner = [c for c in made.co_consts if isinstance(c, types.CodeType)]
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            same = [m for m in inner if m.co_name == c.co_name and m.co_firstlineno == c.co_firstlineno]
            if len(same) == 1:
                _pair_up(same[0], c)


def helper(fn):
    """The function to call in place of a helper: rewritten, or None if it is called as it is."""
    marked = getattr(fn, "_eas_helper", None)
    if marked is not None:
        return _flow.call(marked)
    if _is_library(fn.__module__) or not (branches(fn.__code__) or calls_others(fn.__code__, fn.__globals__, cells_of(fn)) or has_callables(fn)):
        return None
    code = _rewritten(fn)
    return None if code is None else _make(code, fn)


def rewritten(fn, live, known):
    """The kernel's function with rewritten code, or None where it stays as it is."""
    code = _rewritten(fn, live, known)
    return None if code is None else _make(code, fn)


class _Loop:
    def __init__(self, number):
        self.brk, self.cnt = f"_eas_brk{number}", f"_eas_cnt{number}"


class _Function:
    """Rewrites one function; those inside it are rewritten with it."""

    def __init__(self, names, locals_, cells):
        self.globals, self.cells = names, cells
        self.outer = set(locals_)  # names of the functions around it
        self.n = 0
        self.scanned = False  # set once statements are marked that need rewriting
        self.raw = 0  # how many `with` and `try` are around the present statement

    # ---- a function ----

    def scan(self, node, code, known):
        """Is there anything to rewrite? Statements for which there is are marked (_static.py); of a lambda
        all is looked at."""
        if isinstance(node, ast.Lambda):
            return True
        params = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
        self.local = self.outer.union(code.co_varnames, code.co_cellvars)
        found = Scan(set(params).difference(known), self.local, self.globals, self.is_ours, METHODS).run(node.body)
        self.scanned = True
        return found

    def rewrite(self, node):
        if isinstance(node, ast.Lambda):
            self.local = self.outer | {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
            node.body = self.expr(node.body)
            return node
        node.body = self.body(node)
        return node

    def body(self, node):
        a = node.args
        params = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else []))]
        self.foreign = {}  # names that do not belong to the function -> the word for messages
        returns = []
        for s in _own(node.body):
            if type(s) in (ast.Global, ast.Nonlocal):
                self.foreign.update(dict.fromkeys(s.names, "global" if type(s) is ast.Global else "outer name"))
            elif type(s) is ast.Return:
                returns.append(s)
        stored = _stored(node.body, {})
        self.order = {n: i for i, n in enumerate(dict.fromkeys([*params, *stored]))}
        self.local = self.outer | set(self.order)
        self.assigned = set(params)
        self.inits = {}
        stmts = node.body
        self.values = any(not (s.value is None or (type(s.value) is ast.Constant and s.value.value is None)) for s in returns)
        deep = any(type(s) is not ast.Return and "r" in _jumps([s])[0] for s in stmts)
        if deep and self.values and type(stmts[-1]) not in (ast.Return, ast.Raise):
            stmts = [*stmts, _at(ast.Return(None), _end(stmts[-1]))]
        self.guards = set()  # flags that are read
        self.plan(stmts, None)
        out = self.block(stmts, None, 0)
        head = []
        if stmts and type(stmts[0]) is ast.Expr and type(stmts[0].value) is ast.Constant and isinstance(stmts[0].value.value, str):
            head, out = out[:1], out[1:]
        if deep:
            if "_eas_ret" in self.guards:
                head.append(_set("_eas_ret", _const(False, node), node))
            if self.values:
                head.append(_set("_eas_rv", _call("_eas_flow", "undefined", [_const("the result", node)], node), node))
                out.append(_at(ast.Return(_call("_eas_flow", "result", [_load("_eas_rv", _end(stmts[-1]))], _end(stmts[-1]))), _end(stmts[-1])))
        for n in self.inits:
            head.append(_set(n, _call("_eas_flow", "undefined", [_const(n, node)], node), node))
        return head + out

    def temp(self):
        self.n += 1
        return f"_eas{self.n}"

    # ---- which flags are needed: follows block() ----

    def plan(self, stmts, loop):
        for i, s in enumerate(stmts):
            t = type(s)
            if self.scanned and not hasattr(s, "_eas_marked") and not _jump(s)[0]:
                continue
            if t is ast.If:
                a, every = _jumps(s.body)
                b, other = _jumps(s.orelse)
                rest = stmts[i + 1 :]
                if not (a or b):
                    self.plan(s.body, loop)
                    self.plan(s.orelse, loop)
                    continue
                if every and other:
                    self.plan(s.body, loop)
                    self.plan(s.orelse, loop)
                elif every and not b:
                    self.plan(s.body, loop)
                    self.plan(s.orelse + rest, loop)
                elif other and not a:
                    self.plan(s.body + rest, loop)
                    self.plan(s.orelse, loop)
                else:
                    self.plan(s.body, loop)
                    self.plan(s.orelse, loop)
                    if rest:
                        self.guards.update(self.flags(a | b, loop))
                        self.plan(rest, loop)
                return
            if t in (ast.For, ast.While):
                may = _jumps(s.body)[0]
                s._eas = inner = _Loop(self.temp()[4:])
                self.plan(s.body, inner)
                self.plan(s.orelse, loop)
                if "b" in may:
                    self.guards.add(inner.brk)
                if "r" in may:
                    self.guards.add("_eas_ret")
            elif t is ast.With:
                self.plan_raw(s.body)
            elif t is ast.Try:
                for part in (s.body, s.orelse, s.finalbody, *(h.body for h in s.handlers)):
                    self.plan_raw(part)
            elif t.__name__ == "Match":
                for c in s.cases:
                    self.plan_raw(c.body)

    def plan_raw(self, stmts):
        """Jumps out of `with`, `try` and `match` stay Python's own; loops inside them are planned
        separately."""
        for s in ast.walk(ast.Module(stmts, [])):
            if type(s) in (ast.For, ast.While) and not hasattr(s, "_eas"):
                s._eas = inner = _Loop(self.temp()[4:])
                self.plan(s.body, inner)
                if "b" in _jumps(s.body)[0]:
                    self.guards.add(inner.brk)
                if "r" in _jumps(s.body)[0]:
                    self.guards.add("_eas_ret")

    @staticmethod
    def flags(may, loop):
        names = []
        if "r" in may:
            names.append("_eas_ret")
        if loop is not None and "b" in may:
            names.append(loop.brk)
        if loop is not None and "c" in may:
            names.append(loop.cnt)
        return names

    # ---- statements ----

    def block(self, stmts, loop, depth, raw=False):
        out = []
        for i, s in enumerate(stmts):
            t = type(s)
            if self.scanned and not hasattr(s, "_eas_marked") and t not in _JUMPS and not _jump(s)[0] and (not self.foreign or self.foreign.keys().isdisjoint(_stored(s, {}))):
                out.append(s)
                if depth == 0 and t is not ast.With:
                    self.assigned.update(_stored(s, {}))
            elif t is ast.If:
                more, over = self.if_(s, stmts[i + 1 :], loop, depth, raw)
                out += more
                if over:
                    return out
            elif t in (ast.For, ast.While):
                rest = stmts[i + 1 :]
                out += self.while_(s, loop, depth, raw) if t is ast.While else self.for_(s, loop, depth, raw)
                if "r" in _jumps(s.body)[0] and not self.raw:
                    tail = list(s.orelse) + rest
                    if tail:
                        flags = ["_eas_ret"] + ([s._eas.brk] if s.orelse and "b" in _jumps(s.body)[0] else [])
                        if s.orelse and "b" in _jumps(s.body)[0]:
                            out += self.guarded(s.orelse, flags, s, loop, depth)
                            out += self.guarded(rest, ["_eas_ret"], s, loop, depth) if rest else []
                        else:
                            out += self.guarded(tail, ["_eas_ret"], s, loop, depth)
                    return out
                if s.orelse:
                    out += self.guarded(s.orelse, [s._eas.brk], s, loop, depth) if "b" in _jumps(s.body)[0] else self.block(s.orelse, loop, depth, raw)
            else:
                out += self.statement(s, loop, depth, raw)
                if t in (ast.Return, ast.Break, ast.Continue):
                    return out
                if depth == 0:
                    self.assigned |= set(_stored(s, {})) if t is not ast.With and t is not ast.Try else set()
        return out

    def statement(self, s, loop, depth, raw):
        t = type(s)
        if t is ast.Return:
            return self.return_(s, depth, raw)
        if t is ast.Break or t is ast.Continue:
            flag = None if raw or loop is None else loop.brk if t is ast.Break else loop.cnt
            if flag is None:
                return [s]
            return [_set(flag, _const(True, s), s)] if flag in self.guards else [_at(ast.Pass(), s)]
        if t is ast.FunctionDef:
            return [self.inner(s)]
        if t in (ast.ClassDef, ast.AsyncFunctionDef, ast.Global, ast.Nonlocal, ast.Pass, ast.Import, ast.ImportFrom):
            return [s]
        if t is ast.With:
            for item in s.items:
                item.context_expr = self.expr(item.context_expr)
            self.raw += 1
            s.body = self.block(s.body, loop, depth + 1, True)
            self.raw -= 1
            return [s]
        if t is ast.Try or t.__name__ == "TryStar":
            self.raw += 1
            for part in (s, *s.handlers):
                part.body = self.block(part.body, loop, depth + 1, True)
            s.orelse = self.block(s.orelse, loop, depth + 1, True)
            s.finalbody = self.block(s.finalbody, loop, depth + 1, True)
            self.raw -= 1
            return [s]
        if t.__name__ == "Match":
            s.subject = self.expr(s.subject)
            self.raw += 1
            for c in s.cases:
                c.body = self.block(c.body, loop, depth + 1, True)
            self.raw -= 1
            return [s]
        if t is ast.Assert:
            args = [self.expr(s.test), _const(None, s)]
            if s.msg is not None:
                args[1] = _at(ast.Lambda(_arguments([]), self.expr(s.msg)), s)
            return [_at(ast.Expr(_call("_eas_flow", "assert_", args, s)), s)]
        out = []
        if t is ast.Raise and depth:
            out.append(_at(ast.Expr(_call("_eas_flow", "raising", [], s)), s))
        if self.foreign:
            for n in _stored(s, {}):
                if n in self.foreign:
                    what = f"an assignment to the {self.foreign[n]} '{n}'"
                    out.append(_at(ast.Expr(_call("_eas_flow", "refuse", [_const(what, s)], s)), s))
        self.fields(s)
        out.append(s)
        # loops and branches carry the name on, so it is bound to an object that says that it has no value
        if t is ast.Delete:
            out += [_set(n, _call("_eas_flow", "undefined", [_const(n, s)], s), s) for n in _stored(s, {}) if n not in self.foreign]
        return out

    def return_(self, s, depth, raw):
        value = None if s.value is None else self.expr(s.value)
        if self.raw or depth == 0:
            s.value = value
            return [s]
        out = []
        if self.values:
            out.append(_set("_eas_rv", value if value is not None else _const(None, s), s))
        elif value is not None and type(value) is not ast.Constant:
            out.append(_at(ast.Expr(value), s))
        if "_eas_ret" in self.guards:
            out.append(_set("_eas_ret", _const(True, s), s))
        return out or [_at(ast.Pass(), s)]

    def written(self, *parts):
        """The names that these statements assign and that belong to the function, in the order of the source.
        """
        names = {}
        for p in parts:
            _stored(p, names)
        return sorted((n for n in names if n not in self.foreign and n in self.order), key=self.order.__getitem__)

    def need(self, names):
        for n in names:
            if n not in self.assigned and not n.startswith("_eas_"):
                self.inits.setdefault(n)

    def if_(self, s, rest, loop, depth, raw):
        """(statements, whether the rest is in them)"""
        a, every = _jumps(s.body)
        b, other = _jumps(s.orelse)
        if raw or not (a or b):
            return self.branch(s, s.body, s.orelse, set() if raw else a | b, loop, depth, raw), False
        if every and other:
            return self.branch(s, s.body, s.orelse, a | b, loop, depth), True
        if every and not b:
            tail = s.orelse + rest
            return self.branch(s, s.body, tail, a | _jumps(tail)[0], loop, depth), True
        if other and not a:
            tail = s.body + rest
            return self.branch(s, tail, s.orelse, b | _jumps(tail)[0], loop, depth), True
        out = self.branch(s, s.body, s.orelse, a | b, loop, depth)
        if rest:
            out += self.guarded(rest, self.flags(a | b, loop), s, loop, depth)
        return out, True

    def guarded(self, stmts, flags, at, loop, depth):
        """stmts, if none of the flags is set."""
        test = _call("_eas_flow", "none_of", [_load(f, at) for f in flags], at)
        return self.branch(_at(ast.If(test, [], []), at), stmts, [], _jumps(stmts)[0], loop, depth, known=True)

    def branch(self, s, body, orelse, may, loop, depth, raw=False, known=False):
        names = self.written(body, orelse)
        (read1, have1), (read2, have2) = _live_in(body, ()), _live_in(orelse, ())
        both = (have1 & have2) - read1 - read2  # both sides assign these before they read them: the old value does not matter
        more = [f for f in self.flags(may, loop) if f in self.guards and not (self.raw and f == "_eas_ret")]
        if "r" in may and self.values and not self.raw:
            more.append("_eas_rv")
        self.need([n for n in names if n not in both])
        test = s.test if known else self.expr(s.test)
        b, all_ = self.temp(), [*names, *more]
        before = [_const(None, s) if n in both else _load(n, s) for n in all_]
        first = self.block(body, loop, depth + 1, raw)
        second = self.block(orelse, loop, depth + 1, raw)
        values = _at(ast.Tuple(before, ast.Load()), s)
        at = s.test
        out = [_set(b, _call("_eas_flow", "if_", [test, _names(all_, s), values], at), s)]
        first = [*first, _unpack(all_, _call(b, "half", [_tuple(all_, ast.Load(), s)], s), s)]
        out.append(_at(ast.If(_attr(b, "then", s), first, []), s))
        if second:
            out.append(_at(ast.If(_attr(b, "other", s), second, []), s))
        out.append(_unpack(all_, _call(b, "end", [_tuple(all_, ast.Load(), s)], s), s))
        return out

    def loop_names(self, s, loop, depth, raw):
        """(names, whether each may be read before it is assigned, indices of the flags that end it)"""
        may = _jumps(s.body)[0]
        first = s.test if type(s) is ast.While else s.target
        names = self.written(first, s.body)
        live = _live_in(s.body, set(_stored(s.target, {})) if type(s) is ast.For else ())[0]
        if type(s) is ast.While:
            live |= _reads(s.test)
        self.need(names)
        stops = []
        if "b" in may:
            stops.append(s._eas.brk)
        if "r" in may and not self.raw:
            stops.append("_eas_ret")
        more = [*stops, *(["_eas_rv"] if "r" in may and not self.raw and self.values else [])]
        all_ = [*names, *more]
        return all_, [n in live for n in names] + [True] * len(more), [len(names) + i for i in range(len(stops))], stops

    def loop_body(self, s, stops, depth, raw):
        inner = s._eas
        body = list(s.body)
        head = []
        if "c" in _jumps(s.body)[0] and inner.cnt in self.guards:
            head.append(_set(inner.cnt, _const(False, s), s))
        saved = self.assigned
        self.assigned = set(saved) if depth else saved
        if stops:
            new = self.guarded(body, stops, s, inner, depth + 1)
        else:
            new = self.block(body, inner, depth + 1, False)
        self.assigned = saved
        return head + new

    def while_(self, s, loop, depth, raw):
        all_, live, at, stops = self.loop_names(s, loop, depth, raw)
        w = self.temp()
        test = self.expr(s.test)
        body = self.loop_body(s, stops, depth, raw)
        if stops:
            body = [_unpack(stops, _call(w, "inside", [_tuple(stops, ast.Load(), s)], s), s), *body]
        body = [*body, _unpack(all_, _call(w, "leave", [_tuple(all_, ast.Load(), s)], s), s)]
        out = [_set(f, _const(False, s), s) for f in stops if f != "_eas_ret"]
        out.append(_set(w, _call("_eas_flow", "While", [_names(all_, s), _bools(live, s), _bools(at, s)], s), s))
        enter = _unpack(all_, _call(w, "enter", [_tuple(all_, ast.Load(), s)], s), s)
        inner = _at(ast.If(_call(w, "test", [test], s.test), body, []), s)
        out.append(_at(ast.While(_attr(w, "again", s), [enter, inner], []), s))
        return out

    def spelled(self, s):
        """Is it a `for k in mk.range(...)` or `for _ in mk.while_(...)` that is never left early? Then it is
        already a loop of the kernel."""
        f = s.iter.func if type(s.iter) is ast.Call else None
        name = getattr(f, "attr", getattr(f, "id", ""))
        if name not in ("range", "while_") or (name == "range" and type(f) is ast.Name and f.id not in self.local and self.globals.get("range", range) is range):
            return False
        return not _jumps(s.body)[0] & {"b", "r"}

    def for_(self, s, loop, depth, raw):
        if self.spelled(s):
            s.iter = self.expr(s.iter)
            s.body = self.loop_body(s, [], depth, raw)
            s.orelse = []
            return [s]
        all_, live, at, stops = self.loop_names(s, loop, depth, raw)
        f, item = self.temp(), self.temp()
        it = s.iter
        if type(it) is ast.Call and type(it.func) is ast.Name and it.func.id == "range" and not it.keywords and not any(type(x) is ast.Starred for x in it.args):
            it = _call("_eas_flow", "range_", [it.func, *(self.expr(x) for x in it.args)], it)
        else:
            it = self.expr(it)
        body = self.loop_body(s, stops, depth, raw)
        out = [_set(x, _const(False, s), s) for x in stops if x != "_eas_ret"]
        values = _tuple(all_, ast.Load(), s)
        out.append(_set(f, _call("_eas_flow", "for_", [it, _names(all_, s), _bools(live, s), _bools(at, s), values], s.iter), s))
        enter = _unpack(all_, _call(f, "enter", [_tuple(all_, ast.Load(), s)], s), s)
        assign = _at(ast.Assign([s.target], _load(item, s)), s)
        leave = _at(ast.If(_call(f, "leave", [_tuple(all_, ast.Load(), s)], s), [_at(ast.Break(), s)], []), s)
        out.append(_at(ast.For(_at(ast.Name(item, ast.Store()), s), _attr(f, "it", s.iter), [enter, assign, *body, leave], []), s))
        out.append(_unpack(all_, _call(f, "done", [_tuple(all_, ast.Load(), s)], s), s))
        return out

    def inner(self, node):
        """Rewrites a function inside this one."""
        node.decorator_list = [self.expr(d) for d in node.decorator_list]
        self.fields(node.args)
        if any(type(n) in (ast.Yield, ast.YieldFrom) for n in _own(node.body, True)):
            return node
        f = _Function(self.globals, self.local, self.cells)
        f.n = self.n + 1000
        node.body = f.body(node)
        return node

    # ---- expressions ----

    def fields(self, node):
        for f in node._fields:
            v = getattr(node, f, None)
            if isinstance(v, ast.expr):
                setattr(node, f, self.expr(v))
            elif type(v) is list:
                for i, x in enumerate(v):
                    if isinstance(x, ast.expr):
                        v[i] = self.expr(x)
                    elif isinstance(x, ast.AST):
                        self.fields(x)
            elif isinstance(v, ast.AST) and v._fields:
                self.fields(v)

    def expr(self, e):
        t = type(e)
        if t is ast.Name or t is ast.Constant:
            return e
        if t is ast.BoolOp:
            return self.bool_op(e)
        if t is ast.UnaryOp and type(e.op) is ast.Not:
            return _at(ast.Call(_attr("_eas_flow", "not_", e), [self.expr(e.operand)], []), e)
        if t is ast.Compare and len(e.ops) > 1:
            return self.compare(e)
        if t is ast.IfExp:
            return self.if_exp(e)
        if t is ast.Lambda:
            self.fields(e.args)
            saved, self.local = self.local, self.local | {a.arg for a in ast.walk(e.args) if isinstance(a, ast.arg)}
            e.body = self.expr(e.body)
            self.local = saved
            return e
        if t in _COMPREHENSIONS:
            return self.comprehension(e)
        self.fields(e)
        if t is ast.Call and self.is_ours(e.func):
            e.func = _at(ast.Call(_attr("_eas_flow", "call", e.func), [e.func], []), e.func)
            _copy_place(e.func, e.func.args[0])
        return e

    def comprehension(self, e):
        names = {n.id for g in e.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        saved, self.local = self.local, self.local | names
        for f in ("elt", "key", "value"):
            if hasattr(e, f):
                setattr(e, f, self.expr(getattr(e, f)))
        for g in e.generators:  # the iterated expression may not contain assignment expressions
            g.ifs = [self.expr(x) for x in g.ifs]
        self.local = saved
        return e

    def is_ours(self, f):
        """May it be a function that has to be rewritten?"""
        root = f
        while type(root) is ast.Attribute:
            root = root.value
        if type(root) is not ast.Name:
            return type(f) is not ast.Call or True
        if root.id == "super" or root.id.startswith("_eas"):
            return False
        if root.id in self.cells:
            return not plain_module(self.cells[root.id])
        if root.id in self.local:
            return True
        v = self.globals.get(root.id, getattr(builtins, root.id, None))
        if plain_module(v):
            return False
        if type(f) is ast.Name and v is not None:
            return not _is_library(getattr(v, "__module__", None) or "builtins") or getattr(v, "_eas_helper", None) is not None
        return True

    def bool_op(self, e):
        word = "and" if type(e.op) is ast.And else "or"
        out = self.expr(e.values[0])
        for v in e.values[1:]:
            out = self.two(word, out, self.expr(v), e)
        return out

    def two(self, word, x, y, at):
        t = self.temp()
        test = _call("_eas_flow", f"more_{word}", [_at(ast.NamedExpr(_at(ast.Name(t, ast.Store()), at), x), at)], at)
        return _at(ast.IfExp(test, _call("_eas_flow", f"{word}_", [_load(t, at), y], at), _load(t, at)), at)

    def compare(self, e):
        left, out = self.expr(e.left), None
        for i, (op, right) in enumerate(zip(e.ops, e.comparators)):
            right = self.expr(right)
            again = None
            if i + 1 < len(e.ops) and type(right) is not ast.Constant:
                t = self.temp()
                again = _load(t, e)
                right = _at(ast.NamedExpr(_at(ast.Name(t, ast.Store()), e), right), e)
            one = _at(ast.Compare(left, [op], [right]), e)
            out = one if out is None else self.two("and", out, one, e)
            left = again if again is not None else right
        return out

    def if_exp(self, e):
        t = self.temp()
        test, x, y = self.expr(e.test), self.expr(e.body), self.expr(e.orelse)
        cond = _at(ast.NamedExpr(_at(ast.Name(t, ast.Store()), e), _call("_eas_flow", "cond", [test], e)), e)
        x = _at(ast.IfExp(_call("_eas_flow", "then", [_load(t, e)], e), x, _const(None, e)), e)
        y = _at(ast.IfExp(_call("_eas_flow", "other", [_load(t, e)], e), y, _const(None, e)), e)
        return _call("_eas_flow", "choose", [cond, x, y], e)
