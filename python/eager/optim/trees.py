"""Trees of parameters, gradients and state, leaf by leaf."""

from eas._eas import EagerTensor, constant, diff_depth, eager_full, realize_all, tree_flatten, tree_unflatten, vmap_level


def shape_of(x):
    return "(" + ", ".join(str(d) for d in x.shape) + ")"


class Tree:
    """A tree of parameters: its leaves, and which of them are trained. In modules buffers and frozen
    parameters are not; nor are integers anywhere."""

    def __init__(self, name, params):
        self.name = name
        leaves, self.treedef = tree_flatten(params)
        self.leaves = [x if isinstance(x, EagerTensor) or x is None else constant(x) for x in leaves]
        self.trained = [x.dtype.kind == "f" for x in self.leaves]
        for aux, first, count in self.treedef.customs():
            known = getattr(aux, "trained", None)
            if known is not None:
                for i in range(first + known, first + count):
                    self.trained[i] = False

    def match(self, what, tree, shapes=True):
        """The leaves of another tree of the same structure."""
        leaves, found = tree_flatten(tree)
        if found != self.treedef:
            raise ValueError(
                f"{self.name}: the tree of the {what} is not that of the parameters: {_short(found)}, and the parameters are {_short(self.treedef)}"
            )
        out = [x if isinstance(x, EagerTensor) else constant(x) for x in leaves]
        for i, (x, p, trained) in enumerate(zip(out, self.leaves, self.trained)):
            if shapes and trained and tuple(x.shape) != tuple(p.shape):
                raise ValueError(f"{self.name}: the {what}{self.treedef.path(i)}: shape {shape_of(x)}, and the parameter has {shape_of(p)}")
        return out

    def build(self, leaves):
        return tree_unflatten(self.treedef, leaves)

    def map(self, fn, *others):
        """fn applied to the trained leaves; the others unchanged."""
        rows = zip(self.leaves, self.trained, *others)
        return self.build([fn(p, *rest) if t else p for p, t, *rest in rows])

    def zeros(self, fn=None):
        """State for each trained leaf, zeros like it unless fn says otherwise; one 0 for each other."""
        fn = fn or zeros_like
        return self.build([fn(p) if t else eager_full((), 0.0, "float32") for p, t in zip(self.leaves, self.trained)])


def _short(treedef):
    s = str(treedef)
    return s if len(s) < 200 else s[:200] + "..."


def zeros_like(p):
    """The initial state of a parameter: zeros, in f32 for halves, which are too coarse for sums."""
    return eager_full(tuple(p.shape), 0.0, state_dtype(p))


def state_dtype(p):
    return "float64" if p.dtype.itemsize == 8 else "float32"


def step_zero():
    return eager_full((), 0, "int32")


def as_step(step):
    return step if isinstance(step, EagerTensor) else constant(step, "int32")


def is_symbolic(t):
    return t._impl._is_symbolic


def outermost():
    return diff_depth() == 0 and vmap_level() == 0


def realize_trees(*trees):
    """Evaluates everything in one program, unless it is part of something larger."""
    if not outermost():
        return
    ts, seen = [], set()
    for tree in trees:
        for t in tree_flatten(tree)[0]:
            if isinstance(t, EagerTensor) and id(t) not in seen:
                if is_symbolic(t):
                    return
                seen.add(id(t))
                ts.append(t)
    if ts:
        realize_all(*ts)
