"""n-d blocks: indexing, shapes, reductions and scans, on every device and against NumPy."""

import itertools
import unittest

import numpy as np
from support import BF16, ROOT, backend, each, python

import eas
from eas import mk

RNG = np.random.default_rng(5)
FLOATS = [np.dtype(d) for d in ("f2", "f4", "f8")] + ([BF16] if BF16 else [])
INTS = [np.dtype(d) for d in ("i1", "i4", "i8", "u1", "u4", "u8")]


def offsets(shape):
    """Row-major offsets of a block, made with None and ':' only."""
    off = 0
    for axis, n in enumerate(shape):
        key = tuple(slice(None) if a == axis else None for a in range(len(shape)))
        off = off * n + mk.arange(0, n)[key]
    return off


def apply(test, f, x, dtype=None):
    """f on the whole of x as one block; what comes out, in its shape."""
    shape = {}

    @eas.kernel
    def k(x, out, B: eas.constexpr):
        y = f(mk.load(x, offsets(shape["in"])))
        shape["out"] = y.shape
        mk.store(out, offsets(y.shape) if y.shape else 0, y)

    shape["in"] = x.shape
    _, out = each(test, k, x, np.zeros(max(x.size, 1) * 2, dtype or x.dtype), 1, _grid=1)
    return out[: int(np.prod(shape["out"]))].reshape(shape["out"])


def numbers(shape, dt):
    if dt.kind in "iu":
        return RNG.integers(0, 9, shape).astype(dt)
    return RNG.standard_normal(shape).astype(np.float32).astype(dt)


