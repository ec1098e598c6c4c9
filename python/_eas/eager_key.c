/* eager_key.c: what the program of a compiled function depends on, and whether a call is like an earlier one:
 * structure, shapes, dtypes of the arguments, values of those that are no tensors, and the same for
 * everything that the function captures: closure cells, the globals that its code names, and so on through
 * the functions and objects it finds there. */
#include "eager_compile.h"

#include <string.h>

/* ---- what a program depends on ---- */
void entry_free(Entry *e)
{
    if (!e || --e->refs)
        return;
    Py_XDECREF(e->treedef);
    for (int i = 0; i < e->nleaves; i++) {
        Py_XDECREF(e->leaves[i].value);
        PyMem_Free(e->leaves[i].shape);
        PyMem_Free(e->leaves[i].bucket);
        Py_XDECREF(e->leaves[i].content);
    }
    PyMem_Free(e->leaves);
    for (int i = 0; i < e->nsources; i++) {
        Py_XDECREF(e->sources[i].container);
        Py_XDECREF(e->sources[i].key);
        Py_XDECREF(e->sources[i].treedef);
    }
    PyMem_Free(e->sources);
    for (int i = 0; i < e->nwrites; i++)
        write_free(&e->writes[i]);
    PyMem_Free(e->writes);
    PyMem_Free(e->guards);
    eas_program_release(e->program);
    Py_XDECREF(e->out_treedef);
    for (int i = 0; i < e->nouts; i++) {
        if (e->outs)
            Py_XDECREF(e->outs[i]);
        if (e->shardings)
            Py_XDECREF(e->shardings[i]);
    }
    PyMem_Free(e->outs);
    PyMem_Free(e->shardings);
    PyMem_Free(e->out_of);
    PyMem_Free(e->donated);
    PyMem_Free(e);
}

bool key_is_tensor(PyObject *o) { return eager_check(o) || PyArray_Check(o) || tensor_check(o); }

