"""Fails if include/eas.h does not compile by itself, without warnings, as C99 and as C++, or if a function in
it has no comment.

usage: check_header.py CC CXX
"""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
USE = "#include <eas.h>\nint main(void) { return eas_version() == 0; }\n"


def unexplained():
    """Functions with a comment neither on their line nor above them; a comment speaks for all declarations up
    to the next empty line."""
    found, explained = [], False
    lines = (ROOT / "include" / "eas.h").read_text().splitlines()
    for i, line in enumerate(lines):
        if line.strip().startswith(("/*", "*")):
            explained = True
        elif not line.strip():
            explained = False
        elif line.startswith("EAS_API"):
            end = next(k for k in range(i, len(lines)) if ";" in lines[k])
            if not explained and "/*" not in lines[end]:
                found.append(line)
    return found


def main():
    cc, cxx = sys.argv[1:3]
    bad = len(unexplained())
    for line in unexplained():
        print(f"eas.h: no comment explains {line}")
    with tempfile.TemporaryDirectory() as tmp:
        for compiler, std, suffix in ((cc, "c99", ".c"), (cc, "c11", ".c"), (cxx, "c++11", ".cc"), (cxx, "c++20", ".cc")):
            path = pathlib.Path(tmp) / ("use" + suffix)
            path.write_text(USE)
            args = [compiler, f"-std={std}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{ROOT / 'include'}", str(path)]
            r = subprocess.run(args, capture_output=True, text=True)
            bad += r.returncode != 0
            print(f"eas.h as {std} with {compiler}: {'ok' if r.returncode == 0 else r.stderr}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
