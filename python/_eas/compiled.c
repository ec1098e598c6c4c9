/* compiled.c: CompiledKernel, the reading of launch options, and the launch itself. */
#include "py.h"

#include <string.h>

Compiled *compiled_new(eas_kernel *k, PyObject *name, PyObject *params, PyObject *meta, PyObject *metas,
                       const uint8_t *tags, int nargs)
{
    Compiled *c = PyObject_GC_NewVar(Compiled, G.compiled, nargs + 1);
    if (!c)
        return NULL;
    c->k = k;
    c->name = Py_NewRef(name);
    c->params = Py_NewRef(params);
    c->meta = Py_NewRef(meta);
    c->metas = Py_NewRef(metas);
    c->msl = c->irmod = c->guards = c->spec = c->flat = NULL;
    c->info = eas_kernel_info(k);
    c->traced = 0;
    c->nargs = nargs;
    memcpy(c->tags, tags, (size_t)nargs);
    PyObject_GC_Track(c);
    return c;
}
static int compiled_traverse(PyObject *o, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(((Compiled *)o)->guards);
    Py_VISIT(((Compiled *)o)->spec);
    return 0;
}
static int compiled_clear(PyObject *o)
{
    Py_CLEAR(((Compiled *)o)->guards);
    Py_CLEAR(((Compiled *)o)->spec);
    return 0;
}
static void compiled_dealloc(PyObject *o)
{
    Compiled *c = (Compiled *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    compiled_clear(o);
    eas_kernel_release(c->k);
    Py_XDECREF(c->name);
    Py_XDECREF(c->params);
    Py_XDECREF(c->flat);
    Py_XDECREF(c->meta);
    Py_XDECREF(c->metas);
    Py_XDECREF(c->msl);
    Py_XDECREF(c->irmod);
    PyObject_GC_Del(o);
    Py_DECREF(type);
}

/* ---- what people look at ---- */
PyObject *compiled_text(Compiled *c, const char *form)
{
    char *text = NULL;
    eas_status st;
    Py_BEGIN_ALLOW_THREADS st = eas_kernel_text(c->k, form, &text);
    Py_END_ALLOW_THREADS return py_take_text(st, text);
}
static PyObject *get_msl(PyObject *o, void *u)
{
    (void)u;
    Compiled *c = (Compiled *)o;
    if (!c->msl)
        c->msl = compiled_text(c, "msl");
    return Py_XNewRef(c->msl);
}
static PyObject *get_text(PyObject *o, void *form) { return compiled_text((Compiled *)o, form); }
static PyObject *get_ir(PyObject *o, void *u)
{
    (void)u;
    Compiled *c = (Compiled *)o;
    if (!c->irmod)
        c->irmod = ir_wrap(eas_kernel_ir(c->k));
    return Py_XNewRef(c->irmod);
}
static PyObject *get_block(PyObject *o, void *u)
{
    (void)u;
    return PyLong_FromLongLong(((Compiled *)o)->info.block);
}
static PyObject *get_mode(PyObject *o, void *u)
{
    (void)u;
    return PyUnicode_FromString(((Compiled *)o)->info.mode == EAS_MODE_THREAD ? "thread" : "spmd");
}
static PyObject *get_tptg(PyObject *o, void *u)
{
    (void)u;
    eas_ir_info *in = &((Compiled *)o)->info;
    return Py_BuildValue("(Lii)", in->mode == EAS_MODE_THREAD ? (long long)in->block : 1LL, 1, 1);
}
static PyObject *get_writes(PyObject *o, void *u)
{
    (void)u;
    const eas_ir *ir = eas_kernel_ir(((Compiled *)o)->k);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < eas_ir_param_count(ir); i++) {
        eas_param p = eas_ir_param(ir, i);
        PyObject *n = p.is_buffer && p.is_written ? PyUnicode_FromString(p.name) : NULL;
        if (n && PyList_Append(list, n) < 0)
            Py_CLEAR(list);
        Py_XDECREF(n);
    }
    PyObject *set = list ? PyFrozenSet_New(list) : NULL;
    Py_XDECREF(list);
    return set;
}
static PyObject *get_name(PyObject *o, void *u)
{
    (void)u;
    return Py_NewRef(((Compiled *)o)->name);
}
static PyObject *get_meta(PyObject *o, void *u)
{
    (void)u;
    return PyDict_Copy(((Compiled *)o)->meta);
}
static PyObject *get_params(PyObject *o, void *u)
{
    (void)u;
    return Py_NewRef(((Compiled *)o)->params);
}
static PyObject *get_spec(PyObject *o, void *u)
{
    (void)u;
    PyObject *spec = ((Compiled *)o)->spec;
    return Py_NewRef(spec ? spec : Py_None);
}
static PyObject *get_types(PyObject *o, void *u)
{
    (void)u;
    Compiled *c = (Compiled *)o;
    PyObject *t = PyTuple_New(c->nargs);
    for (int i = 0; t && i < c->nargs; i++) {
        PyObject *n = bind_tag_name(c->tags[i]);
        if (!n)
            Py_CLEAR(t);
        else
            PyTuple_SET_ITEM(t, i, n);
    }
    return t;
}
static PyObject *get_traced(PyObject *o, void *u)
{
    (void)u;
    return PyFloat_FromDouble(((Compiled *)o)->traced);
}
static PyObject *compiled_repr(PyObject *o)
{
    Compiled *c = (Compiled *)o;
    return PyUnicode_FromFormat("<eas.CompiledKernel '%U' %s block_size=%lld meta=%R>", c->name,
                                c->info.mode == EAS_MODE_THREAD ? "thread" : "spmd", (long long)c->info.block,
                                c->meta);
}
static PyObject *compiled_obj(PyObject *o, PyObject *unused)
{
    (void)unused;
    void *bytes = NULL;
    size_t size = 0;
    eas_status st;
    Py_BEGIN_ALLOW_THREADS st = eas_kernel_object(((Compiled *)o)->k, &bytes, &size);
    Py_END_ALLOW_THREADS PyObject *r =
        st == EAS_OK ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size) : py_raise(st);
    eas_memory_free(bytes);
    return r;
}
static PyObject *compiled_fits(PyObject *o, PyObject *device)
{
    eas_device *d = py_device(device);
    eas_status st = EAS_OK;
    if (!d)
        return NULL;
    Py_BEGIN_ALLOW_THREADS st = eas_kernel_require(((Compiled *)o)->k, d);
    Py_END_ALLOW_THREADS return st == EAS_OK ? Py_NewRef(Py_None) : PyUnicode_FromString(eas_error_message());
}
static PyMethodDef compiled_methods[] = {
    {"to_obj", compiled_obj, METH_NOARGS, "to_obj(): the CPU code as a relocatable object file (bytes)"},
    {"misfit", compiled_fits, METH_O,
     "misfit(device): what the kernel needs that the device does not have, or None"},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef compiled_getset[] = {
    {"ir", get_ir, NULL, "the kernel's IR (an eas.ir.IRModule)", NULL},
    {"msl", get_msl, NULL, "Metal Shading Language text", NULL},
    {"opencl", get_text, NULL, "OpenCL C text", "opencl"},
    {"plan", get_text, NULL, "how it runs on the CPU: segments, where values lie, what is prefetched",
     "plan"},
    {"llvm", get_text, NULL, "LLVM IR of the CPU code", "llvm"},
    {"asm", get_text, NULL, "assembly of the CPU code", "asm"},
    {"block_size", get_block, NULL, "lanes of a program (SPMD) or threads of a group", NULL},
    {"launch_mode", get_mode, NULL, "\"spmd\" or \"thread\"", NULL},
    {"tptg", get_tptg, NULL, "threads per threadgroup: (1, 1, 1) in SPMD mode", NULL},
    {"writes", get_writes, NULL, "names of the arguments it writes", NULL},
    {"name", get_name, NULL, "the kernel's name", NULL},
    {"meta", get_meta, NULL, "the meta values it was made for", NULL},
    {"_spec", get_spec, NULL, "how its arguments come apart (eas._struct), or None", NULL},
    {"_types", get_types, NULL, "of its run-time arguments, for people", NULL},
    {"_trace_seconds", get_traced, NULL, "what tracing it took", NULL},
    {"params", get_params, NULL, "names of its run-time parameters", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot compiled_slots[] = {
    {Py_tp_doc, "A kernel traced for given meta values and argument types; Kernel.compile gives it."},
    {Py_tp_dealloc, compiled_dealloc},
    {Py_tp_traverse, compiled_traverse},
    {Py_tp_clear, compiled_clear},
    {Py_tp_repr, compiled_repr},
    {Py_tp_getset, compiled_getset},
    {Py_tp_methods, compiled_methods},
    {0, NULL},
};
PyType_Spec Compiled_spec = {"eas.compiler.CompiledKernel", sizeof(Compiled), 1,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             compiled_slots};

/* ---- from IR ---- */
/* i64 and f64 are what Python's numbers are handed over as. */
static uint8_t param_tag(eas_param p)
{
    bool weak = !p.is_buffer && (p.dtype == EAS_I64 || p.dtype == EAS_F64);
    return (uint8_t)((p.is_buffer ? TAG_BUFFER : TAG_SCALAR) | (weak ? TAG_WEAK : 0) | (int)p.dtype);
}
static PyObject *compiled_of(eas_kernel *k, const eas_ir *ir)
{
    uint8_t tags[PY_MAX_PARAMS];
    int n = eas_ir_param_count(ir);
    PyObject *name = PyUnicode_FromString(eas_ir_name(ir)), *params = PyTuple_New(n), *meta = PyDict_New(),
             *metas = PyTuple_New(0), *c = NULL;
    bool ok = name && params && meta && metas;
    for (int i = 0; ok && i < n; i++) {
        eas_param p = eas_ir_param(ir, i);
        PyObject *s = PyUnicode_FromString(p.name);
        tags[i] = param_tag(p);
        ok = s != NULL;
        if (ok)
            PyTuple_SET_ITEM(params, i, s);
    }
    if (ok)
        c = (PyObject *)compiled_new(k, name, params, meta, metas, tags, n);
    Py_XDECREF(name);
    Py_XDECREF(params);
    Py_XDECREF(meta);
    Py_XDECREF(metas);
    return c;
}
PyObject *py_compile_ir(PyObject *module, PyObject *o)
{
    (void)module;
    if (!PyObject_TypeCheck(o, G.ir))
        return py_fail(PyExc_TypeError, "compile_ir takes an eas.ir.IRModule, got %s", Py_TYPE(o)->tp_name);
    eas_ir *ir = ((IR *)o)->ir;
    eas_kernel *k = NULL;
    eas_status st = EAS_OK;
    if (eas_ir_param_count(ir) > PY_MAX_PARAMS)
        return py_fail(PyExc_ValueError, "the kernel has %d parameters; at most %d are possible",
                       eas_ir_param_count(ir), PY_MAX_PARAMS);
    Py_BEGIN_ALLOW_THREADS st = eas_kernel_new(ir, &k);
    Py_END_ALLOW_THREADS if (st != EAS_OK) return py_raise(st);
    PyObject *c = compiled_of(k, ir);
    if (!c)
        eas_kernel_release(k);
    return c;
}

/* ---- options ---- */

/* An int or a tuple or list of ints, none negative. Returns how many (at most max), or -1. */
static int int_list(PyObject *o, const char *what, int max, int64_t *out)
{
    PyObject *one[1] = {o}, *const *items = one;
    Py_ssize_t n = 1;
    if (PyTuple_Check(o) || PyList_Check(o)) {
        items = PySequence_Fast_ITEMS(o);
        n = PySequence_Fast_GET_SIZE(o);
    }
    if (n < 1 || n > max)
        return py_fail(PyExc_ValueError, "%s must have 1 to %d entries, got %zd", what, max, n), -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *v = PyIndex_Check(items[i]) && !PyBool_Check(items[i]) ? PyNumber_Index(items[i]) : NULL;
        if (!v)
            return PyErr_Occurred()
                     ? -1
                     : (py_fail(PyExc_TypeError, "%s must be an int or a tuple of 1 to %d ints, got %R", what,
                                max, o),
                        -1);
        out[i] = PyLong_AsLongLong(v);
        Py_DECREF(v);
        if (out[i] == -1 && PyErr_Occurred())
            return PyErr_Clear(), py_fail(PyExc_ValueError, "%s: %R does not fit 64 bits", what, items[i]),
                 -1;
        if (out[i] < 0)
            return py_fail(PyExc_ValueError, "%s must not be negative, got %R", what, o), -1;
    }
    return (int)n;
}
/* Of the meta values alone, as in Triton? */
static bool of_meta_alone(PyObject *f)
{
    PyCodeObject *code = PyFunction_Check(f) ? (PyCodeObject *)PyFunction_GET_CODE(f) : NULL;
    return code && code->co_argcount == 1 && !(code->co_flags & CO_VARARGS);
}
static int read_grid(PyObject *g, PyObject *meta, PyObject *rt, eas_launch *l)
{
    PyObject *made = NULL;
    if (PyCallable_Check(g)) {
        PyObject *copy = PyDict_Copy(meta);
        made = copy ? PyObject_CallFunctionObjArgs(g, copy, of_meta_alone(g) ? NULL : rt, NULL) : NULL;
        Py_XDECREF(copy);
        if (!made)
            return 0;
        g = made;
    }
    l->grid[0] = l->grid[1] = l->grid[2] = 1;
    int n = int_list(g, "_grid", 3, l->grid);
    l->has_grid = 1;
    Py_XDECREF(made);
    return n > 0;
}
/* (D,) H, W: the last dims of whatever shape is given. */
static int read_shape(PyObject *s, eas_launch *l)
{
    int64_t dims[NPY_MAXDIMS];
    int n = int_list(s, "_shape", NPY_MAXDIMS, dims);
    if (n < 0)
        return 0;
    l->nshape = n < 3 ? n : 3;
    memcpy(l->shape, dims + n - l->nshape, (size_t)l->nshape * sizeof *dims);
    l->has_shape = 1;
    return 1;
}
static int read_nthreads(PyObject *o, eas_launch *l)
{
    PyObject *v = PyIndex_Check(o) && !PyBool_Check(o) ? PyNumber_Index(o) : NULL;
    if (!v)
        return PyErr_Occurred()
                 ? 0
                 : (py_fail(PyExc_TypeError, "_nthreads must be an int, got %s", Py_TYPE(o)->tp_name), 0);
    l->nthreads = PyLong_AsLongLong(v);
    Py_DECREF(v);
    if (l->nthreads == -1 && PyErr_Occurred())
        return 0;
    if (l->nthreads < 0)
        return py_fail(PyExc_ValueError, "_nthreads must be 0 or more, got %lld", (long long)l->nthreads), 0;
    l->has_nthreads = 1;
    return 1;
}
int tptg_fits(PyObject *o, PyObject *name, int64_t want, bool threads)
{
    int64_t t[3] = {1, 1, 1};
    if (int_list(o, "_tptg", 3, t) < 0)
        return 0;
    if (t[0] == want && t[1] == 1 && t[2] == 1)
        return 1;
    py_fail(PyExc_ValueError, "%U: _tptg must be (%lld, 1, 1) for this %s kernel, got %R", name,
            (long long)want, threads ? "thread-mode" : "SPMD", o);
    return 0;
}
static int check_tptg(PyObject *o, Compiled *ck)
{
    bool threads = ck->info.mode == EAS_MODE_THREAD;
    return tptg_fits(o, ck->name, threads ? ck->info.block : 1, threads);
}
static int check_bool(PyObject *o, const char *what)
{
    if (!o || PyBool_Check(o))
        return 1;
    py_fail(PyExc_TypeError, "%s must be a bool, got %s", what, Py_TYPE(o)->tp_name);
    return 0;
}
int options_check(const Options *o, Compiled *ck)
{
    if (!check_bool(o->sync, "_sync") || !check_bool(o->debug, "_debug") ||
        !check_bool(o->interpret, "_interpret"))
        return 0;
    if (py_given(o->stream) && !stream_arg(o->stream, "_stream", NULL))
        return 0;
    return !ck || !py_given(o->tptg) || check_tptg(o->tptg, ck);
}
int options_read(const Options *o, Compiled *ck, PyObject *meta, PyObject *rt, eas_launch *l)
{
    if (!options_check(o, ck))
        return 0;
    if (py_given(o->nthreads) && !read_nthreads(o->nthreads, l))
        return 0;
    if (py_given(o->shape) && !read_shape(o->shape, l))
        return 0;
    l->debug = o->debug == Py_True;
    l->async = o->sync == Py_False;
    l->stream = py_given(o->stream) ? stream_arg(o->stream, "_stream", NULL) : NULL;
    return !py_given(o->grid) || read_grid(o->grid, meta, rt, l);
}

/* ---- the launch ---- */
static bool launch_debugs(void); /* EAS_DEBUG is set */
PyObject *launch_with(Compiled *ck, eas_device *d, const eas_arg *args, PyObject *const *objs, int n,
                      const Bound *bd, eas_launch *l)
{
    hooks gil;
    void *all[2 * PY_MAX_PARAMS];
    hooks_init(l, &gil);
    l->hold = (void *const *)objs;
    l->nhold = n;
    if (bd->ntemps) {
        memcpy(all, objs, (size_t)n * sizeof *objs);
        memcpy(all + n, bd->temps, (size_t)bd->ntemps * sizeof *bd->temps);
        l->hold = all;
        l->nhold = n + bd->ntemps;
    }
    l->retain = hold_retain;
    l->release = hold_release;
    if (l->debug != 1) /* a launch may come again, with what was said the last time */
        l->debug = launch_debugs() ? 1 : 2;
    eas_status st = eas_kernel_launch(ck->k, d, args, n, l);
    if (st == EAS_OK && PyErr_Occurred()) /* of sys.stdout, while it took what was printed */
        return NULL;
    if (st == EAS_OK)
        Py_RETURN_NONE;
    py_raise(st);
    py_tell_shape(ck->flat ? ck->flat : ck->params, objs, n);
    return NULL;
}

/* ---- where to ----
 * eas.kernel's get_runtime and os.environ's EAS_BACKEND may change at any time and count at once. Both live
 * in dicts; as long as neither dict has changed the last answer stands. */
static struct {
    eas_device *device;
    bool known, interpret, debug;
} where;

#if PY_VERSION_HEX >= 0x030C0000
static int forget(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    (void)event;
    (void)dict;
    (void)key;
    (void)value;
    where.known = false;
    return 0;
}
int launch_watch(void)
{
    static int id = -1;
    if (id < 0 && (id = PyDict_AddWatcher(forget)) < 0)
        return 0;
    return PyDict_Watch(id, G.kernel_dict) == 0 && (!G.environ || PyDict_Watch(id, G.environ) == 0);
}
static bool still_known(void) { return where.known; }
static void remember(void) { where.known = true; }
#else
static uint64_t versions[2];
static uint64_t version(PyObject *d) { return d ? ((PyDictObject *)d)->ma_version_tag : 0; }
int launch_watch(void) { return where.known = false, 1; }
static bool still_known(void)
{
    return where.known && versions[0] == version(G.kernel_dict) && versions[1] == version(G.environ);
}
static void remember(void)
{
    versions[0] = version(G.kernel_dict);
    versions[1] = version(G.environ);
    where.known = true;
}
#endif

eas_device *py_backend(void)
{
    PyObject *v = G.environ ? PyDict_GetItemWithError(G.environ, G.backend_key) : NULL;
    const char *name = !v                 ? ""
                     : PyBytes_Check(v)   ? PyBytes_AS_STRING(v)
                     : PyUnicode_Check(v) ? PyUnicode_AsUTF8(v)
                                          : "";
    return !name || !*name || !strcmp(name, "auto") ? G.cpu : py_device_named(name);
}
static bool env_says(PyObject *key)
{
    PyObject *v = G.environ ? PyDict_GetItemWithError(G.environ, key) : NULL;
    const char *text = v && PyBytes_Check(v) ? PyBytes_AS_STRING(v) : "";
    return *text && strcmp(text, "0");
}
bool launch_interprets(void) { return still_known() ? where.interpret : env_says(G.interpret_key); }
static bool launch_debugs(void) { return still_known() ? where.debug : env_says(G.debug_key); }
PyObject *launch_where(eas_device **d)
{
    if (still_known())
        return *d = where.device, NULL;
    PyObject *get = PyDict_GetItemWithError(G.kernel_dict, N.get_runtime);
    if (get && get != G.get_runtime)
        return get;
    *d = where.device = py_backend();
    where.interpret = env_says(G.interpret_key);
    where.debug = env_says(G.debug_key);
    if (*d)
        remember();
    return NULL;
}
