/* var.c: mk.var: a variable of the kernel, which loops carry and branches merge. */
#include "ctrl.h"

#include <string.h>

static int var_register(Trace *t, Var *v)
{
    if (t->nvars == t->capvars) {
        int cap = t->capvars ? 2 * t->capvars : 8;
        Var **more = PyMem_Realloc(t->vars, (size_t)cap * sizeof *more);
        if (!more)
            return PyErr_NoMemory(), 0;
        t->vars = more;
        t->capvars = cap;
    }
    v->slot = t->nvars;
    t->vars[t->nvars++] = v;
    return 1;
}
static void var_dealloc(PyObject *o)
{
    Var *v = (Var *)o;
    PyTypeObject *type = Py_TYPE(o);
    Trace *t = v->trace;
    if (v->slot >= 0) { /* order is kept: the IR must not depend on when Python frees things */
        memmove(t->vars + v->slot, t->vars + v->slot + 1, (size_t)(t->nvars - v->slot - 1) * sizeof *t->vars);
        t->nvars--;
        for (int i = v->slot; i < t->nvars; i++)
            t->vars[i]->slot = i;
    }
    if (t->live)
        eas_live_drop(t->b, v->v);
    Py_DECREF(t);
    PyObject_Free(o);
    Py_DECREF(type);
}
/* A Python number takes the variable's dtype if it is of its kind; else it is what mk.var would make of it.
 */
static eas_value weak_for(Trace *t, const Var *v, eas_value x)
{
    eas_dtype dt = eas_value_dtype(t->b, v->v);
    bool real = eas_dtype_kind(eas_value_dtype(t->b, x)) == 'f',
         same = real == (eas_dtype_kind(dt) == 'f') && dt != EAS_BOOL;
    return same ? eas_builder_convert(t->b, "var", x, dt)
                : eas_builder_cast(t->b, x, real ? EAS_F32 : EAS_I64);
}
/* Outside any region a variable is a plain name and may change type; inside, it must keep the type it had at
 * the start. */
static int assign(Trace *t, Var *v, eas_value x)
{
    if (t->frames && v->v) {
        eas_dtype dt = eas_value_dtype(t->b, v->v), from = eas_value_dtype(t->b, x);
        int64_t to[4], shape[4];
        int rank = eas_value_shape(t->b, v->v, to), xrank = eas_value_shape(t->b, x, shape);
        if (from != dt) {
            if (!eas_value_is_weak(t->b, x))
                return py_fail_at(
                           PyExc_TypeError,
                           "a variable of %s gets a value of %s inside a loop or branch: cast one of them, or begin with mk.var(mk.cast(init, "
                           "mk.%s))",
                           eas_dtype_name(dt), eas_dtype_name(from), eas_dtype_name(from)),
                       0;
            x = eas_builder_convert(t->b, "var", x, dt);
        }
        if (xrank > rank)
            return py_fail_at(
                       PyExc_ValueError,
                       "a variable of rank %d gets a block of rank %d inside a loop or branch: begin with mk.var(mk.zeros(shape, dtype))",
                       rank, xrank),
                   0;
        if (xrank != rank || memcmp(to, shape, (size_t)rank * sizeof *to))
            x = eas_builder_broadcast(t->b, x, rank, to);
        if (t->live)
            x = eas_live_merge(t->b, v->v, x);
    }
    if (!t->frames && v->v && eas_value_is_weak(t->b, x))
        x = weak_for(t, v, x);
    if (t->mask && v->v)
        x = eas_builder_apply(t->b, OP.where, t->mask, x, v->v);
    if (t->live) {
        eas_live_keep(t->b, x);
        eas_live_drop(t->b, v->v);
    }
    v->v = x;
    return trace_ok(t);
}
static Trace *var_enter(Var *v)
{
    Trace *t = trace_enter("var");
    if (t && v->trace != t)
        return py_fail_at(PyExc_RuntimeError, "a mk.var of another trace is used here"), NULL;
    return t;
}
/* `old = v` makes another name of one variable, so that writing to it would change what was meant as a copy.
 */
