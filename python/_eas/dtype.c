/* dtype.c: DType, the element types as Python objects (mk.f32, ...): one object per type, so identity is
 * equality; and the way from NumPy's, torch's and the buffer protocol's names of them. */
#include "py.h"

#include <string.h>

typedef struct DType {
    PyObject_HEAD eas_dtype dt;
} DType;

static const char *const numpy_names[EAS_NDTYPES] = {
    [EAS_BOOL] = "bool",   [EAS_I8] = "int8",     [EAS_I16] = "int16",     [EAS_I32] = "int32",
    [EAS_I64] = "int64",   [EAS_U8] = "uint8",    [EAS_U16] = "uint16",    [EAS_U32] = "uint32",
    [EAS_U64] = "uint64",  [EAS_F16] = "float16", [EAS_BF16] = "bfloat16", [EAS_F32] = "float32",
    [EAS_F64] = "float64",
};
static const int numpy_nums[EAS_NDTYPES] = {
    [EAS_BOOL] = NPY_BOOL,   [EAS_I8] = NPY_INT8,     [EAS_I16] = NPY_INT16,  [EAS_I32] = NPY_INT32,
    [EAS_I64] = NPY_INT64,   [EAS_U8] = NPY_UINT8,    [EAS_U16] = NPY_UINT16, [EAS_U32] = NPY_UINT32,
    [EAS_U64] = NPY_UINT64,  [EAS_F16] = NPY_FLOAT16, [EAS_BF16] = -1,        [EAS_F32] = NPY_FLOAT32,
    [EAS_F64] = NPY_FLOAT64,
};

static int by_str_of(PyObject *o, eas_dtype *out);
static int by_numpy(PyObject *o, eas_dtype *out);

/* ---- the objects ---- */
static PyObject *dtype_repr(PyObject *o)
{
    return PyUnicode_FromFormat("mk.%s%s", eas_dtype_name(((DType *)o)->dt),
                                ((DType *)o)->dt == EAS_BOOL ? "_" : "");
}
static PyObject *dtype_str(PyObject *o) { return PyUnicode_FromString(eas_dtype_name(((DType *)o)->dt)); }
static PyObject *dtype_name(PyObject *o, void *c)
{
    (void)c;
    return dtype_str(o);
}
static PyObject *dtype_size(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromSize_t(eas_dtype_size(((DType *)o)->dt));
}
static PyObject *dtype_kind(PyObject *o, void *c)
{
    (void)c;
    char k = eas_dtype_kind(((DType *)o)->dt);
    return PyUnicode_FromStringAndSize(&k, 1);
}
static PyObject *dtype_numpy(PyObject *o, void *c)
{
    (void)c;
    return py_npy_dtype(((DType *)o)->dt);
}
static PyObject *dtype_numpy_name(PyObject *o, void *c)
{
    (void)c;
    return PyUnicode_FromString(numpy_names[((DType *)o)->dt]);
}
/* Also with what names the same element type elsewhere: np.float32, "float32", torch.float32. */
static PyObject *dtype_richcompare(PyObject *x, PyObject *y, int op)
{
    eas_dtype dt;
    if (op != Py_EQ && op != Py_NE)
        Py_RETURN_NOTIMPLEMENTED;
    if (Py_IS_TYPE(y, G.dtype))
        return PyBool_FromLong((x == y) == (op == Py_EQ));
    bool known = by_str_of(y, &dt) || ((PyType_Check(y) || PyArray_DescrCheck(y)) && by_numpy(y, &dt));
    return PyBool_FromLong((known && dt == ((DType *)x)->dt) == (op == Py_EQ));
}
static Py_hash_t dtype_hash(PyObject *o) { return ((DType *)o)->dt + 1; }
static PyObject *dtype_reduce(PyObject *o, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("O(s)", (PyObject *)Py_TYPE(o), eas_dtype_name(((DType *)o)->dt));
}
static PyObject *dtype_make(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    (void)type;
    PyObject *o;
    eas_dtype dt;
    if ((kw && PyDict_GET_SIZE(kw)) || !PyArg_ParseTuple(args, "O:DType", &o)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "DType takes one positional argument");
        return NULL;
    }
    return py_to_dtype(o, "DType", &dt) ? py_dtype_object(dt) : NULL;
}

