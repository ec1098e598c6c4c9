/* eager_impl.c: what Python may ask of a node: TensorImpl, made when asked for and found again through the
 * node; OutputRefs, which operation made which results of what; a sharding. All of that hangs on the node
 * (eas_node_object) and goes with it. */
#include "py.h"

#include <pthread.h>
#include <structmember.h>

typedef struct Refs { /* OutputRefs */
    PyObject_VAR_HEAD PyObject *op, *args, *kwargs, *tree_def, *weakrefs;
    eas_node *outs[]; /* not counted: NULL once a node is gone */
} Refs;
typedef struct meta {
    Refs *refs;
    int index;
    PyObject *sharding;
    bool stored; /* the sharding is that of the data */
    PyObject *storage; /* the eas.Tensor that was handed out */
} meta;
typedef struct Impl {
    PyObject_HEAD eas_node *n; /* NULL: made by hand, of no tensor */
    PyObject *sharding, *weakrefs; /* sharding: only if n is NULL */
    int batch_dims, traced;
} Impl;
PyTypeObject *impl_type;
static PyTypeObject *refs_type;
static pthread_mutex_t weak_lock = PTHREAD_MUTEX_INITIALIZER; /* of Refs.outs: nodes go on any thread */

/* ---- what hangs on a node ---- */
static void drop_meta(void *object)
{
    meta *m = object;
    if (m->refs) {
        pthread_mutex_lock(&weak_lock);
        m->refs->outs[m->index] = NULL;
        pthread_mutex_unlock(&weak_lock);
        later_decref(m->refs);
    }
    later_decref(m->sharding);
    later_decref(m->storage);
    PyMem_RawFree(m);
}
static meta *meta_of(eas_node *n) /* made if need be; NULL with an exception */
{
    meta *m = eas_node_object(n);
    if (m)
        return m;
    if (!(m = PyMem_RawCalloc(1, sizeof *m)))
        return (meta *)PyErr_NoMemory();
    eas_status st = eas_node_set_object(n, m, drop_meta);
    if (st == EAS_OK)
        return m;
    PyMem_RawFree(m);
    return py_raise(st), NULL;
}
PyObject *node_sharding(eas_node *n)
{
    meta *m = eas_node_object(n);
    if (!eas_node_is_sharded(n) || !eas_node_is_real(n) || (m && m->stored))
        return m ? m->sharding : NULL;
    /* what was told ahead gives way to what is */
    PyObject *s = (m = meta_of(n)) ? shard_stored(n, m->sharding) : NULL;
    if (!s) {
        PyErr_Clear();
        return m ? m->sharding : NULL;
    }
    m->stored = true;
    Py_XSETREF(m->sharding, s == Py_None ? NULL : Py_NewRef(s));
    Py_DECREF(s);
    return m->sharding;
}
int node_set_sharding(eas_node *n, PyObject *sharding)
{
    meta *m = sharding || eas_node_object(n) ? meta_of(n) : NULL;
    if (!m)
        return !PyErr_Occurred();
    Py_XSETREF(m->sharding, Py_XNewRef(sharding));
    return 1;
}

