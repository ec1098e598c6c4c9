"""grad, vjp, jvp and the rest: trees, aux values, composition in any order, loops and branches, rules of
users, torch's way, and what is refused."""

import gc
import io
import re
import unittest
from contextlib import redirect_stdout

import numpy as np

import eager
from eager import (
    Operation,
    Tensor,
    checkpoint,
    compile,
    custom_jvp,
    custom_vjp,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    no_grad,
    stop_gradient,
    value_and_grad,
    vjp,
    vmap,
)

try:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
except ImportError:  # tools/setup.sh says so
    jax = jnp = None

RNG = np.random.default_rng(5)
W, H0, XS = RNG.normal(size=(3, 3)), RNG.normal(size=3), RNG.normal(size=(5, 3))


def C(a):
    return Tensor.constant(np.asarray(a, np.float64))


def N(t):
    return np.asarray(t.numpy(), np.float64)


def close(test, got, want, tol=1e-8):
    got, want = eager.tree_leaves(got), (jax.tree_util.tree_leaves(want) if jax else want)
    test.assertEqual(len(got), len(want))
    for g, w in zip(got, want):
        w = np.asarray(w)
        test.assertEqual(tuple(g.shape), w.shape)
        np.testing.assert_allclose(N(g), w, rtol=tol, atol=tol)


def mlp(p, x, m=eager):
    for w, b in p[:-1]:
        x = m.tanh(x @ w + b)
    w, b = p[-1]
    return x @ w + b


PARAMS = [(RNG.normal(size=(3, 4)), RNG.normal(size=4)), (RNG.normal(size=(4, 2)), RNG.normal(size=2))]


def params():
    return [(C(w), C(b)) for w, b in PARAMS]


