/* dlpack.c: DLPack 1.x, both ways: old and versioned capsules, and the table of C functions. No copies unless
 * asked for. */
#include "dlpack.h"

#include <string.h>

static const char OLD[] = "dltensor", NEW[] = "dltensor_versioned", OLD_USED[] = "used_dltensor",
                  NEW_USED[] = "used_dltensor_versioned";

static dl_dtype dtype_out(eas_dtype dt)
{
    char kind = eas_dtype_kind(dt);
    uint8_t code = dt == EAS_BF16 ? DL_BFLOAT
                 : kind == 'b'    ? DL_BOOL
                 : kind == 'i'    ? DL_INT
                 : kind == 'u'    ? DL_UINT
                                  : DL_FLOAT;
    return (dl_dtype){code, (uint8_t)(8 * eas_dtype_size(dt)), 1};
}
/* By code and bytes, plus 1; 0: no such type here. */
static uint8_t dtype_table[DL_BOOL + 1][9];
static void fill_dtypes(void)
{
    for (int i = 0; i < EAS_NDTYPES; i++) {
        dl_dtype d = dtype_out((eas_dtype)i);
        dtype_table[d.code][d.bits / 8] = (uint8_t)(i + 1);
    }
}
int dlpack_dtype(dl_dtype d)
{
    return d.lanes == 1 && d.code <= DL_BOOL && d.bits <= 64 && d.bits % 8 == 0
             ? dtype_table[d.code][d.bits / 8] - 1
             : -1;
}
static dl_device device_of(const Tensor *t) { return (dl_device){eas_device_facts_get(t->device).dlpack, 0}; }
/* The first device with tensors of that type; NULL: none. */
static eas_device *device_by_type(int type)
{
    for (int i = 0; i < eas_device_count(); i++)
        if (eas_device_facts_get(eas_device_at(i)).dlpack == type)
            return eas_device_at(i);
    return NULL;
}
/* Are tensors of that type handles of a device of ours? */
static bool by_handle(int type)
{
    const eas_device *d = device_by_type(type);
    return d && !eas_device_has_host_memory(d);
}

