"""Atomics: the functions of mk, on ref, cpu and, where there are such, an OpenCL and a Metal device."""

import unittest

import numpy as np
from support import ROOT, python

import eas
from eas import mk

METAL = tuple(name for name, _, why in eas._eas.devices() if why is None and name == "mps")
OPENCL = tuple(name for name, _, why in eas._eas.devices() if why is None and name == "opencl")
DTYPES = {mk.i32: np.int32, mk.u32: np.uint32, mk.i64: np.int64, mk.u64: np.uint64, mk.f16: np.float16, mk.f32: np.float32, mk.f64: np.float64}
FLOAT = ("atomic_add", "atomic_min", "atomic_max", "atomic_xchg")
INT = (*FLOAT, "atomic_and", "atomic_or", "atomic_xor")
MEANING = {
    "atomic_add": lambda old, x: old + x,
    "atomic_min": min,
    "atomic_max": max,
    "atomic_and": lambda old, x: old & x,
    "atomic_or": lambda old, x: old | x,
    "atomic_xor": lambda old, x: old ^ x,
    "atomic_xchg": lambda old, x: x,
}


@eas.kernel
def histogram(x, bins, N, NBINS: eas.constexpr, BLOCK: eas.constexpr):
    offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mask = offs < N
    mk.atomic_add(bins, mk.load(x, offs, mask), 1, mask)


@eas.kernel
def change(a, i, v, old, N, OP: eas.constexpr, BLOCK: eas.constexpr):
    offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mask = offs < N
    r = getattr(mk, OP)(a, mk.load(i, offs, mask), mk.load(v, offs, mask), mask)
    mk.store(old, offs, r, mask)


def on(device, *arrays):
    return [eas.tensor(a, device=device) for a in arrays]