@eas.kernel
def backwards(x, out, back, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    ok = i < N
    v = mk.load(x, N - 1 - i, ok)
    mk.store(out, i, v, ok)
    mk.store(back, N - 1 - i, v + v, ok & (i != 3))


@eas.kernel
def centred(x, out, N, COLS: eas.constexpr, TURN: eas.constexpr, OTHER: eas.constexpr):
    """A row is wanted three times: for its maximum, for a sum that needs that, and for the result."""
    row, i = mk.program_id(0) * COLS, mk.arange(0, COLS)
    v = mk.load(x, row + i, i < N, -1) if OTHER else mk.load(x, row + i)
    e = v - mk.max(v, axis=0)
    mk.store(out, row + (COLS - 1 - i if TURN else i), v * mk.sum(e, axis=0))


@eas.kernel
def reload(a, part, out, B: eas.constexpr, ATOMIC: eas.constexpr):
    """Is part a part of a? Then what is written there is seen by the next load."""
    i = mk.arange(0, B)
    before = mk.load(a, i)
    if ATOMIC:
        mk.atomic_min(part, i % 14, mk.cast(i, mk.u64))
    else:
        mk.store(part, i, mk.cast(i, mk.u64), i < 14)
    mk.store(out, i, mk.load(a, i % B))
    mk.store(out, i + B, before)


class WantedAgain(unittest.TestCase):
    def test_what_an_overlapping_argument_wrote(self):
        for atomic, how in itertools.product((False, True), ("ref", "cpu", "interpret")):
            with self.subTest(atomic=atomic, how=how), backend("ref" if how == "ref" else "cpu"):
                memory, out = np.arange(1000, 1064, dtype=np.uint64), np.zeros(128, np.uint64)
                reload(memory, memory[25:39], out, B=64, ATOMIC=atomic, _grid=1, _interpret=how == "interpret")
                wanted = np.arange(1000, 1064)
                np.testing.assert_array_equal(out[64:], wanted)
                wanted[25:39] = np.arange(14)
                np.testing.assert_array_equal(out[:64], wanted)

    def expected(self, x, turn, n):
        v = np.where(np.arange(x.shape[1]) < n, x, -1).astype(x.dtype)
        r = v * (v - v.max(1, keepdims=True)).sum(1, keepdims=True, dtype=x.dtype)
        return r[:, ::-1] if turn else r

    def test_what_is_loaded_once(self):
        """Also where the result overwrites what is still to be read, at the same place or at another."""
        for cols, turn, other, dt in itertools.product((5, 64, 1000), (False, True), (False, True), ("f4", "i8")):
            x = RNG.integers(-9, 9, (4, cols)).astype(dt)
            n = cols - 3 if other else cols
            with self.subTest(cols=cols, turn=turn, other=other, dtype=dt):
                _, out = each(self, centred, x, np.zeros_like(x), n, COLS=cols, TURN=turn, OTHER=other, _grid=4)
                np.testing.assert_array_equal(out, self.expected(x, turn, n))
                y = x.copy()
                centred(y, y, n, COLS=cols, TURN=turn, OTHER=other, _grid=4)
                np.testing.assert_array_equal(y, self.expected(x, turn, n))
                z = np.concatenate([x.ravel(), np.zeros(cols, dt)])  # one row further: what is written now is read by the next program
                centred(z[: x.size].reshape(x.shape), z[cols:], n, COLS=cols, TURN=turn, OTHER=other, _grid=1)
                np.testing.assert_array_equal(z[cols : 2 * cols], self.expected(x[:1], turn, n)[0])


class RowsAddedUp(unittest.TestCase):
    """A loop that adds rows works on several vectors at a time where the row is long enough: every dtype,
    every length of block."""

    def test_every_dtype_and_length(self):
        @eas.kernel
        def total(x, out, ROWS, COLS, BLOCK: eas.constexpr):
            i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
            t = mk.var(mk.load(x, i, i < COLS))
            for r in mk.range(1, ROWS):
                t += mk.load(x, r * COLS + i, i < COLS)
            mk.store(out, i, t, i < COLS)

        for dt, block, device in itertools.product(FLOATS + INTS, (16, 64, 256, 1024), ("cpu", "ref")):
            for cols in (block, 2 * block, 2 * block - 3):
                with self.subTest(dtype=dt, block=block, device=device, cols=cols), backend(device):
                    x = RNG.integers(0, 8, (5, cols)).astype(dt)
                    out = np.zeros(cols, dt)
                    total(x, out, 5, cols, BLOCK=block, _grid=-(-cols // block))
                    np.testing.assert_array_equal(out, x.astype("f8").sum(0).astype(dt))


class WaitingInTheOutput(unittest.TestCase):
    """Rows so long that what is made of them waits where it will be stored: only where no other program and
    no other argument meets it."""

    LONG = 40960  # 160 KB of f32

    def scaled(self, x, out, gap, rows, n, long):
        """out = (x + 1) / (the largest of the row + 1), rows of `long` elements that begin every `gap`, of
        which n are there."""

        @eas.kernel
        def k(x, out, GAP, N, LONG: eas.constexpr):
            i = mk.arange(0, LONG)
            at = mk.program_id(0) * GAP + i
            v = mk.load(x, at, i < N, 0.0) + 1
            mk.store(out, at, v / mk.max(v, axis=0), i < N)

        k(x, out, gap, n, LONG=long, _grid=rows)

    def expected(self, x, gap, rows, n):
        out = np.full_like(x, -1)
        for r in range(rows):
            v = x[r * gap : r * gap + n] + 1
            out[r * gap : r * gap + n] = v / v.max()
        return out

    def test_rows_of_their_own(self):
        for n in (self.LONG, self.LONG - 1, 17):
            for gap in (self.LONG, self.LONG + 3):
                with self.subTest(n=n, gap=gap):
                    x = RNG.random(gap * 4, dtype=np.float32)
                    out = np.full_like(x, -1)
                    self.scaled(x, out, gap, 4, n, self.LONG)
                    np.testing.assert_array_equal(out, self.expected(x, gap, 4, n))

    def test_backwards_and_on_two_axes(self):
        @eas.kernel
        def k(x, out, ROWS, N, LONG: eas.constexpr):
            at = ((mk.program_id(1) + 1) * ROWS - 1 - mk.program_id(0)) * N + mk.arange(0, LONG)
            v = mk.load(x, at) * 2
            mk.store(out, at, v - mk.sum(v, axis=0))

        x = RNG.integers(-9, 9, (2, 3, self.LONG)).astype(np.float32)
        out = np.empty_like(x)
        k(x, out, 3, self.LONG, LONG=self.LONG, _grid=(3, 2))
        np.testing.assert_array_equal(out, 2 * x - 2 * x.sum(2, keepdims=True))

    def same_writes(self, k, grid, gaps, size):
        """k writes 6 x, some elements from several programs: size(gap) of them in all."""
        x = RNG.random(self.LONG * 9, dtype=np.float32)
        for gap in gaps:
            out = np.empty(size(gap), np.float32)
            for _ in range(5):
                k(x, out, gap, LONG=self.LONG, _grid=grid)
                np.testing.assert_array_equal(out, 2 * x[: out.size] * 3)

    def test_rows_that_overlap_may_write_the_same(self):
        @eas.kernel
        def k(x, out, GAP, LONG: eas.constexpr):
            at = mk.program_id(0) * GAP + mk.arange(0, LONG)
            v = mk.load(x, at) * 2
            mk.store(out, at, v * 3 + 0 * mk.max(v, axis=0))

        self.same_writes(k, 64, (0, 1, 32), lambda gap: self.LONG + 63 * gap)

    def test_axes_that_meet(self):
        @eas.kernel
        def k(x, out, GAP, LONG: eas.constexpr):
            at = mk.program_id(0) * LONG + mk.program_id(1) * GAP + mk.arange(0, LONG)
            v = mk.load(x, at) * 2
            mk.store(out, at, v * 3 + 0 * mk.max(v, axis=0))

        self.same_writes(k, (2, 8), (0, 16, self.LONG), lambda gap: self.LONG * 2 + 7 * gap)

    def test_arguments_that_are_one_array(self):
        x = RNG.random(self.LONG * 4, dtype=np.float32)
        want = self.expected(x, self.LONG, 4, self.LONG)
        same = x.copy()
        self.scaled(same, same, self.LONG, 4, self.LONG, self.LONG)
        np.testing.assert_array_equal(same, want)

    def test_a_second_look_at_what_would_be_overwritten(self):
        @eas.kernel
        def k(x, y, out, N: eas.constexpr):
            at = mk.program_id(0) * N + mk.arange(0, N)
            v = mk.load(x, at) * 2
            top = mk.max(v, axis=0)
            mk.store(out, at, v / top + mk.load(y, at))

        x, y = (RNG.random((3, self.LONG), dtype=np.float32) for _ in range(2))
        want = 2 * x / (2 * x).max(1, keepdims=True) + y
        for out in (np.empty_like(x), x, y):  # apart, in the place of the first, of the second
            a, b = x.copy(), y.copy()
            o = a if out is x else b if out is y else out
            k(a, b, o, N=self.LONG, _grid=3)
            np.testing.assert_array_equal(o, want)

    def test_two_outputs_and_other_types(self):
        @eas.kernel
        def k(x, first, second, N: eas.constexpr):
            at = mk.program_id(0) * N + mk.arange(0, N)
            v = mk.load(x, at) * 2
            mk.store(first, at, v + mk.max(v, axis=0))
            mk.store(second, at, v)

        for kind, other in (("i4", "i4"), ("f8", "f4"), ("f4", "f8"), ("u2", "i2"), ("u1", "f4")):
            with self.subTest(kind=kind, other=other):
                x = RNG.integers(0, 50, (3, self.LONG * 4)).astype(kind)
                first, second = np.empty(x.shape, other), np.empty_like(x)
                k(x, first, second, N=self.LONG * 4, _grid=3)
                np.testing.assert_array_equal(second, 2 * x)
                np.testing.assert_array_equal(first, 2 * x + 2 * x.max(1, keepdims=True))


class Backwards(unittest.TestCase):
    def test_against_slices(self):
        for dt, n in itertools.product(FLOATS + INTS, (1, 7, 64, 1000)):
            with self.subTest(dtype=dt, n=n):
                x = numbers((n,), dt)
                _, out, back = each(self, backwards, x, np.zeros(n, dt), np.zeros(n, dt), n, BLOCK=128)
                np.testing.assert_array_equal(out, x[::-1])
                want = x + x
                want[n - 4 : n - 3] = 0
                np.testing.assert_array_equal(back[:n], want)


class Shapes(unittest.TestCase):
    def test_indexing(self):
        x = numbers((3, 5), np.dtype("f4"))
        keys = [
            (slice(None), None, slice(None)),
            (None, Ellipsis),
            (Ellipsis, None),
            (slice(None), Ellipsis, None),
            (Ellipsis, None, slice(None)),
            (None, slice(None), slice(None), None),
            Ellipsis,
            None,
            slice(None),
            (slice(None), None),
            (Ellipsis, slice(None)),
        ]
        for key in keys:
            np.testing.assert_array_equal(apply(self, lambda v, key=key: v[key], x), x[key], str(key))

    def test_bad_indices(self):
        for key, error in (((Ellipsis, Ellipsis), IndexError), ((slice(None),) * 3, IndexError), ("a", TypeError), ((None,) * 4, ValueError)):
            with self.assertRaises(error):
                apply(self, lambda v, key=key: v[key], np.zeros((2, 2), np.float32))

    def test_outer_product_of_any_sizes(self):
        @eas.kernel
        def k(x, y, out, A: eas.constexpr, B: eas.constexpr):
            i, j = mk.arange(0, A), mk.arange(0, B)
            mk.store(out, i[:, None] * B + j[None, :], mk.load(x, i)[:, None] * mk.load(y, j)[None, :])

        for a, b in ((1, 1), (3, 5), (8, 8), (7, 64), (33, 2)):
            x, y = numbers(a, np.dtype("f4")), numbers(b, np.dtype("f4"))
            *_, out = each(self, k, x, y, np.zeros((a, b), np.float32), a, b, _grid=1)
            np.testing.assert_array_equal(out, np.outer(x, y))

    def test_filled(self):
        for dt in (mk.f32, mk.f16, mk.i64, mk.u8, mk.bool_):
            got = apply(self, lambda v, dt=dt: mk.to_f32(mk.full((2, 3), 1, dt)) + mk.to_f32(mk.zeros((2, 3), dt)), np.zeros(6, np.float32))
            np.testing.assert_array_equal(got, np.ones((2, 3)))

        @eas.kernel
        def k(out, B: eas.constexpr):
            self.assertIs(mk.zeros(4).dtype, mk.f32)
            self.assertEqual(mk.full((4,), 2.5).shape, (4,))
            self.assertEqual(mk.zeros(()).shape, ())
            with self.assertRaisesRegex(ValueError, "4 dims"):
                mk.zeros((1, 1, 1, 1, 1))
            mk.store(out, mk.arange(0, B), mk.full(B, mk.load(out, 0) + 2, mk.i32))

        (out,) = each(self, k, np.ones(4, np.float32), 4, _grid=1)
        np.testing.assert_array_equal(out, 3)

    def test_reshape(self):
        x = numbers((4, 6), np.dtype("f4"))
        for shape in ((24,), (2, 12), (-1,), (3, -1), (2, 2, 6), (-1, 1, 6, 2), 24, -1):
            np.testing.assert_array_equal(apply(self, lambda v, s=shape: mk.reshape(v, s), x), x.reshape(shape))
        np.testing.assert_array_equal(apply(self, lambda v: v.reshape(2, 12), x), x.reshape(2, 12))
        np.testing.assert_array_equal(apply(self, lambda v: v.reshape((8, -1)), x), x.reshape(8, -1))
        for shape, text in (((5, -1), "24"), ((-1, -1), "one"), ((3, 3), "24"), ((0, 24), "at least 1"), (25, "24")):
            with self.assertRaisesRegex(ValueError, text):
                apply(self, lambda v, s=shape: mk.reshape(v, s), x)

    def test_trans(self):
        x = numbers((2, 3, 4), np.dtype("f4"))
        np.testing.assert_array_equal(apply(self, lambda v: v.T, x), x.T)
        np.testing.assert_array_equal(apply(self, mk.trans, x), x.T)
        for axes in itertools.permutations(range(3)):
            np.testing.assert_array_equal(apply(self, lambda v, a=axes: mk.trans(v, a), x), x.transpose(axes))
        np.testing.assert_array_equal(apply(self, lambda v: v.trans(-1, 0, 1), x), x.transpose(2, 0, 1))
        np.testing.assert_array_equal(apply(self, lambda v: v.T, x[0, 0]), x[0, 0])
        for axes in ((0, 0, 1), (0, 1), (0, 1, 3)):
            with self.assertRaises(ValueError):
                apply(self, lambda v, a=axes: mk.trans(v, a), x)

    def test_transposed_tiles_and_their_edges(self):
        for dt in (np.dtype(t) for t in ("f4", "f8", "f2", "i1", "i8", "bool")):
            for shape in ((16, 4), (17, 5), (32, 64), (48, 20), (64, 2)):
                x = RNG.integers(0, 100, shape).astype(dt)
                np.testing.assert_array_equal(apply(self, lambda v: v.T, x), x.T, f"{dt} {shape}")
        x = numbers((3, 32, 9), np.dtype("f4"))
        np.testing.assert_array_equal(apply(self, lambda v: mk.trans(v, (0, 2, 1)), x), x.transpose(0, 2, 1))

    def test_transposed_tiles_in_narrower_vectors(self):
        code = "import sys; sys.path.insert(0, 'tests'); import test_blocks; test_blocks.Shapes('test_transposed_tiles_and_their_edges').debug()"
        for isa in ("avx2", "sse2"):
            python(code, env={"EAS_ISA": isa}, cwd=ROOT)

    def test_transposed_halves_and_ints(self):
        for dt in FLOATS + INTS:
            x = numbers((5, 3), dt)
            np.testing.assert_array_equal(apply(self, lambda v: v.T, x), x.T)

    def test_broadcast_to(self):
        x = numbers((3, 1), np.dtype("f4"))
        np.testing.assert_array_equal(apply(self, lambda v: mk.broadcast_to(v, (3, 2)), x), np.broadcast_to(x, (3, 2)))
        np.testing.assert_array_equal(apply(self, lambda v: v.broadcast_to((2, 3, 1)), x), np.broadcast_to(x, (2, 3, 1)))
        with self.assertRaises((ValueError, TypeError)):
            apply(self, lambda v: mk.broadcast_to(v, (4, 2)), x)

    def test_join_and_split(self):
        x = numbers((3, 4), np.dtype("f4"))
        np.testing.assert_array_equal(apply(self, lambda v: mk.join(v, v * 2), x), np.stack([x, x * 2], -1))
        np.testing.assert_array_equal(apply(self, lambda v: mk.join(v, 1), x), np.stack([x, np.ones_like(x)], -1))
        np.testing.assert_array_equal(apply(self, lambda v: mk.join(mk.sum(v) * 0 + 3, 4), x), [3, 4])
        y = numbers((3, 2), np.dtype("f4"))
        np.testing.assert_array_equal(apply(self, lambda v: mk.split(v)[0] - mk.split(v)[1], y), y[:, 0] - y[:, 1])
        np.testing.assert_array_equal(apply(self, lambda v: mk.split(v)[1], y[0]), y[0, 1])
        with self.assertRaisesRegex(ValueError, "length 2"):
            apply(self, lambda v: mk.split(v)[0], x)

    def test_attributes(self):
        @eas.kernel
        def k(x, out, B: eas.constexpr):
            v = mk.load(x, mk.arange(0, B)[:, None] + mk.arange(0, 3)[None, :])
            self.assertEqual((v.shape, v.ndim, v.dtype), ((B, 3), 2, mk.f16))
            w = mk.var(v)
            self.assertEqual((w.shape, w.T.shape, w.sum(1).shape, w.max(0).shape), ((B, 3), (3, B), (B,), (3,)))
            mk.store(out, mk.arange(0, B), v.sum(1))

        each(self, k, np.ones(8, np.float16), np.zeros(4, np.float16), 4, _grid=1)


# name: (NumPy, of what)
REDUCTIONS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all}
AXES = {1: (None, 0, -1, (0,)), 2: (None, 0, 1, -2, (0, 1), ()), 3: (None, 1, (0, 2), (2, 0), (-1, 1))}


def reduction(name):
    """As a function; max and min with one operand."""
    return getattr(mk, name)


class Reductions(unittest.TestCase):
    def near(self, got, want, dt, name):
        if name in ("any", "all") or dt.kind in "iu" or name in ("max", "min"):
            np.testing.assert_array_equal(got.astype(want.dtype) if want.dtype == bool else got, want)
        else:
            tolerance = {2: 1e-2, 4: 1e-5, 8: 1e-12}[dt.itemsize]
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)

    def test_axes_and_shapes(self):
        for shape in ((1,), (8,), (13,), (4, 8), (5, 3), (1, 7), (3, 2, 5)):
            x = numbers(shape, np.dtype("f4"))
            for (name, ref), axis, keep in itertools.product(REDUCTIONS.items(), AXES[len(shape)], (False, True)):
                with self.subTest(fn=name, shape=shape, axis=axis, keepdims=keep):
                    got = apply(self, lambda v: reduction(name)(v, axis=axis, keepdims=keep), x)  # noqa: B023
                    want = ref(x, axis=axis, keepdims=keep)
                    self.assertEqual(got.shape, want.shape)
                    self.near(got, want, x.dtype, name)

    def test_dtypes(self):
        for dt in FLOATS + INTS:
            x = numbers((6, 5), dt)
            for name, ref in REDUCTIONS.items():
                with self.subTest(fn=name, dtype=dt):
                    exact = x if dt.kind in "iu" else x.astype(np.float64)
                    want = ref(exact, axis=1)
                    self.near(apply(self, lambda v: reduction(name)(v, axis=1), x), want.astype(dt if want.dtype != bool else bool), dt, name)  # noqa: B023

    def test_halves_are_summed_in_f32(self):
        x = np.full(4096, 1.001, np.float16)
        self.assertEqual(apply(self, mk.sum, x), x.astype(np.float64).sum().astype(np.float16))

    def test_counts_conditions(self):
        x = numbers((4, 9), np.dtype("f4"))
        np.testing.assert_array_equal(apply(self, lambda v: mk.sum(v > 0, axis=1), x, np.int64), (x > 0).sum(1))

    def test_methods(self):
        x = numbers((4, 6), np.dtype("f4"))
        for name, ref in REDUCTIONS.items():
            self.near(apply(self, lambda v: getattr(v, name)(0), x), ref(x, axis=0), x.dtype, name)  # noqa: B023
            self.near(apply(self, lambda v: getattr(v, name)(), x), np.asarray(ref(x)), x.dtype, name)  # noqa: B023
        np.testing.assert_array_equal(apply(self, lambda v: v.argmax(1), x, np.int64), x.argmax(1))
        np.testing.assert_allclose(apply(self, lambda v: v.cumsum(1), x), x.cumsum(1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(apply(self, lambda v: v.reduce(0, lambda a, b: a + b), x), x.sum(0), rtol=1e-5, atol=1e-6)

    def test_max_of_two_stays_element_wise(self):
        x = numbers((4,), np.dtype("f4"))
        np.testing.assert_array_equal(apply(self, lambda v: mk.max(v, 0), x), np.maximum(x, 0))
        np.testing.assert_array_equal(apply(self, lambda v: mk.min(v, 0.5), x), np.minimum(x, np.float32(0.5)))
        with self.assertRaisesRegex(TypeError, "either"):
            apply(self, lambda v: mk.max(v, 0, axis=0), x)

    def test_nan(self):
        x = numbers((3, 7), np.dtype("f4"))
        x[1, 4] = np.nan
        for name in ("max", "min", "sum"):
            np.testing.assert_array_equal(np.isnan(apply(self, lambda v: reduction(name)(v, axis=1), x)), [False, True, False])  # noqa: B023

    def test_arg(self):
        x = RNG.integers(0, 4, (7, 9)).astype(np.float32)
        for name, axis, keep in itertools.product(("argmax", "argmin"), (None, 0, 1, -1), (False, True)):
            got = apply(self, lambda v: getattr(mk, name)(v, axis=axis, keepdims=keep), x, np.int64)  # noqa: B023
            np.testing.assert_array_equal(got, getattr(np, name)(x, axis=axis, keepdims=keep))
        x[2, 3] = np.nan
        self.assertEqual(apply(self, mk.argmax, x, np.int64), np.argmax(x))
        self.assertEqual(apply(self, mk.argmin, x, np.int64), np.argmin(x))

    def test_scans(self):
        for shape in ((1,), (8,), (13,), (4, 6), (2, 3, 5)):
            x = RNG.integers(1, 4, shape).astype(np.int64)
            for name, axis in itertools.product(("cumsum", "cumprod"), [None, *range(len(shape)), -1]):
                got = apply(self, lambda v: getattr(mk, name)(v, axis), x)  # noqa: B023
                np.testing.assert_array_equal(got, getattr(np, name)(x, axis))
        x = numbers((5, 33), np.dtype("f2"))
        want = x.astype(np.float64).cumsum(1)
        np.testing.assert_allclose(apply(self, lambda v: mk.cumsum(v, 1), x), want, rtol=1e-3, atol=1e-3)

    def test_reduce(self):
        x = RNG.integers(0, 50, (6, 7)).astype(np.int64)
        np.testing.assert_array_equal(apply(self, lambda v: mk.reduce(v, 0, lambda a, b: a ^ b), x), np.bitwise_xor.reduce(x, 0))
        np.testing.assert_array_equal(apply(self, lambda v: mk.reduce(v, 1, mk.maximum, keepdims=True), x), x.max(1, keepdims=True))
        np.testing.assert_array_equal(apply(self, lambda v: mk.reduce(v, None, lambda a, b: a + b), x), x.sum())
        np.testing.assert_array_equal(apply(self, lambda v: mk.reduce(v, 1, lambda a, b: mk.where(a < b, b, a)), x), x.max(1))

    def test_reduce_mistakes(self):
        def fails(a, b):
            raise KeyError("mine")

        x = np.ones(8, np.float32)
        for fn, error, text in (
            (fails, KeyError, "mine"),
            (3, TypeError, "function"),
            (lambda a, b: None, TypeError, "result"),
            (lambda a, b: mk.to_i32(a), TypeError, "dtype"),
            (lambda a: a, TypeError, "argument"),
        ):
            with self.assertRaisesRegex(error, text):
                apply(self, lambda v, fn=fn: mk.reduce(v, 0, fn), x)

    def test_mistakes(self):
        x = np.ones((2, 3), np.float32)
        for f, error, text in (
            (lambda v: mk.sum(v, axis=2), ValueError, "axis 2"),
            (lambda v: mk.sum(v, axis=(0, 0)), ValueError, "twice"),
            (lambda v: mk.sum(v, axis="x"), TypeError, "int"),
            (lambda v: mk.sum(v, axis=0, keepdims=1), TypeError, "keepdims"),
            (lambda v: mk.argmax(v, axis=(0, 1)), TypeError, "int"),
            (lambda v: mk.sum(mk.sum(v)), TypeError, "tg_sum"),
            (lambda v: mk.cumsum(v, axis=5), ValueError, "axis 5"),
            (lambda v: mk.max(3), TypeError, "block"),
        ):
            with self.assertRaisesRegex(error, text):
                apply(self, f, x)

    def test_thread_mode(self):
        @eas.kernel
        def k(x, out, B: eas.constexpr):
            t = mk.tid(0, B)
            mk.store(out, t, mk.sum(mk.load(x, t)))

        with self.assertRaisesRegex(TypeError, "mk.tg_sum, mk.simd_sum"):
            k(np.ones(4, np.float32), np.ones(4, np.float32), 4, _grid=1)

    def test_in_loops(self):
        """Rows of a matrix by blocks, with a run-time number of blocks."""

        @eas.kernel
        def k(x, out, N, B: eas.constexpr):
            row, acc = mk.program_id(0), mk.var(0.0)
            for c in mk.range(0, N, B):
                i = c + mk.arange(0, B)
                acc += mk.sum(mk.load(x, row * N + i, i < N))
            mk.store(out, row, acc)

        x = numbers((3, 50), np.dtype("f4"))
        _, out = each(self, k, x, np.zeros(3, np.float32), 50, 16, _grid=3)
        np.testing.assert_allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
