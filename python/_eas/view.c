/* view.c: what a Tensor does beyond being an argument: views by slicing, assignment, copies, the buffer
 * protocol, NumPy's interface, pickles.
 *
 * A view shares its tensor's memory and keeps it alive, on every device. Whatever makes new memory says so in
 * its name. */
#include "py.h"

#include <string.h>

static bool on_cpu(const Tensor *t) { return t->device == G.cpu; }
static size_t item_size(const Tensor *t) { return eas_dtype_size((eas_dtype)t->arg.dtype); }

/* ---- slicing ---- */
typedef struct slicing {
    Tensor *t;
    int from, ndim;       /* dims of t used up; dims of the view so far */
    int64_t offset;       /* in bytes */
    int64_t shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
} slicing;

static int add_dim(slicing *s, int64_t n, int64_t stride)
{
    if (s->ndim == NPY_MAXDIMS)
        return py_fail(PyExc_IndexError, "a view has at most %d dims", NPY_MAXDIMS), 0;
    s->shape[s->ndim] = n;
    s->strides[s->ndim++] = stride;
    return 1;
}
static int keep_dims(slicing *s, int upto)
{
    while (s->from < upto) {
        int i = s->from++;
        if (!add_dim(s, s->t->dims[i], s->t->dims[s->t->ndim + i]))
            return 0;
    }
    return 1;
}
static int take_index(slicing *s, PyObject *key)
{
    int dim = s->from++;
    int64_t n = s->t->dims[dim];
    Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return 0;
    if (i < -n || i >= n)
        return py_fail(PyExc_IndexError, "index %zd is out of bounds for dim %d of length %lld", i, dim,
                       (long long)n),
               0;
    s->offset += (i < 0 ? i + n : i) * s->t->dims[s->t->ndim + dim];
    return 1;
}
static int take_slice(slicing *s, PyObject *key)
{
    int dim = s->from++;
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step) < 0)
        return 0;
    Py_ssize_t n = PySlice_AdjustIndices((Py_ssize_t)s->t->dims[dim], &start, &stop, step);
    int64_t stride = s->t->dims[s->t->ndim + dim];
    s->offset += n ? start * stride : 0;
    return add_dim(s, n, stride * step);
}
static int take_key(slicing *s, PyObject *key, int rest)
{
    if (key == Py_None)
        return add_dim(s, 1, (int64_t)item_size(s->t));
    if (key == Py_Ellipsis)
        return keep_dims(s, s->t->ndim - rest);
    if (s->from >= s->t->ndim)
        return py_fail(PyExc_IndexError, "too many indices for a tensor of %d dims", s->t->ndim), 0;
    if (PySlice_Check(key))
        return take_slice(s, key);
    if (PyIndex_Check(key) && !PyBool_Check(key))
        return take_index(s, key);
    py_fail(PyExc_TypeError,
            "tensors are indexed by ints, slices, None and ...: got %s. For others index .numpy()",
            Py_TYPE(key)->tp_name);
    return 0;
}
static int uses_dim(PyObject *key) { return key != Py_None && key != Py_Ellipsis; }

static Tensor *view_of(Tensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset)
{
    PyObject *owner = t->owner && tensor_check(t->owner) ? t->owner : (PyObject *)t;
    return tensor_over(t->device, (eas_dtype)t->arg.dtype, ndim, shape, strides,
                       (char *)t->arg.v.data + offset, t->arg.flags & EAS_ARG_READONLY, owner);
}
PyObject *view_subscript(PyObject *o, PyObject *key)
{
    PyObject *one[1] = {key}, **keys = PyTuple_Check(key) ? &PyTuple_GET_ITEM(key, 0) : one;
    Py_ssize_t n = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1;
    slicing s = {.t = (Tensor *)o};
    int rest = 0, dots = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        dots += keys[i] == Py_Ellipsis;
    if (dots > 1)
        return py_fail(PyExc_IndexError, "an index can have one ellipsis ('...') only");
    for (Py_ssize_t i = n; i-- && keys[i] != Py_Ellipsis;)
        rest += uses_dim(keys[i]);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!take_key(&s, keys[i], rest))
            return NULL;
    return keep_dims(&s, s.t->ndim) ? (PyObject *)view_of(s.t, s.ndim, s.shape, s.strides, s.offset) : NULL;
}

