"""Predictions for meshes that need not exist: simulate; auto_shard, which chooses layouts by them."""

import dataclasses
import functools
import itertools

from eas._eas import EagerTensor, abstract_tensor, simulate_events, simulate_trace
from eas._eas import auto_inner as _auto_inner
from eas._eas import auto_shard as _auto
from eas._eas import simulate as _simulate

from .machine import Machine, machines, measure_machine
from .spec import DeviceMesh, DimSpec, PartitionSpec, ShardingSpec, create_replicated_spec

__all__ = ["AutoPlan", "Simulation", "abstract", "auto_shard", "simulate"]


_numbers = itertools.count()


def _spec_of(sharding, rank, mesh):
    if sharding is None or isinstance(sharding, ShardingSpec):
        return sharding
    if mesh is None:
        raise ValueError("abstract: a PartitionSpec names axes of a mesh; pass mesh=")
    return sharding.to_spec(mesh, rank) if isinstance(sharding, PartitionSpec) else ShardingSpec(mesh, sharding)


def abstract(shape, dtype="f32", sharding=None, mesh=None):
    """A tensor without data, to call functions with that are only looked at (simulate, auto_shard,
    explain_sharding): of any size, it takes no memory. sharding: a ShardingSpec, or a PartitionSpec with
    mesh."""
    shape = tuple(int(n) for n in ((shape,) if isinstance(shape, int) else shape))
    return abstract_tensor(next(_numbers), shape, dtype, _spec_of(sharding, len(shape), mesh))


def _on(spec, mesh):
    """The same axes on another mesh."""
    if spec is None or spec.mesh == mesh:
        return spec
    for d in spec.dim_specs:
        for a in d.axes:
            if a not in mesh.axis_names:
                raise ValueError(f"simulate: an argument is cut along {a!r}, which is no axis of mesh {mesh.name!r}: {mesh.axis_names}")
    return ShardingSpec(mesh, [DimSpec(d.axes) for d in spec.dim_specs])


def _stand_in(x, mesh):
    return abstract_tensor(next(_numbers), tuple(int(n) for n in x.shape), x.dtype, _on(x.sharding, mesh)) if isinstance(x, EagerTensor) else x


def _traced(fn, mesh, args, kwargs):
    """The results of a function of tensors without data, and these tensors."""
    from ..core.pytree import tensor_leaves, tree_flatten, tree_unflatten
    from ..transforms.compile import CompiledFunction

    if isinstance(fn, AutoSharded):
        fn = fn.__wrapped__
    if isinstance(fn, CompiledFunction):
        fn = fn.__wrapped__
    leaves, treedef = tree_flatten((args, kwargs))
    inner = [_stand_in(x, mesh) for x in leaves]
    a, k = tree_unflatten(treedef, inner)
    outs = list(tensor_leaves(fn(*a, **k)))
    return outs, [x for x in inner if isinstance(x, EagerTensor)]


class Simulation:
    """What simulate predicts for each device: .time, .compute, .communication (seconds), .flops, .memory
    (bytes, at most), .arguments, .results, .kernels, .collectives ({name: (calls, bytes sent, seconds)}),
    .traffic (bytes that a device sends). print() shows a table, trace(path) writes a file for Perfetto
    (ui.perfetto.dev), events lists kernels and collectives."""

    def __init__(self, mesh, machine, fields, table, handle):
        self.mesh, self.machine, self._table, self._handle = mesh, machine, table, handle
        for k, v in fields.items():
            setattr(self, k, v)

    @property
    def traffic(self):
        return sum(sent for _, sent, _ in self.collectives.values())

    @property
    def events(self):
        """(name, lane, start, seconds, flops, bytes, memory) of each; lane 0: kernels, 1: collectives, 2:
        whole loops."""
        return simulate_events(self._handle)

    def trace(self, path):
        """Writes the run of a device for Perfetto or chrome://tracing."""
        simulate_trace(self._handle, path)

    def __str__(self):
        return self._table.rstrip("\n")

    __repr__ = __str__


def _machine(machine, mesh, link):
    if isinstance(machine, str):
        if machine not in machines:
            raise ValueError(f"simulate: machine is one of {', '.join(map(repr, machines))} or a Machine, got {machine!r}")
        machine = machines[machine]
    if machine is None:
        machine = measure_machine(None if mesh.size > 8 or link is not None else mesh)
    if not isinstance(machine, Machine):
        raise TypeError(f"simulate: machine is a Machine or the name of one, got {type(machine).__name__}")
    return machine if link is None else dataclasses.replace(machine, link=link)


