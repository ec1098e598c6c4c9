/* ctrl_names.c: what a body that is traced once does to Python's own names, containers and attributes. A
 * change that would happen once, while the kernel is traced, and not each time round, is an error with the
 * line. */
#include "ctrl.h"

#include <string.h>

/* ---- names: a plain name that a loop's body reads and assigns anew would begin every iteration with its
 * first value ---- */
static int state_keep(Frame *f)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(f->py), *globals = PyFrame_GetGlobals(f->py);
    int ok = guards_state(code, globals, f->names, &f->state);
    Py_DECREF(code);
    Py_DECREF(globals);
    return ok;
}
/* The innermost Python frame that is not the package's; new reference. */
static PyFrameObject *user_frame(void)
{
    PyFrameObject *f = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (f && py_is_ours(f)) {
        PyFrameObject *back = PyFrame_GetBack(f);
        Py_DECREF(f);
        f = back;
    }
    return f;
}
/* Names that rewriting made are none of the user's. */
int frame_drop_made_names(PyObject *names)
{
    PyObject *all = PyDict_Keys(names);
    int ok = all != NULL;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(all); i++)
        if (PyUnicode_Tailmatch(PyList_GET_ITEM(all, i), N._eas, 0, PY_SSIZE_T_MAX, -1) == 1)
            ok = PyDict_DelItem(names, PyList_GET_ITEM(all, i)) == 0;
    Py_XDECREF(all);
    return ok;
}
int frame_state_keep(Frame *f)
{
    f->py = user_frame();
    PyObject *locals = f->py ? PyFrame_GetLocals(f->py) : NULL;
    f->names = locals ? PyDict_New() : NULL;
    int ok = !f->py || (f->names && PyDict_Update(f->names, locals) == 0 && frame_drop_made_names(f->names));
    Py_XDECREF(locals);
    f->at = f->py ? PyFrame_GetLasti(f->py) : 0;
    return ok && (!f->py || state_keep(f));
}
int frame_names_keep(Frame *f, PyObject *cond)
{
    f->py = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    PyObject *locals = f->py ? PyFrame_GetLocals(f->py) : NULL;
    f->names = locals ? PyDict_New() : NULL;
    int ok = f->names && PyDict_Update(f->names, locals) == 0 && frame_drop_made_names(f->names);
    Py_XDECREF(locals);
    f->cond = Py_XNewRef(cond);
    f->at = f->py ? PyFrame_GetLasti(f->py) : 0;
    return f->py ? ok && state_keep(f) : 1;
}
static bool is_plain(PyObject *o)
{
    return o == Py_None || PyLong_Check(o) || PyFloat_Check(o) || PyUnicode_Check(o);
}
static bool is_gathered(PyObject *o) { return PyTuple_Check(o) || PyList_Check(o); }
/* May the loop have meant to carry this name? What a body that is over has left behind is of no use to
 * anyone. */
static int looks_carried(Trace *t, PyObject *was, PyObject *is)
{
    if (was == is || (G.undefined && Py_IS_TYPE(was, G.undefined)) ||
        (Py_IS_TYPE(was, G.value) && !scope_open(t, ((Value *)was)->scope)))
        return 0;
    if (is_plain(was) && is_plain(is))
        return PyObject_RichCompareBool(was, is, Py_NE);
    return value_check(is) || is_gathered(is) || (value_check(was) && is_plain(is));
}
static int name_fail(Frame *f, PyObject *code, PyObject *name, long line)
{
    py_fail(
        PyExc_RuntimeError,
        "%U:%ld: '%U' is assigned anew in the body of %s (line %d). The body is traced once, so every iteration would begin with the value from "
        "before the loop. Make it a variable: %U = mk.var(init) before the loop, %U.set(value) or %U += value in the body",
        ((PyCodeObject *)code)->co_filename, line, name, ctrl_what[f->kind], f->line, name, name, name);
    return 0;
}
static int name_check(Frame *f, PyObject *name)
{
    PyObject *names = PyImport_ImportModule("eas._names"), *code = (PyObject *)PyFrame_GetCode(f->py);
    PyObject *r = names ? PyObject_CallMethod(names, "reassigned", "OiiOO", code, f->at,
                                              PyFrame_GetLasti(f->py), name, f->cond ? f->cond : Py_None)
                        : NULL;
    long line = r ? PyLong_AsLong(r) : -1;
    int ok = line == 0 || (line > 0 && name_fail(f, code, name, line));
    Py_XDECREF(r);
    Py_XDECREF(names);
    Py_DECREF(code);
    return ok;
}
int frame_names_check(Trace *t, Frame *f)
{
    PyObject *name, *was, *locals = f->py == PyEval_GetFrame() ? PyFrame_GetLocals(f->py) : NULL;
    Py_ssize_t at = 0;
    int ok = 1;
    while (ok && locals && PyDict_Next(f->names, &at, &name, &was)) {
        PyObject *is = PyObject_GetItem(locals, name);
        int carried = is ? looks_carried(t, was, is) : 0;
        if (!is)
            PyErr_Clear(); /* deleted */
        ok = carried >= 0 && (!carried || name_check(f, name));
        Py_XDECREF(is);
    }
    Py_XDECREF(locals);
    return ok && !PyErr_Occurred();
}

