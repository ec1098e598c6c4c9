"""The ranks of a job: which one this is, and collectives between them on whole arrays.

Under `mpirun -n 4 python train.py` every process is a rank; elsewhere this process is the only one and
everything here is the identity. The job is opened by the first call that needs it. All ranks make the same
calls in the same order. Arrays are NumPy's or tensors; what comes back is of the same kind. A rank that fails
ends the others, too: docs/distributed.md.

    import eager
    from eager import distributed as dist

    x = np.full(4, dist.rank())
    dist.all_reduce(x)                     # the sum over all ranks
    dist.all_gather(x)                     # of shape (size, 4)
"""

import atexit
import os
import sys
import threading
from typing import NamedTuple

import numpy as np

from eas import _eas

__all__ = [
    "Traffic",
    "abort",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "engine",
    "finalize",
    "gather",
    "init",
    "is_initialized",
    "ppermute",
    "rank",
    "reduce_scatter",
    "report",
    "scatter",
    "size",
    "traffic",
]

_HERE = os.path.dirname(os.path.abspath(__file__))
_lock = threading.Lock()
_place = None


class Traffic(NamedTuple):
    """Bytes of data that left this rank, the number of calls, and the bytes as counted where they were sent
    (0 in a job of one process)."""

    bytes: int
    calls: int
    wire: int


# ---- the job ----


def _say_why(kind, value, tb):
    """Ends all ranks if an exception ends this one: they would wait for it."""
    import traceback

    if not issubclass(kind, SystemExit):
        lines = traceback.extract_tb(tb)
        at = f" at {lines[-1].filename}:{lines[-1].lineno}" if lines else ""
        _eas.dist_abort(f"{''.join(traceback.format_exception_only(kind, value)).strip()[:600]}{at}")


