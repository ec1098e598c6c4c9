"""Mixed precision: products, convolutions and attention in a half dtype, everything else and all parameters
in f32."""

import contextlib
import contextvars

from eas._eas import compile_watch

__all__ = ["precision"]

_NAMES = {
    "bf16": "bfloat16", "bfloat16": "bfloat16", "f16": "float16", "fp16": "float16", "half": "float16", "float16": "float16",
    "f32": None, "fp32": None, "float32": None, None: None,
}  # fmt: skip
_current = contextvars.ContextVar("eager.nn.precision", default=None)
compile_watch(_current)  # programs are made for one precision


class precision(contextlib.ContextDecorator):
    """with precision("bf16"): linear maps, convolutions and attention cast their inputs to the dtype and
    compute in it; norms, softmax and losses stay in f32. Parameters keep their own dtype, and so do their
    gradients: they are the f32 master weights. "f32" turns it off inside. Also a decorator."""

    def __init__(self, dtype):
        name = getattr(dtype, "name", dtype) if not isinstance(dtype, str) else dtype
        name = str(name) if name is not None else None
        if name not in _NAMES:
            raise ValueError(f'precision: "bf16", "f16" or "f32" is wanted, got {dtype!r}')
        self._dtype = _NAMES[name]
        self._tokens = []

    def _recreate_cm(self):
        return self

    def __enter__(self):
        self._tokens.append(_current.set(self._dtype))
        return self

    def __exit__(self, *exc):
        _current.reset(self._tokens.pop())
        return False


def compute_dtype():
    """The half dtype in which products are computed here, or None."""
    return _current.get()


def cast_inputs(*tensors):
    """The float tensors among them in the dtype of precision(), or as they are."""
    dtype = _current.get()
    if dtype is None:
        return tensors
    return tuple(t.astype(dtype) if t is not None and t.dtype.kind == "f" and t.dtype.itemsize < 8 else t for t in tensors)
