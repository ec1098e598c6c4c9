"""Shared by the rows: interleaved medians, subprocesses, the table."""

import atexit
import ctypes
import functools
import json
import os
import platform
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


SETTLE = 0.15  # idle threads of OpenMP spin for 10 to 25 ms before they sleep, those of OpenBLAS up to 0.1 s: on two CPUs they cost whoever comes next half its speed


def interleaved(candidates, rounds=15, number=1, settle=0.0, shuffle=False, of=statistics.median, clock=time.perf_counter):
    """{name: median seconds per call} of {name: callable}, or what else is asked `of` them; the rounds take
    turns, so that drift hits all alike. With settle, each turn begins with calls that are not timed, for that
    many seconds: threads of the candidate before may still spin, and its data may fill the caches. With
    shuffle, nobody always follows the same one. clock: time.process_time is CPU time, for a machine that
    others use."""
    order, shuffled = list(candidates.items()), random.Random(0)
    times = {name: [] for name in candidates}
    for f in candidates.values():
        f()
    for _ in range(rounds):
        if shuffle:
            shuffled.shuffle(order)
        for name, f in order:
            begin = start = time.perf_counter()
            while start - begin < settle:
                f()
                start = time.perf_counter()
            start = clock()
            for _ in range(number):
                f()
            times[name].append((clock() - start) / number)
    return {name: of(t) for name, t in times.items()}