@unittest.skipUnless(jax, "needs JAX")
class TestTransforms(unittest.TestCase):
    def test_trees_in_and_out(self):
        f = lambda p, x: (mlp(p, x) ** 2).sum()  # noqa: E731
        j = lambda p, x: (mlp(p, x, jnp) ** 2).sum()  # noqa: E731
        close(self, grad(f)(params(), C(XS)), jax.grad(j)(PARAMS, XS))
        close(self, grad(f, (1, 0))(params(), C(XS)), jax.grad(j, (1, 0))(PARAMS, XS))
        v, g = value_and_grad(f, argnums=1)(params(), C(XS))
        jv, jg = jax.value_and_grad(j, 1)(PARAMS, XS)
        close(self, [v, g], [jv, jg])
        close(self, jacrev(mlp)(params(), C(H0)), jax.jacrev(lambda p, x: mlp(p, x, jnp))(PARAMS, H0))
        close(self, jacfwd(mlp, 1)(params(), C(H0)), jax.jacfwd(lambda p, x: mlp(p, x, jnp), 1)(PARAMS, H0))

    def test_dicts_and_aux(self):
        def f(d, k):
            y = d["a"] * d["b"] + k
            return (y * y).sum(), {"y": y}

        d = {"a": C(H0), "b": C(H0 + 1)}
        g, aux = grad(f, has_aux=True)(d, 2.0)
        self.assertEqual(sorted(g), ["a", "b"])
        np.testing.assert_allclose(N(aux["y"]), H0 * (H0 + 1) + 2)
        (v, aux), g = value_and_grad(f, has_aux=True)(d, k=2.0)
        np.testing.assert_allclose(v.item(), ((H0 * (H0 + 1) + 2) ** 2).sum())
        out, pull, aux = vjp(lambda x: (x * x, x), C(H0), has_aux=True)
        np.testing.assert_allclose(N(pull(C(np.ones(3)))[0]), 2 * H0)
        out, dot, aux = jvp(lambda x: (x * x, x), (C(H0),), (C(np.ones(3)),), has_aux=True)
        np.testing.assert_allclose(N(dot), 2 * H0)

    def test_linearize_runs_once(self):
        runs = []

        def f(x):
            runs.append(1)
            return eager.sin(x) * x

        out, push = linearize(f, C(H0))
        for t in (H0, XS[0]):
            np.testing.assert_allclose(N(push(C(t))), (np.cos(H0) * H0 + np.sin(H0)) * t)
        self.assertEqual(len(runs), 1)

    def test_orders_of_composition(self):
        f = lambda w, x: eager.tanh(x @ w).sum()  # noqa: E731
        j = lambda w, x: jnp.tanh(x @ w).sum()  # noqa: E731
        ours, theirs = (C(W), C(XS)), (W, XS)
        pairs = [
            (vmap(grad(f), (None, 0)), jax.vmap(jax.grad(j), (None, 0))),
            (grad(lambda w, x: vmap(f, (None, 0))(w, x).sum()), jax.grad(lambda w, x: jax.vmap(j, (None, 0))(w, x).sum())),
            (jacrev(lambda w, x: vmap(f, (None, 0))(w, x)), jax.jacrev(lambda w, x: jax.vmap(j, (None, 0))(w, x))),
            (jacfwd(lambda w, x: vmap(f, (None, 0))(w, x)), jax.jacfwd(lambda w, x: jax.vmap(j, (None, 0))(w, x))),
            (vmap(hessian(f), (None, 0)), jax.vmap(jax.hessian(j), (None, 0))),
            (vmap(jacrev(jacrev(f)), (None, 0)), jax.vmap(jax.hessian(j), (None, 0))),
            (vmap(jacrev(jacfwd(f)), (None, 0)), jax.vmap(jax.hessian(j), (None, 0))),
            (vmap(jacfwd(jacfwd(f)), (None, 0)), jax.vmap(jax.hessian(j), (None, 0))),
            (vmap(vmap(grad(f), (None, 0)), (0, None)), jax.vmap(jax.vmap(jax.grad(j), (None, 0)), (0, None))),
        ]
        for k, (a, b) in enumerate(pairs):
            args = (C(np.stack([W, W + 1])), ours[1]) if k == len(pairs) - 1 else ours
            jargs = (np.stack([W, W + 1]), XS) if k == len(pairs) - 1 else theirs
            with self.subTest(k=k):
                close(self, a(*args), b(*jargs))
                close(self, compile(a, fullgraph=True)(*args), b(*jargs))

    def test_four_deep(self):
        f = lambda x: (eager.sin(x) * x**3).sum()  # noqa: E731
        j = lambda x: (jnp.sin(x) * x**3).sum()  # noqa: E731
        third = lambda d, f: lambda x: d(lambda y: d(lambda z: d(f)(z).sum())(y).sum())(x)  # noqa: E731
        close(self, third(grad, f)(C(H0)), third(jax.grad, j)(H0))
        close(self, compile(third(grad, f))(C(H0)), third(jax.grad, j)(H0))
        deep = lambda d, f, v: lambda x: v(lambda y: d(lambda z: d(f)(z).sum())(y * x))(x)  # noqa: E731
        close(self, jacfwd(deep(grad, lambda z: f(z), vmap))(C(H0)), jax.jacfwd(deep(jax.grad, lambda z: j(z), jax.vmap))(H0))

    def test_dynamic_dims(self):
        f = compile(grad(lambda w, x: (eager.tanh(x @ w) ** 2).mean()), dynamic_dims={1: {0: "n"}}, fullgraph=True)
        j = jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).mean())
        for n in (5, 2, 9, 1):
            x = RNG.normal(size=(n, 3))
            close(self, f(C(W), C(x)), j(W, x))
        self.assertEqual(f.stats.misses, 1)

    def test_closed_over_values_are_constants(self):
        x = C(H0)
        np.testing.assert_allclose(N(grad(lambda y: (x * y).sum())(x)), H0)
        inner = lambda x: grad(lambda y: (x * y * y).sum())(x).sum()  # noqa: E731
        np.testing.assert_allclose(N(grad(inner)(x)), 4 * H0)

    def test_reading_data_inside(self):
        def f(x):
            y = x * x
            return (y * 3.0 if y.sum().item() > 0 else y).sum()

        np.testing.assert_allclose(N(grad(f)(C(H0))), 6 * H0)

    def test_stop_gradient_and_create_graph(self):
        np.testing.assert_allclose(N(grad(lambda x: (x * stop_gradient(x)).sum())(C(H0))), H0)
        np.testing.assert_allclose(N(grad(lambda x: (x * x.detach()).sum())(C(H0))), H0)
        g = lambda create: grad(lambda x: (grad(lambda y: (y**3).sum(), create_graph=create)(x) * x).sum())  # noqa: E731
        np.testing.assert_allclose(N(g(True)(C(H0))), 9 * H0**2)
        np.testing.assert_allclose(N(g(False)(C(H0))), 3 * H0**2)

    def test_corners_as_jax(self):
        cases = {
            "max of ties": (lambda m, x: m.max(x), np.array([1.0, 3.0, 3.0, 2.0, 3.0])),
            "min of ties": (lambda m, x: m.min(x), np.array([1.0, 1.0, 2.0])),
            "maximum of equals": (lambda m, x: m.maximum(x, np.array([0.0, 1.0, 5.0]) if m is jnp else C([0.0, 1.0, 5.0])).sum(), np.array([0.0, 2.0, 3.0])),
            "pow at 0": (lambda m, x: (x**2).sum() + (x**3.0).sum() + (x**1.0).sum(), np.array([0.0, 2.0])),
            "0 ** y": (lambda m, x: (m.zeros((2,)) ** x).sum() if m is jnp else (C([0.0, 0.0]) ** x).sum(), np.array([2.0, 3.0])),
            "where with nan behind": (lambda m, x: m.where(x > 0, x, x * np.inf).sum() if m is jnp else m.where(x > 0, x, x * C(np.inf)).sum(), np.array([1.0, 2.0])),
            "sqrt at 0": (lambda m, x: m.sqrt(x).sum(), np.array([0.0, 4.0])),
            "norm at 0": (lambda m, x: m.sqrt((x * x).sum()), np.array([0.0, 0.0])),
            "clip at its ends": (lambda m, x: m.clip(x, -1.0, 1.0).sum(), np.array([-1.0, 0.5, 1.0, 2.0])),
        }
        for name, (f, x) in cases.items():
            with self.subTest(name):
                close(self, grad(lambda t, f=f: f(eager, t))(C(x)), jax.grad(lambda t, f=f: f(jnp, t))(x))

    def test_corners_of_our_own(self):
        self.assertEqual(N(grad(lambda x: abs(x))(C(0.0))), 0)  # as torch; JAX says 1
        self.assertEqual(N(grad(lambda x: x**0.0)(C(0.0))), 0)  # JAX says nan

    def test_assignment(self):
        def f(x, v):
            y = x * 2.0
            y[1:] = v * v
            return (y * y).sum()

        j = lambda x, v: ((x * 2.0).at[1:].set(v * v) ** 2).sum()  # noqa: E731
        close(self, grad(f, (0, 1))(C(H0), C(H0[:2])), jax.grad(j, (0, 1))(H0, H0[:2]))
        close(self, vmap(grad(f, (0, 1)))(C(XS), C(XS[:, :2])), jax.vmap(jax.grad(j, (0, 1)))(XS, XS[:, :2]))


