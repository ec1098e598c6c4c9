"""What `python -m bench ops` measures: for each operation of the table (src/graph/op.def) its inputs, and how
NumPy, torch and JAX spell the same.

An expression is Python over x, y, z (the inputs), e (eager), np, t (torch), F (torch.nn.functional), jnp, jax
and lax. A peer whose entry is empty has no such function. What is a view for a peer is copied there, since
ours gives memory of its own."""

from dataclasses import dataclass

FLOATS = ("f32", "f64", "bf16")
NUMBERS = ("f32", "f64", "bf16", "i32", "u8")
INTS = ("i32", "u8")
SIZES = {"10^3": (1000,), "10^6": (10**6,), "4096×256": (4096, 256)}


@dataclass
class Row:
    op: str  # of the table
    ours: str
    numpy: str = ""
    torch: str = ""
    jax: str = ""
    data: tuple = ("normal",)  # one entry an input
    dtypes: tuple = FLOATS
    sizes: tuple = tuple(SIZES)
    what: str = ""  # how it differs from the operation's other rows
    tol: float = 0  # besides the dtype's own
    compare: bool = True  # random numbers are not
    compiled: bool = True  # sizes that data decide cannot be

    @property
    def name(self):
        return f"{self.op} {self.what}".strip()


ROWS = []


def add(op, ours=None, numpy="", torch="", jax="", **kw):
    ROWS.append(Row(op, ours or f"e.{op}(x)", numpy, torch, jax, **kw))


# ---- element by element ----


def unary(names, data="normal", dtypes=FLOATS, **other):
    """other: {name: (numpy, torch, jax)}, where a peer has another name or none."""
    for n in names.split():
        np_, t_, j_ = other.get(n, (n, n, n))
        np_ = f"np.{np_}(x)" if np_ and "(" not in np_ else np_
        t_ = f"t.{t_}(x)" if t_ and "(" not in t_ else t_
        j_ = f"jnp.{j_}(x)" if j_ and "(" not in j_ else j_
        add(n, None, np_, t_, j_, data=(data,), dtypes=dtypes)


unary("sin cos tan atan sinh cosh tanh asinh exp exp2 expm1", atan=("arctan", "atan", "arctan"), asinh=("arcsinh", "asinh", "arcsinh"))
unary("asin acos atanh", "unit", asin=("arcsin", "asin", "arcsin"), acos=("arccos", "acos", "arccos"), atanh=("arctanh", "atanh", "arctanh"))
unary("acosh", "above1", acosh=("arccosh", "acosh", "arccosh"))
unary("log log1p log2 log10 sqrt rsqrt reciprocal", "positive", rsqrt=("", "rsqrt", "lax.rsqrt(x)"))
unary("cbrt", cbrt=("cbrt", "", "cbrt"))
unary("sigmoid erf silu gelu",
      sigmoid=("1 / (1 + np.exp(-x))", "sigmoid", "jax.nn.sigmoid(x)"), erf=("", "erf", "jax.scipy.special.erf(x)"),
      silu=("x / (1 + np.exp(-x))", "F.silu(x)", "jax.nn.silu(x)"), gelu=("", "F.gelu(x, approximate='tanh')", "jax.nn.gelu(x)"))  # fmt: skip
unary("relu", dtypes=NUMBERS, relu=("np.maximum(x, 0)", "relu", "jax.nn.relu(x)"))
unary("neg abs square sign", dtypes=NUMBERS, neg=("negative", "neg", "negative"))
unary("floor ceil round trunc")
unary("is_nan is_inf is_finite signbit", is_nan=("isnan",) * 3, is_inf=("isinf",) * 3, is_finite=("isfinite",) * 3)
unary("logical_not", "bool", ("bool",))
unary("bitwise_invert", dtypes=INTS, bitwise_invert=("invert", "bitwise_not", "invert"))
add("cast", "e.cast(x, 'float64')", "x.astype(np.float64)", "x.to(t.float64)", "x.astype(jnp.float64)", dtypes=("f32", "i32"), what="to f64")
add("cast", "e.cast(x, 'bfloat16')", "", "x.to(t.bfloat16)", "x.astype(jnp.bfloat16)", dtypes=("f32",), what="to bf16")
add("cast", "e.cast(x, 'float32')", "x.astype(np.float32)", "x.to(t.float32)", "x.astype(jnp.float32)", dtypes=("bf16", "u8", "i32"), what="to f32")
add("cast", "e.cast(x, 'uint8')", "x.astype(np.uint8)", "x.to(t.uint8)", "x.astype(jnp.uint8)", data=("small",), dtypes=("f32", "i32"), what="to u8")


