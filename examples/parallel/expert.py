"""Expert parallel: a mixture of experts. Tokens are cut into groups, one for each device, and so are the
experts. A token is sent to the device of its expert and its result comes back: two all_to_alls forward, two
backward.

Every expert takes at most `capacity` tokens of a group, so that sizes are known; a token that finds no room
passes by. Routing is a product with a matrix of zeros and ones, so it has derivatives."""

import eager
from eager import DeviceMesh, P, Tensor
from examples.parallel import check, devices, normal, put, whole

SPECS = {"gate": P(), "up": P("expert"), "down": P("expert")}


def routes(gates, experts, capacity):
    """(groups, tokens, experts, capacity): 1 where a token takes a place of an expert."""
    best = eager.argmax(gates, axis=-1)
    chosen = (best.unsqueeze(-1) == Tensor.arange(experts)).cast("f32")
    place = eager.cumsum(chosen, axis=1) - 1
    return (place.unsqueeze(-1) == Tensor.arange(capacity).cast("f32")).cast("f32") * chosen.unsqueeze(-1)


def moe(p, x, capacity, to_experts=lambda t: t, to_tokens=lambda t: t):
    groups, tokens, dim = (int(n) for n in x.shape)
    experts = int(p["up"].shape[0])
    gates = eager.softmax(x @ p["gate"])
    at = routes(gates, experts, capacity)
    flat = at.reshape((groups, tokens, experts * capacity))
    sent = (flat.permute((0, 2, 1)) @ x).reshape((groups, experts, capacity, dim)).permute((1, 0, 2, 3))
    mine = to_experts(sent).reshape((experts, groups * capacity, dim))
    done = (eager.relu(mine @ p["up"]) @ p["down"]).reshape((experts, groups, capacity, dim))
    back = to_tokens(done).permute((1, 0, 2, 3)).reshape((groups, experts * capacity, dim))
    weights = (at * gates.unsqueeze(-1)).reshape((groups, tokens, experts * capacity))
    return x + weights @ back


def gradients(p, x, y, capacity, *moves):
    def loss(p, x):
        return ((moe(p, x, capacity, *moves) - y) ** 2).mean()

    return eager.value_and_grad(loss, argnums=(0, 1), realize=False)(p, x)


def main(dim=16, hidden=32, tokens=16, capacity=4):
    n = devices()
    experts = 2 * n
    mesh = DeviceMesh("ep", (n,), ("expert",))
    p = {"gate": normal(dim, experts, seed=1), "up": normal(experts, dim, hidden, seed=2, scale=dim**-0.5), "down": normal(experts, hidden, dim, seed=3, scale=hidden**-0.5)}
    x, y = normal(n, tokens, dim, seed=4), normal(n, tokens, dim, seed=5)
    # a device has experts x capacity x dim floats for others and keeps the n-th part
    each = (n - 1) * 4 * experts * capacity * dim
    terms = [
        ("forward: all_to_all of tokens and of results", 2 * each),
        ("backward: the same for gradients", 2 * each),
        ("all_reduce of the gate's gradient", 2 * (n - 1) * 4 * dim * experts),
        ("all_reduce of the loss", 2 * (n - 1) * 4),
    ]
    args = put(p, mesh, SPECS), put(x, mesh, P("expert")), put(y, mesh, P("expert"))
    moves = (lambda t: t.shard(mesh, P("expert")), lambda t: t.shard(mesh, P(None, "expert")))
    reference = gradients(whole(p), Tensor.constant(x), Tensor.constant(y), capacity)
    return check("expert parallel", lambda *a: gradients(*a, capacity, *moves), args, reference, sum(b for _, b in terms), terms=terms)


if __name__ == "__main__":
    main()
