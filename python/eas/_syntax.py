"""Syntax trees, for `_rewrite`: nodes that take the place of a given one, the names that a statement reads
and assigns, and the ways out of it (break, continue, return)."""

import ast


def _at(node, at):
    node.lineno = node.end_lineno = at.lineno
    node.col_offset = node.end_col_offset = at.col_offset
    return node


def _load(name, at):
    return _at(ast.Name(name, ast.Load()), at)


def _const(v, at):
    return _at(ast.Constant(v), at)


def _tuple(names, ctx, at):
    return _at(ast.Tuple([_at(ast.Name(n, ctx), at) for n in names], ctx), at)


def _attr(owner, name, at):
    return _at(ast.Attribute(_load(owner, at), name, ast.Load()), at)


def _call(owner, name, args, at):
    return _at(ast.Call(_attr(owner, name, at), args, []), at)


def _set(name, value, at):
    return _at(ast.Assign([_at(ast.Name(name, ast.Store()), at)], value), at)


def _unpack(names, value, at):
    """The statement (a, b) = value; only the call if there are no names."""
    return _at(ast.Assign([_tuple(names, ast.Store(), at)], value), at) if names else _at(ast.Expr(value), at)


def _names(names, at):
    return _at(ast.Tuple([_const(n, at) for n in names], ast.Load()), at)


def _bools(values, at):
    return _at(ast.Tuple([_const(v, at) for v in values], ast.Load()), at)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


_NOTHING = (frozenset(), ())


def _names_of(node):
    """(names that are read, names that are assigned in the order of the source) in a node, in its own scope;
    functions inside read what their bodies read."""
    try:
        return node._eas_names
    except AttributeError:
        pass
    t = type(node)
    if t is ast.Name:
        found = (frozenset((node.id,)), ()) if type(node.ctx) is ast.Load else (frozenset(), (node.id,))
    elif t is ast.Constant or t in (ast.Global, ast.Nonlocal, ast.Pass, ast.Break, ast.Continue):
        return _NOTHING
    elif t is ast.Attribute:
        found = _names_of(node.value)
    else:
        reads, stores = set(), {}
        if t in (ast.Import, ast.ImportFrom):
            stores = {(a.asname or a.name).partition(".")[0]: None for a in node.names}
        else:
            for f in node._fields:
                v = getattr(node, f, None)
                if type(v) is list:
                    for x in v:
                        if isinstance(x, ast.AST):
                            r, w = _names_of(x)
                            reads |= r
                            stores.update(dict.fromkeys(w))
                elif isinstance(v, ast.AST) and v._fields:
                    r, w = _names_of(v)
                    reads |= r
                    stores.update(dict.fromkeys(w))
        if t in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            stores = {node.name: None}
        elif t is ast.Lambda:
            stores = {}
        elif t in _COMPREHENSIONS:
            targets = {n for g in node.generators for n in _names_of(g.target)[1]}
            stores = {n: None for n in stores if n not in targets}
        found = (frozenset(reads), tuple(stores))
    node._eas_names = found
    return found


def _stored(node, out):
    """Names that statements assign in their own scope, in the order of the source, added to out."""
    for n in node if type(node) is list else (node,):
        out.update(dict.fromkeys(n for n in _names_of(n)[1] if n not in out))
    return out


def _reads(node):
    return _names_of(node)[0] if node is not None else frozenset()


def _live_in(stmts, defined):
    """(names that may be read before they are assigned, names that are surely assigned) of statements;
    defined: assigned before them."""
    live, have = set(), set(defined)
    for s in stmts:
        t = type(s)
        if t is ast.If:
            live |= _reads(s.test) - have
            have |= set(_stored(s.test, {}))
            a, ha = _live_in(s.body, have)
            b, hb = _live_in(s.orelse, have)
            live |= a | b
            have = ha & hb
        elif t in (ast.While, ast.For):
            live |= _reads(s.test if t is ast.While else s.iter) - have
            inner = have | (set(_stored(s.target, {})) if t is ast.For else set())
            live |= _live_in(s.body, inner)[0] | _live_in(s.orelse, have)[0]
        elif t is ast.With:
            for i in s.items:
                live |= _reads(i.context_expr) - have
                if i.optional_vars is not None:
                    have |= set(_stored(i.optional_vars, {}))
            a, have = _live_in(s.body, have)
            live |= a
        elif t in (ast.Assign, ast.AnnAssign, ast.Expr, ast.Assert, ast.Raise, ast.Return):
            live |= _reads(s) - have
            have |= set(_stored(s, {}))
        elif t is ast.AugAssign:
            live |= (_reads(s) | ({s.target.id} if type(s.target) is ast.Name else set())) - have
            have |= set(_stored(s.target, {}))
        elif t in (ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal):
            if t in (ast.Break, ast.Continue):
                break
        else:
            live |= _reads(s) - have
            if isinstance(s, _SCOPES):
                have.add(s.name)
        if t in (ast.Return, ast.Raise):
            break
    return live, have


_NONE = frozenset()
_JUMPS = (ast.Return, ast.Break, ast.Continue)
_R, _B, _C = (frozenset((x,)) for x in "rbc")


def _jump(s):
    """(which of "r", "b", "c" a statement may do, whether it surely does one)."""
    t = type(s)
    if t is ast.Return:
        return _R, True
    if t is ast.Break:
        return _B, True
    if t is ast.Continue:
        return _C, True
    if t is not ast.If and t is not ast.For and t is not ast.While:
        return _NONE, False
    try:
        return s._eas_jumps
    except AttributeError:
        pass
    a, every = _jumps(s.body)
    b, other = _jumps(s.orelse)
    s._eas_jumps = found = (a | b, every and other) if t is ast.If else ((a | b) & _R, False)
    return found


def _jumps(stmts):
    """(jumps that a list of statements may do, whether it surely does one)."""
    may = _NONE
    for s in stmts:
        m, surely = _jump(s)
        if m:
            may = may | m
        if surely:
            return may, True
    return may, False


def _copy_place(to, at):
    to.end_lineno, to.end_col_offset = getattr(at, "end_lineno", at.lineno), getattr(at, "end_col_offset", at.col_offset)


def _end(s):
    return s


def _own(stmts, expressions=False):
    """The statements (and expressions) that are not in functions inside them."""
    waiting = list(stmts)
    while waiting:
        n = waiting.pop()
        yield n
        if isinstance(n, _SCOPES):
            continue
        if expressions:
            waiting += ast.iter_child_nodes(n)
            continue
        for f in ("body", "orelse", "finalbody", "handlers", "cases"):
            more = getattr(n, f, None)
            if type(more) is list:
                waiting += more
