"""Machines that programs are predicted for: Machine, the numbers of one; machines, some of data sheets;
measure_machine, which measures this one."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Mapping

import numpy as np

from eas._eas import mesh_devices

from .spec import PartitionSpec

__all__ = ["Machine", "machines", "measure_machine"]


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


# ---- timing ----

# Each program is timed for this long, in this many turns. The programs alternate, so that what disturbs the
# machine for a moment (threads that the system has not spread over the CPUs yet, other processes) meets a few
# turns of each program, and not all turns of one.
SECONDS, TURNS = 0.16, 12


class _Timed:
    """A function with its arguments, and the least time of a run so far.

    In one process a run ends when all devices are done, so single runs are timed. In a job a rank's run may
    end while other ranks have not begun theirs: where ranks share CPUs, the time of its own run is that of a
    CPU which it has to itself. So the ranks run equally often between two barriers, and the time of the rank
    that left the first barrier first is divided by the number of runs: the share of the machine that a rank
    gets."""

    def __init__(self, f, *args):
        from .. import distributed as dist

        self._f, self._args, self.seconds = f, args, math.inf
        self._job = dist.size() > 1
        self._runs(2)
        if self._job:
            self._often = max(2, min(10000, math.ceil(SECONDS / TURNS / max(self._longest(self._runs(3) / 3), 1e-7))))

    def _longest(self, seconds):
        from .. import distributed as dist

        return float(dist.all_reduce(np.array([seconds]), op="max")[0])

    def _runs(self, n):
        begin = time.perf_counter()
        for _ in range(n):
            out = self._f(*self._args)
        took = time.perf_counter() - begin
        del out
        return took

    def turn(self):
        from .. import distributed as dist

        if self._job:
            dist.barrier()
            begin = time.perf_counter()
            self._runs(self._often)
            dist.barrier()
            self.seconds = min(self.seconds, self._longest(time.perf_counter() - begin) / self._often)
            return
        begin, runs = time.perf_counter(), 0
        while runs < 2 or time.perf_counter() - begin < SECONDS / TURNS:
            self.seconds = min(self.seconds, self._runs(1))
            runs += 1


def _chain(x):
    from ..ops.unary import exp

    for _ in range(8):
        x = exp(x * 0.5) - 1.0
    return x


SIDE, ROWS = 384, 1024  # of a device's part in a product; of 1024 elements, in element-wise programs
FEW, MANY = 16, 1 << 18  # elements that a device gives to an all_gather


def _programs(mesh):
    """What is timed: {name: program}."""
    from ..core.tensor import Tensor
    from ..transforms.compile import compile

    n = 1 if mesh is None else mesh.size
    axes = () if mesh is None else tuple(mesh.axis_names)

    def put(a, *spec):
        x = Tensor.constant(a)
        return x if mesh is None else x.shard(mesh, PartitionSpec(*spec)).realize()

    def ones(*shape):
        return np.ones(shape, np.float32)

    def program(f, *args):
        return _Timed(compile(f), *args)

    add = lambda x: x + 1  # noqa: E731
    big = put(ones(n * ROWS, 1024), axes)
    programs = {"call": program(add, put(ones(n * 8, 8), axes)), "memory": program(add, big), "elementwise": program(_chain, big)}
    rows = np.random.default_rng(0).standard_normal((n * SIDE, SIDE)).astype(np.float32)
    for name, dt in (("f32", np.float32), ("f64", np.float64), ("f16", np.float16)):
        programs[name] = program(lambda x, w: x @ w, put(rows.astype(dt), axes), put(rows[:SIDE].astype(dt)))
    for axis in axes:
        k = mesh.get_axis_size(axis)
        for count in (FEW, MANY) if k > 1 else ():
            programs[axis, count] = program(lambda x: x.shard(mesh, PartitionSpec()), put(ones(k * count), axis))
    return programs


def _time(programs):
    for _ in range(TURNS):
        for p in programs:
            p.turn()


def _measure(mesh):
    programs = _programs(mesh)
    _time(programs.values())
    call = programs["call"].seconds
    took = {name: max(p.seconds - call, 1e-7) for name, p in programs.items()}
    speeds = [2 * SIDE**3 / took[name] for name in ("f32", "f64", "f16")]
    elements = ROWS * 1024
    launch = call * 0.1
    links = [[5e-6, 25e9]] if mesh is None else [_link(mesh, axis, took) for axis in mesh.axis_names]
    return Machine(*speeds, 8 * 14 * elements / took["elementwise"], 8 * elements / took["memory"], launch, call - launch, 0.0, 0.0, False, links)


def _link(mesh, axis, took):
    """Two sizes of an all_gather along one axis give latency and bandwidth."""
    n = mesh.get_axis_size(axis)
    if n == 1:
        return [1e-6, 100e9]
    few, many = took[axis, FEW], took[axis, MANY]
    return [few / (n - 1), (n - 1) * (MANY - FEW) * 4 / max(many - few, 1e-7)]


# ---- this machine ----


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
