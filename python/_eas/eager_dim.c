/* eager_dim.c: sizes as Python sees them. A size that is known is an int (Dim), another is an expression in
 * symbols (SymbolicDim). A Shape is a tuple of them that also equals a list. */
#include "py.h"

typedef struct Symbolic {
    PyObject_HEAD eas_dim d;
} Symbolic;
static PyTypeObject *static_type, *symbolic_type, *shape_type;
enum { SMALL = 1025 };
static PyObject *small[SMALL];

/* ---- known sizes ---- */
static PyObject *static_repr(PyObject *o)
{
    PyObject *n = PyLong_Type.tp_repr(o), *r = n ? PyUnicode_FromFormat("Dim(%U)", n) : NULL;
    Py_XDECREF(n);
    return r;
}
static PyObject *static_str(PyObject *o) { return PyLong_Type.tp_repr(o); }
static PyObject *static_new(int64_t v)
{
    PyObject *n = PyLong_FromLongLong(v), *args = n ? PyTuple_Pack(1, n) : NULL,
             *r = args ? PyLong_Type.tp_new(static_type, args, NULL) : NULL;
    Py_XDECREF(n);
    Py_XDECREF(args);
    return r;
}
static PyType_Slot static_slots[] = {{Py_tp_doc, "A size that is known: an int."},
                                     {Py_tp_repr, static_repr},
                                     {Py_tp_str, static_str},
                                     {0, NULL}};
static PyType_Spec static_spec = {"eager.StaticDim", 0, 0, Py_TPFLAGS_DEFAULT, static_slots};

PyObject *dim_object(eas_dim d)
{
    if (d < 0) {
        Symbolic *s = PyObject_New(Symbolic, symbolic_type);
        if (s)
            s->d = d;
        return (PyObject *)s;
    }
    if (d >= SMALL)
        return static_new(d);
    if (!small[d])
        small[d] = static_new(d);
    return Py_XNewRef(small[d]);
}

bool dim_check(PyObject *o) { return Py_IS_TYPE(o, symbolic_type) || PyUnicode_Check(o) || PyIndex_Check(o); }

/* ---- from Python ---- */
static int symbol(PyObject *name, eas_dim *out)
{
    const char *text = PyUnicode_AsUTF8(name);
    eas_status st = text ? eas_dim_symbol(text, out) : EAS_OK;
    if (st != EAS_OK)
        py_raise(st);
    return text && st == EAS_OK;
}
int dim_of(PyObject *o, const char *what, eas_dim *out)
{
    if (Py_IS_TYPE(o, symbolic_type))
        return *out = ((Symbolic *)o)->d, 1;
    if (PyUnicode_Check(o))
        return symbol(o, out);
    if (!PyIndex_Check(o))
        return py_fail(PyExc_TypeError, "%s must be an int, a Dim or a str (a symbolic dim), got %s", what,
                       Py_TYPE(o)->tp_name),
               0;
    *out = PyNumber_AsSsize_t(o, PyExc_OverflowError);
    return !(*out == -1 && PyErr_Occurred());
}
int dims_of(PyObject *o, const char *what, eas_dim *out, int room)
{
    if (PyIndex_Check(o) || PyUnicode_Check(o) || Py_IS_TYPE(o, symbolic_type))
        return dim_of(o, what, out) ? 1 : -1;
    if (!PyTuple_Check(o) && !PyList_Check(o) && !PySequence_Check(o))
        return py_fail(PyExc_TypeError, "%s must be an int or a sequence of ints, got %s", what,
                       Py_TYPE(o)->tp_name),
             -1;
    PyObject *seq = PySequence_Fast(o, "a sequence of ints is wanted");
    if (!seq)
        return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(seq);
    if (n > room)
        py_fail(PyExc_ValueError, "%s has %zd items; there are at most %d", what, n, room);
    for (Py_ssize_t i = 0; n <= room && i < n; i++)
        if (PySequence_Fast_GET_ITEM(seq, i) == Py_None)
            out[i] = INT64_MIN;
        else if (!dim_of(PySequence_Fast_GET_ITEM(seq, i), what, &out[i]))
            n = room + 1;
    Py_DECREF(seq);
    return n > room ? -1 : (int)n;
}

