/* buffer.c: a Buffer is an array parameter of the kernel that is traced, or a threadgroup array. It can be
 * indexed and handed to mk's functions; whatever else is done to it raises and says what to write instead. */
#include "py.h"

static PyObject *buffer_hint(PyObject *x, const char *did)
{
    PyObject *name = ((Value *)x)->name;
    PyObject *who = name ? Py_NewRef(name) : PyUnicode_FromString("buf");
    if (who)
        py_fail_at(
            PyExc_TypeError,
            "'%U' is a buffer and cannot be %s: read with mk.load(%U, offsets, mask) and write with mk.store(%U, offsets, value, mask)",
            who, did, who, who);
    Py_XDECREF(who);
    return NULL;
}
static PyObject *buffer_of_two(PyObject *x, PyObject *y)
{
    return buffer_hint(Py_IS_TYPE(x, G.buffer) ? x : y, "an operand");
}
static PyObject *buffer_pow(PyObject *x, PyObject *y, PyObject *z)
{
    (void)z;
    return buffer_of_two(x, y);
}
static PyObject *buffer_of_one(PyObject *x) { return buffer_hint(x, "an operand"); }
static int buffer_bool(PyObject *x)
{
    buffer_hint(x, "a condition");
    return -1;
}
static PyObject *buffer_compare(PyObject *x, PyObject *y, int how)
{
    if (y == Py_None || how == Py_EQ || how == Py_NE)
        Py_RETURN_NOTIMPLEMENTED; /* identity: `buf is buf`, `buf in (a, b)` */
    return buffer_hint(x, "compared");
}
static PyObject *buffer_iter(PyObject *x) { return buffer_hint(x, "iterated over"); }
static PyObject *buffer_repr(PyObject *o)
{
    Value *x = (Value *)o;
    if (x->trace != trace_current())
        return PyUnicode_FromFormat("<buffer of a finished trace of '%U'>", x->trace->name);
    if (x->trace->live)
        return live_repr(o);
    return PyUnicode_FromFormat("<buffer %V: %s>", x->name, "tg",
                                eas_dtype_name(eas_value_dtype(x->trace->b, x->v)));
}
static Py_ssize_t buffer_len(PyObject *o)
{
    PyObject *shape = array_shape(o, 0),
             *n = shape && PyTuple_GET_SIZE(shape) ? PyTuple_GET_ITEM(shape, 0) : NULL;
    Py_ssize_t r = n && PyLong_Check(n) ? PyLong_AsSsize_t(n) : -1;
    if (r < 0 && !PyErr_Occurred())
        py_fail_at(
            PyExc_TypeError,
            "len() must be known while the kernel is traced, and kernels are compiled for every size: use x.shape[0]");
    Py_XDECREF(shape);
    return r;
}
static PyGetSetDef buffer_getset[] = {
    {"shape", array_shape, NULL, "sizes of the axes", (void *)0},
    {"strides", array_shape, NULL, "elements from one index of an axis to the next", (void *)1},
    {"size", array_size, NULL, "number of elements", NULL},
    {"ndim", array_ndim, NULL, "number of axes", NULL},
    {"T", array_T, NULL, "the axes reversed", NULL},
    {"dtype", value_get_dtype, NULL, "element type", NULL},
    {"name", value_get_name, NULL, "the parameter's name; None for a threadgroup array", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef buffer_methods[] = {
    {"numpy", live_numpy, METH_NOARGS, "numpy(): under _interpret=True a copy of what it holds now"},
    {"__array__", (PyCFunction)(void (*)(void))live_dunder_array, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot buffer_slots[] = {
    {Py_tp_methods, buffer_methods},
    {Py_tp_doc, "An array argument of the kernel being traced, or a threadgroup array."},
    {Py_tp_dealloc, value_dealloc},
    {Py_tp_repr, buffer_repr},
    {Py_tp_hash, value_hash},
    {Py_tp_richcompare, buffer_compare},
    {Py_tp_iter, buffer_iter},
    {Py_tp_getset, buffer_getset},
    {Py_mp_subscript, array_get},
    {Py_mp_ass_subscript, array_set},
    {Py_mp_length, buffer_len},
    {Py_nb_add, buffer_of_two},
    {Py_nb_subtract, buffer_of_two},
    {Py_nb_multiply, buffer_of_two},
    {Py_nb_true_divide, buffer_of_two},
    {Py_nb_floor_divide, buffer_of_two},
    {Py_nb_remainder, buffer_of_two},
    {Py_nb_power, buffer_pow},
    {Py_nb_and, buffer_of_two},
    {Py_nb_or, buffer_of_two},
    {Py_nb_xor, buffer_of_two},
    {Py_nb_lshift, buffer_of_two},
    {Py_nb_rshift, buffer_of_two},
    {Py_nb_negative, buffer_of_one},
    {Py_nb_absolute, buffer_of_one},
    {Py_nb_invert, buffer_of_one},
    {Py_nb_bool, buffer_bool},
    {0, NULL},
};
PyType_Spec Buffer_spec = {"eas.mk.Buffer", sizeof(Value), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, buffer_slots};
