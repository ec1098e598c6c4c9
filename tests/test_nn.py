# ruff: noqa: B023 (functions that are called before the loop goes on)
"""Layers and losses against torch: values, gradients of inputs and of parameters. Modules: trees, state
dicts, modes, both habits of training."""

import copy
import importlib.util
import pickle
import unittest
from collections import OrderedDict

import numpy as np

import eager
from eager import Tensor, nn, optim

F = nn.functional
torch = None
if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(1)
    TF = torch.nn.functional


def data(*shape, seed=0, low=None):
    r = np.random.default_rng(seed)
    return (r.standard_normal(shape) if low is None else r.uniform(low, 1, shape)).astype(np.float32)


def close(a, b, tol=2e-5):
    a, b = (x.detach().numpy() if hasattr(x, "detach") else np.asarray(x) for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


def last(x):  # (N, C, ...) to (N, ..., C)
    return np.moveaxis(x, 1, -1) if x.ndim > 2 else x


# How torch's parameters lie in ours.
def linear_weight(w):
    return w.T


def conv_weight(w):  # (out, in, k...) to (k..., in, out)
    return np.moveaxis(w, (0, 1), (-1, -2))


def conv_transpose_weight(w, groups=1):  # (in, out, k...) to (k..., out, in)
    return np.moveaxis(w, (0, 1), (-1, -2))


def same(w):
    return w


def load(module, pairs):
    module.load_state_dict({n: v for n, v in pairs.items()})
    return module


def check(test, mine, theirs, names, xs, ys=None, tol=3e-5, out=same, back=same):
    """names: {our parameter: (torch's, how it lies)}; xs: what ours takes, ys: what torch's takes. out:
    torch's result as ours; back: torch's input gradient as ours."""
    ys = xs if ys is None else ys
    params = dict(theirs.named_parameters())
    load(mine, {**{n: t.numpy() for n, t in mine.state_dict().items()}, **{n: f(params[m].detach().numpy()) for n, (m, f) in names.items()}})
    tx = [torch.from_numpy(np.ascontiguousarray(y)).requires_grad_(y.dtype == np.float32) for y in ys]
    ty = theirs(*tx)
    ty = ty[0] if isinstance(ty, tuple) else ty
    ct = data(*ty.shape, seed=9)
    (ty * torch.from_numpy(ct)).sum().backward()
    ex = [Tensor.constant(x) for x in xs]
    ct = out(ct)

    def f(m, *a):
        y = m(*a)
        y = y[0] if isinstance(y, tuple) else y
        return (y * ct).sum(), y

    floats = tuple(i + 1 for i, x in enumerate(xs) if x.dtype == np.float32)
    (_, y), grads = eager.value_and_grad(f, argnums=(0, *floats), has_aux=True)(mine, *ex)
    close(y, out(ty.detach().numpy()), tol)
    for i, g in zip(floats, grads[1:]):
        close(g, back(tx[i - 1].grad.numpy()), tol)
    of = dict(grads[0].named_parameters())
    for n, (m, how) in names.items():
        close(of[n], how(params[m].grad.numpy()), tol * 4)


@unittest.skipUnless(torch, "torch is not installed")
class Layers(unittest.TestCase):
    def test_linear(self):
        names = {"weight": ("weight", linear_weight), "bias": ("bias", same)}
        check(self, nn.Linear(5, 3), torch.nn.Linear(5, 3), names, [data(4, 5)])
        check(self, nn.Linear(5, 3), torch.nn.Linear(5, 3), names, [data(2, 3, 5)])
        check(self, nn.Linear(5, 3, bias=False), torch.nn.Linear(5, 3, bias=False), {"weight": ("weight", linear_weight)}, [data(5)])

    def test_embedding(self):
        at = np.array([[1, 0, 3], [3, 3, 2]])
        check(self, nn.Embedding(4, 6), torch.nn.Embedding(4, 6), {"weight": ("weight", same)}, [at])
        check(self, nn.Embedding(4, 6, padding_idx=3), torch.nn.Embedding(4, 6, padding_idx=3), {"weight": ("weight", same)}, [at])

    def test_norms(self):
        wb = {"weight": ("weight", same), "bias": ("bias", same)}
        check(self, nn.LayerNorm(6), torch.nn.LayerNorm(6), wb, [data(4, 6)])
        check(self, nn.LayerNorm((3, 6), eps=1e-3), torch.nn.LayerNorm((3, 6), eps=1e-3), wb, [data(4, 3, 6)])
        check(self, nn.LayerNorm(6, elementwise_affine=False), torch.nn.LayerNorm(6, elementwise_affine=False), {}, [data(4, 6)])
        check(self, nn.RMSNorm(6), torch.nn.RMSNorm(6, eps=1e-6), {"weight": ("weight", same)}, [data(4, 6)])
        check(self, nn.GroupNorm(2, 6), torch.nn.GroupNorm(2, 6), wb, [last(data(3, 6, 4, 5))], [data(3, 6, 4, 5)], out=last, back=last, tol=1e-4)
        check(self, nn.InstanceNorm(6), torch.nn.InstanceNorm2d(6), {}, [last(data(3, 6, 4, 5))], [data(3, 6, 4, 5)], out=last, back=last, tol=1e-4)

    def test_batch_norm(self):
        for mine, theirs, shape in (
            (nn.BatchNorm1d, torch.nn.BatchNorm1d, (7, 3)),
            (nn.BatchNorm1d, torch.nn.BatchNorm1d, (4, 3, 5)),
            (nn.BatchNorm2d, torch.nn.BatchNorm2d, (4, 3, 5, 2)),
        ):
            a, b = mine(3), theirs(3)
            wb = {"weight": ("weight", same), "bias": ("bias", same)}
            x = data(*shape)
            check(self, a, b, wb, [last(x)], [x], out=last, back=last, tol=1e-4)  # in a pure function: the module itself stays
            close(a.running_mean, np.zeros(3))
            b = theirs(3)
            for seed in range(3):
                x = data(*shape, seed=seed)
                a(Tensor.constant(last(x))), b(torch.from_numpy(x))
            close(a.running_mean, b.running_mean)
            close(a.running_var, b.running_var)
            a.eval(), b.eval()
            close(a(Tensor.constant(last(x))), last(b(torch.from_numpy(x)).detach().numpy()))
        self.assertEqual(list(nn.BatchNorm(3).state_dict()), ["weight", "bias", "running_mean", "running_var"])

    def test_batch_norm_in_pure_functions(self):
        a, b = nn.BatchNorm(3), torch.nn.BatchNorm1d(3)

        @eager.compile
        def step(m, x):
            def f(m):
                return (m(x) ** 2).sum(), m

            (loss, m), _ = eager.value_and_grad(f, has_aux=True)(m)
            return m, loss

        for seed in range(3):
            x = data(8, 3, seed=seed)
            a, _ = step(a, Tensor.constant(x))
            b(torch.from_numpy(x))
        close(a.running_mean, b.running_mean)
        close(a.running_var, b.running_var)

    def test_convolutions(self):
        def one(n, mine, theirs, shape, **kw):
            m, t = mine(4, 6, 3, **kw), theirs(4, 6, 3, **kw)
            names = {"weight": ("weight", conv_weight), "bias": ("bias", same)}
            x = data(2, 4, *shape)
            check(self, m, t, names, [last(x)], [x], out=last, back=last, tol=1e-4)

        for kw in ({}, {"stride": 2, "padding": 1}, {"groups": 2, "dilation": 2, "padding": 2}, {"padding": "same"}):
            one(1, nn.Conv1d, torch.nn.Conv1d, (9,), **kw)
            one(2, nn.Conv2d, torch.nn.Conv2d, (8, 7), **kw)
            one(3, nn.Conv3d, torch.nn.Conv3d, (6, 5, 7), **kw)
        x = data(2, 4, 8, 7)
        m = nn.Conv2d(4, 6, (3, 2), data_format="NCHW")
        t = torch.nn.Conv2d(4, 6, (3, 2))
        check(self, m, t, {"weight": ("weight", conv_weight), "bias": ("bias", same)}, [x], tol=1e-4)

    def test_conv_transpose(self):
        for kw in ({}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2}):
            x = data(2, 4, 5, 6)
            names = {"weight": ("weight", conv_transpose_weight), "bias": ("bias", same)}
            check(
                self, nn.ConvTranspose2d(4, 6, 3, **kw), torch.nn.ConvTranspose2d(4, 6, 3, **kw), names, [last(x)], [x], out=last, back=last, tol=1e-4
            )
            y = x[..., 0]
            check(
                self, nn.ConvTranspose1d(4, 6, 3, **kw), torch.nn.ConvTranspose1d(4, 6, 3, **kw), names, [last(y)], [y], out=last, back=last, tol=1e-4
            )
        m, t = nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2), torch.nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2)
        names = {"weight": ("weight", conv_transpose_weight), "bias": ("bias", same)}
        check(self, m, t, names, [last(x)], [x], out=last, back=last, tol=1e-4)

    def test_pools(self):
        x = data(2, 3, 8, 10)
        for mine, theirs in (
            (nn.MaxPool2d(2), torch.nn.MaxPool2d(2)),
            (nn.MaxPool2d(3, stride=2, padding=1), torch.nn.MaxPool2d(3, stride=2, padding=1)),
            (nn.AvgPool2d(2), torch.nn.AvgPool2d(2)),
            (nn.AvgPool2d(3, 2, 1, count_include_pad=False), torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
            (nn.AdaptiveAvgPool2d((4, 5)), torch.nn.AdaptiveAvgPool2d((4, 5))),
            (nn.AdaptiveAvgPool2d((3, 7)), torch.nn.AdaptiveAvgPool2d((3, 7))),
            (nn.AdaptiveAvgPool2d(1), torch.nn.AdaptiveAvgPool2d(1)),
        ):
            check(self, mine, theirs, {}, [last(x)], [x], out=last, back=last)
        y = x[:, :, 0]
        for mine, theirs in (
            (nn.MaxPool1d(2), torch.nn.MaxPool1d(2)),
            (nn.AvgPool1d(3), torch.nn.AvgPool1d(3)),
            (nn.AdaptiveAvgPool1d(3), torch.nn.AdaptiveAvgPool1d(3)),
        ):
            check(self, mine, theirs, {}, [last(y)], [y], out=last, back=last)

    def test_activations(self):
        x = data(40) * 3
        pairs = [
            (getattr(nn, n)(), getattr(torch.nn, n)())
            for n in (
                "ReLU",
                "Sigmoid",
                "Tanh",
                "SiLU",
                "Mish",
                "SELU",
                "ReLU6",
                "Softsign",
                "Hardsigmoid",
                "Hardswish",
                "LogSigmoid",
                "LeakyReLU",
                "ELU",
                "CELU",
                "Softplus",
                "Hardtanh",
            )
        ]
        pairs += [
            (nn.GELU(), torch.nn.GELU("tanh")),
            (nn.GELU("none"), torch.nn.GELU()),
            (nn.Softmax(), torch.nn.Softmax(-1)),
            (nn.LogSoftmax(axis=0), torch.nn.LogSoftmax(0)),
            (nn.GLU(), torch.nn.GLU()),
        ]
        for mine, theirs in pairs:
            with self.subTest(repr(mine)):
                check(self, mine, theirs, {}, [x], tol=1e-4)
        check(self, nn.PReLU(3), torch.nn.PReLU(3), {"weight": ("weight", same)}, [data(5, 3)])
        check(self, nn.Flatten(), torch.nn.Flatten(), {}, [data(2, 3, 4)])

    def test_recurrent(self):
        for name in ("RNN", "LSTM", "GRU"):
            for kw in ({}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}):
                mine, theirs = getattr(nn, name)(3, 4, **kw), getattr(torch.nn, name)(3, 4, **kw)
                names = {n: (n, linear_weight if "weight" in n else same) for n, _ in mine.named_parameters()}
                self.assertEqual(set(names), {n for n, _ in theirs.named_parameters()})
                with self.subTest(name=name, **kw):
                    check(self, mine, theirs, names, [data(5, 2, 3)], tol=1e-4)
            mine, theirs = getattr(nn, name)(3, 4), getattr(torch.nn, name)(3, 4)
            load(mine, {n: (p.detach().numpy().T if "weight" in n else p.detach().numpy()) for n, p in theirs.named_parameters()})
            h, x = data(1, 2, 4, seed=1), data(5, 2, 3)
            state = (h, data(1, 2, 4, seed=2)) if name == "LSTM" else h
            a = mine(Tensor.constant(x), tuple(map(Tensor.constant, state)) if name == "LSTM" else Tensor.constant(state))
            b = theirs(torch.from_numpy(x), tuple(map(torch.from_numpy, state)) if name == "LSTM" else torch.from_numpy(state))
            close(a[0], b[0])
            close(a[1][0] if name == "LSTM" else a[1], b[1][0] if name == "LSTM" else b[1])
            cell = getattr(nn, name + "Cell")(3, 4)
            load(cell, {n: getattr(mine, n + "_l0").numpy() for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")})
            step = cell(Tensor.constant(x[0]))
            close(step[0] if name == "LSTM" else step, mine(Tensor.constant(x[:1]))[0][0])
            one = mine(Tensor.constant(x[:, 0]))
            close(one[0], theirs(torch.from_numpy(x[:, 0]))[0])


def attention_names(prefix=""):
    return [prefix + n for n in ("q_proj", "k_proj", "v_proj", "out_proj")]


def from_torch_attention(t, prefix):
    """Torch keeps the three projections in one matrix."""
    d = t.embed_dim
    w, b = t.in_proj_weight.detach().numpy(), t.in_proj_bias.detach().numpy()
    state = {}
    for i, n in enumerate(("q_proj", "k_proj", "v_proj")):
        state[f"{prefix}{n}.weight"], state[f"{prefix}{n}.bias"] = w[i * d : (i + 1) * d].T, b[i * d : (i + 1) * d]
    state[f"{prefix}out_proj.weight"], state[f"{prefix}out_proj.bias"] = t.out_proj.weight.detach().numpy().T, t.out_proj.bias.detach().numpy()
    return state


@unittest.skipUnless(torch, "torch is not installed")
class Attention(unittest.TestCase):
    def test_scaled_dot_product(self):
        q, k, v = data(2, 3, 5, 8), data(2, 3, 7, 8, seed=1), data(2, 3, 7, 6, seed=2)
        mask = np.random.default_rng(3).random((5, 7)) < 0.7
        mask[:, 0] = True
        added = data(2, 1, 5, 7, seed=4)
        cases = [{}, {"attn_mask": mask}, {"attn_mask": added}, {"scale": 0.3}, {"is_causal": True}]
        for kw in cases:
            mine = {n: Tensor.constant(x) if isinstance(x, np.ndarray) else x for n, x in kw.items()}
            theirs = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in kw.items()}
            ts = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
            b = TF.scaled_dot_product_attention(*ts, **theirs)
            (b * b).sum().backward()
            f = lambda *a: ((y := F.scaled_dot_product_attention(*a, **mine)) * y).sum()  # noqa: E731
            close(F.scaled_dot_product_attention(q, k, v, **mine), b)
            for g, t in zip(eager.grad(f, argnums=(0, 1, 2))(*map(Tensor.constant, (q, k, v))), ts):
                close(g, t.grad, 1e-4)

    def test_grouped_queries(self):
        q, k, v = data(2, 6, 5, 8), data(2, 2, 5, 8, seed=1), data(2, 2, 5, 8, seed=2)
        want = TF.scaled_dot_product_attention(*map(torch.from_numpy, (q, np.repeat(k, 3, 1), np.repeat(v, 3, 1))), is_causal=True)
        close(F.scaled_dot_product_attention(q, k, v, is_causal=True), want)
        mask = np.random.default_rng(0).random((2, 6, 5, 5)) < 0.8
        mask[..., 0] = True
        want = TF.scaled_dot_product_attention(*map(torch.from_numpy, (q, np.repeat(k, 3, 1), np.repeat(v, 3, 1), mask)))
        close(F.scaled_dot_product_attention(q, k, v, mask), want)
        with self.assertRaisesRegex(ValueError, "heads"):
            F.scaled_dot_product_attention(data(1, 5, 4, 8), k, v)

    def test_multi_head(self):
        t = torch.nn.MultiheadAttention(12, 3, batch_first=True)
        m = load(nn.MultiHeadAttention(12, 3), from_torch_attention(t, ""))
        x, y = data(2, 5, 12), data(2, 7, 12, seed=1)
        close(m(*map(Tensor.constant, (x, y, y))), t(*map(torch.from_numpy, (x, y, y)))[0])
        causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
        close(m(*map(Tensor.constant, (x, x, x)), is_causal=True), t(*map(torch.from_numpy, (x, x, x)), attn_mask=causal)[0])
        self.assertEqual(list(m.state_dict()), [f"{n}.{p}" for n in attention_names() for p in ("weight", "bias")])

    def test_encoder_and_decoder(self):
        t = torch.nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True, norm_first=True)
        m = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0)
        state = from_torch_attention(t.self_attn, "self_attn.")
        for n in ("linear1", "linear2"):
            state[f"{n}.weight"], state[f"{n}.bias"] = getattr(t, n).weight.detach().numpy().T, getattr(t, n).bias.detach().numpy()
        for n in ("norm1", "norm2"):
            state[f"{n}.weight"], state[f"{n}.bias"] = getattr(t, n).weight.detach().numpy(), getattr(t, n).bias.detach().numpy()
        load(m, state)
        x = data(2, 5, 12)
        close(m(Tensor.constant(x)), t(torch.from_numpy(x)))
        close(m(Tensor.constant(x), is_causal=True), t(torch.from_numpy(x), torch.nn.Transformer.generate_square_subsequent_mask(5), is_causal=True))
        stack = nn.TransformerEncoder(m, 3, nn.LayerNorm(12))
        both = torch.nn.TransformerEncoder(t, 3, torch.nn.LayerNorm(12), enable_nested_tensor=False)
        close(stack(Tensor.constant(x)), both(torch.from_numpy(x)), 1e-4)
        t = torch.nn.TransformerDecoderLayer(12, 3, 20, dropout=0.0, batch_first=True, norm_first=True)
        m = nn.TransformerDecoderLayer(12, 3, 20, dropout=0.0)
        state = {**from_torch_attention(t.self_attn, "self_attn."), **from_torch_attention(t.multihead_attn, "multihead_attn.")}
        for n in ("linear1", "linear2", "norm1", "norm2", "norm3"):
            w = getattr(t, n).weight.detach().numpy()
            state[f"{n}.weight"], state[f"{n}.bias"] = w.T if "linear" in n else w, getattr(t, n).bias.detach().numpy()
        load(m, state)
        y = data(2, 7, 12, seed=1)
        close(m(Tensor.constant(x), Tensor.constant(y)), t(torch.from_numpy(x), torch.from_numpy(y)))
        two = nn.TransformerDecoder(m, 2)(Tensor.constant(x), Tensor.constant(y), is_causal=True)
        want = torch.nn.TransformerDecoder(t, 2)(
            torch.from_numpy(x), torch.from_numpy(y), tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5)
        )
        close(two, want, 1e-4)


