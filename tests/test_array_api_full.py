"""The Python array API 2024.12, function by function: signatures, dtypes, shapes and values as
array_api_strict and NumPy have them, and the special cases that the standard lists.

What array_api_strict refuses (a dtype that a function need not take) is left out; all else must agree."""

import inspect
import itertools
import math
import operator
import unittest
import warnings

import api_signatures as api
import numpy as np

import eager
import eager.array_api as xp

try:
    import array_api_strict as strict
except ImportError:
    strict = None

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS, COMPLEX = ("float32", "float64"), ("complex64", "complex128")
DTYPES = ("bool", *INTS, *FLOATS, *COMPLEX)
SHAPES = ((), (0,), (1,), (3,), (2, 3), (2, 0, 3), (3, 3), (2, 3, 3))
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-20, 1e20, math.inf, -math.inf, math.nan)
WHOLE = (0, 1, 2, 3, 7, 100, 127)


def data(dtype, shape, seed=0, low=None):
    """An array of the dtype with special values among its elements; without NaN and infinities if low."""
    r, n = np.random.default_rng((seed, len(shape), DTYPES.index(dtype))), math.prod(shape)
    if dtype == "bool":
        return r.random(shape) < 0.5
    if dtype in INTS:
        info = np.iinfo(dtype)
        few = [*WHOLE, info.max, info.min] + ([-1, -3, -100] if info.min else [])
        few = [v for v in few if -5 <= v <= 9] if low else few
        return np.array(r.choice(np.array(few, object), n).tolist(), dtype).reshape(shape)

    def part():
        a = r.standard_normal(n) * 3
        if not low:
            at = r.random(n) < 0.4
            a[at] = r.choice(SPECIAL, int(at.sum()))
        return a

    with np.errstate(all="ignore"):
        if dtype not in COMPLEX:
            return part().astype(dtype).reshape(shape)
        out = np.empty(n, dtype)
        out.real, out.imag = part(), part()
        return out.reshape(shape)


def views(a):
    """The array as a tensor: as it is, and as a view with other strides."""
    yield eager.asarray(a)
    if a.ndim and a.size:
        yield eager.asarray(np.repeat(a, 2, axis=-1))[..., ::2]
        yield eager.permute_dims(eager.asarray(np.ascontiguousarray(a.T)), tuple(reversed(range(a.ndim))))


def plain(x):
    """Tensors and arrays of the strict library as NumPy's; lists and tuples of them too."""
    if isinstance(x, (tuple, list)):
        return [plain(i) for i in x]
    return np.asarray(x._array if type(x).__module__.startswith("array_api_strict") else x)


def same(test, got, want, what, rtol=None, exact_zero=True):
    """dtype, shape and values; floats within rtol, with the signs of infinities and NaN where NaN is."""
    if isinstance(want, list):
        test.assertEqual(len(got), len(want), what)
        for g, w in zip(got, want):
            same(test, g, w, what, rtol, exact_zero)
        return
    test.assertEqual(got.dtype.name, want.dtype.name, what)
    test.assertEqual(got.shape, want.shape, what)
    if want.dtype.kind not in "fc" or rtol == 0:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    eps = float(np.finfo(want.dtype).eps)
    rtol = 64 * eps if rtol is None else rtol * eps
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=float(np.finfo(want.dtype).tiny) * 1e4, err_msg=what)