def simulate(fn, mesh, *args, link=None, machine=None, **kwargs):
    """Predicts time, memory and traffic of fn(*args) on each device of a mesh, which need not exist and may
    have thousands of devices. Nothing runs.

    args: tensors, whose data is not looked at, or eager.abstract(shape, dtype, sharding), which have none. fn
    may also be a tensor, or a list of tensors, that were not computed yet. machine: a Machine, or the name of
    one in eager.sharding.machines; otherwise this machine is measured, once, and the numbers are kept in the
    cache. link: (latency, bandwidth) between devices, or {axis: (latency, bandwidth)}."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"simulate: mesh is a DeviceMesh, got {type(mesh).__name__}")
    machine = _machine(machine, mesh, link)
    if callable(fn) and not isinstance(fn, EagerTensor):
        outs, _ = _traced(fn, mesh, args, kwargs)
    else:
        from ..core.pytree import tensor_leaves

        outs = list(tensor_leaves((fn, args, kwargs)))
    return Simulation(mesh, machine, *_simulate(outs, mesh, machine._tuple(mesh)))


# ---- layouts ----


class AutoPlan:
    """What auto_shard chose: .specs, a ShardingSpec for each tensor among the arguments, in their order;
    seconds that the model predicts for the layouts that were given (.given), for whole tensors (.replicated)
    and for these (.time)."""

    def __init__(self, mesh, specs, seconds):
        self.mesh, self.specs = mesh, specs
        self.given, self.replicated, self.time = seconds

    def __str__(self):
        def text(s):
            return "P(" + ", ".join("None" if not d.axes else repr(d.axes[0]) if len(d.axes) == 1 else repr(tuple(d.axes)) for d in s.dim_specs) + ")"

        lines = [f"mesh {self.mesh.name!r}: {self.time:.3g} s, whole tensors {self.replicated:.3g} s"]
        return "\n".join([*lines, *(f"  tensor {i}: {text(s)}" for i, s in enumerate(self.specs))])

    __repr__ = __str__


def auto_shard(fn, mesh, *args, link=None, machine=None, start=None, **kwargs):
    """Chooses how the arguments of a function lie on a mesh, so that fn(*args) takes least time by the
    numbers of a machine and fits its memory. fn needs no annotations; those that it has stay. start: layouts
    to begin with, a spec for each tensor. The result is never worse, by the model, than start, than whole
    tensors, and than the batch cut over the devices. Arguments: as of simulate."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"auto_shard: mesh is a DeviceMesh, got {type(mesh).__name__}")
    machine = _machine(machine, mesh, link)
    outs, inner = _traced(fn, mesh, args, kwargs)
    begin = None
    if start is not None:
        start = list(start)
        if len(start) != len(inner):
            raise ValueError(f"auto_shard: {len(start)} layouts to begin with for {len(inner)} tensors")
        begin = [create_replicated_spec(mesh, len(x.shape)) if s is None else _spec_of(s, len(x.shape), mesh) for s, x in zip(start, inner)]
    specs, seconds = _auto(outs, inner, mesh, machine._tuple(mesh), begin)
    return AutoPlan(mesh, specs, seconds)


class AutoSharded:
    """What compile(auto_shard=mesh) gives: layouts are chosen at the first call with each kind of arguments;
    then the arguments are laid out so, and the function is compiled for that."""

    def __init__(self, fn, mesh, options, machine=None):
        from ..transforms.compile import compile

        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"compile: auto_shard is a DeviceMesh, got {type(mesh).__name__}")
        functools.update_wrapper(self, fn, updated=())
        self._compiled = compile(fn, **options)
        self.mesh, self._machine, self._numbers, self.plans = mesh, machine, None, {}

    @property
    def stats(self):
        return self._compiled.stats

    def plan(self, *args, **kwargs):
        """The layouts for such arguments: an AutoPlan."""
        from ..core.pytree import tree_flatten

        leaves, treedef = tree_flatten((args, kwargs))
        key = (str(treedef), tuple((tuple(int(n) for n in x.shape), str(x.dtype)) if isinstance(x, EagerTensor) else (type(x), repr(x)) for x in leaves))
        if key not in self.plans:
            # the present layouts of arguments are only the start of the search
            begin = [x.sharding if x.sharding is not None and x.sharding.mesh == self.mesh else None for x in leaves if isinstance(x, EagerTensor)]
            plain = [abstract_tensor(next(_numbers), tuple(int(n) for n in x.shape), x.dtype, None) if isinstance(x, EagerTensor) else x for x in leaves]
            from ..core.pytree import tree_unflatten

            a, k = tree_unflatten(treedef, plain)
            self.plans[key] = auto_shard(self.__wrapped__, self.mesh, *a, machine=self._machine, start=begin, **k)
        return self.plans[key]

    def __call__(self, *args, **kwargs):
        from ..core.pytree import tree_flatten, tree_unflatten

        specs = iter(self.plan(*args, **kwargs).specs)
        leaves, treedef = tree_flatten((args, kwargs))
        placed = [_placed(x, next(specs)) if isinstance(x, EagerTensor) else x for x in leaves]
        a, k = tree_unflatten(treedef, placed)
        if self._numbers is None:
            self._numbers = _machine(self._machine, self.mesh, None)._tuple(self.mesh)
        _auto_inner(self.mesh, self._numbers)  # if this call makes a program, layouts inside it are chosen, too
        try:
            return self._compiled(*a, **k)
        finally:
            _auto_inner(self.mesh, None)


def _placed(x, spec):
    old = x.sharding
    if old is not None and old.mesh == spec.mesh and [d.axes for d in old.dim_specs] == [d.axes for d in spec.dim_specs]:
        return x
    if old is None and spec.is_fully_replicated():
        return x
    if old is not None and old.mesh != spec.mesh:
        x = x.gather()
    return x.shard(spec.mesh, spec.dim_specs)
