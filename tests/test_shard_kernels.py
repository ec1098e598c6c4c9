"""Kernels of the user's on tensors in parts: element-wise ones by proof, others by their rule; inside and
outside shard_map, with derivatives and vmap."""

import numpy as np
import pytest

import eager
import eas
from eager import DeviceMesh, P, Tensor
from eas import mk

four = DeviceMesh("four", (4,), ("x",))
grid = DeviceMesh("grid", (2, 2), ("x", "y"))
rng = np.random.default_rng(1)


@eas.kernel
def axpy(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(c, i, mk.load(a, i, m) * 3.0 + mk.load(b, i, m), m)


@eas.kernel
def squares(a, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    x = mk.load(a, i, m)
    mk.store(c, i, x * x * x, m)


@eas.kernel
def mean_part(a, c, N, BLOCK: eas.constexpr):  # N counts in the values too
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(c, i, mk.load(a, i, m) / N, m)


@eas.kernel
def unmasked(a, c, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i) + 1.0)


@eas.kernel
def numbered(a, c, N, BLOCK: eas.constexpr):  # depends on where an element is
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(c, i, mk.load(a, i, m) + mk.cast(i, "f32"), m)


@eas.kernel
def neighbours(a, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(c, i, mk.load(a, i, m) + mk.load(a, i + 1, i + 1 < N), m)


@eas.kernel
def scaled(a, s, c, N, BLOCK: eas.constexpr):  # one number that all elements share
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    mk.store(c, i, mk.load(a, i, m) * mk.load(s, 0), m)


@eas.kernel
def plane(a, c, H, W, BLOCK: eas.constexpr):  # rows are an axis of programs
    x = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    m = x < W
    mk.store(c, mk.program_id(1) * W + x, mk.load(a, mk.program_id(1) * W + x, m) * 2.0, m)


@eas.kernel
def row_sums(x, w, y, COLS: eas.constexpr):
    row = mk.program_id(0)
    j = mk.arange(0, COLS)
    mk.store(y, row, mk.sum(mk.load(x, row * COLS + j) * mk.load(w, j)))


def rows_rule(x, w, **_):
    return eager.OpShardingRule([{0: ["rows"]}, {}], [{0: ["rows"]}], {"rows": x[0]})


add = eager.from_kernel(axpy, {"c": lambda a: a})
cube = eager.from_kernel(squares, {"c": lambda a: a})
sums = eager.from_kernel(row_sums, {"y": lambda x: (x.shape[:1], x.dtype)}, grid=lambda x: x.shape[0], sharding=rows_rule)


def data(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def sent(f, *args):
    """What f gives, and the bytes that were sent meanwhile; explain_sharding tells the same number."""
    told = eager.explain_sharding(f, *args).total_bytes
    before = eager.comm_stats()["bytes"]
    r = f(*args)
    r.realize()
    bytes_sent = eager.comm_stats()["bytes"] - before
    assert bytes_sent == told
    return r, bytes_sent


@pytest.mark.parametrize("mesh,spec", [(four, P("x")), (grid, P(("x", "y"))), (grid, P("y"))])
@pytest.mark.parametrize("n", [64, 1000])
def test_elementwise_in_parts(mesh, spec, n):
    a, b = data(n), data(n)
    r, bytes_sent = sent(lambda u, v: add(u, v, N=n, BLOCK=64), Tensor.constant(a).shard(mesh, spec), Tensor.constant(b).shard(mesh, spec))
    assert bytes_sent == 0
    assert [d.axes for d in r.sharding.dim_specs] == [list(a) if isinstance(a, tuple) else [a] for a in spec]
    np.testing.assert_array_equal(r.numpy(), add(Tensor.constant(a), Tensor.constant(b), N=n, BLOCK=64).numpy())


@pytest.mark.parametrize("spec", [P("x", None), P(None, "y"), P("y", "x"), P(None, None, ("x", "y"))])
def test_any_dim_is_cut(spec):
    a = data(4, 8, 12)
    x = Tensor.constant(a).shard(grid, spec if len(spec) == 3 else P(*spec, None))
    r, bytes_sent = sent(lambda u: add(u, u, N=a.size, BLOCK=32), x)
    assert bytes_sent == 0 and r.sharding == x.sharding
    np.testing.assert_allclose(r.numpy(), a * 4, rtol=1e-6)


def test_uneven_parts():
    a = data(10)
    x = Tensor.constant(a).shard(four, P("x"), pad=True)
    r, bytes_sent = sent(lambda u: add(u, u, N=10, BLOCK=4), x)
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), a * 4, rtol=1e-6)


def test_numbers_that_count_in_values_stay():
    a = data(32)
    op = eager.from_kernel(mean_part, {"c": lambda a: a})
    r, bytes_sent = sent(lambda u: op(u, N=32, BLOCK=16), Tensor.constant(a).shard(four, P("x")))
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), a / 32, rtol=1e-6)


