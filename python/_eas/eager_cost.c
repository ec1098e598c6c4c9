/* eager_cost.c: predictions for meshes of devices, and layouts that are chosen by them. */
#include "py.h"

#include <string.h>

/* ---- placeholders ---- */
/* abstract_tensor(index, shape, dtype, spec or None) */
static PyObject *abstract_tensor(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *shape_object, *dtype_object, *spec;
    int index;
    eas_dtype dt;
    eas_dim shape[EAS_MAX_RANK];
    eas_node *n = NULL;
    if (!PyArg_ParseTuple(args, "iO!OO:abstract_tensor", &index, &PyTuple_Type, &shape_object, &dtype_object,
                          &spec) ||
        !eager_dtype(dtype_object, "abstract", &dt))
        return NULL;
    int rank = (int)PyTuple_GET_SIZE(shape_object);
    if (rank > EAS_MAX_RANK)
        return py_fail(PyExc_ValueError, "abstract: a tensor has at most %d dims, got %d", EAS_MAX_RANK,
                       rank),
               NULL;
    for (int i = 0; i < rank; i++) {
        shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape_object, i));
        if (PyErr_Occurred())
            return NULL;
        if (shape[i] < 0)
            return py_fail(PyExc_ValueError, "abstract: sizes are not negative, got %lld",
                           (long long)shape[i]),
                   NULL;
    }
    if (spec != Py_None)
        n = shard_input(index, dt, rank, shape, 0, NULL, spec);
    else {
        eas_status st = eas_node_input(index, dt, rank, shape, 0, NULL, &n);
        if (st != EAS_OK)
            return py_raise(st), NULL;
    }
    if (n && spec != Py_None && !node_set_sharding(n, spec)) {
        eas_node_release(n);
        n = NULL;
    }
    return n ? eager_wrap(n) : NULL;
}

/* ---- arguments ---- */
static eas_node **read_nodes(PyObject *list, int *count)
{
    Py_ssize_t n = PyList_GET_SIZE(list);
    eas_node **nodes = PyMem_New(eas_node *, (size_t)n + 1);
    *count = 0;
    if (!nodes)
        return PyErr_NoMemory(), NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!eager_check(PyList_GET_ITEM(list, i))) {
            PyMem_Free(nodes);
            return py_fail(PyExc_TypeError, "tensors are wanted, got %s",
                           Py_TYPE(PyList_GET_ITEM(list, i))->tp_name),
                   NULL;
        }
        nodes[(*count)++] = eager_node(PyList_GET_ITEM(list, i));
    }
    return nodes;
}
/* (product_f32, product_f64, product_f16, elementwise, memory_bandwidth, launch, call, memory, cores,
 * overlap, [(latency, bandwidth), ...]) */
static int read_machine(PyObject *o, eas_machine *m)
{
    PyObject *links;
    memset(m, 0, sizeof *m);
    if (!PyArg_ParseTuple(o, "dddddddddpO!:machine", &m->product_f32, &m->product_f64, &m->product_f16,
                          &m->elementwise, &m->memory_bandwidth, &m->launch, &m->call, &m->memory, &m->cores,
                          &m->overlap, &PyList_Type, &links))
        return 0;
    for (int i = 0; i < EAS_MESH_AXES; i++) {
        Py_ssize_t k = i < PyList_GET_SIZE(links) ? i : PyList_GET_SIZE(links) - 1;
        if (k < 0)
            return py_fail(PyExc_ValueError, "a machine has a link for each axis of the mesh"), 0;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(links, k), "dd:link", &m->link[i].latency,
                              &m->link[i].bandwidth))
            return 0;
    }
    return 1;
}
static int read_mesh_number(PyObject *mesh, int *id)
{
    PyObject *number = PyObject_GetAttrString(mesh, "_number");
    *id = number ? (int)PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return !PyErr_Occurred();
}

