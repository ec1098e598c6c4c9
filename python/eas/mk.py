"""The language of kernels: these functions record into the kernel being traced; outside a trace they raise
RuntimeError."""

from . import _eas

globals().update(_eas.mk)

# A Python loop over meta values is unrolled in any case; the name says that this is intended.
static_range = __builtins__["range"] if isinstance(__builtins__, dict) else __builtins__.range

# NumPy's names of the dtypes, and what users of other kernel languages look for.
_OTHER = {d.numpy_name: d for d in (i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)}  # noqa: F821
_OTHER |= {
    "permute": trans,  # noqa: F821
    "atomic_exchange": atomic_xchg,  # noqa: F821
    "atomic_compare_exchange": atomic_cas,  # noqa: F821
    "device_print": print,
    "device_assert": assert_,  # noqa: F821
    "debug_barrier": barrier,  # noqa: F821
}
globals().update(_OTHER)


def ones(shape, dtype=f32):  # noqa: F821
    """A block of ones."""
    return full(shape, 1, dtype)  # noqa: F821


def zeros_like(x):
    """Zeros in the shape and dtype of x."""
    return full_like(x, 0)


def ones_like(x):
    """Ones in the shape and dtype of x."""
    return full_like(x, 1)


def full_like(x, value, dtype=None):
    """One value in the shape and dtype of x."""
    return full(x.shape, value, x.dtype if dtype is None else dtype)  # noqa: F821


def expand_dims(x, axis):
    """x with a new axis of length 1 in that place."""
    shape = list(x.shape)
    if not -len(shape) - 1 <= axis <= len(shape):
        raise ValueError(f"mk.expand_dims: axis {axis} is out of range for a block of rank {len(shape)}")
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return reshape(x, shape)  # noqa: F821


def ravel(x):
    """x laid flat, in row-major order."""
    return reshape(x, (-1,))  # noqa: F821


def isfinite(x):
    """Is x neither infinite nor not a number?"""
    return not_(or_(isnan(x), isinf(x)))  # noqa: F821


_FUNCTIONS = ["ones", "zeros_like", "ones_like", "full_like", "expand_dims", "ravel", "isfinite"]
__all__ = [*_eas.mk, *_OTHER, *_FUNCTIONS, "static_range"]


def __getattr__(name):
    raise AttributeError(f"mk has no function {name!r}")
