"""Metal Shading Language from IR."""

__all__ = ["emit", "ir_to_msl"]


def emit(ir):
    """The kernel as MSL source."""
    return ir.emit("msl")


ir_to_msl = emit
