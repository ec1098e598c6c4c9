/* mkfuncs.c: the functions of mk. One table row each; families (element-wise functions, casts) share one C
 * function and find their row through `self`. With Python numbers only, the element-wise ones compute at once
 * and give a number. */
#include "py.h"

#include <math.h>

/* ---- identity ---- */
static int static_axis(PyObject *o, const char *fn, int *out)
{
    int64_t a = 0;
    if (o && !static_int(o, fn, "axis", &a))
        return 0;
    if (a < 0 || a > 2)
        return py_fail_at(PyExc_ValueError, "mk.%s: axis must be 0, 1 or 2, got %lld", fn, (long long)a), 0;
    *out = (int)a;
    return 1;
}
FN(program_id)
{
    int a;
    PARSE({"program_id", 1, 0, {"axis"}});
    return static_axis(in[0], s.fn, &a) ? value_new(t, eas_builder_program_id(t->b, a)) : NULL;
}
FN(num_programs)
{
    int a;
    PARSE({"num_programs", 1, 0, {"axis"}});
    return static_axis(in[0], s.fn, &a) ? value_new(t, eas_builder_num_programs(t->b, a)) : NULL;
}
FN(local_id)
{
    int a;
    PARSE({"local_id", 1, 0, {"axis"}});
    return static_axis(in[0], s.fn, &a) ? value_new(t, eas_builder_local_id(t->b, a)) : NULL;
}
FN(lane_id)
{
    PARSE({"lane_id", 0, 0, {NULL}});
    return value_new(t, eas_builder_lane_id(t->b));
}
FN(sg_id)
{
    PARSE({"sg_id", 0, 0, {NULL}});
    return value_new(t, eas_builder_sg_id(t->b));
}
/* (start, size), or the size alone; stop= in place of size=. A start other than 0 asks for the second by
 * name: elsewhere it is the end. */
static int start_and_size(PyObject **in, const char *fn, bool named, int64_t *start, int64_t *size)
{
    int64_t stop;
    *start = 0;
    if (in[1] && in[2])
        return py_fail_at(PyExc_TypeError, "mk.%s takes size= or stop=, not both", fn), 0;
    if (in[2])
        return static_int(in[2], fn, "stop", &stop) && (!in[0] || static_int(in[0], fn, "start", start)) &&
               (*size = stop - *start, 1);
    if (!in[1])
        return in[0] ? static_int(in[0], fn, "size", size)
                     : (py_fail_at(PyExc_TypeError, "mk.%s: argument 'size' is missing", fn), 0);
    if ((in[0] && !static_int(in[0], fn, "start", start)) || !static_int(in[1], fn, "size", size))
        return 0;
    if (*start && !named)
        return py_fail_at(
                   PyExc_TypeError,
                   "mk.%s(%lld, %lld): with a start other than 0, name the second argument, which other languages take for the end: "
                   "mk.%s(%lld, size=%lld) has %lld elements, mk.%s(%lld, stop=%lld) ends before %lld",
                   fn, (long long)*start, (long long)*size, fn, (long long)*start, (long long)*size,
                   (long long)*size, fn, (long long)*start, (long long)*size, (long long)*size),
               0;
    return 1;
}
static bool is_named(Py_ssize_t nargs, PyObject *kwnames) { return nargs < 2 && kwnames; }
FN(arange)
{
    int64_t start, size;
    PARSE({"arange", 3, 0, {"start", "size", "stop"}});
    return start_and_size(in, s.fn, is_named(nargs, kwnames), &start, &size)
             ? value_new(t, eas_builder_arange(t->b, start, size))
             : NULL;
}
/* Indices of 2 or 3 dims, the last one fastest: (y, x) of mk.tid((Y, X)). */
static PyObject *tid_of(Trace *t, PyObject *sizes)
{
    Py_ssize_t n = PyTuple_GET_SIZE(sizes);
    int64_t dim[3], all = 1;
    if (n < 1 || n > 3)
        return py_fail_at(PyExc_ValueError, "mk.tid: a group has 1 to 3 dims, got %zd", n);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!static_int(PyTuple_GET_ITEM(sizes, i), "tid", "size", &dim[i]))
            return NULL;
        if (dim[i] < 1)
            return py_fail_at(PyExc_ValueError, "mk.tid: a size is %lld; it must be positive",
                              (long long)dim[i]);
        all *= dim[i];
    }
    eas_value rest = eas_builder_tid(t->b, 0, all);
    t->threads = all;
    PyObject *r = PyTuple_New(n);
    for (Py_ssize_t i = n - 1; r && i >= 0; i--) {
        eas_value d = eas_builder_const_int(t->b, dim[i]),
                  at = i ? eas_builder_apply(t->b, OP.mod, rest, d, 0) : rest;
        rest = i ? eas_builder_apply(t->b, OP.floordiv, rest, d, 0) : rest;
        PyObject *o = value_new(t, at);
        if (!o)
            Py_CLEAR(r);
        else
            PyTuple_SET_ITEM(r, i, o);
    }
    return r;
}
FN(tid)
{
    int64_t start, size;
    PARSE({"tid", 2, 1, {"start", "size"}});
    PyObject *sizes = in[1] ? in[1] : in[0];
    if (PyTuple_Check(sizes))
        return in[1] && (!PyLong_Check(in[0]) || PyLong_AsLong(in[0]) != 0)
                 ? py_fail_at(PyExc_TypeError, "mk.tid: a group of several dims starts at 0: mk.tid((Y, X))")
                 : tid_of(t, sizes);
    PyObject *three[3] = {in[0], in[1], NULL};
    if (!start_and_size(three, s.fn, true, &start, &size))
        return NULL;
    t->threads = size;
    return value_new(t, eas_builder_tid(t->b, start, size));
}

