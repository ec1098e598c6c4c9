"""Runtimes: where kernels run. `get_runtime()` follows EAS_BACKEND (auto, cpu, mps, metal, opencl, ref)."""

import os

from .. import _eas

__all__ = ["Runtime", "get_runtime"]

_FACTS = {d["name"]: d for d in _eas._device_facts()}
_NAMES = {"auto": "cpu"} | {name: d["name"] for d in _FACTS.values() for name in (d["name"], d["alias"]) if name}
_HOST = 1  # DLPack's device type of host memory
_runtimes = {}


class Runtime:
    """Launches compiled kernels on one device."""

    def __init__(self, device):
        self.device = device
        self.on_host = _FACTS[device]["dlpack"] == _HOST  # its arrays are in the memory of the host

    def unavailable(self):
        """Why the device cannot be used, or None."""
        for name, _, why in _eas.devices():
            if name == self.device:
                return why
        return "not built into this library"

    def is_available(self):
        """Can the device be used?"""
        return self.unavailable() is None

    def run(self, ck, runtime_args, meta=None, *, sync=True, nthreads=None, grid=None, tptg=None, shape=None, stream=None):
        """Launches `ck` with run-time arguments by name (or in order)."""
        _eas.run(ck, runtime_args, meta, device=self.device, sync=sync, nthreads=nthreads, grid=grid, tptg=tptg, shape=shape, stream=stream)

    def synchronize(self):
        """Waits for everything launched on the device."""
        _eas.synchronize(self.device)

    def benchmark(self, ck, runtime_args, meta=None, *, repeat, warmup=0, nthreads=None, grid=None, tptg=None, shape=None):
        """Mean seconds of a run over `repeat` runs, after `warmup` that are not counted."""
        return _eas.benchmark(
            ck, runtime_args, meta, repeat=repeat, warmup=warmup, device=self.device, nthreads=nthreads, grid=grid, tptg=tptg, shape=shape
        )

    def __repr__(self):
        return f"<eas runtime {self.device!r}>"


def get_runtime(backend=None):
    """The runtime of a backend: "auto", "cpu", "ref", "mps" (alias "metal") or "opencl"; by default
    EAS_BACKEND's, else auto."""
    name = backend if backend is not None else os.environ.get("EAS_BACKEND") or "auto"
    device = _NAMES.get(name) if isinstance(name, str) else None
    if device is None:
        raise ValueError(f"unknown backend {name!r}; use one of {', '.join(map(repr, _NAMES))}")
    runtime = _runtimes.get(device) or _runtimes.setdefault(device, _make(device))
    why = runtime.unavailable()
    if why is not None:
        raise RuntimeError(f"backend {name!r} is not available: {why}")
    return runtime


def _make(device):
    if device == "cpu":
        from .cpu import CpuRuntime

        return CpuRuntime()
    if device == "mps":
        from .metal import MetalRuntime

        return MetalRuntime()
    return Runtime(device)
