"""Layer norm, forward and backward: each row to mean 0 and variance 1, then scaled by a weight and shifted by
a bias.

A program holds one row as a block of COLS elements, so that the row is read once, whatever is asked of it;
elements past the row's end are masked. The variance is taken around the mean, since E[x^2] - E[x]^2 cancels.

Backward, with xhat = (x - mean) * rstd and g the gradient of the output:
    dx      = rstd * (g*w - mean(g*w) - xhat * mean(g*w * xhat))    row by row: one program each
    dweight = sum of g * xhat over the rows                         down the columns, in two steps:
    dbias   = sum of g over the rows                                programs sum bands of BAND rows, then the
                                                                    bands are summed
No atomics: the sums have one order, so the result has the same bits every time."""

import numpy as np

import eas
from eas import mk
from examples import ms, peers, size

BAND, BLOCK = 64, 256


@eas.kernel
def layernorm(x, weight, bias, out, mean, rstd, N, eps, COLS: eas.constexpr):
    row, cols = mk.program_id(0), mk.arange(0, COLS)
    inside = cols < N
    v = mk.load(x, row * N + cols, inside)
    mu = mk.sum(v, axis=0) / N
    d = mk.where(inside, v - mu, 0.0)
    r = mk.rsqrt(mk.sum(d * d, axis=0) / N + eps)
    mk.store(out, row * N + cols, d * r * mk.load(weight, cols, inside) + mk.load(bias, cols, inside), inside)
    mk.store(mean, row, mu)  # the backward pass wants both
    mk.store(rstd, row, r)


@eas.kernel
def layernorm_dx(x, weight, grad, mean, rstd, dx, N, COLS: eas.constexpr):
    row, cols = mk.program_id(0), mk.arange(0, COLS)
    inside = cols < N
    mu, r = mk.load(mean, row), mk.load(rstd, row)
    xhat = (mk.load(x, row * N + cols, inside) - mu) * r
    g = mk.load(grad, row * N + cols, inside) * mk.load(weight, cols, inside)  # 0 past the end, and so is all that it multiplies
    along, level = mk.sum(g * xhat, axis=0) / N, mk.sum(g, axis=0) / N
    mk.store(dx, row * N + cols, r * (g - level - xhat * along), inside)


@eas.kernel
def band_sums(x, grad, mean, rstd, dweights, dbiases, ROWS, N, BAND: eas.constexpr, BLOCK: eas.constexpr):
    """One row of dweights and dbiases for each band of rows."""
    band, c = mk.program_id(1), mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    inside = c < N
    dw, db = mk.var(mk.zeros(BLOCK)), mk.var(mk.zeros(BLOCK))
    for row in mk.range(band * BAND, mk.minimum(band * BAND + BAND, ROWS)):
        g = mk.load(grad, row * N + c, inside)
        dw += g * ((mk.load(x, row * N + c, inside) - mk.load(mean, row)) * mk.load(rstd, row))
        db += g
    mk.store(dweights, band * N + c, dw, inside)
    mk.store(dbiases, band * N + c, db, inside)


@eas.kernel
def column_sums(dweights, dbiases, dweight, dbias, BANDS, N, BLOCK: eas.constexpr):
    c = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    inside = c < N
    dw, db = mk.var(mk.zeros(BLOCK)), mk.var(mk.zeros(BLOCK))
    for band in mk.range(0, BANDS):
        dw += mk.load(dweights, band * N + c, inside)
        db += mk.load(dbiases, band * N + c, inside)
    mk.store(dweight, c, dw, inside)
    mk.store(dbias, c, db, inside)


