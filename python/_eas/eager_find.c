/* eager_find.c: what a function can see besides its arguments, found by looking: the globals that its code
 * names, closure cells, defaults, and so on through the functions, objects, classes, modules and containers
 * that are found there.
 *
 * Each value is a source, which a program is guarded by; each thing that can be changed (a dict, a list, a
 * cell, ...) is a place, whose contents are remembered while the function is traced (eager_state.c).
 */
#include "eager_compile.h"

#include <string.h>
#include <structmember.h>

enum { DEEPEST = 64 };
typedef struct finder {
    PyObject *seen; /* set of addresses */
    Entry *e;
    state *s;
    PyObject *label; /* borrowed: how messages call what is looked at */
} finder;

static int add_source(finder *f, source_kind kind, PyObject *container, PyObject *key)
{
    Entry *e = f->e;
    if ((e->nsources & (e->nsources - 1)) == 0) { /* a power of two: full */
        source *at = PyMem_Realloc(e->sources, sizeof *at * (size_t)(e->nsources ? 2 * e->nsources : 1));
        if (!at)
            return PyErr_NoMemory(), 0;
        e->sources = at;
    }
    e->sources[e->nsources++] =
        (source){.kind = kind, .container = Py_NewRef(container), .key = Py_XNewRef(key)};
    return 1;
}
static int seen_before(finder *f, void *p) /* 1, 0; -1 with an exception */
{
    PyObject *id = PyLong_FromVoidPtr(p);
    int r = id ? PySet_Contains(f->seen, id) : -1;
    if (r == 0 && PySet_Add(f->seen, id) < 0)
        r = -1;
    Py_XDECREF(id);
    return r;
}
static int look_into(finder *f, PyObject *v, int depth);

static int look_labelled(finder *f, PyObject *v, int depth, PyObject *label) /* steals the label */
{
    PyObject *outer = f->label;
    if (!label)
        return 0;
    f->label = label;
    int ok = look_into(f, v, depth);
    f->label = outer;
    Py_DECREF(label);
    return ok;
}

/* ---- whose code it is ---- */
static bool named(const char *s, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t k = strlen(names[i]);
        if (!strncmp(s, names[i], k) && (s[k] == 0 || s[k] == '.'))
            return true;
    }
    return false;
}
static bool in_stdlib(const char *s)
{
    PyObject *all = PySys_GetObject("stdlib_module_names"); /* borrowed */
    PyObject *top = PyUnicode_FromStringAndSize(s, (Py_ssize_t)strcspn(s, "."));
    int is = all && top ? PySet_Contains(all, top) : 0;
    PyErr_Clear();
    Py_XDECREF(top);
    return is > 0;
}
/* Modules whose code does not change under us. */
static bool is_library(PyObject *module_name)
{
    static const char *const names[] = {"eager", "eas",       "numpy",    "torch",  "jax",
                                        "math",  "functools", "builtins", "typing", "unittest"};
    const char *s = module_name && PyUnicode_Check(module_name) ? PyUnicode_AsUTF8(module_name) : NULL;
    PyErr_Clear();
    return s && named(s, names, sizeof names / sizeof *names);
}
static bool is_standard(PyObject *module_name)
{
    const char *s = module_name && PyUnicode_Check(module_name) ? PyUnicode_AsUTF8(module_name) : NULL;
    PyErr_Clear();
    return s && in_stdlib(s);
}
/* Packages that were installed: what they keep in modules and classes is theirs. */
static bool is_installed(PyObject *module_name)
{
    PyObject *m = module_name && PyUnicode_Check(module_name) ? PyImport_GetModule(module_name) : NULL;
    PyObject *file = m ? PyObject_GetAttrString(m, "__file__") : NULL;
    const char *s = file && PyUnicode_Check(file) ? PyUnicode_AsUTF8(file) : NULL;
    bool is = s && (strstr(s, "site-packages") || strstr(s, "dist-packages"));
    PyErr_Clear();
    Py_XDECREF(file);
    Py_XDECREF(m);
    return is;
}
static bool is_foreign(PyObject *module_name)
{
    return is_library(module_name) || is_standard(module_name) || is_installed(module_name);
}

