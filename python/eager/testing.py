"""Comparing tensors with arrays."""

import numpy as np

from eas._eas import EagerTensor

__all__ = ["assert_allclose", "assert_equal", "to_numpy"]


def to_numpy(x):
    """An array of x; bfloat16 as float32."""
    if isinstance(x, EagerTensor):
        return (x.cast("float32") if x.dtype == "bfloat16" else x).numpy()
    return np.asarray(x)


def assert_allclose(actual, desired, rtol=1e-5, atol=1e-6, **kw):
    """np.testing.assert_allclose for tensors."""
    np.testing.assert_allclose(to_numpy(actual), to_numpy(desired), rtol=rtol, atol=atol, **kw)


def assert_equal(actual, desired):
    """Equal in shape and in every element; NaN equals NaN."""
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(desired))
