"""Every operation of the table on parts: each dim of each input cut in turn, on meshes of one and two axes,
against the same operation on whole tensors. Bit by bit where no sum is split.

On meshes of 2, 8 and 2x4, in uneven parts, and of gradients, EAS_SOAK=1 runs all cuts; otherwise it is one of
them, another one for each operation."""

import itertools
import os
import unittest

import numpy as np

import eager
from eager import DeviceMesh, Tensor
from eas._eas import tensor_ops

FOUR, TWO, GRID = DeviceMesh("four", (4,), ("x",)), DeviceMesh("two", (2,), ("x",)), DeviceMesh("grid", (2, 2), ("x", "y"))
EIGHT, WIDE, THREE = DeviceMesh("eight", (8,), ("x",)), DeviceMesh("wide", (2, 4), ("x", "y")), DeviceMesh("three", (3,), ("x",))
SOAK = os.environ.get("EAS_SOAK") == "1"
R = np.random.default_rng(7)


def f(*shape):
    return R.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return R.uniform(0.1, 0.9, shape).astype(np.float32)


def i(*shape, low=0, high=4):
    return R.integers(low, high, shape)


def b(*shape):
    return R.integers(0, 2, shape).astype(bool)


X, Y, V = f(8, 4), f(8, 4), f(4)
INT, BITS = i(8, 4, low=-9, high=9), i(8, 4, low=0, high=5)
IMAGE, FILTER = f(4, 8, 8, 4), f(3, 3, 4, 8)
SUM = 2e-6  # sums in another order

# name: (inputs, function, tolerance; 0: bit by bit)
CASES = {}


def case(name, inputs, fn, tol=0.0, key=None):
    CASES[key or name] = (name, inputs, fn, tol)


for n in "sin cos tan sinh cosh tanh asinh exp exp2 expm1 cbrt sigmoid erf silu gelu relu neg abs sign square floor ceil round trunc is_nan is_inf is_finite signbit atan".split():
    case(n, [X], tensor_ops[n])
for n in "asin acos atanh log log1p log2 log10 sqrt rsqrt reciprocal".split():
    case(n, [positive(8, 4)], tensor_ops[n])
case("acosh", [positive(8, 4) + 1], tensor_ops["acosh"])
for n in "add sub mul div maximum minimum atan2 hypot copysign nextafter logaddexp equal not_equal less less_equal greater greater_equal floordiv mod".split():
    case(n, [X, Y], tensor_ops[n])
    if n in ("add", "mul", "less"):
        case(n, [X, V], tensor_ops[n], key=n + " broadcast")
case("pow", [positive(8, 4), Y], tensor_ops["pow"])
for n in "logical_and logical_or logical_xor".split():
    case(n, [b(8, 4), b(8, 4)], tensor_ops[n])
case("logical_not", [b(8, 4)], tensor_ops["logical_not"])
for n in "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split():
    case(n, [BITS, i(8, 4)], tensor_ops[n])
