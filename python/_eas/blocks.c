/* blocks.c: functions of mk on whole blocks: shapes, reductions and scans along axes, and random numbers.
 * Reductions are rows of one table; each is also a method of values, as are the shapes. */
#include "py.h"

/* ---- blocks and axes ---- */
typedef struct block {
    eas_value v;
    int rank;
    int64_t shape[4];
} block;

static block block_of(Trace *t, eas_value v)
{
    block x = {.v = v};
    x.rank = eas_value_shape(t->b, v, x.shape);
    return x;
}
static int64_t lanes(const block *x)
{
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++)
        n *= x->shape[i];
    return n;
}
static block flat(Trace *t, block x)
{
    int64_t n = lanes(&x);
    return x.rank == 1 ? x : block_of(t, eas_builder_reshape(t->b, x.v, 1, &n));
}
/* What is folded must be a block; group.c has the functions over threads. */
static int folded_arg(Trace *t, PyObject *o, const char *fn, block *out)
{
    eas_value v;
    if (!value_arg(t, o, fn, "x", &v))
        return 0;
    *out = block_of(t, v);
    if (!out->rank)
        py_fail_at(
            PyExc_TypeError,
            "mk.%s works along the axes of a block (mk.arange begins one); got one value. Over the threads of a group there are mk.tg_sum, "
            "mk.simd_sum and "
            "their like",
            fn);
    return out->rank > 0;
}
static int axis_arg(PyObject *o, const char *fn, int rank, int *out)
{
    int64_t a;
    if (!static_int(o, fn, "axis", &a))
        return 0;
    if (a < -rank || a >= rank)
        return py_fail_at(PyExc_ValueError, "mk.%s: axis %lld is out of range for a block of rank %d", fn,
                          (long long)a, rank),
               0;
    *out = (int)(a < 0 ? a + rank : a);
    return 1;
}
/* Axes as a set of bits; None: all. */
static int axes_arg(PyObject *o, const char *fn, int rank, unsigned *out)
{
    int a;
    *out = (1u << rank) - 1;
    if (!o || o == Py_None)
        return 1;
    *out = 0;
    if (!PyTuple_Check(o) && !PyList_Check(o))
        return axis_arg(o, fn, rank, &a) ? *out = 1u << a, 1 : 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++) {
        if (!axis_arg(PySequence_Fast_GET_ITEM(o, i), fn, rank, &a))
            return 0;
        if (*out & 1u << a)
            return py_fail_at(PyExc_ValueError, "mk.%s: axis %d is given twice in %R", fn, a, o), 0;
        *out |= 1u << a;
    }
    return 1;
}
static int flag_arg(PyObject *o, const char *fn, const char *arg, bool *out)
{
    *out = o == Py_True;
    if (o && !PyBool_Check(o))
        return py_fail_at(PyExc_TypeError, "mk.%s: %s must be True or False, got %R", fn, arg, o), 0;
    return 1;
}

