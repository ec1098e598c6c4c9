/* eager_shard.c: shardings of Python's (ShardingSpec, DeviceMesh) as libeas knows them and back: the spec of a result follows from those of what an operation was given. */
#include "py.h"

#include <string.h>

static PyObject *spec_type, *dim_type; /* eager.sharding.spec: ShardingSpec, DimSpec */

static int find_types(void)
{
    if (spec_type)
        return 1;
    PyObject *m = PyImport_ImportModule("eager.sharding.spec");
    dim_type = m ? PyObject_GetAttrString(m, "DimSpec") : NULL;
    spec_type = dim_type ? PyObject_GetAttrString(m, "ShardingSpec") : NULL;
    Py_XDECREF(m);
    return spec_type != NULL;
}

/* ---- from Python ---- */
typedef struct mesh {
    PyObject *object, *names; /* borrowed from a spec; counted */
    eas_mesh m;
} mesh;

static int read_mesh(PyObject *o, mesh *out)
{
    PyObject *shape = PyObject_GetAttrString(o, "shape");
    out->object = o;
    out->names = shape ? PyObject_GetAttrString(o, "axis_names") : NULL;
    int ok = out->names && PyTuple_Check(out->names) && PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) == PyTuple_GET_SIZE(out->names);
    if (ok && PyTuple_GET_SIZE(shape) > EAS_MESH_AXES)
        ok = (py_fail(PyExc_ValueError, "a mesh has at most %d axes, got %zd", EAS_MESH_AXES, PyTuple_GET_SIZE(shape)), 0);
    out->m.naxes = ok ? (int)PyTuple_GET_SIZE(shape) : 0;
    for (int i = 0; i < out->m.naxes && ok; i++) {
        out->m.sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
        ok = !PyErr_Occurred();
    }
    Py_XDECREF(shape);
    return ok || PyErr_Occurred() ? ok : (py_fail(PyExc_TypeError, "a mesh has a tuple of sizes and one of axis names, got %R", o), 0);
}
static int axis_number(const mesh *m, PyObject *name)
{
    for (int i = 0; i < m->m.naxes; i++)
        if (PyObject_RichCompareBool(PyTuple_GET_ITEM(m->names, i), name, Py_EQ) == 1)
            return i;
    return PyErr_Occurred() ? -1 : (py_fail(PyExc_ValueError, "the mesh has no axis %R; its axes are %R", name, m->names), -1);
}
static int read_axes(const mesh *m, PyObject *o, const char *attr, uint32_t *bits, eas_dim_spec *dim)
{
    PyObject *all = PyObject_GetAttrString(o, attr), *it = all ? PyObject_GetIter(all) : NULL, *name;
    while (it && (name = PyIter_Next(it))) {
        int i = axis_number(m, name);
        Py_DECREF(name);
        if (i >= 0 && bits)
            *bits |= 1u << i;
        else if (i >= 0 && dim->n < EAS_MESH_AXES)
            dim->axes[dim->n++] = (uint8_t)i;
    }
    Py_XDECREF(it);
    Py_XDECREF(all);
    return !PyErr_Occurred();
}
static int read_dim(const mesh *m, PyObject *o, eas_dim_spec *out)
{
    PyObject *open = PyObject_GetAttrString(o, "is_open"), *priority = PyObject_GetAttrString(o, "priority");
    int ok = open && priority && read_axes(m, o, "axes", NULL, out);
    out->open = ok && PyObject_IsTrue(open) == 1;
    long p = ok ? PyLong_AsLong(priority) : 0;
    out->priority = (uint16_t)(p < 0 ? 0 : p > 1000 ? 1000 : p);
    Py_XDECREF(open);
    Py_XDECREF(priority);
    return ok && !PyErr_Occurred();
}
static int read_spec(const mesh *m, PyObject *o, eas_spec *out)
{
    PyObject *dims = PyObject_GetAttrString(o, "dim_specs");
    memset(out, 0, sizeof *out);
    int ok = dims && PyList_Check(dims);
    if (ok && PyList_GET_SIZE(dims) > EAS_MAX_RANK)
        ok = (py_fail(PyExc_ValueError, "a sharding of %zd dims; there are at most %d", PyList_GET_SIZE(dims), EAS_MAX_RANK), 0);
    out->rank = ok ? (int)PyList_GET_SIZE(dims) : 0;
    for (int i = 0; ok && i < out->rank; i++)
        ok = read_dim(m, PyList_GET_ITEM(dims, i), &out->dims[i]);
    ok = ok && read_axes(m, o, "replicated_axes", &out->replicated, NULL) && read_axes(m, o, "partial_sum_axes", &out->partial, NULL);
    Py_XDECREF(dims);
    return ok;
}

