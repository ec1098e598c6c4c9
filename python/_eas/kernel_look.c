/* kernel_look.c: a kernel as plain Python (_interpret), and checks of it. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* ---- as plain Python ---- */
typedef struct Interpreted {
    Kernel *k;
    PyObject *fn; /* its function, as _interpret.py has it */
    PyObject **metas;
} Interpreted;

/* The kernel's function called on the parameters of a live trace, which are its values from 1 on. */
static int run_live(void *ctx, Trace *t)
{
    Interpreted *in = ctx;
    Kernel *k = in->k;
    t->checks = true;
    PyObject *symbols = PyTuple_New(k->nrt);
    for (int i = 0; symbols && i < k->nrt; i++) {
        PyObject *name = PyTuple_GET_ITEM(k->names, k->order[i]);
        bool buffer = eas_value_is_buffer(t->b, (eas_value)i + 1);
        PyObject *o = buffer ? buffer_new(t, (eas_value)i + 1, name) : value_named(t, (eas_value)i + 1, name);
        if (!o)
            Py_CLEAR(symbols);
        else
            PyTuple_SET_ITEM(symbols, i, o);
    }
    return symbols && kernel_call_with(k, in->fn, t, symbols, in->metas) && kernel_close_body(t);
}
/* Live kernels run on memory that the host reaches. */
static int on_host(Kernel *k, Call *c)
{
    if (c->bd.has_mps)
        return py_fail(
                   PyExc_ValueError,
                   "%U: an argument is a torch tensor on mps, and this works in the host's memory: pass x.cpu()",
                   k->name),
               0;
    for (int i = 0; i < k->nrt; i++) {
        Tensor *t = (Tensor *)c->objs[i];
        if (tensor_check(c->objs[i]) && !eas_device_has_host_memory(t->device)) {
            py_fail(
                PyExc_ValueError,
                "%U: argument '%U' is on device '%s', and this works in the host's memory: move it with .to('cpu')",
                k->name, PyTuple_GET_ITEM(k->rt_names, i), eas_device_name(t->device));
            return 0;
        }
    }
    return 1;
}
/* Would the launch be refused because the programs that N gives do not cover what the kernel writes? That is
 * known of its traced form, which is made without a word, unless the body keeps things: those would be the
 * trace's. What cannot be traced is not asked. 0 with an exception. */
static int covers(Kernel *k, Call *c, const eas_launch *l)
{
    bool sized = false; /* programs may follow from a parameter called N */
    for (int i = 0; i < k->nrt; i++)
        sized |= !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(k->rt_names, i), "N");
    if (!sized || l->has_grid || l->has_nthreads || l->has_shape)
        return 1;
    PyObject *m = PyImport_ImportModule("eas._interpret"),
             *quiet = m ? PyObject_CallMethod(m, "quietly", "O", k->fn) : NULL;
    Compiled *ck = quiet && quiet != Py_None ? kernel_specialise(k, c->objs + k->nrt, c->tags) : NULL;
    PyErr_Clear();
    if (quiet && quiet != Py_None)
        Py_XDECREF(PyObject_CallNoArgs(quiet)); /* talks again */
    Py_XDECREF(quiet);
    Py_XDECREF(m);
    PyErr_Clear();
    const bool covered = !ck || eas_kernel_covers(ck->k, c->args, k->nrt, l);
    Py_XDECREF(ck);
    return covered ? 1 : (py_raise(EAS_ERR_VALUE), 0);
}
PyObject *kernel_interpret(Kernel *k, Call *c)
{
    PyObject *metas[PY_MAX_PARAMS], *dict = NULL, *fn = NULL, *r = NULL;
    eas_launch l;
    int n = 0;
    memset(&l, 0, sizeof l);
    l.size = sizeof l;
    l.print = hooks_print;
    while (n < k->nmeta && (metas[n] = kernel_meta_plain(c->objs[k->nrt + n])))
        n++;
    if (n == k->nmeta && (dict = kernel_meta_dict(k, metas)) && on_host(k, c) &&
        (!c->shape->has_options || kernel_call_options(k, c, dict, &l)) && covers(k, c, &l))
        fn = kernel_function_of(k, metas, true);
    if (fn) {
        Interpreted in = {k, fn, metas};
        const live_launch launch = {.name = k->name,
                                    .names = k->rt_names,
                                    .flags = k->flags,
                                    .tags = c->tags,
                                    .args = c->args,
                                    .n = k->nrt,
                                    .opts = &l,
                                    .tptg = c->shape->has_options ? c->o.tptg : NULL,
                                    .body = run_live,
                                    .kernel = &in};
        r = live_run(&launch);
        if (!r)
            py_tell_shape(k->rt_names, c->objs, k->nrt);
    }
    while (n--)
        Py_DECREF(metas[n]);
    Py_XDECREF(dict);
    Py_XDECREF(fn);
    return r;
}

