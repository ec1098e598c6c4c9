"""Tutorials that run: `python -m examples.softmax` or `python examples/softmax.py`, with EAS_BACKEND=ref to
run on the reference interpreter."""

import importlib.util
import os
import time


def small():
    """Only to see that it works? The interpreter is for small sizes, and EAS_EXAMPLES_SMALL=1 asks for them
    elsewhere."""
    return os.environ.get("EAS_BACKEND") == "ref" or os.environ.get("EAS_EXAMPLES_SMALL") == "1"


def size(full, little):
    """The problem size."""
    return little if small() else full


def ms(f, repeat=5):
    """Milliseconds of the quickest of some calls, after one that compiles."""
    f()
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def torch_call(f, arrays):
    import torch

    tensors = [torch.from_numpy(a) for a in arrays]
    return lambda: f(torch, *tensors)


def jax_call(f, arrays):
    import jax

    compiled, there = jax.jit(lambda *a: f(jax.numpy, *a)), [jax.numpy.asarray(a) for a in arrays]
    return lambda: jax.block_until_ready(compiled(*there))


def peers(*arrays, **functions):
    """", torch 1.20 ms, jax 1.31 ms": the same by others, where they are installed. Each function takes the
    module and the arrays as its own."""
    calls, text = {"torch": torch_call, "jax": jax_call}, ""
    for name, f in functions.items():
        if not small() and importlib.util.find_spec(name):
            text += f", {name} {ms(calls[name](f, arrays)):.2f} ms"
    return text
