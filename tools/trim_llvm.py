"""Takes LLVM's scheduling tables out of a static library, without the names of their rows: those are read by
debug output only, and their 40,000 addresses are most of what the loader has to fill in when libeas-llvm is
opened, a third of the time that takes. Fails, and writes nothing, where anything looks otherwise: then the
library is linked as it is.

usage: trim_llvm.py OUT LIBRARY MEMBER
"""
import os
import re
import subprocess
import sys
import tempfile

TABLES = ".data.rel.ro*SchedClasses*"


def run(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def only_names(obj):
    """Are all addresses in the tables those of strings?"""
    tables = inside = False
    for line in run("readelf", "-rW", obj).splitlines():
        if line.startswith("Relocation section"):
            inside = re.search(r"'\.rela\.data\.rel\.ro\S*SchedClasses\S*'", line) is not None
            tables |= inside
        elif inside and " R_" in line and not line.split()[4].startswith(".rodata.str"):
            return False
    return tables


def main(out, library, member):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["ar", "x", os.path.abspath(library), member], cwd=folder, check=True, capture_output=True)
        obj = os.path.join(folder, member)
        if not only_names(obj):
            sys.exit(1)
        run("objcopy", f"--remove-relocations={TABLES}", obj)
        os.makedirs(os.path.dirname(out), exist_ok=True)
        if os.path.exists(out):
            os.remove(out)
        run("ar", "qcsD", out, obj)  # a library of its own, since the linker hides what comes from libraries


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, subprocess.CalledProcessError):
        sys.exit(1)
