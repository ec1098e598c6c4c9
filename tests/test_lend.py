"""Host arrays that a device with the host's memory uses where they lie: nothing is staged, and the results
are the same."""

import mmap
import unittest

import numpy as np
import support
from test_streams import add

import eas
from eas import mk

PAGE = mmap.PAGESIZE


@eas.kernel
def shift(x, y, N, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, i, i < N) + 1, i < N)


@eas.kernel
def reach(x, out, AT, BLOCK: eas.constexpr):
    offs = mk.arange(0, BLOCK)
    mk.store(out, offs, mk.load(x, offs + AT))


def pages(n, dtype=np.float32):
    """An array of n elements that begins with a page."""
    return np.frombuffer(mmap.mmap(-1, max(n * np.dtype(dtype).itemsize, 1)), dtype, n)


def staged(device):
    s = eas.memory_stats(device)
    return s["hits"] + s["misses"]


class Lent(unittest.TestCase):
    def launches(self, copies, device, kernel, *args, **options):
        """Runs it on the device, and checks how many arrays went through buffers of the device's."""
        before = staged(device)
        with support.backend(device):
            kernel(*args, **options)
        self.assertEqual(staged(device) - before, copies, device)

    def devices(self):
        return [d for d in ("mps", "opencl") if d in support.DEVICES and eas._eas.limits(d)["unified"]]

    def test_whole_pages_are_used_where_they_lie(self):
        for device in self.devices():
            for n in (1, 1000, 3 * PAGE, 100001):
                a, b, c = pages(n), pages(n), pages(n)
                a[:], b[:] = np.arange(n), 0.5
                for _ in range(3):
                    c[:] = -1
                    self.launches(0, device, add, a, b, c, n, BLOCK=128)
                    self.assertTrue((c == a + b).all(), device)
                    b += 1  # the next launch sees it

    def test_what_is_not_a_page_is_staged_on_metal_and_lent_to_opencl(self):
        for device in self.devices():
            a, b, c = (pages(2000)[k : k + 1000] for k in (4, 5, 6))
            a[:], b[:] = np.arange(1000), 0.5
            self.launches(3 if device == "mps" else 0, device, add, a, b, c, 1000, BLOCK=128)
            self.assertTrue((c == a + b).all(), device)

    def test_overlap_and_neighbours(self):
        for device in self.devices():
            x = pages(1002)
            x[:] = np.arange(1002)
            want = x.copy()
            want[1:1001] = x[:1000] + 1
            self.launches(0, device, shift, x[:1000], x[1:1001], 1000, BLOCK=1024)
            self.assertTrue((x == want).all(), device)

    def test_read_only_memory(self):
        for device in self.devices():
            a = pages(1000)
            a[:] = 2
            fixed = np.frombuffer(a.tobytes(), np.float32)
            c = pages(1000)
            with support.backend(device):
                add(fixed, fixed, c, 1000, BLOCK=128)
                self.assertTrue((c == 4).all(), device)
                with self.assertRaisesRegex(ValueError, "read-only"):
                    add(a, a, fixed, 1000, BLOCK=128)

    def test_queued_launches_are_staged(self):
        for device in self.devices():
            a, b, c, d = pages(1000), pages(1000), pages(1000), pages(1000)
            a[:], b[:] = 1, 2
            self.launches(3, device, add, a, b, c, 1000, BLOCK=128, _sync=False)
            self.launches(0, device, add, c, b, d, 1000, BLOCK=128)  # waits for the one before
            self.assertTrue((c == 3).all() and (d == 5).all(), device)

    def test_a_bad_index_and_then_a_good_launch(self):
        for device in self.devices():
            x, out = pages(100), pages(100)
            x[:] = np.arange(100)
            with support.backend(device):
                with self.assertRaisesRegex(IndexError, "100"):
                    reach(x, out, 50, BLOCK=100, _grid=1)
                self.assertTrue((out[:50] == x[50:]).all(), device)
                reach(x, out, 0, BLOCK=100, _grid=1)
                self.assertTrue((out == x).all(), device)

    def test_every_element_size(self):
        for device in self.devices():
            for dtype in (np.uint8, np.int16, np.int32, np.int64):
                a, c = pages(777, dtype), pages(777, dtype)
                a[:] = np.arange(777) % 50
                self.launches(0, device, add, a, a, c, 777, BLOCK=64)
                self.assertTrue((c == a + a).all(), (device, dtype))

    def test_tensors_of_the_cpu(self):
        for device in self.devices():
            n = 1 << 20  # large enough to come from the system by the page
            x, y, z = (eas.empty(n).numpy() for _ in range(3))
            x[:], y[:] = 1, 2
            self.launches(0, device, add, x, y, z, n, BLOCK=1024)
            self.assertTrue((z == 3).all(), device)
