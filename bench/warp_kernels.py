"""Warp reads the source of its kernels, so they stand in a file."""

import warp as wp


@wp.kernel
def add(a: wp.array(dtype=wp.float32), b: wp.array(dtype=wp.float32), c: wp.array(dtype=wp.float32), n: int):
    i = wp.tid()
    if i < n:
        c[i] = a[i] + b[i]


@wp.kernel
def saxpy(a: wp.array(dtype=wp.float32), b: wp.array(dtype=wp.float32), c: wp.array(dtype=wp.float32), alpha: float, n: int):
    i = wp.tid()
    if i < n:
        c[i] = alpha * a[i] + b[i]


@wp.kernel
def fused(a: wp.array(dtype=wp.float32), b: wp.array(dtype=wp.float32), c: wp.array(dtype=wp.float32), n: int):
    i = wp.tid()
    if i < n:
        c[i] = wp.max(a[i] * b[i] + a[i], 0.0) - b[i]
