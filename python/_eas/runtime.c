/* runtime.c: what the Python side of launches calls: arguments by name, runs, timings, the store of timings,
 * and launches that others carry out (torch on Metal). */
#include "py.h"

#include <string.h>
#include <time.h>

PyObject *runtime_args(PyObject *params, PyObject *const *objs, int n)
{
    PyObject *type = G.kernel_dict ? PyDict_GetItemString(G.kernel_dict, "RuntimeArgs") : NULL;
    PyObject *d = type ? PyObject_CallNoArgs(type) : PyDict_New();
    for (int i = 0; d && i < n; i++)
        if (PyDict_SetItem(d, PyTuple_GET_ITEM(params, i), objs[i]) < 0)
            Py_CLEAR(d);
    return d;
}
/* The run-time arguments of a compiled kernel, from a mapping by name or a sequence in order (borrowed from
 * it). */
static int collect_given(Compiled *ck, PyObject *given_args, PyObject **objs)
{
    const int n = (int)PyTuple_GET_SIZE(ck->params);
    if (PyDict_Check(given_args)) {
        for (int i = 0; i < n; i++) {
            PyObject *name = PyTuple_GET_ITEM(ck->params, i);
            if (!(objs[i] = PyDict_GetItemWithError(given_args, name)))
                return PyErr_Occurred()
                         ? 0
                         : (py_fail(PyExc_TypeError, "%U: argument '%U' is missing", ck->name, name), 0);
        }
        return 1;
    }
    if (!PyTuple_Check(given_args) && !PyList_Check(given_args))
        return py_fail(PyExc_TypeError, "runtime_args must be a dict, tuple or list, got %s",
                       Py_TYPE(given_args)->tp_name),
               0;
    if (PySequence_Fast_GET_SIZE(given_args) != n)
        return py_fail(PyExc_TypeError, "%U takes %d run-time arguments, got %zd", ck->name, n,
                       PySequence_Fast_GET_SIZE(given_args)),
               0;
    for (int i = 0; i < n; i++)
        objs[i] = PySequence_Fast_GET_ITEM(given_args, i);
    return 1;
}
/* Arguments that come apart are replaced by their parts, which bd keeps. */
static int collect(Compiled *ck, PyObject *given_args, Bound *bd, PyObject **objs)
{
    if (!collect_given(ck, given_args, objs))
        return 0;
    if (!ck->spec)
        return 1;
    PyObject *m = PyImport_ImportModule("eas._struct"),
             *t = m ? PyTuple_New(PyTuple_GET_SIZE(ck->params)) : NULL;
    for (Py_ssize_t i = 0; t && i < PyTuple_GET_SIZE(t); i++)
        PyTuple_SET_ITEM(t, i, Py_NewRef(objs[i]));
    PyObject *flat =
        t ? PyObject_CallMethod(m, "expand_all", "OOOO", ck->params, t, ck->spec, ck->name) : NULL;
    for (int i = 0; flat && i < ck->nargs; i++)
        objs[i] = PyList_GET_ITEM(flat, i);
    if (flat)
        bind_keep(bd, flat);
    Py_XDECREF(t);
    Py_XDECREF(m);
    return flat != NULL;
}
static int bind_all(Compiled *ck, PyObject **objs, Bound *bd, eas_arg *args)
{
    for (int i = 0; i < ck->nargs; i++) {
        PyObject *name = PyTuple_GET_ITEM(ck->flat ? ck->flat : ck->params, i);
        int tag = bind_arg(bd, objs[i], i, name, &args[i]);
        if (!tag)
            return 0;
        if (tag == ck->tags[i])
            continue;
        PyObject *want = bind_tag_name(ck->tags[i]), *got = bind_tag_name(tag);
        if (want && got)
            py_fail(PyExc_TypeError, "%U: argument '%U' was compiled as %U, got %U", ck->name, name, want,
                    got);
        Py_XDECREF(want);
        Py_XDECREF(got);
        return 0;
    }
    return 1;
}
typedef struct run { /* one call of run, benchmark or grid */
    Compiled *ck;
    PyObject *rt, *meta, *device;
    Options o;
    Bound bd;
    PyObject *objs[PY_MAX_PARAMS];
    eas_arg args[PY_MAX_PARAMS];
    eas_launch l;
    eas_device *d;
} run;

