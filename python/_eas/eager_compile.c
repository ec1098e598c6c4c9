/* eager_compile.c: compiled functions. A call is looked up among the programs that were made before, by what the program depends on: structure,
 * shapes, dtypes of the arguments, values of those that are no tensors, and the same for everything that the function captures: closure cells,
 * the globals that its code names, and so on through the functions and objects it finds there. Captured tensors are inputs of the program.
 * On a miss the function runs once on placeholders. */
#include "py.h"

#include <string.h>
#include <structmember.h>
#include <time.h>

PyObject *graph_break;
int eager_tracing;

/* ---- tracing ---- */
typedef struct tracing {
    struct tracing *outer;
    void **keys; /* nodes of captured tensors, and arrays */
    eas_node **inputs;
    int n;
} tracing;
static _Thread_local tracing *now;

eas_node *eager_stand_in(void *key)
{
    for (tracing *t = now; t; t = t->outer)
        for (int i = 0; i < t->n; i++)
            if (t->keys[i] == key)
                return eas_node_retain(t->inputs[i]);
    return NULL;
}

/* ---- what a program depends on ---- */
enum { FAST_LEAVES = 32, ENV = 4096 }; /* ENV: captured tensors, at most */
typedef struct leaf_sig {
    bool is_tensor;
    uint8_t dtype, batch_dims, rank;
    eas_device *device;
    PyObject *value;    /* of what is no tensor; the sharding of one that is, or NULL */
    eas_dim *shape;     /* < 0: dynamic, the number of a symbol */
    int64_t *bucket;    /* of dynamic dims, or NULL */
} leaf_sig;
typedef enum source_kind { S_DICT, S_CELL } source_kind;
typedef struct source { /* where a captured value is */
    source_kind kind;
    PyObject *container, *key; /* counted */
    PyObject *treedef;         /* NULL: one leaf */
    int first, n;              /* in Entry.leaves */
} source;
enum { RESULT = -1, CONSTANT = -2 };
typedef struct Entry {
    int refs; /* the function's, and those of calls that use it */
    PyObject *treedef; /* of (args, kwargs); NULL: nargs positional leaves */
    Py_ssize_t nargs;
    leaf_sig *leaves;  /* of the arguments, then of the sources */
    int nleaves, nargleaves;
    source *sources;
    int nsources;
    int ninputs;
    eas_program *program; /* NULL: the function runs as it is, or all results are constants */
    bool plain;           /* runs as it is */
    PyObject *out_treedef;
    PyObject **outs;      /* constants, or NULL */
    int *out_of;          /* RESULT: the program's next result; CONSTANT; else the number of an input */
    int nouts, nresults;
    uint8_t *donated;
    bool any_donated;
    bool tune;          /* before the next run: mode="autotune" */
} Entry;
typedef struct CompiledFn {
    PyObject_HEAD vectorcallfunc call;
    PyObject *fn, *dict, *weakrefs, *lock;
    PyObject *dynamic; /* {arg index: {dim: name}} or NULL */
    PyObject *donate;  /* tuple of ints or NULL */
    PyObject *log;     /* of misses: (cause, ms) */
    Entry **entries;   /* the one used last comes first */
    int n, cap, max_compiles;
    bool fullgraph, pow2, autotune;
    int64_t hits, misses;
} CompiledFn;
static PyTypeObject *compiled_fn_type;

static void entry_free(Entry *e)
{
    if (!e || --e->refs)
        return;
    Py_XDECREF(e->treedef);
    for (int i = 0; i < e->nleaves; i++) {
        Py_XDECREF(e->leaves[i].value);
        PyMem_Free(e->leaves[i].shape);
        PyMem_Free(e->leaves[i].bucket);
    }
    PyMem_Free(e->leaves);
    for (int i = 0; i < e->nsources; i++) {
        Py_XDECREF(e->sources[i].container);
        Py_XDECREF(e->sources[i].key);
        Py_XDECREF(e->sources[i].treedef);
    }
    PyMem_Free(e->sources);
    eas_program_release(e->program);
    Py_XDECREF(e->out_treedef);
    for (int i = 0; i < e->nouts; i++)
        Py_XDECREF(e->outs[i]);
    PyMem_Free(e->outs);
    PyMem_Free(e->out_of);
    PyMem_Free(e->donated);
    PyMem_Free(e);
}

static bool is_tensorlike(PyObject *o) { return eager_check(o) || PyArray_Check(o) || tensor_check(o); }

/* Equal in a way that a program may rely on. */
static bool same_value(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    if (Py_TYPE(a) != Py_TYPE(b))
        return false;
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return !memcmp(&x, &y, sizeof x);
    }
    if (PyMethod_Check(a))
        return PyMethod_GET_FUNCTION(a) == PyMethod_GET_FUNCTION(b) && PyMethod_GET_SELF(a) == PyMethod_GET_SELF(b);
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
static bool leaf_matches(const leaf_sig *s, PyObject *o)
{
    if (!s->is_tensor)
        return !is_tensorlike(o) && same_value(s->value, o);
    if (eager_check(o)) {
        eas_node *n = eager_node(o);
        if (eas_node_dtype(n) != s->dtype || eas_node_batch_dims(n) != s->batch_dims || !same_shape(s, eas_node_rank(n), eas_node_shape(n)))
            return false;
        if (eas_node_device(n) && s->device && eas_node_device(n) != s->device)
            return false;
        PyObject *sh = node_sharding(n);
        return sh == s->value || (sh && s->value && same_value(sh, s->value));
    }
    if (PyArray_Check(o)) {
        PyArrayObject *a = (PyArrayObject *)o;
        int64_t shape[NPY_MAXDIMS];
        for (int i = 0; i < PyArray_NDIM(a); i++)
            shape[i] = PyArray_DIM(a, i);
        return s->batch_dims == 0 && !s->value && py_dtype_of_npy(PyArray_DESCR(a)) == s->dtype && same_shape(s, PyArray_NDIM(a), shape);
    }
    if (!tensor_check(o))
        return false;
    Tensor *t = (Tensor *)o;
    return s->batch_dims == 0 && !s->value && t->arg.dtype == s->dtype && (!s->device || t->device == s->device) && same_shape(s, t->ndim, t->dims);
}

