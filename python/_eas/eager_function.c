/* eager_function.c: the CompiledFunction of Python: its options, what it holds, how it is shown, and its
 * counts. Calls are those of eager_compile.c. */
#include "eager_compile.h"

#include <string.h>
#include <structmember.h>

static PyObject *fn_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *names[] = {"fn",           "fullgraph", "max_cache_size",
                            "dynamic_dims", "donate",    "bucket",
                            "max_compiles", "mode",      NULL};
    PyObject *fn, *dynamic = Py_None, *donate = Py_None, *bucket = Py_None, *max_compiles = Py_None,
                  *mode = Py_None;
    int fullgraph = 0, cap = 64;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$piOOOOO:CompiledFunction", names, &fn, &fullgraph, &cap,
                                     &dynamic, &donate, &bucket, &max_compiles, &mode))
        return NULL;
    if (!PyCallable_Check(fn))
        return py_fail(PyExc_TypeError, "compile takes a function, got %s", Py_TYPE(fn)->tp_name);
    if (cap < 1)
        return py_fail(PyExc_ValueError, "compile: max_cache_size must be at least 1, got %d", cap);
    if (dynamic != Py_None && !PyDict_Check(dynamic))
        return py_fail(PyExc_TypeError, "compile: dynamic_dims is {argument index: {dim: name}}, got %R",
                       dynamic);
    if (bucket != Py_None && (!PyUnicode_Check(bucket) || PyUnicode_CompareWithASCIIString(bucket, "pow2")))
        return py_fail(PyExc_ValueError, "compile: bucket must be None or \"pow2\", got %R", bucket);
    if (bucket != Py_None && dynamic == Py_None)
        return py_fail(PyExc_ValueError,
                       "compile: bucket=\"pow2\" needs dynamic_dims, which say what dims vary");
    if (mode != Py_None && (!PyUnicode_Check(mode) || PyUnicode_CompareWithASCIIString(mode, "autotune")))
        return py_fail(PyExc_ValueError, "compile: mode must be None or \"autotune\", got %R", mode);
    long limit = max_compiles == Py_None ? -1 : PyLong_AsLong(max_compiles);
    if (PyErr_Occurred())
        return NULL;
    if (limit < -1 || (max_compiles != Py_None && limit < 0))
        return py_fail(PyExc_ValueError, "compile: max_compiles must not be negative, got %ld", limit);
    CompiledFn *c = (CompiledFn *)type->tp_alloc(type, 0);
    if (!c)
        return NULL;
    c->call = compiled_call;
    c->fn = Py_NewRef(fn);
    c->dynamic = dynamic == Py_None ? NULL : Py_NewRef(dynamic);
    c->donate = donate == Py_None     ? NULL
              : PyIndex_Check(donate) ? PyTuple_Pack(1, donate)
                                      : PySequence_Tuple(donate);
    c->fullgraph = fullgraph;
    c->pow2 = bucket != Py_None;
    c->autotune = mode != Py_None;
    c->cap = cap;
    c->max_compiles = (int)limit;
    c->entries = PyMem_Calloc((size_t)cap, sizeof *c->entries);
    PyObject *threading = PyImport_ImportModule("threading");
    c->lock = threading ? PyObject_CallMethod(threading, "RLock", NULL) : NULL;
    Py_XDECREF(threading);
    c->log = PyList_New(0);
    c->dict = PyDict_New();
    if (!c->entries || !c->lock || !c->log || !c->dict || (donate != Py_None && !c->donate)) {
        Py_DECREF(c);
        return NULL;
    }
    return (PyObject *)c;
}
static int fn_traverse(PyObject *o, visitproc visit, void *arg)
{
    CompiledFn *c = (CompiledFn *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(c->fn);
    Py_VISIT(c->dict);
    Py_VISIT(c->dynamic);
    Py_VISIT(c->log);
    for (int i = 0; i < c->n; i++) {
        Entry *e = c->entries[i];
        Py_VISIT(e->treedef);
        Py_VISIT(e->out_treedef);
        for (int k = 0; k < e->nleaves; k++)
            Py_VISIT(e->leaves[k].value);
        for (int k = 0; k < e->nsources; k++) {
            Py_VISIT(e->sources[k].container);
            Py_VISIT(e->sources[k].treedef);
        }
        for (int k = 0; k < e->nwrites; k++)
            Py_VISIT(e->writes[k].owner);
        for (int k = 0; k < e->nouts; k++) {
            Py_VISIT(e->outs[k]);
            Py_VISIT(e->shardings[k]);
        }
    }
    return 0;
}
static int fn_clear(PyObject *o)
{
    CompiledFn *c = (CompiledFn *)o;
    while (c->n)
        entry_free(c->entries[--c->n]);
    Py_CLEAR(c->fn);
    Py_CLEAR(c->dict);
    Py_CLEAR(c->dynamic);
    Py_CLEAR(c->log);
    return 0;
}
static void fn_dealloc(PyObject *o)
{
    CompiledFn *c = (CompiledFn *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (c->weakrefs)
        PyObject_ClearWeakRefs(o);
    fn_clear(o);
    Py_XDECREF(c->donate);
    Py_XDECREF(c->lock);
    PyMem_Free(c->entries);
    type->tp_free(o);
    Py_DECREF(type);
}
static PyObject *fn_get(PyObject *self, PyObject *obj, PyObject *type)
{
    (void)type;
    return obj && obj != Py_None ? PyMethod_New(self, obj) : Py_NewRef(self);
}
static PyObject *fn_repr(PyObject *o)
{
    return PyUnicode_FromFormat("<CompiledFunction %R, %d programs>", ((CompiledFn *)o)->fn,
                                ((CompiledFn *)o)->n);
}
static PyObject *fn_counts(PyObject *o, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(LLi)", (long long)((CompiledFn *)o)->hits, (long long)((CompiledFn *)o)->misses,
                         ((CompiledFn *)o)->n);
}
static PyObject *fn_log(PyObject *o, PyObject *unused)
{
    (void)unused;
    return PyList_GetSlice(((CompiledFn *)o)->log, 0, PY_SSIZE_T_MAX);
}
static PyObject *fn_clear_cache(PyObject *o, PyObject *unused)
{
    (void)unused;
    CompiledFn *c = (CompiledFn *)o;
    while (c->n)
        entry_free(c->entries[--c->n]);
    Py_RETURN_NONE;
}
/* Names of a program's inputs: parameters and paths of arguments, captured names. A list of bytes, which can
 * be read without the GIL. */
static PyObject *parameter_name(CompiledFn *c, Py_ssize_t i)
{
    PyObject *f = PyMethod_Check(c->fn) ? PyMethod_GET_FUNCTION(c->fn) : c->fn, *r = NULL;
    if (PyFunction_Check(f)) {
        PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)f)->func_code;
        PyObject *names = PyCode_GetVarnames(code);
        Py_ssize_t at = i + (PyMethod_Check(c->fn) ? 1 : 0);
        if (names && at < code->co_argcount)
            r = Py_NewRef(PyTuple_GET_ITEM(names, at));
        Py_XDECREF(names);
    }
    PyErr_Clear();
    return r ? r : PyUnicode_FromFormat("args[%zd]", i);
}
/* "args[0]['w']" as "params['w']" */
static PyObject *argument_name(CompiledFn *c, Entry *e, Py_ssize_t leaf)
{
    if (!e->treedef)
        return parameter_name(c, leaf);
    PyObject *path = pytree_arg_path(e->treedef, leaf), *name = NULL, *rest = NULL, *r = NULL;
    long arg = -1;
    int used = 0;
    const char *text = path ? PyUnicode_AsUTF8(path) : NULL;
    if (text && sscanf(text, "args[%ld]%n", &arg, &used) == 1 && used) {
        name = parameter_name(c, arg);
        rest = PyUnicode_FromString(text + used);
        r = name && rest ? PyUnicode_Concat(name, rest) : NULL;
    } else
        r = Py_XNewRef(path);
    Py_XDECREF(path);
    Py_XDECREF(name);
    Py_XDECREF(rest);
    return r;
}
static PyObject *captured_name(Entry *e, int leaf)
{
    for (int i = 0; i < e->nsources; i++) {
        const source *s = &e->sources[i];
        if (s->kind == S_SIZE || leaf < s->first || leaf >= s->first + s->n)
            continue;
        PyObject *path = s->treedef ? pytree_path(s->treedef, leaf - s->first) : PyUnicode_FromString("");
        PyObject *r = path ? PyUnicode_FromFormat("%V%U", s->key && PyUnicode_Check(s->key) ? s->key : NULL,
                                                  "captured", path)
                           : NULL;
        Py_XDECREF(path);
        return r;
    }
    return PyUnicode_FromString("captured");
}
static PyObject *input_names(CompiledFn *c, Entry *e)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < e->nleaves + 1; i++) {
        bool counter = i == e->nleaves;
        if (counter ? !e->draws : !e->leaves[i].is_tensor)
            continue;
        PyObject *name = counter           ? PyUnicode_FromString("random counter")
                       : i < e->nargleaves ? argument_name(c, e, i)
                                           : captured_name(e, i);
        PyObject *bytes = name ? PyUnicode_AsUTF8String(name) : NULL;
        if (!bytes || PyList_Append(list, bytes) < 0)
            Py_CLEAR(list);
        Py_XDECREF(bytes);
        Py_XDECREF(name);
    }
    return list;
}
static const char *input_name(void *context, eas_node *n, int input)
{
    (void)n;
    PyObject *list = context;
    return input >= 0 && input < PyList_GET_SIZE(list) ? PyBytes_AS_STRING(PyList_GET_ITEM(list, input))
                                                       : NULL;
}
static PyObject *fn_show(PyObject *o, PyObject *form)
{
    CompiledFn *c = (CompiledFn *)o;
    const char *f = PyUnicode_Check(form) ? PyUnicode_AsUTF8(form) : NULL;
    char *text = NULL;
    if (!f)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "_show(form)");
    if (!c->n || !c->entries[0]->program)
        return py_fail(PyExc_RuntimeError, "nothing was compiled yet: call the function first");
    PyObject *names = input_names(c, c->entries[0]);
    if (!names)
        return NULL;
    eas_program *p = eas_program_retain(c->entries[0]->program);
    eas_status st;
    Py_BEGIN_ALLOW_THREADS;
    eas_show_set_namer(input_name, names);
    st = eas_program_show(p, f, &text);
    eas_show_set_namer(NULL, NULL);
    Py_END_ALLOW_THREADS;
    Py_DECREF(names);
    eas_program_release(p);
    return py_take_text(st, text);
}
static PyMethodDef fn_methods[] = {
    {"_counts", fn_counts, METH_NOARGS, "(hits, misses, programs)"},
    {"_log", fn_log, METH_NOARGS, "a dict for each miss: cause, ms, compiled"},
    {"_show", fn_show, METH_O, "what the program used last does"},
    {"clear_cache", fn_clear_cache, METH_NOARGS, "clear_cache()\n--\n\nForgets all programs."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef fn_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
                                  {NULL, NULL, NULL, NULL, NULL}};
static PyMemberDef fn_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(CompiledFn, fn), READONLY, "the function"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFn, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFn, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFn, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};
static PyType_Slot fn_slots[] = {
    {Py_tp_doc, "A function that is traced once for each kind of arguments, and then replayed."},
    {Py_tp_new, fn_new},
    {Py_tp_traverse, fn_traverse},
    {Py_tp_clear, fn_clear},
    {Py_tp_dealloc, fn_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, fn_get},
    {Py_tp_repr, fn_repr},
    {Py_tp_methods, fn_methods},
    {Py_tp_getset, fn_getset},
    {Py_tp_members, fn_members},
    {0, NULL},
};
static PyType_Spec fn_spec = {"eager._CompiledFunction", sizeof(CompiledFn), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                                  Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                              fn_slots};

static PyObject *compile_watch(PyObject *m, PyObject *var)
{
    (void)m;
    return find_watch(var) ? Py_NewRef(Py_None) : NULL;
}
static PyMethodDef watch_functions[] = {
    {"compile_watch", compile_watch, METH_O,
     "compile_watch(var): a context variable that compiled functions depend on, whatever they name"},
    {NULL, NULL, 0, NULL},
};

int eager_compile_init(PyObject *module)
{
    if (PyModule_AddFunctions(module, watch_functions) < 0)
        return -1;
    if (!(compiled_fn_type = py_type(module, &fn_spec, "CompiledFunction")))
        return -1;
    graph_break = PyErr_NewExceptionWithDoc("eager.GraphBreak", "Data was read while a function was traced.",
                                            PyExc_RuntimeError, NULL);
    return graph_break ? PyModule_AddObjectRef(module, "GraphBreak", graph_break) : -1;
}
