"""Layers, activations, losses and initialisers as functions of their parameters."""

from . import activations, attention, init, layers, losses, sampling
from .activations import *  # noqa: F403
from .attention import *  # noqa: F403
from .init import *  # noqa: F403
from .layers import *  # noqa: F403
from .losses import *  # noqa: F403
from .sampling import *  # noqa: F403

__all__ = [*activations.__all__, *attention.__all__, *init.__all__, *layers.__all__, *losses.__all__, *sampling.__all__]