/* ---- a call's leaves ---- */
typedef struct leaves {
    PyObject *const *at;
    Py_ssize_t n;
    PyObject *list, *treedef; /* NULL on the fast path: at are the positional arguments */
    PyObject *both;           /* (args, kwargs) or NULL */
    PyObject *env;            /* leaves of captured values: a list, or NULL */
} leaves;
static inline bool plain(PyObject *o)
{
    return Py_IS_TYPE(o, G.eager) || PyArray_CheckExact(o) || PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyBool_Check(o);
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
static int leaves_of(leaves *l, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
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
static void leaves_done(leaves *l)
{
    Py_XDECREF(l->list);
    Py_XDECREF(l->treedef);
    Py_XDECREF(l->both);
    Py_XDECREF(l->env);
}

/* ---- captured values ---- */
static PyObject *fetch(const source *s) /* borrowed; NULL: gone */
{
    PyObject *v = s->kind == S_CELL ? PyCell_GET(s->container) : PyDict_GetItemWithError(s->container, s->key);
    if (!v)
        PyErr_Clear();
    return v;
}
/* Do the captured values fit the entry? Their tensors are collected in order. */
static bool env_matches(Entry *e, leaves *l, PyObject **tensors, int *ntensors, int room)
{
    for (int i = 0; i < e->nsources; i++) {
        source *s = &e->sources[i];
        PyObject *v = fetch(s), *list = NULL, *treedef = NULL;
        if (!v)
            return false;
        if (!s->treedef) {
            if (!leaf_matches(&e->leaves[s->first], v))
                return false;
            if (e->leaves[s->first].is_tensor && *ntensors < room)
                tensors[(*ntensors)++] = v;
            continue;
        }
        if (!pytree_flatten(v, NULL, &list, &treedef))
            return PyErr_Clear(), false;
        bool ok = PyList_GET_SIZE(list) == s->n && pytree_same(treedef, s->treedef) == 1;
        for (int k = 0; ok && k < s->n; k++) {
            ok = leaf_matches(&e->leaves[s->first + k], PyList_GET_ITEM(list, k));
            if (ok && e->leaves[s->first + k].is_tensor && *ntensors < room)
                tensors[(*ntensors)++] = PyList_GET_ITEM(list, k);
        }
        Py_DECREF(treedef);
        if (!l->env && !(l->env = PyList_New(0)))
            ok = false;
        ok = ok && PyList_Append(l->env, list) == 0; /* keeps them while the call runs */
        Py_DECREF(list);
        if (!ok)
            return PyErr_Clear(), false;
    }
    return true;
}
typedef struct finder {
    PyObject *seen; /* set of ids */
    source *at;
    int n, cap;
} finder;
static int add_source(finder *f, source_kind kind, PyObject *container, PyObject *key)
{
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 16;
        source *at = PyMem_Realloc(f->at, (size_t)cap * sizeof *at);
        if (!at)
            return PyErr_NoMemory(), 0;
        f->at = at;
        f->cap = cap;
    }
    f->at[f->n++] = (source){.kind = kind, .container = Py_NewRef(container), .key = Py_XNewRef(key)};
    return 1;
}
static int seen_before(finder *f, void *p) /* 1, 0; -1 with an exception */
{
    PyObject *id = PyLong_FromVoidPtr(p);
    int r = id ? PySet_Contains(f->seen, id) : -1;
    if (r == 0 && PySet_Add(f->seen, id) < 0)
        r = -1;
    Py_XDECREF(id);
    return r;
}
static int look_into(finder *f, PyObject *v, int depth);

static bool is_library(PyObject *module_name) /* functions of these do not change under us */
{
    if (!module_name || !PyUnicode_Check(module_name))
        return false;
    const char *s = PyUnicode_AsUTF8(module_name);
    if (!s)
        return PyErr_Clear(), false;
    static const char *const names[] = {"eager", "eas", "numpy", "torch", "jax", "math", "functools", "builtins", "typing", "unittest"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (!strncmp(s, names[i], n) && (s[n] == 0 || s[n] == '.'))
            return true;
    }
    return false;
}
static int code_names(finder *f, PyObject *code, PyObject *globals, int depth)
{
    PyObject *names = ((PyCodeObject *)code)->co_names, *consts = ((PyCodeObject *)code)->co_consts;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *v = PyDict_GetItemWithError(globals, name);
        if (!v) {
            if (PyErr_Occurred())
                return 0;
            continue;
        }
        if (!add_source(f, S_DICT, globals, name) || !look_into(f, v, depth + 1))
            return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(consts); i++)
        if (PyCode_Check(PyTuple_GET_ITEM(consts, i)) && !code_names(f, PyTuple_GET_ITEM(consts, i), globals, depth))
            return 0;
    return 1;
}
static int look_into_function(finder *f, PyObject *fn, int depth)
{
    PyFunctionObject *p = (PyFunctionObject *)fn;
    if (is_library(p->func_module))
        return 1;
    if (!code_names(f, p->func_code, p->func_globals, depth))
        return 0;
    for (Py_ssize_t i = 0; p->func_closure && i < PyTuple_GET_SIZE(p->func_closure); i++) {
        PyObject *cell = PyTuple_GET_ITEM(p->func_closure, i), *v = PyCell_GET(cell);
        if (v && (!add_source(f, S_CELL, cell, NULL) || !look_into(f, v, depth + 1)))
            return 0;
    }
    return 1;
}
/* What hangs on a value that is a leaf to pytrees: functions, methods, partials, objects with a __dict__. */
static int look_into(finder *f, PyObject *v, int depth)
{
    if (plain(v) || PyUnicode_CheckExact(v) || v == Py_None || PyModule_Check(v) || depth > 64)
        return 1;
    if (PyTuple_Check(v) || PyList_CheckExact(v) || PyDict_CheckExact(v)) {
        PyObject *list;
        int ok = pytree_flatten(v, NULL, &list, NULL);
        if (!ok)
            return PyErr_Clear(), 1;
        for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(list); i++)
            ok = look_into(f, PyList_GET_ITEM(list, i), depth + 1);
        Py_DECREF(list);
        return ok;
    }
    int seen = seen_before(f, v);
    if (seen)
        return seen > 0;
    if (PyFunction_Check(v))
        return look_into_function(f, v, depth);
    if (PyMethod_Check(v))
        return look_into(f, PyMethod_GET_FUNCTION(v), depth + 1) && look_into(f, PyMethod_GET_SELF(v), depth + 1);
    if (PyType_Check(v) || PyCFunction_Check(v) || is_tensorlike(v))
        return 1;
    PyObject *module = PyObject_GetAttrString((PyObject *)Py_TYPE(v), "__module__"), *dict;
    bool library = is_library(module);
    PyErr_Clear();
    Py_XDECREF(module);
    if (PyObject_TypeCheck(v, compiled_fn_type))
        return look_into(f, ((CompiledFn *)v)->fn, depth + 1);
    dict = library ? NULL : PyObject_GenericGetDict(v, NULL);
    if (!dict)
        return PyErr_Clear(), 1;
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    int ok = 1;
    while (ok && PyDict_Next(dict, &pos, &key, &item))
        ok = add_source(f, S_DICT, dict, key) && look_into(f, item, depth + 1);
    /* methods of its class may capture, too */
    PyObject *methods = Py_TYPE(v)->tp_dict;
    pos = 0;
    while (ok && PyDict_Next(methods, &pos, &key, &item))
        if (PyFunction_Check(item))
            ok = look_into(f, item, depth + 1);
    Py_DECREF(dict);
    return ok;
}

