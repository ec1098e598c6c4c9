"""eager.linalg: against NumPy in every dtype; by the properties of the factors; without a LAPACK too;
derivatives against differences and JAX."""

import importlib
import itertools
import os
import subprocess
import sys
import unittest

import numpy as np

import eager
from eager import linalg as la

R = np.random.default_rng(3)
START = R.bit_generator.state
TOLERANCE = {"float32": 2e-4, "float64": 1e-9, "complex64": 2e-4, "complex128": 1e-9}
DTYPES = list(TOLERANCE)


def matrices(shape, dtype):
    a = R.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * R.standard_normal(shape)
    return a.astype(dtype)


def positive(shape, dtype):
    a = matrices(shape, dtype)
    n = shape[-1]
    return (a @ np.conj(np.swapaxes(a, -1, -2)) + n * np.eye(n)).astype(dtype)


def close(got, want, dtype, what="", factor=1):
    got = np.asarray(got)
    np.testing.assert_allclose(got, want, rtol=factor * TOLERANCE[dtype], atol=factor * TOLERANCE[dtype], err_msg=what)


def H(x):
    return np.conj(np.swapaxes(x, -1, -2))


LARGE = 110 if la.lapack() else 40  # rows that go to LAPACK


def needs(test, name):
    """The module, or the test is left out."""
    try:
        return importlib.import_module(name)
    except ImportError:
        test.skipTest(f"needs {name}")


class Seeded(unittest.TestCase):
    """Each test has the same random numbers, whatever ran before it."""

    def setUp(self):
        R.bit_generator.state = START


