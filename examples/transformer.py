"""A block of a transformer in lazy tensors: written as the formulas are, it runs as a handful of kernels.

Nothing is marked or decorated. Operations record themselves; reading the result finds that layer norm is one
pass over its rows, that attention needs no matrix of scores, and that bias, gelu and residual belong to the
products before them. eager.trace shows the kernels that came out of it."""

import io
import math
from contextlib import redirect_stdout

import numpy as np

import eager
from eager import Tensor
from examples import ms, peers, size


def layer_norm(x, w, b):
    d = x - x.mean(axis=-1, keepdims=True)
    return d * eager.rsqrt((d * d).mean(axis=-1, keepdims=True) + 1e-5) * w + b


def attention(x, wqkv, wo, heads):
    s, dim = int(x.shape[0]), int(x.shape[1])
    q, k, v = (t.reshape((s, heads, dim // heads)).permute((1, 0, 2)) for t in eager.split(x @ wqkv, num_splits=3, axis=1))
    at = Tensor.arange(s)
    scores = eager.where(at.reshape((1, s)) <= at.reshape((s, 1)), q @ k.permute((0, 2, 1)) * (dim // heads) ** -0.5, -math.inf)
    return (eager.softmax(scores) @ v).permute((1, 0, 2)).reshape((s, dim)) @ wo


def block(x, p, heads):
    x = x + attention(layer_norm(x, p["w1"], p["b1"]), p["wqkv"], p["wo"], heads)
    return x + eager.gelu(layer_norm(x, p["w2"], p["b2"]) @ p["up"] + p["bias"]) @ p["down"]


def parameters(dim, seed=0):
    r = np.random.default_rng(seed)
    shapes = {
        "wqkv": (dim, 3 * dim),
        "wo": (dim, dim),
        "up": (dim, 4 * dim),
        "down": (4 * dim, dim),
        "w1": (dim,),
        "b1": (dim,),
        "w2": (dim,),
        "b2": (dim,),
        "bias": (4 * dim,),
    }
    return {n: (r.standard_normal(s) / math.sqrt(s[0])).astype(np.float32) for n, s in shapes.items()}


def in_numpy(x, p, heads):
    def norm(x, w, b):
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w + b

    s, dim = x.shape
    q, k, v = (t.reshape(s, heads, -1).transpose(1, 0, 2) for t in np.split(norm(x, p["w1"], p["b1"]) @ p["wqkv"], 3, 1))
    scores = np.where(np.tri(s, dtype=bool), q @ k.transpose(0, 2, 1) / math.sqrt(dim // heads), -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    x = x + (e / e.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(s, dim) @ p["wo"]
    h = norm(x, p["w2"], p["b2"]) @ p["up"] + p["bias"]
    return x + h / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) @ p["down"]


def in_torch(torch, x, heads, p):
    f = torch.nn.functional
    s, dim = x.shape
    q, k, v = (t.reshape(1, s, heads, -1).transpose(1, 2) for t in (f.layer_norm(x, (dim,), p["w1"], p["b1"]) @ p["wqkv"]).split(dim, 1))
    x = x + f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(s, dim) @ p["wo"]
    return x + f.gelu(f.layer_norm(x, (dim,), p["w2"], p["b2"]) @ p["up"] + p["bias"], approximate="tanh") @ p["down"]


def main(s=None, dim=None, heads=8):
    s, dim = s or size(1024, 48), dim or size(512, 32)
    p, x = parameters(dim), np.random.default_rng(1).standard_normal((s, dim), dtype=np.float32)
    there, t = {n: Tensor.from_dlpack(a) for n, a in p.items()}, Tensor.from_dlpack(x)
    np.testing.assert_allclose(block(t, there, heads).numpy(), in_numpy(x.astype(np.float64), p, heads), rtol=2e-3, atol=2e-3)
    took = ms(lambda: block(t, there, heads).realize())

    def torch_block(torch, x):
        return in_torch(torch, x, heads, {n: torch.from_numpy(a) for n, a in p.items()})

    shown = io.StringIO()
    with redirect_stdout(shown):
        eager.trace(lambda v: block(v, there, heads), t)
    kernels = sum(line.startswith("kernel ") for line in shown.getvalue().splitlines())
    print(
        f"transformer block of {s} x {dim}, {heads} heads: {took:.2f} ms in {kernels} kernels{peers(x, torch=torch_block)}; as the plain formula says"
    )


if __name__ == "__main__":
    main()