/* ---- making an entry ---- */
static int dim_names(CompiledFn *c, Py_ssize_t arg, PyObject **out) /* {dim: name} of argument arg, borrowed, or NULL */
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
            return py_fail(PyExc_ValueError, "compile: dynamic_dims names dim %ld of an argument of %ld dims", d, rank), 0;
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
    if (!is_tensorlike(o))
        return s->value = Py_NewRef(o), 1;
    s->is_tensor = true;
    eas_node *n = eager_check(o) ? eas_node_retain(eager_node(o)) : node_of_data(o, NULL, NULL);
    if (!n)
        return 0;
    s->dtype = (uint8_t)eas_node_dtype(n);
    s->batch_dims = (uint8_t)eas_node_batch_dims(n);
    s->rank = (uint8_t)eas_node_rank(n);
    s->device = eas_node_device(n);
    s->value = Py_XNewRef(node_sharding(n));
    s->shape = PyMem_Calloc((size_t)s->rank + 1, sizeof *s->shape);
    if (s->shape)
        memcpy(s->shape, eas_node_shape(n), sizeof *s->shape * s->rank);
    eas_node_release(n);
    return s->shape ? 1 : (PyErr_NoMemory(), 0);
}
/* Which positional argument a leaf belongs to; -1: a named one. */
static Py_ssize_t argument_of(const leaves *l, Py_ssize_t leaf)
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
static int read_sources(Entry *e, PyObject *values) /* values: a list that keeps what was found, one list of leaves each */
{
    for (int i = 0; i < e->nsources; i++) {
        source *s = &e->sources[i];
        PyObject *v = fetch(s), *list = NULL;
        s->first = e->nleaves;
        if (!v)
            return py_fail(PyExc_RuntimeError, "compile: a captured value disappeared"), 0;
        bool container = !is_tensorlike(v) && (PyTuple_Check(v) || PyList_CheckExact(v) || PyDict_CheckExact(v));
        if (!container) {
            if (!(list = PyList_New(1)))
                return 0;
            PyList_SET_ITEM(list, 0, Py_NewRef(v));
        } else if (!pytree_flatten(v, NULL, &list, &s->treedef)) { /* keys without an order: what it is decides */
            PyErr_Clear();
            if (!(list = PyList_New(1)))
                return 0;
            PyList_SET_ITEM(list, 0, Py_NewRef(v));
        }
        s->n = (int)PyList_GET_SIZE(list);
        int ok = PyList_Append(values, list) == 0;
        for (int k = 0; ok && k < s->n; k++)
            ok = add_leaf(e, PyList_GET_ITEM(list, k));
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
    return n <= ENV || (py_fail(PyExc_ValueError, "compile: the function captures %d tensors; at most %d: pass them as arguments", n, ENV), 0);
}
static Entry *entry_new(CompiledFn *c, const leaves *l, PyObject *values)
{
    Entry *e = PyMem_Calloc(1, sizeof *e);
    finder f = {0};
    if (!e)
        return (Entry *)PyErr_NoMemory();
    e->refs = 1;
    e->treedef = Py_XNewRef(l->treedef);
    e->nargs = l->n;
    int ok = (f.seen = PySet_New(NULL)) != NULL;
    for (Py_ssize_t i = 0; ok && i < l->n; i++) {
        PyObject *names = NULL;
        ok = add_leaf(e, l->at[i]);
        if (ok && e->leaves[i].is_tensor && c->dynamic)
            ok = dim_names(c, argument_of(l, i), &names) && (!names || set_dynamic(c, &e->leaves[i], names));
    }
    e->nargleaves = e->nleaves;
    ok = ok && look_into(&f, c->fn, 0);
    for (Py_ssize_t i = 0; ok && i < l->n; i++)
        ok = look_into(&f, l->at[i], 1);
    e->sources = f.at;
    e->nsources = f.n;
    Py_XDECREF(f.seen);
    if (ok && read_sources(e, values) && few_captured(e))
        return e;
    entry_free(e);
    return NULL;
}

/* ---- tracing ---- */
static eas_node *placeholder(const leaf_sig *s, int index)
{
    eas_node *n;
    eas_status st = eas_node_input(index, (eas_dtype)s->dtype, s->rank, s->shape, s->batch_dims, s->device, &n);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    if (s->value && !node_set_sharding(n, s->value)) {
        eas_node_release(n);
        return NULL;
    }
    return n;
}
/* The arguments with placeholders in place of tensors. */
static PyObject *stand_ins(Entry *e, const leaves *l, eas_node **inputs)
{
    PyObject *list = PyList_New(l->n);
    int k = 0;
    for (Py_ssize_t i = 0; list && i < l->n; i++) {
        PyObject *o = NULL;
        if (!e->leaves[i].is_tensor)
            o = Py_NewRef(l->at[i]);
        else if ((inputs[k] = placeholder(&e->leaves[i], k))) {
            o = eager_wrap(eas_node_retain(inputs[k]));
            k++;
        }
        if (!o)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, o);
    }
    return list;
}
static PyObject *call_with(CompiledFn *c, const leaves *l, PyObject *list)
{
    if (!l->treedef)
        return PyObject_Vectorcall(c->fn, ((PyListObject *)list)->ob_item, (size_t)PyList_GET_SIZE(list), NULL);
    PyObject *both = pytree_unflatten(l->treedef, ((PyListObject *)list)->ob_item, PyList_GET_SIZE(list)), *r = NULL;
    if (both)
        r = PyObject_Call(c->fn, PyTuple_GET_ITEM(both, 0), PyTuple_GET_ITEM(both, 1));
    Py_XDECREF(both);
    return r;
}
static PyObject *call_plain(CompiledFn *c, const leaves *l)
{
    if (!l->both)
        return PyObject_Vectorcall(c->fn, l->at, (size_t)l->n, NULL);
    return PyObject_Call(c->fn, PyTuple_GET_ITEM(l->both, 0), PyTuple_GET_ITEM(l->both, 1));
}
static int which_input(eas_node *n, eas_node **inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (inputs[i] == n)
            return i;
    return -1;
}
/* The nodes that the program computes go to *results (counted); how many, or -1. */
static int split_outputs(Entry *e, PyObject *result, eas_node **inputs, eas_node ***results)
{
    PyObject *list;
    if (!pytree_flatten(result, NULL, &list, &e->out_treedef))
        return -1;
    int n = 0;
    e->nouts = (int)PyList_GET_SIZE(list);
    e->outs = PyMem_Calloc((size_t)e->nouts + 1, sizeof *e->outs);
    e->out_of = PyMem_Calloc((size_t)e->nouts + 1, sizeof *e->out_of);
    eas_node **outs = *results = PyMem_Calloc((size_t)e->nouts + 1, sizeof *outs);
    for (int i = 0; e->outs && e->out_of && outs && i < e->nouts; i++) {
        PyObject *o = PyList_GET_ITEM(list, i);
        bool symbolic = eager_check(o) && eas_node_is_symbolic(eager_node(o));
        int arg = symbolic ? which_input(eager_node(o), inputs, e->ninputs) : -1;
        e->out_of[i] = !symbolic ? CONSTANT : arg >= 0 ? arg : RESULT;
        if (!symbolic)
            e->outs[i] = Py_NewRef(o);
        else if (arg < 0)
            outs[n++] = eas_node_retain(eager_node(o));
    }
    Py_DECREF(list);
    e->nresults = n;
    return e->outs && e->out_of && outs ? n : (PyErr_NoMemory(), -1);
}
static int captured_changed(PyObject *values, void **keys, int first, int n)
{
    int k = first;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++) {
        PyObject *list = PyList_GET_ITEM(values, i);
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(list); j++) {
            PyObject *o = PyList_GET_ITEM(list, j);
            if (!is_tensorlike(o))
                continue;
            if (k < n && eager_check(o) && keys[k] != eager_node(o)) {
                eas_node *old = ((Eager *)o)->n;
                ((Eager *)o)->n = eas_node_retain(keys[k]);
                eas_node_release(old);
                return py_fail(PyExc_RuntimeError,
                               "compile: the function assigns to elements of a tensor that it captures; return the new tensor instead"),
                       1;
            }
            k++;
        }
    }
    return 0;
}
/* Placeholders of captured tensors; keys: what they stand for. */
static int capture(Entry *e, PyObject *values, eas_node **inputs, void **keys, int k)
{
    int leaf = e->nargleaves;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++) {
        PyObject *list = PyList_GET_ITEM(values, i);
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(list); j++, leaf++) {
            PyObject *o = PyList_GET_ITEM(list, j);
            if (!e->leaves[leaf].is_tensor)
                continue;
            if (!(inputs[k] = placeholder(&e->leaves[leaf], k)))
                return 0;
            keys[k++] = eager_check(o) ? (void *)eager_node(o) : (void *)o;
            if (eager_check(o))
                eas_node_retain(eager_node(o)); /* the function might put another in its place */
        }
    }
    return 1;
}
static void let_go(Entry *e, PyObject *values, void **keys, int k)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++)
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(PyList_GET_ITEM(values, i)); j++) {
            PyObject *o = PyList_GET_ITEM(PyList_GET_ITEM(values, i), j);
            if (!is_tensorlike(o) || k >= e->ninputs || !keys[k])
                continue;
            if (eager_check(o))
                eas_node_release(keys[k]);
            k++;
        }
}
static int run_traced(CompiledFn *c, Entry *e, const leaves *l, PyObject *values)
{
    size_t n = (size_t)e->ninputs + 1;
    eas_node **inputs = PyMem_Calloc(n, sizeof *inputs), **outs = NULL;
    void **keys = PyMem_Calloc(n, sizeof *keys);
    PyObject *list = inputs && keys ? stand_ins(e, l, inputs) : NULL, *result = NULL;
    int nargs = 0, ok = list != NULL, nouts = 0;
    while (nargs < e->ninputs && inputs && inputs[nargs])
        nargs++;
    ok = ok && capture(e, values, inputs, keys, nargs);
    if (ok) {
        tracing t = {now, keys + nargs, inputs + nargs, e->ninputs - nargs};
        now = &t;
        eager_tracing++;
        result = call_with(c, l, list);
        eager_tracing--;
        now = t.outer;
        ok = !captured_changed(values, keys, nargs, e->ninputs) && result;
    }
    if (ok)
        nouts = split_outputs(e, result, inputs, &outs);
    ok = ok && nouts >= 0;
    if (ok && nouts) {
        eas_device *d = py_backend();
        eas_status st = d ? eas_program_new(e->ninputs, inputs, nouts, outs, d, &e->program) : EAS_OK;
        ok = d && st == EAS_OK;
        if (st != EAS_OK)
            py_raise(st);
    }
    for (int i = 0; i < nouts; i++)
        eas_node_release(outs[i]);
    for (int i = 0; inputs && i < e->ninputs; i++)
        eas_node_release(inputs[i]);
    if (keys)
        let_go(e, values, keys, nargs);
    PyMem_Free(outs);
    PyMem_Free(keys);
    PyMem_Free(inputs);
    Py_XDECREF(list);
    Py_XDECREF(result);
    return ok;
}

