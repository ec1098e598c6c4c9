"""Whole programs with products of bf16, as on machines with AVX512-BF16 and AMX: what this one lacks is
emulated (tests/c/emulate.c). Conversions to bf16, which take an instruction there, too."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import unittest

from tests.support import BF16, ROOT, python

# Results of products as hexadecimal text, by name; and which level the cpu device says it has.
PROGRAM = """
import ctypes, json, os, sys
import numpy as np
import eas, eager
from eas import mk
from examples.matmul import blocks
from tests.support import BF16

rng = np.random.default_rng(5)

def bf16(*shape):
    return rng.standard_normal(shape).astype(BF16)

@eas.kernel
def masked(a, b, c, M, N, K, BM: eas.constexpr, BN: eas.constexpr, BK: eas.constexpr):
    rows, cols = mk.program_id(1) * BM + mk.arange(0, BM), mk.program_id(0) * BN + mk.arange(0, BN)
    acc = mk.var(mk.zeros((BM, BN)))
    for start in mk.range(0, K, BK):
        k = start + mk.arange(0, BK)
        x = mk.load(a, rows[:, None] * K + k[None, :], (rows[:, None] < M) & (k[None, :] < K), 0.0)
        y = mk.load(b, k[:, None] * N + cols[None, :], (k[:, None] < K) & (cols[None, :] < N), 0.0)
        acc.set(mk.dot(x, y, acc))
    mk.store(c, rows[:, None] * N + cols[None, :], acc.value, (rows[:, None] < M) & (cols[None, :] < N))

def counted():
    # products of tiles that were emulated so far
    try:
        return ctypes.c_uint64.in_dll(ctypes.CDLL(None), "eas_emulated_tiles").value
    except ValueError:
        return 0

out = {}
a, b, c = bf16(128, 128), bf16(128, 128), np.empty((128, 128), np.float32)
blocks(a, b, c, 128, 128, BM=64, BN=64, BK=64, _grid=(2, 2))
out["blocks"] = c.copy()
try:
    blocks(a[:100], b, c, 128, 128, BM=64, BN=64, BK=64, _grid=(2, 2))
    error = None
except IndexError as e:
    error = str(e)
a, b, c = bf16(75, 101), bf16(101, 83), np.empty((75, 83), np.float32)
masked(a, b, c, 75, 83, 101, BM=32, BN=48, BK=64, _grid=(2, 3))
out["masked"] = c
before = counted()
p, q = eager.asarray(bf16(150, 210)), eager.asarray(bf16(210, 190))
out["eager"] = (p @ q).numpy()
out["turned"] = (q.T @ p.T).numpy()
out["after"] = ((p @ q) * 0.5 + 1.0).numpy()
out["batch"] = (eager.asarray(bf16(3, 40, 50)) @ eager.asarray(bf16(50, 37))).numpy()
out["large"] = (eager.asarray(bf16(192, 256)) @ eager.asarray(bf16(256, 256))).numpy()
print(json.dumps({"level": dict((d[0], d[1]) for d in eas.devices())["cpu"].split(",")[0], "compiles": eas.stats()["compiles"], "error": error, "blocks": before, "tensors": counted() - before,
                  "out": {k: v.astype(np.float32).tobytes().hex() for k, v in out.items()}}))
