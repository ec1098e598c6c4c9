"""Complex tensors against NumPy: arithmetic, functions, promotion, views, reductions, products, interchange,
derivatives, transforms; and dtypes that are only stored."""

import importlib
import unittest

import numpy as np

import eager

R = np.random.default_rng(11)
START = R.bit_generator.state
Z = (R.standard_normal((3, 4)) + 1j * R.standard_normal((3, 4))).astype(np.complex128)
Y = (R.standard_normal((3, 4)) + 1j * R.standard_normal((3, 4))).astype(np.complex128)
A = R.standard_normal((3, 4))
z, y, a = eager.asarray(Z), eager.asarray(Y), eager.asarray(A)


def check(got, want, tol=1e-12, what=""):
    got = np.asarray(got)
    assert got.shape == np.shape(want), (got.shape, np.shape(want), what)
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol, err_msg=what)


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
    def test_functions(self):
        for name in "sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh exp expm1 log log1p log2 log10 sqrt square reciprocal negative positive abs sign conj real imag angle isnan isfinite isinf exp2".split():
            with self.subTest(name):
                f = getattr(
                    np,
                    {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}.get(
                        name, name
                    ),
                )
                for scale in (1, 1e-3, 30) if name not in ("exp", "exp2", "sinh", "cosh", "sin", "cos", "expm1") else (1, 1e-3):
                    check(getattr(eager, name)(z * scale), f(Z * scale), 1e-9, name)
                self.assertEqual(getattr(eager, name)(z.astype("complex64")).dtype, f(Z.astype(np.complex64)).dtype)

    def test_arithmetic(self):
        for f in (
            lambda u, v: u + v,
            lambda u, v: u - v,
            lambda u, v: u * v,
            lambda u, v: u / v,
            lambda u, v: u**v,
            lambda u, v: u == v,
            lambda u, v: u != v,
        ):
            for u, v, U, V in [
                (z, y, Z, Y),
                (z, a, Z, A),
                (a, z, A, Z),
                (z, 2.5, Z, 2.5),
                (2.5, z, 2.5, Z),
                (z, 1 + 2j, Z, 1 + 2j),
                (1 + 2j, z, 1 + 2j, Z),
                (z, Y, Z, Y),
                (Y, z, Y, Z),
                (z, y[0], Z, Y[0]),
            ]:
                check(
                    f(u, v),
                    f(np.asarray(U) + (0j if isinstance(U, float) else 0), V)
                    if not isinstance(U, np.ndarray)
                    else f(U, V)
                    if U is not A
                    else f(U + 0j, V),
                    1e-10,
                )
        check(a * 1j, A * 1j)
        check(1j - a, 1j - A)
        check(z**3, Z**3)
        check(z**-2, Z**-2.0)
        check(z**0, Z**0)
        check(-z, -Z)
        check(abs(z), abs(Z))
        with self.assertRaisesRegex(TypeError, "no order"):
            eager.less(z, y)
        with self.assertRaisesRegex(TypeError, "not defined"):
            eager.floor(z)

    def test_division_scales(self):
        for s in (1e-200, 1e200):
            check(z * s / (y * s), Z / Y, 1e-10)
            check(eager.abs(z * s) / s, abs(Z), 1e-10)

    def test_special_values(self):
        v = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0])
        G = np.empty(36, complex)
        G.real, G.imag = np.repeat(v, 6), np.tile(v, 6)
        g = eager.asarray(G)
        with np.errstate(all="ignore"):
            for name in ("abs", "isnan", "isinf", "isfinite", "conj", "real", "imag", "sqrt"):
                np.testing.assert_allclose(np.asarray(getattr(eager, name)(g)), getattr(np, name)(G), rtol=1e-15, err_msg=name)
            plain = ~np.isnan(G)
            keep = plain & (G != 0)
            for part in ("real", "imag"):
                np.testing.assert_allclose(getattr(np.asarray(eager.log(g)), part)[keep], getattr(np.log(G), part)[keep])
            np.testing.assert_allclose(np.asarray(eager.exp(g)).real[np.isfinite(G)], np.exp(G).real[np.isfinite(G)])

    def test_promotion(self):
        self.assertEqual((z * eager.ones((4,))).dtype, "complex128")
        self.assertEqual((z.astype("complex64") * 2.0).dtype, "complex64")
        self.assertEqual((z.astype("complex64") * 1j).dtype, "complex64")
        self.assertEqual((eager.ones((2,)) * 1j).dtype, "complex64")
        self.assertEqual((eager.ones((2,), dtype="float64") * 1j).dtype, "complex128")
        self.assertEqual((z.astype("complex64") + eager.ones((4,), dtype="float64")).dtype, "complex128")
        self.assertEqual(eager.result_type(eager.complex64, eager.float64), eager.complex128)
        self.assertEqual(eager.result_type(eager.float32, 1j), eager.complex64)
        self.assertTrue(eager.can_cast(eager.float32, eager.complex64))
        self.assertFalse(eager.can_cast(eager.complex64, eager.float32))
        self.assertTrue(eager.isdtype(eager.complex64, "complex floating"))
        self.assertTrue(eager.isdtype(eager.complex64, "numeric"))
        self.assertEqual(eager.finfo(eager.complex64).bits, 32)
        self.assertEqual(eager.complex64, np.complex64)
        self.assertEqual(eager.complex64, "complex64")
        self.assertEqual({eager.complex64: 1}[eager.complex64], 1)
        self.assertEqual(a.astype("complex128").dtype, "complex128")
        with self.assertRaisesRegex(TypeError, "real"):
            z.astype("float32")

    def test_reductions_and_views(self):
        for name, args in [
            ("sum", ()), ("sum", (0,)), ("mean", (1,)), ("prod", ()), ("prod", (1,)), ("cumsum", (1,)), ("cumprod", (1,)), ("var", ()), ("std", (0,)), ("any", ()), ("all", (1,)), ("reshape", ((2, 6),)), ("squeeze", ()), ("ravel", ()), ("flip", (1,)), ("roll", (1, 0)), ("tile", ((2, 1),)), ("repeat", (2, 1)),
            ("diff", ()), ("tril", ()), ("triu", (1,)), ("diagonal", ()), ("count_nonzero", ()), ("broadcast_to", ((2, 3, 4),)), ("swapaxes", (0, 1)), ("rot90", ()), ("trace_", ()),
        ]:  # fmt: skip
            if name == "trace_":
                check(eager.linalg.trace(z[:, :3]), np.trace(Z[:, :3]))
                continue
            with self.subTest(name):
                f = getattr(eager, name)
                got = f(z, axis=args[0]) if name in ("diff", "unstack") and args else f(z, *args)
                check(got, getattr(np, name)(Z, *args), 1e-10, name)
        check(eager.concatenate([z, y], axis=1), np.concatenate([Z, Y], 1))
        check(eager.concatenate([z, a]), np.concatenate([Z, A]))
        check(eager.stack([z, y], axis=2), np.stack([Z, Y], 2))
        check(eager.where(a > 0, z, 0), np.where(A > 0, Z, 0))
        check(eager.where(a > 0, a, z), np.where(A > 0, A, Z))
        check(eager.permute(z, (1, 0)), Z.T)
        check(z.T, Z.T)
        check(z.mT, Z.T)
        check(eager.pad(z, [(1, 0), (0, 2)]), np.pad(Z, [(1, 0), (0, 2)]))
        check(eager.gather(z, [0, 2], axis=1), Z[:, [0, 2]])
        check(z.sum(0), Z.sum(0))
        check(z.reshape(4, 3), Z.reshape(4, 3))
        for part, want in zip(eager.split(z, 2, axis=1), np.split(Z, 2, 1)):
            check(part, want)

    def test_index(self):
        check(z[0], Z[0])
        check(z[..., 1], Z[..., 1])
        check(z[:, ::-2], Z[:, ::-2])
        check(z[A > 0], Z[A > 0])
        check(z[[0, 1], [1, 2]], Z[[0, 1], [1, 2]])
        w, W = z.copy(), Z.copy()
        w[1] = 3 - 1j
        W[1] = 3 - 1j
        w[:, 0] = a[:, 0]
        W[:, 0] = A[:, 0]
        check(w, W)
        check(z, Z)
        check(z.at[0, 1].set(5j), np.where((np.arange(3)[:, None] == 0) & (np.arange(4) == 1), 5j, Z))
        check(z.at[0].add(1j)[0], Z[0] + 1j)
        self.assertEqual(complex(z[0, 0]), Z[0, 0])
        self.assertEqual(z[0, 0].item(), Z[0, 0])
        self.assertEqual(z.tolist(), Z.tolist())
        self.assertEqual(len(z), 3)
        self.assertEqual(complex(eager.asarray(2.0)), 2 + 0j)

    def test_products(self):
        check(z @ y.T, Z @ Y.T)
        check(z @ a.T, Z @ A.T)
        check(a @ y.T, A @ Y.T)
        check(eager.vecdot(z, y), np.vecdot(Z, Y))
        check(eager.vdot(z, y), np.vdot(Z, Y))
        check(eager.tensordot(z, y, axes=([1], [1])), np.tensordot(Z, Y, axes=([1], [1])))
        check(eager.outer(z[0], y[1]), np.outer(Z[0], Y[1]))
        check(eager.einsum("ij,ij->i", z, y), np.einsum("ij,ij->i", Z, Y))
        check(eager.kron(z, y), np.kron(Z, Y))
        check(eager.cov(z), np.cov(Z))

    def test_making(self):
        self.assertEqual(eager.zeros((2,), dtype="complex64").dtype, "complex64")
        check(eager.ones((2,), dtype=eager.complex128), np.ones(2, complex))
        check(eager.full((2,), 1 + 2j), np.full(2, 1 + 2j))
        self.assertEqual(eager.full((2,), 1j).dtype, "complex64")
        check(eager.asarray([1, 2j]), np.array([1, 2j]))
        self.assertEqual(eager.asarray([1j]).dtype, "complex64")
        self.assertEqual(eager.asarray(np.complex128(1j)).dtype, "complex128")
        check(eager.asarray([1.0, 2.0], dtype="complex64"), np.array([1, 2]))
        check(eager.eye(2, dtype="complex64"), np.eye(2))
        check(eager.zeros_like(z), np.zeros_like(Z))
        check(eager.linspace(0, 1j, 5), np.linspace(0, 1j, 5), 1e-6)
        check(eager.arange(3, dtype="complex64"), np.arange(3))
        check(eager.complex(a, a * 2), A + 2j * A)
        check(eager.view_as_complex(eager.stack([a, a], axis=-1)), A + 1j * A)
        check(eager.view_as_real(z), np.stack([Z.real, Z.imag], -1))

    def test_interchange(self):
        import pickle

        self.assertEqual(z.numpy().dtype, np.complex128)
        check(np.asarray(z), Z)
        check(np.from_dlpack(z), Z)
        check(pickle.loads(pickle.dumps(z)), Z)
        check(np.add(z, Y), Z + Y)
        self.assertIsInstance(np.exp(z), eager.ComplexTensor)
        check(np.sum(z, axis=0), Z.sum(0))
        self.assertIn("complex128", repr(z))
        self.assertIs(z.__array_namespace__(), eager.array_api)
        torch = needs(self, "torch")

        check(torch.from_dlpack(z).numpy(), Z)


