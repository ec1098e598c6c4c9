"""Fits the polynomials of src/ir/math.c. Run it to see where each table of coefficients comes from; needs
mpmath.

A function f is fitted on [lo, hi] as sum c_i x^i by a few exchange steps on the error weighted by w, in 60
digits, and then its coefficients are rounded to the working precision one after the other, highest first
fixed last, refitting the rest.
"""

import sys

import mpmath as mp

mp.mp.dps = 60


def round_to(x, bits):
    """x with `bits` bits of mantissa."""
    if x == 0:
        return mp.mpf(0)
    m, e = mp.frexp(x)
    s = mp.mpf(2) ** bits
    return mp.nint(m * s) / s * mp.mpf(2) ** e


def solve(f, w, lo, hi, powers, nodes):
    """Levelled error at the nodes: sum c_i x^i + (-1)^k E / w = f."""
    n = len(powers)
    A = mp.matrix(n + 1, n + 1)
    b = mp.matrix(n + 1, 1)
    for k, x in enumerate(nodes):
        for i, p in enumerate(powers):
            A[k, i] = x**p
        A[k, n] = (-1) ** k / w(x)
        b[k] = f(x)
    s = mp.lu_solve(A, b)
    return [s[i] for i in range(n)], abs(s[n])


def remez(f, w, lo, hi, powers, steps=12, grid=4000):
    n = len(powers) + 1
    mid, half = (mp.mpf(lo) + hi) / 2, (mp.mpf(hi) - lo) / 2
    nodes = [mid - half * mp.cos(mp.pi * (2 * k + 1) / (2 * n)) for k in range(n)]
    xs = [mid - half * mp.cos(mp.pi * mp.mpf(k) / grid) for k in range(grid + 1)]
    fw = [(f(x), w(x)) for x in xs]
    best = None
    for _ in range(steps):
        try:
            c, level = solve(f, w, lo, hi, powers, nodes)
        except ZeroDivisionError:  # two nodes have met
            break
        err = [(sum(ci * x**p for ci, p in zip(c, powers)) - fx) * wx for x, (fx, wx) in zip(xs, fw)]
        worst = max(abs(e) for e in err)
        if best is None or worst < best[1]:
            best = (c, worst)
        if worst < level * mp.mpf("1.001"):
            break
        ext = []  # the largest error of each run of one sign
        for x, e in zip(xs, err):
            if ext and (ext[-1][1] > 0) == (e > 0):
                if abs(e) > abs(ext[-1][1]):
                    ext[-1] = (x, e)
            else:
                ext.append((x, e))
        while len(ext) > n:
            ext.pop(0 if abs(ext[0][1]) < abs(ext[-1][1]) else -1)
        if len(ext) < n:
            break
        nodes = [x for x, _ in ext]
    return best


def fit(name, f, lo, hi, powers, bits, w=lambda x: mp.mpf(1), fixed=None):
    """Prints C coefficients, lowest power first, each rounded to bits; earlier ones are fixed while later
    ones adapt."""
    powers = list(powers)
    done = dict(fixed or {})
    todo = [p for p in powers if p not in done]
    g = lambda x: f(x) - sum(c * x**p for p, c in done.items())  # noqa: E731
    worst = None
    while todo:
        c, worst = remez(g, w, lo, hi, todo)
        p = todo.pop(0)
        done[p] = round_to(c[0], bits)
    print(f"/* {name}: error {mp.nstr(worst, 3)} = 2^{mp.nstr(mp.log(worst, 2), 4)} */")
    digits = 10 if bits <= 24 else 18
    print("{" + ", ".join(mp.nstr(done[p], digits, strip_zeros=False) for p in powers) + "},")
    sys.stdout.flush()


