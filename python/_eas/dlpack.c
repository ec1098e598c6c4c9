/* dlpack.c: DLPack 1.x, both ways, old and versioned capsules; no copies. */
#include "py.h"

#include <string.h>

/* The interface as DLPack's specification lays it out. */
typedef struct {
    int32_t type, id;
} dl_device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
typedef struct dl_managed {
    dl_tensor t;
    void *ctx;
    void (*deleter)(struct dl_managed *);
} dl_managed;
typedef struct dl_versioned {
    uint32_t major, minor;
    void *ctx;
    void (*deleter)(struct dl_versioned *);
    uint64_t flags;
    dl_tensor t;
} dl_versioned;
enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_OPENCL = 4, DL_METAL = 8 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };
enum { DL_READ_ONLY = 1, DL_IS_COPIED = 2 };
static const char OLD[] = "dltensor", NEW[] = "dltensor_versioned", OLD_USED[] = "used_dltensor", NEW_USED[] = "used_dltensor_versioned";

static dl_dtype dtype_out(eas_dtype dt)
{
    char kind = eas_dtype_kind(dt);
    uint8_t code = dt == EAS_BF16 ? DL_BFLOAT : kind == 'b' ? DL_BOOL : kind == 'i' ? DL_INT : kind == 'u' ? DL_UINT : DL_FLOAT;
    return (dl_dtype){code, (uint8_t)(8 * eas_dtype_size(dt)), 1};
}
static int dtype_in(dl_dtype d)
{
    for (int i = 0; i < EAS_NDTYPES; i++) {
        dl_dtype o = dtype_out((eas_dtype)i);
        if (d.lanes == 1 && o.code == d.code && o.bits == d.bits)
            return i;
    }
    return -1;
}
static dl_device device_of(const Tensor *t)
{
    const char *name = eas_device_name(t->device);
    return (dl_device){!strcmp(name, "mps") ? DL_METAL : !strcmp(name, "opencl") ? DL_OPENCL : DL_CPU, 0};
}

/* ---- out ---- */
typedef struct held { /* what the consumer frees; shape and strides in elements follow */
    union {
        dl_managed old;
        dl_versioned new;
    } m;
    PyObject *tensor;
    int64_t dims[];
} held;