class Transforms(Seeded):
    def test_grad(self):
        """d/dre + i d/dim, as torch has it."""
        torch = needs(self, "torch")

        for name, f in [
            ("abs2", lambda v, m: (m.abs(v) ** 2).sum()), ("exp", lambda v, m: m.real(m.exp(v) * v).sum()), ("div", lambda v, m: m.imag(v / (v * v + 1)).sum()), ("log", lambda v, m: m.abs(m.log(v)).sum()),
            ("sqrt", lambda v, m: m.real(m.sqrt(v)).sum()), ("sin", lambda v, m: m.abs(m.sin(v) + m.cosh(v)).sum()), ("matmul", lambda v, m: m.abs(m.matmul(v, v.T)).sum()), ("angle", lambda v, m: m.angle(v).sum()), ("tanh", lambda v, m: m.abs(m.tanh(v)).sum()),
            ("prod", lambda v, m: m.abs(m.prod(v, 1)).sum()), ("asin", lambda v, m: m.real(m.asin(v) + m.atan(v)).sum()), ("pow", lambda v, m: m.abs(v**3).sum()),
        ]:  # fmt: skip
            with self.subTest(name):
                t = torch.tensor(Z, requires_grad=True)
                f(t, torch).backward()
                check(eager.grad(lambda v, f=f: f(v, eager))(z), t.grad.numpy(), 1e-8, name)

    def test_backward(self):
        w = eager.asarray(Z).requires_grad_()
        eager.sum(eager.abs(w * w) ** 2).backward()
        check(w.grad, 4 * np.abs(Z) ** 2 * Z, 1e-9)

    def test_vmap_compile_loops(self):
        check(eager.vmap(lambda v: v * v.sum())(z), Z * Z.sum(1, keepdims=True))
        check(eager.vmap(lambda v: v @ y.T, in_axes=0)(z), Z @ Y.T)
        f = eager.compile(lambda u, v: eager.exp(u) * v)
        for _ in range(2):
            check(f(z, y), np.exp(Z) * Y)
        self.assertEqual(f.stats.misses, 1)
        check(eager.fori_loop(0, 3, lambda i, s: s * (1 + 1j), z), Z * (1 + 1j) ** 3)
        check(eager.cond(eager.asarray(True), lambda v: v * 2, lambda v: v, z), 2 * Z)
        last, all_ = eager.scan(lambda c, x: (c + x, c * x), z[0], y)
        check(last, Z[0] + Y.sum(0))
        _, t = eager.jvp(lambda v: v * v, (z,), (y,))
        check(t, 2 * Z * Y)
        check(eager.tree_map(lambda p: p * 2, z), 2 * Z)


