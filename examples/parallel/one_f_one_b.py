"""Pipeline, 1F1B: a microbatch goes backwards as soon as it has reached the last stage, so a device keeps the
inputs of at most 2 n - 1 microbatches, however many there are; GPipe keeps all of them.

Stage d computes forward microbatch t - d at tick t, and backward microbatch t - (2 n - 2 - d). Which device
has something to pass on at a tick is known, so nothing else is sent: each microbatch crosses each border once
forward and once backward."""

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put
from examples.parallel.gpipe import layer, plain


def one_f_one_b(mesh, w, xs, ys):
    n, m = mesh.get_axis_size("stage"), int(xs.shape[0])
    shape = tuple(int(k) for k in xs.shape[1:])
    room, count = 2 * n - 1, m
    for k in shape:
        count *= k

    def stages(w, xs, ys):
        me, w = eager.axis_index("stage"), w[0]
        slots = Tensor.arange(room).reshape((room, *[1] * len(shape)))
        kept = Tensor.zeros((room, *shape))
        ahead = behind = Tensor.zeros(shape)
        total, grad = Tensor.zeros(()), Tensor.zeros(tuple(int(k) for k in w.shape))
        for t in range(m + 2 * n - 2):
            forward, backward = t - me, t - (2 * n - 2) + me
            x = eager.where(me == 0, xs[min(t, m - 1)], ahead)
            kept = eager.where((slots == forward % room) & (forward >= 0) & (forward < m), x, kept)
            pairs = [(d, d + 1) for d in range(n - 1) if 0 <= t - d < m]
            if pairs:
                ahead = eager.ppermute(layer(w, x), pairs, axis_name="stage")
            if t < n - 1:
                continue
            old = eager.where(slots == backward % room, kept, 0.0).sum(axis=0)
            y, pull = eager.vjp(layer, w, old)
            d = y - ys[min(t - (n - 1), m - 1)]
            here = (backward >= 0) & (backward < m)
            total = total + eager.where((me == n - 1) & here, (d * d).sum(), 0.0)
            dw, dx = pull(eager.where(here, eager.where(me == n - 1, 2.0 / count * d, behind), 0.0))
            grad = grad + dw
            pairs = [(d, d - 1) for d in range(1, n) if 0 <= t - (2 * n - 2) + d < m]
            if pairs:
                behind = eager.ppermute(dx, pairs, axis_name="stage")
        return eager.psum(total, "stage") / count, grad.unsqueeze(0)

    return eager.shard_map(stages, mesh, in_specs=(P("stage"), P(), P()), out_specs=(P(), P("stage")))(w, xs, ys)


def main(dim=16, micro=8, batch=4):
    n = devices()
    mesh = DeviceMesh("pipe", (n,), ("stage",))
    w, xs, ys = normal(n, dim, dim, seed=1, scale=dim**-0.5), normal(micro, batch, dim, seed=2), normal(micro, batch, dim, seed=3)
    act = 4 * batch * dim
    terms = [
        ("forward: each of m microbatches over n - 1 borders", micro * (n - 1) * act),
        ("backward: the same", micro * (n - 1) * act),
        ("all_reduce of the loss", 2 * (n - 1) * 4),
    ]
    args = put(w, mesh, P("stage")), Tensor.constant(xs), Tensor.constant(ys)
    reference = plain(*map(Tensor.constant, (w, xs, ys)))
    return check("pipeline, 1F1B", lambda *a: one_f_one_b(mesh, *a), args, reference, sum(b for _, b in terms), terms=terms)


if __name__ == "__main__":
    main()
