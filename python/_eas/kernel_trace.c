/* kernel_trace.c: a kernel's function, run once on traced values: what it closes over, its meta values, and
 * the IR that comes of it. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* ---- tracing ---- */
static PyObject *symbol(Trace *t, PyObject *name, int tag)
{
    const char *text = PyUnicode_AsUTF8(name);
    eas_dtype dt = (eas_dtype)(tag & TAG_DTYPE);
    if (!text)
        return NULL;
    if (tag & TAG_BUFFER)
        return buffer_new(t, eas_builder_param_buffer(t->b, text, dt), name);
    return value_named(t, eas_builder_param_scalar(t->b, text, dt, (tag & TAG_WEAK) != 0), name);
}
/* fn, the kernel's, called on argv (taken) in the context of the trace. 1 if it came through and returned
 * nothing. */
static int call_body(Kernel *k, PyObject *fn, Trace *t, PyObject **argv)
{
    PyObject *kwnames =
        k->nparams > k->npositional ? PyTuple_GetSlice(k->names, k->npositional, k->nparams) : NULL;
    PyObject *full[PY_MAX_PARAMS + 1] = {k->self};
    const int skip = k->self != NULL;
    memcpy(full + skip, argv, (size_t)k->nparams * sizeof *argv);
    Trace *former = trace_push(t);
    PyObject *r = PyObject_Vectorcall(fn, full, (size_t)(k->npositional + skip), kwnames);
    trace_pop(former);
    Py_XDECREF(kwnames);
    for (int i = 0; i < k->nparams; i++)
        Py_XDECREF(argv[i]);
    if (r && r != Py_None) {
        py_fail(PyExc_TypeError,
                "kernel '%U' returned a %s: a kernel returns nothing; write results with mk.store", k->name,
                Py_TYPE(r)->tp_name);
        Py_CLEAR(r);
    }
    Py_XDECREF(r);
    return r != NULL;
}
/* A pending if is closed in the trace's own context; nothing else may be open. */
int kernel_close_body(Trace *t)
{
    Trace *former = trace_push(t);
    int closed = ctrl_finish(t);
    trace_pop(former);
    return closed;
}
static PyObject *deciding(Kernel *k, PyObject *metas);
/* The function to run: rewritten if it has branches, loops or helpers. New reference. */
PyObject *kernel_function_of(Kernel *k, PyObject *const *metas, bool live)
{
    PyObject *m = NULL, *t = NULL, *fn = NULL;
    if (!k->rewrite) {
        if (!live)
            return Py_NewRef(k->fn);
        m = PyImport_ImportModule("eas._interpret");
        fn = m ? PyObject_CallMethodOneArg(m, N.body, k->fn) : NULL;
        Py_XDECREF(m);
        return fn;
    }
    m = PyImport_ImportModule("eas._needs");
    t = m ? PyTuple_New(k->nmeta) : NULL;
    for (int i = 0; t && i < k->nmeta; i++)
        PyTuple_SET_ITEM(t, i, Py_NewRef(metas[i]));
    if (t)
        Py_SETREF(t, deciding(k, t));
    if (t)
        fn = PyObject_CallMethod(m, "kernel", "OOOOO", k->fn, t, k->self ? k->self : Py_None,
                                 live ? Py_True : Py_False, k->meta_names);
    Py_XDECREF(t);
    Py_XDECREF(m);
    return fn;
}
/* What the body gets for the run-time parameters, of symbols for the inner kernel's: a new tuple. Steals
 * symbols. */
static PyObject *together(Kernel *k, PyObject *symbols)
{
    while (symbols && k->of) {
        PyObject *m = PyImport_ImportModule("eas._struct"),
                 *next = m ? PyObject_CallMethod(m, "rebuild", "OO", k->spec, symbols) : NULL;
        Py_XDECREF(m);
        Py_SETREF(symbols, next);
        k = k->of;
    }
    return symbols;
}
static Kernel *outermost(Kernel *k)
{
    while (k->of)
        k = k->of;
    return k;
}
/* fn called on symbols (stolen) for run-time parameters and the values themselves for meta ones. 1 if it came
 * through. */