/* ---- out ---- */
typedef struct held { /* what the consumer frees */
    union {
        dl_managed old;
        dl_versioned new;
    } m;
    PyObject *tensor; /* shape and strides are its own */
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
/* DLPack counts strides in elements; arrays with fields have others. */
static int whole_strides(const Tensor *t)
{
    int64_t size = (int64_t)eas_dtype_size((eas_dtype)t->arg.dtype);
    for (int i = 0; i < t->ndim; i++)
        if (t->dims[i] > 1 && t->dims[t->ndim + i] % size) {
            py_fail(PyExc_BufferError,
                    "a stride of %lld bytes is no whole number of %s elements: copy the tensor first",
                    (long long)t->dims[t->ndim + i], eas_dtype_name((eas_dtype)t->arg.dtype));
            return 0;
        }
    return 1;
}
/* Others know nothing of our streams: what is pending is done first. */
static int settled(Tensor *t)
{
    size_t offset;
    hooks h;
    eas_launch l = {0};
    if (eas_device_has_host_memory(t->device))
        return 1;
    if (!eas_device_handle(t->device, t->arg.v.data, &offset)) {
        py_fail(PyExc_BufferError,
                "memory of '%s' has no handle that others could use: move the tensor with .to(\"cpu\") first",
                eas_device_name(t->device));
        return 0;
    }
    hooks_init(&l, &h);
    eas_status st = eas_device_synchronize(t->device, &l);
    return st == EAS_OK ? 1 : (py_raise(st), 0);
}
static int fill(dl_tensor *d, Tensor *t)
{
    if (!whole_strides(t) || !settled(t))
        return 0;
    *d = (dl_tensor){t->arg.v.data, device_of(t),          t->ndim, dtype_out((eas_dtype)t->arg.dtype),
                     t->dims,       t->dims + 2 * t->ndim, 0};
    if (!eas_device_has_host_memory(t->device)) { /* a handle, and where in it */
        size_t offset;
        d->data = eas_device_handle(t->device, t->arg.v.data, &offset);
        d->byte_offset = offset;
    }
    return 1;
}
static held *hold(Tensor *t, dl_tensor *d)
{
    held *h = fill(d, t) ? PyMem_RawCalloc(1, sizeof *h) : NULL;
    if (h)
        h->tensor = Py_NewRef(t);
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    return h;
}
dl_versioned *dlpack_give(Tensor *t, bool copied)
{
    dl_tensor d;
    held *h = hold(t, &d);
    uint64_t flags = (t->arg.flags & EAS_ARG_READONLY ? DL_READ_ONLY : 0) | (copied ? DL_IS_COPIED : 0);
    if (!h)
        return NULL;
    h->m.new = (dl_versioned){.major = 1, .minor = 0, .ctx = h, .deleter = drop_new, .flags = flags, .t = d};
    return &h->m.new;
}
static dl_managed *give_old(Tensor *t)
{
    dl_tensor d;
    held *h = hold(t, &d);
    if (!h)
        return NULL;
    h->m.old = (dl_managed){.ctx = h, .deleter = drop_old, .t = d};
    return &h->m.old;
}
static PyObject *export(Tensor *t, bool versioned, bool copied)
{
    void *m = versioned ? (void *)dlpack_give(t, copied) : (void *)give_old(t);
    PyObject *c = m ? PyCapsule_New(m, versioned ? NEW : OLD, capsule_free) : NULL;
    if (m && !c)
        drop(versioned ? ((dl_versioned *)m)->ctx : ((dl_managed *)m)->ctx);
    return c;
}
static int pair(PyObject *o, const char *what, long out[2])
{
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 2)
        return py_fail(PyExc_TypeError, "%s must be a tuple of two ints", what), 0;
    for (int i = 0; i < 2; i++)
        out[i] = PyLong_AsLong(PyTuple_GET_ITEM(o, i));
    return !PyErr_Occurred();
}
/* The tensor as it is exported: itself, or a copy where one is asked for. New reference; NULL with an
 * exception. */
static Tensor *exported(Tensor *t, const long want[2], PyObject *copy)
{
    bool here = want[0] == device_of(t).type && want[1] == device_of(t).id,
         host = want[0] == DL_CPU && want[1] == 0;
    if (!here && !host)
        return py_fail(
                   PyExc_BufferError,
                   "the tensor is on '%s' and cannot be exported to DLPack device (%ld, %ld): move it with .to() first",
                   eas_device_name(t->device), want[0], want[1]),
               NULL;
    if (!here && copy == Py_False)
        return py_fail(PyExc_BufferError,
                       "the tensor is on '%s': to reach the CPU it must be copied, which copy=False forbids",
                       eas_device_name(t->device)),
               NULL;
    if (here && copy != Py_True)
        return (Tensor *)Py_NewRef(t);
    return tensor_copy(t, here ? t->device : G.cpu);
}
/* Devices other than the CPU are waited for unless -1 says that the consumer does it; they have no streams of
 * a kind that DLPack numbers. */
static int check_stream(const Tensor *t, PyObject *stream)
{
    if (stream == Py_None ||
        (!eas_device_has_host_memory(t->device) && PyLong_Check(stream) && PyLong_AsLong(stream) == -1))
        return 1;
    PyErr_Clear();
    py_fail(PyExc_BufferError, "stream must be None for a tensor on '%s', got %R", eas_device_name(t->device),
            stream);
    return 0;
}
PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kw)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    Tensor *t = (Tensor *)self;
    long max[2] = {0, 0}, want[2] = {device_of(t).type, device_of(t).id};
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|$OOOO:__dlpack__", names, &stream, &version, &device, &copy))
        return NULL;
    if ((version != Py_None && !pair(version, "max_version", max)) ||
        (device != Py_None && !pair(device, "dl_device", want)))
        return NULL;
    if (copy != Py_None && !PyBool_Check(copy))
        return py_fail(PyExc_TypeError, "copy must be None, True or False, got %R", copy);
    Tensor *out = check_stream(t, stream) ? exported(t, want, copy) : NULL;
    PyObject *c = NULL;
    if (out && max[0] < 1 && (out->arg.flags & EAS_ARG_READONLY))
        py_fail(PyExc_BufferError, "a read-only tensor needs a consumer of DLPack 1.0 or newer");
    else if (out)
        c = export(out, max[0] >= 1, out != t);
    Py_XDECREF(out);
    return c;
}
PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    dl_device d = device_of((Tensor *)self);
    return Py_BuildValue("(ii)", d.type, d.id);
}

