"""Grids from arguments."""

__all__ = ["ceil_div", "infer_grid"]


def ceil_div(a, b):
    """a / b rounded up."""
    return -(-a // b)


def _sizes(runtime_args, shape, naxes):
    if shape is not None:
        dims = tuple(int(d) for d in shape)
        if len(dims) < 2:
            raise ValueError(f"_shape must have at least 2 dims for a kernel over several axes, got {dims}")
        return dims[-1], dims[-2], dims[-3] if len(dims) >= 3 and naxes >= 3 else 1
    missing = [n for n in ("H", "W", "D")[: max(naxes, 2)] if n not in runtime_args]
    if missing:
        raise ValueError(f"the grid needs _grid, _shape or the scalar arguments H, W (D); missing: {', '.join(missing)}")
    return int(runtime_args["W"]), int(runtime_args["H"]), int(runtime_args["D"]) if naxes >= 3 else 1


def infer_grid(ir, runtime_args, block, shape=None):
    """(ceil(W / block), H, D or 1) for kernels that use axis 1 or 2, from `shape` (its last dims) or the
    scalars H, W, D; None for 1-D kernels."""
    if ir.naxes < 2:
        return None
    if not isinstance(runtime_args, dict):
        runtime_args = dict(zip((a.name for a in ir.args), runtime_args))
    w, h, d = _sizes(runtime_args, shape, ir.naxes)
    return ceil_div(w, block), h, d
