/* eager_call.c: kernels of the user's as operations: a launch that is recorded. */
#include "py.h"

enum { MAX_RANK = 64 };
typedef struct outputs {
    int n;
    eas_node_type type[PY_MAX_PARAMS];
    eas_dim dims[PY_MAX_PARAMS][16];
} outputs;

static int read_output(PyObject *o, outputs *out) /* (shape, dtype) */
{
    eas_node_type *t = &out->type[out->n];
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 2)
        return py_fail(PyExc_TypeError, "from_kernel: an output is (shape, dtype), got %R", o), 0;
    t->rank = dims_of(PyTuple_GET_ITEM(o, 0), "from_kernel: the shape of an output", out->dims[out->n], 16);
    t->shape = out->dims[out->n++];
    return t->rank >= 0 && eager_dtype(PyTuple_GET_ITEM(o, 1), "from_kernel: an output", &t->dtype);
}
static int read_grid(PyObject *o, int64_t grid[3])
{
    eas_dim dims[3];
    int n = dims_of(o, "from_kernel: grid", dims, 3);
    if (n < 1)
        return n < 0 ? 0 : (py_fail(PyExc_ValueError, "from_kernel: grid has 1 to 3 sizes"), 0);
    for (int i = 0; i < 3; i++)
        grid[i] = i < n ? dims[i] : 1;
    return 1;
}
/* ---- lanes of vmap ---- */

static void drop_kernel(PyObject *capsule) { eas_kernel_release(PyCapsule_GetPointer(capsule, "eas_kernel")); }

/* kernel_lanes(compiled, flags, axis): the kernel with lanes on that axis; flags: per parameter, does it have one part for each lane? */
static PyObject *kernel_lanes(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    uint8_t batched[PY_MAX_PARAMS] = {0};
    eas_kernel *k;
    (void)m;
    if (nargs != 3 || !PyObject_TypeCheck(args[0], G.compiled) || !PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) > PY_MAX_PARAMS)
        return py_fail(PyExc_TypeError, "kernel_lanes(compiled, flags, axis)");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++)
        batched[i] = PyTuple_GET_ITEM(args[1], i) == Py_True;
    long axis = PyLong_AsLong(args[2]);
    if (axis == -1 && PyErr_Occurred())
        return NULL;
    eas_status st = eas_kernel_lanes(((Compiled *)args[0])->k, batched, (int)axis, &k);
    return st == EAS_OK ? PyCapsule_New(k, "eas_kernel", drop_kernel) : py_raise(st);
}

/* ---- calls ---- */

/* What outputs hold before the launch: None, "zero", or a tensor that they begin as a copy of, which becomes an input. */
static int read_begin(PyObject *o, Py_ssize_t nouts, eas_node **in, int *nin, int8_t *begin)
{
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != nouts)
        return py_fail(PyExc_TypeError, "kernel_call: one beginning for each output, got %R", o), 0;
    for (Py_ssize_t i = 0; i < nouts; i++) {
        PyObject *x = PyTuple_GET_ITEM(o, i);
        begin[i] = x == Py_None ? EAS_BEGIN_ANY : EAS_BEGIN_ZERO;
        if (x == Py_None || PyUnicode_Check(x))
            continue;
        if (*nin >= PY_MAX_PARAMS - 1 || *nin >= 127 || !(in[*nin] = eager_arg(x, "from_kernel", "what an output begins as")))
            return PyErr_Occurred() ? 0 : (py_fail(PyExc_ValueError, "kernel_call: too many tensors"), 0);
        begin[i] = (int8_t)(*nin)++;
    }
    return 1;
}

/* The tensors of n results, which are given away; with a failure an exception. */
static PyObject *list_of(eas_status st, Py_ssize_t n, eas_node *const *results)
{
    PyObject *list = st == EAS_OK ? PyList_New(n) : py_raise(st);
    for (Py_ssize_t i = 0; st == EAS_OK && i < n; i++) {
        PyObject *t = eager_result(EAS_OK, results[i]);
        if (list && t)
            PyList_SET_ITEM(list, i, t);
        else {
            Py_XDECREF(t);
            Py_CLEAR(list);
        }
    }
    return list;
}

/* kernel_call(compiled, arguments, outputs, grid[, begin]): arguments in the order of the kernel's parameters: tensors, numbers, or the number of an output in a list of
 * one. Gives the tensors of the outputs. compiled may be what kernel_lanes gave. */
