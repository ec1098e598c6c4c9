"""From decorating a kernel of 50 lines to having it traced: with its Python statements rewritten, and without
(rewrite=False)."""

import importlib.util
import os
import tempfile
import time

import numpy as np

import eas

KNOWN = '''
def k{n}(x, y, out, N, limit, MODE: eas.constexpr, BLOCK: eas.constexpr):
    p = mk.program_id(0)
    i = p * BLOCK + mk.arange(0, BLOCK)
    m = i < N
    v = mk.load(x, i, m)
    w = mk.load(y, i, m)
    if MODE == 0:
        s = v + w
    elif MODE == 1:
        s = v - w
    elif MODE == 2:
        s = v * w
    else:
        s = v / w
    t = mk.exp(s) * 0.5
    for q in range(3):
        t = t + mk.sin(v * q)
        if q == 1:
            t = t * 2.0
        else:
            t = t - 1.0
    total = mk.sum(t, axis=0)
    scale = 1.0
    if MODE < 2 and BLOCK > 4:
        scale = 2.0
    u = mk.where(t > total, t, s)
    a = u * scale
    b = a + v
    c = b - w
    if not MODE:
        c = c * 3.0
        b = b + 1.0
    d = mk.maximum(c, 0.0)
    e = mk.minimum(d, limit)
    f = mk.sqrt(mk.abs(e) + 1.0)
    g = f * f
    h = g + a * b
    z = mk.cos(h) if MODE else mk.sin(h)
    best = z
    j = 0
    while j < 4:
        best = mk.maximum(best, z * j)
        j = j + 1
        if j == 3:
            break
    r = best + h
    for jj in range(2):
        r = r + mk.floor(r * 0.25)
        r = r - jj
    o = r * 2.0 + total
    mk.store(out, i, o * scale, m)
'''
TRACED = KNOWN.replace("if q == 1:", "if limit > q:").replace("while j < 4:", "while j < N:").replace("if j == 3:", "if j == limit:").replace("for jj in range(2)", "for jj in range(N)")
COPIES = 40  # a function is rewritten once: each measurement takes one that was not


def module(text, folder, name):
    path = os.path.join(folder, name + ".py")
    with open(path, "w") as f:
        f.write("import eas\nfrom eas import mk\n" + "".join(text.format(n=n) for n in range(COPIES)))
    os.utime(path, (1, 1))  # older than this process, as an imported file is
    spec = importlib.util.spec_from_file_location(name, path)
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m


def measure():
    """{what: the least seconds}, interleaved"""
    arrays = [np.ones(64, np.float32) for _ in range(3)]

    def one(fn, **options):
        start = time.perf_counter()
        eas.kernel(**options)(fn).compile(*arrays, 64, 9.0, MODE=1, BLOCK=64)
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        known, traced = module(KNOWN, folder, "eas_bench_known"), module(TRACED, folder, "eas_bench_traced")
        times = {"as it is": [], "known": [], "traced": []}
        for n in range(0, COPIES, 2):
            times["as it is"].append(one(getattr(known, f"k{n}"), rewrite=False))
            times["known"].append(one(getattr(known, f"k{n + 1}")))
            times["traced"].append(one(getattr(traced, f"k{n}")))
    return {what: min(t) for what, t in times.items()}


def rows(table):
    t = measure()
    table.add("tracing 50 lines, conditions known, above `rewrite=False`", t["known"] - t["as it is"], {"1 ms": 1e-3}, 1.0)
    table.add("tracing 50 lines, conditions traced, above `rewrite=False`", t["traced"] - t["as it is"], {"1 ms": 1e-3}, 3.0)
