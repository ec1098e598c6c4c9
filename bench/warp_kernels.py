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


@wp.kernel
def pull(
    x: wp.array(dtype=wp.float32),
    y: wp.array(dtype=wp.float32),
    z: wp.array(dtype=wp.float32),
    m: wp.array(dtype=wp.float32),
    ax: wp.array(dtype=wp.float32),
    ay: wp.array(dtype=wp.float32),
    az: wp.array(dtype=wp.float32),
    n: int,
):
    i = wp.tid()
    xi = x[i]
    yi = y[i]
    zi = z[i]
    sx = float(0.0)  # noqa: UP018 (Warp: a variable that a loop changes)
    sy = float(0.0)  # noqa: UP018 (Warp: a variable that a loop changes)
    sz = float(0.0)  # noqa: UP018 (Warp: a variable that a loop changes)
    for j in range(n):
        dx = x[j] - xi
        dy = y[j] - yi
        dz = z[j] - zi
        r2 = dx * dx + dy * dy + dz * dz + 0.01
        r = 1.0 / wp.sqrt(r2)
        w = m[j] * r * r * r
        sx += w * dx
        sy += w * dy
        sz += w * dz
    ax[i] = sx
    ay[i] = sy
    az[i] = sz
