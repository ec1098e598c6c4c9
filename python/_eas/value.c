/* value.c: traced values. A Value is an SSA value of the trace it was made in; Python's operators on it
 * append instructions through eas_builder_apply, which adapts literals, promotes dtypes and broadcasts
 * shapes. What would need the value itself (bool, int, iteration) raises and says what to write instead. A
 * Buffer is an array parameter or a threadgroup array: it goes to mk.load and mk.store only. */
#include "py.h"

#include <math.h>

value_ops OP;

/* ---- making them ---- */
static PyObject *make(PyTypeObject *type, Trace *t, eas_value v, PyObject *name)
{
    if (!trace_ok(t))
        return NULL;
    Value *o = PyObject_New(Value, type);
    if (!o)
        return NULL;
    o->trace = (Trace *)Py_NewRef(t);
    o->name = Py_XNewRef(name);
    o->v = v;
    o->scope = scope_now(t);
    o->array = NULL;
    if (t->live)
        eas_live_keep(t->b, v);
    return (PyObject *)o;
}
PyObject *value_new(Trace *t, eas_value v) { return make(G.value, t, v, NULL); }
PyObject *value_named(Trace *t, eas_value v, PyObject *name) { return make(G.value, t, v, name); }
PyObject *buffer_new(Trace *t, eas_value v, PyObject *name) { return make(G.buffer, t, v, name); }

void value_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    if (((Value *)o)->trace->live)
        eas_live_drop(((Value *)o)->trace->b, ((Value *)o)->v);
    Py_DECREF(((Value *)o)->trace);
    Py_XDECREF(((Value *)o)->name);
    Py_XDECREF(((Value *)o)->array);
    PyObject_Free(o);
    Py_DECREF(type);
}

/* ---- from Python objects ---- */
bool value_check(PyObject *o) { return Py_IS_TYPE(o, G.value) || Py_IS_TYPE(o, G.var); }
bool number_check(PyObject *o) { return PyLong_Check(o) || PyFloat_Check(o) || PyArray_IsScalar(o, Generic); }

static int stale(Trace *owner)
{
    py_fail_at(
        PyExc_RuntimeError,
        "a value traced in kernel '%U' is used outside that trace; values live only while the kernel's body runs",
        owner->name);
    return -1;
}
/* A value lives as long as the loop or branch whose body made it. */
static int left_body(Trace *t, const Value *x)
{
    int line;
    const char *what = scope_what(t, x->scope, &line);
    py_fail_at(
        PyExc_RuntimeError,
        "a value made in the body of %s (line %d) is used after that body: make a variable before it with v = mk.var(init), set it inside with "
        "v.set(value), and use v here",
        what, line);
    return -1;
}
static int literal_int(Trace *t, PyObject *o, eas_value *out)
{
    int over;
    long long i = PyLong_AsLongLongAndOverflow(o, &over);
    if (over)
        return py_fail_at(PyExc_OverflowError, "the integer %S does not fit 64 bits", o), -1;
    *out = eas_builder_const_int(t->b, i);
    return 1;
}
/* A NumPy scalar keeps its dtype, as in NumPy. */
static int literal_numpy(Trace *t, PyObject *o, eas_value *out)
{
    PyArray_Descr *d = PyArray_DescrFromScalar(o);
    int dt = d ? py_dtype_of_npy(d) : -1;
    Py_XDECREF(d);
    PyErr_Clear();
    if (dt < 0)
        return 0;
    bool is_float = eas_dtype_kind((eas_dtype)dt) == 'f';
    PyObject *n = is_float ? PyNumber_Float(o) : PyNumber_Long(o);
    if (!n)
        return -1;
    double f = is_float ? PyFloat_AS_DOUBLE(n) : 0;
    int64_t i = is_float ? 0 : (int64_t)PyLong_AsUnsignedLongLongMask(n);
    Py_DECREF(n);
    *out = eas_builder_const_number(t->b, (eas_dtype)dt, f, i);
    return 1;
}

