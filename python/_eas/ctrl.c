/* ctrl.c: control flow that the kernel itself takes: mk.var, mk.range, mk.while_, mk.if_, mk.else_.
 *
 * A body is traced once, so which variables it will change is not known when it begins: a loop carries every
 * living variable, and the simplifier drops those that come round unchanged. An if is closed only when the
 * next instruction is traced, since a mk.else_() may still follow. */
#include "ctrl.h"

#include <string.h>

const char *const ctrl_what[] = {"mk.range", "mk.while_", "mk.if_", "mk.else_", "range",
                                 "while",    "if",        "else",   "while"};

/* ---- scopes ---- */
/* Run live, values stay what they are: there all is scope 0. */
int scope_now(const Trace *t) { return t->frames ? t->frames->scope : 0; }
/* A scope that was adopted is open as long as the one around it. */
bool scope_open(const Trace *t, int scope)
{
    while (scope && t->scopes[scope - 1].open && t->scopes[scope - 1].adopted)
        scope = t->scopes[scope - 1].outer;
    return !scope || t->scopes[scope - 1].open;
}
void scope_adopt(Trace *t, int scope) { t->scopes[scope - 1].open = t->scopes[scope - 1].adopted = true; }
const char *scope_what(const Trace *t, int scope, int *line)
{
    *line = t->scopes[scope - 1].line;
    return ctrl_what[t->scopes[scope - 1].kind];
}
int scope_begin(Trace *t, enum kind kind, int line) /* its number, or 0 with an exception */
{
    if (t->nscopes == t->capscopes) {
        int cap = t->capscopes ? 2 * t->capscopes : 8;
        Scope *more = PyMem_Realloc(t->scopes, (size_t)cap * sizeof *more);
        if (!more)
            return PyErr_NoMemory(), 0;
        t->scopes = more;
        t->capscopes = cap;
    }
    t->scopes[t->nscopes] = (Scope){kind, line, scope_now(t), true, false};
    t->nscopes++;
    return t->nscopes;
}

/* ---- frames ---- */
static void names_drop(Frame *f)
{
    Py_CLEAR(f->py);
    Py_CLEAR(f->names);
    Py_CLEAR(f->state);
    Py_CLEAR(f->cond);
}
void frame_free(Frame *f)
{
    names_drop(f);
    for (int i = 0; i < f->n; i++)
        Py_DECREF(f->vars[i]);
    PyMem_Free(f->vars);
    PyMem_Free(f->before);
    PyMem_Free(f->then_vals);
    PyMem_Free(f);
}
Frame *frame_new(Trace *t, enum kind kind)
{
    Frame *f = PyMem_Calloc(1, sizeof *f);
    int n = t->live ? 0 : t->nvars;
    if (!f)
        return (Frame *)PyErr_NoMemory();
    f->vars = PyMem_Calloc((size_t)n + 1, sizeof *f->vars);
    f->before = PyMem_Calloc((size_t)n + 1, sizeof *f->before);
    f->then_vals = PyMem_Calloc((size_t)n + 1, sizeof *f->then_vals);
    if (!f->vars || !f->before || !f->then_vals)
        return frame_free(f), (Frame *)PyErr_NoMemory();
    for (int i = 0; i < n; i++) {
        f->vars[i] = (Var *)Py_NewRef(t->vars[i]);
        f->before[i] = t->vars[i]->v;
    }
    f->n = n;
    f->kind = kind;
    const char *file;
    py_user_line(&file, &f->line);
    if (!t->live && !(f->first = f->scope = scope_begin(t, kind, f->line)))
        return frame_free(f), NULL;
    return f;
}
/* with the names */
static Frame *named_frame(Trace *t, enum kind kind, PyObject *cond)
{
    Frame *f = frame_new(t, kind);
    if (f && !frame_names_keep(f, cond))
        frame_free(f), f = NULL;
    return f;
}
void frame_push(Trace *t, Frame *f)
{
    f->outer = t->frames;
    t->frames = f;
}
void frame_set(Frame *f, const eas_value *v)
{
    for (int i = 0; i < f->n; i++)
        f->vars[i]->v = v[i];
}
void frame_get(const Frame *f, eas_value *v)
{
    for (int i = 0; i < f->n; i++)
        v[i] = f->vars[i]->v;
}

