"""Linear algebra, Fourier transforms and einsum in `eager`, against NumPy, torch and JAX. Everything of a
case runs in turns, each behind calls that are not timed: NumPy and JAX bring an OpenBLAS each, whose idle
threads spin for up to 0.1 s."""

import numpy as np

import eager

from .tools import SETTLE, interleaved

EINSUMS = {
    "bij,bjk->bik": [(32, 128, 128), (32, 128, 128)],
    "bhqd,bhkd->bhqk": [(4, 8, 128, 64), (4, 8, 128, 64)],
    "ij,jk,kl->il": [(256, 256), (256, 256), (256, 16)],
    "ijkl,kl->ij": [(32, 32, 32, 32), (32, 32)],
    "bi,ij,bj->b": [(512, 256), (256, 256), (512, 256)],
}


def libraries():
    """{name: (array maker, module, waiter)} of what is installed."""
    found = {"eager": (eager.asarray, eager, eager.realize_all), "numpy": (np.asarray, np, lambda x: x)}
    try:
        import torch

        found["torch"] = (torch.as_tensor, torch, lambda x: x)
    except ImportError:
        pass
    try:
        import jax
        import jax.numpy as jnp

        found["jax"] = (jnp.asarray, jnp, jax.block_until_ready)
    except ImportError:
        pass
    return found


def timed(table, what, call, arrays, goal, rounds=7):
    def candidate(make, module, wait):
        xs = [make(a) for a in arrays]
        return lambda: wait(call(module, *xs))

    times = interleaved({name: candidate(*of) for name, of in libraries().items()}, rounds, settle=SETTLE, shuffle=True)
    table.add(what, times.pop("eager"), times, goal)


def factorisations(table):
    r = np.random.default_rng(0)
    cases = {
        "solve": lambda m, a: m.linalg.solve(a, a),
        "cholesky": lambda m, a: m.linalg.cholesky(a),
        "qr": lambda m, a: m.linalg.qr(a),
        "eigh": lambda m, a: m.linalg.eigh(a),
        "svd": lambda m, a: m.linalg.svd(a, full_matrices=False),
    }
    for shape, goal in (((256, 64, 64), 1.0), ((1024, 1024), 1.2)):
        a = r.standard_normal(shape).astype(np.float32)
        a = a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1], dtype=np.float32)
        for name, f in cases.items():
            timed(table, f"linalg.{name}, {' x '.join(map(str, shape))}, f32", f, [a], goal, rounds=5)


def transforms(table):
    r = np.random.default_rng(1)
    for shape, f, name in (
        ((1 << 20,), lambda m, x: m.fft.fft(x), "fft"),
        ((1000, 1024), lambda m, x: m.fft.fft(x), "fft"),
        ((1024, 1024), lambda m, x: m.fft.fft2(x), "fft2"),
    ):
        z = (r.standard_normal(shape) + 1j * r.standard_normal(shape)).astype(np.complex64)
        timed(table, f"{name}, {' x '.join(map(str, shape))}, c64", f, [z], 0.8)


def contractions(table):
    r = np.random.default_rng(2)
    for text, shapes in EINSUMS.items():
        timed(table, f"einsum {text}, f32", lambda m, *x, t=text: m.einsum(t, *x), [r.standard_normal(s).astype(np.float32) for s in shapes], 1.0)


def rows(table):
    factorisations(table)
    transforms(table)
    contractions(table)