static PyGetSetDef dtype_getset[] = {
    {"name", dtype_name, NULL, "its name, as \"f32\"", NULL},
    {"value", dtype_name, NULL, "its name, as \"f32\"", NULL},
    {"size", dtype_size, NULL, "bytes of an element", NULL},
    {"itemsize", dtype_size, NULL, "bytes of an element", NULL},
    {"numpy_name", dtype_numpy_name, NULL, "its name in NumPy, as \"float32\"", NULL},
    {"kind", dtype_kind, NULL, "'b'ool, 'i'nt, 'u'nsigned or 'f'loat", NULL},
    {"numpy", dtype_numpy, NULL, "the same as an np.dtype", NULL},
    {"dtype", dtype_numpy, NULL, "the same as an np.dtype: np.dtype(mk.f32) works", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef dtype_methods[] = {
    {"__reduce__", dtype_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot dtype_slots[] = {
    {Py_tp_doc,
     "An element type: mk.bool_, mk.i8 ... mk.i64, mk.u8 ... mk.u64, mk.f16, mk.bf16, mk.f32, mk.f64. One object per type."},
    {Py_tp_new, dtype_make},
    {Py_tp_repr, dtype_repr},
    {Py_tp_str, dtype_str},
    {Py_tp_richcompare, dtype_richcompare},
    {Py_tp_hash, dtype_hash},
    {Py_tp_getset, dtype_getset},
    {Py_tp_methods, dtype_methods},
    {0, NULL},
};
static PyType_Spec DType_spec = {"eas.ir.DType", sizeof(DType), 0, Py_TPFLAGS_DEFAULT, dtype_slots};

static int add_constant(PyObject *dict, PyObject *o, const char *name, bool upper)
{
    char text[16];
    size_t n = strlen(name);
    for (size_t i = 0; i <= n; i++)
        text[i] = (char)(upper ? Py_TOUPPER(name[i]) : name[i]);
    return PyDict_SetItemString(dict, text, o);
}

int py_dtype_init(PyObject *module)
{
    if (!(G.dtype = py_type(module, &DType_spec, "DType")))
        return -1;
    PyObject *dict = PyObject_GenericGetDict((PyObject *)G.dtype, NULL);
    PyErr_Clear();
    Py_XDECREF(dict);
    for (int dt = 0; dt < EAS_NDTYPES; dt++) {
        DType *o = PyObject_New(DType, G.dtype);
        if (!o)
            return -1;
        o->dt = (eas_dtype)dt;
        G.dtypes[dt] = (PyObject *)o;
        const char *name = eas_dtype_name((eas_dtype)dt);
        if (add_constant(G.dtype->tp_dict, (PyObject *)o, name, false) < 0 ||
            add_constant(G.dtype->tp_dict, (PyObject *)o, name, true) < 0 ||
            add_constant(G.dtype->tp_dict, (PyObject *)o, numpy_names[dt], false) < 0)
            return -1;
    }
    PyType_Modified(G.dtype);
    return 0;
}

/* ---- NumPy ---- */
int py_dtype_of_npy(PyArray_Descr *d)
{
    if (d->byteorder == NPY_OPPBYTE)
        return -1;
    if ((unsigned)d->type_num < NPY_NTYPES_LEGACY)
        return bind_npy_dtype[d->type_num] ? bind_npy_dtype[d->type_num] & TAG_DTYPE : -1;
    if (d->type_num != G.bf16_num && strcmp(d->typeobj->tp_name, "bfloat16") &&
        strcmp(d->typeobj->tp_name, "ml_dtypes.bfloat16"))
        return -1;
    G.bf16_num = d->type_num;
    return EAS_BF16;
}

/* ml_dtypes registers bfloat16 with NumPy; nothing else does. */
static int find_bf16(void)
{
    if (G.bf16_num >= 0)
        return G.bf16_num;
    PyObject *m = PyImport_ImportModule("ml_dtypes"), *t = m ? PyObject_GetAttrString(m, "bfloat16") : NULL;
    PyArray_Descr *d = NULL;
    int ok = t && PyArray_DescrConverter(t, &d) == NPY_SUCCEED;
    if (ok)
        G.bf16_num = d->type_num;
    else
        py_fail(PyExc_TypeError,
                "NumPy has no bfloat16 of its own: install ml_dtypes, or look at the elements as uint16");
    Py_XDECREF(d);
    Py_XDECREF(t);
    Py_XDECREF(m);
    return ok ? G.bf16_num : -1;
}
int py_dtype_to_npy(eas_dtype dt) { return dt == EAS_BF16 ? find_bf16() : numpy_nums[dt]; }
PyObject *py_npy_dtype(eas_dtype dt)
{
    int num = py_dtype_to_npy(dt);
    return num < 0 ? NULL : (PyObject *)PyArray_DescrFromType(num);
}

/* ---- names ---- */
static int by_name(const char *name, eas_dtype *out)
{
    if (!strncmp(name, "torch.", 6))
        name += 6;
    if (eas_dtype_parse(name, out))
        return 1;
    if (!strcmp(name, "bool_"))
        return *out = EAS_BOOL, 1;
    if (!strcmp(name, "half"))
        return *out = EAS_F16, 1;
    for (int i = 0; i < EAS_NDTYPES; i++)
        if (!strcmp(name, numpy_names[i]))
            return *out = (eas_dtype)i, 1;
    return 0;
}
static int by_numpy(PyObject *o, eas_dtype *out)
{
    PyArray_Descr *d = NULL;
    if (PyArray_DescrConverter(o, &d) != NPY_SUCCEED || !d)
        return PyErr_Clear(), 0;
    int dt = py_dtype_of_npy(d);
    Py_DECREF(d);
    if (dt >= 0)
        *out = (eas_dtype)dt;
    return dt >= 0;
}
static int by_str_of(PyObject *o,
                     eas_dtype *out) /* str itself, and torch's dtypes, whose str is "torch.float32" */
{
    bool is_str = PyUnicode_Check(o);
    if (!is_str && strcmp(Py_TYPE(o)->tp_name, "torch.dtype"))
        return 0;
    PyObject *s = PyObject_Str(o);
    const char *name = s ? PyUnicode_AsUTF8(s) : NULL;
    int ok = name && by_name(name, out);
    PyErr_Clear();
    Py_XDECREF(s);
    return ok;
}

int py_to_dtype(PyObject *o, const char *what, eas_dtype *out)
{
    if (Py_IS_TYPE(o, G.dtype))
        return *out = ((DType *)o)->dt, 1;
    if (by_str_of(o, out) || (o != Py_None && by_numpy(o, out)))
        return 1;
    py_fail_at(
        PyExc_TypeError,
        "%s: %R is not an element type; use mk.bool_, mk.i8 ... mk.i64, mk.u8 ... mk.u64, mk.f16, mk.bf16, mk.f32, mk.f64",
        what, o);
    return 0;
}
int py_dtype_of_torch(PyObject *torch, PyObject *dtype)
{
    (void)torch;
    eas_dtype dt;
    return by_str_of(dtype, &dt) ? (int)dt : -1;
}

/* struct-module codes: one native element, no byte order other than the machine's. */
int py_dtype_of_format(const char *f, Py_ssize_t size)
{
    if (!f)
        return EAS_U8;
    if (*f == '@' || *f == '=' || (*f == '<' && PY_LITTLE_ENDIAN))
        f++;
    if (!*f || f[1])
        return -1;
    if (*f == '?')
        return EAS_BOOL;
    if (*f == 'e')
        return EAS_F16;
    if (*f == 'f')
        return EAS_F32;
    if (*f == 'd')
        return EAS_F64;
    bool s = strchr("bhilqn", *f) != NULL, u = strchr("BHILQN", *f) != NULL;
    if (!s && !u)
        return *f == 'c' ? EAS_U8 : -1;
    int log = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : size == 8 ? 3 : -1;
    return log < 0 ? -1 : (s ? EAS_I8 : EAS_U8) + log;
}