def test_the_same_program_with_another_number():
    op = eager.from_kernel(squares, {"c": lambda a: a})
    a = data(32)
    x = Tensor.constant(a).shard(four, P("x"))
    np.testing.assert_allclose(op(x, N=32, BLOCK=8).numpy(), a**3, rtol=1e-5)
    got = op(x, N=20, BLOCK=8).numpy()  # not all of it: whole tensors
    np.testing.assert_allclose(got[:20], a[:20] ** 3, rtol=1e-5)


def test_without_a_mask_parts_are_whole_blocks():
    op = eager.from_kernel(unmasked, {"c": lambda a: a}, grid=lambda a, BLOCK: a.shape[0] // BLOCK)
    a = data(64)
    for block, want in [(16, 0), (32, 3 * 64 * 4)]:
        r, bytes_sent = sent(lambda u, block=block: op(u, BLOCK=block), Tensor.constant(a).shard(four, P("x")))
        assert bytes_sent == want
        np.testing.assert_array_equal(r.numpy(), a + 1)


@pytest.mark.parametrize("kernel,want", [(numbered, lambda a: a + np.arange(32)), (neighbours, lambda a: a + np.append(a[1:], np.float32(0)))])
def test_what_is_not_elementwise_is_gathered_and_told(kernel, want):
    op = eager.from_kernel(kernel, {"c": lambda a: a})
    a = data(32)
    x = Tensor.constant(a).shard(four, P("x"))
    assert "element" in str(eager.explain_sharding(op(x, N=32, BLOCK=8)))
    r, bytes_sent = sent(lambda u: op(u, N=32, BLOCK=8), x)
    assert bytes_sent == 3 * 32 * 4
    np.testing.assert_allclose(r.numpy(), want(a), rtol=1e-6)


def test_what_all_elements_share_is_whole():
    op = eager.from_kernel(scaled, {"c": lambda a: a})
    a, s = data(32), np.float32([2.5])
    x = Tensor.constant(a).shard(four, P("x"))
    r, bytes_sent = sent(lambda u, v: op(u, v, N=32, BLOCK=8), x, Tensor.constant(s))
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), a * 2.5, rtol=1e-6)
    g = eager.grad(lambda v: op(x, v, N=32, BLOCK=8).sum())(Tensor.constant(s))
    np.testing.assert_allclose(g.numpy(), [a.sum()], rtol=1e-5)


@pytest.mark.parametrize("spec", [P("x", None), P(None, "y"), P("x", "y")])
def test_rows_as_an_axis_of_programs(spec):
    op = eager.from_kernel(plane, {"c": lambda a: a})
    a = data(6, 40)
    r, bytes_sent = sent(lambda u: op(u, H=6, W=40, BLOCK=16), Tensor.constant(a).shard(grid, spec))
    assert bytes_sent == 0
    np.testing.assert_array_equal(r.numpy(), a * 2)


def test_derivatives_run_on_parts():
    a, b = data(64), data(64)
    x, y = Tensor.constant(a).shard(four, P("x")), Tensor.constant(b)
    loss = lambda u: (cube(u, N=64, BLOCK=16) * y).sum()  # noqa: E731
    before = eager.comm_stats()["bytes"]
    g = eager.grad(loss)(x)
    np.testing.assert_allclose(g.realize().numpy(), 3 * a * a * b, rtol=1e-5)
    assert [d.axes for d in g.sharding.dim_specs] == [["x"]]
    assert eager.explain_sharding(eager.grad(loss), x).total_bytes == 0
    out, tangent = eager.jvp(lambda u: cube(u, N=64, BLOCK=16), (x,), (Tensor.constant(b).shard(four, P("x")),))
    assert eager.explain_sharding(out, tangent).total_bytes == 0
    np.testing.assert_allclose(tangent.numpy(), 3 * a * a * b, rtol=1e-5)
    assert before >= 0


def test_vmap_over_parts():
    a = data(8, 64)
    for spec in (P("x", None), P(None, "y"), P("y", "x")):
        x = Tensor.constant(a).shard(grid, spec)
        f = eager.vmap(lambda u: cube(u, N=64, BLOCK=16))
        r, bytes_sent = sent(f, x)
        assert bytes_sent == 0, spec
        np.testing.assert_allclose(r.numpy(), a**3, rtol=1e-5)
        total = lambda u: f(u).sum()  # noqa: B023, E731
        assert eager.explain_sharding(eager.grad(total), x).total_bytes == 0
        g = eager.grad(total)(x)
        np.testing.assert_allclose(g.numpy(), 3 * a * a, rtol=1e-5)


def test_inside_shard_map():
    a = data(64)
    x = Tensor.constant(a).shard(four, P("x"))
    f = eager.shard_map(lambda u: cube(u, N=16, BLOCK=8), mesh=four, in_specs=(P("x"),), out_specs=P("x"))
    r, bytes_sent = sent(f, x)
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), a**3, rtol=1e-5)
    assert "0 collectives" in str(eager.explain_sharding(eager.grad(lambda u: f(u).sum()), x))
    g = eager.grad(lambda u: f(u).sum())(x)
    np.testing.assert_allclose(g.numpy(), 3 * a * a, rtol=1e-5)