def binary(names, data="normal", dtypes=NUMBERS, second=None, **other):
    for n in names.split():
        np_, t_, j_ = (f"{m}.{f}(x, y)" if f else "" for m, f in zip(("np", "t", "jnp"), other.get(n, (n, n, n))))
        add(n, f"e.{n}(x, y)", np_, t_, j_, data=(data, second or data), dtypes=dtypes)


binary("add sub mul maximum minimum", sub=("subtract", "sub", "subtract"), mul=("multiply", "mul", "multiply"))
binary("div", "positive", FLOATS, div=("divide", "div", "divide"))
binary("floordiv mod", "positive", floordiv=("floor_divide", "floor_divide", "floor_divide"), mod=("remainder",) * 3)
binary("pow", "positive", ("f32", "f64"), second="normal", pow=("power", "pow", "power"))
binary("atan2 hypot copysign nextafter logaddexp", dtypes=("f32", "f64"), atan2=("arctan2", "atan2", "arctan2"))
binary("equal not_equal less less_equal greater greater_equal", equal=("equal", "eq", "equal"), not_equal=("not_equal", "ne", "not_equal"))
binary("logical_and logical_or logical_xor", "bool", ("bool",))
binary("bitwise_and bitwise_or bitwise_xor", dtypes=INTS)
binary("bitwise_left_shift bitwise_right_shift", dtypes=INTS, second="shift",
       bitwise_left_shift=("left_shift", "bitwise_left_shift", "left_shift"), bitwise_right_shift=("right_shift", "bitwise_right_shift", "right_shift"))  # fmt: skip
add("fma", "e.fma(x, y, z)", "x * y + z", "t.addcmul(z, x, y)", "x * y + z", data=("normal", "normal", "normal"), dtypes=("f32", "f64"))
add("where", "e.where(x, y, z)", "np.where(x, y, z)", "t.where(x, y, z)", "jnp.where(x, y, z)", data=("mask", "normal", "normal"), dtypes=NUMBERS)
add("clip", "e.clip(x, 1, 2)", "np.clip(x, 1, 2)", "t.clip(x, 1, 2)", "jnp.clip(x, 1, 2)", dtypes=NUMBERS)

# ---- views, with memory of their own ----
MATRIX = ("4096×256",)
add("permute", "e.permute(x, (1, 0)) + 0", "np.add(x.T, 0, order='C')", "x.T.contiguous() + 0", "x.T + 0", sizes=MATRIX, dtypes=NUMBERS, what="of rows, + 0")
add("flip", "e.flip(x)", "np.flip(x).copy()", "t.flip(x, tuple(range(x.ndim)))", "jnp.flip(x)", dtypes=NUMBERS)
add("broadcast_to", "e.broadcast_to(x, (64, *x.shape)) + 0", "np.broadcast_to(x, (64, *x.shape)) + 0", "x.expand(64, *x.shape) + 0", "jnp.broadcast_to(x, (64, *x.shape)) + 0", sizes=("10^3",), dtypes=NUMBERS, what="64 times, + 0")  # fmt: skip
add("slice_steps", "x[::2] + 0", "x[::2] + 0", "x[::2] + 0", "x[::2] + 0", dtypes=NUMBERS, what="every second, + 0")
add("slice_tensor", "x[:, 64:192] + 0", "x[:, 64:192] + 0", "x[:, 64:192] + 0", "x[:, 64:192] + 0", sizes=MATRIX, dtypes=NUMBERS, what="of columns, + 0")
add("slice_update", "e.slice_update(x, y[:100], (10,), (100,))", "", "t.slice_scatter(x, y[:100], 0, 10, 110)", "x.at[10:110].set(y[:100])", data=("normal", "normal"), dtypes=("f32", "u8"))  # fmt: skip
add("diagonal", "e.diagonal(x) + 0", "np.diagonal(x) + 0", "t.diagonal(x) + 0", "jnp.diagonal(x) + 0", sizes=MATRIX, dtypes=("f32",))
for axis in (0, 1):
    for n, label in ((2, "two"), (3, "three"), (32, "32")):
        xs, size = ", ".join(["x", "y", "z"][:n]) if n < 4 else ", ".join(["x"] * n), ("10^3", "10^6", "4096×256") if axis == 0 and n < 4 else MATRIX if n < 4 else ("10^3",)
        if axis and n > 3:
            continue
        for op, t_ in (("concatenate", "cat"), ("stack", "stack")):
            add(op, f"e.{op}([{xs}], {axis})", f"np.{op}([{xs}], {axis})", f"t.{t_}([{xs}], {axis})", f"jnp.{op}([{xs}], {axis})",
                data=("normal",) * min(n, 3), dtypes=NUMBERS if n == 2 else ("f32", "u8"), sizes=size, what=f"of {label} along {axis}")  # fmt: skip
