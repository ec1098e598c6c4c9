"""Matrix product, five ways, and a sixth that does more in one go. (matmul_tiled.py has a seventh, by hand in
threadgroup memory.)

plain      one element per thread: mk.dot walks a row of a and a column of b
simdgroup  one 8 x 8 tile per simdgroup of 32 threads: mk.mma multiplies tiles, as the matrix units of a GPU
           do
blocks     one tile per program: mk.dot multiplies blocks that were loaded whole; on the CPU it runs in
           registers
panels     two kernels: the first lays b out in panels of COLS columns, in the second a program multiplies
           ROWS rows of a, which stay in the second cache, by one panel; with as many columns as the CPU has
           registers for, mk.dot reads both factors where they lie and nothing else is ever copied: the
           quickest of all
in_place   the same of a b that stays in the second cache as it is, up to a megabyte: nothing needs to be laid
           out
fused      blocks or panels, and before a tile is stored, a bias and the gelu function on top: no further pass
           over memory"""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size


@eas.kernel
def plain(a, b, c, M, N, K, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    row, col = i // N, i % N
    mk.store(c, i, mk.dot(a, row * K, 1, b, col, N, K), i < M * N)


@eas.kernel
def simdgroup(a, b, c, N, K):
    mk.tid(0, 32)
    row, col = mk.program_id(1) * 8, mk.program_id(0) * 8
    acc = mk.var(mk.mma_zero())
    for k in mk.range(0, K, 8):
        acc.set(mk.mma(a, row * K + k, K, b, k * N + col, N, acc))
    mk.mma_store(c, row * N + col, N, acc)


@eas.fn
def product(a, b, rows, cols, N, K, BM, BN, BK):
    """The tile of a @ b at these rows and columns. K is a multiple of BK."""
    acc = mk.var(mk.zeros((BM, BN)))
    for start in mk.range(0, K, BK):
        k = start + mk.arange(0, BK)
        x = mk.load(a, rows[:, None] * K + k[None, :])
        y = mk.load(b, k[:, None] * N + cols[None, :])
        acc.set(mk.dot(x, y, acc))
    return acc.value


@eas.fn
def gelu(x):
    """x / (1 + exp(-2u)) is x/2 (1 + tanh(u)), with one function less; u is sqrt(2/pi) (x + 0.044715 x^3)."""
    return x / (1.0 + mk.exp(x * (-1.5957691216057308 - 0.07135481627260025 * (x * x))))


@eas.kernel
def blocks(a, b, c, N, K, BM: eas.constexpr, BN: eas.constexpr, BK: eas.constexpr):
    rows, cols = mk.program_id(1) * BM + mk.arange(0, BM), mk.program_id(0) * BN + mk.arange(0, BN)
    mk.store(c, rows[:, None] * N + cols[None, :], product(a, b, rows, cols, N, K, BM, BN, BK))


@eas.kernel
def fused(a, b, bias, c, N, K, BM: eas.constexpr, BN: eas.constexpr, BK: eas.constexpr):
    rows, cols = mk.program_id(1) * BM + mk.arange(0, BM), mk.program_id(0) * BN + mk.arange(0, BN)
    acc = product(a, b, rows, cols, N, K, BM, BN, BK)
    mk.store(c, rows[:, None] * N + cols[None, :], gelu(acc + mk.load(bias, cols)[None, :]))


@eas.kernel
def lay_out(b, out, N, K, COLS: eas.constexpr, PANELS: eas.constexpr, ROWS: eas.constexpr):
    """Panel p of out has the columns from p * COLS on, row after row; 0 beyond the last column. ROWS divides
    K."""
    k, c = mk.program_id(1) * ROWS + mk.arange(0, ROWS), mk.arange(0, COLS)
    panel = mk.program_id(0) * PANELS + mk.arange(0, PANELS)
    col = (panel[:, None] * COLS + c[None, :])[None, :, :]
    x = mk.load(b, k[:, None, None] * N + col, mk.broadcast_to(col < N, (ROWS, PANELS, COLS)), 0.0)
    mk.store(out, (panel[None, :, None] * K + k[:, None, None]) * COLS + c[None, None, :], x)


@eas.fn
def panel_product(a, b, K, ROWS, COLS):
    """A tile of a @ b, its rows and its columns. Programs with the same rows follow each other."""
    k, rows, cols = mk.arange(0, K), mk.program_id(1) * ROWS + mk.arange(0, ROWS), mk.arange(0, COLS)
    x = mk.load(a, rows[:, None] * K + k[None, :])
    y = mk.load(b, mk.program_id(0) * (K * COLS) + k[:, None] * COLS + cols[None, :])
    return mk.dot(x, y), rows, mk.program_id(0) * COLS + cols


@eas.kernel
def by_panels(a, b, c, N, K: eas.constexpr, ROWS: eas.constexpr, COLS: eas.constexpr):
    acc, rows, cols = panel_product(a, b, K, ROWS, COLS)
    mk.store(c, rows[:, None] * N + cols[None, :], acc, (cols < N)[None, :])


@eas.kernel
def in_place(a, b, c, N: eas.constexpr, K: eas.constexpr, ROWS: eas.constexpr, COLS: eas.constexpr):
    k, rows, cols = mk.arange(0, K), mk.program_id(1) * ROWS + mk.arange(0, ROWS), mk.program_id(0) * COLS + mk.arange(0, COLS)
    acc = mk.dot(mk.load(a, rows[:, None] * K + k[None, :]), mk.load(b, k[:, None] * N + cols[None, :]))
    mk.store(c, rows[:, None] * N + cols[None, :], acc)


@eas.kernel
def fused_by_panels(a, b, bias, c, N, K: eas.constexpr, ROWS: eas.constexpr, COLS: eas.constexpr):
    acc, rows, cols = panel_product(a, b, K, ROWS, COLS)
    mk.store(c, rows[:, None] * N + cols[None, :], gelu(acc + mk.load(bias, cols, cols < N)[None, :]), (cols < N)[None, :])


def run_panels(a, b, c, rows=64, cols=64, bias=None):
    """rows divides the rows of a. 64 columns suit 32 registers of 16 floats; 16 suit 16 of 8."""
    (m, k), n = a.shape, b.shape[1]
    across, step = -(-n // cols), 16 if k % 16 == 0 else 1
    each = next(e for e in (8, 4, 2, 1) if across % e == 0)
    laid_out = eas.empty(across * k * cols, device="cpu", dtype=np.float32)  # from the pool: fresh memory would be slower than the copy
    lay_out(b, laid_out, n, k, COLS=cols, PANELS=each, ROWS=step, _grid=(across // each, k // step))
    kernel, more = (by_panels, ()) if bias is None else (fused_by_panels, (bias,))
    kernel(a, laid_out, *more, c, n, K=k, ROWS=rows, COLS=cols, _grid=(across, m // rows))


def tiles(n):
    """(BM, BN, BK) for sizes that they divide."""
    return (256, 256, 128) if n >= 1024 else (128, 128, 256) if n >= 512 else (16, 16, 16)


def run_blocks(a, b, c):
    n = a.shape[0]
    bm, bn, bk = tiles(n)
    blocks(a, b, c, n, n, BM=bm, BN=bn, BK=bk, _grid=(n // bn, n // bm))


def run_fused(a, b, bias, c):
    n = a.shape[0]
    bm, bn, bk = tiles(n)
    fused(a, b, bias, c, n, n, BM=bm, BN=bn, BK=bk, _grid=(n // bn, n // bm))


def torch_fused(torch, a, b, bias):
    return torch.nn.functional.gelu(a @ b + bias, approximate="tanh")


def jax_fused(jnp, a, b, bias):
    import jax

    return jax.nn.gelu(a @ b + bias)


def main(n=None):
    n = n or size(1024, 32)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n, n), dtype=np.float32)
    bias, c = rng.standard_normal(n, dtype=np.float32), np.empty((n, n), np.float32)
    exact = a.astype(np.float64) @ b
    ways = {
        "plain": lambda: plain(a, b, c, n, n, n, BLOCK=64, _nthreads=n * n),
        "simdgroup": lambda: simdgroup(a, b, c, n, n, _grid=(n // 8, n // 8)),
        "blocks": lambda: run_blocks(a, b, c),
        "panels": lambda: run_panels(a, b, c, rows=min(64, n)),
        "in place": lambda: in_place(a, b, c, N=n, K=n, ROWS=min(64, n), COLS=min(64, n), _grid=(n // min(64, n), n // min(64, n))),
    }
    text = []
    for name, way in ways.items():
        c[:] = np.nan
        text.append(f"{name} {ms(way, 2):.1f} ms")
        np.testing.assert_allclose(c, exact, rtol=1e-3, atol=n * 2e-6)
    others = peers(a, b, torch=lambda _, x, y: x @ y, jax=lambda _, x, y: x @ y)
    z = exact + bias
    wanted = z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    took = []
    for way in (lambda: run_fused(a, b, bias, c), lambda: run_panels(a, b, c, rows=min(64, n), bias=bias)):
        c[:] = np.nan
        took.append(ms(way, 2))
        np.testing.assert_allclose(c, wanted, rtol=1e-3, atol=n * 2e-6)
    more = peers(a, b, bias, torch=torch_fused, jax=jax_fused)
    print(f"matmul of {n}: {', '.join(text)}{others}; with bias and gelu, blocks {took[0]:.1f} ms, panels {took[1]:.1f} ms{more}")


if __name__ == "__main__":
    main()
