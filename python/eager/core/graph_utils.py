"""Walks over what traced tensors were made of. Nothing here calls itself: graphs may be deep."""

__all__ = ["get_all_impls_topological", "get_operations_topological", "get_topological_order", "print_computation_graph", "print_trace_graph"]


def _impl(x):
    return getattr(x, "_impl", x)


def _list(x):
    """Roots of a walk: a tensor, a TensorImpl, or a sequence of them."""
    return list(x) if isinstance(x, (list, tuple)) else [x]


def _inputs_first(roots, parents):
    order, seen, todo = [], set(), [(_impl(r), False) for r in reversed(roots)]
    while todo:
        x, done = todo.pop()
        if done:
            order.append(x)
        elif id(x) not in seen:
            seen.add(id(x))
            todo.append((x, True))
            todo.extend((p, False) for p in reversed(parents(x)))
    return order


def _parents(x):
    return x.parents


def get_all_impls_topological(impls):
    """Every TensorImpl of which these were made, and these themselves, inputs first."""
    return _inputs_first(_list(impls), _parents)


def get_topological_order(impl):
    """get_all_impls_topological of one TensorImpl."""
    return _inputs_first(_list(impl), _parents)


def get_operations_topological(impls):
    """[(op id, [outputs])], outputs first; an operation with several results is listed once."""
    found = {}
    for x in reversed(get_all_impls_topological(impls)):
        refs = x.output_refs
        if refs is not None and id(refs) not in found:
            found[id(refs)] = (id(refs), [o for o in refs.get_alive_outputs() if o is not None])
    return list(found.values())


def _line(x, names, siblings=()):
    args = ", ".join(names[id(p)] for p in x.parents) if x.parents else ""
    shape = ", ".join(str(d) for d in x.physical_shape)
    dims = f" batch_dims={x.batch_dims}" if x.batch_dims else ""
    also = f"  # with {', '.join(siblings)}" if siblings else ""
    return f"{names[id(x)]} = {x.op_name or 'data'}({args}): {x.cached_dtype}({shape}){dims}{also}"


def print_trace_graph(impls, show_siblings=True):
    """Prints the operations that made traced tensors, a line each; also results of an operation that are not
    used here, if they are alive."""
    order = get_all_impls_topological(impls)
    names = {id(x): f"%{i}" for i, x in enumerate(order)}
    for x in order:
        siblings = []
        if show_siblings and x.output_refs is not None:
            siblings = [names.get(id(o), f"result {i}") for i, o in enumerate(x.output_refs.get_alive_outputs()) if o is not None and o is not x]
        print(_line(x, names, siblings))


def print_computation_graph(impl):
    """Prints the operations that computing a tensor still needs, traced or not, inputs first."""
    order = _inputs_first(_list(impl), lambda x: x._inputs)
    names = {id(x): f"%{i}" for i, x in enumerate(order)}
    for x in order:
        args = ", ".join(names[id(p)] for p in x._inputs)
        shape = ", ".join(str(d) for d in x.physical_shape)
        print(f"{names[id(x)]} = {x.op_name or 'data'}({args}): {x.cached_dtype}({shape})")
