/* flow.c: what a rewritten function (eas._rewrite, eas._flow) calls while it is traced: branches and loops
 * whose carried values are given by position, marks to go back to, the mask of lanes that take part. Living
 * mk.vars ride along, as in the constructs of ctrl.c. */
#include "ctrl.h"

#include <string.h>

typedef struct values { /* of the trace's variables, then of the names */
    eas_value *v;
    int n;
} values;

static void values_free(values *x) { PyMem_Free(x->v); }
/* Room for the frame's variables, and the objects of a tuple behind them. 0 with an exception. */
static int values_read(Trace *t, const Frame *f, PyObject *tuple, const char *what, values *out)
{
    Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : -1;
    if (n < 0)
        return py_fail(PyExc_TypeError, "a tuple of values is wanted"), 0;
    out->n = f->n + (int)n;
    out->v = PyMem_Calloc((size_t)out->n + 1, sizeof *out->v);
    if (!out->v)
        return PyErr_NoMemory(), 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!value_arg(t, PyTuple_GET_ITEM(tuple, i), what, "a name", &out->v[f->n + i]))
            return 0;
    return trace_ok(t);
}
static PyObject *objects(Trace *t, const eas_value *v, int n)
{
    PyObject *r = PyTuple_New(n);
    for (int i = 0; r && i < n; i++) {
        PyObject *o = value_new(t, v[i]);
        if (!o)
            Py_CLEAR(r);
        else
            PyTuple_SET_ITEM(r, i, o);
    }
    return r;
}
static Frame *begin(Trace *t, enum kind kind)
{
    Frame *f = frame_new(t, kind);
    if (f && !frame_state_keep(f))
        frame_free(f), f = NULL;
    return f;
}
static Frame *innermost(Trace *t, enum kind kind)
{
    if (t->frames && t->frames->kind == kind)
        return t->frames;
    py_fail_at(
        PyExc_RuntimeError,
        "a traced `if` or loop here was left by a statement that the kernel language does not follow (break, continue or "
        "return inside `with` or `try`); use a condition");
    return NULL;
}

/* ---- conditions ---- */
/* True or False if it is known now, None if it is traced (under _interpret: if it differs between lanes or
 * threads). */
