/* lanes.c: functions of mk that move the lanes of a block, functions of bits, functions made of instructions,
 * and local arrays. */
#include "py.h"

#include <math.h>

static int axis_of(PyObject *o, const char *fn, int otherwise, int *out)
{
    int64_t a = otherwise;
    if (o && o != Py_None && !static_int(o, fn, "axis", &a))
        return 0;
    *out = (int)a;
    return 1;
}
static int flag_of(PyObject *o, const char *fn, const char *arg, int *out)
{
    *out = o ? PyObject_IsTrue(o) : 0;
    if (o && !PyBool_Check(o))
        return py_fail_at(PyExc_TypeError, "mk.%s: %s must be a bool, got %s", fn, arg, Py_TYPE(o)->tp_name),
               0;
    return 1;
}
/* Whole blocks move: no lane may be masked off. */
static int block_arg(Trace *t, PyObject *o, const char *fn, eas_value *v)
{
    int64_t shape[4];
    if (!trace_whole(t, fn, true) || !value_arg(t, o, fn, "x", v))
        return 0;
    if (!eas_value_shape(t->b, *v, shape))
        return py_fail_at(PyExc_TypeError,
                          "mk.%s: x must be a block, such as mk.load(buf, mk.arange(0, B)); got one value",
                          fn),
               0;
    return 1;
}

FN(gather)
{
    eas_value x, i;
    int axis;
    PARSE({"gather", 3, 2, {"x", "index", "axis"}});
    if (!block_arg(t, in[0], s.fn, &x) || !value_arg(t, in[1], s.fn, "index", &i) ||
        !axis_of(in[2], s.fn, 0, &axis))
        return NULL;
    return value_new(t, eas_builder_gather(t->b, x, i, axis));
}
FN(flip)
{
    eas_value x;
    int axis;
    PARSE({"flip", 2, 1, {"x", "axis"}});
    return block_arg(t, in[0], s.fn, &x) && axis_of(in[1], s.fn, -1, &axis)
             ? value_new(t, eas_builder_flip(t->b, x, axis))
             : NULL;
}
static PyObject *do_sort(Trace *t, const sig *s, PyObject **in, bool order)
{
    eas_value x, r = 0;
    int axis, descending;
    if (!block_arg(t, in[0], s->fn, &x) || !axis_of(in[1], s->fn, -1, &axis) ||
        !flag_of(in[2], s->fn, "descending", &descending))
        return NULL;
    eas_builder_sort(t->b, x, axis, descending, order ? NULL : &r, order ? &r : NULL);
    return value_new(t, r);
}
FN(sort)
{
    PARSE({"sort", 3, 1, {"x", "axis", "descending"}});
    return do_sort(t, &s, in, false);
}
FN(argsort)
{
    PARSE({"argsort", 3, 1, {"x", "axis", "descending"}});
    return do_sort(t, &s, in, true);
}
FN(topk)
{
    eas_value x, v = 0, i = 0;
    int axis, largest;
    int64_t k, shape[4];
    PARSE({"topk", 4, 2, {"x", "k", "axis", "largest"}});
    if (!block_arg(t, in[0], s.fn, &x) || !static_int(in[1], s.fn, "k", &k) ||
        !axis_of(in[2], s.fn, -1, &axis) || !flag_of(in[3] ? in[3] : Py_True, s.fn, "largest", &largest))
        return NULL;
    int rank = eas_value_shape(t->b, x, shape), a = axis < 0 ? axis + rank : axis;
    if (a < 0 || a >= rank || k < 1 || k > shape[a])
        return py_fail_at(PyExc_ValueError, "mk.topk: k = %lld elements along axis %d of a block of rank %d",
                          (long long)k, axis, rank);
    eas_builder_sort(t->b, x, a, largest, &v, &i);
    PyObject *p = value_new(t, eas_builder_slice(t->b, v, a, 0, k)),
             *q = p ? value_new(t, eas_builder_slice(t->b, i, a, 0, k)) : NULL;
    PyObject *r = q ? PyTuple_Pack(2, p, q) : NULL;
    Py_XDECREF(p);
    Py_XDECREF(q);
    return r;
}
FN(cat)
{
    int axis;
    PARSE({"cat", 3, 1, {"blocks", "axis", "y"}});
    PyObject *list = PyTuple_Check(in[0]) || PyList_Check(in[0]) ? PySequence_Tuple(in[0])
                   : in[1]                                       ? PyTuple_Pack(2, in[0], in[1])
                                                                 : NULL;
    bool two = !(PyTuple_Check(in[0]) || PyList_Check(in[0]));
    if (!list || !PyTuple_GET_SIZE(list)) {
        Py_XDECREF(list);
        return py_fail_at(PyExc_TypeError, "mk.cat takes blocks: mk.cat(x, y), or mk.cat([x, y, z], axis=0)");
    }
    eas_value all = 0, x;
    int ok = axis_of(two ? in[2] : in[1], s.fn, 0, &axis);
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(list); i++) {
        ok = block_arg(t, PyTuple_GET_ITEM(list, i), s.fn, &x);
        if (ok)
            all = all ? eas_builder_cat(t->b, all, x, axis) : x;
    }
    Py_DECREF(list);
    return ok ? value_new(t, all) : NULL;
}
FN(histogram)
{
    eas_value x, mask = 0;
    int64_t bins;
    PARSE({"histogram", 3, 2, {"x", "bins", "mask"}});
    if (!block_arg(t, in[0], s.fn, &x) || !static_int(in[1], s.fn, "bins", &bins) ||
        (in[2] && in[2] != Py_None && in[2] != Py_True && !value_arg(t, in[2], s.fn, "mask", &mask)))
        return NULL;
    return value_new(t, eas_builder_histogram(t->b, x, bins, mask));
}

