"""eas.check: planted bugs are found, with both lines; nothing is found where nothing is wrong
(test_interpret.py has all kernels of the tests and examples checked)."""

import inspect
import os
import unittest

import numpy as np

import eas
from eas import mk


def line_of(kernel, mark):
    """The line of a kernel's source that has the comment `# mark`."""
    lines, first = inspect.getsourcelines(kernel.fn)
    return next(first + i for i, text in enumerate(lines) if f"# {mark}" in text)


class Planted(unittest.TestCase):
    def find(self, kernel, *args, kind, lines, argument, across=None, **kw):
        before = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        report = eas.check(kernel, *args, **kw)
        for a, b in zip(args, before):
            np.testing.assert_array_equal(a, b, "the arguments of a check do not change")
        self.assertFalse(report.ok)
        f = next((f for f in report if f.kind == kind and f.argument == argument), None)
        self.assertIsNotNone(f, str(report))
        self.assertEqual([f.first.line, f.second.line], [line_of(kernel, m) for m in lines], str(report))
        self.assertEqual(f.first.file, __file__)
        self.assertIn(kind, str(report))
        self.assertIn(f"{os.path.basename(__file__)}:{f.first.line}", str(report))
        if across is not None:
            self.assertEqual(f.first.program != f.second.program, across)
        return f

    # write-write races

    def test_blocks_that_overlap(self):
        @eas.kernel
        def k(x, N, B: eas.constexpr):
            offs = mk.program_id(0) * (B - 1) + mk.arange(0, B)
            mk.store(x, offs, mk.to_f32(offs), offs < N)  # store

        f = self.find(k, np.zeros(20, np.float32), 20, 8, kind="write-write race", lines=["store", "store"], argument="x", across=True)
        self.assertEqual((f.index, f.first.program, f.second.program, f.first.thread), (7, (0, 0, 0), (1, 0, 0), None))
        self.assertEqual(f.count, 2)

    def test_sum_without_atomics(self):
        @eas.kernel
        def k(x, total):
            mk.store(total, 0, mk.load(total, 0) + mk.load(x, mk.program_id(0)))  # add

        f = self.find(k, np.ones(4, np.float32), np.zeros(1, np.float32), kind="write-write race", lines=["add", "add"], argument="total", _grid=4)
        self.assertEqual(f.index, 0)

    def test_threads_write_one_element(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            mk.store(x, t // 2, mk.to_f32(t))  # store

        f = self.find(k, np.zeros(4, np.float32), 8, kind="write-write race", lines=["store", "store"], argument="x", across=False, _grid=1)
        self.assertEqual((f.first.thread, f.second.thread, f.count), (0, 1, 4))

    # read-write races

    def test_neighbour_of_another_program(self):
        @eas.kernel
        def k(x, N, B: eas.constexpr):
            offs = mk.program_id(0) * B + mk.arange(0, B)
            left = mk.load(x, offs - 1, (offs > 0) & (offs < N))  # load
            mk.store(x, offs, left + 1, offs < N)  # store

        self.find(k, np.zeros(16, np.float32), 16, 4, kind="read-write race", lines=["store", "load"], argument="x", across=True)

    def test_one_array_as_two_arguments(self):
        @eas.kernel
        def k(x, out, B: eas.constexpr):
            i = mk.program_id(0) * B + mk.arange(0, B)
            v = mk.load(x, 15 - i)  # load
            mk.store(out, i, v)  # store

        x = np.arange(16, dtype=np.float32)
        self.find(k, x, x, 4, kind="read-write race", lines=["store", "load"], argument="x", across=True, _grid=4)
        self.assertTrue(eas.check(k, x, x.copy(), 4, _grid=4).ok)

    def test_missing_barrier(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg(T)
            mk.store(s, t, mk.load(x, t))  # store
            v = mk.load(s, T - 1 - t)  # load
            mk.store(x, t, v)

        f = self.find(k, np.zeros(8, np.float32), 8, kind="read-write race", lines=["store", "load"], argument=None, across=False, _grid=2)
        self.assertEqual((f.first.thread, f.second.thread), (7, 0))

    def test_barrier_missing_in_a_loop(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg(T)
            for i in mk.range(0, 3):
                mk.store(s, t, mk.to_f32(i))  # store
                mk.barrier()
                mk.store(x, t, mk.load(s, (t + 1) % T))  # load

        self.find(k, np.zeros(8, np.float32), 8, kind="read-write race", lines=["load", "store"], argument=None, across=False, _grid=1)

    def test_plain_and_atomic(self):
        @eas.kernel
        def k(x):
            mk.atomic_add(x, 0, 1)  # atomic
            mk.store(x, 1, mk.load(x, 0), mk.program_id(0) == 1)  # load

        self.find(k, np.zeros(2, np.int32), kind="read-write race", lines=["load", "atomic"], argument="x", across=True, _grid=2)

    # barriers

    def test_barrier_in_a_branch(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            with mk.if_(t < 3):  # if
                mk.barrier()  # barrier

        f = self.find(k, np.zeros(1), 8, kind="divergent barrier", lines=["barrier", "if"], argument=None, _grid=1)
        self.assertEqual((f.first.thread, f.second.thread), (0, 3))
        with self.assertRaises(TypeError):
            k(np.zeros(1), 8, _grid=1)

    def test_barrier_in_a_loop_of_different_lengths(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            for _ in mk.range(0, 1 + t % 2):  # loop
                mk.barrier()  # barrier

        self.find(k, np.zeros(1), 4, kind="divergent barrier", lines=["barrier", "loop"], argument=None, _grid=1)

    def test_barrier_under_data(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            mk.store(x, t, mk.load(x, t))
            with mk.if_(mk.load(x, t) > 0):  # if
                mk.barrier()  # barrier

        x = np.zeros(4)
        self.assertTrue(eas.check(k, x, 4, _grid=1).ok, "all threads go one way")
        x[2] = 1
        self.find(k, x, 4, kind="divergent barrier", lines=["barrier", "if"], argument=None, _grid=1)

    # threadgroup memory that nobody wrote

    def test_half_filled_tile(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg(T)
            mk.store(s, t, 1.0, t < T - 2)
            mk.barrier()
            mk.store(x, t, mk.load(s, t))  # load

        f = self.find(k, np.zeros(8, np.float32), 8, kind="uninitialised read", lines=["load", "load"], argument=None, _grid=2)
        self.assertEqual((f.index, f.first.thread, f.count), (6, 6, 4))

    def test_sum_in_fresh_memory(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg(T)
            mk.store(s, t, mk.load(s, t) + 1.0)  # add
            mk.store(x, t, mk.load(s, t))

        self.find(k, np.zeros(4, np.float32), 4, kind="uninitialised read", lines=["add", "add"], argument=None, _grid=1)

    # out of bounds

    def test_last_block(self):
        @eas.kernel
        def k(x, N, B: eas.constexpr):
            offs = mk.program_id(0) * B + mk.arange(0, B)
            mk.store(x, offs, 1.0)  # store

        f = self.find(k, np.zeros(10, np.float32), 10, 4, kind="out of bounds", lines=["store", "store"], argument="x")
        self.assertEqual((f.index, f.count, f.first.program), (10, 2, (2, 0, 0)))

    def test_negative_index_of_a_threadgroup_array(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg(T)
            mk.store(s, t - 1, 1.0)  # store

        f = self.find(k, np.zeros(1), 4, kind="out of bounds", lines=["store", "store"], argument=None, _grid=1)
        self.assertEqual((f.index, f.first.thread), (-1, 0))


class Fine(unittest.TestCase):
    def test_atomics(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            mk.atomic_add(x, mk.tid(0, T) % 2, 1)

        self.assertTrue(eas.check(k, np.zeros(2, np.int32), 8, _grid=3).ok)

    def test_barriers_order(self):
        @eas.kernel
        def k(x, T: eas.constexpr):
            t = mk.tid(0, T)
            s = mk.alloc_tg(T)
            mk.store(s, t, mk.to_f32(t))
            for _ in mk.range(0, 3):
                mk.barrier()
                v = mk.load(s, (t + 1) % T)
                mk.barrier()
                mk.store(s, t, v)
            mk.store(x, mk.program_id(0) * T + t, mk.load(s, t))

        self.assertTrue(eas.check(k, np.zeros(16, np.float32), 8, _grid=2).ok)

    def test_empty_launch(self):
        @eas.kernel
        def k(x, N):
            mk.store(x, 5, 1.0)

        report = eas.check(k, np.zeros(1), 0)
        self.assertTrue(report.ok)
        self.assertFalse(report)
        self.assertEqual(str(report), "kernel k: nothing found")

    def test_bytes_of_one_element(self):
        @eas.kernel
        def k(wide, narrow):
            p = mk.program_id(0)
            mk.store(wide, 0, 1, p == 0)
            mk.store(narrow, 3 + p, 1)

        memory = np.zeros(16, np.uint8)
        self.assertEqual([f.kind for f in eas.check(k, memory.view(np.uint32), memory, _grid=2)], [])
        report = eas.check(k, memory.view(np.uint64), memory, _grid=2)
        self.assertEqual([f.kind for f in report], ["write-write race"])

    def test_not_a_kernel(self):
        with self.assertRaisesRegex(TypeError, "takes a kernel"):
            eas.check(print, 1)

    def test_autotuned(self):
        @eas.autotune(configs=[eas.Config(meta={"B": 4})], key=["N"])
        @eas.kernel
        def k(x, N, B: eas.constexpr):
            offs = mk.program_id(0) * B + mk.arange(0, B)
            mk.store(x, offs, 1.0, offs < N)

        self.assertTrue(eas.check(k, np.zeros(6), 6).ok)


if __name__ == "__main__":
    unittest.main()
