"""Which parts of a kernel's syntax tree a traced value may decide: one walk, before anything is rewritten.

A name may hold traced values if it is a run-time parameter, or if anything that may be traced is assigned to
it anywhere in the function. A statement needs rewriting if a condition in it may be traced (or what a `for`
iterates over), or if it calls a function of the user's. Everything else stays as it is, and a function of
which nothing needs rewriting is traced as it was written."""

import ast
import builtins

# Builtins that give Python values for Python values and do not decide anything.
_PLAIN = frozenset("abs bool dict divmod enumerate float getattr hasattr int isinstance issubclass len list max min pow range reversed round set sorted str sum tuple type zip".split())
_CONTAINERS = frozenset(n for t in (list, dict, set, str, tuple) for n in dir(t))  # their methods give what they hold
_SIMPLE = frozenset((ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return))
_LEAVES = (ast.Constant, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom)


def _pairs(s):
    """The targets of an assignment with their values; a, b = x, y gives two pairs."""
    x, v = s.targets[0], s.value
    if len(s.targets) == 1 and type(x) is ast.Tuple and type(v) is ast.Tuple and len(x.elts) == len(v.elts) and not any(type(e) is ast.Starred for e in (*x.elts, *v.elts)):
        return zip(x.elts, v.elts)
    return [(x, v) for x in s.targets]