def recurrent(m, scan, reverse=False):
    def f(w, h, xs):
        def body(h, x):
            h = m.tanh(h @ w + x)
            return h, (h * x).sum()

        h, ys = scan(body, h, xs, reverse=reverse)
        return (h * h).sum() + (ys * ys).sum()

    return f


@unittest.skipUnless(jax, "needs JAX")
class TestControlFlow(unittest.TestCase):
    def setUp(self):
        self.ours, self.theirs = (C(W), C(H0), C(XS)), (W, H0, XS)

    def test_scan_every_way(self):
        for reverse in (False, True):
            f, j = recurrent(eager, eager.scan, reverse), recurrent(jnp, jax.lax.scan, reverse)
            nums = (0, 1, 2)
            want = jax.grad(j, nums)(*self.theirs)
            close(self, grad(f, nums)(*self.ours), want)
            close(self, compile(grad(f, nums), fullgraph=True)(*self.ours), want)
            close(self, jacfwd(f, nums)(*self.ours), want)
            close(self, jacrev(f, nums)(*self.ours), want)
            close(self, jvp(f, self.ours, self.ours)[1], jax.jvp(j, self.theirs, self.theirs)[1])
            for a in (jacrev, jacfwd):
                for b in (jacrev, jacfwd):
                    close(self, a(b(f, 1), 1)(*self.ours), jax.hessian(j, 1)(*self.theirs))
            many = np.stack([XS, 2 * XS])
            close(self, vmap(grad(f, nums), (None, None, 0))(C(W), C(H0), C(many)), jax.vmap(jax.grad(j, nums), (None, None, 0))(W, H0, many))
            total = lambda v, f: lambda w, h, x: v(f, (None, None, 0))(w, h, x).sum()  # noqa: E731
            close(self, grad(total(vmap, f), nums)(C(W), C(H0), C(many)), jax.grad(total(jax.vmap, j), nums)(W, H0, many))

    def test_scan_recomputed_in_parts(self):
        j = recurrent(jnp, jax.lax.scan)
        want = jax.grad(j, (0, 1, 2))(*self.theirs)
        for k in (1, 2, 3, 5, 9):
            for reverse in (False, True):
                f = recurrent(eager, lambda *a, k=k, **kw: eager.scan(*a, checkpoint=k, **kw), reverse)
                w = jax.grad(recurrent(jnp, jax.lax.scan, reverse), (0, 1, 2))(*self.theirs) if reverse else want
                close(self, grad(f, (0, 1, 2))(*self.ours), w)
                close(self, compile(grad(f, (0, 1, 2)))(*self.ours), w)

    def test_nested_loops(self):
        def f(m, scan):
            def outer(c, x):
                def inner(d, y):
                    d = m.sin(d * y + c)
                    return d, d * c

                d, ys = scan(inner, x, m.stack([c, x]))
                return d + c, ys.sum()

            def run(c, xs):
                c, ys = scan(outer, c, xs)
                return (c * c).sum() + (ys * ys).sum()

            return run

        close(self, grad(f(eager, eager.scan), (0, 1))(C(H0), C(XS)), jax.grad(f(jnp, jax.lax.scan), (0, 1))(H0, XS))
        close(self, jvp(f(eager, eager.scan), (C(H0), C(XS)), (C(H0), C(XS)))[1], jax.jvp(f(jnp, jax.lax.scan), (H0, XS), (H0, XS))[1])

    def test_a_loop_that_is_differentiated_does_not_run_twice(self):
        f = compile(value_and_grad(recurrent(eager, eager.scan), (0, 1, 2)))
        f(*self.ours)
        self.assertEqual(f.show("text").count("= loop"), 2)

    def test_gradients_of_weights_are_one_product_after_the_loop(self):
        rng = np.random.default_rng(3)
        wx, wh, b = (C(rng.normal(size=s) * 0.3) for s in ((5, 24), (6, 24), (24,)))
        xs, h0 = C(rng.normal(size=(7, 4, 5))), C(rng.normal(size=(4, 6)))

        def lstm(wx, wh, b, h0):
            def cell(s, x):
                h, c = s
                g = x @ wx + h @ wh + b
                i, f, o, u = (g[:, 6 * k : 6 * k + 6] for k in range(4))
                c = eager.sigmoid(f) * c + eager.sigmoid(i) * eager.tanh(u)
                h = eager.sigmoid(o) * eager.tanh(c)
                return (h, c), h

            (h, _), hs = eager.scan(cell, (h0, h0 * 0), xs)
            return (h * h).sum() + (hs * 0.1).sum()

        grads = grad(lstm, argnums=(0, 1, 2, 3), realize=False)(wx, wh, b, h0)
        text = shown(grads)
        back = text[text.rindex("a trip:") :]
        self.assertEqual(len(re.findall(r"matmul over \((5|6), 24\)", back[back.index("result") :])), 2)
        self.assertNotRegex(back[: back.index("result %")], r"matmul over \((5|6), 24\)")
        e = 1e-6
        for k, (v, g) in enumerate(zip((wx, wh, b, h0), grads)):
            d = rng.normal(size=tuple(v.shape))
            args = [[C(N(a) + s * e * d) if i == k else a for i, a in enumerate((wx, wh, b, h0))] for s in (1, -1)]
            want = (float(N(lstm(*args[0]))) - float(N(lstm(*args[1])))) / (2 * e)
            self.assertAlmostEqual(float((N(g) * d).sum()), want, places=5)

    def test_branches(self):
        g = lambda m, c: lambda x: c(x.sum() > 0, lambda x: (m.sin(x) @ (C(W) if m is eager else W)).sum(), lambda x: (x * x * x).sum(), x)  # noqa: E731
        f, j = g(eager, eager.cond), g(jnp, jax.lax.cond)
        for s in (1, -1):
            x = np.abs(H0) * s
            close(self, grad(f)(C(x)), jax.grad(j)(x))
            close(self, compile(grad(f), fullgraph=True)(C(x)), jax.grad(j)(x))
            close(self, compile(hessian(f), fullgraph=True)(C(x)), jax.hessian(j)(x))
            close(self, compile(lambda x: jvp(f, (x,), (x,))[1], fullgraph=True)(C(x)), jax.jvp(j, (x,), (x,))[1])
            many = np.stack([x, -x])
            close(self, vmap(grad(f))(C(many)), jax.vmap(jax.grad(j))(many))

    def test_switch(self):
        fs = lambda m: [lambda x: (x * x).sum(), lambda x: m.sin(x).sum(), lambda x: (x**3).sum()]  # noqa: E731
        for k in (-1, 0, 1, 2, 7):
            close(self, grad(lambda x, k=k: eager.switch(k, fs(eager), x))(C(H0)), jax.grad(lambda x, k=k: jax.lax.switch(k, fs(jnp), x))(H0))
        f = compile(lambda k, x: grad(lambda x: eager.switch(k, fs(eager), x))(x), fullgraph=True)
        for k in (0, 1, 2):
            close(self, f(eager.Tensor.constant(k), C(H0)), jax.grad(lambda x, k=k: fs(jnp)[k](x))(H0))

    def test_while_loops(self):
        def make(m, loop, **kw):
            return lambda x: loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, m.sin(s[1] * s[1]) + x), (0, x), **kw)[1].sum()

        j = make(jnp, jax.lax.while_loop)
        close(self, jvp(make(eager, eager.while_loop), (C(H0),), (C(H0),))[1], jax.jvp(j, (H0,), (H0,))[1])
        want = jax.jacfwd(j)(H0)
        for most in (3, 7):
            f = make(eager, eager.while_loop, max_steps=most)
            close(self, grad(f)(C(H0)), want)
            close(self, compile(grad(f), fullgraph=True)(C(H0)), want)
            close(self, hessian(f)(C(H0)), jax.jacfwd(jax.jacfwd(j))(H0), 1e-7)
        lanes = lambda v, m, loop, **kw: v(lambda x: loop(lambda s: s.sum() < 10, lambda s: s * 1.5 + x, x, **kw).sum())  # noqa: E731
        many = np.abs(XS)
        a = grad(lambda x: lanes(vmap, eager, eager.while_loop, max_steps=20)(x).sum())(C(many))
        b = jax.jacfwd(lambda x: lanes(jax.vmap, jnp, jax.lax.while_loop)(x).sum())(many)
        close(self, a, b)
        with self.assertRaisesRegex(ValueError, "max_steps"):
            grad(make(eager, eager.while_loop))(C(H0))
        self.assertEqual(eager.while_loop(lambda s: s < 100, lambda s: s + 1, 0, max_steps=5).item(), 5)

    def test_fori_loop(self):
        f = lambda m, loop: lambda x: loop(1, 5, lambda i, s: m.sin(s) * x + i, x).sum()  # noqa: E731
        close(self, grad(f(eager, eager.fori_loop))(C(H0)), jax.grad(f(jnp, jax.lax.fori_loop))(H0))
        n = eager.Tensor.constant(4)
        np.testing.assert_allclose(N(eager.fori_loop(0, n, lambda i, s: s * 2.0, C(H0))), H0 * 16)

    def test_associative_scan(self):
        def join(a, b):
            return a[0] * b[0], b[0] * a[1] + b[1]

        for n in (1, 2, 3, 5, 8, 13):
            a, b = RNG.normal(size=(n, 2)), RNG.normal(size=(n, 2))
            for reverse in (False, True):
                got = eager.associative_scan(join, (C(a), C(b)), reverse=reverse)
                want = jax.lax.associative_scan(join, (a, b), reverse=reverse)
                close(self, got, want)
                g = grad(lambda x, y, r=reverse: (eager.associative_scan(join, (x, y), reverse=r)[1] ** 2).sum(), (0, 1))(C(a), C(b))
                w = jax.grad(lambda x, y, r=reverse: (jax.lax.associative_scan(join, (x, y), reverse=r)[1] ** 2).sum(), (0, 1))(a, b)
                close(self, g, w)
        np.testing.assert_allclose(N(eager.associative_scan(lambda a, b: a + b, C(XS), axis=1)), np.cumsum(XS, 1))


