/* guard.c: has what a kernel read from around it while it was traced changed? A guard is a row (how, what,
 * key, was, label) of eas._guards, which finds them. A launch compares identities, and versions of dicts and
 * classes: two machine words each as long as nothing was written there. Where something was, values are
 * compared, and the new version is kept if they are the same. */
#include "py.h"

#include <string.h>

enum how { CELL, DICT, TABLE, OBJECT, TYPE, LIST, FUNCTION, ARRAY, ATTRIBUTE, EQUAL, SEQUENCE };
typedef struct Guards {
    PyObject_VAR_HEAD PyObject *rows;
    uint64_t version[];
} Guards;

/* Unique among all dicts at all times; 0: there is no such thing. */
static inline uint64_t dict_version(PyObject *d)
{
#if PY_VERSION_HEX < 0x030C0000
    return ((PyDictObject *)d)->ma_version_tag;
#else
    (void)d;
    return 0;
#endif
}
static inline uint64_t type_version(PyObject *t) { return ((PyTypeObject *)t)->tp_version_tag; }

/* ---- values ---- */
/* Is the kernel traced alike with either? Plain numbers and strings by value, the rest by identity. */
static bool same(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    if (!a || !b || Py_TYPE(a) != Py_TYPE(b))
        return false;
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return !memcmp(&x, &y, sizeof x);
    }
    if (PyTuple_CheckExact(a)) {
        Py_ssize_t n = PyTuple_GET_SIZE(a);
        for (Py_ssize_t i = 0; n == PyTuple_GET_SIZE(b) && i < n; i++)
            if (!same(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)))
                return false;
        return n == PyTuple_GET_SIZE(b);
    }
    return (PyLong_CheckExact(a) || PyUnicode_CheckExact(a) || PyBytes_CheckExact(a)) &&
           PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}
static PyObject *missing; /* eas._guards.MISSING */
static bool is_now(PyObject *was, PyObject *now) { return was == missing ? !now : same(was, now); }

static bool dict_holds(PyObject *d, PyObject *keys, PyObject *values)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++)
        if (!is_now(PyTuple_GET_ITEM(values, i), PyDict_GetItemWithError(d, PyTuple_GET_ITEM(keys, i))))
            return false;
    return true;
}
static bool table_holds(PyObject *d, PyObject *was)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (PyDict_GET_SIZE(d) != PyDict_GET_SIZE(was))
        return false;
    while (PyDict_Next(was, &at, &key, &value))
        if (!same(value, PyDict_GetItemWithError(d, key)))
            return false;
    return true;
}
static bool list_holds(PyObject *list, PyObject *was)
{
    Py_ssize_t n = PyTuple_GET_SIZE(was);
    if (PyList_GET_SIZE(list) != n)
        return false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!same(PyTuple_GET_ITEM(was, i), PyList_GET_ITEM(list, i)))
            return false;
    return true;
}
static bool sequence_holds(PyObject *o, PyObject *was)
{
    PyObject *now = PySequence_Tuple(o);
    bool r = now && same(now, was);
    Py_XDECREF(now);
    return r;
}
static bool function_holds(PyObject *f, PyObject *was)
{
    PyFunctionObject *fn = (PyFunctionObject *)f;
    PyObject *now[3] = {fn->func_code, fn->func_defaults, fn->func_kwdefaults};
    for (int i = 0; i < 3; i++)
        if (PyTuple_GET_ITEM(was, i) != (now[i] ? now[i] : Py_None))
            return false;
    return true;
}
static bool array_holds(PyObject *o, PyObject *was)
{
    PyArrayObject *a = (PyArrayObject *)o, *b = (PyArrayObject *)was;
    if (PyArray_NDIM(a) != PyArray_NDIM(b) || PyArray_TYPE(a) != PyArray_TYPE(b) ||
        memcmp(PyArray_DIMS(a), PyArray_DIMS(b), (size_t)PyArray_NDIM(a) * sizeof *PyArray_DIMS(a)))
        return false;
    if (PyArray_IS_C_CONTIGUOUS(a) && PyArray_IS_C_CONTIGUOUS(b))
        return !memcmp(PyArray_DATA(a), PyArray_DATA(b), (size_t)PyArray_NBYTES(a));
    PyObject *now = PyArray_ToString(a, NPY_CORDER), *then = PyArray_ToString(b, NPY_CORDER);
    bool r = now && then && PyObject_RichCompareBool(now, then, Py_EQ) == 1;
    Py_XDECREF(now);
    Py_XDECREF(then);
    return r;
}
/* An attribute, or a context variable's value. */
static bool attribute_holds(PyObject *o, PyObject *key, PyObject *was)
{
    PyObject *now = key == Py_None ? PyObject_CallMethod(o, "get", "O", missing) : PyObject_GetAttr(o, key);
    if (!now)
        PyErr_Clear();
    bool r = is_now(was, now == missing ? NULL : now);
    Py_XDECREF(now);
    return r;
}
static bool object_holds(PyObject *o, PyObject *key, PyObject *was, uint64_t *version)
{
    PyObject *d = PyObject_GenericGetDict(o, NULL);
    if (!d)
        return PyErr_Clear(), false;
    uint64_t v = dict_version(d);
    bool r = (v && v == *version) || is_now(was, PyDict_GetItemWithError(d, key));
    *version = v;
    Py_DECREF(d);
    return r;
}

