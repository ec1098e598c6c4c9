"""Derivatives of tensors: training steps, values and gradients of models, per-example gradients and Hessians
in `eager`, against JAX, torch and torch.compile.

Everything of a case runs in turns, and a ratio is the median of the ratios of the rounds. Results are
compared before anything is timed; a peer whose result is another one is named and left out. The cases run in
a process of their own, bound to two CPUs; `python -m bench.derive NAME ...` runs those whose name begins so.
"""

import math
import os
import re
import signal
import statistics
import sys
import types

import numpy as np

from .limits import THREADS
from .throughput import normal
from .tools import SETTLE, Table, child, empty_caches, has, interleaved, run_part, show

ROUNDS = int(os.environ.get("EAS_BENCH_ROUNDS", "15"))
PATIENCE = 60  # seconds that torch.compile may take for a case
RATE = 0.01


# ---- one name for the same function in each library ----


def of_eager():
    import eager as e

    return types.SimpleNamespace(
        tanh=e.tanh,
        relu=e.relu,
        sigmoid=e.sigmoid,
        gelu=e.gelu,
        log_softmax=lambda x: e.log_softmax(x, axis=-1),
        layer_norm=lambda x, w, b: e.layer_norm(x, w, b),
        attention=lambda q, k, v: e.softmax(q @ k.mT * (1 / math.sqrt(q.shape[-1])), axis=-1) @ v,
        swap=lambda x: e.permute(x, (0, 2, 1, 3)),
        conv=lambda x, w: e.conv2d(x, w, padding=1),
        pool=lambda x: e.max_pool2d(x, 2),
        scan=e.scan,
        split=lambda x: e.split(x, 4, axis=-1),
    )


def of_jax():
    import jax
    import jax.numpy as jnp

    def layer_norm(x, w, b):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b

    return types.SimpleNamespace(
        tanh=jnp.tanh,
        relu=jax.nn.relu,
        sigmoid=jax.nn.sigmoid,
        gelu=jax.nn.gelu,
        log_softmax=jax.nn.log_softmax,
        layer_norm=layer_norm,
        attention=lambda q, k, v: jax.nn.softmax(q @ k.mT * (1 / math.sqrt(q.shape[-1])), axis=-1) @ v,
        swap=lambda x: jnp.transpose(x, (0, 2, 1, 3)),
        conv=lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), [(1, 1)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")),
        pool=lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        scan=jax.lax.scan,
        split=lambda x: jnp.split(x, 4, axis=-1),
    )


def of_torch():
    import torch
    from torch.nn import functional as F

    return types.SimpleNamespace(
        tanh=torch.tanh,
        relu=torch.relu,
        gelu=lambda x: F.gelu(x, approximate="tanh"),
        log_softmax=lambda x: F.log_softmax(x, dim=-1),
        layer_norm=lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        attention=F.scaled_dot_product_attention,
        swap=lambda x: x.transpose(1, 2),
        # images are (N, H, W, C) in memory, which torch calls channels_last
        conv=lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), padding=1).permute(0, 2, 3, 1),
        pool=lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1),
    )


# ---- models: a number of a list of parameters and of data ----


def mlp(m, p, x, y):
    for i in range(0, len(p) - 2, 2):
        x = m.relu(x @ p[i] + p[i + 1])
    return -(y * m.log_softmax(x @ p[-2] + p[-1])).sum() / y.shape[0]