add("tile", "e.tile(x, (2,) + (1,) * (x.ndim - 1))", "np.tile(x, (2,) + (1,) * (x.ndim - 1))", "t.tile(x, (2,) + (1,) * (x.ndim - 1))", "jnp.tile(x, (2,) + (1,) * (x.ndim - 1))", dtypes=("f32", "u8"))  # fmt: skip
add("repeat", "e.repeat(x, 3, 0)", "np.repeat(x, 3, 0)", "t.repeat_interleave(x, 3, 0)", "jnp.repeat(x, 3, 0)", dtypes=("f32", "u8"))
add("roll", "e.roll(x, 17, 0)", "np.roll(x, 17, 0)", "t.roll(x, 17, 0)", "jnp.roll(x, 17, 0)", dtypes=("f32", "u8"))
add("pad", "e.pad(x, [(1, 1)] * x.ndim)", "np.pad(x, 1)", "F.pad(x, (1, 1) * x.ndim)", "jnp.pad(x, 1)", dtypes=("f32", "u8"))
add("pad", "e.pad(x, [(1, 1)] * x.ndim, 'edge')", "np.pad(x, 1, 'edge')", "", "jnp.pad(x, 1, 'edge')", dtypes=("f32",), what="with edges")
add("tril", "e.tril(x)", "np.tril(x)", "t.tril(x)", "jnp.tril(x)", sizes=MATRIX, dtypes=NUMBERS)
add("triu", "e.triu(x)", "np.triu(x)", "t.triu(x)", "jnp.triu(x)", sizes=MATRIX, dtypes=("f32",))
add("diff", "e.diff(x)", "np.diff(x)", "t.diff(x)", "jnp.diff(x)", dtypes=("f32", "i32"))
add("window", "e.reduce_max(e.window(x, (0,), (8,), (4,), (1,)), -1)", "np.lib.stride_tricks.sliding_window_view(x, 8)[::4].max(-1)", "x.unfold(0, 8, 4).amax(-1)",
    "lax.reduce_window(x, -jnp.inf, lax.max, (8,), (4,), 'valid')", sizes=("10^3", "10^6"), dtypes=("f32",), what="of 8 every 4, maxima")  # fmt: skip