/* ---- symbols ---- */
static PyObject *text_of(eas_dim d)
{
    char *text;
    eas_status st = eas_dim_text(d, &text);
    if (st != EAS_OK)
        return py_raise(st);
    PyObject *r = PyUnicode_FromString(text);
    eas_memory_free(text);
    return r;
}
static PyObject *symbolic_repr(PyObject *o)
{
    PyObject *t = text_of(((Symbolic *)o)->d), *r = t ? PyUnicode_FromFormat("Dim(%R)", t) : NULL;
    Py_XDECREF(t);
    return r;
}
static PyObject *symbolic_str(PyObject *o) { return text_of(((Symbolic *)o)->d); }
static PyObject *symbolic_name(PyObject *o, void *c)
{
    (void)c;
    return symbolic_str(o);
}
static PyObject *symbolic_make(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    (void)type;
    PyObject *name;
    eas_dim d;
    if ((kw && PyDict_GET_SIZE(kw)) || !PyArg_ParseTuple(args, "U:SymbolicDim", &name))
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "SymbolicDim(name)");
    return symbol(name, &d) ? dim_object(d) : NULL;
}
static PyObject *join(eas_dim_op op, PyObject *x, PyObject *y)
{
    eas_dim a, b, r;
    if ((!PyIndex_Check(x) && !Py_IS_TYPE(x, symbolic_type)) ||
        (!PyIndex_Check(y) && !Py_IS_TYPE(y, symbolic_type)))
        Py_RETURN_NOTIMPLEMENTED;
    if (!dim_of(x, "a size", &a) || !dim_of(y, "a size", &b))
        return NULL;
    eas_status st = eas_dim_apply(op, a, b, &r);
    return st == EAS_OK ? dim_object(r) : py_raise(st);
}
static PyObject *symbolic_add(PyObject *x, PyObject *y) { return join(EAS_DIM_ADD, x, y); }
static PyObject *symbolic_sub(PyObject *x, PyObject *y) { return join(EAS_DIM_SUB, x, y); }
static PyObject *symbolic_mul(PyObject *x, PyObject *y) { return join(EAS_DIM_MUL, x, y); }
static PyObject *symbolic_floordiv(PyObject *x, PyObject *y) { return join(EAS_DIM_FLOORDIV, x, y); }
static PyObject *symbolic_mod(PyObject *x, PyObject *y) { return join(EAS_DIM_MOD, x, y); }
static PyObject *no_value(PyObject *o)
{
    return py_fail_at(PyExc_TypeError,
                      "%R has no value yet: it gets one when a compiled function runs (dynamic_dims)", o);
}
/* While a function is traced the size is that of the call; the program is then for this size. */
static PyObject *symbolic_int(PyObject *o)
{
    int64_t v;
    return size_value(((Symbolic *)o)->d, &v) ? PyLong_FromLongLong(v) : no_value(o);
}
static PyObject *symbolic_float(PyObject *o)
{
    int64_t v;
    return size_value(((Symbolic *)o)->d, &v) ? PyFloat_FromDouble((double)v) : no_value(o);
}
static int symbolic_bool(PyObject *o)
{
    int yes = size_decide(Py_NE, ((Symbolic *)o)->d, 0);
    if (yes < 0)
        no_value(o);
    return yes;
}
/* Of sizes that are different expressions: as they are in the call that is traced; the program is for calls
 * with the same answer. */
