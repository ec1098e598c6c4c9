"""Shardings as metadata: they follow every operation, through compile, vmap and loops; what they say is true
of the values; rules in factors."""

import unittest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import eager
import eas
from eager import DeviceMesh, DimSpec, OpShardingRule, P, PropagationStrategy, ShardingSpec, Tensor, propagate_sharding
from eas import mk

MESH = DeviceMesh("m", (2, 2, 3), ("x", "y", "z"))


def told(t):
    """The axes of each dim, and those that are partial: [["x"], []], {"y"}; None: no sharding."""
    return None if t.sharding is None else ([d.axes for d in t.sharding.dim_specs], t.sharding.partial_sum_axes)


def tensor(shape, *spec):
    a = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    t = Tensor.constant(a)
    return t.shard(MESH, list(spec)) if spec else t


class Operations(unittest.TestCase):
    def check(self, t, dims, partial=()):
        self.assertEqual(told(t), ([[d] if isinstance(d, str) else list(d or ()) for d in dims], set(partial)))

    def test_element_by_element(self):
        t, v = tensor((4, 6), "x", "z"), tensor((6,))
        for r in (
            t + 1,
            2 - t,
            t * v,
            v + t,
            -t,
            t.cast("f16"),
            eager.where(t > 0, t, 0.0),
            eager.maximum(t, v),
            eager.sin(t),
            abs(t),
            t // 2,
            t.cast("i32") + 1,
        ):
            self.check(r, ["x", "z"])
            self.assertEqual(r.sharding, t.sharding)
        self.check(tensor((4, 1), "x", None) + tensor((6,), "z"), ["x", "z"])
        self.check(tensor((4, 6), "x", None) + tensor((4, 6), None, "z"), ["x", "z"])
        self.check(tensor((4, 6), "x", None) + tensor((4, 6), "y", None), [None, None])
        self.check(tensor((4, 6), ("x", "y"), None) + tensor((4, 6), "x", None), [("x", "y"), None])
        self.assertIsNone((v + 1).sharding)

    def test_views(self):
        t = tensor((4, 6, 2), "x", "z", "y")
        self.check(t.permute((2, 0, 1)), ["y", "x", "z"])
        self.check(eager.swap_axes(t, 0, 1), ["z", "x", "y"])
        self.check(t.reshape((4, 12)), ["x", "z"])
        self.check(t.reshape((24, 2)), ["x", "y"])
        self.check(t.reshape((2, 2, 6, 2)), ["x", None, "z", "y"])
        self.check(t.reshape((4, 3, 2, 2)), ["x", "z", None, "y"])
        self.check(tensor((8, 3), ("x", "y"), None).reshape((2, 4, 3)), ["x", "y", None])
        self.check(tensor((2, 4, 3), "x", "y", None).reshape((8, 3)), [("x", "y"), None])
        self.check(tensor((4, 2), None, "y").reshape((8,)), [None])
        self.check(tensor((6, 4, 2), "x", None, "y").reshape((4, 6, 2)), [None, None, "y"])
        self.check(t.reshape((4, 1, 6, 2)), ["x", None, "z", "y"])
        self.check(eager.unsqueeze(t, 1), ["x", None, "z", "y"])
        self.check(eager.squeeze(tensor((4, 1, 2), "x", None, "y"), 1), ["x", "y"])
        self.check(eager.broadcast_to(tensor((4, 1), "x", None), (3, 4, 5)), [None, "x", None])
        self.check(t[1:], [None, "z", "y"])
        self.check(t[:, 2], ["x", "y"])
        self.check(t[..., None], ["x", "z", "y", None])
        self.check(t[:, ::-1], ["x", None, "y"])
        self.check(eager.flip(t, 0), [None, "z", "y"])
        self.check(eager.pad(t, [(0, 0), (1, 1), (0, 0)]), ["x", None, "y"])
        self.check(eager.concatenate([t, t], axis=1), ["x", None, "y"])
        self.check(eager.stack([t, t], axis=1), ["x", None, "z", "y"])
        for part in eager.split(t, 2, axis=1):
            self.check(part, ["x", None, "y"])
        self.check(eager.flatten(t, 1, 2), ["x", "z"])
        self.check(t.at[0].set(1.0), ["x", "z", "y"])

    def test_reductions(self):
        t = tensor((4, 6, 2), "x", "z", "y")
        self.check(t.sum(), [], "xyz")
        self.check(t.sum(axis=1), ["x", "y"], "z")
        self.check(t.sum(axis=1, keepdims=True), ["x", None, "y"], "z")
        self.check(t.mean(axis=(0, 2)), ["z"], "xy")
        self.check(t.max(axis=0), ["z", "y"])
        self.check(eager.prod(t, axis=0), ["z", "y"])
        self.check(eager.argmax(t, axis=1), ["x", "y"])
        self.check(eager.cumsum(t, axis=0), [None, "z", "y"])
        self.check(eager.sort(t, axis=2), ["x", "z", None])
        self.check(eager.softmax(t), ["x", "z", "y"])
        self.check(eager.logsumexp(t, axis=0), ["z", "y"])
        self.check(eager.layer_norm(t, axis=-1), ["x", "z", "y"])

    def test_products(self):
        a, b = tensor((4, 6), "x", "z"), tensor((6, 8), None, "y")
        self.check(a @ b, ["x", "y"], "z")
        self.check(b.T @ a.T, ["y", "x"], "z")
        self.check(tensor((6, 4, 6), "x", None, None) @ b, ["x", None, "y"])
        self.check(a @ tensor((6,), "z"), ["x"], "z")
        self.check(a @ tensor((6, 4), None, "x"), ["x", None], "z")
        self.check(eager.outer(tensor((4,), "x"), tensor((6,), "z")), ["x", "z"])
        self.check(eager.tensordot(a, b, axes=1), ["x", "y"], "z")

    def test_by_index(self):
        t, i = tensor((4, 6), "x", "z"), Tensor.constant([0, 2, 1, 3])
        self.check(eager.gather(t, i, axis=1), ["x", None])
        self.check(eager.gather(t, i.shard(MESH, ["y"]), axis=1), ["x", "y"])
        self.check(t[[0, 1]], [None, "z"])
        self.check(eager.take_along_axis(t, Tensor.zeros((4, 2), dtype="i64"), axis=1), ["x", None])
        self.check(eager.scatter(t, i, Tensor.zeros((4, 4)), axis=1), ["x", None])

    def test_images(self):
        x, w = tensor((4, 8, 8, 3), "x", None, None, None), tensor((3, 3, 3, 6), None, None, None, "z")
        self.check(eager.conv2d(x, w), ["x", None, None, "z"])
        self.check(eager.max_pool2d(x, 2), ["x", None, None, None])

    def test_partial_results_are_carried_where_that_is_linear(self):
        p, q = tensor((4, 6), "x", "z") @ tensor((6, 2)), tensor((4, 2))
        for r in (-p, p * 2, p / 3, p * q, p.T.T, p + p, p.sum(axis=1), p @ tensor((2, 5)), p.cast("f16"), eager.concatenate([p, p])):
            self.assertEqual(r.sharding.partial_sum_axes, {"z"})
        for r in (p + 1, p + q, eager.exp(p), p * p, 1 / p, p.max(axis=1), p.cast("i32"), eager.concatenate([p, q]), p @ p.T, eager.relu(p)):
            self.assertEqual(r.sharding.partial_sum_axes, set())

    def test_compile_vmap_loops(self):
        t = tensor((4, 6), "x", "z")
        f = eager.compile(lambda v: {"a": v * 2, "b": v.sum(axis=0), "c": v})
        for _ in range(2):
            r = f(t)
            self.check(r["a"], ["x", "z"])
            self.check(r["b"], ["z"])  # a result that is there is a whole sum
            self.check(r["c"], ["x", "z"])
        self.assertIsNone(f(tensor((4, 6)))["a"].sharding)
        self.assertEqual(f.stats.misses, 2)
        self.check(eager.vmap(lambda v: v * 2, in_axes=1, out_axes=1)(t), ["x", "z"])
        self.check(eager.vmap(lambda v: v * 2, in_axes=1)(t), ["z", "x"])
        self.check(eager.vmap(lambda v: v.sum())(t), ["x"], "z")
        self.check(eager.while_loop(lambda s: s.sum() < 0, lambda s: s * 2, t), ["x", "z"])
        carry, ys = eager.scan(lambda c, x: (c + x, c * 2), tensor((6,), "z"), t)
        self.check(carry, ["z"])
        self.check(ys, [None, "z"])

    def test_gather_and_shard_again(self):
        t = tensor((4, 6), "x", "z")
        self.assertIsNone(t.gather().sharding)
        self.check(t.shard(MESH, P("y")), ["y", None])
        self.assertEqual((t + 1).tolist(), (t.gather() + 1).tolist())

    def test_other_meshes(self):
        other = DeviceMesh("n", (2,), ("x",))
        with self.assertRaisesRegex(ValueError, "'m'.*'n'"):
            tensor((4,), "x") + Tensor.ones((4,)).shard(other, ["x"])

    def test_flags_go_along(self):
        t = Tensor.ones((4, 6)).shard(MESH, [DimSpec(["x"], is_open=True, priority=2), None], replicated_axes={"y"})
        r = (t * 2).T
        self.assertEqual(r.sharding.dim_specs, [DimSpec([]), DimSpec(["x"], is_open=True, priority=2)])
        self.assertEqual(r.sharding.replicated_axes, {"y"})
        self.assertEqual(r.sharding.mesh, MESH)


