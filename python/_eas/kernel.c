/* kernel.c: Kernel, what @eas.kernel makes of a function: its signature, its specialisations, its call.
 *
 * A cached call allocates nothing and runs no Python: the shape of the call (how many positional arguments,
 * which names) is found by identity, arguments go to eas_arg with a tag each, and tags and meta values equal
 * those of the last specialisation. Shapes are never dropped while the kernel lives, so a call may use one
 * without counting. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PY_X(name) "_" #name,
const char *const kernel_option_names[] = {LAUNCH_OPTIONS(PY_X)};
#undef PY_X

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
        if (!PyUnicode_CompareWithASCIIString(name, kernel_option_names[i]))
            return py_fail(PyExc_ValueError,
                           "a kernel parameter cannot be called '%U': that is a launch option", name),
                   0;
    return 1;
}
static bool is_method(const Kernel *k, PyObject *notes)
{
    PyObject *first = k->npositional ? PyTuple_GET_ITEM(k->names, 0) : NULL;
    if (!first || (PyDict_Check(notes) && PyDict_GetItemWithError(notes, first)))
        return false;
    return !PyUnicode_CompareWithASCIIString(first, "self") ||
           !PyUnicode_CompareWithASCIIString(first, "cls");
}
/* The parameters in order, and which are meta: without inspect, whose import costs more than ours. */
int kernel_read_signature(Kernel *k)
{
    PyFunctionObject *f = (PyFunctionObject *)k->fn;
    PyCodeObject *code = (PyCodeObject *)f->func_code;
    if (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS))
        return py_fail(PyExc_TypeError,
                       "kernel '%U': *args and **kwargs are not possible; name every parameter", k->name),
               0;
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR))
        return py_fail(PyExc_TypeError, "kernel '%U': a kernel cannot be a generator or a coroutine",
                       k->name),
               0;
    const int skip = k->self != NULL;
    k->npositional = code->co_argcount - skip;
    k->nposonly = code->co_posonlyargcount > skip ? code->co_posonlyargcount - skip : 0;
    k->nparams = k->npositional + code->co_kwonlyargcount;
    if (k->nparams > PY_MAX_PARAMS)
        return py_fail(PyExc_ValueError, "kernel '%U' has %d parameters; at most %d are possible", k->name,
                       k->nparams, PY_MAX_PARAMS),
               0;
    PyObject *all = PyObject_GetAttrString((PyObject *)code, "co_varnames"),
             *notes = all ? PyObject_GetAttr(k->fn, N.__annotations__) : NULL;
    k->names = notes ? PyTuple_GetSlice(all, skip, skip + k->nparams) : NULL;
    k->method = k->names && !skip && is_method(k, notes);
    k->defaults = k->names ? read_defaults(k, f) : NULL;
    k->order = k->defaults ? PyMem_Calloc((size_t)k->nparams + 1, sizeof *k->order) : NULL;
    PyObject *rt = PyList_New(0), *meta = PyList_New(0);
    int ok = k->order && rt && meta;
    for (int want = 0; ok && want < 2; want++)
        for (int i = 0; ok && i < k->nparams; i++) {
            PyObject *name = PyTuple_GET_ITEM(k->names, i),
                     *a = PyDict_Check(notes) ? PyDict_GetItemWithError(notes, name) : NULL;
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
    PyObject *options = PyUnicode_FromString(kernel_option_names[0]);
    for (int i = 1; i < NOPTIONS && options; i++)
        Py_SETREF(options, PyUnicode_FromFormat("%U, %s", options, kernel_option_names[i]));
    if (options)
        py_fail(PyExc_TypeError,
                "%U() got an unknown argument '%U'; its parameters are %S, the launch options %U", k->name,
                name, k->names, options);
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
        if (!PyUnicode_CompareWithASCIIString(name, kernel_option_names[i])) {
            s->option[i] = (int16_t)arg;
            return s->has_options = true;
        }
    return bad_keyword(k, name);
}
static int place_all(Kernel *k, Shape *s, Py_ssize_t nargs, PyObject *kwnames)
{
    int16_t at[PY_MAX_PARAMS];
    if (nargs > k->npositional)
        return py_fail(PyExc_TypeError, "%U() takes %d positional arguments but %zd were given", k->name,
                       k->npositional, nargs),
               0;
    for (int i = 0; i < k->nparams; i++)
        at[i] = (int16_t)(i < nargs ? i : -1);
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
        if (!place_keyword(k, s, PyTuple_GET_ITEM(kwnames, i), (int)(nargs + i), at))
            return 0;
    for (int i = 0; i < k->nparams; i++) {
        s->src[i] = at[k->order[i]];
        if (s->src[i] < 0 && !kernel_default_of(k, i))
            return py_fail(PyExc_TypeError, "%U() is missing its argument '%U'", k->name,
                           PyTuple_GET_ITEM(k->names, k->order[i])),
                   0;
    }
    return 1;
}
void kernel_shape_free(Shape *s)
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
Shape *kernel_find_shape(Kernel *k, Py_ssize_t nargs, PyObject *kwnames, bool *owned)
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
        return kernel_shape_free(s), NULL;
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
/* Something hashable that is equal exactly when the kernel would be traced alike: 1, 1.0 and True differ, so
 * do 0.0 and -0.0. NULL without an exception: not a meta value. */
