/* torch_direct.c: torch tensors on the CPU read by torch's own C functions, a few instructions each, without
 * Python in between.
 *
 * Nothing here knows how torch lays its objects out. A Python tensor holds one pointer to its
 * c10::TensorImpl; where, is found by looking for the address that `_cdata` gives (torch_learn), and
 * everything else is asked of functions that torch exports: the C ABI of its ahead-of-time compiler and
 * methods of TensorImpl itself. Functions that would throw are not called: only objects of that very class
 * are read (by their table of virtual functions, which every C++ object of this platform begins with);
 * sparse, nested, quantized, batched, functional and wrapped tensors are of classes derived from it.
 *
 * What was learned is believed only if samples of all kinds, eas/torch/_direct.py, read as torch's attributes
 * say. Until then, and in a torch where it does not fit, arguments are read as torch.c describes. */
#include "dlpack.h"

#include <dlfcn.h>
#include <string.h>

typedef struct impl impl; /* c10::TensorImpl */
typedef struct {
    const void *const *virtuals;
} object;
typedef const impl *const *handle; /* at::Tensor *: AtenTensorHandle of torch's shim.h */

/* name in D, symbol, what it returns, what it takes */
/* clang-format off */
#define FUNCTIONS(X) \
    X(data_ptr, "aoti_torch_get_data_ptr", int32_t, (handle, void **)) \
    X(numel, "aoti_torch_get_numel", int32_t, (handle, int64_t *)) \
    X(dtype, "aoti_torch_get_dtype", int32_t, (handle, int32_t *)) \
    X(device_type, "aoti_torch_get_device_type", int32_t, (handle, int32_t *)) \
    X(contiguous, "aoti_torch_is_contiguous", int32_t, (handle, bool *)) \
    X(grad_mode, "aoti_torch_grad_mode_is_enabled", bool, (void)) \
    X(cpu, "aoti_torch_device_type_cpu", int32_t, (void)) \
    X(negated, "_ZN2at6native6is_negERKNS_6TensorE", bool, (handle)) \
    X(requires_grad, "_ZNK3c1010TensorImpl13requires_gradEv", bool, (const impl *)) \
    X(has_storage, "_ZNK3c1010TensorImpl11has_storageEv", bool, (const impl *))
/* clang-format on */
enum { CODES = 64 }; /* torch's numbers of dtypes that are looked at */
typedef struct {
#define X(name, symbol, returns, takes) returns(*name) takes;
    FUNCTIONS(X)
#undef X
    const void *virtuals; /* of a plain TensorImpl */
    Py_ssize_t at; /* where in a Python tensor the at::Tensor is */
    int32_t cpu_type;
    uint8_t tags[CODES]; /* by torch's number of the dtype; 0: none of ours */
} reader;
static reader D;
static bool ready;

static const struct {
    const char *symbol;
    eas_dtype dt;
} dtypes[] = {
    {"aoti_torch_dtype_bool", EAS_BOOL},     {"aoti_torch_dtype_int8", EAS_I8},
    {"aoti_torch_dtype_int16", EAS_I16},     {"aoti_torch_dtype_int32", EAS_I32},
    {"aoti_torch_dtype_int64", EAS_I64},     {"aoti_torch_dtype_uint8", EAS_U8},
    {"aoti_torch_dtype_uint16", EAS_U16},    {"aoti_torch_dtype_uint32", EAS_U32},
    {"aoti_torch_dtype_uint64", EAS_U64},    {"aoti_torch_dtype_float16", EAS_F16},
    {"aoti_torch_dtype_bfloat16", EAS_BF16}, {"aoti_torch_dtype_float32", EAS_F32},
    {"aoti_torch_dtype_float64", EAS_F64},
};

/* ---- reading ---- */
static inline int read_tensor(const reader *r, PyObject *o, eas_arg *out)
{
    handle t = (handle)((char *)o + r->at);
    int32_t code, device;
    bool contiguous;
    if (!*t || (const void *)((const object *)*t)->virtuals != r->virtuals)
        return 0;
    if (r->dtype(t, &code) || (uint32_t)code >= CODES || !r->tags[code])
        return 0;
    if (!r->has_storage(*t) || r->device_type(t, &device) || device != r->cpu_type ||
        r->contiguous(t, &contiguous) || !contiguous || r->negated(t))
        return 0;
    if (r->requires_grad(*t) && r->grad_mode())
        return 0;
    if (r->numel(t, &out->count) || r->data_ptr(t, &out->v.data) || (!out->v.data && out->count))
        return 0;
    int tag = r->tags[code];
    out->dtype = (uint8_t)(tag & TAG_DTYPE);
    out->is_buffer = 1;
    out->flags = EAS_ARG_HOST;
    return tag;
}
int torch_direct(PyObject *o, eas_arg *out) { return ready ? read_tensor(&D, o, out) : 0; }

