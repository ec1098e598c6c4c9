"""Convolutions, NHWC."""

from eas._eas import tensor_ops

__all__ = ["conv2d", "conv2d_transpose"]


def conv2d(x, filter, *, stride=(1, 1), dilation=(1, 1), padding=0, groups=1, bias=None):
    """Convolution of x (N, H, W, C) with a filter (H, W, C / groups, C_out). padding: one number, (vertical, horizontal), or (top, bottom, left, right)."""
    return tensor_ops["conv2d"](x, filter, bias, stride=stride, dilation=dilation, padding=padding, groups=groups)


def conv2d_transpose(x, filter, *, stride=(1, 1), dilation=(1, 1), padding=0, output_paddings=(0, 0), bias=None):
    """Transposed convolution of x (N, H, W, C_in) with a filter (H, W, C_out, C_in)."""
    return tensor_ops["conv2d_transpose"](x, filter, bias, stride=stride, dilation=dilation, padding=padding, output_paddings=output_paddings)