/* ---- shapes ---- */
/* f(x, shape) and f(x, d0, d1, ...) alike */
static PyObject *tail(PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *t = PyTuple_New(nargs - 1);
    for (Py_ssize_t i = 1; t && i < nargs; i++)
        PyTuple_SET_ITEM(t, i - 1, Py_NewRef(args[i]));
    return t;
}
static PyObject *with_tail(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                           _PyCFunctionFastWithKeywords f)
{
    PyObject *rest = tail(args, nargs), *two[2] = {args[0], rest},
             *r = rest ? f(self, two, 2, kwnames) : NULL;
    Py_XDECREF(rest);
    return r;
}
FN(broadcast_to)
{
    int64_t shape[4];
    int rank;
    eas_value v;
    PARSE({"broadcast_to", 2, 2, {"x", "shape"}});
    return value_arg(t, in[0], s.fn, "x", &v) && shape_arg(in[1], s.fn, shape, &rank)
             ? value_new(t, eas_builder_broadcast(t->b, v, rank, shape))
             : NULL;
}
/* One -1 stands for what is left over. */
static int fill_shape(const block *x, const char *fn, int64_t *shape, int rank)
{
    int64_t known = 1;
    int open = -1;
    for (int i = 0; i < rank; i++) {
        if (shape[i] == -1 && open >= 0)
            return py_fail_at(PyExc_ValueError, "mk.%s: only one dimension may be -1", fn), 0;
        if (shape[i] == -1)
            open = i;
        else if (shape[i] < 1)
            return py_fail_at(PyExc_ValueError, "mk.%s: dimension %d is %lld; it must be at least 1, or -1",
                              fn, i, (long long)shape[i]),
                   0;
        else
            known = known > INT64_MAX / shape[i] ? INT64_MAX : known * shape[i];
    }
    int64_t n = lanes(x);
    if (open < 0 ? known != n : n % known != 0)
        return py_fail_at(PyExc_ValueError,
                          "mk.%s: a block of %lld elements does not fit the shape, which holds %s%lld", fn,
                          (long long)n, open < 0 ? "" : "a multiple of ", (long long)known),
               0;
    if (open >= 0)
        shape[open] = n / known;
    return 1;
}
FN(reshape)
{
    int64_t shape[4];
    int rank;
    eas_value v;
    if (nargs > 2)
        return with_tail(self, args, nargs, kwnames, mk_reshape);
    PARSE({"reshape", 2, 2, {"x", "shape"}});
    if (!value_arg(t, in[0], s.fn, "x", &v) || !shape_arg(in[1], s.fn, shape, &rank))
        return NULL;
    block x = block_of(t, v);
    return fill_shape(&x, s.fn, shape, rank) ? value_new(t, eas_builder_reshape(t->b, v, rank, shape)) : NULL;
}
static PyObject *filled(Trace *t, PyObject *shape, PyObject *value, PyObject *dtype, const char *fn)
{
    int64_t dims[4];
    int rank;
    eas_dtype dt = EAS_F32;
    eas_value v;
    if (!shape_arg(shape, fn, dims, &rank) || (dtype && !py_to_dtype(dtype, fn, &dt)))
        return NULL;
    if (!value)
        v = eas_builder_const_typed(t->b, dt, 0, 0);
    else if (!value_arg(t, value, fn, "value", &v))
        return NULL;
    v = eas_builder_convert(t->b, fn, v, dt);
    return value_new(t, rank ? eas_builder_broadcast(t->b, v, rank, dims) : v);
}
FN(zeros)
{
    PARSE({"zeros", 2, 1, {"shape", "dtype"}});
    return filled(t, in[0], NULL, in[1], s.fn);
}
FN(full)
{
    PARSE({"full", 3, 2, {"shape", "value", "dtype"}});
    return filled(t, in[0], in[1], in[2], s.fn);
}
static int order_arg(PyObject *o, const char *fn, int rank, int order[4])
{
    unsigned seen = 0;
    if ((!PyTuple_Check(o) && !PyList_Check(o)) || PySequence_Fast_GET_SIZE(o) != rank)
        return py_fail_at(PyExc_ValueError, "mk.%s: axes must name each of the %d axes once, got %R", fn,
                          rank, o),
               0;
    for (int i = 0; i < rank; i++) {
        if (!axis_arg(PySequence_Fast_GET_ITEM(o, i), fn, rank, &order[i]))
            return 0;
        seen |= 1u << order[i];
    }
    if (seen != (1u << rank) - 1)
        py_fail_at(PyExc_ValueError, "mk.%s: axes must name each of the %d axes once, got %R", fn, rank, o);
    return seen == (1u << rank) - 1;
}
FN(trans)
{
    int order[4];
    eas_value v;
    if (nargs > 2)
        return with_tail(self, args, nargs, kwnames, mk_trans);
    PARSE({"trans", 2, 1, {"x", "axes"}});
    if (!value_arg(t, in[0], s.fn, "x", &v))
        return NULL;
    bool given = in[1] && in[1] != Py_None;
    int rank = block_of(t, v).rank;
    if (given && !order_arg(in[1], s.fn, rank, order))
        return NULL;
    return value_new(t, rank < 2 ? v : eas_builder_trans(t->b, v, given ? order : NULL));
}
/* v in the dtype and shape of the model, at least a block of one */
static eas_value as_part(Trace *t, eas_value v, eas_value model)
{
    block m = block_of(t, model);
    m.shape[0] = m.rank ? m.shape[0] : 1;
    return eas_builder_broadcast(t->b, eas_builder_cast(t->b, v, eas_value_dtype(t->b, model)),
                                 m.rank ? m.rank : 1, m.shape);
}
/* Do the shapes of two blocks fit by NumPy's rule? */
static int fit_together(Trace *t, const char *fn, eas_value x, eas_value y)
{
    block a = block_of(t, x), b = block_of(t, y);
    for (int i = 1; i <= a.rank && i <= b.rank; i++) {
        int64_t m = a.shape[a.rank - i], n = b.shape[b.rank - i];
        if (m != n && m != 1 && n != 1)
            return py_fail_at(PyExc_ValueError,
                              "mk.%s: the shapes do not fit: %lld and %lld elements along axis -%d", fn,
                              (long long)m, (long long)n, i),
                   0;
    }
    return 1;
}
FN(join)
{
    eas_value x, y;
    PARSE({"join", 2, 2, {"x", "y"}});
    if (!value_arg(t, in[0], s.fn, "x", &x) || !value_arg(t, in[1], s.fn, "y", &y))
        return NULL;
    if (!fit_together(t, s.fn, x, y))
        return NULL;
    /* of the common dtype and shape */
    eas_value model = eas_builder_apply(t->b, OP.where, eas_builder_const_bool(t->b, 1), x, y);
    if (!trace_ok(t))
        return NULL;
    eas_value both = eas_builder_join(t->b, as_part(t, x, model), as_part(t, y, model));
    return value_new(t, block_of(t, model).rank ? both : eas_builder_reshape(t->b, both, 1, &(int64_t){2}));
}
static PyObject *half(Trace *t, const block *x, int which)
{
    return value_new(t, eas_builder_reshape(t->b, eas_builder_slice(t->b, x->v, x->rank - 1, which, 1),
                                            x->rank - 1, x->shape));
}
FN(split)
{
    eas_value v;
    PARSE({"split", 1, 1, {"x"}});
    if (!value_arg(t, in[0], s.fn, "x", &v))
        return NULL;
    block x = block_of(t, v);
    if (!x.rank || x.shape[x.rank - 1] != 2)
        return py_fail_at(PyExc_ValueError, "mk.split: the last axis must have length 2, got %R", in[0]);
    PyObject *a = half(t, &x, 0), *b = a ? half(t, &x, 1) : NULL, *r = b ? PyTuple_Pack(2, a, b) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return r;
}

