/* parts.c: arguments that come apart (eas._struct), at a launch like the one before.
 *
 * eas._struct.expand finds how arguments come apart, once. A launch whose arguments come apart in the same
 * way walks that spec along them here, which gives the parts without any Python: sizes and strides as ints,
 * fields as they are. What is not certainly the same (another rank, layout or type, a subclass, torch's
 * tensors) is left to expand. */
#include "py.h"

typedef struct parts {
    PyObject **at; /* counted */
    int n, room;
} parts;

static bool add(parts *p, PyObject *o) /* steals o */
{
    if (!o || p->n == p->room) {
        Py_XDECREF(o);
        return false;
    }
    p->at[p->n++] = o;
    return true;
}
static bool add_int(parts *p, int64_t v) { return add(p, PyLong_FromLongLong(v)); }
static bool is_plain(PyObject *o, int flags)
{
    if (PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyBool_Check(o) || PyArray_CheckScalar(o))
        return true;
    if (flags)
        return false;
    if (PyArray_CheckExact(o))
        return PyArray_IS_C_CONTIGUOUS((PyArrayObject *)o);
    return Py_IS_TYPE(o, G.tensor) && tensor_in_c_order((Tensor *)o);
}

/* ---- arrays ---- */
typedef struct seen { /* shape and strides in bytes */
    int ndim;
    const int64_t *shape, *strides;
    int64_t item;
    bool in_order;
} seen;

static bool look(PyObject *o, seen *s)
{
    if (PyArray_CheckExact(o)) {
        PyArrayObject *a = (PyArrayObject *)o;
        _Static_assert(sizeof(npy_intp) == sizeof(int64_t), "sizes of arrays have 64 bits");
        *s = (seen){PyArray_NDIM(a), (const int64_t *)PyArray_DIMS(a), (const int64_t *)PyArray_STRIDES(a),
                    PyArray_ITEMSIZE(a), PyArray_IS_C_CONTIGUOUS(a)};
        return s->item > 0;
    }
    if (!Py_IS_TYPE(o, G.tensor))
        return false;
    Tensor *t = (Tensor *)o;
    *s = (seen){t->ndim, t->dims, t->dims + t->ndim, (int64_t)eas_dtype_size((eas_dtype)t->arg.dtype),
                tensor_in_c_order(t)};
    return true;
}
static bool is_empty(const seen *s)
{
    for (int k = 0; k < s->ndim; k++)
        if (!s->shape[k])
            return true;
    return false;
}
/* An array with strides as one dim over its memory, from the lowest address on; at: elements from there to
 * its first. */
static PyObject *memory_of(PyArrayObject *a, const seen *s, int64_t *at)
{
    npy_intp below = 0, above = 0, n;
    for (int k = 0; k < s->ndim; k++)
        *(s->strides[k] < 0 ? &below : &above) += (s->shape[k] - 1) * s->strides[k];
    n = (above - below) / s->item + 1;
    *at = -below / s->item;
    Py_INCREF(PyArray_DESCR(a));
    PyObject *r = PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(a), 1, &n, NULL, PyArray_BYTES(a) + below,
                                       PyArray_FLAGS(a) & (NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED), NULL);
    if (r && PyArray_SetBaseObject((PyArrayObject *)r, Py_NewRef(a)) < 0)
        Py_CLEAR(r);
    return r;
}
/* ---- specs ---- */
struct parts_spec {
    char kind; /* as in eas._struct: p, c, a, t */
    bool in_order, negative; /* of an array: C-contiguous; has it negative strides? */
    int flags;
    int n; /* dims, or fields */
    uint64_t unit; /* a bit for each dim whose stride is 1 */
    PyObject *what, *names; /* the constant, or the type; of fields. Borrowed of the key */
    struct parts_spec *fields;
};
static void clear(parts_spec *s)
{
    for (int i = 0; i < s->n && s->fields; i++)
        clear(&s->fields[i]);
    PyMem_Free(s->fields);
}
static bool read_array(PyObject *spec, parts_spec *s)
{
    PyObject *layout = PyTuple_GET_ITEM(spec, 2);
    s->n = (int)PyLong_AsLong(PyTuple_GET_ITEM(spec, 1));
    s->flags = (int)PyLong_AsLong(PyTuple_GET_ITEM(spec, 3));
    s->in_order = layout == Py_None;
    s->negative = !s->in_order && PyTuple_GET_ITEM(layout, 1) == Py_True;
    for (int k = 0; k < s->n && !s->in_order && k < 64; k++)
        s->unit |= (uint64_t)(PyTuple_GET_ITEM(PyTuple_GET_ITEM(layout, 0), k) == Py_True) << k;
    return s->n < 64;
}
static bool read_spec(PyObject *spec, parts_spec *s)
{
    s->kind = (char)PyUnicode_READ_CHAR(PyTuple_GET_ITEM(spec, 0), 0);
    if (s->kind == 'a')
        return read_array(spec, s);
    s->what = s->kind == 'c' ? PyTuple_GET_ITEM(spec, 1) : s->kind == 't' ? PyTuple_GET_ITEM(spec, 2) : NULL;
    if (s->kind != 't')
        return true;
    PyObject *specs = PyTuple_GET_ITEM(spec, 4);
    s->names = PyTuple_GET_ITEM(spec, 3);
    s->n = (int)PyTuple_GET_SIZE(specs);
    bool ok = (s->fields = PyMem_Calloc((size_t)s->n + 1, sizeof *s->fields)) != NULL;
    for (int i = 0; ok && i < s->n; i++)
        ok = read_spec(PyTuple_GET_ITEM(specs, i), &s->fields[i]);
    return ok;
}
parts_spec *parts_read(PyObject *key)
{
    const Py_ssize_t n = PyTuple_GET_SIZE(key);
    parts_spec *s = PyMem_Calloc(1, sizeof *s);
    bool ok = s && (s->fields = PyMem_Calloc((size_t)n + 1, sizeof *s->fields)) != NULL;
    if (ok)
        s->n = (int)n;
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = read_spec(PyTuple_GET_ITEM(key, i), &s->fields[i]);
    if (!ok && s) {
        parts_free(s);
        s = NULL;
    }
    return s;
}
void parts_free(parts_spec *s)
{
    if (s)
        clear(s);
    PyMem_Free(s);
}

