/* errors.c: the one place where a status of libeas becomes a Python exception, and where "file:line: " of the user's source
 * is found for messages that are ours. */
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

PyObject *py_fail(PyObject *exc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    PyErr_FormatV(exc, fmt, ap);
    va_end(ap);
    return NULL;
}

/* The code object belongs to the package if its file lies in our folder. The last answer is kept: a trace asks
 * for the same code again and again. */
static bool is_ours(PyCodeObject *code)
{
    static PyObject *last_file;
    static bool last;
    PyObject *file = code->co_filename;
    if (file != last_file) {
        Py_XSETREF(last_file, Py_NewRef(file));
        last = G.package && PyUnicode_Tailmatch(file, G.package, 0, PY_SSIZE_T_MAX, -1) == 1;
    }
    return last;
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