/* ---- reductions and scans ---- */
enum { FOLD, ARG, SCAN };
/* of conditions; of halves in f32, since rounding every partial result loses too much */
enum { TRUTH = 1, WIDE = 2 };
static const struct folding {
    const char *name;
    int kind;
    const char *op;  /* that joins; for ARG "max" or "min" */
    int flags;
    const char *doc;
} foldings[] = {
    {"sum", FOLD, "add", WIDE,
     "sum($module, x, axis=None, keepdims=False)\n--\n\nSum along axes, all by default. Integers wrap; halves are summed in "
     "f32."},
    {"prod", FOLD, "mul", WIDE,
     "prod($module, x, axis=None, keepdims=False)\n--\n\nProduct along axes, all by default."},
    {"any", FOLD, "or", TRUTH,
     "any($module, x, axis=None, keepdims=False)\n--\n\nDoes any element along the axes hold?"},
    {"all", FOLD, "and", TRUTH,
     "all($module, x, axis=None, keepdims=False)\n--\n\nDo all elements along the axes hold?"},
    {"argmax", ARG, "max", 0,
     "argmax($module, x, axis=None, keepdims=False)\n--\n\nIndex of the first largest element along an axis; of the block "
     "laid flat by default. NaN is the largest."},
    {"argmin", ARG, "min", 0,
     "argmin($module, x, axis=None, keepdims=False)\n--\n\nIndex of the first smallest element along an axis; of the "
     "block laid flat by default. NaN is the smallest."},
    {"cumsum", SCAN, "add", WIDE,
     "cumsum($module, x, axis=None)\n--\n\nRunning sums along an axis; of the block laid flat by default."},
    {"cumprod", SCAN, "mul", WIDE,
     "cumprod($module, x, axis=None)\n--\n\nRunning products along an axis; of the block laid flat by default."},
    {"max", FOLD, "max", 0,
     "max($module, x, axis=None, keepdims=False)\n--\n\nLargest element along axes, all by default; NaN if there is one."},
    {"min", FOLD, "min", 0,
     "min($module, x, axis=None, keepdims=False)\n--\n\nSmallest element along axes, all by default; NaN if there is one."},
};
enum { NFOLDINGS = sizeof foldings / sizeof *foldings, ROW_MAX = NFOLDINGS - 2, ROW_MIN };

typedef struct joiner { /* how two values become one */
    eas_op op;
    PyObject *fn; /* mk.reduce's, in place of op */
    Trace *t;
} joiner;

