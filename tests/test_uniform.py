"""What all threads of a group agree on: loops that hold barriers need conditions that are the same for all of
them."""

import unittest

import numpy as np
from support import each

import eas
from eas import mk


@eas.kernel
def tree(x, out, N, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    p = mk.program_id(0)
    s = mk.alloc_tg(BLOCK, mk.f32)
    mk.store(s, t, mk.load(x, p * BLOCK + t, p * BLOCK + t < N))
    mk.barrier()
    d = mk.var(BLOCK // 2)
    with mk.while_(lambda: d > 0):
        with mk.if_(t < d):
            mk.store(s, t, mk.load(s, t) + mk.load(s, t + d))
        mk.barrier()
        d.set(d // 2)
    with mk.if_(t == 0):
        mk.store(out, p, mk.load(s, 0))


@eas.kernel
def bitonic(x, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    p = mk.program_id(0)
    s = mk.alloc_tg(BLOCK, mk.i32)
    mk.store(s, t, mk.load(x, p * BLOCK + t))
    mk.barrier()
    k = mk.var(2)
    with mk.while_(lambda: k <= BLOCK):
        j = mk.var(k // 2)
        with mk.while_(lambda: j > 0):
            o = t ^ j
            with mk.if_(o > t):
                a, b = mk.load(s, t), mk.load(s, o)
                with mk.if_((a > b) == ((t & k) == 0)):
                    mk.store(s, t, b)
                    mk.store(s, o, a)
            mk.barrier()
            j.set(j // 2)
        k.set(k * 2)
    mk.store(x, p * BLOCK + t, mk.load(s, t))


@eas.kernel
def queue(counter, items, out, N, BLOCK: eas.constexpr):
    t = mk.tid(0, BLOCK)
    s = mk.alloc_tg(1, mk.i32)
    with mk.if_(t == 0):
        mk.store(s, 0, mk.atomic_add(counter, 0, 1))
    mk.barrier()
    item = mk.var(mk.load(s, 0))
    with mk.while_(lambda: item < N):
        total = mk.tg_sum(mk.load(items, item * BLOCK + t))
        with mk.if_(t == 0):
            mk.store(out, item, total)
            mk.store(s, 0, mk.atomic_add(counter, 0, 1))
        mk.barrier()
        item.set(mk.load(s, 0))


@eas.kernel
def settle(x, out, BLOCK: eas.constexpr):
    """Goes on as long as any thread has something left; the condition itself has barriers."""
    t = mk.tid(0, BLOCK)
    v, n = mk.var(mk.load(x, t)), mk.var(0)
    with mk.while_(lambda: mk.tg_max(v.value) > 0):
        v.set(mk.where(v > 0, v - 1, v))
        mk.barrier()
        n += 1
    mk.store(out, t, n)


class Accepted(unittest.TestCase):
    def test_tree_reduction(self):
        x = np.arange(1000, dtype="f4")
        self.assertEqual(each(self, tree, x, np.zeros(8, "f4"), 1000, BLOCK=128)[1].sum(), x.sum())

    def test_bitonic_sort(self):
        x = np.random.default_rng(0).integers(0, 1000, 256).astype("i4")
        got = each(self, bitonic, x, BLOCK=64, _grid=4)[0]
        np.testing.assert_array_equal(got.reshape(4, 64), np.sort(x.reshape(4, 64), 1))

    def test_work_queue(self):
        items = np.arange(20 * 32, dtype="i4")
        got = each(self, queue, np.zeros(1, "i4"), items, np.zeros(20, "i4"), 20, BLOCK=32, _grid=1)
        np.testing.assert_array_equal(got[2], items.reshape(20, 32).sum(1))
        out = np.zeros(20, "i4")
        queue(np.zeros(1, "i4"), items, out, 20, BLOCK=32, _grid=3)
        np.testing.assert_array_equal(out, items.reshape(20, 32).sum(1))

    def test_reduction_decides_a_loop(self):
        got = each(self, settle, np.arange(32, dtype="i4") % 7, np.zeros(32, "i4"), BLOCK=32, _grid=1)[1]
        np.testing.assert_array_equal(got, np.full(32, 6))

    def test_divergent_loop_that_changes_other_variables(self):
        """`d` goes through a divergent loop and a divergent branch with an else unchanged: a barrier may
        depend on it afterwards."""

        @eas.kernel
        def k(x, out, n, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            d, own, one = mk.var(n), mk.var(t), mk.var(0)
            one.set(1.0)
            with mk.while_(lambda: own > 3):
                own -= 3
            with mk.if_(t > 5):
                own += 100
            with mk.else_():
                own += 200
            for _ in mk.range(0, t):
                own += 1
            s = mk.var(0.0)
            with mk.while_(lambda: d > 0):
                s += mk.tg_sum(mk.load(x, t)) * one
                d -= 1
            mk.store(out, t, s + own)

        x = np.arange(32, dtype="f4")
        got = each(self, k, x, np.zeros(32, "f4"), 3, BLOCK=32, _grid=1)[1]
        own = [t if t <= 3 else t - 3 * ((t - 1) // 3) for t in range(32)]
        own = [o + (100 if t > 5 else 200) + t for t, o in enumerate(own)]
        np.testing.assert_array_equal(got, 3 * x.sum() + np.array(own, "f4"))

    def test_unchanged_variables_are_not_carried(self):
        @eas.kernel
        def k(x, out, N, BLOCK: eas.constexpr):
            i = mk.arange(0, BLOCK)
            a, b, c = mk.var(1.0), mk.var(2.0), mk.var(mk.zeros(BLOCK, mk.f32))
            with mk.if_(N > 2):
                c += mk.load(x, i) * a
            for _ in mk.range(0, N):
                c += b
            b.set(5.0)
            mk.store(out, i, c)

        x = np.ones(8, "f4")
        self.assertNotIn("f32 = loop", text := k.to_ir(x, x, 3, BLOCK=8))
        self.assertIn("loop", text)
        np.testing.assert_array_equal(each(self, k, x, 0 * x, 3, BLOCK=8, _grid=1)[1], 7 * x)


class Refused(unittest.TestCase):
    def refuse(self, cond, body=lambda: None):
        @eas.kernel
        def k(x, out, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            v = mk.var(t)
            s = mk.alloc_tg(BLOCK, mk.i64)
            with mk.while_(lambda: cond(t, v, s)):
                v -= 1
                body()
            mk.store(out, t, v)

        with self.assertRaisesRegex(TypeError, r"test_uniform.py:\d+: .*control around it may differ between threads"):
            k(np.zeros(32, "i4"), np.zeros(32, "i4"), BLOCK=32, _grid=1)

    def test_barrier_in_a_divergent_condition(self):
        self.refuse(lambda t, v, s: (mk.barrier(), v > 0)[1])

    def test_simdgroup_in_a_divergent_condition(self):
        self.refuse(lambda t, v, s: mk.simd_sum(v.value) > t)

    def test_group_in_a_divergent_condition(self):
        self.refuse(lambda t, v, s: mk.tg_sum(v.value) > t)

    def test_load_at_a_place_of_its_own(self):
        self.refuse(lambda t, v, s: mk.load(s, t) > 0, mk.barrier)

    def test_scan(self):
        self.refuse(lambda t, v, s: mk.tg_prefix_sum(v.value) > 0, mk.barrier)

    def test_changed_in_a_divergent_branch(self):
        @eas.kernel
        def k(x, out, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            d = mk.var(3)
            with mk.if_(t > 4):
                d += 1
            with mk.while_(lambda: d > 0):
                mk.barrier()
                d -= 1

        with self.assertRaisesRegex(TypeError, "control around it may differ"):
            k(np.zeros(32, "i4"), np.zeros(32, "i4"), BLOCK=32, _grid=1)


if __name__ == "__main__":
    unittest.main()
