"""The small GPT of gpt.py and the same model in torch: the same first weights, batches, optimiser and
schedule; their curves, and that of another seed, which shows what is noise. `python -m
examples.models.gpt_torch [folder]`."""

import os
import sys

import numpy as np

import eager
from eager import optim
from examples import size
from examples.models.gpt import GPT, batches, text, train
from examples.models.show import Progress, chart
from examples.models.torch_gpt import torch_gpt


def train_torch(net, tokens, steps, batch, length, lr=1e-3, seed=0):
    """The losses of gpt.train in torch."""
    import torch

    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01)
    schedule = optim.cosine_schedule(lr, steps, warmup_steps=max(steps // 20, 1), final=lr / 10)
    losses, source = [], batches(tokens, batch, length, seed)
    bar = Progress(range(steps), steps, "torch")
    for i in bar:
        x, y = (torch.from_dlpack(t) for t in next(source))
        for group in opt.param_groups:
            group["lr"] = float(np.asarray(schedule(i)))
        loss = torch.nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
        bar.note(loss=np.mean(losses[-20:]))
    return losses


def smooth(losses, width):
    return np.convolve(losses, np.ones(width) / width, "valid")


def main(folder=".", steps=None):
    tokens, shape = text(), size((4, 128, 4), (2, 32, 2))
    steps, batch, length, width = int(steps or size(400, 8)), size(16, 2), size(128, 16), size(20, 2)
    curves = {}
    for seed in range(2):
        eager.seed(seed)
        model = GPT(*shape)
        net = torch_gpt(model, shape[2]) if seed == 0 else None  # before the weights are given away
        _, curves[f"eager, seed {seed}"] = train(model, tokens, steps, batch, length, seed=seed, what=f"eager, seed {seed}")
        if net is not None:
            curves["torch, seed 0"] = train_torch(net, tokens, steps, batch, length)
    ours, theirs, other = (np.array(curves[n]) for n in ("eager, seed 0", "torch, seed 0", "eager, seed 1"))
    apart, noise = (np.abs(smooth(ours, width) - smooth(x, width)) for x in (theirs, other))
    path = os.path.join(folder, "gpt_torch.svg")
    picture = {n: (np.arange(len(c) - width + 1) + width // 2, smooth(c, width)) for n, c in curves.items()}
    chart(path, f"GPT {shape[0]} x {shape[1]}, means of {width} steps", picture, y="loss (nats per byte)")
    print(f"gpt_torch: last losses (means of {width} steps) " + ", ".join(f"{n}: {np.mean(c[-width:]):.4f}" for n, c in curves.items()))
    print(f"gpt_torch: eager and torch are {apart.mean():.4f} apart on average, two seeds {noise.mean():.4f}; curves in {path}")
    return curves, apart, noise


if __name__ == "__main__":
    main(*sys.argv[1:])
