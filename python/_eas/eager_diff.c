/* eager_diff.c: derivatives: variables, both modes over lists of tensors, and rules of users. The transforms
 * themselves (eager/transforms) put trees around these. */
#include "py.h"

/* ---- lists: tensors, or None ---- */
typedef struct nodes {
    int n;
    eas_node **at; /* borrowed; NULL for None */
} nodes;

static int nodes_of(PyObject *list, nodes *out)
{
    *out = (nodes){0};
    if (!PyList_Check(list))
        return py_fail(PyExc_TypeError, "a list of tensors is wanted, got %s", Py_TYPE(list)->tp_name), 0;
    out->n = (int)PyList_GET_SIZE(list);
    if (!(out->at = PyMem_Calloc((size_t)out->n + 1, sizeof *out->at)))
        return PyErr_NoMemory(), 0;
    for (int i = 0; i < out->n; i++) {
        PyObject *o = PyList_GET_ITEM(list, i);
        if (o != Py_None && !eager_check(o))
            return py_fail(PyExc_TypeError, "a tensor is wanted, got %s", Py_TYPE(o)->tp_name), 0;
        out->at[i] = o == Py_None ? NULL : eager_node(o);
    }
    return 1;
}
static PyObject *list_of(int n, eas_node **nodes) /* takes them */
{
    PyObject *list = PyList_New(n);
    for (int i = 0; i < n; i++) {
        if (nodes[i] && list && eager_nans && !eager_no_nan_below(nodes[i]))
            Py_CLEAR(list);
        PyObject *t = !nodes[i] ? Py_NewRef(Py_None)
                    : list      ? eager_wrap(nodes[i])
                                : (eas_node_release(nodes[i]), NULL);
        if (list && t)
            PyList_SET_ITEM(list, i, t);
        else {
            Py_XDECREF(t);
            Py_CLEAR(list);
        }
    }
    return list;
}

/* ---- variables ---- */
static _Thread_local int tapes; /* transforms that are running a function of the user's */

typedef eas_status (*renaming)(eas_node *x, eas_node **out);
static PyObject *renamed(PyObject *list, renaming f)
{
    nodes in;
    PyObject *r = NULL;
    if (nodes_of(list, &in)) {
        eas_node **out = PyMem_Calloc((size_t)in.n + 1, sizeof *out);
        eas_status st = EAS_OK;
        int done = 0;
        for (; out && done < in.n && st == EAS_OK; done += st == EAS_OK)
            if (in.at[done])
                st = f(in.at[done], &out[done]);
        while (st != EAS_OK && done-- > 0)
            eas_node_release(out[done]);
        r = !out ? PyErr_NoMemory() : st != EAS_OK ? py_raise(st) : list_of(in.n, out);
        PyMem_Free(out);
    }
    PyMem_Free(in.at);
    return r;
}
static PyObject *diff_variables(PyObject *m, PyObject *list)
{
    (void)m;
    return renamed(list, eas_node_variable);
}
/* Outside of all transforms results hold nothing but their data; inside, they are part of what is around. */
static PyObject *diff_results(PyObject *m, PyObject *list)
{
    (void)m;
    return tapes ? Py_NewRef(list) : renamed(list, eas_node_untaped);
}
static _Thread_local unsigned derivatives; /* how many were begun */
unsigned eager_derivatives(void) { return derivatives; }
/* diff_run(fn, args): fn(*args), as part of a derivative */
static PyObject *diff_run(PyObject *m, PyObject *args)
{
    PyObject *fn, *a;
    (void)m;
    if (!PyArg_ParseTuple(args, "OO!:diff_run", &fn, &PyTuple_Type, &a))
        return NULL;
    derivatives++;
    tapes++;
    PyObject *r = PyObject_Call(fn, a, NULL);
    tapes--;
    return r;
}
static PyObject *diff_depth(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    return PyLong_FromLong(tapes);
}
static PyObject *grad_enable(PyObject *m, PyObject *on)
{
    (void)m;
    int yes = PyObject_IsTrue(on);
    return yes < 0 ? NULL : PyBool_FromLong(eas_grad_set_enabled(yes));
}