class Cache(unittest.TestCase):
    @eager.no_grad()
    def test_tokens_one_by_one(self):
        for options in ({}, {"num_kv_heads": 2}, {"rotary": True, "num_kv_heads": 1}):
            m = nn.MultiHeadAttention(16, 4, **options)
            x = Tensor.constant(data(2, 6, 16))
            want = m(x, is_causal=True)
            step = eager.compile(lambda x, c: m(x, cache=c))
            cache, outs = m.make_cache(2, 8), []
            y, cache = m(x[:, :3], cache=cache)  # several at once
            outs.append(y)
            for i in range(3, 6):
                y, cache = step(x[:, i : i + 1], cache)
                outs.append(y)
            close(eager.concatenate(outs, axis=1), want)
            self.assertEqual(int(cache.length), 6)
            self.assertEqual(step.stats.misses, 1)
            with self.assertRaises(IndexError):
                m(x, cache=cache)[0].numpy()

    def test_rotary_is_relative(self):
        q, k = data(1, 8), data(1, 8, seed=1)

        def score(i, j):
            turn = lambda x, at: F.rotary_embedding(Tensor.constant(x), *F.rotary_tables(Tensor.constant([at]), 8))  # noqa: E731
            return (turn(q, i) * turn(k, j)).sum().item()

        self.assertAlmostEqual(score(3, 1), score(12, 10), places=4)
        self.assertNotAlmostEqual(score(3, 1), score(3, 2), places=3)


