"""Images of other sizes, and convolutions over one and three axes."""

import math

import numpy as np

import eager as _e
from eas._eas import constant, tensor_ops

__all__ = ["conv1d", "conv3d", "conv_nd", "interpolate", "resize_image", "scaled_dot_product_attention"]

_ops = tensor_ops


# ---- interpolation: a matrix for each axis ----
def _cubic(t, a):
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = a * (((t - 5) * t + 8) * t - 4)
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _weights(n, m, mode, align_corners, antialias, scale):
    """The (m, n) matrix that takes n samples to m, in float64."""
    if align_corners and mode != "nearest":
        ratio = (n - 1) / (m - 1) if m > 1 else 0.0
        at = np.arange(m) * ratio
    else:
        ratio = n / m if scale is None else 1 / scale
        at = (np.arange(m) + 0.5) * ratio - 0.5
    out = np.zeros((m, n))
    rows = np.arange(m)
    if mode == "nearest":
        out[rows, np.minimum(np.floor(rows * ratio), n - 1).astype(int)] = 1
        return out
    if mode == "nearest-exact":
        out[rows, np.clip(np.floor((rows + 0.5) * ratio), 0, n - 1).astype(int)] = 1
        return out
    if mode == "area":
        for i in range(m):
            lo, hi = math.floor(i * n / m), math.ceil((i + 1) * n / m)
            out[i, lo:hi] = 1 / (hi - lo)
        return out
    cubic = mode == "bicubic"
    if antialias and ratio > 1:
        reach = (2 if cubic else 1) * ratio
        d = (np.arange(n)[None, :] - at[:, None]) / ratio
        w = _cubic(d, -0.5) if cubic else np.maximum(1 - np.abs(d), 0)
        w[np.abs(np.arange(n)[None, :] - at[:, None]) >= reach] = 0
        return w / w.sum(1, keepdims=True)
    if not cubic:
        at = np.maximum(at, 0)
        lo = np.minimum(np.floor(at).astype(int), n - 1)
        t = at - lo
        np.add.at(out, (rows, lo), 1 - t)
        np.add.at(out, (rows, np.minimum(lo + 1, n - 1)), t)
        return out
    lo = np.floor(at).astype(int)
    taps = range(-1, 3)
    a = -0.5 if antialias else -0.75
    inside = np.zeros(m)
    for k in taps:
        w = _cubic(at - (lo + k), a)
        if antialias:
            w = np.where((lo + k >= 0) & (lo + k < n), w, 0)
        inside += w
        np.add.at(out, (rows, np.clip(lo + k, 0, n - 1)), w)
    return out / inside[:, None] if antialias else out


def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=False, antialias=False):
    """x (N, ..., C) with its spatial axes, those between the first and the last, in another size. mode:
    "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic" or "area"; align_corners: the
    corners' centres stay where they are; antialias: a wider filter where the image shrinks ("bilinear",
    "bicubic"). As torch has it."""
    spatial = tuple(range(1, len(x.shape) - 1))
    modes = {
        "nearest": "nearest",
        "nearest-exact": "nearest-exact",
        "linear": "linear",
        "bilinear": "linear",
        "trilinear": "linear",
        "bicubic": "bicubic",
        "area": "area",
    }
    if mode not in modes:
        raise ValueError(f"eager.interpolate: mode must be one of {', '.join(modes)}, got {mode!r}")
    if (size is None) == (scale_factor is None):
        raise ValueError("eager.interpolate: give one of size and scale_factor")
    if not spatial:
        raise ValueError(f"eager.interpolate: (N, ..., C) has axes between the first and the last; the shape is {tuple(x.shape)}")
    have = [int(x.shape[a]) for a in spatial]
    if size is not None:
        want, scales = list(size) if isinstance(size, (tuple, list)) else [size] * len(spatial), [None] * len(spatial)
    else:
        scales = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * len(spatial)
        want = [int(math.floor(n * s)) for n, s in zip(have, scales)]
    if len(want) != len(spatial):
        raise ValueError(f"eager.interpolate: {len(want)} sizes for {len(spatial)} axes")
    dtype = x.dtype
    wide = dtype if dtype in ("float32", "float64") else "float32"
    y = _ops["cast"](x, dtype=wide) if dtype != wide else x
    for axis, n, m, s in zip(spatial, have, want, scales):
        if m < 1 or n < 1:
            raise ValueError(f"eager.interpolate: sizes of at least 1 are wanted, got {n} to {m}")
        if n == m and s in (None, 1, 1.0):
            continue
        w = _weights(n, m, modes[mode], align_corners, antialias, s)
        if modes[mode].startswith("nearest"):
            y = _e.gather(y, constant(w.argmax(1).astype(np.int64)), axis=axis)
        else:
            y = _e.moveaxis(_e.tensordot(y, constant(w.astype(np.float64 if wide == "float64" else np.float32)), axes=([axis], [1])), -1, axis)
    if dtype == wide:
        return y
    return _ops["cast"](_ops["round"](y) if dtype.kind in "iu" else y, dtype=dtype)


resize_image = interpolate


# ---- convolutions ----
def _each(x, n):
    return (x,) * n if isinstance(x, int) else tuple(x)


