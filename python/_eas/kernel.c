/* kernel.c: Kernel, what @eas.kernel makes of a function: its signature, its specialisations, its call.
 *
 * A cached call allocates nothing and runs no Python: the shape of the call (how many positional arguments, which
 * names) is found by identity, arguments go to eas_arg with a tag each, and tags and meta values equal those of the last
 * specialisation. Shapes are never dropped while the kernel lives, so a call may use one without counting. */
#include "py.h"

#include <structmember.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PY_X(name) "_" #name,
static const char *const option_names[] = {LAUNCH_OPTIONS(PY_X)};
#undef PY_X
#define PY_X(name) OPTION_##name,
enum { LAUNCH_OPTIONS(PY_X) NOPTIONS };
#undef PY_X
enum { MAX_SHAPES = 32 };

typedef struct Shape {
    struct Shape *next;
    Py_ssize_t nargs;
    PyObject *kwnames;          /* counted; NULL if none */
    PyObject *options;          /* names of the options that are given, for an inner kernel; or NULL */
    int16_t option[NOPTIONS];   /* index of the argument, or -1 */
    bool has_options;
    int16_t src[];              /* per run-time parameter, then per meta parameter: index of the argument, -1: its default */
} Shape;

typedef struct Kernel {
    PyObject_HEAD vectorcallfunc call;
    PyObject *fn, *name, *dict, *weakrefs;
    PyObject *self;             /* of a bound method: its first parameter, which is no argument of a call; else NULL */
    PyObject *bound;            /* of a method: {class: what classmethod bound}; or NULL */
    bool rewrite;               /* Python's own branches and loops are the kernel's (eas._rewrite) */
    bool method;                /* its first parameter is self or cls, and not bound */
    PyObject *names;            /* tuple: all parameters in order */
    PyObject *defaults;         /* tuple: as long; NULL entries are stood in for by the kernel itself */
    PyObject *rt_names, *meta_names;
    int *order;                 /* run-time parameters, then meta ones: indices into names */
    int nparams, npositional, nposonly, nrt, nmeta;
    unsigned flags;
    PyObject *cache;            /* key -> Compiled */
    PyObject *retraced;         /* list of str: why it was traced again because of what it captured, the latest few; or NULL */
    Compiled *last;
    Shape *shapes, *last_shape;
    int nshapes;
    /* Arguments that come apart (eas._struct) */
    uint8_t *arrays;            /* per run-time parameter: what is asked of it as an array, eas._struct.SHAPE | INDEX; NULL: nothing of any */
    bool expands;               /* calls go to an inner kernel */
    PyObject *why;              /* str: what binding said of an array with strides that the kernel may or may not use by indices; or NULL */
    PyObject *inners;           /* spec -> inner kernel; or NULL */
    struct Kernel *recent;      /* the inner kernel of the last call; or NULL */
    uint8_t *asked;             /* and what was asked of its arguments as arrays */
    struct Kernel *of;          /* of an inner kernel: whose it is */
    PyObject *spec;             /* and how that one's arguments come apart */
    parts_spec *parts;          /* the same, for launches; or NULL */
} Kernel;

static PyObject *default_of(Kernel *k, int i)
{
    PyObject *d = PyTuple_GET_ITEM(k->defaults, k->order[i]);
    return d == (PyObject *)k->fn ? NULL : d; /* the function itself marks "none" */
}

/* ---- signature ---- */
static bool is_constexpr(PyObject *a)
{
    if (a == (PyObject *)G.constexpr)
        return true;
    const char *s = PyUnicode_Check(a) ? PyUnicode_AsUTF8(a) : NULL;
    if (!s)
        return PyErr_Clear(), false;
    size_t n = strcspn(s, "[");
    while (n && strchr(" '\"", s[n - 1]))
        n--;
    while (n && strchr(" '\"", *s))
        s++, n--;
    return n >= 9 && !strncmp(s + n - 9, "constexpr", 9) && (n == 9 || s[n - 10] == '.');
}
static PyObject *read_defaults(Kernel *k, PyFunctionObject *f)
{
    PyObject *t = PyTuple_New(k->nparams);
    Py_ssize_t nd = f->func_defaults ? PyTuple_GET_SIZE(f->func_defaults) : 0;
    for (int i = 0; t && i < k->nparams; i++) {
        PyObject *d = NULL;
        if (i < k->npositional && i >= k->npositional - nd)
            d = PyTuple_GET_ITEM(f->func_defaults, i - (k->npositional - nd));
        else if (i >= k->npositional && f->func_kwdefaults)
            d = PyDict_GetItemWithError(f->func_kwdefaults, PyTuple_GET_ITEM(k->names, i));
        PyTuple_SET_ITEM(t, i, Py_NewRef(d ? d : k->fn));
    }
    return t;
}
static int check_name(PyObject *name)
{
    for (int i = 0; i < NOPTIONS; i++)
        if (!PyUnicode_CompareWithASCIIString(name, option_names[i]))
            return py_fail(PyExc_ValueError, "a kernel parameter cannot be called '%U': that is a launch option", name), 0;
    return 1;
}
static bool is_method(const Kernel *k, PyObject *notes)
{
    PyObject *first = k->npositional ? PyTuple_GET_ITEM(k->names, 0) : NULL;
    if (!first || (PyDict_Check(notes) && PyDict_GetItemWithError(notes, first)))
        return false;
    return !PyUnicode_CompareWithASCIIString(first, "self") || !PyUnicode_CompareWithASCIIString(first, "cls");
}
/* The parameters in order, and which are meta: without inspect, whose import costs more than ours. */
static int read_signature(Kernel *k)
{
    PyFunctionObject *f = (PyFunctionObject *)k->fn;
    PyCodeObject *code = (PyCodeObject *)f->func_code;
    if (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS))
        return py_fail(PyExc_TypeError, "kernel '%U': *args and **kwargs are not possible; name every parameter", k->name), 0;
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR))
        return py_fail(PyExc_TypeError, "kernel '%U': a kernel cannot be a generator or a coroutine", k->name), 0;
    const int skip = k->self != NULL;
    k->npositional = code->co_argcount - skip;
    k->nposonly = code->co_posonlyargcount > skip ? code->co_posonlyargcount - skip : 0;
    k->nparams = k->npositional + code->co_kwonlyargcount;
    if (k->nparams > PY_MAX_PARAMS)
        return py_fail(PyExc_ValueError, "kernel '%U' has %d parameters; at most %d are possible", k->name, k->nparams, PY_MAX_PARAMS), 0;
    PyObject *all = PyObject_GetAttrString((PyObject *)code, "co_varnames"), *notes = all ? PyObject_GetAttr(k->fn, N.__annotations__) : NULL;
    k->names = notes ? PyTuple_GetSlice(all, skip, skip + k->nparams) : NULL;
    k->method = k->names && !skip && is_method(k, notes);
    k->defaults = k->names ? read_defaults(k, f) : NULL;
    k->order = k->defaults ? PyMem_Calloc((size_t)k->nparams + 1, sizeof *k->order) : NULL;
    PyObject *rt = PyList_New(0), *meta = PyList_New(0);
    int ok = k->order && rt && meta;
    for (int want = 0; ok && want < 2; want++)
        for (int i = 0; ok && i < k->nparams; i++) {
            PyObject *name = PyTuple_GET_ITEM(k->names, i), *a = PyDict_Check(notes) ? PyDict_GetItemWithError(notes, name) : NULL;
            ok = !PyErr_Occurred() && check_name(name);
            if ((a && is_constexpr(a)) != want)
                continue;
            k->order[want ? k->nrt + k->nmeta++ : k->nrt++] = i;
            ok = ok && PyList_Append(want ? meta : rt, name) == 0;
        }
    if (ok)
        ok = (k->rt_names = PyList_AsTuple(rt)) && (k->meta_names = PyList_AsTuple(meta));
    Py_XDECREF(rt);
    Py_XDECREF(meta);
    Py_XDECREF(all);
    Py_XDECREF(notes);
    return ok;
}

