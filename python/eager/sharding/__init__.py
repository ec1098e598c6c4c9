"""How tensors are laid out over a mesh of devices."""

from .explain import ShardingExplanation, comm_stats, explain_sharding
from .machine import Machine, machines, measure_machine
from .propagation import OpShardingRule, PropagationStrategy, compile_with_sharding, propagate_sharding
from .simulate import AutoPlan, Simulation, abstract, auto_shard, simulate
from .spec import DeviceMesh, DimSpec, P, PartitionSpec, ShardingSpec, create_replicated_spec
from .spmd import compute_local_shape, from_local, get_num_shards, local_slices, reshard, shard, shard_from_callback
from .visualize import ShardingPicture, visualize_sharding

__all__ = [
    "AutoPlan",
    "DeviceMesh",
    "DimSpec",
    "Machine",
    "OpShardingRule",
    "P",
    "PartitionSpec",
    "PropagationStrategy",
    "ShardingExplanation",
    "ShardingPicture",
    "ShardingSpec",
    "Simulation",
    "abstract",
    "auto_shard",
    "comm_stats",
    "compile_with_sharding",
    "compute_local_shape",
    "create_replicated_spec",
    "explain_sharding",
    "from_local",
    "get_num_shards",
    "local_slices",
    "machines",
    "measure_machine",
    "propagate_sharding",
    "reshard",
    "shard",
    "shard_from_callback",
    "simulate",
    "visualize_sharding",
]
