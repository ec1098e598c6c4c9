"""The cases of throughput.py in Numba: parallel loops, no fastmath, into existing outputs. Imported only
where Numba is installed."""

import math

import numba
import numpy as np
from numba import njit, prange

C = np.float32(-1.5957691216057308)
D = np.float32(0.044715)
ONE = np.float32(1)


@njit(inline="always")
def gelu_of(u):
    return u / (ONE + math.exp(C * (u + D * u * u * u)))


@njit(parallel=True)
def gelu(x, w, b, s, out):
    for i in prange(x.size):
        out[i] = gelu_of(x[i] * w + b) * s


@njit(parallel=True)
def softmax(x, out):
    for r in prange(x.shape[0]):
        top = x[r, 0]
        for c in range(x.shape[1]):
            top = max(top, x[r, c])
        total = np.zeros(16, np.float32)  # chains side by side: one sum would have to wait for itself, and is less exact
        for c in range(0, x.shape[1], 16):
            for k in range(16):
                e = math.exp(x[r, c + k] - top)
                out[r, c + k] = e
                total[k] += e
        scale = ONE / total.sum()
        for c in range(x.shape[1]):
            out[r, c] *= scale


@njit(parallel=True)
def layernorm(x, weight, bias, eps, out):
    n = x.shape[1]
    for r in prange(x.shape[0]):
        total = np.zeros(16, np.float32)
        for c in range(0, n, 16):
            for k in range(16):
                total[k] += x[r, c + k]
        mu = total.sum() / np.float32(n)
        total[:] = 0
        for c in range(0, n, 16):
            for k in range(16):
                d = x[r, c + k] - mu
                total[k] += d * d
        scale = ONE / np.sqrt(total.sum() / np.float32(n) + eps)
        for c in range(n):
            out[r, c] = (x[r, c] - mu) * scale * weight[c] + bias[c]


@njit(parallel=True)
def sum_rows(x, out):
    for r in prange(x.shape[0]):
        total = np.zeros(64, np.float32)
        for c in range(0, x.shape[1], 64):
            for k in range(64):
                total[k] += x[r, c + k]
        out[r] = total.sum()


@njit(parallel=True)
def sum_columns(x, out):
    parts = numba.get_num_threads()
    width = x.shape[1] // parts
    for p in prange(parts):
        mine = out[p * width : (p + 1) * width]
        mine[:] = 0
        for r in range(x.shape[0]):
            for c in range(width):
                mine[c] += x[r, p * width + c]


@njit(parallel=True)
def add_transposed(a, b, out):
    t, n = 32, a.shape[0]
    for q in prange(n // t):
        for j0 in range(0, n, t):
            for i in range(q * t, q * t + t):
                for j in range(j0, j0 + t):
                    out[i, j] = a[i, j] + b[j, i]


@njit(parallel=True)
def bias_gelu(x, bias):
    for r in prange(x.shape[0]):
        for c in range(x.shape[1]):
            x[r, c] = gelu_of(x[r, c] + bias[c])


@njit(parallel=True)
def cumsum(x, out):
    for r in prange(x.shape[0]):
        total = np.float32(0)
        for c in range(x.shape[1]):
            total += x[r, c]
            out[r, c] = total


@njit(parallel=True)
def gather(x, rows, out):
    for r in prange(rows.size):
        out[r] = x[rows[r]]


@njit(parallel=True)
def histogram(x, out):
    parts = numba.get_num_threads()
    counts = np.zeros((parts, 4, 256), np.int32)
    part = x.size // parts // 4 * 4
    for p in prange(parts):
        for i in range(p * part, (p + 1) * part, 4):  # four tables: equal neighbours do not wait for each other
            for k in range(4):
                counts[p, k, x[i + k]] += 1
    out[:] = counts.sum(0).sum(0)
    for i in range(parts * part, x.size):
        out[x[i]] += 1


# ---- the cases of kernels_by_hand.py: serial loops ----


@njit
def squares(x, y, out):
    for i in range(x.size):
        out[i] = x[i] * x[i] + y[i] * np.float32(0.5)


@njit
def add_at(at, x, out):
    for i in range(at.size):
        out[at[i]] += x[i]


@njit
def count(x, out):
    for i in range(x.size):
        out[x[i]] += 1


@njit
def csr(start, cols, vals, x, out):
    for r in range(out.size):
        total = np.float32(0)
        for k in range(start[r], start[r + 1]):
            total += vals[k] * x[cols[k]]
        out[r] = total


@njit
def take(at, x, out):
    for i in range(at.size):
        out[i] = x[at[i]]


@njit
def byte_rows(a, b, out):
    for i in range(a.shape[0]):
        total = np.int32(0)
        for k in range(a.shape[1]):
            total += np.int32(a[i, k]) * np.int32(b[k])
        out[i] = total


@njit
def byte_product(a, b, out):
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                out[i, j] += np.int32(a[i, k]) * np.int32(b[k, j])