@unittest.skipUnless(torch, "torch is not installed")
class OddLengths(unittest.TestCase):
    def test_attention_over_lengths_that_no_tile_divides(self):
        for rows, keys in ((197, 197), (65, 131), (129, 70), (96, 67)):
            q, k, v = data(2, rows, 16), data(2, keys, 16, seed=1), data(2, keys, 16, seed=2)
            got = F.scaled_dot_product_attention(Tensor.constant(q), Tensor.constant(k), Tensor.constant(v)).numpy()
            s = q.astype(np.float64) @ k.swapaxes(1, 2) / 4
            p = np.exp(s - s.max(-1, keepdims=True))
            np.testing.assert_allclose(got, p / p.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


class Losses(unittest.TestCase):
    def pair(self, mine, theirs, *arrays, grads=(0,), tol=2e-5):
        ts = [torch.from_numpy(a) for a in arrays]
        for i in grads:
            ts[i].requires_grad_()
        want = theirs(*ts)
        scale = data(*want.shape, seed=5) if want.ndim else np.float32(1)
        (want * torch.as_tensor(scale)).sum().backward()
        es = [Tensor.constant(a) for a in arrays]
        close(mine(*es), want, tol)
        got = eager.grad(lambda *a: (mine(*a) * scale).sum(), argnums=tuple(grads))(*es)
        for g, i in zip(got, grads):
            close(g, ts[i].grad, tol)

    def test_of_numbers(self):
        x, y = data(6, 5), data(6, 5, seed=1)
        for how in ("mean", "sum", "none"):
            for name, theirs, kw in (
                ("mse_loss", TF.mse_loss, {}),
                ("mae_loss", TF.l1_loss, {}),
                ("l1_loss", TF.l1_loss, {}),
                ("huber_loss", TF.huber_loss, {"delta": 0.7}),
                ("smooth_l1_loss", TF.smooth_l1_loss, {"beta": 0.4}),
            ):
                with self.subTest(name=name, how=how):
                    self.pair(
                        lambda a, b: getattr(F, name)(a, b, reduction=how, **kw), lambda a, b: theirs(a, b, reduction=how, **kw), x, y, grads=(0, 1)
                    )
        self.pair(F.poisson_nll_loss, lambda a, b: TF.poisson_nll_loss(a, b), x, abs(y))
        self.pair(F.gaussian_nll_loss, TF.gaussian_nll_loss, x, y, abs(data(6, 5, seed=2)) + 0.1, grads=(0, 2), tol=1e-4)

    def test_classes(self):
        x, t = data(7, 5), np.array([0, 4, 2, 1, 3, 3, 0])
        w = np.abs(data(5, seed=2)) + 0.1
        for kw in ({}, {"label_smoothing": 0.2}, {"reduction": "sum"}, {"reduction": "none"}):
            for weight in (None, w):
                mine = {**kw, "weight": weight}
                theirs = {**kw, "weight": None if weight is None else torch.from_numpy(weight)}
                self.pair(lambda a, b: F.cross_entropy(a, b, **mine), lambda a, b: TF.cross_entropy(a, b, **theirs), x, t)
                hidden = t.copy()
                hidden[[1, 4]] = -100
                self.pair(lambda a, b: F.cross_entropy(a, b, **mine), lambda a, b: TF.cross_entropy(a, b, **theirs), x, hidden)
                self.pair(
                    lambda a, b: F.cross_entropy(a, b, ignore_index=3, **mine), lambda a, b: TF.cross_entropy(a, b, ignore_index=3, **theirs), x, t
                )
        soft = np.random.default_rng(0).dirichlet(np.ones(5), 7).astype(np.float32)
        self.pair(
            lambda a, b: F.cross_entropy(a, b, label_smoothing=0.1, weight=w),
            lambda a, b: TF.cross_entropy(a, b, label_smoothing=0.1, weight=torch.from_numpy(w)),
            x,
            soft,
        )
        self.pair(lambda a, b: F.nll_loss(a, b), TF.nll_loss, x, t)
        wide, labels = data(3, 4, 6, 2), np.random.default_rng(0).integers(0, 4, (3, 6, 2))
        self.pair(lambda a, b: F.cross_entropy(a, b, axis=1), TF.cross_entropy, wide, labels)

    def test_cross_entropy_loss(self):
        x, t = data(7, 5), np.array([0, 4, 2, 1, 3, 3, 0])
        want = TF.cross_entropy(torch.from_numpy(x), torch.from_numpy(t)).item()
        self.assertAlmostEqual(F.cross_entropy_loss(x, t).item(), want, places=5)
        self.assertAlmostEqual(F.cross_entropy_loss(x, np.eye(5, dtype=np.float32)[t]).item(), want, places=5)
        y, s = data(2, 3, 5), np.array([[0, 1, 2], [4, 3, 0]])
        want = TF.cross_entropy(torch.from_numpy(y.reshape(6, 5)), torch.from_numpy(s.reshape(6)), reduction="sum").item() / 2
        self.assertAlmostEqual(F.cross_entropy_loss(y, s).item(), want, places=4)

    def test_binary(self):
        x, t = data(6, 5) * 4, np.random.default_rng(0).random((6, 5)).astype(np.float32)
        self.pair(F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits, x, t)
        p = np.abs(data(5)) + 0.5
        self.pair(
            lambda a, b: F.binary_cross_entropy_with_logits(a, b, pos_weight=p),
            lambda a, b: TF.binary_cross_entropy_with_logits(a, b, pos_weight=torch.from_numpy(p)),
            x,
            t,
            tol=1e-4,
        )
        self.pair(F.binary_cross_entropy, TF.binary_cross_entropy, np.clip(t[::-1].copy(), 0.01, 0.99), t, tol=1e-4)

    def test_distributions_and_vectors(self):
        x, y = data(6, 5), data(6, 5, seed=1)
        lp, q = (
            np.log(np.random.default_rng(0).dirichlet(np.ones(5), 6)).astype(np.float32),
            np.random.default_rng(1).dirichlet(np.ones(5), 6).astype(np.float32),
        )
        q[0, 0] = 0
        for how in ("mean", "sum", "batchmean"):
            self.pair(lambda a, b: F.kl_div(a, b, reduction=how), lambda a, b: TF.kl_div(a, b, reduction=how), lp, q)
        self.pair(lambda a, b: F.kl_div(a, b, log_target=True), lambda a, b: TF.kl_div(a, b, log_target=True), lp, np.log(q + 0.1))
        self.pair(F.cosine_similarity, lambda a, b: TF.cosine_similarity(a, b, -1), x, y, grads=(0, 1))
        t = np.array([1, -1, 1, -1, 1, -1])
        self.pair(
            lambda a, b: F.cosine_embedding_loss(a, b, t, margin=0.1),
            lambda a, b: TF.cosine_embedding_loss(a, b, torch.from_numpy(t), margin=0.1),
            x,
            y,
            grads=(0, 1),
        )
        for kw in ({}, {"margin": 2.0, "swap": True}, {"p": 1.0}):
            self.pair(
                lambda a, b, c: F.triplet_margin_loss(a, b, c, **kw),
                lambda a, b, c: TF.triplet_margin_loss(a, b, c, **kw),
                x,
                y,
                data(6, 5, seed=2),
                grads=(0, 1, 2),
                tol=1e-4,
            )
        self.pair(
            lambda a, b: F.margin_ranking_loss(a, b, t[:, None], margin=0.2),
            lambda a, b: TF.margin_ranking_loss(a, b, torch.from_numpy(t[:, None]), margin=0.2),
            x,
            y,
        )
        self.pair(lambda a: F.normalize(a), TF.normalize, x)

    def test_ctc(self):
        r = np.random.default_rng(0)
        x = r.standard_normal((9, 3, 6)).astype(np.float32)
        t = np.array([[1, 1, 4, 2], [3, 2, 5, 5], [1, 2, 0, 0]])
        sizes, lengths = np.array([9, 7, 8]), np.array([3, 4, 2])
        for how in ("mean", "sum", "none"):
            mine = lambda a: F.ctc_loss(F.log_softmax(a), t, sizes, lengths, reduction=how)  # noqa: E731
            theirs = lambda a: TF.ctc_loss(
                TF.log_softmax(a, -1), torch.from_numpy(t), torch.from_numpy(sizes), torch.from_numpy(lengths), reduction=how
            )  # noqa: E731
            self.pair(mine, theirs, x, tol=1e-4)
        flat = np.concatenate([row[:k] for row, k in zip(t, lengths)])
        close(F.ctc_loss(F.log_softmax(x), flat, sizes, lengths), F.ctc_loss(F.log_softmax(x), t, sizes, lengths))
        short = F.ctc_loss(F.log_softmax(x), t, [2, 7, 8], lengths, reduction="none").numpy()
        self.assertTrue(np.isinf(short[0]) and np.isfinite(short[1:]).all())
        self.assertEqual(F.ctc_loss(F.log_softmax(x), t, [2, 7, 8], lengths, reduction="none", zero_infinity=True).numpy()[0], 0)


class Wrong(unittest.TestCase):
    def test_labels_and_tokens(self):
        x = Tensor.constant(data(3, 5))
        for bad in (5, -1, 1000):
            t = np.array([0, bad, 2])
            with self.assertRaisesRegex(IndexError, "label"):
                F.cross_entropy(x, t)
            with self.assertRaises(IndexError):  # not known until it is computed
                F.cross_entropy(x, Tensor.constant(t) + Tensor.zeros((3,), dtype="int64")).numpy()
            with self.assertRaisesRegex(IndexError, "indices"):
                nn.Embedding(5, 2)(Tensor.constant(t))
            with self.assertRaises(IndexError):
                nn.Embedding(5, 2)(Tensor.constant(t) * 1).numpy()
            with self.assertRaises(IndexError):
                eager.compile(lambda x, t: F.cross_entropy(x, t))(x, Tensor.constant(t)).numpy()
        with self.assertRaisesRegex(TypeError, "integers"):
            F.embedding(x, x)
        with self.assertRaisesRegex(ValueError, "shape"):
            F.cross_entropy(x, np.zeros((4,), int))
        with self.assertRaisesRegex(ValueError, "weight"):
            F.cross_entropy(x, np.zeros((3,), int), weight=np.ones(4, np.float32))

    def test_values(self):
        for make in (
            lambda: nn.Dropout(1.5),
            lambda: nn.Dropout(-0.1),
            lambda: nn.Linear(0, 3),
            lambda: nn.GroupNorm(3, 4),
            lambda: nn.MultiHeadAttention(10, 3),
            lambda: nn.Conv2d(3, 4, 3, groups=2),
            lambda: nn.Conv2d(3, 4, "a"),
            lambda: nn.GELU("erf"),
            lambda: nn.RNN(3, 4, nonlinearity="x"),
            lambda: nn.precision("f8"),
            lambda: nn.MultiHeadAttention(8, 4, num_kv_heads=3),
        ):
            with self.assertRaises(ValueError):
                make()
        for call in (
            lambda: nn.Linear(3, 4)(Tensor.ones((2, 5))),
            lambda: nn.LayerNorm(4)(Tensor.ones((2, 5))),
            lambda: nn.Conv2d(3, 4, 3)(Tensor.ones((1, 8, 8, 4))),
            lambda: nn.BatchNorm2d(3)(Tensor.ones((4, 3))),
            lambda: F.mse_loss(Tensor.ones((2,)), Tensor.ones((3,))),
            lambda: nn.LSTM(3, 4)(Tensor.ones((5, 2, 4))),
        ):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(NotImplementedError):
            nn.Module()(1)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Tensor.ones((3,)).requires_grad_()
        self.offset = Tensor.zeros((3,))
        self.inner = nn.Linear(3, 3)
        self.blocks = [nn.Linear(3, 3), nn.Dropout(0.2)]
        self.table = {"w": Tensor.ones((2,)).requires_grad_()}
        self.size = 3

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.inner(x))) * self.scale + self.offset + self.table["w"].sum()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