def interpolate(name, f, lo, hi, n, bits):
    """The polynomial of n coefficients that meets f at Chebyshev's nodes, rounded at once: where its error is
    far below the rounding of its sum, nothing better is needed."""
    xs = [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * n)) for k in range(n)]
    c = mp.lu_solve(mp.matrix([[x**j for j in range(n)] for x in xs]), mp.matrix([f(x) for x in xs]))
    c = [round_to(c[i], bits) for i in range(n)]
    grid = [lo + (hi - lo) * k / 500 for k in range(1, 501)]
    worst = max(abs(sum(ci * x**j for j, ci in enumerate(c)) - f(x)) for x in grid)
    print(f"/* {name}: error {mp.nstr(worst, 3)} = 2^{mp.nstr(mp.log(worst, 2), 4)} */")
    print("{" + ", ".join(mp.nstr(v, 10 if bits <= 24 else 18, strip_zeros=False) for v in c) + "},")


one = mp.mpf(1)
ln2h = mp.log(2) / 2
sq = mp.sqrt(2)


def exp_tail(x):  # (e^x - 1 - x) / x^2
    return (mp.expm1(x) - x) / x**2 if abs(x) > mp.mpf(10) ** -20 else one / 2 + x / 6


def exp2_tail(x):  # (2^x - 1) / x
    return mp.expm1(x * mp.log(2)) / x if abs(x) > mp.mpf(10) ** -20 else mp.log(2)


def log_tail(x):  # (log(1+x) - x + x^2/2) / x^3
    return (mp.log1p(x) - x + x * x / 2) / x**3 if abs(x) > mp.mpf(10) ** -12 else one / 3 - x / 4


LOG2E_32 = round_to(1 / mp.log(2), 24)


def log2_tail(x):  # (log2(1+x) - L x) / x, L being log2(e) in f32
    return mp.log1p(x) / mp.log(2) / x - LOG2E_32 if abs(x) > mp.mpf(10) ** -20 else 1 / mp.log(2) - LOG2E_32


def log_s(z):  # log((1+s)/(1-s)) = 2s + s*R(s^2), z = s^2: R(z)/z
    s = mp.sqrt(z)
    return (mp.log((1 + s) / (1 - s)) / s - 2) / z if z > mp.mpf(10) ** -12 else mp.mpf(2) / 3 + z * 2 / 5


def sin_tail(z):  # (sin x - x) / x^3
    x = mp.sqrt(z)
    return (mp.sin(x) - x) / (x * z) if z > mp.mpf(10) ** -12 else -one / 6 + z / 120


def cos_tail(z):  # (cos x - 1 + x^2/2) / x^4
    x = mp.sqrt(z)
    return (mp.cos(x) - 1 + z / 2) / z**2 if z > mp.mpf(10) ** -10 else one / 24 - z / 720


def tan_tail(z):  # (tan x - x) / x^3
    x = mp.sqrt(z)
    return (mp.tan(x) - x) / (x * z) if z > mp.mpf(10) ** -12 else one / 3 + z * 2 / 15


def tanh_tail(z):
    x = mp.sqrt(z)
    return (mp.tanh(x) - x) / (x * z) if z > mp.mpf(10) ** -12 else -one / 3 + z * 2 / 15


def erf_tail(z):  # (erf(x)/x - 2/sqrt(pi)) / x^2
    x = mp.sqrt(z)
    c = 2 / mp.sqrt(mp.pi)
    return (mp.erf(x) / x - c) / z if z > mp.mpf(10) ** -15 else -c / 3 + z * c / 10


def atan_tail(z):  # (atan(x)/x - 1) / x^2
    x = mp.sqrt(z)
    return (mp.atan(x) / x - 1) / z if z > mp.mpf(10) ** -12 else -one / 3 + z / 5


def asin_tail(z):  # (asin(x)/x - 1) / x^2
    x = mp.sqrt(z)
    return (mp.asin(x) / x - 1) / z if z > mp.mpf(10) ** -12 else one / 6 + z * 3 / 40


def log2_s(z):  # log2((1+s)/(1-s)) = 2/ln2 (s + s^3/3 + s^5 R(s^2)): what stands for R, with its factor
    return 2 / mp.log(2) * mp.nsum(lambda j: z**j / (2 * j + 5), [0, 60])


def log_erfc(x):
    return -mp.log(mp.erfc(x))


