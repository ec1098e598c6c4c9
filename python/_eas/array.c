/* array.c: buffers as arrays: x[i, j], x[i, j] = v, x.shape, x.strides; views of rows and slices.
 *
 * A buffer that knows how it lies in memory has a tuple (shape, strides, origin, flat): entries are ints or
 * values of the trace, strides and origin count elements, flat says that offsets of mk.load mean what they do
 * for a contiguous array. Which arguments a kernel uses as arrays is found by tracing it: the first time, the
 * trace notes them (Trace.wanted) and is given up; the kernel is then traced with sizes as further parameters
 * (kernel.c, eas._struct). */
#include "py.h"

#include <string.h>

enum { SHAPE, STRIDES, ORIGIN, FLAT };

static Value *of(PyObject *o) { return (Value *)o; }
static PyObject *part(PyObject *buf, int i) { return PyTuple_GET_ITEM(of(buf)->array, i); }
static bool is_int(PyObject *o, long v) { return PyLong_CheckExact(o) && PyLong_AsLong(o) == v; }

PyObject *array_new(PyObject *buf, PyObject *array) /* the same memory laid out anew; steals array */
{
    Value *x = of(buf);
    Value *o = array ? (Value *)buffer_new(x->trace, x->v, x->name) : NULL;
    if (!o)
        return Py_XDECREF(array), NULL;
    o->array = array;
    return (PyObject *)o;
}
PyObject *array_flat(PyObject *buf, int64_t n) /* of n elements in a row; steals buf */
{
    PyObject *array = buf ? Py_BuildValue("((L)(i)iO)", (long long)n, 1, 0, Py_True) : NULL;
    PyObject *r = array ? array_new(buf, array) : NULL;
    Py_XDECREF(buf);
    return r;
}

/* ---- not known yet ---- */
static PyObject *label(PyObject *buf)
{
    return of(buf)->name ? Py_NewRef(of(buf)->name) : PyUnicode_FromString("buf");
}
/* The kernel will be traced again with the sizes of this argument. */
static int want(PyObject *buf, bool shape)
{
    Trace *t = of(buf)->trace;
    if (!of(buf)->name)
        return py_fail_at(PyExc_TypeError, "this buffer has no shape here"), 0;
    if (!t->wanted && !(t->wanted = PySet_New(NULL)))
        return 0;
    PyObject *what = shape ? PyUnicode_FromFormat("%U!", of(buf)->name) : Py_NewRef(of(buf)->name);
    int ok = what && PySet_Add(t->wanted, what) == 0;
    Py_XDECREF(what);
    return ok;
}
static int give_up(PyObject *buf)
{
    if (want(buf, true))
        py_fail(PyExc_RuntimeError, "the sizes of an argument are wanted");
    return 0;
}
static int known(PyObject *buf) /* 0 with an exception that gives the trace up */
{
    if (of(buf)->array)
        return 1;
    return give_up(buf);
}
/* Something of the right dtype and shape, so that the rest of the body can be looked at. */
static PyObject *stand_in(Trace *t, PyObject *buf, PyObject *key)
{
    eas_value v, r = eas_builder_const_typed(t->b, eas_value_dtype(t->b, of(buf)->v), 0, 0);
    int64_t shape[4], dims[4] = {0};
    int rank = 0;
    Py_ssize_t n = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_Check(key) ? PyTuple_GET_ITEM(key, i) : key;
        if (value_check(item) && value_of(t, item, &v) == 1) {
            int k = eas_value_shape(t->b, v, shape);
            if (k > rank) {
                rank = k;
                memcpy(dims, shape, sizeof dims);
            }
        }
    }
    return value_new(t, rank ? eas_builder_broadcast(t->b, r, rank, dims) : r);
}