/* ---- call shapes ---- */
static int bad_keyword(Kernel *k, PyObject *name)
{
    PyObject *options = PyUnicode_FromString(option_names[0]);
    for (int i = 1; i < NOPTIONS && options; i++)
        Py_SETREF(options, PyUnicode_FromFormat("%U, %s", options, option_names[i]));
    if (options)
        py_fail(PyExc_TypeError, "%U() got an unknown argument '%U'; its parameters are %S, the launch options %U", k->name, name, k->names, options);
    Py_XDECREF(options);
    return 0;
}
static int place_keyword(Kernel *k, Shape *s, PyObject *name, int arg, int16_t *at)
{
    for (int i = 0; i < k->nparams; i++) {
        if (PyUnicode_Compare(name, PyTuple_GET_ITEM(k->names, i)))
            continue;
        if (i < k->nposonly)
            return py_fail(PyExc_TypeError, "%U(): parameter '%U' is positional only", k->name, name), 0;
        if (at[i] >= 0)
            return py_fail(PyExc_TypeError, "%U() got two values for argument '%U'", k->name, name), 0;
        at[i] = (int16_t)arg;
        return 1;
    }
    for (int i = 0; i < NOPTIONS; i++)
        if (!PyUnicode_CompareWithASCIIString(name, option_names[i])) {
            s->option[i] = (int16_t)arg;
            return s->has_options = true;
        }
    return bad_keyword(k, name);
}
static int place_all(Kernel *k, Shape *s, Py_ssize_t nargs, PyObject *kwnames)
{
    int16_t at[PY_MAX_PARAMS];
    if (nargs > k->npositional)
        return py_fail(PyExc_TypeError, "%U() takes %d positional arguments but %zd were given", k->name, k->npositional, nargs), 0;
    for (int i = 0; i < k->nparams; i++)
        at[i] = (int16_t)(i < nargs ? i : -1);
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
        if (!place_keyword(k, s, PyTuple_GET_ITEM(kwnames, i), (int)(nargs + i), at))
            return 0;
    for (int i = 0; i < k->nparams; i++) {
        s->src[i] = at[k->order[i]];
        if (s->src[i] < 0 && !default_of(k, i))
            return py_fail(PyExc_TypeError, "%U() is missing its argument '%U'", k->name, PyTuple_GET_ITEM(k->names, k->order[i])), 0;
    }
    return 1;
}
static void shape_free(Shape *s)
{
    Py_XDECREF(s->kwnames);
    Py_XDECREF(s->options);
    PyMem_Free(s);
}
/* Keyword names are interned, so equal tuples of them have identical entries. */
static bool same_names(PyObject *a, PyObject *b)
{
    Py_ssize_t n = a ? PyTuple_GET_SIZE(a) : 0;
    if (a == b || n != (b ? PyTuple_GET_SIZE(b) : 0))
        return a == b;
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyTuple_GET_ITEM(a, i) != PyTuple_GET_ITEM(b, i))
            return false;
    return true;
}
/* NULL with an exception; *owned if the caller must free it. */
static Shape *find_shape(Kernel *k, Py_ssize_t nargs, PyObject *kwnames, bool *owned)
{
    *owned = false;
    for (Shape *s = k->shapes; s; s = s->next)
        if (s->nargs == nargs && same_names(s->kwnames, kwnames)) {
            Py_XINCREF(kwnames); /* this tuple is found at once next time */
            Py_XSETREF(s->kwnames, kwnames);
            return k->last_shape = s;
        }
    Shape *s = PyMem_Calloc(1, sizeof *s + (size_t)k->nparams * sizeof *s->src);
    if (!s)
        return (Shape *)PyErr_NoMemory();
    s->nargs = nargs;
    memset(s->option, -1, sizeof s->option);
    if (!place_all(k, s, nargs, kwnames))
        return shape_free(s), NULL;
    s->kwnames = Py_XNewRef(kwnames);
    if (k->nshapes >= MAX_SHAPES)
        return *owned = true, s;
    s->next = k->shapes;
    k->shapes = k->last_shape = s;
    k->nshapes++;
    return s;
}

/* ---- meta values ---- */
static PyObject *meta_key(PyObject *v);
static PyObject *tuple_key(PyObject *v)
{
    PyObject *t = PyTuple_New(PyTuple_GET_SIZE(v));
    for (Py_ssize_t i = 0; t && i < PyTuple_GET_SIZE(v); i++) {
        PyObject *e = meta_key(PyTuple_GET_ITEM(v, i));
        if (!e)
            Py_CLEAR(t);
        else
            PyTuple_SET_ITEM(t, i, e);
    }
    return t;
}
/* Something hashable that is equal exactly when the kernel would be traced alike: 1, 1.0 and True differ, so do 0.0 and -0.0.
 * NULL without an exception: not a meta value. */