/* ---- assignment ---- */
/* On another device: what lies between the elements goes there and back with them. */
static int assign_device(Tensor *t, PyArrayObject *value)
{
    int64_t lo, hi;
    tensor_span(t, &lo, &hi);
    size_t n = (size_t)(hi - lo);
    char *bytes = PyMem_RawMalloc(n + 1);
    if (!bytes)
        return PyErr_NoMemory(), 0;
    char *there = (char *)t->arg.v.data + lo;
    int ok = tensor_in_c_order(t) || tensor_bytes(NULL, bytes, t->device, there, n);
    Tensor *here = ok ? tensor_over(G.cpu, (eas_dtype)t->arg.dtype, t->ndim, t->dims, t->dims + t->ndim,
                                    bytes - lo, false, NULL)
                      : NULL;
    PyObject *view = here ? tensor_array_view(here) : NULL;
    ok = view && PyArray_CopyInto((PyArrayObject *)view, value) == 0 &&
         tensor_bytes(t->device, there, NULL, bytes, n);
    Py_XDECREF(view);
    Py_XDECREF(here);
    PyMem_RawFree(bytes);
    return ok;
}
static int assign(Tensor *t, PyObject *value)
{
    Tensor *from = tensor_check(value) || torch_check(value) ? tensor_wrap(value, NULL) : NULL;
    if (!from && PyErr_Occurred())
        return 0;
    PyObject *a = from
                    ? eas_device_has_host_memory(from->device) ? tensor_array_view(from) : tensor_fetch(from)
                    : tensor_to_array(value, NULL, 0);
    Py_XDECREF(from);
    int ok = a != NULL;
    if (ok && t->arg.count && eas_device_has_host_memory(t->device)) {
        PyObject *view = tensor_array_view(t);
        ok = view && PyArray_CopyInto((PyArrayObject *)view, (PyArrayObject *)a) == 0;
        Py_XDECREF(view);
    } else if (ok && t->arg.count) {
        ok = assign_device(t, (PyArrayObject *)a);
    }
    Py_XDECREF(a);
    return ok;
}
int view_assign(PyObject *o, PyObject *key, PyObject *value)
{
    if (!value)
        return py_fail(PyExc_TypeError, "elements of a tensor cannot be deleted"), -1;
    if (((Tensor *)o)->arg.flags & EAS_ARG_READONLY)
        return py_fail(PyExc_ValueError, "the tensor is read-only"), -1;
    PyObject *v = view_subscript(o, key);
    int ok = v && assign((Tensor *)v, value);
    Py_XDECREF(v);
    return ok ? 0 : -1;
}

