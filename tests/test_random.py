"""Random numbers: the published words of Philox-4x32-10, the same bits everywhere, and sane distributions."""

import unittest

import numpy as np
from support import each

import eas
from eas import mk

# key, counter, words: the known answers that come with Random123
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def signed64(low, high):
    return int(np.array([high << 32 | low], np.uint64).view(np.int64)[0])


def philox(seed, offset):
    """The four words for each offset, in plain NumPy."""
    m0, m1, low = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57), np.uint64(0xFFFFFFFF)
    o = np.asarray(offset, np.int64).view(np.uint64)
    c = [o & low, o >> np.uint64(32), np.zeros_like(o), np.zeros_like(o)]
    k = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        p, q = m0 * c[0], m1 * c[2]
        c = [(q >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), q & low, (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [w.astype(np.uint32) for w in c]


def normals(words):
    """Box-Muller as src/ir/random.c spells it: two numbers out of two words of 32 bits."""
    w0, w1 = (w.astype(np.int64) for w in words)
    r = np.sqrt(-2 * np.log((w0 >> 1) * 2.0**-31 + 2.0**-32)) * np.where(w1 >> 31, -1, 1)
    x = ((w1 << 2 & 0xFFFFFFFF) ^ 1 << 31) - (1 << 31)  # the lower 30 bits, signed
    x = x * (np.pi / 2 * 2.0**-32)
    swap = (w1 >> 30 & 1).astype(bool)
    return r * np.where(swap, np.sin(x), np.cos(x)), r * np.where(swap, np.cos(x), np.sin(x))


def draw(test, f, dtype, n=4096, seed=1234, first=0):
    @eas.kernel
    def k(out, seed, first, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, f(seed, first + i), i < N)

    return each(test, k, np.zeros(n, dtype), seed, first, n, BLOCK=256)[0]


class Random(unittest.TestCase):
    def test_known_answers(self):
        @eas.kernel
        def k(out, seed, offset, stream, B: eas.constexpr):
            for n, w in enumerate(mk.philox(seed, offset, stream)):
                self.assertIs(w.dtype, mk.u32)
                mk.store(out, n, w)

        for key, counter, words in KNOWN:
            (out,) = each(self, k, np.zeros(4, np.uint32), signed64(*key), signed64(*counter[:2]), signed64(*counter[2:]), 1, _grid=1)
            self.assertEqual(tuple(out.tolist()), words)

    def test_literals(self):
        @eas.kernel
        def k(out, B: eas.constexpr):
            for n, w in enumerate(mk.philox(0, 0)):
                mk.store(out, n, w)

        (out,) = each(self, k, np.zeros(4, np.uint32), 1, _grid=1)
        self.assertEqual(tuple(out.tolist()), KNOWN[0][2])

    def test_rand(self):
        for seed, first in ((0, 0), (1234, 10), (-5, 2**32 - 100), (2**62 + 3, -50)):
            got = draw(self, mk.rand, np.float32, seed=seed, first=first)
            want = (philox(seed, first + np.arange(4096))[0] >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
            np.testing.assert_array_equal(got, want)

    def test_rand_is_uniform(self):
        u = draw(self, mk.rand, np.float32, 1 << 16)
        self.assertTrue(((u >= 0) & (u < 1)).all())
        self.assertLess(abs(u.mean() - 0.5), 0.005)
        counts = np.histogram(u, 16, (0, 1))[0]
        self.assertLess(((counts - 4096) ** 2 / 4096).sum(), 45)  # chi-squared, 15 degrees of freedom

    def test_randn(self):
        z = draw(self, mk.randn, np.float32, 1 << 16).astype(np.float64)
        np.testing.assert_allclose(z, normals(philox(1234, np.arange(1 << 16))[:2])[0], atol=1e-5)
        self.assertLess(abs(z.mean()), 0.015)
        self.assertLess(abs(z.std() - 1), 0.01)
        self.assertLess(abs((z**3).mean()), 0.05)
        self.assertLess(abs((z**4).mean() - 3), 0.1)

    def test_randint(self):
        for lo, hi in ((0, 1), (0, 6), (-10, 10), (5, 5 + 2**32), (-(2**40), -(2**40) + 1000)):
            n = draw(self, lambda s, i, lo=lo, hi=hi: mk.randint(s, i, lo, hi), np.int64)
            want = lo + (philox(1234, np.arange(4096))[0].astype(object) * (hi - lo) >> 32)
            np.testing.assert_array_equal(n, want.astype(np.int64))
        six = np.bincount(draw(self, lambda s, i: mk.randint(s, i, 0, 6), np.int64, 60000), minlength=6)
        self.assertLess(((six - 10000) ** 2 / 10000).sum(), 25)

    def test_run_time_range(self):
        @eas.kernel
        def k(out, lo, hi, N, BLOCK: eas.constexpr):
            i = mk.arange(0, BLOCK)
            mk.store(out, i, mk.randint(7, i, lo, hi))

        (out,) = each(self, k, np.zeros(64, np.int64), -3, 4, 64, BLOCK=64)
        self.assertEqual(set(out.tolist()), set(range(-3, 4)))

    def test_blocks_and_seeds_broadcast(self):
        @eas.kernel
        def k(out, B: eas.constexpr):
            i, j = mk.arange(0, B)[:, None], mk.arange(0, B)[None, :]
            mk.store(out, i * B + j, mk.rand(i, j))

        (out,) = each(self, k, np.zeros((8, 8), np.float32), 8, _grid=1)
        want = np.stack([philox(s, np.arange(8))[0] >> np.uint32(8) for s in range(8)]) * 2.0**-24
        np.testing.assert_array_equal(out, want)

    def test_thread_mode(self):
        @eas.kernel
        def k(out, N, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.tid(0, B)
            mk.store(out, i, mk.rand(1234, i))

        (out,) = each(self, k, np.zeros(256, np.float32), 256, B=64)
        np.testing.assert_array_equal(out, draw(self, mk.rand, np.float32, 256))

    def test_mistakes(self):
        for f, error, text in (
            (lambda i: mk.rand(0.5, i), TypeError, "seed"),
            (lambda i: mk.rand(1, i * 0.5), TypeError, "offset"),
            (lambda i: mk.randint(1, i, 5, 5), ValueError, "range"),
            (lambda i: mk.randint(1, i, 0, 2**33), ValueError, "range"),
            (lambda i: mk.randn(1), TypeError, "offset"),
        ):
            with self.assertRaisesRegex(error, text):
                draw(self, lambda s, i, f=f: f(i), np.float32)


if __name__ == "__main__":
    unittest.main()
