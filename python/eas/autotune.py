"""`@eas.autotune`: picks meta values by measuring (the module is also the decorator)."""

import os
import sys

from . import _eas
from . import kernel as _kernel
from ._callable import make_callable
from ._eas import Kernel, Tensor, interpreting
from .runtime import Runtime, get_runtime

__all__ = ["Autotuner", "Config", "autotune"]

_own_get_runtime = get_runtime


class Config:
    """Meta values to try: `eas.Config(meta={"BLOCK": 256})`."""

    __slots__ = ("meta",)

    def __init__(self, meta):
        self.meta = dict(meta)

    def __eq__(self, other):
        return isinstance(other, Config) and self.meta == other.meta

    def __hash__(self):
        return hash(tuple(sorted(self.meta.items())))

    def __repr__(self):
        return f"Config(meta={self.meta!r})"


def _runtime():
    """The runtime: get_runtime may be replaced in this module or in eas.kernel; both replacements count."""
    return get_runtime() if get_runtime is not _own_get_runtime else _kernel.get_runtime()


class Autotuner:
    """A kernel that chooses among configs: once for each value of the key arguments (and argument types)."""

    def __init__(self, kernel, configs, key, warmup, repeat, prune=None, restore=None, deterministic=False):
        self.kernel = kernel
        self.configs = configs
        self.key = key
        self.warmup = warmup
        self.repeat = repeat
        self.prune = prune
        self.restore = restore
        self.deterministic = deterministic
        self.best = {}  # key -> Config
        self.timings = {}  # key -> seconds per config
        self.__module__ = kernel.__module__
        self.__name__ = kernel.__name__
        self.__qualname__ = kernel.__qualname__
        self.__doc__ = kernel.__doc__
        self.__wrapped__ = kernel

    def __get__(self, owner, kind=None):
        kernel = self.kernel.__get__(owner, kind)
        if kernel is self.kernel:
            return self
        bound = Autotuner(kernel, self.configs, self.key, self.warmup, self.repeat, self.prune, self.restore, self.deterministic)
        bound.best, bound.timings = self.best, self.timings
        return bound

    def __reduce__(self):
        from ._pickle import by_name

        if self.kernel.__self__ is not None:
            return getattr, (self.kernel.__self__, self.__name__)
        more = (self.configs, self.key, self.warmup, self.repeat, self.prune, self.restore, self.deterministic)
        return by_name(self, lambda: (Autotuner, (self.kernel, *more)))

    def _bind(self, args, kw):
        """(arguments by name with their defaults, launch options)"""
        from inspect import signature

        options = {n: v for n, v in kw.items() if n.startswith("_") and n not in self.kernel.params}
        wanted = signature(self.kernel.fn)
        if self.kernel.__self__ is not None:
            wanted = wanted.replace(parameters=list(wanted.parameters.values())[1:])
        bound = wanted.bind_partial(*args, **{n: v for n, v in kw.items() if n not in options})
        bound.apply_defaults()
        return bound.arguments, options

    def _key(self, bound, ck):
        missing = [k for k in self.key if k not in bound]
        if missing:
            raise ValueError(f"autotune key {missing[0]!r} is not an argument of this call of {self.__name__}()")
        return tuple(bound[k] for k in self.key), tuple((a.name, str(a.dtype)) for a in ck.ir.args)

    def _compile(self, config, bound, options):
        return self.kernel.compile(**{**bound, **config.meta}, **options)

    def _any(self, bound, options):
        """The first config's kernel that can be made: all have the same argument types."""
        error = None
        for config in self.configs:
            try:
                return self._compile(config, bound, options)
            except ValueError as e:
                error = error or e
        raise error

    def _launch_args(self, config, bound, options):
        ck = self._compile(config, bound, options)
        runtime_args = _kernel.RuntimeArgs((n, bound[n]) for n in ck.params if n in bound)
        return ck, runtime_args, ck.meta, _run_options(options, ck.meta, runtime_args)

    def _candidates(self, bound, options, device):
        """({index: what a launch needs} of the configs that may run on the device, {index: why not} of the
        others)"""
        kept = self.configs if self.prune is None else list(self.prune(list(self.configs), dict(bound)))
        strange = [c for c in kept if c not in self.configs]
        if strange:
            raise ValueError(f"autotune: prune gave {strange[0]!r}, which is none of the configs")
        good, bad = {}, {}
        for i, config in enumerate(self.configs):
            if config not in kept:
                bad[i] = "left out by prune"
                continue
            try:
                made = self._launch_args(config, bound, options)
            except ValueError as e:  # no device could run it, or it does not fit these arguments
                bad[i] = str(e)
                continue
            why = made[0].misfit(device) if device else None
            if why is None:
                good[i] = made
            else:
                bad[i] = why
        if not good:
            reasons = "".join(f"\n  {self.configs[i]!r}: {why}" for i, why in bad.items())
            raise ValueError(f"autotune: no config of {self.__name__}() can run:{reasons}")
        return good, bad

    def _measure(self, bound, options, key):
        """Seconds of each config, -1 for those that cannot run. Timings that are on disk are not measured
        again."""
        runtime = _runtime()
        device = runtime.device if isinstance(runtime, Runtime) else None
        good, _ = self._candidates(bound, options, device)
        times = [-1.0] * len(self.configs)
        if self.deterministic:
            times[min(good)] = 0.0
            return times
        text = repr((key, self.warmup, self.repeat))
        known = {i: _eas.tune_load(made[0], device, text) for i, made in good.items()} if device else {}
        cold = {i: made for i, made in good.items() if known.get(i) is None}
        if device:
            _compile_all(cold.values(), device)
        saved = _Saved(next(iter(good.values())), self.restore) if cold else None
        for done, (i, made) in enumerate(cold.items()):
            _progress(self.__name__, done, len(cold))
            known[i] = self._time(runtime, made)
            saved.put_back()
            if device:
                _eas.tune_store(made[0], device, text, max(known[i], 1e-12))
                # another process may have measured this config meanwhile: its time counts for both
                known[i] = _eas.tune_load(made[0], device, text) or known[i]
        _progress(self.__name__, len(cold), len(cold))
        for i, t in known.items():
            times[i] = t
        return times

    def _time(self, runtime, made):
        ck, runtime_args, meta, opts = made
        return runtime.benchmark(ck, runtime_args, meta, repeat=self.repeat, warmup=self.warmup, **{n: v for n, v in opts.items() if n != "sync"})

    def choose(self, *args, **kw):
        """The config for these arguments, measured if it is not known yet."""
        return self._choose(*self._bind(args, kw))

    def _choose(self, bound, options):
        key = self._key(bound, self._any(bound, options))
        if key not in self.best:
            times = self._measure(bound, options, key)
            self.timings[key] = times
            self.best[key] = self.configs[_eas.tune_choose(times)]
        return self.best[key]

    def __call__(self, *args, **kw):
        bound, options = self._bind(args, kw)
        if options.get("_interpret", interpreting()):  # nothing to measure: any config gives the answer
            return self.kernel(**{**bound, **self.configs[0].meta}, **options)
        config = self._choose(bound, options)
        ck, runtime_args, meta, opts = self._launch_args(config, bound, options)
        _runtime().run(ck, runtime_args, meta, **opts)

    def compile(self, *args, **kw):
        """The CompiledKernel of the chosen config."""
        bound, options = self._bind(args, kw)
        return self._compile(self._choose(bound, options), bound, options)

    def __repr__(self):
        return f"<eas.autotune {self.__name__!r}: {len(self.configs)} configs, key {self.key}>"