/* The user's function on two traced values; 0 with an exception. A literal takes the dtype of what is
 * reduced. */
static eas_value call_joiner(void *ctx, eas_builder *b, eas_value x, eas_value y)
{
    joiner *j = ctx;
    eas_value v = 0;
    j->t->busy++; /* the fold has values of its own */
    PyObject *p = value_new(j->t, x), *q = p ? value_new(j->t, y) : NULL,
             *r = q ? PyObject_CallFunctionObjArgs(j->fn, p, q, NULL) : NULL;
    if (!r || !trace_enter("reduce") || !value_arg(j->t, r, "reduce", "the function's result", &v))
        v = 0;
    else if (eas_value_is_weak(b, v))
        v = eas_builder_cast(b, v, eas_value_dtype(b, x));
    j->t->busy--;
    Py_XDECREF(p);
    Py_XDECREF(q);
    Py_XDECREF(r);
    return v;
}
static eas_value fold_axis(joiner *j, eas_value v, int axis)
{
    return j->fn ? eas_builder_fold(j->t->b, v, axis, call_joiner, j)
                 : eas_builder_reduce(j->t->b, j->op, v, axis);
}
/* All axes go as one, so that the steps are few. */
static eas_value fold_axes(joiner *j, block x, unsigned axes)
{
    if (axes == (1u << x.rank) - 1)
        return fold_axis(j, flat(j->t, x).v, 0);
    for (int a = x.rank - 1; a >= 0 && !PyErr_Occurred(); a--)
        if (axes & 1u << a)
            x.v = fold_axis(j, x.v, a);
    return x.v;
}
static PyObject *kept(Trace *t, const block *x, unsigned axes, bool keepdims, eas_value v)
{
    int64_t shape[4];
    if (PyErr_Occurred())
        return NULL;
    for (int i = 0; i < x->rank; i++)
        shape[i] = axes & 1u << i ? 1 : x->shape[i];
    return value_new(t, keepdims ? eas_builder_reshape(t->b, v, x->rank, shape) : v);
}
static bool through_f32(eas_dtype dt, const struct folding *f)
{
    return (f->flags & WIDE) && (dt == EAS_F16 || dt == EAS_BF16);
}
static eas_value prepared(Trace *t, const struct folding *f, eas_value v)
{
    if (f->flags & TRUTH)
        return eas_builder_cast(t->b, v, EAS_BOOL);
    return through_f32(eas_value_dtype(t->b, v), f) ? eas_builder_cast(t->b, v, EAS_F32) : v;
}
static eas_value rounded(Trace *t, const struct folding *f, eas_dtype dt, eas_value v)
{
    return through_f32(dt, f) ? eas_builder_cast(t->b, v, dt) : v;
}