/* A name that has no value here (eas._flow.Undefined) says why. */
static bool undefined_fail(PyObject *o)
{
    return G.undefined && Py_IS_TYPE(o, G.undefined) && PyObject_IsTrue(o) < 0;
}
int value_of(Trace *t, PyObject *o, eas_value *out)
{
    if (Py_IS_TYPE(o, G.value)) {
        if (((Value *)o)->trace != t)
            return stale(((Value *)o)->trace);
        if (!scope_open(t, ((Value *)o)->scope))
            return left_body(t, (Value *)o);
        *out = ((Value *)o)->v;
        return 1;
    }
    if (Py_IS_TYPE(o, G.var)) {
        if (((Var *)o)->trace != t)
            return stale(((Var *)o)->trace);
        *out = ((Var *)o)->v;
        return 1;
    }
    if (PyBool_Check(o))
        return *out = eas_builder_const_bool(t->b, o == Py_True), 1;
    if (PyLong_Check(o))
        return literal_int(t, o, out);
    if (PyFloat_CheckExact(o))
        return *out = eas_builder_const_float(t->b, PyFloat_AS_DOUBLE(o)), 1;
    if (PyArray_IsScalar(o, Generic))
        return literal_numpy(t, o, out);
    if (PyFloat_Check(o))
        return *out = eas_builder_const_float(t->b, PyFloat_AS_DOUBLE(o)), 1;
    if (PyArray_Check(o) && PyArray_NDIM((PyArrayObject *)o) == 0) { /* one number */
        PyObject *s = PyArray_ToScalar(PyArray_DATA((PyArrayObject *)o), (PyArrayObject *)o);
        int r = s && PyArray_IsScalar(s, Generic) ? literal_numpy(t, s, out) : s ? 0 : -1;
        Py_XDECREF(s);
        return r;
    }
    return undefined_fail(o) ? -1 : 0;
}

static PyObject *label(PyObject *o) /* what an object is, for messages */
{
    if ((Py_IS_TYPE(o, G.buffer) || Py_IS_TYPE(o, G.value)) && ((Value *)o)->name)
        return PyUnicode_FromFormat(
            "%s '%U'", Py_IS_TYPE(o, G.buffer) ? "the buffer" : "the scalar parameter", ((Value *)o)->name);
    if (Py_IS_TYPE(o, G.buffer))
        return PyUnicode_FromString("a buffer");
    if (value_check(o))
        return PyUnicode_FromString("a traced value");
    if (PyArray_Check(o))
        return PyUnicode_FromString("a NumPy array (pass arrays to the kernel as arguments)");
    return PyUnicode_FromFormat("%s %R", Py_TYPE(o)->tp_name, o);
}
static void wrong_arg(PyObject *o, const char *fn, const char *arg, const char *want)
{
    PyObject *got = undefined_fail(o) ? NULL : label(o);
    if (got)
        py_fail_at(PyExc_TypeError, "mk.%s: %s must be %s; got %U", fn, arg, want, got);
    Py_XDECREF(got);
}

int value_arg(Trace *t, PyObject *o, const char *fn, const char *arg, eas_value *out)
{
    int r = value_of(t, o, out);
    if (r == 0)
        wrong_arg(o, fn, arg,
                  Py_IS_TYPE(o, G.buffer) ? "a value or a number (read a buffer with mk.load)"
                                          : "a value or a number");
    return r == 1;
}
int buffer_arg(Trace *t, PyObject *o, const char *fn, const char *arg, eas_value *out)
{
    if (!Py_IS_TYPE(o, G.buffer))
        return wrong_arg(o, fn, arg, "a buffer (an array argument of the kernel, or mk.alloc_tg)"), 0;
    if (((Value *)o)->trace != t)
        return stale(((Value *)o)->trace), 0;
    *out = ((Value *)o)->v;
    return array_whole(o, fn);
}

