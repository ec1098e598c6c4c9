/* kernel_type.c: compile, the texts, and the type Kernel. */
#include "kernel.h"

#include <structmember.h>
#include <stdlib.h>
#include <string.h>

/* ---- compile and the texts ---- */
static PyObject *kernel_compile(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Call c;
    Kernel *k = (Kernel *)self;
    PyObject *r = NULL;
    if (k->expands)
        return kernel_forward(k, args, nargs, kwnames, false, kernel_compile);
    if (kernel_resolve(k, args, nargs, kwnames, &c) && (!c.shape->has_options || options_check(&c.o, c.ck)))
        r = Py_NewRef(c.ck);
    kernel_call_done(&c);
    if (r || (PyErr_Occurred() ? !kernel_comes_apart(k, &c) : !k->expands))
        return r;
    return kernel_compile(self, args, nargs, kwnames);
}
static PyObject *text(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                      const char *form)
{
    PyObject *c = kernel_compile(self, args, nargs, kwnames),
             *r = c ? compiled_text((Compiled *)c, form) : NULL;
    Py_XDECREF(c);
    return r;
}
#define TEXT(name, form) \
    static PyObject *kernel_to_##name(PyObject *s, PyObject *const *a, Py_ssize_t n, PyObject *kw) \
    { \
        return text(s, a, n, kw, form); \
    }
TEXT(ir, "ir")
TEXT(msl, "msl")
TEXT(opencl, "opencl")
TEXT(plan, "plan")
TEXT(llvm, "llvm")
TEXT(asm, "asm")

static PyObject *launch_options(void) /* their keywords: a tuple */
{
    PyObject *names = PyTuple_New(NOPTIONS);
    for (int i = 0; i < NOPTIONS && names; i++) {
        PyObject *name = PyUnicode_FromString(kernel_option_names[i]);
        if (name)
            PyTuple_SET_ITEM(names, i, name);
        else
            Py_CLEAR(names);
    }
    return names;
}

