"""Compiling the kernels of examples/ with an empty cache, against JAX compiling what does the same: the first
call less the second, each in a process of its own. Sizes are small, so that hardly any of it is running."""

import shutil

from .tools import child, empty_caches, has

HEAD = "import time, numpy as np\nrng = np.random.default_rng(0)\ndef normal(*s): return rng.standard_normal(s, dtype=np.float32)\n"
TAIL = """
def timed():
    t = time.perf_counter()
    run()
    return time.perf_counter() - t
first = timed()
print(first - timed())
"""
JAX = "import jax, jax.numpy as jnp\njnp.zeros(1).block_until_ready()\n"
JAX_TAIL = "\ng = jax.jit(f)\ndef run(): jax.block_until_ready(g(*args))\n"

# name: (the inputs, ours, what JAX is given); both see the inputs by name
EXAMPLES = {
    "add": (
        "a, b = normal(4096), normal(4096)",
        "import eas\nfrom eas import mk\nc = np.empty_like(a)\n"
        "@eas.kernel\ndef add(a, b, c, N, BLOCK: eas.constexpr):\n    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)\n"
        "    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)\n"
        "def run(): add(a, b, c, 4096, BLOCK=256)",
        "args = (a, b)\ndef f(a, b): return a + b",
    ),
    "saxpy": (
        "a, b = normal(4096), normal(4096)",
        "from examples.saxpy import saxpy\ndef run(): saxpy(a, b, 2.5, 4096, BLOCK=1024)",
        "args = (a, b)\ndef f(a, b): return 2.5 * a + b",
    ),
    "softmax": (
        "x = normal(16, 1000)",
        "from examples.softmax import softmax\nout = np.empty_like(x)\ndef run(): softmax(x, out, 1000, COLS=1024, _grid=16)",
        "args = (x,)\ndef f(x): return jax.nn.softmax(x, 1)",
    ),
    "layer norm": (
        "x, w, b = normal(16, 1000), normal(1000), normal(1000)",
        "from examples.layernorm import forward\nout, mean, rstd = np.empty_like(x), np.empty(16, np.float32), np.empty(16, np.float32)\n"
        "def run(): forward(x, w, b, out, mean, rstd, 1e-5)",
        "args = (x, w, b)\ndef f(x, w, b):\n    mu = x.mean(1, keepdims=True)\n    r = jax.lax.rsqrt(((x - mu) ** 2).mean(1, keepdims=True) + 1e-5)\n"
        "    return (x - mu) * r * w + b, mu, r",
    ),
    "layer norm, backward": (
        "x, w, b, g = normal(64, 1000), normal(1000), normal(1000), normal(64, 1000)",
        "from examples.layernorm import backward\nmean, rstd = x.mean(1), 1 / x.std(1)\ndx, dw, db = np.empty_like(x), np.empty_like(w), np.empty_like(w)\n"
        "def run(): backward(x, w, g, mean, rstd, dx, dw, db)",
        "args = (x, w, b, g)\ndef forward(x, w, b):\n    mu = x.mean(1, keepdims=True)\n    r = jax.lax.rsqrt(((x - mu) ** 2).mean(1, keepdims=True) + 1e-5)\n"
        "    return (x - mu) * r * w + b\ndef f(x, w, b, g): return jax.vjp(forward, x, w, b)[1](g)",
    ),
    "matmul by blocks": (
        "a, b = normal(128, 128), normal(128, 128)",
        "from examples.matmul import blocks\nc = np.empty_like(a)\ndef run(): blocks(a, b, c, 128, 128, BM=64, BN=128, BK=128, _grid=(1, 2))",
        "args = (a, b)\ndef f(a, b): return a @ b",
    ),
    "matmul + bias + gelu": (
        "a, b, bias = normal(128, 128), normal(128, 128), normal(128)",
        "from examples.matmul import fused\nc = np.empty_like(a)\ndef run(): fused(a, b, bias, c, 128, 128, BM=64, BN=128, BK=128, _grid=(1, 2))",
        "args = (a, b, bias)\ndef f(a, b, bias): return jax.nn.gelu(a @ b + bias)",
    ),
    "attention": (
        "q, k, v = normal(3, 2, 128, 64)",
        "import examples.attention as e\nout = np.empty_like(q)\ndef run(): e.run(q, k, v, out, 64, 64)",
        "args = (q, k, v)\ndef f(*a): return jax.nn.dot_product_attention(*(x.transpose(1, 0, 2)[None] for x in a), is_causal=True)",
    ),
    "dropout": (
        "x = normal(4096)",
        "from examples.dropout import dropout\nout = np.empty_like(x)\ndef run(): dropout(x, out, 0.25, 42, 4096, BLOCK=1024)",
        "args = (x, jax.random.key(42))\ndef f(x, key): return jnp.where(jax.random.uniform(key, x.shape) >= 0.25, x / 0.75, 0)",
    ),
    "histogram": (
        "x = rng.integers(0, 256, 4096).astype(np.uint8)",
        "from examples.histogram import histogram\nbins = np.zeros(256, np.int32)\ndef run(): histogram(x, bins, 4096, ROUNDS=8, BLOCK=128, _grid=4)",
        "args = (x,)\ndef f(x): return jnp.bincount(x, length=256)",
    ),
    "prefix sum": (
        "x = rng.integers(0, 100, 4096)",
        "from examples.prefix_sum import prefix_sum\nout = np.empty_like(x)\ndef run(): prefix_sum(x, out)",
        "args = (x,)\ndef f(x): return jnp.cumsum(x)",
    ),
    "stencil": (
        "u = normal(64, 512)",
        "from examples.stencil import step\nout = np.empty_like(u)\ndef run(): step(u, out, 64, 512, 0.2, TH=8, TW=256, _grid=(2, 8))",
        "args = (u,)\nfrom examples.stencil import in_jax\ndef f(u): return in_jax(u, 0.2)",
    ),
    "n-body": (
        "at, m = normal(3, 256), abs(normal(256))",
        "from examples.nbody import pull\nout = np.empty_like(at)\ndef run(): pull(*at, m, *out, 256, BLOCK=64)",
        "args = (at, m)\nfrom examples.nbody import pairs\ndef f(at, m): return pairs(jnp, at, m)",
    ),
    "Mandelbrot": (
        "w, h = 64, 32",
        "from examples.mandelbrot import mandelbrot\nout = np.zeros((h, w), np.int32)\ndef run(): mandelbrot(out, w, h, -2.2, 1.1, 3.3 / w, 50, BLOCK=64)",
        "x, y = np.meshgrid(np.arange(w), np.arange(h))\nargs = ((-2.2 + 3.3 / w * x).astype(np.float32), (1.1 - 3.3 / w * y).astype(np.float32))\n"
        "def f(cr, ci):\n"
        "    def more(s): return (s[3] < 50) & jnp.any(s[0] * s[0] + s[1] * s[1] <= 4)\n"
        "    def body(s):\n"
        "        zr, zi, count, n = s\n"
        "        inside = zr * zr + zi * zi <= 4\n"
        "        r, i = zr * zr - zi * zi + cr, 2 * zr * zi + ci\n"
        "        return jnp.where(inside, r, zr), jnp.where(inside, i, zi), count + inside, n + 1\n"
        "    return jax.lax.while_loop(more, body, (jnp.zeros_like(cr), jnp.zeros_like(cr), jnp.zeros(cr.shape, jnp.int32), 0))[2]",
    ),
}


def seconds(code, rounds):
    """The least of some runs, each with empty caches; None if it fails."""
    times = []
    for _ in range(rounds):
        env, folder = empty_caches()
        try:
            times.append(child(code, env))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return None if None in times else min(times)


def rows(table, rounds=2):
    jax = has("jax")
    for name, (inputs, ours, theirs) in EXAMPLES.items():
        mine = seconds(f"{HEAD}{inputs}\n{ours}\n{TAIL}", rounds)
        other = seconds(f"{HEAD}{JAX}{inputs}\n{theirs}\n{JAX_TAIL}{TAIL}", rounds) if jax else None
        table.add(f"compile {name}, empty cache", mine, {"jax": other}, 0.5)