def expected(f, *args):
    """What the strict library gives; None if it refuses."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return plain(f(strict, *args))
        except (TypeError, ValueError, IndexError, np.linalg.LinAlgError):
            return None


def to_strict(a):
    return strict.asarray(a, copy=True)


@unittest.skipIf(strict is None, "needs array_api_strict")
class Case(unittest.TestCase):
    pass


# ---- signatures ----
class Signatures(unittest.TestCase):
    def check(self, owner, line):
        name = line.split("(")[0]
        space = {}
        exec(f"def f{line[len(name) :]}: pass", space)
        want = inspect.signature(space["f"])
        self.assertTrue(hasattr(owner, name), name)
        got = inspect.signature(getattr(owner, name))
        params = list(got.parameters.values())
        for i, p in enumerate(want.parameters.values()):
            if p.kind is p.POSITIONAL_ONLY:
                self.assertGreater(len(params), i, f"{line}: {got}")
                q = params[i]
            elif p.kind is p.KEYWORD_ONLY:
                q = got.parameters.get(p.name)
                self.assertTrue(q is not None and q.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD), f"{line}: {got}")
            else:
                self.assertTrue(i < len(params) and params[i].kind is p.kind, f"{line}: {got}")
                q = params[i]
                self.assertTrue(q.name == p.name or p.kind is p.VAR_POSITIONAL, f"{line}: {got}")
            if p.default is not p.empty:
                self.assertEqual(q.default, p.default, f"{line}: {got}")

    def test_all(self):
        x, z = eager.ones((3, 3)), eager.ones((3, 3), dtype="complex64")
        whole = [(xp, api.functions()), (xp.linalg, api.lines(api.LINALG)), (xp.fft, api.lines(api.FFT)), (x, api.methods()), (z, api.complex_methods())]
        for owner, lines in [*whole, (xp.__array_namespace_info__(), api.lines(api.INFO))]:
            for line in lines:
                with self.subTest(line, owner=type(owner).__name__):
                    self.check(owner, line)
        for name in api.ATTRIBUTES:
            self.assertTrue(hasattr(x, name) and hasattr(z, name), name)
        for name in ("e", "inf", "nan", "newaxis", "pi", *DTYPES):
            self.assertTrue(hasattr(xp, name), name)


# ---- the namespace ----
class Namespace(Case):
    def test_defaults(self):
        """argmax and argmin of all elements, as in NumPy; those of `eager` and of tensors look along the last
        axis."""
        a = np.array([[3, 1, 9], [0, 7, 2]])
        x = eager.asarray(a)
        for name in ("argmax", "argmin"):
            whole, last = getattr(a, name)(), getattr(a, name)(axis=-1)
            for f, want in ((getattr(xp, name), whole), (getattr(np, name), whole), (getattr(eager, name), last)):
                np.testing.assert_array_equal(plain(f(x)), want)
            np.testing.assert_array_equal(plain(getattr(x, name)()), last)
            np.testing.assert_array_equal(plain(getattr(xp, name)(x, axis=0, keepdims=True)), getattr(a, name)(axis=0, keepdims=True))

    def test_all_of_eager(self):
        self.assertIs(eager.ones((2,)).__array_namespace__(), xp)
        other = {n for n in eager.__all__ if getattr(xp, n) is not getattr(eager, n)}
        self.assertEqual(other, {"argmax", "argmin"})
        self.assertIs(xp.nn, eager.nn)
        with self.assertRaisesRegex(AttributeError, "no attribute 'absent'"):
            xp.absent  # noqa: B018


# ---- element by element ----
LOOSE = {"tan": 1024, "tanh": 1024, "expm1": 1024, "log1p": 1024, "pow": 4096, "acosh": 1024, "asin": 1024, "acos": 1024, "asinh": 1024, "atanh": 1024, "atan": 1024}


class Elements(Case):
    def test_unary(self):
        for name, dtype, shape in itertools.product(api.UNARY, DTYPES, ((), (0,), (40,), (2, 3))):
            a = data(dtype, shape, low=dtype in COMPLEX)
            want = expected(lambda xp, x, n=name: getattr(xp, n)(x), to_strict(a))
            if want is None:
                continue
            with self.subTest(name, dtype=dtype, shape=shape):
                for x in views(a):
                    same(self, plain(getattr(xp, name)(x)), want, name, LOOSE.get(name))

    def test_binary(self):
        pairs = [(d, d) for d in DTYPES] + [p for p in itertools.permutations(DTYPES, 2)]
        for name, (d, e) in itertools.product(api.BINARY, pairs):
            a, b = data(d, (3, 4), 1), data(e, (2, 1, 4), 2)
            if name in ("floor_divide", "remainder", "bitwise_left_shift", "bitwise_right_shift", "pow") and e not in FLOATS + COMPLEX:
                b = np.abs(data(e, (2, 1, 4), 2, low=True)) + (name in ("floor_divide", "remainder")) if e != "bool" else b
            if d in COMPLEX or e in COMPLEX:
                a, b = data(d, (3, 4), 1, low=True), data(e, (2, 1, 4), 2, low=True)
            want = expected(lambda xp, x, y, n=name: getattr(xp, n)(x, y), to_strict(a), to_strict(b))
            if want is None:
                continue
            if name == "floor_divide" and want.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    want = np.where(np.isinf(a) | np.isinf(b), np.divide(a, b, dtype=want.dtype), want)  # where NumPy has NaN and -1
            with self.subTest(name, dtypes=(d, e)):
                same(self, plain(getattr(xp, name)(eager.asarray(a), eager.asarray(b))), want, name, LOOSE.get(name))

    SCALARS = {"bool": (True, False), "int": (2, 0, 3), "float": (2.5, 1, math.inf, -0.0), "complex": (1 + 2j, 3.5, 2)}

    def test_scalars(self):
        """Python's numbers on either side, as functions, operators and in place."""
        names = {"bool": "bool", **dict.fromkeys(INTS, "int"), **dict.fromkeys(FLOATS, "float"), **dict.fromkeys(COMPLEX, "complex")}
        for name, dtype in itertools.product(api.BINARY, DTYPES):
            for s in self.SCALARS[names[dtype]]:
                a = data(dtype, (5,), 3, low=True)
                if dtype in INTS and name in ("floor_divide", "remainder", "bitwise_left_shift", "bitwise_right_shift", "pow"):
                    a, s = np.abs(a) + 1, s or 1
                for f in (lambda xp, x, n=name, s=s: getattr(xp, n)(x, s), lambda xp, x, n=name, s=s: getattr(xp, n)(s, x)):
                    want = expected(f, to_strict(a))
                    if want is None or name == "floor_divide" and want.dtype.kind == "f" and not math.isfinite(s):
                        continue
                    with self.subTest(name, dtype=dtype, scalar=s):
                        same(self, plain(f(xp, eager.asarray(a))), want, name, LOOSE.get(name))

    def test_operators(self):
        for name, dtype in itertools.product(api.OPERATORS, DTYPES):
            op, shape = getattr(operator, f"__{name}__"), (3, 3) if name == "matmul" else (4,)
            a, b = data(dtype, shape, 4, low=True), data(dtype, shape, 5, low=True)
            if dtype in INTS:
                b = np.abs(b) + 1
            want = expected(lambda xp, x, y, op=op: op(x, y), to_strict(a), to_strict(b))
            if want is None:
                continue
            with self.subTest(name, dtype=dtype):
                x, y = eager.asarray(a), eager.asarray(b)
                same(self, plain(op(x, y)), want, name, 4096)
                if name in api.REFLECTED:
                    same(self, plain(getattr(y, f"__r{name}__")(x)), want, name, 4096)
                    z = getattr(operator, f"__i{name}__")(eager.asarray(x, copy=True), y)
                    same(self, plain(z), want, name, 4096)
                    same(self, plain(x), a, name)