/* ---- running ---- */
static bool donate_leaf(CompiledFn *c, Py_ssize_t arg)
{
    for (Py_ssize_t i = 0; c->donate && i < PyTuple_GET_SIZE(c->donate); i++)
        if (PyLong_AsLong(PyTuple_GET_ITEM(c->donate, i)) == arg)
            return true;
    return false;
}
static int plan_donation(CompiledFn *c, Entry *e, const leaves *l)
{
    if (!c->donate)
        return 1;
    if (!(e->donated = PyMem_Calloc((size_t)e->ninputs + 1, 1)))
        return PyErr_NoMemory(), 0;
    int k = 0;
    for (int i = 0; i < e->nargleaves; i++)
        if (e->leaves[i].is_tensor) {
            e->donated[k] = donate_leaf(c, argument_of(l, i));
            e->any_donated |= e->donated[k++];
        }
    return 1;
}
/* A donated tensor is gone: its handle gets a node without data. */
static void disown(Eager *t)
{
    eas_node *n = t->n, *gone;
    if (eas_node_input(-1, eas_node_dtype(n), eas_node_rank(n), eas_node_shape(n), eas_node_batch_dims(n), eas_node_device(n), &gone) == EAS_OK) {
        t->n = gone;
        eas_node_release(n);
    }
}
static PyObject *collect(Entry *e, eas_node **results, PyObject *const *who, eas_node *const *args) /* takes the results */
{
    PyObject *few[FAST_LEAVES], **at = e->nouts <= FAST_LEAVES ? few : PyMem_New(PyObject *, (size_t)e->nouts);
    int k = 0, ok = at != NULL;
    for (int i = 0; at && i < e->nouts; i++) {
        int of = e->out_of[i];
        at[i] = of == RESULT         ? eager_wrap(results[k++])
              : of == CONSTANT       ? Py_NewRef(e->outs[i])
              : eager_check(who[of]) ? Py_NewRef(who[of])
                                     : eager_wrap(eas_node_retain(args[of]));
        ok = ok && at[i];
    }
    PyObject *r = ok ? pytree_unflatten(e->out_treedef, at, e->nouts) : NULL;
    for (int i = 0; at && i < e->nouts; i++)
        Py_XDECREF(at[i]);
    if (at != few)
        PyMem_Free(at);
    return r;
}
static PyObject *run_program(Entry *e, const leaves *l, PyObject **env, int nenv)
{
    eas_node *few[2 * FAST_LEAVES], **args = e->ninputs <= 2 * FAST_LEAVES ? few : PyMem_New(eas_node *, (size_t)e->ninputs);
    PyObject *who_few[2 * FAST_LEAVES], **who = e->ninputs <= 2 * FAST_LEAVES ? who_few : PyMem_New(PyObject *, (size_t)e->ninputs);
    bool owned_few[2 * FAST_LEAVES], *owned = e->ninputs <= 2 * FAST_LEAVES ? owned_few : PyMem_New(bool, (size_t)e->ninputs);
    eas_node *result_few[FAST_LEAVES], **results = e->nresults <= FAST_LEAVES ? result_few : PyMem_New(eas_node *, (size_t)e->nresults);
    uint8_t donated_few[2 * FAST_LEAVES], *donated = e->ninputs <= 2 * FAST_LEAVES ? donated_few : PyMem_New(uint8_t, (size_t)e->ninputs);
    PyObject *r = NULL;
    int k = 0, ok = args && who && owned && results && donated;
    for (int i = 0; ok && i < e->nargleaves + nenv; i++) {
        if (i < e->nargleaves && !e->leaves[i].is_tensor)
            continue;
        PyObject *o = i < e->nargleaves ? l->at[i] : env[i - e->nargleaves];
        who[k] = o;
        owned[k] = !eager_check(o);
        args[k] = owned[k] ? node_of_data(o, NULL, NULL) : eager_node(o);
        ok = args[k] != NULL;
        k += ok;
    }
    if (ok) {
        bool give = e->any_donated;
        for (int i = 0; give && i < k; i++)
            donated[i] = e->donated[i] && !owned[i] && !eas_node_is_shared(args[i]);
        hooks h;
        eas_launch launch = {0};
        hooks_init(&launch, &h);
        eas_status st = EAS_OK;
        if (e->program && e->tune)
            st = eas_program_tune(e->program, k, args, &launch);
        e->tune = false;
        if (e->program && st == EAS_OK)
            st = eas_program_run(e->program, k, args, give ? donated : NULL, &launch, results);
        later_check();
        if (st != EAS_OK)
            py_raise(st);
        else {
            r = collect(e, results, who, args);
            for (int i = 0; give && i < k; i++)
                if (donated[i])
                    disown((Eager *)who[i]);
        }
    }
    for (int i = 0; i < k; i++)
        if (owned[i])
            eas_node_release(args[i]);
    if (args != few)
        PyMem_Free(args);
    if (who != who_few)
        PyMem_Free(who);
    if (owned != owned_few)
        PyMem_Free(owned);
    if (results != result_few)
        PyMem_Free(results);
    if (donated != donated_few)
        PyMem_Free(donated);
    return ok || PyErr_Occurred() ? r : PyErr_NoMemory();
}

