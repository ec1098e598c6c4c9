"""The GPT of gpt.py in torch, with its weights: to compare values, losses and times."""

import numpy as np


def torch_gpt(model, heads):
    """A torch module with the weights of a GPT; called with (tokens) it gives logits, with (tokens, past)
    (logits, new past)."""
    import torch
    from torch.nn import functional as F

    class Block(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            state = {k: v.numpy() for k, v in layer.state_dict().items()}

            def linear(name):
                w = state[name + ".weight"]
                m = torch.nn.Linear(*w.shape)
                m.weight.data, m.bias.data = torch.from_numpy(np.ascontiguousarray(w.T)), torch.from_numpy(state[name + ".bias"].copy())
                return m

            def norm(name):
                m = torch.nn.LayerNorm(len(state[name + ".weight"]))
                m.weight.data, m.bias.data = (torch.from_numpy(state[f"{name}.{p}"].copy()) for p in ("weight", "bias"))
                return m

            self.q, self.k, self.v, self.o = (linear(f"self_attn.{n}_proj") for n in ("q", "k", "v", "out"))
            self.up, self.down, self.norm1, self.norm2 = linear("linear1"), linear("linear2"), norm("norm1"), norm("norm2")

        def forward(self, x, cos, sin, past):
            n, s, d = x.shape
            y = self.norm1(x)
            q, k, v = (f(y).view(n, s, heads, d // heads).transpose(1, 2) for f in (self.q, self.k, self.v))

            def turn(t):
                a, b = t.chunk(2, -1)
                return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

            q, k = turn(q), turn(k)
            if past:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=s > 1)
            x = x + self.o(y.transpose(1, 2).reshape(n, s, d))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), (k, v)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding.from_pretrained(torch.from_numpy(model.embed.weight.detach().numpy().copy()), freeze=False)
            self.blocks = torch.nn.ModuleList(Block(layer) for layer in model.blocks.layers)
            self.norm = torch.nn.LayerNorm(self.embed.weight.shape[1])
            self.norm.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in model.blocks.norm.state_dict().items()})

        def forward(self, tokens, past=None):
            x, half = self.embed(tokens), self.embed.weight.shape[1] // heads // 2
            first = past[0][0].shape[2] if past else 0
            angles = torch.arange(first, first + tokens.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
            cos, sin, new = angles.cos(), angles.sin(), []
            for i, block in enumerate(self.blocks):
                x, kv = block(x, cos, sin, past[i] if past else None)
                new.append(kv)
            logits = self.norm(x) @ self.embed.weight.T
            return logits if past is None else (logits, new)

    return Net()