# ---- everything else ----
# Expressions of xp, x (any dtype and shape) and y (another tensor of that dtype and shape).
ANY_SHAPE = """
xp.asarray(x)
xp.asarray(x, copy=True)
xp.astype(x, xp.float64)
xp.astype(xp.astype(x != x, x.dtype), xp.int32)
xp.astype(x, xp.bool)
xp.astype(x, xp.complex128)
xp.zeros_like(x)
xp.ones_like(x)
xp.full_like(x, 3)
xp.full_like(x, True, dtype=xp.bool)
xp.empty_like(x).shape
xp.reshape(x, (-1,)) if 0 not in x.shape else xp.reshape(x, (0,))
xp.reshape(x, x.shape + (1,))
xp.reshape(x, shape=x.shape, copy=True)
xp.expand_dims(x, axis=0)
xp.expand_dims(x, axis=-1)
xp.expand_dims(x, axis=-x.ndim - 1)
xp.permute_dims(x, tuple(reversed(range(x.ndim))))
xp.flip(x)
xp.roll(x, 2)
xp.roll(x, -7)
xp.broadcast_to(x, (2, *x.shape))
xp.broadcast_arrays(x, y)
xp.concat([x, y], axis=None)
xp.stack([x, y])
xp.stack([x, y], axis=-1)
xp.tile(x, (2, 1, 3))
xp.tile(x, (2,))
xp.repeat(x, 3)
xp.repeat(x, 0)
xp.where(x == y, x, y)
xp.where(x == x, y, x[...])
xp.where(xp.asarray(True), x, y)
xp.count_nonzero(x)
xp.count_nonzero(x, keepdims=True)
xp.all(x)
xp.any(x)
xp.all(x, keepdims=True)
xp.sum(x)
xp.sum(x, keepdims=True)
xp.prod(x)
xp.sum(x, dtype=xp.complex128)
xp.mean(x)
xp.var(x)
xp.std(x, correction=1.0)
xp.max(x)
xp.min(x, keepdims=True)
xp.argmax(x)
xp.argmin(x, keepdims=True)
xp.argmax(x, axis=None)
xp.unique_values(x)
xp.unique_counts(x)
xp.unique_inverse(x)
xp.clip(x, 1, 3)
xp.clip(x, max=2)
xp.clip(x, y)
xp.clip(x)
x[...]
x[None]
x[..., None]
x[()]
x.T if x.ndim == 2 else x
xp.result_type(x, y)
xp.can_cast(x, x.dtype)
xp.isdtype(x.dtype, 'numeric')
xp.linalg.vector_norm(x)
xp.linalg.vector_norm(x, ord=1)
xp.linalg.vector_norm(x, ord=float('inf'), keepdims=True)
xp.linalg.vector_norm(x, ord=3)
xp.linalg.vector_norm(x, ord=0)
x.size
x.ndim
x.shape
"""
WITH_AXES = """
xp.concat([x, y])
xp.concat((x, y), axis=-1)
xp.flip(x, axis=0)
xp.flip(x, axis=(0,))
xp.flip(x, axis=-1)
xp.roll(x, 1, axis=0)
xp.roll(x, (1, -2), axis=(0, -1))
xp.repeat(x, 2, axis=0)
xp.repeat(x, xp.asarray(2), axis=-1)
xp.moveaxis(x, 0, -1)
xp.moveaxis(x, (0,), (-1,))
xp.unstack(x)
xp.unstack(x, axis=-1)
xp.sum(x, axis=0)
xp.sum(x, axis=-1, keepdims=True)
xp.sum(x, axis=())
xp.sum(x, axis=tuple(range(x.ndim)))
xp.prod(x, axis=0)
xp.prod(x, axis=-1, dtype=xp.complex128)
xp.mean(x, axis=0)
xp.var(x, axis=-1, correction=1)
xp.std(x, axis=0, keepdims=True)
xp.max(x, axis=0)
xp.min(x, axis=(0, -1)) if x.ndim > 1 else xp.min(x, axis=0)
xp.all(x, axis=0)
xp.any(x, axis=-1, keepdims=True)
xp.count_nonzero(x, axis=0)
xp.count_nonzero(x, axis=(0,), keepdims=True)
xp.argmax(x, axis=0)
xp.argmin(x, axis=-1, keepdims=True)
xp.sort(x)
xp.sort(x, axis=0)
xp.sort(x, descending=True)
xp.argsort(x)
xp.argsort(x, axis=0, descending=True)
xp.argsort(x, stable=False).shape
xp.cumulative_sum(x, axis=0)
xp.cumulative_sum(x, axis=-1, include_initial=True)
xp.cumulative_sum(x, axis=0, dtype=xp.complex128)
xp.cumulative_prod(x, axis=0)
xp.cumulative_prod(x, axis=-1, include_initial=True)
xp.cumulative_sum(x) if x.ndim == 1 else x
xp.cumulative_prod(x, include_initial=True) if x.ndim == 1 else x
xp.diff(x)
xp.diff(x, axis=0, n=2)
xp.diff(x, axis=-1, prepend=y)
xp.diff(x, axis=0, prepend=y, append=x)
xp.diff(x, n=0)
xp.nonzero(x)
xp.take(x, xp.asarray([0, 0]), axis=0) if 0 not in x.shape else x
xp.take(x, xp.asarray([-1, 0]), axis=-1) if 0 not in x.shape else x
xp.take(x, xp.asarray([0])) if x.ndim == 1 and x.size else x
xp.take(x, xp.asarray([], dtype=xp.int64), axis=0)
xp.take_along_axis(x, xp.argsort(x))
xp.take_along_axis(x, xp.argsort(x, axis=0), axis=0)
xp.searchsorted(xp.sort(x), y) if x.ndim == 1 else x
xp.searchsorted(xp.sort(x), y, side='right') if x.ndim == 1 else x
xp.searchsorted(x, y, sorter=xp.argsort(x)) if x.ndim == 1 else x
xp.vecdot(x, y)
xp.vecdot(x, y, axis=0 - x.ndim)
xp.meshgrid(x, y) if x.ndim == 1 else x
xp.meshgrid(x, y, indexing='ij') if x.ndim == 1 else x
xp.tensordot(x, y, axes=0)
xp.tensordot(x, y, axes=((0,), (0,)))
xp.tensordot(x, y, axes=((), ()))
xp.linalg.outer(x, y) if x.ndim == 1 else x
xp.linalg.cross(x, y) if x.shape[-1] == 3 else x
xp.linalg.vector_norm(x, axis=0)
xp.linalg.vector_norm(x, axis=-1, ord=-1, keepdims=True)
xp.linalg.vector_norm(x, axis=0, ord=-float('inf')) if 0 not in x.shape else x
xp.fft.fft(x) if x.shape[-1] else x
xp.fft.ifft(x, n=5)
xp.fft.rfft(x) if x.shape[-1] else x
xp.fft.irfft(x, n=4) if x.shape[-1] else x
xp.fft.hfft(x, n=4)
xp.fft.ihfft(x, n=4)
xp.fft.fft(x, axis=0, norm='ortho') if x.shape[0] else x
xp.fft.fftn(x) if 0 not in x.shape else x
xp.fft.ifftn(x, s=[2], axes=[0], norm='forward')
xp.fft.rfftn(x) if 0 not in x.shape else x
xp.fft.irfftn(x, s=(4,), axes=(0,)) if 0 not in x.shape else x
xp.fft.fftshift(x)
xp.fft.ifftshift(x, axes=(0,))
x[0] if x.shape[0] else x
x[-1:]
x[::-1]
x[5:2]
x[..., 0] if x.shape[-1] else x
x[:, None] if x.ndim else x
x[xp.asarray(0)] if x.shape[0] else x
x[x == x]
x[x != x]
x[xp.asarray([0, -1])] if x.shape[0] else x
x[xp.asarray(True)]
x[xp.asarray(False)]
set_at(xp, x, 0, y[0]) if x.shape[0] else x
set_at(xp, x, slice(None, None, 2), y[::2])
set_at(xp, x, ..., y)
set_at(xp, x, x == x, y[(0,) * y.ndim]) if 0 not in y.shape else x
set_at(xp, x, x == y, 1)
set_at(xp, x, x == x, 1)
"""
MATRICES = """
x.mT
xp.matrix_transpose(x)
x.T if x.ndim == 2 else x.mT
xp.tril(x)
xp.triu(x, k=1)
xp.tril(x, k=-1)
xp.triu(x, k=-10)
xp.matmul(x, y.mT)
x @ y.mT
xp.matmul(x[..., 0, :], y.mT)
xp.matmul(x, y[0, :]) if x.ndim == 2 else x
xp.tensordot(x, y.mT, axes=1) if x.ndim == 2 else x
xp.tensordot(x, y) if x.ndim == 2 else x
xp.linalg.matmul(x, y.mT)
xp.linalg.diagonal(x)
xp.linalg.diagonal(x, offset=1)
xp.linalg.diagonal(x, offset=-100)
xp.linalg.trace(x)
xp.linalg.trace(x, offset=-1)
xp.linalg.trace(x, dtype=xp.complex128)
xp.linalg.matrix_norm(x)
xp.linalg.matrix_norm(x, ord=1, keepdims=True)
xp.linalg.matrix_norm(x, ord=-float('inf')) if 0 not in x.shape else x
xp.linalg.matrix_norm(x, ord='nuc')
xp.linalg.matrix_norm(x, ord=-2) if 0 not in x.shape else x
xp.linalg.matrix_rank(x)
xp.linalg.matrix_rank(x, rtol=0.1)
xp.linalg.matrix_rank(x, rtol=xp.abs(x[..., 0, 0])) if x.dtype in (xp.float32, xp.float64) and 0 not in x.shape else x
xp.linalg.pinv(x)
xp.linalg.pinv(x, rtol=1e-3)
xp.linalg.svdvals(x)
xp.linalg.svd(x).S
xp.linalg.svd(x, full_matrices=False).S
[a.shape for a in xp.linalg.svd(x)]
[a.dtype for a in xp.linalg.svd(x)]
[a.shape for a in xp.linalg.svd(x, full_matrices=False)]
[a.shape for a in xp.linalg.qr(x)]
[a.dtype for a in xp.linalg.qr(x, mode='complete')]
[a.shape for a in xp.linalg.qr(x, mode='complete')]
xp.linalg.matrix_transpose(x)
"""
SQUARE = """
xp.linalg.det(x)
xp.linalg.slogdet(x)
xp.linalg.inv(pos(xp, x))
xp.linalg.solve(pos(xp, x), y)
xp.linalg.solve(pos(xp, x), y[..., 0]) if x.ndim == 2 else x
xp.linalg.solve(pos(xp, x), y[..., :2])
xp.linalg.cholesky(pos(xp, x))
xp.linalg.cholesky(pos(xp, x), upper=True)
xp.linalg.eigvalsh(pos(xp, x))
xp.linalg.eigh(pos(xp, x)).eigenvalues
[a.dtype for a in xp.linalg.eigh(pos(xp, x))]
xp.linalg.matrix_power(x, 0)
xp.linalg.matrix_power(x, 3)
xp.linalg.matrix_power(pos(xp, x), -2)
"""
ROUGH = ("fft", "linalg", "var", "std", "mean", "sum", "prod", "tensordot", "matmul", "@", "vecdot", "diff")