/* ---- looked at ---- */
static int check_signals(void *ctx)
{
    (void)ctx;
    return PyErr_CheckSignals();
}
static PyObject *place_tuple(const eas_place *p)
{
    return Py_BuildValue("(zi(LLL)L)", p->file, p->line, (long long)p->program[0], (long long)p->program[1],
                         (long long)p->program[2], (long long)p->thread);
}
static PyObject *finding_tuple(const eas_report *r, int i)
{
    eas_finding f = eas_report_at(r, i);
    return Py_BuildValue("(szLLNN)", eas_finding_name(f.kind), f.arg, (long long)f.index, (long long)f.count,
                         place_tuple(&f.at[0]), place_tuple(&f.at[1]));
}
/* (text, [finding, ...]) */
static PyObject *report_tuple(const eas_report *r)
{
    char *text = NULL;
    eas_status st = eas_report_text(r, &text);
    PyObject *s = py_take_text(st, text), *list = s ? PyList_New(eas_report_count(r)) : NULL;
    for (int i = 0; list && i < eas_report_count(r); i++) {
        PyObject *f = finding_tuple(r, i);
        if (!f)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, f);
    }
    PyObject *out = list ? PyTuple_Pack(2, s, list) : NULL;
    Py_XDECREF(s);
    Py_XDECREF(list);
    return out;
}
static PyObject *check_launch(Kernel *k, Call *c)
{
    eas_launch l;
    eas_report *report = NULL;
    memset(&l, 0, sizeof l);
    if (c->shape->has_options && !kernel_call_options(k, c, c->ck->meta, &l))
        return NULL;
    l.size = sizeof l;
    l.interrupted = check_signals;
    eas_status st = eas_kernel_check(c->ck->k, c->args, k->nrt, &l, &report);
    PyObject *r = st == EAS_OK ? report_tuple(report) : py_raise(st);
    eas_report_free(report);
    return r;
}
/* Traced anew: barriers that the compiler refuses are what is looked for here. */
PyObject *kernel_check(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Kernel *k = (Kernel *)self;
    Call c;
    PyObject *r = NULL, *metas[PY_MAX_PARAMS] = {NULL};
    int n = 0;
    if (k->expands)
        return kernel_forward(k, args, nargs, kwnames, !k->of, kernel_check);
    if (!kernel_bind_call(k, args, nargs, kwnames, &c)) {
        kernel_call_done(&c);
        return kernel_comes_apart(k, &c) ? kernel_check(self, args, nargs, kwnames) : NULL;
    }
    if (on_host(k, &c)) {
        while (n < k->nmeta && (metas[n] = kernel_meta_plain(c.objs[k->nrt + n])))
            n++;
        c.ck = n == k->nmeta ? kernel_trace(k, metas, c.tags, k->flags | EAS_KERNEL_LOOSE) : NULL;
        r = c.ck ? check_launch(k, &c) : NULL;
        while (n--)
            Py_DECREF(metas[n]);
    }
    kernel_call_done(&c);
    return r || PyErr_Occurred() || !k->expands ? r : kernel_check(self, args, nargs, kwnames);
}
bool kernel_wants_interpret(const Call *c)
{
    if (c->shape->has_options && c->o.interpret && c->o.interpret != Py_None)
        return c->o.interpret != Py_False;
    return launch_interprets();
}
