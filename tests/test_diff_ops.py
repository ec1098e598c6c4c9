"""Derivatives of every operation of the table: forward against finite differences in f64, reverse against
forward, both against JAX where it has the operation, under vmap and compile, and once more for second
derivatives. A new row fails until it has a case here."""

import functools
import itertools
import unittest
import zlib

import numpy as np

import eager
from eager import Tensor, compile, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

try:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
except ImportError:  # tools/setup.sh says so
    jax = jnp = None

RNG = np.random.default_rng(11)


def C(a):
    return Tensor.constant(np.asarray(a, np.float64))


def N(t):
    return np.asarray(t.numpy(), np.float64)


def reseed(name):
    """The numbers of a case do not depend on which cases ran before it."""
    global RNG
    RNG = np.random.default_rng(zlib.crc32(name.encode()))


def u(*shape, low=-2.0, high=2.0):
    return RNG.uniform(low, high, shape)


def apart(*shape):
    """Numbers that are far from each other, from zero and from halves: no corner is near."""
    n = int(np.prod(shape))
    return (RNG.permutation(n) * 0.37 + 0.21 - n * 0.17).reshape(shape)


class Case:
    """f of tensors; j: the same in JAX; args: arrays it is differentiated by. second: second derivatives are
    checked, too. h: the step of the differences."""

    def __init__(self, f, *args, j=None, second=True, tol=1e-5, h=1e-6):
        self.f, self.args, self.j, self.second, self.tol, self.h = f, [np.asarray(a, np.float64) for a in args], j, second, tol, h


def op(name, **kw):
    return functools.partial(getattr(eager, name), **kw) if kw else getattr(eager, name)


def unary(name, low=-2.0, high=2.0, j=None, second=True):
    f = getattr(eager, name)
    j = j or (getattr(jnp, name, None) if jnp else None)
    return [
        Case(f, u(2, 3, low=low, high=high), j=j, second=second),
        Case(f, u(low=low, high=high), j=j, second=False),
        Case(f, u(0, 3, low=low, high=high), second=False),
    ]


def binary(name, j=None, low=-2.0, high=2.0, second=True):
    f = getattr(eager, name)
    a, b = u(2, 3, low=low, high=high), u(2, 3, low=low, high=high)
    return [
        Case(f, a, b, j=j, second=second),
        Case(f, a, u(3, low=low, high=high), j=j, second=False),
        Case(f, u(2, 1, low=low, high=high), u(4, 1, 3, low=low, high=high), j=j, second=second),
        Case(f, u(low=low, high=high), b, j=j, second=False),
    ]


J = jnp
IDX = np.array([2, 0, 2, 1])
IDX2 = np.array([[0, 2], [2, 1]])


def T(a):
    return Tensor.constant(a)


def jx(f):
    """f, if there is JAX."""
    return f if jnp else None


