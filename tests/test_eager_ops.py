"""Every operation of the table against NumPy: shapes with no dims, no elements, odd sizes, strides; every
dtype it takes; special values."""

import itertools
import math
import unittest
import warnings
from fractions import Fraction

import numpy as np
from support import BF16

import eager
from eager.testing import to_numpy

RNG = np.random.default_rng(7)
FLOATS = ["float32", "float64", "float16"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
SHAPES = [(), (0,), (1,), (5,), (3, 4), (2, 3, 5), (0, 3)]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, np.inf, -np.inf, np.nan, 1e-30, 3.0e38, 100.0, -100.0])
TOL = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-11}
warnings.filterwarnings("ignore", category=RuntimeWarning)


def data(shape, dtype, low=-3, high=3):
    d = np.dtype(dtype) if dtype != "bfloat16" else BF16
    if d.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    if d.kind in "iu":
        return RNG.integers(max(low, 0) if d.kind == "u" else low, high + 1, shape).astype(d)
    return RNG.uniform(low, high, shape).astype(d)


def strided(a):
    """The same elements, not in C order."""
    if a.ndim == 0 or a.size == 0:
        return a
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    wide[..., ::2] = a
    return wide[..., ::2]


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x) if np.size(x) else x


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True)) if x.size else x
    return e / e.sum(axis, keepdims=True)


# name: (reference in float64, low, high): functions whose results are floats
FLOAT1 = {
    "sin": np.sin, "cos": np.cos, "tan": (np.tan, -1, 1), "asin": (np.arcsin, -1, 1), "acos": (np.arccos, -1, 1), "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": (np.arccosh, 1, 9), "atanh": (np.arctanh, -0.9, 0.9), "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": (np.log, 0.1, 9), "log1p": (np.log1p, -0.5, 9),
    "log2": (np.log2, 0.1, 9), "log10": (np.log10, 0.1, 9), "sqrt": (np.sqrt, 0, 9), "cbrt": (np.cbrt, -9, 9), "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9), "sigmoid": sigmoid, "erf": erf, "silu": lambda x: x * sigmoid(x), "gelu": gelu,
    "reciprocal": (np.reciprocal, 0.5, 3),
}  # fmt: skip
# the dtype stays
SAME1 = {
    "relu": lambda x: np.maximum(x, np.array(0, x.dtype)),
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
}
NO_BOOL = {"relu", "neg", "sign", "square"}
TEST1 = {"is_nan": np.isnan, "is_inf": np.isinf, "is_finite": np.isfinite, "signbit": np.signbit}
ARITH2 = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "pow": np.power,
}
FLOAT2 = {"div": np.divide, "atan2": np.arctan2, "hypot": np.hypot, "copysign": np.copysign, "nextafter": np.nextafter, "logaddexp": np.logaddexp}
COMPARE = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
LOGIC = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor}
BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
SHIFTS = {"bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift}
REDUCE = {
    "reduce_sum": np.sum,
    "prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "any": np.any,
    "all": np.all,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "count_nonzero": np.count_nonzero,
}
SCAN = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}

# What a class below tests by name, and what has no function of its own.
BY_HAND = {
    "logical_not", "bitwise_invert", "cast", "where", "fma", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "swap_axes", "matrix_transpose", "moveaxis", "broadcast_to",
    "slice_tensor", "slice_update", "slice_steps", "flip", "diagonal", "concatenate", "stack", "tile", "repeat", "roll", "pad", "pad_constant", "gather", "take_along_axis", "scatter", "put_along_axis",
    "searchsorted", "arange", "eye", "tri", "tril", "triu", "hann_window", "argmax", "argmin", "cumulative_sum", "cumulative_prod", "sort", "argsort", "topk", "matmul", "softmax", "logsoftmax", "logsumexp",
    "conv2d", "conv2d_transpose", "avg_pool2d", "max_pool2d", "window", "random_bits", "random_uniform", "random_normal", "uniform", "gaussian", "outer", "tensordot", "vecdot", "linspace",
    "randint", "split_key", "fold_in", "minmax", "layer_norm", "rms_norm", "one_hot", "clip", "diff", "dot", "trace", "flat_nonzero", "count_unique", "stop_gradient", "barrier",
}  # fmt: skip
INTERNAL = {"alias", "custom", "index", "index_update", "slice", "slice_set", "split", "chunk", "unbind", "full", "zeros", "ones", "iota", "unique", "lift_batch_dims"}


class Case(unittest.TestCase):
    def check(self, got, want, dtype=None, tol=None, what=None):
        want = np.asarray(want)
        self.assertEqual(tuple(got.shape), want.shape, what)
        if dtype is not None:
            self.assertEqual(got.dtype, dtype, what)
        name = got.dtype.numpy_name
        a, b = to_numpy(got), want
        if name in TOL or tol:
            rtol = tol or TOL[name]
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol, err_msg=str(what))
        else:
            np.testing.assert_array_equal(a, b, err_msg=str(what))


