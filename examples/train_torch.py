"""Training in torch with kernels of ours: a block of layer norm and a two-layer perceptron with gelu, as one
operator that torch differentiates.

A kernel, or as here a function that launches some, becomes an operator by eas.torch.op: it says which
parameters the operator makes (outputs), how, and what the backward is. From then on it is a torch function
like any other: autograd, torch.compile(fullgraph=True), vmap and export work.

The backward is an operator as well, whose parameters' names say what they are. Matrix products are torch's;
what lies between them, many passes over memory in torch, is one kernel each: layer norm; bias and gelu; the
slope of gelu; and the gradients of all that is added or scaled by column, in one pass at the end.

The loop trains the same network twice from the same weights, with torch's layers and with this block, and
compares the losses."""

from functools import partial

import torch

import eas
from eas import mk
from examples import ms, size
from examples.layernorm import forward as norm_forward
from examples.layernorm import norm_dx
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
def gelu_backward_kernel(u, bias, grad, dz, N, BN: eas.constexpr):
    """dz = grad * gelu'(u + bias)."""
    c = mk.program_id(0) * BN + mk.arange(0, BN)
    at = mk.program_id(1) * N + c
    v = mk.load(u, at) + mk.load(bias, c)
    s = 1.0 / (1.0 + mk.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))
    slope = s + v * s * (1.0 - s) * (1.5957691216057308 + 0.21406863000000001 * v * v)
    mk.store(dz, at, mk.load(grad, at) * slope)


@eas.kernel
def column_sums(grad, dz, dnormed, x, mean, rstd, db2, db1, dgamma, dbeta, M, OUT, HIDDEN, IN, BN: eas.constexpr):
    """The gradients of all that is the same for every row: sums down the columns of three matrices, each of a
    width of its own."""
    c = mk.program_id(0) * BN + mk.arange(0, BN)
    in_out, in_hidden, in_x = c < OUT, c < HIDDEN, c < IN
    b2, b1, scale, shift = (mk.var(mk.zeros(BN)) for _ in range(4))
    for row in mk.range(0, M):
        b2 += mk.load(grad, row * OUT + c, in_out)
        b1 += mk.load(dz, row * HIDDEN + c, in_hidden)
        d = mk.load(dnormed, row * IN + c, in_x)
        scale += d * ((mk.load(x, row * IN + c, in_x) - mk.load(mean, row)) * mk.load(rstd, row))
        shift += d
    mk.store(db2, c, b2, in_out)
    mk.store(db1, c, b1, in_hidden)
    mk.store(dgamma, c, scale, in_x)
    mk.store(dbeta, c, shift, in_x)


# ---- the block: weights are (out, in), as torch's linear layers have them ----


def forward(x, gamma, beta, w1, b1, w2, b2, out, normed, mean, rstd, u, h):
    norm_forward(x, gamma, beta, normed, mean, rstd, EPS)
    torch.mm(normed, w1.T, out=u)
    m, n = u.shape
    bn = tile(n, 512)
    bias_gelu_kernel(u, b1, h, n, BN=bn, _grid=(n // bn, m))
    torch.addmm(b2, h, w2.T, out=out)


def backward(
    x, gamma, w1, b1, w2, normed, mean, rstd, u, h, grad, needs_x: bool, grad_x, grad_gamma, grad_beta, grad_w1, grad_b1, grad_w2, grad_b2
):
    """The chain rule, from the end. The first block of a network has no use for grad_x: it is empty then."""
    m, n = u.shape
    bn = tile(n, 512)
    dz = torch.mm(grad, w2)
    gelu_backward_kernel(u, b1, dz, dz, n, BN=bn, _grid=(n // bn, m))
    dnormed = torch.mm(dz, w1)
    if needs_x:
        norm_dx(x, gamma, dnormed, mean, rstd, grad_x)
    torch.mm(dz.T, normed, out=grad_w1)
    widths = grad.shape[1], n, x.shape[1]
    column_sums(
        grad, dz, dnormed, x, mean, rstd, grad_b2, grad_b1, grad_gamma, grad_beta, m, *widths, BN=128, _grid=-(-max(widths) // 128)
    )
    torch.mm(grad.T, h, out=grad_w2)


block_backward = eas.torch.op(
    "train::block_backward",
    backward,
    outputs={
        "grad_x": lambda x, needs_x: x.shape if needs_x else (0,),
        "grad_gamma": "gamma",
        "grad_beta": "gamma",
        "grad_w1": "w1",
        "grad_b1": "b1",
        "grad_w2": "w2",
        "grad_b2": lambda w2: w2.shape[:1],
    },
)
block = eas.torch.op(
    "train::block",
    forward,
    outputs={
        "out": lambda x, w2: (x.shape[0], w2.shape[0]),
        "normed": "x",
        "mean": lambda x: x.shape[:1],
        "rstd": "mean",
        "u": lambda x, w1: (x.shape[0], w1.shape[0]),
        "h": "u",
    },
    differentiable="out",
    backward=block_backward,
)


# ---- the network, twice ----


class Ours(torch.nn.Module):
    def __init__(self, theirs):
        super().__init__()
        self.gamma, self.beta = (torch.nn.Parameter(p.detach().clone()) for p in (theirs.norm.weight, theirs.norm.bias))
        self.w1, self.w2 = (torch.nn.Parameter(layer.weight.detach().clone()) for layer in (theirs.up, theirs.down))
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