static int run_ready(run *r, bool defer_mps)
{
    memset(&r->l, 0, sizeof r->l);
    r->bd.kernel = r->ck->name;
    r->bd.device = NULL;
    r->bd.ntemps = 0;
    r->bd.defer_mps = defer_mps;
    r->bd.has_mps = false;
    if (!collect(r->ck, r->rt, &r->bd, r->objs) || !bind_all(r->ck, r->objs, &r->bd, r->args))
        return 0;
    r->d = py_given(r->device) ? py_device(r->device) : r->bd.device ? r->bd.device : py_backend();
    if (!r->d)
        return 0;
    if (r->bd.device && r->bd.device != r->d) {
        py_fail(PyExc_ValueError, "%U: argument '%U' is on device '%s', the launch runs on '%s'", r->ck->name,
                PyTuple_GET_ITEM(r->ck->flat ? r->ck->flat : r->ck->params, r->bd.device_arg),
                eas_device_name(r->bd.device), eas_device_name(r->d));
        return 0;
    }
    return options_read(&r->o, r->ck, r->ck->meta, r->rt, &r->l);
}
#define RUN_OPTIONS \
    &r.device, &r.o.sync, &r.o.nthreads, &r.o.grid, &r.o.tptg, &r.o.shape, &r.o.debug, &r.o.stream