/* ---- taking apart ---- */
static bool strided(const parts_spec *spec, PyObject *o, const seen *s, parts *p)
{
    int64_t origin;
    bool any = false;
    if (s->in_order || !PyArray_CheckExact(o) || is_empty(s))
        return false;
    for (int k = 0; k < s->ndim; k++) {
        if (s->strides[k] % s->item || (s->strides[k] == s->item) != (spec->unit >> k & 1))
            return false;
        any |= s->strides[k] < 0;
    }
    if (any != spec->negative || !add(p, memory_of((PyArrayObject *)o, s, &origin)))
        return false;
    for (int k = 0; k < s->ndim; k++)
        if (spec->flags & 1 && !add_int(p, s->shape[k]))
            return false;
    for (int k = 0; k < s->ndim; k++)
        if (!(spec->unit >> k & 1) && !add_int(p, s->strides[k] / s->item))
            return false;
    return !spec->negative || add_int(p, origin);
}
static inline bool array(const parts_spec *spec, int flags, PyObject *o, parts *p)
{
    seen s;
    if (!look(o, &s) || s.ndim != spec->n || (flags ? spec->flags != flags : spec->in_order))
        return false;
    if (!spec->in_order)
        return strided(spec, o, &s, p);
    if (!s.in_order || !add(p, Py_NewRef(o)))
        return false;
    for (int k = spec->flags & 1 ? 0 : 1; k < s.ndim; k++)
        if (!add_int(p, s.shape[k]))
            return false;
    return true;
}
static bool apart(const parts_spec *spec, int flags, PyObject *o, parts *p);
static bool fields(const parts_spec *spec, int flags, PyObject *o, parts *p)
{
    const bool tuple = PyTuple_Check(o);
    if ((PyObject *)Py_TYPE(o) != spec->what || (tuple && PyTuple_GET_SIZE(o) != spec->n))
        return false;
    for (int i = 0; i < spec->n; i++) {
        PyObject *v =
            tuple ? Py_NewRef(PyTuple_GET_ITEM(o, i)) : PyObject_GetAttr(o, PyTuple_GET_ITEM(spec->names, i));
        bool ok = v && apart(&spec->fields[i], flags == 3 ? 3 : 0, v, p);
        Py_XDECREF(v);
        if (!ok)
            return false;
    }
    return true;
}
static inline bool apart(const parts_spec *spec, int flags, PyObject *o, parts *p)
{
    switch (spec->kind) {
    case 'p': return is_plain(o, flags) && add(p, Py_NewRef(o));
    case 'c': return o == spec->what;
    case 'a': return array(spec, flags, o, p);
    default: return fields(spec, flags, o, p);
    }
}
int parts_like(const parts_spec *key, PyObject *const *objs, const uint8_t *flags, PyObject **out, int room)
{
    parts p = {out, 0, room};
    for (int i = 0; i < key->n; i++)
        if (!apart(&key->fields[i], flags[i], objs[i], &p)) {
            PyErr_Clear();
            while (p.n)
                Py_DECREF(p.at[--p.n]);
            return -1;
        }
    return p.n;
}