static PyObject *meta_key(PyObject *v)
{
    if (PyTuple_CheckExact(v))
        return tuple_key(v);
    if (PyFloat_CheckExact(v)) {
        double d = PyFloat_AS_DOUBLE(v);
        return PyBytes_FromStringAndSize((char *)&d, sizeof d);
    }
    if (PyLong_Check(v) || PyUnicode_Check(v) || Py_IS_TYPE(v, G.dtype) || v == Py_None || PyArray_DescrCheck(v))
        return PyTuple_Pack(2, (PyObject *)Py_TYPE(v), v);
    if (PyType_Check(v) && PyType_IsSubtype((PyTypeObject *)v, &PyGenericArrType_Type))
        return PyTuple_Pack(2, (PyObject *)Py_TYPE(v), v);
    if (PyFunction_Check(v) || PyCFunction_Check(v) || Py_IS_TYPE(v, G.kernel)) /* helpers, by identity */
        return PyTuple_Pack(2, (PyObject *)Py_TYPE(v), v);
    if (PyObject_Hash(v) == -1)
        return PyErr_Clear(), NULL;
    return PyTuple_Pack(2, (PyObject *)Py_TYPE(v), v);
}
/* NumPy numbers become Python's: a meta value is a plain number. New reference. */
static PyObject *meta_plain(PyObject *v) { return PyArray_IsScalar(v, Generic) ? PyObject_CallMethod(v, "item", NULL) : Py_NewRef(v); }
static bool same_meta(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    if (Py_TYPE(a) != Py_TYPE(b) || !(PyLong_CheckExact(a) || PyUnicode_CheckExact(a)))
        return false;
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

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
/* fn, the kernel's, called on argv (taken) in the context of the trace. 1 if it came through and returned nothing. */
static int call_body(Kernel *k, PyObject *fn, Trace *t, PyObject **argv)
{
    PyObject *kwnames = k->nparams > k->npositional ? PyTuple_GetSlice(k->names, k->npositional, k->nparams) : NULL;
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
        py_fail(PyExc_TypeError, "kernel '%U' returned a %s: a kernel returns nothing; write results with mk.store", k->name, Py_TYPE(r)->tp_name);
        Py_CLEAR(r);
    }
    Py_XDECREF(r);
    return r != NULL;
}
/* A pending if is closed in the trace's own context; nothing else may be open. */
static int close_body(Trace *t)
{
    Trace *former = trace_push(t);
    int closed = ctrl_finish(t);
    trace_pop(former);
    return closed;
}
static PyObject *deciding(Kernel *k, PyObject *metas);
/* The function to run: rewritten if it has branches, loops or helpers. New reference. */
static PyObject *function_of(Kernel *k, PyObject *const *metas, bool live)
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
    m = PyImport_ImportModule("eas._rewrite");
    t = m ? PyTuple_New(k->nmeta) : NULL;
    for (int i = 0; t && i < k->nmeta; i++)
        PyTuple_SET_ITEM(t, i, Py_NewRef(metas[i]));
    if (t)
        Py_SETREF(t, deciding(k, t));
    if (t)
        fn = PyObject_CallMethod(m, "kernel", "OOOOO", k->fn, t, k->self ? k->self : Py_None, live ? Py_True : Py_False, k->meta_names);
    Py_XDECREF(t);
    Py_XDECREF(m);
    return fn;
}
/* What the body gets for the run-time parameters, of symbols for the inner kernel's: a new tuple. Steals symbols. */
static PyObject *together(Kernel *k, PyObject *symbols)
{
    while (symbols && k->of) {
        PyObject *m = PyImport_ImportModule("eas._struct"), *next = m ? PyObject_CallMethod(m, "rebuild", "OO", k->spec, symbols) : NULL;
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
/* fn called on symbols (stolen) for run-time parameters and the values themselves for meta ones. 1 if it came through. */
static int call_with(Kernel *k, PyObject *fn, Trace *t, PyObject *symbols, PyObject *const *metas)
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
    PyObject *fn = function_of(k, metas, false), *symbols = fn ? PyTuple_New(k->nrt) : NULL;
    for (int i = 0; symbols && i < k->nrt; i++) {
        PyObject *o = symbol(t, PyTuple_GET_ITEM(k->names, k->order[i]), tags[i]);
        if (!o)
            Py_CLEAR(symbols);
        else
            PyTuple_SET_ITEM(symbols, i, o);
    }
    int ok = symbols && call_with(k, fn, t, symbols, metas);
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
    if (!close_body(t))
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
static PyObject *meta_dict(Kernel *k, PyObject *const *metas)
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
static int index_of(PyObject *names, PyObject *name)
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
        PyObject *head = spec_is(k, i, "t") ? PyUnicode_FromFormat("%U_", PyTuple_GET_ITEM(k->of->rt_names, i)) : NULL;
        bool is = head && PyUnicode_Tailmatch(part, head, 0, PY_SSIZE_T_MAX, -1) == 1;
        Py_XDECREF(head);
        if (is)
            return i;
    }
    return -1;
}
static int ask_name(Kernel *k, PyObject *name, uint8_t what)
{
    int i = k->of ? index_of(k->of->rt_names, name) : -1;
    if (i >= 0 && (spec_is(k, i, "a") || (spec_is(k, i, "p") && !(k->of->arrays && k->of->arrays[i]))))
        return ask(k->of, i, what); /* one level for all arrays: launches find their parts at once */
    if (k->of && (i = struct_of(k, name)) >= 0)
        return ask(k->of, i, 3); /* of all arrays in it */
    i = index_of(k->rt_names, name);
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
        PyObject *m = PyImport_ImportModule("eas._struct"), *more = m ? PyObject_CallMethod(m, "constants", "(O)", k->spec) : NULL;
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
static Compiled *trace_kernel(Kernel *k, PyObject *const *metas, const uint8_t *tags, unsigned flags)
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
    PyObject *dict = meta_dict(k, metas), *tuple = dict ? PyTuple_New(k->nmeta) : NULL;
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

/* ---- specialisations ---- */
static PyObject *make_key(Kernel *k, PyObject *const *metas, const uint8_t *tags)
{
    PyObject *key = PyTuple_New(1 + k->nmeta);
    if (!key)
        return NULL;
    PyTuple_SET_ITEM(key, 0, PyBytes_FromStringAndSize((const char *)tags, k->nrt));
    for (int i = 0; i < k->nmeta; i++) {
        PyObject *e = meta_key(metas[i]);
        if (!e) {
            if (!PyErr_Occurred())
                py_fail(PyExc_TypeError,
                        "%U: meta argument '%U' must be hashable (a number, str, dtype, function, tuple, frozen dataclass, ...); got %s", k->name,
                        PyTuple_GET_ITEM(k->meta_names, i), Py_TYPE(metas[i])->tp_name);
            return Py_DECREF(key), NULL;
        }
        PyTuple_SET_ITEM(key, 1 + i, e);
    }
    return key;
}
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static bool logs(void)
{
    const char *level = getenv("EAS_LOG");
    return level && (!strcmp(level, "info") || !strcmp(level, "debug"));
}
/* What is written for people fails nothing. */
static void log_traced(Kernel *k, PyObject *c, bool again)
{
    PyObject *why = again && k->retraced && PyList_GET_SIZE(k->retraced) ? PyList_GET_ITEM(k->retraced, PyList_GET_SIZE(k->retraced) - 1) : Py_None;
    PyObject *m = PyImport_ImportModule("eas._profile"), *r = m ? PyObject_CallMethod(m, "log_traced", "OOO", (PyObject *)k, c, why) : NULL;
    if (!r)
        PyErr_WriteUnraisable((PyObject *)k);
    Py_XDECREF(r);
    Py_XDECREF(m);
}
/* A dict keeps the order of insertion: what is used goes to its end, and what is at its front goes when there are too many. A trace is some 16 KB. */
enum { MAX_TRACES = 1024 };
static void keep_recent(Kernel *k, PyObject *key, PyObject *c)
{
    if (PyDict_GET_SIZE(k->cache) < MAX_TRACES / 2)
        return;
    if (PyDict_DelItem(k->cache, key) < 0 || PyDict_SetItem(k->cache, key, c) < 0)
        PyErr_Clear(); /* it is traced again */
    while (PyDict_GET_SIZE(k->cache) > MAX_TRACES) {
        Py_ssize_t at = 0;
        PyObject *oldest;
        if (!PyDict_Next(k->cache, &at, &oldest, NULL))
            return;
        Py_INCREF(oldest);
        if (PyDict_DelItem(k->cache, oldest) < 0)
            PyErr_Clear();
        Py_DECREF(oldest);
    }
}
/* What the specialisation captured has changed: it is forgotten, and why is kept for eas.explain. */
static int forget(Kernel *k, PyObject *key, Compiled *c)
{
    enum { KEPT = 16 };
    PyObject *why = guards_reason(c->guards);
    if (!k->retraced)
        k->retraced = PyList_New(0);
    int ok = why && k->retraced && PyList_Append(k->retraced, why) == 0;
    if (ok && PyList_GET_SIZE(k->retraced) > KEPT)
        ok = PyList_SetSlice(k->retraced, 0, 1, NULL) == 0;
    Py_XDECREF(why);
    if (ok && PyDict_DelItem(k->cache, key) < 0)
        PyErr_Clear(); /* another thread did it */
    return ok;
}
static Compiled *look_up(Kernel *k, PyObject *const *metas, const uint8_t *tags) /* new reference */
{
    PyObject *key = make_key(k, metas, tags);
    if (!key)
        return NULL;
    PyObject *c = Py_XNewRef(PyDict_GetItemWithError(k->cache, key));
    bool again = c && ((Compiled *)c)->guards && !guards_hold(((Compiled *)c)->guards);
    if (again) {
        forget(k, key, (Compiled *)c);
        Py_CLEAR(c);
    }
    if (!c && !PyErr_Occurred() && !k->expands) {
        double start = seconds();
        c = (PyObject *)trace_kernel(k, metas, tags, k->flags);
        if (c) {
            ((Compiled *)c)->traced = seconds() - start;
            /* another thread may have been quicker: its object stays */
            PyObject *kept = PyDict_SetDefault(k->cache, key, c);
            Py_XINCREF(kept);
            Py_SETREF(c, kept);
            if (kept && logs())
                log_traced(k, kept, again);
        }
    }
    if (c)
        keep_recent(k, key, c);
    Py_DECREF(key);
    if (c)
        Py_XSETREF(k->last, (Compiled *)Py_NewRef(c));
    return (Compiled *)c;
}
static Compiled *specialise(Kernel *k, PyObject *const *metas, const uint8_t *tags)
{
    PyObject *plain[PY_MAX_PARAMS];
    int n = 0;
    while (n < k->nmeta && (plain[n] = meta_plain(metas[n])))
        n++;
    Compiled *c = n == k->nmeta ? look_up(k, plain, tags) : NULL;
    while (n--)
        Py_DECREF(plain[n]);
    return c;
}
static inline bool is_last(const Kernel *k, PyObject *const *metas, const uint8_t *tags)
{
    if (!k->last || memcmp(k->last->tags, tags, (size_t)k->nrt))
        return false;
    for (int i = 0; i < k->nmeta; i++)
        if (!same_meta(metas[i], PyTuple_GET_ITEM(k->last->metas, i)))
            return false;
    return !k->last->guards || guards_hold(k->last->guards);
}

/* ---- a call ---- */
typedef struct Call {
    Shape *shape;
    bool owned; /* shape is this call's own */
    Compiled *ck; /* counted */
    Options o;
    Bound bd;
    int failed; /* the argument that could not be bound, or -1 */
    uint8_t tags[PY_MAX_PARAMS];
    PyObject *objs[PY_MAX_PARAMS]; /* run-time, then meta */
    eas_arg args[PY_MAX_PARAMS];
} Call;

static void call_done(Call *c)
{
    bind_done(&c->bd);
    Py_XDECREF(c->ck);
    if (c->owned && c->shape)
        shape_free(c->shape);
}
static PyObject *nested(Kernel *k)
{
    return py_fail_at(PyExc_RuntimeError,
                      "kernel '%U' is called while kernel '%U' is traced: kernels do not call kernels (or themselves). Put the shared code into a "
                      "plain function and call that from both",
                      k->name, trace_current()->name);
}
static void pick_options(Call *c, PyObject *const *args)
{
#define PY_X(name) &c->o.name,
    PyObject **at[NOPTIONS] = {LAUNCH_OPTIONS(PY_X)};
#undef PY_X
    for (int i = 0; i < NOPTIONS; i++)
        *at[i] = c->shape->option[i] < 0 ? NULL : args[c->shape->option[i]];
}
static inline void call_begin(Kernel *k, Call *c)
{
    c->owned = false;
    c->ck = NULL;
    c->bd.kernel = k->name;
    c->bd.device = NULL;
    c->bd.ntemps = 0;
    c->bd.defer_mps = true;
    c->bd.has_mps = false;
    c->bd.strided = false;
    c->shape = NULL;
    c->failed = -1;
}
/* Binds the arguments; 0 with an exception. call_done is due in either case. */
static inline int bind_call(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Call *c)
{
    Shape *s = k->last_shape;
    call_begin(k, c);
    if (trace_active && trace_current())
        return nested(k), 0;
    if (k->method) {
        py_fail(PyExc_TypeError, "%U is a method: take it from an object, as in obj.%U.compile(...)", k->name, k->name);
        return 0;
    }
    if (!s || s->nargs != nargs || s->kwnames != kwnames)
        s = find_shape(k, nargs, kwnames, &c->owned);
    if (!(c->shape = s))
        return 0;
    for (int i = 0; i < k->nparams; i++)
        c->objs[i] = s->src[i] >= 0 ? args[s->src[i]] : default_of(k, i);
    for (int i = 0; i < k->nrt; i++)
        if (!(c->tags[i] = (uint8_t)bind_arg(&c->bd, c->objs[i], i, PyTuple_GET_ITEM(k->rt_names, i), &c->args[i]))) {
            c->failed = i;
            return 0;
        }
    if (s->has_options)
        pick_options(c, args);
    return 1;
}
/* Finds the specialisation; 0 with an exception. */
static inline int specialise_call(Kernel *k, Call *c)
{
    c->ck = is_last(k, c->objs + k->nrt, c->tags) ? (Compiled *)Py_NewRef(k->last) : specialise(k, c->objs + k->nrt, c->tags);
    return c->ck != NULL;
}
static inline int resolve(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Call *c)
{
    return bind_call(k, args, nargs, kwnames, c) && specialise_call(k, c);
}
/* Tensors elsewhere: every tensor must be there. Arrays of the host are the device's own business. */
static int one_device(Kernel *k, Call *c)
{
    for (int i = 0; i < k->nrt; i++)
        if (tensor_check(c->objs[i]) && ((Tensor *)c->objs[i])->device != c->bd.device) {
            py_fail(PyExc_ValueError, "%U: argument '%U' is on device '%s' but argument '%U' on '%s': move them to one device with .to()", k->name,
                    PyTuple_GET_ITEM(k->rt_names, i), eas_device_name(((Tensor *)c->objs[i])->device),
                    PyTuple_GET_ITEM(k->rt_names, c->bd.device_arg), eas_device_name(c->bd.device));
            return 0;
        }
    return 1;
}
static int call_options(Kernel *k, Call *c, PyObject *meta, eas_launch *l)
{
    PyObject *rt = NULL;
    if (c->o.grid && PyCallable_Check(c->o.grid) && !(rt = runtime_args(k->rt_names, c->objs, k->nrt)))
        return 0;
    int ok = options_read(&c->o, c->ck, meta, rt, l);
    Py_XDECREF(rt);
    return ok;
}
/* eas.kernel.get_runtime was replaced: everything goes through what it gives. */
static PyObject *grid_object(Call *c, const eas_launch *l)
{
    (void)c;
    return l->has_grid ? Py_BuildValue("(LLL)", (long long)l->grid[0], (long long)l->grid[1], (long long)l->grid[2]) : Py_NewRef(Py_None);
}
static PyObject *or_none(PyObject *o) { return o ? o : Py_None; }
static PyObject *call_runtime(Kernel *k, Call *c, PyObject *get, const eas_launch *l)
{
    PyObject *rt = runtime_args(k->rt_names, c->objs, k->nrt), *meta = PyDict_Copy(c->ck->meta),
             *runtime = rt && meta ? PyObject_CallNoArgs(get) : NULL;
    PyObject *f = runtime ? PyObject_GetAttr(runtime, N.run) : NULL, *grid = f ? grid_object(c, l) : NULL, *r = NULL;
    bool opts = c->shape->has_options;
    if (l->stream && grid) {
        py_fail(PyExc_ValueError, "%U: _stream is of the runtime that eas.kernel.get_runtime was replaced for: leave it out", k->name);
        Py_CLEAR(grid);
    }
    PyObject *kw =
        grid ? Py_BuildValue("{OOOOOOOOOO}", N.sync, opts && c->o.sync ? c->o.sync : Py_True, N.nthreads, opts ? or_none(c->o.nthreads) : Py_None,
                             N.grid, grid, N.tptg, opts ? or_none(c->o.tptg) : Py_None, N.shape, opts ? or_none(c->o.shape) : Py_None)
             : NULL;
    PyObject *pos = kw ? PyTuple_Pack(3, (PyObject *)c->ck, rt, meta) : NULL;
    if (pos)
        r = PyObject_Call(f, pos, kw);
    Py_XDECREF(pos);
    Py_XDECREF(kw);
    Py_XDECREF(grid);
    Py_XDECREF(f);
    Py_XDECREF(runtime);
    Py_XDECREF(meta);
    Py_XDECREF(rt);
    if (!r)
        return NULL;
    Py_DECREF(r);
    Py_RETURN_NONE;
}

/* ---- arguments that come apart ---- */
static PyObject *kernel_inner(Kernel *k, PyObject *spec, PyObject *names);
/* Of run-time arguments: the inner kernel (borrowed) and the parts (a new list). */
static Kernel *expand(Kernel *k, PyObject *const *objs, bool all_arrays, PyObject **parts)
{
    PyObject *m = PyImport_ImportModule("eas._struct"), *t = m ? PyTuple_New(k->nrt) : NULL,
             *flags = t ? PyBytes_FromStringAndSize(NULL, k->nrt) : NULL;
    Kernel *inner = NULL;
    if (!k->asked)
        k->asked = PyMem_Calloc((size_t)k->nrt + 1, 1);
    for (int i = 0; flags && i < k->nrt; i++) {
        PyTuple_SET_ITEM(t, i, Py_NewRef(objs[i]));
        PyBytes_AS_STRING(flags)[i] = (char)(all_arrays ? 3 : k->arrays ? k->arrays[i] : 0);
    }
    PyObject *r = flags ? PyObject_CallMethod(m, "expand", "OOO", k->rt_names, t, flags) : NULL;
    if (r && (k->inners || (k->inners = PyDict_New()))) {
        PyObject *key = PyTuple_GET_ITEM(r, 0);
        inner = (Kernel *)PyDict_GetItemWithError(k->inners, key);
        if (!inner && !PyErr_Occurred()) {
            PyObject *made = kernel_inner(k, key, PyTuple_GET_ITEM(r, 1));
            if (made && PyDict_SetItem(k->inners, key, made) == 0)
                inner = (Kernel *)made;
            Py_XDECREF(made);
        }
        *parts = Py_NewRef(PyTuple_GET_ITEM(r, 2));
        Py_XSETREF(k->recent, (Kernel *)Py_XNewRef(k->asked ? (PyObject *)inner : NULL));
        if (k->recent)
            memcpy(k->asked, PyBytes_AS_STRING(flags), (size_t)k->nrt);
    }
    Py_XDECREF(r);
    Py_XDECREF(flags);
    Py_XDECREF(t);
    Py_XDECREF(m);
    return inner;
}
typedef PyObject *method(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
/* Names of the options that calls of this shape give: a tuple for the inner kernel's. */
static PyObject *option_tuple(Shape *s)
{
    PyObject *names = s->options ? NULL : PyList_New(0);
    for (int i = 0; names && i < NOPTIONS; i++) {
        PyObject *name = s->option[i] >= 0 ? PyUnicode_InternFromString(option_names[i]) : NULL;
        if (s->option[i] >= 0 && (!name || PyList_Append(names, name) < 0))
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    if (names)
        s->options = PyList_AsTuple(names);
    Py_XDECREF(names);
    return s->options;
}
/* Calls the inner kernel with n parts, then the meta values, then the options; argv has room for all. */
static PyObject *call_inner(Kernel *k, Kernel *inner, Shape *s, PyObject *const *args, PyObject *const *objs, PyObject **argv, int n, method *f)
{
    PyObject *kw = s->has_options ? option_tuple(s) : NULL;
    if (s->has_options && !kw)
        return NULL;
    for (int i = 0; i < k->nmeta; i++)
        argv[n++] = objs[k->nrt + i];
    Py_ssize_t npos = n;
    for (int i = 0; i < NOPTIONS; i++)
        if (s->option[i] >= 0)
            argv[n++] = args[s->option[i]];
    return f((PyObject *)inner, argv, npos, kw);
}
/* The same call of the inner kernel. */
static PyObject *forward_once(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, bool all_arrays, method *f)
{
    bool owned;
    PyObject *objs[PY_MAX_PARAMS], *argv[PY_MAX_PARAMS + NOPTIONS], *parts = NULL, *r = NULL;
    Shape *s = k->last_shape;
    if (s && s->nargs == nargs && s->kwnames == kwnames)
        owned = false;
    else if (!(s = find_shape(k, nargs, kwnames, &owned)))
        return NULL;
    for (int i = 0; i < k->nparams; i++)
        objs[i] = s->src[i] >= 0 ? args[s->src[i]] : default_of(k, i);
    Kernel *inner = expand(k, objs, all_arrays, &parts);
    if (inner) {
        int n = (int)PyList_GET_SIZE(parts); /* as many as its parameters: not too many */
        Py_INCREF(inner);
        for (int i = 0; i < n; i++)
            argv[i] = PyList_GET_ITEM(parts, i);
        r = call_inner(k, inner, s, args, objs, argv, n, f);
        Py_DECREF(inner);
    }
    Py_XDECREF(parts);
    if (owned)
        shape_free(s);
    return r;
}
/* A launch that failed leaves the kernel as it was. If it does not index the array, what binding had to say holds. */
static void not_by_indices(Kernel *k)
{
    PyObject *type, *value, *tb, *why = k->why, *text = NULL;
    PyErr_Fetch(&type, &value, &tb);
    PyErr_NormalizeException(&type, &value, &tb);
    k->why = NULL;
    k->expands = false;
    PyMem_Free(k->arrays);
    k->arrays = NULL;
    if (PyErr_GivenExceptionMatches(type, PyExc_ValueError) && value && !(text = PyObject_Str(value)))
        PyErr_Clear();
    if (!text || !PyUnicode_Compare(text, why)) {
        PyErr_Restore(type, value, tb);
    } else {
        PyErr_Format(PyExc_ValueError, "%U. %U", why, text);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(tb);
    }
    Py_XDECREF(text);
    Py_DECREF(why);
}
static PyObject *forward(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, bool all_arrays, method *f)
{
    enum { TRIES = 2 * PY_MAX_PARAMS };
    for (int i = 0; i < TRIES; i++) { /* again while tracing asks for more of the arrays */
        PyObject *r = forward_once(k, args, nargs, kwnames, all_arrays, f);
        if (!r && PyErr_Occurred() && k->why)
            not_by_indices(k);
        if (r)
            Py_CLEAR(k->why);
        if (r || PyErr_Occurred())
            return r;
    }
    return py_fail(PyExc_SystemError, "%U: what its arrays are asked for does not settle", k->name);
}
/* Is it an array whose only fault is that it is not contiguous? */
static bool has_strides(const Call *c)
{
    PyObject *o = c->objs[c->failed];
    if (PyArray_Check(o))
        return !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)o) && PyArray_ISALIGNED((PyArrayObject *)o) && PyArray_ISNOTSWAPPED((PyArrayObject *)o);
    return tensor_check(o) ? !tensor_in_c_order((Tensor *)o) : c->bd.strided;
}
/* Of an inner kernel: was its argument asked for by its indices already, and could not be taken apart? */
static bool was_asked(Kernel *k, int failed)
{
    int i = k->of && k->of->arrays ? index_of(k->of->rt_names, PyTuple_GET_ITEM(k->rt_names, failed)) : -1;
    return i >= 0 && k->of->arrays[i];
}
/* Arguments that failed to bind: can they be taken apart? The exception is cleared then. */
static bool comes_apart(Kernel *k, const Call *c)
{
    if (!PyErr_Occurred() || k->expands || c->failed < 0)
        return false;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject *o = c->objs[c->failed], *m = PyImport_ImportModule("eas._struct"), *r = m ? PyObject_CallMethod(m, "is_struct", "(O)", o) : NULL;
    bool yes = r == Py_True;
    if (!yes && PyErr_GivenExceptionMatches(type, PyExc_ValueError) && has_strides(c) && !was_asked(k, c->failed)) {
        if (!k->arrays)
            k->arrays = PyMem_Calloc((size_t)k->nrt + 1, 1);
        if (k->arrays && !k->arrays[c->failed]) {
            k->arrays[c->failed] |= 2; /* strided: by indices */
            yes = true;
            Py_XSETREF(k->why, value ? PyObject_Str(value) : NULL);
        }
    }
    Py_XDECREF(m);
    Py_XDECREF(r);
    PyErr_Clear();
    if (!yes)
        return PyErr_Restore(type, value, tb), false;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(tb);
    return k->expands = true;
}

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
    return symbols && call_with(k, in->fn, t, symbols, in->metas) && close_body(t);
}
/* Live kernels run on memory that the host reaches. */
static int on_host(Kernel *k, Call *c)
{
    if (c->bd.has_mps)
        return py_fail(PyExc_ValueError, "%U: an argument is a torch tensor on mps, and this works in the host's memory: pass x.cpu()", k->name), 0;
    for (int i = 0; i < k->nrt; i++) {
        Tensor *t = (Tensor *)c->objs[i];
        if (tensor_check(c->objs[i]) && !eas_device_has_host_memory(t->device)) {
            py_fail(PyExc_ValueError, "%U: argument '%U' is on device '%s', and this works in the host's memory: move it with .to('cpu')", k->name,
                    PyTuple_GET_ITEM(k->rt_names, i), eas_device_name(t->device));
            return 0;
        }
    }
    return 1;
}
/* Would the launch be refused because the programs that N gives do not cover what the kernel writes? That is known of its traced form, which is made without
 * a word, unless the body keeps things: those would be the trace's. What cannot be traced is not asked. 0 with an exception. */
