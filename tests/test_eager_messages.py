"""What is said where something is wrong with tensors: in the user's words. Also: await, and branches that
disagree."""

import asyncio
import time
import unittest

import numpy as np
from support import python

import eager
from eager import Tensor

X = Tensor.ones((2, 3))


class Messages(unittest.TestCase):
    def says(self, error, words, f):
        with self.assertRaisesRegex(error, words):
            f()

    def test_tensors_without_data(self):
        x = Tensor.ones((2,)).realize()
        f = eager.compile(lambda x: x + 1, donate=0)
        f(x)
        self.says(RuntimeError, "donate=", x.numpy)
        self.says(RuntimeError, "made of one that was given", (x + 1).numpy)
        self.assertIn("recorded", repr(x))
        leaked = []
        eager.scan(lambda c, v: (leaked.append(v * 2) or c, v), 0.0, eager.arange(3.0))
        self.says(RuntimeError, "leaked", leaked[0].numpy)
        self.says(eager.GraphBreak, r"test_eager_messages.py:\d+: .*eager.where or eager.cond", lambda: eager.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True)(X))
        self.says(ValueError, "symbolic sizes", Tensor.ones(("n", 2)).numpy)

    def test_shapes_that_are_not_one_argument(self):
        for f in (eager.zeros, eager.ones, eager.empty, Tensor.zeros, Tensor.ones):
            self.says(TypeError, r"write \w+\(\(2, 3\)\)", lambda f=f: f(2, 3))
        self.says(TypeError, r"write full\(\(2, 3\), 4\)", lambda: eager.full(2, 3, 4))
        self.says(ValueError, r"uniform\(\(2, 3\)\)", lambda: eager.uniform(2, 3))

    def test_the_name_that_was_called(self):
        for name, f in {
            "sum": lambda: X.sum(axis=5), "max": lambda: eager.max(X, axis=5), "min": lambda: X.min(axis=5), "transpose": lambda: eager.transpose(X, 0, 7),
            "multiply": lambda: eager.multiply(X, Tensor.ones((2,))), "expand_dims": lambda: eager.expand_dims(X, 9), "take": lambda: eager.take(X, X, axis=0),
            "concat": lambda: eager.concat([X, Tensor.ones((2, 4))]), "reduce_sum": lambda: eager.reduce_sum(X, axis=5), "swapaxes": lambda: X.swapaxes(0, 9),
        }.items():  # fmt: skip
            self.says((TypeError, ValueError), rf"^eager\.{name}: ", f)
        self.says(TypeError, r"eager\.max has no argument 'axes'; it takes max\(x", lambda: X.max(axes=1))

    def test_lines_are_the_users(self):
        self.says(TypeError, r"^[^ ]*test_eager_messages.py:\d+: .*'foo' is not an element type", lambda: X.astype("foo"))

    def test_pytrees_name_the_keys(self):
        a = {"a": 1, "c": {"x": 2, "z": 3}}
        self.says(ValueError, r"at \['c'\].*\['z'\] is missing, \['y'\] is not wanted", lambda: eager.tree_map(lambda *_: 0, a, {"a": 1, "c": {"x": 2, "y": 3}}))
        self.says(ValueError, r"\['c'\] is missing$", lambda: eager.tree_map(lambda *_: 0, a, {"a": 1}))
        self.says(ValueError, "a list with 2 children is wanted, got a list with 3", lambda: eager.tree_map(lambda *_: 0, [1, 2], [1, 2, 3]))

    def test_indices_that_are_numbers(self):
        self.says(IndexError, "index 7 is out of bounds for axis 1 with size 3", lambda: X[0, 7])


    def test_indices_that_are_data(self):
        x, far = Tensor.ones((5, 3)), Tensor.constant([1, 7])
        for f, words in (
            (lambda v, i: v[i], "index 7 is out of bounds for axis 0 with size 5"),
            (lambda v, i: eager.gather(v, i * -1, axis=1), "index -7 is out of bounds for axis 1 with size 3"),
            (lambda v, i: v.at[:, i].set(1.0), "an index is out of range"),
            (lambda v, i: v.at[i].set(1.0), "an index is out of range"),
            (lambda v, i: v[0, i] + 1, "index 7 is out of bounds for axis 1 with size 3"),
            (lambda v, i: eager.take_along_axis(v, i.reshape((2, 1)), axis=0), "index 7 is out of bounds for axis 0 with size 5"),
            (lambda v, i: (v * 2)[eager.arange(5), (i.sum() * 0 + 4)], "index 4 is out of bounds for axis 1 with size 3"),
        ):  # fmt: skip
            self.says(IndexError, r"test_eager_messages.py:\d+: .*" + words, lambda: f(x, far).numpy())  # noqa: B023
            self.says(IndexError, r"test_eager_messages.py:\d+: .*" + words, lambda: eager.compile(f, fullgraph=True)(x, far).numpy())  # noqa: B023
        self.says(IndexError, "axis 0 with size 3", lambda: eager.vmap(lambda v: v[far])(x).numpy())


