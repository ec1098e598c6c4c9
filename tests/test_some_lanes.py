"""Functions of several arguments of which vmap maps some: values, gradients and compiled programs against a
loop over the lanes. The rows of the table of operations have such a test in test_diff_ops.py; these are
functions made of them."""

import itertools
import unittest

import numpy as np

import eager
from eager import grad, vmap

F = eager.nn.functional
C = eager.constant
RNG = np.random.default_rng(0)
LANES = 3


def r(*shape):
    return RNG.standard_normal(shape)


def positive(n):
    """A positive definite matrix."""
    a = r(n, n)
    return a @ a.T + n * np.eye(n)


def with_row(x, row):
    x = x * 1.0
    x[1] = row
    return x


CASES = {
    "einsum": (lambda a, b: eager.einsum("ij,jk->ik", a, b), r(3, 4), r(4, 2)),
    "einsum of three": (lambda a, b, c: eager.einsum("ij,jk,kl->il", a, b, c), r(3, 4), r(4, 2), r(2, 3)),
    "einsum of a diagonal": (lambda a, b: eager.einsum("ii,i->i", a, b), r(3, 3), r(3)),
    "tensordot": (lambda a, b: eager.tensordot(a, b, axes=([1], [0])), r(3, 4), r(4, 2)),
    "solve": (lambda a, b: eager.linalg.solve(a, b), positive(4), r(4, 2)),
    "solve of a vector": (lambda a, b: eager.linalg.solve(a, b), positive(4), r(4)),
    "triangular_solve": (lambda a, b: eager.linalg.triangular_solve(a, b), np.tril(positive(4)), r(4, 2)),
    "lstsq": (lambda a, b: eager.linalg.lstsq(a, b)[0], r(5, 3), r(5, 2)),
    "cross": (lambda a, b: eager.cross(a, b), r(4, 3), r(4, 3)),
    "kron": (lambda a, b: eager.kron(a, b), r(2, 3), r(3, 2)),
    "convolve": (lambda a, b: eager.convolve(a, b), r(7), r(3)),
    "correlate": (lambda a, b: eager.correlate(a, b), r(7), r(3)),
    "interp": (lambda x, xp, fp: eager.interp(x, xp, fp), r(5), np.sort(r(6)), r(6)),
    "polyval": (lambda p, x: eager.polyval(p, x), r(4), r(3)),
    "clip": (lambda x, a, b: eager.clip(x, a, b), r(4, 3), r(3) - 1, r(3) + 1),
    "where": (lambda x, a, b: eager.where(x > 0, a, b), r(4, 3), r(3), r(4, 1)),
    "concat": (lambda a, b: eager.concatenate([a, b], axis=0), r(2, 3), r(4, 3)),
    "stack": (lambda a, b: eager.stack([a, b], axis=1), r(2, 3), r(2, 3)),
    "hstack": (lambda a, b: eager.hstack([a, b]), r(2, 3), r(2, 3)),
    "conv2d": (lambda x, w: eager.conv2d(x, w, padding=1), r(1, 5, 5, 2), r(3, 3, 2, 3)),
    "layer_norm": (lambda x, w, b: eager.layer_norm(x, w, b), r(3, 4), r(4), r(4)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), r(2, 3, 4), r(2, 5, 4), r(2, 5, 4)),
    "attention_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), r(2, 5, 4), r(2, 5, 4), r(2, 5, 4)),
    "outer": (lambda a, b: eager.outer(a, b), r(3), r(4)),
    "vecdot": (lambda a, b: eager.vecdot(a, b), r(3, 4), r(3, 4)),
    "matmul_vm": (lambda a, b: a @ b, r(4), r(4, 3)),
    "matmul_mv": (lambda a, b: a @ b, r(3, 4), r(4)),
    "matmul_bb": (lambda a, b: a @ b, r(2, 3, 4), r(4, 2)),
    "linear": (lambda x, w, b: F.linear(x, w, b), r(3, 4), r(4, 2), r(2)),
    "mse_loss": (lambda x, y: F.mse_loss(x, y), r(3, 4), r(3, 4)),
    "fft": (lambda x, y: eager.real(eager.fft.fft(x * y)), r(8), r(8)),
    "trapezoid": (lambda y, x: eager.trapezoid(y, x), r(6), np.sort(r(6))),
    "cov": (lambda x, y: eager.cov(eager.stack([x, y])), r(6), r(6)),
    "quantile": (lambda x, q: eager.quantile(x * q, 0.3), r(7), r(1)),
    "select": (lambda a, b: eager.select([a > 0, b > 0], [a, b], default=0.0), r(5), r(5)),
    "slice_update": (lambda x, y: eager.slice_update(x, y, (1, 0), (2, 3)), r(4, 3), r(2, 3)),
    "x.at[1:3].set(y)": (lambda x, y: x.at[1:3].set(y), r(4, 3), r(2, 3)),
    "x.at[..., 0].add(y)": (lambda x, y: x.at[..., 0].add(y), r(4, 3), r(4)),
    "x[1] = y": (lambda x, y: with_row(x, y), r(4, 3), r(3)),
    "masked_fill": (lambda x, y: eager.masked_fill(x, y > 0, 2.0), r(4, 3), r(4, 3)),
    "scan": (lambda x, h: eager.scan(lambda c, t: (c * 0.5 + t, c * t), h, x)[1], r(5, 3), r(3)),
    "cond": (lambda x, h: eager.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - b, x, h), r(3), r(3)),
    "fori_loop": (lambda x, h: eager.fori_loop(0, 3, lambda i, c: c * h + x, x), r(3), r(3)),
    "associative_scan": (lambda x, h: eager.associative_scan(lambda a, b: a * b, x * h), r(5, 2), r(2)),
    "logsumexp": (lambda x, h: eager.logsumexp(x + h, axis=0), r(5, 2), r(2)),
    "norm": (lambda x, h: eager.linalg.norm(x - h), r(5, 2), r(2)),
    "eigh": (lambda x, h: eager.linalg.eigvalsh(x + h), positive(4), positive(4)),
    "det": (lambda x, h: eager.linalg.det(x + h), positive(3), r(3, 3)),
    "inv": (lambda x, h: eager.linalg.inv(x + h), positive(3), r(3, 3)),
    "max_pool": (lambda x, h: eager.max_pool2d(x * h, 2), r(1, 4, 4, 2), r(2)),
    "index": (lambda x, h: x[eager.constant(np.array([0, 2]))] * h, r(4, 3), r(3)),
    "bilinear": (lambda x, h: eager.interpolate(x * h, (6, 6), mode="bilinear"), r(1, 4, 4, 2), r(2)),
    "logaddexp": (lambda x, h: eager.logaddexp(x, h), r(4), r(4)),
    "hypot": (lambda x, h: eager.hypot(x, h), r(3, 1), r(4)),
    "triu": (lambda x, h: eager.triu(x @ h), r(3, 3), r(3, 3)),
    "roll": (lambda x, h: eager.roll(x * h, 1, axis=0), r(3, 3), r(3, 3)),
    "pad": (lambda x, h: eager.pad(x * h, [(1, 1), (0, 2)], mode="reflect"), r(3, 3), r(3, 3)),
    "meshgrid": (lambda x, h: eager.meshgrid(x, h)[0] * eager.meshgrid(x, h)[1], r(3), r(4)),
    "diag": (lambda x, h: eager.diag(x * h), r(3), r(3)),
    "repeat": (lambda x, h: eager.repeat(x * h, 2), r(3), r(3)),
    "gradient": (lambda x, h: eager.gradient(x * h), r(5), r(5)),
    "expm": (lambda x, h: eager.linalg.expm(x * h), r(3, 3) * 0.1, r(3, 3)),
    "svdvals": (lambda x, h: eager.linalg.svdvals(x + h), r(4, 3), r(4, 3)),
    "qr": (lambda x, h: eager.linalg.qr(x + h)[1], r(4, 3), r(4, 3)),
    "slogdet": (lambda x, h: eager.linalg.slogdet(x + h)[1], positive(3), positive(3)),
    "pinv": (lambda x, h: eager.linalg.pinv(x + h), r(4, 3), r(4, 3)),
    "cumprod": (lambda x, h: eager.cumprod(x * h, axis=0), r(4, 3), r(3)),
    "sort": (lambda x, h: eager.sort(x * h, axis=0), r(4, 3), r(3)),
    "topk": (lambda x, h: eager.topk(x * h, 2)[0], r(4, 3), r(3)),
}


