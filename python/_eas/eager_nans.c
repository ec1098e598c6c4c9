/* eager_nans.c: eager.debug_nans: results are looked at for NaNs and infinities as soon as they are recorded,
 * and the first operation that made one is named. */
#include "py.h"

int eager_nans;

static int has_bad(PyObject *array, bool infs)
{
    PyObject *np = PyImport_ImportModule("numpy"), *bad = NULL, *any = NULL;
    if (np && infs) {
        PyObject *ok = PyObject_CallMethod(np, "isfinite", "O", array);
        bad = ok ? PyNumber_Invert(ok) : NULL;
        Py_XDECREF(ok);
    } else if (np)
        bad = PyObject_CallMethod(np, "isnan", "O", array);
    any = bad ? PyObject_CallMethod(np, "any", "O", bad) : NULL;
    int yes = any ? PyObject_IsTrue(any) : -1;
    Py_XDECREF(any);
    Py_XDECREF(bad);
    Py_XDECREF(np);
    return yes;
}
/* 1: it has none; 0: it has one, or (with an exception) nobody knows. */
static int is_clean(eas_node *n)
{
    static _Thread_local bool inside;
    if (inside || eager_tracing || eas_node_is_symbolic(n) || eas_dtype_kind(eas_node_dtype(n)) != 'f')
        return 1;
    inside = true;
    PyObject *a = eager_readable(n);
    int bad = a ? has_bad(a, eager_nans == 2) : -1;
    inside = false;
    Py_XDECREF(a);
    return bad == 0;
}
static const char *made_by(eas_node *n)
{
    PyObject *op = op_object(eas_node_op(n));
    return op ? eas_tensor_op_at(eas_node_op(n)).name : "linalg or eager.fft";
}
static const char *what_is_bad(void) { return eager_nans == 2 ? "a NaN or an infinity" : "a NaN"; }
int eager_no_nan(eas_node *n)
{
    if (is_clean(n))
        return 1;
    if (!PyErr_Occurred())
        py_fail_at(PyExc_FloatingPointError, "the result of eager.%s has %s", made_by(n), what_is_bad());
    return 0;
}
typedef struct below { /* nodes that were looked at or are to be */
    eas_node **at;
    int n, room;
} below;
static int below_add(below *b, eas_node *n)
{
    if (b->n == b->room) {
        int room = b->room ? 2 * b->room : 64;
        eas_node **at = PyMem_Realloc(b->at, sizeof *at * (size_t)room);
        if (!at)
            return PyErr_NoMemory(), 0;
        b->at = at;
        b->room = room;
    }
    b->at[b->n++] = eas_node_retain(n);
    return 1;
}
static int below_order(const void *x, const void *y)
{
    uint32_t a = eas_node_depth(*(eas_node *const *)x), b = eas_node_depth(*(eas_node *const *)y);
    return a < b ? -1 : a > b;
}
int eager_no_nan_below(eas_node *n)
{
    below b = {0};
    int ok = below_add(&b, n);
    PyObject *seen = PySet_New(NULL);
    for (int i = 0; ok && seen && i < b.n; i++) {
        eas_node *const *in;
        int nin = eas_node_inputs(b.at[i], &in);
        for (int k = 0; ok && k < nin; k++) {
            PyObject *key = PyLong_FromVoidPtr(in[k]);
            int had = key ? PySet_Contains(seen, key) : -1;
            ok = had == 1 || (had == 0 && PySet_Add(seen, key) == 0 && below_add(&b, in[k]));
            Py_XDECREF(key);
        }
    }
    if (ok) /* the depth of a node is above that of its inputs */
        qsort(b.at, (size_t)b.n, sizeof *b.at, below_order);
    for (int i = 0; ok && i < b.n; i++) {
        char file[512];
        int line;
        if (is_clean(b.at[i]))
            continue;
        ok = 0;
        if (PyErr_Occurred())
            break;
        if (site_find(eas_node_site(b.at[i]), file, sizeof file, &line))
            PyErr_Format(PyExc_FloatingPointError,
                         "%s:%d: in the derivative of what is computed here, the result of eager.%s has %s",
                         file, line, made_by(b.at[i]), what_is_bad());
        else
            PyErr_Format(PyExc_FloatingPointError, "in a derivative, the result of eager.%s has %s",
                         made_by(b.at[i]), what_is_bad());
    }
    for (int i = 0; i < b.n; i++)
        eas_node_release(b.at[i]);
    PyMem_Free(b.at);
    Py_XDECREF(seen);
    return ok;
}