/* ---- learning ---- */
static bool find_functions(void *lib, reader *r)
{
#define X(name, symbol, returns, takes) \
    void *name##_ = dlsym(lib, symbol); \
    memcpy(&r->name, &name##_, sizeof name##_); \
    if (!name##_) \
        return false;
    FUNCTIONS(X)
#undef X
    const char *table = dlsym(lib, "_ZTVN3c1010TensorImplE");
    /* behind the offset to the top and the type's description */
    r->virtuals = table ? table + 2 * sizeof(void *) : NULL;
    r->cpu_type = r->cpu();
    return table != NULL;
}
static bool find_dtypes(void *lib, reader *r)
{
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        int32_t (*number)(void);
        void *p = dlsym(lib, dtypes[k].symbol);
        memcpy(&number, &p, sizeof p);
        int32_t code = p ? number() : -1;
        if ((uint32_t)code >= CODES)
            return false;
        r->tags[code] = (uint8_t)(TAG_BUFFER | dtypes[k].dt);
    }
    return true;
}
/* A sample is (tensor, its _cdata, None or (data_ptr, numel, dtype)). */
static PyObject *part(PyObject *sample, int i) { return PyTuple_GET_ITEM(sample, i); }
static bool well_formed(PyObject *samples)
{
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(samples); k++) {
        PyObject *s = PyList_GET_ITEM(samples, k);
        if (!PyTuple_Check(s) || PyTuple_GET_SIZE(s) != 3 || !torch_check(part(s, 0)) ||
            !torch_check_exact(part(s, 0)) || !PyLong_Check(part(s, 1)))
            return false;
    }
    return PyList_GET_SIZE(samples) > 0;
}
static bool holds(PyObject *sample, Py_ssize_t at)
{
    void *p, *impl = PyLong_AsVoidPtr(part(sample, 1));
    if (!impl || at + (Py_ssize_t)sizeof p > Py_TYPE(part(sample, 0))->tp_basicsize)
        return false;
    memcpy(&p, (char *)part(sample, 0) + at, sizeof p);
    return p == impl;
}
static bool find_place(PyObject *samples, reader *r)
{
    int found = 0;
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void *) <= G.torch_tensor->tp_basicsize;
         at += sizeof(void *)) {
        Py_ssize_t k = 0, n = PyList_GET_SIZE(samples);
        while (k < n && holds(PyList_GET_ITEM(samples, k), at))
            k++;
        if (k == n)
            found++, r->at = at;
    }
    return found == 1;
}
static bool reads_alike(const reader *r, PyObject *sample)
{
    eas_arg a = {0};
    PyObject *expected = part(sample, 2);
    int tag = read_tensor(r, part(sample, 0), &a);
    if (expected == Py_None)
        return !tag;
    unsigned long long data;
    long long count;
    PyObject *dtype;
    return tag && PyArg_ParseTuple(expected, "KLO", &data, &count, &dtype) && (uintptr_t)a.v.data == data &&
           a.count == count && (tag & TAG_DTYPE) == py_dtype_of_torch(NULL, dtype);
}
static bool all_alike(const reader *r, PyObject *samples)
{
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(samples); k++)
        if (!reads_alike(r, PyList_GET_ITEM(samples, k)))
            return false;
    return true;
}
PyObject *torch_learn(PyObject *m, PyObject *args)
{
    (void)m;
    const char *library;
    PyObject *samples;
    if (!PyArg_ParseTuple(args, "sO!", &library, &PyList_Type, &samples))
        return NULL;
    if (!well_formed(samples))
        Py_RETURN_FALSE;
    reader r = {0};
    /* torch's extension: what it needs is looked through as well */
    void *lib = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    bool fits = lib && find_functions(lib, &r) && find_dtypes(lib, &r) && find_place(samples, &r) &&
                all_alike(&r, samples);
    if (lib)
        dlclose(lib); /* it stays: torch is imported */
    if (PyErr_Occurred())
        return NULL;
    if (fits && !ready) {
        D = r;
        ready = true;
    }
    return PyBool_FromLong(fits);
}
