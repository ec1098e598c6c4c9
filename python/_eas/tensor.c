/* tensor.c: eas.Tensor: shaped memory on a device. On the cpu it may be memory of an array, of torch or of
 * anyone who speaks DLPack, never copied; a launch takes the eas_arg that every tensor carries ready-made. */
#include "py.h"

#include <structmember.h>
#include <string.h>

/* ---- devices ---- */
static void unknown_device(const char *name)
{
    const int n = eas_device_count();
    PyObject *list = PyUnicode_FromString("");
    for (int i = 0; i < n && list; i++) {
        const char *alias = eas_device_facts_get(eas_device_at(i)).alias, *sep = !i        ? ""
                                                                               : i + 1 < n ? ", "
                                                                                           : " or ";
        PyObject *more = alias
                           ? PyUnicode_FromFormat("%U%s\"%s\" (alias \"%s\")", list, sep,
                                                  eas_device_name(eas_device_at(i)), alias)
                           : PyUnicode_FromFormat("%U%s\"%s\"", list, sep, eas_device_name(eas_device_at(i)));
        Py_SETREF(list, more);
    }
    if (list)
        py_fail(PyExc_ValueError, "unknown device '%s'; use %U", name, list);
    Py_XDECREF(list);
}
eas_device *py_device_named(const char *name)
{
    eas_device *d;
    eas_status st = eas_device_get(name, &d);
    if (st == EAS_ERR_UNAVAILABLE)
        return py_fail(PyExc_RuntimeError, "device '%s' is not available: %s", name, eas_error_message()),
               NULL;
    if (st != EAS_OK)
        return unknown_device(name), NULL;
    const char *why = eas_device_unavailable(d);
    if (why)
        return py_fail(PyExc_RuntimeError, "device '%s' is not available: %s", name, why), NULL;
    return d;
}
eas_device *py_device(PyObject *o)
{
    if (!o || o == Py_None)
        return G.cpu;
    const char *name = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL;
    if (name)
        return py_device_named(name);
    if (!PyErr_Occurred())
        py_fail(PyExc_TypeError, "device must be a str such as \"cpu\", got %s", Py_TYPE(o)->tp_name);
    return NULL;
}

