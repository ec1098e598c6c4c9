"""How tensors are laid out over a mesh of devices."""

from .spec import DeviceMesh, DimSpec, P, PartitionSpec, ShardingSpec, create_replicated_spec

__all__ = ["DeviceMesh", "DimSpec", "P", "PartitionSpec", "ShardingSpec", "create_replicated_spec"]