class Values(Seeded):
    SHAPES = [(1, 1), (3, 5, 5), (2, 1, 7, 7), (0, 0), (0, 4, 4), (LARGE, LARGE)]

    def test_square(self):
        for dtype in DTYPES:
            for shape in self.SHAPES:
                with self.subTest(dtype=dtype, shape=shape):
                    n = shape[-1]
                    a = (matrices(shape, dtype) + 3 * n**0.5 * np.eye(n)).astype(dtype)
                    b = matrices((*shape[:-1], 3), dtype)
                    close(la.solve(a, b), np.linalg.solve(a, b), dtype, "solve", 10)
                    close(la.inv(a), np.linalg.inv(a), dtype, "inv", 10)
                    want = np.linalg.slogdet(a)
                    sign, log = la.slogdet(a)
                    close(sign, want[0], dtype, "sign", 10)
                    close(log, want[1], dtype, "log", 30)
                    if n < 40:
                        scale = np.maximum(np.abs(np.linalg.det(a)), 1)
                        close(np.asarray(la.det(a)) / scale, np.linalg.det(a) / scale, dtype, "det", 10)
                    p, low, up = (np.asarray(x) for x in la.lu(a))
                    close(p @ low @ up, a, dtype, "lu", 10)

    def test_one_vector(self):
        a, b = positive((3, 4, 4), "float64"), matrices((4,), "float64")
        close(la.solve(a, b), np.stack([np.linalg.solve(m, b) for m in a]), "float64")
        close(la.solve_triangular(np.tril(a[0]), b, lower=True), np.linalg.solve(np.tril(a[0]), b), "float64")

    def test_hermitian(self):
        for dtype in DTYPES:
            for shape in self.SHAPES:
                with self.subTest(dtype=dtype, shape=shape):
                    a = positive(shape, dtype)
                    low = np.asarray(la.cholesky(a))
                    close(low, np.linalg.cholesky(a), dtype, "cholesky", 10)
                    close(la.cholesky(a, upper=True), H(low), dtype, "upper", 10)
                    m = a + H(matrices(shape, dtype)) * 0
                    w, v = (np.asarray(x) for x in la.eigh(m))
                    scale = max(1.0, float(np.abs(m).max())) if m.size else 1
                    close(w / scale, np.linalg.eigvalsh(m) / scale, dtype, "eigenvalues", 10)
                    close(la.eigvalsh(m) / scale, w / scale, dtype, "eigvalsh", 10)
                    close(v @ (w[..., :, None] * H(v)) / scale, m / scale, dtype, "eigh", 10)
                    close(H(v) @ v, np.broadcast_to(np.eye(shape[-1]), v.shape), dtype, "orthonormal", 10)

    def test_qr_and_svd(self):
        for dtype in DTYPES:
            for shape in [(5, 3), (3, 5), (2, 4, 4), (6, 1), (1, 6), (0, 3), (2, 0, 0), (LARGE + 10, LARGE), (LARGE, LARGE + 10)]:
                with self.subTest(dtype=dtype, shape=shape):
                    a = matrices(shape, dtype)
                    m, n = shape[-2:]
                    for mode in ("reduced", "complete"):
                        q, r = (np.asarray(x) for x in la.qr(a, mode=mode))
                        wq, wr = np.linalg.qr(a, mode=mode)
                        self.assertEqual((q.shape, r.shape), (wq.shape, wr.shape))
                        close(q @ r, a, dtype, "qr", 10)
                        close(H(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], q.shape[-1], q.shape[-1])), dtype, "orthonormal", 10)
                        self.assertFalse(np.tril(r, -1).any())
                    close(np.abs(np.asarray(la.qr(a, mode="r"))), np.abs(np.linalg.qr(a, mode="r")), dtype, "r", 20)
                    for full in (False, True):
                        u, s, vh = (np.asarray(x) for x in la.svd(a, full_matrices=full))
                        wu, ws, wv = np.linalg.svd(a, full_matrices=full)
                        self.assertEqual((u.shape, s.shape, vh.shape), (wu.shape, ws.shape, wv.shape))
                        close(s, ws, dtype, "singular values", 10)
                        k = min(m, n)
                        close(u[..., :, :k] @ (s[..., :, None] * vh[..., :k, :]), a, dtype, "svd", 20)
                        close(H(u) @ u, np.broadcast_to(np.eye(u.shape[-1]), (*shape[:-2], u.shape[-1], u.shape[-1])), dtype, "u", 20)
                        close(vh @ H(vh), np.broadcast_to(np.eye(vh.shape[-2]), (*shape[:-2], vh.shape[-2], vh.shape[-2])), dtype, "v", 20)
                    close(la.svdvals(a), ws, dtype, "svdvals", 10)

    def test_low_rank_and_scales(self):
        a = np.outer(np.arange(1, 6.0), np.arange(1, 5.0))
        u, s, vh = (np.asarray(x) for x in la.svd(a))
        close(H(u) @ u, np.eye(5), "float64")
        self.assertEqual(int(la.matrix_rank(a)), 1)
        for scale in (1e-160, 1e160):
            np.testing.assert_allclose(la.svdvals(a * scale).numpy()[0] / scale, s[0], rtol=1e-10)
        z = np.zeros((3, 3))
        u, s, vh = (np.asarray(x) for x in la.svd(z))
        close(u @ H(u), np.eye(3), "float64")
        self.assertEqual(int(la.matrix_rank(z)), 0)

    def test_eig(self):
        for dtype in DTYPES:
            for shape in [(1, 1), (2, 6, 6), (0, 0), (30, 30)]:
                with self.subTest(dtype=dtype, shape=shape):
                    a = matrices(shape, dtype)
                    w, v = (np.asarray(x) for x in la.eig(a))
                    close(
                        a @ v,
                        v * w[..., None, :],
                        "complex64" if "32" in dtype or "64" == dtype[-2:] and dtype[0] == "c" else "complex128",
                        "eig",
                        20,
                    )
                    if a.size:
                        close(
                            np.sort_complex(np.round(w, 3).ravel()),
                            np.sort_complex(np.round(np.linalg.eigvals(a), 3).ravel()),
                            "complex64",
                            "eigenvalues",
                            20,
                        )
                    self.assertEqual(w.dtype.kind, "c")
                    close(np.sort_complex(np.asarray(la.eigvals(a)).ravel()), np.sort_complex(w.ravel()), "complex64", "eigvals", 20)

    def test_made_of_them(self):
        a, b = matrices((6, 4), "float64"), matrices((6, 2), "float64")
        close(la.pinv(a), np.linalg.pinv(a), "float64")
        want = np.linalg.lstsq(a, b, rcond=None)
        got = la.lstsq(a, b)
        close(got.x, want[0], "float64")
        close(got.residuals, want[1], "float64")
        self.assertEqual(int(got.rank), want[2])
        close(got.s, want[3], "float64")
        close(la.pinv(matrices((0, 3), "float64")), np.zeros((3, 0)), "float64")
        m = matrices((4, 4), "float64")
        for n in (-2, -1, 0, 1, 2, 5):
            close(la.matrix_power(m, n), np.linalg.matrix_power(m, n), "float64", str(n))
        for p in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
            close(la.norm(m, p), np.linalg.norm(m, p), "float64", str(p))
            close(la.cond(m, p), np.linalg.cond(m, p), "float64", str(p))
        for p in (None, 0, 1, 2, 3, np.inf, -np.inf, 0.5):
            close(la.norm(m[0], p), np.linalg.norm(m[0], p), "float64", str(p))
            close(la.norm(m, p, axis=1, keepdims=True), np.linalg.norm(m, p, axis=1, keepdims=True), "float64", str(p))
        xs = [matrices(s, "float64") for s in ((3, 10), (10, 2), (2, 5), (5,))]
        close(la.multi_dot(xs), np.linalg.multi_dot(xs), "float64")
        close(la.expm(np.diag([0.0, 1.0, 2.0])), np.diag(np.exp([0.0, 1.0, 2.0])), "float64")
        close(la.expm(np.array([[0.0, 50.0], [-50.0, 0.0]])), [[np.cos(50), np.sin(50)], [-np.sin(50), np.cos(50)]], "float64")
        t = matrices((2, 3, 6), "float64")
        close(la.tensorsolve(t, matrices((2, 3), "float64") * 0 + 1), np.linalg.tensorsolve(t, np.ones((2, 3))), "float64")
        close(
            la.tensorinv(matrices((4, 6, 8, 3), "float64") * 0 + np.eye(24).reshape(4, 6, 8, 3), ind=2),
            np.linalg.tensorinv(np.eye(24).reshape(4, 6, 8, 3), ind=2),
            "float64",
        )
        c, lower = la.cho_factor(m @ m.T + np.eye(4), lower=True)
        close(la.cho_solve((c, lower), m), np.linalg.solve(m @ m.T + np.eye(4), m), "float64")
        close(la.lu_solve(la.lu_factor(m), m), np.eye(4), "float64")
        close(la.trace(matrices((2, 3, 3), "float64")).shape, (2,), "float64")

    def test_triangular(self):
        for dtype in DTYPES:
            a, b = positive((2, 5, 5), dtype), matrices((2, 5, 3), dtype)
            for lower in (False, True):
                for trans in (0, 1, 2):
                    for unit in (False, True):
                        t = np.tril(a) if lower else np.triu(a)
                        if unit:
                            t = t - t * np.eye(5) + np.eye(5)
                        op = t if trans == 0 else np.swapaxes(t, -1, -2) if trans == 1 else H(t)
                        want = np.linalg.solve(op, b)
                        got = np.asarray(la.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit))
                        scale = np.abs(want).max()
                        close(got / scale, want / scale, dtype, f"{lower} {trans} {unit}", 10)

    def test_bad_data(self):
        self.assertTrue(np.isnan(np.asarray(la.cholesky(-np.eye(3)))).all())
        self.assertFalse(np.isfinite(np.asarray(la.inv(np.zeros((2, 2))))).any())
        self.assertEqual(float(la.det(np.zeros((4, 4)))), 0)
        self.assertEqual(float(la.slogdet(np.zeros((4, 4)))[1]), -np.inf)
        n = np.full((4, 4), np.nan)
        for f in (la.svdvals, la.eigvalsh, la.eigvals):
            self.assertTrue(np.isnan(np.asarray(f(n))).any(), f)

    def test_messages(self):
        with self.assertRaisesRegex(ValueError, "square"):
            la.inv(np.ones((2, 3)))
        with self.assertRaisesRegex(ValueError, "solve.*do not go together"):
            la.solve(np.eye(3), np.ones(4))
        with self.assertRaisesRegex(ValueError, "at least 2 dims"):
            la.svd(np.ones(3))

    def test_halves(self):
        a = positive((3, 3), "float32")
        x = la.inv(eager.asarray(a).astype("float16"))
        self.assertEqual(x.dtype, "float16")
        np.testing.assert_allclose(np.asarray(x, np.float32), np.linalg.inv(a), atol=0.01)

    def test_integers(self):
        np.testing.assert_allclose(la.det(np.array([[2, 1], [1, 3]])).item(), 5)


