"""`eas.torch.op`: a kernel, or a function that launches some, as an operator of torch: schema, fake
implementation, autograd, vmap.

The operator's functions are written out as Python text and compiled once, so that a call runs straight-line
code: make the outputs, launch."""

from contextlib import contextmanager
from functools import cache
from inspect import Parameter, signature
from types import FunctionType

import torch
from torch.autograd import forward_ad

from .._eas import Kernel
from ..autotune import Autotuner

__all__ = ["op"]

_libraries = {}  # name -> the Library that defines it
_specs = {}  # OpOverload -> _Spec
_SCALARS = {int: "SymInt", float: "float", bool: "bool"}


class _Spec:
    """The parts of an operator: the kernel's parameters, sorted by role."""

    def __init__(self, name, kernel, outputs, mutates, types, bound):
        self.name, self.kernel = name, kernel
        inner = kernel.kernel if isinstance(kernel, Autotuner) else kernel
        self.is_kernel = isinstance(inner, Kernel)
        self.signature = signature(inner.fn if self.is_kernel else inner).parameters
        self.params = tuple(self.signature)
        self.meta = inner.meta_params if self.is_kernel else ()
        self.bound = bound
        self.mutates = (mutates,) if isinstance(mutates, str) else tuple(mutates)
        tuned = set().union(*(c.meta for c in kernel.configs)) if isinstance(kernel, Autotuner) else set()
        self._check_names("bound", bound)
        self._check_names("mutates", self.mutates)
        self._check_names("types", types)
        self.outputs = self._outputs(outputs)
        self.arguments = []  # (name, schema type, default or Parameter.empty)
        for p in self.params:
            if p in bound or p in self.outputs or p in tuned:
                continue
            default = self.signature[p].default
            if p in self.meta:
                if default is Parameter.empty:
                    raise TypeError(f"{name}: meta parameter {p!r} of {kernel.__name__}() has no value: pass {p}=... to eas.torch.op")
                continue
            self.arguments.append((p, self._type(p, types, default), default))
        self.tensors = [a for a, kind, _ in self.arguments if kind == "Tensor"]
        if not self.tensors:
            raise TypeError(f"{name}: an operator needs at least one tensor argument")
        for p in self.mutates:
            if p not in self.tensors:
                raise TypeError(f"{name}: mutates names {p!r}, which is no tensor argument of the operator")
        if self.mutates and self.outputs:
            raise TypeError(f"{name}: an operator either mutates arguments or returns outputs, not both: torch could not differentiate it")
        if not self.mutates and not self.outputs:
            raise TypeError(f"{name}: say which parameters it writes: outputs= (made by the operator) or mutates= (given by the caller)")

    def _check_names(self, what, names):
        for n in names:
            if n not in self.params:
                raise TypeError(f"{self.name}: {what} names {n!r}, which is no parameter of {self.kernel.__name__}(): {', '.join(self.params)}")

    def _outputs(self, outputs):
        if outputs is None:
            return {}
        made = {outputs: None} if isinstance(outputs, str) else dict(outputs) if isinstance(outputs, dict) else dict.fromkeys(outputs)
        self._check_names("outputs", made)
        return made

    def _type(self, p, types, default):
        kind = types.get(p, self.signature[p].annotation)
        if isinstance(kind, str):
            kind = {"int": int, "float": float, "bool": bool, "Tensor": torch.Tensor, "torch.Tensor": torch.Tensor}.get(kind, Parameter.empty)
        if kind is Parameter.empty and default is not Parameter.empty:
            kind = type(default)
        if kind in (Parameter.empty, torch.Tensor):
            return "Tensor"
        if kind not in _SCALARS:
            raise TypeError(f"{self.name}: parameter {p!r} is of {kind!r}; operators take torch.Tensor, int, float and bool: say which in types=")
        return _SCALARS[kind]

    def schema(self):
        def one(i, name, kind, default):
            alias = f"(a{i}!)" if name in self.mutates else ""
            return f"{kind}{alias} {name}" + ("" if default is Parameter.empty else f"={default!r}")

        takes = ", ".join(one(i, *a) for i, a in enumerate(self.arguments))
        n = len(self.outputs)
        gives = "()" if not n else "Tensor" if n == 1 else "(" + ", ".join(["Tensor"] * n) + ")"
        return f"({takes}) -> {gives}"

    def names(self):
        return [a for a, _, _ in self.arguments]