case("bitwise_invert", [INT], tensor_ops["bitwise_invert"])
case("cast", [X], lambda x: x.cast("i32"))
case("where", [b(8, 4), X, Y], eager.where)
case("fma", [X, Y, X], eager.fma)
case("barrier", [X, Y], lambda x, y: tensor_ops["barrier"](x, y))
case("stop_gradient", [X], tensor_ops["stop_gradient"])
case("reshape", [f(8, 8)], lambda x: x.reshape((4, 2, 8)))
case("reshape", [f(8, 8)], lambda x: x.reshape((64,)), key="reshape merged")
case("reshape", [f(8, 4)], lambda x: x.reshape((2, 16)), key="reshape other")
case("reshape_physical", [f(8, 4)], lambda x: tensor_ops["reshape_physical"](x, (4, 8)))
case("flatten", [f(4, 4, 4)], lambda x: eager.flatten(x, 1, 2))
case("unflatten", [f(4, 8)], lambda x: tensor_ops["unflatten"](x, 1, (4, 2)))
case("squeeze", [f(4, 1, 8)], lambda x: eager.squeeze(x, 1))
case("squeeze_physical", [f(4, 1, 8)], lambda x: tensor_ops["squeeze_physical"](x, 1))
case("unsqueeze", [X], lambda x: eager.unsqueeze(x, 1))
case("unsqueeze_physical", [X], lambda x: tensor_ops["unsqueeze_physical"](x, 0))
case("permute", [f(4, 8, 4)], lambda x: x.permute((2, 0, 1)))
case("swap_axes", [X], lambda x: eager.swap_axes(x, 0, 1))
case("matrix_transpose", [X], tensor_ops["matrix_transpose"])
case("moveaxis", [f(4, 8, 4)], lambda x: eager.moveaxis(x, 0, 2))
case("moveaxis_physical", [f(4, 8, 4)], lambda x: tensor_ops["moveaxis_physical"](x, (0,), (2,)))
case("broadcast_to", [f(8, 1, 4)], lambda x: eager.broadcast_to(x, (8, 3, 4)))
case("broadcast_to_physical", [V], lambda x: tensor_ops["broadcast_to_physical"](x, (8, 4)))
case("broadcast_batch_dims", [X], lambda x: eager.with_batch_dims(tensor_ops["broadcast_batch_dims"](eager.with_batch_dims(eager.unsqueeze(x, 0), 1), (3,)), 0))
case("slice_steps", [f(8, 8)], lambda x: tensor_ops["slice_steps"](x, (1, 0), (3, 4), (2, 2)))
case("slice", [f(8, 8)], lambda x: x[2:6, 1:])
case("slice", [f(8, 8)], lambda x: x[4:, ::-2], key="slice back")
case("slice_tensor", [f(8, 8)], lambda x: eager.slice_tensor(x, (2,), (4,)))
case("slice_tensor_physical", [f(8, 8)], lambda x: tensor_ops["slice_tensor_physical"](x, (2,), (5,)))
case("flip", [X], lambda x: eager.flip(x, 0))
case("flip", [X], lambda x: eager.flip(x), key="flip all")
case("diagonal", [f(8, 8, 4)], lambda x: tensor_ops["diagonal"](x, 1))
case("slice_update", [f(8, 8), f(4, 8)], lambda x, u: eager.slice_update(x, u, (2, 0), (4, 8)))
case("slice_set", [f(8, 8), f(8, 4)], lambda x, u: x.at[:, 1::2].set(u))
case("incr_batch_dims", [X], lambda x: eager.with_batch_dims(tensor_ops["incr_batch_dims"](x), 0))
case("decr_batch_dims", [X], lambda x: tensor_ops["decr_batch_dims"](eager.with_batch_dims(x, 1)))
case("alias", [X], lambda x: eager.with_batch_dims(x, 0))
case("move_axis_to_batch_dims", [X], lambda x: eager.with_batch_dims(tensor_ops["move_axis_to_batch_dims"](x, 1), 0))
case("move_axis_from_batch_dims", [X], lambda x: tensor_ops["move_axis_from_batch_dims"](eager.with_batch_dims(x, 1), 0, 1))
case("lift_batch_dims", [X], lambda x: eager.with_batch_dims(tensor_ops["lift_batch_dims"](x, 2), 0))
case("concatenate", [X, f(4, 4)], lambda x, y: eager.concatenate([x, y]))
case("concatenate", [X, f(8, 8)], lambda x, y: eager.concatenate([x, y], axis=1), key="concatenate 1")
case("stack", [X, Y], lambda x, y: eager.stack([x, y], axis=1))
case("split", [f(8, 8)], lambda x: eager.split(x, 2, axis=1))
case("chunk", [f(8, 8)], lambda x: eager.chunk(x, 3, axis=0))
case("unbind", [X], lambda x: eager.unbind(x, axis=1))
case("tile", [X], lambda x: eager.tile(x, (2, 3)))
case("repeat", [X], lambda x: eager.repeat(x, 3, axis=0))
case("roll", [X], lambda x: eager.roll(x, (3, 1), axis=(0, 1)))
case("roll", [X], lambda x: eager.roll(x, 5), key="roll flat")
case("shuffle_physical", [f(4, 4)], lambda x: [tensor_ops["shuffle_physical"](x, 0, (1, 2, 3, 0)), tensor_ops["shuffle_physical"](x, 1, (3, -1, 0)), tensor_ops["shuffle_physical"](x, 0, (1, 1, 2, 0))])
for mode in "constant edge reflect symmetric wrap maximum minimum mean linear_ramp".split():
    case("pad", [f(8, 4)], lambda x, mode=mode: eager.pad(x, [(2, 1), (1, 2)], mode=mode), SUM if mode == "mean" else 0, key="pad " + mode)
