/* eager_state.c: what a compiled function changes besides giving a result.
 *
 * A trace runs the function once, so its changes of attributes, variables and containers happen once, with
 * placeholders in place of data. The contents of every place that it can reach (eager_find.c) are remembered
 * before the trace and compared after it. Tensors that were assigned become further results, which each run
 * assigns again. Any other change (a number that is counted up, a list that grows) cannot be replayed: that
 * is a GraphBreak, and the function runs as it is. In both cases everything is put back first: the trace
 * itself leaves no mark.
 *
 * Arrays that are captured are replaced by tensors for the time of a trace, so that reading their elements is
 * either recorded or a GraphBreak.
 */
#include "eager_compile.h"

#include <string.h>

/* ---- places ---- */
int state_add(state *s, place_kind kind, PyObject *owner, PyObject *key, PyObject *label)
{
    PyObject *id = Py_BuildValue("(NN)", PyLong_FromVoidPtr(owner), PyLong_FromVoidPtr(key));
    if (!id || (!s->seen && !(s->seen = PySet_New(NULL)))) {
        Py_XDECREF(id);
        return 0;
    }
    int seen = PySet_Contains(s->seen, id);
    if (seen == 0)
        seen = PySet_Add(s->seen, id) < 0 ? -1 : 0;
    Py_DECREF(id);
    if (seen)
        return seen > 0;
    if ((s->n & (s->n - 1)) == 0) {
        place *at = PyMem_Realloc(s->at, sizeof *at * (size_t)(s->n ? 2 * s->n : 1));
        if (!at)
            return PyErr_NoMemory(), 0;
        s->at = at;
    }
    s->at[s->n++] =
        (place){.kind = kind, .owner = Py_NewRef(owner), .key = Py_XNewRef(key), .label = Py_XNewRef(label)};
    return 1;
}
static PyObject *only_names(PyObject *dict, PyObject *names)
{
    PyObject *d = PyDict_New(), *v;
    for (Py_ssize_t i = 0; d && i < PyTuple_GET_SIZE(names); i++)
        if (((v = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(names, i))) &&
             PyDict_SetItem(d, PyTuple_GET_ITEM(names, i), v) < 0) ||
            PyErr_Occurred())
            Py_CLEAR(d);
    return d;
}
static PyObject *class_dict(PyObject *type)
{
    PyObject *d = PyDict_New(), *key, *v;
    Py_ssize_t pos = 0;
    while (d && PyDict_Next(((PyTypeObject *)type)->tp_dict, &pos, &key, &v))
        if (class_attribute(key, v) && PyDict_SetItem(d, key, v) < 0)
            Py_CLEAR(d);
    return d;
}
static PyObject *single(PyObject *key, PyObject *v) /* steals v, which may be NULL: {key: v} */
{
    PyObject *d = PyErr_Occurred() ? NULL : PyDict_New();
    if (d && v && PyDict_SetItem(d, key ? key : Py_None, v) < 0)
        Py_CLEAR(d);
    Py_XDECREF(v);
    return d;
}
static PyObject *attribute(PyObject *o, PyObject *name)
{
    PyObject *v = PyObject_GetAttr(o, name);
    if (!v && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return v;
}
static PyObject *context_value(PyObject *var)
{
    PyObject *v = NULL;
    return PyContextVar_Get(var, NULL, &v) < 0 ? NULL : v;
}
/* The state of a generator of random numbers, as bytes: random.Random, numpy.random's Generator and
 * RandomState. */
bool state_is_random(PyObject *o)
{
    const char *s = Py_TYPE(o)->tp_name;
    return !strcmp(s, "random.Random") || !strcmp(s, "Random") ||
           !strcmp(s, "numpy.random._generator.Generator") || !strcmp(s, "numpy.random.mtrand.RandomState");
}
static PyObject *random_owner(PyObject *o, const char **get)
{
    PyObject *b = PyObject_GetAttrString(o, "bit_generator");
    PyErr_Clear();
    if (!b && (b = PyObject_GetAttrString(o, "_bit_generator")) == NULL)
        PyErr_Clear();
    *get = b ? "state" : "getstate";
    return b ? b : Py_NewRef(o);
}
static PyObject *random_state(PyObject *o)
{
    const char *get;
    PyObject *owner = random_owner(o, &get), *state = NULL, *text = NULL,
             *pickle = PyImport_ImportModule("pickle");
    state =
        !strcmp(get, "state") ? PyObject_GetAttrString(owner, get) : PyObject_CallMethod(owner, get, NULL);
    text = pickle && state ? PyObject_CallMethod(pickle, "dumps", "(O)", state) : NULL;
    PyObject *both = text ? PyTuple_Pack(2, text, state) : NULL;
    Py_XDECREF(text);
    Py_XDECREF(pickle);
    Py_XDECREF(state);
    Py_DECREF(owner);
    return both;
}
static int random_put_back(PyObject *o, PyObject *both)
{
    const char *get;
    PyObject *owner = random_owner(o, &get), *state = PyTuple_GET_ITEM(both, 1), *r = NULL;
    int ok;
    if (!strcmp(get, "state"))
        ok = PyObject_SetAttrString(owner, get, state) == 0;
    else
        ok = (r = PyObject_CallMethod(owner, "setstate", "(O)", state)) != NULL;
    Py_XDECREF(r);
    Py_DECREF(owner);
    return ok;
}
static PyObject *contents(const place *p)
{
    switch (p->kind) {
    case PLACE_LIST:
    case PLACE_DEQUE: return PySequence_List(p->owner);
    case PLACE_SET: return PySet_New(p->owner);
    case PLACE_DICT: return PyDict_Copy(p->owner);
    case PLACE_NAMES: return only_names(p->owner, p->key);
    case PLACE_CLASS: return class_dict(p->owner);
    case PLACE_CELL: return single(p->key, Py_XNewRef(PyCell_GET(p->owner)));
    case PLACE_ATTR: return single(p->key, attribute(p->owner, p->key));
    case PLACE_CONTEXT: return single(NULL, context_value(p->owner));
    case PLACE_RANDOM: return random_state(p->owner);
    case PLACE_ITERATOR: return Py_NewRef(Py_None);
    }
    return NULL;
}
/* Sets an element, or takes it away (v == NULL). */
static int put(place_kind kind, PyObject *owner, PyObject *key, PyObject *v)
{
    switch (kind) {
    case PLACE_LIST:
    case PLACE_DEQUE: return PyObject_SetItem(owner, key, v) == 0;
    case PLACE_DICT:
    case PLACE_NAMES: return (v ? PyDict_SetItem(owner, key, v) : PyDict_DelItem(owner, key)) == 0;
    case PLACE_CLASS:
    case PLACE_ATTR: return PyObject_SetAttr(owner, key, v) == 0;
    case PLACE_CELL: return PyCell_Set(owner, v) == 0;
    case PLACE_CONTEXT: {
        PyObject *token = v ? PyContextVar_Set(owner, v) : NULL;
        Py_XDECREF(token);
        return !v || token; /* a variable that had no value keeps one */
    }
    default: return 0;
    }
}

/* ---- before ---- */
/* v with tensors in place of arrays, counted, where that is another object; NULL without an exception: v may
 * stay. Lists and dicts are places themselves. */
static PyObject *stand_in_for(state *s, PyObject *v, bool small)
{
    if (key_is_tensor(v) && !eager_check(v)) {
        if (!small && PyArray_Check(v) && PyArray_NBYTES((PyArrayObject *)v) <= SMALL_ARRAY)
            return NULL;
        eas_node *n = eager_stand_in(v);
        PyObject *t = n ? eager_wrap(n) : NULL, *pair = t ? PyTuple_Pack(2, v, t) : NULL;
        if (t && (!pair || PyList_Append(s->arrays, pair) < 0))
            Py_CLEAR(t);
        Py_XDECREF(pair);
        return t;
    }
    if (!PyTuple_CheckExact(v))
        return NULL;
    PyObject *copy = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); i++) {
        PyObject *t = stand_in_for(s, PyTuple_GET_ITEM(v, i), small);
        if (!t && PyErr_Occurred()) {
            Py_XDECREF(copy);
            return NULL;
        }
        if (!t)
            continue;
        if (!copy && (copy = PyTuple_New(PyTuple_GET_SIZE(v))))
            for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(v); k++)
                PyTuple_SET_ITEM(copy, k, Py_NewRef(PyTuple_GET_ITEM(v, k)));
        if (copy) {
            Py_DECREF(PyTuple_GET_ITEM(copy, i));
            PyTuple_SET_ITEM(copy, i, t);
        } else
            Py_DECREF(t);
    }
    return copy;
}
static int replace_arrays(state *s, place *p, bool small)
{
    PyObject *c = p->before, *key, *v, *t;
    Py_ssize_t pos = 0;
    if (p->path || p->kind == PLACE_SET || p->kind == PLACE_RANDOM || p->kind == PLACE_ITERATOR)
        return 1;
    if (PyDict_Check(c)) {
        while (PyDict_Next(c, &pos, &key, &v)) {
            t = stand_in_for(s, v, small);
            if ((!t && PyErr_Occurred()) || (t && !put(p->kind, p->owner, key, t))) {
                Py_XDECREF(t);
                return 0;
            }
            Py_XDECREF(t);
        }
        return 1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(c); i++) {
        t = stand_in_for(s, PyList_GET_ITEM(c, i), small);
        PyObject *k = t ? PyLong_FromSsize_t(i) : NULL;
        int ok = t ? k && put(p->kind, p->owner, k, t) : !PyErr_Occurred();
        Py_XDECREF(k);
        Py_XDECREF(t);
        if (!ok)
            return 0;
    }
    return 1;
}
/* The generators that random.random and numpy.random.rand draw from. */
static int add_global_random(state *s)
{
    static const struct {
        const char *module, *name;
    } at[] = {{"random", "_inst"}, {"numpy.random.mtrand", "_rand"}};
    for (int i = 0; i < 2; i++) {
        PyObject *modules = PyImport_GetModuleDict(), *m = PyDict_GetItemString(modules, at[i].module);
        PyObject *g = m ? PyObject_GetAttrString(m, at[i].name) : NULL,
                 *label = g ? PyUnicode_FromFormat("%s", at[i].module) : NULL;
        PyErr_Clear();
        int ok = !g || (label && state_add(s, PLACE_RANDOM, g, NULL, label));
        Py_XDECREF(label);
        Py_XDECREF(g);
        if (!ok)
            return 0;
    }
    return 1;
}
int state_begin(state *s, bool small)
{
    int ok = add_global_random(s) && (s->arrays = PyList_New(0)) != NULL;
    for (int i = 0; i < s->n && ok; i++)
        ok = (s->at[i].before = contents(&s->at[i])) != NULL;
    for (int i = 0; i < s->n && ok; i++)
        ok = replace_arrays(s, &s->at[i], !small);
    for (int i = 0; i < s->n && ok; i++) {
        place *p = &s->at[i];
        p->start = PyList_GET_SIZE(s->arrays) && p->kind != PLACE_RANDOM ? contents(p) : Py_NewRef(p->before);
        ok = p->start != NULL;
        if (ok && p->kind == PLACE_ITERATOR) {
            py_fail(graph_break,
                    "the function reads from an iterator (%V), whose next elements only a run can take",
                    p->label, "captured");
            ok = 0;
        }
    }
    return ok;
}
bool state_has_small(const state *s)
{
    for (Py_ssize_t i = 0; s->arrays && i < PyList_GET_SIZE(s->arrays); i++) {
        PyObject *a = PyTuple_GET_ITEM(PyList_GET_ITEM(s->arrays, i), 0);
        if (PyArray_Check(a) && PyArray_NBYTES((PyArrayObject *)a) <= SMALL_ARRAY)
            return true;
    }
    return false;
}

