"""FSDP, or ZeRO-3: parameters, gradients and optimizer state are cut over the devices that also cut the
batch. A layer's parameters are gathered when they are needed, and gradients are reduced to the part that each
device owns.

eager.all_gather says where. Under eager.checkpoint the backward pass gathers again, so no device ever holds
more than the layer it works on: three times the parameters are sent, the textbook's count for ZeRO-3. Without
it what was gathered is kept for the backward pass, which sends a third less."""

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put, whole


def layer(p, x):
    return eager.relu(x @ eager.all_gather(p["w"], axis=0) + eager.all_gather(p["b"], axis=0))


def loss(params, x, y, again):
    f = eager.checkpoint(layer) if again else layer
    for name in sorted(params):
        x = f(params[name], x)
    d = x - y
    return (d * d).mean()


def step(params, x, y, again, lr=0.1):
    value, grads = eager.value_and_grad(loss, realize=False)(params, x, y, again)
    return value, {k: {j: params[k][j] - lr * grads[k][j] for j in params[k]} for k in params}


def main(dim=32, layers=3, batch=64):
    n = devices()
    mesh = DeviceMesh("fsdp", (n,), ("data",))
    params = {f"layer{i}": {"w": normal(dim, dim, seed=i, scale=dim**-0.5), "b": normal(dim, seed=i + 10)} for i in range(layers)}
    x, y = normal(batch, dim, seed=4), normal(batch, dim, seed=5)
    args = put(params, mesh, P("data")), put(x, mesh, P("data")), put(y, mesh, P("data"))
    size = 4 * sum(a.size for p in params.values() for a in p.values())
    rows = []
    for again in (False, True):
        # an all_gather or reduce_scatter of something that is b bytes as a whole: each device sends (n - 1) /
        # n b
        terms = [("all_gather of the parameters, forward", (n - 1) * size)]
        if again:
            terms += [("all_gather of the parameters, backward", (n - 1) * size)]
        terms += [("reduce_scatter of the gradients", (n - 1) * size), ("all_reduce of the loss", 2 * (n - 1) * 4)]
        reference = step(whole(params), Tensor.constant(x), Tensor.constant(y), False)
        name = "FSDP, gathered again (ZeRO-3)" if again else "FSDP, gathered once"
        rows.append(check(name, lambda *a, again=again: step(*a, again), args, reference, sum(b for _, b in terms), terms=terms))
    return rows


if __name__ == "__main__":
    main()
