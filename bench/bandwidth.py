"""c = a + b and saxpy on 2^24 float32 into an existing output, against the non-temporal triad of this
machine, measured in the same run."""

import ctypes
import os

import numpy as np

import eas
from eas import mk

from .tools import c_library, has, interleaved

N = 1 << 24
TRIAD = r"""
#include <pthread.h>
#include <stddef.h>
typedef float v8 __attribute__((vector_size(32), aligned(32)));
struct job { const float *a, *b; float *c; size_t lo, hi; };
/* c = a + 3 b past the caches: what the memory can do. */
static void *part(void *p)
{
    struct job *j = p;
    v8 *c = (v8 *)j->c;
    const v8 *a = (const v8 *)j->a, *b = (const v8 *)j->b;
    for (size_t i = j->lo; i < j->hi; i++) {
        v8 v = a[i] + 3.0f * b[i];
#ifdef __clang__
        __builtin_nontemporal_store(v, &c[i]);
#else
        __builtin_ia32_movntps256((float *)&c[i], v);
#endif
    }
    return NULL;
}
void triad(const float *a, const float *b, float *c, size_t n, int threads)
{
    pthread_t t[64];
    struct job j[64];
    for (int i = 0; i < threads; i++) {
        j[i] = (struct job){a, b, c, n / 8 * i / threads, n / 8 * (i + 1) / threads};
        if (i) pthread_create(&t[i], NULL, part, &j[i]);
    }
    part(&j[0]);
    for (int i = 1; i < threads; i++) pthread_join(t[i], NULL);
}
"""


def build_triad():
    """The C function, or None without a compiler that can."""
    lib = c_library(TRIAD)
    return lib and lib.triad


def aligned(n):
    raw = np.zeros(n + 16, np.float32)
    skip = (-raw.ctypes.data % 64) // 4
    return raw[skip : skip + n]


@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


@eas.kernel
def saxpy(a, b, c, alpha, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, alpha * mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


def numba_peers(a, b, c):
    import numba

    @numba.njit(parallel=True)
    def f(a, b, c):
        for i in numba.prange(a.size):
            c[i] = a[i] + b[i]

    @numba.njit(parallel=True)
    def g(a, b, c, alpha):
        for i in numba.prange(a.size):
            c[i] = alpha * a[i] + b[i]

    return lambda: f(a, b, c), lambda: g(a, b, c, np.float32(3))


def torch_peers(a, b, c):
    import torch

    x, y, z = map(torch.from_numpy, (a, b, c))
    return lambda: torch.add(x, y, out=z), lambda: torch.add(y, x, alpha=3.0, out=z)


def numpy_peers(a, b, c):
    def g():
        np.multiply(a, np.float32(3), out=c)
        np.add(c, b, out=c)

    return lambda: np.add(a, b, out=c), g


def warp_peers(a, b, c):
    import warp as wp

    wp.config.quiet = True
    from . import warp_kernels as k

    x, y, z = (wp.array(v, device="cpu", copy=False) for v in (a, b, c))
    return (
        lambda: wp.launch(k.add, dim=N, inputs=[x, y, z, N], device="cpu"),
        lambda: wp.launch(k.saxpy, dim=N, inputs=[x, y, z, 3.0, N], device="cpu"),
    )


PEERS = {"numba": numba_peers, "torch": torch_peers, "numpy": numpy_peers, "warp": warp_peers}


def measure():
    """[({name: seconds}, is our result right?)] for add and saxpy; "eas" and "triad" among the names."""
    a, b, c = (aligned(N) for _ in range(3))
    a[:], b[:] = 1, 2
    adds = {"eas": lambda: add(a, b, c, N, BLOCK=1024)}
    saxpys = {"eas": lambda: saxpy(a, b, c, 3.0, N, BLOCK=1024)}
    for name, make in PEERS.items():
        if has(name):
            adds[name], saxpys[name] = make(a, b, c)
    triad = build_triad()
    if triad:
        p = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        adds["triad"] = saxpys["triad"] = lambda: triad(*p, ctypes.c_size_t(N), threads)
    out = []
    for runs, want in ((adds, 3.0), (saxpys, 5.0)):
        times = interleaved(runs, 9)
        c[:] = 0
        runs["eas"]()
        out.append((times, bool((c == want).all())))
    return out


def rows(table):
    moved = 3 * 4 * N / 1e9
    for what, (times, right) in zip(("c = a + b, 2^24 f32", "saxpy, 2^24 f32"), measure()):
        rates = {n: moved / t for n, t in times.items()}
        ours, limit = rates.pop("eas"), rates.pop("triad", None)
        if limit:
            table.add(what + ", of the triad's bandwidth", ours, {"triad": limit}, 0.9, "GB/s", "more", right=right)
        table.add(what + ", of the best peer's", ours, rates, 1.0, "GB/s", "more", right=right)
