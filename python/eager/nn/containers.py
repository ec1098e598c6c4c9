"""Sequential, ModuleList and ModuleDict: modules that hold modules."""

from collections import OrderedDict

from .module import Module

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class Sequential(Module):
    """Modules one after another: Sequential(a, b) or Sequential(OrderedDict(first=a, second=b)). Any callable
    of one tensor may be among them."""

    def __init__(self, *modules):
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], dict):
            named = modules[0].items()
        elif len(modules) == 1 and isinstance(modules[0], (list, tuple)):
            named = enumerate(modules[0])
        else:
            named = enumerate(modules)
        for name, m in named:
            if not callable(m):
                raise TypeError(f"Sequential: {name} is no module: {type(m).__name__}")
            object.__setattr__(self, str(name), m)

    def _stages(self):
        return [v for k, v in self.__dict__.items() if k not in ("training", "_roles")]

    def forward(self, x, *args, **kwargs):
        for m in self._stages():
            x = m(x, *args, **kwargs)
            args, kwargs = (), {}
        return x

    def append(self, module):
        object.__setattr__(self, str(len(self)), module)
        return self

    def __len__(self):
        return len(self._stages())

    def __iter__(self):
        return iter(self._stages())

    def __getitem__(self, index):
        stages = [(k, v) for k, v in self.__dict__.items() if k not in ("training", "_roles")]
        if isinstance(index, slice):
            return Sequential(OrderedDict(stages[index]))
        if isinstance(index, str):
            return dict(stages)[index]
        return stages[index][1]


class ModuleList(Module):
    """A list of modules."""

    def __init__(self, modules=()):
        super().__init__()
        self.extend(modules)

    def _names(self):
        return [k for k in self.__dict__ if k not in ("training", "_roles")]

    def append(self, module):
        if not isinstance(module, Module):
            raise TypeError(f"ModuleList: a module is wanted, got {type(module).__name__}")
        object.__setattr__(self, str(len(self)), module)
        return self

    def extend(self, modules):
        for m in modules:
            self.append(m)
        return self

    def insert(self, index, module):
        items = list(self)
        items.insert(index, module)
        self._replace(items)

    def _replace(self, items):
        for k in self._names():
            del self.__dict__[k]
        for i, m in enumerate(items):
            self.__dict__[str(i)] = m

    def __len__(self):
        return len(self._names())

    def __iter__(self):
        return iter([self.__dict__[k] for k in self._names()])

    def __getitem__(self, index):
        items = list(self)[index]
        return ModuleList(items) if isinstance(index, slice) else items

    def __setitem__(self, index, module):
        items = list(self)
        items[index] = module
        self._replace(items)

    def __delitem__(self, index):
        items = list(self)
        del items[index]
        self._replace(items)


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules=None):
        super().__init__()
        self.update(modules or {})

    def _check_key(self, name):
        if not isinstance(name, str) or "." in name or not name or hasattr(type(self), name):
            raise KeyError(f"ModuleDict: {name!r} cannot be a name of a module: a text without dots that is no method's name is wanted")

    def update(self, modules):
        for name, m in modules.items() if hasattr(modules, "items") else modules:
            self[name] = m

    def keys(self):
        return [k for k in self.__dict__ if k not in ("training", "_roles")]

    def values(self):
        return [self.__dict__[k] for k in self.keys()]

    def items(self):
        return [(k, self.__dict__[k]) for k in self.keys()]

    def pop(self, name):
        m = self[name]
        del self[name]
        return m

    def __setitem__(self, name, module):
        self._check_key(name)
        if not isinstance(module, Module):
            raise TypeError(f"ModuleDict: a module is wanted, got {type(module).__name__}")
        object.__setattr__(self, name, module)

    def __getitem__(self, name):
        if name not in self:
            raise KeyError(f"ModuleDict: there is no {name!r}, only {', '.join(self.keys())}")
        return self.__dict__[name]

    def __delitem__(self, name):
        self[name]
        del self.__dict__[name]

    def __contains__(self, name):
        return name in self.keys()

    def __len__(self):
        return len(self.keys())

    def __iter__(self):
        return iter(self.keys())