case("pad_constant", [X, np.float32(2.0)], lambda x, v: tensor_ops["pad_constant"](x, v, (1, 0), (0, 2)))
case("gather", [f(8, 4), i(8, high=8)], lambda x, k: eager.gather(x, k, axis=0))
case("gather", [f(8, 4), i(4, 4, high=4)], lambda x, k: eager.gather(x, k, axis=1), key="gather 1")
case("take_along_axis", [f(8, 4), i(8, 4, high=4)], lambda x, k: eager.take_along_axis(x, k, axis=1))
case("index", [f(8, 4), i(4, high=8), i(4, high=4)], lambda x, k, j: x[k, j])
for mode in "set add mul min max".split():
    case("scatter", [f(8, 4), np.array([3, 0, 5, 3]), f(4, 4)], lambda x, k, u, mode=mode: eager.scatter(x, k, u, axis=0, mode=mode), SUM, key="scatter " + mode)
case("index_update", [f(8, 4), np.array([3, 0, 5, 1]), f(4)], lambda x, k, u: x.at[k, 2].set(u))
case("put_along_axis", [f(8, 4), i(8, 4, high=4), f(8, 4)], lambda x, k, v: tensor_ops["put_along_axis"](x, k, v, 1))
case("searchsorted", [np.sort(f(8)), f(4)], lambda x, v: tensor_ops["searchsorted"](x, v))
case("flat_nonzero", [i(8, high=2)], lambda x: tensor_ops["flat_nonzero"](x, 3))
case("compact", [i(8, 1024, high=2)], lambda x: tensor_ops["flat_nonzero"](x, 2000))  # what it is made of
case("count_unique", [i(8)], tensor_ops["count_unique"])
case("unique", [np.array([1, 2, 1, 3, 2, 1, 0, 3])], lambda x: [tensor_ops["unique"](x, 4, k) for k in range(4)])
case("iota", [X], lambda x: x + tensor_ops["iota"]((8, 4), 0, "f32") - tensor_ops["iota"]((8, 4), 1, "f32"))
for n in "full zeros ones".split():
    case(n, [X], lambda x, n=n: x + (eager.full((8, 4), 3.0) if n == "full" else getattr(eager, n)((8, 4))))
case("arange", [X], lambda x: x + eager.arange(32).reshape((8, 4)))
case("linspace", [f(8)], lambda x: x + eager.linspace(0.0, 1.0, 8))
case("eye", [f(8, 8)], lambda x: x + eager.eye(8))
case("tri", [f(8, 8)], lambda x: x + tensor_ops["tri"]((8, 8), 1, "f32"))
case("tril", [f(8, 8)], eager.tril)
case("triu", [f(8, 8)], lambda x: eager.triu(x, 1))
case("hann_window", [f(8)], lambda x: x * eager.hann_window(8))
KEY = np.uint64(5)
for n in "random_bits random_uniform random_normal".split():
    case(n, [f(8, 4)], lambda x, n=n: x + tensor_ops[n](Tensor.constant(KEY), (8, 4)).cast("f32"))
case("uniform", [X], lambda x: x + tensor_ops["uniform"](Tensor.constant(KEY), 0.0, 2.0, (8, 4), "f32"))
case("gaussian", [X], lambda x: x + tensor_ops["gaussian"](Tensor.constant(KEY), 0.0, 2.0, (8, 4), "f32"))
case("randint", [INT], lambda x: x + tensor_ops["randint"](Tensor.constant(KEY), 0, 9, (8, 4), "i64"))
case("split_key", [np.arange(8, dtype=np.uint64)], lambda k: k + tensor_ops["split_key"](Tensor.constant(KEY), 8))
case("fold_in", [np.arange(8)], lambda d: tensor_ops["fold_in"](Tensor.constant(KEY), d))
for n in "reduce_sum prod reduce_max reduce_min any all mean var std count_nonzero logsumexp".split():
    data = b(8, 4) if n in ("any", "all") else f(8, 4)
    exact = n in ("reduce_max", "reduce_min", "any", "all", "count_nonzero")
    case(n, [data], lambda x, n=n: [tensor_ops[n](x), tensor_ops[n](x, 0), tensor_ops[n](x, 1, True)], 0 if exact else 2e-5)
for n in "reduce_sum prod reduce_max reduce_min any all mean".split():
    data = b(8, 4) if n in ("any", "all") else f(8, 4)
    case(n + "_physical", [data], lambda x, n=n: tensor_ops[n + "_physical"](x, 0), 2e-5)
for n in "softmax logsoftmax".split():
    case(n, [f(8, 4)], lambda x, n=n: [tensor_ops[n](x, 0), tensor_ops[n](x, 1)], 1e-5)