class Cond(unittest.TestCase):
    def test_branches_that_disagree(self):
        one, two = (lambda: Tensor.ones((2,))), (lambda: Tensor.ones((3,)))
        for pred in (True, False, Tensor.constant(True), np.bool_(False)):
            with self.assertRaisesRegex(ValueError, r"f32\(2\).*f32\(3\)|f32\(3\).*f32\(2\)"):
                eager.cond(pred, one, two)
            with self.assertRaisesRegex(TypeError, "cond"):
                eager.cond(pred, one, lambda: (one(),))
            with self.assertRaisesRegex(TypeError, r"\['[ab]'\] is missing"):
                eager.cond(pred, lambda: {"a": one()}, lambda: {"b": one()})

    def test_dtypes_meet_as_in_compile(self):
        def f(p, x):
            return eager.cond(p, lambda v: v * 2, lambda v: v.cast("int32"), x)

        x = Tensor.constant([1.5])
        for p in (True, False):
            got, want = f(Tensor.constant(p), x), eager.compile(f)(Tensor.constant(p), x)
            self.assertEqual((got.dtype, got.tolist()), (want.dtype, want.tolist()))

    def test_only_one_side_is_computed(self):
        bad = Tensor.constant([7])
        got = eager.cond(True, lambda v: v[0], lambda v: v[bad][0], Tensor.ones((2,)))
        self.assertEqual(got.item(), 1)

    def test_a_side_that_reads_data(self):
        self.assertEqual(eager.cond(True, lambda v: v * 2, lambda v: v * float(v.sum()), Tensor.ones((2,))).tolist(), [2, 2])

    def test_random_numbers_stay_in_step(self):
        self.assertEqual(eager.cond(True, lambda: eager.uniform((2,)), lambda: eager.uniform((2,))).shape, (2,))


class Await(unittest.TestCase):
    def test_other_tasks_go_on(self):
        async def ticks(seen):
            while True:
                seen.append(time.perf_counter())
                await asyncio.sleep(0.001)

        async def main():
            seen = []
            task = asyncio.create_task(ticks(seen))
            await asyncio.sleep(0.01)
            x = Tensor.constant(np.random.default_rng(0).random((1500, 1500), np.float32))
            y = x
            for _ in range(12):
                y = (y @ x) * 1e-3
            start = time.perf_counter()
            r = await y
            took = time.perf_counter() - start
            task.cancel()
            return r, y, took, len([t for t in seen if t > start])

        r, y, took, n = asyncio.run(main())
        self.assertIs(r, y)
        self.assertTrue(y.real)
        if took > 0.05:
            self.assertGreater(n, 3, f"{n} ticks in {took:.3f} s")

    def test_errors_and_values_that_are_there(self):
        async def main():
            x = Tensor.ones((3,)).realize()
            self.assertIs(await x, x)
            with self.assertRaises(IndexError):
                await x[Tensor.constant([5])]
            return [t.item() for t in await asyncio.gather(*[self.one(i) for i in range(20)])]

        self.assertEqual(asyncio.run(main()), [float(i) for i in range(20)])

    async def one(self, i):
        return await (Tensor.ones(()) * i)

    def test_after_fork(self):
        code = """
import asyncio, os, eager
async def one():
    return (await (eager.ones((2,)) + 1)).tolist()
assert asyncio.run(one()) == [2, 2]
pid = os.fork()
if not pid:
    os._exit(0 if asyncio.run(one()) == [2, 2] else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
        python(code)


if __name__ == "__main__":
    unittest.main()
