"""Reinforcement learning in one compiled program: a pole on a cart, many environments side by side by vmap,
an actor and a critic. `python -m examples.models.cartpole [folder]`.

An update is one call: a scan over time of vmapped environments and draws from the policy, advantages by
another scan backwards, the gradient of the loss, and Adam.
"""

import os
import sys

import numpy as np

import eager
from eager import nn, optim
from examples import size
from examples.models.show import Progress, chart

F = nn.functional
GRAVITY, CART, POLE, HALF, FORCE, DT = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


def reset(key):
    return eager.uniform((4,), -0.05, 0.05, key=key)


def move(state, push):
    """One step of one environment: (state, has it fallen)."""
    x, v, angle, spin = (state[i] for i in range(4))
    force = eager.where(push == 1, FORCE, -FORCE)
    sin, cos = eager.sin(angle), eager.cos(angle)
    a = (force + POLE * HALF * spin * spin * sin) / (CART + POLE)
    turn = (GRAVITY * sin - cos * a) / (HALF * (4.0 / 3.0 - POLE * cos * cos / (CART + POLE)))
    push_back = a - POLE * HALF * turn * cos / (CART + POLE)
    new = eager.stack([x + DT * v, v + DT * push_back, angle + DT * spin, spin + DT * turn])
    return new, (eager.abs(new[0]) > 2.4) | (eager.abs(new[2]) > 0.2095)


class Agent(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, state):
        h = self.body(state)
        return self.policy(h), self.value(h)[..., 0]


def play(agent, states, ages, key, steps, limit=200):
    """steps of all environments: what was seen, done and earned, each (steps, N, ...)."""

    def step(carry, key):
        states, ages = carry
        act, fresh = eager.unbind(eager.split_key(key))
        logits, values = agent(states)
        actions = F.sample_logits(logits, key=act)
        moved, fallen = eager.vmap(move)(states, actions)
        over = fallen | (ages + 1 >= limit)
        new = eager.vmap(reset)(eager.split_key(fresh, int(states.shape[0])))
        seen = {
            "state": states,
            "action": actions,
            "value": values,
            "over": over.astype("float32"),
            "fallen": fallen.astype("float32"),
            "age": eager.where(over, ages + 1, 0),
        }
        return (eager.where(over.reshape((-1, 1)), new, moved), eager.where(over, 0, ages + 1)), seen

    return eager.scan(step, (states, ages), eager.split_key(key, steps))


def advantages(seen, last_value, discount=0.99, mix=0.95):
    """Generalised advantage estimation, backwards in time. An episode's end has no future."""

    def step(carry, row):
        future, next_value = carry
        stay = 1.0 - row["over"]
        delta = 1.0 + discount * next_value * stay - row["value"]
        future = delta + discount * mix * stay * future
        return (future, row["value"]), future

    zero = last_value * 0.0
    _, out = eager.scan(step, (zero, last_value), {"value": seen["value"], "over": seen["over"]}, reverse=True)
    return out


def loss_of(agent, seen, gains):
    logits, values = agent(seen["state"])
    logp = F.log_softmax(logits)
    chosen = eager.take_along_axis(logp, eager.unsqueeze(seen["action"], -1), axis=-1)[..., 0]
    normal = (gains - gains.mean()) / (gains.std() + 1e-6)
    entropy = -(eager.exp(logp) * logp).sum(axis=-1).mean()
    targets = gains + seen["value"]
    return -(chosen * normal).mean() + 0.5 * F.huber_loss(values, targets, 10.0) * 0.05 - 0.01 * entropy


def main(folder="."):
    eager.seed(0)
    n, steps, updates = size(64, 8), size(32, 8), size(300, 3)
    agent = Agent()

    @eager.compile
    def update(agent, opt, states, ages, key):
        key, now = eager.unbind(eager.split_key(key))
        (states, ages), seen = play(agent, states, ages, now, steps)
        seen = {k: eager.stop_gradient(v) for k, v in seen.items()}
        gains = eager.stop_gradient(advantages(seen, agent(states)[1]))
        loss, grads = eager.value_and_grad(loss_of)(agent, seen, gains)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        agent, opt = optim.adam_update(agent, grads, opt, lr=3e-3)
        ended = seen["over"].sum()
        return agent, opt, states, ages, key, loss, eager.where(ended > 0, seen["age"].sum() / eager.maximum(ended, 1.0), 0.0), ended

    with eager.no_grad():
        states, ages = eager.vmap(reset)(eager.split_key(eager.key(1), n)).realize(), eager.zeros((n,), dtype="int32").realize()
    opt, key, lengths = optim.adam_init(agent), eager.key(0), []
    bar = Progress(range(updates), updates, "cartpole")
    for _ in bar:
        agent, opt, states, ages, key, loss, length, ended = update(agent, opt, states, ages, key)
        if ended.item():
            lengths.append(length.item())
        bar.note(length=np.mean(lengths[-10:]) if lengths else 0.0)
    assert update.stats.misses == 1, "one program serves all updates"
    path = os.path.join(folder, "cartpole.svg")
    lengths = lengths or [0.0]
    chart(path, f"cart and pole: {n} environments in one program", {"episode length": lengths}, x="update", y="steps until it falls (200 at most)")
    print(f"cartpole: episodes of {np.mean(lengths[:10]):.0f} steps at first, {np.mean(lengths[-10:]):.0f} at the end; curve in {path}")
    return lengths


if __name__ == "__main__":
    main(*sys.argv[1:])