/* ---- other views ---- */
static PyObject *get_transposed(PyObject *o, void *u)
{
    (void)u;
    Tensor *t = (Tensor *)o;
    int64_t shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    for (int i = 0; i < t->ndim; i++) {
        shape[i] = t->dims[t->ndim - 1 - i];
        strides[i] = t->dims[2 * t->ndim - 1 - i];
    }
    return (PyObject *)view_of(t, t->ndim, shape, strides, 0);
}
static int fill_unknown(int64_t *shape, int n, int64_t count)
{
    int64_t known = 1;
    int unknown = -1;
    for (int i = 0; i < n; i++) {
        if (shape[i] == -1 && unknown < 0)
            unknown = i;
        else if (shape[i] < 0 || __builtin_mul_overflow(known, shape[i], &known))
            return 0;
    }
    if (unknown >= 0 && known && count % known == 0) {
        shape[unknown] = count / known;
        known = count;
    }
    return known == count && (unknown < 0 || shape[unknown] >= 0);
}
static PyObject *reshape(PyObject *o, PyObject *args)
{
    Tensor *t = (Tensor *)o;
    PyObject *one = PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : NULL;
    PyObject *seq =
        PySequence_Fast(one && !PyIndex_Check(one) ? one : args, "reshape takes ints or a sequence of ints");
    int64_t shape[NPY_MAXDIMS];
    Py_ssize_t n = seq ? PySequence_Fast_GET_SIZE(seq) : 0;
    if (n > NPY_MAXDIMS)
        py_fail(PyExc_ValueError, "at most %d dims", NPY_MAXDIMS);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
        shape[i] = PyNumber_AsSsize_t(PySequence_Fast_GET_ITEM(seq, i), PyExc_OverflowError);
    if (!PyErr_Occurred() && !fill_unknown(shape, (int)n, t->arg.count))
        py_fail(PyExc_ValueError, "cannot reshape a tensor of %lld elements to %R", (long long)t->arg.count,
                seq);
    if (!PyErr_Occurred() && !tensor_in_c_order(t))
        py_fail(PyExc_ValueError,
                "reshape makes no copies, and the tensor is not contiguous: use .contiguous().reshape(...)");
    Py_XDECREF(seq);
    return PyErr_Occurred() ? NULL : (PyObject *)view_of(t, (int)n, shape, NULL, 0);
}
static PyObject *view_as(PyObject *o, PyObject *dtype)
{
    Tensor *t = (Tensor *)o;
    eas_dtype dt;
    if (!py_to_dtype(dtype, "view", &dt))
        return NULL;
    if (eas_dtype_size(dt) != item_size(t))
        return py_fail(PyExc_ValueError, "view: elements of %s have %zu bytes, those of %s %zu",
                       eas_dtype_name((eas_dtype)t->arg.dtype), item_size(t), eas_dtype_name(dt),
                       eas_dtype_size(dt));
    PyObject *owner = t->owner && tensor_check(t->owner) ? t->owner : o;
    return (PyObject *)tensor_over(t->device, dt, t->ndim, t->dims, t->dims + t->ndim, t->arg.v.data,
                                   t->arg.flags & EAS_ARG_READONLY, owner);
}
/* For kernels that take strides: one dim over all the memory from the first element on. */
static PyObject *memory(PyObject *o, PyObject *unused)
{
    (void)unused;
    Tensor *t = (Tensor *)o;
    int64_t lo, hi, size = (int64_t)item_size(t);
    tensor_span(t, &lo, &hi);
    if (lo < 0)
        return py_fail(
            PyExc_ValueError,
            "memory() starts at the first element, and a negative stride leads to others before it: copy the tensor");
    for (int i = 0; i < t->ndim; i++)
        if (t->dims[i] > 1 && t->dims[t->ndim + i] % size)
            return py_fail(PyExc_ValueError,
                           "a stride of %lld bytes is no whole number of elements: copy the tensor",
                           (long long)t->dims[t->ndim + i]);
    int64_t n = hi / size;
    return (PyObject *)view_of(t, 1, &n, NULL, 0);
}

/* ---- copies ---- */
static PyObject *copy(PyObject *o, PyObject *unused)
{
    (void)unused;
    return (PyObject *)tensor_copy((Tensor *)o, ((Tensor *)o)->device);
}
static PyObject *contiguous(PyObject *o, PyObject *unused)
{
    return ((Tensor *)o)->tag ? Py_NewRef(o) : copy(o, unused);
}
static PyObject *astype(PyObject *o, PyObject *dtype)
{
    Tensor *t = tensor_wrap(o, dtype);
    if ((PyObject *)t != o)
        return (PyObject *)t;
    Py_DECREF(t);
    return copy(o, NULL);
}
static PyObject *deepcopy(PyObject *o, PyObject *memo)
{
    (void)memo;
    return copy(o, NULL);
}

/* ---- Python's values ---- */
static PyObject *through_array(PyObject *o, const char *method)
{
    Tensor *t = (Tensor *)o;
    PyObject *a = eas_device_has_host_memory(t->device) ? tensor_array_view(t) : tensor_fetch(t);
    PyObject *r = a ? PyObject_CallMethod(a, method, NULL) : NULL;
    Py_XDECREF(a);
    return r;
}
static PyObject *tolist(PyObject *o, PyObject *unused) { return (void)unused, through_array(o, "tolist"); }
static PyObject *item(PyObject *o, PyObject *unused)
{
    (void)unused;
    if (((Tensor *)o)->arg.count != 1)
        return py_fail(PyExc_ValueError, "item() is for tensors of one element; this one has %lld",
                       (long long)((Tensor *)o)->arg.count);
    return through_array(o, "item");
}