class Layouts(Seeded):
    def test_mesh(self):
        mesh = eager.DeviceMesh("complex parts", (2,), ("x",))
        s = z[:2].shard(mesh, ["x", None])
        self.assertTrue(s.is_sharded)
        self.assertEqual(tuple(s.local_shape), (1, *Z.shape[1:]))
        check((s * 2).sum(), (Z[:2] * 2).sum())
        check(s.gather(), Z[:2])
        check(eager.reshard(s, mesh, [None, None]), Z[:2])
        for k, part in s.realize().local_parts():
            check(part, Z[k : k + 1])
        f8 = eager.ones((4, 2)).astype("float8_e5m2").shard(mesh, ["x", None])
        self.assertEqual((f8.dtype, tuple(f8.local_shape)), ("float8_e5m2", (2, 2)))

    def test_methods_of_tensors(self):
        """What a tensor can do and these cannot is what they have no meaning for."""
        real, f8 = eager.ones((2, 2)), eager.ones((2, 2)).astype("float8_e5m2")
        names = [n for n in dir(real) if not n.startswith("_")]
        lacks = {n for n in names if not hasattr(z, n)}
        self.assertEqual(lacks, {"backward", "from_callback", "storage"})
        self.assertEqual((z.numel(), z.dim()), (Z.size, Z.ndim))
        check(z.clone().detach().cpu(), Z)
        for name in ("clone", "detach", "cpu", "ravel", "numel", "half", "float", "is_traced", "masked_fill", "fliplr", "at", "shard"):
            self.assertTrue(hasattr(f8, name), name)
        self.assertEqual(f8.transpose(0, 1).clone().ravel().dtype, "float8_e5m2")
        self.assertEqual(f8.half().dtype, "float16")
        check(f8.at[0].set(2.0).float(), np.array([[2, 2], [1, 1.0]]))
        self.assertEqual(eager.fliplr(f8).dtype, "float8_e5m2")
        with self.assertRaisesRegex(TypeError, "imaginary"):
            z.float()