static PyObject *folding_fold(Trace *t, const struct folding *f, PyObject **in)
{
    block x;
    unsigned axes;
    bool keepdims;
    joiner j = {.op = eas_op_find(f->op), .t = t};
    if (!folded_arg(t, in[0], f->name, &x) || !axes_arg(in[1], f->name, x.rank, &axes) ||
        !flag_arg(in[2], f->name, "keepdims", &keepdims))
        return NULL;
    eas_dtype dt = eas_value_dtype(t->b, x.v);
    x.v = prepared(t, f, x.v);
    return kept(t, &x, axes, keepdims, rounded(t, f, dt, fold_axes(&j, x, axes)));
}
static PyObject *folding_arg(Trace *t, const struct folding *f, PyObject **in)
{
    block x;
    int axis = 0;
    bool keepdims, all = !in[1] || in[1] == Py_None;
    if (!folded_arg(t, in[0], f->name, &x) || (!all && !axis_arg(in[1], f->name, x.rank, &axis)) ||
        !flag_arg(in[2], f->name, "keepdims", &keepdims))
        return NULL;
    eas_value v = eas_builder_arg_reduce(t->b, f->op[1] == 'a', all ? flat(t, x).v : x.v, axis);
    return kept(t, &x, all ? ~0u : 1u << axis, keepdims, v);
}
static PyObject *folding_scan(Trace *t, const struct folding *f, PyObject **in)
{
    block x;
    int axis = 0;
    bool all = !in[1] || in[1] == Py_None;
    if (!folded_arg(t, in[0], f->name, &x) || (!all && !axis_arg(in[1], f->name, x.rank, &axis)))
        return NULL;
    eas_dtype dt = eas_value_dtype(t->b, x.v);
    eas_value v = prepared(t, f, all ? flat(t, x).v : x.v);
    return value_new(t, rounded(t, f, dt, eas_builder_scan(t->b, eas_op_find(f->op), v, axis)));
}
static PyObject *mk_folding(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static PyObject *(*const kinds[])(Trace *, const struct folding *,
                                      PyObject **) = {folding_fold, folding_arg, folding_scan};
    const struct folding *f = &foldings[PyLong_AsLong(self)];
    const sig s = {f->name, f->kind == SCAN ? 2 : 3, 1, {"x", "axis", "keepdims"}};
    PyObject *in[3] = {NULL};
    Trace *t = trace_enter(f->name);
    return t && trace_whole(t, f->name, false) && mk_parse(&s, args, nargs, kwnames, in)
             ? kinds[f->kind](t, f, in)
             : NULL;
}
/* max(x, y) is element-wise; max(x), max(x, axis=...) reduce. */
static PyObject *extreme_or_fold(Trace *t, const sig *s, PyObject **in, bool is_max)
{
    PyObject *fold[3] = {in[0], in[2], in[3]};
    if (!in[1] || in[1] == Py_None)
        return !trace_whole(t, s->fn, false) ? NULL
                                             : folding_fold(t, &foldings[is_max ? ROW_MAX : ROW_MIN], fold);
    if (in[2] || in[3])
        return py_fail_at(
            PyExc_TypeError,
            "mk.%s takes either a second operand (element by element) or an axis (a reduction), not both",
            s->fn);
    return mk_extreme(t, s->fn, in, is_max);
}
FN(max)
{
    PARSE({"max", 4, 1, {"x", "y", "axis", "keepdims"}});
    return extreme_or_fold(t, &s, in, true);
}
FN(min)
{
    PARSE({"min", 4, 1, {"x", "y", "axis", "keepdims"}});
    return extreme_or_fold(t, &s, in, false);
}
FN(reduce)
{
    block x;
    unsigned axes;
    bool keepdims;
    PARSE({"reduce", 4, 3, {"x", "axis", "fn", "keepdims"}});
    if (!trace_whole(t, s.fn, false) || !folded_arg(t, in[0], s.fn, &x) ||
        !axes_arg(in[1], s.fn, x.rank, &axes) || !flag_arg(in[3], s.fn, "keepdims", &keepdims))
        return NULL;
    if (!PyCallable_Check(in[2]))
        return py_fail_at(
            PyExc_TypeError,
            "mk.reduce: fn must be a function of two values, such as lambda x, y: x + y; got %R", in[2]);
    joiner j = {.fn = in[2], .t = t};
    return kept(t, &x, axes, keepdims, fold_axes(&j, x, axes));
}

