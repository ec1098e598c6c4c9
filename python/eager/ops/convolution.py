"""Convolutions, NHWC."""

from eas._eas import tensor_ops

__all__ = ["conv2d", "conv2d_transpose"]


def _named_padding(fn, padding, sizes, kernel, stride, dilation):
    from .image import _each, _sides

    sides = _sides(fn, padding, list(sizes), [int(k) for k in kernel], _each(stride, 2), _each(dilation, 2))
    return tuple(n for side in sides for n in side)


def conv2d(x, filter, *, stride=(1, 1), dilation=(1, 1), padding=0, groups=1, bias=None):
    """Convolution of x (N, H, W, C) with a filter (H, W, C / groups, C_out). padding: one number, (vertical,
    horizontal), (top, bottom, left, right), "valid" (none), or "same": the result has ceil(size / stride)
    rows and columns."""
    if isinstance(padding, str):
        padding = _named_padding("conv2d", padding, x.shape[1:3], filter.shape[:2], stride, dilation)
    return tensor_ops["conv2d"](x, filter, bias, stride=stride, dilation=dilation, padding=padding, groups=groups)


def conv2d_transpose(x, filter, *, stride=(1, 1), dilation=(1, 1), padding=0, output_paddings=(0, 0), bias=None):
    """Transposed convolution of x (N, H, W, C_in) with a filter (H, W, C_out, C_in)."""
    return tensor_ops["conv2d_transpose"](x, filter, bias, stride=stride, dilation=dilation, padding=padding, output_paddings=output_paddings)
