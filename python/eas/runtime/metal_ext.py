"""The low-level Metal interface. There is no extension to build any more: Metal is opened when it is first
used."""

__all__ = ["load_metal_ext"]


def load_metal_ext(*, require):
    """The module with alloc_buffer, compile, launch and so on; without Metal None, or RuntimeError if it is
    required."""
    from . import Runtime

    why = Runtime("mps").unavailable()
    if why is None:
        from . import metal_low

        return metal_low
    if require:
        raise RuntimeError(f"Metal is not available: {why}")
    return None
