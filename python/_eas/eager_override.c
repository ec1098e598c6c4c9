/* eager_override.c: operations on what is no tensor of the library's own but acts like one: complex numbers,
 * and dtypes that are only stored (python/eager/_wrapped.py). An operation that is given one of those calls
 * the handler with itself and its arguments. */
#include "py.h"

#include <string.h>

static PyObject *base; /* the class of such tensors and dtypes */
static PyObject *handler; /* handler(operation, args, kwargs) */

static bool is_name(PyObject *o)
{
    static const char *const names[] = {"complex", "float8",        "int4",
                                        "uint4",   "torch.complex", "torch.float8"};
    const char *text = PyUnicode_AsUTF8(o);
    for (size_t i = 0; text && i < sizeof names / sizeof *names; i++)
        if (!strncmp(text, names[i], strlen(names[i])))
            return true;
    PyErr_Clear();
    return false;
}
/* Arrays of floats in 8 bits and integers in 4, which ml_dtypes brings. */
static bool is_small(PyArray_Descr *d)
{
    return d->type_num >= NPY_NTYPES_LEGACY &&
           (strstr(d->typeobj->tp_name, "float8_e") || strstr(d->typeobj->tp_name, "int4"));
}
static bool is_torch_name(PyObject *o)
{
    PyObject *text = PyObject_Str(o);
    bool yes = text && is_name(text);
    Py_XDECREF(text);
    PyErr_Clear();
    return yes;
}
bool override_wanted(PyObject *o)
{
    if (!handler || Py_IS_TYPE(o, G.eager) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) || o == Py_None ||
        PyBool_Check(o))
        return false;
    if (PyObject_TypeCheck(o, (PyTypeObject *)base) || PyComplex_Check(o) || o == (PyObject *)&PyComplex_Type)
        return true;
    if (PyUnicode_Check(o))
        return is_name(o);
    if (PyArray_Check(o))
        return PyTypeNum_ISCOMPLEX(PyArray_TYPE((PyArrayObject *)o)) ||
               is_small(PyArray_DESCR((PyArrayObject *)o));
    if (PyArray_DescrCheck(o))
        return PyTypeNum_ISCOMPLEX(((PyArray_Descr *)o)->type_num) || is_small((PyArray_Descr *)o);
    if (PyType_Check(o))
        return PyType_IsSubtype((PyTypeObject *)o, &PyComplexFloatingArrType_Type) ||
               strstr(((PyTypeObject *)o)->tp_name, "float8_e") ||
               strstr(((PyTypeObject *)o)->tp_name, "ml_dtypes.int4");
    if (PyArray_IsScalar(o, ComplexFloating))
        return true;
    if (!PyList_Check(o) && !PyTuple_Check(o))
        return !strcmp(Py_TYPE(o)->tp_name, "torch.dtype") && is_torch_name(o);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
        if (override_wanted(PySequence_Fast_ITEMS(o)[i]))
            return true;
    return false;
}
PyObject *override_call(PyObject *op, PyObject *args, PyObject *kwargs)
{
    PyObject *none = kwargs ? NULL : PyDict_New(), *r = NULL;
    if (args && (kwargs || none))
        r = PyObject_CallFunctionObjArgs(handler, op, args, kwargs ? kwargs : none, NULL);
    Py_XDECREF(none);
    return r;
}
PyObject *override_vector(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *all = PyTuple_New(nargs), *kw = PyDict_New(), *r = NULL;
    int ok = all && kw;
    for (Py_ssize_t i = 0; ok && i < nargs; i++)
        PyTuple_SET_ITEM(all, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; ok && kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
        ok = PyDict_SetItem(kw, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) == 0;
    if (ok)
        r = override_call(op, all, kw);
    Py_XDECREF(all);
    Py_XDECREF(kw);
    return r;
}
static PyObject *set_override(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *cls, *fn;
    if (!PyArg_ParseTuple(args, "O!O:set_override", &PyType_Type, &cls, &fn))
        return NULL;
    Py_XSETREF(base, Py_NewRef(cls));
    Py_XSETREF(handler, Py_NewRef(fn));
    Py_RETURN_NONE;
}
static PyMethodDef functions[] = {
    {"set_override", set_override, METH_VARARGS,
     "set_override(cls, handler): operations on instances of cls, and on complex numbers, call handler(op, args, kwargs)"},
    {NULL, NULL, 0, NULL}};
int eager_override_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