class Atomics(unittest.TestCase):
    def test_histogram(self):
        rng = np.random.default_rng(1)
        for n in (1, 255, 256, 100_003):
            x = rng.integers(0, 37, n).astype(np.int32)
            bins = np.zeros(37, np.int64)
            histogram(x, bins, n, NBINS=37, BLOCK=256)
            np.testing.assert_array_equal(bins, np.bincount(x, minlength=37))

    def test_every_function_and_dtype_in_lane_order(self):
        rng = np.random.default_rng(2)
        for dt in DTYPES.values():
            for op in FLOAT if np.issubdtype(dt, np.floating) else INT:
                for device in ("ref", "cpu", *OPENCL, *(METAL if np.dtype(dt).itemsize <= 4 else ())):  # Metal has no 64-bit atomics
                    n = 70
                    a = rng.integers(0, 50, 9).astype(dt)
                    i, v = rng.integers(0, 9, n).astype(np.int32), rng.integers(0, 50, n).astype(dt)
                    want, olds = a.copy(), np.full(100, 99, dt)
                    for k in range(n):
                        olds[k] = want[i[k]]
                        want[i[k]] = MEANING[op](want[i[k]], v[k])
                    old = np.full(100, 99, dt)
                    ta, told = on(device, a, old)
                    change(ta, *on(device, i, v), told, n, OP=op, BLOCK=100)
                    np.testing.assert_array_equal(ta.numpy(), want, err_msg=f"{op} {dt} {device}")
                    np.testing.assert_array_equal(told.numpy(), olds, err_msg=f"{op} {dt} {device}")

    def test_every_function_in_threadgroup_memory(self):
        @eas.kernel
        def k(i, v, out, N, OP: eas.constexpr, DT: eas.constexpr, B: eas.constexpr):
            t = mk.tid(0, B)
            mine = mk.alloc_tg(B, DT)
            mk.store(mine, t, mk.cast(t % 7, DT))
            mk.barrier()
            for r in mk.range(0, 3):
                at = r * B + t
                with mk.if_(at < N):
                    getattr(mk, OP)(mine, mk.load(i, at), mk.load(v, at))
            mk.barrier()
            mk.store(out, t, mk.load(mine, t))

        rng, b = np.random.default_rng(3), 32
        for mkdt, dt in DTYPES.items():
            for op in FLOAT if np.issubdtype(dt, np.floating) else INT:
                for n in (32, 90):  # every chunk whole, and not; an exchange is the same in any order only if a place is hit once
                    i = (np.arange(n) % b if op == "atomic_xchg" and n == b else rng.integers(0, b, n)).astype(np.int32)
                    v = (i % 5 if op == "atomic_xchg" else rng.integers(0, 9, n)).astype(dt)
                    want = (np.arange(b) % 7).astype(dt)
                    for j in range(n):
                        want[i[j]] = MEANING[op](want[i[j]], v[j])
                    for device in ("ref", "cpu"):
                        (out,) = on(device, np.zeros(b, dt))
                        k(*on(device, i, v), out, n, OP=op, DT=mkdt, B=b, _grid=1)
                        np.testing.assert_array_equal(out.numpy(), want, err_msg=f"{op} {dt} {device} {n}")

    def test_compare_and_exchange(self):
        @eas.kernel
        def k(a, r, N, BLOCK: eas.constexpr):
            t = mk.arange(0, BLOCK)
            mk.store(r, t, mk.atomic_cas(a, t // 4, 0.0, mk.to_f32(t) + 1, mask=t < N))

        a, r = np.zeros(8, np.float32), np.full(32, -1, np.float32)
        k(a, r, 30, BLOCK=32, _grid=1)
        np.testing.assert_array_equal(a, 4 * np.arange(8) + 1)
        want = np.repeat(4 * np.arange(8) + 1, 4).astype(np.float32)
        want[::4] = 0
        want[30:] = 0
        np.testing.assert_array_equal(r, want)

    def test_one_element_for_a_block(self):
        @eas.kernel
        def total(x, out, N, BLOCK: eas.constexpr):
            offs = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            mk.atomic_add(out, 0, mk.load(x, offs, offs < N))

        x, out = np.ones(1000, np.float32), np.zeros(1, np.float32)
        total(x, out, 1000, BLOCK=64)
        self.assertEqual(out[0], 1000)

    def test_threadgroup_memory(self):
        @eas.kernel
        def k(x, bins, N, BLOCK: eas.constexpr):
            t = mk.tid(0, BLOCK)
            mine = mk.alloc_tg(16, mk.i32)
            mk.store(mine, t, 0, t < 16)
            mk.barrier()
            offs = mk.program_id(0) * BLOCK + t
            mk.atomic_add(mine, mk.load(x, offs, offs < N), 1, offs < N)
            mk.barrier()
            mk.atomic_add(bins, t, mk.load(mine, t, t < 16), t < 16)

        x = np.random.default_rng(3).integers(0, 16, 10_000).astype(np.uint8)
        for device in ("ref", "cpu", *METAL):
            bins = eas.tensor(np.zeros(16, np.int32), device=device)
            k(*on(device, x), bins, 10_000, BLOCK=64)
            np.testing.assert_array_equal(bins.numpy(), np.bincount(x, minlength=16))

    def test_lanes_that_are_off_may_be_anywhere(self):
        @eas.kernel
        def k(a, N, BLOCK: eas.constexpr):
            t = mk.arange(0, BLOCK)
            mk.atomic_max(a, t * 1_000_000_000_000 - 5, t, mask=t == N)

        a = np.zeros(2, np.int64)
        for device in ("ref", "cpu"):
            k(*on(device, a), 100, BLOCK=16, _grid=1)
        with self.assertRaisesRegex(IndexError, r'test_atomics.py:\d+: kernel k: .*index -5 of "a", which has 2 elements'):
            k(a, 0, BLOCK=16, _grid=1)
        self.assertEqual(a.sum(), 0)

    def test_metal_has_no_64_bit_atomics(self):
        for device in METAL:
            with self.assertRaisesRegex(TypeError, "no 64-bit atomics"):
                histogram(*on(device, np.zeros(4, np.int32), np.zeros(4, np.int64)), 4, NBINS=4, BLOCK=32)

    def test_read_only_arrays_are_refused(self):
        x = np.zeros(4, np.int32)
        x.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "read-only"):
            histogram(np.zeros(4, np.int32), x, 4, NBINS=4, BLOCK=16)

    def test_writes_are_known(self):
        ck = histogram.compile(np.zeros(4, np.int32), np.zeros(4, np.int32), 4, NBINS=4, BLOCK=16)
        self.assertEqual(ck.writes, frozenset({"bins"}))

    def test_mistakes(self):
        def run(body, dt=np.int32):
            @eas.kernel
            def k(a, BLOCK: eas.constexpr):
                body(a, mk.arange(0, BLOCK))

            k(np.zeros(16, dt), BLOCK=16, _grid=1)

        for body, dt, error, words in (
            (lambda a, t: mk.atomic_add(a, t, 1), np.int16, TypeError, "a buffer of i16; it works on i32, u32, i64, u64, f16, bf16, f32 and f64"),
            (lambda a, t: mk.atomic_add(a, t, 1, order="weak"), np.int32, ValueError, 'order must be "relaxed", "acquire", .* or "seq_cst"; got .weak'),
            (lambda a, t: mk.atomic_add(a, t, 1, order=2), np.int32, TypeError, "mk.atomic_add: order must be"),
            (lambda a, t: mk.atomic_load(a, t, order="release"), np.int32, ValueError, 'mk.atomic_load: its order is "relaxed", "acquire" or "seq_cst"'),
            (lambda a, t: mk.atomic_store(a, t, 1, order="acq_rel"), np.int32, ValueError, 'mk.atomic_store: its order is "relaxed", "release" or'),
            (lambda a, t: mk.fence("release", scope="system"), np.int32, ValueError, 'scope must be "group" or "device"'),
            (lambda a, t: mk.atomic_load(a, t), np.int8, TypeError, "atomic_load: a buffer of i8"),
            (lambda a, t: mk.atomic_or(a, t, 1), np.float32, TypeError, "atomic_or: a buffer of f32"),
            (lambda a, t: mk.atomic_add(a, t * 0.5, 1), np.int32, TypeError, "the offset must be an integer"),
            (lambda a, t: mk.atomic_add(a, t, 1.5), np.int32, TypeError, "atomic_add"),
            (lambda a, t: mk.atomic_add(a, t, 1 << 40), np.int32, ValueError, "does not fit i32"),
            (lambda a, t: mk.atomic_add(a, t), np.int32, TypeError, "value"),
            (lambda a, t: mk.atomic_cas(a, t, 1), np.int32, TypeError, "desired"),
            (lambda a, t: mk.atomic_add(t, t, 1), np.int32, TypeError, "buf"),
            (lambda a, t: mk.atomic_add(a, t, 1, mask=t), np.int32, TypeError, "mask"),
            (lambda a, t: mk.atomic_add(a, t, mk.arange(0, 8)), np.int32, ValueError, "atomic_add"),
        ):
            with self.assertRaisesRegex(error, words):
                run(body, dt)
        with self.assertRaises(RuntimeError):
            mk.atomic_add(None, 0, 1)

    def test_two_threads_lose_nothing(self):
        code = (
            "import numpy as np, sys; sys.path.insert(0, 'tests'); from test_atomics import histogram, change\n"
            "x = np.zeros(1 << 20, np.int32); f = np.zeros(1, np.float32); n = np.zeros(1, np.int64)\n"
            "for _ in range(3): histogram(x, n, x.size, NBINS=1, BLOCK=256)\n"
            "assert n[0] == 3 * x.size, n\n"
            "v = np.ones(1 << 20, np.float32)\n"
            "change(f, x, v, np.empty_like(v), v.size, OP='atomic_add', BLOCK=256)\n"
            "assert f[0] == v.size, f\n"
        )
        python(code, env={"EAS_NUM_THREADS": "2"}, cwd=ROOT)


if __name__ == "__main__":
    unittest.main()
