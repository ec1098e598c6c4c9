"""Meshes and specs: the `sharding` of tensors."""

import math

from eas._eas import dist_is_job, mesh_register

__all__ = ["DeviceMesh", "DimSpec", "P", "PartitionSpec", "ShardingSpec", "create_replicated_spec"]


class DeviceMesh:
    """Devices in a grid with named axes. fast=True: sums over its devices may be combined in any order, by
    whichever algorithm is quickest; without it they have the same bits in threads and over MPI, in every
    run."""

    def __init__(self, name, shape, axis_names, devices=None, *, fast=False):
        self.name, self.shape, self.axis_names, self.fast = name, tuple(shape), tuple(axis_names), bool(fast)
        if len(self.shape) != len(self.axis_names):
            raise ValueError(f"DeviceMesh '{name}': {len(self.shape)} sizes and {len(self.axis_names)} axis names")
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(f"DeviceMesh '{name}': axis names must differ, got {self.axis_names}")
        if any(n < 1 for n in self.shape):
            raise ValueError(f"DeviceMesh '{name}': sizes must be at least 1, got {self.shape}")
        count = math.prod(self.shape)
        self.devices = list(range(count)) if devices is None else list(devices)
        if len(self.devices) != count:
            raise ValueError(f"DeviceMesh '{name}': {count} devices are wanted, got {len(self.devices)}")

    @property
    def _number(self):
        """The number by which libeas knows the mesh."""
        if self.__dict__.get("_known") is None:
            if dist_is_job():  # under mpirun the devices are the ranks; an exception in one must reach the others
                from .. import distributed

                distributed.init()
            self._known = mesh_register(self.name, self.shape, self.axis_names, self.fast, self._first_rank() if dist_is_job() else 0)
            _MESHES.setdefault(self._known, self)
        return self._known

    def _first_rank(self):
        """In a job of several ranks: the rank of the mesh's first device, since its devices are consecutive
        ranks."""
        first = self.devices[0]
        if self.devices != list(range(first, first + len(self.devices))) if isinstance(first, int) else True:
            raise ValueError(f"DeviceMesh '{self.name}': under mpirun devices are ranks one after another, such as devices=range(2, 4); got {self.devices}")
        return first

    def __getstate__(self):
        # in another process the mesh has other numbers
        return {k: v for k, v in self.__dict__.items() if k != "_known"}

    @property
    def size(self):
        return math.prod(self.shape)

    @property
    def is_distributed(self):
        """Are they different devices? (A mesh may name one device many times.)"""
        return len({str(d) for d in self.devices}) > 1 and not all(isinstance(d, int) for d in self.devices)

    def get_axis_size(self, name):
        if name not in self.axis_names:
            raise ValueError(f"mesh '{self.name}' has no axis '{name}'; its axes are {self.axis_names}")
        return self.shape[self.axis_names.index(name)]

    def __eq__(self, o):
        return isinstance(o, DeviceMesh) and (self.name, self.shape, self.axis_names, self.devices, self.fast) == (o.name, o.shape, o.axis_names, o.devices, o.fast)

    def __hash__(self):
        return hash((self.name, self.shape, self.axis_names))

    def __repr__(self):
        return f"DeviceMesh({self.name!r}, {self.shape}, {self.axis_names}{', fast=True' if self.fast else ''})"


_MESHES = {}


def _mesh_of(number):
    return _MESHES[number]


class DimSpec:
    """The mesh axes that one dim is cut along, outermost first. Open: more may be added by propagation;
    priority: 0 goes first."""

    __slots__ = ("axes", "is_open", "priority")

    def __init__(self, axes=(), is_open=False, priority=0):
        self.axes = [axes] if isinstance(axes, str) else list(axes or ())
        self.is_open, self.priority = is_open, priority
        if priority < 0:
            raise ValueError(f"DimSpec: priority must not be negative, got {priority}")

    @classmethod
    def from_raw(cls, raw):
        """From a DimSpec, None, a name, or a sequence of names."""
        return raw if isinstance(raw, DimSpec) else cls(raw or ())

    def is_replicated(self):
        return not self.axes

    def __eq__(self, o):
        return isinstance(o, DimSpec) and (self.axes, self.is_open, self.priority) == (o.axes, o.is_open, o.priority)

    def __hash__(self):
        return hash((tuple(self.axes), self.is_open, self.priority))

    def __repr__(self):
        return f"DimSpec({self.axes}{', is_open=True' if self.is_open else ''}{f', priority={self.priority}' if self.priority else ''})"


class ShardingSpec:
    """How a tensor lies on a mesh: a DimSpec for each dim, axes it is not to be cut along, axes along which
    parts are still to be summed."""

    def __init__(self, mesh, dim_specs, replicated_axes=(), partial_sum_axes=()):
        self.mesh = mesh
        self.dim_specs = [DimSpec.from_raw(d) for d in dim_specs]
        self.replicated_axes, self.partial_sum_axes = set(replicated_axes or ()), set(partial_sum_axes or ())
        used = [a for d in self.dim_specs for a in d.axes] + list(self.replicated_axes) + list(self.partial_sum_axes)
        for a in used:
            if a not in mesh.axis_names:
                raise ValueError(f"ShardingSpec: mesh '{mesh.name}' has no axis '{a}'; its axes are {mesh.axis_names}")
        twice = {a for a in used if used.count(a) > 1}
        if twice:
            raise ValueError(f"ShardingSpec: mesh axes are used twice: {sorted(twice)}")

    def is_fully_replicated(self):
        return all(d.is_replicated() for d in self.dim_specs) and not self.partial_sum_axes

    def clone(self):
        dims = [DimSpec(list(d.axes), d.is_open, d.priority) for d in self.dim_specs]
        return ShardingSpec(self.mesh, dims, self.replicated_axes, self.partial_sum_axes)

    def _key(self):
        return (self.mesh, tuple(self.dim_specs), frozenset(self.replicated_axes), frozenset(self.partial_sum_axes))

    def __eq__(self, o):
        return isinstance(o, ShardingSpec) and self._key() == o._key()

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        more = f", replicated_axes={sorted(self.replicated_axes)}" if self.replicated_axes else ""
        more += f", partial_sum_axes={sorted(self.partial_sum_axes)}" if self.partial_sum_axes else ""
        return f"ShardingSpec({self.mesh!r}, {self.dim_specs}{more})"


class PartitionSpec(tuple):
    """P("data", None, ("x", "y")): for each dim the mesh axes it is cut along."""

    def __new__(cls, *entries):
        return super().__new__(cls, entries)

    def __getnewargs__(self):
        return tuple(self)

    def to_spec(self, mesh, rank):
        if len(self) > rank:
            raise ValueError(f"{self!r} has {len(self)} entries for a tensor of {rank} dims")
        return ShardingSpec(mesh, [*self, *[None] * (rank - len(self))])

    def __repr__(self):
        return f"P({', '.join(map(repr, self))})"


P = PartitionSpec


def create_replicated_spec(mesh, rank):
    """Nothing is cut."""
    return ShardingSpec(mesh, [DimSpec() for _ in range(rank)])
