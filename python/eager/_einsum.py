"""einsum: every subscript that NumPy takes. Operands are joined two at a time in the order that costs least,
each pair by one batched matrix product of permuted and merged axes."""

import builtins
import itertools
import math

import eager as _e

from ._numpy import _t

__all__ = ["einsum", "einsum_path"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
EXHAUSTIVE = 6  # operands up to which all orders are tried


def _interleaved(args):
    """einsum(x, [0, 1], y, [1, 2], [0, 2]) as a text."""
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


def _sizes(terms, xs, subscripts):
    sizes = {}
    for t, x in zip(terms, xs):
        for c, n in zip(t, x.shape):
            old = sizes.get(c, 1)
            if isinstance(old, int) and isinstance(n, int) and old != n and 1 not in (old, n):
                raise ValueError(f"eager.einsum: sizes {old} and {n} for {c!r} in {subscripts!r}")
            sizes[c] = n if isinstance(old, int) and old == 1 else old
    return sizes


def _weight(letters, sizes):
    return math.prod(sizes[c] if isinstance(sizes[c], int) else 64 for c in letters)


def _once(x, term):
    """Repeated letters of one operand: its diagonal."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i, j = [k for k, d in enumerate(term) if d == c][:2]
            x = _e.diagonal(x, 0, i, j)
            term = "".join(d for k, d in enumerate(term) if k not in (i, j)) + c
    return x, term


def _summed(x, term, keep):
    axes = [i for i, c in enumerate(term) if c not in keep]
    if not axes:
        return x, term
    return _e.sum(x, axis=tuple(axes), dtype=x.dtype if x.dtype.kind in "iub" else None), "".join(c for c in term if c in keep)


def _arranged(x, term, order, sizes, wide):
    """x with its letters in that order; sizes of 1 that stand for more are broadcast where `wide` says so."""
    x = _e.permute(x, tuple(term.index(c) for c in order)) if tuple(order) != tuple(term) else x
    target = tuple(sizes[c] if c in wide else n for c, n in zip(order, x.shape))
    return _e.broadcast_to(x, target) if target != tuple(x.shape) else x


def _pair(a, ta, b, tb, keep, sizes):
    """Two operands as one batched product. keep: letters that are needed later."""
    a, ta = _summed(a, ta, set(tb) | keep)
    b, tb = _summed(b, tb, set(ta) | keep)
    both = [c for c in ta if c in tb]
    batch, inner = [c for c in both if c in keep], [c for c in both if c not in keep]
    left, right = [c for c in ta if c not in tb], [c for c in tb if c not in ta]
    if not inner:  # no sum: element by element
        out = batch + left + right
        a = _arranged(a, ta, batch + left, sizes, ())
        b = _arranged(b, tb, batch + right, sizes, ())
        a = _e.reshape(a, (*a.shape, *(1,) * len(right))) if right else a
        b = _e.reshape(b, (*tuple(b.shape)[: len(batch)], *(1,) * len(left), *tuple(b.shape)[len(batch) :])) if left else b
        return _e.mul(a, b), "".join(out)
    a = _arranged(a, ta, batch + left + inner, sizes, inner)
    b = _arranged(b, tb, batch + inner + right, sizes, inner)
    nb, k = len(batch), math.prod(sizes[c] for c in inner)
    sa, sb = tuple(a.shape), tuple(b.shape)
    a = _e.reshape(a, (*sa[:nb], math.prod(sa[nb : nb + len(left)]), k))
    b = _e.reshape(b, (*sb[:nb], k, math.prod(sb[nb + len(inner) :])))
    out = _e.matmul(a, b)
    dtype = _e.result_type(a, b)
    out = out if out.dtype == dtype else _e.astype(out, dtype)
    return _e.reshape(out, (*tuple(out.shape)[:nb], *sa[nb : nb + len(left)], *sb[nb + len(inner) :])), "".join(batch + left + right)


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


def _read(args):
    if args and isinstance(args[0], str):
        subscripts, operands = args[0], list(args[1:])
    else:
        subscripts, operands = _interleaved(args)
    if not operands:
        raise ValueError("eager.einsum: at least one operand is wanted")
    xs = [_t(x) for x in operands]
    terms, result = _parse(subscripts, [len(x.shape) for x in xs])
    singles = [_once(x, t) for x, t in zip(xs, terms)]
    xs, terms = [x for x, _ in singles], [t for _, t in singles]
    return subscripts, xs, terms, result, _sizes(terms, xs, subscripts)


def einsum(*operands, optimize=True, preferred_element_type=None):
    """Sums of products by subscripts: einsum("ij,jk->ik", x, y), einsum("...ii", x), einsum(x, [0, 1], y, [1,
    2]). optimize: True (the cheapest order), False (from the left), or a list of pairs as einsum_path gives.
    """
    _, xs, terms, result, sizes = _read(operands)
    if isinstance(optimize, (list, tuple)):
        path = [tuple(p) for p in optimize if isinstance(p, (list, tuple))]
    elif optimize:
        path = _path(terms, result, sizes)
    else:
        path = [(0, 1)] + [(0, len(xs) - 2 - k) for k in range(len(xs) - 2)] if len(xs) > 1 else []
    for step in path:
        if len(step) == 1 or len(xs) == 1:
            continue
        places = sorted(step, reverse=True)
        taken = [(xs.pop(i), terms.pop(i)) for i in places][::-1]
        x, t = taken[0]
        for k, (y, u) in enumerate(taken[1:]):
            keep = set(result).union(*terms, *(v for _, v in taken[k + 2 :]))
            x, t = _pair(x, t, y, u, keep, sizes)
        xs.append(x)
        terms.append(t)
    x, t = _summed(xs[0], terms[0], set(result))
    x = _e.permute(x, tuple(t.index(c) for c in result)) if t != result else x
    target = tuple(sizes[c] for c in result)
    if tuple(x.shape) != target:
        x = _e.broadcast_to(x, target)
    return x if preferred_element_type is None else _e.astype(x, preferred_element_type)


def einsum_path(*operands, optimize=True):
    """(["einsum_path", pairs of operands ...], a text that tells what each step costs)."""
    subscripts, xs, terms, result, sizes = _read(operands)
    path = _path(terms, result, sizes)
    lines, ts = [f"einsum {subscripts}"], list(terms)
    for i, j in path:
        a, b = ts[i], ts[j]
        ts = [t for k, t in enumerate(ts) if k not in (i, j)]
        cost, _, out = _cost(a, b, set(result).union(*ts) if ts else set(result), sizes)
        lines.append(f"  {a},{b}->{out}: {cost} products")
        ts.append(out)
    return ["einsum_path", *path], "\n".join(lines)