class Table(Case):
    def test_every_row_is_tested(self):
        known = {*FLOAT1, *SAME1, *TEST1, *ARITH2, *FLOAT2, *COMPARE, *LOGIC, *BITS, *SHIFTS, *REDUCE, *SCAN, *BY_HAND, *INTERNAL}
        from eas._eas import tensor_ops

        rest = {n for n in tensor_ops if n not in known and not n.endswith("_physical") and not n.endswith("batch_dims")}
        self.assertEqual(rest, set(), "operations without a test here")

    def test_every_row_is_a_function_and_a_method(self):
        from eas._eas import tensor_ops

        for name, op in tensor_ops.items():
            if name in INTERNAL:
                continue
            name = {"trace": "matrix_trace"}.get(name, name)
            self.assertTrue(callable(getattr(eager, name)), name)
            self.assertTrue(getattr(eager, name).__doc__, name)
            if op.signature.split()[:1] and ":" not in op.signature.split()[0] and not op.signature.split()[0].endswith("*"):
                self.assertTrue(hasattr(eager.Tensor, name), name)


class Elementwise(Case):
    def inputs(self, dtype, low, high):
        for shape in SHAPES:
            a = data(shape, dtype, low, high)
            yield a
            if len(shape) == 2:
                yield strided(a)
                yield a.T

    def test_float_functions(self):
        for name, ref in FLOAT1.items():
            f, low, high = ref if isinstance(ref, tuple) else (ref, -3, 3)
            for dtype in FLOATS + ["int32", "uint8", "bool"]:
                for a in self.inputs(dtype, low, high):
                    if a.dtype.kind in "iub" and (low > -1 or high <= 1):
                        a = np.ones_like(a)
                    if a.dtype == bool and name == "atanh":
                        continue
                    want = "float32" if a.dtype.kind in "iub" else dtype
                    with self.subTest(op=name, dtype=dtype, shape=a.shape):
                        self.check(getattr(eager, name)(eager.constant(a)), f(a.astype(np.float64)), want, what=name)

    def test_float_functions_at_special_values(self):
        x = SPECIAL.astype(np.float32)
        for name, ref in FLOAT1.items():
            f = ref[0] if isinstance(ref, tuple) else ref
            got = getattr(eager, name)(eager.constant(x)).numpy()
            with np.errstate(all="ignore"):
                want = f(x.astype(np.float64)).astype(np.float32)
            if name in ("gelu", "silu"):  # -inf * 0
                got, want = got[np.isfinite(x)], want[np.isfinite(x)]
            with self.subTest(op=name):
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-37, err_msg=name)

    @unittest.skipUnless(BF16, "ml_dtypes")
    def test_bfloat16(self):
        a = data((3, 4), "bfloat16", 1, 2)
        for name in ("exp", "sqrt", "tanh", "sin"):
            ref = FLOAT1[name][0] if isinstance(FLOAT1[name], tuple) else FLOAT1[name]
            self.check(getattr(eager, name)(eager.constant(a)), ref(a.astype(np.float64)), "bfloat16")
        self.check(eager.constant(a) + 1, a.astype(np.float64) + 1, "bfloat16")
        self.check(eager.constant(a).sum(), a.astype(np.float64).sum(), "bfloat16")

    def test_same_dtype(self):
        for name, f in SAME1.items():
            for dtype in FLOATS + INTS + ["bool"]:
                if dtype == "bool" and name in NO_BOOL:
                    with self.assertRaises(TypeError):
                        getattr(eager, name)(eager.constant(True))
                    continue
                for a in self.inputs(dtype, -5, 5):
                    with self.subTest(op=name, dtype=dtype, shape=a.shape):
                        self.check(getattr(eager, name)(eager.constant(a)), f(a).astype(dtype), dtype)

    def test_tests(self):
        for name, f in TEST1.items():
            for dtype in FLOATS:
                self.check(getattr(eager, name)(eager.constant(SPECIAL.astype(dtype))), f(SPECIAL.astype(dtype)), "bool", what=name)
            self.check(
                getattr(eager, name)(eager.constant(np.array([-1, 0, 1]))),
                np.array([-1, 0, 1]) < 0 if name == "signbit" else f(np.array([-1, 0, 1])),
                "bool",
                what=name,
            )

    def test_not(self):
        for dtype in FLOATS + INTS + ["bool"]:
            a = data((3, 4), dtype)
            self.check(eager.logical_not(eager.constant(a)), np.logical_not(a), "bool")
            if dtype not in FLOATS:
                self.check(~eager.constant(a), ~a, dtype)

    def test_cast(self):
        for src, dst in itertools.product(FLOATS + INTS + ["bool"], repeat=2):
            a = data((3, 4), src, 0, 5)
            self.check(eager.constant(a).cast(dst), a.astype(dst), dst, what=(src, dst))

    def test_arithmetic(self):
        shapes = [((), ()), ((3, 4), (4,)), ((3, 1), (1, 4)), ((0, 3), (3,)), ((2, 3, 5), (3, 1))]
        for name, f in ARITH2.items():
            for dtype in FLOATS + INTS + ["bool"]:
                if dtype == "bool" and name not in ("add", "mul", "maximum", "minimum"):
                    continue
                for s, t in shapes:
                    a, b = data(s, dtype, 1, 5), data(t, dtype, 1, 3)
                    with self.subTest(op=name, dtype=dtype, shapes=(s, t)):
                        self.check(getattr(eager, name)(eager.constant(a), eager.constant(b)), f(a, b), dtype)

    def test_signs_of_division(self):
        for dtype in ["int32", "int8", "float32", "float64"]:
            a, b = np.meshgrid(np.array([-7, -6, -1, 0, 1, 6, 7], dtype), np.array([-3, -2, -1, 1, 2, 3], dtype))
            self.check(eager.constant(a) // eager.constant(b), a // b, dtype)
            self.check(eager.constant(a) % eager.constant(b), a % b, dtype)

    def test_nan_in_extremes(self):
        a, b = np.meshgrid(SPECIAL.astype(np.float32), SPECIAL.astype(np.float32))
        self.check(eager.maximum(eager.constant(a), eager.constant(b)), np.maximum(a, b))
        self.check(eager.minimum(eager.constant(a), eager.constant(b)), np.minimum(a, b))

    def test_float_functions_of_two(self):
        for name, f in FLOAT2.items():
            for dtype in ["float32", "float64", "int32"]:
                a, b = data((3, 4), dtype, 1, 5), data((4,), dtype, 1, 5)
                wide = np.float64 if name != "nextafter" or dtype == "float64" else np.float32
                self.check(
                    getattr(eager, name)(eager.constant(a), eager.constant(b)),
                    f(a.astype(wide), b.astype(wide)),
                    "float32" if dtype == "int32" else dtype,
                    what=name,
                )

    def test_comparisons(self):
        for name, f in COMPARE.items():
            for dtype in FLOATS + INTS + ["bool"]:
                a, b = data((3, 4), dtype), data((4,), dtype)
                self.check(getattr(eager, name)(eager.constant(a), eager.constant(b)), f(a, b), "bool", what=(name, dtype))
            a, b = np.meshgrid(SPECIAL.astype(np.float32), SPECIAL.astype(np.float32))
            self.check(getattr(eager, name)(eager.constant(a), eager.constant(b)), f(a, b), "bool", what=name)

    def test_logic_and_bits(self):
        for name, f in LOGIC.items():
            for dtype in FLOATS + INTS + ["bool"]:
                a, b = data((3, 4), dtype), data((4,), dtype)
                self.check(getattr(eager, name)(eager.constant(a), eager.constant(b)), f(a, b), "bool")
        for name, f in BITS.items():
            for dtype in INTS + ["bool"]:
                a, b = data((3, 4), dtype), data((4,), dtype)
                self.check(getattr(eager, name)(eager.constant(a), eager.constant(b)), f(a, b), dtype)
        for name, f in SHIFTS.items():
            for dtype in INTS:
                a, b = data((3, 4), dtype), data((4,), dtype, 0, 3)
                self.check(getattr(eager, name)(eager.constant(a), eager.constant(b)), f(a, b), dtype)

    def test_where(self):
        for dtype in FLOATS + INTS + ["bool"]:
            c, a, b = data((3, 1), "bool"), data((4,), dtype), data((3, 4), dtype)
            self.check(eager.where(eager.constant(c), eager.constant(a), eager.constant(b)), np.where(c, a, b), dtype)

    def test_fma_rounds_once(self):
        """The rounding error of a product, which only an operation that rounds once can give exactly."""
        for dtype in ("float32", "float64"):
            x, y = data((3, 64), dtype), data((64,), dtype)
            product = np.multiply(x, y)
            got = eager.fma(eager.constant(x), eager.constant(y), eager.constant(-product)).numpy()
            want = [float(Fraction(a) * Fraction(b) - Fraction(c)) for a, b, c in zip(x.ravel().tolist(), np.tile(y, 3).tolist(), product.ravel().tolist())]
            self.check(eager.constant(got), np.array(want, dtype).reshape(3, 64), dtype, tol=0)
            self.assertTrue(np.any(got != 0))
        for dtype in ("float16", "bfloat16"):
            x, y, z = (eager.constant(data((5, 7), "float32")).cast(dtype) for _ in range(3))
            wide = x.cast("float64") * y.cast("float64") + z.cast("float64")
            self.check(eager.fma(x, y, z).cast("float32"), wide.cast(dtype).cast("float32").numpy(), "float32", tol=0)
        self.assertEqual(eager.fma(2, eager.arange(3), 1).numpy().tolist(), [1.0, 3.0, 5.0])
        self.assertEqual(eager.fma(eager.zeros((0, 3)), eager.ones((3,)), 1.0).shape, (0, 3))

    def test_promotion(self):
        for a, b, want in [
            ("int32", "float32", "float32"), ("int32", "uint32", "int64"), ("int64", "uint64", "float64"), ("int8", "uint8", "int16"), ("bool", "int8", "int8"), ("float16", "float32", "float32"),
            ("int64", "float16", "float16"), ("uint8", "uint16", "uint16"), ("bool", "bool", "bool"), ("float32", "float64", "float64"), ("int16", "uint8", "int16"),
        ]:  # fmt: skip
            x, y = eager.ones((2,), a), eager.ones((2,), b)
            self.assertEqual((x + y).dtype, want, (a, b))
            self.assertEqual((y + x).dtype, want, (a, b))
        for dtype in FLOATS + INTS:
            self.assertEqual((eager.ones((2,), dtype) + 1).dtype, dtype)
            self.assertEqual((1 + eager.ones((2,), dtype)).dtype, dtype)
        for dtype in FLOATS:
            self.assertEqual((eager.ones((2,), dtype) * 2.5).dtype, dtype)
        self.assertEqual((eager.ones((2,), "int32") * 2.5).dtype, "float32")
        self.assertEqual((eager.ones((2,), "bool") + 1).dtype, "int64")
        self.assertEqual(eager.add(1.0, 2.0).dtype, "float32")
        self.assertEqual((eager.ones((2,), "float64") * 0.1).numpy()[0], 0.1)


class Names(Case):
    def test_stop_gradient_and_barrier_change_no_value(self):
        for dtype in ("float32", "int64", "bool"):
            a = data((3, 4), dtype)
            t = eager.Tensor.constant(a)
            self.check(eager.stop_gradient(t), a)
            self.check(eager.barrier(t, t * 2 if dtype != "bool" else t), a)
            self.check(eager.barrier(t, eager.Tensor.zeros((0, 2))), a)


class Views(Case):
    a = data((2, 3, 4), "float32")

    def pairs(self):
        a = self.a
        t = eager.constant(a)
        return [
            (eager.reshape(t, (6, 4)), a.reshape(6, 4)), (t.reshape(-1, 2), a.reshape(-1, 2)), (eager.flatten(t), a.reshape(-1)), (eager.flatten(t, 1, 2), a.reshape(2, 12)),
            (eager.unflatten(t, 2, (2, -1)), a.reshape(2, 3, 2, 2)), (eager.squeeze(t[:, :1]), a[:, 0]), (eager.unsqueeze(t, 1), a[:, None]), (eager.unsqueeze(t, (0, -1)), a[None, ..., None]),
            (eager.permute(t, (2, 0, 1)), a.transpose(2, 0, 1)), (eager.swap_axes(t, 0, 2), a.swapaxes(0, 2)), (eager.swap_axes(t), a.swapaxes(-2, -1)), (eager.matrix_transpose(t), a.swapaxes(-2, -1)),
            (eager.moveaxis(t, source=0, destination=-1), np.moveaxis(a, 0, -1)), (eager.broadcast_to(t[:, :1], (5, 2, 3, 4)), np.broadcast_to(a[:, :1], (5, 2, 3, 4))), (t.T, a.T), (t.mT, a.swapaxes(-1, -2)),
            (eager.slice_tensor(t, start=(0, 1), size=(2, 2)), a[:, 1:3]), (eager.slice_steps(t, (1, 2, 3), (2, 3, 2), (-1, -1, -2)), a[::-1, ::-1, ::-1][:, :, ::2]),
            (eager.flip(t), np.flip(a)), (eager.flip(t, 1), np.flip(a, 1)), (eager.diagonal(t), np.diagonal(a)), (eager.diagonal(t, 1, 1, 2), np.diagonal(a, 1, 1, 2)),
            (eager.concatenate([t, t[:1]], axis=0), np.concatenate([a, a[:1]])), (eager.concatenate([t, t], axis=-1), np.concatenate([a, a], -1)), (eager.stack([t, t], axis=1), np.stack([a, a], 1)),
            (eager.tile(t, (2, 1, 3)), np.tile(a, (2, 1, 3))), (eager.repeat(t, 3, axis=1), np.repeat(a, 3, 1)), (eager.repeat(t, 2), np.repeat(a, 2)), (eager.roll(t, 2, 1), np.roll(a, 2, 1)), (eager.roll(t, 5), np.roll(a, 5)),
            (eager.roll(t, (1, -1), (0, 2)), np.roll(a, (1, -1), (0, 2))), (eager.pad_constant(t, 7.0, (1, 0, 2), (0, 1, 0)), np.pad(a, ((1, 0), (0, 1), (2, 0)), constant_values=7)),
            (eager.tril(t), np.tril(a)), (eager.triu(t, 1), np.triu(a, 1)), (eager.gather(t, eager.constant([2, 0, -1]), axis=1), a[:, [2, 0, -1]]), (eager.gather(t, [[0, 1]], axis=2), a[:, :, [[0, 1]]]),
            (eager.expand_dims(t, axis=0), a[None]),
        ]  # fmt: skip

    def test_views(self):
        for i, (got, want) in enumerate(self.pairs()):
            with self.subTest(i):
                self.check(got, want, "float32", what=i)

    def test_pad_modes(self):
        for mode in ("constant", "edge", "reflect", "symmetric", "wrap"):
            got = eager.pad(eager.constant(self.a), paddings=(1, 1, 2, 0, 0, 3), mode=mode)
            self.check(got, np.pad(self.a, ((1, 1), (2, 0), (0, 3)), mode), what=mode)
        self.check(
            eager.pad(eager.constant(self.a), paddings=((1, 1), (2, 0), (0, 3)), value=2.0),
            np.pad(self.a, ((1, 1), (2, 0), (0, 3)), constant_values=2),
            what="pairs",
        )

    def test_views_of_views_and_strides(self):
        t, a = eager.constant(self.a.T), self.a.T
        self.check(t[1:, ::-1].reshape(-1)[::2] + 1, a[1:, ::-1].reshape(-1)[::2] + 1)
        shared = eager.from_dlpack(np.ascontiguousarray(self.a).swapaxes(0, 2))
        self.check(shared * 2, self.a.swapaxes(0, 2) * 2)
        self.check(shared, self.a.swapaxes(0, 2))

    def test_updates(self):
        t, u = eager.constant(self.a), np.ones((2, 2, 4), np.float32)
        want = self.a.copy()
        want[:, 1:3] = u
        self.check(eager.slice_update(t, eager.constant(u), start=(0, 1), size=(2, 2)), want)
        want = self.a.copy()
        want[:, [2, 0]] = u
        self.check(eager.scatter(t, [2, 0], eager.constant(u), axis=1), want)
        self.check(eager.scatter(eager.zeros(4), [1, 1, 3], eager.constant([1.0, 2.0, 3.0]), mode="add"), [0, 3, 0, 3])
        i = np.argsort(self.a, 1)
        self.check(eager.take_along_axis(t, eager.constant(i), axis=1), np.take_along_axis(self.a, i, 1))
        want = self.a.copy()
        np.put_along_axis(want, i[:, :1], 9, 1)
        self.check(eager.put_along_axis(t, eager.constant(i[:, :1]), 9.0, axis=1), want)

    def test_out_of_range(self):
        x = eager.constant(np.arange(4, dtype=np.float32))
        for bad in ([4], [-5], [[0, 9]]):
            with self.assertRaises(IndexError):
                eager.gather(x, eager.constant(bad)).numpy()
            with self.assertRaises(IndexError):
                eager.scatter(x, eager.constant(bad), 1.0).numpy()
        wide = eager.constant(np.arange(12, dtype=np.float32).reshape(3, 4))
        for bad in (
            lambda: eager.arange(4)[eager.constant([4])],
            lambda: wide[:2][:, eager.constant([4])],
            lambda: eager.ones((3,))[eager.constant([-4])],
        ):  # no memory, or more of it than the axis has
            with self.assertRaises(IndexError):
                bad().numpy()
        for bad in (
            lambda t: t.reshape(5),
            lambda t: t.permute(0, 1),
            lambda t: t.sum(axis=3),
            lambda t: eager.concatenate([t, eager.ones((2, 2))]),
            lambda t: eager.broadcast_to(t, (2, 2)),
        ):
            with self.assertRaises(ValueError):
                bad(eager.constant(self.a))

    def test_sets(self):
        for dtype in ("float32", "int8", "bool", "uint64"):
            for shape in ((0,), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 50)):
                a = np.floor(data(shape, dtype, -3, 3)) if dtype == "float32" else data(shape, dtype, 0, 3)
                t = eager.constant(a)
                values, indices, inverse, counts = np.unique(a, return_index=True, return_inverse=True, return_counts=True)
                with self.subTest(dtype=dtype, shape=shape):
                    got = eager.unique_all(t)
                    self.check(got.values, values, dtype)
                    self.check(got.indices, indices, "int64")
                    self.check(got.inverse_indices, inverse.reshape(shape), "int64")
                    self.check(got.counts, counts, "int64")
                    self.check(eager.count_unique(t), len(values), "int64")
                    for k, w in zip(eager.nonzero(t), np.nonzero(a), strict=True):
                        self.check(k, w, "int64")
                    self.check(eager.flat_nonzero(t, np.count_nonzero(a)), np.flatnonzero(a), "int64")

    def test_searchsorted(self):
        x, v = np.sort(data((9,), "float32")), data((2, 3), "float32")
        for side in ("left", "right"):
            self.check(eager.searchsorted(eager.constant(x), eager.constant(v), side=side), np.searchsorted(x, v, side))


