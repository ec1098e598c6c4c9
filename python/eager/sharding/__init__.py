"""How tensors are laid out over a mesh of devices."""

from .propagation import OpShardingRule, PropagationStrategy, compile_with_sharding, propagate_sharding
from .explain import ShardingExplanation, comm_stats, explain_sharding
from .spec import DeviceMesh, DimSpec, P, PartitionSpec, ShardingSpec, create_replicated_spec
from .spmd import compute_local_shape, from_local, get_num_shards, local_slices, reshard, shard, shard_from_callback

__all__ = [
    "DeviceMesh",
    "DimSpec",
    "OpShardingRule",
    "P",
    "PartitionSpec",
    "PropagationStrategy",
    "ShardingExplanation",
    "ShardingSpec",
    "comm_stats",
    "compile_with_sharding",
    "compute_local_shape",
    "create_replicated_spec",
    "explain_sharding",
    "from_local",
    "get_num_shards",
    "local_slices",
    "propagate_sharding",
    "reshard",
    "shard",
    "shard_from_callback",
]
