"""Derivatives of kernels: `eas.grad_kernel` (reverse mode) and `eas.jvp_kernel` (forward mode). The
derivative itself is made in C, from the kernel's IR; here arguments are sorted, scratch memory is allocated,
and the result is launched. docs/grad_kernels.md describes both."""

import math
from typing import NamedTuple

import numpy as np

from . import _eas, kernel, mk
from ._eas import Kernel, compile_ir, grad_trips, ir_grad

__all__ = ["Derivative", "GradKernel", "JvpKernel", "grad_kernel", "jvp_kernel"]

_OPTIONS = _eas.LAUNCH_OPTIONS


class Param(NamedTuple):
    """A parameter of a derived kernel: its role, and how much memory it needs."""

    name: str
    role: str  # given, cotangent, gradient, both, tangent, result_tangent, tape, trips, local, owner, programs, band, length
    param: int  # of the kernel it is derived from; -1: none
    loop: int
    dtype: object
    elements: int
    consumed: bool
    zeroed: bool


class Derivative:
    """The derivative of one CompiledKernel: `compiled` is the kernel that computes it, `params` describes its
    parameters."""

    def __init__(self, ck, wrt, of, forward, deterministic=False, max_trips=None, fresh=False, band=True):
        self.primal = ck
        self.wrt, self.of = tuple(wrt), tuple(of)
        # an argument that is taken apart is several parameters
        self.names = tuple(a.name for a in ck.ir.args)
        at = {name: i for i, name in enumerate(self.names)}
        numbers = [tuple(at[n] for n in names) for names in (self.wrt, self.of)]
        self.ir, params, self._handle = ir_grad(ck.ir, *numbers, forward, deterministic, fresh, band and not forward, max_trips or 0)
        self.params = tuple(Param(*p) for p in params)
        self.compiled = compile_ir(self.ir)
        self.is_buffer = tuple(a.kind == "buffer" for a in ck.ir.args)
        self.axes = {0 if i.op == "global_id" else i.args[0] for i in ck.ir.insts if i.op in ("program_id", "global_id")}
        self.is_int = tuple(a.kind != "buffer" and not _is_float(a) for a in ck.ir.args)

    def check_grid(self, grid):
        """Programs that do the same twice are harmless in the kernel, and would count twice in its
        derivative."""
        for axis, n in enumerate(grid):
            if n > 1 and axis not in self.axes:
                raise ValueError(
                    f"{self.primal.name}: the grid {grid} has {n} programs along axis {axis}, which the kernel does not ask for by mk.program_id({axis}): "
                    f"all of them do the same, and the derivative would count it {n} times"
                )

    def band(self, grid):
        """How many programs along axis 0 one program of the derivative stands for: enough that sums over
        programs cost little, few enough that there is work for all threads."""
        joined = any(p.role == "band" for p in self.params)
        return max(1, min(64, grid[0] * grid[1] * grid[2] // 64, grid[0])) if joined else 1

    def grid(self, grid):
        """The grid of the derivative, given that of the kernel."""
        return (-(-grid[0] // self.band(grid)), *grid[1:])

    def lengths(self, grid, counts, scalars):
        """The values of the parameters that the caller does not know: {name: elements of scratch memory, or
        the number itself for a scalar}.

        counts: elements of each buffer of the kernel; scalars: its integers, by parameter's number."""
        programs, out = math.prod(grid), {}
        trips = {}
        for p in self.params:
            if p.role in ("tape", "trips") and p.loop >= 0 and p.loop not in trips:
                trips[p.loop] = grad_trips(self._handle, p.loop, scalars, grid)
            if p.role == "tape":
                out[p.name] = p.elements * programs * (trips[p.loop] if p.loop >= 0 else 1)
            elif p.role == "trips":
                out[p.name] = trips[p.loop]
            elif p.role == "programs":
                out[p.name] = grid[0]
            elif p.role == "band":
                out[p.name] = self.band(grid)
            elif p.role == "local":
                out[p.name] = p.elements * programs
            elif p.role in ("owner", "length"):
                out[p.name] = counts[p.param]
        return out


def _is_float(arg):
    return arg.dtype.name.startswith(("f", "bf"))


def numel(x):
    """The number of elements of an array of any library."""
    return x.numel() if hasattr(x, "numel") else int(math.prod(x.shape))


def choose(ck, wrt, of):
    """The parameters' names: as given, or all floats that the kernel reads and does not write, and all that
    it writes."""
    args = [a for a in ck.ir.args]
    names = [a.name for a in args]

    def asked(given, what, default):
        if given is None:
            found = [a.name for a in args if a.kind == "buffer" and _is_float(a) and default(a)]
            if not found:
                raise ValueError(f"{ck.name}: no parameter is a buffer of floats to take for `{what}`; name some in {what}=")
            return found
        given = [given] if isinstance(given, str) else list(given)
        for n in given:
            if n not in names:
                raise ValueError(f"{ck.name}: `{what}` names {n!r}, which is no run-time parameter of the kernel: {', '.join(names)}")
        if len(set(given)) != len(given):
            raise ValueError(f"{ck.name}: `{what}` names a parameter twice: {given}")
        return given

    return asked(wrt, "wrt", lambda a: a.read and not a.written), asked(of, "of", lambda a: a.written)


@kernel
def _add_to(src, dst, N, BLOCK: _eas.constexpr):
    """dst += src, in src's dtype"""
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    inside = i < N
    x = mk.load(src, i, inside)
    mk.store(dst, i, mk.cast(mk.cast(mk.load(dst, i, inside), x.dtype) + x, mk.load(dst, i, inside).dtype), inside)


@kernel
def _add_parts(parts, dst, N, PARTS, BLOCK: _eas.constexpr):
    """dst += the sum of PARTS rows, one after the other"""
    i = mk.program_id(0) * BLOCK + mk.arange(0, BLOCK)
    inside = i < N
    had = mk.load(dst, i, inside)
    total = mk.var(mk.load(parts, i, inside & (PARTS > 0)))
    for p in mk.range(1, PARTS):
        total.set(total + mk.load(parts, p * N + i, inside))
    mk.store(dst, i, mk.cast(mk.cast(had, total.value.dtype) + total, had.dtype), inside)


class _Derived:
    """Shared by both modes: a launch takes the kernel's run-time arguments, then the arrays of the
    derivative, then its meta parameters."""

    _forward = False
    _prefix = "d_"

    def __init__(self, k, wrt, of, deterministic=False, max_trips=None, accumulate=True):
        inner = getattr(k, "kernel", k)
        if not isinstance(inner, Kernel):
            raise TypeError(f"{type(self).__name__} takes a kernel (a function under @eas.kernel), got {type(k).__name__}")
        if inner is not k:
            raise TypeError(f"{inner.__name__}: it is autotuned; differentiate k.kernel, with the meta parameters of a configuration")
        if max_trips is not None and (not isinstance(max_trips, int) or max_trips < 1):
            raise ValueError(f"{k.__name__}: max_trips must be a positive int, got {max_trips!r}")
        self.kernel, self._wrt, self._of = k, wrt, of
        self._deterministic, self._max_trips, self._fresh = bool(deterministic), max_trips, not accumulate
        self._made = {}
        self.__name__ = f"{k.__name__}_{'jvp' if self._forward else 'grad'}"

    def __repr__(self):
        return f"<eas.{type(self).__name__} of {self.kernel!r}>"

    def derivative(self, *args, **kw):
        """The Derivative that a launch with these arguments of the kernel uses (a CompiledKernel is taken as
        well)."""
        ck = args[0] if len(args) == 1 and not kw and isinstance(args[0], _eas.CompiledKernel) else self.kernel.compile(*args, **kw)
        if ck not in self._made:
            wrt, of = choose(ck, self._wrt, self._of)
            self._made[ck] = Derivative(ck, wrt, of, self._forward, self._deterministic, self._max_trips, self._fresh)
        return self._made[ck]

    def _bind(self, args, kw):
        """(arguments of the kernel by name, launch options, arrays of the derivative by position, by name)"""
        k = self.kernel
        rt = k.runtime_params
        given = dict(zip(rt, args))
        options = {o: kw.pop(o) for o in _OPTIONS if o in kw}
        for name in (*rt, *k.meta_params):
            if name in kw:
                if name in given:
                    raise TypeError(f"{self.__name__}() got two values for argument {name!r}")
                given[name] = kw.pop(name)
        return given, options, args[len(rt) :], kw

    def _arrays(self, d, positional, named):
        wants = [p for p in d.params if p.role in ("cotangent", "gradient", "both", "tangent", "result_tangent")]
        names = [p.name for p in wants]
        meta = [m for m in self.kernel.meta_params if m not in named]
        if len(positional) > len(names) + len(meta):
            raise TypeError(f"{self.__name__}() takes {len(self.kernel.runtime_params) + len(names)} run-time arguments: {', '.join(d.primal.params)}, {', '.join(names)}")
        arrays = dict(zip(names, positional))
        for name, value in named.items():
            if name not in names:
                raise TypeError(f"{self.__name__}() got an unknown argument {name!r}; behind those of {self.kernel.__name__}() come {', '.join(names)}")
            if name in arrays:
                raise TypeError(f"{self.__name__}() got two values for argument {name!r}")
            arrays[name] = value
        missing = [n for n in names if n not in arrays]
        if missing:
            raise TypeError(f"{self.__name__}() is missing its argument {missing[0]!r}")
        return wants, arrays

    def __call__(self, *args, **kw):
        given, options, positional, named = self._bind(args, dict(kw))
        if options.pop("_interpret", None):
            raise ValueError(f"{self.__name__}: a derivative is no Python function to interpret; run it with EAS_BACKEND=ref")
        d = self.derivative(**given)
        wants, arrays = self._arrays(d, positional, named)
        _Launch(self, d, given, options, wants, arrays).run()


def _parts(ck, given):
    from ._struct import expand_all

    return expand_all(ck.params, tuple(given.values()), ck._spec, ck.name)


class _Launch:
    """One launch of a derived kernel."""

    def __init__(self, owner, d, given, options, wants, arrays):
        self.owner, self.d = owner, d
        self.whole = {n: given[n] for n in d.primal.params}
        self.run_time = self.whole if d.primal._spec is None else dict(zip(d.names, _parts(d.primal, self.whole)))
        self.options = {o[1:]: v for o, v in options.items()}
        self.wants, self.arrays = wants, arrays
        self.after = []
        devices = [x.device for x in (*self.run_time.values(), *arrays.values()) if isinstance(x, _eas.Tensor)]
        self.device = devices[0] if devices else kernel.get_runtime().device

    def scratch(self, n, dtype, zeroed):
        return (_eas.zeros if zeroed else _eas.empty)((max(int(n), 1),), device=self.device, dtype=dtype)

    def check(self):
        for p in self.wants:
            x, n = self.arrays[p.name], self.counts[p.param]
            if not self.d.is_buffer[p.param] and p.role == "tangent":
                continue
            if not hasattr(x, "shape"):
                raise TypeError(f"{self.owner.__name__}: {p.name!r} must be an array, got {type(x).__name__}")
            if numel(x) != n:
                raise ValueError(f"{self.owner.__name__}: {p.name!r} has {numel(x)} elements, and {self.d.names[p.param]!r} has {n}")

    def own_array(self, p, x, grid, counts):
        """The array that is launched in place of one of the caller's."""
        if p.consumed:
            return x.clone() if hasattr(x, "clone") else x.copy()
        if p.role == "gradient" and any(q.role == "length" and q.param == p.param for q in self.d.params):
            parts = self.scratch(math.prod(grid) * counts[p.param], p.dtype, True)
            self.after.append((_add_parts, parts, x, math.prod(grid)))
            return parts
        if p.role == "gradient" and not self.same_dtype(p, x):
            temp = self.scratch(numel(x), p.dtype, True)
            self.after.append((_add_to, temp, x))
            return temp
        return x

    def given(self, p, x):
        """A Python float as the kernel computes with it: f32, unless it is combined with a wider dtype."""
        return np.float32(x) if type(x) is float and p.dtype.name == "f32" else x

    def same_dtype(self, p, x):
        return str(x.dtype).rsplit(".", 1)[-1] == {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}[p.dtype.name]

    def run(self):
        names = self.d.names
        self.counts = counts = [numel(self.run_time[n]) if b else 1 for n, b in zip(names, self.d.is_buffer)]
        self.check()
        options = {o: v for o, v in self.options.items() if o in ("grid", "shape", "tptg")}
        grid = _eas.grid(self.d.primal, self.whole, None, **options)
        self.d.check_grid(grid)
        scalars = tuple(int(self.run_time[n]) if i else 0 for n, i in zip(names, self.d.is_int))
        lengths = self.d.lengths(grid, counts, scalars)
        if not math.prod(grid):
            return
        arguments = []
        for p in self.d.params:
            if p.role == "given":
                arguments.append(self.given(p, self.run_time[p.name]))
            elif p.name in self.arrays:
                x = self.arrays[p.name]
                arguments.append(self.own_array(p, x, grid, counts) if self.d.is_buffer[p.param] or p.role != "tangent" else self.given(p, x))
            elif p.role in ("trips", "length", "programs", "band"):
                arguments.append(lengths[p.name])
            else:
                arguments.append(self.scratch(lengths[p.name], p.dtype, p.zeroed))
        more = {o: v for o, v in self.options.items() if o in ("nthreads", "sync", "stream", "debug")}
        _eas.run(self.d.compiled, tuple(arguments), None, grid=self.d.grid(grid), **more)
        for add, src, dst, *rest in self.after:
            add(src, dst, numel(dst), *rest, BLOCK=256, **{"_" + o: v for o, v in more.items() if o in ("sync", "stream")})


class GradKernel(_Derived):
    """The reverse-mode derivative of a kernel; `eas.grad_kernel` makes it."""


class JvpKernel(_Derived):
    """The forward-mode derivative of a kernel; `eas.jvp_kernel` makes it."""

    _forward = True
    _prefix = "t_"


def grad_kernel(k, wrt=None, of=None, *, accumulate=True, deterministic=False, max_trips=None):
    """The kernel that computes gradients of `k` by reverse mode.

    It is launched as `k` is, with more arguments behind k's run-time ones: the cotangent `d_<name>` of each
    parameter in `of`, then the gradient `d_<name>` of each in `wrt`, to which it adds: begin with zeros.
    Arguments of `k` are those from before its launch; what `k` writes is not touched.

        g = eas.grad_kernel(softmax, wrt=["x"], of=["out"])
        g(x, out, n, d_out, d_x, COLS=1024, _grid=rows)

    wrt: names; by default all float buffers that k reads and does not write. A float number may be named; its
    gradient has one element. of: names; by default all float buffers that k writes. A buffer that k reads and
    writes, in both, has one array: the cotangent before, the gradient after. accumulate: False says that the
    gradients are zero before every launch; what is added to once is then stored, without being read first.
    deterministic: sums over programs have one order; takes memory for one gradient per program. max_trips:
    the most trips of loops whose number is not known before.
    """
    return GradKernel(k, wrt, of, deterministic, max_trips, accumulate)


def jvp_kernel(k, wrt=None, of=None):
    """The kernel that computes directional derivatives of `k` by forward mode.

    It does what `k` does, and takes more arguments behind k's run-time ones: the tangent `t_<name>` of each
    parameter in `wrt` (of a number: a number), then the tangent `t_<name>` of each in `of`, which is written
    where k writes. Defaults as for `grad_kernel`.
    """
    return JvpKernel(k, wrt, of)