class Without(Seeded):
    def test_without_lapack(self):
        """Our own functions at all sizes."""
        names = ("test_square", "test_hermitian", "test_qr_and_svd", "test_eig", "test_low_rank_and_scales")
        code = (
            f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
            "import test_linalg as t, unittest; assert t.la.lapack() is None\n"
            f"suite = unittest.TestSuite([t.Values(n) for n in {names}])\n"
            "sys.exit(not unittest.TextTestRunner(verbosity=0).run(suite).wasSuccessful())"
        )
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "EAS_LAPACK": "none"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Blocks(Seeded):
    """Sizes around those of leaves, strips and panels, where matrices are cut; batches, and one matrix that
    threads share."""

    SIZES = (4, 9, 15, 16, 17, 33, 65, 130, 193, 260)

    def factors(self, a, dtype, what):
        n = a.shape[-1]
        p, low, up = (np.asarray(t) for t in la.lu(a))
        close(p @ low @ up / n, a / n, dtype, f"lu {what}")
        q, r = (np.asarray(t) for t in la.qr(a))
        close(q @ r, a, dtype, f"qr {what}", 4)
        close(H(q) @ q, np.broadcast_to(np.eye(n), a.shape), dtype, f"q {what}", 4)
        p = positive(a.shape, dtype)
        low = np.asarray(la.cholesky(p))
        close(low @ H(low) / n, p / n, dtype, f"cholesky {what}")
        self.assertFalse(np.triu(low, 1).any())

    def systems(self, a, dtype, what):
        n = a.shape[-1]
        b = matrices((*a.shape[:-1], n // 2 + 1), dtype)
        for lower, trans, unit in itertools.product((False, True), (0, 1, 2), (False, True)):
            t = (np.tril(a) if lower else np.triu(a)) / (4 * np.sqrt(n)) * (1 - np.eye(n)) + np.eye(n) * (1 if unit else 2)
            t = t.astype(dtype)
            op = (t, np.swapaxes(t, -1, -2), H(t))[trans]
            for right in (b, b[..., :1]):
                got = np.asarray(la.solve_triangular(t + (5 * np.eye(n, dtype=dtype) if unit else 0), right, trans, lower, unit))
                close(op @ got, right, dtype, f"triangular {what} {lower} {trans} {unit}", 2)

    def test_sizes(self):
        for n, batch, dtype in itertools.product(self.SIZES, ((), (3,)), DTYPES):
            if batch and n > 65:
                continue
            a = matrices((*batch, n, n), dtype)
            self.factors(a, dtype, f"{n} {batch} {dtype}")
            self.systems(a, dtype, f"{n} {batch} {dtype}")

    def test_wide_and_tall(self):
        for (m, n), dtype in itertools.product(((70, 33), (33, 70), (300, 20), (20, 300)), DTYPES):
            a = matrices((m, n), dtype)
            p, low, up = (np.asarray(t) for t in la.lu(a))
            close(p @ low @ up, a, dtype, f"lu {m} {n}", 4)
            for mode in ("reduced", "complete"):
                q, r = (np.asarray(t) for t in la.qr(a, mode=mode))
                close(q @ r, a, dtype, f"qr {m} {n}", 4)
                close(H(q) @ q, np.eye(q.shape[1]), dtype, f"q {m} {n}", 4)

    def test_pivots(self):
        """Rows are exchanged as NumPy's LAPACK does it: the largest element of a column first; NaN and
        singular columns too."""
        a = R.permutation(np.arange(40 * 40, dtype=np.float64)).reshape(40, 40)
        p = np.asarray(la.lu(a)[0])
        self.assertEqual(np.argmax(p[:, 0]), np.argmax(a[:, 0]))
        self.assertTrue((np.abs(np.asarray(la.lu(a)[1])) <= 1).all())
        self.assertEqual(la.det(np.zeros((33, 33))).item(), 0)
        ones = np.ones((20, 20))
        self.assertEqual(la.det(ones).item(), 0)
        self.assertTrue(np.isnan(la.det(np.where(np.eye(20) == 1, np.nan, a[:20, :20])).item()))
        self.assertTrue(np.isnan(np.asarray(la.cholesky(-np.eye(50)))).all())

    def test_tiny_pivots(self):
        """A diagonal whose inverse overflows is divided by."""
        tiny = np.float32(1e-39)
        x = la.solve_triangular(np.diag(np.full(20, tiny)), np.full((20, 20), tiny), lower=True)
        np.testing.assert_array_equal(np.asarray(x), np.ones((20, 20), np.float32))

    def test_instruction_sets(self):
        """The tiles of products for CPUs with less."""
        for isa in ("avx2", "sse2"):
            code = (
                f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
                "import test_linalg as t, unittest; t.Blocks.SIZES = (17, 65, 130)\n"
                "suite = unittest.TestSuite([t.Blocks('test_sizes')])\n"
                "sys.exit(not unittest.TextTestRunner(verbosity=0).run(suite).wasSuccessful())"
            )
            done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "EAS_ISA": isa}, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, isa + done.stdout + done.stderr)