int kernel_call_with(Kernel *k, PyObject *fn, Trace *t, PyObject *symbols, PyObject *const *metas)
{
    Kernel *o = outermost(k);
    PyObject *argv[PY_MAX_PARAMS] = {NULL};
    Trace *former = trace_push(t);
    symbols = together(k, symbols);
    trace_pop(former);
    for (int i = 0; symbols && i < o->nparams; i++)
        argv[o->order[i]] = Py_NewRef(i < o->nrt ? PyTuple_GET_ITEM(symbols, i) : metas[i - o->nrt]);
    int ok = symbols && call_body(o, fn, t, argv);
    Py_XDECREF(symbols);
    return ok;
}
static int run_body(Kernel *k, Trace *t, PyObject *const *metas, const uint8_t *tags)
{
    PyObject *fn = kernel_function_of(k, metas, false), *symbols = fn ? PyTuple_New(k->nrt) : NULL;
    for (int i = 0; symbols && i < k->nrt; i++) {
        PyObject *o = symbol(t, PyTuple_GET_ITEM(k->names, k->order[i]), tags[i]);
        if (!o)
            Py_CLEAR(symbols);
        else
            PyTuple_SET_ITEM(symbols, i, o);
    }
    int ok = symbols && kernel_call_with(k, fn, t, symbols, metas);
    Py_XDECREF(fn);
    return ok;
}
/* The specs from the outermost kernel inwards: a tuple. */
static PyObject *specs_of(Kernel *k)
{
    PyObject *list = PyList_New(0), *r = NULL;
    for (; list && k->of; k = k->of)
        if (PyList_Insert(list, 0, k->spec) < 0)
            Py_CLEAR(list);
    if (list)
        r = PyList_AsTuple(list);
    Py_XDECREF(list);
    return r;
}
static void at_definition(Kernel *k, Trace *t)
{
    PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)k->fn)->func_code;
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    if (file)
        eas_builder_at(t->b, file, code->co_firstlineno);
    else
        PyErr_Clear();
}
static eas_kernel *build(Trace *t)
{
    eas_ir *ir = NULL;
    eas_kernel *out = NULL;
    if (!kernel_close_body(t))
        return NULL;
    eas_status st;
    Py_BEGIN_ALLOW_THREADS st = eas_builder_finish(t->b, &ir);
    if (st == EAS_OK) {
        st = eas_kernel_new(ir, &out);
        eas_ir_release(ir);
    }
    Py_END_ALLOW_THREADS if (st != EAS_OK) py_raise(st);
    return st == EAS_OK ? out : NULL;
}
PyObject *kernel_meta_dict(Kernel *k, PyObject *const *metas)
{
    PyObject *d = PyDict_New();
    for (int i = 0; d && i < k->nmeta; i++)
        if (PyDict_SetItem(d, PyTuple_GET_ITEM(k->meta_names, i), metas[i]) < 0)
            Py_CLEAR(d);
    return d;
}
/* "BLOCK=64, T=f16": for profiles. What has a name is told by it. */
static PyObject *meta_text(PyObject *name, PyObject *v)
{
    PyObject *known = PyObject_GetAttrString(v, "__name__");
    if (!known)
        PyErr_Clear();
    PyObject *text = PyUnicode_FromFormat(known ? "%U=%S" : "%U=%R", name, known ? known : v);
    Py_XDECREF(known);
    return text;
}
static void tell_config(Kernel *k, Trace *t, PyObject *const *metas)
{
    PyObject *all = PyUnicode_FromString("");
    for (int i = 0; all && i < k->nmeta; i++) {
        PyObject *one = meta_text(PyTuple_GET_ITEM(k->meta_names, i), metas[i]);
        Py_SETREF(all, one ? PyUnicode_FromFormat(i ? "%U, %U" : "%U%U", all, one) : NULL);
        Py_XDECREF(one);
    }
    const char *text = all ? PyUnicode_AsUTF8(all) : NULL;
    if (text)
        eas_builder_config(t->b, text);
    else
        PyErr_Clear(); /* what is written for people fails nothing */
    Py_XDECREF(all);
}
static int ask(Kernel *k, int i, uint8_t what)
{
    if (!k->arrays && !(k->arrays = PyMem_Calloc((size_t)k->nrt + 1, 1)))
        return PyErr_NoMemory(), 0;
    k->arrays[i] |= what;
    return 1;
}
int kernel_index_of(PyObject *names, PyObject *name)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
        if (!PyUnicode_Compare(name, PyTuple_GET_ITEM(names, i)))
            return (int)i;
    return -1;
}
/* An array that comes apart already is asked for more where it does; the call is then repeated from there. */
static bool spec_is(Kernel *k, int i, const char *kind)
{
    return !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(PyTuple_GET_ITEM(k->spec, i), 0), kind);
}
/* The struct among the arguments of k->of that a part is of, or -1. */
static int struct_of(Kernel *k, PyObject *part)
{
    for (int i = 0; i < k->of->nrt; i++) {
        PyObject *head =
            spec_is(k, i, "t") ? PyUnicode_FromFormat("%U_", PyTuple_GET_ITEM(k->of->rt_names, i)) : NULL;
        bool is = head && PyUnicode_Tailmatch(part, head, 0, PY_SSIZE_T_MAX, -1) == 1;
        Py_XDECREF(head);
        if (is)
            return i;
    }
    return -1;
}
static int ask_name(Kernel *k, PyObject *name, uint8_t what)
{
    int i = k->of ? kernel_index_of(k->of->rt_names, name) : -1;
    if (i >= 0 && (spec_is(k, i, "a") || (spec_is(k, i, "p") && !(k->of->arrays && k->of->arrays[i]))))
        return ask(k->of, i, what); /* one level for all arrays: launches find their parts at once */
    if (k->of && (i = struct_of(k, name)) >= 0)
        return ask(k->of, i, 3); /* of all arrays in it */
    i = kernel_index_of(k->rt_names, name);
    if (i < 0 || !ask(k, i, what))
        return 0;
    return k->expands = true;
}
/* The arrays whose sizes a trace asked for, from now on: 1; 0: none. */
static int note_arrays(Kernel *k, PyObject *wanted)
{
    PyObject *iter = PyObject_GetIter(wanted), *name;
    int any = 0;
    while (iter && (name = PyIter_Next(iter))) {
        Py_ssize_t n = PyUnicode_GET_LENGTH(name);
        bool shape = n && PyUnicode_READ_CHAR(name, n - 1) == '!';
        PyObject *plain = PyUnicode_Substring(name, 0, shape ? n - 1 : n);
        any |= plain && ask_name(k, plain, shape ? 3 : 2);
        Py_XDECREF(plain);
        Py_DECREF(name);
    }
    Py_XDECREF(iter);
    return any;
}
/* Meta values and what else decides how the body runs, for guards. */
static PyObject *deciding(Kernel *k, PyObject *metas)
{
    PyObject *all = Py_NewRef(metas);
    for (; all && k->of; k = k->of) {
        PyObject *m = PyImport_ImportModule("eas._struct"),
                 *more = m ? PyObject_CallMethod(m, "constants", "(O)", k->spec) : NULL;
        PyObject *sum = more ? PySequence_Concat(all, more) : NULL;
        Py_XDECREF(m);
        Py_XDECREF(more);
        Py_SETREF(all, sum);
    }
    return all;
}
static int take_guards(Kernel *k, PyObject *metas, Compiled *c)
{
    PyObject *all = deciding(k, metas);
    int ok = all && guards_find(k->fn, all, k->self, &c->guards);
    Py_XDECREF(all);
    return ok;
}
Compiled *kernel_trace(Kernel *k, PyObject *const *metas, const uint8_t *tags, unsigned flags)
{
    Trace *t = trace_new(k->name, flags);
    if (!t)
        return NULL;
    at_definition(k, t);
    tell_config(k, t, metas);
    bool through = run_body(k, t, metas, tags);
    if (t->wanted) {
        PyErr_Clear(); /* of a body that was given up, or went on with stand-ins */
        if (note_arrays(k, t->wanted)) {
            ctrl_clear(t);
            Py_DECREF(t);
            return NULL; /* without an exception: to be called again */
        }
    }
    eas_kernel *ek = through ? build(t) : NULL;
    ctrl_clear(t);
    Py_DECREF(t);
    if (!ek)
        return NULL;
    PyObject *dict = kernel_meta_dict(k, metas), *tuple = dict ? PyTuple_New(k->nmeta) : NULL;
    for (int i = 0; tuple && i < k->nmeta; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(metas[i]));
    Compiled *c = tuple ? compiled_new(ek, k->name, outermost(k)->rt_names, dict, tuple, tags, k->nrt) : NULL;
    if (!c)
        eas_kernel_release(ek);
    else if (!take_guards(k, tuple, c))
        Py_CLEAR(c);
    if (c && k->of) {
        c->spec = specs_of(k);
        c->flat = Py_NewRef(k->rt_names);
        if (!c->spec)
            Py_CLEAR(c);
    }
    Py_XDECREF(dict);
    Py_XDECREF(tuple);
    return c;
}