class _Text:
    """A function written line by line; objects that it uses get names that are not used yet."""

    def __init__(self, spec, head):
        self.spec = spec
        self.head = head
        self.uses = {}
        takes = [n if d is Parameter.empty else f"{n}={self.use(d, n)}" for n, _, d in spec.arguments]
        self.lines = [f"def {head}({', '.join(takes)}):"]

    def use(self, value, hint):
        name = f"_{hint}_{len(self.uses)}"
        self.uses[name] = value
        return name

    def add(self, line):
        self.lines.append("    " + line)

    def call(self, fn, what, known):
        """The text of a call of the user's function, which gets the values that its parameters name."""
        names = list(signature(fn).parameters)
        strange = [n for n in names if n not in known]
        if strange:
            raise TypeError(f"{self.spec.name}: {what} asks for {strange[0]!r}; it may name {', '.join(known)}")
        return f"{self.use(fn, what)}({', '.join(names)})"

    def value(self, v, what, known):
        if callable(v) and not isinstance(v, type):
            return self.call(v, what, known)
        return repr(v) if type(v) in (bool, int, str) else self.use(v, what)

    def compile(self):
        return _compiled(self.spec, self.head, self.lines, self.uses)


def _compiled(spec, head, lines, uses):
    scope = dict(uses)
    exec(compile("\n".join(lines), f"<eas.torch.op {spec.name}>", "exec"), scope)
    return scope[head]


def _write_outputs(text):
    spec = text.spec
    known = spec.names()
    for name, how in spec.outputs.items():
        if how is None or isinstance(how, str):
            like = how or spec.tensors[0]
            if like not in spec.tensors and like not in known[len(spec.arguments) :]:
                raise TypeError(f"{spec.name}: output {name!r} is to be like {like!r}, which is neither a tensor argument nor an output before it")
            text.add(f"{name} = {text.use(torch.empty_like, 'like')}({like}, memory_format={text.use(torch.contiguous_format, 'order')})")
        elif callable(how):
            text.add(f"{name} = {text.call(how, 'outputs', known)}")  # the tensor, or the shape of one like the first tensor argument
            text.add(f"if not isinstance({name}, {text.use(torch.Tensor, 'tensor')}): {name} = {spec.tensors[0]}.new_empty({name})")
        else:
            raise TypeError(
                f"{spec.name}: output {name!r}: give the name of the tensor argument it is like, or a function that makes it or its shape"
            )
        known = [*known, name]
    return known


def _write_return(text):
    if text.spec.outputs:
        text.add("return " + ", ".join(text.spec.outputs))


def _implementation(spec, options, contiguous):
    text = _Text(spec, "implementation")
    if contiguous:
        for t in spec.tensors:
            if t not in spec.mutates:
                text.add(f"if not {t}.is_contiguous(): {t} = {t}.contiguous()")
    known = _write_outputs(text)
    launch = []
    for p in spec.params:
        if p in spec.bound:
            text.add(f"{p} = {text.value(spec.bound[p], p, known)}")
            launch.append(f"{p}={p}")
        elif p in known:
            launch.append(f"{p}={p}")
    known = [*known, *(p for p in spec.params if p in spec.bound)]
    launch += [f"{o}={text.value(v, o[1:], known)}" for o, v in options.items() if v is not None]
    if not spec.is_kernel and len(launch) == len(spec.params):
        launch = list(spec.params)  # by position, which is quicker to match in a call
    call = ", ".join(launch)
    if spec.is_kernel:
        check = text.use(_Check(spec), "check")
        text.add(f"if {check}.due: {check}.look({', '.join(a for a in launch if not a.startswith('_'))})")
    text.add(f"{text.use(spec.kernel, 'kernel')}({call})")
    for m in spec.mutates:
        text.add(f"if not {m}.is_inference(): {text.use(torch.autograd.graph.increment_version, 'bump')}({m})")
    _write_return(text)
    return text.compile()


