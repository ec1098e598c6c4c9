"""`eas.profile` and `eas.explain`: how long launches take, and why a kernel was compiled again."""

import collections
import functools
from typing import NamedTuple

from . import _eas
from ._eas import Kernel

__all__ = ["ProfileRow", "explain", "profile"]


class ProfileRow(NamedTuple):
    """A configuration of a kernel on a device; bytes and flops are counted in its IR: whole blocks, loops by
    their trips."""

    kernel: str
    device: str
    file: str
    line: int
    calls: int
    seconds: float
    bytes: float
    flops: float
    compiles: int
    compile_seconds: float
    config: str = ""  # the meta values: "BLOCK=64"
    types: str = ""  # of the parameters: "f32[] f32[] int"

    @property
    def mean(self):
        return self.seconds / self.calls if self.calls else 0.0

    @property
    def roofline(self):
        """The least time that the device's measured bandwidth and speed allow, as a share of the time it
        took."""
        if not self.calls or not self.seconds:
            return 0.0
        bandwidth, speed = _peaks(self.device)
        return max(self.bytes / bandwidth, self.flops / speed) / self.seconds


class profile:
    """`with eas.profile() as p:` takes the time of every launch, copy and compile; `print(p)` is a table,
    `p.save("trace.json")` a trace for Perfetto (ui.perfetto.dev) or chrome://tracing. Launches that are
    queued are waited for meanwhile. One profile at a time."""

    def __init__(self):
        self._p = None
        self.seconds = 0.0

    def __enter__(self):
        self._p = _eas.profile_start()
        return self

    def __exit__(self, *exc):
        self.seconds = _eas.profile_stop(self._p)

    def _open(self):
        if self._p is None:
            raise RuntimeError("the profile has nothing yet: use it as `with eas.profile() as p:`")
        return self._p

    @property
    def rows(self):
        """A ProfileRow for each kernel, configuration (meta values, types of the arguments) and device, the
        longest first."""
        return sorted((ProfileRow(*r) for r in _eas.profile_rows(self._open())), key=lambda r: -r.seconds)

    def save(self, path):
        """Writes the trace."""
        text = _eas.profile_trace(self._open())
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def __str__(self):
        rows = self.rows
        names = _names(rows)
        width = max([24, *map(len, names)])
        head = f"{'kernel':{width}} {'device':8} {'calls':>8} {'total ms':>10} {'mean µs':>10} {'GB/s':>8} {'GFLOP/s':>9} {'roofline':>8} {'compiles':>8} {'ms':>8}"
        return "\n".join([head, *(_line(r, n.ljust(width)) for r, n in zip(rows, names))])

    def __repr__(self):
        return "<eas.profile, not begun>" if self._p is None else str(self)


def _share(roofline):
    """The share as text; above what memory allows, data came from the caches."""
    return "in cache" if roofline > 1.0 else f"{roofline:.0%}"


def _names(rows):
    """`axpy [BLOCK=64]`; with the types of the parameters where rows are alike without them."""

    def name(*parts):
        return f"{parts[0]} [{'; '.join(filter(None, parts[1:]))}]" if any(parts[1:]) else parts[0]

    alike = collections.Counter((r.kernel, r.config, r.device) for r in rows)
    return [name(r.kernel, r.config, r.types if alike[r.kernel, r.config, r.device] > 1 else "") for r in rows]


def _line(r, name):
    t = r.seconds or float("inf")
    return (
        f"{name} {r.device:8} {r.calls:8} {r.seconds * 1e3:10.3f} {r.mean * 1e6:10.2f} {r.bytes / t / 1e9:8.2f} {r.flops / t / 1e9:9.2f} "
        f"{_share(r.roofline):>8} {r.compiles:8} {r.compile_seconds * 1e3:8.2f}"
    )


@functools.cache
def _peaks(device):
    """(bytes, floating-point operations) per second that simple kernels reach on the device: measured once in
    a process."""
    import numpy as np

    import eas
    from eas import mk

    from .runtime import get_runtime

    @eas.kernel
    def triad(a, b, c, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(c, i, mk.fma(mk.load(a, i), 3.0, mk.load(b, i)))

    @eas.kernel
    def steps(a, N, TIMES: eas.constexpr, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        x = mk.load(a, i)
        v = [mk.var(x + j) for j in range(4)]
        for _ in mk.range(TIMES):
            for one in v:
                one.set(mk.fma(one.value, 0.5, x))
        mk.store(a, i, v[0] + v[1] + v[2] + v[3])

    slow = device == "ref"
    runtime, n, m, times = get_runtime(device), 1 << (12 if slow else 23), 1 << (8 if slow else 14), 16 if slow else 4096

    def least(kernel, *args, **meta):
        ck = kernel.compile(*args, **meta)
        return min(runtime.benchmark(ck, args, None, repeat=1, warmup=i == 0) for i in range(5))

    a, b, c = (eas.tensor(np.ones(n, np.float32), device=device) for _ in range(3))
    bandwidth = 12 * n / least(triad, a, b, c, n, BLOCK=1024)
    return bandwidth, 8 * m * times / least(steps, eas.tensor(np.ones(m, np.float32), device=device), m, TIMES=times, BLOCK=128)


# ---- why a kernel was traced again ----


def _facts(ck):
    return {**{f"argument {n!r}": t for n, t in zip(ck.params, ck._types)}, **{f"meta {n!r}": repr(v) for n, v in ck.meta.items()}}


def _nearest(one, others):
    """The differences to the specialisation that differs least; of several, the latest one."""
    mine = _facts(one)
    found = [[(n, f[n], v) for n, v in mine.items() if f[n] != v] for f in map(_facts, others)]
    return min(reversed(found), key=len)


def explain(kernel):
    """Says, for each specialisation of a kernel, what made it necessary: which argument or meta value, old
    and new, and what tracing it took."""
    kernel = getattr(kernel, "kernel", kernel)
    if not isinstance(kernel, Kernel):
        raise TypeError(f"eas.explain takes a kernel; got {type(kernel).__name__}")
    made = kernel.compiled
    if not made:
        return f"{kernel.__name__}: not traced yet"
    lines = [f"{kernel.__name__}: {len(made)} specialisation{'s' if len(made) > 1 else ''}"]
    for i, ck in enumerate(made):
        why = "the first call" if i == 0 else "; ".join(f"{n} was {old}, is {new}" for n, old, new in _nearest(ck, made[:i]))
        lines.append(f"  {i + 1}. {why} ({ck._trace_seconds * 1e3:.2f} ms to trace)")
    lines += [f"  traced again, since what it captured changed: {why}" for why in kernel._retraced]
    return "\n".join(lines)


def log_traced(kernel, ck, again=None):
    """One line on standard error, for EAS_LOG=info."""
    import sys

    before = [c for c in kernel.compiled if c is not ck]
    why = f"what it captured changed: {again}" if again else "the first call" if not before else "; ".join(f"{n} was {old}, is {new}" for n, old, new in _nearest(ck, before))
    print(f"eas: traced {kernel.__name__} in {ck._trace_seconds * 1e3:.2f} ms: {why}", file=sys.stderr)
