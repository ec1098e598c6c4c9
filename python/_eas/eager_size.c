/* eager_size.c: questions about symbolic sizes while a function is traced. They are answered for the call at
 * hand, and the answers become guards: a call for which one is different gets a program of its own. */
#include "eager_compile.h"

#include <string.h>

static _Thread_local sizes *now;

/* ---- sizes of a call ---- */
static int64_t size_of_leaf(PyObject *o, int axis) /* physical */
{
    if (eager_check(o))
        return eas_node_shape(eager_node(o))[axis];
    if (PyArray_Check(o))
        return PyArray_DIM((PyArrayObject *)o, axis);
    return ((Tensor *)o)->dims[axis];
}
static int add_size(sizes *s, eas_dim symbol, int64_t value)
{
    char *name = NULL;
    eas_status st = eas_dim_text(symbol, &name);
    if (st != EAS_OK)
        return py_raise(st), 0;
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->name[i], name)) {
            eas_memory_free(name);
            return 1;
        }
    s->name[s->n] = name;
    s->value[s->n++] = value;
    return 1;
}
static int read_sizes(sizes *s, const Entry *e, const leaves *l)
{
    s->n = 0;
    for (int i = 0; i < e->nargleaves; i++)
        for (int d = 0; e->leaves[i].is_tensor && d < e->leaves[i].rank; d++)
            if (e->leaves[i].shape[d] < 0 && s->n < SIZES &&
                !add_size(s, e->leaves[i].shape[d], size_of_leaf(l->at[i], d)))
                return 0;
    return 1;
}
static void free_names(sizes *s)
{
    for (int i = 0; i < s->n; i++)
        eas_memory_free(s->name[i]);
    s->n = 0;
}
static bool size_in(const sizes *s, eas_dim d, int64_t *out)
{
    if (d >= 0)
        return *out = d, true;
    return eas_dim_value(d, s->n, (const char *const *)s->name, s->value, out) == EAS_OK;
}
static bool compare(int op, int64_t a, int64_t b)
{
    switch (op) {
    case Py_LT: return a < b;
    case Py_LE: return a <= b;
    case Py_EQ: return a == b;
    case Py_NE: return a != b;
    case Py_GT: return a > b;
    default: return a >= b;
    }
}

/* ---- asking ---- */
static int remember(Entry *e, int op, eas_dim a, eas_dim b, bool answer)
{
    for (int i = 0; i < e->nguards; i++)
        if (e->guards[i].op == op && e->guards[i].a == a && e->guards[i].b == b)
            return 1;
    struct size_guard *at = PyMem_Realloc(e->guards, sizeof *at * (size_t)(e->nguards + 1));
    if (!at)
        return 0;
    e->guards = at;
    at[e->nguards++] = (struct size_guard){op, a, b, answer};
    return 1;
}
int size_decide(int op, eas_dim a, eas_dim b)
{
    int64_t x, y;
    for (sizes *s = now; s; s = s->outer)
        if (size_in(s, a, &x) && size_in(s, b, &y))
            return remember(s->e, op, a, b, compare(op, x, y)) ? compare(op, x, y) : -1;
    return -1;
}
int size_value(eas_dim d, int64_t *out)
{
    for (sizes *s = now; s; s = s->outer)
        if (size_in(s, d, out))
            return remember(s->e, Py_EQ, d, *out, true);
    return 0;
}
/* different ones that happen to be equal: the program is for calls where they are */
static int agree(void *context, eas_dim a, eas_dim b)
{
    int64_t x, y;
    const sizes *s = context;
    return size_in(s, a, &x) && size_in(s, b, &y) && x == y && remember(s->e, Py_EQ, a, b, true);
}
int sizes_push(sizes *s, Entry *e, const leaves *l)
{
    *s = (sizes){.e = e, .outer = now};
    if (!read_sizes(s, e, l))
        return 0;
    now = s;
    eas_dim_set_decider(s->n ? agree : NULL, s);
    return 1;
}
void sizes_pop(sizes *s)
{
    now = s->outer;
    eas_dim_set_decider(now && now->n ? agree : NULL, now);
    free_names(s);
}

/* ---- later calls ---- */
static PyObject *guard_text(const struct size_guard *g)
{
    static const char *const signs[] = {
        [Py_LT] = "<", [Py_LE] = "<=", [Py_EQ] = "==", [Py_NE] = "!=", [Py_GT] = ">", [Py_GE] = ">="};
    PyObject *a = dim_object(g->a), *b = dim_object(g->b), *r = NULL;
    if (a && b)
        r = PyUnicode_FromFormat(g->answer ? "%S %s %S" : "not %S %s %S", a, signs[g->op], b);
    Py_XDECREF(a);
    Py_XDECREF(b);
    return r;
}
static const struct size_guard *broken(const Entry *e, const leaves *l)
{
    sizes s = {0};
    const struct size_guard *bad = NULL;
    int64_t x, y;
    bool read = read_sizes(&s, e, l);
    PyErr_Clear();
    for (int i = 0; i < e->nguards && !bad; i++) {
        const struct size_guard *g = &e->guards[i];
        if (!read || !size_in(&s, g->a, &x) || !size_in(&s, g->b, &y) || compare(g->op, x, y) != g->answer)
            bad = g;
    }
    free_names(&s);
    return bad;
}
bool sizes_match(const Entry *e, const leaves *l) { return !e->nguards || !broken(e, l); }

PyObject *sizes_difference(const Entry *e, const leaves *l)
{
    const struct size_guard *g = e->nguards ? broken(e, l) : NULL;
    PyObject *t = g ? guard_text(g) : NULL,
             *r = t ? PyUnicode_FromFormat("sizes: the program is for %U", t) : NULL;
    Py_XDECREF(t);
    return r;
}
PyObject *sizes_text(const Entry *e)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < e->nguards; i++) {
        PyObject *t = guard_text(&e->guards[i]);
        if (!t || PyList_Append(list, t) < 0)
            Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}
