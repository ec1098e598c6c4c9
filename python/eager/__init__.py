"""Lazy tensors: look imperative, act functional, compile automatically.

import eager

x = eager.Tensor.ones((3, 4))
y = eager.Tensor.arange(12).reshape((3, 4))
z = (x + y).sum()    # only recorded
print(z.item())      # compiled and computed here
"""

from eas._eas import DType, GraphBreak, __version__, _set_package2, tensor_ops
from eas._eas import eager_stats as stats

_set_package2(__file__[: -len("__init__.py")])

from . import _array_api, _methods, config, core, distributed, driver, ops, sharding, testing, transforms  # noqa: E402
from ._array_api import *  # noqa: E402, F403
from ._array_api import __array_namespace_info__  # noqa: E402, F401
from ._autograd import enable_grad, no_grad, set_grad_enabled  # noqa: E402
from ._kernel import call_custom_kernel, from_kernel  # noqa: E402
from .core import *  # noqa: E402, F403
from .driver import accelerator, cpu, gpu  # noqa: E402
from ._sharded_io import load_sharded, save_sharded  # noqa: E402
from .io import Weights, from_torch, load, load_gguf, load_safetensors, open_weights, save, save_safetensors  # noqa: E402
from .ops import BinaryOperation, CreationOperation, Operation, ReduceOperation, UnaryOperation  # noqa: E402
from .ops.communication import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    axis_size,
    distributed_broadcast,
    gather_all_axes,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_scatter,
    reduce_scatter,
)  # noqa: E402
from .ops.control_flow import associative_scan, cond, fori_loop, scan, switch, where, while_loop  # noqa: E402
from .ops.convolution import conv2d, conv2d_transpose  # noqa: E402
from .ops.creation import *  # noqa: E402, F403
from .ops.creation import seed  # noqa: E402
from .ops.multi_output import chunk, minmax, split, topk, unbind  # noqa: E402
from .ops.pooling import avg_pool2d, max_pool2d  # noqa: E402
from .ops.unary import layer_norm, one_hot, rms_norm  # noqa: E402
from . import _complex, _debug, _einsum, _numpy, _protocol, _storage  # noqa: E402, I001
from ._complex import *  # noqa: E402, F403
from ._debug import *  # noqa: E402, F403
from ._einsum import einsum, einsum_path  # noqa: E402
from ._numpy import *  # noqa: E402, F403
from ._storage import *  # noqa: E402, F403
from .ops.activation import *  # noqa: E402, F403
from .ops.image import conv1d, conv3d, conv_nd, interpolate, scaled_dot_product_attention  # noqa: E402
from . import fft, linalg, random  # noqa: E402
from .ops.view import as_interleaved_complex, matrix_trace, pad, transpose, view_as_real_interleaved  # noqa: E402
from .quantized import QuantizedTensor, dequantize, quantize, quantized_matmul  # noqa: E402
from .sharding import (
    DeviceMesh,
    DimSpec,
    Machine,
    OpShardingRule,
    P,
    PartitionSpec,
    PropagationStrategy,
    ShardingSpec,
    abstract,
    auto_shard,
    comm_stats,
    compile_with_sharding,
    compute_local_shape,
    create_replicated_spec,
    explain_sharding,
    from_local,
    get_num_shards,
    measure_machine,
    propagate_sharding,
    reshard,
    shard,
    shard_from_callback,
    simulate,
    visualize_sharding,
)  # noqa: E402
from .transforms import (
    CompiledFunction,
    checkpoint,
    compile,
    custom_jvp,
    custom_vjp,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    pmap,
    shard_map,
    value_and_grad,
    vjp,
    vmap,
)  # noqa: E402
from .transforms.utils import trace, visualize  # noqa: E402

__array_api_version__ = "2024.12"

# Every operation of the table is here under its name, unless a function above says more.
from .ops._table import INTERNAL as _INTERNAL  # noqa: E402

for _name, _op in tensor_ops.items():
    if _name not in _INTERNAL:
        globals().setdefault(_name, _op)
for _name, _op in _array_api.NAMED.items():
    globals().setdefault(_name, _op)
globals().update({_n: _d for _n, _d in _array_api.DTYPES.items()})
globals().update({"complex64": _complex.complex64, "complex128": _complex.complex128})
for _name in random.__all__:
    if _name not in ("PRNGKey", "split"):
        globals().setdefault(_name, getattr(random, _name))
concat = _array_api.NAMED["concat"]
slice_tensor, slice_update = tensor_ops["slice_tensor"], tensor_ops["slice_update"]
_methods.install()
del _name, _op

__all__ = sorted(n for n in globals() if not n.startswith("_") and n not in ("tensor_ops",)) + ["__version__"]


def __getattr__(name):
    """eager.nn, eager.optim, eager.data and eager.array_api are loaded when they are first used."""
    if name in ("array_api", "data", "nn", "optim"):
        import importlib

        return importlib.import_module("eager." + name)
    raise AttributeError(f"module 'eager' has no attribute {name!r}")
