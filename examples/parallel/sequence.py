"""Sequence parallel: what lies between the layers of a tensor-parallel block (norms, residuals) is cut along
the sequence. Each all_reduce of examples/parallel/tensor.py becomes an all_gather before the layer and a
reduce_scatter after it: the same bytes, and activations take the n-th part of the memory."""

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put, whole
from examples.parallel.tensor import SPECS, attention, mlp, parameters


def norm(x):
    d = x - x.mean(axis=-1, keepdims=True)
    return d * eager.rsqrt((d * d).mean(axis=-1, keepdims=True) + 1e-5)


def block(p, x, heads, cut):
    x = x + cut(attention(p, eager.all_gather(norm(x), axis=1), heads))
    return x + cut(mlp(p, eager.all_gather(norm(x), axis=1)))


def gradients(p, x, target, heads, cut=lambda x: x):
    def loss(p, x):
        return ((block(p, x, heads, cut) - target) ** 2).mean()

    return eager.value_and_grad(loss, argnums=(0, 1), realize=False)(p, x)


def main(dim=32, hidden=128, heads=8, batch=2, length=16):
    n = devices()
    mesh = DeviceMesh("sp", (n,), ("model",))
    rows = P(None, "model", None)
    p, x, y = parameters(dim, hidden), normal(batch, length, dim, seed=8), normal(batch, length, dim, seed=9)
    act = 4 * batch * length * dim
    terms = [
        ("forward: all_gather before, reduce_scatter after attention and MLP", 2 * 2 * (n - 1) * act),
        ("backward: the same for gradients", 2 * 2 * (n - 1) * act),
        ("all_reduce of the loss", 2 * (n - 1) * 4),
    ]
    args = put(p, mesh, SPECS), put(x, mesh, rows), put(y, mesh, rows)
    reference = gradients(whole(p), Tensor.constant(x), Tensor.constant(y), heads)
    return check("sequence parallel block", lambda *a: gradients(*a, heads, lambda x: x.shard(mesh, rows)), args, reference, sum(b for _, b in terms), terms=terms)


if __name__ == "__main__":
    main()