/* ---- random numbers ---- */
static PyObject *random_kind(Trace *t, const sig *s, PyObject **in, eas_rand_kind kind)
{
    eas_value seed, offset;
    if (!value_arg(t, in[0], s->fn, "seed", &seed) || !value_arg(t, in[1], s->fn, "offset", &offset))
        return NULL;
    return value_new(t, eas_builder_rand(t->b, seed, offset, kind));
}
FN(rand)
{
    PARSE({"rand", 2, 2, {"seed", "offset"}});
    return random_kind(t, &s, in, EAS_RAND_UNIFORM);
}
FN(randn)
{
    PARSE({"randn", 2, 2, {"seed", "offset"}});
    return random_kind(t, &s, in, EAS_RAND_NORMAL);
}
FN(randint)
{
    eas_value v[4];
    PARSE({"randint", 4, 4, {"seed", "offset", "lo", "hi"}});
    for (int i = 0; i < 4; i++)
        if (!value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    return value_new(t, eas_builder_rand_int(t->b, v[0], v[1], v[2], v[3]));
}
FN(philox)
{
    eas_value v[3] = {0}, words[4];
    PARSE({"philox", 3, 2, {"seed", "offset", "stream"}});
    for (int i = 0; i < 3; i++)
        if (in[i] && !value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    eas_builder_philox(t->b, v[0], v[1], v[2], words);
    PyObject *r = PyTuple_New(4);
    for (int i = 0; r && i < 4; i++) {
        PyObject *w = value_new(t, words[i]);
        if (!w) {
            Py_CLEAR(r);
            break;
        }
        PyTuple_SET_ITEM(r, i, w);
    }
    return r;
}

/* ---- the tables ---- */
static PyMethodDef rows[] = {
    ROW(broadcast_to, "broadcast_to($module, x, shape)\n--\n\nx repeated to a block shape, by NumPy's rule."),
    ROW(reshape,
        "reshape($module, x, shape)\n--\n\nThe same elements in row-major order under another block shape; one dimension may be -1."),
    ROW(zeros, "zeros($module, shape, dtype=f32)\n--\n\nA block of zeros."),
    ROW(full, "full($module, shape, value, dtype=f32)\n--\n\nA block of one value."),
    ROW(trans, "trans($module, x, axes=None)\n--\n\nThe axes in another order: reversed, or as axes says."),
    ROW(join, "join($module, x, y)\n--\n\nTwo blocks side by side on a new last axis of length 2."),
    ROW(split, "split($module, x)\n--\n\nThe two halves of a last axis of length 2: the reverse of join."),
    ROW(max,
        "max($module, x, y=None, axis=None, keepdims=False)\n--\n\nmax(x, y): maximum(x, y). max(x, axis=...): the largest along axes, all by "
        "default; NaN if there is one."),
    ROW(min,
        "min($module, x, y=None, axis=None, keepdims=False)\n--\n\nmin(x, y): minimum(x, y). min(x, axis=...): the smallest along axes, all by "
        "default; NaN if there is one."),
    ROW(reduce,
        "reduce($module, x, axis, fn, keepdims=False)\n--\n\nJoins the elements along axes by fn(x, y), an associative and commutative "
        "function of two values. fn is traced once for each halving of the axis."),
    ROW(rand,
        "rand($module, seed, offset)\n--\n\nUniform f32 in [0, 1) in the shape of offset: the same number for the same seed and offset, on every "
        "device."),
    ROW(randn, "randn($module, seed, offset)\n--\n\nNormal f32 of mean 0 and deviation 1; as rand."),
    ROW(randint,
        "randint($module, seed, offset, lo, hi)\n--\n\nUniform integers with lo <= n < hi, a range of at most 2**32; as rand."),
    ROW(philox,
        "philox($module, seed, offset, stream=0)\n--\n\nThe four u32 words of Philox-4x32-10 for the key seed and the counter (offset, stream)."),
    {NULL, NULL, 0, NULL},
};
static PyMethodDef folding_defs[NFOLDINGS];

static int add_method(const char *name, PyObject *f)
{
    PyObject *m = PyInstanceMethod_New(f); /* binds as a Python function does */
    int r =
        m ? PyDict_SetItemString(G.value->tp_dict, name, m) | PyDict_SetItemString(G.var->tp_dict, name, m)
          : -1;
    Py_XDECREF(m);
    return r;
}
static int add_methods(PyObject *mk)
{
    static const struct {
        const char *method, *function;
    } rows[] = {{"broadcast_to", "broadcast_to"},
                {"reshape", "reshape"},
                {"trans", "trans"},
                {"permute", "trans"},
                {"reduce", "reduce"},
                {"to", "cast"},
                {"cast", "cast"},
                {"astype", "cast"},
                {"bitcast", "bitcast"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (add_method(rows[i].method, PyDict_GetItemString(mk, rows[i].function)) < 0)
            return -1;
    return 0;
}
/* x.max(0) is a reduction, where mk.max(x, 0) is element-wise: the last two rows are methods only. */
static int add_folding(PyObject *mk, PyObject *methods, long i)
{
    const struct folding *f = &foldings[i];
    folding_defs[i] = (PyMethodDef){f->name, (PyCFunction)(void (*)(void))mk_folding,
                                    METH_FASTCALL | METH_KEYWORDS, f->doc};
    if (mk_add_numbered(i < ROW_MAX ? mk : methods, &folding_defs[i], i) < 0)
        return -1;
    return add_method(f->name, PyDict_GetItemString(i < ROW_MAX ? mk : methods, f->name));
}
int blocks_init(PyObject *mk)
{
    PyObject *methods = PyDict_New();
    int r = methods ? mk_add_all(mk, rows) : -1;
    for (long i = 0; i < NFOLDINGS && r >= 0; i++)
        r = add_folding(mk, methods, i);
    if (r >= 0)
        r = add_methods(mk);
    Py_XDECREF(methods);
    PyType_Modified(G.value);
    PyType_Modified(G.var);
    return r;
}