/* ---- memory ---- */
/* None and True are no mask at all. */
static int own_mask(Trace *t, PyObject *o, const char *fn, eas_value *out)
{
    *out = 0;
    if (!o || o == Py_None || o == Py_True)
        return 1;
    if (PyArray_IsScalar(o, Bool))
        return *out = PyObject_IsTrue(o) ? 0 : eas_builder_const_bool(t->b, 0), 1;
    if (!value_check(o) && o != Py_False)
        return py_fail_at(PyExc_TypeError,
                          "mk.%s: mask must be a condition such as offs < N, a bool or None; got %s", fn,
                          Py_TYPE(o)->tp_name),
               0;
    return value_arg(t, o, fn, "mask", out);
}
static int mask_arg(Trace *t, PyObject *o, const char *fn, eas_value *out)
{
    int ok = own_mask(t, o, fn, out);
    if (ok)
        *out = trace_mask(t, *out);
    return ok;
}
FN(load)
{
    eas_value buf, off, mask, other = 0;
    PARSE({"load", 4, 2, {"buf", "off", "mask", "other"}});
    if (!Py_IS_TYPE(in[0], G.buffer) && PyObject_HasAttrString(in[0], "_load")) /* eas/_float8.py */
        return PyObject_CallMethod(in[0], "_load", "OOO", in[1], in[2] ? in[2] : Py_None,
                                   in[3] ? in[3] : Py_None);
    if (!array_at(t, in[0], in[1], s.fn, &buf, &off) || !mask_arg(t, in[2], s.fn, &mask))
        return NULL;
    if (mask && in[3] && in[3] != Py_None && !value_arg(t, in[3], s.fn, "other", &other))
        return NULL;
    return value_new(t, eas_builder_load(t->b, buf, off, mask, other));
}
static PyObject *none_if_ok(Trace *t) { return trace_ok(t) ? Py_NewRef(Py_None) : NULL; }
FN(store)
{
    eas_value buf, off, val, mask;
    PARSE({"store", 4, 3, {"buf", "off", "value", "mask"}});
    if (!array_at(t, in[0], in[1], s.fn, &buf, &off) || !value_arg(t, in[2], s.fn, "value", &val) ||
        !mask_arg(t, in[3], s.fn, &mask))
        return NULL;
    eas_builder_store(t->b, buf, off, val, mask);
    return none_if_ok(t);
}
/* ---- atomics: one function, its row is the instruction ---- */
static const struct atomic {
    const char *name, *doc;
} atomics[] = {
    {"atomic_add", "buf[off] += value"},
    {"atomic_min", "buf[off] = minimum(buf[off], value)"},
    {"atomic_max", "buf[off] = maximum(buf[off], value)"},
    {"atomic_and", "buf[off] &= value"},
    {"atomic_or", "buf[off] |= value"},
    {"atomic_xor", "buf[off] ^= value"},
    {"atomic_xchg", "buf[off] = value"},
    {"atomic_cas", "buf[off] = desired where it has the bits of expected"},
};
enum { NATOMICS = sizeof atomics / sizeof *atomics, CAS = NATOMICS - 1 };
static int named(PyObject *o, const char *fn, const char *arg, const char *const *names, int n, int none,
                 int *out)
{
    *out = none;
    if (!o || o == Py_None)
        return 1;
    const char *s = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL;
    for (*out = 0; s && *out < n; ++*out)
        if (!strcmp(s, names[*out]))
            return 1;
    char all[96] = "";
    for (int i = 0; i < n; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s\"%s\"",
                 !i           ? ""
                 : i == n - 1 ? " or "
                              : ", ",
                 names[i]);
    PyErr_Clear();
    return py_fail_at(s ? PyExc_ValueError : PyExc_TypeError, "mk.%s: %s must be %s; got %R", fn, arg, all,
                      o),
           0;
}
static int order_arg(PyObject *o, const char *fn, eas_order none, eas_order *out)
{
    static const char *const names[EAS_NORDERS] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};
    int i, ok = named(o, fn, "order", names, EAS_NORDERS, none, &i);
    *out = (eas_order)i;
    return ok;
}
/* A load has nothing to release, a store nothing to acquire. */
static int order_fits(const char *fn, eas_order order, bool reads, bool writes)
{
    if ((reads || (order != EAS_ORDER_ACQUIRE && order != EAS_ORDER_ACQ_REL)) &&
        (writes || (order != EAS_ORDER_RELEASE && order != EAS_ORDER_ACQ_REL)))
        return 1;
    return py_fail_at(PyExc_ValueError, "mk.%s: its order is \"relaxed\", \"%s\" or \"seq_cst\"", fn,
                      reads ? "acquire" : "release"),
           0;
}
static PyObject *mk_atomic(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long row = PyLong_AsLong(self);
    int values = row == CAS ? 2 : 1;
    sig s = row == CAS
              ? (sig){atomics[row].name, 6, 4, {"buf", "off", "expected", "desired", "mask", "order"}}
              : (sig){atomics[row].name, 5, 3, {"buf", "off", "value", "mask", "order"}};
    PyObject *in[8];
    eas_order order;
    eas_value buf, off, v[2] = {0, 0}, mask;
    Trace *t = trace_enter(s.fn);
    if (!t || !mk_parse(&s, args, nargs, kwnames, in))
        return NULL;
    if (!array_at(t, in[0], in[1], s.fn, &buf, &off))
        return NULL;
    for (int i = 0; i < values; i++)
        if (!value_arg(t, in[2 + i], s.fn, s.names[2 + i], &v[i]))
            return NULL;
    if (!mask_arg(t, in[2 + values], s.fn, &mask) ||
        !order_arg(in[3 + values], s.fn, EAS_ORDER_RELAXED, &order))
        return NULL;
    return value_new(t,
                     eas_builder_atomic_ordered(t->b, eas_op_find(s.fn), buf, off, v[0], v[1], mask, order));
}
FN(atomic_load)
{
    eas_value buf, off, mask;
    eas_order order;
    PARSE({"atomic_load", 4, 2, {"buf", "off", "mask", "order"}});
    if (!array_at(t, in[0], in[1], s.fn, &buf, &off) || !mask_arg(t, in[2], s.fn, &mask) ||
        !order_arg(in[3], s.fn, EAS_ORDER_RELAXED, &order) || !order_fits(s.fn, order, true, false))
        return NULL;
    return value_new(t, eas_builder_atomic_ordered(t->b, eas_op_find(s.fn), buf, off, 0, 0, mask, order));
}
FN(atomic_store)
{
    eas_value buf, off, val, mask;
    eas_order order;
    PARSE({"atomic_store", 5, 3, {"buf", "off", "value", "mask", "order"}});
    if (!array_at(t, in[0], in[1], s.fn, &buf, &off) || !value_arg(t, in[2], s.fn, "value", &val) ||
        !mask_arg(t, in[3], s.fn, &mask) || !order_arg(in[4], s.fn, EAS_ORDER_RELAXED, &order) ||
        !order_fits(s.fn, order, false, true))
        return NULL;
    eas_builder_atomic_ordered(t->b, eas_op_find("atomic_xchg"), buf, off, val, 0, mask, order);
    return none_if_ok(t);
}
FN(fence)
{
    static const char *const scopes[EAS_NSCOPES] = {"group", "device"};
    eas_order order;
    int scope;
    PARSE({"fence", 2, 0, {"order", "scope"}});
    if (!order_arg(in[0], s.fn, EAS_ORDER_ACQ_REL, &order) ||
        !named(in[1], s.fn, "scope", scopes, EAS_NSCOPES, EAS_SCOPE_DEVICE, &scope))
        return NULL;
    eas_builder_fence(t->b, order, (eas_scope)scope);
    return none_if_ok(t);
}
static PyObject *alloc(Trace *t, PyObject *size, eas_dtype dt, const char *fn)
{
    int64_t n;
    return static_int(size, fn, "size", &n)
             ? array_flat(buffer_new(t, eas_builder_alloc_tg(t->b, n, dt), NULL), n)
             : NULL;
}
FN(alloc_tg)
{
    eas_dtype dt = EAS_F32;
    PARSE({"alloc_tg", 2, 1, {"size", "dtype"}});
    return in[1] && !py_to_dtype(in[1], "mk.alloc_tg", &dt) ? NULL : alloc(t, in[0], dt, s.fn);
}
FN(alloc_tg_f16)
{
    PARSE({"alloc_tg_f16", 1, 1, {"size"}});
    return alloc(t, in[0], EAS_F16, s.fn);
}
/* An array of each thread's own: its part of a threadgroup array, element i of thread k at i * threads + k.
 * In SPMD mode, of the program. */