def transformer(m, p, x, heads=6):
    def cut(t):
        return m.swap(t.reshape((t.shape[0], t.shape[1], heads, t.shape[2] // heads)))

    for i in range(0, len(p), 12):
        g1, c1, q, k, v, o, g2, c2, w1, b1, w2, b2 = p[i : i + 12]
        h = m.layer_norm(x, g1, c1)
        x = x + m.swap(m.attention(cut(h @ q), cut(h @ k), cut(h @ v))).reshape(tuple(x.shape)) @ o
        x = x + m.gelu(m.layer_norm(x, g2, c2) @ w1 + b1) @ w2 + b2
    return (x * x).mean()


def cnn(m, p, x, y):
    f1, b1, f2, b2, w, b = p
    h = m.pool(m.relu(m.conv(m.relu(m.conv(x, f1) + b1), f2) + b2))
    return -(y * m.log_softmax(h.reshape((h.shape[0], -1)) @ w + b)).sum() / y.shape[0]


def lstm(m, p, xs, h0):
    wi, wh, b = p

    def step(state, x):
        h, c = state
        i, f, g, o = m.split(x @ wi + h @ wh + b)
        c = m.sigmoid(f) * c + m.sigmoid(i) * m.tanh(g)
        h = m.sigmoid(o) * m.tanh(c)
        return (h, c), h

    _, hs = m.scan(step, (h0, h0), xs)
    return (hs * hs).mean()


def torch_lstm(width):
    """torch's own layer, whose weights are the transposes of ours and which has a second bias."""
    import torch

    layer = torch.nn.LSTM(width, width)

    def f(_, p, xs, h0):
        weights = {"weight_ih_l0": p[0].T, "weight_hh_l0": p[1].T, "bias_ih_l0": p[2], "bias_hh_l0": torch.zeros_like(p[2])}
        hs, _ = torch.func.functional_call(layer, weights, (xs,))
        return (hs * hs).mean()

    return f


def small_mlp(m, p, x, y):
    """The loss of one example or of a batch."""
    w1, b1, w2, b2 = p
    return -(y * m.log_softmax(m.tanh(x @ w1 + b1) @ w2 + b2)).sum()


def dense(*sizes):
    p = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        p += [normal(a, b, seed=i, scale=a**-0.5), normal(b, seed=100 + i, scale=0.01)]
    return p


def classes(rows, n=10):
    return np.eye(n, dtype=np.float32)[np.arange(rows) * 7 % n]


def block(width, seed):
    """Parameters of a block of the transformer."""
    s = [normal(width, width, seed=seed + i, scale=width**-0.5) for i in range(4)]
    one, zero = 1 + normal(width, seed=seed, scale=0.1), normal(width, seed=seed + 1, scale=0.1)
    return [one, zero, *s, one.copy(), zero.copy(), *dense(width, 4 * width, width)]


# ---- the same with each library: a callable that gives its result ----


def eager_tensors(arrays):
    import eager

    return [eager.Tensor.constant(a.copy()).realize() for a in arrays]


def jax_arrays(arrays):
    import jax.numpy as jnp

    return [jnp.array(a) for a in arrays]


def torch_tensors(arrays, grad=False):
    import torch

    return [torch.tensor(a, requires_grad=grad) for a in arrays]


def eager_gradient(f, p, data, compiled=True):
    import eager

    m, tp, td = of_eager(), eager_tensors(p), eager_tensors(data)
    g = eager.value_and_grad(lambda p, *d: f(m, p, *d))
    g = eager.compile(g) if compiled else g
    return lambda: g(tp, *td)


def jax_gradient(f, p, data, compiled=True):
    import jax

    m, tp, td = of_jax(), jax_arrays(p), jax_arrays(data)
    g = jax.value_and_grad(lambda p, *d: f(m, p, *d))
    g = jax.jit(g) if compiled else g
    return lambda: jax.block_until_ready(g(tp, *td))


def torch_gradient(f, p, data, compiled=False):
    import torch

    m, tp, td = of_torch(), torch_tensors(p, True), torch_tensors(data)
    loss = lambda p, *d: f(m, p, *d)  # noqa: E731
    loss = torch.compile(loss, dynamic=False) if compiled else loss

    def run():
        value = loss(tp, *td)
        return value, torch.autograd.grad(value, tp)

    return run


def eager_step(f, p, data):
    import eager

    m, td = of_eager(), eager_tensors(data)
    state = [eager_tensors(p)]

    def step(p, *d):
        value, g = eager.value_and_grad(lambda p: f(m, p, *d))(p)
        return value, [w - RATE * dw for w, dw in zip(p, g)]

    step = eager.compile(step, donate=(0,))

    def run():
        value, state[0] = step(state[0], *td)
        return value, state[0]

    return run


def jax_step(f, p, data):
    import jax

    m, td = of_jax(), jax_arrays(data)
    state = [jax_arrays(p)]

    def step(p, *d):
        value, g = jax.value_and_grad(lambda p: f(m, p, *d))(p)
        return value, [w - RATE * dw for w, dw in zip(p, g)]

    step = jax.jit(step, donate_argnums=(0,))

    def run():
        value, state[0] = jax.block_until_ready(step(state[0], *td))
        return value, state[0]

    return run


def torch_step(f, p, data, compiled=False):
    import torch

    run = torch_gradient(f, p, data, compiled)
    tp = run.__closure__[run.__code__.co_freevars.index("tp")].cell_contents

    def step():
        value, g = run()
        with torch.no_grad():
            torch._foreach_add_(tp, g, alpha=-RATE)
        return value, tp

    return step


# ---- measuring ----


def leaves(x):
    """The arrays of nested lists, as copies: what is donated or written in place is gone after the next call.
    """
    if isinstance(x, (list, tuple)):
        return [a for y in x for a in leaves(y)]
    if hasattr(x, "detach") and hasattr(x, "numpy"):
        x = x.detach().numpy()
    return [np.array(x)]


def difference(got, want):
    """What differs, or None."""
    got, want = leaves(got), leaves(want)
    if [a.shape for a in got] != [a.shape for a in want]:
        return f"shapes {[a.shape for a in got]} for {[a.shape for a in want]}"
    for i, (a, b) in enumerate(zip(got, want)):
        if not np.allclose(a, b, rtol=2e-3, atol=2e-3 * float(abs(b).max())):
            return f"result {i} is off by {abs(a - b).max():.3g} of {abs(b).max():.3g}"
    return None


def say(e):
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"


def too_long(*_):
    raise TimeoutError(f"more than {PATIENCE} s")


def built(what, name, make):
    """(a callable that has run once, its result), or None where it fails or takes too long, which is said."""
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    try:
        f = make()
        return f, leaves(f())
    except Exception as e:
        print(f"    ({what}: {name} left out: {say(e)})", file=sys.stderr)
        return None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def measure(table, what, goal, ours, peers, number=1, rounds=ROUNDS):
    """ours and the peers are functions that make a callable. The goal is a ratio to each peer."""
    made = {name: built(what, name, make) for name, make in peers.items()}
    made = {name: m for name, m in made.items() if m}
    error, wrong, run = "", [], None
    try:
        run = ours()
        mine = leaves(run())
        wrong = [(n, difference(mine, theirs)) for n, (_, theirs) in made.items()]
        for n, d in wrong:
            if d:
                print(f"    ({what}: another result than {n}'s: {d})", file=sys.stderr)
    except Exception as e:
        run, error = None, say(e)
    agreeing = {n: made[n][0] for n, d in wrong if not d}
    candidates = {**({"eager": run} if run else {}), **(agreeing or {n: f for n, (f, _) in made.items()})}
    times = interleaved(candidates, rounds, number, SETTLE, shuffle=True, of=list)
    mine = times.pop("eager", None)
    ratios = {n: statistics.median(a / b for a, b in zip(mine, t)) for n, t in times.items()} if mine else {}
    table.add(
        what,
        statistics.median(mine) if mine else None,
        {n: statistics.median(t) for n, t in times.items()},
        goal,
        note=error,
        right=bool(agreeing) or bool(error),
        ratio=max(ratios.values(), default=None),
    )


def all_peers(make_jax, make_torch):
    """{name: what makes it}, of the libraries that are there; make_torch(compiled)."""
    peers = {}
    if has("jax"):
        peers["jax"] = make_jax
    if has("torch"):
        peers["torch"] = lambda: make_torch(False)
        peers["torch.compile"] = lambda: make_torch(True)
    return peers


def gradient_case(table, what, goal, f, p, data, torch_f=None):
    peers = all_peers(lambda: jax_gradient(f, p, data), lambda compiled: torch_gradient(torch_f or f, p, data, compiled))
    measure(table, what, goal, lambda: eager_gradient(f, p, data), peers)


# ---- cases ----


def mlp_step(table):
    p, data = dense(784, 512, 512, 10), (normal(128, 784), classes(128))
    peers = all_peers(lambda: jax_step(mlp, p, data), lambda compiled: torch_step(mlp, p, data, compiled))
    measure(table, "training step, MLP 784-512-512-10, batch 128, SGD, donated", 0.8, lambda: eager_step(mlp, p, data), peers, number=5)


def transformer_gradient(table):
    gradient_case(
        table,
        "value and gradient, 2 transformer blocks, batch 8, 128 tokens, width 384, 6 heads",
        0.8,
        transformer,
        block(384, 0) + block(384, 50),
        (normal(8, 128, 384),),
    )


def cnn_gradient(table):
    filters = [normal(3, 3, 3, 32, scale=0.2), normal(32, scale=0.1), normal(3, 3, 32, 64, seed=1, scale=0.06), normal(64, seed=2, scale=0.1)]
    gradient_case(
        table,
        "value and gradient, CNN, batch 64, 32 × 32 × 3, conv 3 × 3 to 32 and 64, max pool, dense",
        0.9,
        cnn,
        filters + dense(16 * 16 * 64, 10),
        (normal(64, 32, 32, 3), classes(64)),
    )


def lstm_gradient(table, steps=64, batch=32, width=128):
    p = [normal(width, 4 * width, seed=i, scale=width**-0.5) for i in range(2)] + [normal(4 * width, seed=2, scale=0.1)]
    gradient_case(
        table,
        f"value and gradient, LSTM by scan, {steps} steps, batch {batch}, width {width}",
        0.7,
        lstm,
        p,
        (normal(steps, batch, width, seed=3), np.zeros((batch, width), np.float32)),
        torch_lstm(width) if has("torch") else None,
    )


def per_example(table, batch=256):
    p, data = dense(64, 128, 10), (normal(batch, 64), classes(batch))

    def ours():
        import eager

        m, tp, td = of_eager(), eager_tensors(p), eager_tensors(data)
        g = eager.compile(eager.vmap(eager.grad(lambda p, x, y: small_mlp(m, p, x, y)), (None, 0, 0)))
        return lambda: g(tp, *td)

    def theirs():
        import jax

        m, tp, td = of_jax(), jax_arrays(p), jax_arrays(data)
        g = jax.jit(jax.vmap(jax.grad(lambda p, x, y: small_mlp(m, p, x, y)), (None, 0, 0)))
        return lambda: jax.block_until_ready(g(tp, *td))

    def torchs(compiled):
        import torch

        m, tp, td = of_torch(), torch_tensors(p), torch_tensors(data)
        g = torch.func.vmap(torch.func.grad(lambda p, x, y: small_mlp(m, p, x, y)), (None, 0, 0))
        g = torch.compile(g, dynamic=False) if compiled else g
        return lambda: g(tp, *td)

    measure(table, f"per-example gradients, vmap(grad), batch {batch}, 64-128-10", 0.9, ours, all_peers(theirs, torchs), number=10)


def hessian(table, n=48):
    w, x = normal(n, n, scale=n**-0.5), normal(n, seed=1)

    def function(tanh):
        def f(w, x):
            y = tanh(w @ x)
            return (y * y).sum()

        return f

    def ours():
        import eager

        tw, tx = eager_tensors([w, x])
        g = eager.compile(eager.hessian(function(eager.tanh), 1))
        return lambda: g(tw, tx)

    def theirs():
        import jax

        tw, tx = jax_arrays([w, x])
        g = jax.jit(jax.hessian(function(jax.numpy.tanh), 1))
        return lambda: g(tw, tx).block_until_ready()

    def torchs(compiled):
        import torch

        tw, tx = torch_tensors([w, x])
        g = torch.func.hessian(function(torch.tanh), 1)
        g = torch.compile(g, dynamic=False) if compiled else g
        return lambda: g(tw, tx)

    measure(table, f"Hessian of sum(tanh(Wx)²), {n} inputs", 0.7, ours, all_peers(theirs, torchs), number=50)


def not_compiled(table):
    p, data = dense(8, 16, 4), (normal(4, 8), classes(4, 4))
    peers = {}
    if has("torch"):
        peers["torch"] = lambda: torch_gradient(mlp, p, data)
    if has("jax"):
        peers["jax"] = lambda: jax_gradient(mlp, p, data, compiled=False)
    measure(
        table,
        "value and gradient of an MLP 8-16-4 on 4 × 8 inputs, not compiled",
        0.25,
        lambda: eager_gradient(mlp, p, data, compiled=False),
        peers,
        20,
    )


# ---- from the definition to the first result ----

COLD_EAGER = """
import eager
p = [eager.Tensor.full(s, 0.1).realize() for s in ((64, 128), (128,), (128, 10), (10,))]
x = eager.Tensor.full((32, 64), 0.5).realize()
def loss(p, x):
    y = eager.tanh(x @ p[0] + p[1]) @ p[2] + p[3]
    return (y * y).mean()
def f():
    v, g = eager.value_and_grad(loss)(p, x)
    return [a.numpy() for a in (v, *g)]
"""

COLD_JAX = """
import jax, numpy
p = [jax.numpy.full(s, 0.1, "float32") for s in ((64, 128), (128,), (128, 10), (10,))]
x = jax.numpy.full((32, 64), 0.5, "float32")
def loss(p, x):
    y = jax.numpy.tanh(x @ p[0] + p[1]) @ p[2] + p[3]
    return (y * y).mean()
def f():
    v, g = jax.jit(jax.value_and_grad(loss))(p, x)
    return [numpy.asarray(a) for a in (v, *g)]
"""

COLD_MLX = """
import mlx.core as mx
import numpy
p = [mx.full(s, 0.1) for s in ((64, 128), (128,), (128, 10), (10,))]
x = mx.full((32, 64), 0.5)
mx.eval(p, x)
def loss(p, x):
    y = mx.tanh(x @ p[0] + p[1]) @ p[2] + p[3]
    return (y * y).mean()
def f():
    v, g = mx.compile(mx.value_and_grad(loss))(p, x)
    return [numpy.array(a) for a in (v, *g)]
"""

TIMED = "\nimport time\ns = time.perf_counter(); r = f(); t = time.perf_counter() - s\nprint(sum(abs(a).sum() for a in r), t)"


def cold(table):
    """A library whose gradient is another one is seen by the sum of all gradients."""
    codes = {"eager": COLD_EAGER, **({"jax": COLD_JAX} if has("jax") else {}), **({"mlx": COLD_MLX} if has("mlx.core") else {})}
    runs, sums = {n: [] for n in codes}, {}
    for _ in range(3):
        for name, code in codes.items():
            env, _ = empty_caches()
            if name not in sums:
                sums[name] = child(code + TIMED.replace(", t)", ")"), empty_caches()[0])
            runs[name].append((child(code + TIMED, env), child(code + TIMED, env)))
    runs = {n: r for n, r in runs.items() if all(all(t) for t in r)}
    first, second = ({n: [t[i] for t in r] for n, r in runs.items()} for i in range(2))
    right = all(s is None or abs(s / sums["eager"] - 1) < 1e-3 for s in sums.values()) if sums["eager"] else True
    for what, times, peer, goal in (
        ("value and gradient of an MLP, empty caches: definition to result", first, "jax", 0.25),
        ("the same in a second process", second, "mlx", 1.0),
    ):
        mine, theirs = times.pop("eager", None), times.get(peer)
        ratio = statistics.median(a / b for a, b in zip(mine, theirs)) if mine and theirs else None
        if mine and "jax" in times and peer != "jax":
            note = f"goal of the ratio to MLX; {statistics.median(a / b for a, b in zip(mine, times['jax'])):.2f} of JAX"
        else:
            note = "ratio to JAX"
        table.add(
            what, mine and statistics.median(mine), {n: statistics.median(t) for n, t in times.items()}, goal, note=note, right=right, ratio=ratio
        )


# ---- large graphs ----

PULL = """
import eager, os, statistics, time
x = eager.Tensor.full((8,), 0.5).realize()
ct = eager.Tensor.ones((8,)).realize()
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def chain(x, n):
    y = x
    for _ in range(n // 2):
        y = y * x
        y = y + x
    return y
def once(n):
    y, pull = eager.vjp(lambda x: chain(x, n), x)
    before, s = rss(), time.perf_counter()
    g = pull(ct)
    t = time.perf_counter() - s
    return t / n, (rss() - before) / n
once(1000)
held = once({n})[1]
t = statistics.median(once({n})[0] for _ in range(5))
print({what})
"""


def large_graph(table, n=100_000):
    each = child(PULL.format(n=n, what="t"))
    tenth = child(PULL.format(n=n // 10, what="t"))
    held = child(PULL.format(n=n, what="held"))
    notes = [f"goals 600 ns, {'missed' if not each or each > 600e-9 else 'met'}, and 300 bytes, {'missed' if not held or held > 300 else 'met'}"]
    notes += [f"{held:.0f} bytes each"] if held else []
    notes += [f"with a tenth of them {show(tenth, 's')}"] if tenth else []
    table.add(f"differentiating {n} recorded operations: each", each, {}, None, note="; ".join(notes))


LAYERS = """
import eager, time
def net(p, x):
    for w, b in p:
        h = x @ w + b
        m = h.mean(axis=1, keepdims=True)
        x = eager.gelu((h - m) * eager.rsqrt(((h - m) * (h - m)).mean(axis=1, keepdims=True) + 1e-5)) + x
    return (x * x).mean()
x = eager.Tensor.ones((64, 128)).realize()
p = [(eager.Tensor.full((128, 128), 0.01).realize(), eager.Tensor.full((128,), 0.01).realize()) for _ in range({n})]
f = eager.compile(eager.value_and_grad(net))
s = time.perf_counter()
v, g = f(p, x)
v.item()
print(time.perf_counter() - s)
"""


def layers(table):
    runs = [[child(LAYERS.format(n=n), empty_caches()[0]) for n in (64, 8)] for _ in range(5)]
    runs = [r for r in runs if all(r)]
    many, few = (statistics.median(t) for t in zip(*runs)) if runs else (None, None)
    ratio = statistics.median(a / b for a, b in runs) if runs else None
    table.add("compiling the gradient of 64 equal layers against 8: first call", many, {"8 layers": few}, 2.0, ratio=ratio)


# ---- memory ----

PEAK = """
import re
from bench import derive
p, data = derive.memory_case()
step = derive.{maker}(derive.mlp, p, data{more})
def field(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) / 1024
def freed():
    import ctypes, gc, sys
    gc.collect()
    if "eas" in sys.modules:
        sys.modules["eas"].empty_cache()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
peak = []
step()
for _ in range(2):
    freed()
    before = field("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    step()
    peak.append(field("VmHWM") - before)
print(max(peak))
"""


def memory_case(layers=8, width=1024, batch=4096):
    return dense(*[width] * (layers + 1)), (normal(batch, width), classes(batch, width))


def planned():
    """MB above the inputs by our own plan, from the program's text."""
    run = eager_step(mlp, *memory_case())
    run()
    step = run.__closure__[run.__code__.co_freevars.index("step")].cell_contents
    found = re.search(r"([\d.]+) (bytes|[kKMG]i?B) at most above", step.show("text"))
    scale = {"bytes": 2**-20, "k": 2**-10, "K": 2**-10, "M": 1.0, "G": 1024.0}
    return float(found[1]) * scale.get(found[2], scale.get(found[2][0])) if found else None


def memory(table):
    """The peak of the resident set in a step, above what is there before it: parameters and data."""
    if not os.path.exists("/proc/self/clear_refs"):
        print("    (peak memory of a step: needs /proc/self/clear_refs)", file=sys.stderr)
        return
    mine = child(PEAK.format(maker="eager_step", more=""))
    peers = {"jax": ("jax_step", "")} if has("jax") else {}
    if has("torch"):
        peers |= {"torch": ("torch_step", ""), "torch.compile": ("torch_step", ", True")}
    peers = {n: child(PEAK.format(maker=maker, more=more)) for n, (maker, more) in peers.items()}
    plan = planned()
    note = f"by the program's own text {plan:.0f} MB" if plan else ""
    table.add("peak memory of a training step above its inputs, 8 layers of 1024, batch 4096", mine, peers, 1.0, unit="MB", note=note)


CASES = {
    "mlp_step": mlp_step,
    "transformer": transformer_gradient,
    "cnn": cnn_gradient,
    "lstm": lstm_gradient,
    "per_example": per_example,
    "hessian": hessian,
    "not_compiled": not_compiled,
    "cold": cold,
    "large_graph": large_graph,
    "layers": layers,
    "memory": memory,
}


def main(names):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    table = Table()
    for name, case in CASES.items():
        if not names or any(name.startswith(n) for n in names):
            try:
                case(table)
            except Exception as e:
                print(f"    ({name}: {say(e)})", file=sys.stderr)


def rows(table):
    run_part("derive", THREADS, table)


if __name__ == "__main__":
    main(sys.argv[1:])