def set_at(xp, x, key, value):
    out = xp.asarray(x, copy=True)
    out[key] = value
    return out


def pos(xp, x):
    """A positive definite matrix from a square one."""
    return x @ (xp.conj(x).mT if xp.isdtype(x.dtype, "complex floating") else x.mT) + xp.astype(xp.eye(x.shape[-1]), x.dtype)


def readable(v):
    """dtypes by their names, numbers and shapes as they are, arrays as NumPy's."""
    if isinstance(v, (list, tuple)) and not hasattr(v, "dtype"):
        return [readable(i) for i in v]
    if isinstance(v, (bool, int, float, str)):
        return np.asarray(v)
    if not hasattr(v, "shape"):
        return np.asarray(np.dtype(getattr(v, "_np_dtype", None) or v.numpy_name).name)
    return plain(v)


class Rest(Case):
    def walk(self, text, shapes, dtypes=DTYPES):
        for line in api.lines(text):
            f = eval(f"lambda xp, x, y: {line}", globals())
            low = any(w in line for w in ROUGH)
            for dtype, shape in itertools.product(dtypes, shapes):
                a, b = data(dtype, shape, 6, low), data(dtype, shape, 7, low)
                want = expected(lambda xp, *args, f=f: readable(f(xp, *args)), to_strict(a), to_strict(b))
                if want is None:
                    continue
                with self.subTest(line, dtype=dtype, shape=shape):
                    for x in views(a):
                        got = readable(f(xp, x, eager.asarray(b)))
                        same(self, got, want, line, 3e4 if low else None)

    def test_any_shape(self):
        self.walk(ANY_SHAPE, SHAPES)

    def test_axes(self):
        self.walk(WITH_AXES, SHAPES[1:])

    def test_matrices(self):
        self.walk(MATRICES, ((2, 3), (3, 2), (2, 0), (2, 3, 3), (0, 2, 2), (1, 1)))

    def test_square(self):
        self.walk(SQUARE, ((3, 3), (0, 0), (2, 2, 2), (0, 2, 2)), FLOATS + COMPLEX)