FN(local)
{
    eas_dtype dt = EAS_F32;
    int64_t n;
    PARSE({"local", 2, 1, {"size", "dtype"}});
    if (!static_int(in[0], s.fn, "size", &n) || (in[1] && !py_to_dtype(in[1], "mk.local", &dt)))
        return NULL;
    if (n < 1)
        return py_fail_at(PyExc_ValueError, "mk.local: size is %lld; it must be positive", (long long)n);
    int64_t threads = t->threads ? t->threads : 1;
    PyObject *buf = buffer_new(t, eas_builder_alloc_tg(t->b, n * threads, dt), NULL);
    if (!buf || threads == 1)
        return buf ? array_flat(buf, n) : NULL;
    PyObject *me = value_new(t, eas_builder_tid(t->b, 0, threads)),
             *array = me ? Py_BuildValue("((L)(L)OO)", (long long)n, (long long)threads, me, Py_False) : NULL;
    PyObject *r = array ? array_new(buf, array) : NULL;
    Py_XDECREF(me);
    Py_DECREF(buf);
    return r;
}
FN(barrier)
{
    PARSE({"barrier", 0, 0, {NULL}});
    if (!trace_whole(t, s.fn, true))
        return NULL;
    eas_builder_barrier(t->b);
    return none_if_ok(t);
}

