"""Rules of operations that launch kernels, from the kernels' own derivatives (`eas.grad_kernel`,
`eas.jvp_kernel`)."""

import math

from eas._eas import EagerTensor, kernel_call, kernel_lanes, tensor_ops
from eas._grad import Derivative

from ._kernel_parts import PartRule, lanes_only

__all__ = ["KernelRules"]

_PASS, _WHOLE = 0, 3
_FLOATS = ("f16", "bf16", "f32", "f64", "float16", "bfloat16", "float32", "float64")


def _is_float(dtype):
    return str(dtype).rsplit(".", 1)[-1] in _FLOATS


def _known(n):
    """A size as an int, if it is one."""
    try:
        return int(n)
    except (TypeError, ValueError):
        return n


def _count(shape):
    return math.prod(_known(n) for n in shape)


class KernelRules:
    """One call of an operation that is to be differentiated: its arguments, and how its kernel is
    launched."""

    def __init__(self, op, primals, kwargs):
        self.op, self.primals, self.kwargs = op, primals, kwargs
        self.bound = op._bind(primals, kwargs)
        self.names = [p.name for p in op._inputs]
        self.depth = max((v.batch_dims for v in self.bound.values() if isinstance(v, EagerTensor)), default=0)
        self.lanes = None  # how many lanes a launch over lanes has; else None
        self.in_lanes = {}  # tensors that have lanes, by id
        self.swap = lambda x: x  # what stands for one lane -> the tensor with lanes

    # ---- the launch ----

    def _prepare(self):
        self.specs, self.compiled, grid, self.run_time = self.op._compiled(self.bound)
        if grid is None:
            grid = self.op._inferred(self.compiled, self.bound, self.run_time)
        grid = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        self.grid = (*(_known(n) for n in grid), 1, 1)[:3]
        self.reads = {a.name: a.kind == "buffer" and a.read for a in self.compiled.ir.args}

    def _derivative(self, wrt, of, forward):
        known = all(isinstance(n, int) for n in self.grid)
        key = (self.compiled, tuple(wrt), tuple(of), forward, known)
        if key not in self.op._derivatives:
            self.op._derivatives[key] = Derivative(
                self.compiled, wrt, of, forward, self.op._deterministic and not forward, self.op._max_trips, True, known
            )
        d = self.op._derivatives[key]
        if known:
            d.check_grid(self.grid)
        return d

    def _shape(self, name):
        if name in self.specs:
            return tuple(_known(n) for n in self.specs[name][0])
        v = self.bound[name]
        return tuple(_known(n) for n in v.shape) if isinstance(v, EagerTensor) else ()

    def _launch(self, d, arrays, made):
        """arrays: parameter -> tensor that is read; made: parameter -> (shape, dtype, initial content). Gives
        the arrays of `made`, by parameter, as tensors. In a launch over lanes (self.lanes) the tensors that
        have lanes have them as their first dim."""
        counts = [_count(self._shape(n)) for n in self.run_time]
        scalars = tuple(int(self.bound[n]) if i else 0 for n, i in zip(self.run_time, d.is_int))
        lengths = d.lengths(self.grid, counts, scalars)
        arguments, outputs, begins, order = [], [], [], []
        for p in d.params:
            if p.name in arrays:
                arguments.append(arrays[p.name])
                continue
            if p.role in ("trips", "length", "programs", "band"):
                arguments.append(int(lengths[p.name]))
                continue
            if p.name in made:
                shape, dtype, begin = made[p.name]
            else:
                shape, dtype, begin = (lengths[p.name],), p.dtype, "zero" if p.zeroed else None
            arguments.append([len(outputs)])
            outputs.append((shape, dtype))
            begins.append(begin)
            order.append(p.name)
        grid, kernel, rule = d.grid(self.grid), d.compiled, self._part_rule(d, order)
        if self.lanes is not None:
            kernel, arguments, outputs, grid, rule = self._over_lanes(d, arguments, outputs, grid, rule)
        names = [p.name for p in d.params]
        if self.lanes is not None:
            names += [f"{p.name} lane" for p, a in zip(d.params, self.flags) if a]
        results = kernel_call(kernel, tuple(arguments), tuple(outputs), grid, tuple(begins), rule and rule.tuple(names, order))
        return dict(zip(order, results))

    def _over_lanes(self, d, arguments, outputs, grid, rule):
        """The same launch with lanes on an axis of programs that the kernel leaves."""
        axis = self.lane_axis
        self.flags = [isinstance(a, list) or (isinstance(a, EagerTensor) and id(a) in self.in_lanes) for a in arguments]
        key = (d, tuple(self.flags), axis)
        if key not in self.op._lane_kernels:
            self.op._lane_kernels[key] = kernel_lanes(d.compiled, tuple(self.flags), axis)
        shapes = {}
        for p, a, f in zip(d.params, arguments, self.flags):
            shapes[p.name] = tuple(outputs[a[0]][0]) if isinstance(a, list) else tuple(a.shape)[int(f) :] if isinstance(a, EagerTensor) else ()
        flags = {p.name: f for p, f in zip(d.params, self.flags)}
        lengths = [_count(shapes[n]) for n, f in flags.items() if f]
        if rule is None:
            rule = lanes_only(flags, shapes, axis, self.lanes, grid)
        else:
            own, rule = rule, rule.with_lanes(flags, axis, self.lanes, grid)
            rule.numbers.update({f"{n} lane": math.prod(own.shape(n, shapes[n])) for n, f in flags.items() if f})
        outputs = [((self.lanes, *shape), dtype) for shape, dtype in outputs]
        grid = (*grid[:axis], self.lanes)
        return self.op._lane_kernels[key], [*arguments, *lengths], outputs, grid, rule

    def _part_rule(self, d, made):
        """How the launch of a derivative can be cut: as the operation's own rule has it. A gradient is summed
        over the factors that it does not have."""
        own = self.op._part_rule(self.bound, self.specs, self.compiled)
        if own is None or any(p.role in ("tape", "local", "trips", "owner") for p in d.params) or self.op._deterministic:
            return None
        dims, numbers, sums = {}, dict(own.numbers), []
        for p in d.params:
            name = self.run_time[p.param] if p.param >= 0 else p.name
            if p.role == "length":
                numbers[p.name] = math.prod(own.shape(name, self._shape(name)))
            elif p.role == "programs":
                if own.grid is None:
                    return None
                numbers[p.name] = own.grid[0]
            elif name in own.dims:
                dims[p.name] = own.dims[name]
            if p.role == "gradient":
                sums.append(p.name)
        band, grid = d.band(self.grid), own.grid
        if band > 1 and grid is None:
            return None
        if band > 1:
            grid = (-(-grid[0] // band), *grid[1:])
        kinds = [(size, _PASS if kind != _WHOLE else kind) for size, kind in own.factors]
        return PartRule(kinds, dims, numbers, grid, sums)

    def _lane(self, i, tensors, sizes):
        """Lane i of vmap, of those that have lanes."""
        return [x if not isinstance(x, EagerTensor) or not x.batch_dims else self.op._flat(x, sizes)[i] for x in tensors]

    def _in_lanes(self, one, extra, count_of_results):
        """Under vmap: lanes are one more axis of programs, or lane after lane where the kernel leaves none.
        one(rules, tensors in place of `extra`) gives tensors or None."""
        sizes = [1] * self.depth
        for v in (*self.bound.values(), *extra):
            if isinstance(v, EagerTensor):
                for i, n in enumerate(v.physical_shape[: v.batch_dims]):
                    at = self.depth - v.batch_dims + i
                    sizes[at] = int(n) if int(n) != 1 else sizes[at]
        if math.prod(sizes):
            made = self._at_once(one, extra, sizes)
            if made is not None:
                return made
        rows = []
        for i in range(math.prod(sizes)):
            keys = list(self.kwargs)
            given = self._lane(i, (*self.primals, *(self.kwargs[k] for k in keys)), sizes)
            rules = KernelRules(self.op, given[: len(self.primals)], dict(zip(keys, given[len(self.primals) :])))
            rows.append(one(rules, self._lane(i, extra, sizes)))
        columns = zip(*rows) if rows else [()] * count_of_results
        return tuple(None if not c or c[0] is None else self._stacked(c, sizes) for c in columns)

    def _at_once(self, one, extra, sizes):
        """All lanes in one launch; None: the kernel leaves no axis of programs for them."""
        keys, count = list(self.kwargs), math.prod(sizes)
        flat, lanes = {}, {}

        def lane(x):
            if not isinstance(x, EagerTensor) or not x.batch_dims:
                return x
            like = EagerTensor.zeros(tuple(x.shape), dtype=x.dtype)
            flat[id(like)] = like, self.op._flat(x, sizes)
            return like

        given = [lane(x) for x in (*self.primals, *(self.kwargs[k] for k in keys))]
        rules = KernelRules(self.op, given[: len(self.primals)], dict(zip(keys, given[len(self.primals) :])))
        rules._prepare()
        grid = rules.grid
        used = max(len(grid) - next((i for i, n in enumerate(reversed(grid)) if n != 1), len(grid)), rules.compiled.ir.naxes, 1)
        if used > 2 or not all(isinstance(n, int) for n in grid):
            return None
        rules.lanes, rules.lane_axis, rules.in_lanes = count, used, lanes
        rules.swap = lambda x: rules._with_lanes(x, flat)
        results = one(rules, [lane(x) for x in extra])
        return tuple(None if x is None else tensor_ops["alias"](x.reshape((*sizes, *x.shape[1:])), self.depth) for x in results)

    def _with_lanes(self, x, flat):
        """The tensor with lanes that x stands for; x itself if it has none."""
        if id(x) not in flat:
            return x
        x = flat[id(x)][1]
        self.in_lanes[id(x)] = x
        return x

    def _every_lane(self, x):
        """x, with a copy for each lane if it has none."""
        if self.lanes is None or id(x) in self.in_lanes:
            return x
        x = tensor_ops["broadcast_to"](x, (self.lanes, *x.shape))
        self.in_lanes[id(x)] = x
        return x

    def _as_type(self, x, dtype):
        if x.dtype == dtype:
            return x
        y = x.astype(dtype)
        if id(x) in self.in_lanes:
            self.in_lanes[id(y)] = y
        return y

    def _stacked(self, column, sizes):
        x = tensor_ops["stack"](list(column), axis=0)
        return tensor_ops["alias"](x.reshape((*sizes, *x.shape[1:])), self.depth)

    # ---- rules ----

    def _tensors(self):
        """Float tensors that the kernel reads."""
        return [
            n
            for n in self.run_time
            if n in self.bound and isinstance(self.bound[n], EagerTensor) and _is_float(self.bound[n].dtype) and self.reads[n]
        ]

    def _given(self, d, outputs):
        arrays = {}
        outs = dict(zip(self.op._outputs, outputs))
        for p in d.params:
            if p.role == "given" and (p.name in outs or p.name in self.bound):
                arrays[p.name] = self.swap(outs.get(p.name, self.bound.get(p.name)))
        return arrays

    def vjp(self, cotangents, outputs):
        lanes = max((x.batch_dims for x in (*cotangents, *outputs) if isinstance(x, EagerTensor)), default=0)
        self.depth = max(self.depth, lanes)
        if self.depth:
            n = len(cotangents)
            return self._in_lanes(lambda r, extra: r.vjp(tuple(extra[:n]), tuple(extra[n:])), (*cotangents, *outputs), len(self.primals))
        self._prepare()
        given = dict(zip(self.op._outputs, cotangents))
        of = [n for n, (_, dtype) in self.specs.items() if _is_float(dtype) and given.get(n) is not None]
        wrt = self._tensors()
        grads = {}
        if of and wrt:
            d = self._derivative(wrt, of, False)
            arrays, made = self._given(d, outputs), {}
            for p in d.params:
                name = self.run_time[p.param] if p.param >= 0 else None
                if p.role == "cotangent":
                    ct = self._as_type(self.swap(given[name]), self.specs[name][1])
                    if p.consumed:
                        made[p.name] = (self._shape(name), p.dtype, self._every_lane(ct))
                    else:
                        arrays[p.name] = ct
                elif p.role == "gradient":
                    shape = self._shape(name)
                    parts = (math.prod(self.grid),) if self.op._deterministic else ()
                    made[p.name] = ((*parts, *shape), p.dtype, "zero")
            results = self._launch(d, arrays, made)
            for p in d.params:
                if p.role == "gradient":
                    name, g = self.run_time[p.param], results[p.name]
                    g = g.sum(axis=0 if self.lanes is None else 1) if self.op._deterministic else g
                    grads[name] = g.astype(self.bound[name].dtype) if g.dtype != self.bound[name].dtype else g
        return tuple(grads.get(n) for n in self.names[: len(self.primals)])

    def jvp(self, tangents, outputs):
        lanes = max((x.batch_dims for x in (*tangents, *outputs) if isinstance(x, EagerTensor)), default=0)
        self.depth = max(self.depth, lanes)
        if self.depth:
            n = len(tangents)
            return self._in_lanes(lambda r, extra: r.jvp(tuple(extra[:n]), tuple(extra[n:])), (*tangents, *outputs), len(self.op._outputs))
        self._prepare()
        given = {n: t for n, t in zip(self.names, tangents) if isinstance(t, EagerTensor)}
        wrt = [n for n in self._tensors() if n in given]
        of = [n for n, (_, dtype) in self.specs.items() if _is_float(dtype)]
        if not wrt or not of:
            return (None,) * len(self.op._outputs)
        d = self._derivative(wrt, of, True)
        arrays, made = self._given(d, ()), {}
        for name, spec in self.specs.items():
            made[name] = (*spec, None)
        for p in d.params:
            name = self.run_time[p.param] if p.param >= 0 else None
            if p.role == "tangent":
                arrays[p.name] = self._as_type(self.swap(given[name]), self.bound[name].dtype)
            elif p.role == "result_tangent":
                made[p.name] = (self._shape(name), p.dtype, "zero")
        results = self._launch(d, arrays, made)
        tangent_of = {self.run_time[p.param]: results[p.name] for p in d.params if p.role == "result_tangent"}
        return tuple(tangent_of.get(n) for n in self.op._outputs)