/* ---- attributes ---- */
static int sizes_known(PyObject *o) /* 0 with an exception that gives the trace up */
{
    if (!known(o))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(part(o, SHAPE)); i++)
        if (PyTuple_GET_ITEM(part(o, SHAPE), i) == Py_None)
            return give_up(o);
    return 1;
}
PyObject *array_shape(PyObject *o, void *which)
{
    int what = (int)(intptr_t)which;
    return (what == SHAPE ? sizes_known(o) : known(o)) ? Py_NewRef(part(o, what)) : NULL;
}
PyObject *array_ndim(PyObject *o, void *unused)
{
    (void)unused;
    return known(o) ? PyLong_FromSsize_t(PyTuple_GET_SIZE(part(o, SHAPE))) : NULL;
}
PyObject *array_size(PyObject *o, void *unused)
{
    (void)unused;
    PyObject *r = sizes_known(o) ? PyLong_FromLong(1) : NULL;
    for (Py_ssize_t i = 0; r && i < PyTuple_GET_SIZE(part(o, SHAPE)); i++) {
        PyObject *n = PyTuple_GET_ITEM(part(o, SHAPE), i), *next = i ? PyNumber_Multiply(r, n) : Py_NewRef(n);
        Py_SETREF(r, next);
    }
    return r;
}
PyObject *array_T(PyObject *o, void *unused)
{
    (void)unused;
    PyObject *shape = known(o) ? PySequence_List(part(o, SHAPE)) : NULL,
             *strides = shape ? PySequence_List(part(o, STRIDES)) : NULL;
    PyObject *array = NULL;
    if (strides && PyList_Reverse(shape) == 0 && PyList_Reverse(strides) == 0) {
        PyObject *a = PyList_AsTuple(shape), *b = PyList_AsTuple(strides);
        bool flat = part(o, FLAT) == Py_True && PyList_GET_SIZE(shape) < 2;
        array = a && b ? PyTuple_Pack(4, a, b, part(o, ORIGIN), flat ? Py_True : Py_False) : NULL;
        Py_XDECREF(a);
        Py_XDECREF(b);
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return array ? array_new(o, array) : NULL;
}

/* ---- indices ---- */
typedef struct place {
    PyObject *off;            /* owned: an int or a value */
    PyObject *shape, *strides; /* lists: axes that are left */
    PyObject *mask;           /* borrowed; NULL: none */
} place;
static void place_free(place *p)
{
    Py_XDECREF(p->off);
    Py_XDECREF(p->shape);
    Py_XDECREF(p->strides);
}
/* off += item * stride */
static int advance(place *p, PyObject *item, PyObject *stride)
{
    PyObject *step = is_int(stride, 1) ? Py_NewRef(item) : PyNumber_Multiply(item, stride);
    PyObject *sum = !step ? NULL : is_int(p->off, 0) ? Py_NewRef(step) : PyNumber_Add(p->off, step);
    Py_XDECREF(step);
    Py_XSETREF(p->off, sum);
    return sum != NULL;
}
static bool is_condition(PyObject *o)
{
    eas_value v;
    if (PyBool_Check(o) || PyArray_IsScalar(o, Bool))
        return true;
    Trace *t = trace_current();
    return value_check(o) && value_of(t, o, &v) == 1 && eas_value_dtype(t->b, v) == EAS_BOOL;
}
static int axis_fail(PyObject *buf, int axis, PyObject *item, PyObject *size)
{
    PyObject *who = label(buf);
    if (who)
        py_fail_at(PyExc_IndexError, "'%U': index %R is out of bounds for axis %d of size %R", who, item,
                   axis, size);
    Py_XDECREF(who);
    return 0;
}
/* Where kernels are checked: is the index within the axis, in lanes that take part? */
static int check_value(Trace *t, PyObject *buf, int axis, PyObject *item, PyObject *size, PyObject *mask)
{
    PyObject *zero = PyLong_FromLong(0), *low = zero ? PyObject_RichCompare(item, zero, Py_GE) : NULL,
             *high = low ? PyObject_RichCompare(item, size, Py_LT) : NULL,
             *in = high ? PyNumber_And(low, high) : NULL;
    eas_value v, m = 0;
    int ok = in && value_of(t, in, &v) == 1 && (!mask || mask == Py_True || value_of(t, mask, &m) == 1);
    m = ok ? trace_mask(t, m) : 0;
    if (ok && t->live) {
        eas_value no = eas_builder_const_bool(t->b, 0), bad = eas_builder_apply(t->b, OP.not, v, 0, 0);
        bad = eas_live_merge(t->b, no, m ? eas_builder_apply(t->b, OP.and, bad, m, 0) : bad);
        PyObject *o = value_new(t, bad), *a = o ? live_array(o) : NULL,
                 *any = a ? PyObject_CallMethod(a, "any", NULL) : NULL;
        ok = any && (!PyObject_IsTrue(any) || axis_fail(buf, axis, item, size));
        Py_XDECREF(o);
        Py_XDECREF(a);
        Py_XDECREF(any);
    } else if (ok) {
        PyObject *who = label(buf),
                 *text = who
                           ? PyUnicode_FromFormat("an index of '%U' is out of bounds for axis %d", who, axis)
                           : NULL;
        const char *s = text ? PyUnicode_AsUTF8(text) : NULL;
        if (s)
            eas_builder_assert(t->b, v, s, m);
        ok = s && trace_ok(t);
        Py_XDECREF(who);
        Py_XDECREF(text);
    }
    Py_XDECREF(zero);
    Py_XDECREF(low);
    Py_XDECREF(high);
    Py_XDECREF(in);
    return ok;
}
static int check_index(Trace *t, PyObject *buf, int axis, PyObject *item, PyObject *size, PyObject *mask)
{
    if (PyLong_Check(item) && PyLong_Check(size)) {
        PyObject *zero = PyLong_FromLong(0);
        int bad =
            zero ? PyObject_RichCompareBool(item, zero, Py_LT) || PyObject_RichCompareBool(item, size, Py_GE)
                 : -1;
        Py_XDECREF(zero);
        return bad == 0 || (bad > 0 && axis_fail(buf, axis, item, size));
    }
    return !t->checks || check_value(t, buf, axis, item, size, mask);
}
static int take_index(Trace *t, PyObject *buf, place *p, int axis, PyObject *item)
{
    PyObject *size = PyTuple_GET_ITEM(part(buf, SHAPE), axis),
             *stride = PyTuple_GET_ITEM(part(buf, STRIDES), axis), *own = NULL;
    if (!value_check(item)) {
        PyObject *n = PyIndex_Check(item) && !PyBool_Check(item) ? PyNumber_Index(item) : NULL;
        if (!n)
            return PyErr_Clear(),
                   py_fail_at(PyExc_TypeError,
                              "an index of an array must be an integer or a block of integers, got %R", item),
                   0;
        bool negative = PyObject_RichCompareBool(n, Py_False, Py_LT) == 1;
        if (negative && size == Py_None) {
            Py_DECREF(n);
            return give_up(buf);
        }
        own = negative ? PyNumber_Add(size, n) : Py_NewRef(n);
        Py_DECREF(n);
        if (!own)
            return 0;
        item = own;
    } else if (is_condition(item))
        return py_fail_at(PyExc_TypeError,
                          "a condition cannot index an axis; it may come last, as a mask: x[i, mask]"),
               0;
    int ok = (size == Py_None || check_index(t, buf, axis, item, size, p->mask)) && advance(p, item, stride);
    Py_XDECREF(own);
    return ok;
}
static int take_slice(PyObject *buf, place *p, int axis, PySliceObject *s)
{
    PyObject *size = PyTuple_GET_ITEM(part(buf, SHAPE), axis),
             *stride = PyTuple_GET_ITEM(part(buf, STRIDES), axis);
    if (s->step != Py_None && !is_int(s->step, 1))
        return py_fail_at(
                   PyExc_TypeError,
                   "a slice of an array has a step of 1 here; index with start + step * mk.arange(0, n)"),
               0;
    if (size == Py_None && s->stop == Py_None)
        return give_up(buf);
    PyObject *stop = s->stop == Py_None ? size : s->stop;
    if (s->start != Py_None && !advance(p, s->start, stride))
        return 0;
    PyObject *n = s->start == Py_None ? Py_NewRef(stop) : PyNumber_Subtract(stop, s->start);
    int ok = n && PyList_Append(p->shape, n) == 0 && PyList_Append(p->strides, stride) == 0;
    Py_XDECREF(n);
    return ok;
}
static int take_axis(PyObject *buf, place *p, Py_ssize_t axis)
{
    if (PyTuple_GET_ITEM(part(buf, SHAPE), axis) == Py_None)
        return give_up(buf);
    return PyList_Append(p->shape, PyTuple_GET_ITEM(part(buf, SHAPE), axis)) == 0 &&
           PyList_Append(p->strides, PyTuple_GET_ITEM(part(buf, STRIDES), axis)) == 0;
}
/* Where key leads; what it leaves open is in shape and strides. 0 with an exception; place_free is due in
 * either case. */
static int find_place(Trace *t, PyObject *buf, PyObject *key, place *p)
{
    PyObject *const *items = PyTuple_Check(key) ? &PyTuple_GET_ITEM(key, 0) : &key;
    Py_ssize_t n = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1, ndim = PyTuple_GET_SIZE(part(buf, SHAPE)),
               axis = 0;
    *p = (place){.off = Py_NewRef(part(buf, ORIGIN)), .shape = PyList_New(0), .strides = PyList_New(0)};
    if (!p->shape || !p->strides)
        return 0;
    if (n == ndim + 1 && is_condition(items[n - 1]))
        p->mask = items[--n];
    for (Py_ssize_t i = 0; i < n; i++) {
        if (items[i] == Py_Ellipsis) {
            for (Py_ssize_t left = ndim - axis - (n - i - 1); left > 0; left--)
                if (!take_axis(buf, p, axis++))
                    return 0;
            continue;
        }
        if (axis >= ndim) {
            PyObject *who = label(buf);
            if (who)
                py_fail_at(PyExc_IndexError, "'%U' has %zd dims and gets %zd indices", who, ndim, n);
            Py_XDECREF(who);
            return 0;
        }
        if (items[i] == Py_None)
            return py_fail_at(
                       PyExc_TypeError,
                       "None does not index an array in a kernel; give the block of indices the new axis"),
                   0;
        if (!(PySlice_Check(items[i]) ? take_slice(buf, p, (int)axis, (PySliceObject *)items[i])
                                      : take_index(t, buf, p, (int)axis, items[i])))
            return 0;
        axis++;
    }
    while (axis < ndim)
        if (!take_axis(buf, p, axis++))
            return 0;
    return 1;
}
static int mask_of(Trace *t, const place *p, eas_value *mask)
{
    *mask = 0;
    if (p->mask && p->mask != Py_True && !(PyArray_IsScalar(p->mask, Bool) && PyObject_IsTrue(p->mask)) &&
        value_of(t, p->mask, mask) != 1)
        return 0;
    *mask = trace_mask(t, *mask);
    return 1;
}
static bool rows_follow(PyObject *shape, PyObject *strides) /* is the last axis dense, and the only one? */
{
    Py_ssize_t n = PyList_GET_SIZE(strides);
    return n == 1 && is_int(PyList_GET_ITEM(strides, 0), 1) && PyList_GET_SIZE(shape) == 1;
}
static PyObject *view(PyObject *buf, place *p)
{
    if (p->mask)
        return py_fail_at(PyExc_IndexError, "a mask needs an index for every axis");
    PyObject *a = PyList_AsTuple(p->shape), *b = a ? PyList_AsTuple(p->strides) : NULL;
    PyObject *array =
        b ? PyTuple_Pack(4, a, b, p->off, rows_follow(p->shape, p->strides) ? Py_True : Py_False) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return array ? array_new(buf, array) : NULL;
}
static Trace *array_enter(PyObject *buf)
{
    Trace *t = trace_enter("load");
    if (t && of(buf)->trace != t)
        return py_fail_at(PyExc_RuntimeError, "a buffer of another trace is used here"), NULL;
    return t;
}
PyObject *array_get(PyObject *buf, PyObject *key)
{
    place p = {0};
    eas_value off, mask;
    PyObject *r = NULL;
    Trace *t = array_enter(buf);
    if (!t)
        return NULL;
    if (!of(buf)->array)
        return want(buf, false) ? stand_in(t, buf, key) : NULL;
    if (find_place(t, buf, key, &p)) {
        if (PyList_GET_SIZE(p.shape))
            r = view(buf, &p);
        else if (value_arg(t, p.off, "load", "off", &off) && mask_of(t, &p, &mask))
            r = value_new(t, eas_builder_load(t->b, of(buf)->v, off, mask, 0));
    }
    place_free(&p);
    return r;
}
int array_set(PyObject *buf, PyObject *key, PyObject *value)
{
    place p = {0};
    eas_value off, v, mask;
    int r = -1;
    Trace *t = array_enter(buf);
    if (!t)
        return -1;
    if (!value)
        return py_fail_at(PyExc_TypeError, "elements of an array cannot be deleted"), -1;
    if (!of(buf)->array)
        return want(buf, false) ? 0 : -1;
    if (Py_IS_TYPE(value, G.buffer) && ((Value *)value)->v == of(buf)->v)
        return 0; /* x[i] += v of a row, which is the view itself */
    if (find_place(t, buf, key, &p)) {
        if (PyList_GET_SIZE(p.shape))
            py_fail_at(
                PyExc_TypeError,
                "an assignment needs an index for every axis: whole rows are written with a block of indices, mk.arange(0, n)");
        else if (value_arg(t, p.off, "store", "off", &off) && value_arg(t, value, "store", "value", &v) &&
                 mask_of(t, &p, &mask)) {
            eas_builder_store(t->b, of(buf)->v, off, v, mask);
            r = trace_ok(t) ? 0 : -1;
        }
    }
    place_free(&p);
    return r;
}

/* ---- mk.load, mk.store, atomics: an offset, or a tuple of indices ---- */
int array_at(Trace *t, PyObject *buf, PyObject *off, const char *fn, eas_value *b, eas_value *o)
{
    if (!Py_IS_TYPE(buf, G.buffer) || (!PyTuple_Check(off) && !of(buf)->array))
        return buffer_arg(t, buf, fn, "buf", b) && value_arg(t, off, fn, "off", o);
    if (of(buf)->trace != t)
        return buffer_arg(t, buf, fn, "buf", b);
    *b = of(buf)->v;
    if (PyTuple_Check(off)) {
        place p = {0};
        if (!of(buf)->array)
            return want(buf, false) ? (*o = eas_builder_const_int(t->b, 0), 1) : 0;
        int ok = find_place(t, buf, off, &p);
        if (ok && (PyList_GET_SIZE(p.shape) || p.mask))
            ok = (py_fail_at(PyExc_IndexError, "mk.%s: %zd indices are wanted, one for each axis", fn,
                             PyTuple_GET_SIZE(part(buf, SHAPE))),
                  0);
        ok = ok && value_arg(t, p.off, fn, "off", o);
        place_free(&p);
        return ok;
    }
    if (part(buf, FLAT) != Py_True) {
        PyObject *who = label(buf);
        if (who)
            py_fail_at(
                PyExc_ValueError,
                "mk.%s: '%U' is not contiguous here, so an offset does not lead to its elements: index it with all its axes, %U[i, j], "
                "or mk.%s(%U, (i, j), ...); or pass a contiguous copy (np.ascontiguousarray)",
                fn, who, who, fn, who);
        Py_XDECREF(who);
        return 0;
    }
    if (!value_arg(t, off, fn, "off", o))
        return 0;
    eas_value origin;
    if (!is_int(part(buf, ORIGIN), 0)) {
        if (!value_arg(t, part(buf, ORIGIN), fn, "off", &origin))
            return 0;
        *o = eas_builder_apply(t->b, OP.add, *o, origin, 0);
    }
    return 1;
}
/* For what takes whole buffers: its own memory from its beginning on. */
int array_whole(PyObject *buf, const char *fn)
{
    if (!of(buf)->array || (part(buf, FLAT) == Py_True && is_int(part(buf, ORIGIN), 0)))
        return 1;
    PyObject *who = label(buf);
    if (who)
        py_fail_at(
            PyExc_ValueError,
            "mk.%s: '%U' is a view or not contiguous: this takes arrays as they lie in memory. Pass a contiguous copy",
            fn, who);
    Py_XDECREF(who);
    return 0;
}

/* _array(buffer, shape, strides, origin, flat): the buffer as an array */
static PyObject *make_array(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *buf, *shape, *strides, *origin, *flat;
    if (!PyArg_ParseTuple(args, "O!O!O!OO!", G.buffer, &buf, &PyTuple_Type, &shape, &PyTuple_Type, &strides,
                          &origin, &PyBool_Type, &flat))
        return NULL;
    return array_new(buf, PyTuple_Pack(4, shape, strides, origin, flat));
}
static PyMethodDef functions[] = {{"_array", make_array, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
int array_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
