"""The low-level Metal interface."""

__all__ = ["load_metal_ext"]


def load_metal_ext(*, require):
    """The module with alloc_buffer, compile, launch and so on; without Metal None, or RuntimeError if it is required."""
    from . import Runtime

    why = Runtime("mps").unavailable() or "this build has no low-level Metal interface"
    if require:
        raise RuntimeError(f"Metal is not available: {why}")
    return None
