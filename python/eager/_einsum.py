"""einsum: every subscript that NumPy takes. Operands are joined two at a time in the order that costs least,
each pair by one batched matrix product of permuted and merged axes."""

import builtins
import functools
import itertools
import math
from typing import NamedTuple

import eager as _e

from ._numpy import _t
from ._wrapped import is_tensor

__all__ = ["einsum", "einsum_path"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
EXHAUSTIVE = 6  # operands up to which all orders are tried


def _interleaved(args):
    """The arguments of einsum(x, [0, 1], y, [1, 2], [0, 2]) with the subscripts as a text."""
    operands, lists = list(args[0::2]), list(args[1::2])
    out = None
    if len(args) % 2:
        out, operands = operands[-1], operands[:-1]

    def text(items):
        return "".join("..." if i is Ellipsis else _LETTERS[i] for i in items)

    subscripts = ",".join(text(i) for i in lists[: len(operands)])
    return subscripts + ("" if out is None else "->" + text(out)), operands


def _parse(subscripts, ranks):
    """(terms, result) with letters only: an ellipsis becomes letters of its own (from the end, so that dims
    broadcast)."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"eager.einsum: {subscripts!r} has {len(terms)} terms, and {len(ranks)} operands are given")
    for t in [*terms, right]:
        bad = t.replace("...", "").strip(_LETTERS)
        if bad or t.count("...") > 1:
            raise ValueError(f"eager.einsum: {subscripts!r}: {t!r} is not made of letters and at most one ellipsis")
    used = set(text)
    spare = [c for c in (*_LETTERS, *(chr(c) for c in range(192, 600))) if c not in used]
    extra = 0
    for t, r in zip(terms, ranks):
        n = r - len(t.replace("...", ""))
        if n < 0 or (n > 0 and "..." not in t):
            raise ValueError(f"eager.einsum: {t!r} is for {len(t.replace('...', ''))} dims, and the operand has {r}")
        extra = builtins.max(extra, n if "..." in t else 0)
    dots = "".join(spare[:extra])
    full = [t.replace("...", dots[extra - (r - len(t) + 3) :] if "..." in t and r - len(t) + 3 > 0 else "") for t, r in zip(terms, ranks)]
    if arrow:
        result = right.replace("...", dots)
    else:
        letters = "".join(t.replace("...", "") for t in terms)
        result = dots + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    for c in result:
        if result.count(c) > 1:
            raise ValueError(f"eager.einsum: {c!r} is twice in the result of {subscripts!r}")
        if not builtins.any(c in t for t in full):
            raise ValueError(f"eager.einsum: {c!r} of the result is in no operand of {subscripts!r}")
    return full, result


def _sizes(terms, shapes, subscripts):
    sizes = {}
    for t, shape in zip(terms, shapes):
        for c, n in zip(t, shape):
            old = sizes.get(c, 1)
            if isinstance(old, int) and isinstance(n, int) and old != n and 1 not in (old, n):
                raise ValueError(f"eager.einsum: sizes {old} and {n} for {c!r} in {subscripts!r}")
            sizes[c] = n if isinstance(old, int) and old == 1 else old
    return sizes


def _weight(letters, sizes):
    return math.prod(sizes[c] if isinstance(sizes[c], int) else 64 for c in letters)


# ---- plans: what is done to the operands, from their shapes alone ----


class _Side(NamedTuple):
    """The steps that an operand goes through before a product; None: the step is left out."""

    summed: tuple | None  # axes
    order: tuple | None
    wide: tuple | None  # the shape it is broadcast to
    shape: tuple | None


class _Step(NamedTuple):
    places: tuple  # of two operands; the result goes behind the others
    left: _Side
    right: _Side
    matrix: bool  # a batched matrix product, or element by element
    shape: tuple | None  # of the result


class _Plan(NamedTuple):
    diagonals: list  # for each operand pairs of axes
    steps: list
    last: _Side


def _diagonals(term, shape):
    """(pairs of axes of repeated letters, one after the other; term; shape) of one operand"""
    pairs = []
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i, j = [k for k, d in enumerate(term) if d == c][:2]
            n = shape[i] if shape[i] == shape[j] else builtins.min(shape[i], shape[j])
            pairs.append((i, j))
            shape = (*(n for k, n in enumerate(shape) if k not in (i, j)), n)
            term = "".join(d for k, d in enumerate(term) if k not in (i, j)) + c
    return pairs, term, shape


def _less(term, shape, keep):
    """(axes that are summed or None, term, shape)"""
    axes = tuple(i for i, c in enumerate(term) if c not in keep)
    if not axes:
        return None, term, shape
    return axes, "".join(c for c in term if c in keep), tuple(n for c, n in zip(term, shape) if c in keep)


def _arranged(term, shape, order, sizes, wide):
    """(order of axes or None, shape to broadcast to or None, shape then): sizes of 1 that stand for more are
    broadcast where `wide` says so."""
    axes = None if tuple(order) == tuple(term) else tuple(term.index(c) for c in order)
    have = shape if axes is None else tuple(shape[i] for i in axes)
    target = tuple(sizes[c] if c in wide else n for c, n in zip(order, have))
    return axes, None if target == have else target, target


def _joined(a, b):
    return tuple(n if m == 1 else m for m, n in zip(a, b))


def _other(shape, have):
    return None if shape == have else shape


def _pair(places, ta, sa, tb, sb, keep, sizes):
    """(step, term, shape) of two operands. keep: letters that are needed later."""
    sum_a, ta, sa = _less(ta, sa, set(tb) | keep)
    sum_b, tb, sb = _less(tb, sb, set(ta) | keep)
    both = [c for c in ta if c in tb]
    batch, inner = [c for c in both if c in keep], [c for c in both if c not in keep]
    left, right = [c for c in ta if c not in tb], [c for c in tb if c not in ta]
    nb, nl = len(batch), len(left)
    order_a, wide_a, sa = _arranged(ta, sa, batch + left + inner, sizes, inner)
    order_b, wide_b, sb = _arranged(tb, sb, batch + inner + right, sizes, inner)
    lead, rows, cols = _joined(sa[:nb], sb[:nb]), sa[nb : nb + nl], sb[nb + len(inner) :]
    if inner:
        k = math.prod(sizes[c] for c in inner)
        shape_a, shape_b = (*sa[:nb], math.prod(rows), k), (*sb[:nb], k, math.prod(cols))
        made = (*lead, shape_a[-2], shape_b[-1])
    else:  # no sum: element by element
        shape_a, shape_b = (*sa, *(1,) * len(right)), (*sb[:nb], *(1,) * nl, *cols)
        made = (*lead, *rows, *cols)
    step = _Step(
        places,
        _Side(sum_a, order_a, wide_a, _other(shape_a, sa)),
        _Side(sum_b, order_b, wide_b, _other(shape_b, sb)),
        bool(inner),
        _other((*lead, *rows, *cols), made),
    )
    return step, "".join(batch + left + right), (*lead, *rows, *cols)


def _plan(subscripts, shapes, optimize):
    terms, result = _parse(subscripts, [len(s) for s in shapes])
    singles = [_diagonals(t, s) for t, s in zip(terms, shapes)]
    terms, shapes = [t for _, t, _ in singles], [s for _, _, s in singles]
    sizes = _sizes(terms, shapes, subscripts)
    if isinstance(optimize, tuple):
        path = optimize
    elif optimize:
        path = _path(terms, result, sizes)
    else:
        path = [(0, 1)] + [(0, len(terms) - 2 - k) for k in range(len(terms) - 2)] if len(terms) > 1 else []
    steps = []
    for places in path:
        places = sorted(places)
        while len(places) > 1 and len(terms) > 1:  # several at once: one after the other
            i, j = places[:2]
            rest = [t for n, t in enumerate(terms) if n not in (i, j)]
            step, term, shape = _pair((i, j), terms[i], shapes[i], terms[j], shapes[j], set(result).union(*rest), sizes)
            steps.append(step)
            terms, shapes = [*rest, term], [*(s for n, s in enumerate(shapes) if n not in (i, j)), shape]
            places = sorted([*(p - (p > i) - (p > j) for p in places[2:]), len(terms) - 1])
    axes, term, shape = _less(terms[0], shapes[0], set(result))
    order, wide, _ = _arranged(term, shape, result, sizes, result)
    return _Plan([p for p, _, _ in singles], steps, _Side(axes, order, wide, None))


_kept_plan = functools.lru_cache(maxsize=512)(_plan)

def _cost(ta, tb, keep, sizes):
    """(operations, elements of the result) of a product of two."""
    both = set(ta) | set(tb)
    out = [c for c in both if c in keep]
    return _weight(both, sizes), _weight(out, sizes), "".join(out)


def _path(terms, result, sizes):
    """Pairs of places, each result behind the others: the cheapest order of all for few operands, else the
    pair that shrinks most at each step."""
    if len(terms) <= EXHAUSTIVE:
        memo = {}

        def best(ts):
            if len(ts) == 1:
                return 0, []
            key = tuple(sorted(ts))
            if (key, ts) in memo:
                return memo[key, ts]
            found = None
            for i, j in itertools.combinations(range(len(ts)), 2):
                rest = tuple(t for k, t in enumerate(ts) if k not in (i, j))
                keep = set(result).union(*rest) if rest else set(result)
                cost, _, out = _cost(ts[i], ts[j], keep, sizes)
                later, path = best((*rest, "".join(sorted(out))))
                if found is None or cost + later < found[0]:
                    found = cost + later, [(i, j), *path]
            memo[key, ts] = found
            return found

        return best(tuple(terms))[1]
    ts, path = list(terms), []
    while len(ts) > 1:
        found = None
        for i, j in itertools.combinations(range(len(ts)), 2):
            rest = [t for k, t in enumerate(ts) if k not in (i, j)]
            keep = set(result).union(*rest) if rest else set(result)
            cost, size, out = _cost(ts[i], ts[j], keep, sizes)
            score = (size - _weight(set(ts[i]), sizes) - _weight(set(ts[j]), sizes), cost)
            if found is None or score < found[0]:
                found = score, (i, j), out, rest
        path.append(found[1])
        ts = [*found[3], found[2]]
    return path


# ---- running ----


def _prepared(x, side):
    if side.summed is not None:
        x = _e.sum(x, axis=side.summed, dtype=x.dtype if x.dtype.kind in "iub" else None)
    if side.order is not None:
        x = _e.permute(x, side.order)
    if side.wide is not None:
        x = _e.broadcast_to(x, side.wide)
    return x if side.shape is None else _e.reshape(x, side.shape)


def _product(a, b, step):
    a, b = _prepared(a, step.left), _prepared(b, step.right)
    out = _e.matmul(a, b) if step.matrix else _e.mul(a, b)
    if step.matrix:  # products of small integers have a wider dtype
        dtype = a.dtype if a.dtype == b.dtype else _e.result_type(a, b)
        out = out if out.dtype == dtype else _e.astype(out, dtype)
    return out if step.shape is None else _e.reshape(out, step.shape)


def _read(args):
    if args and isinstance(args[0], str):
        subscripts, operands = args[0], list(args[1:])
    else:
        subscripts, operands = _interleaved(args)
    if not operands:
        raise ValueError("eager.einsum: at least one operand is wanted")
    return subscripts, [x if is_tensor(x) else _t(x) for x in operands]


def einsum(*operands, optimize=True, preferred_element_type=None):
    """Sums of products by subscripts: einsum("ij,jk->ik", x, y), einsum("...ii", x), einsum(x, [0, 1], y, [1,
    2]). optimize: True (the cheapest order), False (from the left), or a list of pairs as einsum_path
    gives."""
    subscripts, xs = _read(operands)
    if isinstance(optimize, (list, tuple)):
        optimize = tuple(tuple(p) for p in optimize if isinstance(p, (list, tuple)))
    shapes = tuple([tuple(x.shape) for x in xs])
    known = builtins.all([isinstance(n, int) for s in shapes for n in s])
    plan = (_kept_plan if known else _plan)(subscripts, shapes, optimize if isinstance(optimize, tuple) else bool(optimize))
    for k, pairs in enumerate(plan.diagonals):
        for i, j in pairs:
            xs[k] = _e.diagonal(xs[k], 0, i, j)
    for step in plan.steps:
        i, j = step.places
        y, x = xs.pop(j), xs.pop(i)
        xs.append(_product(x, y, step))
    x = _prepared(xs[0], plan.last)
    return x if preferred_element_type is None else _e.astype(x, preferred_element_type)


def einsum_path(*operands, optimize=True):
    """(["einsum_path", pairs of operands ...], a text that tells what each step costs)."""
    subscripts, xs = _read(operands)
    terms, result = _parse(subscripts, [len(x.shape) for x in xs])
    singles = [_diagonals(t, tuple(x.shape)) for t, x in zip(terms, xs)]
    terms = [t for _, t, _ in singles]
    sizes = _sizes(terms, [s for _, _, s in singles], subscripts)
    path = _path(terms, result, sizes)
    lines, ts = [f"einsum {subscripts}"], list(terms)
    for i, j in path:
        a, b = ts[i], ts[j]
        ts = [t for k, t in enumerate(ts) if k not in (i, j)]
        cost, _, out = _cost(a, b, set(result).union(*ts) if ts else set(result), sizes)
        lines.append(f"  {a},{b}->{out}: {cost} products")
        ts.append(out)
    return ["einsum_path", *path], "\n".join(lines)