/* ---- the buffer protocol, and NumPy's ---- */
static const char *const formats[EAS_NDTYPES] = {
    [EAS_BOOL] = "?", [EAS_I8] = "b",  [EAS_I16] = "h", [EAS_I32] = "i", [EAS_I64] = "q", [EAS_U8] = "B",
    [EAS_U16] = "H",  [EAS_U32] = "I", [EAS_U64] = "Q", [EAS_F16] = "e", [EAS_F32] = "f", [EAS_F64] = "d"};

typedef struct shown { /* of one buffer view */
    Py_ssize_t dims[2 * NPY_MAXDIMS];
} shown;

static int buffer_fits(const Tensor *t, int flags)
{
    const char *why = NULL;
    if (!on_cpu(t))
        why = "is not on the cpu: move it with .to(\"cpu\")";
    else if ((flags & PyBUF_FORMAT) && !formats[t->arg.dtype])
        why = "is of bfloat16, which the buffer protocol has no code for";
    else if ((flags & PyBUF_WRITABLE) && (t->arg.flags & EAS_ARG_READONLY))
        why = "is read-only";
    else if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !tensor_in_c_order(t))
        why = "is not contiguous";
    else if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && t->ndim > 1)
        why = "is in C order";
    else if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !tensor_in_c_order(t))
        why = "is not contiguous";
    if (why)
        py_fail(PyExc_BufferError, "the tensor %s", why);
    return !why;
}
int view_getbuffer(PyObject *o, Py_buffer *b, int flags)
{
    Tensor *t = (Tensor *)o;
    b->obj = NULL;
    if (!buffer_fits(t, flags))
        return -1;
    shown *s = PyMem_Malloc(sizeof *s);
    if (!s)
        return PyErr_NoMemory(), -1;
    for (int i = 0; i < t->ndim; i++) {
        s->dims[i] = (Py_ssize_t)t->dims[i];
        s->dims[NPY_MAXDIMS + i] = (Py_ssize_t)t->dims[t->ndim + i];
    }
    *b = (Py_buffer){.buf = t->arg.v.data,
                     .obj = Py_NewRef(o),
                     .len = (Py_ssize_t)t->arg.count * (Py_ssize_t)item_size(t),
                     .itemsize = (Py_ssize_t)item_size(t),
                     .readonly = (t->arg.flags & EAS_ARG_READONLY) != 0,
                     .ndim = t->ndim,
                     .format = flags & PyBUF_FORMAT ? (char *)(uintptr_t)formats[t->arg.dtype] : NULL,
                     .shape = flags & PyBUF_ND ? s->dims : NULL,
                     .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? s->dims + NPY_MAXDIMS : NULL,
                     .internal = s};
    return 0;
}
void view_releasebuffer(PyObject *o, Py_buffer *b)
{
    (void)o;
    PyMem_Free(b->internal);
}

static PyObject *get_interface(PyObject *o, void *u)
{
    (void)u;
    Tensor *t = (Tensor *)o;
    if (!on_cpu(t) || !formats[t->arg.dtype])
        return py_fail(PyExc_AttributeError,
                       "__array_interface__ is for tensors on the cpu of a dtype that NumPy has itself");
    PyObject *shape = PyObject_GetAttr(o, N.shape), *strides = PyObject_GetAttr(o, N.strides), *d = NULL;
    char kind = eas_dtype_kind((eas_dtype)t->arg.dtype), code[8];
    PyOS_snprintf(code, sizeof code, "%c%c%d",
                  item_size(t) == 1  ? '|'
                  : PY_LITTLE_ENDIAN ? '<'
                                     : '>',
                  kind, (int)item_size(t));
    PyObject *address = PyLong_FromVoidPtr(t->arg.v.data);
    if (shape && strides && address)
        d = Py_BuildValue("{sisOsOsss(OO)}", "version", 3, "shape", shape, "strides", strides, "typestr",
                          code, "data", address, t->arg.flags & EAS_ARG_READONLY ? Py_True : Py_False);
    Py_XDECREF(address);
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    return d;
}
static PyObject *get_readonly(PyObject *o, void *u)
{
    (void)u;
    return PyBool_FromLong(((Tensor *)o)->arg.flags & EAS_ARG_READONLY);
}

