"""NumPy's vocabulary: each function against NumPy's of the same name, on the same arguments; NumPy's own
functions on tensors; derivatives against JAX's."""

import importlib
import os
import subprocess
import sys
import unittest

import numpy as np

import eager

R = np.random.default_rng(7)
START = R.bit_generator.state
A = R.standard_normal((4, 5)).astype(np.float32)
B = R.standard_normal((4, 5)).astype(np.float32)
V = R.standard_normal(6).astype(np.float32)
W = R.standard_normal(6).astype(np.float32)
P = (R.random((3, 4)) + 0.5).astype(np.float32)
Q = R.standard_normal((2, 3, 4)).astype(np.float32)
N = A.copy()
N[0, 1] = N[2, 3] = np.nan
N[1] = np.nan
I = R.integers(-6, 7, (4, 5))
U = R.integers(0, 9, 12)
M = A > 0
E = np.zeros((0, 3), np.float32)
S = np.sort(V)
SQ = R.standard_normal((5, 5)).astype(np.float32)

# (name, args, kwargs); args may be lists of arrays
CASES = [
    ("ravel", (A,), {}), ("ravel", (Q, "F"), {}), ("ravel", (E,), {}), ("ravel", (np.float32(3),), {}), ("diag", (V,), {}), ("diag", (V, 2), {}), ("diag", (V, -1), {}), ("diag", (SQ,), {}), ("diag", (SQ, 1), {}),
    ("diag", (A, -2), {}), ("diagflat", (P,), {}), ("diagflat", (V[:2], 1), {}), ("vstack", ([A, B],), {}), ("vstack", ([V, W],), {}), ("hstack", ([A, B],), {}), ("hstack", ([V, W],), {}), ("dstack", ([A, B],), {}),
    ("dstack", ([V, W],), {}), ("column_stack", ([V, W],), {}), ("column_stack", ([V, np.stack([W, W], 1)],), {}), ("block", ([[A, B], [B, A]],), {}), ("block", ([1, 2],), {}), ("array_split", (V, 4), {}), ("array_split", (A, 3, 1), {}),
    ("array_split", (V, [1, 3, 9]), {}), ("hsplit", (A, 5), {}), ("hsplit", (V, 2), {}), ("vsplit", (A, 2), {}), ("dsplit", (Q, 2), {}), ("atleast_1d", (np.float32(2),), {}), ("atleast_2d", (V,), {}), ("atleast_3d", (A,), {}),
    ("atleast_3d", (V,), {}), ("rollaxis", (Q, 2), {}), ("rollaxis", (Q, 0, 3), {}), ("rot90", (A,), {}), ("rot90", (A, 3), {}), ("rot90", (Q, 2, (1, 2)), {}), ("fliplr", (A,), {}), ("flipud", (A,), {}), ("append", (A, B), {}),
    ("append", (A, B, 0), {}), ("insert", (V, 2, 9.0), {}), ("insert", (V, [1, 3], [7.0, 8.0]), {}), ("insert", (A, 1, 5.0), {"axis": 1}), ("insert", (A, 2, W[:5]), {"axis": 0}), ("delete", (V, 2), {}), ("delete", (A, [0, 2], 1), {}),
    ("delete", (A, slice(1, 3), 0), {}), ("resize", (V, (3, 4)), {}), ("resize", (V, 2), {}), ("trim_zeros", (np.array([0, 0, 1, 2, 0.0], np.float32),), {}), ("trim_zeros", (np.pad(A, 2),), {}), ("trim_zeros", (np.zeros((2, 3), np.float32),), {}), ("tri", (3, 4, 1), {}), ("select", ([M, A < -1], [A, B], 2.0), {}), ("piecewise", (V, [V < 0, V >= 0], [-1.0, 1.0]), {}),
    ("choose", (np.array([0, 1, 1, 0, 1]), [A, B]), {}), ("compress", (np.array([True, False, True, True]), A, 0), {}), ("extract", (M, A), {}), ("flatnonzero", (I,), {}), ("argwhere", (I,), {}), ("unravel_index", (U, (3, 5)), {}),
    ("ravel_multi_index", ((np.array([0, 1, 2]), np.array([3, 1, 0])), (3, 4)), {}), ("rad2deg", (A,), {}), ("deg2rad", (A,), {}), ("degrees", (A,), {}), ("radians", (A,), {}), ("cbrt", (A,), {}), ("sinc", (A,), {}), ("heaviside", (A, 0.5), {}),
    ("fabs", (A,), {}), ("fix", (A * 3,), {}), ("rint", (A * 3,), {}), ("around", (A, 2), {}), ("around", (I * 10, -1), {}), ("fmax", (N, A), {}), ("fmin", (N, A), {}), ("fmod", (A, B), {}), ("fmod", (I, 3), {}), ("divmod", (A, B), {}),
    ("modf", (A * 4,), {}), ("frexp", (A * 100,), {}), ("ldexp", (A, I), {}), ("float_power", (P, 2), {}), ("logaddexp2", (A, B), {}), ("spacing", (A,), {}), ("gcd", (I, 6), {}), ("lcm", (I, 4), {}), ("nan_to_num", (N,), {}),
    ("nan_to_num", (np.array([np.inf, -np.inf, np.nan, 1], np.float32),), {"nan": 2.0}), ("isclose", (A, A + 1e-6), {}), ("isclose", (N, N), {"equal_nan": True}), ("allclose", (A, A + 1e-9), {}), ("array_equal", (A, A), {}), ("array_equal", (A, V), {}),
    ("array_equiv", (A, A[:1]), {}), ("isneginf", (np.array([-np.inf, 1], np.float32),), {}), ("isposinf", (np.array([np.inf, 1], np.float32),), {}), ("bitwise_count", (I,), {}), ("bitwise_count", (U.astype(np.uint8),), {}), ("packbits", (M,), {}), ("packbits", (M, 1), {}),
    ("unpackbits", (U.astype(np.uint8),), {}), ("unwrap", (V * 5,), {}), ("invert", (I,), {}), ("left_shift", (U, 2), {}), ("amax", (A, 1), {}), ("amin", (A,), {}), ("ptp", (A, 0), {}), ("average", (A,), {}), ("average", (A, 1), {"weights": np.abs(W[:5])}),
    ("median", (A,), {}), ("median", (A[:0],), {}), ("median", (A[:0], 0), {}), ("nanmedian", (A[:0], 0), {}), ("median", (A, 1), {}), ("median", (Q, (0, 2)), {}), ("median", (A, 0), {"keepdims": True}), ("quantile", (A, 0.3), {}), ("quantile", (A, np.array([0.1, 0.5, 0.9], np.float32), 1), {}), ("quantile", (A, 0.4, 0), {"method": "lower"}),
    ("quantile", (A, 0.4, 0), {"method": "higher"}), ("quantile", (A, 0.4, 0), {"method": "nearest"}), ("quantile", (A, 0.4, 0), {"method": "hazen"}), ("quantile", (A, 0.4, 1), {"method": "weibull", "keepdims": True}), ("percentile", (A, 25.0, 1), {}), ("nanmedian", (N, 1), {}),
    ("nanquantile", (N, 0.5, 0), {}), ("nanpercentile", (N, 30.0), {}), ("nansum", (N,), {}), ("nansum", (N, 1), {}), ("nanprod", (N, 0), {}), ("nanmean", (N, 0), {}), ("nanvar", (N, 0), {}), ("nanstd", (N,), {"ddof": 1}), ("nanmax", (N, 0), {}), ("nanmin", (N,), {}),
    ("nanargmax", (A, 1), {}), ("nanargmin", (A,), {}), ("nancumsum", (N, 1), {}), ("nancumprod", (N,), {}), ("cov", (A,), {}), ("cov", (A, B), {}), ("cov", (A,), {"rowvar": False, "bias": True}), ("cov", (A,), {"aweights": np.abs(W[:5]), "fweights": np.array([1, 2, 1, 3, 1])}),
    ("corrcoef", (A,), {}), ("bincount", (U,), {}), ("bincount", (U,), {"weights": R.random(12).astype(np.float32), "minlength": 15}), ("histogram", (A,), {}), ("histogram", (A, 4, (-1.0, 1.0)), {}), ("histogram", (A, np.array([-2, 0, 1, 3], np.float32)), {"density": True}),
    ("histogram_bin_edges", (A, 5), {}), ("histogramdd", (np.stack([V, W], 1), 3), {}), ("histogram2d", (V, W, 3), {}), ("digitize", (A, np.array([-1, 0, 1], np.float32)), {}), ("digitize", (A, np.array([1, 0, -1], np.float32)), {"right": True}), ("interp", (A, S, W), {}),
    ("interp", (A, S, W, -9.0, 9.0), {}), ("interp", (A, S, W), {"period": 2.0}), ("gradient", (V,), {}), ("gradient", (A,), {}), ("gradient", (V, S), {}), ("gradient", (A, 0.5), {"axis": 1, "edge_order": 2}), ("trapezoid", (A,), {}), ("trapezoid", (V, S), {}), ("ediff1d", (V, 9.0), {}),
    ("cross", (A[:, :3], B[:, :3]), {}), ("kron", (P, A), {}), ("kron", (V, P), {}), ("inner", (A, B), {}), ("inner", (V, W), {}), ("vdot", (A, B), {}), ("convolve", (V, W[:3]), {}), ("convolve", (V, W[:3], "same"), {}), ("convolve", (V[:3], W, "valid"), {}), ("convolve", (V, W[:4], "same"), {}),
    ("correlate", (V, W[:3]), {}), ("correlate", (V, W[:3], "full"), {}), ("correlate", (V[:3], W, "same"), {}), ("correlate", (V[:2], W, "full"), {}), ("correlate", (V, W[:4], "same"), {}), ("correlate", (V[:2], W, "same"), {}), ("correlate", (V[:4], W[:5], "same"), {}), ("convolve", (V[:4], W[:5], "same"), {}), ("polyval", (V, A), {}), ("vander", (V,), {}), ("vander", (V, 3, True), {}), ("polyfit", (V, W, 2), {}), ("polyadd", (V, W[:3]), {}),
    ("polysub", (V[:2], W), {}), ("polymul", (V, W[:2]), {}), ("polydiv", (V, W[:3]), {}), ("polyder", (V,), {}), ("polyder", (V, 2), {}), ("polyint", (V,), {}), ("poly", (V[:4],), {}), ("lexsort", ([W, np.round(V)],), {}), ("unique", (U,), {}),
    ("unique", (I, True, True, True), {}), ("isin", (U, np.array([1, 5])), {}), ("isin", (U, np.arange(40)), {"invert": True}), ("union1d", (U, I), {}), ("intersect1d", (U, I), {}), ("setdiff1d", (U, np.array([1, 2, 3])), {}), ("setxor1d", (U, I), {}), ("logspace", (0.0, 2.0, 5), {}),
    ("geomspace", (1.0, 100.0, 5), {}), ("identity", (3,), {}), ("indices", ((2, 3),), {}), ("tril_indices", (4,), {}), ("triu_indices", (4, 1, 5), {}), ("diag_indices", (3,), {}), ("hanning", (7,), {}), ("hamming", (7,), {}), ("blackman", (7,), {}), ("bartlett", (7,), {}), ("kaiser", (7, 5.0), {}),
    ("i0", (A * 8,), {}), ("tri", (3, 4), {"k": 1}), ("meshgrid", (V, W), {}), ("ix_", (np.array([0, 2]), np.array([1, 3])), {}), ("apply_over_axes", (np.sum, A, [0]), {}), ("ix_", (np.array([True, False, True]),), {}), ("copy", (A,), {}), ("matvec", (P, V[:4]), {}), ("cumulative_sum", (V,), {}),
]  # fmt: skip
SORTED = {"unique", "union1d"}


