"""A neural ODE: a spiral learnt by a network that gives its velocity. `python -m examples.models.neural_ode
[folder]`.

The solver is a while_loop of Runge-Kutta steps whose size is chosen by the error, so how many there are is
data; `max_steps` bounds it, which makes it differentiable backwards.
"""

import os
import sys

import numpy as np

import eager
from eager import nn, optim
from examples import size
from examples.models.show import Progress, chart

F = nn.functional
TRUE = np.array([[-0.1, 2.0], [-2.0, -0.1]], np.float32)


def step_of(f, y, h):
    """One step of Bogacki and Shampine: (third order, the difference to second order)."""
    k1 = f(y)
    k2 = f(y + 0.5 * h * k1)
    k3 = f(y + 0.75 * h * k2)
    new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
    k4 = f(new)
    return new, h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)


def solve(f, y, until, tolerance=1e-3, max_steps=24):
    """y(until) from y(0), and how many steps it took; the step adapts to the error."""

    def going(s):
        return s["t"] < until - 1e-6

    def body(s):
        h = eager.minimum(s["h"], until - s["t"])
        new, error = step_of(f, s["y"], h)
        size = eager.stop_gradient(eager.sqrt((error * error).mean()) / tolerance + 1e-10)
        good = size <= 1.0
        factor = eager.clip(0.9 * size ** (-1 / 3), 0.3, 3.0)
        return {
            "t": eager.where(good, s["t"] + h, s["t"]),
            "y": eager.where(good, new, s["y"]),
            "h": eager.stop_gradient(h * factor),
            "n": s["n"] + 1,
        }

    start = {"t": eager.zeros(()), "y": y, "h": eager.full((), 0.05), "n": eager.zeros((), dtype="int32")}
    end = eager.while_loop(going, body, start, max_steps=max_steps)
    return end["y"], end["n"]


def velocity():
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def spiral(n, dt):
    """Points of the true motion: y' = y^3 A."""
    y, out = np.array([2.0, 0.0]), []
    for _ in range(n):
        out.append(y)
        for _ in range(20):
            k1 = (y**3) @ TRUE
            k2 = ((y + dt / 40 * k1) ** 3) @ TRUE
            y = y + dt / 20 * k2
    return np.array(out, np.float32)


def main(folder="."):
    eager.seed(0)
    n, dt = size(100, 12), 0.05
    path = spiral(n + 1, dt)
    model = velocity()
    until = 4 * dt
    starts, ends = eager.constant(path[:-4]), eager.constant(path[4:])

    @eager.compile
    def step(model, state):
        def loss(m):
            y, steps = solve(lambda y: m(y * y * y), starts, until)
            return F.mae_loss(y, ends), steps

        (value, steps), grads = eager.value_and_grad(loss, has_aux=True)(model)
        model, state = optim.adam_update(model, grads, state, lr=1e-2)
        return model, state, value, steps

    state, losses, count = optim.adam_init(model), [], 0
    bar = Progress(range(size(250, 4)), size(250, 4), "neural ODE")
    for _ in bar:
        model, state, value, steps = step(model, state)
        losses.append(value.item())
        count = int(steps)
        bar.note(loss=losses[-1], steps=count)
    assert np.isfinite(losses).all() and losses[-1] < losses[0] and count >= 2
    picture = os.path.join(folder, "neural_ode.svg")
    chart(picture, "neural ODE: error of the position", {"mean absolute error": losses})
    print(f"neural_ode: error {losses[0]:.4f} to {losses[-1]:.4f} in {count} steps of an adaptive solver; curve in {picture}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
