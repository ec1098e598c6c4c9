"""Random stacks of up to four transforms over functions of every kind, in float64, against JAX.

EAGER_STACKS says how many, EAGER_SEED where to begin.
"""

import importlib.util
import os
import random
import unittest

import numpy as np

import eager

HAS_JAX = importlib.util.find_spec("jax") is not None
STACKS = int(os.environ.get("EAGER_STACKS", "12"))
SEED = int(os.environ.get("EAGER_SEED", "1"))
MATRIX = np.random.default_rng(0).standard_normal((3, 3))
ORDER = np.array([2, 0, 1])


class Ours:
    """What functions and stacks are made of, in eager."""

    transforms, compiled, where, sort, prod = eager, eager.compile, eager.where, eager.sort, eager.prod
    sin, cos, tanh, exp, log, sqrt = eager.sin, eager.cos, eager.tanh, eager.exp, eager.log, eager.sqrt
    total, largest, softmax, ones_like = eager.reduce_sum, eager.reduce_max, eager.softmax, eager.ones_like
    scan, cond, loop = eager.scan, eager.cond, eager.while_loop
    array = staticmethod(eager.Tensor.from_dlpack)

    @staticmethod
    def join(*parts):
        return eager.concatenate(list(parts), axis=0)

    @staticmethod
    def stack(*parts):
        return eager.stack(list(parts), axis=0)

    @staticmethod
    def products(x):
        return eager.cumprod(x, axis=0)

    @staticmethod
    def repeat(n, body, x):
        return eager.fori_loop(0, n, body, x)


def theirs():
    import jax
    import jax.numpy as jnp

    class Theirs:
        """The same in JAX."""

        transforms, compiled, where, sort, prod = jax, jax.jit, jnp.where, jnp.sort, jnp.prod
        sin, cos, tanh, exp, log, sqrt = jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.log, jnp.sqrt
        largest, softmax, ones_like = jnp.max, jax.nn.softmax, jnp.ones_like
        scan, cond, loop = jax.lax.scan, jax.lax.cond, jax.lax.while_loop
        array, products = jnp.asarray, jnp.cumprod

        @staticmethod
        def total(x, axis=None):
            return jnp.sum(x, axis=axis)

        @staticmethod
        def join(*parts):
            return jnp.concatenate(parts)

        @staticmethod
        def stack(*parts):
            return jnp.stack(parts)

        @staticmethod
        def repeat(n, body, x):
            return jax.lax.fori_loop(0, n, body, x)

    return Theirs


def functions(m):
    """Functions of three numbers to three numbers."""
    matrix, order = m.array(MATRIX), m.array(ORDER)

    def scanned(x):
        last, each = m.scan(lambda c, v: (c * m.cos(v) + x, m.total(c) * v), x, x)
        return last * each

    return {
        "product": lambda x: m.tanh(matrix @ x),
        "softmax": lambda x: m.softmax(x * 2.0) * x,
        "cumprod": m.products,
        "sort": lambda x: m.sort(x) * m.sin(x),
        "gather": lambda x: x[order] * x,
        "update": lambda x: x.at[1].set(x[0] * x[2]),
        "prod": lambda x: x * m.prod(x),
        "max": lambda x: x * m.largest(x),
        "concatenate": lambda x: m.join(x[1:] * x[:2], x[:1]),
        "where": lambda x: m.where(x > 0.1, m.log(m.where(x > 0.1, x, 1.0)), x * x),
        "pow": lambda x: m.exp(x) ** (x * 0.3),
        "norm": lambda x: x / m.sqrt(m.total(x * x) + 0.1),
        "scan": scanned,
        "cond": lambda x: m.cond(m.total(x) > 0, lambda v: m.sin(v) * v, lambda v: v * v * v, x),
        "fori_loop": lambda x: m.repeat(3, lambda i, c: m.sin(c) * x, x),
        "while_loop": lambda x: m.loop(lambda c: m.total(c * c) > 0.01, lambda c: c * 0.5 * m.cos(x), x),
    }


def transforms(m):
    """Each takes a function of three numbers to three numbers, and gives one."""
    t = m.transforms

    def scalar(f):
        return lambda x: m.total(m.sin(f(x)))

    def mapped(f):
        return lambda x: m.total(t.vmap(f)(m.stack(x, x * 1.1, x - 0.2)), axis=0)

    def tangent(f):
        return lambda x: t.jvp(f, (x,), (x,))[1]

    def cotangent(f):
        def g(x):
            y, pull = t.vjp(f, x)
            return pull(y * 0.5 + 1.0)[0]

        return g

    def linear(f):
        def g(x):
            y, push = t.linearize(f, x)
            return push(x) + y

        return g

    return {
        "grad": lambda f: t.grad(scalar(f)),
        "vmap": mapped,
        "jvp": tangent,
        "vjp": cotangent,
        "compile": m.compiled,
        "jacrev": lambda f: lambda x: t.jacrev(f)(x) @ x,
        "jacfwd": lambda f: lambda x: t.jacfwd(f)(x) @ x,
        "linearize": linear,
        "checkpoint": t.checkpoint,
        "hessian": lambda f: lambda x: t.hessian(scalar(f))(x) @ x,
    }


@unittest.skipUnless(HAS_JAX, "no jax")
class TestStacks(unittest.TestCase):
    def test_as_jax(self):
        import jax

        with jax.enable_x64(True):
            other = theirs()
            ours, wanted = functions(Ours), functions(other)
            ways, other_ways = transforms(Ours), transforms(other)
            compared = 0
            for k in range(SEED, SEED + STACKS):
                r = random.Random(k)
                name, stack = r.choice(list(ours)), [r.choice(list(ways)) for _ in range(r.randint(1, 4))]
                f, g = ours[name], wanted[name]
                for way in stack:
                    f, g = ways[way](f), other_ways[way](g)
                x = np.random.default_rng(k).uniform(0.2, 1.2, 3)
                with self.subTest(seed=k, function=name, stack=stack):
                    if name == "while_loop" and self.reverses(stack):
                        with self.assertRaisesRegex(Exception, "max_steps"):
                            f(Ours.array(x)).numpy()
                        continue
                    want = np.asarray(g(other.array(x)))
                    got = f(Ours.array(x)).numpy()
                    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9 * (1 + np.abs(want).max()))
                    compared += 1
            self.assertGreater(compared, STACKS // 2)

    @staticmethod
    def reverses(stack):
        return bool({"grad", "vjp", "jacrev", "hessian"} & {*stack})


if __name__ == "__main__":
    unittest.main()