CASES = {
    "sin": unary("sin"), "cos": unary("cos"), "tan": unary("tan", -1, 1), "asin": unary("asin", -0.9, 0.9, j=jx(lambda x: J.arcsin(x))),
    "acos": unary("acos", -0.9, 0.9, j=jx(lambda x: J.arccos(x))), "atan": unary("atan", j=jx(lambda x: J.arctan(x))), "sinh": unary("sinh"), "cosh": unary("cosh"), "tanh": unary("tanh"),
    "asinh": unary("asinh", j=jx(lambda x: J.arcsinh(x))), "acosh": unary("acosh", 1.2, 4, j=jx(lambda x: J.arccosh(x))), "atanh": unary("atanh", -0.8, 0.8, j=jx(lambda x: J.arctanh(x))),
    "exp": unary("exp"), "exp2": unary("exp2"), "expm1": unary("expm1"), "log": unary("log", 0.2, 4), "log1p": unary("log1p", -0.5, 4), "log2": unary("log2", 0.2, 4), "log10": unary("log10", 0.2, 4),
    "sqrt": unary("sqrt", 0.2, 4), "cbrt": unary("cbrt", 0.2, 4), "rsqrt": unary("rsqrt", 0.2, 4, j=jx(lambda x: jax.lax.rsqrt(x))), "sigmoid": unary("sigmoid", j=jx(lambda x: jax.nn.sigmoid(x))),
    "erf": unary("erf", j=jx(lambda x: jax.scipy.special.erf(x))), "silu": unary("silu", j=jx(lambda x: jax.nn.silu(x))), "gelu": unary("gelu", j=jx(lambda x: jax.nn.gelu(x))),
    "relu": [Case(eager.relu, apart(2, 3), j=jx(lambda x: jax.nn.relu(x)), second=False)], "neg": unary("neg", j=jx(lambda x: -x), second=False),
    "abs": [Case(eager.abs, apart(2, 3), j=jx(lambda x: J.abs(x)), second=False)], "square": unary("square"), "reciprocal": unary("reciprocal", 0.5, 3),
    "cast": [Case(lambda x: eager.cast(eager.cast(x, "float32"), "float64") * x, u(4), tol=1e-4, h=1e-2, second=False)],  # a step that is long beside the rounding to f32; of a parabola, differences are exact
    "add": binary("add", jx(lambda x, y: x + y), second=False), "sub": binary("sub", jx(lambda x, y: x - y), second=False), "mul": binary("mul", jx(lambda x, y: x * y)),
    "div": binary("div", jx(lambda x, y: x / y), 0.5, 3),
    "mod": [Case(eager.mod, np.array([5.3, -5.3, 7.1, 2.4]), np.array([2.0, 2.1, -3.0, 5.0]), j=jx(lambda x, y: J.mod(x, y)), second=False)],
    "pow": [*binary("pow", jx(lambda x, y: x**y), 0.3, 3), Case(lambda x: x**3, u(4), j=jx(lambda x: x**3)), Case(lambda x: 2.0**x, u(4), j=jx(lambda x: 2.0**x))],
    "maximum": [Case(eager.maximum, apart(6)[::2], apart(6)[1::2], j=jx(lambda x, y: J.maximum(x, y)), second=False)],
    "minimum": [Case(eager.minimum, apart(6)[::2], apart(6)[1::2], j=jx(lambda x, y: J.minimum(x, y)), second=False)],
    "atan2": binary("atan2", jx(lambda x, y: J.arctan2(x, y)), 0.3, 2), "hypot": binary("hypot", jx(lambda x, y: J.hypot(x, y)), 0.3, 2),
    "copysign": [Case(eager.copysign, apart(4), apart(4), j=jx(lambda x, y: J.copysign(x, y)), second=False)],
    "logaddexp": binary("logaddexp", jx(lambda x, y: J.logaddexp(x, y))),
    "fma": [Case(lambda x, y, z: eager.fma(x, y, z), u(2, 3), u(3), u(2, 1), j=jx(lambda x, y, z: x * y + z))],
    "where": [Case(lambda x, y: eager.where(T(np.array([True, False, True])), x, y), u(2, 3), u(3), j=jx(lambda x, y: J.where(np.array([True, False, True]), x, y)), second=False)],
    "reshape": [Case(lambda x: x.reshape((3, 4)) * T(np.arange(12.0).reshape(3, 4)), u(2, 6), second=False)],
    "reshape_physical": [Case(lambda x: eager.reshape_physical(x, (6, 2)), u(3, 4), second=False)],
    "flatten": [Case(lambda x: eager.flatten(x) ** 2, u(2, 3))], "unflatten": [Case(lambda x: eager.unflatten(x, 1, (3, 2)) ** 2, u(2, 6))],
    "squeeze": [Case(lambda x: eager.squeeze(x, 1) ** 2, u(2, 1, 3))], "squeeze_physical": [Case(lambda x: eager.squeeze_physical(x, (0,)) ** 2, u(1, 3))],
    "unsqueeze": [Case(lambda x: eager.unsqueeze(x, 1) ** 2, u(2, 3))], "unsqueeze_physical": [Case(lambda x: eager.unsqueeze_physical(x, (0,)) ** 2, u(3))],
    "permute": [Case(lambda x: eager.permute(x, (2, 0, 1)) ** 2, u(2, 3, 4))], "swap_axes": [Case(lambda x: eager.swap_axes(x, 0, 2) ** 2, u(2, 3, 4))],
    "matrix_transpose": [Case(lambda x: eager.matrix_transpose(x) ** 2, u(2, 3, 4))], "moveaxis": [Case(lambda x: eager.moveaxis(x, 0, 2) ** 2, u(2, 3, 4))],
    "moveaxis_physical": [Case(lambda x: eager.moveaxis_physical(x, 0, 1) ** 2, u(2, 3))],
    "broadcast_to": [Case(lambda x: eager.broadcast_to(x, (4, 2, 3)) ** 2, u(2, 1))], "broadcast_to_physical": [Case(lambda x: eager.broadcast_to_physical(x, (2, 3)) ** 2, u(1, 3))],
    "slice_steps": [Case(lambda x: x[1:6:2, ::-1] ** 2, u(7, 3))], "slice": [Case(lambda x: x[::-2] ** 2, u(7)), Case(lambda x: x[2:5] ** 2, u(7)), Case(lambda x: x[3:3] ** 2, u(7), second=False)],
    "slice_tensor": [Case(lambda x: eager.slice_tensor(x, start=(1, 0), size=(2, 2)) ** 2, u(4, 3))],
    "slice_tensor_physical": [Case(lambda x: eager.slice_tensor_physical(x, start=(1, 0), size=(2, 2)) ** 2, u(4, 3))],
    "flip": [Case(lambda x: eager.flip(x, 0) ** 2, u(4, 2))], "diagonal": [Case(lambda x: eager.diagonal(x, 1) ** 2, u(4, 5))],
    "slice_update": [Case(lambda x, y: eager.slice_update(x, y, start=(1, 0), size=(2, 2)) ** 2, u(4, 3), u(2, 2))],
    "slice_set": [Case(lambda x, y: x.at[::2].set(y) ** 2, u(5, 3), u(3, 3))],
    "incr_batch_dims": [Case(lambda x: eager.decr_batch_dims(eager.incr_batch_dims(x) ** 2), u(2, 3))], "decr_batch_dims": [Case(lambda x: eager.decr_batch_dims(eager.incr_batch_dims(x)) ** 2, u(2, 3))],
    "move_axis_to_batch_dims": [Case(lambda x: eager.move_axis_from_batch_dims(eager.move_axis_to_batch_dims(x, 1) ** 2), u(2, 3))],
    "move_axis_from_batch_dims": [Case(lambda x: eager.move_axis_from_batch_dims(eager.move_axis_to_batch_dims(x, 1)) ** 2, u(2, 3))],
    "lift_batch_dims": [Case(lambda x: vmap(lambda y: x * y)(T(np.arange(3.0))), u(2))], "barrier": [Case(lambda x: eager.barrier(x, x * 3.0) ** 2, u(3)), Case(lambda x: eager.barrier(x, x), u(0, 2), second=False)], "zeros": [], "ones": [], "broadcast_batch_dims": [Case(lambda x: vmap(lambda y: x, axis_size=2, in_axes=None)(x) ** 2, u(3))],
    "concatenate": [Case(lambda x, y: eager.concatenate([x, y, x], axis=1) ** 2, u(2, 3), u(2, 2))], "stack": [Case(lambda x, y: eager.stack([x, y], axis=1) ** 2, u(2, 3), u(2, 3))],
    "split": [Case(lambda x: eager.split(x, num_splits=2, axis=0)[1] ** 2, u(4, 2))], "chunk": [Case(lambda x: eager.chunk(x, chunks=3, axis=0)[1] ** 2, u(5, 2))],
    "unbind": [Case(lambda x: eager.unbind(x, axis=0)[1] ** 2, u(3, 2))], "tile": [Case(lambda x: eager.tile(x, (2, 3)) ** 2, u(2, 2))],
    "repeat": [Case(lambda x: eager.repeat(x, 3, axis=0) ** 2, u(2, 2))], "roll": [Case(lambda x: eager.roll(x, 2, axis=0) ** 2, u(5, 2))],
    "pad": [Case(lambda x, m=m: eager.pad(x, [(2, 1), (0, 2)], m) ** 2, apart(4, 3), second=m not in ("maximum", "minimum"), j=jx(lambda x, m=m: J.pad(x, [(2, 1), (0, 2)], m) ** 2))
            for m in ("constant", "edge", "reflect", "symmetric", "wrap", "maximum", "minimum", "mean", "linear_ramp")],
    "pad_constant": [Case(lambda x, v: eager.pad_constant(x, v, (1, 0), (2, 1)) ** 2, u(2, 3), u())],
    "gather": [Case(lambda x: eager.gather(x, T(IDX), axis=0) ** 2, u(3, 2), j=jx(lambda x: J.take(x, IDX, axis=0) ** 2)), Case(lambda x: eager.gather(x, T(IDX2), axis=1) ** 2, u(2, 3))],
    "take_along_axis": [Case(lambda x: eager.take_along_axis(x, T(IDX2), axis=0) ** 2, u(3, 2)), Case(lambda x: eager.take_along_axis(x, T(np.array([[0, 2, 2, 1]])), axis=1) ** 2, u(2, 3))],
    "index": [Case(lambda x: x[T(IDX), T(np.array([0, 1, 1, 0]))] ** 2, u(3, 2), j=jx(lambda x: x[IDX, np.array([0, 1, 1, 0])] ** 2))],
    "scatter": [
        Case(lambda x, v: eager.scatter(x, T(IDX), v, axis=0) ** 2, u(3, 2), u(4, 2), j=None),
        Case(lambda x, v: eager.scatter(x, T(IDX), v, axis=0, mode="add") ** 2, u(3, 2), u(4, 2), j=jx(lambda x, v: x.at[IDX].add(v) ** 2)),
        Case(lambda x, v: eager.scatter(x, T(IDX), v, axis=0, mode="mul") ** 2, u(3, 2), u(4, 2)),
        Case(lambda x, v: eager.scatter(x, T(IDX), v, axis=1, mode="max"), apart(2, 3), apart(2, 4) + 0.11, second=False, j=jx(lambda x, v: x.at[:, IDX].max(v))),
        Case(lambda x, v: eager.scatter(x, T(IDX), v, axis=1, mode="min"), apart(2, 3), apart(2, 4) + 0.11, second=False, j=jx(lambda x, v: x.at[:, IDX].min(v))),
    ],
    "index_update": [Case(lambda x, v: x.at[T(IDX), T(np.array([0, 1, 1, 0]))].add(v) ** 2, u(3, 2), u(4))],
    "put_along_axis": [Case(lambda x, v: eager.put_along_axis(x, T(IDX2), v, axis=0) ** 2, u(3, 2), u(2, 2))],
    "full": [Case(lambda x: eager.full((2, 3), x) ** 2, u())], "linspace": [Case(lambda a, b: eager.linspace(a, b, 5, dtype="float64") ** 2, u(), u())],
    "tril": [Case(lambda x: eager.tril(x) ** 2, u(3, 3))], "triu": [Case(lambda x: eager.triu(x, 1) ** 2, u(3, 3))],
    "uniform": [Case(lambda a, b: eager.uniform((4,), low=a, high=b, key=eager.key(3), dtype="float64") ** 2, u(), u(low=3, high=4))],
    "gaussian": [Case(lambda m, s: eager.gaussian((4,), mean=m, std=s, key=eager.key(3), dtype="float64") ** 2, u(), u(low=3, high=4))],
    "reduce_sum": [Case(lambda x: eager.reduce_sum(x, axis=1) ** 2, u(2, 3)), Case(lambda x: eager.reduce_sum(x) ** 2, u(2, 3)), Case(lambda x: eager.reduce_sum(x, axis=0, keepdims=True) ** 2, u(2, 3)), Case(lambda x: eager.reduce_sum(x, axis=0), u(0, 3), second=False)],
    "prod": [Case(lambda x: eager.prod(x, axis=1), u(2, 5), j=jx(lambda x: J.prod(x, axis=1))), Case(lambda x: eager.prod(x), np.array([[2.0, 0.0, 3.0], [1.0, 4.0, 5.0]]), j=jx(lambda x: J.prod(x))),
             Case(lambda x: eager.prod(x), np.array([2.0, 0.0, 3.0, 0.0]), j=jx(lambda x: J.prod(x)))],
    "reduce_max": [Case(lambda x: eager.reduce_max(x, axis=1), apart(2, 5), second=False, j=jx(lambda x: J.max(x, axis=1)))],
    "reduce_min": [Case(lambda x: eager.reduce_min(x), apart(2, 5), second=False, j=jx(lambda x: J.min(x)))],
    "mean": [Case(lambda x: eager.mean(x, axis=0) ** 2, u(4, 3), j=jx(lambda x: J.mean(x, axis=0) ** 2))], "var": [Case(lambda x: eager.var(x, axis=0), u(4, 3), j=jx(lambda x: J.var(x, axis=0)))],
    "std": [Case(lambda x: eager.std(x, axis=1, correction=1), u(3, 4), j=jx(lambda x: J.std(x, axis=1, ddof=1)))],
    "logsumexp": [Case(lambda x: eager.logsumexp(x, axis=1), u(3, 4), j=jx(lambda x: jax.nn.logsumexp(x, axis=1)))],
    "softmax": [Case(lambda x: eager.softmax(x, axis=0) ** 2, u(3, 4), j=jx(lambda x: jax.nn.softmax(x, axis=0) ** 2))],
    "logsoftmax": [Case(lambda x: eager.logsoftmax(x) ** 2, u(3, 4), j=jx(lambda x: jax.nn.log_softmax(x) ** 2))],
    "minmax": [Case(lambda x: eager.minmax(x)["max"] - eager.minmax(x)["min"], apart(2, 3), second=False)],
    "cumsum": [Case(lambda x: eager.cumsum(x, axis=1) ** 2, u(2, 4), j=jx(lambda x: J.cumsum(x, axis=1) ** 2)), Case(lambda x: eager.cumsum(x, axis=0, reverse=True) ** 2, u(3, 2))],
    "cumprod": [Case(lambda x: eager.cumprod(x, axis=1), u(2, 5), j=jx(lambda x: J.cumprod(x, axis=1))), Case(lambda x: eager.cumprod(x, axis=0), np.array([2.0, 0.0, 3.0, 0.0, 5.0]), j=jx(lambda x: J.cumprod(x))),
                Case(lambda x: eager.cumprod(x, axis=0, reverse=True), u(6))],
    "cummax": [Case(lambda x: eager.cummax(x, axis=1), apart(2, 6), second=False, j=jx(lambda x: jax.lax.cummax(x, axis=1)))], "cummin": [Case(lambda x: eager.cummin(x, axis=0, reverse=True), apart(6), second=False, j=jx(lambda x: jax.lax.cummin(x, reverse=True)))],
    "cumulative_sum": [Case(lambda x: eager.cumulative_sum(x, axis=0, include_initial=True) ** 2, u(4))], "cumulative_prod": [Case(lambda x: eager.cumulative_prod(x, axis=0, include_initial=True), u(4))],
    "diff": [Case(lambda x: eager.diff(x, n=2) ** 2, u(2, 5), j=jx(lambda x: J.diff(x, n=2) ** 2))],
    "sort": [Case(lambda x: eager.sort(x, axis=0) ** 2, apart(5, 2), j=jx(lambda x: J.sort(x, axis=0) ** 2)), Case(lambda x: eager.sort(x, descending=True) ** 2, apart(7))],
    "topk": [Case(lambda x: eager.topk(x, 3)[0] ** 2, apart(2, 6), j=jx(lambda x: jax.lax.top_k(x, 3)[0] ** 2)), Case(lambda x: eager.topk(x, 2, axis=0, largest=False)[0] ** 2, apart(5, 2))],
    "reduce_sum_physical": [Case(lambda x: eager.reduce_sum_physical(x, 0) ** 2, u(3, 2))], "prod_physical": [Case(lambda x: eager.prod_physical(x, 0), u(3, 2))],
    "reduce_max_physical": [Case(lambda x: eager.reduce_max_physical(x, 0), apart(3, 2), second=False)], "reduce_min_physical": [Case(lambda x: eager.reduce_min_physical(x, 0), apart(3, 2), second=False)],
    "mean_physical": [Case(lambda x: eager.mean_physical(x, 0) ** 2, u(3, 2))],
    "matmul": [Case(lambda x, y: x @ y, u(*a), u(*b), j=jx(lambda x, y: x @ y)) for a, b in [((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((4, 1, 2, 3), (2, 3, 2)), ((0, 3), (3, 2))]],
    "outer": [Case(eager.outer, u(3), u(2), j=jx(lambda x, y: J.outer(x, y)))], "vecdot": [Case(lambda x, y: eager.vecdot(x, y), u(2, 3), u(3))],
    "tensordot": [Case(lambda x, y: eager.tensordot(x, y, axes=([1, 2], [0, 1])), u(2, 3, 4), u(3, 4, 2), j=jx(lambda x, y: J.tensordot(x, y, ([1, 2], [0, 1]))))],
    "dot": [Case(eager.dot, u(2, 3), u(3, 4), j=jx(lambda x, y: J.dot(x, y)))], "trace": [Case(lambda x: eager.matrix_trace(x), u(3, 3), j=jx(lambda x: J.trace(x)), second=False)],
    "window": [Case(lambda x: eager.window(x, [0], [3], [2], [1]) ** 2, u(9, 2)), Case(lambda x: eager.window(x, [0, 1], [2, 2], [1, 1], [1, 2]) ** 2, u(4, 5)), Case(lambda x: eager.window(x, [0], [20], [3], [1]) ** 2, u(40), second=False)],
    "conv2d": [],
    "conv2d_transpose": [Case(lambda x, w, b, s=s, d=d, p=p, o=o: eager.conv2d_transpose(x, w, stride=s, dilation=d, padding=p, output_paddings=o, bias=b), u(1, 4, 3, 2), u(3, 2, 3, 2), u(3)) for s, d, p, o in [(1, 1, 0, 0), (2, 1, 1, 1), (1, 2, 1, 0)]],
    "avg_pool2d": [Case(lambda x, kw=kw: eager.avg_pool2d(x, **kw) ** 2, u(2, 5, 6, 2)) for kw in [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3, "stride": 2, "padding": 1, "count_boundary": False, "ceil_mode": True}]],
    "max_pool2d": [Case(lambda x, kw=kw: eager.max_pool2d(x, **kw), apart(2, 5, 6, 2), second=False) for kw in [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 2, "dilation": 2, "stride": 1}]],
    "clip": [Case(lambda x: eager.clip(x, -1.0, 1.0), apart(6), second=False, j=jx(lambda x: J.clip(x, -1.0, 1.0))), Case(lambda x, a, b: eager.clip(x, a, b), apart(6), np.array(-1.0), np.array(1.0), second=False)],
    "layer_norm": [Case(lambda x, w, b: eager.layer_norm(x, w, b), u(3, 5), u(5), u(5))], "rms_norm": [Case(lambda x, w: eager.rms_norm(x, w), u(3, 5), u(5))],
}  # fmt: skip