# What a sharding says is true: computing with a part of the input gives that part of the result, or a part of
# the sum.
ONE = {
    "neg": lambda x: -x, "sin": eager.sin, "sum0": lambda x: x.sum(axis=0), "sum12": lambda x: x.sum(axis=(1, 2)), "mean1": lambda x: x.sum(axis=1) * 0.5, "max": lambda x: x.max(axis=1, keepdims=True),
    "permute": lambda x: x.permute((2, 0, 1)), "merge": lambda x: x.reshape((x.shape[0], -1)), "merge first": lambda x: x.reshape((-1, x.shape[2])), "unsqueeze": lambda x: eager.unsqueeze(x, (0, 2)),
    "slice": lambda x: x[:, 1:3], "step": lambda x: x[..., ::2], "flip": lambda x: eager.flip(x, 1), "pad": lambda x: eager.pad(x, [(0, 0), (1, 2), (0, 0)]), "concatenate": lambda x: eager.concatenate([x, x], axis=1),
    "stack": lambda x: eager.stack([x, x * 2], axis=-1), "softmax": lambda x: eager.softmax(x, axis=1), "layer_norm": lambda x: eager.layer_norm(x, axis=1), "argmax": lambda x: eager.argmax(x, axis=1),
    "cumsum": lambda x: eager.cumsum(x, axis=1), "sort": lambda x: eager.sort(x, axis=1), "topk": lambda x: eager.topk(x, 2, axis=1)[0], "gather": lambda x: eager.gather(x, Tensor.constant([1, 0, 1]), axis=1),
    "tile": lambda x: eager.tile(x, (1, 2, 1)), "repeat": lambda x: eager.repeat(x, 2, axis=1), "roll": lambda x: eager.roll(x, 1, axis=1), "diff": lambda x: eager.diff(x, axis=1), "var": lambda x: eager.var(x, axis=1),
    "matmul": lambda x: x @ Tensor.arange(int(x.shape[2]) * 3).reshape((x.shape[2], 3)), "outer": lambda x: eager.outer(x.reshape((-1,)), Tensor.arange(2)), "clip": lambda x: eager.clip(x, -0.5, 0.5),
    "unbind": lambda x: eager.unbind(x, axis=1)[0], "split": lambda x: eager.split(x, 2, axis=1)[1], "broadcast": lambda x: eager.broadcast_to(x, (2, *x.shape)), "logsumexp": lambda x: eager.logsumexp(x, axis=1),
    "where": lambda x: eager.where(x > 0, x, -1.0), "triu": lambda x: eager.triu(x), "cast": lambda x: x.cast("f64").sum(axis=0), "norm": lambda x: (x * x).sum(axis=1, keepdims=True),
}  # fmt: skip