/* ---- scans with a function ---- */
typedef struct joiner {
    PyObject *fn;
    Trace *t;
    int n;
    bool tuple;
} joiner;
static PyObject *operand(joiner *j, const eas_value *v)
{
    if (!j->tuple)
        return value_new(j->t, v[0]);
    PyObject *r = PyTuple_New(j->n);
    for (int i = 0; r && i < j->n; i++) {
        PyObject *o = value_new(j->t, v[i]);
        if (!o)
            Py_CLEAR(r);
        else
            PyTuple_SET_ITEM(r, i, o);
    }
    return r;
}
static int join_two(void *ctx, eas_builder *b, const eas_value *x, const eas_value *y, eas_value *out)
{
    joiner *j = ctx;
    (void)b;
    j->t->busy++;
    PyObject *p = operand(j, x), *q = p ? operand(j, y) : NULL,
             *r = q ? PyObject_CallFunctionObjArgs(j->fn, p, q, NULL) : NULL;
    int ok = r && trace_enter("associative_scan") != NULL;
    if (ok && j->tuple && (!PyTuple_Check(r) || PyTuple_GET_SIZE(r) != j->n))
        ok = (py_fail_at(PyExc_TypeError, "mk.associative_scan: fn must return a tuple of %d values", j->n),
              0);
    for (int i = 0; ok && i < j->n; i++)
        ok = value_arg(j->t, j->tuple ? PyTuple_GET_ITEM(r, i) : r, "associative_scan",
                       "the function's result", &out[i]);
    j->t->busy--;
    Py_XDECREF(p);
    Py_XDECREF(q);
    Py_XDECREF(r);
    return ok;
}
FN(associative_scan)
{
    eas_value x[16], out[16] = {0};
    int axis, reverse;
    PARSE({"associative_scan", 4, 3, {"x", "axis", "fn", "reverse"}});
    bool tuple = PyTuple_Check(in[0]);
    joiner j = {.fn = in[2], .t = t, .n = tuple ? (int)PyTuple_GET_SIZE(in[0]) : 1, .tuple = tuple};
    if (j.n < 1 || j.n > 16)
        return py_fail_at(PyExc_ValueError, "mk.associative_scan: a tuple of 1 to 16 blocks");
    if (!PyCallable_Check(in[2]))
        return py_fail_at(
            PyExc_TypeError,
            "mk.associative_scan: fn must be a function of two values, such as lambda x, y: x + y; got %R",
            in[2]);
    if (!axis_of(in[1], s.fn, 0, &axis) || !flag_of(in[3], s.fn, "reverse", &reverse))
        return NULL;
    for (int i = 0; i < j.n; i++)
        if (!block_arg(t, tuple ? PyTuple_GET_ITEM(in[0], i) : in[0], s.fn, &x[i]))
            return NULL;
    PyObject *m = PyImport_ImportModule("eas._flow"),
             *fn = m ? PyObject_CallMethod(m, "call", "O", in[2]) : NULL, *r = NULL;
    if (fn) {
        j.fn = fn;
        t->busy++;
        eas_builder_scan_with(t->b, j.n, x, axis, reverse, join_two, &j, out);
        t->busy--;
        r = PyErr_Occurred() || !trace_ok(t) ? NULL : operand(&j, out);
    }
    Py_XDECREF(fn);
    Py_XDECREF(m);
    return r;
}

