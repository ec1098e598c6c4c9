"""python -m bench [row ...]: all rows, or those named (the tuple ROWS)."""

import importlib
import os
import platform
import sys
import traceback

from .tools import Table

ROWS = (
    "launch",
    "cold",
    "bandwidth",
    "matmul",
    "throughput",
    "compiling",
    "rewriting",
    "lazy",
    "ops",
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
)


def main(names):
    table = Table()
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load {load:.1f} at the start\n")
    if load > 0.5:
        print("The machine is not idle: read ratios with care.\n")
    table.head()
    for name in names or ROWS:
        try:
            importlib.import_module("." + name, __package__).rows(table)
        except Exception:
            print(f"    ({name} failed)")
            traceback.print_exc()
    return 0


sys.exit(main(sys.argv[1:]))
