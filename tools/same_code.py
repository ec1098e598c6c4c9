"""Is the generated code still the same, byte for byte?

usage: same_code.py capture IR                 the IR of the kernels of examples/ and of many eager programs,
                                               as they are compiled, into the folder IR
       same_code.py write OUT [--ir IR]        what this build makes of them, and of random kernels with fixed
                                               seeds: machine code at each
                                               level, MSL, OpenCL C for GPUs and in vectors
       same_code.py compare A B                lists the files that differ; exit code 1 if any does
       same_code.py twice --program P --llvm L a few kernels, written twice by the same build: a test of this
       tool, and of determinism

A change that must not change what is generated is shown not to by `write` before and after it, and `compare`.
`capture` needs the Python package of the same version; changes above src/gen are compared by capturing twice.
`write` builds the tool in --build (build/release).
"""

import argparse
import filecmp
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEVELS = ("avx512", "avx2", "sse2", "amx")
SEEDS = {"avx512": 60, "avx2": 30, "sse2": 30, "amx": 0, "text": 150}
EXAMPLES = (
    "add",
    "attention",
    "dropout",
    "histogram",
    "layernorm",
    "mandelbrot",
    "matmul",
    "matmul_tiled",
    "nbody",
    "prefix_sum",
    "saxpy",
    "softmax",
    "stencil",
    "transformer",
)


# ---- programs whose kernels are compared ----


def eager_programs(np, eager):
    """(name, function) of eager programs: each runs once and is forgotten."""
    rng = np.random.default_rng(0)

    def t(*shape, dtype=np.float32):
        return eager.tensor(rng.standard_normal(shape).astype(dtype) if np.dtype(dtype).kind == "f" else rng.integers(0, 9, shape).astype(dtype))

    def gpt_block():
        x, w1, w2 = t(64, 128), t(128, 384), t(128, 128)
        q, k, v = (p.reshape((64, 4, 32)) for p in eager.split(x @ w1, 3, axis=-1))
        s = eager.softmax(eager.einsum("ihd,jhd->hij", q, k) * 32**-0.5, axis=-1)
        return eager.einsum("hij,jhd->ihd", s, v).reshape((64, 128)) @ w2 + x

    def mlp_grad():
        x, w, v = t(96, 64), t(64, 128), t(128, 10)
        return eager.grad(lambda w, v: (eager.tanh(x @ w) @ v).exp().mean(), argnums=(0, 1))(w, v)

    def conv():
        return eager.conv2d(t(2, 16, 16, 3), t(3, 3, 3, 8))

    def conv_grad():
        x = t(2, 12, 12, 3)
        return eager.grad(lambda w: (eager.conv2d(x, w) ** 2).sum())(t(3, 3, 3, 4))

    yield "map", lambda: (t(1000) * 2 + 1).exp() / t(1000)
    yield "map_i32", lambda: t(1000, dtype=np.int32) // 3 + t(1000, dtype=np.int32) % 5
    yield "map_i64", lambda: t(777, dtype=np.int64) * 3 - 1
    yield "map_f64", lambda: eager.sin(t(500, dtype=np.float64)) + eager.log(abs(t(500, dtype=np.float64)) + 1)
    yield "half", lambda: (t(512).astype("float16") * 2).astype("bfloat16") + t(512).astype("bfloat16")
    yield "broadcast", lambda: t(40, 1, 30) * t(50, 1) + t(30)
    yield "rows", lambda: t(64, 1000).sum(axis=1) + t(64, 1000).max(axis=1)
    yield "columns", lambda: t(64, 1000).mean(axis=0)
    yield "all", lambda: t(100000).sum()
    yield "long_softmax", lambda: eager.softmax(t(4, 40000), axis=-1)
    yield "softmax", lambda: eager.softmax(t(128, 300), axis=-1)
    yield "log_softmax_grad", lambda: eager.grad(lambda x: (eager.log_softmax(x, axis=-1) ** 2).sum())(t(32, 100))
    yield "variance", lambda: t(64, 512).var(axis=-1)
    yield "norm", lambda: (lambda x: (x - x.mean(axis=-1, keepdims=True)) / (x.var(axis=-1, keepdims=True) + 1e-5).sqrt())(t(64, 512))
    yield "argmax", lambda: t(50, 200).argmax(axis=1)
    yield "cumsum", lambda: eager.cumsum(t(20, 3000), axis=1)
    yield "sort", lambda: eager.sort(t(8, 500), axis=-1)
    yield "topk", lambda: eager.topk(t(8, 500), 7)
    yield "transpose", lambda: t(100, 200).T + 1
    yield "product", lambda: t(128, 96) @ t(96, 160)
    yield "product_odd", lambda: t(37, 51) @ t(51, 29)
    yield "product_large", lambda: t(512, 512) @ t(512, 512)
    yield "product_vector", lambda: t(300, 400) @ t(400)
    yield "product_batched", lambda: t(6, 40, 50) @ t(6, 50, 30)
    yield "product_turned", lambda: t(96, 128).T @ t(96, 64)
    yield "product_turned_right", lambda: t(96, 128) @ t(64, 128).T
    yield "product_f64", lambda: t(64, 64, dtype=np.float64) @ t(64, 64, dtype=np.float64)
    yield "product_bf16", lambda: t(128, 128).astype("bfloat16") @ t(128, 128).astype("bfloat16")
    yield "product_gelu", lambda: eager.gelu(t(64, 256) @ t(256, 128) + t(128))
    yield "gather", lambda: t(100, 64)[t(50, dtype=np.int64)]
    yield "scatter", lambda: eager.grad(lambda x: (x[eager.tensor(np.arange(40) % 7)] ** 2).sum())(t(10, 33))
    yield "slices", lambda: t(60, 70)[3:50:2, 10:] * 2
    yield "concat", lambda: eager.concatenate([t(10, 20), t(5, 20), t(7, 20)], axis=0) + 1
    yield "where", lambda: eager.where(t(999) > 0, t(999), -1.0)
    yield "gpt_block", gpt_block
    yield "mlp_grad", mlp_grad
    yield "conv", conv
    yield "conv_grad", conv_grad
    yield "random", lambda: eager.random.normal((1000,), key=eager.random.key(3))
    yield "attention", lambda: eager.scaled_dot_product_attention(t(2, 4, 64, 32), t(2, 4, 64, 32), t(2, 4, 64, 32))
    yield "vmap", lambda: eager.vmap(lambda a, b: a @ b)(t(5, 20, 30), t(5, 30, 10))