class TestRules(unittest.TestCase):
    def test_custom_vjp(self):
        @custom_vjp
        def f(x, y):
            return eager.sin(x) * y

        f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda res, ct: (ct * 100.0, None))
        np.testing.assert_allclose(N(grad(lambda x, y: f(x, y).sum())(C(H0), C(H0))), 100 * np.ones(3))
        np.testing.assert_allclose(N(grad(lambda x, y: f(x, y).sum(), 1)(C(H0), C(H0))), np.zeros(3))
        np.testing.assert_allclose(N(vmap(grad(lambda x, y: f(x, y).sum()))(C(XS), C(XS))), 100 * np.ones((5, 3)))
        np.testing.assert_allclose(N(compile(grad(lambda x, y: f(x, y).sum()))(C(H0), C(H0))), 100 * np.ones(3))
        with self.assertRaisesRegex(RuntimeError, "vjp rule"):
            jvp(f, (C(H0), C(H0)), (C(H0), C(H0)))

    def test_custom_vjp_of_several_results(self):
        @custom_vjp
        def f(x):
            return {"s": eager.sin(x), "c": eager.cos(x)}

        f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct["s"] * 2.0 + ct["c"] * 3.0,))
        np.testing.assert_allclose(N(grad(lambda x: f(x)["s"].sum())(C(H0))), 2 * np.ones(3))
        np.testing.assert_allclose(N(grad(lambda x: (f(x)["s"] * f(x)["c"] * 0.0 + f(x)["c"]).sum())(C(H0))), 3 * np.ones(3))

    def test_nondiff_argnums(self):
        @eager.transforms.custom.custom_vjp
        def f(x):
            return x

        g = custom_vjp(lambda k, x: x * k, nondiff_argnums=(0,))
        g.defvjp(lambda k, x: (x * k, x), lambda k, res, ct: (ct * k * 10.0,))
        np.testing.assert_allclose(N(grad(lambda x: g(3.0, x).sum())(C(H0))), 30 * np.ones(3))
        with self.assertRaisesRegex(AttributeError, "defvjp"):
            f(C(H0))

    def test_custom_jvp_both_ways(self):
        @custom_jvp
        def f(x, y):
            return x * y

        @f.defjvp
        def rule(primals, tangents):
            (x, y), (dx, dy) = primals, tangents
            return f(x, y), dx * y * 5.0 + dy * x * 7.0

        self.assertEqual(N(jvp(f, (C(2.0), C(3.0)), (C(1.0), C(1.0)))[1]), 29)
        gx, gy = grad(f, (0, 1))(C(2.0), C(3.0))
        self.assertEqual((gx.item(), gy.item()), (15, 14))
        np.testing.assert_allclose(N(vmap(grad(f))(C(H0), C(H0))), 5 * H0)
        h = custom_jvp(lambda x: eager.sin(x))
        h.defjvps(lambda t, out, x: t * 2.0)
        np.testing.assert_allclose(N(grad(lambda x: h(x).sum())(C(H0))), 2 * np.ones(3))

    def test_operations(self):
        class Cube(Operation):
            name = "cube_of_tests"

            def maxpr(self, x):
                return x * x * x

        class Steep(Operation):
            name = "steep_of_tests"

            def maxpr(self, x, k=1.0):
                return x * k

            def vjp_rule(self, primals, cotangent, output, k=1.0):
                return (cotangent * 10.0 * k,)

        np.testing.assert_allclose(N(grad(lambda x: Cube()(x).sum())(C(H0))), 3 * H0**2)
        np.testing.assert_allclose(N(grad(lambda x: Steep()(x, k=2.0).sum())(C(H0))), 20 * np.ones(3))
        self.assertEqual(Steep()(C(H0), k=2.0)._impl.op.name, "steep_of_tests")

    def test_checkpoint(self):
        def f(x):
            return eager.sin(x * x)

        want = 2 * H0 * np.cos(H0**2)
        np.testing.assert_allclose(N(grad(lambda x: checkpoint(f)(x).sum())(C(H0))), want)
        np.testing.assert_allclose(N(compile(grad(lambda x: checkpoint(f)(x * 1.0).sum()))(C(H0))), want)
        np.testing.assert_allclose(N(jvp(lambda x: checkpoint(f)(x).sum(), (C(H0),), (C(np.ones(3)),))[1]), want.sum())
        np.testing.assert_allclose(N(vmap(grad(lambda x: checkpoint(f)(x).sum()))(C(XS))), 2 * XS * np.cos(XS**2))
        np.testing.assert_allclose(N(hessian(lambda x: checkpoint(f)(x).sum())(C(H0))), np.diag(2 * np.cos(H0**2) - 4 * H0**2 * np.sin(H0**2)), atol=1e-12)


    def test_checkpoint_sees_what_is_captured(self):
        w = C(W)
        f = lambda wrap: lambda x, w: wrap(lambda y: eager.tanh(y @ w))(x).sum()  # noqa: E731
        for a, b in zip(grad(f(checkpoint), (0, 1))(C(H0), w), grad(f(lambda g: g), (0, 1))(C(H0), w)):
            np.testing.assert_allclose(N(a), N(b))

    def test_checkpoint_keeps_less(self):
        ws = [C(RNG.normal(size=(64, 64)) / 8) for _ in range(16)]
        x = C(RNG.normal(size=(256, 64)))

        def layers(ws, x):
            for w in ws:
                x = eager.tanh(x @ w)
            return x

        def net(wrap, step):
            def f(ws, x):
                for k in range(0, len(ws), step):
                    x = wrap(layers)(ws[k : k + step], x)
                return (x * x).sum()

            return compile(grad(f))

        plain, again = net(lambda f: f, 4), net(checkpoint, 4)
        for a, b in zip(plain(ws, x), again(ws, x)):
            np.testing.assert_allclose(N(a), N(b), rtol=1e-9, atol=1e-12)
        self.assertLess(peak(again), 0.7 * peak(plain))


    def test_batch_dims_in_another_order(self):
        x = np.arange(6.0).reshape(3, 2)
        for source in ([], [0], [2, 0], [0, 1], [1, 1], [-1, 2], [0, 1, 2, 2]):
            with self.subTest(source=source):
                j = np.zeros((len(source), 3))
                for k, s in enumerate(source):
                    if s >= 0:
                        j[k, s] = 1

                def f(x, source=source):
                    return eager.decr_batch_dims(eager.shuffle_physical(eager.incr_batch_dims(x), 0, source))

                y, t = jvp(f, (C(x),), (C(x * 10),))
                np.testing.assert_array_equal(N(y), j @ x)
                np.testing.assert_array_equal(N(t), j @ x * 10)
                _, pull = vjp(f, C(x))
                np.testing.assert_array_equal(N(pull(y)[0]), j.T @ j @ x)