/* ---- the two modes ---- */
/* diff_vjp(variables, outs, cotangents, lanes): gradients, None where nothing depends on it */
static PyObject *diff_vjp(PyObject *m, PyObject *args)
{
    PyObject *v, *o, *c, *r = NULL;
    nodes in = {0}, outs = {0}, cts = {0};
    int lanes;
    (void)m;
    if (!PyArg_ParseTuple(args, "OOOi:diff_vjp", &v, &o, &c, &lanes))
        return NULL;
    if (nodes_of(v, &in) && nodes_of(o, &outs) && nodes_of(c, &cts)) {
        eas_node **grads = PyMem_Calloc((size_t)in.n + 1, sizeof *grads);
        if (grads && outs.n == cts.n) {
            tapes++;
            eas_status st = eas_nodes_vjp(in.n, in.at, outs.n, outs.at, cts.at, lanes, grads);
            tapes--;
            r = st != EAS_OK ? py_raise(st) : list_of(in.n, grads);
        } else
            py_fail(PyExc_ValueError, "diff_vjp: %d cotangents for %d results", cts.n, outs.n);
        PyMem_Free(grads);
    }
    PyMem_Free(in.at), PyMem_Free(outs.at), PyMem_Free(cts.at);
    return r;
}
static PyObject *
diff_jvp(PyObject *m,
         /* diff_jvp(variables, tangents, outs, lanes): tangents of outs, None where they depend on nothing */
         PyObject *args)
{
    PyObject *v, *o, *c, *r = NULL;
    nodes in = {0}, outs = {0}, ts = {0};
    int lanes;
    (void)m;
    if (!PyArg_ParseTuple(args, "OOOi:diff_jvp", &v, &c, &o, &lanes))
        return NULL;
    if (nodes_of(v, &in) && nodes_of(o, &outs) && nodes_of(c, &ts)) {
        eas_node **out = PyMem_Calloc((size_t)outs.n + 1, sizeof *out);
        if (out && in.n == ts.n) {
            tapes++;
            eas_status st = eas_nodes_jvp(in.n, in.at, ts.at, outs.n, outs.at, lanes, out);
            tapes--;
            r = st != EAS_OK ? py_raise(st) : list_of(outs.n, out);
        } else
            py_fail(PyExc_ValueError, "diff_jvp: %d tangents for %d variables", ts.n, in.n);
        PyMem_Free(out);
    }
    PyMem_Free(in.at), PyMem_Free(outs.at), PyMem_Free(ts.at);
    return r;
}

/* ---- pullbacks ---- */
static void pullback_free(PyObject *capsule)
{
    eas_pullback_release(PyCapsule_GetPointer(capsule, "eas.pullback"));
}

/* diff_pullback(variables, outs, results, lanes): what diff_pull takes */
static PyObject *diff_pullback(PyObject *m, PyObject *args)
{
    PyObject *v, *o, *named, *r = NULL;
    nodes in = {0}, outs = {0}, results = {0};
    int lanes;
    (void)m;
    if (!PyArg_ParseTuple(args, "OOOi:diff_pullback", &v, &o, &named, &lanes))
        return NULL;
    if (nodes_of(v, &in) && nodes_of(o, &outs) && nodes_of(named, &results)) {
        eas_pullback *p = NULL;
        eas_status st = eas_pullback_new(in.n, in.at, outs.n, outs.at, lanes, &p);
        for (int i = 0; i < results.n && st == EAS_OK; i++)
            if (results.at[i])
                st = eas_pullback_hold(p, results.at[i]);
        r = st != EAS_OK ? py_raise(st) : PyCapsule_New(p, "eas.pullback", pullback_free);
        if (!r)
            eas_pullback_release(p);
    }
    PyMem_Free(in.at), PyMem_Free(outs.at), PyMem_Free(results.at);
    return r;
}
/* diff_pull(pullback, cotangents, number of variables) */
static PyObject *diff_pull(PyObject *m, PyObject *args)
{
    PyObject *capsule, *c, *r = NULL;
    nodes cts = {0};
    int n;
    (void)m;
    if (!PyArg_ParseTuple(args, "OOi:diff_pull", &capsule, &c, &n))
        return NULL;
    eas_pullback *p = PyCapsule_GetPointer(capsule, "eas.pullback");
    if (p && nodes_of(c, &cts)) {
        eas_node **grads = PyMem_Calloc((size_t)n + 1, sizeof *grads);
        if (grads) {
            tapes++;
            eas_status st = eas_pullback_call(p, cts.at, grads);
            tapes--;
            r = st != EAS_OK ? py_raise(st) : list_of(n, grads);
        } else
            PyErr_NoMemory();
        PyMem_Free(grads);
    }
    PyMem_Free(cts.at);
    return r;
}

