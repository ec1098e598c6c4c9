"""eager.fft against numpy.fft: lengths of all kinds, axes, norms, dtypes; derivatives against differences;
under transforms."""

import unittest

import numpy as np

import eager
from eager import fft as F

R = np.random.default_rng(5)
START = R.bit_generator.state
# powers of 2, mixed radix, primes up to MAX_RADIX and above (Bluestein), long ones that are cut in four steps
LENGTHS = [
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    11,
    12,
    13,
    15,
    16,
    20,
    25,
    30,
    31,
    32,
    37,
    49,
    60,
    64,
    74,
    97,
    100,
    121,
    127,
    128,
    211,
    240,
    256,
    360,
    512,
    1000,
    1009,
    1024,
    1331,
]


def complexes(shape, dtype="complex128"):
    return (R.standard_normal(shape) + 1j * R.standard_normal(shape)).astype(dtype)


def check(got, want, tol):
    scale = max(1.0, float(np.abs(want).max())) if np.size(want) else 1.0
    np.testing.assert_allclose(np.asarray(got) / scale, want / scale, rtol=0, atol=tol)


class Seeded(unittest.TestCase):
    """Each test has the same random numbers, whatever ran before it."""

    def setUp(self):
        R.bit_generator.state = START


class Values(Seeded):
    def test_lengths(self):
        for n in LENGTHS:
            with self.subTest(n=n):
                z, x = complexes((3, n)), R.standard_normal((3, n))
                check(F.fft(z), np.fft.fft(z), 1e-14)
                check(F.ifft(z), np.fft.ifft(z), 1e-14)
                check(F.rfft(x), np.fft.rfft(x), 1e-14)
                check(F.irfft(z[:, : n // 2 + 1], n), np.fft.irfft(z[:, : n // 2 + 1], n), 1e-14)

    def test_batches(self):
        for batch in (1, 2, 7, 8, 9, 17, 40):
            z, x = complexes((batch, 12), "complex64"), R.standard_normal((batch, 15)).astype(np.float32)
            check(F.fft(z), np.fft.fft(z), 1e-6)
            check(F.rfft(x), np.fft.rfft(x), 1e-6)
            self.assertEqual(F.fft(z).dtype, "complex64")
            self.assertEqual(F.irfft(z).dtype, "float32")

    def test_long(self):
        for n in (1 << 15, 1 << 17, 3 * 5 * 7 * 11 * 16, 20011):
            with self.subTest(n=n):
                z, x = complexes((n,)), R.standard_normal(n)
                check(F.fft(z), np.fft.fft(z), 1e-13)
                check(F.ifft(z), np.fft.ifft(z), 1e-13)
                check(F.rfft(x), np.fft.rfft(x), 1e-13)
                check(F.irfft(F.rfft(x), n), x, 1e-13)

    def test_axes_and_sizes(self):
        z, x = complexes((4, 5, 6)), R.standard_normal((4, 5, 6))
        for axis in (0, 1, 2, -2):
            for n in (None, 3, 8):
                for norm in (None, "backward", "ortho", "forward"):
                    kw = {"n": n, "axis": axis, "norm": norm}
                    check(F.fft(z, **kw), np.fft.fft(z, **kw), 1e-14)
                    check(F.ifft(z, **kw), np.fft.ifft(z, **kw), 1e-14)
                    check(F.rfft(x, **kw), np.fft.rfft(x, **kw), 1e-14)
                    check(F.irfft(z, **kw), np.fft.irfft(z, **kw), 1e-14)
                    check(F.hfft(z, **kw), np.fft.hfft(z, **kw), 1e-14)
                    check(F.ihfft(x, **kw), np.fft.ihfft(x, **kw), 1e-14)

    def test_columns_in_strips(self):
        """Neighbouring columns are taken a few vectors at a time where whole strips of them fit."""
        for n in (1, 6, 16, 37, 64, 1500):
            for columns in (16, 48, 64, 96, 1024):
                with self.subTest(n=n, columns=columns):
                    z = complexes((3, n, columns))
                    check(F.fft(z, axis=1), np.fft.fft(z, axis=1), 1e-13)
                    check(F.ifft(z, axis=1), np.fft.ifft(z, axis=1), 1e-13)
                    check(F.fft(z.astype("complex64"), axis=1), np.fft.fft(z, axis=1), 2e-6)
                    single = np.concatenate([F.fft(z[..., c], axis=1).numpy() for c in (slice(0, 8), slice(-8, None))], -1)
                    whole = F.fft(z, axis=1).numpy()
                    np.testing.assert_array_equal(np.concatenate([whole[..., :8], whole[..., -8:]], -1), single)

    def test_rows_in_four_steps(self):
        """Rows of two factors of whole vectors; as columns and as real rows they are computed otherwise."""
        for n in (64, 256, 512, 768, 1024, 2304, 4096, 16384):
            for rows in (1, 3, 50):
                with self.subTest(n=n, rows=rows):
                    z = complexes((rows, n))
                    for norm in ("backward", "ortho", "forward"):
                        check(F.fft(z, norm=norm), np.fft.fft(z, norm=norm), 1e-13)
                        check(F.ifft(z, norm=norm), np.fft.ifft(z, norm=norm), 1e-13)
                    check(F.fft(z.astype("complex64")), np.fft.fft(z), 2e-6)
                    check(F.ifft(z.astype("complex64")), np.fft.ifft(z), 2e-6)
                    check(F.rfft(z.real.copy()), np.fft.rfft(z.real), 1e-13)
                    check(F.irfft(z), np.fft.irfft(z), 1e-13)
                    check(F.fft(z.T.copy(), axis=0), np.fft.fft(z.T, axis=0), 1e-13)

    def test_several_axes(self):
        z, x = complexes((4, 5, 6)), R.standard_normal((4, 5, 6))
        for kw in ({}, {"axes": (0, 2)}, {"s": (3, 8), "axes": (1, 2)}, {"norm": "ortho"}, {"axes": (2,)}):
            for name in ("fftn", "ifftn", "rfftn", "irfftn"):
                a = x if name == "rfftn" else z
                check(getattr(F, name)(a, **kw), getattr(np.fft, name)(a, **kw), 1e-13)
        for name in ("fft2", "ifft2", "rfft2", "irfft2"):
            a = x if name == "rfft2" else z
            check(getattr(F, name)(a), getattr(np.fft, name)(a), 1e-13)

    def test_helpers(self):
        for n in (1, 2, 5, 8):
            np.testing.assert_allclose(F.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5), rtol=1e-6)
            np.testing.assert_allclose(F.rfftfreq(n, d=0.1).numpy(), np.fft.rfftfreq(n, 0.1), rtol=1e-6)
        self.assertEqual(F.fftfreq(4, dtype="float64").dtype, "float64")
        x = R.standard_normal((4, 5))
        for axes in (None, 0, (1,), (0, 1)):
            np.testing.assert_array_equal(F.fftshift(x, axes).numpy(), np.fft.fftshift(x, axes))
            np.testing.assert_array_equal(F.ifftshift(x, axes).numpy(), np.fft.ifftshift(x, axes))

    def test_kinds_of_input(self):
        x = np.arange(6)
        check(F.fft(x), np.fft.fft(x), 1e-6)
        check(F.fft(x.astype(np.float16)), np.fft.fft(x), 1e-6)
        a = R.standard_normal((6, 4))
        check(F.fft(eager.asarray(a).T), np.fft.fft(a.T), 1e-14)
        check(F.fft(eager.asarray(a)[::2, ::-1]), np.fft.fft(a[::2, ::-1]), 1e-14)
        self.assertEqual(F.fft(np.zeros((0, 4), np.float32)).shape, (0, 4))
        with self.assertRaisesRegex(TypeError, "real"):
            F.rfft(complexes((3,)))
        with self.assertRaisesRegex(ValueError, "norm"):
            F.fft(x, norm="full")
        with self.assertRaisesRegex(ValueError, "at least 1"):
            F.fft(np.zeros((3, 0)))


class Derivatives(Seeded):
    def test_differences(self):
        for n in (5, 8, 37):
            for name, f, x in [
                ("fft", F.fft, complexes((2, n))), ("ifft", lambda z: F.ifft(z, norm="ortho"), complexes((2, n))), ("rfft", F.rfft, R.standard_normal((2, n))), ("irfft", lambda z, n=n: F.irfft(z, n), complexes((2, n // 2 + 1))),
                ("hfft", F.hfft, complexes((n,))), ("fft2", F.fft2, complexes((3, n))), ("rfft2", F.rfft2, R.standard_normal((3, n))),
            ]:  # fmt: skip
                with self.subTest(name, n=n):

                    def g(v, f=f):
                        y = f(v)
                        return eager.sum(eager.sin(eager.real(y))) + eager.sum(eager.cos(eager.imag(y)) * 0.5)

                    t = R.standard_normal(x.shape) if x.dtype.kind == "f" else complexes(x.shape)
                    h = 1e-6
                    want = (g(eager.asarray(x + h * t)).item() - g(eager.asarray(x - h * t)).item()) / (2 * h)
                    grad = eager.grad(g)(eager.asarray(x)).numpy()
                    self.assertAlmostEqual((grad * np.conj(t)).sum().real, want, delta=1e-6 * max(1, abs(want)))
                    self.assertAlmostEqual(eager.jvp(g, (eager.asarray(x),), (eager.asarray(t),))[1].item(), want, delta=1e-6 * max(1, abs(want)))

    def test_second(self):
        x = R.standard_normal(8)
        f = lambda v: eager.sum(eager.abs(F.rfft(v)) ** 4)  # noqa: E731
        h = eager.hessian(f)(eager.asarray(x)).numpy()
        e = 1e-5
        want = np.stack(
            [(eager.grad(f)(eager.asarray(x + e * d)).numpy() - eager.grad(f)(eager.asarray(x - e * d)).numpy()) / (2 * e) for d in np.eye(8)]
        )
        np.testing.assert_allclose(h, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


class Transforms(Seeded):
    def test_vmap_and_compile(self):
        z = complexes((3, 4, 6))
        check(eager.vmap(F.fft2)(eager.asarray(z)), np.fft.fft2(z), 1e-13)
        check(eager.vmap(lambda v: F.fft(v, axis=0), in_axes=1, out_axes=1)(eager.asarray(z)), np.fft.fft(z, axis=0), 1e-13)
        f = eager.compile(lambda v: F.irfft(F.rfft(v) * 2))
        x = R.standard_normal((3, 10))
        for _ in range(2):
            check(f(eager.asarray(x)), 2 * x, 1e-13)

    def test_convolution(self):
        a, b = R.standard_normal(50), R.standard_normal(30)
        n = 79
        got = F.irfft(F.rfft(eager.asarray(a), n) * F.rfft(eager.asarray(b), n), n)
        np.testing.assert_allclose(got.numpy(), np.convolve(a, b), atol=1e-12)


if __name__ == "__main__":
    unittest.main()
