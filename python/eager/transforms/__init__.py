"""Functions of functions."""

from .compile import CompiledFunction, compile
from .vmap import vmap

__all__ = ["CompiledFunction", "compile", "vmap"]
