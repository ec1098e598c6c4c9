/* irview.c: finished IR as Python sees it. eas.ir.IRModule subclasses the IR type here and gives its parts
 * names. */
#include "py.h"

#include <string.h>

PyObject *py_take_text(eas_status st, char *text)
{
    if (st != EAS_OK)
        return py_raise(st);
    PyObject *s = PyUnicode_FromString(text);
    eas_memory_free(text);
    return s;
}

static PyObject *ir_make(PyTypeObject *type, eas_ir *ir) /* takes the reference */
{
    IR *o = (IR *)type->tp_alloc(type, 0);
    if (o)
        o->ir = ir;
    else
        eas_ir_release(ir);
    return (PyObject *)o;
}
PyObject *ir_wrap(eas_ir *ir)
{
    PyObject *m = PyImport_ImportModule("eas.ir"), *type = m ? PyObject_GetAttr(m, N.IRModule) : NULL;
    PyObject *o = type ? ir_make((PyTypeObject *)type, eas_ir_retain(ir)) : NULL;
    Py_XDECREF(type);
    Py_XDECREF(m);
    return o;
}
static void ir_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    if (((IR *)o)->ir)
        eas_ir_release(((IR *)o)->ir);
    type->tp_free(o);
    Py_DECREF(type);
}

/* ---- text ---- */
static PyObject *ir_parse(PyObject *type, PyObject *text)
{
    Py_ssize_t n;
    const char *s = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &n) : NULL;
    if (!s)
        return PyErr_Occurred()
                 ? NULL
                 : py_fail(PyExc_TypeError, "IR text must be str, got %s", Py_TYPE(text)->tp_name);
    eas_ir *ir;
    eas_status st = eas_ir_parse(s, (size_t)n, &ir);
    return st == EAS_OK ? ir_make((PyTypeObject *)type, ir) : py_raise(st);
}
static PyObject *ir_text(PyObject *o, PyObject *args, PyObject *kw)
{
    static char *names[] = {"lines", NULL};
    int lines = 0;
    char *text = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|p:text", names, &lines))
        return NULL;
    eas_status st = eas_ir_text(((IR *)o)->ir, lines, &text);
    return py_take_text(st, text);
}
static PyObject *ir_str(PyObject *o)
{
    char *text = NULL;
    eas_status st = eas_ir_text(((IR *)o)->ir, 0, &text);
    return py_take_text(st, text);
}
static PyObject *ir_emit(PyObject *o, PyObject *form)
{
    const char *f = PyUnicode_Check(form) ? PyUnicode_AsUTF8(form) : NULL;
    char *text = NULL;
    if (!f)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "form must be a str such as \"msl\"");
    eas_status st = eas_ir_emit(((IR *)o)->ir, f, &text);
    return py_take_text(st, text);
}
static PyObject *ir_simplified(PyObject *o, PyObject *unused)
{
    (void)unused;
    eas_ir *ir;
    eas_status st = eas_ir_simplify(((IR *)o)->ir, &ir);
    return st == EAS_OK ? ir_make(Py_TYPE(o), ir) : py_raise(st);
}

