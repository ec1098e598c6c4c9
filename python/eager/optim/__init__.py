"""Optimisers: pure functions on pytrees (`adamw_init`, `adamw_update`, ...), classes over them
(`AdamW(model.parameters(), lr=1e-3)`), schedules, clipping, averages. See docs/nn.md."""

from . import classes, extras, rules, schedules
from .classes import *  # noqa: F403
from .extras import *  # noqa: F403
from .rules import *  # noqa: F403
from .schedules import *  # noqa: F403

__all__ = sorted([*classes.__all__, *extras.__all__, *rules.__all__, *schedules.__all__])