static PyObject *kernel_call(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    bool lanes = nargs >= 4 && PyCapsule_IsValid(args[0], "eas_kernel");
    if (nargs < 4 || nargs > 5 || (!lanes && !PyObject_TypeCheck(args[0], G.compiled)) || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]))
        return py_fail(PyExc_TypeError, "kernel_call(compiled, arguments, outputs, grid[, begin])");
    eas_kernel *k = lanes ? PyCapsule_GetPointer(args[0], "eas_kernel") : ((Compiled *)args[0])->k;
    Py_ssize_t n = PyTuple_GET_SIZE(args[1]), nouts = PyTuple_GET_SIZE(args[2]);
    eas_node *in[PY_MAX_PARAMS], *results[PY_MAX_PARAMS];
    int8_t order[PY_MAX_PARAMS], begin[128];
    int64_t grid[3];
    int nin = 0, ok = n <= PY_MAX_PARAMS && nouts < 128;
    outputs *out = ok ? PyMem_Calloc(1, sizeof *out) : NULL;
    if (!out)
        return ok ? PyErr_NoMemory() : py_fail(PyExc_ValueError, "from_kernel: too many parameters");
    for (Py_ssize_t i = 0; ok && i < nouts; i++)
        ok = read_output(PyTuple_GET_ITEM(args[2], i), out);
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *o = PyTuple_GET_ITEM(args[1], i);
        if (PyList_Check(o)) {
            order[i] = (int8_t)(-1 - PyLong_AsLong(PyList_GET_ITEM(o, 0)));
            continue;
        }
        order[i] = (int8_t)nin;
        ok = nin < 128 && (in[nin] = eager_arg(o, "from_kernel", "an argument")) != NULL;
        nin += ok;
    }
    PyObject *list = NULL;
    ok = ok && (nargs < 5 || read_begin(args[4], nouts, in, &nin, begin));
    if (ok && (args[3] == Py_None || read_grid(args[3], grid))) {
        eas_site(site_here());
        eas_status st = eas_node_call_begun(k, nin, in, (int)nouts, out->type, nargs < 5 ? NULL : begin, (int)n, order,
                                            args[3] == Py_None ? NULL : grid, results);
        list = list_of(st, nouts, results);
    }
    for (int i = 0; i < nin; i++)
        eas_node_release(in[i]);
    PyMem_Free(out);
    return list;
}
/* native_call(name, tensors, outputs, numbers): a function of the host's (src/native/native.def). outputs: (shape, dtype) each; numbers: ints or symbolic sizes. */
static PyObject *native_call(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    if (nargs != 4 || !PyUnicode_Check(args[0]) || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3]))
        return py_fail(PyExc_TypeError, "native_call(name, tensors, outputs, numbers)");
    Py_ssize_t n = PyTuple_GET_SIZE(args[1]), nouts = PyTuple_GET_SIZE(args[2]);
    eas_node *in[16], *results[16];
    eas_dim numbers[64];
    int nin = 0, ok = n <= 16 && nouts <= 16;
    int nnumbers = ok ? dims_of(args[3], "native_call: numbers", numbers, 64) : -1;
    outputs *out = nnumbers >= 0 ? PyMem_Calloc(1, sizeof *out) : NULL;
    if (!out)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_ValueError, "native_call: too many tensors");
    for (Py_ssize_t i = 0; ok && i < nouts; i++)
        ok = read_output(PyTuple_GET_ITEM(args[2], i), out);
    for (; ok && nin < n; nin += ok)
        ok = (in[nin] = eager_arg(PyTuple_GET_ITEM(args[1], nin), "linalg", "an argument")) != NULL;
    PyObject *list = NULL;
    if (ok) {
        eas_site(site_here());
        eas_status st = eas_node_native(PyUnicode_AsUTF8(args[0]), nin, in, (int)nouts, out->type, nnumbers, numbers, results);
        list = list_of(st, nouts, results);
    }
    for (int i = 0; i < nin; i++)
        eas_node_release(in[i]);
    PyMem_Free(out);
    return list;
}
static PyObject *lapack_path(PyObject *m, PyObject *path)
{
    (void)m;
    const char *text = PyUnicode_Check(path) ? PyUnicode_AsUTF8(path) : NULL;
    if (!text)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "lapack_path(path)");
    eas_lapack_path(text);
    return Py_NewRef(Py_None);
}
static PyObject *lapack_name(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    const char *name = eas_lapack_name();
    return name ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
}
static PyMethodDef functions[] = {
    {"native_call", (PyCFunction)(void (*)(void))native_call, METH_FASTCALL, "native_call(name, tensors, outputs, numbers)"},
    {"lapack_path", lapack_path, METH_O, "lapack_path(path): a file that a LAPACK may be in"},
    {"lapack_name", lapack_name, METH_NOARGS, "lapack_name(): the file of the LAPACK in use, or None"},
    {"kernel_call", (PyCFunction)(void (*)(void))kernel_call, METH_FASTCALL, "kernel_call(compiled, arguments, outputs, grid[, begin])"},
    {"kernel_lanes", (PyCFunction)(void (*)(void))kernel_lanes, METH_FASTCALL, "kernel_lanes(compiled, flags, axis)"},
    {NULL, NULL, 0, NULL}};
int eager_call_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