def columns(n):
    """The block that holds a row: the next multiple of 64."""
    return -(-n // 64) * 64


def forward(x, weight, bias, out, mean, rstd, eps):
    rows, n = x.shape
    layernorm(x, weight, bias, out, mean, rstd, n, eps, COLS=columns(n), _grid=rows)


def norm_dx(x, weight, grad, mean, rstd, dx):
    rows, n = x.shape
    layernorm_dx(x, weight, grad, mean, rstd, dx, n, COLS=columns(n), _grid=rows)


def norm_sums(x, grad, mean, rstd, dweight, dbias):
    (rows, n), bands = x.shape, -(-x.shape[0] // BAND)
    dweights, dbiases = np.empty((bands, n), np.float32), np.empty((bands, n), np.float32)
    band_sums(x, grad, mean, rstd, dweights, dbiases, rows, n, BAND=BAND, BLOCK=BLOCK, _grid=(-(-n // BLOCK), bands))
    column_sums(dweights, dbiases, dweight, dbias, bands, n, BLOCK=BLOCK, _grid=-(-n // BLOCK))


def backward(x, weight, grad, mean, rstd, dx, dweight, dbias):
    norm_dx(x, weight, grad, mean, rstd, dx)
    norm_sums(x, grad, mean, rstd, dweight, dbias)


def reference(x, weight, bias, eps):
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + eps) * weight + bias


def reference_backward(x, weight, grad, eps):
    centred = x - x.mean(1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    xhat, g = centred * rstd, grad * weight
    dx = rstd * (g - g.mean(1, keepdims=True) - xhat * (g * xhat).mean(1, keepdims=True))
    return dx, (grad * xhat).sum(0), grad.sum(0)


def slope(f, arrays, i, direction, h=1e-5):
    """How fast f rises as arrays[i] moves along the direction."""
    up, down = ([a + s * h * direction if j == i else a for j, a in enumerate(arrays)] for s in (1, -1))
    return (f(*up) - f(*down)) / (2 * h)


def check_slopes(x, weight, bias, grad, eps, gradients, rng):
    """Finite differences of the formula of the forward pass along random directions: the backward formulas
    are not taken on trust."""
    arrays = [a[:4].astype(np.float64) if a.ndim == 2 else a.astype(np.float64) for a in (x, weight, bias)]

    def loss(x, weight, bias):
        return (reference(x, weight, bias, eps) * grad[:4]).sum()

    for i, g in enumerate(gradients):
        direction = rng.standard_normal(arrays[i].shape)
        np.testing.assert_allclose((g * direction).sum(), slope(loss, arrays, i, direction), rtol=1e-5, atol=1e-5)


def torch_norm(torch, x, weight, bias):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


def jax_norm(jnp, x, weight, bias):
    d = x - x.mean(1, keepdims=True)
    return d / jnp.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * weight + bias


def torch_backward(torch, x, weight, bias, grad):
    rstd, mean = torch.native_layer_norm(x, weight.shape, weight, bias, 1e-5)[:0:-1]
    return torch.ops.aten.native_layer_norm_backward(grad, x, weight.shape, mean, rstd, weight, bias, [True, True, True])


def jax_backward(jnp, x, weight, bias, grad):
    import jax

    return jax.vjp(lambda *a: jax_norm(jnp, *a), x, weight, bias)[1](grad)


def main(rows=None, n=1000, eps=1e-5):
    rows = rows or size(4096, 70)
    n = size(n, 70)
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((rows, n), dtype=np.float32) * 3 + 1, rng.standard_normal((rows, n), dtype=np.float32)
    weight, bias = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    out, mean, rstd = np.empty_like(x), np.empty(rows, np.float32), np.empty(rows, np.float32)
    took = ms(lambda: forward(x, weight, bias, out, mean, rstd, eps))
    want = reference(x.astype(np.float64), weight, bias, eps)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, x.mean(1, dtype=np.float64), rtol=1e-4, atol=1e-5)

    got = np.empty_like(x), np.empty_like(weight), np.empty_like(bias)
    back = ms(lambda: backward(x, weight, grad, mean, rstd, *got))
    for g, w in zip(got, reference_backward(x.astype(np.float64), weight, grad, eps)):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5 * rows**0.5)
    check_slopes(x, weight, bias, grad, eps, reference_backward(x[:4].astype(np.float64), weight, grad[:4], eps), rng)

    there = ms(lambda: reference(x, weight, bias, eps))
    others = peers(x, weight, bias, torch=torch_norm, jax=jax_norm)
    more = peers(x, weight, bias, grad, torch=torch_backward, jax=jax_backward)
    print(
        f"layernorm of {rows} x {n}: {took:.2f} ms, NumPy {there:.2f} ms{others}; backward {back:.2f} ms{more}; largest error {abs(out - want).max():.1e}"
    )


if __name__ == "__main__":
    main()