# ---- special cases ----
COMPLEX_CASES = """
acos: z 0 = pi/2 -0; z nan = pi/2 nan; f inf = pi/2 -inf; n nan = nan nan; -inf p = pi -inf; inf p = 0 -inf; -inf inf = 3pi/4 -inf; inf inf = pi/4 -inf; i nan = nan ~inf; nan f = nan nan; nan inf = nan -inf; nan nan = nan nan
acosh: z 0 = 0 pi/2; f inf = inf pi/2; n nan = nan nan; 0 nan = nan ~pi/2; -inf p = inf pi; inf p = inf 0; -inf inf = inf 3pi/4; inf inf = inf pi/4; i nan = inf nan; nan f = nan nan; nan inf = inf nan; nan nan = nan nan
asinh: 0 0 = 0 0; p inf = inf pi/2; f nan = nan nan; inf p = inf 0; inf inf = inf pi/4; nan 0 = nan 0; nan n = nan nan; nan inf = ~inf nan; nan nan = nan nan
atanh: 0 0 = 0 0; 0 nan = 0 nan; 1 0 = inf 0; p inf = 0 pi/2; n nan = nan nan; inf p = 0 pi/2; inf inf = 0 pi/2; inf nan = 0 nan; nan f = nan nan; nan inf = ~0 pi/2; nan nan = nan nan
cosh: 0 0 = 1 0; 0 inf = nan ~0; 0 nan = nan ~0; n inf = nan nan; n nan = nan nan; inf 0 = inf 0; inf inf = inf nan; inf nan = inf nan; nan z = nan ~0; nan n = nan nan; nan nan = nan nan
sinh: 0 0 = 0 0; 0 inf = ~0 nan; 0 nan = ~0 nan; p inf = nan nan; p nan = nan nan; inf 0 = inf 0; inf inf = inf nan; inf nan = inf nan; nan 0 = nan 0; nan n = nan nan; nan nan = nan nan
tanh: 0 0 = 0 0; n inf = nan nan; 0 inf = 0 nan; n nan = nan nan; 0 nan = 0 nan; inf p = 1 ~0; inf inf = 1 ~0; inf nan = 1 ~0; nan 0 = nan 0; nan n = nan nan; nan nan = nan nan
exp: z 0 = 1 0; f inf = nan nan; f nan = nan nan; inf 0 = inf 0; -inf inf = 0 0; inf inf = inf nan; -inf nan = 0 0; inf nan = inf nan; nan 0 = nan 0; nan n = nan nan; nan inf = nan nan; nan nan = nan nan
expm1: z 0 = 0 0; f inf = nan nan; f nan = nan nan; inf 0 = inf 0; -inf inf = -1 0; inf inf = inf nan; -inf nan = -1 0; inf nan = inf nan; nan 0 = nan 0; nan n = nan nan; nan inf = nan nan; nan nan = nan nan
log: -0 0 = -inf pi; 0 0 = -inf 0; f inf = inf pi/2; f nan = nan nan; -inf p = inf pi; inf p = inf 0; -inf inf = inf 3pi/4; inf inf = inf pi/4; i nan = inf nan; nan f = nan nan; nan inf = inf nan; nan nan = nan nan
log1p: -1 0 = -inf 0; f inf = inf pi/2; f nan = nan nan; -inf p = inf pi; inf p = inf 0; -inf inf = inf 3pi/4; inf inf = inf pi/4; i nan = inf nan; nan f = nan nan; nan inf = inf nan; nan nan = nan nan
sqrt: z 0 = 0 0; f inf = inf inf; i inf = inf inf; nan inf = inf inf; f nan = nan nan; -inf p = 0 inf; inf p = inf 0; -inf nan = nan ~inf; inf nan = inf nan; nan f = nan nan; nan nan = nan nan
sign: z z = 0 0; nan f = nan nan; f nan = nan nan
"""
GROUPS = {"z": (0.0, -0.0), "f": (0.0, -0.0, 1.0, -2.5, 1e300), "n": (1.0, -2.5, 1e300), "p": (1.0, 2.5, 1e-300, 1e300), "i": (math.inf, -math.inf)}


