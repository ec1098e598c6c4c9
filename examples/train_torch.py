"""Training in torch with kernels of ours: a block of layer norm and a two-layer perceptron with gelu, as one operator that torch differentiates.

A kernel, or as here a function that launches some, becomes an operator by eas.torch.op: it says which parameters the operator makes (outputs), how, and what the
backward is. From then on it is a torch function like any other: autograd, torch.compile(fullgraph=True), vmap and export work.

The backward is an operator as well, called by a function of torch's. Matrix products are torch's; what lies between them, many passes over memory in torch, is one
kernel each: bias and gelu; the slope of gelu with the gradient of the bias; layer norm.

The loop trains the same network twice from the same weights, with torch's layers and with this block, and compares the losses."""

from functools import partial

import torch

import eas
from eas import mk
from examples import ms, size
from examples.layernorm import band_sums, norm_dx
from examples.layernorm import forward as norm_forward
from examples.matmul import gelu

EPS = 1e-5


def tile(n, most):
    """The largest power of two that divides n, up to a limit."""
    return min(n & -n, most)


# ---- between the products ----


@eas.kernel
def bias_gelu_kernel(u, bias, h, N, BN: eas.constexpr):
    """h = gelu(u + bias). The backward adds the bias again: cheaper than a second result in memory."""
    c = mk.program_id(0) * BN + mk.arange(0, BN)
    at = mk.program_id(1) * N + c
    mk.store(h, at, gelu(mk.load(u, at) + mk.load(bias, c)))


@eas.kernel
def gelu_backward_kernel(u, bias, grad, dz, dbias, M, N, BN: eas.constexpr):
    """dz = grad * gelu'(u + bias), and its sums down the columns, in one pass."""
    c = mk.program_id(0) * BN + mk.arange(0, BN)
    b = mk.load(bias, c)
    total = mk.var(mk.zeros(BN))
    for row in mk.range(0, M):
        v = mk.load(u, row * N + c) + b
        s = 1.0 / (1.0 + mk.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))
        slope = s + v * s * (1.0 - s) * (1.5957691216057308 + 0.21406863000000001 * v * v)
        d = mk.load(grad, row * N + c) * slope
        mk.store(dz, row * N + c, d)
        total += d
    mk.store(dbias, c, total.value)


# ---- the block ----


def forward(x, gamma, beta, w1, b1, w2, b2, out, normed, mean, rstd, u, h):
    norm_forward(x, gamma, beta, normed, mean, rstd, EPS)
    torch.mm(normed, w1, out=u)
    m, n = u.shape
    bn = tile(n, 512)
    bias_gelu_kernel(u, b1, h, n, BN=bn, _grid=(n // bn, m))
    torch.addmm(b2, h, w2, out=out)


def backward(x, gamma, w1, b1, w2, normed, mean, rstd, u, h, grad, want_dx: bool, dx, dgamma, dbeta, dw1, db1, dw2, db2):
    """The chain rule, from the end. The first block of a network has no use for dx: it is empty then."""
    m, n = u.shape
    bn = tile(n, 64)
    torch.sum(grad, 0, out=db2)
    torch.mm(h.T, grad, out=dw2)
    dz = grad @ w2.T
    gelu_backward_kernel(u, b1, dz, dz, db1, m, n, BN=bn, _grid=n // bn)
    torch.mm(normed.T, dz, out=dw1)
    dnormed = dz @ w1.T
    if want_dx:
        norm_dx(x, gamma, dnormed, mean, rstd, dx)
    band_sums(x, dnormed, mean, rstd, dgamma, dbeta, m, x.shape[1], BAND=m, BLOCK=64, _grid=-(-x.shape[1] // 64))


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
        "db1": "b1",
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
        "u": hidden_shape,
        "h": hidden_shape,
    },
    differentiable="out",
    save=("x", "gamma", "w1", "b1", "w2", "normed", "mean", "rstd", "u", "h"),
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
