"""eager.Tensor. The class itself is C; here it gets the methods that are sugar."""

from eas._eas import EagerTensor as Tensor
from eas._eas import TensorImpl, realize_all

__all__ = ["Tensor", "TensorImpl", "is_tensor", "realize_all", "rebind", "to_device", "transfer_to", "with_batch_dims"]


def is_tensor(x):
    """Is it an eager.Tensor?"""
    return isinstance(x, Tensor)


def with_batch_dims(x, batch_dims):
    """The same tensor with another number of leading dims hidden, as vmap hides them."""
    from eas._eas import tensor_ops

    return tensor_ops["alias"](x, batch_dims)


def rebind(x, other):
    """Makes x a handle of the data of `other`; tensors that were computed from x before keep their values.
    Gives x."""
    if not isinstance(x, Tensor) or not isinstance(other, Tensor):
        raise TypeError(f"eager.rebind takes two tensors, got {type(x).__name__} and {type(other).__name__}")
    x._impl = other._impl
    return x


def to_device(x, device, specs=None):
    """x on a device: itself if it is there, else a copy. device may be a ShardingSpec, or a mesh with specs:
    x is then laid out so."""
    from ..sharding.spec import DeviceMesh, ShardingSpec, create_replicated_spec

    if isinstance(device, ShardingSpec):
        return x.reshard(device)
    if isinstance(device, DeviceMesh):
        return x.shard(device, create_replicated_spec(device, len(x.shape)).dim_specs if specs is None else specs)
    return x.gather().to(device) if x.is_sharded else x.to(device)


transfer_to = to_device