S = R.standard_normal((3, 3)) + 2 * np.eye(3)
T = R.standard_normal((5, 3))
POS = S @ S.T + np.eye(3)
DIFF = {
    "solve": (lambda a: la.solve(a, T.T[:, :2]), S), "solve of b": (lambda b: la.solve(S, b), T.T), "inv": (la.inv, S), "det": (la.det, S), "det of 4": (la.det, R.standard_normal((4, 4))), "slogdet": (lambda a: la.slogdet(a)[1], S),
    "cholesky": (la.cholesky, POS), "qr": (lambda a: la.qr(a)[0], T), "r": (lambda a: la.qr(a)[1], T), "wide qr": (lambda a: la.qr(a)[1], T.T), "eigh": (lambda a: la.eigh(a)[1] ** 2, POS), "eigvalsh": (la.eigvalsh, POS), "eigh w": (lambda a: la.eigh(a)[0], POS),
    "svd u": (lambda a: la.svd(a, full_matrices=False)[0] ** 2, T), "svd s": (lambda a: la.svd(a, full_matrices=False)[1], T), "svd v": (lambda a: la.svd(a, full_matrices=False)[2] ** 2, T), "svd wide": (lambda a: la.svd(a, full_matrices=False)[0] ** 2, T.T), "svdvals": (la.svdvals, T), "pinv": (la.pinv, T),
    "lstsq": (lambda a: la.lstsq(a, np.ones(5)).x, T), "expm": (la.expm, 0.3 * S), "matrix_power": (lambda a: la.matrix_power(a, 3), S), "norm": (la.norm, T), "nuc": (lambda a: la.norm(a, "nuc"), T), "lu": (lambda a: la.lu(a)[1], S), "lu of tall": (lambda a: la.lu(a)[2], T), "lu of wide": (lambda a: la.lu(a)[2], T.T),
    "eigvals": (lambda a: eager.abs(la.eigvals(a)) ** 2, S), "eig": (lambda a: eager.abs(la.eig(a)[1]) ** 2, POS + 0.1 * S), "triangular": (lambda a: la.solve_triangular(a, T.T, lower=True), S), "triangular T": (lambda a: la.solve_triangular(a, T.T, trans=1), S),
}  # fmt: skip


