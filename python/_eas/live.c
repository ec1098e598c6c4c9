/* live.c: values that have data: a kernel run with _interpret=True. A value of such a run converts to NumPy
 * and, if it is one number, to Python's; a kernel's body runs once per program, and mk's functions compute at
 * once (eas_live_* of eas.h). */
#include "py.h"

#include <string.h>

/* ---- data ---- */
static int no_data(const char *what)
{
    py_fail_at(
        PyExc_TypeError,
        "a traced value has no %s while the kernel is traced; run the kernel with _interpret=True to look at values",
        what);
    return 0;
}
static Trace *live_trace(PyObject *o, const char *what)
{
    Trace *t = ((Value *)o)->trace;
    if (t->live)
        return t;
    return no_data(what), NULL;
}
static int data_shape(Trace *t, eas_value v, bool block, npy_intp dims[4])
{
    int64_t n = eas_live_count(t->b, v), shape[4];
    int rank = block ? eas_value_shape(t->b, v, shape) : 0;
    for (int i = 0; i < rank; i++)
        dims[i] = (npy_intp)shape[i];
    if (rank || (block && !eas_live_threads(t->b)))
        return rank;
    dims[0] = (npy_intp)n;
    return 1;
}
/* bf16 without ml_dtypes becomes f32, which holds all of it. */
static PyObject *widened(Trace *t, eas_value v, int rank, npy_intp *dims)
{
    PyObject *a = PyArray_SimpleNew(rank, dims, NPY_FLOAT32);
    int64_t n = eas_live_count(t->b, v);
    uint16_t *half = a ? PyMem_Malloc((size_t)n * 2 + 1) : NULL;
    if (half && eas_live_read(t->b, v, half) == EAS_OK)
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)PyArray_DATA((PyArrayObject *)a))[i] = (uint32_t)half[i] << 16;
    else
        Py_CLEAR(a);
    PyMem_Free(half);
    return a ? a : PyErr_NoMemory();
}
PyObject *live_array(PyObject *o)
{
    Trace *t = live_trace(o, "elements");
    if (!t)
        return NULL;
    eas_value v = ((Value *)o)->v;
    npy_intp dims[4];
    int rank = data_shape(t, v, !Py_IS_TYPE(o, G.buffer), dims);
    eas_dtype dt = eas_value_dtype(t->b, v);
    int num = py_dtype_to_npy(dt);
    if (num < 0 && dt == EAS_BF16) {
        PyErr_Clear();
        return widened(t, v, rank, dims);
    }
    PyObject *a = num < 0 ? NULL : PyArray_SimpleNew(rank, dims, num);
    eas_status st = a ? eas_live_read(t->b, v, PyArray_DATA((PyArrayObject *)a)) : EAS_OK;
    if (st == EAS_OK)
        return a;
    Py_DECREF(a);
    return py_raise(st);
}
/* Which of n threads speaks for all that take part: -1 with an exception if they differ. */
static int64_t spokesman(Trace *t, PyArrayObject *a, const char *what)
{
    int64_t n = PyArray_SIZE(a), first = -1;
    size_t size = (size_t)PyArray_ITEMSIZE(a);
    const char *data = PyArray_DATA(a);
    uint8_t *active = PyMem_Malloc((size_t)eas_live_threads(t->b) + 1);
    if (!active)
        return PyErr_NoMemory(), -1;
    eas_live_active(t->b, active);
    for (int64_t k = 0; k < n && first != -2; k++)
        if (active[k] && first < 0)
            first = k;
        else if (active[k] && memcmp(data + (size_t)k * size, data + (size_t)first * size, size))
            first = -2;
    PyMem_Free(active);
    if (first == -2)
        return py_fail_at(
                   PyExc_ValueError,
                   "%s of a value that differs between the threads of the group: look at all of them with .numpy()",
                   what),
             -1;
    return first < 0 ? 0 : first; /* nobody takes part: anybody may speak */
}
PyObject *live_item(PyObject *o, const char *what)
{
    Trace *t = live_trace(o, what);
    int64_t shape[4];
    PyArrayObject *a = t ? (PyArrayObject *)live_array(o) : NULL;
    if (!a)
        return NULL;
    int64_t k = 0;
    if (PyArray_SIZE(a) != 1 && eas_value_shape(t->b, ((Value *)o)->v, shape)) {
        py_fail_at(PyExc_ValueError, "%s of a block of %lld elements: look at it with .numpy()", what,
                   (long long)PyArray_SIZE(a));
        k = -1;
    } else if (PyArray_SIZE(a) != 1) {
        k = spokesman(t, a, what);
    }
    PyObject *r = k < 0 ? NULL : PyArray_GETITEM(a, (char *)PyArray_DATA(a) + k * PyArray_ITEMSIZE(a));
    Py_DECREF(a);
    return r;
}
PyObject *live_repr(PyObject *o)
{
    Value *x = (Value *)o;
    bool buffer = Py_IS_TYPE(o, G.buffer);
    int64_t shape[4];
    PyObject *a = live_array(o), *text = a ? PyObject_Str(a) : NULL, *r = NULL;
    const char *dt = eas_dtype_name(eas_value_dtype(x->trace->b, x->v));
    if (text && buffer)
        r = PyUnicode_FromFormat("<buffer %V: %s %U>", x->name, "tg", dt, text);
    else if (text && !eas_value_shape(x->trace->b, x->v, shape))
        r = PyUnicode_FromFormat("<%s%s: %U>", dt, eas_live_threads(x->trace->b) ? " of each thread" : "",
                                 text);
    else if (text)
        r = PyUnicode_FromFormat("<%s block: %U>", dt, text);
    Py_XDECREF(text);
    Py_XDECREF(a);
    return r;
}
PyObject *live_numpy(PyObject *o, PyObject *unused)
{
    (void)unused;
    return live_array(o);
}
PyObject *live_item_method(PyObject *o, PyObject *unused)
{
    (void)unused;
    return live_item(o, "item()");
}
PyObject *live_dunder_array(PyObject *o, PyObject *args, PyObject *kw)
{
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO:__array__", names, &dtype, &copy))
        return NULL;
    PyObject *a = live_array(o);
    if (!a || dtype == Py_None)
        return a;
    PyObject *r = PyObject_CallMethod(a, "astype", "O", dtype);
    Py_DECREF(a);
    return r;
}