/* ---- looking up ---- */
static bool entry_matches(Entry *e, leaves *l, PyObject **env, int *nenv)
{
    if (e->nargleaves != l->n || (e->treedef == NULL) != (l->treedef == NULL))
        return false;
    for (Py_ssize_t i = 0; i < l->n; i++)
        if (!leaf_matches(&e->leaves[i], l->at[i]))
            return false;
    if (e->treedef && pytree_same(e->treedef, l->treedef) != 1)
        return PyErr_Clear(), false;
    *nenv = 0;
    Py_CLEAR(l->env);
    return env_matches(e, l, env, nenv, ENV);
}
/* Counted. Comparing runs Python code, so other threads may change the list meanwhile: an entry is kept while it is looked at, and then looked up again. */
static Entry *find(CompiledFn *c, leaves *l, PyObject **env, int *nenv)
{
    for (int i = 0; i < c->n; i++) {
        Entry *e = c->entries[i];
        e->refs++;
        if (!entry_matches(e, l, env, nenv)) {
            entry_free(e);
            continue;
        }
        int at = 0;
        while (at < c->n && c->entries[at] != e)
            at++;
        if (at < c->n) {
            memmove(c->entries + 1, c->entries, (size_t)at * sizeof *c->entries);
            c->entries[0] = e;
        }
        return e;
    }
    return NULL;
}
static PyObject *leaf_path(Entry *e, Py_ssize_t i) { return e->treedef ? pytree_arg_path(e->treedef, i) : PyUnicode_FromFormat("args[%zd]", i); }