# ---- by indices ----
add("gather", "e.gather(x, y)", "x[y]", "x[y]", "x[y]", data=("normal", "index"), dtypes=NUMBERS)
add("take_along_axis", "e.take_along_axis(x, y)", "np.take_along_axis(x, y, -1)", "t.take_along_dim(x, y, -1)", "jnp.take_along_axis(x, y, -1)", data=("normal", "along"), dtypes=("f32", "u8"))
add("scatter", "e.scatter(x, y, z)", "", "t.index_put(x, (y,), z)", "x.at[y].set(z)", data=("normal", "permutation", "normal"), dtypes=("f32", "i32"))
add("scatter", "e.scatter(x, y, z, mode='add')", "", "t.index_add(x, 0, y, z)", "x.at[y].add(z)", data=("normal", "permutation", "normal"), dtypes=("f32", "i32"), what="add")
add("put_along_axis", "e.put_along_axis(x, y, z, mode='add')", "", "t.scatter_add(x, -1, y, z)", "", data=("normal", "along", "normal"), dtypes=("f32",), what="add", tol=1e-5)
add("searchsorted", "e.searchsorted(x, y)", "np.searchsorted(x, y)", "t.searchsorted(x, y)", "jnp.searchsorted(x, y)", data=("sorted", "normal"), dtypes=("f32", "i32"), sizes=("10^3", "10^6"))
add("flat_nonzero", "e.nonzero(x)", "np.nonzero(x)", "t.nonzero(x, as_tuple=True)", "jnp.nonzero(x)", data=("sparse",), dtypes=("f32", "i32", "u8"), what="(nonzero)", compiled=False)
add("flat_nonzero", "x[y]", "x[y]", "x[y]", "x[y]", data=("normal", "mask"), dtypes=NUMBERS, what="(selection by a mask)", compiled=False)
add("unique", "e.unique(x)", "np.unique(x)", "t.unique(x)", "jnp.unique(x)", data=("few",), dtypes=("f32", "i32", "u8"), compiled=False)
add("count_unique", "e.count_unique(x)", "np.unique(x).size", "t.unique(x).numel()", "jnp.unique(x).size", data=("few",), dtypes=("i32",), compiled=False)

# ---- creation ----
add("iota", "e.arange(1000000)", "np.arange(1000000)", "t.arange(1000000)", "jnp.arange(1000000)", data=("key",), dtypes=("i32",), sizes=("10^6",), what="(arange of i64)")
add("linspace", "e.linspace(0, 1, 1000000)", "np.linspace(0, 1, 1000000, dtype=np.float32)", "t.linspace(0, 1, 1000000)", "jnp.linspace(0, 1, 1000000, dtype=jnp.float32)", data=("key",), dtypes=("f32",), sizes=("10^6",), tol=1e-5)
add("full", "e.full((1000, 1000), 3.0)", "np.full((1000, 1000), 3.0, np.float32)", "t.full((1000, 1000), 3.0)", "jnp.full((1000, 1000), 3.0, jnp.float32)", data=("key",), dtypes=("f32",), sizes=("10^6",))
add("eye", "e.eye(1000)", "np.eye(1000, dtype=np.float32)", "t.eye(1000)", "jnp.eye(1000, dtype=jnp.float32)", data=("key",), dtypes=("f32",), sizes=("10^6",))
add("one_hot", "e.one_hot(x, 64)", "", "F.one_hot(x.long(), 64).float()", "jax.nn.one_hot(x, 64, dtype=jnp.float32)", data=("classes",), dtypes=("i32",), sizes=("10^3",))
add("hann_window", "e.hann_window(1000)", "", "t.hann_window(1000)", "", data=("key",), dtypes=("f32",), sizes=("10^3",), tol=1e-5)
for dtype in ("f32", "f64"):
    np_, full = ("np.float32", "float32") if dtype == "f32" else ("np.float64", "float64")
    add("uniform", f"e.uniform((1000, 1000), key=x, dtype='{full}')", f"rng.random((1000, 1000), {np_})", f"t.rand(1000, 1000, dtype=t.{full})", f"jax.random.uniform(jkey, (1000, 1000), '{full}')",
        data=("key",), dtypes=(dtype,), sizes=("10^6",), compare=False)  # fmt: skip
    add("gaussian", f"e.gaussian((1000, 1000), key=x, dtype='{full}')", f"rng.standard_normal((1000, 1000), {np_})", f"t.randn(1000, 1000, dtype=t.{full})", f"jax.random.normal(jkey, (1000, 1000), '{full}')",
        data=("key",), dtypes=(dtype,), sizes=("10^6",), compare=False)  # fmt: skip