static int covers(Kernel *k, Call *c, const eas_launch *l)
{
    bool sized = false; /* programs may follow from a parameter called N */
    for (int i = 0; i < k->nrt; i++)
        sized |= !PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(k->rt_names, i), "N");
    if (!sized || l->has_grid || l->has_nthreads || l->has_shape)
        return 1;
    PyObject *m = PyImport_ImportModule("eas._interpret"), *quiet = m ? PyObject_CallMethod(m, "quietly", "O", k->fn) : NULL;
    Compiled *ck = quiet && quiet != Py_None ? specialise(k, c->objs + k->nrt, c->tags) : NULL;
    int64_t grid[3];
    PyErr_Clear();
    if (quiet && quiet != Py_None)
        Py_XDECREF(PyObject_CallNoArgs(quiet)); /* talks again */
    Py_XDECREF(quiet);
    Py_XDECREF(m);
    PyErr_Clear();
    eas_status st = ck ? eas_kernel_grid(ck->k, c->args, k->nrt, l, grid) : EAS_OK;
    Py_XDECREF(ck);
    if (st == EAS_ERR_VALUE && strstr(eas_error_message(), "do not cover it"))
        return py_raise(st), 0;
    return 1;
}
static PyObject *interpret(Kernel *k, Call *c)
{
    PyObject *metas[PY_MAX_PARAMS], *dict = NULL, *fn = NULL, *r = NULL;
    eas_launch l;
    int n = 0;
    memset(&l, 0, sizeof l);
    l.size = sizeof l;
    l.print = hooks_print;
    while (n < k->nmeta && (metas[n] = meta_plain(c->objs[k->nrt + n])))
        n++;
    if (n == k->nmeta && (dict = meta_dict(k, metas)) && on_host(k, c) && (!c->shape->has_options || call_options(k, c, dict, &l)) &&
        covers(k, c, &l))
        fn = function_of(k, metas, true);
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
    return Py_BuildValue("(zi(LLL)L)", p->file, p->line, (long long)p->program[0], (long long)p->program[1], (long long)p->program[2],
                         (long long)p->thread);
}
static PyObject *finding_tuple(const eas_report *r, int i)
{
    eas_finding f = eas_report_at(r, i);
    return Py_BuildValue("(szLLNN)", eas_finding_name(f.kind), f.arg, (long long)f.index, (long long)f.count, place_tuple(&f.at[0]),
                         place_tuple(&f.at[1]));
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
    if (c->shape->has_options && !call_options(k, c, c->ck->meta, &l))
        return NULL;
    l.size = sizeof l;
    l.interrupted = check_signals;
    eas_status st = eas_kernel_check(c->ck->k, c->args, k->nrt, &l, &report);
    PyObject *r = st == EAS_OK ? report_tuple(report) : py_raise(st);
    eas_report_free(report);
    return r;
}
/* Traced anew: barriers that the compiler refuses are what is looked for here. */
static PyObject *kernel_check(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Kernel *k = (Kernel *)self;
    Call c;
    PyObject *r = NULL, *metas[PY_MAX_PARAMS] = {NULL};
    int n = 0;
    if (k->expands)
        return forward(k, args, nargs, kwnames, !k->of, kernel_check);
    if (!bind_call(k, args, nargs, kwnames, &c)) {
        call_done(&c);
        return comes_apart(k, &c) ? kernel_check(self, args, nargs, kwnames) : NULL;
    }
    if (on_host(k, &c)) {
        while (n < k->nmeta && (metas[n] = meta_plain(c.objs[k->nrt + n])))
            n++;
        c.ck = n == k->nmeta ? trace_kernel(k, metas, c.tags, k->flags | EAS_KERNEL_LOOSE) : NULL;
        r = c.ck ? check_launch(k, &c) : NULL;
        while (n--)
            Py_DECREF(metas[n]);
    }
    call_done(&c);
    return r || PyErr_Occurred() || !k->expands ? r : kernel_check(self, args, nargs, kwnames);
}
static bool wants_interpret(const Call *c)
{
    if (c->shape->has_options && c->o.interpret && c->o.interpret != Py_None)
        return c->o.interpret != Py_False;
    return launch_interprets();
}
/* ---- methods ---- */
static PyObject *kernel_make(PyTypeObject *type, PyObject *fn, unsigned flags, bool rewrite, PyObject *self);
/* The kernel as a method of o. It is kept in o's own dict, under its name, so it is found there from then on and lives as long as o does. */
static PyObject *bind_to(Kernel *k, PyObject *o)
{
    bool is_class = PyType_Check(o);
    PyObject *name = ((PyFunctionObject *)k->fn)->func_name, *kept = is_class && k->bound ? PyDict_GetItemWithError(k->bound, o) : NULL;
    if (kept || PyErr_Occurred())
        return Py_XNewRef(kept);
    PyObject *b = kernel_make(Py_TYPE(k), k->fn, k->flags, k->rewrite, o), *d = NULL;
    if (b && is_class && (k->bound || (k->bound = PyDict_New())))
        d = Py_NewRef(k->bound), name = o;
    else if (b && !is_class && _PyType_Lookup(Py_TYPE(o), name) == (PyObject *)k && !(d = PyObject_GenericGetDict(o, NULL)))
        PyErr_Clear(); /* it has none: bound anew each time */
    if (d && PyDict_SetItem(d, name, b) < 0)
        Py_CLEAR(b);
    Py_XDECREF(d);
    return b;
}
static PyObject *kernel_get(PyObject *self, PyObject *o, PyObject *type)
{
    (void)type;
    return ((Kernel *)self)->method && o && o != Py_None ? bind_to((Kernel *)self, o) : Py_NewRef(self);
}
static PyObject *call_unbound(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (!nargs)
        return py_fail(PyExc_TypeError, "%U() is missing its argument '%U': it is a method; call it on an object", k->name,
                       PyTuple_GET_ITEM(k->names, 0));
    PyObject *b = bind_to(k, args[0]), *r = b ? PyObject_Vectorcall(b, args + 1, (size_t)nargs - 1, kwnames) : NULL;
    Py_XDECREF(b);
    return r;
}
static PyObject *kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);
static PyObject *call_plain(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return kernel_call(self, args, (size_t)nargs, kwnames);
}
static bool call_interprets(Kernel *k, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    const Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    const Shape *s = k->last_shape;
    if (s && s->nargs == n && s->kwnames == kwnames) {
        PyObject *o = s->option[OPTION_interpret] < 0 ? Py_None : args[s->option[OPTION_interpret]];
        return o != Py_None ? o != Py_False : launch_interprets();
    }
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
        if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), option_names[OPTION_interpret]) && args[n + i] != Py_None)
            return args[n + i] != Py_False;
    return launch_interprets();
}
/* The launch of a call whose specialisation and options are known. */
static PyObject *launch_call(Kernel *k, Call *c, eas_launch *l)
{
    eas_device *d = NULL;
    PyObject *get = c->bd.has_mps ? NULL : launch_where(&d);
    if (c->bd.has_mps)
        return torch_launch(c->ck, c->objs, k->nrt, c->shape->has_options ? &c->o : &(Options){0}, l);
    if (get)
        return call_runtime(k, c, get, l);
    if (c->bd.device ? (d = c->bd.device, one_device(k, c)) : d != NULL)
        return launch_with(c->ck, d, c->args, c->objs, k->nrt, &c->bd, l);
    return NULL;
}
/* Binds what is in c->objs, with the options of the call that it is the parts of; 0 with an exception. call_done is due in either case. */
static int bind_parts(Kernel *inner, Shape *s, PyObject *const *args, Call *c)
{
    call_begin(inner, c);
    c->shape = s;
    for (int i = 0; i < inner->nrt; i++)
        if (!(c->tags[i] = (uint8_t)bind_arg(&c->bd, c->objs[i], i, PyTuple_GET_ITEM(inner->rt_names, i), &c->args[i])))
            return 0;
    if (s->has_options)
        pick_options(c, args);
    return 1;
}
/* A launch whose arguments come apart as those of the last did, with no call of the inner kernel: 1 and *r; 0 without an exception: it is not certainly one. */
static int launch_parts(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **r)
{
    static const uint8_t none[PY_MAX_PARAMS];
    Kernel *inner = k->recent;
    Shape *s = k->last_shape;
    PyObject *objs[PY_MAX_PARAMS];
    Call c;
    eas_launch l;
    if (!inner || inner->expands || !inner->parts || k->why || !s || s->nargs != nargs || s->kwnames != kwnames ||
        memcmp(k->asked, k->arrays ? k->arrays : none, (size_t)k->nrt) || (trace_active && trace_current()))
        return 0;
    for (int i = 0; i < k->nrt; i++)
        objs[i] = s->src[i] >= 0 ? args[s->src[i]] : default_of(k, i);
    Py_INCREF(inner);
    int n = parts_like(inner->parts, objs, k->asked, c.objs, inner->nrt), done = 0;
    *r = NULL;
    if (n == inner->nrt) {
        for (int i = 0; i < k->nmeta; i++)
            c.objs[n + i] = s->src[k->nrt + i] >= 0 ? args[s->src[k->nrt + i]] : default_of(k, k->nrt + i);
        if (!bind_parts(inner, s, args, &c)) {
            PyErr_Clear(); /* said again, where it can be mended */
        } else if (!wants_interpret(&c)) {
            memset(&l, 0, sizeof l);
            done = specialise_call(inner, &c) || PyErr_Occurred();
            if (c.ck && (!s->has_options || call_options(inner, &c, c.ck->meta, &l)))
                *r = launch_call(inner, &c, &l);
        }
        call_done(&c);
    }
    for (int i = 0; i < n; i++)
        Py_DECREF(c.objs[i]);
    Py_DECREF(inner);
    return done;
}
static PyObject *kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Kernel *k = (Kernel *)self;
    Call c;
    eas_launch l;
    PyObject *r = NULL;
    memset(&l, 0, sizeof l);
    if (k->method)
        return call_unbound(k, args, PyVectorcall_NARGS(nargsf), kwnames);
    if (k->expands && launch_parts(k, args, PyVectorcall_NARGS(nargsf), kwnames, &r))
        return r;
    if (k->expands)
        return forward(k, args, PyVectorcall_NARGS(nargsf), kwnames, !k->of && call_interprets(k, args, nargsf, kwnames), call_plain);
    if (!bind_call(k, args, PyVectorcall_NARGS(nargsf), kwnames, &c)) {
        call_done(&c);
        return comes_apart(k, &c) ? kernel_call(self, args, nargsf, kwnames) : NULL;
    }
    if (wants_interpret(&c)) {
        if (!k->of) { /* arrays with their sizes from the first: there is no second run */
            call_done(&c);
            return forward(k, args, PyVectorcall_NARGS(nargsf), kwnames, true, call_plain);
        }
        r = interpret(k, &c);
    } else if (specialise_call(k, &c) && (!c.shape->has_options || call_options(k, &c, c.ck->meta, &l))) {
        r = launch_call(k, &c, &l);
    }
    call_done(&c);
    return r || PyErr_Occurred() || !k->expands ? r : kernel_call(self, args, nargsf, kwnames);
}