/* ---- pickles: the bytes in C order; from protocol 5 on they may travel beside the pickle ---- */
static PyObject *host_bytes(Tensor *t, bool outside)
{
    Tensor *here = on_cpu(t) && tensor_in_c_order(t) ? (Tensor *)Py_NewRef(t) : tensor_copy(t, G.cpu),
           *flat = NULL;
    PyObject *r = NULL;
    if (here) {
        int64_t n = here->arg.count * (int64_t)item_size(here);
        flat = tensor_over(G.cpu, EAS_U8, 1, &n, NULL, here->arg.v.data, true, (PyObject *)here);
    }
    if (flat)
        r = outside ? PyPickleBuffer_FromObject((PyObject *)flat)
                    : PyBytes_FromStringAndSize(flat->arg.v.data, (Py_ssize_t)flat->arg.count);
    Py_XDECREF(flat);
    Py_XDECREF(here);
    return r;
}
static PyObject *reduce(PyObject *o, PyObject *protocol)
{
    Tensor *t = (Tensor *)o;
    long version = PyLong_AsLong(protocol);
    if (version == -1 && PyErr_Occurred())
        return NULL;
    PyObject *m = PyImport_ImportModule("eas._eas"), *f = m ? PyObject_GetAttrString(m, "_rebuild") : NULL;
    PyObject *bytes = f ? host_bytes(t, version >= 5) : NULL,
             *shape = bytes ? PyObject_GetAttr(o, N.shape) : NULL, *r = NULL;
    if (shape)
        r = Py_BuildValue("O(OsOs)", f, bytes, eas_dtype_name((eas_dtype)t->arg.dtype), shape,
                          eas_device_name(t->device));
    Py_XDECREF(shape);
    Py_XDECREF(bytes);
    Py_XDECREF(f);
    Py_XDECREF(m);
    return r;
}
PyObject *view_rebuild(PyObject *m, PyObject *args)
{
    (void)m;
    Py_buffer b;
    const char *dtype, *device;
    PyObject *dims;
    eas_dtype dt;
    int64_t shape[NPY_MAXDIMS];
    if (!PyArg_ParseTuple(args, "y*sO!s:_rebuild", &b, &dtype, &PyTuple_Type, &dims, &device))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(dims);
    eas_device *d = n <= NPY_MAXDIMS && eas_dtype_parse(dtype, &dt) ? py_device_named(device) : NULL;
    for (Py_ssize_t i = 0; d && i < n; i++)
        if ((shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(dims, i))) < 0)
            d = NULL;
    Tensor *t = d ? tensor_new(d, dt, (int)n, shape) : NULL;
    if (t && b.len != (Py_ssize_t)(t->arg.count * (int64_t)item_size(t)))
        Py_CLEAR(t);
    if (!t && !PyErr_Occurred())
        py_fail(PyExc_ValueError,
                "a pickled tensor is damaged: dtype '%s', shape %R and %zd bytes do not fit", dtype, dims,
                b.len);
    if (t && b.len && !tensor_bytes(d, t->arg.v.data, NULL, b.buf, (size_t)b.len))
        Py_CLEAR(t);
    PyBuffer_Release(&b);
    return (PyObject *)t;
}

PyMethodDef view_methods[] = {
    {"reshape", reshape, METH_VARARGS,
     "reshape(*shape): a view of another shape (one length may be -1); ValueError if the tensor is not contiguous"},
    {"view", view_as, METH_O,
     "view(dtype): a view whose elements' bytes are read as another dtype of the same size"},
    {"memory", memory, METH_NOARGS,
     "memory(): a view with one dim over all memory from the first element to the last: for kernels that are given strides"},
    {"copy", copy, METH_NOARGS, "copy(): a contiguous copy on the same device"},
    {"contiguous", contiguous, METH_NOARGS,
     "contiguous(): the tensor itself if a kernel can take it, else a copy"},
    {"astype", astype, METH_O,
     "astype(dtype): a copy whose elements are converted as NumPy does it, on the same device"},
    {"tolist", tolist, METH_NOARGS, "tolist(): the elements as nested lists"},
    {"item", item, METH_NOARGS, "item(): the only element as a Python number"},
    {"__copy__", copy, METH_NOARGS, NULL},
    {"__deepcopy__", deepcopy, METH_O, NULL},
    {"__reduce_ex__", reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
PyGetSetDef view_getset[] = {
    {"T", get_transposed, NULL, "a view with the dims in reverse order", NULL},
    {"readonly", get_readonly, NULL, "may it not be written?", NULL},
    {"__array_interface__", get_interface, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
