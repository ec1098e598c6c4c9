/* module.c: eas._eas. Multi-phase initialisation; one instance per process, as NumPy's C API is. */
#define EAS_IMPORT_ARRAY
#include "py.h"

py_state G;
py_names N;

PyTypeObject *py_type(PyObject *module, PyType_Spec *spec, const char *name)
{
    PyTypeObject *t = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (t && name && PyModule_AddObjectRef(module, name, (PyObject *)t) < 0)
        Py_CLEAR(t);
    return t;
}

/* ---- constexpr: an annotation, nothing more ---- */
static PyObject *constexpr_item(PyObject *cls, PyObject *item)
{
    (void)item;
    return Py_NewRef(cls);
}
static PyMethodDef constexpr_methods[] = {
    {"__class_getitem__", constexpr_item, METH_O | METH_CLASS, "constexpr[int] is constexpr"},
    {NULL, NULL, 0, NULL}};
static PyType_Slot constexpr_slots[] = {
    {Py_tp_doc, "Annotates a meta parameter of a kernel: its value is known while the kernel is traced."},
    {Py_tp_methods, constexpr_methods},
    {0, NULL},
};
static PyType_Spec constexpr_spec = {"eas.constexpr", sizeof(PyObject), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, constexpr_slots};

/* ---- facts about the library ---- */
static PyObject *stats(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    eas_stats s = eas_stats_get();
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:O}", "compiles", (unsigned long long)s.compiles, "disk_hits",
                         (unsigned long long)s.disk_hits, "disk_misses", (unsigned long long)s.disk_misses,
                         "disk_bad", (unsigned long long)s.disk_bad, "launches",
                         (unsigned long long)s.launches, "compiler_loaded",
                         s.compiler_loaded ? Py_True : Py_False);
}
static PyObject *limits(PyObject *m, PyObject *device)
{
    (void)m;
    eas_limits l;
    eas_device *d = py_device(device);
    if (!d)
        return NULL;
    eas_status st = eas_device_limits(d, &l);
    if (st != EAS_OK)
        return py_raise(st);
    return Py_BuildValue("{s:L,s:L,s:L,s:L,s:K,s:N,s:N,s:N,s:N}", "threads", (long long)l.threads,
                         "threadgroup_bytes", (long long)l.tg_bytes, "simd", (long long)l.simd, "buffers",
                         (long long)l.buffers, "max_alloc", (unsigned long long)l.max_alloc, "f64",
                         PyBool_FromLong(l.f64), "f16", PyBool_FromLong(l.f16), "i64_atomics",
                         PyBool_FromLong(l.i64_atomics), "unified", PyBool_FromLong(l.unified));
}
static PyObject *cache_dir(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    return PyUnicode_DecodeFSDefault(eas_cache_dir());
}
static PyObject *cache_why(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    return PyUnicode_FromString(eas_cache_why());
}
static PyObject *cache_clear(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    eas_status st = eas_cache_clear();
    return st == EAS_OK ? Py_NewRef(Py_None) : py_raise(st);
}
static PyObject *cache_verify(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    uint64_t good, bad, bytes;
    eas_status st = eas_cache_verify(&good, &bad, &bytes);
    return st == EAS_OK ? Py_BuildValue("(KKK)", (unsigned long long)good, (unsigned long long)bad,
                                        (unsigned long long)bytes)
                        : py_raise(st);
}
static PyObject *num_threads(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    return PyLong_FromLong(eas_threads_count());
}
static PyObject *lend_threads(PyObject *m, PyObject *address)
{
    (void)m;
    void *run = address == Py_None ? NULL : PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    eas_threads_lend((void (*)(void (*)(void *), void *, unsigned, unsigned))(uintptr_t)run);
    Py_RETURN_NONE;
}
/* The folder of the Python files, so that messages can name the user's line and not ours. The extension may
 * lie elsewhere. */