/* ---- making ---- */
/* Has each element an address? Strides in bytes. No machine has more than 56 bits of them. */
static int reaches(const void *data, int ndim, const int64_t *shape, const int64_t *strides, int64_t size)
{
    const int64_t room = (int64_t)1 << 56, at = (int64_t)((uintptr_t)data & (uintptr_t)(room - 1));
    int64_t lo = at, hi = at, reach;
    if (__builtin_add_overflow(hi, size, &hi))
        return 0;
    for (int i = 0; i < ndim; i++) {
        int64_t *end = strides[i] < 0 ? &lo : &hi;
        if (shape[i] <= 1)
            continue;
        if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
            __builtin_add_overflow(*end, reach, end) || lo < 0 || hi > room)
            return py_fail(PyExc_ValueError,
                           "a stride of %lld bytes along axis %d, of size %lld, leads out of any memory",
                           (long long)strides[i], i, (long long)shape[i]),
                   0;
    }
    return 1;
}
static int array_reaches(PyArrayObject *a)
{
    int64_t shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        shape[i] = PyArray_DIM(a, i);
        strides[i] = PyArray_STRIDE(a, i);
    }
    return PyArray_SIZE(a) == 0 || PyArray_IS_C_CONTIGUOUS(a) ||
           reaches(PyArray_DATA(a), PyArray_NDIM(a), shape, strides, PyArray_ITEMSIZE(a));
}
/* PyArray_FromAny, which itself reads whatever strides __array_interface__ gives. Steals d, as that does. */
PyObject *tensor_to_array(PyObject *o, PyArray_Descr *d, int flags)
{
    if (!PyArray_Check(o) && !PyObject_HasAttrString((PyObject *)Py_TYPE(o), "__array_interface__") &&
        !PyObject_HasAttrString((PyObject *)Py_TYPE(o), "__array_struct__") && !PyObject_CheckBuffer(o))
        return PyArray_FromAny(o, d, 0, 0, flags, NULL);
    PyObject *as_is = PyArray_FromAny(o, NULL, 0, 0, 0, NULL), *a = NULL;
    if (as_is && array_reaches((PyArrayObject *)as_is))
        a = PyArray_FromAny(as_is, d, 0, 0, flags, NULL);
    else
        Py_XDECREF(d);
    Py_XDECREF(as_is);
    return a;
}
/* returns the element count, or -1 */
static int64_t c_strides(int ndim, const int64_t *shape, int64_t size, int64_t *strides)
{
    int64_t count = 1, step = size;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = step;
        if (__builtin_mul_overflow(count, shape[i], &count) ||
            __builtin_mul_overflow(step, shape[i] ? shape[i] : 1, &step))
            return -1;
    }
    return count;
}
static bool in_c_order(int ndim, const int64_t *shape, const int64_t *strides, int64_t size)
{
    for (int i = 0; i < ndim; i++)
        if (shape[i] == 0)
            return true;
    for (int i = ndim - 1; i >= 0; size *= shape[i], i--)
        if (shape[i] != 1 && strides[i] != size)
            return false;
    return true;
}
static void element_strides(Tensor *t)
{
    int64_t size = (int64_t)eas_dtype_size((eas_dtype)t->arg.dtype);
    for (int i = 0; i < t->ndim; i++)
        t->dims[2 * t->ndim + i] = t->dims[t->ndim + i] / size;
}
/* What others say of their memory may be anything. */
static int check_shape(int ndim, const int64_t *shape)
{
    if (ndim < 0 || ndim > NPY_MAXDIMS)
        return py_fail(PyExc_ValueError, "%d dims; a tensor has at most %d", ndim, NPY_MAXDIMS), 0;
    if (ndim && !shape)
        return py_fail(PyExc_ValueError, "%d dims, and no shape (NULL)", ndim), 0;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0)
            return py_fail(PyExc_ValueError, "the size along axis %d is %lld: it must not be negative", i,
                           (long long)shape[i]),
                   0;
    return 1;
}
static Tensor *make(eas_device *d, eas_dtype dt, int ndim, const int64_t *shape)
{
    if (!check_shape(ndim, shape))
        return NULL;
    Tensor *t = PyObject_NewVar(Tensor, G.tensor, 3 * ndim);
    if (!t)
        return NULL;
    memset(&t->arg, 0, sizeof t->arg);
    if (ndim)
        memcpy(t->dims, shape, (size_t)ndim * sizeof *shape);
    t->buf = NULL;
    t->owner = t->weakrefs = NULL;
    t->ndim = ndim;
    t->device = d;
    t->tag = (uint8_t)(TAG_BUFFER | dt);
    t->arg.dtype = (uint8_t)dt;
    t->arg.is_buffer = 1;
    t->arg.flags = eas_device_has_host_memory(d) ? EAS_ARG_HOST : 0;
    t->arg.count = c_strides(ndim, shape, (int64_t)eas_dtype_size(dt), t->dims + ndim);
    element_strides(t);
    if (t->arg.count >= 0)
        return t;
    Py_DECREF(t);
    return py_fail(PyExc_ValueError, "the shape is too large"), NULL;
}
Tensor *tensor_over(eas_device *d, eas_dtype dt, int ndim, const int64_t *shape, const int64_t *strides,
                    void *data, bool readonly, PyObject *owner)
{
    Tensor *t = make(d, dt, ndim, shape);
    if (!t)
        return NULL;
    t->arg.v.data = data;
    t->arg.flags |= readonly ? EAS_ARG_READONLY : 0;
    t->owner = Py_XNewRef(owner);
    if (strides && ndim)
        memcpy(t->dims + ndim, strides, (size_t)ndim * sizeof *strides);
    if (strides)
        element_strides(t);
    if (t->arg.count && eas_device_has_host_memory(d) &&
        !reaches(data, ndim, t->dims, t->dims + ndim, (int64_t)eas_dtype_size(dt))) {
        Py_DECREF(t);
        return NULL;
    }
    if ((strides && !in_c_order(ndim, shape, strides, (int64_t)eas_dtype_size(dt))) ||
        (uintptr_t)data % eas_dtype_size(dt))
        t->tag = 0;
    return t;
}
Tensor *tensor_alloc_by(eas_status (*alloc)(eas_device *, size_t, eas_buffer **), eas_device *d, eas_dtype dt,
                        int ndim, const int64_t *shape)
{
    Tensor *t = make(d, dt, ndim, shape);
    if (!t)
        return NULL;
    eas_status st = alloc(d, (size_t)t->arg.count * eas_dtype_size(dt), &t->buf);
    if (st == EAS_OK) {
        t->arg.v.data = eas_buffer_address(t->buf);
        return t;
    }
    t->buf = NULL;
    Py_DECREF(t);
    return py_raise(st), NULL;
}
Tensor *tensor_new(eas_device *d, eas_dtype dt, int ndim, const int64_t *shape)
{
    return tensor_alloc_by(eas_buffer_new, d, dt, ndim, shape);
}
Tensor *tensor_from_array(PyArrayObject *a)
{
    int dt = py_dtype_of_npy(PyArray_DESCR(a)), ndim = PyArray_NDIM(a);
    int64_t shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    if (dt < 0)
        return py_fail(
                   PyExc_TypeError,
                   "a tensor cannot hold elements of %R; use bool, int8-int64, uint8-uint64, float16, bfloat16, float32 or float64 in native "
                   "byte order",
                   (PyObject *)PyArray_DESCR(a)),
               NULL;
    for (int i = 0; i < ndim; i++) {
        shape[i] = PyArray_DIM(a, i);
        strides[i] = PyArray_STRIDE(a, i);
    }
    return tensor_over(G.cpu, (eas_dtype)dt, ndim, shape, strides, PyArray_DATA(a), !PyArray_ISWRITEABLE(a),
                       (PyObject *)a);
}
static void tensor_dealloc(PyObject *o)
{
    Tensor *t = (Tensor *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (t->weakrefs)
        PyObject_ClearWeakRefs(o);
    if (t->buf)
        eas_buffer_release(t->buf);
    Py_XDECREF(t->owner);
    PyObject_Free(o);
    Py_DECREF(type);
}

/* ---- arrays of it ---- */
/* The same memory as an array; needs host memory. */
PyObject *tensor_array_view(Tensor *t)
{
    int num = py_dtype_to_npy((eas_dtype)t->arg.dtype);
    npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    if (num < 0)
        return NULL;
    for (int i = 0; i < t->ndim; i++) {
        shape[i] = (npy_intp)t->dims[i];
        strides[i] = (npy_intp)t->dims[t->ndim + i];
    }
    static char nothing[8];
    void *data = t->arg.v.data ? t->arg.v.data : nothing;
    int flags = NPY_ARRAY_ALIGNED | (t->arg.flags & EAS_ARG_READONLY ? 0 : NPY_ARRAY_WRITEABLE);
    PyObject *a = PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(num), t->ndim, shape, strides,
                                       data, flags, NULL);
    if (!a)
        return NULL;
    PyArray_UpdateFlags((PyArrayObject *)a,
                        NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS | NPY_ARRAY_ALIGNED);
    if (PyArray_SetBaseObject((PyArrayObject *)a, Py_NewRef(t)) < 0)
        Py_CLEAR(a);
    return a;
}
size_t tensor_nbytes(const Tensor *t)
{
    return (size_t)t->arg.count * eas_dtype_size((eas_dtype)t->arg.dtype);
}

