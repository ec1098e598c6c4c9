"""Models: an update of many parameters, training steps and decoding of a GPT, an epoch of a CNN, against torch and JAX. Results are checked before anything is timed."""

import os
import sys

import numpy as np

import eager
from eager import nn, optim
from examples.models import digits
from examples.models.gpt import GPT, loss_of, train_step
from examples.models.torch_gpt import torch_gpt

from .tools import Table, has, interleaved, run_part

THREADS = 2


def say(e):
    return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"


def close(a, b, tol=1e-4):
    return bool(np.allclose(np.asarray(a), np.asarray(b), rtol=tol, atol=tol))


# ---- AdamW on 100 tensors, 10^7 numbers ----
def adamw(table):
    r = np.random.default_rng(0)
    shapes = [(320, 312) if i % 2 else (100160,) for i in range(100)]
    params, grads = ([r.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(2))
    kw = {"lr": 1e-3, "weight_decay": 0.01}
    step = eager.compile(lambda p, g, s: optim.adamw_update(p, g, s, **kw), donate=(0, 2))
    mine = [[eager.constant(p) for p in params]]
    mine.append(optim.adamw_init(mine[0]))
    given = [eager.constant(g) for g in grads]
    eager.realize_all(*mine[0], *given, *mine[1]["m"], *mine[1]["v"], mine[1]["step"])

    def ours():
        mine[:] = step(mine[0], given, mine[1])

    ours()
    first = mine[0][0].numpy().copy()
    before = eager.stats()["steps"]
    ours()
    launches = eager.stats()["steps"] - before
    candidates, right = {"ours": ours}, True
    if has("torch"):
        import torch

        ts = [torch.from_numpy(p.copy()).requires_grad_() for p in params]
        for t, g in zip(ts, grads):
            t.grad = torch.from_numpy(g)
        opt = torch.optim.AdamW(ts, fused=True, **kw)
        opt.step()
        right = close(first, ts[0].detach().numpy(), 1e-5)
        candidates["torch fused"] = opt.step
    if has("jax") and has("optax"):
        import jax
        import optax

        rule = optax.adamw(1e-3, weight_decay=0.01)

        def go(p, s, g):
            u, s = rule.update(g, s, p)
            return optax.apply_updates(p, u), s

        go = jax.jit(go, donate_argnums=(0, 1))
        theirs = [[jax.numpy.asarray(p) for p in params]]
        theirs.append(rule.init(theirs[0]))
        there = [jax.numpy.asarray(g) for g in grads]

        def optax_step():
            theirs[:] = go(theirs[0], theirs[1], there)
            jax.block_until_ready(theirs)

        candidates["optax"] = optax_step
    t = interleaved(candidates, rounds=9, settle=0.1)
    count = sum(int(np.prod(s)) for s in shapes)
    table.add(
        "AdamW, 100 tensors, 10^7 parameters",
        t.pop("ours"),
        t,
        0.8,
        right=right,
        note=f"{launches} launches, {28 * count / 1e6:.0f} MB read and written",
    )


# ---- a GPT of 6 layers of 384 ----
def gpt_step(table):
    eager.seed(0)
    model = GPT(6, 384, 6)
    r = np.random.default_rng(0)
    x, y = r.integers(0, 256, (2, 8, 128))
    candidates, right = {}, True
    start = loss_of(model, eager.constant(x), eager.constant(y)).item()
    if has("torch"):
        import torch

        net = torch_gpt(model, 6)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        tx, ty = torch.from_numpy(x), torch.from_numpy(y)

        def torch_step():
            loss = torch.nn.functional.cross_entropy(net(tx).flatten(0, 1), ty.flatten())
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            return loss.item()

        right = abs(torch_step() - start) < 1e-3
        candidates["torch"] = torch_step
    step = train_step(1e-3)
    mine = [model, optim.adamw_init(model)]
    ex, ey = eager.constant(x), eager.constant(y)

    def ours():
        mine[0], mine[1], loss = step(mine[0], mine[1], ex, ey)
        return loss.item()

    t = interleaved({"ours": ours, **candidates}, rounds=5)
    table.add("GPT training step, 6 x 384, batch 8 x 128", t.pop("ours"), t, 0.85, right=right)


def gpt_decode(table):
    eager.seed(0)
    model = GPT(6, 384, 6).eval()
    with eager.no_grad():
        step = eager.compile(lambda t, c: (lambda l, c: (l[:, -1].argmax(axis=-1), c))(*model(t, c)), donate=(1,))
        prompt = np.arange(64)[None] % 256
        token, caches = step(eager.constant(prompt), model.make_caches(1, 256))
        state = [token.reshape((1, 1)), caches]
        seen = []

        def ours():
            with eager.no_grad():
                if int(state[1][0].length) >= 250:
                    state[0], state[1] = (lambda t, c: (t.reshape((1, 1)), c))(*step(eager.constant(prompt), model.make_caches(1, 256)))
                t, state[1] = step(state[0], state[1])
                state[0] = t.reshape((1, 1))
                seen.append(t.item())

    candidates, right = {"ours": ours}, True
    if has("torch"):
        import torch

        net = torch_gpt(model, 6).eval()
        with torch.inference_mode():
            logits, past = net(torch.from_numpy(prompt), [])
            now = [logits[:, -1].argmax(-1, keepdim=True), past]
        right = now[0].item() == token.item()

        def torch_step():
            with torch.inference_mode():
                if now[1][0][0].shape[2] >= 250:
                    logits, now[1] = net(torch.from_numpy(prompt), [])
                else:
                    logits, now[1] = net(now[0], now[1])
                now[0] = logits[:, -1].argmax(-1, keepdim=True)
                now[0].item()

        candidates["torch"] = torch_step
    t = interleaved(candidates, rounds=15, number=8)
    table.add("GPT decoding, one token, f32, 6 x 384, 64 to 192 tokens before", t.pop("ours"), t, 0.6, right=right)


# ---- digits ----
def cnn_epoch(table):
    train, _ = digits.load()
    eager.seed(0)
    model = digits.CNN()
    loader = eager.data.DataLoader(train, 64, shuffle=True, drop_last=True)

    @eager.compile(donate=(0, 1))
    def step(model, state, x, y):
        def f(m):
            return nn.functional.cross_entropy(m(x), y), m

        (loss, model), grads = eager.value_and_grad(f, has_aux=True)(model)
        model, state = optim.adamw_update(model, grads, state, lr=1e-3)
        return model, state, loss

    mine = [model, optim.adamw_init(model)]

    def ours():
        for x, y in loader:
            mine[0], mine[1], loss = step(mine[0], mine[1], x, y)
        return loss.item()

    candidates = {"ours": ours}
    if has("torch"):
        import torch

        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.BatchNorm2d(64),
            torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(256, 10),
        )  # fmt: skip
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
        set_ = torch.utils.data.TensorDataset(torch.from_numpy(train[0][:, None]), torch.from_numpy(train[1]))
        batches = torch.utils.data.DataLoader(set_, 64, shuffle=True, drop_last=True)

        def torch_epoch():
            for x, y in batches:
                loss = torch.nn.functional.cross_entropy(net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            return loss.item()

        candidates["torch"] = torch_epoch
    t = interleaved(candidates, rounds=5)
    right = ours() < 1.0
    table.add("digits CNN, one epoch with its data loop", t.pop("ours"), t, 0.7, right=right)


CASES = {"adamw": adamw, "gpt_step": gpt_step, "gpt_decode": gpt_decode, "cnn_epoch": cnn_epoch}


def main(names):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    table = Table()
    for name, case in CASES.items():
        if not names or any(name.startswith(n) for n in names):
            try:
                case(table)
            except Exception as e:
                print(f"    ({name}: {say(e)})", file=sys.stderr)


def rows(table):
    run_part("models", THREADS)


if __name__ == "__main__":
    main(sys.argv[1:])
