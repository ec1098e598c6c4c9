"""Functions compiled for layouts, sizes that vary, loops whose trips are not known, tensors on two meshes,
moving between devices and meshes."""

import numpy as np
import pytest
from support import DEVICES

import eager
from eager import DeviceMesh, P, Tensor

four = DeviceMesh("four", (4,), ("x",))
grid = DeviceMesh("grid", (2, 2), ("u", "v"))
rng = np.random.default_rng(5)


def data(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def axes(t):
    return [d.axes for d in t.sharding.dim_specs]


def test_compiled_for_layouts():
    a, w = data(8, 4), data(4, 12)
    f = eager.compile_with_sharding(lambda x, w: x @ w, four, in_shardings=(P("x", None), P()), out_shardings=P("x", None))
    r = f(Tensor.constant(a), Tensor.constant(w))
    assert axes(r) == [["x"], []] and r.local_shape == (2, 12)
    np.testing.assert_allclose(r.numpy(), a @ w, rtol=1e-5)
    assert f(Tensor.constant(a + 1), Tensor.constant(w)).local_shape == (2, 12) and f.compiled.stats.hits == 1
    columns = eager.compile_with_sharding(lambda x, w: x @ w, four, in_shardings=(P("x", None), None), out_shardings=P(None, "x"))
    assert axes(columns(Tensor.constant(a), Tensor.constant(w))) == [[], ["x"]]


def test_compiled_for_trees():
    def step(p, x):
        return {"w": p["w"] * 2, "b": p["b"] + x.sum()}, x * 1

    f = eager.compile_with_sharding(step, four, in_shardings=({"w": P("x", None)}, P("x")), out_shardings=({"w": P(None, "x"), "b": P()}, None))
    p = {"w": Tensor.constant(data(4, 4)), "b": Tensor.constant(data(4))}
    q, y = f(p, Tensor.constant(data(8)))
    assert axes(q["w"]) == [[], ["x"]] and axes(y) == [["x"]]
    np.testing.assert_allclose(q["w"].numpy(), p["w"].numpy() * 2)
    with pytest.raises(ValueError, match="in_shardings has 1 entries for 2"):
        eager.compile_with_sharding(step, four, in_shardings=(P("x"),))(p, Tensor.constant(data(8)))
    with pytest.raises(ValueError, match="equal parts"):
        eager.compile_with_sharding(lambda x: x, four, in_shardings=P("x"))(Tensor.constant(data(6)))


def test_traced_tensors_are_computed():
    x = Tensor.constant(data(8, 4)).shard(four, P("x", None)).trace()
    (y,) = eager.compile_with_sharding([x * 2], four)
    assert y.local_shape == (2, 4) and len(y.local_parts()) == 4


def test_sizes_that_vary():
    f = eager.compile(lambda x: (x * 2).sum(axis=1), dynamic_dims={0: {0: "n"}})
    for n in (8, 16, 8, 12):
        a = data(n, 3)
        r = f(Tensor.constant(a).shard(four, P("x", None)))
        assert axes(r) == [["x"]]
        np.testing.assert_allclose(r.numpy(), (a * 2).sum(1), rtol=1e-5, atol=1e-6)
    assert f.stats.programs == 3  # one for each size
    for n in (5, 7):
        f(Tensor.constant(data(n, 3)))
    assert f.stats.programs == 4  # one for all sizes
    w = Tensor.constant(data(3, 3)).shard(four, P(None, None))
    v = Tensor.constant(data(4, 3)).shard(four, P("x", None))
    g = eager.compile(lambda x: (x @ w) @ eager.swap_axes(v, 0, 1), dynamic_dims={0: {0: "n"}})  # captured in parts
    for n in (2, 5):
        a = data(n, 3)
        np.testing.assert_allclose(g(Tensor.constant(a)).numpy(), a @ w.numpy() @ v.numpy().T, rtol=1e-4, atol=1e-5)


def test_trips_that_are_not_known():
    x = Tensor.constant(data(8, 4)).shard(four, P("x", None))
    r = eager.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + s[1].sum(axis=0)), (Tensor.constant(0), x))
    told = eager.explain_sharding(r)
    assert any(c.per_trip for c in told) and "per trip" in str(told) and "one trip of each loop" in str(told)
    assert not any(c.per_trip for c in eager.explain_sharding(x.sum()))


