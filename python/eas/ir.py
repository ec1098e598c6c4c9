"""Kernel IR for looking at: `ck.ir` is an IRModule; `IRModule.parse(text)` reads the text form back."""

from ._eas import IR, DType

__all__ = ["Arg", "DType", "IRModule", "Inst", "parse"]


class _Row:
    """Shared by Arg and Inst: fields in `__slots__`, compared and printed by value."""

    __slots__ = ()

    def __init__(self, *values):
        for name, value in zip(self.__slots__, values):
            setattr(self, name, value)

    def _key(self):
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other):
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Arg(_Row):
    """A parameter: `kind` is "buffer" or "scalar"; `read` and `written` tell what the kernel does to a
    buffer."""

    __slots__ = ("name", "dtype", "kind", "read", "written")


class Inst(_Row):
    """An instruction: `op`, its operands and constants `args`, its result `name` ("" if none), type and
    source line."""

    __slots__ = ("op", "args", "name", "dtype", "shape", "file", "line")


class IRModule(IR):
    """A kernel in IR. `str(ir)` is the text form; `IRModule.parse` is its inverse."""

    __slots__ = ()

    @property
    def insts(self):
        """The instructions in order."""
        return [Inst(*row) for row in self._insns()]

    @property
    def args(self):
        """The parameters in order."""
        return [Arg(*row) for row in self._params()]

    @property
    def launch_mode(self):
        """ "spmd" or "thread"."""
        return self._info()[0]

    @property
    def block_size(self):
        """Lanes of a program (SPMD) or threads of a group."""
        return self._info()[1]

    @property
    def naxes(self):
        """How many program axes it uses: 1 to 3."""
        return self._info()[2]

    @property
    def threadgroup_bytes(self):
        """Threadgroup memory it allocates."""
        return self._info()[3]

    def __iter__(self):
        return iter(self.insts)

    def __len__(self):
        return len(self._insns())

    def __eq__(self, other):
        return isinstance(other, IRModule) and str(self) == str(other)

    def __hash__(self):
        return hash(str(self))

    def __repr__(self):
        return f"<IRModule {self.name!r}: {len(self)} instructions>"


def parse(text):
    """The kernel that the text form describes; ValueError with the position if it is malformed."""
    return IRModule.parse(text)