@pytest.mark.parametrize("mesh,spec", [(four, P("x", None)), (grid, P("y", None)), (grid, P("x", "y"))])
def test_a_rule_of_rows(mesh, spec):
    a, w = data(8, 16), data(16)
    x, v = Tensor.constant(a).shard(mesh, spec), Tensor.constant(w)
    f = lambda u, z: sums(u, z, COLS=16)  # noqa: E731
    r, bytes_sent = sent(f, x, v)
    assert bytes_sent == (0 if spec[1] is None else a.nbytes // 2)  # columns become rows: all_to_all
    assert r.sharding.dim_specs[0].axes == [a for a in spec if a]
    np.testing.assert_allclose(r.numpy(), a @ w, rtol=1e-5)
    loss = lambda u, z: (f(u, z) ** 2).sum()  # noqa: E731
    gx, gw = eager.grad(loss, argnums=(0, 1))(x, v)
    if spec[1] is None:  # the gradient of what all rows share is a sum
        assert {c.name for c in eager.explain_sharding(eager.grad(loss, argnums=(0, 1)), x, v)} == {"all_reduce"}
    np.testing.assert_allclose(gx.numpy(), np.outer(2 * (a @ w), w), rtol=1e-4)
    np.testing.assert_allclose(gw.numpy(), 2 * a.T @ (a @ w), rtol=1e-4)


def test_a_rule_inside_shard_map_and_vmap():
    a, w = data(3, 8, 16), data(16)
    x, v = Tensor.constant(a).shard(four, P(None, "x", None)), Tensor.constant(w)
    r, bytes_sent = sent(eager.vmap(lambda u: sums(u, v, COLS=16)), x)
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), a @ w, rtol=1e-5)
    f = eager.shard_map(lambda u: sums(u, v, COLS=16), mesh=four, in_specs=(P("x", None),), out_specs=P("x"))
    r, bytes_sent = sent(f, Tensor.constant(a[0]).shard(four, P("x", None)))
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), a[0] @ w, rtol=1e-5)
    assert "0 collectives" in str(eager.explain_sharding(eager.grad(lambda u: f(u).sum()), Tensor.constant(a[0]).shard(four, P("x", None))))
    g = eager.grad(lambda u: f(u).sum())(Tensor.constant(a[0]).shard(four, P("x", None)))
    np.testing.assert_allclose(g.numpy(), np.broadcast_to(w, (8, 16)), rtol=1e-5)


def test_numbers_of_a_rule():
    op = eager.from_kernel(
        neighbours,
        {"c": lambda a: a},
        sharding=lambda a, N, **_: eager.OpShardingRule([{0: ["n"]}], [{0: ["n"]}], {"n": a[0]}, numbers={"N": ["n"]}),
    )
    a = data(32)  # the rule says that parts are alone: what it says is done
    r, bytes_sent = sent(lambda u: op(u, N=32, BLOCK=8), Tensor.constant(a).shard(four, P("x")))
    parts = a.reshape(4, 8)
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), (parts + np.append(parts[:, 1:], np.zeros((4, 1), np.float32), 1)).ravel(), rtol=1e-6)
    wrong = eager.from_kernel(
        squares, {"c": lambda a: a}, sharding=lambda a, **_: eager.OpShardingRule([{0: ["n"]}], [{0: ["n"]}], {"n": a[0]}, numbers={"BLOCK": ["n"]})
    )
    with pytest.raises(ValueError, match="compile-time constant"):
        wrong(Tensor.constant(a), N=32, BLOCK=8)


def test_in_compiled_functions_and_scans():
    a = data(64)
    x = Tensor.constant(a).shard(four, P("x"))
    f = eager.compile(lambda u: cube(u, N=64, BLOCK=16) + 1)
    np.testing.assert_allclose(f(x).numpy(), a**3 + 1, rtol=1e-5)
    before = eager.comm_stats()["bytes"]
    f(x).realize()
    assert eager.comm_stats()["bytes"] == before
    step = lambda c, _: (add(c, c, N=64, BLOCK=16), c.sum())  # noqa: E731
    out, totals = eager.scan(step, x, None, length=3)
    np.testing.assert_allclose(out.numpy(), a * 64, rtol=1e-5)
    np.testing.assert_allclose(totals.numpy(), [a.sum(), 4 * a.sum(), 16 * a.sum()], rtol=1e-4)


def test_matrices_of_the_host_run_on_parts():
    m = data(8, 5, 5)
    spd = m @ m.transpose(0, 2, 1) + 5 * np.eye(5, dtype=np.float32)
    x = Tensor.constant(spd).shard(four, P("x", None, None))
    r, bytes_sent = sent(eager.linalg.cholesky, x)
    assert bytes_sent == 0
    np.testing.assert_allclose(r.numpy(), np.linalg.cholesky(spd), rtol=1e-4, atol=1e-5)
    z = eager.fft.fft(Tensor.constant(m).shard(four, P("x", None, None)), axis=1)
    np.testing.assert_allclose(z.numpy(), np.fft.fft(m, axis=1), rtol=1e-4, atol=1e-4)