static int alias_fail(PyFrameObject *py, PyObject *names)
{
    PyObject *m = PyImport_ImportModule("eas._names"), *code = (PyObject *)PyFrame_GetCode(py),
             *set = PyFrozenSet_New(names);
    PyObject *pair =
        m && set ? PyObject_CallMethod(m, "copied", "OiO", code, PyFrame_GetLasti(py), set) : NULL;
    int ok = pair == Py_None;
    if (pair && !ok)
        py_fail_at(
            PyExc_RuntimeError,
            "'%U' and '%U' are two names of one mk.var, and this would change both. A variable's value at a point is v.value: write %U = %U.value "
            "where you read it",
            PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), PyTuple_GET_ITEM(pair, 0),
            PyTuple_GET_ITEM(pair, 1));
    Py_XDECREF(pair);
    Py_XDECREF(set);
    Py_XDECREF(m);
    Py_DECREF(code);
    return ok;
}
static int alone(PyObject *var)
{
    PyFrameObject *py = PyEval_GetFrame();
    PyObject *locals = py ? PyFrame_GetLocals(py) : NULL, *plain = locals ? PyDict_New() : NULL,
             *names = plain ? PyList_New(0) : NULL, *name, *v;
    int ok = !py || (names && PyDict_Update(plain, locals) == 0 && frame_drop_made_names(plain));
    for (Py_ssize_t at = 0; ok && plain && PyDict_Next(plain, &at, &name, &v);)
        ok = v != var || PyList_Append(names, name) == 0;
    if (ok && names && PyList_GET_SIZE(names) > 1)
        ok = alias_fail(py, names);
    Py_XDECREF(names);
    Py_XDECREF(plain);
    Py_XDECREF(locals);
    return ok;
}
static PyObject *var_set(PyObject *o, PyObject *x)
{
    eas_value v;
    Trace *t = var_enter((Var *)o);
    return t && alone(o) && value_arg(t, x, "var.set", "value", &v) && assign(t, (Var *)o, v)
             ? Py_NewRef(Py_None)
             : NULL;
}
static PyObject *var_get(PyObject *o, void *c)
{
    (void)c;
    Trace *t = var_enter((Var *)o);
    return t ? value_new(t, ((Var *)o)->v) : NULL;
}
static int var_put(PyObject *o, PyObject *x, void *c)
{
    (void)c;
    if (!x)
        return PyErr_SetString(PyExc_AttributeError, "value cannot be deleted"), -1;
    PyObject *r = var_set(o, x);
    Py_XDECREF(r);
    return r ? 0 : -1;
}
/* Operators read the variable and act on its value; in-place ones write it back. */
static PyObject *plain(PyObject *o) { return Py_IS_TYPE(o, G.var) ? var_get(o, NULL) : Py_NewRef(o); }
static PyObject *via(PyObject *x, PyObject *y, binaryfunc f)
{
    PyObject *a = plain(x), *b = a ? plain(y) : NULL, *r = b ? f(a, b) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return r;
}
static PyObject *via_in_place(PyObject *x, PyObject *y, binaryfunc f)
{
    PyObject *r = via(x, y, f), *done = r ? var_set(x, r) : NULL;
    Py_XDECREF(r);
    Py_XDECREF(done);
    return done ? Py_NewRef(x) : NULL;
}
#define VIA(name, fn) \
    static PyObject *var_##name(PyObject *x, PyObject *y) { return via(x, y, fn); } \
    static PyObject *var_i##name(PyObject *x, PyObject *y) { return via_in_place(x, y, fn); }