class Reductions(Case):
    def test_reductions(self):
        for name, f in REDUCE.items():
            for dtype in ["float32", "float64", "int32", "uint8", "bool"]:
                if dtype == "bool" and name in ("reduce_max", "reduce_min"):
                    continue
                for shape in [(), (1,), (7,), (3, 4), (2, 3, 5), (4, 70)]:
                    a = data(shape, dtype, 1, 2)
                    axes = [None, *range(len(shape)), -1, tuple(range(len(shape)))] if shape else [None, ()]
                    for axis, keepdims in itertools.product(axes, (False, True)):
                        if name in ("mean", "var", "std"):
                            want = f(a.astype(np.float64), axis=axis, keepdims=keepdims)
                        elif name == "count_nonzero":
                            want = np.sum(a != 0, axis=axis, keepdims=keepdims)
                        else:
                            want = f(a, axis=axis, keepdims=keepdims)
                        with self.subTest(op=name, dtype=dtype, shape=shape, axis=axis, keepdims=keepdims):
                            self.check(
                                getattr(eager, name)(eager.constant(a), axis=axis, keepdims=keepdims),
                                want,
                                tol=2e-5 if want.dtype.kind == "f" else None,
                            )

    def test_result_dtypes(self):
        for name, dtype, want in [
            ("reduce_sum", "int8", "int64"), ("reduce_sum", "uint8", "uint64"), ("reduce_sum", "bool", "int64"), ("reduce_sum", "float16", "float16"), ("prod", "int32", "int64"), ("mean", "int32", "float32"),
            ("reduce_max", "int8", "int8"), ("any", "float32", "bool"), ("argmax", "float32", "int64"), ("cumsum", "int32", "int64"),
        ]:  # fmt: skip
            self.assertEqual(getattr(eager, name)(eager.ones((3,), dtype)).dtype, want, name)

    def test_of_nothing(self):
        empty = eager.zeros((0, 3))
        self.check(empty.sum(), 0.0)
        self.check(empty.sum(axis=0), np.zeros(3))
        self.check(empty.prod(axis=0), np.ones(3))
        self.check(empty.any(), False)
        self.check(empty.all(), True)
        self.check(empty.sum(axis=1), np.zeros(0))
        for f in (eager.max, eager.min, eager.argmax):
            with self.assertRaises(ValueError):
                f(empty, axis=0).numpy()

    def test_nan_wins(self):
        a = np.array([1, np.nan, 3], np.float32)
        self.assertTrue(np.isnan(eager.constant(a).max().item()) and np.isnan(eager.constant(a).min().item()))
        self.assertEqual(eager.argmax(eager.constant(a)).item(), np.argmax(a))

    def test_arg(self):
        for dtype in ["float32", "int32", "uint8"]:
            for shape in [(5,), (3, 4), (2, 3, 5)]:
                a = data(shape, dtype)
                for axis in range(-len(shape), len(shape)):
                    self.check(eager.argmax(eager.constant(a), axis=axis), a.argmax(axis), "int64")
                    self.check(eager.argmin(eager.constant(a), axis=axis, keepdims=True), a.argmin(axis, keepdims=True), "int64")
                self.check(eager.argmax(eager.constant(a), axis=None), a.argmax())

    def test_scans(self):
        for name, f in SCAN.items():
            for dtype in ["float32", "int32", "float64"]:
                for shape in [(5,), (3, 4), (2, 3, 70), (0,)]:
                    a = data(shape, dtype, 1, 2)
                    for axis in range(len(shape)):
                        with self.subTest(op=name, dtype=dtype, shape=shape, axis=axis):
                            self.check(getattr(eager, name)(eager.constant(a), axis=axis), f(a, axis=axis), tol=1e-4 if dtype == "float32" else None)
        a = data((3, 4), "float32")
        self.check(eager.cumsum(eager.constant(a), axis=1, reverse=True), a[:, ::-1].cumsum(1)[:, ::-1])
        self.check(eager.cumulative_sum(eager.constant(a), axis=0, include_initial=True), np.concatenate([np.zeros((1, 4)), a.cumsum(0)]))
        self.check(eager.cumulative_prod(eager.constant(a), axis=0), a.cumprod(0))

    def test_first_few_are_those_of_the_sort(self):
        rng = np.random.default_rng(11)
        for dt in ("float16", "float32", "float64", "int8", "int32", "uint32", "int64", "uint64", "bool"):
            for shape, axis, k in (((3, 1000), 1, 10), ((300, 2), 0, 48), ((2, 129), -1, 1), ((2, 60), 1, 7), ((2, 5000), 1, 3)):
                a = np.round(rng.standard_normal(shape) * 50).astype(dt)
                if dt.startswith("float"):
                    a.flat[[5, 77, 80]], a.flat[3], a.flat[4] = np.nan, np.inf, -np.inf
                elif dt != "bool":
                    a.flat[[1, 90]], a.flat[2] = np.iinfo(dt).max, np.iinfo(dt).min
                for largest in (True, False):
                    with self.subTest(dtype=dt, shape=shape, k=k, largest=largest):
                        t = eager.constant(a)
                        values, indices = eager.topk(t, k, axis=axis, largest=largest)
                        order = np.take(eager.argsort(t, axis=axis, descending=largest).numpy(), range(k), axis=axis)
                        np.testing.assert_array_equal(indices.numpy(), order)
                        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, order, axis))

    def test_sorting(self):
        for dtype in ["float32", "int32", "uint8", "float16"]:
            for shape in [(1,), (5,), (3, 4), (2, 3, 17), (0,)]:
                a = data(shape, dtype)
                for axis in range(len(shape)):
                    self.check(eager.sort(eager.constant(a), axis=axis), np.sort(a, axis), dtype)
                    self.check(eager.argsort(eager.constant(a), axis=axis), np.argsort(a, axis, kind="stable"), "int64")
        a = data((4, 9), "float32")
        self.check(eager.sort(eager.constant(a), descending=True), -np.sort(-a))
        values, indices = eager.topk(eager.constant(a), 3)
        self.check(values, -np.sort(-a)[:, :3])
        self.check(indices, np.argsort(-a, kind="stable")[:, :3])

    def test_softmax(self):
        for dtype in ["float32", "float64"]:
            for shape, axis in [((5,), -1), ((3, 4), 0), ((2, 3, 70), 1), ((2, 3, 70), -1)]:
                a = data(shape, dtype)
                self.check(eager.softmax(eager.constant(a), axis=axis), softmax(a.astype(np.float64), axis), dtype)
                self.check(eager.logsoftmax(eager.constant(a), axis=axis), np.log(softmax(a.astype(np.float64), axis)), dtype)
                self.check(eager.logsumexp(eager.constant(a), axis=axis), np.log(np.exp(a.astype(np.float64)).sum(axis)), dtype)
        self.check(eager.softmax(eager.constant([1000.0, 1000.0])), [0.5, 0.5])