/* ---- operators ---- */
static Trace *trace_of(PyObject *o)
{
    return Py_IS_TYPE(o, G.value) || Py_IS_TYPE(o, G.buffer) ? ((Value *)o)->trace
         : Py_IS_TYPE(o, G.var)                              ? ((Var *)o)->trace
                                                             : NULL;
}
static Trace *enter(PyObject *x, PyObject *y)
{
    Trace *owner = trace_of(x) ? trace_of(x) : trace_of(y);
    if (owner != trace_current())
        return stale(owner), NULL;
    return trace_enter("operator");
}
static PyObject *combine(eas_value (*f)(Trace *, eas_op, eas_value, eas_value), eas_op op, PyObject *x,
                         PyObject *y)
{
    eas_value a, b;
    Trace *t = enter(x, y);
    if (!t)
        return NULL;
    int r = value_of(t, x, &a);
    if (r == 1)
        r = value_of(t, y, &b);
    if (r == 0)
        Py_RETURN_NOTIMPLEMENTED;
    return r < 0 ? NULL : value_new(t, f(t, op, a, b));
}
static eas_value by_elements(Trace *t, eas_op op, eas_value a, eas_value b)
{
    return eas_builder_apply(t->b, op, a, b, 0);
}
static eas_value by_rows(Trace *t, eas_op op, eas_value a, eas_value b)
{
    return (void)op, eas_builder_matmul(t->b, a, b, 0);
}
static PyObject *apply2(eas_op op, PyObject *x, PyObject *y) { return combine(by_elements, op, x, y); }
static PyObject *apply1(eas_op op, PyObject *x)
{
    eas_value a;
    Trace *t = enter(x, x);
    return t && value_of(t, x, &a) == 1 ? value_new(t, eas_builder_apply(t->b, op, a, 0, 0)) : NULL;
}
#define BINARY(name) \
    static PyObject *nb_##name(PyObject *x, PyObject *y) { return apply2(OP.name, x, y); }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(floordiv)
BINARY(mod)
BINARY(and)
BINARY(or)
BINARY(xor)
BINARY(shl)
BINARY(shr) static PyObject *nb_neg(PyObject *x) { return apply1(OP.neg, x); }
static PyObject *nb_abs(PyObject *x) { return apply1(OP.abs, x); }
static PyObject *nb_not(PyObject *x) { return apply1(OP.not, x); }
static PyObject *nb_pos(PyObject *x) { return Py_NewRef(x); }

static PyObject *nb_divmod(PyObject *x, PyObject *y)
{
    PyObject *q = nb_floordiv(x, y), *r = q && q != Py_NotImplemented ? nb_mod(x, y) : NULL;
    if (!r)
        return q == Py_NotImplemented ? q : (Py_XDECREF(q), NULL);
    PyObject *both = PyTuple_Pack(2, q, r);
    Py_DECREF(q);
    Py_DECREF(r);
    return both;
}
static PyObject *nb_matmul(PyObject *x, PyObject *y) { return combine(by_rows, 0, x, y); }

static PyObject *value_compare(PyObject *x, PyObject *y, int how)
{
    eas_op ops[6];
    ops[Py_LT] = OP.lt;
    ops[Py_LE] = OP.le;
    ops[Py_EQ] = OP.eq;
    ops[Py_NE] = OP.ne;
    ops[Py_GT] = OP.gt;
    ops[Py_GE] = OP.ge;
    return apply2(ops[how], x, y);
}

/* x to a literal power n >= 1 by squaring: the same products on every device. */
static eas_value int_power(Trace *t, eas_value x, long long n)
{
    eas_value r = 0;
    for (;; x = eas_builder_apply(t->b, OP.mul, x, x, 0)) {
        if (n & 1)
            r = r ? eas_builder_apply(t->b, OP.mul, r, x, 0) : x;
        if (!(n >>= 1))
            return r;
    }
}
static eas_value one_like(Trace *t, eas_value x)
{
    int64_t shape[4];
    int rank = eas_value_shape(t->b, x, shape);
    eas_value one = eas_builder_const_typed(t->b, eas_value_dtype(t->b, x), 1.0, 1);
    return rank ? eas_builder_broadcast(t->b, one, rank, shape) : one;
}
/* Whole exponents of floats are products as long as those stay within two units of the last place, and lose
 * nothing to an overflow or underflow on the way: up to 3, and 1 / x. Beyond that it is the power function's.
 */