/* ---- the type ---- */
static int like_function(Kernel *k) /* __name__, __doc__ and so on, as functools.wraps would */
{
    static const char *const names[] = {"__module__", "__name__", "__qualname__", "__doc__"};
    if (!(k->dict = PyDict_New()) || PyDict_SetItemString(k->dict, "__wrapped__", k->fn) < 0)
        return 0;
    for (int i = 0; i < 4; i++) {
        PyObject *v = PyObject_GetAttrString(k->fn, names[i]);
        int r = v ? PyDict_SetItemString(k->dict, names[i], v) : -1;
        Py_XDECREF(v);
        if (r < 0)
            return 0;
    }
    return 1;
}
static PyObject *clean_name(PyObject *name) /* "<lambda>" is no identifier in MSL */
{
    const char *s = PyUnicode_AsUTF8(name);
    PyObject *r = s ? PyUnicode_FromString(s) : NULL;
    if (!r || PyUnicode_IsIdentifier(r))
        return r;
    Py_DECREF(r);
    return PyUnicode_FromString("kernel_");
}
static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *names[] = {"fn", "fp_contract", "fast_math", "rewrite", NULL};
    PyObject *fn;
    int contract = 1, fast = 0, rewrite = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$ppp:Kernel", names, &fn, &contract, &fast, &rewrite))
        return NULL;
    if (!PyFunction_Check(fn))
        return py_fail(PyExc_TypeError, "@eas.kernel takes a Python function, got %s", Py_TYPE(fn)->tp_name);
    return kernel_make(type, fn, (contract ? 0 : EAS_KERNEL_NO_CONTRACT) | (fast ? EAS_KERNEL_FAST_MATH : 0),
                       rewrite != 0, NULL);
}
PyObject *kernel_make(PyTypeObject *type, PyObject *fn, unsigned flags, bool rewrite, PyObject *self)
{
    Kernel *k = (Kernel *)type->tp_alloc(type, 0);
    if (!k)
        return NULL;
    k->call = kernel_call;
    k->fn = Py_NewRef(fn);
    k->self = Py_XNewRef(self);
    k->flags = flags;
    k->rewrite = rewrite;
    k->name = clean_name(((PyFunctionObject *)fn)->func_name);
    k->cache = PyDict_New();
    if (!k->name || !k->cache || !like_function(k) || !kernel_read_signature(k))
        Py_CLEAR(k);
    return (PyObject *)k;
}
/* A kernel of the same function whose run-time parameters are the parts of k's. */
PyObject *kernel_inner(Kernel *of, PyObject *spec, PyObject *names)
{
    Kernel *k = (Kernel *)Py_TYPE(of)->tp_alloc(Py_TYPE(of), 0);
    if (!k)
        return NULL;
    k->call = kernel_call;
    k->fn = Py_NewRef(of->fn);
    k->self = Py_XNewRef(of->self);
    k->flags = of->flags;
    k->rewrite = of->rewrite;
    k->name = Py_NewRef(of->name);
    k->of = (Kernel *)Py_NewRef(of);
    k->spec = Py_NewRef(spec);
    k->parts = parts_read(spec);
    k->cache = PyDict_New();
    k->rt_names = Py_NewRef(names);
    k->meta_names = Py_NewRef(of->meta_names);
    k->nrt = (int)PyTuple_GET_SIZE(names);
    k->nmeta = of->nmeta;
    k->nparams = k->npositional = k->nrt + k->nmeta;
    k->names = PySequence_Concat(names, of->meta_names);
    k->defaults = k->names ? PyTuple_New(k->nparams) : NULL;
    k->order = PyMem_Calloc((size_t)k->nparams + 1, sizeof *k->order);
    for (int i = 0; k->defaults && k->order && i < k->nparams; i++) {
        PyTuple_SET_ITEM(k->defaults, i, Py_NewRef(k->fn));
        k->order[i] = i;
    }
    if (k->nparams > PY_MAX_PARAMS)
        py_fail(PyExc_ValueError,
                "kernel '%U': its arguments have %d parts with their sizes; at most %d are possible", k->name,
                k->nparams, PY_MAX_PARAMS);
    if (!k->cache || !k->defaults || !k->order || !like_function(k) || PyErr_Occurred())
        Py_CLEAR(k);
    return (PyObject *)k;
}
static int kernel_traverse(PyObject *o, visitproc visit, void *arg)
{
    Kernel *k = (Kernel *)o;
    Py_VISIT(k->inners);
    Py_VISIT(k->recent);
    Py_VISIT(k->of);
    Py_VISIT(k->spec);
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(k->fn);
    Py_VISIT(k->dict);
    Py_VISIT(k->defaults);
    Py_VISIT(k->cache);
    Py_VISIT(k->last);
    Py_VISIT(k->self);
    Py_VISIT(k->bound);
    return 0;
}
static int kernel_clear(PyObject *o)
{
    Kernel *k = (Kernel *)o;
    Py_CLEAR(k->inners);
    Py_CLEAR(k->recent);
    Py_CLEAR(k->of);
    Py_CLEAR(k->why);
    parts_free(k->parts); /* it borrows of the spec */
    k->parts = NULL;
    Py_CLEAR(k->spec);
    Py_CLEAR(k->fn);
    Py_CLEAR(k->dict);
    Py_CLEAR(k->defaults);
    Py_CLEAR(k->cache);
    Py_CLEAR(k->last);
    Py_CLEAR(k->self);
    Py_CLEAR(k->bound);
    return 0;
}
static void kernel_dealloc(PyObject *o)
{
    Kernel *k = (Kernel *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (k->weakrefs)
        PyObject_ClearWeakRefs(o);
    kernel_clear(o);
    Py_XDECREF(k->name);
    Py_XDECREF(k->names);
    Py_XDECREF(k->rt_names);
    Py_XDECREF(k->meta_names);
    Py_XDECREF(k->retraced);
    for (Shape *s = k->shapes, *next; s; s = next) {
        next = s->next;
        kernel_shape_free(s);
    }
    PyMem_Free(k->order);
    PyMem_Free(k->arrays);
    PyMem_Free(k->asked);
    type->tp_free(o);
    Py_DECREF(type);
}
static PyObject *kernel_repr(PyObject *o)
{
    return PyUnicode_FromFormat("<eas.Kernel '%U' %S, meta %S>", ((Kernel *)o)->name, ((Kernel *)o)->rt_names,
                                ((Kernel *)o)->meta_names);
}
static PyObject *kernel_subscript(PyObject *o, PyObject *grid)
{
    return py_fail_at(PyExc_TypeError,
                      "%U[...](...): the grid is an option of the call here: %U(..., _grid=%R)",
                      ((Kernel *)o)->name, ((Kernel *)o)->name, grid);
}
static PyObject *get_names(PyObject *o, void *c)
{
    (void)c;
    return Py_NewRef(((Kernel *)o)->names);
}
static PyObject *get_rt(PyObject *o, void *c)
{
    (void)c;
    return Py_NewRef(((Kernel *)o)->rt_names);
}
static PyObject *get_meta(PyObject *o, void *c)
{
    (void)c;
    return Py_NewRef(((Kernel *)o)->meta_names);
}
static PyObject *get_fn(PyObject *o, void *c)
{
    (void)c;
    return Py_XNewRef(((Kernel *)o)->fn);
}
static PyObject *get_cached(PyObject *o, void *c)
{
    (void)c;
    PyObject *all = PyDict_Values(((Kernel *)o)->cache), *key, *inner;
    Py_ssize_t at = 0;
    while (all && ((Kernel *)o)->inners && PyDict_Next(((Kernel *)o)->inners, &at, &key, &inner)) {
        PyObject *more = get_cached(inner, NULL), *sum = more ? PySequence_Concat(all, more) : NULL;
        Py_XDECREF(more);
        Py_SETREF(all, sum);
    }
    return all;
}
static PyObject *get_self(PyObject *o, void *c)
{
    (void)c;
    PyObject *self = ((Kernel *)o)->self;
    return Py_NewRef(self ? self : Py_None);
}
static PyObject *get_options(PyObject *o, void *c)
{
    (void)c;
    unsigned f = ((Kernel *)o)->flags;
    return Py_BuildValue("{s:O,s:O,s:O}", "fp_contract", f & EAS_KERNEL_NO_CONTRACT ? Py_False : Py_True,
                         "fast_math", f & EAS_KERNEL_FAST_MATH ? Py_True : Py_False, "rewrite",
                         ((Kernel *)o)->rewrite ? Py_True : Py_False);
}
/* By its name, as functions are: eas._pickle. */
static PyObject *kernel_reduce(PyObject *o, PyObject *unused)
{
    (void)unused;
    PyObject *m = PyImport_ImportModule("eas._pickle"),
             *r = m ? PyObject_CallMethod(m, "reduce", "O", o) : NULL;
    Py_XDECREF(m);
    return r;
}
static PyObject *get_retraced(PyObject *o, void *c)
{
    (void)c;
    PyObject *list = ((Kernel *)o)->retraced;
    return list ? PyList_AsTuple(list) : PyTuple_New(0);
}

static PyGetSetDef kernel_getset[] = {
    {"params", get_names, NULL, "names of all parameters", NULL},
    {"runtime_params", get_rt, NULL, "names of the run-time parameters", NULL},
    {"meta_params", get_meta, NULL, "names of the meta (eas.constexpr) parameters", NULL},
    {"_retraced", get_retraced, NULL,
     "why it was traced again because of what it captured; eas.explain says it", NULL},
    {"__self__", get_self, NULL, "the object that it is a method of, or None", NULL},
    {"_options", get_options, NULL, "fp_contract, fast_math and rewrite", NULL},
    {"fn", get_fn, NULL, "the Python function", NULL},
    {"compiled", get_cached, NULL, "the CompiledKernels made so far", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL | METH_KEYWORDS
static PyMethodDef kernel_methods[] = {
    {"compile", FAST(kernel_compile),
     "compile(*args, **kw): the CompiledKernel that a launch with these arguments would use; needs no device"},
    {"_check", FAST(kernel_check), "_check(*args, **kw): (text, findings); eas.check is the public form"},
    {"to_ir", FAST(kernel_to_ir), "to_ir(*args, **kw): the IR as text"},
    {"to_msl", FAST(kernel_to_msl), "to_msl(*args, **kw): Metal Shading Language"},
    {"to_opencl", FAST(kernel_to_opencl), "to_opencl(*args, **kw): OpenCL C"},
    {"to_plan", FAST(kernel_to_plan),
     "to_plan(*args, **kw): how it runs on the CPU: segments, where values lie, what is prefetched"},
    {"to_llvm", FAST(kernel_to_llvm), "to_llvm(*args, **kw): LLVM IR of the CPU code"},
    {"__reduce__", kernel_reduce, METH_NOARGS, NULL},
    {"to_asm", FAST(kernel_to_asm), "to_asm(*args, **kw): assembly of the CPU code"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Kernel, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Kernel, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Kernel, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot kernel_slots[] = {
    {Py_tp_doc,
     "Kernel(fn, *, fp_contract=True, fast_math=False, rewrite=True)\n--\n\nA kernel: call it to launch. Made by @eas.kernel."},
    {Py_tp_new, kernel_new},
    {Py_tp_dealloc, kernel_dealloc},
    {Py_tp_traverse, kernel_traverse},
    {Py_tp_clear, kernel_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, kernel_get},
    {Py_mp_subscript, kernel_subscript},
    {Py_tp_repr, kernel_repr},
    {Py_tp_getset, kernel_getset},
    {Py_tp_methods, kernel_methods},
    {Py_tp_members, kernel_members},
    {0, NULL},
};
PyType_Spec Kernel_spec = {"eas.Kernel", sizeof(Kernel), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                           kernel_slots};

/* eas.kernel hands over its globals: launches look get_runtime up there. */
static PyObject *set_globals(PyObject *m, PyObject *dict)
{
    (void)m;
    if (!PyDict_Check(dict))
        return py_fail(PyExc_TypeError, "a dict is wanted");
    Py_XSETREF(G.kernel_dict, Py_NewRef(dict));
    Py_XSETREF(G.get_runtime, Py_XNewRef(PyDict_GetItemWithError(dict, N.get_runtime)));
    return launch_watch() ? Py_NewRef(Py_None) : NULL;
}
static PyMethodDef functions[] = {{"_set_kernel_globals", set_globals, METH_O, NULL}, {NULL, NULL, 0, NULL}};
int kernel_init(PyObject *module)
{
    if (!(G.kernel = py_type(module, &Kernel_spec, "Kernel")) ||
        !(G.guards = py_type(module, &Guards_spec, NULL)))
        return -1;
    PyObject *options = launch_options();
    const int bad = !options || PyModule_AddObjectRef(module, "LAUNCH_OPTIONS", options) < 0;
    Py_XDECREF(options);
    return bad ? -1 : PyModule_AddFunctions(module, functions);
}
