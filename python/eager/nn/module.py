"""Module: parameters, buffers and submodules under one name, as a pytree.

A module is a node of a pytree: its leaves are its parameters, then its buffers, each in the order in which
they were assigned, submodules in their place; everything else belongs to the structure. So grad, vmap,
compile, tree_map, pickle and copy take a module as they take a dict of tensors.
"""

import copy
from collections import OrderedDict

import numpy as np

from eas._eas import EagerTensor, constant, diff_depth, realize_all, register_pytree_node, vmap_level

__all__ = ["Module", "Parameter"]

# frozen: a parameter that is not trained now; local: a buffer that state_dict leaves out
_PARAMETER, _FROZEN, _BUFFER, _LOCAL = "parameter", "frozen", "buffer", "local"
_CONTAINERS = (list, tuple, dict)
_NUMBERS = frozenset((bool, int, float))
_PLAIN = (bool, int, float, complex, str, bytes, type(None))  # leaves of which two are no tie because they are one object


def Parameter(data, requires_grad=True):
    """A tensor that requires a gradient: as an attribute of a module it is a parameter."""
    t = data if isinstance(data, EagerTensor) else constant(data)
    return t.requires_grad_(requires_grad)


def outermost():
    """Is nothing being traced or transformed?"""
    return diff_depth() == 0 and vmap_level() == 0


def is_symbolic(t):
    return t._impl._is_symbolic


def _holds_state(value):
    """Does it contain a tensor or a module?"""
    if isinstance(value, (EagerTensor, Module)):
        return True
    if isinstance(value, dict):
        return any(map(_holds_state, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_state, value))


def _items(value):
    return value.items() if isinstance(value, dict) else enumerate(value)


# ---- structure ----
class _Structure:
    """The description of a module without its tensors: its parts, and which leaf belongs where. Compared by
    value, so that equal modules share compiled programs."""

    __slots__ = ("nodes", "order", "trained", "count", "ties", "_hash")

    def __init__(self, nodes, order, trained, count, ties):
        self.nodes, self.order, self.trained, self.count, self.ties = nodes, order, trained, count, ties  # the first `trained` leaves are
        self._hash = None

    def __eq__(self, other):
        if self is other:
            return True
        mine = isinstance(other, _Structure) and (self.order, self.trained, self.ties) == (other.order, other.trained, other.ties)
        if not mine:
            return False
        try:
            if self.nodes == other.nodes:  # the comparison runs in C, and mostly by identity
                return True
        except Exception:  # some values, such as arrays, cannot be compared in this way
            pass
        return _same(self.nodes, other.nodes)

    def __hash__(self):
        if self._hash is None:
            self._hash = hash((self.order, self.trained, self.ties, tuple((n[0], tuple(a[0] for a in n[1])) for n in self.nodes)))
        return self._hash

    def __repr__(self):
        return self.nodes[0][0].__name__


def _same(a, b):
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    try:
        return bool(a == b)
    except Exception:
        return False