add("randint", "e.randint((1000, 1000), 0, 1000, key=x)", "rng.integers(0, 1000, (1000, 1000))", "t.randint(0, 1000, (1000, 1000))", "jax.random.randint(jkey, (1000, 1000), 0, 1000, 'int64')", data=("key",), dtypes=("i32",), sizes=("10^6",), compare=False)
add("random_bits", "e.random_bits(x, (1000, 1000))", "rng.integers(0, 1 << 32, (1000, 1000), np.uint32)", "", "jax.random.bits(jkey, (1000, 1000), 'uint32')", data=("key",), dtypes=("i32",), sizes=("10^6",), compare=False)

# ---- reductions ----
for name, np_, t_, dts in (
    ("reduce_sum", "sum", "sum", ("f32", "f64", "bf16", "i32", "u8")),
    ("reduce_max", "max", "amax", NUMBERS),
    ("reduce_min", "min", "amin", ("f32", "i32")),
    ("mean", "mean", "mean", FLOATS),
    ("var", "var", "var", ("f32", "f64")),
    ("std", "std", "std", ("f32",)),
    ("prod", "prod", "prod", ("f32",)),
    ("logsumexp", "", "logsumexp", ("f32", "bf16")),
    ("count_nonzero", "count_nonzero", "count_nonzero", ("f32", "u8")),
):
    more = ", correction=0" if name in ("var", "std") else ""
    jax_ = "jax.scipy.special.logsumexp" if name == "logsumexp" else f"jnp.{np_}"
    for axis, label in ((None, "of all"), (0, "over axis 0"), (1, "over axis 1")):
        arg = "" if axis is None else f", {axis}"
        t_arg = f", {tuple(range(1))}" if axis is None and name == "logsumexp" else arg
        size = ("10^3", "10^6") if axis is None else MATRIX
        data = ("near1",) if name == "prod" else ("normal",)
        add(name, f"e.{name}(x{arg})", f"np.{np_}(x{arg})" if np_ else "", f"t.{t_}(x{t_arg}{more})", f"{jax_}(x{arg})", data=data, dtypes=dts, sizes=size, what=label, tol=1e-4)
for name in ("any", "all"):
    for axis, label in ((None, "of all"), (0, "over axis 0"), (1, "over axis 1")):
        arg = "" if axis is None else f", {axis}"
        add(name, f"e.{name}(x{arg})", f"np.{name}(x{arg})", f"t.{name}(x{arg})", f"jnp.{name}(x{arg})", data=("never" if name == "any" else "always",), dtypes=("bool",), sizes=("10^3", "10^6") if axis is None else MATRIX, what=label)  # fmt: skip
for name in ("argmax", "argmin"):
    for axis, label in ((-1, "of the last axis"), (0, "over axis 0")):
        add(name, f"e.{name}(x, {axis})", f"np.{name}(x, {axis})", f"t.{name}(x, {axis})", f"jnp.{name}(x, {axis})", dtypes=("f32", "i32") if name == "argmax" else ("f32",),
            data=("distinct",), sizes=tuple(SIZES) if axis else MATRIX, what=label)  # fmt: skip
for name, t_ in (("softmax", "softmax"), ("logsoftmax", "log_softmax")):
    for axis in (-1, 0):
        add(name, f"e.{name}(x, {axis})", "", f"t.{t_}(x, {axis})", f"jax.nn.{t_}(x, {axis})", sizes=tuple(SIZES) if axis else MATRIX, what="" if axis else "over axis 0", dtypes=FLOATS if axis else ("f32",), tol=1e-5)
add("minmax", "e.minmax(x)['max'] - e.minmax(x)['min']", "np.ptp(x)", "t.amax(x) - t.amin(x)", "jnp.ptp(x)", dtypes=("f32",), sizes=("10^3", "10^6"))