/* ---- a launch ---- */
/* Parameters keep their ids over all programs. */
static int declare(Trace *t, PyObject *names, const uint8_t *tags, int n)
{
    for (int i = 0; i < n; i++) {
        const char *text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i));
        eas_dtype dt = (eas_dtype)(tags[i] & TAG_DTYPE);
        if (!text)
            return 0;
        if (tags[i] & TAG_BUFFER)
            eas_builder_param_buffer(t->b, text, dt);
        else
            eas_builder_param_scalar(t->b, text, dt, (tags[i] & TAG_WEAK) != 0);
    }
    return trace_ok(t);
}
static int check_tptg(Trace *t, PyObject *tptg)
{
    if (!tptg || tptg == Py_None)
        return 1;
    int64_t threads = eas_live_threads(t->b);
    return tptg_fits(tptg, t->name, threads ? threads : 1, threads != 0);
}
static int run_programs(Trace *t, const live_launch *l)
{
    int more, first = 1;
    while ((more = eas_live_next(t->b)) == 1) {
        if (!l->body(l->kernel, t) || PyErr_CheckSignals() < 0)
            return 0;
        if (first && !check_tptg(t, l->tptg))
            return 0;
        first = 0;
    }
    if (more < 0)
        py_raise((eas_status)more);
    return more == 0;
}
PyObject *live_run(const live_launch *l)
{
    Trace *t = trace_new(l->name, l->flags);
    if (!t)
        return NULL;
    t->live = true;
    int ok = declare(t, l->names, l->tags, l->n);
    eas_status st = ok ? eas_live_begin(t->b, l->args, l->n, l->opts) : EAS_OK;
    if (st != EAS_OK) {
        py_raise(st);
        ok = 0;
    }
    ok = ok && run_programs(t, l) && !PyErr_Occurred();
    ctrl_clear(t);
    Py_DECREF(t);
    return ok ? Py_NewRef(Py_None) : NULL;
}
