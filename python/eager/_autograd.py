"""Derivatives torch's way: requires_grad, backward, grad, no_grad."""

import contextlib
import functools
import threading
import weakref

from eas._eas import GraphBreak, diff_forget, diff_leaves, diff_vjp, eager_full, grad_enable, tensor_ops, vmap_level

__all__ = ["enable_grad", "no_grad", "set_grad_enabled"]

_stop = tensor_ops["stop_gradient"]
_owners = weakref.WeakValueDictionary()  # TensorImpl of a leaf -> the tensor whose .grad it is


class _Kept(threading.local):
    def __init__(self):
        self.refs = []


_kept = _Kept()


def keep(*tensors):
    """Remembers tensors that were recorded beside a result and should be computed together with it: an
    optimiser's step evaluates them too, if they are still alive then."""
    _kept.refs = [r for r in _kept.refs[-256:] if r() is not None]
    _kept.refs += [weakref.ref(t) for t in tensors if not t._impl._is_symbolic]


def take_kept():
    """The remembered tensors that are still alive and not computed yet; they are forgotten."""
    refs, _kept.refs = _kept.refs, []
    return [t for t in (r() for r in refs) if t is not None and not t.real]


def requires_grad_(self, requires_grad=True):
    """From now on operations on this tensor are recorded, so that backward() of their results finds its
    gradient; with False they are not. Gives the tensor."""
    if not requires_grad:
        self.is_traced = False
        if self._leaf is not None:
            _owners.pop(self._leaf, None)
        self._leaf = None
        return self
    if self.dtype.kind != "f":
        raise TypeError(f"requires_grad: only floats have gradients, this tensor is {self.dtype}")
    if not self.is_traced:
        # the tensor becomes a leaf: the operations that made it, recorded under no_grad(), are no part of
        # derivatives
        if not self.real:
            self._impl = _stop(self)._impl
        self.is_traced = True
    impl = self._impl
    if self._leaf is not None and self._leaf is not impl:
        _owners.pop(self._leaf, None)  # the leaf that the tensor stood for before has no tensor any more
    self._leaf = impl
    _owners[impl] = self
    return self


def backward(self, gradient=None, retain_graph=False, create_graph=False):
    """Adds the gradient of this tensor, one number (or of its product with `gradient`), to the .grad of every
    tensor that requires one and that it was made of.

    The operations that led here are forgotten then; retain_graph=True keeps them for another call.
    create_graph=True: the gradients can be differentiated themselves.
    """
    if not self.is_traced:
        if self._impl._is_symbolic:
            raise GraphBreak(
                "backward() in a compiled function: gradients are added to tensors that it captures; it runs as it is. eager.value_and_grad can be compiled"
            )
        raise RuntimeError(
            "backward: this tensor was made of nothing that requires a gradient, or what it was made of is gone after another backward(); retain_graph=True keeps it"
        )
    if gradient is None:
        if tuple(self.shape) != ():
            raise RuntimeError(
                f"backward: a tensor of shape {tuple(self.shape)} needs a gradient of that shape; only of one number it is 1 by itself"
            )
        gradient = eager_full((), 1.0, self.dtype)
    leaves = []
    for impl in diff_leaves(self):
        owner = _owners.get(impl)
        if owner is None:
            continue
        if owner._impl is not impl:
            raise RuntimeError(
                "backward: a tensor that requires a gradient was assigned to after it was used; work on x.clone(), or update it inside no_grad() after backward()"
            )
        leaves.append(owner)
    grads = diff_vjp(leaves, [self], [gradient], vmap_level())
    for leaf, g in zip(leaves, grads):
        if g is None:
            continue
        if not create_graph:
            g = _stop(g)
        leaf.grad = g if leaf.grad is None else leaf.grad + g
    keep(self)
    if not retain_graph and not create_graph:
        diff_forget(self)


@contextlib.contextmanager
def set_grad_enabled(on):
    """Inside, operations are recorded for derivatives, or not: then their results are constants."""
    before = grad_enable(on)
    try:
        yield
    finally:
        grad_enable(before)


class no_grad(contextlib.ContextDecorator):
    """with no_grad(): what is computed inside is a constant for derivatives. Also a decorator."""

    _on = False

    def __enter__(self):
        self._before = grad_enable(self._on)
        return self

    def __exit__(self, *exc):
        grad_enable(self._before)

    def __call__(self, fn):
        @functools.wraps(fn)
        def wrapped(*args, **kwargs):
            with type(self)():
                return fn(*args, **kwargs)

        return wrapped


class enable_grad(no_grad):
    """The reverse, inside no_grad()."""

    _on = True