/* Takes the innermost frame off, which must be f: `break` and `return` out of a body would leave others open.
 */
int frame_pop(Trace *t, Frame *f)
{
    if (t->frames != f) {
        py_fail_at(
            PyExc_RuntimeError,
            "%s at line %d was left open: a traced loop body cannot be left by break, continue past its end, or return; use a condition",
            t->frames ? ctrl_what[t->frames->kind] : "a control construct", t->frames ? t->frames->line : 0);
        return 0;
    }
    t->frames = f->outer;
    if (f->scope)
        t->scopes[f->scope - 1].open = false;
    return 1;
}

/* Ends the if in t->pending (its first branch is over): the merged values are what the variables hold from
 * here on. */
static int close_if(Trace *t, Frame *f)
{
    /* with an else, then_vals went to eas_builder_if_else already */
    eas_value *other = f->kind == K_ELSE ? f->then_vals : NULL;
    eas_value *now = PyMem_Calloc((size_t)f->n + 1, sizeof *now),
              *merged = PyMem_Calloc((size_t)f->n + 1, sizeof *merged);
    int ok = now && merged;
    if (ok) {
        frame_get(f, now);
        if (!other)
            eas_builder_if_else(t->b, f->n, now);
        eas_builder_if_end(t->b, f->n, other ? now : f->before, merged);
        frame_set(f, merged);
        ok = trace_ok(t);
    } else
        PyErr_NoMemory();
    PyMem_Free(now);
    PyMem_Free(merged);
    frame_free(f);
    return ok;
}
int ctrl_flush(Trace *t)
{
    Frame *f = t->pending;
    t->pending = NULL;
    if (!f || !t->live)
        return f ? close_if(t, f) : 1;
    eas_live_drop(t->b, f->live_cond);
    frame_free(f);
    return 1;
}
int ctrl_finish(Trace *t)
{
    if (t->pending && !ctrl_flush(t))
        return 0;
    if (t->frames)
        py_fail(PyExc_RuntimeError,
                "kernel '%U': the %s of line %d was left open: its body cannot be left by break or return",
                t->name, ctrl_what[t->frames->kind], t->frames->line);
    return !t->frames;
}
void ctrl_clear(Trace *t)
{
    Frame *lists[2] = {t->frames, t->pending};
    t->frames = t->pending = NULL;
    for (int i = 0; i < 2; i++)
        for (Frame *f = lists[i], *next; f; f = next) {
            next = i ? NULL : f->outer;
            frame_free(f);
        }
}

/* ---- for k in mk.range(...) and while_ ---- */
typedef struct Loop {
    PyObject_HEAD Trace *trace;
    Frame *frame; /* while its body is traced */
    PyObject *cond; /* while_: the callable */
    eas_value lo, hi, step;
    int state; /* 0 new, 1 in the body, 2 over */
    bool kept; /* a live one's bounds are */
} Loop;

