"""Tensors that are made of other tensors: complex ones (a real and an imaginary part), and those of dtypes
that are only stored (float8, int4).

An operation of the table that gets one calls `handle` (python/_eas/eager_override.c), which finds the rule in
the class. They are pytrees whose leaves are their parts, so vmap, grad, compile, loops and optimizers take
them without further code."""

from eas._eas import EagerTensor, set_override


class Wrapped:
    """A tensor made of others."""

    __slots__ = ()
    __array_priority__ = 2000

    def _leaves(self):
        """The tensors of which this one is made."""
        raise NotImplementedError

    def _again(self, leaves):
        """The same kind of tensor, made of other parts."""
        raise NotImplementedError

    is_sharded = property(lambda self: self._leaves()[0].is_sharded)
    sharding = property(lambda self: self._leaves()[0].sharding)
    is_traced = traced = property(lambda self: any(t.is_traced for t in self._leaves()))

    def numel(self):
        return self.size

    def dim(self):
        return self.ndim

    def cpu(self):
        return self.to("cpu")

    def to_device(self, device, /, *, stream=None):
        return self.to(device=device)


def _of_first(name):
    return property(lambda self: getattr(self._leaves()[0], name))


def _of_each(name):
    def method(self, *args, **kwargs):
        return self._again([getattr(t, name)(*args, **kwargs) for t in self._leaves()])

    method.__name__ = method.__qualname__ = name
    return method


def _caster(dtype):
    return lambda self: self.astype(dtype)


for _name in ("global_shape", "local_shape", "physical_shape", "physical_global_shape", "op_kwargs"):
    setattr(Wrapped, _name, _of_first(_name))
for _name in ("shard", "reshard", "gather", "copy", "clone", "__copy__", "detach", "view", "transpose"):
    setattr(Wrapped, _name, _of_each(_name))
for _name, _dtype in {"half": "float16", "float": "float32", "double": "float64", "int": "int32", "long": "int64", "bool": "bool", "bfloat16": "bfloat16"}.items():
    setattr(Wrapped, _name, _caster(_dtype))


class WrappedDType(Wrapped):
    """A dtype of such tensors."""

    __slots__ = ()


_families = []  # (wants(args, kwargs) -> bool, handle(op, args, kwargs))


def register(wants, handle):
    _families.append((wants, handle))


def items(args, kwargs):
    """All arguments, also those inside lists and tuples."""
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
    """The arguments by the names of the operation's parameters, and which of them are values."""
    names = [p.split(":")[0].rstrip("?*") for p in op.signature.split()]
    if len(args) > len(names):  # x.reshape(2, 3)
        first = next(i for i, p in enumerate(op.signature.split()) if ":" in p)
        args = (*args[:first], tuple(args[first:]))
    bound = dict(zip(names, args))
    bound.update(kwargs)
    return bound, [n for n, p in zip(names, op.signature.split()) if ":" not in p and n in _VALUES]


def is_tensor(x):
    return isinstance(x, (EagerTensor, Wrapped)) and not isinstance(x, WrappedDType)
