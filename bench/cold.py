"""Start-up: empty caches, definition to first result of a fused element-wise kernel; the same in a second
process; import time."""

import shutil
import statistics

from .tools import child, empty_caches, has

# Each prints the seconds from the definition to the first result; imports are not counted, initialisation of
# a peer's runtime is.
HEAD = (
    "import time, numpy as np\nN = 4096\na = np.random.rand(N).astype(np.float32); b = np.random.rand(N).astype(np.float32); c = np.zeros_like(a)\n"
)
TAIL = "\nt = time.perf_counter() - t\nassert np.allclose(c, np.maximum(a * b + a, 0) - b, atol=1e-6)\nprint(t)\n"
CODES = {
    "eas": """
import eas
from eas import mk
t = time.perf_counter()
@eas.kernel
def f(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    x, y = mk.load(a, i, m), mk.load(b, i, m)
    mk.store(c, i, mk.maximum(x * y + x, 0.0) - y, m)
f(a, b, c, N, BLOCK=256)
""",
    "numba": """
import numba, os
t = time.perf_counter()
exec(compile('''
@numba.njit(cache=False)
def f(a, b, c):
    for i in range(a.size):
        c[i] = max(a[i] * b[i] + a[i], np.float32(0)) - b[i]
''', '<f>', 'exec'))
f(a, b, c)
""",
    "jax": """
import jax, jax.numpy as jnp
t = time.perf_counter()
f = jax.jit(lambda a, b: jnp.maximum(a * b + a, 0) - b)
c = np.asarray(f(a, b))
""",
    "mlx.core": """
import mlx.core as mx
t = time.perf_counter()
f = mx.compile(lambda a, b: mx.maximum(a * b + a, 0) - b)
c = np.array(f(mx.array(a), mx.array(b)))
""",
    "warp": """
import warp as wp
wp.config.quiet = True
t = time.perf_counter()
from bench import warp_kernels
x, y, z = (wp.array(v, device='cpu') for v in (a, b, c))
wp.launch(warp_kernels.fused, dim=N, inputs=[x, y, z, N], device='cpu')
c = z.numpy()
""",
    "taichi": """
import taichi as ti
t = time.perf_counter()
ti.init(arch=ti.cpu, log_level=ti.ERROR, offline_cache=True)
import bench.taichi_kernels as k
k.fused(a, b, c)
""",
}
IMPORTS = {
    "eas": "import eas; from eas import mk",
    "mlx.core": "import mlx.core",
    "numba": "import numba",
    "jax": "import jax",
    "warp": "import warp",
    "torch": "import torch",
}


def start_times(rounds, warm):
    names = [n for n in CODES if n == "eas" or has(n)]
    times = {n: [] for n in names}
    for _ in range(rounds):
        for n in list(names):
            env, folder = empty_caches()
            code = HEAD + CODES[n] + TAIL
            try:
                if warm:
                    child(code, env)
                t = child(code, env)
            except Exception as e:
                print(f"    ({n}: {e})")
                t = None
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if t is None:
                names.remove(n)
            else:
                times[n].append(t)
    return {n: statistics.median(t) for n, t in times.items() if t}


def import_times(rounds):
    code = "import time, numpy\nt = time.perf_counter()\n{}\nprint(time.perf_counter() - t)"
    names = [n for n in IMPORTS if n == "eas" or has(n)]
    times = {n: [] for n in names}
    for _ in range(rounds):
        for n in names:
            times[n].append(child(code.format(IMPORTS[n])))
    return {n: statistics.median(x for x in t if x is not None) for n, t in times.items() if any(t)}


def rows(table):
    t = start_times(3, warm=False)
    table.add("empty caches, definition to first result", t.pop("eas", None), t, 1 / 6)
    t = start_times(3, warm=True)
    table.add("second process, warm cache", t.pop("eas", None), t, 1 / 2)
    t = import_times(7)
    table.add("import beyond NumPy's", t.pop("eas", None), t, 1.0)
