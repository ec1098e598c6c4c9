"""Kernels at full size with two threads, against the machine's limits and the best of Numba, Halide, JAX,
torch and torch.compile.

Everything of a case runs in turns: ours, the peers, and the probe of the limit that it is measured against.
Peers' results must agree with ours; one whose result does not is named and left out. Where a peer can write
into an existing output, it does. The cases run in a process of their own, bound to two CPUs, since most pools
are sized once."""

import functools
import os
import statistics
import sys
from dataclasses import dataclass, field

import numpy as np

import eas
from eas import mk
from examples import attention as attention_example
from examples import histogram as histogram_example
from examples import matmul as matmul_example

from .bandwidth import aligned
from .limits import THREADS, Limits
from .tools import SETTLE, Table, has, interleaved, run_part

ROUNDS = int(os.environ.get("EAS_BENCH_ROUNDS", "15"))


@dataclass
class Case:
    """`ours` and the peers are callables that give their result. `limit`: which, the bytes or operations, and
    the fraction of it that is wanted."""

    what: str
    ours: object
    limit: tuple | None = None
    ratio: float | None = None
    rtol: float = 1e-4
    atol: float = 1e-5
    note: str = ""
    peers: dict = field(default_factory=dict)
    lazy: object = None  # the same in operations of `eager`, compiled when they are read

    def peer(self, module, make, name=None):
        """Adds one, where its module is installed; building it may fail, which is said."""
        if not has(module):
            return
        try:
            self.peers[name or module] = make()
        except Exception as e:
            print(f"    ({self.what}: {name or module} left out: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''})", file=sys.stderr)


def quickest(configs, call):
    """The config that `call` runs best with: the least time tells them apart where the median is that of the
    machine's other work."""
    times = interleaved({c: (lambda c=c: call(*c)) for c in configs}, 9, of=min)
    return min(times, key=times.get)


# ---- peers that need no kernel of their own ----


def jax_run(f, *arrays):
    """f(jax, *arrays), compiled."""
    import jax

    there = [jax.numpy.asarray(a) for a in arrays]
    compiled = jax.jit(functools.partial(f, jax))
    return lambda: compiled(*there).block_until_ready()


def eager_run(f, *arrays):
    """f(eager, *tensors), recorded and evaluated anew each time."""
    import eager

    there = [eager.Tensor.from_dlpack(a) for a in arrays]
    return lambda: f(eager, *there).realize()


def torch_run(f, *arrays):
    """f(torch, out, *arrays) writes into out, which is made by its first call with None."""
    import torch

    there = [torch.from_numpy(a) for a in arrays]
    out = f(torch, None, *there).clone()
    return lambda: f(torch, out, *there)


def compiled_run(f, *arrays):
    """By torch.compile; the copy into an existing output is fused into the last loop."""
    import torch

    there = [torch.from_numpy(a) for a in arrays]
    out = f(*there).clone()
    torch.compiler.reset()  # or it takes the cases before for other shapes of this one, and gives up after eight
    compiled = torch.compile(lambda out, *a: out.copy_(f(*a)), dynamic=False)

    def run():
        with torch.no_grad():
            return compiled(out, *there)

    run()
    return run


def into(f, out):
    """f() writes `out`."""

    def run():
        f()
        return out

    return run


def numba_run(name, out, *arrays):
    from . import peer_numba

    f = getattr(peer_numba, name)
    return into(lambda: f(*arrays, out), out)


def halide_run(name, *args):
    from . import peer_halide

    return getattr(peer_halide, name)(*args)


def empty(*shape):
    """f32, from a cache line on, as torch and JAX place their own arrays and NumPy does not: everybody gets
    the same."""
    return aligned(int(np.prod(shape))).reshape(shape)


def like(x):
    return empty(*x.shape)


@functools.cache
def scratch(*shape):
    """For what lies between two kernels: the same memory every time, as a pool would give it."""
    return empty(*shape)


def normal(*shape, seed=0, scale=1, shift=0):
    x = empty(*shape)
    np.random.default_rng(seed).standard_normal(out=x, dtype=np.float32)
    x *= scale
    x += shift
    return x


# ---- element by element ----