def peak(f):
    """Bytes at most above the inputs, as the program says."""
    return int(f.show("text").rsplit("kernel", 1)[1].split(",")[1].split("bytes")[0])


class TestTorchsWay(unittest.TestCase):
    def test_backward(self):
        w, x = C(W).requires_grad_(), C(H0)
        loss = eager.tanh(x @ w).sum()
        loss.backward()
        want = N(grad(lambda w: eager.tanh(x @ w).sum())(C(W)))
        np.testing.assert_allclose(N(w.grad), want)
        eager.tanh(x @ w).sum().backward()  # they add up
        np.testing.assert_allclose(N(w.grad), 2 * want)
        w.grad = None
        self.assertIsNone(w.grad)
        self.assertFalse(x.requires_grad)

    def test_data_may_be_read_before(self):
        w = C(W).requires_grad_()
        h = eager.tanh(C(H0) @ w)
        loss = (h * h).sum()
        self.assertGreater(loss.item(), 0)
        loss.backward()
        np.testing.assert_allclose(N(w.grad), N(grad(lambda w: (eager.tanh(C(H0) @ w) ** 2).sum())(C(W))))

    def test_gradient_and_graphs(self):
        w = C(H0).requires_grad_()
        y = w * w
        with self.assertRaisesRegex(RuntimeError, "needs a gradient"):
            y.backward()
        y.backward(C([1.0, 2.0, 3.0]), retain_graph=True)
        y.backward(C([1.0, 2.0, 3.0]))
        np.testing.assert_allclose(N(w.grad), 4 * H0 * np.array([1.0, 2.0, 3.0]))
        with self.assertRaisesRegex(RuntimeError, "retain_graph"):
            y.backward(C([1.0, 2.0, 3.0]))
        with self.assertRaisesRegex(RuntimeError, "requires a gradient"):
            C(1.0).backward()
        with self.assertRaisesRegex(TypeError, "floats"):
            Tensor.constant([1, 2]).requires_grad_()

    def test_create_graph(self):
        w = C(H0).requires_grad_()
        (w**3).sum().backward(create_graph=True)
        g, w.grad = w.grad, None
        g.sum().backward()
        np.testing.assert_allclose(N(w.grad), 6 * H0)

    def test_no_grad_and_detach(self):
        w = C(H0).requires_grad_()
        with no_grad():
            y = w * 2.0
        self.assertFalse(y.requires_grad)
        self.assertTrue((w * 2.0).requires_grad)
        self.assertFalse(w.detach().requires_grad)
        self.assertTrue(w.requires_grad)

        @no_grad()
        def f(x):
            return x * 3.0

        self.assertFalse(f(w).requires_grad)
        (w * f(w)).sum().backward()
        np.testing.assert_allclose(N(w.grad), 3 * H0)
        np.testing.assert_allclose(N(grad(lambda x: (x * f(x)).sum())(C(H0))), 3 * H0)

    def test_a_leaf_that_was_assigned_to(self):
        w = C(H0).requires_grad_()
        loss = (w * w).sum()
        w[0] = 5.0
        with self.assertRaisesRegex(RuntimeError, "assigned"):
            loss.backward()

    def test_training_keeps_nothing_of_old_steps(self):
        w = C(W)
        live = []
        for _ in range(12):
            w.requires_grad_()
            loss = (eager.tanh(C(XS) @ w) ** 2).mean()
            loss.backward()
            with no_grad():
                w = (w - 0.1 * w.grad).realize()
            loss.item()
            gc.collect()
            live.append(eager.stats()["live_nodes"])
        self.assertLessEqual(max(live[6:]), live[5] + 4)