static Loop *loop_new(PyTypeObject *type, Trace *t)
{
    Loop *l = PyObject_New(Loop, type);
    if (!l)
        return NULL;
    l->trace = (Trace *)Py_NewRef(t);
    l->frame = NULL;
    l->cond = NULL;
    l->lo = l->hi = l->step = 0;
    l->state = 0;
    l->kept = false;
    return l;
}
static void loop_keep(Loop *l, void (*f)(eas_builder *, eas_value)) /* the bounds, of a live one */
{
    const eas_value bounds[3] = {l->lo, l->hi, l->step};
    for (int i = 0; i < 3 && l->trace->live; i++)
        f(l->trace->b, bounds[i]);
}
static void loop_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    if (((Loop *)o)->kept)
        loop_keep((Loop *)o, eas_live_drop);
    Py_DECREF(((Loop *)o)->trace);
    Py_XDECREF(((Loop *)o)->cond);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyObject *mk_range(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    Trace *t = trace_enter("range");
    if (!t)
        return NULL;
    if (nargs < 1 || nargs > 3)
        return py_fail_at(PyExc_TypeError, "mk.range takes (hi), (lo, hi) or (lo, hi, step)");
    Loop *l = loop_new(G.range, t);
    if (!l)
        return NULL;
    l->lo = eas_builder_const_int(t->b, 0);
    l->step = eas_builder_const_int(t->b, 1);
    int ok = nargs == 1
               ? value_arg(t, args[0], "range", "hi", &l->hi)
               : value_arg(t, args[0], "range", "lo", &l->lo) && value_arg(t, args[1], "range", "hi", &l->hi);
    if (ok && nargs == 3)
        ok = value_arg(t, args[2], "range", "step", &l->step);
    if (!ok || !trace_ok(t)) {
        Py_CLEAR(l);
    } else {
        l->kept = true;
        loop_keep(l, eas_live_keep);
    }
    return (PyObject *)l;
}
static Trace *loop_enter(Loop *l)
{
    Trace *t = trace_enter("range");
    if (t && l->trace != t)
        return py_fail_at(PyExc_RuntimeError, "a traced loop of another kernel is used here"), NULL;
    return t;
}
static int loop_end(Loop *l, Trace *t, void (*end)(eas_builder *, int, const eas_value *, eas_value *))
{
    Frame *f = l->frame;
    l->state = 2;
    l->frame = NULL;
    if (!frame_names_check(t, f) || !frame_state_check(f, true) || !frame_pop(t, f))
        return 0;
    eas_value *now = PyMem_Calloc((size_t)f->n + 1, sizeof *now),
              *final = PyMem_Calloc((size_t)f->n + 1, sizeof *final);
    int ok = now && final;
    if (ok) {
        frame_get(f, now);
        end(t->b, f->n, now, final);
        frame_set(f, final);
        ok = trace_ok(t);
    } else
        PyErr_NoMemory();
    PyMem_Free(now);
    PyMem_Free(final);
    frame_free(f);
    return ok;
}
/* enumerate, zip and list would count the one turn that is traced. */
static PyObject *loop_iter(PyObject *o)
{
    PyFrameObject *py = ((Loop *)o)->trace->live ? NULL : PyEval_GetFrame();
    if (!py)
        return Py_NewRef(o);
    PyObject *names = PyImport_ImportModule("eas._names"), *code = (PyObject *)PyFrame_GetCode(py);
    PyObject *r = names ? PyObject_CallMethod(names, "is_loop", "Oi", code, PyFrame_GetLasti(py)) : NULL;
    int direct = r ? PyObject_IsTrue(r) : -1;
    Py_XDECREF(r);
    Py_XDECREF(names);
    Py_DECREF(code);
    if (direct == 0)
        py_fail_at(
            PyExc_TypeError,
            "%s is for a `for` statement itself: its body is traced once, so enumerate, zip, list and the like would see one "
            "turn. Count with k, or with a variable: n = mk.var(0)",
            ctrl_what[Py_IS_TYPE(o, G.whil) ? K_WHILE : K_LOOP]);
    return direct > 0 ? Py_NewRef(o) : NULL;
}
static PyObject *range_begin(Loop *l, Trace *t)
{
    eas_value iv = 0;
    if (!(l->frame = named_frame(t, K_LOOP, NULL)))
        return NULL;
    eas_builder_loop_begin(t->b, l->lo, l->hi, l->step, l->frame->n, l->frame->before, &iv,
                           l->frame->then_vals);
    frame_set(l->frame, l->frame->then_vals);
    frame_push(t, l->frame);
    l->state = 1;
    return value_new(t, iv);
}
/* ---- the same, run live: Python's own loop goes round ---- */
static int live_open(Loop *l, Trace *t, enum kind kind)
{
    if (!(l->frame = frame_new(t, kind)))
        return 0;
    frame_push(t, l->frame);
    l->state = 1;
    return 1;
}
/* Goes on if `more`; else the loop is over. */
static PyObject *live_turn(Loop *l, Trace *t, int more, PyObject *item)
{
    if (more || PyErr_Occurred() || !trace_ok(t))
        return PyErr_Occurred() ? NULL : item;
    Frame *f = l->frame;
    l->state = 2;
    l->frame = NULL;
    if (frame_pop(t, f))
        frame_free(f);
    return NULL;
}
/* A body that was left by break leaves its own frames open. */
static int live_innermost(Loop *l, Trace *t)
{
    Frame *f = l->frame;
    if (t->frames == f)
        return 1;
    return frame_pop(t, f);
}
static PyObject *live_range(Loop *l, Trace *t)
{
    eas_value iv = 0;
    bool first = l->state == 0;
    if (l->state == 2 || (first ? !live_open(l, t, K_LOOP) : !live_innermost(l, t)))
        return NULL;
    int more = first ? eas_live_loop(t->b, l->lo, l->hi, l->step, &iv) : eas_live_again(t->b, &iv);
    return live_turn(l, t, more, more ? value_new(t, iv) : NULL);
}
static PyObject *live_while(Loop *l, Trace *t)
{
    eas_value c;
    if (l->state == 2 || (l->state ? !live_innermost(l, t) : !live_open(l, t, K_WHILE)))
        return NULL;
    if (!l->kept)
        eas_live_while(t->b);
    l->kept = true; /* begun; it has no bounds */
    PyObject *cond = trace_ok(t) ? PyObject_CallNoArgs(l->cond) : NULL;
    int ok = cond && trace_enter("while_") && value_arg(t, cond, "while_", "the condition", &c),
        more = ok && eas_live_test(t->b, c);
    Py_XDECREF(cond);
    return ok ? live_turn(l, t, more, more ? Py_NewRef(Py_None) : NULL) : NULL;
}
static PyObject *range_next(PyObject *o)
{
    Loop *l = (Loop *)o;
    Trace *t = loop_enter(l);
    if (!t)
        return NULL;
    if (t->live)
        return live_range(l, t);
    if (l->state == 0)
        return range_begin(l, t);
    if (l->state == 1)
        loop_end(l, t, eas_builder_loop_end);
    return NULL; /* StopIteration, or the error */
}
static PyType_Slot range_slots[] = {
    {Py_tp_doc, "A loop of the kernel: `for k in mk.range(lo, hi, step)`."},
    {Py_tp_dealloc, loop_dealloc},
    {Py_tp_iter, loop_iter},
    {Py_tp_iternext, range_next},
    {0, NULL},
};
PyType_Spec Range_spec = {"eas.mk.Range", sizeof(Loop), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, range_slots};

