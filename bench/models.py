"""Models: an update of many parameters, training steps and decoding of a GPT, an epoch of a CNN, images
through a ViT and a ResNet, against torch and JAX. Results are checked before anything is timed."""

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


# ---- two networks of images, forward ----
class ViT(nn.Module):
    """ViT-small: patches of 16, 12 pre-norm blocks of 384, a class token."""

    def __init__(self, layers=12, dim=384, heads=6, size=224, patch=16, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.token = nn.Parameter(nn.functional.normal_init((1, 1, dim)) * 0.02)
        self.places = nn.Parameter(nn.functional.normal_init((1, (size // patch) ** 2 + 1, dim)) * 0.02)
        block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, activation="gelu", norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(dim))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        n = x.shape[0]
        x = self.patches(x)
        x = x.reshape((n, -1, x.shape[-1]))
        token = eager.broadcast_to(self.token, (n, 1, x.shape[-1]))
        x = self.blocks(eager.concatenate([token, x], axis=1) + self.places)
        return self.head(x[:, 0])


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)) if stride > 1 else None

    def forward(self, x):
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + (self.down(x) if self.down else x)).relu()


class ResNet(nn.Module):
    """ResNet-18."""

    def __init__(self, classes=1000):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.layers = nn.Sequential(*(Residual(*s) for s in sizes))
        self.head = nn.Linear(512, classes)

    def forward(self, x):
        x = self.layers(self.pool(self.norm(self.conv(x)).relu()))
        return self.head(x.mean(axis=(1, 2)))


def torch_conv(torch, conv, **kw):
    w = np.ascontiguousarray(conv.weight.numpy().transpose(3, 2, 0, 1))
    m = torch.nn.Conv2d(w.shape[1], w.shape[0], w.shape[2:], bias=conv.bias is not None, **kw)
    m.weight.data = torch.from_numpy(w)
    if conv.bias is not None:
        m.bias.data = torch.from_numpy(conv.bias.numpy().copy())
    return m


def torch_linear(torch, linear):
    w = linear.weight.numpy()
    m = torch.nn.Linear(*w.shape)
    m.weight.data, m.bias.data = torch.from_numpy(np.ascontiguousarray(w.T)), torch.from_numpy(linear.bias.numpy().copy())
    return m


def torch_vit(torch, model):
    F = torch.nn.functional
    patches, head = torch_conv(torch, model.patches, stride=16), torch_linear(torch, model.head)
    token, places = (torch.from_numpy(t.numpy().copy()) for t in (model.token, model.places))

    def norm(m):
        t = torch.nn.LayerNorm(m.weight.shape[0])
        t.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in m.state_dict().items()})
        return t

    blocks = [
        ([torch_linear(torch, getattr(b.self_attn, f"{n}_proj")) for n in ("q", "k", "v", "out")], torch_linear(torch, b.linear1), torch_linear(torch, b.linear2), norm(b.norm1), norm(b.norm2))
        for b in model.blocks.layers
    ]
    last, heads = norm(model.blocks.norm), model.blocks.layers[0].self_attn.num_heads

    def forward(x):
        x = patches(x).flatten(2).transpose(1, 2)
        n, _, d = x.shape
        x = torch.cat([token.expand(n, 1, d), x], 1) + places
        for (q, k, v, o), up, down, norm1, norm2 in blocks:
            y = norm1(x)
            a = F.scaled_dot_product_attention(*(f(y).view(n, -1, heads, d // heads).transpose(1, 2) for f in (q, k, v)))
            x = x + o(a.transpose(1, 2).reshape(n, -1, d))
            x = x + down(F.gelu(up(norm2(x)), approximate="tanh"))
        return head(last(x)[:, 0])

    return forward


def torch_resnet(torch, model):
    F = torch.nn.functional

    def norm(m):
        t = torch.nn.BatchNorm2d(m.weight.shape[0]).eval()
        t.weight.data, t.bias.data = torch.from_numpy(m.weight.numpy().copy()), torch.from_numpy(m.bias.numpy().copy())
        return t

    first, norm0, head = torch_conv(torch, model.conv, stride=2, padding=3), norm(model.norm), torch_linear(torch, model.head)
    layers = []
    for r in model.layers:
        stride = 2 if r.down else 1
        down = (torch_conv(torch, r.down[0], stride=2), norm(r.down[1])) if r.down else None
        layers.append((torch_conv(torch, r.conv1, stride=stride, padding=1), norm(r.norm1), torch_conv(torch, r.conv2, padding=1), norm(r.norm2), down))

    def forward(x):
        x = F.max_pool2d(F.relu(norm0(first(x))), 3, 2, 1)
        for c1, n1, c2, n2, down in layers:
            y = n2(c2(F.relu(n1(c1(x)))))
            x = F.relu(y + (down[1](down[0](x)) if down else x))
        return head(x.mean((2, 3)))

    return forward


def images(table, name, make, make_torch, batch):
    eager.seed(0)
    model = make().eval()
    x = np.random.default_rng(0).standard_normal((batch, 224, 224, 3)).astype(np.float32)
    given = eager.constant(x)
    forward = eager.compile(lambda m, x: m(x))

    def ours():
        with eager.no_grad():
            return forward(model, given).numpy()

    want, right, candidates = ours(), True, {"ours": ours}
    if has("torch"):
        import torch

        net, there = make_torch(torch, model), torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))

        def theirs():
            with torch.inference_mode():
                return net(there).numpy()

        right = close(want, theirs(), 1e-3)
        candidates["torch"] = theirs
    t = interleaved(candidates, rounds=7, settle=0.1)
    table.add(f"{name}, forward, batch {batch} of 224 x 224", t.pop("ours"), t, 0.8, right=right)


def vit(table):
    for batch in (1, 8):
        images(table, "ViT-small", ViT, torch_vit, batch)


def resnet(table):
    for batch in (1, 8):
        images(table, "ResNet-18", ResNet, torch_resnet, batch)


CASES = {"adamw": adamw, "gpt_step": gpt_step, "gpt_decode": gpt_decode, "cnn_epoch": cnn_epoch, "vit": vit, "resnet": resnet}


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
    run_part("models", THREADS, table)


if __name__ == "__main__":
    main(sys.argv[1:])
