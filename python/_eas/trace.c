/* trace.c: the trace of one kernel body. While a body runs, its trace is current on that thread; mk's
 * functions and the operators of traced values append to it. A trace that is over keeps its (now useless)
 * values harmless. */
#include "py.h"

static _Thread_local Trace *current;
int trace_active; /* changed with the GIL held */

Trace *trace_current(void) { return current; }
Trace *trace_push(Trace *t)
{
    Trace *former = current;
    current = t;
    trace_active++;
    return former;
}
void trace_pop(Trace *former)
{
    current = former;
    trace_active--;
}

Trace *trace_new(PyObject *name, unsigned flags)
{
    const char *text = PyUnicode_AsUTF8(name);
    Trace *t = text ? PyObject_New(Trace, G.trace) : NULL;
    if (!t)
        return NULL;
    t->b = NULL;
    t->name = Py_NewRef(name);
    t->vars = NULL;
    t->nvars = t->capvars = 0;
    t->frames = t->pending = NULL;
    t->scopes = NULL;
    t->nscopes = t->capscopes = 0;
    t->live = false;
    t->mask = 0;
    t->wanted = NULL;
    t->threads = 0;
    t->checks = (flags & EAS_KERNEL_LOOSE) != 0;
    t->busy = 0;
    eas_status st = eas_builder_new(text, flags, &t->b);
    if (st == EAS_OK)
        return t;
    Py_DECREF(t);
    py_raise(st);
    return NULL;
}

Trace *trace_enter(const char *what)
{
    Trace *t = current;
    if (!t) {
        py_fail_at(
            PyExc_RuntimeError,
            "mk.%s works only while a kernel is traced: call it inside a function under @eas.kernel, and launch that",
            what);
        return NULL;
    }
    const char *file;
    int line;
    if (py_user_line(&file, &line))
        eas_builder_at(t->b, file, line);
    if (t->live && !t->busy)
        eas_live_sweep(t->b);
    return !t->pending || ctrl_flush(t) ? t : NULL;
}

eas_value trace_mask(Trace *t, eas_value mask)
{
    if (!t->mask || !mask)
        return t->mask ? t->mask : mask;
    return eas_builder_apply(t->b, OP.and, t->mask, mask, 0);
}
int trace_whole(Trace *t, const char *fn, bool memory)
{
    int64_t shape[4];
    if (!t->mask || (!memory && !eas_value_shape(t->b, t->mask, shape)))
        return 1;
    py_fail_at(
        PyExc_RuntimeError,
        "mk.%s here is in a part of the kernel that only some lanes take: under an `if` or `while` whose condition is a block, in a conditional "
        "expression or behind an `and` or `or`. What works on whole blocks must come before it; choose with mk.where",
        fn);
    return 0;
}

int trace_ok(Trace *t)
{
    eas_status st = eas_builder_status(t->b);
    if (st != EAS_OK)
        py_raise(st);
    return st == EAS_OK;
}

static void trace_dealloc(PyObject *o)
{
    Trace *t = (Trace *)o;
    PyTypeObject *type = Py_TYPE(o);
    ctrl_clear(t);
    PyMem_Free(t->vars);
    PyMem_Free(t->scopes);
    if (t->b)
        eas_builder_free(t->b);
    Py_XDECREF(t->name);
    Py_XDECREF(t->wanted);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyType_Slot trace_slots[] = {{Py_tp_dealloc, trace_dealloc}, {0, NULL}};
PyType_Spec Trace_spec = {"eas._eas.Trace", sizeof(Trace), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, trace_slots};
