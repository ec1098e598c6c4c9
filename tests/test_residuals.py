"""What a forward pass keeps for its derivative, in bytes: what the rules ask for, and with checkpoint the
arguments of the parts."""

import gc
import os
import subprocess
import sys
import unittest

import numpy as np
from test_attention_back import block, parameters

import eager
import eas
from eager import Tensor


def kept(f, *args):
    """Bytes that live as long as pull does, beside the result."""
    gc.collect()
    before = eas.memory_stats()["live_bytes"]
    out, pull = eager.vjp(f, *args)
    out.numpy()
    gc.collect()  # what only cycles hold is not held by pull
    held = eas.memory_stats()["live_bytes"] - before - 64
    grads = pull(Tensor(np.float32(1)))
    assert all(np.isfinite(g.numpy()).all() for g in eager.tree_leaves(grads))
    return held


def weights(*shape):
    return Tensor((np.random.default_rng(sum(shape)).standard_normal(shape) * 0.1).astype(np.float32))


class Bytes(unittest.TestCase):
    """Each in a process of its own: what other tests of this process leave behind is no part of it."""

    def run(self, result=None):
        if os.environ.get("EAS_TEST_ALONE"):
            return super().run(result)
        inner, self._testMethodName = self._testMethodName, "alone"
        self.inner = inner
        try:
            return super().run(result)
        finally:
            self._testMethodName = inner

    def alone(self):
        here = os.path.dirname(os.path.abspath(__file__))
        env = {**os.environ, "EAS_TEST_ALONE": "1"}
        r = subprocess.run([sys.executable, "-m", "unittest", f"test_residuals.Bytes.{self.inner}"], cwd=here, env=env, capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("Ran 1 test", r.stderr)

    def test_mlp(self):
        x = weights(32, 64)

        def f(ws):
            h = x
            for w in ws[:-1]:
                h = (h @ w).relu()
            return ((h @ ws[-1]) ** 2).sum()

        hidden, out = 32 * 128 * 4, 32 * 8 * 4
        self.assertLessEqual(kept(f, [weights(64, 128), weights(128, 128), weights(128, 8)]), 2 * hidden + out + 256)

    def test_transformer_block(self):
        """In units of one activation: inputs of products (2 norms, q, k, v, attention's result, 4 before and
        4 after gelu), the residual stream, rows' numbers; no scores."""
        x = weights(2, 32, 64)
        unit = 2 * 32 * 64 * 4
        self.assertLessEqual(kept(lambda p: (block(p, x, 4) ** 2).sum(), parameters(64)) / unit, 20)

    def test_a_stack_and_its_checkpoints(self):
        x, ws = weights(32, 64), [weights(64, 64) for _ in range(64)]

        def stack(wrap):
            def part(ws, h):
                for w in ws:
                    h = eager.tanh(h @ w)
                return h

            def f(ws):
                h = x
                for k in range(0, 64, 8):
                    h = wrap(part)(ws[k : k + 8], h)
                return (h * h).sum()

            return f

        unit = 32 * 64 * 4
        self.assertLessEqual(kept(stack(lambda f: f), ws) / unit, 65)
        self.assertLessEqual(kept(stack(eager.checkpoint), ws) / unit, 9.1)
