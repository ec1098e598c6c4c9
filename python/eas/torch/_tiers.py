"""Tensors of torch's GPU (mps), in two tiers.

A: their memory is imported through DLPack, and our own queue runs the kernel. torch's queue is another one,
   so a launch first waits for torch's work (EAS_TORCH_MPS_SYNC=0 turns that off), and for the kernel before
   it returns.
B: torch's own queue runs the kernel, through torch.mps.compile_shader: nothing is copied, and nothing waits.
   Launches that must report something (unproved bounds, prints, debug), or that have other arguments too, are
   of tier A.

EAS_TORCH_TIER=A or =B chooses; without it B is used where it can be."""

import os
from functools import lru_cache

from .. import _eas
from . import _torch

FIRST_WITH_SHADERS = (2, 7)


def _version(torch):
    numbers = torch.__version__.split("+")[0].split(".")
    return tuple(int("".join(c for c in n if c.isdigit()) or 0) for n in numbers[:2])


def _has_mps(torch):
    return torch.backends.mps.is_available()


def _shaders(torch):
    """(compile_shader, None) or (None, why not)"""
    if not _has_mps(torch):
        return None, "torch has no mps device here"
    if _version(torch) < FIRST_WITH_SHADERS or not hasattr(torch.mps, "compile_shader"):
        return None, f"torch {torch.__version__} has no torch.mps.compile_shader; it came with {'.'.join(map(str, FIRST_WITH_SHADERS))}"
    return torch.mps.compile_shader, None


def tier():
    """("A" or "B", why): how launches with tensors on mps are done."""
    torch = _torch()
    asked = os.environ.get("EAS_TORCH_TIER", "")
    if asked not in ("", "A", "B"):
        raise ValueError(f"EAS_TORCH_TIER must be A or B, got {asked!r}")
    if asked == "A":
        return "A", "EAS_TORCH_TIER=A"
    compile_shader, why = _shaders(torch)
    if compile_shader is not None:
        return "B", "EAS_TORCH_TIER=B" if asked else "torch.mps.compile_shader is there"
    if asked:
        raise RuntimeError(f"EAS_TORCH_TIER=B cannot be had: {why}")
    return "A", why


# ---- tier A ----


def _synchronize(torch):
    if os.environ.get("EAS_TORCH_MPS_SYNC") != "0":
        torch.mps.synchronize()


def _shared(t):
    """The tensor's memory; an error that says which condition fails, and how to copy instead."""
    how = 'copy it: eas.from_torch(x, copy=True), or eas.tensor(x.cpu(), device="mps")'
    why = _eas_mps_missing()
    if why:
        raise RuntimeError(f"a torch tensor on mps cannot be shared: device 'mps' of eas is not available ({why}); {how}")
    try:
        return _eas.from_dlpack(t.detach().__dlpack__())
    except (BufferError, RuntimeError, TypeError, AttributeError) as e:
        raise RuntimeError(f"a torch tensor on mps cannot be shared: torch's DLPack export of {t.dtype} failed ({e}); {how}") from e


def _eas_mps_missing():
    return next((why for name, _, why in _eas.devices() if name == "mps"), "there is none")


def import_mps(t, device=None, copy=None):
    torch = _torch()
    if copy:
        return _eas.tensor(t.detach().cpu(), device=device or "mps")
    _synchronize(torch)
    shared = _shared(t)
    return shared if device in (None, "mps", "metal") else shared.to(device)


def _on_mps(torch, x):
    return isinstance(x, torch.Tensor) and x.device.type == "mps"


def _launch_a(torch, ck, args, options):
    _synchronize(torch)
    shared = {n: _shared(x) if _on_mps(torch, x) else x for n, x in args.items()}
    _eas.run(ck, shared, ck.meta, device="mps", **options)


# ---- tier B ----


@lru_cache(maxsize=1024)
def _function(compile_shader, ck, variant):
    text, name = _eas.source_text(ck, variant)
    return getattr(compile_shader(text), name)


def _addresses(torch, args):
    """Ranges of numbers that overlap where the tensors' memory does: each storage has a range of its own."""
    storages = {}
    out = []
    for x in args:
        if isinstance(x, torch.Tensor):
            base = storages.setdefault(x.untyped_storage().data_ptr(), (len(storages) + 1) << 48)
            out.append(base + x.storage_offset() * x.element_size())
        else:
            out.append(0)
    return tuple(out)


def _launch_b(torch, compile_shader, ck, args, options):
    """Launches in tier B; returns None, or the reason why it must be tier A."""
    buffers = [x for x, p in zip(args.values(), ck.ir.args) if p.kind == "buffer"]
    if options["stream"] is not None:
        return "the launch names a stream of eas"
    if not all(_on_mps(torch, x) for x in buffers):
        return "some arguments are not tensors on mps"
    loose = [n for n, x in args.items() if isinstance(x, torch.Tensor) and not x.is_contiguous()]
    if loose:
        raise ValueError(
            f"{ck.name}: argument {loose[0]!r} must be C-contiguous; got strides {args[loose[0]].stride()} in elements. Pass x.contiguous()"
        )
    plan = _eas.source(ck, args, _addresses(torch, args.values()), **options)
    if plan is None:
        return None
    if isinstance(plan, str):
        return plan
    variant, threads, group, values = plan
    bound = [x if v is None else v for x, v in zip(args.values(), values)]
    _function(compile_shader, ck, variant)(*bound, threads=threads, group_size=group)
    return None


def _launch(ck, args, **options):
    """A launch with torch tensors on mps among its arguments: what kernels call."""
    torch = _torch()
    if tier()[0] == "B" and _launch_b(torch, _shaders(torch)[0], ck, args, options) is None:
        return
    _launch_a(torch, ck, args, options)


# ---- which tiers this torch offers ----


def _reading(torch, table):
    from ._direct import learn

    try:
        if learn(torch):
            return "torch's C functions"
    except Exception:  # this torch lacks a function that makes the samples
        pass
    return "DLPack's table" if table else "attributes"


def probe():
    """What this torch offers, as a dict."""
    torch = _torch()
    exchange = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    facts = {
        "torch": torch.__version__,
        "dlpack_table": exchange,
        "arguments": _reading(torch, exchange),
        "mps": _has_mps(torch),
        "compile_shader": _shaders(torch)[0] is not None,
        "mps_dlpack": None,
        "mps_sync": os.environ.get("EAS_TORCH_MPS_SYNC") != "0",
    }
    facts["tier"], facts["why"] = tier()
    if facts["mps"]:
        try:
            torch.zeros(16, device="mps").__dlpack__()
            facts["mps_dlpack"] = "yes"
        except Exception as e:  # whatever a torch build may raise is what is asked for
            facts["mps_dlpack"] = f"no: {type(e).__name__}: {e}"
    return facts
