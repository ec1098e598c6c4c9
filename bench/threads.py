"""The second thread: what it brings, and what it costs others while nothing runs.

Each number is measured in a process of its own, with one thread or two, since the number of threads is read
when the library is loaded. The limit is two plain processes of one thread each: two CPUs may be two
hyperthreads of one core."""

import os
import statistics
import subprocess
import sys
import time

from .tools import child, environment, results

TIMED = """
import time, numpy as np, eager
rng = np.random.default_rng(0)
{make}
f = eager.compile({function})
f(*args)
best = []
for _ in range(15):
    start = time.perf_counter()
    for _ in range({number}):
        f(*args)
    best.append((time.perf_counter() - start) / {number})
print(min(best))
"""
NUMBERS = "args = [eager.constant(rng.standard_normal({0}, np.float32)).realize() for _ in range({1})]"
CASES = (
    ("tanh, 2^20 f32, in the caches", NUMBERS.format("1 << 20", 1), "lambda x: eager.tanh(eager.tanh(x))", 20),
    ("product of 512 × 512", NUMBERS.format("(512, 512)", 2), "lambda x, y: x @ y", 20),
    ("product of 1024 × 1024", NUMBERS.format("(1024, 1024)", 2), "lambda x, y: x @ y", 3),
    ("softmax of 1024 × 1024", NUMBERS.format("(1024, 1024)", 1), "lambda x: eager.softmax(x)", 20),
    ("sort of 10^6 f32", NUMBERS.format("10**6", 1), "lambda x: eager.sort(x)", 2),
)

# A process that only counts, for a second; and one that launches a short kernel every millisecond.
COUNTING = "import time\nn, end = 0, time.perf_counter() + 1\nwhile time.perf_counter() < end:\n    n += 1\nprint(n)"
LAUNCHING = """
import time, numpy as np, eas
from eas import mk

@eas.kernel
def twice(x, out, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    v = mk.load(x, i, i < N)
    for _ in range(40):
        v = v * 1.5 - 0.25
    mk.store(out, i, v, i < N)

x, out = np.ones(1 << 17, np.float32), np.ones(1 << 17, np.float32)
run = lambda: twice(x, out, 1 << 17, BLOCK=1024)
run()

def busy(seconds, pause):
    launches, end, start = 0, time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < end:
        run()
        launches += 1
        if pause:
            time.sleep(pause)
    return (time.process_time() - start) / launches

{what}
"""


def in_process(threads, code):
    return child(code, environment(EAS_NUM_THREADS=str(threads)))


def file_of(code):
    """`child` runs code with -c; a kernel wants a file that its source is read from."""
    path = os.path.join(os.path.dirname(results("x")), "launching.py")
    with open(path, "w") as f:
        f.write(code)
    return f"import runpy\nrunpy.run_path({path!r})"


def both_at_once(code):
    """The slower one of two such processes of one thread, over one alone: 1 where CPUs are cores."""
    env = environment(EAS_NUM_THREADS="1")
    pair = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return max(float(p.communicate()[0].split()[-1]) for p in pair)


def speedups(table):
    for what, make, function, number in CASES:
        code = TIMED.format(make=make, function=function, number=number)
        one, two = (in_process(n, code) for n in (1, 2))
        limit = 2 * one / both_at_once(code)
        if one and two:
            table.add(f"second thread: {what}", one / two, {"1 thread": 1.0}, 1.85, unit="×", better="more", note=f"two processes of one thread: {limit:.2f}")


def spinning(table):
    """CPU time that a launch takes beyond its work: threads that look for more before they sleep."""
    code = file_of(LAUNCHING.format(what="print(busy(1, 0.001) - busy(0.5, 0))"))
    spent = [s for s in (in_process(2, code) for _ in range(3)) if s is not None]
    if spent:
        table.add("CPU time after a launch, both threads, before they sleep", max(1e-9, statistics.median(spent)), {"50 µs a thread": 100e-6}, 1)


def neighbour(table):
    """Two processes that count, one for each CPU, beside one that launches a kernel every millisecond; how
    much they lose beyond what its work takes."""
    counting = [sys.executable, "-c", COUNTING]

    def counted():
        pair = [subprocess.Popen(counting, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        return sum(int(p.communicate()[0]) for p in pair)

    alone = statistics.median(counted() for _ in range(3))
    code = file_of(LAUNCHING.format(what="busy(8, 0.001)"))
    beside = subprocess.Popen([sys.executable, "-c", code], env=environment(EAS_NUM_THREADS="2"))
    try:
        time.sleep(1.5)
        with_us = statistics.median(counted() for _ in range(3))
    finally:
        beside.kill()
        beside.wait()
    table.add("two processes that count, beside a launch every millisecond: share of their speed", with_us / alone, {"alone": 1.0}, 0.8, unit="", better="more", note="the launches' own work is some 5 % of both CPUs")


def rows(table):
    if (os.cpu_count() or 1) < 2:
        return
    speedups(table)
    spinning(table)
    neighbour(table)
