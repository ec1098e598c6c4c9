"""How kernels, tuners and compiled functions pickle and copy: by name, as functions do, if their
module has them under that name."""

import importlib


def _named(obj):
    """The object that its module has under its name, or None."""
    try:
        found = importlib.import_module(obj.__module__)
        for part in obj.__qualname__.split("."):
            found = getattr(found, part)
    except (AttributeError, ImportError, ValueError):
        return None
    return found


def _kernel(fn, options):
    from .kernel import kernel

    return kernel(**options)(fn)


def reduce(k):
    """How a Kernel is pickled. One that is not in a module is made again from its function, which must then
    have a name of its own."""
    if k.__self__ is not None:
        return getattr, (k.__self__, k.fn.__name__)
    found = _named(k)
    if found is k:
        return k.__qualname__
    if getattr(found, "kernel", None) is k:  # an Autotuner
        return getattr, (found, "kernel")
    return _kernel, (k.fn, k._options)


def by_name(obj, make):
    """How any other object that stands for a function is pickled: by name if its module has the object under
    that name, else by the result of `make`."""
    return obj.__qualname__ if _named(obj) is obj else make()
