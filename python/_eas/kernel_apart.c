/* kernel_apart.c: arguments that come apart (eas._struct): dataclasses, tuples and arrays with strides become
 * arguments of an inner kernel. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* ---- arguments that come apart ---- */
/* Of run-time arguments: the inner kernel (borrowed) and the parts (a new list). */
static Kernel *expand(Kernel *k, PyObject *const *objs, bool all_arrays, PyObject **parts)
{
    PyObject *m = PyImport_ImportModule("eas._struct"), *t = m ? PyTuple_New(k->nrt) : NULL,
             *flags = t ? PyBytes_FromStringAndSize(NULL, k->nrt) : NULL;
    Kernel *inner = NULL;
    if (!k->asked)
        k->asked = PyMem_Calloc((size_t)k->nrt + 1, 1);
    for (int i = 0; flags && i < k->nrt; i++) {
        PyTuple_SET_ITEM(t, i, Py_NewRef(objs[i]));
        PyBytes_AS_STRING(flags)[i] = (char)(all_arrays ? 3 : k->arrays ? k->arrays[i] : 0);
    }
    PyObject *r = flags ? PyObject_CallMethod(m, "expand", "OOO", k->rt_names, t, flags) : NULL;
    if (r && (k->inners || (k->inners = PyDict_New()))) {
        PyObject *key = PyTuple_GET_ITEM(r, 0);
        inner = (Kernel *)PyDict_GetItemWithError(k->inners, key);
        if (!inner && !PyErr_Occurred()) {
            PyObject *made = kernel_inner(k, key, PyTuple_GET_ITEM(r, 1));
            if (made && PyDict_SetItem(k->inners, key, made) == 0)
                inner = (Kernel *)made;
            Py_XDECREF(made);
        }
        *parts = Py_NewRef(PyTuple_GET_ITEM(r, 2));
        Py_XSETREF(k->recent, (Kernel *)Py_XNewRef(k->asked ? (PyObject *)inner : NULL));
        if (k->recent)
            memcpy(k->asked, PyBytes_AS_STRING(flags), (size_t)k->nrt);
    }
    Py_XDECREF(r);
    Py_XDECREF(flags);
    Py_XDECREF(t);
    Py_XDECREF(m);
    return inner;
}
/* Names of the options that calls of this shape give: a tuple for the inner kernel's. */
static PyObject *option_tuple(Shape *s)
{
    PyObject *names = s->options ? NULL : PyList_New(0);
    for (int i = 0; names && i < NOPTIONS; i++) {
        PyObject *name = s->option[i] >= 0 ? PyUnicode_InternFromString(kernel_option_names[i]) : NULL;
        if (s->option[i] >= 0 && (!name || PyList_Append(names, name) < 0))
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    if (names)
        s->options = PyList_AsTuple(names);
    Py_XDECREF(names);
    return s->options;
}
/* Calls the inner kernel with n parts, then the meta values, then the options; argv has room for all. */
static PyObject *call_inner(Kernel *k, Kernel *inner, Shape *s, PyObject *const *args, PyObject *const *objs,
                            PyObject **argv, int n, method *f)
{
    PyObject *kw = s->has_options ? option_tuple(s) : NULL;
    if (s->has_options && !kw)
        return NULL;
    for (int i = 0; i < k->nmeta; i++)
        argv[n++] = objs[k->nrt + i];
    Py_ssize_t npos = n;
    for (int i = 0; i < NOPTIONS; i++)
        if (s->option[i] >= 0)
            argv[n++] = args[s->option[i]];
    return f((PyObject *)inner, argv, npos, kw);
}
/* The same call of the inner kernel. */
static PyObject *forward_once(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                              bool all_arrays, method *f)
{
    bool owned;
    PyObject *objs[PY_MAX_PARAMS], *argv[PY_MAX_PARAMS + NOPTIONS], *parts = NULL, *r = NULL;
    Shape *s = k->last_shape;
    if (s && s->nargs == nargs && s->kwnames == kwnames)
        owned = false;
    else if (!(s = kernel_find_shape(k, nargs, kwnames, &owned)))
        return NULL;
    for (int i = 0; i < k->nparams; i++)
        objs[i] = s->src[i] >= 0 ? args[s->src[i]] : kernel_default_of(k, i);
    Kernel *inner = expand(k, objs, all_arrays, &parts);
    if (inner) {
        int n = (int)PyList_GET_SIZE(parts); /* as many as its parameters: not too many */
        Py_INCREF(inner);
        for (int i = 0; i < n; i++)
            argv[i] = PyList_GET_ITEM(parts, i);
        r = call_inner(k, inner, s, args, objs, argv, n, f);
        Py_DECREF(inner);
    }
    Py_XDECREF(parts);
    if (owned)
        kernel_shape_free(s);
    return r;
}
/* A launch that failed leaves the kernel as it was. If it does not index the array, what binding had to say
 * holds. */
static void not_by_indices(Kernel *k)
{
    PyObject *type, *value, *tb, *why = k->why, *text = NULL;
    PyErr_Fetch(&type, &value, &tb);
    PyErr_NormalizeException(&type, &value, &tb);
    k->why = NULL;
    k->expands = false;
    PyMem_Free(k->arrays);
    k->arrays = NULL;
    if (PyErr_GivenExceptionMatches(type, PyExc_ValueError) && value && !(text = PyObject_Str(value)))
        PyErr_Clear();
    if (!text || !PyUnicode_Compare(text, why)) {
        PyErr_Restore(type, value, tb);
    } else {
        PyErr_Format(PyExc_ValueError, "%U. %U", why, text);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(tb);
    }
    Py_XDECREF(text);
    Py_DECREF(why);
}
PyObject *kernel_forward(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                         bool all_arrays, method *f)
{
    enum { TRIES = 2 * PY_MAX_PARAMS };
    for (int i = 0; i < TRIES; i++) { /* again while tracing asks for more of the arrays */
        PyObject *r = forward_once(k, args, nargs, kwnames, all_arrays, f);
        if (!r && PyErr_Occurred() && k->why)
            not_by_indices(k);
        if (r)
            Py_CLEAR(k->why);
        if (r || PyErr_Occurred())
            return r;
    }
    return py_fail(PyExc_SystemError, "%U: what its arrays are asked for does not settle", k->name);
}
/* Is it an array whose only fault is that it is not contiguous? */
static bool has_strides(const Call *c)
{
    PyObject *o = c->objs[c->failed];
    if (PyArray_Check(o))
        return !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)o) && PyArray_ISALIGNED((PyArrayObject *)o) &&
               PyArray_ISNOTSWAPPED((PyArrayObject *)o);
    return tensor_check(o) ? !tensor_in_c_order((Tensor *)o) : c->bd.strided;
}
/* Of an inner kernel: was its argument asked for by its indices already, and could not be taken apart? */
static bool was_asked(Kernel *k, int failed)
{
    int i =
        k->of && k->of->arrays ? kernel_index_of(k->of->rt_names, PyTuple_GET_ITEM(k->rt_names, failed)) : -1;
    return i >= 0 && k->of->arrays[i];
}
/* Arguments that failed to bind: can they be taken apart? The exception is cleared then. */
bool kernel_comes_apart(Kernel *k, const Call *c)
{
    if (!PyErr_Occurred() || k->expands || c->failed < 0)
        return false;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject *o = c->objs[c->failed], *m = PyImport_ImportModule("eas._struct"),
             *r = m ? PyObject_CallMethod(m, "is_struct", "(O)", o) : NULL;
    bool yes = r == Py_True;
    if (!yes && PyErr_GivenExceptionMatches(type, PyExc_ValueError) && has_strides(c) &&
        !was_asked(k, c->failed)) {
        if (!k->arrays)
            k->arrays = PyMem_Calloc((size_t)k->nrt + 1, 1);
        if (k->arrays && !k->arrays[c->failed]) {
            k->arrays[c->failed] |= 2; /* strided: by indices */
            yes = true;
            Py_XSETREF(k->why, value ? PyObject_Str(value) : NULL);
        }
    }
    Py_XDECREF(m);
    Py_XDECREF(r);
    PyErr_Clear();
    if (!yes)
        return PyErr_Restore(type, value, tb), false;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(tb);
    return k->expands = true;
}
