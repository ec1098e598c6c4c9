/* eager_data.c: data of lazy tensors: from arrays, lists and memory of others; realising; out again as
 * arrays, numbers, DLPack, text. */
#include "py.h"

#include <string.h>

enum { MAX_RANK = 64 };

/* ---- realising ---- */
/* Counted meanwhile: without the GIL other threads may rebind the handles that the nodes are from. */
static eas_status realize_nodes(int n, eas_node *const *nodes, eas_device *d)
{
    eas_node *few[16], **own = n <= 16 ? few : PyMem_New(eas_node *, (size_t)n);
    hooks h;
    eas_launch l = {0};
    if (!own)
        return EAS_ERR_MEMORY;
    hooks_init(&l, &h);
    for (int i = 0; i < n; i++)
        own[i] = eas_node_retain(nodes[i]);
    eas_status st = eas_nodes_realize(n, own, d, &l);
    for (int i = 0; i < n; i++)
        eas_node_release(own[i]);
    if (own != few)
        PyMem_Free(own);
    return st;
}
int eager_realize(int n, eas_node *const *nodes)
{
    bool done = true;
    for (int i = 0; i < n; i++)
        done = done && eas_node_is_real(nodes[i]);
    if (done)
        return 1;
    for (int i = 0; eager_tracing && i < n; i++)
        if (eas_node_is_symbolic(nodes[i]))
            return py_fail_at(
                       graph_break,
                       "a compiled function reads data of a tensor here, which has none while the function is traced: choose by "
                       "data with eager.where or "
                       "eager.cond, loop with eager.while_loop or eager.scan, and read results outside of the function"),
                   0;
    eas_device *d = py_backend();
    if (!d)
        return 0;
    eas_status st = realize_nodes(n, nodes, d);
    later_check();
    if (st == EAS_OK)
        return 1;
    py_raise(st);
    return 0;
}
static PyObject *realize(PyObject *o, PyObject *unused)
{
    (void)unused;
    return eager_realize(1, &((Eager *)o)->n) ? Py_NewRef(o) : NULL;
}
static PyObject *sync_realize(PyObject *o, PyObject *unused)
{
    (void)unused;
    return eager_realize(1, &((Eager *)o)->n) ? Py_NewRef(Py_None) : NULL;
}
static PyObject *realize_all(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *leaves;
    if (!pytree_flatten(args, NULL, &leaves, NULL))
        return NULL;
    Py_ssize_t n = PyList_GET_SIZE(leaves);
    eas_node **nodes = PyMem_New(eas_node *, (size_t)n + 1);
    int k = 0;
    for (Py_ssize_t i = 0; nodes && i < n; i++)
        if (eager_check(PyList_GET_ITEM(leaves, i)))
            nodes[k++] = eager_node(PyList_GET_ITEM(leaves, i));
    int ok = nodes && (k == 0 || eager_realize(k, nodes));
    PyMem_Free(nodes);
    Py_DECREF(leaves);
    return ok ? Py_NewRef(Py_None) : PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

/* ---- in ---- */
/* Names of dtypes are NumPy's where NumPy and kernels differ: "i8" has eight bytes. */
int eager_dtype(PyObject *o, const char *what, eas_dtype *out)
{
    if (PyUnicode_Check(o) && !PyUnicode_CompareWithASCIIString(o, "i8"))
        return *out = EAS_I64, 1;
    if (PyUnicode_Check(o) && !PyUnicode_CompareWithASCIIString(o, "u8"))
        return *out = EAS_U64, 1;
    return py_to_dtype(o, what, out);
}
eas_node *node_of_tensor(Tensor *t)
{
    size_t size = eas_dtype_size((eas_dtype)t->arg.dtype);
    int64_t low = 0, high = 0, strides[MAX_RANK];
    bool empty = false;
    for (int i = 0; i < t->ndim; i++) {
        int64_t step = t->dims[t->ndim + i], reach = (t->dims[i] - 1) * step;
        if (step % (int64_t)size)
            return py_fail(PyExc_ValueError, "strides of a tensor must be multiples of the element size"),
                   NULL;
        strides[i] = step / (int64_t)size;
        empty |= t->dims[i] == 0;
        *(reach < 0 ? &low : &high) += reach;
    }
    char *first = t->arg.v.data;
    eas_buffer *buf = t->buf ? eas_buffer_retain(t->buf) : NULL;
    eas_status st = EAS_OK;
    int64_t offset;
    if (buf)
        offset = (first - (const char *)eas_buffer_read(buf)) / (int64_t)size;
    else {
        offset = empty ? 0 : -low / (int64_t)size;
        st = eas_buffer_wrap(t->device, empty ? first : first + low, empty ? 0 : (size_t)(high - low) + size,
                             later_decref, Py_NewRef(t), &buf);
        if (st != EAS_OK)
            Py_DECREF(t);
    }
    eas_node *n = NULL;
    if (st == EAS_OK)
        st = eas_node_from_buffer(buf, (eas_dtype)t->arg.dtype, t->ndim, t->dims, offset, strides, &n);
    if (buf)
        eas_buffer_release(buf);
    return st == EAS_OK ? n : (py_raise(st), NULL);
}
static eas_node *node_of_array(PyArrayObject *a, eas_device *d) /* a copy of an array in C order */
{
    int dt = py_dtype_of_npy(PyArray_DESCR(a)), rank = PyArray_NDIM(a);
    int64_t shape[NPY_MAXDIMS];
    if (dt < 0)
        return py_fail(
                   PyExc_TypeError,
                   "a tensor cannot hold elements of %R; use bool, int8-int64, uint8-uint64, float16, bfloat16, float32 or float64 in native "
                   "byte order",
                   (PyObject *)PyArray_DESCR(a)),
               NULL;
    for (int i = 0; i < rank; i++)
        shape[i] = PyArray_DIM(a, i);
    size_t bytes = (size_t)PyArray_NBYTES(a);
    eas_buffer *buf;
    eas_node *n = NULL;
    eas_status st = eas_buffer_new(d, bytes, &buf);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    if (bytes && eas_device_has_host_memory(d))
        memcpy(eas_buffer_address(buf), PyArray_DATA(a), bytes);
    else if (bytes) {
        hooks h;
        eas_launch l = {0};
        hooks_init(&l, &h);
        st = eas_device_copy(d, eas_buffer_address(buf), NULL, PyArray_DATA(a), bytes, &l);
    }
    eas_buffer_seal(buf); /* nobody else knows this copy */
    if (st == EAS_OK)
        st = eas_node_from_buffer(buf, (eas_dtype)dt, rank, shape, 0, NULL, &n);
    eas_buffer_release(buf);
    return st == EAS_OK ? n : (py_raise(st), NULL);
}
static bool has_float64_source(PyObject *o)
{
    return PyArray_Check(o) || PyArray_IsScalar(o, Generic) || PyObject_CheckBuffer(o);
}

bool eager_convertible(PyObject *o)
{
    return PyArray_Check(o) || tensor_check(o) || PyList_Check(o) || PyTuple_Check(o) ||
           PyObject_HasAttr((PyObject *)Py_TYPE(o), N.__dlpack__) ||
           (PyObject_CheckBuffer(o) && !PyBytes_Check(o));
}
static PyArrayObject *array_of(PyObject *o, PyObject *dtype)
{
    PyArray_Descr *d = NULL;
    eas_dtype dt;
    if (dtype && dtype != Py_None) {
        int num = eager_dtype(dtype, "dtype", &dt) ? py_dtype_to_npy(dt) : -1;
        if (num < 0)
            return NULL;
        d = PyArray_DescrFromType(num);
    }
    PyObject *src = Py_NewRef(o);
    if (!PyArray_Check(o) && !tensor_check(o) && !PyObject_CheckBuffer(o) &&
        PyObject_HasAttr((PyObject *)Py_TYPE(o), N.__dlpack__)) {
        PyObject *t = tensor_from_dlpack(o, Py_None), *a = t ? PyObject_CallMethod(t, "numpy", NULL) : NULL;
        Py_XDECREF(t);
        Py_SETREF(src, a);
        if (!a) {
            Py_XDECREF(d);
            return NULL;
        }
    }
    bool keep = has_float64_source(src) || d;
    PyArrayObject *a = (PyArrayObject *)tensor_to_array(
        src, d, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | NPY_ARRAY_FORCECAST | NPY_ARRAY_NOTSWAPPED);
    Py_DECREF(src);
    if (a && !keep && PyArray_TYPE(a) == NPY_FLOAT64) { /* Python's floats */
        PyArrayObject *f = (PyArrayObject *)PyArray_CastToType(a, PyArray_DescrFromType(NPY_FLOAT32), 0);
        Py_DECREF(a);
        a = f;
    }
    return a;
}
static eas_node *in_dtype(eas_node *n, PyObject *dtype) /* steals n */
{
    eas_dtype dt;
    if (!n || !dtype || dtype == Py_None)
        return n;
    if (!eager_dtype(dtype, "dtype", &dt)) {
        eas_node_release(n);
        return NULL;
    }
    int64_t attr = dt;
    return eas_node_dtype(n) == dt ? n : eager_do("cast", 1, &n, 1, &attr);
}
static Tensor *tensor_over_node(eas_node *n, bool readonly);
/* A copy of n's data on d; steals n. */
eas_node *eager_on_device(eas_node *n, eas_device *d)
{
    if (!n || !d || eas_node_device(n) == d)
        return n;
    Tensor *t = tensor_over_node(n, true);
    PyObject *moved = t ? PyObject_CallMethod((PyObject *)t, "to", "s", eas_device_name(d)) : NULL;
    eas_node *r = moved ? node_of_tensor((Tensor *)moved) : NULL;
    Py_XDECREF(t);
    Py_XDECREF(moved);
    eas_node_release(n);
    return r;
}
eas_node *node_of_data(PyObject *o, PyObject *dtype, eas_device *d)
{
    if (eager_check(o))
        return eager_on_device(in_dtype(eager_operand(o), dtype), d);
    if (tensor_check(o))
        return eager_on_device(in_dtype(node_of_tensor((Tensor *)o), dtype), d);
    if (!d && !(d = py_backend()))
        return NULL;
    PyArrayObject *a = array_of(o, dtype);
    eas_node *n = a ? node_of_array(a, d) : NULL;
    Py_XDECREF(a);
    return n;
}

/* ---- out ---- */
static eas_node *contiguous_f32(eas_node *n) /* counted */
{
    int64_t attr = EAS_F32;
    eas_node_retain(n);
    return eager_do("cast", 1, &n, 1, &attr);
}
static Tensor *tensor_of_whole(eas_node *n, bool readonly)
{
    int rank = eas_node_rank(n);
    int64_t offset = 0, strides[MAX_RANK];
    eas_buffer *buf = eas_node_buffer(n, &offset, strides);
    int64_t size = (int64_t)eas_dtype_size(eas_node_dtype(n));
    for (int i = 0; i < rank; i++)
        strides[i] *= size;
    char *data = readonly ? (char *)(uintptr_t)eas_buffer_read(buf) : eas_buffer_address(buf);
    Tensor *t = tensor_over(eas_buffer_device(buf), eas_node_dtype(n), rank, eas_node_shape(n), strides,
                            data + offset * size, readonly, NULL);
    if (t)
        t->buf = eas_buffer_retain(buf);
    return t;
}
/* Parts on a mesh put together: a node with ordinary data. Counted. */
static eas_node *whole_node(eas_node *n)
{
    eas_node *whole = NULL;
    hooks h;
    eas_launch l = {0};
    hooks_init(&l, &h);
    eas_status st = eas_node_whole(n, &l, &whole);
    return st == EAS_OK ? whole : (py_raise(st), NULL);
}
static Tensor *tensor_over_node(eas_node *n, bool readonly)
{
    if (!eager_realize(1, &n))
        return NULL;
    if (eas_node_is_sharded(n)) {
        eas_node *whole = whole_node(n);
        Tensor *t = whole ? tensor_of_whole(whole, readonly) : NULL;
        eas_node_release(whole);
        return t;
    }
    return tensor_of_whole(n, readonly);
}
Tensor *tensor_of_node(eas_node *n) { return tensor_over_node(n, false); }
PyObject *array_of_node(eas_node *n)
{
    Tensor *t = tensor_over_node(n, true);
    PyObject *a = t ? PyObject_CallMethod((PyObject *)t, "numpy", NULL) : NULL;
    Py_XDECREF(t);
    return a;
}
static PyObject *numpy(PyObject *o, PyObject *unused)
{
    (void)unused;
    return array_of_node(eager_node(o));
}
static PyObject *dunder_array(PyObject *o, PyObject *args, PyObject *kw)
{
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO:__array__", names, &dtype, &copy))
        return NULL;
    PyObject *a = array_of_node(eager_node(o));
    PyArray_Descr *d = NULL;
    if (!a || (dtype != Py_None && PyArray_DescrConverter(dtype, &d) != NPY_SUCCEED)) {
        Py_XDECREF(a);
        return NULL;
    }
    bool same = !d || PyArray_EquivTypes(d, PyArray_DESCR((PyArrayObject *)a));
    PyObject *r = NULL;
    if (!same && copy == Py_False)
        py_fail(PyExc_ValueError, "another dtype needs a copy");
    else if (!same)
        r = PyArray_CastToType((PyArrayObject *)a, (PyArray_Descr *)Py_NewRef(d), 0);
    else if (copy == Py_True)
        r = PyArray_NewCopy((PyArrayObject *)a, NPY_KEEPORDER);
    else
        r = Py_NewRef(a);
    Py_XDECREF(d);
    Py_DECREF(a);
    return r;
}
/* NumPy has no bfloat16 of its own: numbers and text go through float32. */
PyObject *eager_readable(eas_node *n)
{
    if (eas_node_dtype(n) != EAS_BF16)
        return array_of_node(n);
    eas_node *f = contiguous_f32(n);
    PyObject *a = f ? array_of_node(f) : NULL;
    eas_node_release(f);
    return a;
}
PyObject *eager_number(PyObject *o, const char *what)
{
    eas_node *n = eager_node(o);
    int bd = eas_node_batch_dims(n);
    if (bd)
        return py_fail_at(
            PyExc_RuntimeError,
            "%s of a tensor inside vmap: it stands for all lanes at once; use eager.where or eager.cond",
            what);
    for (int i = 0; i < eas_node_rank(n); i++)
        if (eas_node_shape(n)[i] != 1) {
            PyObject *s = shape_object(eas_node_rank(n), eas_node_shape(n));
            if (s)
                py_fail(PyExc_ValueError,
                        "%s of a tensor with other than one element is ambiguous; its shape is %R%s", what, s,
                        what[0] == 't' ? "; use .any() or .all()" : "");
            Py_XDECREF(s);
            return NULL;
        }
    PyObject *a = eager_readable(n), *r = a ? PyObject_CallMethod(a, "item", NULL) : NULL;
    Py_XDECREF(a);
    return r;
}
static PyObject *item(PyObject *o, PyObject *const *args, Py_ssize_t nargs)
{
    if (!nargs)
        return eager_number(o, "item()");
    PyObject *key = PyTuple_New(nargs), *x = NULL, *r = NULL;
    for (Py_ssize_t i = 0; key && i < nargs; i++)
        PyTuple_SET_ITEM(key, i, Py_NewRef(args[i]));
    if (key && (x = eager_subscript(o, key)))
        r = eager_number(x, "item()");
    Py_XDECREF(x);
    Py_XDECREF(key);
    return r;
}
static PyObject *tolist(PyObject *o, PyObject *unused)
{
    (void)unused;
    PyObject *a = eager_readable(eager_node(o)), *r = a ? PyObject_CallMethod(a, "tolist", NULL) : NULL;
    Py_XDECREF(a);
    return r;
}
/* to() a dtype that Python knows: cast, then whatever else was asked for. */
static PyObject *to_overridden(PyObject *o, PyObject *const *args, Py_ssize_t n, Py_ssize_t which)
{
    PyObject *op = op_object((eas_tensor_op)eas_tensor_op_find("cast")),
             *r = override_vector(op, (PyObject *[]){o, args[which]}, 2, NULL);
    for (Py_ssize_t i = 0; r && i < n; i++)
        if (i != which && PyUnicode_Check(args[i]))
            Py_SETREF(r, PyObject_CallMethod(r, "to", "O", args[i]));
    return r;
}
static PyObject *to_device(PyObject *o, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    for (Py_ssize_t i = 0, all = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0); i < all; i++)
        if (override_wanted(args[i]))
            return to_overridden(o, args, all, i);
    PyObject *dtype = NULL;
    eas_device *d = NULL;
    eas_dtype dt;
    Py_ssize_t n = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    for (Py_ssize_t i = 0; i < n; i++) { /* as torch: a device or a dtype, in any order */
        bool named = i >= nargs;
        const char *name = named ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames, i - nargs)) : "";
        if (!name)
            return NULL;
        if (named && !strcmp(name, "stream"))
            continue;
        if (!named && PyUnicode_Check(args[i]) && eas_dtype_parse(PyUnicode_AsUTF8(args[i]), &dt))
            dtype = args[i];
        else if (!strcmp(name, "dtype") || (!named && !PyUnicode_Check(args[i])))
            dtype = args[i];
        else if (named && strcmp(name, "device"))
            return py_fail(PyExc_TypeError, "to(device=None, dtype=None) has no argument '%s'", name);
        else if (args[i] != Py_None && !(d = py_device(args[i])))
            return NULL;
    }
    eas_node *x = eager_on_device(in_dtype(eas_node_retain(eager_node(o)), dtype), d);
    if (x == eager_node(o)) {
        eas_node_release(x);
        return Py_NewRef(o);
    }
    return x ? eager_wrap(x) : NULL;
}
static PyObject *dunder_dlpack(PyObject *o, PyObject *args, PyObject *kw)
{
    Tensor *t = tensor_of_node(eager_node(o));
    PyObject *r = t ? tensor_dlpack((PyObject *)t, args, kw) : NULL;
    Py_XDECREF(t);
    return r;
}
static PyObject *dunder_dlpack_device(PyObject *o, PyObject *unused)
{
    (void)unused;
    Tensor *t = tensor_over_node(eager_node(o), true);
    PyObject *r = t ? tensor_dlpack_device((PyObject *)t, NULL) : NULL;
    Py_XDECREF(t);
    return r;
}
int eager_getbuffer(PyObject *o, Py_buffer *view, int flags)
{
    view->obj = NULL;
    PyObject *a = array_of_node(eager_node(o));
    int r = a ? PyObject_GetBuffer(a, view, flags) : -1; /* the view holds the array */
    Py_XDECREF(a);
    if (r < 0 && !PyErr_ExceptionMatches(PyExc_BufferError) && !a) {
        PyObject *t, *v, *tb;
        PyErr_Fetch(&t, &v, &tb);
        PyErr_Format(PyExc_BufferError, "%S", v ? v : t);
        Py_XDECREF(t);
        Py_XDECREF(v);
        Py_XDECREF(tb);
    }
    return r;
}
static bool is_known(eas_node *n)
{
    for (int i = 0; i < eas_node_rank(n); i++)
        if (eas_node_shape(n)[i] < 0)
            return false;
    return true;
}
static PyObject *array_text(PyObject *a)
{
    PyObject *np = PyImport_ImportModule("numpy"),
             *f = np ? PyObject_GetAttrString(np, "array2string") : NULL;
    PyObject *args = f ? PyTuple_Pack(1, a) : NULL,
             *kw = args ? Py_BuildValue("{s:s,s:s}", "separator", ", ", "prefix", "Tensor(") : NULL;
    PyObject *r = kw ? PyObject_Call(f, args, kw) : NULL;
    Py_XDECREF(kw);
    Py_XDECREF(args);
    Py_XDECREF(f);
    Py_XDECREF(np);
    return r;
}
PyObject *eager_repr(PyObject *o)
{
    eas_node *n = eager_node(o);
    int bd = eas_node_batch_dims(n);
    PyObject *dtype = PyObject_GetAttrString(G.dtypes[eas_node_dtype(n)], "numpy_name"),
             *shape = shape_object(eas_node_rank(n) - bd, eas_node_shape(n) + bd), *r = NULL;
    bool recorded = !eas_node_is_real(n) && (eager_tracing || eas_node_is_symbolic(n) || !is_known(n));
    PyObject *a = dtype && shape && !recorded ? eager_readable(n) : NULL,
             *text = a        ? array_text(a)
                   : recorded ? PyUnicode_FromString("<recorded>")
                              : NULL;
    if (dtype && shape && text)
        r = bd ? PyUnicode_FromFormat("Tensor(%U, shape=%R, batch_dims=%d, dtype=%U)", text, shape, bd, dtype)
               : PyUnicode_FromFormat("Tensor(%U, shape=%R, dtype=%U)", text, shape, dtype);
    Py_XDECREF(text);
    Py_XDECREF(a);
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return r;
}

