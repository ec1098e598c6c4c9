/* debug.c: mk.assert_ and mk.print. */
#include "py.h"

FN(assert_)
{
    eas_value cond, mask = 0;
    PARSE({"assert_", 3, 1, {"cond", "message", "mask"}});
    const char *message = "";
    if (in[1] && !PyUnicode_Check(in[1]))
        return py_fail_at(PyExc_TypeError, "mk.assert_: the message must be a str, got %s",
                          Py_TYPE(in[1])->tp_name);
    if (in[1] && !(message = PyUnicode_AsUTF8(in[1])))
        return NULL;
    if (!value_arg(t, in[0], s.fn, "cond", &cond) ||
        (in[2] && in[2] != Py_None && !value_arg(t, in[2], s.fn, "mask", &mask)))
        return NULL;
    eas_builder_assert(t->b, cond, message, trace_mask(t, mask));
    return trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}

enum { MAX_PRINTED = 64 };

typedef struct line {
    PyObject *parts; /* list of str, to be joined by spaces */
    eas_value v[MAX_PRINTED];
    int n;
} line;

static int add_label(line *l, PyObject *text)
{
    PyObject *open = text ? PyObject_CallMethod(text, "replace", "ss", "{", "{{") : NULL;
    PyObject *both = open ? PyObject_CallMethod(open, "replace", "ss", "}", "}}") : NULL;
    int ok = both && PyList_Append(l->parts, both) == 0;
    Py_XDECREF(open);
    Py_XDECREF(both);
    return ok;
}
static int add_number(line *l, PyObject *o)
{
    PyObject *text = PyObject_Str(o);
    int ok = add_label(l, text);
    Py_XDECREF(text);
    return ok;
}
static int add_traced(Trace *t, line *l, PyObject *o)
{
    if (l->n == MAX_PRINTED)
        return py_fail_at(PyExc_ValueError, "mk.print: at most %d values", (int)MAX_PRINTED), 0;
    if (!value_arg(t, o, "print", "a value", &l->v[l->n++]))
        return 0;
    PyObject *place = PyUnicode_FromString("{}");
    int ok = place && PyList_Append(l->parts, place) == 0;
    Py_XDECREF(place);
    return ok;
}
static int add_part(Trace *t, line *l, PyObject *o)
{
    if (PyUnicode_Check(o))
        return add_label(l, o);
    return number_check(o) ? add_number(l, o) : add_traced(t, l, o);
}
static PyObject *record(Trace *t, line *l, eas_value when)
{
    PyObject *space = PyUnicode_FromString(" "), *text = space ? PyUnicode_Join(space, l->parts) : NULL;
    const char *utf8 = text ? PyUnicode_AsUTF8(text) : NULL;
    if (utf8)
        eas_builder_print(t->b, utf8, l->n, l->v, when);
    Py_XDECREF(space);
    Py_XDECREF(text);
    return utf8 && trace_ok(t) ? Py_NewRef(Py_None) : NULL;
}
/* print(*values, when=None): every argument by position but `when`. */
static PyObject *mk_print(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)self;
    Trace *t = trace_enter("print");
    line l = {.n = 0};
    eas_value when = 0;
    Py_ssize_t nkw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    if (!t)
        return NULL;
    if (nkw > 1 || (nkw && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "when")))
        return py_fail_at(PyExc_TypeError, "mk.print takes values and labels, and when=");
    PyObject *cond = nkw ? args[nargs] : Py_None;
    if (cond == Py_False)
        Py_RETURN_NONE;
    if (cond != Py_None && cond != Py_True && !value_arg(t, cond, "print", "when", &when))
        return NULL;
    int ok = (l.parts = PyList_New(0)) != NULL;
    for (Py_ssize_t i = 0; i < nargs && ok; i++)
        ok = add_part(t, &l, args[i]);
    PyObject *r = ok ? record(t, &l, trace_mask(t, when)) : NULL;
    Py_XDECREF(l.parts);
    return r;
}

static PyMethodDef rows[] = {
    ROW(assert_,
        "assert_($module, cond, message='', mask=None)\n--\n\nIn launches with _debug=True (or EAS_DEBUG=1) an AssertionError where cond does not "
        "hold for a lane that is on; others do not look."),
    ROW(print,
        "print(*values, when=None)\n\nPrints labels and values, one record per program, in the order of programs, once the launch is over. when: "
        "a condition; of a block or of threads, only the lanes where it holds."),
    {NULL, NULL, 0, NULL},
};
int debug_init(PyObject *mk) { return mk_add_all(mk, rows); }