static PyObject *decided(PyObject *x, PyObject *y, int op)
{
    eas_dim a, b;
    if ((!PyIndex_Check(y) && !Py_IS_TYPE(y, symbolic_type)) || eager_check(y))
        Py_RETURN_NOTIMPLEMENTED;
    if (!dim_of(x, "a size", &a) || !dim_of(y, "a size", &b))
        return NULL;
    int yes = a == b ? op == Py_LE || op == Py_GE || op == Py_EQ : size_decide(op, a, b);
    if (yes < 0 && (op == Py_EQ || op == Py_NE))
        yes = op == Py_NE;
    return yes < 0 ? no_value(x) : PyBool_FromLong(yes);
}
static PyObject *symbolic_richcompare(PyObject *x, PyObject *y, int op)
{
    if ((op != Py_EQ && op != Py_NE) || PyIndex_Check(y) || Py_IS_TYPE(y, symbolic_type))
        return decided(x, y, op);
    eas_dim a = ((Symbolic *)x)->d, b = 0;
    bool known = Py_IS_TYPE(y, symbolic_type) || PyUnicode_Check(y);
    if (known && !dim_of(y, "a size", &b)) {
        PyErr_Clear();
        known = false;
    }
    return PyBool_FromLong((known && a == b) == (op == Py_EQ));
}
static Py_hash_t symbolic_hash(PyObject *o)
{
    return (Py_hash_t)(((Symbolic *)o)->d == -1 ? -2 : ((Symbolic *)o)->d);
}
static PyObject *symbolic_value(PyObject *o, PyObject *env) /* {name: int} */
{
    const char *names[16];
    int64_t values[16], r;
    Py_ssize_t pos = 0;
    PyObject *k, *v;
    int n = 0;
    if (!PyDict_Check(env))
        return py_fail(PyExc_TypeError, "value({name: size})");
    while (PyDict_Next(env, &pos, &k, &v) && n < 16) {
        values[n] = PyNumber_AsSsize_t(v, PyExc_OverflowError);
        if (!PyUnicode_Check(k) || !(names[n++] = PyUnicode_AsUTF8(k)) || PyErr_Occurred())
            return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "value({name: size})");
    }
    eas_status st = eas_dim_value(((Symbolic *)o)->d, n, names, values, &r);
    return st == EAS_OK ? PyLong_FromLongLong(r) : py_raise(st);
}
static PyGetSetDef symbolic_getset[] = {
    {"name", symbolic_name, NULL, "its text, as 'batch' or '2*batch + 1'", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyMethodDef symbolic_methods[] = {
    {"value", symbolic_value, METH_O, "value({name: size}): the size where the symbols have these values"},
    {NULL, NULL, 0, NULL}};
static void plain_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyType_Slot symbolic_slots[] = {
    {Py_tp_doc,
     "A size that is an expression in symbols. Equal expressions are equal; + - * // % make new ones."},
    {Py_tp_new, symbolic_make},
    {Py_tp_dealloc, plain_dealloc},
    {Py_tp_repr, symbolic_repr},
    {Py_tp_str, symbolic_str},
    {Py_tp_richcompare, symbolic_richcompare},
    {Py_tp_hash, symbolic_hash},
    {Py_tp_getset, symbolic_getset},
    {Py_tp_methods, symbolic_methods},
    {Py_nb_add, symbolic_add},
    {Py_nb_subtract, symbolic_sub},
    {Py_nb_multiply, symbolic_mul},
    {Py_nb_floor_divide, symbolic_floordiv},
    {Py_nb_remainder, symbolic_mod},
    {Py_nb_int, symbolic_int},
    {Py_nb_float, symbolic_float},
    {Py_nb_bool, symbolic_bool},
    {0, NULL},
};
static PyType_Spec symbolic_spec = {"eager.SymbolicDim", sizeof(Symbolic), 0, Py_TPFLAGS_DEFAULT,
                                    symbolic_slots};

/* ---- shapes ---- */
PyObject *shape_object(int rank, const eas_dim *dims)
{
    PyObject *t = shape_type->tp_alloc(shape_type, rank);
    for (int i = 0; t && i < rank; i++) {
        PyObject *d = dim_object(dims[i]);
        if (!d) {
            Py_DECREF(t);
            return NULL;
        }
        PyTuple_SET_ITEM(t, i, d);
    }
    return t;
}
static PyObject *shape_make(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    (void)type;
    PyObject *o = NULL;
    eas_dim dims[64];
    if ((kw && PyDict_GET_SIZE(kw)) || !PyArg_ParseTuple(args, "|O:Shape", &o))
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "Shape(dims)");
    int n = o ? dims_of(o, "a shape", dims, 64) : 0;
    return n < 0 ? NULL : shape_object(n, dims);
}
static PyObject *shape_repr(PyObject *o)
{
    PyObject *list = PySequence_List(o), *r = list ? PyObject_Repr(list) : NULL;
    Py_XDECREF(list);
    return r;
}
static PyObject *shape_richcompare(PyObject *x, PyObject *y, int op)
{
    if (!PyList_Check(y))
        return PyTuple_Type.tp_richcompare(x, y, op);
    PyObject *t = PyList_AsTuple(y), *r = t ? PyTuple_Type.tp_richcompare(x, t, op) : NULL;
    Py_XDECREF(t);
    return r;
}
static Py_hash_t shape_hash(PyObject *o) { return PyTuple_Type.tp_hash(o); }
static PyObject *shape_rank(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromSsize_t(PyTuple_GET_SIZE(o));
}
static PyObject *shape_static(PyObject *o, void *c)
{
    (void)c;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (Py_IS_TYPE(PyTuple_GET_ITEM(o, i), symbolic_type))
            Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}
static PyGetSetDef shape_getset[] = {{"rank", shape_rank, NULL, "number of dims", NULL},
                                     {"is_static", shape_static, NULL, "are all sizes known?", NULL},
                                     {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot shape_slots[] = {
    {Py_tp_doc, "Sizes of a tensor's dims: a tuple that also equals a list."},
    {Py_tp_new, shape_make},
    {Py_tp_repr, shape_repr},
    {Py_tp_richcompare, shape_richcompare},
    {Py_tp_hash, shape_hash},
    {Py_tp_getset, shape_getset},
    {0, NULL},
};
static PyType_Spec shape_spec = {"eager.Shape", 0, 0, Py_TPFLAGS_DEFAULT, shape_slots};

static PyTypeObject *derived(PyObject *module, PyType_Spec *spec, PyTypeObject *base, const char *name)
{
    PyObject *bases = PyTuple_Pack(1, base);
    PyTypeObject *t = bases ? (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, bases) : NULL;
    Py_XDECREF(bases);
    if (t && PyModule_AddObjectRef(module, name, (PyObject *)t) < 0)
        Py_CLEAR(t);
    return t;
}
int dim_init(PyObject *module)
{
    return (static_type = derived(module, &static_spec, &PyLong_Type, "StaticDim")) &&
                   (shape_type = derived(module, &shape_spec, &PyTuple_Type, "Shape")) &&
                   (symbolic_type = py_type(module, &symbolic_spec, "SymbolicDim"))
             ? 0
             : -1;
}