class _Slot:
    """Stands for leaf number `index` in a description."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index

    def __eq__(self, other):
        return type(other) is type(self) and self.index == other.index

    def __hash__(self):
        return hash(self.index)


class _Part(_Slot):
    """Stands for module number `index`."""

    __slots__ = ()


def _numbered(cls):
    """A factory for cls(i) that makes each small number once: equal descriptions then hold the same
    objects."""
    made = []

    def get(i):
        while len(made) <= i:
            made.append(cls(len(made)))
        return made[i]

    return get


_slot, _part = _numbered(_Slot), _numbered(_Part)


class _Group:
    """A list, tuple or dict that holds tensors or modules."""

    __slots__ = ("kind", "keys", "items")

    def __init__(self, kind, keys, items):
        self.kind, self.keys, self.items = kind, keys, items

    def __eq__(self, other):
        return type(other) is _Group and self.kind is other.kind and self.keys == other.keys and _same(self.items, other.items)

    __hash__ = None

    def build(self, tensors, modules):
        items = [_build(x, tensors, modules) for x in self.items]
        if self.keys is not None:
            return OrderedDict(zip(self.keys, items)) if issubclass(self.kind, OrderedDict) else dict(zip(self.keys, items))
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)


class _Describer:
    """Walks a module once: modules and tensors that are met again (tied weights, a layer that is used twice)
    are one part."""

    def __init__(self):
        self.nodes, self.modules, self.tensors = [], {}, []  # tensors: (value, is it trained)

    def module(self, m):
        at = self.modules.get(id(m))
        if at is None:
            at = self.modules[id(m)] = len(self.nodes)
            self.nodes.append(None)
            roles = dict(m.__dict__["_roles"])
            parts = [(k, made := self.value(v, k, roles), _exact(v) if made is v else None) for k, v in m.__dict__.items() if k != "_roles"]
            self.nodes[at] = (type(m), (*parts, ("_roles", roles, None)))
        return _part(at)

    def value(self, v, path, roles):
        if isinstance(v, EagerTensor) or path in roles:  # what stands in place of a tensor keeps its place
            role = role_of(roles, path, v)
            if v is not None:
                roles[path] = role
                self.tensors.append((v, role == _PARAMETER))
                return _slot(len(self.tensors) - 1)
        if isinstance(v, Module):
            return self.module(v)
        if isinstance(v, _CONTAINERS) and (_holds_state(v) or any(r.startswith(path + ".") for r in roles)):
            keys = tuple(v) if isinstance(v, dict) else None
            return _Group(type(v), keys, tuple(self.value(x, f"{path}.{k}", roles) for k, x in _items(v)))
        return v


def _exact(v):
    """A key that tells 1, 1.0 and True apart, which are equal for Python but not as parts of a structure."""
    t = type(v)
    return t if t in _NUMBERS else tuple(map(type, v)) if t is tuple else None


def role_of(roles, path, t):
    """The role of a tensor in its module: as it was registered, else by whether it requires a gradient."""
    role = roles.get(path)
    if role is None:
        role = _PARAMETER if getattr(t, "requires_grad", False) else _BUFFER
    return role


def _flatten(m):
    d = _Describer()
    d.module(m)
    first, places = {}, []  # id of a leaf -> the first place at which it is found
    for i, (v, _) in enumerate(d.tensors):
        places.append(i if isinstance(v, _PLAIN) else first.setdefault(id(v), i))
    unique = [i for i, p in enumerate(places) if i == p]
    trained = {p for p, (_, yes) in zip(places, d.tensors) if yes}
    order = tuple([i for i in unique if i in trained] + [i for i in unique if i not in trained])
    ties = tuple(places) if len(unique) != len(places) else None
    return [d.tensors[i][0] for i in order], _Structure(tuple(d.nodes), order, len(trained), len(places), ties)


def _build(value, tensors, modules):
    if type(value) is _Part:
        return modules[value.index]
    if type(value) is _Slot:
        return tensors[value.index]
    return value.build(tensors, modules) if type(value) is _Group else value


def _unflatten(s, leaves):
    tensors = [None] * s.count
    for i, leaf in zip(s.order, leaves):
        tensors[i] = leaf
    if s.ties is not None:
        tensors = [tensors[p] for p in s.ties]
    modules = [object.__new__(n[0]) for n in s.nodes]
    for made, (_, attributes) in zip(modules, s.nodes):
        into = made.__dict__
        for k, v, _ in attributes:
            into[k] = _build(v, tensors, modules)
        into["_roles"] = dict(into["_roles"])
    return modules[0]


# ---- the class ----
class Module:
    """Base class of models: assign tensors and modules to attributes in __init__ (after super().__init__()),
    and write forward.

    A tensor attribute that requires a gradient is a parameter, another one a buffer; lists, tuples and dicts
    of tensors and modules count as well.
    """

    _holds_tensors_ = True  # compile looks into objects with this attribute, also those of classes of this library
    _policy = {"auto_realize_toplevel_forward": False, "auto_realize_backward_grads": False}
    _depth = 0
    _hook = None  # called in place of forward, while a summary is made

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        register_pytree_node(cls, _flatten, _unflatten)

    def __new__(cls, *args, **kwargs):
        m = object.__new__(cls)
        m.__dict__["training"] = True
        m.__dict__["_roles"] = {}
        return m

    def __init__(self):
        pass

    def forward(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no forward(): write def forward(self, ...)")

    def __call__(self, *args, **kwargs):
        if Module._hook is not None:
            return Module._hook(self, args, kwargs)
        if not Module._policy["auto_realize_toplevel_forward"]:
            return self.forward(*args, **kwargs)
        Module._depth += 1
        try:
            out = self.forward(*args, **kwargs)
        finally:
            Module._depth -= 1
        if Module._depth == 0 and outermost():
            from eas._eas import tensor_leaves

            ts = [t for t in tensor_leaves(out) if not is_symbolic(t)]
            if ts:
                realize_all(*ts)
        return out

    # ---- attributes ----
    def __setattr__(self, name, value):
        cls_attr = getattr(type(self), name, None)
        if isinstance(cls_attr, property) and cls_attr.fset is not None:
            return object.__setattr__(self, name, value)
        if isinstance(value, EagerTensor):
            roles = self.__dict__.get("_roles")
            if roles is None:
                raise RuntimeError(f"{type(self).__name__}: the module was made without Module.__new__")
            if value.requires_grad and roles.get(name) is None:
                roles[name] = _PARAMETER
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        object.__delattr__(self, name)
        self._roles.pop(name, None)

    def register_buffer(self, name, tensor, persistent=True):
        """A tensor that is state, but not trained. persistent=False: state_dict leaves it out."""
        self._check_name("register_buffer", name)
        if tensor is not None and not isinstance(tensor, EagerTensor):
            tensor = constant(tensor)
        self._roles[name] = _BUFFER if persistent else _LOCAL
        object.__setattr__(self, name, tensor)

    def register_parameter(self, name, tensor):
        """A tensor that is trained; None: a parameter that is left out."""
        self._check_name("register_parameter", name)
        self._roles[name] = _PARAMETER
        object.__setattr__(self, name, None if tensor is None else Parameter(tensor))

    def register_module(self, name, module):
        self._check_name("register_module", name)
        object.__setattr__(self, name, module)

    add_module = register_module

    def _check_name(self, what, name):
        if not isinstance(name, str) or not name or "." in name:
            raise ValueError(f"{what}: a name is a text without dots, got {name!r}")
        if hasattr(type(self), name):
            raise KeyError(f"{what}: {name!r} is the name of a method of {type(self).__name__}")

    # ---- walking ----
    def _named_tensors(self, prefix, roles):
        return _tensors_of(self, prefix + "." if prefix else "", roles, set(), set())

    def named_parameters(self, prefix=""):
        """(dotted name, tensor) of every parameter; one that is used twice comes once."""
        return self._named_tensors(prefix, (_PARAMETER, _FROZEN))

    def parameters(self):
        """Every parameter."""
        for _, t in self.named_parameters():
            yield t

    def named_buffers(self, prefix=""):
        """(dotted name, tensor) of every buffer."""
        return self._named_tensors(prefix, (_BUFFER, _LOCAL))

    def buffers(self):
        """Every buffer."""
        for _, t in self.named_buffers():
            yield t

    def named_modules(self, prefix=""):
        """(dotted name, module) of this module and all below it, each once."""
        yield from _modules_of(self, prefix, set())

    def modules(self):
        """This module and all below it."""
        for _, m in self.named_modules():
            yield m

    def named_children(self):
        """(name, module) of the modules right below this one."""
        for name, value in self.__dict__.items():
            yield from _children_in(name, value)

    def children(self):
        for _, m in self.named_children():
            yield m

    def apply(self, fn):
        """fn(module) for every module below, then this one. Gives the module."""
        for m in self.children():
            m.apply(fn)
        fn(self)
        return self

    # ---- modes ----
    def train(self, mode=True):
        """Training: dropout drops, batch normalisation takes the statistics of the batch. Gives the module.
        """
        if not isinstance(mode, bool):
            raise ValueError(f"train: mode is True or False, got {mode!r}")
        for m in self.modules():
            m.__dict__["training"] = mode
        return self

    def eval(self):
        """Turns training off: the reverse of train(). Gives the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """All parameters are trained from now on, or none. Gives the module."""
        for m in self.modules():
            for path, t in _own_tensors(m):
                role = role_of(m._roles, path, t)
                if role in (_PARAMETER, _FROZEN):
                    m._roles[path] = _PARAMETER if requires_grad else _FROZEN
                    t.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        """Forgets the gradients."""
        for t in self.parameters():
            t.grad = None if set_to_none or t.grad is None else t.grad * 0

    def backward(self, loss, gradient=None, retain_graph=False, create_graph=False):
        """loss.backward(...); with the policy auto_realize_backward_grads the gradients are evaluated at
        once."""
        loss.backward(gradient, retain_graph=retain_graph, create_graph=create_graph)
        if self._policy["auto_realize_backward_grads"] and outermost():
            grads = [t.grad for t in self.parameters() if t.grad is not None and not is_symbolic(t.grad)]
            if grads:
                realize_all(*grads, loss)

    @classmethod
    def set_execution_policy(cls, *, auto_realize_toplevel_forward=None, auto_realize_backward_grads=None):
        """Whether results of a model are evaluated when the outermost call ends, and gradients when
        Module.backward ends. None leaves the setting unchanged."""
        given = {"auto_realize_toplevel_forward": auto_realize_toplevel_forward, "auto_realize_backward_grads": auto_realize_backward_grads}
        for name, value in given.items():
            if value is not None:
                if not isinstance(value, bool):
                    raise TypeError(f"set_execution_policy: {name} is True, False or None, got {value!r}")
                Module._policy[name] = value

    @classmethod
    def get_execution_policy(cls):
        """The policy, as a dict."""
        return dict(Module._policy)

    # ---- state ----
    def state_dict(self, prefix="", *, layout=None):
        """Dotted names and tensors of all parameters and buffers, in the order of the attributes. Tied
        tensors are there under each of their names. layout="torch": shapes and names as the module of the
        same name has them in torch."""
        if _layout_of("state_dict", layout):
            from .torch_layout import to_torch

            return OrderedDict((prefix + name, t) for name, t in to_torch(self, self.state_dict()).items())
        return OrderedDict((name, t.detach()) for name, t in _places_of(self, prefix, {id(self)}))

    def load_state_dict(self, state_dict, strict=True, *, layout=None):
        """Takes the values of a dict of tensors or arrays (NumPy's, torch's). Checked as a whole first: where
        a name is missing, not known or of another shape, nothing is changed.

        layout="torch": the dict is that of a torch module, or of a file of its weights: matrices of linear
        and recurrent layers and filters are turned, the projections of attention taken apart.
        strict=False: names that are missing or not known are left alone. Gives (missing names, names that are
        not known).
        """
        if not hasattr(state_dict, "keys"):
            raise TypeError(f"load_state_dict: a dict of names and tensors is wanted, got {type(state_dict).__name__}")
        mine = dict(_places_of(self, "", {id(self)}))
        if _layout_of("load_state_dict", layout):
            from .torch_layout import from_torch

            state_dict = from_torch(self, {name: _as_tensor(name, v) for name, v in state_dict.items()})
        missing = [n for n in mine if n not in state_dict]
        extra = [n for n in state_dict if n not in mine]
        new, wrong = {}, []
        for name, t in mine.items():
            if name in state_dict:
                value = _as_tensor(name, state_dict[name])
                if tuple(value.shape) != tuple(t.shape):
                    wrong.append(f"{name}: {_text(value)} given, {_text(t)} wanted")
                new[name] = value
        problems = ([f"missing: {', '.join(missing)}"] if strict and missing else []) + (
            [f"not known: {', '.join(map(str, extra))}"] if strict and extra else []
        )
        problems += [f"of another shape: {'; '.join(wrong)}"] if wrong else []
        if wrong and not layout and any(tuple(new[n].shape) == _torch_shape(t) for n, t in mine.items() if n in new and len(t.shape) > 1):
            problems.append('weights of torch: load_state_dict(..., layout="torch") turns them')
        if problems:
            raise ValueError(f"load_state_dict of {type(self).__name__}: " + "\n  ".join(["nothing was changed", *problems]))
        done = set()
        for name, t in mine.items():
            if name in new and id(t) not in done:
                done.add(id(t))
                _assign(t, new[name])
        return _Incompatible(missing, extra)

    def to(self, device=None, dtype=None):
        """All tensors on another device, floats in another dtype. Gives the module."""
        if device is not None and dtype is None and (not isinstance(device, str) or hasattr(np, device) or device == "bfloat16"):
            device, dtype = None, device
        for t in [*self.parameters(), *self.buffers()]:
            new = t.detach()
            if dtype is not None and t.dtype.kind == "f":
                new = new.astype(dtype)
            _assign(t, new if device is None else new.to(device), exact=False)
        return self

    def astype(self, dtype):
        """Floats in another dtype. Gives the module."""
        return self.to(dtype=dtype)

    def half(self):
        return self.to(dtype="float16")

    def bfloat16(self):
        return self.to(dtype="bfloat16")

    def float(self):
        return self.to(dtype="float32")

    def double(self):
        return self.to(dtype="float64")

    def realize(self):
        """Evaluates all tensors at once. Gives the module."""
        ts = [*self.parameters(), *self.buffers()]
        if ts:
            realize_all(*ts)
        return self

    def num_parameters(self):
        """How many numbers are trained."""
        return sum(int(np.prod([int(d) for d in t.shape])) for t in self.parameters())

    # ---- copies ----
    def __getstate__(self):
        return dict(self.__dict__)

    def __setstate__(self, state):
        trained = state.pop("_trained", None)
        self.__dict__.update(state)
        if trained is not None:
            for name, t in self.named_parameters():
                if name in trained:
                    t.requires_grad_()

    def __reduce_ex__(self, protocol):
        state = dict(self.__dict__)
        state["_trained"] = frozenset(n for n, t in self.named_parameters() if t.requires_grad)
        return _blank, (type(self),), state

    def __copy__(self):
        m = object.__new__(type(self))
        m.__dict__.update(self.__dict__)
        m.__dict__["_roles"] = dict(self._roles)
        return m

    def __deepcopy__(self, memo):
        m = object.__new__(type(self))
        memo[id(self)] = m
        for k, v in self.__dict__.items():
            m.__dict__[k] = _deep(v, memo)
        return m

    # ---- text ----
    def extra_repr(self):
        """The text between the brackets in repr."""
        return ""

    def __repr__(self):
        extra, children = self.extra_repr(), list(self.named_children())
        if not children:
            return f"{type(self).__name__}({extra})"
        lines = ([extra] if extra else []) + [f"({name}): " + repr(m).replace("\n", "\n  ") for name, m in children]
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"

    def summary(self, *inputs, show=True, **kwargs):
        """A table of the modules: what they take and give, parameters and FLOPs (two for a multiply and an
        add). Inputs are tensors, or shapes; without any only parameters are known.

        Gives a Summary, which prints as the table; show=False: without printing it.
        """
        from .summary import summarize

        table = summarize(self, inputs, kwargs)
        if show:
            print(table)
        return table