def _install_hooks():
    before, before_thread = sys.excepthook, threading.excepthook

    def hook(kind, value, tb):
        before(kind, value, tb)
        sys.stderr.flush()
        _say_why(kind, value, tb)

    def thread_hook(args):
        before_thread(args)
        if args.exc_type is not SystemExit:
            _say_why(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook, threading.excepthook = hook, thread_hook
    atexit.register(_leave)


def _leave():
    """At exit: does not wait for the others if the job has failed."""
    if _eas.dist_is_open():
        try:
            finalize()
        except RuntimeError:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the report has been printed; other exit handlers may wait for ranks that are dead


def init():
    """Opens the job, if it is not open; the other functions call it when they need it. (rank, size)"""
    global _place
    if _place is None:
        with _lock:
            if _place is None:
                opened = _eas.dist_open()
                if opened[2] != "self":
                    _install_hooks()
                _place = opened
    return _place[:2]


def is_initialized():
    """Has anything opened the job yet?"""
    return _eas.dist_is_open()


def rank():
    """The number of this process among those of the job."""
    return init()[0]


def size():
    """The number of processes of the job."""
    return init()[1]


def engine():
    """ "mpi", or "self" in a job of one process."""
    init()
    return _place[2]


def finalize():
    """Waits until all ranks call it, and leaves the job; done at exit, too."""
    _eas.dist_finalize()


def abort(why="abort() was called"):
    """Makes this rank fail: the others raise a RuntimeError with `why` in it."""
    init()
    _eas.dist_abort(str(why))


def report():
    """The reason why the job ended, with the last operation of each rank; None: nothing has failed."""
    return _eas.dist_report()


def traffic():
    """{collective: Traffic} of this rank."""
    return {op: Traffic(*t) for op, t in _eas.dist_bytes().items()}


# ---- collectives ----

_REDUCTIONS = {
    **{n: n for n in ("sum", "prod", "max", "min", "and", "or", "mean")},
    "add": "sum",
    "mul": "prod",
    "all": "and",
    "any": "or",
}


def _site():
    f = sys._getframe(2)
    while f and os.path.abspath(f.f_code.co_filename).startswith(_HERE):
        f = f.f_back
    return None if f is None else f"{f.f_code.co_filename[-120:]}:{f.f_lineno}"


def _array(name, x):
    """A contiguous array of x, its dtype's name in libeas, and a function that turns an array into the kind
    of object that x is."""
    from eager import Tensor

    wrap = np.asarray
    if isinstance(x, Tensor):
        device = x.device
        a, wrap = x.numpy(), lambda r: Tensor.constant(r, device=device)
    else:
        a = np.asarray(x)
    a = np.ascontiguousarray(a).reshape(a.shape)
    code = {"b": "bool", "i": f"i{8 * a.itemsize}", "u": f"u{8 * a.itemsize}", "f": f"f{8 * a.itemsize}"}.get(a.dtype.kind)
    if a.dtype.name == "bfloat16":
        code = "bf16"
    if code is None or a.itemsize > 8 or not a.dtype.isnative:
        raise TypeError(f"eager.distributed.{name}: arrays of {a.dtype} cannot be sent; use bool, integers or floats of up to 64 bits in native byte order")
    return a, code, wrap


def _bytes(a):
    return None if a is None else a.reshape(-1).view(np.uint8) if a.size else np.empty(0, np.uint8)


def _run(op, code, count, send, recv, reduction="sum", root=0, to=-1, source=-1, ranks=None, shape=None, fast=False):
    init()
    _eas.dist_run(op, reduction, code, count, _bytes(send), _bytes(recv), root, to, source, None if ranks is None else tuple(ranks), _site(), shape, fast)


def _members(name, ranks):
    init()
    members = tuple(range(_place[1])) if ranks is None else tuple(int(r) for r in ranks)
    if _place[0] not in members:
        raise ValueError(f"eager.distributed.{name}: rank {_place[0]} calls a collective of ranks {members}, which it is not one of")
    return members


def _reduction(name, op, a):
    if op not in _REDUCTIONS:
        raise ValueError(f"eager.distributed.{name}: op {op!r}; it is one of {', '.join(sorted(_REDUCTIONS))}")
    if op == "mean" and a.dtype.kind not in "fV" and a.dtype.name != "bfloat16":
        raise TypeError(f"eager.distributed.{name}: the mean of {a.dtype} is not one; cast it to a float, or take the sum")
    return "sum" if op == "mean" else _REDUCTIONS[op]


def _place_of(name, what, r, members):
    if r not in members:
        raise ValueError(f"eager.distributed.{name}: {what} {r} is none of the ranks {members}")
    return members.index(r)


def barrier(ranks=None):
    """Returns when all ranks have called it."""
    _members("barrier", ranks)
    _run("barrier", "u8", 0, None, None, ranks=ranks)


def all_reduce(x, op="sum", ranks=None, fast=False):
    """The sum (or op: prod, max, min, and, or, mean) over all ranks' arrays, element by element. fast=True:
    joined in any order, by MPI's own reduction where that is quicker; the last bits of floats may differ from
    run to run."""
    members = _members("all_reduce", ranks)
    a, code, wrap = _array("all_reduce", x)
    red = _reduction("all_reduce", op, a)
    out = np.empty_like(a)
    _run("all_reduce", code, a.size, a, out, red, ranks=ranks, shape=a.shape, fast=fast)
    if op == "mean":
        out = (out / len(members)).astype(a.dtype)
    return wrap(out)


def all_gather(x, axis=None, ranks=None):
    """All ranks' arrays, stacked on a new first axis; with axis: concatenated along it."""
    members = _members("all_gather", ranks)
    a, code, wrap = _array("all_gather", x)
    out = np.empty((len(members), *a.shape), a.dtype)
    _run("all_gather", code, a.size, a, out, ranks=ranks, shape=a.shape)
    return wrap(out if axis is None else np.concatenate(list(out), axis=axis))


def _blocks(name, a, axis, n):
    """a cut into n along axis, blocks one after another."""
    if not a.ndim or not -a.ndim <= axis < a.ndim:
        raise ValueError(f"eager.distributed.{name}: axis {axis} of an array of shape {a.shape}")
    if a.shape[axis] % n:
        raise ValueError(f"eager.distributed.{name}: axis {axis} of shape {a.shape} cannot be cut into {n} equal parts")
    return np.stack(np.split(a, n, axis=axis)) if n > 1 else a[None]


def reduce_scatter(x, axis=0, op="sum", ranks=None, fast=False):
    """The sum (or op) over all ranks' arrays, of which this rank gets its part along axis. fast: as for
    all_reduce."""
    members = _members("reduce_scatter", ranks)
    a, code, wrap = _array("reduce_scatter", x)
    red = _reduction("reduce_scatter", op, a)
    parts = np.ascontiguousarray(_blocks("reduce_scatter", a, axis, len(members)))
    out = np.empty(parts.shape[1:], a.dtype)
    _run("reduce_scatter", code, out.size, parts, out, red, ranks=ranks, shape=a.shape, fast=fast)
    if op == "mean":
        out = (out / len(members)).astype(a.dtype)
    return wrap(out)


def all_to_all(x, split_axis=0, concat_axis=0, ranks=None):
    """Part k along split_axis goes to rank k; the parts that arrive are concatenated along concat_axis."""
    members = _members("all_to_all", ranks)
    a, code, wrap = _array("all_to_all", x)
    parts = np.ascontiguousarray(_blocks("all_to_all", a, split_axis, len(members)))
    out = np.empty_like(parts)
    _run("all_to_all", code, parts[0].size, parts, out, ranks=ranks, shape=a.shape)
    return wrap(np.ascontiguousarray(np.concatenate(list(out), axis=concat_axis)))


def ppermute(x, permutation, ranks=None):
    """permutation: pairs (source, destination). A rank that is no destination gets zeros."""
    members = _members("ppermute", ranks)
    a, code, wrap = _array("ppermute", x)
    pairs = [(_place_of("ppermute", "source", s, members), _place_of("ppermute", "destination", d, members)) for s, d in permutation]
    if len({s for s, _ in pairs}) < len(pairs) or len({d for _, d in pairs}) < len(pairs):
        raise ValueError(f"eager.distributed.ppermute: a rank is twice a source or twice a destination in {permutation}")
    me = members.index(_place[0])
    to = next((d for s, d in pairs if s == me), -1)
    source = next((s for s, d in pairs if d == me), -1)
    out = np.empty_like(a)
    _run("ppermute", code, a.size, a, out, to=to, source=source, ranks=ranks, shape=a.shape)
    return wrap(out)


def broadcast(x, root=0, ranks=None):
    """The root's array. The others pass one of the same shape and dtype, whose values do not matter."""
    members = _members("broadcast", ranks)
    a, code, wrap = _array("broadcast", x)
    out = np.empty_like(a)
    _run("broadcast", code, a.size, a, out, root=_place_of("broadcast", "root", root, members), ranks=ranks, shape=a.shape)
    return wrap(out)


def gather(x, root=0, ranks=None):
    """At the root all ranks' arrays, stacked on a new first axis; None elsewhere."""
    members = _members("gather", ranks)
    a, code, wrap = _array("gather", x)
    at_root = _place[0] == root
    out = np.empty((len(members), *a.shape), a.dtype) if at_root else None
    _run("gather", code, a.size, a, out, root=_place_of("gather", "root", root, members), ranks=ranks, shape=a.shape)
    return wrap(out) if at_root else None


def scatter(x, root=0, axis=0, ranks=None):
    """This rank's part of the root's array, which is cut along axis. The others pass one of the same shape
    and dtype, whose values do not matter."""
    members = _members("scatter", ranks)
    a, code, wrap = _array("scatter", x)
    parts = np.ascontiguousarray(_blocks("scatter", a, axis, len(members)))
    out = np.empty(parts.shape[1:], a.dtype)
    _run("scatter", code, out.size, parts, out, root=_place_of("scatter", "root", root, members), ranks=ranks, shape=a.shape)
    return wrap(out)
