"""A pytest plugin (`-p walk`): every kernel that a test launches is also run in the ways that $EAS_WALK
names, and must come out the same.

interpret: as plain Python (`_interpret=True`), against the compiled kernel, bit by bit. Products and sums are
contracted in neither. check: under `eas.check`, which must find nothing.

A launch that the kernel refuses is left to the test; what it counts is written to $EAS_WALK_COUNT."""

import os

import numpy as np

import eas
import eas.kernel as kernel_module
from eas import _eas

WAYS = os.environ.get("EAS_WALK", "").split(",")
LIMIT = 1 << 21  # bytes: what is larger takes too long, program by program
launches = 0


def _copy(x, seen):
    """Arguments that share memory share it in the copy, too."""
    if not isinstance(x, np.ndarray):
        return x
    base = x
    while isinstance(base.base, np.ndarray):
        base = base.base
    if id(base) not in seen:
        seen[id(base)] = base.copy()
    if base is x:
        return seen[id(base)]
    start = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    out = np.ndarray(x.shape, x.dtype, seen[id(base)], start, x.strides)
    out.flags.writeable = x.flags.writeable
    return out


def _copies(args, kw):
    seen = {}
    return [_copy(a, seen) for a in args], {k: _copy(v, seen) for k, v in kw.items()}


def _bits(x):
    x = np.ascontiguousarray(x)
    if x.dtype.kind in "fV":
        bits = x.view(f"u{x.dtype.itemsize}").copy()
        with np.errstate(all="ignore"):
            bits[np.isnan(x.astype(np.float64))] = 0
        return bits
    return x


def _same(name, was, now):
    for a, b in zip([*was[0], *was[1].values()], [*now[0], *now[1].values()]):
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(_bits(a), _bits(b), err_msg=f"{name}: compiled, as plain Python")


def _walkable(args, kw):
    if sum(a.nbytes for a in [*args, *kw.values()] if isinstance(a, np.ndarray)) > LIMIT:
        return False
    return all(isinstance(a, np.ndarray | np.generic | int | float | str | tuple | list | None) or callable(a) for a in [*args, *kw.values()])


class Walked:
    """A kernel, and its double that nothing is contracted in."""

    def __init__(self, fn, **flags):
        self.kernel = _eas.Kernel(fn, **flags)
        self.double = _eas.Kernel(fn, **{**flags, "fp_contract": False})
        self.__wrapped__ = fn
        self.__name__ = fn.__name__

    def __getattr__(self, name):
        return getattr(self.kernel, name)

    def __repr__(self):
        return repr(self.kernel)

    def __call__(self, *args, **kw):
        before = _copies(args, kw) if _walkable(args, kw) else None
        result = self.kernel(*args, **kw)  # raises as the test wants it
        if before:
            self.walk(before)
        return result

    def walk(self, before):
        global launches
        if kernel_module.get_runtime is not _own_runtime or "_interpret" in before[1]:
            return
        launches += 1
        if "interpret" in WAYS:
            compiled, plain = _copies(*before), _copies(*before)
            self.double(*compiled[0], **compiled[1])
            self.double(*plain[0], **plain[1], _interpret=True)
            _same(self.__name__, compiled, plain)
        if "check" in WAYS:
            report = eas.check(self.kernel, *before[0], **before[1])
            assert report.ok, str(report)


_own_runtime = kernel_module.get_runtime
kernel_module.Kernel = Walked


def pytest_sessionfinish():
    if "EAS_WALK_COUNT" in os.environ:
        with open(os.environ["EAS_WALK_COUNT"], "w") as f:
            f.write(str(launches))
