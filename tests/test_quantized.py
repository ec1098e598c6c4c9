"""Quantized matrices: how near they are, products with one row and with several, transforms, devices."""

import os

import numpy as np
import pytest

import eager
import eas
from eager import Tensor

KINDS = {"int8": 0.5 / 127, "int4": 0.5 / 7, "int4_zp": 1.0 / 15, "nf4": 0.16}  # the largest error, in parts of the largest element of a group
SHAPES = [(64, 48), (70, 33), (128, 16), (1, 5), (33, 1), (256, 130)]


def matrix(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_near_the_matrix(kind, shape):
    w = matrix(shape)
    q = eager.quantize(w, kind)
    d = q.dequantize().numpy()
    assert tuple(q.shape) == shape and d.shape == shape and d.dtype == np.float32
    group = q.group
    for at in range(0, shape[0], group):
        part, got = w[at : at + group], d[at : at + group]
        reach = np.abs(part).max(axis=0) if kind != "int4_zp" else np.maximum(part.max(axis=0), 0) - np.minimum(part.min(axis=0), 0)
        assert (np.abs(part - got) <= KINDS[kind] * reach + 1e-6).all()
    assert q.nbytes < w.nbytes or min(shape) < 16
    assert kind in repr(q)


def test_int8_codes_are_the_usual_ones():
    w = matrix((50, 7))
    q = eager.quantize(w, "int8")
    scale = np.abs(w).max(axis=0) / np.float32(127)
    np.testing.assert_array_equal(q.scales.numpy()[0], scale)
    np.testing.assert_array_equal(q.data.numpy(), np.clip(np.round(w / scale), -127, 127).astype(np.int8))


def test_zeros_and_exact_values():
    for kind in KINDS:
        np.testing.assert_array_equal(eager.quantize(np.zeros((40, 3), np.float32), kind).dequantize().numpy(), np.zeros((40, 3)))
    w = np.arange(-7, 8, dtype=np.float32).repeat(5).reshape(75, 1)[:64]
    np.testing.assert_allclose(eager.quantize(w, "int4").dequantize().numpy()[:32], w[:32], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(kind, shape):
    q = eager.quantize(matrix(shape), kind)
    d = q.dequantize().numpy().astype(np.float64)
    for lead in ((), (1,), (1, 1), (5,), (2, 3), (0,)):
        x = matrix((*lead, shape[0]), 1)
        want = x @ d
        for y in (Tensor.constant(x) @ q, eager.quantized_matmul(x, q), eager.compile(eager.quantized_matmul)(Tensor.constant(x), q)):
            assert y.shape == want.shape and y.dtype == eager.float32
            np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-4)
    for dt, tol in (("float16", 1e-2), ("bfloat16", 5e-2), ("float64", 1e-6)):
        for rows in (1, 3):
            if dt == "float64" and os.environ.get("EAS_ISA") == "sse2":
                continue  # products of f64 are refused without FMA
            x = Tensor.constant(matrix((rows, shape[0]), 2), dtype=dt)
            y = x @ q
            assert y.dtype == x.dtype
            np.testing.assert_allclose(eager.cast(y, "float64").numpy(), eager.cast(x, "float64").numpy() @ d, rtol=tol, atol=tol * 10)


@pytest.mark.parametrize("kind", KINDS)
def test_transforms(kind):
    q = eager.quantize(matrix((70, 24)), kind)
    d = q.dequantize().numpy()
    x = matrix((6, 70), 1)
    f = eager.quantized_matmul
    np.testing.assert_allclose(eager.vmap(lambda x: f(x, q))(Tensor.constant(x)).numpy(), x @ d, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(eager.vmap(f, in_axes=(0, None))(Tensor.constant(x), q).numpy(), x @ d, rtol=1e-4, atol=1e-4)
    for rows in (x[0], x[:1], x):
        g = eager.grad(lambda x: (f(x, q) ** 2).sum())(Tensor.constant(rows)).numpy()
        np.testing.assert_allclose(g, 2 * (rows @ d) @ d.T, rtol=1e-3, atol=1e-3)
    _, t = eager.jvp(lambda x: f(x, q), (Tensor.constant(x),), (Tensor.constant(x[::-1].copy()),))
    np.testing.assert_allclose(t.numpy(), x[::-1] @ d, rtol=1e-4, atol=1e-4)
    stack = eager.quantize(matrix((3, 70, 24)), kind)
    assert tuple(stack.shape) == (3, 70, 24)
    want = np.einsum("lk,lkn->ln", x[:3], stack.dequantize().numpy())
    np.testing.assert_allclose(eager.vmap(f)(Tensor.constant(x[:3]), stack).numpy(), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(f(x[:3, None], stack).numpy()[:, 0], want, rtol=1e-4, atol=1e-4)


def test_pytree_and_errors():
    q = eager.quantize(matrix((64, 8)), "int4_zp")
    leaves, treedef = eager.tree_flatten(q)
    back = eager.tree_unflatten(treedef, leaves)
    assert len(leaves) == 3 and isinstance(back, eager.QuantizedTensor) and back.kind == "int4_zp" and back.rows == 64
    assert len(eager.tree_leaves(eager.quantize(matrix((64, 8)), "int8"))) == 2
    with pytest.raises(ValueError, match=r"shapes \(3, 63\) and \(64, 8\) do not multiply"):
        eager.quantized_matmul(matrix((3, 63)), q)
    with pytest.raises(TypeError, match="x is of i32"):
        eager.quantized_matmul(np.ones((3, 64), np.int32), q)
    with pytest.raises(TypeError, match="make a QuantizedTensor of it with eager.quantize"):
        eager.quantized_matmul(matrix((3, 64)), matrix((64, 8)))
    with pytest.raises(ValueError, match="there is no kind 'int3'"):
        eager.quantize(matrix((64, 8)), "int3")
    with pytest.raises(ValueError, match="is not that of a matrix"):
        eager.quantize(matrix((64,)), "int8")
    with pytest.raises(TypeError, match="a matrix of floats is wanted"):
        eager.quantize(np.ones((4, 4), np.int64), "int8")
    with pytest.raises(ValueError, match="do not belong to 64 rows"):
        eager.QuantizedTensor("int4", (64, 8), 16, q.data, q.scales).dequantize()


@pytest.mark.parametrize("device", ["ref", "opencl", "mps"])
def test_devices_agree(device):
    why = next(d[2] for d in eas.devices() if d[0] == device)
    if why is not None:
        pytest.skip(why)
    w, x = matrix((70, 20)), matrix((3, 70), 1)
    for kind in KINDS:
        q = eager.quantize(w, kind)
        for rows in (x[:1], x):
            want = eager.quantized_matmul(rows, q).numpy()
            there = q.to(device)
            got = eager.quantized_matmul(Tensor.constant(rows, device=device), there).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_under_compile_and_while_quantizing():
    f = eager.compile(lambda w, x: x @ eager.quantize(w, "int8"))
    w, x = matrix((64, 8)), matrix((1, 64), 1)
    np.testing.assert_allclose(f(Tensor.constant(w), Tensor.constant(x)).numpy(), (Tensor.constant(x) @ eager.quantize(w, "int8")).numpy(), rtol=1e-5, atol=1e-5)
