"""State dicts of torch modules, read and written with layout="torch": the same results, the same arrays."""

import importlib.util
import unittest

import numpy as np

import eager
from eager import nn

HAS_TORCH = importlib.util.find_spec("torch") is not None


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f")


def first(y):
    return y[0] if isinstance(y, tuple) else y


@unittest.skipUnless(HAS_TORCH, "no torch")
class TestTorchLayout(unittest.TestCase):
    def check(self, ours, theirs, *inputs, channels_last=False):
        import torch

        state = theirs.state_dict()
        ours.eval().load_state_dict(state, layout="torch")
        got = first(ours(*map(eager.Tensor.constant, inputs))).numpy()
        given = [np.moveaxis(x, -1, 1).copy() if channels_last else x for x in inputs]
        want = first(theirs.eval()(*map(torch.from_numpy, given))).detach().numpy()
        np.testing.assert_allclose(got, np.moveaxis(want, 1, -1) if channels_last else want, atol=2e-6)
        back = ours.state_dict(layout="torch")
        self.assertEqual({k for k in state if "num_batches" not in k}, set(back))
        for name, t in back.items():
            np.testing.assert_array_equal(t.numpy(), state[name].numpy(), err_msg=name)
        theirs.load_state_dict({k: torch.from_dlpack(t.realize()) for k, t in back.items()})

    def test_layers(self):
        import torch

        t = torch.nn
        self.check(nn.Linear(3, 4), t.Linear(3, 4), random(2, 3))
        self.check(nn.Linear(4, 4, bias=False), t.Linear(4, 4, bias=False), random(2, 4))
        self.check(nn.Embedding(5, 5), t.Embedding(5, 5), np.array([1, 4]))
        self.check(nn.LayerNorm(4), t.LayerNorm(4), random(2, 4))
        for bias in (True, False):
            self.check(nn.Conv1d(3, 4, 3, bias=bias), t.Conv1d(3, 4, 3, bias=bias), random(2, 7, 3), channels_last=True)
        self.check(nn.Conv2d(4, 8, (2, 3), groups=2), t.Conv2d(4, 8, (2, 3), groups=2), random(2, 7, 9, 4), channels_last=True)
        self.check(nn.Conv3d(3, 4, (1, 2, 3)), t.Conv3d(3, 4, (1, 2, 3)), random(2, 5, 6, 7, 3), channels_last=True)
        transposed = dict(stride=2, groups=2)
        self.check(nn.ConvTranspose2d(4, 6, (2, 3), **transposed), t.ConvTranspose2d(4, 6, (2, 3), **transposed), random(2, 5, 6, 4), channels_last=True)
        self.check(nn.BatchNorm2d(3), t.BatchNorm2d(3), random(2, 5, 6, 3), channels_last=True)

    def test_recurrent(self):
        import torch

        t, more = torch.nn, dict(num_layers=2, bidirectional=True)
        for ours, theirs in ((nn.LSTM, t.LSTM), (nn.GRU, t.GRU), (nn.RNN, t.RNN)):
            self.check(ours(3, 4, **more), theirs(3, 4, **more), random(5, 2, 3))
        self.check(nn.LSTMCell(3, 4), t.LSTMCell(3, 4), random(2, 3))
        self.check(nn.GRUCell(3, 4), t.GRUCell(3, 4), random(2, 3))

    def test_attention(self):
        import torch

        class Theirs(torch.nn.Module):
            def __init__(self, **more):
                super().__init__()
                self.m = torch.nn.MultiheadAttention(8, 2, batch_first=True, **more)

            def forward(self, q, k, v):
                return self.m(q, k, v)

        class Ours(nn.Module):
            def __init__(self, **more):
                super().__init__()
                self.m = nn.MultiHeadAttention(8, 2, **more)

            def forward(self, *args):
                return self.m(*args)

        x = random(2, 5, 8)
        for more in ({}, {"bias": False}):
            self.check(Ours(**more), Theirs(**more), x, x + 1, x - 1)
        self.check(Ours(kdim=6, vdim=4), Theirs(kdim=6, vdim=4), x, random(2, 3, 6), random(2, 3, 4))

    def test_transformers(self):
        import torch

        t, more = torch.nn, dict(batch_first=True, norm_first=True)
        self.check(nn.TransformerEncoderLayer(8, 2, 16, 0.0), t.TransformerEncoderLayer(8, 2, 16, 0.0, **more), random(2, 5, 8))
        self.check(nn.TransformerDecoderLayer(8, 2, 16, 0.0), t.TransformerDecoderLayer(8, 2, 16, 0.0, **more), random(2, 5, 8), random(2, 3, 8))


class TestMessages(unittest.TestCase):
    def test_another_layout(self):
        net = nn.Linear(3, 4)
        before = net.weight.numpy().copy()
        with self.assertRaisesRegex(ValueError, r'\(4, 3\) given, \(3, 4\) wanted\n.*layout="torch"'):
            net.load_state_dict({"weight": random(4, 3), "bias": random(4)})
        with self.assertRaisesRegex(ValueError, "(?s)missing: bias.*another shape: weight"):
            net.load_state_dict({"weight": random(5, 5)}, layout="torch")
        with self.assertRaisesRegex(ValueError, "layout is None or \"torch\", got 'jax'"):
            net.load_state_dict({}, layout="jax")
        with self.assertRaisesRegex(ValueError, "state_dict: layout"):
            net.state_dict(layout="jax")
        np.testing.assert_array_equal(net.weight.numpy(), before)

    def test_prefix(self):
        self.assertEqual(list(nn.Linear(3, 4).state_dict("a.", layout="torch")), ["a.weight", "a.bias"])


if __name__ == "__main__":
    unittest.main()