/* ---- bits ---- */
static PyObject *mk_bits(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"popcount", "clz", "ctz", "umulhi"};
    long kind = PyLong_AsLong(self);
    sig s = {names[kind], kind == EAS_BITS_UMULHI ? 2 : 1, kind == EAS_BITS_UMULHI ? 2 : 1, {"x", "y"}};
    PyObject *in[8] = {NULL};
    eas_value v[2] = {0, 0};
    Trace *t = trace_enter(s.fn);
    if (!t || !mk_parse(&s, args, nargs, kwnames, in))
        return NULL;
    for (int i = 0; i < s.n; i++)
        if (!value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    return value_new(t, eas_builder_bits(t->b, (eas_bits_kind)kind, v[0], v[1]));
}

/* ---- functions made of instructions ---- */
static const struct function {
    const char *name;
    double (*one)(double);
    double (*two)(double, double);
    const char *args, *doc;
} table[] = {
    {"asin", asin, NULL, "x", "Arc sine."},
    {"acos", acos, NULL, "x", "Arc cosine."},
    {"atan", atan, NULL, "x", "Arc tangent."},
    {"sinh", sinh, NULL, "x", "Hyperbolic sine."},
    {"cosh", cosh, NULL, "x", "Hyperbolic cosine."},
    {"asinh", asinh, NULL, "x", "Inverse hyperbolic sine."},
    {"acosh", acosh, NULL, "x", "Inverse hyperbolic cosine."},
    {"atanh", atanh, NULL, "x", "Inverse hyperbolic tangent."},
    {"log10", log10, NULL, "x", "Logarithm to base 10."},
    {"cbrt", cbrt, NULL, "x", "Cube root."},
    {"atan2", NULL, atan2, "y, x", "Angle of the point (x, y)."},
    {"hypot", NULL, hypot, "x, y", "sqrt(x * x + y * y)."},
    {"copysign", NULL, copysign, "x, y", "The size of x with the sign of y."},
};
enum { NFUNCTIONS = sizeof table / sizeof *table };
static PyObject *mk_function(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const struct function *f = &table[PyLong_AsLong(self)];
    int n = f->two ? 2 : 1;
    bool yx = f->two && f->args[0] == 'y';
    sig s = {f->name, n, n, {yx ? "y" : "x", yx ? "x" : "y"}};
    PyObject *in[8] = {NULL};
    eas_value v[2] = {0, 0};
    Trace *t = trace_enter(s.fn);
    if (!t || !mk_parse(&s, args, nargs, kwnames, in))
        return NULL;
    if (number_check(in[0]) && (n == 1 || number_check(in[1]))) {
        double x = PyFloat_AsDouble(in[0]), y = n == 2 ? PyFloat_AsDouble(in[1]) : 0;
        return PyErr_Occurred() ? NULL : PyFloat_FromDouble(n == 2 ? f->two(x, y) : f->one(x));
    }
    for (int i = 0; i < n; i++)
        if (!value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    return value_new(t, eas_builder_function(t->b, f->name, v[0], v[1]));
}

/* ---- blocks by index ---- */
/* x[i] and x[lo:hi] of a block: one item for an axis. axis: moves on; 0 with an exception. */
int lanes_item(Trace *t, eas_value *x, int *axis, PyObject *item)
{
    int64_t shape[4];
    eas_value_shape(t->b, *x, shape);
    int64_t n = shape[*axis];
    if (PySlice_Check(item)) {
        Py_ssize_t lo, hi, step;
        PySliceObject *s = (PySliceObject *)item;
        if (value_check(s->start) || value_check(s->stop) || value_check(s->step))
            return py_fail_at(
                       PyExc_TypeError,
                       "the bounds of a slice of a block must be known while the kernel is traced; gather lanes with "
                       "mk.gather(x, start + mk.arange(0, n))"),
                   0;
        if (PySlice_Unpack(item, &lo, &hi, &step) < 0)
            return 0;
        Py_ssize_t count = PySlice_AdjustIndices((Py_ssize_t)n, &lo, &hi, step);
        if (!count)
            return py_fail_at(PyExc_IndexError, "a slice of a block may not be empty: %R of an axis of %lld",
                              item, (long long)n),
                   0;
        if (step < 0) {
            if (!trace_whole(t, "flip", true))
                return 0;
            *x = eas_builder_flip(t->b, *x, *axis);
            lo = (Py_ssize_t)n - 1 - lo;
            step = -step;
        }
        if (count != n)
            *x = eas_builder_slice(t->b, *x, *axis, lo, (count - 1) * step + 1);
        if (step > 1) { /* every step-th: padded to whole steps, of which the first lanes stay */
            int64_t to[4], m = (count - 1) * step + 1;
            int rank = eas_value_shape(t->b, *x, to);
            eas_value index = eas_builder_apply(t->b, OP.mul, eas_builder_arange(t->b, 0, count),
                                                eas_builder_const_int(t->b, step), 0);
            (void)m;
            to[*axis] = count;
            int64_t one[4] = {1, 1, 1, 1};
            one[*axis] = count;
            index = eas_builder_broadcast(t->b, eas_builder_reshape(t->b, index, rank, one), rank, to);
            if (!trace_whole(t, "gather", true))
                return 0;
            *x = eas_builder_gather(t->b, *x, index, *axis);
        }
        ++*axis;
        return trace_ok(t);
    }
    if (value_check(item)) {
        eas_value i;
        if (!trace_whole(t, "gather", true) || value_of(t, item, &i) != 1)
            return 0;
        *x = eas_builder_lane(t->b, *x, *axis, i);
        return trace_ok(t);
    }
    int64_t i, to[4];
    if (!static_int(item, "x[i]", "the index", &i))
        return 0;
    if (i < -n || i >= n)
        return py_fail_at(PyExc_IndexError, "index %lld is out of bounds for an axis of %lld of a block",
                          (long long)i, (long long)n),
               0;
    *x = eas_builder_slice(t->b, *x, *axis, i < 0 ? i + n : i, 1);
    int rank = eas_value_shape(t->b, *x, shape);
    for (int k = 0, m = 0; k < rank; k++)
        if (k != *axis)
            to[m++] = shape[k];
    *x = eas_builder_reshape(t->b, *x, rank - 1, to);
    return trace_ok(t);
}

static PyMethodDef rows[] = {
    ROW(gather,
        "gather($module, x, index, axis=0)\n--\n\nThe elements of a block at the indices along an axis, in the shape of index; negative ones "
        "count from "
        "the end, others outside give 0."),
    ROW(flip, "flip($module, x, axis=-1)\n--\n\nA block in reverse order along an axis."),
    ROW(sort,
        "sort($module, x, axis=-1, descending=False)\n--\n\nA block sorted along an axis; NaN comes last, first if it descends."),
    ROW(argsort,
        "argsort($module, x, axis=-1, descending=False)\n--\n\nThe positions of the sorted elements; equal ones keep their order."),
    ROW(topk,
        "topk($module, x, k, axis=-1, largest=True)\n--\n\n(values, indices) of the k largest or smallest elements along an axis, in order."),
    ROW(cat,
        "cat($module, blocks, axis=0, y=None)\n--\n\nBlocks one behind the other along an axis: cat([x, y, z], axis=0) or cat(x, y)."),
    ROW(histogram,
        "histogram($module, x, bins, mask=None)\n--\n\nHow often 0, 1, ..., bins - 1 occur in a block of integers: a block of i32."),
    ROW(associative_scan,
        "associative_scan($module, x, axis, fn, reverse=False)\n--\n\nRunning results along an axis by fn(earlier, later), which is associative. x "
        "may be a tuple of blocks; fn then takes and returns tuples."),
    {NULL, NULL, 0, NULL},
};
static PyMethodDef bit_rows[] = {
    {"popcount", (PyCFunction)(void (*)(void))mk_bits, METH_FASTCALL | METH_KEYWORDS,
     "popcount($module, x)\n--\n\nHow many bits of an integer are set."},
    {"clz", (PyCFunction)(void (*)(void))mk_bits, METH_FASTCALL | METH_KEYWORDS,
     "clz($module, x)\n--\n\nZeros above the highest bit that is set; the width of x for 0."},
    {"ctz", (PyCFunction)(void (*)(void))mk_bits, METH_FASTCALL | METH_KEYWORDS,
     "ctz($module, x)\n--\n\nZeros below the lowest bit that is set; the width of x for 0."},
    {"umulhi", (PyCFunction)(void (*)(void))mk_bits, METH_FASTCALL | METH_KEYWORDS,
     "umulhi($module, x, y)\n--\n\nThe upper half of the product of two integers, taken as unsigned."},
};
static PyMethodDef function_rows[NFUNCTIONS];
static char function_docs[NFUNCTIONS][128];

int lanes_init(PyObject *mk)
{
    for (int i = 0; i < 4; i++)
        if (mk_add_numbered(mk, &bit_rows[i], i) < 0)
            return -1;
    for (int i = 0; i < NFUNCTIONS; i++) {
        snprintf(function_docs[i], sizeof function_docs[i], "%s($module, %s)\n--\n\n%s", table[i].name,
                 table[i].args, table[i].doc);
        function_rows[i] = (PyMethodDef){table[i].name, (PyCFunction)(void (*)(void))mk_function,
                                         METH_FASTCALL | METH_KEYWORDS, function_docs[i]};
        if (mk_add_numbered(mk, &function_rows[i], i) < 0)
            return -1;
    }
    return mk_add_all(mk, rows);
}