class Stored(Seeded):
    def test_float8(self):
        ml_dtypes = needs(self, "ml_dtypes")

        x = np.concatenate(
            [
                R.standard_normal(3000) * 10.0 ** R.integers(-5, 6, 3000),
                [
                    0.0,
                    -0.0,
                    np.inf,
                    -np.inf,
                    np.nan,
                    448,
                    449,
                    464,
                    465,
                    480,
                    57344,
                    61439,
                    61440,
                    70000,
                    2.0**-9,
                    2.0**-10,
                    1.5 * 2.0**-10,
                    2.0**-16,
                    2.0**-17,
                ],
            ]
        ).astype(np.float32)
        for name in ("float8_e4m3fn", "float8_e5m2"):
            with self.subTest(name):
                dtype = getattr(ml_dtypes, name)
                with np.errstate(all="ignore"):
                    want = x.astype(dtype)
                got = eager.asarray(x).astype(name)
                np.testing.assert_array_equal(got.numpy().astype(np.float32), want.astype(np.float32))
                np.testing.assert_array_equal(np.asarray(got.astype("float32")), want.astype(np.float32))
                bits = np.arange(256, dtype=np.uint8).view(dtype)
                np.testing.assert_array_equal(np.asarray(eager.asarray(bits).astype("float32")), bits.astype(np.float32))
                self.assertEqual(got.dtype, name)
                self.assertEqual(got[:6].reshape(2, 3).shape, (2, 3))
                self.assertEqual(eager.concatenate([got, got]).dtype, name)
                with self.assertRaisesRegex(TypeError, "cast"):
                    got + 1
                with self.assertRaisesRegex(TypeError, "cast"):
                    eager.sin(got)
                check(eager.vmap(lambda v: v.astype("float32") * 2)(got[:4]), want[:4].astype(np.float32) * 2, 1e-6)
                check(eager.compile(lambda v: v.astype("float32"))(got[:4]), want[:4].astype(np.float32), 1e-6)

    def test_int4(self):
        x = np.arange(-20, 20)
        got = eager.asarray(x).astype("int4")
        np.testing.assert_array_equal(np.asarray(got.astype("int32")), (x + 8) % 16 - 8)
        np.testing.assert_array_equal(np.asarray(eager.asarray(x).astype(eager.uint4).astype("int32")), x % 16)
        self.assertEqual(got[3].item(), (x[3] + 8) % 16 - 8)