/* ---- functions ---- */
static int add_name(finder *f, PyObject *dict, PyObject *name, const char *what, int depth)
{
    PyObject *v = PyDict_GetItemWithError(dict, name);
    if (!v)
        return !PyErr_Occurred();
    Py_INCREF(v);
    int ok = add_source(f, S_DICT, dict, name) &&
             look_labelled(f, v, depth + 1, PyUnicode_FromFormat("%s%U", what, name));
    Py_DECREF(v);
    return ok;
}
/* NumPy loads it when it is first used; its state must be known before the trace. */
static void load_numpy_random(PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
        if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), "random"))
            Py_XDECREF(PyImport_ImportModule("numpy.random.mtrand"));
    PyErr_Clear();
}
/* Attributes of a module that the code might name. */
static int module_names(finder *f, PyObject *module, PyObject *names, int depth)
{
    PyObject *name = PyModule_GetNameObject(module), *dict = PyModule_GetDict(module);
    char prefix[96];
    PyErr_Clear();
    if (name && !PyUnicode_CompareWithASCIIString(name, "numpy"))
        load_numpy_random(names);
    bool skip =
        !name || is_library(name) || is_installed(name) || !PyUnicode_CompareWithASCIIString(name, "random");
    if (name)
        snprintf(prefix, sizeof prefix, "%s.", PyUnicode_AsUTF8(name));
    Py_XDECREF(name);
    int ok = skip || state_add(f->s, PLACE_NAMES, dict, names, f->label);
    for (Py_ssize_t i = 0; ok && !skip && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *v = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(names, i));
        if (v && !PyModule_Check(v) && !PyCFunction_Check(v))
            ok = add_name(f, dict, PyTuple_GET_ITEM(names, i), prefix, depth);
    }
    return ok && !PyErr_Occurred();
}
static int code_names(finder *f, PyObject *code, PyObject *globals, int depth)
{
    PyObject *names = ((PyCodeObject *)code)->co_names, *consts = ((PyCodeObject *)code)->co_consts;
    int ok = state_add(f->s, PLACE_NAMES, globals, names, f->label);
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *v = PyDict_GetItemWithError(globals, name);
        ok = !PyErr_Occurred() && (!v || add_name(f, globals, name, "global ", depth));
        PyObject *m = v ? Py_NewRef(v) : PyImport_GetModule(name); /* the code may import it */
        PyErr_Clear();
        if (ok && m && PyModule_Check(m))
            ok = module_names(f, m, names, depth);
        Py_XDECREF(m);
    }
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(consts); i++)
        if (PyCode_Check(PyTuple_GET_ITEM(consts, i)))
            ok = code_names(f, PyTuple_GET_ITEM(consts, i), globals, depth);
    return ok;
}
static int add_attr(finder *f, PyObject *o, PyObject *name, int depth, PyObject *label) /* steals the label */
{
    PyObject *v = PyObject_GetAttr(o, name);
    int ok = label && state_add(f->s, PLACE_ATTR, o, name, label);
    if (!v)
        PyErr_Clear();
    if (ok && (ok = add_source(f, S_ATTR, o, name)) && v)
        ok = look_labelled(f, v, depth + 1, Py_NewRef(label));
    Py_XDECREF(label);
    Py_XDECREF(v);
    return ok;
}
static int add_defaults(finder *f, PyFunctionObject *p, int depth)
{
    const char *const which[] = {p->func_defaults ? "__defaults__" : NULL,
                                 p->func_kwdefaults ? "__kwdefaults__" : NULL};
    int ok = 1;
    for (int i = 0; i < 2 && ok; i++) {
        PyObject *name = which[i] ? PyUnicode_InternFromString(which[i]) : NULL;
        if (which[i])
            ok = name && add_attr(f, (PyObject *)p, name, depth,
                                  PyUnicode_FromFormat("defaults of %U", p->func_name));
        Py_XDECREF(name);
    }
    return ok;
}
static int look_into_function(finder *f, PyObject *fn, int depth)
{
    PyFunctionObject *p = (PyFunctionObject *)fn;
    if (is_library(p->func_module) || is_standard(p->func_module))
        return 1;
    if (!code_names(f, p->func_code, p->func_globals, depth) || !add_defaults(f, p, depth))
        return 0;
    PyObject *free = PyCode_GetFreevars((PyCodeObject *)p->func_code);
    int ok = free != NULL;
    for (Py_ssize_t i = 0; ok && p->func_closure && i < PyTuple_GET_SIZE(p->func_closure); i++) {
        PyObject *cell = PyTuple_GET_ITEM(p->func_closure, i), *v = Py_XNewRef(PyCell_GET(cell)),
                 *name = PyTuple_GET_ITEM(free, i);
        ok =
            add_source(f, S_CELL, cell, name) && state_add(f->s, PLACE_CELL, cell, name, NULL) &&
            (!v || look_labelled(f, v, depth + 1, Py_NewRef(name))) &&
            (!v || !PyModule_Check(v) || module_names(f, v, ((PyCodeObject *)p->func_code)->co_names, depth));
        Py_XDECREF(v);
    }
    Py_XDECREF(free);
    return ok;
}

