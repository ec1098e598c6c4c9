/* eager_io.c: eas_weights as a capsule, and its tensors; quantized matrices. eager/io.py and
 * eager/quantized.py make of it what people see. */
#include "py.h"

static const char name[] = "eas.weights";

static eas_weights *weights_of(PyObject *o) { return PyCapsule_GetPointer(o, name); }
static void drop(PyObject *capsule) { eas_weights_release(weights_of(capsule)); }

static PyObject *open_file(PyObject *m, PyObject *path)
{
    (void)m;
    PyObject *bytes;
    eas_weights *w = NULL;
    eas_status st;
    if (!PyUnicode_FSConverter(path, &bytes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = eas_weights_open(PyBytes_AS_STRING(bytes), &w);
    Py_END_ALLOW_THREADS;
    Py_DECREF(bytes);
    return st == EAS_OK ? PyCapsule_New(w, name, drop) : py_raise(st);
}

static PyObject *text_of(const char *s)
{
    return PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "surrogateescape");
}

static PyObject *info_tuple(eas_weight e)
{
    PyObject *shape = PyTuple_New(e.rank);
    for (int i = 0; shape && i < e.rank; i++)
        PyTuple_SET_ITEM(shape, i, PyLong_FromLongLong(e.shape[i]));
    PyObject *key = text_of(e.name);
    if (!shape || !key) {
        Py_XDECREF(shape);
        Py_XDECREF(key);
        return NULL;
    }
    return Py_BuildValue("(NNszK)", key, shape, e.stored, e.supported ? eas_dtype_name(e.dtype) : NULL,
                         (unsigned long long)e.bytes);
}

/* (format, [(name, shape, stored, dtype or None, bytes)]) */
static PyObject *list(PyObject *m, PyObject *capsule)
{
    (void)m;
    eas_weights *w = weights_of(capsule);
    PyObject *all = w ? PyList_New(0) : NULL;
    for (int i = 0; all && i < eas_weights_count(w); i++) {
        PyObject *t = info_tuple(eas_weights_at(w, i));
        if (!t || PyList_Append(all, t) < 0)
            Py_CLEAR(all);
        Py_XDECREF(t);
    }
    return all ? Py_BuildValue("(sN)", eas_weights_format(w), all) : NULL;
}

static PyObject *metadata(PyObject *m, PyObject *capsule)
{
    (void)m;
    eas_weights *w = weights_of(capsule);
    PyObject *d = w ? PyDict_New() : NULL;
    for (int i = 0; d && i < eas_weights_meta_count(w); i++) {
        char *text = NULL;
        eas_status st = eas_weights_meta(w, i, &text);
        PyObject *key = text_of(eas_weights_meta_key(w, i)),
                 *value = st == EAS_OK ? text_of(text) : py_raise(st);
        eas_memory_free(text);
        if (!key || !value || PyDict_SetItem(d, key, value) < 0)
            Py_CLEAR(d);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return d;
}

static bool read_sizes(PyObject *o, int rank, int64_t *out)
{
    for (int i = 0; i < rank; i++) {
        PyObject *v = PySequence_GetItem(o, i);
        out[i] = v ? PyLong_AsLongLong(v) : -1;
        Py_XDECREF(v);
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

static eas_device *device_of(PyObject *o) { return o == Py_None ? py_backend() : py_device(o); }

/* The tensor, on the device that was asked for. */
static PyObject *there(eas_status st, eas_node *n, eas_device *d)
{
    if (st != EAS_OK)
        return py_raise(st);
    n = eager_on_device(n, d);
    return n ? eager_wrap(n) : NULL;
}

/* tensor(weights, index, device[, start, size]) */
static PyObject *tensor(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *capsule, *device, *start = NULL, *size = NULL;
    int i;
    if (!PyArg_ParseTuple(args, "OiO|OO", &capsule, &i, &device, &start, &size))
        return NULL;
    eas_weights *w = weights_of(capsule);
    eas_device *d = w ? device_of(device) : NULL;
    int64_t at[EAS_MAX_RANK], n[EAS_MAX_RANK];
    eas_node *node = NULL;
    eas_status st;
    if (!d)
        return NULL;
    int rank = eas_weights_at(w, i).rank;
    if (size && (!read_sizes(start, rank, at) || !read_sizes(size, rank, n)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = eas_weights_slice(w, i, size ? at : NULL, size ? n : NULL, &node);
    Py_END_ALLOW_THREADS;
    return there(st, node, d);
}

/* tensors(weights, device): a dict of all, in the order of the file */
static PyObject *tensors(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *capsule, *device;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &device))
        return NULL;
    eas_weights *w = weights_of(capsule);
    eas_device *on = w ? device_of(device) : NULL;
    PyObject *d = on ? PyDict_New() : NULL;
    for (int i = 0; d && i < eas_weights_count(w); i++) {
        eas_node *n = NULL;
        eas_status st;
        Py_BEGIN_ALLOW_THREADS;
        st = eas_weights_node(w, i, &n);
        Py_END_ALLOW_THREADS;
        PyObject *t = there(st, n, on), *key = t ? text_of(eas_weights_at(w, i).name) : NULL;
        if (!key || PyDict_SetItem(d, key, t) < 0)
            Py_CLEAR(d);
        Py_XDECREF(key);
        Py_XDECREF(t);
    }
    return d;
}

static PyObject *raw(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *capsule;
    int i;
    const void *data;
    uint64_t n;
    if (!PyArg_ParseTuple(args, "Oi", &capsule, &i))
        return NULL;
    eas_weights *w = weights_of(capsule);
    if (!w)
        return NULL;
    eas_status st = eas_weights_raw(w, i, &data, &n);
    return st == EAS_OK ? PyBytes_FromStringAndSize(data, (Py_ssize_t)n) : py_raise(st);
}

/* ---- writing ---- */
/* NULL where the tuple has None */
static const char **texts(PyObject *tuple)
{
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    const char **t = PyMem_New(const char *, (size_t)n + 1);
    if (!t)
        return (void)PyErr_NoMemory(), NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t len = 0;
        if (PyTuple_GET_ITEM(tuple, i) == Py_None) {
            t[i] = NULL;
            continue;
        }
        t[i] = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(tuple, i), &len);
        if (t[i] && (size_t)len == strlen(t[i]))
            continue;
        if (t[i])
            py_fail(PyExc_ValueError, "names and metadata cannot have a NUL in them: %R",
                    PyTuple_GET_ITEM(tuple, i));
        PyMem_Free(t);
        return NULL;
    }
    return t;
}

/* save(path, names, tensors, stored, meta, compressed): tuples; stored: str or None; meta is keys and values
 * in turn */
static PyObject *save(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *path, *names, *values, *as, *meta, *bytes = NULL;
    int compressed;
    if (!PyArg_ParseTuple(args, "OO!O!O!O!p", &path, &PyTuple_Type, &names, &PyTuple_Type, &values,
                          &PyTuple_Type, &as, &PyTuple_Type, &meta, &compressed) ||
        !PyUnicode_FSConverter(path, &bytes))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(values);
    eas_node **nodes = PyMem_New(eas_node *, (size_t)n + 1);
    const char **keys = texts(names), **pairs = keys ? texts(meta) : NULL,
               **stored = pairs ? texts(as) : NULL;
    bool ok = nodes && keys && pairs && stored;
    Py_ssize_t k = 0;
    for (; ok && k < n; k++)
        nodes[k] = eas_node_retain(eager_node(PyTuple_GET_ITEM(values, k)));
    ok = ok && (n == 0 || eager_realize((int)n, nodes));
    eas_status st = EAS_OK;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS;
        st = eas_weights_save(PyBytes_AS_STRING(bytes), (int)n, keys, nodes, stored,
                              (int)(PyTuple_GET_SIZE(meta) / 2), pairs, compressed, NULL);
        Py_END_ALLOW_THREADS;
    }
    while (k > 0)
        eas_node_release(nodes[--k]);
    PyMem_Free(nodes);
    PyMem_Free(keys);
    PyMem_Free(pairs);
    PyMem_Free(stored);
    Py_DECREF(bytes);
    if (!ok)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return st == EAS_OK ? Py_NewRef(Py_None) : py_raise(st);
}

/* ---- quantized matrices ---- */
static bool quantized_of(const char *kind, long long rows, long long group, PyObject *const *parts,
                         eas_quantized *q)
{
    *q = (eas_quantized){.rows = rows, .group = group};
    if (!eas_quant_parse(kind, &q->kind))
        return py_fail(PyExc_ValueError,
                       "there is no kind of quantized tensors called %s: use int8, int4, int4_zp or nf4",
                       kind),
               false;
    for (int i = 0; i < 3; i++)
        if (!eager_check(parts[i]) && !(i == 2 && parts[i] == Py_None))
            return py_fail(PyExc_TypeError, "the parts of a quantized tensor are tensors, not %s",
                           Py_TYPE(parts[i])->tp_name),
                   false;
    q->data = eager_node(parts[0]);
    q->scales = eager_node(parts[1]);
    q->offsets = parts[2] == Py_None ? NULL : eager_node(parts[2]);
    return true;
}
/* quantize(w, kind): (rows, group, data, scales, offsets or None) */
static PyObject *quantize(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *w;
    const char *kind;
    eas_quant k;
    eas_quantized q;
    if (!PyArg_ParseTuple(args, "Os", &w, &kind))
        return NULL;
    if (!eas_quant_parse(kind, &k))
        return py_fail(PyExc_ValueError,
                       "eager.quantize: there is no kind '%s': use int8, int4, int4_zp or nf4", kind);
    eas_node *n = eager_arg(w, "quantize", "w");
    if (!n)
        return NULL;
    eas_site_set(site_here());
    eas_status st = eas_node_quantize(n, k, &q);
    eas_node_release(n);
    if (st != EAS_OK)
        return py_raise(st);
    /* Computed now, once: products with it would else each quantize anew. Not while something is traced. */
    eas_node *made[3] = {q.data, q.scales, q.offsets};
    bool now = !eas_node_is_symbolic(q.data) && !eas_node_is_taped(q.data) && !eas_node_batch_dims(q.data);
    bool ok = !now || eager_realize(q.offsets ? 3 : 2, made);
    PyObject *data = eager_wrap(q.data), *scales = eager_wrap(q.scales),
             *offsets = q.offsets ? eager_wrap(q.offsets) : Py_NewRef(Py_None);
    if (ok && data && scales && offsets)
        return Py_BuildValue("(LLNNN)", (long long)q.rows, (long long)q.group, data, scales, offsets);
    Py_XDECREF(data);
    Py_XDECREF(scales);
    Py_XDECREF(offsets);
    return NULL;
}
/* dequantize(kind, rows, group, data, scales, offsets, dtype) */
static PyObject *dequantize(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *parts[3], *dtype;
    const char *kind;
    long long rows, group;
    eas_quantized q;
    eas_dtype dt;
    eas_node *n = NULL;
    if (!PyArg_ParseTuple(args, "sLLOOOO", &kind, &rows, &group, &parts[0], &parts[1], &parts[2], &dtype) ||
        !eager_dtype(dtype, "dtype", &dt) || !quantized_of(kind, rows, group, parts, &q))
        return NULL;
    eas_site_set(site_here());
    eas_status st = eas_quantized_dequantize(&q, dt, &n);
    return eager_result(st, n);
}
/* quantized_matmul(x, kind, rows, group, data, scales, offsets) */
static PyObject *quantized_matmul(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *x, *parts[3];
    const char *kind;
    long long rows, group;
    eas_quantized q;
    eas_node *out = NULL;
    if (!PyArg_ParseTuple(args, "OsLLOOO", &x, &kind, &rows, &group, &parts[0], &parts[1], &parts[2]) ||
        !quantized_of(kind, rows, group, parts, &q))
        return NULL;
    eas_node *n = eager_arg(x, "quantized_matmul", "x");
    if (!n)
        return NULL;
    eas_site_set(site_here());
    eas_status st = eas_quantized_matmul(n, &q, &out);
    eas_node_release(n);
    return eager_result(st, out);
}

static PyMethodDef functions[] = {
    {"quantize", quantize, METH_VARARGS, "quantize(w, kind): (rows, group, data, scales, offsets or None)"},
    {"dequantize", dequantize, METH_VARARGS, "dequantize(kind, rows, group, data, scales, offsets, dtype)"},
    {"quantized_matmul", quantized_matmul, METH_VARARGS,
     "quantized_matmul(x, kind, rows, group, data, scales, offsets)"},
    {"weights_open", open_file, METH_O, "weights_open(path): the tensors of a file"},
    {"weights_list", list, METH_O,
     "weights_list(w): (format, [(name, shape, stored, dtype or None, bytes)])"},
    {"weights_metadata", metadata, METH_O, "weights_metadata(w): a dict of str"},
    {"weights_tensor", tensor, METH_VARARGS,
     "weights_tensor(w, index, device[, start, size]): an eager.Tensor"},
    {"weights_tensors", tensors, METH_VARARGS, "weights_tensors(w, device): all of them, by name"},
    {"weights_raw", raw, METH_VARARGS, "weights_raw(w, index): its bytes in the file"},
    {"weights_save", save, METH_VARARGS, "weights_save(path, names, tensors, stored, meta, compressed)"},
    {NULL, NULL, 0, NULL},
};
int eager_io_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
