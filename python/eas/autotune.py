"""`@eas.autotune`: picks meta values by measuring (the module is also the decorator)."""

from . import kernel as _kernel
from ._callable import make_callable
from ._eas import Kernel, interpreting
from .runtime import get_runtime

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
    """Replaced here or in eas.kernel: both are honoured."""
    return get_runtime() if get_runtime is not _own_get_runtime else _kernel.get_runtime()


class Autotuner:
    """A kernel that chooses among configs: once for each value of the key arguments (and argument types)."""

    def __init__(self, kernel, configs, key, warmup, repeat):
        self.kernel = kernel
        self.configs = configs
        self.key = key
        self.warmup = warmup
        self.repeat = repeat
        self.best = {}  # key -> Config
        self.timings = {}  # key -> seconds per config
        self.__name__ = kernel.__name__
        self.__doc__ = kernel.__doc__
        self.__wrapped__ = kernel

    def _bind(self, args, kw):
        """(arguments by name with their defaults, launch options)"""
        from inspect import signature

        options = {n: v for n, v in kw.items() if n.startswith("_") and n not in self.kernel.params}
        bound = signature(self.kernel.fn).bind_partial(*args, **{n: v for n, v in kw.items() if n not in options})
        bound.apply_defaults()
        return bound.arguments, options

    def _key(self, bound, ck):
        missing = [k for k in self.key if k not in bound]
        if missing:
            raise ValueError(f"autotune key {missing[0]!r} is not an argument of this call of {self.__name__}()")
        return tuple(bound[k] for k in self.key), tuple((a.name, str(a.dtype)) for a in ck.ir.args)

    def _compile(self, config, bound, options):
        return self.kernel.compile(**{**bound, **config.meta}, **options)

    def _launch_args(self, config, bound, options):
        ck = self._compile(config, bound, options)
        runtime_args = _kernel.RuntimeArgs((n, bound[n]) for n in ck.params if n in bound)
        return ck, runtime_args, ck.meta, _run_options(options, ck.meta, runtime_args)

    def _measure(self, bound, options):
        runtime = _runtime()
        times = []
        for config in self.configs:
            ck, runtime_args, meta, opts = self._launch_args(config, bound, options)
            opts.pop("sync", None)
            times.append(runtime.benchmark(ck, runtime_args, meta, repeat=self.repeat, warmup=self.warmup, **opts))
        return times

    def choose(self, *args, **kw):
        """The config for these arguments, measured if it is not known yet."""
        return self._choose(*self._bind(args, kw))

    def _choose(self, bound, options):
        key = self._key(bound, self._compile(self.configs[0], bound, options))
        if key not in self.best:
            times = self._measure(bound, options)
            self.timings[key] = times
            self.best[key] = self.configs[times.index(min(times))]
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


def _run_options(options, meta, runtime_args):
    grid = options.get("_grid")
    return {
        "sync": options.get("_sync", True),
        "nthreads": options.get("_nthreads"),
        "grid": grid(meta, runtime_args) if callable(grid) else grid,
        "tptg": options.get("_tptg"),
        "shape": options.get("_shape"),
    }


def autotune(*, configs, key, warmup=5, repeat=25):
    """Above @eas.kernel: the first call for each value of the `key` arguments measures every config and keeps the fastest."""
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
        return Autotuner(kernel, configs, key, warmup, repeat)

    return decorate


make_callable(__name__, autotune)