/* Equal in a way that a program may rely on. */
static bool same_value(PyObject *a, PyObject *b)
{
    if (PySet_Check(b) || PyByteArray_Check(b)) /* a is a copy: what it is can change */
        return PyObject_RichCompareBool(a, b, Py_EQ) == 1 || (PyErr_Clear(), false);
    if (a == b)
        return true;
    if (Py_TYPE(a) != Py_TYPE(b))
        return false;
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return !memcmp(&x, &y, sizeof x);
    }
    if (PyMethod_Check(a))
        return PyMethod_GET_FUNCTION(a) == PyMethod_GET_FUNCTION(b) &&
               PyMethod_GET_SELF(a) == PyMethod_GET_SELF(b);
    if (Py_TYPE(a)->tp_flags & Py_TPFLAGS_HEAPTYPE && !PyLong_Check(a) && !PyUnicode_Check(a) &&
        Py_TYPE(a)->tp_richcompare == PyBaseObject_Type.tp_richcompare)
        return false;
    int same = PyObject_RichCompareBool(a, b, Py_EQ);
    if (same < 0)
        PyErr_Clear();
    return same > 0;
}
static int64_t pow2_of(int64_t n)
{
    int64_t p = 1;
    while (p < n)
        p *= 2;
    return n <= 0 ? 0 : p;
}
static bool same_shape(const leaf_sig *s, int rank, const int64_t *shape)
{
    if (rank != s->rank)
        return false;
    for (int i = 0; i < rank; i++) {
        if (s->shape[i] >= 0 ? s->shape[i] != shape[i] : shape[i] < 0)
            return false;
        if (s->shape[i] < 0 && s->bucket && s->bucket[i] != pow2_of(shape[i]))
            return false;
    }
    return true;
}
static bool same_content(PyObject *content, PyArrayObject *a)
{
    if (PyArray_IS_C_CONTIGUOUS(a))
        return PyArray_NBYTES(a) == PyBytes_GET_SIZE(content) &&
               !memcmp(PyArray_DATA(a), PyBytes_AS_STRING(content), (size_t)PyArray_NBYTES(a));
    PyObject *bytes = PyArray_ToString(a, NPY_CORDER);
    int same = bytes ? PyObject_RichCompareBool(bytes, content, Py_EQ) : -1;
    Py_XDECREF(bytes);
    PyErr_Clear();
    return same == 1;
}
/* Of an argument that lies on a mesh: it is computed first, so that it is known how it lies. */
static PyObject *settled_sharding(eas_node *n)
{
    PyObject *s = node_sharding(n);
    if (!s || eas_node_is_real(n) || eas_node_is_symbolic(n) || !eas_node_is_sharded(n))
        return s;
    if (!eager_realize(1, &n))
        PyErr_Clear(); /* the run tells */
    return node_sharding(n);
}
static bool leaf_matches(const leaf_sig *s, PyObject *o)
{
    if (!s->is_tensor)
        return !key_is_tensor(o) && same_value(s->value, o);
    if (eager_check(o)) {
        eas_node *n = eager_node(o);
        if (eas_node_dtype(n) != s->dtype || eas_node_batch_dims(n) != s->batch_dims ||
            !same_shape(s, eas_node_rank(n), eas_node_shape(n)))
            return false;
        const eas_device *d = eas_node_device(n);
        if (d && s->device && d != s->device)
            return false;
        PyObject *sh = settled_sharding(n);
        return s->cut == (sh && eas_node_is_sharded(n)) &&
               (sh == s->value || (sh && s->value && same_value(sh, s->value)));
    }
    if (PyArray_Check(o)) {
        PyArrayObject *a = (PyArrayObject *)o;
        int64_t shape[NPY_MAXDIMS];
        for (int i = 0; i < PyArray_NDIM(a); i++)
            shape[i] = PyArray_DIM(a, i);
        return s->batch_dims == 0 && !s->value && py_dtype_of_npy(PyArray_DESCR(a)) == s->dtype &&
               same_shape(s, PyArray_NDIM(a), shape) && (!s->content || same_content(s->content, a));
    }
    if (!tensor_check(o))
        return false;
    Tensor *t = (Tensor *)o;
    return s->batch_dims == 0 && !s->value && t->arg.dtype == s->dtype &&
           (!s->device || t->device == s->device) && same_shape(s, t->ndim, t->dims);
}

/* ---- a call's leaves ---- */
static inline bool plain(PyObject *o)
{
    return Py_IS_TYPE(o, G.eager) || PyArray_CheckExact(o) || PyFloat_CheckExact(o) || PyLong_CheckExact(o) ||
           PyBool_Check(o);
}

static PyObject *pack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *a = PyTuple_New(nargs), *k = PyDict_New(), *both = NULL;
    for (Py_ssize_t i = 0; a && i < nargs; i++)
        PyTuple_SET_ITEM(a, i, Py_NewRef(args[i]));
    int bad = !a || !k;
    for (Py_ssize_t i = 0; !bad && kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
        bad = PyDict_SetItem(k, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) < 0;
    if (!bad)
        both = PyTuple_Pack(2, a, k);
    Py_XDECREF(a);
    Py_XDECREF(k);
    return both;
}
int leaves_of(leaves *l, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    *l = (leaves){.at = args, .n = nargs};
    bool fast = !kwnames || !PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; fast && i < nargs; i++)
        fast = plain(args[i]);
    if (fast)
        return 1;
    if (!(l->both = pack(args, nargs, kwnames)) || !pytree_flatten(l->both, NULL, &l->list, &l->treedef))
        return 0;
    l->at = ((PyListObject *)l->list)->ob_item;
    l->n = PyList_GET_SIZE(l->list);
    return 1;
}
void leaves_done(leaves *l)
{
    Py_XDECREF(l->list);
    Py_XDECREF(l->treedef);
    Py_XDECREF(l->both);
    Py_XDECREF(l->env);
}