/* ---- await t: realises, and gives t ---- */
typedef struct Ready {
    PyObject_HEAD PyObject *value;
} Ready;
static PyTypeObject *ready_type;
static PyObject *ready_next(PyObject *o)
{
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, ((Ready *)o)->value);
    if (stop)
        PyErr_SetObject(PyExc_StopIteration, stop);
    Py_XDECREF(stop);
    return NULL;
}
static void ready_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    Py_XDECREF(((Ready *)o)->value);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyType_Slot ready_slots[] = {
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, ready_next}, {Py_tp_dealloc, ready_dealloc}, {0, NULL}};
static PyType_Spec ready_spec = {"eager._Ready", sizeof(Ready), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, ready_slots};
/* In a running event loop a thread of ours computes, and other tasks go on meanwhile. */
static PyObject *awaited(PyObject *o)
{
    PyObject *m = PyImport_ImportModule("eager._await"),
             *r = m ? PyObject_CallMethod(m, "wait", "O", o) : NULL;
    Py_XDECREF(m);
    return r;
}
PyObject *eager_await(PyObject *o)
{
    eas_node *n = eager_node(o);
    if (!eas_node_is_real(n) && !eas_node_is_symbolic(n)) {
        PyObject *r = awaited(o);
        if (r != Py_None)
            return r;
        Py_DECREF(r); /* there is no loop that could do something else */
    }
    if (!eager_realize(1, &((Eager *)o)->n))
        return NULL;
    Ready *r = PyObject_New(Ready, ready_type);
    if (r)
        r->value = Py_NewRef(o);
    return (PyObject *)r;
}

