"""Kernels as plain Python: the changes to a kernel's own source that `_interpret=True` needs.

`with mk.while_(cond):` runs its body once, which is right while a kernel is traced. To run it as often as the
condition holds, the function is compiled anew with `for _ in mk.while_(cond):` in its place; every line keeps
its number, so debuggers see the user's file."""

import ast
import functools
import inspect
import io
import sys
import textwrap
import types


class _Loops(ast.NodeTransformer):
    def visit_With(self, node):
        self.generic_visit(node)
        call = node.items[0].context_expr
        name = getattr(call, "func", None)
        if len(node.items) != 1 or not isinstance(call, ast.Call) or getattr(name, "attr", getattr(name, "id", "")) != "while_":
            return node
        target = node.items[0].optional_vars or ast.Name("_", ast.Store())
        return ast.fix_missing_locations(ast.copy_location(ast.For(ast.copy_location(target, node), call, node.body, []), node))


def _names(code):
    yield from code.co_names
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _names(c)


def _definition(fn):
    lines, first = inspect.getsourcelines(fn)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == fn.__name__)


def _code(fn):
    node = _Loops().visit(_definition(fn))
    node.decorator_list = []
    names = [ast.copy_location(ast.arg(n), node) for n in fn.__code__.co_freevars]
    args = ast.arguments(posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[])
    outer = ast.copy_location(ast.FunctionDef("_closure", args, [node], []), node)
    module = compile(ast.fix_missing_locations(ast.Module([outer], [])), fn.__code__.co_filename, "exec", dont_inherit=True)
    outer = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    return next(c for c in outer.co_consts if isinstance(c, types.CodeType) and c.co_name == fn.__name__)


@functools.lru_cache(maxsize=256)
def body(fn):
    """The function to run in place of a kernel's: itself, or a copy in which each `with mk.while_` is a
    loop."""
    if "while_" not in _names(fn.__code__):
        return fn
    try:
        code = _code(fn)
    except (OSError, TypeError, SyntaxError, StopIteration):
        return fn  # without its source; a `with mk.while_` then says what to write instead
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells[n] for n in code.co_freevars))
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


_KEEPS = frozenset(("append", "extend", "insert", "add", "update", "setdefault", "appendleft", "put", "write", "breakpoint", "set_trace"))


def quietly(fn):
    """Suppresses all printing until the function that it returns is called: for tracing a kernel that will
    run as plain Python. None if the kernel's body stores or shows values."""
    if not _KEEPS.isdisjoint(_names(fn.__code__)):
        return None
    out = sys.stdout
    sys.stdout = io.StringIO()

    def again():
        sys.stdout = out

    return again
