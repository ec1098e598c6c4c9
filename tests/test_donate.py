"""Donated arguments: their memory is used for results and for what is computed on the way, and never while
something still reads it."""

import random
import unittest

import numpy as np

import eager
import eas
from eager import Tensor

N = 48


def normal(seed):
    return np.random.default_rng(seed).standard_normal((N, N)).astype(np.float32) / 4


def random_function(seed, nargs=4, length=14):
    """A function of several tensors of one shape: products (which are not computed in place), element-wise
    operations, views and sums."""

    def f(*args):
        r, have = random.Random(seed), list(args)
        for _ in range(length):
            x, y = r.choice(have), r.choice(have)
            have.append(
                r.choice(
                    [
                        lambda: x @ y,
                        lambda: x + y,
                        lambda: eager.tanh(x) * y,
                        lambda: x.mT @ y,
                        lambda: eager.flip(x, 0) - y,
                        lambda: x.reshape((N * N,)).reshape((N, N)) * 0.5,
                        lambda: x * eager.sum(y, axis=0, keepdims=True) / N,
                        lambda: eager.concatenate([x[: N // 2], y[N // 2 :]], axis=0),
                    ]
                )()
            )
        return tuple(r.sample(have, 4))  # arguments may be among them

    return f


class Donated(unittest.TestCase):
    def test_results_do_not_depend_on_donation(self):
        for seed in range(60):
            with self.subTest(seed=seed):
                f, data = random_function(seed), [normal(seed * 10 + i) for i in range(4)]
                kept = [x.numpy().copy() for x in eager.compile(f)(*map(Tensor.constant, data))]
                for which in ((0,), (0, 1, 2, 3), (1, 3)):
                    args = [Tensor.constant(a.copy()).realize() for a in data]
                    got = eager.compile(f, donate=which)(*args)
                    for a, b in zip(got, kept):
                        np.testing.assert_array_equal(a.numpy(), b)
                    for i in set(range(4)) - set(which):
                        np.testing.assert_array_equal(args[i].numpy(), data[i])

    def test_updates_at_indices_are_written_in_place(self):
        """A cache of keys that a decoding step adds a row to: nothing of its size is allocated, and it is not
        copied."""

        def add(cache, at, row):
            return eager.scatter(cache, at, row, axis=1)

        cache = np.random.default_rng(0).standard_normal((4, 512, 64)).astype(np.float32)
        step = eager.compile(add, donate=(0,))
        row, want = np.ones((4, 1, 64), np.float32), cache.copy()
        given = Tensor.constant(cache.copy()).realize()
        for i in (3, 511, 0):
            before, where = eas.memory_stats()["live_bytes"], np.asarray(given).ctypes.data
            given = step(given, Tensor.constant([i]), Tensor.constant(row)).realize()
            want[:, i] = 1
            self.assertEqual(np.asarray(given).ctypes.data, where)
            self.assertLess(eas.memory_stats()["live_bytes"] - before, cache.nbytes // 2)
            np.testing.assert_array_equal(given.numpy(), want)

    def test_an_update_that_reads_the_old_elements_elsewhere_is_not_in_place(self):
        x = np.arange(1 << 17, dtype=np.float32)
        at = np.array([5, 4, 3])

        def swap(x, at):
            return eager.scatter(x, at, eager.gather(x, at - 1) + x[0] + x[100000], axis=0)

        want = x.copy()
        want[at] = x[at - 1] + x[0] + x[100000]
        got = eager.compile(swap, donate=(0,))(Tensor.constant(x.copy()).realize(), Tensor.constant(at))
        np.testing.assert_array_equal(got.numpy(), want)

    def test_loops_update_what_they_carry_in_place(self):
        n, trips = 1 << 20, 50
        g = eager.compile(lambda x: eager.fori_loop(0, trips, lambda i, c: c.at[i * 7].set(eager.gather(c, i * 7 + 7) * 2 + 1), x))
        x, want = Tensor.constant(np.zeros(n, np.float32)).realize(), np.zeros(n, np.float32)
        for i in range(trips):
            want[i * 7] = want[i * 7 + 7] * 2 + 1
        np.testing.assert_array_equal(g(x).numpy(), want)
        np.testing.assert_array_equal(x.numpy(), np.zeros(n, np.float32))
        eas.empty_cache()
        out = g(x).realize()
        self.assertLess(eas.memory_stats()["cached_bytes"], 4 * n)  # one array of that size: the result
        np.testing.assert_array_equal(out.numpy(), want)

    def test_memory_that_nothing_reads_any_more_is_used_for_later_results(self):
        """Products of donated weights: each result has the memory of a weight that is done with."""
        n, layers = 512, 8
        weights = [np.eye(n, dtype=np.float32) * (i + 2) for i in range(layers)]

        def f(ws, x):
            out = []
            for w in ws:
                x = x @ w
                out.append(x @ w + w.mT)
            return out

        step = eager.compile(f, donate=(0,))
        x = Tensor.constant(np.eye(n, dtype=np.float32)).realize()

        def run():
            ws = [Tensor.constant(w.copy()).realize() for w in weights]
            eas.empty_cache()
            before = eas.memory_stats()["live_bytes"]
            out = step(ws, x)
            eager.realize_all(*out)
            del ws
            return out, eas.memory_stats()["live_bytes"] - before

        out, grown = run()
        out, grown = run()
        scale = 1.0
        for i, y in enumerate(out):
            scale *= i + 2
            np.testing.assert_allclose(y.numpy(), np.eye(n) * (scale * (i + 2) + i + 2), rtol=1e-5)
        self.assertLessEqual(grown, 2 * n * n * 4)  # not one more for each layer

    def test_carried_state_of_loops(self):
        def f(x, w):
            return eager.scan(lambda c, _: (eager.tanh(c @ w), c.mT @ c), x, None, length=6)

        x, w = normal(1), normal(2)
        want = eager.compile(f)(Tensor.constant(x), Tensor.constant(w))
        got = eager.compile(f, donate=(0, 1))(Tensor.constant(x).realize(), Tensor.constant(w).realize())
        for a, b in zip(got, want):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


if __name__ == "__main__":
    unittest.main()
