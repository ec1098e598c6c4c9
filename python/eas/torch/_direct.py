"""Teaches the extension to read torch tensors by torch's C functions (_eas/torch_direct.c), by samples of all
kinds and the values of their attributes in Python.

If a sample does not read the same, the extension does not know this torch: arguments are then read through
DLPack's table or by attributes."""

import os

from .. import _eas

_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()


def _tensors(torch):
    def made(*shape, dtype=torch.float32, device="cpu", **more):
        return torch.zeros(shape, dtype=dtype, device=device, **more)

    base = made(4, 6)
    yield from (made(3, dtype=getattr(torch, name)) for name in _DTYPES)
    yield from (made(), made(0), made(2, 0, 3), made(1, 5, 1), base, base[1:3], base[2:], base.flatten()[5:9])  # in C order
    yield from (base.T, base[:, :1], base[:, 2:4], base[:1].expand(3, 6), made(1, 2, 3, 4).contiguous(memory_format=torch.channels_last))
    yield torch.as_strided(base, (3, 1), (1, 77))  # a stride that nothing uses
    yield from (torch.nn.Parameter(made(3)), torch.nn.Parameter(made(3), requires_grad=False))
    leaf = made(3, requires_grad=True)
    with torch.enable_grad():
        yield from (leaf, leaf * 2, leaf.detach(), (leaf * 2).detach())
    yield from (made(3, device="meta"), made(3, dtype=torch.complex64), made(3, dtype=torch.complex64).conj())
    yield from (made(1, dtype=torch.complex64).conj().imag, torch.as_strided(made(4, dtype=torch.complex64).conj().imag, (4,), (1,)))  # negated lazily
    yield torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64, device="cpu"), made(1), (3,), check_invariants=False)


def _expected(torch, t):
    """(data_ptr, numel, dtype) of what may be an argument, else None."""
    if not t.is_cpu or t.layout != torch.strided or t.is_complex() or not t.is_contiguous() or t.is_neg():
        return None
    if t.requires_grad and torch.is_grad_enabled():
        return None
    return t.data_ptr(), t.numel(), t.dtype


def learn(torch):
    """Whether tensors are read directly from now on. Modes of the caller neither see the samples nor change
    them; inside a transform of torch.func there may be no plain tensors, and a later call succeeds.
    EAS_TORCH_DIRECT=0 forbids it."""
    if os.environ.get("EAS_TORCH_DIRECT") == "0":
        return False
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        samples = [(t, t._cdata, _expected(torch, t)) for t in _tensors(torch)]
        return _eas._torch_learn(torch._C.__file__, samples)