# Here the parts need something of each other (maxima, means) or know where they are in the whole: what is
# told is true, but a part alone cannot show it.
TOGETHER = {("softmax", 1), ("layer_norm", 1), ("var", 1), ("triu", 1), ("triu", 2), ("matmul", 2)}


class Truth(unittest.TestCase):
    def test_parts(self):
        a = np.random.default_rng(0).standard_normal((4, 6, 2)).astype(np.float32)
        told_of = 0
        for name, f in ONE.items():
            for dim in range(3):
                spec = [None] * 3
                spec[dim] = "x"
                whole = f(Tensor.constant(a).shard(MESH, spec))
                dims, partial = told(whole)
                if (name, dim) in TOGETHER or not (partial or any(dims)):
                    continue
                parts = [f(Tensor.constant(p)).numpy() for p in np.split(a, 2, axis=dim)]
                told_of += 1
                at = [k for k, d in enumerate(dims) if d == ["x"]]
                joined = sum(parts) if partial else np.concatenate(parts, axis=at[0])
                np.testing.assert_allclose(joined, whole.numpy(), rtol=1e-5, atol=1e-5, err_msg=f"{name}, dim {dim}: {dims}, {partial}")
        self.assertGreater(told_of, 80)


class Lanes(unittest.TestCase):
    def test_batch_dim_carries_the_axis(self):
        seen = []

        def f(v, w):
            seen.append(told(v))
            return v @ w

        r = eager.vmap(f, in_axes=(0, None), spmd_axis_name="x", mesh=MESH)(tensor((4, 6)), tensor((6, 2)))
        self.assertEqual(seen, [([["x"], []], set())])
        self.assertEqual(told(r), ([["x"], []], set()))
        r = eager.vmap(lambda v: v * 2, in_axes=1, out_axes=1, spmd_axis_name="x", mesh=MESH)(tensor((6, 4), "z", None))
        self.assertEqual(told(r), ([["z"], ["x"]], set()))
        nested = eager.vmap(eager.vmap(lambda v: v.sum(), spmd_axis_name="y", mesh=MESH), spmd_axis_name="x", mesh=MESH)
        self.assertEqual(told(nested(tensor((4, 2, 3)))), ([["x"], ["y"]], set()))
        inner = eager.vmap(lambda v: v.shard(MESH, ["z"]) * 1, spmd_axis_name="x", mesh=MESH)
        self.assertEqual(told(inner(tensor((4, 6)))), ([["x"], ["z"]], set()))
        g = eager.compile(eager.vmap(lambda v: v.sum(), spmd_axis_name="x", mesh=MESH))
        self.assertEqual(told(g(tensor((4, 6)))), ([["x"]], set()))

    def test_what_is_refused(self):
        cases = [
            (ValueError, "no axis 'w'", lambda: eager.vmap(abs, spmd_axis_name="w", mesh=MESH)),
            (ValueError, "needs a mesh", lambda: eager.vmap(abs, spmd_axis_name="x")(Tensor.ones((2,)))),
            (ValueError, "needs spmd_axis_name", lambda: eager.vmap(abs, mesh=MESH)),
            (TypeError, "DeviceMesh", lambda: eager.vmap(abs, spmd_axis_name="x", mesh="m")),
            (ValueError, "cut along axis 'x' already", lambda: eager.vmap(abs, spmd_axis_name="x", mesh=MESH)(tensor((4, 6), None, "x"))),
            (
                ValueError,
                "'n'",
                lambda: eager.vmap(abs, spmd_axis_name="x", mesh=MESH)(Tensor.ones((4,)).shard(DeviceMesh("n", (2,), ("x",)), ["x"])),
            ),
        ]
        for error, words, f in cases:
            with self.assertRaisesRegex(error, words):
                f()