static void drop(held *h)
{
    PyGILState_STATE gil = PyGILState_Ensure(); /* consumers may free from any thread */
    Py_DECREF(h->tensor);
    PyGILState_Release(gil);
    PyMem_RawFree(h);
}
static void drop_old(dl_managed *m) { drop(m->ctx); }
static void drop_new(dl_versioned *m) { drop(m->ctx); }
static void capsule_free(PyObject *c) /* only if nobody took it */
{
    if (PyCapsule_IsValid(c, OLD))
        drop_old(PyCapsule_GetPointer(c, OLD));
    else if (PyCapsule_IsValid(c, NEW))
        drop_new(PyCapsule_GetPointer(c, NEW));
}
static void fill(dl_tensor *d, Tensor *t, int64_t *dims)
{
    int64_t size = (int64_t)eas_dtype_size((eas_dtype)t->arg.dtype);
    for (int i = 0; i < t->ndim; i++) {
        dims[i] = t->dims[i];
        dims[t->ndim + i] = t->dims[t->ndim + i] / size;
    }
    *d = (dl_tensor){t->arg.v.data, device_of(t), t->ndim, dtype_out((eas_dtype)t->arg.dtype), dims, dims + t->ndim, 0};
    if (!eas_device_host_memory(t->device)) { /* a handle, and where in it */
        size_t offset;
        d->data = eas_device_handle(t->device, t->arg.v.data, &offset);
        d->byte_offset = offset;
    }
}
/* Others know nothing of our streams: what is pending is done first. */
static int settled(Tensor *t)
{
    size_t offset;
    hooks h;
    eas_launch l = {0};
    if (eas_device_host_memory(t->device))
        return 1;
    if (!eas_device_handle(t->device, t->arg.v.data, &offset)) {
        py_fail(PyExc_BufferError, "memory of '%s' has no handle that others could use: move the tensor with .to(\"cpu\") first",
                eas_device_name(t->device));
        return 0;
    }
    hooks_init(&l, &h);
    eas_status st = eas_synchronize(t->device, &l);
    return st == EAS_OK ? 1 : (py_raise(st), 0);
}
static PyObject *export(Tensor *t, bool versioned)
{
    held *h = PyMem_RawMalloc(sizeof *h + 2 * (size_t)t->ndim * sizeof(int64_t));
    if (!h)
        return PyErr_NoMemory();
    h->tensor = Py_NewRef(t);
    if (versioned) {
        h->m.new = (dl_versioned){.major = 1, .minor = 0, .ctx = h, .deleter = drop_new, .flags = t->arg.flags & EAS_ARG_READONLY ? DL_READ_ONLY : 0};
        fill(&h->m.new.t, t, h->dims);
    } else {
        h->m.old = (dl_managed){.ctx = h, .deleter = drop_old};
        fill(&h->m.old.t, t, h->dims);
    }
    PyObject *c = PyCapsule_New(&h->m, versioned ? NEW : OLD, capsule_free);
    if (!c)
        drop(h);
    return c;
}
static int pair(PyObject *o, long *a, const char *what) /* the first of a tuple of two */
{
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 2)
        return py_fail(PyExc_TypeError, "%s must be a tuple of two ints", what), 0;
    *a = PyLong_AsLong(PyTuple_GET_ITEM(o, 0));
    return !PyErr_Occurred();
}
PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kw)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    Tensor *t = (Tensor *)self;
    long major = 0, type = device_of(t).type;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|$OOOO:__dlpack__", names, &stream, &version, &device, &copy))
        return NULL;
    if (stream != Py_None)
        return py_fail(PyExc_BufferError, "a %s tensor has no streams: stream must be None", eas_device_name(t->device));
    if (copy == Py_True)
        return py_fail(PyExc_BufferError, "copy=True: copy the tensor before exporting it");
    if ((version != Py_None && !pair(version, &major, "max_version")) || (device != Py_None && !pair(device, &type, "dl_device")))
        return NULL;
    if (type != device_of(t).type)
        return py_fail(PyExc_BufferError, "the tensor is on '%s': move it with .to() first", eas_device_name(t->device));
    if (major < 1 && (t->arg.flags & EAS_ARG_READONLY))
        return py_fail(PyExc_BufferError, "a read-only tensor needs a consumer of DLPack 1.0 or newer");
    return settled(t) ? export(t, major >= 1) : NULL;
}
PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    dl_device d = device_of((Tensor *)self);
    return Py_BuildValue("(ii)", d.type, d.id);
}

