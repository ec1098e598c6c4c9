"""Collectives that are started early, awaited late, and combined where they are small."""

import numpy as np
import pytest

import eager
from eager import DeviceMesh, P, Tensor

four = DeviceMesh("four", (4,), ("x",))
rng = np.random.default_rng(3)


def data(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def stats(f):
    """What f's results are, and bytes and calls of one run."""
    results = f()
    told = eager.explain_sharding(results).total_bytes
    before = eager.comm_stats()
    eager.realize_all(results)
    after = eager.comm_stats()
    assert after["bytes"] - before["bytes"] == told
    return results, after["calls"] - before["calls"]


def test_small_reductions_go_as_one():
    a = [data(8, k + 1) for k in range(6)]
    xs = [Tensor.constant(v).shard(four, P("x", None)) for v in a]
    results, calls = stats(lambda: [x.sum(axis=0) for x in xs])
    assert calls == 4  # one for each device
    for r, v in zip(results, a):
        np.testing.assert_allclose(r.numpy(), v.sum(0), rtol=1e-5, atol=1e-6)


def test_other_dtypes_and_joins_stay_apart():
    x = Tensor.constant(data(8, 3)).shard(four, P("x", None))
    y = Tensor.constant(rng.integers(0, 9, (8, 3)).astype(np.int32)).shard(four, P("x", None))
    results, calls = stats(lambda: [x.sum(axis=0), x.max(axis=0), y.sum(axis=0), (x * 2).sum(axis=0)])
    assert calls == 4 * 3
    np.testing.assert_array_equal(results[2].numpy(), y.numpy().sum(0))


def test_large_ones_stay_alone():
    xs = [Tensor.constant(data(4, 40000)).shard(four, P("x", None)) for _ in range(2)]
    _, calls = stats(lambda: [x.sum(axis=0) for x in xs])
    assert calls == 4 * 2


def test_what_depends_on_a_sum_comes_after_it():
    a = data(8, 4)
    x = Tensor.constant(a).shard(four, P("x", None))

    def f():
        m = x.sum(axis=0)
        v = ((x - m) ** 2).sum(axis=0)
        return [m, v, (x * v).sum(axis=0)]

    results, calls = stats(f)
    assert calls == 4 * 3
    m = a.sum(0)
    v = ((a - m) ** 2).sum(0)
    for r, w in zip(results, (m, v, (a * v).sum(0))):
        np.testing.assert_allclose(r.numpy(), w, rtol=1e-4)


def mlp(params, x, y):
    for w, b in params:
        x = eager.tanh(x @ w + b)
    return ((x - y) ** 2).mean()


@pytest.mark.parametrize("n", [2, 4])
def test_gradients_of_a_network_have_the_same_bits_as_one_by_one(n):
    mesh = DeviceMesh(f"data{n}", (n,), ("x",))
    params = [(Tensor.constant(data(8, 8)), Tensor.constant(data(8))) for _ in range(3)]
    x, y = Tensor.constant(data(16, 8)).shard(mesh, P("x", None)), Tensor.constant(data(16, 8)).shard(mesh, P("x", None))
    step = eager.grad(mlp, realize=False)
    before = eager.comm_stats()["calls"]
    together = eager.compile(step)(params, x, y)
    eager.realize_all(together)
    assert eager.comm_stats()["calls"] - before <= 3 * n
    for k, g in enumerate(eager.tree_leaves(together)):
        alone = eager.compile(lambda p, x, y, k=k: eager.tree_leaves(step(p, x, y))[k])
        np.testing.assert_array_equal(g.numpy(), alone(params, x, y).numpy())


def test_many_in_a_loop():
    a = data(8, 4)
    x = Tensor.constant(a).shard(four, P("x", None))
    step = lambda c, _: (c * 0.5, (c.sum(), (c * c).sum(), c.max()))  # noqa: E731
    _, (s, q, m) = eager.scan(step, x, None, length=5)
    for k in range(5):
        c = a * 0.5**k
        np.testing.assert_allclose([s.numpy()[k], q.numpy()[k], m.numpy()[k]], [c.sum(), (c * c).sum(), c.max()], rtol=1e-4, atol=1e-5)


def test_an_error_while_something_is_under_way():
    x = Tensor.constant(data(8, 4)).shard(four, P("x", None))
    i = Tensor.constant(np.array([0, 99])).shard(four, P(None))
    with pytest.raises(IndexError):
        eager.realize_all([x.sum(axis=0), eager.gather(x, i, axis=1), (x * 2).sum(axis=0)])
    np.testing.assert_allclose(x.sum(axis=0).numpy(), x.numpy().sum(0), rtol=1e-5, atol=1e-6)
