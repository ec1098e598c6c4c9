"""Slices, pads, windows, pools, convolutions and rolls along a cut dim: parts exchange their edges. Values,
gradients and bytes against the unsharded run."""

import numpy as np
import pytest

import eager
from eager import DeviceMesh, P, Tensor

meshes = {n: DeviceMesh(f"line{n}", (n,), ("x",)) for n in (2, 4, 8)}
both = DeviceMesh("both", (2, 4), ("x", "y"))
rng = np.random.default_rng(7)


def data(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def check(f, a, mesh, spec, pad=False, grad=True, rtol=2e-5):
    """f of the parts gives what f of the whole gives, and sends what explain_sharding told. Gives the bytes
    and the collectives' names."""
    whole = Tensor.constant(a)
    x = whole.shard(mesh, spec, pad=pad)
    told = eager.explain_sharding(f, x)
    before = eager.comm_stats()["bytes"]
    r = f(x)
    r.realize()
    sent = eager.comm_stats()["bytes"] - before
    assert sent == told.total_bytes, (sent, str(told))
    np.testing.assert_allclose(r.numpy(), f(whole).numpy(), rtol=rtol, atol=1e-5)
    if grad:
        w = Tensor.constant(data(*r.shape))
        loss = lambda u: (f(u) * w).sum()  # noqa: E731
        np.testing.assert_allclose(eager.grad(loss)(x).numpy(), eager.grad(loss)(whole).numpy(), rtol=1e-4, atol=1e-4)
    return sent, {c.name for c in told}


shifts = {
    "from one": lambda x: x[1:],
    "to last but two": lambda x: x[:-2],
    "middle": lambda x: x[3:-5],
    "every second": lambda x: x[::2],
    "every third from one": lambda x: x[1::3],
    "difference": lambda x: x[1:] - x[:-1],
    "second difference": lambda x: x[2:] - 2 * x[1:-1] + x[:-2],
    "pad both": lambda x: eager.pad(x, ((2, 3), (0, 0))),
    "pad with a number": lambda x: eager.pad(x, ((1, 0), (1, 2)), value=2.5),
    "pad and cut": lambda x: eager.pad(x, ((3, 0), (0, 0)))[:-3],
    "flip": lambda x: eager.flip(x, 0),
    "roll": lambda x: eager.roll(x, 3, 0),
    "roll back": lambda x: eager.roll(x, -1, 0),
    "roll both": lambda x: eager.roll(x, (9, 2), (0, 1)),
    "far": lambda x: eager.pad(x, ((13, 0), (0, 0))),
    "diff": lambda x: eager.diff(x, axis=0),
}


@pytest.mark.parametrize("name", shifts)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_shifts(name, n):
    f = shifts[name]
    check(f, data(24, 3), meshes[n], P("x", None), grad=n == 4)
    check(f, data(24, 4), both, P("y", "x"), grad=False)
    if n == 4:
        check(f, data(22, 3), meshes[n], P("x", None), pad=True)


def row_bytes(n, rows, width):
    """(n - 1) neighbours send that many rows."""
    return (n - 1) * rows * width * 4


def test_only_edges_are_sent():
    a = data(32, 8)
    assert check(lambda x: x[1:] - x[:-1], a, meshes[4], P("x", None), grad=False) == (row_bytes(4, 1, 8), {"ppermute"})
    assert check(lambda x: eager.roll(x, 2, 0), a, meshes[4], P("x", None), grad=False) == (4 * 2 * 8 * 4, {"ppermute"})
    image = data(2, 16, 8, 3)
    f = data(3, 3, 3, 4)
    conv = lambda x: eager.conv2d(x, Tensor.constant(f), padding=1)  # noqa: E731
    sent, names = check(conv, image, meshes[4], P(None, "x", None, None))
    assert names == {"ppermute"} and sent == 2 * row_bytes(4, 1, 2 * 8 * 3)


@pytest.mark.parametrize("stride,dilation,padding,k", [(1, 1, 1, 3), (1, 1, 0, 3), (2, 1, 1, 3), (1, 2, 2, 3), (2, 1, 0, 2), (1, 1, 3, 7), (3, 2, 2, 3)])
@pytest.mark.parametrize("spec", [P(None, "y", None, None), P(None, None, "y", None), P("x", "y", None, None), P(None, "x", "y", None)])
def test_convolutions(stride, dilation, padding, k, spec):
    filters = Tensor.constant(data(k, k, 3, 4))
    f = lambda x: eager.conv2d(x, filters, stride=stride, dilation=dilation, padding=padding)  # noqa: E731
    check(f, data(2, 16, 16, 3), both, spec)


def test_gradient_of_a_filter():
    a, w = data(2, 16, 8, 3), data(3, 3, 3, 4)
    f = lambda x, w: (eager.conv2d(x, w, padding=1) ** 2).sum()  # noqa: E731
    want = eager.grad(f, argnums=(0, 1))(Tensor.constant(a), Tensor.constant(w))
    x = Tensor.constant(a).shard(meshes[4], P(None, "x", None, None))
    got = eager.grad(f, argnums=(0, 1))(x, Tensor.constant(w))
    for g, h in zip(got, want):
        np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=2e-4, atol=1e-3)
    told = eager.explain_sharding(eager.grad(f, argnums=(0, 1)), x, Tensor.constant(w))
    assert {c.name for c in told} == {"ppermute", "all_reduce"}, str(told)


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("k,stride,padding", [(2, 2, 0), (3, 1, 1), (3, 2, 1)])
def test_pools(pool, k, stride, padding):
    f = lambda x: getattr(eager, pool)(x, k, stride=stride, padding=padding)  # noqa: E731
    for spec in (P(None, "y", None, None), P(None, "x", "y", None)):
        _, names = check(f, data(1, 16, 16, 2), both, spec)
        assert "all_gather" not in names


def test_transposed_convolution():
    filters = Tensor.constant(data(3, 3, 4, 3))
    for stride, padding in ((1, 1), (2, 1)):
        check(lambda x: eager.conv2d_transpose(x, filters, stride=stride, padding=padding), data(1, 8, 8, 3), meshes[4], P(None, "x", None, None))  # noqa: B023


def test_a_halo_over_several_parts_and_one_that_is_too_large():
    a = data(16, 2)
    sent, names = check(lambda x: eager.pad(x, ((6, 0), (0, 0)))[:16], a, meshes[8], P("x", None))
    assert names == {"ppermute"}
    told = eager.explain_sharding(Tensor.constant(a[:15]).shard(meshes[8], P("x", None), pad=True)[::-1])
    assert {c.name for c in told} == {"all_gather"} and "as large as the parts" in str(told)


def test_in_loops_vmap_and_compiled():
    a = data(32, 4)
    smooth = lambda x: (eager.roll(x, 1, 0) + x + eager.roll(x, -1, 0)) / 3  # noqa: E731

    def many(x):
        return eager.scan(lambda c, _: (smooth(c), None), x, None, length=5)[0]

    sent, names = check(many, a, meshes[4], P("x", None))
    assert names == {"ppermute"} and sent == 5 * 2 * 4 * 4 * 4
    compiled = eager.compile(many)
    x = Tensor.constant(a).shard(meshes[4], P("x", None))
    np.testing.assert_array_equal(compiled(x).numpy(), many(x).numpy())
    check(eager.vmap(lambda v: v[1:] - v[:-1]), data(3, 16), meshes[4], P(None, "x"))