@eas.kernel
def gelu_kernel(x, out, w, b, s, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    u = mk.load(x, i, i < N) * w + b
    mk.store(out, i, matmul_example.gelu(u) * s, i < N)


def gelu():
    n, w, b, s = 1 << 22, 1.5, 0.25, 0.75
    x = normal(n)
    out = like(x)

    def run(block):
        gelu_kernel(x, out, w, b, s, n, BLOCK=block)

    (block,) = quickest([(1024,), (4096,), (16384,)], run)
    case = Case("gelu(x·w + b)·s, 2^22 f32", into(lambda: run(block), out), ("bandwidth", 8 * n, 0.85), note=f"blocks of {block}")
    case.lazy = eager_run(lambda e, a: e.gelu(a * w + b) * s, x)

    def in_jax(jax, a):
        return jax.nn.gelu(a * w + b) * s

    def in_torch(a):
        import torch

        return torch.nn.functional.gelu(a * w + b, approximate="tanh") * s

    def numba():
        from . import peer_numba

        y, f = like(x), np.float32
        return into(lambda: peer_numba.gelu(x, f(w), f(b), f(s), y), y)

    case.peer("numba", numba)
    case.peer("halide", lambda: halide_run("gelu", x, w, b, s))
    case.peer("jax", lambda: jax_run(in_jax, x))
    case.peer("torch", lambda: torch_run(lambda torch, _, a: in_torch(a), x))
    case.peer("torch", lambda: compiled_run(in_torch, x), "torch.compile")
    return case


@eas.kernel
def add_transposed_kernel(a, b, out, N, T: eas.constexpr, U: eas.constexpr):
    r, c = mk.program_id(1) * T + mk.arange(0, T), mk.program_id(0) * U + mk.arange(0, U)
    there = r[:, None] * N + c[None, :]
    mk.store(out, there, mk.load(a, there) + mk.trans(mk.load(b, c[:, None] * N + r[None, :])))


def add_transposed(n=4096):
    a, b = normal(n, n), normal(n, n, seed=1)
    out = like(a)

    def run(t, u):
        add_transposed_kernel(a, b, out, n, T=t, U=u, _grid=(n // u, n // t))

    t, u = quickest([(16, 16), (16, 64), (32, 32), (64, 16), (64, 64), (128, 32), (32, 128), (128, 128), (64, 256)], run)
    case = Case(f"a + bᵀ, {n}²", into(lambda: run(t, u), out), ("bandwidth", 12 * n * n, 0.6), note=f"tile {t} x {u}")
    case.lazy = eager_run(lambda e, x, y: x + y.T, a, b)
    case.peer("numba", lambda: numba_run("add_transposed", like(a), a, b))
    case.peer("halide", lambda: halide_run("add_transposed", a, b))
    case.peer("jax", lambda: jax_run(lambda jax, x, y: x + y.T, a, b))
    case.peer("torch", lambda: torch_run(lambda torch, o, x, y: x + y.T if o is None else torch.add(x, y.T, out=o), a, b))
    case.peer("torch", lambda: compiled_run(lambda x, y: x + y.T, a, b), "torch.compile")
    return case


# ---- along rows ----


@eas.kernel
def softmax_kernel(x, out, N, COLS: eas.constexpr):
    at = mk.program_id(0) * N + mk.arange(0, COLS)
    v = mk.load(x, at)
    e = mk.exp(v - mk.max(v, axis=0))
    mk.store(out, at, e * (1.0 / mk.sum(e, axis=0)))


def softmax(rows, n):
    x = normal(rows, n, scale=4)
    out = like(x)
    case = Case(
        f"softmax {rows} x {n}",
        into(lambda: softmax_kernel(x, out, n, COLS=n, _grid=rows), out),
        ("bandwidth", 8 * rows * n, 0.6),
        1 / 1.7,
        atol=1e-7,
    )
    case.lazy = eager_run(lambda e, a: e.softmax(a), x)
    case.peer("numba", lambda: numba_run("softmax", like(x), x))
    case.peer("halide", lambda: halide_run("softmax", x))
    case.peer("jax", lambda: jax_run(lambda jax, a: jax.nn.softmax(a, 1), x))
    case.peer("torch", lambda: torch_run(lambda torch, o, a: a.softmax(1) if o is None else torch.softmax(a, 1, out=o), x))
    case.peer("torch", lambda: compiled_run(lambda a: a.softmax(1), x), "torch.compile")
    return case


@eas.kernel
def layernorm_kernel(x, weight, bias, out, N, eps, COLS: eas.constexpr):
    cols = mk.arange(0, COLS)
    at = mk.program_id(0) * N + cols
    v = mk.load(x, at)
    d = v - mk.sum(v, axis=0) * (1.0 / COLS)
    scale = mk.rsqrt(mk.sum(d * d, axis=0) * (1.0 / COLS) + eps)
    mk.store(out, at, d * scale * mk.load(weight, cols) + mk.load(bias, cols))


def layernorm(rows=4096, n=1024, eps=1e-5):
    x, weight, bias = normal(rows, n, scale=3, shift=1), normal(n, seed=1), normal(n, seed=2)
    out = like(x)
    case = Case(
        f"layer norm {rows} x {n}",
        into(lambda: layernorm_kernel(x, weight, bias, out, n, eps, COLS=n, _grid=rows), out),
        ("bandwidth", 8 * rows * n, 0.85),
    )

    def in_eager(e, a, w, b):
        d = a - a.mean(axis=1, keepdims=True)
        return d * e.rsqrt((d * d).mean(axis=1, keepdims=True) + eps) * w + b

    case.lazy = eager_run(in_eager, x, weight, bias)

    def in_jax(jax, a, w, b):
        d = a - a.mean(1, keepdims=True)
        return d * jax.lax.rsqrt((d * d).mean(1, keepdims=True) + eps) * w + b

    def in_torch(a, w, b):
        import torch

        return torch.nn.functional.layer_norm(a, (n,), w, b, eps)

    def numba():
        from . import peer_numba

        y = like(x)
        return into(lambda: peer_numba.layernorm(x, weight, bias, np.float32(eps), y), y)

    case.peer("numba", numba)
    case.peer("halide", lambda: halide_run("layernorm", x, weight, bias, eps))
    case.peer("jax", lambda: jax_run(in_jax, x, weight, bias))
    case.peer("torch", lambda: torch_run(lambda torch, _, *a: in_torch(*a), x, weight, bias))
    case.peer("torch", lambda: compiled_run(in_torch, x, weight, bias), "torch.compile")
    return case


@eas.kernel
def cumsum_kernel(x, out, N, COLS: eas.constexpr):
    at = mk.program_id(0) * N + mk.arange(0, COLS)
    mk.store(out, at, mk.cumsum(mk.load(x, at), axis=0))


def cumsum(rows=4096, n=1024):
    x = normal(rows, n)
    out = like(x)
    case = Case(f"cumulative sum of rows, {rows} x {n}", into(lambda: cumsum_kernel(x, out, n, COLS=n, _grid=rows), out), None, 1.0, atol=1e-3)
    case.lazy = eager_run(lambda e, a: e.cumsum(a, axis=1), x)
    case.peer("numba", lambda: numba_run("cumsum", like(x), x))
    case.peer("jax", lambda: jax_run(lambda jax, a: a.cumsum(1), x))
    case.peer("torch", lambda: torch_run(lambda torch, o, a: a.cumsum(1) if o is None else torch.cumsum(a, 1, out=o), x))
    return case


# ---- sums ----


@eas.kernel
def sum_part_kernel(x, out, LENGTH: eas.constexpr, BLOCK: eas.constexpr):
    p = mk.program_id(0)
    total = mk.var(mk.zeros(BLOCK))
    for start in mk.range(0, LENGTH, BLOCK):
        total += mk.load(x, p * LENGTH + start + mk.arange(0, BLOCK))
    mk.store(out, p, mk.sum(total, axis=0))


@eas.kernel
def sum_rows_kernel(x, out, COLS: eas.constexpr):
    p = mk.program_id(0)
    mk.store(out, p, mk.sum(mk.load(x, p * COLS + mk.arange(0, COLS)), axis=0))


@eas.kernel
def sum_columns_kernel(x, out, ROWS: eas.constexpr, COLS: eas.constexpr, BLOCK: eas.constexpr, AT_ONCE: eas.constexpr):
    """Row p of out is the sum of the p-th band of ROWS rows of x: a band is short, so that memory is read
    nearly in its order. The running sums lie in the nearest cache: AT_ONCE rows are added up before they are
    touched."""
    band, c = mk.program_id(1), mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    total = mk.var(mk.zeros(BLOCK))
    for row in mk.range(0, ROWS, AT_ONCE):
        total += sum(mk.load(x, (band * ROWS + row + k) * COLS + c) for k in range(AT_ONCE))
    mk.store(out, band * COLS + c, total)


def sum_case(x, what, ours, axis, note):
    """Long sums of random signs cancel: the tolerance goes by the size of what is added."""
    count = x.size if axis is None else x.shape[axis]
    case = Case(f"sum of {x.shape[0]}², {what}", ours, ("reading", x.nbytes, 0.92), 1.0, atol=1e-5 * count**0.5 * 10, note=note)
    case.lazy = eager_run(lambda e, a: a.sum(axis=axis), x)
    case.peer("jax", lambda: jax_run(lambda jax, a: a.sum(axis), x))
    if axis is None:
        case.peer("torch", lambda: torch_run(lambda torch, _, a: a.sum(), x))
    else:
        case.peer("torch", lambda: torch_run(lambda torch, o, a: a.sum(axis) if o is None else torch.sum(a, axis, out=o), x))
    case.peer("torch", lambda: compiled_run((lambda a: a.sum()) if axis is None else lambda a: a.sum(axis), x), "torch.compile")
    return case


def sum_all(n=4096):
    x = normal(n, n)
    out = np.empty(1, np.float32)

    def run(length, block):
        parts = scratch(x.size // length)
        sum_part_kernel(x, parts, LENGTH=length, BLOCK=block, _grid=len(parts))
        sum_rows_kernel(parts, out, COLS=len(parts), _grid=1)

    length, block = quickest([(1 << 16, 256), (1 << 16, 1024), (1 << 14, 256), (1 << 18, 512)], run)
    case = sum_case(x, "all", into(lambda: run(length, block), out), None, f"parts of {length}, blocks of {block}")

    def numba():
        from . import peer_numba

        rows = empty(n)

        def f():
            peer_numba.sum_rows(x, rows)
            return rows.sum()

        return f

    case.peer("numba", numba)
    return case


def sum_columns(n=4096):
    x = normal(n, n)
    out = empty(n)

    def run(band, block, rows):
        parts = scratch(n // band, n)
        sum_columns_kernel(x, parts, ROWS=band, COLS=n, BLOCK=block, AT_ONCE=rows, _grid=(n // block, n // band))
        sum_columns_kernel(parts, out, ROWS=len(parts), COLS=n, BLOCK=512, AT_ONCE=8, _grid=(n // 512, 1))

    best = quickest([(32, 1024, 16), (32, 4096, 8), (64, 512, 16), (64, 1024, 4), (64, 1024, 16), (64, 4096, 16)], run)
    case = sum_case(x, "axis 0", into(lambda: run(*best), out), 0, "bands of {} rows, blocks of {}, {} rows at once".format(*best))
    case.peer("numba", lambda: numba_run("sum_columns", empty(n), x))
    case.peer("halide", lambda: halide_run("sum_columns", x))
    return case


def sum_rows(n=4096):
    x = normal(n, n)
    out = empty(n)
    case = sum_case(x, "axis 1", into(lambda: sum_rows_kernel(x, out, COLS=n, _grid=n), out), 1, "")
    case.peer("numba", lambda: numba_run("sum_rows", empty(n), x))
    case.peer("halide", lambda: halide_run("sum_rows", x))
    return case


# ---- matrix products ----


def ways(n, in_place=True):
    """(name, sizes) that divide n and leave work for both threads."""
    every = [
        ("panels", 128, 64),
        ("panels", 64, 64),
        ("panels", 64, 16),
        ("in place", 64, 64),
        ("blocks", 128, 256, 256),
        ("blocks", 64, 256, 256),
        ("blocks", 256, 256, 256),
    ]
    return [w for w in every if n // w[1] * (n // w[2]) >= THREADS and (in_place or w[0] != "in place")]


def way_note(best):
    return f"{best[0]}, {' x '.join(map(str, best[1:]))}"


def matmul(n):
    a, b, c = normal(n, n), normal(n, n, seed=1), empty(n, n)

    def run(way, bm, bn, bk=None):
        if way == "blocks":
            matmul_example.blocks(a, b, c, n, n, BM=bm, BN=bn, BK=bk, _grid=(n // bn, n // bm))
        elif way == "panels":
            matmul_example.run_panels(a, b, c, bm, bn)
        else:
            matmul_example.in_place(a, b, c, N=n, K=n, ROWS=bm, COLS=bn, _grid=(n // bn, n // bm))

    best = quickest(ways(n), run)
    case = Case(f"matmul f32 {n}", into(lambda: run(*best), c), ("peak FMA", 2 * n**3, 0.85), rtol=1e-3, atol=n * 2e-6, note=way_note(best))
    case.lazy = eager_run(lambda e, x, y: x @ y, a, b)
    d = like(c)
    case.peers["numpy"] = into(lambda: np.matmul(a, b, out=d), d)
    case.peer("jax", lambda: jax_run(lambda jax, x, y: x @ y, a, b))
    case.peer("torch", lambda: torch_run(lambda torch, o, x, y: x @ y if o is None else torch.mm(x, y, out=o), a, b))
    return case


def matmul_gelu(n=1024):
    a, b, bias, c = normal(n, n), normal(n, n, seed=1), normal(n, seed=2), empty(n, n)

    def run(way, bm, bn, bk=None):
        if way == "blocks":
            matmul_example.fused(a, b, bias, c, n, n, BM=bm, BN=bn, BK=bk, _grid=(n // bn, n // bm))
        else:
            matmul_example.run_panels(a, b, c, bm, bn, bias=bias)

    best = quickest(ways(n, in_place=False), run)
    case = Case(
        f"matmul {n}³ + bias + gelu",
        into(lambda: run(*best), c),
        ("peak FMA", 2 * n**3, 0.8),
        rtol=1e-3,
        atol=n * 2e-6,
        note=way_note(best),
    )
    case.lazy = eager_run(lambda e, x, y, z: e.gelu(x @ y + z), a, b, bias)

    def numba():
        from . import peer_numba

        d = like(c)

        def f():
            np.matmul(a, b, out=d)
            peer_numba.bias_gelu(d, bias)
            return d

        return f

    def in_torch(x, y, z):
        import torch

        return torch.nn.functional.gelu(x @ y + z, approximate="tanh")

    case.peer("numba", numba, "numpy and numba")
    case.peer("jax", lambda: jax_run(lambda jax, *v: matmul_example.jax_fused(None, *v), a, b, bias))
    case.peer("torch", lambda: torch_run(lambda torch, _, *v: in_torch(*v), a, b, bias))
    case.peer("torch", lambda: compiled_run(in_torch, a, b, bias), "torch.compile")
    return case


def attention(heads=8, s=1024, d=64):
    q, k, v = (normal(heads, s, d, seed=i) for i in range(3))
    out = like(q)

    def run(rows, cols):
        attention_example.run(q, k, v, out, rows, cols)

    best = quickest([(64, 64), (128, 64), (128, 128), (64, 128), (128, 256), (256, 128)], run)
    # two products over the half of the scores below the diagonal
    case = Case(
        f"causal attention, {heads} heads, {s} x {d}",
        into(lambda: run(*best), out),
        ("peak FMA", 2 * heads * s * s * d, 0.55),
        1 / 1.4,
        rtol=1e-3,
        atol=1e-4,
        note="tile {} x {}".format(*best),
    )

    def in_eager(e, q, k, v):
        rows, cols = e.Tensor.arange(s).reshape((s, 1)), e.Tensor.arange(s).reshape((1, s))
        scores = e.where(cols <= rows, q @ e.swap_axes(k, 1, 2) * (d**-0.5), -float("inf"))
        return e.softmax(scores) @ v

    case.lazy = eager_run(in_eager, q, k, v)

    def in_jax(jax, *a):
        return jax.nn.dot_product_attention(*(x.transpose(1, 0, 2)[None] for x in a), is_causal=True)[0].transpose(1, 0, 2)

    def in_torch(torch, _, *a):
        return torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in a), is_causal=True)[0]

    case.peer("jax", lambda: jax_run(in_jax, q, k, v))
    case.peer("torch", lambda: torch_run(in_torch, q, k, v))
    return case


# ---- memory in no order ----


@eas.kernel
def gather_kernel(x, index, out, ROWS: eas.constexpr, COLS: eas.constexpr):
    r, c = mk.program_id(0) * ROWS + mk.arange(0, ROWS), mk.arange(0, COLS)
    mk.store(out, r[:, None] * COLS + c[None, :], mk.load(x, mk.load(index, r)[:, None] * COLS + c[None, :]))


@eas.kernel
def gather_row_kernel(x, index, out, COLS: eas.constexpr):
    r, c = mk.program_id(0), mk.arange(0, COLS)
    mk.store(out, r * COLS + c, mk.load(x, mk.load(index, r) * COLS + c))


def gather(count=8192, rows=50000, n=384):
    x, index = normal(rows, n), np.random.default_rng(3).integers(0, rows, count)
    out = empty(count, n)

    def run(tall):
        if tall == 1:
            gather_row_kernel(x, index, out, COLS=n, _grid=count)
        else:
            gather_kernel(x, index, out, ROWS=tall, COLS=n, _grid=count // tall)

    (tall,) = quickest([(1,), (4,), (16,)], run)
    case = Case(f"gather {count} rows of {rows} x {n}", into(lambda: run(tall), out), None, 1.0, 0, 0, note=f"{tall} rows a program")
    case.lazy = eager_run(lambda e, a, i: e.gather(a, i, axis=0), x, index)
    case.peer("numba", lambda: numba_run("gather", like(out), x, index))
    case.peer("jax", lambda: jax_run(lambda jax, a, i: a[i], x, index))
    case.peer("torch", lambda: torch_run(lambda torch, o, a, i: a[i] if o is None else torch.index_select(a, 0, i, out=o), x, index))
    return case


def histogram(n=1 << 24):
    x = np.random.default_rng(0).integers(0, 256, n).astype(np.uint8)
    bins = np.zeros(256, np.int32)

    def run(rounds, block):
        bins[:] = 0
        histogram_example.histogram(x, bins, n, ROUNDS=rounds, BLOCK=block, _grid=n // (rounds * block))

    best = quickest([(1024, 64), (1024, 128), (8192, 128), (16384, 128), (4096, 256), (32768, 32)], run)
    case = Case("histogram of 2^24 u8", into(lambda: run(*best), bins), None, 1.0, 0, 0, note="{} rounds of {} threads".format(*best))
    case.peer("numba", lambda: numba_run("histogram", np.empty(256, np.int32), x))
    case.peer("jax", lambda: jax_run(lambda jax, a: jax.numpy.bincount(a, length=256), x))
    case.peer("torch", lambda: torch_run(lambda torch, _, a: torch.bincount(a, minlength=256), x))
    return case


CASES = {
    "gelu": gelu,
    "softmax": lambda: softmax(4096, 1024),
    "softmax_long": lambda: softmax(64, 65536),
    "layernorm": layernorm,
    "sum_all": sum_all,
    "sum_columns": sum_columns,
    "sum_rows": sum_rows,
    "add_transposed": add_transposed,
    "matmul_512": lambda: matmul(512),
    "matmul_1024": lambda: matmul(1024),
    "matmul_2048": lambda: matmul(2048),
    "matmul_gelu": matmul_gelu,
    "attention": attention,
    "cumsum": cumsum,
    "gather": gather,
    "histogram": histogram,
}


# ---- running them ----


def agreeing(case):
    """The peers whose result is ours; and whether ours agrees with any (or there are none)."""
    mine, good = np.array(case.ours()), {}
    for name, f in case.peers.items():
        try:
            np.testing.assert_allclose(np.asarray(f()).reshape(mine.shape), mine, case.rtol, case.atol)
            good[name] = f
        except AssertionError as e:
            print(f"    ({case.what}: {name} gives another result: {' '.join(str(e).split())[:200]})", file=sys.stderr)
    return good, bool(good) or not case.peers


def lazy_right(case):
    try:
        np.testing.assert_allclose(np.asarray(case.lazy()).reshape(np.shape(case.ours())), case.ours(), case.rtol, case.atol)
        return True
    except AssertionError as e:
        print(f"    ({case.what}: eager gives another result: {' '.join(str(e).split())[:200]})", file=sys.stderr)
        return False


def quartiles(rounds, ours, peers):
    """Of the ratios of the rounds to the best peer."""
    if not peers:
        return None
    best = min(peers, key=peers.get)
    ratios = sorted(a / b for a, b in zip(rounds[ours], rounds[best]))
    return ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


def measure(case, limits, table):
    peers, right = agreeing(case)
    runs = {"eas": case.ours, **({"eager": case.lazy} if case.lazy else {}), **peers}
    probe = limits.probe(case.limit[0]) if case.limit else None
    if probe:
        runs["limit"] = probe
    rounds = interleaved(runs, ROUNDS, settle=SETTLE, of=list)
    t = {name: statistics.median(times) for name, times in rounds.items()}
    ours, took = t.pop("eas"), t.pop("limit", None)
    limit = None
    if case.limit:
        kind, amount, wanted = case.limit
        limit = (kind, took and limits.least(kind, amount, took), wanted)
    lazy = t.pop("eager", None)
    table.add(case.what, ours, t, case.ratio, note=case.note, right=right, limit=limit, spread=quartiles(rounds, "eas", t))
    if lazy:
        table.add(f"{case.what}, in eager", lazy, t, 1.0, note=f"{lazy / ours:.2f} × the kernel's time", right=lazy_right(case), spread=quartiles(rounds, "eager", t))


def main(names):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    limits, table = Limits(), Table()
    for name in names or CASES:
        measure(CASES[name](), limits, table)


def rows(table):
    run_part("throughput", THREADS, table)


if __name__ == "__main__":
    main(sys.argv[1:])