def c_library(source):
    """The C source as a loaded library for this very CPU; None, said once, without a compiler that can."""
    cc = os.environ.get("CC") or shutil.which("clang") or shutil.which("clang-19") or shutil.which("gcc") or shutil.which("cc")
    if not cc:
        print("    (no C compiler: the limits of the machine are not measured)", file=sys.stderr)
        return None
    folder = tempfile.mkdtemp(prefix="eas-bench-c-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    src, lib = os.path.join(folder, "t.c"), os.path.join(folder, "t.so")
    with open(src, "w") as f:
        f.write(source)
    # compilers cut vectors of 64 bytes in two unless they are told not to, and a limit measured so is half of
    # what the machine can do
    wide = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
    r = subprocess.run([*shlex.split(cc), "-O3", "-march=native", *wide, "-shared", "-fPIC", "-o", lib, src, "-lpthread"], capture_output=True, text=True)
    if r.returncode:
        print("    (the limits of the machine are not measured:", r.stderr.strip().splitlines()[-1], ")", file=sys.stderr)
        return None
    return ctypes.CDLL(lib)


def environment(**extra):
    """Of a child that finds the same packages."""
    import eas

    path = os.pathsep.join([os.path.dirname(os.path.dirname(eas.__file__)), ROOT, *sys.path])
    return {**os.environ, "PYTHONPATH": path, **extra}


def run_part(name, threads, table=None, **extra):
    """A part of the benchmarks in a process of its own, in which every library has that many threads: they
    read it when they are loaded. Its rows become rows of the table."""
    sys.stdout.flush()
    rows_file = results("rows-of-a-part")
    open(rows_file, "w").close()
    extra["EAS_BENCH_ROWS"] = rows_file
    names = ("EAS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "HL_NUM_THREADS")
    subprocess.run([sys.executable, "-m", f"bench.{name}"], env=environment(**{n: str(threads) for n in names}, **extra), cwd=ROOT, check=True)
    if table:
        with open(rows_file) as f:
            for line in f:
                row, data = json.loads(line)
                table.rows.append(row)
                table.data.append({**data, "part": table.part})


def child(code, env=None, timeout=300):
    """The float that `code` prints last, run in a fresh interpreter; None and the reason on stderr if it
    fails."""
    r = subprocess.run([sys.executable, "-c", code], env=env or environment(), capture_output=True, text=True, timeout=timeout)
    if r.returncode:
        print(f"    (skipped: {r.stderr.strip().splitlines()[-1] if r.stderr.strip() else r.returncode})", file=sys.stderr)
        return None
    return float(r.stdout.split()[-1])


def empty_caches():
    """An environment in which every peer's cache is empty; and the folder, for warm runs in it."""
    folder = tempfile.mkdtemp(prefix="eas-bench-")
    names = (
        "EAS_CACHE_DIR",
        "NUMBA_CACHE_DIR",
        "WARP_CACHE_PATH",
        "TI_OFFLINE_CACHE_FILE_PATH",
        "JAX_COMPILATION_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "XDG_CACHE_HOME",
    )
    env = {n: os.path.join(folder, n.lower()) for n in names}
    env["TMPDIR"] = folder  # MLX keeps what its JIT compiled in the temporary folder
    return environment(**env, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0", JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1", HOME=folder), folder


@functools.cache
def has(module):
    """Can the peer be imported? Says so once if not."""
    try:
        __import__(module)
    except Exception as e:
        print(f"    ({module}: {type(e).__name__}, left out)", file=sys.stderr)
        return False
    return True


def wanted(arguments=()):
    """The words of $CASE (or the arguments), one of which a row's name must contain, and the peers of $PEERS.
    """
    split = lambda name: [w for w in os.environ.get(name, "").replace("+", " ").split(",") if w]  # noqa: E731
    return list(arguments) or split("CASE"), [p for p in ("numpy", "torch", "jax") if p in (split("PEERS") or (p,))]


@functools.cache
def machine():
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo") as f:
            for text in f:
                if text.startswith("model name"):
                    return f"{' '.join(text.split(':')[1].split())}, {len(os.sched_getaffinity(0))} CPUs"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"


@functools.cache
def level():
    """The instruction set that code is made for, as EAS_ISA names it."""
    from eas._eas import devices

    return next(text for name, text, _ in devices() if name == "cpu").split(",")[0]


def peers_like_us():
    """The environment in which the peers use no more instructions than $EAS_ISA allows us."""
    if os.environ.get("EAS_ISA") not in ("avx2", "sse2"):
        return {}
    narrow = os.environ["EAS_ISA"] == "sse2"
    return {
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR" + (" X86_V3" if narrow else ""),
        "ATEN_CPU_CAPABILITY": "default" if narrow else "avx2",
        "ONEDNN_MAX_CPU_ISA": "SSE41" if narrow else "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2" if narrow else "AVX2",
        "OPENBLAS_CORETYPE": "Nehalem" if narrow else "Haswell",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={'SSE4_2' if narrow else 'AVX2'}".strip(),
    }


def results(name):
    """Where the numbers of a run are kept, for pictures."""
    os.makedirs(os.path.join(ROOT, "build", "bench"), exist_ok=True)
    return os.path.join(ROOT, "build", "bench", f"{name}.json")


def replace_part(name, text, path=None):
    """What stands between <!-- name: begin --> and <!-- name: end --> in docs/benchmarks.md; a part that is
    not there yet goes to the end."""
    path = path or os.path.join(ROOT, "docs", "benchmarks.md")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    with open(path) as f:
        old = f.read()
    part = f"{begin}\n{text.strip()}\n{end}"
    if begin in old:
        new = old[: old.index(begin)] + part + old[old.index(end) + len(end) :]
    else:
        new = old.rstrip() + "\n\n" + part + "\n"
    with open(path, "w") as f:
        f.write(new)


class Table:
    """Rows of (what, ours, best peer, ratio, goal), printed as markdown."""

    def __init__(self):
        self.rows = []
        self.data = []  # the same as numbers, for pictures
        self.part = ""  # whose rows these are

    def add(self, what, ours, peers, goal, unit="s", better="less", note="", right=True, limit=None, ratio=None, spread=None):
        """ours: seconds (or a rate); peers: {name: the same}; goal: the ratio to the best peer that is
        wanted. A wrong result (right=False) has no time. limit: (what of the machine, the seconds that it
        would allow, the fraction of it that is wanted). spread: the quartiles of the ratios of the rounds,
        for pictures. ratio: to be shown and judged instead of the ratio of ours to the best peer, for example
        the median of the ratios of the rounds."""
        if not right:
            ours, note = None, ("WRONG RESULT " + note).strip()
        peers = {n: v for n, v in peers.items() if v}
        pick = min if better == "less" else max
        best = pick(peers, key=peers.get) if peers else None
        if ratio is None:
            ratio = ours / peers[best] if best and ours else None
        elif not ours:
            ratio = None
        goals, met = [], []
        if goal is not None:
            goals.append(f"{'≤' if better == 'less' else '≥'} {goal:.2f}")
            met.append(ratio is not None and (ratio <= goal if better == "less" else ratio >= goal))
        if limit:
            name, least, wanted = limit
            reached = least / ours if least and ours else None
            goals.append(f"≥ {wanted:.0%} of {name}")
            met.append(reached is not None and reached >= wanted)
            note = ", ".join(filter(None, (f"{'unknown part' if reached is None else format(reached, '.0%')} of {name}", note)))
        others = ", ".join(f"{n} {show(v, unit)}" for n, v in sorted(peers.items(), key=lambda p: p[1], reverse=better == "more"))
        row = (
            what,
            show(ours, unit),
            others or "none",
            "" if ratio is None else f"{ratio:.2f}",
            ", ".join(goals),
            "" if not goals else "yes" if all(met) else "no",
            note,
        )
        self.rows.append(row)
        self.data.append({"part": self.part, "what": what, "ours": ours, "peers": peers, "ratio": ratio, "unit": unit, "better": better, "goal": goal, "note": note, "spread": spread, "row": row})
        if os.environ.get("EAS_BENCH_ROWS"):
            with open(os.environ["EAS_BENCH_ROWS"], "a") as f:
                f.write(json.dumps([row, self.data[-1]]) + "\n")
        print("| " + " | ".join(row) + " |", flush=True)

    def head(self):
        print("| what | eas | peers | ratio to the best | goal | met | note |\n|---|---|---|---|---|---|---|", flush=True)


def show(v, unit):
    if v is None:
        return "failed"
    if unit != "s":
        return f"{v:.1f} {unit}"
    for scale, name in ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms")):
        if v < scale * 1000:
            return f"{v / scale:.3g} {name}"
    return f"{v:.3g} s"
