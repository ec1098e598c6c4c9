"""Random graphs with random layouts, on random meshes, against NumPy. SHARD_FUZZ=n runs n of them,
SHARD_FUZZ_SEED chooses where to begin."""

import os
import unittest

import numpy as np
import test_eager_fuzz

import eager
from eager import DeviceMesh, Tensor

COUNT = int(os.environ.get("SHARD_FUZZ", "150"))
FIRST = int(os.environ.get("SHARD_FUZZ_SEED", "0"))
MESHES = [DeviceMesh(f"fuzz{i}", shape, ("x", "y")[: len(shape)]) for i, shape in enumerate([(2,), (4,), (8,), (2, 2), (2, 4), (3,)])]


class Graph(test_eager_fuzz.Graph):
    def __init__(self, seed):
        super().__init__(seed)
        self.mesh = MESHES[seed % len(MESHES)]
        self.dims = [int(d) for d in self.rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32], size=3)]

    def layout(self, shape):
        """Axes of the mesh for some dims, each at most once; sizes need not divide."""
        specs = [[] for _ in shape]
        for axis in self.rng.permutation(self.mesh.axis_names):
            if shape and self.rng.integers(4):
                specs[int(self.rng.integers(len(shape)))].append(str(axis))
        return [tuple(s) or None for s in specs]

    def sharded(self, t, shape):
        return t.shard(self.mesh, self.layout(shape), pad=True)

    def leaf(self):
        super().leaf()
        t, a = self.values[-1]
        if self.rng.integers(5):
            self.values[-1] = self.sharded(t, a.shape), a

    def unary(self):
        i, k = self.pick(), self.rng.choice([k for k in range(len(test_eager_fuzz.UNARY)) if k != 7])  # floor: a rounded sum would be another number
        (t, a), (f, g) = self.values[i], test_eager_fuzz.UNARY[k]
        self.put(f(t), g(a), f"unary{k} v{i}")

    def relay(self):
        i = self.pick()
        t, a = self.values[i]
        self.put(self.sharded(t, a.shape), a, f"shard v{i}")

    def shift(self):
        i = self.pick(lambda a: a.ndim > 0 and a.size > 0)
        if i is None:
            return
        t, a = self.values[i]
        axis, by, kind = int(self.rng.integers(a.ndim)), int(self.rng.integers(-9, 10)), int(self.rng.integers(5))
        if kind == 0:
            self.put(eager.roll(t, by, axis), np.roll(a, by, axis), f"roll v{i} {by} {axis}")
        elif kind == 1 and a.shape[axis] > 2:
            n = int(self.rng.integers(1, 3))
            key = tuple(slice(n, None) if d == axis else slice(None) for d in range(a.ndim))
            back = tuple(slice(None, -n) if d == axis else slice(None) for d in range(a.ndim))
            self.put(t[key] - t[back], a[key] - a[back], f"difference v{i} {n} {axis}")
        elif kind == 2 and a.shape[axis] >= 3:
            stride = int(self.rng.integers(1, 3))
            w = np.lib.stride_tricks.sliding_window_view(a, 3, axis)
            w = w[tuple(slice(None, None, stride) if d == axis else slice(None) for d in range(a.ndim))]
            self.put(_window(t, axis, stride), w, f"window v{i} {axis} {stride}")
        elif kind == 3:
            self.put(eager.flip(t, axis), np.flip(a, axis), f"flip v{i} {axis}")
        elif a.ndim > 1:
            shape = (a.shape[0] * a.shape[1], *a.shape[2:])
            self.put((t.reshape(shape) * 1.5).reshape(a.shape), a * np.float32(1.5), f"merged v{i}")

    def grow(self, n):
        for _ in range(3):
            self.leaf()
        steps = [self.unary, self.binary, self.binary, self.fold, self.fold, self.view, self.view, self.product, self.relay, self.shift, self.shift]
        for _ in range(n):
            steps[self.rng.integers(len(steps))]()
            t, a = self.values[-1]
            if a.size > 5000 or not np.all(np.abs(a) < 1e6):  # too large to go on with
                self.values.pop()
                self.text.pop()


def _window(t, axis, stride):
    from eas._eas import tensor_ops

    return tensor_ops["window"](t, (axis,), (3,), (stride,), (1,))


class Fuzz(unittest.TestCase):
    def one(self, seed):
        g = Graph(seed)
        with np.errstate(all="ignore"):
            g.grow(int(g.rng.integers(3, 16)))
        wanted = sorted({len(g.values) - 1, *(int(i) for i in g.rng.integers(0, len(g.values), 2))})
        tensors, arrays = [g.values[i][0] for i in wanted], [g.values[i][1] for i in wanted]
        told = eager.explain_sharding([t for t in tensors]).total_bytes
        before = eager.comm_stats()["bytes"]
        eager.realize_all(*tensors)
        sent = eager.comm_stats()["bytes"] - before
        text = f"seed {seed} on {g.mesh}\n" + "\n".join(g.text)
        self.assertLessEqual(sent, told, text)  # a part of the graph may be whole: it is evaluated without a mesh
        for i, t, a in zip(wanted, tensors, arrays):
            scale = max(1.0, float(np.abs(a).max()) if a.size else 1.0)
            np.testing.assert_allclose(t.numpy(), a, rtol=2e-3, atol=2e-4 * scale, err_msg=f"v{i} of {text}")

    def test_random_graphs(self):
        for seed in range(FIRST, FIRST + COUNT):
            with self.subTest(seed=seed):
                self.one(seed)

    def test_random_gradients(self):
        for seed in range(FIRST, FIRST + COUNT // 5):
            rng = np.random.default_rng(seed)
            mesh, g = MESHES[seed % len(MESHES)], Graph(seed)
            a = rng.standard_normal((int(rng.choice([4, 6, 8, 12])), int(rng.choice([3, 4, 8])))).astype(np.float32)
            k, cut = int(rng.integers(6)), [g.layout(a.shape), g.layout(a.shape)]
            fs = [
                lambda x: eager.sin(x[1:] * x[:-1]).sum(),
                lambda x: (eager.roll(x, 2, 0) * x).sum(),
                lambda x: eager.softmax(x, axis=0).max(axis=1).sum(),
                lambda x: eager.logsumexp(x @ eager.swap_axes(x, 0, 1), axis=1).sum(),
                lambda x: (eager.cumsum(x, axis=0) ** 2).mean(),
                lambda x: (eager.pad(x, ((1, 1), (0, 0)))[::2] ** 3).sum() + x.reshape(-1).max(),
            ]
            f = lambda x: fs[k](x.shard(mesh, cut[1], pad=True))  # noqa: B023, E731
            want = eager.grad(fs[k])(Tensor.constant(a)).numpy()
            got = eager.grad(f)(Tensor.constant(a).shard(mesh, cut[0], pad=True)).numpy()
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5, err_msg=f"seed {seed}: function {k}, {cut} on {mesh}")


if __name__ == "__main__":
    unittest.main()
