"""A small GPT on bytes: trained on the documents and sources of this project, then asked to go on. `python -m
examples.models.gpt [folder]`.

One compiled function is the training step, another the decoding step: its cache of keys and values has room
for all tokens and a length that is data, so it serves every length.
"""

import os
import sys

import numpy as np

import eager
from eager import nn, optim
from examples import size
from examples.models.show import Progress, chart

F = nn.functional
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def text(folders=("docs", "src/graph", "src/exec", "python/eager"), suffixes=(".md", ".c", ".h", ".py")):
    """The bytes of the files of some folders, in order."""
    out = []
    for folder in folders:
        for base, _, names in sorted(os.walk(os.path.join(ROOT, folder))):
            for name in sorted(names):
                if name.endswith(suffixes):
                    with open(os.path.join(base, name), "rb") as f:
                        out.append(f.read())
    return np.frombuffer(b"\n".join(out), np.uint8)


class GPT(nn.Module):
    """Pre-norm blocks with rotary positions; the output shares the embedding's weight."""

    def __init__(self, layers=6, dim=384, heads=6, vocabulary=256, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.embed.weight = nn.Parameter((F.normal_init((vocabulary, dim)) * 0.02).realize())
        block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout, activation="gelu", rotary=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(dim))
        for layer in self.blocks.layers:  # deep copies are alike: each begins elsewhere
            for name, p in layer.named_parameters():
                if len(p.shape) == 2:
                    std = 0.02 / ((2 * layers) ** 0.5 if "out_proj" in name or "linear2" in name else 1.0)
                    eager.rebind(p, (F.normal_init(p.shape) * std).realize()).requires_grad_()
                elif "norm" not in name:
                    eager.rebind(p, eager.zeros(p.shape).realize()).requires_grad_()

    def forward(self, tokens, caches=None):
        """Logits (N, S, vocabulary) of the next tokens; with caches (logits, new caches)."""
        x = self.embed(tokens)
        if caches is None:
            return self.blocks(x, is_causal=True) @ self.embed.weight.T
        x, caches = self.blocks(x, caches=caches)
        return x @ self.embed.weight.T, caches

    def make_caches(self, batch, capacity):
        return [layer.self_attn.make_cache(batch, capacity) for layer in self.blocks.layers]


def batches(tokens, batch, length, seed=0):
    """Endless pairs (inputs, targets) of windows of the text."""
    r = np.random.default_rng(seed)
    while True:
        at = r.integers(0, len(tokens) - length - 1, batch)
        rows = np.stack([tokens[i : i + length + 1] for i in at]).astype(np.int64)
        yield eager.from_dlpack(np.ascontiguousarray(rows[:, :-1])), eager.from_dlpack(np.ascontiguousarray(rows[:, 1:]))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def train_step(schedule, clip=1.0, trained=None):
    """step(model, state, x, y) -> (model, state, loss), compiled; arguments are given away."""

    @eager.compile(donate=(0, 1))
    def step(model, state, x, y):
        loss, grads = eager.value_and_grad(loss_of)(model, x, y)
        grads, _ = optim.clip_grad_norm(grads, clip)
        model, state = optim.adamw_update(model, grads, state, lr=schedule, weight_decay=0.01)
        return model, state, loss

    return step


def train(model, tokens, steps, batch, length, lr=1e-3, seed=0, what="GPT"):
    """(trained model, losses)."""
    step = train_step(optim.cosine_schedule(lr, steps, warmup_steps=max(steps // 20, 1), final=lr / 10))
    state, losses, source = optim.adamw_init(model), [], batches(tokens, batch, length, seed)
    bar = Progress(range(steps), steps, what)
    for _ in bar:
        model, state, loss = step(model, state, *next(source))
        losses.append(loss.item())
        bar.note(loss=np.mean(losses[-20:]))
    return model, losses


class Generator:
    """Goes on with a text, token by token, by one compiled step."""

    def __init__(self, model, capacity=256, temperature=0.8, top_k=None, top_p=0.95):
        self.model, self.capacity = model.eval(), capacity

        def step(tokens, caches, key):
            logits, caches = self.model(tokens, caches)
            return F.sample_logits(logits[:, -1], temperature, top_k, top_p, key=key), caches

        self.step = eager.compile(step, donate=(1,))

    @eager.no_grad()
    def __call__(self, prompt, count, seed=0):
        """The bytes after the prompt; the prompt goes in one piece, then each token by itself."""
        tokens = np.frombuffer(prompt, np.uint8).astype(np.int64)[None]
        if tokens.shape[1] + count > self.capacity:
            raise ValueError(f"{tokens.shape[1]} tokens and {count} more do not fit in a cache for {self.capacity}")
        caches, out = self.model.make_caches(1, self.capacity), []
        new, caches = self.step(eager.constant(tokens), caches, eager.fold_in(eager.key(seed), 0))
        for i in range(1, count + 1):
            out.append(new.item())
            if i < count:
                new, caches = self.step(new.reshape((1, 1)), caches, eager.fold_in(eager.key(seed), i))
        return bytes(out)


def main(folder="."):
    eager.seed(0)
    tokens = text()
    layers, dim, heads = size((4, 128, 4), (2, 32, 2))
    model = GPT(layers, dim, heads)
    model, losses = train(model, tokens, size(600, 6), size(16, 2), size(128, 16))
    path = os.path.join(folder, "gpt.svg")
    chart(path, f"GPT {layers} x {dim} on {len(tokens) // 1024} KiB of documents and sources", {"loss": losses}, y="loss (nats per byte)")
    generate = Generator(model, size(256, 64))
    prompt = b"## Tensors\n\nA tensor "
    print((prompt + generate(prompt, size(200, 24))).decode("utf-8", "replace"))
    print(f"gpt: {model.num_parameters():,} parameters, loss {losses[0]:.2f} to {np.mean(losses[-20:]):.2f} nats per byte; curve in {path}")
    return model, losses


if __name__ == "__main__":
    main(*sys.argv[1:])