VIA(add, PyNumber_Add)
VIA(sub, PyNumber_Subtract)
VIA(mul, PyNumber_Multiply)
VIA(div, PyNumber_TrueDivide)
VIA(fdiv, PyNumber_FloorDivide)
VIA(mod, PyNumber_Remainder)
VIA(and, PyNumber_And)
VIA(or, PyNumber_Or)
VIA(xor, PyNumber_Xor)
VIA(shl, PyNumber_Lshift)
VIA(matmul, PyNumber_MatrixMultiply)
VIA(shr, PyNumber_Rshift) static PyObject *power(PyObject *x, PyObject *y)
{
    return PyNumber_Power(x, y, Py_None);
}
static PyObject *var_pow(PyObject *x, PyObject *y, PyObject *z)
{
    (void)z;
    return via(x, y, power);
}
static PyObject *var_ipow(PyObject *x, PyObject *y, PyObject *z)
{
    (void)z;
    return via_in_place(x, y, power);
}
static PyObject *var_divmod(PyObject *x, PyObject *y) { return via(x, y, PyNumber_Divmod); }
static PyObject *via1(PyObject *x, unaryfunc f)
{
    PyObject *a = plain(x), *r = a ? f(a) : NULL;
    Py_XDECREF(a);
    return r;
}
static PyObject *var_neg(PyObject *x) { return via1(x, PyNumber_Negative); }
static PyObject *var_pos(PyObject *x) { return via1(x, PyNumber_Positive); }
static PyObject *var_abs(PyObject *x) { return via1(x, PyNumber_Absolute); }
static PyObject *var_not(PyObject *x) { return via1(x, PyNumber_Invert); }
static PyObject *var_index(PyObject *x) { return via1(x, PyNumber_Index); }
static PyObject *var_int(PyObject *x) { return via1(x, PyNumber_Long); }
static PyObject *var_float(PyObject *x) { return via1(x, PyNumber_Float); }
static PyObject *var_iter(PyObject *x) { return via1(x, PyObject_GetIter); }
static int var_contains(PyObject *x, PyObject *y)
{
    PyObject *a = plain(x);
    int r = a ? PySequence_Contains(a, y) : -1;
    Py_XDECREF(a);
    return r;
}
static int var_bool(PyObject *x)
{
    PyObject *a = plain(x);
    int r = a ? PyObject_IsTrue(a) : -1;
    Py_XDECREF(a);
    return r;
}
static PyObject *var_compare(PyObject *x, PyObject *y, int how)
{
    PyObject *a = plain(x), *b = a ? plain(y) : NULL, *r = b ? PyObject_RichCompare(a, b, how) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return r;
}
static PyObject *var_subscript(PyObject *x, PyObject *k)
{
    PyObject *a = plain(x), *r = a ? PyObject_GetItem(a, k) : NULL;
    Py_XDECREF(a);
    return r;
}
static PyObject *var_attr(PyObject *x, void *name)
{
    PyObject *a = plain(x), *r = a ? PyObject_GetAttrString(a, name) : NULL;
    Py_XDECREF(a);
    return r;
}
static PyGetSetDef var_getset[] = {
    {"value", var_get, var_put, "what it holds now", NULL}, {"shape", var_attr, NULL, "block shape", "shape"},
    {"dtype", var_attr, NULL, "element type", "dtype"},     {"ndim", var_attr, NULL, "rank", "ndim"},
    {"T", var_attr, NULL, "the axes reversed", "T"},        {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *var_repr(PyObject *o)
{
    PyObject *v = ((Var *)o)->trace == trace_current() ? plain(o) : NULL,
             *r = v ? PyUnicode_FromFormat("<var %R>", v) : NULL;
    Py_XDECREF(v);
    return v || PyErr_Occurred()
             ? r
             : PyUnicode_FromFormat("<var of a finished trace of '%U'>", ((Var *)o)->trace->name);
}
static PyObject *var_numpy(PyObject *x, PyObject *unused)
{
    (void)unused;
    return via1(x, live_array);
}
static PyObject *var_item(PyObject *x, PyObject *unused)
{
    (void)unused;
    PyObject *a = plain(x), *r = a ? live_item(a, "item()") : NULL;
    Py_XDECREF(a);
    return r;
}
static PyObject *var_array(PyObject *x, PyObject *args, PyObject *kw)
{
    PyObject *a = plain(x), *r = a ? live_dunder_array(a, args, kw) : NULL;
    Py_XDECREF(a);
    return r;
}
static Py_hash_t var_hash(PyObject *o) { return (Py_hash_t)((uintptr_t)o >> 4); }
static PyMethodDef var_methods[] = {
    {"set", var_set, METH_O, "set(x): the variable holds x from here on"},
    {"numpy", var_numpy, METH_NOARGS, "numpy(): under _interpret=True its data"},
    {"item", var_item, METH_NOARGS, "item(): under _interpret=True the Python number"},
    {"__array__", (PyCFunction)(void (*)(void))var_array, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__array_ufunc__", (PyCFunction)(void (*)(void))value_array_ufunc, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__array_function__", value_array_function, METH_VARARGS, NULL},
    {"__round__", value_round, METH_VARARGS, NULL},
    {"__format__", value_format, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot var_slots[] = {
    {Py_tp_repr, var_repr},
    {Py_tp_doc, "A variable that changes over traced loops and branches."},
    {Py_tp_dealloc, var_dealloc},
    {Py_tp_getset, var_getset},
    {Py_tp_methods, var_methods},
    {Py_tp_richcompare, var_compare},
    {Py_tp_hash, var_hash},
    {Py_mp_subscript, var_subscript},
    {Py_mp_length, value_len},
    {Py_nb_add, var_add},
    {Py_nb_subtract, var_sub},
    {Py_nb_multiply, var_mul},
    {Py_nb_true_divide, var_div},
    {Py_nb_floor_divide, var_fdiv},
    {Py_nb_remainder, var_mod},
    {Py_nb_and, var_and},
    {Py_nb_or, var_or},
    {Py_nb_xor, var_xor},
    {Py_nb_lshift, var_shl},
    {Py_nb_rshift, var_shr},
    {Py_nb_power, var_pow},
    {Py_nb_divmod, var_divmod},
    {Py_nb_matrix_multiply, var_matmul},
    {Py_nb_inplace_matrix_multiply, var_imatmul},
    {Py_nb_inplace_add, var_iadd},
    {Py_nb_inplace_subtract, var_isub},
    {Py_nb_inplace_multiply, var_imul},
    {Py_nb_inplace_true_divide, var_idiv},
    {Py_nb_inplace_floor_divide, var_ifdiv},
    {Py_nb_inplace_remainder, var_imod},
    {Py_nb_inplace_and, var_iand},
    {Py_nb_inplace_or, var_ior},
    {Py_nb_inplace_xor, var_ixor},
    {Py_nb_inplace_lshift, var_ishl},
    {Py_nb_inplace_rshift, var_ishr},
    {Py_nb_negative, var_neg},
    {Py_nb_positive, var_pos},
    {Py_nb_absolute, var_abs},
    {Py_nb_invert, var_not},
    {Py_nb_inplace_power, var_ipow},
    {Py_nb_bool, var_bool},
    {Py_nb_index, var_index},
    {Py_nb_int, var_int},
    {Py_nb_float, var_float},
    {Py_tp_iter, var_iter},
    {Py_sq_contains, var_contains},
    {0, NULL},
};
PyType_Spec Var_spec = {"eas.mk.Var", sizeof(Var), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                        var_slots};

FN(var)
{
    eas_value v;
    eas_dtype dt;
    PARSE({"var", 2, 1, {"init", "dtype"}});
    bool typed = in[1] && in[1] != Py_None;
    if (!value_arg(t, in[0], s.fn, "init", &v) || (typed && !py_to_dtype(in[1], "mk.var", &dt)))
        return NULL;
    if (typed)
        v = eas_builder_convert(t->b, "var", v, dt);
    else if (eas_value_is_weak(t->b, v))
        v = eas_builder_cast(t->b, v, eas_dtype_kind(eas_value_dtype(t->b, v)) == 'f' ? EAS_F32 : EAS_I64);
    Var *o = trace_ok(t) ? PyObject_New(Var, G.var) : NULL;
    if (!o)
        return NULL;
    o->trace = (Trace *)Py_NewRef(t);
    o->v = v;
    o->slot = -1;
    if (t->live)
        eas_live_keep(t->b, v);
    if (!var_register(t, o))
        Py_CLEAR(o);
    return (PyObject *)o;
}

static PyMethodDef rows[] = {
    ROW(var,
        "var($module, init, dtype=None)\n--\n\nA variable that changes over traced loops and branches; a Python number is i64 or f32 unless "
        "dtype says "
        "otherwise."),
    {NULL, NULL, 0, NULL},
};
int var_init(PyObject *mk) { return mk_add_all(mk, rows); }