class Derivatives(Seeded):
    def test_differences(self):
        """Both modes against central differences, in float64."""
        for name, (f, x) in DIFF.items():
            with self.subTest(name):
                g = lambda v, f=f: eager.sum(eager.sin(f(v) * 1.3))  # noqa: E731
                t = R.standard_normal(x.shape)
                h = 1e-6
                want = (g(eager.asarray(x + h * t)).item() - g(eager.asarray(x - h * t)).item()) / (2 * h)
                grad = eager.grad(g)(eager.asarray(x)).numpy()
                self.assertAlmostEqual((grad * t).sum(), want, delta=2e-5 * max(1, abs(want)), msg="reverse")
                forward = eager.jvp(g, (eager.asarray(x),), (eager.asarray(t),))[1].item()
                self.assertAlmostEqual(forward, want, delta=2e-5 * max(1, abs(want)), msg="forward")

    def test_second(self):
        for name in (
            "solve",
            "inv",
            "det of 4",
            "slogdet",
            "cholesky",
            "qr",
            "eigh",
            "svd s",
            "svd u",
            "pinv",
            "expm",
            "lu",
            "eigvals",
            "triangular",
        ):
            f, x = DIFF[name]
            with self.subTest(name):
                g = lambda v, f=f: eager.sum(eager.sin(f(v) * 1.3))  # noqa: E731
                t = R.standard_normal(x.shape)
                along = lambda v, g=g, t=t: eager.sum(eager.grad(g)(v) * t)  # noqa: E731
                h = 1e-5
                want = (eager.grad(g)(eager.asarray(x + h * t)).numpy() - eager.grad(g)(eager.asarray(x - h * t)).numpy()) / (2 * h)
                got = eager.grad(along)(eager.asarray(x)).numpy()
                np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * max(1, np.abs(want).max()), err_msg=name)

    def test_jax(self):
        jax = needs(self, "jax")

        jax.config.update("jax_enable_x64", True)
        try:
            jnp = needs(self, "jax.numpy")

            for name, f in {
                "solve": lambda m, a: m.linalg.solve(a, T.T), "cholesky": lambda m, a: m.linalg.cholesky(a), "inv": lambda m, a: m.linalg.inv(a), "slogdet": lambda m, a: m.linalg.slogdet(a)[1], "eigh": lambda m, a: m.linalg.eigh(a)[0], "svd": lambda m, a: m.linalg.svd(a, full_matrices=False)[1],
                "qr": lambda m, a: m.linalg.qr(a)[1], "pinv": lambda m, a: m.linalg.pinv(a), "det": lambda m, a: m.linalg.det(a),
            }.items():  # fmt: skip
                want = jax.grad(lambda v, f=f: jnp.sum(jnp.sin(f(jnp, v))))(jnp.asarray(POS))
                got = eager.grad(lambda v, f=f: eager.sum(eager.sin(f(eager, v))))(eager.asarray(POS))
                np.testing.assert_allclose(got.numpy(), np.asarray(want), rtol=1e-6, atol=1e-8, err_msg=name)
        finally:
            jax.config.update("jax_enable_x64", False)

    def test_complex(self):
        """The gradient of a real function of a complex matrix is d/dre + i d/dim."""
        a = matrices((3, 3), "complex128") + 2 * np.eye(3)
        for name, f in {
            "solve": lambda z: la.solve(z, np.ones((3, 2))),
            "inv": la.inv,
            "cholesky": lambda z: la.cholesky(eager.matmul(z, eager.conj(z).mT)),
            "eigvalsh": la.eigvalsh,
            "svdvals": la.svdvals,
            "qr": lambda z: la.qr(z)[1],
            "det": la.det,
            "slogdet": lambda z: la.slogdet(z)[1],
        }.items():
            with self.subTest(name):
                g = lambda z, f=f: eager.sum(eager.abs(f(z)) ** 2)  # noqa: E731
                got = eager.grad(g)(eager.asarray(a)).numpy()
                h, t = 1e-6, matrices((3, 3), "complex128")
                want = (g(eager.asarray(a + h * t)).item() - g(eager.asarray(a - h * t)).item()) / (2 * h)
                self.assertAlmostEqual((got * np.conj(t)).sum().real, want, delta=3e-5 * max(1, abs(want)))