/* ---- in ---- */
static void owner_free(PyObject *c)
{
    if (PyCapsule_IsValid(c, OLD_USED)) {
        dl_managed *m = PyCapsule_GetPointer(c, OLD_USED);
        if (m->deleter)
            m->deleter(m);
    } else {
        dl_versioned *m = PyCapsule_GetPointer(c, NEW_USED);
        if (m && m->deleter)
            m->deleter(m);
    }
}
static Tensor *over_metal(const dl_tensor *d, eas_dtype dt, const int64_t *strides, bool readonly)
{
    eas_device *mps = py_device_named("mps");
    eas_buffer *b;
    if (!mps)
        return NULL;
    eas_status st = eas_buffer_adopt(mps, d->data, NULL, NULL, &b);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    Tensor *t = tensor_over(mps, dt, d->ndim, d->shape, strides, (char *)eas_buffer_address(b) + d->byte_offset, readonly, NULL);
    if (!t)
        return eas_buffer_release(b), NULL;
    t->buf = b;
    int64_t size = (int64_t)eas_dtype_size(dt), room = (int64_t)((eas_buffer_size(b) - d->byte_offset) / (size_t)size);
    if (t->tag && d->byte_offset <= eas_buffer_size(b) && t->arg.count <= room && d->byte_offset % (uint64_t)size == 0)
        return t;
    Py_DECREF(t);
    return py_fail(PyExc_BufferError, "a Metal buffer is taken as it is: contiguous, aligned to its elements and inside the buffer"), NULL;
}
static Tensor *over(const dl_tensor *d, bool readonly)
{
    int dt = dtype_in(d->dtype);
    int64_t strides[NPY_MAXDIMS];
    if (dt < 0)
        return py_fail(PyExc_TypeError, "DLPack element type (code %d, %d bits, %d lanes) is not supported", d->dtype.code, d->dtype.bits,
                       d->dtype.lanes),
               NULL;
    if (d->device.type != DL_CPU && d->device.type != DL_CUDA_HOST && d->device.type != DL_METAL)
        return py_fail(PyExc_RuntimeError, "DLPack device type %d is not reachable from here: move the data to the CPU first", d->device.type), NULL;
    if (d->ndim > NPY_MAXDIMS)
        return py_fail(PyExc_ValueError, "%d dims are too many", d->ndim), NULL;
    for (int i = 0; d->strides && i < d->ndim; i++)
        strides[i] = d->strides[i] * (int64_t)eas_dtype_size((eas_dtype)dt);
    if (d->device.type == DL_METAL)
        return over_metal(d, (eas_dtype)dt, d->strides ? strides : NULL, readonly);
    Tensor *t = tensor_over(G.cpu, (eas_dtype)dt, d->ndim, d->shape, d->strides ? strides : NULL, (char *)d->data + d->byte_offset, readonly, NULL);
    if (t && (uintptr_t)t->arg.v.data % eas_dtype_size((eas_dtype)dt))
        t->tag = 0;
    return t;
}
/* Takes what the capsule holds; the tensor's owner then frees it, exactly once. */
static PyObject *consume(PyObject *c)
{
    bool new = PyCapsule_IsValid(c, NEW);
    if (!new && !PyCapsule_IsValid(c, OLD))
        return py_fail(PyExc_ValueError, "not a fresh DLPack capsule: each can be used once");
    void *p = PyCapsule_GetPointer(c, new ? NEW : OLD);
    if (new && ((dl_versioned *)p)->major != 1)
        return py_fail(PyExc_BufferError, "DLPack %u.x is not known here", ((dl_versioned *)p)->major);
    Tensor *t = new ? over(&((dl_versioned *)p)->t, ((dl_versioned *)p)->flags & DL_READ_ONLY) : over(&((dl_managed *)p)->t, false);
    if (!t)
        return NULL;
    t->owner = PyCapsule_New(p, new ? NEW_USED : OLD_USED, owner_free);
    if (!t->owner || PyCapsule_SetName(c, new ? NEW_USED : OLD_USED) < 0)
        return Py_DECREF(t), NULL;
    PyCapsule_SetDestructor(c, NULL);
    return (PyObject *)t;
}
static PyObject *ask(PyObject *o) /* o.__dlpack__(max_version=(1, 0)), or without it for older producers */
{
    PyObject *f = PyObject_GetAttr(o, N.__dlpack__), *kw = f ? Py_BuildValue("{O(ii)}", N.max_version, 1, 0) : NULL,
             *none = kw ? PyTuple_New(0) : NULL;
    PyObject *c = none ? PyObject_Call(f, none, kw) : NULL;
    if (!c && none && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        c = PyObject_CallNoArgs(f);
    }
    Py_XDECREF(none);
    Py_XDECREF(kw);
    Py_XDECREF(f);
    return c;
}
static int reachable(PyObject *o)
{
    PyObject *f = PyObject_GetAttr(o, N.__dlpack_device__), *d = f ? PyObject_CallNoArgs(f) : NULL;
    Py_XDECREF(f);
    if (!d)
        return PyErr_Clear(), 1; /* older producers: the capsule tells */
    PyObject *first = PySequence_GetItem(d, 0);
    long type = first ? PyLong_AsLong(first) : -1; /* some give an enum */
    PyErr_Clear();
    Py_XDECREF(first);
    Py_DECREF(d);
    if (type == DL_CPU || type == DL_CUDA_HOST || type == DL_METAL || type == -1)
        return 1;
    py_fail(PyExc_RuntimeError, "the %s is on DLPack device type %ld, which is not reachable from here: move it to the CPU first",
            Py_TYPE(o)->tp_name, type);
    return 0;
}
PyObject *tensor_from_dlpack(PyObject *o)
{
    if (tensor_check(o))
        return Py_NewRef(o);
    if (PyCapsule_CheckExact(o))
        return consume(o);
    if (!PyObject_HasAttr(o, N.__dlpack__))
        return py_fail(PyExc_TypeError, "from_dlpack takes an object with __dlpack__ or a DLPack capsule, got %s", Py_TYPE(o)->tp_name);
    PyObject *c = reachable(o) ? ask(o) : NULL, *t = c ? consume(c) : NULL;
    Py_XDECREF(c);
    return t;
}
