/* eager_loop.c: loops and branches: placeholders to trace a body with, and the recording of what it gave. */
#include "py.h"

/* ---- lists of tensors ---- */
typedef struct nodes {
    Py_ssize_t n;
    eas_node **at; /* borrowed from the list */
} nodes;

static int nodes_of(PyObject *list, nodes *out)
{
    out->n = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
    out->at = out->n < 0 ? NULL : PyMem_New(eas_node *, (size_t)out->n + 1);
    if (!out->at)
        return out->n < 0
                 ? (py_fail(PyExc_TypeError, "a list of tensors is wanted, got %s", Py_TYPE(list)->tp_name),
                    0)
                 : (PyErr_NoMemory(), 0);
    for (Py_ssize_t i = 0; i < out->n; i++) {
        PyObject *o = PyList_GET_ITEM(list, i);
        if (!eager_check(o))
            return py_fail(PyExc_TypeError, "a tensor is wanted, got %s", Py_TYPE(o)->tp_name), 0;
        out->at[i] = eager_node(o);
    }
    return 1;
}
PyObject *eager_results(eas_status st, Py_ssize_t n, eas_node *const *results)
{
    PyObject *list = st == EAS_OK ? PyList_New(n) : py_raise(st);
    for (Py_ssize_t i = 0; st == EAS_OK && i < n; i++) {
        PyObject *t = eager_result(EAS_OK, results[i]);
        if (list && t)
            PyList_SET_ITEM(list, i, t);
        else {
            Py_XDECREF(t);
            Py_CLEAR(list);
        }
    }
    return list;
}

/* ---- tracing ---- */
/* loop_inputs(tensors, elements): a placeholder like each; elements: like an element along the first axis */
static PyObject *loop_inputs(PyObject *m, PyObject *args)
{
    PyObject *list, *out = NULL;
    int elements;
    nodes in = {0};
    (void)m;
    if (!PyArg_ParseTuple(args, "Op:loop_inputs", &list, &elements))
        return NULL;
    if (nodes_of(list, &in))
        out = PyList_New(in.n);
    for (Py_ssize_t i = 0; out && i < in.n; i++) {
        eas_node *x = in.at[i], *n = NULL;
        int bd = eas_node_batch_dims(x), rank = 0;
        eas_dim shape[64];
        for (int k = 0; k < eas_node_rank(x); k++)
            if (!elements || k != bd)
                shape[rank++] = eas_node_shape(x)[k];
        eas_status st = eas_node_input(-1, eas_node_dtype(x), rank, shape, bd, eas_node_device(x), &n);
        PyObject *t = st == EAS_OK ? eager_wrap(n) : py_raise(st);
        if (t)
            PyList_SET_ITEM(out, i, t);
        else
            Py_CLEAR(out);
    }
    PyMem_Free(in.at);
    return out;
}
/* loop_trace(random, fn, *args): fn(*args), where reading data of placeholders is an error; random: the
 * loop's LoopRandom */
static PyObject *loop_trace(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    random_scope *random = nargs < 2 ? NULL : random_of_loop(args[0]);
    if (!random)
        return py_fail(PyExc_TypeError, "loop_trace(random, fn, *args)");
    eager_tracing++;
    random_push(random);
    PyObject *r = PyObject_Vectorcall(args[1], args + 2, (size_t)nargs - 2, NULL);
    random_pop(random);
    eager_tracing--;
    return r;
}
/* like_lanes(x, like): x in every lane of vmap that `like` has; x itself if it is there already */
static PyObject *like_lanes(PyObject *m, PyObject *args)
{
    PyObject *x, *like;
    int64_t attr[64];
    (void)m;
    if (!PyArg_ParseTuple(args, "O!O!:like_lanes", G.eager, &x, G.eager, &like))
        return NULL;
    eas_node *n = eas_node_retain(eager_node(x)), *l = eager_node(like);
    int lanes = eas_node_batch_dims(l), bd = eas_node_batch_dims(n);
    attr[0] = lanes;
    if (bd < lanes)
        n = eager_do("lift_batch_dims", 1, &n, 1, attr);
    bd = n ? eas_node_batch_dims(n) : 0;
    bool wider = false;
    attr[0] = bd;
    for (int i = 0; i < bd; i++) { /* the oldest come last in both */
        eas_dim own = eas_node_shape(n)[i], other = i < bd - lanes ? 1 : eas_node_shape(l)[i - (bd - lanes)];
        attr[1 + i] = other == 1 ? own : other;
        wider |= attr[1 + i] != own;
    }
    if (n && wider)
        n = eager_do("broadcast_batch_dims", 1, &n, 1 + bd, attr);
    if (n != eager_node(x))
        return n ? eager_wrap(n) : NULL;
    eas_node_release(n);
    return Py_NewRef(x);
}