def spec(*dims, partial=()):
    return ShardingSpec(MESH, [DimSpec(d or (), is_open=True) for d in dims], partial_sum_axes=partial)


MATMUL = OpShardingRule([{0: ["m"], 1: ["k"]}, {0: ["k"], 1: ["n"]}], [{0: ["m"], 1: ["n"]}], {"m": 12, "k": 12, "n": 12})


class Rules(unittest.TestCase):
    def test_matmul(self):
        a, b, c = spec("x", "z"), spec(None, "y"), spec(None, None)
        self.assertTrue(propagate_sharding(MATMUL, [a, b], [c]))
        self.assertEqual((a, b, c), (spec("x", "z"), spec("z", "y"), spec("x", "y", partial={"z"})))
        self.assertFalse(propagate_sharding(MATMUL, [a, b], [c]))

    def test_backwards(self):
        a, b, c = spec(None, None), spec(None, None), spec("x", "y")
        self.assertTrue(propagate_sharding(MATMUL, [a, b], [c]))
        self.assertEqual((a, b), (spec("x", None), spec(None, "y")))

    def test_closed_dims_stay(self):
        a, b, c = spec("x", None), spec(None, None), ShardingSpec(MESH, [None, None])
        propagate_sharding(MATMUL, [a, b], [c])
        self.assertEqual(c, ShardingSpec(MESH, [None, None]))

    def test_conflicts(self):
        add = OpShardingRule([{0: ["i"]}, {0: ["i"]}], [{0: ["i"]}], {"i": 12})
        for strategy, want in ((PropagationStrategy.BASIC, None), (PropagationStrategy.AGGRESSIVE, "z")):
            a, b, c = spec("x"), spec("z"), spec(None)
            propagate_sharding(add, [a, b], [c], strategy)
            self.assertEqual(c, spec(want))
        a, b, c = spec(["x", "y"]), spec(["x", "z"]), spec(None)
        propagate_sharding(add, [a, b], [c])
        self.assertEqual(c, spec("x"))
        first = ShardingSpec(MESH, [DimSpec(["z"], is_open=True, priority=0)])
        late, c = ShardingSpec(MESH, [DimSpec(["x"], is_open=True, priority=1)]), spec(None)
        propagate_sharding(add, [late, first], [c], PropagationStrategy.AGGRESSIVE)
        self.assertEqual(c, spec("z"))

    def test_merged_dims(self):
        merge = OpShardingRule([{0: ["a"], 1: ["b"]}], [{0: ["a", "b"]}], {"a": 2, "b": 6})
        a, c = spec("x", "z"), spec(None)
        propagate_sharding(merge, [a], [c])
        self.assertEqual(c, spec(["x", "z"]))
        a, c = spec(None, None), spec(["y", "z"])
        propagate_sharding(merge, [a], [c])
        self.assertEqual(a, spec("y", "z"))
        a, c = spec(None, "z"), spec(None)
        propagate_sharding(merge, [a], [c])
        self.assertEqual(c, spec(None), "the inner factor alone cannot be said")

    def test_what_is_refused(self):
        with self.assertRaisesRegex(ValueError, "'q'"):
            OpShardingRule([{0: ["q"]}], [{}], {})
        with self.assertRaisesRegex(ValueError, "1 and 1 specs"):
            propagate_sharding(MATMUL, [spec(None, None)], [spec(None, None)])
        with self.assertRaisesRegex(ValueError, "1 dims"):
            propagate_sharding(MATMUL, [spec(None), spec(None, None)], [spec(None, None)])

    def test_an_axis_of_two_factors_is_used_once(self):
        rule = OpShardingRule([{0: ["c"]}, {0: ["d"]}], [{0: ["c", "d"]}], {"c": 2, "d": 2})
        out = ShardingSpec(MESH, [DimSpec((), is_open=True)])
        propagate_sharding(rule, [ShardingSpec(MESH, [DimSpec("y")]), ShardingSpec(MESH, [DimSpec("y")])], [out])
        self.assertEqual([d.axes for d in out.dim_specs], [["y"]])

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_always(self, data):
        """Nothing is taken away, no axis is used twice, a second time changes nothing."""
        names = ["a", "b", "c", "d"]

        def mapping():
            return {d: data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) for d in range(data.draw(st.integers(1, 3)))}

        def one(m):
            axes = data.draw(st.permutations(["x", "y", "z"]))
            cut = data.draw(st.lists(st.integers(0, len(m) - 1), max_size=3))
            dims = [[] for _ in m]
            for a, d in zip(axes, cut):
                dims[d].append(a)
            return ShardingSpec(MESH, [DimSpec(d, is_open=data.draw(st.booleans())) for d in dims])

        ins, outs = [mapping() for _ in range(data.draw(st.integers(1, 3)))], [mapping()]
        rule = OpShardingRule(
            ins, outs, {n: data.draw(st.sampled_from([2, 6, 12])) for n in names}, whole=data.draw(st.sets(st.sampled_from(names), max_size=1))
        )
        specs, out = [one(m) for m in ins], one(outs[0])
        before = [[list(d.axes) for d in s.dim_specs] for s in [*specs, out]]
        for _ in range(12):
            if not propagate_sharding(rule, specs, [out]):
                break
        else:
            self.fail("it does not come to an end")
        for s, was in zip([*specs, out], before):
            s.clone()  # raises if an axis is used twice
            for d, axes in zip(s.dim_specs, was):
                self.assertEqual(d.axes[: len(axes)], axes)
                self.assertTrue(d.is_open or d.axes == axes)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4), st.data())
    def test_reshape(self, shape, data):
        """What is told of a reshaped tensor is true of its parts."""
        count = int(np.prod(shape))
        to, left = [], count
        while left > 1 and len(to) < 4:
            n = data.draw(st.sampled_from([k for k in range(1, left + 1) if left % k == 0]))
            to.append(n)
            left //= n
        to.append(left)
        dim = data.draw(st.integers(0, len(shape) - 1))
        if shape[dim] % 2:
            return
        a = np.arange(count, dtype=np.float32).reshape(shape)
        spec = [None] * len(shape)
        spec[dim] = "x"
        r = Tensor.constant(a).shard(MESH, spec).reshape(tuple(to))
        at = [k for k, d in enumerate(told(r)[0]) if d == ["x"]]
        if at and to[at[0]] % 2 == 0:
            for p, q in zip(np.split(a, 2, axis=dim), np.split(a.reshape(to), 2, axis=at[0])):
                np.testing.assert_array_equal(p.reshape(-1), q.reshape(-1))


