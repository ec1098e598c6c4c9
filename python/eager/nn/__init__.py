# ruff: noqa: F401, F403
"""Models: modules that are pytrees, layers, losses, mixed precision, fine-tuning. See docs/nn.md."""

from .. import optim
from . import attention, finetune, functional, layers, recurrent, transformer
from .attention import *  # noqa: F403
from .containers import ModuleDict, ModuleList, Sequential
from .functional import init
from .layers import *  # noqa: F403
from .module import Module, Parameter
from .precision import precision
from .recurrent import *  # noqa: F403
from .transformer import *  # noqa: F403

__all__ = sorted({
    "Module", "ModuleDict", "ModuleList", "Parameter", "Sequential", "finetune", "functional", "init", "optim", "precision",
    *attention.__all__, *layers.__all__, *recurrent.__all__, *transformer.__all__,
})  # fmt: skip
