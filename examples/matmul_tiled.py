"""C = A @ B with tiles in threadgroup memory: a group of TILE * TILE threads computes one tile of C, RY by RX
elements each.

Every thread loads its share of a tile of A and of B, the group meets at a barrier, and each thread multiplies
from the shared tiles. The loop over tiles has a run-time bound (mk.range); the loops inside a tile unroll."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers


@eas.kernel
def matmul_tiled(a, b, c, M, N, K, BM: eas.constexpr, BN: eas.constexpr, BK: eas.constexpr, RY: eas.constexpr, RX: eas.constexpr):
    threads = (BM // RY) * (BN // RX)
    t = mk.tid(0, threads)
    row0, col0 = mk.program_id(1) * BM, mk.program_id(0) * BN
    ty, tx = t // (BN // RX), t % (BN // RX)
    at, bt = mk.alloc_tg(BM * BK), mk.alloc_tg(BK * BN)
    acc = [[mk.var(0.0) for _ in range(RX)] for _ in range(RY)]
    for k0 in mk.range(0, K, BK):
        for i in range(0, BM * BK, threads):
            r, k = (t + i) // BK, (t + i) % BK
            mk.store(at, t + i, mk.load(a, (row0 + r) * K + k0 + k, mk.and_(row0 + r < M, k0 + k < K)), t + i < BM * BK)
        for i in range(0, BK * BN, threads):
            k, n = (t + i) // BN, (t + i) % BN
            mk.store(bt, t + i, mk.load(b, (k0 + k) * N + col0 + n, mk.and_(k0 + k < K, col0 + n < N)), t + i < BK * BN)
        mk.barrier()
        for k in range(BK):
            rows = [mk.load(at, (ty * RY + y) * BK + k) for y in range(RY)]
            cols = [mk.load(bt, k * BN + tx + x * (BN // RX)) for x in range(RX)]
            for y in range(RY):
                for x in range(RX):
                    acc[y][x] += rows[y] * cols[x]
        mk.barrier()
    for y in range(RY):
        for x in range(RX):
            row, col = row0 + ty * RY + y, col0 + tx + x * (BN // RX)
            mk.store(c, row * N + col, acc[y][x], mk.and_(row < M, col < N))


def matmul(a, b, c, BM=64, BN=128, BK=32, RY=4, RX=4):
    (m, k), n = a.shape, b.shape[1]
    grid = (-(-n // BN), -(-m // BM))
    matmul_tiled(a, b, c, m, n, k, BM=BM, BN=BN, BK=BK, RY=RY, RX=RX, _grid=grid)


def main(n=1024):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    c = np.zeros((n, n), np.float32)
    took, want = ms(lambda: matmul(a, b, c), 1), a.astype(np.float64) @ b
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=n * 2e-6)
    others = peers(a, b, torch=lambda torch, x, y: x @ y, jax=lambda jnp, x, y: x @ y)
    print(f"{n}^3: {took:.1f} ms, {2e-6 * n**3 / took:.1f} GFLOP/s, largest error {np.abs(c - want).max():.2e}{others}")


if __name__ == "__main__":
    main()