def log_erfc_t(t):  # -log(erfc(x)) - x^2 with x = 2.5 (1+t)/(1-t)
    x = mp.mpf("2.5") * (1 + t) / (1 - t)
    return -mp.log(mp.erfc(x)) - x * x


def t_of(x):
    x = mp.mpf(x)
    return (x - mp.mpf("2.5")) / (x + mp.mpf("2.5"))


def exp_tail2(x):  # what follows 1/2 in exp_tail
    return (exp_tail(x) - one / 2) / x if abs(x) > mp.mpf(10) ** -18 else one / 6 + x / 24


TASKS = {
    "exp32": lambda: fit("exp32, after 1/2", exp_tail2, -ln2h, ln2h, range(5), 24),
    "exp32_whole": lambda: fit("exp32, after 1 + x", exp_tail, -ln2h, ln2h, range(5), 24, w=lambda x: x * x + mp.mpf(10) ** -12),
    "exp64": lambda: fit("exp64", exp_tail, -ln2h, ln2h, range(11), 53),
    "exp2_32": lambda: fit("exp2_32", exp2_tail, -one / 2, one / 2, range(7), 24),
    "exp2_64": lambda: fit("exp2_64", exp2_tail, -one / 2, one / 2, range(13), 53),
    "log32": lambda: fit("log32", log_tail, sq / 2 - 1, sq - 1, range(10), 24),
    "log2_32": lambda: fit("log2_32", log2_tail, sq / 2 - 1, sq - 1, range(11), 24),
    "log64": lambda: fit("log64", log_s, mp.mpf(0), ((sq - 1) / (sq + 1)) ** 2, range(8), 53),
    "sin32": lambda: fit("sin32", sin_tail, mp.mpf(0), (mp.pi / 4) ** 2, range(4), 24),
    "cos32": lambda: fit("cos32", cos_tail, mp.mpf(0), (mp.pi / 4) ** 2, range(4), 24),
    "sin64": lambda: fit("sin64", sin_tail, mp.mpf(0), (mp.pi / 4) ** 2, range(8), 53),
    "cos64": lambda: fit("cos64", cos_tail, mp.mpf(0), (mp.pi / 4) ** 2, range(8), 53),
    "tan64": lambda: interpolate("tan64", tan_tail, mp.mpf(0), (mp.pi / 4) ** 2 * 1.0001, 15, 53),
    "tanh32": lambda: fit("tanh32", tanh_tail, mp.mpf(0), one, range(8), 24),
    "erf32": lambda: fit("erf32", erf_tail, mp.mpf(0), mp.mpf("0.77"), range(7), 24),
    "erf64": lambda: fit("erf64", erf_tail, mp.mpf(0), one, range(14), 53),
    "erfc32": lambda: fit("erfc32", lambda x: log_erfc(x + 1), -mp.mpf("0.3"), mp.mpf(3), range(11), 24, w=lambda x: mp.erfc(x + 1)),
    "erfc64": lambda: fit("erfc64", log_erfc_t, t_of(1), t_of(6), range(20), 53, w=lambda t: mp.erfc(mp.mpf("2.5") * (1 + t) / (1 - t))),
    "atan32": lambda: fit("atan32", atan_tail, mp.mpf(0), one, range(9), 24, w=lambda z: z + mp.mpf("0.01")),
    "atan64": lambda: interpolate("atan64", atan_tail, mp.mpf(0), one, 22, 53),
    "asin32": lambda: fit("asin32", asin_tail, mp.mpf(0), one / 4, range(5), 24, w=lambda z: z + mp.mpf("0.01")),
    "asin64": lambda: interpolate("asin64", asin_tail, mp.mpf(0), one / 4, 13, 53),
    "pow32": lambda: interpolate("pow32", log2_s, mp.mpf(0), ((sq - 1) / (sq + 1)) ** 2, 4, 24),
    "pow64": lambda: interpolate("pow64", log2_s, mp.mpf(0), ((sq - 1) / (sq + 1)) ** 2, 10, 53),
    "cbrt": lambda: fit("cbrt", lambda x: 1 / mp.cbrt(x), sq / 4, sq * 2, range(6), 24, w=mp.cbrt),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or TASKS:
        TASKS[name]()