def run_programs():
    """In a process of its own, with EAS_DUMP set: what cannot run is said and left out."""
    import runpy

    import numpy as np

    import eager

    sys.path.insert(0, str(ROOT))
    for name in EXAMPLES:
        sys.argv[:] = [name] + ([os.path.join(tempfile.gettempdir(), "same_code.png")] if name == "mandelbrot" else [])
        runpy.run_module("examples." + name, run_name="__main__", alter_sys=False)
    for name, f in eager_programs(np, eager):
        try:
            out = f()
            eager.realize_all(*(out if isinstance(out, (tuple, list)) else (out,)))
        except Exception as e:  # a program that this version refuses is no kernel to compare
            print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr)


# ---- commands ----


def capture(folder):
    folder = pathlib.Path(folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = {**os.environ, "EAS_DUMP": str(folder), "EAS_CACHE_DIR": "off", "EAS_EXAMPLES_SMALL": "1", "EAS_NUM_THREADS": "2"}
    subprocess.run([sys.executable, __file__, "--programs"], env=env, check=True, stdout=subprocess.DEVNULL)
    print(f"{len(list(folder.glob('*.ir')))} kernels in {folder}")


def tool(build):
    ninja = ROOT / ".venv/bin/ninja"
    subprocess.run(
        [str(ninja) if ninja.exists() else "ninja", "-C", str(build), "--quiet", "tools/same_code", "libeas-llvm.so"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return build / "tools/same_code"


def write(folder, ir, program, llvm, levels=LEVELS, share=1):
    """share: one of so many random kernels."""
    folder = pathlib.Path(folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = sorted(str(f) for f in (ROOT / "tests/fuzz/corpus").glob("*.ir")) + (sorted(str(f) for f in pathlib.Path(ir).glob("*.ir")) if ir else [])
    env = {**os.environ, "EAS_LLVM_LIBRARY": str(llvm)}
    jobs = []
    for level in ("text", *levels):
        what = [level] if level == "text" else ["cpu", level]
        jobs.append([*what, *files])
        if n := SEEDS[level] // share:
            jobs.append([*what, "--random", "1", str(n)])

    def run(job):
        subprocess.run([str(program), str(folder), *job], env=env, check=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, jobs))
    print(f"{len(os.listdir(folder))} files in {folder}")


def compare(a, b):
    names = [set(os.listdir(a)), set(os.listdir(b))]
    both = sorted(names[0] & names[1])
    _, differ, broken = filecmp.cmpfiles(a, b, both, shallow=False)
    for name in sorted(names[0] ^ names[1]):
        print(f"only in {a if name in names[0] else b}: {name}")
    for name in sorted(differ + broken):
        print(f"differs: {name}")
    wrong = len(names[0] ^ names[1]) + len(differ) + len(broken)
    print(f"{len(both)} files compared, {wrong} differ")
    return wrong != 0


def twice(program, llvm):
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        for folder in (a, b):
            write(folder, None, program, llvm, ("avx2",), 10)
        return compare(a, b) or not any(name.endswith(".avx2") for name in os.listdir(a))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="command", required=True)
    c = sub.add_parser("capture")
    c.add_argument("folder")
    w = sub.add_parser("write")
    w.add_argument("folder")
    w.add_argument("--ir", help="a folder of captured kernels")
    w.add_argument("--build", default=str(ROOT / "build/release"))
    t = sub.add_parser("twice")
    t.add_argument("--program", required=True)
    t.add_argument("--llvm", required=True)
    d = sub.add_parser("compare")
    d.add_argument("a")
    d.add_argument("b")
    if sys.argv[1:] == ["--programs"]:
        return run_programs()
    o = p.parse_args()
    if o.command == "capture":
        return capture(o.folder)
    if o.command == "write":
        build = pathlib.Path(o.build).resolve()
        return write(o.folder, o.ir, tool(build), build / "libeas-llvm.so")
    if o.command == "twice":
        return twice(o.program, o.llvm)
    return compare(o.a, o.b)


if __name__ == "__main__":
    sys.exit(main())