/* ---- simulation ---- */
static const char capsule_name[] = "eas.simulation";
static void drop(PyObject *capsule) { eas_simulation_free(PyCapsule_GetPointer(capsule, capsule_name)); }
static PyObject *fields_of(const eas_simulation *s)
{
    PyObject *sent = PyDict_New(), *r = NULL;
    for (int i = 0; sent && i < 5; i++) {
        PyObject *row = Py_BuildValue("(LLd)", (long long)s->collective[i].calls,
                                      (long long)s->collective[i].bytes, s->collective[i].seconds);
        if (!row || PyDict_SetItemString(sent, s->collective[i].name, row) < 0)
            Py_CLEAR(sent);
        Py_XDECREF(row);
    }
    if (sent)
        r = Py_BuildValue("{sdsdsdsdsLsLsLsLsO}", "time", s->seconds, "compute", s->compute, "communication",
                          s->communication, "flops", s->flops, "memory", (long long)s->memory, "arguments",
                          (long long)s->arguments, "results", (long long)s->results, "kernels",
                          (long long)s->kernels, "collectives", sent);
    Py_XDECREF(sent);
    return r;
}
/* simulate(tensors, mesh, machine): (fields, table, handle) */
static PyObject *py_simulate(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *list, *mesh, *machine_object;
    eas_machine machine;
    int id, n;
    if (!PyArg_ParseTuple(args, "O!OO!:simulate", &PyList_Type, &list, &mesh, &PyTuple_Type,
                          &machine_object) ||
        !read_machine(machine_object, &machine) || !read_mesh_number(mesh, &id))
        return NULL;
    eas_node **nodes = read_nodes(list, &n);
    eas_simulation *s = NULL;
    char *table = NULL;
    eas_status st = EAS_OK;
    if (!nodes)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    st = eas_nodes_simulate(n, nodes, id, &machine, &s);
    Py_END_ALLOW_THREADS;
    PyMem_Free(nodes);
    if (st == EAS_OK)
        st = eas_simulation_table(s, &table);
    if (st != EAS_OK) {
        eas_simulation_free(s);
        return py_raise(st), NULL;
    }
    PyObject *fields = fields_of(s), *handle = PyCapsule_New(s, capsule_name, drop), *r = NULL;
    if (!handle)
        eas_simulation_free(s);
    if (fields && handle)
        r = Py_BuildValue("(OsO)", fields, table, handle);
    Py_XDECREF(fields);
    Py_XDECREF(handle);
    eas_memory_free(table);
    return r;
}
static PyObject *py_trace(PyObject *module, PyObject *args) /* simulate_trace(handle, path) */
{
    (void)module;
    PyObject *handle, *path;
    if (!PyArg_ParseTuple(args, "OO&:simulate_trace", &handle, PyUnicode_FSConverter, &path))
        return NULL;
    const eas_simulation *s = PyCapsule_GetPointer(handle, capsule_name);
    eas_status st = s ? eas_simulation_trace(s, PyBytes_AS_STRING(path)) : EAS_OK;
    Py_DECREF(path);
    if (st != EAS_OK)
        py_raise(st);
    return s && st == EAS_OK ? Py_NewRef(Py_None) : NULL;
}
static PyObject *
py_events(PyObject *module,
          /* simulate_events(handle): [(name, lane, start, seconds, flops, bytes, memory), ...] */
          PyObject *handle)
{
    (void)module;
    const eas_simulation *s = PyCapsule_GetPointer(handle, capsule_name);
    PyObject *list = s ? PyList_New(s->nevents) : NULL;
    for (int i = 0; list && i < s->nevents; i++) {
        const eas_sim_event *e = &s->events[i];
        PyObject *row = Py_BuildValue("(sidddLL)", e->name, e->lane, e->start, e->seconds, e->flops,
                                      (long long)e->bytes, (long long)e->memory);
        if (row)
            PyList_SET_ITEM(list, i, row);
        else
            Py_CLEAR(list);
    }
    return list;
}

