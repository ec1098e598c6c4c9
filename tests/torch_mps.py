"""torch's mps device where there is none: tensors that say they are on mps and whose memory is in the
stand-in for Metal (tests/metal), and torch.mps.compile_shader with the interface of torch's own. So both
tiers of eas.torch run for real."""

import ctypes
import os
from contextlib import contextmanager
from unittest import mock

import torch
from support import DEVICES

import eas
from eas.torch import _tiers

AVAILABLE = "mps" in DEVICES and bool(os.environ.get("EAS_METAL_LIBRARY"))
_DTYPES = {"bool": torch.bool, "bfloat16": torch.bfloat16}


class MpsTensor(torch.Tensor):
    """A torch tensor on "mps": metadata as torch has it, elements in an eas.Tensor."""

    @staticmethod
    def __new__(cls, memory, shape=None, offset=0, storage=None, dtype=None):
        dtype = dtype or _DTYPES.get(memory.dtype.name) or getattr(torch, memory.dtype.name)
        t = torch.Tensor._make_wrapper_subclass(cls, shape or memory.shape, dtype=dtype, device="mps")
        t.memory, t.offset, t.storage = memory, offset, storage or memory
        return t

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)

    def detach(self):
        return self

    def cpu(self):
        return self.memory.to("cpu").to_torch()

    def part(self, start, stop):
        """A view that shares memory."""
        return MpsTensor(self.memory[start:stop], offset=self.offset + start, storage=self.storage, dtype=self.dtype)

    def untyped_storage(self):
        return mock.Mock(data_ptr=lambda: self.storage.data_ptr())

    def storage_offset(self):
        return self.offset

    def __dlpack__(self, **kw):
        STAND_IN.asked += 1
        return self.memory.__dlpack__(max_version=(1, 0))


def on_mps(x):
    return MpsTensor(eas.tensor(x, device="mps"))


class _Function:
    def __init__(self, library, name):
        self.library, self.name = library, name

    def __call__(self, *args, threads=None, group_size=None, arg_casts=None):
        n = len(args)
        buffers, offsets = (ctypes.c_void_p * n)(), (ctypes.c_uint64 * n)()
        data, sizes, kept = (ctypes.c_void_p * n)(), (ctypes.c_uint64 * n)(), []
        for i, a in enumerate(args):
            if isinstance(a, torch.Tensor):
                buffers[i], offsets[i] = _handle(a.memory)
            elif isinstance(a, (int, float)) and not isinstance(a, bool):
                kept.append((ctypes.c_int64 if isinstance(a, int) else ctypes.c_float)(a))  # as torch hands them over
                data[i], sizes[i] = ctypes.addressof(kept[-1]), ctypes.sizeof(kept[-1])
            else:
                raise RuntimeError("Unsupported argument type")
        if threads is None or group_size is None or len(threads) != len(group_size):
            raise RuntimeError("Number of threads is undefined or has wrong dimension")
        three = ctypes.c_uint64 * 3
        STAND_IN.call("run", self.library.handle, self.name.encode(), n, buffers, offsets, data, sizes, three(*threads), three(*group_size))
        STAND_IN.dispatched += 1


class _Library:
    def __init__(self, source):
        self.handle = STAND_IN.compile(source)

    def __getattr__(self, name):
        return _Function(self, name)

    def __del__(self):
        if getattr(self, "handle", None):
            STAND_IN.library.eas_standin_shader_free(ctypes.c_void_p(self.handle))


def _handle(t):
    """(MTLBuffer, byte offset) of an eas.Tensor, as DLPack tells them."""
    capsule = t.__dlpack__(max_version=(1, 0))
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    p = get(capsule, b"dltensor_versioned")
    # version (8 bytes), context, deleter, flags; then data, device (8), ndim (4), dtype (4), shape, strides,
    # byte_offset
    data, offset = ctypes.c_void_p.from_address(p + 32).value, ctypes.c_uint64.from_address(p + 32 + 40).value
    return data, offset


class _StandIn:
    def __init__(self):
        self.dispatched = self.synchronized = self.asked = 0
        self.library = ctypes.CDLL(os.environ["EAS_METAL_LIBRARY"]) if AVAILABLE else None
        if self.library:
            self.library.eas_standin_shader_compile.restype = ctypes.c_void_p

    def compile(self, source):
        error = ctypes.create_string_buffer(2048)
        handle = self.library.eas_standin_shader_compile(source.encode(), error)
        if not handle:
            raise RuntimeError(error.value.decode())
        return handle

    def call(self, what, *args):
        error = ctypes.create_string_buffer(2048)
        args = [ctypes.c_void_p(a) if what == "run" and i == 0 else a for i, a in enumerate(args)]
        if getattr(self.library, f"eas_standin_shader_{what}")(*args, error):
            raise RuntimeError(error.value.decode())

    def synchronize(self):
        self.synchronized += 1
        self.call("wait")


STAND_IN = _StandIn()


def compile_shader(source):
    return _Library(source)


@contextmanager
def torch_mps(tier="B", **env):
    """torch with an mps device of the stand-in's, for tier "A" or "B"."""
    STAND_IN.dispatched = STAND_IN.synchronized = STAND_IN.asked = 0
    with (
        mock.patch.object(_tiers, "_has_mps", lambda torch: True),
        mock.patch.object(torch.mps, "compile_shader", compile_shader),
        mock.patch.object(torch.mps, "synchronize", STAND_IN.synchronize),
        mock.patch.dict(os.environ, {"EAS_TORCH_TIER": tier, **env}),
    ):
        yield STAND_IN
        STAND_IN.call("wait")