class Modules(unittest.TestCase):
    def test_names(self):
        m = Small()
        names = ["scale", "inner.weight", "inner.bias", "blocks.0.weight", "blocks.0.bias", "table.w"]
        self.assertEqual([n for n, _ in m.named_parameters()], names)
        self.assertEqual([n for n, _ in m.named_parameters("net")], ["net." + n for n in names])
        self.assertEqual([n for n, _ in m.named_buffers()], ["offset"])
        self.assertEqual(list(m.state_dict()), ["scale", "offset", *names[1:]])
        self.assertEqual([type(x).__name__ for x in m.modules()], ["Small", "Linear", "Linear", "Dropout"])
        m.register_buffer("more", np.zeros(2, np.float32))
        m.register_buffer("hidden", Tensor.zeros((2,)), persistent=False)
        self.assertEqual([n for n, _ in m.named_buffers()], ["offset", "more", "hidden"])
        self.assertNotIn("hidden", m.state_dict())

    def test_tree(self):
        m = Small()
        leaves, treedef = eager.tree_flatten(m)
        self.assertEqual(len(leaves), 7)
        self.assertIs(leaves[0], m.scale)
        self.assertIs(leaves[-1], m.offset)  # buffers come last
        again = eager.tree_unflatten(treedef, leaves)
        self.assertIs(type(again), Small)
        self.assertIs(again.blocks[0].weight, m.blocks[0].weight)
        self.assertEqual([n for n, _ in again.named_parameters()], [n for n, _ in m.named_parameters()])
        self.assertEqual(eager.tree_flatten(again)[1], treedef)
        twice = eager.tree_map(lambda t: t * 2, m)
        close(twice.inner.weight, m.inner.weight.detach().numpy() * 2)
        self.assertNotEqual(eager.tree_flatten(Small().eval())[1], treedef)
        other = Small()
        self.assertEqual(eager.tree_flatten(other)[1], treedef)
        other.size = 3.0  # equal, and yet another program
        self.assertNotEqual(eager.tree_flatten(other)[1], treedef)
        numbers = eager.tree_map(lambda t: int(np.prod(t.shape)), m)  # leaves may be anything
        self.assertEqual(eager.tree_flatten(numbers)[1], treedef)
        self.assertEqual(sum(eager.tree_leaves(numbers)), 3 + 9 + 3 + 9 + 3 + 2 + 3)

    def test_grad_vmap_compile(self):
        m, x = Small().eval(), Tensor.constant(data(4, 3))
        g = eager.grad(lambda m: (m(x) ** 2).sum())(m)
        self.assertIs(type(g), Small)
        self.assertEqual(abs(g.offset.numpy()).sum(), 0)  # a buffer is a constant
        self.assertGreater(abs(g.inner.weight.numpy()).sum(), 0)
        loss = (m(x) ** 2).sum()
        loss.backward()
        for (_, p), (_, q) in zip(m.named_parameters(), g.named_parameters()):
            close(p.grad, q)
        close(eager.vmap(lambda m, x: m(x), in_axes=(None, 0))(m, x), m(x))
        many = [Small().eval() for _ in range(3)]
        stacked = eager.tree_map(lambda *t: eager.stack([x.detach() for x in t]), *many)
        close(eager.vmap(lambda m, x: m(x), in_axes=(0, None))(stacked, x), np.stack([k(x).detach().numpy() for k in many]))
        per = eager.vmap(eager.grad(lambda m, x: (m(x) ** 2).sum()), in_axes=(None, 0))(m, x)
        self.assertEqual(tuple(per.inner.weight.shape), (4, 3, 3))
        close(per.inner.weight.sum(axis=0), g.inner.weight, 1e-4)
        f = eager.compile(lambda m, x: m(x))
        close(f(m, x), m(x))

    def test_integer_buffers_do_not_matter(self):
        m = nn.Linear(3, 2)
        m.register_buffer("count", Tensor.constant(np.array(3)))
        g = eager.grad(lambda m: m(Tensor.ones((1, 3))).sum())(m)
        self.assertEqual(g.count.numpy(), 0)
        state = optim.adamw_init(m)
        new, state = optim.adamw_update(m, g, state, lr=0.1)
        self.assertEqual(new.count.item(), 3)

    def test_tied_weights(self):
        m, x = Tied(), Tensor.ones((1, 3))
        self.assertEqual(len(list(m.parameters())), 1)
        self.assertEqual(list(m.state_dict()), ["a.weight", "b.weight"])
        self.assertEqual(len(eager.tree_leaves(m)), 1)
        again = eager.tree_map(lambda t: t + 1, m)
        self.assertIs(again.a.weight, again.b.weight)
        g = eager.grad(lambda m: m(x).sum())(m)
        m(x).sum().backward()
        close(g.a.weight, m.a.weight.grad)
        opt = optim.SGD(m.parameters(), lr=0.1)
        opt.step()
        self.assertIs(m.a.weight, m.b.weight)
        self.assertIs(copy.deepcopy(m).a.weight is not m.a.weight, True)
        deep = copy.deepcopy(m)
        self.assertIs(deep.a.weight, deep.b.weight)
        loaded = pickle.loads(pickle.dumps(m))
        self.assertIs(loaded.a.weight, loaded.b.weight)

    def test_copies(self):
        m = Small()
        for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
            self.assertEqual(list(other.state_dict()), list(m.state_dict()))
            self.assertTrue(all(p.requires_grad for p in other.parameters()))
            self.assertFalse(other.offset.requires_grad)
            other.eval(), m.eval()
            x = Tensor.constant(data(2, 3))
            close(other(x), m(x))
            optim.SGD(other, lr=1.0).step([Tensor.ones(p.shape) for p in other.parameters()])
            self.assertNotEqual(other.scale.numpy()[0], m.scale.numpy()[0])
            m.train()

    def test_state_dict(self):
        m, other = Small(), Small()
        r = other.load_state_dict(m.state_dict())
        self.assertEqual((r.missing_keys, r.unexpected_keys), ([], []))
        close(other.inner.weight, m.inner.weight)
        self.assertTrue(other.inner.weight.requires_grad)
        before = {n: t.numpy().copy() for n, t in other.state_dict().items()}
        bad = {n: t.numpy() + 1 for n, t in m.state_dict().items()}
        bad["surplus"] = bad.pop("scale")
        bad["inner.weight"] = np.zeros((2, 3), np.float32)
        with self.assertRaises(ValueError) as e:
            other.load_state_dict(bad)
        for text in ("missing: scale", "not known: surplus", "inner.weight: (2, 3) given, (3, 3) wanted"):
            self.assertIn(text, str(e.exception))
        for n, t in other.state_dict().items():
            np.testing.assert_array_equal(t.numpy(), before[n])
        with self.assertRaises(ValueError):  # a wrong shape is wrong in any case
            other.load_state_dict(bad, strict=False)
        del bad["inner.weight"]
        r = other.load_state_dict(bad, strict=False)
        self.assertEqual((r.missing_keys, r.unexpected_keys), (["scale", "inner.weight"], ["surplus"]))
        close(other.inner.bias, m.inner.bias.detach().numpy() + 1)
        with self.assertRaises(TypeError):
            other.load_state_dict([1])

    @unittest.skipUnless(torch, "torch is not installed")
    def test_state_dict_of_torch(self):
        m, t = nn.LayerNorm(4), torch.nn.LayerNorm(4)
        with torch.no_grad():
            t.weight.mul_(3)
        m.load_state_dict(t.state_dict())
        close(m.weight, t.weight)
        t.weight.data.add_(1)  # a copy was taken
        self.assertEqual(m.weight.numpy()[0], 3)

    def test_modes(self):
        m = Small()
        self.assertIs(m.eval(), m)
        self.assertFalse(any(x.training for x in m.modules()))
        self.assertIs(m.train(), m)
        self.assertTrue(m.blocks[1].training)
        m.requires_grad_(False)
        self.assertFalse(any(p.requires_grad for p in m.parameters()))
        self.assertEqual(len(list(m.parameters())), 6)
        g = eager.grad(lambda m: m(Tensor.ones((1, 3))).sum())(m)
        self.assertEqual(sum(abs(t.numpy()).sum() for t in eager.tree_leaves(g)), 0)  # frozen: constants
        m.requires_grad_()
        self.assertTrue(all(p.requires_grad for p in m.parameters()))

    def test_policy(self):
        self.assertEqual(nn.Module.get_execution_policy(), {"auto_realize_toplevel_forward": False, "auto_realize_backward_grads": False})
        m, x = nn.Linear(3, 2), Tensor.ones((1, 3))
        self.assertFalse(m(x).real)
        nn.Module.set_execution_policy(auto_realize_toplevel_forward=True, auto_realize_backward_grads=True)
        try:
            y = m(x)
            self.assertTrue(y.real)
            m.backward(y.sum())
            self.assertTrue(m.weight.grad.real)
        finally:
            nn.Module.set_execution_policy(auto_realize_toplevel_forward=False, auto_realize_backward_grads=False)
        m.zero_grad()
        self.assertIsNone(m.weight.grad)
        m.backward(m(x), gradient=Tensor.ones((1, 2)))
        close(m.weight.grad, np.ones((3, 2)))

    def test_containers(self):
        s = nn.Sequential(OrderedDict(first=nn.Linear(3, 4), act=nn.ReLU(), second=nn.Linear(4, 2)))
        self.assertEqual([n for n, _ in s.named_parameters()], ["first.weight", "first.bias", "second.weight", "second.bias"])
        self.assertEqual(len(s), 3)
        self.assertIs(s[0], s.first)
        self.assertEqual(tuple(s[:2](Tensor.ones((1, 3))).shape), (1, 4))
        items = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
        items.append(nn.ReLU())
        items[1] = nn.Identity()
        self.assertEqual([n for n, _ in items.named_parameters()], ["0.weight", "0.bias", "2.weight", "2.bias"])
        self.assertEqual((len(items), len(items[1:])), (4, 3))
        d = nn.ModuleDict({"a": nn.Linear(2, 2)})
        d["b"] = nn.ReLU()
        self.assertEqual(list(d), ["a", "b"])
        with self.assertRaises(KeyError):
            d["train"] = nn.ReLU()
        with self.assertRaises(KeyError):
            d["c"]
        self.assertIn("(first): Linear(in_features=3, out_features=4, bias=True)", repr(s))

    def test_dropout(self):
        x = Tensor.ones((1000,))
        y = F.dropout(x, 0.3, key=eager.key(1)).numpy()
        self.assertTrue(set(np.unique(y)) <= {np.float32(0), np.float32(1 / 0.7)})
        self.assertAlmostEqual((y == 0).mean(), 0.3, delta=0.05)
        close(F.dropout(x, 0.3, key=eager.key(1)), y)
        self.assertNotEqual(F.dropout(x, 0.3).numpy().tolist(), F.dropout(x, 0.3).numpy().tolist())
        self.assertEqual(F.dropout(x, 1.0).numpy().sum(), 0)
        close(nn.Dropout(0.5).eval()(x), x)
        d = eager.compile(lambda x: F.dropout(x, 0.5))
        self.assertNotEqual(d(x).numpy().tolist(), d(x).numpy().tolist())
        g = eager.grad(lambda x: F.dropout(x, 0.5, key=eager.key(2)).sum())(x)
        close(g, F.dropout(x, 0.5, key=eager.key(2)))

    def test_initialisers(self):
        for name, var in (
            ("he_normal", 2 / 400),
            ("xavier_normal", 2 / 700),
            ("lecun_normal", 1 / 400),
            ("he_uniform", 2 / 400),
            ("xavier_uniform", 2 / 700),
            ("lecun_uniform", 1 / 400),
        ):
            w = getattr(F, name)((400, 300), key=eager.key(0)).numpy()
            self.assertAlmostEqual(w.var() / var, 1, delta=0.03, msg=name)
            self.assertAlmostEqual(w.mean(), 0, delta=0.001)
        w = F.he_normal((3, 3, 50, 60), key=eager.key(0))
        self.assertAlmostEqual(w.numpy().var() * 450 / 2, 1, delta=0.05)
        t = F.truncated_normal((200000,), 1.0, 2.0, key=eager.key(1)).numpy()
        self.assertTrue(-3 <= t.min() and t.max() <= 5)
        self.assertAlmostEqual(t.std() / 2, 0.8796, delta=0.005)
        for shape in ((20, 7), (7, 20), (3, 4, 5)):
            q = F.orthogonal(shape).numpy().reshape(-1, shape[-1])
            small = q.T @ q if q.shape[0] >= q.shape[1] else q @ q.T
            np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)
        self.assertEqual(F.zeros_init((2,)).numpy().sum() + F.ones_init((2,)).numpy().sum(), 2)
        with self.assertRaises(ValueError):
            F.variance_scaling((3, 3), mode="x")

    def test_summary(self):
        m = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 10))
        s = m.summary((2, 8, 8, 1), show=False)
        self.assertEqual(s.parameters, 40 + 2570)
        self.assertGreaterEqual(s.flops, 2 * 2 * 64 * 4 * 9 + 2 * 2 * 256 * 10)
        self.assertLess(s.flops, 2 * (2 * 2 * 64 * 4 * 9 + 2 * 2 * 256 * 10))
        text = str(s)
        for part in ("Conv2d", "(2, 8, 8, 4)", "2,570", "2,610 parameters"):
            self.assertIn(part, text)
        e = nn.Embedding(5, 3)
        self.assertEqual(e.summary(Tensor.constant(np.array([1, 2])), show=False).rows[0].output, (2, 3))
        self.assertEqual(m.summary(show=False).flops, 0)

    def test_precision(self):
        m, x = nn.Linear(16, 8), Tensor.constant(data(4, 16))
        exact = m(x).numpy()
        with nn.precision("bf16"):
            y = m(x)
            self.assertEqual(y.dtype, eager.DType.bfloat16)
            g = eager.grad(lambda m: (m(x).astype("float32") ** 2).sum())(m)
        self.assertEqual(g.weight.dtype, eager.DType.float32)  # master weights
        np.testing.assert_allclose(y.astype("float32").numpy(), exact, atol=0.05)
        self.assertEqual(m(x).dtype, eager.DType.float32)
        f = nn.precision("f16")(lambda x: m(x))
        self.assertEqual(f(x).dtype, eager.DType.float16)
        c = eager.compile(lambda x: m(x))
        self.assertEqual(c(x).dtype, eager.DType.float32)
        with nn.precision("bf16"):
            self.assertEqual(c(x).dtype, eager.DType.bfloat16)
            self.assertEqual(F.cross_entropy(m(x), np.zeros(4, int)).dtype, eager.DType.float32)

    def test_dtypes(self):
        m = nn.Linear(3, 2).double()
        self.assertEqual(m.weight.dtype, eager.DType.float64)
        self.assertTrue(m.weight.requires_grad)
        self.assertEqual(m(Tensor.ones((1, 3), dtype="float64")).dtype, eager.DType.float64)


