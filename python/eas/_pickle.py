"""How kernels, tuners and compiled functions pickle and copy: by name where their module has them, as
functions do."""

import importlib


def _named(obj):
    """What the module of the object has under its name, or None."""
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
    """Of a Kernel. One that no module has is made again of its function, which must have a name of its own
    then."""
    if k.__self__ is not None:
        return getattr, (k.__self__, k.fn.__name__)
    found = _named(k)
    if found is k:
        return k.__qualname__
    if getattr(found, "kernel", None) is k:  # an Autotuner
        return getattr, (found, "kernel")
    return _kernel, (k.fn, k._options)


def by_name(obj, make):
    """Of anything else that stands for a function: its name if that is what its module has there, else what
    `make` gives."""
    return obj.__qualname__ if _named(obj) is obj else make()