/* ---- guards ---- */
static bool row_holds(PyObject *row, uint64_t *version)
{
    PyObject *what = PyTuple_GET_ITEM(row, 1), *key = PyTuple_GET_ITEM(row, 2),
             *was = PyTuple_GET_ITEM(row, 3);
    uint64_t v;
    bool r;
    switch (PyLong_AS_LONG(PyTuple_GET_ITEM(row, 0))) {
    case CELL: return is_now(was, PyCell_GET(what));
    case DICT:
    case TABLE:
        if ((v = dict_version(what)) && v == *version)
            return true;
        r = key == Py_None ? table_holds(what, was) : dict_holds(what, key, was);
        *version = v;
        return r;
    case OBJECT: return object_holds(what, key, was, version);
    case TYPE:
        if ((v = type_version(what)) && v == *version)
            return true;
        r = is_now(was, _PyType_Lookup((PyTypeObject *)what, key)); /* which gives it a version, too */
        *version = type_version(what);
        return r;
    case LIST: return list_holds(what, was);
    case FUNCTION: return function_holds(what, was);
    case ARRAY: return array_holds(what, was);
    case ATTRIBUTE: return attribute_holds(what, key, was);
    case SEQUENCE: return sequence_holds(what, was);
    default: r = PyObject_RichCompareBool(what, was, Py_EQ) == 1; return PyErr_Clear(), r;
    }
}
/* The row that holds no longer, or -1. */
static Py_ssize_t broken(Guards *g)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(g->rows); i++)
        if (!row_holds(PyTuple_GET_ITEM(g->rows, i), &g->version[i])) {
            g->version[i] = 0;
            return i;
        }
    return -1;
}
bool guards_hold(PyObject *guards)
{
    bool r = broken((Guards *)guards) < 0;
    PyErr_Clear();
    return r;
}
PyObject *guards_reason(PyObject *guards)
{
    Py_ssize_t i = broken((Guards *)guards);
    PyErr_Clear();
    if (i < 0)
        return PyUnicode_FromString("what it captured changed");
    PyObject *m = PyImport_ImportModule("eas._guards"),
             *r = m ? PyObject_CallMethod(m, "reason", "(O)", PyTuple_GET_ITEM(((Guards *)guards)->rows, i))
                    : NULL;
    Py_XDECREF(m);
    return r;
}