/* ---- captured values ---- */
PyObject *source_fetch(const source *s)
{
    PyObject *v = NULL;
    switch (s->kind) {
    case S_DICT: v = PyDict_GetItemWithError(s->container, s->key); break;
    case S_CELL: v = PyCell_GET(s->container); break;
    case S_CLASS: v = PyDict_GetItemWithError(((PyTypeObject *)s->container)->tp_dict, s->key); break;
    case S_ATTR: Py_XDECREF(v = PyObject_GetAttr(s->container, s->key)); break; /* the container keeps it */
    case S_CONTEXT:
        if (PyContextVar_Get(s->container, NULL, &v) == 0)
            Py_XDECREF(v); /* the context keeps it */
        break;
    case S_SIZE: break;
    }
    if (!v)
        PyErr_Clear();
    return v;
}
PyObject *source_container(PyObject *v)
{
    if (key_is_tensor(v))
        return NULL;
    if (PyTuple_Check(v) || PyList_CheckExact(v) || PyDict_CheckExact(v))
        return Py_NewRef(v);
    PyObject *r = PyDict_Check(v)                      ? PyDict_Copy(v)
                : PyList_Check(v) || state_is_deque(v) ? PySequence_List(v)
                                                       : NULL;
    if (!r)
        PyErr_Clear();
    return r;
}
typedef struct tensors { /* captured ones, borrowed, in order */
    PyObject **at;
    int n, room;
} tensors;

static bool tree_matches(Entry *e, const source *s, leaves *l, PyObject *v, tensors *t)
{
    PyObject *list = NULL, *treedef = NULL, *c = source_container(v);
    bool ok = c && pytree_flatten(c, NULL, &list, &treedef) && PyList_GET_SIZE(list) == s->n &&
              pytree_same(treedef, s->treedef) == 1;
    for (int k = 0; ok && k < s->n; k++) {
        ok = leaf_matches(&e->leaves[s->first + k], PyList_GET_ITEM(list, k));
        if (ok && e->leaves[s->first + k].is_tensor && t->n < t->room)
            t->at[t->n++] = PyList_GET_ITEM(list, k);
    }
    /* keeps them while the call runs */
    ok = ok && (l->env || (l->env = PyList_New(0))) && PyList_Append(l->env, list) == 0;
    Py_XDECREF(c);
    Py_XDECREF(treedef);
    Py_XDECREF(list);
    PyErr_Clear();
    return ok;
}
static bool source_matches(Entry *e, source *s, leaves *l, tensors *t)
{
    if (s->any)
        return true;
    if (s->kind == S_SIZE)
        return PyDict_GET_SIZE(s->container) == s->n;
    /* a class that was not changed since: its version says so */
    unsigned version = s->kind == S_CLASS ? ((PyTypeObject *)s->container)->tp_version_tag : 0;
    if (version && version == s->version && !s->treedef && !e->leaves[s->first].is_tensor)
        return true;
    PyObject *v = source_fetch(s);
    if (!v || s->absent)
        return !v && s->absent;
    if (s->treedef)
        return tree_matches(e, s, l, v, t);
    if (!leaf_matches(&e->leaves[s->first], v))
        return false;
    if (e->leaves[s->first].is_tensor && t->n < t->room)
        t->at[t->n++] = v;
    s->version = version;
    return true;
}
/* Do the captured values fit the entry? Their tensors are collected in order. */
static bool env_matches(Entry *e, leaves *l, PyObject **at, int *n, int room)
{
    tensors t = {at, 0, room};
    for (int i = 0; i < e->nsources; i++)
        if (!source_matches(e, &e->sources[i], l, &t))
            return false;
    *n = t.n;
    return true;
}

