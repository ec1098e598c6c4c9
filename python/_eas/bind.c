/* bind.c: arguments that are not the common kinds (those are inline in py.h): bools, NumPy scalars,
 * subclasses of ndarray, DLPack producers, the buffer protocol; and the messages for what cannot be an
 * argument. */
#include "py.h"

#include <string.h>

uint8_t bind_npy_dtype[NPY_NTYPES_LEGACY + 1] = {
    [NPY_BOOL] = TAG_BUFFER | EAS_BOOL,
    [NPY_BYTE] = TAG_BUFFER | EAS_I8,
    [NPY_UBYTE] = TAG_BUFFER | EAS_U8,
    [NPY_SHORT] = TAG_BUFFER | EAS_I16,
    [NPY_USHORT] = TAG_BUFFER | EAS_U16,
    [NPY_INT] = TAG_BUFFER | EAS_I32,
    [NPY_UINT] = TAG_BUFFER | EAS_U32,
    [NPY_LONG] = TAG_BUFFER | (sizeof(long) == 8 ? EAS_I64 : EAS_I32),
    [NPY_ULONG] = TAG_BUFFER | (sizeof(long) == 8 ? EAS_U64 : EAS_U32),
    [NPY_LONGLONG] = TAG_BUFFER | EAS_I64,
    [NPY_ULONGLONG] = TAG_BUFFER | EAS_U64,
    [NPY_HALF] = TAG_BUFFER | EAS_F16,
    [NPY_FLOAT] = TAG_BUFFER | EAS_F32,
    [NPY_DOUBLE] = TAG_BUFFER | EAS_F64,
};

PyObject *bind_tag_name(int tag)
{
    if (tag & TAG_BUFFER)
        return PyUnicode_FromFormat("an array of %s", eas_dtype_name((eas_dtype)(tag & TAG_DTYPE)));
    if (tag & TAG_WEAK)
        return PyUnicode_FromString((tag & TAG_DTYPE) == EAS_F64 ? "a Python float" : "a Python int");
    return PyUnicode_FromFormat("a scalar of %s", eas_dtype_name((eas_dtype)(tag & TAG_DTYPE)));
}

/* ---- messages ---- */
static PyObject *shape_text(const int64_t *dims, int n)
{
    PyObject *t = PyTuple_New(n);
    for (int i = 0; t && i < n; i++)
        PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(dims[i]));
    return t;
}
static int not_contiguous(Bound *bd, PyObject *name, int ndim, const int64_t *shape, const int64_t *strides,
                          eas_dtype dt)
{
    PyObject *s = shape_text(shape, ndim), *st = shape_text(strides, ndim);
    if (s && st)
        py_fail(
            PyExc_ValueError,
            "%U: argument '%U' must be C-contiguous; got strides %S in bytes for shape %S of %s. Pass a contiguous copy (np.ascontiguousarray, "
            ".contiguous()) and copy results back, or eas.tensor(x).memory() with the strides as arguments",
            bd->kernel, name, st, s, eas_dtype_name(dt));
    Py_XDECREF(s);
    Py_XDECREF(st);
    return 0;
}
int bind_bad_dtype(Bound *bd, PyObject *name, PyObject *dtype)
{
    py_fail(
        PyExc_TypeError,
        "%U: argument '%U' has elements of %S; kernels take bool, int8-int64, uint8-uint64, float16, bfloat16, float32 and float64",
        bd->kernel, name, dtype);
    return 0;
}
void bind_keep(Bound *bd, PyObject *o) { bd->temps[bd->ntemps++] = o; }

/* ---- tensors ---- */
int bind_tensor_device(Bound *bd, Tensor *t, int i, PyObject *name)
{
    if (!bd->device) {
        bd->device = t->device;
        bd->device_arg = i;
        return 1;
    }
    if (bd->device == t->device)
        return 1;
    py_fail(
        PyExc_ValueError,
        "%U: argument '%U' is on device '%s', another argument on '%s': move them to one device with .to()",
        bd->kernel, name, eas_device_name(t->device), eas_device_name(bd->device));
    return 0;
}
int bind_tensor(Bound *bd, Tensor *t, int i, PyObject *name, eas_arg *out)
{
    if (!t->tag && tensor_in_c_order(t))
        return py_fail(PyExc_ValueError,
                       "%U: argument '%U' is not aligned to its elements of %s; pass a copy", bd->kernel,
                       name, eas_dtype_name((eas_dtype)t->arg.dtype)),
               0;
    if (!t->tag)
        return not_contiguous(bd, name, t->ndim, t->dims, t->dims + t->ndim, (eas_dtype)t->arg.dtype);
    if (t->device != G.cpu && !bind_tensor_device(bd, t, i, name))
        return 0;
    *out = t->arg;
    return t->tag;
}

/* ---- arrays ---- */
static int bind_array(Bound *bd, PyArrayObject *a, int i, PyObject *name, eas_arg *out)
{
    PyArray_Descr *d = PyArray_DESCR(a);
    if (d->byteorder == NPY_OPPBYTE)
        return py_fail(
                   PyExc_ValueError,
                   "%U: argument '%U' is in foreign byte order (%S); convert it with .astype(x.dtype.newbyteorder('='))",
                   bd->kernel, name, (PyObject *)d),
               0;
    if (py_dtype_of_npy(d) < 0)
        return bind_bad_dtype(bd, name, (PyObject *)d);
    Tensor *t = tensor_from_array(a);
    int tag = t ? bind_tensor(bd, t, i, name, out) : 0;
    Py_XDECREF(t); /* the array itself is alive as long as the call */
    return tag;
}

