"""Runs the C tests of one or more build folders and counts them.

usage: run_ctests.py [--summary FILE] [--env NAME=VALUE]... [--wrap "COMMAND ARGUMENT..."]
BUILD[:TEST,TEST...]...

As many programs run at once as there are cores. Every cmocka program counts by its tests, any other test of
the build as one. What is skipped (cmocka's skip(), or exit code 77) is counted apart and said. --wrap runs
them by another program (qemu). --summary appends "PASSED FAILED" to a file; totals of several runs are added
by --total FILE, which prints the plain last line.
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

LIMIT = 900  # seconds; an emulator takes longer


def tests_of(build):
    out = subprocess.run([sys.executable, "-m", "mesonbuild.mesonmain", "introspect", "--tests", build], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


SKIPPED = 77  # exit code of a program that has nothing to do on this machine, as meson knows it


def count(text, code):
    """(passed, failed, skipped) of one program."""
    ran = re.search(r"\[==========\] (\d+) test\(s\) run", text)
    if code == SKIPPED and not ran:
        return 0, 0, 1
    if not ran:
        return (1, 0, 0) if code == 0 else (0, 1, 0)
    passed = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", text))
    skipped = sum(int(n) for n in re.findall(r"\[  SKIPPED \] (\d+) test", text))
    failed = int(ran[1]) - passed - skipped
    return passed, failed if code == 0 or failed else failed + 1, skipped


def reasons(text):
    """Which tests were skipped, as cmocka lists them; else what the program said last."""
    named = sorted(set(re.findall(r"\[  SKIPPED \] (?!\d+ test)(\S+)", text)))
    return named or [text.strip().splitlines()[-1] if text.strip() else "no reason given"]


def run(test, env, wrap):
    start = time.time()
    try:
        r = subprocess.run(wrap + test["cmd"], env={**os.environ, **test["env"], **env}, capture_output=True, text=True, timeout=LIMIT * (8 if wrap else 1), errors="replace")
        code, text = r.returncode, r.stdout + r.stderr
    except subprocess.TimeoutExpired as e:
        code, text = -1, f"{(e.stderr or b'').decode(errors='replace')}\nno end after {e.timeout:.0f} s"
    passed, failed, skipped = count(text, code)
    said = f", {skipped} skipped: {', '.join(reasons(text))}" if skipped else ""
    print(f"  {test['name']:<24} {passed:>4} passed {failed:>4} failed  {time.time() - start:6.1f} s{said}", flush=True)
    if code and code != SKIPPED:
        print(text[-6000:], flush=True)
    return passed, failed


def total(path):
    pairs = [tuple(map(int, line.split())) for line in open(path)] if os.path.exists(path) else []
    passed, failed = sum(p for p, _ in pairs), sum(f for _, f in pairs)
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


def main():
    args, summary, env, wrap, builds = sys.argv[1:], None, {}, [], []
    while args:
        a = args.pop(0)
        if a == "--total":
            return total(args.pop(0))
        if a == "--summary":
            summary = args.pop(0)
        elif a == "--wrap":
            wrap = args.pop(0).split()
        elif a == "--env":
            name, value = args.pop(0).split("=", 1)
            env[name] = value
        else:
            builds.append(a)
    passed = failed = 0
    for build in builds:
        folder, _, only = build.partition(":")
        print(f"C tests in {folder}", flush=True)
        chosen = [t for t in tests_of(folder) if not only or t["name"] in only.split(",")]
        chosen.sort(key=lambda t: -t["priority"])  # the longest first
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for p, f in pool.map(lambda t: run(t, env, wrap), chosen):
                passed, failed = passed + p, failed + f
    if summary:
        with open(summary, "a") as f:
            f.write(f"{passed} {failed}\n")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