register_pytree_node(Module, _flatten, _unflatten)


def _blank(cls):
    return Module.__new__(cls)


def _deep(v, memo):
    if isinstance(v, EagerTensor):
        if id(v) not in memo:
            t = v.detach().clone() if v.requires_grad else v.clone()
            memo[id(v)] = t.requires_grad_() if v.requires_grad else t
        return memo[id(v)]
    if isinstance(v, list):
        return [_deep(x, memo) for x in v]
    if type(v) is tuple:
        return tuple(_deep(x, memo) for x in v)
    if type(v) is dict:
        return {k: _deep(x, memo) for k, x in v.items()}
    return copy.deepcopy(v, memo)


class _Incompatible(tuple):
    """(missing names, names that are not known)."""

    def __new__(cls, missing, unexpected):
        return tuple.__new__(cls, (missing, unexpected))

    missing_keys = property(lambda self: self[0])
    unexpected_keys = property(lambda self: self[1])


def _own_tensors(m):
    """(path, tensor) of the tensors that belong to this module itself and not to one below it."""
    for name, value in list(m.__dict__.items()):
        if name != "_roles":
            yield from _tensors_in(value, name)


def _tensors_in(value, path):
    if isinstance(value, EagerTensor):
        yield path, value
    elif isinstance(value, _CONTAINERS) and _holds_state(value):
        for k, v in _items(value):
            yield from _tensors_in(v, f"{path}.{k}")


