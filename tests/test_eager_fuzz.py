"""Random graphs of operations, evaluated at once and operation by operation in NumPy. EAGER_FUZZ=n runs n of
them, EAGER_FUZZ_SEED chooses where to begin."""

import os
import unittest

import numpy as np

import eager
from eager import Tensor

COUNT = int(os.environ.get("EAGER_FUZZ", "150"))
FIRST = int(os.environ.get("EAGER_FUZZ_SEED", "0"))
UNARY = [
    (eager.sin, np.sin),
    (eager.tanh, np.tanh),
    (eager.abs, np.abs),
    (eager.neg, np.negative),
    (lambda x: eager.exp(-eager.abs(x)), lambda x: np.exp(-np.abs(x))),
    (lambda x: eager.sqrt(eager.abs(x)), lambda x: np.sqrt(np.abs(x))),
    (eager.relu, lambda x: np.maximum(x, 0)),
    (eager.floor, np.floor),
    (lambda x: x * 0.37 + 1.7, lambda x: x * np.float32(0.37) + np.float32(1.7)),
]
BINARY = [
    (eager.add, np.add),
    (eager.sub, np.subtract),
    (eager.mul, np.multiply),
    (eager.maximum, np.maximum),
    (eager.minimum, np.minimum),
    (lambda x, y: eager.where(x < y, x, y * 0.5), lambda x, y: np.where(x < y, x, y * np.float32(0.5))),
]


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