class _Check:
    """Checks in the first call that the kernel writes exactly the arrays that the operator declares."""

    def __init__(self, spec):
        self.spec, self.due = spec, True

    def look(self, **args):
        written = self.spec.kernel.compile(**args).writes
        said = {*self.spec.outputs, *self.spec.mutates}
        if written - said:
            raise RuntimeError(
                f"{self.spec.name}: the kernel writes {sorted(written - said)[0]!r}, and the operator does not say so: name it in outputs= or mutates="
            )
        if said - written:
            raise RuntimeError(f"{self.spec.name}: the kernel does not write {sorted(said - written)[0]!r}, which the operator names as written")
        self.due = False


def _fake(spec):
    text = _Text(spec, "fake")
    _write_outputs(text)
    _write_return(text)
    if not spec.outputs:
        text.add("pass")
    return text.compile()


# ---- autograd ----


def _no_backward(name):
    def backward(ctx, *grads):
        raise RuntimeError(f"{name} has no backward: pass backward= to eas.torch.op, or call it on x.detach()")

    return backward


def _places(spec):
    """Names for arguments and outputs that cannot collide with other names in the text."""
    return {n: f"a{i}" for i, n in enumerate(spec.names())}, {n: f"o{i}" for i, n in enumerate(spec.outputs)}


def _write_keeping(spec, save, differentiable):
    """Lines that keep the tensors named (arguments and outputs), and all scalars, for the backward function.
    """
    ins, outs = _places(spec)
    have = ins | outs
    fixed = [outs[n] for n in spec.outputs if n not in differentiable]
    lines = [f"    ctx.save_for_backward({', '.join(have[n] for n in save)})"]
    scalars = [n for n in spec.names() if n not in spec.tensors]
    lines += [f"    ctx.scalars = {{{', '.join(f'{n!r}: {ins[n]}' for n in scalars)}}}"]
    # gradients that do not exist are not materialised as zeros: shape and dtype of missing ones are noted,
    # since keeping the outputs would keep the graph alive
    if fixed:
        lines += [
            f"    ctx.mark_non_differentiable({', '.join(fixed)})",
            "    ctx.set_materialize_grads(False)",
            f"    ctx.missing = [{', '.join('({0}.shape, {0}.dtype, {0}.device)'.format(outs[n]) for n in differentiable)}]",
        ]
    return lines


def _setup(spec, save, differentiable):
    """_write_keeping as a function."""
    ins, outs = _places(spec)
    lines = [
        "def setup_context(ctx, inputs, output):",
        f"    {''.join(p + ', ' for p in ins.values())} = inputs",
        f"    {', '.join(outs.values())} = output",
        *_write_keeping(spec, save, differentiable),
    ]
    return _compiled(spec, "setup_context", lines, {})


def _zeros(like):
    shape, dtype, device = like
    return torch.zeros(shape, dtype=dtype, device=device)


def _only(differentiable, spec, backward):
    """The backward that takes the gradients of these outputs only; an output that was not used has zeros."""
    at = [list(spec.outputs).index(n) for n in differentiable]

    def run(ctx, *grads):
        return backward(ctx, *[_zeros(ctx.missing[k]) if grads[i] is None else grads[i] for k, i in enumerate(at)])

    return run


def _gradient_of(outs, name):
    """The text of the gradient of an output: grad_c for output c, or grad, if there is only one."""
    if name == "grad" and len(outs) == 1:
        return 0
    return outs.index(name[5:]) if name.startswith("grad_") and name[5:] in outs else None


