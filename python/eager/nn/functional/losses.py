"""Losses. Each gives one number (reduction="mean" or "sum"), or one for each element ("none")."""

import math

import numpy as np

from eas._eas import tensor_ops as _ops

from .activations import log_sigmoid, logsoftmax, softplus
from .common import check_indices, compute_type, fits, reduced, shape_text, tensor

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cosine_similarity", "cosine_similarity_loss", "cross_entropy", "cross_entropy_loss",
    "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "log_cosh_loss", "mae_loss", "margin_ranking_loss", "mse_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
    "triplet_margin_loss",
]  # fmt: skip


# ---- of numbers ----
def mse_loss(predictions, targets, reduction="mean"):
    """Squares of the differences."""
    a, b = fits("mse_loss", predictions, targets)
    d = a - b
    return reduced("mse_loss", d * d, reduction)


def mae_loss(predictions, targets, reduction="mean"):
    """Absolute values of the differences."""
    a, b = fits("mae_loss", predictions, targets)
    return reduced("mae_loss", _ops["abs"](a - b), reduction)


l1_loss = mae_loss


def huber_loss(predictions, targets, delta=1.0, reduction="mean"):
    """d^2 / 2 where |d| is below delta, else delta * (|d| - delta / 2)."""
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be above 0, got {delta}")
    a, b = fits("huber_loss", predictions, targets)
    d = _ops["abs"](a - b)
    return reduced("huber_loss", _ops["where"](d < delta, d * d * 0.5, (d - 0.5 * delta) * delta), reduction)


def smooth_l1_loss(predictions, targets, beta=1.0, reduction="mean"):
    """huber_loss over beta; the absolute value where beta is 0."""
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    a, b = fits("smooth_l1_loss", predictions, targets)
    d = _ops["abs"](a - b)
    return reduced("smooth_l1_loss", d if beta == 0 else _ops["where"](d < beta, d * d * (0.5 / beta), d - 0.5 * beta), reduction)


def log_cosh_loss(predictions, targets, reduction="mean"):
    """log(cosh(d)), without overflow."""
    a, b = fits("log_cosh_loss", predictions, targets)
    d = a - b
    return reduced("log_cosh_loss", d + softplus(d * -2.0) - math.log(2.0), reduction)


def gaussian_nll_loss(predictions, targets, var, full=False, eps=1e-6, reduction="mean"):
    """Negative log likelihood of the targets under normal distributions with these means and variances."""
    a, b = fits("gaussian_nll_loss", predictions, targets)
    var = _ops["maximum"](tensor(var), eps)
    d = a - b
    loss = (_ops["log"](var) + d * d / var) * 0.5 + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return reduced("gaussian_nll_loss", loss, reduction)


def poisson_nll_loss(predictions, targets, log_input=True, eps=1e-8, reduction="mean"):
    """Negative log likelihood of counts under Poisson distributions; predictions are logarithms of the rates
    unless log_input=False."""
    a, b = fits("poisson_nll_loss", predictions, targets)
    return reduced("poisson_nll_loss", _ops["exp"](a) - b * a if log_input else a - b * _ops["log"](a + eps), reduction)


# ---- of classes ----
def _class_terms(name, logp, targets, axis, weight, ignore_index, label_smoothing):
    """(loss of each place, what it counts in a mean) for log probabilities and class numbers, or class
    probabilities."""
    rank = len(logp.shape)
    axis = axis % rank if -rank <= axis < rank else _bad_axis(name, axis, logp)
    classes = int(logp.shape[axis])
    if weight is not None:
        weight = tensor(weight)
        if tuple(weight.shape) != (classes,):
            raise ValueError(f"{name}: there are {classes} classes, and the weight is {shape_text(weight)}")
        weight_along = weight.reshape((classes,) + (1,) * (rank - 1 - axis))
    if len(targets.shape) == rank:
        if tuple(targets.shape) != tuple(logp.shape):
            raise ValueError(f"{name}: logits are {shape_text(logp)}, and targets of the same rank {shape_text(targets)}")
        t = targets.astype(logp.dtype)
        if label_smoothing:
            t = t * (1 - label_smoothing) + label_smoothing / classes
        if weight is not None:
            t = t * weight_along
        return -(t * logp).sum(axis=axis), None
    expected = tuple(logp.shape[:axis]) + tuple(logp.shape[axis + 1 :])
    if tuple(targets.shape) != expected:
        raise ValueError(
            f"{name}: logits are {shape_text(logp)} with classes along axis {axis}; targets are class numbers of shape ({', '.join(map(str, expected))}) or class probabilities of the logits' shape, got {shape_text(targets)}"
        )
    targets = check_indices(name, "labels", targets, classes, ignore_index)
    keep = None if ignore_index is None else targets != ignore_index
    index = targets if keep is None else _ops["where"](keep, targets, 0)
    at = _ops["unsqueeze"](index, axis)
    loss = -_ops["squeeze"](_ops["take_along_axis"](logp, at, axis=axis), axis)
    counts = None
    if weight is not None:
        counts = _ops["gather"](weight, index, axis=0)
        loss = loss * counts
    if label_smoothing:
        spread = -(logp if weight is None else logp * weight_along).sum(axis=axis) / classes
        loss = loss * (1 - label_smoothing) + spread * label_smoothing
    if keep is not None:
        loss = _ops["where"](keep, loss, 0.0)
        counts = keep.astype(logp.dtype) if counts is None else _ops["where"](keep, counts, 0.0)
    return loss, counts