/* ---- parts ---- */
static PyObject *value_name(const eas_ir *ir, eas_value v)
{
    return v && (int)v <= eas_ir_param_count(ir) ? PyUnicode_FromString(eas_ir_param(ir, (int)v - 1).name)
                                                 : PyUnicode_FromFormat("v%u", v);
}
static double half_bits(uint16_t h) /* f16 */ { return PyFloat_Unpack2((char *)&h, PY_LITTLE_ENDIAN); }
static PyObject *const_value(eas_dtype dt, int64_t bits)
{
    float f;
    double d;
    uint32_t w = dt == EAS_BF16 ? (uint32_t)bits << 16 : (uint32_t)bits;
    memcpy(&f, &w, sizeof f);
    memcpy(&d, &bits, sizeof d);
    switch (dt) {
    case EAS_BOOL: return PyBool_FromLong(bits != 0);
    case EAS_F16: return PyFloat_FromDouble(half_bits((uint16_t)bits));
    case EAS_BF16:
    case EAS_F32: return PyFloat_FromDouble(f);
    case EAS_F64: return PyFloat_FromDouble(d);
    case EAS_U64: return PyLong_FromUnsignedLongLong((uint64_t)bits);
    default: return PyLong_FromLongLong(bits);
    }
}
/* Operands by name; then what else the instruction says (a constant, an axis, a start and size). */
static PyObject *insn_args(const eas_ir *ir, const eas_insn *in, eas_dtype dt, int rank, const int64_t *shape)
{
    const char *op = eas_op_name(in->op);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < in->nargs; i++) {
        PyObject *n = value_name(ir, in->args[i]);
        if (!n || PyList_Append(list, n) < 0)
            Py_CLEAR(list);
        Py_XDECREF(n);
    }
    static const char *const with_imm[] = {"program_id", "num_programs", "arange",  "thread_id",
                                           "global_id",  "local_id",     "alloc_tg"};
    bool imm = false, is_const = !strcmp(op, "const");
    for (size_t i = 0; i < sizeof with_imm / sizeof *with_imm; i++)
        imm |= !strcmp(op, with_imm[i]);
    if (list && (imm || is_const)) {
        PyObject *n = is_const ? const_value(dt, in->imm) : PyLong_FromLongLong(in->imm);
        if (!n || PyList_Append(list, n) < 0)
            Py_CLEAR(list);
        Py_XDECREF(n);
    }
    if (list && rank == 1 && !strcmp(op, "arange")) {
        PyObject *n = PyLong_FromLongLong(shape[0]);
        if (!n || PyList_Append(list, n) < 0)
            Py_CLEAR(list);
        Py_XDECREF(n);
    }
    PyObject *t = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return t;
}
static PyObject *shape_tuple(int rank, const int64_t *shape)
{
    PyObject *t = PyTuple_New(rank);
    for (int i = 0; t && i < rank; i++)
        PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(shape[i]));
    return t;
}
static PyObject *insn_tuple(const eas_ir *ir, int i)
{
    eas_insn in = eas_ir_insn(ir, i);
    eas_dtype dt = EAS_BOOL;
    int rank = 0;
    int64_t shape[4];
    bool typed = in.result && eas_ir_value_type(ir, in.result, &dt, &rank, shape) == EAS_OK;
    PyObject *args = insn_args(ir, &in, dt, typed ? rank : 0, shape);
    PyObject *name = in.result ? value_name(ir, in.result) : PyUnicode_FromString("");
    PyObject *dtype = typed ? py_dtype_object(dt) : Py_NewRef(Py_None),
             *dims = shape_tuple(typed ? rank : 0, shape);
    return Py_BuildValue("(sNNNNzi)", eas_op_name(in.op), args, name, dtype, dims, in.file, in.line);
}
static PyObject *ir_insns(PyObject *o, PyObject *unused)
{
    (void)unused;
    eas_ir *ir = ((IR *)o)->ir;
    int n = eas_ir_insn_count(ir);
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *t = insn_tuple(ir, i);
        if (!t)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, t);
    }
    return list;
}
static PyObject *ir_params(PyObject *o, PyObject *unused)
{
    (void)unused;
    eas_ir *ir = ((IR *)o)->ir;
    int n = eas_ir_param_count(ir);
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        eas_param p = eas_ir_param(ir, i);
        PyObject *t =
            Py_BuildValue("(sNsOO)", p.name, py_dtype_object(p.dtype), p.is_buffer ? "buffer" : "scalar",
                          p.is_read ? Py_True : Py_False, p.is_written ? Py_True : Py_False);
        if (!t)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, t);
    }
    return list;
}
static PyObject *ir_info(PyObject *o, PyObject *unused)
{
    (void)unused;
    eas_ir_info in = eas_ir_analyse(((IR *)o)->ir);
    return Py_BuildValue("(sLiLO)", in.mode == EAS_MODE_THREAD ? "thread" : "spmd", (long long)in.block,
                         in.naxes, (long long)in.tg_bytes, in.has_barrier ? Py_True : Py_False);
}
static PyObject *ir_name(PyObject *o, void *c)
{
    (void)c;
    return PyUnicode_FromString(eas_ir_name(((IR *)o)->ir));
}

static PyGetSetDef ir_getset[] = {{"name", ir_name, NULL, "the kernel's name", NULL},
                                  {NULL, NULL, NULL, NULL, NULL}};
static PyMethodDef ir_methods[] = {
    {"parse", ir_parse, METH_O | METH_CLASS,
     "parse(text): the kernel that the text form describes, verified; ValueError with the position if malformed"},
    {"text", (PyCFunction)(void (*)(void))ir_text, METH_VARARGS | METH_KEYWORDS,
     "text(lines=False): the text form, with source lines if asked"},
    {"emit", ir_emit, METH_O, "emit(form): \"ir\", \"msl\", \"opencl\", \"plan\", \"llvm\" or \"asm\" text"},
    {"simplify", ir_simplified, METH_NOARGS, "simplify(): the same kernel, simplified"},
    {"_insns", ir_insns, METH_NOARGS, NULL},
    {"_params", ir_params, METH_NOARGS, NULL},
    {"_info", ir_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot ir_slots[] = {
    {Py_tp_doc, "Finished kernel IR."}, {Py_tp_dealloc, ir_dealloc}, {Py_tp_str, ir_str},
    {Py_tp_methods, ir_methods},        {Py_tp_getset, ir_getset},   {0, NULL},
};
PyType_Spec IR_spec = {"eas._eas.IR", sizeof(IR), 0,
                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                       ir_slots};
