"""How an operation that launches a kernel can be cut along the axes of a mesh: its sharding rule, and the
launch of a part in terms of the part's sizes."""

import inspect
import math

from eas._eas import EagerTensor, SymbolicDim

__all__ = ["PartRule"]

_PASS, _SUM = 0, 1


class _Part:
    """A part of a tensor as functions for grids see it: its shape and dtype."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), dtype
        self.ndim, self.size = len(self.shape), math.prod(self.shape)


class PartRule:
    """Factors of the dims of a kernel's parameters, by name; sizes of parts are symbols, one for each factor,
    and the grid and numbers of a part expressions in them."""

    def __init__(self, factors, dims, numbers=None, grid=None, sums=(), lanes=False):
        self.factors, self.dims = list(factors), dict(dims)  # [(size, kind)], {parameter: [[factor, ...] for each dim]}
        self.numbers, self.grid, self.sums, self.lanes = dict(numbers or {}), grid, set(sums), lanes

    @staticmethod
    def symbol(factor):
        return SymbolicDim(f"part_{factor}")

    @classmethod
    def of(cls, operation, rule, bound, specs, compiled):
        """From an OpShardingRule for one call. bound: arguments by name; specs: (shape, dtype) of outputs by
        name."""
        names = list(rule.factor_sizes)
        number = {f: i for i, f in enumerate(names)}
        tensors = [k for k, v in bound.items() if isinstance(v, EagerTensor)]
        if len(rule.input_mappings) != len(tensors) or len(rule.output_mappings) != len(specs):
            raise ValueError(
                f"{operation.name}: its sharding rule is for {len(rule.input_mappings)} inputs and {len(rule.output_mappings)} outputs; there are {len(tensors)} and {len(specs)}"
            )
        dims = {}
        for name, mapping, shape in [
            *((k, m, bound[k].shape) for k, m in zip(tensors, rule.input_mappings)),
            *((k, m, specs[k][0]) for k, m in zip(specs, rule.output_mappings)),
        ]:
            bad = [d for d in mapping if not 0 <= d < len(shape)]
            if bad:
                raise ValueError(f"{operation.name}: its sharding rule speaks of dim {bad[0]} of {name!r}, which has {len(shape)} dims")
            dims[name] = [[number[f] for f in mapping.get(d, ())] for d in range(len(shape))]
        made = cls([(int(rule.factor_sizes[f]), rule._kind(f)) for f in names], dims)
        for n, factors in rule.numbers.items():
            if n not in bound or n in compiled.meta or isinstance(bound[n], EagerTensor):
                what = "is a compile-time constant of the kernel" if n in compiled.meta else "is no number among its arguments"
                raise ValueError(f"{operation.name}: its sharding rule has {n!r} among its numbers, which {what}")
            made.numbers[n] = math.prod(made.symbol(number[f]) for f in factors)
        made.grid = made._grid(operation, bound, specs)
        return made

    def shape(self, name, shape):
        """The shape of a part of a tensor of this shape."""
        return tuple(math.prod(map(self.symbol, f)) if f else n for f, n in zip(self.dims.get(name, [[]] * len(shape)), shape))

    def _grid(self, operation, bound, specs):
        grid = operation._grid
        if not callable(grid):
            return None
        parts = {k: _Part(self.shape(k, v.shape), v.dtype) if isinstance(v, EagerTensor) else self.numbers.get(k, v) for k, v in bound.items()}
        wanted = inspect.signature(grid).parameters
        try:
            made = grid(**{k: v for k, v in parts.items() if k in wanted})
            made = tuple(made) if isinstance(made, (tuple, list)) else (made,)
            return (*made, 1, 1)[:3]
        except (TypeError, ValueError, AttributeError) as e:
            if any(isinstance(v, EagerTensor) and v.is_sharded for v in bound.values()):
                raise ValueError(
                    f"{operation.name}: a kernel that is cut needs a grid that follows from the sizes of a part, and grid= fails for sizes that are symbols: {e}"
                ) from e
            return None

    def with_lanes(self, flags, axis, count, grid):
        """In vmap: a dim of lanes in front of the parameters for which flags holds, which are an axis of
        programs."""
        lane = len(self.factors)
        dims = {n: [[lane], *d] if flags.get(n) else d for n, d in self.dims.items()}
        inner = list(self.grid or grid)[:axis]
        places = [*inner, *(1,) * (axis - len(inner)), self.symbol(lane)]
        return PartRule([*self.factors, (count, _PASS)], dims, self.numbers, (*places, 1, 1)[:3], self.sums, self.lanes)

    def tuple(self, names, outputs):
        """The rule in the form that kernel_call takes, for the parameters in their order and the outputs in
        theirs."""
        return (
            self.factors,
            [self.symbol(i) for i in range(len(self.factors))],
            [self.dims.get(n) for n in names],
            [self.dims.get(n) for n in outputs],
            [self.numbers.get(n) for n in names],
            self.grid,
            [n in self.sums for n in outputs],
            self.lanes,
        )


def lanes_only(flags, shapes, axis, count, grid):
    """The rule of lanes alone, for a kernel without one of its own."""
    none = PartRule([], {n: [[] for _ in s] for n, s in shapes.items()}, lanes=True)
    return none.with_lanes(flags, axis, count, grid)