def _backward_op(spec, backward, bound, options, contiguous):
    """A kernel becomes an operator of its own; the names of its parameters tell their roles."""
    if not isinstance(backward, (Kernel, Autotuner)):
        return backward
    params = (backward.kernel if isinstance(backward, Autotuner) else backward).params
    outputs = {p: p[5:] for p in params if p.startswith("grad_") and p[5:] in spec.tensors}
    if not outputs:
        raise TypeError(f"{spec.name}: the backward kernel has no parameter grad_<argument> for a gradient: {', '.join(params)}")
    shared = {p: v for p, v in spec.bound.items() if p in params}
    kinds = {n: kind for n, kind, _ in spec.arguments}
    types = {p: {"SymInt": int, "float": float, "bool": bool}.get(kinds[p], torch.Tensor) for p in params if p in kinds}
    types |= {p: bool for p in params if _need_of(spec, p) is not None}
    return op(
        spec.name + "_backward", backward, outputs=outputs, types=types, contiguous=contiguous, params={**shared, **bound}, vmap="loop", **options
    )


def _derived(spec, how, options, differentiable, fake, contiguous):
    """The backward from the kernel's own derivative, as an operator."""
    if how != "auto":
        raise ValueError(f'{spec.name}: backward must be "auto", a kernel, an operator or a function, got {how!r}')
    from ._auto import auto_backward

    function, outputs, types = auto_backward(spec, options, differentiable, fake, _Text, _compiled)
    return op(spec.name + "_backward", function, outputs=outputs, types=types, contiguous=contiguous, vmap="loop")


def _need_of(spec, name):
    """needs_a: does argument a need a gradient?"""
    return spec.names().index(name[6:]) if name.startswith("needs_") and name[6:] in spec.tensors else None


def _by_names(spec, backward, differentiable):
    """(names to save, text of each argument, text of each result) of an operator whose argument names tell
    their roles."""
    inner = _specs[backward]
    places = []
    save = []
    for name, _, _ in inner.arguments:
        grad, need = _gradient_of(differentiable, name), _need_of(spec, name)
        if grad is not None:
            places.append(f"grads[{grad}]")
        elif name in spec.tensors or name in spec.outputs:
            places.append(f"saved[{len(save)}]")
            save.append(name)
        elif name in spec.names():
            places.append(f"ctx.scalars[{name!r}]")
        elif need is not None:
            places.append(f"ctx.needs_input_grad[{need}]")
        else:
            raise TypeError(
                f"{spec.name}: the backward's parameter {name!r} is neither an argument nor an output of the operator, nor grad_<output>, nor "
                f"needs_<argument>; bind it in backward_params="
            )
    asked = [name for name, _, _ in inner.arguments]
    position = {n: "out" if len(inner.outputs) == 1 else f"out[{i}]" for i, n in enumerate(inner.outputs)}
    results = []
    for i, n in enumerate(spec.names()):
        result = position.get("grad_" + n, "None")
        results.append(f"{result} if ctx.needs_input_grad[{i}] else None" if result != "None" and "needs_" + n in asked else result)
    return save, places, results


def _call_by_names(spec, backward, places, results):
    """The backward as a function for torch.library.register_autograd. It bypasses the dispatcher if ctx.plain
    says that the forward did, and if that is still possible."""
    lines = [
        "def run(ctx, *grads):",
        "    saved = ctx.saved_tensors",
        "    if getattr(ctx, 'plain', False) and still_plain(grads):",
        f"        with below(): out = implementation({', '.join(places)})",
        "    else:",
        f"        out = backward({', '.join(places)})",
        f"    return {''.join(r + ', ' for r in results)}",
    ]
    uses = {"backward": backward, "implementation": _specs[backward].implementation, "still_plain": _still_plain()}
    return _compiled(spec, "run", lines, uses | {"below": getattr(torch._C, "_AutoDispatchBelowAutograd", None)})


def _plain_keys():
    """The dispatch keys of a call with tensors on the CPU that nothing intercepts: no mode, no transform, no
    subclass, no lazy bit."""
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    both = keys(key.CPU) | keys(key.AutogradCPU)
    return {both.raw_repr(), (both | keys(key.ADInplaceOrView)).raw_repr()}


