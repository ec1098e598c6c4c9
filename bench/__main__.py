"""python -m bench [row ...]: all rows, or those named (the tuple ROWS), then the pictures.

With $CASE the rows of `ops` whose names have one of these words (make bench CASE=softmax PEERS=torch,jax)."""

import importlib
import json
import os
import platform
import sys
import traceback

from .tools import Table, level, machine, replace_part, results

ROWS = (
    "launch",
    "cold",
    "bandwidth",
    "matmul",
    "throughput",
    "kernels_by_hand",
    "compiling",
    "rewriting",
    "lazy",
    "ops",
    "threads",
    "devices",
    "torch_bridge",
    "grads",
    "derive",
    "minilm",
    "models",
    "linalg",
    "collectives",
    "shard",
    "callgrind",
    "costs",
)
HEAD = "| what | eas | peers | ratio to the best | goal | met | note |\n|---|---|---|---|---|---|---|"


def keep(table, names, load):
    """The numbers for pictures, and the table of everything in docs/benchmarks.md once each part has been run
    on this machine: parts that are run again replace their rows. A run that $EAS_ISA limits has its own."""
    limited = bool(os.environ.get("EAS_ISA"))
    path, old = results(f"rows-{level()}" if limited else "rows"), []
    if os.path.exists(path):
        with open(path) as f:
            kept = json.load(f)
        if (kept["machine"], kept["level"]) == (machine(), level()):
            old = [r for r in kept["rows"] if r["part"] not in {*(names or ROWS)}]
    rows = sorted(old + [r | {"load": load} for r in table.data], key=lambda r: ROWS.index(r["part"]))
    with open(path, "w") as f:
        json.dump({"machine": machine(), "level": level(), "load": load, "rows": rows}, f, indent=1)
    if not limited and {r["part"] for r in rows} >= {*ROWS} - {"ops"}:
        busiest = max(r["load"] for r in rows)
        head = f"{machine()}, instruction set {level()}: the last run of each part; the load before a part was {busiest:.1f} at most."
        replace_part("rows", "\n".join([head, "", HEAD, *("| " + " | ".join(r["row"]) + " |" for r in rows if r["part"] != "ops")]))


def draw():
    from . import pictures

    try:
        pictures.main()
    except ImportError as e:
        print(f"    (no pictures: {e}; make bench installs matplotlib)", file=sys.stderr)


def main(names):
    table = Table()
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load {load:.1f} at the start\n")
    if load > 0.5:
        print("The machine is not idle: read ratios with care.\n")
    table.head()
    for name in names or (("ops",) if os.environ.get("CASE") else ROWS):
        table.part = name
        try:
            importlib.import_module("." + name, __package__).rows(table)
        except Exception:
            print(f"    ({name} failed)")
            traceback.print_exc()
    if not os.environ.get("CASE"):
        keep(table, names, load)
        draw()
    return 0


sys.exit(main(sys.argv[1:]))
