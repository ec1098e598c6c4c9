"""`eas doctor`: a self-test on every device. Each device is tested in a process of its own: a driver that
crashes is a finding, not the end."""

import os
import subprocess
import sys

import numpy as np

import eas
from eas import _eas, mk

_SECONDS = 120  # for one device


# ---- tests that run on a device ----


@eas.kernel
def _add(a, b, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.load(a, i, i < N) + mk.load(b, i, i < N), i < N)


@eas.kernel
def _exp(a, c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.store(c, i, mk.exp(mk.load(a, i, i < N)), i < N)


@eas.kernel
def _turn(a, c, BLOCK: eas.constexpr):
    t, p = mk.tid(0, BLOCK), mk.program_id(0)
    shared = mk.alloc_tg(BLOCK)
    mk.store(shared, t, mk.load(a, p * BLOCK + t))
    mk.barrier()
    mk.store(c, p * BLOCK + t, mk.load(shared, BLOCK - 1 - t))


@eas.kernel
def _count(c, N, BLOCK: eas.constexpr):
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    mk.atomic_add(c, i % 7, 1, i < N)


def _test_add(device):
    a, b, c = (np.arange(1031, dtype=np.float32) * s for s in (1, 3, 0))
    _launch(device, _add, a, b, c, 1031, BLOCK=256)
    return np.array_equal(c, a + b)


def _test_math(device):
    a = np.linspace(-80, 80, 999, dtype=np.float32)
    here, there = np.zeros_like(a), np.zeros_like(a)
    _launch(device, _exp, a, here, a.size, BLOCK=128)
    _launch("ref", _exp, a, there, a.size, BLOCK=128)
    return here.tobytes() == there.tobytes()


def _test_groups(device):
    a, c = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    _launch(device, _turn, a, c, BLOCK=64, _grid=4)
    return np.array_equal(c, a.reshape(4, 64)[:, ::-1].ravel())


def _test_atomics(device):
    c = np.zeros(7, np.int32)
    _launch(device, _count, c, 1000, BLOCK=64)
    return np.array_equal(c, np.bincount(np.arange(1000) % 7))


def _test_memory(device):
    a = np.arange(4099, dtype=np.int16)
    return np.array_equal(eas.tensor(a, device=device).to("cpu").numpy(), a)


def _launch(device, kernel, *args, **kw):
    before = os.environ.get("EAS_BACKEND")
    os.environ["EAS_BACKEND"] = device
    try:
        kernel(*args, **kw)
    finally:
        os.environ.pop("EAS_BACKEND") if before is None else os.environ.update(EAS_BACKEND=before)


_TESTS = {"add": _test_add, "exp": _test_math, "threadgroup": _test_groups, "atomics": _test_atomics, "copies": _test_memory}


def _inside(device):
    """In the device's own process: a line for each test that fails."""
    bad = 0
    for name, test in _TESTS.items():
        try:
            said = None if test(device) else "wrong result"
        except Exception as e:
            said = f"{type(e).__name__}: {e}"
        if said:
            bad += 1
            print(f"{name}: {said}")
    return 1 if bad else 0


# ---- reports ----

_FACTS = {d["name"]: d for d in _eas._device_facts()}
_ABSENT = {name: d["absent"] for name, d in _FACTS.items() if d["absent"]}
_FAILED = {name: d["failed"] for name, d in _FACTS.items()}


def _examine(device):
    """The faults of a device, a line each; an empty list if there are none."""
    cmd = [sys.executable, "-m", "eas", "doctor", "--inside", "--device", device]
    try:
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return [f"no answer in {_SECONDS} s"]
    if r.returncode == 0:
        return []
    lines = r.stdout.strip().splitlines()
    if r.returncode < 0:
        lines.append(f"the process died of signal {-r.returncode}")
    return lines or [line for line in r.stderr.strip().splitlines()[-3:]]


def _compiler():
    """The fault of the compiler: (text, remedy) or None."""
    try:
        _add.compile(np.zeros(1, np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32), 1, BLOCK=8).to_obj()
    except RuntimeError as e:
        remedy = "kernels run on the interpreter, slowly: install eas built with LLVM 19 or newer (-Dllvm=enabled), or point EAS_LLVM_LIBRARY at libeas-llvm"
        return str(e), remedy
    return None


def _say(mark, name, text, remedy=None):
    print(f"{mark:5}{name:9}{text}")
    if remedy:
        print(f"{'':14}-> {remedy}")


def _examine_library():
    """Examines everything that does not belong to a device; gives the number of faults."""
    faults = 0
    found = _compiler()
    _say("BAD" if found else "ok", "compiler", found[0] if found else "LLVM compiles for this machine", found and found[1])
    faults += found is not None
    folder, why = _eas.cache_dir(), _eas.cache_why()
    if folder:
        good, bad, _ = _eas.cache_verify()
        _say("BAD" if bad else "ok", "cache", f"{folder}: {good} entries" + (f"; {bad} were damaged and are gone" if bad else ""))
        faults += bool(bad)
    elif "switched off" in why:
        _say("-", "cache", why)
    else:
        _say("BAD", "cache", why, "kernels are compiled anew in every process: name a folder of your own in EAS_CACHE_DIR")
        faults += 1
    return faults


def doctor(opts):
    known = {name: why for name, _, why in eas.devices()}
    aliases = {d["alias"]: name for name, d in _FACTS.items()}
    chosen = [aliases.get(d, d) for d in opts.device or known]
    for d in chosen:
        if d not in known:
            from .arguments import Refused

            raise Refused(f"--device {d}: there are {', '.join(known)}")
    if opts.inside:
        return max(_inside(d) for d in chosen)
    faults = 0 if opts.device else _examine_library()
    for d in chosen:
        if known[d] is not None:
            _say("-", d, f"not available: {known[d]}", _ABSENT.get(d))
            faults += bool(opts.device)  # the device was named on the command line
            continue
        wrong = _examine(d)
        _say("BAD" if wrong else "ok", d, "; ".join(wrong) if wrong else f"{len(_TESTS)} tests passed", _FAILED.get(d) if wrong else None)
        faults += bool(wrong)
    print("all is well" if not faults else f"{faults} fault{'s' if faults > 1 else ''}")
    return 1 if faults else 0
