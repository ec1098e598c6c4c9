"""Derivatives of kernels: reverse against forward mode, and both against differences in f64."""

import math
import types

import numpy as np
import pytest
from support import DEVICES, backend, compile_log

import eas
from eas import _eas, _grad, mk
from eas.ir import IRModule
from examples import attention, dropout, layernorm, matmul, matmul_tiled, nbody, prefix_sum, saxpy, softmax, stencil

ROLES = ("cotangent", "gradient", "both", "tangent", "result_tangent")


def wide(ck):
    """The kernel in f64, so that differences mean something."""
    return _eas.compile_ir(IRModule.parse(ck.ir.text(lines=True).replace("bf16", "f64").replace("f16", "f64").replace("f32", "f64")))


def launch(d, given, arrays, grid):
    wants = [p for p in d.params if p.role in ROLES]
    _grad._Launch(types.SimpleNamespace(__name__=d.primal.name), d, given, {} if grid is None else {"_grid": grid}, wants, arrays).run()


def copies(args):
    return {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in args.items()}


class Case:
    """One kernel with arguments, in f64."""

    def __init__(self, ck, args, wrt, of, grid=None, **options):
        self.ck, self.args, self.wrt, self.of, self.grid = ck, args, wrt, of, grid
        self.rng = np.random.default_rng(3)
        self.ct = {n: self.rng.standard_normal(args[n].shape) for n in of}
        self.t = {n: self.rng.standard_normal(args[n].shape) if isinstance(args[n], np.ndarray) else float(self.rng.standard_normal()) for n in wrt}
        self.options = options

    def reverse(self):
        d = _grad.Derivative(self.ck, self.wrt, self.of, False, self.options.get("deterministic", False), self.options.get("max_trips"))
        arrays = {f"d_{n}": ct.copy() for n, ct in self.ct.items()}
        for n in self.wrt:
            arrays.setdefault(f"d_{n}", np.zeros_like(self.args[n]) if isinstance(self.args[n], np.ndarray) else np.zeros(1))
        launch(d, copies(self.args), arrays, self.grid)
        return {n: arrays[f"d_{n}"] for n in self.wrt}

    def forward(self):
        d = _grad.Derivative(self.ck, self.wrt, self.of, True, False, None)
        arrays = {f"t_{n}": t.copy() if isinstance(t, np.ndarray) else t for n, t in self.t.items()}
        for n in self.of:
            arrays.setdefault(f"t_{n}", np.zeros_like(self.args[n]))
        launch(d, copies(self.args), arrays, self.grid)
        return {n: arrays[f"t_{n}"] for n in self.of}

    def moved(self, h):
        a = copies({n: x + h * self.t[n] if n in self.t else x for n, x in self.args.items()})
        _eas.run(self.ck, a, None, grid=self.grid)
        return a

    def check(self, h=1e-6, tolerance=1e-5):
        back = sum(float((g * self.t[n]).sum()) for n, g in self.reverse().items())
        there = sum(float((t * self.ct[n]).sum()) for n, t in self.forward().items())
        up, down = self.moved(h), self.moved(-h)
        slope = sum(float(((up[n] - down[n]) / (2 * h) * self.ct[n]).sum()) for n in self.of)
        assert back == pytest.approx(there, rel=1e-9, abs=1e-9)
        assert there == pytest.approx(slope, rel=tolerance, abs=tolerance)


def case(k, args, wrt, of, meta=None, grid=None, **options):
    narrow = {n: x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x for n, x in args.items()}
    return Case(wide(k.compile(**narrow, **(meta or {}))), args, wrt, of, grid, **options)


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


# ---- every example ----

