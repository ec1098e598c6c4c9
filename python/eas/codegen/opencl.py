"""OpenCL C from IR."""

__all__ = ["emit", "ir_to_opencl"]


def emit(ir):
    """The kernel as OpenCL C 1.2 source."""
    return ir.emit("opencl")


ir_to_opencl = emit