/* In what a leaf differs, in words: NULL without an exception if it does not. */
static PyObject *leaf_difference(PyObject *path, const leaf_sig *s, PyObject *o)
{
    if (leaf_matches(s, o))
        return NULL;
    if (!s->is_tensor || !is_tensorlike(o))
        return PyUnicode_FromFormat("%U: %s%R, was %s%R", path, is_tensorlike(o) ? "a tensor of type " : "",
                                    is_tensorlike(o) ? (PyObject *)Py_TYPE(o) : o, s->is_tensor ? "a tensor " : "",
                                    s->is_tensor ? Py_None : s->value);
    leaf_sig t;
    PyObject *r = NULL;
    if (!sig_of(&t, o))
        return NULL;
    if (t.dtype != s->dtype)
        r = PyUnicode_FromFormat("%U: dtype %s, was %s", path, eas_dtype_name((eas_dtype)t.dtype), eas_dtype_name((eas_dtype)s->dtype));
    else if (t.rank != s->rank || t.batch_dims != s->batch_dims)
        r = PyUnicode_FromFormat("%U: %d dims, was %d", path, t.rank - t.batch_dims, s->rank - s->batch_dims);
    for (int i = 0; !r && !PyErr_Occurred() && i < s->rank; i++)
        if (s->shape[i] >= 0 && t.shape[i] != s->shape[i])
            r = PyUnicode_FromFormat("%U: dim %d is %lld, was %lld", path, i - s->batch_dims, (long long)t.shape[i], (long long)s->shape[i]);
        else if (s->shape[i] < 0 && s->bucket && s->bucket[i] != pow2_of(t.shape[i]))
            r = PyUnicode_FromFormat("%U: dim %d is %lld, in another bucket than %lld", path, i - s->batch_dims, (long long)t.shape[i],
                                     (long long)s->bucket[i]);
    if (!r && !PyErr_Occurred())
        r = PyUnicode_FromFormat("%U: device or sharding", path);
    Py_XDECREF(t.value);
    PyMem_Free(t.shape);
    return r;
}
static PyObject *env_difference(Entry *e)
{
    for (int i = 0; i < e->nsources; i++) {
        source *s = &e->sources[i];
        PyObject *v = fetch(s), *name = s->key ? PyUnicode_FromFormat("captured %S", s->key) : PyUnicode_FromString("a captured variable"), *r = NULL;
        if (!name)
            return NULL;
        if (!v)
            r = PyUnicode_FromFormat("%U: gone", name);
        else if (!s->treedef)
            r = leaf_difference(name, &e->leaves[s->first], v);
        else {
            PyObject *list = NULL, *treedef = NULL;
            if (pytree_flatten(v, NULL, &list, &treedef)) {
                if (pytree_same(treedef, s->treedef) != 1)
                    r = PyUnicode_FromFormat("%U: another structure", name);
                for (int k = 0; !r && !PyErr_Occurred() && k < s->n; k++) {
                    PyObject *p = pytree_path(treedef, k), *path = p ? PyUnicode_FromFormat("%U%U", name, p) : NULL;
                    r = path ? leaf_difference(path, &e->leaves[s->first + k], PyList_GET_ITEM(list, k)) : NULL;
                    Py_XDECREF(p);
                    Py_XDECREF(path);
                }
                Py_DECREF(list);
                Py_DECREF(treedef);
            }
        }
        Py_DECREF(name);
        if (r || PyErr_Occurred())
            return r;
    }
    return NULL;
}
static PyObject *difference(CompiledFn *c, const leaves *l)
{
    Entry *e = c->n ? c->entries[0] : NULL;
    PyObject *r = NULL;
    if (!e)
        return PyUnicode_FromString("first call");
    if (e->nargleaves != l->n || (e->treedef == NULL) != (l->treedef == NULL) || (e->treedef && pytree_same(e->treedef, l->treedef) != 1))
        return PyErr_Clear(), PyUnicode_FromString("the structure of the arguments");
    for (Py_ssize_t i = 0; !r && i < l->n; i++) {
        PyObject *path = leaf_path(e, i);
        r = path ? leaf_difference(path, &e->leaves[i], l->at[i]) : NULL;
        Py_XDECREF(path);
        if (PyErr_Occurred())
            return NULL;
    }
    if (!r)
        r = env_difference(e);
    return r || PyErr_Occurred() ? r : PyUnicode_FromString("it had been dropped from the cache");
}

