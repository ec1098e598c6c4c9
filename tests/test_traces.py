"""How many traces of a kernel are kept: the ones that were used last."""

import gc
import itertools
import unittest

import numpy as np
from support import python

import eas
from eas import mk


class Kept(unittest.TestCase):
    def test_the_least_recently_used_go_first(self):
        traces = itertools.count()  # a list would be captured state, and its change a reason to trace again

        @eas.kernel
        def put(x, K: eas.constexpr):
            next(traces)
            mk.store(x, mk.arange(0, 4), float(K))

        x = np.zeros(4, np.float32)
        for k in range(3000):
            put.compile(x, K=k)
            put.compile(x, K=-1)  # stays: it is used all the time
        self.assertEqual(len(put.compiled), 1024)
        self.assertEqual(next(traces), 3001)
        put.compile(x, K=2999)
        put.compile(x, K=-1)
        self.assertEqual(next(traces), 3002)  # none since the last look, which counts itself
        put.compile(x, K=0)  # went long ago
        self.assertEqual(next(traces), 3004)

    def test_those_that_are_held_stay_usable(self):
        @eas.kernel
        def put(x, K: eas.constexpr):
            mk.store(x, mk.arange(0, 4), float(K))

        x = np.zeros(4, np.float32)
        held = put.compile(x, K=7)
        for k in range(1500):
            put.compile(x, K=k + 100)
        gc.collect()
        self.assertEqual(held.meta, {"K": 7})
        self.assertIn("store", str(held.ir))
        put(x, K=7, _grid=1)
        self.assertTrue((x == 7).all())

    def test_memory_stays_flat(self):
        code = """
import gc, numpy as np, eas
from eas import mk
def rss():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096
@eas.kernel
def put(x, K: eas.constexpr):
    mk.store(x, mk.arange(0, 4), float(K))
x = np.zeros(4, np.float32)
for k in range(12000):
    put(x, K=k, _grid=1)
    assert x[0] == k
    if k == 4000:
        before = rss()
print((rss() - before) >> 20)
"""
        self.assertLess(int(python(code, env={"EAS_BACKEND": "ref"}).stdout), 8, "MB")