/* ---- rules of users: callables of two lists, that give a list ---- */
typedef struct Rules {
    PyObject *vjp, *jvp; /* or NULL */
    int nout;
} Rules;

static void rules_drop(void *ctx)
{
    Rules *r = ctx;
    if (r->vjp)
        later_decref(r->vjp);
    if (r->jvp)
        later_decref(r->jvp);
    PyMem_RawFree(r);
}
static PyObject *list_from(int n, eas_node *const *nodes)
{
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *t = nodes[i] ? eager_wrap(eas_node_retain(nodes[i])) : Py_NewRef(Py_None);
        if (t)
            PyList_SET_ITEM(list, i, t);
        else
            Py_CLEAR(list);
    }
    return list;
}
/* An exception of a rule stays set; py_raise lets it through. */
static eas_status ask(PyObject *rule, int nin, eas_node *const *in, int nt, eas_node *const *t, int nout,
                      eas_node **out)
{
    PyObject *a = list_from(nin, in), *b = a ? list_from(nt, t) : NULL,
             *r = b ? PyObject_CallFunctionObjArgs(rule, a, b, NULL) : NULL;
    nodes got = {0};
    int ok = r && nodes_of(r, &got);
    if (ok && got.n != nout) {
        py_fail(PyExc_TypeError, "a rule gave %d tensors where %d are wanted", got.n, nout);
        ok = 0;
    }
    for (int i = 0; ok && i < nout; i++)
        out[i] = got.at[i] ? eas_node_retain(got.at[i]) : NULL;
    PyMem_Free(got.at);
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(r);
    return ok ? EAS_OK : EAS_ERR_RUNTIME;
}
static eas_status ask_vjp(void *ctx, int nin, eas_node *const *in, eas_node *const *cts, eas_node **grads)
{
    Rules *r = ctx;
    return ask(r->vjp, nin, in, r->nout, cts, nin, grads);
}
static eas_status ask_jvp(void *ctx, int nin, eas_node *const *in, eas_node *const *ts, eas_node **out)
{
    Rules *r = ctx;
    return ask(r->jvp, nin, in, nin, ts, r->nout, out);
}
/* diff_custom(results, inputs, vjp, jvp): the results as functions of the inputs, with these rules.
 * vjp(inputs, cotangents) gives a list of gradients, jvp(inputs, tangents) one of tangents of the results;
 * None stands for zero. */
static PyObject *diff_custom(PyObject *m, PyObject *args)
{
    PyObject *o, *i, *vjp, *jvp, *r = NULL;
    nodes outs = {0}, in = {0};
    (void)m;
    if (!PyArg_ParseTuple(args, "OOOO:diff_custom", &o, &i, &vjp, &jvp))
        return NULL;
    if (nodes_of(o, &outs) && nodes_of(i, &in)) {
        Rules *b = PyMem_RawCalloc(1, sizeof *b);
        eas_node **made = PyMem_Calloc((size_t)outs.n + 1, sizeof *made);
        eas_status st = EAS_OK;
        if (b && made) {
            *b = (Rules){vjp == Py_None ? NULL : Py_NewRef(vjp), jvp == Py_None ? NULL : Py_NewRef(jvp),
                         outs.n};
            eas_site_set(site_here());
            st = eas_nodes_custom(outs.n, outs.at, in.n, in.at, b->vjp ? ask_vjp : NULL,
                                  b->jvp ? ask_jvp : NULL, b, rules_drop, made);
            if (st != EAS_OK)
                rules_drop(b);
            for (int k = 0; st == EAS_OK && k < outs.n && !PyErr_Occurred(); k++) {
                eas_node *const *all;
                /* its shardings follow those of the result that it stands for and of the inputs */
                int n = eas_node_inputs(made[k], &all);
                bool any = false;
                for (int j = 0; j < n; j++)
                    any |= eas_node_object(all[j]) != NULL;
                if (any)
                    shard_follow(made[k], n, all);
            }
            r = st != EAS_OK ? py_raise(st) : list_of(outs.n, made);
            if (PyErr_Occurred())
                Py_CLEAR(r);
        } else
            PyErr_NoMemory();
        PyMem_Free(made);
    }
    PyMem_Free(in.at), PyMem_Free(outs.at);
    return r;
}
static PyObject *diff_checkpoint(PyObject *m,
                                 /* diff_checkpoint(results, inputs): the results, computed again from the
                                    inputs for a reverse derivative */
                                 PyObject *args)
{
    PyObject *o, *i, *r = NULL;
    nodes outs = {0}, in = {0};
    (void)m;
    if (!PyArg_ParseTuple(args, "OO:diff_checkpoint", &o, &i))
        return NULL;
    if (nodes_of(o, &outs) && nodes_of(i, &in)) {
        eas_node **made = PyMem_Calloc((size_t)outs.n + 1, sizeof *made);
        eas_status st = made ? eas_nodes_checkpoint(outs.n, outs.at, in.n, in.at, made) : EAS_OK;
        r = !made ? PyErr_NoMemory() : st != EAS_OK ? py_raise(st) : list_of(outs.n, made);
        PyMem_Free(made);
    }
    PyMem_Free(in.at), PyMem_Free(outs.at);
    return r;
}
static PyObject *diff_taped(PyObject *m, PyObject *t)
{
    (void)m;
    return PyBool_FromLong(eager_check(t) &&
                           (eas_node_is_taped(eager_node(t)) || eas_node_is_traced(eager_node(t))));
}

