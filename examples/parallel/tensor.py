"""Tensor parallel: the layers of a transformer block are cut inside. The first matrix of the MLP is cut by
columns and the second by rows, attention by heads, so that each half of the block needs one all_reduce
forward and one backward, of one activation."""

import math

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put, whole

SPECS = {"q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model"), "o": P("model", None), "up": P(None, "model"), "down": P("model", None)}


def mlp(p, x):
    return eager.gelu(x @ p["up"]) @ p["down"]


def attention(p, x, heads):
    b, s, d = (int(n) for n in x.shape)
    q, k, v = ((x @ p[name]).reshape((b, s, heads, d // heads)).permute((0, 2, 1, 3)) for name in "qkv")
    scores = eager.softmax(q @ k.permute((0, 1, 3, 2)) / math.sqrt(d // heads))
    return (scores @ v).permute((0, 2, 1, 3)).reshape((b, s, d)) @ p["o"]


def block(p, x, heads):
    x = x + attention(p, x, heads)
    return x + mlp(p, x)


def gradients(p, x, target, heads):
    """The loss and its gradients for the parameters and for the input, as a block in the middle of a network
    gives them."""

    def loss(p, x):
        return ((block(p, x, heads) - target) ** 2).mean()

    return eager.value_and_grad(loss, argnums=(0, 1), realize=False)(p, x)


def parameters(dim, hidden, seed=0):
    shapes = {"q": (dim, dim), "k": (dim, dim), "v": (dim, dim), "o": (dim, dim), "up": (dim, hidden), "down": (hidden, dim)}
    return {k: normal(*s, seed=seed + i, scale=s[0] ** -0.5) for i, (k, s) in enumerate(shapes.items())}


def main(dim=32, hidden=128, heads=8, batch=2, length=16):
    n = devices()
    mesh = DeviceMesh("tp", (n,), ("model",))
    p, x, y = parameters(dim, hidden), normal(batch, length, dim, seed=8), normal(batch, length, dim, seed=9)
    act = 4 * batch * length * dim  # bytes of one activation
    terms = [("forward: all_reduce after attention and after the MLP", 2 * 2 * (n - 1) * act), ("backward: all_reduce of the gradient before each", 2 * 2 * (n - 1) * act)]
    args = put(p, mesh, SPECS), put(x, mesh, P()), put(y, mesh, P())
    reference = gradients(whole(p), Tensor.constant(x), Tensor.constant(y), heads)
    return check("tensor parallel block", lambda *a: gradients(*a, heads), args, reference, sum(b for _, b in terms), terms=terms)


if __name__ == "__main__":
    main()
