"""A mesh of two axes: the batch is cut along one, the layers inside (examples/parallel/tensor.py) along the
other. Activations are summed along the second axis, gradients along the first, and each device sums only the
part of the gradients that it has."""

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put, whole
from examples.parallel.tensor import SPECS, block, parameters


def step(p, x, y, heads, lr=0.1):
    value, grads = eager.value_and_grad(lambda p: ((block(p, x, heads) - y) ** 2).mean(), realize=False)(p)
    return value, {k: p[k] - lr * grads[k] for k in p}


def main(dim=32, hidden=128, heads=8, batch=4, length=16):
    n = devices()
    d, m = (2, n // 2) if n % 2 == 0 else (1, n)
    mesh = DeviceMesh("grid", (d, m), ("data", "model"))
    p, x, y = parameters(dim, hidden), normal(batch, length, dim, seed=8), normal(batch, length, dim, seed=9)
    act = 4 * (batch // d) * length * dim
    size = 4 * sum(a.size for a in p.values()) // m  # of the parameters of one device
    terms = [
        ("forward: all_reduce along 'model' after attention and MLP, in each of d rows", d * 2 * 2 * (m - 1) * act),
        ("backward: all_reduce along 'model' of the gradient before the MLP", d * 2 * (m - 1) * act),
        ("all_reduce along 'data' of the gradients, in each of m columns", m * 2 * (d - 1) * size),
        ("all_reduce of the loss along 'data', by each column", m * 2 * (d - 1) * 4),
    ]
    args = put(p, mesh, SPECS), put(x, mesh, P("data")), put(y, mesh, P("data"))
    reference = step(whole(p), Tensor.constant(x), Tensor.constant(y), heads)
    return check("data x tensor parallel", lambda *a: step(*a, heads), args, reference, sum(b for _, b in terms), terms=terms)


if __name__ == "__main__":
    main()
