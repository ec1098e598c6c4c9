"""eas.torch.op: kernels as operators of torch."""

import sys
import unittest

from support import ROOT

import eas
from eas import mk

try:
    import torch
    import torch.utils.checkpoint
except ImportError:
    torch = None


@eas.kernel
def mul_kernel(x, y, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(out, i, mk.load(x, i, i < N) * mk.load(y, i, i < N), i < N)


@eas.kernel
def mul_back(x, y, grad, grad_x, grad_y, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    g = mk.load(grad, i, i < N)
    mk.store(grad_x, i, g * mk.load(y, i, i < N), i < N)
    mk.store(grad_y, i, g * mk.load(x, i, i < N), i < N)


@eas.kernel
def scale_kernel(y, x, a: float, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(y, i, mk.load(y, i, i < N) + a * mk.load(x, i, i < N), i < N)


@eas.kernel
def sums_kernel(x, total, largest, COLS: eas.constexpr):
    row = mk.program_id(0)
    v = mk.load(x, row * COLS + mk.arange(0, COLS))
    mk.store(total, row, mk.sum(v, axis=0))
    mk.store(largest, row, mk.max(v, axis=0))


def count(x):
    return x.numel()


@unittest.skipUnless(torch, "torch is not installed")
class Ops(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mul = staticmethod(eas.torch.op("eastest::mul", mul_kernel, outputs="out", backward=mul_back, N=count, BLOCK=64))
        cls.axpy = staticmethod(eas.torch.op("eastest::axpy", scale_kernel, mutates="y", N=count, BLOCK=64))
        cls.sums = staticmethod(
            eas.torch.op(
                "eastest::sums",
                sums_kernel,
                outputs={"total": lambda x: x.shape[:1], "largest": lambda x: x.new_empty(x.shape[0])},
                COLS=lambda x: x.shape[1],
                grid=lambda x: x.shape[0],
            )
        )

    def test_schema(self):
        self.assertEqual(str(self.mul._schema), "eastest::mul(Tensor x, Tensor y) -> Tensor")
        self.assertEqual(str(self.axpy._schema), "eastest::axpy(Tensor(a0!) y, Tensor x, float a) -> ()")
        self.assertEqual(str(self.sums._schema), "eastest::sums(Tensor x) -> (Tensor, Tensor)")

    def test_opcheck(self):
        x, y = torch.randn(100, requires_grad=True), torch.randn(100, requires_grad=True)
        for op, args in (
            (self.mul, (x, y)), (self.mul, (torch.randn(3, 5), torch.randn(3, 5))),
            (self.axpy, (torch.randn(70), torch.randn(70), 2.5)), (self.sums, (torch.randn(4, 8),)),
        ):  # fmt: skip
            self.assertEqual(set(torch.library.opcheck(op, args).values()), {"SUCCESS"})

    def test_values(self):
        for shape in ((), (0,), (1,), (257,), (3, 4, 5)):
            x, y = torch.randn(shape), torch.randn(shape)
            torch.testing.assert_close(self.mul(x, y), x * y, rtol=0, atol=0)
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32):
            x, y = torch.arange(9).to(dtype), torch.arange(9).to(dtype)
            torch.testing.assert_close(self.mul(x, y), x * y)
        total, largest = self.sums(torch.arange(12.0).reshape(3, 4))
        self.assertEqual((total.tolist(), largest.tolist()), ([6, 22, 38], [3, 7, 11]))

    def test_strided_arguments_are_copied_unless_told_otherwise(self):
        x = torch.randn(6, 4).T
        torch.testing.assert_close(self.mul(x, x), x * x)
        strict = eas.torch.op("eastest::strict", mul_kernel, outputs="out", N=count, BLOCK=64, contiguous=False)
        with self.assertRaisesRegex(ValueError, "'x' must be C-contiguous"):
            strict(x, x)
        with self.assertRaisesRegex(ValueError, "'y' must be C-contiguous"):
            self.axpy(torch.zeros(4, 6).T, torch.zeros(6, 4), 1.0)

    def test_mutating(self):
        y, x = torch.ones(70), torch.arange(70.0)
        before = y._version
        self.assertIsNone(self.axpy(y, x, 2.0))
        torch.testing.assert_close(y, 1 + 2 * x)
        self.assertGreater(y._version, before)
        with torch.inference_mode():
            z = torch.ones(70)
            self.axpy(z, x, 1.0)
            torch.testing.assert_close(z, 1 + x)

    def test_a_mutation_spoils_what_autograd_saved(self):
        x, y = torch.randn(5, requires_grad=True), torch.randn(5)
        out = (x * y).sum()
        self.axpy(y, torch.ones(5), 1.0)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace"):
            out.backward()

    def test_gradients(self):
        x, y = (torch.randn(3, 7, dtype=torch.float64, requires_grad=True) for _ in range(2))
        self.assertTrue(torch.autograd.gradcheck(self.mul, (x, y)))
        self.mul(x, y).sum().backward()  # an expanded gradient: not contiguous
        torch.testing.assert_close(x.grad, y.detach())

    def test_gradients_in_other_company(self):
        x, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5)
        torch.vmap(self.mul)(x, y).sum().backward()
        torch.testing.assert_close(x.grad, y)
        x.grad = None
        torch.utils.checkpoint.checkpoint(lambda a: 2 * self.mul(a, y), x, use_reentrant=False).sum().backward()
        torch.testing.assert_close(x.grad, 2 * y)
        with torch.no_grad():
            self.assertFalse(self.mul(x, y).requires_grad)
        with torch.inference_mode():
            torch.testing.assert_close(self.mul(x, y), x * y)
        (g,) = torch.autograd.grad(self.mul(x, y).sum(), x, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "eastest::mul_backward has no backward"):
            g.sum().backward()

    def test_backward_function(self):
        square = eas.torch.op(
            "eastest::square",
            square_kernel,
            outputs="out",
            N=count,
            BLOCK=32,
            backward=lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
        )
        x = torch.randn(9, dtype=torch.float64, requires_grad=True)
        self.assertTrue(torch.autograd.gradcheck(square, (x,)))
        torch.library.opcheck(square, (torch.randn(9, requires_grad=True),))
        saved = eas.torch.op(
            "eastest::square2", square_kernel, outputs="out", N=count, BLOCK=32, save=("out",), backward=lambda ctx, grad: grad * ctx.saved_tensors[0]
        )
        saved(x).sum().backward()
        torch.testing.assert_close(x.grad, (x * x).detach())

    def test_without_backward(self):
        x = torch.randn(2, 4, requires_grad=True)
        total, _ = self.sums(x)
        self.assertTrue(total.requires_grad)
        with self.assertRaisesRegex(RuntimeError, "eastest::sums has no backward"):
            total.sum().backward()

    def test_compile_without_graph_breaks(self):
        x, y = torch.randn(50, requires_grad=True), torch.randn(50, requires_grad=True)

        def f(x, y):
            z = self.mul(x.sin(), y) + 1
            w = torch.zeros_like(z)
            self.axpy(w, z, 3.0)
            return self.mul(w, y)

        def g(x, y):
            return self.mul(self.mul(x.sin(), y) + 1, y)

        for fn, args in ((f, (x.detach(), y.detach())), (g, (x, y))):
            want = fn(*args)
            got = torch.compile(fn, fullgraph=True, backend="aot_eager")(*args)
            torch.testing.assert_close(got, want)
        got.sum().backward()
        grad = x.grad.clone()
        x.grad = None
        want.sum().backward()
        torch.testing.assert_close(grad, x.grad)

    def test_dynamic_shapes(self):
        f = torch.compile(lambda x: self.mul(x, x) + self.sums(x)[0][:, None], fullgraph=True, dynamic=True, backend="aot_eager")
        for rows in (2, 3, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(f(x), x * x + x.sum(1)[:, None])

    def test_export(self):
        class M(torch.nn.Module):
            def forward(self, x):
                return torch.ops.eastest.mul(x, x)

        program = torch.export.export(M(), (torch.randn(6),))
        x = torch.randn(6)
        torch.testing.assert_close(program.module()(x), x * x)

    def test_vmap(self):
        x, y = torch.randn(4, 5, 6), torch.randn(5, 6)
        torch.testing.assert_close(torch.vmap(self.mul, in_dims=(0, None))(x, y), x * y)
        torch.testing.assert_close(torch.vmap(self.mul, in_dims=(1, 0), out_dims=1)(x.movedim(0, 1).contiguous(), x), (x * x).movedim(0, 1))
        total, largest = torch.vmap(self.sums)(x)
        torch.testing.assert_close(total, x.sum(2))
        torch.testing.assert_close(largest, x.amax(2))
        batch = eas.torch.op("eastest::batch", mul_kernel, outputs="out", N=count, BLOCK=64, vmap="batch")
        torch.testing.assert_close(torch.vmap(batch, in_dims=(0, None))(x, y), x * y)
        w = torch.zeros(4, 7)

        def added(w, x):
            self.axpy(w, x, 2.0)
            return w

        torch.vmap(added, in_dims=(0, None))(w, torch.arange(7.0))
        torch.testing.assert_close(w, (2 * torch.arange(7.0)).expand(4, 7))
        with self.assertRaisesRegex(RuntimeError, "not batched"):
            torch.vmap(added, in_dims=(None, 0))(torch.zeros(7), torch.zeros(4, 7))

    def test_defined_again(self):
        for k in (2.0, 3.0):
            times = eas.torch.op("eastest::times", scale_kernel, mutates="y", N=count, a=k, BLOCK=32)
            y = torch.zeros(3)
            times(y, torch.ones(3))
            self.assertEqual(y.tolist(), [k] * 3)

    def test_autotuned(self):
        tuned = eas.autotune(configs=[eas.Config(meta={"BLOCK": b}) for b in (32, 64)], key="N", warmup=0, repeat=1)(mul_kernel)
        op = eas.torch.op("eastest::tuned", tuned, outputs="out", N=count)
        x = torch.randn(40)
        torch.testing.assert_close(op(x, x), x * x)

    def test_functions_that_launch(self):
        def both(x, y, out, twice):
            mul_kernel(x, y, out, x.numel(), BLOCK=64)
            scale_kernel(twice.zero_(), out, 2.0, x.numel(), BLOCK=64)

        op = eas.torch.op(
            "eastest::both",
            both,
            outputs={"out": "x", "twice": "x"},
            differentiable="out",
            save=("y",),
            backward=lambda ctx, grad: (grad * ctx.saved_tensors[0], None),
        )
        x, y = torch.randn(5, requires_grad=True), torch.randn(5)
        out, twice = op(x, y)
        self.assertEqual((out.requires_grad, twice.requires_grad), (True, False))
        torch.testing.assert_close(twice, 2 * out.detach())
        out.sum().backward()
        torch.testing.assert_close(x.grad, y)
        torch.library.opcheck(op, (torch.randn(5, requires_grad=True), y))
        with self.assertRaisesRegex(TypeError, "launches by itself"):
            eas.torch.op("eastest::bad", both, outputs=("out", "twice"), grid=1)

    def test_defaults(self):
        def scaled(x, out, by: float = 2.0):
            scale_kernel(out.zero_(), x, by, x.numel(), BLOCK=64)

        op = eas.torch.op("eastest::scaled", scaled, outputs="out", backward=lambda ctx, grad: (grad * ctx.scalars["by"], None))
        self.assertEqual(str(op._schema), "eastest::scaled(Tensor x, float by=2.) -> Tensor")
        for args, by in (((), 2.0), ((3.0,), 3.0)):
            x = torch.ones(4, requires_grad=True)
            op(x, *args).sum().backward()
            self.assertEqual(x.grad.tolist(), [by] * 4)

    def test_transforms_of_torch_func(self):
        from torch.func import grad, hessian, jacrev, vjp, vmap

        def ours(x, y):
            return self.mul(x, y).sin().sum()

        def theirs(x, y):
            return (x * y).sin().sum()

        x, y, xs = torch.randn(5), torch.randn(5), torch.randn(3, 5)
        for transform in (
            lambda f: grad(f)(x, y),
            lambda f: grad(f, argnums=(0, 1))(x, y)[1],
            lambda f: vmap(grad(f), in_dims=(0, None))(xs, y),
            lambda f: grad(lambda x: vmap(f, in_dims=(0, None))(x, y).sum())(xs),
            lambda f: jacrev(f)(x, y),
            lambda f: vjp(f, x, y)[1](torch.tensor(2.0))[0],
            lambda f: vmap(vmap(grad(f), in_dims=(0, None)), in_dims=(None, 0))(xs, xs),
        ):
            torch.testing.assert_close(transform(ours), transform(theirs))
        with self.assertRaises(RuntimeError):  # the backward is a kernel, which has no derivative
            hessian(ours)(x, y)

    def test_forward_mode_is_refused(self):
        x = torch.ones(3)
        with self.assertRaisesRegex(RuntimeError, "eastest::mul has no forward-mode derivative"):
            torch.func.jvp(lambda x: self.mul(x, x), (x,), (x,))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            with self.assertRaisesRegex(RuntimeError, "no forward-mode derivative"):
                self.mul(x, dual)
            self.assertEqual(self.mul(x, x).tolist(), [1, 1, 1])

    def test_what_lies_between_is_not_skipped(self):
        """The implementation is called at once only where the dispatcher would do just that."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        x = torch.ones(3, requires_grad=True)
        with Mode():
            self.mul(x, x).sum().backward()
        self.assertIn(self.mul, seen)
        lazily = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
        self.assertTrue(lazily.is_neg())
        self.assertEqual(self.mul(lazily, torch.ones(2)).tolist(), [-2, 4])
        with torch.inference_mode():
            self.assertEqual(self.mul(x, x).tolist(), [1, 1, 1])

    def test_what_comes_between_forward_and_backward_is_not_skipped(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        x, y = torch.ones(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
        z = self.mul(x, y)
        with Mode():
            z.sum().backward()
        self.assertIn(torch.ops.eastest.mul_backward.default, seen)
        self.assertEqual(x.grad.tolist(), [1, 2, 3])
        grad = torch.tensor([1 + 1j, 1 - 1j, 2j]).conj().imag  # negated lazily
        self.assertEqual(torch.autograd.grad(self.mul(x, y), x, grad)[0].tolist(), [-1, 2, -6])
        batch = torch.eye(3)
        (rows,) = torch.autograd.grad(self.mul(x, y), x, batch, is_grads_batched=True)
        self.assertEqual(rows.tolist(), (batch * y).tolist())
        z = self.mul(x, y)
        with torch.inference_mode():
            self.assertEqual(torch.autograd.grad(z, x, torch.ones(3))[0].tolist(), [1, 2, 3])
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            z = self.mul(x, y)
        self.assertEqual(torch.autograd.grad(z.sum(), x)[0].tolist(), [1, 2, 3])

    def test_what_needs_no_gradient(self):
        asked = []

        def times(x, y, out):
            torch.mul(x, y, out=out)

        def back(x, y, grad, needs_x: bool, needs_y: bool, grad_x, grad_y):
            asked.append((needs_x, needs_y))
            if needs_x:
                torch.mul(grad, y, out=grad_x)
            if needs_y:
                torch.mul(grad, x, out=grad_y)

        shapes = {"grad_x": lambda x, needs_x: x.shape if needs_x else (0,), "grad_y": lambda y, needs_y: y.shape if needs_y else (0,)}
        backward = eas.torch.op("eastest::times_backward", back, outputs=shapes)
        op = eas.torch.op("eastest::times", times, outputs="out", backward=backward)
        for needs in ((True, False), (False, True), (True, True)):
            x, y = (torch.randn(3, requires_grad=n) for n in needs)
            for f in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
                x.grad = y.grad = None
                f(x, y).sum().backward()
                for a, b in ((x, y), (y, x)):
                    if a.requires_grad:
                        torch.testing.assert_close(a.grad, b.detach())
                    else:
                        self.assertIsNone(a.grad)
            self.assertEqual(asked[0], needs)
            asked.clear()
        self.assertTrue(torch.autograd.gradcheck(op, (torch.randn(3, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64))))

    def test_an_output_like_another(self):
        rows = eas.torch.op(
            "eastest::like", sums_kernel, outputs={"total": lambda x: x.shape[:1], "largest": "total"}, COLS=lambda x: x.shape[1], grid=lambda x: x.shape[0]
        )
        total, largest = rows(torch.arange(8.0).reshape(2, 4))
        self.assertEqual((total.tolist(), largest.tolist()), ([6, 22], [3, 7]))
        with self.assertRaisesRegex(TypeError, "neither a tensor argument nor an output before it"):
            eas.torch.op("eastest::unlike", sums_kernel, outputs={"total": "largest", "largest": lambda x: x.shape[:1]}, COLS=4)

    def test_a_graph_goes_when_nobody_holds_it(self):
        import gc
        import weakref

        rows = eas.torch.op(
            "eastest::rows",
            sums_kernel,
            outputs={"total": lambda x: x.shape[:1], "largest": lambda x: x.shape[:1]},
            COLS=4,
            grid=2,
            differentiable="total",
            save=("x", "largest"),
            backward=lambda ctx, grad: grad[:, None].expand(ctx.saved_tensors[0].shape),
        )
        gc.collect()
        gc.disable()
        try:
            x = torch.ones(2, 4, requires_grad=True)
            total, _ = rows(x)
            gone = weakref.ref(total)
            total.sum().backward()
            del total
            self.assertIsNone(gone())
            self.assertEqual(x.grad.tolist(), [[1] * 4] * 2)
        finally:
            gc.enable()

    def test_an_older_torch(self):
        from unittest import mock

        with mock.patch.object(torch._C, "_after_autograd_keyset", None):
            op = eas.torch.op("eastest::older", mul_kernel, outputs="out", backward=mul_back, N=count, BLOCK=64)
        x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        self.assertTrue(torch.autograd.gradcheck(op, (x, y)))

    def test_mistakes(self):
        bad = [
            (TypeError, "say which parameters it writes", {"N": count, "BLOCK": 1}),
            (TypeError, "'BLOCK' .* has no value", {"outputs": "out", "N": count}),
            (TypeError, "'nosuch', which is no parameter", {"outputs": "nosuch", "N": count, "BLOCK": 1}),
            (TypeError, "asks for 'z'", {"outputs": "out", "N": lambda z: 1, "BLOCK": 1}),
            (TypeError, "either mutates", {"outputs": "out", "mutates": "x", "N": count, "BLOCK": 1}),
            (TypeError, "has no backward", {"mutates": "out", "backward": mul_back, "N": count, "BLOCK": 1}),
            (TypeError, "no parameter grad_<argument>", {"outputs": "out", "backward": mul_kernel, "N": count, "BLOCK": 1}),
            (ValueError, "vmap must be", {"outputs": "out", "vmap": "fast", "N": count, "BLOCK": 1}),
        ]
        for error, message, kw in bad:
            with self.subTest(message), self.assertRaisesRegex(error, message):
                eas.torch.op("eastest::bad", mul_kernel, **kw)
        with self.assertRaisesRegex(ValueError, "namespace::name"):
            eas.torch.op("bad", mul_kernel, outputs="out", N=count, BLOCK=1)
        with self.assertRaisesRegex(TypeError, "takes a kernel or a function"):
            eas.torch.op("eastest::bad", print)
        wrong = eas.torch.op("eastest::wrong", mul_kernel, mutates="x", N=count, BLOCK=64)
        with self.assertRaisesRegex(RuntimeError, "writes 'out'"):
            wrong(torch.zeros(3), torch.zeros(3), torch.zeros(3))


@unittest.skipUnless(torch, "torch is not installed")
class Training(unittest.TestCase):
    """The block of examples/train_torch.py; that it converges like torch's own layers the example itself
    checks (test_examples.py)."""

    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, ROOT)
        try:
            from examples import train_torch
        finally:
            sys.path.remove(ROOT)
        cls.example = train_torch
        torch.manual_seed(0)
        cls.theirs, cls.ours = train_torch.networks(32)

    def grads(self, net, x):
        net.zero_grad()
        net(x).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    def test_gradients_are_torchs(self):
        x = torch.randn(16, 32, requires_grad=True)
        gamma, beta, up, b1, down, b2 = self.grads(self.theirs, x)
        want, x.grad = x.grad, None
        names = [n for n, _ in self.ours.named_parameters()]
        got = dict(zip(names, self.grads(self.ours, x)))
        torch.testing.assert_close(x.grad, want, rtol=1e-4, atol=1e-4)
        for name, g in {"gamma": gamma, "beta": beta, "w1": up, "b1": b1, "w2": down, "b2": b2}.items():
            torch.testing.assert_close(got[name], g, rtol=1e-4, atol=1e-3, msg=name)

    def test_compiled(self):
        x = torch.randn(16, 32)
        want = self.grads(self.ours, x)
        got = self.grads(torch.compile(self.ours, fullgraph=True, backend="aot_eager"), x)
        for g, w in zip(got, want):
            torch.testing.assert_close(g, w)

    def test_opcheck(self):
        p = [q.detach().requires_grad_() for q in self.ours.parameters()]
        named = dict(zip([n for n, _ in self.ours.named_parameters()], p))
        args = (torch.randn(16, 32), *(named[n] for n in ("gamma", "beta", "w1", "b1", "w2", "b2")))
        self.assertEqual(set(torch.library.opcheck(self.example.block, args).values()), {"SUCCESS"})


@eas.kernel
def square_kernel(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, i, i < N)
    mk.store(out, i, v * v, i < N)


if __name__ == "__main__":
    unittest.main()