/* From or to memory of the host; waits. 0 with an exception. */
int tensor_bytes(eas_device *to, void *dst, eas_device *from, const void *src, size_t n)
{
    hooks h;
    eas_launch l = {0};
    hooks_init(&l, &h);
    eas_status st = eas_device_copy(to, dst, from, src, n, &l);
    return st == EAS_OK ? 1 : (py_raise(st), 0);
}
bool tensor_on_host(const Tensor *t) { return eas_device_has_host_memory(t->device); }

void tensor_span(const Tensor *t, int64_t *lo, int64_t *hi)
{
    *lo = 0;
    *hi = t->arg.count ? (int64_t)eas_dtype_size((eas_dtype)t->arg.dtype) : 0;
    for (int i = 0; i < t->ndim && t->arg.count; i++) {
        int64_t reach = (t->dims[i] - 1) * t->dims[t->ndim + i];
        *(reach < 0 ? lo : hi) += reach;
    }
}
/* Strided elements come with all that lies between them, and are picked here. */
static int fetch_strided(Tensor *t, PyArrayObject *into)
{
    int64_t lo, hi;
    tensor_span(t, &lo, &hi);
    char *bytes = PyMem_RawMalloc((size_t)(hi - lo) + 1);
    if (!bytes)
        return PyErr_NoMemory(), 0;
    Tensor *here = NULL;
    PyObject *view = NULL;
    int ok = tensor_bytes(NULL, bytes, t->device, (char *)t->arg.v.data + lo, (size_t)(hi - lo));
    if (ok)
        here = tensor_over(G.cpu, (eas_dtype)t->arg.dtype, t->ndim, t->dims, t->dims + t->ndim, bytes - lo,
                           true, NULL);
    view = here ? tensor_array_view(here) : NULL;
    ok = view && PyArray_CopyInto(into, (PyArrayObject *)view) == 0;
    Py_XDECREF(view);
    Py_XDECREF(here);
    PyMem_RawFree(bytes);
    return ok;
}
PyObject *tensor_fetch(Tensor *t)
{
    int num = py_dtype_to_npy((eas_dtype)t->arg.dtype);
    npy_intp shape[NPY_MAXDIMS];
    for (int i = 0; i < t->ndim; i++)
        shape[i] = (npy_intp)t->dims[i];
    PyObject *a = num < 0 ? NULL : PyArray_SimpleNew(t->ndim, shape, num);
    if (!a || !t->arg.count)
        return a;
    int ok = tensor_in_c_order(t) ? tensor_bytes(NULL, PyArray_DATA((PyArrayObject *)a), t->device,
                                                 t->arg.v.data, tensor_nbytes(t))
                                  : fetch_strided(t, (PyArrayObject *)a);
    if (!ok)
        Py_CLEAR(a);
    return a;
}
PyObject *tensor_numpy(PyObject *o, PyObject *unused)
{
    (void)unused;
    if (!tensor_on_host((Tensor *)o))
        return tensor_fetch((Tensor *)o);
    PyObject *a = tensor_array_view((Tensor *)o);
    if (!a || ((Tensor *)o)->device == G.cpu)
        return a;
    PyObject *copy = PyArray_NewCopy((PyArrayObject *)a, NPY_CORDER);
    Py_DECREF(a);
    return copy;
}
static PyObject *tensor_array(PyObject *o, PyObject *args, PyObject *kw)
{
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO:__array__", names, &dtype, &copy))
        return NULL;
    bool on_cpu = ((Tensor *)o)->device == G.cpu;
    if (copy == Py_False && !on_cpu)
        return py_fail(PyExc_ValueError, "a tensor on '%s' becomes an array only by a copy",
                       eas_device_name(((Tensor *)o)->device));
    PyObject *a = tensor_numpy(o, NULL);
    if (!a)
        return NULL;
    PyArray_Descr *d = NULL;
    if (dtype != Py_None && PyArray_DescrConverter(dtype, &d) != NPY_SUCCEED)
        return Py_DECREF(a), NULL;
    bool same = !d || PyArray_EquivTypes(d, PyArray_DESCR((PyArrayObject *)a));
    PyObject *r = NULL;
    if (!same && copy == Py_False)
        py_fail(PyExc_ValueError, "another dtype needs a copy");
    else if (!same)
        r = PyArray_CastToType((PyArrayObject *)a, (PyArray_Descr *)Py_NewRef(d), 0);
    else if (copy == Py_True && on_cpu)
        r = PyArray_NewCopy((PyArrayObject *)a, NPY_KEEPORDER);
    else
        r = Py_NewRef(a);
    Py_XDECREF(d);
    Py_DECREF(a);
    return r;
}