/* ---- finding them ---- */
static bool is_library(PyObject *v)
{
    const char *name = PyModule_Check(v) ? PyModule_GetName(v) : NULL;
    PyErr_Clear();
    return name && (!strncmp(name, "eas", 3) || !strcmp(name, "numpy") || !strcmp(name, "math")) &&
           (!name[3] || name[3] == '.' || name[0] != 'e');
}
/* Does the code name anything of its globals that is not one of our modules? */
static int names_globals(PyObject *code, PyObject *globals)
{
    PyCodeObject *c = (PyCodeObject *)code;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(c->co_names); i++) {
        PyObject *v = PyDict_GetItemWithError(globals, PyTuple_GET_ITEM(c->co_names, i));
        if (v && !is_library(v))
            return 1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(c->co_consts); i++)
        if (PyCode_Check(PyTuple_GET_ITEM(c->co_consts, i)) &&
            names_globals(PyTuple_GET_ITEM(c->co_consts, i), globals))
            return 1;
    return 0;
}
static int captures(PyObject *fn)
{
    PyFunctionObject *f = (PyFunctionObject *)fn;
    for (Py_ssize_t i = 0; f->func_closure && i < PyTuple_GET_SIZE(f->func_closure); i++) {
        PyObject *v = PyCell_GET(PyTuple_GET_ITEM(f->func_closure, i));
        if (v && !is_library(v))
            return 1;
    }
    return names_globals(f->func_code, f->func_globals);
}
static PyObject *guards_new(PyObject *rows)
{
    Guards *g = PyObject_GC_NewVar(Guards, G.guards, PyTuple_GET_SIZE(rows));
    if (!g)
        return NULL;
    memset(g->version, 0, (size_t)PyTuple_GET_SIZE(rows) * sizeof *g->version);
    g->rows = Py_NewRef(rows);
    PyObject_GC_Track(g);
    broken(g); /* the versions as they are now */
    PyErr_Clear();
    return (PyObject *)g;
}
static PyObject *guards_module(void)
{
    PyObject *m = PyImport_ImportModule("eas._guards");
    if (m && !missing && !(missing = PyObject_GetAttrString(m, "MISSING")))
        Py_CLEAR(m);
    return m;
}
/* Of rows (taken), or of none: 1; 0 with an exception. */
static int take_rows(PyObject *rows, PyObject **out)
{
    if (rows && rows != Py_None)
        *out = guards_new(rows);
    int ok = rows && (rows == Py_None || *out);
    Py_XDECREF(rows);
    return ok;
}
int guards_find(PyObject *fn, PyObject *metas, PyObject *self, PyObject **out)
{
    bool any = self || captures(fn);
    *out = NULL;
    for (Py_ssize_t i = 0; !any && i < PyTuple_GET_SIZE(metas); i++)
        any =
            PyFunction_Check(PyTuple_GET_ITEM(metas, i)) || Py_IS_TYPE(PyTuple_GET_ITEM(metas, i), G.kernel);
    if (!any)
        return 1;
    PyObject *m = guards_module();
    int ok = m && take_rows(PyObject_CallMethod(m, "captured", "OOO", fn, metas, self ? self : Py_None), out);
    Py_XDECREF(m);
    return ok;
}

/* ---- what a traced body changes ---- */
/* May it hold something that a body changes in place? */
static bool is_state(PyObject *v, int depth)
{
    if (value_check(v) || Py_IS_TYPE(v, G.buffer) || Py_IS_TYPE(v, G.dtype) || Py_IS_TYPE(v, G.kernel) ||
        v == Py_None || PyLong_Check(v) || PyFloat_Check(v) || PyUnicode_Check(v) || PyBytes_Check(v) ||
        PyModule_Check(v) || PyType_Check(v) || PyCFunction_Check(v) || PyArray_IsScalar(v, Generic))
        return false;
    if (PyFunction_Check(v))
        return captures(v);
    if (PyTuple_CheckExact(v) && depth < 4) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); i++)
            if (is_state(PyTuple_GET_ITEM(v, i), depth + 1))
                return true;
        return false;
    }
    return true;
}
int guards_state(PyObject *code, PyObject *globals, PyObject *locals, PyObject **out)
{
    PyObject *name, *v;
    Py_ssize_t at = 0;
    bool any = names_globals(code, globals);
    *out = NULL;
    while (!any && PyDict_Next(locals, &at, &name, &v))
        any = is_state(v, 0);
    if (!any)
        return 1;
    PyObject *m = guards_module();
    int ok = m && take_rows(PyObject_CallMethod(m, "state", "OOO", code, globals, locals), out);
    Py_XDECREF(m);
    return ok;
}
/* (what, was, is) of what a body changed and should not have, or None; NULL with an exception. */
PyObject *guards_lost(PyObject *guards, bool loop, int scope)
{
    if (guards_hold(guards))
        Py_RETURN_NONE;
    PyObject *m = guards_module(), *r = m ? PyObject_CallMethod(m, "lost", "OOi", ((Guards *)guards)->rows,
                                                                loop ? Py_True : Py_False, scope)
                                          : NULL;
    Py_XDECREF(m);
    return r;
}

static int guards_traverse(PyObject *o, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(((Guards *)o)->rows);
    return 0;
}
static int guards_clear(PyObject *o)
{
    PyObject *none = PyTuple_New(0);
    Py_XSETREF(((Guards *)o)->rows, none);
    return 0;
}
static void guards_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    Py_CLEAR(((Guards *)o)->rows);
    PyObject_GC_Del(o);
    Py_DECREF(type);
}
static PyType_Slot guards_slots[] = {{Py_tp_dealloc, guards_dealloc},
                                     {Py_tp_traverse, guards_traverse},
                                     {Py_tp_clear, guards_clear},
                                     {0, NULL}};
PyType_Spec Guards_spec = {"eas._eas.Guards", sizeof(Guards), sizeof(uint64_t),
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           guards_slots};
