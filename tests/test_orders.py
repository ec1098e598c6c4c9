"""Memory orders: fences, atomic loads and stores, and programs that hand each other data within a launch."""

import unittest

import numpy as np
from support import DEVICES, ROOT, python

import eas
import eas.ir
from eas import mk
from examples import lookback_scan


def on(device, *arrays):
    return [eas.tensor(a, device=device) for a in arrays]


@eas.kernel
def scan_spmd(x, out, ticket, flag, total, running, N, BLOCK: eas.constexpr):
    tile = mk.atomic_add(ticket, 0, 1)
    i = tile * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, i, i < N)
    upto, own = mk.cumsum(v), mk.sum(v)
    mk.store(total, tile, own)
    mk.fence("release")
    mk.atomic_store(flag, tile, 1)
    before, at = mk.to_i64(0), tile - 1
    while at >= 0:
        known = mk.atomic_load(flag, at)
        mk.fence("acquire")
        if known == 2:
            before += mk.load(running, at)
            at = -1
        elif known == 1:
            before += mk.load(total, at)
            at -= 1
    mk.store(running, tile, before + own)
    mk.atomic_store(flag, tile, 2, order="seq_cst")
    mk.store(out, i, upto + before, i < N)


class Orders(unittest.TestCase):
    def test_look_back_with_groups(self):
        for device in DEVICES:
            for n, block in ((5000, 64), (1, 32), (257, 256)):
                x = np.random.default_rng(n).integers(-9, 100, n).astype(np.int32)
                a, out = on(device, x, np.zeros_like(x))
                lookback_scan.prefix_sum(a, out, block, device)
                np.testing.assert_array_equal(out.numpy(), np.cumsum(x), err_msg=device)

    def test_look_back_with_blocks(self):
        for device in DEVICES:
            n, block = 7000, 64
            x = np.random.default_rng(3).integers(-9, 100, n)
            tiles = -(-n // block)
            own = [np.zeros(1, np.int32), np.zeros(tiles, np.int32), np.zeros(tiles, np.int64), np.zeros(tiles, np.int64)]
            a, out, *own = on(device, x, np.zeros_like(x), *own)
            scan_spmd(a, out, *own, n, BLOCK=block, _grid=tiles)
            np.testing.assert_array_equal(out.numpy(), np.cumsum(x), err_msg=device)

    def test_look_back_under_load(self):
        """Many more programs than threads, again and again, on threads that are taken away in between."""
        code = (
            "import sys, numpy as np; sys.path[:0] = ['.', 'tests']; from examples.lookback_scan import prefix_sum\n"
            "from test_orders import scan_spmd\n"
            "x = np.random.default_rng(0).integers(0, 100, 300_000).astype(np.int32); want = np.cumsum(x, dtype=np.int32)\n"
            "for k in range(12):\n"
            "    out = np.zeros_like(x); prefix_sum(x, out, 32); assert (out == want).all(), k\n"
            "    y, wide = np.zeros(x.size, np.int64), x.astype(np.int64)\n"
            "    own = [np.zeros(1, np.int32), np.zeros(5000, np.int32), np.zeros(5000, np.int64), np.zeros(5000, np.int64)]\n"
            "    scan_spmd(wide, y, *own, x.size, BLOCK=64, _grid=-(-x.size // 64)); assert (y == np.cumsum(wide)).all(), k\n"
        )
        python(code, env={"EAS_NUM_THREADS": "4"}, cwd=ROOT)

    def test_texts(self):
        args = [np.zeros(64, np.int32)] * 2 + [np.zeros(4, np.int32)] * 4 + [64]
        ck = lookback_scan.scan.compile(*args, BLOCK=32)
        self.assertIn("fence release device", str(ck.ir))
        self.assertIn("fence acquire device", str(ck.ir))
        self.assertEqual(str(eas.ir.parse(str(ck.ir))), str(ck.ir))
        msl, opencl = ck.msl, ck.opencl
        self.assertIn("#if __METAL_VERSION__ < 320", msl)
        self.assertIn("atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);", msl)
        for name in ("total", "running"):
            self.assertRegex(msl, rf"coherent\(device\) device int\*.* {name} ")
        self.assertRegex(msl, r"    device const int\*.* x ")
        self.assertIn("eas_fence(__ATOMIC_RELEASE)", opencl)

    def test_machine_code(self):
        """An acquire or release costs no instruction on x86; seq_cst is a full fence."""

        @eas.kernel
        def k(a, r, ORDER: eas.constexpr):
            mk.atomic_store(a, 0, 1, order="release" if ORDER == "acquire" else ORDER)
            mk.store(r, 0, mk.atomic_load(a, 1, order=ORDER))

        a = np.zeros(2, np.int32)
        texts = {o: k.compile(a, a.copy(), ORDER=o).asm for o in ("relaxed", "acquire", "seq_cst")}
        if "mov" in texts["relaxed"] and "%r" in texts["relaxed"]:  # x86
            self.assertNotIn("mfence", texts["acquire"])
            self.assertTrue("mfence" in texts["seq_cst"] or "lock" in texts["seq_cst"])

    def test_checker_knows_fences(self):
        x = np.arange(64, dtype=np.int32)
        own = [np.zeros(n, np.int32) for n in (1, 2, 2, 2)]
        self.assertTrue(eas.check(lookback_scan.scan, x, np.zeros_like(x), *own, 64, BLOCK=32, _grid=2).ok)

        @eas.kernel
        def without(x, flag):
            p = mk.program_id(0)
            if p > 0:
                mk.atomic_load(flag, 0)
                mk.store(x, 1, mk.load(x, 0))
            else:
                mk.store(x, 0, 1)
                mk.atomic_store(flag, 0, 1)

        self.assertFalse(eas.check(without, np.zeros(2, np.int32), np.zeros(1, np.int32), _grid=2).ok)

    def test_atomic_loads_read_only(self):
        @eas.kernel
        def k(a, r):
            i = mk.arange(0, 4)
            mk.store(r, i, mk.atomic_load(a, i, i < 3))

        a = np.arange(1, 5, dtype=np.float32)
        a.flags.writeable = False
        r = np.zeros(4, np.float32)
        ck = k.compile(a, r)
        self.assertEqual(ck.writes, frozenset({"r"}))
        for how in ({}, {"_interpret": True}):
            r[:] = -1
            k(a, r, _grid=1, **how)
            self.assertEqual(r.tolist(), [1, 2, 3, 0])

    def test_halves_share_words_with_their_neighbours(self):
        """Views that begin at odd elements, and every second element changed by someone else."""

        @eas.kernel
        def k(a, r, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.atomic_add(a, i % 7, 0.5, i < N)
            mk.atomic_max(r, i % 5, mk.to_f16(i % 100), i < N)

        for device in DEVICES:
            a, r = on(device, np.zeros(12, np.float16), np.zeros(12, np.float16))
            k(a[1:8], r[3:8], 1400, BLOCK=50)
            np.testing.assert_array_equal(a.numpy(), [0] + [100] * 7 + [0] * 4, err_msg=device)
            np.testing.assert_array_equal(r.numpy(), [0] * 3 + [95, 96, 97, 98, 99] + [0] * 4, err_msg=device)

    def test_halves_in_threadgroup_memory(self):
        @eas.kernel
        def k(out, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            s, b = mk.alloc_tg(3, mk.f16), mk.alloc_tg(3, mk.bf16)
            mk.store(s, t, 0, t < 3)
            mk.store(b, t, 1000, t < 3)
            mk.barrier()
            mk.atomic_add(s, t % 3, 1)
            mk.atomic_min(b, t % 3, mk.to_bf16(t))
            mk.barrier()
            mk.store(out, t, mk.load(s, t, t < 3) * 10 + mk.to_f16(mk.load(b, t, t < 3)), t < 3)

        for device in DEVICES:
            (out,) = on(device, np.zeros(3, np.float16))
            k(out, BLOCK=64, _grid=1)
            np.testing.assert_array_equal(out.numpy(), [220, 211, 212], err_msg=device)

    def test_gradients_of_halves_and_doubles(self):
        """Every program reads the weight: its gradient is a sum of atomic additions in its own dtype."""

        @eas.kernel
        def k(x, w, out, N, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.store(out, i, mk.load(x, i, i < N) * mk.load(w, i % 3, i < N), i < N)

        for dt in (np.float16, np.float64):
            for device in DEVICES if dt == np.float16 else ("ref", "cpu"):
                x, w = np.arange(30, dtype=dt) / 4, np.arange(3, dtype=dt)
                d_w = np.zeros(3, dt)
                grad = eas.grad_kernel(k, wrt=["w"], of=["out"])
                arrays = on(device, x, w, np.zeros(30, dt))
                ct, got = on(device, np.ones(30, dt), d_w)
                grad(*arrays, 30, ct, got, BLOCK=8)
                np.testing.assert_array_equal(got.numpy(), [x[j::3].sum() for j in range(3)], err_msg=f"{dt} {device}")


if __name__ == "__main__":
    unittest.main()
