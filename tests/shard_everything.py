"""A plugin of pytest: every tensor that a test makes of data lies in parts on a mesh, SHARD_EVERYTHING: "4"
cuts the first dim into 4, "2x4" the first into 2 and the second into 4; sizes need not divide.
tests/test_shard_suite.py runs the suite so."""

import os

import numpy as np

import eager
from eager import DeviceMesh, Tensor

SIZES = tuple(int(n) for n in os.environ.get("SHARD_EVERYTHING", "2").split("x"))
AXES = ("x", "y")[: len(SIZES)]
mesh = DeviceMesh("everything", SIZES, AXES)


def laid_out(make):
    def made(*args, **kwargs):
        t = make(*args, **kwargs)
        if not isinstance(t, Tensor) or not len(t.shape) or t.batch_dims or any(not isinstance(n, int) or n == 0 for n in t.shape):
            return t
        return t.shard(mesh, [*AXES, *[None] * len(t.shape)][: len(t.shape)], pad=True)

    return made


for owner, name in ((Tensor, "constant"), (Tensor, "from_dlpack"), (Tensor, "from_numpy"), (eager, "constant"), (eager, "tensor"), (eager, "array"), (eager, "asarray")):
    if hasattr(owner, name):
        f = laid_out(getattr(owner, name))
        setattr(owner, name, staticmethod(f) if owner is Tensor else f)

assert Tensor.constant(np.ones((4, 2), np.float32)).is_sharded