def _bad_axis(name, axis, t):
    raise ValueError(f"{name}: axis {axis} is out of range for logits {shape_text(t)}")


def _smoothing(name, value):
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: label_smoothing is in [0, 1], got {value}")
    return value


def _check_classes(name, logits):
    if len(logits.shape) == 0 or logits.dtype.kind != "f":
        raise ValueError(f"{name}: logits are floats with an axis of classes, got {logits.dtype}{shape_text(logits)}")


def cross_entropy(logits, targets, *, weight=None, ignore_index=-100, label_smoothing=0.0, reduction="mean", axis=-1):
    """-log softmax(logits)[target]. Targets are class numbers of one rank less, or class probabilities of the
    logits' shape.

    weight: one number for each class; ignore_index: class numbers that do not count; label_smoothing: so much
    of each target is spread over all classes. The mean is over the places that count, weighted. A label out
    of range: IndexError, at once where the data is known, else when it is computed.
    """
    logits, targets = tensor(logits), tensor(targets)
    _check_classes("cross_entropy", logits)
    logp = logsoftmax(compute_type(logits), axis=axis)
    loss, counts = _class_terms("cross_entropy", logp, targets, axis, weight, ignore_index, _smoothing("cross_entropy", label_smoothing))
    return reduced("cross_entropy", loss, reduction, None if counts is None else counts.sum())


def cross_entropy_loss(logits, targets, axis=-1, *, weight=None, ignore_index=None, label_smoothing=0.0):
    """The sum of -log softmax(logits)[target] over the size of the first axis. Targets are one-hot (or class
    probabilities), or class numbers of one rank less."""
    logits, targets = tensor(logits), tensor(targets)
    _check_classes("cross_entropy_loss", logits)
    if len(targets.shape) == len(logits.shape) and targets.dtype.kind in "iub" and tuple(targets.shape) != tuple(logits.shape):
        raise ValueError(f"cross_entropy_loss: logits are {shape_text(logits)} and one-hot targets {shape_text(targets)}")
    logp = logsoftmax(compute_type(logits), axis=axis)
    loss, _ = _class_terms("cross_entropy_loss", logp, targets, axis, weight, ignore_index, _smoothing("cross_entropy_loss", label_smoothing))
    return loss.sum() / int(logits.shape[0]) if len(logits.shape) > 1 else loss.sum()


def nll_loss(log_probs, targets, *, weight=None, ignore_index=-100, reduction="mean", axis=-1):
    """-log_probs[target]; see cross_entropy."""
    logp, targets = tensor(log_probs), tensor(targets)
    _check_classes("nll_loss", logp)
    if len(targets.shape) == len(logp.shape):
        raise ValueError(f"nll_loss: targets are class numbers of one rank less than {shape_text(logp)}, got {shape_text(targets)}")
    loss, counts = _class_terms("nll_loss", logp, targets, axis, weight, ignore_index, 0.0)
    return reduced("nll_loss", loss, reduction, None if counts is None else counts.sum())


def binary_cross_entropy_with_logits(logits, targets, weight=None, pos_weight=None, reduction="mean"):
    """-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)). weight: of each element; pos_weight: of the first
    term."""
    x, t = fits("binary_cross_entropy_with_logits", logits, targets)
    t = t.astype(x.dtype)
    if pos_weight is None:
        loss = x - t * x - log_sigmoid(x)
    else:
        loss = (1.0 - t) * x - (t * (tensor(pos_weight) - 1.0) + 1.0) * log_sigmoid(x)
    return reduced("binary_cross_entropy_with_logits", loss if weight is None else loss * weight, reduction)