def _tensors_of(m, prefix, roles, seen, modules):
    """Every tensor of these roles below m, in the order of the attributes, each once."""
    if id(m) in modules:
        return
    modules.add(id(m))
    for name, value in list(m.__dict__.items()):
        if name != "_roles":
            yield from _tensors_at(m, value, name, prefix, roles, seen, modules)


def _tensors_at(m, value, path, prefix, roles, seen, modules):
    if isinstance(value, EagerTensor):
        if role_of(m._roles, path, value) in roles and id(value) not in seen:
            seen.add(id(value))
            yield prefix + path, value
    elif isinstance(value, Module):
        yield from _tensors_of(value, f"{prefix}{path}.", roles, seen, modules)
    elif isinstance(value, _CONTAINERS) and _holds_state(value):
        for k, v in _items(value):
            yield from _tensors_at(m, v, f"{path}.{k}", prefix, roles, seen, modules)


def _modules_of(m, name, seen):
    if id(m) in seen:
        return
    seen.add(id(m))
    yield name, m
    for child, value in m.named_children():
        yield from _modules_of(value, f"{name}.{child}" if name else child, seen)


def _children_in(name, value):
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, _CONTAINERS) and name != "_roles":
        for k, v in _items(value):
            yield from _children_in(f"{name}.{k}", v)