class Scan:
    """marked: may a traced value decide anything, or is a function of the user's called? The statements in
    question get the attribute `_eas_marked`."""

    def __init__(self, traced, locals_, names, ours, methods):
        self.traced = set(traced)  # names
        self.locals = set(locals_)
        self.globals, self.ours, self.methods = names, ours, methods
        self.assigned = []  # (names, names that are read, may the value be traced in any case)
        self.conditions = []  # (statement, names that are read, may the value be traced in any case)
        self.marked = False
        self.stmt = None
        self.seen, self.kept = set(), {}  # names that the present statement or condition reads and assigns, for _rewrite._names_of

    def run(self, body):
        self.block(body)
        again = True
        while again:
            again = False
            for targets, reads, anyway in self.assigned:
                if (anyway or not self.traced.isdisjoint(reads)) and not self.traced.issuperset(targets):
                    self.traced.update(targets)
                    again = True
        for stmt, reads, anyway in self.conditions:
            if anyway or not self.traced.isdisjoint(reads):
                self.mark(stmt)
        return self.marked

    def mark(self, stmt):
        self.marked = True
        while stmt is not None and not hasattr(stmt, "_eas_marked"):
            stmt._eas_marked = True
            stmt = stmt._eas_up

    # ---- statements ----

    def block(self, stmts):
        up = self.stmt
        for s in stmts:
            s._eas_up = up
            self.stmt = s
            t = type(s)
            if t in _SIMPLE:
                self.seen, self.kept = set(), {}
            if t is ast.Assign:
                for x, v in _pairs(s):
                    reads = set()
                    self.store(x, reads, self.expr(v, reads))
            elif t is ast.Expr:
                self.expr(s.value, set())
            elif t is ast.AugAssign:
                reads = set()
                self.store(s.target, reads, self.expr(s.value, reads))
            elif t is ast.If or t is ast.While:
                self.seen, self.kept = set(), {}
                self.condition(s.test)
                s.test._eas_names = frozenset(self.seen), tuple(self.kept)
                self.block(s.body)
                self.block(s.orelse)
            elif t is ast.For:
                self.loop(s)
            elif t is ast.With:
                for i in s.items:
                    self.expr(i.context_expr, set())
                    if i.optional_vars is not None:
                        self.store(i.optional_vars, (), True)
                self.block(s.body)
            elif t is ast.Return:
                if s.value is not None:
                    self.expr(s.value, set())
            elif t is ast.AnnAssign:
                reads = set()
                if s.value is not None:
                    self.store(s.target, reads, self.expr(s.value, reads))
            elif t is ast.Assert:
                self.condition(s.test)
            elif t not in _LEAVES:  # functions, classes, try, match, del, raise
                self.mark(s)
            if t in _SIMPLE:
                s._eas_names = frozenset(self.seen), tuple(self.kept)
        self.stmt = up

    def loop(self, s):
        it = s.iter
        spelled = type(it) is ast.Call and type(it.func) is ast.Attribute and it.func.attr in ("range", "while_") and not self.ours(it.func)
        if spelled:  # the kernel's own loop; a statement that leaves it early must be rewritten
            self.expr(it, set())
            self.store(s.target, (), True)
            if any(type(x) in (ast.Break, ast.Continue, ast.Return) for y in s.body for x in ast.walk(y)):
                self.mark(s)
        else:
            self.store(s.target, *self.condition(it))
        self.block(s.body)
        self.block(s.orelse)

    def store(self, target, reads, anyway, keep=True):
        t = type(target)
        if t is ast.Name:
            self.locals.add(target.id)
            if keep:
                self.kept[target.id] = None
            self.assigned.append(((target.id,), reads, anyway))
        elif t is ast.Tuple or t is ast.List:
            for x in target.elts:
                self.store(x, reads, anyway, keep)
        elif t is ast.Starred:
            self.store(target.value, reads, anyway, keep)
        else:  # an element or attribute: the object that it belongs to may hold the value from now on
            held = set()
            self.expr(target, held)
            self.assigned.append((tuple(held), reads, anyway))

    # ---- expressions ----
    # They add the names that are read, and tell whether the value may be traced whatever those names hold.

    def condition(self, e):
        reads = set()
        anyway = self.expr(e, reads)
        self.conditions.append((self.stmt, reads, anyway))
        return reads, anyway

    def decided(self, e, reads):
        """An operand whose truth decides something."""
        own, anyway = self.condition(e)
        reads |= own
        return anyway

    def expr(self, e, reads):
        t = type(e)
        if t is ast.Name:
            if e.id in self.locals:
                reads.add(e.id)
                self.seen.add(e.id)
            return False
        if t is ast.Constant:
            return False
        if t is ast.Call:
            return self.call(e, reads)
        if t is ast.BinOp:
            return self.expr(e.left, reads) | self.expr(e.right, reads)
        if t is ast.Attribute:
            return self.expr(e.value, reads)
        if t is ast.Compare:
            if len(e.ops) > 1:
                return any([self.decided(x, reads) for x in (e.left, *e.comparators)])
            if type(e.ops[0]) in (ast.Is, ast.IsNot):  # `is` never evaluates the value
                self.expr(e.left, set())
                self.expr(e.comparators[0], set())
                return False
            return self.expr(e.left, reads) | self.expr(e.comparators[0], reads)
        if t is ast.BoolOp:
            return any([self.decided(x, reads) for x in e.values])
        if t is ast.UnaryOp:
            return self.decided(e.operand, reads) if type(e.op) is ast.Not else self.expr(e.operand, reads)
        if t is ast.IfExp:
            return self.decided(e.test, reads) | self.expr(e.body, reads) | self.expr(e.orelse, reads)
        if t is ast.NamedExpr:
            own = set()
            anyway = self.expr(e.value, own)
            self.store(e.target, own, anyway)
            reads |= own
            return anyway
        if t is ast.Lambda:
            names = tuple(a.arg for a in ast.walk(e.args) if isinstance(a, ast.arg))
            self.locals.update(names)
            self.assigned.append((names, (), True))
            self.expr(e.body, set())
            return True
        anyway = False
        for g in getattr(e, "generators", ()):
            self.store(g.target, *self.condition(g.iter), keep=False)
            for x in g.ifs:
                anyway |= self.decided(x, reads)
        for x in ast.iter_child_nodes(e):
            if isinstance(x, ast.expr):
                anyway |= self.expr(x, reads)
        return anyway

    def call(self, e, reads):
        f, plain, mine = e.func, False, False
        if type(f) is ast.Name:
            plain = f.id in _PLAIN and f.id not in self.locals and self.globals.get(f.id, getattr(builtins, f.id)) is getattr(builtins, f.id)
            mine = not plain and self.ours(f)
        else:
            plain = type(f) is ast.Attribute and f.attr in _CONTAINERS
            mine = self.ours(f) and not (type(f) is ast.Attribute and f.attr in self.methods)
        own = set()
        anyway = False
        for x in e.args:
            anyway |= self.expr(x, own)
        for x in e.keywords:
            anyway |= self.expr(x.value, own)
        if mine:
            self.mark(self.stmt)
            self.assigned.append((tuple(own), own, anyway))  # the call may store one argument in another
        if type(f) is not ast.Name:
            held = set()
            self.expr(f, held)
            if held and (own or anyway):  # a method may store its arguments
                self.assigned.append((tuple(held), own, anyway))
            reads |= held
        reads |= own
        return anyway or not plain