def binary_cross_entropy(predictions, targets, weight=None, reduction="mean"):
    """-t log(p) - (1 - t) log(1 - p); logarithms are not below -100."""
    p, t = fits("binary_cross_entropy", predictions, targets)
    t = t.astype(p.dtype)
    low = _ops["maximum"]
    loss = -(t * low(_ops["log"](p), -100.0) + (1.0 - t) * low(_ops["log1p"](-p), -100.0))
    return reduced("binary_cross_entropy", loss if weight is None else loss * weight, reduction)


def kl_div(log_probs, targets, log_target=False, reduction="mean"):
    """targets * (log(targets) - log_probs); 0 where a target is 0. reduction="batchmean": the sum over the
    size of the first axis."""
    logp, t = fits("kl_div", log_probs, targets)
    if log_target:
        loss = _ops["exp"](t) * (t - logp)
    else:
        loss = _ops["where"](t > 0, t * _ops["log"](_ops["where"](t > 0, t, 1.0)), 0.0) - t * logp
    return loss.sum() / int(logp.shape[0]) if reduction == "batchmean" else reduced("kl_div", loss, reduction)


# ---- of vectors ----
def cosine_similarity(x, y, axis=-1, eps=1e-8):
    """The cosine of the angle between vectors along an axis."""
    x, y = tensor(x), tensor(y)
    dot = (x * y).sum(axis=axis)
    xx, yy = (x * x).sum(axis=axis), (y * y).sum(axis=axis)
    low = eps * eps
    return dot * _ops["rsqrt"](_ops["maximum"](xx, low)) * _ops["rsqrt"](_ops["maximum"](yy, low))


def cosine_similarity_loss(x, y, axis=-1, reduction="mean"):
    """1 - cosine_similarity."""
    x, y = fits("cosine_similarity_loss", x, y)
    return reduced("cosine_similarity_loss", 1.0 - cosine_similarity(x, y, axis), reduction)