def check(test, got, want, what):
    if isinstance(want, (tuple, list)):
        test.assertEqual(len(got), len(want), what)
        for g, w in zip(got, want):
            check(test, g, w, what)
        return
    want, got = np.asarray(want), np.asarray(got)
    test.assertEqual(got.shape, want.shape, what)
    if want.dtype.kind in "fc":
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


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


class Names(Seeded):
    def test_as_numpy(self):
        for name, args, kwargs in CASES:
            with self.subTest(name, args=str(args)[:60], **{k: str(v)[:20] for k, v in kwargs.items()}):
                with np.errstate(all="ignore"):
                    import warnings

                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        want = getattr(np, name)(*args, **kwargs)
                if name == "apply_over_axes":
                    args = (eager.sum, *args[1:])
                check(self, getattr(eager, name)(*args, **kwargs), want, name)

    def test_tensors_as_arguments(self):
        """The same with tensors in place of arrays."""

        def made(x):
            if isinstance(x, list):
                return [made(i) for i in x]
            return eager.asarray(x) if isinstance(x, np.ndarray) and x.size > 3 else x

        for name, args, kwargs in CASES:
            if name in ("apply_over_axes",):
                continue
            with self.subTest(name, args=str(args)[:60]):
                check(self, getattr(eager, name)(*made(list(args)), **kwargs), getattr(eager, name)(*args, **kwargs), name)

    def test_names_are_there(self):
        for name in eager._numpy.__all__:
            self.assertTrue(hasattr(eager, name), name)

    def test_torch_names(self):
        x = eager.asarray(A)
        np.testing.assert_array_equal(x.expand(2, 4, 5).numpy(), np.broadcast_to(A, (2, 4, 5)))
        np.testing.assert_array_equal(x[:1].expand(3, -1).numpy(), np.broadcast_to(A[:1], (3, 5)))
        np.testing.assert_array_equal(x.masked_fill(M, 7).numpy(), np.where(M, np.float32(7), A))
        self.assertEqual(eager.asarray(I).masked_fill(M, 7).dtype, "int64")
        np.testing.assert_array_equal(eager.masked_select(x, M).numpy(), A[M])
        np.testing.assert_array_equal(eager.narrow(x, 1, 1, 2).numpy(), A[:, 1:3])
        np.testing.assert_array_equal(eager.index_select(x, 1, eager.asarray([0, 2])).numpy(), A[:, [0, 2]])
        with self.assertRaisesRegex(ValueError, "expand"):
            x.expand(5)

    def test_partition(self):
        p = eager.partition(A, 2, axis=1).numpy()
        np.testing.assert_array_equal(p[:, 2], np.sort(A, 1)[:, 2])
        at = eager.argpartition(A, 2, axis=1).numpy()
        np.testing.assert_array_equal(np.take_along_axis(A, at, 1)[:, 2], np.sort(A, 1)[:, 2])

    def test_array(self):
        x = eager.ones((2,))
        np.testing.assert_array_equal(eager.array([[x, x], [x, x]]).numpy(), np.ones((2, 2, 2)))
        self.assertEqual(eager.array(3.0, ndmin=2).shape, (1, 1))
        self.assertEqual(eager.array([1, 2], dtype="float64").dtype, "float64")

    def test_grids(self):
        np.testing.assert_array_equal(eager.mgrid[0:3, 1:4].numpy(), np.mgrid[0:3, 1:4])
        for g, w in zip(eager.ogrid[0:3, 1:4], np.ogrid[0:3, 1:4]):
            np.testing.assert_array_equal(g.numpy(), w)
        np.testing.assert_allclose(eager.mgrid[0:1:5j].numpy(), np.mgrid[0:1:5j])

    def test_roots(self):
        np.testing.assert_allclose(np.sort_complex(eager.roots([1.0, -6.0, 11.0, -6.0]).numpy()), [1, 2, 3], rtol=1e-4)
        self.assertEqual(eager.roots([0.0, 2.0, 0.0]).shape, (1,))

    def test_fill_diagonal(self):
        want = SQ.copy()
        np.fill_diagonal(want, 3)
        np.testing.assert_array_equal(eager.fill_diagonal(SQ, 3).numpy(), want)
        x = eager.asarray(SQ)
        eager.fill_diagonal(x, 3, inplace=True)
        np.testing.assert_array_equal(x.numpy(), want)

    def test_functions_of_functions(self):
        np.testing.assert_allclose(eager.apply_along_axis(lambda r: r.sum() * r, 1, A).numpy(), A.sum(1, keepdims=True) * A, rtol=1e-5)
        np.testing.assert_allclose(eager.vectorize(lambda a, b: a * b + 1)(A, B[:1]).numpy(), A * B[:1] + 1, rtol=1e-6)
        np.testing.assert_allclose(eager.vectorize(lambda a, b: (a * b).sum(), signature="(n),(n)->()")(A, B).numpy(), (A * B).sum(1), rtol=1e-5)


