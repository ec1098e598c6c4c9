"""The Python array API 2024.12 to the letter: all that `eager` has, with the standard's defaults where
`eager`'s differ.

`x.__array_namespace__()` gives this module, so libraries that dispatch (SciPy, scikit-learn) compute with
it."""

import eager as _eager

globals().update({name: getattr(_eager, name) for name in _eager.__all__})
__array_api_version__, __array_namespace_info__ = _eager.__array_api_version__, _eager.__array_namespace_info__
__all__ = [*_eager.__all__, "__array_api_version__", "__array_namespace_info__"]


def argmax(x, /, *, axis=None, keepdims=False):
    """Where the largest element is; None: of all elements, as if flattened. `eager.argmax` looks along the
    last axis by default."""
    return _eager.argmax(x, axis, keepdims)


def argmin(x, /, *, axis=None, keepdims=False):
    """Where the smallest element is; None: of all elements, as if flattened. `eager.argmin` looks along the
    last axis by default."""
    return _eager.argmin(x, axis, keepdims)


def __getattr__(name):
    """What `eager` loads when it is first used."""
    return getattr(_eager, name)