/* ---- in ---- */
/* The deleter may run anything: an exception that is on its way stays out of it. */
static void delete(void *m, bool versioned)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (versioned && ((dl_versioned *)m)->deleter)
        ((dl_versioned *)m)->deleter(m);
    else if (!versioned && ((dl_managed *)m)->deleter)
        ((dl_managed *)m)->deleter(m);
    PyErr_Restore(type, value, trace);
}
static void owner_free(PyObject *c)
{
    bool new = PyCapsule_IsValid(c, NEW_USED);
    delete (PyCapsule_GetPointer(c, new ? NEW_USED : OLD_USED), new);
}
/* Memory behind a handle: data is it, byte_offset where in it the tensor begins. */
static Tensor *over_handle(const dl_tensor *d, eas_dtype dt, const int64_t *strides, bool readonly)
{
    eas_device *dev = py_device_named(eas_device_name(device_by_type(d->device.type)));
    eas_buffer *b;
    if (!dev)
        return NULL;
    eas_status st = eas_buffer_adopt(dev, d->data, NULL, NULL, &b);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    Tensor *t = tensor_over(dev, dt, d->ndim, d->shape, strides,
                            (char *)eas_buffer_address(b) + d->byte_offset, readonly, NULL);
    if (!t)
        return eas_buffer_release(b), NULL;
    t->buf = b;
    int64_t lo, hi, size = (int64_t)eas_dtype_size(dt);
    tensor_span(t, &lo, &hi);
    uint64_t room = eas_buffer_size(b);
    if (d->byte_offset % (uint64_t)size == 0 && d->byte_offset <= room && lo >= -(int64_t)d->byte_offset &&
        hi <= (int64_t)(room - d->byte_offset))
        return t;
    Py_DECREF(t);
    return py_fail(
               PyExc_BufferError,
               "a buffer of %llu bytes on '%s' does not hold the tensor: bytes %lld to %lld from offset %llu, in elements of %lld",
               (unsigned long long)room, eas_device_name(dev), (long long)lo, (long long)hi,
               (unsigned long long)d->byte_offset, (long long)size),
           NULL;
}
static Tensor *over(const dl_tensor *d, bool readonly)
{
    int dt = dlpack_dtype(d->dtype);
    int64_t strides[NPY_MAXDIMS];
    if (dt < 0)
        return py_fail(PyExc_TypeError, "DLPack element type (code %d, %d bits, %d lanes) is not supported",
                       d->dtype.code, d->dtype.bits, d->dtype.lanes),
               NULL;
    bool handle = by_handle(d->device.type);
    if (d->device.type != DL_CPU && d->device.type != DL_CUDA_HOST && !handle)
        return py_fail(PyExc_RuntimeError,
                       "DLPack device type %d is not reachable from here: move the data to the CPU first",
                       d->device.type),
               NULL;
    if (d->ndim < 0 || d->ndim > NPY_MAXDIMS)
        return py_fail(PyExc_ValueError, "%d dims; a tensor has at most %d", d->ndim, NPY_MAXDIMS), NULL;
    if (d->ndim && !d->shape)
        return py_fail(PyExc_ValueError, "%d dims, and no shape (NULL)", d->ndim), NULL;
    bool any = true; /* elements at all */
    for (int i = 0; i < d->ndim; i++)
        any = any && d->shape[i];
    for (int i = 0; d->strides && i < d->ndim; i++) {
        if (!__builtin_mul_overflow(d->strides[i], (int64_t)eas_dtype_size((eas_dtype)dt), &strides[i]))
            continue;
        if (any && d->shape[i] > 1)
            return py_fail(PyExc_ValueError,
                           "a stride of %lld elements along axis %d leads out of any memory",
                           (long long)d->strides[i], i),
                   NULL;
        strides[i] = 0; /* of no meaning */
    }
    if (d->byte_offset > INT64_MAX)
        return py_fail(PyExc_ValueError, "an offset of %llu bytes leads out of any memory",
                       (unsigned long long)d->byte_offset),
               NULL;
    if (handle)
        return over_handle(d, (eas_dtype)dt, d->strides ? strides : NULL, readonly);
    void *at = (void *)((uintptr_t)d->data + (uintptr_t)d->byte_offset);
    Tensor *t =
        tensor_over(G.cpu, (eas_dtype)dt, d->ndim, d->shape, d->strides ? strides : NULL, at, readonly, NULL);
    if (t && t->arg.count && !d->data) {
        Py_DECREF(t);
        return py_fail(
                   PyExc_BufferError,
                   "there is no memory behind the tensor: it is fake, functional, or its storage was freed"),
               NULL;
    }
    if (t && (uintptr_t)t->arg.v.data % eas_dtype_size((eas_dtype)dt))
        t->tag = 0;
    return t;
}
/* m's content, owned by a tensor: deleted exactly once, when the tensor goes or here if there can be none. */
static PyObject *take(void *m, const dl_tensor *d, bool readonly, const char *name)
{
    Tensor *t = over(d, readonly);
    PyObject *owner = PyCapsule_New(m, name, owner_free);
    if (!owner) { /* out of memory: nobody else would free m */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        delete (m, name == NEW_USED);
        PyErr_Restore(type, value, trace);
    }
    if (!t || !owner)
        return Py_XDECREF(t), Py_XDECREF(owner), NULL;
    t->owner = owner;
    return (PyObject *)t;
}
static int known_version(const dl_versioned *m)
{
    if (m->major == 1)
        return 1;
    py_fail(PyExc_BufferError, "DLPack %u.x is not known here", m->major);
    return 0;
}
PyObject *dlpack_take(dl_versioned *m)
{
    if (known_version(m))
        return take(m, &m->t, m->flags & DL_READ_ONLY, NEW_USED);
    delete (m, true); /* its head is the same in every version */
    return NULL;
}
/* A capsule whose content cannot be used keeps it, and frees it itself. */
static PyObject *consume(PyObject *c)
{
    bool new = PyCapsule_IsValid(c, NEW);
    if (!new && !PyCapsule_IsValid(c, OLD))
        return py_fail(PyExc_ValueError, "not a fresh DLPack capsule: each can be used once");
    void *p = PyCapsule_GetPointer(c, new ? NEW : OLD);
    if (new && !known_version(p))
        return NULL;
    if (PyCapsule_SetName(c, new ? NEW_USED : OLD_USED) < 0 || PyCapsule_SetDestructor(c, NULL) < 0)
        return NULL;
    return new ? take(p, &((dl_versioned *)p)->t, ((dl_versioned *)p)->flags & DL_READ_ONLY, NEW_USED)
               : take(p, &((dl_managed *)p)->t, false, OLD_USED);
}
/* o.__dlpack__(max_version=(1, 0), copy=...), or without what older producers do not know */
static PyObject *ask(PyObject *o, PyObject *copy)
{
    PyObject *f = PyObject_GetAttr(o, N.__dlpack__),
             *kw = f ? Py_BuildValue("{O(ii)}", N.max_version, 1, 0) : NULL,
             *none = kw ? PyTuple_New(0) : NULL;
    if (none && copy != Py_None && PyDict_SetItem(kw, N.copy, copy) < 0)
        Py_CLEAR(none);
    PyObject *c = none ? PyObject_Call(f, none, kw) : NULL;
    if (!c && none && copy == Py_None && PyErr_ExceptionMatches(PyExc_TypeError)) {
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
    if (type == DL_CPU || type == DL_CUDA_HOST || by_handle(type) || type == -1)
        return 1;
    py_fail(PyExc_RuntimeError,
            "the %s is on DLPack device type %ld, which is not reachable from here: move it to the CPU first",
            Py_TYPE(o)->tp_name, type);
    return 0;
}
static PyObject *by_method(PyObject *o, PyObject *copy)
{
    if (!PyObject_HasAttr(o, N.__dlpack__))
        return py_fail(PyExc_TypeError,
                       "from_dlpack takes an object with __dlpack__ or a DLPack capsule, got %s",
                       Py_TYPE(o)->tp_name);
    PyObject *c = reachable(o) ? ask(o, copy) : NULL, *t = c ? consume(c) : NULL;
    Py_XDECREF(c);
    return t;
}
PyObject *tensor_from_dlpack(PyObject *o, PyObject *copy)
{
    if (PyCapsule_CheckExact(o) && copy == Py_None)
        return consume(o);
    if (tensor_check(o))
        return copy == Py_True ? (PyObject *)tensor_copy((Tensor *)o, ((Tensor *)o)->device) : Py_NewRef(o);
    bool torch = torch_check(o);
    PyObject *t = torch && copy != Py_True && torch_check_exact(o) ? torch_import(o) : by_method(o, copy);
    if (!t && torch)
        torch_explain(o);
    return t;
}

/* ---- the table of C functions ---- */
const dl_api *dlpack_api(PyTypeObject *type)
{
    PyObject *c = PyObject_GetAttr((PyObject *)type, N.__dlpack_c_exchange_api__);
    const dl_api *api = c && PyCapsule_IsValid(c, "dlpack_exchange_api")
                          ? PyCapsule_GetPointer(c, "dlpack_exchange_api")
                          : NULL;
    PyErr_Clear();
    Py_XDECREF(c); /* the table lives as long as the process */
    while (api && api->major != 1)
        api = api->prev;
    return api;
}
static int api_allocate(dl_tensor *like, dl_versioned **out, void *ctx,
                        void (*fail)(void *ctx, const char *kind, const char *message))
{
    PyGILState_STATE gil = PyGILState_Ensure();
    int dt = dlpack_dtype(like->dtype);
    eas_device *d = device_by_type(like->device.type);
    d = d ? py_device_named(eas_device_name(d)) : NULL;
    Tensor *t = d && dt >= 0 && like->ndim >= 0 && like->ndim <= NPY_MAXDIMS
                  ? tensor_new(d, (eas_dtype)dt, like->ndim, like->shape)
                  : NULL;
    *out = t ? dlpack_give(t, false) : NULL;
    Py_XDECREF(t);
    PyErr_Clear();
    PyGILState_Release(gil);
    if (!*out)
        fail(ctx, "BufferError", "eas cannot allocate a tensor of this dtype, shape and device");
    return *out ? 0 : -1;
}
static int api_managed_from(void *o, dl_versioned **out) { return (*out = dlpack_give(o, false)) ? 0 : -1; }
static int api_managed_to(dl_versioned *m, void **o) { return (*o = dlpack_take(m)) ? 0 : -1; }
static int api_view(void *o, dl_tensor *out)
{
    if (!(((Tensor *)o)->arg.flags & EAS_ARG_READONLY))
        return fill(out, o) ? 0 : -1;
    py_fail(PyExc_BufferError, "a read-only tensor cannot be handed over as a plain DLTensor");
    return -1;
}
static int api_stream(int32_t device, int32_t id, void **out) /* what is handed over has no work pending */
{
    (void)device;
    (void)id;
    *out = NULL;
    return 0;
}
static const dl_api our_api = {1,        3,         NULL, api_allocate, api_managed_from, api_managed_to,
                               api_view, api_stream};

int dlpack_init(void)
{
    fill_dtypes();
    PyObject *c = PyCapsule_New((void *)(uintptr_t)&our_api, "dlpack_exchange_api", NULL);
    int r = c ? PyObject_SetAttr((PyObject *)G.tensor, N.__dlpack_c_exchange_api__, c) : -1;
    Py_XDECREF(c);
    return r;
}