/* ---- making ---- */
static PyObject *constant(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    static char *names[] = {"value", "dtype", "device", "traced", NULL};
    PyObject *value, *dtype = Py_None, *device = Py_None;
    int traced = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|OOp:constant", names, &value, &dtype, &device, &traced))
        return NULL;
    if (override_wanted(dtype) || (!PyUnicode_Check(value) && override_wanted(value))) {
        PyObject *name = PyUnicode_FromString("constant"), *r = name ? override_call(name, args, kw) : NULL;
        Py_XDECREF(name);
        return r;
    }
    eas_device *d = device == Py_None ? NULL : py_device(device);
    if (device != Py_None && !d)
        return NULL;
    eas_node *n = node_of_data(value, dtype, d);
    if (n && !eager_check(value) && !tensor_check(value))
        eas_node_mark_constant(n);
    if (n && traced)
        eas_node_set_traced(n, 1);
    return n ? eager_wrap(n) : NULL;
}
static PyObject *from_dlpack(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    static char *names[] = {"x", "device", "copy", NULL};
    PyObject *x, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OO:from_dlpack", names, &x, &device, &copy))
        return NULL;
    eas_device *d = device == Py_None ? NULL : py_device(device);
    if (device != Py_None && !d)
        return NULL;
    if (eager_check(x) && copy != Py_True && !d)
        return Py_NewRef(x);
    PyObject *t = tensor_from_dlpack(x, Py_None);
    eas_node *n = t ? copy == Py_True ? node_of_data(t, NULL, NULL) : node_of_tensor((Tensor *)t) : NULL;
    Py_XDECREF(t);
    n = eager_on_device(n, d);
    return n ? eager_wrap(n) : NULL;
}
/* An array of rank 0 as NumPy's number, where it is not data that a trace follows; else o itself. A new
 * reference. */
