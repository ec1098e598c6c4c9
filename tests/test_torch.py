"""torch tensors as arguments: the CPU, and mps in both tiers (through the stand-in for Metal where there is
no Mac)."""

import json
import subprocess
import sys
import unittest
import warnings
from unittest import mock

import numpy as np
from support import DEVICES, backend, python

import eas
from eas import mk

try:
    import torch
except ImportError:
    torch = None
if torch:
    from torch_mps import AVAILABLE, on_mps, torch_mps
else:
    AVAILABLE = False


@eas.kernel
def add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


@eas.kernel
def scale(x, y, s, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.tid(0, BLOCK)
    mk.store(y, i, mk.load(x, i, i < N) * s, i < N)


@eas.kernel
def wild(index, x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, mk.load(index, i, i < N), i < N), i < N)


@eas.kernel
def shift(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, i, i < N), i < N)


@eas.kernel
def transpose(x, out, M, N, SM, SN, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, (i // N) * SM + (i % N) * SN, i < M * N), i < M * N)


DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"


@unittest.skipUnless(torch, "torch is not installed")
class Cpu(unittest.TestCase):
    def test_every_dtype_without_a_copy(self):
        for name in DTYPES.split():
            dtype = getattr(torch, name)
            for shape in ((), (0,), (1,), (3,), (2, 3), (1, 4, 1)):
                x = torch.ones(shape, dtype=dtype)
                y = torch.zeros(shape, dtype=dtype)
                shift(x, y, x.numel(), BLOCK=8)
                self.assertTrue(torch.equal(x, y), (name, shape))
                t = eas.tensor(x)
                self.assertEqual((t.shape, t.data_ptr() if x.numel() else 0), (tuple(x.shape), x.data_ptr() if x.numel() else 0))
                back = t.to_torch()
                self.assertEqual((back.dtype, back.shape), (x.dtype, x.shape))
                if x.numel():
                    self.assertEqual(back.data_ptr(), x.data_ptr())

    def test_on_every_device(self):
        for device in DEVICES:
            x, y = torch.arange(5.0), torch.zeros(5)
            with backend(device):
                shift(x, y, 5, BLOCK=8)
            self.assertEqual(y.tolist(), [0, 1, 2, 3, 4], device)

    def test_parameters_and_subclasses(self):
        p = torch.nn.Parameter(torch.arange(4.0))
        out = torch.zeros(4)
        with self.assertRaisesRegex(ValueError, "'x' requires grad.*eas.torch.op"):
            shift(p, out, 4, BLOCK=4)
        with torch.no_grad():
            shift(p, out, 4, BLOCK=4)
        self.assertEqual(out.tolist(), [0, 1, 2, 3])

        class Mine(torch.Tensor):
            pass

        shift(torch.ones(4).as_subclass(Mine), out, 4, BLOCK=4)
        self.assertEqual(out.tolist(), [1, 1, 1, 1])

    def test_strides(self):
        x = torch.arange(12.0).reshape(3, 4).T
        out = torch.zeros(4, 3)
        with self.assertRaisesRegex(ValueError, r"'x' must be C-contiguous; got strides \(1, 4\).*memory\(\)"):
            shift(x, out, 12, BLOCK=16)
        transpose(eas.tensor(x).memory(), out, 4, 3, *x.stride(), BLOCK=16)
        self.assertTrue(torch.equal(out, x))
        one = torch.zeros(3, 1, 5)[:, :, 2]  # odd strides where they do not matter
        shift(torch.ones(3, 1), torch.as_strided(torch.zeros(3), (3, 1), (1, 77)), 3, BLOCK=4)
        with self.assertRaises(ValueError):
            shift(torch.ones(3, 1), one, 3, BLOCK=4)

    def test_views_begin_where_they_begin(self):
        base = torch.arange(10.0)
        out = torch.zeros(4)
        shift(base[3:7], out, 4, BLOCK=4)
        self.assertEqual(out.tolist(), [3, 4, 5, 6])
        with self.assertRaises(IndexError):
            shift(base[8:], out, 4, BLOCK=4)

    def test_what_has_no_memory(self):
        from torch._subclasses import FakeTensorMode

        out = torch.zeros(4)
        with FakeTensorMode():
            fake = torch.zeros(4)
        for bad in (torch.zeros(4).to_sparse(), fake):
            with warnings.catch_warnings(), self.assertRaisesRegex(ValueError, "without plain memory.*eas.torch.op"):
                warnings.simplefilter("ignore")  # torch's own, of fake memory
                shift(bad, out, 4, BLOCK=4)
        with self.assertRaisesRegex(ValueError, "without plain memory.*eas.torch.op"):
            torch.vmap(lambda x: (shift(x, out, 4, BLOCK=4), x)[1])(torch.zeros(2, 4))
        with self.assertRaisesRegex(ValueError, "device 'meta'"):
            shift(torch.zeros(4, device="meta"), out, 4, BLOCK=4)
        with self.assertRaisesRegex(TypeError, "complex64"):
            shift(torch.zeros(4, dtype=torch.complex64), out, 4, BLOCK=4)

    def test_refused_by_kernels_that_index(self):
        """The same words where the kernel asks for an array's sizes; what was refused changes no later
        launch."""

        @eas.kernel
        def double(x, out):
            i, j = mk.program_id(0), mk.program_id(1)
            out[i, j] = x[i, j] * 2

        x, out = torch.arange(6.0).reshape(2, 3), torch.zeros(2, 3)
        for _ in range(2):
            for bad, why in (
                (x.to_sparse(), "without plain memory"),
                (torch.zeros(2, 3, requires_grad=True), "requires grad"),
                (torch.zeros(3, 2, requires_grad=True).T, "requires grad"),
                (torch._neg_view(x), "resolve_neg"),
                (torch.zeros(3, 2, device="meta").T, "device 'meta'"),
            ):
                with self.assertRaisesRegex(ValueError, why):
                    double(bad, out, _grid=(2, 3))
            for good in (x, x.T.contiguous().T):
                double(good, out.zero_(), _grid=(2, 3))
                self.assertEqual(out.tolist(), (2 * x).tolist())

    def test_what_cannot_be_shared(self):
        from torch._subclasses import FakeTensorMode

        class Wrapper(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                raise NotImplementedError

        out = torch.zeros(4)
        with FakeTensorMode():
            fake = torch.zeros(4)
        freed = torch.zeros(4)
        freed.untyped_storage().resize_(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of what is in beta
            nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(3)])
            for bad in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), nested, fake, freed, Wrapper(torch.zeros(4))):
                with self.assertRaisesRegex(ValueError, "without plain memory.*eas.torch.op"):
                    shift(bad, out, 4, BLOCK=4)
                with self.assertRaisesRegex(BufferError, "no plain memory to share|no memory behind"):
                    eas.tensor(bad)
        inside = {
            "vmap": lambda f: torch.vmap(f)(torch.zeros(2, 4)),
            "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.zeros(4)),
            "functionalize": lambda f: torch.func.functionalize(f)(torch.zeros(4)),
        }
        for name, transform in inside.items():
            with self.subTest(name), self.assertRaisesRegex(ValueError, "eas.torch.op"):
                transform(lambda x: (shift(x, out, 4, BLOCK=4), x)[1])
            with self.subTest(name), self.assertRaisesRegex(BufferError, "no plain memory to share|no memory behind"):
                transform(lambda x: (eas.from_torch(x), x)[1])
        with self.assertRaisesRegex(TypeError, "not supported"):
            eas.tensor(torch.zeros(4, dtype=torch.complex64))

    def test_memory_formats(self):
        x = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
        out = torch.zeros(24)
        with self.assertRaisesRegex(ValueError, "C-contiguous; got strides"):
            shift(x, out, 24, BLOCK=32)
        t = eas.tensor(x)
        self.assertEqual((t.shape, t.data_ptr()), ((1, 2, 3, 4), x.data_ptr()))
        self.assertEqual(t.to_torch().stride(), x.stride())
        self.assertTrue(torch.equal(t.to_torch(), x))
        shift(t.memory(), out, 24, BLOCK=32)
        self.assertTrue(torch.equal(out, x.permute(0, 2, 3, 1).flatten()))

    def test_lazily_negated(self):
        c = torch.tensor([1 + 2j]).conj().imag
        self.assertTrue(c.is_neg())
        out = torch.zeros(1)
        with self.assertRaisesRegex(ValueError, "resolve_neg"):
            shift(c, out, 1, BLOCK=1)
        with self.assertRaisesRegex(BufferError, "resolve_neg"):
            eas.from_dlpack(c)

    def test_conversions(self):
        x = torch.ones(3, requires_grad=True)
        with self.assertRaisesRegex(BufferError, "detach"):
            eas.tensor(x)
        self.assertEqual(eas.from_torch(x).data_ptr(), x.data_ptr())
        copy = eas.from_torch(x, copy=True)
        self.assertNotEqual(copy.data_ptr(), x.data_ptr())
        frozen = np.ones(3, np.float32)
        frozen.flags.writeable = False
        self.assertEqual(eas.tensor(frozen).to_torch().tolist(), [1, 1, 1])
        for device in DEVICES:
            self.assertEqual(eas.tensor([1.0, 2.0], device=device).to_torch("cpu").tolist(), [1, 2])
        with self.assertRaises(TypeError):
            eas.from_torch(np.zeros(3))
        with self.assertRaises(TypeError):
            eas.to_torch(np.zeros(3))

    def test_memory_lives_as_long_as_either(self):
        t = eas.from_torch(torch.full((1000,), 7.0))
        back = t.to_torch()
        del t
        self.assertEqual(back.sum().item(), 7000)

    def test_torchs_threads(self):
        """Launches use them, also between torch's own parallel work, from several threads at once, and not in
        a child of fork."""
        code = """
import os, threading, torch, eas
from eas import mk
@eas.kernel
def k(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, i, i < N) * 2, i < N)
n = 1 << 20
def check():
    x, y = torch.arange(float(n)), torch.zeros(n)
    for _ in range(5):
        k(x, y, n, BLOCK=1024)
        assert torch.equal(y, 2 * x)
check()
threads = [threading.Thread(target=check) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
torch.set_num_threads(1)
pid = os.fork()
if not pid:
    x = torch.ones(n)
    y = torch.empty(n)
    k(x, y, n, BLOCK=1024)
    os._exit(0 if y[0].item() == 2 and y[n - 1].item() == 2 else 1)
print(os.waitpid(pid, 0)[1])
"""
        for apart in ("0", "1"):
            self.assertEqual(python(code, env={"EAS_TORCH_THREADS": apart}).stdout, "0\n")

    def test_without_the_table_of_c_functions(self):
        code = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__
