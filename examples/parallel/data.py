"""Data parallel: every device has all parameters and a part of the batch. The only traffic is the sum of the
gradients (and of the loss).

The model is written for one device. That the batch is cut is all that is said; the partial sums of the
gradients follow from it, and are reduced once, where they meet the parameters."""

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put, whole


def loss(params, x, y):
    h = eager.relu(x @ params["w1"] + params["b1"])
    d = h @ params["w2"] - y
    return (d * d).mean()


def step(params, x, y, lr=0.1):
    value, grads = eager.value_and_grad(loss, realize=False)(params, x, y)
    return value, {k: params[k] - lr * grads[k] for k in params}


def model(dim, hidden):
    return {"w1": normal(dim, hidden, seed=1, scale=dim**-0.5), "b1": normal(hidden, seed=2), "w2": normal(hidden, dim, seed=3, scale=hidden**-0.5)}


def main(dim=32, hidden=64, batch=64):
    n = devices()
    mesh = DeviceMesh("dp", (n,), ("data",))
    params, x, y = model(dim, hidden), normal(batch, dim, seed=4), normal(batch, dim, seed=5)
    size = 4 * sum(p.size for p in params.values())
    # an all_reduce of b bytes: each device sends 2 (n - 1) / n b
    terms = [("all_reduce of the gradients: 2 (n - 1) x parameters", 2 * (n - 1) * size), ("all_reduce of the loss", 2 * (n - 1) * 4)]
    args = put(params, mesh, P()), put(x, mesh, P("data")), put(y, mesh, P("data"))
    return check("data parallel", step, args, step(whole(params), Tensor.constant(x), Tensor.constant(y)), sum(b for _, b in terms), terms=terms)


if __name__ == "__main__":
    main()