/* ---- after ---- */
static int no_replay(const place *p, PyObject *key, const char *what)
{
    PyObject *where = NULL;
    const char *label = p->label ? PyUnicode_AsUTF8(p->label) : NULL;
    if (p->kind == PLACE_NAMES)
        where = PyUnicode_FromFormat("global %S", key);
    else if (p->kind == PLACE_CELL)
        where = PyUnicode_FromFormat("the variable %S", key);
    else if (p->kind == PLACE_CLASS)
        where = PyUnicode_FromFormat("%s.%S", ((PyTypeObject *)p->owner)->tp_name, key);
    else if (p->kind == PLACE_RANDOM)
        where = PyUnicode_FromFormat("the random numbers of %s", label ? label : "a generator");
    else if (key && p->kind == PLACE_DICT)
        where = PyUnicode_FromFormat("%R of %s", key, label ? label : "an argument");
    else
        where = PyUnicode_FromFormat("%s", label ? label : "an argument");
    if (where)
        py_fail(
            graph_break,
            "the function changes %U (%s), which a replay cannot do: return the new value, keep it in a tensor, or do it outside the "
            "compiled function",
            where, what);
    Py_XDECREF(where);
    return 0;
}
static const char *kind_of(const place *p)
{
    switch (p->kind) {
    case PLACE_LIST: return "a list";
    case PLACE_SET: return "a set";
    case PLACE_DEQUE: return "a deque";
    case PLACE_RANDOM: return "use eager's, which each run draws anew";
    default: return "a value that is no tensor";
    }
}
/* May a run assign this? Tensors, and around them what was there before. */
static int can_write(PyObject *old, PyObject *new)
{
    PyObject *a = NULL, *b = NULL, *ta = NULL, *tb = NULL;
    int ok = pytree_flatten(new, NULL, &b, &tb);
    if (!ok)
        return PyErr_Clear(), 0;
    bool like = old && pytree_flatten(old, NULL, &a, &ta) && pytree_same(ta, tb) == 1;
    PyErr_Clear();
    ok = PyList_GET_SIZE(b) > 0;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(b); i++)
        ok = eager_check(PyList_GET_ITEM(b, i)) || (like && PyList_GET_ITEM(a, i) == PyList_GET_ITEM(b, i));
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(ta);
    Py_XDECREF(tb);
    return ok;
}
static int add_write(Entry *e, const place *p, PyObject *key, int input, PyObject *value, PyObject *values)
{
    change *at = PyMem_Realloc(e->writes, sizeof *at * (size_t)(e->nwrites + 1));
    if (!at)
        return PyErr_NoMemory(), 0;
    e->writes = at;
    at[e->nwrites++] = (change){.kind = p ? p->kind : PLACE_ATTR,
                                .owner = p && !p->path ? Py_NewRef(p->owner) : NULL,
                                .key = Py_XNewRef(key),
                                .path = p ? Py_XNewRef(p->path) : NULL,
                                .input = input};
    return PyList_Append(values, value) == 0;
}
int write_handle(Entry *e, int input, PyObject *value, PyObject *values)
{
    return add_write(e, NULL, NULL, input, value, values);
}

