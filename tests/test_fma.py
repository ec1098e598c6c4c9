"""fma of f64 on a CPU without the instruction: one rounding, as Fractions have it, subnormal and overflowing
results included."""

import os
import subprocess
import sys
import unittest
from fractions import Fraction

import numpy as np

import eas
from eas import mk


@eas.kernel
def fused(a, b, c, out, N, BLOCK: mk.constexpr = 64):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(out, i, mk.fma(mk.load(a, i, m), mk.load(b, i, m), mk.load(c, i, m)), m)


def exact(a, b, c):
    if not np.isfinite([a, b, c]).all() or a == 0 or b == 0:
        return c if np.isfinite(a) and np.isfinite(b) and not np.isfinite(c) else a * b + c
    f = Fraction(a) * Fraction(b) + Fraction(c)
    if f == 0:
        return a * b + c if (a * b < 0) == (c < 0) and c == 0 else 0.0
    try:
        r = float(f)
    except OverflowError:
        return float("inf") if f > 0 else -float("inf")
    return r if r else np.copysign(0.0, -1.0 if f < 0 else 1.0)


def samples():
    rng = np.random.default_rng(0)
    n = 4000
    a, b = (rng.standard_normal(n) * 2.0 ** rng.integers(-300, 300, n) for _ in range(2))
    c = -a * b * (1 + rng.integers(-3, 4, n) * 2.0**-52) * 2.0 ** rng.choice([0, 0, 0, 1, -1, 30, -30, 53, -53, 60, -60, 106, -106, 120, -200, 200], n)
    tiny = rng.integers(1, 1 << 52, n).astype(np.uint64).view(np.float64)
    small = slice(0, n // 4)
    a[small] = rng.standard_normal(n // 4) * 2.0 ** rng.integers(-560, -500, n // 4)
    b[small] = rng.standard_normal(n // 4) * 2.0 ** rng.integers(-560, -500, n // 4)
    c[small] = np.where(rng.random(n // 4) < 0.5, tiny[small], -tiny[small] * 2.0 ** rng.integers(0, 4, n // 4))
    a[n // 4 : n // 3] = tiny[n // 4 : n // 3]
    b[n // 4 : n // 3] = rng.standard_normal(n // 3 - n // 4) * 2.0 ** rng.integers(-10, 100, n // 3 - n // 4)
    c[n // 4 : n // 3] = tiny[n // 3 : 2 * (n // 3) - n // 4]
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, -5e-324, 2.2250738585072014e-308]
    grid = np.array([(x, y, z) for x in special for y in special for z in special])
    return (np.concatenate([p, q]) for p, q in zip((a, b, c), grid.T))


def check():
    with np.errstate(all="ignore"):
        a, b, c = samples()
        want = np.array([exact(*map(float, t)) for t in zip(a, b, c)])
    out = np.zeros_like(a)
    fused(np.ascontiguousarray(a), np.ascontiguousarray(b), np.ascontiguousarray(c), out, len(a))
    bad = ~((out == want) & (np.signbit(out) == np.signbit(want)) | (np.isnan(out) & np.isnan(want)))
    for i in np.nonzero(bad)[0][:10]:
        print(a[i].hex(), b[i].hex(), c[i].hex(), "gives", out[i].hex(), "for", want[i].hex())
    assert not bad.any(), f"{bad.sum()} of {len(a)}"


class Fma(unittest.TestCase):
    def test_with_and_without_the_instruction(self):
        for isa in ("native", "sse2"):
            with self.subTest(isa=isa):
                r = subprocess.run([sys.executable, __file__], env={**os.environ, "EAS_ISA": isa}, capture_output=True, text=True)
                self.assertEqual(r.returncode, 0, r.stdout[-2000:] + r.stderr[-2000:])


if __name__ == "__main__":
    check()
