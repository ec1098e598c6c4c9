/* hints.c: functions of mk that act while the kernel is traced and leave no instruction behind. */
#include "py.h"

FN(static_assert)
{
    PARSE({"static_assert", 2, 1, {"cond", "message"}});
    (void)t;
    int c = PyObject_IsTrue(in[0]);
    if (c < 0)
        return NULL;
    if (!c)
        return in[1] ? py_fail_at(PyExc_AssertionError, "%S", in[1])
                     : py_fail_at(PyExc_AssertionError, "mk.static_assert failed");
    Py_RETURN_NONE;
}
static PyObject *mk_static_print(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)self;
    PyObject *print =
        trace_enter("static_print") ? PyDict_GetItemString(PyEval_GetBuiltins(), "print") : NULL;
    return print ? PyObject_Vectorcall(print, args, (size_t)nargs, kwnames) : NULL;
}
static int divides(PyObject *x, PyObject *n)
{
    PyObject *rest = PyNumber_Remainder(x, n);
    int r = rest ? PyObject_Not(rest) : -1;
    Py_XDECREF(rest);
    return r;
}
/* What is checked: x is an integer, n a positive int; of a Python int also that it holds. */
FN(multiple_of)
{
    int64_t n;
    eas_value v;
    PARSE({"multiple_of", 2, 2, {"x", "n"}});
    if (!value_arg(t, in[0], s.fn, "x", &v) || !static_int(in[1], s.fn, "n", &n))
        return NULL;
    if (n < 1)
        return py_fail_at(PyExc_ValueError, "mk.multiple_of: n must be at least 1, got %lld", (long long)n);
    char kind = eas_dtype_kind(eas_value_dtype(t->b, v));
    if (kind != 'i' && kind != 'u')
        return py_fail_at(PyExc_TypeError, "mk.multiple_of: x must be an integer, got %s",
                          eas_dtype_name(eas_value_dtype(t->b, v)));
    int holds = value_check(in[0]) ? 1 : divides(in[0], in[1]);
    if (holds == 0)
        py_fail_at(PyExc_ValueError, "mk.multiple_of: %S is not a multiple of %lld", in[0], (long long)n);
    return holds == 1 ? Py_NewRef(in[0]) : NULL;
}
FN(assume)
{
    eas_value v;
    PARSE({"assume", 1, 1, {"cond"}});
    if (!value_arg(t, in[0], s.fn, "cond", &v))
        return NULL;
    if (eas_value_dtype(t->b, v) != EAS_BOOL)
        return py_fail_at(PyExc_TypeError, "mk.assume: cond must be a condition such as n > 0, got %s",
                          eas_dtype_name(eas_value_dtype(t->b, v)));
    if (!value_check(in[0]) && !PyObject_IsTrue(in[0]))
        return py_fail_at(PyExc_ValueError, "mk.assume: the condition is known to be false");
    return Py_NewRef(in[0]);
}

static PyMethodDef rows[] = {
    ROW(static_assert,
        "static_assert($module, cond, message='')\n--\n\nFails the trace at this line unless cond, which must be known, holds."),
    ROW(static_print,
        "static_print(*args, sep=' ', end='\\n', file=None, flush=False)\n\nprint, while the kernel is traced; a traced value shows its "
        "dtype and shape."),
    ROW(multiple_of,
        "multiple_of($module, x, n)\n--\n\nx, with the promise that n divides it. A hint: results never depend on it, and a compiler "
        "may ignore it."),
    ROW(assume,
        "assume($module, cond)\n--\n\ncond, with the promise that it holds. A hint: results never depend on it, and a compiler may ignore it."),
    {NULL, NULL, 0, NULL},
};
int hints_init(PyObject *mk) { return mk_add_all(mk, rows); }