class Protocols(Seeded):
    def test_functions(self):
        x = eager.asarray(A)
        for f in (
            np.sum, np.mean, lambda a: np.mean(a, 0), lambda a: np.sum(a, axis=1, keepdims=True), np.transpose, np.argmax, lambda a: np.std(a, ddof=1), lambda a: np.reshape(a, (5, 4)), np.ravel, lambda a: np.concatenate([a, a]),
            lambda a: np.stack([a, a]), lambda a: np.clip(a, -0.5, 0.5), np.median, lambda a: np.quantile(a, 0.3, axis=0), lambda a: np.where(a > 0, a, 0), lambda a: np.einsum("ij,kj->ik", a, a), lambda a: np.linalg.norm(a), lambda a: np.dot(a, a.T),
            lambda a: np.split(a, 2), lambda a: np.roll(a, 1, 0), lambda a: np.round(a, 1), lambda a: np.pad(a, 1), lambda a: np.take(a, [0, 2], axis=1), lambda a: np.tile(a, 2), np.cumsum, lambda a: np.diff(a, axis=0), lambda a: np.fft.rfft(a),
            lambda a: np.zeros_like(a), lambda a: np.full_like(a, 2.0), lambda a: np.searchsorted(np.sort(a[0]), a[1]),
        ):  # fmt: skip
            got, want = f(x), f(A)
            for g in got if isinstance(got, (list, tuple)) else [got]:
                self.assertIsInstance(g, (eager.Tensor, eager.ComplexTensor))
            check(self, got, want, str(f))

    def test_ufuncs_stay_lazy(self):
        x = eager.asarray(A)
        for f in (np.sin, np.exp, np.negative, np.absolute, np.sqrt, np.square, np.isnan, np.sign, np.floor, np.tanh, np.log1p, np.cbrt):
            with np.errstate(invalid="ignore"):
                y = f(x)
                self.assertIsInstance(y, eager.Tensor, f)
                self.assertFalse(y.real, f)
                check(self, y, f(A), str(f))
        for f in (np.add, np.multiply, np.maximum, np.arctan2, np.less, np.power, np.hypot, np.logaddexp):
            with np.errstate(invalid="ignore"):
                for got in (f(x, B), f(B, x)):
                    self.assertIsInstance(got, eager.Tensor, f)
                check(self, f(x, B), f(A, B), str(f))
        check(self, B + x, B + A, "array + tensor")
        self.assertIsInstance(B * x, eager.Tensor)
        check(self, np.add.reduce(x), np.add.reduce(A), "add.reduce")
        check(self, np.maximum.accumulate(x, axis=1), np.maximum.accumulate(A, axis=1), "maximum.accumulate")
        check(self, np.multiply.outer(x, x), np.multiply.outer(A, A), "multiply.outer")

    def test_out_is_numpys(self):
        out = np.empty_like(A)
        np.add(eager.asarray(A), 1, out=out)
        np.testing.assert_array_equal(out, A + 1)

    def test_inside_transforms(self):
        f = lambda x: np.sum(np.sin(x) * x)  # noqa: E731
        g = eager.grad(f)(eager.asarray(A)).numpy()
        np.testing.assert_allclose(g, np.cos(A) * A + np.sin(A), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(eager.compile(f)(eager.asarray(A)).item(), f(A), rtol=1e-5)

    def test_jax_takes_tensors(self):
        jnp = needs(self, "jax.numpy")

        np.testing.assert_array_equal(np.asarray(jnp.asarray(eager.asarray(A))), A)


class Derivatives(Seeded):
    def test_against_jax(self):
        jax = needs(self, "jax")
        jnp = needs(self, "jax.numpy")

        cases = {
            "median": (lambda m, x: m.median(x, axis=1), A), "quantile": (lambda m, x: m.quantile(x, 0.3, axis=0), A), "interp": (lambda m, x: m.interp(x, S, W), A), "cov": (lambda m, x: m.cov(x), A), "corrcoef": (lambda m, x: m.corrcoef(x), A),
            "trapezoid": (lambda m, x: m.trapezoid(x), A), "gradient": (lambda m, x: m.gradient(x)[0], A), "kron": (lambda m, x: m.kron(x, P), A), "cross": (lambda m, x: m.cross(x[:, :3], B[:, :3]), A), "convolve": (lambda m, x: m.convolve(x, W[:3]), V),
            "polyval": (lambda m, x: m.polyval(x, W), V), "nanmean": (lambda m, x: m.nanmean(x, axis=1), A), "diag": (lambda m, x: m.diag(x, 1), V), "vander": (lambda m, x: m.vander(x, 4), V), "unwrap": (lambda m, x: m.unwrap(x), V), "sinc": (lambda m, x: m.sinc(x), A),
            "rot90": (lambda m, x: m.rot90(x), A), "select": (lambda m, x: m.select([x > 0, x < -1], [x * x, x], 0.0), A), "cbrt": (lambda m, x: m.cbrt(x), A), "nan_to_num": (lambda m, x: m.nan_to_num(x * x), A), "ptp": (lambda m, x: m.ptp(x, axis=0), A),
        }  # fmt: skip
        for name, (f, x) in cases.items():
            with self.subTest(name):
                want = jax.grad(lambda v, f=f: jnp.sum(jnp.sin(f(jnp, v))))(jnp.asarray(x))
                got = eager.grad(lambda v, f=f: eager.sum(eager.sin(f(eager, v))))(eager.asarray(x))
                np.testing.assert_allclose(got.numpy(), np.asarray(want), rtol=2e-3, atol=2e-5, err_msg=name)

    def test_vmap(self):
        for name, f in {
            "median": eager.median,
            "quantile": lambda v: eager.quantile(v, 0.4),
            "diag": eager.diag,
            "histogram": lambda v: eager.histogram(v, 3, (-2.0, 2.0))[0],
            "interp": lambda v: eager.interp(v, S, W),
            "convolve": lambda v: eager.convolve(v, W[:2]),
            "cov": lambda v: eager.cov(eager.stack([v, v * v])),
            "polyval": lambda v: eager.polyval(v, 2.0),
        }.items():
            with self.subTest(name):
                got = eager.vmap(f)(eager.asarray(A)).numpy()
                want = np.stack([np.asarray(f(row)) for row in A])
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


class Dispatch(Seeded):
    """SciPy and scikit-learn with array-API dispatch give tensors."""

    def test_scipy(self):
        needs(self, "scipy")
        code = (
            "import numpy as np, eager, scipy.special, scipy.stats, scipy.fft, scipy.integrate\n"
            "a = np.random.default_rng(0).standard_normal((20, 5)); x = eager.asarray(a)\n"
            "for f in (scipy.special.logsumexp, scipy.special.expit, scipy.stats.zscore, scipy.stats.skew, scipy.stats.kurtosis, scipy.fft.fft, scipy.integrate.trapezoid):\n"
            "    y = f(x); assert type(y).__module__.startswith('eager'), (f, type(y)); np.testing.assert_allclose(np.asarray(y), f(a), rtol=1e-6, atol=1e-8)"
        )
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "SCIPY_ARRAY_API": "1"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_sklearn(self):
        needs(self, "sklearn")
        code = (
            "import numpy as np, eager\n"
            "from sklearn import config_context\n"
            "from sklearn.decomposition import PCA\n"
            "from sklearn.preprocessing import MinMaxScaler, StandardScaler\n"
            "from sklearn.linear_model import Ridge\n"
            "a = np.random.default_rng(0).standard_normal((40, 5)); x = eager.asarray(a)\n"
            "for make in (MinMaxScaler, StandardScaler, lambda: PCA(2, svd_solver='full')):\n"
            "    want = make().fit_transform(a)\n"
            "    with config_context(array_api_dispatch=True): y = make().fit_transform(x)\n"
            "    assert isinstance(y, eager.Tensor); np.testing.assert_allclose(np.abs(np.asarray(y)), np.abs(want), rtol=1e-6, atol=1e-8)\n"
            "from sklearn.metrics import accuracy_score\n"
            "from sklearn.preprocessing import LabelEncoder, Normalizer\n"
            "k = np.arange(40) % 3; t = eager.asarray(k)\n"
            "with config_context(array_api_dispatch=True):\n"
            "    y = Normalizer().fit_transform(x); assert isinstance(y, eager.Tensor)\n"
            "    np.testing.assert_allclose(np.asarray(y), Normalizer().fit_transform(a), rtol=1e-6)\n"
            "    assert accuracy_score(t, t) == 1 and LabelEncoder().fit(t).classes_.tolist() == [0, 1, 2]\n"
            "with config_context(array_api_dispatch=True): y = Ridge(solver='svd').fit(x, x[:, 0]).predict(x)\n"
            "assert isinstance(y, eager.Tensor)"
        )
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "SCIPY_ARRAY_API": "1"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class Standard(Seeded):
    """Signatures of the array API 2024.12 that differ from the table's."""

    def test_signatures(self):
        x = eager.asarray(A)
        self.assertEqual(eager.full((2,), fill_value=3).tolist(), [3, 3])
        self.assertEqual(eager.full_like(x, 2).shape, (4, 5))
        self.assertEqual(
            eager.searchsorted(eager.asarray([3, 1, 2]), eager.asarray([2, 3]), side="right", sorter=eager.asarray([1, 2, 0])).tolist(), [2, 3]
        )
        self.assertEqual(eager.permute_dims(x, axes=(1, 0)).shape, (5, 4))
        self.assertEqual(eager.reshape(x, (5, 4), copy=True).shape, (5, 4))
        self.assertEqual(eager.reshape(x, shape=(20,), copy=False).shape, (20,))
        for axis in (3, -4):
            with self.assertRaises(IndexError):
                eager.expand_dims(x, axis=axis)
        self.assertEqual(eager.repeat(eager.asarray([1, 2, 3]), eager.asarray([1, 0, 2])).tolist(), [1, 3, 3])
        self.assertEqual(eager.repeat(x, eager.asarray([2, 0, 1, 1]), axis=0).shape, (4, 5))
        self.assertEqual(eager.zeros((0, 3))[eager.zeros((0, 3), dtype="bool")].shape, (0,))
        small = eager.ones((2, 200), dtype="int8")
        self.assertEqual(eager.vecdot(small, small).dtype, "int8")
        self.assertEqual(eager.unique_values(eager.asarray([2j, 1j, 2j])).tolist(), [1j, 2j])
        self.assertIn("complex128", eager.__array_namespace_info__().dtypes(kind="complex floating"))
        self.assertEqual(eager.where(x > 0, 1.0, -1.0).dtype, "float32")


if __name__ == "__main__":
    unittest.main()