/* ---- making an entry ---- */
/* {dim: name} of argument arg, borrowed, or NULL */
static int dim_names(CompiledFn *c, Py_ssize_t arg, PyObject **out)
{
    *out = NULL;
    if (!c->dynamic || arg < 0)
        return 1;
    PyObject *k = PyLong_FromSsize_t(arg);
    *out = k ? PyDict_GetItemWithError(c->dynamic, k) : NULL;
    Py_XDECREF(k);
    return !PyErr_Occurred();
}
static int set_dynamic(CompiledFn *c, leaf_sig *s, PyObject *names)
{
    PyObject *dim, *name;
    Py_ssize_t pos = 0;
    if (c->pow2 && !(s->bucket = PyMem_Calloc((size_t)s->rank + 1, sizeof *s->bucket)))
        return PyErr_NoMemory(), 0;
    while (PyDict_Next(names, &pos, &dim, &name)) {
        long d = PyLong_AsLong(dim), rank = s->rank - s->batch_dims;
        if (d == -1 && PyErr_Occurred())
            return 0;
        if (d < -rank || d >= rank)
            return py_fail(PyExc_ValueError, "compile: dynamic_dims names dim %ld of an argument of %ld dims",
                           d, rank),
                   0;
        d = s->batch_dims + (d < 0 ? d + rank : d);
        if (c->pow2)
            s->bucket[d] = pow2_of(s->shape[d]);
        if (!dim_of(name, "compile: a name in dynamic_dims", &s->shape[d]))
            return 0;
    }
    return 1;
}
static int sig_of(leaf_sig *s, PyObject *o)
{
    *s = (leaf_sig){0};
    if (PySet_Check(o) || PyByteArray_Check(o)) /* what it is can change: a copy */
        return (s->value = PySet_Check(o) ? PyFrozenSet_New(o) : PyBytes_FromObject(o)) != NULL;
    if (!key_is_tensor(o))
        return s->value = Py_NewRef(o), 1;
    s->is_tensor = true;
    eas_node *n = eager_check(o) ? eas_node_retain(eager_node(o)) : node_of_data(o, NULL, NULL);
    if (!n)
        return 0;
    s->dtype = (uint8_t)eas_node_dtype(n);
    s->batch_dims = (uint8_t)eas_node_batch_dims(n);
    s->rank = (uint8_t)eas_node_rank(n);
    s->device = eas_node_device(n);
    s->value = Py_XNewRef(settled_sharding(n));
    s->cut = s->value && eas_node_is_sharded(n);
    s->shape = PyMem_Calloc((size_t)s->rank + 1, sizeof *s->shape);
    if (s->shape)
        memcpy(s->shape, eas_node_shape(n), sizeof *s->shape * s->rank);
    eas_node_release(n);
    return s->shape ? 1 : (PyErr_NoMemory(), 0);
}
Py_ssize_t argument_of(const leaves *l, Py_ssize_t leaf)
{
    if (!l->both)
        return leaf;
    PyObject *args = PyTuple_GET_ITEM(l->both, 0), *list;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        if (!pytree_flatten(PyTuple_GET_ITEM(args, i), NULL, &list, NULL))
            return PyErr_Clear(), -1;
        Py_ssize_t n = PyList_GET_SIZE(list);
        Py_DECREF(list);
        if (leaf < n)
            return i;
        leaf -= n;
    }
    return -1;
}
static int add_leaf(Entry *e, PyObject *o)
{
    leaf_sig *at = PyMem_Realloc(e->leaves, ((size_t)e->nleaves + 1) * sizeof *at);
    if (!at)
        return PyErr_NoMemory(), 0;
    e->leaves = at;
    if (!sig_of(&at[e->nleaves], o))
        return 0;
    e->ninputs += at[e->nleaves++].is_tensor;
    return 1;
}
/* The bytes of a small array that the function reads while it is traced. */
static int note_content(leaf_sig *s, PyObject *o)
{
    if (PyArray_Check(o) && PyArray_NBYTES((PyArrayObject *)o) <= SMALL_ARRAY)
        return (s->content = PyArray_ToString((PyArrayObject *)o, NPY_CORDER)) != NULL;
    return 1;
}
static PyObject *leaves_of_value(source *s, PyObject *v) /* a list */
{
    PyObject *list = NULL, *c = source_container(v);
    if (c && !pytree_flatten(c, NULL, &list, &s->treedef))
        PyErr_Clear(); /* keys without an order: what it is decides */
    Py_XDECREF(c);
    if (!list && (list = PyList_New(1)))
        PyList_SET_ITEM(list, 0, Py_NewRef(v));
    return list;
}
/* values: a list that keeps what was found, one list of leaves each */
static int read_sources(Entry *e, PyObject *values)
{
    for (int i = 0; i < e->nsources; i++) {
        source *s = &e->sources[i];
        PyObject *v = source_fetch(s), *list;
        s->first = e->nleaves;
        s->absent = !v;
        s->version = s->kind == S_CLASS ? ((PyTypeObject *)s->container)->tp_version_tag : 0;
        if (!(list = v ? leaves_of_value(s, v) : PyList_New(0)))
            return 0;
        s->n = s->kind == S_SIZE ? (int)PyDict_GET_SIZE(s->container) : (int)PyList_GET_SIZE(list);
        int ok = PyList_Append(values, list) == 0;
        for (Py_ssize_t k = 0; ok && k < PyList_GET_SIZE(list); k++)
            ok = add_leaf(e, PyList_GET_ITEM(list, k)) &&
                 (!e->small || note_content(&e->leaves[e->nleaves - 1], PyList_GET_ITEM(list, k)));
        Py_DECREF(list);
        if (!ok)
            return 0;
    }
    return 1;
}
static int few_captured(const Entry *e)
{
    int n = 0;
    for (int i = e->nargleaves; i < e->nleaves; i++)
        n += e->leaves[i].is_tensor;
    return n <= ENV ||
           (py_fail(PyExc_ValueError,
                    "compile: the function captures %d tensors; at most %d: pass them as arguments", n, ENV),
            0);
}
/* Every argument that dynamic_dims names must be there, and have a tensor. */
static int names_are_there(CompiledFn *c, const Entry *e, const leaves *l)
{
    PyObject *key, *v;
    Py_ssize_t pos = 0, given = l->both ? PyTuple_GET_SIZE(PyTuple_GET_ITEM(l->both, 0)) : l->n;
    while (c->dynamic && PyDict_Next(c->dynamic, &pos, &key, &v)) {
        Py_ssize_t arg = PyLong_Check(key) ? PyLong_AsSsize_t(key) : -1;
        bool tensor = false;
        PyErr_Clear();
        for (int i = 0; i < e->nargleaves && !tensor; i++)
            tensor = e->leaves[i].is_tensor && argument_of(l, i) == arg;
        if (arg < 0 || arg >= given)
            return py_fail(
                       PyExc_ValueError,
                       "compile: dynamic_dims names argument %R, and the call has %zd that are given by position%s",
                       key, given, PyLong_Check(key) ? "" : " (they are counted from 0)"),
                   0;
        if (!tensor)
            return py_fail(PyExc_ValueError,
                           "compile: dynamic_dims names argument %R, in which there is no tensor", key),
                   0;
    }
    return 1;
}
/* Programs over parts are made for known sizes: where anything lies in parts, each size has its own program.
 */