/* ---- containers and attributes: what a body does to them is done once, while it is traced ---- */
static int state_fail(Frame *f, bool loop, PyObject *lost)
{
    PyObject *m = PyImport_ImportModule("eas._guards");
    PyCodeObject *code = PyFrame_GetCode(f->py);
    PyObject *r = m ? PyObject_CallMethod(m, "changed_at", "OiiO", (PyObject *)code, f->at,
                                          PyFrame_GetLasti(f->py), PyTuple_GET_ITEM(lost, 0))
                    : NULL;
    long line = r ? PyLong_AsLong(r) : -1;
    if (line >= 0)
        py_fail(
            PyExc_RuntimeError,
            "%U:%ld: '%U' is %U and becomes %U in the body of %s (line %d). %s. Keep it in a variable: v = mk.var(init) before, v.set(value) or v += "
            "value in the body; lists and attributes may hold such variables. What is for Python alone, a log for example, belongs outside",
            code->co_filename, line ? line : (long)f->line, PyTuple_GET_ITEM(lost, 0),
            PyTuple_GET_ITEM(lost, 1), PyTuple_GET_ITEM(lost, 2), ctrl_what[f->kind], f->line,
            loop ? "The body is traced once, so this happens once, and not each time round"
                 : "Both branches are traced, so this happens whatever the condition is");
    Py_XDECREF(r);
    Py_XDECREF(m);
    Py_DECREF(code);
    return 0;
}
int frame_state_check(Frame *f, bool loop)
{
    PyObject *lost =
        f->state ? guards_lost(f->state, loop, f->first ? f->first : f->scope) : Py_NewRef(Py_None);
    int ok = lost == Py_None || (lost && state_fail(f, loop, lost));
    Py_XDECREF(lost);
    return ok;
}

/* ---- branches ---- */
/* A function of eas._names on the code of the frame's function, between its start and where it is now; -1
 * with an exception. */
static long ask_names(const Frame *f, const char *question, PyObject *name)
{
    PyObject *names = PyImport_ImportModule("eas._names"), *code = (PyObject *)PyFrame_GetCode(f->py);
    PyObject *r = names
                    ? PyObject_CallMethod(names, question, "OiiO", code, f->at, PyFrame_GetLasti(f->py), name)
                    : NULL;
    long line = r ? PyLong_AsLong(r) : -1;
    Py_XDECREF(r);
    Py_XDECREF(names);
    Py_DECREF(code);
    return line;
}
int frame_left_early(Frame *f)
{
    long early = ask_names(f, "left_early", Py_None);
    if (early > 0)
        py_fail_at(
            PyExc_RuntimeError,
            "the body of %s (line %d) is left by return, continue or break: both branches are traced, so what follows would be missing whatever "
            "the condition is. Put what follows into `with mk.else_():`, or choose by a mask or mk.where",
            ctrl_what[f->kind], f->line);
    return early == 0;
}
/* A number that a branch gives to a name is the same whether the branch is taken or not. */
static int number_read_after(Frame *f, PyObject *name)
{
    long line = ask_names(f, "read_after", name);
    PyCodeObject *code = PyFrame_GetCode(f->py);
    if (line > 0)
        py_fail(
            PyExc_RuntimeError,
            "%U:%ld: '%U' is a Python value that the body of %s (line %d) assigned, and is read after it: both branches are traced, so it is the "
            "same whatever the condition is. Make it a variable: %U = mk.var(init) before, %U.set(value) in the body; or choose with mk.where",
            code->co_filename, line, name, ctrl_what[f->kind], f->line, name, name);
    Py_DECREF(code);
    return line == 0;
}
int frame_branch_check(Frame *f)
{
    PyObject *name, *is, *locals = f->py && f->py == PyEval_GetFrame() ? PyFrame_GetLocals(f->py) : NULL,
                         *now = locals ? PyDict_New() : NULL;
    Py_ssize_t at = 0;
    int ok = !locals ||
             (now && PyDict_Update(now, locals) == 0 && frame_drop_made_names(now) && frame_left_early(f));
    while (ok && now && PyDict_Next(now, &at, &name, &is)) {
        PyObject *was = PyDict_GetItemWithError(f->names, name);
        int changed = is_plain(is) && was != is;
        if (changed && was && is_plain(was))
            changed = PyObject_RichCompareBool(was, is, Py_NE);
        ok = changed >= 0 && (!changed || number_read_after(f, name));
    }
    Py_XDECREF(now);
    Py_XDECREF(locals);
    return ok && !PyErr_Occurred();
}
