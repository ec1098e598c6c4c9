"""How shardings go from tensor to tensor, by rules in factors."""

import enum
import functools

from eas._eas import EagerTensor, shard_propagate

from .spec import DimSpec, PartitionSpec, ShardingSpec, create_replicated_spec

__all__ = ["OpShardingRule", "PropagationStrategy", "compile_with_sharding", "propagate_sharding"]


class PropagationStrategy(enum.Enum):
    """The decision if two tensors disagree: BASIC keeps the axes that they have in common, AGGRESSIVE takes
    the sharding with more parts."""

    BASIC = 0
    AGGRESSIVE = 1


class OpShardingRule:
    """Dims as products of factors: input_mappings and output_mappings have {dim: [factor, ...]} for each
    tensor, outermost factor first; factor_sizes {factor: size}. A factor that no output has is summed over,
    unless it is among `joined` (reduced otherwise) or `whole` (not to be cut). numbers, of an operation that
    launches a kernel: {argument: [factor, ...]} for its arguments that are products of factors, such as a
    count of elements or rows: a part is launched with the product of its own sizes."""

    def __init__(self, input_mappings, output_mappings, factor_sizes, joined=(), whole=(), numbers=None):
        self.input_mappings, self.output_mappings = list(input_mappings), list(output_mappings)
        self.factor_sizes, self.joined, self.whole = dict(factor_sizes), set(joined), set(whole)
        self.numbers = {n: list(f) for n, f in (numbers or {}).items()}
        for m in [*self.input_mappings, *self.output_mappings, self.numbers]:
            for dim, factors in m.items():
                missing = [f for f in factors if f not in self.factor_sizes]
                if missing:
                    raise ValueError(f"OpShardingRule: dim {dim} has factor {missing[0]!r}, whose size is not given")

    def _kind(self, f):
        if f in self.whole:
            return 3
        if any(f in factors for m in self.output_mappings for factors in m.values()):
            return 0
        return 2 if f in self.joined else 1

    def __repr__(self):
        return f"OpShardingRule({self.input_mappings}, {self.output_mappings}, {self.factor_sizes})"


def _dims(mapping, spec, number):
    rank = max([*mapping, -1]) + 1
    if spec is not None:
        if len(spec.dim_specs) < rank:
            raise ValueError(f"propagate_sharding: spec {spec!r} has {len(spec.dim_specs)} dims, and the rule speaks of dim {rank - 1}")
        rank = len(spec.dim_specs)
    return [[number[f] for f in mapping.get(d, ())] for d in range(rank)]


def propagate_sharding(rule, in_specs, out_specs, strategy=PropagationStrategy.BASIC):
    """Passes axes from spec to spec, to dims that are open. The specs (None: none) are changed in place; True
    if any was."""
    in_specs, out_specs = list(in_specs), list(out_specs)
    if len(in_specs) != len(rule.input_mappings) or len(out_specs) != len(rule.output_mappings):
        raise ValueError(
            f"propagate_sharding: {len(in_specs)} and {len(out_specs)} specs for a rule of {len(rule.input_mappings)} inputs and {len(rule.output_mappings)} outputs"
        )
    there = [s for s in in_specs + out_specs if s is not None]
    if not there:
        return False
    if any(not isinstance(s, ShardingSpec) or s.mesh != there[0].mesh for s in there):
        raise ValueError("propagate_sharding: ShardingSpecs of one mesh are wanted")
    names = list(rule.factor_sizes)
    number = {f: i for i, f in enumerate(names)}
    factors = [(int(rule.factor_sizes[f]), rule._kind(f)) for f in names]
    changed = False
    for out, mapping in zip(out_specs, rule.output_mappings) if out_specs else [(None, {})]:
        specs = [*in_specs, out]
        tensors = [_dims(m, s, number) for m, s in zip([*rule.input_mappings, mapping], specs)]
        new, some = shard_propagate(factors, tensors, specs, there[0].mesh, strategy == PropagationStrategy.AGGRESSIVE)
        for old, s in zip(specs, new):
            if old is not None:
                old.dim_specs, old.partial_sum_axes = s.dim_specs, s.partial_sum_axes
        changed = changed or some
    return changed


def _with_lanes(mapping, t, depth, sizes):
    """The mapping of a tensor's own dims, and its dims of vmap in front of them."""
    n = t.batch_dims
    lanes = {i: [("lane", depth - n + i)] for i in range(n) if int(t.physical_shape[i]) != 1}
    for i, (name,) in lanes.items():
        sizes[name] = int(t.physical_shape[i])
    return {**lanes, **{d + n: f for d, f in mapping.items()}}