PyObject *py_run(PyObject *module, PyObject *args, PyObject *kw)
{
    (void)module;
    static char *names[] = {"ck",   "runtime_args", "meta",  "device", "sync",   "nthreads",
                            "grid", "tptg",         "shape", "debug",  "stream", NULL};
    run r;
    memset(&r, 0, offsetof(run, objs));
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!OO|$OOOOOOOO:run", names, G.compiled, &r.ck, &r.rt, &r.meta,
                                     RUN_OPTIONS))
        return NULL;
    PyObject *done =
        run_ready(&r, false) ? launch_with(r.ck, r.d, r.args, r.objs, r.ck->nargs, &r.bd, &r.l) : NULL;
    bind_done(&r.bd);
    return done;
}
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static PyObject *timed(run *r, long long warmup, long long repeat)
{
    double start = 0;
    for (long long i = 0; i < warmup + repeat; i++) {
        if (i == warmup)
            start = seconds();
        PyObject *done = launch_with(r->ck, r->d, r->args, r->objs, r->ck->nargs, &r->bd, &r->l);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    return PyFloat_FromDouble((seconds() - start) / (double)repeat);
}
PyObject *py_benchmark(PyObject *module, PyObject *args, PyObject *kw)
{
    (void)module;
    static char *names[] = {"ck",       "runtime_args", "meta", "repeat", "warmup", "device", "sync",
                            "nthreads", "grid",         "tptg", "shape",  "debug",  "stream", NULL};
    run r;
    long long repeat = 1, warmup = 0;
    memset(&r, 0, offsetof(run, objs));
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!OO|$LLOOOOOOOO:benchmark", names, G.compiled, &r.ck, &r.rt,
                                     &r.meta, &repeat, &warmup, RUN_OPTIONS))
        return NULL;
    if (repeat <= 0 || warmup < 0)
        return py_fail(PyExc_ValueError, "benchmark: repeat must be at least 1 and warmup at least 0");
    if (eas_capture_is_open())
        return py_fail(
            PyExc_ValueError,
            "benchmark: %U cannot be timed in a capture, where launches are recorded and do not run (autotune measures by this: call the "
            "kernel once before the capture)",
            r.ck->name);
    PyObject *time = run_ready(&r, false) ? timed(&r, warmup, repeat) : NULL;
    bind_done(&r.bd);
    return time;
}
/* Compiles what a launch would need. The lock is not held meanwhile. */
PyObject *py_prepare(PyObject *module, PyObject *args, PyObject *kw)
{
    (void)module;
    static char *names[] = {"ck",   "runtime_args", "meta",  "device", "sync",   "nthreads",
                            "grid", "tptg",         "shape", "debug",  "stream", NULL};
    run r;
    hooks gil;
    memset(&r, 0, offsetof(run, objs));
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!OO|$OOOOOOOO:prepare", names, G.compiled, &r.ck, &r.rt,
                                     &r.meta, RUN_OPTIONS))
        return NULL;
    PyObject *out = NULL;
    if (run_ready(&r, false)) {
        hooks_init(&r.l, &gil);
        eas_status st = eas_kernel_prepare(r.ck->k, r.d, r.args, r.ck->nargs, &r.l);
        out = st == EAS_OK ? Py_NewRef(Py_None) : py_raise(st);
    }
    bind_done(&r.bd);
    return out;
}
static int tune_args(PyObject *args, const char *format, Compiled **ck, eas_device **d, const char **key,
                     double *seconds)
{
    PyObject *device;
    return PyArg_ParseTuple(args, format, G.compiled, ck, &device, key, seconds) && (*d = py_device(device));
}
PyObject *py_tune_load(PyObject *module, PyObject *args)
{
    (void)module;
    Compiled *ck;
    eas_device *d;
    const char *key;
    double seconds = 0;
    if (!tune_args(args, "O!Os:tune_load", &ck, &d, &key, NULL))
        return NULL;
    return eas_tune_load(ck->k, d, key, &seconds) ? PyFloat_FromDouble(seconds) : Py_NewRef(Py_None);
}
PyObject *py_tune_store(PyObject *module, PyObject *args)
{
    (void)module;
    Compiled *ck;
    eas_device *d;
    const char *key;
    double seconds = 0;
    if (!tune_args(args, "O!Osd:tune_store", &ck, &d, &key, &seconds))
        return NULL;
    eas_tune_store(ck->k, d, key, seconds);
    Py_RETURN_NONE;
}
PyObject *py_tune_choose(PyObject *module, PyObject *list)
{
    (void)module;
    double seconds[1024];
    Py_ssize_t n = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
    if (n < 0 || n > 1024)
        return py_fail(PyExc_ValueError, "tune_choose takes a list of at most 1024 times");
    for (Py_ssize_t i = 0; i < n; i++)
        if ((seconds[i] = PyFloat_AsDouble(PyList_GET_ITEM(list, i))) == -1 && PyErr_Occurred())
            return NULL;
    return PyLong_FromLong(eas_tune_choose(seconds, (int)n, 0.02));
}
PyObject *py_tune_export(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    char *text = NULL;
    eas_status st = eas_tune_export(&text);
    return py_take_text(st, text);
}
PyObject *py_tune_import(PyObject *module, PyObject *text)
{
    (void)module;
    int count = 0;
    const char *s = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
    if (!s)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "timings are a str");
    eas_status st = eas_tune_import(s, &count);
    return st == EAS_OK ? PyLong_FromLong(count) : py_raise(st);
}
PyObject *py_grid(PyObject *module, PyObject *args, PyObject *kw)
{
    (void)module;
    static char *names[] = {"ck",   "runtime_args", "meta",  "device", "sync",   "nthreads",
                            "grid", "tptg",         "shape", "debug",  "stream", NULL};
    run r;
    int64_t g[3];
    memset(&r, 0, offsetof(run, objs));
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!OO|$OOOOOOOO:grid", names, G.compiled, &r.ck, &r.rt,
                                     &r.meta, RUN_OPTIONS))
        return NULL;
    PyObject *out = NULL;
    if (run_ready(&r, false)) {
        r.l.size = sizeof r.l;
        eas_status st = eas_kernel_grid(r.ck->k, r.args, r.ck->nargs, &r.l, g);
        out = st == EAS_OK ? Py_BuildValue("(LLL)", (long long)g[0], (long long)g[1], (long long)g[2])
                           : py_raise(st);
    }
    bind_done(&r.bd);
    return out;
}
/* A launch that others run: (variant, threads, group, values), values[i] None for a buffer; None if there is
 * nothing to do; a str that says why only a launch of ours can do it. addresses: ints, by which overlapping
 * buffers are told. */
