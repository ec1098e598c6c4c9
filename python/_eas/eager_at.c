/* eager_at.c: x.at[key], and what x would be with other elements there: set, add, mul, min, max. */
#include "py.h"

typedef struct At {
    PyObject_HEAD PyObject *x, *key; /* key NULL: x.at itself */
} At;
static PyTypeObject *at_type;
static PyObject *at_new(PyObject *x, PyObject *keyobj)
{
    At *a = PyObject_New(At, at_type);
    if (a) {
        a->x = Py_NewRef(x);
        a->key = Py_XNewRef(keyobj);
    }
    return (PyObject *)a;
}
PyObject *eager_at(PyObject *o, void *c)
{
    (void)c;
    return at_new(o, NULL);
}
static void at_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    Py_DECREF(((At *)o)->x);
    Py_XDECREF(((At *)o)->key);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyObject *at_subscript(PyObject *o, PyObject *keyobj)
{
    if (((At *)o)->key)
        return py_fail(PyExc_TypeError, "x.at[key] takes one key");
    return at_new(((At *)o)->x, keyobj);
}
static PyObject *at_update(PyObject *o, PyObject *value, int how)
{
    At *a = (At *)o;
    if (!a->key)
        return py_fail(PyExc_TypeError, "a key is missing: x.at[key].set(value)");
    eas_node *n = index_updated(a->x, a->key, value, how);
    if (n && !index_record(n, a->x, value, false)) {
        eas_node_release(n);
        n = NULL;
    }
    PyObject *r = n ? eager_result(EAS_OK, n) : NULL;
    if (r && !index_note_way(r, Py_False))
        Py_CLEAR(r);
    return r;
}
static PyObject *at_set(PyObject *o, PyObject *v) { return at_update(o, v, INDEX_SET); }
static PyObject *at_add(PyObject *o, PyObject *v) { return at_update(o, v, INDEX_ADD); }
static PyObject *at_mul(PyObject *o, PyObject *v) { return at_update(o, v, INDEX_MUL); }
static PyObject *at_min(PyObject *o, PyObject *v) { return at_update(o, v, INDEX_MIN); }
static PyObject *at_max(PyObject *o, PyObject *v) { return at_update(o, v, INDEX_MAX); }
/* A number is negated in the tensor's dtype: less than nothing fits none without a sign. */
static PyObject *at_sub(PyObject *o, PyObject *v)
{
    bool plain = PyLong_Check(v) || PyFloat_Check(v);
    eas_node *x = plain ? index_operand(((At *)o)->x) : NULL, *typed = x ? eager_operand(v) : NULL;
    typed = typed ? index_cast(typed, eas_node_dtype(x)) : NULL;
    eas_node_release(x);
    PyObject *like = !plain ? Py_NewRef(v)
                   : typed  ? eager_wrap(typed)
                            : NULL,
             *n = like ? PyNumber_Negative(like) : NULL, *r = n ? at_update(o, n, INDEX_ADD) : NULL;
    Py_XDECREF(like);
    Py_XDECREF(n);
    return r;
}
static PyObject *at_get(PyObject *o, PyObject *unused)
{
    (void)unused;
    return ((At *)o)->key ? eager_subscript(((At *)o)->x, ((At *)o)->key)
                          : py_fail(PyExc_TypeError, "a key is missing: x.at[key].get()");
}
static PyMethodDef at_methods[] = {
    {"set", at_set, METH_O, "set(v)\n--\n\nx with v there."},
    {"add", at_add, METH_O, "add(v)\n--\n\nx with v added there; elements that are named twice get both."},
    {"subtract", at_sub, METH_O, "subtract(v)\n--\n\nx with v subtracted there."},
    {"sub", at_sub, METH_O, "sub(v)\n--\n\nx with v subtracted there."},
    {"mul", at_mul, METH_O, "mul(v)\n--\n\nx multiplied by v there."},
    {"multiply", at_mul, METH_O, "multiply(v)\n--\n\nx multiplied by v there."},
    {"min", at_min, METH_O, "min(v)\n--\n\nThe smaller of x and v there."},
    {"max", at_max, METH_O, "max(v)\n--\n\nThe larger of x and v there."},
    {"get", at_get, METH_NOARGS, "get()\n--\n\nx[key]."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot at_slots[] = {{Py_tp_doc, "x.at[key]: what x would be with other elements there."},
                                 {Py_tp_dealloc, at_dealloc},
                                 {Py_tp_methods, at_methods},
                                 {Py_mp_subscript, at_subscript},
                                 {0, NULL}};
static PyType_Spec at_spec = {"eager.At", sizeof(At), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, at_slots};
int eager_index_init(PyObject *module)
{
    (void)module;
    return (at_type = py_type(module, &at_spec, NULL)) ? 0 : -1;
}
