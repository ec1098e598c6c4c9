"""Sharded checkpoints: what was saved is loaded, on any mesh, reading no more than is needed; a crash leaves
the checkpoint before whole."""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

import eager
from eager import DeviceMesh, P, Tensor
from eager import _sharded_io as ck

FOUR, TWO, GRID = DeviceMesh("four", (4,), ("x",)), DeviceMesh("two", (2,), ("x",)), DeviceMesh("grid", (2, 2), ("r", "c"))
A, B, C = np.arange(96, dtype=np.float32).reshape(8, 12), np.arange(21).reshape(7, 3), np.arange(5).astype(np.float16)


def tree(by=0):
    return {
        "a": Tensor.constant(A + by).shard(FOUR, P("x", None)),
        "nested": {"uneven": Tensor.constant(B + by).shard(FOUR, P("x", None), pad=True), "whole": Tensor.constant(C)},
        "grid": Tensor.constant(A + by).shard(GRID, P("c", "r")),
        "half": [Tensor.constant(A).cast("bfloat16").shard(FOUR, P(None, "x")), Tensor.constant(A).shard(GRID, P("c", None))],
        "number": Tensor.constant(np.float64(3)),
        "empty": Tensor.constant(np.zeros((0, 4), np.int32)),
        "flags": Tensor.constant(A > 40).shard(FOUR, P("x", None)),
    }


