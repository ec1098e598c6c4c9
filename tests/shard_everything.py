"""A plugin of pytest: every tensor that a test makes of data lies in parts, along its first dim, on a mesh of SHARD_EVERYTHING devices; sizes need not divide. tests/test_shard_suite.py runs parts of the suite so."""

import os

import numpy as np

import eager
from eager import DeviceMesh, Tensor

mesh = DeviceMesh("everything", (int(os.environ.get("SHARD_EVERYTHING", "2")),), ("x",))


def laid_out(make):
    def made(*args, **kwargs):
        t = make(*args, **kwargs)
        if not isinstance(t, Tensor) or not len(t.shape) or t.batch_dims or any(not isinstance(n, int) or n == 0 for n in t.shape):
            return t
        return t.shard(mesh, ["x"] + [None] * (len(t.shape) - 1), pad=True)

    return made


for owner, name in ((Tensor, "constant"), (Tensor, "from_dlpack"), (Tensor, "from_numpy"), (eager, "constant"), (eager, "tensor"), (eager, "array"), (eager, "asarray")):
    if hasattr(owner, name):
        f = laid_out(getattr(owner, name))
        setattr(owner, name, staticmethod(f) if owner is Tensor else f)

assert Tensor.constant(np.ones((4, 2), np.float32)).is_sharded
