"""Concatenations, updates, short slices and slices that go backwards, along a cut dim: values, gradients and
bytes against the unsharded run."""

import numpy as np
import pytest

import eager
from eager import DeviceMesh, P, Tensor

meshes = {n: DeviceMesh(f"line{n}", (n,), ("x",)) for n in (2, 3, 4, 8)}
both = DeviceMesh("both", (2, 4), ("x", "y"))
rng = np.random.default_rng(11)
ROW = 3 * 4  # bytes of a row of three f32


def data(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def check(f, arrays, mesh, specs, pad=False, grad=True):
    """f of the parts gives what f of the whole gives, and sends what explain_sharding told: (bytes, names of
    the collectives, the result)."""
    whole = [Tensor.constant(a) for a in arrays]
    parts = [t if s is None else t.shard(mesh, s, pad=pad) for t, s in zip(whole, specs)]
    told = eager.explain_sharding(f, *parts)
    before = eager.comm_stats()["bytes"]
    r = f(*parts)
    r.realize()
    sent = eager.comm_stats()["bytes"] - before
    assert sent == told.total_bytes, (sent, str(told))
    np.testing.assert_array_equal(r.numpy(), f(*whole).numpy())
    if grad:
        w = Tensor.constant(data(*r.shape))
        loss = lambda *u: (f(*u) * w).sum()  # noqa: E731
        for g, h in zip(eager.grad(loss, argnums=tuple(range(len(arrays))))(*parts), eager.grad(loss, argnums=tuple(range(len(arrays))))(*whole)):
            np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=1e-5, atol=1e-5)
    return sent, {c.name for c in told}, r


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("sizes", [(24, 24), (24, 48), (48, 1), (1, 48), (24, 7, 25), (5, 30), (9, 24)])
def test_concatenate(n, sizes):
    f = lambda *x: eager.concatenate(list(x))  # noqa: E731
    arrays = [data(k, 3) for k in sizes]
    total = sum(sizes)
    _, names, r = check(f, arrays, meshes[n], [P("x", None)] * len(sizes), pad=True, grad=n == 4)
    assert r.sharding.dim_specs[0].axes == ["x"] and r.local_shape[0] == -(-total // n), (r.sharding, names)
    # one of them is whole: every device takes its part of it
    sent, names, r = check(f, arrays, meshes[n], [P("x", None), *[None] * (len(sizes) - 1)], pad=True, grad=False)
    assert r.sharding.dim_specs[0].axes == ["x"]


def test_concatenate_sends_what_moves():
    a, b = data(16, 3), data(16, 3)
    # of 2 x 16 rows on 4 devices each has 8 in the end: the first two keep 4 and get 4, 8; the last two
    # likewise
    sent, names, _ = check(lambda x, y: eager.concatenate([x, y]), [a, b], meshes[4], [P("x", None)] * 2, grad=False)
    assert names == {"ppermute"} and sent == 2 * 3 * 4 * ROW
    # one row in front: every device passes what no longer fits on to the next
    sent, names, _ = check(lambda x, y: eager.concatenate([x, y]), [data(4, 3), data(36, 3)], meshes[4], [None, P("x", None)], grad=False)
    assert names == {"ppermute"} and sent == 3 * 3 * ROW
    # other dims stay cut
    _, names, r = check(lambda x, y: eager.concatenate([x, y], axis=1), [data(4, 8), data(4, 8)], both, [P("x", "y")] * 2)
    assert names == {"ppermute"} and [d.axes for d in r.sharding.dim_specs] == [["x"], ["y"]]
    sent, _, r = check(lambda x, y: eager.concatenate([x, y], axis=1), [data(4, 8), data(4, 8)], both, [P("x", None)] * 2)
    assert sent == 0


def test_concatenate_of_other_sizes_is_another_kernel():
    """Whole tensors: where a piece begins depends on the sizes of those before it."""
    for sizes in ((4, 8, 8, 8, 8), (8, 8, 8, 8, 4), (8, 4, 8, 8, 8)):
        arrays = [data(k, 1) for k in sizes]
        r = eager.concatenate([Tensor.constant(a) for a in arrays])
        np.testing.assert_array_equal(r.numpy(), np.concatenate(arrays))


def test_concatenate_kinds():
    for dt in ("int32", "bool", "float16", "int8"):
        a, b = (rng.integers(0, 2, (12, 2)).astype(dt) for _ in range(2))
        check(lambda x, y: eager.concatenate([x, y]), [a, b], meshes[4], [P("x", None)] * 2, grad=False)
    check(lambda x, y: eager.concatenate([x, y]), [data(0, 3), data(16, 3)], meshes[4], [None, P("x", None)], grad=False)
    check(lambda x, y: eager.stack([x, y]).reshape((32,)), [data(16), data(16)], meshes[4], [P("x"), P("x")])
    check(lambda x: eager.concatenate([x[1:], x[:1]]) - x, [data(16, 3)], meshes[4], [P("x", None)])
    # sums that are still to be taken are put together first
    f = lambda x, y: eager.concatenate([x @ y, (x * 2) @ y])  # noqa: E731
    sent, names, _ = check_close(f, [data(8, 16), data(16, 3)], meshes[4], [P(None, "x"), P("x", None)])
    assert names == {"all_reduce"}


def check_close(f, arrays, mesh, specs):
    whole = [Tensor.constant(a) for a in arrays]
    parts = [t.shard(mesh, s) for t, s in zip(whole, specs)]
    told = eager.explain_sharding(f, *parts)
    np.testing.assert_allclose(f(*parts).numpy(), f(*whole).numpy(), rtol=1e-5, atol=1e-5)
    return told.total_bytes, {c.name for c in told}, None


updates = {
    "one row": (slice(5, 6), 1),
    "the last row": (slice(23, 24), 1),
    "a third": (slice(3, 11), 8),
    "every second": (slice(1, None, 2), 12),
    "all but one": (slice(1, None), 23),
    "every fifth": (slice(2, 20, 5), 4),
}


@pytest.mark.parametrize("name", updates)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_update(name, n):
    key, rows = updates[name]
    f = lambda x, u: x.at[key].set(u)  # noqa: E731
    a, u = data(24, 3), data(rows, 3)
    # what replaces the slice is whole: nothing is sent
    sent, _, r = check(f, [a, u], meshes[n], [P("x", None), None], grad=n == 4)
    assert sent == 0 and r.sharding.dim_specs[0].axes == ["x"]
    # and in parts
    sent, names, r = check(f, [a, u], meshes[n], [P("x", None), P("x", None)], pad=True, grad=n == 4)
    assert r.sharding.dim_specs[0].axes == ["x"] and sent <= n * (n - 1) * -(-rows // n) * ROW
    # a whole tensor gets a part in parts
    check(f, [a, u], meshes[n], [None, P("x", None)], pad=True, grad=False)
    check(lambda x, u: x.at[:, key].set(u), [data(4, 24), data(4, rows)], both, [P("x", "y"), P("x", None)], grad=False)


def test_assignment_and_both_dims():
    def f(x, u):
        y = x * 1
        y[2:5, 1:] = u
        return y

    sent, _, r = check(f, [data(16, 8), data(3, 7)], both, [P("x", "y"), None])
    assert sent == 0 and [d.axes for d in r.sharding.dim_specs] == [["x"], ["y"]]
    check(f, [data(16, 8), data(3, 7)], both, [P("x", "y"), P("x", "y")], pad=True)
    check(lambda x, u: x.at[3].set(u), [data(16, 8), data(8)], both, [P("x", "y"), P("y")])


slices = {
    "an element": (lambda x: x[5], 1, 1),
    "the last": (lambda x: x[-1], 1, 1),
    "two over an edge": (lambda x: x[2:4], 2, 2),
    "three of one part": (lambda x: x[6:8], 2, 1),
}


@pytest.mark.parametrize("name", slices)
def test_short_slices(name):
    f, rows, _ = slices[name]
    a = data(24, 3)
    sent, names, r = check(f, [a], meshes[8], [P("x", None)])
    assert names == {"ppermute"} and sent == 7 * rows * ROW  # to each of the others
    check(f, [a], both, [P("y", None)])
    check(f, [data(22, 3)], meshes[8], [P("x", None)], pad=True)
    for dt in ("int64", "bool", "float16"):
        check(f, [rng.integers(0, 2, (24, 3)).astype(dt)], meshes[8], [P("x", None)], grad=False)


def test_short_slices_of_many_owners():
    a = data(800, 3)
    sent, names, _ = check(lambda x: x[7::120], [a], meshes[8], [P("x", None)])
    assert names == {"all_gather"} and sent == 8 * 7 * ROW
    z = np.zeros((16, 2), np.float32)
    z[5] = -0.0
    x = Tensor.constant(z).shard(meshes[8], P("x", None))
    assert np.signbit(x[5].numpy()).all()


@pytest.mark.parametrize("n", [2, 4, 8])
def test_backwards(n):
    for f in (lambda x: x[::-2], lambda x: x[20:3:-1], lambda x: x[-2::-3], lambda x: x[:, ::-1][::-1]):
        _, names, _ = check(f, [data(24, 3)], meshes[n], [P("x", None)], grad=n == 4)
        assert "all_gather" not in names or n == 2
        check(f, [data(23, 3)], meshes[n], [P("x", None)], pad=True, grad=False)


def test_slices_far_away():
    """Only elements that are read are sent, however far."""
    sent, names, _ = check(lambda x: x[24:40], [data(64, 3)], meshes[8], [P("x", None)])
    assert names == {"ppermute"} and sent <= 16 * ROW
    check(lambda x: eager.concatenate([x[32:], x[:32]]), [data(64, 3)], meshes[8], [P("x", None)])


def test_in_loops_vmap_and_compiled():
    a, u = data(16, 4), data(2, 4)
    f = lambda x, u: eager.concatenate([x.at[3:5].set(u)[1:], x[:1]])  # noqa: E731

    def many(x, u):
        return eager.scan(lambda c, _: (f(c, u), None), x, None, length=3)[0]

    check(many, [a, u], meshes[4], [P("x", None), None])
    x = Tensor.constant(a).shard(meshes[4], P("x", None))
    np.testing.assert_array_equal(eager.compile(many)(x, Tensor.constant(u)).numpy(), many(x, Tensor.constant(u)).numpy())
    check(eager.vmap(lambda v: eager.concatenate([v, v[:1]])), [data(3, 16)], meshes[4], [P(None, "x")])