/* ---- classes and objects ---- */
static bool is_dunder(PyObject *name)
{
    const char *s = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    PyErr_Clear();
    return !s || !strncmp(s, "__", 2) || !strncmp(s, "_abc_", 5);
}
bool class_attribute(PyObject *name, PyObject *v)
{
    return !is_dunder(name) && !Py_IS_TYPE(v, &PyMemberDescr_Type) && !Py_IS_TYPE(v, &PyGetSetDescr_Type);
}
static int look_behind(finder *f, PyObject *v, const char *name, int depth)
{
    PyObject *fn = PyObject_GetAttrString(v, name);
    int ok = !fn || look_into(f, fn, depth);
    PyErr_Clear();
    Py_XDECREF(fn);
    return ok;
}
static int class_value(finder *f, PyTypeObject *type, PyObject *name, PyObject *v, int depth)
{
    if (PyObject_TypeCheck(v, &PyProperty_Type))
        return look_behind(f, v, "fget", depth) && look_behind(f, v, "fset", depth);
    if (PyObject_TypeCheck(v, &PyStaticMethod_Type) || PyObject_TypeCheck(v, &PyClassMethod_Type))
        return look_behind(f, v, "__func__", depth);
    if (!class_attribute(name, v) && !PyFunction_Check(v))
        return 1;
    if (is_dunder(name) && PyUnicode_CompareWithASCIIString(name, "__call__"))
        return 1;
    return add_source(f, S_CLASS, (PyObject *)type, name) &&
           look_labelled(f, v, depth + 1, PyUnicode_FromFormat("%s.%U", type->tp_name, name));
}
static int look_into_class(finder *f, PyTypeObject *type, int depth)
{
    for (Py_ssize_t i = 0; type->tp_mro && i < PyTuple_GET_SIZE(type->tp_mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i);
        if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || !base->tp_dict)
            continue;
        PyObject *module = PyDict_GetItemString(base->tp_dict, "__module__"), *key, *v;
        /* base itself: it was met as a value */
        int seen = is_foreign(module) ? 1 : seen_before(f, (char *)base + 1);
        if (seen < 0)
            return 0;
        if (seen)
            continue;
        PyObject *copy = PyDict_Copy(base->tp_dict); /* looking may run code that changes it */
        Py_ssize_t pos = 0;
        int ok = copy && state_add(f->s, PLACE_CLASS, (PyObject *)base, NULL, NULL) &&
                 add_source(f, S_SIZE, base->tp_dict, NULL);
        while (ok && PyDict_Next(copy, &pos, &key, &v))
            ok = class_value(f, base, key, v, depth);
        Py_XDECREF(copy);
        if (!ok)
            return 0;
    }
    return 1;
}
static bool is_slot(PyObject *d) /* whose value the object keeps */
{
    return Py_IS_TYPE(d, &PyMemberDescr_Type) && ((PyMemberDescrObject *)d)->d_member->type == T_OBJECT_EX;
}
static int look_into_slots(finder *f, PyObject *v, int depth)
{
    PyTypeObject *type = Py_TYPE(v);
    for (Py_ssize_t i = 0; type->tp_mro && i < PyTuple_GET_SIZE(type->tp_mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i);
        PyObject *key, *d;
        Py_ssize_t pos = 0;
        if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || !base->tp_dict ||
            is_foreign(PyDict_GetItemString(base->tp_dict, "__module__")))
            continue;
        PyObject *copy = PyDict_Copy(base->tp_dict);
        int ok = copy != NULL;
        while (ok && PyDict_Next(copy, &pos, &key, &d))
            if (is_slot(d))
                ok = add_attr(f, v, key, depth, PyUnicode_FromFormat("%s.%U", type->tp_name, key));
        Py_XDECREF(copy);
        if (!ok)
            return 0;
    }
    return 1;
}
static int look_into_object(finder *f, PyObject *v, int depth)
{
    PyTypeObject *type = Py_TYPE(v);
    PyObject *module = PyObject_GetAttrString((PyObject *)type, "__module__"), *key, *item;
    PyErr_Clear();
    /* modules and optimisers are the user's */
    bool library = is_library(module) && !PyObject_HasAttrString((PyObject *)type, "_holds_tensors_");
    Py_XDECREF(module);
    if (library || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE))
        if (library || !type->tp_dictoffset)
            return 1;
    /* looking may run code that changes it */
    PyObject *dict = PyObject_GenericGetDict(v, NULL), *copy = dict ? PyDict_Copy(dict) : NULL;
    PyErr_Clear();
    Py_ssize_t pos = 0;
    int ok = 1;
    if (dict)
        ok = copy && state_add(f->s, PLACE_DICT, dict, NULL, f->label) && add_source(f, S_SIZE, dict, NULL);
    while (ok && dict && PyDict_Next(copy, &pos, &key, &item))
        ok = add_source(f, S_DICT, dict, key) &&
             look_labelled(f, item, depth + 1, PyUnicode_FromFormat("%s.%S", type->tp_name, key));
    ok = ok && look_into_slots(f, v, depth) && look_into_class(f, type, depth);
    Py_XDECREF(copy);
    Py_XDECREF(dict);
    return ok;
}

