"""Shared by the tests."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np

import eas
from eas import mk

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests interrupt themselves and their children
    signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDIN = os.path.join(ROOT, "build", "release", "tests", "metal", "libeas-metal-standin.so")
if sys.platform != "darwin" and os.path.exists(_STANDIN):
    os.environ.setdefault("EAS_METAL_LIBRARY", _STANDIN)
_ONLY = os.environ.get("EAS_TEST_DEVICES")  # "cpu,ref": leave the others out
DEVICES = tuple(name for name, _, why in eas._eas.devices() if why is None and (not _ONLY or name in _ONLY.split(",")))
BF16 = None
with contextlib.suppress(ImportError):
    import ml_dtypes

    BF16 = np.dtype(ml_dtypes.bfloat16)


def backend(name):
    """with backend("ref"): launches run there."""
    return mock.patch.dict(os.environ, {"EAS_BACKEND": name})


def no_double(device, error):
    """Is it the error that says that the device has no f64?"""
    return device in ("mps", "opencl") and isinstance(error, TypeError) and "no double" in str(error)


def same(test, one, other, what):
    """Equal bit for bit (any NaN is a NaN)."""
    nan, nan2 = one != one, other != other
    test.assertTrue((nan == nan2).all(), f"{what} differ in NaNs")
    test.assertEqual(one[~nan].tobytes(), other[~nan].tobytes(), f"{what} differ")


def each(test, kernel, *args, **kw):
    """Launches on every device on copies of the arrays; returns their outputs, which must be equal bit for
    bit (any NaN is a NaN). A device without f64 must say so, and is left out then."""
    results = {}
    for device in DEVICES:
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        try:
            with backend(device):
                kernel(*copies, **kw)
        except TypeError as e:
            if not no_double(device, e):
                raise
            continue
        results[device] = [a for a in copies if isinstance(a, np.ndarray)]
    for device in results:
        for one, other in zip(results["cpu"], results[device]):
            same(test, one, other, f"cpu and {device}")
    return results["cpu"]


@contextlib.contextmanager
def compile_log():
    """What EAS_LOG says of code for the cpu, as a list of lines, once the block is left."""
    lines = []
    old, saved = os.environ.get("EAS_LOG"), os.dup(2)
    with tempfile.TemporaryFile() as f:
        os.environ["EAS_LOG"] = "info"
        os.dup2(f.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.environ.pop("EAS_LOG") if old is None else os.environ.__setitem__("EAS_LOG", old)
            f.seek(0)
            lines.extend(line for line in f.read().decode().splitlines() if " for cpu in " in line)


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


def kernel1(f):
    """out = f(x), element by element."""

    @eas.kernel
    def k(x, out, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, f(mk.load(x, i, i < N)), i < N)

    return k


def kernel2(f):
    """out = f(x, y), element by element."""

    @eas.kernel
    def k(x, y, out, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(out, i, f(mk.load(x, i, i < N), mk.load(y, i, i < N)), i < N)

    return k