def test_from_mesh_to_mesh():
    a = data(8, 4)
    x = Tensor.constant(a).shard(four, P("x", None))

    def f(x):
        y = (x * x).shard(grid, P("u", "v"))
        return (eager.sin(y).shard(four, P(None, "x")) * 3).sum()

    np.testing.assert_allclose(f(x).numpy(), (np.sin(a * a) * 3).sum(), rtol=1e-5)
    g = eager.grad(f)(x)
    assert axes(g) == [["x"], []]
    np.testing.assert_allclose(g.numpy(), 6 * a * np.cos(a * a), rtol=1e-4, atol=1e-5)
    p, q, r = x * 2, Tensor.constant(a).shard(grid, P("u", "v")) * 3, Tensor.constant(a) * 4
    eager.realize_all(p, q, r)  # at once
    np.testing.assert_array_equal(p.numpy() + q.numpy() + r.numpy(), a * 2 + a * 3 + a * 4)
    with pytest.raises(ValueError, match="lies on"):
        x + Tensor.constant(a).shard(grid, P("u", "v"))


def test_to_device():
    a = data(8, 4)
    x = eager.to_device(Tensor.constant(a), four, P("x", None))
    assert axes(x) == [["x"], []]
    y = eager.transfer_to(x, grid, P("u", "v"))
    assert axes(y) == [["u"], ["v"]]
    np.testing.assert_array_equal(y.numpy(), a)
    assert not eager.to_device(y, "cpu").is_sharded
    np.testing.assert_array_equal(eager.transfer_to(x, y.sharding).numpy(), a)


def test_gradients_of_branches():
    a = data(8)
    x, c = Tensor.constant(a).shard(four, P("x")), Tensor.constant(np.float32(5))
    f = lambda x: eager.cond(x.sum() > c - 100, lambda x: (x * x).sum(), lambda x: x.sum(), x)  # noqa: E731
    for make in (lambda f: f, lambda f: eager.compile(f, fullgraph=True)):
        np.testing.assert_allclose(make(lambda x, c: eager.vjp(f, x)[1](c)[0])(x, c).numpy(), 10 * a, rtol=1e-6)


@pytest.mark.parametrize("reps", [(2, 1, 3), (3, 2, 1), (1, 2, 2)])
def test_copies_side_by_side(reps):
    a = data(4, 3, 4)
    for spec in (P("x", None, None), P(None, None, "x")):
        x = Tensor.constant(a).shard(four, spec)
        np.testing.assert_array_equal(eager.tile(x, reps).numpy(), np.tile(a, reps))
        np.testing.assert_array_equal((eager.tile(x, reps) * 2).reshape(-1).numpy(), np.tile(a, reps).ravel() * 2)


def test_other_devices():
    a = data(8, 4)
    for device in ("ref", "opencl"):
        try:
            x = Tensor.constant(a, device=device).realize()
        except (RuntimeError, ValueError):  # it is not here
            continue
        x = x.shard(four, P("x", None))
        np.testing.assert_array_equal((x * 2).numpy(), a * 2)
        np.testing.assert_array_equal((x[1:] - x[:-1]).numpy(), a[1:] - a[:-1])
        np.testing.assert_allclose(x.sum(axis=0).numpy(), a.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_bad_index_is_told_on_every_device(device):
    """Devices whose launches are not awaited find it where data leaves a part, in any thread of the mesh."""
    for _ in range(30):
        x, i = (Tensor.constant(a, device=device).shard(four, P("x"), pad=True) for a in (np.zeros((5, 3), "f4"), np.array([0, -6, 1])))
        with pytest.raises(IndexError, match="an index is out of range"):
            x.at[i].add(1.0).realize()
