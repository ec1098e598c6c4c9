/* profile.c: eas_profile as a capsule; eas._profile makes of it what people see. */
#include "py.h"

static const char name[] = "eas.profile";

static void drop(PyObject *capsule) { eas_profile_free(PyCapsule_GetPointer(capsule, name)); }

static PyObject *start(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    eas_profile *p = NULL;
    eas_status st = eas_profile_start(&p);
    return st == EAS_OK ? PyCapsule_New(p, name, drop) : py_raise(st);
}
static PyObject *stop(PyObject *m, PyObject *capsule)
{
    (void)m;
    eas_profile *p = PyCapsule_GetPointer(capsule, name);
    if (!p)
        return NULL;
    eas_profile_stop(p);
    return PyFloat_FromDouble(eas_profile_seconds(p));
}
static PyObject *row_tuple(eas_profile_row r)
{
    return Py_BuildValue("(sssiKdddKdss)", r.kernel, r.device, r.file, r.line, (unsigned long long)r.calls,
                         r.seconds, r.bytes, r.flops, (unsigned long long)r.compiles, r.compile_seconds,
                         r.config, r.types);
}
static PyObject *rows(PyObject *m, PyObject *capsule)
{
    (void)m;
    eas_profile *p = PyCapsule_GetPointer(capsule, name);
    PyObject *list = p ? PyList_New(0) : NULL;
    for (int i = 0; list && i < eas_profile_count(p); i++) {
        PyObject *t = row_tuple(eas_profile_at(p, i));
        if (!t || PyList_Append(list, t) < 0)
            Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}
static PyObject *trace(PyObject *m, PyObject *capsule)
{
    (void)m;
    char *text = NULL;
    eas_profile *p = PyCapsule_GetPointer(capsule, name);
    if (!p)
        return NULL;
    eas_status st = eas_profile_trace(p, &text);
    return py_take_text(st, text);
}
static PyMethodDef functions[] = {
    {"profile_start", start, METH_NOARGS, "profile_start(): a profile, open"},
    {"profile_stop", stop, METH_O, "profile_stop(p): closes it; seconds it was open"},
    {"profile_rows", rows, METH_O,
     "profile_rows(p): (kernel, device, file, line, calls, seconds, bytes, flops, compiles, compile seconds, config, types) of each"},
    {"profile_trace", trace, METH_O, "profile_trace(p): JSON text"},
    {NULL, NULL, 0, NULL},
};
int profile_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
