"""Predictions for meshes that need not exist: simulate, and the machines it is told about; auto_shard, which
chooses layouts by them."""

import dataclasses
import functools
import itertools
import json
import math
import os
import time
from collections.abc import Mapping

from eas._eas import EagerTensor, abstract_tensor, mesh_devices, simulate_events, simulate_trace
from eas._eas import auto_inner as _auto_inner
from eas._eas import auto_shard as _auto
from eas._eas import simulate as _simulate

from .spec import DeviceMesh, DimSpec, PartitionSpec, ShardingSpec, create_replicated_spec

__all__ = ["AutoPlan", "Machine", "Simulation", "abstract", "auto_shard", "machines", "measure_machine", "simulate"]


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device and the links between devices: floating-point operations per second of matrix products (f32,
    f64, 16 bits), operations per second of element-wise code, bytes per second of memory, seconds that a
    kernel takes at least and that a run takes besides, bytes of memory (0: not limited), how many devices
    compute at the same time (0: all), whether collectives run beside kernels, and the link between devices:
    (latency in seconds, bandwidth in bytes per second), or such a pair for each axis of the mesh by its name.
    """

    product_f32: float
    product_f64: float
    product_f16: float
    elementwise: float
    memory_bandwidth: float
    launch: float = 5e-6
    call: float = 0.0
    memory: float = 0.0
    cores: float = 0.0
    overlap: bool = False
    link: object = (5e-6, 25e9)

    def _tuple(self, mesh):
        links = []
        for axis in mesh.axis_names:
            pair = self.link[axis] if isinstance(self.link, Mapping) and axis in self.link else self.link
            if isinstance(pair, Mapping):
                raise ValueError(f"simulate: link has nothing for axis {axis!r} of the mesh; it has {sorted(pair)}")
            latency, bandwidth = (float(v) for v in pair)
            if latency < 0 or not bandwidth > 0:
                raise ValueError(f"simulate: a link is (latency in seconds, bandwidth in bytes per second), got {pair!r}")
            links.append((latency, bandwidth))
        numbers = [getattr(self, f.name) for f in dataclasses.fields(self)][:-2]
        return (*map(float, numbers), bool(self.overlap), links)


# What the makers' data sheets say of one device, dense products without sparsity; half of it is a usual
# yield, see Machine and dataclasses.replace.
machines = {
    "a100": Machine(19.5e12, 9.7e12, 312e12, 19.5e12, 2.0e12, 4e-6, 0.0, 80e9, 0.0, True, (8e-6, 300e9)),
    "h100": Machine(67e12, 34e12, 989e12, 67e12, 3.35e12, 4e-6, 0.0, 80e9, 0.0, True, (8e-6, 450e9)),
}

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


# ---- this machine ----


def _seconds(f, *args):
    """The shortest of some runs of a compiled function; in a job every process runs it equally often."""
    from .. import distributed as dist
    from ..transforms.compile import compile

    f = compile(f)
    out = f(*args)
    best, begin, k = math.inf, time.perf_counter(), 0
    while k < 9 or (k < 25 and dist.size() == 1 and time.perf_counter() - begin < 0.4):
        t = time.perf_counter()
        out = f(*args)
        best = min(best, time.perf_counter() - t)
        k += 1
    del out
    return best


def _measure(mesh):
    import numpy as np

    from ..core.tensor import Tensor
    from ..ops.unary import exp

    n = 1 if mesh is None else mesh.size
    axes = () if mesh is None else tuple(mesh.axis_names)
    cut = (lambda x: x) if mesh is None else (lambda x: x.shard(mesh, PartitionSpec(axes)).realize())
    rows = np.random.default_rng(0).standard_normal((n * 384, 384)).astype(np.float32)
    one = cut(Tensor.constant(np.ones((n * 8, 8), np.float32)))
    call = _seconds(lambda x: x + 1, one)
    speed = {}
    for name, dt in (("f32", np.float32), ("f64", np.float64), ("f16", np.float16)):
        x, w = cut(Tensor.constant(rows.astype(dt))), Tensor.constant(rows[:384].astype(dt))
        w = w if mesh is None else w.shard(mesh, PartitionSpec()).realize()
        took = _seconds(lambda x, w: x @ w, x, w) - call
        speed[name] = 2 * 384**3 / max(took, 1e-7)
    big = cut(Tensor.constant(np.ones((n * 1024, 1024), np.float32)))
    memory = 8 * 2**20 / max(_seconds(lambda x: x + 1, big) - call, 1e-7)

    def chain(x):
        for _ in range(8):
            x = exp(x * 0.5) - 1.0
        return x

    other = 8 * 14 * 2**20 / max(_seconds(chain, big) - call, 1e-7)
    launch = call * 0.1
    link = [[5e-6, 25e9]] if mesh is None else [_measure_link(mesh, a, call) for a in axes]
    return Machine(speed["f32"], speed["f64"], speed["f16"], other, memory, launch, call - launch, 0.0, 0.0, False, link)


def _measure_link(mesh, axis, call):
    """Two sizes of an all_gather along one axis give latency and bandwidth."""
    import numpy as np

    from ..core.tensor import Tensor

    n = mesh.get_axis_size(axis)
    if n == 1:
        return [1e-6, 100e9]

    def took(count):
        x = Tensor.constant(np.ones((n * count,), np.float32)).shard(mesh, PartitionSpec(axis)).realize()
        return max(_seconds(lambda x: x.shard(mesh, PartitionSpec()), x) - call, 1e-7), (n - 1) * count * 4

    (small, few), (large, many) = took(16), took(1 << 18)
    bandwidth = (many - few) / max(large - small, 1e-7)
    return [max(small / (n - 1), 1e-7), bandwidth]


def _place(mesh):
    from eas._eas import cache_dir  # the folder of compiled kernels; "": there is none

    folder = cache_dir()
    first, count = (0, 1) if mesh is None else mesh_devices(mesh)
    name = "one" if mesh is None else "x".join(map(str, mesh.shape)) + ("-ranks" if count < mesh.size else "-threads")
    return os.path.join(folder, f"machine-{name}.json") if folder else None


_known = {}


def _stored(path):
    try:
        with open(path) as f:
            return Machine(**json.load(f))
    except (ValueError, TypeError, OSError):
        return None  # not there, of another version, or cut short: measured anew


def _agreed(machine, axes):
    """The first process's numbers in every process: layouts that are chosen by them must be the same. None if
    the first process has none."""
    import numpy as np

    from .. import distributed as dist

    if dist.size() == 1:
        return machine
    fields = [f.name for f in dataclasses.fields(Machine)][:-1]
    flat = np.zeros(1 + len(fields) + 2 * axes)
    if machine is not None:
        flat[0], flat[1 : 1 + len(fields)], flat[1 + len(fields) :] = 1, [float(getattr(machine, n)) for n in fields], np.ravel(machine.link)
    flat = dist.broadcast(flat, root=0)
    if not flat[0]:
        return None
    values = dict(zip(fields, map(float, flat[1:])))
    links = flat[1 + len(fields) :].reshape(-1, 2).tolist()
    return Machine(**{**values, "overlap": bool(values["overlap"])}, link=links)


def measure_machine(mesh=None, again=False):
    """The numbers of this machine, as simulate needs them. With a mesh: of a device of it while all of them
    work, and of its links; without one, of one device. Measured once and kept in the cache folder; again=True
    measures anew. In a job of several processes all of them call it, and get the first one's numbers."""
    key = None if mesh is None else mesh.shape
    if key not in _known or again:
        path = _place(mesh)
        axes = 1 if mesh is None else len(mesh.shape)
        found = _agreed(_stored(path) if path and not again else None, axes)
        if found is None:
            found = _agreed(_measure(mesh), axes)
            if path:
                _store(path, found)
        _known[key] = found
    links = [tuple(v) for v in _known[key].link]
    return dataclasses.replace(_known[key], link=links[0] if mesh is None else dict(zip(mesh.axis_names, links)))


def _store(path, machine):
    own = f"{path}.{os.getpid()}"
    try:
        with open(own, "w") as f:
            json.dump(dataclasses.asdict(machine), f)
        os.replace(own, path)
    except OSError:
        pass  # a folder that cannot be written: measured again next time


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
