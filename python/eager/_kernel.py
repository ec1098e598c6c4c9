"""Kernels as operations."""

import inspect
import math

import eas
from eas._eas import EagerTensor, constant, kernel_call, kernel_lanes, tensor_ops
from eas.runtime.grid import infer_grid

from ._kernel_parts import PartRule, lanes_only
from ._kernel_rules import KernelRules
from .ops.operation import Operation

__all__ = ["call_custom_kernel", "from_kernel"]


def _spec(spec, bound):
    """(shape, dtype) of an output that is given as such a pair, as a tensor, or as a function of the
    arguments."""
    if callable(spec) and not isinstance(spec, EagerTensor):
        wanted = inspect.signature(spec).parameters
        spec = spec(**{k: v for k, v in bound.items() if k in wanted})
    if isinstance(spec, EagerTensor):
        return tuple(spec.shape), spec.dtype
    if isinstance(spec, tuple) and len(spec) == 2 and not isinstance(spec[1], int):
        return spec
    raise TypeError(f"from_kernel: an output is a tensor to be like, or (shape, dtype); got {spec!r}")


def _several(x):
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


class _KernelOperation(Operation):
    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __init__(self, kernel, outputs, grid, name, rules, differentiate, deterministic, max_trips):
        self._kernel, self._outputs, self._grid = kernel, dict(outputs), grid
        self._differentiate, self._deterministic, self._max_trips = differentiate, deterministic, max_trips
        self._derivatives = {}
        self._name, self._rules = name or getattr(kernel, "__name__", "kernel"), rules
        self._signature = inspect.signature(kernel)
        self._lane_kernels = {}
        missing = set(self._outputs) - set(self._signature.parameters)
        if missing:
            raise ValueError(f"from_kernel: {self._name} has no parameter {sorted(missing)}; its parameters are {list(self._signature.parameters)}")
        self._inputs = [p for p in self._signature.parameters.values() if p.name not in self._outputs]

    @property
    def name(self):
        return self._name

    def vjp_rule(self, primals, cotangents, outputs, **kwargs):
        """Cotangents of the primals, None where there is none; from the rule that was given, else from the
        kernel's derivative."""
        rule = self._rules.get("vjp")
        if rule is not None:
            return rule(primals, cotangents, outputs, **kwargs)
        if not self._differentiate:
            raise NotImplementedError(
                f"{self._name} has no vjp rule: pass vjp= to from_kernel, or let it differentiate the kernel (differentiate=True)"
            )
        return KernelRules(self, primals, kwargs).vjp(_several(cotangents), _several(outputs))

    def jvp_rule(self, primals, tangents, outputs, **kwargs):
        """Tangents of the outputs, None where there is none; from the rule that was given, else from the
        kernel's derivative."""
        rule = self._rules.get("jvp")
        if rule is not None:
            return rule(primals, tangents, outputs, **kwargs)
        if not self._differentiate:
            raise NotImplementedError(
                f"{self._name} has no jvp rule: pass jvp= to from_kernel, or let it differentiate the kernel (differentiate=True)"
            )
        return KernelRules(self, primals, kwargs).jvp(_several(tangents), _several(outputs))

    def sharding_rule(self, *shapes, **kwargs):
        return self._rule("sharding", super().sharding_rule)(*shapes, **kwargs)

    def _rule(self, which, default):
        return self._rules.get(which) or default

    def __call__(self, *args, **kwargs):
        """Rules get tensors by position: a tensor that is given by name is passed by position, and so are all
        arguments in front of it."""
        if any(isinstance(v, EagerTensor) for v in kwargs.values()):
            names = [p.name for p in self._inputs]
            bound = inspect.Signature([p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in self._inputs]).bind(*args, **kwargs).arguments
            last = max(i for i, n in enumerate(names) if isinstance(bound.get(n), EagerTensor))
            if all(n in bound for n in names[: last + 1]):
                args = tuple(bound[n] for n in names[: last + 1])
                kwargs = {n: bound[n] for n in names[last + 1 :] if n in bound}
        return super().__call__(*args, **kwargs)

    def _bind(self, args, kwargs):
        bound = inspect.Signature([p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in self._inputs]).bind(*args, **kwargs)
        bound.apply_defaults()
        data = (EagerTensor, int, float, bool, str, tuple)
        return {k: v if isinstance(v, data) or not hasattr(v, "__array__") else constant(v) for k, v in bound.arguments.items()}

    def maxpr(self, *args, **kwargs):
        bound = self._bind(args, kwargs)
        lanes = max((v.batch_dims for v in bound.values() if isinstance(v, EagerTensor)), default=0)
        outs = self._lanes(bound, lanes) if lanes else self._launch(bound)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _lanes(self, bound, depth):
        """In vmap: lanes are one more axis of programs; a launch for each where the kernel leaves no axis."""
        sizes = [1] * depth
        for v in bound.values():
            if isinstance(v, EagerTensor):
                for i, n in enumerate(v.physical_shape[: v.batch_dims]):
                    at = depth - v.batch_dims + i
                    sizes[at] = int(n) if int(n) != 1 else sizes[at]
        count = math.prod(sizes)
        flat = {k: self._flat(v, sizes) if isinstance(v, EagerTensor) and v.batch_dims else v for k, v in bound.items()}
        picked = [k for k, v in bound.items() if isinstance(v, EagerTensor) and v.batch_dims]
        outs = self._launch_lanes(flat, picked, count)
        if outs is None:
            rows = [self._launch({k: v[i] if k in picked else v for k, v in flat.items()}) for i in range(count)]
            outs = [tensor_ops["stack"](list(column), axis=0) for column in zip(*rows)]
        return [tensor_ops["alias"](o.reshape((*sizes, *o.shape[1:])), depth) for o in outs]

    def _launch_lanes(self, flat, picked, count):
        # what one lane looks like
        one = {k: EagerTensor.zeros(tuple(v.shape)[1:], dtype=v.dtype) if k in picked else v for k, v in flat.items()}
        specs, compiled, grid, run_time = self._compiled(one)
        if count == 0:
            return [EagerTensor.zeros((0, *shape), dtype=dtype) for shape, dtype in specs.values()]
        if grid is None:
            grid = self._inferred(compiled, one, run_time)
        grid = (grid,) if isinstance(grid, int) else tuple(grid)
        while len(grid) > 1 and grid[-1] == 1:
            grid = grid[:-1]
        axis = max(len(grid), compiled.ir.naxes)
        if axis > 2:
            return None
        flags = tuple(p in specs or p in picked for p in run_time)
        key = (compiled, flags, axis)
        if key not in self._lane_kernels:
            self._lane_kernels[key] = kernel_lanes(compiled, flags, axis)
        lengths = [math.prod(int(d) for d in (specs[p][0] if p in specs else one[p].shape)) for p, f in zip(run_time, flags) if f]
        names = list(self._outputs)
        arguments = (*([names.index(p)] if p in specs else flat[p] for p in run_time), *lengths)
        outputs = tuple(((count, *shape), dtype) for shape, dtype in specs.values())
        rule = self._lanes_rule(one, specs, compiled, dict(zip(run_time, flags)), axis, count, grid)
        return kernel_call(self._lane_kernels[key], arguments, outputs, (*grid, *(1,) * (axis - len(grid)), count), None, rule)

    def _lanes_rule(self, one, specs, compiled, flags, axis, count, grid):
        """The rule by which a launch over lanes can be cut: along the lanes, and as the operation's own rule
        says."""
        own = self._part_rule(one, specs, compiled)
        shapes = {p: specs[p][0] if p in specs else one[p].shape if isinstance(one[p], EagerTensor) else () for p in flags}
        rule = lanes_only(flags, shapes, axis, count, grid) if own is None else own.with_lanes(flags, axis, count, grid)
        lengths = [f"{p} lane" for p, f in flags.items() if f]
        if own is not None:
            rule.numbers.update({f"{p} lane": math.prod(own.shape(p, shapes[p])) for p, f in flags.items() if f})
        return rule.tuple([*flags, *lengths], list(specs))

    def _part_rule(self, bound, specs, compiled):
        """The PartRule that the operation's sharding rule gives for one call; None: it has no rule."""
        rule = self._rules.get("sharding")
        if rule is None:
            return None
        shapes = [tuple(v.shape) for v in bound.values() if isinstance(v, EagerTensor)]
        if any(not isinstance(n, int) for s in shapes for n in s):
            return None
        wanted = inspect.signature(rule).parameters
        named = any(p.kind == p.VAR_KEYWORD for p in wanted.values())
        numbers = {k: v for k, v in bound.items() if not isinstance(v, EagerTensor) and (named or k in wanted)}
        return PartRule.of(self, rule(*shapes, **numbers), bound, specs, compiled)

    def _inferred(self, compiled, bound, run_time):
        """The grid of a launch that names none, inferred as for a launch of eas."""
        numbers = {p: bound[p] for p in run_time if p in bound and not isinstance(bound[p], EagerTensor)}
        grid = infer_grid(compiled.ir, numbers, compiled.block_size)
        if grid is not None:
            return grid
        if "N" not in numbers:
            raise ValueError(f"from_kernel: {self._name} needs a grid, or a number N among its arguments")
        return (-(-int(numbers["N"]) // compiled.block_size),)

    def _flat(self, v, sizes):
        shape = tuple(v.shape)
        v = tensor_ops["alias"](tensor_ops["broadcast_batch_dims"](v, sizes), 0)
        return v.reshape((math.prod(sizes), *shape))

    def _compiled(self, bound):
        """Outputs, the kernel for these arguments, its grid (None: inferred), and the names of its run-time
        parameters."""
        specs = {k: _spec(s, bound) for k, s in self._outputs.items()}
        dummies = {k: eas.empty(0, dtype=v.dtype) if isinstance(v, EagerTensor) else v for k, v in bound.items()}
        dummies.update({k: eas.empty(0, dtype=dtype) for k, (_, dtype) in specs.items()})
        compiled = self._kernel.compile(**dummies)
        grid = self._grid
        if callable(grid):
            wanted = inspect.signature(grid).parameters
            grid = grid(**{k: v for k, v in bound.items() if k in wanted})
        return specs, compiled, grid, [p for p in self._signature.parameters if p not in compiled.meta]

    def _launch(self, bound):
        specs, compiled, grid, run_time = self._compiled(bound)
        names = list(self._outputs)
        arguments = tuple([names.index(p)] if p in specs else bound[p] for p in run_time)
        rule = self._part_rule(bound, specs, compiled)
        return kernel_call(compiled, arguments, tuple(specs.values()), grid, None, rule and rule.tuple(run_time, names))


def from_kernel(kernel, outputs, *, grid=None, name=None, vjp=None, jvp=None, sharding=None, differentiate=True, deterministic=False, max_trips=None):
    """An operation that launches a kernel (under @eas.kernel) as part of the graph.

    outputs: {parameter: what it is}, for the parameters that the kernel writes: a tensor to be like, (shape,
    dtype), or a function of arguments by their names that gives one of those. The operation is called with
    the other parameters. grid: as for a launch, or a function of arguments by their names. vjp, jvp,
    sharding: rules. Inside vmap lanes are one more axis of programs.

    Of tensors in parts on a mesh the kernel runs on each part if it is proved element-wise, or if
    sharding(*shapes, **numbers) gives an OpShardingRule: a part is then launched with a grid from the part's
    shapes (grid must be a function), and with the numbers that the rule names. Otherwise tensors are gathered
    first, and explain_sharding says so.

    differentiate: without a rule of its own the operation is differentiated by the kernel's derivative
    (`eas.grad_kernel`); deterministic and max_trips are for that.

    add = eager.from_kernel(add_kernel, {"c": lambda a: a})
    c = add(a, b, N=1024, BLOCK=256)
    """
    rules = {"vjp": vjp, "jvp": jvp, "sharding": sharding}
    return _KernelOperation(kernel, outputs, grid, name, rules, differentiate, deterministic, max_trips)


def call_custom_kernel(kernel, *tensors, out_types, grid=None, **numbers):
    """A launch of a kernel (under @eas.kernel) as part of the graph: its first parameters are the tensors,
    the next ones its outputs, one for each of out_types (a tensor to be like, (shape, dtype), or something
    with .shape and .dtype); others are given by name. One tensor, or a tuple.

    c = eager.call_custom_kernel(add_kernel, a, b, out_types=[a], N=1024, BLOCK=256)
    """
    out_types = list(out_types) if isinstance(out_types, list) else [out_types]
    names = list(inspect.signature(kernel.__wrapped__ if hasattr(kernel, "__wrapped__") else kernel.fn).parameters)
    free = [n for n in names if n not in numbers]
    if len(free) < len(tensors) + len(out_types):
        raise ValueError(
            f"eager.call_custom_kernel: {len(tensors)} tensors and {len(out_types)} outputs are given, and the kernel has the parameters {names}"
        )
    outputs = dict(
        zip(free[len(tensors) :], [(tuple(t.shape), t.dtype) if hasattr(t, "shape") and not isinstance(t, EagerTensor) else t for t in out_types])
    )
    return from_kernel(kernel, outputs, grid=grid)(**dict(zip(free, tensors)), **numbers)