ROWS, BODIES, HEADS, SQUARE = normal(13, 70), [normal(50 + i)[:50].copy() for i in range(4)], normal(3, 2, 64, 16), normal(64, 64)
EXAMPLES = {
    "layernorm": lambda: case(
        layernorm.layernorm,
        dict(x=ROWS, weight=normal(70), bias=normal(70), out=0 * ROWS, mean=np.zeros(13), rstd=np.zeros(13), N=70, eps=1e-5),
        ["x", "weight", "bias", "eps"],
        ["out", "mean", "rstd"],
        dict(COLS=128),
        13,
    ),
    "layernorm_dx": lambda: case(
        layernorm.layernorm_dx,
        dict(x=ROWS, weight=normal(70), grad=ROWS * 2, mean=normal(13), rstd=normal(13), dx=0 * ROWS, N=70),
        ["x", "weight", "grad", "mean", "rstd"],
        ["dx"],
        dict(COLS=128),
        13,
    ),
    "band_sums": lambda: case(
        layernorm.band_sums,
        dict(x=ROWS, grad=ROWS**2, mean=normal(13), rstd=normal(13), dweights=np.zeros((4, 70)), dbiases=np.zeros((4, 70)), ROWS=13, N=70),
        ["x", "grad", "mean", "rstd"],
        ["dweights", "dbiases"],
        dict(BAND=4, BLOCK=32),
        (3, 4),
    ),
    "softmax": lambda: case(softmax.softmax, dict(x=ROWS, out=0 * ROWS, N=70), ["x"], ["out"], dict(COLS=128), 13),
    "nbody": lambda: case(
        nbody.pull,
        dict(zip(("x", "y", "z", "m"), BODIES)) | dict(ax=np.zeros(50), ay=np.zeros(50), az=np.zeros(50), N=50),
        ["x", "y", "z", "m"],
        ["ax", "ay", "az"],
        dict(BLOCK=32),
    ),
    "attention": lambda: case(
        attention.attention,
        dict(q=HEADS[0], k=HEADS[1], v=HEADS[2], out=0 * HEADS[0], S=64, scale=math.log2(math.e) / 4),
        ["q", "k", "v", "scale"],
        ["out"],
        dict(ROWS=32, COLS=32, D=16),
        (2, 2),
    ),
    "stencil": lambda: case(
        stencil.step, dict(zip(stencil.step.runtime_params, (normal(30, 37), np.zeros((30, 37)), 30, 37, 0.2))), ["u"], ["out"], dict(TH=4, TW=16), (3, 8)
    ),
    "dropout": lambda: case(dropout.dropout, dict(x=normal(910), out=np.zeros(910), p=0.25, seed=3, N=910), ["x"], ["out"], dict(BLOCK=128)),
    "matmul_plain": lambda: case(
        matmul.plain, dict(a=SQUARE, b=SQUARE.T.copy(), c=0 * SQUARE, M=64, N=64, K=64), ["a", "b"], ["c"], dict(BLOCK=32), 128
    ),
    "matmul_blocks": lambda: case(
        matmul.blocks, dict(a=SQUARE, b=SQUARE.T.copy(), c=0 * SQUARE, N=64, K=64), ["a", "b"], ["c"], dict(BM=32, BN=32, BK=16), (2, 2)
    ),
    "matmul_fused": lambda: case(
        matmul.fused,
        dict(a=SQUARE, b=SQUARE.T.copy(), bias=normal(64), c=0 * SQUARE, N=64, K=64),
        ["a", "b", "bias"],
        ["c"],
        dict(BM=32, BN=32, BK=16),
        (2, 2),
    ),
    "matmul_tiled": lambda: case(
        matmul_tiled.matmul_tiled,
        dict(a=SQUARE, b=SQUARE.T.copy(), c=0 * SQUARE, M=64, N=64, K=64),
        ["a", "b"],
        ["c"],
        dict(BM=32, BN=32, BK=16, RY=4, RX=4),
        (2, 2),
    ),
    "prefix_sum": lambda: case(
        prefix_sum.scan_blocks, dict(x=normal(300), out=np.zeros(300), totals=np.zeros(5), N=300), ["x"], ["out", "totals"], dict(BLOCK=64)
    ),
    "add_before": lambda: case(
        prefix_sum.add_before, dict(out=normal(300), totals=normal(5), N=300), ["out", "totals"], ["out"], dict(BLOCK=64)
    ),
    "saxpy": lambda: case(saxpy.saxpy, dict(x=normal(300), y=normal(300), alpha=1.5, N=300), ["x", "y", "alpha"], ["y"], dict(BLOCK=64)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_derivatives_of_every_example_agree_with_differences(name):
    EXAMPLES[name]().check()


def test_matrices_of_simdgroups():
    a, b = (normal(32, 32).astype(np.float32) for _ in range(2))
    ct, da, db = normal(32, 32).astype(np.float32), np.zeros_like(a), np.zeros_like(b)
    eas.grad_kernel(matmul.simdgroup)(a, b, np.zeros_like(a), 32, 32, ct, da, db, _grid=(4, 4))
    np.testing.assert_allclose(da, ct @ b.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db, a.T @ ct, rtol=1e-4, atol=1e-4)


# ---- kernels of their own ----


@eas.kernel
def rows_sum(x, w, y, N, COLS: eas.constexpr):
    r, c = mk.program_id(0), mk.arange(0, COLS)
    inside = c < N
    mk.store(y, r, mk.sum(mk.load(x, r * N + c, inside) * mk.load(w, c, inside), axis=0))


@eas.kernel
def power(x, y, N, T, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.var(mk.load(x, i, i < N))
    for _ in mk.range(0, T):
        v.set(mk.sin(v * 1.5) + v)
    mk.store(y, i, v, i < N)


@eas.kernel
def newton(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    a = mk.load(x, i, i < N, 1.0)
    r, n = mk.var(a * 0.5 + 0.5), mk.var(0)
    with mk.while_(lambda: n < 3 + mk.to_i64(mk.max(a, axis=0))):
        r.set(0.5 * (r + a / r))
        n += 1
    mk.store(y, i, r, i < N)


@eas.kernel
def branch(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, i, i < N)
    r = mk.var(v)
    with mk.if_(mk.sum(v, axis=0) > 0.0):
        r.set(v * v)
    with mk.else_():
        r.set(mk.exp(v) * 3.0)
    mk.store(y, i, r, i < N)


@eas.kernel
def scans(x, y, z, w, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, i, i < N)
    mk.store(y, i, mk.cumprod(v, axis=0), i < N)
    mk.store(z, i, mk.cumsum(v * v, axis=0), i < N)
    mk.store(w, mk.program_id(0), mk.prod(v, axis=0) + mk.max(v, axis=0))


@eas.kernel
def overwritten(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, i, i < N)
    mk.store(y, i, v * 2.0, i < N)
    mk.store(y, i, v * v, (i < N) & (i % 3 == 0))  # the last one counts


@eas.kernel
def scatter(x, index, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, mk.load(index, i, i < N), mk.load(x, i, i < N) ** 2.0, i < N)


@eas.kernel
def gather_add(x, index, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    j = mk.load(index, i, i < N)
    mk.atomic_add(y, j // 2, mk.sin(mk.load(x, j, i < N)), i < N)


@eas.kernel
def group_norm(x, y, N, BLOCK: eas.constexpr):
    t, r = mk.tid(0, BLOCK), mk.program_id(0)
    total = mk.var(0.0)
    for c in mk.range(t, N, BLOCK):
        v = mk.load(x, r * N + c)
        total += v * v
    norm = mk.rsqrt(mk.tg_sum(total.value) + 1.0)
    for c in mk.range(t, N, BLOCK):
        mk.store(y, r * N + c, mk.load(x, r * N + c) * norm)


CASES = {
    "rows_sum": lambda: case(rows_sum, dict(x=ROWS, w=normal(70), y=np.zeros(13), N=70), ["x", "w"], ["y"], dict(COLS=128), 13),
    "deterministic": lambda: case(
        rows_sum, dict(x=ROWS, w=normal(70), y=np.zeros(13), N=70), ["x", "w"], ["y"], dict(COLS=128), 13, deterministic=True
    ),
    "loop": lambda: case(power, dict(x=normal(100), y=np.zeros(100), N=100, T=5), ["x"], ["y"], dict(BLOCK=32)),
    "no_trips": lambda: case(power, dict(x=normal(100), y=np.zeros(100), N=100, T=0), ["x"], ["y"], dict(BLOCK=32)),
    "while": lambda: case(newton, dict(x=normal(100) ** 2 + 0.5, y=np.zeros(100), N=100), ["x"], ["y"], dict(BLOCK=32), max_trips=20),
    "if": lambda: case(branch, dict(x=normal(100), y=np.zeros(100), N=100), ["x"], ["y"], dict(BLOCK=32)),
    "scans": lambda: case(
        scans, dict(x=normal(96), y=np.zeros(96), z=np.zeros(96), w=np.zeros(3), N=96), ["x"], ["y", "z", "w"], dict(BLOCK=32)
    ),
    "overwritten": lambda: case(overwritten, dict(x=normal(100), y=np.zeros(100), N=100), ["x"], ["y"], dict(BLOCK=32)),
    "scatter_that_meets": lambda: case(
        scatter, dict(x=normal(32), index=np.arange(32) % 7, y=np.zeros(32), N=32), ["x"], ["y"], dict(BLOCK=32)
    ),
    "group": lambda: case(group_norm, dict(x=ROWS, y=0 * ROWS, N=70), ["x"], ["y"], dict(BLOCK=32), 13),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_agree_with_differences(name):
    CASES[name]().check()


@eas.kernel
def walk(x, y, LO, HI, STEP: eas.constexpr, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    v = mk.var(mk.zeros(BLOCK))
    start = mk.program_id(0) * 8 + LO
    for r in mk.range(start, HI, STEP):
        v.set(mk.sin(v * 1.5) + mk.load(x, r + i))
    mk.store(y, mk.program_id(0) * BLOCK + i, v)


@pytest.mark.parametrize(
    "bounds", ((0, 101, 7), (3, 50, 8), (0, 64, 8), (50, -1, -8), (48, -1, -16), (47, 2, -1), (5, 5, 1), (90, 3, 2), (3, 90, -2))
)
def test_loops_go_back_over_the_same_numbers(bounds):
    lo, hi, step = bounds
    case(walk, dict(x=normal(140), y=np.zeros(96), LO=lo, HI=hi), ["x"], ["y"], dict(STEP=step, BLOCK=32), 3).check()


def test_loops_over_tiles_are_proved_and_tapes_are_rows():
    q, k, v, out, ct, dq, dk, dv = np.random.default_rng(0).standard_normal((8, 1, 128, 64), dtype=np.float32)
    meta = dict(ROWS=64, COLS=64, D=64)
    grad = eas.grad_kernel(eas.kernel(attention.attention.fn), wrt=["q", "k", "v"], of=["out"])
    with backend("cpu"), compile_log() as lines:
        grad(q, k, v, out, 128, 0.2, ct, dq, dk, dv, _grid=(2, 1), **meta)
    (line,) = [line for line in lines if "attention_grad" in line]
    assert "checked" not in line, line
    assert "scatter" not in grad.derivative(q, k, v, out, 128, 0.2, **meta).ir.emit("asm")


def test_gathers_and_atomic_sums():
    n, index = 100, np.random.default_rng(0).integers(0, 20, 100)
    x, y, ct, dx = normal(20).astype(np.float32), np.zeros(10, np.float32), normal(10).astype(np.float32), np.zeros(20, np.float32)
    eas.grad_kernel(gather_add, wrt="x", of="y")(x, index, y, n, ct, dx, BLOCK=32)
    np.testing.assert_allclose(dx, np.bincount(index, minlength=20) * np.cos(x) * ct[np.arange(20) // 2], rtol=1e-4, atol=1e-5)


def test_a_product_with_zeros_has_a_gradient():
    x = np.array([0.0, 2.0, 3.0, 0.5, 1.0, -1.0, 2.0, 1.5])
    c = Case(wide(scans.compile(*(np.zeros(8, np.float32),) * 4, 8, BLOCK=8)), dict(x=x, y=0 * x, z=0 * x, w=np.zeros(1), N=8), ["x"], ["y", "z", "w"])
    c.check()


def test_masked_lanes_do_not_spoil_sums():
    @eas.kernel
    def ratio(x, s, y, N, BLOCK: eas.constexpr):
        i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
        mk.store(y, i, mk.load(s, 0) / mk.load(x, i, i < N), i < N)  # lanes beyond N divide by 0

    x, ds, dx = np.full(5, 2.0), np.zeros(1), np.zeros(5)
    eas.grad_kernel(ratio, ["s", "x"], ["y"])(x, np.ones(1), np.zeros(5), 5, np.ones(5), ds, dx, BLOCK=8)
    np.testing.assert_allclose(ds, [2.5])
    np.testing.assert_allclose(dx, np.full(5, -0.25))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_float_dtype(dtype):
    x, w, ct = (normal(*s).astype(dtype) for s in ((7, 50), (50,), (7,)))
    dx, dw = np.zeros_like(x), np.ones_like(w)
    eas.grad_kernel(rows_sum)(x, w, np.zeros(7, dtype), 50, ct, dx, dw, COLS=64, _grid=7)
    tolerance = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(dx, ct[:, None].astype(float) * w, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(dw, 1 + (ct[:, None].astype(float) * x).sum(0), rtol=tolerance, atol=tolerance)  # it is added to


def test_the_deterministic_sum_has_one_order():
    x, w, ct = normal(64, 100).astype(np.float32), normal(100).astype(np.float32), normal(64).astype(np.float32)
    g = eas.grad_kernel(rows_sum, wrt="w", of="y", deterministic=True)
    runs = []
    for _ in range(5):
        dw = np.zeros(100, np.float32)
        g(x, w, np.zeros(64, np.float32), 100, ct, dw, COLS=128, _grid=64)
        runs.append(dw.tobytes())
    assert len(set(runs)) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_on_every_device(device):
    x, w, ct = normal(5, 40).astype(np.float32), normal(40).astype(np.float32), normal(5).astype(np.float32)
    args = [eas.tensor(a, device=device) for a in (x, w, np.zeros(5, np.float32))]
    dx, dw = eas.zeros((5, 40), device=device, dtype="float32"), eas.zeros(40, device=device, dtype="float32")
    eas.grad_kernel(rows_sum)(*args, 40, eas.tensor(ct, device=device), dx, dw, COLS=64, _grid=5)
    np.testing.assert_allclose(dx.to("cpu").numpy(), ct[:, None] * w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw.to("cpu").numpy(), (ct[:, None] * x).sum(0), rtol=1e-5, atol=1e-5)


# ---- plain additions where they are safe ----


def count(g, op, *args, **meta):
    return sum(i.op == op for i in g.derivative(*args, **meta).ir)


def test_atomics_only_where_programs_may_meet():
    f = np.zeros
    x, w, y = f((7, 50)), f(50), f(7)
    assert count(eas.grad_kernel(rows_sum, "x"), "atomic_add", x, w, y, 50, COLS=64) == 0  # a row is one program's
    assert count(eas.grad_kernel(rows_sum, "w"), "atomic_add", x, w, y, 50, COLS=64) == 1  # all programs read w
    assert count(eas.grad_kernel(softmax.softmax), "atomic_add", x, x, 50, COLS=64) == 0
    assert count(eas.grad_kernel(power), "atomic_add", w, w, 50, 3, BLOCK=32) == 0


def test_sums_keep_no_tape():
    d = eas.grad_kernel(nbody.pull).derivative(*[np.zeros(50, np.float32)] * 7, 50, BLOCK=32)
    assert not [p for p in d.params if p.role == "tape"]
    d = eas.grad_kernel(power).derivative(np.zeros(50), np.zeros(50), 50, 3, BLOCK=32)
    assert len([p for p in d.params if p.role == "tape"]) == 1


# ---- what cannot be done ----


def refused(k, *args, match, error=ValueError, wrt=None, of=None, **meta):
    with pytest.raises(error, match=match):
        eas.grad_kernel(k, wrt, of).derivative(*args, **meta)


def test_what_has_no_derivative_is_refused_with_its_line():
    @eas.kernel
    def bits(x, y, BLOCK: eas.constexpr):
        i = mk.arange(0, BLOCK)
        mk.store(y, i, mk.bitcast(mk.bitcast(mk.load(x, i), mk.i32), mk.f32))

    @eas.kernel
    def read_back(x, y, BLOCK: eas.constexpr):
        i = mk.arange(0, BLOCK)
        mk.store(y, i, mk.load(x, i) * 2.0)
        mk.store(y, i, mk.load(y, BLOCK - 1 - i))

    @eas.kernel
    def all_store(x, y, BLOCK: eas.constexpr):
        v = mk.load(x, mk.program_id(0) * BLOCK + mk.arange(0, BLOCK))
        mk.store(y, 0, mk.sum(v, axis=0))

    @eas.kernel
    def highest(x, y, BLOCK: eas.constexpr):
        i = mk.arange(0, BLOCK)
        mk.atomic_max(y, i * 0, mk.load(x, i))

    f = np.zeros(8, np.float32)
    refused(bits, f, f, match=r"test_grad_kernels.py:\d+: bitcast has no derivative", BLOCK=8)
    refused(read_back, f, f, match=r'test_grad_kernels.py:\d+: "y" is read here after the kernel wrote to it', wrt="x", BLOCK=8)
    refused(all_store, f, f, match=r'test_grad_kernels.py:\d+: all programs along axis 0 store to the same elements of "y"', BLOCK=8)
    refused(highest, f, f, match=r"test_grad_kernels.py:\d+: atomic_max has no derivative", wrt="x", BLOCK=8)
    refused(newton, f, f, 8, match=r"test_grad_kernels.py:\d+: how often this loop goes round is not known", BLOCK=8)


def test_bad_requests_name_what_is_wrong():
    f, i = np.zeros(8, np.float32), np.zeros(8, np.int32)
    refused(power, f, f, 8, 2, match="`wrt` names 'q', which is no run-time parameter of the kernel: x, y, N, T", wrt="q", BLOCK=8)
    refused(power, f, f, 8, 2, match='`of` names "x", which the kernel does not write to', of="x", BLOCK=8)
    refused(scatter, f, i, f, 8, match='"index" is i32; only floats have derivatives', error=TypeError, wrt="index", BLOCK=8)
    refused(rows_sum, f, f, f, 8, match="names a parameter twice", wrt=["x", "x"], COLS=8)
    g = eas.grad_kernel(power)
    with pytest.raises(TypeError, match="is missing its argument 'd_x'"):
        g(f, f, 8, 2, f, BLOCK=8)
    with pytest.raises(ValueError, match="'d_x' has 4 elements, and 'x' has 8"):
        g(f, f, 8, 2, f, f[:4].copy(), BLOCK=8)
    with pytest.raises(ValueError, match=r"has 3 programs along axis 1, which the kernel does not ask for"):
        g(f, f, 8, 2, f, f.copy(), BLOCK=8, _grid=(1, 3))
    with pytest.raises(TypeError, match="takes a kernel"):
        eas.grad_kernel(lambda x: x)


def test_more_trips_than_were_said_give_nan():
    x, dx = np.full(8, 9.0, np.float32), np.zeros(8, np.float32)
    eas.grad_kernel(newton, max_trips=2)(x, np.zeros(8, np.float32), 8, np.ones(8, np.float32), dx, BLOCK=8)
    assert np.isnan(dx).all()


def test_arguments_stay_as_they_are():
    x, y, ct, dx = normal(100), normal(100), normal(100), np.zeros(100)
    before = [a.copy() for a in (x, y, ct)]
    eas.grad_kernel(overwritten)(x, y, 100, ct, dx, BLOCK=32)
    for a, b in zip((x, y, ct), before):
        np.testing.assert_array_equal(a, b)


# ---- as part of something larger ----


def tensors(*shapes):
    import eager

    return [eager.constant(normal(*s)) for s in shapes]


@pytest.mark.parametrize("deterministic", [False, True])
def test_from_kernel_has_both_rules(deterministic):
    import eager

    op = eager.from_kernel(rows_sum, {"y": lambda x: (x.shape[:1], x.dtype)}, grid=lambda x: x.shape[0], deterministic=deterministic)
    x, w, ct, tx = tensors((7, 50), (50,), (7,), (7, 50))
    y = op(x, w, N=50, COLS=64)
    gx, gw = op.vjp_rule((x, w), (ct,), (y,), N=50, COLS=64)
    np.testing.assert_allclose(gx.numpy(), ct.numpy()[:, None] * w.numpy())
    np.testing.assert_allclose(gw.numpy(), (ct.numpy()[:, None] * x.numpy()).sum(0))
    (ty,) = op.jvp_rule((x, w), (tx, None), (y,), N=50, COLS=64)
    np.testing.assert_allclose(ty.numpy(), (tx.numpy() * w.numpy()).sum(1))
    gx, gw = op.vjp_rule((x, w), (None,), (y,), N=50, COLS=64)
    assert gx is None and gw is None


def test_from_kernel_in_vmap_and_compile():
    import eager

    op = eager.from_kernel(rows_sum, {"y": lambda x: (x.shape[:1], x.dtype)}, grid=lambda x: x.shape[0])
    xs, w, cts = tensors((3, 7, 50), (50,), (3, 7))

    def pull(x, ct):
        return op.vjp_rule((x, w), (ct,), (op(x, w, N=50, COLS=64),), N=50, COLS=64)

    gx, gw = eager.vmap(pull)(xs, cts)
    np.testing.assert_allclose(gx.numpy(), cts.numpy()[:, :, None] * w.numpy())
    np.testing.assert_allclose(gw.numpy(), (cts.numpy()[:, :, None] * xs.numpy()).sum(1))
    gx, gw = eager.compile(pull)(xs[0], cts[0])
    np.testing.assert_allclose(gw.numpy(), (cts.numpy()[0][:, None] * xs.numpy()[0]).sum(0))


def test_from_kernel_with_stores_that_overwrite_leaves_the_cotangent_alone():
    import eager

    op = eager.from_kernel(overwritten, {"y": lambda x: x})
    x, ct = tensors((100,), (100,))
    before = ct.numpy().copy()
    (gx,) = op.vjp_rule((x,), (ct,), (op(x, N=100, BLOCK=32),), N=100, BLOCK=32)
    np.testing.assert_allclose(gx.numpy(), before * np.where(np.arange(100) % 3 == 0, 2 * x.numpy(), 2))
    np.testing.assert_array_equal(ct.numpy(), before)


def test_from_kernel_says_what_has_no_rule():
    import eager

    op = eager.from_kernel(rows_sum, {"y": lambda x: (x.shape[:1], x.dtype)}, grid=lambda x: x.shape[0], differentiate=False)
    x, w = tensors((7, 50), (50,))
    with pytest.raises(NotImplementedError, match="rows_sum has no vjp rule"):
        op.vjp_rule((x, w), (None,), (None,), N=50, COLS=64)


def test_calls_with_other_grids_are_other_programs():
    import eager

    @eas.kernel
    def count_programs(y, z, BLOCK: eas.constexpr):
        mk.store(z, mk.arange(0, BLOCK), mk.load(y, mk.arange(0, BLOCK)) + mk.to_f32(mk.num_programs(0)))

    y = eager.constant(np.zeros(4, np.float32))
    got = [eager.from_kernel(count_programs, {"z": lambda y: y}, grid=n)(y, BLOCK=4).numpy()[0] for n in (1, 3)]
    assert got == [1, 3]


def test_torch_operators_derive_their_backward():
    torch = pytest.importorskip("torch")
    op = eas.torch.op(
        "test_grad::rows_sum",
        rows_sum,
        outputs={"y": lambda x: x.shape[:1]},
        grid=lambda x: x.shape[0],
        N=lambda x: x.shape[1],
        COLS=64,
        backward="auto",
    )
    x, w = torch.randn(7, 50, dtype=torch.float64, requires_grad=True), torch.randn(50, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, (x, w))
    (gw,) = torch.autograd.grad(op(x.detach(), w).sum(), (w,))  # x needs none
    torch.testing.assert_close(gw, x.detach().sum(0))
    with pytest.raises(ValueError, match='backward must be "auto"'):
        eas.torch.op("test_grad::bad", rows_sum, outputs="y", N=50, COLS=64, backward="always")
    with pytest.raises(TypeError, match="this is a function that launches kernels"):
        eas.torch.op("test_grad::function", lambda x, y: None, outputs="y", backward="auto")