/* ---- values ---- */
static int look_into_container(finder *f, PyObject *v, int depth)
{
    bool dict = PyDict_Check(v), set = PyAnySet_Check(v);
    place_kind kind = dict ? PLACE_DICT : set ? PLACE_SET : PyList_Check(v) ? PLACE_LIST : PLACE_DEQUE;
    bool fixed = PyTuple_Check(v) || PyFrozenSet_Check(v);
    if (!fixed && !state_add(f->s, kind, v, NULL, f->label))
        return 0;
    PyObject *items = dict ? PyDict_Values(v) : PySequence_List(v);
    int ok = items != NULL;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(items); i++)
        ok = look_into(f, PyList_GET_ITEM(items, i), depth + 1);
    Py_XDECREF(items);
    return ok;
}
bool state_is_deque(PyObject *o)
{
    static PyTypeObject *type;
    if (!type) {
        PyObject *m = PyImport_ImportModule("collections");
        type = m ? (PyTypeObject *)PyObject_GetAttrString(m, "deque") : NULL;
        Py_XDECREF(m);
        PyErr_Clear();
    }
    return type && PyObject_TypeCheck(o, type);
}
static bool is_container(PyObject *v)
{
    return PyTuple_Check(v) || PyList_Check(v) || PyDict_Check(v) || PyAnySet_Check(v) || state_is_deque(v);
}
static bool is_simple(PyObject *v)
{
    return v == Py_None || PyFloat_CheckExact(v) || PyLong_CheckExact(v) || PyBool_Check(v) ||
           PyUnicode_CheckExact(v) || PyBytes_CheckExact(v) || PyModule_Check(v) || key_is_tensor(v);
}
/* What functools.partial holds: its attributes cannot be changed, but what they are can. */
static int look_into_partial(finder *f, PyObject *v, int depth)
{
    static const char *const names[] = {"func", "args", "keywords"};
    int ok = 1;
    for (int i = 0; i < 3 && ok; i++) {
        PyObject *name = PyUnicode_InternFromString(names[i]);
        PyObject *part = name ? PyObject_GetAttr(v, name) : NULL;
        ok = part && add_source(f, S_ATTR, v, name) && look_into(f, part, depth + 1);
        Py_XDECREF(part);
        Py_XDECREF(name);
    }
    return ok;
}
static int look_into(finder *f, PyObject *v, int depth)
{
    if (is_simple(v) || depth > DEEPEST)
        return 1;
    int seen = seen_before(f, v);
    if (seen)
        return seen > 0;
    if (is_container(v) && !look_into_container(f, v, depth))
        return 0;
    if (PyFunction_Check(v))
        return look_into_function(f, v, depth);
    if (PyMethod_Check(v))
        return look_into(f, PyMethod_GET_FUNCTION(v), depth + 1) &&
               look_into(f, PyMethod_GET_SELF(v), depth + 1);
    if (PyCFunction_Check(v)) { /* [].append */
        PyObject *self = PyCFunction_GET_SELF(v);
        return !self || look_into(f, self, depth + 1);
    }
    if (!strcmp(Py_TYPE(v)->tp_name, "functools.partial"))
        return look_into_partial(f, v, depth);
    if (PyType_Check(v))
        return look_into_class(f, (PyTypeObject *)v, depth);
    if (PyContextVar_CheckExact(v))
        return add_source(f, S_CONTEXT, v, NULL) && state_add(f->s, PLACE_CONTEXT, v, NULL, f->label);
    if (PyObject_TypeCheck(v, compiled_fn_type))
        return look_into(f, ((CompiledFn *)v)->fn, depth + 1);
    if (state_is_random(v))
        return state_add(f->s, PLACE_RANDOM, v, NULL, f->label);
    if (PyIter_Check(v) && !(Py_TYPE(v)->tp_flags & Py_TPFLAGS_HEAPTYPE))
        return state_add(f->s, PLACE_ITERATOR, v, NULL, f->label);
    return look_into_object(f, v, depth);
}
static PyObject *watched; /* context variables that every function may depend on */
int find_watch(PyObject *var)
{
    if (!PyContextVar_CheckExact(var))
        return py_fail(PyExc_TypeError, "compile_watch takes a context variable"), 0;
    return (watched || (watched = PyList_New(0))) && PyList_Append(watched, var) == 0;
}
int find_sources(CompiledFn *c, const leaves *l, Entry *e, state *s)
{
    finder f = {.seen = PySet_New(NULL), .e = e, .s = s};
    int ok = f.seen != NULL && look_labelled(&f, c->fn, 0, PyUnicode_FromString("the function"));
    for (Py_ssize_t i = 0; ok && i < l->n; i++)
        ok = look_labelled(&f, l->at[i], 1, PyUnicode_FromString("an argument"));
    for (Py_ssize_t i = 0; ok && watched && i < PyList_GET_SIZE(watched); i++)
        ok = look_into(&f, PyList_GET_ITEM(watched, i), 1);
    Py_XDECREF(f.seen);
    return ok;
}
