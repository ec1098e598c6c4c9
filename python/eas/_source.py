"""The source of a function, found again and parsed: for `_rewrite`.

A function whose file has changed since it was imported, or whose source does not give its bytecode, has none.
"""

import ast
import functools
import linecache
import os
import time
import types

_START = time.time()  # a file that is newer may differ from the code that was imported


def _last_line(code):
    """The last line on which an instruction begins. Lines after it that belong to the definition are found by
    their indentation, which is deeper than that of the definition."""
    last = max((line or 0 for _, _, line in code.co_lines()), default=0)
    return max([last, *(_last_line(c) for c in code.co_consts if isinstance(c, types.CodeType))])


def _indent(line):
    return len(line) - len(line.lstrip())


def _block(lines, first, last):
    """The lines of a definition that begins at index `first` and has code up to line `last`; a text that
    keeps every line's number."""
    depth = _indent(lines[first])
    end = max(last, first + 1)
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > depth):
        end += 1
    text = "".join(lines[first:end])
    return "\n" * (first - 1) + "if 1:\n" + text if depth and first else "\n" * first + text


@functools.lru_cache(maxsize=64)
def _file(name):
    return ast.parse("".join(linecache.getlines(name)))


def _same_args(node, code):
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return tuple(names) == code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _definition(fn):
    """The node of a function's definition, or None without its source."""
    code = fn.__code__
    lines = linecache.getlines(code.co_filename, fn.__globals__)
    first = code.co_firstlineno - 1
    if not 0 <= first < len(lines):
        return None
    if code.co_name == "<lambda>":
        return _lambda(code)
    tree = ast.parse(_block(lines, first, _last_line(code)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.If) and not isinstance(tree.body[0].test, ast.Compare) else tree.body
    node = body[0]
    if not isinstance(node, ast.FunctionDef) or node.name != code.co_name or not _same_args(node, code):
        return None
    return node


def _lambda(code):
    columns = {p[2] for p in code.co_positions() if p[2] is not None and p[0] == code.co_firstlineno}
    found = []
    for n in ast.walk(_file(code.co_filename)):
        if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno and _same_args(n, code):
            if n.body.col_offset in columns or n.body.lineno != n.lineno:
                found.append(n)
    return found[0] if len(found) == 1 else None


def _is_older(name):
    """Was the file last changed before this process began? Then it is the one that was imported."""
    try:
        return os.stat(name).st_mtime < _START
    except OSError:
        return True  # there is no file: the lines in linecache were stored together with the code


def _is_in_file(code, fn):
    """Is the code the one that the file holds now? The file is compiled as a whole, since the code of a call
    depends on the imports of the module."""
    waiting = [compile("".join(linecache.getlines(code.co_filename, fn.__globals__)), code.co_filename, "exec", flags=code.co_flags & 0x1FF0000, dont_inherit=True)]
    while waiting:
        c = waiting.pop()
        if c.co_firstlineno == code.co_firstlineno and c.co_qualname == code.co_qualname and _same_code(c, code):
            return True
        waiting += (x for x in c.co_consts if isinstance(x, types.CodeType))
    return False


def _same_code(a, b):
    if a.co_code != b.co_code or a.co_names != b.co_names or a.co_varnames != b.co_varnames or len(a.co_consts) != len(b.co_consts):
        return False
    for x, y in zip(a.co_consts, b.co_consts):
        if isinstance(x, types.CodeType):
            if not isinstance(y, types.CodeType) or not _same_code(x, y):
                return False
        elif type(x) is not type(y) or (x != y and x == x):
            return False
    return True