static PyObject *float_power(Trace *t, eas_value x, PyObject *y, long long n)
{
    if (n > 0 && n <= 3)
        return value_new(t, int_power(t, x, n));
    if (n == -1)
        return value_new(t, eas_builder_apply(t->b, OP.div, eas_builder_const_float(t->b, 1.0), x, 0));
    double e = PyFloat_AsDouble(y);
    return PyErr_Occurred()
             ? NULL
             : value_new(t, eas_builder_apply(t->b, OP.pow, x, eas_builder_const_float(t->b, e), 0));
}
static PyObject *literal_power(Trace *t, eas_value x, PyObject *y)
{
    int over;
    long long n = PyLong_AsLongLongAndOverflow(y, &over);
    if (n == 0 && !over)
        return value_new(t, one_like(t, x));
    if (eas_dtype_kind(eas_value_dtype(t->b, x)) == 'f')
        return float_power(t, x, y, over ? 0 : n);
    if (over || n > 4096)
        return py_fail_at(PyExc_ValueError, "an integer to the literal power %S: only 0 to 4096 are unrolled",
                          y);
    if (n < 0)
        return py_fail_at(PyExc_ValueError,
                          "an integer to the negative power %lld is not an integer: cast it to a float first",
                          n);
    return value_new(t, int_power(t, x, n));
}

/* pow takes -0 for 0 and -inf for inf where the exponent is not whole; square roots do not. */
static eas_value without_sign(Trace *t, eas_value x)
{
    eas_value low = eas_builder_apply(t->b, OP.eq, x, eas_builder_const_float(t->b, -INFINITY), 0);
    return eas_builder_apply(t->b, OP.where, low, eas_builder_const_float(t->b, INFINITY),
                             eas_builder_apply(t->b, OP.add, x, eas_builder_const_float(t->b, 0), 0));
}
/* Exponents that need no power function. */
static int simple_power(Trace *t, eas_value x, double e, eas_value *out)
{
    if (e == 0.5 || e == -0.5)
        *out = eas_builder_apply(t->b, e > 0 ? OP.sqrt : OP.rsqrt, without_sign(t, x), 0, 0);
    else if (e == 2)
        *out = eas_builder_apply(t->b, OP.mul, x,
                                 eas_builder_apply(t->b, OP.mul, x, eas_builder_const_float(t->b, 1), 0), 0);
    else
        return 0;
    return 1;
}
PyObject *value_power(Trace *t, PyObject *x, PyObject *y)
{
    eas_value a, b;
    int r = value_of(t, x, &a);
    if (r == 1 && PyLong_CheckExact(y))
        return literal_power(t, a, y);
    if (r == 1 && PyFloat_CheckExact(y) && simple_power(t, a, PyFloat_AS_DOUBLE(y), &b))
        return value_new(t, b);
    if (r == 1)
        r = value_of(t, y, &b);
    if (r != 1)
        return r ? NULL : Py_NewRef(Py_NotImplemented);
    return value_new(t, eas_builder_apply(t->b, OP.pow, a, b, 0));
}
static PyObject *nb_pow(PyObject *x, PyObject *y, PyObject *mod)
{
    if (mod != Py_None)
        Py_RETURN_NOTIMPLEMENTED;
    Trace *t = enter(x, y);
    return t ? value_power(t, x, y) : NULL;
}

/* ---- functions of others: Python's, math's, NumPy's ---- */
/* "; write mk.maximum(x, y) for max": of the call that is under way, as far as the bytecode tells. New
 * reference, perhaps empty. */