import eas
from eas import mk
@eas.kernel
def k(x, y, N, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, i, i < N) * 2, i < N)
x, y = torch.arange(4.0), torch.zeros(4)
k(x, y, 4, BLOCK=4, _grid=1)
assert y.tolist() == [0, 2, 4, 6]
t = eas.from_dlpack(x)
assert t.data_ptr() == x.data_ptr() and t.to_torch().data_ptr() == x.data_ptr()
print("fine")
"""
        self.assertEqual(python(code).stdout, "fine\n")


ODD = """
import gc, json, sys, warnings
import torch, eas
from torch._subclasses import FakeTensorMode
from eas import mk
warnings.simplefilter("ignore")  # torch's own, of what is in beta
@eas.kernel
def shift(x, y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(x, i, i < N), i < N)
out = torch.zeros(4)
said = {}
def launch(name, x, y=out, n=4):
    try:
        shift(x, y, n, BLOCK=4, _grid=1)
        said[name] = y.tolist()
    except (ValueError, TypeError) as e:
        said[name] = str(e)
def inside(name, transform, *args):
    def f(x):
        launch(name, x)
        return x.sum()
    transform(f)(*args)
launch("plain", torch.arange(4.0))
launch("parameter", torch.nn.Parameter(torch.zeros(4)))
with torch.no_grad():
    launch("parameter, not recorded", torch.nn.Parameter(torch.ones(4)))
