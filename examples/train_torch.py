"""Training in torch with kernels of ours: a block of layer norm and a two-layer perceptron with gelu, as one operator that torch differentiates.

A kernel, or as here a function that launches some, becomes an operator by eas.torch.op: it says which parameters the operator makes (outputs), how, and what the
backward is. From then on it is a torch function like any other: autograd, torch.compile(fullgraph=True), vmap and export work.

The backward is an operator as well, called by a function of torch's. What would be many passes over memory is one kernel each: bias and gelu go with the product,
the slope of gelu and the sums down its columns are one pass. Products of transposed matrices are left to torch.mm, which is good at them.

The loop trains the same network twice from the same weights, with torch's layers and with this block, and compares the losses."""

from functools import partial

import torch

import eas
from eas import mk
from examples import ms, size
from examples.layernorm import forward as norm_forward
from examples.layernorm import norm_dx, norm_sums
from examples.matmul import gelu, product

EPS = 1e-5


def tile(n, most):
    """The largest power of two that divides n, up to a limit."""
    return min(n & -n, most)


# ---- linear layers: weights are (in, out), so that the product goes along memory ----


@eas.kernel
def linear_kernel(x, w, bias, out, N, K, BM: eas.constexpr, BN: eas.constexpr, BK: eas.constexpr):
    rows, cols = mk.program_id(1) * BM + mk.arange(0, BM), mk.program_id(0) * BN + mk.arange(0, BN)
    acc = product(x, w, rows, cols, N, K, BM, BN, BK)
    mk.store(out, rows[:, None] * N + cols[None, :], acc + mk.load(bias, cols)[None, :])


@eas.kernel
def linear_gelu_kernel(x, w, bias, out, z, N, K, BM: eas.constexpr, BN: eas.constexpr, BK: eas.constexpr):
    """out = gelu(z), z = x @ w + bias; z is what the backward needs."""
    rows, cols = mk.program_id(1) * BM + mk.arange(0, BM), mk.program_id(0) * BN + mk.arange(0, BN)
    at = rows[:, None] * N + cols[None, :]
    v = product(x, w, rows, cols, N, K, BM, BN, BK) + mk.load(bias, cols)[None, :]
    mk.store(z, at, v)
    mk.store(out, at, gelu(v))


@eas.kernel
def gelu_backward_kernel(z, grad, dz, dbias, M, N, BN: eas.constexpr):
    """dz = grad * gelu'(z), and its sums down the columns, in one pass."""
    c = mk.program_id(0) * BN + mk.arange(0, BN)
    total = mk.var(mk.zeros(BN))
    for row in mk.range(0, M):
        v = mk.load(z, row * N + c)
        s = 1.0 / (1.0 + mk.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))
        slope = s + v * s * (1.0 - s) * (1.5957691216057308 + 0.21406863000000001 * v * v)
        d = mk.load(grad, row * N + c) * slope
        mk.store(dz, row * N + c, d)
        total += d
    mk.store(dbias, c, total.value)


