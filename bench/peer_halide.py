"""The cases of throughput.py that Halide can say, each scheduled by hand. Imported only where Halide is
installed."""

import halide as hl
import numpy as np

WIDTH = 16


def ready(func, shape):
    """A callable that runs the pipeline into one array, which it gives."""
    out = np.empty(shape, np.float32)
    buf = hl.Buffer(out)
    func.compile_jit()

    def run():
        func.realize(buf)
        return out

    return run


def f32(v):
    return hl.f32(float(v))


def gelu_of(u):
    return u / (f32(1) + hl.exp(f32(-1.5957691216057308) * (u + f32(0.044715) * u * u * u)))


def gelu(x, w, b, s):
    i, o, ii = hl.Var("i"), hl.Var("o"), hl.Var("ii")
    src, f = hl.Buffer(x), hl.Func("gelu")
    f[i] = gelu_of(src[i] * f32(w) + f32(b)) * f32(s)
    f.split(i, o, ii, 1 << 15).vectorize(ii, WIDTH).parallel(o)
    return ready(f, x.shape)


def folded(name, r, start, step, n, consumer):
    """f[r] is the fold of `step` over n elements: 4 vectors of partial results side by side, then those."""
    f, k, u = hl.Func(name), hl.RDom([(0, n)], name + "_k"), hl.Var(name + "_u")
    outer, inner, v, w = hl.RVar("ko"), hl.RVar("ki"), hl.Var("v"), hl.Var("w")
    f[r] = start
    f[r] = step(f[r], k.x)
    part = f.update(0).split(k.x, outer, inner, 4 * WIDTH).rfactor(inner, u)
    part.compute_at(consumer, r).split(u, v, w, WIDTH).vectorize(w).unroll(v)
    part.update(0).split(u, v, w, WIDTH).reorder(w, v, outer).vectorize(w).unroll(v)
    f.compute_at(consumer, r)
    return f


def softmax(x):
    rows, n = x.shape
    c, r = hl.Var("c"), hl.Var("r")
    src, e, scale, out = hl.Buffer(x), hl.Func("e"), hl.Func("scale"), hl.Func("softmax")
    top = folded("top", r, f32(-3e38), lambda t, k: hl.max(t, src[k, r]), n, out)
    e[c, r] = hl.exp(src[c, r] - top[r])
    total = folded("total", r, f32(0), lambda t, k: t + e[k, r], n, out)
    scale[r] = f32(1) / total[r]
    out[c, r] = e[c, r] * scale[r]
    out.vectorize(c, WIDTH).parallel(r)
    e.compute_at(out, r).vectorize(c, WIDTH)
    scale.compute_at(out, r)
    return ready(out, x.shape)


def layernorm(x, weight, bias, eps):
    rows, n = x.shape
    c, r = hl.Var("c"), hl.Var("r")
    src, w, b, mu, scale, out = hl.Buffer(x), hl.Buffer(weight), hl.Buffer(bias), hl.Func("mu"), hl.Func("scale"), hl.Func("layernorm")
    total = folded("total", r, f32(0), lambda t, k: t + src[k, r], n, out)
    mu[r] = total[r] / f32(n)
    squares = folded("squares", r, f32(0), lambda t, k: t + (src[k, r] - mu[r]) * (src[k, r] - mu[r]), n, out)
    scale[r] = f32(1) / hl.sqrt(squares[r] / f32(n) + f32(eps))
    out[c, r] = (src[c, r] - mu[r]) * scale[r] * w[c] + b[c]
    out.vectorize(c, WIDTH).parallel(r, 8)
    mu.compute_at(out, r)
    scale.compute_at(out, r)
    return ready(out, x.shape)


def sum_columns(x):
    rows, n = x.shape
    c, co, ci = hl.Var("c"), hl.Var("co"), hl.Var("ci")
    src, s, out, k = hl.Buffer(x), hl.Func("s"), hl.Func("columns"), hl.RDom([(0, rows)], "k")
    s[c] = f32(0)
    s[c] += src[c, k.x]
    out[c] = s[c]
    out.split(c, co, ci, n // 2).vectorize(ci, WIDTH).parallel(co)
    s.compute_at(out, co).vectorize(c, WIDTH)
    s.update(0).reorder(c, k.x).vectorize(c, WIDTH)
    return ready(out, (n,))


def sum_rows(x):
    rows, n = x.shape
    r, src, out = hl.Var("r"), hl.Buffer(x), hl.Func("rows")
    s = folded("s", r, f32(0), lambda t, k: t + src[k, r], n, out)
    out[r] = s[r]
    out.parallel(r, 64)
    return ready(out, (rows,))


def add_transposed(a, b):
    c, r, co, ro, ci, ri = (hl.Var(v) for v in ("c", "r", "co", "ro", "ci", "ri"))
    x, y, out = hl.Buffer(a), hl.Buffer(b), hl.Func("add_transposed")
    out[c, r] = x[c, r] + y[r, c]
    out.tile(c, r, co, ro, ci, ri, WIDTH, 32).vectorize(ci).parallel(ro)
    return ready(out, a.shape)