class Products(Case):
    def test_matmul(self):
        shapes = [
            ((4,), (4,)),
            ((3, 4), (4,)),
            ((4,), (4, 5)),
            ((3, 4), (4, 5)),
            ((2, 3, 4), (4, 5)),
            ((2, 3, 4), (2, 4, 5)),
            ((6, 1, 3, 4), (2, 4, 5)),
            ((3, 0), (0, 5)),
            ((0, 4), (4, 2)),
            ((33, 17), (17, 9)),
        ]
        for dtype in ["float32", "float64", "int32"]:
            for s, t in shapes:
                a, b = data(s, dtype), data(t, dtype)
                with self.subTest(dtype=dtype, shapes=(s, t)):
                    self.check(eager.constant(a) @ eager.constant(b), a @ b, dtype, tol=1e-4 if dtype == "float32" else None)
        with self.assertRaises(ValueError):
            eager.ones((3, 4)) @ eager.ones((3, 4))

    def test_matmul_of_transposes(self):
        a, b = data((17, 9), "float32"), data((33, 17), "float32")
        self.check(eager.constant(a).T @ eager.constant(b).T, a.T @ b.T, tol=1e-4)
        self.check((eager.constant(a).T @ eager.constant(b).T + 1).relu(), np.maximum(a.T @ b.T + 1, 0), tol=1e-4)

    def test_others(self):
        a, b = data((2, 3, 4), "float32"), data((4, 3, 5), "float32")
        self.check(eager.tensordot(eager.constant(a), eager.constant(b), axes=([2, 1], [0, 1])), np.tensordot(a, b, ([2, 1], [0, 1])), tol=1e-4)
        self.check(eager.tensordot(eager.constant(a), eager.constant(a[0].T), axes=1), np.tensordot(a, a[0].T, 1), tol=1e-4)
        self.check(eager.vecdot(eager.constant(a), eager.constant(a)), (a * a).sum(-1), tol=1e-4)
        self.check(eager.outer(eager.arange(3), eager.arange(4)), np.outer(np.arange(3), np.arange(4)))


