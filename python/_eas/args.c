/* args.c: the arguments of mk's functions: positions and names, and numbers that must be known while tracing.
 */
#include "py.h"

/* args by position and name into out[]; absent ones are NULL. */
int mk_parse(const sig *s, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **out)
{
    for (int i = 0; i < s->n; i++)
        out[i] = i < nargs ? args[i] : NULL;
    if (nargs > s->n)
        return py_fail_at(PyExc_TypeError, "mk.%s takes at most %d arguments, got %zd", s->fn, s->n, nargs),
               0;
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k);
        int i = 0;
        while (i < s->n && PyUnicode_CompareWithASCIIString(name, s->names[i]))
            i++;
        if (i == s->n)
            return py_fail_at(PyExc_TypeError, "mk.%s has no argument '%U'", s->fn, name), 0;
        if (out[i])
            return py_fail_at(PyExc_TypeError, "mk.%s: argument '%s' is given twice", s->fn, s->names[i]), 0;
        out[i] = args[nargs + k];
    }
    for (int i = 0; i < s->required; i++)
        if (!out[i])
            return py_fail_at(PyExc_TypeError, "mk.%s: argument '%s' is missing", s->fn, s->names[i]), 0;
    return 1;
}
/* An integer that must be known while tracing. */
int static_int(PyObject *o, const char *fn, const char *arg, int64_t *out)
{
    if (value_check(o))
        return py_fail_at(
                   PyExc_TypeError,
                   "mk.%s: %s must be known while the kernel is traced: make the parameter eas.constexpr", fn,
                   arg),
               0;
    PyObject *n = PyIndex_Check(o) ? PyNumber_Index(o) : NULL;
    if (!n)
        return PyErr_Clear(),
               py_fail_at(PyExc_TypeError, "mk.%s: %s must be an int, got %s %R", fn, arg,
                          Py_TYPE(o)->tp_name, o),
               0;
    int over;
    *out = PyLong_AsLongLongAndOverflow(n, &over);
    Py_DECREF(n);
    if (over)
        py_fail_at(PyExc_OverflowError, "mk.%s: %s does not fit 64 bits", fn, arg);
    return !over;
}
int shape_arg(PyObject *o, const char *fn, int64_t shape[4], int *rank)
{
    if (!PyTuple_Check(o) && !PyList_Check(o))
        return *rank = 1, static_int(o, fn, "shape", &shape[0]);
    Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    if (n > 4)
        return py_fail_at(PyExc_ValueError, "mk.%s: a block may have at most 4 dims, got %zd", fn, n), 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!static_int(PySequence_Fast_GET_ITEM(o, i), fn, "shape", &shape[i]))
            return 0;
    *rank = (int)n;
    return 1;
}
