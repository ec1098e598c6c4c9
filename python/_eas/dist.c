/* dist.c: the ranks of a job: eas_dist_* for eager.distributed, which makes arrays of what goes in and out.
 */
#include "py.h"

static PyObject *dist_open(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    int rank, size;
    eas_status st;
    Py_BEGIN_ALLOW_THREADS st = eas_dist_place(&rank, &size);
    Py_END_ALLOW_THREADS return st ? py_raise(st) : Py_BuildValue("(iis)", rank, size, eas_dist_engine());
}

static PyObject *dist_is_open(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    return PyBool_FromLong(eas_dist_is_open());
}

static PyObject *dist_is_job(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    return PyBool_FromLong(eas_dist_is_job());
}

static const char *const ops[] = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all", "ppermute",
                                  "broadcast",  "gather",     "scatter",        "barrier"};
static const char *const reductions[] = {"sum", "prod", "max", "min", "and", "or"};

static int find(const char *what, const char *name, const char *const *all, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, all[i]))
            return i;
    return py_fail(PyExc_ValueError, "there is no %s \"%s\"", what, name), -1;
}

enum { FEW = 64 };

/* Members of a tuple of integers; *n is -1 with an exception. NULL and 0 for None. */
static void read_numbers(PyObject *o, int64_t *out, int *n)
{
    *n = 0;
    if (o == Py_None)
        return;
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) > FEW) {
        *n = (py_fail(PyExc_TypeError, "a tuple of at most %d integers, got %R", FEW, o), -1);
        return;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(o, i));
        if (PyErr_Occurred()) {
            *n = -1;
            return;
        }
    }
    *n = (int)PyTuple_GET_SIZE(o);
}

static PyObject *ranks_too(const eas_dist_call *given, PyObject *ranks)
{
    eas_dist_call k = *given;
    int *all = NULL;
    if (ranks != Py_None) {
        Py_ssize_t n = PyTuple_Check(ranks) ? PyTuple_GET_SIZE(ranks) : -1;
        all = n > 0 ? PyMem_Malloc(sizeof *all * (size_t)n) : NULL;
        if (!all)
            return n > 0 ? PyErr_NoMemory()
                         : py_fail(PyExc_TypeError, "ranks: a tuple of ranks, got %R", ranks);
        for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
            all[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(ranks, i));
        k.ranks = all, k.nranks = (int)n;
    }
    eas_status st = EAS_OK;
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS st = eas_dist_run(&k);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(all);
    if (PyErr_Occurred())
        return NULL;
    return st ? py_raise(st) : Py_NewRef(Py_None);
}

static PyObject *dist_run(PyObject *m, PyObject *args)
{
    (void)m;
    const char *op, *reduction, *dtype, *site;
    PyObject *send, *recv, *ranks, *shape;
    eas_dist_call k = {.size = sizeof k};
    long long count;
    if (!PyArg_ParseTuple(args, "sssLOOiiiOzOp", &op, &reduction, &dtype, &count, &send, &recv, &k.root,
                          &k.to, &k.from, &ranks, &site, &shape, &k.fast))
        return NULL;
    int o = find("collective", op, ops, sizeof ops / sizeof *ops),
        r = find("reduction", reduction, reductions, sizeof reductions / sizeof *reductions), nshape;
    int64_t sizes[FEW];
    read_numbers(shape, sizes, &nshape);
    if (o < 0 || r < 0 || nshape < 0)
        return NULL;
    if (!eas_dtype_parse(dtype, &k.dtype))
        return py_fail(PyExc_TypeError, "there is no dtype \"%s\"", dtype);
    k.op = (eas_dist_op)o, k.reduction = (eas_dist_reduction)r, k.count = count, k.site = site;
    k.rank = nshape, k.shape = shape == Py_None ? NULL : sizes;
    Py_buffer in = {0}, out = {0};
    if ((send != Py_None && PyObject_GetBuffer(send, &in, PyBUF_SIMPLE) < 0) ||
        (recv != Py_None && PyObject_GetBuffer(recv, &out, PyBUF_WRITABLE) < 0)) {
        PyBuffer_Release(&in);
        return NULL;
    }
    k.send = in.buf, k.recv = out.buf;
    PyObject *result = ranks_too(&k, ranks);
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    return result;
}

static PyObject *dist_abort(PyObject *m, PyObject *why)
{
    (void)m;
    const char *text = PyUnicode_AsUTF8(why);
    if (!text)
        return NULL;
    Py_BEGIN_ALLOW_THREADS eas_dist_abort(text);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *dist_report(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    const char *text = eas_dist_report();
    return text ? PyUnicode_FromString(text) : Py_NewRef(Py_None);
}

static PyObject *dist_finalize(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    eas_status st;
    Py_BEGIN_ALLOW_THREADS st = eas_dist_finalize();
    Py_END_ALLOW_THREADS return st ? py_raise(st) : Py_NewRef(Py_None);
}

static PyObject *dist_bytes(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    PyObject *all = PyDict_New();
    for (int i = 0; all && i < EAS_DIST_NOPS; i++) {
        uint64_t bytes, calls, wire;
        eas_dist_bytes((eas_dist_op)i, &bytes, &calls, &wire);
        PyObject *t = Py_BuildValue("(KKK)", (unsigned long long)bytes, (unsigned long long)calls,
                                    (unsigned long long)wire);
        if (!t || PyDict_SetItemString(all, ops[i], t) < 0)
            Py_CLEAR(all);
        Py_XDECREF(t);
    }
    return all;
}

static PyMethodDef functions[] = {
    {"dist_open", dist_open, METH_NOARGS, "dist_open(): (rank, size, engine)"},
    {"dist_is_open", dist_is_open, METH_NOARGS, "dist_is_open()"},
    {"dist_is_job", dist_is_job, METH_NOARGS, "dist_is_job(): is this one of several ranks?"},
    {"dist_run", dist_run, METH_VARARGS,
     "dist_run(op, reduction, dtype, count, send, recv, root, to, from, ranks, site, shape, fast): a collective between buffers"},
    {"dist_abort", dist_abort, METH_O, "dist_abort(why): this rank fails, and the others with it"},
    {"dist_report", dist_report, METH_NOARGS, "dist_report(): what ended the job, or None"},
    {"dist_finalize", dist_finalize, METH_NOARGS, "dist_finalize(): waits until all ranks leave"},
    {"dist_bytes", dist_bytes, METH_NOARGS,
     "dist_bytes(): {op: (bytes, calls, bytes counted where they were sent)}"},
    {NULL, NULL, 0, NULL},
};

int dist_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
