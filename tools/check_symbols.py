"""Fails if a shared library exports a symbol that does not begin with eas_.

usage: check_symbols.py LIBRARY...
"""

import subprocess
import sys


def exported(path):
    flag = "-gU" if sys.platform == "darwin" else "-D"
    args = ["nm", flag, path] if sys.platform == "darwin" else ["nm", flag, "--defined-only", path]
    out = subprocess.run(args, check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in out.splitlines() if line.split()]
    return [n.removeprefix("_") if sys.platform == "darwin" else n for n in names]


def main():
    bad = 0
    for path in sys.argv[1:]:
        names = exported(path)
        wrong = sorted(n for n in names if not n.split("@")[0].startswith("eas_"))
        bad += len(wrong)
        for n in wrong:
            print(f"{path}: exports {n}")
        if not wrong:
            print(f"{path}: {len(names)} symbols, all eas_")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