static int any_cut(const Entry *e)
{
    for (int i = 0; i < e->nleaves; i++)
        if (e->leaves[i].is_tensor && e->leaves[i].cut)
            return 1;
    return 0;
}
static int known_sizes(Entry *e, const leaves *l)
{
    for (Py_ssize_t i = 0; i < l->n; i++) {
        leaf_sig *s = &e->leaves[i];
        eas_node *n = !s->is_tensor         ? NULL
                    : eager_check(l->at[i]) ? eas_node_retain(eager_node(l->at[i]))
                                            : node_of_data(l->at[i], NULL, NULL);
        if (s->is_tensor && !n)
            return 0;
        if (n)
            memcpy(s->shape, eas_node_shape(n), sizeof *s->shape * s->rank);
        PyMem_Free(s->bucket);
        s->bucket = NULL;
        if (n)
            eas_node_release(n);
    }
    return 1;
}
Entry *entry_new(CompiledFn *c, const leaves *l, PyObject *values, state *st, bool small)
{
    Entry *e = PyMem_Calloc(1, sizeof *e);
    if (!e)
        return (Entry *)PyErr_NoMemory();
    e->refs = 1;
    e->small = small;
    e->treedef = Py_XNewRef(l->treedef);
    e->nargs = l->n;
    int ok = 1;
    for (Py_ssize_t i = 0; ok && i < l->n; i++) {
        PyObject *names = NULL;
        ok = add_leaf(e, l->at[i]);
        if (ok && e->leaves[i].is_tensor && c->dynamic)
            ok = dim_names(c, argument_of(l, i), &names) && (!names || set_dynamic(c, &e->leaves[i], names));
    }
    e->nargleaves = e->nleaves;
    ok = ok && names_are_there(c, e, l);
    if (ok && find_sources(c, l, e, st) && read_sources(e, values) && few_captured(e) &&
        (!c->dynamic || !any_cut(e) || known_sizes(e, l)))
        return e;
    entry_free(e);
    return NULL;
}