/* ---- between devices ---- */
bool tensor_in_c_order(const Tensor *t)
{
    return t->tag ||
           in_c_order(t->ndim, t->dims, t->dims + t->ndim, (int64_t)eas_dtype_size((eas_dtype)t->arg.dtype));
}
Tensor *tensor_copy(Tensor *t, eas_device *d)
{
    Tensor *r = tensor_new(d, (eas_dtype)t->arg.dtype, t->ndim, t->dims);
    if (!r || r->arg.count == 0)
        return r;
    if (tensor_in_c_order(t)) {
        if (!tensor_bytes(d, r->arg.v.data, t->device, t->arg.v.data, tensor_nbytes(r)))
            Py_CLEAR(r);
        return r;
    }
    PyObject *view = tensor_on_host(t) ? tensor_array_view(t) : tensor_fetch(t);
    /* NumPy walks the strides */
    PyObject *src = view ? PyArray_NewCopy((PyArrayObject *)view, NPY_CORDER) : NULL;
    if (!src || !tensor_bytes(d, r->arg.v.data, NULL, PyArray_DATA((PyArrayObject *)src), tensor_nbytes(r)))
        Py_CLEAR(r);
    Py_XDECREF(src);
    Py_XDECREF(view);
    return r;
}
/* ---- copies in place: on a stream, so they may be queued and captured ---- */
static int same_size(const Tensor *t, const Tensor *o, const char *what)
{
    if (t->arg.count == o->arg.count && t->arg.dtype == o->arg.dtype && t->tag && o->tag)
        return 1;
    py_fail(
        PyExc_ValueError,
        "%s needs as many contiguous elements of the same dtype on both sides: %lld of %s, and %lld of %s",
        what, (long long)t->arg.count, eas_dtype_name((eas_dtype)t->arg.dtype), (long long)o->arg.count,
        eas_dtype_name((eas_dtype)o->arg.dtype));
    return 0;
}
static PyObject *queue_copy(Tensor *to, Tensor *from, PyObject *to_keep, PyObject *from_keep, bool sync,
                            PyObject *stream)
{
    hooks h;
    eas_launch l = {0};
    eas_device *d = tensor_on_host(to) && !tensor_on_host(from) ? from->device : to->device;
    eas_copy_way way = tensor_on_host(d == to->device ? from : to) && !eas_device_has_host_memory(d)
                         ? (d == to->device ? EAS_COPY_TO : EAS_COPY_FROM)
                         : EAS_COPY_WITHIN;
    void *hold[2] = {to_keep, from_keep};
    if (!tensor_on_host(to) && !tensor_on_host(from) && to->device != from->device)
        return py_fail(PyExc_ValueError, "a copy between '%s' and '%s' goes through the host: use .to()",
                       eas_device_name(to->device), eas_device_name(from->device));
    hooks_init(&l, &h);
    l.async = !sync;
    l.hold = hold;
    l.nhold = 2;
    l.retain = hold_retain;
    l.release = hold_release;
    if (stream != Py_None && !(l.stream = stream_arg(stream, "stream", d)))
        return NULL;
    eas_status st = eas_device_copy_on(d, way, to->arg.v.data, from->arg.v.data, tensor_nbytes(to), &l);
    return st == EAS_OK ? Py_NewRef(Py_None) : py_raise(st);
}
static PyObject *copy_either(PyObject *o, PyObject *args, PyObject *kw, bool into)
{
    static char *names[] = {"x", "sync", "stream", NULL};
    PyObject *x, *stream = Py_None;
    int sync = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kw, into ? "O|$pO:copy_from" : "O|$pO:copy_to", names, &x, &sync,
                                     &stream))
        return NULL;
    Tensor *self = (Tensor *)o, *other = tensor_wrap(x, NULL), *to = into ? self : other;
    PyObject *r = NULL;
    if (other && same_size(self, other, into ? "copy_from" : "copy_to")) {
        if (to->arg.flags & EAS_ARG_READONLY)
            py_fail(PyExc_ValueError, "%s: the destination is read-only", into ? "copy_from" : "copy_to");
        else if (into)
            r = queue_copy(self, other, o, (PyObject *)other, sync, stream);
        else
            r = queue_copy(other, self, (PyObject *)other, o, sync, stream);
    }
    Py_XDECREF(other);
    return r;
}
static PyObject *tensor_copy_from(PyObject *o, PyObject *args, PyObject *kw)
{
    return copy_either(o, args, kw, true);
}
static PyObject *tensor_copy_to(PyObject *o, PyObject *args, PyObject *kw)
{
    return copy_either(o, args, kw, false);
}
static PyObject *tensor_to(PyObject *o, PyObject *args, PyObject *kw)
{
    static char *names[] = {"device", "dtype", NULL};
    PyObject *device = Py_None, *dtype = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O$O:to", names, &device, &dtype))
        return NULL;
    eas_device *d = device == Py_None ? ((Tensor *)o)->device : py_device(device);
    Tensor *t = d ? tensor_wrap(o, dtype) : NULL;
    if (!t || t->device == d)
        return (PyObject *)t;
    Tensor *moved = tensor_copy(t, d);
    Py_DECREF(t);
    return (PyObject *)moved;
}

