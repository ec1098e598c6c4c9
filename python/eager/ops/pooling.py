"""Pooling, NHWC."""

from eas._eas import tensor_ops

__all__ = ["avg_pool2d", "max_pool2d"]


def avg_pool2d(x, kernel_size, *, stride=None, dilation=(1, 1), padding=0, ceil_mode=False, count_boundary=True):
    """Means of windows; without a stride windows do not overlap."""
    stride = kernel_size if stride is None else stride
    return tensor_ops["avg_pool2d"](
        x, kernel_size, stride=stride, dilation=dilation, padding=padding, ceil_mode=ceil_mode, count_boundary=count_boundary
    )


def max_pool2d(x, kernel_size, *, stride=None, dilation=(1, 1), padding=0, ceil_mode=False):
    """Largest elements of windows; without a stride windows do not overlap."""
    stride = kernel_size if stride is None else stride
    return tensor_ops["max_pool2d"](x, kernel_size, stride=stride, dilation=dilation, padding=padding, ceil_mode=ceil_mode)
