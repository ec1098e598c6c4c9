"""Tiled 1024^3 matmul in thread mode with threadgroup memory and barriers, against Numba's tiled loops."""

import numpy as np

from examples.matmul_tiled import matmul

from .tools import has, interleaved

N = 1024


def numba_tiled(a, b, c):
    import numba

    @numba.njit(parallel=True, fastmath=True)
    def f(a, b, c):
        n, t = a.shape[0], 64
        for ii in numba.prange(n // t):
            for i in range(ii * t, ii * t + t):
                for j in range(n):
                    c[i, j] = 0
            for k0 in range(0, n, t):
                for j0 in range(0, n, t):
                    for i in range(ii * t, ii * t + t):
                        for k in range(k0, k0 + t):
                            x = a[i, k]
                            for j in range(j0, j0 + t):
                                c[i, j] += x * b[k, j]

    return lambda: f(a, b, c)


def measure():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((N, N), dtype=np.float32) for _ in range(2))
    c, d = np.zeros((N, N), np.float32), np.zeros((N, N), np.float32)
    runs = {"eas": lambda: matmul(a, b, c)}
    if has("numba"):
        runs["numba"] = numba_tiled(a, b, d)
    t = interleaved(runs, 5)
    error = float(np.abs(c - a @ b).max())
    return t, error


def rows(table):
    t, error = measure()
    table.add("tiled 1024³ matmul, thread mode", t.pop("eas"), t, 1 / 3, note=f"largest error {error:.1e}", right=error < 1e-2)