/* Nothing was there: the entry is not for calls that find something. */
static int guard_absence(Entry *e, const place *p, PyObject *key)
{
    if (p->kind != PLACE_NAMES || p->path)
        return 1; /* attributes are counted */
    source *at = PyMem_Realloc(e->sources, sizeof *at * ((size_t)e->nsources + 1));
    if (!at)
        return PyErr_NoMemory(), 0;
    e->sources = at;
    at[e->nsources++] = (source){.kind = S_DICT,
                                 .absent = true,
                                 .container = Py_NewRef(p->owner),
                                 .key = Py_NewRef(key),
                                 .first = e->nleaves};
    return 1;
}
static int dict_changes(const place *p, PyObject *now, Entry *e, PyObject *values)
{
    PyObject *key, *v;
    Py_ssize_t pos = 0;
    while (PyDict_Next(p->start, &pos, &key, &v)) {
        PyObject *new = PyDict_GetItemWithError(now, key);
        if (new == v)
            continue;
        if (!new || !can_write(v, new))
            return no_replay(p, key, kind_of(p));
        if (!add_write(e, p, key, -1, new, values))
            return 0;
    }
    for (pos = 0; PyDict_Next(now, &pos, &key, &v);) {
        if (PyDict_GetItemWithError(p->start, key))
            continue;
        if (!can_write(NULL, v))
            return no_replay(p, key, kind_of(p));
        if (!guard_absence(e, p, key) || !add_write(e, p, key, -1, v, values))
            return 0;
    }
    return !PyErr_Occurred();
}
static int list_changes(const place *p, PyObject *now, Entry *e, PyObject *values)
{
    if (PyList_GET_SIZE(now) != PyList_GET_SIZE(p->start))
        return no_replay(p, NULL, kind_of(p));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(now); i++) {
        PyObject *old = PyList_GET_ITEM(p->start, i), *new = PyList_GET_ITEM(now, i), *key;
        if (old == new)
            continue;
        if (!can_write(old, new))
            return no_replay(p, NULL, kind_of(p));
        int ok = (key = PyLong_FromSsize_t(i)) && add_write(e, p, key, -1, new, values);
        Py_XDECREF(key);
        if (!ok)
            return 0;
    }
    return 1;
}
int state_changes(state *s, Entry *e, PyObject *values)
{
    for (int i = 0; i < s->n; i++) {
        const place *p = &s->at[i];
        PyObject *now = contents(p);
        int ok = now != NULL;
        if (!ok)
            return 0;
        if (p->kind == PLACE_SET)
            ok = PyObject_RichCompareBool(now, p->start, Py_EQ) == 1 || no_replay(p, NULL, kind_of(p));
        else if (p->kind == PLACE_RANDOM)
            ok = PyObject_RichCompareBool(PyTuple_GET_ITEM(now, 0), PyTuple_GET_ITEM(p->start, 0), Py_EQ) ==
                     1 ||
                 no_replay(p, NULL, kind_of(p));
        else if (PyDict_Check(now))
            ok = dict_changes(p, now, e, values);
        else if (PyList_Check(now))
            ok = list_changes(p, now, e, values);
        Py_DECREF(now);
        if (!ok)
            return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(s->arrays); i++) {
        PyObject *pair = PyList_GET_ITEM(s->arrays, i);
        eas_node *n = eager_stand_in(PyTuple_GET_ITEM(pair, 0));
        bool same = n == eager_node(PyTuple_GET_ITEM(pair, 1));
        eas_node_release(n);
        if (!same)
            return py_fail(
                       graph_break,
                       "the function assigns to elements of an array that it captures, which a replay cannot do"),
                   0;
    }
    return 1;
}