/* ---- to Python ---- */
static PyObject *names_of(const mesh *m, uint32_t bits)
{
    PyObject *set = PySet_New(NULL);
    for (int i = 0; set && i < m->m.naxes; i++)
        if (bits >> i & 1 && PySet_Add(set, PyTuple_GET_ITEM(m->names, i)) < 0)
            Py_CLEAR(set);
    return set;
}
static PyObject *make_dim(const mesh *m, const eas_dim_spec *d)
{
    PyObject *axes = PyList_New(d->n), *r = NULL;
    for (int i = 0; axes && i < d->n; i++)
        PyList_SET_ITEM(axes, i, Py_NewRef(PyTuple_GET_ITEM(m->names, d->axes[i])));
    if (axes)
        r = PyObject_CallFunction(dim_type, "OOi", axes, d->open ? Py_True : Py_False, (int)d->priority);
    Py_XDECREF(axes);
    return r;
}
static PyObject *make_spec(const mesh *m, const eas_spec *s)
{
    PyObject *dims = PyList_New(s->rank), *replicated = names_of(m, s->replicated), *partial = names_of(m, s->partial), *r = NULL;
    for (int i = 0; dims && i < s->rank; i++) {
        PyObject *d = make_dim(m, &s->dims[i]);
        if (d)
            PyList_SET_ITEM(dims, i, d);
        else
            Py_CLEAR(dims);
    }
    if (dims && replicated && partial)
        r = PyObject_CallFunctionObjArgs(spec_type, m->object, dims, replicated, partial, NULL);
    Py_XDECREF(dims);
    Py_XDECREF(replicated);
    Py_XDECREF(partial);
    return r;
}

/* ---- results ---- */
/* The mesh that all of them lie on. 0: none has a sharding that is known here; -1 with an exception. */
static int find_mesh(eas_node *const *in, int n, mesh *out)
{
    PyObject *found = NULL;
    for (int i = 0; i < n; i++) {
        PyObject *s = node_sharding(in[i]);
        if (!s || (!find_types() && PyErr_Occurred()))
            continue;
        if (PyObject_IsInstance(s, spec_type) != 1)
            continue;
        PyObject *m = PyObject_GetAttrString(s, "mesh");
        int same = m && found ? PyObject_RichCompareBool(found, m, Py_EQ) : 1;
        if (m && !found)
            found = m;
        Py_XDECREF(m); /* the spec keeps it */
        if (same == 0)
            py_fail(PyExc_ValueError, "one tensor lies on %R, and another on %R", found, m);
        if (same != 1)
            return -1;
    }
    if (PyErr_Occurred())
        return -1;
    return !found ? 0 : read_mesh(found, out) ? 1 : -1;
}
int shard_follow(eas_node *out, int n, eas_node *const *in)
{
    mesh m = {0};
    int any = 0, has = find_mesh(in, n, &m), ok = has >= 0;
    if (has > 0) {
        eas_spec *specs = PyMem_Calloc((size_t)n, sizeof *specs), result;
        const eas_spec **at = PyMem_Calloc((size_t)n, sizeof *at);
        ok = specs && at ? 1 : (PyErr_NoMemory(), 0);
        for (int i = 0; i < n && ok; i++) {
            PyObject *s = node_sharding(in[i]);
            if (!s || PyObject_IsInstance(s, spec_type) != 1)
                continue;
            ok = read_spec(&m, s, &specs[i]);
            at[i] = &specs[i];
        }
        eas_status st = ok ? eas_node_infer_spec(out, &m.m, n, in, at, &result, &any) : EAS_OK;
        if (st != EAS_OK)
            ok = (py_raise(st), 0);
        PyObject *spec = ok && any ? make_spec(&m, &result) : NULL;
        if (ok && any)
            ok = spec && node_set_sharding(out, spec);
        Py_XDECREF(spec);
        PyMem_Free(specs);
        PyMem_Free(at);
    }
    Py_XDECREF(m.names);
    return ok;
}

/* ---- for Python ---- */
/* shard_propagate(sizes, factors, tensors, specs, mesh, aggressive): the specs as they are afterwards, and whether anything changed.
 * factors: (size, kind) each; tensors: a list of lists of factors for each dim; specs: of the inputs, then of the result. */