static PyObject *hint_of(const char *finder)
{
    PyFrameObject *py = PyEval_GetFrame();
    PyObject *m = py ? PyImport_ImportModule("eas._names") : NULL,
             *code = py ? (PyObject *)PyFrame_GetCode(py) : NULL;
    PyObject *pair = m ? PyObject_CallMethod(m, finder, "Oi", code, PyFrame_GetLasti(py)) : NULL, *r = NULL;
    if (pair && pair != Py_None)
        r = PyUnicode_FromFormat("Write %U in place of %U. ", PyTuple_GET_ITEM(pair, 1),
                                 PyTuple_GET_ITEM(pair, 0));
    PyErr_Clear();
    Py_XDECREF(pair);
    Py_XDECREF(m);
    Py_XDECREF(code);
    return r ? r : PyUnicode_FromString("");
}
static PyObject *instead_hint(void) { return hint_of("called"); }
static PyObject *numpy_fail(PyObject *name)
{
    PyObject *m = PyImport_ImportModule("eas._names"),
             *w = m ? PyObject_CallMethod(m, "instead", "O", name) : NULL;
    if (w && w != Py_None)
        py_fail_at(
            PyExc_TypeError,
            "np.%U of a traced value: NumPy computes with arrays, and here there are none yet. Write %U",
            name, w);
    else if (w)
        py_fail_at(
            PyExc_TypeError,
            "np.%U of a traced value: NumPy computes with arrays, and here there are none yet. Use the functions of mk",
            name);
    Py_XDECREF(w);
    Py_XDECREF(m);
    return NULL;
}
/* NumPy hands some of its scalars over as arrays of no dims. New reference. */
static PyObject *scalar_of(PyObject *o)
{
    return PyArray_Check(o) && !PyArray_NDIM((PyArrayObject *)o)
             ? PyArray_ToScalar(PyArray_DATA((PyArrayObject *)o), (PyArrayObject *)o)
             : Py_NewRef(o);
}
/* NumPy's scalars leave operators to us; every other function of NumPy is told what to write instead. */
PyObject *value_array_ufunc(PyObject *self, PyObject *args, PyObject *kw)
{
    (void)self;
    static const struct {
        const char *name;
        eas_op *op;
    } ops[] = {{"add", &OP.add},          {"subtract", &OP.sub},     {"multiply", &OP.mul},
               {"divide", &OP.div},       {"true_divide", &OP.div},  {"floor_divide", &OP.floordiv},
               {"remainder", &OP.mod},    {"bitwise_and", &OP.and }, {"bitwise_or", &OP.or },
               {"bitwise_xor", &OP.xor }, {"left_shift", &OP.shl},   {"right_shift", &OP.shr},
               {"less", &OP.lt},          {"less_equal", &OP.le},    {"greater", &OP.gt},
               {"greater_equal", &OP.ge}, {"equal", &OP.eq},         {"not_equal", &OP.ne}};
    PyObject *name = PyTuple_GET_SIZE(args) > 2
                       ? PyObject_GetAttrString(PyTuple_GET_ITEM(args, 0), "__name__")
                       : NULL,
             *r = NULL;
    if (!name)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "__array_ufunc__(ufunc, method, *inputs)");
    bool two = PyTuple_GET_SIZE(args) == 4 && (!kw || !PyDict_GET_SIZE(kw));
    PyObject *x = two ? scalar_of(PyTuple_GET_ITEM(args, 2)) : NULL,
             *y = two ? scalar_of(PyTuple_GET_ITEM(args, 3)) : NULL;
    two = x && y;
    bool scalars = two && (PyArray_IsScalar(x, Generic) || PyArray_IsScalar(y, Generic));
    for (size_t i = 0; scalars && !r && i < sizeof ops / sizeof *ops; i++)
        if (!PyUnicode_CompareWithASCIIString(name, ops[i].name) && !(r = apply2(*ops[i].op, x, y)))
            scalars = false;
    if (scalars && !r && !PyErr_Occurred() && !PyUnicode_CompareWithASCIIString(name, "power")) {
        Trace *t = enter(x, y);
        r = t ? value_power(t, x, y) : NULL;
    }
    if (!r && !PyErr_Occurred())
        numpy_fail(name);
    Py_XDECREF(x);
    Py_XDECREF(y);
    Py_DECREF(name);
    return r;
}
PyObject *value_array_function(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *name =
        PyTuple_GET_SIZE(args) ? PyObject_GetAttrString(PyTuple_GET_ITEM(args, 0), "__name__") : NULL;
    if (name)
        numpy_fail(name);
    Py_XDECREF(name);
    return NULL;
}
PyObject *value_round(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return py_fail_at(
        PyExc_TypeError,
        "Python's round, math.floor and their like need a number, and a traced value is none yet: write mk.round(x), mk.floor(x), "
        "mk.ceil(x) or mk.trunc(x)");
}
PyObject *value_format(PyObject *self, PyObject *spec)
{
    if (PyUnicode_Check(spec) && !PyUnicode_GET_LENGTH(spec))
        return PyObject_Str(self);
    return py_fail_at(
        PyExc_TypeError,
        "a traced value has no digits to format while the kernel is traced: f\"{x:%S}\" cannot show it. Print it from the running kernel "
        "with mk.print(x), or look at it with _interpret=True and x.numpy()",
        spec);
}