@eas.kernel
def twice(a, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) * 2.0, i < N)


class Dot(eager.Operation):
    name = "dot"

    def maxpr(self, a, b):
        return a @ b

    def sharding_rule(self, a, b):
        return eager.OpShardingRule([{0: ["m"], 1: ["k"]}, {0: ["k"], 1: ["n"]}], [{0: ["m"], 1: ["n"]}], {"m": a[0], "k": a[1], "n": b[1]})


class UsersRules(unittest.TestCase):
    mesh = eager.DeviceMesh("m", (2, 2), ("x", "y"))

    def axes(self, t):
        return [d.axes for d in t.sharding.dim_specs]

    def test_kernel(self):
        op = eager.from_kernel(twice, {"c": lambda a: a}, sharding=lambda a, **_: eager.OpShardingRule([{0: ["n"]}], [{0: ["n"]}], {"n": a[0]}))
        r = op(eager.arange(16.0).shard(self.mesh, eager.P("x")), N=16, BLOCK=16)
        self.assertEqual(self.axes(r), [["x"]])
        np.testing.assert_array_equal(r.numpy(), np.arange(16) * 2.0)
        rows = eager.arange(32.0).reshape(2, 16).shard(self.mesh, eager.P("y", "x"))
        r = eager.vmap(lambda a: op(a, N=16, BLOCK=16))(rows)
        self.assertEqual(self.axes(r), [["y"], ["x"]])
        self.assertIsNone(op(eager.arange(16.0), N=16, BLOCK=16).sharding)
        plain = eager.from_kernel(twice, {"c": lambda a: a})
        self.assertEqual(self.axes(plain(eager.arange(16.0).shard(self.mesh, eager.P("x")), N=16, BLOCK=16)), [["x"]])  # it is element-wise

    def test_operation(self):
        a, b = eager.ones((4, 6)).shard(self.mesh, eager.P("x", "y")), eager.ones((6, 8)).shard(self.mesh, eager.P("y", None))
        r = Dot()(a, b)
        self.assertEqual((self.axes(r), r.sharding.partial_sum_axes), ([["x"], []], {"y"}))
        np.testing.assert_array_equal(r.numpy(), np.full((4, 8), 6.0))

    def test_a_rule_for_other_tensors(self):
        op = eager.from_kernel(twice, {"c": lambda a: a}, sharding=lambda a, **_: eager.OpShardingRule([], [{0: ["n"]}], {"n": a[0]}))
        with self.assertRaisesRegex(ValueError, "twice: its sharding rule is for 0 inputs and 1 outputs"):
            op(eager.arange(16.0).shard(self.mesh, eager.P("x")), N=16, BLOCK=16)


if __name__ == "__main__":
    unittest.main()