/* ---- looking up ---- */
static bool same_lanes(const Entry *e)
{
    const eas_dim *sizes;
    return vmap_levels(&sizes) == e->levels && !memcmp(sizes, e->lanes, sizeof *sizes * (size_t)e->levels);
}
bool entry_matches(Entry *e, leaves *l, PyObject **env, int *nenv)
{
    if (e->nargleaves != l->n || (e->treedef == NULL) != (l->treedef == NULL))
        return false;
    for (Py_ssize_t i = 0; i < l->n; i++)
        if (!leaf_matches(&e->leaves[i], l->at[i]))
            return false;
    if (e->treedef && pytree_same(e->treedef, l->treedef) != 1)
        return PyErr_Clear(), false;
    if ((e->draws && !same_lanes(e)) || !sizes_match(e, l))
        return false;
    *nenv = 0;
    Py_CLEAR(l->env);
    return env_matches(e, l, env, nenv, ENV);
}
/* ---- why not ---- */
static PyObject *leaf_path(Entry *e, Py_ssize_t i)
{
    return e->treedef ? pytree_arg_path(e->treedef, i) : PyUnicode_FromFormat("args[%zd]", i);
}

/* In what a leaf differs, in words: NULL without an exception if it does not. */
static PyObject *leaf_difference(PyObject *path, const leaf_sig *s, PyObject *o)
{
    if (leaf_matches(s, o))
        return NULL;
    if (!s->is_tensor || !key_is_tensor(o))
        return PyUnicode_FromFormat("%U: %s%R, was %s%R", path, key_is_tensor(o) ? "a tensor of type " : "",
                                    key_is_tensor(o) ? (PyObject *)Py_TYPE(o) : o,
                                    s->is_tensor ? "a tensor " : "", s->is_tensor ? Py_None : s->value);
    leaf_sig t;
    PyObject *r = NULL;
    if (!sig_of(&t, o))
        return NULL;
    if (t.dtype != s->dtype)
        r = PyUnicode_FromFormat("%U: dtype %s, was %s", path, eas_dtype_name((eas_dtype)t.dtype),
                                 eas_dtype_name((eas_dtype)s->dtype));
    else if (t.rank != s->rank || t.batch_dims != s->batch_dims)
        r = PyUnicode_FromFormat("%U: %d dims, was %d", path, t.rank - t.batch_dims, s->rank - s->batch_dims);
    for (int i = 0; !r && !PyErr_Occurred() && i < s->rank; i++)
        if (s->shape[i] >= 0 && t.shape[i] != s->shape[i])
            r = PyUnicode_FromFormat("%U: dim %d is %lld, was %lld", path, i - s->batch_dims,
                                     (long long)t.shape[i], (long long)s->shape[i]);
        else if (s->shape[i] < 0 && s->bucket && s->bucket[i] != pow2_of(t.shape[i]))
            r = PyUnicode_FromFormat("%U: dim %d is %lld, in another bucket than %lld", path,
                                     i - s->batch_dims, (long long)t.shape[i], (long long)s->bucket[i]);
    if (!r && !PyErr_Occurred())
        r = PyUnicode_FromFormat("%U: device or sharding", path);
    Py_XDECREF(t.value);
    PyMem_Free(t.shape);
    return r;
}
static PyObject *source_name(const source *s)
{
    switch (s->kind) {
    case S_CLASS: return PyUnicode_FromFormat("%s.%S", ((PyTypeObject *)s->container)->tp_name, s->key);
    case S_CONTEXT: return PyUnicode_FromFormat("%R", s->container);
    case S_SIZE: return PyUnicode_FromString("the attributes of a captured object");
    default:
        return s->key ? PyUnicode_FromFormat("captured %S", s->key)
                      : PyUnicode_FromString("a captured variable");
    }
}
static PyObject *tree_difference(Entry *e, const source *s, PyObject *name, PyObject *v)
{
    PyObject *list = NULL, *treedef = NULL, *r = NULL, *c = source_container(v);
    if (!c || !pytree_flatten(c, NULL, &list, &treedef)) {
        PyErr_Clear();
        Py_XDECREF(c);
        return NULL;
    }
    if (pytree_same(treedef, s->treedef) != 1)
        r = PyUnicode_FromFormat("%U: another structure", name);
    for (int k = 0; !r && !PyErr_Occurred() && k < s->n; k++) {
        PyObject *p = pytree_path(treedef, k), *path = p ? PyUnicode_FromFormat("%U%U", name, p) : NULL;
        r = path ? leaf_difference(path, &e->leaves[s->first + k], PyList_GET_ITEM(list, k)) : NULL;
        Py_XDECREF(p);
        Py_XDECREF(path);
    }
    Py_DECREF(c);
    Py_DECREF(list);
    Py_DECREF(treedef);
    return r;
}
static PyObject *source_difference(Entry *e, const source *s)
{
    PyObject *v = source_fetch(s), *name = source_name(s), *r = NULL;
    if (!name || s->any) {
        Py_XDECREF(name);
        return NULL;
    }
    if (s->kind == S_SIZE)
        r = PyDict_GET_SIZE(s->container) == s->n
              ? NULL
              : PyUnicode_FromFormat("%U: %zd, were %d", name, PyDict_GET_SIZE(s->container), s->n);
    else if (!v != s->absent)
        r = PyUnicode_FromFormat(v ? "%U: is there, was not" : "%U: gone", name);
    else if (v)
        r = s->treedef ? tree_difference(e, s, name, v) : leaf_difference(name, &e->leaves[s->first], v);
    Py_DECREF(name);
    return r;
}
static PyObject *env_difference(Entry *e)
{
    for (int i = 0; i < e->nsources; i++) {
        PyObject *r = source_difference(e, &e->sources[i]);
        if (r || PyErr_Occurred())
            return r;
    }
    return NULL;
}
PyObject *entry_difference(Entry *e, const leaves *l)
{
    PyObject *r = NULL;
    if (!e)
        return PyUnicode_FromString("first call");
    if (e->nargleaves != l->n || (e->treedef == NULL) != (l->treedef == NULL) ||
        (e->treedef && pytree_same(e->treedef, l->treedef) != 1))
        return PyErr_Clear(), PyUnicode_FromString("the structure of the arguments");
    for (Py_ssize_t i = 0; !r && i < l->n; i++) {
        PyObject *path = leaf_path(e, i);
        r = path ? leaf_difference(path, &e->leaves[i], l->at[i]) : NULL;
        Py_XDECREF(path);
        if (PyErr_Occurred())
            return NULL;
    }
    if (!r)
        r = sizes_difference(e, l);
    if (!r && !PyErr_Occurred())
        r = env_difference(e);
    if (!r && !PyErr_Occurred() && e->draws && !same_lanes(e))
        return PyUnicode_FromString(
            "the sizes of the vmaps around it, in whose lanes it draws random numbers");
    return r || PyErr_Occurred() ? r : PyUnicode_FromString("it had been dropped from the cache");
}