class TestMemory(unittest.TestCase):
    def test_results_hold_no_graph(self):
        before = eager.stats()["live_nodes"]
        x = C(H0)
        v, g = value_and_grad(lambda x: (eager.sin(x) * eager.exp(x) * x).sum())(x)
        gc.collect()
        self.assertLessEqual(eager.stats()["live_nodes"] - before, 4)
        step = C(H0)
        for _ in range(50):
            step = step - 0.1 * grad(lambda x: (x * x).sum())(step)
            step.realize()
        gc.collect()
        self.assertLessEqual(eager.stats()["live_nodes"] - before, 8)


def shown(*tensors):
    text = io.StringIO()
    with redirect_stdout(text):
        eager.trace(*tensors)
    return text.getvalue()


class TestResiduals(unittest.TestCase):
    """A result that was read before the gradients: these need nothing of the forward pass again."""

    w, x = (np.random.default_rng(k).random((6, 6)) for k in range(2))

    def test_pull_after_reading(self):
        def f(w, x):
            h = eager.softmax(eager.tanh(x @ w) @ w)
            return eager.scan(lambda c, _: (eager.sin(c @ w), None), h, None, length=4)[0]

        want = grad(lambda w, x: f(w, x).sum(), argnums=(0, 1))(Tensor(self.w), Tensor(self.x))
        out, pull = eager.vjp(f, Tensor(self.w), Tensor(self.x))
        value = out.numpy()
        grads = pull(Tensor(np.ones((6, 6))))
        text = shown(*grads)
        for op in ("tanh", "exp", "sin "):
            self.assertNotIn(f"= {op}", text)
        for a, b in zip(grads, want):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
        again = pull(Tensor(value))  # other cotangents, and a batch of them
        np.testing.assert_allclose(vmap(pull)(Tensor(value[None]))[0].numpy()[0], again[0].numpy(), rtol=1e-12)

    def test_a_result_inside_something_larger(self):
        out, pull = eager.vjp(lambda w: eager.tanh(Tensor(self.x) @ w), Tensor(self.w))
        (out * 2).sum().item()
        self.assertNotIn("= tanh", shown(pull(out)[0]))

    def test_without_pull_nothing_is_kept(self):
        out, pull = eager.vjp(lambda w: eager.tanh(Tensor(self.x) @ w).sum(), Tensor(self.w))
        del pull
        out.item()  # the pullback that it holds has nobody to serve
        self.assertEqual(out.numpy().shape, ())

    def test_backward_after_reading(self):
        w = Tensor(self.w).requires_grad_()
        loss = (eager.tanh(Tensor(self.x) @ w) @ w).relu().sum()
        loss.item()
        loss.backward()
        self.assertNotIn("= tanh", shown(w.grad))
        want = grad(lambda w: (eager.tanh(Tensor(self.x) @ w) @ w).relu().sum())(Tensor(self.w))
        np.testing.assert_allclose(w.grad.numpy(), want.numpy(), rtol=1e-12)