static PyObject *meta_key(PyObject *v)
{
    if (PyTuple_CheckExact(v))
        return tuple_key(v);
    if (PyFloat_CheckExact(v)) {
        double d = PyFloat_AS_DOUBLE(v);
        return PyBytes_FromStringAndSize((char *)&d, sizeof d);
    }
    if (PyLong_Check(v) || PyUnicode_Check(v) || Py_IS_TYPE(v, G.dtype) || v == Py_None ||
        PyArray_DescrCheck(v))
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
PyObject *kernel_meta_plain(PyObject *v)
{
    return PyArray_IsScalar(v, Generic) ? PyObject_CallMethod(v, "item", NULL) : Py_NewRef(v);
}
static bool same_meta(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    if (Py_TYPE(a) != Py_TYPE(b) || !(PyLong_CheckExact(a) || PyUnicode_CheckExact(a)))
        return false;
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
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
                py_fail(
                    PyExc_TypeError,
                    "%U: meta argument '%U' must be hashable (a number, str, dtype, function, tuple, frozen dataclass, ...); got %s",
                    k->name, PyTuple_GET_ITEM(k->meta_names, i), Py_TYPE(metas[i])->tp_name);
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
    PyObject *why = again && k->retraced && PyList_GET_SIZE(k->retraced)
                      ? PyList_GET_ITEM(k->retraced, PyList_GET_SIZE(k->retraced) - 1)
                      : Py_None;
    PyObject *m = PyImport_ImportModule("eas._profile"),
             *r = m ? PyObject_CallMethod(m, "log_traced", "OOO", (PyObject *)k, c, why) : NULL;
    if (!r)
        PyErr_WriteUnraisable((PyObject *)k);
    Py_XDECREF(r);
    Py_XDECREF(m);
}
/* A dict keeps the order of insertion: what is used goes to its end, and what is at its front goes when there
 * are too many. A trace is some 16 KB. */
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
        c = (PyObject *)kernel_trace(k, metas, tags, k->flags);
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
Compiled *kernel_specialise(Kernel *k, PyObject *const *metas, const uint8_t *tags)
{
    PyObject *plain[PY_MAX_PARAMS];
    int n = 0;
    while (n < k->nmeta && (plain[n] = kernel_meta_plain(metas[n])))
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

void kernel_call_done(Call *c)
{
    bind_done(&c->bd);
    Py_XDECREF(c->ck);
    if (c->owned && c->shape)
        kernel_shape_free(c->shape);
}
static PyObject *nested(Kernel *k)
{
    return py_fail_at(
        PyExc_RuntimeError,
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
/* Binds the arguments; 0 with an exception. kernel_call_done is due in either case. */
int kernel_bind_call(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Call *c)
{
    Shape *s = k->last_shape;
    call_begin(k, c);
    if (trace_active && trace_current())
        return nested(k), 0;
    if (k->method) {
        py_fail(PyExc_TypeError, "%U is a method: take it from an object, as in obj.%U.compile(...)", k->name,
                k->name);
        return 0;
    }
    if (!s || s->nargs != nargs || s->kwnames != kwnames)
        s = kernel_find_shape(k, nargs, kwnames, &c->owned);
    if (!(c->shape = s))
        return 0;
    for (int i = 0; i < k->nparams; i++)
        c->objs[i] = s->src[i] >= 0 ? args[s->src[i]] : kernel_default_of(k, i);
    for (int i = 0; i < k->nrt; i++)
        if (!(c->tags[i] =
                  (uint8_t)bind_arg(&c->bd, c->objs[i], i, PyTuple_GET_ITEM(k->rt_names, i), &c->args[i]))) {
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
    c->ck = is_last(k, c->objs + k->nrt, c->tags) ? (Compiled *)Py_NewRef(k->last)
                                                  : kernel_specialise(k, c->objs + k->nrt, c->tags);
    return c->ck != NULL;
}
int kernel_resolve(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Call *c)
{
    return kernel_bind_call(k, args, nargs, kwnames, c) && specialise_call(k, c);
}
/* Tensors elsewhere: every tensor must be there. Arrays of the host are the device's own business. */
static int one_device(Kernel *k, Call *c)
{
    for (int i = 0; i < k->nrt; i++)
        if (tensor_check(c->objs[i]) && ((Tensor *)c->objs[i])->device != c->bd.device) {
            py_fail(
                PyExc_ValueError,
                "%U: argument '%U' is on device '%s' but argument '%U' on '%s': move them to one device with .to()",
                k->name, PyTuple_GET_ITEM(k->rt_names, i), eas_device_name(((Tensor *)c->objs[i])->device),
                PyTuple_GET_ITEM(k->rt_names, c->bd.device_arg), eas_device_name(c->bd.device));
            return 0;
        }
    return 1;
}
int kernel_call_options(Kernel *k, Call *c, PyObject *meta, eas_launch *l)
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
    return l->has_grid
             ? Py_BuildValue("(LLL)", (long long)l->grid[0], (long long)l->grid[1], (long long)l->grid[2])
             : Py_NewRef(Py_None);
}
static PyObject *or_none(PyObject *o) { return o ? o : Py_None; }
static PyObject *call_runtime(Kernel *k, Call *c, PyObject *get, const eas_launch *l)
{
    PyObject *rt = runtime_args(k->rt_names, c->objs, k->nrt), *meta = PyDict_Copy(c->ck->meta),
             *runtime = rt && meta ? PyObject_CallNoArgs(get) : NULL;
    PyObject *f = runtime ? PyObject_GetAttr(runtime, N.run) : NULL, *grid = f ? grid_object(c, l) : NULL,
             *r = NULL;
    bool opts = c->shape->has_options;
    if (l->stream && grid) {
        py_fail(PyExc_ValueError,
                "%U: _stream is of the runtime that eas.kernel.get_runtime was replaced for: leave it out",
                k->name);
        Py_CLEAR(grid);
    }
    PyObject *kw = grid ? Py_BuildValue("{OOOOOOOOOO}", N.sync, opts && c->o.sync ? c->o.sync : Py_True,
                                        N.nthreads, opts ? or_none(c->o.nthreads) : Py_None, N.grid, grid,
                                        N.tptg, opts ? or_none(c->o.tptg) : Py_None, N.shape,
                                        opts ? or_none(c->o.shape) : Py_None)
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

/* ---- methods ---- */
/* The kernel as a method of o. It is kept in o's own dict, under its name, so it is found there from then on
 * and lives as long as o does. */
static PyObject *bind_to(Kernel *k, PyObject *o)
{
    bool is_class = PyType_Check(o);
    PyObject *name = ((PyFunctionObject *)k->fn)->func_name,
             *kept = is_class && k->bound ? PyDict_GetItemWithError(k->bound, o) : NULL;
    if (kept || PyErr_Occurred())
        return Py_XNewRef(kept);
    PyObject *b = kernel_make(Py_TYPE(k), k->fn, k->flags, k->rewrite, o), *d = NULL;
    if (b && is_class && (k->bound || (k->bound = PyDict_New())))
        d = Py_NewRef(k->bound), name = o;
    else if (b && !is_class && _PyType_Lookup(Py_TYPE(o), name) == (PyObject *)k &&
             !(d = PyObject_GenericGetDict(o, NULL)))
        PyErr_Clear(); /* it has none: bound anew each time */
    if (d && PyDict_SetItem(d, name, b) < 0)
        Py_CLEAR(b);
    Py_XDECREF(d);
    return b;
}
PyObject *kernel_get(PyObject *self, PyObject *o, PyObject *type)
{
    (void)type;
    return ((Kernel *)self)->method && o && o != Py_None ? bind_to((Kernel *)self, o) : Py_NewRef(self);
}
static PyObject *call_unbound(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (!nargs)
        return py_fail(PyExc_TypeError,
                       "%U() is missing its argument '%U': it is a method; call it on an object", k->name,
                       PyTuple_GET_ITEM(k->names, 0));
    PyObject *b = bind_to(k, args[0]),
             *r = b ? PyObject_Vectorcall(b, args + 1, (size_t)nargs - 1, kwnames) : NULL;
    Py_XDECREF(b);
    return r;
}
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
        if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i),
                                              kernel_option_names[OPTION_interpret]) &&
            args[n + i] != Py_None)
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
/* Binds what is in c->objs, with the options of the call that it is the parts of; 0 with an exception.
 * kernel_call_done is due in either case. */
static int bind_parts(Kernel *inner, Shape *s, PyObject *const *args, Call *c)
{
    call_begin(inner, c);
    c->shape = s;
    for (int i = 0; i < inner->nrt; i++)
        if (!(c->tags[i] = (uint8_t)bind_arg(&c->bd, c->objs[i], i, PyTuple_GET_ITEM(inner->rt_names, i),
                                             &c->args[i])))
            return 0;
    if (s->has_options)
        pick_options(c, args);
    return 1;
}
/* A launch whose arguments come apart as those of the last did, with no call of the inner kernel: 1 and *r; 0
 * without an exception: it is not certainly one. */
static int launch_parts(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **r)
{
    static const uint8_t none[PY_MAX_PARAMS];
    Kernel *inner = k->recent;
    Shape *s = k->last_shape;
    PyObject *objs[PY_MAX_PARAMS];
    Call c;
    eas_launch l;
    if (!inner || inner->expands || !inner->parts || k->why || !s || s->nargs != nargs ||
        s->kwnames != kwnames || memcmp(k->asked, k->arrays ? k->arrays : none, (size_t)k->nrt) ||
        (trace_active && trace_current()))
        return 0;
    for (int i = 0; i < k->nrt; i++)
        objs[i] = s->src[i] >= 0 ? args[s->src[i]] : kernel_default_of(k, i);
    Py_INCREF(inner);
    int n = parts_like(inner->parts, objs, k->asked, c.objs, inner->nrt), done = 0;
    *r = NULL;
    if (n == inner->nrt) {
        for (int i = 0; i < k->nmeta; i++)
            c.objs[n + i] =
                s->src[k->nrt + i] >= 0 ? args[s->src[k->nrt + i]] : kernel_default_of(k, k->nrt + i);
        if (!bind_parts(inner, s, args, &c)) {
            PyErr_Clear(); /* said again, where it can be mended */
        } else if (!kernel_wants_interpret(&c)) {
            memset(&l, 0, sizeof l);
            done = specialise_call(inner, &c) || PyErr_Occurred();
            if (c.ck && (!s->has_options || kernel_call_options(inner, &c, c.ck->meta, &l)))
                *r = launch_call(inner, &c, &l);
        }
        kernel_call_done(&c);
    }
    for (int i = 0; i < n; i++)
        Py_DECREF(c.objs[i]);
    Py_DECREF(inner);
    return done;
}
PyObject *kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
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
        return kernel_forward(k, args, PyVectorcall_NARGS(nargsf), kwnames,
                              !k->of && call_interprets(k, args, nargsf, kwnames), call_plain);
    if (!kernel_bind_call(k, args, PyVectorcall_NARGS(nargsf), kwnames, &c)) {
        kernel_call_done(&c);
        return kernel_comes_apart(k, &c) ? kernel_call(self, args, nargsf, kwnames) : NULL;
    }
    if (kernel_wants_interpret(&c)) {
        if (!k->of) { /* arrays with their sizes from the first: there is no second run */
            kernel_call_done(&c);
            return kernel_forward(k, args, PyVectorcall_NARGS(nargsf), kwnames, true, call_plain);
        }
        r = kernel_interpret(k, &c);
    } else if (specialise_call(k, &c) &&
               (!c.shape->has_options || kernel_call_options(k, &c, c.ck->meta, &l))) {
        r = launch_call(k, &c, &l);
    }
    kernel_call_done(&c);
    return r || PyErr_Occurred() || !k->expands ? r : kernel_call(self, args, nargsf, kwnames);
}