def _places_of(m, prefix, above):
    """(name, tensor) of everything that belongs in a state dict."""
    for name, value in list(m.__dict__.items()):
        if name != "_roles":
            yield from _places_at(m, value, name, prefix, above)


def _places_at(m, value, path, prefix, above):
    if isinstance(value, EagerTensor):
        if role_of(m._roles, path, value) != _LOCAL:
            yield prefix + path, value
    elif isinstance(value, Module):
        if id(value) in above:
            raise RuntimeError(f"{prefix}{path} contains itself")
        yield from _places_of(value, f"{prefix}{path}.", above | {id(value)})
    elif isinstance(value, _CONTAINERS) and _holds_state(value):
        for k, v in _items(value):
            yield from _places_at(m, v, f"{path}.{k}", prefix, above)


def _layout_of(what, layout):
    if layout not in (None, "torch"):
        raise ValueError(f'{what}: layout is None or "torch", got {layout!r}')
    return layout


def _torch_shape(t):
    return (*t.shape[-1:-3:-1], *t.shape[:-2])


def _text(t):
    return f"({', '.join(str(d) for d in t.shape)})"


def _as_tensor(name, value):
    if isinstance(value, EagerTensor):
        return value.detach()
    if hasattr(value, "detach") and hasattr(value, "__dlpack__"):  # torch's
        from eas._eas import eager_from_dlpack

        return eager_from_dlpack(value.detach().clone(memory_format=_contiguous(value)))
    try:
        return constant(value)
    except Exception as e:
        raise TypeError(f"load_state_dict: {name} is no array: {type(value).__name__} ({e})") from None


def _contiguous(value):
    import sys

    return sys.modules[type(value).__module__.partition(".")[0]].contiguous_format


def _assign(t, new, exact=True):
    """Gives the handle t other data, in t's dtype; whether it requires a gradient stays the same."""
    from ..core.tensor import rebind

    requires = t.requires_grad
    if exact and new.dtype != t.dtype:
        new = new.astype(t.dtype)
    rebind(t, new.clone() if new is t else new)
    t.grad = None
    if requires:
        t.requires_grad_()