/* ---- OutputRefs ---- */
/* replace: what was remembered of these nodes before is forgotten. */
static Refs *refs_new(eas_node *const *outs, int n, PyObject *op, PyObject *args, PyObject *kwargs,
                      PyObject *tree_def, bool replace)
{
    Refs *r = PyObject_NewVar(Refs, refs_type, n);
    if (!r)
        return NULL;
    r->op = Py_NewRef(op ? op : Py_None);
    r->args = args ? Py_NewRef(args) : PyTuple_New(0);
    r->kwargs = kwargs ? Py_NewRef(kwargs) : PyDict_New();
    r->tree_def = Py_NewRef(tree_def ? tree_def : Py_None);
    r->weakrefs = NULL;
    for (int i = 0; i < n; i++)
        r->outs[i] = NULL;
    for (int i = 0; i < n; i++) {
        meta *m = meta_of(outs[i]);
        if (!m || !r->args || !r->kwargs) {
            Py_DECREF(r);
            return NULL;
        }
        if (m->refs && !replace)
            continue;
        if (m->refs) {
            pthread_mutex_lock(&weak_lock);
            m->refs->outs[m->index] = NULL;
            pthread_mutex_unlock(&weak_lock);
            Py_DECREF(m->refs);
        }
        m->refs = (Refs *)Py_NewRef(r);
        m->index = i;
        r->outs[i] = outs[i];
    }
    return r;
}
static void refs_dealloc(PyObject *o)
{
    Refs *r = (Refs *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (r->weakrefs)
        PyObject_ClearWeakRefs(o);
    Py_XDECREF(r->op);
    Py_XDECREF(r->args);
    Py_XDECREF(r->kwargs);
    Py_XDECREF(r->tree_def);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyObject *alive(PyObject *o, PyObject *unused)
{
    (void)unused;
    Refs *r = (Refs *)o;
    PyObject *list = PyList_New(Py_SIZE(r));
    for (Py_ssize_t i = 0; list && i < Py_SIZE(r); i++) {
        pthread_mutex_lock(&weak_lock); /* a node is not freed before drop_meta had the lock */
        eas_node *n = r->outs[i] ? eas_node_revive(r->outs[i]) : NULL;
        pthread_mutex_unlock(&weak_lock);
        PyObject *impl = n ? impl_of(n) : Py_NewRef(Py_None);
        eas_node_release(n);
        if (!impl)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, impl);
    }
    return list;
}
static PyObject *refs_count(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromSsize_t(Py_SIZE(o));
}
static PyObject *refs_repr(PyObject *o)
{
    Refs *r = (Refs *)o;
    PyObject *name = r->op == Py_None ? PyUnicode_FromString("?") : PyObject_GetAttrString(r->op, "name");
    PyObject *t = name ? PyUnicode_FromFormat("OutputRefs(%S, %zd outputs)", name, Py_SIZE(o)) : NULL;
    Py_XDECREF(name);
    return t;
}
static PyMemberDef refs_members[] = {
    {"op", T_OBJECT, offsetof(Refs, op), READONLY, "the operation"},
    {"op_args", T_OBJECT, offsetof(Refs, args), READONLY,
     "its arguments, TensorImpls for tensors; empty if nothing is traced"},
    {"op_kwargs", T_OBJECT, offsetof(Refs, kwargs), READONLY, "its named arguments"},
    {"tree_def", T_OBJECT, offsetof(Refs, tree_def), READONLY,
     "the structure of its results; None for one tensor"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Refs, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef refs_getset[] = {{"num_outputs", refs_count, NULL, "number of results", NULL},
                                    {NULL, NULL, NULL, NULL, NULL}};
static PyMethodDef refs_methods[] = {
    {"get_alive_outputs", alive, METH_NOARGS,
     "get_alive_outputs()\n--\n\nThe TensorImpls of the results; None for those that are gone."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot refs_slots[] = {
    {Py_tp_doc, "What an operation was given and, weakly, what it gave: shared by all its results."},
    {Py_tp_dealloc, refs_dealloc},
    {Py_tp_repr, refs_repr},
    {Py_tp_members, refs_members},
    {Py_tp_getset, refs_getset},
    {Py_tp_methods, refs_methods},
    {0, NULL}};
static PyType_Spec refs_spec = {"eager.core.tracing.OutputRefs", offsetof(Refs, outs), sizeof(eas_node *),
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, refs_slots};

/* ---- remembering calls ---- */
static PyObject *as_impl(void *ctx, PyObject *leaf)
{
    (void)ctx;
    return eager_check(leaf) ? impl_of(eager_node(leaf)) : Py_NewRef(leaf);
}
static PyObject *as_impls(PyObject *tree) { return tree ? pytree_map(tree, as_impl, NULL) : NULL; }

int impl_record(eas_node *const *outs, int nouts, PyObject *op, PyObject *args, PyObject *kwargs,
                PyObject *tree_def)
{
    bool traced = eas_node_is_traced(outs[0]);
    if (!traced && nouts == 1 && (!op || PyObject_TypeCheck(op, tensor_op_type)))
        return 1;
    PyObject *a = traced ? as_impls(args) : NULL, *k = traced ? as_impls(kwargs) : NULL;
    Refs *r = traced && (!a || (kwargs && !k)) ? NULL : refs_new(outs, nouts, op, a, k, tree_def, nouts > 1);
    Py_XDECREF(a);
    Py_XDECREF(k);
    Py_XDECREF(r);
    return r != NULL;
}
static PyObject *py_record(PyObject *m, PyObject *args) /* record(op, outs, args, kwargs, tree_def) */
{
    (void)m;
    PyObject *op, *outs, *a, *k, *d;
    eas_node *nodes[256];
    if (!PyArg_ParseTuple(args, "OO!O!O!O:record", &op, &PyList_Type, &outs, &PyTuple_Type, &a, &PyDict_Type,
                          &k, &d))
        return NULL;
    Py_ssize_t n = PyList_GET_SIZE(outs), count = 0;
    eas_node **at = n <= 256 ? nodes : PyMem_New(eas_node *, (size_t)n);
    for (Py_ssize_t i = 0; at && i < n; i++)
        if (eager_check(PyList_GET_ITEM(outs, i)))
            at[count++] = eager_node(PyList_GET_ITEM(outs, i));
    int ok = at && count == n && (n == 0 || impl_record(at, (int)n, op, a, k, d == Py_None ? NULL : d));
    if (at != nodes)
        PyMem_Free(at);
    return ok               ? Py_NewRef(Py_None)
         : PyErr_Occurred() ? NULL
                            : py_fail(PyExc_TypeError, "record: results must be tensors");
}

/* ---- TensorImpl ---- */
PyObject *impl_of(eas_node *n)
{
    Impl *i = eas_node_user(n);
    if (i)
        return Py_NewRef(i);
    if (!(i = PyObject_New(Impl, impl_type)))
        return NULL;
    i->n = eas_node_retain(n);
    i->sharding = i->weakrefs = NULL;
    i->batch_dims = i->traced = 0;
    eas_node_set_user(n, i);
    return (PyObject *)i;
}
eas_node *impl_node(PyObject *o)
{
    if (!Py_IS_TYPE(o, impl_type))
        return py_fail(PyExc_TypeError, "a TensorImpl is wanted, got %s", Py_TYPE(o)->tp_name), NULL;
    if (!((Impl *)o)->n)
        return py_fail(PyExc_ValueError, "this TensorImpl is of no tensor"), NULL;
    return ((Impl *)o)->n;
}
static void impl_dealloc(PyObject *o)
{
    Impl *i = (Impl *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (i->n)
        eas_node_set_user(i->n, NULL); /* first: callbacks of weak references may ask for the node's */
    if (i->weakrefs)
        PyObject_ClearWeakRefs(o);
    eas_node_release(i->n);
    Py_XDECREF(i->sharding);
    PyObject_Free(o);
    Py_DECREF(type);
    later_check();
}
static PyObject *impl_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *names[] = {"storages", "values", "traced", "batch_dims", "sharding", NULL};
    PyObject *storages = Py_None, *values = Py_None, *sharding = Py_None;
    int traced = 0, batch_dims = 0;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OOpiO:TensorImpl", names, &storages, &values, &traced,
                                     &batch_dims, &sharding))
        return NULL;
    if (batch_dims < 0)
        return py_fail(PyExc_ValueError, "batch_dims must not be negative, got %d", batch_dims);
    PyObject *one = PyList_Check(storages) || PyTuple_Check(storages)
                      ? PySequence_Size(storages) ? PySequence_GetItem(storages, 0) : Py_NewRef(Py_None)
                      : Py_NewRef(storages);
    if (one && one != Py_None) {
        PyObject *t = tensor_check(one) ? Py_NewRef(one) : tensor_from_dlpack(one, Py_None), *impl = NULL;
        eas_node *n = t ? node_of_tensor((Tensor *)t) : NULL;
        Py_XDECREF(t);
        Py_DECREF(one);
        if (n) {
            eas_node_set_traced(n, traced);
            eas_node_set_batch_dims(n, batch_dims);
            impl = node_set_sharding(n, sharding == Py_None ? NULL : sharding) ? impl_of(n) : NULL;
        }
        eas_node_release(n);
        return impl;
    }
    Py_XDECREF(one);
    Impl *i = one ? PyObject_New(Impl, impl_type) : NULL;
    if (!i)
        return NULL;
    *i = (Impl){.ob_base = i->ob_base,
                .batch_dims = batch_dims,
                .traced = traced,
                .sharding = sharding == Py_None ? NULL : Py_NewRef(sharding)};
    return (PyObject *)i;
}
static meta *impl_meta(Impl *i) { return i->n ? eas_node_object(i->n) : NULL; }
static bool is_data(eas_node *n)
{
    return !n || !eas_tensor_op_at(eas_node_op(n)).kind[0] || !op_object(eas_node_op(n));
}

static PyObject *get_op(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    meta *m = impl_meta(i);
    PyObject *op = m && m->refs ? m->refs->op : i->n ? op_object(eas_node_op(i->n)) : NULL;
    return Py_NewRef(op ? op : Py_None);
}
static PyObject *get_op_name(PyObject *o, void *c)
{
    PyObject *op = get_op(o, c),
             *r = !op || op == Py_None ? Py_NewRef(Py_None) : PyObject_GetAttrString(op, "name");
    Py_XDECREF(op);
    return r;
}
/* Those that are tensors. */
static PyObject *inputs(eas_node *n)
{
    eas_node *const *in = NULL;
    int count = n ? eas_node_inputs(n, &in) : 0;
    PyObject *list = PyList_New(0);
    int64_t v;
    double f;
    for (int k = 0; list && k < count; k++) {
        if (eas_node_number_value(in[k], &v, &f))
            continue;
        PyObject *p = impl_of(in[k]);
        if (!p || PyList_Append(list, p) < 0)
            Py_CLEAR(list);
        Py_XDECREF(p);
    }
    return list;
}
static PyObject *get_refs(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    meta *m = impl_meta(i);
    if (m && m->refs)
        return Py_NewRef(m->refs);
    if (is_data(i->n))
        Py_RETURN_NONE;
    PyObject *list = eas_node_is_traced(i->n) ? inputs(i->n) : PyList_New(0),
             *args = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    Refs *r = args ? refs_new(&i->n, 1, op_object(eas_node_op(i->n)), args, NULL, NULL, false) : NULL;
    Py_XDECREF(args);
    return (PyObject *)r;
}
static PyObject *get_index(PyObject *o, void *c)
{
    (void)c;
    meta *m = impl_meta((Impl *)o);
    return PyLong_FromLong(m && m->refs ? m->index : 0);
}
static PyObject *get_inputs(PyObject *o, void *c)
{
    (void)c;
    return inputs(((Impl *)o)->n);
}
static PyObject *get_parents(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    meta *m = impl_meta(i);
    if (!i->n || !eas_node_is_traced(i->n))
        return PyList_New(0);
    if (!m || !m->refs)
        return inputs(i->n);
    PyObject *leaves, *both = PyTuple_Pack(2, m->refs->args, m->refs->kwargs), *list = NULL;
    if (both && pytree_flatten(both, NULL, &leaves, NULL)) {
        list = PyList_New(0);
        for (Py_ssize_t k = 0; list && k < PyList_GET_SIZE(leaves); k++)
            if (Py_IS_TYPE(PyList_GET_ITEM(leaves, k), impl_type) &&
                PyList_Append(list, PyList_GET_ITEM(leaves, k)) < 0)
                Py_CLEAR(list);
        Py_DECREF(leaves);
    }
    Py_XDECREF(both);
    return list;
}
static PyObject *get_is_leaf(PyObject *o, void *c)
{
    PyObject *p = get_parents(o, c);
    Py_ssize_t n = p ? PyList_GET_SIZE(p) : 0;
    Py_XDECREF(p);
    return p ? PyBool_FromLong(n == 0) : NULL;
}
static PyObject *get_realized(PyObject *o, void *c)
{
    (void)c;
    return PyBool_FromLong(((Impl *)o)->n && eas_node_is_real(((Impl *)o)->n));
}
static PyObject *get_symbolic(PyObject *o, void *c)
{
    (void)c;
    return PyBool_FromLong(((Impl *)o)->n && eas_node_is_symbolic(((Impl *)o)->n));
}
/* The same object each time. */
PyObject *node_storage(eas_node *n)
{
    meta *m = meta_of(n);
    if (m && !m->storage)
        m->storage = (PyObject *)tensor_of_node(n);
    return m ? Py_XNewRef(m->storage) : NULL;
}
static PyObject *get_physical(PyObject *o, void *c);
static PyObject *get_dtype(PyObject *o, void *c);
static PyObject *get_device(PyObject *o, void *c);
static PyObject *get_storages(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    PyObject *list = PyList_New(0);
    if (!list || !i->n || !eas_node_is_real(i->n))
        return list;
    PyObject *t = node_storage(i->n);
    if (!t || PyList_Append(list, t) < 0)
        Py_CLEAR(list);
    Py_XDECREF(t);
    return list;
}
static PyObject *get_type(PyObject *o, void *c)
{
    PyObject *m = PyImport_ImportModule("eager.core.tensor_impl"),
             *f = m ? PyObject_GetAttrString(m, "TensorType") : NULL;
    PyObject *shape = f ? get_physical(o, c) : NULL, *dtype = shape ? get_dtype(o, c) : NULL,
             *device = dtype ? get_device(o, c) : NULL;
    PyObject *r = device ? PyObject_CallFunctionObjArgs(f, shape, dtype, device, NULL) : NULL;
    Py_XDECREF(m);
    Py_XDECREF(f);
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    return r;
}
static PyObject *get_values(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    PyObject *list = PyList_New(0);
    if (list && i->n && !eas_node_is_real(i->n) && PyList_Append(list, o) < 0)
        Py_CLEAR(list);
    return list;
}
static PyObject *get_physical(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    return i->n ? shape_object(eas_node_rank(i->n), eas_node_shape(i->n)) : Py_NewRef(Py_None);
}
static PyObject *get_logical(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    int bd = i->n ? eas_node_batch_dims(i->n) : 0;
    return i->n ? shape_object(eas_node_rank(i->n) - bd, eas_node_shape(i->n) + bd) : Py_NewRef(Py_None);
}
static PyObject *get_dtype(PyObject *o, void *c)
{
    (void)c;
    return ((Impl *)o)->n ? py_dtype_object(eas_node_dtype(((Impl *)o)->n)) : Py_NewRef(Py_None);
}
static PyObject *get_device(PyObject *o, void *c)
{
    (void)c;
    eas_node *n = ((Impl *)o)->n;
    eas_device *d = n ? eas_node_device(n) : NULL;
    if (n && !d && !(d = py_backend())) /* that it would be computed on */
        return NULL;
    return d ? PyUnicode_FromString(eas_device_name(d)) : Py_NewRef(Py_None);
}
static PyObject *get_traced(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    return PyBool_FromLong(i->n ? eas_node_is_traced(i->n) : i->traced);
}
static int set_traced(PyObject *o, PyObject *v, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    int yes = v ? PyObject_IsTrue(v) : 0;
    if (yes < 0)
        return -1;
    i->traced = yes;
    if (i->n)
        eas_node_set_traced(i->n, yes);
    return 0;
}
static PyObject *get_batch_dims(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    return PyLong_FromLong(i->n ? eas_node_batch_dims(i->n) : i->batch_dims);
}
static int set_batch_dims(PyObject *o, PyObject *v, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    long k = v ? PyLong_AsLong(v) : 0;
    if (k == -1 && PyErr_Occurred())
        return -1;
    if (k < 0 || (i->n && k > eas_node_rank(i->n)))
        return py_fail(PyExc_ValueError, "batch_dims must be between 0 and the number of dims, got %ld", k),
             -1;
    i->batch_dims = (int)k;
    if (i->n)
        eas_node_set_batch_dims(i->n, (int)k);
    return 0;
}
static PyObject *get_sharding(PyObject *o, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    PyObject *s = i->n ? node_sharding(i->n) : i->sharding;
    return Py_NewRef(s ? s : Py_None);
}
static int set_sharding(PyObject *o, PyObject *v, void *c)
{
    (void)c;
    Impl *i = (Impl *)o;
    if (v == Py_None)
        v = NULL;
    if (i->n)
        return node_set_sharding(i->n, v) ? 0 : -1;
    Py_XSETREF(i->sharding, Py_XNewRef(v));
    return 0;
}
static PyObject *impl_repr(PyObject *o)
{
    PyObject *name = get_op_name(o, NULL), *shape = get_physical(o, NULL), *r = NULL;
    if (name && shape)
        r = PyUnicode_FromFormat(
            "TensorImpl(op=%S, shape=%R, batch_dims=%d, %s)", name, shape,
            ((Impl *)o)->n ? eas_node_batch_dims(((Impl *)o)->n) : ((Impl *)o)->batch_dims,
            ((Impl *)o)->n && eas_node_is_real(((Impl *)o)->n) ? "realized" : "unrealized");
    Py_XDECREF(name);
    Py_XDECREF(shape);
    return r;
}
static PyGetSetDef impl_getset[] = {
    {"op", get_op, NULL, "the operation that made it; None for data", NULL},
    {"op_name", get_op_name, NULL, "its name", NULL},
    {"output_refs", get_refs, NULL, "the OutputRefs of that operation; None for data", NULL},
    {"output_index", get_index, NULL, "which of its results this is", NULL},
    {"parents", get_parents, NULL, "what it was made of, if it is traced", NULL},
    {"_inputs", get_inputs, NULL, "what it still needs, traced or not", NULL},
    {"is_leaf", get_is_leaf, NULL, "has it no parents?", NULL},
    {"is_realized", get_realized, NULL, "does it have data?", NULL},
    {"_is_symbolic", get_symbolic, NULL, "does it depend on an argument of a function that is being traced?",
     NULL},
    {"_storages", get_storages, NULL, "its memory, a list of eas.Tensor; empty before it is evaluated", NULL},
    {"_values", get_values, NULL, "what stands for it in the graph; empty once it is evaluated", NULL},
    {"physical_shape", get_physical, NULL, "sizes of all dims, those of vmap in front", NULL},
    {"logical_shape", get_logical, NULL, "sizes of the dims, those of vmap hidden", NULL},
    {"cached_shape", get_physical, NULL, "sizes of all dims; known in both states", NULL},
    {"cached_dtype", get_dtype, NULL, "element type; known in both states", NULL},
    {"cached_device", get_device, NULL, "the device that it is on, or would be computed on", NULL},
    {"type", get_type, NULL, "shape, dtype and device", NULL},
    {"traced", get_traced, set_traced, "are operations kept for derivatives?", NULL},
    {"batch_dims", get_batch_dims, set_batch_dims, "how many of the leading physical dims are vmap's", NULL},
    {"sharding", get_sharding, set_sharding, "the ShardingSpec, or None", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef impl_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Impl, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot impl_slots[] = {
    {Py_tp_doc,
     "TensorImpl(storages=None, values=None, traced=False, batch_dims=0, sharding=None)\n\nThe state "
     "behind tensors: a node of the graph, with data or without."},
    {Py_tp_new, impl_new},
    {Py_tp_dealloc, impl_dealloc},
    {Py_tp_repr, impl_repr},
    {Py_tp_getset, impl_getset},
    {Py_tp_members, impl_members},
    {0, NULL}};
static PyType_Spec impl_spec = {"eager.core.tensor_impl.TensorImpl", sizeof(Impl), 0, Py_TPFLAGS_DEFAULT,
                                impl_slots};

static PyObject *set_traced_all(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    PyObject *leaves, *treedef, *r = NULL;
    int on = nargs == 2 ? PyObject_IsTrue(args[1]) : -1;
    int alias = eas_tensor_op_find("alias");
    if (on < 0)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "set_traced(tree, on)");
    if (!pytree_flatten(args[0], NULL, &leaves, &treedef))
        return NULL;
    int ok = 1;
    /* new handles: those of the caller stay as they are */
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(leaves); i++) {
        PyObject *t = PyList_GET_ITEM(leaves, i);
        if (!eager_check(t) || eas_node_is_traced(eager_node(t)) == on)
            continue;
        eas_node *n = eager_node(t), *copy = NULL;
        int64_t bd = eas_node_batch_dims(n);
        eas_status st = eas_node_apply((eas_tensor_op)alias, 1, &n, 1, &bd, &copy);
        if (st == EAS_OK)
            eas_node_set_traced(copy, on);
        PyObject *w = st == EAS_OK ? eager_wrap(copy) : py_raise(st);
        ok = w && PyList_SetItem(leaves, i, w) == 0;
    }
    if (ok)
        r = pytree_unflatten(treedef, ((PyListObject *)leaves)->ob_item, PyList_GET_SIZE(leaves));
    Py_DECREF(leaves);
    Py_DECREF(treedef);
    return r;
}
static PyMethodDef functions[] = {
    {"record", py_record, METH_VARARGS,
     "record(op, outs, args, kwargs, tree_def): these tensors were made by op"},
    {"set_traced", (PyCFunction)(void (*)(void))set_traced_all, METH_FASTCALL,
     "set_traced(tree, on): the tree with tensors that are traced, or not"},
    {NULL, NULL, 0, NULL},
};
/* A child must not find it taken by a thread that it does not have. It guards single words, which are never
 * half written. */
static void renew_weak(void) { pthread_mutex_init(&weak_lock, NULL); }

/* The GIL, where this thread has it. */
static void *leave_gil(void) { return PyGILState_Check() ? PyEval_SaveThread() : NULL; }
static void enter_gil(void *left) { PyEval_RestoreThread(left); }

int impl_init(PyObject *module)
{
    eas_host_set_lock(leave_gil, enter_gil);
    (void)
        /* the library's memory of this thread: where the C library cannot have it, it ends the process, and
           later it might not */
        eas_error_message();
    pthread_atfork(NULL, NULL, renew_weak);
    return (impl_type = py_type(module, &impl_spec, "TensorImpl")) &&
                   (refs_type = py_type(module, &refs_spec, "OutputRefs"))
             ? PyModule_AddFunctions(module, functions)
             : -1;
}
