"""Functions of functions."""

from .checkpoint import checkpoint
from .compile import CompiledFunction, compile
from .custom import custom_jvp, custom_vjp
from .grad import grad, value_and_grad
from .jacrev import hessian, jacfwd, jacrev
from .jvp import jvp, linearize
from .shard_map import pmap, shard_map
from .vjp import vjp
from .vmap import vmap

__all__ = [
    "CompiledFunction",
    "checkpoint",
    "compile",
    "custom_jvp",
    "custom_vjp",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "pmap",
    "shard_map",
    "value_and_grad",
    "vjp",
    "vmap",
]
