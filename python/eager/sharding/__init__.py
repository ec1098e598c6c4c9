"""How tensors are laid out over a mesh of devices."""

from .propagation import OpShardingRule, PropagationStrategy, compile_with_sharding, propagate_sharding
from .spec import DeviceMesh, DimSpec, P, PartitionSpec, ShardingSpec, create_replicated_spec

__all__ = [
    "DeviceMesh",
    "DimSpec",
    "OpShardingRule",
    "P",
    "PartitionSpec",
    "PropagationStrategy",
    "ShardingSpec",
    "compile_with_sharding",
    "create_replicated_spec",
    "propagate_sharding",
]
