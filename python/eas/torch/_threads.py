"""Launches use torch's threads once torch tensors are met: torch's workers spin between its own operations,
and a second pool would wait for them."""

import ctypes
import os
from glob import glob

from .. import _eas


def _library(torch):
    """The OpenMP library that torch brought along, if it is loaded."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    for name in ("libgomp*", "libiomp*", "libomp*"):
        for path in sorted(glob(os.path.join(folder, name))):
            try:
                return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                continue
    return None


def share(torch):
    """EAS_TORCH_THREADS=0 keeps the pools apart."""
    library = None if os.environ.get("EAS_TORCH_THREADS") == "0" else _library(torch)
    run = getattr(library, "GOMP_parallel", None)
    if run is not None:
        _eas._lend_threads(ctypes.cast(run, ctypes.c_void_p).value)