def follow_rule(operation, inputs, results, kwargs):
    """The shardings of the results of a user's operation, by its own rule; without a rule, those that its
    body gave them stay."""
    mesh = next((x.sharding.mesh for x in inputs if x.sharding is not None), None)
    if mesh is None:
        return
    try:
        rule = operation.sharding_rule(*(tuple(x.shape) for x in inputs), **kwargs)
    except NotImplementedError:
        return
    if len(rule.input_mappings) != len(inputs) or len(rule.output_mappings) != len(results):
        raise ValueError(
            f"{operation.name}: its sharding rule is for {len(rule.input_mappings)} inputs and {len(rule.output_mappings)} outputs; there are {len(inputs)} and {len(results)}"
        )
    depth, sizes = max(t.batch_dims for t in [*inputs, *results]), dict(rule.factor_sizes)
    ins = [_with_lanes(m, t, depth, sizes) for m, t in zip(rule.input_mappings, inputs)]
    outs = [_with_lanes(m, t, depth, sizes) for m, t in zip(rule.output_mappings, results)]
    whole = OpShardingRule(ins, outs, sizes, rule.joined, rule.whole)
    given = [x.sharding and ShardingSpec(mesh, x.sharding.dim_specs, x.sharding.replicated_axes, x.sharding.partial_sum_axes) for x in inputs]
    made = [ShardingSpec(mesh, [DimSpec((), is_open=True) for _ in t.physical_shape]) for t in results]
    propagate_sharding(whole, given, made)
    for t, spec in zip(results, made):
        t.sharding = ShardingSpec(mesh, [DimSpec(d.axes) for d in spec.dim_specs], (), spec.partial_sum_axes)


def _laid_out(tree, specs, mesh, what):
    """The tensors of a tree as the specs say: one for all, or a tree (of which a prefix will do) of
    PartitionSpecs, ShardingSpecs or None (as it lies)."""
    from ..core.pytree import tree_map

    if specs is None:
        return tree
    if isinstance(specs, (PartitionSpec, ShardingSpec)):

        def one(t):
            if not isinstance(t, EagerTensor):
                return t
            dims = specs.dim_specs if isinstance(specs, ShardingSpec) else specs.to_spec(mesh, len(t.shape)).dim_specs
            return t.shard(mesh, dims)

        return tree_map(one, tree)
    if isinstance(specs, dict) and isinstance(tree, dict):
        if specs.keys() - tree.keys():
            raise ValueError(f"compile_with_sharding: {what} names {sorted(specs.keys() - tree.keys())}, which is not there")
        return {k: _laid_out(v, specs.get(k), mesh, what) for k, v in tree.items()}
    if isinstance(specs, (tuple, list)) and isinstance(tree, (tuple, list)):
        if len(specs) != len(tree):
            raise ValueError(f"compile_with_sharding: {what} has {len(specs)} entries for {len(tree)}")
        return type(tree)(_laid_out(t, s, mesh, what) for t, s in zip(tree, specs))
    raise TypeError(f"compile_with_sharding: {what} is a PartitionSpec, or a tree of them like the tensors; got {type(specs).__name__} for {type(tree).__name__}")


def _compiled(fn, mesh, in_shardings, out_shardings, options):
    from ..transforms.compile import compile
    from .spec import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"compile_with_sharding: a DeviceMesh is wanted, got {type(mesh).__name__}")
    body = compile(lambda *args, **kwargs: _laid_out(fn(*args, **kwargs), out_shardings, mesh, "out_shardings"), **options)

    @functools.wraps(fn)
    def call(*args, **kwargs):
        given = in_shardings
        if given is not None and isinstance(given, (PartitionSpec, ShardingSpec)):
            given = (given,) * len(args)
        return body(*_laid_out(args, given, mesh, "in_shardings"), **kwargs)

    call.compiled = body
    return call


def compile_with_sharding(fn, mesh=None, in_shardings=None, out_shardings=None, **options):
    """Compiles a function for tensors on a mesh: arguments are laid out as in_shardings say before it runs,
    results as out_shardings say: one PartitionSpec for all, or an entry for each argument or result (trees of
    them for trees of tensors; None: as it lies). Other options as of compile.

    Of traced tensors, compile_with_sharding(tensors, mesh): every tensor that they were made of, and
    themselves, gets a sharding on the mesh, the one that it has, or that nothing is cut; they are then
    computed, laid out so. Gives the tensors."""
    if callable(fn) and not isinstance(fn, EagerTensor):
        return _compiled(fn, mesh, in_shardings, out_shardings, options)
    from ..core.graph_utils import get_all_impls_topological
    from ..core.tensor import realize_all

    tensors = [fn] if isinstance(fn, EagerTensor) else list(fn)
    for i, t in enumerate(tensors):
        if not isinstance(t, EagerTensor) or not t.is_traced:
            raise ValueError(f"compile_with_sharding: tensor {i} is not traced; call .trace() on what it is made from first")
    for impl in get_all_impls_topological(tensors):
        if impl.sharding is None:
            impl.sharding = create_replicated_spec(mesh, len(impl.physical_shape))
        elif impl.sharding.mesh != mesh:
            raise ValueError(f"compile_with_sharding: a tensor lies on {impl.sharding.mesh!r}, not on {mesh!r}")
    if not any(t._impl._is_symbolic for t in tensors):
        realize_all(*tensors)
    return tensors