/* ---- as it was ---- */
static int refill(const place *p) /* a list, a deque or a set */
{
    PyObject *r = PyObject_CallMethod(p->owner, "clear", NULL), *q = NULL;
    if (r)
        q = PyObject_CallMethod(p->owner, p->kind == PLACE_SET ? "update" : "extend", "(O)", p->before);
    Py_XDECREF(r);
    Py_XDECREF(q);
    return q != NULL;
}
static int restore_dict(const place *p, PyObject *now)
{
    PyObject *key, *v;
    Py_ssize_t pos = 0;
    while (PyDict_Next(p->before, &pos, &key, &v))
        if (PyDict_GetItemWithError(now, key) != v && !put(p->kind, p->owner, key, v))
            return 0;
    for (pos = 0; PyDict_Next(now, &pos, &key, &v);)
        if (!PyDict_GetItemWithError(p->before, key) && !put(p->kind, p->owner, key, NULL))
            return 0;
    return 1;
}
static bool same_items(PyObject *a, PyObject *b)
{
    bool same = PyList_GET_SIZE(a) == PyList_GET_SIZE(b);
    for (Py_ssize_t i = 0; same && i < PyList_GET_SIZE(a); i++)
        same = PyList_GET_ITEM(a, i) == PyList_GET_ITEM(b, i);
    return same;
}
static int restore(const place *p)
{
    PyObject *now = p->before && !p->path ? contents(p) : NULL;
    int ok = 1;
    if (!now)
        return !PyErr_Occurred();
    if (p->kind == PLACE_RANDOM)
        ok = random_put_back(p->owner, p->before);
    else if (PyDict_Check(now))
        ok = restore_dict(p, now);
    else if (p->kind == PLACE_SET)
        ok = PyObject_RichCompareBool(now, p->before, Py_EQ) == 1 || refill(p);
    else if (PyList_Check(now))
        ok = same_items(now, p->before) || refill(p);
    Py_DECREF(now);
    return ok;
}
int state_restore(state *s) /* an exception that is set stays */
{
    PyObject *t, *v, *tb;
    PyErr_Fetch(&t, &v, &tb);
    int ok = 1;
    for (int i = 0; i < s->n; i++)
        ok = restore(&s->at[i]) && ok;
    if (t)
        PyErr_Restore(t, v, tb);
    return ok;
}
void state_end(state *s)
{
    for (int i = 0; i < s->n; i++) {
        place *p = &s->at[i];
        PyObject *refs[] = {p->owner, p->key, p->before, p->start, p->label, p->path};
        for (size_t k = 0; k < sizeof refs / sizeof *refs; k++)
            Py_XDECREF(refs[k]);
    }
    PyMem_Free(s->at);
    Py_XDECREF(s->seen);
    Py_XDECREF(s->arrays);
    *s = (state){0};
}