def _sides(fn, padding, sizes, kernel, stride, dilation):
    """(before, after) of each axis from a number, a number each, pairs, "valid" or "same" (the result has
    ceil(size / stride) elements)."""
    n = len(kernel)
    if padding == "valid":
        return [(0, 0)] * n
    if padding == "same":
        out = []
        for size, k, s, d in zip(sizes, kernel, stride, dilation):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            out.append((total // 2, total - total // 2))
        return out
    if isinstance(padding, str):
        raise ValueError(f"eager.{fn}: padding must be numbers, 'same' or 'valid', got {padding!r}")
    if isinstance(padding, int):
        return [(padding, padding)] * n
    padding = list(padding)
    if all(isinstance(p, (tuple, list)) for p in padding) and len(padding) == n:
        return [tuple(p) for p in padding]
    if len(padding) == n:
        return [(p, p) for p in padding]
    if len(padding) == 2 * n:
        return [(padding[2 * i], padding[2 * i + 1]) for i in range(n)]
    raise ValueError(f"eager.{fn}: padding for {n} axes: a number, {n} numbers or pairs, or {2 * n} numbers; got {padding}")


def conv_nd(x, filter, *, stride=1, dilation=1, padding=0, groups=1, bias=None, _name="conv_nd"):
    """Convolution of x (N, spatial..., C) with a filter (spatial..., C / groups, C_out). padding: numbers,
    pairs, "same" or "valid"."""
    n = len(filter.shape) - 2
    if n < 1 or len(x.shape) != n + 2:
        raise ValueError(f"eager.{_name}: a filter of shape {tuple(filter.shape)} goes with {n + 2} dims, got x of shape {tuple(x.shape)}")
    stride, dilation = _each(stride, n), _each(dilation, n)
    if any(s < 1 for s in (*stride, *dilation)):
        raise ValueError(f"eager.{_name}: stride and dilation are at least 1, got {stride} and {dilation}")
    kernel = tuple(int(k) for k in filter.shape[:n])
    sides = _sides(_name, padding, [x.shape[1 + i] for i in range(n)], kernel, stride, dilation)
    cin, cout = int(filter.shape[-2]), int(filter.shape[-1])
    if x.shape[-1] != cin * groups or cout % groups:
        raise ValueError(f"eager.{_name}: {x.shape[-1]} channels, a filter for {cin} to {cout} and {groups} groups do not go together")
    if any(a or b for a, b in sides):
        x = _e.pad(x, [(0, 0), *sides, (0, 0)])
    for i in range(n):
        size, need = x.shape[1 + i], dilation[i] * (kernel[i] - 1) + 1
        if isinstance(size, int) and size < need:
            raise ValueError(f"eager.{_name}: a window of {need} elements does not fit the {size} of axis {1 + i}")
    w = _ops["window"](x, list(range(1, n + 1)), list(kernel), list(stride), list(dilation))  # (N, out..., C, kernel...)
    lead = tuple(w.shape)[: n + 1]
    area = math.prod(kernel)
    w = _ops["reshape"](w, (*lead, groups, cin, area))
    f = _ops["reshape"](filter, (area, cin, groups, cout // groups))
    f = _ops["reshape"](_ops["permute"](f, (2, 1, 0, 3)), (groups, cin * area, cout // groups))
    w = _ops["reshape"](w, (*lead, groups, cin * area))
    if groups == 1:
        out = _ops["matmul"](_ops["reshape"](w, (*lead, cin * area)), f[0])
    else:
        w = _ops["reshape"](_ops["moveaxis"](w, [n + 1], [0]), (groups, math.prod(lead), cin * area))
        out = _ops["moveaxis"](_ops["reshape"](_ops["matmul"](w, f), (groups, *lead, cout // groups)), [0], [n + 1])
        out = _ops["reshape"](out, (*lead, cout))
    return out if bias is None else out + bias


def conv1d(x, filter, *, stride=1, dilation=1, padding=0, groups=1, bias=None):
    """Convolution of x (N, L, C) with a filter (K, C / groups, C_out). padding: a number, (before, after),
    "same" or "valid"."""
    if isinstance(padding, (tuple, list)) and len(padding) == 2 and all(isinstance(p, int) for p in padding):
        padding = [tuple(padding)]
    return conv_nd(x, filter, stride=stride, dilation=dilation, padding=padding, groups=groups, bias=bias, _name="conv1d")


def conv3d(x, filter, *, stride=1, dilation=1, padding=0, groups=1, bias=None):
    """Convolution of x (N, D, H, W, C) with a filter (D, H, W, C / groups, C_out)."""
    return conv_nd(x, filter, stride=stride, dilation=dilation, padding=padding, groups=groups, bias=bias, _name="conv3d")


# ---- attention ----
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *, training=True, rng_key=None
):
    """softmax(query key^T * scale + mask) value over the last two axes (..., length, features). attn_mask:
    bool (True takes part) or float (added). scale: default 1 / sqrt(features). enable_gqa: query has several
    heads (axis -3) for each of key's. A row with nothing to attend to is nan, as in torch."""
    d = query.shape[-1]
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (_e.repeat(t, times, axis=-3) for t in (key, value))
    scores = _ops["matmul"](query, _ops["swap_axes"](key, -2, -1)) * scale
    if is_causal:
        if attn_mask is not None:
            raise ValueError("eager.scaled_dot_product_attention: give one of attn_mask and is_causal")
        rows = _e.arange(query.shape[-2]).reshape((-1, 1))
        attn_mask = _e.arange(key.shape[-2]) <= rows
    if attn_mask is not None:
        if attn_mask.dtype == "bool":
            scores = _ops["where"](attn_mask, scores, -math.inf)
        else:
            scores = scores + attn_mask
    p = _ops["softmax"](scores, axis=-1)
    if dropout_p and training:
        p = _e.random.dropout(p, dropout_p, key=rng_key)
    return _ops["matmul"](p, value)
