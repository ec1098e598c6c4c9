"""Handwritten digits (scikit-learn's, 8 x 8): an MLP in JAX's way, a CNN in torch's. `python -m
examples.models.digits [folder]` trains both and draws their curves.

The MLP's step is one compiled function of (model, optimiser state, batch); the CNN's is model(x),
loss.backward(), opt.step(). Either way an update is one program.
"""

import os
import sys

import numpy as np

import eager
from eager import data, nn, optim
from examples import size
from examples.models.show import Progress, chart

F = nn.functional


def load():
    """(train images, labels), (test images, labels): (N, 8, 8) in [0, 1]; a quarter is for testing."""
    from sklearn.datasets import load_digits

    d = load_digits()
    order = data.permutation(len(d.target), seed=1)
    x, y = (d.images / 16).astype(np.float32)[order], d.target.astype(np.int64)[order]
    cut = len(y) * 3 // 4
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def mlp(width=512):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, 10)
    )


class CNN(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        self.pool, self.drop, self.out = nn.MaxPool2d(2), nn.Dropout(0.3), nn.Linear(2 * width * 4, 10)

    def forward(self, x):
        x = x.reshape((*x.shape, 1))
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        x = self.pool(F.relu(self.norm2(self.conv2(x))))
        return self.out(self.drop(x.reshape((x.shape[0], -1))))


def shifted(seed):
    """A transform of batches: each image moved by up to one pixel."""
    r = np.random.default_rng(seed)

    def move(batch):
        x, y = batch
        wide, out = np.pad(x, ((0, 0), (1, 1), (1, 1))), np.empty_like(x)
        for i, (a, b) in enumerate(r.integers(0, 3, (len(x), 2))):
            out[i] = wide[i, a : a + 8, b : b + 8]
        return out, y

    return move


@eager.no_grad()
def accuracy(model, x, y):
    model.eval()
    right = (model(eager.constant(x)).argmax(axis=-1) == eager.constant(y)).astype("float32").mean().item()
    model.train()
    return right


def train_mlp(train, test, epochs, seed=0):
    """JAX's way: a pure, compiled step. Gives (model, losses, accuracy)."""
    eager.seed(seed)
    model = mlp()
    loader = data.DataLoader(train, 64, shuffle=True, seed=seed, drop_last=True, transform=shifted(seed))
    schedule = optim.cosine_schedule(2e-3, epochs * len(loader), warmup_steps=len(loader) // 2)

    @eager.compile(donate=(0, 1))
    def step(model, state, x, y):
        loss, grads = eager.value_and_grad(lambda m: F.cross_entropy(m(x), y, label_smoothing=0.05))(model)
        model, state = optim.adamw_update(model, grads, state, lr=schedule, weight_decay=1e-2)
        return model, state, loss

    state, losses = optim.adamw_init(model), []
    bar = Progress(range(epochs), epochs, "MLP")
    for _ in bar:
        total = [0.0]
        for x, y in loader:
            model, state, loss = step(model, state, x, y)
            total.append(loss)
        losses += [float(v) for v in total[1:]]
        bar.note(loss=np.mean(losses[-len(loader) :]))
    return model, losses, accuracy(model, *test)


def train_cnn(train, test, epochs, seed=0):
    """Torch's way. Gives (model, losses, accuracy)."""
    eager.seed(seed)
    model = CNN()
    loader = data.DataLoader(train, 64, shuffle=True, seed=seed, drop_last=True, transform=shifted(seed))
    opt = optim.AdamW(model.parameters(), lr=optim.cosine_schedule(4e-3, epochs * len(loader)), weight_decay=1e-2)
    losses, bar = [], Progress(range(epochs), epochs, "CNN")
    for _ in bar:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        bar.note(loss=np.mean(losses[-len(loader) :]))
    return model, losses, accuracy(model, *test)


def smooth(v, n=20):
    return np.convolve(v, np.ones(n) / n, "valid") if len(v) > n else v


def main(folder="."):
    train, test = load()
    _, a, right_a = train_mlp(train, test, size(150, 2))
    _, b, right_b = train_cnn(train, test, size(60, 2))
    path = os.path.join(folder, "digits.svg")
    chart(path, "digits: training loss", {"MLP": smooth(a), "CNN": smooth(b)})
    print(f"digits: test accuracy MLP {100 * right_a:.2f} %, CNN {100 * right_b:.2f} %; curves in {path}")
    return right_a, right_b


if __name__ == "__main__":
    main(*sys.argv[1:])