/* ---- arguments ---- */
static PyObject *longer(PyObject *path, char kind, PyObject *key) /* the path with one step more */
{
    PyObject *step = Py_BuildValue("((CO))", kind, key), *r = step ? PySequence_Concat(path, step) : NULL;
    Py_XDECREF(step);
    return r;
}
static int walk(state *s, PyObject *given, PyObject *copy, PyObject *path);

static int walk_step(state *s, PyObject *given, PyObject *copy, PyObject *path, char kind, PyObject *key)
{
    PyObject *p = key ? longer(path, kind, key) : NULL;
    int ok = p && walk(s, given, copy, p);
    Py_XDECREF(p);
    return ok;
}
static int add_argument(state *s, place_kind kind, PyObject *copy, PyObject *path)
{
    int before = s->n;
    if (!state_add(s, kind, copy, NULL, NULL))
        return 0;
    if (s->n > before)
        s->at[before].path = Py_NewRef(path);
    return 1;
}
static int walk_dict(state *s, PyObject *given, PyObject *copy, PyObject *path)
{
    PyObject *key, *v;
    Py_ssize_t pos = 0;
    if (!add_argument(s, PLACE_DICT, copy, path))
        return 0;
    while (PyDict_Next(copy, &pos, &key, &v)) {
        PyObject *g = PyDict_GetItemWithError(given, key);
        if (g ? !walk_step(s, g, v, path, 'i', key) : PyErr_Occurred() != NULL)
            return 0;
    }
    return 1;
}
/* Where pytrees made another object out of the caller's, changes of it are changes of the caller's. */
static int walk(state *s, PyObject *given, PyObject *copy, PyObject *path)
{
    if (given == copy || Py_TYPE(given) != Py_TYPE(copy) || eager_check(copy))
        return 1;
    bool list = PyList_Check(copy);
    if (PyDict_Check(copy))
        return walk_dict(s, given, copy, path);
    if (list && !add_argument(s, PLACE_LIST, copy, path))
        return 0;
    if (list || PyTuple_Check(copy)) {
        Py_ssize_t n = Py_SIZE(copy) < Py_SIZE(given) ? Py_SIZE(copy) : Py_SIZE(given);
        for (Py_ssize_t i = 0; i < n; i++) {
            PyObject *key = PyLong_FromSsize_t(i),
                     *g = list ? PyList_GET_ITEM(given, i) : PyTuple_GET_ITEM(given, i);
            int ok = key && walk_step(s, g, list ? PyList_GET_ITEM(copy, i) : PyTuple_GET_ITEM(copy, i), path,
                                      'i', key);
            Py_XDECREF(key);
            if (!ok)
                return 0;
        }
        return 1;
    }
    PyObject *a = PyObject_GenericGetDict(given, NULL), *b = a ? PyObject_GenericGetDict(copy, NULL) : NULL;
    PyErr_Clear();
    PyObject *p = a && b ? longer(path, 'd', Py_None) : NULL;
    int ok = p ? walk_dict(s, a, b, p) : !PyErr_Occurred();
    Py_XDECREF(p);
    Py_XDECREF(a);
    Py_XDECREF(b);
    return ok;
}
int state_add_arguments(state *s, PyObject *given, PyObject *copy)
{
    PyObject *path = PyTuple_New(0);
    int ok = path && walk(s, given, copy, path);
    Py_XDECREF(path);
    return ok;
}