class Nans(Seeded):
    def test_debug_nans(self):
        x = eager.asarray(np.array([1.0, -1.0], np.float32))
        with eager.debug_nans():
            eager.sqrt(eager.abs(x))
            with self.assertRaisesRegex(FloatingPointError, r"test_complex.py:\d+.*sqrt.*NaN"):
                eager.sqrt(x)
            with self.assertRaisesRegex(FloatingPointError, "div"):
                (x - x) / (x - x)
        self.assertTrue(np.isnan(eager.sqrt(x).numpy()).any())
        with eager.debug_nans(infs=True), self.assertRaisesRegex(FloatingPointError, "infinity"):
            x / 0.0

    def test_debug_nans_of_derivatives_and_compiled(self):
        x = eager.asarray(np.array([0.0, 1.0], np.float32))
        with eager.debug_nans():
            with self.assertRaisesRegex(FloatingPointError, r"test_complex.py:\d+.*NaN"):
                eager.compile(lambda v: eager.log(v - 2))(x)
            with self.assertRaisesRegex(FloatingPointError, r"test_complex.py:\d+.*derivative.*NaN"):
                eager.grad(lambda v: eager.sum(eager.where(v > 0, eager.sqrt(v), 0.0)))(x)
            self.assertEqual(eager.grad(lambda v: eager.sum(v * v))(x).tolist(), [0, 2])

    def test_print_options(self):
        with eager.printoptions(precision=2):
            self.assertIn("0.33", repr(eager.asarray(1 / 3)))
            self.assertNotIn("0.333", repr(eager.asarray(1 / 3)))


if __name__ == "__main__":
    unittest.main()
