"""Shared by the tests."""

import contextlib
import os
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np

import eas

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEVICES = ("cpu", "ref")
BF16 = None
with contextlib.suppress(ImportError):
    import ml_dtypes

    BF16 = np.dtype(ml_dtypes.bfloat16)


def backend(name):
    """with backend("ref"): launches run there."""
    return mock.patch.dict(os.environ, {"EAS_BACKEND": name})


def each(test, kernel, *args, **kw):
    """Launches on every device on copies of the arrays; returns their outputs, which must be equal bit for bit (any NaN is a NaN)."""
    results = []
    for device in DEVICES:
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        with backend(device):
            kernel(*copies, **kw)
        results.append([a for a in copies if isinstance(a, np.ndarray)])
    for one, other in zip(*results):
        nan, nan2 = one != one, other != other
        test.assertTrue((nan == nan2).all(), "cpu and ref differ in NaNs")
        test.assertEqual(one[~nan].tobytes(), other[~nan].tobytes(), "cpu and ref differ")
    return results[0]


def python(code, *args, check=True, env=None, timeout=120, **kw):
    """Runs code in a fresh interpreter that finds the same eas; gives the CompletedProcess."""
    full = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.dirname(eas.__file__)), ROOT, *sys.path]), **(env or {})}
    r = subprocess.run([sys.executable, "-c", code, *args], env=full, capture_output=True, text=True, timeout=timeout, **kw)
    if check and r.returncode:
        raise AssertionError(f"exit {r.returncode}\n{r.stdout}\n{r.stderr}")
    return r


def script(text):
    """A kernel needs its source nowhere, but messages name a file: writes one and returns its path."""
    f = tempfile.NamedTemporaryFile("w", suffix=".py", delete=False)
    with f:
        f.write(text)
    return f.name