class Habits(unittest.TestCase):
    """The same model and data, trained as in torch, as in JAX, and as in torch in one compiled step, gives
    the same weights."""

    def setUp(self):
        eager.seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        self.x, self.t = Tensor.constant(data(32, 4)), Tensor.constant(np.random.default_rng(0).integers(0, 3, 32))

    def torch_way(self, steps=20):
        m = copy.deepcopy(self.model)
        opt = optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1)
        for _ in range(steps):
            loss = F.cross_entropy(m(self.x), self.t)
            opt.zero_grad()
            loss.backward()
            opt.step()
        return m, loss.item()

    def test_backward_through_compile(self):
        """The result of a compiled function of a model that requires gradients can be differentiated; without
        gradients, and where it differentiates by itself, it is a program."""
        m = copy.deepcopy(self.model)
        for f, args in ((eager.compile(lambda x, t: F.cross_entropy(m(x), t)), ()), (eager.compile(lambda m, x, t: F.cross_entropy(m(x), t)), (m,))):
            m.zero_grad()
            f(*args, self.x, self.t).backward()
            want = eager.grad(lambda m: F.cross_entropy(m(self.x), self.t))(m)
            close(m[0].weight.grad, want[0].weight)
            hits = f.stats.hits
            with eager.no_grad():
                f(*args, self.x, self.t)
            self.assertEqual((f.stats.misses, f.stats.hits), (1, hits + 1))

        def step(x, t):
            loss = F.cross_entropy(m(x), t)
            loss.backward()
            return loss

        c = eager.compile(step)
        m.zero_grad()
        c(self.x, self.t)
        close(m[0].weight.grad, want[0].weight)
        self.assertIn("backward()", c.explain()[0]["reason"])

    def test_jax_way(self):
        want, last_loss = self.torch_way()

        @eager.compile
        def step(m, state, x, t):
            loss, g = eager.value_and_grad(lambda m: F.cross_entropy(m(x), t))(m)
            m, state = optim.adamw_update(m, g, state, lr=1e-2, weight_decay=0.1)
            return m, state, loss

        m, state = copy.deepcopy(self.model), optim.adamw_init(self.model)
        for _ in range(20):
            m, state, loss = step(m, state, self.x, self.t)
        self.assertEqual(step.stats.misses, 1)
        self.assertEqual(int(state["step"]), 20)
        self.assertAlmostEqual(loss.item(), last_loss, places=5)
        for a, b in zip(m.parameters(), want.parameters()):
            close(a, b, 1e-5)


if __name__ == "__main__":
    unittest.main()