static PyObject *set_package(PyObject *m, PyObject *folder)
{
    (void)m;
    if (!PyUnicode_Check(folder))
        return py_fail(PyExc_TypeError, "a folder is a str");
    Py_XSETREF(G.package, Py_NewRef(folder));
    Py_RETURN_NONE;
}
static PyObject *require_trace(PyObject *m, PyObject *name)
{
    (void)m;
    if (trace_current())
        Py_RETURN_NONE;
    return py_fail_at(
        PyExc_RuntimeError,
        "'%S' is a helper of kernels (@eas.fn) and works only while one is traced: call it in a function under "
        "@eas.kernel, and launch that",
        name);
}
static PyObject *interpreting(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    return PyBool_FromLong(launch_interprets());
}
static PyObject *ops(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    PyObject *t = PyTuple_New(eas_op_count());
    for (int i = 0; t && i < eas_op_count(); i++)
        PyTuple_SET_ITEM(t, i, PyUnicode_FromString(eas_op_name((eas_op)(i + 1))));
    return t;
}
#define KW(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef functions[] = {
    {"run", KW(py_run),
     "run(ck, runtime_args, meta, *, device, sync, nthreads, grid, tptg, shape, debug): launches"},
    {"benchmark", KW(py_benchmark),
     "benchmark(ck, runtime_args, meta, *, repeat, warmup, ...): seconds per run"},
    {"grid", KW(py_grid), "grid(ck, runtime_args, meta, ...): the grid a launch would use"},
    {"source", KW(py_source),
     "source(ck, runtime_args, addresses, ...): (variant, threads, group, values) of a launch that others run"},
    {"source_text", py_source_text, METH_VARARGS, "source_text(ck, variant): (MSL, name of the function)"},
    {"prepare", KW(py_prepare), "prepare(ck, runtime_args, meta, ...): compiles what a launch would need"},
    {"tune_load", py_tune_load, METH_VARARGS,
     "tune_load(ck, device, key): seconds that were stored, or None"},
    {"tune_store", py_tune_store, METH_VARARGS, "tune_store(ck, device, key, seconds)"},
    {"tune_choose", py_tune_choose, METH_O,
     "tune_choose(times): index of the first within 2 % of the least; negative times are out"},
    {"tune_export", py_tune_export, METH_NOARGS, "tune_export(): all timings on disk, as text"},
    {"tune_import", py_tune_import, METH_O, "tune_import(text): how many it took"},
    {"compile_ir", py_compile_ir, METH_O, "compile_ir(ir): the CompiledKernel of an eas.ir.IRModule"},
    {"limits", limits, METH_O, "limits(device): what a device can do, as a dict"},
    {"stats", stats, METH_NOARGS, "stats(): counters of this process"},
    {"cache_dir", cache_dir, METH_NOARGS, "cache_dir(): folder of the disk cache, \"\" when it is off"},
    {"cache_why", cache_why, METH_NOARGS, "cache_why(): why the disk cache is off"},
    {"cache_clear", cache_clear, METH_NOARGS, "cache_clear(): empties the disk cache"},
    {"cache_verify", cache_verify, METH_NOARGS,
     "cache_verify(): (good, bad, bytes); bad entries are dropped"},
    {"num_threads", num_threads, METH_NOARGS, "num_threads(): threads a launch may use"},
    {"_lend_threads", lend_threads, METH_O,
     "_lend_threads(address): of a function as GOMP_parallel, whose threads launches use; None: our own"},
    {"_set_package", set_package, METH_O, "_set_package(folder): frames of files in it are not the user's"},
    {"require_trace", require_trace, METH_O, "require_trace(name): RuntimeError unless a kernel is traced"},
    {"interpreting", interpreting, METH_NOARGS,
     "interpreting(): does EAS_INTERPRET ask for kernels to be run as plain Python?"},
    {"ops", ops, METH_NOARGS, "ops(): names of all instructions"},
    {NULL, NULL, 0, NULL},
};

