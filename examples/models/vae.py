"""A variational autoencoder of digits: learns to draw them. `python -m examples.models.vae [folder]` writes
the loss curve and a picture of samples."""

import os
import sys

import numpy as np

import eager
from eager import data, nn, optim
from examples import size
from examples.models.digits import load, smooth
from examples.models.show import Progress, chart, grid, png

F = nn.functional


class VAE(nn.Module):
    def __init__(self, latent=8, width=256):
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 64))

    def forward(self, x, key):
        """(logits of the pixels, mean, logarithm of the variance) with a latent drawn by the key."""
        mean, logvar = eager.split(self.encoder(x), num_splits=2, axis=-1)
        z = mean + eager.exp(0.5 * logvar) * eager.gaussian(mean.shape, key=key)
        return self.decoder(z), mean, logvar

    def sample(self, n, key):
        return eager.sigmoid(self.decoder(eager.gaussian((n, self.latent), key=key))).reshape((n, 8, 8))


def loss_of(model, x, key):
    """Minus the evidence lower bound, per image."""
    logits, mean, logvar = model(x, key)
    drawn = F.binary_cross_entropy_with_logits(logits, x.reshape((x.shape[0], 64)), reduction="sum")
    apart = -0.5 * (1 + logvar - mean * mean - eager.exp(logvar)).sum()
    return (drawn + apart) / int(x.shape[0])


def train(images, epochs, seed=0):
    eager.seed(seed)
    model, loader = VAE(), data.DataLoader(images, 64, shuffle=True, drop_last=True)

    @eager.compile(donate=(0, 1))
    def step(model, state, key, x):
        key, now = eager.unbind(eager.split_key(key))
        loss, grads = eager.value_and_grad(loss_of)(model, x, now)
        model, state = optim.adamw_update(model, grads, state, lr=1e-3)
        return model, state, key, loss

    state, key, losses = optim.adamw_init(model), eager.key(seed), []
    bar = Progress(range(epochs), epochs, "VAE")
    for _ in bar:
        epoch = []
        for x in loader:
            model, state, key, loss = step(model, state, key, x)
            epoch.append(loss)
        losses += [v.item() for v in epoch]
        bar.note(loss=losses[-1])
    return model, losses


@eager.no_grad()
def main(folder="."):
    (x, _), _ = load()
    with eager.enable_grad():
        model, losses = train(x, size(150, 2))
    assert np.isfinite(losses).all() and np.mean(losses[-10:]) < losses[0]
    samples = model.sample(64, eager.key(1)).numpy()
    path, picture = os.path.join(folder, "vae.svg"), os.path.join(folder, "vae.png")
    chart(path, "VAE of digits: minus evidence lower bound", {"loss": smooth(losses)}, y="nats per image")
    png(picture, 1 - grid(samples, 16), 5)
    print(f"vae: loss {losses[0]:.1f} to {np.mean(losses[-10:]):.1f} nats per image; curve in {path}, samples in {picture}")
    return losses, samples


if __name__ == "__main__":
    main(*sys.argv[1:])