/* ---- a miss ---- */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void insert(CompiledFn *c, Entry *e)
{
    if (c->n == c->cap)
        entry_free(c->entries[--c->n]);
    memmove(c->entries + 1, c->entries, (size_t)c->n * sizeof *c->entries);
    c->entries[0] = e;
    c->n++;
}
/* The captured tensors as they were when the function was traced. */
static void take_values(leaves *l, PyObject *values, PyObject **env, int *nenv)
{
    *nenv = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++)
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(PyList_GET_ITEM(values, i)); j++) {
            PyObject *o = PyList_GET_ITEM(PyList_GET_ITEM(values, i), j);
            if (is_tensorlike(o) && *nenv < ENV)
                env[(*nenv)++] = o;
        }
    Py_XSETREF(l->env, Py_NewRef(values));
}
static Entry *make(CompiledFn *c, leaves *l, PyObject **env, int *nenv)
{
    PyObject *cause = difference(c, l), *values = cause ? PyList_New(0) : NULL;
    Entry *e = NULL;
    if (values && c->max_compiles >= 0 && c->misses >= c->max_compiles)
        py_fail(PyExc_RuntimeError, "compile: %R was compiled %lld times, which max_compiles=%d allows; this call differs in %U", c->fn,
                (long long)c->misses, c->max_compiles, cause);
    else if (values) {
        double start = seconds();
        e = entry_new(c, l, values);
        if (e && !(run_traced(c, e, l, values) && plan_donation(c, e, l))) {
            bool broken = PyErr_ExceptionMatches(graph_break) && !c->fullgraph;
            if (broken) {
                PyErr_Clear();
                e->plain = true;
            } else {
                entry_free(e);
                e = NULL;
            }
        }
        if (e) {
            e->tune = c->autotune;
            PyObject *row =
                Py_BuildValue("{s:O,s:d,s:O}", "cause", cause, "ms", 1e3 * (seconds() - start), "compiled", e->plain ? Py_False : Py_True);
            if (!row || PyList_Append(c->log, row) < 0) {
                entry_free(e);
                e = NULL;
            }
            Py_XDECREF(row);
        }
        if (e) {
            c->misses++;
            e->refs++;
            insert(c, e);
            take_values(l, values, env, nenv);
        }
    }
    Py_XDECREF(values);
    Py_XDECREF(cause);
    return e;
}
static int locked(CompiledFn *c, bool enter)
{
    PyObject *r = PyObject_CallMethod(c->lock, enter ? "acquire" : "release", NULL);
    Py_XDECREF(r);
    return r != NULL;
}
/* Placeholders and traced tensors go through the function itself: what is recorded is part of something larger. */
static bool inline_it(const leaves *l)
{
    for (Py_ssize_t i = 0; i < l->n; i++)
        if (eager_check(l->at[i]) && (eas_node_traced(eager_node(l->at[i])) || (eager_tracing && eas_node_is_symbolic(eager_node(l->at[i])))))
            return true;
    return false;
}
static PyObject *compiled_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    CompiledFn *c = (CompiledFn *)self;
    leaves l;
    PyObject *env[ENV], *r = NULL;
    int nenv = 0;
    if (!leaves_of(&l, args, PyVectorcall_NARGS(nargsf), kwnames)) {
        leaves_done(&l);
        return NULL;
    }
    if (now || inline_it(&l)) {
        r = call_plain(c, &l);
        leaves_done(&l);
        return r;
    }
    Entry *e = find(c, &l, env, &nenv);
    if (e)
        c->hits++;
    else if (locked(c, true)) {
        if ((e = find(c, &l, env, &nenv))) /* another thread may have been here */
            c->hits++;
        else
            e = make(c, &l, env, &nenv);
        PyObject *t, *v, *tb;
        PyErr_Fetch(&t, &v, &tb);
        locked(c, false);
        PyErr_Restore(t, v, tb);
    }
    if (e && e->plain)
        r = call_plain(c, &l);
    else if (e)
        r = run_program(e, &l, env, nenv);
    entry_free(e);
    leaves_done(&l);
    return r;
}