/* ---- again, at each run ---- */
static PyObject *follow(PyObject *both, PyObject *path) /* counted */
{
    PyObject *o = Py_NewRef(both);
    for (Py_ssize_t i = 0; o && i < PyTuple_GET_SIZE(path); i++) {
        PyObject *step = PyTuple_GET_ITEM(path, i), *next;
        bool dict = PyUnicode_READ_CHAR(PyTuple_GET_ITEM(step, 0), 0) == 'd';
        next = dict ? PyObject_GenericGetDict(o, NULL) : PyObject_GetItem(o, PyTuple_GET_ITEM(step, 1));
        Py_SETREF(o, next);
    }
    return o;
}
int write_apply(const change *w, PyObject *both, PyObject *value)
{
    PyObject *owner = w->path ? follow(both, w->path) : Py_NewRef(w->owner);
    int ok = owner && put(w->kind, owner, w->key, value);
    Py_XDECREF(owner);
    return ok;
}
void write_free(change *w)
{
    Py_XDECREF(w->owner);
    Py_XDECREF(w->key);
    Py_XDECREF(w->path);
}

/* ---- entries that run as they are ---- */
static bool is_count(PyObject *o) { return (PyLong_Check(o) && !PyBool_Check(o)) || PyFloat_Check(o); }

/* Numbers that are counted and containers that grow would be another miss at each call. */
void state_forget_guards(Entry *e, PyObject *values)
{
    for (int i = 0; i < e->nsources && i < PyList_GET_SIZE(values); i++) {
        source *s = &e->sources[i];
        PyObject *old = PyList_GET_ITEM(values, i), *v = s->kind == S_SIZE ? NULL : source_fetch(s),
                 *c = v ? source_container(v) : NULL;
        if (v && c) {
            PyObject *list = NULL, *treedef = NULL;
            bool same = pytree_flatten(c, NULL, &list, &treedef) && s->treedef &&
                        pytree_same(treedef, s->treedef) == 1 && same_items(list, old);
            s->any = !same;
            Py_XDECREF(list);
            Py_XDECREF(treedef);
        } else if (v && PyList_GET_SIZE(old) == 1 && PyList_GET_ITEM(old, 0) != v)
            s->any = is_count(v) && is_count(PyList_GET_ITEM(old, 0));
        else if (v && PyAnySet_Check(v))
            s->any = PyObject_RichCompareBool(e->leaves[s->first].value, v, Py_EQ) != 1;
        PyErr_Clear();
        Py_XDECREF(c);
    }
}