def names(t):
    return {"a": t["a"], "nested.uneven": t["nested"]["uneven"], "nested.whole": t["nested"]["whole"], "grid": t["grid"], "half.0": t["half"][0], "half.1": t["half"][1],
            "number": t["number"], "empty": t["empty"], "flags": t["flags"]}  # fmt: skip


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "state")

    def same(self, got, want):
        self.assertEqual(set(got), set(want))
        for k, x in want.items():
            a, b = got[k].numpy(), x.numpy()
            self.assertEqual((a.dtype, a.shape, a.tobytes()), (b.dtype, b.shape, b.tobytes()), k)

    def test_whole(self):
        eager.save_sharded(self.path, tree(), metadata={"step": 7})
        self.same(eager.load_sharded(self.path), names(tree()))
        index = json.load(open(os.path.join(self.path, "index.json")))
        self.assertEqual(index["metadata"], {"step": 7})
        self.assertEqual(len(os.listdir(self.path)), 5)  # a file for each device and the index

    def test_like(self):
        eager.save_sharded(self.path, tree())
        got = eager.load_sharded(self.path, like=tree(5))
        self.same(names(got), names(tree()))
        self.assertEqual(got["a"].sharding, tree()["a"].sharding)
        with self.assertRaisesRegex(ValueError, "missing: extra"):
            eager.load_sharded(self.path, like={**tree(), "extra": Tensor.constant(A)})
        with self.assertRaisesRegex(ValueError, "wrong shape: a"):
            eager.load_sharded(self.path, like={**tree(), "a": Tensor.constant(B)})

    def test_another_mesh(self):
        eager.save_sharded(self.path, tree())
        for specs in (lambda n, s: P(*["x"] + [None] * (len(s) - 1)) if s and s[0] % 2 == 0 and s[0] else None, {"a": P(None, "x")}, lambda n, s: P(None, "x") if n == "grid" else None):
            got = eager.load_sharded(self.path, mesh=TWO, specs=specs)
            self.same(got, names(tree()))
        self.assertEqual(got["grid"].sharding.dim_specs[1].axes, ["x"])
        got = eager.load_sharded(self.path, mesh=TWO, names=["a", "nested.uneven"])  # cut along the axes of old, by name
        self.same(got, {k: v for k, v in names(tree()).items() if k in ("a", "nested.uneven")})
        self.assertEqual(got["a"].sharding.dim_specs[0].axes, ["x"])
        with self.assertRaisesRegex(ValueError, "was cut along .*specs="):
            eager.load_sharded(self.path, mesh=GRID)

    def test_only_what_is_needed_is_read(self):
        eager.save_sharded(self.path, {"a": Tensor.constant(A).shard(FOUR, P("x", None))})
        read = []
        reading = ck.Weights.slice

        def count(self, name, key):
            out = reading(self, name, key)
            read.append(math.prod(int(n) for n in out.shape))
            return out

        with mock.patch.object(ck.Weights, "slice", count), mock.patch("eager.sharding.spmd.mesh_devices", lambda m: (1, 1)), mock.patch(
            "eager.sharding.spmd.from_local", lambda parts, *a, **k: parts[0]
        ):  # fmt: skip
            got = eager.load_sharded(self.path, mesh=TWO, specs={"a": P(None, "x")})["a"]  # as rank 1 of 2 would
        self.assertEqual(sum(read), A.size // 2)
        np.testing.assert_array_equal(got, A[:, 6:])

    def test_a_failure_leaves_the_old_one(self):
        eager.save_sharded(self.path, tree())
        calls = []

        def third(*args, **kwargs):
            calls.append(args)
            if len(calls) == 3:
                raise OSError("no space left")
            return saving(*args, **kwargs)

        saving = ck.save
        with mock.patch.object(ck, "save", third), self.assertRaisesRegex(OSError, "no space"):
            eager.save_sharded(self.path, tree(1))
        with mock.patch.object(ck.os, "replace", side_effect=OSError("denied")), self.assertRaisesRegex(OSError, "denied"):
            eager.save_sharded(self.path, tree(1))
        with self.assertRaises(TypeError):
            eager.save_sharded(self.path, tree(1), metadata={"f": object()})
        self.same(eager.load_sharded(self.path), names(tree()))
        eager.save_sharded(self.path, tree(2))
        self.same(eager.load_sharded(self.path), names(tree(2)))
        self.assertEqual(len(os.listdir(self.path)), 5, "files of attempts that failed are removed by the next one")

    def test_a_process_that_dies_leaves_the_old_one(self):
        eager.save_sharded(self.path, {"a": tree()["a"]})
        text = """
import os, sys, numpy as np, eager
from eager import _sharded_io as ck, DeviceMesh, P, Tensor
left, write, replace = [int(sys.argv[2])], ck.save, os.replace
def die(f):
    def g(*a, **k):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), 9)
        return f(*a, **k)
    return g
ck.save, ck.os.replace = die(write), die(replace)
eager.save_sharded(sys.argv[1], {"a": Tensor.constant(np.ones((8, 12), np.float32)).shard(DeviceMesh("m", (4,), ("x",)), P("x", None))})
"""
        for k in (0, 2, 4):
            p = subprocess.run([sys.executable, "-c", text, self.path, str(k)], cwd="/", capture_output=True)
            self.assertEqual(p.returncode, -9, p.stderr)
            self.same(eager.load_sharded(self.path), {"a": tree()["a"]})

    def test_refused(self):
        eager.save_sharded(self.path, tree())
        for bad, error in (
            (lambda: eager.load_sharded(self.path, specs={}), "specs without a mesh"),
            (lambda: eager.load_sharded(self.path, names=["b"]), "has no tensor 'b'"),
            (lambda: eager.load_sharded(self.path, mesh=3), "DeviceMesh"),
            (lambda: eager.load_sharded(self.path, like=tree(), mesh=TWO), "leave out"),
        ):
            with self.assertRaisesRegex((ValueError, KeyError, TypeError), error):
                bad()
        index = json.load(open(os.path.join(self.path, "index.json")))
        index["tensors"]["a"]["parts"][0]["file"] = "../elsewhere.safetensors"
        json.dump(index, open(os.path.join(self.path, "index.json"), "w"))
        with self.assertRaisesRegex(ValueError, "outside of its folder"):
            eager.load_sharded(self.path)
        index["tensors"]["a"]["parts"].pop()
        json.dump(index, open(os.path.join(self.path, "index.json"), "w"))
        with self.assertRaisesRegex(ValueError, "do not make up its shape"):
            eager.load_sharded(self.path)
        with self.assertRaises(FileNotFoundError):
            eager.load_sharded(self.path + "-not")


if __name__ == "__main__":
    unittest.main()