/* ---- the buffer protocol ---- */
static int bind_buffer(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out)
{
    Py_buffer view;
    PyObject *mem = PyMemoryView_FromObject(o); /* releases the buffer when it goes */
    if (!mem)
        return 0;
    view = *PyMemoryView_GET_BUFFER(mem);
    bind_keep(bd, mem);
    int dt = py_dtype_of_format(view.format, view.itemsize);
    if (dt < 0) {
        PyObject *f = PyUnicode_FromFormat("format '%s'", view.format);
        if (f)
            bind_bad_dtype(bd, name, f);
        Py_XDECREF(f);
        return 0;
    }
    int64_t shape[PyBUF_MAX_NDIM], strides[PyBUF_MAX_NDIM];
    for (int k = 0; k < view.ndim; k++) {
        shape[k] = view.shape[k];
        strides[k] = view.strides ? view.strides[k] : 0;
    }
    Tensor *t = tensor_over(G.cpu, (eas_dtype)dt, view.ndim, shape, view.strides ? strides : NULL, view.buf,
                            view.readonly, NULL);
    int tag = t ? bind_tensor(bd, t, i, name, out) : 0;
    Py_XDECREF(t);
    return tag;
}

/* ---- scalars ---- */
static int bind_numpy_scalar(Bound *bd, PyObject *o, PyObject *name, eas_arg *out)
{
    PyArray_Descr *d = PyArray_DescrFromScalar(o);
    int dt = d ? py_dtype_of_npy(d) : -1;
    if (d && dt < 0)
        bind_bad_dtype(bd, name, (PyObject *)d);
    Py_XDECREF(d);
    if (dt < 0)
        return 0;
    bool is_float = eas_dtype_kind((eas_dtype)dt) == 'f';
    PyObject *n = is_float ? PyNumber_Float(o) : PyNumber_Long(o);
    if (!n)
        return 0;
    *out = (eas_arg){.dtype = (uint8_t)dt};
    if (is_float)
        out->v.f = PyFloat_AS_DOUBLE(n);
    else
        out->v.i = (int64_t)PyLong_AsUnsignedLongLongMask(n);
    Py_DECREF(n);
    return TAG_SCALAR | dt;
}
static int bind_number(Bound *bd, PyObject *o, PyObject *name, eas_arg *out)
{
    int over = 0;
    *out = (eas_arg){.dtype = EAS_I64};
    if (PyFloat_Check(o)) {
        out->v.f = PyFloat_AS_DOUBLE(o);
        out->dtype = EAS_F64;
        return TAG_SCALAR | TAG_WEAK | EAS_F64;
    }
    out->v.i = PyLong_AsLongLongAndOverflow(o, &over);
    if (!over)
        return TAG_SCALAR | TAG_WEAK | EAS_I64;
    py_fail(PyExc_OverflowError, "%U: argument '%U' is %S, which does not fit 64 bits (-2**63 to 2**63 - 1)",
            bd->kernel, name, o);
    return 0;
}

static int bind_traced(Bound *bd, PyObject *name)
{
    py_fail_at(
        PyExc_TypeError,
        "%U: argument '%U' is a traced value: a kernel cannot be launched inside another kernel's body",
        bd->kernel, name);
    return 0;
}
int bind_other(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out)
{
    if (PyBool_Check(o))
        return *out = (eas_arg){.v.i = o == Py_True, .dtype = EAS_BOOL}, TAG_SCALAR | EAS_BOOL;
    if (tensor_check(o))
        return bind_tensor(bd, (Tensor *)o, i, name, out);
    if (PyArray_Check(o))
        return bind_array(bd, (PyArrayObject *)o, i, name, out);
    if (PyArray_IsScalar(o, Generic))
        return bind_numpy_scalar(bd, o, name, out);
    if (PyLong_Check(o) || PyFloat_Check(o))
        return bind_number(bd, o, name, out);
    if (value_check(o) || Py_IS_TYPE(o, G.buffer))
        return bind_traced(bd, name);
    if (eager_check(o)) { /* the tensor's own memory: a kernel that writes to it changes the tensor */
        Tensor *t = tensor_of_node(eager_node(o));
        if (t)
            bind_keep(bd, (PyObject *)t);
        return t ? bind_tensor(bd, t, i, name, out) : 0;
    }
    if (torch_check(o))
        return bind_torch(bd, o, i, name, out);
    if (PyObject_HasAttr((PyObject *)Py_TYPE(o), N.__dlpack__)) {
        PyObject *t = tensor_from_dlpack(o, Py_None);
        if (t)
            bind_keep(bd, t);
        return t ? bind_tensor(bd, (Tensor *)t, i, name, out) : 0;
    }
    if (PyObject_CheckBuffer(o))
        return bind_buffer(bd, o, i, name, out);
    py_fail(PyExc_TypeError, "%U: argument '%U' must be an array, a tensor or a number; got %s", bd->kernel,
            name, Py_TYPE(o)->tp_name);
    return 0;
}
