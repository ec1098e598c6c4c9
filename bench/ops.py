"""Every operation of the table (op_table.py) × dtypes × sizes, with two threads, against NumPy, torch and
JAX: which rows are slower than 1.2 times the best of them.

Ours is the call of a compiled function; the peers' are their usual ways (torch eager, JAX jitted). Everything
of a row runs in turns, with calls in front that are not timed: threads of the peer before may still spin.
Results are compared first, and a peer that gives another one is named and left out. A row takes a fraction of
a second, all of them some ten minutes; those that seem slower are measured again, longer, and what counts is
that.

EAS_BENCH_BUSY=1 is for a machine that others use: everybody gets one thread, and what is compared is the CPU
time of the process, which waiting for others does not count to.

PART=3/8 takes the third eighth of the rows and adds what it measured to what the other parts left in
build/bench, for a machine that is free for minutes only: the page is written anew after each of them, and
says how many runs it comes from. Rows of another machine or measured in another way are not mixed in; without
build/bench/ops-LEVEL.json it begins anew. With CASE, PART=1/1 adds these rows.

CASE=softmax,sort takes the rows with such words in their name, PEERS=torch,jax only these peers (then
docs/benchmarks.md stays as it is); EAS_ISA=avx2 gives the picture of a machine with less: the peers are told
to use no more, too."""

import json
import os
import random
import statistics
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass, field

import numpy as np

from . import op_table
from .limits import THREADS
from .tools import SETTLE, has, level, machine, peers_like_us, replace_part, run_part, show, wanted
from .tools import results as results_file

GOAL = 1.2
ROUNDS, AGAIN = 5, 11
TURN, QUIET = 0.0015, 0.005  # seconds that are timed in a turn, and those before it that are not
MOST = 3.0  # seconds a row may take
BUSY = os.environ.get("EAS_BENCH_BUSY", "0") != "0"
CPUS = 1 if BUSY else THREADS
clock = time.process_time if BUSY else time.perf_counter
NUMPY = {"f32": "float32", "f64": "float64", "i32": "int32", "u8": "uint8", "bool": "bool"}
TOLERANCE = {"f32": 1e-5, "f64": 1e-9, "bf16": 2e-2}
SHAPES = {**op_table.SIZES, "256²": (256, 256), "512²": (512, 512), "64×64²": (64, 64, 64)}


def dtype_of(name):
    if name == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(NUMPY[name])


