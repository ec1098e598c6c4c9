/* tensor_make.c: eas.tensor, empty, zeros, ones and empty_like: tensors from data of others, and new ones. */
#include "py.h"

#include <string.h>

static PyObject *list_array(PyObject *data, PyArray_Descr *d) /* nested lists: Python floats become float32 */
{
    PyObject *a = tensor_to_array(data, d, NPY_ARRAY_DEFAULT);
    if (!a || d || PyArray_TYPE((PyArrayObject *)a) != NPY_FLOAT64)
        return a;
    PyObject *f = PyArray_CastToType((PyArrayObject *)a, PyArray_DescrFromType(NPY_FLOAT32), 0);
    Py_DECREF(a);
    return f;
}
static bool speaks_dlpack(PyObject *o) { return PyObject_HasAttr((PyObject *)Py_TYPE(o), N.__dlpack__); }

static PyObject *as_array(PyObject *data, PyArray_Descr *d) /* steals d */
{
    if (PyArray_Check(data) && !d)
        return Py_NewRef(data);
    if (PyArray_Check(data) || PyArray_IsScalar(data, Generic) || PyObject_CheckBuffer(data))
        return tensor_to_array(data, d, NPY_ARRAY_FORCECAST);
    return list_array(data, d);
}
Tensor *tensor_wrap(PyObject *data, PyObject *dtype)
{
    eas_dtype dt = EAS_F32;
    bool cast = dtype && dtype != Py_None;
    if (cast && !py_to_dtype(dtype, "dtype", &dt))
        return NULL;
    Tensor *t = NULL;
    if (tensor_check(data))
        t = (Tensor *)Py_NewRef(data);
    else if (!PyArray_Check(data) && speaks_dlpack(data))
        t = (Tensor *)tensor_from_dlpack(data, Py_None);
    if (!t && PyErr_Occurred())
        return NULL;
    if (t && (!cast || t->arg.dtype == dt))
        return t;
    eas_device *d = t ? t->device : G.cpu;
    int num = cast ? py_dtype_to_npy(dt) : 0;
    PyObject *src = num < 0 ? NULL : t ? tensor_numpy((PyObject *)t, NULL) : Py_NewRef(data);
    Py_XDECREF(t);
    PyObject *a = src ? as_array(src, cast ? PyArray_DescrFromType(num) : NULL) : NULL;
    Py_XDECREF(src);
    Tensor *r = a ? tensor_from_array((PyArrayObject *)a) : NULL;
    Py_XDECREF(a);
    if (!r || r->device == d)
        return r;
    Tensor *back = tensor_copy(r, d);
    Py_DECREF(r);
    return back;
}
PyObject *tensor_new_tensor(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    static char *names[] = {"data", "device", "dtype", NULL};
    PyObject *data, *device = Py_None, *dtype = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OO:tensor", names, &data, &device, &dtype))
        return NULL;
    eas_device *d = device == Py_None && tensor_check(data) ? ((Tensor *)data)->device : py_device(device);
    Tensor *t = d ? tensor_wrap(data, dtype) : NULL;
    if (!t || t->device == d)
        return (PyObject *)t;
    Tensor *moved = tensor_copy(t, d);
    Py_DECREF(t);
    return (PyObject *)moved;
}
static int shape_of(PyObject *o, int64_t *shape) /* the rank, or -1 */
{
    Py_ssize_t n = 1;
    PyObject *one[1] = {o}, *seq = NULL, **items = one;
    if (!PyIndex_Check(o)) {
        if (!(seq = PySequence_Fast(o, "shape must be an int or a sequence of ints")))
            return -1;
        n = PySequence_Fast_GET_SIZE(seq);
        items = PySequence_Fast_ITEMS(seq);
    }
    int rank = n > NPY_MAXDIMS ? (py_fail(PyExc_ValueError, "at most %d dims", NPY_MAXDIMS), -1) : (int)n;
    for (int i = 0; i < rank; i++) {
        shape[i] = PyNumber_AsSsize_t(items[i], PyExc_OverflowError);
        if (shape[i] < 0 && !PyErr_Occurred())
            py_fail(PyExc_ValueError, "shape must not be negative, got %lld", (long long)shape[i]);
        if (PyErr_Occurred())
            rank = -1;
    }
    Py_XDECREF(seq);
    return rank;
}
static Tensor *empty_from(PyObject *args, PyObject *kw, const char *format)
{
    static char *names[] = {"shape", "device", "dtype", NULL};
    PyObject *shape, *device = Py_None, *dtype = Py_None;
    int64_t dims[NPY_MAXDIMS];
    eas_dtype dt = EAS_F32;
    if (!PyArg_ParseTupleAndKeywords(args, kw, format, names, &shape, &device, &dtype))
        return NULL;
    eas_device *d = py_device(device);
    if (!d || (dtype != Py_None && !py_to_dtype(dtype, "dtype", &dt)))
        return NULL;
    int rank = shape_of(shape, dims);
    return rank < 0 ? NULL : tensor_new(d, dt, rank, dims);
}
PyObject *tensor_new_empty(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    return (PyObject *)empty_from(args, kw, "O|$OO:empty");
}
PyObject *tensor_new_shared(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    static char *names[] = {"nbytes", "device", NULL};
    PyObject *device = Py_None;
    long long n;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "L|$O:empty_shared", names, &n, &device))
        return NULL;
    eas_device *d = py_device(device);
    int64_t shape = n;
    if (n < 0)
        return py_fail(PyExc_ValueError, "nbytes must not be negative, got %lld", n);
    return d ? (PyObject *)tensor_alloc_by(eas_buffer_new_shared, d, EAS_U8, 1, &shape) : NULL;
}
/* Every element the same, by its bytes. */
static Tensor *fill(Tensor *t, const char *bytes)
{
    size_t n = t ? tensor_nbytes(t) : 0, size = t ? eas_dtype_size((eas_dtype)t->arg.dtype) : 1;
    if (!n)
        return t;
    bool here = tensor_on_host(t);
    char *to = here ? t->arg.v.data : PyMem_RawMalloc(n);
    if (!to)
        return Py_DECREF(t), (Tensor *)PyErr_NoMemory();
    for (size_t i = 0; bytes && i < n; i += size)
        memcpy(to + i, bytes, size);
    if (!bytes)
        memset(to, 0, n);
    if (here)
        return t;
    int ok = tensor_bytes(t->device, t->arg.v.data, NULL, to, n);
    PyMem_RawFree(to);
    if (!ok)
        Py_CLEAR(t);
    return t;
}
PyObject *tensor_new_zeros(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    return (PyObject *)fill(empty_from(args, kw, "O|$OO:zeros"), NULL);
}
PyObject *tensor_new_ones(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    static const uint64_t ones[EAS_NDTYPES] = {
        [EAS_F16] = 0x3c00, [EAS_BF16] = 0x3f80, [EAS_F32] = 0x3f800000, [EAS_F64] = 0x3ff0000000000000};
    Tensor *t = empty_from(args, kw, "O|$OO:ones");
    if (!t)
        return NULL;
    size_t size = eas_dtype_size((eas_dtype)t->arg.dtype);
    uint64_t one = ones[t->arg.dtype] ? ones[t->arg.dtype] : 1;
    char bytes[8];
    for (size_t k = 0; k < size; k++)
        bytes[k] = (char)(one >> 8 * (PY_LITTLE_ENDIAN ? k : size - 1 - k));
    return (PyObject *)fill(t, bytes);
}
PyObject *tensor_new_empty_like(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    static char *names[] = {"x", "device", "dtype", NULL};
    PyObject *x, *device = Py_None, *dtype = Py_None;
    eas_dtype dt;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OO:empty_like", names, &x, &device, &dtype))
        return NULL;
    Tensor *t = tensor_wrap(x, NULL), *r = NULL;
    if (!t)
        return NULL;
    eas_device *d = device == Py_None ? t->device : py_device(device);
    dt = (eas_dtype)t->arg.dtype;
    if (d && (dtype == Py_None || py_to_dtype(dtype, "dtype", &dt)))
        r = tensor_new(d, dt, t->ndim, t->dims);
    Py_DECREF(t);
    return (PyObject *)r;
}