static PyObject *mk_while(PyObject *self, PyObject *cond)
{
    (void)self;
    Trace *t = trace_enter("while_");
    if (!t)
        return NULL;
    if (!PyCallable_Check(cond))
        return py_fail_at(
            PyExc_TypeError,
            "mk.while_ takes a callable that computes the condition anew each time round: mk.while_(lambda: v < n)");
    Loop *l = loop_new(G.whil, t);
    if (l)
        l->cond = Py_NewRef(cond);
    return (PyObject *)l;
}
static PyObject *while_begin(Loop *l, Trace *t)
{
    eas_value c;
    if (!(l->frame = named_frame(t, K_WHILE, l->cond)))
        return NULL;
    eas_builder_while_begin(t->b, l->frame->n, l->frame->before, l->frame->then_vals);
    frame_set(l->frame, l->frame->then_vals);
    frame_push(t, l->frame);
    l->state = 1;
    PyObject *cond = trace_ok(t) ? PyObject_CallNoArgs(l->cond) : NULL;
    int ok = cond && trace_enter("while_") && value_arg(t, cond, "while_", "the condition", &c);
    Py_XDECREF(cond);
    if (!ok)
        return NULL;
    eas_builder_while_do(t->b, c);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
static PyObject *while_next(PyObject *o)
{
    Loop *l = (Loop *)o;
    Trace *t = loop_enter(l);
    if (!t)
        return NULL;
    if (t->live)
        return live_while(l, t);
    if (l->state == 0)
        return while_begin(l, t);
    if (l->state == 1)
        loop_end(l, t, eas_builder_while_end);
    return NULL;
}
static PyObject *while_enter(PyObject *o, PyObject *unused)
{
    (void)unused;
    Loop *l = (Loop *)o;
    Trace *t = loop_enter(l);
    if (t && l->state)
        return py_fail_at(PyExc_RuntimeError, "this mk.while_ was used already: make a new one");
    if (t && t->live)
        return py_fail_at(
            PyExc_RuntimeError,
            "under _interpret this `with mk.while_(cond):` would run once: its function is not the kernel's own, or "
            "has no source. Write `for _ in mk.while_(cond):`, which means the same");
    return t ? while_begin(l, t) : NULL;
}
static PyObject *while_exit(PyObject *o, PyObject *args)
{
    if (PyTuple_GET_SIZE(args) && PyTuple_GET_ITEM(args, 0) != Py_None)
        Py_RETURN_FALSE;
    Trace *t = loop_enter((Loop *)o);
    Frame *f = ((Loop *)o)->frame;
    bool whole = t && f && (f->py != PyEval_GetFrame() || frame_left_early(f));
    return whole && loop_end((Loop *)o, t, eas_builder_while_end) ? Py_NewRef(Py_False) : NULL;
}
static PyMethodDef while_methods[] = {{"__enter__", while_enter, METH_NOARGS, NULL},
                                      {"__exit__", while_exit, METH_VARARGS, NULL},
                                      {NULL, NULL, 0, NULL}};
static PyType_Slot while_slots[] = {
    {Py_tp_doc,
     "A loop of the kernel: `with mk.while_(lambda: cond):` or `for _ in mk.while_(lambda: cond):`."},
    {Py_tp_dealloc, loop_dealloc},
    {Py_tp_iter, loop_iter},
    {Py_tp_iternext, while_next},
    {Py_tp_methods, while_methods},
    {0, NULL},
};
PyType_Spec While_spec = {"eas.mk.While", sizeof(Loop), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, while_slots};

/* ---- with mk.if_(cond): ... with mk.else_(): ... ---- */
typedef struct Branch {
    PyObject_HEAD Trace *trace;
    Frame *frame;
    eas_value cond; /* 0: else */
} Branch;

static PyObject *branch_new(Trace *t, eas_value cond)
{
    Branch *b = PyObject_New(Branch, G.branch);
    if (!b)
        return NULL;
    b->trace = (Trace *)Py_NewRef(t);
    b->frame = NULL;
    b->cond = cond;
    if (t->live)
        eas_live_keep(t->b, cond);
    return (PyObject *)b;
}
static PyObject *mk_if(PyObject *self, PyObject *cond)
{
    (void)self;
    eas_value c;
    Trace *t = trace_enter("if_");
    return t && value_arg(t, cond, "if_", "the condition", &c) && trace_ok(t) ? branch_new(t, c) : NULL;
}
static PyObject *mk_else(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Trace *t = trace_current();
    if (!t)
        return trace_enter("else_"), NULL;
    if (!t->pending)
        return py_fail_at(PyExc_RuntimeError, "mk.else_() must follow a `with mk.if_(cond):` block at once");
    return branch_new(t, 0);
}
static PyObject *if_begin(Branch *b, Trace *t)
{
    if (!(b->frame = t->live ? frame_new(t, K_IF) : named_frame(t, K_IF, NULL)))
        return NULL;
    if (t->live) {
        b->frame->live_cond = b->cond;
        eas_live_keep(t->b, b->cond);
        eas_live_if(t->b, b->cond);
    } else
        eas_builder_if_begin(t->b, b->cond);
    frame_push(t, b->frame);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
static PyObject *else_begin(Branch *b, Trace *t)
{
    Frame *f = t->pending;
    if (!f)
        return py_fail_at(PyExc_RuntimeError, "mk.else_() must follow a `with mk.if_(cond):` block at once");
    t->pending = NULL;
    frame_get(f, f->then_vals);
    frame_set(f, f->before);
    if (t->live)
        eas_live_else(t->b, f->live_cond);
    else
        eas_builder_if_else(t->b, f->n, f->then_vals);
    f->kind = K_ELSE;
    names_drop(f);
    if (!t->live && (!(f->scope = scope_begin(t, K_ELSE, f->line)) || !frame_names_keep(f, NULL)))
        return frame_free(f), NULL;
    b->frame = f;
    frame_push(t, f);
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
static int live_close_else(Trace *t, Frame *f)
{
    eas_live_drop(t->b, f->live_cond);
    frame_free(f);
    return 1;
}
static PyObject *branch_enter(PyObject *o, PyObject *unused)
{
    (void)unused;
    Branch *b = (Branch *)o;
    if (b->trace != trace_current() || b->frame)
        return py_fail_at(PyExc_RuntimeError,
                          "mk.if_ and mk.else_ are for one `with` each, inside the kernel they were made in");
    return !b->cond ? else_begin(b, b->trace) : trace_enter("if_") ? if_begin(b, b->trace) : NULL;
}
static PyObject *branch_exit(PyObject *o, PyObject *args)
{
    Branch *b = (Branch *)o;
    if (PyTuple_GET_SIZE(args) && PyTuple_GET_ITEM(args, 0) != Py_None)
        Py_RETURN_FALSE;
    Trace *t = trace_enter("if_");
    if (!t || (!t->live && !(frame_branch_check(b->frame) && frame_state_check(b->frame, false))) ||
        !frame_pop(t, b->frame))
        return NULL;
    if (t->live)
        eas_live_end(t->b);
    if (b->frame->kind == K_IF)
        t->pending = b->frame;
    else if (t->live ? !live_close_else(t, b->frame) : !close_if(t, b->frame))
        return NULL;
    return trace_ok(t) ? Py_NewRef(Py_False) : NULL;
}
static void branch_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    if (((Branch *)o)->trace->live)
        eas_live_drop(((Branch *)o)->trace->b, ((Branch *)o)->cond);
    Py_DECREF(((Branch *)o)->trace);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyMethodDef branch_methods[] = {{"__enter__", branch_enter, METH_NOARGS, NULL},
                                       {"__exit__", branch_exit, METH_VARARGS, NULL},
                                       {NULL, NULL, 0, NULL}};
static PyType_Slot branch_slots[] = {
    {Py_tp_doc, "One branch of the kernel: `with mk.if_(cond):`, `with mk.else_():`."},
    {Py_tp_dealloc, branch_dealloc},
    {Py_tp_methods, branch_methods},
    {0, NULL},
};
PyType_Spec Branch_spec = {"eas.mk.Branch", sizeof(Branch), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, branch_slots};

int range_bounds(PyObject *o, eas_value bounds[3])
{
    Loop *l = (Loop *)o;
    if (!Py_IS_TYPE(o, G.range) || l->state || l->trace != trace_current())
        return 0;
    bounds[0] = l->lo;
    bounds[1] = l->hi;
    bounds[2] = l->step;
    return 1;
}

/* ---- the functions ---- */
static PyMethodDef rows[] = {
    {"range", (PyCFunction)(void (*)(void))mk_range, METH_FASTCALL,
     "for k in mk.range(lo, hi, step): a loop of the kernel; the bounds may be traced."},
    {"while_", mk_while, METH_O,
     "with mk.while_(lambda: cond): a loop of the kernel while the condition, computed anew each time, holds."},
    {"if_", mk_if, METH_O, "with mk.if_(cond): traced under a condition of the kernel."},
    {"else_", mk_else, METH_NOARGS, "with mk.else_(): the other branch of the mk.if_ just before."},
    {NULL, NULL, 0, NULL},
};
int ctrl_init(PyObject *mk) { return mk_add_all(mk, rows) < 0 || var_init(mk) < 0 ? -1 : 0; }