def tiles(x, w):
    """What a launch of either product needs to know."""
    (m, k), n = x.shape, w.shape[1]
    bm, bn, bk = tile(m, 64), tile(n, 64), tile(k, 256)
    return {"N": n, "K": k, "BM": bm, "BN": bn, "BK": bk, "_grid": (n // bn, m // bm)}


# ---- the block ----


def forward(x, gamma, beta, w1, b1, w2, b2, out, normed, mean, rstd, z, h):
    norm_forward(x, gamma, beta, normed, mean, rstd, EPS)
    linear_gelu_kernel(normed, w1, b1, h, z, **tiles(normed, w1))
    linear_kernel(h, w2, b2, out, **tiles(h, w2))


def backward(x, gamma, w1, w2, normed, mean, rstd, z, h, grad, want_dx: bool, dx, dgamma, dbeta, dw1, db1, dw2, db2):
    """The chain rule, from the end. The first block of a network has no use for dx: it is empty then."""
    m, n = z.shape
    bn = tile(n, 64)
    torch.sum(grad, 0, out=db2)
    torch.mm(h.T, grad, out=dw2)
    dz = grad @ w2.T
    gelu_backward_kernel(z, dz, dz, db1, m, n, BN=bn, _grid=n // bn)
    torch.mm(normed.T, dz, out=dw1)
    dnormed = dz @ w1.T
    if want_dx:
        norm_dx(x, gamma, dnormed, mean, rstd, dx)
    norm_sums(x, dnormed, mean, rstd, dgamma, dbeta)


def hidden_shape(x, w1):
    return x.shape[0], w1.shape[1]


block_backward = eas.torch.op(
    "train::block_backward",
    backward,
    outputs={
        "dx": lambda x, want_dx: x.shape if want_dx else (0,),
        "dgamma": "gamma",
        "dbeta": "gamma",
        "dw1": "w1",
        "db1": lambda w1: w1.shape[1:],
        "dw2": "w2",
        "db2": lambda w2: w2.shape[1:],
    },
)
block = eas.torch.op(
    "train::block",
    forward,
    outputs={
        "out": lambda x, w2: (x.shape[0], w2.shape[1]),
        "normed": "x",
        "mean": lambda x: x.shape[:1],
        "rstd": lambda x: x.shape[:1],
        "z": hidden_shape,
        "h": hidden_shape,
    },
    differentiable="out",
    save=("x", "gamma", "w1", "w2", "normed", "mean", "rstd", "z", "h"),
    backward=lambda ctx, grad: chain(ctx, grad),
)


def chain(ctx, grad):
    """What torch calls: one gradient for each argument of the block, None where there is none."""
    want_dx = ctx.needs_input_grad[0]
    dx, *others = block_backward(*ctx.saved_tensors, grad, want_dx)
    return dx if want_dx else None, *others


# ---- the network, twice ----


class Ours(torch.nn.Module):
    def __init__(self, theirs):
        super().__init__()
        self.gamma, self.beta = (torch.nn.Parameter(p.detach().clone()) for p in (theirs.norm.weight, theirs.norm.bias))
        self.w1, self.w2 = (torch.nn.Parameter(layer.weight.detach().T.contiguous()) for layer in (theirs.up, theirs.down))
        self.b1, self.b2 = (torch.nn.Parameter(layer.bias.detach().clone()) for layer in (theirs.up, theirs.down))

    def forward(self, x):
        return block(x, self.gamma, self.beta, self.w1, self.b1, self.w2, self.b2)[0]


class Theirs(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden, eps=EPS)
        self.up, self.down = torch.nn.Linear(hidden, hidden), torch.nn.Linear(hidden, hidden)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))


def trainer(net, parameters, lr=0.5):
    """A function that does one step and returns the loss."""
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def networks(hidden):
    theirs = Theirs(hidden)
    return theirs, Ours(theirs)


def batches(hidden, batch, n):
    """Inputs, and what a fixed random network makes of them: something that can be learned."""
    teacher = Theirs(hidden)
    with torch.no_grad():
        for _ in range(n):
            x = torch.randn(batch, hidden)
            yield x, 4 * teacher(x)


def main(hidden=None, batch=None, steps=None):
    hidden, batch, steps = hidden or size(512, 64), batch or size(128, 16), steps or size(150, 30)
    torch.manual_seed(0)
    theirs, ours = networks(hidden)
    data = list(batches(hidden, batch, steps))
    losses = {}
    for name, net in (("torch", theirs), ("eas", ours)):
        step = trainer(net, net.parameters())
        losses[name] = [step(x, y).item() for x, y in data]
    torch.testing.assert_close(torch.tensor(losses["eas"]), torch.tensor(losses["torch"]), rtol=1e-3, atol=1e-5)
    assert losses["eas"][-1] < losses["eas"][0] / 2, "it does not learn"
    x, y = data[0]
    took = {name: ms(partial(trainer(net, net.parameters()), x, y)) for name, net in (("torch", theirs), ("eas", ours))}
    print(
        f"training, hidden {hidden}, batch {batch}: loss {losses['eas'][0]:.3f} to {losses['eas'][-1]:.3f} in {steps} steps (torch's own layers: "
        f"{losses['torch'][-1]:.3f}); a step {took['eas']:.2f} ms, with torch's layers {took['torch']:.2f} ms"
    )


if __name__ == "__main__":
    main()