# ---- along an axis ----
for name, np_, t_, jax_ in (
    ("cumsum", "np.cumsum(x, {0})", "t.cumsum(x, {0})", "jnp.cumsum(x, {0})"),
    ("cumprod", "np.cumprod(x, {0})", "t.cumprod(x, {0})", "jnp.cumprod(x, {0})"),
    ("cummax", "np.maximum.accumulate(x, {0})", "t.cummax(x, {0}).values", "lax.cummax(x, {1})"),
    ("cummin", "np.minimum.accumulate(x, {0})", "t.cummin(x, {0}).values", "lax.cummin(x, {1})"),
):
    for axis in (-1, 0):
        dts = ("f32", "f64", "i32") if name == "cumsum" else ("f32",)
        add(name, f"e.{name}(x, {axis})", np_.format(axis, 0), t_.format(axis), jax_.format(axis, "x.ndim - 1" if axis else 0), data=("near1",), dtypes=dts,
            sizes=tuple(SIZES) if axis else MATRIX, what="" if axis else "over axis 0", tol=1e-3)  # fmt: skip
add("cumulative_sum", "e.cumulative_sum(x, axis=-1)", "np.cumulative_sum(x, axis=-1)", "t.cumsum(x, -1)", "jnp.cumsum(x, -1)", dtypes=("f32",), data=("near1",), tol=1e-3)
for dtype in NUMBERS:
    add("sort", "e.sort(x)", "np.sort(x)", "t.sort(x).values", "jnp.sort(x)", dtypes=(dtype,))
add("sort", "e.sort(x, 0)", "np.sort(x, 0)", "t.sort(x, 0).values", "jnp.sort(x, 0)", dtypes=("f32",), sizes=MATRIX, what="over axis 0")
add("argsort", "e.argsort(x)", "np.argsort(x, stable=True)", "t.argsort(x, stable=True)", "jnp.argsort(x, stable=True)", data=("distinct",), dtypes=("f32", "i32"))
add("topk", "e.topk(x, 10)[0]", "", "t.topk(x, 10).values", "lax.top_k(x, 10)[0]", dtypes=("f32", "i32"))

# ---- products ----
add("matmul", "x @ y", "x @ y", "x @ y", "x @ y", data=("square", "square"), dtypes=("f32", "f64", "bf16", "i32"), sizes=("256²", "512²"), tol=2e-3)
add("matmul", "x @ y.T", "x @ y.T", "x @ y.T", "x @ y.T", data=("square", "square"), dtypes=("f32",), sizes=("256²", "512²"), what="by a transpose", tol=2e-3)
add("matmul", "x @ y", "x @ y", "x @ y", "x @ y", data=("batch", "batch"), dtypes=("f32",), sizes=("64×64²",), what="of batches", tol=2e-3)
add("matmul", "x @ y", "x @ y", "x @ y", "x @ y", data=("row", "square"), dtypes=("f32", "bf16"), sizes=("256²", "512²"), what="of a vector", tol=2e-3)
add("outer", "e.outer(x, x)", "np.outer(x, x)", "t.outer(x, x)", "jnp.outer(x, x)", dtypes=("f32",), sizes=("10^3",))
add("vecdot", "e.vecdot(x, y)", "np.vecdot(x, y)", "t.linalg.vecdot(x, y)", "jnp.vecdot(x, y)", data=("normal", "normal"), dtypes=("f32", "f64"), tol=1e-3)
add("tensordot", "e.tensordot(x, y, axes=1)", "np.tensordot(x, y, 1)", "t.tensordot(x, y, 1)", "jnp.tensordot(x, y, 1)", data=("square", "square"), dtypes=("f32",), sizes=("256²",), tol=2e-3)
add("dot", "e.dot(x, y)", "np.dot(x, y)", "t.dot(x, y)", "jnp.dot(x, y)", data=("normal", "normal"), dtypes=("f32",), sizes=("10^3", "10^6"), tol=1e-2)
add("trace", "e.matrix_trace(x)", "np.trace(x)", "t.trace(x)", "jnp.trace(x)", data=("square",), dtypes=("f32",), sizes=("256²",), tol=1e-4)

# ---- images (NHWC) and networks ----
NHWC = "jax.lax.conv_general_dilated(x, y, ({s}, {s}), [({p}, {p})] * 2, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count={g})"


