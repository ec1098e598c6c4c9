"""Metal, close to the device: buffers, copies, compiled kernels. What `load_metal_ext` gives; most programs
want `eas.tensor` and launches.

A buffer is an `eas.Tensor` of bytes on "mps".
"""

from .. import _eas
from ..dlpack import from_dlpack, to_dlpack
from . import Runtime

__all__ = [
    "alloc_buffer",
    "compile",
    "copy_from_host",
    "copy_to_host",
    "dlpack_export",
    "dlpack_import",
    "is_available",
    "launch",
    "queue_synchronize",
    "synchronize",
]

_runtime = Runtime("mps")


def is_available():
    """Can Metal be used?"""
    return _runtime.is_available()


def alloc_buffer(nbytes, storage="private"):
    """`nbytes` bytes on the device; "shared" ones are the host's as well, and are read back without a staging
    copy."""
    if storage not in ("private", "shared"):
        raise ValueError(f'storage must be "private" or "shared", got {storage!r}')
    if storage == "shared":
        return _eas.empty_shared(nbytes, device="mps")
    return _eas.empty((nbytes,), device="mps", dtype="uint8")


def _bytes(obj, writable):
    view = memoryview(obj)
    if not view.contiguous or (writable and view.readonly):
        raise ValueError(f"the host side of a copy must be contiguous{' and writable' if writable else ''}")
    return _eas.tensor(view.cast("B") if view.nbytes else b"", dtype="uint8")


def _copy(buf, obj, back):
    if not isinstance(buf, _eas.Tensor) or buf.device != "mps":
        raise TypeError(f"expected a buffer on mps, got {type(buf).__name__}")
    host = _bytes(obj, back)
    if host.nbytes != buf.nbytes:
        raise ValueError(f"the buffer has {buf.nbytes} bytes, the host object {host.nbytes}")
    (buf.copy_to if back else buf.copy_from)(host)


def copy_from_host(buf, obj):
    """Fills the buffer from an object with the buffer protocol, of the same size in bytes."""
    _copy(buf, obj, False)


def copy_to_host(buf, obj):
    """Fills an object with the buffer protocol, of the same size in bytes, from the buffer."""
    _copy(buf, obj, True)


def compile(kernel, *args, **kw):
    """The compiled kernel for these arguments: `kernel.compile(...)`; a compiled one is given back as it is.
    """
    return kernel.compile(*args, **kw) if hasattr(kernel, "compile") else kernel


def launch(ck, runtime_args, meta=None, *, sync=True, nthreads=None, grid=None, tptg=None, shape=None, stream=None):
    """Launches a compiled kernel on the device."""
    _runtime.run(ck, runtime_args, meta, sync=sync, nthreads=nthreads, grid=grid, tptg=tptg, shape=shape, stream=stream)


def synchronize():
    """Waits for everything on the device; raises the first failure."""
    _runtime.synchronize()


def queue_synchronize(stream=None):
    """Waits for one stream; without one, for everything."""
    if stream is None:
        synchronize()
    else:
        stream.synchronize()


def dlpack_import(capsule):
    """A tensor over the memory of a DLPack capsule or producer: on the device for Metal's, without a copy."""
    return from_dlpack(capsule)


def dlpack_export(buf):
    """A DLPack capsule whose data is the MTLBuffer; work that is pending is done first."""
    return to_dlpack(buf)
