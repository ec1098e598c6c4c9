"""Sharded programs whose results must not depend on where the devices are: python mpi_cases.py FILE runs them
on a mesh of N devices (argument 2) in threads, mpirun -n N on one of N ranks; results go to FILE (of rank 0),
for tests/test_mpi.py to compare bit by bit."""

import resource
import sys

import numpy as np

import eager
import eas
from eager import DeviceMesh, P, Tensor
from eas import mk

N = int(sys.argv[2])
R = np.random.default_rng(3)
line = DeviceMesh("line", (N,), ("x",))
grid = DeviceMesh("grid", (2, N // 2), ("r", "c"))
RESULTS = {}


def f(*shape):
    return R.standard_normal(shape).astype(np.float32)


def keep(name, x):
    RESULTS[name] = x.numpy()


def products():
    a, b = f(16, 24), f(24, 8)
    for i, (sa, sb) in enumerate([(P("x", None), P(None, None)), (P(None, "x"), P("x", None)), (P("x", None), P(None, "x")), (P(None, None), P(None, "x"))]):
        keep(f"product {i}", Tensor.constant(a).shard(line, sa) @ Tensor.constant(b).shard(line, sb))
    keep("product grid", Tensor.constant(a).shard(grid, P("r", "c")) @ Tensor.constant(b).shard(grid, P("c", None)))


def layouts():
    x = Tensor.constant(f(8, 8, 4)).shard(line, P("x", None, None))
    keep("moved", x.shard(line, P(None, "x", None)) * 2)
    keep("transposed", eager.swap_axes(x, 0, 1) + 1)
    keep("softmax", eager.softmax(x, axis=0))
    keep("sum", x.sum(axis=0))
    keep("padded", Tensor.constant(f(7, 3)).shard(line, P("x", None), pad=True).sum(axis=0))
    keep("half", Tensor.constant(f(16, 16)).cast("bfloat16").shard(line, P("x", None)).sum(axis=0).cast("float32"))


def loss(w1, w2, x, y):
    h = eager.relu(x @ w1)
    return eager.mean((h @ w2 - y) ** 2)


def training(name, specs):
    w1, w2, x, y = (Tensor.constant(v).shard(line, s) for v, s in zip((f(12, 32), f(32, 4), f(16, 12), f(16, 4)), specs))

    @eager.compile
    def step(w1, w2, x, y):
        value, (g1, g2) = eager.value_and_grad(loss, argnums=(0, 1))(w1, w2, x, y)
        return value, w1 - 0.1 * g1, w2 - 0.1 * g2

    for k in range(3):
        value, w1, w2 = step(w1, w2, x, y)
        keep(f"{name} loss {k}", value)
    keep(f"{name} w1", w1)
    keep(f"{name} w2", w2)


@eas.kernel
def cubes(a, c, COUNT, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < COUNT
    v = mk.load(a, i, m)
    mk.store(c, i, v * v * v, m)


def edges_and_kernels():
    x = Tensor.constant(f(16, 8)).shard(line, P("x", None))
    keep("differences", x[1:] - x[:-1])
    keep("rolled", eager.roll(x, 3, 0))
    image, w = Tensor.constant(f(2, 16, 8, 3)).shard(line, P(None, "x", None, None)), Tensor.constant(f(3, 3, 3, 4))
    loss = lambda x, w: (eager.conv2d(x, w, padding=1) ** 2).sum()  # noqa: E731
    for k, g in enumerate(eager.grad(loss, argnums=(0, 1))(image, w)):
        keep(f"convolution {k}", g)
    cube = eager.from_kernel(cubes, {"c": lambda a: a}, grid=lambda a: -(-a.shape[0] * a.shape[1] // 16))
    keep("kernel", cube(x, COUNT=128, BLOCK=16))
    keep("kernel's gradient", eager.grad(lambda u: cube(u, COUNT=128, BLOCK=16).sum())(x))
    sums = [(x * k).sum(axis=0) for k in range(5)]  # combined
    eager.realize_all(sums)
    for k, s in enumerate(sums):
        keep(f"together {k}", s)
    keep("from mesh to mesh", (x * 2).shard(grid, P("r", "c")) + 1)


def chosen_layouts():
    """compile(auto_shard=mesh) chooses the same on every rank, and the values are those of the whole."""
    machine = eager.Machine(1e9, 1e9, 1e9, 1e9, 1e9, 0.0, 0.0, 0.0, 0.0, False, (1e-9, 1e9))
    arrays = f(12, 32), f(32, 4), f(16, 12), f(16, 4)
    step = eager.compile(lambda *a: eager.value_and_grad(loss, argnums=(0, 1), realize=False)(*a), auto_shard=line, machine=machine)
    value, grads = step(*map(Tensor.constant, arrays))
    want, _ = eager.value_and_grad(loss, argnums=(0, 1))(*map(Tensor.constant, arrays))
    np.testing.assert_allclose(value.numpy(), want.numpy(), rtol=1e-5)
    keep("chosen value", value)
    for k, g in enumerate(grads):
        keep(f"chosen gradient {k}", g)


def own_parts():
    """Tensors that no rank ever has whole."""
    whole = np.arange(8 * N * 3, dtype=np.float32).reshape(8 * N, 3)
    x = eager.shard_from_callback(lambda at: whole[at], whole.shape, line, P("x", None))
    keep("callback", x * 2)
    first, count = eager.sharding.spmd.mesh_devices(line)
    mine = [whole[8 * k : 8 * k + 8] for k in range(first, first + count)]
    y = Tensor.from_local(mine if count > 1 else mine[0], line, P("x", None))
    keep("from_local", y + 1)
    keep("gather", y.gather())
    assert y.sharding is not None and y.gather().sharding is None


def memory():
    """A global tensor of 256 MB, a quarter on each of four ranks: the peak stays far below the whole."""
    if N != 4 or eager.distributed.size() == 1:
        return
    rows = 1 << 14
    mesh_sum = eager.compile(lambda x: (x * 2 + 1).sum())
    small = eager.shard_from_callback(lambda at: np.ones((at[0].stop - at[0].start, 4096), np.float32)[:1].repeat(1, 0), (N, 4096), line, P("x", None))
    mesh_sum(small).numpy()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x = eager.shard_from_callback(lambda at: np.ones((at[0].stop - at[0].start, 4096), np.float32), (rows, 4096), line, P("x", None))
    y = (x * 2 + 1).realize()
    assert float(y.sum().numpy()) == 3.0 * rows * 4096
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 240, f"{grown} MB for a part of 64 MB (and its copy and result); the whole has 256 MB"
    print("grown", round(grown), "MB")


def checkpoints():
    """Saved by all ranks, loaded cut another way; the test loads it in one process, too."""
    a, b = f(8 * N, 12), f(7, 3)
    tree = {"a": Tensor.constant(a).shard(line, P("x", None)), "b": Tensor.constant(b).shard(line, P("x", None), pad=True), "c": Tensor.constant(b)}
    folder = sys.argv[1] + ".checkpoint"
    for _ in range(2):
        eager.save_sharded(folder, tree)
    back = eager.load_sharded(folder, mesh=line, specs={"a": P(None, "x")})
    for k, v in tree.items():
        keep("loaded " + k, back[k])
        assert (back[k].numpy() == v.numpy()).all()
    assert back["a"].sharding.dim_specs[1].axes == ["x"]


products()
layouts()
edges_and_kernels()
checkpoints()
training("data parallel", (P(None, None), P(None, None), P("x", None), P("x", None)))
training("tensor parallel", (P(None, "x"), P("x", None), P(None, None), P(None, None)))
training("fsdp", (P("x", None), P("x", None), P("x", None), P("x", None)))
chosen_layouts()
own_parts()
memory()
if eager.distributed.rank() == 0:
    np.savez(sys.argv[1], **RESULTS)
print("done")
