/* eager_outside.c: what a traced function asks the world for: clocks, and randomness of the operating system.
 *
 * A replay would give what it was told when it was traced, for ever. Generators that exist before the trace
 * are watched by their state (eager_state.c); one that is made inside takes its seed from the system. So
 * calls of built-in functions are looked at while a function is traced, through the interpreter's hook for
 * profilers; where a profiler has it, nothing is seen.
 */
#include "eager_compile.h"

static _Thread_local outside *now;

static const char *const clocks[] = {
    "time",         "time_ns",     "perf_counter",    "perf_counter_ns", "monotonic",     "monotonic_ns",
    "process_time", "thread_time", "process_time_ns", "thread_time_ns",  "clock_gettime", NULL};
static const char *const dates[] = {"now", "utcnow", "today", NULL};
static const char *const noise[] = {"urandom", "getrandom", "generate_time_safe", NULL};

static bool among(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(name, *names))
            return true;
    return false;
}
static bool module_is(PyObject *f, const char *a, const char *b)
{
    PyObject *m = ((PyCFunctionObject *)f)->m_module;
    const char *s = m && PyUnicode_Check(m) ? PyUnicode_AsUTF8(m) : NULL;
    return s && (!strcmp(s, a) || !strcmp(s, b));
}
/* random.Random.seed(a): without a seed it takes one from the system. */
static bool unseeded(PyFrameObject *frame)
{
    PyObject *locals = PyFrame_GetLocals(frame), *a = locals ? PyMapping_GetItemString(locals, "a") : NULL;
    const bool none = a == Py_None;
    PyErr_Clear();
    Py_XDECREF(a);
    Py_XDECREF(locals);
    return none;
}
/* What is asked for; NULL: nothing that changes by itself. */
static const char *asked(PyObject *f, PyFrameObject *frame)
{
    const char *name = ((PyCFunctionObject *)f)->m_ml->ml_name;
    PyObject *self = PyCFunction_GET_SELF(f);
    if (among(name, clocks) && module_is(f, "time", "time"))
        return "the time";
    if (among(name, noise) && module_is(f, "posix", "nt"))
        return "random numbers of the system (an unseeded generator)";
    if (among(name, noise) && module_is(f, "_uuid", "_uuid"))
        return "a new UUID";
    if (among(name, dates) && self && PyType_Check(self) && strstr(((PyTypeObject *)self)->tp_name, "date"))
        return "the time";
    if (!strcmp(name, "seed") && self && strstr(Py_TYPE(self)->tp_name, "Random") && unseeded(frame))
        return "random numbers of an unseeded generator";
    return NULL;
}

static const char *text_of(PyObject *o) { return o && PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : ""; }

/* Libraries in between are not what the user wrote. */
static bool is_library(const char *module)
{
    static const char *const roots[] = {"random",   "secrets",  "uuid", "numpy",
                                        "datetime", "tempfile", "os",   NULL};
    const size_t n = strcspn(module, ".");
    for (int i = 0; roots[i]; i++)
        if (strlen(roots[i]) == n && !strncmp(module, roots[i], n))
            return true;
    return false;
}
static bool is_ours(const char *module)
{
    const size_t n = strcspn(module, ".");
    return (n == 3 && !strncmp(module, "eas", 3)) || (n == 5 && !strncmp(module, "eager", 5));
}

/* The user's line; false: a module is being imported, or it is our own affair. */
static bool find_place(PyFrameObject *frame, outside *o)
{
    PyFrameObject *f = (PyFrameObject *)Py_NewRef((PyObject *)frame);
    bool found = false, own = false;
    while (f && !own) {
        PyObject *globals = PyFrame_GetGlobals(f);
        PyCodeObject *code = PyFrame_GetCode(f);
        const char *module = text_of(globals ? PyDict_GetItemString(globals, "__name__") : NULL),
                   *file = text_of(code->co_filename);
        own = !strncmp(file, "<frozen importlib", 17) || (!found && is_ours(module));
        if (!own && !found && !is_library(module)) {
            found = true;
            snprintf(o->file, sizeof o->file, "%s", file);
            o->line = PyFrame_GetLineNumber(f);
        }
        Py_XDECREF(globals);
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(f);
        Py_DECREF(f);
        f = back;
    }
    Py_XDECREF(f);
    return found && !own;
}
static int watch(PyObject *unused, PyFrameObject *frame, int what, PyObject *arg)
{
    (void)unused;
    if (what != PyTrace_C_CALL || !now || now->what || !arg || !PyCFunction_Check(arg))
        return 0;
    const char *it = asked(arg, frame);
    if (it && find_place(frame, now))
        now->what = it;
    return 0;
}

void outside_push(outside *o)
{
    *o = (outside){.outer = now};
    o->watching = PyThreadState_Get()->c_profilefunc == NULL;
    o->collecting = PyGC_Disable(); /* its callbacks, which may ask for the time, are not the function's */
    now = o;
    if (o->watching)
        PyEval_SetProfile(watch, NULL);
}
/* A GraphBreak if the function asked for something that is another thing each time. */
int outside_pop(outside *o)
{
    if (o->watching)
        PyEval_SetProfile(NULL, NULL);
    if (o->collecting)
        PyGC_Enable();
    now = o->outer;
    if (!o->what || PyErr_Occurred())
        return !PyErr_Occurred();
    py_fail(
        graph_break,
        "%s:%d: the function asks for %s, which is another each time, and a replay would keep the first: give it as an argument, take eager's "
        "random numbers, which each run draws anew, or do it outside the compiled function",
        o->file, o->line, o->what);
    return 0;
}