@cache
def _still_plain():
    """A function that tells whether nothing intercepts a backward that is called with these gradients: it is
    not recorded, and there is no mode and no transform."""
    names = ("_dispatch_keys", "_dispatch_tls_local_include_set", "DispatchKeySet")
    if not all(hasattr(torch._C, n) for n in names):
        return lambda grads: False
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    usual = (keys(key.BackendSelect) | keys(key.ADInplaceOrView)).raw_repr()
    dense = keys(key.CPU) | keys(key.AutocastCPU)
    plain = {dense.raw_repr(), (dense | keys(key.ADInplaceOrView) | keys(key.AutogradCPU)).raw_repr()}
    keys_of, included, grad_enabled = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set, torch.is_grad_enabled

    def still_plain(grads):
        if grad_enabled() or included().raw_repr() != usual:
            return False
        for g in grads:
            if keys_of(g).raw_repr() not in plain:
                return False
        return True

    return still_plain


@contextmanager
def _one_level():
    """Inside torch.func's transforms: the function belongs to the level that runs now, and operators that it
    calls to the next one."""
    functorch = torch._C._functorch
    before = functorch.get_single_level_autograd_function_allowed()
    functorch.set_single_level_autograd_function_allowed(True)
    try:
        yield
    finally:
        functorch.set_single_level_autograd_function_allowed(before)


def _refuse_tangents(spec, args):
    for a in args:
        if isinstance(a, torch.Tensor) and forward_ad.unpack_dual(a).tangent is not None:
            raise RuntimeError(
                f"{spec.name} has no forward-mode derivative: use reverse mode (torch.func.grad, vjp, jacrev), or call it on x.detach()"
            )


def _function(spec, uses, keeping):
    """The autograd.Function of an operator; keys, its last argument, is None for a plain call."""
    ins, outs = _places(spec)
    args = ", ".join(ins.values())
    lines = [
        f"def forward(ctx, {args}, keys):",
        "    with below():",
        f"        out = {', '.join(outs.values())} = implementation({args}) if keys is None else redispatch(keys & after, {args})",
        "    ctx.plain = keys is None",
        *keeping,
        "    return out",
    ]
    backward = uses["backward"]

    class Function(torch.autograd.Function):
        forward = staticmethod(_compiled(spec, "forward", lines, uses))

        @staticmethod
        def backward(ctx, *grads):
            got = backward(ctx, *grads)
            return (*got, None) if isinstance(got, tuple) else (got, None)

    return Function


def _register_directly(lib, spec, overload, implementation, backward, setup_context, keeping):
    """Registers the backward as torch.library.register_autograd does, without looking at the schema in every
    call; with tensors on the CPU that nothing intercepts, the implementation is called at once, and
    torch.func.grad and the like work as well. False: this torch lacks the functions for it."""
    below, after = getattr(torch._C, "_AutoDispatchBelowAutograd", None), getattr(torch._C, "_after_autograd_keyset", None)
    redispatch, transformed = getattr(overload, "redispatch", None), getattr(torch._C, "_are_functorch_transforms_active", None)
    if any(f is None for f in (below, after, redispatch, transformed)) or not hasattr(
        torch._C._functorch, "set_single_level_autograd_function_allowed"
    ):
        return False
    uses = {"below": below, "after": after, "redispatch": redispatch, "implementation": implementation, "backward": backward, "setup": setup_context}
    ins, _ = _places(spec)
    args = ", ".join(ins.values())
    Function = _function(spec, uses, keeping or [f"    setup(ctx, [{args}], out)"])
    Function.__name__ = Function.__qualname__ = f"{lib.ns}_{overload._opname}"
    apply = super(torch.autograd.Function, Function).apply  # what Function.apply calls once it has looked for transforms

    def through(keys, *args):
        if not transformed():
            return Function.apply(*args, keys)
        with _one_level():
            return apply(*args, keys)

    defaults = {f"default{i}": d for i, (_, _, d) in enumerate(spec.arguments) if d is not Parameter.empty}
    # the dispatcher leaves out arguments that equal their default
    takes = [f"a{i}" + (f"=default{i}" if f"default{i}" in defaults else "") for i in range(len(ins))]
    lines = [
        f"def autograd(keys, {', '.join(takes)}):",
        "    if getattr(forward_ad, '_current_level', -1) >= 0:",
        f"        refuse_tangents(spec, ({args}, ))",
        "    if keys.raw_repr() in plain:",
        "        keys = None",
        f"    if grad_enabled() and ({' or '.join(ins[t] + '.requires_grad' for t in spec.tensors)}):",
        f"        return apply({args}, None) if keys is None else through(keys, {args})",
        "    with below():",
        f"        return implementation({args}) if keys is None else redispatch(keys & after, {args})",
    ]
    uses |= defaults | {"forward_ad": forward_ad, "refuse_tangents": _refuse_tangents, "spec": spec, "plain": _plain_keys()}
    uses |= {"grad_enabled": torch.is_grad_enabled, "apply": apply, "through": through}
    lib.impl(overload._opname, _compiled(spec, "autograd", lines, uses), "Autograd", with_keyset=True)
    return True