static int read_factors(PyObject *factors, eas_shard_rule *r)
{
    r->nfactors = (int)PyList_GET_SIZE(factors);
    if (r->nfactors > EAS_MAX_FACTORS)
        return py_fail(PyExc_ValueError, "a sharding rule has at most %d factors, got %d", EAS_MAX_FACTORS, r->nfactors), 0;
    for (int i = 0; i < r->nfactors; i++) {
        long long size;
        int kind;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(factors, i), "Li", &size, &kind))
            return 0;
        r->factors[i].size = size;
        r->factors[i].kind = (eas_factor_kind)kind;
    }
    return 1;
}
static int read_tensor(PyObject *dims, eas_shard_rule *r, eas_shard_tensor *out)
{
    out->rank = (int)PyList_GET_SIZE(dims);
    if (out->rank > EAS_MAX_RANK)
        return py_fail(PyExc_ValueError, "a sharding rule for %d dims; there are at most %d", out->rank, EAS_MAX_RANK), 0;
    for (int d = 0; d < out->rank; d++) {
        PyObject *list = PyList_GET_ITEM(dims, d);
        out->dims[d].n = (int)PyList_GET_SIZE(list);
        if (out->dims[d].n > EAS_DIM_FACTORS)
            return py_fail(PyExc_ValueError, "a dim of %d factors; there are at most %d", out->dims[d].n, EAS_DIM_FACTORS), 0;
        for (int i = 0; i < out->dims[d].n; i++) {
            long f = PyLong_AsLong(PyList_GET_ITEM(list, i));
            if (f < 0 || f >= r->nfactors)
                return PyErr_Occurred() ? 0 : (py_fail(PyExc_ValueError, "factor %ld of %d", f, r->nfactors), 0);
            out->dims[d].factors[i] = (uint16_t)f;
        }
    }
    return 1;
}
static PyObject *shard_propagate(PyObject *module, PyObject *args)
{
    PyObject *factors, *tensors, *specs, *mesh_object, *list = NULL;
    int aggressive, changed = 0;
    mesh m = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!O!Op:shard_propagate", &PyList_Type, &factors, &PyList_Type, &tensors, &PyList_Type, &specs, &mesh_object,
                          &aggressive))
        return NULL;
    Py_ssize_t n = PyList_GET_SIZE(tensors);
    eas_shard_rule *r = PyMem_Calloc(1, sizeof *r + sizeof(eas_shard_tensor) * (size_t)n);
    eas_spec *all = PyMem_Calloc((size_t)n + 1, sizeof *all), **at = PyMem_Calloc((size_t)n + 1, sizeof *at);
    int ok = r && all && at ? find_types() && read_mesh(mesh_object, &m) : (PyErr_NoMemory(), 0);
    if (ok && (n < 1 || PyList_GET_SIZE(specs) != n))
        ok = (py_fail(PyExc_ValueError, "propagate_sharding: a rule for %zd tensors, and %zd specs", n, PyList_GET_SIZE(specs)), 0);
    if (ok) {
        r->nin = (int)n - 1;
        r->tensors = (eas_shard_tensor *)(r + 1);
        ok = read_factors(factors, r);
    }
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *s = PyList_GET_ITEM(specs, i);
        ok = read_tensor(PyList_GET_ITEM(tensors, i), r, &r->tensors[i]) && (s == Py_None || read_spec(&m, s, &all[i]));
        at[i] = s == Py_None ? NULL : &all[i];
    }
    if (ok) {
        eas_status st = eas_shard_propagate(r, &m.m, at, aggressive, &changed);
        ok = st == EAS_OK ? 1 : (py_raise(st), 0);
    }
    if (ok)
        list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        PyObject *s = at[i] ? make_spec(&m, at[i]) : Py_NewRef(Py_None);
        if (s)
            PyList_SET_ITEM(list, i, s);
        else
            Py_CLEAR(list);
    }
    Py_XDECREF(m.names);
    PyMem_Free(r);
    PyMem_Free(all);
    PyMem_Free(at);
    return list ? Py_BuildValue("(NN)", list, PyBool_FromLong(changed)) : NULL;
}
static PyObject *py_follow(PyObject *module, PyObject *args) /* shard_follow(out, inputs) */
{
    PyObject *out, *list;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!:shard_follow", G.eager, &out, &PyList_Type, &list))
        return NULL;
    int n = (int)PyList_GET_SIZE(list), ok = 1;
    eas_node **in = PyMem_New(eas_node *, (size_t)n + 1);
    for (int i = 0; in && ok && i < n; i++)
        if (!(ok = eager_check(PyList_GET_ITEM(list, i))))
            py_fail(PyExc_TypeError, "shard_follow: tensors are wanted");
        else
            in[i] = eager_node(PyList_GET_ITEM(list, i));
    ok = in ? ok && shard_follow(eager_node(out), n, in) : (PyErr_NoMemory(), 0);
    PyMem_Free(in);
    return ok ? Py_NewRef(Py_None) : NULL;
}
static PyMethodDef functions[] = {
    {"shard_propagate", shard_propagate, METH_VARARGS, "shard_propagate(factors, tensors, specs, mesh, aggressive)"},
    {"shard_follow", py_follow, METH_VARARGS, "shard_follow(out, inputs)"},
    {NULL, NULL, 0, NULL},
};
int eager_shard_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