class SomeLanes(unittest.TestCase):
    def check(self, name, f, args, mapped):
        many = [np.stack([a * (1 + 0.03 * k) for k in range(LANES)]) for a in args]
        axes = tuple(0 if i in mapped else None for i in range(len(args)))
        given = [C(many[i]) if i in mapped else C(a) for i, a in enumerate(args)]
        lanes = [[C(many[i][k]) if i in mapped else C(a) for i, a in enumerate(args)] for k in range(LANES)]
        numbers = tuple(range(len(args)))
        for g in (f, grad(lambda *a: (f(*a) ** 2).sum(), numbers), eager.compile(f)):
            got = eager.tree_leaves(vmap(g, in_axes=axes)(*given))
            want = [eager.tree_leaves(g(*lane)) for lane in lanes]
            for i, a in enumerate(got):
                np.testing.assert_allclose(a.numpy(), np.stack([w[i].numpy() for w in want]), rtol=1e-7, atol=1e-8, err_msg=name)

    def test_every_choice(self):
        for name, (f, *args) in CASES.items():
            for n in range(1, len(args) + 1):
                for mapped in itertools.combinations(range(len(args)), n):
                    with self.subTest(name, mapped=mapped):
                        self.check(name, f, args, mapped)


if __name__ == "__main__":
    unittest.main()