def cosine_embedding_loss(x, y, targets, margin=0.0, reduction="mean"):
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1."""
    x, y = fits("cosine_embedding_loss", x, y)
    c, t = cosine_similarity(x, y), tensor(targets)
    return reduced("cosine_embedding_loss", _ops["where"](t > 0, 1.0 - c, _ops["relu"](c - margin)), reduction)


def _distance(x, y, p, eps):
    d = x - y + eps
    if p == 2:
        return _ops["sqrt"]((d * d).sum(axis=-1))
    return (_ops["abs"](d) ** p).sum(axis=-1) ** (1.0 / p)


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction="mean"):
    """max(0, |anchor - positive| - |anchor - negative| + margin); swap: the negative may be measured from the
    positive."""
    a, b = fits("triplet_margin_loss", anchor, positive)
    a, c = fits("triplet_margin_loss", a, negative)
    far = _distance(a, c, p, eps)
    if swap:
        far = _ops["minimum"](far, _distance(b, c, p, eps))
    return reduced("triplet_margin_loss", _ops["relu"](_distance(a, b, p, eps) - far + margin), reduction)


def margin_ranking_loss(x, y, targets, margin=0.0, reduction="mean"):
    """max(0, -target * (x - y) + margin)."""
    x, y = fits("margin_ranking_loss", x, y)
    return reduced("margin_ranking_loss", _ops["relu"](-(tensor(targets).astype(x.dtype)) * (x - y) + margin), reduction)


def hinge_embedding_loss(x, targets, margin=1.0, reduction="mean"):
    """x where the target is 1, max(0, margin - x) where it is -1."""
    x, t = fits("hinge_embedding_loss", x, targets)
    return reduced("hinge_embedding_loss", _ops["where"](t > 0, x, _ops["relu"](margin - x)), reduction)


# ---- of sequences ----
_NEVER = -1e30  # the logarithm of a probability of 0, of which sums and derivatives are finite


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """Connectionist temporal classification: -log of the probability of all alignments of the targets.

    log_probs (T, N, classes) or (T, classes); targets (N, S) or (S,), class numbers without the blank;
    lengths (N,). The mean is of the losses over their target lengths. A target that does not fit in its input
    has an infinite loss, or 0 with zero_infinity.

    The forward algorithm in logarithms: a scan over time carries, for each place of the target with blanks
    around its labels, the probability of being there.
    """
    from ...ops.control_flow import scan
    from ...ops.creation import arange, full

    logp, targets = compute_type(tensor(log_probs)), tensor(targets)
    single = len(logp.shape) == 2
    if single:
        logp = _ops["unsqueeze"](logp, 1)
        targets = _ops["unsqueeze"](targets, 0)
    if len(logp.shape) != 3:
        raise ValueError(f"ctc_loss: log_probs are (T, N, classes), got {shape_text(logp)}")
    steps, n, classes = (int(d) for d in logp.shape)
    lengths = [_lengths(name, v, n) for name, v in (("input_lengths", input_lengths), ("target_lengths", target_lengths))]
    if len(targets.shape) == 1:
        targets = _rows(targets, lengths[1], n)
    if len(targets.shape) != 2 or int(targets.shape[0]) != n:
        raise ValueError(f"ctc_loss: targets are (N, S) with N = {n}, got {shape_text(targets)}")
    if not 0 <= blank < classes:
        raise ValueError(f"ctc_loss: blank is a class in [0, {classes}), got {blank}")
    targets = check_indices("ctc_loss", "targets", targets, classes).astype("int64")
    _fits_in(lengths[0], steps, "input_lengths", "steps")
    _fits_in(lengths[1], int(targets.shape[1]), "target_lengths", "labels")
    size = 2 * int(targets.shape[1]) + 1
    blanks = full((n, int(targets.shape[1])), blank, dtype="int64")
    woven = _ops["stack"]([blanks, targets], axis=2).reshape((n, size - 1))
    labels = _ops["concatenate"]([woven, full((n, 1), blank, dtype="int64")], axis=1)
    emitted = _ops["take_along_axis"](logp, _ops["broadcast_to"](_ops["unsqueeze"](labels, 0), (steps, n, size)), axis=2)
    before = _shift(labels, 2, blank)
    skips = (labels != blank) & (labels != before)
    place = arange(size).reshape((1, size))
    first = _ops["where"]((place < 2) & (place <= 2 * lengths[1].reshape((n, 1))), emitted[0], _NEVER)

    def step(alpha, now):
        t, e = now
        stay, move, skip = alpha, _shift(alpha, 1, _NEVER), _ops["where"](skips, _shift(alpha, 2, _NEVER), _NEVER)
        total = _ops["logaddexp"](_ops["logaddexp"](stay, move), skip)
        new = _ops["maximum"](total + e, _NEVER)
        return _ops["where"](t < lengths[0].reshape((n, 1)), new, alpha), None

    alpha = first if steps < 2 else scan(step, first, (arange(1, steps), emitted[1:]))[0]
    last = (2 * lengths[1]).reshape((n, 1))
    end = _ops["take_along_axis"](alpha, last, axis=1)
    other = _ops["where"](last > 0, _ops["take_along_axis"](alpha, _ops["maximum"](last - 1, 0), axis=1), _NEVER)
    loss = -_ops["logaddexp"](end, other).reshape((n,))
    loss = _ops["where"](loss > -0.5 * _NEVER, 0.0 if zero_infinity else math.inf, loss)
    if reduction == "mean":
        return (loss / _ops["maximum"](lengths[1], 1).astype(loss.dtype)).mean()
    return reduced("ctc_loss", loss[0] if single and reduction == "none" else loss, reduction)


def _shift(x, by, fill):
    return _ops["pad_constant"](x, fill, before=(0, by), after=(0, 0))[:, : int(x.shape[1])]


def _lengths(name, v, n):
    v = tensor(np.asarray(v) if isinstance(v, (int, list, tuple)) else v)
    if v.dtype.kind not in "iu" or int(np.prod([int(d) for d in v.shape])) != n:
        raise ValueError(f"ctc_loss: {name} are {n} integers, got {v.dtype}{shape_text(v)}")
    return v.reshape((n,)).astype("int64")


def _fits_in(lengths, size, name, what):
    from .common import known

    data = known(lengths)
    if data is not None and ((data < 0) | (data > size)).any():
        raise ValueError(f"ctc_loss: {name} must be in [0, {size}], the number of {what}, got {data.tolist()}")


def _rows(targets, lengths, n):
    """Targets that stand one after another, as (N, S)."""
    sizes, flat = lengths.numpy(), targets.numpy()
    if sizes.sum() != flat.size:
        raise ValueError(f"ctc_loss: target_lengths add up to {sizes.sum()}, and there are {flat.size} targets")
    rows, at = np.zeros((n, int(sizes.max()) if n else 0), flat.dtype), 0
    for i, k in enumerate(sizes):
        rows[i, :k] = flat[at : at + k]
        at += k
    return tensor(rows)
