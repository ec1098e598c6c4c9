/* eager_shard.c: shardings of Python's (ShardingSpec, DeviceMesh) as libeas knows them and back: the spec of
 * a result follows from those of what an operation was given. */
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
    int ok = out->names && PyTuple_Check(out->names) && PyTuple_Check(shape) &&
             PyTuple_GET_SIZE(shape) == PyTuple_GET_SIZE(out->names);
    if (ok && PyTuple_GET_SIZE(shape) > EAS_MESH_AXES)
        ok = (py_fail(PyExc_ValueError, "a mesh has at most %d axes, got %zd", EAS_MESH_AXES,
                      PyTuple_GET_SIZE(shape)),
              0);
    out->m.naxes = ok ? (int)PyTuple_GET_SIZE(shape) : 0;
    for (int i = 0; i < out->m.naxes && ok; i++) {
        out->m.sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
        ok = !PyErr_Occurred();
    }
    Py_XDECREF(shape);
    return ok || PyErr_Occurred()
             ? ok
             : (py_fail(PyExc_TypeError, "a mesh has a tuple of sizes and one of axis names, got %R", o), 0);
}
static int axis_number(const mesh *m, PyObject *name)
{
    for (int i = 0; i < m->m.naxes; i++)
        if (PyObject_RichCompareBool(PyTuple_GET_ITEM(m->names, i), name, Py_EQ) == 1)
            return i;
    return PyErr_Occurred()
             ? -1
             : (py_fail(PyExc_ValueError, "the mesh has no axis %R; its axes are %R", name, m->names), -1);
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
        ok = (py_fail(PyExc_ValueError, "a sharding of %zd dims; there are at most %d", PyList_GET_SIZE(dims),
                      EAS_MAX_RANK),
              0);
    out->rank = ok ? (int)PyList_GET_SIZE(dims) : 0;
    for (int i = 0; ok && i < out->rank; i++)
        ok = read_dim(m, PyList_GET_ITEM(dims, i), &out->dims[i]);
    ok = ok && read_axes(m, o, "replicated_axes", &out->replicated, NULL) &&
         read_axes(m, o, "partial_sum_axes", &out->partial, NULL);
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
    PyObject *dims = PyList_New(s->rank), *replicated = names_of(m, s->replicated),
             *partial = names_of(m, s->partial), *r = NULL;
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
/* shard_propagate(sizes, factors, tensors, specs, mesh, aggressive): the specs as they are afterwards, and
 * whether anything changed. factors: (size, kind) each; tensors: a list of lists of factors for each dim;
 * specs: of the inputs, then of the result. */
static int read_factors(PyObject *factors, eas_shard_rule *r)
{
    r->nfactors = (int)PyList_GET_SIZE(factors);
    if (r->nfactors > EAS_MAX_FACTORS)
        return py_fail(PyExc_ValueError, "a sharding rule has at most %d factors, got %d", EAS_MAX_FACTORS,
                       r->nfactors),
               0;
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
        return py_fail(PyExc_ValueError, "a sharding rule for %d dims; there are at most %d", out->rank,
                       EAS_MAX_RANK),
               0;
    for (int d = 0; d < out->rank; d++) {
        PyObject *list = PyList_GET_ITEM(dims, d);
        out->dims[d].n = (int)PyList_GET_SIZE(list);
        if (out->dims[d].n > EAS_DIM_FACTORS)
            return py_fail(PyExc_ValueError, "a dim of %d factors; there are at most %d", out->dims[d].n,
                           EAS_DIM_FACTORS),
                   0;
        for (int i = 0; i < out->dims[d].n; i++) {
            long f = PyLong_AsLong(PyList_GET_ITEM(list, i));
            if (f < 0 || f >= r->nfactors)
                return PyErr_Occurred() ? 0
                                        : (py_fail(PyExc_ValueError, "factor %ld of %d", f, r->nfactors), 0);
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
    if (!PyArg_ParseTuple(args, "O!O!O!Op:shard_propagate", &PyList_Type, &factors, &PyList_Type, &tensors,
                          &PyList_Type, &specs, &mesh_object, &aggressive))
        return NULL;
    Py_ssize_t n = PyList_GET_SIZE(tensors);
    eas_shard_rule *r = PyMem_Calloc(1, sizeof *r + sizeof(eas_shard_tensor) * (size_t)n);
    eas_spec *all = PyMem_Calloc((size_t)n + 1, sizeof *all), **at = PyMem_Calloc((size_t)n + 1, sizeof *at);
    int ok = r && all && at ? find_types() && read_mesh(mesh_object, &m) : (PyErr_NoMemory(), 0);
    if (ok && (n < 1 || PyList_GET_SIZE(specs) != n))
        ok = (py_fail(PyExc_ValueError, "propagate_sharding: a rule for %zd tensors, and %zd specs", n,
                      PyList_GET_SIZE(specs)),
              0);
    if (ok) {
        r->nin = (int)n - 1;
        r->tensors = (eas_shard_tensor *)(r + 1);
        ok = read_factors(factors, r);
    }
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *s = PyList_GET_ITEM(specs, i);
        ok = read_tensor(PyList_GET_ITEM(tensors, i), r, &r->tensors[i]) &&
             (s == Py_None || read_spec(&m, s, &all[i]));
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

/* ---- tensors in parts ---- */
static int mesh_number(PyObject *mesh_object, int *id)
{
    PyObject *number = PyObject_GetAttrString(mesh_object, "_number");
    long k = number ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    *id = (int)k;
    return !PyErr_Occurred();
}
/* mesh_register(name, sizes, axis_names, fast, first): its number */
static PyObject *mesh_register(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *sizes, *names;
    const char *name, *axis[EAS_MESH_AXES];
    eas_mesh m = {0};
    int id;
    if (!PyArg_ParseTuple(args, "sO!O!|pi:mesh_register", &name, &PyTuple_Type, &sizes, &PyTuple_Type, &names,
                          &m.fast, &m.first))
        return NULL;
    if (PyTuple_GET_SIZE(sizes) > EAS_MESH_AXES)
        return py_fail(PyExc_ValueError, "a mesh has at most %d axes, got %zd", EAS_MESH_AXES,
                       PyTuple_GET_SIZE(sizes)),
               NULL;
    for (m.naxes = 0; m.naxes < PyTuple_GET_SIZE(sizes); m.naxes++) {
        m.sizes[m.naxes] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, m.naxes));
        axis[m.naxes] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, m.naxes));
        if (!axis[m.naxes] || PyErr_Occurred())
            return NULL;
    }
    eas_status st = eas_mesh_register(name, &m, axis, &id);
    return st == EAS_OK ? PyLong_FromLong(id) : (py_raise(st), NULL);
}
/* mesh_devices(mesh): (first, count) of this process */
static PyObject *mesh_devices(PyObject *module, PyObject *arg)
{
    (void)module;
    int id;
    int64_t first, count;
    if (!mesh_number(arg, &id))
        return NULL;
    eas_status st = eas_mesh_devices(id, &first, &count);
    return st == EAS_OK ? Py_BuildValue("(LL)", (long long)first, (long long)count) : (py_raise(st), NULL);
}
/* A ShardingSpec as libeas has it, and its mesh's number. */
static int read_sharding(PyObject *spec, int *id, eas_spec *out)
{
    mesh m = {0};
    if (!find_types())
        return 0;
    if (PyObject_IsInstance(spec, spec_type) != 1)
        return py_fail(PyExc_TypeError, "a ShardingSpec is wanted, got %R", spec), 0;
    PyObject *o = PyObject_GetAttrString(spec, "mesh");
    int ok = o && read_mesh(o, &m) && read_spec(&m, spec, out) && mesh_number(o, id);
    Py_XDECREF(m.names);
    Py_XDECREF(o);
    return ok;
}
int shard_read(PyObject *spec, int *id, eas_spec *out) { return read_sharding(spec, id, out); }
PyObject *shard_make(PyObject *mesh_object, const eas_spec *s)
{
    mesh m = {0};
    PyObject *r = find_types() && read_mesh(mesh_object, &m) ? make_spec(&m, s) : NULL;
    Py_XDECREF(m.names);
    return r;
}
static PyObject *shard_node(PyObject *module, PyObject *args) /* shard_node(tensor, spec, pad): laid out so */
{
    (void)module;
    PyObject *t, *spec;
    int pad, id;
    eas_spec s;
    eas_node *out = NULL;
    if (!PyArg_ParseTuple(args, "O!Op:shard_node", G.eager, &t, &spec, &pad) || !read_sharding(spec, &id, &s))
        return NULL;
    eas_site_set(site_here());
    eas_status st = eas_node_shard(eager_node(t), id, &s, pad, &out);
    eas_site_set(0);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    if (!node_set_sharding(out, spec)) {
        eas_node_release(out);
        return NULL;
    }
    return eager_wrap(out);
}
eas_node *shard_input(int index, eas_dtype dt, int rank, const eas_dim *shape, int batch_dims, eas_device *d,
                      PyObject *spec)
{
    eas_node *n = NULL;
    eas_spec s;
    int id;
    if (!read_sharding(spec, &id, &s))
        return NULL;
    s.partial = 0;
    eas_status st = eas_node_input_sharded(index, dt, rank, shape, batch_dims, d, id, &s, 1, &n);
    return st == EAS_OK ? n : (py_raise(st), NULL);
}
/* The mesh object of a number. */
static PyObject *mesh_of_number(int id)
{
    PyObject *m = PyImport_ImportModule("eager.sharding.spec"),
             *r = m ? PyObject_CallMethod(m, "_mesh_of", "i", id) : NULL;
    Py_XDECREF(m);
    return r;
}
PyObject *shard_stored(eas_node *n, PyObject *told)
{
    eas_spec s = {.rank = eas_node_rank(n)};
    int id;
    mesh m = {0};
    PyObject *mesh_object = NULL, *r = NULL;
    if (!find_types())
        return NULL;
    if (eas_node_layout(n, &id, &s))
        mesh_object = mesh_of_number(id);
    else if (told && PyObject_IsInstance(told, spec_type) == 1)
        mesh_object = PyObject_GetAttrString(told, "mesh");
    else
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (mesh_object && read_mesh(mesh_object, &m)) {
        /* what says nothing of the layout goes along */
        if (told && PyObject_IsInstance(told, spec_type) == 1) {
            eas_spec t;
            if (read_spec(&m, told, &t) && t.rank == s.rank) {
                uint32_t used = 0;
                for (int d = 0; d < s.rank; d++) {
                    s.dims[d].open = t.dims[d].open;
                    s.dims[d].priority = t.dims[d].priority;
                    for (int i = 0; i < s.dims[d].n; i++)
                        used |= 1u << s.dims[d].axes[i];
                }
                s.replicated = t.replicated & ~used;
            }
            PyErr_Clear();
        }
        r = make_spec(&m, &s);
    }
    Py_XDECREF(m.names);
    Py_XDECREF(mesh_object);
    return r;
}
/* local_parts(tensor): [(device, eas.Tensor), ...] of this process */
static PyObject *local_parts(PyObject *module, PyObject *t)
{
    (void)module;
    if (!eager_check(t))
        return py_fail(PyExc_TypeError, "a tensor is wanted, got %s", Py_TYPE(t)->tp_name), NULL;
    eas_node *n = eager_node(t);
    eas_spec s;
    int id;
    int64_t first, count, shape[EAS_MAX_RANK], strides[EAS_MAX_RANK];
    if (!eager_realize(1, &n) || !eas_node_layout(n, &id, &s))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    eas_status st = eas_mesh_devices(id, &first, &count);
    PyObject *list = st == EAS_OK ? PyList_New(0) : (py_raise(st), NULL);
    for (int64_t k = first; list && k < first + count; k++) {
        eas_buffer *b;
        st = eas_node_part(n, k, &b, shape);
        int64_t step = (int64_t)eas_dtype_size(eas_node_dtype(n));
        for (int d = s.rank - 1; st == EAS_OK && d >= 0; d--) {
            strides[d] = step;
            step *= shape[d];
        }
        Tensor *part = st == EAS_OK ? tensor_over(eas_buffer_device(b), eas_node_dtype(n), s.rank, shape,
                                                  strides, eas_buffer_address(b), false, NULL)
                                    : NULL;
        if (st != EAS_OK)
            py_raise(st);
        if (part)
            part->buf = eas_buffer_retain(b);
        PyObject *pair = part ? Py_BuildValue("(LN)", (long long)k, part) : NULL;
        if (!pair || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}
/* from_parts(spec, pad, shape, parts, dtype): parts are realised eager tensors in C order, one for each
 * device of this process; dtype: where it has none. */
static PyObject *from_parts(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *spec, *shape_object, *parts;
    int pad, id;
    eas_spec s;
    const char *dtype = "f32";
    int64_t shape[EAS_MAX_RANK];
    eas_dtype dt;
    if (!PyArg_ParseTuple(args, "OpO!O!|z:from_parts", &spec, &pad, &PyTuple_Type, &shape_object,
                          &PyList_Type, &parts, &dtype) ||
        !read_sharding(spec, &id, &s))
        return NULL;
    if (!eas_dtype_parse(dtype ? dtype : "f32", &dt))
        return py_fail(PyExc_TypeError, "there is no dtype \"%s\"", dtype), NULL;
    int rank = (int)PyTuple_GET_SIZE(shape_object);
    Py_ssize_t n = PyList_GET_SIZE(parts);
    if (rank > EAS_MAX_RANK)
        return py_fail(PyExc_ValueError, "from_local: %zd parts of %d dims", n, rank), NULL;
    for (int i = 0; i < rank; i++)
        shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape_object, i));
    eas_buffer **bufs = PyErr_Occurred() ? NULL : PyMem_New(eas_buffer *, (size_t)n + 1);
    eas_node *out = NULL;
    int ok = bufs != NULL;
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        eas_node *p = eager_check(PyList_GET_ITEM(parts, i)) ? eager_node(PyList_GET_ITEM(parts, i)) : NULL;
        int64_t offset, strides[EAS_MAX_RANK];
        ok = p && eager_realize(1, &p);
        bufs[i] = ok ? eas_node_buffer(p, &offset, strides) : NULL;
    }
    if (ok && n)
        dt = eas_node_dtype(eager_node(PyList_GET_ITEM(parts, 0)));
    eas_status st = ok ? eas_node_from_parts(id, &s, pad, dt, rank, shape, (int64_t)n, bufs, &out) : EAS_OK;
    if (st != EAS_OK)
        py_raise(st);
    PyMem_Free(bufs);
    return out ? eager_wrap(out) : NULL;
}
/* collectives(tensors): (mesh or None, [(name, operation, why, axes, dtype, count, times, bytes, place, per
 * trip)], text) */