def aligned(a):
    """From a cache line on, as torch and JAX place their own arrays."""
    raw = np.zeros(a.nbytes + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    out = raw[skip : skip + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


# ---- inputs ----


def numbers(kind, shape, dtype, rng):
    if dtype.kind in "iu":
        low, high = {"positive": (1, 100), "shift": (0, 7), "few": (0, 200), "classes": (0, 64), "near1": (0, 3)}.get(
            kind, (0 if dtype.kind == "u" else -100, 100)
        )
        return rng.integers(low, high, shape)
    if kind == "positive":
        return rng.uniform(0.5, 9, shape)
    if kind == "near1":
        return rng.uniform(0.999, 1.001, shape)
    if kind in ("unit", "above1", "small"):
        return rng.uniform(*{"unit": (-0.9, 0.9), "above1": (1, 9), "small": (0, 200)}[kind], shape)
    return rng.integers(0, 200, shape) if kind == "few" else rng.standard_normal(shape)


def data(kind, size, dtype, seed):
    """An input, by its name in op_table.py; a tuple is the shape of normal numbers."""
    rng = np.random.default_rng(seed)
    shape = kind if isinstance(kind, tuple) else SHAPES[size]
    count = shape[0]
    if isinstance(kind, tuple) or kind in ("square", "batch", "row"):
        return aligned((numbers("normal", shape[-1:] if kind == "row" else shape, dtype, rng) * (0.1 if dtype.kind == "f" else 1)).astype(dtype))
    if kind == "key":
        return None
    if kind in ("index", "permutation"):
        return aligned(rng.permutation(count) if kind == "permutation" else rng.integers(0, count, count))
    if kind == "along":
        return aligned(rng.integers(0, shape[-1], shape))
    if kind in ("bool", "mask"):
        return aligned(rng.random(shape) < 0.5)
    if kind in ("never", "always"):
        return aligned(np.full(shape, kind == "always"))
    if kind == "sparse":
        return aligned(np.where(rng.random(shape) < 0.1, 1, 0).astype(dtype))
    if kind == "distinct":
        return aligned(np.argsort(rng.random(shape), axis=-1).astype(dtype))
    x = numbers(kind, shape, dtype, rng)
    return aligned((np.sort(x) if kind == "sorted" else x).astype(dtype))


# ---- the candidates of a row ----


def function(expression, names, **scope):
    return eval(f"lambda {', '.join(names)}: {expression}", scope)


def our_run(row, names, arrays):
    import eager

    there = [eager.key(0) if a is None else eager.constant(a).realize() for a in arrays]
    f = function(row.ours, names, e=eager)
    if row.compiled:
        f = eager.compile(f)  # its results are evaluated
        return lambda: f(*there)

    def several():
        out = f(*there)
        eager.realize_all(*out)
        return out

    return several if isinstance(f(*there), tuple) else lambda: f(*there).realize()


def numpy_run(row, names, arrays):
    f = function(row.numpy, names, np=np, rng=np.random.Generator(np.random.SFC64(0)))
    return lambda: f(*arrays)


def torch_tensor(torch, a):
    return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.dtype.itemsize == 2 else torch.from_numpy(a)


def torch_run(row, names, arrays):
    import torch

    there = [None if a is None else torch_tensor(torch, a) for a in arrays]
    f = function(row.torch, names, t=torch, F=torch.nn.functional)
    if row.op.startswith("conv2d"):  # as its layers keep filters
        there[1] = there[1].permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last).permute(2, 3, 1, 0)

    def run():
        with torch.no_grad():
            return f(*there)

    return run


def jax_run(row, names, arrays):
    import jax

    jax.config.update("jax_enable_x64", True)
    there = [jax.random.key(0) if a is None else jax.numpy.asarray(a) for a in arrays]
    f = function(row.jax.replace("jkey", "x"), names, jnp=jax.numpy, jax=jax, lax=jax.lax)
    if row.compiled:
        f = jax.jit(f)
    return lambda: jax.block_until_ready(f(*there))


RUNS = {"numpy": numpy_run, "torch": torch_run, "jax": jax_run}


def as_array(x):
    if isinstance(x, tuple | list):
        return [as_array(i) for i in x]
    if type(x).__module__.split(".")[0] == "torch":
        return x.float().numpy() if x.dtype.itemsize == 2 and x.dtype.is_floating_point else x.numpy()
    if hasattr(x, "numpy"):
        x = x.numpy()
    return np.asarray(x)


def same(a, b, row, dtype):
    if isinstance(a, list):
        return len(a) == len(b) and all(same(i, j, row, dtype) for i, j in zip(a, b))
    a, b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
    tol = max(TOLERANCE.get(dtype, 0), row.tol, 0.3 if dtype == "bf16" and row.tol else 0)
    if a.shape != b.shape:
        return a.size == b.size == 1 and np.allclose(a.ravel(), b.ravel(), tol, tol)
    return np.allclose(a, b, tol, tol, equal_nan=True)


@dataclass
class Case:
    row: op_table.Row
    dtype: str
    size: str
    ours: object = None
    peers: dict = field(default_factory=dict)

    @property
    def name(self):
        return ", ".join(filter(None, (self.row.name, self.dtype, self.size)))

    def make(self, peers, say):
        dtype = dtype_of(self.dtype)
        arrays = [data(kind, self.size, dtype, seed) for seed, kind in enumerate(self.row.data)]
        names = ["x", "y", "z"][: len(arrays)]
        self.ours = our_run(self.row, names, arrays)
        mine = as_array(self.ours())
        for peer in peers:
            if not getattr(self.row, peer) or (peer == "numpy" and self.dtype == "bf16") or (peer != "numpy" and not has(peer)):
                continue
            try:
                f = RUNS[peer](self.row, names, arrays)
                result = as_array(f())
            except Exception as e:
                say(f"{self.name}: {peer} cannot ({' '.join(str(e).split())[:90]})")
                continue
            if self.row.compare and not same(mine, result, self.row, self.dtype):
                say(f"{self.name}: {peer} gives another result")
                continue
            self.peers[peer] = f


def cases(words):
    for row in op_table.ROWS:
        for dtype in row.dtypes:
            for size in row.sizes:
                c = Case(row, dtype, size)
                if not words or any(w in c.name for w in words):
                    yield c


# ---- measuring ----


def turn(f, number, quiet):
    begin = start = clock()
    while start - begin < quiet:
        f()
        start = clock()
    for _ in range(number):
        f()
    return (clock() - start) / number


def often(f):
    """How many calls make a turn."""
    start = clock()
    f()
    took = clock() - start
    if took < TURN / 4:
        took = turn(f, max(1, int(TURN / 4 / max(took, 1e-7))), 0)
    return max(1, int(TURN / max(took, 1e-7)))


def times(candidates, rounds, quiet):
    """{name: seconds of each round}."""
    counts = {n: often(f) for n, f in candidates.items()}
    out, order, begin = {n: [] for n in candidates}, list(candidates), time.perf_counter()
    shuffled = random.Random(0)
    for done in range(rounds):
        shuffled.shuffle(order)
        for n in order:
            out[n].append(turn(candidates[n], counts[n], quiet))
        if done >= 2 and time.perf_counter() - begin > MOST:
            break
    return out


def measure(c, rounds):
    blas = not BUSY and c.row.op in ("matmul", "outer", "tensordot", "dot", "vecdot") and "numpy" in c.peers
    t = times({"eas": c.ours, **c.peers}, rounds, SETTLE if blas else 0 if BUSY else QUIET)
    median = {n: statistics.median(v) for n, v in t.items()}
    best = min(c.peers, key=median.get) if c.peers else None
    ratios = sorted(a / b for a, b in zip(t["eas"], t[best])) if best else []
    return {
        "name": c.row.name, "op": c.row.op, "dtype": c.dtype, "size": c.size, "times": median, "best": best,
        "ratio": statistics.median(ratios) if ratios else None, "low": ratios[len(ratios) // 4] if ratios else None, "high": ratios[-1 - len(ratios) // 4] if ratios else None,
    }  # fmt: skip


def line(r):
    others = ", ".join(f"{n} {show(v, 's')}" for n, v in sorted(r["times"].items(), key=lambda p: p[1]) if n != "eas")
    ratio = f"{r['ratio']:.2f} ({r['low']:.2f}–{r['high']:.2f})" if r["best"] else "no peer"
    return f"| {r['name']} | {r['dtype']} | {r['size']} | {show(r['times']['eas'], 's')} | {others} | {ratio} |"


def forgotten():
    from eas._eas import tensor_ops

    measured = {r.op for r in op_table.ROWS}
    return sorted(n for n in tensor_ops if n not in measured and not op_table.unmeasured(n))


# ---- runs in parts ----


def part_of(rows):
    """The rows of $PART, which is "k/n"."""
    k, n = map(int, os.environ["PART"].split("/"))
    return rows[len(rows) * (k - 1) // n : len(rows) * k // n]


def key(r):
    return r["name"], r["dtype"], r["size"]


def with_earlier(path, found):
    """found, the rows and notes of this part, with those that earlier parts of the same kind left."""
    same_kind = ("machine", "level", "busy")
    if not os.path.exists(path):
        return found
    with open(path) as f:
        old = json.load(f)
    if any(old.get(n) != found[n] for n in same_kind):
        return found
    now = {key(r) for r in found["rows"]}
    rows = [r for r in old["rows"] if key(r) not in now] + found["rows"]
    return {**found, "rows": rows, "notes": sorted({*old["notes"], *found["notes"]}), "runs": old.get("runs", 1) + 1}


# ---- the report ----

HEAD = "| operation | dtype | size | eas | peers | ratio to the best (quartiles) |\n|---|---|---|---|---|---|"


def report(results, notes, runs=1, wanted_rows=0):
    slow = sorted((r for r in results if r["best"] and r["ratio"] > GOAL), key=lambda r: -r["ratio"])
    ratios = [r["ratio"] for r in results if r["best"]]
    alone = sorted({r["name"] for r in results if not r["best"]})
    geometric = statistics.geometric_mean(ratios) if ratios else 0
    head = (
        f"{machine()}, instruction set {level()}, {'one thread each, CPU time, since the machine was busy' if BUSY else f'{THREADS} threads'}: {len(results)} rows of {len({r['op'] for r in results})} operations in {'one run' if runs == 1 else f'{runs} runs'}{f' ({wanted_rows - len(results)} rows of the table were not reached)' if wanted_rows > len(results) + len(notes) else ''}. Of {len(ratios)} with a peer"
        f" {sum(r <= 0.9 for r in ratios)} take at most 0.9 of the best peer's time, {sum(r <= GOAL for r in ratios)} at most {GOAL}; the geometric mean is {geometric:.2f}."
        f" Slower than {GOAL} times the best are {len(slow)}:"
    )
    lines = [
        *textwrap.wrap(head, 106),
        "",
        HEAD,
        *map(line, slow),
        "",
    ]
    if alone:
        lines += [f"Without a peer: {', '.join(alone)}.", ""]
    if notes:
        lines += [f"Left out, since the peer cannot or gives another result: {len(notes)} (the run lists them).", ""]
    return "\n".join(lines)


def main(words, peers):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    warnings.filterwarnings("ignore")
    missing = forgotten()
    if missing:
        raise SystemExit(f"bench/op_table.py has no row for {', '.join(missing)}")
    results, notes, todo = [], [], list(cases(words))
    all_rows, parts = len(list(cases([]))), "PART" in os.environ
    if parts:
        todo = part_of(todo)
    start = time.perf_counter()

    def say(text):
        notes.append(text)
        print(f"    ({text})", file=sys.stderr, flush=True)

    print(HEAD)
    for c in todo:
        try:
            c.make(peers, say)
            r = measure(c, ROUNDS)
            if r["best"] and r["ratio"] > GOAL - 0.05:
                r = measure(c, AGAIN)
        except Exception as e:
            say(f"{c.name}: {type(e).__name__}: {' '.join(str(e).split())[:200]}")
            continue
        finally:
            c.ours, c.peers = None, {}
        results.append(r)
        if words or not r["best"] or r["ratio"] > GOAL:
            print(line(r), flush=True)
    print(f"\n{len(results)} rows in {time.perf_counter() - start:.0f} s")
    path = results_file(f"ops-{level()}{'-part' if (words and not parts) or len(peers) < 3 else ''}")
    found = {"machine": machine(), "level": level(), "busy": BUSY, "rows": results, "notes": notes, "runs": 1}
    if parts:
        found = with_earlier(path, found)
    with open(path, "w") as f:
        json.dump(found, f, indent=1)
    text = report(found["rows"], found["notes"], found["runs"], all_rows)
    print("\n" + text)
    if (parts or not words) and len(peers) == 3:
        replace_part(f"ops {level()}", text)


def rows(table):
    extra = peers_like_us()
    if BUSY:
        extra["XLA_FLAGS"] = f"{extra.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    run_part("ops", CPUS, **extra)


if __name__ == "__main__":
    main(*wanted(sys.argv[1:]))
