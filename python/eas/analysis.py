"""Properties of a kernel that analysis of its IR finds."""

__all__ = ["block_size", "launch_mode", "program_axes", "reads", "writes"]


def launch_mode(ir):
    """ "spmd" (mk.arange) or "thread" (mk.tid)."""
    return ir.launch_mode


def block_size(ir):
    """Lanes of a program (SPMD) or threads of a group."""
    return ir.block_size


def program_axes(ir):
    """How many program axes the kernel uses: 1 to 3."""
    return ir.naxes


def reads(ir):
    """Names of the buffers it reads."""
    return frozenset(a.name for a in ir.args if a.kind == "buffer" and a.read)


def writes(ir):
    """Names of the buffers it writes; threadgroup arrays do not count."""
    return frozenset(a.name for a in ir.args if a.kind == "buffer" and a.written)