static PyObject *collectives(PyObject *module, PyObject *list)
{
    (void)module;
    if (!PyList_Check(list))
        return py_fail(PyExc_TypeError, "a list of tensors is wanted"), NULL;
    int n = 0, id, count = 0;
    eas_node **nodes = PyMem_New(eas_node *, (size_t)PyList_GET_SIZE(list) + 1);
    eas_collective *all = NULL;
    char *text = NULL;
    for (Py_ssize_t i = 0; nodes && i < PyList_GET_SIZE(list); i++)
        if (eager_check(PyList_GET_ITEM(list, i)) && !eas_node_is_real(eager_node(PyList_GET_ITEM(list, i))))
            nodes[n++] = eager_node(PyList_GET_ITEM(list, i));
    eas_status st = nodes ? eas_nodes_collectives(n, nodes, &id, &all, &count) : EAS_ERR_MEMORY;
    if (st == EAS_OK)
        st = eas_collectives_text(id, all, count, &text);
    PyMem_Free(nodes);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    PyObject *rows = PyList_New(0), *mesh_object = id < 0 ? Py_NewRef(Py_None) : mesh_of_number(id);
    mesh m = {0};
    int ok = rows && mesh_object && (id < 0 || read_mesh(mesh_object, &m));
    for (int i = 0; ok && i < count; i++) {
        PyObject *axes = PyTuple_New(all[i].axes.n), *place = site_text(all[i].site);
        for (int k = 0; axes && k < all[i].axes.n; k++)
            PyTuple_SET_ITEM(axes, k, Py_NewRef(PyTuple_GET_ITEM(m.names, all[i].axes.axes[k])));
        PyObject *row = axes && place
                          ? Py_BuildValue("(sssOsLLLON)", all[i].name, all[i].operation, all[i].why, axes,
                                          eas_dtype_name(all[i].dtype), (long long)all[i].count,
                                          (long long)all[i].times, (long long)all[i].bytes, place,
                                          PyBool_FromLong(all[i].per_trip))
                          : NULL;
        ok = row && PyList_Append(rows, row) == 0;
        Py_XDECREF(row);
        Py_XDECREF(axes);
        Py_XDECREF(place);
    }
    PyObject *r = ok ? Py_BuildValue("(OOs)", mesh_object, rows, text) : NULL;
    Py_XDECREF(rows);
    Py_XDECREF(mesh_object);
    Py_XDECREF(m.names);
    eas_memory_free(all);
    eas_memory_free(text);
    return r;
}
static PyObject *comm_stats(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    eas_comm_stats s = eas_comm_stats_get();
    return Py_BuildValue("{sKsKsKsKsKsKsK}", "bytes", (unsigned long long)s.bytes, "calls",
                         (unsigned long long)s.calls, "all_gather", (unsigned long long)s.all_gather,
                         "all_reduce", (unsigned long long)s.all_reduce, "reduce_scatter",
                         (unsigned long long)s.reduce_scatter, "all_to_all", (unsigned long long)s.all_to_all,
                         "ppermute", (unsigned long long)s.ppermute);
}
static PyMethodDef functions[] = {
    {"collectives", collectives, METH_O, "collectives(tensors)"},
    {"comm_stats", comm_stats, METH_NOARGS, "comm_stats()"},
    {"mesh_register", mesh_register, METH_VARARGS, "mesh_register(name, sizes, axis_names, fast, first)"},
    {"mesh_devices", mesh_devices, METH_O, "mesh_devices(mesh)"},
    {"shard_node", shard_node, METH_VARARGS, "shard_node(tensor, spec, pad)"},
    {"local_parts", local_parts, METH_O, "local_parts(tensor)"},
    {"from_parts", from_parts, METH_VARARGS, "from_parts(spec, pad, shape, parts, dtype)"},
    {"shard_propagate", shard_propagate, METH_VARARGS,
     "shard_propagate(factors, tensors, specs, mesh, aggressive)"},
    {"shard_follow", py_follow, METH_VARARGS, "shard_follow(out, inputs)"},
    {NULL, NULL, 0, NULL},
};
int eager_shard_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