def conv_cases():
    def make(s, d, p, g):
        def f(x, w, b):
            return eager.conv2d(x, w, stride=s, dilation=d, padding=p, groups=g, bias=b)

        def j(x, w, b):
            q = [(p, p)] * 2 if isinstance(p, int) else [(p[0], p[1]), (p[2], p[3])]
            return (
                jax.lax.conv_general_dilated(x, w, (s, s), q, rhs_dilation=(d, d), feature_group_count=g, dimension_numbers=("NHWC", "HWIO", "NHWC"))
                + b
            )

        return Case(f, u(2, 6, 7, 4), u(3, 2, 4 // g, 4), u(4), j=jx(j))

    return [make(*a) for a in [(1, 1, 0, 1), (2, 1, 1, 1), (3, 1, 0, 1), (1, 2, 1, 1), (2, 1, (0, 1, 2, 0), 1), (1, 1, 1, 2), (2, 2, 1, 4)]]


CASES["conv2d"] = conv_cases()
# Recorded by other tests, or never recorded as nodes.
ELSEWHERE = {"alias", "custom", "unique", "arange", "zeros", "ones"}


CASES["shuffle_physical"] = [
    Case(lambda x: eager.ops._table.tensor_ops["shuffle_physical"](x, 0, (2, -1, 0)) ** 2, u(4, 2)),
    Case(lambda x: eager.ops._table.tensor_ops["shuffle_physical"](x, 1, (1, 1, 0)) ** 2, u(2, 2)),
]  # drawn last: the other cases keep their numbers


def flat(ts):
    return [np.asarray(N(t)).ravel() for t in ts]


def some_of(n):
    """Every choice of some of n arguments, but not all."""
    return [m for k in range(1, n) for m in itertools.combinations(range(n), k)]


class TestEveryOperation(unittest.TestCase):
    def test_there_is_a_case_for_every_row(self):
        from eas._eas import tensor_ops

        differentiable = {n for n, o in tensor_ops.items() if o.derivative != "zero"}
        missing = sorted(n for n in differentiable - ELSEWHERE if not CASES.get(n))
        self.assertEqual(missing, [], "rows of op.def without a case here")

    def each(self, check):
        for name, cases in CASES.items():
            for k, c in enumerate(cases):
                with self.subTest(op=name, case=k):
                    reseed(f"{name} {k}")
                    check(name, c)

    def close(self, got, want, tol, what):
        np.testing.assert_allclose(got, want, rtol=tol, atol=tol, err_msg=what)

    def test_forward_against_differences(self):
        def check(name, c):
            ts = [u(*a.shape) for a in c.args]
            out, dot = jvp(c.f, [C(a) for a in c.args], [C(t) for t in ts])
            plus, minus = (N(c.f(*[C(a + s * c.h * t) for a, t in zip(c.args, ts)])) for s in (1, -1))
            self.close(N(dot), (plus - minus) / (2 * c.h), max(c.tol, 1e-5), name)
            self.close(N(out), N(c.f(*[C(a) for a in c.args])), 1e-12, name)

        self.each(check)

    def test_reverse_against_forward(self):
        def check(name, c):
            ts = [u(*a.shape) for a in c.args]
            out, dot = jvp(c.f, [C(a) for a in c.args], [C(t) for t in ts])
            _, pull = vjp(c.f, *[C(a) for a in c.args])
            ct = u(*out.shape)
            grads = pull(C(ct))
            for g, a in zip(grads, c.args):
                self.assertEqual(tuple(g.shape), a.shape, name)
            left = float((ct * N(dot)).sum())
            right = sum(float((N(g) * t).sum()) for g, t in zip(grads, ts))
            self.close(left, right, max(1e-9, 1e-6 if name == "cast" else 0), name)

        self.each(check)

    @unittest.skipUnless(jax, "needs JAX")
    def test_against_jax(self):
        def check(name, c):
            if c.j is None:
                return
            ts = [u(*a.shape) for a in c.args]
            _, dot = jvp(c.f, [C(a) for a in c.args], [C(t) for t in ts])
            jout, jdot = jax.jvp(c.j, c.args, ts)
            self.close(N(dot), np.asarray(jdot), 1e-8, name)
            ct = u(*jout.shape)
            grads = vjp(c.f, *[C(a) for a in c.args])[1](C(ct))
            for g, w in zip(grads, jax.vjp(c.j, *c.args)[1](ct)):
                self.close(N(g), np.asarray(w), 1e-8, name)

        self.each(check)

    def test_jacobians_agree(self):
        def check(name, c):
            nums = tuple(range(len(c.args)))
            rev = jacrev(c.f, nums)(*[C(a) for a in c.args])
            fwd = jacfwd(c.f, nums)(*[C(a) for a in c.args])
            for r, f, a in zip(rev, fwd, c.args):
                self.assertEqual(tuple(r.shape)[len(r.shape) - a.ndim :], a.shape, name)
                self.close(N(r), N(f), 1e-9 if name != "cast" else 1e-5, name)

        self.each(check)

    def test_under_vmap(self):
        def check(name, c):
            if "physical" in name or "batch_dims" in name or name == "pad_constant":
                return  # they count the batch dims that vmap adds; a fill is one number for all lanes
            n = 3
            many = [np.stack([a + 0.01 * k * np.abs(a) for k in range(n)]) for a in c.args]
            ts = [u(n, *a.shape) for a in c.args]
            got = N(vmap(lambda xs, tt: jvp(c.f, xs, tt)[1])([C(m) for m in many], [C(t) for t in ts]))
            want = [N(jvp(c.f, [C(m[k]) for m in many], [C(t[k]) for t in ts])[1]) for k in range(n)]
            self.close(got, np.stack(want), 1e-9 if name != "cast" else 1e-5, name)
            ct = u(*got.shape)
            back = vmap(lambda xs, d: vjp(c.f, *xs)[1](d))([C(m) for m in many], C(ct))
            for i, b in enumerate(back):
                want = np.stack([N(vjp(c.f, *[C(m[k]) for m in many])[1](C(ct[k]))[i]) for k in range(n)])
                self.close(N(b), want, 1e-9 if name != "cast" else 1e-5, name)
            # only some arguments are mapped: the others have a gradient in every lane
            for mapped in some_of(len(c.args)):
                xs = [C(many[i]) if i in mapped else C(a) for i, a in enumerate(c.args)]
                axes = [0 if i in mapped else None for i in range(len(c.args))]
                y = vmap(c.f, in_axes=tuple(axes))(*xs)
                mixed = vmap(lambda d, *xs: vjp(c.f, *xs)[1](d), in_axes=(0, *axes))(C(ct), *xs)
                each = [vjp(c.f, *[C(many[i][k]) if i in mapped else C(a) for i, a in enumerate(c.args)]) for k in range(n)]
                self.close(N(y), np.stack([N(e[0]) for e in each]), 1e-9 if name != "cast" else 1e-5, f"{name} {mapped}")
                each = [e[1](C(ct[k])) for k, e in enumerate(each)]
                for i, b in enumerate(mixed):
                    self.close(N(b), np.stack([N(e[i]) for e in each]), 1e-9 if name != "cast" else 1e-5, f"{name} {mapped}")

        self.each(check)

    def test_lanes_with_indices_of_their_own(self):
        """Data, indices and values of what reads and writes by index, each mapped or not."""
        x, v, at, along = u(3, 4, 2), u(2, 4, 2), np.array([2, 0]), np.array([[[2, 0], [1, 1], [0, 2], [1, 0]], [[0, 1], [2, 0], [1, 1], [2, 2]]])
        rows, wide = np.array([[[1, 0, 1]]]), u(3, 4, 3)
        cases = [
            (f"put_along_axis {m}", lambda x, i, v, m=m: eager.put_along_axis(x, i, v, axis=0, mode=m), x, along, v)
            for m in ("set", "add", "mul", "max", "min")
        ]
        cases += [
            (f"put_along_axis of rows {m}", lambda x, i, v, m=m: eager.put_along_axis(x, i, v, axis=-1, mode=m), x, rows, wide)
            for m in ("set", "add", "mul", "max", "min")
        ]
        cases += [
            (f"scatter {m}", lambda x, i, v, m=m: eager.scatter(x, i, v, axis=0, mode=m), x, at, v) for m in ("set", "add", "mul", "max", "min")
        ]
        cases += [("x[i] = v", lambda x, i, v: x.at[i].set(v), x, at, v), ("x[:, i] = v", lambda x, i, v: x.at[:, i].add(v), x, at, u(3, 2, 2))]
        cases += [
            ("gather", lambda x, i, v: eager.gather(x, i, axis=0) * v, x, at, v),
            ("take_along_axis", lambda x, i, v: eager.take_along_axis(x, i, axis=0) * v, x, along, v),
        ]
        cases += [("x[i]", lambda x, i, v: x[i] * v, x, at, v), ("x[i, :, i]", lambda x, i, v: x[i, :, 1 - i % 2] * v[:, :, 0], x, at, v)]
        n, tensor = 2, Tensor.constant
        for name, f, x, i, v in cases:
            whole = (x, i, v)
            many = (np.stack([x, x * 1.5]), np.stack([i, i[::-1]]), np.stack([v, v * 0.7 + 0.01]))
            for mapped in (*some_of(3), (0, 1, 2)):
                with self.subTest(case=name, mapped=mapped):
                    axes = tuple(0 if k in mapped else None for k in range(3))
                    given = [tensor(many[k] if k in mapped else whole[k]) for k in range(3)]
                    lanes = [[tensor(many[k][lane] if k in mapped else whole[k]) for k in range(3)] for lane in range(n)]

                    def both(x, i, v):
                        return f(x, i, v), grad(lambda x, v: (f(x, i, v) ** 2).sum(), (0, 1))(x, v), hessian(lambda v: (f(x, i, v) ** 2).sum())(v)

                    got, want = vmap(both, in_axes=axes)(*given), [both(*lane) for lane in lanes]
                    for a, *b in zip(eager.tree_leaves(got), *[eager.tree_leaves(w) for w in want]):
                        self.close(N(a), np.stack([N(one) for one in b]), 1e-9, name)

    def test_derivatives_of_vmap(self):
        def check(name, c):
            if "physical" in name or "batch_dims" in name:
                return
            n = 2
            first = np.stack([c.args[0] + 0.01 * k for k in range(n)])
            rest = c.args[1:]

            def total(x, *others):
                y = vmap(lambda one: c.f(one, *others))(x)
                return (y * y).sum() if y.shape else y

            def single(x, *others):
                ys = [c.f(x[k], *others) for k in range(n)]
                return sum(((y * y).sum() for y in ys[1:]), (ys[0] * ys[0]).sum())

            nums = tuple(range(len(c.args)))
            got = grad(total, nums)(C(first), *[C(a) for a in rest])
            want = grad(single, nums)(C(first), *[C(a) for a in rest])
            for g, w in zip(got, want):
                self.close(N(g), N(w), 1e-8 if name != "cast" else 1e-4, name)

        self.each(check)

    def test_second_derivatives(self):
        def check(name, c):
            if not c.second:
                return
            nums = tuple(range(len(c.args)))
            shape = N(c.f(*[C(a) for a in c.args])).shape
            ct = u(*shape)

            def scalar(*xs):
                return (c.f(*xs) * C(ct)).sum()

            ts = [u(*a.shape) for a in c.args]
            at = [C(a) for a in c.args]
            forward = jvp(grad(scalar, nums), at, [C(t) for t in ts])[1]
            plus, minus = ([N(g) for g in grad(scalar, nums)(*[C(a + s * c.h * t) for a, t in zip(c.args, ts)])] for s in (1, -1))
            for f, p, m in zip(forward, plus, minus):
                self.close(N(f), (p - m) / (2 * c.h), 2e-4, name)
            reverse = grad(lambda *xs: sum(((g * C(t)).sum() for g, t in zip(grad(scalar, nums)(*xs), ts)), C(0.0)), nums)(*at)
            for f, r in zip(forward, reverse):
                self.close(N(f), N(r), 1e-8, name)

        self.each(check)

    def test_compiled(self):
        def check(name, c):
            nums = tuple(range(len(c.args)))

            def scalar(*xs):
                y = c.f(*xs)
                return (y * y).sum()

            got = compile(grad(scalar, nums), fullgraph=True)(*[C(a) for a in c.args])
            want = grad(scalar, nums)(*[C(a) for a in c.args])
            for g, w in zip(got, want):
                self.close(N(g), N(w), 1e-9, name)

        self.each(check)

    def test_every_float_dtype(self):
        def check(name, c):
            if name in ("cast", "uniform", "gaussian", "linspace"):
                return
            for dtype, tol in (("float32", 2e-3), ("float16", 0.15), ("bfloat16", 0.6)):
                xs = [eager.cast(C(a), dtype) for a in c.args]
                exact = [np.asarray(N(eager.cast(x, "float64"))) for x in xs]
                y = c.f(*xs)
                ct = eager.cast(C(u(*y.shape)), y.dtype)
                try:
                    grads = vjp(c.f, *xs)[1](ct)
                except ValueError:
                    continue  # a constant of another float dtype is in the case
                want = vjp(c.f, *[C(e) for e in exact])[1](C(N(eager.cast(ct, "float64"))))
                for g, w, x in zip(grads, want, xs):
                    self.assertEqual(g.dtype, x.dtype, name)
                    scale = 1 + np.abs(N(w)).max(initial=0)
                    self.close(N(eager.cast(g, "float64")) / scale, N(w) / scale, tol, f"{name} {dtype}")

        self.each(check)


if __name__ == "__main__":
    unittest.main()
