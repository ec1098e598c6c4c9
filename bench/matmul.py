"""Tiled 1024^3 matmul in thread mode with threadgroup memory and barriers, against Numba's tiled loops."""

import numpy as np

from examples.matmul_tiled import matmul

from .tools import has, interleaved

N = 1024


def numba_tiled(a, b, c):
    """The quickest of several ways to write it: tiles copied to local arrays, unsigned indices (no
    wrap-around tests)."""
    import numba

    @numba.njit(parallel=True, fastmath=True)
    def f(a, b, c):
        n, t = np.uint64(a.shape[0]), np.uint64(64)
        across = a.shape[0] // 64
        for q in numba.prange(across * across):
            i0, j0 = np.uint64(q // across * 64), np.uint64(q % across * 64)
            acc, at, bt = np.zeros((64, 64), np.float32), np.empty((64, 64), np.float32), np.empty((64, 64), np.float32)
            for k0 in range(np.uint64(0), n, t):
                for i in range(t):
                    for k in range(t):
                        at[i, k] = a[i0 + i, k0 + k]
                        bt[i, k] = b[k0 + i, j0 + k]
                for i in range(t):
                    for k in range(t):
                        x = at[i, k]
                        for j in range(t):
                            acc[i, j] += x * bt[k, j]
            for i in range(t):
                for j in range(t):
                    c[i0 + i, j0 + j] = acc[i, j]

    return lambda: f(a, b, c)


def numba_rows(a, b, c):
    import numba

    @numba.njit(parallel=True, fastmath=True)
    def f(a, b, c):
        n, t = a.shape[0], 64
        for ii in numba.prange(n // t):
            c[ii * t : ii * t + t] = 0
            for k0 in range(0, n, t):
                for i in range(ii * t, ii * t + t):
                    ci = c[i]
                    for k in range(k0, k0 + t):
                        x, bk = a[i, k], b[k]
                        for j in range(n):
                            ci[j] += x * bk[j]

    return lambda: f(a, b, c)


def measure():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((N, N), dtype=np.float32) for _ in range(2))
    c, d = np.zeros((N, N), np.float32), np.zeros((N, N), np.float32)
    runs = {"eas": lambda: matmul(a, b, c)}
    if has("numba"):
        runs["numba, tiles"] = numba_tiled(a, b, d)
        runs["numba, rows"] = numba_rows(a, b, d)
    t = interleaved(runs, 7)
    error = float(np.abs(c - a @ b).max())
    assert np.abs(d - a @ b).max() < 1e-2
    return t, error


def rows(table):
    t, error = measure()
    table.add("tiled 1024³ matmul, thread mode", t.pop("eas"), t, 1 / 3, note=f"largest error {error:.1e}", right=error < 1e-2)