/* ---- layouts ---- */
static int read_start(PyObject *start, int n, eas_spec *out)
{
    int id;
    for (int i = 0; i < n; i++)
        if (!shard_read(PyList_GET_ITEM(start, i), &id, &out[i]))
            return 0;
    return 1;
}
/* auto_shard(results, inputs, mesh, machine, start or None): (specs, seconds) */
static PyObject *py_auto(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *outs, *ins, *mesh, *machine_object, *start, *list = NULL;
    eas_machine machine;
    int id, n, nin;
    double took[3] = {0};
    if (!PyArg_ParseTuple(args, "O!O!OO!O:auto_shard", &PyList_Type, &outs, &PyList_Type, &ins, &mesh,
                          &PyTuple_Type, &machine_object, &start) ||
        !read_machine(machine_object, &machine) || !read_mesh_number(mesh, &id))
        return NULL;
    if (start != Py_None && (!PyList_Check(start) || PyList_GET_SIZE(start) != PyList_GET_SIZE(ins)))
        return py_fail(PyExc_ValueError, "auto_shard: a layout to begin with for each input"), NULL;
    eas_node **nodes = read_nodes(outs, &n), **inputs = nodes ? read_nodes(ins, &nin) : NULL;
    eas_spec *specs = inputs ? PyMem_Calloc((size_t)nin + 1, sizeof *specs) : NULL,
             *begin = inputs ? PyMem_Calloc((size_t)nin + 1, sizeof *begin) : NULL;
    int ok = specs && begin && (start == Py_None || read_start(start, nin, begin));
    if (inputs && (!specs || !begin))
        PyErr_NoMemory();
    if (ok) {
        eas_status st;
        Py_BEGIN_ALLOW_THREADS;
        st = eas_nodes_auto_shard(n, nodes, id, &machine, nin, inputs, start == Py_None ? NULL : begin, specs,
                                  took);
        Py_END_ALLOW_THREADS;
        ok = st == EAS_OK ? 1 : (py_raise(st), 0);
    }
    if (ok)
        list = PyList_New(nin);
    for (int i = 0; list && i < nin; i++) {
        PyObject *s = shard_make(mesh, &specs[i]);
        if (s)
            PyList_SET_ITEM(list, i, s);
        else
            Py_CLEAR(list);
    }
    PyMem_Free(nodes);
    PyMem_Free(inputs);
    PyMem_Free(specs);
    PyMem_Free(begin);
    return list ? Py_BuildValue("(N(ddd))", list, took[0], took[1], took[2]) : NULL;
}
static PyObject *py_auto_inner(
    PyObject *module,
    /* auto_inner(mesh, machine or None): compiled functions made from now on choose layouts inside */
    PyObject *args)
{
    (void)module;
    PyObject *mesh, *machine_object;
    eas_machine machine;
    int id = 0;
    if (!PyArg_ParseTuple(args, "OO:auto_inner", &mesh, &machine_object) ||
        (machine_object != Py_None &&
         (!read_machine(machine_object, &machine) || !read_mesh_number(mesh, &id))))
        return NULL;
    eas_status st = eas_mesh_auto_inner(id, machine_object == Py_None ? NULL : &machine);
    return st == EAS_OK ? Py_NewRef(Py_None) : (py_raise(st), NULL);
}
static PyMethodDef functions[] = {
    {"abstract_tensor", abstract_tensor, METH_VARARGS, "abstract_tensor(index, shape, dtype, spec)"},
    {"simulate", py_simulate, METH_VARARGS, "simulate(tensors, mesh, machine)"},
    {"simulate_trace", py_trace, METH_VARARGS, "simulate_trace(handle, path)"},
    {"simulate_events", py_events, METH_O, "simulate_events(handle)"},
    {"auto_inner", py_auto_inner, METH_VARARGS, "auto_inner(mesh, machine)"},
    {"auto_shard", py_auto, METH_VARARGS, "auto_shard(results, inputs, mesh, machine, start)"},
    {NULL, NULL, 0, NULL},
};
int eager_cost_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