static PyObject *flow_truth(PyObject *m, PyObject *x)
{
    (void)m;
    if (!value_check(x)) {
        int r = PyObject_IsTrue(x);
        return r < 0 ? NULL : PyBool_FromLong(r);
    }
    Trace *t = trace_enter("if");
    eas_value v;
    if (!t || value_of(t, x, &v) != 1)
        return NULL;
    if (!t->live)
        Py_RETURN_NONE;
    PyObject *value = value_new(t, v), *item = value ? live_item(value, "the truth") : NULL;
    Py_XDECREF(value);
    if (!item && PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    int r = item ? PyObject_IsTrue(item) : -1;
    Py_XDECREF(item);
    return r < 0 ? NULL : PyBool_FromLong(r);
}
static PyObject *flow_traced(PyObject *m, PyObject *x)
{
    (void)m;
    return PyBool_FromLong(value_check(x));
}
static PyObject *flow_live(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    return PyBool_FromLong(trace_current() && trace_current()->live);
}
/* Is anything traced open, or are lanes masked? */
static PyObject *flow_open(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    Trace *t = trace_current();
    return PyBool_FromLong(t && (t->mask || (t->frames && t->frames->kind != K_PROBE)));
}

/* ---- types ---- */
/* (dtype, is weak, shape) of a value or a number; None: it is neither. */
static PyObject *flow_type(PyObject *m, PyObject *x)
{
    (void)m;
    eas_value v;
    int64_t shape[4];
    Trace *t = trace_enter("if");
    if (!t)
        return NULL;
    int r = value_of(t, x, &v);
    if (r != 1)
        return r < 0 ? NULL : Py_NewRef(Py_None);
    int rank = eas_value_shape(t->b, v, shape);
    PyObject *dims = PyTuple_New(rank);
    for (int i = 0; dims && i < rank; i++)
        PyTuple_SET_ITEM(dims, i, PyLong_FromLongLong(shape[i]));
    bool weak =
        eas_value_is_weak(t->b, v) || (!value_check(x) && !PyArray_IsScalar(x, Generic) && !PyBool_Check(x));
    return dims ? Py_BuildValue("(NON)", py_dtype_object(eas_value_dtype(t->b, v)), weak ? Py_True : Py_False,
                                dims)
                : NULL;
}
/* flow_as(x, dtype, shape) */
static PyObject *flow_as(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    eas_value v;
    eas_dtype dt;
    int64_t shape[4];
    int rank;
    Trace *t = nargs == 3 ? trace_enter("if") : NULL;
    if (!t || !value_arg(t, args[0], "if", "a name", &v) || !py_to_dtype(args[1], "a name", &dt) ||
        !shape_arg(args[2], "if", shape, &rank))
        return NULL;
    v = eas_builder_convert(t->b, "a name", v, dt);
    return value_new(t, rank ? eas_builder_broadcast(t->b, v, rank, shape) : v);
}

/* ---- if ---- */
static PyObject *flow_if(PyObject *m, PyObject *cond)
{
    (void)m;
    eas_value c;
    Trace *t = trace_enter("if");
    Frame *f = t && value_arg(t, cond, "if", "the condition", &c) ? begin(t, K_PLAIN_IF) : NULL;
    if (!f)
        return NULL;
    eas_builder_if_begin(t->b, c);
    frame_push(t, f);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
static PyObject *flow_else(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    Trace *t = trace_enter("if");
    Frame *f = t ? innermost(t, K_PLAIN_IF) : NULL;
    if (!f || !frame_state_check(f, false) || !frame_pop(t, f))
        return NULL;
    frame_get(f, f->then_vals);
    frame_set(f, f->before);
    eas_builder_if_else(t->b, 0, NULL);
    f->kind = K_PLAIN_ELSE;
    if (!(f->scope = scope_begin(t, K_PLAIN_ELSE, f->line)))
        return frame_free(f), NULL;
    frame_push(t, f);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
/* flow_endif(then, else): the joined values */
static PyObject *flow_endif(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    Trace *t = nargs == 2 ? trace_enter("if") : NULL;
    Frame *f = t ? innermost(t, K_PLAIN_ELSE) : NULL;
    if (!f || !frame_state_check(f, false))
        return NULL;
    values a = {0}, b = {0};
    PyObject *r = NULL;
    int ok = values_read(t, f, args[1], "if", &b);
    if (ok) {
        a.n = b.n;
        a.v = PyMem_Calloc((size_t)b.n * 2 + 1, sizeof *a.v);
        ok = a.v != NULL && PyTuple_Check(args[0]) && PyTuple_GET_SIZE(args[0]) == b.n - f->n;
    }
    /* made in the first branch, which is closed: their scope is not asked */
    for (int i = f->n; ok && i < a.n; i++) {
        PyObject *o = PyTuple_GET_ITEM(args[0], i - f->n);
        if (Py_IS_TYPE(o, G.value) && ((Value *)o)->trace == t)
            a.v[i] = ((Value *)o)->v;
        else
            ok = value_arg(t, o, "if", "a name", &a.v[i]);
    }
    if (ok && frame_pop(t, f)) {
        memcpy(a.v, f->then_vals, (size_t)f->n * sizeof *a.v);
        frame_get(f, b.v);
        eas_builder_if_join(t->b, a.n, a.v, b.v, a.v + a.n);
        frame_set(f, a.v + a.n);
        r = trace_ok(t) ? objects(t, a.v + a.n + f->n, a.n - f->n) : NULL;
        frame_free(f);
    }
    values_free(&a);
    values_free(&b);
    return r;
}

/* ---- loops ---- */
/* flow_range(lo, hi, step, inits): (counter, carried...) */
static PyObject *flow_range(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    eas_value bound[3], iv = 0;
    static const char *const which[3] = {"start", "stop", "step"};
    Trace *t = nargs == 4 ? trace_enter("range") : NULL;
    if (!t)
        return NULL;
    for (int i = 0; i < 3; i++)
        if (!value_arg(t, args[i], "range", which[i], &bound[i]))
            return NULL;
    Frame *f = begin(t, K_FOR);
    values init = {0};
    PyObject *r = NULL;
    if (!f)
        return NULL;
    if (values_read(t, f, args[3], "range", &init)) {
        eas_value *now = PyMem_Calloc((size_t)init.n + 1, sizeof *now);
        memcpy(init.v, f->before, (size_t)f->n * sizeof *init.v);
        if (now) {
            eas_builder_loop_begin(t->b, bound[0], bound[1], bound[2], init.n, init.v, &iv, now + 1);
            now[0] = iv;
            frame_set(f, now + 1);
            frame_push(t, f);
            memmove(now + 1, now + 1 + f->n, (size_t)(init.n - f->n) * sizeof *now);
            r = trace_ok(t) ? objects(t, now, 1 + init.n - f->n) : NULL;
        }
        PyMem_Free(now);
    } else
        frame_free(f);
    values_free(&init);
    return r;
}
static PyObject *flow_while(PyObject *m, PyObject *inits)
{
    (void)m;
    Trace *t = trace_enter("while");
    Frame *f = t ? begin(t, K_PLAIN_WHILE) : NULL;
    values init = {0};
    PyObject *r = NULL;
    if (!f)
        return NULL;
    if (values_read(t, f, inits, "while", &init)) {
        eas_value *now = PyMem_Calloc((size_t)init.n + 1, sizeof *now);
        memcpy(init.v, f->before, (size_t)f->n * sizeof *init.v);
        if (now) {
            eas_builder_while_begin(t->b, init.n, init.v, now);
            frame_set(f, now);
            frame_push(t, f);
            r = trace_ok(t) ? objects(t, now + f->n, init.n - f->n) : NULL;
        }
        PyMem_Free(now);
    } else
        frame_free(f);
    values_free(&init);
    return r;
}
static PyObject *flow_do(PyObject *m, PyObject *cond)
{
    (void)m;
    eas_value c;
    Trace *t = trace_enter("while");
    if (!t || !value_arg(t, cond, "while", "the condition", &c))
        return NULL;
    eas_builder_while_do(t->b, c);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
static PyObject *end_loop(enum kind kind, PyObject *nexts,
                          void (*end)(eas_builder *, int, const eas_value *, eas_value *))
{
    Trace *t = trace_enter(kind == K_FOR ? "range" : "while");
    Frame *f = t ? innermost(t, kind) : NULL;
    values next = {0};
    PyObject *r = NULL;
    if (!f || !frame_state_check(f, true))
        return NULL;
    if (values_read(t, f, nexts, kind == K_FOR ? "range" : "while", &next) && frame_pop(t, f)) {
        eas_value *final = PyMem_Calloc((size_t)next.n + 1, sizeof *final);
        if (final) {
            frame_get(f, next.v);
            end(t->b, next.n, next.v, final);
            frame_set(f, final);
            r = trace_ok(t) ? objects(t, final + f->n, next.n - f->n) : NULL;
        }
        PyMem_Free(final);
        frame_free(f);
    }
    values_free(&next);
    return r;
}
static PyObject *flow_endrange(PyObject *m, PyObject *nexts)
{
    (void)m;
    return end_loop(K_FOR, nexts, eas_builder_loop_end);
}
static PyObject *flow_endwhile(PyObject *m, PyObject *nexts)
{
    (void)m;
    return end_loop(K_PLAIN_WHILE, nexts, eas_builder_while_end);
}
/* (lo, hi, step) of a mk.range, or None */
static PyObject *flow_bounds(PyObject *m, PyObject *o)
{
    (void)m;
    eas_value b[3];
    return range_bounds(o, b) ? objects(trace_current(), b, 3) : Py_NewRef(Py_None);
}

/* ---- going back ---- */
typedef struct place {
    eas_mark mark;
    int depth;
    eas_value mask;
} place;
static int depth_of(const Trace *t)
{
    int n = 0;
    for (const Frame *f = t->frames; f; f = f->outer)
        n++;
    return n;
}
static PyObject *flow_mark(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    place p;
    Trace *t = trace_enter("while");
    if (!t)
        return NULL;
    memset(&p, 0, sizeof p);
    eas_builder_mark(t->b, &p.mark);
    p.depth = depth_of(t);
    p.mask = t->mask;
    return PyBytes_FromStringAndSize((const char *)&p, sizeof p);
}
/* Everything since the mark is forgotten; variables hold what they held. */
static PyObject *flow_rewind(PyObject *m, PyObject *mark)
{
    (void)m;
    Trace *t = trace_enter("while");
    place p;
    if (!t || !PyBytes_Check(mark) || PyBytes_GET_SIZE(mark) != sizeof p)
        return t ? py_fail(PyExc_TypeError, "a mark is wanted") : NULL;
    memcpy(&p, PyBytes_AS_STRING(mark), sizeof p);
    for (int n = depth_of(t); n > p.depth; n--) {
        Frame *f = t->frames;
        frame_set(f, f->before);
        if (!frame_pop(t, f))
            return NULL;
        frame_free(f);
    }
    t->mask = p.mask;
    eas_builder_rewind(t->b, &p.mark);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
/* A turn of a `while` that may have to be built again: its values are its own until it is known that it
 * stays. */
static PyObject *flow_probe(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    Trace *t = trace_enter("while");
    Frame *f = t ? frame_new(t, K_PROBE) : NULL;
    if (f)
        frame_push(t, f);
    return f ? Py_NewRef(Py_None) : NULL;
}
static PyObject *flow_keep(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    Trace *t = trace_enter("while");
    Frame *f = t ? innermost(t, K_PROBE) : NULL;
    if (!f || !frame_pop(t, f))
        return NULL;
    if (f->scope)
        scope_adopt(t, f->scope);
    frame_free(f);
    Py_RETURN_NONE;
}

/* ---- lanes ---- */
/* flow_mask(value or None): the mask from here on; gives the former one. */
static PyObject *flow_mask(PyObject *m, PyObject *mask)
{
    (void)m;
    eas_value v = 0;
    Trace *t = trace_enter("if");
    if (!t || (mask != Py_None && !value_arg(t, mask, "if", "the condition", &v)))
        return NULL;
    PyObject *former = t->mask ? value_new(t, t->mask) : Py_NewRef(Py_None);
    if (t->live && v)
        eas_live_keep(t->b, v);
    if (t->live && t->mask)
        eas_live_drop(t->b, t->mask);
    t->mask = v;
    return former;
}
/* The mask as it is, or None. */
static PyObject *flow_lanes(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    Trace *t = trace_enter("if");
    return !t ? NULL : t->mask ? value_new(t, t->mask) : Py_NewRef(Py_None);
}

/* ---- run live, where threads differ ---- */
static PyObject *live_begin(enum kind kind, PyObject *cond, void (*start)(eas_builder *, eas_value))
{
    eas_value c = 0;
    Trace *t = trace_enter("if");
    if (!t || (cond && !value_arg(t, cond, "if", "the condition", &c)))
        return NULL;
    Frame *f = frame_new(t, kind);
    if (!f)
        return NULL;
    start(t->b, c);
    frame_push(t, f);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
static int live_over(Trace *t, enum kind kind)
{
    Frame *f = innermost(t, kind);
    int ok = f && frame_pop(t, f);
    if (ok)
        frame_free(f);
    return ok;
}
static PyObject *flow_live_if(PyObject *m, PyObject *cond)
{
    (void)m;
    return live_begin(K_PLAIN_IF, cond, eas_live_if);
}
static PyObject *flow_live_else(PyObject *m, PyObject *cond)
{
    (void)m;
    return live_begin(K_PLAIN_IF, cond, eas_live_else);
}
static PyObject *flow_live_end(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    Trace *t = trace_enter("if");
    if (!t || !live_over(t, K_PLAIN_IF))
        return NULL;
    eas_live_end(t->b);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
static void start_while(eas_builder *b, eas_value none)
{
    (void)none;
    eas_live_while(b);
}
static PyObject *flow_live_while(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    return live_begin(K_PLAIN_WHILE, NULL, start_while);
}
static PyObject *flow_live_test(PyObject *m, PyObject *cond)
{
    (void)m;
    eas_value c;
    Trace *t = trace_enter("while");
    if (!t || !value_arg(t, cond, "while", "the condition", &c))
        return NULL;
    int more = eas_live_test(t->b, c);
    if (!trace_ok(t) || (!more && !live_over(t, K_PLAIN_WHILE)))
        return NULL;
    return PyBool_FromLong(more);
}
static PyObject *flow_live_merge(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    eas_value old, next;
    Trace *t = nargs == 2 ? trace_enter("while") : NULL;
    if (!t || !value_arg(t, args[0], "while", "a name", &old) ||
        !value_arg(t, args[1], "while", "a name", &next))
        return NULL;
    return value_new(t, eas_live_merge(t->b, old, next));
}

static PyObject *flow_undefined(PyObject *m, PyObject *type)
{
    (void)m;
    if (!PyType_Check(type))
        return py_fail(PyExc_TypeError, "a class is wanted");
    Py_XSETREF(G.undefined, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL
static PyMethodDef functions[] = {
    {"flow_truth", flow_truth, METH_O, NULL},
    {"flow_traced", flow_traced, METH_O, NULL},
    {"flow_live", flow_live, METH_NOARGS, NULL},
    {"flow_open", flow_open, METH_NOARGS, NULL},
    {"flow_type", flow_type, METH_O, NULL},
    {"flow_as", FAST(flow_as), NULL},
    {"flow_if", flow_if, METH_O, NULL},
    {"flow_else", flow_else, METH_NOARGS, NULL},
    {"flow_endif", FAST(flow_endif), NULL},
    {"flow_range", FAST(flow_range), NULL},
    {"flow_endrange", flow_endrange, METH_O, NULL},
    {"flow_while", flow_while, METH_O, NULL},
    {"flow_do", flow_do, METH_O, NULL},
    {"flow_endwhile", flow_endwhile, METH_O, NULL},
    {"flow_bounds", flow_bounds, METH_O, NULL},
    {"flow_mark", flow_mark, METH_NOARGS, NULL},
    {"flow_rewind", flow_rewind, METH_O, NULL},
    {"flow_probe", flow_probe, METH_NOARGS, NULL},
    {"flow_keep", flow_keep, METH_NOARGS, NULL},
    {"flow_mask", flow_mask, METH_O, NULL},
    {"flow_lanes", flow_lanes, METH_NOARGS, NULL},
    {"flow_live_if", flow_live_if, METH_O, NULL},
    {"flow_live_else", flow_live_else, METH_O, NULL},
    {"flow_live_end", flow_live_end, METH_NOARGS, NULL},
    {"flow_live_while", flow_live_while, METH_NOARGS, NULL},
    {"flow_live_test", flow_live_test, METH_O, NULL},
    {"flow_live_merge", FAST(flow_live_merge), NULL},
    {"flow_undefined", flow_undefined, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
int flow_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