def conv(what, image, window, stride=1, pad=0, groups=1):
    add("conv2d", f"e.conv2d(x, y, stride={stride}, padding={pad}, groups={groups})", "",
        f"F.conv2d(x.permute(0, 3, 1, 2), y.permute(3, 2, 0, 1), stride={stride}, padding={pad}, groups={groups}).permute(0, 2, 3, 1)",
        NHWC.format(s=stride, p=pad, g=groups), data=(image, window), dtypes=("f32",), sizes=("",), what=what, tol=1e-3)  # fmt: skip


conv("3×3, 32 channels", (4, 56, 56, 32), (3, 3, 32, 32), pad=1)
conv("3×3, 3 channels", (4, 112, 112, 3), (3, 3, 3, 32), pad=1)
conv("1×1, 128 channels", (4, 28, 28, 128), (1, 1, 128, 128))
conv("3×3, stride 2, 64 channels", (4, 56, 56, 64), (3, 3, 64, 64), stride=2, pad=1)
conv("3×3, depthwise, 64 channels", (4, 56, 56, 64), (3, 3, 1, 64), pad=1, groups=64)
conv("3×3, 4 groups of 16 channels", (4, 56, 56, 64), (3, 3, 16, 64), pad=1, groups=4)
add("conv2d_transpose", "e.conv2d_transpose(x, y, stride=(2, 2), padding=1)", "",
    "F.conv_transpose2d(x.permute(0, 3, 1, 2), y.permute(3, 2, 0, 1), stride=2, padding=1).permute(0, 2, 3, 1)", "",
    data=((4, 28, 28, 32), (4, 4, 32, 32)), dtypes=("f32",), sizes=("",), what="4×4, stride 2, 32 channels", tol=1e-3)  # fmt: skip
for stride in (1, 2):
    pool = "F.{}_pool2d(x.permute(0, 3, 1, 2), 2, {}).permute(0, 2, 3, 1)"
    window = f"(1, 2, 2, 1), (1, {stride}, {stride}, 1), 'valid')"
    add("avg_pool2d", f"e.avg_pool2d(x, (2, 2), stride=({stride}, {stride}))", "", pool.format("avg", stride), f"lax.reduce_window(x, 0.0, lax.add, {window} / 4", data=((4, 56, 56, 64),), dtypes=("f32",), sizes=("",), what=f"2×2, stride {stride}", tol=1e-5)
    add("max_pool2d", f"e.max_pool2d(x, (2, 2), stride=({stride}, {stride}))", "", pool.format("max", stride), f"lax.reduce_window(x, -jnp.inf, lax.max, {window}", data=((4, 56, 56, 64),), dtypes=("f32",), sizes=("",), what=f"2×2, stride {stride}")
add("layer_norm", "e.layer_norm(x)", "", "F.layer_norm(x, x.shape[-1:])", "(x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)", sizes=MATRIX, dtypes=FLOATS, tol=1e-4)
add("rms_norm", "e.rms_norm(x)", "", "F.rms_norm(x, x.shape[-1:], eps=1e-6)", "x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)", sizes=MATRIX, dtypes=("f32",), tol=1e-4)

# ---- rows of the table that are not measured, and why ----
VIEW = "a view: nothing is computed"
DATA = "data, or part of the machinery"
PART = "measured through the function that users call"
UNMEASURED = {
    **dict.fromkeys("reshape flatten unflatten squeeze unsqueeze swap_axes matrix_transpose moveaxis split chunk unbind slice stop_gradient".split(), VIEW),
    **dict.fromkeys("leaf constant input const alias barrier custom shard collective call loop branch result".split(), DATA),
    **dict.fromkeys("index index_update slice_set pad_constant zeros ones arange tri random_uniform random_normal split_key fold_in lift_batch_dims compact".split(), PART),
    "cumulative_prod": "as cumulative_sum",
    "shuffle_physical": "a gather by numbers that are known; no peer has it",
}


def unmeasured(op):
    """Why an operation has no row; None: it has, or somebody forgot."""
    if op.endswith("_physical") and op != "shuffle_physical":
        return f"as {op[: -len('_physical')]}"
    if op.endswith("batch_dims"):
        return VIEW
    return UNMEASURED.get(op)