/* ---- attributes ---- */
static PyObject *dims_tuple(const int64_t *dims, int n)
{
    PyObject *t = PyTuple_New(n);
    for (int i = 0; t && i < n; i++)
        PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(dims[i]));
    return t;
}
static PyObject *get_shape(PyObject *o, void *c)
{
    (void)c;
    return dims_tuple(((Tensor *)o)->dims, ((Tensor *)o)->ndim);
}
static PyObject *get_strides(PyObject *o, void *c)
{
    (void)c;
    return dims_tuple(((Tensor *)o)->dims + ((Tensor *)o)->ndim, ((Tensor *)o)->ndim);
}
static PyObject *get_dtype(PyObject *o, void *c)
{
    (void)c;
    return py_npy_dtype((eas_dtype)((Tensor *)o)->arg.dtype);
}
static PyObject *get_device(PyObject *o, void *c)
{
    (void)c;
    return PyUnicode_FromString(eas_device_name(((Tensor *)o)->device));
}
static PyObject *get_ndim(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromLong(((Tensor *)o)->ndim);
}
static PyObject *get_size(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromLongLong(((Tensor *)o)->arg.count);
}
static PyObject *get_itemsize(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromSize_t(eas_dtype_size((eas_dtype)((Tensor *)o)->arg.dtype));
}
static PyObject *get_nbytes(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromLongLong(((Tensor *)o)->arg.count *
                               (int64_t)eas_dtype_size((eas_dtype)((Tensor *)o)->arg.dtype));
}
static PyObject *get_contiguous(PyObject *o, void *c)
{
    (void)c;
    Tensor *t = (Tensor *)o;
    return PyBool_FromLong(
        in_c_order(t->ndim, t->dims, t->dims + t->ndim, (int64_t)eas_dtype_size((eas_dtype)t->arg.dtype)));
}
static PyObject *get_data_ptr(PyObject *o, PyObject *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((Tensor *)o)->arg.v.data);
}
static Py_ssize_t tensor_len(PyObject *o)
{
    if (((Tensor *)o)->ndim)
        return (Py_ssize_t)((Tensor *)o)->dims[0];
    PyErr_SetString(PyExc_TypeError, "len() of a 0-d tensor");
    return -1;
}
static PyObject *tensor_item(PyObject *o, Py_ssize_t i) /* what iterates */
{
    PyObject *n = PyLong_FromSsize_t(i), *r = n ? view_subscript(o, n) : NULL;
    Py_XDECREF(n);
    return r;
}
static PyObject *tensor_to_torch(PyObject *o, PyObject *args, PyObject *kw)
{
    PyObject *r =
        PyTuple_GET_SIZE(args) || (kw && PyDict_GET_SIZE(kw)) ? Py_NewRef(Py_None) : torch_export(NULL, o);
    if (r != Py_None)
        return r;
    Py_CLEAR(r);
    PyObject *m = PyImport_ImportModule("eas.torch"), *f = m ? PyObject_GetAttrString(m, "to_torch") : NULL;
    PyObject *all = f ? PyTuple_New(PyTuple_GET_SIZE(args) + 1) : NULL;
    if (all) {
        PyTuple_SET_ITEM(all, 0, Py_NewRef(o));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
            PyTuple_SET_ITEM(all, i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
        r = PyObject_Call(f, all, kw);
    }
    Py_XDECREF(all);
    Py_XDECREF(f);
    Py_XDECREF(m);
    return r;
}
static PyObject *tensor_repr(PyObject *o)
{
    PyObject *shape = get_shape(o, NULL),
             *a = shape
                    ? tensor_on_host((Tensor *)o) ? tensor_array_view((Tensor *)o) : tensor_fetch((Tensor *)o)
                    : NULL,
             *text = NULL;
    if (shape && !a)
        PyErr_Clear();
    text = a ? PyObject_Str(a) : PyUnicode_FromString("...");
    PyObject *r = text ? PyUnicode_FromFormat("eas.Tensor(%U, shape=%S, dtype=%s, device='%s')", text, shape,
                                              eas_dtype_name((eas_dtype)((Tensor *)o)->arg.dtype),
                                              eas_device_name(((Tensor *)o)->device))
                       : NULL;
    Py_XDECREF(text);
    Py_XDECREF(a);
    Py_XDECREF(shape);
    return r;
}

static PyGetSetDef tensor_getset[] = {
    {"shape", get_shape, NULL, "length of each dim", NULL},
    {"strides", get_strides, NULL, "bytes from one element to the next, per dim", NULL},
    {"dtype", get_dtype, NULL, "np.dtype of the elements", NULL},
    {"device", get_device, NULL, "\"cpu\", \"ref\", ...", NULL},
    {"ndim", get_ndim, NULL, "number of dims", NULL},
    {"size", get_size, NULL, "number of elements", NULL},
    {"itemsize", get_itemsize, NULL, "bytes of an element", NULL},
    {"nbytes", get_nbytes, NULL, "bytes of all elements", NULL},
    {"is_contiguous", get_contiguous, NULL, "are the elements in C order without gaps? (kernels need that)",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef tensor_methods[] = {
    {"to_numpy", tensor_numpy, METH_NOARGS, "to_numpy(): the same as numpy()"},
    {"numpy", tensor_numpy, METH_NOARGS,
     "numpy(): the elements as an array; on the cpu the same memory, elsewhere a copy"},
    {"to", (PyCFunction)(void (*)(void))tensor_to, METH_VARARGS | METH_KEYWORDS,
     "to(device=None, *, dtype=None): the tensor there and of that dtype; itself if it is so already, else a copy"},
    {"copy_from", (PyCFunction)(void (*)(void))tensor_copy_from, METH_VARARGS | METH_KEYWORDS,
     "copy_from(x, *, sync=True, stream=None): x's elements into this tensor; can be queued and captured as a launch can"},
    {"copy_to", (PyCFunction)(void (*)(void))tensor_copy_to, METH_VARARGS | METH_KEYWORDS,
     "copy_to(x, *, sync=True, stream=None): this tensor's elements into x; can be queued and captured as a launch can"},
    {"data_ptr", get_data_ptr, METH_NOARGS, "data_ptr(): address of the first element"},
    {"to_torch", (PyCFunction)(void (*)(void))tensor_to_torch, METH_VARARGS | METH_KEYWORDS,
     "to_torch(device=None): as a torch tensor; on the cpu the same memory"},
    {"__array__", (PyCFunction)(void (*)(void))tensor_array, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)"},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef tensor_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Tensor, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot tensor_slots[] = {
    {Py_tp_doc,
     "Shaped memory on a device; made by eas.tensor, eas.empty, eas.zeros, eas.ones, eas.from_dlpack."},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_repr, tensor_repr},
    {Py_tp_getset, tensor_getset},
    {Py_tp_methods, tensor_methods},
    {Py_tp_members, tensor_members},
    {Py_sq_length, tensor_len},
    {Py_sq_item, tensor_item},
    {Py_mp_length, tensor_len},
    {Py_mp_subscript, view_subscript},
    {Py_mp_ass_subscript, view_assign},
    {Py_bf_getbuffer, view_getbuffer},
    {Py_bf_releasebuffer, view_releasebuffer},
    {0, NULL},
};
PyType_Spec Tensor_spec = {"eas.Tensor", sizeof(Tensor), sizeof(int64_t),
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, tensor_slots};

static PyObject *eas_from_dlpack(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    static char *names[] = {"x", "device", "copy", NULL};
    PyObject *x, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OO:from_dlpack", names, &x, &device, &copy))
        return NULL;
    if (copy != Py_None && !PyBool_Check(copy))
        return py_fail(PyExc_TypeError, "copy must be None, True or False, got %R", copy);
    eas_device *d = device == Py_None ? NULL : py_device(device);
    PyObject *t = d || device == Py_None ? tensor_from_dlpack(x, copy) : NULL;
    if (!t || !d || ((Tensor *)t)->device == d)
        return t;
    if (copy == Py_False) {
        py_fail(PyExc_BufferError,
                "the data is on '%s': to reach '%s' it must be copied, which copy=False forbids",
                eas_device_name(((Tensor *)t)->device), eas_device_name(d));
        return Py_DECREF(t), NULL;
    }
    Tensor *moved = tensor_copy((Tensor *)t, d);
    Py_DECREF(t);
    return (PyObject *)moved;
}
static PyObject *eas_devices(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < eas_device_count(); i++) {
        eas_device *d = eas_device_at(i);
        PyObject *t =
            Py_BuildValue("(szz)", eas_device_name(d), eas_device_describe(d), eas_device_unavailable(d));
        if (!t || PyList_Append(list, t) < 0)
            Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}
static PyObject *device_facts(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < eas_device_count(); i++) {
        const eas_device_facts f = eas_device_facts_get(eas_device_at(i));
        PyObject *t =
            Py_BuildValue("{sssz sz si sz sz}", "name", eas_device_name(eas_device_at(i)), "alias", f.alias,
                          "text", f.text, "dlpack", f.dlpack, "absent", f.absent, "failed", f.failed);
        if (!t || PyList_Append(list, t) < 0)
            Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}
#define KW(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef functions[] = {
    {"tensor", KW(tensor_new_tensor),
     "tensor(data, *, device=None, dtype=None)\n--\n\nA tensor over data: arrays, torch tensors and DLPack producers on the cpu without a copy; "
     "nested lists; tensors."},
    {"empty", KW(tensor_new_empty),
     "empty(shape, *, device=None, dtype=None)\n--\n\nA tensor of float32 unless told otherwise; its elements are arbitrary."},
    {"zeros", KW(tensor_new_zeros), "zeros(shape, *, device=None, dtype=None)\n--\n\nA tensor of zeros."},
    {"ones", KW(tensor_new_ones), "ones(shape, *, device=None, dtype=None)\n--\n\nA tensor of ones."},
    {"empty_like", KW(tensor_new_empty_like),
     "empty_like(x, *, device=None, dtype=None)\n--\n\nA tensor of x's shape, dtype and device."},
    {"empty_shared", KW(tensor_new_shared),
     "empty_shared(nbytes, *, device): a tensor of uint8 in memory that host and device share"},
    {"from_dlpack", KW(eas_from_dlpack),
     "from_dlpack(x, *, device=None, copy=None)\n--\n\nA tensor over what x.__dlpack__() gives (or over a DLPack capsule). Copied if copy is True or "
     "the device is another one."},
    {"_rebuild", view_rebuild, METH_VARARGS, "_rebuild(bytes, dtype, shape, device): what pickles call"},
    {"_torch_learn", torch_learn, METH_VARARGS,
     "_torch_learn(path of torch's extension, samples): whether tensors are read by torch's C functions from now on"},
    {"_to_torch", torch_export, METH_O,
     "_to_torch(t): a torch tensor over a tensor of the cpu; None where that takes a longer way"},
    {"_device_facts", device_facts, METH_NOARGS,
     "_device_facts(): a dict of each device: name, alias, text, dlpack, absent, failed"},
    {"devices", eas_devices, METH_NOARGS, "devices(): (name, description, why unavailable or None) of each"},
    {NULL, NULL, 0, NULL},
};
/* What view.c has: the type's own tables hold the rest. */
static int add_views(void)
{
    for (PyMethodDef *m = view_methods; m->ml_name; m++) {
        PyObject *d = PyDescr_NewMethod(G.tensor, m);
        int r = d ? PyObject_SetAttrString((PyObject *)G.tensor, m->ml_name, d) : -1;
        Py_XDECREF(d);
        if (r < 0)
            return -1;
    }
    for (PyGetSetDef *g = view_getset; g->name; g++) {
        PyObject *d = PyDescr_NewGetSet(G.tensor, g);
        int r = d ? PyObject_SetAttrString((PyObject *)G.tensor, g->name, d) : -1;
        Py_XDECREF(d);
        if (r < 0)
            return -1;
    }
    return 0;
}
int tensor_init(PyObject *module)
{
    if (!(G.tensor = py_type(module, &Tensor_spec, "Tensor")) || add_views() < 0 || dlpack_init() < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