class _Saved:
    """Copies of the arguments whose content timing would change: the named ones, else those that the kernel
    reads and writes."""

    def __init__(self, made, names):
        ck, args = made[0], made[1]
        if names is None:
            names = [a.name for a in ck.ir.args if a.kind == "buffer" and a.read and a.written]
        unknown = [n for n in names if n not in args]
        if unknown:
            raise ValueError(f"autotune: restore names {unknown[0]!r}, which is no argument of {ck.name}()")
        self.pairs = [(args[n], _copy(args[n])) for n in names]

    def put_back(self):
        for x, copy in self.pairs:
            if isinstance(x, Tensor):
                x.copy_from(copy)
            elif hasattr(x, "copy_"):  # torch
                x.detach().copy_(copy)
            else:
                x[...] = copy


def _copy(x):
    if isinstance(x, Tensor):
        return x.to("cpu").numpy().copy()
    return x.detach().clone() if hasattr(x, "detach") else x.copy()


def _compile_all(cold, device):
    """Compiles in parallel: compiling holds no lock."""
    from concurrent.futures import ThreadPoolExecutor

    def prepare(made):
        ck, args, meta, opts = made
        _eas.prepare(ck, args, meta, device=device, **opts)

    with ThreadPoolExecutor(max(1, min(len(cold), os.cpu_count() or 1))) as pool:
        list(pool.map(prepare, cold))


def _progress(name, done, total):
    """A line of progress on a terminal, which is cleared when all is done."""
    if not total or os.environ.get("EAS_PROGRESS") == "0" or not sys.stderr.isatty():
        return
    line = f"eas: tuning {name}: {done}/{total} [{'#' * (20 * done // total):20}]"
    sys.stderr.write("\r" + (line if done < total else " " * len(line) + "\r"))
    sys.stderr.flush()


def _run_options(options, meta, runtime_args):
    grid = options.get("_grid")
    return {
        "sync": options.get("_sync", True),
        "nthreads": options.get("_nthreads"),
        "grid": grid(meta, runtime_args) if callable(grid) else grid,
        "tptg": options.get("_tptg"),
        "shape": options.get("_shape"),
    }


def autotune(*, configs, key, warmup=5, repeat=25, prune=None, restore=None, deterministic=False):
    """Above @eas.kernel: the first call for each value of the `key` arguments measures every config and keeps
    the fastest, the first of those within 2 %. Timings are kept on disk. `prune(configs, args)` returns the
    configs to try; `restore` names arguments that get their content back between timings (by default those
    that the kernel reads and writes); `deterministic=True` takes the first config that can run."""
    configs, key = list(configs), [key] if isinstance(key, str) else list(key)
    if not configs:
        raise ValueError("autotune: configs must not be empty")
    if not key:
        raise ValueError("autotune: key must name at least one argument")
    if warmup < 0:
        raise ValueError(f"autotune: warmup must be 0 or more, got {warmup}")
    if repeat <= 0:
        raise ValueError(f"autotune: repeat must be 1 or more, got {repeat}")

    def decorate(kernel):
        if not isinstance(kernel, Kernel):
            raise TypeError(f"@eas.autotune goes above @eas.kernel; got {type(kernel).__name__}")
        return Autotuner(kernel, configs, key, warmup, repeat, prune, restore, deterministic)

    return decorate


make_callable(__name__, autotune)
