/* errors.c: the one place where a status of libeas becomes a Python exception, and where "file:line: " of the
 * user's source is found for messages that are ours. */
#include "py.h"

#include <stdarg.h>

static PyObject *exception_of(eas_status st)
{
    switch (st) {
    case EAS_ERR_VALUE:
    case EAS_ERR_SYNTAX: return PyExc_ValueError;
    case EAS_ERR_TYPE: return PyExc_TypeError;
    case EAS_ERR_INDEX: return PyExc_IndexError;
    case EAS_ERR_MEMORY: return PyExc_MemoryError;
    case EAS_ERR_IO: return PyExc_OSError;
    case EAS_ERR_INTERRUPTED: return PyExc_KeyboardInterrupt;
    case EAS_ERR_INTERNAL: return PyExc_SystemError;
    case EAS_ERR_ASSERT: return PyExc_AssertionError;
    default: return PyExc_RuntimeError;
    }
}

PyObject *py_raise(eas_status st)
{
    if (PyErr_Occurred())
        return NULL; /* a signal handler's, raised during the launch */
    const char *text = eas_error_message();
    if (st == EAS_ERR_INTERRUPTED)
        PyErr_SetNone(PyExc_KeyboardInterrupt);
    else
        PyErr_SetString(exception_of(st), text && *text ? text : eas_status_name(st));
    return NULL;
}

/* "which has 24 elements" with " in the shape (3, 8)" behind it, if the text speaks of the parameter; else
 * NULL. */
static PyObject *with_shape(PyObject *text, PyObject *name, PyObject *arg)
{
    PyObject *of = PyUnicode_FromFormat(" of \"%U\", which has ", name),
             *end = PyUnicode_FromString(" elements"), *r = NULL;
    Py_ssize_t n = PyUnicode_GetLength(text), at = of ? PyUnicode_Find(text, of, 0, n, 1) : -1,
               to = at < 0 || !end ? -1 : PyUnicode_Find(text, end, at, n, 1);
    PyObject *dims = to < 0 ? NULL : PyObject_GetAttrString(arg, "shape"),
             *shape = dims ? PySequence_Tuple(dims) : NULL;
    if (shape) {
        to += PyUnicode_GetLength(end);
        PyObject *head = PyUnicode_Substring(text, 0, to), *tail = PyUnicode_Substring(text, to, n);
        r = head && tail ? PyUnicode_FromFormat("%U in the shape %R%U", head, shape, tail) : NULL;
        Py_XDECREF(head);
        Py_XDECREF(tail);
    }
    PyErr_Clear();
    Py_XDECREF(of);
    Py_XDECREF(end);
    Py_XDECREF(dims);
    Py_XDECREF(shape);
    return r;
}
/* libeas knows how many elements an array has; what shape they have in Python is told here. */
void py_tell_shape(PyObject *names, PyObject *const *args, int n)
{
    PyObject *type, *e, *tb, *better = NULL;
    if (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_IndexError))
        return;
    PyErr_Fetch(&type, &e, &tb);
    PyErr_NormalizeException(&type, &e, &tb);
    PyObject *text = e ? PyObject_Str(e) : NULL;
    for (int i = 0; i < n && text && !better; i++)
        better = with_shape(text, PyTuple_GET_ITEM(names, i), args[i]);
    PyObject *one = better ? PyTuple_Pack(1, better) : NULL;
    if (one)
        PyObject_SetAttrString(e, "args", one);
    PyErr_Clear();
    Py_XDECREF(one);
    Py_XDECREF(better);
    Py_XDECREF(text);
    PyErr_Restore(type, e, tb);
}

PyObject *py_fail(PyObject *exc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    PyErr_FormatV(exc, fmt, ap);
    va_end(ap);
    return NULL;
}

/* The code object belongs to the package if its file lies in our folder. The last answer is kept: a trace
 * asks for the same code again and again. */
static bool is_ours(PyCodeObject *code)
{
    static PyObject *last_file;
    static bool last;
    PyObject *file = code->co_filename;
    if (file != last_file) {
        Py_XSETREF(last_file, Py_NewRef(file));
        last = (G.package && PyUnicode_Tailmatch(file, G.package, 0, PY_SSIZE_T_MAX, -1) == 1) ||
               (G.package2 && PyUnicode_Tailmatch(file, G.package2, 0, PY_SSIZE_T_MAX, -1) == 1);
    }
    return last;
}

bool py_is_ours(PyFrameObject *f)
{
    PyCodeObject *code = PyFrame_GetCode(f);
    bool ours = is_ours(code);
    Py_DECREF(code);
    return ours;
}

bool py_user_line(const char **file, int *line)
{
    PyFrameObject *f = PyEval_GetFrame();
    Py_XINCREF(f);
    while (f) {
        PyCodeObject *code = PyFrame_GetCode(f);
        bool ours = is_ours(code);
        if (!ours) {
            *file = PyUnicode_AsUTF8(code->co_filename);
            if (!*file)
                PyErr_Clear();
            *line = PyFrame_GetLineNumber(f);
        }
        Py_DECREF(code);
        PyFrameObject *back = ours ? PyFrame_GetBack(f) : NULL;
        Py_DECREF(f);
        if (!ours)
            return *file != NULL;
        f = back;
    }
    return false;
}

PyObject *py_fail_at(PyObject *exc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    PyObject *text = PyUnicode_FromFormatV(fmt, ap);
    va_end(ap);
    if (!text)
        return NULL;
    const char *file;
    int line;
    if (py_user_line(&file, &line))
        PyErr_Format(exc, "%s:%d: %U", file, line, text);
    else
        PyErr_SetObject(exc, text);
    Py_DECREF(text);
    return NULL;
}