launch("leaf", torch.zeros(4, requires_grad=True))
launch("result", torch.zeros(4, requires_grad=True) * 2)
with torch.inference_mode():
    launch("inference", torch.full((4,), 2.0))
launch("transposed", torch.zeros(2, 2).T)
launch("expanded", torch.zeros(1).expand(4))
launch("channels last", torch.zeros(1, 2, 1, 2).contiguous(memory_format=torch.channels_last))
launch("coo", torch.zeros(4).to_sparse())
for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
    blocks = {"blocksize": (1, 1)} if "bs" in str(layout) else {}
    launch(str(layout), torch.eye(2).to_sparse(layout=layout, **blocks))
launch("mkldnn", torch.eye(2).to_mkldnn())
launch("nested", torch.nested.nested_tensor([torch.ones(1), torch.ones(3)]))
launch("nested alike", torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]))
launch("jagged", torch.nested.nested_tensor([torch.ones(1), torch.ones(3)], layout=torch.jagged))
launch("quantized", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
launch("complex", torch.zeros(4, dtype=torch.complex64))
launch("float8", torch.zeros(4).to(torch.float8_e4m3fn))
launch("meta", torch.zeros(4, device="meta"))
launch("zeros without memory", torch._efficientzerotensor((4,)))
launch("functional", torch._to_functional_tensor(torch.ones(4)))
launch("negated", torch._neg_view(torch.ones(4)))
launch("negated, one", torch.ones(1, dtype=torch.complex64).conj().imag, n=1)
launch("negated, of a stride", torch.as_strided(torch.ones(4, dtype=torch.complex64).conj().imag, (4,), (1,)))
with FakeTensorMode():
    fake = torch.zeros(4)
launch("fake", fake)
freed = torch.zeros(4)
freed.untyped_storage().resize_(0)
launch("freed", freed)
guarded = torch.zeros(4)
torch._C._set_throw_on_mutable_data_ptr(guarded)
launch("guarded", guarded)
launch("made bare", torch.Tensor.__new__(torch.Tensor), n=0)
launch("empty", torch.zeros(0), torch.zeros(0), n=0)
source = torch.ones(4)
lazy = torch._lazy_clone(source)
launch("copied lazily, written", torch.full((4,), 5.0), lazy)
said["its source"] = source.tolist()
for name, transform in (("vmap", torch.vmap), ("grad", torch.func.grad), ("functionalize", torch.func.functionalize)):
    inside(name, transform, torch.ones(2, 4) if name == "vmap" else torch.ones(4))
torch.func.jvp(lambda x: (launch("jvp", x), x.sum())[1], (torch.ones(4),), (torch.ones(4),))
class Mine(torch.Tensor):
    pass
launch("subclass", torch.ones(4).as_subclass(Mine))
class Cyclic:  # its finaliser sees the tensor when the collector already took it apart
    def __init__(self):
        self.tensor, self.me = torch.ones(4), self
        self.tensor.cycle = self
    def __del__(self):
        launch("collected", self.tensor)
Cyclic()
gc.collect()
from eas.torch import probe
print(json.dumps([probe()["arguments"], said]))
"""


@unittest.skipUnless(torch, "torch is not installed")
class Ways(unittest.TestCase):
    """How an argument is read makes no difference: by torch's C functions, DLPack's table, or attributes."""

    def run_odd(self, before="", **env):
        r = python(before + ODD, env=env)
        self.assertEqual(r.stderr, "")  # no function of torch's was called that throws and says so
        return json.loads(r.stdout)

    def test_odd_tensors(self):
        way, direct = self.run_odd(EAS_TORCH_DIRECT="1")
        self.assertEqual(way, "torch's C functions")
        way, table = self.run_odd(EAS_TORCH_DIRECT="0")
        self.assertEqual(way, "DLPack's table")
        way, attributes = self.run_odd("import torch; del torch.Tensor.__dlpack_c_exchange_api__", EAS_TORCH_DIRECT="0")
        self.assertEqual(way, "attributes")
        self.assertEqual(direct, table)
        self.assertEqual(direct, attributes)
        runs = {
            "plain": [0.0, 1.0, 2.0, 3.0],
            "parameter, not recorded": [1.0] * 4,
            "inference": [2.0] * 4,
            "copied lazily, written": [5.0] * 4,
            "its source": [1.0] * 4,
            "subclass": [1.0] * 4,
            "collected": [1.0] * 4,
            "float8": [0.0] * 4,
            "empty": [],
        }
        for name, said in direct.items():
            if name in runs:
                self.assertEqual(said, runs[name], name)
            elif name != "made bare":
                self.assertIsInstance(said, str, name)

    def test_a_first_launch_inside_a_transform(self):
        """Nothing can be learned there; it is later."""
        code = """
import torch, eas
from eas import mk
from eas.torch import _direct
@eas.kernel
def fill(y, N, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    mk.store(y, i, 1.0, i < N)
out = torch.zeros(4)
asked = []
learn = _direct.learn
_direct.learn = lambda torch: asked.append(learn(torch)) or asked[-1]
def f(x):
    fill(out, 4, BLOCK=4)
    return x.sum()
torch.func.grad(f)(torch.ones(4))
for _ in range(16):
    fill(out, 4, BLOCK=4)
print(asked[-1], sum(asked), out.tolist())
"""
        self.assertEqual(python(code).stdout, "True 1 [1.0, 1.0, 1.0, 1.0]\n")

    def test_samples_are_kept_from_the_callers_modes(self):
        code = """
import torch, eas
from eas import mk
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
@eas.kernel
def fill(y, N, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    mk.store(y, i, 1.0, i < N)
seen = []
class Functions(TorchFunctionMode):
    def __torch_function__(self, f, types, args=(), kwargs=None):
        seen.append(f)
        return f(*args, **(kwargs or {}))
class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        seen.append(f)
        return f(*args, **(kwargs or {}))
out = torch.zeros(4)
with torch.device("meta"), Functions(), Operators():
    fill(out, 4, BLOCK=4)
    fill(out, 4, BLOCK=4)
print(seen, eas.torch._direct.learn(torch), out.tolist())
"""
        self.assertEqual(python(code).stdout, "[] True [1.0, 1.0, 1.0, 1.0]\n")


@unittest.skipUnless(torch and AVAILABLE, "needs torch and the stand-in for Metal")
class Mps(unittest.TestCase):
    def test_tier_a(self):
        with torch_mps("A") as s:
            a, b, c = on_mps(np.arange(9, dtype=np.float32)), on_mps(np.ones(9, np.float32)), on_mps(np.zeros(9, np.float32))
            add(a, b, c, 9, BLOCK=4)
            self.assertEqual(c.cpu().tolist(), list(range(1, 10)))
            self.assertEqual((s.synchronized, s.dispatched, s.asked), (1, 0, 3))
        with torch_mps("A", EAS_TORCH_MPS_SYNC="0") as s:
            add(a, b, c, 9, BLOCK=4)
            self.assertEqual(s.synchronized, 0)

    def test_tier_b(self):
        with torch_mps() as s:
            a, b, c = on_mps(np.arange(9, dtype=np.float32)), on_mps(np.ones(9, np.float32)), on_mps(np.zeros(9, np.float32))
            add(a, b, c, 9, BLOCK=4)
            add(c, c, b, 9, BLOCK=4)
            scale(b, c, 0.5, 9, BLOCK=32)
            scale(b, c, np.float16(0.25), 9, BLOCK=32)
            self.assertEqual((s.dispatched, s.synchronized), (4, 0))
            torch.mps.synchronize()
            self.assertEqual(b.cpu().tolist(), [2.0 * i for i in range(1, 10)])
            self.assertEqual(c.cpu().tolist(), [i / 2 for i in range(1, 10)])

    def test_every_dtype(self):
        for tier in "AB":
            for name in DTYPES.split():
                if name == "float64":
                    continue
                x, y = on_mps(torch.ones(5, dtype=getattr(torch, name))), on_mps(torch.zeros(5, dtype=getattr(torch, name)))
                with torch_mps(tier):
                    shift(x, y, 5, BLOCK=8)
                self.assertEqual(y.cpu().tolist(), [1] * 5, (tier, name))

    def test_2d_grids(self):
        @eas.kernel
        def where(out, H, W, BLOCK: eas.constexpr):
            x, y = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK), mk.program_id(1)
            mk.store(out, y * W + x, mk.cast(y * 100 + x, mk.i32), x < W)

        out = on_mps(np.zeros((3, 5), np.int32))
        with torch_mps():
            where(out, 3, 5, BLOCK=2)
        np.testing.assert_array_equal(out.memory.numpy(), np.arange(3)[:, None] * 100 + np.arange(5))

    def test_overlap_takes_another_text(self):
        x = on_mps(np.arange(10, dtype=np.float32))
        with torch_mps() as s:
            shift(x.part(0, 9), x.part(1, 10), 9, BLOCK=16)
            self.assertEqual(s.dispatched, 1)
        self.assertEqual(x.cpu().tolist(), [0, *range(9)])

    def test_what_must_report_is_of_tier_a(self):
        index, x, y = on_mps(np.array([2, 1, 0], np.int32)), on_mps(np.arange(3, dtype=np.float32)), on_mps(np.zeros(3, np.float32))
        with torch_mps() as s:
            wild(index, x, y, 3, BLOCK=4)
            self.assertEqual((s.dispatched, s.synchronized), (0, 1))
        self.assertEqual(y.cpu().tolist(), [2, 1, 0])
        with torch_mps(), self.assertRaises(IndexError):
            wild(on_mps(np.array([2, 9, 0], np.int32)), x, y, 3, BLOCK=4)
        host = np.zeros(3, np.float32)
        with torch_mps() as s:
            shift(x, host, 3, BLOCK=4)  # an array of the host among the arguments
            self.assertEqual(s.dispatched, 0)
        self.assertEqual(host.tolist(), [0, 1, 2])

    def test_nothing_to_do(self):
        x = on_mps(np.zeros(0, np.float32))
        with torch_mps() as s:
            shift(x, x, 0, BLOCK=4)
            self.assertEqual(s.dispatched, 0)

    def test_errors(self):
        x = on_mps(np.zeros(4, np.float32))
        with torch_mps(), self.assertRaisesRegex(TypeError, "double"):
            shift(on_mps(torch.zeros(4, dtype=torch.float64)), on_mps(torch.zeros(4, dtype=torch.float64)), 4, BLOCK=4)
        with torch_mps("A"), mock.patch.object(type(x), "__dlpack__", side_effect=BufferError("not today")):
            with self.assertRaisesRegex(RuntimeError, "not today.*copy it: eas.from_torch"):
                shift(x, x, 4, BLOCK=4)
        with torch_mps("C"), self.assertRaisesRegex(ValueError, "EAS_TORCH_TIER"):
            shift(x, x, 4, BLOCK=4)

    def test_conversions(self):
        x = on_mps(np.arange(4, dtype=np.float32))
        with torch_mps("A") as s:
            t = eas.from_torch(x)
            self.assertEqual((t.device, s.synchronized), ("mps", 1))
            t[0] = 9.0
            self.assertEqual(x.cpu()[0].item(), 9)
            copy = eas.from_torch(x, copy=True)
            copy[1] = 9.0
            self.assertEqual((copy.device, x.cpu()[1].item()), ("mps", 1))
            self.assertEqual(eas.from_torch(x, device="cpu").device, "cpu")

    def test_too_old(self):
        from eas.torch import _tiers

        with torch_mps(""), mock.patch.object(torch, "__version__", "2.6.1"):
            self.assertEqual(_tiers.tier()[0], "A")
            self.assertIn("2.6.1 has no torch.mps.compile_shader", _tiers.tier()[1])
        with torch_mps("B"), mock.patch.object(torch, "__version__", "2.6.1"), self.assertRaisesRegex(RuntimeError, "it came with 2.7"):
            _tiers.tier()


class Probe(unittest.TestCase):
    @unittest.skipUnless(torch, "torch is not installed")
    def test_prints_what_there_is(self):
        r = subprocess.run([sys.executable, "-m", "eas.torch"], capture_output=True, text=True, check=True)
        self.assertIn(torch.__version__, r.stdout)
        self.assertIn("tier of mps launches", r.stdout)
        facts = json.loads(subprocess.run([sys.executable, "-m", "eas.torch", "--json"], capture_output=True, text=True, check=True).stdout)
        self.assertIn(facts["tier"], ("A", "B"))
        self.assertEqual(facts["arguments"], "torch's C functions")

    def test_options(self):
        def run(*args):
            r = subprocess.run([sys.executable, "-m", "eas.torch", *args], capture_output=True, text=True)
            return r.returncode, r.stdout + r.stderr

        code, text = run("--help")
        self.assertEqual(code, 0)
        self.assertIn("--json", text)
        self.assertEqual(run("--nosuch")[0], 2)

    def test_without_torch(self):
        code = """
import sys
sys.modules["torch"] = None  # an import of it fails
import numpy as np, eas
from eas import mk
@eas.kernel
def k(x, N, BLOCK: eas.constexpr):
    i = mk.arange(0, BLOCK)
    mk.store(x, i, mk.load(x, i, i < N) + 1, i < N)
x = np.zeros(4, np.float32)
k(x, 4, BLOCK=4, _grid=1)
assert x.tolist() == [1] * 4 and eas.tensor(x).tolist() == [1] * 4
import eas.torch
for f in (lambda: eas.torch.op, lambda: eas.to_torch(eas.tensor(x)), lambda: eas.from_torch(x), lambda: eas.tensor(x).to_torch(), eas.torch.tier):
    try:
        f()
    except RuntimeError as e:
        assert "torch is not installed" in str(e), e
    else:
        raise AssertionError("no error")
from eas.torch.__main__ import main
assert main([]) == 1
"""
        self.assertIn("torch is not installed", python(code).stderr)


if __name__ == "__main__":
    unittest.main()