class Networks(Case):
    def test_norms(self):
        a, w, b = data((3, 4, 5), "float32"), data((5,), "float32"), data((5,), "float32")
        wide = a.astype(np.float64)
        norm = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
        self.check(eager.layer_norm(eager.constant(a)), norm, "float32", tol=1e-4)
        self.check(eager.layer_norm(eager.constant(a), eager.constant(w), eager.constant(b)), norm * w + b, tol=1e-4)
        self.check(eager.rms_norm(eager.constant(a), eager.constant(w), eps=0.0), wide / np.sqrt((wide**2).mean(-1, keepdims=True)) * w, tol=1e-4)
        wide2 = (wide - wide.mean((1, 2), keepdims=True)) / np.sqrt(wide.var((1, 2), keepdims=True) + 1e-5)
        self.check(eager.layer_norm(eager.constant(a), axis=(1, 2)), wide2, tol=1e-4)

    def test_one_hot(self):
        i = np.array([[0, 2], [1, 1]])
        self.check(eager.one_hot(eager.constant(i), 3), np.eye(3)[i], "float32")

    def test_clip_and_diff(self):
        a = data((3, 4), "float32")
        self.check(eager.clip(eager.constant(a), -1, 1), a.clip(-1, 1))
        self.check(eager.diff(eager.constant(a), axis=0, n=2), np.diff(a, 2, 0), tol=1e-5)
        self.check(eager.diff(eager.constant(a), prepend=eager.zeros((3, 1))), np.diff(a, prepend=0), tol=1e-5)

    def test_dot_and_trace(self):
        a, b = data((3, 4), "float32"), data((4, 3), "float32")
        self.check(eager.dot(eager.constant(a), eager.constant(b)), a @ b, tol=1e-4)
        self.check(eager.matrix_trace(eager.constant(a)), np.trace(a))
        self.check(eager.matrix_trace(eager.constant(a), offset=1), np.trace(a, 1))