def number(text):
    sign = -1.0 if text[0] == "-" else 1.0
    text = text.lstrip("-~")
    if "pi" not in text:
        return sign * float(text)
    top, _, bottom = text.partition("/")
    return sign * float(top[:-2] or 1) * math.pi / float(bottom or 1)


def bits_agree(got, want, any_sign=False):
    if any_sign:
        got, want = abs(got), abs(want)
    if math.isnan(want) or want == 0 or math.isinf(want):
        return math.isnan(got) if math.isnan(want) else got == want and math.copysign(1, got) == math.copysign(1, want)
    return math.isclose(got, want, rel_tol=1e-12)


class Special(Case):
    def test_complex(self):
        for line in api.lines(COMPLEX_CASES):
            name, _, cases = line.partition(": ")
            for case in cases.split("; "):
                a, b, _, re, im = case.split()
                for x, y in itertools.product(GROUPS.get(a) or (number(a),), GROUPS.get(b) or (number(b),)):
                    with self.subTest(name, case=case, a=x, b=y):
                        out = complex(getattr(eager, name)(eager.asarray(complex(x, y), dtype=eager.complex128)))
                        self.assertTrue(bits_agree(out.real, number(re), "~" in re) and bits_agree(out.imag, number(im), "~" in im), out)

    def test_complex_symmetry(self):
        """f(conj(x)) is conj(f(x)), on both sides of branch cuts."""
        values = [complex(a, b) for a, b in itertools.product((0.0, -0.0, 0.3, -2.0, math.inf, -math.inf), repeat=2)]
        z = eager.asarray(np.array(values))
        for name in "acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinh sqrt tan tanh".split():
            with self.subTest(name):
                f = getattr(eager, name)
                a, b = plain(f(eager.conj(z))), plain(eager.conj(f(z)))
                np.testing.assert_allclose(a, b, rtol=1e-15)
                if name.startswith(("a", "log", "sq")):
                    np.testing.assert_array_equal(np.signbit(a.real), np.signbit(b.real))

    def test_real(self):
        """All pairs of special values, with the signs of zeros, as NumPy has them."""
        for dtype in FLOATS:
            a = np.array([*SPECIAL, 2.0, -3.0, 1e-300, -1e300, 1.5, -0.5, math.pi], dtype)
            x, y = np.repeat(a, len(a)), np.tile(a, len(a))
            t, u = eager.asarray(x), eager.asarray(y)
            for name in api.UNARY + api.BINARY:
                f = getattr(np, {"bitwise_invert": "invert", "pow": "power"}.get(name, name))
                with np.errstate(all="ignore"):
                    try:
                        want = f(x) if name in api.UNARY else f(x, y)
                    except TypeError:
                        continue
                    want = np.where(np.isinf(x) | np.isinf(y), x / y, want) if name == "floor_divide" else want
                got = plain(getattr(eager, name)(t) if name in api.UNARY else getattr(eager, name)(t, u))
                with self.subTest(name, dtype=dtype):
                    same(self, got, want, name, LOOSE.get(name))
                    at = np.isfinite(want) & (want == 0) if want.dtype.kind == "f" else np.zeros(x.shape, bool)
                    if name not in ("maximum", "minimum", "floor_divide", "logaddexp", "imag"):
                        wrong = at & (np.signbit(got) != np.signbit(want)) if want.dtype.kind == "f" else at
                        self.assertFalse(wrong.any(), [(x[i], y[i], got[i], want[i]) for i in np.flatnonzero(wrong)[:5]])

    def test_empty(self):
        none = eager.asarray([], dtype=eager.float32)
        self.assertEqual((float(eager.sum(none)), float(eager.prod(none))), (0, 1))
        for f in (eager.mean, eager.std, eager.var):
            self.assertTrue(math.isnan(float(f(none))))
        x = eager.asarray([1.0, math.nan, 2.0])
        for f in (eager.max, eager.min, eager.mean, eager.prod, eager.std, eager.sum, eager.var):
            self.assertTrue(bool(eager.isnan(f(x))))
        self.assertTrue(bool(eager.signbit(eager.asarray(-math.nan))))