class Transforms(Seeded):
    def test_vmap(self):
        a = np.stack([POS, POS * 2, POS + np.eye(3)])
        for name in ("inv", "cholesky", "det", "svdvals", "eigvalsh"):
            f = getattr(la, name)
            np.testing.assert_allclose(eager.vmap(f)(eager.asarray(a)).numpy(), f(a).numpy(), rtol=1e-9, err_msg=name)
        b = R.standard_normal((4, 3, 2))
        np.testing.assert_allclose(eager.vmap(lambda b: la.solve(POS, b))(eager.asarray(b)).numpy(), np.linalg.solve(POS, b), rtol=1e-8)
        np.testing.assert_allclose(
            eager.vmap(lambda m: la.solve(m, np.ones(3)))(eager.asarray(a)).numpy(), np.stack([np.linalg.solve(m, np.ones(3)) for m in a]), rtol=1e-8
        )
        g = eager.vmap(eager.grad(lambda m: eager.sum(la.inv(m))))(eager.asarray(a)).numpy()
        np.testing.assert_allclose(g, np.stack([eager.grad(lambda m: eager.sum(la.inv(m)))(eager.asarray(m)).numpy() for m in a]), rtol=1e-8)
        j = eager.jacrev(lambda m: la.solve(m, np.ones(3)))(eager.asarray(POS)).numpy()
        np.testing.assert_allclose(j, eager.jacfwd(lambda m: la.solve(m, np.ones(3)))(eager.asarray(POS)).numpy(), rtol=1e-7, atol=1e-10)

    def test_compile(self):
        f = eager.compile(lambda a, b: la.solve(a, b) + la.cholesky(a)[..., :2])
        for n in (3, 3, 4):
            a, b = positive((n, n), "float64"), matrices((n, 2), "float64")
            np.testing.assert_allclose(
                f(eager.asarray(a), eager.asarray(b)).numpy(), np.linalg.solve(a, b) + np.linalg.cholesky(a)[..., :2], rtol=1e-8
            )

    def test_symbolic_batch(self):
        f = eager.compile(lambda a: la.inv(a).sum(axis=(1, 2)), dynamic_dims={0: {0: "batch"}})
        for n in (2, 5, 3):
            a = positive((n, 3, 3), "float64")
            np.testing.assert_allclose(f(eager.asarray(a)).numpy(), np.linalg.inv(a).sum((1, 2)), rtol=1e-8)
        self.assertEqual(f.stats.misses, 1)

    def test_views(self):
        a = positive((4, 4), "float64")
        np.testing.assert_allclose(la.inv(eager.asarray(a).T).numpy(), np.linalg.inv(a.T), rtol=1e-9)
        np.testing.assert_allclose(
            la.inv(eager.asarray(np.stack([a, a]))[:, ::2, ::2]).numpy(), np.linalg.inv(np.stack([a, a])[:, ::2, ::2]), rtol=1e-9
        )

    def test_ref_device(self):
        a = positive((3, 3), "float64")
        np.testing.assert_allclose(la.inv(eager.asarray(a).to("ref")).numpy(), np.linalg.inv(a), rtol=1e-9)