/* ---- what needs the value itself ---- */
static bool live(PyObject *x) { return ((Value *)x)->trace->live; }
static PyObject *live_as(PyObject *x, const char *what, unaryfunc f)
{
    PyObject *item = live_item(x, what), *r = item ? f(item) : NULL;
    Py_XDECREF(item);
    return r;
}
static int nb_bool(PyObject *x)
{
    if (live(x)) {
        PyObject *item = live_item(x, "the truth");
        int r = item ? PyObject_IsTrue(item) : -1;
        Py_XDECREF(item);
        return r;
    }
    PyObject *hint = instead_hint();
    if (!hint)
        return -1;
    py_fail_at(
        PyExc_TypeError,
        "the truth of a traced value is not known while the kernel is traced, so `if`, `while`, `and`, `or`, `not`, chained "
        "comparisons and Python's max and min cannot use it here (in functions that are rewritten, statements can: the source must be "
        "at hand and unchanged, and rewrite=False not set). %UChoose values with mk.where(cond, x, y), guard with `with mk.if_(cond):` or a "
        "mask, combine conditions with "
        "& | ~, or make the deciding parameter eas.constexpr",
        hint);
    Py_DECREF(hint);
    return -1;
}
/* Is this "%d" % x? Python puts a text of its own in the place of a TypeError there. */
static bool in_percent(void)
{
    PyFrameObject *py = PyEval_GetFrame();
    PyObject *m = py ? PyImport_ImportModule("eas._names") : NULL,
             *code = py ? (PyObject *)PyFrame_GetCode(py) : NULL;
    PyObject *r = m ? PyObject_CallMethod(m, "is_percent", "Oi", code, PyFrame_GetLasti(py)) : NULL;
    bool is = r == Py_True;
    PyErr_Clear();
    Py_XDECREF(r);
    Py_XDECREF(m);
    Py_XDECREF(code);
    return is;
}
static PyObject *no_number(const char *what)
{
    if (in_percent())
        return py_fail_at(
            PyExc_ValueError,
            "a traced value has no digits to format while the kernel is traced: \"%%d\" %% x cannot show it. Print it from the "
            "running kernel with mk.print(x), or look at it with _interpret=True and x.numpy()");
    PyObject *hint = instead_hint();
    if (!hint)
        return NULL;
    py_fail_at(
        PyExc_TypeError,
        "a traced value has no %s while the kernel is traced. %UA size, axis or Python range() bound must be known then: make that "
        "parameter eas.constexpr; for a loop with a run-time bound use mk.range",
        what, hint);
    Py_DECREF(hint);
    return NULL;
}
static PyObject *nb_index(PyObject *x)
{
    return live(x) ? live_as(x, "__index__", PyNumber_Index) : no_number("integer value (__index__)");
}
static PyObject *nb_int(PyObject *x)
{
    return live(x) ? live_as(x, "int()", PyNumber_Long) : no_number("integer value (int())");
}
static PyObject *nb_float(PyObject *x)
{
    return live(x) ? live_as(x, "float()", PyNumber_Float) : no_number("number (float())");
}
static PyObject *value_iter(PyObject *x)
{
    (void)x;
    PyObject *hint = hint_of("of_lanes");
    if (hint)
        py_fail_at(
            PyExc_TypeError,
            "a traced value cannot be iterated over: its lanes are computed together. %UWork on the whole block",
            hint);
    Py_XDECREF(hint);
    return NULL;
}
Py_ssize_t value_len(PyObject *x)
{
    (void)x;
    py_fail_at(
        PyExc_TypeError,
        "a traced value has no len(): the sizes of a block are x.shape (its first is x.shape[0], as in mk.arange); mk.sum(mask) "
        "counts the lanes where a mask is true");
    return -1;
}
static int value_contains(PyObject *x, PyObject *y)
{
    (void)x;
    (void)y;
    py_fail_at(PyExc_TypeError,
               "`in` is not known while the kernel is traced; compare with == and use mk.where");
    return -1;
}

