"""Pipeline, GPipe: every device has a layer. Microbatches enter the first, and at each tick all devices
compute and pass their result on (ppermute). The ticks are a scan; its derivative is the pipeline backwards.

A pipeline of n stages and m microbatches takes m + n - 1 ticks. The scan passes something on at every tick,
also where a device has nothing yet."""

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put


def layer(w, x):
    return x + eager.tanh(x @ w)


def plain(w, xs, ys):
    """The same without devices: (loss, gradient)."""

    def loss(w):
        h = xs
        for i in range(int(w.shape[0])):
            h = layer(w[i], h)
        return ((h - ys) ** 2).mean()

    return eager.value_and_grad(loss, realize=False)(w)


def gpipe(mesh, w, xs, ys):
    n, m = mesh.get_axis_size("stage"), int(xs.shape[0])
    count = 1
    for k in ys.shape:
        count *= int(k)

    def stages(w, xs, ys):
        me = eager.axis_index("stage")
        steps = eager.concatenate([xs, Tensor.zeros((n - 1, *xs.shape[1:]))], axis=0) if n > 1 else xs

        def tick(held, x):
            y = layer(w[0], eager.where(me == 0, x, held))
            return eager.ppermute(y, [(i, i + 1) for i in range(n - 1)], axis_name="stage"), y

        _, out = eager.scan(tick, Tensor.zeros(xs.shape[1:]), steps)
        d = out[n - 1 :] - ys
        return eager.psum(eager.where(me == n - 1, (d * d).sum(), 0.0), "stage") / count

    def loss(w):
        return eager.shard_map(stages, mesh, in_specs=(P("stage"), P(), P()), out_specs=P())(w, xs, ys)

    assert m >= 1
    return eager.value_and_grad(loss, realize=False)(w)


def main(dim=16, micro=8, batch=4):
    n = devices()
    mesh = DeviceMesh("pipe", (n,), ("stage",))
    w, xs, ys = normal(n, dim, dim, seed=1, scale=dim**-0.5), normal(micro, batch, dim, seed=2), normal(micro, batch, dim, seed=3)
    ticks, act = micro + n - 1, 4 * batch * dim
    terms = [
        ("forward: ppermute to the next stage, m + n - 1 ticks", ticks * (n - 1) * act),
        ("backward: ppermute to the stage before", ticks * (n - 1) * act),
        ("all_reduce of the loss", 2 * (n - 1) * 4),
    ]
    args = put(w, mesh, P("stage")), Tensor.constant(xs), Tensor.constant(ys)
    reference = plain(*map(Tensor.constant, (w, xs, ys)))
    return check("pipeline, GPipe", lambda *a: gpipe(mesh, *a), args, reference, sum(b for _, b in terms), terms=terms)


if __name__ == "__main__":
    main()