class Graph:
    """Values as (tensor, array); `rng` decides everything."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.values = []
        self.text = []
        self.dims = [int(d) for d in self.rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 130], size=3)]

    def put(self, tensor, array, text):
        self.values.append((tensor, np.asarray(array)))
        self.text.append(f"v{len(self.values) - 1} = {text} : {np.asarray(array).shape}")

    def pick(self, want=lambda a: True):
        good = [i for i, (_, a) in enumerate(self.values) if want(a)]
        return int(self.rng.choice(good)) if good else None

    def leaf(self):
        shape = tuple(self.dims[i] for i in self.rng.integers(0, 3, self.rng.integers(0, 4)))
        a = self.rng.standard_normal(shape).astype(np.float32)
        if a.ndim > 1 and self.rng.integers(3) == 0:
            a = a.T  # another order in memory
        self.put(Tensor.from_dlpack(a) if a.size else Tensor.constant(a), a, "leaf")

    def unary(self):
        i, k = self.pick(), self.rng.integers(len(UNARY))
        (t, a), (f, g) = self.values[i], UNARY[k]
        self.put(f(t), g(a), f"unary{k} v{i}")

    def binary(self):
        i, k = self.pick(), self.rng.integers(len(BINARY))
        t, a = self.values[i]

        def fits(b):
            try:
                return np.broadcast_shapes(a.shape, b.shape) is not None and np.prod(np.broadcast_shapes(a.shape, b.shape)) < 2e5
            except ValueError:
                return False

        j = self.pick(fits)
        if j is None:
            return
        (u, b), (f, g) = self.values[j], BINARY[k]
        self.put(f(t, u), g(a, b), f"binary{k} v{i} v{j}")

    def fold(self):
        i = self.pick(lambda a: a.ndim > 0 and a.size > 0)
        if i is None:
            return
        t, a = self.values[i]
        axis, keep = int(self.rng.integers(a.ndim)), bool(self.rng.integers(2))
        kind = int(self.rng.integers(6))
        if kind == 0:
            self.put(t.sum(axis=axis, keepdims=keep), a.sum(axis=axis, keepdims=keep), f"sum v{i} {axis} {keep}")
        elif kind == 1:
            self.put(t.max(axis=axis, keepdims=keep), a.max(axis=axis, keepdims=keep), f"max v{i} {axis} {keep}")
        elif kind == 2:
            self.put(t.mean(axis=axis, keepdims=keep), a.mean(axis=axis, keepdims=keep), f"mean v{i} {axis} {keep}")
        elif kind == 3:
            self.put(eager.softmax(t, axis=axis), softmax(a, axis), f"softmax v{i} {axis}")
        elif kind == 4:
            self.put(eager.cumsum(t, axis=axis), a.cumsum(axis=axis), f"cumsum v{i} {axis}")
        else:
            axes = tuple(int(x) for x in np.flatnonzero(self.rng.integers(0, 2, a.ndim)))
            if axes:
                self.put(t.sum(axis=axes, keepdims=keep), a.sum(axis=axes, keepdims=keep), f"sum v{i} {axes} {keep}")

    def view(self):
        i = self.pick(lambda a: a.ndim > 0)
        if i is None:
            return
        t, a = self.values[i]
        kind, axis = int(self.rng.integers(7)), int(self.rng.integers(a.ndim))
        if kind == 0:
            order = tuple(int(x) for x in self.rng.permutation(a.ndim))
            self.put(eager.permute(t, order), a.transpose(order), f"permute v{i} {order}")
        elif kind == 1:
            self.put(t.reshape((-1,)) if a.size else t, a.reshape(-1) if a.size else a, f"flatten v{i}")
        elif kind == 2:
            n = a.shape[axis]
            lo, step = int(self.rng.integers(0, n + 1)), int(self.rng.choice([1, 2, -1]))
            key = tuple(slice(lo, None, step) if d == axis else slice(None) for d in range(a.ndim))
            self.put(t[key], a[key], f"slice v{i} {key}")
        elif kind == 3:
            self.put(eager.unsqueeze(t, axis), np.expand_dims(a, axis), f"unsqueeze v{i} {axis}")
        elif kind == 4:
            pads = [(int(self.rng.integers(3)), int(self.rng.integers(3))) for _ in range(a.ndim)]
            self.put(eager.pad(t, pads), np.pad(a, pads), f"pad v{i} {pads}")
        elif kind == 5 and a.shape[axis]:
            index = self.rng.integers(-a.shape[axis], a.shape[axis], int(self.rng.integers(1, 5)))
            self.put(eager.gather(t, Tensor.constant(index), axis=axis), a.take(index, axis=axis), f"gather v{i} {index} {axis}")
        elif kind == 6:
            self.put(eager.concatenate([t, t], axis=axis), np.concatenate([a, a], axis), f"concatenate v{i} {axis}")

    def product(self):
        i = self.pick(lambda a: a.ndim >= 2)
        if i is None:
            return
        t, a = self.values[i]
        j = self.pick(lambda b: b.ndim == 2 and b.shape[0] == a.shape[-1])
        if j is None:
            self.put(t @ eager.swap_axes(t, -1, -2), a @ a.swapaxes(-1, -2), f"gram v{i}")
        else:
            u, b = self.values[j]
            self.put(t @ u, a @ b, f"matmul v{i} v{j}")

    def grow(self, n):
        for _ in range(3):
            self.leaf()
        steps = [self.unary, self.unary, self.binary, self.binary, self.binary, self.fold, self.fold, self.view, self.view, self.product]
        for _ in range(n):
            steps[self.rng.integers(len(steps))]()
            t, a = self.values[-1]
            if a.size > 50000 or not np.all(np.abs(a) < 1e6):  # too large to go on with
                self.values.pop()
                self.text.pop()


class Fuzz(unittest.TestCase):
    def one(self, seed):
        g = Graph(seed)
        with np.errstate(all="ignore"):
            g.grow(int(g.rng.integers(3, 25)))
        # some results are dropped before anything is read, so that what lies between is not kept
        wanted = sorted({len(g.values) - 1, *(int(i) for i in g.rng.integers(0, len(g.values), 3))})
        tensors, arrays = [g.values[i][0] for i in wanted], [g.values[i][1] for i in wanted]
        if g.rng.integers(2):
            g.values.clear()
        if g.rng.integers(2):
            eager.realize_all(*tensors)
        for i, t, a in zip(wanted, tensors, arrays):
            scale = max(1.0, float(np.abs(a).max()) if a.size else 1.0)
            np.testing.assert_allclose(t.numpy(), a, rtol=2e-3, atol=2e-4 * scale, err_msg=f"seed {seed}, v{i} of\n" + "\n".join(g.text))

    def test_random_graphs(self):
        for seed in range(FIRST, FIRST + COUNT):
            with self.subTest(seed=seed):
                self.one(seed)


if __name__ == "__main__":
    unittest.main()
