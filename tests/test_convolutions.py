"""Convolutions that are computed in parts: transposed ones phase by phase, groups one by one. Against torch,
values and gradients."""

import unittest

import numpy as np
import torch
import torch.nn.functional as F

import eager

rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def nchw(x):
    return x.permute(0, 3, 1, 2)


class Convolutions(unittest.TestCase):
    def both(self, ours, theirs, x, w, b):
        """Values, and gradients of a sum of squares."""
        t = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
        want = theirs(*t).permute(0, 2, 3, 1)
        (want * want).sum().backward()
        e = [eager.constant(a) for a in (x, w, b)]
        np.testing.assert_allclose(ours(*e).numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-4)
        grads = eager.grad(lambda *a: (ours(*a) ** 2).sum(), argnums=(0, 1, 2))(*e)
        for g, a in zip(grads, t):
            np.testing.assert_allclose(g.numpy(), a.grad.numpy(), rtol=1e-3, atol=1e-2)

    def test_phases_of_a_transposed_convolution(self):
        for stride, size, pad, more in (
            ((2, 2), (4, 4), 1, 0), ((2, 2), (3, 3), 1, 1), ((1, 2), (3, 5), 0, 0), ((3, 2), (5, 2), 2, 0), ((3, 2), (3, 3), 1, 1),
            ((2, 3), (5, 3), 0, 1), ((4, 4), (4, 5), 2, 3), ((5, 5), (3, 3), 0, 0), ((2, 2), (2, 2), 0, 0),
        ):  # fmt: skip
            with self.subTest(stride=stride, size=size, pad=pad, more=more):
                self.both(
                    lambda x, w, b: eager.conv2d_transpose(x, w, stride=stride, padding=pad, output_paddings=more, bias=b),
                    lambda x, w, b: F.conv_transpose2d(nchw(x), w.permute(3, 2, 0, 1), b, stride=stride, padding=pad, output_padding=more),
                    normal(2, 5, 6, 3), normal(*size, 4, 3), normal(4),
                )  # fmt: skip

    def test_dilated_and_mapped(self):
        x, w = normal(3, 1, 5, 6, 3), normal(3, 3, 4, 3)
        for stride, dilation in ((2, 1), (2, 2)):
            f = eager.vmap(lambda x, s=stride, d=dilation: eager.conv2d_transpose(x, eager.constant(w), stride=(s, s), dilation=(d, d), padding=1))
            want = F.conv_transpose2d(nchw(torch.tensor(x[:, 0])), torch.tensor(w).permute(3, 2, 0, 1), stride=stride, dilation=dilation, padding=1)
            np.testing.assert_allclose(f(eager.constant(x)).numpy()[:, 0], want.permute(0, 2, 3, 1).numpy(), rtol=1e-4, atol=1e-4)

    def test_groups(self):
        for groups, channels, outs, stride in ((2, 8, 6, 1), (4, 16, 8, 2), (3, 12, 9, 1), (2, 4, 4, 1), (8, 8, 16, 1)):
            with self.subTest(groups=groups, channels=channels, outs=outs):
                self.both(
                    lambda x, w, b: eager.conv2d(x, w, stride=stride, padding=1, groups=groups, bias=b),
                    lambda x, w, b: F.conv2d(nchw(x), w.permute(3, 2, 0, 1), b, stride=stride, padding=1, groups=groups),
                    normal(2, 7, 6, channels), normal(3, 3, channels // groups, outs), normal(outs),
                )  # fmt: skip

    def test_gradient_of_a_strided_convolution(self):
        for stride in (2, 3):
            self.both(
                lambda x, w, b: eager.conv2d(x, w, stride=stride, padding=1, bias=b),
                lambda x, w, b: F.conv2d(nchw(x), w.permute(3, 2, 0, 1), b, stride=stride, padding=1),
                normal(2, 8, 7, 6), normal(3, 3, 6, 5), normal(5),
            )  # fmt: skip


if __name__ == "__main__":
    unittest.main()