static int set_addresses(run *r, PyObject *addresses)
{
    if (!PyTuple_Check(addresses) || PyTuple_GET_SIZE(addresses) != r->ck->nargs)
        return py_fail(PyExc_TypeError, "source: one address for each argument is wanted"), 0;
    for (int i = 0; i < r->ck->nargs; i++)
        if (r->args[i].is_buffer)
            r->args[i].v.data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
    return !PyErr_Occurred();
}
static PyObject *values_of(const run *r, const eas_source *s)
{
    PyObject *t = PyTuple_New(r->ck->nargs);
    for (int i = 0; t && i < r->ck->nargs; i++) {
        PyObject *v = r->args[i].is_buffer ? Py_NewRef(Py_None) : PyLong_FromLongLong((int64_t)s->value[i]);
        if (!v)
            Py_CLEAR(t);
        else
            PyTuple_SET_ITEM(t, i, v);
    }
    return t;
}
PyObject *py_source(PyObject *module, PyObject *args, PyObject *kw)
{
    (void)module;
    static char *names[] = {"ck",   "runtime_args", "addresses", "sync",   "nthreads", "grid",
                            "tptg", "shape",        "debug",     "stream", NULL};
    run r;
    eas_source s;
    PyObject *addresses, *out = NULL;
    memset(&r, 0, offsetof(run, objs));
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!OO|$OOOOOOO:source", names, G.compiled, &r.ck, &r.rt,
                                     &addresses, &r.o.sync, &r.o.nthreads, &r.o.grid, &r.o.tptg, &r.o.shape,
                                     &r.o.debug, &r.o.stream))
        return NULL;
    r.device = NULL;
    if (run_ready(&r, true) && set_addresses(&r, addresses)) {
        r.l.size = sizeof r.l;
        eas_status st = eas_kernel_source(r.ck->k, "msl", r.args, r.ck->nargs, &r.l, &s);
        PyObject *values = st == EAS_OK && s.threads[0] ? values_of(&r, &s) : NULL;
        if (values)
            out = Py_BuildValue("i(LLL)(LLL)N", s.variant, (long long)s.threads[0], (long long)s.threads[1],
                                (long long)s.threads[2], (long long)s.group[0], (long long)s.group[1],
                                (long long)s.group[2], values);
        else if (st == EAS_OK && !PyErr_Occurred())
            out = Py_NewRef(Py_None);
        else if (st == EAS_ERR_UNAVAILABLE)
            out = PyUnicode_FromString(eas_error_message());
        else if (st != EAS_OK)
            py_raise(st);
    }
    bind_done(&r.bd);
    return out;
}
PyObject *py_source_text(PyObject *module, PyObject *args)
{
    (void)module;
    Compiled *ck;
    int variant;
    char *text = NULL, *name = NULL;
    eas_status st;
    if (!PyArg_ParseTuple(args, "O!i:source_text", G.compiled, &ck, &variant))
        return NULL;
    Py_BEGIN_ALLOW_THREADS st = eas_kernel_source_text(ck->k, "msl", variant, &text, &name);
    Py_END_ALLOW_THREADS PyObject *r = st == EAS_OK ? Py_BuildValue("(ss)", text, name) : py_raise(st);
    eas_memory_free(text);
    eas_memory_free(name);
    return r;
}