def _differentiable(spec, names):
    names = list(spec.outputs) if names is None else [names] if isinstance(names, str) else list(names)
    strange = [n for n in names if n not in spec.outputs]
    if strange or not names:
        raise TypeError(f"{spec.name}: differentiable must name outputs ({', '.join(spec.outputs)}), got {strange[0] if strange else 'none'!r}")
    return names


def _register_autograd(lib, spec, overload, implementation, backward, save, setup_context, differentiable):
    if backward in _specs:
        if save is not None or setup_context is not None:
            raise TypeError(f"{spec.name}: save= and setup_context= are for a backward function; a kernel's parameters say what it needs")
        save, places, results = _by_names(spec, backward, differentiable)
        backward = _call_by_names(spec, backward, places, results)
    elif backward is None:
        backward = _no_backward(spec.name)
        save = []
    for n in save or ():
        if n not in spec.tensors and n not in spec.outputs:
            raise TypeError(f"{spec.name}: save names {n!r}, which is neither a tensor argument nor an output")
    keeping = None
    if setup_context is None:
        save = spec.tensors if save is None else save
        setup_context, keeping = _setup(spec, save, differentiable), _write_keeping(spec, save, differentiable)
        if len(differentiable) < len(spec.outputs):
            backward = _only(differentiable, spec, backward)
    if not _register_directly(lib, spec, overload, implementation, backward, setup_context, keeping):
        torch.library.register_autograd(spec.name, backward, setup_context=setup_context, lib=lib)


# ---- vmap ----


def _loop_rule(overload, spec):
    """One call for each member of the batch."""

    def rule(info, in_dims, *args):
        def member(i):
            return overload(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims)))

        if spec.mutates:
            for name, d in zip(spec.names(), in_dims):
                if name in spec.mutates and d is None:
                    raise RuntimeError(f"{spec.name}: vmap would write {name!r}, which is not batched, once for each member of the batch")
            for i in range(info.batch_size):
                member(i)
            return None, None
        done = [member(i) for i in range(info.batch_size)]
        if len(spec.outputs) == 1:
            return torch.stack(done), 0
        return tuple(torch.stack(x) for x in zip(*done)), (0,) * len(spec.outputs)

    return rule


def _batch_rule(overload, spec):
    """One call: the operator takes tensors with an additional dim in front."""

    def rule(info, in_dims, *args):
        def front(a, d):
            if not isinstance(a, torch.Tensor):
                return a
            return a.expand(info.batch_size, *a.shape) if d is None else a.movedim(d, 0)

        out = overload(*(front(a, d) for a, d in zip(args, in_dims)))
        return out, 0 if len(spec.outputs) == 1 else (0,) * len(spec.outputs)

    return rule


def _register_vmap(lib, spec, overload, vmap):
    if vmap is None:
        return
    if vmap == "batch" and spec.mutates:
        raise TypeError(f'{spec.name}: vmap="batch" is for operators that return outputs')
    rules = {"loop": _loop_rule, "batch": _batch_rule}
    if not callable(vmap) and vmap not in rules:
        raise ValueError(f'{spec.name}: vmap must be "loop", "batch", a function or None, got {vmap!r}')
    torch.library.register_vmap(spec.name, vmap if callable(vmap) else rules[vmap](overload, spec), lib=lib)


# ---- making the operator ----


