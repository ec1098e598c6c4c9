"""Collectives: over MPI against MPI's own, between threads against memcpy. Both sides are C, in one process,
in turns (bench/collectives.c)."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile

from .tools import ROOT

PARTS = "comm reduce comm_threads comm_ranks comm_streams comm_fast comm_mail comm_world watch watch_net watch_board watch_start".split()
BASE = "status arena str hash dtype env fork pool turns".split()
SIZES = {1 << 10: "1 KB", 1 << 20: "1 MB", 64 << 20: "64 MB"}


def build(folder):
    program = os.path.join(folder, "collectives")
    sources = [os.path.join(ROOT, "src", "dist", p + ".c") for p in PARTS] + [os.path.join(ROOT, "src", "base", p + ".c") for p in BASE]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-DNDEBUG", "-ffp-contract=off", "-I" + os.path.join(ROOT, "include")]
    subprocess.run(["mpicc", os.path.join(ROOT, "bench", "collectives.c"), *sources, *flags, "-o", program, "-lpthread", "-ldl", "-lm"], check=True)
    return program


def measured(command, **env):
    text = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **env}, timeout=600).stdout
    return [(op, int(b), float(x), float(y)) for op, b, x, y in (line.split() for line in text.splitlines() if line.count(" ") == 3)]


def rows(table):
    if not (shutil.which("mpicc") and shutil.which("mpirun")):
        print("    (collectives: no MPI here)")
        return
    open_mpi = "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    kind = "openmpi" if open_mpi else "mpich"
    module = glob.glob(os.path.join(sys.prefix, "lib*", "python*", "site-packages", ".eas.mesonpy.libs", f"libeas-mpi-{kind}.*"))[0]
    with tempfile.TemporaryDirectory(prefix="eas-collectives-") as folder:
        program = build(folder)
        extra = ["--allow-run-as-root", "--oversubscribe"] if open_mpi else []
        for op, size, ours, theirs in measured(["mpirun", *extra, "-n", "2", program, "mpi"], EAS_MPI_LIBRARY=module):
            table.add(f"{op}, {SIZES[size]}, 2 ranks over {'Open MPI' if open_mpi else 'MPICH'}", ours, {"MPI's own": theirs}, 1.1)
        for op, size, ours, theirs in measured([program, "threads", "2"]):
            goal = 1 / 0.6 if op == "all_reduce" and size == 64 << 20 else None
            table.add(f"{op}, {SIZES[size]}, 2 threads", ours, {"memcpy of as much, 2 threads": theirs}, goal)
