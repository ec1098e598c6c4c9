"""`eas.torch.op(..., backward="auto")`: the backward of an operator from the derivative of its kernel."""

import torch

from .._eas import Kernel
from .._grad import GradKernel

__all__ = ["auto_backward"]


class _Auto:
    """Launches the derivative with respect to the arguments that need one; one GradKernel for each such
    set."""

    def __init__(self, kernel, of):
        self.kernel, self.of, self.made = kernel, of, {}

    def __call__(self, needs, arguments, options, cotangents, gradients):
        wrt = tuple(t for t, need in needs.items() if need)
        if not wrt:
            return
        if wrt not in self.made:
            self.made[wrt] = GradKernel(self.kernel, list(wrt), list(self.of), accumulate=False)
        arrays = {f"d_{o}": ct.contiguous() for o, ct in cotangents.items()} | {f"d_{t}": gradients[t] for t in wrt}
        self.made[wrt](**arguments, **arrays, **options)


def _gradient(t):
    """A function that makes the gradient of tensor t: zeros if needed, since the derivative adds to it."""
    text = f"lambda {t}, needs_{t}: zeros({t}) if needs_{t} else {t}.new_empty(0)"
    return eval(text, {"zeros": lambda x: torch.zeros_like(x, memory_format=torch.contiguous_format)})


def auto_backward(spec, options, differentiable, fake, text_of, compiled):
    """The function that becomes the operator <name>_backward, its outputs and types; the names of parameters
    tell their roles."""
    if not isinstance(spec.kernel, Kernel):
        what = "an autotuned kernel: pass its .kernel with the meta parameters of a configuration" if spec.is_kernel else "a function that launches kernels"
        raise TypeError(f'{spec.name}: backward="auto" differentiates a kernel; this is {what}')
    text = text_of(spec, "backward")
    lines, known = [], spec.names()
    fixed = [o for o in spec.outputs if o not in differentiable]
    if fixed:
        made = ", ".join(spec.outputs)
        lines.append(f"{made}{',' if len(spec.outputs) == 1 else ''} = {text.use(fake, 'fake')}({', '.join(spec.names())})")
    lines += [f"{o} = grad_{o}" for o in differentiable]  # arrays that the kernel would write are not changed
    known = [*known, *spec.outputs]
    launch = [p for p in spec.params if p in known]
    for p in spec.params:
        if p in spec.bound:
            lines.append(f"{p} = {text.value(spec.bound[p], p, known)}")
            launch.append(p)
    known = [*known, *(p for p in spec.params if p in spec.bound)]
    extra = ", ".join(f"{o!r}: {text.value(v, o[1:], known)}" for o, v in options.items() if v is not None)
    tensors = spec.tensors

    def table(names, prefix=""):
        return "{" + ", ".join(f"{n!r}: {prefix}{n}" for n in names) + "}"

    auto = text.use(_Auto(spec.kernel, tuple(differentiable)), "auto")
    lines.append(f"{auto}({table(tensors, 'needs_')}, {table(launch)}, {{{extra}}}, {table(differentiable, 'grad_')}, {table(tensors, 'grad_')})")
    takes = [*spec.names(), *(f"grad_{o}" for o in differentiable), *(f"needs_{t}" for t in tensors), *(f"grad_{t}" for t in tensors)]
    head = f"def backward({', '.join(dict.fromkeys(takes))}):"
    function = compiled(spec, "backward", [head, *("    " + line for line in lines)], text.uses)
    kinds = {"SymInt": int, "float": float, "bool": bool}
    types = {n: kinds.get(kind, torch.Tensor) for n, kind, _ in spec.arguments} | {f"needs_{t}": bool for t in tensors}
    return function, {f"grad_{t}": _gradient(t) for t in tensors}, types