def _library(name):
    parts = name.split("::") if isinstance(name, str) else []
    if len(parts) != 2 or not all(p.isidentifier() for p in parts):
        raise ValueError(f"an operator is named 'namespace::name', got {name!r}")
    if name in _libraries:  # defined again, as happens in a notebook
        _libraries.pop(name)._destroy()
    return torch.library.Library(parts[0], "FRAGMENT"), parts[1]


def op(
    name,
    kernel,
    *,
    outputs=None,
    mutates=(),
    grid=None,
    shape=None,
    nthreads=None,
    types=None,
    contiguous=True,
    backward=None,
    save=None,
    setup_context=None,
    differentiable=None,
    backward_grid=None,
    backward_params=None,
    vmap="loop",
    params=None,
    **bound,
):
    """Makes a kernel an operator of torch, `torch.ops.namespace.name`, and returns it; docs/torch.md tells
    the whole story. In a kernel's place may stand a function that launches kernels: it is given its outputs,
    too.

    outputs   parameters that the operator makes and returns: a name, names, or {name: how}, where how is the
              name of the tensor argument it is like, or a function of arguments (by their names) that returns
              the tensor or its shape
    mutates   parameters that the caller gives and the kernel writes; the operator then returns nothing
    N=, ...   values of other parameters, meta ones too: constants, or functions of arguments by their names
              (params= takes them as a dict)
    grid, shape, nthreads   as in a launch; a function is given arguments, outputs and bound values by their
                            names
    types     {parameter: int, float or bool} for scalars that neither an annotation nor a default tells; all
              others are tensors
    contiguous  arguments that are not contiguous are copied first; False makes them an error
    backward  "auto": the derivative of the kernel itself (eas.grad_kernel); or a kernel whose parameters are
              named after arguments and outputs, grad_<output> (or grad), needs_<argument> (a bool: is its
              gradient needed?) and, for what it makes, grad_<argument>; or an operator made of such a kernel;
              or a function backward(ctx, *grads) as torch.library.register_autograd wants it. The function
              finds the tensors that save names (arguments and outputs; by default all tensor arguments) in
              ctx.saved_tensors and scalars in ctx.scalars, unless setup_context does it otherwise.
              differentiable names the outputs that have gradients, where not all do. backward_grid and
              backward_params are for a kernel; what it shares with the forward one it gets from there
    vmap      "loop": one call for each member; "batch": one call, with one more dim in front; a function;
              None
    """
    if not isinstance(kernel, (Kernel, Autotuner, FunctionType)):
        raise TypeError(f"eas.torch.op takes a kernel or a function that launches kernels, got {type(kernel).__name__}")
    if isinstance(kernel, FunctionType) and not (grid is shape is nthreads is None):
        raise TypeError(f"{name}: grid, shape and nthreads are for a kernel; a function launches by itself")
    spec = _Spec(name, kernel, outputs, mutates, types or {}, {**(params or {}), **bound})
    if spec.mutates and (backward is not None or save is not None or setup_context is not None):
        raise TypeError(f"{name}: an operator that mutates its arguments has no backward: use outputs=")
    options = {"_grid": grid, "_shape": shape, "_nthreads": nthreads}
    implementation, fake = _implementation(spec, options, contiguous), _fake(spec)
    spec.implementation = implementation
    if isinstance(backward, str):
        backward = _derived(spec, backward, options, _differentiable(spec, differentiable), fake, contiguous)
    else:
        backward = _backward_op(spec, backward, backward_params or {}, {"grid": grid if backward_grid is None else backward_grid}, contiguous)
    lib, short = _library(name)
    lib.define(short + spec.schema(), tags=(torch.Tag.pt2_compliant_tag,))
    lib.impl(short, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=lib)
    overload = getattr(getattr(torch.ops, lib.ns), short).default
    _libraries[name] = lib
    _specs[overload] = spec
    if not spec.mutates:
        _register_autograd(lib, spec, overload, implementation, backward, save, setup_context, _differentiable(spec, differentiable))
    _register_vmap(lib, spec, overload, vmap)
    return overload