def conv2d(x, w, stride, padding, dilation, groups):
    n, h, wd, c = x.shape
    kh, kw, cg, co = w.shape
    x = np.pad(x, ((0, 0), padding[:2], padding[2:], (0, 0)))
    oh = (x.shape[1] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (x.shape[2] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((n, oh, ow, co))
    for g in range(groups):
        ws, xs = w[..., g * co // groups : (g + 1) * co // groups], x[..., g * cg : (g + 1) * cg]
        for i, j in itertools.product(range(oh), range(ow)):
            part = xs[
                :,
                i * stride[0] : i * stride[0] + dilation[0] * (kh - 1) + 1 : dilation[0],
                j * stride[1] : j * stride[1] + dilation[1] * (kw - 1) + 1 : dilation[1],
            ]
            out[:, i, j, g * co // groups : (g + 1) * co // groups] = np.tensordot(part, ws, 3)
    return out


def conv2d_transpose(x, w, stride, padding, dilation, output_paddings):
    n, h, wd, ci = x.shape
    kh, kw, co, _ = w.shape
    full = np.zeros(
        (
            n,
            (h - 1) * stride[0] + dilation[0] * (kh - 1) + 1 + output_paddings[0],
            (wd - 1) * stride[1] + dilation[1] * (kw - 1) + 1 + output_paddings[1],
            co,
        )
    )
    for i, j, a, b in itertools.product(range(h), range(wd), range(kh), range(kw)):
        full[:, i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1]] += x[:, i, j] @ w[a, b].T
    return full[:, padding[0] : full.shape[1] - padding[1], padding[2] : full.shape[2] - padding[3]]


class Convolutions(Case):
    def test_conv2d(self):
        x = data((2, 7, 6, 4), "float32")
        for stride, padding, dilation, groups in [
            ((1, 1), 0, (1, 1), 1),
            ((2, 1), 1, (1, 1), 1),
            ((1, 1), (1, 2), (2, 1), 2),
            ((2, 2), (0, 1, 2, 1), (1, 1), 4),
        ]:
            w, bias = data((3, 2, 4 // groups, 8), "float32"), data((8,), "float32")
            p = (padding,) * 4 if isinstance(padding, int) else (padding[0], padding[0], padding[1], padding[1]) if len(padding) == 2 else padding
            got = eager.conv2d(
                eager.constant(x), eager.constant(w), stride=stride, padding=padding, dilation=dilation, groups=groups, bias=eager.constant(bias)
            )
            self.check(got, conv2d(x, w, stride, p, dilation, groups) + bias, tol=1e-4)

    def test_conv2d_transpose(self):
        x, w = data((2, 4, 3, 5), "float32"), data((3, 2, 6, 5), "float32")
        for stride, padding, dilation, extra in [((1, 1), 0, (1, 1), (0, 0)), ((2, 2), 1, (1, 1), (1, 0)), ((2, 1), 0, (2, 1), (0, 0))]:
            got = eager.conv2d_transpose(
                eager.constant(x), eager.constant(w), stride=stride, padding=padding, dilation=dilation, output_paddings=extra
            )
            self.check(got, conv2d_transpose(x, w, stride, (padding,) * 4, dilation, extra), tol=1e-4)

    def test_pooling(self):
        x = data((2, 6, 8, 3), "float32")
        windows = x.reshape(2, 3, 2, 4, 2, 3)
        self.check(eager.avg_pool2d(eager.constant(x), (2, 2)), windows.mean((2, 4)))
        self.check(eager.max_pool2d(eager.constant(x), (2, 2)), windows.max((2, 4)))
        want = np.max([x[:, i : i + 5, j : j + 7] for i in (0, 1) for j in (0, 1)], 0)
        self.check(eager.max_pool2d(eager.constant(x), 2, stride=1), want)

    def test_bad_values(self):
        x, w = eager.ones((1, 5, 5, 4)), eager.ones((3, 3, 4, 8))
        for kw in ({"stride": 0}, {"dilation": 0}, {"padding": -1}, {"groups": 3}):
            with self.assertRaisesRegex(ValueError, next(iter(kw))):
                eager.conv2d(x, w, **kw)

    def test_window(self):
        a = np.arange(10.0, dtype=np.float32)
        self.check(
            eager.window(eager.constant(a), axes=(0,), sizes=(3,), strides=(2,), dilations=(1,)), np.lib.stride_tricks.sliding_window_view(a, 3)[::2]
        )


class Creation(Case):
    def test_constants(self):
        self.check(eager.zeros((2, 3)), np.zeros((2, 3)), "float32")
        self.check(eager.ones(3, "int8"), np.ones(3), "int8")
        self.check(eager.full((2,), 2.5), np.full(2, 2.5), "float32")
        self.check(eager.full((2,), 7), np.full(2, 7), "int64")
        self.check(eager.zeros(()), np.zeros(()))
        self.check(eager.ones_like(eager.zeros((2, 0), "int32")), np.ones((2, 0)), "int32")
        self.check(eager.arange(5), np.arange(5), "int64")
        self.check(eager.arange(2, 10, 3, dtype="int32"), np.arange(2, 10, 3), "int32")
        self.check(eager.arange(5, 0, -2), np.arange(5, 0, -2))
        self.check(eager.arange(0), np.arange(0))
        self.check(eager.eye(3, 4, k=1), np.eye(3, 4, 1))
        self.check(eager.tri(3, k=-1), np.tri(3, k=-1))
        self.check(eager.linspace(0, 1, 5), np.linspace(0, 1, 5), "float32")
        self.check(eager.hann_window(8, periodic=False), np.hanning(8))
        self.check(eager.hann_window(8), np.hanning(9)[:8])
        with self.assertRaises(ValueError):
            eager.zeros((-1,))

    def test_random(self):
        k = eager.key(3)
        for f in (eager.uniform, eager.gaussian):
            a, b, c = f((1000,), key=k), f((1000,), key=k), f((1000,), key=eager.key(4))
            self.check(a, b.numpy())
            self.assertFalse(np.array_equal(a.numpy(), c.numpy()))
        u, g = eager.uniform((20000,), 2.0, 5.0).numpy(), eager.gaussian((20000,)).numpy()
        self.assertTrue((u >= 2).all() and (u < 5).all() and abs(u.mean() - 3.5) < 0.05)
        self.assertTrue(abs(g.mean()) < 0.05 and abs(g.std() - 1) < 0.05)
        keys = eager.split_key(k, 4).numpy()
        self.assertEqual(len(set(keys.tolist())), 4)
        self.assertFalse(np.array_equal(eager.uniform((8,)).numpy(), eager.uniform((8,)).numpy()))
        for name, dtype in (("random_bits", "uint32"), ("random_uniform", "float32"), ("random_normal", "float32")):
            self.assertEqual(getattr(eager, name)(k, (4,)).dtype, dtype)

        i = eager.randint((5000,), -3, 4, key=k).numpy()
        self.assertEqual(set(i.tolist()), set(range(-3, 4)))
        self.assertNotEqual(eager.fold_in(k, 1).item(), eager.fold_in(k, 2).item())

    def test_lanes_have_keys_of_their_own(self):
        keys = eager.split_key(eager.key(1), 3)
        rows = eager.vmap(lambda k: eager.uniform((5,), key=k))(keys).numpy()
        for i in range(3):
            np.testing.assert_array_equal(rows[i], eager.uniform((5,), key=keys[i]).numpy())


class MultiOutput(Case):
    def test_parts(self):
        a = data((6, 5), "float32")
        t = eager.constant(a)
        for got, want in zip(eager.split(t, num_splits=3), np.split(a, 3)):
            self.check(got, want)
        for got, want in zip(eager.chunk(t, chunks=4, axis=1), np.array_split(a, 4, 1)):
            self.check(got, want)
        for got, want in zip(eager.unbind(t, axis=1), a.T):
            self.check(got, want)
        r = eager.minmax(t)
        self.assertEqual((r["min"].item(), r["max"].item()), (a.min(), a.max()))
        self.assertIsInstance(eager.split(t, 3), tuple)
        self.assertIsInstance(eager.chunk(t, 3), list)
        for bad in (lambda: eager.split(t, 4), lambda: eager.split(t, 0), lambda: eager.chunk(t, 2, axis=2)):
            with self.assertRaises(ValueError):
                bad()


if __name__ == "__main__":
    unittest.main()