"""


def emulator(*options):
    """Made here, with the compiler that made everything else."""
    path = os.path.join(tempfile.mkdtemp(), "libeas-emulate.so")
    source = os.path.join(ROOT, "tests", "c", "emulate.c")
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-DEMULATE_PRELOADED", "-O2", "-shared", "-fPIC", *options, "-o", path, source], check=True)
    return path


HERE = sys.platform == "linux" and platform.machine() == "x86_64"


@unittest.skipUnless(HERE and BF16 is not None, "the instructions are x86-64's, the emulator Linux's; arrays of bf16 need ml_dtypes")
class Bf16(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.emulator = emulator()
        cls.plain = cls.run_at(cls, "avx512", emulated=False)
        cls.native = cls.run_at(cls, "native", emulated=False)

    def run_at(self, level, emulated=True, **env):
        more = {"LD_PRELOAD": self.emulator} if emulated else {}
        r = python(PROGRAM, env={"EAS_ISA": level, **more, **env}, timeout=300)
        return json.loads(r.stdout)

    def wide(self):
        """Has this machine AVX-512? Without, nothing is emulated, and all levels are one."""
        return self.plain["level"] == "avx512"

    def numbers(self, run, name):
        import numpy as np

        return np.frombuffer(bytes.fromhex(run["out"][name]), np.float32).astype(np.float64)

    def test_avx512bf16_gives_the_same_bits(self):
        run = self.run_at("avx512bf16")
        self.assertEqual(run["level"], "avx512bf16" if self.wide() else self.plain["level"])
        self.assertEqual(run["out"], self.plain["out"])  # no number here is subnormal

    def test_amx_differs_by_rounding_only(self):
        run = self.run_at("amx")
        if self.wide():
            self.assertEqual(run["level"], "amx")
        for name in run["out"]:
            got, want = self.numbers(run, name), self.numbers(self.plain, name)
            # Sums of at most 256 products of about 1, in another order; those of tensors are rounded to bf16,
            # where the last bit may turn.
            bound = 256 * 2.0**-24 * 256 + (0 if name in ("blocks", "masked") else 2.0**-7 * abs(want))
            self.assertTrue((abs(got - want) <= bound).all(), name)
        self.assertNotEqual(run["out"]["blocks"], self.plain["out"]["blocks"] if self.wide() else None)
        if self.wide() and self.native["level"] != "amx":  # blocks of kernels and of tensors both go by tiles
            self.assertGreater(run["blocks"], 0)
            self.assertGreater(run["tensors"], 0)

    def test_threads_do_not_change_the_bits(self):
        for level in ("avx512bf16", "amx"):
            one, many = self.run_at(level, EAS_NUM_THREADS="1"), self.run_at(level, EAS_NUM_THREADS="3")
            self.assertEqual(one["out"], many["out"], level)

    def test_the_cache_tells_levels_apart(self):
        with tempfile.TemporaryDirectory() as cache:
            first = self.run_at("avx512", EAS_CACHE_DIR=cache)
            other = self.run_at("amx", EAS_CACHE_DIR=cache)
            again = self.run_at("amx", EAS_CACHE_DIR=cache)
        self.assertEqual(first["out"], self.plain["out"])
        self.assertEqual(again["out"], other["out"])
        self.assertEqual(again["compiles"], 0)
        self.assertEqual(other["compiles"] > 0, self.wide())

    def test_a_machine_without_avx512(self):
        """All levels above its own are one there, for the code and for the cache."""
        lacks = ",avx512f,avx512dq,avx512cd,avx512bw,avx512vl,avx512vnni,avx512fp16,"
        library = emulator(f'-DEMULATE_MISSING="{lacks}"')
        with tempfile.TemporaryDirectory() as cache:
            first, *others = (self.run_at(level, LD_PRELOAD=library, EAS_CACHE_DIR=cache) for level in ("avx2", "avx512", "avx512bf16", "amx", "native"))
        self.assertIn(first["level"], ("avx2", "sse2"))
        for other in others:
            self.assertEqual((other["level"], other["out"], other["compiles"]), (first["level"], first["out"], 0))

    def test_a_bad_index_is_told_with_its_line(self):
        self.assertIn("matmul.py", self.plain["error"])
        for level in ("avx512bf16", "amx"):
            self.assertEqual(self.run_at(level)["error"], self.plain["error"])

    def test_naming_a_level_never_raises_it(self):
        amx = self.run_at("amx", emulated=False)
        self.assertEqual(amx["level"], self.native["level"])
        self.assertEqual(amx["out"], self.native["out"])


# Rounds every upper half of an f32 with several lower ones, in vectors with and without subnormal numbers,
# and flips signs of all halves; prints how many bits are wrong.
ROUNDINGS = """
import numpy as np
import eager
from tests.support import BF16

def wrong(got, want):
    got, want = got.view(np.uint16), want.view(np.uint16)
    nan = lambda h: (h & 0x7fff) > 0x7f80
    return int(((got != want) & ~(nan(got) & nan(want))).sum())

upper = np.arange(1 << 16, dtype=np.uint32) << 16
bits = np.concatenate([upper | low for low in (0, 1, 0x7fff, 0x8000, 0x8001, 0xffff)])
bits = np.concatenate([bits, np.random.default_rng(1).permutation(bits), bits[:1001]])
x = bits.view(np.float32)
with np.errstate(all="ignore"):
    want = x.astype(BF16)
    doubled = (x.astype(BF16).astype(np.float32) * np.float32(1.0078125)).astype(BF16)
print(wrong(eager.asarray(x).astype("bfloat16").numpy(), want))
print(wrong((eager.asarray(want) * eager.asarray(np.array(1.0078125, BF16))).numpy(), doubled))
for dt, top in ((BF16, 0x7f80), (np.dtype(np.float16), 0x7c00)):
    h = np.arange(1 << 16, dtype=np.uint16)
    fine = (h & 0x7fff) <= top
    flipped, plain = (f(eager.asarray(h.view(dt))).numpy().view(np.uint16) for f in (eager.neg, eager.abs))
    print(int((flipped != h ^ 0x8000)[fine].sum()), int((plain != h & 0x7fff)[fine].sum()))
"""


@unittest.skipUnless(HERE and BF16 is not None, "the instructions are x86-64's, the emulator Linux's; arrays of bf16 need ml_dtypes")
class Roundings(unittest.TestCase):
    def test_every_level_rounds_alike(self):
        preload = {"LD_PRELOAD": emulator()}
        for level in ("sse2", "avx2", "avx512", "avx512bf16"):
            with self.subTest(level=level):
                r = python(ROUNDINGS, env={"EAS_ISA": level, **preload}, timeout=300)
                self.assertEqual(r.stdout.split(), ["0"] * 6)


if __name__ == "__main__":
    unittest.main()