/* ---- shapes and lanes ---- */
/* of a key: how many axes of the block it speaks of */
static int named_axes(PyObject *const *items, Py_ssize_t n)
{
    int c = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        c += items[i] != Py_None && items[i] != Py_Ellipsis;
    return c;
}
static bool is_all(PyObject *o)
{
    PySliceObject *s = (PySliceObject *)o;
    return PySlice_Check(o) && s->start == Py_None && s->stop == Py_None && s->step == Py_None;
}
/* Lanes and slices first; then None makes new axes, all in one reshape. */
static PyObject *value_subscript(PyObject *x, PyObject *key)
{
    Trace *t = enter(x, x);
    eas_value v;
    if (!t || value_of(t, x, &v) != 1)
        return NULL;
    PyObject *const *items = PyTuple_Check(key) ? &PyTuple_GET_ITEM(key, 0) : &key;
    Py_ssize_t n = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1;
    int64_t from[4], to[8];
    int rank = eas_value_shape(t->b, v, from), axis = 0, dots = 0, left = rank, nt = 0;
    bool fresh[8] = {false};
    for (Py_ssize_t i = 0; i < n; i++) {
        if (nt >= 8)
            return py_fail_at(PyExc_ValueError, "a block may have at most 4 dims");
        if (items[i] == Py_None) {
            fresh[nt++] = true;
        } else if (items[i] == Py_Ellipsis) {
            if (dots++)
                return py_fail_at(PyExc_IndexError, "an index can have only one '...'");
            for (int k = left - named_axes(items + i + 1, n - i - 1); k > 0 && nt < 8; k--, left--, axis++)
                nt++;
        } else if (left < 1) {
            return py_fail_at(PyExc_IndexError,
                              is_all(items[i]) ? "too many ':' for a block of rank %d"
                                               : "too many indices for a block of rank %d",
                              rank);
        } else if (is_all(items[i])) {
            nt++, axis++, left--;
        } else {
            int before = axis;
            if (!lanes_item(t, &v, &axis, items[i]))
                return NULL;
            nt += axis - before;
            left--;
        }
    }
    int r = eas_value_shape(t->b, v, from), used = 0;
    nt += left;
    if (nt > 4)
        return py_fail_at(PyExc_ValueError, "a block may have at most 4 dims");
    for (int i = 0; i < nt; i++)
        to[i] = i < 8 && fresh[i] ? 1 : used < r ? from[used++] : 1;
    return value_new(t, nt == r ? v : eas_builder_reshape(t->b, v, nt, to));
}

/* ---- attributes: known only while the trace is open ---- */
static eas_builder *open_builder(PyObject *o)
{
    Trace *t = ((Value *)o)->trace;
    if (t == trace_current())
        return t->b;
    stale(t);
    return NULL;
}
static PyObject *get_shape(PyObject *o, void *c)
{
    (void)c;
    Value *x = (Value *)o;
    int64_t shape[4];
    if (!open_builder(o))
        return NULL;
    int rank = eas_value_shape(x->trace->b, x->v, shape);
    PyObject *r = PyTuple_New(rank);
    for (int i = 0; r && i < rank; i++)
        PyTuple_SET_ITEM(r, i, PyLong_FromLongLong(shape[i]));
    return r;
}
PyObject *value_get_dtype(PyObject *o, void *c)
{
    (void)c;
    eas_builder *b = open_builder(o);
    return b ? py_dtype_object(eas_value_dtype(b, ((Value *)o)->v)) : NULL;
}
static PyObject *get_ndim(PyObject *o, void *c)
{
    (void)c;
    int64_t shape[4];
    eas_builder *b = open_builder(o);
    return b ? PyLong_FromLong(eas_value_shape(b, ((Value *)o)->v, shape)) : NULL;
}
static PyObject *get_T(PyObject *o, void *c)
{
    (void)c;
    int64_t shape[4];
    Trace *t = enter(o, o);
    eas_value v = ((Value *)o)->v;
    return t ? value_new(t, eas_value_shape(t->b, v, shape) < 2 ? v : eas_builder_trans(t->b, v, NULL))
             : NULL;
}
PyObject *value_get_name(PyObject *o, void *c)
{
    (void)c;
    return Py_NewRef(((Value *)o)->name ? ((Value *)o)->name : Py_None);
}
static PyObject *value_repr(PyObject *o)
{
    Value *x = (Value *)o;
    if (x->trace != trace_current())
        return PyUnicode_FromFormat("<value of a finished trace of '%U'>", x->trace->name);
    if (x->trace->live)
        return live_repr(o);
    PyObject *shape = get_shape(o, NULL);
    PyObject *r = shape ? PyUnicode_FromFormat("<v%u: %s%S>", x->v,
                                               eas_dtype_name(eas_value_dtype(x->trace->b, x->v)), shape)
                        : NULL;
    Py_XDECREF(shape);
    return r;
}