class TestRefusals(unittest.TestCase):
    def test_clear_errors(self):
        x, i = C(H0), Tensor.constant([1, 2, 3])
        cases = [
            (TypeError, "one number", lambda: grad(lambda x: x * x)(x)),
            (TypeError, "one number", lambda: grad(lambda x: (x.sum(), x.sum()))(x)),
            (TypeError, "must give a float", lambda: grad(lambda x: eager.argmax(x))(x)),
            (TypeError, "floats", lambda: grad(lambda i: (i * 1.0).sum())(i)),
            (ValueError, "argnums says argument 3", lambda: grad(lambda x: x.sum(), 3)(x)),
            (TypeError, "argnums is an int", lambda: grad(lambda x: x.sum(), "x")(x)),
            (ValueError, "twice", lambda: grad(lambda x: x.sum(), (0, 0))(x)),
            (TypeError, "tangents is a tuple", lambda: jvp(lambda x: x, (x,), x)),
            (ValueError, r"its tangent is .*\(2\)", lambda: jvp(lambda x: x, (x,), (C([1.0, 2.0]),))),
            (ValueError, "wanted", lambda: jvp(lambda x: x, (x,), (eager.cast(x, "float32"),))),
            (TypeError, "the tangent of argument 0", lambda: jvp(lambda x: x, (x,), ([x, x],))),
            (ValueError, "the cotangent is", lambda: vjp(lambda x: x, x)[1](C([1.0]))),
            (TypeError, "the cotangent is", lambda: vjp(lambda x: x, x)[1]((x, x))),
            (TypeError, "pull takes one", lambda: vjp(lambda x: x, x)[1](x, x)),
            (TypeError, "has_aux", lambda: grad(lambda x: x.sum(), has_aux=True)(x)),
            (ValueError, r"argument 1 \(f64\(3\)\): the result does not depend", lambda: grad(lambda x, y: x.sum(), (0, 1), allow_unused=False)(x, x)),
            (ValueError, r"argument 1 at \['b'\]", lambda: grad(lambda x, p: p["a"].sum(), 1, allow_unused=False)(x, {"a": x, "b": x})),
        ]
        for kind, text, call in cases:
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                call()

    def test_unused_gives_zeros(self):
        gx, gy = grad(lambda x, y: x.sum(), (0, 1))(C(H0), C(XS))
        np.testing.assert_array_equal(N(gy), np.zeros_like(XS))

    def test_an_exception_leaves_everything_usable(self):
        def bad(x):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            grad(bad)(C(H0))
        np.testing.assert_allclose(N(grad(lambda x: (x * x).sum())(C(H0))), 2 * H0)
        f = custom_vjp(lambda x: x)
        f.defvjp(lambda x: (x, None), lambda res, ct: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            grad(lambda x: f(x).sum())(C(H0))
        np.testing.assert_allclose(N(grad(lambda x: (x * x).sum())(C(H0))), 2 * H0)


if __name__ == "__main__":
    unittest.main()
