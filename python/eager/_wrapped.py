"""Tensors that the library's own are parts of: complex ones (a real and an imaginary part), and those of
dtypes that are only stored (float8, int4).

An operation of the table that meets one calls `handle` (python/_eas/eager_override.c), which finds the rule
in the class. They are pytrees whose leaves are their parts, so vmap, grad, compile, loops and optimizers take
them as they are."""

from eas._eas import EagerTensor, set_override


class Wrapped:
    """A tensor made of others."""

    __slots__ = ()
    __array_priority__ = 2000


class WrappedDType(Wrapped):
    """A dtype of such tensors."""

    __slots__ = ()


_families = []  # (wants(args, kwargs) -> bool, handle(op, args, kwargs))


def register(wants, handle):
    _families.append((wants, handle))


def items(args, kwargs):
    """All arguments, those in lists and tuples too."""
    stack = [*args, *kwargs.values()]
    while stack:
        x = stack.pop()
        if isinstance(x, (list, tuple)):
            stack.extend(x)
        else:
            yield x


def handle(op, args, kwargs):
    for wants, f in _families:
        if wants(args, kwargs):
            return f(op, args, kwargs)
    raise TypeError(f"eager.{op if isinstance(op, str) else op.name}: these arguments are not understood: {args!r}")


set_override(Wrapped, handle)

_VALUES = {"x", "xs", "y", "update", "updates", "value", "values", "fill"}


def bind(op, args, kwargs):
    """Names of the operation's parameters, each with what was given; and which of them are values."""
    names = [p.split(":")[0].rstrip("?*") for p in op.signature.split()]
    if len(args) > len(names):  # x.reshape(2, 3)
        first = next(i for i, p in enumerate(op.signature.split()) if ":" in p)
        args = (*args[:first], tuple(args[first:]))
    bound = dict(zip(names, args))
    bound.update(kwargs)
    return bound, [n for n, p in zip(names, op.signature.split()) if ":" not in p and n in _VALUES]


def is_tensor(x):
    return isinstance(x, (EagerTensor, Wrapped)) and not isinstance(x, WrappedDType)