static PyObject *get_scope(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromLong(((Value *)o)->scope);
}
static PyGetSetDef value_getset[] = {
    {"_scope", get_scope, NULL, "the number of the body it was made in", NULL},
    {"shape", get_shape, NULL, "block shape; () for a scalar", NULL},
    {"dtype", value_get_dtype, NULL, "element type", NULL},
    {"ndim", get_ndim, NULL, "rank of the block", NULL},
    {"T", get_T, NULL, "the axes reversed", NULL},
    {"name", value_get_name, NULL, "the parameter's name, or None", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef value_methods[] = {
    {"numpy", live_numpy, METH_NOARGS,
     "numpy(): under _interpret=True its data; a scalar of a thread kernel has one entry for each thread"},
    {"item", live_item_method, METH_NOARGS,
     "item(): under _interpret=True the Python number, of a scalar that is the same for all threads"},
    {"__array__", (PyCFunction)(void (*)(void))live_dunder_array, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__array_ufunc__", (PyCFunction)(void (*)(void))value_array_ufunc, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__array_function__", value_array_function, METH_VARARGS, NULL},
    {"__round__", value_round, METH_VARARGS, NULL},
    {"__floor__", value_round, METH_VARARGS, NULL},
    {"__ceil__", value_round, METH_VARARGS, NULL},
    {"__trunc__", value_round, METH_VARARGS, NULL},
    {"__format__", value_format, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
Py_hash_t value_hash(PyObject *o) { return (Py_hash_t)((uintptr_t)o >> 4); }

static PyType_Slot value_slots[] = {
    {Py_tp_doc, "A value of the kernel being traced: a scalar or a block."},
    {Py_tp_dealloc, value_dealloc},
    {Py_tp_repr, value_repr},
    {Py_tp_hash, value_hash},
    {Py_tp_richcompare, value_compare},
    {Py_tp_iter, value_iter},
    {Py_tp_getset, value_getset},
    {Py_tp_methods, value_methods},
    {Py_mp_subscript, value_subscript},
    {Py_mp_length, value_len},
    {Py_sq_contains, value_contains},
    {Py_nb_add, nb_add},
    {Py_nb_subtract, nb_sub},
    {Py_nb_multiply, nb_mul},
    {Py_nb_true_divide, nb_div},
    {Py_nb_floor_divide, nb_floordiv},
    {Py_nb_remainder, nb_mod},
    {Py_nb_power, nb_pow},
    {Py_nb_divmod, nb_divmod},
    {Py_nb_matrix_multiply, nb_matmul},
    {Py_nb_and, nb_and},
    {Py_nb_or, nb_or},
    {Py_nb_xor, nb_xor},
    {Py_nb_lshift, nb_shl},
    {Py_nb_rshift, nb_shr},
    {Py_nb_negative, nb_neg},
    {Py_nb_positive, nb_pos},
    {Py_nb_absolute, nb_abs},
    {Py_nb_invert, nb_not},
    {Py_nb_bool, nb_bool},
    {Py_nb_index, nb_index},
    {Py_nb_int, nb_int},
    {Py_nb_float, nb_float},
    {0, NULL},
};
PyType_Spec Value_spec = {"eas.mk.Value", sizeof(Value), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, value_slots};

int value_init(PyObject *module)
{
#define X(n) OP.n = eas_op_find(#n);
    VALUE_OPS(X)
#undef X
    if (!(G.value = py_type(module, &Value_spec, "Value")) ||
        !(G.buffer = py_type(module, &Buffer_spec, "Buffer")))
        return -1;
    /* NumPy's scalars and arrays leave mixed operations to us. */
    if (PyDict_SetItemString(G.buffer->tp_dict, "__array_ufunc__", Py_None) < 0)
        return -1;
    PyType_Modified(G.value);
    PyType_Modified(G.buffer);
    return 0;
}
