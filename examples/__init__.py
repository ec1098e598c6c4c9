"""Tutorials that run: `python -m examples.softmax`, with EAS_BACKEND=ref to run on the reference interpreter."""

import os
import time


def size(full, small):
    """The problem size: the interpreter is for small ones."""
    return small if os.environ.get("EAS_BACKEND") == "ref" else full


def ms(f, repeat=5):
    """Milliseconds of the quickest of some calls, after one that compiles."""
    f()
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best * 1e3