/* ---- dots and matrices ---- */
/* a, a_base, a_stride, b, b_base, b_stride */
static int six(Trace *t, const sig *s, PyObject **in, eas_value v[7])
{
    for (int i = 0; i < 6; i++)
        if (!(i % 3 ? value_arg(t, in[i], s->fn, s->names[i], &v[i])
                    : buffer_arg(t, in[i], s->fn, s->names[i], &v[i])))
            return 0;
    return 1;
}
FN(dot_blocks)
{
    eas_value v[3] = {0};
    PARSE({"dot", 3, 2, {"x", "y", "acc"}});
    if (!trace_whole(t, s.fn, false))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (in[i] && in[i] != Py_None && !value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    return value_new(t, eas_builder_matmul(t->b, v[0], v[1], v[2]));
}
/* Two operations share the name: dot(x, y, acc) of blocks and the strided dot of buffers. */
static bool of_blocks(Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t n = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    return n < 4;
}
FN(dot)
{
    eas_value v[7];
    if (of_blocks(nargs, kwnames))
        return mk_dot_blocks(self, args, nargs, kwnames);
    PARSE({"dot", 7, 7, {"a", "a_base", "a_stride", "b", "b_base", "b_stride", "K"}});
    if (!trace_whole(t, s.fn, true))
        return NULL;
    if (!six(t, &s, in, v) || !value_arg(t, in[6], s.fn, "K", &v[6]))
        return NULL;
    return value_new(t, eas_builder_dot(t->b, v[0], v[1], v[2], v[3], v[4], v[5], v[6]));
}
FN(mma_zero)
{
    PARSE({"mma_zero", 0, 0, {NULL}});
    return value_new(t, eas_builder_mma_zero(t->b));
}
FN(mma)
{
    eas_value v[7];
    PARSE({"mma", 7, 7, {"a", "a_base", "a_stride", "b", "b_base", "b_stride", "acc"}});
    if (!trace_whole(t, s.fn, true))
        return NULL;
    if (!six(t, &s, in, v) || !value_arg(t, in[6], s.fn, "acc", &v[6]))
        return NULL;
    return value_new(t, eas_builder_mma(t->b, v[0], v[1], v[2], v[3], v[4], v[5], v[6]));
}
FN(mma_store)
{
    eas_value v[4];
    PARSE({"mma_store", 4, 4, {"buf", "base", "stride", "frag"}});
    if (!trace_whole(t, s.fn, true))
        return NULL;
    if (!buffer_arg(t, in[0], s.fn, "buf", &v[0]))
        return NULL;
    for (int i = 1; i < 4; i++)
        if (!value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    eas_builder_mma_store(t->b, v[0], v[1], v[2], v[3]);
    return none_if_ok(t);
}

/* ---- element-wise, several operands ---- */
static int any_traced(PyObject *const *in, int n)
{
    for (int i = 0; i < n; i++)
        if (in[i] && !number_check(in[i]))
            return 1; /* a wrong object is reported by the traced path */
    return 0;
}
static PyObject *apply(Trace *t, const sig *s, eas_op op, PyObject **in)
{
    eas_value v[3] = {0, 0, 0};
    for (int i = 0; i < s->n; i++)
        if (!value_arg(t, in[i], s->fn, s->names[i], &v[i]))
            return NULL;
    return value_new(t, eas_builder_apply(t->b, op, v[0], v[1], v[2]));
}
static PyObject *pick(PyObject *x, PyObject *y, int how) /* of Python numbers: x if `x how y`, else y */
{
    int c = PyObject_RichCompareBool(x, y, how);
    return c < 0 ? NULL : Py_NewRef(c ? x : y);
}
PyObject *mk_extreme(Trace *t, const char *fn, PyObject **in, bool is_max)
{
    const sig s = {fn, 2, 2, {"x", "y"}};
    if (any_traced(in, 2))
        return apply(t, &s, is_max ? OP.max : OP.min, in);
    return pick(in[0], in[1], is_max ? Py_GE : Py_LE);
}
FN(maximum)
{
    PARSE({"maximum", 2, 2, {"x", "y"}});
    return mk_extreme(t, s.fn, in, true);
}
FN(minimum)
{
    PARSE({"minimum", 2, 2, {"x", "y"}});
    return mk_extreme(t, s.fn, in, false);
}
FN(clamp)
{
    PARSE({"clamp", 3, 3, {"x", "lo", "hi"}});
    if (!any_traced(in, 3)) {
        PyObject *low = pick(in[0], in[1], Py_GE), *r = low ? pick(low, in[2], Py_LE) : NULL;
        Py_XDECREF(low);
        return r;
    }
    eas_value v[3];
    for (int i = 0; i < 3; i++)
        if (!value_arg(t, in[i], s.fn, s.names[i], &v[i]))
            return NULL;
    return value_new(
        t, eas_builder_apply(t->b, OP.min, eas_builder_apply(t->b, OP.max, v[0], v[1], 0), v[2], 0));
}
FN(fma)
{
    PARSE({"fma", 3, 3, {"x", "y", "z"}});
    if (any_traced(in, 3))
        return apply(t, &s, OP.fma, in);
    double x = PyFloat_AsDouble(in[0]), y = PyFloat_AsDouble(in[1]), z = PyFloat_AsDouble(in[2]);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(fma(x, y, z));
}
FN(where)
{
    PARSE({"where", 3, 3, {"cond", "x", "y"}});
    if (any_traced(in, 3))
        return apply(t, &s, OP.where, in);
    int c = PyObject_IsTrue(in[0]);
    return c < 0 ? NULL : Py_NewRef(c ? in[1] : in[2]);
}
/* As Python has it; NaN, as for traced values, where that would be complex. */
static PyObject *number_power(PyObject *x, PyObject *y)
{
    PyObject *r = PyNumber_Power(x, y, Py_None);
    if (!r || !PyComplex_Check(r))
        return r;
    Py_DECREF(r);
    return PyFloat_FromDouble(NAN);
}
FN(pow)
{
    PARSE({"pow", 2, 2, {"x", "y"}});
    if (!any_traced(in, 2))
        return number_power(in[0], in[1]);
    PyObject *r = value_power(t, in[0], in[1]);
    if (r != Py_NotImplemented)
        return r;
    Py_DECREF(r);
    return py_fail_at(PyExc_TypeError, "mk.pow: x and y must be values or numbers");
}
/* Of Python numbers: -(-x // y), which is exact for any int; NumPy's unsigned ones become ints first. */
static PyObject *number_cdiv(PyObject *x, PyObject *y)
{
    PyObject *a = PyArray_IsScalar(x, Integer) ? PyNumber_Long(x) : Py_NewRef(x),
             *b = PyArray_IsScalar(y, Integer) ? PyNumber_Long(y) : Py_NewRef(y);
    PyObject *neg = a && b ? PyNumber_Negative(a) : NULL, *q = neg ? PyNumber_FloorDivide(neg, b) : NULL,
             *r = q ? PyNumber_Negative(q) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(neg);
    Py_XDECREF(q);
    return r;
}
FN(cdiv)
{
    eas_value x, y;
    PARSE({"cdiv", 2, 2, {"x", "y"}});
    if (!any_traced(in, 2))
        return number_cdiv(in[0], in[1]);
    return value_arg(t, in[0], s.fn, "x", &x) && value_arg(t, in[1], s.fn, "y", &y)
             ? value_new(t, eas_builder_cdiv(t->b, x, y))
             : NULL;
}

/* ---- conditions ---- */
static PyObject *fold(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const char *fn, eas_op op,
                      PyObject *(*number)(PyObject *, PyObject *))
{
    Trace *t = trace_enter(fn);
    if (!t)
        return NULL;
    if (nargs < 2 || kwnames)
        return py_fail_at(PyExc_TypeError, "mk.%s takes two or more conditions", fn);
    PyObject *acc = Py_NewRef(args[0]);
    for (Py_ssize_t i = 1; acc && i < nargs; i++) {
        static const sig two = {"and_/or_", 2, 2, {"x", "y"}};
        PyObject *in[2] = {acc, args[i]};
        PyObject *next = any_traced(in, 2) ? apply(t, &two, op, in) : number(acc, args[i]);
        Py_SETREF(acc, next);
    }
    return acc;
}
FN(and_)
{
    (void)self;
    return fold(args, nargs, kwnames, "and_", OP.and, PyNumber_And);
}
FN(or_)
{
    (void)self;
    return fold(args, nargs, kwnames, "or_", OP.or, PyNumber_Or);
}
FN(not_)
{
    PARSE({"not_", 1, 1, {"x"}});
    if (any_traced(in, 1))
        return apply(t, &s, OP.not, in);
    return PyBool_Check(in[0]) ? PyBool_FromLong(in[0] == Py_False) : PyNumber_Invert(in[0]);
}

/* ---- element-wise functions of one operand ---- */
/* The rows of the instruction table with a HOST part: a number's function of C, and the row of Python's. */
#define INSN(...)
#define HOST(name, kind, value, doc) \
    static double host_##name(double a) { return value; }
#include "../../src/ir/insn.def"
enum unary_kind { WHOLE, REAL, TRUTH };
static const struct unary {
    const char *name;
    double (*fn)(double);
    enum unary_kind kind;
    const char *doc;
} unaries[] = {
#define HOST(name, kind, value, doc) {#name, host_##name, kind, doc},
#include "../../src/ir/insn.def"
#undef INSN
};
enum { NUNARIES = sizeof unaries / sizeof *unaries };
static eas_op unary_ops[NUNARIES];

static PyObject *unary_number(const struct unary *u, PyObject *x)
{
    if (u->kind == WHOLE && PyLong_Check(x))
        return Py_NewRef(x);
    double d = PyFloat_AsDouble(x);
    if (d == -1 && PyErr_Occurred())
        return NULL;
    if (u->kind == TRUTH)
        return PyBool_FromLong(u->fn(d) != 0);
    return PyFloat_FromDouble(u->fn(d));
}
/* Whole numbers stay as they are; for the rest an integer becomes f32 (libeas decides). */
static PyObject *unary_traced(Trace *t, const struct unary *u, eas_op op, eas_value v)
{
    char kind = eas_dtype_kind(eas_value_dtype(t->b, v));
    if (u->kind == WHOLE && kind != 'f')
        return value_new(t, v);
    return value_new(t, eas_builder_apply(t->b, op, v, 0, 0));
}
static PyObject *mk_unary(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    long row = PyLong_AsLong(self);
    const struct unary *u = &unaries[row];
    sig s = {u->name, 1, 1, {"x"}};
    PyObject *x;
    eas_value v;
    Trace *t = trace_enter(u->name);
    if (!t || !mk_parse(&s, args, nargs, kwnames, &x))
        return NULL;
    if (number_check(x))
        return unary_number(u, x);
    return value_arg(t, x, u->name, "x", &v) ? unary_traced(t, u, unary_ops[row], v) : NULL;
}
FN(abs)
{
    PARSE({"abs", 1, 1, {"x"}});
    return any_traced(in, 1) ? apply(t, &s, OP.abs, in) : PyNumber_Absolute(in[0]);
}

/* ---- casts ---- */
static PyObject *mk_to(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const sig s = {"to_<dtype>", 1, 1, {"x"}};
    PyObject *x;
    eas_value v;
    Trace *t = trace_enter("cast");
    if (!t || !mk_parse(&s, args, nargs, kwnames, &x) || !value_arg(t, x, s.fn, "x", &v))
        return NULL;
    return value_new(t, eas_builder_cast(t->b, v, (eas_dtype)PyLong_AsLong(self)));
}
FN(cast)
{
    eas_dtype dt;
    eas_value v;
    PARSE({"cast", 2, 2, {"x", "dtype"}});
    return value_arg(t, in[0], s.fn, "x", &v) && py_to_dtype(in[1], "mk.cast", &dt)
             ? value_new(t, eas_builder_cast(t->b, v, dt))
             : NULL;
}
FN(bitcast)
{
    eas_dtype dt;
    eas_value v;
    PARSE({"bitcast", 2, 2, {"x", "dtype"}});
    return value_arg(t, in[0], s.fn, "x", &v) && py_to_dtype(in[1], "mk.bitcast", &dt)
             ? value_new(t, eas_builder_bitcast(t->b, v, dt))
             : NULL;
}

/* ---- the table ---- */
static PyMethodDef rows[] = {
    ROW(program_id,
        "program_id($module, axis=0)\n--\n\nIndex of this program (SPMD) or threadgroup along axis 0, 1 or 2."),
    ROW(num_programs,
        "num_programs($module, axis=0)\n--\n\nHow many programs or threadgroups the launch has along an axis."),
    ROW(arange,
        "arange($module, start=0, size=None, stop=None)\n--\n\nThe block start, start+1, ..., start+size-1; arange(size) begins with 0. With "
        "a start other than 0, "
        "size= or stop= is named. Makes the kernel SPMD."),
    ROW(tid,
        "tid($module, start, size)\n--\n\nstart + this thread's index in its group of size threads; tid(size) begins with 0; tid((Y, X)) "
        "and tid((Z, Y, X)) give a tuple of indices. Makes the kernel thread mode."),
    ROW(local_id, "local_id($module, axis=0)\n--\n\nThis thread's index in its group along an axis."),
    ROW(lane_id, "lane_id($module)\n--\n\nThis thread's index in its simdgroup of 32."),
    ROW(sg_id, "sg_id($module)\n--\n\nIndex of this thread's simdgroup in its group."),
    ROW(load,
        "load($module, buf, off, mask=None, other=0)\n--\n\nElements of buf at the offsets; lanes masked off read `other` and touch no memory."),
    ROW(store,
        "store($module, buf, off, value, mask=None)\n--\n\nWrites value at the offsets; lanes masked off write nothing."),
    ROW(atomic_load,
        "atomic_load($module, buf, off, mask=None, order='relaxed')\n--\n\nThe elements, each read in one step; order is 'relaxed', "
        "'acquire' or 'seq_cst'."),
    ROW(atomic_store,
        "atomic_store($module, buf, off, value, mask=None, order='relaxed')\n--\n\nbuf[off] = value, each in one step; order is "
        "'relaxed', 'release' or 'seq_cst'."),
    ROW(fence,
        "fence($module, order='acq_rel', scope='device')\n--\n\nOrders the accesses before and after it, as others see them: the threads of "
        "the group, or all programs."),
    ROW(alloc_tg,
        "alloc_tg($module, size, dtype=f32)\n--\n\nAn array of size elements shared by the threads of a group."),
    ROW(alloc_tg_f16, "alloc_tg_f16($module, size)\n--\n\nalloc_tg(size, mk.f16)"),
    ROW(local,
        "local($module, size, dtype=f32)\n--\n\nAn array of each thread's own (of the program's own in SPMD mode), indexed as x[i]. Call "
        "mk.tid before it."),
    ROW(barrier,
        "barrier($module)\n--\n\nAll threads of the group meet here; threadgroup memory written before is seen after."),
    ROW(dot,
        "dot($module, *args, **kwargs)\n--\n\ndot(x, y, acc=None): blocks (M, K) times (K, N), plus acc; in f32, f64 if one of them is. Two "
        "blocks of bf16: docs/ir.md says what processors that multiply those do.\n"
        "dot(a, a_base, a_stride, b, b_base, b_stride, K): the sum over k < K of a[a_base + k*a_stride] * b[b_base + k*b_stride], in f32."),
    ROW(mma_zero, "mma_zero($module)\n--\n\nAn 8x8 float32 simdgroup matrix of zeros."),
    ROW(mma,
        "mma($module, a, a_base, a_stride, b, b_base, b_stride, acc)\n--\n\nacc + A @ B for 8x8 tiles read at a[a_base + i*a_stride + k] and "
        "b[b_base + k*b_stride + j]."),
    ROW(mma_store,
        "mma_store($module, buf, base, stride, frag)\n--\n\nWrites an 8x8 simdgroup matrix at buf[base + i*stride + j]."),
    ROW(maximum, "maximum($module, x, y)\n--\n\nThe larger, lane by lane; NaN if either is."),
    ROW(minimum, "minimum($module, x, y)\n--\n\nThe smaller, lane by lane; NaN if either is."),
    ROW(clamp, "clamp($module, x, lo, hi)\n--\n\nminimum(maximum(x, lo), hi)."),
    ROW(fma, "fma($module, x, y, z)\n--\n\nx * y + z with one rounding."),
    ROW(where, "where($module, cond, x, y)\n--\n\nx where cond holds, else y; both are computed."),
    ROW(pow, "pow($module, x, y)\n--\n\nx ** y."),
    ROW(cdiv, "cdiv($module, x, y)\n--\n\nx / y rounded up."),
    ROW(and_, "and_($module, x, y, /, *more)\n--\n\nAll of the conditions (bitwise on integers)."),
    ROW(or_, "or_($module, x, y, /, *more)\n--\n\nAny of the conditions (bitwise on integers)."),
    ROW(not_, "not_($module, x)\n--\n\nThe opposite condition (bitwise on integers)."),
    ROW(abs, "abs($module, x)\n--\n\nMagnitude."),
    ROW(cast,
        "cast($module, x, dtype)\n--\n\nx as another element type: integers wrap, floats to integers saturate, NaN gives 0."),
    ROW(bitcast,
        "bitcast($module, x, dtype)\n--\n\nThe bits of x read as another element type of the same size."),
    {NULL, NULL, 0, NULL},
};
static PyMethodDef unary_defs[NUNARIES], to_defs[EAS_NDTYPES], atomic_defs[NATOMICS];
static char to_names[EAS_NDTYPES][12], unary_docs[NUNARIES][96], atomic_docs[NATOMICS][256];

int mk_add(PyObject *mk, PyMethodDef *def, PyObject *self)
{
    PyObject *name = PyUnicode_FromString("eas.mk"), *f = name ? PyCFunction_NewEx(def, self, name) : NULL;
    int r = f ? PyDict_SetItemString(mk, def->ml_name, f) : -1;
    Py_XDECREF(f);
    Py_XDECREF(name);
    return r;
}
int mk_add_all(PyObject *mk, PyMethodDef *def)
{
    for (; def->ml_name; def++)
        if (mk_add(mk, def, NULL) < 0)
            return -1;
    return 0;
}
int mk_add_numbered(PyObject *mk, PyMethodDef *def, long row)
{
    PyObject *n = PyLong_FromLong(row);
    int r = n ? mk_add(mk, def, n) : -1;
    Py_XDECREF(n);
    return r;
}
static int add_unaries(PyObject *mk)
{
    for (int i = 0; i < NUNARIES; i++) {
        unary_ops[i] = eas_op_find(unaries[i].name);
        snprintf(unary_docs[i], sizeof unary_docs[i], "%s($module, x)\n--\n\n%s.", unaries[i].name,
                 unaries[i].doc);
        unary_defs[i] = (PyMethodDef){unaries[i].name, (PyCFunction)(void (*)(void))mk_unary,
                                      METH_FASTCALL | METH_KEYWORDS, unary_docs[i]};
        if (mk_add_numbered(mk, &unary_defs[i], i) < 0)
            return -1;
    }
    return 0;
}
static int add_atomics(PyObject *mk)
{
    for (int i = 0; i < NATOMICS; i++) {
        snprintf(
            atomic_docs[i], sizeof atomic_docs[i],
            "%s($module, buf, off, %s, mask=None, order='relaxed')\n--\n\n%s, in one step that nothing comes between. Gives the old elements.",
            atomics[i].name, i == CAS ? "expected, desired" : "value", atomics[i].doc);
        atomic_defs[i] = (PyMethodDef){atomics[i].name, (PyCFunction)(void (*)(void))mk_atomic,
                                       METH_FASTCALL | METH_KEYWORDS, atomic_docs[i]};
        if (mk_add_numbered(mk, &atomic_defs[i], i) < 0)
            return -1;
    }
    return 0;
}
static int add_dtypes(PyObject *mk)
{
    for (int dt = 0; dt < EAS_NDTYPES; dt++) {
        const char *name = eas_dtype_name((eas_dtype)dt);
        snprintf(to_names[dt], sizeof to_names[dt], "to_%s", name);
        to_defs[dt] = (PyMethodDef){to_names[dt], (PyCFunction)(void (*)(void))mk_to,
                                    METH_FASTCALL | METH_KEYWORDS, "x as this element type; see cast."};
        if (mk_add_numbered(mk, &to_defs[dt], dt) < 0 ||
            PyDict_SetItemString(mk, dt == EAS_BOOL ? "bool_" : name, G.dtypes[dt]) < 0)
            return -1;
    }
    return 0;
}
int mkfuncs_init(PyObject *module)
{
    PyObject *mk = PyDict_New();
    if (!mk)
        return -1;
    if (mk_add_all(mk, rows) < 0 || add_unaries(mk) < 0 || add_atomics(mk) < 0 || add_dtypes(mk) < 0 ||
        blocks_init(mk) < 0 || group_init(mk) < 0 || lanes_init(mk) < 0 || hints_init(mk) < 0 ||
        debug_init(mk) < 0 || ctrl_init(mk) < 0 ||
        PyDict_SetItemString(mk, "Value", (PyObject *)G.value) < 0 ||
        PyDict_SetItemString(mk, "Buffer", (PyObject *)G.buffer) < 0 ||
        PyDict_SetItemString(mk, "constexpr", (PyObject *)G.constexpr) < 0)
        return -1;
    return PyModule_AddObject(module, "mk", mk);
}
