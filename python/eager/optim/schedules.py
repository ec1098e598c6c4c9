"""Schedules: functions of the number of the step, from 0. An int gives a float; a tensor gives a tensor, so
that a compiled step follows the schedule without being compiled again."""

import math

from eas._eas import EagerTensor
from eas._eas import tensor_ops as _ops

__all__ = [
    "constant_schedule", "cosine_schedule", "exponential_schedule", "linear_schedule", "one_cycle_schedule", "step_schedule", "warmup_cosine_schedule", "warmup_linear_schedule",
]  # fmt: skip


class Schedule:
    """A function of the step, with a text."""

    def __init__(self, name, f, **numbers):
        self.name, self.f, self.numbers = name, f, numbers

    def __call__(self, step):
        if isinstance(step, EagerTensor):
            return self.f(_Tensors, step.astype("float32"))
        if step < 0:
            raise ValueError(f"{self.name}: steps count from 0, got {step}")
        return self.f(_Floats, float(step))

    def __repr__(self):
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.numbers.items())})"


class _Floats:
    cos, exp, floor, minimum, maximum = math.cos, math.exp, math.floor, min, max
    where = staticmethod(lambda c, a, b: a if c else b)


class _Tensors:
    cos, exp, floor, minimum, maximum, where = (_ops[n] for n in ("cos", "exp", "floor", "minimum", "maximum", "where"))


def _positive(name, **values):
    for what, v in values.items():
        if not v > 0:
            raise ValueError(f"{name}: {what} must be above 0, got {v}")


def constant_schedule(value):
    """The same at each step."""
    return Schedule("constant_schedule", lambda m, t: t * 0.0 + value, value=value)


def linear_schedule(start, end, steps):
    """From start to end in so many steps, then end."""
    _positive("linear_schedule", steps=steps)
    return Schedule(
        "linear_schedule", lambda m, t: start + (end - start) * (m.minimum(t, float(steps)) * (1.0 / steps)), start=start, end=end, steps=steps
    )


def cosine_schedule(value, total_steps, warmup_steps=0, final=0.0, start=0.0):
    """Linear from start to value in warmup_steps, then half a cosine down to final at total_steps."""
    _positive("cosine_schedule", total_steps=total_steps)
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(f"cosine_schedule: warmup_steps must be in [0, {total_steps}), got {warmup_steps}")
    rest = total_steps - warmup_steps

    def f(m, t):
        done = m.minimum(m.maximum(t - warmup_steps, 0.0) * (1.0 / rest), 1.0)
        down = final + (value - final) * 0.5 * (1.0 + m.cos(done * math.pi))
        return m.where(t < warmup_steps, start + (value - start) * t * (1.0 / max(warmup_steps, 1)), down)

    return Schedule("cosine_schedule", f, value=value, total_steps=total_steps, warmup_steps=warmup_steps, final=final)


warmup_cosine_schedule = cosine_schedule


def warmup_linear_schedule(value, total_steps, warmup_steps=0, final=0.0, start=0.0):
    """Linear from start to value in warmup_steps, then linear down to final at total_steps."""
    _positive("warmup_linear_schedule", total_steps=total_steps)
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(f"warmup_linear_schedule: warmup_steps must be in [0, {total_steps}), got {warmup_steps}")
    rest = total_steps - warmup_steps

    def f(m, t):
        done = m.minimum(m.maximum(t - warmup_steps, 0.0) * (1.0 / rest), 1.0)
        return m.where(t < warmup_steps, start + (value - start) * t * (1.0 / max(warmup_steps, 1)), value + (final - value) * done)

    return Schedule("warmup_linear_schedule", f, value=value, total_steps=total_steps, warmup_steps=warmup_steps, final=final)


def step_schedule(value, step_size, gamma=0.1):
    """Times gamma every step_size steps."""
    _positive("step_schedule", step_size=step_size, gamma=gamma)
    return Schedule(
        "step_schedule",
        lambda m, t: value * m.exp(m.floor((t + 0.5) * (1.0 / step_size)) * math.log(gamma)),
        value=value,
        step_size=step_size,
        gamma=gamma,
    )


def exponential_schedule(value, gamma, steps=1, final=None):
    """Times gamma in so many steps, smoothly; not below final (above, where gamma is above 1)."""
    _positive("exponential_schedule", gamma=gamma, steps=steps)

    def f(m, t):
        v = value * m.exp(t * (math.log(gamma) / steps))
        return v if final is None else m.maximum(v, final) if gamma < 1 else m.minimum(v, final)

    return Schedule("exponential_schedule", f, value=value, gamma=gamma, steps=steps, final=final)


def one_cycle_schedule(max_value, total_steps, pct_start=0.3, div_factor=25.0, final_div_factor=1e4):
    """Half a cosine up from max_value / div_factor to max_value in pct_start of the steps, and one down to
    max_value / (div_factor * final_div_factor)."""
    _positive("one_cycle_schedule", total_steps=total_steps - 1, div_factor=div_factor, final_div_factor=final_div_factor)
    if not 0 < pct_start < 1:
        raise ValueError(f"one_cycle_schedule: pct_start is in (0, 1), got {pct_start}")
    up, last = pct_start * total_steps - 1, total_steps - 1
    low, end = max_value / div_factor, max_value / (div_factor * final_div_factor)

    def f(m, t):
        part = lambda a, b, done: b + (a - b) * 0.5 * (1.0 + m.cos(done * math.pi))  # noqa: E731
        first = part(low, max_value, m.minimum(t * (1.0 / max(up, 1e-9)), 1.0))
        return m.where(t <= up, first, part(max_value, end, m.minimum(m.maximum(t - up, 0.0) * (1.0 / (last - up)), 1.0)))

    return Schedule("one_cycle_schedule", f, max_value=max_value, total_steps=total_steps, pct_start=pct_start)