/* ---- initialisation ---- */
static int init_names(void)
{
#define X(n) \
    if (!(N.n = PyUnicode_InternFromString(#n))) \
        return -1;
    PY_NAMES(X)
#undef X
    return 0;
}
/* POSIX keeps os.environ as a dict of bytes. */
static int init_environ(void)
{
    PyObject *os = PyImport_ImportModule("os"), *env = os ? PyObject_GetAttrString(os, "environ") : NULL,
             *data = env ? PyObject_GetAttrString(env, "_data") : NULL;
    PyErr_Clear();
    if (data && PyDict_Check(data))
        G.environ = Py_NewRef(data);
    G.backend_key = PyBytes_FromString("EAS_BACKEND");
    G.interpret_key = PyBytes_FromString("EAS_INTERPRET");
    G.debug_key = PyBytes_FromString("EAS_DEBUG");
    Py_XDECREF(data);
    Py_XDECREF(env);
    Py_XDECREF(os);
    return G.backend_key && G.interpret_key && G.debug_key ? 0 : -1;
}
static int init_types(PyObject *m)
{
    return (G.constexpr = py_type(m, &constexpr_spec, "constexpr")) &&
                   (G.trace = py_type(m, &Trace_spec, NULL)) && (G.var = py_type(m, &Var_spec, "Var")) &&
                   (G.range = py_type(m, &Range_spec, NULL)) && (G.branch = py_type(m, &Branch_spec, NULL)) &&
                   (G.whil = py_type(m, &While_spec, NULL)) && (G.ir = py_type(m, &IR_spec, "IR")) &&
                   (G.compiled = py_type(m, &Compiled_spec, "CompiledKernel"))
             ? 0
             : -1;
}
static int exec(PyObject *m)
{
    if (G.kernel)
        return PyErr_SetString(PyExc_ImportError, "eas._eas can be loaded once per process"), -1;
    if (PyArray_ImportNumPyAPI() < 0)
        return -1;
    G.bf16_num = -1;
    if (eas_device_get("cpu", &G.cpu) != EAS_OK)
        return py_raise(EAS_ERR_RUNTIME), -1;
    if (init_names() < 0 || init_environ() < 0 || init_types(m) < 0 || py_dtype_init(m) < 0 ||
        value_init(m) < 0 || mkfuncs_init(m) < 0 || flow_init(m) < 0 || array_init(m) < 0 ||
        tensor_init(m) < 0 || stream_init(m) < 0 || profile_init(m) < 0 || kernel_init(m) < 0 ||
        site_init(m) < 0 || dim_init(m) < 0 || eager_init(m) < 0 || pytree_init(m) < 0 || impl_init(m) < 0 ||
        eager_data_init(m) < 0 || eager_op_init(m) < 0 || eager_index_init(m) < 0 || eager_call_init(m) < 0 ||
        eager_override_init(m) < 0 || grad_init(m) < 0 || eager_loop_init(m) < 0 ||
        eager_random_init(m) < 0 || eager_shard_init(m) < 0 || eager_cost_init(m) < 0 ||
        eager_vmap_init(m) < 0 || dist_init(m) < 0 || eager_diff_init(m) < 0 || eager_compile_init(m) < 0 ||
        eager_io_init(m) < 0 || PyModule_AddStringConstant(m, "__version__", eas_version()) < 0 ||
        PyModule_AddStringConstant(m, "build_id", eas_build_id()) < 0 ||
        PyModule_AddStringConstant(m, "llvm_version", eas_llvm_version()) < 0)
        return -1;
    return PyModule_AddFunctions(m, functions);
}
static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec}, {0, NULL}};
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT,
                                 "eas._eas",
                                 "Kernels, traced values and tensors: the C side of eas.",
                                 0,
                                 NULL,
                                 slots,
                                 NULL,
                                 NULL,
                                 NULL};
PyMODINIT_FUNC PyInit__eas(void);
PyMODINIT_FUNC PyInit__eas(void) { return PyModuleDef_Init(&def); }