/* ---- compile and the texts ---- */
static PyObject *kernel_compile(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Call c;
    Kernel *k = (Kernel *)self;
    PyObject *r = NULL;
    if (k->expands)
        return forward(k, args, nargs, kwnames, false, kernel_compile);
    if (resolve(k, args, nargs, kwnames, &c) && (!c.shape->has_options || options_check(&c.o, c.ck)))
        r = Py_NewRef(c.ck);
    call_done(&c);
    if (r || (PyErr_Occurred() ? !comes_apart(k, &c) : !k->expands))
        return r;
    return kernel_compile(self, args, nargs, kwnames);
}
static PyObject *text(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const char *form)
{
    PyObject *c = kernel_compile(self, args, nargs, kwnames), *r = c ? compiled_text((Compiled *)c, form) : NULL;
    Py_XDECREF(c);
    return r;
}
#define TEXT(name, form) \
    static PyObject *kernel_to_##name(PyObject *s, PyObject *const *a, Py_ssize_t n, PyObject *kw) { return text(s, a, n, kw, form); }
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
        PyObject *name = PyUnicode_FromString(option_names[i]);
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
    return kernel_make(type, fn, (contract ? 0 : EAS_KERNEL_NO_CONTRACT) | (fast ? EAS_KERNEL_FAST_MATH : 0), rewrite != 0, NULL);
}
static PyObject *kernel_make(PyTypeObject *type, PyObject *fn, unsigned flags, bool rewrite, PyObject *self)
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
    if (!k->name || !k->cache || !like_function(k) || !read_signature(k))
        Py_CLEAR(k);
    return (PyObject *)k;
}
/* A kernel of the same function whose run-time parameters are the parts of k's. */
static PyObject *kernel_inner(Kernel *of, PyObject *spec, PyObject *names)
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
        py_fail(PyExc_ValueError, "kernel '%U': its arguments have %d parts with their sizes; at most %d are possible", k->name, k->nparams,
                PY_MAX_PARAMS);
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
        shape_free(s);
    }
    PyMem_Free(k->order);
    PyMem_Free(k->arrays);
    PyMem_Free(k->asked);
    type->tp_free(o);
    Py_DECREF(type);
}
static PyObject *kernel_repr(PyObject *o)
{
    return PyUnicode_FromFormat("<eas.Kernel '%U' %S, meta %S>", ((Kernel *)o)->name, ((Kernel *)o)->rt_names, ((Kernel *)o)->meta_names);
}
static PyObject *kernel_subscript(PyObject *o, PyObject *grid)
{
    return py_fail_at(PyExc_TypeError, "%U[...](...): the grid is an option of the call here: %U(..., _grid=%R)", ((Kernel *)o)->name,
                      ((Kernel *)o)->name, grid);
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
    return Py_BuildValue("{s:O,s:O,s:O}", "fp_contract", f & EAS_KERNEL_NO_CONTRACT ? Py_False : Py_True, "fast_math",
                         f & EAS_KERNEL_FAST_MATH ? Py_True : Py_False, "rewrite", ((Kernel *)o)->rewrite ? Py_True : Py_False);
}
/* By its name, as functions are: eas._pickle. */
static PyObject *kernel_reduce(PyObject *o, PyObject *unused)
{
    (void)unused;
    PyObject *m = PyImport_ImportModule("eas._pickle"), *r = m ? PyObject_CallMethod(m, "reduce", "O", o) : NULL;
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
    {"_retraced", get_retraced, NULL, "why it was traced again because of what it captured; eas.explain says it", NULL},
    {"__self__", get_self, NULL, "the object that it is a method of, or None", NULL},
    {"_options", get_options, NULL, "fp_contract, fast_math and rewrite", NULL},
    {"fn", get_fn, NULL, "the Python function", NULL},
    {"compiled", get_cached, NULL, "the CompiledKernels made so far", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL | METH_KEYWORDS
static PyMethodDef kernel_methods[] = {
    {"compile", FAST(kernel_compile), "compile(*args, **kw): the CompiledKernel that a launch with these arguments would use; needs no device"},
    {"_check", FAST(kernel_check), "_check(*args, **kw): (text, findings); eas.check is the public form"},
    {"to_ir", FAST(kernel_to_ir), "to_ir(*args, **kw): the IR as text"},
    {"to_msl", FAST(kernel_to_msl), "to_msl(*args, **kw): Metal Shading Language"},
    {"to_opencl", FAST(kernel_to_opencl), "to_opencl(*args, **kw): OpenCL C"},
    {"to_plan", FAST(kernel_to_plan), "to_plan(*args, **kw): how it runs on the CPU: segments, where values lie, what is prefetched"},
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
    {Py_tp_doc, "Kernel(fn, *, fp_contract=True, fast_math=False, rewrite=True)\n--\n\nA kernel: call it to launch. Made by @eas.kernel."},
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
PyType_Spec Kernel_spec = {"eas.Kernel", sizeof(Kernel), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, kernel_slots};

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
    if (!(G.kernel = py_type(module, &Kernel_spec, "Kernel")) || !(G.guards = py_type(module, &Guards_spec, NULL)))
        return -1;
    PyObject *options = launch_options();
    const int bad = !options || PyModule_AddObjectRef(module, "LAUNCH_OPTIONS", options) < 0;
    Py_XDECREF(options);
    return bad ? -1 : PyModule_AddFunctions(module, functions);
}