static PyObject *is_tracing(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    return PyBool_FromLong(eager_tracing > 0);
}

/* ---- recording ---- */
/* loop_record(init, state, next, condition, length, scanned, element, stacked, reverse): the results */
static PyObject *loop_record(PyObject *m, PyObject *args)
{
    PyObject *lists[6], *condition, *length, *r = NULL;
    nodes at[6] = {{0}};
    int reverse, ok = 1;
    (void)m;
    if (!PyArg_ParseTuple(args, "OOOOOOOOp:loop_record", &lists[0], &lists[1], &lists[2], &condition, &length,
                          &lists[3], &lists[4], &lists[5], &reverse))
        return NULL;
    for (int i = 0; i < 6 && ok; i++)
        ok = nodes_of(lists[i], &at[i]);
    if (ok && (at[0].n != at[1].n || at[0].n != at[2].n || at[3].n != at[4].n ||
               (condition != Py_None && !eager_check(condition))))
        ok = (py_fail(PyExc_TypeError,
                      "loop_record: lists of one length are wanted, and a tensor or None for the condition"),
              0);
    eas_loop l = {.ncarried = (int)at[0].n,
                  .init = at[0].at,
                  .state = at[1].at,
                  .next = at[2].at,
                  .length = EAS_DIM_NONE,
                  .nscanned = (int)at[3].n,
                  .scanned = at[3].at,
                  .element = at[4].at,
                  .nstacked = (int)at[5].n,
                  .stacked = at[5].at,
                  .reverse = reverse};
    if (ok && condition != Py_None)
        l.condition = eager_node(condition);
    if (ok && length != Py_None)
        ok = dim_of(length, "scan: length", &l.length);
    eas_node **results = ok ? PyMem_New(eas_node *, (size_t)(at[0].n + at[5].n) + 1) : NULL;
    if (results) {
        eas_site_set(site_here());
        eas_status st = eas_node_loop(&l, results);
        r = eager_results(st, at[0].n + at[5].n, results);
    } else if (ok)
        PyErr_NoMemory();
    PyMem_Free(results);
    for (int i = 0; i < 6; i++)
        PyMem_Free(at[i].at);
    return r;
}
static PyObject *branch_begin(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    eas_branch_begin();
    Py_RETURN_NONE;
}
static PyObject *branch_abort(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    eas_branch_abort();
    Py_RETURN_NONE;
}
/* branch_end(pred, yes, no): the results. The branch is closed, whatever happens. */
static PyObject *branch_end(PyObject *m, PyObject *args)
{
    PyObject *pred, *yes, *no, *r = NULL;
    nodes a = {0}, b = {0};
    (void)m;
    bool ended = false;
    if (PyArg_ParseTuple(args, "O!OO:branch_end", G.eager, &pred, &yes, &no) && nodes_of(yes, &a) &&
        nodes_of(no, &b)) {
        eas_node **results = a.n == b.n ? PyMem_New(eas_node *, (size_t)a.n + 1) : NULL;
        if (results) {
            eas_site_set(site_here());
            ended = true;
            r = eager_results(eas_branch_end(eager_node(pred), (int)a.n, a.at, b.at, results), a.n, results);
        } else
            py_fail(PyExc_TypeError, "branch_end: lists of one length are wanted");
        PyMem_Free(results);
    }
    if (!ended)
        eas_branch_abort();
    PyMem_Free(a.at);
    PyMem_Free(b.at);
    return r;
}
static PyMethodDef functions[] = {
    {"is_tracing", is_tracing, METH_NOARGS, "is_tracing(): is a function being traced?"},
    {"loop_inputs", loop_inputs, METH_VARARGS, "loop_inputs(tensors, elements)"},
    {"loop_trace", (PyCFunction)(void (*)(void))loop_trace, METH_FASTCALL, "loop_trace(random, fn, *args)"},
    {"like_lanes", like_lanes, METH_VARARGS, "like_lanes(x, like)"},
    {"loop_record", loop_record, METH_VARARGS,
     "loop_record(init, state, next, condition, length, scanned, element, stacked, reverse)"},
    {"branch_begin", branch_begin, METH_NOARGS, "branch_begin()"},
    {"branch_abort", branch_abort, METH_NOARGS, "branch_abort()"},
    {"branch_end", branch_end, METH_VARARGS, "branch_end(pred, yes, no)"},
    {NULL, NULL, 0, NULL},
};
int eager_loop_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