/* ---- the object ---- */
static PyObject *fn_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *names[] = {"fn", "fullgraph", "max_cache_size", "dynamic_dims", "donate", "bucket", "max_compiles", "mode", NULL};
    PyObject *fn, *dynamic = Py_None, *donate = Py_None, *bucket = Py_None, *max_compiles = Py_None, *mode = Py_None;
    int fullgraph = 0, cap = 64;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$piOOOOO:CompiledFunction", names, &fn, &fullgraph, &cap, &dynamic, &donate, &bucket, &max_compiles,
                                     &mode))
        return NULL;
    if (!PyCallable_Check(fn))
        return py_fail(PyExc_TypeError, "compile takes a function, got %s", Py_TYPE(fn)->tp_name);
    if (cap < 1)
        return py_fail(PyExc_ValueError, "compile: max_cache_size must be at least 1, got %d", cap);
    if (dynamic != Py_None && !PyDict_Check(dynamic))
        return py_fail(PyExc_TypeError, "compile: dynamic_dims is {argument index: {dim: name}}, got %R", dynamic);
    if (bucket != Py_None && (!PyUnicode_Check(bucket) || PyUnicode_CompareWithASCIIString(bucket, "pow2")))
        return py_fail(PyExc_ValueError, "compile: bucket must be None or \"pow2\", got %R", bucket);
    if (bucket != Py_None && dynamic == Py_None)
        return py_fail(PyExc_ValueError, "compile: bucket=\"pow2\" needs dynamic_dims, which say what dims vary");
    if (mode != Py_None && (!PyUnicode_Check(mode) || PyUnicode_CompareWithASCIIString(mode, "autotune")))
        return py_fail(PyExc_ValueError, "compile: mode must be None or \"autotune\", got %R", mode);
    long limit = max_compiles == Py_None ? -1 : PyLong_AsLong(max_compiles);
    if (PyErr_Occurred())
        return NULL;
    if (limit < -1 || (max_compiles != Py_None && limit < 0))
        return py_fail(PyExc_ValueError, "compile: max_compiles must not be negative, got %ld", limit);
    CompiledFn *c = (CompiledFn *)type->tp_alloc(type, 0);
    if (!c)
        return NULL;
    c->call = compiled_call;
    c->fn = Py_NewRef(fn);
    c->dynamic = dynamic == Py_None ? NULL : Py_NewRef(dynamic);
    c->donate = donate == Py_None ? NULL : PyIndex_Check(donate) ? PyTuple_Pack(1, donate) : PySequence_Tuple(donate);
    c->fullgraph = fullgraph;
    c->pow2 = bucket != Py_None;
    c->autotune = mode != Py_None;
    c->cap = cap;
    c->max_compiles = (int)limit;
    c->entries = PyMem_Calloc((size_t)cap, sizeof *c->entries);
    PyObject *threading = PyImport_ImportModule("threading");
    c->lock = threading ? PyObject_CallMethod(threading, "RLock", NULL) : NULL;
    Py_XDECREF(threading);
    c->log = PyList_New(0);
    c->dict = PyDict_New();
    if (!c->entries || !c->lock || !c->log || !c->dict || (donate != Py_None && !c->donate)) {
        Py_DECREF(c);
        return NULL;
    }
    return (PyObject *)c;
}
static int fn_traverse(PyObject *o, visitproc visit, void *arg)
{
    CompiledFn *c = (CompiledFn *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(c->fn);
    Py_VISIT(c->dict);
    Py_VISIT(c->dynamic);
    Py_VISIT(c->log);
    for (int i = 0; i < c->n; i++) {
        Entry *e = c->entries[i];
        Py_VISIT(e->treedef);
        Py_VISIT(e->out_treedef);
        for (int k = 0; k < e->nleaves; k++)
            Py_VISIT(e->leaves[k].value);
        for (int k = 0; k < e->nsources; k++) {
            Py_VISIT(e->sources[k].container);
            Py_VISIT(e->sources[k].treedef);
        }
        for (int k = 0; k < e->nouts; k++)
            Py_VISIT(e->outs[k]);
    }
    return 0;
}
static int fn_clear(PyObject *o)
{
    CompiledFn *c = (CompiledFn *)o;
    while (c->n)
        entry_free(c->entries[--c->n]);
    Py_CLEAR(c->fn);
    Py_CLEAR(c->dict);
    Py_CLEAR(c->dynamic);
    Py_CLEAR(c->log);
    return 0;
}
static void fn_dealloc(PyObject *o)
{
    CompiledFn *c = (CompiledFn *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (c->weakrefs)
        PyObject_ClearWeakRefs(o);
    fn_clear(o);
    Py_XDECREF(c->donate);
    Py_XDECREF(c->lock);
    PyMem_Free(c->entries);
    type->tp_free(o);
    Py_DECREF(type);
}
static PyObject *fn_get(PyObject *self, PyObject *obj, PyObject *type)
{
    (void)type;
    return obj && obj != Py_None ? PyMethod_New(self, obj) : Py_NewRef(self);
}
static PyObject *fn_repr(PyObject *o)
{
    return PyUnicode_FromFormat("<CompiledFunction %R, %d programs>", ((CompiledFn *)o)->fn, ((CompiledFn *)o)->n);
}
static PyObject *fn_counts(PyObject *o, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(LLi)", (long long)((CompiledFn *)o)->hits, (long long)((CompiledFn *)o)->misses, ((CompiledFn *)o)->n);
}
static PyObject *fn_log(PyObject *o, PyObject *unused)
{
    (void)unused;
    return PyList_GetSlice(((CompiledFn *)o)->log, 0, PY_SSIZE_T_MAX);
}
static PyObject *fn_clear_cache(PyObject *o, PyObject *unused)
{
    (void)unused;
    CompiledFn *c = (CompiledFn *)o;
    while (c->n)
        entry_free(c->entries[--c->n]);
    Py_RETURN_NONE;
}
static PyObject *fn_show(PyObject *o, PyObject *form)
{
    CompiledFn *c = (CompiledFn *)o;
    const char *f = PyUnicode_Check(form) ? PyUnicode_AsUTF8(form) : NULL;
    char *text = NULL;
    if (!f)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "_show(form)");
    if (!c->n || !c->entries[0]->program)
        return py_fail(PyExc_RuntimeError, "nothing was compiled yet: call the function first");
    eas_status st = eas_program_show(c->entries[0]->program, f, &text);
    return py_take_text(st, text);
}
static PyMethodDef fn_methods[] = {
    {"_counts", fn_counts, METH_NOARGS, "(hits, misses, programs)"},
    {"_log", fn_log, METH_NOARGS, "a dict for each miss: cause, ms, compiled"},
    {"_show", fn_show, METH_O, "what the program used last does"},
    {"clear_cache", fn_clear_cache, METH_NOARGS, "clear_cache()\n--\n\nForgets all programs."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef fn_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyMemberDef fn_members[] = {{"__wrapped__", T_OBJECT, offsetof(CompiledFn, fn), READONLY, "the function"},
                                   {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFn, call), READONLY, NULL},
                                   {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFn, dict), READONLY, NULL},
                                   {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFn, weakrefs), READONLY, NULL},
                                   {NULL, 0, 0, 0, NULL}};
static PyType_Slot fn_slots[] = {
    {Py_tp_doc, "A function that is traced once for each kind of arguments, and then replayed."},
    {Py_tp_new, fn_new},
    {Py_tp_traverse, fn_traverse},
    {Py_tp_clear, fn_clear},
    {Py_tp_dealloc, fn_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, fn_get},
    {Py_tp_repr, fn_repr},
    {Py_tp_methods, fn_methods},
    {Py_tp_getset, fn_getset},
    {Py_tp_members, fn_members},
    {0, NULL},
};
static PyType_Spec fn_spec = {
    "eager._CompiledFunction", sizeof(CompiledFn), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, fn_slots};

int eager_compile_init(PyObject *module)
{
    if (!(compiled_fn_type = py_type(module, &fn_spec, "CompiledFunction")))
        return -1;
    graph_break = PyErr_NewExceptionWithDoc("eager.GraphBreak", "Data was read while a function was traced.", PyExc_RuntimeError, NULL);
    return graph_break ? PyModule_AddObjectRef(module, "GraphBreak", graph_break) : -1;
}