/* ---- torch's way ---- */
/* the TensorImpls of what requires a gradient, and of which t was made */
static PyObject *diff_leaves(PyObject *m, PyObject *t)
{
    eas_node **found = NULL;
    int n = 0;
    (void)m;
    if (!eager_check(t))
        return py_fail(PyExc_TypeError, "diff_leaves: a tensor is wanted");
    eas_status st = eas_node_leaves(eager_node(t), &found, &n);
    PyObject *list = st == EAS_OK ? PyList_New(n) : py_raise(st);
    for (int i = 0; list && i < n; i++) {
        PyObject *impl = impl_of(found[i]);
        if (impl)
            PyList_SET_ITEM(list, i, impl);
        else
            Py_CLEAR(list);
    }
    eas_memory_free(found);
    return list;
}
static PyObject *diff_forget(PyObject *m, PyObject *t)
{
    (void)m;
    eas_status st = eager_check(t) ? eas_node_forget(eager_node(t)) : EAS_OK;
    later_check();
    return st == EAS_OK ? Py_NewRef(Py_None) : py_raise(st);
}

static PyMethodDef functions[] = {
    {"diff_leaves", diff_leaves, METH_O,
     "diff_leaves(tensor): TensorImpls of what it was made of that requires a gradient"},
    {"diff_forget", diff_forget, METH_O, "diff_forget(tensor): what it was made of is not kept any more"},
    {"diff_variables", diff_variables, METH_O,
     "diff_variables(tensors): variables of a derivative in place of these"},
    {"diff_results", diff_results, METH_O,
     "diff_results(tensors): the same, without what they were made of if this is outside of all transforms"},
    {"diff_run", diff_run, METH_VARARGS, "diff_run(fn, args): fn(*args), as part of a derivative"},
    {"diff_depth", diff_depth, METH_NOARGS, "diff_depth(): how many derivatives are being taken around this"},
    {"grad_enable", grad_enable, METH_O,
     "grad_enable(on): whether what is recorded can be differentiated; what it was before"},
    {"diff_vjp", diff_vjp, METH_VARARGS, "diff_vjp(variables, outs, cotangents, lanes)"},
    {"diff_pullback", diff_pullback, METH_VARARGS,
     "diff_pullback(variables, outs, results, lanes): for diff_pull; computing results computes what it needs"},
    {"diff_pull", diff_pull, METH_VARARGS,
     "diff_pull(pullback, cotangents, number of variables): as diff_vjp"},
    {"diff_jvp", diff_jvp, METH_VARARGS, "diff_jvp(variables, tangents, outs, lanes)"},
    {"diff_custom", diff_custom, METH_VARARGS, "diff_custom(results, inputs, vjp, jvp)"},
    {"diff_checkpoint", diff_checkpoint, METH_VARARGS, "diff_checkpoint(results, inputs)"},
    {"diff_taped", diff_taped, METH_O, "diff_taped(tensor): can derivatives pass through it?"},
    {NULL, NULL, 0, NULL},
};
int eager_diff_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
