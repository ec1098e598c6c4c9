"""What each command does. A command takes the parsed options and gives the exit code."""

import json
import os
import sys

import numpy as np

import eas
from eas import _eas

from . import doctor
from .arguments import Maker, Refused, bind, load_kernel, parse, parse_meta


def _grid(text):
    if text is None:
        return None
    try:
        grid = tuple(int(n) for n in text.split(","))
    except ValueError:
        grid = ()
    if not 1 <= len(grid) <= 3 or min(grid) < 0:
        raise Refused(f"--grid {text}: want 1 to 3 numbers, as 64 or 64,32")
    return grid


def _bound(opts):
    specs, maker = parse(opts.arg), Maker(opts.size, opts.fill, opts.seed)
    return bind(load_kernel(opts.kernel), specs, parse_meta(opts.meta), maker)


def _runtime(opts):
    try:
        return eas.runtime.get_runtime(opts.device)
    except (ValueError, RuntimeError) as e:
        raise Refused(str(e)) from None


def _bytes(n):
    for unit in ("B", "KB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000


# ---- info ----


def _torch_version():
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def _torch_tier():
    """How launches with torch's mps tensors are done, or None without torch. Imports torch."""
    if _torch_version() is None:
        return None
    from ..torch import tier

    try:
        return "{}: {}".format(*tier())
    except (ValueError, RuntimeError, OSError) as e:  # a setting that cannot be had, a torch that does not load
        return f"none: {e}"


def _facts():
    devices = []
    for name, text, why in eas.devices():
        devices.append({"name": name, "description": text, "unavailable": why, "limits": None if why else _eas.limits(name)})
    return {
        "eas": eas.__version__,
        "build": _eas.build_id,
        "llvm": _eas.llvm_version,
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "torch": _torch_version(),
        "torch_tier": _torch_tier(),
        "threads": _eas.num_threads(),
        "devices": devices,
        "default_device": os.environ.get("EAS_BACKEND") or "cpu",
        "cache": {"folder": _eas.cache_dir(), "off": None if _eas.cache_dir() else _eas.cache_why()},
    }


def _limits_text(limits):
    parts = []
    if limits["threads"]:
        parts.append(f"groups of {limits['threads']} threads")
    if limits["threadgroup_bytes"]:
        parts.append(f"{limits['threadgroup_bytes']} bytes of threadgroup memory")
    if limits["buffers"]:
        parts.append(f"{limits['buffers']} buffers")
    if limits["max_alloc"]:
        parts.append(f"{_bytes(limits['max_alloc'])} an array")
    parts += [("" if limits[f] else "no ") + name for f, name in (("f64", "f64"), ("i64_atomics", "64-bit atomics"))]
    return ", ".join(parts)


def info(opts):
    facts = _facts()
    if opts.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(
        f"eas {facts['eas']} (build {facts['build'][:12]}), LLVM {facts['llvm']}, Python {facts['python']}, NumPy {facts['numpy']}, "
        f"torch {facts['torch'] or 'none'}"
    )
    print(f"launches go to {facts['default_device']} by default, over {facts['threads']} threads on the CPU")
    print("devices")
    for d in facts["devices"]:
        print(f"  {d['name']:8}{d['description'] if d['unavailable'] is None else 'not available: ' + d['unavailable']}")
        if d["limits"]:
            print(f"  {'':8}{_limits_text(d['limits'])}")
    if facts["torch"]:
        print(f"torch   cpu tensors are arguments without a copy; mps tensors by tier {facts['torch_tier']}")
    print(f"cache   {facts['cache']['folder'] or 'off: ' + facts['cache']['off']}")
    return 0


# ---- compile ----


def compile_(opts):
    kernel, args = _bound(opts)
    ck = kernel.compile(**args)
    if opts.emit == "obj":
        if opts.output is None and sys.stdout.isatty():
            raise Refused("an object file is no text: give -o FILE")
        data = ck.to_obj()
    else:
        data = (str(ck.ir) if opts.emit == "ir" else getattr(ck, opts.emit)).encode()
    if opts.output is None:
        sys.stdout.buffer.write(data)
    else:
        with open(opts.output, "wb") as f:
            f.write(data)
    return 0


# ---- run ----


def _read_ir(path):
    from eas.ir import IRModule

    try:
        text = sys.stdin.read() if path == "-" else open(path, encoding="utf-8").read()
    except (OSError, UnicodeDecodeError) as e:
        raise Refused(f"{path}: {e.strerror if isinstance(e, OSError) else 'not a text file'}") from None
    try:
        return IRModule.parse(text)
    except ValueError as e:
        raise Refused(f"{path}: {e}") from None


def _outputs(texts, names):
    outs = {}
    for text in texts or ():
        name, eq, path = text.partition("=")
        if not eq or name not in names:
            raise Refused(f"--out {text!r}: want NAME=FILE.npy; the kernel writes {', '.join(names) or 'nothing'}")
        outs[name] = path
    return outs


def _content(x):
    """An array as NumPy prints it; bfloat16 as float32."""
    if isinstance(x, np.ndarray):
        return x
    import ctypes

    bits = np.ctypeslib.as_array((ctypes.c_uint16 * (x.nbytes // 2)).from_address(x.data_ptr())) if x.nbytes else np.empty(0, np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(x.shape)


def run(opts):
    ir = _read_ir(opts.file)
    specs, maker = parse(opts.arg), Maker(opts.size, opts.fill, opts.seed)
    names = [p.name for p in ir.args]
    for name in specs:
        if name not in names:
            raise Refused(f"--arg {name}: the kernel has no such parameter; it has {', '.join(names) or 'none'}")
    args = {p.name: maker.typed(specs.get(p.name), p) for p in ir.args}
    ck, runtime = _eas.compile_ir(ir), _runtime(opts)
    written = [n for n in names if n in ck.writes]
    outs = _outputs(opts.out, written)
    moved = {n: a.to(runtime.device) if isinstance(a, eas.Tensor) and not runtime.on_host else a for n, a in args.items()}
    runtime.run(ck, moved, None, grid=_grid(opts.grid))
    for name in written:
        x = moved[name]
        x = _content(x.to("cpu") if isinstance(x, eas.Tensor) else x)
        if name in outs:
            np.save(outs[name], x)
        else:
            print(f"{name}: {np.array2string(x, threshold=64)}")
    return 0


# ---- bench ----


def _measure(runtime, ck, args, grid, seconds):
    """(median, least, how many) seconds a launch, over samples of at least a millisecond."""
    once = runtime.benchmark(ck, args, None, repeat=1, warmup=1, grid=grid)
    repeat = max(1, min(100000, int(1e-3 / max(once, 1e-9))))
    samples, left = [], seconds
    while left > 0 or len(samples) < 3:
        samples.append(runtime.benchmark(ck, args, None, repeat=repeat, grid=grid))
        left -= samples[-1] * repeat
    samples.sort()
    return samples[len(samples) // 2], samples[0], len(samples) * repeat


def _moved_bytes(ck, args):
    """The least number of bytes that have to move: an array counts once if it is read, and once if it is
    written."""
    params = [(p, args[p.name]) for p in ck.ir.args if p.kind == "buffer"]
    return sum(a.nbytes * (bool(p.read) + bool(p.written)) for p, a in params)


def bench(opts):
    if opts.seconds <= 0:
        raise Refused(f"--seconds {opts.seconds}: want more than 0")
    kernel, call = _bound(opts)
    runtime, grid = _runtime(opts), _grid(opts.grid)
    ck = kernel.compile(**call)
    defaults = _defaults(kernel)
    args = {n: call.get(n, defaults.get(n)) for n in ck.params}
    args = {n: a.to(runtime.device) if isinstance(a, eas.Tensor) else a for n, a in args.items()}
    if not runtime.on_host:  # the time of the kernel is measured, not that of copies
        args = {n: eas.tensor(a, device=runtime.device) if isinstance(a, np.ndarray) else a for n, a in args.items()}
    median, least, count = _measure(runtime, ck, args, grid, opts.seconds)
    moved = _moved_bytes(ck, args)
    if opts.json:
        print(json.dumps({"kernel": ck.name, "device": runtime.device, "seconds": median, "least": least, "launches": count, "bytes": moved}))
        return 0
    print(
        f"{ck.name} on {runtime.device}: {_time(median)} a launch (least {_time(least)}, {count} launches), {moved / median / 1e9:.2f} GB/s over {_bytes(moved)} of arrays"
    )
    return 0


def _defaults(kernel):
    from inspect import signature

    return {n: p.default for n, p in signature(kernel.fn).parameters.items() if p.default is not p.empty}


def _time(s):
    return f"{s * 1e6:.2f} µs" if s < 1e-3 else f"{s * 1e3:.3f} ms" if s < 1 else f"{s:.3f} s"


# ---- check, cache ----


def check(opts):
    kernel, args = _bound(opts)
    grid = _grid(opts.grid)
    report = eas.check(kernel, **args, **({} if grid is None else {"_grid": grid}))
    print(str(report).rstrip() or "nothing found")
    return 0 if report.ok else 1


def cache(opts):
    folder = _eas.cache_dir()
    if not folder:
        print(f"the cache is off: {_eas.cache_why()}")
        return 0 if opts.action == "stats" else 1
    if opts.action == "clear":
        _eas.cache_clear()
        print(f"{folder}: emptied")
        return 0
    if opts.action == "verify":
        good, bad, size = _eas.cache_verify()
        print(f"{folder}: {good} entries are good ({_bytes(size)}), {bad} were damaged{' and are gone' if bad else ''}")
        return 1 if bad else 0
    sizes = [e.stat().st_size for e in os.scandir(folder) if e.name.endswith(".eas")]
    print(f"{folder}: {len(sizes)} entries, {_bytes(sum(sizes))}")
    return 0


COMMANDS = {"info": info, "compile": compile_, "run": run, "bench": bench, "check": check, "cache": cache, "doctor": doctor.doctor}
