"""`eas.check`: a launch run on the interpreter, with everything that it does to memory looked at."""

from typing import NamedTuple

from ._eas import Kernel


class Place(NamedTuple):
    """Where an access stands and who made it; thread is None in SPMD kernels."""

    file: str | None
    line: int
    program: tuple[int, int, int]
    thread: int | None


class Finding(NamedTuple):
    """One thing that a kernel does wrong: the first time it was seen, and how often it was."""

    kind: str  # "write-write race", "read-write race", "divergent barrier", "uninitialised read", "out of bounds"
    argument: str | None  # None if it is a threadgroup array, or if the finding is about a barrier
    index: int  # of the element
    count: int
    first: Place  # the earlier access; for a barrier, the barrier
    second: Place  # the other access; for a barrier, the place where a thread that misses it went another way


class Report(list):
    """The findings of a check. As a list it is true if there are any; `ok` is true if there are none."""

    def __init__(self, text, findings):
        super().__init__(findings)
        self.text = text

    @property
    def ok(self):
        return not self

    def __str__(self):
        return self.text

    __repr__ = __str__


def _place(file, line, program, thread):
    return Place(file, line, program, None if thread < 0 else thread)


def _finding(kind, argument, index, count, first, second):
    return Finding(kind, argument, index, count, _place(*first), _place(*second))


def check(kernel, *args, **kw):
    """Looks for races between programs, and between threads without a barrier, for barriers that not all
    threads of a group reach, for reads of threadgroup memory that nobody wrote, and for accesses out of
    bounds: `eas.check(k, x, out, n, BLOCK=64)`.

    Takes the arguments of a call of the kernel, launch options included. Runs on the interpreter, on copies:
    no argument changes. Returns a `Report`.
    """
    # of an autotuned kernel any config will do
    if hasattr(kernel, "configs") and isinstance(getattr(kernel, "kernel", None), Kernel):
        kernel, kw = kernel.kernel, {**kernel.configs[0].meta, **kw}
    if not isinstance(kernel, Kernel):
        raise TypeError(f"eas.check takes a kernel and its arguments; got {type(kernel).__name__}")
    text, findings = kernel._check(*args, **kw)
    return Report(text, (_finding(*f) for f in findings))