case("minmax", [X], lambda x: list(eager.minmax(x).values()))
for n in "argmax argmin".split():
    case(n, [X], lambda x, n=n: [tensor_ops[n](x, 0), tensor_ops[n](x, 1), tensor_ops[n](x, None)])
for n in "cumsum cumprod cummax cummin".split():  # how a scan is cut into lanes follows from the sizes of the other dims
    case(n, [X], lambda x, n=n: [tensor_ops[n](x, 0), tensor_ops[n](x, 1, reverse=True)], 0 if n in ("cummax", "cummin") else SUM)
for n in "cumulative_sum cumulative_prod".split():
    case(n, [X], lambda x, n=n: tensor_ops[n](x, 0, True), SUM)
case("diff", [X], lambda x: eager.diff(x, axis=0))
case("sort", [X], lambda x: [eager.sort(x, axis=0), eager.sort(x, axis=1, descending=True)])
case("argsort", [X], lambda x: eager.argsort(x, axis=0))
case("topk", [X], lambda x: list(eager.topk(x, 2, axis=0)))
case("matmul", [f(8, 8), f(8, 4)], eager.matmul, SUM)
case("matmul", [f(4, 8, 4), f(4, 8)], eager.matmul, SUM, key="matmul batch")
case("matmul", [f(4, 4, 8), f(4, 8, 4)], eager.matmul, SUM, key="matmul both")
case("matmul", [f(8), f(8, 4)], eager.matmul, SUM, key="matmul vector")
case("matmul", [i(8, 8), i(8, 4)], eager.matmul, key="matmul integers")
case("outer", [f(8), f(4)], eager.outer)
case("vecdot", [X, Y], lambda x, y: tensor_ops["vecdot"](x, y, 0), SUM)
case("tensordot", [f(4, 8), f(8, 4)], lambda x, y: eager.tensordot(x, y, axes=1), SUM)
case("dot", [f(4, 8), f(8, 4)], lambda x, y: tensor_ops["dot"](x, y), SUM)
case("trace", [f(8, 8)], tensor_ops["trace"], SUM)
case("window", [f(4, 8)], lambda x: tensor_ops["window"](x, (1,), (3,), (1,), (1,)))
case("conv2d", [IMAGE, FILTER], lambda x, w: eager.conv2d(x, w, padding=1), 2e-5)
case("conv2d", [IMAGE, f(3, 3, 2, 4)], lambda x, w: eager.conv2d(x, w, stride=2, groups=2), 2e-5, key="conv2d groups")
case("conv2d_transpose", [f(4, 4, 4, 4), f(3, 3, 4, 4)], lambda x, w: eager.conv2d_transpose(x, w, stride=2), 2e-5)
case("avg_pool2d", [IMAGE], lambda x: eager.avg_pool2d(x, 2, stride=2), SUM)
case("max_pool2d", [IMAGE], lambda x: eager.max_pool2d(x, 3, stride=1, padding=1))
case("clip", [X], lambda x: eager.clip(x, -0.5, 0.5))
case("layer_norm", [X, f(4), f(4)], lambda x, w, c: eager.layer_norm(x, w, c, axis=-1), 2e-5)
case("rms_norm", [X], lambda x: eager.rms_norm(x, axis=0), 2e-5)
case("one_hot", [i(8)], lambda x: eager.one_hot(x, 4))

# Not functions of tensors that a user calls.
NOT_CALLED = {"leaf", "constant", "input", "const", "custom", "call", "loop", "branch", "result", "shard", "collective"}


def leaves(r):
    return [x.numpy() for x in (r if isinstance(r, list | tuple) else [r])]


def close(got, want, tol, what):
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype, f"{what}: {g.dtype}{g.shape}, {w.dtype}{w.shape}"
        if tol == 0:
            np.testing.assert_array_equal(g, w, err_msg=what)
        else:
            np.testing.assert_allclose(g, w, rtol=max(tol, 1e-6) * 8, atol=tol * 8, err_msg=what)


def cuts(arrays, sizes):
    """One dim of one input at a time, of those that divide; then all inputs by their first such dim."""
    found = [(k, d) for k, a in enumerate(arrays) for d in range(np.ndim(a)) if np.shape(a)[d] % sizes == 0]
    for k, d in found:
        yield {k: {d: "x"}}
    firsts = {}
    for k, d in found:
        firsts.setdefault(k, {d: "x"})
    if len(firsts) > 1:
        yield firsts