class Einsum(Seeded):
    def test_as_numpy(self):
        a, b, c, d = (R.standard_normal(s) for s in ((3, 4), (4, 5), (2, 3, 4), (5, 3)))
        sq, t = R.standard_normal((3, 3)), R.standard_normal((2, 3, 3))
        for subscripts, xs in [
            ("ij,jk->ik", (a, b)), ("ij,jk", (a, b)), ("ij->ji", (a,)), ("ij->", (a,)), ("ij->j", (a,)), ("ii", (sq,)), ("ii->i", (sq,)), ("ba", (a,)), ("bij,jk->bik", (c, b)), ("...ij,jk->...ik", (c, b)), ("...ii->...i", (t,)), ("...ij->...ji", (t,)), ("i...->...", (c,)),
            ("ij,jk,kl->il", (a, b, d)), ("ij,ij->", (a, a)), ("ij,kj->ik", (a, a)), ("i,j->ij", (a[0], b[0])), ("i,i", (a[0], a[1])), ("ijk,jk->i", (c, a)), ("bij,bkj->bik", (c, c)), ("ij,jk,kl,lm->im", (a, b, d, sq)), ("iij->j", (np.stack([sq] * 3),)), ("a...b,b...->...a", (c, np.moveaxis(c, 2, 0)[:, :1])),
            ("...,...", (a, a)), ("ij, jk -> ik", (a, b)), ("ijk->kij", (c,)), ("ij,ik,il->jkl", (a, a, a)), ("", (np.float64(3),)), ("...->...", (a,)), ("ik,jk,k->ij", (a, a, a[0])),
        ]:  # fmt: skip
            with self.subTest(subscripts):
                want = np.einsum(subscripts, *xs)
                np.testing.assert_allclose(eager.einsum(subscripts, *xs).numpy(), want, rtol=1e-10, atol=1e-12)
                np.testing.assert_allclose(eager.einsum(subscripts, *xs, optimize=False).numpy(), want, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(eager.einsum(a, [0, 1], b, [1, 2], [0, 2]).numpy(), a @ b)
        i = R.integers(-5, 5, (3, 4)).astype(np.int32)
        got = eager.einsum("ij,kj->ik", i, i)
        self.assertEqual(got.dtype, "int32")
        np.testing.assert_array_equal(got.numpy(), np.einsum("ij,kj->ik", i, i))
        z = matrices((3, 4), "complex128")
        np.testing.assert_allclose(eager.einsum("ij,kj->ik", z, np.conj(z)).numpy(), np.einsum("ij,kj->ik", z, np.conj(z)))
        for bad in ("ij,jk->iz", "ij->iij", "ij,jk", "i!"):
            with self.assertRaisesRegex(ValueError, "einsum"):
                eager.einsum(bad, *((a, b) if bad == "ij,jk->iz" else (a,)))

    def test_order(self):
        """The cheap pair goes first."""
        x, y, v = np.zeros((200, 200)), np.zeros((200, 200)), np.zeros(200)
        path, text = eager.einsum_path("ij,jk,k->i", x, y, v)
        self.assertEqual(path[1], (1, 2), text)

    def test_transforms(self):
        a, b = R.standard_normal((3, 4)), R.standard_normal((4, 5))
        g = eager.grad(lambda x: eager.sum(eager.einsum("ij,jk->ik", x, b) ** 2))(eager.asarray(a)).numpy()
        np.testing.assert_allclose(g, 2 * a @ b @ b.T)
        c = R.standard_normal((2, 3, 4))
        np.testing.assert_allclose(eager.vmap(lambda x: eager.einsum("ij,jk->ki", x, b))(eager.asarray(c)).numpy(), np.einsum("bij,jk->bki", c, b))

    def test_opt_einsum(self):
        opt_einsum = needs(self, "opt_einsum")

        a, b, c = (eager.asarray(R.standard_normal(s)) for s in ((3, 4), (4, 5), (5, 2)))
        got = opt_einsum.contract("ij,jk,kl->il", a, b, c, backend="eager")
        self.assertIsInstance(got, eager.Tensor)
        np.testing.assert_allclose(got.numpy(), a.numpy() @ b.numpy() @ c.numpy())


if __name__ == "__main__":
    unittest.main()