PyObject *number_from(PyObject *o)
{
    if (eager_tracing || !PyArray_CheckExact(o) || PyArray_NDIM((PyArrayObject *)o))
        return Py_NewRef(o);
    return PyArray_ToScalar(PyArray_DATA((PyArrayObject *)o), (PyArrayObject *)o);
}
/* The rule of graph_number_fits, where Python converts. */
int number_fits(eas_node *v, eas_dtype dt, const char *fn)
{
    int64_t i;
    double f;
    eas_dtype from = eas_node_dtype(v);
    bool real = eas_dtype_kind(from) == 'f';
    if (!eas_node_number_value(v, &i, &f) || dt == EAS_BOOL || (from == EAS_U64 && dt == EAS_U64))
        return 1;
    /* NumPy's numbers of another kind convert as theirs do */
    if (!eas_node_is_weak(v) && (from == EAS_BOOL || real != (eas_dtype_kind(dt) == 'f')))
        return 1;
    if (eas_dtype_holds(dt, real || from == EAS_U64, i, f))
        return 1;
    PyObject *n = real            ? PyFloat_FromDouble(f)
                : from == EAS_U64 ? PyLong_FromUnsignedLongLong((uint64_t)i)
                                  : PyLong_FromLongLong(i);
    if (n)
        py_fail(PyExc_ValueError,
                "eager.%s: the number %S does not fit %s; take a wider dtype, or cast explicitly", fn, n,
                eas_dtype_name(dt));
    Py_XDECREF(n);
    return 0;
}
static PyObject *full(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    eas_dtype dt;
    int64_t attr[1 + MAX_RANK];
    if (nargs != 3 && nargs != 4)
        return py_fail(PyExc_TypeError, "full(shape, value, dtype, op)");
    if (override_wanted(args[1]) || override_wanted(args[2])) {
        PyObject *name = PyUnicode_FromString("full"),
                 *r = name ? override_vector(name, args, 3, NULL) : NULL;
        Py_XDECREF(name);
        return r;
    }
    const char *op = nargs == 4 ? PyUnicode_AsUTF8(args[3]) : "full";
    if (!op)
        return NULL;
    PyObject *one = number_from(args[1]);
    eas_node *v = one ? eager_arg(one, "full", "the value") : NULL;
    Py_XDECREF(one);
    if (!v)
        return NULL;
    int rank = dims_of(args[0], "shape", attr + 1, MAX_RANK);
    if (rank < 0 || (args[2] != Py_None && !eager_dtype(args[2], "dtype", &dt))) {
        eas_node_release(v);
        return NULL;
    }
    if (args[2] == Py_None)
        dt = eas_node_dtype(v) == EAS_F64 && eas_node_is_weak(v) ? EAS_F32 : eas_node_dtype(v);
    int64_t to = dt;
    if (!number_fits(v, dt, "full")) {
        eas_node_release(v);
        return NULL;
    }
    attr[0] = rank;
    v = eager_do("cast", 1, &v, 1, &to);
    v = v ? eager_do(op, 1, &v, rank + 1, attr) : NULL;
    return v ? eager_result(EAS_OK, v) : NULL;
}
static PyObject *stats(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    eas_lazy_stats s = eas_lazy_stats_get();
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "programs", (unsigned long long)s.programs,
                         "program_hits", (unsigned long long)s.program_hits, "kernels",
                         (unsigned long long)s.kernels, "steps", (unsigned long long)s.steps, "live_nodes",
                         (unsigned long long)s.live_nodes, "pack_bytes", (unsigned long long)s.pack_bytes,
                         "pack_hits", (unsigned long long)s.pack_hits);
}
static PyObject *debug_nans(PyObject *m, PyObject *how)
{
    (void)m;
    long v = PyLong_AsLong(how), old = eager_nans;
    if (v == -1 && PyErr_Occurred())
        return NULL;
    eager_nans = (int)v;
    return PyLong_FromLong(old);
}
static PyObject *node_symbolic(PyObject *m, PyObject *t)
{
    (void)m;
    return PyBool_FromLong(eager_check(t) && (eager_tracing || eas_node_is_symbolic(eager_node(t))));
}
static PyObject *set_strict(PyObject *m, PyObject *yes)
{
    (void)m;
    int on = PyObject_IsTrue(yes);
    PyObject *old = PyBool_FromLong(eager_strict);
    if (on >= 0)
        eager_strict = on;
    return on < 0 ? NULL : old;
}
#define KW(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL
static PyMethodDef methods[] = {
    {"realize", realize, METH_NOARGS,
     "realize()\n--\n\nComputes the tensor now, with all that it needs; gives the tensor."},
    {"_sync_realize", sync_realize, METH_NOARGS, "_sync_realize()\n--\n\nComputes the tensor now."},
    {"numpy", numpy, METH_NOARGS,
     "numpy()\n--\n\nThe elements as a read-only array; on the cpu the same memory."},
    {"to_numpy", numpy, METH_NOARGS,
     "to_numpy()\n--\n\nThe elements as a read-only array; on the cpu the same memory."},
    {"item", FAST(item), "item(*index)\n--\n\nThe one element, or that at the index, as a Python number."},
    {"tolist", tolist, METH_NOARGS, "tolist()\n--\n\nThe elements as nested lists of Python numbers."},
    {"to", FAST(to_device) | METH_KEYWORDS,
     "to(device=None, dtype=None)\n--\n\nThe tensor there and in that dtype; itself if it is so already."},
    {"to_device", FAST(to_device) | METH_KEYWORDS,
     "to_device(device, *, stream=None)\n--\n\nThe tensor on that device."},
    {"__array__", KW(dunder_array), NULL},
    {"__dlpack__", KW(dunder_dlpack),
     "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"},
    {"__dlpack_device__", dunder_dlpack_device, METH_NOARGS, "__dlpack_device__($self, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef functions[] = {
    {"realize_all", realize_all, METH_VARARGS,
     "realize_all(*tensors)\n--\n\nComputes all of them in one program; pytrees of tensors are taken too."},
    {"constant", KW(constant),
     "constant(value, dtype=None, device=None, traced=False)\n--\n\nA tensor with a copy of the data: arrays, nested lists, numbers; floats of "
     "Python become float32."},
    {"eager_from_dlpack", KW(from_dlpack),
     "from_dlpack(x, *, device=None, copy=None)\n--\n\nA tensor over the memory of x, without a copy."},
    {"eager_full", FAST(full),
     "full(shape, value, dtype[, op]): all the same; op: \"full\", \"zeros\" or \"ones\""},
    {"eager_stats", stats, METH_NOARGS, "eager_stats(): counters of what was evaluated"},
    {"debug_nans", debug_nans, METH_O,
     "debug_nans(how): are results looked at for NaNs (1), and infinities (2)? Gives what was before"},
    {"node_symbolic", node_symbolic, METH_O,
     "node_symbolic(tensor): has it no data, since it stands for an argument of what is being traced?"},
    {"set_strict", set_strict, METH_O,
     "set_strict(on): does every operation run at once? Gives what was before"},
    {"eager_show", FAST(eager_show),
     "eager_show(form, {name: tensor}, *tensors): what evaluating them would do"},
    {NULL, NULL, 0, NULL},
};
int eager_data_init(PyObject *module)
{
    const char *strict = getenv("EAGER_STRICT");
    eager_strict = strict && *strict && strcmp(strict, "0");
    if (!(ready_type = py_type(module, &ready_spec, NULL)))
        return -1;
    for (PyMethodDef *d = methods; d->ml_name; d++) {
        PyObject *f = PyDescr_NewMethod(G.eager, d);
        int bad = !f || PyObject_SetAttrString((PyObject *)G.eager, d->ml_name, f) < 0;
        Py_XDECREF(f);
        if (bad)
            return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
