"""One side of a comparison of bench/shard.py, in a process of its own: python -m bench.shard_worker SIDE
WHAT. Waits for lines on stdin; each runs the step for a while, and the median of its times is printed.

Sides: ours (a mesh of DEVICES threads, or of the ranks under mpirun), one (no mesh), jax (DEVICES host
devices, set by XLA_FLAGS)."""

import os
import statistics
import sys
import time

import numpy as np

DEVICES = int(os.environ.get("SHARD_DEVICES", "2"))
MLP = {"dim": 784, "hidden": 1024, "out": 10, "batch": 512}
BLOCK = {"dim": 512, "hidden": 2048, "heads": 8, "batch": 4, "length": 128}


def arrays(what):
    r = np.random.default_rng(0)
    a = lambda *s: (r.standard_normal(s) * s[0] ** -0.5).astype(np.float32)  # noqa: E731
    if what == "mlp":
        d, h, o, b = MLP["dim"], MLP["hidden"], MLP["out"], MLP["batch"]
        return {"w1": a(d, h), "w2": a(h, h), "w3": a(h, o)}, a(b, d), a(b, o)
    d, h = BLOCK["dim"], BLOCK["hidden"]
    shapes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, h), "down": (h, d)}
    return {k: a(*s) for k, s in shapes.items()}, a(BLOCK["batch"], BLOCK["length"], d), a(BLOCK["batch"], BLOCK["length"], d)


# ---- ours ----


def ours(what, mesh):
    import eager
    from eager import P, Tensor
    from examples.parallel import tensor

    params, x, y = arrays(what)
    specs = tensor.SPECS if what == "block" else dict.fromkeys(params, P())
    rows = P("x") if what == "mlp" else P()
    put = lambda v, s: Tensor.constant(v) if mesh is None else Tensor.constant(v).shard(mesh, P(*("x" if n == "model" else n for n in s))).realize()  # noqa: E731
    params = {k: put(v, specs[k]) for k, v in params.items()}
    x, y = put(x, rows), put(y, rows)

    def mlp(p):
        h = eager.relu(eager.relu(x @ p["w1"]) @ p["w2"]) @ p["w3"]
        return ((h - y) ** 2).mean()

    @eager.compile
    def train(p):
        value, g = eager.value_and_grad(mlp, realize=False)(p)
        return value, {k: p[k] - 0.01 * g[k] for k in p}

    forward = eager.compile(lambda p, x: tensor.block(p, x, BLOCK["heads"]))

    def step():
        nonlocal params
        if what == "mlp":
            value, params = train(params)
            return value.item()
        return forward(params, x).realize()

    return step


# ---- JAX ----


def jax_side(what):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("x",))
    params, x, y = arrays(what)
    specs = {"q": P(None, "x"), "k": P(None, "x"), "v": P(None, "x"), "o": P("x", None), "up": P(None, "x"), "down": P("x", None)} if what == "block" else dict.fromkeys(params, P())
    put = lambda v, s: jax.device_put(v, NamedSharding(mesh, s))  # noqa: E731
    params = {k: put(v, specs[k]) for k, v in params.items()}
    x, y = (put(v, P("x") if what == "mlp" else P()) for v in (x, y))

    def loss(p, x, y):
        h = jax.nn.relu(jax.nn.relu(x @ p["w1"]) @ p["w2"]) @ p["w3"]
        return ((h - y) ** 2).mean()

    @jax.jit
    def train(p, x, y):
        value, g = jax.value_and_grad(loss)(p, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, p, g)

    def block(p, x):
        b, s, d = x.shape
        heads = BLOCK["heads"]
        q, k, v = ((x @ p[n]).reshape(b, s, heads, d // heads).transpose(0, 2, 1, 3) for n in "qkv")
        a = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (d // heads) ** 0.5) @ v
        x = x + a.transpose(0, 2, 1, 3).reshape(b, s, d) @ p["o"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    forward = jax.jit(block, out_shardings=NamedSharding(mesh, P()))

    def step():
        nonlocal params
        if what == "mlp":
            value, params = train(params, x, y)
            jax.block_until_ready(params)
            return float(value)
        return jnp.asarray(forward(params, x)).block_until_ready()

    return step


def check(side, what, step):
    """A number that all sides agree on."""
    r = step()
    return float(r) if what == "mlp" else float(np.abs(np.asarray(r)).sum())


def main(side, what):
    rank, share = 0, None
    if side == "jax":
        step = jax_side(what)
    else:
        from eager import DeviceMesh
        from eager import distributed as dist

        mesh = DeviceMesh("bench", (DEVICES,), ("x",)) if side == "ours" else None
        step = ours(what, mesh)
        rank, share = dist.rank(), dist
    first = check(side, what, step)
    if rank == 0:
        print(first, flush=True)
    while True:
        go = np.array([len(sys.stdin.readline()) if rank == 0 else 0])
        if share is not None and share.size() > 1:
            go = share.broadcast(go, root=0)
        if not go[0]:
            return
        times = []
        for _ in range(12):
            t = time.perf_counter()
            step()
            times.append(time.perf_counter() - t)
        if rank == 0:
            print(statistics.median(times[2:]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