def grid_cuts(arrays):
    """Two dims of an input along two axes, or one dim along both."""
    for k, a in enumerate(arrays):
        dims = [d for d in range(np.ndim(a)) if np.shape(a)[d] % 2 == 0]
        for d, e in itertools.islice(itertools.combinations(dims, 2), 2):
            yield {k: {d: "x", e: "y"}}
        whole = [d for d in dims if np.shape(a)[d] % 4 == 0]
        if whole:
            yield {k: {whole[0]: ("y", "x")}}


def wide_cuts(arrays):
    """As grid_cuts, on 2x4 devices."""
    for k, a in enumerate(arrays):
        pairs = [(d, e) for d, e in itertools.permutations(range(np.ndim(a)), 2) if np.shape(a)[d] % 2 == 0 and np.shape(a)[e] % 4 == 0]
        for d, e in pairs[:4]:
            yield {k: {d: "x", e: "y"}}
        for d in [d for d in range(np.ndim(a)) if np.shape(a)[d] % 8 == 0][:1]:
            yield {k: {d: ("x", "y")}}


def uneven_cuts(arrays):
    """One dim at a time, whose size does not divide."""
    for k, a in enumerate(arrays):
        for d in range(np.ndim(a)):
            if np.shape(a)[d] % 3:
                yield {k: {d: "x"}}


def some(how, key):
    """All of the cuts in a soak, else one, which depends on the operation."""

    def chosen(arrays):
        every = list(how(arrays))
        return every if SOAK or not every else [every[sum(map(ord, key)) % len(every)]]

    return chosen


def put(a, cut, mesh):
    t = Tensor.constant(a)
    return t if cut is None else t.shard(mesh, [cut.get(d) for d in range(a.ndim)], pad=mesh is THREE)


class Table(unittest.TestCase):
    def run_case(self, key, mesh, how):
        name, arrays, fn, tol = CASES[key]
        want = leaves(fn(*map(Tensor.constant, arrays)))
        for cut in how(arrays):
            tensors = [put(np.asarray(a), cut.get(k), mesh) for k, a in enumerate(arrays)]
            what = f"{key}, cut {cut} on {mesh}"
            try:
                got = leaves(fn(*tensors))
            except Exception as e:
                raise AssertionError(f"{what}: {type(e).__name__}: {e}") from e
            close(got, want, tol, what)

    def test_every_operation_is_here(self):
        self.assertEqual(set(tensor_ops) - {c[0] for c in CASES.values()} - NOT_CALLED, set())

    def test_four(self):
        for key in CASES:
            with self.subTest(key):
                self.run_case(key, FOUR, lambda a: cuts(a, 4))

    def test_grid(self):
        for key in CASES:
            with self.subTest(key):
                self.run_case(key, GRID, grid_cuts)

    def test_two_and_eight(self):
        for key in CASES:
            with self.subTest(key):
                self.run_case(key, TWO, some(lambda a: cuts(a, 2), key))
                self.run_case(key, EIGHT, some(lambda a: cuts(a, 8), key))

    def test_two_by_four(self):
        for key in CASES:
            with self.subTest(key):
                self.run_case(key, WIDE, some(wide_cuts, key))

    def test_uneven_parts(self):
        for key in CASES:
            with self.subTest(key):
                self.run_case(key, THREE, some(uneven_cuts, key))

    def test_gradients(self):
        for key, (_, arrays, fn, _) in CASES.items():
            if np.asarray(arrays[0]).dtype != np.float32:
                continue

            def loss(x, rest, fn=fn):
                r = fn(x, *rest)
                parts = [t for t in (r if isinstance(r, list | tuple) else [r]) if t.dtype == "float32"]
                return sum(((t * t).sum() for t in parts), start=(x * 0).sum())

            with self.subTest(key):
                rest = [Tensor.constant(a) for a in arrays[1:]]
                try:
                    want = eager.grad(loss)(Tensor.constant(arrays[0]), rest).numpy()
                except (NotImplementedError, ValueError, TypeError):  # no derivative
                    continue
                for cut in some(lambda a: list(cuts(a[:1], 4)), key)(arrays):
                    got = eager.grad(loss)(put(np.asarray(arrays[0]), cut[0], FOUR), rest).numpy()
                    np.testing.assert_allclose(got, want, rtol=5e-4, atol=5e-5 * max(1, float(np.abs(want).max())), err_msg=f"gradient of {key}, cut {cut}")


if __name__ == "__main__":
    unittest.main()
